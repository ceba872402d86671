from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, names
from rows import each_row

from toolcrib.errors import PickError
from toolcrib.pick import (
    Hits,
    KeywordScorer,
    PickOptions,
    PickReport,
    Query,
    Score,
    ScoredTool,
    explain_pick,
    pick_tools,
)
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import Message


class Parts:
    """A ranker that adds two parts up, and writes down how it was asked."""

    name = "both"

    def __init__(self) -> None:
        self.limits: list[int | None] = []
        self.explained: list[int] = []

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        self.limits.append(limit)
        return Hits([1 / (i + 2) for i in range(len(tools))], None, float)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        self.explained.append(len(picked))
        return [
            Score(0.0, f"because {i}", {"parts": {"keyword": 0.25, "words": i, "odd": "x"}})
            for i in picked
        ]


async def explained(request: object = "read the files", **options: Any) -> PickReport:
    return await explain_pick(request, SHOP, PickOptions(**options))


SCORERS: list[Any] = [
    None,
    "keyword",
    KeywordScorer(),
    Parts(),
    lambda _, tool: len(tool.definition.name) / 100,
]


@each_row("scorer", SCORERS)
@each_row("more", [{}, {"max_candidates": 1}, {"min_score": 0.0}, {"min_score": 0.3}])
async def test_a_report_has_the_pick(scorer: Any, more: dict[str, Any]) -> None:
    options = PickOptions(scorer=scorer, **more)
    report = await explain_pick("read the files", SHOP, options)
    assert list(report.results) == await pick_tools("read the files", SHOP, options)
    assert report.timed_out is False


async def test_every_tool_is_in_it_once() -> None:
    report = await explained()
    scored, excluded = names_of(report)
    assert sorted(scored + excluded) == sorted(tool.definition.name for tool in SHOP)
    assert excluded == ["delete_files"]
    assert [tool.score for tool in report.scored] == sorted(
        (tool.score for tool in report.scored), reverse=True
    )
    assert report.scorer == "keyword"
    assert report.elapsed_ms > 0


def names_of(report: PickReport) -> tuple[list[str], list[str]]:
    return [tool.name for tool in report.scored], [out.tool for out in report.excluded]


async def test_it_explains_where_nothing_was_found() -> None:
    report = await explained("zzz")
    assert report.results == ()
    assert [(tool.score, tool.reason) for tool in report.scored] == [(0.0, "no word in common")] * 4


async def test_parts_are_named() -> None:
    report = await explained(scorer=Parts())
    assert report.scored[1].parts == {"keyword": 0.25, "words": 1.0}
    assert report.scored[1].reason == "because 1"
    assert (await explained()).scored[0].parts == {}


def test_parts_are_numbers_that_can_be_shown() -> None:
    odd: dict[str, Any] = {
        "text": "x",
        "huge": 10**400,
        "none": float("nan"),
        "much": float("inf"),
        "one": 1,
    }
    assert ScoredTool("a", 0.5, "", {"parts": odd}).parts == {"one": 1.0}
    assert ScoredTool("a", 0.5, "", {"parts": [1]}).parts == {}


async def test_only_the_best_get_reasons_that_cost_and_pruning_stays_on() -> None:
    many = [entry(f"tool_{i}") for i in range(100)]
    scorer = Parts()
    report = await explain_pick("x", many, PickOptions(scorer=scorer))
    assert (scorer.limits, scorer.explained) == ([3, 20], [3, 20])
    assert [bool(tool.reason) for tool in report.scored] == [True] * 20 + [False] * 80
    await explain_pick("x", many, PickOptions(scorer=scorer, max_candidates=30))
    assert (scorer.limits[2:], scorer.explained[2:]) == ([30, 30], [19, 30])  # 19 score enough


async def test_who_scores_all_tools_anyway_is_asked_once() -> None:
    asked: list[str] = []

    def scorer(_: object, tool: HasDefinition) -> float:
        asked.append(tool.get_definition().name)
        return 0.5

    report = await explained(scorer=scorer, max_candidates=1)
    assert len(asked) == len(set(asked)) == 4
    assert (len(report.results), len(report.scored)) == (1, 4)


