"""Recorded replies with something changed in them: never a crash, never a call of a cut reply.

Members are replaced, dropped, doubled; events too, and told in another order. Whatever is read must
be the same in any pieces, and can be sent on to every provider.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import sample
from servers.bedrock import frame
from wire.recorded_helpers import Row, recorded

from toolcrib.errors import ClientError
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart
from toolcrib.wire import WIRES, decoder, encode
from toolcrib.wire.framing import FrameStream

JUNK: tuple[Any, ...] = (None, 5, "x", "", [], [5], {}, True, -1, 10**30, {"text": 5},
        {"type": "text"}, "\ud800", {"toolUse": {}}, {"type": "thinking"}, "é👍")  # fmt: skip
ROUNDS = sample(400, part=6)

Event = tuple[str, Any]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def changed(value: Any, random_: random.Random) -> Any:
    copy = json.loads(json.dumps(value))
    if not (all_ := list(places(copy))):
        return copy
    (holder, key), (other, at) = random_.choice(all_), random_.choice(all_)
    match random_.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        case 2:
            holder[key] = json.loads(json.dumps(other[at]))
        case _:
            holder[key] = json.loads(json.dumps(random_.choice(JUNK)))
    return copy


def retold(events: list[Event], random_: random.Random) -> list[Event]:
    at, to = random_.randrange(len(events)), random_.randrange(len(events))
    match random_.randrange(5):
        case 0:
            return events[:at] + events[at + 1 :] or events
        case 1:
            return [*events[:to], events[at], *events[to:]]
        case 2:
            return random_.sample(events, len(events))
        case 3:
            return events + events
    kind, payload = events[at]
    return [*events[:at], (kind, changed(payload, random_)), *events[at + 1 :]]


def events_of(wire: str, body: bytes) -> list[Event]:
    if wire == "bedrock-converse":
        return [(e.name.decode(), json.loads(e.data)) for e in FrameStream().feed(body)]
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    return [(event["type"], event) for event in map(json.loads, lines)]


def streamed(wire: str, events: list[Event]) -> bytes:
    if wire == "bedrock-converse":
        return b"".join(frame(json.dumps(p).encode(), event_type=kind) for kind, p in events)
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for _, payload in events)


def mutated(wire: str, row: Row, random_: random.Random) -> bytes:
    body = row["response_body"]
    data = base64.b64decode(body) if row.get("response_encoding") == "base64" else body.encode()
    if not row["streaming"]:
        return json.dumps(changed(json.loads(data), random_)).encode()
    events = events_of(wire, data)
    for _ in range(random_.choice((1, 2, 4))):
        events = retold(events, random_)
    return streamed(wire, events)


def read(wire: str, body: bytes, sizes: list[int]) -> tuple[Any, ...]:
    reading, at, parts = decoder(wire), 0, []
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    parts += reading.feed(body[at:])
    try:
        return parts, reading.finish()
    except ClientError as error:
        return parts, str(error)


def goes_on(reply: Reply) -> None:
    results = [Message.tool(call, "x") for call in reply.tool_calls]
    request = ChatRequest((Message.user("Hi"), reply.message, *results, Message.user("So?")))
    for wire in WIRES:
        assert encode(wire, request, model="m").body


@pytest.mark.parametrize("wire", ["bedrock-converse", "cohere"])
def test_whatever_was_changed(wire: str, shared_data: Path) -> None:
    random_ = random.Random(19)  # noqa: S311
    rows = [row for row in recorded(shared_data, wire) if row["status"] == 200]
    finishes = set()
    for _ in range(ROUNDS):
        row = random_.choice(rows)
        body = mutated(wire, row, random_)
        parts, outcome = read(wire, body, [])
        sizes = [random_.choice((1, 2, 7, 100)) for _ in range(len(body) // 30)]
        assert read(wire, body, sizes) == (parts, outcome), row["id"]
        if isinstance(outcome, Reply):
            whole = {call.complete for call in outcome.tool_calls}
            assert (True in whole) is (outcome.finish == "tool_calls"), row["id"]
            said = "".join(part.text for part in parts if isinstance(part, TextPart))
            assert said in ("", outcome.text) or "\ufffd" in outcome.text
            goes_on(outcome)
            finishes.add(outcome.finish)
    assert finishes > {"stop", "tool_calls", "incomplete"}
