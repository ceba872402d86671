"""Mistral's wire, where it is not OpenAI's: bodies written by hand from its documentation."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import ProviderError, RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ChatRequest,
    Message,
    ProviderState,
    ReasoningPart,
    Settings,
    TextPart,
    ToolChoice,
)
from toolcrib.wire import MISTRAL, Memo, decode, decoder, encode

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def defined(name: str = "get_weather", *, strict: bool | None = None) -> PlainTool:
    facts = {"description": "Weather.", "input_schema_json": json.dumps(SCHEMA), "strict": strict}
    return PlainTool(ToolDefinition(name=name, **facts))  # type: ignore[arg-type]


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def body_of(request: ChatRequest, *, stream: bool = False) -> Any:
    return json.loads(encode(MISTRAL, request, model="m", stream=stream).body)


HI = [{"role": "user", "content": "Hi"}]
BASE = {"model": "m", "messages": HI}
FUNCTION = {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
TOOLS = {"tools": (defined(),)}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="pcZFHqej8")
SENT_CALL = {
    "id": "pcZFHqej8",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
TEXT = {"type": "text", "text": "Hello."}

GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), BASE),
    "tools": (asked(**TOOLS), BASE | {"tools": [TOOL]}),
    "a strict tool": (
        asked(tools=(defined(strict=True),)),
        BASE | {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]},
    ),
    "choice: none": (
        asked(**TOOLS, tool_choice=ToolChoice("none")),
        BASE | {"tools": [TOOL], "tool_choice": "none"},
    ),
    "choice: required": (
        asked(**TOOLS, tool_choice=ToolChoice("required")),
        BASE | {"tools": [TOOL], "tool_choice": "any"},
    ),
    "choice: one": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        BASE
        | {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    "choice among some, so there are no others": (
        asked(
            tools=(defined("other"), defined()),
            tool_choice=ToolChoice("required", allowed=("get_weather",)),
        ),
        BASE | {"tools": [TOOL], "tool_choice": "any"},
    ),
    "one call at a time": (
        asked(**TOOLS, parallel_calls=False),
        BASE | {"tools": [TOOL], "parallel_tool_calls": False},
    ),
    "settings": (
        asked(settings=Settings(0.5, 9, {"random_seed": 1, "safe_prompt": True})),
        BASE | {"temperature": 0.5, "max_tokens": 9, "random_seed": 1, "safe_prompt": True},
    ),
    "a whole turn": (
        asked(
            Message.system("Be brief."),
            Message.user("Weather in Rome?"),
            Message.assistant("", (CALL,)),
            Message.tool(CALL, "sunny", is_error=True),
            Message.assistant("Sunny."),
            Message.user("Hi"),
        ),
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                {"role": "assistant", "content": None, "tool_calls": [SENT_CALL]},
                {"role": "tool", "tool_call_id": "pcZFHqej8", "content": "sunny"},
                {"role": "assistant", "content": "Sunny."},
                *HI,
            ],
        },
    ),
    "thinking goes back as it came": (
        asked(
            Message(
                "assistant", "Hello.", provider_state=ProviderState("mistral", [THINKING, TEXT])
            ),
            Message.user("Hi"),
        ),
        BASE | {"messages": [{"role": "assistant", "content": [THINKING, TEXT]}, *HI]},
    ),
    "another provider's state stays home": (
        asked(
            Message("assistant", "Hello.", provider_state=ProviderState("ollama", {"x": 1})),
            Message.user("Hi"),
        ),
        BASE | {"messages": [{"role": "assistant", "content": "Hello."}, *HI]},
    ),
    "a message that says nothing is left out": (
        asked(Message.user("Hi"), Message.assistant("")),
        BASE,
    ),
    "images": (
        asked(Message.user("What?", (Image("image/png", "aGk="),))),
        BASE
        | {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                        {"type": "text", "text": "What?"},
                    ],
                }
            ]
        },
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body
    assert body_of(request_, stream=True) == body | {"stream": True}


def test_the_request_around_the_body() -> None:
    sent = encode("mistral", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/chat/completions")
    assert sent.headers == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert dict(MISTRAL.auth("k")) == {"Authorization": "Bearer k"}


def test_a_tool_that_may_not_be_called_is_known_but_not_on_offer() -> None:
    choice = ToolChoice(allowed=("other",))
    request = asked(tools=(defined(), defined("other")), tool_choice=choice)
    offer = encode(MISTRAL, request, model="m").offer
    assert (set(offer.tools), set(offer.known)) == ({"other"}, {"get_weather"})
    assert "tool_choice" not in body_of(request)
    with pytest.raises(RequestError, match="'gone'"):
        body_of(asked(**TOOLS, tool_choice=ToolChoice(allowed=("gone",))))


@pytest.mark.parametrize("said", ["", "Hi"])
def test_an_assistant_that_says_nothing_is_left_out_and_not_sent_alone(said: str) -> None:
    request = asked(Message.assistant(said))
    if said:
        assert body_of(request)["messages"] == [{"role": "assistant", "content": said}]
        return
    with pytest.raises(RequestError, match="nothing to send"):
        encode(MISTRAL, request, model="m")


def sent_ids(*calls: ToolCall) -> list[str]:
    turn = [Message.assistant("", calls), *(Message.tool(call, "x") for call in calls)]
    messages = body_of(asked(*turn, *turn))["messages"]
    ids = [call["id"] for m in messages for call in m.get("tool_calls", ())]
    assert ids == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(ids)) == len(ids)
    return ids


@each_row(
    "given",
    ["pcZFHqej8", "", "call_REDACTED_1", "toolu_01A09q90qw90lq917835lq9", "fc-123-456", "x" * 500],
)
def test_ids_of_any_provider_become_nine_letters_and_digits(given: str) -> None:
    first, *others = sent_ids(
        ToolCall("run_0", "f", "{}", provider_id=given),
        ToolCall("run_1", "f", "{}", provider_id=given),
    )
    assert (first == given) is (given == "pcZFHqej8")
    assert all(re.fullmatch("[A-Za-z0-9]{9}", id_) for id_ in (first, *others))


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(
            tuple(history), tools, ToolChoice("required", allowed=("a.b",) if turn == 2 else ())
        )
        encoded.clear()
        with_memo = encode(MISTRAL, request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode(MISTRAL, request, model="m").body
        call = ToolCall(f"r_{turn}", "a.b", "{}", provider_id="p")
        history += [Message.assistant("", (call,)), Message.tool(call, "x")]
    assert new == [1, 2, 2, 2]


def sse_of(*chunks: Any) -> bytes:
    return (
        "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"
    )


def delta(content: Any = None, reason: str | None = None, **members: Any) -> dict[str, Any]:
    message = members | ({} if content is None else {"content": content})
    return {"choices": [{"index": 0, "delta": message, "finish_reason": reason}]}


def whole(reason: str = "stop", **message: Any) -> bytes:
    return json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    ).encode()


def thinking(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": t} for t in texts]} | more


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


REFERENCE = {"type": "reference", "reference_ids": [1, 2]}
FUNCTION_CALL = {"function": {"name": "f", "arguments": {"a": 1}}, "id": "pcZFHqej8"}

CHUNKS: dict[str, tuple[bytes, str, Any]] = {
    "text": (sse_of(delta("Hi"), delta("!", "stop")), "Hi!", None),
    "text, as chunks": (sse_of(delta([text("Hi")]), delta([text("!")], "stop")), "Hi!", None),
    "thinking, in pieces": (
        sse_of(delta([thinking("H")]), delta([thinking("m")]), delta("Hel"), delta("lo", "stop")),
        "Hello", [thinking("Hm"), text("Hello")]),
    "thinking that is closed, and more": (
        sse_of(delta([thinking("A", closed=True)]), delta([thinking("B")]), delta("C", "stop")),
        "C", [thinking("A", closed=True), thinking("B"), text("C")]),
    "a signature that comes late": (
        sse_of(delta([thinking("A")]), delta([thinking("", signature="s")]), delta("C", "stop")),
        "C", [thinking("A", signature="s"), text("C")]),
    "references": (sse_of(delta([text("Ro"), text("me"), REFERENCE]), delta([text(".")], "stop")),
                   "Rome.", [text("Rome"), REFERENCE, text(".")]),
    "a reference in thinking": (
        sse_of(delta([{"type": "thinking", "thinking": [text("A"), REFERENCE]}]),
               delta([thinking("B")]), delta("", "stop")),
        "", [{"type": "thinking", "thinking": [text("A"), REFERENCE, text("B")]}]),
    "whole": (whole(content=[thinking("A"), thinking("B"), text("Hi")]),
              "Hi", [thinking("A"), thinking("B"), text("Hi")]),
    "whole, of one text": (whole(content=[text("Hi")]), "Hi", None),
    "odd chunks": (whole(content=["x", {"type": "text"}, {"a": 1}, text("Hi")]),
                   "Hi", [{"type": "text"}, {"a": 1}, text("Hi")]),
    "odd thinking": (sse_of(delta([{"type": "thinking"}]), delta([thinking("A")], "stop")),
                     "", [thinking("A")]),
}  # fmt: skip


@each_row(("body", "said", "kept"), CHUNKS.values(), ids=CHUNKS)
def test_chunks_that_are_not_text_are_kept(body: bytes, said: str, kept: Any) -> None:
    reply = decode(MISTRAL, body)
    state = reply.message.provider_state
    assert (reply.text, reply.finish) == (said, "stop")
    assert state == (None if kept is None else ProviderState("mistral", kept))
    for size in (1, 7, 50):
        reading = decoder(MISTRAL)
        for at in range(0, len(body), size):
            reading.feed(body[at : at + size])
        assert reading.finish().message == reply.message


def test_thinking_is_reasoning_and_no_text() -> None:
    parts = decoder(MISTRAL).feed(sse_of(delta([thinking("Hm")]), delta([text("Hi")]), delta("!")))
    assert parts == [ReasoningPart("Hm"), TextPart("Hi"), TextPart("!")]


def test_arguments_that_are_an_object_keep_their_bytes() -> None:
    calls = [FUNCTION_CALL | {"index": 0}]
    for body in (whole(tool_calls=calls), sse_of(delta(tool_calls=calls, reason="tool_calls"))):
        (call,) = decode(MISTRAL, body).tool_calls
        assert (call.provider_id, call.arguments, call.complete) == ("pcZFHqej8", '{"a": 1}', True)


@pytest.mark.parametrize("reason", ["length", "model_length", "error"])
def test_a_cut_reply_has_no_call_that_may_run(reason: str) -> None:
    reply = decode(MISTRAL, whole(reason, content=[thinking("A")], tool_calls=[FUNCTION_CALL]))
    assert reply.finish == ("error" if reason == "error" else "length")
    assert [call.complete for call in reply.tool_calls] == [False]
    assert reply.message.provider_state is not None


ERROR = {"object": "error", "message": "Service tier capacity exceeded", "code": "3505"}


@pytest.mark.parametrize("body", [json.dumps(ERROR).encode(), sse_of(delta("Hi"), ERROR)])
def test_an_error_need_not_be_called_one(body: bytes) -> None:
    with pytest.raises(ProviderError, match="capacity exceeded \\(3505\\)"):
        decode(MISTRAL, body)


@pytest.mark.exhaustive
def test_many_pieces_of_thinking_are_joined_once() -> None:
    body = sse_of(*(delta([thinking("x")]) for _ in range(20_000)), delta("", "stop"))
    state = decode(MISTRAL, body).message.provider_state
    assert state == ProviderState("mistral", [thinking("x" * 20_000)])


def test_what_came_later_of_a_call_does_not_follow_results() -> None:
    """Some models refuse it: "Unexpected role 'user' after role 'tool'"."""
    made = ToolCall("1", "f", "{}")
    said = (
        Message.user("Go."),
        Message.assistant("", (made,)),
        Message.tool(made, "running"),
        Message.later(made, "done"),
        Message.user("And?"),
        Message.assistant("Yes."),
    )
    for end in (4, 5, 6):
        body = json.loads(encode("mistral", ChatRequest(said[:end]), model="m").body)
        roles = [message["role"] for message in body["messages"]]
        told = ["user", "assistant", "tool", "assistant", "user", "user", "assistant"]
        assert roles == told[: end + 1]
        assert body["messages"][3]["content"]
