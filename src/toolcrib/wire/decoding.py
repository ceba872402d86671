"""Decode bytes into a `Reply`, complete or streamed, for any wire. Wires differ only in the meaning
of their JSON.

A wire provides a `Builder`, which takes complete bodies and events, and a way to split a stream
into events. If there is any sign that a reply was cut, none of its calls may run. The builder
decides that, and the decoder tells it whether the stream came to its end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import orjson

from toolcrib.errors import ClientError, WireError
from toolcrib.values.call import PayloadRef
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Offer, Piece, ReasoningPart, Reply, TextPart
from toolcrib.values.typed import check_type
from toolcrib.wire.base import MAX_BYTES, MAX_STREAM_BYTES, Decoder, MakeDecoder, Wire
from toolcrib.wire.calls import Ending
from toolcrib.wire.failure import reported_error, safe_text
from toolcrib.wire.framing import Event, EventStream
from toolcrib.wire.json_text import check_keys, has_repeated_keys, mended, parsed

MAX_KEPT = 256 * 1024
"""The limit on what `Reply.events` keeps of a stream, in bytes."""

_DONE_MARK = b"[DONE]"
_EMPTY_DATA = (b"", b"null")
_KEEP_ALIVE = (b"ping", b"heartbeat", b"keepalive", b"keep-alive")
"""Events that only keep a connection open, with or without a text."""
_BLANKS = b"\xef\xbb\xbf \t\r\n"
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_LARGE_MEMBERS = frozenset(
    ("choices", "candidates", "content", "output", "message", "response", "delta")
)


Parts: TypeAlias = list[Piece]


def show_text(text: str, texts: list[str], parts: Parts) -> None:
    """Add a piece of the answer's text to the text so far, and to what can be shown."""
    previous = next(filter(None, reversed(texts)), "")
    texts.append(text)
    show_piece(previous, text, parts)


def show_piece(previous: str, text: str, parts: Parts) -> None:
    """Add a piece of text to what can be shown; `previous` is the piece before it.

    A server may cut a text between the halves of a surrogate pair. The first half is shown with the
    second one.
    """
    if not (text.isascii() and previous.isascii()):
        text = _half_at_end(previous) + text
        text = mended(text.removesuffix(_half_at_end(text)))
    if text:
        parts.append(TextPart(text))


def _half_at_end(text: str) -> str:
    last = text[-1:]
    return last if "\ud800" <= last <= "\udbff" else ""


def show_reasoning(text: object, parts: Parts) -> None:
    """Add reasoning that the model discloses, if it is text. It has no effect on the reply."""
    if isinstance(text, str) and text:
        parts.append(ReasoningPart(mended(text)))


def token_count(usage: Mapping[str, Any], *keys: str) -> int:
    """Return the sum of the counts under these keys; missing or invalid counts are 0."""
    counts = (usage.get(key) for key in keys)
    return sum(n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n > 0)


def cached_tokens(usage: Mapping[str, Any], details: str) -> int:
    """Return the input tokens from the provider's cache, as OpenAI counts them under `details`."""
    counts = usage.get(details)
    return token_count(counts, "cached_tokens") if isinstance(counts, Mapping) else 0


