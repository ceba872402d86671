"""A runner's tools as an MCP server. Any client lists them, and each call goes through the runner.

Rule: a client gets what a model gets, and nothing more: the schemas as their author wrote them, the
model's view of a result, an error's code and text. Annotations become hints only if the author set
them. The transport establishes who calls: a verified bearer token, or whoever started the program.
Standard output is reserved for the protocol. A call that its client gives up is cancelled and
recorded as cancelled.

A long call becomes a task (SEP-2663): the client gets a handle, and asks for the result later. The
server decides, and only for clients that take tasks. A call that has not ended after some seconds
becomes a task and goes on. A task belongs to its caller alone, by the caller's id, since roles may
change. It is kept for `TTL` seconds. A running task is cancelled if the client asks for it and when
the server ends, and so is one that waits for an approval. Both are recorded.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import anyio
import mcp_types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl, TypeAdapter, ValidationError
from starlette.applications import Starlette

from toolcrib.bridges.mcp.calls import GONE, ClientRuns, OneCall, Result
from toolcrib.bridges.mcp.content import listed
from toolcrib.bridges.mcp.doors import caller_of, guarded, security_of
from toolcrib.bridges.mcp.elicitation import StillOpen, read_state, written
from toolcrib.bridges.mcp.pipes import StandardInput
from toolcrib.bridges.mcp.tasks import EXTENSION, TaskParams, TaskUpdateParams, plain
from toolcrib.doors import MayApprove
from toolcrib.failures import SafeLogger, log_raised
from toolcrib.runner import ToolRunner
from toolcrib.runner.approval import DEFAULT_SECONDS
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Caller
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type, names_wrong_types

LOGGER = SafeLogger("toolcrib.mcp")
PAGE = 500
TASK_AFTER = 10.0
_FRESH_MS = 60_000  # how long a client may keep the list of tools
_MOST_PLACES, _LONGEST_PLACE = 5, 200  # limits on naming the faults of a request
_MOST_OPEN = _MOST_TASKS = 1_000
TTL = 3_600.0
_POLL_MS = 1_000
_ANSWER: TypeAdapter[types.InputResponse] = TypeAdapter(types.InputResponse)

P = TypeVar("P")
R = TypeVar("R")
CallerOf: TypeAlias = Callable[[AccessToken | None], Caller]
_Context: TypeAlias = ServerRequestContext[ClientRuns, Any]


@names_wrong_types
def mcp_server(
    runner: ToolRunner,
    *,
    name: str = "toolcrib",
    instructions: str | None = None,
    may_approve: MayApprove | None = None,
    caller: CallerOf = caller_of,
    state_key: str | None = None,
    page_size: int = PAGE,
    task_after: float = TASK_AFTER,
) -> McpServer:
    """Return an MCP server of a runner's tools: `await mcp_server(runner).run_stdio()`.

    Clients are told `name` and `instructions`, and get the tools in pages of `page_size`.
    `may_approve(caller, request)` says whether the caller may also approve. If so, a risky call
    asks the client's user, by elicitation. Without it nobody may, and the runner's approver is
    asked. `caller` is a function that makes a `Caller` from a verified token, or from None if there
    is none.

    `state_key` (at least 32 characters, secret) lets a question outlive the process that asked it.
    Without it, each process has a key of its own. A call that takes more than `task_after` seconds
    becomes a task, for clients that take tasks. Raises ValueError for a key that is too short, and
    for a page size below 1.
    """
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")
    return McpServer(
        runner,
        name=name,
        instructions=instructions,
        may_approve=may_approve,
        caller=caller,
        state_key=state_key,
        page_size=page_size,
        task_after=task_after,
    )


class _Task:
    def __init__(self, call: OneCall) -> None:
        self.id = secrets.token_urlsafe(24)
        self.call = call
        self.made_at = monotonic()
        self.given_up = False
        self._created = _now()

    @property
    def status(self) -> str:
        task = self.call.task
        if not task.done():
            return "input_required" if self.call.questions.open else "working"
        if task.cancelled() and self.call.unknown is None:
            return "cancelled"
        if self.call.asked() is not None:  # it goes on with the answers
            return "input_required"
        return "completed"

    def give_up(self) -> None:
        if not self.given_up:
            self.given_up = True
            self.call.give_up()

    def state(self) -> dict[str, Any]:
        """Return the state of a task, without its result."""
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self._created,
            "lastUpdatedAt": _now(),
            "ttlMs": int(TTL * 1000),
            "pollIntervalMs": _POLL_MS,
        }

    def detailed(self) -> dict[str, Any]:
        """Return everything about the task, as `tasks/get` does."""
        state = self.state() | {"resultType": "complete"}
        if state["status"] == "input_required":
            state["inputRequests"] = {
                key: plain(request) for key, request in self.call.open().items()
            }
        if state["status"] == "completed":
            try:
                state["result"] = plain(self.call.final())
            except MCPError as error:
                state |= {"status": "failed", "error": plain(error.error)}
        return state


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ServedTasks:
    """Holds the tasks of a server, and answers what clients ask about them."""

    def __init__(self, who: Callable[[], Caller], serves: Callable[[], ToolRunner]) -> None:
        self._current_caller = who
        self._current_runner = serves
        self._tasks: dict[str, _Task] = {}

    @staticmethod
    def takes_task(context: _Context) -> bool:
        """Return whether a client takes a task in place of a result."""
        capabilities = context.session.client_capabilities
        has_extension = capabilities is not None and EXTENSION in (capabilities.extensions or {})
        return has_extension and context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def handle_of(self, call: OneCall) -> dict[str, Any] | None:
        """Return the handle of a call that goes on, or None if there is no room for it."""
        now = monotonic()
        for name, old_task in [*self._tasks.items()]:
            if now - old_task.made_at <= TTL:
                break  # they are in the order of their creation
            if old_task.call.asked() is not None:
                old_task.give_up()  # it is forgotten the next time
            elif old_task.call.task.done():
                del self._tasks[name]
        if len(self._tasks) >= _MOST_TASKS:
            return None
        task = _Task(call)
        self._tasks[task.id] = task
        return task.state() | {"resultType": "task"}

    async def get(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        task = self._of(context, params)
        context.lifespan_context.of(context, task.call.caller).hear(task.call.tally)
        return task.detailed()

    async def update(self, context: _Context, params: TaskUpdateParams) -> dict[str, Any]:
        task = self._of(context, params)
        if not task.given_up:
            answers: dict[str, types.InputResponse] = {}
            for key, answer in params.input_responses.items():
                with suppress(ValidationError):  # a malformed one is left out
                    answers[key] = _ANSWER.validate_python(answer)
            task.call = task.call.answered(
                self._current_runner(), context, answers, caller=self._current_caller()
            )
            context.lifespan_context.of(context, task.call.caller).hold(task.call.task)
        return {"resultType": "complete"}

    async def cancel(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        self._of(context, params).give_up()
        return {"resultType": "complete"}

    def _of(self, context: _Context, params: TaskParams) -> _Task:
        """Return a caller's task. Raises MCPError."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found")
        if not self.takes_task(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            message = "The client has not declared that it supports tasks."
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)
        headers = getattr(context.request, "headers", None)
        if headers is not None and headers.get("mcp-name", "").strip() != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match the task in the body")
        task = self._tasks.get(params.task_id)
        if task is None or task.call.caller.id != self._current_caller().id:
            raise MCPError(INVALID_PARAMS, "There is no such task.")
        return task

    def end(self) -> list[OneCall]:
        """Cancel tasks that run or wait. Return their calls, to be waited for."""
        for task in self._tasks.values():
            task.give_up()
        return [task.call for task in self._tasks.values()]


