"""Requests of Bedrock's wire, against bodies written by hand from the wire's documentation."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row
from servers.bedrock import fault_of

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import BEDROCK_CONVERSE, Memo, decode, encode

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def defined(name: str = "get_weather", **changes: Any) -> PlainTool:
    facts = {"description": "Weather now.", "input_schema_json": json.dumps(SCHEMA)} | changes
    return PlainTool(ToolDefinition(name=name, **facts))


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def model(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def answered(text: str, *, id: str = "r_0", **more: str) -> Json:
    return {"toolResult": {"toolUseId": id, "content": [{"text": text}]} | more}


def spec(name: str = "get_weather", **changes: Any) -> Json:
    facts = {"name": name, "description": "Weather now.", "inputSchema": {"json": SCHEMA}}
    return {"toolSpec": facts | changes}


def gone(name: str) -> Json:
    said = "Not available any more: do not call it."
    return spec(name, description=said, inputSchema={"json": {"type": "object"}})


def choosing(**choice: Any) -> Json:
    return HI | {"toolConfig": {"tools": [spec()], "toolChoice": choice}}


HI: Json = {"messages": [user({"text": "Hi"})]}
TOOLS: Json = {"tools": (defined(),)}
ASKED = HI | {"toolConfig": {"tools": [spec()]}}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}')
SENT = {"toolUse": {"toolUseId": "r_0", "name": "get_weather", "input": {"city": "Rome"}}}
CALLED = (Message.user("Hi"), Message.assistant("", (CALL,)), Message.tool(CALL, "sunny"))
SENT_CALLED: Json = {"messages": [user({"text": "Hi"}), model(SENT), user(answered("sunny"))]}
BOTH: Json = {"tools": (defined(), defined("other"))}

GOLDEN: dict[str, tuple[ChatRequest, Json]] = {
    "text only": (asked(), HI),
    "tools": (asked(**TOOLS), ASKED),
    "a tool without a description": (
        asked(tools=(defined(description=""),)),
        HI | {"toolConfig": {"tools": [{"toolSpec": {
            "name": "get_weather", "inputSchema": {"json": SCHEMA}}}]}},
    ),
    "a strict tool": (
        asked(tools=(defined(strict=True),)),
        HI | {"toolConfig": {"tools": [spec(
            strict=True, inputSchema={"json": SCHEMA | {"additionalProperties": False}})]}},
    ),
    "a tool that is never strict": (asked(tools=(defined(strict=False),)), ASKED),
    "choice: auto": (asked(**TOOLS, tool_choice=ToolChoice("auto")), ASKED),
    "choice: none": (asked(**TOOLS, tool_choice=ToolChoice("none")), HI),
    "choice: none, after a call": (
        asked(*CALLED, **BOTH, tool_choice=ToolChoice("none")),
        SENT_CALLED | {"toolConfig": {"tools": [gone("get_weather")]}},
    ),
    "no tools, after a call": (
        asked(*CALLED), SENT_CALLED | {"toolConfig": {"tools": [gone("get_weather")]}}),
    "choice: none, without tools": (asked(tool_choice=ToolChoice("none")), HI),
    "choice: required": (asked(**TOOLS, tool_choice=ToolChoice("required")), choosing(any={})),
    "choice: a tool": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        choosing(tool={"name": "get_weather"}),
    ),
    "choice: some": (asked(**BOTH, tool_choice=ToolChoice(allowed=("get_weather",))), ASKED),
    "choice: at least one of two": (
        asked(tools=(defined(), defined("b"), defined("c")),
              tool_choice=ToolChoice("required", allowed=("b", "c"))),
        HI | {"toolConfig": {"tools": [spec("b"), spec("c")], "toolChoice": {"any": {}}}},
    ),
    "choice: one of some": (
        asked(**BOTH, tool_choice=ToolChoice("required", allowed=("other",))),
        HI | {"toolConfig": {"tools": [spec(), spec("other")],
                             "toolChoice": {"tool": {"name": "other"}}}},
    ),
    "several calls are the default": (asked(**TOOLS, parallel_calls=True), ASKED),
    "without tools there is nothing to refuse": (asked(parallel_calls=False), HI),
    "settings": (
        asked(settings=Settings(temperature=0.5, max_tokens=9, extra={
            "inferenceConfig": {"topP": 0.1},
            "additionalModelRequestFields": {"thinking": {"type": "enabled"}}})),
        HI | {"inferenceConfig": {"temperature": 0.5, "maxTokens": 9, "topP": 0.1},
              "additionalModelRequestFields": {"thinking": {"type": "enabled"}}},
    ),
    "points for the cache": (
        asked(Message.system("Be brief."), *CALLED, **TOOLS,
              settings=Settings(extra={"cachePoint": {"type": "default"}})),
        {
            "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
            "messages": [*SENT_CALLED["messages"][:2],
                         user(answered("sunny"), {"cachePoint": {"type": "default"}})],
            "toolConfig": {"tools": [spec()]},
        },
    ),
    "conversation": (
        asked(
            Message.system("Be brief."),
            Message.user("Weather in Rome?"),
            Message.assistant("", (CALL,)),
            Message.tool(CALL, "sunny"),
            Message.assistant("Sunny."),
            Message.system("Be kind."),
            Message.user("Thanks"),
            **TOOLS,
        ),
        {
            "system": [{"text": "Be brief."}, {"text": "Be kind."}],
            "messages": [
                user({"text": "Weather in Rome?"}),
                model(SENT),
                user(answered("sunny")),
                model({"text": "Sunny."}),
                user({"text": "Thanks"}),
            ],
            "toolConfig": {"tools": [spec()]},
        },
    ),
    "text beside two calls, errors, and a word after them": (
        asked(
            Message.user("?"),
            Message.assistant("Let me see.", (CALL, ToolCall("r_1", "other", "{}", "p_q-1"))),
            Message.tool(CALL, "down", is_error=True),
            Message.tool(ToolCall("r_1", "other", "{}", "p_q-1"), " "),
            Message.user("And?"),
            **TOOLS,
        ),
        {
            "messages": [
                user({"text": "?"}),
                model(
                    {"text": "Let me see."},
                    SENT,
                    {"toolUse": {"toolUseId": "p_q-1", "name": "other", "input": {}}},
                ),
                user(
                    answered("down", status="error"),
                    answered("(empty)", id="p_q-1"),
                    {"text": "And?"},
                ),
            ],
            "toolConfig": {"tools": [spec()]},
        },
    ),
    "an error without a text": (
        asked(*CALLED[:2], Message.tool(CALL, "", is_error=True), **TOOLS),
        {"messages": [*SENT_CALLED["messages"][:2], user(answered("error", status="error"))],
         "toolConfig": {"tools": [spec()]}},
    ),
    "one of them several times in a row": (
        asked(Message.user("a"), Message.user("b"), Message.assistant("c"), Message.assistant("d"),
              Message.user("e"), Message.user("f"), Message.user("g")),
        {"messages": [user({"text": "a"}, {"text": "b"}), model({"text": "c"}, {"text": "d"}),
                      user({"text": "e"}, {"text": "f"}, {"text": "g"})]},
    ),
    "what says nothing": (
        asked(Message.system(" "), Message.user("Hi"), Message.assistant("\n"), Message.user("")),
        HI,
    ),
    "a model that speaks first": (
        asked(Message.user(" "), Message.assistant("Hello."), Message.user("Hi")),
        {"messages": [user({"text": "."}), model({"text": "Hello."}), user({"text": "Hi"})]},
    ),
    "images": (
        asked(
            Message.user(
                "What is it?",
                (
                    Image("image/png", "aGk="),
                    Image("image/jpg", "aGk="),
                    Image(url="data:image/gif;base64,aGk="),
                    Image(url="s3://bucket/a.webp"),
                    Image("image/jpeg", url="s3://bucket/a"),
                ),
            ),
        ),
        {
            "messages": [
                user(
                    {"image": {"format": "png", "source": {"bytes": "aGk="}}},
                    {"image": {"format": "jpeg", "source": {"bytes": "aGk="}}},
                    {"image": {"format": "gif", "source": {"bytes": "aGk="}}},
                    {"image": {"format": "webp",
                               "source": {"s3Location": {"uri": "s3://bucket/a.webp"}}}},
                    {"image": {"format": "jpeg",
                               "source": {"s3Location": {"uri": "s3://bucket/a"}}}},
                    {"text": "What is it?"},
                )
            ]
        },
    ),
}  # fmt: skip


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
@each_row("stream", [False, True])
def test_exact_bodies(request_: ChatRequest, body: Json, stream: bool) -> None:
    sent = json.loads(encode("bedrock-converse", request_, model="m", stream=stream).body)
    assert sent == body
    assert fault_of(sent) is None


@pytest.mark.parametrize(
    ("model_", "step"),
    [
        ("us.anthropic.claude-x-v1:0", "us.anthropic.claude-x-v1:0"),
        ("arn:aws:bedrock:us-east-1:1:p/ab", "arn:aws:bedrock:us-east-1:1:p%2Fab"),
        ("../a b?c#d%", "..%2Fa%20b%3Fc%23d%25"),
    ],
)
def test_the_request_around_the_body(model_: str, step: str) -> None:
    whole = encode("bedrock-converse", asked(**TOOLS), model=model_)
    assert (whole.method, whole.path) == ("POST", f"/model/{step}/converse")
    assert whole.headers == {"Content-Type": "application/json", "Accept": "application/json"}
    stream = encode("bedrock-converse", asked(**TOOLS), model=model_, stream=True)
    assert stream.path == f"/model/{step}/converse-stream"
    assert stream.headers["Accept"] == "application/vnd.amazon.eventstream"
    assert list(stream.offer.tools) == ["get_weather"]
    assert dict(BEDROCK_CONVERSE.auth("k")) == {"Authorization": "Bearer k"}


def pictured(image: Image) -> ChatRequest:
    return asked(Message.user("", (image,)))


@each_row(
    ("request_", "model_", "words"),
    [
        (asked(), "", "does not name a Bedrock model"),
        (asked(), "..", "does not name a Bedrock model"),
        (asked(), "\ud800", "does not name a Bedrock model"),
        (asked(settings=Settings(extra={"cachePoint": {1}})), "m", "'cachePoint'"),  # type: ignore[dict-item]
        (asked(Message.system("S")), "m", "nothing to send"),
        (asked(**TOOLS, parallel_calls=False), "m", "one call at a time"),
        (asked(tool_choice=ToolChoice("required")), "m", "needs tools"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool", "other")), "m", "'other'"),
        (asked(settings=Settings(extra={"toolConfig": {}})), "m", "'toolConfig'"),
        (asked(settings=Settings(extra={"inferenceConfig": 5})), "m", "'inferenceConfig'"),
        (pictured(Image(url="https://a.test/b.png")), "m", "no other URL"),
        (pictured(Image("image/tiff", "aGk=")), "m", "'image/tiff'"),
        (pictured(Image(url="s3://bucket/a")), "m", "s3://bucket/a"),
    ],
)
def test_what_the_wire_cannot_say_is_refused(
    request_: ChatRequest, model_: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        encode("bedrock-converse", request_, model=model_)


@pytest.mark.parametrize(
    "choice", [ToolChoice("none"), ToolChoice(allowed=("other",))], ids=["none", "another"]
)
def test_a_tool_that_is_not_sent_is_known_but_not_on_offer(choice: ToolChoice) -> None:
    offer = encode("bedrock-converse", asked(*CALLED, **BOTH, tool_choice=choice), model="m").offer
    assert "get_weather" in offer.known
    assert "get_weather" not in offer.tools


def test_names_are_made_legal_everywhere_and_come_back() -> None:
    tool, call = defined("the weather"), ToolCall("r_0", "the weather", "{}")
    history = Message.user("?"), Message.assistant("", (call,)), Message.tool(call, "x")
    choice = ToolChoice("tool", "the weather")
    sent = encode("bedrock-converse", asked(*history, tools=(tool,), tool_choice=choice), model="m")
    body = json.loads(sent.body)
    (name,) = sent.offer.own_names
    assert sent.offer.own_name(name) == "the weather"
    assert body["toolConfig"]["tools"][0]["toolSpec"]["name"] == name
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": name}}
    assert body["messages"][1]["content"][0]["toolUse"]["name"] == name


@each_row(
    ("calls", "ids"),
    [
        ([("a", "tooluse_x")], ["tooluse_x"]),
        ([("a", "functions.f:0")], ["functions.f:0"]),
        ([("a", ""), ("b", "")], ["a", "b"]),
        ([("a", "p"), ("b", "p")], ["p", "b"]),
        ([("a", "x" * 65)], ["a"]),
        ([("a", "call|fc")], ["a"]),
    ],
)
def test_each_call_has_a_legal_id_which_its_result_names(
    calls: list[tuple[str, str]], ids: list[str]
) -> None:
    made = tuple(ToolCall(own, "f", "{}", provider_id=given) for own, given in calls)
    results = [Message.tool(call, "x") for call in reversed(made)]
    said = Message("assistant", "", made, provider_state=ProviderState("bedrock-converse", None))
    request = asked(Message.user("?"), said, *results)
    messages = json.loads(encode("bedrock-converse", request, model="m").body)["messages"]
    assert [block["toolUse"]["toolUseId"] for block in messages[1]["content"]] == ids
    assert [block["toolResult"]["toolUseId"] for block in messages[2]["content"]] == ids[::-1]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [('{"n": 12345678901234567890123, "n":1.10}',) * 2, ('{"a": "b', "{}"), ("", "{}")],
)
def test_arguments_go_back_as_the_model_wrote_them(arguments: str, sent: str) -> None:
    call = ToolCall("a", "f", arguments)
    messages = Message.user("?"), Message.assistant("", (call,)), Message.tool(call, "x")
    body = encode("bedrock-converse", asked(*messages), model="m").body
    assert f'"input":{sent}'.encode() in body


SIGNED = {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "c2ln"}}}
UNSIGNED = {"reasoningContent": {"reasoningText": {"text": "Hm"}}}
OWN = {"toolUse": {"toolUseId": "o", "name": "s", "input": {}, "type": "server_tool_use"}}
RAN = {"toolResult": {"toolUseId": "o", "content": [], "type": "t"}}
MARK = {"toolUse": {"toolUseId": "p", "name": "get_weather"}}
STATE = [SIGNED, UNSIGNED, {"text": "Let me "}, OWN, RAN, MARK, {"text": "see."}]
KNOWN = ToolCall("r_0", "get_weather", '{"city": "Rome"}', provider_id="p")
SENT_KNOWN = {"toolUse": SENT["toolUse"] | {"toolUseId": "p"}}
LATER = ToolCall("r_1", "other", "{}")
SENT_LATER = {"toolUse": {"toolUseId": "r_1", "name": "other", "input": {}}}


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (
            "Let me see.",
            (KNOWN,),
            [SIGNED, UNSIGNED, {"text": "Let me "}, OWN, RAN, SENT_KNOWN, {"text": "see."}],
        ),
        (
            "Changed.",
            (KNOWN, LATER),
            [SIGNED, UNSIGNED, OWN, RAN, {"text": "Changed."}, SENT_KNOWN, SENT_LATER],
        ),
        ("", (), [SIGNED, OWN, RAN]),
        ("Let me see.", (), [SIGNED, {"text": "Let me "}, OWN, RAN, {"text": "see."}]),
    ],
)
def test_what_a_model_sent_goes_back_around_what_the_message_says(
    text: str, calls: tuple[ToolCall, ...], content: list[Json]
) -> None:
    said = Message(
        "assistant", text, calls, provider_state=ProviderState("bedrock-converse", STATE)
    )
    request = asked(Message.user("?"), said, *(Message.tool(call, "x") for call in calls))
    body = json.loads(encode("bedrock-converse", request, model="m").body)
    assert body["messages"][1] == model(*content)


@pytest.mark.parametrize(
    "state",
    [
        ProviderState("anthropic", STATE),
        ProviderState("bedrock-converse", None),
        ProviderState("bedrock-converse", "junk"),
        ProviderState("bedrock-converse", [5, {}, {"toolUse": 5}, {"toolUse": {"input": []}},
                                           {"text": 5}]),
    ],
)  # fmt: skip
def test_a_state_of_another_provider_or_of_none_is_not_sent(state: ProviderState) -> None:
    said = Message("assistant", "Hi", (CALL,), provider_state=state)
    request = asked(Message.user("?"), said, Message.tool(CALL, "x"))
    body = json.loads(encode("bedrock-converse", request, model="m").body)
    assert body["messages"][1] == model({"text": "Hi"}, SENT)


def test_a_signature_survives_the_way_there_and_back() -> None:
    content = [SIGNED, {"toolUse": {"toolUseId": "p", "name": "f", "input": {"a": 1.0}}}]
    message = {"role": "assistant", "content": content}
    reply = decode(
        "bedrock-converse",
        json.dumps({"output": {"message": message}, "stopReason": "tool_use"}),
    )
    (call,) = reply.tool_calls
    state = msgspec.json.decode(msgspec.json.encode(reply.message), type=Message)
    request = asked(Message.user("?"), state, Message.tool(call, "x"))
    sent = encode("bedrock-converse", request, model="m")
    assert json.loads(sent.body)["messages"][1] == message
    assert b'"input":{"a": 1.0}' in sent.body


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a b"))
    history: list[Message] = [Message.system("S"), Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(tuple(history), tools)
        encoded.clear()
        with_memo = encode("bedrock-converse", request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode("bedrock-converse", request, model="m").body
        call = ToolCall(f"r_{turn}", "a b", "{}", provider_id="p")
        history += [Message.assistant("", (call,)), Message.tool(call, "x"), Message.user("so?")]
    assert new == [1, 3, 3, 3]


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    messages = Message.system("a\ud800"), Message.user("a\ud800b"), Message.assistant("\udc00")
    body = json.loads(encode("bedrock-converse", asked(*messages), model="m").body)
    assert body["system"] == [{"text": "a\ufffd"}]
    assert body["messages"] == [user({"text": "a\ufffdb"}), model({"text": "\ufffd"})]
