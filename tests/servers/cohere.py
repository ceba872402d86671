"""A real HTTP server on 127.0.0.1 that speaks version 2 of Cohere's chat and says what a test wrote.

It judges each request as Cohere would, in the words of https://docs.cohere.com/reference/errors.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson

from toolcrib.testing.scripted import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    Said,
    ServerTurn,
    Spoken,
    ending,
    serving,
)
from toolcrib.values.message import Reply

_PIECE = 5
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBERS = frozenset(
    [
        "model",
        "messages",
        "stream",
        "tools",
        "tool_choice",
        "strict_tools",
        "documents",
        "citation_options",
        "thinking",
        "response_format",
        "safety_mode",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "k",
        "p",
        "logprobs",
        "priority",
    ]
)
_FUNCTION = frozenset(("name", "description", "parameters"))


class CohereServer(OpenAIServer):
    """As `OpenAIServer`, in Cohere's words.

    A text beside calls is content, so that it is seen; Cohere's own models would call it their plan.
    """

    base = "/v2"
    path = "/chat"

    def fault(self, body: Any) -> str | None:
        if not isinstance(body, dict) or not body.get("model"):
            return "a model parameter is required for this endpoint."
        if unknown := sorted(body.keys() - _MEMBERS):
            return f"unknown field: parameter '{unknown[0]}' is not a valid field."
        if body.get("tools") and "response_format" in body:
            return "response_format is not supported with tools"
        return _tools_fault(body) or _messages_fault(body.get("messages"))

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="TOOL_CALL", stop="COMPLETE", cut="MAX_TOKENS")
        if stream:
            return RawTurn(b"".join(_events(said, number, reason)))
        message: dict[str, Any] = {"role": "assistant"}
        if said.text:
            message["content"] = [{"type": "text", "text": said.text}]
        if said.calls:
            message["tool_calls"] = [
                _call(number, at, made.name, made.arguments) for at, made in enumerate(said.calls)
            ]
        body = {"id": f"{number:032}", "message": message, "finish_reason": reason}
        return RawTurn(orjson.dumps(body | {"usage": _USAGE}), content_type="application/json")


@contextlib.asynccontextmanager
async def cohere_server(turns: Iterable[ServerTurn]) -> AsyncIterator[CohereServer]:
    """`async with cohere_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(CohereServer(turns)) as server:
        yield server


_USAGE = {
    "billed_units": {"input_tokens": 11, "output_tokens": 7},
    "tokens": {"input_tokens": 1011, "output_tokens": 17},
}


def _events(said: Spoken, number: int, reason: str) -> Iterable[bytes]:
    begun = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    yield _event("message-start", None, begun, id=f"{number:032}")
    if said.text:
        yield _event("content-start", 0, {"content": {"type": "text", "text": ""}})
        for piece in _pieces(said.text):
            yield _event("content-delta", 0, {"content": {"text": piece}})
        yield _event("content-end", 0)
    for at, made in enumerate(said.calls):
        yield _event("tool-call-start", at, {"tool_calls": _call(number, at, made.name, "")})
        for piece in _pieces(made.arguments):
            function = {"function": {"arguments": piece}}
            yield _event("tool-call-delta", at, {"tool_calls": function})
        yield _event("tool-call-end", at)
    yield _event("message-end", delta={"finish_reason": reason, "usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _pieces(text: str) -> Iterable[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def _event(kind: str, index: int | None = None, message: Any = None, **members: Any) -> bytes:
    event: dict[str, Any] = {"type": kind}
    event |= {} if index is None else {"index": index}
    event |= {} if message is None else {"delta": {"message": message}}
    return f"event: {kind}\ndata: ".encode() + orjson.dumps(event | members) + b"\n\n"


def _call(number: int, at: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"{name}_{number}_{at}", "type": "function", "function": function}


def _tools_fault(body: dict[str, Any]) -> str | None:
    tools = body.get("tools") or ()
    for tool in tools:
        function = tool["function"]
        if unknown := sorted(function.keys() - _FUNCTION):
            return f"unknown field: parameter '{unknown[0]}' is not a valid field."
        if not _NAME.fullmatch(function["name"]):
            return (
                "invalid request: tool names can only contain certain characters (A-Za-z0-9_) and "
                f"can't begin with a digit (provided name: '{function['name']}')."
            )
        if function["parameters"].get("type") != "object":
            return "schema must be an object"
    choice = body.get("tool_choice")
    if choice is not None and (choice not in ("REQUIRED", "NONE") or not tools):
        return f"invalid request: tool_choice {choice!r}"
    return None


def _messages_fault(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "invalid request: messages must not be empty"
    asked: set[str] = set()
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        calls = message.get("tool_calls") or ()
        if role not in ("system", "user", "assistant", "tool"):
            return f"invalid request: invalid role {role!r}"
        if role == "system" and at:
            return "system turn must be the first in the list"
        if role == "tool":
            if message.get("tool_call_id") not in asked:
                return "tool call id not found in previous tool calls"
            continue
        if calls and _has_text(content):
            return "text content is not allowed when tool_calls are provided."
        if not (content or calls):
            return "message must not be empty in a turn"
        ids = [call["id"] for call in calls]
        if len({*ids, *asked}) < len(ids) + len(asked):
            return "cannot have duplicate tool ids"
        asked |= {*ids}
    return None


def _has_text(content: Any) -> bool:
    if isinstance(content, list):
        return any(part.get("text") for part in content)
    return bool(content)
