"""Bytes of a server: whole messages in any pieces, none of them longer than allowed, none lost."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import httpx2
import mcp_types as types
import pytest
from bridges.mcp_helpers import MODES, approves, by_http, failure, value
from bridges.mcp_oauth import Person
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError
from mcp.client.auth import OAuthTokenError
from mcp.shared.message import SessionMessage
from rows import each_row
from waiting import until

from toolcrib import ErrorCode, ToolRunner
from toolcrib.bridges.mcp import HttpServer, mcp_catalog, transport
from toolcrib.bridges.mcp.connection import CHANGED, NOT_REACHED
from toolcrib.bridges.mcp.content import UNUSABLE
from toolcrib.bridges.mcp.faults import RequestFault, fault_of
from toolcrib.bridges.mcp.pipes import BoundedLines, Line
from toolcrib.bridges.mcp.transport import HttpTransport, UnanswerableError, read_line
from toolcrib.errors import SourceError

CANARY = "canary-77d0"
LONGEST = 20_000


def message(number: int, text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"text": text}}).encode()


def fed(lines: BoundedLines, data: bytes, cuts: list[int]) -> list[Any]:
    found: list[Any] = []
    at = 0
    for cut in [*sorted(set(cuts)), len(data)]:
        found += map(read_line, lines.feed(data[at:cut]))
        at = max(at, cut)
    return found


def fault_in(found: Any) -> RequestFault | None:
    assert isinstance(found.message, types.JSONRPCError)
    return fault_of(MCPError.from_jsonrpc_error(found.message))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
CODES = st.sampled_from([-32_000, -32_001, -31_001, -31_002, -31_003, -31_004]) | st.integers(
    -(2**31), 2**31
)


@given(code=CODES, text=st.text() | st.just("Connection closed"), data=JSON)
def test_no_error_that_a_server_writes_is_a_fault_of_ours(code: int, text: str, data: Any) -> None:
    """Nor is it the SDK's word that the connection has closed, unless it says just that."""
    said = {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": text, "data": data}}
    line = json.dumps(said)
    ends = (code, text) == (-32_000, "Connection closed")
    expected = RequestFault.ENDING if ends else None
    found = read_line(Line(line.encode(), cut=False))
    assert fault_in(found) is expected
    by_event = types.jsonrpc_message_adapter.validate_json(transport._clean_event(line))
    assert fault_in(SessionMessage(by_event)) is expected


@given(
    texts=st.lists(st.text(max_size=30), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_messages_come_whole_in_any_pieces(texts: list[str], cuts: list[int]) -> None:
    data = b"".join(message(n, text) + b"\n" for n, text in enumerate(texts))
    found: list[Any] = fed(BoundedLines(LONGEST), data, cuts)
    assert [one.message.result["text"] for one in found] == texts


@given(
    size=st.integers(LONGEST - 200, 4 * LONGEST),
    step=st.integers(1, 70_000),
    number=st.integers(0, 10**6),
    last=st.booleans(),
)
def test_of_a_message_that_is_too_long_its_call_is_told(
    size: int, step: int, number: int, last: bool
) -> None:
    """Whichever end of the line has the id, however it comes, and whatever comes after it."""
    said = {"result": {"text": f'"id":{number + 1},' + "x" * size}}
    key = {"jsonrpc": "2.0", "id": number}
    line = json.dumps(said | key if last else key | said, separators=(",", ":")).encode()
    lines = BoundedLines(LONGEST)
    data, held = line + b"\n" + message(7, "after") + b"\n", 0
    found: list[Any] = []
    for at in range(0, len(data), step):
        found += map(read_line, lines.feed(data[at : at + step]))
        held = max(held, len(lines._held))
    first, second = found
    assert second.message.result == {"text": "after"}
    assert held <= LONGEST
    if len(line) <= LONGEST:
        assert first.message.id == number
        return
    assert (first.message.id, fault_in(first)) == (number, RequestFault.TOO_LARGE)


@each_row("number", [0, 7, 10**12])
def test_of_a_message_that_cannot_be_read_its_call_is_told(number: int) -> None:
    for line in (DEEP, TWICE):
        found: Any = read_line(Line(line.replace(b"ID", str(number).encode()), cut=False))
        assert (found.message.id, fault_in(found)) == (number, RequestFault.UNREADABLE)


@each_row(
    ("line", "kind"),
    [
        (b"Listening on stdio", ValueError),
        (b'{"jsonrpc": "2.0"}', ValueError),
        (b'{"jsonrpc": "2.0", "method": "x", "method": "y"}', ValueError),
        (b"x" * (LONGEST + 1), UnanswerableError),
    ],
)
def test_what_is_no_message_holds_nothing_of_it(line: bytes, kind: type[Exception]) -> None:
    lines = BoundedLines(LONGEST).feed(line + b"\n\n" + message(1, "x") + b"\n")
    found, blank, after = map(read_line, lines)
    assert type(found) is kind
    assert line.decode()[:10] not in str(found)
    assert blank is None
    assert isinstance(after, SessionMessage)


@each_row(
    ("end", "cut", "kind"), [(b'"\\ud800"}}', False, ValueError), (b'"x', True, UnanswerableError)]
)
def test_what_the_server_asks_is_no_answer(end: bytes, cut: bool, kind: type[Exception]) -> None:
    """Its requests have ids of their own, which are also those of our calls."""
    line = b'{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"x":' + end
    assert type(read_line(Line(line, cut))) is kind


Answer = tuple[int, str, bytes]


class Scripted(BaseHTTPRequestHandler):
    """Answers each POST as `answer` says, by the method that it holds."""

    answer: Callable[[str, Any], Answer]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = json.loads(body)
        status, kind, content = type(self).answer(asked["method"], asked.get("id"))
        self.send_response(status)
        self.send_header("content-type", kind)
        if status == 307:
            self.send_header("location", content.decode())
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def reply(number: Any, result: dict[str, Any]) -> Answer:
    body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
    return 200, "application/json", body.encode()


def usual(method: str, number: Any) -> Answer:
    match method:
        case "initialize":
            return reply(
                number,
                {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                },
            )
        case "tools/list":
            tool = {"name": "act", "description": "Act.", "inputSchema": {"type": "object"}}
            return reply(number, {"tools": [tool]})
        case "notifications/initialized":
            return 202, "text/plain", b""
    return 404, "text/plain", b""


class Script:
    """A server on the loopback that answers calls as one test says."""

    def __init__(
        self,
        call: Callable[[Any], Answer] | None = None,
        *,
        answers: Callable[[str, Any], Answer] | None = None,
        handler: type[BaseHTTPRequestHandler] | None = None,
    ) -> None:
        def answer(method: str, number: Any) -> Answer:
            return call(number) if call and method == "tools/call" else usual(method, number)

        given = {"answer": staticmethod(answers or answer)}
        handler = handler or type("Handler", (Scripted,), given)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


TWICE = b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":{"a":"busy","a":1}}}'
BOTH = (
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":{"code":1,"message":"busy"},"id":ID}'
)
NEWS = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"a":1,"a":2}}'
FINE = b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"isError":true}}'
GONE = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "it is broken"}}'
QUOTA = b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Quota exceeded"}}'
CLOSED = b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Connection closed"}}'
FORM, EVENTS = "application/json", "text/event-stream"
DEEP = b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":' + b"[" * 900 + b"]" * 900 + b"}}"


