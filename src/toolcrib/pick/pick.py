"""`pick_tools`: of many tools the few that a request needs, scored, with reasons.

Rule: selection only. No tool runs, nothing is hidden without a reason that can be read, and equal
input gives an equal ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from math import isfinite
from typing import Any, TypeVar, cast

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.filters import Excluded, exclusion
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.scorer import Request, Score, Scorer, ranked, scorer_name
from toolcrib.pick.text import request_text
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

T = TypeVar("T")

_KEYWORDS = KeywordScorer()  # shared, so that an index outlives the call that built it


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


class PickOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to pick; `timeout_ms`, in milliseconds, bounds the scoring (an index to be built included).

    `scorer` is a batch scorer (an object with `name` and `score`), a function `(input, tool)` that
    gives a `Score` or a float, sync or async, or None for `KeywordScorer`. `debug` adds to each
    result's provenance the tools that no scorer saw. Raises PickError for a value out of range.
    """

    max_candidates: int = 3
    min_score: float = 0.05
    allow_unsafe: bool = False
    scorer: Scorer | None = None
    timeout_ms: float | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.max_candidates, int) or self.max_candidates < 1:
            raise PickError(f"max_candidates must be an int from 1, not {self.max_candidates!r}")
        if not _is_number(self.min_score, float) or not 0 <= self.min_score <= 1:
            raise PickError(f"min_score must be in 0..1, not {self.min_score!r}")
        limit = self.timeout_ms
        if limit is not None and not (_is_number(limit, float) and limit > 0 and isfinite(limit)):
            raise PickError(f"timeout_ms must be above 0, or None for no limit, not {limit!r}")
        scorer = self.scorer
        if isinstance(scorer, type) or not (
            scorer is None or callable(scorer) or callable(getattr(scorer, "score", None))
        ):
            raise PickError(
                f"scorer must be an object with `name` and `score`, or a function, not {scorer!r}"
            )


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
    candidates, excluded = _candidates(tools, options)
    scorer = options.scorer or _KEYWORDS
    request = Request(
        input, request_text(input), candidates, options.min_score, options.max_candidates
    )
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


def _candidates(
    tools: Iterable[Any], options: PickOptions
) -> tuple[tuple[HasDefinition, ...], tuple[Excluded, ...]]:
    kept: list[HasDefinition] = []
    excluded: list[Excluded] = []
    for position, tool in enumerate(tools):
        definition = tool.get_definition() if hasattr(tool, "get_definition") else None
        if not isinstance(definition, ToolDefinition):
            raise PickError(f"tools[{position}], a {type(tool).__name__}, has no definition")
        reason = exclusion(definition, allow_unsafe=options.allow_unsafe)
        if reason is None:
            kept.append(cast("HasDefinition", tool))
        else:
            excluded.append(Excluded(definition.name, reason))
    return tuple(kept), tuple(excluded)


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
