"""What goes into a history as JSON, whatever a provider's state holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from rows import each_row

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, encode
from toolcrib.wire.history import dumps

ID_NAMES = ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId")


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """All members at all depths."""
    if isinstance(value, dict):
        yield from value.items()
    for below in value.values() if isinstance(value, dict) else value:
        if isinstance(below, dict | list):
            yield from members(below)


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [{"n": 10**30}, {"n": -(10**20)}, deep(300), {"a": ["é", 1.5]}])
def test_what_is_json_is_written(value: object) -> None:
    assert json.loads(dumps(value)) == value


def test_lone_surrogates_are_replaced() -> None:
    assert json.loads(dumps({"a\ud800": ["\udfff", 10**30]})) == {"a\ufffd": ["\ufffd", 10**30]}


def test_a_fragment_is_written_as_it_stands() -> None:
    assert dumps({"n": 10**30, "said": orjson.Fragment(b'{"a":1}')}).endswith(b'"said":{"a":1}}')


@pytest.mark.parametrize("value", [object(), {"a": object()}, {("a", "b"): 1}])
def test_what_is_none_is_refused(value: object) -> None:
    with pytest.raises(RequestError, match="cannot be sent as JSON"):
        dumps(value)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400], ids=["large", "small", "long"])
@each_row("wire", WIRES)
def test_arguments_that_no_parser_holds_are_not_sent_back(wire: str, number: str) -> None:
    calls = (
        ToolCall("a", "f", f'{{"n": {number}}}'),
        ToolCall("b", "f", '{"n": 12345678901234567890123}'),
    )
    results = (Message.tool(call, "it") for call in calls)
    request = ChatRequest((Message.user("?"), Message.assistant("", calls), *results))
    body = encode(wire, request, model="m").body
    orjson.loads(body)
    assert number.encode() not in body
    assert b"12345678901234567890123" in body


@each_row("wire", WIRES)
def test_ids_that_no_request_can_hold_do_not_become_one(wire: str) -> None:
    """They are too long for any, and differ at their ends alone."""
    given = [ToolCall(own, "f", "{}", provider_id=own) for own in ("a" * 65_536 + c for c in "bcd")]
    results = [Message.tool(call, "it") for call in given]
    request = ChatRequest((Message.user("?"), Message.assistant("", tuple(given)), *results))
    body = json.loads(encode(wire, request, model="m").body)
    sent = [value for name, value in members(body) if name in ID_NAMES]
    told = {sent.count(one) for one in sent}
    assert (len(set(sent)), told) == (3, {2})