@each_row(
    ("status", "kind", "body", "code", "told"),
    [
        (503, "text/html", b"<h1>busy</h1>", ErrorCode.OUTCOME_UNKNOWN, ""),
        (500, FORM, b'{"oops": 1}', ErrorCode.OUTCOME_UNKNOWN, ""),
        (500, FORM, GONE, ErrorCode.TOOL_ERROR, "it is broken"),
        (403, "text/html", b"no", ErrorCode.TOOL_ERROR, "HTTP 403 Forbidden"),
        (200, "text/html", b"<h1>hello</h1>", ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, FORM, b"{", ErrorCode.TOOL_ERROR, ""),
        (200, FORM, b"[1]", ErrorCode.TOOL_ERROR, ""),
        (200, FORM, DEEP, ErrorCode.TOOL_ERROR, ""),
        (200, FORM, b"[" * 9_000_000, ErrorCode.TOOL_ERROR, ""),
        (202, "text/plain", b"", ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, FORM, b'{"jsonrpc":"2.0","id":ID,"result":{"x":1}}', ErrorCode.TOOL_ERROR, ""),
        (200, FORM, b'{"jsonrpc":"2.0","id":ID,"result":"busy"}', ErrorCode.TOOL_ERROR, ""),
        (200, FORM, b'{"jsonrpc":"2.0","id":9999,"result":{}}', ErrorCode.TOOL_ERROR, ""),
        (200, FORM, TWICE, ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, FORM, BOTH, ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, EVENTS, b"data: " + TWICE + b"\n\n", ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, EVENTS, b"data: " + BOTH + b"\n\n", ErrorCode.TOOL_ERROR, UNUSABLE),
        (200, EVENTS, b"data: " + NEWS + b"\n\ndata: " + FINE + b"\n\n", ErrorCode.TOOL_ERROR, ""),
        (
            403,
            FORM,
            QUOTA.replace(b"{", b'{"id":1,', 1),
            ErrorCode.TOOL_ERROR,
            "HTTP 403 Forbidden",
        ),
        (200, FORM, b'{"jsonrpc":"2.0","method":"busy"}', ErrorCode.TOOL_ERROR, ""),
        (200, FORM, GONE, ErrorCode.TOOL_ERROR, "it is broken"),
        (200, FORM, QUOTA, ErrorCode.TOOL_ERROR, "Quota exceeded"),
        (429, FORM, QUOTA, ErrorCode.TOOL_ERROR, "Quota exceeded"),
        (200, EVENTS, b"data: " + QUOTA + b"\n\n", ErrorCode.TOOL_ERROR, "Quota exceeded"),
        (200, EVENTS, b": nothing\n\n", ErrorCode.OUTCOME_UNKNOWN, ""),
        (200, EVENTS, b"data: " + CLOSED + b"\n\n", ErrorCode.OUTCOME_UNKNOWN, ""),
        (200, FORM, CLOSED, ErrorCode.OUTCOME_UNKNOWN, ""),
        (302, FORM, b"http://h.example/x?state=busy", ErrorCode.OUTCOME_UNKNOWN, ""),
        (307, FORM, b"http://h.example/x?state=busy", ErrorCode.TOOL_ERROR, "http://h.example/x n"),
    ],
)
async def test_what_http_answers_in_place_of_mcp(
    status: int, kind: str, body: bytes, code: ErrorCode, told: str
) -> None:
    def answer(number: Any) -> Answer:
        return status, kind, body.replace(b"ID", str(number).encode())

    with Script(answer) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            failed = await failure(ToolRunner(catalog, approver=approves), "act")
    assert failed.error.code is code, failed
    assert told in failed.model_text + failed.error.message
    assert "busy" not in failed.error.message + failed.model_text


