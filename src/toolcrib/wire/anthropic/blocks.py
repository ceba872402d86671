"""The content blocks of an assistant's message: assembled, kept to be sent back, and sent back.

What comes back to Anthropic is the list of blocks as it was, since a signature of thinking covers its
place among them; but the calls and the text are those of the message, which may have been changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from toolcrib.wire.history import SentCall
from toolcrib.wire.json_text import mended, parsed

_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
    "citations_delta": ("text", "citation"),
}
_KINDS = frozenset(("text", "thinking", "tool_use"))
_OF_A_CALL = frozenset(("type", "id", "name", "input", "caller"))
_DIRECT = ({"type": "direct"}, None)


def delta_of(delta: dict[str, Any]) -> tuple[str, str]:
    """The kind of block that a delta adds to, and the member that it brings; empty if unknown."""
    kind = delta.get("type")
    if isinstance(kind, str) and kind in _DELTAS:
        return _DELTAS[kind]
    is_input = isinstance(delta.get("partial_json"), str)  # whatever it calls itself
    return _DELTAS["input_json_delta"] if is_input else ("", "")


class Block:
    """A block that may still grow; `form` is what it began as, `number` its place in the reply.

    Of a call, `given` is the input that came with its beginning, as text, and `input` that of its
    deltas; `stopped` is whether the provider said that the block is whole.
    """

    __slots__ = ("_citations", "_pieces", "form", "given", "input", "kind", "number", "stopped")

    def __init__(self, number: int, form: dict[str, Any]) -> None:
        kind = form.get("type")
        self.number = number
        self.form = form
        self.kind = kind if isinstance(kind, str) else ""
        self.given = ""
        self.input: list[str] = []
        self.stopped = False
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Any] = []

    def is_again(self, form: Any) -> bool:
        """Whether a beginning at the same index is that of this call, said again."""
        if self.kind != "tool_use" or not isinstance(form, dict):
            return False
        if self.stopped and not self.form.get("id"):
            return False
        return all(form.get(key) == self.form.get(key) for key in ("type", "id", "name"))

    def is_other(self, form: Any) -> bool:
        """Whether a beginning at the same index gives the id of this call to another tool."""
        given = self.form.get("id")
        is_call = (
            self.kind == "tool_use" and isinstance(form, dict) and form.get("type") == self.kind
        )
        return is_call and bool(given) and form.get("id") == given

    @property
    def announced(self) -> bool:
        """Whether a call began with its name, and not with a piece of its input."""
        return bool(self.form.get("name")) or self.stopped

    def takes(self, kind: str) -> bool:
        """Whether a delta for blocks of that kind may be for this one."""
        return not kind or kind == self.kind or self.kind not in _KINDS

    def add(self, member: str, value: Any) -> None:
        """Take what a delta brings; of an unknown one the members become those of the block."""
        if member == "citation":
            self._citations.append(value)
        elif member:
            self._pieces.setdefault(member, []).append(value)
        elif self.kind not in _KINDS:
            self.form = self.form | value | {"type": self.kind}

    def whole(self) -> dict[str, Any]:
        """The block as it would have come in one piece; that of a call without its input."""
        form = dict(self.form)
        for member, pieces in self._pieces.items():
            text = "".join(pieces)
            if member == "partial_json":
                form["input"] = parsed(mended(text).encode()) if text else {}
            else:
                before = form.get(member)
                form[member] = mended((before if isinstance(before, str) else "") + text)
        if self._citations:
            before = form.get("citations")
            form["citations"] = (before if isinstance(before, list) else []) + self._citations
        if self.kind == "tool_use":
            form.pop("input", None)
        return form


def kept(blocks: Iterable[Block], *, cut: bool) -> list[dict[str, Any]]:
    """What has to be sent back of these blocks: all of them, or none if text and calls say it all."""
    forms = [block.whole() for block in blocks]
    if all(map(_plain, forms)):
        return []
    return [form for form in forms if _usable(form, cut=cut)]


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """An assistant's content: text and calls, at their places among the blocks that were kept."""
    known = state if isinstance(state, list) else []
    forms = [form for form in known if isinstance(form, dict) and _usable(form, cut=False)]
    said = "".join(form["text"] for form in forms if form.get("type") == "text")
    waiting, blocks = list(calls), list[dict[str, Any]]()
    for form in forms:
        if form.get("type") == "tool_use":
            call = next((c for c in waiting if c.call.provider_id == form.get("id")), None)
            if call is not None:
                waiting.remove(call)
                blocks.append(form | _call(call))
        elif form.get("type") != "text" or (said == text and form["text"].strip()):
            blocks.append(form)
    if said != text and text.strip():
        at = next((n for n, form in enumerate(blocks) if form["type"] == "tool_use"), len(blocks))
        blocks.insert(at, {"type": "text", "text": text})
    return blocks + [_call(call) for call in waiting]


def _call(call: SentCall) -> dict[str, Any]:
    """The input is the model's own text."""
    given = orjson.Fragment(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _plain(form: dict[str, Any]) -> bool:
    if form.get("type") == "tool_use":
        return form.keys() <= _OF_A_CALL and form.get("caller") in _DIRECT
    return form.get("type") == "text" and not form.get("citations")


def _usable(form: dict[str, Any], *, cut: bool) -> bool:
    """Whether Anthropic would take the block back: not so thinking or a call that was cut."""
    kind = form.get("type")
    if kind == "text":
        return isinstance(form.get("text"), str)
    if kind == "thinking":
        return bool(form.get("signature")) or not cut
    return "input" not in form or isinstance(form["input"], dict)
