"""Tools that a search found, told where they were found: what is sent, when, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rows import each_row
from wire.recorded_helpers import recorded
from wire.sdk_judges import judge_of

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.definition import Example, PlainTool, ToolDefinition
from toolcrib.values.message import (
    ChatRequest,
    Message,
    Offer,
    ProviderState,
    Settings,
    ToolChoice,
)
from toolcrib.wire import ANTHROPIC, OPENAI_RESPONSES, WIRES, Wire, decode, encode
from toolcrib.wire.base import Memo

SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'


def made(name: str, said: str = "", **members: Any) -> PlainTool:
    said = said or f"{name}."
    return PlainTool(
        ToolDefinition(name=name, description=said, input_schema_json=SCHEMA, **members)
    )


FIND, PLAY, MAIL, MAP = (made(name) for name in ("find", "play", "mail", "map"))
HI, BYE = Message.user("Hi"), Message.user("Bye")


def searched(number: int, *loads: str, name: str = "find", error: bool = False) -> list[Message]:
    """A call of the search, and its result, which brings these tools."""
    call = ToolCall(f"r_{number}", name, '{"q":"x"}', provider_id=f"call_{number}")
    told = Message.tool(call, f"found {', '.join(loads)}", is_error=error)
    return [Message.assistant("", (call,)), msgspec.structs.replace(told, loads=loads)]


def asked(*messages: Message, tools: Any = (FIND, PLAY, MAIL), **members: Any) -> ChatRequest:
    given = {"search_tool": "find"} | members
    return ChatRequest((HI, *messages), tools, **given)


FIRST = asked(tools=(FIND, PLAY))
FOUND = asked(*searched(0, "mail"))
KNOWN = {"anthropic": "claude-opus-4-5", "openai-responses": "gpt-5.4"}
each_known = pytest.mark.parametrize("wire", KNOWN)


def sent(wire: Wire | str, request: ChatRequest, model: str = "", **members: Any) -> dict[str, Any]:
    """The body of a request, judged by the SDK's types."""
    name = wire if isinstance(wire, str) else wire.name
    data = encode(wire, request, model=model or KNOWN[name], **members).body
    judge_of(name)(data)
    body: dict[str, Any] = json.loads(data)
    return body


def listed(body: dict[str, Any]) -> list[str]:
    return [tool.get("name") or tool["type"] for tool in body["tools"]]


def told(body: dict[str, Any]) -> list[str]:
    """The tools that are told in the messages."""
    names: list[str] = []
    for item in body.get("input", ()):
        names += [tool["name"] for tool in item.get("tools", ())]
    for message in body.get("messages", ()):
        for block in message["content"] if isinstance(message["content"], list) else ():
            parts = block.get("content")
            for part in parts if isinstance(parts, list) else ():
                names += [part["tool_name"]] if part["type"] == "tool_reference" else []
    return names


# What is sent.


def test_the_body_that_anthropic_is_sent() -> None:
    schema = json.loads(SCHEMA)
    assert sent("anthropic", FOUND) == {
        "model": "claude-opus-4-5",
        "max_tokens": 8192,
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "call_0", "name": "find", "input": {"q": "x"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_0",
                        "content": [{"type": "tool_reference", "tool_name": "mail"}],
                    }
                ],
            },
        ],
        "tools": [
            {"name": "find", "description": "find.", "input_schema": schema},
            {"name": "play", "description": "play.", "input_schema": schema},
            {
                "name": "mail",
                "description": "mail.",
                "input_schema": schema,
                "defer_loading": True,
            },
        ],
    }


