"""What streams of a text adds up to the text of the reply, wherever a server cuts it.

Servers in JavaScript cut between the halves of a surrogate pair, and escape each half.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from rows import each_row
from servers.bedrock import frame

from toolcrib.values.message import TextPart
from toolcrib.wire import decoder

Json = dict[str, Any]
TEXTS = [
    "a😀b",
    "😀🦀",
    "é\n",
    "lone \ud83d half",
    "\udc00 first",
    "\ud83d\ud83d\ude00",
    "last \ud83d",
]


def chat(pieces: Iterable[str]) -> Iterator[Json]:
    for piece in pieces:
        yield {"id": "x", "choices": [{"index": 0, "delta": {"content": piece}}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def responses(pieces: Iterable[str]) -> Iterator[Json]:
    pieces = list(pieces)
    for piece in pieces:
        yield {"type": "response.output_text.delta", "output_index": 0, "delta": piece}
    said = {"type": "message", "content": [{"type": "output_text", "text": "".join(pieces)}]}
    yield {"type": "response.completed", "response": {"status": "completed", "output": [said]}}


def anthropic(pieces: Iterable[str]) -> Iterator[Json]:
    yield {"type": "message_start", "message": {}}
    for piece in pieces:
        delta = {"type": "text_delta", "text": piece}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    yield {"type": "message_stop"}


def gemini(pieces: Iterable[str]) -> Iterator[Json]:
    for piece in pieces:
        yield {"candidates": [{"content": {"parts": [{"text": piece}]}}]}
    yield {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}


def ollama(pieces: Iterable[str]) -> Iterator[Json]:
    for piece in pieces:
        yield {"message": {"content": piece}, "done": False}
    yield {"done": True, "done_reason": "stop"}


def cohere(pieces: Iterable[str]) -> Iterator[Json]:
    for piece in pieces:
        delta = {"message": {"content": {"text": piece}}}
        yield {"type": "content-delta", "index": 0, "delta": delta}
    yield {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}


def bedrock(pieces: Iterable[str]) -> Iterator[Json]:
    for piece in pieces:
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}}
    yield {"messageStop": {"stopReason": "end_turn"}}


STREAMS: dict[str, Callable[[Iterable[str]], Iterator[Json]]] = {
    "openai-chat": chat,
    "mistral": chat,
    "openai-responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "ollama": ollama,
    "cohere": cohere,
    "bedrock-converse": bedrock,
}


def sent(wire: str, event: Json) -> bytes:
    if wire == "bedrock-converse":
        ((kind, payload),) = event.items()
        return frame(json.dumps(payload).encode(), event_type=kind)
    text = json.dumps(event)
    return f"{text}\n".encode() if wire == "ollama" else f"data: {text}\n\n".encode()


def units(text: str, size: int) -> list[str]:
    """The text in pieces of that many UTF-16 code units."""
    data = text.encode("utf-16-le", "surrogatepass")
    cuts = range(0, len(data), 2 * size)
    return [data[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in cuts]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@each_row("wire", STREAMS)
def test_what_streams_is_the_text(wire: str, text: str) -> None:
    for size in (1, 2, 3):
        reading = decoder(wire)
        events = STREAMS[wire](units(text, size))
        parts = [part for event in events for part in reading.feed(sent(wire, event))]
        streamed = "".join(part.text for part in parts if isinstance(part, TextPart))
        reply = reading.finish()
        assert reply.text == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        is_open = text.endswith("\ud83d")  # the other half might have followed
        assert streamed == (reply.text[:-1] if is_open else reply.text)
