"""`pick_tools`: of many tools the few that a request needs, scored, with reasons.

Rule: selection only. No tool runs, nothing is hidden without a reason that can be read, and equal
input gives an equal ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.options import Excluded, Filters, PickOptions, Quota, exclusion, used_up
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.ranking import Ranking, ScoreRequest, ranked
from toolcrib.pick.scorer import Score, Scorer, scorer_name, trim
from toolcrib.tools import Catalog
from toolcrib.values.definition import HasDefinition, ToolDefinition, as_plain, tools_in
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type

# Who stands for election: the tools that no filter leaves out, and why the others were.
#
# Rule: what a catalog or a tuple holds cannot change, so of those the candidates are found once for
# each set of filters; the same tools come as the same tuple then, which scorers know again. Any other
# iterable is read anew each time.


class Candidates(NamedTuple):
    """Tools to score, in registration order, and those that were left out."""

    tools: tuple[HasDefinition, ...]
    excluded: tuple[Excluded, ...]


_KEPT = 8


class _KnownTools(NamedTuple):
    """Holds what is known of tools that cannot change.

    `held` is the tuple that they came in, so that no other one can have its id, and `tools` the single
    ones; `roles` are all that any tool is for: of a caller's roles the others make no difference.
    """

    held: tuple[Any, ...]
    tools: tuple[Any, ...]
    roles: frozenset[str]
    found: dict[Filters, Candidates]


_of_catalogs: WeakKeyDictionary[Catalog, _KnownTools] = WeakKeyDictionary()
_of_tuples: dict[int, _KnownTools] = {}


def candidates_of(tools: Iterable[Any], filters: Filters, quota: Quota | None = None) -> Candidates:
    """Raises PickError, naming the place, for a thing that has no definition, and as `used_up` does.

    A quota that is a function is asked about each tool that the filters leave, at every pick.
    """
    if quota is None:
        return _candidates(tools, filters)
    if isinstance(quota, Mapping):
        return _candidates(tools, _without(filters, used_up(quota, ())))
    if not isinstance(tools, Catalog | tuple):
        tools = list(tools_in(tools))  # it may be read once only
    found = _candidates(tools, filters)
    spent = used_up(quota, [tool.get_definition().name for tool in found.tools])
    return _candidates(tools, _without(filters, spent)) if spent else found


def _without(filters: Filters, spent: frozenset[str]) -> Filters:
    return msgspec.structs.replace(filters, used_up=spent)


def _candidates(tools: Iterable[Any], filters: Filters) -> Candidates:
    if isinstance(tools, Catalog):
        known = _of_catalogs.get(tools)
        if known is None:
            known = _of_catalogs[tools] = _known(tools, held=())
    elif isinstance(tools, tuple):
        known = _of_tuples.pop(id(tools), None) or _known(tools, held=tools)
        _of_tuples[id(tools)] = known
        trim(_of_tuples, _KEPT)
    else:
        return _sorted_out(_each(tools), filters)
    if filters.roles is not None:
        filters = msgspec.structs.replace(filters, roles=filters.roles & known.roles)
    found = known.found.pop(filters, None) or _sorted_out(known.tools, filters)
    known.found[filters] = found
    trim(known.found, _KEPT)
    return found


def _known(given: Iterable[Any], *, held: tuple[Any, ...]) -> _KnownTools:
    tools = _each(given)
    definitions = [_definition(position, tool) for position, tool in enumerate(tools)]
    roles = {role for d in definitions for role in d.annotations.allowed_roles}
    return _KnownTools(held, tools, frozenset(roles), {})


def _each(given: Iterable[Any]) -> tuple[Any, ...]:
    """Return the single tools; definitions and dictionaries as what has one."""
    return tuple(map(as_plain, tools_in(given)))


def _sorted_out(tools: Iterable[Any], filters: Filters) -> Candidates:
    kept: list[HasDefinition] = []
    excluded: list[Excluded] = []
    checks = filters.checks()
    for position, tool in enumerate(tools):
        definition = _definition(position, tool)
        reason = exclusion(checks, definition) if checks else None
        if reason is None:
            kept.append(tool)
        else:
            excluded.append(Excluded(definition.name, reason))
    return Candidates(tuple(kept), tuple(excluded))


def _definition(position: int, tool: Any) -> ToolDefinition:
    try:
        definition = tool.get_definition() if hasattr(tool, "get_definition") else None
    except ToolcribError:
        raise
    except Exception as error:
        what = f"tools[{position}], a {type(tool).__name__}"
        raise PickError(f"{what}: get_definition raised {type(error).__name__}") from error
    if not isinstance(definition, ToolDefinition):
        raise PickError(f"tools[{position}], a {type(tool).__name__}, has no definition")
    return definition


T = TypeVar("T")


class PickProvenance(msgspec.Struct, frozen=True, kw_only=True):
    """Says where a result comes from: which scorer and what it noted.

    `timed_out` says that nothing was scored and the order is that of registration; `excluded` is
    filled with `PickOptions(debug=True)` only.
    """

    scorer: str
    details: JsonObject | None = None
    timed_out: bool = False
    excluded: tuple[Excluded, ...] = ()


class PickResult(msgspec.Struct, frozen=True, kw_only=True):
    """A picked tool: as it was registered, its definition, a score in 0..1 and the reason."""

    tool: HasDefinition
    definition: ToolDefinition
    score: float
    reason: str
    provenance: PickProvenance


async def pick_tools(
    input: object,  # noqa: A002  the public name
    tools: Iterable[Any],
    options: PickOptions = PickOptions(),  # noqa: B008  frozen
) -> list[PickResult]:
    """Return the best tools for `input`, best first, equal scores in registration order.

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


def request_for(given: object, candidates: Candidates, options: PickOptions) -> ScoreRequest:
    """Return the question to the scorer. Its time runs from here."""
    query = query_of(given, options.timeout_ms)
    most = min(options.max_candidates, len(candidates.tools))
    return ScoreRequest(given, query, candidates.tools, options.min_score, most)


async def ranked_in_time(scorer: Scorer, request: ScoreRequest) -> Ranking | None:
    """Return the ranking, or None once the query's deadline has passed."""
    if not request.tools:
        return []
    return await _until(request.query, ranked(scorer, request))


def results_of(
    ranking: Ranking | None, scorer: Scorer, candidates: Candidates, options: PickOptions
) -> list[PickResult]:
    """Return what the caller gets of a ranking, and where there is none,
    of the order of registration."""
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
            provenance=PickProvenance(
                scorer=name,
                details=score.details,
                timed_out=timed_out,
                excluded=excluded if options.debug else (),
            ),
        )
        for position, score in ranking
    ]


async def _until(query: Query, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result, or None once the time is over: the work is cancelled then, not awaited.

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
