"""Recorded bodies of Anthropic requests, read back into semantic types; and what makes two equal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice

Json = dict[str, Any]

_OWN = (
    "model",
    "max_tokens",
    "temperature",
    "system",
    "messages",
    "tools",
    "tool_choice",
    "stream",
)
_MODES: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
MARKERS = ("cache_control", "defer_loading", "eager_input_streaming")
"""Members of tools and blocks that have no place in the semantic types."""


class Unsupported(Exception):  # noqa: N818
    """The body holds what the semantic types have no word for."""


def request_of(body: Json) -> ChatRequest:
    """The request that a recorded body was made of. Raises Unsupported."""
    choice = body.get("tool_choice") or {"type": "auto"}
    tools = tuple(map(_tool, body.get("tools") or ()))
    system = body.get("system") or []
    system = [system] if isinstance(system, str) else [block["text"] for block in system]
    extra = {key: body[key] for key in body if key not in _OWN}
    messages = [Message.system(text) for text in system]
    calls: dict[str, ToolCall] = {}
    for message in body["messages"]:
        messages += _messages(message, calls)
    return ChatRequest(
        tuple(messages),
        tools,  # type: ignore[arg-type]
        ToolChoice(_MODES[choice["type"]], choice.get("name")),
        Settings(body.get("temperature"), body["max_tokens"], extra),
        parallel_calls=False if choice.get("disable_parallel_tool_use") else None,
    )


def _tool(tool: Json) -> Json:
    if tool.get("type", "custom") != "custom":
        raise Unsupported(f"the provider's own tool: {tool['type']}")
    return {
        key: tool[key] for key in ("name", "description", "input_schema", "strict") if key in tool
    }


def _messages(message: Any, calls: dict[str, ToolCall]) -> Iterable[Message]:
    if not isinstance(message, dict):
        raise Unsupported("no message")
    blocks = blocks_of(message["content"])
    if message["role"] == "assistant":
        yield _assistant(blocks, calls)
    elif message["role"] == "user":
        yield from _user(blocks, calls)
    else:
        raise Unsupported(f"a message of the role {message['role']}")


def _assistant(blocks: list[Json], calls: dict[str, ToolCall]) -> Message:
    made = [
        ToolCall(
            f"call_{len(calls) + n}",
            block["name"],
            json.dumps(block["input"]),
            provider_id=block["id"],
        )
        for n, block in enumerate(block for block in blocks if block["type"] == "tool_use")
    ]
    calls |= {call.provider_id: call for call in made}
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    state = None
    if len(texts) > 1 or {"text", "tool_use"} < {"text", "tool_use", *map(_kind, blocks)}:
        data = [block | {"input": 0} if block["type"] == "tool_use" else block for block in blocks]
        state = ProviderState("anthropic", data)
    return Message("assistant", "".join(texts), tuple(made), provider_state=state)


def _kind(block: Json) -> str:
    """The type of a block; that of a text with citations is its own."""
    return f"cited {block['type']}" if block.get("citations") else str(block["type"])


def _user(blocks: list[Json], calls: dict[str, ToolCall]) -> Iterable[Message]:
    for block in blocks:
        if block["type"] == "tool_result":
            text = _result_text(block.get("content", ""))
            is_error = bool(block.get("is_error"))
            yield Message.tool(calls[block["tool_use_id"]], text, is_error=is_error)
        elif block["type"] == "text":
            yield Message.user(block["text"])
        elif block["type"] == "image":
            source = block["source"]
            if source["type"] not in ("base64", "url"):
                raise Unsupported(f"an image from a {source['type']}")
            yield Message.user("", (Image(source.get("media_type", ""), source.get("data", ""),
                                          source.get("url", "")),))  # fmt: skip
        else:
            raise Unsupported(f"a user's {block['type']}")


def _result_text(content: Any) -> str:
    blocks = blocks_of(content)
    if any(block["type"] != "text" for block in blocks):
        raise Unsupported("a result that is not text")
    return "".join(block["text"] for block in blocks)


def blocks_of(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def normal(body: Json) -> Json:
    """A body without the freedom that the format leaves: two that mean the same are equal."""
    body = _unmarked(body)
    messages: list[Json] = []
    for message in body["messages"]:
        blocks = [_normal_block(block) for block in blocks_of(message["content"])]
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": message["role"], "content": blocks})
    body["messages"] = messages
    if "system" in body:
        body["system"] = blocks_of(body["system"])
    if body.get("tool_choice") == {"type": "auto"}:
        del body["tool_choice"]
    for tool in body.get("tools", ()):
        if tool.get("type") == "custom":
            del tool["type"]
        if not tool.get("description"):
            tool.pop("description", None)
    return {key: value for key, value in body.items() if key not in ("model", "stream")}


def _normal_block(block: Json) -> Json:
    if block["type"] != "tool_result":
        return {key: value for key, value in block.items() if (key, value) != ("citations", None)}
    form = block | {"content": _result_text(block.get("content", ""))}
    if not form.get("is_error"):
        form.pop("is_error", None)
    return form


def _unmarked(value: Any) -> Any:
    """A copy without what has no place in the semantic types, below the top."""
    copy = json.loads(json.dumps(value))
    for part in _parts(copy):
        for key in MARKERS:
            part.pop(key, None)
    return copy


def marks_of(body: Json) -> set[str]:
    return {key for part in _parts(body) for key in MARKERS if key in part}


def _parts(body: Json) -> Iterable[Json]:
    """The tools and the blocks of a body."""
    yield from body.get("tools") or ()
    for content in (body.get("system"), *(message["content"] for message in body["messages"])):
        for block in content if isinstance(content, list) else ():
            yield block
            inner = block.get("content") if block["type"] == "tool_result" else None
            yield from inner if isinstance(inner, list) else ()
