"""Stating a tool's result in plain words, without the model: it would invent.

Rule: every value is the tool's own; only names, commas and line breaks are added. No tool is known
here. What is too long is cut, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from textwrap import indent

from toolcrib.values.json import JsonValue
from toolcrib.values.message import Message

_LONGEST = 4000
_MOST_LINES = 60


def tell(results: Sequence[Message]) -> str:
    """The results of one turn; each under its tool's name if there are several."""
    texts = [_result(message) for message in results]
    if len(texts) > 1:
        named = zip(results, texts, strict=True)
        texts = [f"{message.name or 'tool'}:\n{text}" for message, text in named]
    return _bounded("\n\n".join(texts))


def _result(message: Message) -> str:
    try:
        # Python's own reader: it keeps every digit of an integer.
        value: JsonValue = json.loads(message.content)
        text = _error(value) if message.is_error else _told(value)
    except (ValueError, RecursionError):
        text = message.content
    if message.is_error:
        return f"The call of {message.name or 'the tool'} did not succeed: {text}"
    return text


def _error(value: JsonValue) -> str:
    """`{"error": {"message": …, "details": [{"path", "message"}]}}`, as the loop words it, or any."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return _told(value)
    lines = [str(error["message"])]
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            lines.append(f"- {detail.get('path')}: {detail.get('message')}")
    return "\n".join(lines)


def _told(value: JsonValue) -> str:
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, list):
        return _items(value)
    return _scalar(value)


def _fields(value: dict[str, JsonValue]) -> str:
    """Short values on one line, then each list or long text under its name."""
    short = {name: member for name, member in value.items() if _is_short(member)}
    lines = [_line(short)] if short else []
    for name, member in value.items():
        if name not in short:
            lines.append(_block(name, member))
    return "\n".join(lines) or "Done."


def _block(name: str, member: JsonValue) -> str:
    if member in ([], {}):
        return f"{name}: none"
    text = _told(member)
    return f"{name}:\n{indent(text, '  ') if isinstance(member, dict) else text}"


def _items(value: list[JsonValue]) -> str:
    if not value:
        return "none"
    lines = [f"- {_item(item)}" for item in value[:_MOST_LINES]]
    if len(value) > _MOST_LINES:
        lines.append(f"… and {len(value) - _MOST_LINES} more")
    return "\n".join(lines)


def _item(item: JsonValue) -> str:
    if isinstance(item, dict) and not any(isinstance(v, dict | list) for v in item.values()):
        return _line(item)
    return _json(item) if isinstance(item, dict | list) else _scalar(item)


def _line(fields: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name}: {_scalar(value)}" for name, value in fields.items())


def _is_short(value: JsonValue) -> bool:
    return "\n" not in value if isinstance(value, str) else not isinstance(value, dict | list)


def _scalar(value: JsonValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} … (cut: {len(text)} characters in all)"
