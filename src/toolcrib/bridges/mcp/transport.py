"""The two ways to a server, with limits: a program's standard input and output, and streamable
HTTP.

Rules: a message has at most `MAX_MESSAGE` bytes. Of a longer one nothing more is kept, and the call
that it answers is told so. A program that was started is ended, with everything that it started. If
a server cannot be reached, or its `auth` fails, only the call that needed it ends, with a
`RequestFault`: `NOT_SENT` if nothing was sent, `BROKEN` if nobody knows. The call's id is known
before it is sent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PARAM_HEADER_PREFIX,
    MCP_PROTOCOL_VERSION_HEADER,
)
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, METHOD_NOT_FOUND

from toolcrib.bridges.mcp.faults import MAX_MESSAGE, RequestFault, clean_message, marked
from toolcrib.bridges.mcp.pipes import BoundedLines, Line
from toolcrib.bridges.mcp.servers import HttpServer, StdioServer
from toolcrib.errors import SourceError
from toolcrib.failures import log_raised
from toolcrib.values.json import has_key_twice

_ELSEWHERE = (301, 302, 303)  # after these the next request is a GET: the call is not sent again
_TAIL = 4_096  # bytes kept of a server's standard error
# seconds that a program gets to end by itself, and again after a signal; also for a DELETE by HTTP
_ENDS = 2.0
_LOOK = 0.01
_TO_CONNECT = 30.0  # seconds to connect, and to write
_KEPT = 20  # connections that are kept for later requests
_MOST_OF_AN_ERROR = 65_536
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
_OF_ROUNDS = frozenset(("requestState", "inputResponses"))
_OF_CALLS = (MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_PROTOCOL_VERSION_HEADER)
_KEPT_HEADERS = ("content-type", "mcp-session-id", "mcp-protocol-version")

Incoming = SessionMessage | Exception


class StdioTransport:
    """Starts a program for each connection, and keeps the end of what it wrote to standard error.

    `ended` is called when the program has closed its standard output, so that no further answer
    comes.
    """

    def __init__(self, server: StdioServer, ended: Callable[[], None]) -> None:
        self._server = server
        self._ended = ended
        self._stderr = bytearray()

    @property
    def stderr_tail(self) -> str:
        """The end of what the program wrote to its standard error."""
        text = self._stderr.decode("utf-8", "replace")
        if len(self._stderr) < _TAIL:
            return text
        # the first line may be the end of a secret
        first_line, newline, rest = text.partition("\n")
        return rest if newline and rest.strip() else first_line.partition(" ")[2]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Yield the two streams of an `mcp` session. Raises SourceError if the program cannot start."""
        self._stderr.clear()
        process = await self._start()
        to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with (
                to_session,
                incoming,
                outgoing,
                from_session,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._read, process, to_session)
                tasks.start_soon(_write, process, from_session, to_session)
                tasks.start_soon(self._collect_stderr, process)
                try:
                    yield incoming, outgoing
                finally:
                    with anyio.CancelScope(shield=True):
                        await _end_process(process)
                    tasks.cancel_scope.cancel()
        finally:  # a process that was left behind may hold the other ends of the pipes
            with suppress(AttributeError, PermissionError, ProcessLookupError):
                process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001

    async def _start(self) -> asyncio.subprocess.Process:
        server = self._server
        environment = get_default_environment() | dict(server.env)
        program = _program_of(server, environment.get("PATH"))
        try:
            return await asyncio.create_subprocess_exec(
                program,
                *server.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                cwd=server.cwd,
                limit=1 << 16,
                start_new_session=sys.platform != "win32",
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"'{server.command}' cannot be started ({reason})") from None

    async def _read(
        self, process: asyncio.subprocess.Process, to_session: MemoryObjectSendStream[Incoming]
    ) -> None:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        lines = BoundedLines(MAX_MESSAGE)
        try:
            async with to_session:
                while chunk := await process.stdout.read(1 << 16):
                    for message in map(read_line, lines.feed(chunk)):
                        if isinstance(message, UnanswerableError):
                            return
                        if message is not None:
                            await to_session.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass  # the session has ended
        finally:
            self._ended()

    async def _collect_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101  likewise
        while chunk := await process.stderr.read(1 << 16):
            self._stderr += chunk
            del self._stderr[:-_TAIL]