class Builder(Protocol):
    """The reply under construction. Every method may raise ClientError, which ends the reply."""

    ending: Ending

    @property
    def is_recognized(self) -> bool:
        """Whether anything was there that only this wire sends."""

    @property
    def is_over(self) -> bool:
        """Whether the provider has said, in its own way, that no event follows."""

    def body(self, body: JsonObject, data: bytes) -> None:
        """Take a complete body; `data` is its bytes."""

    def event(self, event: JsonObject, data: bytes, name: bytes, parts: Parts) -> None:
        """Take one event of a stream, and add what can be shown of it to `parts`."""

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete."""


@runtime_checkable
class QuickBuilder(Builder, Protocol):
    """A builder that can read most events of its wire from their bytes, which takes half the time.

    A subclass that reads events differently must override `fast`, too, because `event` only gets
    the rest.
    """

    def fast(self, data: bytes, parts: Parts) -> bool:
        """Take an event by the fast path. Return False if it did nothing and `event` has to be called.

        It is used once a chunk contained more than its choices, such as its id.
        """


class MakeBuilder(Protocol):
    def __call__(self, wire: Wire, /, *, offer: Offer, ids: str) -> Builder: ...


class Frames(Protocol):
    """Splits a stream into events; `foreign_lines` counts lines that belong to none."""

    foreign_lines: int

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> Event | None: ...


def decoding_by(
    build: MakeBuilder, frames: Callable[[], Frames] = EventStream, *, bodies: bool = True
) -> MakeDecoder:
    """Return the decoder of a wire, made from the wire's own parts.

    Without `bodies`, a reply that is not streamed is a stream of one event.
    """

    def make_decoder(wire: Wire, *, streaming: bool, offer: Offer, ids: str) -> Decoder:
        builder = build(wire, offer=offer, ids=ids)
        if not bodies:
            return StreamDecoder(builder, frames())
        return EitherDecoder(builder, frames) if streaming else WholeDecoder(builder)

    return make_decoder


class WholeDecoder(msgspec.Struct, eq=False):
    """Decodes one JSON body."""

    builder: Builder
    done: bool = False
    _pieces: list[bytes] = []
    _size: int = 0

    def feed(self, data: bytes) -> Parts:
        self._size += len(data)
        self.done = self._size > MAX_BYTES
        if not self.done:
            self._pieces.append(data)
        return []

    def finish(self, *, clean: bool = True) -> Reply:
        if self.done:
            raise WireError(f"the reply is larger than {MAX_BYTES} bytes")
        body = b"".join(self._pieces).lstrip(_BLANKS)
        if not body:
            raise WireError("the reply is empty")
        builder = self.builder
        builder.ending.payload = PayloadRef(hashlib.sha256(body).hexdigest(), len(body))
        if body.startswith(b"["):
            return self._list(body)
        payload = _parsed(body, builder.ending)
        if payload.get("error"):
            raise reported_error(payload["error"])
        builder.body(payload, body)
        return builder.finish(ended=True, raw=payload)

    def _list(self, body: bytes) -> Reply:
        """Decode the events of a stream as one JSON array, which Gemini sends without `alt=sse`."""
        chunks = []
        for data in _items(body):
            chunk = _parsed(data, self.builder.ending)
            if chunk.get("error"):
                raise reported_error(chunk["error"])
            self.builder.event(chunk, data, b"", [])
            chunks.append(chunk)
        if not self.builder.is_recognized:
            raise _no_object(body)
        return self.builder.finish(ended=False, raw=chunks)


class _EventRecord:
    """The data of the events that a reply was made of: a digest of all, and the first of them."""

    __slots__ = ("_digest", "_first_events", "_size")

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0
        self._first_events: list[bytes] = []

    def add(self, events: list[bytes]) -> None:
        self._digest.update(b"".join(data + b"\n" for data in events))
        if self._size > MAX_KEPT:
            self._size += sum(map(len, events)) + len(events)
            return
        for data in events:
            self._size += len(data) + 1
            if self._size <= MAX_KEPT:
                self._first_events.append(data)

    def texts(self) -> tuple[str, ...]:
        return tuple(data.decode("utf-8", "replace") for data in self._first_events)

    def reference(self) -> PayloadRef:
        return PayloadRef(self._digest.hexdigest(), self._size)


def _has_content(event: Event) -> bool:
    """Return whether an event contains anything but a keep-alive or a repeated end mark."""
    data = event.data.strip()
    return event.name not in _KEEP_ALIVE and data.startswith(b"{") and b'"ping"' not in data[:40]


class StreamDecoder:
    """Decodes events, each a JSON object, until `[DONE]`, the wire's own end or the body's."""

    def __init__(self, builder: Builder, frames: Frames) -> None:
        self._builder = builder
        self._take_fast = builder.fast if isinstance(builder, QuickBuilder) else None
        self._frames = frames
        self._failure: ClientError | None = None
        self._ended = self._has_more = False
        self._foreign_count = self._size = 0
        self._record = _EventRecord()
        self._first_chunk: dict[str, Any] = {}
        self._has_event = False

    @property
    def done(self) -> bool:
        return self._ended or self._failure is not None

    def feed(self, data: bytes) -> Parts:
        parts: Parts = []
        if self.done:
            self._check_rest(data)
            return parts
        try:
            self._size += len(data)
            if self._size > MAX_STREAM_BYTES:
                raise WireError(f"the stream is larger than {MAX_STREAM_BYTES} bytes")
            taken_data = []
            for event in self._frames.feed(data):
                if self._ended:
                    self._has_more = self._has_more or _has_content(event)
                    continue
                taken_data.append(event.data)
                self._foreign_count = event.foreign_lines
                self._take_event(event, parts)
            self._record.add(taken_data)
        except ClientError as failure:
            self._failure = failure
        return parts

    def _check_rest(self, data: bytes) -> None:
        """Note whether something follows the end, without decoding it."""
        if self._failure is None and not self._has_more:
            try:
                self._has_more = any(map(_has_content, self._frames.feed(data)))
            except ClientError:
                self._has_more = True

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply; `clean` says whether the transport confirmed the end of the body."""
        ending = self._builder.ending
        if not self.done:
            self._take_last_event()
            ending.torn = ending.torn or not clean
            self._foreign_count = self._frames.foreign_lines
        # Text between events is from somebody else, such as a gateway's error, or the remains of an
        # event.
        ending.torn = ending.torn or self._foreign_count > 0
        if self._failure is not None:
            raise self._failure
        if not self._builder.is_recognized and (self._has_event or self._frames.foreign_lines):
            raise WireError(
                "the reply is neither JSON nor an event stream in the format of this wire"
            )
        ending.events, ending.payload = self._record.texts(), self._record.reference()
        if self._has_more:
            ending.notes.append("after_end")
        return self._builder.finish(ended=self._ended, raw=self._first_chunk or None)

    def _take_last_event(self) -> None:
        """Take the bytes after the last blank line: a last event, or the beginning of a cut one."""
        event = self._frames.close()
        if event is None:
            return
        self._record.add([event.data])
        try:
            self._take_event(event, [])
        except WireError:
            self._builder.ending.torn = True
        except ClientError as failure:
            self._failure = failure

    def _take_event(self, event: Event, parts: Parts) -> None:
        data = event.data
        if (
            self._take_fast
            and self._first_chunk
            and not event.name
            and self._take_fast(data, parts)
        ):
            return
        if not data.startswith(b"{"):
            data = data.strip()
            if data in _EMPTY_DATA or data.startswith(b":") or event.name in _KEEP_ALIVE:
                return
            if data.strip(b'"') == _DONE_MARK:
                self._ended = True
                return
        try:
            chunk = _parsed(data, self._builder.ending)
        except WireError:
            if b"\n" not in data:
                raise
            self._take_lines_as_events(event.name, data, parts)
            return
        self._has_event = True
        if not self._first_chunk:
            self._first_chunk = {
                key: value for key, value in chunk.items() if key not in _LARGE_MEMBERS
            }
        if chunk.get("error") or event.name == b"error":
            raise reported_error(chunk.get("error") or chunk)
        self._builder.event(chunk, data, event.name, parts)
        self._ended = self._ended or self._builder.is_over

    def _take_lines_as_events(self, name: bytes, data: bytes, parts: Parts) -> None:
        """Take several values in one event, from servers that put no blank line between them."""
        for line in data.split(b"\n"):
            event = Event(name, line)
            if self._ended:
                self._has_more = self._has_more or _has_content(event)
            else:
                self._take_event(event, parts)