class Calls:
    """Runs the calls of clients, and holds those that wait for an answer between two requests."""

    def __init__(
        self, may_approve: MayApprove | None, tasks: ServedTasks, task_after: float
    ) -> None:
        self._may_approve = may_approve
        self._tasks = tasks
        self._task_after = task_after
        self._open: dict[str, OneCall] = {}  # in the order of their questions
        self._answering: set[OneCall] = set()  # calls that a request waits for

    async def answer(
        self,
        runner: ToolRunner,
        context: _Context,
        params: types.CallToolRequestParams,
        *,
        caller: Caller,
    ) -> Result | dict[str, Any]:
        """Run a call, or go on with one. Raises MCPError for an unknown tool, for a call that is
        gone, and if nothing is recorded."""
        state = read_state(params.request_state)
        run = context.lifespan_context.of(context, caller)
        if isinstance(state, StillOpen):
            call = self._open.get(state.call_id)
            if call is None or call.caller.id != caller.id:
                raise MCPError(INVALID_PARAMS, GONE)
            del self._open[state.call_id]
            call.take(context, params.input_responses)
        else:
            may_approve, tally = self._may_approve, run.tally
            call = OneCall(
                runner, context, params, may_approve, caller=caller, tally=tally, asked=state
            )
        run.hold(call.task)
        self._answering.add(call)
        try:
            return await self._reply_to(call, context)
        finally:
            self._answering.discard(call)
            run.hear(call.tally)

    async def _reply_to(self, call: OneCall, context: _Context) -> Result | dict[str, Any]:
        as_task = self._tasks.takes_task(context)
        if await call.ended(self._task_after if as_task else None):
            return call.result()
        if as_task and not call.questions.open:
            handle = self._tasks.handle_of(call)
            if handle is not None:
                return handle
            if await call.ended():
                return call.result()
        self._open[call.call.id] = call
        if len(self._open) > _MOST_OPEN:
            self._close_one()
        return types.InputRequiredResult(
            input_requests=call.questions.open, request_state=written(StillOpen(call.call.id))
        )

    def _close_one(self) -> None:
        """Cancel the oldest waiting call of the caller with the most, so that no caller can
        displace another's questions."""
        ((busiest, _),) = Counter(call.caller.id for call in self._open.values()).most_common(1)
        oldest = next(id_ for id_, call in self._open.items() if call.caller.id == busiest)
        self._open.pop(oldest).task.cancel()

    async def end(self) -> None:
        """Cancel the calls that requests wait for. Each request is then answered with what is
        recorded."""
        for call in self._answering:
            call.end()

    async def aclose(self) -> None:
        """Cancel the waiting calls, and let them be recorded."""
        calls = [*self._open.values()]
        self._open.clear()
        for call in calls:
            call.give_up()
        tasks = [call.task for call in (*calls, *self._tasks.end())]
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)


