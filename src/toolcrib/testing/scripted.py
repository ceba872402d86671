"""Models that say what a test wrote down, in process or behind a real HTTP server; and a sink.

They offer what the request offers, so that hydration and the loop behave as with a real model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import msgspec
import orjson
from pydantic_core import PydanticSerializationError, to_json

from toolcrib.clients.base import PlanningClient
from toolcrib.errors import MissingExtraError, ToolcribError, counted
from toolcrib.values.call import ToolCall
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    Reply,
    StreamPart,
    TextPart,
    Usage,
)
from toolcrib.values.record import Attachment, ToolInvocationRecord
from toolcrib.values.run import RunRecord
from toolcrib.values.typed import Checked, check_each, names_wrong_types

_END_STATUSES = ("completed", "failed", "waiting")


class MemorySink:
    """All records that were written, in order: one for each call, when it is over.

    `attachments` are the definitions, prompts and choices of tools that the records refer to.
    `runs` has the beginning and the end of each run of an agent.
    """

    def __init__(self) -> None:
        self.records: list[ToolInvocationRecord] = []
        self.attachments: list[Attachment] = []
        self.runs: list[RunRecord] = []

    def write_run(self, record: RunRecord) -> None:
        self.runs.append(record)

    def attach(self, attachment: Attachment) -> None:
        self.attachments.append(attachment)

    def write(self, record: ToolInvocationRecord) -> None:
        self.records.append(record)

    def finished(self) -> list[ToolInvocationRecord]:
        """Return the records that say how a call ended, or that it waits."""
        return [record for record in self.records if record.status in _END_STATUSES]


# What a scripted model says, in the notation of the scripted client and the loopback servers.
#
# A turn is a text, a call, a list of texts and calls, a `Reply`, an exception, or a function that
# makes one of those from the request.


class ScriptedCall(Checked, msgspec.Struct, frozen=True):
    """A call that the scripted model makes. `arguments` is the text that it sends."""

    name: str
    arguments: str


Said: TypeAlias = str | ScriptedCall | Sequence[str | ScriptedCall]
"""What can be said in any form: text, calls, or both in order."""


class Spoken(msgspec.Struct, frozen=True):
    """A turn in its plain parts."""

    text: str
    calls: tuple[ScriptedCall, ...]


@names_wrong_types
def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """Return a call of the tool `name` with these arguments. Raises TypeError for values that are
    not JSON."""
    try:
        return ScriptedCall(name, to_json(arguments, inf_nan_mode="null").decode())
    except PydanticSerializationError as error:
        raise TypeError(f"the arguments of call({name!r}, …) are not JSON: {error}") from None


@names_wrong_types
def raw_call(name: str, arguments: str) -> ScriptedCall:
    """Return a call whose arguments are this text, valid or not."""
    return ScriptedCall(name, arguments)


def spoken(turn: Said | Reply) -> Spoken:
    """Return the text and the calls of a turn. Raises TypeError for a value that is no turn."""
    if isinstance(turn, Reply):
        calls = tuple(ScriptedCall(c.name, c.arguments) for c in turn.tool_calls)
        return Spoken(turn.text, calls)
    parts = [turn] if isinstance(turn, str | ScriptedCall) else turn
    if not isinstance(parts, Sequence):
        raise TypeError(f"{type(turn).__name__} is not a turn: use text, call(…) or a list of them")
    for part in parts:
        if not isinstance(part, str | ScriptedCall):
            raise TypeError(f"{type(part).__name__} is not a part of a turn: use text or call(…)")
    return Spoken(
        "".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, ScriptedCall)),
    )


Turn: TypeAlias = Said | Reply | Exception | Callable[[ChatRequest], Said | Reply | Exception]

_PIECE_LENGTH = 7


class ScriptedClient(PlanningClient):
    """An `LLMClient` that gives `turns`, one for each request, and keeps the requests in
    `requests`.

    An exception as a turn is raised. Raises ToolcribError when the script is used up.
    """

    @names_wrong_types
    def __init__(self, turns: Iterable[Turn], *, model: str = "scripted") -> None:
        self.requests: list[ChatRequest] = []
        if isinstance(turns, str):
            raise ToolcribError(
                "turns must be a list with an item for each turn, as in ScriptedClient(['…'])"
            )
        self._turns = list(turns)
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    @property
    def remaining(self) -> int:
        """How many turns have not been asked for yet."""
        return len(self._turns) - len(self.requests)

    async def chat(self, request: ChatRequest) -> Reply:
        return self._reply(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Yield text and arguments in small pieces, then the reply."""
        reply = self._reply(request)
        for piece in _pieces(reply.text):
            yield TextPart(piece)
        for tool_call in reply.tool_calls:
            for piece in _pieces(tool_call.arguments):
                yield ArgumentsPart(tool_call.id, tool_call.name, piece)
        yield reply

    def _reply(self, request: ChatRequest) -> Reply:
        ChatRequest.check(request)
        if self.remaining <= 0:
            raise ToolcribError(
                f"the script is used up: it has {counted(len(self._turns), 'turn')}, and this is one "
                f"request more; its last message: {_last_message_text(request)}"
            )
        turn = self._turns[len(self.requests)]
        self.requests.append(request)
        return self._as_reply(turn(request) if callable(turn) else turn, request)

    def _as_reply(self, turn: Said | Reply | Exception, request: ChatRequest) -> Reply:
        if isinstance(turn, Exception):
            raise turn
        offer = Offer.of(request.tools and request.with_answer_tool().tools)
        if isinstance(turn, Reply):
            return turn if turn.offer.tools else msgspec.structs.replace(turn, offer=offer)
        parts = spoken(turn)
        prefix = request.new_prefix()
        calls = tuple(
            ToolCall(f"{prefix}{index}", scripted_call.name, scripted_call.arguments)
            for index, scripted_call in enumerate(parts.calls)
        )
        message = Message.assistant(parts.text, calls)
        return Reply(message, "tool_calls" if calls else "stop", Usage(1), offer)


