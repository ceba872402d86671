"""The ASGI app: its page, its routes and their description, streams in assistant-stream's format.

Rule: a browser sends only a new text, or an answer to a question that the server asked. `doors`
checks who is asking, and from where, before a handler is called.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from decimal import Decimal
from importlib.resources import files
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from toolcrib.agent import Agent, RunStream
from toolcrib.approvals import answer_later
from toolcrib.chat.doors import (
    NOT_A_CLIENTS,
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    GivenRule,
    Handler,
    Nothing,
    OfRun,
    refusal,
)
from toolcrib.chat.durable_streams import DurableRuns, DurableStreams
from toolcrib.chat.live import CallKeeper, LiveThreads
from toolcrib.chat.threads import NOT_IN_TITLES, ThreadStore
from toolcrib.chat.view import (
    ListedRule,
    Operation,
    ShownThread,
    TurnView,
    new_turn,
    own_id,
    readable,
    shown_rule,
)
from toolcrib.clients import cost_of
from toolcrib.doors import MayApprove
from toolcrib.errors import ApprovalError, ErrorCode, MissingExtraError, ToolcribError
from toolcrib.values.decision import Answer, Caller, ForRun, Refuse
from toolcrib.values.json import Redacted, is_seen, to_plain
from toolcrib.values.message import Usage
from toolcrib.values.rule import KeepsRules
from toolcrib.values.run import RunState
from toolcrib.values.typed import names_wrong_types

try:
    from assistant_stream.assistant_stream_chunk import UpdateStateChunk
    from assistant_stream.serialization import DataStreamResponse
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

# The page: files that are built from `web/`, and headers that let it run only its own scripts.
#
# Rule: nothing that a model or a tool says can become part of the page. Scripts and styles come
# from these files alone, and the page talks to this server alone.

_MAX_TITLE = 200
_PAGE_FILES = {
    "index.html": "text/html; charset=utf-8",
    "index.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page: `/` and its files.

    They hold nobody's data; callers are checked where the threads are.
    """
    return [_page_route(name, content_type) for name, content_type in _PAGE_FILES.items()]


def _page_route(name: str, content_type: str) -> Route:
    body = files("toolcrib.chat").joinpath("built", name).read_bytes()
    headers = {
        **_PAGE_HEADERS,
        "content-type": content_type,
        "etag": f'"{hashlib.sha256(body).hexdigest()}"',
    }

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return Route("/" if name == "index.html" else f"/{name}", endpoint, methods=["GET"])


# The app and its routes.

_STREAM_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-vercel-ai-data-stream": "v1",
}


class NewMessage(Redacted, msgspec.Struct, forbid_unknown_fields=True):
    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    instead_of: str = ""


class GivenAnswer(Redacted, msgspec.Struct, forbid_unknown_fields=True):
    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    decision: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["approve", "deny"]})]
    arguments: dict[str, Any] | None = None
    for_run: ForRun = False
    always: GivenRule | None = None
    reason: str = ""


class Title(msgspec.Struct, forbid_unknown_fields=True):
    title: str


class ListedThread(msgspec.Struct):
    id: str
    title: str
    created_at: float
    updated_at: float


class ThreadList(msgspec.Struct):
    threads: list[ListedThread]


class Created(msgspec.Struct):
    id: str


class Begun(msgspec.Struct):
    turn: str


class Spent(msgspec.Struct):
    """What replies have used; `cost` is US dollars as text, None if a price is not known."""

    requests: int
    input_tokens: int
    output_tokens: int
    cache_read: int
    cache_written: int
    cost: str | None


class Why(msgspec.Struct):
    record: dict[str, Any]
    choice: dict[str, Any] | None
    reply: Spent | None
    turn: Spent | None


class RuleList(msgspec.Struct):
    """The rules for the caller; `keeps_rules` says whether an answer can give one here."""

    keeps_rules: bool
    rules: list[ListedRule]


class Refused(msgspec.Struct):
    code: str
    message: str


class Refusal(msgspec.Struct):
    error: Refused


