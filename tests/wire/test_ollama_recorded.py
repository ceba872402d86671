"""Ollama's wire against 33 recorded exchanges, 9 of them with calls, and the edge cases of users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wire.recorded_helpers import (
    Row,
    agrees,
    check_parts,
    check_splits,
    check_torn,
    decoded,
    edge_cases_of,
    recorded,
    unequal_edges,
)

from toolcrib.errors import ClientError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings
from toolcrib.wire import OLLAMA, encode


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "ollama")


@pytest.fixture(scope="module")
def streams(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["streaming"]]


def test_every_reply_is_as_recorded(rows: list[Row]) -> None:
    assert len(rows) == 33
    assert [row["id"] for row in rows if not agrees(decoded(OLLAMA, row), row)] == []


def test_arguments_are_the_recorded_bytes(rows: list[Row]) -> None:
    calls = [(row, call) for row in rows for call in decoded(OLLAMA, row).tool_calls]
    assert len(calls) == 14
    assert all(f'"arguments":{call.arguments}' in row["response_body"] for row, call in calls)


def test_streams_are_the_same_in_any_pieces(streams: list[Row]) -> None:
    check_splits(OLLAMA, streams)


def test_parts_make_up_the_reply(streams: list[Row]) -> None:
    check_parts(OLLAMA, streams)


def test_what_breaks_off_gives_nothing_to_run(rows: list[Row]) -> None:
    check_torn(OLLAMA, rows, lambda body: body.rindex(b"}"))


def test_edge_cases(shared_data: Path) -> None:
    cases = edge_cases_of(shared_data, "ollama")
    assert len(cases) == 3
    assert unequal_edges(OLLAMA, cases) == set()


def request_of(body: Row) -> ChatRequest:
    """The request that a recorded body was made of."""
    messages: list[Message] = []
    waiting: list[ToolCall] = []
    for message in body["messages"]:
        text = message["content"]
        if message["role"] == "tool":
            messages.append(Message.tool(waiting.pop(0), text))
            assert messages[-1].name == message["tool_name"]
        elif message["role"] == "assistant":
            for call in message.get("tool_calls", ()):
                given = call["function"]
                number = f"c{len(messages)}_{len(waiting)}"
                waiting.append(ToolCall(number, given["name"], json.dumps(given["arguments"])))
            thought = message.get("thinking")
            state = None if thought is None else ProviderState("ollama", {"thinking": thought})
            messages.append(Message("assistant", text, tuple(waiting), provider_state=state))
        else:
            messages.append(Message(message["role"], text))
    options = dict(body["options"])
    settings = Settings(
        options.pop("temperature", None),
        options.pop("num_predict", None),
        {"options": options} | {key: body[key] for key in ("think",) if key in body},
    )
    return ChatRequest(tuple(messages), tuple(map(_tool, body.get("tools", ()))), settings=settings)


def _tool(tool: Row) -> Any:
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def normal(body: Row) -> Row:
    """A body without the freedom that the format leaves: two that mean the same are equal."""
    body = json.loads(json.dumps(body))
    for message in body["messages"]:
        message.pop("tool_call_id", None)
        if not message.setdefault("tool_calls", []):
            del message["tool_calls"]
        for call in message.get("tool_calls", ()):
            call.pop("id", None)
    return {"tools": [], "options": {}} | body


LOWERED = ["3f1536f660766c2f", "9eea7dd963100267", "f26956c435e4e442"]
"""Their tools have a `$schema`, a `title`, a `format`, a `minimum`, which the server does not keep:
what they say is in the descriptions."""


def test_recorded_requests_are_encoded_again(rows: list[Row]) -> None:
    bodies = {row["id"]: row["request"] for row in rows if row["request"]}
    assert len(bodies) == 24
    other = []
    for id_, body in bodies.items():
        sent = encode(OLLAMA, request_of(body), model=body["model"], stream=body["stream"])
        made, given = normal(json.loads(sent.body)), normal(body)
        other += [(id_, key) for key in given | made if made.get(key) != given.get(key)]
    assert other == [(id_, "tools") for id_ in LOWERED]


def test_thinking_is_sent_back_as_it_came(rows: list[Row]) -> None:
    thought = [row for row in rows if "message.thinking" in row["quirks"]]
    assert len(thought) == 11
    for row in thought:
        message = decoded(OLLAMA, row).message
        results = [Message.tool(call, "ok") for call in message.tool_calls]
        request = ChatRequest((message, *results, Message.user("Go on.")))
        (sent, *_) = json.loads(encode(OLLAMA, request, model="m").body)["messages"]
        lines = map(json.loads, row["response_body"].splitlines())
        thoughts = "".join(line["message"].get("thinking", "") for line in lines)
        assert sent["thinking"] == thoughts


def test_an_error_is_in_the_servers_words() -> None:
    body = '{"error":"model \\"x\\" not found, try pulling it first"}'
    with pytest.raises(ClientError, match="try pulling it first"):
        decoded(OLLAMA, {"response_body": body, "status": 404, "content_type": "application/json"})
