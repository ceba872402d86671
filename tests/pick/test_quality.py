"""Floors just under what was measured; the whole table is printed by the benchmark."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path

import pytest

from toolcrib.pick import BatchScorer, EmbeddingScorer, KeywordScorer

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "pick_quality.py"
QUERIES = 300


@pytest.mark.parametrize(
    ("scorer", "name", "ndcg", "recall"),
    [
        (KeywordScorer(), "metatool", 0.63, 0.67),
        (KeywordScorer(), "bfcl", 0.78, 0.86),
        (KeywordScorer(), "nestful", 0.815, 0.795),
        (EmbeddingScorer(), "metatool", 0.65, 0.71),
        (EmbeddingScorer(), "bfcl", 0.71, 0.795),
        (EmbeddingScorer(), "nestful", 0.785, 0.775),
    ],
    ids=lambda value: getattr(value, "name", value) if not isinstance(value, float) else "",
)
def test_quality(
    scorer: BatchScorer, name: str, ndcg: float, recall: float, shared_data: Path
) -> None:
    benchmark = run_path(str(BENCHMARK))
    tools, questions = benchmark["load"](shared_data / "pick" / name, QUERIES)
    found = benchmark["measure"](scorer, tools, questions)
    assert found.ndcg >= ndcg
    assert found.recall >= recall


def test_the_benchmark_prints_a_table(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["pick_quality.py", str(shared_data / "pick"), "--queries", "3"]
    )
    run_path(str(BENCHMARK), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("| set | tools | queries | scorer | nDCG@10 | recall@5 |")
    assert len(rows) == 8
