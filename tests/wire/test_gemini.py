"""Requests of Gemini's wire, against bodies written by hand from the wire's documentation."""

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
from toolcrib.wire import GEMINI, Memo, decode, encode
from toolcrib.wire.gemini import GeminiHistory

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STAND_IN = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="  # skip_thought_signature_validator


def defined(name: str = "get_weather", **changes: Any) -> PlainTool:
    facts = {"description": "Weather now.", "input_schema_json": json.dumps(SCHEMA)} | changes
    return PlainTool(ToolDefinition(name=name, **facts))


def body_of(request: ChatRequest, *, stream: bool = False) -> Any:
    return json.loads(encode("gemini", request, model="m", stream=stream).body)


def asked(*messages: Message, **changes: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **changes)


def user(*parts: Json) -> Json:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def answered(key: str, text: str, *, id: str = "r_0", name: str = "get_weather") -> Json:
    return {"functionResponse": {"id": id, "name": name, "response": {key: text}}}


HI = {"contents": [user({"text": "Hi"})]}
TOOL: Json = {"name": "get_weather", "description": "Weather now.", "parametersJsonSchema": SCHEMA}
TOOLS = {"tools": (defined(),)}
ASKED = HI | {"tools": [{"functionDeclarations": [TOOL]}]}
CALL = ToolCall("r_0", "get_weather", '{"city": "Rome"}')
SENT_CALL = {"functionCall": {"id": "r_0", "name": "get_weather", "args": {"city": "Rome"}}}
SIGNED_CALL = SENT_CALL | {"thoughtSignature": STAND_IN}


def choosing(**config: Any) -> Json:
    return ASKED | {"toolConfig": {"functionCallingConfig": config}}


