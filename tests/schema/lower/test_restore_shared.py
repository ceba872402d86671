"""A restorer is a value that may be shared, pickled, and given anything."""

from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from toolcrib.schema.lower import ViewRestorer, lower
from toolcrib.schema.lower.restore import MAX_STEPS
from toolcrib.wire.openai_chat import STRICT_DIALECT as OPENAI_STRICT

TEXT: dict[str, Any] = {"type": "string"}


def tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def test_a_restorer_is_a_value() -> None:
    restorer = lower(tool({"a": TEXT}), OPENAI_STRICT).restorer
    assert restorer is not None
    restorer.restore({"a": None})
    again = pickle.loads(pickle.dumps(restorer))  # noqa: S301 (its own bytes)
    assert again == restorer
    assert hash(again) == hash(restorer)
    assert again.restore({"a": None}) == {}


def test_threads_may_share_a_restorer() -> None:
    """The first uses of one, at the same time: nothing half known is seen by another."""
    parts: dict[str, Any] = {"d0": {"type": "integer"}}
    parts |= {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}]} for i in range(1, 40)}
    schema = tool({f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(40)}, **{"$defs": parts})
    sent = {f"p{i}": None for i in reversed(range(40))}
    text = json.dumps(schema)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            restorer = ViewRestorer(text)
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(restorer.restore, [sent] * 4)) == [{}] * 4
    finally:
        sys.setswitchinterval(interval)


TREES = tool(
    {"t": {"$ref": "#/$defs/t"}},
    **{
        "$defs": {
            "t": {
                "anyOf": [
                    tool({"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}}),
                    tool({"r": {"$ref": "#/$defs/t"}, "l": {"$ref": "#/$defs/t"}}, "l"),
                    {"type": "array", "items": {"$ref": "#/$defs/t"}},
                ]
            }
        }
    },
)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"l": None, "r": None}
    for _ in range(levels):
        value = {"l": value, "r": value}
    return {"t": value}


def chain(levels: int) -> dict[str, Any]:
    """Nulls at each level, none of them shared: each alternative of each level is judged."""
    value: dict[str, Any] = {"l": None, "r": None}
    for _ in range(levels):
        value = {"l": value, "r": [{"l": None, "r": None} for _ in range(10)]}
    return {"t": value}


@pytest.mark.parametrize(
    "sent",
    [
        deep(40),
        {"t": [deep(3)] * 3_000},
        {"t": [[]] * 300_000},
        {"t": {"x": None, **deep(90)["t"]}},
        chain(90),
    ],
    ids=["shared and deep", "many", "too many", "deeper", "a chain"],
)
def test_hostile_arguments_end_soon(sent: Any) -> None:
    restorer = lower(TREES, OPENAI_STRICT).restorer
    assert restorer is not None
    assert isinstance(restorer.restore(sent), dict)
    assert isinstance(restorer.to_view(sent), dict)


def test_what_would_take_too_long_is_passed_on() -> None:
    restorer = ViewRestorer(json.dumps(tool({"t": {"type": "array", "items": tool({"a": TEXT})}})))
    sent: dict[str, Any] = {"t": [{"a": None} for _ in range(MAX_STEPS)]}
    assert restorer.restore(sent) == sent