def _pieces(text: str) -> Iterable[str]:
    return (text[offset : offset + _PIECE_LENGTH] for offset in range(0, len(text), _PIECE_LENGTH))


def _last_message_text(request: ChatRequest) -> str:
    if not request.messages:
        return "none"
    last = request.messages[-1]
    return f"{last.role}, {len(last.content)} characters"


# A real HTTP server on 127.0.0.1 that speaks OpenAI's chat wire and says what a test wrote down.
#
# It judges each request as the provider would, and answers 400 to an illegal one. Its streams are as
# awkward as legal ones can be: small writes, arguments in many deltas, parallel calls interleaved.

# What OpenAI's server refuses in a chat completion request, in the server's own words.
#
# Written from the wire's documentation, not from the encoder, so that it can judge the encoder.

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = {"system", "developer", "user", "assistant", "tool"}
_ONLY_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")


def fault_of(body: Any) -> str | None:
    """Return what is wrong with a request's body, or None."""
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
        misplaced = next((key for key in _ONLY_WITH_TOOLS if key in body), None)
        return f"'{misplaced}' is only allowed when 'tools' are specified" if misplaced else None
    if not isinstance(tools, list) or not tools:
        return "'tools' is too short"
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            return f"invalid 'tools[{index}]'"
        unknown = set(tool) - {"type", "function"} | (
            set(function) - {"name", "description", "parameters", "strict"}
        )
        if unknown:
            return f"unknown parameter in 'tools[{index}]': {sorted(unknown)[0]!r}"
        name = function.get("name")
        if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name) or name in names:
            return f"invalid 'tools[{index}].function.name'"
        names.add(name)
        if function.get("parameters", {}).get("type", "object") != "object":
            return f"invalid schema for function {name!r}: its type is not 'object'"
    return None


