"""What Anthropic's server refuses of a Messages request, in about its words.

Written from the wire's documentation, not from the encoder, so that the one can judge the other.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID = re.compile(r"[A-Za-z0-9_-]+")
_MEMBERS = frozenset(
    (
        *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream"),
        *("temperature", "top_p", "top_k", "stop_sequences", "metadata", "service_tier"),
        *("thinking", "cache_control", "container", "output_config"),
    )
)
_TOOL = frozenset(("name", "description", "input_schema", "strict", "input_examples"))
_CHOICES = {
    "auto": {"disable_parallel_tool_use"},
    "any": {"disable_parallel_tool_use"},
    "tool": {"name", "disable_parallel_tool_use"},
    "none": set[str](),
}


def fault_of(body: Any) -> str | None:
    """What is wrong with a request's body, or None."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if extra := sorted(set(body) - _MEMBERS):
        return f"{extra[0]}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str):
        return "model: Field required"
    most = body.get("max_tokens")
    if not isinstance(most, int) or most < 1:
        return "max_tokens: Field required"
    return _tools_fault(body) or _system_fault(body) or _messages_fault(body)


def _tools_fault(body: dict[str, Any]) -> str | None:
    names: set[str] = set()
    for at, tool in enumerate(body.get("tools", [])):
        if extra := sorted(set(tool) - _TOOL):
            return f"tools.{at}.{extra[0]}: Extra inputs are not permitted"
        if not _NAME.fullmatch(tool.get("name", "")) or tool["name"] in names:
            return f"tools.{at}.name: Tool names must be unique and match a pattern"
        schema = tool.get("input_schema", {})
        if schema.get("type") != "object" or schema.keys() & {"anyOf", "oneOf", "allOf"}:
            return f"tools.{at}.input_schema: must be an object without anyOf, oneOf or allOf"
        names.add(tool["name"])
    choice = body.get("tool_choice")
    if choice is None:
        return None
    if not names:
        return "tool_choice may only be specified while providing tools"
    kind = choice.get("type")
    if kind not in _CHOICES or set(choice) - {"type"} - _CHOICES[kind]:
        return "tool_choice: Input does not match the expected shape"
    if kind == "tool" and choice.get("name") not in names:
        return f"Tool {choice.get('name')!r} not found in provided tools"
    return None


def _system_fault(body: dict[str, Any]) -> str | None:
    system = body.get("system", "x")
    return None if system and _texts(system) else "system: text content blocks must be non-empty"


def _messages_fault(body: dict[str, Any]) -> str | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or set(message) != {"role", "content"}:
            return f"messages.{at}: Input does not match the expected shape"
        if not content or not _texts(content):
            return f"messages.{at}: all messages must have non-empty content"
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, list(blocks)))
    return _turns_fault(turns, with_tools="tools" in body)


def _turns_fault(turns: list[tuple[str, list[dict[str, Any]]]], *, with_tools: bool) -> str | None:
    seen: set[str] = set()
    waiting: list[str] = []
    for role, blocks in turns:
        made = [block for block in blocks if block["type"] == "tool_use"]
        results = [block for block in blocks if block["type"] == "tool_result"]
        if (made and role != "assistant") or (results and role != "user"):
            return "a tool block in a message of the wrong role"
        if (made or results) and not with_tools:
            return "Requests which include tool blocks must define tools"
        if sorted(str(block.get("tool_use_id")) for block in results) != sorted(waiting):
            return f"`tool_use` ids were found without `tool_result` blocks after them: {waiting}"
        if blocks[: len(results)] != results:
            return "`tool_result` blocks must come first"
        waiting = [block.get("id", "") for block in made]
        for block in made:
            if fault := _call_fault(block, seen):
                return fault
        for block in results:
            if block.get("is_error") and not block.get("content"):
                return "tool_result: content cannot be empty if `is_error` is true"
    return f"`tool_use` ids were found without `tool_result`: {waiting}" if waiting else None


def _call_fault(block: dict[str, Any], seen: set[str]) -> str | None:
    if not _ID.fullmatch(block.get("id", "")) or block["id"] in seen:
        return "`tool_use` ids must be unique and match a pattern"
    seen.add(block["id"])
    if not _NAME.fullmatch(block.get("name", "")):
        return "tool_use.name: String should match a pattern"
    return None if isinstance(block.get("input"), dict) else "tool_use.input: not a dictionary"


def _texts(content: Any) -> bool:
    """Whether every text in it has a printing character."""
    if isinstance(content, str):
        return bool(content.strip())
    return all(block["text"].strip() for block in content if block["type"] == "text")
