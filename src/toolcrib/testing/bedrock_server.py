"""A real HTTP server on 127.0.0.1 that speaks Bedrock's Converse and says what a test wrote down."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import orjson

from toolcrib.testing.legal_bedrock import fault_of
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

if TYPE_CHECKING:
    from aiohttp import web

_PIECE = 5
_FRAMES = "application/vnd.amazon.eventstream"


class BedrockServer(OpenAIServer):
    """As `OpenAIServer`, in Bedrock's words and binary frames. It checks no signature."""

    base = ""
    path = "/model/{model}/{method:converse|converse-stream}"

    def streams(self, request: web.Request, body: Any) -> bool:
        del body
        return str(request.match_info["method"]) == "converse-stream"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="tool_use", stop="end_turn", cut="max_tokens")
        uses = [
            {"toolUseId": f"tooluse_{number}_{at}", "name": made.name}
            for at, made in enumerate(said.calls)
        ]
        if stream:
            return RawTurn(b"".join(_events(said, uses, reason)), content_type=_FRAMES)
        content: list[dict[str, Any]] = [{"text": said.text}] if said.text else []
        content += [
            {"toolUse": use | {"input": _object(made.arguments)}}
            for use, made in zip(uses, said.calls, strict=True)
        ]
        message = {"role": "assistant", "content": content}
        body = {"output": {"message": message}, "stopReason": reason, **_SPENT}
        return RawTurn(orjson.dumps(body), content_type="application/json")


@contextlib.asynccontextmanager
async def bedrock_server(turns: Iterable[ServerTurn]) -> AsyncIterator[BedrockServer]:
    """`async with bedrock_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(BedrockServer(turns)) as server:
        yield server


_SPENT = {
    "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
    "metrics": {"latencyMs": 1},
}


def frame(payload: Any, **headers: str) -> bytes:
    """One frame of an event stream; `event_type="metadata"` is the header `:event-type`.

    https://smithy.io/2.0/aws/amazon-eventstream.html
    """
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    said = {"message_type": "event", "content_type": "application/json"} | headers
    head = b"".join(map(_header, said, said.values()))
    prelude = struct.pack(">II", 16 + len(head) + len(data), len(head))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + data
    return whole + struct.pack(">I", zlib.crc32(whole))


def _header(name: str, value: str) -> bytes:
    name, data = f":{name.replace('_', '-')}", value.encode()
    return bytes([len(name)]) + name.encode() + struct.pack(">BH", 7, len(data)) + data


def _events(said: Spoken, uses: list[dict[str, str]], reason: str) -> Iterable[bytes]:
    """A text begins without an announcement; every event is padded with `p`."""
    yield frame({"role": "assistant", "p": "abc"}, event_type="messageStart")
    if said.text:
        for at in range(0, len(said.text), _PIECE):
            yield _delta(0, {"text": said.text[at : at + _PIECE]})
        yield frame({"contentBlockIndex": 0, "p": "ab"}, event_type="contentBlockStop")
    made_uses = zip(uses, said.calls, strict=True)
    for index, (use, made) in enumerate(made_uses, 1 if said.text else 0):
        start = {"contentBlockIndex": index, "start": {"toolUse": use}, "p": "abcd"}
        yield frame(start, event_type="contentBlockStart")
        for at in (None, *range(0, len(made.arguments), _PIECE)):
            piece = "" if at is None else made.arguments[at : at + _PIECE]
            yield _delta(index, {"toolUse": {"input": piece}})
        yield frame({"contentBlockIndex": index, "p": "a"}, event_type="contentBlockStop")
    yield frame({"stopReason": reason, "p": "abcde"}, event_type="messageStop")
    yield frame(_SPENT | {"p": "abcdef"}, event_type="metadata")


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    event = {"contentBlockIndex": index, "delta": delta, "p": "abcdefghij"}
    return frame(event, event_type="contentBlockDelta")


def _object(arguments: str) -> Any:
    """The input in a whole reply: an empty one for what is no JSON, such as half of a call."""
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(arguments)
