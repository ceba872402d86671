"""A real HTTP server on 127.0.0.1 that speaks Mistral's chat and says what a test wrote down."""

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
    ending,
    fault_of,
    serving,
)
from toolcrib.values.message import Reply

_ID = re.compile(r"[A-Za-z0-9]{9}")
_PIECE = 5
_CHOICES = ("auto", "none", "any", "required")


class MistralServer(OpenAIServer):
    """As `OpenAIServer`, with Mistral's rules for ids and choices; streamed calls come whole."""

    def fault(self, body: Any) -> str | None:
        return fault_of(body) or _fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="tool_calls", stop="stop", cut="length")
        calls = [
            {
                "id": f"call{number:03}{at:02}",
                "type": "function",
                "function": {"name": made.name, "arguments": made.arguments},
                "index": at,
            }
            for at, made in enumerate(said.calls)
        ]
        body: dict[str, Any] = {"id": f"{number:032}", "created": 0, "model": "scripted"}
        if stream:
            return RawTurn(b"".join(_events(said.text, calls, reason, body)))
        message = {"role": "assistant", "content": said.text, "tool_calls": calls or None}
        body |= {"object": "chat.completion", "usage": _USAGE}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": reason}]
        return RawTurn(orjson.dumps(body), content_type="application/json")


_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _events(text: str, calls: list[Any], reason: str, body: dict[str, Any]) -> Iterable[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[at : at + _PIECE]} for at in range(0, len(text), _PIECE)]
    last = {"tool_calls": calls} if calls else {"content": ""}
    for delta in (*deltas, last):
        choice = {"index": 0, "delta": delta, "finish_reason": reason if delta is last else None}
        chunk = body | {"object": "chat.completion.chunk", "choices": [choice]}
        if delta is last:
            chunk["usage"] = _USAGE
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def mistral_server(turns: Iterable[ServerTurn]) -> AsyncIterator[MistralServer]:
    """`async with mistral_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(MistralServer(turns)) as server:
        yield server


def _fault_of(body: dict[str, Any]) -> str | None:
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, str) and choice not in _CHOICES:
        return f"Input should be {', '.join(_CHOICES)}: {choice!r}"
    if isinstance(choice, dict) and choice.keys() != {"type", "function"}:
        return "tool_choice: Extra inputs are not permitted"
    if "stream_options" in body:
        return "stream_options: Extra inputs are not permitted"
    for message in body["messages"]:
        calls = message.get("tool_calls") or ()
        if message["role"] == "assistant" and not (message.get("content") or calls):
            return "Assistant message must have either content or tool_calls, but not none."
        ids = [call["id"] for call in calls] + [message.get("tool_call_id", "000000000")]
        wrong = next((id_ for id_ in ids if not _ID.fullmatch(id_)), None)
        if wrong is not None:
            return f"Tool call id was {wrong} but must be a-z, A-Z, 0-9, with a length of 9."
    return None
