"""Results stated plainly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row

from toolcrib.agent.history import content_of, error_content
from toolcrib.clients.local.telling import tell
from toolcrib.errors import ErrorCode
from toolcrib.values.content import Image
from toolcrib.values.message import Message
from toolcrib.values.record import CallError


def result(content: str, *, name: str = "t", is_error: bool = False) -> Message:
    return Message("tool", content, call_id="c0", name=name, is_error=is_error)


STATED: list[tuple[Any, str]] = [
    ({"value": 396}, "value: 396"),
    ({"value": 1.5, "unit": "mile"}, "value: 1.5, unit: mile"),
    ({"from_unit": "km", "b": 1, "c": 2, "d": 3}, "from_unit: km, b: 1, c: 2, d: 3"),
    ({"from_unit": "km"}, "from_unit: km"),
    ({"big": 2**90}, "big: 1237940039285380274899124224"),
    ({"a": None, "b": True, "c": "é"}, "a: null, b: true, c: é"),
    (7, "7"),
    ("plain text", "plain text"),
    ("[not json", "[not json"),
    ([], "none"),
    ({}, "Done."),
    (["a", 2], "- a\n- 2"),
    ({"files": [], "path": "."}, "path: .\nfiles: none"),
    (
        {"path": ".", "files": [{"n": "a", "s": 1}, {"n": "b", "s": 2}]},
        "path: .\nfiles:\n- n: a, s: 1\n- n: b, s: 2",
    ),
    ({"text": "one\ntwo", "size": 7}, "size: 7\ntext:\none\ntwo"),
    ({"a": {"b": 1, "c": 2}}, "a:\n  b: 1, c: 2"),
    ([{"a": [1]}], '- {"a": [1]}'),
]


@each_row(("value", "expected"), STATED)
def test_results(value: Any, expected: str) -> None:
    content = value if isinstance(value, str) else json.dumps(value)
    assert tell([result(content)]) == expected


def test_the_loops_own_wording_is_understood() -> None:
    assert tell([result(content_of({"value": 396}))]) == "value: 396"
    failed = result(error_content(CallError.of(ErrorCode.TIMEOUT)), is_error=True)
    assert tell([failed]) == (
        "The call of t did not succeed: The tool did not finish within its time limit."
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            '{"error": {"message": "no", "details": [{"path": "/a", "message": "b"}]}}',
            "no\n- /a: b",
        ),
        ('{"error": {"message": "no", "details": 3}}', "no"),
        ('{"error": "odd"}', "error: odd"),
        ("just text", "just text"),
    ],
)
def test_errors(content: str, expected: str) -> None:
    told = tell([result(content, is_error=True)])
    assert told == f"The call of t did not succeed: {expected}"


def test_several_results_are_named() -> None:
    told = tell([result('{"a": 1}', name="x"), result('{"b": 2}', name="y")])
    assert told == "x:\na: 1\n\ny:\nb: 2"


def test_it_is_bounded() -> None:
    told = tell([result(json.dumps(list(range(1000))))])
    assert told.endswith("… and 940 more")
    assert len(tell([result("x" * 100_000)])) < 4100
    assert tell([result("x" * 100_000)]).endswith("… (cut: 100000 characters in all)")


def test_json_nested_without_end_is_shown_as_it_came() -> None:
    deep = "[" * 100_000
    assert tell([result(deep)]).startswith("[[[")
    assert tell([result('{"a":' * 600 + "1" + "}" * 600)])


def test_content_that_this_model_cannot_see_is_named() -> None:
    parts = ("a text", Image("image/png", "aGk="))
    named = "a text\n\n[image: image/png, 2 bytes; not shown here]"
    shown = Message("tool", '{"value": 396}', call_id="c0", name="t", parts=parts)
    assert tell([shown]) == f"value: 396\n\n{named}"
    assert tell([Message("tool", "", call_id="c0", name="t", parts=parts)]) == named
