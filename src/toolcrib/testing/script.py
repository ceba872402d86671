"""What a scripted model says: the notation that the scripted client and the loopback servers share.

A turn is a text, a call, a list of texts and calls, a `Reply`, an exception, or a function that makes
one of those from the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import orjson

from toolcrib.values.message import Reply


class ScriptedCall(msgspec.Struct, frozen=True):
    """A call that the scripted model makes; `arguments` is the text that it sends."""

    name: str
    arguments: str


Said: TypeAlias = str | ScriptedCall | Sequence[str | ScriptedCall]
"""What can be said in any form: text, calls, or both in order."""


class Spoken(msgspec.Struct, frozen=True):
    """A turn in its plain parts."""

    text: str
    calls: tuple[ScriptedCall, ...]


def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """A call of the tool `name`, with these arguments."""
    return ScriptedCall(name, orjson.dumps(arguments).decode())


def raw_call(name: str, arguments: str) -> ScriptedCall:
    """A call whose arguments are this text, valid or not."""
    return ScriptedCall(name, arguments)


def in_one_line(arguments: str) -> orjson.Fragment:
    """Arguments as part of a body whose lines count: JSON has no line break but as white space."""
    return orjson.Fragment(arguments.replace("\r", " ").replace("\n", " "))


def spoken(turn: Said | Reply) -> Spoken:
    """The text and the calls of a turn. Raises TypeError for what is no turn."""
    if isinstance(turn, Reply):
        calls = tuple(ScriptedCall(c.name, c.arguments) for c in turn.tool_calls)
        return Spoken(turn.text, calls)
    parts = [turn] if isinstance(turn, str | ScriptedCall) else turn
    if not isinstance(parts, Sequence):
        raise TypeError(f"{type(turn).__name__} is no turn: use text, call(…) or a list of them")
    for part in parts:
        if not isinstance(part, str | ScriptedCall):
            raise TypeError(f"{type(part).__name__} is no part of a turn: use text or call(…)")
    return Spoken(
        "".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, ScriptedCall)),
    )