GOLDEN: dict[str, tuple[ChatRequest, Json]] = {
    "text only": (asked(), HI),
    "tools": (asked(**TOOLS), ASKED),
    "choice: auto": (asked(**TOOLS, tool_choice=ToolChoice("auto")), ASKED),
    "choice: none": (asked(**TOOLS, tool_choice=ToolChoice("none")), choosing(mode="NONE")),
    "choice: none, without tools": (asked(tool_choice=ToolChoice("none")), HI),
    "choice: required": (asked(**TOOLS, tool_choice=ToolChoice("required")), choosing(mode="ANY")),
    "choice: a tool": (
        asked(**TOOLS, tool_choice=ToolChoice("tool", "get_weather")),
        choosing(mode="ANY", allowedFunctionNames=["get_weather"]),
    ),
    "choice: some": (
        asked(**TOOLS, tool_choice=ToolChoice(allowed=("get_weather",))),
        choosing(mode="VALIDATED", allowedFunctionNames=["get_weather"]),
    ),
    "choice: one of some": (
        asked(**TOOLS, tool_choice=ToolChoice("required", allowed=("get_weather",))),
        choosing(mode="ANY", allowedFunctionNames=["get_weather"]),
    ),
    "several calls are the default": (asked(**TOOLS, parallel_calls=True), ASKED),
    "without tools there is nothing to refuse": (asked(parallel_calls=False), HI),
    "settings": (
        asked(settings=Settings(temperature=0.5, max_tokens=9, extra={"labels": {"a": "b"}})),
        HI | {"generationConfig": {"temperature": 0.5, "maxOutputTokens": 9}, "labels": {"a": "b"}},
    ),
    "settings that add to ours": (
        asked(
            **TOOLS,
            tool_choice=ToolChoice("required"),
            settings=Settings(
                max_tokens=9,
                extra={"generationConfig": {"topP": 0.1}, "toolConfig": {"retrievalConfig": {}}},
            ),
        ),
        ASKED
        | {
            "generationConfig": {"maxOutputTokens": 9, "topP": 0.1},
            "toolConfig": {"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {}},
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
        ),
        {
            "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
            "contents": [
                user({"text": "Weather in Rome?"}),
                model(SIGNED_CALL),
                user(answered("output", "sunny")),
                model({"text": "Sunny."}),
                user({"text": "Thanks"}),
            ],
        },
    ),
    "text beside two calls, and an error result": (
        asked(
            Message.user("?"),
            Message.assistant(
                "Let me see.", (CALL, ToolCall("r_1", "other", "{}", provider_id="p"))
            ),
            Message.tool(CALL, "down", is_error=True),
            Message.tool(ToolCall("r_1", "other", "{}", provider_id="p"), '{"$ref": "#"}'),
        ),
        {
            "contents": [
                user({"text": "?"}),
                model(
                    {"text": "Let me see."},
                    SIGNED_CALL,
                    {"functionCall": {"id": "p", "name": "other", "args": {}}},
                ),
                user(
                    answered("error", "down"),
                    answered("output", '{"$ref": "#"}', id="p", name="other"),
                ),
            ]
        },
    ),
    "what says nothing": (
        asked(Message.system(""), Message.user("Hi"), Message.assistant(""), Message.user("")),
        HI,
    ),
    "calls before anybody has asked": (
        asked(Message.system("S"), Message.assistant("", (CALL,)), Message.tool(CALL, "x")),
        {
            "systemInstruction": {"parts": [{"text": "S"}]},
            "contents": [user({"text": ""}), model(SIGNED_CALL), user(answered("output", "x"))],
        },
    ),
    "a silent user": (asked(Message.user("")), {"contents": [user({"text": ""})]}),
    "images": (
        asked(
            Message.user(
                "What is it?",
                (
                    Image("image/png", "aGk="),
                    Image("image/jpeg", url="https://a.test/b.jpg"),
                    Image(url="https://a.test/b"),
                    Image(url="data:image/webp;base64,aGk="),
                ),
            ),
        ),
        {
            "contents": [
                user(
                    {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                    {"fileData": {"fileUri": "https://a.test/b.jpg", "mimeType": "image/jpeg"}},
                    {"fileData": {"fileUri": "https://a.test/b"}},
                    {"inlineData": {"mimeType": "image/webp", "data": "aGk="}},
                    {"text": "What is it?"},
                )
            ]
        },
    ),
}


@each_row(("request_", "body"), GOLDEN.values(), ids=GOLDEN)
@each_row("stream", [False, True])
def test_exact_bodies(request_: ChatRequest, body: Json, stream: bool) -> None:
    assert body_of(request_, stream=stream) == body


@each_row(
    ("model_", "path"),
    [
        ("gemini-x", "/models/gemini-x:"),
        ("models/gemini-x", "/models/gemini-x:"),
        ("tunedModels/mine", "/tunedModels/mine:"),
        ("publishers/google/models/gemini-x@001", "/publishers/google/models/gemini-x@001:"),
        ("a b?c#d%", "/models/a%20b%3Fc%23d%25:"),
    ],
)
def test_the_request_around_the_body(model_: str, path: str) -> None:
    whole = encode("gemini", asked(**TOOLS), model=model_)
    assert (whole.method, whole.path) == ("POST", f"{path}generateContent")
    assert whole.headers == {"Content-Type": "application/json", "Accept": "application/json"}
    stream = encode("gemini", asked(**TOOLS), model=model_, stream=True)
    assert stream.path == f"{path}streamGenerateContent?alt=sse"
    assert stream.headers["Accept"] == "text/event-stream"
    assert list(stream.offer.tools) == ["get_weather"]
    assert dict(GEMINI.auth("k")) == {"x-goog-api-key": "k"}


@each_row(
    ("request_", "model_", "words"),
    [
        (asked(), "", "does not name a Gemini model"),
        (asked(), "models/", "does not name a Gemini model"),
        (asked(), "models/../x", "does not name a Gemini model"),
        (asked(), "\ud800", "does not name a Gemini model"),
        (asked(Message.system("S")), "m", "nothing to send"),
        (asked(**TOOLS, parallel_calls=False), "m", "one call at a time"),
        (asked(tool_choice=ToolChoice("required")), "m", "needs tools"),
        (asked(**TOOLS, tool_choice=ToolChoice("tool", "other")), "m", "'other'"),
        (asked(settings=Settings(extra={"contents": []})), "m", "'contents'"),
        (asked(settings=Settings(extra={"generationConfig": 5})), "m", "'generationConfig'"),
    ],
)
def test_what_the_wire_cannot_say_is_refused(
    request_: ChatRequest, model_: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        encode("gemini", request_, model=model_)


def test_names_are_made_legal_everywhere_and_come_back() -> None:
    tool, call = defined("1 weather"), ToolCall("r_0", "1 weather", "{}")
    history = Message.user("?"), Message.assistant("", (call,)), Message.tool(call, "x")
    choice = ToolChoice("tool", "1 weather")
    sent = encode("gemini", asked(*history, tools=(tool,), tool_choice=choice), model="m")
    body = json.loads(sent.body)
    (name,) = sent.offer.own_names
    assert sent.offer.own_name(name) == "1 weather"
    assert GEMINI.tools.names.legal(name)
    assert body["tools"][0]["functionDeclarations"][0]["name"] == name
    assert body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == [name]
    assert body["contents"][1]["parts"][0]["functionCall"]["name"] == name
    assert body["contents"][2]["parts"][0]["functionResponse"]["name"] == name


@each_row(
    ("calls", "ids"),
    [
        ([("a", "p")], ["p"]),
        ([("a", ""), ("b", "")], ["a", "b"]),
        ([("a", "p"), ("b", "p")], ["p", "b"]),
        ([("a b", "")], [GeminiHistory.ids.generated_id(0)]),
        ([("a", "ü" * 200)], ["ü" * 200]),
    ],
)
def test_each_call_has_an_id_which_its_result_names(
    calls: list[tuple[str, str]], ids: list[str]
) -> None:
    made = tuple(ToolCall(own, "f", "{}", provider_id=given) for own, given in calls)
    results = [Message.tool(call, "x") for call in reversed(made)]
    said = Message("assistant", "", made, provider_state=ProviderState("gemini", None))
    contents = body_of(asked(Message.user("?"), said, *results))["contents"]
    assert [part["functionCall"]["id"] for part in contents[1]["parts"]] == ids
    assert [part["functionResponse"]["id"] for part in contents[2]["parts"]] == ids[::-1]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"n": 12345678901234567890123, "n":1.10}',) * 2,
        ('{"a": "b', "{}"),
        ("", "{}"),
        ("[1]", "{}"),
    ],
)
def test_arguments_go_back_as_the_model_wrote_them(arguments: str, sent: str) -> None:
    call = ToolCall("a", "f", arguments)
    messages = Message.user("?"), Message.assistant("", (call,)), Message.tool(call, "x")
    assert f'"args":{sent}'.encode() in encode("gemini", asked(*messages), model="m").body