class EitherDecoder:
    """Decodes the response to a streaming request. Its first byte tells whether it is a stream or
    one JSON body."""

    def __init__(self, builder: Builder, frames: Callable[[], Frames]) -> None:
        self._builder = builder
        self._frames = frames
        self._decoder: Decoder | None = None

    @property
    def done(self) -> bool:
        return self._decoder is not None and self._decoder.done

    def feed(self, data: bytes) -> Parts:
        if self._decoder is None:
            check_type("data", data, (bytes, bytearray), "bytes, as they came")
            data = data.lstrip(_BLANKS)
            if not data:
                return []
            is_body = data.startswith((b"{", b"[", b"<"))
            self._decoder = WholeDecoder(self._builder) if is_body else self._stream()
        return self._decoder.feed(data)

    def finish(self, *, clean: bool = True) -> Reply:
        return (self._decoder or self._stream()).finish(clean=clean)

    def _stream(self) -> Decoder:
        return StreamDecoder(self._builder, self._frames())


def _parsed(data: bytes, ending: Ending) -> dict[str, Any]:
    """Parse one JSON object; a list of one (Gemini's errors) counts as its item.

    `ending` notes a key that is there twice.
    """
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        payload = parsed(data)
    if isinstance(payload, list) and len(payload) == 1:
        # keeps repeated keys, as nothing is cut out of these bytes; None if nested too deeply
        payload = (parsed(data) or payload)[0]
    if not isinstance(payload, dict):
        raise _no_object(data)
    try:
        check_keys(payload, data)
    except (ValueError, TypeError):
        if has_repeated_keys(parsed(data)):
            ending.take_ambiguity()
    return payload


def _items(data: bytes) -> list[bytes]:
    """Return the items of a JSON array, each as its bytes. Raises WireError if it is not one."""
    try:
        return [bytes(item) for item in _ARRAY.decode(data.lstrip(_BLANKS))]
    except (ValueError, RecursionError):
        items = parsed(data.lstrip(_BLANKS))
        if not isinstance(items, list):
            raise _no_object(data) from None
        return [json.dumps(item).encode() for item in items]


def _no_object(data: bytes) -> WireError:
    excerpt = safe_text(data[:2000].decode("utf-8", "replace"), 200)
    return WireError(f"the provider sent something that is not a JSON object: {excerpt}")
