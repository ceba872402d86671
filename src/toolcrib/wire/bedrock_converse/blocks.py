"""The content blocks of a model's message: assembled, kept to be sent back, and sent back.

What comes back to Bedrock is the list of blocks as it was, since a signature of reasoning covers its
place among them; but the calls and the text are those of the message, which may have been changed.
Shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlock.html
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from toolcrib.wire.history import SentCall
from toolcrib.wire.json_text import mended, parsed

_SERVER = "server_tool_use"
_KINDS = ("toolUse", "reasoningContent", "citationsContent", "text")


class Block:
    """A block that may still grow; `form` is what it began as, `number` its place in the reply.

    `ours` is whether it is a call, and not one that the provider has run itself; `stopped` is whether
    the provider said that the block is whole.
    """

    __slots__ = ("_citations", "_pieces", "form", "kind", "number", "ours", "stopped")

    def __init__(self, number: int, form: dict[str, Any]) -> None:
        self.number = number
        self.form = form
        self.kind = next((kind for kind in _KINDS if kind in form), next(iter(form), ""))
        self.ours = _is_call(form)
        self.stopped = False
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Any] = []

    def is_again(self, form: Any) -> bool:
        """Whether a beginning at the same index is that of this call, said again."""
        use = form.get("toolUse") if isinstance(form, dict) else None
        if not self.ours or not isinstance(use, dict):
            return False
        own = self.form["toolUse"]
        if self.stopped and not own.get("toolUseId"):
            return False
        return all(use.get(key) == own.get(key) for key in ("toolUseId", "name"))

    def is_other(self, form: Any) -> bool:
        """Whether a beginning at the same index gives the id of this call to another tool."""
        use = form.get("toolUse") if isinstance(form, dict) else None
        given = self.form["toolUse"].get("toolUseId") if self.ours else None
        return isinstance(use, dict) and bool(given) and use.get("toolUseId") == given

    @property
    def announced(self) -> bool:
        """Whether a call began with its name, and not with a piece of its input."""
        return bool(self.form["toolUse"].get("name")) or self.stopped

    def takes(self, kind: str) -> bool:
        """Whether a delta of that kind may be for this block."""
        if kind == "citation":
            return self.kind in ("", "text")
        return self.kind == kind or (not self.kind and kind != "toolUse")

    def add(self, kind: str, member: str, text: str) -> None:
        self.kind = self.kind or kind
        self._pieces.setdefault(member, []).append(text)

    def add_other(self, kind: str, value: Any) -> None:
        """Take a delta that is neither text nor input: a citation, or more of a block of its own."""
        if kind == "citation":
            self._citations.append(value)
            return
        self.kind = self.kind or kind
        before = self.form.get(kind)
        if isinstance(before, dict) and isinstance(value, dict):
            self.form[kind] = before | value
        elif isinstance(before, dict) and isinstance(value, list):  # of a tool's result
            known = before.get("content")
            content = known + value if isinstance(known, list) else value
            self.form[kind] = before | {"content": content}
        else:
            self.form[kind] = value

    def whole(self) -> dict[str, Any]:
        """The block as it would have come in one piece; that of a call of ours without its input."""
        if self.ours:
            use = self.form["toolUse"]
            return {"toolUse": {key: use[key] for key in use if key != "input"}}
        if not self._pieces and not self._citations:
            return self.form
        joined = {member: mended("".join(pieces)) for member, pieces in self._pieces.items()}
        if self.kind == "toolUse":
            given = parsed(joined["input"].encode()) if joined["input"] else {}
            return {"toolUse": self.form["toolUse"] | {"input": given}}
        if self.kind == "reasoningContent":
            return {"reasoningContent": self._reasoning(joined)}
        if self._citations:
            said = [{"text": joined.get("text", "")}]
            return {"citationsContent": {"content": said, "citations": self._citations}}
        return self.form | joined

    def _reasoning(self, joined: dict[str, str]) -> dict[str, Any]:
        if "redactedContent" in joined:
            return {"redactedContent": _base64(self._pieces["redactedContent"])}
        return {"reasoningText": {"text": "", **joined}}


def kept(blocks: Iterable[Block], *, cut: bool) -> list[dict[str, Any]]:
    """What has to be sent back of these blocks: all of them, or none if text and calls say it all.

    Of a reply that was cut, reasoning without its signature is no use.
    """
    forms = [block.whole() for block in blocks]
    if all(not form or "text" in form or _is_call(form) for form in forms):
        return []
    return [form for form in forms if _usable(form) and not (cut and _is_unsigned(form))]


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """An assistant's content: text and calls, at their places among the blocks that were kept.

    Reasoning that nobody has signed goes back only beside calls, whose results it is for: DeepSeek's
    models refuse it (langchain-ai/langchain-aws#401), and no other needs it.
    """
    known = state if isinstance(state, list) else []
    forms = [form for form in known if isinstance(form, dict) and _usable(form)]
    said = "".join(map(text_of, forms))
    waiting, blocks = list(calls), list[dict[str, Any]]()
    for form in forms:
        if _is_call(form):
            given = form["toolUse"].get("toolUseId")
            call = next((c for c in waiting if c.call.provider_id == given), None)
            if call is not None:
                waiting.remove(call)
                blocks.append(_call(call))
        elif not _has_text(form):
            if calls or not _is_unsigned(form):
                blocks.append(form)
        elif said == text and text_of(form).strip():
            blocks.append(form)
    if said != text and text.strip():
        at = next((n for n, form in enumerate(blocks) if _is_call(form)), len(blocks))
        blocks.insert(at, {"text": text})
    return blocks + [_call(call) for call in waiting]


def text_of(form: dict[str, Any]) -> str:
    """What the block says to the user; with citations it says it one level down."""
    if "text" in form:
        return form["text"] if isinstance(form["text"], str) else ""
    cited = form.get("citationsContent")
    pieces = cited.get("content") if isinstance(cited, dict) else None
    known = pieces if isinstance(pieces, list) else ()
    texts = (piece.get("text") for piece in known if isinstance(piece, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _has_text(form: dict[str, Any]) -> bool:
    return "text" in form or "citationsContent" in form


def _call(call: SentCall) -> dict[str, Any]:
    """The input is the model's own text."""
    given = orjson.Fragment(call.arguments)
    return {"toolUse": {"toolUseId": call.id, "name": call.name, "input": given}}


def _is_call(form: dict[str, Any]) -> bool:
    use = form.get("toolUse")
    return isinstance(use, dict) and use.get("type") != _SERVER


def _is_unsigned(form: dict[str, Any]) -> bool:
    reasoning = form.get("reasoningContent")
    said = reasoning.get("reasoningText") if isinstance(reasoning, dict) else None
    return isinstance(said, dict) and not said.get("signature")


def _usable(form: dict[str, Any]) -> bool:
    """Whether Bedrock would take the block back: not so a text that is none, or half of an input."""
    use = form.get("toolUse")
    if "toolUse" in form:
        return isinstance(use, dict) and isinstance(use.get("input", {}), dict)
    return bool(form) and ("text" not in form or isinstance(form["text"], str))


def _base64(pieces: list[str]) -> str:
    """Pieces that were each encoded by itself, as one."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(map(base64.b64decode, pieces))).decode()
    except ValueError:
        return "".join(pieces)
