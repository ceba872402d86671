"""The chunk of a stream as nearly every server sends it, read into just what it brings.

The type is the rule: it names every member that can mean something, and a value that it has no place
for makes the chunk an unusual one, which is read elsewhere, with care. A chunk that can be read both
ways means the same. A stream of 50,000 chunks takes half the time in this way.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Function(msgspec.Struct, gc=False):
    """Arguments that are no text are unusual."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct, gc=False):
    """A piece of a call."""

    function: Function
    index: int | None = None
    id: str | None = None
    extra_content: None = None
    provider_specific_fields: None = None


class Delta(msgspec.Struct):
    """What the choice adds to its message."""

    tool_calls: list[Call] | None = None
    content: str | None = None
    function_call: None = None
    refusal: Literal[""] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: None = None
    thinking_blocks: None = None
    extra_content: None = None
    provider_specific_fields: None = None


class Choice(msgspec.Struct):
    """A choice that goes on."""

    delta: Delta
    index: int = 0
    finish_reason: Literal[""] | None = None
    native_finish_reason: Literal[""] | None = None
    error: None = None
    usage: None = None


class Chunk(msgspec.Struct):
    """One choice, and nothing of usage or errors."""

    choices: tuple[Choice]
    usage: None = None
    error: None = None
    x_groq: None = None


usual_chunk = msgspec.json.Decoder(Chunk).decode
"""The chunk in these bytes. Raises ValueError or RecursionError for an unusual one."""
