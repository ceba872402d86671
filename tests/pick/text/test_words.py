from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pick.pick_helpers import entry

from toolcrib.pick.text.words import MAX_CHARS, clip, fields, parts, raw_words, spaced_name, words
from toolcrib.values.definition import ToolDefinition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("What is the weather in Lisbon?", ["weather", "lisbon"]),
        ("snake_case and kebab-case", ["snake", "case", "kebab", "case"]),
        ("getUserByID", ["user", "id", "getuserbyid"]),
        ("parseHTTPResponse", ["parse", "http", "response", "parsehttpresponse"]),
        ("sha256 utf8", ["sha256", "utf8"]),
        ("23*17+5", ["23", "17", "5"]),
        ("ＦＵＬＬ width ﬁle", ["full", "width", "file"]),
        ("Straße naïve", ["strasse", "naïve"]),
        ("東京の天気", ["東京", "京の", "の天", "天気"]),
        ("雨", ["雨"]),
        ("Tokyo東京2024", ["tokyo", "東京", "2024"]),
        ("서울 날씨", ["서울", "날씨"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("weather\x00in\x1bParis\u200b", ["weather", "paris"]),
        ("weather \ud800 report", ["weather", "report"]),
        ('"weather" OR NEAR(a b) * ^ {name}: -x', ["weather", "near", "b", "name", "x"]),
        ("x" * 65 + " word", ["word"]),
        ("0\u00a8 \u0301", ["0"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_stop_words_are_kept_on_request() -> None:
    assert words("who is it", stop_words=True) == ["who", "is", "it"]


@given(st.text(alphabet=st.characters(), max_size=200))
def test_words_of_any_text_are_alphanumeric(text: str) -> None:
    for word in words(text):
        assert not set(word) & set(' "*^:{}()+-[]\x00\x1b')
        word.encode()


@given(st.text(alphabet=st.characters(), max_size=200))
def test_words_are_the_parts_of_raw_words(text: str) -> None:
    assert [part for raw in raw_words(text) for part in parts(raw)] == words(text, stop_words=True)


def test_a_long_text_is_read_at_both_ends() -> None:
    text = "start " + "x" * 1_000_000 + " end"
    assert len(clip(text)) == MAX_CHARS + 1
    assert words(text) == ["start", "end"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("get_user_byID", "get user by id"), ("HTTPGet.now", "http get now"), ("東京", "東京")],
)
def test_spaced_name(name: str, expected: str) -> None:
    assert spaced_name(name) == expected


def test_fields_reads_the_whole_schema() -> None:
    definition = ToolDefinition(
        name="book",
        description="Books.",
        tags=("travel", "hotel"),
        input_schema_json=json.dumps(
            {
                "properties": {
                    "guest": {"$ref": "#/$defs/Guest"},
                    "rooms": {"type": "array", "items": {"properties": {"view": {}}}},
                    "board": {"description": "Meals.", "enum": ["full", "half", 3, None]},
                    "properties": {"description": "Of the house."},
                },
                "anyOf": [{"description": "Either."}],
                "$defs": {"Guest": {"properties": {"age": {"description": "In years."}}}},
            }
        ),
    )
    found = fields(definition)
    assert found.name == "book"
    assert found.description == "Books."
    assert found.parameters == "guest rooms board properties view age"
    assert found.parameter_text == "Meals. full half Of the house. Either. In years."
    assert found.tags == "travel hotel"


def test_fields_of_a_tool_without_a_schema() -> None:
    definition = ToolDefinition(name="bare", description="", input_schema_json=None)
    assert fields(definition) == ("bare", "", "", "", "")


def test_fields_stops_in_a_hostile_schema() -> None:
    wide = {f"p{i}": {"description": f"d{i}"} for i in range(10_000)}
    assert len(fields(entry("wide", parameters=wide).definition).parameter_text.split()) < 5_000