class Moved(Scripted):
    """Redirects what comes to /mcp to /mcp/, on the same server, if its method is one of `moved`."""

    moved: tuple[str, ...] = ()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = json.loads(body)
        if self.path == "/mcp" and (asked["method"] in self.moved or not self.moved):
            status, kind, content = 307, "text/plain", b""
        else:
            status, kind, content = type(self).answer(asked["method"], asked.get("id"))
        self.send_response(status)
        self.send_header("location", "/mcp/")
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@each_row("moved", [(), ("initialize",), ("tools/list",), ("tools/call",)])
@each_row(
    ("answer", "told"),
    [
        ((200, FORM, b'{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}'), None),
        ((200, EVENTS, b'data: {"jsonrpc":"2.0","id":ID,"result":{"content":[]}}\n\n'), None),
        ((200, FORM, QUOTA), "Quota exceeded"),
        ((429, FORM, QUOTA), "Quota exceeded"),
        ((403, "text/html", b"no"), "HTTP 403 Forbidden"),
    ],
)
async def test_a_redirect_within_its_server_is_followed(
    moved: tuple[str, ...], answer: Answer, told: str | None
) -> None:
    calls: list[Any] = []

    def answers(method: str, number: Any) -> Answer:
        if method != "tools/call":
            return usual(method, number)
        status, kind, body = answer
        calls.append(number)
        return status, kind, body.replace(b"ID", str(number).encode())

    given = {"answer": staticmethod(answers), "moved": moved}
    with Script(handler=type("Handler", (Moved,), given)) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            if told is None:
                assert await value(runner, "act") == ""
            else:
                failed = await failure(runner, "act")
                assert failed.error.code is ErrorCode.TOOL_ERROR
                assert told in failed.model_text
    assert len(calls) == 1


