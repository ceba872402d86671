"""What a model lets us read of its reasoning comes as parts of its own, and is never the answer."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from rows import each_row
from wire.recorded_helpers import recorded

from toolcrib.errors import ToolcribError
from toolcrib.values.message import Piece, ReasoningPart, TextPart
from toolcrib.wire import decoder

RECORDED = ("anthropic", "bedrock-converse", "cohere", "ollama", "openai-chat", "openai-responses")
"""The wires of which some recording has reasoning that can be read."""


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode()
        for event in events
    )


def chat(**delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


def thought(delta: str, kind: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "r", "output_index": 0, "delta": delta}


BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}
STREAMS: dict[str, tuple[str, bytes, str]] = {
    "a thinking block": (
        "anthropic",
        sse(
            BLOCK,
            *(
                {"type": "content_block_delta", "index": 0, "delta": delta}
                for delta in (
                    {"type": "thinking_delta", "thinking": "Let me "},
                    {"type": "thinking_delta", "thinking": "see."},
                    {"type": "signature_delta", "signature": "secret"},
                )
            ),
        ),
        "Let me see.",
    ),
    "reasoning_content": ("openai-chat", sse(*(chat(reasoning_content=t) for t in "Hm.")), "Hm."),
    "reasoning, twice": ("openai-chat", sse(chat(reasoning="Hm", reasoning_content="Hm")), "Hm"),
    "reasoning of another type": ("openai-chat", sse(chat(reasoning={"a": 1}, content="x")), ""),
    "a chunk of thinking": (
        "mistral",
        sse(chat(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}])),
        "Hm",
    ),
    "odd chunks of thinking": (
        "mistral",
        sse(chat(content=[{"type": "thinking", "thinking": t} for t in (5, [5], [{"text": 5}])])),
        "",
    ),
    "a thought": (
        "gemini",
        sse({"candidates": [{"content": {"parts": [{"text": "Hm", "thought": True}]}}]}),
        "Hm",
    ),
    "a thought of another type": (
        "gemini",
        sse({"candidates": [{"content": {"parts": [{"text": 5, "thought": True}]}}]}),
        "",
    ),
    "a summary, and the whole": (
        "openai-responses",
        sse(thought("Hm", "reasoning_summary_text"), thought("m.", "reasoning_text")),
        "Hmm.",
    ),
}


def parts_of(wire: str, body: bytes, size: int) -> list[Piece]:
    reading = decoder(wire)
    return [p for at in range(0, len(body), size) for p in reading.feed(body[at : at + size])]


@each_row(("wire", "body", "said"), STREAMS.values(), ids=STREAMS)
def test_reasoning_is_shown_as_it_streams(wire: str, body: bytes, said: str) -> None:
    for size in (7, len(body)):
        parts = parts_of(wire, body, size)
        assert "".join(p.text for p in parts if isinstance(p, ReasoningPart)) == said
        assert not any(p.text in said for p in parts if isinstance(p, TextPart))


@pytest.mark.parametrize("wire", RECORDED)
def test_recorded_reasoning_is_no_part_of_the_answer(wire: str, shared_data: Path) -> None:
    shown = 0
    for row in recorded(shared_data, wire):
        body = row["response_body"]
        packed = row.get("response_encoding") == "base64"
        reading = decoder(wire)
        parts = reading.feed(base64.b64decode(body) if packed else body.encode())
        reasoning = "".join(p.text for p in parts if isinstance(p, ReasoningPart))
        if not reasoning:
            continue
        shown += 1
        try:
            reply = reading.finish()
        except ToolcribError:
            continue
        text = "".join(p.text for p in parts if isinstance(p, TextPart))
        assert reply.text.startswith(text)
        assert reasoning not in reply.text
    assert shown
