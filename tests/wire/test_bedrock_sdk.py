"""Amazon's own model of Converse as the judge: of what is sent, and of what was read."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from rows import each_row
from wire.bedrock_reader import Unsupported, request_of
from wire.recorded_helpers import Row, recorded
from wire.sdk_judges import judge_of
from wire.test_bedrock import GOLDEN

from toolcrib.values.message import ChatRequest
from toolcrib.wire import decode, decoder, encode
from toolcrib.wire.framing import FrameStream

pytest.importorskip("botocore")


def judge(request: ChatRequest) -> None:
    judge_of("bedrock-converse")(encode("bedrock-converse", request, model="m").body)


@each_row("request_", [request for request, _ in GOLDEN.values()], ids=GOLDEN)
def test_the_requests_written_by_hand_are_valid(request_: ChatRequest) -> None:
    judge(request_)


WRONG: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a name": (("toolConfig", "tools", 0, "toolSpec", "name"), "a b", "ToolName is not 'a b'"),
    "a role": (("messages", 0, "role"), "tool", "is not 'tool'"),
    "a member": (("messages", 0, "name"), "x", "Message is not"),
    "a type": (("messages", 0, "content"), "Hi", "Invalid type"),
}


@pytest.mark.parametrize(("path", "value", "words"), WRONG.values(), ids=WRONG)
def test_the_judge_finds_faults(path: tuple[Any, ...], value: Any, words: str) -> None:
    body = json.loads(encode("bedrock-converse", GOLDEN["tools"][0], model="m").body)
    inner = body
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=words):
        judge_of("bedrock-converse")(json.dumps(body).encode())


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "bedrock-converse")


def test_the_recorded_requests_are_valid_as_we_send_them(rows: list[Row]) -> None:
    checked = 0
    for row in rows:
        try:
            request = request_of(row["request"] or {"messages": []})
        except Unsupported:
            continue
        if request.messages:
            judge(request)
            checked += 1
    assert checked > 160


def test_recorded_streams_are_cut_as_amazons_parser_cuts_them(rows: list[Row]) -> None:
    library = pytest.importorskip("botocore.eventstream")
    count = 0
    for row in rows:
        if row["response_encoding"] != "base64":
            continue
        data, buffer = base64.b64decode(row["response_body"]), library.EventStreamBuffer()
        buffer.add_data(data)
        theirs = [(m.headers[":event-type"].encode(), m.payload) for m in buffer]
        assert [(event.name, event.data) for event in FrameStream().feed(data)] == theirs
        count += len(theirs)
    assert count > 800


def test_recorded_bodies_are_read_as_amazons_parser_reads_them(rows: list[Row]) -> None:
    """Each event and body through the SDK's parser of shapes, then put together by hand."""
    session = pytest.importorskip("botocore.session").get_session()
    operation = session.get_service_model("bedrock-runtime").operation_model("Converse")
    parser = pytest.importorskip("botocore.parsers").create_parser("rest-json")
    for row in rows:
        if row["streaming"] or row["kind"] == "error":
            continue
        body = row["response_body"].encode()
        response = {"status_code": 200, "headers": {}, "body": body}
        said = parser.parse(response, operation.output_shape)
        blocks = said["output"]["message"]["content"]
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        theirs = [
            (use["toolUseId"], use["name"], use["input"])
            for use in uses
            if use.get("type") != "server_tool_use"
        ]
        reply = decode("bedrock-converse", body, content_type="application/json")
        ours = [(c.provider_id, c.name, json.loads(c.arguments)) for c in reply.tool_calls]
        text = "".join(block.get("text", "") for block in blocks)
        assert (ours, reply.text, reply.provider_finish) == (theirs, text, said["stopReason"])
        assert decoder("bedrock-converse", streaming=True).feed(body) == []
