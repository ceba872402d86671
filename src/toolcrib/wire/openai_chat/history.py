"""The messages of a chat completion request: calls beside the text, each result its own message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.values.message import Image, Message
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult
from toolcrib.wire.openai_chat.kept import of_call, of_message


class ChatHistory(History):
    """https://platform.openai.com/docs/api-reference/chat/create, `messages`.

    OpenAI refuses ids of its own making that are longer than 40: `string_above_max_length`.
    """

    ids = IdRule(r"\x21-\x7e", 40)
    given_ids = ANY_ID  # signatures ride in some

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        return [{"role": "user", "content": content(message)}]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        form: dict[str, Any] = {"role": "assistant", "content": message.content}
        if calls:
            form["content"] = message.content or None
            form["tool_calls"] = [call_form(c) | of_call(state, c.call.id) for c in calls]
        return [form | of_message(state)]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return [
            {"role": "tool", "tool_call_id": result.id, "content": result.message.content}
            for result in results
        ]


def content(message: Message) -> str | list[dict[str, Any]]:
    """Text alone, or parts where there are images."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = [_image(image) for image in message.images]
    return [*parts, {"type": "text", "text": message.content}] if message.content else parts


def _image(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.as_url()}}


def call_form(call: SentCall) -> dict[str, Any]:
    """A call, its arguments as text."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
