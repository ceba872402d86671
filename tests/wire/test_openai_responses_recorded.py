"""OpenAI Responses as recorded: 567 bodies read, and the requests that hold tools written again.

Where the decoder disagrees with what is recorded as expected, the reason is written down here.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from wire.responses_reader import Unsupported, normal_form, read_request

from toolcrib.errors import ClientError, WireError
from toolcrib.values.message import ArgumentsPart, ChatRequest, Message, Reply, TextPart
from toolcrib.wire import Decoder, decode, decoder, encode

Row = dict[str, Any]

DISAGREEMENTS = {
    "0c31b5eefc6f003f": "a refusal is text here, as on every wire; expected leaves it out",
    "491f4ac18e161453": "four responses in one body: the first one is the reply",
    "620b95584b0b04b4": "two responses in one body: the first one is the reply",
    "c8705f0be8f666c6": "four responses in one body: the first one is the reply",
}


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    path = shared_data / "wire/openai-responses.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def decoded(row: Row) -> Reply:
    body, kind = row["response_body"], row["content_type"]
    return decode("openai-responses", body, status=row["status"], content_type=kind)


def answered(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] in ("tool", "text", "server_tool")]


def test_calls_arguments_and_text_are_as_recorded(rows: list[Row]) -> None:
    wrong = set()
    for row in answered(rows):
        reply, expected = decoded(row), row["expected"]
        calls = [(c.provider_id, c.name, c.arguments) for c in reply.tool_calls]
        wanted = [(c["id"], c["name"], c["arguments_raw"] or "{}") for c in expected["tool_calls"]]
        if (calls, reply.text) != (wanted, expected["text"]):
            wrong.add(row["id"])
    assert wrong == set(DISAGREEMENTS)
    tools = [row for row in rows if row["kind"] == "tool"]
    assert sum(row["id"] in wrong for row in tools) / len(tools) < 0.005


def test_only_cut_replies_are_cut(rows: list[Row]) -> None:
    for row in answered(rows):
        reply = decoded(row)
        usual = "tool_calls" if reply.tool_calls else "stop"
        cut = {"incomplete": "length"}.get(row["expected"]["finish_reason"])
        if row["id"] == "0c31b5eefc6f003f":
            usual = "refusal"
        assert reply.finish == (cut or usual), row["id"]
        assert all(call.complete is (cut is None) for call in reply.tool_calls), row["id"]


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] in ("error", "stream_error")]
    assert len(errors) == 11
    for row in errors:
        with pytest.raises(ClientError) as caught:
            decoded(row)
        assert caught.value.status == (row["status"] if row["kind"] == "error" else None)
        assert not isinstance(caught.value, WireError)
        error = row["expected"].get("error") or json.loads(row["response_body"])["error"]
        assert error["message"][:25] in str(caught.value)


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


def test_streams_are_the_same_in_any_pieces(rows: list[Row]) -> None:
    random_ = random.Random(11)  # noqa: S311
    for row in rows:
        if not row["streaming"] or row["status"] != 200:
            continue
        body = row["response_body"].encode()
        expected = outcome(decoder("openai-responses"), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        for cuts in (row.get("chunk_sizes", []), sizes):
            assert outcome(decoder("openai-responses"), body, cuts) == expected


def test_parts_make_up_the_reply(rows: list[Row]) -> None:
    """But for some of the reframed recordings, whose paths were shortened at the items' ends only."""
    different = set()
    for row in answered(rows):
        if not row["streaming"]:
            continue
        reading = decoder("openai-responses", ids="r_")
        parts = reading.feed(row["response_body"].encode())
        reply = reading.finish()
        same = "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
        for call in reply.tool_calls:
            pieces = [p for p in parts if isinstance(p, ArgumentsPart) and p.call_id == call.id]
            same = same and ("".join(p.text for p in pieces) or "{}") == call.arguments
            assert {piece.name for piece in pieces} <= {call.name}
        different |= set() if same else {(row["id"], row["fidelity"])}
    assert {fidelity for _, fidelity in different} == {"reframed"}
    assert len(different) == 11


