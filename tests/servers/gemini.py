"""A real HTTP server on 127.0.0.1 that speaks Gemini's wire and says what a test wrote down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from servers.ollama import in_one_line

from toolcrib.testing.scripted import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    Said,
    ScriptedCall,
    ServerTurn,
    halved,
    http_error,
    serving,
    spoken,
)
from toolcrib.values.message import Reply

# What Gemini's server refuses of a request to generate content, in about its words.
#
# Written from the wire's documentation, not from the encoder, so that the one can judge the other. The
# rule for thought signatures is that of Gemini 3.


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_MEMBERS = frozenset(
    (
        *("contents", "tools", "toolConfig", "systemInstruction", "generationConfig"),
        *("safetySettings", "cachedContent", "model", "labels", "serviceTier", "store"),
    )
)
_DECLARATION = frozenset(
    (
        *("name", "description", "behavior", "parameters", "parametersJsonSchema"),
        *("response", "responseJsonSchema"),
    )
)
_DATA = frozenset(
    (
        *("text", "inlineData", "fileData", "functionCall", "functionResponse"),
        *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
    )
)
_FREE = frozenset(("args", "response", "parametersJsonSchema", "responseJsonSchema", "schema"))
"""What these hold has keys of its user's own."""
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


def fault_of(body: Any) -> str | None:
    """What is wrong with a request's body, or None."""
    if not isinstance(body, dict):
        return "Invalid value (type.googleapis.com): the body is not a JSON object"
    body = _camel(body)
    if extra := sorted(set(body) - _MEMBERS):
        return f'Invalid JSON payload received. Unknown name "{extra[0]}": Cannot find field.'
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return "* GenerateContentRequest.contents: contents is not specified"
    faults = (_content_fault(content, at) for at, content in enumerate(contents))
    config = body.get("generationConfig", {})
    if body.get("tools") and config.get("responseMimeType") == "application/json":
        return "Function calling with a response mime type: 'application/json' is unsupported"
    fault = _tools_fault(body) or next(filter(None, faults), None)
    return fault or _turns_fault(contents) or _signature_fault(contents)


def _camel(node: Any) -> Any:
    """With the names of protobuf's JSON, which may also be those of the fields: `tool_config`."""
    if isinstance(node, list):
        return [_camel(item) for item in node]
    if not isinstance(node, dict):
        return node
    names = {key: re.sub("_([a-z])", lambda found: found[1].upper(), key) for key in node}
    return {names[key]: node[key] if names[key] in _FREE else _camel(node[key]) for key in node}


def _tools_fault(body: dict[str, Any]) -> str | None:
    names: set[str] = set()
    for tool in body.get("tools") or ():
        for at, declared in enumerate(tool.get("functionDeclarations") or ()):
            if extra := sorted(set(declared) - _DECLARATION):
                return f"Unknown name \"{extra[0]}\" at 'tools[0].function_declarations[{at}]'"
            name = declared.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                return (
                    f"* GenerateContentRequest.tools[0].function_declarations[{at}].name: Invalid "
                    "function name. Must start with a letter or an underscore."
                )
            if name in names:
                return f"Duplicate function declaration found: {name}"
            if "parameters" in declared and "parametersJsonSchema" in declared:
                return f"parameters_json_schema[{at}]: parameters must not be set beside it"
            names.add(name)
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    mode, allowed = config.get("mode", "AUTO"), config.get("allowedFunctionNames") or ()
    if mode not in _MODES:
        return f"Invalid value at 'tool_config.function_calling_config.mode': \"{mode}\""
    if mode in ("ANY", "VALIDATED") and not names:
        return "Function calling config is set without function_declarations."
    if allowed and mode not in ("ANY", "VALIDATED"):
        return (
            "Allowed function names should only be set with function calling mode ANY or VALIDATED"
        )
    unknown = [name for name in allowed if name not in names]
    return f"allowed_function_names contains unknown function: {unknown[0]}" if unknown else None


def _content_fault(content: Any, at: int) -> str | None:
    if not isinstance(content, dict) or content.get("role", "user") not in ("user", "model"):
        return "Please use a valid role: user, model."
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        return "Unable to submit request because it must include at least one parts field."
    for number, part in enumerate(parts):
        place = f"contents[{at}].parts[{number}]"
        data = _DATA & set(part) if isinstance(part, dict) else set()
        if len(data) != 1:
            return f"* {place}.data: required oneof field 'data' must have one initialized field"
        if fault := _function_fault(part, place):
            return fault
    return None


def _function_fault(part: dict[str, Any], place: str) -> str | None:
    for kind, member in (("functionCall", "args"), ("functionResponse", "response")):
        said = part.get(kind)
        if said is None:
            continue
        if not isinstance(said, dict) or not said.get("name"):
            return f"* GenerateContentRequest.{place}.{kind}.name: Name cannot be empty."
        if not isinstance(said.get(member, {}), dict):
            return f"Invalid value at '{place}.{kind}.{member}' (google.protobuf.Struct)"
        if "$ref" in said.get(member, {}):
            return f"Invalid value at '{place}.{kind}.{member}': $ref"
    return None


