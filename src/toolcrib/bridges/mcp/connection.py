"""One server and its sessions: opened, listed, called, and opened anew when one was lost.

Rule: the SDK's client is entered and left in one task, which this owns; whoever calls waits for it, in
this event loop or in another one. What a call cannot know it does not say: if a session ends between a
request and its answer, the outcome is unknown; it is sent again only where nothing was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError

from toolcrib.bridges.mcp.results import UNUSABLE, reported_error, value_of
from toolcrib.bridges.mcp.servers import HttpServer, Server, StdioServer
from toolcrib.bridges.mcp.tasks import Tasks, call_as_task
from toolcrib.bridges.mcp.transport import (
    NOT_SENT,
    SESSION_GONE,
    TOO_LARGE,
    UNREADABLE,
    HttpTransport,
    StdioTransport,
)
from toolcrib.errors import OutcomeUnknown, SourceError, ToolError
from toolcrib.runner.execute import until_done
from toolcrib.values.context import CallContext
from toolcrib.values.json import JsonValue, digest, encodable

T = TypeVar("T")
LOGGER = logging.getLogger("toolcrib.mcp")
MOST_TOOLS = 10_000
_MOST_PAGES = 1_000
_AGAIN = 5.0  # seconds until a stream of changes is opened again, or tools are listed again
_LONGEST = 300  # characters of what a server said of itself, in an error
_LONGEST_MESSAGE = 500  # characters of a message of progress
_READ = {"name", "description", "input_schema", "output_schema", "annotations", "execution"}
_ENDED = (CONNECTION_CLOSED, SESSION_GONE)
CHANGED = (
    "The server has changed this tool since its definition was read here, so it was not called: a new "
    "snapshot of the catalog has the new definition."
)
LOST = "The server broke off during the call: nobody knows whether it did what was asked."
NOT_REACHED = "The server cannot be reached. Nothing was sent to it."


class SessionOptions(NamedTuple):
    """Says how sessions are opened: in how many seconds, which folders are told as roots, and what else
    the SDK's `Client` takes."""

    seconds: float = 60.0
    roots: Sequence[str | Path] = ()
    client: Mapping[str, Any] = {}


class _Session:
    """Holds the state of one session: its client once it is open, and whether it has ended."""

    def __init__(self) -> None:
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.over = False
        self.stale = False  # its list of tools has changed
        self.news = asyncio.Event()

    def end(self) -> None:
        self.over = True
        self.news.set()

    def changed(self) -> None:
        self.stale = True
        self.news.set()


