"""`pick_tools`: of many tools the few that a request needs, scored, with reasons.

Rule: selection only. No tool runs, nothing is hidden without a reason that can be read, and equal
input gives an equal ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from toolcrib.pick.candidates import candidates_of
from toolcrib.pick.filters import Excluded
from toolcrib.pick.options import PickOptions
from toolcrib.pick.query import query_of
from toolcrib.pick.scorer import Request, Score, ranked, scorer_name
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

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

    `input` is a string or anything that JSON can write; `tools` is a Catalog or any other iterable
    of tools, decorated classes included. Tools marked unsafe are left out unless `allow_unsafe`.
    When scoring takes longer than `timeout_ms`, the first `max_candidates` tools come back in
    registration order, scored 0 and marked in their provenance; a scorer's thread runs on to its
    end. No tool at or above `min_score` gives an empty list.

    Raises PickError for a scorer that raises or gives no score in 0..1, for tools without a
    definition, and for an input that has no text.
    """
    candidates, excluded = candidates_of(tools, allow_unsafe=options.allow_unsafe)
    scorer = options.chosen_scorer()
    query = query_of(input, options.timeout_ms)
    request = Request(input, query, candidates, options.min_score, options.max_candidates)
    ranking = await _within(ranked(scorer, request), options.timeout_ms) if candidates else []
    timed_out = ranking is None
    if ranking is None:
        late = Score(0.0, f"no score within {options.timeout_ms} ms: in registration order")
        ranking = [(i, late) for i in range(min(options.max_candidates, len(candidates)))]
    return [
        PickResult(
            tool=candidates[position],
            definition=candidates[position].get_definition(),
            score=float(score.score),
            reason=score.reason,
            provenance=Provenance(
                scorer=scorer_name(scorer),
                details=score.details,
                timed_out=timed_out,
                excluded=excluded if options.debug else (),
            ),
        )
        for position, score in ranking
    ]


async def _within(work: Coroutine[Any, Any, T], timeout_ms: float | None) -> T | None:
    """Its result, or None once the time is over: it is cancelled then, but not waited for."""
    if timeout_ms is None:
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_ms / 1000)
    finally:
        task.cancel()
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
    return task.result() if task.done() and not task.cancelled() else None