class _Server(Server[ClientRuns]):
    """Announces to clients of the older protocols as well that it reports changes of its list."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


class McpServer:
    """Serves the tools of a runner to MCP clients. `mcp_server` makes it."""

    def __init__(
        self,
        runner: ToolRunner,
        *,
        name: str,
        instructions: str | None,
        may_approve: MayApprove | None,
        caller: CallerOf,
        state_key: str | None,
        page_size: int,
        task_after: float,
    ) -> None:
        self._runner = runner
        self._tasks = ServedTasks(self._current_caller, lambda: self._runner)
        self._calls = Calls(may_approve, self._tasks, task_after)
        self._caller = caller
        self._page_size = page_size
        self._all_runs: WeakSet[ClientRuns] = WeakSet()
        self._changes = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._changes)
        self._server: Server[ClientRuns] = _Server(
            name,
            version=_version(),
            instructions=instructions,
            lifespan=self._lifespan,
            cache_hints={"tools/list": CacheHint(_FRESH_MS, "private")},
            get_tool_input_schema=self._input_schema,
            on_list_tools=_guarded(self._list),
            on_call_tool=_guarded(self._call),
            on_subscriptions_listen=self._streams,
        )
        self._server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self._initialized
        )
        self._server.extensions[EXTENSION] = {}
        self._server.add_request_handler("tasks/get", TaskParams, self._tasks.get)
        self._server.add_request_handler("tasks/update", TaskUpdateParams, self._tasks.update)
        self._server.add_request_handler("tasks/cancel", TaskParams, self._tasks.cancel)
        keys = [secrets.token_bytes(32) if state_key is None else state_key]
        sealed = RequestStateSecurity(keys=keys, ttl=DEFAULT_SECONDS)
        self._server.middleware.append(RequestStateBoundary(sealed, default_audience=name))
        self._server.middleware.append(_naming_faults)

    @property
    def server(self) -> Server[Any]:
        """The SDK's server, for a transport of your own."""
        return self._server

    @property
    def runner(self) -> ToolRunner:
        """The runner whose tools are served. `use` sets another one."""
        return self._runner

    async def use(self, runner: ToolRunner) -> None:
        """Serve the tools of another runner from now on, and tell the clients that the list has
        changed."""
        check_type("runner", runner, ToolRunner, "a ToolRunner")
        self._runner = runner
        await self._changes.publish(ToolsListChanged())
        for runs in list(self._all_runs):
            for session in runs.sessions():
                await session.send_tool_list_changed()

    async def run_stdio(self, stop: asyncio.Event | None = None) -> None:
        """Serve whoever started this program, until its standard input ends or `stop` is set.

        At the end of a file (`< calls.jsonl`) its calls are finished first, for up to a minute.
        While it runs, everything that tools print goes to standard error.
        """
        options = self.server.create_initialization_options()
        try:
            lines = StandardInput(stop, self._calls.end)
            async with lines, stdio_server(lines) as (incoming, write):  # type: ignore[arg-type]
                requests, answers = lines.asked_by(incoming), lines.answered_by(write)
                with redirect_stdout(sys.stderr):
                    await self.server.run(requests, answers, options)
        except* (BrokenPipeError, ConnectionError):
            LOGGER.debug("the client has gone")

    def http_app(
        self,
        *,
        token_verifier: TokenVerifier | None = None,
        auth: AuthSettings | None = None,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        path: str = "/mcp",
    ) -> Starlette:
        """Return an ASGI app that serves streamable HTTP at `path`, for both generations of the
        protocol.

        Make it once. Without a `token_verifier`, only programs on this machine may call. `hosts`
        are the names of the server besides localhost, and `origins` those of web pages that may
        call it (`https://example.com`). `auth` is the SDK's `AuthSettings`, which tells clients
        where tokens come from.
        """
        if token_verifier is not None and auth is None:
            # tokens come from somewhere else, which is not named
            auth = AuthSettings(issuer_url=AnyHttpUrl("http://localhost"), resource_server_url=None)
        app = self.server.streamable_http_app(
            streamable_http_path=path,
            transport_security=security_of(hosts, origins),
            auth=auth,
            token_verifier=token_verifier,
        )
        return guarded(app, only_here=token_verifier is None)

    @asynccontextmanager
    async def _lifespan(self, _server: Server[ClientRuns]) -> AsyncIterator[ClientRuns]:
        runs = ClientRuns()
        self._all_runs.add(runs)
        try:
            yield runs
        finally:
            self._all_runs.discard(runs)
            if not self._all_runs:
                self._streams.close()
                await self._calls.aclose()

    async def _initialized(self, context: _Context, _params: types.NotificationParams) -> None:
        context.lifespan_context.of(context, self._current_caller())

    def _input_schema(self, name: str) -> JsonObject | None:
        entry = self._runner.catalog.by_name.get(name)
        return None if entry is None else entry.tool.definition.input_schema

    def _current_caller(self) -> Caller:
        """Return the caller according to the author's function. Raises MCPError."""
        expected = "a Caller, from a function that is not async"
        try:
            caller = self._caller(get_access_token())
            check_type("what caller gives", caller, Caller, expected)
        except Exception as raised:  # noqa: BLE001  the author's function
            log_raised("the MCP server's `caller`", raised)
            raise MCPError(
                INTERNAL_ERROR, "The server could not find out who is calling."
            ) from None
        return caller

    async def _list(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return a page of the tools that a caller may ever call."""
        caller = self._current_caller()
        policy_context = PolicyContext(caller, context.lifespan_context.of(context, caller).tally)
        definitions = [tool.get_definition() for tool in self._runner.catalog]
        first = 0
        if params is not None and params.cursor is not None:
            names = [each.name for each in definitions]
            if params.cursor not in names:
                raise MCPError(INVALID_PARAMS, "This cursor does not belong to this list.")
            first = names.index(params.cursor)
        page: list[types.Tool] = []
        for definition in definitions[first:]:
            if self._runner.never_allows(definition, policy_context) is not None:
                continue
            if len(page) == self._page_size:
                return types.ListToolsResult(tools=page, next_cursor=definition.name)
            page.append(listed(definition))
        return types.ListToolsResult(tools=page)

    async def _call(self, context: _Context, params: types.CallToolRequestParams) -> Any:
        caller = self._current_caller()
        return await self._calls.answer(self._runner, context, params, caller=caller)


def _guarded(
    handler: Callable[[_Context, P], Awaitable[R]],
) -> Callable[[_Context, P], Awaitable[R]]:
    """Keep exceptions from the client, since the SDK would send it their text."""

    async def answer(context: _Context, params: P) -> R:
        try:
            return await handler(context, params)
        except MCPError:
            raise
        except Exception as raised:  # noqa: BLE001  the last line of defence
            log_raised("the MCP server", raised)
            raise MCPError(INTERNAL_ERROR, "The server failed.") from None

    return answer


async def _naming_faults(ctx: _Context, call_next: CallNext) -> HandlerResult:
    """Name the malformed parameters of a request, since the SDK only says that there are some."""
    try:
        return await call_next(ctx)
    except ValidationError as error:
        places = dict.fromkeys(
            _fault_location(fault["loc"], ctx.params) for fault in error.errors()
        )
        faults = ", ".join(list(places)[:_MOST_PLACES])
        raise MCPError(INVALID_PARAMS, f"Invalid request parameters: {faults}") from None


def _fault_location(steps: tuple[str | int, ...], params: Mapping[str, Any] | None) -> str:
    """Return which parameter is malformed or missing. `steps` is the SDK's path to it, which
    continues with names of its own classes."""
    current: Any = {"params": params or {}, **(params or {})}
    path: list[str] = []
    for step in steps:
        if not isinstance(current, dict) or step not in current:
            break
        current = current[step]
        path.append(str(step))
    is_missing = isinstance(current, dict) and len(path) == len(steps) - 1
    problem = f"no {steps[-1]}" if is_missing else "not valid"
    return f"{'.'.join(path)[:_LONGEST_PLACE] or 'params'}: {problem}"


def _version() -> str:
    try:
        return version("toolcrib")
    except PackageNotFoundError:  # it runs from a checkout
        return ""
