"""Mistral's chat: OpenAI's, with its own rules for ids and for text in chunks.

Facts: https://docs.mistral.ai/api/#tag/chat and the types of the `mistralai` package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from toolcrib.values.content import Image, Media, inline_data, kind_of
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Message, Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.content import in_blocks
from toolcrib.wire.decoding import Parts, decoding_by, show_reasoning
from toolcrib.wire.history import IdRule, SentCall, SentResult
from toolcrib.wire.openai_chat import OPENAI_CHAT, ChatHistory, text_part
from toolcrib.wire.openai_chat import OUTPUT as CHAT_OUTPUT
from toolcrib.wire.openai_chat_reply import ChatReply


class MistralHistory(ChatHistory):
    """Writes `messages`: https://docs.mistral.ai/api/#tag/chat

    Ids are nine letters and digits, whoever made them. An empty assistant's message would be
    refused, so it is left out. A message with thinking goes back as the chunks that came. Some
    models refuse a user's message after results, "Unexpected role 'user' after role 'tool'"
    (BerriAI/litellm#17761), and others accept it. So the later result of a background call, which
    is not a user's own message, is preceded by an assistant's that says nothing.
    """

    _after_results = False

    ids = IdRule("A-Za-z0-9", 9, exact=True)
    given_ids = ids

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """Write results. Those with content are chunks, as in `ToolMessage` of the `mistralai`
        package."""
        self._after_results = True
        return [self._sent(result) for result in results]

    def user(self, message: Message) -> Sequence[Any]:
        separator = [_SILENT] if self._after_results and message.from_tool else []
        self._after_results = False
        return [*separator, *super().user(message)]

    def _sent(self, result: SentResult) -> dict[str, Any]:
        message = result.message
        content: Any = message.content
        if message.parts:
            content = in_blocks(message, self.media, _chunk, text_part) or ""
        return {"role": "tool", "tool_call_id": result.id, "content": content}

    def attachment(self, part: Media, position: int) -> dict[str, Any] | None:
        """Return the chunk of an image, document or recording: mistralai's `ContentChunk`.

        https://docs.mistral.ai/capabilities/document_ai/document_qna, …/capabilities/audio
        """
        return _chunk(part, position)

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        chunks = self.state(message)
        if not (message.content or calls or chunks):
            return []
        self._after_results = False
        forms = super().assistant(message, calls)
        if not isinstance(chunks, list) or not chunks:
            return forms
        content = _with_text(chunks, message.content)
        return [form | {"content": content} for form in forms]


_SILENT = {"role": "assistant", "content": "…"}


def _chunk(part: Media, _position: int) -> dict[str, Any] | None:
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.as_url()}}
    if kind_of(part) == "file":
        return {"type": "document_url", "document_url": part.as_url()}
    data = inline_data(part) if kind_of(part) == "audio" else None
    return None if data is None else {"type": "input_audio", "input_audio": data}


def _with_text(chunks: list[Any], text: str) -> list[Any]:
    """Return the chunks with the given text, if theirs differs because calls were read from it."""
    text_chunks = [
        chunk for chunk in chunks if isinstance(chunk, dict) and chunk.get("type") == "text"
    ]
    if "".join(str(chunk.get("text")) for chunk in text_chunks) == text:
        return chunks
    other_chunks = [chunk for chunk in chunks if chunk not in text_chunks]
    return [*other_chunks, {"type": "text", "text": text}] if text else other_chunks


# A reply of Mistral's: a chat completion whose text may come as a list of chunks.
#
# Chunks that are not text (thinking, references) are kept, in order, for the next request.


class MistralReply(ChatReply):
    """Takes chunks of a chat completion: https://docs.mistral.ai/api/#tag/chat"""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        super().__init__(wire, offer=offer, ids=ids)
        self._chunks: list[Any] = []
        self._is_body = False

    def body(self, body: JsonObject, data: bytes) -> None:
        self._is_body = True
        super().body(body, data)

    def add_text(self, content: Any, parts: Parts) -> None:
        if isinstance(content, str):
            self._chunks.append({"type": "text", "text": content})
        elif isinstance(content, list):
            chunks = [chunk for chunk in content if isinstance(chunk, dict)]
            self._chunks += chunks
            for chunk in chunks:
                show_reasoning(_thought(chunk), parts)
        super().add_text(content, parts)

    def state(self) -> list[Any] | None:
        """Return the chunks, unless all are text. Mistral refuses the members of other servers."""
        if all(chunk.get("type") == "text" for chunk in self._chunks):
            return None
        return self._chunks if self._is_body else joined(self._chunks)


def _thought(chunk: dict[str, Any]) -> str:
    thoughts = chunk.get("thinking") if chunk.get("type") == "thinking" else None
    pieces = thoughts if isinstance(thoughts, list) else []
    texts = [piece.get("text") for piece in pieces if isinstance(piece, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def joined(chunks: Iterable[Any]) -> list[Any]:
    """Merge the pieces of a stream into the chunks that a complete reply would have had.

    A piece of text or thinking continues the preceding chunk if that is of the same kind, and is
    not thinking that is signed or closed.
    """
    merged: list[Any] = []
    pieces: list[Any] = []
    for chunk in chunks:
        last_chunk = merged[-1] if merged else {}
        kind = chunk.get("type")
        continues = kind in ("text", "thinking") and last_chunk.get("type") == kind
        if not continues or last_chunk.get("signature") or last_chunk.get("closed"):
            _close(merged, pieces)
            merged.append(dict(chunk))
            pieces = []
        else:
            last_chunk |= chunk
        pieces.append(chunk.get(str(kind)))
    _close(merged, pieces)
    return merged


def _close(merged: list[Any], pieces: list[Any]) -> None:
    """Give the last chunk the text of all its pieces."""
    kind = merged[-1].get("type") if merged else None
    if kind == "text":
        merged[-1]["text"] = "".join(piece for piece in pieces if isinstance(piece, str))
    elif kind == "thinking":
        lists = [piece for piece in pieces if isinstance(piece, list)]
        inner = joined(chunk for piece in lists for chunk in piece if isinstance(chunk, dict))
        merged[-1]["thinking"] = inner


# Mistral's wire: OpenAI's chat, with the replacements here.
#
# Facts: https://docs.mistral.ai/api/#tag/chat and the types of the `mistralai` package.


TOOLS = msgspec.structs.replace(OPENAI_CHAT.tools, name="mistral", long_description=None)

# Mistral does not say whether it can be combined with tools.
OUTPUT = msgspec.structs.replace(
    CHAT_OUTPUT, beside_tools=False, models=r"^(?!.*codestral-mamba)", servers=frozenset()
)


MISTRAL = msgspec.structs.replace(
    OPENAI_CHAT,
    name="mistral",
    tools=TOOLS,
    make_decoder=decoding_by(MistralReply),
    history=MistralHistory,
    required_choice="any",
    allowed_tools=False,
    stream_usage=False,
    state_per_server=False,
    output=OUTPUT,
    is_reply=None,  # nothing distinguishes them from chat completions
)
"""Usage comes with every stream, without asking."""