class Forgets(Scripted):
    """Refuses each session but its own with `refusal`; calls are counted in `ran`. Whether it `tells`
    that its tools change or not, it has no stream for that."""

    session, refusal, ran, tells = "a", (400, b""), 0, False
    knows = ("initialize", "notifications/initialized")

    def do_POST(self) -> None:
        kind = type(self)
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, number = asked["method"], asked.get("id")
        status, form, content = usual(method, number)
        if kind.tells:
            content = content.replace(b'"tools": {}', b'"tools": {"listChanged": true}')
        if method == "ping":
            status, form, content = reply(number, {})
        if method not in kind.knows and self.headers.get("mcp-session-id") != kind.session:
            status, content = kind.refusal
            content = content.replace(b"ID", str(number).encode())
        elif method == "tools/call":
            kind.ran += 1
            status, form, content = reply(number, {"content": [{"type": "text", "text": "ok"}]})
        self.send_response(status)
        self.send_header("content-type", form if status < 400 else FORM)
        self.send_header("mcp-session-id", kind.session)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def refusal(code: int, text: str, number: str | None = None) -> bytes:
    error = {"code": code, "message": text}
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()


UNKNOWN = refusal(-32_001, "Session not found", "ID").replace(b'"ID"', b"ID")


@each_row(
    ("status", "body"),
    [
        (404, refusal(-32_001, "Session not found")),
        (404, UNKNOWN),
        (400, refusal(-32_000, "Bad Request: No valid session ID provided")),
        (400, refusal(-32_600, "Bad Request: No valid session ID", "server-error")),
        (400, b"no such session"),
    ],
)
@each_row("tells", [False, True])
async def test_a_session_that_the_server_has_forgotten_is_opened_anew(
    tells: bool,
    status: int,
    body: bytes,
) -> None:
    """Whether it refuses the call, or the listing before it."""
    handler = type("Handler", (Forgets,), {"refusal": (status, body), "tells": tells})
    with Script(handler=handler) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            assert await value(runner, "act") == "ok"
            for session in ("b", "c"):
                handler.session = session  # type: ignore[attr-defined]
                assert await value(runner, "act") == "ok"
            handler.session = "d"  # type: ignore[attr-defined]
            handler.knows = (*Forgets.knows, "ping")  # type: ignore[attr-defined]
            about_it = status == 400 or body == UNKNOWN
            failed = await failure(runner, "act") if about_it else None
    if failed is not None:  # it takes a ping, so it has not forgotten the session
        assert failed.error.code is ErrorCode.TOOL_ERROR
        assert handler.ran == 3  # type: ignore[attr-defined]


class ForgetsSlowly(Forgets):
    """Refuses each request of a kind `slow` later than the one before it."""

    slow, late, lock = "", 0, Lock()

    def do_POST(self) -> None:
        kind = type(self)
        size = int(self.headers["content-length"])
        body = self.rfile.read(size)
        if json.loads(body)["method"] == kind.slow:
            with kind.lock:
                kind.late += 1
                late = kind.late
            time.sleep(0.1 * late)
        self.rfile = BytesIO(body)
        super().do_POST()


@each_row("refused", [(404, b""), (404, UNKNOWN), (400, b"")])
@each_row(
    ("slow", "tells"),
    [("initialize", False), ("tools/call", False), ("ping", False), ("tools/list", True)],
)
async def test_parallel_calls_in_a_forgotten_session_are_each_made_once_in_a_new_one(
    refused: tuple[int, bytes],
    slow: str,
    tells: bool,
) -> None:
    """However late the refusal of one comes, or that of its ping, or of a listing."""
    given = {"refusal": refused, "slow": slow, "late": 0, "lock": Lock(), "tells": tells}
    handler: Any = type("Handler", (ForgetsSlowly,), given)
    with Script(handler=handler) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            handler.session = "b"
            given_back = await asyncio.gather(*(value(runner, "act") for _ in range(4)))
    assert given_back == ["ok"] * 4
    assert handler.ran == 4


async def test_an_error_by_http_404_that_names_its_call_is_an_answer() -> None:
    """And a server that forgets a session which it has just opened is not asked again and again."""
    asked: list[str] = []

    class Ran(Scripted):
        shipped = refusal(-32_004, "invoice 7 was not found", "ID").replace(b'"ID"', b"ID")
        said = shipped

        def end_headers(self) -> None:
            self.send_header("mcp-session-id", "a")
            super().end_headers()

        @staticmethod
        def answer(method: str, number: Any) -> Answer:
            asked.append(method)
            if method == "ping":
                return reply(number, {})
            if method == "tools/call":
                return 404, FORM, Ran.said.replace(b"ID", str(number).encode())
            return usual(method, number)

    with Script(handler=Ran) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            failed = await failure(runner, "act")
            assert (failed.error.code, failed.error.retryable) == (ErrorCode.TOOL_ERROR, False)
            assert "invoice 7 was not found" in failed.model_text
            assert asked.count("tools/call") == 1
            Ran.said = b""
            failed = await failure(runner, "act")
            assert (failed.error.code, failed.error.retryable) == (ErrorCode.TOOL_ERROR, False)
            assert "Nothing was sent" not in failed.model_text
            assert asked.count("tools/call") == 3