def test_the_body_that_openai_is_sent() -> None:
    schema = json.loads(SCHEMA)
    function = {"type": "function", "parameters": schema, "strict": False}
    assert sent("openai-responses", FOUND) == {
        "model": "gpt-5.4",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "user", "content": "Hi"},
            {
                "type": "tool_search_call",
                "execution": "client",
                "call_id": "call_0",
                "status": "completed",
                "arguments": {"q": "x"},
            },
            {
                "type": "tool_search_output",
                "execution": "client",
                "call_id": "call_0",
                "status": "completed",
                "tools": [
                    function | {"name": "mail", "description": "mail.", "defer_loading": True}
                ],
            },
        ],
        "tools": [
            {
                "type": "tool_search",
                "execution": "client",
                "description": "find.",
                "parameters": schema,
            },
            function | {"name": "play", "description": "play."},
        ],
    }


@each_known
def test_what_stands_before_stays_as_it_was(wire: str) -> None:
    """The tools that are not deferred, and all messages: what a provider keeps."""
    both = asked(*searched(0, "mail"), *searched(1, "map"), tools=(FIND, PLAY, MAIL, MAP))
    before: list[Any] = []
    for request in (FIRST, FOUND, both):
        body = sent(wire, request)
        messages = body.get("input") or body["messages"]
        assert [tool for tool in body["tools"] if not tool.get("defer_loading")] == (
            sent(wire, FIRST)["tools"]
        )
        assert messages[: len(before)] == before
        before = messages
    assert told(body) == ["mail", "map"]


@each_known
def test_what_was_found_is_on_offer_and_what_was_not_is_not(wire: str) -> None:
    offer = encode(wire, FOUND, model=KNOWN[wire]).offer
    assert list(offer.tools) == ["find", "play", "mail"]
    assert offer.own_name("mail") == "mail"


@each_known
def test_names_that_the_provider_would_refuse_are_its_own_there(wire: str) -> None:
    odd = made("send.mail")
    body = sent(wire, asked(*searched(0, "send.mail"), tools=(FIND, odd)))
    (name,) = told(body)
    assert name.startswith("send_mail_")


# When.

LISTED: dict[str, tuple[ChatRequest, list[str]]] = {
    "it is not wanted": (
        msgspec.structs.replace(FOUND, deferred=False),
        ["find", "play", "mail"],
    ),
    "no tool searches": (
        msgspec.structs.replace(FOUND, search_tool=""),
        ["find", "play", "mail"],
    ),
    "the search is not among the offered tools": (
        asked(*searched(0, "mail"), tools=(PLAY, MAIL)),
        ["play", "mail"],
    ),
    "the choice is among some": (
        msgspec.structs.replace(
            FOUND, tool_choice=ToolChoice("auto", allowed=("find", "play", "mail"))
        ),
        ["find", "play", "mail"],
    ),
    "the choice is one": (
        msgspec.structs.replace(FOUND, tool_choice=ToolChoice("tool", "mail")),
        ["find", "play", "mail"],
    ),
}


@each_known
@each_row("why", LISTED)
def test_all_are_in_the_list_where(wire: str, why: str) -> None:
    request, names = LISTED[why]
    body = sent(wire, request)
    assert (listed(body), told(body)) == (names, [])
    assert not any(tool.get("defer_loading") for tool in body["tools"])


@pytest.mark.parametrize(
    ("wire", "model", "known"),
    [
        *[("anthropic", f"claude-{name}", True) for name in (
            "opus-4-5-20251101", "sonnet-4-6", "haiku-4-5", "opus-5-5", "fable-5-1", "mythos-5")],
        *[("anthropic", name, False) for name in (
            "claude-3-7-sonnet", "claude-opus-4-1", "claude-sonnet-4-20250514", "glm-5")],
        *[("openai-responses", name, True) for name in (
            "gpt-5.4", "gpt-5.4-mini", "gpt-5.10", "gpt-6-astra", "gpt-5.6-luna")],
        *[("openai-responses", name, False) for name in (
            "gpt-5", "gpt-5.3", "gpt-4.1", "o3", "gpt-5.4-nano", "gpt-5.4-pro", "my-gpt-6")],
    ],
)  # fmt: skip
def test_models(wire: str, model: str, known: bool) -> None:
    body = sent(wire, FOUND, model)
    assert told(body) == (["mail"] if known else [])
    if known and wire == "openai-responses":
        assert listed(body) == ["tool_search", "play"]
    else:
        assert listed(body) == ["find", "play", "mail"]


