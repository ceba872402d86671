"""How a request is read by the examples of a tool, and when a call is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.clients.local.reading import (
    RequestReader,
    invents,
    leaves_out,
    missing_required,
    patterns_of,
    tokens,
    words_around,
)
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import JsonObject, canonical_json

TEXT = {"type": "string"}
MIX: dict[str, Any] = {
    "type": "object",
    "properties": {
        "grams": {"type": "integer"},
        "of": TEXT,
        "bowl": {"type": "string", "default": "big"},
        "speed": {"enum": ["slow", "fast"]},
        "sum": TEXT,
    },
    "required": ["of"],
}


def defined(*examples: tuple[str, dict[str, Any]]) -> ToolDefinition:
    return ToolDefinition(
        name="mix",
        description="",
        input_schema_json=canonical_json(MIX),
        examples=tuple(Example(request, canonical_json(given)) for request, given in examples),
    )


def same_word(one: str, other: str) -> float:
    return float(one.casefold() == other.casefold())


def reader(definition: ToolDefinition) -> RequestReader:
    patterns = patterns_of(definition)
    return RequestReader(definition, patterns, same_word, words_around(patterns))


@each_row(
    ("text", "expected"),
    [
        ("How late is it?", ["how", "late", "is", "it"]),
        ("5GB, 1,000 and -3.5", ["5", "gb", ",", "1,000", "and", "-3.5"]),
        ("open ./a/b.txt!", ["open", "./a/b.txt"]),
        ("(2+3)*4", ["(", "2", "+", "3", ")", "*", "4"]),
        ("say 'two words' now", ["say", "two", "words", "now"]),
        ("", []),
    ],
)
def test_tokens(text: str, expected: Sequence[str]) -> None:
    found = [token.text for token in tokens(text)]
    assert found == [e for e in expected if e != ","]


@given(st.text(max_size=200))
def test_every_token_is_a_piece_of_the_text(text: str) -> None:
    ends = 0
    for token in tokens(text):
        assert text[token.start : token.end].lower() == token.text
        assert token.start >= ends
        ends = token.end


READ: list[tuple[list[tuple[str, dict[str, Any]]], str, dict[str, Any] | None]] = [
    ([("use 5 g of oil", {"grams": 5, "of": "oil"})], "70 g of rye", {"grams": 70, "of": "rye"}),
    ([("take some salt", {"of": "salt"})], "take some 'brown rice'", {"of": "brown rice"}),
    (
        [("fill 'sea salt' into blue", {"of": "sea salt", "bowl": "blue"})],
        "fill into red 'rye'",
        {"of": "rye"},
    ),
    ([("take some salt", {"of": "salt"})], "please take some rye", {"of": "rye"}),
    ([("mix slow", {"speed": "slow"})], "mix Fast", {"speed": "fast"}),
    ([("mix slow", {"speed": "slow"})], "mix quietly", None),
    ([("4 of 12", {"sum": "12 * 4 / 100"})], "3 of 1,500", {"sum": "1500 * 3 / 100"}),
    ([("make (2 + 3) * 4", {"sum": "(2 + 3) * 4"})], "make 7 - (1 + 1)", {"sum": "7 - (1 + 1)"}),
    ([("salt in big", {"of": "salt", "bowl": "big"})], "rye in small", {"of": "rye", "bowl": "small"}),
    ([("salt here", {"of": "salt", "bowl": "big"})], "rye here", {"of": "rye", "bowl": "big"}),
    ([("take 5 grams", {"grams": 5})], "take grams", None),
]  # fmt: skip


@each_row(("examples", "request_", "expected"), READ)
def test_readings(
    examples: list[tuple[str, dict[str, Any]]], request_: str, expected: dict[str, Any] | None
) -> None:
    found = reader(defined(*examples)).read(request_)
    assert (found[0].arguments if found else None) == expected


def test_an_example_whose_values_come_from_nowhere_is_no_pattern() -> None:
    made_up = defined(("anything", {"of": "salt"}), ("some salt", {"of": "salt"}))
    assert len(patterns_of(made_up)) == 1


def test_an_example_reads_as_itself() -> None:
    examples = [example for rows, _, _ in READ for example in rows]
    for request, arguments in examples:
        best = reader(defined((request, arguments))).read(request)[0]
        assert best.arguments == arguments
        assert best.unread == 0


def test_a_follow_up_keeps_what_it_does_not_say() -> None:
    tool = defined(("take 5 grams of salt", {"grams": 5, "of": "salt"}))
    before: JsonObject = {"grams": 8, "of": "oats"}
    found = reader(tool).follow("and of rye", before)
    assert found[0].arguments == {"grams": 8, "of": "rye"}
    assert reader(tool).follow("and 9 grams", before)[0].arguments == {"grams": 9, "of": "oats"}


@each_row(
    ("request_", "arguments", "missed", "invented"),
    [
        ("take 5 grams of salt", {"grams": 5, "of": "salt"}, False, False),
        ("take 5 grams of salt", {"grams": 6, "of": "salt"}, True, True),
        ("take 5 grams of salt", {"grams": 5, "of": "sugar"}, False, True),
        ("take 'sea salt'", {"of": "salt"}, True, False),
        ("take salt", {"of": "salt", "bowl": "big"}, False, False),
        ("take salt", {"of": "salt", "speed": "slow"}, False, False),
        ("4 and 5", {"sum": "4 + 5"}, False, False),
        ("4 and 5", {"sum": "4 + 5 + 5"}, False, True),
        ("4 and 5", {"sum": "4 + oil * 5"}, False, True),
        ("what is it", {"of": "what is"}, False, True),
        ("take minus 5 grams", {"grams": 5}, True, False),
        ("take 5 and a half grams", {"grams": 5}, True, False),
        ("take 5 million grams", {"grams": 5, "of": "million grams"}, True, False),
        ("take \N{MINUS SIGN}5 grams", {"grams": 5}, True, False),
        ("take 5k grams", {"grams": 5}, True, False),
        ("take 5M grams", {"grams": 5}, True, False),
        ("take 1e3 grams", {"grams": 1}, True, False),
        ("take 0x10 grams", {"grams": 0}, True, False),
        ("take 5k of it", {"of": "5k of it"}, False, False),
        ("take 5m of rope", {"grams": 5, "of": "m of rope"}, False, False),
        ("take 5kg of it", {"grams": 5, "of": "it"}, False, True),
        ("take 8 minus 5 grams", {"grams": "8 - 5"}, False, False),
        ("take 5 dozen eggs", {"of": "5 dozen eggs"}, False, False),
        ("take 5 of it", {"grams": 5, "of": "5"}, False, True),
        ("take 5 of 5", {"grams": 5, "of": "5"}, False, False),
        ("take 5 of 'no. 5'", {"grams": 5, "of": "no. 5"}, False, False),
    ],
)
def test_doubts(request_: str, arguments: dict[str, Any], missed: bool, invented: bool) -> None:
    tool = defined()
    assert leaves_out(request_, arguments) == missed
    assert invents(tool, request_, arguments) == invented


def test_what_is_lacking() -> None:
    assert missing_required(defined(), {}) == ["of"]
    assert missing_required(defined(), {"of": "x"}) == []