class Connection:
    """A server by `name`: `open` and `close` it in one event loop, `call` its tools from any."""

    def __init__(self, server: Server, options: SessionOptions, *, name: str) -> None:
        self.name = name
        self.tools: tuple[types.Tool, ...] = ()
        self._digests: dict[str, str] = {}
        self._as_tasks: frozenset[str] = frozenset()
        self._server = server
        self._options = options
        self._session: _Session | None = None
        self._wanted = asyncio.Event()
        self._closed = False
        self._owner: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Raises SourceError where the server cannot be reached, or its tools not listed."""
        self._owner = self._loop.create_task(self._own(), name=f"mcp: {self.name}")
        await self._connected()

    async def close(self) -> None:
        """End the session, and what was started for it; a call that waits hears that it ended."""
        self._closed = True
        self._wanted.set()
        if self._session is not None:
            self._session.end()
        if self._owner is not None:
            cancelled = await until_done(self._owner)
            if cancelled is not None:
                raise cancelled

    def digest_of(self, tool: str) -> str:
        """Return the digest of what the server says of a tool now; "" if it is not listed, or twice."""
        return self._digests.get(tool, "")

    async def refresh(self) -> None:
        """Ask for the list of tools. Raises SourceError."""
        await self._here(self._refreshed())

    async def call(
        self, tool: str, read: str, context: CallContext, arguments: dict[str, Any]
    ) -> Any:
        """Call a tool whose definition had the digest `read`. Raises ToolError, and OutcomeUnknown."""
        return await self._here(self._call(tool, read, context, arguments))

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the event loop that the session lives in."""
        if self._loop is asyncio.get_running_loop():
            return await work
        if not self._loop.is_running():
            work.close()
            raise ToolError(NOT_REACHED)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _call(
        self,
        tool: str,
        read: str,
        context: CallContext,
        arguments: dict[str, Any],
        *,
        again: bool = True,
    ) -> Any:
        session, client = await self._reached()
        if self.digest_of(tool) != read:
            raise ToolError(CHANGED, retryable=False)
        try:
            return value_of(await self._sent(client, tool, context, arguments))
        except MCPError as error:
            if error.code == SESSION_GONE and again:  # the server has forgotten it, and did nothing
                session.end()
                return await self._call(tool, read, context, arguments, again=False)
            raise self._told(error, session) from None
        except (ValidationError, RuntimeError):
            raise ToolError(UNUSABLE) from None

    async def _sent(
        self, client: Client, tool: str, context: CallContext, arguments: dict[str, Any]
    ) -> types.CallToolResult:
        """Raises what the SDK raises."""
        if tool in self._as_tasks:
            return await call_as_task(client, tool, arguments)
        return await client.call_tool(tool, arguments, progress_callback=_telling(context))

    def _told(self, error: MCPError, session: _Session) -> ToolError:
        """Return what is told of an error that is not the tool's own."""
        if error.code in (NOT_SENT, SESSION_GONE):
            return ToolError(NOT_REACHED, retryable=True)
        by_http = isinstance(self._server, HttpServer)
        if error.code == CONNECTION_CLOSED and (session.over or by_http):
            return OutcomeUnknown(LOST)
        if error.code == UNREADABLE:
            return ToolError(UNUSABLE)
        if error.code == TOO_LARGE:
            return ToolError(f"The tool ran, but {error.message}.", retryable=False)
        return reported_error(error.message)

    async def _reached(self) -> tuple[_Session, Client]:
        """Return an open session, for a call. Raises ToolError."""
        try:
            return await self._connected()
        except SourceError as error:
            LOGGER.warning("%s", error)
            raise ToolError(NOT_REACHED, retryable=True) from None

    async def _connected(self) -> tuple[_Session, Client]:
        """Return an open session; there is one at a time. Raises SourceError."""
        if self._closed or self._owner is None or self._owner.done():
            raise SourceError(f"{self.name}: its catalog was closed")
        if self._session is None or self._session.over:
            self._session = _Session()
            self._wanted.set()
        session = self._session
        return session, await asyncio.shield(session.client)

    async def _refreshed(self, *, again: bool = True) -> None:
        """List the tools, in a new session if this one has ended: to ask twice does no harm."""
        session, client = await self._connected()
        try:
            async with asyncio.timeout(self._options.seconds):
                await self._list(client)
        except (MCPError, ValidationError, TimeoutError) as error:
            ended = isinstance(error, MCPError) and error.code in _ENDED
            if not (ended and again):
                raise SourceError(f"{self.name}: {self._why(error, '')}") from None
            session.end()
            await self._refreshed(again=False)

    async def _own(self) -> None:
        """Hold one session after the other, each from its beginning to its end."""
        while not self._closed:
            await self._wanted.wait()
            self._wanted.clear()
            session = self._session
            if session is None or session.over:
                continue
            transport = self._transport(session)
            raised: BaseException | None = None
            try:
                await self._hold(session, transport.connect())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raised = error
                LOGGER.debug("the session with %s ended", self.name, exc_info=error)
            finally:
                session.end()
                if not session.client.done():
                    told = self._why(raised, transport.told)
                    session.client.set_exception(SourceError(f"{self.name}: {told}"))
                session.client.exception()  # nobody may have waited for it

    def _transport(self, session: _Session) -> StdioTransport | HttpTransport:
        if isinstance(self._server, StdioServer):
            return StdioTransport(self._server, session.end)
        return HttpTransport(self._server)

    async def _hold(self, session: _Session, streams: Any) -> None:
        """Open a session, list the tools, give it to whoever waits, and leave it when it is over."""

        async def hear(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                session.changed()

        given = dict(self._options.client)
        extensions = [*given.pop("extensions", ()), Tasks()]
        client = Client(
            streams,
            cache=None,
            message_handler=hear,
            list_roots_callback=self._roots if self._options.roots else None,
            extensions=extensions,
            **given,
        )
        async with asyncio.timeout(self._options.seconds) as limit, client:
            client.session.validate_tool_result = _by_us  # type: ignore[method-assign, assignment]
            await self._list(client)
            limit.reschedule(None)
            session.client.set_result(client)
            listening = asyncio.ensure_future(_listen(client, session))
            try:
                await self._watch(session, client)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _watch(self, session: _Session, client: Client) -> None:
        """Wait until a session is over; list its tools anew whenever they have changed."""
        while not session.over:
            await session.news.wait()
            session.news.clear()
            if session.stale and not session.over:
                session.stale = False
                try:
                    async with asyncio.timeout(self._options.seconds):
                        await self._list(client)
                except (MCPError, ValidationError, TimeoutError, SourceError) as error:
                    LOGGER.warning("%s: its tools have changed, and cannot be listed", self.name)
                    LOGGER.debug("%s", self.name, exc_info=error)
                    self._digests.clear()  # what they are now, nobody knows
                    self._loop.call_later(_AGAIN, session.changed)

    async def _list(self, client: Client) -> None:
        """Raises SourceError for a listing without end, and what the SDK raises."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        pages = _MOST_PAGES if client.server_capabilities.tools is not None else 0
        for _ in range(pages):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or len(tools) > MOST_TOOLS:
                break
        if cursor or len(tools) > MOST_TOOLS:
            raise SourceError(f"{self.name}: it lists more than {MOST_TOOLS:,} tools")
        before, self._digests = self._digests, _digests(tools)
        self.tools = tuple(tools)
        self._as_tasks = _called_as_tasks(client, tools)
        for name in before:
            if self.digest_of(name) != before[name]:
                LOGGER.warning("%s: the tool %r has changed since it was read", self.name, name)

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        del context
        return types.ListRootsResult(roots=[_root(folder) for folder in self._options.roots])

    def _why(self, raised: BaseException | None, told: str) -> str:
        """Return why a session could not be opened, in one line."""
        while isinstance(raised, BaseExceptionGroup):
            raised = raised.exceptions[0]
        match raised:
            case SourceError():
                return str(raised).removeprefix(f"{self.name}: ")
            case TimeoutError():
                why = f"it did not answer within {self._options.seconds:g} seconds"
            case MCPError(code=code) if code == CONNECTION_CLOSED:
                why = "it ended before it answered"
            case MCPError():
                why = raised.message
            case ValidationError():
                why = "it does not answer as MCP has it"
            case None:
                why = "it ended"
            case _:
                why = f"{type(raised).__name__}: {raised}"
        text = f"{why}: {told}" if told and told != why else why
        return text[:_LONGEST].replace("\n", " ")


async def _listen(client: Client, session: _Session) -> None:
    """Hear of changes by the stream that newer servers have for them, for as long as the session is."""
    told = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (told and told.list_changed):
        return
    while True:
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    session.changed()
        await asyncio.sleep(_AGAIN)
        session.changed()  # perhaps, meanwhile


def _root(folder: str | Path) -> types.Root:
    path = Path(folder).absolute()
    return types.Root(uri=FileUrl(path.as_uri()), name=path.name or None)


async def _by_us(_name: str, _result: types.CallToolResult) -> None:
    """Leave output schemas to the runner: the SDK's validator knows no bound of what it does."""


def _telling(context: CallContext) -> ProgressFnT:
    """Return what tells whoever watches a call how far the server says that it is."""

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        part: dict[str, JsonValue] = {"progress": progress}
        if total is not None:
            part["total"] = total
        if message is not None:
            part["message"] = encodable(message[:_LONGEST_MESSAGE])
        if isfinite(progress) and isfinite(total or 0):
            context.progress(part)

    return tell


def _called_as_tasks(client: Client, tools: Sequence[types.Tool]) -> frozenset[str]:
    """Return the tools that a 2025-11-25 server wants to be called as tasks."""
    told = client.server_capabilities.tasks
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS or told is None:
        return frozenset()
    marks = ((one.name, one.execution) for one in tools)
    return frozenset(name for name, how in marks if how and how.task_support == "required")


def _digests(tools: Sequence[types.Tool]) -> dict[str, str]:
    """Return the digests of tools by name, "" for one that is listed twice and not the same."""
    made: dict[str, str] = {}
    for tool in tools:
        try:
            now = digest(tool.model_dump(mode="json", include=_READ, exclude_none=True))
        except (ValueError, TypeError):
            now = ""  # it is no JSON, and is refused
        made[tool.name] = now if made.get(tool.name, now) == now else ""
    return made
