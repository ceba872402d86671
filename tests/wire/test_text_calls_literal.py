"""Literals of Python, as JSON: what they say, and what is none."""

from __future__ import annotations

import ast
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rows import each_row
from wire.text_calls_helpers import OFFER

from toolcrib.wire.text_calls.reading import Parameters, json_of

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(LITERALS)
def test_what_python_writes(value: Any) -> None:
    text = json_of(repr(value))
    assert text is not None
    assert json.loads(text) == value


@given(LITERALS)
def test_what_json_writes(value: Any) -> None:
    text = json_of(json.dumps(value, ensure_ascii=False))
    assert text is not None
    assert json.loads(text) == value


@given(st.text("'\"\\nuxNU01aé{}🌦 \n", max_size=12))
def test_strings_say_what_python_reads(inner: str) -> None:
    """But for a line break in a string of one line, and characters by name."""
    text = json_of(f"'{inner}'")
    if text is None or "\n" in inner or not json.loads(text).isprintable():
        return
    try:
        said = ast.literal_eval(f"'{inner}'")
    except (SyntaxError, SyntaxWarning):
        assert "\\" in inner
    else:
        assert json.loads(text) == said


READ = [
    ("'a'", "a"),
    ("'a\nb'", "a\nb"),
    ("'it\\'s'", "it's"),
    ('"""a "b" c"""', 'a "b" c'),
    ("''''a'b'''", "'a'b"),
    (r"'\x41\u00e9\U0001F326\101\q\\'", "Aé🌦A\\q\\"),
    (r"'\ud83c\udf26'", "🌦"),
    (r'"\ud83c\udf26"', "🌦"),
    ("'a\\\nb'", "ab"),
    (" [1, 2, ] ", [1, 2]),
    ("{'a': {}, 'b': [None]}", {"a": {}, "b": [None]}),
    ("[" * 200 + "]" * 200, json.loads("[" * 200 + "]" * 200)),
]


@each_row(("text", "value"), READ)
def test_read(text: str, value: Any) -> None:
    assert json.loads(json_of(text) or "") == value


NONE = [
    "", "a", "f()", "f'x'", "b'x'", "r'x'", "'a' 'b'", "'a' + 'b'", "1 + 1", "1j", "0x1", "007",
    "1_000", "+1", ".5", "5.", "inf", "nan", "(1, 2)", "{1, 2}", "{1: 2}", "{None: 2}", "[1 2]",
    "[,]", "[1,,]", "{'a' 1}", "{'a': }", "[", "{'a': [", "'a", "'''a", "[}", "[x for x in y]",
    "lambda: 1", "__import__('os')", "'\\N{DIGIT ONE}'", "'\\U00110000'", "1 2", "*[1]", "...",
    r"'\ud83c'", r'"\udf26\ud83c"', r"{'\udf26': 1}",
    "-", "1e", "٣", "[" * 100_000, "-" * 100_000, "[" * 300 + "]" * 300, "9" * 300,
]  # fmt: skip


@each_row("text", NONE)
def test_no_literal(text: str) -> None:
    assert json_of(text) is None


KINDS: list[tuple[Any, set[str]]] = [
    (None, set()),
    (True, set()),
    ({"type": "string"}, {"string"}),
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"type": 5}, set()),
    ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
    ({"const": True}, {"boolean"}),
    ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/t"}]}, {"integer", "string"}),
    ({"$ref": "#/$defs/loop"}, set()),
    ({"$ref": "#/$defs/none"}, set()),
]


@each_row(("schema", "kinds"), KINDS)
def test_kinds_of_values(schema: Any, kinds: set[str]) -> None:
    defs = {"t": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    root: dict[str, Any] = {"type": "object", "properties": {"a": schema}, "$defs": defs}
    assert Parameters(root).kinds("a") == kinds


def test_kinds_without_a_schema() -> None:
    definition = OFFER.tools["now"].get_definition()
    assert Parameters(definition.input_schema).kinds("absent") == set()
    assert Parameters(None).kinds("a") == set()
