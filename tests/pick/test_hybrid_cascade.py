from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, names, scores

from toolcrib.errors import PickError
from toolcrib.pick import JudgeScorer, KeywordScorer, PickOptions, Query, Score, pick_tools
from toolcrib.pick.hybrid import Cascade
from toolcrib.testing import ScriptedClient


class Seen:
    """Scores by length of name, longest best; notes what it was shown."""

    name = "seen"

    def __init__(self) -> None:
        self.tools: list[list[str]] = []

    def score(self, query: Query, tools: Sequence[Any]) -> list[Score]:
        self.tools.append([tool.definition.name for tool in tools])
        return [Score(len(tool.definition.name) / 20, "long") for tool in tools]


async def test_the_second_sees_only_what_the_first_picked() -> None:
    then = Seen()
    scorer = Cascade(KeywordScorer(), then, keep=2)
    options = PickOptions(scorer=scorer, max_candidates=5, allow_unsafe=True, min_score=0.01)
    found = await pick_tools("files of a folder, files", SHOP, options)
    assert then.tools[0] == ["list_files", "delete_files"]
    assert names(found) == ["delete_files", "list_files"]
    assert [result.score for result in found] == [12 / 20, 10 / 20]
    assert [result.reason for result in found] == ["long", "long"]
    assert found[0].provenance.scorer == "cascade"


async def test_equal_ones_keep_registration_order() -> None:
    tools = [entry(name, "reads") for name in ("bb", "aa", "cc")]
    scorer = Cascade(KeywordScorer(), Seen(), name="two")
    assert names(await pick_tools("reads", tools, PickOptions(scorer=scorer))) == ["bb", "aa", "cc"]


def test_a_tool_that_was_not_kept_is_no_hit() -> None:
    scorer = Cascade(KeywordScorer(), Seen(), keep=1)
    found = scores(scorer, "weather of a city", SHOP)
    assert [score > 0 for score in found] == [True, False, False, False, False]
    [_, why] = scorer.explain(Query("weather of a city"), SHOP, [0, 1])
    assert why.reason == "not among the best 1 of keyword"


def test_a_function_may_be_either_stage() -> None:
    scorer = Cascade(
        lambda request, tool: float(tool.get_definition().name.startswith("re")),
        lambda request, tool: 0.25,
        keep=1,
    )
    assert scores(scorer, "x", SHOP) == [0, 0, 0, 0, 0.25]


def test_a_cascade_of_a_cascade() -> None:
    inner = Cascade(KeywordScorer(), Seen(), keep=2, name="inner")
    assert scores(Cascade(inner, Seen(), keep=1), "files of a folder, files", SHOP)[3] == 12 / 20


def test_nothing_matches_nothing_comes() -> None:
    scorer = Cascade(KeywordScorer(), Seen())
    assert scores(scorer, "zzz", SHOP) == [0.0] * 5
    assert scores(scorer, "zzz", ()) == []


@pytest.mark.parametrize("keep", [0, -1])
def test_what_it_cannot_be_made_of(keep: int) -> None:
    with pytest.raises(PickError, match=f"keep must be at least 1, not {keep}"):
        Cascade(KeywordScorer(), Seen(), keep=keep)
    with pytest.raises(PickError, match="a part must be a scorer, not 5"):
        Cascade(KeywordScorer(), 5)  # type: ignore[arg-type]


async def late(request: object, tool: Any) -> float:
    assert request == "files of a folder, files"
    await asyncio.sleep(0)
    return len(tool.get_definition().name) / 20


class Late(Seen):
    """The same, and its reasons, after a while."""

    async def score(self, query: Query, tools: Sequence[Any]) -> list[Score]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().score(query, tools)


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (KeywordScorer(), late, ""),
        (KeywordScorer(), Late(), "long"),
        (Cascade(KeywordScorer(), Late(), keep=3, name="inner"), Seen(), "long"),
        (KeywordScorer(), Cascade(Late(), Late(), name="inner"), "long"),
    ],
)
async def test_either_stage_may_be_asynchronous(first: Any, then: Any, reason: str) -> None:
    query = "files of a folder, files"
    scorer = Cascade(first, then, keep=2)
    assert scorer.asynchronous
    options = PickOptions(scorer=scorer, max_candidates=5, allow_unsafe=True)
    found = await pick_tools(query, SHOP, options)
    assert [(p.definition.name, p.score, p.reason) for p in found] == [
        ("delete_files", 12 / 20, reason),
        ("list_files", 10 / 20, reason),
    ]
    with pytest.raises(PickError, match="is asynchronous: `pick_tools` awaits it"):
        scorer.hits(Query(query), SHOP)


async def test_a_judge_is_asked_about_what_the_first_picked() -> None:
    client = ScriptedClient(['{"1": 0.9, "2": 0.2}'])
    scorer = Cascade(KeywordScorer(), JudgeScorer(client), keep=2)
    options = PickOptions(scorer=scorer, max_candidates=5, allow_unsafe=True)
    found = await pick_tools("files of a folder, files", SHOP, options)
    assert [(p.definition.name, p.score) for p in found] == [
        ("list_files", 0.9),
        ("delete_files", 0.2),
    ]
    assert found[0].reason.startswith("judged by ")


async def test_a_stage_that_fails_is_named() -> None:
    async def broken(request: object, tool: Any) -> float:
        raise OSError

    for first, then in ((KeywordScorer(), broken), (broken, KeywordScorer())):
        options = PickOptions(scorer=Cascade(first, then), allow_unsafe=True)
        with pytest.raises(PickError, match="scorer 'broken' raised OSError for tool"):
            await pick_tools("files of a folder", SHOP, options)
