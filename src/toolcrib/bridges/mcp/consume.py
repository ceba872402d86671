"""The tools of MCP servers as a catalog, with imported definitions and calls through a runner.

Rule: a server belongs to somebody else. Its schemas are kept unchanged, and judge both what it is
sent and what it returns. Its claims about its tools only make them stricter. Its tools ask for
approval, and their results are untrusted, until the author trusts them by digest. A tool that was
changed since is not called. A tool that cannot be used is left out, with its name and the reason,
and the others can be used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import mcp_types as types
import msgspec

from toolcrib.bridges.mcp.connection import Connection, SessionOptions
from toolcrib.bridges.mcp.servers import Server, legal_name, named_servers, prefix_of
from toolcrib.errors import CatalogError, DefinitionError, SourceError, did_you_mean
from toolcrib.failures import SafeLogger
from toolcrib.tools import Catalog
from toolcrib.tools.build import stated_annotations
from toolcrib.tools.component import Tool
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.tools.lock import Change, Lock, lock_catalog, read_lock, refuse_changes
from toolcrib.tools.trust import Trusts
from toolcrib.values.context import CallContext
from toolcrib.values.definition import All, AnnotationOptions, ImportedForm
from toolcrib.values.typed import check_each, check_type, names_wrong_types

LOGGER = SafeLogger("toolcrib.mcp")
_LONGEST = 500  # characters of the reason why a tool was left out

Visible: TypeAlias = Sequence[str] | All | Mapping[str, Sequence[str] | All] | None


class LeftOut(msgspec.Struct, frozen=True):
    """A tool that `server` lists under the name `tool`, and the `reason` why the catalog lacks it.
    Secrets that the server was given are `[key]` in them."""

    tool: str
    server: str
    reason: str


class _ToolOptions(msgspec.Struct, frozen=True):
    """The author's options for the tools, whichever server they come from."""

    only: Collection[str] | None
    visible: Visible
    marks: Mapping[str, AnnotationOptions]
    trust: Trusts
    lock: str | Path | None

    def takes(self, *names: str) -> bool:
        return self.only is None or any(name in self.only for name in names)


class _ListedTool(msgspec.Struct, frozen=True):
    """A tool as a server lists it, with its name in the catalog and its current digest."""

    name: str
    tool: types.Tool
    connection: Connection
    digest: str


_Key: TypeAlias = tuple[Connection, str]
"""A server and its name for a tool. Two servers may list one name if only one of both tools can be
used."""


@names_wrong_types
def mcp_catalog(
    *servers: str | Path | Server,
    only: Collection[str] | None = None,
    visible: Visible = None,
    marks: Mapping[str, AnnotationOptions] | None = None,
    trust: Trusts | None = None,
    lock: str | Path | None = None,
    roots: Sequence[str | Path] = (),
    connect_seconds: float = 60.0,
    client: Mapping[str, Any] | None = None,
) -> McpCatalog:
    """Return the tools of MCP servers: `async with mcp_catalog("mcp-server-time") as catalog`.

    A server is a command, a URL, a `StdioServer`, an `HttpServer`, or the path of a file with
    `mcpServers`. A tool from such a file is called `server_tool`, with the server's name in the
    file. The servers are started when the block is entered. Raises SourceError for a value that
    names no server, and DefinitionError for invalid marks.

    `only` names the tools to take, by their names in the catalog or at the server. `visible` says
    what others than the model may see of results, for all tools or by name. Without it they see
    nothing. `marks` and `trust` are those of `Catalog.from_definitions`, by the names that tools
    have in the catalog. `lock` is the path of a lock file, and a tool whose definition differs from
    the locked one is refused.

    `roots` are folders that servers are told they may work in. `connect_seconds` limits how long
    opening a session takes. `client` has further keywords of the SDK's `Client`, such as
    `elicitation_callback`.
    """
    if not servers:
        raise SourceError("name a server, as in mcp_catalog('mcp-server-time')")
    if only is not None:
        check_each("only", only, str, "a list of names, such as ['read_file']")
    roots = check_each("roots", roots, (str, Path), "a list of folders, such as ['/home/ada']")
    for name, tool_marks in (marks or {}).items():
        check_type("marks", tool_marks, Mapping, "a dictionary {name: {'requires_approval': True}}")
        stated_annotations(name, tool_marks)
    prefixed_servers: list[tuple[str, Server]] = []
    for server in servers:
        prefixed_servers += named_servers(server).items()
    tool_options = _ToolOptions(only, visible, marks or {}, trust or {}, lock)
    return McpCatalog(
        prefixed_servers, tool_options, SessionOptions(connect_seconds, roots, client or {})
    )


