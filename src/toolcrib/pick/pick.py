"""`pick_tools`: the few of many tools that a request needs, scored, with reasons.

Rule: selection only. No tool runs, no tool is left out without a readable reason, and equal input
gives an equal ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from sys import float_info
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.options import Excluded, Filters, PickOptions, Quota, used_up
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.scorer import Ranking, Score, Scorer, ScoreRequest, ranked, scorer_name, trim
from toolcrib.pick.words import one_line
from toolcrib.tools import Catalog
from toolcrib.values.definition import HasDefinition, ToolDefinition, as_plain, tools_in
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type, names_wrong_types

# Candidates: the tools that no filter leaves out, and why the others were left out.
#
# Rule: a catalog or a tuple cannot change, so their candidates are found once for each set of
# filters. The same tools are then the same tuple, which scorers recognise. Any other iterable is
# read each time.


class Candidates(NamedTuple):
    """Tools to score, in registration order, and those that were left out."""

    tools: tuple[HasDefinition, ...]
    excluded: tuple[Excluded, ...]


_MOST_KEPT = 8


class _KnownTools(msgspec.Struct, frozen=True):
    """Holds what is known about tools that cannot change.

    `source` is the tuple that they came in, which is kept so that no other tuple can get its id.
    `tools` are the single tools. `roles` are all roles that any tool is for; a caller's other roles
    make no difference.
    """

    source: tuple[Any, ...]
    tools: tuple[Any, ...]
    roles: frozenset[str]
    candidates: dict[Filters, Candidates]


_known_by_catalog: WeakKeyDictionary[Catalog, _KnownTools] = WeakKeyDictionary()
_known_by_id: dict[int, _KnownTools] = {}


def candidates_of(tools: Iterable[Any], filters: Filters, quota: Quota | None = None) -> Candidates:
    """Return the tools that may be picked. Raises PickError, which names the place, for a value
    without a definition, and in the cases of `used_up`.

    A quota that is a function is asked about each remaining tool, at every pick.
    """
    if quota is None:
        return _candidates(tools, filters)
    if isinstance(quota, Mapping):
        return _candidates(tools, msgspec.structs.replace(filters, used_up=used_up(quota, ())))
    if not isinstance(tools, Catalog | tuple):
        tools = list(tools_in(tools))  # an iterator can be read only once
    candidates = _candidates(tools, filters)
    exhausted = used_up(quota, [tool.get_definition().name for tool in candidates.tools])
    if not exhausted:
        return candidates
    return _candidates(tools, msgspec.structs.replace(filters, used_up=exhausted))


def _candidates(tools: Iterable[Any], filters: Filters) -> Candidates:
    if isinstance(tools, Catalog):
        known_tools = _known_by_catalog.get(tools)
        if known_tools is None:
            known_tools = _known_by_catalog[tools] = _known(tools, source=())
    elif isinstance(tools, tuple):
        known_tools = _known_by_id.pop(id(tools), None) or _known(tools, source=tools)
        _known_by_id[id(tools)] = known_tools
        trim(_known_by_id, _MOST_KEPT)
    else:
        return _filtered(tuple(map(as_plain, tools_in(tools))), filters)
    if filters.roles is not None:
        filters = msgspec.structs.replace(filters, roles=filters.roles & known_tools.roles)
    candidates = known_tools.candidates.pop(filters, None) or _filtered(known_tools.tools, filters)
    known_tools.candidates[filters] = candidates
    trim(known_tools.candidates, _MOST_KEPT)
    return candidates


def _known(raw_tools: Iterable[Any], *, source: tuple[Any, ...]) -> _KnownTools:
    tools = tuple(map(as_plain, tools_in(raw_tools)))  # each has a definition
    definitions = [_definition(position, tool) for position, tool in enumerate(tools)]
    roles = {role for d in definitions for role in d.annotations.allowed_roles}
    return _KnownTools(source, tools, frozenset(roles), {})


def _filtered(tools: Iterable[Any], filters: Filters) -> Candidates:
    allowed: list[HasDefinition] = []
    excluded: list[Excluded] = []
    for position, tool in enumerate(tools):
        definition = _definition(position, tool)
        reasons = filters.reasons(definition)
        if reasons:
            excluded.append(Excluded(definition.name, "; ".join(reasons)))
        else:
            allowed.append(tool)
    return Candidates(tuple(allowed), tuple(excluded))


def _definition(position: int, tool: Any) -> ToolDefinition:
    try:
        definition = tool.get_definition() if hasattr(tool, "get_definition") else None
    except ToolcribError:
        raise
    except Exception as error:
        place = f"tools[{position}], a {type(tool).__name__}"
        raise PickError(f"{place}: get_definition raised {type(error).__name__}") from error
    if not isinstance(definition, ToolDefinition):
        raise PickError(f"tools[{position}], a {type(tool).__name__}, has no definition")
    return definition


class PickProvenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result comes from: which scorer, and what it noted.

    `timed_out` says that nothing was scored and the order is that of registration. `excluded` is
    filled only with `PickOptions(debug=True)`.
    """

    scorer: str
    details: JsonObject | None = None
    timed_out: bool = False
    excluded: tuple[Excluded, ...] = ()