@pytest.mark.parametrize(
    ("wire", "own"), [(ANTHROPIC, "api.anthropic.com"), (OPENAI_RESPONSES, "api.openai.com")]
)
def test_servers(wire: Wire, own: str) -> None:
    """Others are asked only if the author says so."""
    assert told(sent(wire.at(own), FOUND)) == ["mail"]
    elsewhere = wire.at("localhost", 8000)
    assert told(sent(elsewhere, FOUND)) == []
    wanted = msgspec.structs.replace(FOUND, deferred=True)
    assert told(sent(elsewhere, wanted, "any-model")) == ["mail"]


@each_row("wire", WIRES.keys() - KNOWN.keys())
def test_a_wire_without_a_form_says_so(wire: str) -> None:
    encode(wire, FOUND, model="m")
    wanted = msgspec.structs.replace(FOUND, deferred=True)
    with pytest.raises(RequestError, match=f"deferred=True: {wire} cannot send tools"):
        encode(wire, wanted, model="m")


@each_known
def test_a_tool_whose_message_is_gone_is_in_the_list_again(wire: str) -> None:
    body = sent(wire, asked(*searched(1, "map"), tools=(FIND, PLAY, MAIL, MAP)))
    assert told(body) == ["map"]
    names = [t.get("name") or t["type"] for t in body["tools"] if not t.get("defer_loading")]
    assert names[1:] == ["play", "mail"]


@each_known
def test_nothing_refers_to_a_tool_that_is_not_on_offer(wire: str) -> None:
    body = sent(wire, asked(*searched(0, "mail", "map")))
    assert told(body) == ["mail"]
    assert told(sent(wire, asked(*searched(0, "map")))) == []


@each_known
def test_a_tool_is_told_by_the_first_that_brought_it(wire: str) -> None:
    assert told(sent(wire, asked(*searched(0, "mail"), *searched(1, "mail")))) == ["mail"]


@each_known
def test_only_the_search_brings_tools_and_only_if_it_did_not_fail(wire: str) -> None:
    for messages in (searched(0, "mail", name="play"), searched(0, "mail", error=True)):
        body = sent(wire, asked(*messages))
        assert told(body) == []
        assert not any(tool.get("defer_loading") for tool in body["tools"])


def test_what_a_search_says_that_brings_nothing() -> None:
    """With Anthropic a result has a text; that of OpenAI's search has no place for one."""
    failed = asked(*searched(0, error=True), tools=(FIND, PLAY))
    (block,) = sent("anthropic", failed)["messages"][-1]["content"]
    assert block == {
        "type": "tool_result",
        "tool_use_id": "call_0",
        "content": "found ",
        "is_error": True,
    }
    *_, output, besides = sent("openai-responses", failed)["input"]
    assert (output["type"], output["tools"]) == ("tool_search_output", [])
    assert besides == {"role": "user", "content": "[the result of find, call call_0] found "}


def test_results_of_one_turn_stay_together() -> None:
    """What is told besides stands behind all of them."""
    calls = [ToolCall(f"r_{n}", name, "{}", provider_id=f"call_{n}")
             for n, name in enumerate(("find", "play"))]  # fmt: skip
    results = [Message.tool(call, "nothing") for call in calls]
    body = sent("openai-responses", asked(Message.assistant("", tuple(calls)), *results, BYE))
    kinds = [item.get("type", "message") for item in body["input"]]
    assert kinds == ["message", "tool_search_call", "function_call", "tool_search_output",
                     "function_call_output", "message", "message"]  # fmt: skip


def test_another_search_of_openais_own_or_of_that_name_is_not_doubled() -> None:
    own = made("tool_search")
    body = sent("openai-responses", asked(*searched(0, "mail"), tools=(FIND, own, MAIL)))
    assert listed(body) == ["find", "tool_search", "mail"]
    assert {tool["type"] for tool in body["tools"]} == {"function"}
    hosted = Settings(provider_tools=({"type": "tool_search"},))
    body = sent("openai-responses", msgspec.structs.replace(FOUND, settings=hosted))
    assert listed(body) == ["find", "play", "mail", "tool_search"]


