"""What OpenAI's server refuses of a chat completion request, said as it says it.

Written from the wire's documentation, not from the encoder, so that the one can judge the other.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = {"system", "developer", "user", "assistant", "tool"}
_ONLY_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")


def fault_of(body: Any) -> str | None:
    """What is wrong with a request's body, or None."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if not isinstance(body.get("model"), str):
        return "missing required parameter: 'model'"
    if "stream_options" in body and not body.get("stream"):
        return "'stream_options' is only allowed when 'stream' is enabled"
    return _tools_fault(body) or _messages_fault(body.get("messages"))


def _tools_fault(body: dict[str, Any]) -> str | None:
    tools = body.get("tools")
    if tools is None:
        given = next((key for key in _ONLY_WITH_TOOLS if key in body), None)
        return f"'{given}' is only allowed when 'tools' are specified" if given else None
    if not isinstance(tools, list) or not tools:
        return "'tools' is too short"
    names: set[str] = set()
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            return f"invalid 'tools[{at}]'"
        extra = set(tool) - {"type", "function"} | (
            set(function) - {"name", "description", "parameters", "strict"}
        )
        if extra:
            return f"unknown parameter in 'tools[{at}]': {sorted(extra)[0]!r}"
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            return f"invalid 'tools[{at}].function.name'"
        names.add(name)
        if function.get("parameters", {}).get("type", "object") != "object":
            return f"invalid schema for function {name!r}: its type is not 'object'"
    return None


def _messages_fault(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' is too short"
    unanswered: list[str] = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"invalid 'messages[{at}].role'"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return (
                    f"'messages[{at}]' with role 'tool' must be a response to a preceding message "
                    "with 'tool_calls'"
                )
            unanswered.remove(message["tool_call_id"])
            continue
        if unanswered:
            break
        fault = _message_fault(message, at)
        if fault:
            return fault
        unanswered = [made["id"] for made in message.get("tool_calls", [])]
    if unanswered:
        ids = ", ".join(unanswered)
        return f"tool_call_ids did not have response messages: {ids}"
    return None


def _message_fault(message: dict[str, Any], at: int) -> str | None:
    calls = message.get("tool_calls")
    if calls is None:
        is_legal = _is_content(message.get("content"), of_user=message["role"] == "user")
        return None if is_legal else f"invalid 'messages[{at}].content'"
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        return f"invalid 'messages[{at}].tool_calls'"
    ids: set[str] = set()
    for made in calls:
        function = made.get("function", {})
        if not isinstance(made.get("id"), str) or not made["id"] or made["id"] in ids:
            return f"invalid id in 'messages[{at}].tool_calls'"
        if not _NAME.fullmatch(function.get("name") or ""):
            return f"invalid name in 'messages[{at}].tool_calls'"
        if not isinstance(function.get("arguments"), str):
            return f"invalid arguments in 'messages[{at}].tool_calls'"
        ids.add(made["id"])
    return None


def _is_content(content: Any, *, of_user: bool) -> bool:
    """A text, or parts: texts, and a user's images, each an address or data in the form of one."""
    if isinstance(content, str):
        return True
    return (
        isinstance(content, list) and bool(content) and all(_is_part(p, of_user) for p in content)
    )


def _is_part(part: Any, of_user: bool) -> bool:
    match part:
        case {"type": "text", "text": str()}:
            return True
        case {"type": "image_url", "image_url": {"url": str(url)}} | {
            "type": "image_url",
            "image_url": str(url),
        }:
            return of_user and url.startswith(("https://", "http://", "data:image/"))
    return False
