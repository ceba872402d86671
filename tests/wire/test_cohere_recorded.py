"""Cohere's wire against 64 recorded exchanges, 21 of them with calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wire.recorded_helpers import (
    Row,
    agrees,
    calls_of,
    check_errors,
    check_parts,
    check_splits,
    check_torn,
    decoded,
    recorded,
)

from toolcrib.errors import WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, Settings, ToolChoice
from toolcrib.wire import COHERE, encode

NO_CHAT = {"515ccbfd5d56eb0d", "6ce9428bf96ab4e3"}
"""A ranking and embeddings: other endpoints of Cohere's."""
VERSION_1 = {"6a52c692b4803f49", "6cf1bfc9b7feda0b", "7074ec6fd24b873a"}
NOTHING_IS_AN_OBJECT = {"802e736d143db14f"}
"""Arguments `null` of a tool without parameters: they are the empty object, on every wire here."""


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return recorded(shared_data, "cohere")


@pytest.fixture(scope="module")
def streams(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["streaming"]]


def test_every_reply_is_as_recorded(rows: list[Row]) -> None:
    """The recorded reasons are Cohere's own: `agrees` knows only one of them."""
    good = [row for row in rows if row["kind"] != "error"]
    foreign = {row["id"] for row in good} & (NO_CHAT | VERSION_1)
    assert (len(good), len(foreign)) == (62, 5)
    wrong = set()
    for row in good:
        if row["id"] in foreign:
            with pytest.raises(WireError, match="version 2"):
                decoded(COHERE, row)
            continue
        cut = row["expected"]["finish_reason"] == "MAX_TOKENS"
        expected = row["expected"] | {"finish_reason": "length" if cut else "stop"}
        if not agrees(decoded(COHERE, row), row | {"expected": expected}):
            wrong.add(row["id"])
    assert wrong == NOTHING_IS_AN_OBJECT


def test_arguments_are_the_recorded_text(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] == "tool":
            given = [call["arguments_raw"] for call in row["expected"]["tool_calls"]]
            said = [call.arguments for call in decoded(COHERE, row).tool_calls]
            assert said == [text if text not in ("", "null") else "{}" for text in given]


def test_errors_are_typed_and_in_the_providers_words(rows: list[Row]) -> None:
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 2
    check_errors(COHERE, errors)


def test_streams_are_the_same_in_any_pieces(streams: list[Row]) -> None:
    assert len(streams) == 30
    check_splits(COHERE, streams)


def test_parts_make_up_the_reply(streams: list[Row]) -> None:
    check_parts(COHERE, streams)


def test_what_breaks_off_gives_nothing_to_run(streams: list[Row]) -> None:
    check_torn(COHERE, streams, lambda body: body.find(b"event: message-end"))


def test_what_was_said_goes_back_as_it_came(rows: list[Row]) -> None:
    """The next request holds the message of a whole reply: its calls, plan, thinking, citations."""
    whole = [row for row in rows if not row["streaming"] and row["url_path"] == "/v2/chat"]
    replayed = 0
    for row in whole:
        if row["kind"] == "error":
            continue
        reply = decoded(COHERE, row)
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        request = ChatRequest((Message.user("Hi"), reply.message, *results))
        sent = json.loads(encode(COHERE, request, model="m").body)["messages"][1]
        given = json.loads(row["response_body"])["message"]
        assert normal_message(sent, []) == normal_message(given, [])
        assert [call["id"] for call in sent.get("tool_calls", ())] == [
            c[0] for c in calls_of(reply)
        ]
        replayed += 1
    assert replayed == 25


def request_of(body: Row) -> ChatRequest:
    """The request that a recorded body was made of."""
    messages: list[Message] = []
    calls: dict[str, ToolCall] = {}
    for message in body["messages"]:
        role, text = message["role"], _text(message["content"])
        if role == "tool":
            messages.append(Message.tool(calls[message["tool_call_id"]], text))
        elif role == "assistant":
            made = [
                _call(call, len(calls) + n)
                for n, call in enumerate(message.get("tool_calls") or ())
            ]
            calls |= {call.provider_id: call for call in made}
            messages.append(Message.assistant(text, tuple(made)))
        else:
            messages.append(Message(role, text))
    own = ("model", "messages", "tools", "tool_choice", "stream", "temperature", "max_tokens")
    modes: dict[str, Any] = {"REQUIRED": "required", "NONE": "none"}
    return ChatRequest(
        tuple(messages),
        tuple(map(_tool, body.get("tools") or ())),
        ToolChoice(modes.get(body.get("tool_choice", ""), "auto")),
        Settings(
            body.get("temperature"),
            body.get("max_tokens"),
            {key: body[key] for key in body if key not in own},
        ),
    )


def _call(call: Row, number: int) -> ToolCall:
    function = call["function"]
    return ToolCall(
        f"call_{number}", function["name"], function["arguments"], provider_id=call["id"]
    )


def _tool(tool: Row) -> Any:
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    assert {part["type"] for part in content} <= {"text"}
    return "".join(part["text"] for part in content)


def normal_message(message: Row, ids: list[str]) -> Row:
    """A message without the freedom that the format leaves; ids are their order in `ids`."""
    message = json.loads(json.dumps(message))
    content = message.pop("content", None) or []
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    message["content"] = [part for part in content if part.get("text") != ""]
    for call in message.get("tool_calls") or ():
        ids.append(call["id"])
        call["id"] = len(ids)
    if "tool_call_id" in message:
        message["tool_call_id"] = ids.index(message["tool_call_id"]) + 1
    return {key: value for key, value in message.items() if value}


def normal(body: Row) -> Row:
    ids: list[str] = []
    messages = [normal_message(message, ids) for message in body["messages"]]
    return {"stream": False} | body | {"messages": messages}


def test_recorded_requests_are_encoded_again(rows: list[Row]) -> None:
    """Members that are null, or no tools at all, say nothing."""
    bodies = [row["request"] for row in rows if row["request"] and "messages" in row["request"]]
    assert len(bodies) == 53
    for body in bodies:
        sent = encode(
            COHERE, request_of(body), model=body["model"], stream=body.get("stream", False)
        )
        assert normal(json.loads(sent.body)) == normal(body)
