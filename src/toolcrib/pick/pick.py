"""`pick_tools`: of many tools the few that a request needs, scored, with reasons.

Rule: selection only. No tool runs, nothing is hidden without a reason that can be read, and equal
input gives an equal ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from math import inf
from time import monotonic
from typing import Any, TypeVar

import msgspec

from toolcrib.pick.candidates import Candidates, candidates_of
from toolcrib.pick.filters import Excluded
from toolcrib.pick.options import PickOptions
from toolcrib.pick.scoring.ranking import Ranking, Request, ranked
from toolcrib.pick.scoring.scorer import Score, Scorer, scorer_name
from toolcrib.pick.text.query import Query, query_of
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type

T = TypeVar("T")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result comes from: which scorer and what it noted.

    `timed_out` says that nothing was scored and the order is that of registration; `excluded` is
    filled with `PickOptions(debug=True)` only.
    """

    scorer: str
    details: JsonObject | None = None
    timed_out: bool = False
    excluded: tuple[Excluded, ...] = ()


class PickResult(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate: the tool as it was registered, its definition, a score in 0..1 and why."""

    tool: HasDefinition
    definition: ToolDefinition
    score: float
    reason: str
    provenance: Provenance


async def pick_tools(
    input: object,  # noqa: A002  the public name
    tools: Iterable[Any],
    options: PickOptions = PickOptions(),  # noqa: B008  frozen
) -> list[PickResult]:
    """The best tools for `input`, best first, equal scores in registration order.

    `input` is a string, a conversation (a ChatRequest, messages, or dictionaries of any provider's
    form: the user's last turn is what is asked for) or any JSON; see `query_of`. `tools` is a Catalog
    or any other iterable of tools, decorated classes included; which of them are scored at all,
    `options` says. When scoring takes longer than `timeout_ms`, the first `max_candidates` tools come
    back in registration order, scored 0 and marked in their provenance; a call to the scorer that is
    under way in its thread runs on to its end. No tool at or above `min_score` gives an empty list.

    What a catalog or a tuple holds is sorted out once, not at every pick: prefer them to lists.
    Raises PickError for a scorer that raises or gives no score in 0..1, for tools without a
    definition, and for an input that has no text.
    """
    check_type("options", options, PickOptions, "a PickOptions")
    candidates = candidates_of(tools, options.filters(), options.quota)
    scorer = options.chosen_scorer()
    request = request_for(input, candidates, options)
    ranking = await ranked_in_time(scorer, request)
    return results_of(ranking, scorer, candidates, options)


def request_for(given: object, candidates: Candidates, options: PickOptions) -> Request:
    """The question to the scorer. Its time runs from here."""
    query = query_of(given, options.timeout_ms)
    most = min(options.max_candidates, len(candidates.tools))
    return Request(given, query, candidates.tools, options.min_score, most)


async def ranked_in_time(scorer: Scorer, request: Request) -> Ranking | None:
    """The ranking, or None once the query's deadline has passed."""
    if not request.tools:
        return []
    return await _until(request.query, ranked(scorer, request))


def results_of(
    ranking: Ranking | None, scorer: Scorer, candidates: Candidates, options: PickOptions
) -> list[PickResult]:
    """What the caller gets of a ranking, and where there is none, of the order of registration."""
    tools, excluded = candidates
    timed_out = ranking is None
    if ranking is None:
        late = Score(0.0, f"no score within {options.timeout_ms} ms: in registration order")
        ranking = [(i, late) for i in range(min(options.max_candidates, len(tools)))]
    name = scorer_name(scorer)
    return [
        PickResult(
            tool=tools[position],
            definition=tools[position].get_definition(),
            score=float(score.score),
            reason=score.reason,
            provenance=Provenance(
                scorer=name,
                details=score.details,
                timed_out=timed_out,
                excluded=excluded if options.debug else (),
            ),
        )
        for position, score in ranking
    ]


async def _until(query: Query, work: Coroutine[Any, Any, T]) -> T | None:
    """Its result, or None once the time is over: it is cancelled then, but not waited for.

    What comes after the deadline does not count, whatever it is: a scorer that gives up then may
    answer with anything, an error too.
    """
    if query.deadline == inf:
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, query.deadline - monotonic()))
    finally:
        task.cancel()
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
    if not task.done() or task.cancelled() or monotonic() >= query.deadline:
        return None
    return task.result()
