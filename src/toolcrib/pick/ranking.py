"""How a scorer is asked, and what of its answer is believed.

Rule: a scorer is never trusted. Each score is checked before it counts, what a scorer raises
becomes a PickError that names it, and nothing synchronous runs on the event loop: it has a daemon
thread of its own, so that an index being built stops no other task and a scorer that hangs keeps no
program from ending. (A thread costs some 0.1 ms a pick.) A call of C that holds the interpreter's lock
stops everything, its time limit too: nothing can be done about that from here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from toolcrib.errors import MissingExtraError, PickError, ToolcribError
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import (
    BatchScorer,
    ExplainingScorer,
    Ranker,
    Score,
    Scorer,
    ToolScorer,
    checked_score,
    in_answer,
    is_async,
    scorer_name,
)
from toolcrib.threads import cancel_requests, in_thread
from toolcrib.values.definition import HasDefinition

_AT_ONCE = 16
_NO_HIT = Score(0.0)


class ScoreRequest(NamedTuple):
    """One question to a scorer: the input as given and as a query, and which scores are wanted.

    For a report, which wants all scores, only the best are `explained`; None means all that are
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

    Raises PickError, naming the scorer and where it can the tool, for a scorer that raises or whose
    answer is not one score in 0..1 for each tool. Other errors of toolcrib (a missing extra) pass.
    """
    cancels = cancel_requests()
    try:
        return await _ranked(scorer, request)
    except asyncio.CancelledError as error:
        if cancel_requests() > cancels:
            raise
        raise _raised(scorer_name(scorer), error) from error  # nobody has cancelled this


async def _ranked(scorer: Scorer, request: ScoreRequest) -> Ranking:
    if hasattr(scorer, "hits"):
        ranker = await in_answer(cast("Ranker", scorer), request.query, request.tools)
        return await in_thread(lambda: _with_reasons(ranker, request, _ranking(ranker, request)))
    if hasattr(scorer, "score"):
        batch = cast("BatchScorer", scorer)
        ask: Callable[[], Any] = partial(batch.score, request.query, request.tools)
        if is_async(batch.score):
            ask = partial(_same, await _awaited(batch, request))
        return await in_thread(lambda: _with_reasons(batch, request, _scored(batch, request, ask)))
    if is_async(scorer):
        scores = await _each_awaited(scorer, request)
    else:
        scores = await in_thread(lambda: _each_called(scorer, request))
    return _best(scores, request)


async def all_awaited(scorer: BatchScorer | ToolScorer, request: ScoreRequest) -> list[Score]:
    """Return a score for each tool, of a scorer that is asynchronous. Raises
    PickError as `ranked` does."""
    if not hasattr(scorer, "score"):
        return await _each_awaited(scorer, request)
    batch = cast("BatchScorer", scorer)
    return _checked(batch, request, partial(_same, await _awaited(batch, request)))


async def _awaited(scorer: BatchScorer, request: ScoreRequest) -> object:
    with _blamed(scorer_name(scorer)):
        return await cast("Any", scorer).score(request.query, request.tools)


def _ranking(ranker: Ranker, request: ScoreRequest) -> Ranking:
    name, tools, most = scorer_name(ranker), request.tools, request.max_candidates
    with _blamed(name):
        hits = ranker.hits(request.query, tools, request.explained or most)
        if not hits.are_finite():
            raise PickError(f"scorer {name!r} gave a weight that is not a finite number")
        best = [(position, hits.calibrated(weight)) for position, weight in hits.best(most)]
    positions = {position for position, _ in best}
    if len(positions) < len(best) or not all(0 <= p < len(tools) for p in positions):
        raise PickError(f"scorer {name!r} named a tool twice, or a position that no tool has")
    found = [(position, checked_score(given, name, tools[position])) for position, given in best]
    if request.min_score == 0 and len(found) < most:  # who is no hit scores 0, and that is enough
        others = (position for position in range(len(tools)) if position not in positions)
        found += [(position, _NO_HIT) for position in islice(others, most - len(found))]
    return [(position, score) for position, score in found if score.score >= request.min_score]


def _scored(scorer: BatchScorer, request: ScoreRequest, ask: Callable[[], Any]) -> Ranking:
    return _best(_checked(scorer, request, ask), request)


def _checked(scorer: BatchScorer, request: ScoreRequest, ask: Callable[[], Any]) -> list[Score]:
    name, tools = scorer_name(scorer), request.tools
    answer = _answers(name, ask, len(tools))
    return [checked_score(each, name, tool) for each, tool in zip(answer, tools, strict=True)]


def _with_reasons(scorer: Ranker | BatchScorer, request: ScoreRequest, best: Ranking) -> Ranking:
    if not isinstance(scorer, ExplainingScorer) or not best:
        return best
    name, tools = scorer_name(scorer), request.tools
    shown = best[: request.explained]
    picked = [position for position, _ in shown]
    ask = partial(scorer.explain, request.query, tools, picked)
    found = [
        (position, _explained(score, checked_score(why, name, tools[position])))
        for (position, score), why in zip(shown, _answers(name, ask, len(picked)), strict=True)
    ]
    return found + best[len(found) :]


def _explained(score: Score, why: Score) -> Score:
    return Score(score.score, why.reason, why.details)


def _answers(name: str, ask: Callable[[], Any], count: int) -> list[object]:
    """Return the expected number of answers, and at most one more: an iterator may have no end."""
    with _blamed(name):
        given = ask()
        if inspect.iscoroutine(given):
            given.close()
            raise PickError(f"scorer {name!r} gave a coroutine (declare it with `async def`)")
        answers = list(islice(given, count + 1))
    if len(answers) != count:
        many = len(answers) if len(answers) < count else f"more than {count}"
        raise PickError(f"scorer {name!r} gave {many} scores for {count} tools")
    return answers


def _each_called(function: ToolScorer, request: ScoreRequest) -> list[Score]:
    name = scorer_name(function)
    scores = []
    for tool in request.tools:
        if _is_late(request):
            break
        try:
            given = function(request.input, tool)
        except ToolcribError:
            raise
        except Exception as error:
            raise _raised(name, error, tool) from error
        scores.append(checked_score(given, name, tool))
    return scores


async def _each_awaited(function: ToolScorer, request: ScoreRequest) -> list[Score]:
    name = scorer_name(function)
    scores: list[Score] = [_NO_HIT] * len(request.tools)
    waiting = iter(enumerate(request.tools))

    async def work() -> None:
        for position, tool in waiting:
            await asyncio.sleep(0)  # a coroutine that never suspends must not outrun the time limit
            if _is_late(request):
                break
            try:
                given = await cast("Awaitable[Score | float]", function(request.input, tool))
            except ToolcribError:
                raise
            except Exception as error:
                raise _raised(name, error, tool) from error
            scores[position] = checked_score(given, name, tool)

    workers = [asyncio.ensure_future(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return scores


def _is_late(request: ScoreRequest) -> bool:
    """Return whether no answer counts any more, so that none needs to be asked for."""
    return monotonic() >= request.query.deadline


def _best(scores: Sequence[Score], request: ScoreRequest) -> Ranking:
    found = [(i, score) for i, score in enumerate(scores) if score.score >= request.min_score]
    found.sort(key=lambda pair: -pair[1].score)
    return found[: request.max_candidates]


@contextmanager
def _blamed(scorer: str) -> Iterator[None]:
    """Turn what a scorer raises in this block into PickError; errors of toolcrib pass unchanged."""
    try:
        yield
    except ToolcribError:
        raise
    except Exception as error:
        raise _raised(scorer, error) from error


def _raised(scorer: str, error: BaseException, tool: HasDefinition | None = None) -> PickError:
    where = "" if tool is None else f" for tool {tool.get_definition().name!r}"
    return PickError(f"scorer {scorer!r} raised {type(error).__name__}{where}")


def _same(given: object) -> object:
    return given


# numpy, imported when it is first needed, and rows of numbers that others gave.
#
# Rule: rows are believed only once they are checked, and compared only once they are of length 1.


if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]


def numpy() -> Any:
    """Return the numpy module, imported on the first call;
    MissingExtraError without the extra "pick"."""
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtraError("pick", "numpy") from None


def checked_rows(given: object, count: int, *, who: str, form: str | None = None) -> Any:
    """Return the rows as an array of shape (count, d), d at least 1. Raises PickError.

    Its dtype is `form`; without one float32 stays what it is, and all else is float64. Raises
    PickError, naming who gave it, for what is no such array, or not finite.
    """
    np = numpy()
    try:
        with np.errstate(over="ignore"):
            rows = np.asarray(given, form)
            if form is None and rows.dtype != "float32":
                rows = np.asarray(rows, "float64")
    except (TypeError, ValueError, OverflowError):
        raise PickError(f"{who} gave no rows of numbers, all of one length") from None
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise PickError(f"{who} gave shape {rows.shape} for {count} texts, not a row each")
    if not np.isfinite(rows).all():
        raise PickError(f"{who} gave a number that is not finite")
    return rows


def units(rows: Any) -> Vectors:
    """Rows of any lengths as rows of length 1, float32; a row of zeros stays one."""
    np = numpy()
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.vecdot(rows, rows))
        if ((abs(lengths - 1) < 1e-3) | ~rows.any(axis=1)).all():
            return np.asarray(rows, "float32")  # type: ignore[no-any-return]
        wide = np.asarray(rows, "float64")
        most = abs(wide).max(axis=1, keepdims=True)
        wide = wide / np.where(most > 0, most, 1.0)  # no square is too large or too small now
        lengths = np.sqrt(np.vecdot(wide, wide))[:, None]
        found: Vectors = (wide / np.maximum(lengths, 1e-12)).astype("float32")
    return found
