"""A real HTTP server on 127.0.0.1 that speaks Bedrock's Converse and says what a test wrote down."""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

# What Bedrock refuses of a Converse request, in about its words.
#
# Written from the wire's documentation, not from the encoder, so that the one can judge the other.


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MEMBERS = frozenset(
    (
        *("messages", "system", "inferenceConfig", "toolConfig", "guardrailConfig"),
        *("additionalModelRequestFields", "additionalModelResponseFieldPaths", "promptVariables"),
        *("requestMetadata", "performanceConfig", "serviceTier", "outputConfig"),
    )
)
_BLOCKS = frozenset(
    (
        *("text", "image", "document", "video", "audio", "toolUse", "toolResult", "guardContent"),
        *("cachePoint", "reasoningContent", "citationsContent", "searchResult"),
    )
)
_SPEC = frozenset(("name", "description", "inputSchema", "strict"))
_INFERENCE = frozenset(("maxTokens", "temperature", "topP", "stopSequences"))
_RESULTS = frozenset(("text", "json", "image", "document", "video", "searchResult"))


def fault_of(body: Any) -> str | None:
    """What is wrong with a request's body, or None."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if extra := sorted(set(body) - _MEMBERS):
        return f"extraneous key [{extra[0]}] is not permitted"
    if extra := sorted(set(body.get("inferenceConfig", {})) - _INFERENCE):
        return f"inferenceConfig: extraneous key [{extra[0]}] is not permitted"
    if not all(block.get("text", "x").strip() for block in body.get("system", ())):
        return "The text field in the SystemContentBlock object is blank"
    return _tools_fault(body.get("toolConfig")) or _messages_fault(body)


def _tools_fault(config: Any) -> str | None:
    if config is None:
        return None
    names: set[str] = set()
    for at, tool in enumerate(config.get("tools") or ({},)):
        if fault := _spec_fault(tool.get("toolSpec"), names):
            return f"toolConfig.tools.{at}.{fault}"
        names.add(tool["toolSpec"]["name"])
    choice = config.get("toolChoice", {"auto": {}})
    if len(choice) != 1 or not choice.keys() <= {"auto", "any", "tool"}:
        return "toolConfig.toolChoice must be one of: auto, any, tool"
    wanted = choice.get("tool", {"name": None}).get("name")
    if "tool" in choice and wanted not in names:
        return f"toolConfig.toolChoice.tool.name: {wanted!r} is not one of the tools"
    return None


def _spec_fault(spec: Any, names: set[str]) -> str | None:
    if not isinstance(spec, dict) or not set(spec) <= _SPEC:
        return "toolSpec: extraneous or missing key"
    if not _NAME.fullmatch(spec.get("name", "")) or spec["name"] in names:
        return "toolSpec.name must be unique and satisfy a pattern"
    if spec.get("description") == "":
        return "toolSpec.description must have a length of at least 1"
    schema = spec.get("inputSchema", {}).get("json", {})
    if schema.get("type") != "object":
        return "toolSpec.inputSchema.json.type must be one of the following: object"
    return None


def _messages_fault(body: Mapping[str, Any]) -> str | None:
    messages = body.get("messages")
    if not messages:
        return "A conversation must have at least one message"
    before, waiting, seen = "assistant", list[str](), set[str]()
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or set(message) != {"role", "content"}:
            return f"messages.{at}: extraneous or missing key"
        if role == before:
            first = "start with a user message" if at == 0 else "alternate between the roles"
            return f"A conversation must {first}"
        if not content or (fault := _content_fault(content)):
            return f"messages.{at}: {fault if content else 'the content field is empty'}"
        before = role
        if fault := _calls_fault(role, content, waiting, seen):
            return fault
        waiting = [block["toolUse"]["toolUseId"] for block in content if _is_call(block)]
    if (waiting or seen) and "toolConfig" not in body:
        return (
            "The toolConfig field must be defined when using toolUse and toolResult content blocks"
        )
    return f"toolUse without toolResult: {waiting}" if waiting else None


def _content_fault(content: Sequence[Any]) -> str | None:
    for block in content:
        if len(block) != 1 or not block.keys() <= _BLOCKS:
            return "a content block must have exactly one known member"
        if "text" in block and not block["text"].strip():
            return "The text field in the ContentBlock object is blank"
        use = block.get("toolUse", {"toolUseId": "x", "name": "x", "input": {}})
        if not _ID.fullmatch(use["toolUseId"]) or not _NAME.fullmatch(use["name"]):
            return "toolUse must satisfy a pattern"
        if not isinstance(use["input"], dict):
            return "The format of the value at toolUse.input is invalid. Provide a json object"
        for part in block.get("toolResult", {}).get("content", ()):
            if len(part) != 1 or not part.keys() <= _RESULTS or part.get("text") == "":
                return "toolResult.content is invalid"
        if block.get("toolResult", {}).get("status", "error") not in ("success", "error"):
            return "toolResult.status must be one of: success, error"
    return None


def _calls_fault(
    role: str, content: Sequence[Any], waiting: list[str], seen: set[str]
) -> str | None:
    results = [
        b["toolResult"]["toolUseId"] for b in content if "toolResult" in b and role == "user"
    ]
    if role == "user" and sorted(results) != sorted(waiting):
        return f"Expected toolResult blocks for the following Ids: {waiting}"
    made = [block["toolUse"]["toolUseId"] for block in content if _is_call(block)]
    if role == "user" and made:
        return "toolUse in a message of the user"
    if len(set(made)) != len(made) or seen & set(made):
        return "toolUse ids must be unique"
    seen |= set(made)
    return None


def _is_call(block: Mapping[str, Any]) -> bool:
    return "toolUse" in block and block["toolUse"].get("type") != "server_tool_use"


if TYPE_CHECKING:
    from aiohttp import web

_PIECE = 5
_FRAMES = "application/vnd.amazon.eventstream"


class BedrockServer(OpenAIServer):
    """As `OpenAIServer`, in Bedrock's words and binary frames. It checks no signature."""

    base = ""
    path = "/model/{model}/{method:converse|converse-stream}"

    def streams(self, request: web.Request, body: Any) -> bool:
        del body
        return str(request.match_info["method"]) == "converse-stream"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = ending(turn, calls="tool_use", stop="end_turn", cut="max_tokens")
        uses = [
            {"toolUseId": f"tooluse_{number}_{at}", "name": made.name}
            for at, made in enumerate(said.calls)
        ]
        if stream:
            return RawTurn(b"".join(_events(said, uses, reason)), content_type=_FRAMES)
        content: list[dict[str, Any]] = [{"text": said.text}] if said.text else []
        content += [
            {"toolUse": use | {"input": _object(made.arguments)}}
            for use, made in zip(uses, said.calls, strict=True)
        ]
        message = {"role": "assistant", "content": content}
        body = {"output": {"message": message}, "stopReason": reason, **_SPENT}
        return RawTurn(orjson.dumps(body), content_type="application/json")