def _program_of(server: StdioServer, search_path: str | None) -> str:
    """Return the path of a server's program. Raises SourceError if there is none."""
    command = server.command
    if server.cwd is not None and Path(command).name != command:
        command = str(Path(server.cwd, command).absolute())
    program = shutil.which(command, path=search_path)
    if program is None:
        raise SourceError(f"there is no program '{server.command}'")
    return program


class UnanswerableError(ValueError):
    """A message is too long, and the call that it answers is not known. The session ends."""


def read_line(line: Line) -> Incoming | None:
    """Return the message in a line, or what takes its place."""
    if line.cut:
        text = f"the server's answer is larger than {MAX_MESSAGE} bytes"
        return _error_instead(line, RequestFault.TOO_LARGE, text) or UnanswerableError(text)
    if not line.data.strip():
        return None
    try:
        return SessionMessage(clean_message(_parsed_message(line.data)))
    except ValueError:
        text = "a line from the server is not a JSON-RPC message"  # none of its text is shown
        return _error_instead(line, RequestFault.UNREADABLE, text) or ValueError(text)


def _parsed_message(data: bytes) -> types.JSONRPCMessage:
    """Return the message in a line. Raises ValueError for anything else, and for a key that is there
    twice."""
    if has_key_twice(data):
        raise ValueError("an object has a key twice")
    return types.jsonrpc_message_adapter.validate_json(data, by_name=False)


def _error_instead(line: Line, fault: RequestFault, text: str) -> SessionMessage | None:
    """Return an error for the request that a line answers, if it says which."""
    envelope = line.envelope
    request_id = envelope.get("id")
    # with a method it is a request of the server; the ids of our own requests are numbers
    if "method" in envelope or not isinstance(request_id, int):
        return None
    return SessionMessage(
        types.JSONRPCError(jsonrpc="2.0", id=request_id, error=marked(fault, text))
    )


