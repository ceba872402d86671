"""Cohere's wire: bodies written by hand from its documentation, both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import ProviderError, RequestError, WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    ProviderState,
    ReasoningPart,
    Reply,
    Settings,
    TextPart,
    ToolChoice,
    Usage,
)
from toolcrib.wire import COHERE, Memo, decode, decoder, encode

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def defined(name: str = "get_weather", description: str = "Weather.") -> PlainTool:
    text = json.dumps(SCHEMA)
    return PlainTool(
        ToolDefinition(name=name, description=description, input_schema_json=text, strict=True)
    )


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def body_of(request: ChatRequest, *, stream: bool = False) -> Any:
    return json.loads(encode(COHERE, request, model=MODEL, stream=stream).body)


HI = [{"role": "user", "content": "Hi"}]
MODEL = "command-a-vision"
BASE = {"model": MODEL, "messages": HI}
FUNCTION = {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
TOOLS = {"tools": (defined(),)}
TWO = {"tools": (defined("other"), defined())}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="get_weather_pcZFHqej8")
SENT_CALL = {
    "id": "get_weather_pcZFHqej8",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}
RESULT = {"role": "tool", "tool_call_id": "get_weather_pcZFHqej8", "content": "sunny"}
THINKING = {"type": "thinking", "thinking": "Hm."}
TEXT = {"type": "text", "text": "Hello."}
CITATION = {"start": 0, "end": 5, "text": "Hello", "sources": []}


def kept(text: str, wire: str = "cohere", calls: Any = (), **data: Any) -> Message:
    return Message("assistant", text, calls, provider_state=ProviderState(wire, data))


def turn(first: Message, sent: dict[str, Any]) -> tuple[ChatRequest, dict[str, Any]]:
    """A request with this message in its history, and the body with what is sent for it."""
    results = [Message.tool(call, "sunny") for call in first.tool_calls]
    messages = [{"role": "assistant"} | sent, *([RESULT] if results else []), *HI]
    return asked(first, *results, Message.user("Hi")), BASE | {"messages": messages}


GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), BASE),
    "tools": (asked(**TOOLS), BASE | {"tools": [TOOL]}),
    "a tool without a description": (
        asked(tools=(defined(description=""),)),
        BASE | {"tools": [{"type": "function", "function": FUNCTION | {"description": "get_weather"}}]},
    ),
    "strict tools": (
        asked(**TOOLS, settings=Settings(extra={"strict_tools": True})),
        BASE | {"tools": [TOOL], "strict_tools": True},
    ),
    "no tools to be strict about": (asked(settings=Settings(extra={"strict_tools": True})), BASE),
    "choice: auto": (asked(**TOOLS, tool_choice=ToolChoice("auto")), BASE | {"tools": [TOOL]}),
    "choice: none": (
        asked(**TOOLS, tool_choice=ToolChoice("none")),
        BASE | {"tools": [TOOL], "tool_choice": "NONE"},
    ),
    "choice: none, without tools": (asked(tool_choice=ToolChoice("none")), BASE),
    "choice: required": (
        asked(**TOOLS, tool_choice=ToolChoice("required")),
        BASE | {"tools": [TOOL], "tool_choice": "REQUIRED"},
    ),
    "choice: one, so there are no others": (
        asked(**TWO, tool_choice=ToolChoice("tool", "get_weather")),
        BASE | {"tools": [TOOL], "tool_choice": "REQUIRED"},
    ),
    "choice among some": (
        asked(**TWO, tool_choice=ToolChoice("required", allowed=("get_weather",))),
        BASE | {"tools": [TOOL], "tool_choice": "REQUIRED"},
    ),
    "choice among some, or none of them": (
        asked(**TWO, tool_choice=ToolChoice(allowed=("get_weather",))),
        BASE | {"tools": [TOOL]},
    ),
    "several calls": (asked(**TOOLS, parallel_calls=True), BASE | {"tools": [TOOL]}),
    "settings": (
        asked(settings=Settings(0.5, 9, {"seed": 1, "p": 0.9})),
        BASE | {"temperature": 0.5, "max_tokens": 9, "seed": 1, "p": 0.9},
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
        BASE
        | {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                {"role": "assistant", "tool_calls": [SENT_CALL]},
                RESULT,
                {"role": "assistant", "content": "Sunny."},
                *HI,
            ]
        },
    ),
    "what the system says comes first, in one message": (
        asked(Message.system("A."), Message.user("Hi"), Message.system(""), Message.system("B.")),
        BASE | {"messages": [{"role": "system", "content": "A.\n\nB."}, *HI]},
    ),
    "what the system says, alone": (
        asked(Message.system("A.")),
        BASE | {"messages": [{"role": "system", "content": "A."}]},
    ),
    "what says nothing is left out": (
        asked(Message.user(""), Message.assistant(""), Message.user("Hi"), kept("", tool_plan="x")),
        BASE,
    ),
    "a text beside calls is their plan": turn(
        Message.assistant("I look.", (CALL,)), {"tool_plan": "I look.", "tool_calls": [SENT_CALL]}
    ),
    "a plan goes back": turn(
        kept("", calls=(CALL,), tool_plan="I will."),
        {"tool_plan": "I will.", "tool_calls": [SENT_CALL]},
    ),
    "a plan and a text": turn(
        kept("Hello.", calls=(CALL,), tool_plan="I will."),
        {"tool_plan": "I will.\n\nHello.", "tool_calls": [SENT_CALL]},
    ),
    "thinking goes back beside calls, a text does not": turn(
        kept("Hello.", calls=(CALL,), content=[THINKING, TEXT], citations=[CITATION]),
        {"content": [THINKING], "tool_plan": "Hello.", "tool_calls": [SENT_CALL]},
    ),
    "thinking and citations go back": turn(
        kept("Hello.", content=[THINKING, TEXT], citations=[CITATION]),
        {"content": [THINKING, TEXT], "citations": [CITATION]},
    ),
    "not beside another text": turn(
        kept("Goodbye.", content=[THINKING, TEXT], citations=[CITATION]), {"content": "Goodbye."}
    ),
    "a state that is none": turn(kept("Hello.", content=[5, {"text": 5}], citations=5), {
        "content": "Hello."}),
    "a state that is none, beside calls": turn(
        kept("", calls=(CALL,), content="x", tool_plan=5), {"tool_calls": [SENT_CALL]}),
    "a state that is no object": turn(
        Message("assistant", "Hello.", provider_state=ProviderState("cohere", "junk")),
        {"content": "Hello."}),
    "another provider's state stays home": turn(
        kept("Hello.", "ollama", thinking="x"), {"content": "Hello."}
    ),
    "images": (
        asked(Message.user("What?", (Image("image/png", "aGk="), Image(url="https://a.test/b")))),
        BASE
        | {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                        {"type": "image_url", "image_url": {"url": "https://a.test/b"}},
                        {"type": "text", "text": "What?"},
                    ],
                }
            ]
        },
    ),
}  # fmt: skip


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body
    assert body_of(request_, stream=True) == body | {"stream": True}


def test_the_request_around_the_body() -> None:
    sent = encode("cohere", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/chat")
    assert sent.headers == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert dict(COHERE.auth("k")) == {"Authorization": "Bearer k"}


REFUSED: dict[str, tuple[ChatRequest, str]] = {
    "one call at a time": (asked(**TOOLS, parallel_calls=False), "one call at a time"),
    "nothing to say": (asked(Message.user("")), "nothing to send"),
    "a choice of nothing": (asked(tool_choice=ToolChoice("required")), "needs tools"),
    "a tool that is not there": (asked(**TOOLS, tool_choice=ToolChoice("tool", "gone")), "'gone'"),
    "settings that are ours": (asked(settings=Settings(extra={"messages": []})), "'messages'"),
}


@each_row(("request_", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_sent(request_: ChatRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        body_of(request_)


def test_a_tool_that_may_not_be_called_is_known_but_not_on_offer() -> None:
    offer = encode(COHERE, asked(**TWO, tool_choice=ToolChoice("tool", "other")), model="m").offer
    assert (set(offer.tools), set(offer.known)) == ({"other"}, {"get_weather"})


@pytest.mark.parametrize("name", ["get-weather", "8ball", "a.b", "x" * 70])
def test_names_have_letters_digits_and_underscores(name: str) -> None:
    made = body_of(asked(tools=(defined(name),)))["tools"][0]["function"]["name"]
    assert made.isidentifier()
    assert made.isascii()
    assert len(made) <= 64


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.system("Be brief."), Message.user("Hi")]
    for number in range(4):
        choice = ToolChoice("tool", "a.b") if number == 2 else ToolChoice()
        request = ChatRequest(tuple(history), tools, choice)
        encoded.clear()
        with_memo = encode(COHERE, request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode(COHERE, request, model="m").body
        call = ToolCall(f"r_{number}", "a.b", "{}", provider_id="p")
        history += [Message.assistant("", (call,)), Message.tool(call, "x")]
    assert new == [1, 2, 2, 2]


USAGE = {"billed_units": {"input_tokens": 11, "output_tokens": 7}, "tokens": {"input_tokens": 999}}


def event(kind: str, index: int | None = None, message: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if index is None else {"index": index}
    delta = {} if message is None else {"delta": {"message": message}}
    return {"type": kind} | given | delta | more


def ended(reason: str, **more: Any) -> dict[str, Any]:
    return event("message-end", delta={"finish_reason": reason, "usage": USAGE} | more)


def sse(*events: dict[str, Any], done: bool = True) -> bytes:
    lines = (f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return "".join(lines).encode() + (b"data: [DONE]\n\n" if done else b"")


def piece(index: int, **content: str) -> dict[str, Any]:
    start = "type" in content
    return event("content-start" if start else "content-delta", index, {"content": content})


def begun(index: int | None, id_: str, name: str, text: str = "") -> dict[str, Any]:
    function = {"name": name, "arguments": text}
    calls = {"id": id_, "type": "function", "function": function}
    return event("tool-call-start", index, {"tool_calls": calls})


def more(index: int | None, text: str) -> dict[str, Any]:
    return event("tool-call-delta", index, {"tool_calls": {"function": {"arguments": text}}})


def named(index: int, name: str, text: str) -> dict[str, Any]:
    function = {"name": name, "arguments": text}
    return event("tool-call-delta", index, {"tool_calls": {"function": function}})


def cited(index: int) -> dict[str, Any]:
    return event("citation-start", index, {"citations": CITATION})


def whole(reason: str, **message: Any) -> bytes:
    body = {"id": "x", "message": {"role": "assistant"} | message, "finish_reason": reason}
    return json.dumps(body | {"usage": USAGE}).encode()


START = event("message-start", message={"role": "assistant", "content": [], "tool_plan": "",
                                        "tool_calls": [], "citations": []}, id="x")  # fmt: skip
END = event("content-end", 0)


def plan(text: str) -> dict[str, Any]:
    return event("tool-plan-delta", message={"tool_plan": text})


def sent(*calls: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        for id_, name, text in calls
    ]


AB = (("a_1", "a", '{"x": 1}'), ("b_1", "b", '{"y": 2}'))
STREAMED_AB = (
    begun(0, "a_1", "a"), more(0, '{"x"'), more(0, ": 1}"), event("tool-call-end", 0),
    begun(1, "b_1", "b"), more(1, '{"y": 2}'), event("tool-call-end", 1),
)  # fmt: skip
CUT_AB = (AB[0], ("b_1", "b", '{"y'))

# what is sent, streamed and whole; text, calls, finish, provider state
REPLIES: dict[str, tuple[bytes, bytes, str, Any, str, Any]] = {
    "text": (
        sse(START, piece(0, type="text", text=""), piece(0, text="Hel"), piece(0, text="lo."),
            END, ended("COMPLETE")),
        whole("COMPLETE", content=[TEXT]), "Hello.", (), "stop", None),
    "text that stops where it was asked to": (
        sse(START, piece(0, text="Hello."), ended("STOP_SEQUENCE")),
        whole("STOP_SEQUENCE", content="Hello."), "Hello.", (), "stop", None),
    "calls": (
        sse(START, plan("I "), plan("will."), *STREAMED_AB, ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(*AB), tool_plan="I will."),
        "", AB, "tool_calls", {"tool_plan": "I will."}),
    "calls, though the reason does not say so": (
        sse(START, *STREAMED_AB, ended("COMPLETE")),
        whole("COMPLETE", tool_calls=sent(*AB), content=None, tool_plan=None, citations=None),
        "", AB, "tool_calls", None),
    "a call without arguments": (
        sse(START, begun(0, "a_1", "a"), event("tool-call-end", 0), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(("a_1", "a", "null"))),
        "", (("a_1", "a", "{}"),), "tool_calls", None),
    "thinking, then calls": (
        sse(START, piece(0, type="thinking", thinking=""), piece(0, thinking="H"),
            piece(0, thinking="m."), END, *STREAMED_AB, ended("TOOL_CALL")),
        whole("TOOL_CALL", content=[THINKING], tool_calls=sent(*AB)),
        "", AB, "tool_calls", {"content": [THINKING]}),
    "thinking, then text with citations": (
        sse(START, piece(0, type="thinking", thinking="Hm."), END,
            piece(1, type="text", text="Hello"), cited(1), event("citation-end", 1),
            piece(1, text="."), event("content-end", 1), ended("COMPLETE")),
        whole("COMPLETE", content=[THINKING, TEXT], citations=[CITATION]),
        "Hello.", (), "stop", {"content": [THINKING, TEXT], "citations": [CITATION]}),
    "citations alone": (
        sse(piece(0, type="text", text="Hello."), cited(0), ended("COMPLETE")),
        whole("COMPLETE", content=[TEXT], citations=[CITATION]),
        "Hello.", (), "stop", {"content": [TEXT], "citations": [CITATION]}),
    "cut in a call": (
        sse(START, *STREAMED_AB[:5], more(1, '{"y'), ended("MAX_TOKENS")),
        whole("MAX_TOKENS", tool_calls=sent(*CUT_AB)), "", CUT_AB, "length", None),
    "cut in a call, and not said": (
        sse(START, *STREAMED_AB[:5], more(1, '{"y'), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(*CUT_AB)), "", CUT_AB, "length", None),
    "cut though its calls are whole": (
        sse(START, *STREAMED_AB, ended("MAX_TOKENS")),
        whole("MAX_TOKENS", tool_calls=sent(*AB)), "", AB, "length", None),
    "cut, and then a natural end": (
        sse(START, *STREAMED_AB, ended("MAX_TOKENS"), ended("TOOL_CALL")),
        whole("MAX_TOKENS", tool_calls=sent(*AB)), "", AB, "length", None),
    "thinking and text under one index": (
        sse(START, piece(0, type="thinking", thinking="Hm."), piece(0, text="Hel"),
            piece(0, text="lo."), ended("COMPLETE")),
        whole("COMPLETE", content=[THINKING, TEXT]),
        "Hello.", (), "stop", {"content": [THINKING, TEXT]}),
    "content of a kind that nobody knows": (
        sse(START, event("content-start", 0, {"content": {"x": 1}}), piece(1, text="Hello."),
            ended("COMPLETE")),
        whole("COMPLETE", content=[{"x": 1}, TEXT]),
        "Hello.", (), "stop", {"content": [{"x": 1}, TEXT]}),
    "a name in each piece": (
        sse(START, begun(0, "a_1", "a"), named(0, "a", '{"x"'), named(0, "a", ": 1}"),
            begun(1, "b_1", "b"), named(1, "b", '{"y": 2}'), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(*AB)), "", AB, "tool_calls", None),
    "a name in two pieces": (
        sse(START, begun(0, "a_1", "get_"), named(0, "city", "{}"), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(("a_1", "get_city", "{}"))),
        "", (("a_1", "get_city", "{}"),), "tool_calls", None),
    "two calls under one index": (
        sse(START, *STREAMED_AB[:4], begun(0, "b_1", "b"), more(0, '{"y": 2}'), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(*AB)), "", AB, "tool_calls", None),
    "calls without an index": (
        sse(START, begun(None, "a_1", "a"), more(None, '{"x": 1}'), begun(None, "b_1", "b"),
            more(None, '{"y": 2}'), ended("TOOL_CALL")),
        whole("TOOL_CALL", tool_calls=sent(*AB)), "", AB, "tool_calls", None),
    "too slow": (
        sse(START, piece(0, text="Hello."), ended("TIMEOUT")),
        whole("TIMEOUT", content=[TEXT]), "Hello.", (), "error", None),
    "it failed": (
        sse(START, *STREAMED_AB, ended("ERROR")),
        whole("ERROR", tool_calls=sent(*AB)), "", AB, "error", None),
}  # fmt: skip


def facts(reply: Reply) -> tuple[Any, ...]:
    calls = tuple((c.provider_id, c.name, c.arguments) for c in reply.tool_calls)
    state = reply.message.provider_state
    assert state is None or state.wire == "cohere"
    assert reply.usage == Usage(1, 11, 7)
    assert {c.complete for c in reply.tool_calls} <= {reply.finish == "tool_calls"}
    return reply.text, calls, reply.finish, None if state is None else state.data


@each_row(("streamed", "body", "text", "calls", "finish", "state"), REPLIES.values(), ids=REPLIES)
def test_a_reply_in_both_forms(
    streamed: bytes, body: bytes, text: str, calls: Any, finish: str, state: Any
) -> None:
    expected = (text, calls, finish, state)
    assert facts(decode(COHERE, body)) == expected
    for size in (1, 7, 50, len(streamed)):
        reading = decoder(COHERE)
        for at in range(0, len(streamed), size):
            reading.feed(streamed[at : at + size])
        assert facts(reading.finish()) == expected


def test_parts_come_at_once_and_thinking_is_apart() -> None:
    reading = decoder(COHERE, ids="r_")
    events = [plan("Hm"), piece(0, thinking="Hm"), piece(1, text="Hi"), *STREAMED_AB]
    parts = [part for event in events for part in reading.feed(sse(event, done=False))]
    assert parts == [
        ReasoningPart("Hm"),
        TextPart("Hi"),
        ArgumentsPart("r_0", "a", '{"x"'),
        ArgumentsPart("r_0", "a", ": 1}"),
        ArgumentsPart("r_1", "b", '{"y": 2}'),
    ]


def test_a_stream_that_stops_before_its_end_is_incomplete() -> None:
    body = sse(START, *STREAMED_AB, ended("TOOL_CALL"))
    for at in range(1, body.index(b"message-end")):
        reading = decoder(COHERE)
        reading.feed(body[:at])
        reply = reading.finish()
        assert reply.finish == "incomplete"
        assert not any(call.complete for call in reply.tool_calls)
    assert facts(decode(COHERE, body.removesuffix(b"data: [DONE]\n\n")))[2] == "tool_calls"


FAILED: dict[str, tuple[bytes, type[Exception], str]] = {
    "an error for a body": (b'{"id":"x","message":"overloaded"}', ProviderError, "overloaded"),
    "an error at the end of a stream": (
        sse(START, ended("ERROR", error="out of memory")), ProviderError, "out of memory"),
    "an error in a stream": (
        sse(START, done=False) + b'data: {"id":"x","message":"overloaded"}\n\n',
        ProviderError, "overloaded"),
    "a text that is none": (sse(piece(0, text=[])), WireError, "not text"),  # type: ignore[arg-type]
    "version 1": (b'{"text":"Hi","finish_reason":"COMPLETE"}', WireError, "version 2"),
    "a stream of another wire": (b'data: {"choices":[]}\n\n', WireError, "this wire"),
    "no call": (whole("TOOL_CALL", tool_calls=["x"]), WireError, "tool call"),
    "arguments that are no text": (
        whole("TOOL_CALL", tool_calls=sent(("a", "a", []))),  # type: ignore[arg-type]
        WireError, "not text"),
    "content that is none": (whole("COMPLETE", content=[1]), WireError, "content"),
}  # fmt: skip


@each_row(("body", "kind", "said"), FAILED.values(), ids=FAILED)
def test_what_is_no_reply(body: bytes, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        decode(COHERE, body)


HELLO, WHOLE = {"text": "Hi"}, ended("COMPLETE")
ODD: dict[str, bytes] = {
    "events that nobody knows": sse({"type": "debug", "prompt": "x"}, piece(0, text="Hi"), WHOLE),
    "events without what they are about": sse(
        event("content-delta", 0), event("content-delta", 0, delta={}), piece(0, text="Hi"),
        event("message-end"), WHOLE),
    "a kind that is no word": sse({"type": []}, piece(0, text="Hi"), WHOLE),
    "no index": sse(event("content-delta", None, {"content": HELLO}), WHOLE),
    "content in a list": sse(event("content-delta", 0, {"content": [HELLO]}), WHOLE),
    "kinds in the event's name alone":
        b'event: content-delta\ndata: {"index":0,"delta":{"message":{"content":{"text":"Hi"}}}}\n\n'
        + sse(WHOLE),
}  # fmt: skip


@each_row("body", ODD.values(), ids=ODD)
def test_odd_streams(body: bytes) -> None:
    assert facts(decode(COHERE, body)) == ("Hi", (), "stop", None)


def test_usage_may_only_count_tokens() -> None:
    usage = {"tokens": {"input_tokens": 3, "output_tokens": 4}, "cached_tokens": 2}
    body = {"message": {"content": []}, "finish_reason": "COMPLETE", "usage": usage}
    assert decode(COHERE, json.dumps(body)).usage == Usage(1, 3, 4)


def test_names_are_own_names_again() -> None:
    offer = Offer(own_names={"a_b_12345678": "a.b"})
    body = whole("TOOL_CALL", tool_calls=sent(("1", "a_b_12345678", "{}")))
    (call,) = decode(COHERE, body, offer=offer).tool_calls
    assert call.name == "a.b"


@pytest.mark.exhaustive
def test_many_pieces_are_joined_once() -> None:
    pieces = [piece(0, thinking="x") for _ in range(20_000)]
    calls = [begun(0, "a", "a", '{"x": "'), *(more(0, "x") for _ in range(20_000)), more(0, '"}')]
    reply = decode(COHERE, sse(*pieces, *calls, ended("TOOL_CALL")))
    assert len(reply.tool_calls[0].arguments) == 20_009
    state = reply.message.provider_state
    content = [{"type": "thinking", "thinking": "x" * 20_000}]
    assert state == ProviderState("cohere", {"content": content})
