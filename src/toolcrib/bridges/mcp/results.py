"""From an MCP server's answer to a tool's result: structured content, and parts in their order.

The output schema describes the structured content. A text that only repeats it, which servers send
for older clients, is left out. An error that the server reports is somebody else's text: the model
reads it, to correct itself, and no record has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import mcp_types as types

from toolcrib.errors import ToolError
from toolcrib.values.content import File, Image, Link, Part, ToolContent
from toolcrib.values.json import canonical_json, fresh

FAILED = "The server says that its tool failed."
UNUSABLE = "The server answered, but its answer is not valid in MCP."
_LONGEST = 20_000  # characters of an error for the model
_ANY = "application/octet-stream"


def value_of(result: types.CallToolResult, shown: Callable[[str], str]) -> Any:
    """Return the tool's result. Raises ToolError for what the server calls an error. `shown`
    removes the secrets that the server was given from its text."""
    if result.is_error:
        texts = [one.text for one in result.content if isinstance(one, types.TextContent)]
        raise reported_error(shown("\n".join(texts)))
    try:
        parts = [_part(one) for one in result.content]
    except ValueError:
        raise ToolError(UNUSABLE) from None
    if "structured_content" in result.model_fields_set:
        value = result.structured_content
        parts = [one for one in parts if not (isinstance(one, str) and _says(one, value))]
        return ToolContent(value, tuple(parts)) if parts else value
    texts = [one for one in parts if isinstance(one, str)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def reported_error(text: str) -> ToolError:
    """Return the exception for an error that a server reported. Its text is for the model."""
    return ToolError(FAILED, model_text=f"{FAILED} It says: {text[:_LONGEST]}" if text else "")


def _part(block: types.ContentBlock) -> Part:
    """Return a content block as a part. Raises ValueError for an invalid one, such as an image
    without data."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return Image(block.mime_type, block.data)
        case types.AudioContent():
            return File(block.mime_type, block.data)
        case types.ResourceLink():
            kind, size = block.mime_type or "", block.size
            return Link(block.uri, block.name, block.description or "", kind, size)
        case types.EmbeddedResource():
            return _file(block.resource)
        case _:
            assert_never(block)


def _file(resource: types.TextResourceContents | types.BlobResourceContents) -> File:
    kind, name = resource.mime_type, resource.uri
    if isinstance(resource, types.TextResourceContents):
        return File(kind or "text/plain", text=resource.text, name=name)
    return File(kind or _ANY, resource.blob, name=name)


def _says(text: str, value: Any) -> bool:
    """Return whether a text repeats the value, as its JSON or as one of its members."""
    if isinstance(value, dict) and text in [one for one in value.values() if isinstance(one, str)]:
        return True
    try:
        return canonical_json(fresh(text.encode())) == canonical_json(value)
    except (ValueError, TypeError):
        return False
