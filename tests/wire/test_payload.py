"""What of a provider's answer is kept beside the reply, and how a call refers to it."""

from __future__ import annotations

import hashlib
import json

import msgspec
from rows import each_row
from wire.test_whole import OFFER, STREAMS

from toolcrib.values.call import PayloadRef
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import Offer
from toolcrib.wire import OPENAI_CHAT, WIRES, decode, decoder
from toolcrib.wire.decoding import MAX_KEPT

CALLS = [
    {"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{}"}} for at in (0, 1)
]
CHUNKS = [
    json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": CALLS}}]}),
    json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    "[DONE]",
]


def stream_of(chunks: list[str]) -> bytes:
    return "".join(f"data: {chunk}\n\n" for chunk in chunks).encode()


def test_a_stream_keeps_its_events_and_each_call_refers_to_them() -> None:
    reply = decode("openai-chat", stream_of(CHUNKS))
    data = "".join(f"{chunk}\n" for chunk in CHUNKS).encode()
    reference = PayloadRef(hashlib.sha256(data).hexdigest(), len(data))
    assert reply.events == tuple(CHUNKS)
    assert reply.payload == reference
    assert [call.payload for call in reply.tool_calls] == [
        PayloadRef(reference.digest, reference.size, at) for at in (0, 1)
    ]


@each_row("wire", WIRES)
def test_each_wire_keeps_the_events_of_a_stream(wire: str) -> None:
    data = STREAMS[wire]("TOOL_CALL" if wire == "cohere" else "STOP")
    reading = decoder(wire, offer=OFFER)
    for at in range(0, len(data), 7):
        reading.feed(data[at : at + 7])
    reply = reading.finish()
    text = "".join(f"{event}\n" for event in reply.events).encode()
    assert len(reply.events) > 1
    assert reply.payload == PayloadRef(hashlib.sha256(text).hexdigest(), len(text))
    assert [call.payload for call in reply.tool_calls] == [reply.payload]


def test_the_reference_does_not_depend_on_the_pieces_nor_on_what_follows_the_end() -> None:
    body = stream_of(CHUNKS)
    reading = decoder("openai-chat")
    for at in range(len(body)):
        reading.feed(body[at : at + 1])
    assert reading.finish() == decode("openai-chat", body + b": bye\n\n")


def test_a_whole_body_is_referred_to_by_its_bytes() -> None:
    calls = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
    message = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]}
    body = json.dumps(message).encode()
    reply = decode("openai-chat", body)
    assert reply.tool_calls[0].payload == PayloadRef(hashlib.sha256(body).hexdigest(), len(body))
    assert (reply.raw, reply.events) == (message, ())


def test_events_are_kept_up_to_a_size_and_referred_to_whole() -> None:
    said = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 10_000}}]})
    reply = decode("openai-chat", stream_of([said] * 100 + CHUNKS))
    assert 0 < sum(map(len, reply.events)) <= MAX_KEPT
    assert reply.payload is not None
    assert reply.payload.size > 100 * len(said)


def test_a_call_in_the_text_refers_to_the_payload_too() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    said = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes")
    f = ToolDefinition(name="f", description="", input_schema_json="{}")
    reply = decode(wire, json.dumps(said).encode(), offer=Offer.of([PlainTool(f)]))
    assert [call.payload for call in reply.tool_calls] == [reply.payload]
