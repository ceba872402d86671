"""The messages of a request to Mistral: OpenAI's, under rules of its own for ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.values.message import Message
from toolcrib.wire.history import IdRule, SentCall
from toolcrib.wire.openai_chat.history import ChatHistory


class MistralHistory(ChatHistory):
    """https://docs.mistral.ai/api/#tag/chat, `messages`.

    Ids are nine letters and digits, whoever made them. An assistant's message that says and calls
    nothing would be refused: it is left out. One with thinking goes back as the chunks that came.
    """

    ids = IdRule("A-Za-z0-9", 9, exact=True)
    given_ids = ids

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        chunks = self.state(message)
        if not (message.content or calls or chunks):
            return []
        forms = super().assistant(message, calls)
        if not isinstance(chunks, list) or not chunks:
            return forms
        content = _saying(chunks, message.content)
        return [form | {"content": content} for form in forms]


def _saying(chunks: list[Any], text: str) -> list[Any]:
    """The chunks, with that text if theirs is another: calls may have been read out of it."""
    said = [chunk for chunk in chunks if isinstance(chunk, dict) and chunk.get("type") == "text"]
    if "".join(str(chunk.get("text")) for chunk in said) == text:
        return chunks
    rest = [chunk for chunk in chunks if chunk not in said]
    return [*rest, {"type": "text", "text": text}] if text else rest
