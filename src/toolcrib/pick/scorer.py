"""What a scorer is, how it is asked, and what of its answer is used.

A scorer is a ranker, a batch scorer, or a function of an input and a tool. It only weighs tools.
The caller decides which tools are offered, how many, and for how long.

Rule: a scorer is never trusted. Each score is checked before it counts, a scorer's exceptions
become a PickError that names it, and nothing synchronous runs on the event loop. It has a daemon
thread of its own, so that building an index stops no other task, and a scorer that hangs does not
keep the program from ending. (A thread costs about 0.1 ms for each pick.) A C call that holds the
interpreter's lock stops everything, including its time limit, which cannot be prevented here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import nsmallest
from importlib import import_module
from itertools import count, islice
from math import fsum, inf, isfinite
from numbers import Real
from threading import TIMEOUT_MAX, Lock
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    runtime_checkable,
)

import msgspec

from toolcrib.errors import MissingExtraError, PickError, ToolcribError
from toolcrib.pick.query import Query
from toolcrib.pick.words import batched, no_json
from toolcrib.threads import cancel_requests, in_thread, is_stop
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

# `Hits`: what a scorer found in a catalog, in columns, and how the best of them are taken.
#
# Rule: no object is made for a tool that is not picked, so a catalog of 100,000 tools costs only
# its best few, and one pass of C code over numbers.


class Hits(NamedTuple):
    """Weights of tools in a scorer's own units: any finite numbers, where more is better.

    `values[i]` is the weight of the tool at `positions[i]`, or of tool `i` if `positions` is None.
    A tool that is not listed does not fit at all. Both may be lists or numpy arrays. `calibrated`
    turns a weight into a score in 0..1, and never reverses an order.
    """

    values: Sequence[float]
    positions: Sequence[int] | None
    calibrated: Callable[[float], float]

    def are_finite(self) -> bool:
        """Return whether every weight is a finite number. Any other value would make the order
        wrong."""
        values: Any = self.values
        return isfinite(values.sum() if hasattr(values, "sum") else fsum(values))

    def best(self, count: int) -> list[tuple[int, float]]:
        """Return (position, weight) of the best `count`, best first, equal ones by position."""
        values: Any = self.values
        positions = range(len(values)) if self.positions is None else self.positions
        if len(values) > count and hasattr(values, "partition"):
            partitioned = values.copy()
            partitioned.partition(len(values) - count)
            rows = (values >= partitioned[len(values) - count]).nonzero()[0].tolist()
            pairs = [(int(positions[row]), float(values[row])) for row in rows]
        else:
            pairs = [(int(p), float(v)) for p, v in zip(positions, values, strict=True)]
        return nsmallest(count, pairs, key=lambda hit: (-hit[1], hit[0]))


class Score(msgspec.Struct, frozen=True):
    """How well a tool fits a request, from 0 (not at all) to 1 (perfectly). `details` is JSON for
    audits."""

    score: float
    reason: str = ""
    details: JsonObject | None = None


class Ranker(Protocol):
    """Weighs a whole catalog at once and returns numbers, not objects, so that it is fit for
    100,000 tools.

    `hits` is synchronous, runs in a thread and may be called from several at once. With a `limit`,
    its hits include at least that many of the best, which are all that is used. Without one, they
    include all. Equal input gives equal hits, unless the query's deadline has passed.
    """

    @property
    def name(self) -> str: ...
    def hits(
        self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None
    ) -> Hits: ...


class BatchScorer(Protocol):
    """Scores all tools in one call, in their order. It is the easiest kind of scorer that sees the
    catalog.

    `score` runs in a thread and may be called from several at once. If it is declared with `async
    def`, it runs on the event loop. Equal input must give equal scores.
    """

    @property
    def name(self) -> str: ...
    def score(
        self, query: Query, tools: Sequence[HasDefinition]
    ) -> Scores | Coroutine[Any, Any, Scores]: ...


@runtime_checkable
class AwaitedRanker(Protocol):
    """A ranker that is made of others, some of which may have to be awaited.

    If it is `asynchronous`, the caller uses what `awaited` returns for one query and these tools.
    Its own `hits` raises PickError.
    """

    @property
    def asynchronous(self) -> bool: ...
    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Ranker: ...


@runtime_checkable
class ExplainingScorer(Protocol):
    """A ranker or batch scorer whose reasons cost more than its scores, and are asked for picked
    tools only.

    `explain` returns one Score for each position in `picked`, of which `reason` and `details` are
    used. A scorer that adds others up has their weights in `details["parts"]`, by name.
    """

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]: ...


Scores: TypeAlias = Sequence["Score | float"]
ToolScorer: TypeAlias = Callable[[Any, HasDefinition], Score | float | Awaitable[Score | float]]
Scorer: TypeAlias = Ranker | BatchScorer | ToolScorer


def scorer_name(scorer: Scorer) -> str:
    """Return the scorer's `name`, or that of the function."""
    name = getattr(scorer, "name", None) or getattr(scorer, "__name__", None)
    return name if isinstance(name, str) else type(scorer).__name__


