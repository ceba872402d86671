"""The loopback server that speaks Responses: what it refuses, and our client and OpenAI's before it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row
from servers.responses import fault_of, responses_server

from toolcrib.clients import OpenAIClient
from toolcrib.errors import RateLimitError, RequestError
from toolcrib.testing import call, cut, http_error
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart
from toolcrib.wire import encode

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
HI = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
SOUGHT = {"type": "tool_search_call", "execution": "client", "call_id": "s", "arguments": {}}
LATER = TOOL | {"name": "g", "defer_loading": True}
FOUND = {"type": "tool_search_output", "execution": "client", "call_id": "s", "tools": [LATER]}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
STRICT = {"additionalProperties": False, "properties": {"a": {}}, "required": ["a"]}


def body(*items: Any, **members: Any) -> dict[str, Any]:
    return {"model": "m", "input": [HI, *items]} | members


@each_row(
    "request_",
    [
        body(input="Hi"),
        body(CALL, OUTPUT, tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        body(CALL, CALL | {"call_id": "d"}, OUTPUT | {"call_id": "d"}, OUTPUT, HI),
        body(THOUGHT, CALL, OUTPUT, store=False, include=["reasoning.encrypted_content"]),
        body(CALL, HI, OUTPUT),
        body(OUTPUT, previous_response_id="resp_1"),
        body(input=[OUTPUT], conversation={"id": "conv_1"}),
        body({"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}, HI),
        body({"role": "user", "content": [{"type": "input_image", "image_url": "https://a.b"}]}),
        body(tools=[TOOL | {"strict": True, "parameters": STRICT}, {"type": "web_search"}],
             tool_choice={"type": "function", "name": "f"}),
        body(tools=[TOOL], tool_choice={"type": "allowed_tools", "mode": "auto",
                                        "tools": [{"type": "function", "name": "f"}]}),
        body(SOUGHT, FOUND, CALL | {"name": "g", "namespace": "g"}, OUTPUT, tools=[TOOL, SEARCH]),
        body(stream=True, stream_options={"include_obfuscation": False}, max_output_tokens=16),
    ],
)  # fmt: skip
def test_legal_requests(request_: Any) -> None:
    assert fault_of(request_) is None


FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    (body(messages=[]), "Unknown parameter: 'messages'"),
    (body(max_tokens=1), "'max_tokens'"),
    (body(model=None), "'model'"),
    (body(stream_options={}), "stream_options"),
    (body(max_output_tokens=1), ">= 16"),
    (body(input=[]), "'input'"),
    (body(input=["Hi"]), "input[0]"),
    (body(tools=[{"type": "function", "function": {"name": "f"}}]), "tools[0].function"),
    (body(tools=[{"name": "f"}]), "'tools[0].type'"),
    (body(tools=[{"type": "function"}]), "'tools[0].name'"),
    (body(tools=[TOOL, TOOL]), "tools[1].name"),
    (body(tools=[TOOL | {"name": "a.b"}]), "pattern"),
    (body(tools=[TOOL | {"parameters": {"type": "array"}}]), "Invalid schema"),
    (body(tools=[TOOL | {"strict": True}]), "'additionalProperties'"),
    (body(tools=[TOOL | {"strict": True, "parameters": STRICT | {"required": []}}]), "'required'"),
    (body(tool_choice="required"), "must be specified with 'tools'"),
    (body(tools=[TOOL], tool_choice="any"), "'any'"),
    (body(tools=[TOOL], tool_choice=1), "Invalid type"),
    (body(tools=[TOOL], tool_choice={"type": "function", "name": "g"}), "'g' not found"),
    (body(tools=[TOOL], tool_choice={"type": "allowed_tools", "tools": None}), "tool_choice.tools"),
    (body({"role": "tool", "content": "x"}), "input[1].role"),
    (body({"role": "user"}), "input[1].content"),
    (body({"role": "user", "content": [{"type": "text", "text": "x"}]}), "content[0].type"),
    (body(CALL), "No tool output found for function call c"),
    (body(OUTPUT), "No tool call found"),
    (body(OUTPUT, previous_response_id=None), "No tool call found"),
    (body(CALL, previous_response_id="resp_1"), "No tool output found for function call c"),
    (body(CALL, OUTPUT, OUTPUT), "No tool call found"),
    (body(CALL, OUTPUT | {"output": None}), "input[2].output"),
    (body(CALL | {"call_id": ""}), "call_id"),
    (body(CALL | {"call_id": "c" * 65}), "too long"),
    (body(CALL | {"name": "a.b"}), "input[1].name"),
    (body(CALL | {"arguments": {}}), "input[1].arguments"),
    (body(THOUGHT), "without its required following item"),
    (body(tools=[SEARCH | {"name": "f"}]), "tools[0].name"),
    (body(SOUGHT, FOUND, tools=[TOOL]), "there is no tool_search"),
    (body(SOUGHT, tools=[SEARCH]), "No tool output found for tool search call s"),
    (body(FOUND, tools=[SEARCH]), "No tool call found for tool search output"),
    (body(SOUGHT | {"arguments": "{}"}, FOUND, tools=[SEARCH]), "input[1].arguments"),
    (body(SOUGHT, FOUND, tools=[SEARCH, TOOL | {"name": "g"}]), "g is there already"),
    (body(SOUGHT, FOUND, CALL | {"name": "g"}, OUTPUT, tools=[SEARCH]), "Missing namespace"),
    (body(CALL | {"namespace": "f"}, OUTPUT, tools=[TOOL]), "no namespace 'f'"),
    (body(SOUGHT, FOUND | {"tools": [TOOL]}, tools=[SEARCH]), "not deferred"),
    (body({"type": "reasoning", "id": "rs_1"}, HI), "summary"),
]  # fmt: skip


@each_row(("request_", "fault"), FAULTS)
def test_illegal_requests(request_: Any, fault: str) -> None:
    assert fault in (fault_of(request_) or "")


ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
ASKED = ChatRequest((Message.user("Hi"),), (ADD,), id_prefix="r_0_")  # type: ignore[arg-type]
TURNS: dict[str, tuple[Any, str]] = {
    "text": ("Sunny in Rome; ☔ in Umeå.", "stop"),
    "a call": (call("add", a=1), "tool_calls"),
    "a call without arguments": (call("add"), "tool_calls"),
    "text and calls": (["Let me add. ", call("add", a=1), call("add", a=1)], "tool_calls"),
    "a text that is cut": (cut("Sunny in Rome."), "length"),
    "a call that is cut": (cut(["Let me add. ", call("add", a=12345)]), "length"),
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ours(url: str, request: ChatRequest, *, stream: bool) -> Reply:
    client = OpenAIClient("m", api="responses", base_url=url, api_key="k", retries=None)
    async with client:
        if not stream:
            return await client.chat(request)
        *parts, reply = [part async for part in client.stream(request)]
    assert isinstance(reply, Reply)
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
    return reply


async def theirs(url: str, sent: dict[str, Any], *, stream: bool) -> Any:
    """The response as OpenAI's own client has it, and the types of its events."""
    openai = pytest.importorskip("openai")
    members = {key: value for key, value in sent.items() if key != "stream"}
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        if not stream:
            return await client.responses.create(**members), []
        response, kinds, numbers = None, [], []
        async for event in await client.responses.create(**members, stream=True):
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if event.type in ("response.completed", "response.incomplete"):
                response = event.response
        assert numbers == list(range(len(numbers)))
        return response, kinds