@contextlib.asynccontextmanager
async def bedrock_server(turns: Iterable[ServerTurn]) -> AsyncIterator[BedrockServer]:
    """`async with bedrock_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(BedrockServer(turns)) as server:
        yield server


_SPENT = {
    "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
    "metrics": {"latencyMs": 1},
}


def frame(payload: Any, **headers: str) -> bytes:
    """One frame of an event stream; `event_type="metadata"` is the header `:event-type`.

    https://smithy.io/2.0/aws/amazon-eventstream.html
    """
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    said = {"message_type": "event", "content_type": "application/json"} | headers
    head = b"".join(map(_header, said, said.values()))
    prelude = struct.pack(">II", 16 + len(head) + len(data), len(head))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + data
    return whole + struct.pack(">I", zlib.crc32(whole))


def _header(name: str, value: str) -> bytes:
    name, data = f":{name.replace('_', '-')}", value.encode()
    return bytes([len(name)]) + name.encode() + struct.pack(">BH", 7, len(data)) + data


def _events(said: Spoken, uses: list[dict[str, str]], reason: str) -> Iterable[bytes]:
    """A text begins without an announcement; every event is padded with `p`."""
    yield frame({"role": "assistant", "p": "abc"}, event_type="messageStart")
    if said.text:
        for at in range(0, len(said.text), _PIECE):
            yield _delta(0, {"text": said.text[at : at + _PIECE]})
        yield frame({"contentBlockIndex": 0, "p": "ab"}, event_type="contentBlockStop")
    made_uses = zip(uses, said.calls, strict=True)
    for index, (use, made) in enumerate(made_uses, 1 if said.text else 0):
        start = {"contentBlockIndex": index, "start": {"toolUse": use}, "p": "abcd"}
        yield frame(start, event_type="contentBlockStart")
        for at in (None, *range(0, len(made.arguments), _PIECE)):
            piece = "" if at is None else made.arguments[at : at + _PIECE]
            yield _delta(index, {"toolUse": {"input": piece}})
        yield frame({"contentBlockIndex": index, "p": "a"}, event_type="contentBlockStop")
    yield frame({"stopReason": reason, "p": "abcde"}, event_type="messageStop")
    yield frame(_SPENT | {"p": "abcdef"}, event_type="metadata")


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    event = {"contentBlockIndex": index, "delta": delta, "p": "abcdefghij"}
    return frame(event, event_type="contentBlockDelta")


def _object(arguments: str) -> Any:
    """The input in a whole reply: an empty one for what is no JSON, such as half of a call."""
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(arguments)
