"""Anthropic's wire against 643 recorded exchanges, and those that Bedrock carried."""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from wire.anthropic_reader import Unsupported, marks_of, normal, request_of

from toolcrib.errors import ClientError, ProviderError, WireError
from toolcrib.values.message import ArgumentsPart, ChatRequest, Message, Reply, TextPart
from toolcrib.wire import Decoder, decode, decoder, encode

Row = dict[str, Any]

CUT = {"max_tokens": "length", "pause_turn": "length", "refusal": "refusal"}


def recorded(shared_data: Path, name: str) -> list[Row]:
    with gzip.open(shared_data / f"wire/{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "anthropic")


@pytest.fixture(scope="module")
def bedrock(shared_data: Path) -> list[Row]:
    rows = recorded(shared_data, "bedrock-invoke")
    return [row for row in rows if "anthropic_version" in (row["request"] or {})]


def decoded(row: Row) -> Reply:
    body, kind = row["response_body"], row["content_type"]
    return decode("anthropic", body, status=row["status"], content_type=kind)


def calls_of(reply: Reply) -> list[tuple[str, str, Any]]:
    return [(call.provider_id, call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def check(row: Row, reply: Reply) -> None:
    expected = row["expected"]
    calls = [(call["id"], call["name"], call["arguments"]) for call in expected["tool_calls"]]
    assert calls_of(reply) == calls, row["id"]
    assert reply.text == expected["text"], row["id"]
    reason = expected["finish_reason"]
    cut = CUT.get(reason)
    assert reply.provider_finish == reason
    assert reply.finish == (cut or ("tool_calls" if calls else "stop")), row["id"]
    assert all(call.complete is (cut is None) for call in reply.tool_calls)


def test_every_reply_is_as_recorded(rows: list[Row]) -> None:
    good = [row for row in rows if row["kind"] != "error"]
    assert len(good) == 633
    for row in good:
        check(row, decoded(row))


def test_arguments_are_the_recorded_text(rows: list[Row]) -> None:
    """Of a stream the pieces; of a whole body its very bytes, however it was formatted."""
    told = 0
    for row in rows:
        if row["kind"] == "error":
            continue
        given = [call["arguments_raw"] for call in row["expected"]["tool_calls"]]
        for raw, call in zip(given, decoded(row).tool_calls, strict=True):
            if row["streaming"]:
                assert call.arguments == (raw or "{}"), row["id"]
            else:
                assert call.arguments in row["response_body"]
            told += 1
    assert told > 500


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 10
    for row in errors:
        with pytest.raises(ClientError) as caught:
            decoded(row)
        assert caught.value.status == row["status"]
        assert not isinstance(caught.value, WireError)
        assert json.loads(row["response_body"])["error"]["message"] in str(caught.value)


def outcome(reading: Decoder, body: bytes, sizes: list[int]) -> Any:
    parts, at = [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    parts += reading.feed(body[at:])
    return parts, reading.finish()


def test_streams_are_the_same_in_any_pieces(rows: list[Row]) -> None:
    random_ = random.Random(11)  # noqa: S311
    for row in rows:
        if not row["streaming"] or row["status"] != 200:
            continue
        body = row["response_body"].encode()
        expected = outcome(decoder("anthropic"), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        for cuts in (row.get("chunk_sizes", []), sizes):
            assert outcome(decoder("anthropic"), body, cuts) == expected, row["id"]


def test_text_that_is_no_ascii_survives_single_bytes(rows: list[Row]) -> None:
    """musistudio/claude-code-router#1672: a character cut in its middle is no U+FFFD."""
    seen = 0
    for row in sorted(rows, key=lambda row: len(row["response_body"])):
        if not row["streaming"] or row["response_body"].isascii() or seen > 12:
            continue
        body = row["response_body"].encode()
        _, reply = outcome(decoder("anthropic"), body, [1] * len(body))
        check(row, reply)
        assert "\ufffd" not in reply.text
        seen += 1
    assert seen > 10


def test_parts_make_up_the_reply(rows: list[Row]) -> None:
    for row in rows:
        if not row["streaming"] or row["kind"] == "error":
            continue
        reading = decoder("anthropic", ids="r_")
        parts = reading.feed(row["response_body"].encode())
        reply = reading.finish()
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
        for call in reply.tool_calls:
            pieces = [p for p in parts if isinstance(p, ArgumentsPart) and p.call_id == call.id]
            assert ("".join(piece.text for piece in pieces) or "{}") == call.arguments
            assert {piece.name for piece in pieces} <= {call.name}


def test_a_stream_that_breaks_off_gives_nothing_to_run(rows: list[Row]) -> None:
    random_ = random.Random(5)  # noqa: S311
    for row in rows:
        body = row["response_body"].encode()
        if not row["streaming"] or row["kind"] != "tool":
            continue
        end = body.rfind(b'"stop_reason":')
        for _ in range(5):
            reading = decoder("anthropic")
            reading.feed(body[: random_.randrange(8, end)])
            reply = reading.finish()
            assert reply.finish == "incomplete", row["id"]
            assert not any(call.complete for call in reply.tool_calls)


def test_a_reply_goes_back_as_it_came(rows: list[Row]) -> None:
    """Every recorded assistant's message, as the next request of that conversation has it."""
    kinds: Counter[str] = Counter()
    for row in rows:
        if row["streaming"] or row["kind"] == "error":
            continue
        content = json.loads(row["response_body"])["content"]
        reply = decoded(row)
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        messages = (Message.user("Hi"), reply.message, *results)
        body = json.loads(encode("anthropic", ChatRequest(messages), model="m").body)
        assert normal_content(body["messages"][1]["content"]) == normal_content(content), row["id"]
        kinds += Counter(block["type"] for block in content)
    assert kinds["thinking"] > 40
    assert kinds["server_tool_use"] > 100


def normal_content(content: Any) -> list[Any]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    plain = ({"type": "direct"}, None)
    return [
        {key: value for key, value in block.items()
         if (key != "citations" or value) and (key != "caller" or value not in plain)}
        for block in blocks
    ]  # fmt: skip


def test_recorded_requests_are_encoded_again(rows: list[Row], bedrock: list[Row]) -> None:
    """Every request body that the semantic types can say comes out equal."""
    told: Counter[str] = Counter()
    for row in rows + bedrock:
        body = row["request"]
        if not isinstance(body, dict):
            continue
        try:
            request = request_of(body)
        except Unsupported as reason:
            told[str(reason).partition(":")[0]] += 1
            continue
        sent = encode("anthropic", request, model="m", stream=bool(body.get("stream")))
        again = json.loads(sent.body)
        assert normal(again) == normal(body), row["id"]
        assert again.get("stream", False) is bool(body.get("stream", False))
        told["tools" if body.get("tools") else "no tools"] += 1
        told.update(marks_of(body))
    assert {key: told[key] for key in UNSUPPORTED} == UNSUPPORTED
    assert (told["tools"], told["no tools"]) == (461, 45)
    assert {key: told[key] for key in MARKED} == MARKED


UNSUPPORTED = {
    "the provider's own tool": 78,
    "a result that is not text": 12,
    "a user's document": 1,
    "a message of the role system": 1,
    "an image from a file": 1,
    "no message": 1,
}
"""What the semantic types have no word for, and how many recorded requests use it."""

MARKED = {"cache_control": 195, "eager_input_streaming": 15, "defer_loading": 13}
"""Markers of single tools and blocks, which are left out of the comparison."""


def test_bedrock_carries_the_same_bodies(bedrock: list[Row]) -> None:
    kinds: Counter[str] = Counter()
    for row in bedrock:
        body = row["response_body"].encode()
        if row["response_encoding"] == "base64":
            body = unframed(base64.b64decode(body))
        kinds[row["kind"]] += 1
        if row["kind"] == "error":
            with pytest.raises(ClientError):
                decode("anthropic", body, status=row["status"])
            continue
        check(row, decode("anthropic", body, content_type=row["content_type"]))
    assert kinds == {"text": 14, "tool": 6, "error": 1}


def unframed(data: bytes) -> bytes:
    """The events in an AWS event stream: https://smithy.io/2.0/aws/amazon-eventstream.html"""
    events = []
    while data:
        total, headers = struct.unpack_from(">II", data)
        payload = json.loads(data[12 + headers : total - 4])
        events.append(b"data: " + base64.b64decode(payload["bytes"]) + b"\n\n")
        data = data[total:]
    return b"".join(events)


EDGE_CASES = {
    "sse-ping-empty": [],
    "anthropic-error-event": ("Overloaded", "overloaded_error"),
    "anthropic-truncated": None,
    "anthropic-input-in-start": [("toolu_1", "bash", {"command": "ls"})],
}


def test_edge_cases(shared_data: Path) -> None:
    lines = (shared_data / "wire/edge_cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = {case["id"]: case for case in map(json.loads, lines) if case["wire"] == "anthropic"}
    assert cases.keys() == {*EDGE_CASES, "utf8-split"}  # the last is a method, tested above
    for name, expected in EDGE_CASES.items():
        body = cases[name]["body"]
        if isinstance(expected, tuple):
            with pytest.raises(ProviderError) as caught:
                decode("anthropic", body)
            assert all(said in str(caught.value) for said in expected)
            continue
        reply = decode("anthropic", body)
        if expected is None:
            assert reply.finish == "incomplete"
            assert not any(call.complete for call in reply.tool_calls)
        else:
            assert calls_of(reply) == expected
            assert reply.finish == ("tool_calls" if expected else "stop")
