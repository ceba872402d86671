"""How well and how fast requests get their tools, measured on a labelled set.

Rule: quality and time are measured on the same calls, and through the public function
(`pick_tools`). All ranks are cut at 10. A tool is either right or wrong. A tool with score 0 counts
as not picked.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from math import ceil, log2, sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter, process_time
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import SourceError
from toolcrib.pick.options import PickOptions
from toolcrib.pick.pick import pick_tools
from toolcrib.pick.scorer import Scorer
from toolcrib.values.definition import HasDefinition, ToolDefinition

DEPTH = 10
_SHORT = 5


class Question(msgspec.Struct, frozen=True):
    """A request, and the names of the tools that it needs, which may be none."""

    query: str
    gold: frozenset[str]


class ScorerAnswer(NamedTuple):
    """At most `DEPTH` names, best first; the scores in 0..1 if it is one of our scorers;
    milliseconds."""

    ranking: tuple[str, ...]
    cpu_ms: float
    wall_ms: float
    scores: tuple[float, ...] | None = None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the requests that need a tool. `error` is the standard error of `ndcg_at_10`.

    With binary gain, `ndcg_at_10` is `sum 1/log2(rank + 1)` over the right tools among the first
    10, divided by that of the best order. A recall is the share of the right tools among the first
    5 or 10. `mrr` is 1 divided by the rank of the first right tool, or 0 if there is none. `error`
    is None for fewer than two requests.
    """

    ndcg_at_10: float
    error: float | None
    recall_at_5: float
    recall_at_10: float
    mrr: float


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Judges `min_score`: how many requests that need no tool get none, and how many lose their
    tool.

    Of the `found` requests whose pick has a right tool at `min_score=0`, `lost` have none at this
    one. `auc` is how often the best score of a request that needs a tool is above that of one that
    needs none (equal scores count half). 1 means that they are told apart, and 0.5 is chance. None
    if one of the two kinds is missing in the set.
    """

    min_score: float
    needless: int
    kept_empty: int
    found: int
    lost: int
    auc: float | None


class Spread(msgspec.Struct, frozen=True):
    """Median and 95th percentile (nearest rank) over all requests, in milliseconds."""

    p50: float
    p95: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one system on one set. `threshold` is None if it gives no scores.

    `build_ms` is the CPU time of a first request to the catalog, which includes building the index.
    """

    questions: int
    quality: Quality | None
    threshold: Threshold | None
    build_ms: float
    cpu_ms: Spread
    wall_ms: Spread


def read_questions(path: Path, tools: Collection[str]) -> tuple[Question, ...]:
    """Return the lines `{"query": "…", "gold": ["name", …]}` of a JSONL file. Other keys are
    ignored.

    Raises SourceError, which names file and line, for any other line and for a gold name that is
    not among `tools`, and also for a file without questions.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeError:
        raise SourceError(f"{path}: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SourceError(f"{path}: it cannot be read ({reason})") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise SourceError(f"{path}: it has no questions")
    names = frozenset(tools)
    return tuple(_question(line, names, f"{path}: line {number}") for number, line in lines)


def _question(line: str, tools: frozenset[str], location: str) -> Question:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise SourceError(f"{location} is not JSON") from None
    if not isinstance(entry, dict):
        raise SourceError(f"{location} is not an object with query and gold")
    query, gold = entry.get("query"), entry.get("gold")
    if not isinstance(query, str) or not query.strip():
        raise SourceError(f"{location}: 'query' must be a string")
    if not isinstance(gold, list) or not all(isinstance(name, str) for name in gold):
        raise SourceError(
            f"{location}: 'gold' must be a list of names ([] where no tool is needed)"
        )
    for name in gold:
        if name not in tools:
            raise SourceError(f"{location}: no tool is called {name[:80]!r}")
    return Question(query, frozenset(gold))


def check_names(tools: Sequence[HasDefinition], where: str) -> None:
    """Raise SourceError if two tools have the same name, since no gold name could tell them apart."""
    first_number: dict[str, int] = {}
    for number, tool in enumerate(tools, 1):
        name = tool.get_definition().name
        if first_number.setdefault(name, number) != number:
            raise SourceError(
                f"{where}: tools {first_number[name]} and {number} are both called {name[:80]!r}"
            )


class MeasuredScorer:
    """A scorer that is asked through `pick_tools`, about a catalog that is given once, as a tuple."""

    def __init__(self, scorer: Scorer, tools: tuple[HasDefinition, ...]) -> None:
        self._tools = tools
        self._options = PickOptions(
            max_candidates=DEPTH, min_score=0, allow_unsafe=True, scorer=scorer
        )

    async def build(self) -> float:
        """Return the CPU milliseconds of the first request, after the scorer's model was loaded."""
        await pick_tools("load what loads late", (_NOTHING,), self._options)
        return (await self.answer("build the index")).cpu_ms

    async def answer(self, query: str) -> ScorerAnswer:
        """Answer one request. The CPU time is that of the whole process, in which nothing else
        should run."""
        wall, cpu = perf_counter(), process_time()
        results = await pick_tools(query, self._tools, self._options)
        cpu, wall = process_time() - cpu, perf_counter() - wall
        picked = [result for result in results if result.score > 0]
        return ScorerAnswer(
            tuple(result.definition.name for result in picked),
            cpu * 1e3,
            wall * 1e3,
            tuple(result.score for result in picked),
        )


