from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pick.pick_helpers import SHOP, Entry, entry, names
from rows import each_row

from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.errors import PickError
from toolcrib.pick import (
    Feedback,
    Hits,
    KeywordScorer,
    PickOptions,
    Query,
    WithFeedback,
    explain_pick,
    pick_tools,
)
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import Message
from toolcrib.values.record import RecordStatus, ToolInvocationRecord

WEATHER, CURRENCY, FILES, _, READ = SHOP
UMBRELLA = "Will I need an umbrella tomorrow?"


def record(tool: Entry, status: RecordStatus = "completed") -> ToolInvocationRecord:
    definition = tool.definition
    return ToolInvocationRecord(
        id="call_0",
        name=definition.name,
        status=status,
        started_at=0.0,
        definition_digest=definition.digest,
    )


def learned(*pairs: tuple[object, Entry], size: int = 100) -> Feedback:
    feedback = Feedback(size=size)
    for request, tool in pairs:
        feedback.learn(request, [record(tool)])
    return feedback


async def picked(request: str, feedback: Feedback, **options: Any) -> list[str]:
    scorer = WithFeedback(KeywordScorer(), feedback)
    return names(await pick_tools(request, SHOP, PickOptions(scorer=scorer, **options)))


# --- what is learned ------------------------------------------------------------------------------


async def test_a_tool_is_found_by_requests_like_those_that_it_served() -> None:
    assert await picked(UMBRELLA, Feedback()) == []
    feedback = learned((UMBRELLA, WEATHER), ("Pay the invoice", CURRENCY))
    assert await picked(UMBRELLA, feedback) == ["get_weather"]
    assert await picked("An umbrella for tomorrow, perhaps?", feedback) == ["get_weather"]
    assert await picked("Something else", feedback) == []


@pytest.mark.parametrize("status", ["started", "failed", "waiting"])
def test_only_what_completed_is_learned(status: RecordStatus) -> None:
    feedback = Feedback()
    feedback.learn(UMBRELLA, [record(WEATHER, status)])
    feedback.learn(UMBRELLA, [])
    bare = ToolInvocationRecord(id="call_0", name="x", status="completed", started_at=0.0)
    feedback.learn(UMBRELLA, [bare])
    feedback.learn("the of and", [record(WEATHER)])
    assert len(feedback) == 0
    assert feedback.nudges(UMBRELLA) == {}


async def test_records_may_come_from_the_audit_log(tmp_path: Path) -> None:
    feedback = Feedback()
    async with AuditLog(f"sqlite:///{tmp_path / 'log.db'}") as log:
        await log.write(msgspec.structs.replace(record(WEATHER), run_id="run_1"))
        await log.write(msgspec.structs.replace(record(READ), run_id="run_2"))
        entries = await log.entries(AuditFilter(run_id="run_1"))
    feedback.learn(UMBRELLA, [entry.record for entry in entries])
    assert feedback.to_json() == learned((UMBRELLA, WEATHER)).to_json()


def test_of_a_conversation_the_last_turn_is_learned() -> None:
    feedback = Feedback()
    feedback.learn([Message.user("Hello"), Message.user(UMBRELLA)], [record(WEATHER)])
    assert feedback.to_json() == learned((UMBRELLA, WEATHER)).to_json()


def test_a_nudge_has_the_documented_value() -> None:
    digest = WEATHER.definition.digest
    feedback = learned((UMBRELLA, WEATHER))
    assert feedback.nudges(UMBRELLA) == {digest: pytest.approx(0.6)}
    half = learned(("alpha beta", WEATHER), ("gamma delta", READ))
    # All words have one idf, so the cosine of one in common of two is 1/2.
    assert half.nudges("alpha gamma") == {
        digest: pytest.approx(0.6 * (1 - 0.75)),
        READ.definition.digest: pytest.approx(0.6 * (1 - 0.75)),
    }
    twice = learned(("alpha beta", WEATHER), ("alpha beta", WEATHER), ("gamma delta", READ))
    assert twice.nudges("alpha beta")[digest] == pytest.approx(0.6)


def test_the_ten_nearest_count_and_of_equal_ones_the_latest() -> None:
    feedback = learned(*[("alpha beta", WEATHER)] * 5, *[("alpha beta", READ)] * 10)
    assert list(feedback.nudges("alpha beta")) == [READ.definition.digest]


def test_several_tools_may_serve_one_request() -> None:
    feedback = Feedback()
    feedback.learn("alpha", [record(WEATHER), record(READ), record(WEATHER)])
    assert feedback.nudges("alpha").keys() == {WEATHER.definition.digest, READ.definition.digest}


def test_another_definition_of_the_same_name_has_to_earn_it_anew() -> None:
    feedback = learned((UMBRELLA, WEATHER))
    other = entry("get_weather", "Something else entirely.")
    hits = WithFeedback(KeywordScorer(), feedback).hits(Query(UMBRELLA), (other,))
    assert list(hits.values) == []


# --- what is kept ---------------------------------------------------------------------------------


