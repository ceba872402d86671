"""A real HTTP server on 127.0.0.1 that speaks Ollama's chat and says what a test wrote down."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson

from toolcrib.testing.scripted import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    Said,
    ServerTurn,
    halved,
    serving,
    spoken,
)
from toolcrib.values.message import Reply

_PIECE = 5
_LINES = "application/x-ndjson"


def in_one_line(arguments: str) -> orjson.Fragment:
    """Arguments as part of a body whose lines count: JSON has no line break but as white space."""
    return orjson.Fragment(arguments.replace("\r", " ").replace("\n", " "))


class OllamaServer(OpenAIServer):
    """As `OpenAIServer`, in Ollama's words. Calls come whole, each in a line of its own.

    A turn that is cut loses its last call, which the server could not have read.
    """

    base = ""
    path = "/api/chat"

    def fault(self, body: Any) -> str | None:
        return _fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said = spoken(turn.turn if isinstance(turn, CutTurn) else turn)
        calls, reason = list(said.calls), "stop"
        if isinstance(turn, CutTurn):
            said, reason = halved(said), "length"
            calls = calls[:-1]
        made = [
            {
                "id": f"call_{number}_{at}",
                "function": {
                    "index": at,
                    "name": call.name,
                    "arguments": in_one_line(call.arguments),
                },
            }
            for at, call in enumerate(calls)
        ]
        last = {"done": True, "done_reason": reason, "prompt_eval_count": 11, "eval_count": 7}
        if not stream:
            message = _said(said.text, tool_calls=made) if made else _said(said.text)
            return RawTurn(orjson.dumps(message | last), content_type="application/json")
        texts = [said.text[at : at + _PIECE] for at in range(0, len(said.text), _PIECE)]
        lines = [*map(_said, texts), *(_said("", tool_calls=[one]) for one in made)]
        lines = [line | {"done": False} for line in lines] + [_said("") | last]
        return RawTurn(b"".join(orjson.dumps(line) + b"\n" for line in lines), content_type=_LINES)


@contextlib.asynccontextmanager
async def ollama_server(turns: Iterable[ServerTurn]) -> AsyncIterator[OllamaServer]:
    """`async with ollama_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(OllamaServer(turns)) as server:
        yield server


def _said(text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text} | more
    return {"model": "scripted", "created_at": "2026-01-01T00:00:00Z", "message": message}


def _fault_of(body: Any) -> str | None:
    """What the server's parser refuses; besides that, what it would drop without a word."""
    if not isinstance(body, dict) or not body.get("model"):
        return "model is required"
    unknown = set(body) - {"model", "messages", "tools", "stream", "options", "think", "format",
                           "keep_alive", "logprobs", "top_logprobs", "truncate", "shift"}  # fmt: skip
    if unknown:
        return f"unknown member {sorted(unknown)[0]!r}"
    for tool in body.get("tools") or ():
        extra = set(tool["function"]) - {"name", "description", "parameters"}
        if tool["type"] != "function" or extra or not tool["function"]["name"]:
            return f"invalid tool {tool}"
    faults = (_message_fault(message) for message in body.get("messages") or ())
    return next(filter(None, faults), None)


def _message_fault(message: Any) -> str | None:
    role, content = message.get("role"), message.get("content", "")
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        return f"invalid message of the role {role!r}"
    if role == "tool" and not message.get("tool_name"):
        return "a result without a tool_name"
    for call in message.get("tool_calls") or ():
        if not isinstance(call["function"]["arguments"], dict):
            return (
                "json: cannot unmarshal string into Go struct field "
                ".messages.tool_calls.function.arguments of type api.ToolCallFunctionArguments"
            )
    try:
        for image in message.get("images") or ():
            base64.b64decode(image, validate=True)
    except ValueError:
        return "illegal base64 data"
    return None
