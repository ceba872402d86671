"""Who may be a candidate at all: decided from annotations alone, before any scorer sees a tool."""

from __future__ import annotations

import msgspec

from toolcrib.values.definition import ToolDefinition


class Excluded(msgspec.Struct, frozen=True):
    """A tool that was not scored, by name, and why."""

    tool: str
    reason: str


def exclusion(definition: ToolDefinition, *, allow_unsafe: bool) -> str | None:
    """Why this tool may not be picked; None where it may."""
    if not definition.annotations.safe and not allow_unsafe:
        return "it is marked unsafe and allow_unsafe is off"
    return None