@names_wrong_types
def chat_app(
    agent: Agent,
    *,
    store: ThreadStore | str,
    authenticate: Authenticate | None = None,
    may_approve: MayApprove | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
    page: bool = True,
    durable: DurableRuns | None = None,
) -> Starlette:
    """Return an ASGI app that holds conversations with an agent; mount it in any other app.

    `store` stores the threads (a `ThreadStore`, or its URL). `authenticate` returns the caller of a
    request (None means nobody: 401); without it only this machine may ask. Callers answer the
    approvals of their own threads, unless `may_approve` says otherwise. A browser must come from
    the app's own origin or one of `allowed_origins`. If the agent's runner has `rules`, an answer
    may hold for always, and callers list and revoke the rules that are for them. `page=False`
    leaves out the page at `/`. The app needs no lifespan.

    With `durable` (a `DurableAgents`, which has the agent under its name, or as "chat" if it has
    none) runs outlive this process. Raises TypeError for other types, and ToolcribError for
    `durable` together with `may_approve`, because the restriction is not stored with an answer.
    """
    doors = Doors(authenticate, may_approve, allowed_origins, limits)
    thread_store = store if isinstance(store, ThreadStore) else ThreadStore(store)
    keeper = CallKeeper(thread_store)
    runner = agent.runner.with_sinks(keeper)
    if runner.approver is None:
        runner = runner.with_approver(answer_later)
    if durable is not None and doors.limited:
        raise ToolcribError(
            "chat_app: may_approve= cannot be used with durable=, where each caller may approve "
            "their own calls"
        )
    durable_streams = None if durable is None else DurableStreams(durable, agent.name or "chat")
    carried_agent = agent.replace(tools=runner)
    live = LiveThreads(
        carried_agent, thread_store, keeper, limited=doors.limited, durable_streams=durable_streams
    )
    rules = [member.runner.rules for member in carried_agent.team.members.values()]
    rule_stores = {id(member): member for member in rules if member is not None}
    chat = _Chat(live, thread_store, doors, [*rule_stores.values()])
    return chat.app(page_routes() if page else [])


_CODES_BY_STATUS = {404: "unknown_path", 405: "wrong_method"}


async def _refuse_error(_request: Request, error: Exception) -> Response:
    """Return a Refusal for errors outside the doors.

    These are an unknown path, a wrong method, the application's own HTTPException, and unexpected
    errors, which the server logs.
    """
    if not isinstance(error, HTTPException):
        return refusal(ChatError(500, "failed", "something went wrong"))
    code = _CODES_BY_STATUS.get(error.status_code, "refused")
    response = refusal(ChatError(error.status_code, code, str(error.detail)))
    response.headers.update(error.headers or {})
    return response


_EXCEPTION_HANDLERS = {HTTPException: _refuse_error, Exception: _refuse_error}