async def test_what_a_listing_failed_for_is_said_and_nothing_else() -> None:
    """The probe before it was answered with HTTP 404; and the server lives."""

    def answer(method: str, number: Any) -> Answer:
        said = QUOTA.replace(b"ID", str(number).encode())
        return (200, FORM, said) if method == "tools/list" else usual(method, number)

    with Script(answers=answer) as url, pytest.raises(SourceError) as raised:
        async with mcp_catalog(url):
            pass
    assert str(raised.value) == f"{url}: Quota exceeded"


ANSWERS: dict[str, dict[str, Any]] = {
    "server/discover": {"error": {"code": -32601, "message": "no"}},
    "initialize": {
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "silent", "version": "1"},
        }
    },
    "tools/list": {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}},
}


class FallsSilent:
    """A server of MCP by HTTP on a bare socket, which answers nothing any more from `last` on."""

    def __init__(self, last: str) -> None:
        self.last, self.silent = last, asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                sizes = [line.partition(":")[2] for line in head if line[:14] == "content-length"]
                body = await reader.readexactly(int(sizes[0]) if sizes else 0)
                self.answer(writer, json.loads(body or b"{}"), head[0].partition(" ")[0])
        writer.close()

    def answer(self, writer: asyncio.StreamWriter, asked: dict[str, Any], verb: str) -> None:
        what = asked.get("method", verb)
        if what == self.last:
            self.silent.set()
        if self.silent.is_set():
            return
        if what not in ANSWERS:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **ANSWERS[what]}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: 1\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )


