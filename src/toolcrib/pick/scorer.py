"""What a scorer is: a ranker, a batch scorer, or a function of an input and a tool.

Rule: a scorer only weighs tools. Which are offered, how many and for how long is decided by who asks;
what of an answer is believed, `ranking` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from heapq import nsmallest
from itertools import count
from math import fsum, inf, isfinite
from numbers import Real
from threading import TIMEOUT_MAX, Lock
from time import monotonic
from typing import (
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

from toolcrib.errors import PickError
from toolcrib.pick.query import Query
from toolcrib.pick.words import no_json
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

# `Hits`: what a scorer found in a catalog, in columns, and how the best of them are taken.
#
# Rule: no object is made for a tool that is not picked, so a catalog of 100,000 costs what its best few
# cost and a pass of C over numbers.


class Hits(NamedTuple):
    """Weights of tools, as a scorer measures: any finite numbers, more is better.

    `values[i]` is that of the tool at `positions[i]`, or of tool `i` where `positions` is None; a tool
    that is not named does not fit at all. Both may be lists or arrays of numpy. `calibrated` turns a
    weight into a score in 0..1, and never turns an order round.
    """

    values: Sequence[float]
    positions: Sequence[int] | None
    calibrated: Callable[[float], float]

    def are_finite(self) -> bool:
        """Return whether every weight is a number: one that is not would
        make any order of them wrong."""
        values: Any = self.values
        return isfinite(values.sum() if hasattr(values, "sum") else fsum(values))

    def best(self, count: int) -> list[tuple[int, float]]:
        """(position, weight) of the best `count`, best first, equal ones by position."""
        values: Any = self.values
        if len(values) > count and hasattr(values, "partition"):
            rows = _least_needed(values, count)
            found = [(self._position(row), float(values[row])) for row in rows]
        else:
            places = range(len(values)) if self.positions is None else self.positions
            found = [(int(p), float(v)) for p, v in zip(places, values, strict=True)]
        return nsmallest(count, found, key=lambda hit: (-hit[1], hit[0]))

    def _position(self, row: int) -> int:
        return row if self.positions is None else int(self.positions[row])


def _least_needed(values: Any, count: int) -> list[int]:
    """Rows of an array that hold its best `count`: down to the last of them, and all equal to it."""
    last = values.copy()
    last.partition(len(values) - count)
    rows: list[int] = (values >= last[len(values) - count]).nonzero()[0].tolist()
    return rows


class Score(msgspec.Struct, frozen=True):
    """Says how well a tool fits a request: 0 not at all, 1 perfectly; `details` is JSON for audits."""

    score: float
    reason: str = ""
    details: JsonObject | None = None


class Ranker(Protocol):
    """Weighs a whole catalog at once and hands over numbers, not objects: fit for 100,000 tools.

    `hits` is synchronous, runs in a thread and may be called from several at once. With
    a `limit` it returns the best hits, at most that many; without one, all. Equal input gives equal
    hits, unless the query's deadline has passed.
    """

    @property
    def name(self) -> str: ...
    def hits(
        self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None
    ) -> Hits: ...


class BatchScorer(Protocol):
    """Scores all tools in one call, in their order: the easiest to write that sees the catalog.

    `score` runs in a thread and may be called from several at once; declared with `async def`, it
    runs on the event loop. Equal input must give equal scores.
    """

    @property
    def name(self) -> str: ...
    def score(
        self, query: Query, tools: Sequence[HasDefinition]
    ) -> Scores | Coroutine[Any, Any, Scores]: ...


@runtime_checkable
class AwaitedRanker(Protocol):
    """A ranker that is made of others, some of which may have to be awaited.

    Where it is `asynchronous`, who asks takes what `awaited` gives, for one query and these tools; its
    own `hits` raises PickError.
    """

    @property
    def asynchronous(self) -> bool: ...
    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Ranker: ...


@runtime_checkable
class ExplainingScorer(Protocol):
    """A ranker or batch scorer whose reasons cost more than its scores: asked for the picked only.

    `explain` answers with one Score for each position in `picked`, of which `reason` and `details`
    are taken. A scorer that adds others up has their weights in `details["parts"]`, by name.
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
    """Whether it is a ranker of which a part is asynchronous."""
    return isinstance(scorer, AwaitedRanker) and scorer.asynchronous


async def in_answer(ranker: Ranker, query: Query, tools: Sequence[HasDefinition]) -> Ranker:
    """Return the ranker to ask in a thread: itself, or what it gives once its parts were awaited."""
    return await ranker.awaited(query, tools) if has_to_be_awaited(ranker) else ranker


def is_async(function: Callable[..., object]) -> bool:
    """Return whether it has to be awaited: a coroutine function, or an object whose call is one."""
    call = getattr(function, "__call__", None)  # noqa: B004  an object's own, to inspect
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def checked_score(given: object, scorer: str, tool: HasDefinition) -> Score:
    """Return what a scorer gave for a tool, as a Score. Raises PickError,
    naming both, for what is none."""
    score = given if isinstance(given, Score) else None
    value = given if score is None else score.score
    if isinstance(value, Real) and 0.0 <= cast("float", value) <= 1.0:  # NaN fails this
        if score is None:
            return Score(float(value))
        if isinstance(score.reason, str) and isinstance(score.details, dict | None):
            return score
        what, wanted = "a reason or details of another type", "a text and a JSON object"
    else:
        what, wanted = _named(value), "a score in 0..1"
    tool_name = tool.get_definition().name
    raise PickError(f"scorer {scorer!r} gave {what} for tool {tool_name!r}, not {wanted}")