class _Chat:
    """The routes of one app."""

    def __init__(
        self, live: LiveThreads, store: ThreadStore, doors: Doors, rule_stores: Sequence[KeepsRules]
    ) -> None:
        self._rule_stores = rule_stores
        self._live = live
        self._store = store
        self._doors = doors
        self._streams: Counter[str] = Counter()

    def app(self, page: list[Route]) -> Starlette:
        operations = self._operations()
        routes = [
            self._doors.route(
                operation.method, operation.path, operation.handler, operation.body_type
            )
            for operation in operations
        ]
        all_routes = [*page, _description_route(operations), *routes]
        asgi_app = Starlette(routes=all_routes, exception_handlers=_EXCEPTION_HANDLERS)
        asgi_app.state.chat = self._live
        return asgi_app

    def _operations(self) -> list[_Operation]:
        thread = "/threads/{thread_id}"
        call, approval = thread + "/calls/{call_id:path}", thread + "/approvals/{approval_id}"
        return [
            _Operation("GET", "/threads", self._list, "Your threads, newest first", ThreadList),
            _Operation("POST", "/threads", self._create, "A new thread", Created, 201),
            _Operation("GET", thread, self._show, "What a page shows of it", ShownThread),
            _Operation("PATCH", thread, self._rename, "Another title", Title, body_type=Title),
            _Operation("DELETE", thread, self._delete, "Gone", None, 204),
            _Operation("GET", thread + "/export", self._export, "The same as a file", ShownThread),
            _Operation("GET", thread + "/stream", self._stream, _STREAM_SUMMARY, Operation),
            _Operation(
                "POST", thread + "/messages", self._ask, "Begin a run", Begun, 202, NewMessage
            ),
            _Operation("POST", thread + "/cancel", self._cancel, "Stop its run", Nothing, 202),
            _Operation("POST", approval, self._answer, "Answer it", Begun, 202, GivenAnswer),
            _Operation("GET", call, self._why, "The record of a call", Why),
            _Operation("GET", "/rules", self._rules, "Your rules, oldest first", RuleList),
            _Operation("DELETE", "/rules/{rule_id}", self._revoke, "Revoked", None, 204),
        ]

    async def _list(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        search = request.query_params.get("search", "")[:200]
        return JSONResponse({"threads": await self._store.list(caller.id, search=search)})

    async def _create(self, _request: Request, caller: Caller, _body: Nothing) -> Response:
        return JSONResponse({"id": await self._store.create(caller.id)}, 201)

    async def _show(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        return JSONResponse(await self._live.snapshot(_thread(request), caller.id))

    async def _rename(self, request: Request, caller: Caller, body: Title) -> Response:
        title = " ".join(body.title.split())
        if not is_seen(title):
            raise ChatError(422, "no_title", "a title needs at least one visible character")
        if len(title) > _MAX_TITLE or NOT_IN_TITLES.search(title):
            raise ChatError(
                422,
                "bad_title",
                f"a title may have at most {_MAX_TITLE} characters, without control "
                "characters or characters that change the text direction",
            )
        await self._live.rename(_thread(request), caller.id, title)
        return JSONResponse({"title": title})

    async def _delete(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        await self._live.delete(_thread(request), caller.id)
        return Response(status_code=204)

    async def _export(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        view = await self._live.snapshot(_thread(request), caller.id)
        disposition = f'attachment; filename="{view["thread"]["id"]}.json"'
        return JSONResponse(view, headers={"content-disposition": disposition})

    async def _stream(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        changes = self._live.watch(_thread(request), caller.id)
        first = await anext(changes)
        if request.method == "HEAD":  # the headers, and the end
            await changes.aclose()
            return _Streamed(changes, self._doors.limits.heartbeat)
        if self._streams[caller.id] >= self._doors.limits.streams:
            await changes.aclose()
            raise ChatError(
                429, "too_many_streams", "too many pages of this chat are open: close one first"
            )
        self._streams[caller.id] += 1

        async def chunks() -> AsyncGenerator[Any, None]:
            try:
                yield UpdateStateChunk([*first])
                async for operations in changes:
                    yield UpdateStateChunk([*operations])
            except ToolcribError:
                return  # the thread or the database is gone: the reader connects again
            finally:
                await changes.aclose()

        return _ThreadResponse(
            chunks(), self._doors.limits.heartbeat, lambda: self._stream_closed(caller.id)
        )

    def _stream_closed(self, caller_id: str) -> None:
        self._streams[caller_id] -= 1
        if not self._streams[caller_id]:
            del self._streams[caller_id]

    async def _ask(self, request: Request, caller: Caller, body: NewMessage) -> Response:
        self._doors.check_text(body.text)
        thread_id = _thread(request)
        with self._live.count_run(thread_id, caller.id, self._doors.limits.runs):
            turn_id = await self._live.ask(thread_id, caller, body.text, body.instead_of)
        return JSONResponse({"turn": turn_id}, 202)

    async def _cancel(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        await self._live.cancel(_thread(request), caller.id)
        return JSONResponse({}, 202)

    async def _answer(self, request: Request, caller: Caller, body: GivenAnswer) -> Response:
        answer = self._answer_of(body, caller)
        thread_id, approval_id = _thread(request), request.path_params["approval_id"]
        with self._live.count_run(thread_id, caller.id, self._doors.limits.runs):
            turn_id = await self._live.answer(
                thread_id,
                caller,
                approval_id,
                answer,
                lambda question: self._doors.may_approve(caller, question),
            )
        return JSONResponse({"turn": turn_id}, 202)

    def _answer_of(self, body: GivenAnswer, caller: Caller) -> Answer:
        """Return the answer in a request body. Raises ChatError."""
        if body.decision == "approve":
            return self._doors.yes_of(caller, body.arguments, body.for_run, body.always)
        if body == GivenAnswer("deny", reason=body.reason):
            return Refuse(reason=body.reason[:500], by=caller.id)
        message = "decision must be approve (with arguments, for_run or always) or deny"
        raise ChatError(422, "invalid_answer", message)

    async def _why(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        """Return the whole record of a call: who decided, what it was picked from, what it gave."""
        call_id = request.path_params["call_id"]
        stored = await self._live.load(_thread(request), caller.id)
        for turn in stored.turns:
            calls = await self._store.calls(turn.run_id) if turn.run_id else {}
            record = calls.get(own_id(turn.run_id, call_id))
            if record is not None:
                state = RunState.from_json(turn.state) if turn.state else None
                replies = turn.view.get("replies", [])
                turn_number = record.origin.turn if record.origin else 0
                call_replies = [reply for reply in replies if reply["turn"] == turn_number]
                why = Why(
                    readable(to_plain(record)),
                    None if state is None else readable(to_plain(state.choice)),
                    _spent_by(call_replies),
                    _spent_by(replies),
                )
                return JSONResponse(to_plain(why))
        raise ChatError(404, "unknown_call", "this thread has no such call")

    async def _rules(self, _request: Request, caller: Caller, _body: Nothing) -> Response:
        rules = {
            rule.id: rule
            for store in self._rule_stores
            for rule in await store.rules(caller=caller.id)
        }
        listed_rules = [shown_rule(rule) for rule in rules.values()]
        return JSONResponse(to_plain(RuleList(bool(self._rule_stores), listed_rules)))

    async def _revoke(self, request: Request, caller: Caller, _body: Nothing) -> Response:
        """Revoke a rule of the caller's; other callers' rules appear not to exist."""
        is_revoked = False
        for store in self._rule_stores:
            try:
                await store.revoke(request.path_params["rule_id"], caller=caller.id)
                is_revoked = True
            except ApprovalError as error:
                if error.code is not ErrorCode.UNKNOWN_APPROVAL:
                    raise
        if not is_revoked:
            raise ChatError(404, "unknown_rule", "you have no such rule")
        return Response(status_code=204)


def _spent_by(replies: Sequence[dict[str, Any]]) -> Spent | None:
    """Add up what replies have used, and what they cost if each has a known price."""
    if not replies:
        return None
    usages = [msgspec.convert(reply["usage"], Usage) for reply in replies]
    costs = [_cost(reply, usage) for reply, usage in zip(replies, usages, strict=True)]
    known_costs = [cost for cost in costs if cost is not None]
    total = sum(known_costs, Decimal(0)) if len(known_costs) == len(costs) else None
    sums = to_plain(sum(usages, Usage()))
    return Spent(**sums, cost=None if total is None else str(total))


def _cost(reply: dict[str, Any], usage: Usage) -> Decimal | None:
    """Return what a reply cost by its server's prices; None for an unknown server."""
    _, _, server = reply["provider"].rpartition(" at ")
    try:
        return cost_of(usage, reply["model"], provider=f"https://{server}") if server else None
    except MissingExtraError:
        return None


def _thread(request: Request) -> str:
    thread_id: str = request.path_params["thread_id"]
    return thread_id


# The description of the routes (OpenAPI 3.1), made from the very types that bodies are read as.

_STREAM_SUMMARY = (
    "What it shows, and then every change: lines that begin with `aui-state:`, each with a JSON list"
    " of Operations, and empty ones as a heartbeat"
)


_BODY_REFUSALS = (
    ". What a body says that is not a client's to say has a code of its own (422): "
    + "; ".join(f"`{code}`, {why}" for code, (why, _) in NOT_A_CLIENTS.items())
)


class _Operation(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    response_type: Any
    status: int = 200
    body_type: type[msgspec.Struct] = Nothing


def _description_route(operations: Sequence[_Operation]) -> Route:
    document = description(operations)

    async def endpoint(request: Request) -> Response:
        mount_path = request.scope.get("root_path") or "/"  # where the app is mounted
        return JSONResponse({**document, "servers": [{"url": mount_path}]})

    return Route("/openapi.json", endpoint, methods=["GET"])


def description(operations: Sequence[_Operation]) -> dict[str, Any]:
    """Return the OpenAPI description of routes."""
    types = [
        Refusal,
        *(
            t
            for operation in operations
            for t in (operation.body_type, operation.response_type)
            if t
        ),
    ]
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(types, ref_template=template)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = operation.path.replace(":path}", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _openapi_operation(
            operation, path, schema_of
        )
    info = {"title": "Chat", "version": "1", "description": "Conversations with an agent."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}


def _openapi_operation(
    operation: _Operation, path: str, schema_of: dict[Any, Any]
) -> dict[str, Any]:
    names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    if operation.response_type is ThreadList:
        parameters.append({"name": "search", "in": "query", "schema": {"type": "string"}})
    response: dict[str, Any] = {"description": operation.summary}
    if operation.response_type is Operation:
        response["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif operation.response_type is not None:
        response["content"] = {"application/json": {"schema": schema_of[operation.response_type]}}
    error_content = {"application/json": {"schema": schema_of[Refusal]}}
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}_{operation.handler.__name__.strip('_')}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            str(operation.status): response,
            "default": {"description": "Why not", "content": error_content},
        },
    }
    if operation.body_type is not Nothing:
        described["responses"]["default"]["description"] += _BODY_REFUSALS
        body = {"application/json": {"schema": schema_of[operation.body_type]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


# Streams in the data-stream format.


class _Streamed(DataStreamResponse):  # type: ignore[misc] # assistant_stream has no types
    """A response in the data-stream format of assistant-stream."""

    def __init__(self, chunks: AsyncGenerator[Any, None], heartbeat: float) -> None:
        super().__init__(chunks, heartbeat=heartbeat)
        self.headers.update(_STREAM_HEADERS)


class _ThreadResponse(_Streamed):
    """Sends a thread to its reader, and calls `on_close` when the reader has left, however early.

    Chunks that nobody has begun to read never come to an end.
    """

    def __init__(
        self, chunks: AsyncGenerator[Any, None], heartbeat: float, on_close: Callable[[], None]
    ) -> None:
        super().__init__(chunks, heartbeat)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


class _RunResponse(OfRun, _Streamed):
    """Sends the view of a run."""

    def __init__(self, run: RunStream, asked: str, heartbeat: float) -> None:
        self.run = run
        turn = new_turn(f"turn_{os.urandom(12).hex()}", asked)
        self._view = TurnView(turn, lambda _name, _by: None)
        _Streamed.__init__(self, self._chunks(), heartbeat)

    async def _chunks(self) -> AsyncGenerator[Any, None]:
        yield UpdateStateChunk([{"type": "set", "path": [], "value": self._view.snapshot()}])
        async for event in self.run:
            if operations := self._view.take(event):
                yield UpdateStateChunk([*operations])


@names_wrong_types
def stream_response(run: RunStream, *, asked: str = "", heartbeat: float = 15.0) -> Response:
    """Return a response, for your own route, that sends a run as it happens.

    It is in the data-stream format of assistant-stream. The state is a turn as `chat_app` shows it:
    `asked`, `status`, `note`, `model`, `usage` and `parts`. It is sent once, and then every change
    of it. Each call in it has ended before the turn has. If the reader disconnects, the run is
    cancelled; `heartbeat` is the number of seconds that the stream may be silent. Your route
    decides who may ask. Raises TypeError for other types, and ToolcribError for a run that was
    given to it before, or whose events somebody has begun to read.
    """
    if run.is_read:
        raise ToolcribError(
            "stream_response: the events of a run can be read only once, and this run is "
            "already being read"
        )
    run.is_read = True
    return _RunResponse(run, asked, heartbeat)