def test_the_oldest_are_forgotten() -> None:
    feedback = learned(*((f"word{i} common", WEATHER) for i in range(10)), size=3)
    assert len(feedback) == 3
    assert feedback.nudges("word6") == {}
    assert feedback.nudges("word7") != {}
    words = (*(f"word{i}" for i in range(10)), "common")
    assert [word for word in words if feedback.nudges(word)] == [*words[7:10], "common"]


def test_words_are_kept_and_no_text() -> None:
    feedback = learned(("Pay Zoe's invoice, please: 12 EUR", CURRENCY))
    saved = json.dumps(feedback.to_json())
    assert "Zoe's" not in saved
    [kept] = json.loads(saved)["served"]
    assert kept == {
        "words": ["12", "eur", "invoice", "pay", "zoe"],
        "tools": [CURRENCY.definition.digest],
    }


def test_a_long_request_is_kept_in_part() -> None:
    saved: Any = learned((" ".join(f"w{i}" for i in range(500)), READ)).to_json()
    assert [len(kept["words"]) for kept in saved["served"]] == [64]


def test_it_is_saved_and_loaded() -> None:
    feedback = learned((UMBRELLA, WEATHER), ("Pay the invoice", CURRENCY))
    loaded = Feedback.from_json(json.loads(json.dumps(feedback.to_json())))
    assert loaded.to_json() == feedback.to_json()
    assert loaded.nudges("invoice umbrella") == feedback.nudges("invoice umbrella")
    assert len(Feedback.from_json(feedback.to_json(), size=1)) == 1


def test_a_word_that_was_saved_twice_counts_once() -> None:
    """As in a file that somebody edited."""
    saved: dict[str, Any] = {
        "served": [{"words": ["rain", "rain"], "tools": [at]} for at in ("a", "b")]
    }
    loaded = Feedback.from_json(saved, size=1)
    assert json.loads(json.dumps(loaded.to_json())) == {
        "served": [{"words": ["rain"], "tools": ["b"]}]
    }


@each_row(
    "value",
    [
        None,
        [],
        {},
        {"served": 3},
        {"served": [{"words": ["a"]}]},
        {"served": [{"words": "a", "tools": ["b"]}]},
        {"served": [{"words": [1], "tools": ["b"]}]},
        {"served": [], "more": 1},
    ],
)
def test_what_was_not_saved_by_us_is_refused(value: Any) -> None:
    with pytest.raises(PickError, match="the saved text is not feedback"):
        Feedback.from_json(value)


def test_size_is_checked() -> None:
    with pytest.raises(PickError, match="size must be 1 or more, not 0"):
        Feedback(size=0)


# --- on top of a scorer ---------------------------------------------------------------------------


class Fixed:
    """A ranker of given scores, for the positions that it names."""

    name = "fixed"

    def __init__(self, **scores: float) -> None:
        self.scores = scores
        self.limits: list[int | None] = []

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        self.limits.append(limit)
        rows = [(i, t.get_definition().name) for i, t in enumerate(tools)]
        found = [(i, self.scores[name]) for i, name in rows if name in self.scores]
        return Hits([value * 2 for _, value in found], [i for i, _ in found], lambda v: v / 2)


async def test_a_nudge_is_a_part_of_what_is_missing() -> None:
    scorer = WithFeedback(
        Fixed(get_weather=0.5, read_file=0.7), learned((UMBRELLA, WEATHER), (UMBRELLA, FILES))
    )
    found = await pick_tools(UMBRELLA, SHOP, PickOptions(scorer=scorer))
    assert [(r.definition.name, r.score) for r in found] == [
        ("get_weather", pytest.approx(0.5 + 0.5 * 0.6)),
        ("read_file", 0.7),
        ("list_files", pytest.approx(0.6)),
    ]
    assert {r.provenance.scorer for r in found} == {"fixed+feedback"}
    assert [r.reason for r in found] == [
        "served requests like this one (+0.60)",
        "",
        "served requests like this one (+0.60)",
    ]
    assert found[0].provenance.details == {"parts": {"feedback": 0.6}}


async def test_reasons_of_the_scorer_stay() -> None:
    feedback = learned(("weather", WEATHER))
    options = PickOptions(scorer=WithFeedback(KeywordScorer(), feedback))
    [best, *_] = (await explain_pick("weather", SHOP, options)).scored
    assert best.reason.startswith("name: weather; description: weather")
    assert best.reason.endswith("; served requests like this one (+0.60)")


def test_where_nothing_is_like_it_the_scorer_is_asked_as_ever() -> None:
    inner = Fixed(read_file=0.7)
    hits = WithFeedback(inner, learned((UMBRELLA, WEATHER))).hits(Query("read"), SHOP, 3)
    assert hits.best(3) == [(4, 1.4)]
    WithFeedback(inner, learned((UMBRELLA, WEATHER))).hits(Query(UMBRELLA), SHOP, 3)
    WithFeedback(inner, learned((UMBRELLA, WEATHER))).hits(Query(UMBRELLA), SHOP)
    assert inner.limits == [3, 100, None]


def test_a_function_is_no_ranker() -> None:
    def scorer(*_: object) -> float:
        return 1.0

    with pytest.raises(PickError, match=r"feedback needs a Ranker .*, not 'scorer'"):
        WithFeedback(scorer, Feedback())  # type: ignore[arg-type]
