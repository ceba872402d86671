"""Requests of OpenAI's chat wire, against bodies written by hand from the wire's documentation."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib.errors import CatalogError, DefinitionError, RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, Settings, ToolChoice
from toolcrib.wire import OPENAI_CHAT, Memo, encode, encode_tools, wire_of
from toolcrib.wire.forms import NameRule
from toolcrib.wire.openai_chat import ChatHistory

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

CLOSED = SCHEMA | {"additionalProperties": False}


def defined(name: str = "get_weather", **changes: Any) -> PlainTool:
    facts = {"description": "Weather now.", "input_schema_json": json.dumps(SCHEMA)} | changes
    return PlainTool(ToolDefinition(name=name, **facts))


def body_of(request: ChatRequest, *, stream: bool = False, **changes: Any) -> Any:
    wire = msgspec.structs.replace(OPENAI_CHAT, **changes)
    return json.loads(encode(wire, request, model="m", stream=stream).body)


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


HI = [{"role": "user", "content": "Hi"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather now.", "parameters": SCHEMA},
}
TOOLS = {"tools": (defined(),)}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="call_abc")
SENT_CALL = {
    "id": "call_abc",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}

GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), {"model": "m", "messages": HI}),
    "tools": (asked(**TOOLS), {"model": "m", "messages": HI, "tools": [TOOL]}),
    "choice: none": (
        asked(**TOOLS, tool_choice=ToolChoice("none")),
        {"model": "m", "messages": HI, "tools": [TOOL], "tool_choice": "none"},
    ),
    "choice: none, without tools": (
        asked(tool_choice=ToolChoice("none")),
        {"model": "m", "messages": HI},
    ),
    "choice: required": (
        asked(**TOOLS, tool_choice=ToolChoice("required")),
        {"model": "m", "messages": HI, "tools": [TOOL], "tool_choice": "required"},
    ),
    "choice: a tool": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        {
            "model": "m",
            "messages": HI,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    "settings": (
        asked(settings=Settings(temperature=0.5, max_tokens=9, extra={"seed": 1})),
        {"model": "m", "messages": HI, "temperature": 0.5, "max_tokens": 9, "seed": 1},
    ),
    "parallel calls need tools": (
        asked(settings=Settings(extra={"parallel_tool_calls": False})),
        {"model": "m", "messages": HI},
    ),
    "parallel calls with tools": (
        asked(**TOOLS, settings=Settings(extra={"parallel_tool_calls": False})),
        {"model": "m", "messages": HI, "tools": [TOOL], "parallel_tool_calls": False},
    ),
    "conversation": (
        asked(
            Message.system("Be brief."),
            Message.user("Weather in Rome?"),
            Message.assistant("", (CALL,)),
            Message.tool(CALL, "sunny"),
            Message.assistant("Sunny."),
        ),
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                {"role": "assistant", "content": None, "tool_calls": [SENT_CALL]},
                {"role": "tool", "tool_call_id": "call_abc", "content": "sunny"},
                {"role": "assistant", "content": "Sunny."},
            ],
        },
    ),
    "text beside a call, and an error result": (
        asked(Message.assistant("Let me see.", (CALL,)), Message.tool(CALL, "down", is_error=True)),
        {
            "model": "m",
            "messages": [
                {"role": "assistant", "content": "Let me see.", "tool_calls": [SENT_CALL]},
                {"role": "tool", "tool_call_id": "call_abc", "content": "down"},
            ],
        },
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_streaming_adds_two_members(request_: ChatRequest, body: dict[str, Any]) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    assert body_of(request_, stream=True) == body | more


def test_the_request_around_the_body() -> None:
    sent = encode("openai-chat", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/chat/completions")
    assert sent.headers == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert list(sent.offer.tools) == ["get_weather"]
    assert dict(OPENAI_CHAT.auth("sk-1")) == {"Authorization": "Bearer sk-1"}


def test_quirks_are_fields() -> None:
    request = asked(settings=Settings(max_tokens=9))
    body = body_of(request, stream=True, max_tokens_key="max_completion_tokens", stream_usage=False)
    assert body == {"model": "m", "messages": HI, "max_completion_tokens": 9, "stream": True}


DEFINITIONS: list[tuple[Any, dict[str, Any]]] = [
    (defined(), TOOL["function"]),
    (defined().definition, TOOL["function"]),
    ({"name": "f", "description": "D", "input_schema": SCHEMA, "output_schema": {}, "tags": []},
     {"name": "f", "description": "D", "parameters": SCHEMA}),
    ({"name": "f"}, {"name": "f", "parameters": {"type": "object", "properties": {}}}),
    (defined(strict=True, description="", input_schema_json=json.dumps(CLOSED)),
     {"name": "get_weather", "parameters": CLOSED, "strict": True}),
    (defined(strict=False), TOOL["function"] | {"strict": False}),
    (defined(output_schema_json="{}", tags=("a",)), TOOL["function"]),
]  # fmt: skip


@each_row(("tool", "function"), DEFINITIONS)
def test_tools_in_any_form(tool: Any, function: dict[str, Any]) -> None:
    expected = [{"type": "function", "function": function}]
    assert encode_tools("openai-chat", [tool]) == expected
    assert body_of(asked(tools=(tool,)))["tools"] == expected


def test_the_schema_is_the_authors_own_and_stays_so() -> None:
    text = '{"type":"object","properties":{"n":{"const":12345678901234567890123}},"x":1.0}'
    tool = defined(input_schema_json=text)
    assert text.encode() in encode("openai-chat", asked(tools=(tool,)), model="m").body
    encode_tools("openai-chat", [tool])[0]["function"]["parameters"].clear()  # type: ignore[index, call-overload, union-attr]
    assert tool.definition.input_schema_json == text
    given = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    encode_tools("openai-chat", [given])[0]["function"]["parameters"].clear()  # type: ignore[index, call-overload, union-attr]
    assert given["input_schema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("form", [{}, {"name": ""}, {"name": 1}, {"name": "f", "input_schema": []}])
def test_a_dictionary_that_defines_nothing_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        encode_tools("openai-chat", [form])


def test_illegal_names_are_mapped_and_the_offer_knows_the_own_names() -> None:
    tool = defined("weather.now")
    call = ToolCall("r_0", "weather.now", "{}")
    sent = encode(
        "openai-chat",
        asked(
            Message.assistant("", (call,)),
            Message.tool(call, "x"),
            tools=(tool,),
            tool_choice=ToolChoice("tool", "weather.now"),
        ),
        model="m",
    )
    body = json.loads(sent.body)
    (name,) = sent.offer.own_names
    assert sent.offer.own_name(name) == "weather.now"
    assert body["tools"][0]["function"]["name"] == name
    assert body["tool_choice"]["function"]["name"] == name
    assert body["messages"][0]["tool_calls"][0]["function"]["name"] == name


def sent_calls(*calls: ToolCall, times: int = 1) -> list[dict[str, Any]]:
    history: list[Message] = []
    for _ in range(times):
        history += [Message.assistant("", calls), *(Message.tool(call, "x") for call in calls)]
    messages = body_of(asked(*history))["messages"]
    results = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    found = [call for m in messages for call in m.get("tool_calls", ())]
    assert [call["id"] for call in found] == results
    assert len(set(results)) == len(results)
    return found


def made(call_id: str, provider_id: str = "", arguments: str = "{}", name: str = "f") -> ToolCall:
    return ToolCall(call_id, name, arguments, provider_id=provider_id)


@each_row(
    ("calls", "ids"),
    [
        ([made("a", "p")], ["p"]),
        ([made("a"), made("b")], ["a", "b"]),
        ([made("a", "p"), made("b", "p")], ["p", "b"]),
        ([made("a", "b"), made("b", "")], ["b", ChatHistory.ids.generated_id(1)]),
        ([made("a", "p" * 200)], ["a"]),
    ],
)
def test_ids_go_back_as_the_provider_knows_them(calls: list[ToolCall], ids: list[str]) -> None:
    assert [call["id"] for call in sent_calls(*calls)] == ids


def test_ids_are_unique_over_a_whole_history() -> None:
    assert [call["id"] for call in sent_calls(made("a", "p"), times=3)] == [
        "p",
        "a",
        ChatHistory.ids.generated_id(2),
    ]


def test_long_ids_of_our_own_are_shortened_to_what_openai_takes() -> None:
    first, second = sent_calls(made("run_" + "0" * 60 + "_0"), made("run_" + "0" * 60 + "_1"))
    assert max(len(first["id"]), len(second["id"])) <= 40


@each_row(
    ("arguments", "sent"),
    [
        ('{"a":1, "a":2}', '{"a":1, "a":2}'),
        ('{"a": 1e400}', "{}"),
        ('{"a": "b', "{}"),
        ("", "{}"),
        ("[1]", "{}"),
        ("{'a': 1}", "{}"),
    ],
)
def test_arguments_that_are_no_object_are_not_echoed(arguments: str, sent: str) -> None:
    assert sent_calls(made("a", "", arguments))[0]["function"]["arguments"] == sent


def test_a_call_without_a_name_goes_back_under_a_legal_one() -> None:
    assert OPENAI_CHAT.tools.names.legal(sent_calls(made("a", name=""))[0]["function"]["name"])


A, B = made("a"), made("b")
CALLS = Message.assistant("", (A, B))
BROKEN: list[tuple[list[Message], str]] = [
    ([], "no messages"),
    ([CALLS], "'a', 'b'"),
    ([CALLS, Message.tool(A, "1")], "no result follows the tool call 'b'"),
    ([CALLS, Message.tool(A, "1"), Message.user("x")], "'b'"),
    ([CALLS, Message.tool(A, "1"), Message.tool(A, "2"), Message.tool(B, "3")], "messages[2]"),
    ([Message.user("x"), Message.tool(A, "1")], "messages[1]"),
    ([Message("tool", "x")], "messages[0]"),
    ([CALLS, Message.user("x"), Message.tool(A, "1"), Message.tool(B, "2")], "'a', 'b'"),
    ([Message.assistant("", (A, A)), Message.tool(A, "1")], "two calls"),
    ([Message("user", "x", (A,)), Message.tool(A, "1")], "only an assistant"),
]


@each_row(("messages", "said"), BROKEN)
def test_a_broken_history_is_refused_before_it_is_sent(messages: list[Message], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        encode("openai-chat", ChatRequest(tuple(messages)), model="m")
    assert said in str(caught.value)
    assert caught.value.status is None


@each_row(
    ("request_", "said"),
    [
        (asked(tool_choice=ToolChoice("required")), "needs tools"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool", "other")), "'other'"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool")), "not among the offered tools"),
        (asked(settings=Settings(extra={"messages": []})), "'messages'"),
        (asked(settings=Settings(extra={"x": {1}})), "JSON"),  # type: ignore[dict-item]
    ],
)
def test_what_the_wire_cannot_say_is_refused(request_: ChatRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        encode("openai-chat", request_, model="m")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(CatalogError):
        encode("openai-chat", asked(tools=(defined(), defined())), model="m")


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(RequestError, match="openai-chat"):
        wire_of("openai")


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    call = made("a", arguments='{"x":"y"}')
    messages = [Message.user("a\ud800b"), Message.assistant("\udc00", (call,))]
    body = body_of(asked(*messages, Message.tool(call, "\ud83d\ude00")))
    assert [m["content"] for m in body["messages"]] == ["a\ufffdb", "\ufffd", "😀"]


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(tuple(history), tools)
        encoded.clear()
        with_memo = encode("openai-chat", request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode("openai-chat", request, model="m").body
        call = made(f"r_{turn}", "p", name="a.b")
        history += [Message.assistant("", (call,)), Message.tool(call, "x")]
    assert new == [1, 2, 2, 2]


def test_a_memo_forgets_another_conversation_and_a_broken_one() -> None:
    memo = Memo()
    encode("openai-chat", asked(Message.user("a"), Message.user("b")), model="m", memo=memo)
    for messages in ([Message.user("c")], [Message.user("a")]):
        request = asked(*messages)
        expected = encode("openai-chat", request, model="m").body
        assert encode("openai-chat", request, model="m", memo=memo).body == expected
    with pytest.raises(RequestError):
        encode("openai-chat", asked(Message.user("a"), CALLS), model="m", memo=memo)
    assert len(memo.histories) == 2
    renamed = asked(Message.user("a"), **TOOLS)
    expected = encode("openai-chat", renamed, model="m").body
    assert encode("openai-chat", renamed, model="m", memo=memo).body == expected


def test_a_memo_forgets_what_was_encoded_for_another_wire() -> None:
    rule = NameRule("A-Za-z0-9_.", 64)
    other = msgspec.structs.replace(
        OPENAI_CHAT, tools=msgspec.structs.replace(OPENAI_CHAT.tools, names=rule)
    )
    call = msgspec.structs.replace(CALL, name="gone.by")
    messages = Message.user("a"), Message.assistant("", (call,)), Message.tool(call, "{}")
    request = asked(*messages, tools=(defined("a.b"),))
    memo = Memo()
    for wire in (OPENAI_CHAT, other, OPENAI_CHAT):
        expected = encode(wire, request, model="m").body
        assert encode(wire, request, model="m", memo=memo).body == expected


def test_images_come_before_the_text() -> None:
    images = (Image("image/png", "aGk="), Image(url="https://a.test/b.png"))
    body = body_of(asked(Message.user("What is it?", images), Message.user("", images[1:])))
    there = {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}}
    assert [m["content"] for m in body["messages"]] == [
        [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            there,
            {"type": "text", "text": "What is it?"},
        ],
        [there],
    ]


def test_some_tools_and_one_call_at_a_time() -> None:
    both = (defined(), defined("other"))
    choice = ToolChoice("required", allowed=("other",))
    body = body_of(asked(tools=both, tool_choice=choice, parallel_calls=False))
    assert body["parallel_tool_calls"] is False
    assert body["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "other"}}],
        },
    }
    assert len(body["tools"]) == 2
    assert "parallel_tool_calls" not in body_of(asked(parallel_calls=True))
    with pytest.raises(RequestError, match="'gone'"):
        body_of(asked(**TOOLS, tool_choice=ToolChoice("auto", allowed=("gone",))))
