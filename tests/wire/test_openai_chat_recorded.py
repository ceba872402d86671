"""Replies of OpenAI's chat wire: 1,334 recorded bodies, and 44 odd ones from users' reports.

Where the decoder disagrees with what is recorded as expected, the reason is written down here.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolcrib.errors import ClientError, WireError
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ArgumentsPart, Offer, Reply, TextPart
from toolcrib.wire import OPENAI_CHAT, Decoder, decode, decoder

Row = dict[str, Any]

DISAGREEMENTS = {
    "00bc839d53c42c9e": "`{}` before the real object is dropped; expected keeps it, unparsed",
    "4e2baf20566609f1": 'arguments "null" are none, `{}`; expected has null',
    "c4aca78475f00f57": "cut by length before any argument: stays empty; expected says `{}`",
    "c9f424a83de79410": "an error ends the stream: it is raised; expected has the calls before it",
    "d2ef0318c519c30c": "the reference decoder splits one call that begins at index 1 into two",
}
CUT = {
    "15d1ffed2657b6d9": "length",  # the reason says tool_calls, the native one length
    "5cb8da4835b599c1": "error",  # fifteen calls run together, and an error beside them
}


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    with gzip.open(shared_data / "wire/openai-chat.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def edge_cases(shared_data: Path) -> list[Row]:
    text = (shared_data / "wire/edge_cases.jsonl").read_text(encoding="utf-8")
    cases = [json.loads(line) for line in text.splitlines()]
    return [case for case in cases if case["wire"] == "openai-chat"]


def decoded(row: Row) -> Reply:
    body, kind = row["response_body"], row["content_type"]
    return decode("openai-chat", body, status=row["status"], content_type=kind)


def expected_calls(row: Row) -> list[tuple[str, str, Any]]:
    """Empty legacy calls, which Snowflake sends beside the real one, are none (wire.md)."""
    calls = row["expected"]["tool_calls"]
    return [
        (call["id"] or "", call["name"], call["arguments"])
        for call in calls
        if call["name"] or call["arguments_raw"]
    ]


def calls_of(reply: Reply) -> list[tuple[str, str, Any]]:
    return [(call.provider_id, call.name, read(call.arguments)) for call in reply.tool_calls]


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {"__unparsed__": arguments}


def agrees(row: Row, reply: Reply) -> bool:
    calls = calls_of(reply)
    if row["id"] == "e909a044a0c5f524":  # a custom tool's input is free text
        calls = [(i, n, a["__unparsed__"]) for i, n, a in calls]
    return calls == expected_calls(row) and reply.text == row["expected"]["text"]


def test_calls_arguments_and_text_are_as_recorded(rows: list[Row]) -> None:
    good = [row for row in rows if row["kind"] in ("tool", "text")]
    wrong = set()
    for row in good:
        try:
            wrong |= set() if agrees(row, decoded(row)) else {row["id"]}
        except ClientError:
            wrong.add(row["id"])
    assert wrong == set(DISAGREEMENTS)
    assert len(wrong) / sum(row["kind"] == "tool" for row in rows) < 0.005


def test_arguments_are_the_recorded_text(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] != "tool" or row["id"] in DISAGREEMENTS:
            continue
        given = [c["arguments_raw"] for c in row["expected"]["tool_calls"]]
        for raw, call in zip(given, decoded(row).tool_calls, strict=False):
            assert call.arguments == (raw or "{}"), row["id"]


def test_only_cut_replies_are_cut(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] not in ("tool", "text") or row["id"] == "c9f424a83de79410":
            continue
        reply = decoded(row)
        usual = "tool_calls" if reply.tool_calls else "stop"
        cut = CUT.get(row["id"]) or {"length": "length"}.get(row["expected"]["finish_reason"])
        assert reply.finish == (cut or usual), row["id"]
        assert all(call.complete is (cut is None) for call in reply.tool_calls), row["id"]


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] in ("error", "stream_error")]
    assert len(errors) == 13
    for row in errors:
        with pytest.raises(ClientError) as caught:
            decoded(row)
        assert caught.value.status == (row["status"] if row["kind"] == "error" else None)
        assert not isinstance(caught.value, WireError)
        error = row["expected"].get("error") or json.loads(row["response_body"])["error"]
        assert error["message"][:60] in str(caught.value)
        assert "failed_generation" not in str(caught.value)


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
        expected = outcome(decoder("openai-chat"), body, [])
        sizes = [random_.choice((1, 2, 7, 100, 1000)) for _ in range(len(body) // 50)]
        for cuts in (row.get("chunk_sizes", []), sizes):
            assert outcome(decoder("openai-chat"), body, cuts) == expected


def test_parts_make_up_the_reply(rows: list[Row]) -> None:
    for row in rows:
        if not row["streaming"] or row["kind"] != "tool" or row["id"] in DISAGREEMENTS:
            continue
        reading = decoder("openai-chat", ids="r_")
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
        ends = [body.rfind(b'"finish_reason":"'), body.find(b"data: [DONE]"), body.find(b'"error"')]
        ends = [end for end in ends if end > 0]
        if not row["streaming"] or row["kind"] != "tool" or not ends or min(ends) < 9:
            continue
        first = min(body.find(b'"finish_reason":"') % len(body), *ends)
        reading = decoder("openai-chat")
        reading.feed(body[: random_.randrange(8, first)])
        reply = reading.finish()
        assert reply.finish == "incomplete", row["id"]
        assert not any(call.complete for call in reply.tool_calls)


EDGE_DISAGREEMENTS = {
    "args-trailing-garbage": "text after the object is not dropped: hydration refuses the call",
    "anthropic-compat-index-1": "the reference decoder splits the one call into two",
    "snowflake-empty-everything": "the note says that the empty legacy call is none",
    "openrouter-merged-parallel": "there is an error beside the call: cut, so it may not run",
    "name-null": "a call without a name is there, and may not run",
    "llama-bare-json": "text is no call, unless the wire's `text_calls` says so: see below",
}


def edge_outcome(case: Row, **changes: Any) -> tuple[bool, str]:
    """Whether the decoder does what is expected of it, and what it did."""
    expected = case["expected"]
    name = "get_weather"
    definition = ToolDefinition(name=name, description="", input_schema_json="{}")
    wire = msgspec.structs.replace(OPENAI_CHAT, **changes)
    try:
        reply = decode(wire, case["body"], offer=Offer.of([PlainTool(definition)]))
    except ClientError as error:
        said = (expected.get("error") or "\0") in str(error)
        return said, str(error)
    runnable = [c for c in calls_of(reply) if reply.finish == "tool_calls"]
    wanted = [(c["id"], c["name"], c["arguments"]) for c in expected["tool_calls"]]
    good = len(runnable) == len(wanted) and all(
        want[0] in ("*", have[0]) and want[1:] == have[1:]
        for want, have in zip(wanted, runnable, strict=True)
    )
    cut = [call for call in reply.tool_calls if not call.complete]
    good = good and len(cut) == len(expected.get("incomplete", ())) and "error" not in expected
    return good and reply.text == expected.get("text", reply.text), str(reply)


def test_edge_cases(edge_cases: list[Row]) -> None:
    assert len(edge_cases) == 44
    wrong = {case["id"] for case in edge_cases if not edge_outcome(case)[0]}
    assert wrong == set(EDGE_DISAGREEMENTS)


def test_a_call_in_a_text_is_one_of_the_wires_quirks(edge_cases: list[Row]) -> None:
    (case,) = [case for case in edge_cases if case["id"] == "llama-bare-json"]
    assert edge_outcome(case, text_calls="llama")[0]