def test_anthropic_is_sent_no_examples_where_there_is_a_search() -> None:
    """ "The tool search tool is not compatible with tool use examples"; from the first request on."""
    play = made("play", examples=(Example("one", '{"q": "x"}'),))
    for request in (asked(tools=(FIND, play)), asked(*searched(0, "play"), tools=(FIND, play))):
        assert all("input_examples" not in tool for tool in sent("anthropic", request)["tools"])
        plain = msgspec.structs.replace(request, deferred=False)
        assert "input_examples" in sent("anthropic", plain)["tools"][1]


@each_known
def test_a_memo_changes_nothing(wire: str) -> None:
    """One conversation, as it goes on, with other tools, other choices and to other models."""
    memo = Memo()
    mail = made("mail", "Otherwise.")
    requests = [
        FIRST,
        FOUND,
        msgspec.structs.replace(FOUND, deferred=False),
        FOUND,
        asked(*searched(0, "mail"), BYE, tools=(FIND, PLAY, mail)),
        asked(*searched(0, "mail"), BYE, tools=(FIND, PLAY)),
        asked(*searched(0, "mail"), BYE),
        asked(*searched(0, "mail"), BYE, *searched(1, "map"), tools=(FIND, PLAY, MAIL, MAP)),
    ]
    for request in requests:
        for model in (KNOWN[wire], "another"):
            plain = encode(wire, request, model=model).body
            assert encode(wire, request, model=model, memo=memo).body == plain


# What comes back.

SOUGHT = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "execution": "client",
    "call_id": "call_1",
    "status": "completed",
    "arguments": {"q": "mail"},
}
HOSTED: list[dict[str, Any]] = [
    SOUGHT | {"execution": "server", "call_id": None},
    {
        "type": "tool_search_output",
        "id": "tso_1",
        "execution": "server",
        "call_id": None,
        "status": "completed",
        "tools": [{"type": "function", "name": "mail", "parameters": {}, "strict": False,
                   "defer_loading": True}],
    },
]  # fmt: skip
CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_2",
    "name": "mail",
    "namespace": "crm",
    "arguments": '{"q": "x"}',
    "status": "completed",
}


def response(*items: dict[str, Any], **members: Any) -> dict[str, Any]:
    whole = {"id": "resp_1", "object": "response", "status": "completed", "store": False}
    return whole | {"output": list(items)} | members


def stream(*items: dict[str, Any]) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(status="in_progress")}
    ]
    for at, item in enumerate(items):
        begun = item | {"status": "in_progress"}
        begun |= {"arguments": {}} if item["type"] == "tool_search_call" else {}
        events += [
            {"type": "response.output_item.added", "output_index": at, "item": begun},
            {"type": "response.output_item.done", "output_index": at, "item": item},
        ]
    events.append({"type": "response.completed", "response": response(*items)})
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def offer() -> Offer:
    return encode("openai-responses", FIRST, model="gpt-5.4").offer


@pytest.mark.parametrize("streamed", [False, True])
def test_a_search_of_openais_is_a_call_of_ours(streamed: bool) -> None:
    body = stream(SOUGHT) if streamed else json.dumps(response(SOUGHT)).encode()
    reply = decode("openai-responses", body, offer=offer(), ids="r_")
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments), call.complete) == ("find", {"q": "mail"}, True)
    assert (call.id, call.provider_id, reply.finish) == ("r_0", "call_1", "tool_calls")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_search_that_no_tool_stands_for_goes_back_as_it_came(streamed: bool) -> None:
    """It is another's, such as one of `Settings.provider_tools`."""
    body = stream(SOUGHT) if streamed else json.dumps(response(SOUGHT)).encode()
    reply = decode("openai-responses", body, offer=Offer.of((PLAY,)))
    assert reply.tool_calls == ()
    assert reply.message.provider_state is not None
    assert reply.message.provider_state.data == [SOUGHT]