@each_row("last", ["server/discover", "initialize", "tools/list", "delete"])
async def test_whoever_opens_a_server_can_stop_though_it_says_nothing(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_ENDS", 0.2)
    server = FallsSilent(last)

    async def opened(url: str) -> None:
        async with mcp_catalog(url):
            pass

    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        opening = asyncio.create_task(opened(f"http://127.0.0.1:{port}/mcp"))
        await asyncio.wait_for(server.silent.wait(), 20)
        opening.cancel()
        done, _ = await asyncio.wait([opening], timeout=10)
    assert done
    assert opening.cancelled()


async def test_headers_go_with_each_request_and_are_in_no_error(tmp_path: Path) -> None:
    with by_http(tmp_path / "log") as server:
        asks = HttpServer(server.url, {"authorization": f"Bearer {CANARY}"})
        async with mcp_catalog(asks) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            assert await value(runner, "echo", text="x") == "x"
    with pytest.raises(SourceError) as caught:
        async with mcp_catalog(HttpServer(f"http://ada:{CANARY}@127.0.0.1:9/mcp?key={CANARY}")):
            pass
    assert CANARY not in str(caught.value)


@each_row("mode", MODES)
@pytest.mark.exhaustive
async def test_a_person_signs_in_by_oauth(mode: str, tmp_path: Path) -> None:
    person = Person()
    with by_http(tmp_path / "log", "--oauth") as server:
        with pytest.raises(SourceError, match="HTTP 401 Unauthorized"):
            async with mcp_catalog(server.url):
                pass
        for _ in range(2):  # the second time the token is there
            asks = HttpServer(server.url, auth=person.signs_in(server.url))
            async with mcp_catalog(asks, client={"mode": mode}) as catalog:
                runner = ToolRunner(catalog, approver=approves)
                assert await value(runner, "echo", text="x") == "x"
    assert person.asked == 1


class Fails(httpx2.Auth):
    """Raises `error` for one call: before it is sent, or after it was answered."""

    requires_request_body = True

    def __init__(self, error: Exception, *, is_sent: bool) -> None:
        self._error, self._is_sent = error, is_sent
        self.is_due = False

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        fails = self.is_due and b"tools/call" in request.content
        self.is_due = self.is_due and not fails
        if fails and not self._is_sent:
            raise self._error
        request.headers["authorization"] = f"Bearer {CANARY}"
        yield request
        if fails:
            raise self._error


@each_row(
    ("status", "code"),
    [
        (None, ErrorCode.TOOL_ERROR),
        (401, ErrorCode.TOOL_ERROR),
        (500, ErrorCode.OUTCOME_UNKNOWN),
        (200, ErrorCode.OUTCOME_UNKNOWN),
    ],
)
@each_row(
    "error",
    [
        RuntimeError(f"{CANARY} has expired"),
        OAuthTokenError(f"Token refresh failed: {CANARY}"),
        httpx2.ReadTimeout(f"{CANARY} was not renewed in time"),
    ],
)
async def test_auth_that_fails_ends_its_own_call_and_no_other(
    status: int | None, code: ErrorCode, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    may_end, calls = Event(), list[Any]()

    def answer(number: Any) -> Answer:
        calls.append(number)
        if len(calls) == 2 and status is not None:
            return status, FORM, b"{}"
        if len(calls) == 1:
            may_end.wait(10)
        return reply(number, {"content": [{"type": "text", "text": "done"}]})

    auth = Fails(error, is_sent=status is not None)
    with Script(answer) as url:
        async with mcp_catalog(HttpServer(url, auth=auth), client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            other = asyncio.create_task(value(runner, "act"))
            await until(lambda: bool(calls))
            auth.is_due = True
            failed = await failure(runner, "act")
            assert failed.error.code is code, failed
            if code is ErrorCode.TOOL_ERROR:
                assert failed.error.message == NOT_REACHED
            assert await value(runner, "act") == "done"
            may_end.set()
            assert await other == "done"
    assert len(calls) == 2 + (status is not None)
    assert CANARY not in caplog.text + failed.model_text


async def test_auth_that_fails_as_a_session_is_left_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class LeavesNot(httpx2.Auth):
        def auth_flow(
            self, request: httpx2.Request
        ) -> Generator[httpx2.Request, httpx2.Response, None]:
            if request.method == "DELETE":
                raise OAuthTokenError(f"Token refresh failed: {CANARY}")
            yield request

    with by_http(tmp_path / "log") as server:
        asks = HttpServer(server.url, auth=LeavesNot())
        async with mcp_catalog(asks, client={"mode": "legacy"}) as catalog:
            assert await value(ToolRunner(catalog, approver=approves), "echo", text="x") == "x"
    assert CANARY not in caplog.text


async def test_whom_sessions_believe_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the system's certificates holds the event loop, with all that runs in it."""
    read: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        read.append(make(*args, **options))
        return read[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    for _ in range(2):
        server = HttpServer("http://127.0.0.1:9/mcp")
        async with HttpTransport(server, lambda _sent: None, lambda _heard: None).connect():
            pass
    assert len(read) <= 1  # none if a session was open before


class Unheard(Scripted):
    """Changes its tool once `may_change`, at the end of the first of its own streams that is not
    "open": one that "ends", that is refused (a status), that is open only then ("late"), or never
    ("mute")."""

    streams: tuple[str | int, ...] = ()
    ids = b""  # at the beginning of each stream of its own
    number = 0
    may_change, changed, over = Event(), Event(), Event()
    opened, listings, ran = 0, 0, 0

    def do_GET(self) -> None:
        kind = type(self)
        if self.headers.get("last-event-id") == "call":  # a call's stream goes on
            body = reply(kind.number, {"content": [{"type": "text", "text": "resumed"}]})[2]
            return self.answered(200, EVENTS, b"data: " + body + b"\n\n")
        how = kind.streams[min(kind.opened, len(kind.streams) - 1)]
        kind.opened += 1
        if how == "ends":
            self.begin()
        if how not in ("open", 405) and not kind.changed.is_set():
            kind.may_change.wait(10)
            kind.changed.set()
        if isinstance(how, int):
            return self.answered(how, FORM, b"")
        if how in ("open", "late"):
            self.begin()
        if how != "ends":
            kind.over.wait(20)
        return None

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", EVENTS)
        self.end_headers()
        self.wfile.write(b"retry: 10\n" + type(self).ids + b"data: \n\n")
        self.wfile.flush()

    def do_POST(self) -> None:
        kind = type(self)
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, form, content = kind.told(asked["method"], asked.get("id"))
        self.answered(status, form, content)

    @classmethod
    def told(cls, method: str, number: Any) -> Answer:
        if method == "tools/list":
            cls.listings += 1
            text = "Act on all." if cls.changed.is_set() else "Act."
            tool = {"name": "act", "description": text, "inputSchema": {"type": "object"}}
            return reply(number, {"tools": [tool]})
        if method == "tools/call":
            cls.ran += 1
            cls.number = number
            if cls.ran == 2 and cls.streams == ("open",):
                return 200, EVENTS, b"retry: 10\nid: call\ndata: \n\n"
            return reply(number, {"content": [{"type": "text", "text": "ok"}]})
        status, form, content = usual(method, number)
        return status, form, content.replace(b'"tools": {}', b'"tools": {"listChanged": true}')

    def answered(self, status: int, form: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", form)
        self.send_header("mcp-session-id", "a")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Listened(Unheard):
    """The same from 2026-07-28 on: the stream that it is asked for has ids, and ends once it
    `may_change`."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked, kind = json.loads(body), type(self)
        if asked["method"] != "subscriptions/listen":
            self.rfile = BytesIO(body)
            return super().do_POST()
        self.begin()
        key = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked["id"]}}
        params = {**key, "notifications": {"toolsListChanged": True}}
        ack = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"}
        told = json.dumps({**ack, "params": params})
        self.wfile.write(f"id: 8\ndata: {told}\n\n".encode())
        self.wfile.flush()
        kind.may_change.wait(10)
        return kind.changed.set()

    @classmethod
    def told(cls, method: str, number: Any) -> Answer:
        answer = super().told(method, number)
        if method == "server/discover":
            able = {"tools": {"listChanged": True}}
            answer = reply(number, {"supportedVersions": ["2026-07-28"], "capabilities": able})
        kept = b'"result": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", '
        return *answer[:2], answer[2].replace(b'"result": {', kept)


def unheard(*streams: str | int, ids: bytes = b"") -> Any:
    events = {name: Event() for name in ("may_change", "changed", "over")}
    return type("Handler", (Unheard,), {"streams": streams, "ids": ids, **events})


@each_row("ids", [b"", b"id: 7\n"])
@each_row(
    ("streams", "opened"),
    [
        (("late",), 1),
        (("mute",), 1),
        ((404,), 1),
        ((500,), 2),
        (("ends", "open"), 2),
        (("ends", "mute"), 2),
        (("ends", 409), 3),
    ],
)
async def test_no_call_is_sent_by_what_was_said_while_no_stream_was_open(
    streams: tuple[str | int, ...], opened: int, ids: bytes
) -> None:
    """Not yet, not any more, not again; whether it was opened again meanwhile, or given up."""
    handler = unheard(*streams, ids=ids)
    with Script(handler=handler) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            assert await value(runner, "act") == "ok"
            handler.may_change.set()
            await until(lambda: handler.changed.is_set() and handler.opened >= opened)
            failed = await failure(runner, "act")
        handler.over.set()
    assert failed.error.message == CHANGED
    assert handler.ran == 1


async def test_a_stream_of_changes_that_breaks_off_is_not_gone_on_with() -> None:
    """What the server has said meanwhile, it may not say again."""
    events = {name: Event() for name in ("may_change", "changed", "over")}
    handler: Any = type("Handler", (Listened,), {"streams": ("open",), "ids": b"id: 7\n", **events})
    with Script(handler=handler) as url:
        async with mcp_catalog(url) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            assert await value(runner, "act") == "ok"
            handler.may_change.set()
            await until(handler.changed.is_set)
            await asyncio.sleep(1.5)  # the SDK goes on with what broke off after a second
            failed = await failure(runner, "act")
        handler.over.set()
    assert failed.error.message == CHANGED


@each_row("streams", [(405,), ("open",)])
async def test_tools_are_not_listed_before_each_call_where_the_server_is_heard(
    streams: tuple[str | int, ...],
) -> None:
    """Nor where there is nothing to hear; what goes on after a call's own stream broke says nothing
    of that."""
    handler = unheard(*streams)
    with Script(handler=handler) as url:
        async with mcp_catalog(url, client={"mode": "legacy"}) as catalog:
            runner = ToolRunner(catalog, approver=approves)
            given_back = [await value(runner, "act") for _ in range(3)]
            async with asyncio.timeout(10):  # less than its stream is open
                before = -1
                while before != handler.listings:
                    before = handler.listings
                    await value(runner, "act")
        handler.over.set()
    assert given_back == ["ok", "resumed" if streams == ("open",) else "ok", "ok"]
