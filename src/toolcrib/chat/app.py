"""The ASGI app: routes, who may ask what, and streams in the `assistant-stream` format.

Rule: a browser sends a new text, or an answer to a question that the server asked. Who it is says
`authenticate`; without it only this machine may ask. Every refusal has a status, a code and a text, and
none repeats what was sent.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import json
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from toolcrib.agent import Agent
from toolcrib.approvals import answer_later
from toolcrib.chat.live import CallKeeper, ChatError, LiveThreads, no_thread
from toolcrib.chat.threads import BusyError, ThreadStore
from toolcrib.chat.view import readable
from toolcrib.errors import MissingExtraError, ToolcribError
from toolcrib.failures import log_raised
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Caller, Refuse
from toolcrib.values.json import to_plain
from toolcrib.values.run import RunState
from toolcrib.values.typed import Checked, check_type

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

# The page: files that are built from `web/`, and headers that let it run no script but its own.
#
# Rule: nothing that a model or a tool says can become part of the page: scripts and styles come from
# these files alone, and it talks to this server alone.

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "index.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page: `/` and its files. They hold nothing of anybody: who asks is
    asked where the threads are."""
    return [_route(name, kind) for name, kind in _FILES.items()]


def _route(name: str, kind: str) -> Route:
    body = files("toolcrib.chat").joinpath("built", name).read_bytes()
    headers = {**_HEADERS, "content-type": kind, "etag": f'"{hashlib.sha256(body).hexdigest()}"'}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return Route("/" if name == "index.html" else f"/{name}", endpoint, methods=["GET"])


# The app and its routes.

try:
    from assistant_stream.assistant_stream_chunk import UpdateStateChunk
    from assistant_stream.serialization import DataStreamResponse
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

Authenticate: TypeAlias = Callable[[Request], Caller | Awaitable[Caller | None] | None]
MayApprove: TypeAlias = Callable[[Caller, ApprovalRequest], bool]
_HERE = ("localhost", "127.0.0.1", "[::1]", "testserver")
_STREAM_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-vercel-ai-data-stream": "v1",
}
SHORTEST_TOKEN = 16
_MOST_CALLERS = 10_000  # whose rates are known


class ChatLimits(Checked, msgspec.Struct, frozen=True):
    """Bound what a caller can ask for: bytes of a body, characters of a text, requests a minute,
    streams and runs at once. `heartbeat` is how many seconds a stream may be silent."""

    body_bytes: int = 256 * 1024
    text: int = 32_000
    requests: int = 240
    streams: int = 20
    runs: int = 8
    heartbeat: float = 15.0


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _GivenAnswer(msgspec.Struct, forbid_unknown_fields=True):
    decision: str
    arguments: dict[str, Any] | None = None
    for_run: bool = False
    reason: str = ""


class _Title(msgspec.Struct, forbid_unknown_fields=True):
    title: str


def chat_app(
    agent: Agent,
    *,
    store: ThreadStore | str,
    authenticate: Authenticate | None = None,
    may_approve: MayApprove | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
    page: bool = True,
) -> Starlette:
    """Return an ASGI app that holds conversations with an agent; mount it in any other one.

    `store` keeps the threads (a `ThreadStore`, or its URL). `authenticate` says who asks, from the
    request (None is nobody: 401); without it only this machine may ask. Whoever asks answers the
    approvals of their own threads, unless `may_approve` says otherwise. A browser has to come from the
    app's own origin or one of `allowed_origins`. `page=False` leaves out the page at `/`. It needs no
    lifespan of its own. Raises TypeError for other types.
    """
    check_type("agent", agent, Agent, "an Agent")
    check_type("limits", limits, ChatLimits, "a ChatLimits")
    kept = store if isinstance(store, ThreadStore) else ThreadStore(store)
    keeper = CallKeeper(kept)
    runner = agent.runner.with_sinks(keeper)
    if runner.approver is None:
        runner = runner.with_approver(answer_later)
    live = LiveThreads(agent.replace(tools=runner), kept, keeper)
    doors = _Doors(authenticate, tuple(allowed_origins), limits)
    chat = _Chat(live, kept, doors, may_approve or (lambda _caller, _request: True))
    return chat.app(page_routes() if page else [])


