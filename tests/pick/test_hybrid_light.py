from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, scores
from rows import each_row

from toolcrib.pick import EmbeddingScorer, KeywordScorer, PickOptions, Query, pick_tools
from toolcrib.pick.hybrid import Light, logistic

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
pytest.importorskip("tokenizers", reason="the extra 'pick' is not installed")

LIGHT = Light()


def test_the_weight_is_bm25_and_35_times_the_cosine() -> None:
    query = Query("read the weather")
    words = KeywordScorer().hits(query, SHOP, None)
    by_word = dict(zip(words.positions or (), words.values, strict=True))
    near = EmbeddingScorer().hits(query, SHOP, None).values
    found = LIGHT.hits(query, SHOP, 3)
    assert found.positions is None
    expected = [by_word.get(i, 0.0) + 35 * float(near[i]) for i in range(len(SHOP))]
    assert list(found.values) == pytest.approx(expected)
    assert 0 in by_word


async def test_a_reason_tells_what_each_part_added() -> None:
    [found] = await pick_tools(
        "What is the weather?",
        SHOP,
        PickOptions(scorer=LIGHT, max_candidates=1, allow_unsafe=True),
    )
    assert found.definition.name == "get_weather"
    assert found.provenance.scorer == "light"
    parts: Any = (found.provenance.details or {})["parts"]
    assert set(parts) == {"keyword", "embedding"}
    weight = LIGHT.hits(Query("What is the weather?"), SHOP, None).best(1)[0][1]
    assert sum(parts.values()) == pytest.approx(weight, abs=1e-5)
    assert "name: weather" in found.reason
    assert "near its description" in found.reason


def test_meaning_finds_what_words_cannot() -> None:
    assert LIGHT.hits(Query("is it raining in Bergen"), SHOP, 1).best(1)[0][0] == 0


@pytest.mark.parametrize(("tools", "half"), [(1, 10 + 4 * log(100)), (1_000, 10 + 4 * log(1_000))])
def test_scores_are_logistic(tools: int, half: float) -> None:
    score = logistic(10.0, 4.0, 7.5, tools)
    assert score(half) == 0.5
    assert score(half + 7.5) == pytest.approx(exp(1) / (1 + exp(1)))
    assert score(half - 7.5) == pytest.approx(1 / (1 + exp(1)))
    assert (score(-1e9), score(1e9)) == (0.0, 1.0)


def many(count: int) -> tuple[Any, ...]:
    """Tools of two words each, all pairs different."""
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnprst"]
    pairs = [(x, y) for x in words for y in words[:100]]
    return tuple(entry(f"{x}_{y}", f"Does {x} with {y}.") for x, y in pairs[:count])


@pytest.mark.exhaustive
def test_of_a_large_catalog_the_best_are_what_they_are_among_all() -> None:
    tools = (*many(9_000), *SHOP)
    for text in ("the weather in a city", "bal_bel", "how do I convert an amount of money"):
        query = Query(text)
        some, all_ = LIGHT.hits(query, tools, 3), LIGHT.hits(query, tools, None)
        assert some.positions is not None
        assert len(some.positions) < 400
        assert some.best(1)[0][0] == all_.best(1)[0][0]
        assert some.best(1)[0][1] == pytest.approx(all_.best(1)[0][1])
        position = some.best(1)[0][0]
        [why] = Light().explain(query, tools, [position])
        parts: Any = (why.details or {})["parts"]
        assert sum(parts.values()) == pytest.approx(some.best(1)[0][1], abs=1e-3)


def test_a_catalog_that_changed_is_seen() -> None:
    for tools in (SHOP[1:], SHOP, SHOP[2:], list(SHOP)):
        found = scores(LIGHT, "weather of a city", tools)
        assert found == scores(Light(), "weather of a city", tools)


@each_row("query", ["", "\x00", "\ud800", '" OR NEAR(', "天" * 100_000, " " * 99_999])
async def test_hostile_requests_have_a_score(query: str) -> None:
    options = PickOptions(scorer=LIGHT, min_score=0.0, allow_unsafe=True, max_candidates=5)
    found = await pick_tools(query, SHOP, options)
    assert len(found) == 5
    assert all(0 <= result.score <= 1 for result in found)


async def test_ties_keep_registration_order() -> None:
    twins = [entry("z", "Reads a gauge.") for _ in range(3)]
    found = await pick_tools("gauge", twins, PickOptions(scorer=LIGHT))
    assert [result.tool is twin for result, twin in zip(found, twins, strict=True)] == [True] * 3


def test_it_serves_many_threads() -> None:
    scorer, asked = Light(), ["list the files", "weather", "convert money"] * 10
    expected = [scores(LIGHT, text, SHOP) for text in asked]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda text: scores(scorer, text, SHOP), asked)) == expected


def test_no_tools_no_hits() -> None:
    assert scores(LIGHT, "x", ()) == []


async def test_tools_used_before_and_earlier_turns_count() -> None:
    twins = (entry("one", "Reads a gauge."), entry("two", "Reads a gauge."), *SHOP)
    used = LIGHT.hits(Query("the gauge", used=("two",)), twins, 2).best(2)
    assert [position for position, _ in used] == [1, 0]
    plain = LIGHT.hits(Query("and tomorrow?"), SHOP, None).values[0]
    after = LIGHT.hits(Query("and tomorrow?", earlier=("weather in Oslo",)), SHOP, None).values[0]
    assert after > plain


@pytest.mark.exhaustive  # likewise
def test_reasons_may_be_asked_for_any_tools_of_a_large_catalog() -> None:
    tools, query = (*SHOP, *many(9_000)), Query("the weather in a city")
    everything = Light().hits(query, tools, None).values
    positions = [8_000, 0, 4_321]
    for scorer in (Light(), LIGHT):
        scorer.hits(query, tools, 3)
        reasons: Any = scorer.explain(query, tools, positions)
        for position, why in zip(positions, reasons, strict=True):
            assert sum(why.details["parts"].values()) == pytest.approx(
                everything[position], abs=1e-4
            )


async def test_a_deadline_stops_the_build() -> None:
    options = PickOptions(scorer=Light(), timeout_ms=1)
    found = await pick_tools("weather", many(3_000), options)
    assert found
    assert found[0].provenance.timed_out


@pytest.mark.exhaustive  # a large catalog
def test_of_a_large_catalog_meaning_alone_is_found_whoevers_vectors_they_are() -> None:
    class Scattered:
        """Vectors of 768 dimensions, none of which means more than another."""

        def embed(self, texts: Any) -> Any:
            wanted = np.random.default_rng(0).standard_normal(768)
            rows = [
                np.random.default_rng(sum(t.encode()) * len(t)).standard_normal(768) for t in texts
            ]
            near = [0.7 if "bal_bel" in t.replace(" ", "_") or "spin" in t else 0 for t in texts]
            return np.array([(1 - n) * row + n * wanted for n, row in zip(near, rows, strict=True)])

    tools, query = many(9_000), Query("spin the wheel, which does it with anything")
    some, all_ = (Light(Scattered()).hits(query, tools, limit) for limit in (1, None))
    assert tools[all_.best(1)[0][0]].definition.name == "bal_bel"
    assert some.best(1)[0][0] == all_.best(1)[0][0]
