"""From what an MCP server answered to what a tool gives: content in order, structured where it says so.

An error that the server reports is text of somebody else: the model reads it, to correct itself, and
no record has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mcp_types as types

from toolcrib.errors import ToolError
from toolcrib.values.json import canonical_json, fresh

FAILED = "The server says that its tool failed."
UNUSABLE = "The server answered, but not in a form that MCP knows."
_LONGEST = 20_000  # characters of an error that a model is told


def value_of(result: types.CallToolResult) -> Any:
    """Return what the tool gives. Raises ToolError for what the server calls an error."""
    if result.is_error:
        raise reported_error(_text(result.content))
    structured = result.structured_content
    if structured is not None or "structured_content" in result.model_fields_set:
        return structured
    return _text(result.content)


def reported_error(text: str) -> ToolError:
    """Return the error that a server reported, in its own words."""
    return ToolError(FAILED, model_text=f"{FAILED} It says: {text[:_LONGEST]}" if text else "")


def _text(blocks: Sequence[types.ContentBlock]) -> str:
    return "\n".join(each.text for each in blocks if isinstance(each, types.TextContent))


def is_twin(text: str, structured: Any) -> bool:
    """Return whether a text is the JSON of the structured content, as servers send it for old clients."""
    try:
        return canonical_json(fresh(text.encode())) == canonical_json(structured)
    except (ValueError, TypeError):
        return False
