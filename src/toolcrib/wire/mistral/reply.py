"""A reply of Mistral's: a chat completion whose text may come as a list of chunks.

Chunks that are not text (thinking, references) are kept, in their order, for the next request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolcrib.values.json import JsonObject
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.openai_chat.reply import ChatReply


class MistralReply(ChatReply):
    """https://docs.mistral.ai/api/#tag/chat"""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        super().__init__(wire, offer=offer, ids=ids)
        self._chunks: list[Any] = []
        self._whole = False

    def body(self, body: JsonObject, data: bytes) -> None:
        self._whole = True
        super().body(body, data)

    def _add_text(self, content: Any, parts: Parts) -> None:
        if isinstance(content, str):
            self._chunks.append({"type": "text", "text": content})
        elif isinstance(content, list):
            self._chunks += [chunk for chunk in content if isinstance(chunk, dict)]
        super()._add_text(content, parts)

    def _state(self) -> list[Any] | None:
        """The chunks, unless all are text. Members that other servers have are refused here."""
        if all(chunk.get("type") == "text" for chunk in self._chunks):
            return None
        return self._chunks if self._whole else joined(self._chunks)


def joined(chunks: Iterable[Any]) -> list[Any]:
    """The pieces of a stream as the chunks that a whole reply would have had.

    A piece of text, or of thinking, goes on with the chunk before it if that is of its kind; thinking
    that is signed or closed is at its end.
    """
    made: list[Any] = []
    pieces: list[Any] = []
    for chunk in chunks:
        last = made[-1] if made else {}
        kind = chunk.get("type")
        goes_on = kind in ("text", "thinking") and last.get("type") == kind
        if not goes_on or last.get("signature") or last.get("closed"):
            _close(made, pieces)
            made.append(dict(chunk))
            pieces = []
        else:
            last |= chunk
        pieces.append(chunk.get(str(kind)))
    _close(made, pieces)
    return made


def _close(made: list[Any], pieces: list[Any]) -> None:
    """Give the last chunk what all its pieces say."""
    kind = made[-1].get("type") if made else None
    if kind == "text":
        made[-1]["text"] = "".join(piece for piece in pieces if isinstance(piece, str))
    elif kind == "thinking":
        lists = [piece for piece in pieces if isinstance(piece, list)]
        inner = joined(chunk for piece in lists for chunk in piece if isinstance(chunk, dict))
        made[-1]["thinking"] = inner