def _turns_fault(contents: list[dict[str, Any]]) -> str | None:
    """Calls come after a user's turn or after results, and exactly as many results right after them."""
    waiting: list[dict[str, Any]] = []
    before = ""
    for content in contents:
        made, given = list(_of(content, "functionCall")), list(_of(content, "functionResponse"))
        role = content.get("role", "user")
        if given and (role != "user" or not waiting):
            return (
                "Please ensure that function response turn comes immediately after a function "
                "call turn."
            )
        if len(given) != len(waiting) or sorted(map(_named, given)) != sorted(map(_named, waiting)):
            return (
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        if made and (role != "model" or before != "user"):
            return (
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn."
            )
        waiting, before = made, role
    return None


def _signature_fault(contents: list[dict[str, Any]]) -> str | None:
    """https://ai.google.dev/gemini-api/docs/thought-signatures: those of the turn at hand, by step."""
    for content in reversed(contents):
        if content.get("role", "user") == "user":
            if not list(_of(content, "functionResponse")):
                return None
            continue
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        if first is not None and not first.get("thoughtSignature"):
            name = first["functionCall"]["name"]
            return f"Function call is missing a thought_signature in functionCall parts: {name}."
    return None


def _of(content: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    return (part[kind] for part in content["parts"] if kind in part)


def _named(said: dict[str, Any]) -> str:
    return str(said["name"])


if TYPE_CHECKING:
    from aiohttp import web

_PIECE = 5
_END = b"\r\n\r\n"
_SIGNATURE = "c2lnbmVk"


class _Chunks(RawTurn, frozen=True):
    """Events of a stream, which are one JSON array for whoever does not ask for events."""

    def array(self) -> RawTurn:
        chunks = self.body.removeprefix(b"data: ").removesuffix(_END).split(_END + b"data: ")
        return RawTurn(b"[" + b",\n".join(chunks) + b"]", content_type="application/json")


class GeminiServer(OpenAIServer):
    """As `OpenAIServer`, in Gemini's words: calls have no ids, and the first of a turn is signed.

    A turn that is cut loses its last call. What a model wrote for arguments and is no JSON object ends
    the turn with MALFORMED_FUNCTION_CALL, and nothing of it is shown. Without `alt=sse` a stream is
    one JSON array.
    """

    base = "/v1beta"
    path = "/{model:.+}:{method:generateContent|streamGenerateContent}"

    def streams(self, request: web.Request, body: Any) -> bool:
        del body
        return str(request.match_info["method"]) == "streamGenerateContent"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def refusal(self, fault: str) -> RawTurn:
        error = {"code": 400, "message": fault, "status": "INVALID_ARGUMENT"}
        return msgspec.structs.replace(http_error(400), body=orjson.dumps({"error": error}))

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        said, reason = spoken(turn.turn if isinstance(turn, CutTurn) else turn), "STOP"
        calls = said.calls
        if isinstance(turn, CutTurn):
            said, calls, reason = halved(said), calls[:-1], "MAX_TOKENS"
        parts = [_call(made, first=at == 0) for at, made in enumerate(calls)]
        if any(part is None for part in parts):
            return _sent([_chunk([], number, "MALFORMED_FUNCTION_CALL")], stream=stream)
        size = _PIECE if stream else len(said.text) or 1
        texts = [{"text": said.text[at : at + size]} for at in range(0, len(said.text), size)]
        if not stream:
            return _sent([_chunk([*texts, *parts], number, reason)], stream=False)
        chunks = [_chunk([part], number) for part in (*texts, *parts)]
        return _sent([*chunks, _chunk([{"text": ""}], number, reason)], stream=True)

    async def _send(
        self, request: web.Request, turn: RawTurn, dying: int | None = None
    ) -> web.StreamResponse:
        if isinstance(turn, _Chunks) and request.query.get("alt") != "sse":
            turn = turn.array()
        return await super()._send(request, turn, dying)


@contextlib.asynccontextmanager
async def gemini_server(turns: Iterable[ServerTurn]) -> AsyncIterator[GeminiServer]:
    """`async with gemini_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(GeminiServer(turns)) as server:
        yield server


_USAGE = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}


def _sent(chunks: list[Any], *, stream: bool) -> RawTurn:
    if not stream:
        return RawTurn(orjson.dumps(chunks[0]), content_type="application/json")
    return _Chunks(b"".join(b"data: " + orjson.dumps(chunk) + _END for chunk in chunks))


def _call(made: ScriptedCall, *, first: bool) -> dict[str, Any] | None:
    """The part, or None where the arguments are no object."""
    try:
        args = orjson.loads(made.arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(args, dict):
        return None
    call = {"name": made.name, "args": in_one_line(made.arguments)}
    return {"functionCall": call} | ({"thoughtSignature": _SIGNATURE} if first else {})


def _chunk(parts: list[Any], number: int, reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    if reason is not None:
        candidate["finishReason"] = reason
    body = {"candidates": [candidate], "usageMetadata": _USAGE, "modelVersion": "scripted"}
    return body | {"responseId": f"response{number}"}
