"""One server and its sessions, which are opened, listed, called, and opened again when one was
lost.

Rule: the SDK's client is entered and left in one task, which this module owns. Callers wait for it,
in this event loop or in another one. If a session ends between a request and its answer, the
outcome is unknown. The request is sent again only if nothing was sent before. A session that its
server has forgotten is left once its other calls have their own answers.

A call is sent only if the newest listing has its tool unchanged. The newest listing is the one that
began last, and it began after anything that the server has said about its tools, or may have said
unheard. Secrets that a server was given are hidden in everything that is told about it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, assert_never

import mcp_types as types
from mcp import Client, InputRequiredRoundsExceededError, MCPError
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import INTERNAL_ERROR
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, TypeAdapter, ValidationError

from toolcrib.bridges.loops import LoopLost, run_in
from toolcrib.bridges.mcp.content import UNUSABLE, encodable_message, reported_error, value_of
from toolcrib.bridges.mcp.faults import RequestFault, fault_of, mark_of, marked
from toolcrib.bridges.mcp.servers import Server, StdioServer, legal_name
from toolcrib.bridges.mcp.tasks import LOST, Tasks, call_as_task, raw_answer
from toolcrib.bridges.mcp.transport import HttpTransport, StdioTransport
from toolcrib.clients.server import hidden, remembered
from toolcrib.errors import OutcomeUnknown, SourceError, ToolError
from toolcrib.failures import SafeLogger, log_raised
from toolcrib.runner.execute import until_done
from toolcrib.values.context import CallContext
from toolcrib.values.json import JsonValue, digest, encodable

T = TypeVar("T")
LOGGER = SafeLogger("toolcrib.mcp")
MOST_TOOLS = 10_000
_MOST_PAGES = 1_000
_AGAIN = 5.0  # seconds until a stream of changes is reopened, or tools are listed again
_TO_LIST = 10.0  # seconds that a call waits for a new listing of tools
_FIRST_PAUSE = 0.1  # seconds until a server that keeps changing is listed again, doubled each time
_LONGEST = 300  # characters of a server's own text in an error
_LONGEST_MESSAGE = 500  # characters of a progress message
_READ_FIELDS = {"name", "description", "input_schema", "output_schema", "annotations", "execution"}
_SDK_SESSION = inspect.getfile(ClientRequestContext)
# seconds that a call waits for the end of a server that says that it ends, before it is used again,
# and seconds that calls in a session that is over get for their own answers, before it is left
_TO_END = 2.0
_TO_ANSWER = 5.0  # seconds that a server gets to answer a ping
_ANSWER: TypeAdapter[types.InputResponse | types.ErrorData] = TypeAdapter(
    types.InputResponse | types.ErrorData
)
CHANGED = (
    "The server has changed this tool since its definition was read here, so it was not "
    "called: take a new snapshot of the catalog to get the new definition."
)
LISTING = (
    "The server's tools may have changed, and a new list of them is not available yet. "
    "Nothing was called."
)
UNANSWERED = (
    "The server asked something that this client cannot answer, and what it has done is unknown."
)
_CALLBACK_FAILED = "The client's callback failed."
FORGETFUL = "The server does not know the session, and did not accept a new one either."
NOT_REACHED = "The server cannot be reached. Nothing was sent to it."
_NO_LOOP = (
    "the event loop in which its catalog was entered has ended, or is blocked, as by a plain "
    "`invoke` in it: await there, or make plain calls in another thread"
)


def _is_useful(record: logging.LogRecord) -> bool:
    """Return whether a record of the SDK's log is kept. Records about malformed notifications,
    which are ignored, are dropped, since they repeat everything that the server sent."""
    raised = record.exc_info[1] if record.exc_info else None
    is_malformed = record.levelno <= logging.WARNING and isinstance(raised, ValidationError)
    return not (is_malformed and record.pathname == _SDK_SESSION)


logging.getLogger("client").addFilter(_is_useful)  # others may use this name, too


class SessionOptions(NamedTuple):
    """How sessions are opened: within how many seconds, which folders are named as roots, and what
    else the SDK's `Client` takes."""

    seconds: float = 60.0
    roots: Sequence[str | Path] = ()
    client: Mapping[str, Any] = {}


