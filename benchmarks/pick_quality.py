"""How well and how fast the scorers pick: nDCG@10, recall@5, index build and query time.

    python benchmarks/pick_quality.py [--queries N] [DATA]

DATA holds one folder a set, each with `tools.jsonl` ({name, description, input_schema}) and
`queries.jsonl` ({query, gold}); by default `$TOOLCRIB_SHARED/data/pick`. Of each set the first N
queries are asked (0 for all), of the whole catalog.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from math import log2
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any, NamedTuple

from toolcrib.pick import BatchScorer, EmbeddingScorer, KeywordScorer
from toolcrib.values.definition import ToolDefinition

_SHARED = Path(os.environ.get("TOOLCRIB_SHARED", Path(__file__).parents[2] / "shared"))
_DEPTH, _SHORT = 10, 5


class Entry(NamedTuple):
    """A tool that is nothing but its definition."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


class Question(NamedTuple):
    """A request, and the names of the tools that answer it."""

    query: str
    gold: frozenset[str]


class Figures(NamedTuple):
    """Means over the questions; times in milliseconds of wall clock."""

    ndcg: float
    recall: float
    build_ms: float
    p50_ms: float


def load(folder: Path, queries: int = 0) -> tuple[tuple[Entry, ...], list[Question]]:
    """A set's tools, and its first `queries` questions (0 for all)."""
    tools = tuple(
        Entry(
            ToolDefinition(
                name=line["name"],
                description=line.get("description", ""),
                input_schema_json=json.dumps(line.get("input_schema", {"type": "object"})),
            )
        )
        for line in _lines(folder / "tools.jsonl")
    )
    questions = [
        Question(line["query"], frozenset(line["gold"]))
        for line in _lines(folder / "queries.jsonl")
    ]
    return tools, questions[:queries] if queries else questions


def measure(
    scorer: BatchScorer, tools: tuple[Entry, ...], questions: Sequence[Question]
) -> Figures:
    """What `scorer` reaches; binary relevance, ties in registration order."""
    began = perf_counter()
    scorer.score("warm up", tools)
    build = perf_counter() - began
    ndcgs, recalls, times = [], [], []
    for question in questions:
        began = perf_counter()
        scores = scorer.score(question.query, tools)
        times.append(perf_counter() - began)
        best = sorted(range(len(tools)), key=lambda i: -scores[i].score)[:_DEPTH]
        hits = [tools[i].definition.name in question.gold and scores[i].score > 0 for i in best]
        ideal = sum(1 / log2(rank + 2) for rank in range(min(_DEPTH, len(question.gold))))
        ndcgs.append(sum(hit / log2(rank + 2) for rank, hit in enumerate(hits)) / ideal)
        recalls.append(sum(hits[:_SHORT]) / len(question.gold))
    return Figures(fmean(ndcgs), fmean(recalls), build * 1e3, median(times) * 1e3)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="?", type=Path, default=_SHARED / "data" / "pick")
    parser.add_argument("--queries", type=int, default=300, help="of each set; 0 for all")
    asked = parser.parse_args()
    scorers: list[BatchScorer] = [KeywordScorer(), EmbeddingScorer()]
    for scorer in scorers:
        scorer.score("load what loads late", [])
    print("| set | tools | queries | scorer | nDCG@10 | recall@5 | build ms | p50 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for folder in sorted(path.parent for path in asked.data.glob("*/tools.jsonl")):
        tools, questions = load(folder, asked.queries)
        for scorer in scorers:
            found = measure(scorer, tools, questions)
            print(
                f"| {folder.name} | {len(tools)} | {len(questions)} | {scorer.name} "
                f"| {found.ndcg:.3f} | {found.recall:.3f} "
                f"| {found.build_ms:.0f} | {found.p50_ms:.2f} |"
            )


if __name__ == "__main__":
    main()
