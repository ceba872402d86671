"""Requests of OpenAI Responses, against bodies written by hand from the wire's documentation."""

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
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import OPENAI_RESPONSES, Memo, encode, encode_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = SCHEMA | {"additionalProperties": False}


def defined(name: str = "get_weather", **changes: Any) -> PlainTool:
    facts = {"description": "Weather now.", "input_schema_json": json.dumps(SCHEMA)} | changes
    return PlainTool(ToolDefinition(name=name, **facts))


def body_of(request: ChatRequest, *, stream: bool = False, model: str = "m") -> Any:
    return json.loads(encode("openai-responses", request, model=model, stream=stream).body)


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def input_of(*messages: Message, **changes: Any) -> list[Any]:
    items: list[Any] = body_of(asked(*messages, **changes))["input"]
    return items


BASE = {"model": "m", "input": [{"role": "user", "content": "Hi"}], "store": False}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather now.",
    "parameters": SCHEMA,
    "strict": False,
}
TOOLS = {"tools": (defined(),)}
WITH_TOOLS = BASE | {"tools": [TOOL]}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="call_abc")
SENT_CALL = {
    "type": "function_call",
    "call_id": "call_abc",
    "name": "get_weather",
    "arguments": '{"city": "Rome"}',
}
RESULT = {"type": "function_call_output", "call_id": "call_abc", "output": "sunny"}

GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), BASE),
    "tools": (asked(**TOOLS), WITH_TOOLS),
    "choice: none": (
        asked(**TOOLS, tool_choice=ToolChoice("none")),
        WITH_TOOLS | {"tool_choice": "none"},
    ),
    "choice: none, without tools": (asked(tool_choice=ToolChoice("none")), BASE),
    "choice: required": (
        asked(**TOOLS, tool_choice=ToolChoice("required")),
        WITH_TOOLS | {"tool_choice": "required"},
    ),
    "choice: a tool": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        WITH_TOOLS | {"tool_choice": {"type": "function", "name": "get_weather"}},
    ),
    "choice: some tools": (
        asked(**TOOLS, tool_choice=ToolChoice("required", allowed=("get_weather",))),
        WITH_TOOLS
        | {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            }
        },
    ),
    "choice: none of some tools": (
        asked(**TOOLS, tool_choice=ToolChoice("none", allowed=("get_weather",))),
        WITH_TOOLS | {"tool_choice": "none"},
    ),
    "one call at a time": (
        asked(**TOOLS, parallel_calls=False),
        WITH_TOOLS | {"parallel_tool_calls": False},
    ),
    "parallel calls need tools": (
        asked(settings=Settings(extra={"parallel_tool_calls": False}), parallel_calls=True),
        BASE,
    ),
    "settings": (
        asked(settings=Settings(temperature=0.5, max_tokens=99, extra={"top_p": 1})),
        BASE | {"temperature": 0.5, "max_output_tokens": 99, "top_p": 1},
    ),
    "a server that remembers": (
        asked(settings=Settings(extra={"store": True})),
        BASE | {"store": True},
    ),
    "conversation": (
        asked(
            Message.system("Be brief."),
            Message.user("Weather in Rome?"),
            Message.assistant("", (CALL,)),
            Message.tool(CALL, "sunny"),
            Message.assistant("Sunny."),
            Message.system("Now in French."),
        ),
        BASE
        | {
            "input": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                SENT_CALL,
                RESULT,
                {"type": "message", "role": "assistant", "content": "Sunny."},
                {"role": "system", "content": "Now in French."},
            ],
        },
    ),
    "text beside a call, and an error result": (
        asked(Message.assistant("Let me see.", (CALL,)), Message.tool(CALL, "no", is_error=True)),
        BASE
        | {
            "input": [
                {"type": "message", "role": "assistant", "content": "Let me see."},
                SENT_CALL,
                RESULT | {"output": "no"},
            ],
        },
    ),
    "nothing said": (
        asked(Message.assistant("")),
        BASE | {"input": [{"type": "message", "role": "assistant", "content": ""}]},
    ),
    "images": (
        asked(Message.user("What?", (Image("image/png", "aGk="), Image(url="https://a.test/b")))),
        BASE
        | {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "input_image",
                            "image_url": "data:image/png;base64,aGk=",
                            "detail": "auto",
                        },
                        {"type": "input_image", "image_url": "https://a.test/b", "detail": "auto"},
                        {"type": "input_text", "text": "What?"},
                    ],
                }
            ],
        },
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body
    assert body_of(request_, stream=True) == body | {"stream": True}


