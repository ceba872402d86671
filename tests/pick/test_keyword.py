from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pick.pick_helpers import SHOP, Entry, entry, names, scores
from rows import each_row
from samples import sample

from toolcrib.clients.local.choosing import NO_TOOL
from toolcrib.errors import PickError
from toolcrib.pick import KeywordScorer, PickOptions, Query, Score, pick_tools
from toolcrib.pick import keyword as search

SCORER = KeywordScorer()
ALL = PickOptions(max_candidates=10, allow_unsafe=True)


@each_row(
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


@each_row("query", ["", "   ", "?!", "how are you", "quantum chromodynamics", "\x00"])
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


@each_row("query", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_requests_are_only_words(query: str) -> None:
    found = await pick_tools(query, SHOP, PickOptions(min_score=0.0, allow_unsafe=True))
    assert len(found) == 3
    assert found[0].definition.name == "get_weather"
    assert all(0 <= result.score <= 1 for result in found)


@settings(max_examples=sample(60), deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60), st.text(max_size=60))
def test_any_text_gives_scores(query: str, description: str) -> None:
    tools = (entry("one", description.encode("utf-8", "replace").decode()), entry("two"))
    found = scores(KeywordScorer(), query, tools)
    assert [0 <= score <= 1 for score in found] == [True, True]


@each_row(
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


@each_row("count", [1, 2, 3, 99, 100, 101])
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


def test_a_scorer_serves_many_threads() -> None:
    scorer = KeywordScorer()
    catalogs = [SHOP, SHOP[:3], tuple(reversed(SHOP))]
    expected = [scores(KeywordScorer(), "list the files", tools) for tools in catalogs]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda i: scores(scorer, "list the files", catalogs[i % 3]), range(60))
        )
    assert found == [expected[i % 3] for i in range(60)]


def test_no_tools_no_scores() -> None:
    assert list(scores(KeywordScorer(), "weather", ())) == []


def test_hostile_definitions_are_only_words() -> None:
    nasty = 'x" OR docs MATCH "y\x00\x01[weather]'
    tools: tuple[Entry, ...] = (entry("nasty", nasty, tags=("[", "]")), entry("b", "y" * 100_000))
    found = scores(SCORER, "weather", tools)
    assert found[0] > 0
    assert SCORER.explain(Query("weather"), tools, [0])[0].reason == "description: weather"


@pytest.mark.parametrize(
    ("known", "asked"),
    [("cryptocurrency", "crypto"), ("crypto", "cryptocurrency"), ("погода", "погоды")],
)
def test_an_unknown_word_stands_for_the_nearest(known: str, asked: str) -> None:
    [other, found] = scores(SCORER, asked, (entry("a", "Other things."), entry("b", known)))
    assert found > 0.05
    assert other == 0


def test_words_side_by_side_count_more() -> None:
    apart = entry("a", "Reads a stock of market goods, with a price.")
    beside = entry("b", "Reads a stock of goods, with a market price.")
    found = scores(SCORER, "market price", (apart, beside))
    assert found[1] > found[0]
    assert scores(SCORER, "price market", (apart, beside))[1] < found[1]


def test_words_that_any_request_may_hold_count_less() -> None:
    tools = (
        entry("a", "Tells what critics suggest."),
        entry("b", "Tells what a sommelier drinks."),
    )
    found = scores(SCORER, "suggest a sommelier", tools)
    assert found[1] > found[0]


WEATHER_TALK: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = [
    ("And tomorrow?", ("What is the weather in Lisbon?",), ("get_weather",), "get_weather"),
    ("convert 5 dollars", ("What is the weather?",), ("get_weather",), "convertCurrency"),
    ("read that file", ("list the files of my folder",), ("list_files",), "read_file"),
    ("the second folder", ("list the files",), ("list_files",), "list_files"),
    ("again, in euros", ("weather?", "convert an amount of money"), (), "convertCurrency"),
]


@each_row(("text", "earlier", "used", "first"), WEATHER_TALK)
def test_the_last_turn_weighs_most(
    text: str, earlier: tuple[str, ...], used: tuple[str, ...], first: str
) -> None:
    query = Query(text, earlier, used)
    [(position, _)] = SCORER.hits(query, SHOP, 1).best(1)
    assert SHOP[position].definition.name == first


def test_used_tools_get_a_nudge_that_no_word_needs() -> None:
    twins = (
        entry("a", "Reads a gauge."),
        entry("b", "Reads a gauge."),
        entry("c", "Fills a tank."),
    )
    query = Query("the gauge", used=("b", "c", "gone"))
    found = SCORER.hits(query, twins)
    assert [position for position, _ in found.best(3)] == [1, 0, 2]
    assert SCORER.explain(query, twins, [1])[0] == Score(
        0.0,
        "description: gauge; used before",
        {"matched": {"description": ["gauge"]}, "used_before": True},
    )
    assert len(SCORER.hits(Query("how are you", used=("b",)), twins).values) == 0


def _many(count: int) -> tuple[Entry, ...]:
    """Tools of the words w0, w1, …, the first ones in most of them."""
    texts = (" ".join(f"w{i * k % (2 + i % 97)}" for k in range(1, 9)) for i in range(count))
    return tuple(entry(f"tool{i}", text) for i, text in enumerate(texts))


@each_row("limit", [1, 3, 20])
@each_row("query", ["w1 w50", "w0 w1 w2 w3 w90", "w0", "w7 w8 w9 nothing"])
def test_a_limit_gives_the_best_of_all(query: str, limit: int) -> None:
    tools = _many(600)
    found = SCORER.hits(Query(query), tools, limit)
    assert found.best(limit) == SCORER.hits(Query(query), tools).best(limit)
    assert len(found.values) < 600