def bearer(token: str, caller: str = "local") -> Authenticate:
    """Return an `authenticate` that takes whoever sends `Authorization: Bearer TOKEN` for one caller.

    Raises ValueError for a token that is too short.
    """
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"a token has at least {SHORTEST_TOKEN} characters: secrets.token_urlsafe() makes one"
        )

    def who(request: Request) -> Caller | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), token.encode())
        return Caller(caller) if same and scheme.lower() == "bearer" else None

    return who


class _Doors:
    """Lets a request in, or says why not: whose it is, where it comes from, how many came before."""

    def __init__(
        self, authenticate: Authenticate | None, origins: tuple[str, ...], limits: ChatLimits
    ) -> None:
        self._authenticate = authenticate
        self._origins = origins
        self.limits = limits
        self._asked: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def caller(self, request: Request) -> Caller:
        """Return who asks. Raises ChatError."""
        self._check_origin(request)
        caller = await self._who(request)
        if caller is None:
            raise ChatError(401, "unauthenticated", "say who you are")
        self._check_rate(caller.id)
        return caller

    async def body(self, request: Request, type_: type[Any]) -> Any:
        """Return the JSON body of a request. Raises ChatError."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ChatError(415, "not_json", "send application/json")
        received = bytearray()
        async for piece in request.stream():
            received += piece
            if len(received) > self.limits.body_bytes:
                raise ChatError(413, "too_large", f"at most {self.limits.body_bytes} bytes")
        try:
            given = msgspec.json.decode(bytes(received), type=type_)
            json.loads(received, object_pairs_hook=_once)
        except _KeyTwiceError:
            raise ChatError(400, "key_twice", "an object of the body has a key twice") from None
        except (ValueError, RecursionError):
            fields = ", ".join(type_.__struct_fields__)
            raise ChatError(
                422, "invalid_body", f"the body is a JSON object of: {fields}"
            ) from None
        return given

    async def _who(self, request: Request) -> Caller | None:
        if self._authenticate is None:
            host = request.headers.get("host", "").rsplit(":", 1)[0] or "localhost"
            if not _is_here(request) or host not in _HERE:
                raise ChatError(403, "elsewhere", "only this machine may ask: there is no sign-in")
            return Caller("local")
        try:
            found = self._authenticate(request)
            caller = await found if inspect.isawaitable(found) else found
            check_type("what authenticate gives", caller, (Caller, type(None)), "a Caller, or None")
        except (ToolcribError, HTTPException):
            raise  # which say themselves what is answered
        except Exception as error:  # noqa: BLE001  of the application
            raise _failed("authenticate", error) from None
        return caller

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        if urlsplit(origin).netloc != request.headers.get("host"):
            raise ChatError(403, "wrong_origin", "this origin may not ask")

    def _check_rate(self, caller_id: str) -> None:
        """Take one of the caller's requests, which come back evenly over a minute (a token bucket)."""
        most, now = float(self.limits.requests), time.monotonic()
        left, then = self._asked.pop(caller_id, (most, now))
        left = min(most, left + (now - then) * most / 60)
        self._asked[caller_id] = (max(left - 1, 0.0), now)
        if len(self._asked) > _MOST_CALLERS:
            self._asked.popitem(last=False)
        if left < 1:
            raise ChatError(429, "too_many_requests", "ask again in a moment")


class _KeyTwiceError(Exception):
    """Says that an object has a key twice: which of the two counts, nobody can know."""


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _KeyTwiceError