def test_the_request_around_the_body() -> None:
    sent = encode("openai-responses", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/responses")
    assert sent.headers == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert list(sent.offer.tools) == ["get_weather"]
    assert dict(OPENAI_RESPONSES.auth("sk-1")) == {"Authorization": "Bearer sk-1"}


ENCRYPTED = ["reasoning.encrypted_content"]


@each_row(
    ("model", "extra", "include"),
    [
        ("gpt-5", {}, ENCRYPTED),
        ("gpt-5.6-luna", {}, ENCRYPTED),
        ("gpt-6.1-terra", {}, ENCRYPTED),
        ("o4-mini", {}, ENCRYPTED),
        ("codex-mini-latest", {}, ENCRYPTED),
        ("openai/gpt-5", {}, ENCRYPTED),
        ("openai.gpt-5.5", {}, ENCRYPTED),
        ("gpt-5-chat-latest", {}, None),
        ("gpt-4o-mini", {}, None),
        ("gpt-4.1", {}, None),
        ("google/gemini-2.5-flash-lite", {}, None),
        ("my-deployment", {"include": ENCRYPTED}, ENCRYPTED),
        ("gpt-5", {"include": ["message.output_text.logprobs"]}, ["message.output_text.logprobs"]),
        ("gpt-5", {"include": []}, []),
        ("gpt-5", {"store": True}, None),
    ],
)
def test_models_that_reason_are_asked_for_it(model: str, extra: Any, include: Any) -> None:
    assert body_of(asked(settings=Settings(extra=extra)), model=model).get("include") == include


@pytest.mark.parametrize(
    ("tool", "form"),
    [
        (defined(), TOOL),
        ({"name": "f"}, {"type": "function", "name": "f", "strict": False,
                         "parameters": {"type": "object", "properties": {}}}),
        (defined(strict=True, input_schema_json=json.dumps(CLOSED)),
         TOOL | {"parameters": CLOSED, "strict": True}),
    ],
)  # fmt: skip
def test_tools_in_any_form(tool: Any, form: dict[str, Any]) -> None:
    assert encode_tools("openai-responses", [tool]) == [form]
    assert body_of(asked(tools=(tool,)))["tools"] == [form]


def test_illegal_names_are_mapped_everywhere() -> None:
    call = ToolCall("r_0", "weather.now", "{}")
    request = asked(
        Message.assistant("", (call,)),
        Message.tool(call, "x"),
        tools=(defined("weather.now"),),
        tool_choice=ToolChoice("tool", "weather.now"),
    )
    sent = encode("openai-responses", request, model="m")
    body = json.loads(sent.body)
    (name,) = sent.offer.own_names
    assert body["tools"][0]["name"] == body["tool_choice"]["name"] == name
    assert body["input"][0]["name"] == name


@each_row(
    ("given", "kept"),
    [
        ("call_abc", True),
        ("toolu_01A-b", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("resp_1:call_0", True),
        ("a b", False),
        ("é", False),
        ("", False),
    ],
)
def test_ids_of_any_provider_are_made_legal(given: str, kept: bool) -> None:
    call = ToolCall("r_0", "f", "{}", provider_id=given)
    first, second = input_of(Message.assistant("", (call,)), Message.tool(call, "x"))
    assert first["call_id"] == second["call_id"] == (given if kept else "r_0")


def test_equal_ids_are_told_apart() -> None:
    calls = ToolCall("a", "f", "{}", provider_id="p"), ToolCall("b", "f", "{}", provider_id="p")
    items = input_of(Message.assistant("", calls), *(Message.tool(call, "x") for call in calls))
    assert [item["call_id"] for item in items] == ["p", "b", "p", "b"]


@pytest.mark.parametrize("arguments", ['{"a": "b', "", "[1]", "4 + 4"])
def test_arguments_that_are_no_object_are_not_echoed(arguments: str) -> None:
    call = ToolCall("a", "f", arguments)
    assert input_of(Message.assistant("", (call,)), Message.tool(call, "x"))[0]["arguments"] == "{}"


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
OWN_CALL = SENT_CALL | {"id": "fc_1", "status": "completed", "namespace": "weather"}
OWN_TEXT = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search"},
}


def said(*items: Any, text: str = "", calls: tuple[ToolCall, ...] = (CALL,)) -> list[Message]:
    """An assistant's message with these items of its own, and the results of its calls."""
    state = ProviderState("openai-responses", list(items))
    message = Message("assistant", text, calls, provider_state=state)
    return [message, *(Message.tool(call, "sunny") for call in calls)]


def test_the_providers_own_items_go_back_as_they_came() -> None:
    items = [SEARCH, REASONING, OWN_TEXT, OWN_CALL]
    assert input_of(*said(*items, text="Let me see.")) == [*items, RESULT]
    assert input_of(*said(REASONING, OWN_TEXT, text="Let me see.", calls=())) == [
        REASONING,
        OWN_TEXT,
    ]


def test_calls_in_kept_items_are_those_of_the_message() -> None:
    edited = msgspec.structs.replace(CALL, arguments='{"city": "Pisa"}')
    items = input_of(*said(REASONING, OWN_CALL), *said(REASONING, OWN_CALL, calls=(edited,)))
    again = {"call_id": "r_0", "arguments": '{"city": "Pisa"}'}
    assert items == [
        REASONING, OWN_CALL, RESULT, REASONING, OWN_CALL | again, RESULT | {"call_id": "r_0"}
    ]  # fmt: skip
    cut = msgspec.structs.replace(CALL, arguments='{"city": "R', complete=False)
    (_, call, _) = input_of(*said(REASONING, OWN_CALL | {"status": "incomplete"}, calls=(cut,)))
    assert call == OWN_CALL | {"status": "incomplete", "arguments": "{}"}


OTHER = ToolCall("r_1", "get_weather", "{}", provider_id="call_def")


@each_row(
    "messages",
    [
        said(REASONING, OWN_TEXT, OWN_CALL, text="Let me"),
        said(REASONING, OWN_TEXT, OWN_CALL),
        said(REASONING, OWN_CALL, calls=(CALL, OTHER)),
        said(REASONING, OWN_CALL, OWN_CALL | {"call_id": "call_def"}),
        said(REASONING, OWN_CALL | {"call_id": "call_def"}),
        said(REASONING, calls=(CALL,)),
    ],
)
def test_a_message_that_was_changed_goes_out_without_its_items(messages: list[Message]) -> None:
    plain = [msgspec.structs.replace(message, provider_state=None) for message in messages]
    assert input_of(*messages) == input_of(*plain)


def test_another_wires_state_stays_home() -> None:
    message, result = said(REASONING, OWN_CALL)
    for state in (ProviderState("anthropic", [REASONING]), ProviderState("openai-responses", "x")):
        other = msgspec.structs.replace(message, provider_state=state)
        assert input_of(other, result) == [SENT_CALL, RESULT]


def test_a_custom_tools_call_gets_a_custom_tools_result() -> None:
    custom = {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "c",
        "name": "f",
        "input": "4+4",
    }
    call = ToolCall("r_0", "f", "4+4", provider_id="c")
    assert input_of(*said(custom, calls=(call,))) == [
        custom,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "sunny"},
    ]
    assert input_of(*said(custom, OWN_CALL)) == [custom, OWN_CALL, RESULT]


@each_row(
    ("request_", "message"),
    [
        (asked(tool_choice=ToolChoice("required")), "needs tools"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool", "other")), "'other'"),
        (asked(**TOOLS, tool_choice=ToolChoice("auto", allowed=("gone",))), "'gone'"),
        (asked(settings=Settings(extra={"input": []})), "'input'"),
        (asked(settings=Settings(extra={"x": {1}})), "JSON"),  # type: ignore[dict-item]
        (asked(Message.assistant("", (CALL,))), "'r_0'"),
        (ChatRequest(()), "no messages"),
    ],
)
def test_what_the_wire_cannot_say_is_refused(request_: ChatRequest, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        encode("openai-responses", request_, model="m")


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    assert input_of(Message.user("a\ud800b"))[0]["content"] == "a\ufffdb"


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(tuple(history), tools)
        encoded.clear()
        with_memo = encode("openai-responses", request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode("openai-responses", request, model="m").body
        call = ToolCall(f"r_{turn}", "a.b", "{}", provider_id="p")
        own = OWN_CALL | {"call_id": "p"}
        history += said(REASONING, own, calls=(call,))
    assert new == [1, 3, 3, 3]
