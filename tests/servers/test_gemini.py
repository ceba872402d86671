"""The loopback server that speaks Gemini's wire: what it refuses, our client and Google's before it."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import msgspec
import pytest
from rows import each_row
from servers.gemini import fault_of, gemini_server

from toolcrib.clients import GeminiClient
from toolcrib.errors import ProviderError, RateLimitError
from toolcrib.testing import call, cut, http_error, raw_call
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart
from toolcrib.wire import decode, encode

# Google's client, and what it does to aiohttp's.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")

HI = {"role": "user", "parts": [{"text": "Hi"}]}
CALL = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "eHh4"}
GIVEN = {"functionResponse": {"name": "f", "response": {"output": "x"}}}
ASKS = {"role": "model", "parts": [CALL]}
TELLS = {"role": "user", "parts": [GIVEN]}
TOOL = {"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}


def body(*contents: Any, **members: Any) -> dict[str, Any]:
    return {"contents": [HI, *contents]} | members


def content(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def declared(**members: Any) -> list[dict[str, Any]]:
    return [{"functionDeclarations": [{"name": "f"} | members]}]


def choice(**members: Any) -> dict[str, Any]:
    return {"functionCallingConfig": members}


UNSIGNED = {"functionCall": CALL["functionCall"]}


@each_row(
    "request_",
    [
        body(),
        {"contents": [{"parts": [{"text": ""}]}]},
        body(ASKS, TELLS, tools=[TOOL]),
        body(ASKS, TELLS, ASKS, TELLS, content({"text": "."}, role="model"), HI),
        body(content({"text": "Hm"}, CALL, UNSIGNED, role="model"), content(GIVEN, GIVEN)),
        body(content(UNSIGNED, role="model"), TELLS, content({"text": "."}, role="model"), HI),
        body(content({"inlineData": {"mimeType": "image/png", "data": ""}}, {"text": "x"})),
        body(tools=[TOOL], toolConfig=choice(mode="ANY", allowedFunctionNames=["f"])),
        body(tools=declared(name="a.b:c-d", parameters={"type": "OBJECT"}),
             toolConfig=choice(mode="NONE")),
        body(system_instruction={"parts": [{"text": "x"}]}, tools=[
            {"function_declarations": [{"name": "f", "parameters_json_schema": {"a_b": 1}}]}]),
        body(systemInstruction={"parts": [{"text": "x"}]}, generationConfig={"temperature": 0}),
    ],
)  # fmt: skip
def test_legal_requests(request_: Any) -> None:
    assert fault_of(request_) is None


FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    (body(messages=[]), 'Unknown name "messages"'),
    (body(stream=True), 'Unknown name "stream"'),
    ({"contents": []}, "contents is not specified"),
    (body(content({"text": "x"}, role="assistant")), "valid role"),
    (body(content()), "at least one parts field"),
    (body(content({})), "oneof field 'data'"),
    (body(content({"text": "x", "functionCall": {"name": "f"}}, role="model")), "oneof"),
    (body(content({"thoughtSignature": "eHh4"}, role="model")), "oneof"),
    (body(content({"functionCall": {"args": {}}}, role="model")), "Name cannot be empty"),
    (body(content({"functionCall": {"name": "f", "args": "{}"}}, role="model")), "Struct"),
    (body(ASKS, content({"functionResponse": {"name": "f", "response": "x"}})), "Struct"),
    (body(ASKS, content({"functionResponse": {"name": "f", "response": {"$ref": 1}}})), "$ref"),
    (body(TELLS), "function response turn comes immediately"),
    (body(ASKS, HI), "number of function response parts"),
    (body(ASKS, content(GIVEN, GIVEN)), "number of function response parts"),
    (body(ASKS, TELLS, TELLS), "function response turn comes immediately"),
    ({"contents": [ASKS, TELLS]}, "function call turn comes immediately"),
    (body(content({"text": "."}, role="model"), ASKS, TELLS), "function call turn comes"),
    (body(content(CALL)), "function call turn comes"),
    (body(content(UNSIGNED, role="model"), TELLS), "missing a thought_signature"),
    (body(ASKS, TELLS, content(UNSIGNED, role="model"), TELLS), "missing a thought_signature"),
    (body(tools=declared(name="1f")), "Invalid function name"),
    (body(tools=declared(name="f" * 129)), "Invalid function name"),
    (body(tools=declared(strict=True)), 'Unknown name "strict"'),
    (body(tools=declared(parameters={}, parametersJsonSchema={})), "must not be set"),
    (body(tool_config=choice(mode="REQUIRED")), '"REQUIRED"'),
    (body(tools=[TOOL, TOOL]), "Duplicate function declaration found: f"),
    (body(tools=[TOOL], toolConfig=choice(mode="REQUIRED")), '"REQUIRED"'),
    (body(toolConfig=choice(mode="ANY")), "without function_declarations"),
    (body(tools=[TOOL], toolConfig=choice(mode="AUTO", allowedFunctionNames=["f"])), "ANY or"),
    (body(tools=[TOOL], toolConfig=choice(mode="ANY", allowedFunctionNames=["g"])), "function: g"),
]


@each_row(("request_", "fault"), FAULTS)
def test_illegal_requests(request_: Any, fault: str) -> None:
    assert fault in (fault_of(request_) or "")


ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
ASKED = ChatRequest((Message.user("Hi"),), (ADD,), id_prefix="r_0_")  # type: ignore[arg-type]
TURNS: dict[str, tuple[Any, str, str]] = {
    "text": ("Sunny in Rome; ☔ in Umeå.", "stop", "STOP"),
    "a call": (call("add", a=1), "tool_calls", "STOP"),
    "a call without arguments": (call("add"), "tool_calls", "STOP"),
    "arguments in lines": (raw_call("add", '{\n\n"a":\r\n\r\n1\r}'), "tool_calls", "STOP"),
    "text and calls": (
        ["Let me add. ", call("add", a=1), call("add", a=1)],
        "tool_calls",
        "STOP",
    ),
    "a text that is cut": (cut("Sunny in Rome."), "length", "MAX_TOKENS"),
    "calls that are cut": (cut([call("add", a=1), call("add", a=2)]), "length", "MAX_TOKENS"),
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ours(url: str, request: ChatRequest, *, stream: bool) -> Reply:
    async with GeminiClient("m", base_url=url, api_key="k", retries=None) as client:
        if not stream:
            return await client.chat(request)
        *parts, reply = [part async for part in client.stream(request)]
    assert isinstance(reply, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
    return reply


async def theirs(url: str, contents: Any, *, stream: bool) -> tuple[str, list[Any], str, list[Any]]:
    """Text, calls, the reason and the parts, as Google's own client has them."""
    genai = pytest.importorskip("google.genai")
    sent = json.loads(encode("gemini", ASKED, model="m").body)
    options = {"base_url": url.removesuffix("/v1beta"), "api_version": "v1beta"}
    client = genai.Client(api_key="k", http_options=options)
    given = {"model": "m", "contents": contents, "config": {"tools": sent["tools"]}}
    given["config"]["automatic_function_calling"] = {"disable": True}
    try:
        if stream:
            chunks = [c async for c in await client.aio.models.generate_content_stream(**given)]
        else:
            chunks = [await client.aio.models.generate_content(**given)]
    finally:
        await client.aio.aclose()
    contents = [c.candidates[0].content for c in chunks if c.candidates[0].content]
    parts = [part for one in contents for part in one.parts or ()]
    text = "".join(part.text for part in parts if part.text)
    calls = [(p.function_call.name, p.function_call.args) for p in parts if p.function_call]
    return text, calls, chunks[-1].candidates[0].finish_reason.name, parts


