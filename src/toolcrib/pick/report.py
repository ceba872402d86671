"""`explain_pick`: everything about one pick: what was read, who was left out, how each tool scored.

Rule: a report shows the pick that `pick_tools` would have made; it is not another way to make one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from sys import float_info
from time import monotonic
from typing import Any

import msgspec

from toolcrib.pick.options import Excluded, PickOptions
from toolcrib.pick.pick import PickResult, candidates_of, ranked_in_time, request_for, results_of
from toolcrib.pick.query import Query
from toolcrib.pick.ranking import Ranking, ScoreRequest
from toolcrib.pick.scorer import Score, scorer_name
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.typed import names_wrong_types

_SHOWN = 20
_CELL = 100


class ScoredTool(msgspec.Struct, frozen=True):
    """A tool that was scored. Only those picked and the best twenty have a reason that costs time.

    `parts` has the weights that the score is made of, by scorer, where the scorer says them.
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
    """Says what became of every tool. `scored` is best first; after a time-out there is nothing in it.

    `elapsed_ms` is how long the scoring took that the pick needed, in milliseconds of wall clock.
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
        """Return all of it as JSON, each tool of the catalog once in `scored` or `excluded`."""
        picked: list[JsonValue] = [result.definition.name for result in self.results]
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
            "picked": picked,
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
        for position, tool in enumerate(self.scored[: max(_SHOWN, count)]):
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
        yield from _table([("", out.tool, out.reason) for out in self.excluded[:_SHOWN]])
        hidden = len(self.excluded) - _SHOWN
        if hidden > 0:
            yield f"and {hidden:,} more"


@names_wrong_types
async def explain_pick(
    input: object,  # noqa: A002  as in pick_tools
    tools: Iterable[Any],
    options: PickOptions = PickOptions(),  # noqa: B008  frozen
) -> PickReport:
    """Return what `pick_tools` would pick, and why that: each tool's score,
    or the reason that it has none.

    A ranker is asked twice: as `pick_tools` does, and for the scores of all tools, which has no time
    limit. Raises what `pick_tools` raises.
    """
    candidates = candidates_of(tools, options.filters(), options.quota)
    scorer = options.chosen_scorer()
    request = request_for(input, candidates, options)
    started = monotonic()
    if hasattr(scorer, "hits"):
        best = await ranked_in_time(scorer, request)
        elapsed = monotonic() - started
        ranking = None if best is None else await ranked_in_time(scorer, _for_all(request, inf))
    else:  # it scores all tools whatever it is asked for, and that may cost something
        ranking = await ranked_in_time(scorer, _for_all(request, request.query.deadline))
        elapsed = monotonic() - started
        best = None if ranking is None else _best(ranking, options)
    return PickReport(
        query=request.query,
        scorer=scorer_name(scorer),
        min_score=options.min_score,
        results=tuple(results_of(best, scorer, candidates, options)),
        scored=tuple(_scored(candidates.tools[at], score) for at, score in ranking or ()),
        excluded=candidates.excluded,
        elapsed_ms=elapsed * 1000,
        timed_out=ranking is None,
    )


def _for_all(request: ScoreRequest, deadline: float) -> ScoreRequest:
    return request._replace(
        query=msgspec.structs.replace(request.query, deadline=deadline),
        min_score=0.0,
        max_candidates=len(request.tools),
        explained=max(_SHOWN, request.max_candidates),
    )


def _best(ranking: Ranking, options: PickOptions) -> Ranking:
    first = ranking[: options.max_candidates]
    return [(at, score) for at, score in first if score.score >= options.min_score]


def _scored(tool: HasDefinition, score: Score) -> ScoredTool:
    name = tool.get_definition().name
    return ScoredTool(name, float(score.score), score.reason, score.details)


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> Iterator[str]:
    """Columns as wide as they have to be; one but the first that has nothing in it is left out."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    used = [at for at, column in enumerate(zip(*cells, strict=True)) if at == 0 or any(column)]
    shown = [[row[at] for at in used] for row in ([header] if header and rows else []) + cells]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _cell(text: str) -> str:
    """Return a text as one table cell: no line break or bar in it can end the cell."""
    line = " ".join(text.split())
    return line if len(line) <= _CELL else f"{line[: _CELL - 1]}…"
