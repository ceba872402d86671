"""Which wire a body is of, told from what only that wire says. Nothing is decoded.

Servers that borrow a format are of it: a chat completion is `openai-chat`, Mistral's too, which is read
the same way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from toolcrib.errors import WireError
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.failure import safe_text
from toolcrib.wire.frames import FrameStream
from toolcrib.wire.json_text import parsed
from toolcrib.wire.lines import LineStream
from toolcrib.wire.sse import EventStream
from toolcrib.wire.table import WIRES

_FRAME = b"\0"  # no text begins so, and every frame of AWS below 16 MiB does
_STEP = 64 * 1024
_BLANK = b"\xef\xbb\xbf \t\r\n"

_ANTHROPIC = frozenset(
    (
        *("message", "message_start", "message_delta", "message_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    )
)
_COHERE = frozenset(
    (
        *("message-start", "message-end", "content-start", "content-delta", "content-end"),
        *("tool-plan-delta", "tool-call-start", "tool-call-delta", "tool-call-end"),
        *("citation-start", "citation-end"),
    )
)
_GEMINI = frozenset(("candidates", "promptFeedback", "usageMetadata", "modelVersion"))


@names_wrong_types
def detect(body: bytes, content_type: str = "") -> str:
    """The name of the wire of a response body: whole JSON, server-sent events, lines or AWS frames.

    `content_type` decides where the content does not. An error object that has OpenAI's form, which
    every wire reads alike, is `openai-chat`. Raises WireError for a body that is of no wire, or may be
    of several; it names them.
    """
    found = _found(body) or (["ollama"] if "x-ndjson" in content_type else [])
    if not found:
        said = safe_text(body[:2000].decode("utf-8", "replace"), 80)
        raise WireError(
            f"the body is of no known wire ({', '.join(WIRES)}): {said or 'it is empty'}"
        )
    if len(found) > 1:
        raise WireError(f"the body may be of several wires, {' or '.join(found)}: say which")
    (wire,) = found
    if wire not in WIRES:
        raise WireError(f"the body is of {wire}, which is no known wire ({', '.join(WIRES)})")
    return wire


def _found(body: bytes) -> list[str]:
    """What the first value says that says anything."""
    if body.startswith(_FRAME):
        return _of_frames(body)
    return next(filter(None, map(_of_value, _values(body))), [])


def _of_frames(body: bytes) -> list[str]:
    """Frames say of what kind their events are, in their heads. Raises WireError if they are none."""
    frames = FrameStream()
    names = {event.name for event in frames.feed(body[:_STEP])}
    frames.feed(b"")
    return ["bedrock-invoke" if b"chunk" in names else "bedrock-converse"]


def _values(body: bytes) -> Iterator[Any]:
    """The JSON values in a body, as far as they are asked for."""
    bare = body.lstrip(_BLANK)
    frames: EventStream | LineStream = EventStream()
    if bare.startswith((b"{", b"[")):
        value = _value(bare)
        if value is not None:
            yield value
            return
        frames = LineStream()
    for at in range(0, len(body), _STEP):
        for event in frames.feed(body[at : at + _STEP]):
            yield _value(event.data)
    if (last := frames.close()) is not None:
        yield _value(last.data)


def _value(data: bytes) -> Any:
    """The value, that of an array being its first item; None for what is no JSON."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = parsed(data)
    return value[0] if isinstance(value, list) and value else value


def _of_value(value: Any) -> list[str]:
    """The wires that have such a value; none if it says nothing of that."""
    if not isinstance(value, dict):
        return []
    return [wire for wire, has in _MARKS if has(value)] or _of_error(value)


def _of_error(value: JsonObject) -> list[str]:
    error = value.get("error")
    if isinstance(error, dict):
        if value.get("type") == "error":
            return ["openai-responses" if "sequence_number" in value else "anthropic"]
        return [
            "gemini" if isinstance(error.get("code"), int) and "status" in error else "openai-chat"
        ]
    if isinstance(error, str):
        return ["openai-chat"]
    if isinstance(value.get("message"), str):
        if value.get("object") == "error":
            return ["mistral"]
        if value.get("type") == "error":
            return ["openai-responses"]
        return ["cohere"] if "id" in value else ["bedrock-converse", "cohere"]
    return []


def _type(value: JsonObject) -> str:
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def _is_chat(value: JsonObject) -> bool:
    return isinstance(value.get("choices"), list)


def _is_responses(value: JsonObject) -> bool:
    return value.get("object") == "response" or _type(value).startswith("response.")


def _is_anthropic(value: JsonObject) -> bool:
    return _type(value) in _ANTHROPIC


def _is_gemini(value: JsonObject) -> bool:
    return not _GEMINI.isdisjoint(value)


def _is_ollama(value: JsonObject) -> bool:
    return isinstance(value.get("message"), dict) and isinstance(value.get("done"), bool)


def _is_cohere(value: JsonObject) -> bool:
    whole = isinstance(value.get("message"), dict) and "finish_reason" in value
    return whole or _type(value) in _COHERE


def _is_converse(value: JsonObject) -> bool:
    output = value.get("output")
    return isinstance(output, dict) and "message" in output


_MARKS: tuple[tuple[str, Callable[[JsonObject], bool]], ...] = (
    ("openai-chat", _is_chat),
    ("openai-responses", _is_responses),
    ("anthropic", _is_anthropic),
    ("gemini", _is_gemini),
    ("ollama", _is_ollama),
    ("cohere", _is_cohere),
    ("bedrock-converse", _is_converse),
)
