from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pick.pick_helpers import SHOP, Entry, entry, names, scores

from toolcrib.errors import PickError
from toolcrib.pick import KeywordScorer, PickOptions, Query, keyword, pick_tools

SCORER = KeywordScorer()
ALL = PickOptions(max_candidates=10, allow_unsafe=True)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("What is the weather in Lisbon?", "get_weather"),
        ("the towns", "get_weather"),  # a stem, in a parameter's description
        ("METEOROLOGY", "get_weather"),  # a tag
        ("converting 5 euros", "convertCurrency"),  # an enum's value
        ("target unit", "convertCurrency"),  # a parameter's name, split
        ("convertcurrency", "convertCurrency"),  # a name written as one word
        ("path", "read_file"),
        ({"task": "listing a folder"}, "list_files"),
        ("delete it", "delete_files"),
    ],
)
async def test_finds(query: object, first: str) -> None:
    assert names(await pick_tools(query, SHOP, ALL))[0] == first


@pytest.mark.parametrize(
    "query", ["", "   ", "?!", "how are you", "quantum chromodynamics", "\x00"]
)
async def test_no_word_in_common_is_no_result(query: str) -> None:
    assert await pick_tools(query, SHOP, ALL) == []


HOSTILE = [
    '"',
    '" OR "',
    "weather AND NOT weather",
    "name:weather",
    "{name description}: weather",
    "weather*",
    "^weather",
    "NEAR(weather city, 2)",
    "weather'; DROP TABLE docs; --",
    "(((((((( weather",
    "weather\x00weather\ud800\udfff\x1b[31m",
    "weather " * 150_000,
    " ".join(f"word{i}" for i in range(200_000)) + " weather",
    "\u202eweather\u0300\u200d",
    "天" * 1_000_000 + " weather",
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_requests_are_only_words(query: str) -> None:
    found = await pick_tools(query, SHOP, PickOptions(min_score=0.0, allow_unsafe=True))
    assert len(found) == 3
    assert found[0].definition.name == "get_weather"
    assert all(0 <= result.score <= 1 for result in found)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60), st.text(max_size=60))
def test_any_text_gives_scores(query: str, description: str) -> None:
    tools = (entry("one", description.encode("utf-8", "replace").decode()), entry("two"))
    found = scores(KeywordScorer(), query, tools)
    assert [0 <= score <= 1 for score in found] == [True, True]


@pytest.mark.parametrize(
    ("description", "query"),
    [
        ("東京の天気予報", "天気を教えて"),
        ("서울의 날씨 예보", "날씨"),
        ("मौसम की जानकारी", "आज का मौसम"),
        ("Прогноз погоды", "какой прогноз"),
        ("نشرة الطقس", "الطقس"),
        ("Wettervorhersage für Zürich", "ZURICH"),
        ("Ｗｅａｔｈｅｒ", "weather"),
    ],
)
def test_other_scripts(description: str, query: str) -> None:
    found = scores(SCORER, query, (entry("other", "Something else."), entry("it", description)))
    assert found[0] == 0
    assert found[1] > 0.05


async def test_a_request_of_stop_words_can_still_name_a_tool() -> None:
    found = await pick_tools("who is", [*SHOP, entry("who_is", "Looks up a domain.")])
    assert names(found) == ["who_is"]


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101])
def test_catalogs_of_any_size_have_useful_scores(count: int) -> None:
    others = tuple(entry(f"tool{i}", f"Does job{i} with a file.") for i in range(count - 1))
    found = scores(SCORER, "the weather file", (entry("weather_file", "A file of it."), *others))
    assert found[0] > 0.5
    assert all(score < found[0] for score in found[1:])


def test_a_word_that_half_a_small_catalog_has_still_counts() -> None:
    found = scores(SCORER, "which files are there", SHOP)
    assert [score > 0.05 for score in found] == [False, False, True, True, True]


