"""Floors just under what was measured; `toolcrib eval-pick` shows the whole table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from rows import each_row
from samples import sampled

from toolcrib.cli.options import load_for_picking
from toolcrib.pick import SCORERS
from toolcrib.pick.evaluation import MeasuredScorer, figures, read_questions


class Floor(NamedTuple):
    """`first`: the first so many questions of the set; a transformer takes its time."""

    scorer: str
    of: str
    first: int
    ndcg: float
    recall: float


FEW = [
    Floor("keyword", "metatool", 60, 0.545, 0.63),
    Floor("keyword", "bfcl", 60, 0.76, 0.815),
    Floor("keyword", "nestful", 60, 0.85, 0.825),
    Floor("embedding", "metatool", 60, 0.59, 0.69),
    Floor("embedding", "bfcl", 60, 0.715, 0.83),
    Floor("embedding", "nestful", 60, 0.86, 0.855),
    Floor("light", "metatool", 60, 0.61, 0.69),
    Floor("light", "bfcl", 60, 0.765, 0.865),
    Floor("light", "nestful", 60, 0.865, 0.855),
]
FLOORS = [
    Floor("keyword", "metatool", 300, 0.64, 0.69),
    Floor("keyword", "bfcl", 300, 0.79, 0.87),
    Floor("keyword", "nestful", 300, 0.835, 0.82),
    Floor("embedding", "metatool", 300, 0.655, 0.72),
    Floor("embedding", "bfcl", 300, 0.74, 0.83),
    Floor("embedding", "nestful", 300, 0.83, 0.825),
    Floor("light", "metatool", 300, 0.70, 0.74),
    Floor("light", "bfcl", 300, 0.80, 0.88),
    Floor("light", "nestful", 300, 0.855, 0.855),
    Floor("rerank", "metatool", 100, 0.685, 0.765),
    Floor("rerank", "nestful", 100, 0.88, 0.905),
]


def named(floor: Floor) -> str:
    return f"{floor.scorer}-{floor.of}"


@each_row("floor", sampled(FEW, part=3), ids=named)
async def test_quality_of_the_first(
    floor: Floor, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await holds(floor, shared_data, tmp_path, monkeypatch)


@pytest.mark.exhaustive  # many questions, and a transformer takes its time
@each_row("floor", FLOORS, ids=named)
async def test_quality(
    floor: Floor, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await holds(floor, shared_data, tmp_path, monkeypatch)


async def holds(
    floor: Floor, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path))
    folder = shared_data / "pick" / floor.of
    tools = load_for_picking([str(folder / "tools.jsonl")])
    known = [tool.get_definition().name for tool in tools]
    questions = read_questions(folder / "queries.jsonl", known)[: floor.first]
    picking = MeasuredScorer(SCORERS[floor.scorer](), tools)
    answers = [await picking.answer(question.query) for question in questions]
    found = figures(questions, answers, build_ms=0, min_score=0).quality
    assert found is not None
    assert found.ndcg_at_10 >= floor.ndcg
    assert found.recall_at_5 >= floor.recall
