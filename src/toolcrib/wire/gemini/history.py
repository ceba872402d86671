"""The messages of a Gemini request: contents made of parts, and all results of a turn in one of them.

What says nothing is left out, since a content needs parts, but not at the beginning: a model's calls
must follow a user's turn, if only an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.values.message import Image, Message
from toolcrib.wire.gemini.parts import replayed
from toolcrib.wire.history import ANY_ID, History, IdRule, SentCall, SentResult


class GeminiHistory(History):
    """https://ai.google.dev/api/caching#Content.

    Calls get an id even where the model gave none: a result names it, and two
    calls of one tool are told apart.
    """

    ids = IdRule(r"\x21-\x7e", 128)
    given_ids = ANY_ID

    def system(self, message: Message) -> Sequence[Any]:
        if message.content:
            self.instructions.append(message.content)
        return []

    def user(self, message: Message) -> Sequence[Any]:
        parts = [_image(image) for image in message.images]
        if message.content:
            parts.append({"text": message.content})
        return _content("user", parts) or self._beginning()

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        parts = replayed(self.state(message), message.content, calls)
        return [*self._beginning(), *_content("model", parts)]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        return _content("user", [_result(result) for result in results])

    def _beginning(self) -> Sequence[Any]:
        return [] if self._encoded else _content("user", [{"text": ""}])


def _content(role: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "parts": parts}] if parts else []


def _result(result: SentResult) -> dict[str, Any]:
    """The text under one key, so that no key of a tool's own can mean anything to the server."""
    key = "error" if result.message.is_error else "output"
    response = {"id": result.id, "name": result.name, "response": {key: result.message.content}}
    return {"functionResponse": response}


def _image(image: Image) -> dict[str, Any]:
    if image.data:
        return {"inlineData": {"mimeType": image.media_type, "data": image.data}}
    if image.url.startswith("data:"):
        kind, _, data = image.url.removeprefix("data:").partition(",")
        return {"inlineData": {"mimeType": kind.removesuffix(";base64"), "data": data}}
    file = {"fileUri": image.url}
    return {"fileData": file | {"mimeType": image.media_type} if image.media_type else file}