def _named(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine (declare the scorer with `async def`)"
    return f"{value!r}" if isinstance(value, Real) else f"a {type(value).__name__}"


# Dictionaries that remember: those entries stay that were put in last.

K = TypeVar("K")
V = TypeVar("V")


def trim(known: dict[K, V], size: int) -> None:
    """Take out what was put in first, until there are `size`; another thread may do the same."""
    for old in list(known)[: max(0, len(known) - size)]:
        known.pop(old, None)


# What a scorer derives from a catalog: built once, and kept for the catalogs used last.
#
# Rule: a build that a deadline interrupts is not lost. It stands still until the next request for the
# same catalog, which goes on where it stopped.

T = TypeVar("T")
Steps = Callable[[Sequence[ToolDefinition], Sequence[T]], Iterator[T | None]]
"""`steps(definitions, kept)`: the work on an index of these definitions in pieces, a None after each,
and the index as the last. `kept` are the indexes of other catalogs, that used last first."""

_AT_ONCE = 256
MOST_TOOLS = 200_000
"""Tools of all catalogs that a cache keeps, but for the one that was used last."""


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.used = 0
        self.lock = Lock()
        self.steps: Iterator[T | None] | None = None
        self.built: list[T] = []


class CatalogCache(Generic[T]):
    """`build(definitions)` for the `size` catalogs used last, of at most MOST_TOOLS tools; their
    definitions tell catalogs apart.

    Two threads that ask for the same new catalog build it once; other catalogs do not wait for it.
    """

    def __init__(self, build: Callable[[Sequence[ToolDefinition]], T], *, size: int = 8) -> None:
        self._steps = _in_one_step(build)
        self._size = size
        self._lock = Lock()
        self._entries: dict[tuple[ToolDefinition, ...], _Entry[T]] = {}
        self._of_tuples: dict[int, tuple[tuple[HasDefinition, ...], _Entry[T]]] = {}
        self._uses = count(1)

    @classmethod
    def in_steps(cls, steps: Steps[T], *, size: int = 8) -> CatalogCache[T]:
        """Return a cache whose builds stop at a deadline, and may be derived from what is kept."""
        made = cls(lambda _: None, size=size)  # type: ignore[arg-type, return-value]
        made._steps = steps
        return made

    def get(self, tools: Sequence[HasDefinition], deadline: float = inf) -> T:
        """Raise PickError where the index is not there by `deadline` (as `time.monotonic()`)."""
        held = self._of_tuples.get(id(tools))  # a tuple that we hold cannot have changed
        if held is not None and held[0] is tools:
            held[1].used = next(self._uses)
            return held[1].built[0]
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
            self._hold(tools, entry)
        return entry.built[0]

    def _built(self, entry: _Entry[T], definitions: Sequence[ToolDefinition], deadline: float) -> T:
        if entry.steps is None:
            with self._lock:
                others = sorted(self._entries.values(), key=_last_use, reverse=True)
            entry.steps = self._steps(definitions, [each.built[0] for each in others if each.built])
        try:
            for index in entry.steps:
                if index is not None:
                    entry.steps = None
                    return index
                if monotonic() >= deadline:
                    break
            else:
                raise RuntimeError("the steps of a build ended without an index")
        except BaseException:
            entry.steps = None  # a generator that raised is over
            raise
        raise _late()

    def _entry(self, key: tuple[ToolDefinition, ...]) -> _Entry[T]:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.used = next(self._uses)
            while len(self._entries) > 1 and (
                len(self._entries) > self._size or sum(map(len, self._entries)) > MOST_TOOLS
            ):
                oldest = min(self._entries, key=lambda each: self._entries[each].used)
                self._forget(self._entries.pop(oldest))
            return entry

    def _hold(self, tools: tuple[HasDefinition, ...], entry: _Entry[T]) -> None:
        with self._lock:
            self._of_tuples.pop(id(tools), None)
            self._of_tuples[id(tools)] = (tools, entry)
            if len(self._of_tuples) > self._size:
                oldest = min(self._of_tuples, key=lambda each: self._of_tuples[each][1].used)
                del self._of_tuples[oldest]

    def _forget(self, entry: _Entry[T]) -> None:
        gone = [each for each, (_, kept) in self._of_tuples.items() if kept is entry]
        for each in gone:
            del self._of_tuples[each]


def _last_use(entry: _Entry[T]) -> int:
    return entry.used


def _in_one_step(build: Callable[[Sequence[ToolDefinition]], T]) -> Steps[T]:
    def steps(definitions: Sequence[ToolDefinition], _: Sequence[T]) -> Iterator[T | None]:
        yield from digests_in_steps(definitions)
        yield build(definitions)

    return steps


def digests_in_steps(definitions: Sequence[ToolDefinition]) -> Iterator[None]:
    """Make the digests, which definitions keep, so that a build that is stopped gets further.

    Raises PickError for a definition that has none.
    """
    without = [definition for definition in definitions if "digest" not in definition.__dict__]
    for start in range(0, len(without), _AT_ONCE):
        for definition in without[start : start + _AT_ONCE]:
            try:
                _ = definition.digest
            except ValueError:
                raise no_json(definition.name) from None
        yield None


def _late() -> PickError:
    return PickError("the time of the query was over before the catalog's index was built")
