"""The input of a response: messages, calls and results are items of one list, on one level.

What the model's own items say beyond text and calls (reasoning, phases, the provider's own tools)
goes back as it came, as long as the message still says what those items said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.values.message import Image, Message
from toolcrib.wire.history import History, IdRule, SentCall, SentResult
from toolcrib.wire.json_text import mended
from toolcrib.wire.names import NameRule
from toolcrib.wire.openai_responses.kept import CALLS, message_text


class ResponsesHistory(History):
    """https://platform.openai.com/docs/api-reference/responses/create, `input`.

    OpenAI refuses a `call_id` longer than 64: `string_above_max_length`. System messages keep their
    places, which `instructions` would not give them; a model that knows only the `developer` role
    gets them as that. The type of a message may be left out, but llama.cpp knows an assistant's by it.
    """

    ids = IdRule(r"\x21-\x7e", 64)

    def __init__(self, wire: str, rule: NameRule, names: Mapping[str, str]) -> None:
        super().__init__(wire, rule, names)
        self._custom: set[str] = set()

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        return [{"role": "user", "content": _content(message)}]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        kept = self._kept(message, calls)
        if kept is not None:
            return kept
        items: list[dict[str, Any]] = [_call(call) for call in calls]
        if message.content or not calls:
            items.insert(0, {"type": "message", "role": "assistant", "content": message.content})
        return items

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """There is no error flag: the text says it."""
        return [
            {
                "type": f"{'custom_tool' if result.id in self._custom else 'function'}_call_output",
                "call_id": result.id,
                "output": result.message.content,
            }
            for result in results
        ]

    def _kept(self, message: Message, calls: Sequence[SentCall]) -> list[Any] | None:
        """The provider's own items, with the calls as they are sent; None if they are of no use.

        A message whose text or calls were changed since is what its author made of it: it goes out
        without them.
        """
        items = self.state(message)
        if not isinstance(items, list) or mended(message_text(items)) != message.content:
            return None
        kept, left, custom = [], list(reversed(calls)), set()
        for item in items:
            if not isinstance(item, dict) or str(item.get("type")) not in CALLS:
                kept.append(item)
            elif left and (item.get("call_id") or item.get("id")) == left[-1].call.provider_id:
                call = left.pop()
                kept.append(item | _told(item, call))
                custom |= {call.id} if "input" in item else set()
            elif item["type"] == "function_call":
                return None
            else:  # the provider's own tool, as xAI's searches
                kept.append(item)
        if left:
            return None
        self._custom |= custom
        return kept


def _told(item: dict[str, Any], call: SentCall) -> dict[str, Any]:
    """What is ours to say of a call: its id and name, and arguments that are an object."""
    form = _call(call)
    return {key: form[key] for key in ("call_id", "name", "arguments") if key in item}


def _call(call: SentCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Text alone, or parts where there are images."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = [_image(image) for image in message.images]
    return [*parts, {"type": "input_text", "text": message.content}] if message.content else parts


def _image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image.as_url(), "detail": "auto"}