class McpCatalog:
    """The servers that `mcp_catalog` names. `async with` starts them, and stops them at its end.

    It gives a catalog, which is a snapshot that no server can change. `changes` lists what a server
    has changed since, and `latest` gives a new snapshot for the next run.
    """

    def __init__(
        self,
        servers: Sequence[tuple[str, Server]],
        tool_options: _ToolOptions,
        options: SessionOptions,
    ) -> None:
        self._servers = servers
        self._tool_options = tool_options
        self._options = options
        self._connections: list[tuple[str, Connection]] = []
        self._snapshot: dict[_Key, _ListedTool] = {}
        self.left_out: tuple[LeftOut, ...] = ()
        """The tools that the servers list but that cannot be used, as of the last snapshot."""

    async def __aenter__(self) -> Catalog:
        """Start the servers and return their catalog.

        Raises SourceError for a server that cannot be reached, and CatalogError for repeated or
        unknown names and for tools that differ from the lock.
        """
        if self._connections:
            raise SourceError("this catalog is already open: make another one with mcp_catalog(…)")
        self._connections = [
            (prefix, Connection(server, self._options, name=prefix or server.name))
            for prefix, server in self._servers
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for _, connection in self._connections:
                    tasks.create_task(connection.open())
            return self._new_snapshot()
        except BaseException as raised:
            await self._close()
            if isinstance(raised, BaseExceptionGroup):
                raise raised.exceptions[0] from None
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def latest(self) -> Catalog:
        """Ask the servers for their tools, and return a new snapshot. Earlier snapshots do not
        change.

        Raises SourceError for a server that does not answer and outside of the block, and
        CatalogError for repeated or unknown names and for tools that differ from the lock.
        """
        if not self._connections:
            raise SourceError("no server is running: use this within `async with mcp_catalog(…)`")
        for _, connection in self._connections:
            await connection.refresh()
        return self._new_snapshot()

    def changes(self) -> tuple[Change, ...]:
        """Return how the servers' lists differ from the last snapshot, as far as the servers have
        said.

        A call of a tool that was changed or removed is refused.
        """
        current, changes = self._selected(), list[Change]()
        for key, entry in {**self._snapshot, **current}.items():
            before, after = self._snapshot.get(key), current.get(key)
            if before is None:
                changes.append(Change(entry.name, "added"))
            elif after is None:
                changes.append(Change(entry.name, "removed"))
            elif before.digest != after.digest:
                parts = _changed_parts(before.tool, after.tool, (*_READ_PARTS, "annotations"))
                changes.append(Change(entry.name, "changed", parts))
        return tuple(sorted(changes, key=lambda change: change.tool))

    async def _close(self) -> None:
        connections, self._connections = self._connections, []
        await asyncio.gather(*(connection.close() for _, connection in connections))

    def _selected(self) -> dict[_Key, _ListedTool]:
        """Return the listed tools that the author takes. One that is listed twice is the same, or
        has no digest."""
        selected = dict[_Key, _ListedTool]()
        for prefix, server in self._connections:
            for tool in server.tools:
                name = prefix_of(prefix) + legal_name(tool.name)
                if self._tool_options.takes(name, tool.name):
                    entry = _ListedTool(name, tool, server, server.digest_of(tool.name))
                    selected.setdefault((server, tool.name), entry)
        return selected

    def _malformed(self) -> Iterator[tuple[LeftOut, str, str]]:
        """Yield each malformed tool that the author takes, with its name in the catalog and at the
        server."""
        for prefix, server in self._connections:
            for tool, reason in server.malformed.items():
                name = prefix_of(prefix) + legal_name(tool)
                if self._tool_options.takes(name, tool):
                    yield _left_out(server, tool, f"tool '{name}': {reason}"), name, tool

    def _check_listed(self, catalog_names: set[str], server_names: set[str]) -> None:
        """Raise CatalogError for a name of the author's that no tool has, here or at its server."""
        for name in self._tool_options.only or ():
            if name not in catalog_names | server_names:
                listed = [tool.name for _, server in self._connections for tool in server.tools]
                raise CatalogError(f"no server lists '{name}'{did_you_mean(name, listed)}")
        options = {"marks are": self._tool_options.marks, "trust is": self._tool_options.trust}
        for option, by_name in options.items():
            for name in by_name.keys() - catalog_names:
                raise CatalogError(
                    f"{option} given for a tool that is not there: "
                    f"'{name}'{did_you_mean(name, sorted(catalog_names))}"
                )

    def _new_snapshot(self) -> Catalog:
        """Return a catalog of the servers' current lists. Raises CatalogError, without any secret
        that a server has put into a name."""
        try:
            return self._build_catalog()
        except CatalogError as error:
            text = str(error)
            for _, connection in self._connections:
                text = connection.shown(text)
            raise CatalogError(text) from None

    def _build_catalog(self) -> Catalog:
        tool_options, selected = self._tool_options, self._selected()
        malformed = list(self._malformed())
        catalog_names = {
            *(entry.name for entry in selected.values()),
            *(name for _, name, _ in malformed),
        }
        server_names = {*(tool for _, tool in selected), *(tool for _, _, tool in malformed)}
        self._check_listed(catalog_names, server_names)
        tools: list[Catalog] = []
        left_out = [entry for entry, _, _ in malformed]
        by_name: dict[_Key, _ListedTool] = {}
        for entry in selected.values():
            try:
                tool = self._tool(entry)
            except (DefinitionError, ValueError) as error:
                left_out.append(_left_out(entry.connection, entry.tool.name, str(error)))
                continue
            earlier = by_name.setdefault((entry.connection, entry.name), entry)
            if earlier is not entry:
                raise CatalogError(
                    f"'{earlier.tool.name}' and '{entry.tool.name}' of {entry.connection.name} would "
                    f"both be called '{entry.name}': choose one of them with only=[…]"
                )
            tools.append(Catalog([tool], source=entry.connection.name))
        catalog = Catalog(tools)
        lock = None
        if tool_options.lock is not None:
            lock = read_lock(tool_options.lock)
            refuse_changes(_changes_since(catalog, lock), tool_options.lock)
        trust = {name: each for name, each in tool_options.trust.items() if name in catalog}
        if trust:
            catalog = catalog.trusting(trust, lock=lock)
        for omitted in left_out:
            LOGGER.warning("%s: left out: %s", omitted.server, omitted.reason)
        self.left_out = tuple(left_out)
        self._snapshot = selected
        return catalog

    def _tool(self, entry: _ListedTool) -> Tool[..., Any]:
        """Return a tool of the catalog. Raises DefinitionError, and ValueError for a definition
        that is not JSON."""
        expected_digest = entry.digest
        if not expected_digest:
            raise DefinitionError(f"tool '{entry.name}': it is listed twice, or is not JSON")
        tool, visible = entry.tool, self._tool_options.visible
        form: dict[str, Any] = {"name": entry.name, "input_schema": tool.input_schema}
        form["description"] = tool.description or ""
        if tool.output_schema is not None:
            form["output_schema"] = tool.output_schema
        hints = tool.annotations
        hint_values = None if hints is None else hints.model_dump(by_alias=True, exclude_none=True)
        return tool_from_dict(
            ImportedForm(form, hint_values),
            {entry.name: _handler(entry.connection, tool.name, expected_digest)},
            visible.get(entry.name, ()) if isinstance(visible, Mapping) else visible,
            marks=self._tool_options.marks,
        )


def _left_out(connection: Connection, tool: str, reason: str) -> LeftOut:
    shown = connection.shown
    return LeftOut(shown(tool), connection.name, shown(reason)[:_LONGEST])


def _handler(connection: Connection, tool: str, expected_digest: str) -> Callable[..., Any]:
    async def call(toolcrib_context: CallContext, **arguments: Any) -> Any:
        return await connection.call(tool, expected_digest, toolcrib_context, arguments)

    return call


_READ_PARTS = ("description", "input_schema", "output_schema")


def _changed_parts(before: object, after: object, parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for part in parts if getattr(before, part) != getattr(after, part))


def _changes_since(catalog: Catalog, lock: Lock) -> list[Change]:
    """Return the tools that differ from what somebody read when the lock was written."""
    changes: list[Change] = []
    for name, tool in lock_catalog(catalog).tools.items():
        locked = lock.tools.get(name)
        if locked is None:
            changes.append(Change(name, "added"))
        elif locked.origin != tool.origin:
            parts = _changed_parts(locked, tool, _READ_PARTS) or ("annotations",)
            changes.append(Change(name, "changed", parts))
    return changes
