"""What decoders, encoders and views give, frozen as digests: a change of the code's shape changes none.

`frozen.json` holds a digest of what each recorded body decodes to, of the requests that tell each wire
of conversations that other wires had, and of each wire's view of 2,185 tools. A change that means to
change one of them writes the file anew, and says in its commit what changed and why:

    python tests/test_frozen.py
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import ClientError, ToolcribError
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    ReasoningPart,
    Reply,
    TextPart,
)
from toolcrib.wire import FORMS, WIRES, decode, decoder, encode, encode_tools

FROZEN = Path(__file__).with_name("frozen.json")
TOLD = 40
"""How many recorded conversations of each wire are told to the others."""

Frozen = dict[str, dict[str, str]]


def digest(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def reply_of(reply: Reply) -> Any:
    calls = [
        {
            "id": call.id,
            "provider_id": call.provider_id,
            "name": call.name,
            "arguments": call.arguments,
            "complete": call.complete,
            "notes": call.notes,
            "fault": call.fault and [str(call.fault.code), call.fault.message],
            "payload": call.payload and [call.payload.digest, call.payload.size],
        }
        for call in reply.tool_calls
    ]
    state = reply.message.provider_state
    usage = reply.usage
    return {
        "text": reply.text,
        "calls": calls,
        "finish": reply.finish,
        "reason": reply.provider_finish,
        "usage": [usage.input_tokens, usage.output_tokens, usage.cache_read, usage.cache_written],
        "state": state and state.data and [state.wire, state.data],
        "raw": reply.raw,
    }


def part_of(part: TextPart | ArgumentsPart) -> list[str]:
    match part:
        case TextPart(text):
            return [text]
        case ArgumentsPart(call_id, name, text):
            return [call_id, name, text]


FROZEN_WIRES = [
    wire for wire in WIRES if f'"replies of {wire}"' in FROZEN.read_text(encoding="utf-8")
]
"""A wire without recordings cannot be frozen, and one that came later is, once it has some."""


def recorded(data: Path, wire: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data / f"wire/{wire}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def body_of(row: dict[str, Any]) -> bytes:
    body: str = row["response_body"]
    return base64.b64decode(body) if row.get("response_encoding") == "base64" else body.encode()


def whole(wire: str, row: dict[str, Any]) -> Reply:
    return decode(wire, body_of(row), status=row["status"], content_type=row["content_type"])


def streamed(wire: str, row: dict[str, Any]) -> Any:
    """What a stream gives in pieces of 997 bytes: its parts, and how it ended."""
    body, reading = body_of(row), decoder(wire)
    parts = [
        part_of(part)
        for at in range(0, len(body), 997)
        for part in reading.feed(body[at : at + 997])
        if not isinstance(part, ReasoningPart)
    ]
    return [parts, reply_of(reading.finish())]


def replies(data: Path, wire: str) -> dict[str, str]:
    found = {}
    for row in recorded(data, wire):
        try:
            said = [reply_of(whole(wire, row))]
            if row["streaming"] and row["status"] == 200:
                said.append(streamed(wire, row))
        except ClientError as error:
            said = [type(error).__name__]
        found[row["id"]] = digest(said)
    return found


def conversations(data: Path, wire: str) -> Iterator[tuple[Message, ...]]:
    """Conversations with a call and its result, as that wire's replies begin them."""
    count = 0
    for row in recorded(data, wire):
        if count == TOLD:
            return
        try:
            reply = whole(wire, row)
        except ClientError:
            continue
        if reply.tool_calls:
            count += 1
            results = [Message.tool(call, '{"done": "é"}') for call in reply.tool_calls]
            asked = (Message.system("Be brief."), Message.user("Do it."))
            yield (*asked, reply.message, *results, Message.user("And now?"))


def requests(data: Path, wire: str) -> dict[str, str]:
    """What each wire is told of conversations that `wire` began."""
    said = list(conversations(data, wire))
    found = {}
    for name in WIRES:
        bodies = []
        for messages in said:
            try:
                request = encode(name, ChatRequest(messages), model="m", stream=True)
                bodies.append([request.path, request.body.decode(), dict(request.headers)])
            except ToolcribError as error:
                bodies.append([type(error).__name__])
        found[name] = digest(bodies)
    return found


def tools_of(data: Path) -> list[dict[str, Any]]:
    files = sorted((data / "pick").glob("*/tools.jsonl"))
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


def views(data: Path) -> dict[str, str]:
    found = {}
    for form in FORMS:
        sent: list[Any] = []
        for tool in tools_of(data):
            try:
                sent.append(encode_tools(form, [tool]))
            except ToolcribError as error:
                sent.append(type(error).__name__)
        found[form] = digest(sent)
    return found


def all_of(data: Path) -> Frozen:
    wires = [wire for wire in WIRES if (data / f"wire/{wire}.jsonl.gz").exists()]
    made = {f"replies of {wire}": replies(data, wire) for wire in wires}
    made |= {f"conversations of {wire}": requests(data, wire) for wire in wires}
    return made | {"views of tools": views(data)}


@pytest.fixture(scope="module")
def frozen() -> Frozen:
    found: Frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    return found


@each_row("wire", FROZEN_WIRES)
def test_recorded_bodies_decode_as_they_did(shared_data: Path, frozen: Frozen, wire: str) -> None:
    found, before = replies(shared_data, wire), frozen[f"replies of {wire}"]
    assert {row for row in found if found[row] != before[row]} == set()
    assert len(found) == len(before)


@each_row("wire", FROZEN_WIRES)
def test_conversations_are_told_as_they_were(shared_data: Path, frozen: Frozen, wire: str) -> None:
    found, before = requests(shared_data, wire), frozen[f"conversations of {wire}"]
    assert {name: found[name] for name in before} == before


@pytest.mark.exhaustive  # thousands of tools, for eight wires
def test_tools_look_to_each_provider_as_they_did(shared_data: Path, frozen: Frozen) -> None:
    assert views(shared_data) == frozen["views of tools"]


if __name__ == "__main__":
    made = all_of(Path(sys.argv[1] if sys.argv[1:] else "../shared") / "data")
    FROZEN.write_text(json.dumps(made, indent=0) + "\n", encoding="utf-8")
