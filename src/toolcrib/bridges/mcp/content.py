"""What is served in MCP's form (definitions as tools, outcomes as results), and what a server's
answer is as a tool's result.

Rule: schemas stay as their author wrote them. An output schema is sent only if the structured
content will be what it describes: an object, and the whole of it. Of a server's answer, the output
schema describes the structured content. A text that only repeats it, which servers send for older
clients, is left out. An error that a server reports is somebody else's text: the model reads it, to
correct itself, and no record has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar, assert_never
from urllib.parse import quote

import mcp_types as types
from pydantic import BaseModel

from toolcrib.agent.history import result_message
from toolcrib.errors import ToolError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import (
    File,
    Image,
    Link,
    Media,
    Part,
    ToolContent,
    inline_data,
    kind_of,
)
from toolcrib.values.definition import ALL, ToolDefinition
from toolcrib.values.json import JsonObject, canonical_json, encodable, fresh
from toolcrib.values.record import CallError, Completed, Failed

FAILED = "The server says that its tool failed."
UNUSABLE = "The server answered, but its answer is not valid in MCP."
_LONGEST = 20_000  # characters of an error for the model
_BYTES = "application/octet-stream"
ModelT = TypeVar("ModelT", bound=BaseModel)


def encodable_message(message: ModelT) -> ModelT:
    """Return a question or an answer that can be sent. A text of an author's, such as a file name,
    may hold lone surrogates."""
    plain = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = json.dumps(plain, ensure_ascii=False)
    sent = encodable(text)
    return message if sent == text else type(message).model_validate_json(sent, by_name=False)


def listed(definition: ToolDefinition) -> types.Tool:
    """Return a definition as a tool of `tools/list`."""
    return types.Tool(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema or {"type": "object"},
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
    annotations = definition.annotations
    return types.ToolAnnotations(
        read_only_hint=annotations.read_only,
        destructive_hint=True if not annotations.safe and not annotations.read_only else None,
        idempotent_hint=True if annotations.idempotent else None,
        open_world_hint=True if annotations.untrusted_output else None,
    )


def result_of(
    call: ToolCall, outcome: Completed | Failed, definition: ToolDefinition | None
) -> types.CallToolResult:
    """Return the model's view of an outcome, as a result of `tools/call`."""
    message = result_message(call, outcome, None)
    assert message is not None  # noqa: S101  it has ended
    texts = [message.content] if message.content or not message.parts else []
    content = [block_of(part, index) for index, part in enumerate((*texts, *message.parts))]
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


def block_of(part: Part, index: int) -> types.ContentBlock:
    """Return a part as a content block. `index` names a part that has no name of its own."""
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
                uri=_uri(part.name, index), mime_type=part.media_type or None, text=text
            )
            return types.EmbeddedResource(resource=contents)
        case Image() | File():
            return _media(part, index)
        case _:
            assert_never(part)


def _media(part: Media, index: int) -> types.ContentBlock:
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
    blob = types.BlobResourceContents(
        uri=_uri(name, index), mime_type=media_type or None, blob=data
    )
    return types.EmbeddedResource(resource=blob)


def _uri(name: str, index: int) -> str:
    """Return the name of a file if it is a URI, or else a URI that contains the name."""
    return name if "://" in name else f"attachment:///{quote(name) or index}"


def value_of(result: types.CallToolResult, hide_secrets: Callable[[str], str]) -> Any:
    """Return the tool's result. Raises ToolError for what the server calls an error. `hide_secrets`
    removes those that the server was given from its text."""
    if result.is_error:
        texts = [one.text for one in result.content if isinstance(one, types.TextContent)]
        raise reported_error(hide_secrets("\n".join(texts)))
    try:
        parts = [_part(one) for one in result.content]
    except ValueError:
        raise ToolError(UNUSABLE) from None
    if "structured_content" in result.model_fields_set:
        value = result.structured_content
        parts = [one for one in parts if not (isinstance(one, str) and _repeats(one, value))]
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
        case types.EmbeddedResource(resource=contents):
            if isinstance(contents, types.TextResourceContents):
                return File(
                    contents.mime_type or "text/plain", text=contents.text, name=contents.uri
                )
            return File(contents.mime_type or _BYTES, contents.blob, name=contents.uri)
        case _:
            assert_never(block)


def _repeats(text: str, value: Any) -> bool:
    """Return whether a text repeats the value, as its JSON or as one of its members."""
    if isinstance(value, dict) and text in [
        member for member in value.values() if isinstance(member, str)
    ]:
        return True
    try:
        return canonical_json(fresh(text.encode())) == canonical_json(value)
    except (ValueError, TypeError):
        return False
