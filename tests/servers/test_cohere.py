"""The loopback server that speaks Cohere's wire: what it refuses, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row
from servers.cohere import CohereServer

HI: list[Any] = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "f", "description": "F.", "parameters": {"type": "object"}}
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_plan": "I will.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "1"}


def tools(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": FUNCTION | changes}]}


def body(*messages: Any, **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [*HI, *messages]} | members


LEGAL: list[dict[str, Any]] = [
    body(),
    body(CALLED, RESULT, *HI, **tools(), tool_choice="REQUIRED", stream=True),
    body(CALLED | {"content": [{"type": "thinking", "thinking": "Hm."}]}, RESULT),
    body(messages=[{"role": "system", "content": "Be brief."}, *HI]),
]


@pytest.mark.parametrize("request_", LEGAL)
def test_legal_requests(request_: Any) -> None:
    assert CohereServer([]).fault(request_) is None


FAULTS: dict[str, tuple[Any, str]] = {
    "no object": ([], "model"),
    "no model": (body(model=""), "model"),
    "no messages": (body(messages=[]), "messages"),
    "an unknown member": (body(parallel_tool_calls=False), "parameter 'parallel_tool_calls'"),
    "a strict tool": (body(**tools(strict=True)), "parameter 'strict'"),
    "a name": (body(**tools(name="f-g")), "provided name: 'f-g'"),
    "a schema that is none": (body(**tools(parameters={})), "schema must be an object"),
    "a choice of another's": (body(**tools(), tool_choice="required"), "'required'"),
    "a choice of nothing": (body(tool_choice="REQUIRED"), "'REQUIRED'"),
    "a role": (body({"role": "developer", "content": "x"}), "'developer'"),
    "a late system": (body({"role": "system", "content": "x"}), "must be the first"),
    "an empty message": (body({"role": "assistant", "content": ""}), "must not be empty"),
    "text beside calls": (body(CALLED | {"content": "Hi"}, RESULT), "not allowed"),
    "text beside calls, in parts": (
        body(CALLED | {"content": [{"type": "text", "text": "Hi"}]}, RESULT),
        "not allowed",
    ),
    "a result of nothing": (body(RESULT), "not found"),
    "two calls of one id": (body(CALLED, RESULT, CALLED, RESULT), "duplicate"),
}


@each_row(("request_", "fault"), FAULTS.values(), ids=FAULTS)
def test_illegal_requests(request_: Any, fault: str) -> None:
    assert fault in (CohereServer([]).fault(request_) or "")