def test_a_search_has_the_id_that_it_ends_with() -> None:
    """As OpenAI has streamed it: one while the search went on, and another at its end."""
    body = stream(SOUGHT).replace(b"call_1", b"call_0", 1)
    assert b"call_0" in body
    (call,) = decode("openai-responses", body, offer=offer()).tool_calls
    assert (call.provider_id, call.complete, call.fault) == ("call_1", True, None)


def test_half_of_a_search_never_runs() -> None:
    cut = stream(SOUGHT)
    cut = cut[: cut.index(b"output_item.done")].rpartition(b"data: ")[0]
    reply = decode("openai-responses", cut, offer=offer())
    assert all(not call.complete for call in reply.tool_calls)
    incomplete = response(SOUGHT | {"status": "incomplete"}, status="incomplete")
    reply = decode("openai-responses", json.dumps(incomplete), offer=offer())
    assert [call.complete for call in reply.tool_calls] == [False]


@pytest.mark.parametrize("streamed", [False, True])
def test_openais_own_search_goes_back_as_it_came(streamed: bool) -> None:
    items = (*HOSTED, CALLED)
    body = stream(*items) if streamed else json.dumps(response(*items)).encode()
    reply = decode("openai-responses", body, offer=Offer.of((PLAY, MAIL)), ids="r_")
    assert [call.name for call in reply.tool_calls] == ["mail"]
    result = Message.tool(reply.tool_calls[0], "done")
    history = asked(reply.message, result, search_tool="")
    assert sent("openai-responses", history)["input"][1:4] == [*HOSTED, CALLED]
    for other in WIRES.keys() - {"openai-responses"}:
        judge_of(other)(encode(other, history, model="m").body)


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


def test_our_search_goes_back_as_it_came_and_elsewhere_as_a_call() -> None:
    body = json.dumps(response(THOUGHT, SOUGHT))
    reply = decode("openai-responses", body, offer=offer(), ids="r_")
    told_ = msgspec.structs.replace(Message.tool(reply.tool_calls[0], "mail"), loads=("mail",))
    request = asked(reply.message, told_)
    assert sent("openai-responses", request)["input"][1:3] == [THOUGHT, SOUGHT]
    _, thought, call, output = sent("openai-responses", request, "gpt-5")["input"]
    assert thought == THOUGHT
    assert call == {
        "type": "function_call",
        "call_id": "call_1",
        "name": "find",
        "arguments": '{"q": "mail"}',
    }
    assert output == {"type": "function_call_output", "call_id": "call_1", "output": "mail"}
    (used,) = sent("anthropic", request)["messages"][1]["content"]
    assert (used["type"], used["name"], used["input"]) == ("tool_use", "find", {"q": "mail"})
    assert told(sent("anthropic", request)) == ["mail"]


def use(number: int, name: str, **item: Any) -> list[Message]:
    """A call of a tool, as OpenAI has made it if an `item` is given, and its result."""
    call = ToolCall(f"u_{number}", name, '{"q":"x"}', provider_id=f"call_{number}")
    message = Message.assistant("", (call,))
    if item:
        called = {"type": "function_call", "id": "fc_1", "call_id": call.provider_id, "name": name}
        called |= {"arguments": call.arguments, "status": "completed"} | item
        state = ProviderState("openai-responses", [THOUGHT, called])
        message = msgspec.structs.replace(message, provider_state=state)
    return [message, Message.tool(call, "done")]


SPACE = {"namespace": "mail"}
OLD = {"status": "completed"}


