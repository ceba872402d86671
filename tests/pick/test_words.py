from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pick.pick_helpers import entry
from rows import each_row

from toolcrib.pick import words as module
from toolcrib.pick.words import (
    MAX_CHARS,
    clip,
    fields,
    parts,
    raw_words,
    segments,
    spaced_name,
    stem,
    stems,
    words,
)
from toolcrib.values.definition import ToolDefinition


@each_row(
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


@each_row(
    ("word", "expected"),
    [
        # Porter's own examples, step by step
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("ties", "ti"),
        ("cats", "cat"),
        ("feed", "feed"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("bled", "bled"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("conflated", "conflat"),
        ("troubled", "troubl"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("hissing", "hiss"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("conditional", "condit"),
        ("vietnamization", "vietnam"),
        ("formaliti", "formal"),
        ("triplicate", "triplic"),
        ("hopefulness", "hope"),
        ("revival", "reviv"),
        ("adjustment", "adjust"),
        ("adoption", "adopt"),
        ("probate", "probat"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("controll", "control"),
        ("roll", "roll"),
        ("generalizations", "gener"),
        ("oscillators", "oscil"),
        ("possibly", "possibl"),
        ("topologies", "topolog"),
        ("ies", "i"),
        ("sses", "ss"),
        ("a", "a"),
        ("s", "s"),
        ("as", "as"),
        ("say", "sai"),
        ("eed", "eed"),
        ("ing", "ing"),
        # what is no English word
        ("is", "is"),
        ("sha256", "sha256"),
        ("90s", "90"),
        ("zürich", "zurich"),
        ("prévisions", "previs"),
        ("прогноз", "прогноз"),
        ("हिन्दी", "हिन्दी"),
        ("날씨", "날씨"),
        ("天気", "天気"),
        ("\u0301", "\u0301"),
    ],
)
def test_stem(word: str, expected: str) -> None:
    assert stem(word) == expected


@given(st.text(alphabet=st.characters(), max_size=100))
def test_stems_are_those_of_the_words(text: str) -> None:
    assert stems(text) == [stem(word) for word in words(text)]
    assert stems(text, stop_words=True) == [stem(word) for word in words(text, stop_words=True)]
    assert all(stems(text))


def test_what_is_remembered_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    known = module._STEMS._kept
    monkeypatch.setattr(module, "_MOST", 3)
    known.clear()
    for text in ("東京の天気" * 20, "aB" * 100, *(f"word{i}s more" for i in range(20))):
        once = stems(text)
        assert stems(text) == once
        assert len(known) <= 3
        assert max(map(len, known), default=0) <= module._LONGEST


@each_row(
    ("text", "expected"),
    [
        ("", []),
        (" \n . !", []),
        ("Weather", ["Weather"]),
        ("What is the weather in Rome?", ["What is the weather in Rome?"]),
        (
            "Find a flight to Rome. Book me a hotel.",
            ["Find a flight to Rome.", "Book me a hotel."],
        ),
        (
            "find me a flight and then book a hotel there",
            ["find me a flight", "and then book a hotel there"],
        ),
        (
            "Find me a flight, then book a hotel; also rent a car",
            ["Find me a flight", "then book a hotel", "also rent a car"],
        ),
        ("Authenticate the strengthening of it", ["Authenticate the strengthening of it"]),
        ("Hello! Tell me the time please.", ["Hello! Tell me the time please."]),
        ("Tell me the time. Thanks!", ["Tell me the time. Thanks!"]),
        ("Take 3.5 percent of file.txt", ["Take 3.5 percent of file.txt"]),
        ("Ask Dr. Smith about it", ["Ask Dr. Smith about it"]),
        ("1. open the file\n2. count its lines", ["1. open the file", "2. count its lines"]),
        ("查询北京天气。然后订一张票！谢谢", ["查询北京天气。", "然后订一张票！ 谢谢"]),
        ("كم الساعة في روما؟ احجز لي فندقا هناك", ["كم الساعة في روما؟", "احجز لي فندقا هناك"]),
        ("मौसम कैसा है आज। होटल बुक करो अभी", ["मौसम कैसा है आज।", "होटल बुक करो अभी"]),
    ],
)
def test_parts(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


@each_row(("count", "found"), [(7, 7), (8, 8), (9, 8), (16, 8), (100, 8)])
def test_at_most_eight(count: int, found: int) -> None:
    parts = segments(" ".join(f"Do the thing {number}." for number in range(count)))
    assert len(parts) == found
    assert max(part.count(".") for part in parts) <= -(-count // 8)


@each_row(
    "text",
    [
        "Book it, then tell me. Also: what now?\n- one more thing for you\n- yes",
        "then then then also also",
        "。" * 50 + "words words words",
        "a.b! c? " * 400,
        "\ud800 lone and \x00 control then\u2028more of it",
    ],
)
def test_no_word_is_lost_or_said_twice(text: str) -> None:
    kept = text.replace("\ud800", "?").replace(",", "").replace("。", "").split()
    again = " ".join(segments(text)).replace(",", "").replace("。", "").split()
    assert again == kept


@pytest.mark.parametrize("text", ["。" * 16_000, ";\n " * 5_000, "a. " * 5_000 + "," * 999])
def test_each_character_is_read_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a request of 16,000 full stops takes 14 s."""
    read: list[int] = []

    def counting(pattern: str, piece: str) -> list[str]:
        read.append(len(piece))
        return found(pattern, piece)

    found = re.findall
    monkeypatch.setattr(re, "findall", counting)
    assert len(segments(text)) <= 8
    assert 0 < sum(read) <= len(text)


def test_a_megabyte_is_cut() -> None:
    text = "then " * 200_000
    assert sum(len(part) for part in segments(text)) < 20_000
