"""What an MCP client is shown: definitions as tools, outcomes as results.

Rule: schemas stay as their author wrote them. An output schema is sent only if the structured
content will be what it describes: an object, and the whole of it.
"""

from __future__ import annotations

from typing import assert_never
from urllib.parse import quote

import mcp_types as types

from toolcrib.agent.history import result_message
from toolcrib.values.call import ToolCall
from toolcrib.values.content import File, Image, Link, Media, Part, inline_data, kind_of
from toolcrib.values.definition import ALL, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.record import CallError, Completed, Failed

_ANY: JsonObject = {"type": "object"}


def listed(definition: ToolDefinition) -> types.Tool:
    """Return a definition as a tool of `tools/list`."""
    return types.Tool(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema or dict(_ANY),
        output_schema=_output_schema(definition),
        annotations=_hints(definition),
    )


def _output_schema(definition: ToolDefinition) -> JsonObject | None:
    schema = definition.output_schema
    if schema is None or schema.get("type") != "object" or definition.model_visible != ALL:
        return None
    return schema


def _hints(definition: ToolDefinition) -> types.ToolAnnotations:
    """Return the author's annotations. Unset ones are as careful as the protocol's defaults."""
    marks = definition.annotations
    return types.ToolAnnotations(
        read_only_hint=marks.read_only,
        destructive_hint=True if not marks.safe and not marks.read_only else None,
        idempotent_hint=True if marks.idempotent else None,
        open_world_hint=True if marks.untrusted_output else None,
    )


def result_of(
    call: ToolCall, outcome: Completed | Failed, definition: ToolDefinition | None
) -> types.CallToolResult:
    """Return the model's view of an outcome, as a result of `tools/call`."""
    message = result_message(call, outcome, None)
    assert message is not None  # noqa: S101  it has ended
    texts = [message.content] if message.content or not message.parts else []
    content = [block_of(part, at) for at, part in enumerate((*texts, *message.parts))]
    structured = None
    if isinstance(outcome, Completed) and definition is not None and _output_schema(definition):
        structured = outcome.model
    return types.CallToolResult(
        content=content,
        structured_content=structured if isinstance(structured, dict) else None,
        is_error=message.is_error,
    )


def refused(call: ToolCall, error: CallError) -> types.CallToolResult:
    """Return the result of a call that has no outcome."""
    message = result_message(call, None, error)
    text = "" if message is None else message.content
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def block_of(part: Part, at: int = 0) -> types.ContentBlock:
    """Return a part as a content block. `at` names a part that has no name of its own."""
    match part:
        case str():
            return types.TextContent(text=part)
        case Link():
            return types.ResourceLink(
                uri=part.uri,
                name=part.name or part.uri,
                description=part.description or None,
                mime_type=part.media_type or None,
                size=part.size,
            )
        case File(text=text) if text or not (part.data or part.url):
            contents = types.TextResourceContents(
                uri=_uri(part.name, at), mime_type=part.media_type or None, text=text
            )
            return types.EmbeddedResource(resource=contents)
        case Image() | File():
            return _media(part, at)
        case _:
            assert_never(part)


def _media(part: Media, at: int) -> types.ContentBlock:
    name = part.name if isinstance(part, File) else ""
    data, media_type, kind = inline_data(part), part.media_type, kind_of(part)
    if data is None:
        return types.ResourceLink(
            uri=part.url, name=name or part.url, mime_type=part.media_type or None
        )
    if part.url:
        media_type = part.url.removeprefix("data:").partition(";")[0]
    if kind == "image":
        return types.ImageContent(data=data, mime_type=media_type)
    if kind == "audio":
        return types.AudioContent(data=data, mime_type=media_type)
    blob = types.BlobResourceContents(uri=_uri(name, at), mime_type=media_type or None, blob=data)
    return types.EmbeddedResource(resource=blob)


def _uri(name: str, at: int) -> str:
    """Return the name of a file if it is a URI, or else a URI that contains the name."""
    return name if "://" in name else f"attachment:///{quote(name) or at}"
