"""Conversations, however they are written down: who said what, and which tools were called.

Rule: only what the user wrote is the request. System text, tool results and what a model said are
not; of a model's turns the names of the tools that it called count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from toolcrib.values.message import ChatRequest, Message

_MAX_TURNS = 256
_USER = frozenset({"user", "human"})
_ROLES = _USER | {"assistant", "model", "ai", "system", "developer", "tool", "function"}
_HOLDERS = ("messages", "contents", "input")  # of a request body's conversation
_TEXTS = (None, "text", "input_text")


class Conversation(NamedTuple):
    """The user's turns and the names of the tools called, both in order; repeats are kept."""

    asked: list[str]
    called: list[str]


def conversation_of(given: object) -> Conversation | None:
    """What was said in a ChatRequest, a message, a list of either or of texts; None for all else.

    Messages are `Message` or objects `{role, content | parts}` as OpenAI, Anthropic, Gemini, Mistral,
    Ollama, Cohere and Bedrock have them, or as an SDK's model class dumps them. A list of texts is
    what the user said. The last 256 turns are read.
    """
    turns = _turns(given)
    if turns is None:
        return None
    asked: list[str] = []
    called: list[str] = []
    for turn in turns:
        if isinstance(turn, Message):
            text = turn.content if turn.role == "user" else ""
            called += [call.name for call in turn.tool_calls]
        elif isinstance(turn, str):
            text = turn
        else:
            text = " ".join(_texts(_content(turn))) if turn.get("role") in _USER else ""
            called += _called(turn)
        if text.strip():
            asked.append(text)
    return Conversation(asked, called)


def _turns(given: object) -> list[Any] | None:
    if isinstance(given, ChatRequest):
        return list(given.messages[-_MAX_TURNS:])
    if isinstance(given, list | tuple):
        turns = [_dumped(turn) for turn in given[-_MAX_TURNS:]]
        if turns and all(isinstance(turn, str) for turn in turns):
            return turns
        spoken = any(isinstance(turn, Message) or _has_role(turn) for turn in turns)
        return turns if spoken and all(map(_is_turn, turns)) else None
    given = _dumped(given)
    if isinstance(given, Message) or _has_role(given):
        return [given]
    return _held(given) if isinstance(given, Mapping) else None


def _held(body: Mapping[Any, Any]) -> list[Any] | None:
    """The conversation in a request body."""
    for name in _HOLDERS:
        held = body.get(name)
        if isinstance(held, str) and name == "input" and "model" in body:
            return [held]
        if isinstance(held, list | tuple) and not all(isinstance(turn, str) for turn in held):
            turns = [_dumped(turn) for turn in held[-_MAX_TURNS:]]
            return _turns([*map(_as_user, turns)] if name == "contents" else turns)
    return None


def _as_user(turn: Any) -> Any:
    """In Gemini's form it is the user who says no role."""
    return {"role": "user", **turn} if isinstance(turn, Mapping) and "parts" in turn else turn


def _dumped(turn: Any) -> Any:
    """A pydantic model, as SDKs have for messages, as its dictionary."""
    if isinstance(turn, type) or not callable(getattr(turn, "model_dump", None)):
        return turn
    try:
        return turn.model_dump()
    except Exception:  # noqa: BLE001  whatever it is, it is no message then
        return turn


def _has_role(turn: object) -> bool:
    if not isinstance(turn, Mapping):
        return False
    role = turn.get("role")
    return isinstance(role, str) and role in _ROLES and bool({"content", "parts"} & turn.keys())


def _is_turn(turn: object) -> bool:
    """Whether it may stand in a conversation: OpenAI Responses has items with a type and no role."""
    if isinstance(turn, Mapping):
        role = turn.get("role")
        return (isinstance(role, str) and role in _ROLES) or isinstance(turn.get("type"), str)
    return isinstance(turn, Message)


def _content(turn: Mapping[Any, Any]) -> object:
    return turn.get("content", turn.get("parts"))


def _parts(content: object) -> Sequence[Any]:
    return content if isinstance(content, list | tuple) else [content]


def _texts(content: object) -> Iterator[str]:
    for part in _parts(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(text, str) and kind in _TEXTS:
            yield text


def _called(turn: Mapping[Any, Any]) -> Iterable[str]:
    """Names of tools, from all the places where providers have their calls."""
    calls: list[Any] = [turn] if turn.get("type") == "function_call" else []
    calls += [*_parts(turn.get("tool_calls")), turn.get("function_call")]
    for part in _parts(_content(turn)):
        if isinstance(part, Mapping):
            calls += [part] if part.get("type") == "tool_use" else []
            calls += [part.get(key) for key in ("functionCall", "function_call", "toolUse")]
    for call in calls:
        if isinstance(call, Mapping):
            function = call.get("function")
            name = (function if isinstance(function, Mapping) else call).get("name")
            if isinstance(name, str) and name:
                yield name