def test_a_stream_that_breaks_off_gives_nothing_to_run(rows: list[Row]) -> None:
    random_ = random.Random(5)  # noqa: S311
    for row in rows:
        body = row["response_body"].encode()
        end = body.find(b'"response.completed"')
        if row["streaming"] and row["kind"] == "tool" and end > 0:
            reading = decoder("openai-responses")
            reading.feed(body[: random_.randrange(8, end)])
            reply = reading.finish()
            assert reply.finish == "incomplete", row["id"]
            assert not any(call.complete for call in reply.tool_calls)


def read_of(reply: Reply) -> list[tuple[Any, ...]]:
    return [(c.id, c.provider_id, c.name, c.arguments, c.complete) for c in reply.tool_calls]


def test_a_stream_and_its_last_event_give_the_same_reply(rows: list[Row]) -> None:
    """Whole and streaming: the response in the last event, read as a whole body, is the reply too."""
    different = set()
    for row in answered(rows):
        if not row["streaming"] or row["id"] in DISAGREEMENTS:
            continue
        lines = row["response_body"].splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        (last,) = [e["response"] for e in events if e["type"] in ("response.completed",
                                                                  "response.incomplete")]  # fmt: skip
        streamed, whole = decoded(row), decode("openai-responses", json.dumps(last))
        told = [(r.text, read_of(r), r.finish, r.usage) for r in (streamed, whole)]
        different |= {row["id"]} if told[0] != told[1] else set()
    assert different == {"f7090d843fd62123"}  # its last event has no output at all


def test_edge_cases(shared_data: Path) -> None:
    text = (shared_data / "wire/edge_cases.jsonl").read_text(encoding="utf-8")
    cases = [case for line in text.splitlines() if (case := json.loads(line))]
    cases = [case for case in cases if case["wire"] == "openai-responses"]
    assert len(cases) == 1
    for case in cases:
        reply = decode("openai-responses", case["body"])
        calls = [(c.provider_id, c.name, json.loads(c.arguments)) for c in reply.tool_calls]
        wanted = case["expected"]["tool_calls"]
        assert calls == [(want["id"], want["name"], want["arguments"]) for want in wanted]
        assert reply.finish == "tool_calls"


def test_replies_go_back_and_their_items_with_them(rows: list[Row]) -> None:
    """Each recorded reply with a result for every call: its own items as they came, if any matter."""
    kept = 0
    for row in answered(rows):
        reply = decoded(row)
        results = [Message.tool(call, "done") for call in reply.tool_calls]
        request = ChatRequest((Message.user("Hi"), reply.message, *results))
        items = json.loads(encode("openai-responses", request, model="m").body)["input"][1:]
        state, answers = reply.message.provider_state, items[len(items) - len(results) :]
        ids = [item["call_id"] for item in answers]
        assert ids == [call.provider_id for call in reply.tool_calls]
        own = items[: len(items) - len(results)]
        if state is None:
            assert {item.get("type", "message") for item in own} <= {"message", "function_call"}
            assert [item["call_id"] for item in own if "call_id" in item] == ids
        elif all(call.complete for call in reply.tool_calls):
            kept += 1
            assert own == state.data
    assert kept == 249


WRITTEN_AGAIN = {
    "written again": 364,
    "a tool of the provider's own": 69,
    "an item: item_reference": 19,
    "an item: additional_tools": 6,
    "what the server remembers": 3,
    "a result in parts": 2,
    "a tool choice of another wire's form": 1,
}


def test_recorded_requests_are_written_again(rows: list[Row]) -> None:
    """Those with tools, in an equivalent form, unless they use what our types have no word for."""
    counts: Counter[str] = Counter()
    for row in rows:
        body = row["request"]
        if not isinstance(body, dict) or not body.get("tools"):
            continue
        try:
            request = read_request(body)
        except Unsupported as reason:
            counts[str(reason)] += 1
            continue
        stream = body.get("stream") is True
        sent = encode("openai-responses", request, model=body["model"], stream=stream)
        assert normal_form(json.loads(sent.body)) == normal_form(body), row["id"]
        counts["written again"] += 1
    assert counts == WRITTEN_AGAIN
