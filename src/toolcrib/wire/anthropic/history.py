"""The messages of an Anthropic request: content blocks, and all results of a turn in one message.

What says nothing is left out: Anthropic refuses a message, and a text, without a printing character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.values.message import Image, Message
from toolcrib.wire.anthropic.blocks import replayed
from toolcrib.wire.history import History, IdRule, SentCall, SentResult


class AnthropicHistory(History):
    """https://platform.claude.com/docs/en/api/messages/create, `messages`.

    Several messages of one role in a row are one turn to Anthropic.
    """

    ids = IdRule("A-Za-z0-9_-", 64)

    def system(self, message: Message) -> Sequence[Any]:
        if message.content.strip():
            self.instructions.append(message.content)
        return []

    def user(self, message: Message) -> Sequence[Any]:
        if not message.images:
            return _message("user", message.content if message.content.strip() else "")
        return _message("user", [*map(_image, message.images), *_text(message.content)])

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        if not calls and not state:
            return _message("assistant", message.content if message.content.strip() else "")
        return _message("assistant", replayed(state or (), message.content, calls))

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return _message("user", [_result(result) for result in results])


def _message(role: str, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content}] if content else []


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _result(result: SentResult) -> dict[str, Any]:
    """An error without a text is refused, any other result may go without."""
    form: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.id}
    content = result.message.content
    if content.strip():
        form["content"] = content
    if result.message.is_error:
        form |= {"content": form.get("content", "error"), "is_error": True}
    return form


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "url", "url": image.url}
    head, _, data = image.url.partition(";base64,")
    if image.data:
        source = {"type": "base64", "media_type": image.media_type, "data": image.data}
    elif head.startswith("data:") and data:  # of addresses, Anthropic takes only https
        media_type = head.removeprefix("data:").partition(";")[0]
        source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}