def has_to_be_awaited(scorer: object) -> TypeGuard[AwaitedRanker]:
    """Return whether it is a ranker with an asynchronous part."""
    return isinstance(scorer, AwaitedRanker) and scorer.asynchronous


async def in_answer(ranker: Ranker, query: Query, tools: Sequence[HasDefinition]) -> Ranker:
    """Return the ranker to ask in a thread: itself, or what it returns once its parts were awaited."""
    return await ranker.awaited(query, tools) if has_to_be_awaited(ranker) else ranker


def is_async(function: Callable[..., object]) -> bool:
    """Return whether it has to be awaited: a coroutine function, or an object whose `__call__` is
    one."""
    call = getattr(function, "__call__", None)  # noqa: B004  to inspect the object's own
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def checked_score(answer: object, scorer: str, tool: HasDefinition) -> Score:
    """Return what a scorer gave for a tool as a Score. Raises PickError, which names both, for
    anything else."""
    score = answer if isinstance(answer, Score) else None
    value = answer if score is None else score.score
    if isinstance(value, Real) and 0.0 <= cast("float", value) <= 1.0:  # NaN fails this test
        if score is None:
            return Score(float(value))
        if isinstance(score.reason, str) and isinstance(score.details, dict | None):
            return score
        actual, expected = "a reason or details of the wrong type", "a string and a JSON object"
    else:
        actual, expected = _described(value), "a score from 0 to 1"
    tool_name = tool.get_definition().name
    raise PickError(f"scorer {scorer!r} gave {actual} for tool {tool_name!r}, not {expected}")