THOUGHT = {"text": "Hm", "thought": True}
OWN_TOOL = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "b3du"}
STATE = [
    THOUGHT,
    {"text": "Let me "},
    {"functionCall": {"id": "r_0"}, "thoughtSignature": "c2ln"},
    OWN_TOOL,
    {"text": "see."},
]
LATER = ToolCall("r_1", "other", "{}")
LATER_CALL = {"functionCall": {"id": "r_1", "name": "other", "args": {}}}


@pytest.mark.parametrize(
    ("text", "calls", "parts"),
    [
        (
            "Let me see.",
            (CALL,),
            [
                THOUGHT,
                {"text": "Let me "},
                SENT_CALL | {"thoughtSignature": "c2ln"},
                OWN_TOOL,
                {"text": "see."},
            ],
        ),
        (
            "Changed.",
            (CALL, LATER),
            [
                THOUGHT,
                {"text": "Changed."},
                SENT_CALL | {"thoughtSignature": "c2ln"},
                OWN_TOOL,
                LATER_CALL,
            ],
        ),
        ("", (), [THOUGHT, OWN_TOOL]),
        ("", (LATER,), [THOUGHT, OWN_TOOL, LATER_CALL | {"thoughtSignature": STAND_IN}]),
    ],
)
def test_what_a_model_sent_goes_back_around_what_the_message_says(
    text: str, calls: tuple[ToolCall, ...], parts: list[Json]
) -> None:
    said = Message("assistant", text, calls, provider_state=ProviderState("gemini", STATE))
    request = asked(Message.user("?"), said, *(Message.tool(call, "x") for call in calls))
    assert body_of(request)["contents"][1]["parts"] == parts


@pytest.mark.parametrize(
    "state",
    [
        ProviderState("openai-responses", STATE),
        ProviderState("gemini", None),
        ProviderState("gemini", "junk"),
        ProviderState("gemini", [5, {"functionCall": None}, {"functionCall": {"id": [1]}}]),
    ],
)
def test_a_state_of_another_provider_or_of_none_is_not_sent(state: ProviderState) -> None:
    said = Message("assistant", "Hi", (CALL,), provider_state=state)
    contents = body_of(asked(Message.user("?"), said, Message.tool(CALL, "x")))["contents"]
    assert contents[1]["parts"] == [{"text": "Hi"}, SIGNED_CALL]


def test_a_signature_survives_the_way_there_and_back() -> None:
    part = {"functionCall": {"name": "f", "args": {"a": 1.0}}, "thoughtSignature": "c2ln"}
    body = json.dumps({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]})
    reply = decode("gemini", body)
    (call,) = reply.tool_calls
    state = msgspec.json.decode(msgspec.json.encode(reply.message), type=Message)
    sent = encode("gemini", asked(Message.user("?"), state, Message.tool(call, "x")), model="m")
    expected = part | {"functionCall": {"id": "call_0", "name": "f", "args": {"a": 1.0}}}
    assert json.loads(sent.body)["contents"][1]["parts"] == [expected]
    assert b'"args":{"a": 1.0}' in sent.body


def test_a_memo_changes_nothing_but_the_work(encoded: list[Any]) -> None:
    new: list[int] = []
    memo, tools = Memo(), (defined(), defined("a b"))
    history: list[Message] = [Message.system("S"), Message.user("Hi")]
    for turn in range(4):
        request = ChatRequest(tuple(history), tools)
        encoded.clear()
        with_memo = encode("gemini", request, model="m", memo=memo)
        new.append(len(encoded))
        assert with_memo.body == encode("gemini", request, model="m").body
        call = ToolCall(f"r_{turn}", "a b", "{}", provider_id="p")
        history += [Message.assistant("", (call,)), Message.tool(call, "x")]
    assert new == [1, 2, 2, 2]


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    messages = Message.system("a\ud800"), Message.user("a\ud800b"), Message.assistant("\udc00")
    body = body_of(asked(*messages))
    assert body["systemInstruction"]["parts"] == [{"text": "a\ufffd"}]
    assert body["contents"] == [user({"text": "a\ufffdb"}), model({"text": "\ufffd"})]