class _Session:
    """Holds the state of one session: its client once it is open, and whether it has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.client: asyncio.Future[Client] = self._loop.create_future()
        self.is_over = False
        self.is_ending = False  # the server has said that it ends
        self.is_forgotten = False  # the server no longer knows the session
        self.news = asyncio.Event()
        self.changed_at = 0.0
        self.limit: asyncio.Timeout | None = None  # the limit on the owner's current wait
        self._ended = asyncio.Event()
        self._calls = 0  # number of calls that wait for an answer
        self._answered = asyncio.Event()
        self.reports_changes = True  # the server says that it reports changes of its tools
        self.misses_changes = False  # no stream is open by which it could report them
        self.is_outdated = False  # the tools changed, or may have, after the last listing began
        self.listed = asyncio.Event()  # cleared from then until a listing has ended
        self.listed.set()

    def end(self) -> None:
        self.is_over = True
        self._ended.set()
        self.news.set()
        self.listed.set()

    def forget(self) -> None:
        self.is_forgotten = True
        self.end()

    @contextmanager
    def calling(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._answered.set()

    async def answered(self, seconds: float) -> None:
        """Wait until each call has its own answer, for at most `seconds`, unless the session is
        left."""
        with suppress(TimeoutError):
            async with self.within(seconds):
                while self._calls:
                    self._answered.clear()
                    await self._answered.wait()

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the owner's waiting in this block. `leave` ends it at once. Raises TimeoutError."""
        try:
            async with asyncio.timeout(seconds) as limit:
                self.limit = limit
                yield limit
        finally:
            self.limit = None

    def leave(self) -> None:
        """End the session at once, whatever its owner waits for."""
        self.end()
        if self.limit is not None:
            self.limit.reschedule(self._loop.time())
            self.limit = None

    async def ended(self, seconds: float) -> None:
        """Wait, once and for at most `seconds`, until the session is over, since its server says
        that it ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        self.is_ending = False

    def changed(self, *, is_certain: bool = True) -> None:
        """Have the tools listed again: they changed, or may have if not `is_certain`."""
        if not self.is_outdated:
            self.is_outdated, self.changed_at = True, self._loop.time() if is_certain else inf
        self.listed.clear()
        self.news.set()

    def hear(self, is_heard: bool) -> None:
        """Note whether the server's own messages are heard from now on."""
        self.misses_changes = not is_heard
        if is_heard and self.reports_changes:
            self.changed(is_certain=False)  # earlier messages may have been missed

    @contextmanager
    def relisted(self) -> Iterator[None]:
        """List the tools in this block. Changes during the listing are for the next one."""
        self.is_outdated = False
        try:
            yield
        finally:
            if not self.is_outdated:
                self.listed.set()


