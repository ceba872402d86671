"""What a model's message holds beside text and calls: kept, and sent back under the same names.

Servers whose models think want the thoughts back with the calls that they led to (DeepSeek and Moonshot
refuse a request without them), and signatures with the message or the call that they came with.
https://api-docs.deepseek.com/guides/thinking_mode, https://openrouter.ai/docs/use-cases/reasoning-tokens,
https://ai.google.dev/gemini-api/docs/openai, https://docs.litellm.ai/docs/reasoning_content
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolcrib.values.json import JsonObject
from toolcrib.wire.json_text import mended

_TEXTS = ("reasoning_content", "reasoning")
_LISTS = ("reasoning_details", "thinking_blocks")
_OF_CALLS = ("extra_content", "provider_specific_fields")
MEMBERS = (*_TEXTS, *_LISTS, *_OF_CALLS)
"""Names in a message that are kept, in the order of every request: a provider caches by bytes."""
_GROWING = ("text", "summary", "thinking")
_CALLS = "calls"


class KeptMembers:
    """Those of one reply, as they come. A stream's pieces become what a whole message would hold."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._others: JsonObject = {}
        self._calls: dict[str, JsonObject] = {}

    def add(self, message: JsonObject) -> None:
        """Take what a message, or a piece of one, holds."""
        for name in _TEXTS:
            self.add_text(name, message.get(name))
        for name in _LISTS:
            value = message.get(name)
            if isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
        self._others |= _said(message, _OF_CALLS)

    def add_text(self, name: str, text: object) -> None:
        """Take a piece of a thought. That there was none is something to send back, too."""
        if isinstance(text, str):
            self._texts.setdefault(name, []).append(text)

    def add_call(self, call: JsonObject, call_id: str) -> None:
        """Take what a call, or a piece of one, holds beside its function; `call_id` is ours."""
        if said := _said(call, _OF_CALLS):
            self._calls[call_id] = self._calls.get(call_id, {}) | said

    def state(self) -> JsonObject:
        """All of it by its names, what belongs to a call under `calls`; empty if there is nothing."""
        texts: JsonObject = {name: mended("".join(pieces)) for name, pieces in self._texts.items()}
        lists = {name: _merged(pieces) for name, pieces in self._lists.items() if pieces}
        said: JsonObject = texts | lists | self._others
        return said | {_CALLS: dict(self._calls)} if self._calls else said


def of_message(state: Any) -> JsonObject:
    """What a state says of the message; nothing if it is none of ours."""
    return _said(state, MEMBERS)


def of_call(state: Any, call_id: str) -> JsonObject:
    """What a state says of that call of ours."""
    calls = state.get(_CALLS) if isinstance(state, dict) else None
    return _said(calls.get(call_id), _OF_CALLS) if isinstance(calls, dict) else {}


def _said(holder: Any, names: Iterable[str]) -> JsonObject:
    if not isinstance(holder, dict):
        return {}
    return {name: holder[name] for name in names if holder.get(name) is not None}


def _merged(pieces: list[Any]) -> list[Any]:
    """The blocks that these pieces are of; one goes on with the block before it, if it can be of it."""
    blocks: list[Any] = []
    grown: dict[str, list[str]] = {}
    for piece in pieces:
        if not blocks or not _goes_on(blocks[-1], piece):
            _close(blocks, grown)
            blocks.append(dict(piece) if isinstance(piece, dict) else piece)
        else:
            blocks[-1] |= {key: value for key, value in piece.items() if value is not None}
        if isinstance(piece, dict):
            for key in _GROWING:
                if isinstance(piece.get(key), str):
                    grown.setdefault(key, []).append(piece[key])
    _close(blocks, grown)
    return blocks


def _close(blocks: list[Any], grown: dict[str, list[str]]) -> None:
    if blocks and isinstance(blocks[-1], dict):
        blocks[-1] |= {key: mended("".join(texts)) for key, texts in grown.items()}
    grown.clear()


def _goes_on(block: Any, piece: Any) -> bool:
    """Whether a piece is of that block: of its type, place and id, and not after its signature."""
    if not isinstance(block, dict) or not isinstance(piece, dict):
        return False
    if "data" in block or "data" in piece or block.get("signature"):
        return False
    same_id = None in (block.get("id"), piece.get("id")) or block.get("id") == piece.get("id")
    return same_id and all(block.get(key) == piece.get(key) for key in ("type", "index"))