def sent_by(request: ChatRequest) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(encode("openai-responses", request, model="m").body)
    return made


@both
@each_row(("turn", "finish"), TURNS.values(), ids=TURNS)
async def test_both_clients_hear_the_same(turn: Any, finish: str, stream: bool) -> None:
    async with responses_server([turn]) as server, responses_server([turn]) as other:
        reply = await ours(server.url, ASKED, stream=stream)
        response, kinds = await theirs(other.url, sent_by(ASKED), stream=stream)
    (first,), (second,) = server.requests, other.requests
    assert reply.finish == finish
    assert response.status == ("incomplete" if finish == "length" else "completed")
    assert response.output_text == reply.text
    made = [item for item in response.output if item.type == "function_call"]
    assert [(c.provider_id, c.name, c.arguments) for c in reply.tool_calls] == [
        (item.call_id, item.name, item.arguments) for item in made
    ]
    assert all(made.complete for made in reply.tool_calls) is (finish != "length" or not made)
    assert first | {"stream": None} == second | {"stream": None}
    assert kinds[:2] == (["response.created", "response.in_progress"] if stream else [])


async def test_the_events_of_a_stream_in_order() -> None:
    async with responses_server([["Hm", call("add")]]) as server:
        _, kinds = await theirs(server.url, sent_by(ASKED), stream=True)
    assert [kind.removeprefix("response.") for kind in kinds[2:]] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


@both
async def test_a_conversation_goes_on(stream: bool) -> None:
    async with responses_server([[call("add", a=1), call("add", a=2)], "3"] * 2) as server:
        reply = await ours(server.url, ASKED, stream=stream)
        results = [Message.tool(made, "x") for made in reply.tool_calls]
        messages = (*ASKED.messages, reply.message, *results)
        answer = await ours(server.url, msgspec.structs.replace(ASKED, messages=messages),
                            stream=stream)  # fmt: skip
        response, _ = await theirs(server.url, sent_by(ASKED), stream=stream)
        outputs = [{"type": "function_call_output", "call_id": item.call_id, "output": "x"}
                   for item in response.output]  # fmt: skip
        items = [HI, *(item.model_dump(exclude_none=True) for item in response.output), *outputs]
        last, _ = await theirs(server.url, sent_by(ASKED) | {"input": items}, stream=stream)
    assert (answer.text, last.output_text) == ("3", "3")


@both
async def test_both_are_refused(stream: bool) -> None:
    openai = pytest.importorskip("openai")
    turns = [http_error(429, "slow down", retry_after=2)] * 2
    async with responses_server(turns) as server:
        with pytest.raises(RateLimitError, match="slow down"):
            await ours(server.url, ASKED, stream=stream)
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await theirs(server.url, sent_by(ASKED), stream=stream)
        named = msgspec.structs.replace(ASKED, id_prefix="r_1_")
        wrong = sent_by(named) | {"input": [OUTPUT]}
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            await theirs(server.url, wrong, stream=stream)
        client = OpenAIClient("m", base_url=server.url, api_key="k", retries=None)
        async with client:
            with pytest.raises(RequestError):  # the other API's path
                await client.chat(ASKED)
