"""The messages of an Ollama request: arguments are objects, a result names the tool that gave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from toolcrib.errors import RequestError
from toolcrib.values.message import Image, Message
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult

_OWN = frozenset(("role", "content", "tool_calls"))


class OllamaHistory(History):
    """https://docs.ollama.com/api/chat, `messages`.

    The server has no rule for ids. Results are told apart by their order and their tool's name; newer
    servers also pass on the ids, older ones ignore them. An error has no flag.
    """

    ids = IdRule(r"\x21-\x7e", 64)
    given_ids = ANY_ID

    def system(self, message: Message) -> Sequence[Any]:
        return [{"role": "system", "content": message.content}]

    def user(self, message: Message) -> Sequence[Any]:
        form: dict[str, Any] = {"role": "user", "content": message.content}
        if message.images:
            form["images"] = [_image(image) for image in message.images]
        return [form]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        form: dict[str, Any] = {"role": "assistant", "content": message.content}
        state = self.state(message)
        if isinstance(state, dict):  # what was thought; never what is said here
            form |= {name: value for name, value in state.items() if name not in _OWN}
        if calls:
            form["tool_calls"] = [_call(call) for call in calls]
        return [form]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return [
            {
                "role": "tool",
                "tool_name": result.name,
                "tool_call_id": result.id,
                "content": result.message.content,
            }
            for result in results
        ]


def _call(call: SentCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": orjson.Fragment(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _image(image: Image) -> str:
    """The base64 text. Raises RequestError for an address: the server fetches nothing."""
    kind, comma, data = image.url.partition(",")
    if comma and kind.startswith("data:") and kind.endswith(";base64"):
        return data
    if not image.data:
        raise RequestError("Ollama takes no image by its address: pass Image(media_type, data)")
    return image.data