class PickResult(msgspec.Struct, frozen=True, kw_only=True):
    """A picked tool in its registered form, its definition, a score in 0..1 and the reason."""

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
    """Return the best tools for `input`, best first. Equal scores are in registration order.

    `input` is a string, a conversation (a ChatRequest, messages, or dictionaries of any provider's
    form, whose last user turn is the request) or any JSON; see `query_of`. `tools` is a Catalog or
    any other iterable of tools, including decorated classes. `options` says which of them are
    scored at all. If scoring takes longer than `timeout_ms`, the first `max_candidates` tools are
    returned in registration order, with score 0, and marked in their provenance. A call to the
    scorer that is under way in its thread then runs to its end. If no tool reaches `min_score`, the
    list is empty.

    The candidates of a catalog or a tuple are determined once, not at every pick, so prefer them to
    lists. Raises PickError for a scorer that raises or gives no score in 0..1, for tools without a
    definition, and for an input without text.
    """
    check_type("options", options, PickOptions, "a PickOptions")
    candidates = candidates_of(tools, options.filters(), options.quota)
    scorer = options.chosen_scorer()
    request = request_for(input, candidates, options)
    ranking = await ranked_in_time(scorer, request)
    return results_of(ranking, scorer, candidates, options)


def request_for(value: object, candidates: Candidates, options: PickOptions) -> ScoreRequest:
    """Return the question to the scorer, whose time starts here."""
    query = query_of(value, options.timeout_ms)
    limit = min(options.max_candidates, len(candidates.tools))
    return ScoreRequest(value, query, candidates.tools, options.min_score, limit)


async def ranked_in_time(scorer: Scorer, request: ScoreRequest) -> Ranking | None:
    """Return the ranking, or None once the query's deadline has passed. The work is then cancelled
    and not awaited.

    What comes after the deadline does not count, whatever it is: a scorer that gives up may return
    anything, or raise an error.
    """
    if not request.tools:
        return []
    work, deadline = ranked(scorer, request), request.query.deadline
    if deadline == inf:
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, deadline - monotonic()))
    finally:
        task.cancel()
        task.add_done_callback(lambda late_task: late_task.cancelled() or late_task.exception())
    if not task.done() or task.cancelled() or monotonic() >= deadline:
        return None
    return task.result()


def results_of(
    ranking: Ranking | None, scorer: Scorer, candidates: Candidates, options: PickOptions
) -> list[PickResult]:
    """Return the caller's results for a ranking, or for the order of registration if there is none."""
    tools, excluded = candidates
    timed_out = ranking is None
    if ranking is None:
        no_score = Score(0.0, f"no score within {options.timeout_ms} ms: in registration order")
        ranking = [(i, no_score) for i in range(min(options.max_candidates, len(tools)))]
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


# `explain_pick`: everything about one pick: what was read, what was left out, how each tool scored.
#
# Rule: a report shows the pick that `pick_tools` would have made. It is not another way to make
# one.

_MOST_SHOWN = 20
_cell = partial(one_line, limit=100)


class ScoredTool(msgspec.Struct, frozen=True):
    """A tool that was scored. Only the picked tools and the best twenty have a reason that is
    costly to compute.

    `parts` has the weights that the score consists of, by scorer, if the scorer names them.
    """

    name: str
    score: float
    reason: str = ""
    details: JsonObject | None = None

    @property
    def parts(self) -> dict[str, float]:
        parts = (self.details or {}).get("parts")
        if not isinstance(parts, dict):
            return {}
        return {
            name: float(w)
            for name, w in parts.items()
            if isinstance(w, int | float) and abs(w) <= float_info.max
        }


class PickReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to every tool. `scored` is best first, and is empty after a timeout.

    `elapsed_ms` is how long the scoring for the pick took, in milliseconds of wall-clock time.
    """

    query: Query
    scorer: str
    min_score: float
    results: tuple[PickResult, ...]
    scored: tuple[ScoredTool, ...]
    excluded: tuple[Excluded, ...]
    elapsed_ms: float
    timed_out: bool

    def to_json(self) -> JsonObject:
        """Return everything as JSON, with each tool of the catalog once in `scored` or `excluded`."""
        return {
            "query": {
                "text": self.query.text,
                "earlier": [*self.query.earlier],
                "used": [*self.query.used],
            },
            "scorer": self.scorer,
            "min_score": self.min_score,
            "elapsed_ms": self.elapsed_ms,
            "timed_out": self.timed_out,
            "picked": [result.definition.name for result in self.results],
            "scored": [msgspec.to_builtins(tool) for tool in self.scored],
            "excluded": [{"name": out.tool, "reason": out.reason} for out in self.excluded],
        }

    def text(self) -> str:
        """Return the same for a reader: the best twenty scores, and how many more there are."""
        return "\n".join([*self._head(), *self._scores(), *self._left_out()])

    def _head(self) -> Iterator[str]:
        yield f"request: {_cell(self.query.text) or '(no text)'}"
        for turn in self.query.earlier:
            yield f"earlier: {_cell(turn)}"
        if self.query.used:
            yield f"used: {_cell(', '.join(self.query.used))}"
        counts = f"{len(self.scored):,} scored, {len(self.excluded):,} left out"
        yield f"scorer: {_cell(self.scorer)}; {self.elapsed_ms:.1f} ms; {counts}"

    def _scores(self) -> Iterator[str]:
        yield ""
        if self.timed_out:
            names = ", ".join(result.definition.name for result in self.results)
            yield f"no score in time: picked in registration order: {_cell(names)}"
            return
        count = len(self.results)
        rows: list[Sequence[str]] = []
        for position, tool in enumerate(self.scored[: max(_MOST_SHOWN, count)]):
            parts = ", ".join(f"{name} {weight:.3f}" for name, weight in tool.parts.items())
            mark = "*" if position < count else ""
            rows.append((mark, f"{tool.score:.3f}", tool.name, parts, tool.reason))
        yield from _table(rows, header=("", "score", "tool", "parts", "why"))
        hidden = len(self.scored) - len(rows)
        if hidden:
            yield f"and {hidden:,} more"
        yield f"* picked: {count}, with a score of at least {self.min_score:g}"

    def _left_out(self) -> Iterator[str]:
        if not self.excluded:
            return
        yield from ("", "left out")
        yield from _table([("", out.tool, out.reason) for out in self.excluded[:_MOST_SHOWN]])
        hidden = len(self.excluded) - _MOST_SHOWN
        if hidden > 0:
            yield f"and {hidden:,} more"


@names_wrong_types
async def explain_pick(
    input: object,  # noqa: A002  as in pick_tools
    tools: Iterable[Any],
    options: PickOptions = PickOptions(),  # noqa: B008  frozen
) -> PickReport:
    """Return what `pick_tools` would pick, and why: each tool's score, or the reason why it has
    none.

    A ranker is asked twice: in the same way as by `pick_tools`, and for the scores of all tools,
    without a time limit. Raises what `pick_tools` raises.
    """
    candidates = candidates_of(tools, options.filters(), options.quota)
    scorer = options.chosen_scorer()
    request = request_for(input, candidates, options)
    started = monotonic()
    if hasattr(scorer, "hits"):
        best = await ranked_in_time(scorer, request)
        elapsed = monotonic() - started
        ranking = None if best is None else await ranked_in_time(scorer, _for_all(request, inf))
    else:  # it always scores all tools, which may be expensive
        ranking = await ranked_in_time(scorer, _for_all(request, request.query.deadline))
        elapsed = monotonic() - started
        best = None if ranking is None else _best(ranking, options)
    return PickReport(
        query=request.query,
        scorer=scorer_name(scorer),
        min_score=options.min_score,
        results=tuple(results_of(best, scorer, candidates, options)),
        scored=tuple(
            ScoredTool(
                candidates.tools[position].get_definition().name,
                float(s.score),
                s.reason,
                s.details,
            )
            for position, s in ranking or ()
        ),
        excluded=candidates.excluded,
        elapsed_ms=elapsed * 1000,
        timed_out=ranking is None,
    )


def _for_all(request: ScoreRequest, deadline: float) -> ScoreRequest:
    return request._replace(
        query=msgspec.structs.replace(request.query, deadline=deadline),
        min_score=0.0,
        max_candidates=len(request.tools),
        explained=max(_MOST_SHOWN, request.max_candidates),
    )


def _best(ranking: Ranking, options: PickOptions) -> Ranking:
    best = ranking[: options.max_candidates]
    return [(position, score) for position, score in best if score.score >= options.min_score]


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> Iterator[str]:
    """Yield lines with columns as wide as necessary. An empty column is left out, unless it is the
    first."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    used_columns = [
        index for index, column in enumerate(zip(*cells, strict=True)) if index == 0 or any(column)
    ]
    visible_rows = [
        [row[index] for index in used_columns]
        for row in ([header] if header and rows else []) + cells
    ]
    widths = [max(map(len, column)) for column in zip(*visible_rows, strict=True)]
    for row in visible_rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
