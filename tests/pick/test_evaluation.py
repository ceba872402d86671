"""The figures, against numbers worked out by hand; and what a labelled set may not hold."""

from __future__ import annotations

import json
from math import log2, sqrt
from pathlib import Path

import msgspec
import pytest
from pick.pick_helpers import SHOP, entry
from rows import each_row

from toolcrib.errors import SourceError
from toolcrib.pick import KeywordScorer
from toolcrib.pick.evaluation import (
    Figures,
    MeasuredScorer,
    Quality,
    Question,
    ScorerAnswer,
    Spread,
    Threshold,
    check_names,
    figures,
    read_questions,
)


def asked(gold: str, ranking: str = "", *scores: float) -> tuple[Question, ScorerAnswer]:
    """A question and its answer; golds and names are letters."""
    return Question("?", frozenset(gold)), ScorerAnswer(tuple(ranking), 1.0, 2.0, scores)


def told(*pairs: tuple[Question, ScorerAnswer], min_score: float = 0.5) -> Figures:
    questions, answers = zip(*pairs, strict=True)
    return figures(questions, answers, build_ms=3.0, min_score=min_score)


def quality(*pairs: tuple[Question, ScorerAnswer]) -> Quality:
    found = told(*[(q, a._replace(scores=None)) for q, a in pairs]).quality
    assert found is not None
    return found


@each_row(
    ("gold", "ranking", "ndcg", "recall_at_5", "recall_at_10", "mrr"),
    [
        ("a", "abc", 1.0, 1.0, 1.0, 1.0),
        ("a", "bca", 1 / log2(4), 1.0, 1.0, 1 / 3),
        ("a", "", 0.0, 0.0, 0.0, 0.0),
        ("a", "bcdefghijka", 0.0, 0.0, 0.0, 0.0),  # the eleventh does not count
        ("ab", "xayb", (1 / log2(3) + 1 / log2(5)) / (1 + 1 / log2(3)), 1.0, 1.0, 0.5),
        ("ab", "xyzuvwa", (1 / log2(8)) / (1 + 1 / log2(3)), 0.0, 0.5, 1 / 7),
        (
            "abcdefghijkl",
            "abcdefghij",
            1.0,
            5 / 12,
            10 / 12,
            1.0,
        ),  # ten of twelve is the best order
    ],
)
def test_one_request(
    gold: str, ranking: str, ndcg: float, recall_at_5: float, recall_at_10: float, mrr: float
) -> None:
    found = quality(asked(gold, ranking))
    assert found.ndcg_at_10 == pytest.approx(ndcg)
    assert found.recall_at_5 == pytest.approx(recall_at_5)
    assert found.recall_at_10 == pytest.approx(recall_at_10)
    assert found.mrr == pytest.approx(mrr)
    assert found.error is None


def test_means_and_their_standard_error() -> None:
    found = quality(asked("a", "a"), asked("a", "b"), asked("a", "a"), asked("a", "b"))
    assert found.ndcg_at_10 == pytest.approx(0.5)
    # Deviations of ±½, so the sample's variance is 4 * ¼ / 3, and the mean's a quarter of that.
    assert found.error == pytest.approx(sqrt(1 / 3 / 4))


def test_requests_without_a_tool_do_not_count_for_quality() -> None:
    assert quality(asked("a", "a"), asked("", "b")).ndcg_at_10 == 1.0
    assert told(asked("", "b", 0.1)).quality is None


def test_what_a_threshold_does() -> None:
    found = told(
        asked("a", "ab", 0.9, 0.8),
        asked("a", "ba", 0.6, 0.5),  # the right one is just in
        asked("a", "ba", 0.6, 0.4),  # the right one is lost, a wrong one stays
        asked("a", "b", 0.9),  # was never found
        asked("", "b", 0.49),
        asked("", "b", 0.6),
        asked(""),
    )
    # Best scores .9 .6 .6 .9 against .49 .6 0: of 12 pairs 10 are won, 2 are equal.
    assert found.threshold == Threshold(
        min_score=0.5, needless=3, kept_empty=2, found=3, lost=1, auc=11 / 12
    )


def test_without_one_of_the_two_kinds_there_is_no_auc() -> None:
    only_needing, only_needless = told(asked("a", "a", 0.9)), told(asked("", "a", 0.9))
    assert only_needing.threshold is not None
    assert only_needing.threshold.auc is None
    assert only_needless.threshold is not None
    assert only_needless.threshold.auc is None


def test_a_system_without_scores_has_no_threshold() -> None:
    question, answer = asked("a", "a")
    assert told((question, answer._replace(scores=None))).threshold is None


def test_times_are_nearest_ranks() -> None:
    question, answer = asked("a", "a", 0.9)
    pairs = [
        (question, answer._replace(cpu_ms=float(n), wall_ms=n + 0.5)) for n in range(20, 0, -1)
    ]
    found = told(*pairs)
    assert found.cpu_ms == Spread(10.0, 19.0)
    assert found.wall_ms == Spread(10.5, 19.5)
    assert (found.questions, found.build_ms) == (20, 3.0)


async def test_a_scorer_is_asked_through_pick_tools() -> None:
    picking = MeasuredScorer(KeywordScorer(), SHOP)
    assert await picking.build() >= 0
    found = await picking.answer("delete the files")
    assert found.ranking[0] == "delete_files"  # marked unsafe: it is ranked like any other
    assert "get_weather" not in found.ranking  # scored 0
    assert found.scores is not None
    assert len(found.scores) == len(found.ranking)
    assert 1 >= found.scores[0] >= found.scores[-1] > 0
    assert found.cpu_ms >= 0
    assert found.wall_ms > 0


GOOD = '{"query": "q", "gold": ["a"]}'


def test_questions_are_read(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(
        f'\ufeff{GOOD}\n\n{{"query": "n", "gold": [], "by": "me"}}\r\n', encoding="utf-8"
    )
    assert read_questions(file, ["a"]) == (
        Question("q", frozenset("a")),
        Question("n", frozenset()),
    )


@each_row(
    ("line", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not an object"),
        ("{}", "'query' must be a string"),
        ('{"query": " ", "gold": []}', "'query' must be a string"),
        ('{"query": "q"}', "'gold' must be a list"),
        ('{"query": "q", "gold": "a"}', "'gold' must be a list"),
        ('{"query": "q", "gold": [1]}', "'gold' must be a list"),
        ('{"query": "q", "gold": ["a", "nobody"]}', "no tool is called 'nobody'"),
    ],
)
def test_a_wrong_line_is_named(line: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(SourceError) as raised:
        read_questions(file, ["a"])
    assert str(raised.value).startswith(f"{file}: line 3")
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "no questions"), (b"\n \n", "no questions"), (b"\xff", "UTF-8"), (None, "No such file")],
)
def test_a_file_without_questions_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SourceError, match=why) as raised:
        read_questions(file, ["a"])
    assert str(file) in str(raised.value)


def test_two_tools_of_one_name_are_named() -> None:
    check_names(SHOP, "shop.json")
    with pytest.raises(SourceError, match=r"shop\.json: tools 1 and 3 are both called 'a'"):
        check_names((entry("a"), entry("b"), entry("a", "other")), "shop.json")


def test_figures_are_json() -> None:
    json.dumps(msgspec.to_builtins(told(asked("a", "a", 0.9))), allow_nan=False)
