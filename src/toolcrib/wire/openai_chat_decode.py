"""Replies of OpenAI Chat Completions, whole and streamed: bytes in, one `Reply` out.

Trust the calls, not the reason: a reply has tool calls if it has tool calls. But a reply that was
cut, by whatever sign, has none that may run.
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.errors import ClientError, WireError
from toolcrib.values.message import ArgumentsPart, Reply, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.base import MAX_BYTES, MAX_STREAM_BYTES, Decoder, Wire
from toolcrib.wire.failure import reported_error, safe_text
from toolcrib.wire.json_text import parsed
from toolcrib.wire.openai_chat_reply import ReplyBuilder
from toolcrib.wire.sse import Event, EventStream

Parts = list[TextPart | ArgumentsPart]

_DONE = b"[DONE]"
_BLANK = b"\xef\xbb\xbf \t\r\n"


def make_decoder(wire: Wire, *, streaming: bool, offer: Offer, ids: str) -> Decoder:
    builder = ReplyBuilder(wire, offer=offer, ids=ids)
    return EitherDecoder(builder) if streaming else WholeDecoder(builder)


class WholeDecoder:
    """One JSON body."""

    def __init__(self, builder: ReplyBuilder) -> None:
        self._builder = builder
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def done(self) -> bool:
        return self._size > MAX_BYTES

    def feed(self, data: bytes) -> Parts:
        self._size += len(data)
        if not self.done:
            self._pieces.append(data)
        return []

    def finish(self) -> Reply:
        if self.done:
            raise WireError(f"the reply is larger than {MAX_BYTES} bytes")
        body = b"".join(self._pieces)
        if not body.strip(_BLANK):
            raise WireError("the reply is empty")
        payload = _parsed(body)
        if payload.get("error"):
            raise reported_error(payload["error"])
        self._builder.chunk(payload, body, whole=True, parts=[])
        if not self._builder.seen:
            raise WireError("the reply has no choices: this is not a chat completion")
        return self._builder.finish(ended=True, raw=payload)


class StreamDecoder:
    """Server-sent events, each a chunk; `[DONE]` or the end of the body ends them."""

    def __init__(self, builder: ReplyBuilder) -> None:
        self._builder = builder
        self._events = EventStream()
        self._failure: ClientError | None = None
        self._ended = False
        self._size = 0
        self._head: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        return self._ended or self._failure is not None

    def feed(self, data: bytes) -> Parts:
        parts: Parts = []
        if self.done:
            return parts
        try:
            self._size += len(data)
            if self._size > MAX_STREAM_BYTES:
                raise WireError(f"the stream is larger than {MAX_STREAM_BYTES} bytes")
            for event in self._events.feed(data):
                self._take(event, parts)
                if self._ended:
                    break
        except ClientError as failure:
            self._failure = failure
        return parts

    def finish(self) -> Reply:
        if not self.done:
            self._take_rest()
        if self._failure is not None:
            raise self._failure
        if not self._builder.known and (self._head or self._events.foreign):
            raise WireError("the reply is neither JSON nor a stream of chat completion chunks")
        return self._builder.finish(ended=self._ended, raw=self._head or None)

    def _take_rest(self) -> None:
        """The bytes after the last blank line: a last event, or the torn beginning of one."""
        rest = self._events.close()
        if rest is None:
            return
        try:
            self._take(rest, [])
        except WireError:
            self._builder.torn = True
        except ClientError as failure:
            self._failure = failure

    def _take(self, event: Event, parts: Parts) -> None:
        data = event.data
        if not data.startswith(b"{"):
            data = data.strip()
            if not data or data.startswith(b":"):
                return
            if data == _DONE:
                self._ended = True
                return
        try:
            chunk = _parsed(data)
        except WireError:
            if b"\n" not in data:
                raise
            for line in data.split(b"\n"):
                self._take(Event(event.name, line), parts)
            return
        if not self._head:
            self._head = {key: value for key, value in chunk.items() if key != "choices"}
        if chunk.get("error") or event.name == b"error":
            raise reported_error(chunk.get("error") or chunk)
        self._builder.chunk(chunk, data, whole=False, parts=parts)


class EitherDecoder:
    """A stream was asked for; its first byte tells whether it is one, or one JSON body."""

    def __init__(self, builder: ReplyBuilder) -> None:
        self._builder = builder
        self._inner: Decoder | None = None

    @property
    def done(self) -> bool:
        return self._inner is not None and self._inner.done

    def feed(self, data: bytes) -> Parts:
        if self._inner is None:
            data = data.lstrip(_BLANK)
            if not data:
                return []
            decoder = WholeDecoder if data.startswith((b"{", b"[", b"<")) else StreamDecoder
            self._inner = decoder(self._builder)
        return self._inner.feed(data)

    def finish(self) -> Reply:
        return (self._inner or StreamDecoder(self._builder)).finish()


def _parsed(data: bytes) -> dict[str, Any]:
    """One JSON object; a list of one (Gemini's errors) counts as that one."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        payload = parsed(data)
    if isinstance(payload, list) and len(payload) == 1:
        payload = payload[0]
    if not isinstance(payload, dict):
        said = safe_text(data[:2000].decode("utf-8", "replace"), 200)
        raise WireError(f"the provider sent something that is no JSON object: {said}")
    return payload
