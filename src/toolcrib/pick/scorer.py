"""What a scorer is, and how one is run.

Rule: a scorer is never trusted. Each score is checked before it counts, what a scorer raises
becomes a PickError that names it, and nothing synchronous runs on the event loop: it has a daemon
thread of its own, so that an index being built stops no other task and a scorer that hangs keeps no
program from ending. (A thread costs some 0.1 ms a pick.)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import msgspec

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.hits import Hits
from toolcrib.pick.query import Query
from toolcrib.threads import in_thread
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject

T = TypeVar("T")

_AT_ONCE = 16


class Score(msgspec.Struct, frozen=True):
    """How well a tool fits a request: 0 not at all, 1 perfectly; `details` is JSON for audits."""

    score: float
    reason: str = ""
    details: JsonObject | None = None


_NO_HIT = Score(0.0)


class Ranker(Protocol):
    """Weighs a whole catalog at once and hands over numbers, not objects: fit for 100,000 tools.

    `hits` is synchronous, runs in a thread and may be called from several at once. Who asks with a
    `limit` takes the best so many only; without one all are wanted. Equal input gives equal hits,
    unless the query's deadline has passed.
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


class Request(NamedTuple):
    """One question to a scorer: the input as given and as a query, and which scores are wanted.

    For a report, which wants all scores, only the best are `explained`; None means all that are
    wanted. The best so many are also what a ranker is asked for, so that it does what it always does.
    """

    input: object
    query: Query
    tools: tuple[HasDefinition, ...]
    min_score: float
    max_candidates: int
    explained: int | None = None


Ranking: TypeAlias = list[tuple[int, Score]]
"""Positions in `Request.tools` with their scores, best first, equal ones in registration order."""


def scorer_name(scorer: Scorer) -> str:
    """Its `name`, or that of the function."""
    name = getattr(scorer, "name", None) or getattr(scorer, "__name__", None)
    return name if isinstance(name, str) else type(scorer).__name__


async def ranked(scorer: Scorer, request: Request) -> Ranking:
    """The best of `request.tools`, scored.

    Raises PickError, naming the scorer and where it can the tool, for a scorer that raises or whose
    answer is not one score in 0..1 for each tool. Other errors of toolcrib (a missing extra) pass.
    """
    if hasattr(scorer, "hits"):
        ranker = cast("Ranker", scorer)
        return await in_thread(lambda: _with_reasons(ranker, request, _ranking(ranker, request)))
    if hasattr(scorer, "score"):
        batch = cast("BatchScorer", scorer)
        given = await _awaited(batch, request) if _is_async(batch.score) else None
        return await in_thread(
            lambda: _with_reasons(batch, request, _scored(batch, request, given))
        )
    if _is_async(scorer):
        scores = await _each_awaited(scorer, request)
    else:
        scores = await in_thread(lambda: _each_called(scorer, request))
    return _best(scores, request)


def _ranking(ranker: Ranker, request: Request) -> Ranking:
    name, tools, most = scorer_name(ranker), request.tools, request.max_candidates
    try:
        hits = ranker.hits(request.query, tools, request.explained or most)
        if not hits.are_finite():
            raise PickError(f"scorer {name!r} gave a weight that is not a finite number")
        best = hits.best(most)
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"scorer {name!r} raised {type(error).__name__}") from error
    found = [(p, _checked(hits.calibrated(weight), name, tools[p])) for p, weight in best]
    if request.min_score == 0 and len(found) < most:  # who is no hit scores 0, and that is enough
        named = {position for position, _ in found}
        others = (position for position in range(len(tools)) if position not in named)
        found += [(position, _NO_HIT) for position in islice(others, most - len(found))]
    return [(position, score) for position, score in found if score.score >= request.min_score]


async def _awaited(scorer: BatchScorer, request: Request) -> Scores:
    try:
        return await cast("Awaitable[Scores]", scorer.score(request.query, request.tools))
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"scorer {scorer_name(scorer)!r} raised {type(error).__name__}") from error


def _scored(scorer: BatchScorer, request: Request, given: Scores | None) -> Ranking:
    """From what an async scorer has given, or else from what this one gives now."""
    name, tools = scorer_name(scorer), request.tools

    def asked() -> Scores:
        return cast("Scores", scorer.score(request.query, tools)) if given is None else given

    answer = _asked(name, asked, len(tools))
    scores = [_checked(each, name, tool) for each, tool in zip(answer, tools, strict=True)]
    return _best(scores, request)


def _with_reasons(scorer: Ranker | BatchScorer, request: Request, best: Ranking) -> Ranking:
    if not isinstance(scorer, ExplainingScorer) or not best:
        return best
    name, tools = scorer_name(scorer), request.tools
    shown = best[: request.explained]
    picked = [position for position, _ in shown]
    reasons = _asked(name, lambda: scorer.explain(request.query, tools, picked), len(picked))
    found = [
        (position, _explained(score, _checked(why, name, tools[position])))
        for (position, score), why in zip(shown, reasons, strict=True)
    ]
    return found + best[len(found) :]


def _explained(score: Score, why: Score) -> Score:
    return Score(score.score, why.reason, why.details)


def _asked(name: str, question: Callable[[], Iterable[object]], count: int) -> list[object]:
    try:
        answer = list(question())
    except ToolcribError:
        raise
    except Exception as error:
        raise PickError(f"scorer {name!r} raised {type(error).__name__}") from error
    if len(answer) != count:
        raise PickError(f"scorer {name!r} gave {len(answer)} scores for {count} tools")
    return answer


def _each_called(function: ToolScorer, request: Request) -> list[Score]:
    name = scorer_name(function)
    scores = []
    for tool in request.tools:
        try:
            given = function(request.input, tool)
        except Exception as error:
            raise _raised(name, tool, error) from error
        scores.append(_checked(given, name, tool))
    return scores


async def _each_awaited(function: ToolScorer, request: Request) -> list[Score]:
    name = scorer_name(function)
    scores: list[Score] = [Score(0.0)] * len(request.tools)
    waiting = iter(enumerate(request.tools))

    async def work() -> None:
        for position, tool in waiting:
            await asyncio.sleep(0)  # a coroutine that never suspends must not outrun the time limit
            try:
                given = await cast("Awaitable[Score | float]", function(request.input, tool))
            except Exception as error:
                raise _raised(name, tool, error) from error
            scores[position] = _checked(given, name, tool)

    workers = [asyncio.ensure_future(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return scores


def _best(scores: Sequence[Score], request: Request) -> Ranking:
    found = [(i, score) for i, score in enumerate(scores) if score.score >= request.min_score]
    found.sort(key=lambda pair: -pair[1].score)
    return found[: request.max_candidates]


def _checked(given: object, scorer: str, tool: HasDefinition) -> Score:
    score = given if isinstance(given, Score) else None
    value = given if score is None else score.score
    if isinstance(value, Real) and 0.0 <= cast("float", value) <= 1.0:  # NaN fails this
        return score or Score(float(value))
    what = f"{value!r}" if isinstance(value, Real) else f"a {type(value).__name__}"
    tool_name = tool.get_definition().name
    if inspect.iscoroutine(value):
        value.close()
        what = "a coroutine (declare the scorer with `async def`)"
    raise PickError(f"scorer {scorer!r} gave {what} for tool {tool_name!r}, not a score in 0..1")


def _raised(scorer: str, tool: HasDefinition, error: Exception) -> ToolcribError:
    if isinstance(error, ToolcribError):
        return error
    tool_name = tool.get_definition().name
    return PickError(f"scorer {scorer!r} raised {type(error).__name__} for tool {tool_name!r}")


def _is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object's own, to inspect
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