async def _write(
    process: asyncio.subprocess.Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: MemoryObjectSendStream[Incoming],
) -> None:
    assert process.stdin is not None  # noqa: S101  it is a pipe
    try:
        async with from_session:
            async for outgoing in from_session:
                text = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except OSError:
        await to_session.aclose()  # waiting calls are told that no answer comes


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End a program as MCP says: its input is closed, then it is told to end, then it is killed."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    for number in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if number is not None:
            _signal_group(process, number)
        waited = 0.0
        while process.returncode is None and waited < _ENDS:
            await asyncio.sleep(_LOOK)
            waited += _LOOK
        if process.returncode is not None:
            break
    # for the processes that it left behind
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    """Signal the program and everything it started, since it leads a process group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


class HttpTransport:
    """Reaches a server over HTTP.

    `sent` is called with the headers that were sent, to which `auth` may have added a secret.
    `hear` is told whether the server's own messages are heard.
    """

    stderr_tail = ""

    def __init__(
        self,
        server: HttpServer,
        sent: Callable[[Mapping[str, str]], None],
        hear: Callable[[bool], None],
    ) -> None:
        self._server = server
        self._sent = sent
        self._hear = hear

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Yield the two streams of an `mcp` session."""
        server = self._server
        client = _Client(
            headers=dict(server.headers),
            auth=server.auth,
            verify=_certificates(),
            timeout=httpx2.Timeout(_TO_CONNECT, read=None),  # calls have their own time limits
            # runners limit how many calls run together, and a call must not keep the end of another
            # from being told
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT),
            event_hooks={"request": [_note_sent], "response": [_note_answer]},
        )
        client.sent, client.hear = self._sent, self._hear
        streams = streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        )
        async with client, streams as pair:
            yield pair


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates for all sessions. Reading them blocks the event loop for many
    milliseconds."""
    return httpx2.create_ssl_context()


class _Sending:
    """A request that is being sent to `url`, among those that its `auth` sends for it, and whether
    the server may have done what it asks."""

    def __init__(self, url: httpx2.URL) -> None:
        self.url = url
        self.may_be_done = False


_SENDING: ContextVar[_Sending | None] = ContextVar("toolcrib mcp request", default=None)


async def _note_sent(request: httpx2.Request) -> None:
    sending = _SENDING.get()
    if sending is not None and request.url == sending.url:
        sending.may_be_done = True


async def _note_answer(response: httpx2.Response) -> None:
    sending = _SENDING.get()
    if sending is not None and response.url == sending.url and response.is_client_error:
        sending.may_be_done = False  # such as 401, before `auth` signs in


class _Client(httpx2.AsyncClient):
    """Answers a request that failed below MCP with a JSON-RPC error, so that no other request
    suffers. What `send` raises would end the whole session."""

    sent: Callable[[Mapping[str, str]], None]
    hear: Callable[[bool], None]
    last_event = ""  # of the server's own stream, which has its unrequested messages

    async def _send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        headers = response.request.headers.items()
        self.sent({name: value for name, value in headers if not _tells_of_a_call(name.lower())})
        return response

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            return await self._leave_session(request, **options)
        if request.method != "POST":
            return await self._open_stream(request, **options)
        # after a redirect the body was not read yet
        message = _parsed_message(await request.aread())
        request_id = message.id if isinstance(message, types.JSONRPCRequest) else None
        sending = _Sending(request.url)
        token = _SENDING.set(sending)
        try:
            response = await self._send(request, **options)
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                return await _refusal_response(request, response, request_id)
            if response.status_code in _ELSEWHERE and _calls_tool(message):
                text = f"HTTP {response.status_code}: it may be done, and its answer is elsewhere"
                return _error_response(request, RequestFault.BROKEN, text)
            if response.next_request is not None:  # the SDK follows it, or names its target
                return response
            if _content_type(response).startswith("application/json"):
                return await _checked_response(request, response, request_id)
            if request_id is not None and not _is_stream(response):
                text = "the server's answer is neither JSON nor a stream of events"
                return _error_response(request, RequestFault.UNREADABLE, text)
        except httpx2.DecodingError as error:
            return _error_response(request, RequestFault.UNREADABLE, _reason_of(error))
        except Exception as error:  # noqa: BLE001  the author's `auth` may raise anything
            is_unsent = not sending.may_be_done or isinstance(error, _UNSENT)
            may_be_done = _goes_on(message) or not is_unsent
            return _failure_response(request, error, may_be_done=may_be_done)
        finally:
            _SENDING.reset(token)
        # a stream of changes is not resumed after a break, and `hear` is told about the break
        resumed = request.headers.get(MCP_METHOD_HEADER) != "subscriptions/listen"
        return _stream_response(response, resumed=resumed)

    async def _open_stream(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Open a stream: the server's own, or one of a request, which is resumed after one of its
        events."""
        if request.headers.get("last-event-id", "") != self.last_event:
            return _stream_response(await self._send(request, **options))
        self.hear(False)
        response = await self._send(request, **options)
        has_no_stream = response.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        self.hear(has_no_stream or (response.is_success and _is_stream(response)))
        return _stream_response(response, client=self)

    async def _leave_session(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Leave a session. The server may have forgotten it, or may not answer at all, and its
        `auth` may fail."""
        with suppress(Exception):
            async with asyncio.timeout(_ENDS):
                response = await self._send(request, **options)
            if response.status_code != HTTPStatus.NOT_FOUND:
                return response
        return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)


async def _checked_response(
    request: httpx2.Request, response: httpx2.Response, request_id: types.RequestId | None
) -> httpx2.Response:
    """Return the same response after reading it, or an error if it is too large or no answer."""
    body = await _read(response, MAX_MESSAGE)
    if body is None:
        text = f"the server's answer is larger than {MAX_MESSAGE} bytes"
        return _error_response(request, RequestFault.TOO_LARGE, text)
    try:
        message = _parsed_message(body)
    except ValueError:  # otherwise the SDK would log it
        text = "the server's answer is not a JSON-RPC message"
        return _error_response(request, RequestFault.UNREADABLE, text)
    if isinstance(message, types.JSONRPCError) and message.id is None:
        message.id = request_id  # there is no other request it could answer
    if request_id is not None and not _is_answer_to(message, request_id):
        return _error_response(
            request, RequestFault.UNREADABLE, "the server answered a different request"
        )
    if isinstance(message, types.JSONRPCError):
        body = clean_message(message).model_dump_json(by_alias=True).encode()
    return httpx2.Response(
        response.status_code, headers=_kept_headers(response), content=body, request=request
    )


async def _refusal_response(
    request: httpx2.Request, response: httpx2.Response, request_id: types.RequestId | None
) -> httpx2.Response:
    status = response.status_code
    body, rpc_error = await _read(response, _MOST_OF_AN_ERROR) or b"", None
    with suppress(ValueError):
        if not has_key_twice(body):
            rpc_error = types.JSONRPCError.model_validate_json(body, by_name=False)
    text = f"HTTP {status} {response.reason_phrase}".strip()
    fault = (
        _session_fault(status, rpc_error, request_id)
        if "mcp-session-id" in request.headers
        else None
    )
    if fault is not None:
        return _error_response(
            request, fault, text if rpc_error is None else rpc_error.error.message, status
        )
    if rpc_error is not None:
        return _json_response(request, status, clean_message(rpc_error))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _error_response(request, RequestFault.BROKEN, text, status)
    return _error_response(request, None, text, status)


def _session_fault(
    status: int, rpc_error: types.JSONRPCError | None, request_id: types.RequestId | None
) -> RequestFault | None:
    """Return what a refusal may say about the session of its request. A refusal that names the
    request is about the request, except for HTTP 404, which may be about a session."""
    names_request = (
        rpc_error is not None and request_id is not None and _is_answer_to(rpc_error, request_id)
    )
    if status == HTTPStatus.NOT_FOUND:
        if rpc_error is None or not names_request:
            return RequestFault.SESSION_GONE
        return None if rpc_error.error.code == METHOD_NOT_FOUND else RequestFault.REFUSED
    return RequestFault.REFUSED if status == HTTPStatus.BAD_REQUEST and not names_request else None


def _error_response(
    request: httpx2.Request, fault: RequestFault | None, text: str, status: int = 503
) -> httpx2.Response:
    """Return a JSON-RPC error as the response to a request. Without a fault it is the server's own."""
    plain_error = types.ErrorData(code=INVALID_REQUEST, message=text)
    error = plain_error if fault is None else marked(fault, text)
    return _json_response(request, status, types.JSONRPCError(jsonrpc="2.0", id=None, error=error))


def _tells_of_a_call(header: str) -> bool:
    """Return whether a header repeats a part of the message that is sent, which is no secret of the
    server's: its method, its tool, an argument."""
    return header in _OF_CALLS or header.startswith(MCP_PARAM_HEADER_PREFIX.lower())


def _calls_tool(message: types.JSONRPCMessage) -> bool:
    return isinstance(message, types.JSONRPCRequest) and message.method == "tools/call"


def _goes_on(message: types.JSONRPCMessage) -> bool:
    """Return whether a request goes on with a call that the server has begun, by answers to what it
    asked (from protocol 2026-07-28 on)."""
    params = message.params if isinstance(message, types.JSONRPCRequest) else None
    return not _OF_ROUNDS.isdisjoint(params or {})


def _failure_response(
    request: httpx2.Request, error: Exception, *, may_be_done: bool
) -> httpx2.Response:
    """Return the error for a request that has no answer, by what is known about it."""
    text, reason = (
        "the connection broke" if may_be_done else "it cannot be reached",
        _reason_of(error),
    )
    if not isinstance(error, httpx2.TransportError):
        log_raised("the `auth` of an MCP server", error)
        text, reason = "its auth failed", f"{type(error).__name__}: {reason}"
    fault = RequestFault.BROKEN if may_be_done else RequestFault.NOT_SENT
    return _error_response(request, fault, f"{text} ({reason})")


def _json_response(
    request: httpx2.Request, status: int, message: types.JSONRPCMessage
) -> httpx2.Response:
    headers, content = {"content-type": "application/json"}, message.model_dump_json(by_alias=True)
    return httpx2.Response(status, headers=headers, content=content, request=request)


def _content_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").lower()


def _is_answer_to(message: types.JSONRPCMessage, request_id: types.RequestId) -> bool:
    if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError) or message.id is None:
        return False
    return coerce_request_id(message.id) == coerce_request_id(request_id)


