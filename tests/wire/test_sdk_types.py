"""What is sent, judged by the request types of the providers' own SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rows import each_row
from wire.forms_helpers import TOOLS
from wire.sdk_judges import judge_of

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import WIRES, decode, encode


def tool(kind: str = "plain", name: str = "f") -> PlainTool:
    return PlainTool(TOOLS[kind].renamed(name))


def asked(*messages: Message, **members: Any) -> ChatRequest:
    return ChatRequest(messages or (Message.user("Hi"),), **members)


TWO = {"tools": (tool(), tool("optional and nullable", "g"))}
HI, BYE = Message.user("Hi"), Message.user("Bye")
DATA = Image("image/png", "aGk=")
CALL = ToolCall("r_0", "f", '{"city": "Rome"}', provider_id="call_1")
OTHER = ToolCall("r_1", "a tool of old", "no JSON")

REQUESTS: dict[str, ChatRequest] = {
    "text": asked(),
    "system": asked(Message.system("Be brief."), HI),
    "system twice, and late": asked(Message.system("A."), HI, Message.system("B.")),
    "several turns": asked(HI, Message.assistant("Hello."), BYE),
    "two of the user's in a row": asked(HI, BYE),
    "an image": asked(Message.user("What?", (DATA,))),
    "images alone": asked(Message.user("", (DATA, DATA))),
    "an image by its address": asked(Message.user("What?", (Image(url="https://a.test/b.png"),))),
    "an image by its address, with its type": asked(
        Message.user("What?", (Image("image/png", url="https://a.test/b.png"),))
    ),
    **{f"tool: {kind}": asked(tools=(tool(kind),)) for kind in TOOLS},
    "tool: a name that nobody takes": asked(tools=(tool("plain", "8 balls.of-fire"),)),
    "choice: auto": asked(**TWO, tool_choice=ToolChoice("auto")),
    "choice: none": asked(**TWO, tool_choice=ToolChoice("none")),
    "choice: required": asked(**TWO, tool_choice=ToolChoice("required")),
    "choice: one": asked(**TWO, tool_choice=ToolChoice("tool", "g")),
    "choice: auto, among some": asked(**TWO, tool_choice=ToolChoice("auto", allowed=("g",))),
    "choice: required, among some": asked(
        **TWO, tool_choice=ToolChoice("required", allowed=("f",))
    ),
    "parallel": asked(**TWO, parallel_calls=True),
    "not parallel": asked(**TWO, parallel_calls=False),
    "a call and its result": asked(
        HI, Message.assistant("", (CALL,)), Message.tool(CALL, "sunny"), **TWO
    ),
    "text with calls, and an error": asked(
        HI,
        Message.assistant("I look.", (CALL, OTHER)),
        Message.tool(CALL, "sunny"),
        Message.tool(OTHER, "no such tool", is_error=True),
        Message.assistant("Sunny."),
        BYE,
        **TWO,
    ),
    "calls of old, and no tools": asked(
        HI, Message.assistant("", (CALL,)), Message.tool(CALL, ""), BYE
    ),
    "what says nothing": asked(HI, Message.assistant(""), BYE),
    "settings": asked(settings=Settings(0.5, 100)),
    "another provider's state": asked(
        HI, Message("assistant", "Hm.", provider_state=ProviderState("elsewhere", {"x": 1})), BYE
    ),
}

# what a wire has no form for, and says so
NOT_SENT = {
    ("cohere", "not parallel"): "one call at a time",
    ("gemini", "not parallel"): "one call at a time",
    ("ollama", "not parallel"): "one call at a time",
    ("bedrock-converse", "not parallel"): "one call at a time",
    ("bedrock-converse", "an image by its address"): "no other URL",
    ("bedrock-converse", "an image by its address, with its type"): "no other URL",
    ("ollama", "choice: required"): "cannot be forced to call a tool",
    ("ollama", "choice: one"): "cannot be forced to call a tool",
    ("ollama", "choice: required, among some"): "cannot be forced to call a tool",
    ("ollama", "an image by its address"): "no image by URL",
    ("ollama", "an image by its address, with its type"): "no image by URL",
}

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
each_wire = pytest.mark.parametrize("wire", WIRES)


@both
@each_wire
@each_row("name", REQUESTS)
def test_what_is_sent_is_what_the_sdk_would_send(wire: str, name: str, stream: bool) -> None:
    judge, why = judge_of(wire), NOT_SENT.get((wire, name))
    model = "command-a-vision" if wire == "cohere" else "m"  # others of Cohere take no image
    if why is not None:
        with pytest.raises(RequestError, match=why):
            encode(wire, REQUESTS[name], model=model, stream=stream)
        return
    judge(encode(wire, REQUESTS[name], model=model, stream=stream).body)


CALLS = [{"id": "abcdefghi", "function": {"name": "f", "arguments": '{"city":"Rome"}'}}]
CITED = {"start": 0, "end": 2, "text": "Hm", "type": "TEXT_CONTENT", "sources": []}


def chat(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def claude(*content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


def gemini(*parts: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def response(*output: Any) -> dict[str, Any]:
    return {"object": "response", "status": "completed", "output": output, "store": False}


def cohere(**message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant"} | message, "finish_reason": "COMPLETE"}


SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "x"},
}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Rome"}}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f",
                 "arguments": '{"city":"Rome"}', "status": "completed"}  # fmt: skip
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
}  # fmt: skip
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}

# replies that leave something to be sent back, beyond text and calls
STATES: list[tuple[str, dict[str, Any]]] = [
    ("anthropic", claude(SIGNED, {"type": "text", "text": "Hello."})),
    ("anthropic", claude(SIGNED, {"type": "redacted_thinking", "data": "eA=="}, USE)),
    ("anthropic", claude(SEARCH, FOUND, {"type": "text", "text": "Hello."}, USE)),
    ("openai-responses", response(REASONING, SAID)),
    ("openai-responses", response(REASONING, FUNCTION_CALL)),
    ("openai-responses", response(REASONING, SAID | {"phase": "commentary"}, FUNCTION_CALL)),
    ("gemini", gemini({"text": "Hello.", "thoughtSignature": "c2ln"})),
    ("gemini", gemini({"text": "Hm.", "thought": True},
                      {"functionCall": {"name": "f", "args": {"city": "Rome"}},
                       "thoughtSignature": "c2ln"})),
    ("gemini", gemini({"executableCode": {"language": "PYTHON", "code": "1"}},
                      {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
                      {"text": "Hello."})),
    ("mistral", chat(role="assistant", content=[THOUGHT, {"type": "text", "text": "Hello."}])),
    ("mistral", chat(role="assistant", content=[THOUGHT], tool_calls=CALLS)),
    ("mistral", chat(role="assistant", content=[{"type": "text", "text": "Hello."},
                                                {"type": "reference", "reference_ids": [1]}])),
    ("ollama", {"message": {"role": "assistant", "content": "Hello.", "thinking": "Hm."},
                "done": True}),
    ("cohere", cohere(content=[{"type": "thinking", "thinking": "Hm."}], tool_calls=CALLS)),
    ("cohere", cohere(tool_plan="I look.", tool_calls=CALLS)),
    ("cohere", cohere(content=[{"type": "text", "text": "Hm."}], citations=[CITED])),
]  # fmt: skip


@each_row(("wire", "body"), STATES, ids=[f"{wire}-{at}" for at, (wire, _) in enumerate(STATES)])
def test_what_goes_back_is_what_the_sdk_would_send(wire: str, body: dict[str, Any]) -> None:
    judge = judge_of(wire)
    message = decode(wire, json.dumps(body)).message
    assert message.provider_state is not None
    results = [Message.tool(call, "sunny") for call in message.tool_calls]
    judge(encode(wire, asked(HI, message, *results, BYE, **TWO), model="m").body)


def _unknown(body: Any) -> None:
    body["typo"] = 1


def _unknown_below(*path: str | int) -> Callable[[Any], None]:
    def spoil(body: Any) -> None:
        for step in path:
            body = body[step]
        body["typo"] = 1

    return spoil


def _instead(value: Any, *path: Any) -> Callable[[Any], None]:
    def spoil(body: Any) -> None:
        *outer, last = path
        for step in outer:
            body = body[step]
        assert body[last] != value
        body[last] = value

    return spoil


OPENAI_CALL = ("messages", 1, "tool_calls", 0)
WRONG: list[tuple[str, Callable[[Any], None]]] = [
    *((wire, _unknown) for wire in WIRES),
    *((wire, _unknown_below("tools", 0)) for wire in WIRES
      if wire not in ("ollama", "bedrock-converse")),
    ("bedrock-converse", _unknown_below("toolConfig", "tools", 0)),
    ("bedrock-converse", _unknown_below("messages", 1, "content", 0, "toolUse")),
    ("bedrock-converse", _instead("bot", "messages", 0, "role")),
    ("bedrock-converse", _instead("a b", "messages", 1, "content", 0, "toolUse", "name")),
    *((wire, _unknown_below(*OPENAI_CALL, "function")) for wire in ("openai-chat", "mistral", "ollama",
                                                                   "cohere")),
    ("openai-responses", _unknown_below("input", 1)),
    ("anthropic", _unknown_below("messages", 1, "content", 0)),
    ("gemini", _unknown_below("tools", 0, "functionDeclarations", 0)),
    *((wire, _instead("must", "tool_choice")) for wire in ("openai-chat", "openai-responses",
                                                          "mistral", "cohere")),
    *((wire, _instead("bot", "messages", 0, "role")) for wire in ("openai-chat", "anthropic",
                                                                  "mistral", "cohere")),
    ("openai-chat", _instead({}, *OPENAI_CALL, "function", "arguments")),
    ("openai-responses", _instead("call", "input", 1, "type")),
    ("anthropic", _instead({"type": "must"}, "tool_choice")),
    ("anthropic", _instead("{}", "messages", 1, "content", 0, "input")),
    ("gemini", _instead("MUST", "toolConfig", "functionCallingConfig", "mode")),
    ("gemini", _unknown_below("contents", 1, "parts", 0, "functionCall")),
    ("mistral", _instead(1, *OPENAI_CALL, "function", "name")),
    ("ollama", _instead("{}", *OPENAI_CALL, "function", "arguments")),
    ("ollama", _unknown_below("messages", 0)),
    ("ollama", _instead("1", "tools", 0, "function", "parameters", "properties", "city")),
    ("cohere", _instead({}, *OPENAI_CALL, "function", "arguments")),
]  # fmt: skip


@each_row(("wire", "spoil"), WRONG, ids=[f"{wire}-{at}" for at, (wire, _) in enumerate(WRONG)])
def test_the_judges_judge(wire: str, spoil: Callable[[Any], None]) -> None:
    judge = judge_of(wire)
    choice = ToolChoice("auto" if wire == "ollama" else "required")
    messages = (HI, Message.assistant("", (CALL,)), Message.tool(CALL, "sunny"))
    sent = encode(wire, asked(*messages, **TWO, tool_choice=choice), model="m").body
    judge(sent)
    body = json.loads(sent)
    spoil(body)
    with pytest.raises((ValueError, UserWarning), match=r"validation error|is not a valid"):
        judge(json.dumps(body).encode())