class Connection:
    """A server with a `name`. `open` and `close` it in one event loop; `call` its tools from any."""

    def __init__(self, server: Server, options: SessionOptions, *, name: str) -> None:
        self.name = name
        self.tools: tuple[types.Tool, ...] = ()
        self.malformed: dict[str, str] = {}  # malformed tools, by name, with the reason
        self._sent_secrets: tuple[str, ...] = ()  # in headers that were sent, also by `auth`
        self._digests: dict[str, str] = {}
        self._listing_lock = asyncio.Lock()  # otherwise an older listing might end last
        self._begun_listing = 0  # how many listings were begun
        self._known_listing = 0  # the listing that the digests are of
        self._task_tools: frozenset[str] = frozenset()
        self._server = server
        self._options = options
        mode = options.client.get("mode", "auto")
        # then the server is not asked what it can do, and the SDK makes up that it can do nothing
        self._skips_discovery = mode not in ("auto", "legacy") and not options.client.get(
            "prior_discover"
        )
        self._session: _Session | None = None
        self._session_wanted = asyncio.Event()
        self._closed = False
        self._owner: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()  # a forked child has a copy of the loop that claims to run

    async def open(self) -> None:
        """Open the first session. Raises SourceError if the server cannot be reached, or its tools
        not listed."""
        self._owner = self._loop.create_task(self._run_sessions(), name=f"mcp: {self.name}")
        await self._open_session()

    async def close(self) -> None:
        """End the session and what was started for it. Calls that wait are told that it ended."""
        if self._process != os.getpid():
            return  # they belong to the parent process
        self._closed = True
        self._session_wanted.set()
        if self._session is not None:
            self._session.leave()
        if self._owner is not None:
            cancelled = await until_done(self._owner)
            if cancelled is not None:
                raise cancelled

    def digest_of(self, tool: str) -> str:
        """Return the digest of a tool's current definition, or "" if it is not listed, or listed
        twice."""
        return self._digests.get(tool, "")

    async def refresh(self) -> None:
        """Ask for the list of tools. Raises SourceError."""
        try:
            await self._in_own_loop(self._refresh_list)
        except LoopLost:
            raise SourceError(f"{self.name}: {_NO_LOOP}") from None

    async def call(
        self, tool: str, expected_digest: str, context: CallContext, arguments: dict[str, Any]
    ) -> Any:
        """Call a tool whose definition had this digest. Raises ToolError and OutcomeUnknown."""
        try:
            return await self._in_own_loop(
                partial(self._call, tool, expected_digest, context, arguments)
            )
        except SourceError:
            raise ToolError(NOT_REACHED) from None
        except LoopLost as lost:
            LOGGER.warning("%s: %s", self.name, _NO_LOOP)
            if lost.begun:
                raise OutcomeUnknown(LOST) from None
            raise ToolError(NOT_REACHED, retryable=True) from None

    async def _in_own_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work in the event loop of the session. Raises SourceError if that loop does not
        run, and LoopLost."""
        if self._loop is asyncio.get_running_loop():
            # The SDK's time limits cancel the task in which they began, and a call that does not
            # stop is left behind by its caller's task.
            return await asyncio.ensure_future(work())
        if self._process != os.getpid() or not self._loop.is_running():
            raise SourceError(f"{self.name}: it was opened in another event loop")
        return await run_in(self._loop, work)

    async def _call(
        self,
        tool: str,
        expected_digest: str,
        context: CallContext,
        arguments: dict[str, Any],
        *,
        may_retry: bool = True,
    ) -> Any:
        session, client = await self._session_with_list()
        if self.digest_of(tool) != expected_digest:
            raise ToolError(CHANGED, retryable=False)
        with session.calling():
            try:
                return value_of(await self._answer(client, tool, context, arguments), self.shown)
            except MCPError as error:
                if not (may_retry and await _is_gone(fault_of(error), session, client)):
                    raise self._error_of(error, session) from None
            except InputRequiredRoundsExceededError:
                raise OutcomeUnknown(UNANSWERED) from None
            except (ValidationError, RuntimeError):
                raise ToolError(UNUSABLE) from None
            session.forget()
        return await self._call(tool, expected_digest, context, arguments, may_retry=False)

    async def _answer(
        self, client: Client, tool: str, context: CallContext, arguments: dict[str, Any]
    ) -> types.CallToolResult:
        """Return the server's answer. Raises what the SDK raises, and ToolError for a result that
        no call has."""
        if tool in self._task_tools:
            return await call_as_task(client, tool, arguments)
        result = await client.call_tool(
            tool, arguments, progress_callback=_progress_callback(context)
        )
        modern = client.session.protocol_version in MODERN_PROTOCOL_VERSIONS
        if modern and result.result_type != "complete":
            raise ToolError(UNUSABLE)
        return result

    def _error_of(self, error: MCPError, session: _Session) -> ToolError:
        match fault_of(error):
            case RequestFault.NOT_SENT:
                return ToolError(NOT_REACHED, retryable=True)
            case RequestFault.SESSION_GONE:
                return ToolError(FORGETFUL, retryable=False)
            case RequestFault.ENDING:
                session.is_ending = isinstance(self._server, StdioServer)
                return OutcomeUnknown(LOST)
            case RequestFault.BROKEN:
                return OutcomeUnknown(LOST)
            case RequestFault.UNREADABLE:
                return ToolError(UNUSABLE)
            case RequestFault.UNANSWERED:
                model_text = f"{UNANSWERED} {error.message}"
                return OutcomeUnknown(UNANSWERED, model_text=model_text)
            case RequestFault.TOO_LARGE:
                return ToolError(f"The tool ran, but {error.message}.", retryable=False)
            case RequestFault.REFUSED | None:
                return reported_error(self.shown(error.message))
            case fault:
                assert_never(fault)

    async def _session_with_list(self) -> tuple[_Session, Client]:
        """Return an open session whose tools are known in their current form. Raises ToolError."""
        try:
            session, client = await self._open_session()
            deadline = self._loop.time() + _TO_LIST
            may_be_stale = session.misses_changes and session.reports_changes
            while may_be_stale or not session.listed.is_set():
                async with asyncio.timeout_at(deadline):
                    await (self._refresh_list() if may_be_stale else session.listed.wait())
                may_be_stale = False
                session, client = await self._open_session()
        except TimeoutError:
            raise ToolError(LISTING, retryable=True) from None
        except SourceError as error:
            LOGGER.warning("%s", error)
            raise ToolError(NOT_REACHED, retryable=True) from None
        return session, client

    async def _open_session(self) -> tuple[_Session, Client]:
        """Return the open session, of which there is only one at a time. Raises SourceError."""
        if self._closed or self._owner is None or self._owner.done():
            raise SourceError(f"{self.name}: its catalog was closed")
        if self._session is not None and self._session.is_ending:
            await self._session.ended(_TO_END)
        if self._session is None or self._session.is_over:
            self._session = _Session()
            self._session_wanted.set()
        session = self._session
        return session, await asyncio.shield(session.client)

    async def _refresh_list(self, *, may_retry: bool = True) -> None:
        """List the tools, in a new session if this one has ended. Repeating this request does no
        harm."""
        session, client = await self._open_session()
        try:
            async with asyncio.timeout(self._options.seconds):
                await self._list(client)
        except (MCPError, ValidationError, TimeoutError) as error:
            fault = fault_of(error) if isinstance(error, MCPError) else None
            if may_retry and await _is_gone(fault, session, client):
                session.forget()
            elif may_retry and fault in (RequestFault.BROKEN, RequestFault.ENDING):
                session.end()
            else:
                raise SourceError(f"{self.name}: {self._reason_of(error, '')}") from None
            await self._refresh_list(may_retry=False)

    async def _run_sessions(self) -> None:
        """Hold one session after the other, each from its beginning to its end."""
        while not self._closed:
            await self._session_wanted.wait()
            self._session_wanted.clear()
            session = self._session
            if session is None or session.is_over:
                continue
            transport: StdioTransport | HttpTransport = (
                StdioTransport(self._server, session.end)
                if isinstance(self._server, StdioServer)
                else HttpTransport(self._server, self._remember, session.hear)
            )
            raised: BaseException | None = None
            try:
                await self._hold_session(session, transport.connect())
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  it is raised to all who wait
                raised = error
                LOGGER.debug("the session with %s ended: %s", self.name, self._reason_of(error, ""))
            finally:
                session.end()
                if not session.client.done():
                    reason = self._reason_of(raised, transport.stderr_tail)
                    session.client.set_exception(SourceError(f"{self.name}: {reason}"))
                session.client.exception()  # perhaps nobody waited for it

    def _remember(self, headers: Mapping[str, str]) -> None:
        self._sent_secrets = remembered(self._sent_secrets, "", headers)

    def shown(self, text: str) -> str:
        """Return a server's text with its secrets hidden, including their spelling in tool names."""
        secrets = (*self._server.secrets, *self._sent_secrets)
        return hidden(text, (*secrets, *map(legal_name, secrets)))

    async def _hold_session(self, session: _Session, streams: Any) -> None:
        """Open a session, list the tools, give it to all who wait, and leave it when it is over."""

        async def hear(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                session.changed()

        client_options = dict(self._options.client)
        client_options["extensions"] = [*client_options.get("extensions", ()), Tasks()]
        roots = self._roots if self._options.roots else None
        client = Client(
            streams, cache=None, message_handler=hear, list_roots_callback=roots, **client_options
        )
        async with session.within(self._options.seconds) as limit, client:
            client.session.validate_tool_result = _skip_validation  # type: ignore[method-assign, assignment]
            tool_support = client.server_capabilities.tools
            session.reports_changes = self._skips_discovery or bool(
                tool_support and tool_support.list_changed
            )
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                session.misses_changes = True  # until `_listen` hears
            _guard_callbacks(client.session)
            with session.relisted():
                await self._list(client)
            session.limit = None
            limit.reschedule(None)
            session.client.set_result(client)
            listening = asyncio.ensure_future(_listen(client, session))
            try:
                await self._watch_changes(session, client)
                if not self._closed:
                    await session.answered(_TO_END)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _watch_changes(self, session: _Session, client: Client) -> None:
        """Wait until a session is over, and list its tools again whenever they have changed. A
        server that changes with every listing is listed less and less often."""
        listed_at, pause = -inf, 0.0
        while not session.is_over:
            await session.news.wait()
            session.news.clear()
            if session.is_over or not session.is_outdated:
                continue
            is_soon = session.changed_at - listed_at < _AGAIN
            pause = min(max(2 * pause, _FIRST_PAUSE), _AGAIN) if is_soon else 0.0
            await self._pause(session, pause)
            if not session.is_over:
                with session.relisted():
                    await self._relist(session, client)
            listed_at = self._loop.time()

    async def _pause(self, session: _Session, seconds: float) -> None:
        """Wait, unless the session ends meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not session.is_over:
                    await session.news.wait()
                    session.news.clear()

    async def _relist(self, session: _Session, client: Client) -> None:
        try:
            async with session.within(self._options.seconds):
                await self._list(client)
        except (MCPError, ValidationError, TimeoutError, SourceError) as error:
            if session.is_over:
                return
            LOGGER.warning("%s: its tools have changed, and listing them failed", self.name)
            LOGGER.debug("%s: %s", self.name, self._reason_of(error, ""))
            self._digests.clear()  # the current ones are not known
            self._loop.call_later(_AGAIN, session.changed)

    async def _list(self, client: Client) -> None:
        """List the tools, or wait for another listing that begins from now on. Raises SourceError
        for a listing that is too long, and what the SDK raises."""
        begun_before = self._begun_listing
        async with self._listing_lock:
            if self._known_listing > begun_before:
                return
            self._begun_listing = number = self._begun_listing + 1
            tools, malformed = await self._pages(client)
            self._known_listing = number
            previous, self._digests = self._digests, _digests(tools) | dict.fromkeys(malformed, "")
            self.tools, self.malformed = tuple(tools), malformed
            self._task_tools = _task_only_tools(client, tools)
        for name in previous:
            if self.digest_of(name) != previous[name]:
                shown_name = self.shown(name)
                LOGGER.warning(
                    "%s: the tool %r has changed since it was read", self.name, shown_name
                )

    async def _pages(self, client: Client) -> tuple[list[types.Tool], dict[str, str]]:
        tools: list[types.Tool] = []
        cursor: str | None = None
        has_tools = self._skips_discovery or client.server_capabilities.tools is not None
        pages = _MOST_PAGES if has_tools else 0
        malformed: dict[str, str] = {}
        for _ in range(pages):
            page = await _page(client, cursor, malformed)
            tools += page.tools
            cursor = page.next_cursor
            if len(tools) + len(malformed) > MOST_TOOLS:
                raise SourceError(f"{self.name}: it lists more than {MOST_TOOLS:,} tools")
            if not cursor:
                break
        if cursor:
            raise SourceError(f"{self.name}: its list does not end after {_MOST_PAGES:,} pages")
        return tools, malformed

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        del context
        return types.ListRootsResult(roots=[_root(folder) for folder in self._options.roots])

    def _reason_of(self, raised: BaseException | None, stderr_tail: str) -> str:
        """Return in one line why a session could not be opened. Of the server's
        standard error, which may hold a secret of several lines, only the last line is taken."""
        stderr_tail = self.shown(stderr_tail).strip().rpartition("\n")[2].strip()
        while isinstance(raised, BaseExceptionGroup):
            raised = raised.exceptions[0]
        match raised:
            case SourceError():
                return str(raised).removeprefix(f"{self.name}: ")
            case TimeoutError():
                reason = f"it did not answer within {self._options.seconds:g} seconds"
            case MCPError() if fault_of(raised) is RequestFault.BROKEN and mark_of(raised) is None:
                reason = "it ended before it answered"
            case MCPError():
                reason = raised.message
            case ValidationError():
                reason = "its answer is not valid in MCP"
            case None:
                reason = "it ended"
            case _:
                reason = f"{type(raised).__name__}: {raised}"
        text = self.shown(
            f"{reason}: {stderr_tail}" if stderr_tail and stderr_tail != reason else reason
        )
        return text[:_LONGEST].replace("\n", " ")


async def _is_gone(fault: RequestFault | None, session: _Session, client: Client) -> bool:
    """Return whether a server did nothing for a call because it has forgotten the session. It says
    so, or does not even accept a ping. What another call has found out counts, too."""
    if fault is not RequestFault.REFUSED or session.is_forgotten:
        return fault in (RequestFault.REFUSED, RequestFault.SESSION_GONE)
    try:
        async with asyncio.timeout(_TO_ANSWER):
            await client.session.send_ping()
    except MCPError as error:
        if fault_of(error) in (RequestFault.REFUSED, RequestFault.SESSION_GONE):
            return True
    except TimeoutError:
        pass
    return session.is_forgotten  # which may be why the ping ended


async def _page(
    client: Client, cursor: str | None, malformed: dict[str, str]
) -> types.ListToolsResult:
    """Return a page of a listing. A malformed tool is left out, and the reason is added to
    `malformed`, whereas the SDK would refuse the whole page. Raises what the SDK raises."""
    session = client.session
    request = types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor))
    # the public method refuses the whole page
    raw = await raw_answer(
        session, request.model_dump(by_alias=True, mode="json", exclude_none=True)
    )
    listed, valid = raw.get("tools"), []
    for index, tool in enumerate(listed[: MOST_TOOLS + 1] if isinstance(listed, list) else ()):
        try:
            valid.append(types.Tool.model_validate(tool, by_name=False))
        except ValidationError as error:
            malformed[_name_of(tool, index)] = _malformed_reason(error)
    tools = valid if isinstance(listed, list) else listed
    payload = {"tools": tools, "nextCursor": raw.get("nextCursor")}
    page = types.ListToolsResult.model_validate(payload, by_name=False)
    names = {tool.name for tool in page.tools}
    is_complete = cursor is None and page.next_cursor is None
    page = session._absorb_tool_listing(page, complete=is_complete)  # noqa: SLF001  headers of its calls
    reason = "one of its arguments cannot be sent as the header that the definition names"
    malformed |= dict.fromkeys(names - {tool.name for tool in page.tools}, reason)
    return page


def _name_of(tool: object, index: int) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return encodable(name) if isinstance(name, str) and name else f"tool {index + 1} of a page"


def _malformed_reason(error: ValidationError) -> str:
    """Return where a definition is malformed, without any of its text."""
    first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = "/".join(map(str, first_error["loc"]))
    return (
        f"its definition is malformed ({location}: {first_error['msg']})"
        if location
        else first_error["msg"]
    )


async def _listen(client: Client, session: _Session) -> None:
    """Listen for changes on the stream that newer servers have for them, as long as the session
    lasts."""
    if not session.reports_changes or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    while True:
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                session.hear(True)
                async for _ in changes:
                    session.changed()
        session.hear(False)
        await asyncio.sleep(_AGAIN)


def _root(folder: str | Path) -> types.Root:
    path = Path(folder).absolute()
    return types.Root(uri=FileUrl(path.as_uri()), name=encodable(path.name) or None)


async def _skip_validation(_name: str, _result: types.CallToolResult) -> None:
    """Do nothing: the runner judges output schemas. The SDK's validator has no limit on its work."""


def _guard_callbacks(session: ClientSession) -> None:
    """Keep what the client's own callbacks do to their question. If one raises, or gives no answer
    that can be sent, the answer is an error. From 2026-07-28 on, errors are marked, since the SDK
    reports them like those of the server."""
    dispatch = session.dispatch_input_request

    async def guarded(
        context: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        try:
            answer = encodable_message(_ANSWER.validate_python(await dispatch(context, request)))
        except Exception as raised:  # noqa: BLE001  the author's callback
            log_raised("a callback of the MCP client", raised)
            answer = types.ErrorData(code=INTERNAL_ERROR, message=_CALLBACK_FAILED)
        if (
            isinstance(answer, types.ErrorData)
            and session.protocol_version in MODERN_PROTOCOL_VERSIONS
        ):
            return marked(RequestFault.UNANSWERED, answer.message)
        return answer

    session.dispatch_input_request = guarded  # type: ignore[method-assign, assignment]


def _progress_callback(context: CallContext) -> ProgressFnT:
    """Return a function that passes the server's progress on to whoever watches a call."""

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        part: dict[str, JsonValue] = {"progress": progress}
        if total is not None:
            part["total"] = total
        if message is not None:
            part["message"] = encodable(message[:_LONGEST_MESSAGE])
        if isfinite(progress) and isfinite(total or 0):
            context.progress(part)

    return tell


def _task_only_tools(client: Client, tools: Sequence[types.Tool]) -> frozenset[str]:
    task_support = client.server_capabilities.tasks
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS or task_support is None:
        return frozenset()
    executions = ((tool.name, tool.execution) for tool in tools)
    return frozenset(
        name for name, execution in executions if execution and execution.task_support == "required"
    )


def _digests(tools: Sequence[types.Tool]) -> dict[str, str]:
    """Return the digests of tools by name, with "" for a name that is listed with two definitions."""
    digests: dict[str, str] = {}
    for tool in tools:
        try:
            current = digest(tool.model_dump(mode="json", include=_READ_FIELDS, exclude_none=True))
        except (ValueError, TypeError):
            current = ""  # it is not JSON, and is refused
        digests[tool.name] = current if digests.get(tool.name, current) == current else ""
    return digests
