"""Which parameters are copied from the request, and what a request offers them."""

from __future__ import annotations

from typing import Any

from rows import each_row

from toolcrib.clients.local.arguments import narrowed, numbers, runs
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import canonical_json


def defined(schema: Any, *examples: tuple[str, Any]) -> ToolDefinition:
    """A tool with one parameter `p`; the examples give its value, `...` none."""
    return ToolDefinition(
        name="t",
        description="",
        input_schema_json=canonical_json({"type": "object", "properties": {"p": schema}}),
        examples=tuple(
            Example(request, canonical_json({} if value is ... else {"p": value}))
            for request, value in examples
        ),
    )


@each_row(
    ("text", "there"),
    [
        ("time in New York?", ["New York", "time in New York", "York"]),
        ("read ./notes.txt.", ["./notes.txt"]),
        ("look for 'import json', please", ["import json", "'import json'"]),
        ("work out (1 + 2)", ["(1 + 2)", "1 + 2"]),
        ("72F in celsius", ["F", "72F", "celsius"]),
        ("20°C", ["°C"]),
        ("", []),
        ("… ? ''", []),
    ],
)
def test_runs(text: str, there: list[str]) -> None:
    found = runs(text)
    assert set(there) <= set(found)
    assert bool(found) == bool(there)
    assert len(found) == len(set(found))


def test_runs_are_bounded() -> None:
    found = runs(" ".join(f"w{n}" for n in range(10_000)))
    assert len(found) < 2000
    assert max(len(run.split()) for run in found) == 8


@each_row(
    ("text", "whole", "expected"),
    [
        ("10 km and 2.5 or -3", False, [10, 2.5, -3]),
        ("10 km and 2.5 or -3", True, [10, -3]),
        ("17.5% of 2,940", False, [17.5, 2940]),
        ("1,234,567.5", False, [1234567.5]),
        ("5, 6 and 5", True, [5, 6]),
        (f"{2**60} and 1{'0' * 400}", False, []),
        ("none", False, []),
    ],
)
def test_numbers(text: str, whole: bool, expected: list[float]) -> None:
    assert numbers(text, whole=whole) == expected


COPIED = [("in Rome", "Rome"), ("of Oslo", "Oslo")]
TEXT = {"type": "string"}
NARROWED: list[tuple[Any, list[tuple[str, Any]], str, Any]] = [
    (TEXT, COPIED, "Bonn now", {"enum": ["Bonn", "Bonn now", "now"]}),
    (TEXT, COPIED[:1], "Bonn", None),  # once may be by accident
    (TEXT, [*COPIED, ("in Rome", "rome")], "Bonn", None),  # not word for word
    (TEXT, [("a b", ...), ("b", ...)], "Bonn", None),
    ({**TEXT, "default": "."}, [*COPIED, ("here", "."), ("there", ...)], "x", {"enum": ["x", "."]}),
    ({**TEXT, "enum": ["Rome", "Oslo"]}, COPIED, "Bonn", None),
    (TEXT, COPIED, "…", None),
    ({"type": "integer"}, [("5 a", 5), ("6 b", 6)], "7 or 8.5", {"enum": [7]}),
    ({"type": "number"}, [("5 a", 5), ("6 b", 6)], "7 or 8.5", {"enum": [7, 8.5]}),
    ({"type": "number"}, [("5 a", 5), ("6 b", 6)], "no number", None),
    ({"type": "boolean"}, [("1", True), ("1", True)], "1", None),
    (
        {"type": "array", "items": TEXT},
        [("a and b", ["a", "b"]), ("c", ["c"])],
        "d",
        {"type": "array", "items": {"enum": ["d"]}},
    ),
    ({"type": "array"}, [("a", ["a"]), ("c", ["c"])], "d", None),
    (
        {"anyOf": [TEXT, {"type": "null"}]},
        COPIED,
        "d",
        {"anyOf": [{"enum": ["d"]}, {"type": "null"}]},
    ),
    ({"anyOf": [TEXT, {"type": "boolean"}]}, COPIED, "d", None),
    ({"$ref": "#/$defs/X"}, COPIED, "d", None),
]


@each_row(("schema", "examples", "request_", "expected"), NARROWED)
def test_narrowed(
    schema: Any, examples: list[tuple[str, Any]], request_: str, expected: Any
) -> None:
    found = narrowed(defined(schema, *examples), request_)
    assert found == ({} if expected is None else {"p": expected})


def test_a_tool_without_schema_has_nothing_to_copy() -> None:
    assert narrowed(ToolDefinition(name="t", description="", input_schema_json=None), "x") == {}