@pytest.mark.parametrize(
    ("messages", "spaces"),
    [
        ([*searched(0, "mail"), *use(1, "mail", **SPACE)], ["mail"]),
        ([*searched(0, "mail"), *use(1, "mail", **OLD)], [None]),  # as it came
        ([*searched(0, "mail"), *use(1, "mail")], ["mail"]),  # of another provider
        ([*use(1, "mail", **OLD), *searched(0, "mail")], ["mail"]),  # in the list then
        ([*use(1, "mail"), *searched(0, "mail"), *use(2, "mail", **SPACE)], ["mail", "mail"]),
        ([*use(1, "play"), *searched(0, "mail"), *use(2, "play", **OLD)], [None, None]),
        (use(1, "mail", **SPACE), [None]),  # the search is gone, so it is in the list
        (use(1, "mail", namespace="crm"), ["crm"]),  # of somebody's own
        (use(1, "map", namespace="map"), ["map"]),  # it is not among the offered tools any more
    ],
)
def test_calls_of_what_was_found_are_in_its_namespace(messages: Any, spaces: Any) -> None:
    """OpenAI refuses a call of a tool that was found without it."""
    memo = Memo()
    encode("openai-responses", asked(*messages[:2]), model="gpt-5.4", memo=memo)
    body = sent("openai-responses", asked(*messages))
    calls = [item for item in body["input"] if item.get("type") == "function_call"]
    assert [call.get("namespace") for call in calls] == spaces
    again = encode("openai-responses", asked(*messages), model="gpt-5.4", memo=memo).body
    assert json.loads(again) == body


def test_a_call_of_before_becomes_a_search() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_0", "name": "find",
            "arguments": '{"q":"x"}', "status": "completed"}  # fmt: skip
    message, result = searched(0, "mail")
    state = ProviderState("openai-responses", [THOUGHT, item])
    message = msgspec.structs.replace(message, provider_state=state)
    _, thought, call, output = sent("openai-responses", asked(message, result))["input"]
    assert thought == THOUGHT
    assert (call["type"], call["call_id"], "id" in call) == ("tool_search_call", "call_0", False)
    assert output["type"] == "tool_search_output"


HOSTED_BLOCKS: list[dict[str, Any]] = [
    {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "tool_search_tool_bm25",
        "input": {"query": "mail"},
    },
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "mail"}],
        },
    },
]
USED = {"type": "tool_use", "id": "toolu_1", "name": "mail", "input": {"q": "x"}}


def block_events(blocks: list[dict[str, Any]]) -> bytes:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for at, block in enumerate(blocks):
        begun, deltas = block, list[dict[str, Any]]()
        if "input" in block:
            begun = block | {"input": {}}
            piece = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            deltas = [{"type": "content_block_delta", "index": at, "delta": piece}]
        events += [
            {"type": "content_block_start", "index": at, "content_block": begun},
            *deltas,
            {"type": "content_block_stop", "index": at},
        ]
    events += [
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


@pytest.mark.parametrize("streamed", [False, True])
def test_anthropics_own_search_goes_back_as_it_came(streamed: bool) -> None:
    blocks = [*HOSTED_BLOCKS, USED]
    body = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}
    data = block_events(blocks) if streamed else json.dumps(body).encode()
    reply = decode("anthropic", data, offer=Offer.of((PLAY, MAIL)), ids="r_")
    assert [call.name for call in reply.tool_calls] == ["mail"]
    history = asked(reply.message, Message.tool(reply.tool_calls[0], "done"), search_tool="")
    own = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    history = msgspec.structs.replace(history, settings=Settings(provider_tools=(own,)))
    assert sent("anthropic", history)["messages"][1]["content"] == blocks
    history = msgspec.structs.replace(history, settings=Settings())
    for other in WIRES.keys() - {"anthropic"}:
        judge_of(other)(encode(other, history, model="m").body)


# As recorded: what the providers' own servers said and took.


@pytest.fixture(scope="module")
def exchanges(shared_data: Path) -> dict[str, Any]:
    rows = [*recorded(shared_data, "openai-responses"), *recorded(shared_data, "anthropic")]
    return {row["id"]: row for row in rows}


