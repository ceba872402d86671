"""Requests of Anthropic's wire, against bodies written by hand from the wire's documentation."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.json import JsonValue
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import ANTHROPIC, Memo, encode
from toolcrib.wire.anthropic import AnthropicHistory

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def defined(name: str = "get_weather", **changes: Any) -> PlainTool:
    facts = {"description": "Weather now.", "input_schema_json": json.dumps(SCHEMA)} | changes
    return PlainTool(ToolDefinition(name=name, **facts))


def body_of(request: ChatRequest, *, stream: bool = False, **changes: Any) -> Any:
    wire = msgspec.structs.replace(ANTHROPIC, **changes)
    return json.loads(encode(wire, request, model="m", stream=stream).body)


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def messages_of(*messages: Message) -> Any:
    return body_of(asked(*messages))["messages"]


def stated(text: str, *blocks: Any, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message("assistant", text, calls, provider_state=ProviderState("anthropic", [*blocks]))


HI = [{"role": "user", "content": "Hi"}]
START: dict[str, Any] = {"model": "m", "max_tokens": 8192, "messages": HI}
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather now.",
    "input_schema": SCHEMA,
}
TOOLS = {"tools": (defined(),)}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="toolu_01")
OTHER = ToolCall("r_1", "get_weather", '{"city": "Oslo"}', provider_id="toolu_02")
SENT_CALL = {
    "type": "tool_use",
    "id": "toolu_01",
    "name": "get_weather",
    "input": {"city": "Rome"},
}

KNOWN: dict[str, Any] = {
    "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "none"},
}

GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), START),
    "tools": (asked(**TOOLS), START | {"tools": [TOOL]}),
    "choice: none": (
        asked(**TOOLS, tool_choice=ToolChoice("none")),
        START | {"tools": [TOOL], "tool_choice": {"type": "none"}},
    ),
    "choice: none, without tools": (asked(tool_choice=ToolChoice("none")), START),
    "choice: required": (
        asked(**TOOLS, tool_choice=ToolChoice("required")),
        START | {"tools": [TOOL], "tool_choice": {"type": "any"}},
    ),
    "choice: a tool": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        START | {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
    ),
    "one call at a time": (
        asked(**TOOLS, parallel_calls=False),
        START
        | {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    "one call at a time, of a tool": (
        asked(**TOOLS, parallel_calls=False, tool_choice=ToolChoice("tool", "get_weather")),
        START
        | {
            "tools": [TOOL],
            "tool_choice": {
                "type": "tool",
                "name": "get_weather",
                "disable_parallel_tool_use": True,
            },
        },
    ),
    "one call at a time, none at all": (
        asked(**TOOLS, parallel_calls=False, tool_choice=ToolChoice("none")),
        START | {"tools": [TOOL], "tool_choice": {"type": "none"}},
    ),
    "several calls are the default": (
        asked(**TOOLS, parallel_calls=True),
        START | {"tools": [TOOL]},
    ),
    "one call at a time, without tools": (asked(parallel_calls=False), START),
    "settings": (
        asked(settings=Settings(temperature=0.5, max_tokens=9, extra={"top_k": 1})),
        START | {"max_tokens": 9, "temperature": 0.5, "top_k": 1},
    ),
    "caching": (
        asked(settings=Settings(extra={"cache_control": {"type": "ephemeral"}})),
        START | {"cache_control": {"type": "ephemeral"}},
    ),
    "a choice in the extra settings needs tools": (
        asked(settings=Settings(extra={"tool_choice": {"type": "any"}})),
        START,
    ),
    "system": (
        asked(Message.system("Be brief."), Message.user("Hi")),
        START | {"system": "Be brief."},
    ),
    "system messages, wherever": (
        asked(Message.system("Be brief."), Message.user("Hi"), Message.system("And kind.")),
        START
        | {
            "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "And kind."}]
        },
    ),
    "conversation": (
        asked(
            Message.user("Weather in Rome?"),
            Message.assistant("", (CALL,)),
            Message.tool(CALL, "sunny"),
            Message.assistant("Sunny."),
            Message.user("Thanks."),
            **TOOLS,
        ),
        START
        | {"tools": [TOOL]}
        | {
            "messages": [
                {"role": "user", "content": "Weather in Rome?"},
                {"role": "assistant", "content": [SENT_CALL]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_01", "content": "sunny"}
                    ],
                },
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Thanks."},
            ],
        },
    ),
    "all results in one message, errors flagged, no tool on offer any more": (
        asked(
            Message.assistant("Let me see.", (CALL, OTHER)),
            Message.tool(OTHER, "down", is_error=True),
            Message.tool(CALL, ""),
        ),
        START
        | KNOWN
        | {
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me see."},
                        SENT_CALL,
                        SENT_CALL | {"id": "toolu_02", "input": {"city": "Oslo"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_02",
                            "content": "down",
                            "is_error": True,
                        },
                        {"type": "tool_result", "tool_use_id": "toolu_01"},
                    ],
                },
            ],
        },
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_streaming_adds_one_member(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_, stream=True) == body | {"stream": True}


def test_the_request_around_the_body() -> None:
    sent = encode("anthropic", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/v1/messages")
    assert sent.headers == {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "anthropic-version": "2023-06-01",
    }
    assert list(sent.offer.tools) == ["get_weather"]
    assert dict(ANTHROPIC.auth("sk-1")) == {"x-api-key": "sk-1"}


MOST: list[tuple[int | None, dict[str, JsonValue], int]] = [
    (None, {}, 8192),
    (9, {}, 9),
    (None, {"thinking": {"type": "enabled", "budget_tokens": 10_000}}, 18_192),
    (None, {"thinking": {"type": "adaptive"}}, 8192),
    (20_000, {"thinking": {"type": "enabled", "budget_tokens": 10_000}}, 20_000),
]


@each_row(("asked_for", "extra", "sent"), MOST)
def test_a_limit_is_always_sent(
    asked_for: int | None, extra: dict[str, JsonValue], sent: int
) -> None:
    settings = Settings(max_tokens=asked_for, extra=extra)
    assert body_of(asked(settings=settings)) == START | extra | {"max_tokens": sent}


def test_the_limit_is_a_field_of_the_wire() -> None:
    assert body_of(asked(), default_max_tokens=64_000)["max_tokens"] == 64_000


THREE = tuple(defined(name) for name in ("a", "b.b", "c"))


@each_row(
    ("choice", "said", "sent"),
    [
        (ToolChoice("auto", allowed=("a", "b.b", "c")), None, 3),
        (ToolChoice("required", allowed=("a", "b.b", "c")), {"type": "any"}, 3),
        (ToolChoice("required", allowed=("a",)), {"type": "tool", "name": "a"}, 3),
        (ToolChoice("none", allowed=("a",)), {"type": "none"}, 3),
        (ToolChoice("tool", "c", allowed=("a", "c")), {"type": "tool", "name": "c"}, 3),
        (ToolChoice("auto", allowed=("a", "b.b")), None, 2),
        (ToolChoice("auto", allowed=("a",)), None, 1),
        (ToolChoice("required", allowed=("b.b", "a")), {"type": "any"}, 2),
    ],
)
def test_some_tools(choice: ToolChoice, said: dict[str, Any] | None, sent: int) -> None:
    """What may not be called is not shown, and would not run; else all tools stay, for the cache."""
    memo, request = Memo(), asked(tools=THREE, tool_choice=choice)
    for made in (encode("anthropic", request, model="m", memo=memo) for _ in range(2)):
        body = json.loads(made.body)
        assert body.get("tool_choice") == said
        names = [made.offer.own_name(tool["name"]) for tool in body["tools"]]
        assert names == list(made.offer.tools)
        assert len(names) == sent
        assert {*names, *made.offer.known} == {"a", "b.b", "c"}
        assert sent == 3 or set(names) == set(choice.allowed)
    plain = encode("anthropic", asked(tools=THREE), model="m", memo=memo)
    assert len(json.loads(plain.body)["tools"]) == 3


def test_images_come_before_the_text() -> None:
    images = (
        Image("image/png", "aGk="),
        Image(url="https://a.test/b.png"),
        Image(url="data:image/gif;base64,aGk="),
    )
    sent = [
        {"type": "base64", "media_type": "image/png", "data": "aGk="},
        {"type": "url", "url": "https://a.test/b.png"},
        {"type": "base64", "media_type": "image/gif", "data": "aGk="},
    ]
    blocks = [{"type": "image", "source": source} for source in sent]
    first, second = messages_of(Message.user("What?", images), Message.user(" ", images[1:2]))
    assert first["content"] == [*blocks, {"type": "text", "text": "What?"}]
    assert second["content"] == blocks[1:2]


def test_what_says_nothing_is_not_sent() -> None:
    messages = [Message.user("Hi"), Message.assistant(" \n"), Message.user(""), Message.system(" ")]
    assert body_of(asked(*messages)) == START
    for nothing in ([Message.user(" ")], [Message.system("Be brief."), Message.assistant("")]):
        with pytest.raises(RequestError, match="nothing to send"):
            body_of(asked(*nothing))


def test_an_error_always_has_a_text() -> None:
    turn = Message.assistant("", (CALL,))
    for text in ("", " \n"):
        result = messages_of(turn, Message.tool(CALL, text, is_error=True))[1]["content"][0]
        assert (result["content"], result["is_error"]) == ("error", True)


def made(call_id: str, provider_id: str = "", arguments: str = "{}", name: str = "f") -> ToolCall:
    return ToolCall(call_id, name, arguments, provider_id=provider_id)


@each_row(
    ("calls", "ids"),
    [
        ([made("a", "p")], ["p"]),
        ([made("a"), made("b")], ["a", "b"]),
        ([made("a", "p"), made("b", "p")], ["p", "b"]),
        ([made("a.1", "call:1")], [AnthropicHistory.ids.generated_id(0)]),
        ([made("a", "p" * 200)], ["a"]),
        ([made("a", "ü")], ["a"]),
    ],
)
def test_ids_are_legal_and_unique(calls: list[ToolCall], ids: list[str]) -> None:
    results = [Message.tool(call, "x") for call in calls]
    assistant, user = messages_of(Message.assistant("", tuple(calls)), *results)
    assert [block["id"] for block in assistant["content"]] == ids
    assert [block["tool_use_id"] for block in user["content"]] == ids


@each_row(
    ("arguments", "sent"),
    [
        ('{"a":1, "b":[ ]}', '{"a":1, "b":[ ]}'),
        ('{"a": 12345678901234567890123}', '{"a": 12345678901234567890123}'),
        ('{"a": 1e400}', "{}"),
        ('{"a": "b', "{}"),
        ("", "{}"),
        ("[1]", "{}"),
        ('{"a": "\\ud83d\\ude00"}', '{"a": "\\ud83d\\ude00"}'),
        ('{"a": "\\ud83d"}', "{}"),
    ],
)
def test_input_is_the_models_own_text(arguments: str, sent: str) -> None:
    call = made("a", arguments=arguments)
    request = asked(Message.assistant("", (call,)), Message.tool(call, "x"))
    body = encode("anthropic", request, model="m").body.decode()
    assert f'"input":{sent}}}' in body


def test_names_are_made_legal_and_known_in_the_reply() -> None:
    tool, call = defined("weather.now"), made("a", name="weather.now")
    turn = Message.assistant("", (call, made("b", name="gone tool"))), Message.tool(call, "x")
    choice = ToolChoice("tool", "weather.now")
    request = asked(*turn, Message.tool(made("b"), "y"), tools=(tool,), tool_choice=choice)
    sent = encode("anthropic", request, model="m")
    body = json.loads(sent.body)
    (name,) = sent.offer.own_names
    assert body["tools"][0]["name"] == body["tool_choice"]["name"] == name
    first, second = body["messages"][0]["content"]
    assert first["name"] == name
    assert ANTHROPIC.tools.names.legal(second["name"])


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
REDACTED = {"type": "redacted_thinking", "data": "zzz"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SAID = {"type": "text", "text": "Let me see."}
CITED = {"type": "text", "text": " There.", "citations": [{"type": "page_location"}]}
PLACE = {"type": "tool_use", "id": "toolu_01", "name": "get_weather"}
CALLER = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}

REPLAYED: dict[str, tuple[Message, list[Any]]] = {
    "thinking, text and a call": (
        stated("Let me see.", THINKING, REDACTED, SAID, PLACE, calls=(CALL,)),
        [THINKING, REDACTED, SAID, SENT_CALL],
    ),
    "the provider's own tools, and what they found": (
        stated("Let me see. There.", SAID, SEARCH, FOUND, CITED),
        [SAID, SEARCH, FOUND, CITED],
    ),
    "who called": (
        stated("", SEARCH, PLACE | {"caller": CALLER}, calls=(CALL,)),
        [SEARCH, SENT_CALL | {"caller": CALLER}],
    ),
    "another text": (
        stated("Changed.", THINKING, SAID, PLACE, CITED, calls=(CALL,)),
        [THINKING, {"type": "text", "text": "Changed."}, SENT_CALL],
    ),
    "no text any more": (stated("", THINKING, SAID, PLACE, calls=(CALL,)), [THINKING, SENT_CALL]),
    "fewer calls": (
        stated("Let me see.", THINKING, SAID, PLACE, PLACE | {"id": "x"}, calls=(CALL,)),
        [THINKING, SAID, SENT_CALL],
    ),
    "more calls": (stated("", THINKING, calls=(CALL,)), [THINKING, SENT_CALL]),
    "blank text": (stated(" ", THINKING, {"type": "text", "text": " "}), [THINKING]),
    "what is no state of this wire": (
        stated("Hi", 5, {"type": "text"}, calls=(CALL,)),
        [{"type": "text", "text": "Hi"}, SENT_CALL],
    ),
}


@each_row(("message", "content"), REPLAYED.values(), ids=REPLAYED)
def test_state_is_replayed_in_its_place(message: Message, content: list[Any]) -> None:
    results = [Message.tool(call, "x") for call in message.tool_calls]
    sent = messages_of(Message.user("Hi"), message, *results)
    assert sent[1] == {"role": "assistant", "content": content}


def test_the_state_of_another_wire_stays_home() -> None:
    message = msgspec.structs.replace(
        stated("Hi", THINKING), provider_state=ProviderState("gemini", [THINKING])
    )
    assert messages_of(message) == [{"role": "assistant", "content": "Hi"}]


@each_row(
    ("request_", "said"),
    [
        (asked(tool_choice=ToolChoice("required")), "needs tools"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool", "other")), "'other'"),
        (asked(**TOOLS, tool_choice=ToolChoice("auto", allowed=("gone",))), "'gone'"),
        (asked(settings=Settings(extra={"messages": []})), "'messages'"),
        (asked(settings=Settings(extra={"system": "x"})), "'system'"),
        (asked(Message.assistant("", (CALL,))), "no result follows"),
        (asked(Message.tool(CALL, "x")), r"messages\[0\]"),
    ],
)
def test_what_the_wire_cannot_say_is_refused(request_: ChatRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        encode("anthropic", request_, model="m")


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    messages = (
        Message.system("\ud800"),
        Message.user("a\ud800b"),
        stated("x", THINKING | {"a": "\udc00"}),
    )
    body = body_of(asked(*messages))
    assert body["system"] == "\ufffd"
    assert body["messages"][0]["content"] == "a\ufffdb"


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.system("Be brief."), Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(tuple(history), tools)
        encoded.clear()
        with_memo = encode("anthropic", request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode("anthropic", request, model="m").body
        call = made(f"r_{turn}", "p", name="a.b")
        state = ProviderState("anthropic", [THINKING, PLACE | {"id": "p"}])
        history += [
            Message("assistant", "", (call,), provider_state=state),
            Message.tool(call, "x"),
        ]
    assert new == [1, 2, 2, 2]
