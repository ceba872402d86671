"""Content blocks of LangChain's messages as the parts of a result, and back.

Rule: a result is content only if LangChain itself would make it the content of a message, which is
a list of strings and blocks. A list without a picture, a file or a block of text in it is plain
JSON.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import ToolMessage

from toolcrib.values.content import (
    NO_TEXT,
    File,
    Image,
    Part,
    inline_data,
    kind_of,
    media_type_of,
    text_in,
)
from toolcrib.values.json import canonical_json
from toolcrib.values.media import shown_in
from toolcrib.values.message import Message

_ANY = "application/octet-stream"
_MEDIA = ("image", "audio", "video", "file", "text-plain")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # of a block that names no type
_UNREAD = object()


def content_in(result: object) -> Any:
    """Return the content that a tool gave as blocks, joining text alone into one string. Any other
    result is returned unchanged. A block that cannot be shown becomes its JSON, in its place."""
    if not isinstance(result, list | tuple) or not all(map(_is_block, result)):
        return result
    if all(isinstance(element, str) for element in result):
        return result
    try:
        standard = ToolMessage(
            [_readable_block(element) for element in result], tool_call_id=""
        ).content_blocks
        parts = [_part(dict(element)) for element in standard]
        contents = [
            canonical_json(block) if part is _UNREAD else part
            for block, part in zip(result, parts, strict=True)
        ]
    except Exception:  # noqa: BLE001  LangChain cannot read every dictionary like a block
        return result
    if any(isinstance(part, NO_TEXT) for part in parts):
        return contents
    return result if _UNREAD in parts else "\n".join(contents)


def _is_block(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, dict) and isinstance(value.get("type"), str)
    )


def _readable_block(block: Any) -> Any:
    """Return a block that `content_blocks` reads, which knows only one of two forms of `image_url`."""
    if isinstance(block, dict) and isinstance(block.get("image_url"), str):
        return {**block, "image_url": {"url": block["image_url"]}}
    return block


def _part(block: dict[str, Any]) -> Any:
    """Return a standard block as a part, or a text that it cannot be read. Raises ValueError and
    TypeError."""
    kind, text = block["type"], block.get("text")
    if kind == "text":
        return text if isinstance(text, str) else _UNREAD
    if kind not in _MEDIA:
        return _UNREAD
    name = _name(block)
    media_type = block.get("mime_type") or ("text/plain" if kind == "text-plain" else "")
    if kind == "text-plain" and isinstance(text, str):
        return File(media_type, text=text, name=name)
    data, url = block.get("base64") or "", block.get("url") or ""
    if not data and "://" not in url and not url.startswith("data:"):
        return _UNREAD
    if kind == "image" and data and not media_type:
        detected_type = shown_in(data)
        media_type = detected_type if detected_type in _PICTURES else ""
    if kind == "image" and (media_type or url):
        picture = Image(media_type, data, "" if data else url)
        actual_type = media_type_of(picture)
        if not actual_type or actual_type.startswith("image/"):
            return picture
        media_type = actual_type
    return File(media_type or _ANY, data, "" if data else url, name=name)


def _name(block: dict[str, Any]) -> str:
    """Return the name of a file, which blocks may have in any of these places."""
    extras = block.get("extras")
    for holder in (block, extras if isinstance(extras, dict) else {}):
        for key in ("filename", "name", "title"):
            if isinstance(holder.get(key), str):
                return str(holder[key])
    return ""


def shown_content(message: Message) -> str | list[str | dict[str, Any]]:
    """Return the model's view of a result: its text, or standard blocks if there are parts.

    A link, and a file of text, become a block of text, since not every provider's package takes
    more. Audio and video are sent as files, because a ToolNode makes JSON of content that has a
    block of another kind (`audio`).
    """
    if not message.parts:
        return message.content
    texts = [message.content] if message.content else []
    return [_block(part) for part in (*texts, *message.parts)]


def _block(part: Part) -> dict[str, Any]:
    text = text_in(part)
    if text is not None:
        return {"type": "text", "text": text}
    assert isinstance(part, Image | File)  # noqa: S101  the other kinds are text
    data, media_type = inline_data(part), media_type_of(part) or part.media_type
    source = {"url": part.url} if data is None else {"base64": data}
    mime_type = {"mime_type": media_type} if media_type else {}
    extras = {"extras": {"filename": part.name}} if isinstance(part, File) and part.name else {}
    return {
        "type": "image" if kind_of(part) == "image" else "file",
        **source,
        **mime_type,
        **extras,
    }
