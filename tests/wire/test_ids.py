"""A call's id goes back as its provider gave it, and to no other provider that would refuse it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, Wire, decode, encode
from toolcrib.wire.history import IdRule

VLLM = "chatcmpl-tool-5534c2d1f5354206a54ac289f9b12e97"
IDS = (VLLM, "functions.f:0", "call|fc", "call_1", "x" * 200, "a b", "ü")
SERVERS = {
    **WIRES,
    "openai-chat at a": WIRES["openai-chat"].at("a.example"),
    "openai-chat at b": WIRES["openai-chat"].at("b.example"),
    "openai-chat at a port": WIRES["openai-chat"].at("a.example", 8000),
}
TAKES = {name: wire.history.ids for name, wire in WIRES.items()}
"""What each provider takes of ids that it has not given itself."""


def reply_with(wire: Wire, given: str) -> Message:
    """A message of that wire's, with a call under that id."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": given, "type": "function", "function": function}]
    bodies: dict[str, Any] = {
        "gemini": {
            "candidates": [
                {
                    "content": {"parts": [{"functionCall": {"id": given, "name": "f"}}]},
                    "finishReason": "STOP",
                }
            ]
        },
        "ollama": {"message": {"tool_calls": calls}, "done": True, "done_reason": "stop"},
        "cohere": {"message": {"tool_calls": calls}, "finish_reason": "TOOL_CALL"},
        "anthropic": {
            "content": [{"type": "tool_use", "id": given, "name": "f", "input": {}}],
            "stop_reason": "tool_use",
        },
        "bedrock-converse": {
            "output": {
                "message": {
                    "content": [{"toolUse": {"toolUseId": given, "name": "f", "input": {}}}]
                }
            },
            "stopReason": "tool_use",
        },
        "openai-responses": {
            "status": "completed",
            "output": [{"type": "function_call", "call_id": given, "name": "f", "arguments": "{}"}],
        },
    }
    chat = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    return decode(wire, json.dumps(bodies.get(wire.name, chat))).message


def ids_in(value: Any) -> list[str]:
    """Every id of a call in a request, and of its result."""
    if isinstance(value, list):
        return [found for item in value for found in ids_in(item)]
    if not isinstance(value, dict):
        return []
    names = ("id", "tool_call_id", "call_id", "tool_use_id", "toolUseId")
    own = [value[name] for name in names if isinstance(value.get(name), str)]
    return own + ids_in(list(value.values()))


def sent_to(wire: Wire, message: Message) -> set[str]:
    result = Message.tool(message.tool_calls[0], "done")
    request = ChatRequest((Message.user("Do it."), message, result))
    return set(ids_in(json.loads(encode(wire, request, model="m").body)))


@each_row("maker", SERVERS, ids=SERVERS)
@each_row("taker", SERVERS, ids=SERVERS)
def test_an_id_is_legal_wherever_it_goes(maker: str, taker: str) -> None:
    for given in IDS:
        message = reply_with(SERVERS[maker], given)
        (sent,) = sent_to(SERVERS[taker], message)
        rule: IdRule = TAKES[SERVERS[taker].name]
        own = SERVERS[taker].history.given_ids or rule
        assert (own if maker == taker else rule).legal(sent)
        if (own if maker == taker else rule).legal(given):
            assert sent == given


@pytest.mark.parametrize("given", ["call_1", VLLM])
def test_a_message_of_nobodys_has_ids_that_everybody_takes(given: str) -> None:
    """As one that was kept by an earlier version: it has no state that says whose it is."""
    message = reply_with(WIRES["openai-chat"], given)
    bare = msgspec.structs.replace(message, provider_state=None)
    (sent,) = sent_to(WIRES["openai-chat"], bare)
    assert sent == ("call_1" if given == "call_1" else message.tool_calls[0].id)