@both
@each_row(("turn", "finish", "reason"), TURNS.values(), ids=TURNS)
async def test_both_clients_hear_the_same(
    turn: Any, finish: str, reason: str, stream: bool
) -> None:
    async with gemini_server([turn, turn]) as server:
        reply = await ours(server.url, ASKED, stream=stream)
        text, calls, why, _ = await theirs(server.url, [HI], stream=stream)
        first, second = server.requests
    assert (reply.finish, why) == (finish, reason)
    assert (reply.text, reply.provider_finish) == (text, reason)
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == calls
    assert first["contents"] == second["contents"]


@both
async def test_a_conversation_goes_on(stream: bool) -> None:
    async with gemini_server([[call("add", a=1), call("add", a=2)], "3"] * 2) as server:
        reply = await ours(server.url, ASKED, stream=stream)
        results = [Message.tool(made, "x") for made in reply.tool_calls]
        messages = (*ASKED.messages, reply.message, *results)
        answered = msgspec.structs.replace(ASKED, messages=messages)
        answer = await ours(server.url, answered, stream=stream)
        _, calls, _, parts = await theirs(server.url, [HI], stream=stream)
        signed = [part.model_dump(mode="json", exclude_none=True) for part in parts
                  if part.function_call]  # fmt: skip
        given = [{"functionResponse": {"name": name, "response": {"output": "x"}}}
                 for name, _ in calls]  # fmt: skip
        contents = [HI, content(*signed, role="model"), content(*given)]
        text, _, _, _ = await theirs(server.url, contents, stream=stream)
    assert (answer.text, text) == ("3", "3")


@both
async def test_a_call_that_is_no_json(stream: bool) -> None:
    async with gemini_server([raw_call("add", "{a: 1}"), raw_call("add", "[]")]) as server:
        with pytest.raises(ProviderError, match="MALFORMED_FUNCTION_CALL"):
            await ours(server.url, ASKED, stream=stream)
        _, calls, why, _ = await theirs(server.url, [HI], stream=stream)
    assert (calls, why) == ([], "MALFORMED_FUNCTION_CALL")


@both
async def test_both_are_refused(stream: bool) -> None:
    errors = pytest.importorskip("google.genai.errors")
    async with gemini_server([http_error(429, "slow down")] * 2) as server:
        with pytest.raises(RateLimitError, match="slow down"):
            await ours(server.url, ASKED, stream=stream)
        with pytest.raises(errors.ClientError, match="slow down") as caught:
            await theirs(server.url, [HI], stream=stream)
        assert caught.value.code == 429
        with pytest.raises(errors.ClientError, match="number of function response") as caught:
            await theirs(server.url, [HI, ASKS, HI], stream=stream)
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


async def test_a_stream_is_an_array_unless_events_are_asked_for() -> None:
    async with gemini_server([["Hello", call("add", a=1)]]) as server, aiohttp.ClientSession() as s:
        url = f"{server.url}/models/m:streamGenerateContent"
        async with s.post(url, data=json.dumps(body())) as response:
            kind, data = response.content_type, await response.read()
    assert kind == "application/json"
    assert len(json.loads(data)) == 3
    reply = decode("gemini", data, content_type=kind)
    assert (reply.text, reply.finish) == ("Hello", "tool_calls")


async def test_a_body_that_is_too_deep_is_refused() -> None:
    deep = b'{"contents":' + b'{"a":' * 1_010 + b"1" + b"}" * 1_011
    async with gemini_server([]) as server, aiohttp.ClientSession() as http:
        response = await http.post(f"{server.url}/models/m:generateContent", data=deep)
        assert response.status == 400
        assert "not of this API's form" in await response.text()
