from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import exp
from typing import Any

import msgspec
import pytest
from pick.pick_helpers import SHOP, entry, names, scores
from rows import each_row

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick import Hits, KeywordScorer, PickOptions, Query, Score, hybrid, pick_tools
from toolcrib.pick.feedback import Feedback, WithFeedback
from toolcrib.pick.hybrid import Cascade, Hybrid

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")

ABC = tuple(entry(name) for name in "abc")


class Table:
    """A ranker by table: a tool that is not in it is no hit."""

    def __init__(self, name: str, **weights: float) -> None:
        self.name = name
        self.weights = weights

    def hits(self, query: Query, tools: Sequence[Any], limit: int | None = None) -> Hits:
        found = {i: t.definition.name for i, t in enumerate(tools)}
        at = [i for i, name in found.items() if name in self.weights]
        return Hits([self.weights[found[i]] for i in at], at, lambda weight: weight / 10)


def sums(parts: Sequence[Any], tools: Sequence[Any] = ABC) -> list[float]:
    hits = Hybrid(parts).hits(Query("q"), tools)
    return [round(float(value), 3) for value in hits.values]


@each_row(
    ("parts", "expected"),
    [
        ([(Table("x", a=6, b=3, c=0), 1)], [1.225, 0.0, -1.225]),
        ([(Table("x", a=6, b=3, c=0), 2)], [2.449, 0.0, -2.449]),
        ([(Table("x", a=6, b=3), 1)], [1.225, 0.0, -1.225]),  # c is no hit: 0
        ([(Table("x", a=3, b=-3), 1)], [1.414, -0.707, -0.707]),  # or the lowest
        ([(Table("x", a=5, b=5, c=5), 1)], [0.0, 0.0, 0.0]),
        ([(Table("x"), 1)], [0.0, 0.0, 0.0]),
        ([(Table("x", a=6, b=3, c=0), 1), (Table("y", c=60, b=30), 1)], [0.0, 0.0, 0.0]),
        ([(Table("x", a=6, b=3, c=0), 1), (Table("y", c=60, b=30), -1)], [2.449, 0.0, -2.449]),
    ],
)
def test_z_scores_are_added_up(parts: Any, expected: list[float]) -> None:
    assert sums(parts) == expected


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_the_size_of_weights_makes_no_difference(size: float) -> None:
    assert sums([(Table("x", a=6 * size, b=3 * size, c=0), 1)]) == [1.225, 0.0, -1.225]


@pytest.mark.parametrize(
    ("values", "positions"), [([1.0], None), ([1.0, 2.0], [0]), ([1.0], [3]), ([1.0], [-1])]
)
def test_weights_that_are_for_no_tool(values: list[float], positions: list[int] | None) -> None:
    class Wrong:
        name = "wrong"

        def hits(self, query: Query, tools: Sequence[Any], limit: int | None = None) -> Hits:
            return Hits(values, positions, float)

    with pytest.raises(PickError, match="scorer 'wrong' gave weights that do not fit 3 tools"):
        Hybrid([(Wrong(), 1)]).hits(Query("q"), ABC)


def test_scores_fall_from_the_best_ones_own() -> None:
    parts = [(Table("x", a=8, b=5, c=2), 3.0), (Table("y", a=4), 1.0)]
    found = scores(Hybrid(parts), "q", ABC)
    assert found[0] == pytest.approx((3 * 0.8 + 1 * 0.4) / 4)
    values = Hybrid(parts).hits(Query("q"), ABC).values
    for position in (1, 2):
        assert found[position] == pytest.approx(found[0] * exp((values[position] - values[0]) / 4))


def by_length(request: object, tool: Any) -> float:
    return len(str(request)) / 10 if tool.definition.name == "b" else 0.0


class Batch:
    name = "batch"

    def score(self, query: Query, tools: Sequence[Any]) -> list[Score]:
        return [Score(0.5 if tool.definition.name == "c" else 0.1, "because") for tool in tools]


async def test_parts_of_any_kind_and_what_each_adds() -> None:
    scorer = Hybrid([(by_length, 2.0), (Batch(), 1.0), (KeywordScorer(), 0.5)], name="mine")
    options = PickOptions(scorer=scorer, min_score=0.0)
    found = await pick_tools("hello", ABC, options)
    assert names(found) == ["b", "c", "a"]
    assert found[0].provenance.scorer == "mine"
    assert found[0].reason.startswith("by_length +2.83; batch -0.71 (because); keyword +0.00")
    parts = found[0].provenance.details
    assert parts is not None
    assert parts["parts"] == {"by_length": 2.828427, "batch": -0.707107, "keyword": 0.0}


class LateRanker:
    name = "late ranker"

    async def hits(self, query: Query, tools: Sequence[Any], limit: int | None = None) -> Hits:
        return Hits([], None, float)


class LateBatch(Batch):
    name = "late"

    def __init__(self) -> None:
        self.at_once = asyncio.Barrier(2)

    async def score(self, query: Query, tools: Sequence[Any]) -> list[Score]:  # type: ignore[override]
        await self.at_once.wait()
        return super().score(query, tools)