def _described(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine (declare the scorer with `async def`)"
    return f"{value!r}" if isinstance(value, Real) else f"a {type(value).__name__}"


# Dictionaries as caches: the entries that were added last stay.

K = TypeVar("K")
V = TypeVar("V")


def trim(entries: dict[K, V], size: int) -> None:
    """Remove the oldest entries until there are `size`. Another thread may do the same at that time."""
    for key in list(entries)[: max(0, len(entries) - size)]:
        entries.pop(key, None)


# What a scorer derives from a catalog, which is built once, and kept for the catalogs used last.
#
# Rule: a build that a deadline interrupts is not lost. It is paused until the next request for the
# same catalog, which continues it.

T = TypeVar("T")
Steps = Callable[[Sequence[ToolDefinition], Sequence[T]], Iterator[T | None]]
"""`steps(definitions, kept)` builds an index of these definitions in pieces. It yields None after
each piece, and the index last. `kept` are the indexes of other catalogs, the one used last first.
"""

_DIGESTS_AT_ONCE = 256
MOST_TOOLS = 200_000
"""Tools of all catalogs that a cache keeps, without the catalog that was used last."""


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.used = 0
        self.lock = Lock()
        self.steps: Iterator[T | None] | None = None
        self.built: list[T] = []


class CatalogCache(Generic[T]):
    """`build(definitions)` for the `size` catalogs used last, with at most MOST_TOOLS tools.
    Catalogs are told apart by their definitions.

    If two threads ask for the same new catalog, it is built once. Other catalogs do not wait for
    it.
    """

    def __init__(self, build: Callable[[Sequence[ToolDefinition]], T], *, size: int = 8) -> None:
        self._steps = _in_one_step(build)
        self._size = size
        self._lock = Lock()
        self._entries: dict[tuple[ToolDefinition, ...], _Entry[T]] = {}
        self._by_tuple_id: dict[int, tuple[tuple[HasDefinition, ...], _Entry[T]]] = {}
        self._uses = count(1)

    @classmethod
    def in_steps(cls, steps: Steps[T], *, size: int = 8) -> CatalogCache[T]:
        """Return a cache whose builds stop at a deadline, and may be derived from kept indexes."""
        cache = cls(lambda _: None, size=size)  # type: ignore[arg-type, return-value]
        cache._steps = steps
        return cache

    def get(self, tools: Sequence[HasDefinition], deadline: float = inf) -> T:
        """Return the index. Raises PickError if it is not ready by `deadline` (of
        `time.monotonic()`)."""
        cached = self._by_tuple_id.get(id(tools))  # a tuple that is held here cannot have changed
        if cached is not None and cached[0] is tools:
            cached[1].used = next(self._uses)
            return cached[1].built[0]
        definitions = tuple([tool.get_definition() for tool in tools])
        entry = self._entry(definitions)
        wait = -1 if deadline == inf else min(max(0.0, deadline - monotonic()), TIMEOUT_MAX)
        if not entry.lock.acquire(timeout=wait):
            raise _late()
        try:
            if not entry.built:
                entry.built.append(self._built(entry, definitions, deadline))
        finally:
            entry.lock.release()
        if isinstance(tools, tuple):
            self._remember(tools, entry)
        return entry.built[0]

    def _built(self, entry: _Entry[T], definitions: Sequence[ToolDefinition], deadline: float) -> T:
        if entry.steps is None:
            with self._lock:
                others = sorted(self._entries.values(), key=lambda entry: entry.used, reverse=True)
            entry.steps = self._steps(
                definitions, [other.built[0] for other in others if other.built]
            )
        try:
            for index in entry.steps:
                if index is not None:
                    entry.steps = None
                    return index
                if monotonic() >= deadline:
                    break
            else:
                raise RuntimeError("building the index ended without a result")
        except BaseException:
            entry.steps = None  # a generator that raised is finished
            raise
        raise _late()

    def _entry(self, key: tuple[ToolDefinition, ...]) -> _Entry[T]:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.used = next(self._uses)
            while len(self._entries) > 1 and (
                len(self._entries) > self._size or sum(map(len, self._entries)) > MOST_TOOLS
            ):
                oldest = min(self._entries, key=lambda old_key: self._entries[old_key].used)
                removed = self._entries.pop(oldest)
                for old_key in [
                    tuple_id
                    for tuple_id, (_, cached) in self._by_tuple_id.items()
                    if cached is removed
                ]:
                    del self._by_tuple_id[old_key]
            return entry

    def _remember(self, tools: tuple[HasDefinition, ...], entry: _Entry[T]) -> None:
        with self._lock:
            self._by_tuple_id.pop(id(tools), None)
            self._by_tuple_id[id(tools)] = (tools, entry)
            if len(self._by_tuple_id) > self._size:
                oldest = min(
                    self._by_tuple_id, key=lambda tuple_id: self._by_tuple_id[tuple_id][1].used
                )
                del self._by_tuple_id[oldest]


def _in_one_step(build: Callable[[Sequence[ToolDefinition]], T]) -> Steps[T]:
    def steps(definitions: Sequence[ToolDefinition], _: Sequence[T]) -> Iterator[T | None]:
        yield from digests_in_steps(definitions)
        yield build(definitions)

    return steps


def digests_in_steps(definitions: Sequence[ToolDefinition]) -> Iterator[None]:
    """Compute the digests, which definitions keep, so that a build that is stopped gets further
    each time.

    Raises PickError for a definition that has none.
    """
    undigested = [definition for definition in definitions if "digest" not in definition.__dict__]
    for batch in batched(undigested, _DIGESTS_AT_ONCE):
        for definition in batch:
            try:
                _ = definition.digest
            except ValueError:
                raise no_json(definition.name) from None
        yield None


def _late() -> PickError:
    return PickError("the time limit of the query passed before the index of the catalog was built")


# How a scorer is asked, and what of its answer is used.

_CALLS_AT_ONCE = 16
_NO_HIT = Score(0.0)


class ScoreRequest(NamedTuple):
    """One question to a scorer: the input as given and as a query, and which scores are wanted.

    For a report, which wants all scores, only the best are `explained`. None means all that are
    wanted. A ranker is asked for that number of tools, too, so that it works as it always does.
    """

    input: object
    query: Query
    tools: tuple[HasDefinition, ...]
    min_score: float
    max_candidates: int
    explained: int | None = None


Ranking: TypeAlias = list[tuple[int, Score]]
"""Positions in `Request.tools` with their scores, best first, equal ones in registration order."""


async def ranked(scorer: Scorer, request: ScoreRequest) -> Ranking:
    """Return the best of `request.tools`, scored.

    Raises PickError, which names the scorer and if possible the tool, if the scorer raises or does
    not return one score in 0..1 for each tool. Other errors of toolcrib (a missing extra) are
    raised unchanged.
    """
    cancels = cancel_requests()
    try:
        return await _ranked(scorer, request)
    except asyncio.CancelledError as error:
        if is_stop(error, cancels):
            raise
        subject = f"scorer {scorer_name(scorer)!r}"  # this task was not cancelled
        raise PickError(f"{subject} raised {type(error).__name__}") from error


async def _ranked(scorer: Scorer, request: ScoreRequest) -> Ranking:
    if hasattr(scorer, "hits"):
        ranker = await in_answer(cast("Ranker", scorer), request.query, request.tools)
        return await in_thread(lambda: _with_reasons(ranker, request, _ranking(ranker, request)))
    if hasattr(scorer, "score"):
        batch = cast("BatchScorer", scorer)
        ask: Callable[[], Any] = partial(batch.score, request.query, request.tools)
        if is_async(batch.score):
            ask = partial(_same, await _awaited(batch, request))
        return await in_thread(
            lambda: _with_reasons(batch, request, _best(_checked(batch, request, ask), request))
        )
    if is_async(scorer):
        scores = await _each_awaited(scorer, request)
    else:
        scores = await in_thread(lambda: _each_called(scorer, request))
    return _best(scores, request)


async def all_awaited(scorer: BatchScorer | ToolScorer, request: ScoreRequest) -> list[Score]:
    """Return an asynchronous scorer's score for each tool. Raises PickError in the same cases as
    `ranked`."""
    if not hasattr(scorer, "score"):
        return await _each_awaited(scorer, request)
    batch = cast("BatchScorer", scorer)
    return _checked(batch, request, partial(_same, await _awaited(batch, request)))


async def _awaited(scorer: BatchScorer, request: ScoreRequest) -> object:
    with blamed(f"scorer {scorer_name(scorer)!r}"):
        return await cast("Any", scorer).score(request.query, request.tools)


def _ranking(ranker: Ranker, request: ScoreRequest) -> Ranking:
    name, tools, limit = scorer_name(ranker), request.tools, request.max_candidates
    with blamed(f"scorer {name!r}"):
        hits = ranker.hits(request.query, tools, request.explained or limit)
        if not hits.are_finite():
            raise PickError(f"scorer {name!r} gave a weight that is not a finite number")
        best = [(position, hits.calibrated(weight)) for position, weight in hits.best(limit)]
    positions = {position for position, _ in best}
    if len(positions) < len(best) or not all(0 <= p < len(tools) for p in positions):
        raise PickError(f"scorer {name!r} named a tool twice, or a position where there is no tool")
    scored = [(position, checked_score(value, name, tools[position])) for position, value in best]
    if request.min_score == 0 and len(scored) < limit:  # tools that are no hit score 0
        others = (position for position in range(len(tools)) if position not in positions)
        scored += [(position, _NO_HIT) for position in islice(others, limit - len(scored))]
    return [(position, score) for position, score in scored if score.score >= request.min_score]


def _checked(scorer: BatchScorer, request: ScoreRequest, ask: Callable[[], Any]) -> list[Score]:
    name, tools = scorer_name(scorer), request.tools
    answers = _answers(name, ask, len(tools))
    return [checked_score(answer, name, tool) for answer, tool in zip(answers, tools, strict=True)]


def _with_reasons(scorer: Ranker | BatchScorer, request: ScoreRequest, best: Ranking) -> Ranking:
    if not isinstance(scorer, ExplainingScorer) or not best:
        return best
    name, tools = scorer_name(scorer), request.tools
    explained = best[: request.explained]
    picked = [position for position, _ in explained]
    ask = partial(scorer.explain, request.query, tools, picked)
    reasoned = []
    for (position, score), answer in zip(explained, _answers(name, ask, len(picked)), strict=True):
        explanation = checked_score(answer, name, tools[position])
        reasoned.append((position, Score(score.score, explanation.reason, explanation.details)))
    return reasoned + best[len(reasoned) :]


def _answers(name: str, ask: Callable[[], Any], count: int) -> list[object]:
    """Return the expected number of answers, and at most one more, since an iterator may never end."""
    with blamed(f"scorer {name!r}"):
        returned = ask()
        if inspect.iscoroutine(returned):
            returned.close()
            raise PickError(f"scorer {name!r} gave a coroutine (declare it with `async def`)")
        answers = list(islice(returned, count + 1))
    if len(answers) != count:
        actual_count = len(answers) if len(answers) < count else f"more than {count}"
        raise PickError(f"scorer {name!r} gave {actual_count} scores for {count} tools")
    return answers


def _each_called(function: ToolScorer, request: ScoreRequest) -> list[Score]:
    name = scorer_name(function)
    scores = []
    for tool in request.tools:
        if _is_late(request):
            break
        try:
            returned = function(request.input, tool)
        except ToolcribError:
            raise
        except Exception as error:
            raise _raised(name, error, tool) from error
        scores.append(checked_score(returned, name, tool))
    return scores


async def _each_awaited(function: ToolScorer, request: ScoreRequest) -> list[Score]:
    name = scorer_name(function)
    scores: list[Score] = [_NO_HIT] * len(request.tools)
    remaining = iter(enumerate(request.tools))

    async def work() -> None:
        for position, tool in remaining:
            await asyncio.sleep(0)  # a coroutine that never suspends must not exceed the time limit
            if _is_late(request):
                break
            try:
                returned = await cast("Awaitable[Score | float]", function(request.input, tool))
            except ToolcribError:
                raise
            except Exception as error:
                raise _raised(name, error, tool) from error
            scores[position] = checked_score(returned, name, tool)

    await together(work() for _ in range(_CALLS_AT_ONCE))
    return scores


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all coroutines. If one raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _is_late(request: ScoreRequest) -> bool:
    """Return whether it is too late for any answer, so that none needs to be asked for."""
    return monotonic() >= request.query.deadline


def _best(scores: Sequence[Score], request: ScoreRequest) -> Ranking:
    accepted = [(i, score) for i, score in enumerate(scores) if score.score >= request.min_score]
    accepted.sort(key=lambda pair: -pair[1].score)
    return accepted[: request.max_candidates]


@contextmanager
def blamed(subject: str, suffix: str = "") -> Iterator[None]:
    """Convert another author's exceptions in this block to PickError. toolcrib's own errors are
    raised unchanged."""
    try:
        yield
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"{subject} raised {type(error).__name__}{suffix}") from error


