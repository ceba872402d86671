"""Calls that were read out of a text go back as calls, and the text without them."""

from __future__ import annotations

import json
from typing import Any

from rows import each_row
from wire.text_calls_cases import PARIS, hermes
from wire.text_calls_helpers import OFFER, with_syntax

from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, decode, encode

TEXT = f"So.\n{hermes(PARIS)}"
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}
CHUNKS = [THINKING, {"type": "text", "text": TEXT}]
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
SAID = {"type": "message", "id": "m_1", "content": [{"type": "output_text", "text": TEXT}]}
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": TEXT},
]
PARTS = [{"text": "hm", "thought": True}, {"text": TEXT, "thoughtSignature": "cw=="}]
CONTENT = [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": TEXT}]

BODIES: dict[str, dict[str, Any]] = {
    "openai-chat": {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}]},
    "mistral": {"choices": [{"message": {"content": CHUNKS}, "finish_reason": "stop"}]},
    "openai-responses": {"status": "completed", "output": [REASONING, SAID]},
    "anthropic": {"type": "message", "stop_reason": "end_turn", "content": BLOCKS},
    "gemini": {"candidates": [{"content": {"parts": PARTS}, "finishReason": "STOP"}]},
    "ollama": {"message": {"content": TEXT, "thinking": "hm"}, "done": True},
    "cohere": {"finish_reason": "COMPLETE", "message": {"content": BLOCKS[1:]}},
    "bedrock-converse": {"output": {"message": {"content": CONTENT}}, "stopReason": "end_turn"},
}


@each_row("wire", WIRES)
def test_what_goes_back(wire: str) -> None:
    spoken = with_syntax("hermes", WIRES[wire])
    reply = decode(spoken, json.dumps(BODIES[wire]), offer=OFFER)
    (call,) = reply.tool_calls
    messages = (Message.user("Hi"), reply.message, Message.tool(call, "sunny"))
    tools = tuple(OFFER.tools.values())
    body = encode(spoken, ChatRequest(messages, tools), model="m").body.decode()
    assert "tool_call>" not in body
    assert "So." in body
    assert body.count("Paris") == 1


def test_chunks_of_mistral_go_back_as_they_came_otherwise() -> None:
    reply = decode("mistral", json.dumps(BODIES["mistral"]))
    request = ChatRequest((Message.user("Hi"), reply.message, Message.user("Go on")))
    body = json.loads(encode("mistral", request, model="m").body)
    assert body["messages"][1]["content"] == CHUNKS


def test_a_text_that_was_nothing_but_a_call_leaves_no_chunk() -> None:
    chunks = [THINKING, {"type": "text", "text": hermes(PARIS)}]
    body = {"choices": [{"message": {"content": chunks}, "finish_reason": "stop"}]}
    wire = with_syntax("hermes", WIRES["mistral"])
    reply = decode(wire, json.dumps(body), offer=OFFER)
    results = (Message.tool(reply.tool_calls[0], "sunny"),)
    request = ChatRequest((Message.user("Hi"), reply.message, *results))
    sent = json.loads(encode(wire, request, model="m").body)["messages"][1]
    assert sent["content"] == [THINKING]
