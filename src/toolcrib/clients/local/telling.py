"""States a tool's result in plain words, without the model, which would invent things.

Rule: every value comes from the tool. Only names, commas, line breaks and "the … is …" are added.
This code knows no particular tool. Long values are shortened and marked as shortened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from textwrap import indent

import msgspec

from toolcrib.values.content import as_texts
from toolcrib.values.definition import stated
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.message import Message, Offer

_MOST_CHARACTERS = 4000
_MOST_LINES = 60


def tell(messages: Sequence[Message], offer: Offer | None = None) -> str:
    """Return the results at the end of a conversation. Each is stated by its tool's `answer` if it
    has one. Several results are each preceded by the name of their tool."""
    results = _last_results(messages)
    texts = [
        _with_parts(message, _templated_answer(message, messages, offer or Offer()))
        for message in results
    ]
    if len(texts) > 1:
        pairs = zip(results, texts, strict=True)
        texts = [f"{message.name or 'tool'}:\n{text}" for message, text in pairs]
    return _bounded("\n\n".join(texts))


def _with_parts(result: Message, answer: str | None) -> str:
    """Return a text about a result and its content, which this model cannot see."""
    if not result.parts:
        return answer or _result_text(result)
    text = answer or (_result_text(result) if result.content else "")
    return "\n\n".join(filter(None, (text, *as_texts(result.parts))))


def _templated_answer(result: Message, messages: Sequence[Message], offer: Offer) -> str | None:
    tool = offer.tools.get(result.name or "")
    templates = () if tool is None else tool.get_definition().answer
    if not templates or result.is_error:
        return None
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    call = next((call for call in calls if call.id == result.call_id), None)
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(result.content)
        arguments = {} if call is None else arguments_in(call.arguments)
        return next(
            filter(None, (stated(template, arguments, value) for template in templates)), None
        )
    return None


def _result_text(message: Message) -> str:
    try:
        # Python's own JSON reader keeps every digit of an integer.
        value: JsonValue = json.loads(message.content)
        text = _error_text(value) if message.is_error else _as_text(value)
    except (ValueError, RecursionError):
        text = message.content
    if message.is_error:
        return f"The call of {message.name or 'the tool'} did not succeed: {text}"
    return text


def _error_text(value: JsonValue) -> str:
    """Put an error into words: `{"error": {"message": …, "details": [{"path", "message"}]}}`, or
    any value."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return _as_text(value)
    lines = [str(error["message"])]
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            lines.append(f"- {detail.get('path')}: {detail.get('message')}")
    return "\n".join(lines)


def _as_text(value: JsonValue) -> str:
    """Write short values on one line, then each list or long text below its name."""
    if isinstance(value, list):
        lines = [f"- {_item_text(item)}" for item in value[:_MOST_LINES]]
        if len(value) > _MOST_LINES:
            lines.append(f"… and {len(value) - _MOST_LINES} more")
        return "\n".join(lines) or "none"
    if not isinstance(value, dict):
        return value_text(value)
    short = {name: member for name, member in value.items() if _is_short(member)}
    lines = [_line(short)] if short else []
    lines += [_block(name, member) for name, member in value.items() if name not in short]
    return "\n".join(lines) or "Done."


def _block(name: str, member: JsonValue) -> str:
    if member in ([], {}):
        return f"{name}: none"
    text = _as_text(member)
    return f"{name}:\n{indent(text, '  ') if isinstance(member, dict) else text}"


def _item_text(item: JsonValue) -> str:
    if isinstance(item, dict) and not any(isinstance(v, dict | list) for v in item.values()):
        return _line(item)
    return value_text(item)


def _line(fields: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name}: {value_text(value)}" for name, value in fields.items())


def _is_short(value: JsonValue) -> bool:
    return "\n" not in value if isinstance(value, str) else not isinstance(value, dict | list)


def value_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json_text(value)


def json_text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]} … (cut: {len(text)} characters in all)"


def _last_results(messages: Sequence[Message]) -> list[Message]:
    """Return the tool results at the end of the conversation.

    If the last ones are later results of background calls, only those are returned.
    """
    first, role = len(messages), messages[-1].role if messages else "tool"
    while first and messages[first - 1].from_tool and messages[first - 1].role == role:
        first -= 1
    return [msgspec.structs.replace(m, content=m.result_text) for m in messages[first:]]


def arguments_in(text: str) -> JsonObject:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
