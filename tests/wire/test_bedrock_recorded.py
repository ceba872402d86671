"""Bedrock's wire against 184 recorded exchanges."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from wire.bedrock_reader import Unsupported, normal, normal_content, request_of
from wire.recorded_helpers import Row, calls_of, expected_calls, outcome, recorded

from toolcrib.errors import AuthenticationError, ClientError, RequestError
from toolcrib.values.message import ArgumentsPart, ChatRequest, Message, Reply, TextPart
from toolcrib.wire import BEDROCK_CONVERSE, decode, decoder, encode

CUT = {"max_tokens": "length", "guardrail_intervened": "content_filter"}


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "bedrock-converse")


@pytest.fixture(scope="module")
def streams(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["streaming"] and row["status"] == 200]


def bytes_of(row: Row) -> bytes:
    body: str = row["response_body"]
    return base64.b64decode(body) if row["response_encoding"] == "base64" else body.encode()


def decoded(row: Row) -> Reply:
    kind = row["content_type"]
    return decode("bedrock-converse", bytes_of(row), status=row["status"], content_type=kind)


def test_every_reply_is_as_recorded(rows: list[Row]) -> None:
    kinds: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == "error":
            continue
        reply, expected = decoded(row), row["expected"]
        assert calls_of(reply) == expected_calls(row), row["id"]
        assert reply.text == expected["text"], row["id"]
        reason = expected["finish_reason"]
        cut = CUT.get(reason)
        assert reply.provider_finish == reason
        assert reply.finish == (cut or ("tool_calls" if reply.tool_calls else "stop")), row["id"]
        assert all(call.complete is (cut is None) for call in reply.tool_calls)
        kinds[row["kind"]] += 1
    assert kinds == {"tool": 134, "text": 42}


def test_arguments_are_the_recorded_text(rows: list[Row]) -> None:
    """Of a stream the pieces; of a whole body its very bytes, however it was formatted."""
    told = 0
    for row in rows:
        if row["kind"] != "tool":
            continue
        for given, call in zip(row["expected"]["tool_calls"], decoded(row).tool_calls, strict=True):
            if row["streaming"]:
                assert call.arguments == (given["arguments_raw"] or "{}"), row["id"]
            else:
                assert call.arguments in row["response_body"]
            told += 1
    assert told > 130


def test_tokens_are_those_counted(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] != "error" and not row["streaming"]:
            usage = decoded(row).usage
            total = json.loads(row["response_body"])["usage"]["totalTokens"]
            assert usage.input_tokens + usage.output_tokens == total


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 8
    for row in errors:
        with pytest.raises(ClientError) as caught:
            decoded(row)
        kind = AuthenticationError if row["status"] == 403 else RequestError
        assert type(caught.value) is kind
        assert json.loads(row["response_body"])["message"].rstrip(".") in str(caught.value)


def test_streams_are_the_same_in_any_pieces(streams: list[Row]) -> None:
    random_ = random.Random(11)  # noqa: S311
    assert len(streams) == 28
    for row in streams:
        body = bytes_of(row)
        expected = outcome(decoder(BEDROCK_CONVERSE), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        for cuts in (row.get("chunk_sizes") or [], sizes, [1] * min(len(body), 4000)):
            assert outcome(decoder(BEDROCK_CONVERSE), body, cuts) == expected, row["id"]


def test_parts_make_up_the_reply(streams: list[Row]) -> None:
    for row in streams:
        reading = decoder("bedrock-converse", ids="r_")
        parts = reading.feed(bytes_of(row))
        assert reading.done
        reply = reading.finish()
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
        for call in reply.tool_calls:
            pieces = [p for p in parts if isinstance(p, ArgumentsPart) and p.call_id == call.id]
            assert ("".join(piece.text for piece in pieces) or "{}") == call.arguments
            assert {piece.name for piece in pieces} <= {call.name}


def test_a_stream_that_breaks_off_gives_nothing_to_run(streams: list[Row]) -> None:
    random_ = random.Random(5)  # noqa: S311
    for row in streams:
        body = bytes_of(row)
        end = body.rfind(b'"stopReason"')
        for _ in range(9):
            reading = decoder("bedrock-converse")
            reading.feed(body[: random_.randrange(1, end)])
            reply = reading.finish()
            assert reply.finish == "incomplete", row["id"]
            assert not any(call.complete for call in reply.tool_calls)


def test_a_reply_goes_back_as_it_came(rows: list[Row]) -> None:
    """Every recorded model's message, as the next request of that conversation has it."""
    kinds: Counter[str] = Counter()
    for row in rows:
        if row["streaming"] or row["kind"] == "error":
            continue
        content = json.loads(row["response_body"])["output"]["message"]["content"]
        reply = decoded(row)
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        messages = (Message.user("Hi"), reply.message, *results)
        body = json.loads(encode("bedrock-converse", ChatRequest(messages), model="m").body)
        if not reply.tool_calls:
            content = [block for block in content if not unsigned(block)]
        sent = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
        assert sent == ([normal_content(content)] if content else []), row["id"]
        kinds += Counter(next(iter(block)) for block in content)
    assert kinds == {"toolUse": 132, "text": 74, "reasoningContent": 7, "toolResult": 2}


def unsigned(block: Any) -> bool:
    said = block.get("reasoningContent", {}).get("reasoningText")
    return said is not None and "signature" not in said


def test_what_a_stream_brought_besides_goes_back(streams: list[Row]) -> None:
    """Reasoning, redacted too, and what the provider's own tool did, assembled from its pieces."""
    kinds: Counter[str] = Counter()
    for row in streams:
        reply = decoded(row)
        if reply.message.provider_state is not None:
            kinds += Counter(next(iter(block)) for block in reply.message.provider_state.data)
    assert kinds == {"toolUse": 2, "text": 2, "reasoningContent": 3, "toolResult": 1}


def test_recorded_requests_are_encoded_again(rows: list[Row]) -> None:
    """Every request body that the semantic types can say comes out equal."""
    told: Counter[str] = Counter()
    for row in rows:
        body = row["request"]
        if not isinstance(body, dict):
            continue
        try:
            request = request_of(body)
        except Unsupported as reason:
            told[str(reason).partition(":")[0]] += 1
            continue
        model = row["url_path"].split("/")[2].replace("%3A", ":")
        stream = row["url_path"].endswith("-stream")
        sent = encode("bedrock-converse", request, model=model, stream=stream)
        assert sent.path == row["url_path"].replace("%3A", ":")
        assert normal(json.loads(sent.body)) == normal(body), row["id"]
        told["tools" if body.get("toolConfig") else "no tools"] += 1
    assert told == {
        "tools": 139,
        "no tools": 31,
        "a result that is not text": 5,
        "the provider's own tool": 3,
        "a user's video": 2,
        "a user's document": 2,
        "a user's guardContent": 1,
    }