def _messages_fault(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "'messages' is too short"
    unanswered: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"invalid 'messages[{index}].role'"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return (
                    f"'messages[{index}]' with role 'tool' must be a response to a preceding message "
                    "with 'tool_calls'"
                )
            unanswered.remove(message["tool_call_id"])
            continue
        if unanswered:
            break
        fault = _message_fault(message, index)
        if fault:
            return fault
        unanswered = [tool_call["id"] for tool_call in message.get("tool_calls", [])]
    if unanswered:
        ids = ", ".join(unanswered)
        return f"tool_call_ids did not have response messages: {ids}"
    return None


def _message_fault(message: dict[str, Any], index: int) -> str | None:
    calls = message.get("tool_calls")
    if calls is None:
        is_legal = _is_content(message.get("content"), of_user=message["role"] == "user")
        return None if is_legal else f"invalid 'messages[{index}].content'"
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        return f"invalid 'messages[{index}].tool_calls'"
    ids: set[str] = set()
    for tool_call in calls:
        function = tool_call.get("function", {})
        if (
            not isinstance(tool_call.get("id"), str)
            or not tool_call["id"]
            or tool_call["id"] in ids
        ):
            return f"invalid id in 'messages[{index}].tool_calls'"
        if not _NAME_PATTERN.fullmatch(function.get("name") or ""):
            return f"invalid name in 'messages[{index}].tool_calls'"
        if not isinstance(function.get("arguments"), str):
            return f"invalid arguments in 'messages[{index}].tool_calls'"
        ids.add(tool_call["id"])
    return None


def _is_content(content: Any, *, of_user: bool) -> bool:
    """Return whether it is a text, or parts: texts, and in a user's message also images, files and
    recordings, in OpenAI's form or in Mistral's."""
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
        case {
            "type": "input_audio",
            "input_audio": {"data": str(data), "format": "wav" | "mp3"},
        } | {"type": "input_audio", "input_audio": str(data)}:
            return of_user and bool(data)
        case {"type": "file", "file": {"filename": str(), "file_data": str(url)}}:
            return of_user and url.startswith("data:")
        case {"type": "document_url", "document_url": str(url)}:
            return of_user and url.startswith(("https://", "http://", "data:"))
    return False


if TYPE_CHECKING:
    from aiohttp import web

_WRITE_SIZE = 48
_DELTA_LENGTH = 5


class RawTurn(msgspec.Struct, frozen=True):
    """A body that is sent unchanged."""

    body: bytes
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = {}


class CutTurn(msgspec.Struct, frozen=True):
    """A turn that reached the limit on tokens. Its last call, or else its text, is cut in half."""

    turn: Said


class DyingTurn(msgspec.Struct, frozen=True):
    """A turn whose connection drops after that many bytes of the body."""

    after: int
    turn: Said | CutTurn | RawTurn


ServerTurn: TypeAlias = (
    Said | Reply | RawTurn | CutTurn | DyingTurn | Callable[[dict[str, Any]], Any]
)


@names_wrong_types
def raw(
    body: bytes | str, *, content_type: str = "text/event-stream", status: int = 200
) -> RawTurn:
    """Return a body of your own. The connection ends after it, without an error."""
    data = body.encode() if isinstance(body, str) else body
    return RawTurn(data, status, content_type)


@names_wrong_types
def cut(turn: Said) -> CutTurn:
    """Return the turn, cut by the limit on tokens, with the finish reason `length`."""
    return CutTurn(turn)


@names_wrong_types
def die_after(n_bytes: int, turn: Said | CutTurn | RawTurn) -> DyingTurn:
    """Return the turn, but the server dies after `n_bytes` of its body."""
    return DyingTurn(n_bytes, turn)


@names_wrong_types
def http_error(
    status: int, message: str = "scripted", *, retry_after: float | None = None
) -> RawTurn:
    """Return an error in OpenAI's form. `retry_after` is in seconds, for the header of that name."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    body = orjson.dumps({"error": {"message": message, "type": "scripted", "code": None}})
    return RawTurn(body, status, "application/json", headers)


_USED_UP_ERROR = msgspec.structs.replace(
    http_error(500, "the script is used up"), headers={"x-should-retry": "false"}
)


_TURN_TYPES: tuple[Any, ...] = (
    *(str, ScriptedCall, Sequence, Reply, RawTurn, CutTurn, DyingTurn),
    Callable,
)
_TURNS_IN_WORDS = (
    "a list of turns: texts, calls, lists of them, replies, or functions of the request"
)


class OpenAIServer:
    """`url` is the base URL for a client, `requests` the received bodies, and `headers` their
    headers."""

    base: ClassVar[str] = "/v1"
    path: ClassVar[str] = "/chat/completions"

    @names_wrong_types
    def __init__(self, turns: Iterable[ServerTurn]) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._turns = check_each("turns", turns, _TURN_TYPES, _TURNS_IN_WORDS)
        self._next = 0

    def fault(self, body: Any) -> str | None:
        """Return why the provider would refuse this request, or None."""
        return fault_of(body)

    def refusal(self, fault: str) -> RawTurn:
        """Return the answer to an illegal request."""
        return http_error(400, fault)

    def streams(self, request: web.Request, body: Any) -> bool:
        """Return whether a stream is asked for."""
        del request
        return bool(body.get("stream"))

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        """Return the body for a turn, the `number`th of the server."""
        return _answer(turn, number=number, stream=stream)

    def _fault(self, body: Any) -> str | None:
        """Return what is wrong with a body. `fault` raises if its types or its depth are unexpected."""
        try:
            return self.fault(body)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return "the body is not of this API's form"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError:
            return await self._send(request, self.refusal("the body is not JSON"))
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        fault = self._fault(body)
        if fault is not None:
            return await self._send(request, self.refusal(fault))
        if self._next >= len(self._turns):
            return await self._send(request, _USED_UP_ERROR)
        turn = self._turns[self._next]
        self._next += 1
        if callable(turn):
            turn = turn(body)
        byte_limit = turn.after if isinstance(turn, DyingTurn) else None
        turn = turn.turn if isinstance(turn, DyingTurn) else turn
        if not isinstance(turn, RawTurn):
            stream = self.streams(request, body)
            turn = self.answer(turn, number=self._next, stream=stream)
        return await self._send(request, turn, byte_limit)

    async def _send(
        self, request: web.Request, turn: RawTurn, byte_limit: int | None = None
    ) -> web.StreamResponse:
        """Write the body in small pieces. A dying server leaves before it says that it has ended."""
        response: web.StreamResponse = _web().StreamResponse(
            status=turn.status, headers=turn.headers
        )
        response.content_type = turn.content_type
        await response.prepare(request)
        body = turn.body if byte_limit is None else turn.body[:byte_limit]
        for offset in range(0, len(body), _WRITE_SIZE):
            await response.write(body[offset : offset + _WRITE_SIZE])
        if byte_limit is not None:
            if request.transport is not None:
                request.transport.close()
            return response
        await response.write_eof()
        return response


S = TypeVar("S", bound=OpenAIServer)


def _web() -> ModuleType:
    try:
        from aiohttp import web
    except ImportError:
        raise MissingExtraError("http", "a loopback server") from None
    return web


@contextlib.asynccontextmanager
async def openai_server(turns: Iterable[ServerTurn]) -> AsyncIterator[OpenAIServer]:
    """`async with openai_server(["Hello."]) as server:` and a client with `base_url=server.url`."""
    async with serving(OpenAIServer(turns)) as server:
        yield server


@contextlib.asynccontextmanager
async def serving(server: S) -> AsyncIterator[S]:
    """Run a server on a free port."""
    library = _web()
    app = library.Application(client_max_size=1 << 28)
    app.router.add_post(server.base + server.path, server.handle)
    runner = library.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = library.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}{server.base}"
        yield server
    finally:
        await runner.cleanup()


def _answer(turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
    parts, reason = ending(turn, calls="tool_calls", stop="stop", cut="length")
    ids = [f"call_{number}_{index}" for index in range(len(parts.calls))]
    if stream:
        return RawTurn(b"".join(_events(parts, ids, reason)))
    message: dict[str, Any] = {"role": "assistant", "content": parts.text or None}
    if parts.calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": scripted_call.name, "arguments": scripted_call.arguments},
            }
            for call_id, scripted_call in zip(ids, parts.calls, strict=True)
        ]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    body = {"object": "chat.completion", "choices": [choice], "usage": _USAGE}
    return RawTurn(orjson.dumps(body), content_type="application/json")


_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _events(parts: Spoken, ids: list[str], reason: str) -> Iterable[bytes]:
    yield _event({"role": "assistant", "content": ""})
    for offset in range(0, len(parts.text), _DELTA_LENGTH):
        yield _event({"content": parts.text[offset : offset + _DELTA_LENGTH]})
    for index, scripted_call in enumerate(parts.calls):
        start = {"index": index, "id": ids[index], "type": "function"}
        yield _event(
            {"tool_calls": [start | {"function": {"name": scripted_call.name, "arguments": ""}}]}
        )
    longest = max((len(scripted_call.arguments) for scripted_call in parts.calls), default=0)
    for offset in range(0, longest, _DELTA_LENGTH):
        for index, scripted_call in enumerate(parts.calls):
            if piece := scripted_call.arguments[offset : offset + _DELTA_LENGTH]:
                yield _event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _event({}, reason)
    yield b"data: " + orjson.dumps({"choices": [], "usage": _USAGE}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return (
        b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"
    )


def ending(turn: Said | Reply | CutTurn, *, calls: str, stop: str, cut: str) -> tuple[Spoken, str]:
    """Return what a turn says, and the finish reason: calls, a text, or cut in the middle."""
    if isinstance(turn, CutTurn):
        return halved(spoken(turn.turn)), cut
    parts = spoken(turn)
    return parts, calls if parts.calls else stop


def halved(parts: Spoken) -> Spoken:
    """Return the rest of a turn that was cut: half of its last call, or else of its text."""
    if not parts.calls:
        return Spoken(parts.text[: len(parts.text) // 2], ())
    last = parts.calls[-1]
    half = ScriptedCall(last.name, last.arguments[: len(last.arguments) // 2])
    return Spoken(parts.text, (*parts.calls[:-1], half))
