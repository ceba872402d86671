"""A real HTTP server on 127.0.0.1 that speaks Anthropic's Messages and says what a test wrote down."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson

from toolcrib.testing.legal_anthropic import fault_of
from toolcrib.testing.loopback import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    ServerTurn,
    ending,
    serving,
)
from toolcrib.testing.script import Said, Spoken
from toolcrib.values.message import Reply

_PIECE = 5


class AnthropicServer(OpenAIServer):
    """As `OpenAIServer`, in Anthropic's words; requests must say `anthropic-version`."""

    base = ""
    path = "/v1/messages"

    def fault(self, body: Any) -> str | None:
        if "anthropic-version" not in self.headers[-1]:
            return "anthropic-version: header is required"
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="tool_use", stop="end_turn", cut="max_tokens")
        start: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 1},
        }
        if stream:
            return RawTurn(b"".join(_events(said, start, number, reason)))
        content = [
            *([{"type": "text", "text": said.text}] if said.text else []),
            *(
                _begun(number, at, made.name) | {"input": _object(made.arguments)}
                for at, made in enumerate(said.calls)
            ),
        ]
        body = start | {"content": content, "stop_reason": reason, "usage": _USAGE}
        return RawTurn(orjson.dumps(body), content_type="application/json")


@contextlib.asynccontextmanager
async def anthropic_server(turns: Iterable[ServerTurn]) -> AsyncIterator[AnthropicServer]:
    """`async with anthropic_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(AnthropicServer(turns)) as server:
        yield server


_USAGE = {"input_tokens": 11, "output_tokens": 7}


def _events(said: Spoken, start: Any, number: int, reason: str) -> Iterable[bytes]:
    yield _event("message_start", message=start)
    yield _event("ping")
    blocks: list[tuple[dict[str, Any], str, str, str]] = [
        (_begun(number, at, made.name), "input_json_delta", "partial_json", made.arguments)
        for at, made in enumerate(said.calls)
    ]
    if said.text:
        blocks.insert(0, ({"type": "text", "text": ""}, "text_delta", "text", said.text))
    for index, (begun, kind, member, text) in enumerate(blocks):
        yield _event("content_block_start", index=index, content_block=begun)
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        for piece in pieces if kind == "text_delta" else ["", *pieces]:
            yield _event("content_block_delta", index=index, delta={"type": kind, member: piece})
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": 7})
    yield _event("message_stop")


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind} | members) + b"\n\n"


def _begun(number: int, at: int, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": {}}


def _object(arguments: str) -> Any:
    """The input in a whole reply: an empty one for what is no JSON, such as half of a call."""
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(arguments)