def sent_by(row: Any) -> dict[str, Any]:
    body: dict[str, Any] = row["request"].get("body", row["request"])
    return body


def defined(tool: dict[str, Any], name: str = "") -> PlainTool:
    return PlainTool(
        ToolDefinition(
            name=name or tool["name"],
            description=tool["description"],
            input_schema_json=json.dumps(tool.get("parameters") or tool["input_schema"]),
            strict=tool.get("strict") or None,
        )
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [("700ff62ca903989a", "9056adf032ec9636"), ("ce5119ac4da157b5", "e3f1875275b40b84")],
    ids=["whole", "streamed"],
)
def test_a_search_that_openai_took(exchanges: Any, first: str, second: str) -> None:
    """What is sent after its reply is what was sent then. Theirs names all tools from the beginning on,
    by which a model sees the names of what it may find."""
    asked_, goes_on = sent_by(exchanges[first]), sent_by(exchanges[second])
    (search,) = (tool for tool in asked_["tools"] if tool["type"] == "tool_search")
    listed_ = [tool for tool in asked_["tools"] if not tool.get("defer_loading")]
    others = [defined(tool) for tool in listed_ if tool["type"] == "function"]
    (output,) = (item for item in goes_on["input"] if item.get("type") == "tool_search_output")
    found = [defined(tool) for tool in output["tools"]]
    begins = ChatRequest(
        (Message.user(asked_["input"][0]["content"]),),
        (defined(search, "search_tools"), *others),
        search_tool="search_tools",
    )
    made_ = encode("openai-responses", begins, model=asked_["model"])
    assert json.loads(made_.body)["tools"] == listed_
    row = exchanges[first]
    reply = decode("openai-responses", row["response_body"], offer=made_.offer,
                   content_type=row["content_type"])  # fmt: skip
    (call,) = reply.tool_calls
    assert (call.name, call.complete, reply.finish) == ("search_tools", True, "tool_calls")
    told_ = msgspec.structs.replace(
        Message.tool(call, "found"), loads=tuple(tool.get_definition().name for tool in found)
    )
    request = msgspec.structs.replace(
        begins,
        messages=(*begins.messages, reply.message, told_),
        tools=(*begins.tools, *found),
    )
    body = json.loads(encode("openai-responses", request, model=goes_on["model"]).body)
    assert (body["input"], body["tools"]) == (goes_on["input"], listed_)


def test_the_other_stream_of_a_search_has_two_ids(exchanges: Any) -> None:
    row = exchanges["42c068d865acfc13"]
    reply = decode("openai-responses", row["response_body"], offer=offer())
    (call,) = reply.tool_calls
    assert (call.provider_id, call.complete, call.fault) == (
        "call_RWTIIVfxsJW9fecsg6fy23Dy",
        True,
        None,
    )


def test_a_search_that_anthropic_took(exchanges: Any) -> None:
    """Theirs says besides that it is no error; and names all tools from the beginning on."""
    first, second = exchanges["4328ed6a0c833d92"], exchanges["2a0607530c5506a5"]
    body = sent_by(second)
    tools = tuple(defined(tool) for tool in body["tools"] if tool["name"] != "stock_lookup")
    begins = ChatRequest(
        (Message.user(body["messages"][0]["content"][0]["text"]),),
        tools,
        search_tool="search_tools",
    )
    reply = decode("anthropic", first["response_body"], offer=Offer.of(tools),
                   content_type=first["content_type"])  # fmt: skip
    (call,) = reply.tool_calls
    told_ = msgspec.structs.replace(Message.tool(call, "found"), loads=("get_exchange_rate",))
    request = msgspec.structs.replace(begins, messages=(*begins.messages, reply.message, told_))
    made_ = json.loads(encode("anthropic", request, model=body["model"]).body)
    (result,) = body["messages"][-1]["content"]
    assert result.pop("is_error") is False
    assert made_["messages"][-1]["content"] == [result]
    assert {t["name"] for t in made_["tools"] if t.get("defer_loading")} == {"get_exchange_rate"}