async def test_parts_that_are_awaited_add_what_others_would() -> None:
    late = LateBatch()

    async def by_length_late(request: object, tool: Any) -> float:
        if tool.definition.name == "a":
            await late.at_once.wait()  # the parts are asked at the same time
        return by_length(request, tool)

    by_length_late.__name__ = "by_length"
    sync = Hybrid([(by_length, 2.0), (Batch(), 1.0), (KeywordScorer(), 0.5)])
    awaited = Hybrid([(by_length_late, 2.0), (late, 1.0), (KeywordScorer(), 0.5)])
    assert (sync.asynchronous, awaited.asynchronous) == (False, True)
    options = PickOptions(scorer=sync, min_score=0.0)
    expected = await pick_tools("hello", ABC, options)
    found = await pick_tools("hello", ABC, msgspec.structs.replace(options, scorer=awaited))
    assert [(p.definition.name, p.score) for p in found] == [
        (p.definition.name, p.score) for p in expected
    ]
    assert "late -0.71 (because)" in found[0].reason
    with pytest.raises(PickError, match="is asynchronous: `pick_tools` awaits it"):
        awaited.hits(Query("hello"), ABC)


async def test_what_is_made_of_others_may_be_a_part_and_awaited() -> None:
    async def late(request: object, tool: Any) -> float:
        return 0.5 if tool.definition.name == "b" else 0.1

    inner = Cascade(KeywordScorer(), late, keep=3, name="inner")
    learned = WithFeedback(Hybrid([(inner, 1.0)], name="middle"), Feedback())
    scorer = Hybrid([(learned, 1.0), (by_length, 0.1)])
    assert scorer.asynchronous
    tools = tuple(entry(name, "hello") for name in "abc")
    found = await pick_tools("hello", tools, PickOptions(scorer=scorer, min_score=0.0))
    assert names(found)[0] == "b"


async def test_the_others_are_given_up_when_one_fails() -> None:
    given_up = asyncio.Event()

    async def broken(request: object, tool: Any) -> float:
        raise OSError

    async def endless(request: object, tool: Any) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return 0.5

    scorer = Hybrid([(endless, 1.0), (broken, 1.0)])
    with pytest.raises(PickError, match="scorer 'broken' raised OSError"):
        await pick_tools("hello", ABC, PickOptions(scorer=scorer))
    await asyncio.wait_for(given_up.wait(), 5)


@each_row(
    ("parts", "said"),
    [
        ([], "needs parts with finite weights"),
        ([(by_length, 0.0)], "needs parts with finite weights"),
        ([(by_length, -1.0)], "needs parts with finite weights"),
        ([(by_length, float("nan"))], "needs parts with finite weights"),
        ([(by_length, float("inf"))], "needs parts with finite weights"),
        ([(by_length, 1), (by_length, 2)], "two parts of one name: by_length, by_length"),
        ([(LateRanker(), 1)], "'late ranker': `hits` is not async"),
        ([("keyword", 1)], "a part must be a scorer, not 'keyword'"),
        ([(KeywordScorer, 1)], "a part must be a scorer"),
    ],
)
def test_what_cannot_be_added_up(parts: Any, said: str) -> None:
    with pytest.raises(PickError, match=said):
        Hybrid(parts)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (float("nan"), "'part' gave nan for tool 'a', not a score from 0 to 1"),
        (1.5, "'part' gave 1.5 for tool 'a', not a score from 0 to 1"),
        ("high", "'part' gave a str for tool 'a', not a score from 0 to 1"),
    ],
)
async def test_what_a_part_may_not_give(answer: Any, said: str) -> None:
    def part(request: object, tool: object) -> Any:
        return answer

    with pytest.raises(PickError, match=said):
        await pick_tools("q", ABC, PickOptions(scorer=Hybrid([(part, 1.0)])))
    with pytest.raises(PickError, match="'table' gave a weight that is not a finite number"):
        Hybrid([(Table("table", a=float("nan")), 1)]).hits(Query("q"), ABC)


async def test_a_part_may_give_any_real_number() -> None:
    def part(request: object, tool: Any) -> Any:
        return np.float32(tool.get_definition().name == "b")

    best = await pick_tools("q", ABC, PickOptions(scorer=Hybrid([(part, 1.0)])))
    assert best[0].definition.name == "b"


def test_numpy_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"Hybrid needs .*'\.\[pick\]'"):
        Hybrid([(by_length, 1.0)])


def test_no_tools_no_hits() -> None:
    assert scores(Hybrid([(by_length, 1.0)]), "x", ()) == []


def test_it_serves_many_threads() -> None:
    scorer = Hybrid([(KeywordScorer(), 1.0), (by_length, 1.0)])
    expected = scores(scorer, "list the files", SHOP)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: scores(scorer, "list the files", list(SHOP)), range(20)))
    assert found == [expected] * 20
