"""Amazon's own model of Converse as the judge: of what is sent, and of what was read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wire.bedrock_reader import Unsupported, request_of
from wire.recorded_helpers import Row, recorded
from wire.test_bedrock import GOLDEN

from toolcrib.values.message import ChatRequest
from toolcrib.wire import decode, decoder, encode
from toolcrib.wire.frames import FrameStream

pytest.importorskip("botocore")


@pytest.fixture(scope="module")
def shape() -> Any:
    session = pytest.importorskip("botocore.session").get_session()
    return session.get_service_model("bedrock-runtime").operation_model("Converse").input_shape


def faults(request: ChatRequest, shape: Any) -> str:
    """What the SDK's validator finds, and what its model says besides: patterns and enums."""
    validator = pytest.importorskip("botocore.validate").ParamValidator()
    body = json.loads(encode("bedrock-converse", request, model="m").body) | {"modelId": "m"}
    report = validator.validate(body, shape)
    return "".join([report.generate_report(), *_deeper(body, shape)])


def _deeper(value: Any, shape: Any) -> Iterator[str]:
    metadata = shape.metadata
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        if not isinstance(value, dict) or value.keys() - shape.members.keys():
            yield f"{shape.name} is not {value}; "
            return
        for key, member in value.items():
            yield from _deeper(member, shape.members[key])
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{shape.name} is a union; "
    elif shape.type_name == "list":
        for item in value:
            yield from _deeper(item, shape.member)
    elif shape.type_name == "string" and "pattern" in metadata and shape.name != "S3Uri":
        if re.fullmatch(metadata["pattern"], value) is None:
            yield f"{shape.name} is not {value!r}; "
    elif shape.type_name == "string" and value not in getattr(shape, "enum", ()) and shape.enum:
        yield f"{shape.name} is not {value!r}; "


@pytest.mark.parametrize("request_", [request for request, _ in GOLDEN.values()], ids=GOLDEN)
def test_the_requests_written_by_hand_are_valid(request_: ChatRequest, shape: Any) -> None:
    assert faults(request_, shape) == ""


def test_the_judge_finds_faults(shape: Any) -> None:
    body = json.loads(encode("bedrock-converse", GOLDEN["tools"][0], model="m").body)
    assert list(_deeper(body, shape)) == []
    body["toolConfig"]["tools"][0]["toolSpec"]["name"] = "a b"
    body["messages"][0] |= {"role": "tool", "name": "x"}
    assert sorted(_deeper(body, shape)) == [
        "Message is not {'role': 'tool', 'content': [{'text': 'Hi'}], 'name': 'x'}; ",
        "ToolName is not 'a b'; ",
    ]


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "bedrock-converse")


def test_the_recorded_requests_are_valid_as_we_send_them(rows: list[Row], shape: Any) -> None:
    checked = 0
    for row in rows:
        try:
            request = request_of(row["request"] or {"messages": []})
            found = faults(request, shape) if request.messages else ""
        except Unsupported:
            continue
        assert found == "", row["id"]
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
