"""Recorded exchanges, and what a decoder makes of them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolcrib.errors import ClientError
from toolcrib.values.message import ArgumentsPart, Message, Reply, TextPart
from toolcrib.wire import Decoder, Wire, decode, decoder

Row = dict[str, Any]


def recorded(shared_data: Path, name: str) -> list[Row]:
    with gzip.open(shared_data / f"wire/{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def edge_cases_of(shared_data: Path, name: str) -> list[Row]:
    text = (shared_data / "wire/edge_cases.jsonl").read_text(encoding="utf-8")
    cases = [json.loads(line) for line in text.splitlines()]
    return [case for case in cases if case["wire"] == name]


def decoded(wire: Wire, row: Row) -> Reply:
    body, kind = row["response_body"], row["content_type"]
    return decode(wire, body, status=row["status"], content_type=kind)


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {"__unparsed__": arguments}


def without_payload(message: Message) -> Message:
    """The message as it would be from other bytes that say the same."""
    calls = tuple(msgspec.structs.replace(call, payload=None) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls)


def calls_of(reply: Reply) -> list[tuple[str, str, Any]]:
    return [(call.provider_id, call.name, read(call.arguments)) for call in reply.tool_calls]


def expected_calls(row: Row) -> list[tuple[str, str, Any]]:
    calls = row["expected"]["tool_calls"]
    return [(call["id"] or "", call["name"], call["arguments"]) for call in calls]


def agrees(reply: Reply, row: Row) -> bool:
    """Calls, arguments, text and the verdict, which is given by what no call of a cut reply may do."""
    expected = row["expected"]
    cut = expected["finish_reason"] == "length"
    finish = "length" if cut else "tool_calls" if expected["tool_calls"] else "stop"
    whole = all(call.complete is not cut for call in reply.tool_calls)
    same = calls_of(reply) == expected_calls(row) and reply.text == expected["text"]
    return same and reply.finish == finish and whole


def outcome(reading: Decoder, body: bytes, sizes: list[int]) -> Any:
    parts, at = [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    parts += reading.feed(body[at:])
    try:
        reply = reading.finish()
    except ClientError as error:
        return parts, str(error)
    return parts, reply.message, reply.finish, reply.usage


def check_splits(wire: Wire, rows: list[Row]) -> None:
    """Any pieces of a stream give the same parts and the same reply, single bytes too."""
    random_ = random.Random(11)  # noqa: S311
    for row in rows:
        body = row["response_body"].encode()
        expected = outcome(decoder(wire), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        singly = [1] * min(len(body), 4000)
        for cuts in (row.get("chunk_sizes") or [], sizes, singly):
            assert outcome(decoder(wire), body, cuts) == expected, row["id"]


def check_parts(wire: Wire, rows: list[Row]) -> None:
    """The parts of a stream make up its reply."""
    for row in rows:
        reading = decoder(wire, ids="r_")
        parts = reading.feed(row["response_body"].encode())
        reply = reading.finish()
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
        for call in reply.tool_calls:
            pieces = [p for p in parts if isinstance(p, ArgumentsPart) and p.call_id == call.id]
            text = "".join(piece.text for piece in pieces)
            assert (text or "{}" if call.complete else text) == call.arguments
            assert {piece.name for piece in pieces} <= {call.name}


def check_torn(wire: Wire, rows: list[Row], end_of: Callable[[bytes], int]) -> None:
    """A stream that stops anywhere before its end is `incomplete`, and none of its calls may run."""
    random_ = random.Random(5)  # noqa: S311
    for row in rows:
        body = row["response_body"].encode()
        for at in (random_.randrange(1, end_of(body)) for _ in range(5)):
            reading = decoder(wire)
            reading.feed(body[:at])
            reply = reading.finish()
            assert reply.finish == "incomplete", (row["id"], at)
            assert not any(call.complete for call in reply.tool_calls)


def check_errors(wire: Wire, rows: list[Row]) -> None:
    for row in rows:
        with pytest.raises(ClientError) as caught:
            decoded(wire, row)
        assert caught.value.status == row["status"]
        said = json.loads(row["response_body"])
        assert (said.get("message") or said["detail"]) in str(caught.value)


def unequal_edges(wire: Wire, cases: list[Row]) -> set[str]:
    """The cases in which the calls are others than expected."""
    wrong = set()
    for case in cases:
        found = calls_of(decode(wire, case["body"]))
        wanted = [(c["id"], c["name"], c["arguments"]) for c in case["expected"]["tool_calls"]]
        pairs = list(zip(found, wanted, strict=False))
        good = all(want[0] in ("*", have[0]) and want[1:] == have[1:] for have, want in pairs)
        if not good or len(found) != len(wanted):
            wrong.add(case["id"])
    return wrong
