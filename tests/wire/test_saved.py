"""Whatever a provider sends: what is kept of it can be saved, loaded and sent on; calls stay calls."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from servers.bedrock import frame
from wire.recorded_helpers import Row, recorded
from wire.test_mutated import goes_on, places

from toolcrib import ALL, Catalog, hydrate, tool
from toolcrib.errors import ClientError, ErrorCode
from toolcrib.values.call import Rejected
from toolcrib.values.message import Message, Reply
from toolcrib.values.run import RunState
from toolcrib.wire import OPENAI_CHAT, decode, decoder
from toolcrib.wire.framing import FrameStream
from toolcrib.wire.json_text import savable

ROUNDS = sample(400)
NESTED: dict[str, Any] = {"x": None}
for _ in range(400):
    NESTED = {"x": NESTED}
TWINS = dict.fromkeys(map(chr, (0xD83D, 0xD83E)), 1)  # two keys that would become one
HOSTILE: tuple[Any, ...] = ("half \ud83d", "\ude00", {"\ud83d": 1}, TWINS,
        float("nan"), float("-inf"), 10**40, -(10**400), [[]] * 2, NESTED,
        json.loads("[" * 150 + "]" * 150), json.loads("[" * 700 + "]" * 700))  # fmt: skip
TEXTS = st.text(st.characters(codec=None, exclude_categories=()))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
WIRES = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock-converse", "mistral",
        "cohere", "ollama")  # fmt: skip


@tool(visible=ALL)
def pay(n: str) -> str:
    """Pay."""
    return n


def harmed(value: Any, random_: random.Random) -> Any:
    """Return JSON with something hostile in it: in the place of a value, or as one more member."""
    holder, key = random_.choice(list(places(value)))
    hostile = random_.choice(HOSTILE)
    if random_.random() < 0.5 and isinstance(holder, dict):
        holder[random_.choice(("x", "signature", "x\ud83d"))] = hostile
    else:
        holder[key] = hostile
    return value


def lines_of(body: bytes) -> Iterator[tuple[bytes, Any]]:
    for line in body.splitlines():
        mark = b"data:" if line.startswith(b"data:") else b""
        text = line.removeprefix(mark).strip()
        yield mark, json.loads(text) if text.startswith(b"{") else line


def harmed_body(wire: str, row: Row, random_: random.Random) -> bytes:
    body = row["response_body"]
    data = base64.b64decode(body) if row.get("response_encoding") == "base64" else body.encode()
    if not row["streaming"]:
        return json.dumps(harmed(json.loads(data), random_)).encode()
    if wire == "bedrock-converse":
        events = [(e.name.decode(), json.loads(e.data)) for e in FrameStream().feed(data)]
        harmed(random_.choice(events)[1], random_)
        return b"".join(frame(json.dumps(p).encode(), event_type=kind) for kind, p in events)
    lines = list(lines_of(data))
    harmed(random_.choice([p for _, p in lines if isinstance(p, dict)]), random_)
    return b"\n".join(
        payload if isinstance(payload, bytes) else mark + json.dumps(payload).encode()
        for mark, payload in lines
    )


def is_saved(reply: Reply) -> None:
    results = [Message.tool(call, "x") for call in reply.tool_calls]
    messages = (Message.user("Hi"), reply.message, *results)
    text = RunState("r", 1, messages, usage=reply.usage).to_json()
    loaded = RunState.from_json(text)
    assert loaded.to_json() == text
    goes_on(reply)
    goes_on(Reply(loaded.messages[1], reply.finish))


@pytest.mark.parametrize("wire", WIRES)
def test_what_came_can_be_saved_whatever_it_is(wire: str, shared_data: Path) -> None:
    random_ = random.Random(23)  # noqa: S311
    rows = [row for row in recorded(shared_data, wire) if row["status"] == 200]
    for _ in range(ROUNDS):
        row = random_.choice(rows)
        reading = decoder(wire)
        reading.feed(harmed_body(wire, row, random_))
        try:
            reply = reading.finish()
        except ClientError:
            continue
        is_saved(reply)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


def anthropic(kept: Any) -> bytes:
    blocks = [
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": kept},
        {"type": "tool_use", "id": "t", "name": "pay", "input": {"n": 1}},
    ]
    return json.dumps({"content": blocks, "stop_reason": "tool_use"}).encode()


def responses(kept: Any) -> bytes:
    call = {"type": "function_call", "call_id": "t", "name": "pay", "arguments": '{"n": 1}'}
    output = [{"type": "mcp_call", "id": "m", "output": kept}, call | {"status": "completed"}]
    return json.dumps({"status": "completed", "output": output}).encode()


def gemini(kept: Any) -> bytes:
    call = {"functionCall": {"name": "pay", "args": {"n": 1}}, "thoughtSignature": "s"}
    parts = [{"executableCode": kept}, call]
    said = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    return json.dumps({"candidates": [said]}).encode()


def chat(kept: Any) -> bytes:
    call = {"id": "t", "type": "function", "function": {"name": "pay", "arguments": '{"n": 1}'}}
    message = {"reasoning_details": [kept], "tool_calls": [call]}
    return json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()


BODIES = {
    "anthropic": anthropic,
    "openai-responses": responses,
    "gemini": gemini,
    "openai-chat": chat,
}
MENDED: dict[str, tuple[Any, Any]] = {
    "half a pair": ("news \ud83d", "news \ufffd"),
    "a whole pair": ("\ud83d\ude00", "\U0001f600"),
    "a key": ({"\ud83d": [1]}, {"\ufffd": [1]}),
    "a long number": (10**40, 10**40),
    "some levels": (deep(90), deep(90)),
}
DROPPED: dict[str, Any] = {
    "no number": float("nan"),
    "infinity": float("inf"),
    "a number beyond a float": 10**400,
    "many levels": deep(300),
    "more levels": deep(700),
    "two keys that become one": TWINS,
}


def read(wire: str, kept: Any) -> Reply:
    reply = decode(wire, BODIES[wire](kept))
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments), call.complete) == ("pay", {"n": 1}, True)
    assert reply.finish == "tool_calls"
    is_saved(reply)
    return reply


@each_row("wire", list(BODIES))
@each_row(("kept", "mended"), MENDED.values(), ids=MENDED)
def test_texts_of_a_state_are_mended(kept: Any, mended: Any, wire: str) -> None:
    state = read(wire, kept).message.provider_state
    assert state is not None
    assert state == read(wire, mended).message.provider_state
    assert "state_dropped" not in read(wire, kept).tool_calls[0].notes
    found = [holder[key] for holder, key in places(state.data)]
    assert mended in found or float(mended) in found


@each_row("wire", list(BODIES))
@each_row("kept", DROPPED.values(), ids=DROPPED)
def test_a_state_that_cannot_be_saved_is_dropped_whole_and_noted(kept: Any, wire: str) -> None:
    reply = read(wire, kept)
    state = reply.message.provider_state
    assert state is None or state.data is None
    assert "state_dropped" in reply.tool_calls[0].notes


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_what_is_savable_is_saved_as_it_is(value: Any) -> None:
    try:
        kept = savable(value)
    except ValueError:
        return
    assert json.loads(msgspec.json.encode(kept)) == kept
    assert savable(kept) == kept
    str(kept).encode()  # raises nothing


HALVES = {
    "in a text": ('{"n": "\ud83d"}', r'{"n": "\ud83d"}'),
    "behind a backslash": ('{"n": "\\\ud83d"}', '{"n": "\\\ufffd"}'),
    "behind the object": ('{"n": 1}\ud83d', r'{"n": 1}\ud83d'),
}


@each_row(("sent", "kept"), HALVES.values(), ids=HALVES)
def test_arguments_with_half_a_pair_are_saved_and_refused(sent: str, kept: str) -> None:
    piece = {"index": 0, "id": "t", "function": {"name": "pay", "arguments": sent}}
    choice = {"delta": {"tool_calls": [piece]}, "finish_reason": "tool_calls"}
    reply = decode(OPENAI_CHAT, sse({"choices": [choice]}) + b"data: [DONE]\n\n")
    assert [call.arguments for call in reply.tool_calls] == [kept]
    is_saved(reply)
    (judged,) = (hydrate(call, Catalog([pay])) for call in reply.tool_calls)
    assert isinstance(judged, Rejected)
    assert judged.errors[0].code == ErrorCode.INVALID_JSON