def test_in_large_catalogs_the_rarer_words_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = (*_many(600), entry("rare", "w0 w1 zebra"), entry("rare_too", "zebra w2"))
    every = SCORER.hits(Query("w0 w1 w2 zebra"), tools).best(602)
    monkeypatch.setattr(search, "_READ", 1)
    monkeypatch.setattr(search, "_PART", 600)
    monkeypatch.setattr(search, "_CHOSEN", 2)
    found = SCORER.hits(Query("w0 w1 w2 zebra"), tools, 1)
    assert found.best(1) == [hit for hit in every if hit[0] in (600, 601)][:1] == every[:1]


def test_a_passed_deadline_ends_a_search() -> None:
    scores(SCORER, "weather", SHOP)
    with pytest.raises(PickError, match="time limit of the query passed"):
        SCORER.hits(Query("weather", deadline=monotonic() - 1), SHOP)


async def test_a_build_goes_on_where_the_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = _many(1_000)
    scorer = KeywordScorer()
    hurried = PickOptions(scorer=scorer, timeout_ms=0.001)
    found = await pick_tools("w50", tools, hurried)
    assert [result.provenance.timed_out for result in found] == [True] * 3
    late = Query("w50", deadline=monotonic())
    said = []
    for _ in range(40):  # each gets one step further
        with pytest.raises(PickError) as raised:
            scorer.hits(late, tools)
        said.append("of the catalog was built" in str(raised.value))
    assert said == sorted(said, reverse=True)
    assert 3 < sum(said) < 40
    assert scores(scorer, "w50", tools) == scores(KeywordScorer(), "w50", tools)


@each_row("request_", NO_TOOL[:12])
async def test_what_needs_no_tool_gets_none(request_: str) -> None:
    assert await pick_tools(request_, SHOP) == []


@pytest.mark.exhaustive
def test_the_same_input_has_one_ranking_in_every_process() -> None:
    script = (
        "from pick.pick_helpers import SHOP; from toolcrib.pick import *;"
        "hits = KeywordScorer().hits(Query('convert or read a file of the cities'), SHOP);"
        "print(hits.best(9))"
    )
    tests = str(Path(__file__).parents[1])
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join([tests, *sys.path]),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert said == {f"{SCORER.hits(Query('convert or read a file of the cities'), SHOP).best(9)}\n"}


CROWD = tuple(entry(f"{a}_files_{b}", f"{a} files, files of {b}. Call it on a file.")
              for a in ("list", "read", "get") for b in range(400))  # fmt: skip


@each_row("name", ["who_is", "getFiles", "list_files", "math.files", "files/read:1"])
@each_row("said", ["{}", "Call {} on it.", "list files, read files: `{}`!", "the zebra files ({})"])
@each_row("limit", [None, 1, 5])
def test_a_tool_asked_for_by_its_very_name_is_first(
    name: str, said: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_READ", 1)
    monkeypatch.setattr(search, "_PART", 600)
    monkeypatch.setattr(search, "_CHOSEN", 2)
    tools = (*CROWD, entry(name), entry("zebra_files", "Zebra files."))
    query = Query(said.format(name))
    hits = SCORER.hits(query, tools, limit)
    [(position, weight)] = hits.best(1)
    assert position == len(CROWD)
    assert 0.3 < hits.calibrated(weight) < 1
    assert SCORER.explain(query, tools, [position])[0].reason.startswith("named in the request")


def test_one_word_is_a_name_only_where_it_is_all() -> None:
    tools = (entry("weather_report", "The weather, weather of a city."), entry("weather"))
    assert SCORER.hits(Query("weather?"), tools).best(1)[0][0] == 1
    assert SCORER.hits(Query("the weather report"), tools).best(1)[0][0] == 0


def test_a_name_that_has_no_word_is_found_by_its_name() -> None:
    tools = (*SHOP, entry("x" * 70))
    hits = SCORER.hits(Query("x" * 70), tools)
    assert [position for position, _ in hits.best(9)] == [5]
    assert 0 < hits.calibrated(hits.values[0]) < 1


@each_row(
    "text", ["天气" * 10_000, "الطقس " * 5_000, "मौसम " * 5_000, "🌦" * 9_000, "x" * 9_000, ""]
)
def test_texts_of_one_kind(text: str) -> None:
    tools = (entry("a", text, tags=(text,)), entry("b"), entry("b", text))
    found = scores(SCORER, text, tools)
    assert all(0 <= score < 1 for score in found)
    assert found[1] == 0
    assert (found[0] > 0) == (found[2] > 0) == (text[:1] not in {"", "🌦", "x"})


@pytest.mark.parametrize("limit", [0, 1, 10, 10**9])
def test_any_limit(limit: int) -> None:
    every = SCORER.hits(Query("files of a city"), SHOP).best(limit)
    assert SCORER.hits(Query("files of a city"), SHOP, limit).best(limit) == every


def test_ties_at_a_limit_keep_registration_order() -> None:
    tools = tuple(entry(f"tool{i}", "Reads a gauge of water.") for i in range(50))
    for catalog in (tools, tools[::-1]):
        for limit in (1, 7, 50, 60):
            best = SCORER.hits(Query("water gauge"), catalog, limit).best(limit)
            assert [position for position, _ in best] == list(range(min(limit, 50)))