def test_every_score_has_its_own_rank_even_near_1() -> None:
    text = " ".join(f"alpha{i} beta{i}" for i in range(40))
    near = (entry("a", text + " gamma"), entry("b", text + " gamma delta"), entry("c", text))
    found = scores(SCORER, text + " gamma delta", near)
    assert found[1] > found[0] > found[2] > 0.5
    assert max(found) < 1


def test_the_rarest_words_of_a_long_request_count() -> None:
    catalog = tuple(entry(f"tool{i}", f"Common{i % 40} and common{i % 41}.") for i in range(200))
    query = " ".join(f"common{i}" for i in range(41)) + " " + "filler " * 30 + "unique zebra"
    found = scores(SCORER, query, (*catalog, entry("zoo", "A unique zebra.")))
    assert max(range(201), key=lambda i: found[i]) == 200


async def test_reasons_name_words_and_fields() -> None:
    [found] = await pick_tools("weather forecasts for cities", SHOP)
    assert found.reason == ("name: weather; description: weather, city; parameters: city")
    assert found.provenance.scorer == "keyword"
    assert found.provenance.details == {
        "matched": {"name": ["weather"], "description": ["weather", "city"], "parameters": ["city"]}
    }


async def test_a_tool_that_matched_nothing_says_so() -> None:
    found = await pick_tools("weather", SHOP, PickOptions(min_score=0.0, max_candidates=2))
    assert [(result.definition.name, result.reason) for result in found] == [
        ("get_weather", "name: weather; description: weather"),
        ("convertCurrency", "no word in common"),
    ]


def test_scores_are_the_same_in_every_order_and_index() -> None:
    query = "convert or read the files of a city"
    one = {t.definition.name: s for t, s in zip(SHOP, scores(SCORER, query, SHOP), strict=True)}
    turned = tuple(reversed(SHOP))
    other = scores(KeywordScorer(), query, turned)
    assert {t.definition.name: s for t, s in zip(turned, other, strict=True)} == one


async def test_ties_keep_registration_order() -> None:
    twins = [entry(f"twin{letter}", "Reads a gauge.") for letter in "cabd"]
    found = await pick_tools("gauge", twins, PickOptions(max_candidates=4))
    assert names(found) == ["twinc", "twina", "twinb", "twind"]
    assert len({result.score for result in found}) == 1


def test_an_index_is_built_once_per_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    real = keyword._rows

    def counted(definitions: list[object]) -> object:
        built.append(len(definitions))
        return real(definitions)  # type: ignore[arg-type]

    monkeypatch.setattr(keyword, "_rows", counted)
    scorer = KeywordScorer()
    for tools in (SHOP, list(SHOP), SHOP[:2], SHOP):
        scores(scorer, "weather", tools)
    assert built == [5, 2]
    changed = (entry("get_weather", "Another text."), *SHOP[1:])
    scores(scorer, "weather", changed)
    assert built == [5, 2, 5]


def test_a_scorer_serves_many_threads() -> None:
    scorer = KeywordScorer()
    catalogs = [SHOP, SHOP[:3], tuple(reversed(SHOP))]
    expected = [scores(KeywordScorer(), "list the files", tools) for tools in catalogs]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda i: scores(scorer, "list the files", catalogs[i % 3]), range(60))
        )
    assert found == [expected[i % 3] for i in range(60)]


def test_sqlite_without_fts5_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyword, "_SCHEMA", "CREATE VIRTUAL TABLE docs USING fts9(name)")
    with pytest.raises(PickError, match="needs SQLite with FTS5"):
        scores(KeywordScorer(), "x", SHOP)


def test_no_tools_no_scores() -> None:
    assert list(scores(KeywordScorer(), "weather", ())) == []


def test_hostile_definitions_are_only_words() -> None:
    nasty = 'x" OR docs MATCH "y\x00\x01[weather]'
    tools: tuple[Entry, ...] = (entry("nasty", nasty, tags=("[", "]")), entry("b", "y" * 100_000))
    found = scores(SCORER, "weather", tools)
    assert found[0] > 0
    assert SCORER.explain(Query("weather"), tools, [0])[0].reason == "description: weather"