def _failed(what: str, error: Exception) -> ChatError:
    """Return the refusal where the application's own function failed; the log says where."""
    log_raised(f"the chat's `{what}`", error)
    return ChatError(500, "failed", "the application could not tell who may do that")


def _is_here(request: Request) -> bool:
    """Return whether a request comes from this machine."""
    client = request.client
    if client is None or client.host == "testclient":
        return True
    try:
        return ipaddress.ip_address(client.host).is_loopback
    except ValueError:
        return False


_Handler: TypeAlias = Callable[[Request, Caller], Awaitable[Response]]


class _Chat:
    """The routes of one app."""

    def __init__(
        self, live: LiveThreads, store: ThreadStore, doors: _Doors, may_approve: MayApprove
    ) -> None:
        self._live = live
        self._store = store
        self._doors = doors
        self._may_approve = may_approve
        self._streams: dict[str, int] = {}

    def app(self, page: list[Route]) -> Starlette:
        thread = "/threads/{thread_id}"
        routes = [
            self._route("GET", "/threads", self._list),
            self._route("POST", "/threads", self._create),
            self._route("GET", thread, self._show),
            self._route("PATCH", thread, self._rename),
            self._route("DELETE", thread, self._delete),
            self._route("GET", thread + "/export", self._export),
            self._route("GET", thread + "/stream", self._stream),
            self._route("POST", thread + "/messages", self._ask),
            self._route("POST", thread + "/cancel", self._cancel),
            self._route("POST", thread + "/approvals/{approval_id}", self._answer),
            self._route("GET", thread + "/calls/{call_id:path}", self._why),
        ]
        made = Starlette(routes=[*page, *routes])
        made.state.chat = self._live
        return made

    def _route(self, method: str, path: str, handler: _Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request, await self._doors.caller(request))
            except ChatError as error:
                return refusal(error)
            except ToolcribError as error:  # of ours, so its text is safe
                return refusal(ChatError(503, "unavailable", str(error)))

        return Route(path, endpoint, methods=[method], name=handler.__name__.strip("_"))

    async def _list(self, request: Request, caller: Caller) -> Response:
        search = request.query_params.get("search", "")[:200]
        return JSONResponse({"threads": await self._store.list(caller.id, search=search)})

    async def _create(self, _request: Request, caller: Caller) -> Response:
        return JSONResponse({"id": await self._store.create(caller.id)}, 201)

    async def _show(self, request: Request, caller: Caller) -> Response:
        return JSONResponse(await self._live.snapshot(_thread(request), caller.id))

    async def _rename(self, request: Request, caller: Caller) -> Response:
        title = " ".join((await self._doors.body(request, _Title)).title.split())[:200]
        if not title:
            raise ChatError(422, "no_title", "a title has at least one letter")
        if not await self._store.rename(_thread(request), caller.id, title):
            raise no_thread()
        await self._live.renamed(_thread(request), title)
        return JSONResponse({"title": title})

    async def _delete(self, request: Request, caller: Caller) -> Response:
        try:
            found = await self._store.delete(_thread(request), caller.id)
        except BusyError as error:
            raise ChatError(409, "busy", str(error)) from None
        if not found:
            raise no_thread()
        return Response(status_code=204)

    async def _export(self, request: Request, caller: Caller) -> Response:
        shown = await self._live.snapshot(_thread(request), caller.id)
        name = f'attachment; filename="{shown["thread"]["id"]}.json"'
        return JSONResponse(shown, headers={"content-disposition": name})

    async def _stream(self, request: Request, caller: Caller) -> Response:
        changes = self._live.watch(_thread(request), caller.id)
        first = await anext(changes)
        if self._streams.get(caller.id, 0) >= self._doors.limits.streams:
            await changes.aclose()
            raise ChatError(429, "too_many_streams", "close a page of this chat first")
        self._streams[caller.id] = self._streams.get(caller.id, 0) + 1

        async def chunks() -> AsyncGenerator[Any, None]:
            try:
                yield UpdateStateChunk([*first])
                async for operations in changes:
                    yield UpdateStateChunk([*operations])
            except ToolcribError:
                return  # the thread is gone, or the database is: whoever reads connects again
            finally:
                self._streams[caller.id] -= 1
                if not self._streams[caller.id]:
                    del self._streams[caller.id]
                await changes.aclose()

        return streamed(chunks(), self._doors.limits.heartbeat)

    async def _ask(self, request: Request, caller: Caller) -> Response:
        text = (await self._doors.body(request, _Ask)).text
        if not text.strip():
            raise ChatError(422, "no_text", "a message has a text")
        if len(text) > self._doors.limits.text:
            raise ChatError(413, "too_long", f"at most {self._doors.limits.text} characters")
        if self._live.runs_of(caller.id) >= self._doors.limits.runs:
            raise ChatError(429, "too_many_runs", "wait until one of your runs has ended")
        turn_id = await self._live.ask(_thread(request), caller, text)
        return JSONResponse({"turn": turn_id}, 202)

    async def _cancel(self, request: Request, caller: Caller) -> Response:
        await self._live.cancel(_thread(request), caller.id)
        return JSONResponse({}, 202)

    async def _answer(self, request: Request, caller: Caller) -> Response:
        given = await self._doors.body(request, _GivenAnswer)
        answer = _answer_of(given, caller)
        approval_id = request.path_params["approval_id"]
        turn_id = await self._live.answer(
            _thread(request),
            caller,
            approval_id,
            answer,
            lambda asked: self._allowed(caller, asked),
        )
        return JSONResponse({"turn": turn_id}, 202)

    def _allowed(self, caller: Caller, asked: ApprovalRequest) -> bool:
        """Return whether a caller may answer. What is neither yes nor no is a failure: to Python, what
        an async function gives would be a yes."""
        try:
            may: object = self._may_approve(caller, asked)
            if inspect.iscoroutine(may):
                may.close()
            check_type(
                "what may_approve gives", may, bool, "True or False, and it is no async function"
            )
        except (ToolcribError, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001  of the application
            raise _failed("may_approve", error) from None
        return may is True

    async def _why(self, request: Request, caller: Caller) -> Response:
        """Give the whole record of a call: who decided, what it was chosen from, what it gave."""
        call_id = request.path_params["call_id"]
        stored = await self._live.load(_thread(request), caller.id)
        for turn in stored.turns:
            calls = await self._store.calls(turn.run_id) if turn.run_id else {}
            if call_id in calls:
                state = RunState.from_json(turn.state) if turn.state else None
                choice = None if state is None else to_plain(state.choice)
                return JSONResponse(
                    readable({"record": to_plain(calls[call_id]), "choice": choice})
                )
        raise ChatError(404, "unknown_call", "this thread has no such call")


def _thread(request: Request) -> str:
    thread_id: str = request.path_params["thread_id"]
    return thread_id


def _answer_of(given: _GivenAnswer, caller: Caller) -> Answer:
    if given.decision == "approve":
        return Approve(by=caller.id, arguments=given.arguments, for_run=given.for_run)
    if given.decision == "deny" and given.arguments is None and not given.for_run:
        return Refuse(reason=given.reason[:500], by=caller.id)
    raise ChatError(422, "invalid_answer", "decision is approve (with arguments, for_run) or deny")


def refusal(error: ChatError) -> Response:
    """Return an error as every route gives it."""
    headers = {"retry-after": "5"} if error.status in (429, 503) else {}
    told = {"error": {"code": error.code, "message": str(error)}}
    return JSONResponse(told, error.status, headers)


def streamed(chunks: AsyncGenerator[Any, None], heartbeat: float) -> Response:
    """Return a response in the data-stream format of assistant-stream."""
    response: Response = DataStreamResponse(chunks, heartbeat=heartbeat)
    response.headers.update(_STREAM_HEADERS)
    return response