async def test_scores_beyond_the_pick_have_no_time_limit() -> None:
    deadlines: list[float] = []

    class Timed(Parts):
        def hits(
            self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None
        ) -> Hits:
            deadlines.append(query.deadline)
            return super().hits(query, tools, limit)

    await explained(scorer=Timed(), timeout_ms=60_000)
    assert deadlines[0] < deadlines[1] == inf


async def test_what_was_read_out_of_a_conversation() -> None:
    report = await explained([Message.user("Hello"), Message.user("Read a file")])
    assert (report.query.text, report.query.earlier) == ("Read a file", ("Hello",))


async def _never(*_: object) -> float:
    await asyncio.Event().wait()
    return 1.0


async def test_a_time_out_is_told() -> None:
    report = await explained(scorer=_never, timeout_ms=1, max_candidates=2)
    assert report.timed_out
    assert names(report.results) == ["get_weather", "convertCurrency"]
    assert report.scored == ()
    assert "no score in time: picked in registration order: get_weather, conv" in report.text()


async def test_no_tools_and_errors() -> None:
    report = await explain_pick("x", [])
    assert (report.results, report.scored, report.excluded) == ((), (), ())
    assert "0 scored, 0 left out" in report.text()
    with pytest.raises(PickError, match="raised ValueError"):
        await explained(scorer=lambda *_: int("x"))


async def test_as_json() -> None:
    report = await explained("weather", scorer=Parts(), max_candidates=1)
    value = json.loads(json.dumps(report.to_json()))
    assert value["query"] == {"text": "weather", "earlier": [], "used": []}
    assert (value["scorer"], value["min_score"], value["timed_out"]) == ("both", 0.05, False)
    assert value["picked"] == ["get_weather"]
    assert value["scored"][0] == {
        "name": "get_weather",
        "score": 0.5,
        "reason": "because 0",
        "details": {"parts": {"keyword": 0.25, "words": 0, "odd": "x"}},
    }
    assert value["excluded"] == [
        {"name": "delete_files", "reason": "it is marked unsafe and allow_unsafe is off"}
    ]


async def test_as_text() -> None:
    report = await explained([Message.user("Hello"), Message.user("weather")], scorer=Parts())
    lines = report.text().split("\n")
    assert lines[:2] == ["request: weather", "earlier: Hello"]
    assert lines[2].startswith("scorer: both; ")
    assert lines[2].endswith(" ms; 4 scored, 1 left out")
    assert lines[3:] == [
        "",
        "   score  tool             parts                       why",
        "*  0.500  get_weather      keyword 0.250, words 0.000  because 0",
        "*  0.333  convertCurrency  keyword 0.250, words 1.000  because 1",
        "*  0.250  list_files       keyword 0.250, words 2.000  because 2",
        "   0.200  read_file        keyword 0.250, words 3.000  because 3",
        "* picked: 3, with a score of at least 0.05",
        "",
        "left out",
        "  delete_files  it is marked unsafe and allow_unsafe is off",
    ]


async def test_of_many_the_best_twenty_are_shown_and_the_rest_counted() -> None:
    many = [*(entry(f"tool_{i}") for i in range(1_500)), *[entry("bad", safe=False)] * 30]
    text = (await explain_pick("x", many, PickOptions(scorer=Parts()))).text()
    assert "tool_19 " in text
    assert "tool_20 " not in text
    assert "\nand 1,480 more\n" in text
    assert text.endswith("\nand 10 more")
    assert len(text.split("\n")) < 60


async def test_no_text_from_outside_takes_a_line() -> None:
    tools = [entry("a\nb\r\n* 1.000 fake", safe=False), entry("c\u2028d")]
    text = (await explain_pick("x\n* y", tools, PickOptions(scorer=lambda *_: 1.0))).text()
    assert len(text.splitlines()) == 9
    assert (await explain_pick("long " * 1_000, tools)).text().split("\n")[0].endswith("…")
