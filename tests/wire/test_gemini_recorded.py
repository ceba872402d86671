"""Replies of Gemini's wire: 427 recorded bodies, and the two odd ones from users' reports.

Where the decoder disagrees with what is recorded as expected, the reason is written down here.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from wire.recorded_helpers import without_payload

from toolcrib.errors import AuthenticationError, ClientError, RateLimitError, RequestError
from toolcrib.values.message import ArgumentsPart, ChatRequest, Message, Reply, TextPart
from toolcrib.wire import Decoder, decode, decoder, encode

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    with gzip.open(shared_data / "wire/gemini.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def edge_cases(shared_data: Path) -> dict[str, Row]:
    text = (shared_data / "wire/edge_cases.jsonl").read_text(encoding="utf-8")
    cases = [json.loads(line) for line in text.splitlines()]
    return {case["id"]: case for case in cases if case["wire"] == "gemini"}


@pytest.fixture(scope="module")
def good(rows: list[Row]) -> list[tuple[Row, Reply]]:
    return [(row, decoded(row)) for row in rows if row["kind"] != "error"]


def decoded(row: Row) -> Reply:
    body, kind = row["response_body"], row["content_type"]
    return decode("gemini", body, status=row["status"], content_type=kind)


def expected_calls(row: Row) -> list[tuple[str, str, Any]]:
    calls = row["expected"]["tool_calls"]
    return [(call["id"] or "", call["name"], call["arguments"]) for call in calls]


def calls_of(reply: Reply) -> list[tuple[str, str, Any]]:
    return [(c.provider_id, c.name, json.loads(c.arguments)) for c in reply.tool_calls]


def chunks_of(row: Row) -> list[Any]:
    body = row["response_body"]
    lines = [body] if body.startswith("{") else body.split("data:")[1:]
    return [json.loads(line) for line in lines]


def parts_of(row: Row) -> list[Any]:
    contents = [chunk["candidates"][0]["content"] for chunk in chunks_of(row)]
    return [part for content in contents for part in content.get("parts", ())]


def test_calls_arguments_and_text_are_as_recorded(good: list[tuple[Row, Reply]]) -> None:
    assert sum(row["kind"] == "tool" for row, _ in good) == 365
    for row, reply in good:
        assert calls_of(reply) == expected_calls(row), row["id"]
        assert reply.text == row["expected"]["text"], row["id"]


def test_arguments_are_the_recorded_text(good: list[tuple[Row, Reply]]) -> None:
    for row, reply in good:
        for call in reply.tool_calls:
            assert call.arguments in row["response_body"], row["id"]


def test_only_cut_replies_are_cut(good: list[tuple[Row, Reply]]) -> None:
    reasons = set()
    for row, reply in good:
        reason = row["expected"]["finish_reason"]
        reasons.add(reason)
        cut = "length" if reason == "MAX_TOKENS" else None
        assert reply.finish == (cut or ("tool_calls" if reply.tool_calls else "stop")), row["id"]
        assert reply.provider_finish == str(reason)
        assert all(call.complete is (cut is None) for call in reply.tool_calls)
    assert reasons == {"STOP", "MAX_TOKENS", "UNEXPECTED_TOOL_CALL", 1}


def test_tokens_are_those_of_the_last_chunk(good: list[tuple[Row, Reply]]) -> None:
    for row, reply in good:
        total = chunks_of(row)[-1]["usageMetadata"].get("totalTokenCount", 0)
        if row["id"] == "da233199cbdf0283":  # only a chunk before the last counts what was said
            total += 21
        assert reply.usage.input_tokens + reply.usage.output_tokens == total, row["id"]


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 13
    for row in errors:
        with pytest.raises(ClientError) as caught:
            decoded(row)
        kind: type[ClientError] = RateLimitError if row["status"] == 429 else RequestError
        if "API_KEY_INVALID" in row["response_body"]:
            kind = AuthenticationError
        assert type(caught.value) is kind
        assert json.loads(row["response_body"])["error"]["message"][:60] in str(caught.value)


def outcome(reading: Decoder, body: bytes, sizes: list[int]) -> Any:
    parts, at = [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    parts += reading.feed(body[at:])
    reply = reading.finish()
    return parts, reply.message, reply.finish, reply.usage


def test_streams_are_the_same_in_any_pieces(rows: list[Row]) -> None:
    random_ = random.Random(11)  # noqa: S311
    streams = [row for row in rows if row["streaming"] and row["status"] == 200]
    assert len(streams) == 48
    for row in streams:
        body = row["response_body"].encode()
        expected = outcome(decoder("gemini"), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        for cuts in (row.get("chunk_sizes", []), sizes):
            assert outcome(decoder("gemini"), body, cuts) == expected


def test_a_stream_as_an_array_is_the_same_reply(rows: list[Row]) -> None:
    for row in rows:
        if row["streaming"] and row["status"] == 200:
            body = row["response_body"].encode()
            items = [line.strip() for line in body.split(b"data:")[1:]]
            array = b"[" + b"\n,\r\n".join(items) + b"]\n"
            _, message, *rest = outcome(decoder("gemini"), body, [])
            _, again, *same = outcome(decoder("gemini"), array, [3, 1, 1, 50])
            assert (without_payload(again), same) == (without_payload(message), rest)


def test_parts_make_up_the_reply(rows: list[Row]) -> None:
    for row in rows:
        if not row["streaming"] or row["status"] != 200:
            continue
        reading = decoder("gemini", ids="r_")
        parts = reading.feed(row["response_body"].encode())
        reply = reading.finish()
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
        shown = [(p.call_id, p.name, p.text) for p in parts if isinstance(p, ArgumentsPart)]
        assert shown == [(call.id, call.name, call.arguments) for call in reply.tool_calls]


def test_a_stream_that_breaks_off_gives_nothing_to_run(rows: list[Row]) -> None:
    random_ = random.Random(5)  # noqa: S311
    for row in rows:
        body = row["response_body"].encode()
        if not row["streaming"] or row["kind"] != "tool":
            continue
        reading = decoder("gemini")
        reading.feed(body[: random_.randrange(8, body.index(b'"finishReason"'))])
        reply = reading.finish()
        assert reply.finish == "incomplete", row["id"]
        assert not any(call.complete for call in reply.tool_calls)


def test_what_the_model_sent_goes_back_as_it_came(good: list[tuple[Row, Reply]]) -> None:
    """Every part in its place, with its signature; adjacent pieces of plain text are one."""
    signed = 0
    for row, reply in good:
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        sent = encode(
            "gemini", ChatRequest((Message.user("?"), reply.message, *results)), model="m"
        )
        contents = [c for c in json.loads(sent.body)["contents"] if c["role"] == "model"]
        there = [part for content in contents for part in content["parts"]]
        assert list(map(comparable, there)) == joined(parts_of(row)), row["id"]
        signed += sum("thoughtSignature" in part for part in parts_of(row))
    assert signed == 369


def comparable(part: Row) -> Row:
    """Without a made id, and without the signature that stands for none."""
    form = dict(part)
    if "functionCall" in form:
        form["functionCall"] = {k: v for k, v in form["functionCall"].items() if k != "id"}
        if len(form.get("thoughtSignature", "")) == 44:
            del form["thoughtSignature"]
    return form


def joined(parts: list[Row]) -> list[Row]:
    made: list[Row] = []
    for part in map(comparable, parts):
        if part == {"text": ""}:
            continue
        bare = part.keys() <= {"text", "thought"}
        if bare and made and made[-1].keys() == part.keys():
            made[-1] = part | {"text": made[-1]["text"] + part["text"]}
        else:
            made.append(part)
    return made


def test_edge_cases(edge_cases: dict[str, Row]) -> None:
    assert set(edge_cases) == {"gemini-partial-args", "gemini-unexpected-tool-call"}
    odd = decode("gemini", edge_cases["gemini-unexpected-tool-call"]["body"])
    assert calls_of(odd) == [("", "list_files", {})]
    assert (odd.finish, odd.tool_calls[0].complete) == ("tool_calls", True)


def test_arguments_in_values_are_put_together(edge_cases: dict[str, Row]) -> None:
    """The reference decoder, which does not do that, expects eight calls without arguments."""
    body = edge_cases["gemini-partial-args"]["body"].encode()
    whole = outcome(decoder("gemini"), body, [])
    places = ["Boston", "San Francisco"]
    assert [json.loads(call.arguments) for call in whole[1].tool_calls] == [
        {"location": place} for place in places
    ]
    assert [part.text for part in whole[0]] == [f'{{"location": "{place}"}}' for place in places]
    assert whole[2] == "tool_calls"
    assert outcome(decoder("gemini"), body, [1] * len(body)) == whole
    last = body.rindex(b"data:")
    reading = decoder("gemini")
    reading.feed(body[:last])
    reply = reading.finish()
    assert [call.complete for call in reply.tool_calls] == [False, False]
