"""From a recorded body of OpenAI's chat, or Mistral's, back to the request that it was made of."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire.openai_chat_reply import MEMBERS

Row = dict[str, Any]


class Unsupported(Exception):  # noqa: N818
    """The body holds what the semantic types have no word for."""


_MODES: dict[str | None, Any] = {"any": "required", None: "auto"}
_OWN = ("model", "messages", "tools", "tool_choice", "stream", "temperature", "max_tokens",
        "parallel_tool_calls")  # fmt: skip

_MEMBERS = {"role", "content", "tool_calls", "tool_call_id", "name", "prefix", "annotations"}
"""Those of a message that are read, or say nothing."""


def request_of(body: Row) -> ChatRequest:
    """Raises Unsupported."""
    messages: list[Message] = []
    calls: dict[str, ToolCall] = {}
    for message in body["messages"]:
        kept = {key: value for key, value in message.items() if key in MEMBERS}
        if more := message.keys() - _MEMBERS - kept.keys():
            raise Unsupported(*sorted(more))
        role, content = message["role"], message.get("content")
        if role == "tool":
            if message["tool_call_id"] not in calls:
                raise Unsupported("a result without its call")
            messages.append(Message.tool(calls[message["tool_call_id"]], _text(content)))
        elif role == "assistant":
            made = [
                _call(call, len(calls) + n)
                for n, call in enumerate(message.get("tool_calls") or ())
            ]
            calls |= {call.provider_id: call for call in made}
            state = ProviderState("openai-chat", kept) if kept else None
            said = Message.assistant(_text(content), tuple(made))
            messages.append(msgspec.structs.replace(said, provider_state=state))
        elif role in ("system", "user") and not message.get("tool_calls"):
            messages.append(Message(role, _text(content), images=_images(content)))
        else:
            raise Unsupported(role)
    choice = body.get("tool_choice", "auto")
    named = _named(choice) if isinstance(choice, dict) else None
    mode: Any = "tool" if named else _MODES.get(choice, choice)
    return ChatRequest(
        tuple(messages),
        tuple(map(_tool, body.get("tools") or ())),
        ToolChoice(mode, named),
        Settings(body.get("temperature"), body.get("max_tokens"),
                 {key: body[key] for key in body if key not in _OWN}),
        parallel_calls=body.get("parallel_tool_calls"),
    )  # fmt: skip


def _named(choice: Row) -> str:
    if "function" not in choice:
        raise Unsupported("a choice in another form")
    return str(choice["function"]["name"])


def _call(call: Row, number: int) -> ToolCall:
    function = call["function"]
    return ToolCall(
        f"call_{number}", function["name"], function["arguments"], provider_id=call["id"]
    )


def _tool(tool: Row) -> Any:
    if tool.get("type", "function") != "function" or "function" not in tool:
        raise Unsupported("a tool of the provider's own")
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
        "strict": function.get("strict"),
    }


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if other := {part["type"] for part in content} - {"text", "image_url"}:
        raise Unsupported(*other)
    return "".join(part["text"] for part in content if part["type"] == "text")


def _images(content: Any) -> tuple[Image, ...]:
    if not isinstance(content, list):
        return ()
    urls = [part["image_url"] for part in content if part["type"] == "image_url"]
    return tuple(Image(url=url if isinstance(url, str) else url["url"]) for url in urls)


def normal(body: Row, *, required: str = "any") -> Row:
    """A body without the freedom that the format leaves: two that mean the same are equal.

    `required` is the wire's word for a choice of any tool.
    """
    body = json.loads(json.dumps(body))
    ids: dict[str, int] = {}
    for message in body["messages"]:
        content = message.get("content") or ""
        message["content"] = (_text(content), [image.url for image in _images(content)])
        for nothing in ("prefix", "name", "annotations"):
            message.pop(nothing, None)
        if "tool_call_id" in message:
            message["tool_call_id"] = ids[message["tool_call_id"]]
        for call in message.get("tool_calls") or ():
            call["id"] = ids.setdefault(call["id"], len(ids))
            call.pop("index", None)
    for tool in body.get("tools") or ():
        tool["type"] = "function"
        tool["function"] = {key: value for key, value in tool["function"].items() if value != ""}
    if body.get("tool_choice", "auto") in ("auto", None):
        body.pop("tool_choice", None)
    elif body.get("tool_choice") in ("required", "any"):
        body["tool_choice"] = required
    return {"stream": False} | {key: value for key, value in body.items() if value is not None}