def _is_stream(response: httpx2.Response) -> bool:
    return _content_type(response).startswith("text/event-stream")


def _kept_headers(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name in _KEPT_HEADERS}


def _stream_response(
    response: httpx2.Response, *, resumed: bool = True, client: _Client | None = None
) -> httpx2.Response:
    """Return the same response, with a stream of events in a form that the SDK may read."""
    if not _is_stream(response):
        return response
    events = _WholeEvents(response, resumed=resumed, client=client)
    status, request = response.status_code, response.request
    return httpx2.Response(status, headers=_kept_headers(response), stream=events, request=request)


class _WholeEvents(httpx2.AsyncByteStream):
    """Rewrites the events of a response, each as soon as it is complete. They keep their ids only
    if the stream may be `resumed`. For the stream of the server's unrequested messages, `client`
    remembers the place, and tells `hear` when it ends."""

    def __init__(self, response: httpx2.Response, *, resumed: bool, client: _Client | None) -> None:
        self._response, self._resumed, self._client = response, resumed, client

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in httpx2.EventSource(self._response, MAX_MESSAGE):
            lines = [f"event: {event.event}"]
            lines += [f"id: {event.id}"] if event.id and self._resumed else []
            if self._client is not None:
                self._client.last_event = event.id or self._client.last_event
            lines += [] if event.retry is None else [f"retry: {event.retry}"]
            lines += [f"data: {line}" for line in _clean_event(event.data).split("\n")]
            yield "\n".join((*lines, "", "")).encode()

    async def aclose(self) -> None:
        if self._client is not None:
            self._client.hear(False)
        await self._response.aclose()


def _clean_event(data: str) -> str:
    """Return an event's data in a form that the SDK may read: nothing, if it cannot be told what it
    says, or an error if it is an answer."""
    is_ambiguous = has_key_twice(data.encode())
    if not is_ambiguous and str(CONNECTION_CLOSED) not in data:
        return data
    try:
        message = types.jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError:
        return data  # nor can the SDK read it
    if not is_ambiguous:
        cleaned = clean_message(message)
        return data if cleaned is message else cleaned.model_dump_json(by_alias=True)
    if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
        return ""
    error = marked(RequestFault.UNREADABLE, "the server's answer can be read in two ways")
    return types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error).model_dump_json(
        by_alias=True
    )


async def _read(response: httpx2.Response, max_bytes: int) -> bytes | None:
    """Return a body, or None if it is longer than allowed. Raises what reading raises."""
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > max_bytes:
                return None
    finally:
        await response.aclose()
    return bytes(body)


def _reason_of(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