_NOTHING = ToolDefinition(name="nothing", description="Does nothing.", input_schema_json=None)


def figures(
    questions: Sequence[Question],
    answers: Sequence[ScorerAnswer],
    *,
    build_ms: float,
    min_score: float,
) -> Figures:
    """Return the figures for the answers to these questions, one for each (at least one)."""
    pairs = list(zip(questions, answers, strict=True))
    needing = [(question, answer) for question, answer in pairs if question.gold]
    scored = all(answer.scores is not None for answer in answers)
    return Figures(
        questions=len(pairs),
        quality=_quality(needing) if needing else None,
        threshold=_threshold(pairs, min_score) if scored else None,
        build_ms=build_ms,
        cpu_ms=_spread([answer.cpu_ms for answer in answers]),
        wall_ms=_spread([answer.wall_ms for answer in answers]),
    )


def _quality(pairs: Sequence[tuple[Question, ScorerAnswer]]) -> Quality:
    ndcgs, recalls_at_5, recalls_at_10, reciprocal_ranks = [], [], [], []
    for question, answer in pairs:
        hits = [name in question.gold for name in answer.ranking[:DEPTH]]
        ideal = sum(1 / log2(rank + 2) for rank in range(min(DEPTH, len(question.gold))))
        ndcgs.append(sum(hit / log2(rank + 2) for rank, hit in enumerate(hits)) / ideal)
        recalls_at_5.append(sum(hits[:_SHORT]) / len(question.gold))
        recalls_at_10.append(sum(hits) / len(question.gold))
        reciprocal_ranks.append(1 / (hits.index(True) + 1) if any(hits) else 0.0)
    return Quality(
        ndcg_at_10=fmean(ndcgs),
        error=stdev(ndcgs) / sqrt(len(ndcgs)) if len(ndcgs) > 1 else None,
        recall_at_5=fmean(recalls_at_5),
        recall_at_10=fmean(recalls_at_10),
        mrr=fmean(reciprocal_ranks),
    )


def _threshold(pairs: Sequence[tuple[Question, ScorerAnswer]], min_score: float) -> Threshold:
    needless, needing = [], []
    kept_empty = found = lost = 0
    for question, answer in pairs:
        scores = answer.scores or ()
        best = max(scores, default=0.0)
        if not question.gold:
            needless.append(best)
            kept_empty += best < min_score or not scores
            continue
        needing.append(best)
        right = [s for n, s in zip(answer.ranking, scores, strict=True) if n in question.gold]
        found += bool(right)
        lost += bool(right) and max(right) < min_score
    return Threshold(
        min_score=min_score,
        needless=len(needless),
        kept_empty=kept_empty,
        found=found,
        lost=lost,
        auc=_auc(needing, needless) if needing and needless else None,
    )


def _auc(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the share of all pairs in which `above` wins, with ties at half (Mann-Whitney's U
    divided by its maximum)."""
    ordered = sorted(below)
    wins = sum(bisect_left(ordered, a) + bisect_right(ordered, a) for a in above) / 2
    return wins / (len(above) * len(below))


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    p50, p95 = (ordered[ceil(part * len(ordered)) - 1] for part in (0.50, 0.95))
    return Spread(p50, p95)