def _raised(scorer: str, error: BaseException, tool: HasDefinition) -> PickError:
    suffix = f" for tool {tool.get_definition().name!r}"
    return PickError(f"scorer {scorer!r} raised {type(error).__name__}{suffix}")


def _same(value: object) -> object:
    return value


# numpy, imported when it is first needed, and rows of numbers from elsewhere.
#
# Rule: rows are used only after they were checked, and compared only after they were scaled to
# length 1.


if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]


def numpy() -> Any:
    """Return the numpy module, imported on the first call. Raises MissingExtraError without the
    extra "pick"."""
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtraError("pick", "numpy") from None


def checked_rows(values: object, count: int, *, source: str, dtype: str | None = None) -> Any:
    """Return the rows as an array of shape (count, d), d at least 1.

    Without `dtype`, float32 is kept, and everything else becomes float64. Raises PickError, which
    names the `source`, for anything that is no such array or is not finite.
    """
    np = numpy()
    try:
        with np.errstate(over="ignore"):
            rows = np.asarray(values, dtype)
            if dtype is None and rows.dtype != "float32":
                rows = np.asarray(rows, "float64")
    except (TypeError, ValueError, OverflowError):
        raise PickError(f"{source} did not give rows of numbers of the same length") from None
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise PickError(f"{source} gave shape {rows.shape} for {count} texts, not one row for each")
    if not np.isfinite(rows).all():
        raise PickError(f"{source} gave a number that is not finite")
    return rows


def units(rows: Any) -> Vectors:
    """Return rows scaled to length 1, as float32. A row of zeros stays one."""
    np = numpy()
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.vecdot(rows, rows))
        if ((abs(lengths - 1) < 1e-3) | ~rows.any(axis=1)).all():
            return np.asarray(rows, "float32")  # type: ignore[no-any-return]
        exact = np.asarray(rows, "float64")
        highest = abs(exact).max(axis=1, keepdims=True)
        # Now squares neither overflow nor underflow.
        exact = exact / np.where(highest > 0, highest, 1.0)
        lengths = np.sqrt(np.vecdot(exact, exact))[:, None]
        scaled: Vectors = (exact / np.maximum(lengths, 1e-12)).astype("float32")
    return scaled
