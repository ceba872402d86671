"""A real HTTP server on 127.0.0.1 that speaks Anthropic's Messages and says what a test wrote down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson

from toolcrib.testing.scripted import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    Said,
    ServerTurn,
    Spoken,
    ending,
    serving,
)
from toolcrib.values.message import Reply

# What Anthropic's server refuses of a Messages request, in about its words.
#
# Written from the wire's documentation, not from the encoder, so that the one can judge the other.


_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID = re.compile(r"[A-Za-z0-9_-]+")
_MEMBERS = frozenset(
    (
        *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream"),
        *("temperature", "top_p", "top_k", "stop_sequences", "metadata", "service_tier"),
        *("thinking", "cache_control", "container", "output_config"),
    )
)
_TOOL = frozenset(
    ("type", "name", "description", "input_schema", "strict", "input_examples", "defer_loading")
)
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
    return (
        _tools_fault(body) or _system_fault(body) or _messages_fault(body) or _deferred_fault(body)
    )


def _tools_fault(body: dict[str, Any]) -> str | None:
    names: set[str] = set()
    for at, tool in enumerate(body.get("tools", [])):
        if extra := sorted(set(tool) - _TOOL):
            return f"tools.{at}.{extra[0]}: Extra inputs are not permitted"
        if tool.get("type", "custom") != "custom":
            return f"tools.{at}.type: Input should be 'custom'"
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


def _deferred_fault(body: dict[str, Any]) -> str | None:
    """https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool#error-handling"""
    tools = body.get("tools", [])
    deferred = {tool["name"] for tool in tools if tool.get("defer_loading")}
    if deferred and len(deferred) == len(tools):
        return "All tools have defer_loading set. At least one tool must be non-deferred."
    if deferred and any("input_examples" in tool for tool in tools):
        return "tool search is not compatible with input_examples"
    for name in _references(body.get("messages", [])):
        if name not in deferred:
            return f"Tool reference '{name}' has no corresponding tool definition"
    return None


def _references(messages: list[Any]) -> Iterator[str]:
    """The tools that results refer to; what is next to a reference is no documented form."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            parts = block.get("content") if block.get("type") == "tool_result" else None
            if isinstance(parts, list) and "tool_reference" in {part["type"] for part in parts}:
                yield from (part.get("tool_name", "a text") for part in parts)


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


_PIECE = 5


class AnthropicServer(OpenAIServer):
    """As `OpenAIServer`, in Anthropic's words; requests must say `anthropic-version`."""

    base = ""
    path = "/v1/messages"

    def fault(self, body: Any) -> str | None:
        if "anthropic-version" not in self.headers[-1]:
            return "anthropic-version: header is required"
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="tool_use", stop="end_turn", cut="max_tokens")
        start: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 1},
        }
        if stream:
            return RawTurn(b"".join(_events(said, start, number, reason)))
        content = [
            *([{"type": "text", "text": said.text}] if said.text else []),
            *(
                _begun(number, at, made.name) | {"input": _object(made.arguments)}
                for at, made in enumerate(said.calls)
            ),
        ]
        body = start | {"content": content, "stop_reason": reason, "usage": _USAGE}
        return RawTurn(orjson.dumps(body), content_type="application/json")


@contextlib.asynccontextmanager
async def anthropic_server(turns: Iterable[ServerTurn]) -> AsyncIterator[AnthropicServer]:
    """`async with anthropic_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(AnthropicServer(turns)) as server:
        yield server


_USAGE = {"input_tokens": 11, "output_tokens": 7}


def _events(said: Spoken, start: Any, number: int, reason: str) -> Iterable[bytes]:
    yield _event("message_start", message=start)
    yield _event("ping")
    blocks: list[tuple[dict[str, Any], str, str, str]] = [
        (_begun(number, at, made.name), "input_json_delta", "partial_json", made.arguments)
        for at, made in enumerate(said.calls)
    ]
    if said.text:
        blocks.insert(0, ({"type": "text", "text": ""}, "text_delta", "text", said.text))
    for index, (begun, kind, member, text) in enumerate(blocks):
        yield _event("content_block_start", index=index, content_block=begun)
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        for piece in pieces if kind == "text_delta" else ["", *pieces]:
            yield _event("content_block_delta", index=index, delta={"type": kind, member: piece})
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": 7})
    yield _event("message_stop")


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind} | members) + b"\n\n"


def _begun(number: int, at: int, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": {}}


def _object(arguments: str) -> Any:
    """The input in a whole reply: an empty one for what is no JSON, such as half of a call."""
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(arguments)
