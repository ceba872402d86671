"""The parts of a model's content: kept to be sent back, and sent back.

What comes back to Gemini is the list of parts as it was, since a thought signature belongs to the part
that it came with; but the calls and the text are those of the message, which may have been changed.
Shapes: https://ai.google.dev/api/caching#Part, https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import orjson

from toolcrib.wire.history import SentCall
from toolcrib.wire.json_text import mended

_NO_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Gemini 3 refuses a turn whose first call has no signature; this one stands for calls that other
models made (…/docs/thought-signatures, FAQ). Gemini 2 takes it and lets it be."""

_OF_TEXT = frozenset(("text", "thought"))


class KeptParts:
    """The parts of one reply. Adjacent pieces of text are one part, unless one has a signature."""

    def __init__(self) -> None:
        self._forms: list[dict[str, Any]] = []
        self._texts: dict[int, list[str]] = {}

    def add(self, part: dict[str, Any]) -> None:
        """A part that is no call."""
        text = part.get("text")
        if not isinstance(text, str):
            self._forms.append(part)
            return
        bare = part.keys() <= _OF_TEXT
        if bare and not text:
            return
        last = len(self._forms) - 1
        joins = bare and last in self._texts and self._forms[last].keys() <= _OF_TEXT
        if joins and bool(part.get("thought")) is bool(self._forms[last].get("thought")):
            self._texts[last].append(text)
            return
        self._texts[last + 1] = [text]
        self._forms.append(part)

    def add_call(self, part: dict[str, Any], call_id: str) -> dict[str, Any]:
        """A part that is a call: what else it brings is kept, and which call of ours it is."""
        form = part | {"functionCall": {"id": call_id}}
        self._forms.append(form)
        return form

    def state(self) -> list[dict[str, Any]]:
        """What has to be sent back: all parts, or none if text and calls say it all."""
        for at, pieces in self._texts.items():
            self._forms[at] = self._forms[at] | {"text": mended("".join(pieces))}
        return [] if all(map(_plain, self._forms)) else self._forms


def replayed(state: Any, text: str, calls: Sequence[SentCall]) -> list[dict[str, Any]]:
    """A model's parts: text and calls, at their places among the parts that were kept."""
    known = state if isinstance(state, list) else []
    forms = [form for form in known if isinstance(form, dict)]
    same = "".join(form["text"] for form in forms if _is_text(form)) == text
    waiting = {call.call.id: call for call in calls}
    parts: list[dict[str, Any]] = []
    for form in forms:
        if "functionCall" in form:
            call = waiting.pop(_id_of(form), None)
            if call is not None:
                parts.append(form | _call(call))
        elif same or not _is_text(form):
            parts.append(form)
    if text and not same:
        at = next((n for n, form in enumerate(parts) if "functionCall" in form), len(parts))
        parts.insert(at, {"text": text})
    return _signed(parts + [_call(call) for call in waiting.values()])


def _signed(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, the first call with a signature at any rate; Gemini signs no other."""
    first = next((n for n, part in enumerate(parts) if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in parts[first]:
        parts[first] = parts[first] | {"thoughtSignature": _NO_SIGNATURE}
    return parts


def _call(call: SentCall) -> dict[str, Any]:
    """The arguments are the model's own text."""
    args = orjson.Fragment(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": args}}


def _id_of(form: dict[str, Any]) -> str:
    call = form["functionCall"]
    call_id = call.get("id") if isinstance(call, dict) else None
    return call_id if isinstance(call_id, str) else ""


def _is_text(form: dict[str, Any]) -> bool:
    """Whether the part is what the model said, and not what it thought."""
    return isinstance(form.get("text"), str) and not form.get("thought")


def _plain(form: dict[str, Any]) -> bool:
    return form.keys() in ({"text"}, {"functionCall"})
