"""A real HTTP server on 127.0.0.1 that speaks Gemini's wire and says what a test wrote down."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from toolcrib.testing.legal_gemini import fault_of
from toolcrib.testing.loopback import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    ServerTurn,
    halved,
    http_error,
    serving,
)
from toolcrib.testing.script import Said, ScriptedCall, in_one_line, spoken
from toolcrib.values.message import Reply

if TYPE_CHECKING:
    from aiohttp import web

_PIECE = 5
_END = b"\r\n\r\n"
_SIGNATURE = "c2lnbmVk"


class _Chunks(RawTurn, frozen=True):
    """Events of a stream, which are one JSON array for whoever does not ask for events."""

    def array(self) -> RawTurn:
        chunks = self.body.removeprefix(b"data: ").removesuffix(_END).split(_END + b"data: ")
        return RawTurn(b"[" + b",\n".join(chunks) + b"]", content_type="application/json")


class GeminiServer(OpenAIServer):
    """As `OpenAIServer`, in Gemini's words: calls have no ids, and the first of a turn is signed.

    A turn that is cut loses its last call. What a model wrote for arguments and is no JSON object ends
    the turn with MALFORMED_FUNCTION_CALL, and nothing of it is shown. Without `alt=sse` a stream is
    one JSON array.
    """

    base = "/v1beta"
    path = "/{model:.+}:{method:generateContent|streamGenerateContent}"

    def streams(self, request: web.Request, body: Any) -> bool:
        del body
        return str(request.match_info["method"]) == "streamGenerateContent"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def refusal(self, fault: str) -> RawTurn:
        error = {"code": 400, "message": fault, "status": "INVALID_ARGUMENT"}
        return msgspec.structs.replace(http_error(400), body=orjson.dumps({"error": error}))

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = spoken(turn.turn if isinstance(turn, CutTurn) else turn), "STOP"
        calls = said.calls
        if isinstance(turn, CutTurn):
            said, calls, reason = halved(said), calls[:-1], "MAX_TOKENS"
        parts = [_call(made, first=at == 0) for at, made in enumerate(calls)]
        if any(part is None for part in parts):
            return _sent([_chunk([], number, "MALFORMED_FUNCTION_CALL")], stream=stream)
        size = _PIECE if stream else len(said.text) or 1
        texts = [{"text": said.text[at : at + size]} for at in range(0, len(said.text), size)]
        if not stream:
            return _sent([_chunk([*texts, *parts], number, reason)], stream=False)
        chunks = [_chunk([part], number) for part in (*texts, *parts)]
        return _sent([*chunks, _chunk([{"text": ""}], number, reason)], stream=True)

    async def _send(
        self, request: web.Request, turn: RawTurn, dying: int | None = None
    ) -> web.StreamResponse:
        if isinstance(turn, _Chunks) and request.query.get("alt") != "sse":
            turn = turn.array()
        return await super()._send(request, turn, dying)


@contextlib.asynccontextmanager
async def gemini_server(turns: Iterable[ServerTurn]) -> AsyncIterator[GeminiServer]:
    """`async with gemini_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(GeminiServer(turns)) as server:
        yield server


_USAGE = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}


def _sent(chunks: list[Any], *, stream: bool) -> RawTurn:
    if not stream:
        return RawTurn(orjson.dumps(chunks[0]), content_type="application/json")
    return _Chunks(b"".join(b"data: " + orjson.dumps(chunk) + _END for chunk in chunks))


def _call(made: ScriptedCall, *, first: bool) -> dict[str, Any] | None:
    """The part, or None where the arguments are no object."""
    try:
        args = orjson.loads(made.arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(args, dict):
        return None
    call = {"name": made.name, "args": in_one_line(made.arguments)}
    return {"functionCall": call} | ({"thoughtSignature": _SIGNATURE} if first else {})


def _chunk(parts: list[Any], number: int, reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    if reason is not None:
        candidate["finishReason"] = reason
    body = {"candidates": [candidate], "usageMetadata": _USAGE, "modelVersion": "scripted"}
    return body | {"responseId": f"response{number}"}
