"""Requests of Ollama's chat, against bodies written by hand from its documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import OLLAMA, Memo, encode

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def defined(name: str = "get_weather") -> PlainTool:
    text = json.dumps(SCHEMA)
    return PlainTool(ToolDefinition(name=name, description="Weather.", input_schema_json=text))


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def body_of(request: ChatRequest, *, stream: bool = False) -> Any:
    return json.loads(encode(OLLAMA, request, model="m", stream=stream).body)


HI = [{"role": "user", "content": "Hi"}]
BASE = {"model": "m", "messages": HI, "stream": False}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA},
}
TOOLS = {"tools": (defined(),)}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="call_abc")
SENT_CALL = {
    "id": "call_abc",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Rome"}},
}
THOUGHT = ProviderState("ollama", {"thinking": "Hm."})
FOREIGN = ProviderState("anthropic", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}])

GOLDEN: dict[str, tuple[ChatRequest, dict[str, Any]]] = {
    "text only": (asked(), BASE),
    "tools": (asked(**TOOLS), BASE | {"tools": [TOOL]}),
    "choice: auto": (asked(**TOOLS, tool_choice=ToolChoice()), BASE | {"tools": [TOOL]}),
    "choice: none, so there are no tools": (asked(**TOOLS, tool_choice=ToolChoice("none")), BASE),
    "choice among some, so there are no others": (
        asked(
            tools=(defined("other"), defined()),
            tool_choice=ToolChoice(allowed=("get_weather",)),
        ),
        BASE | {"tools": [TOOL]},
    ),
    "settings": (
        asked(settings=Settings(0.5, 9, {"think": True, "keep_alive": "5m"})),
        BASE
        | {"options": {"temperature": 0.5, "num_predict": 9}, "think": True, "keep_alive": "5m"},
    ),
    "options beside the settings": (
        asked(settings=Settings(0.0, None, {"options": {"num_ctx": 8192, "seed": 1}})),
        BASE | {"options": {"temperature": 0.0, "num_ctx": 8192, "seed": 1}},
    ),
    "a whole turn": (
        asked(
            Message.system("Be brief."),
            Message.user("Weather in Rome?"),
            Message("assistant", "", (CALL,), provider_state=THOUGHT),
            Message.tool(CALL, "sunny"),
            Message.assistant("Sunny."),
        ),
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "Hm.",
                    "tool_calls": [SENT_CALL],
                },
                {
                    "role": "tool",
                    "tool_name": "get_weather",
                    "tool_call_id": "call_abc",
                    "content": "sunny",
                },
                {"role": "assistant", "content": "Sunny."},
            ],
            "stream": False,
        },
    ),
    "from another provider": (
        asked(Message("assistant", "Hello.", provider_state=FOREIGN), Message.user("Hi")),
        BASE | {"messages": [{"role": "assistant", "content": "Hello."}, *HI]},
    ),
    "images": (
        asked(
            Message.user(
                "What?", (Image("image/png", "aGk="), Image(url="data:image/png;base64,aG8="))
            )
        ),
        BASE | {"messages": [{"role": "user", "content": "What?", "images": ["aGk=", "aG8="]}]},
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
def test_exact_bodies(request_: ChatRequest, body: dict[str, Any]) -> None:
    assert body_of(request_) == body
    assert body_of(request_, stream=True) == body | {"stream": True}


def test_the_request_around_the_body() -> None:
    sent = encode("ollama", asked(**TOOLS), model="m", stream=True)
    assert (sent.method, sent.path) == ("POST", "/api/chat")
    assert sent.headers == {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    assert list(sent.offer.tools) == ["get_weather"]
    whole = encode("ollama", asked(), model="m")
    assert whole.headers["Accept"] == "application/json"


REFUSED: list[tuple[ChatRequest, str]] = [
    (asked(**TOOLS, tool_choice=ToolChoice("required")), "cannot be forced to call a tool"),
    (asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")), "cannot be forced to call"),
    (asked(**TOOLS, tool_choice=ToolChoice(allowed=("gone",))), "'gone'"),
    (asked(**TOOLS, parallel_calls=False), "one call at a time"),
    (asked(settings=Settings(extra={"options": [1]})), "is not an object"),
    (asked(settings=Settings(extra={"stream": True})), "'stream'"),
    (asked(Message.user("", (Image(url="https://a.test/b.png"),))), "by URL"),
    (asked(Message.user("", (Image(url="data:image/png,PNG"),))), "by URL"),
]


@each_row(("request_", "said"), REFUSED)
def test_what_ollama_cannot_do_is_refused(request_: ChatRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        encode(OLLAMA, request_, model="m")


def test_a_flag_that_asks_for_nothing_is_no_fault() -> None:
    assert body_of(asked(parallel_calls=False)) == BASE
    assert body_of(asked(**TOOLS, parallel_calls=True)) == BASE | {"tools": [TOOL]}


@pytest.mark.parametrize("choice", [ToolChoice("none"), ToolChoice(allowed=("other",))])
def test_a_tool_that_may_not_be_called_is_known_but_not_on_offer(choice: ToolChoice) -> None:
    both = (defined(), defined("other"))
    offer = encode(OLLAMA, asked(tools=both, tool_choice=choice), model="m").offer
    assert set(offer.tools) == set(choice.allowed)
    assert offer.known == {"get_weather", "other"} - set(choice.allowed)


@each_row(
    ("arguments", "sent"),
    [
        ('{"a":1, "a":2}', '{"a":1, "a":2}'),
        ('{"a": 12345678901234567890123}', '{"a": 12345678901234567890123}'),
        ('{"a": "b', "{}"),
        ("[1]", "{}"),
        ("", "{}"),
    ],
)
def test_arguments_go_back_as_the_model_wrote_them(arguments: str, sent: str) -> None:
    call = ToolCall("a", "f", arguments)
    body = encode(OLLAMA, asked(Message.assistant("", (call,)), Message.tool(call, "x")), model="m")
    assert f'"arguments":{sent}}}'.encode() in body.body


def test_results_are_named_in_the_order_of_the_history() -> None:
    first, second = ToolCall("a", "f", "{}"), ToolCall("b", "g h", "{}")
    turn = (Message.assistant("", (first, second)), Message.tool(second, "2"),
            Message.tool(first, "1", is_error=True))  # fmt: skip
    messages = body_of(asked(*turn))["messages"]
    sent = [call["function"]["name"] for call in messages[0]["tool_calls"]]
    assert OLLAMA.tools.names.legal(sent[1])
    assert [(m["tool_name"], m["tool_call_id"], m["content"]) for m in messages[1:]] == [
        (sent[1], "b", "2"),
        ("f", "a", "1"),
    ]


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    call = ToolCall("a", "f", '{"x":"\\ud800"}')
    turn = (Message.user("a\ud800b"), Message.assistant("\udc00", (call,)), Message.tool(call, "x"))
    messages = body_of(asked(*turn))["messages"]
    assert [m["content"] for m in messages] == ["a\ufffdb", "\ufffd", "x"]


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a.b"))
    history: list[Message] = [Message.user("Hi")]
    for turn in range(4):
        allowed = ("a.b",) if turn == 2 else ()
        request = ChatRequest(tuple(history), tools, ToolChoice(allowed=allowed))
        encoded.clear()
        with_memo = encode(OLLAMA, request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode(OLLAMA, request, model="m").body
        call = ToolCall(f"r_{turn}", "a.b", "{}", provider_id="p")
        history += [Message.assistant("", (call,)), Message.tool(call, "x")]
    assert new == [1, 2, 2, 2]


@each_row("data", [[], ["thinking"], "Hm.", 7, {"role": "user", "content": "no"}])
def test_a_state_of_another_form_says_nothing(data: Any) -> None:
    said = Message("assistant", "Yes.", provider_state=ProviderState("ollama", data))
    request = ChatRequest((Message.user("?"), said, Message.user("!")))
    body = json.loads(encode("ollama", request, model="m").body)
    assert body["messages"][1] == {"role": "assistant", "content": "Yes."}
