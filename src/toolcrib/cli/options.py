"""What several commands take from their command line: tools, database, audit log, approval.

Rules: code is imported from the working folder as well, and for a Python file from its folder. What
it prints goes to stderr, since stdout is for the command's own output. Looking into a database
never creates one, and never changes another program's. A key comes from a file or the environment,
never from a command line, which others on the machine can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import re
import sqlite3
import stat
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import msgspec
import orjson
import typer

from toolcrib import kit
from toolcrib.approvals import ApprovalStore, TerminalApprover
from toolcrib.audit import AuditFilter, AuditLog, Head
from toolcrib.closing import Closing
from toolcrib.errors import (
    DefinitionError,
    ErrorCode,
    MissingExtraError,
    SourceError,
    ToolcribError,
)
from toolcrib.runner.stopped import ExceptionHook
from toolcrib.storage import UnreachableError, write_new
from toolcrib.tools import Catalog, DefinitionsFile, discover, read_definitions, source_of
from toolcrib.urls import without_password
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Approver, Refuse
from toolcrib.values.definition import (
    HasDefinition,
    ImportedForm,
    ToolDefinition,
    marks_of_form,
    own_form,
)
from toolcrib.values.json import check_key
from toolcrib.values.record import RecordStatus, ToolInvocationRecord

T = TypeVar("T")
S = TypeVar("S", bound=Closing)
KEY = "TOOLCRIB_AUDIT_KEY"
LOG = "TOOLCRIB_AUDIT"  # the name of an environment variable
DATABASE = "sqlite:///crib.db"
_SQLITE = re.compile(r"sqlite(?:\+[a-z]+)?://(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")  # usual endings of a SQLite file's name
_IN_MEMORY = (None, "", ":memory:", "file:", "file::memory:")
RUNS = "sqlite:///runs.db"
STORE_OF_RUNS = "TOOLCRIB_RUNS"  # the name of an environment variable
STATE_KEY = "TOOLCRIB_STATE_KEY"
_SQLITE_MAGIC = b"SQLite format 3\0"
_MOST_NAMES = 20
_STATUSES: tuple[RecordStatus, ...] = get_args(RecordStatus)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO_PATTERN = re.compile(r"([0-9]{1,9})([smhdw])")
_HEAD_PATTERN = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")

ToolsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="WHERE",
        help="module:attribute, a module, a Python file, a .json/.jsonl file of definitions, "
        "entry-points[:NAME], openapi:FILE#URL for an API, or mcp:COMMAND, mcp:URL or mcp:FILE.json "
        "for the tools of MCP servers (may be repeated); the kit if left out.",
    ),
]
DataOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--database",
        metavar="FILE",
        help="A SQLite file that the tools of the kit may read but not change.",
    ),
]
WhereArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="WHERE", help="Same as --tools WHERE.")
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON value on stdout.")
]
ConsentOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--yes/--no", help="Approve or refuse every risky call without asking."),
]
LogOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="URL",
        envvar=LOG,
        help=f"The log, as an SQLAlchemy URL. That of durable runs is in {RUNS}.",
    ),
]
RecordOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--audit", metavar="URL", help="Record calls in this audit log, such as sqlite:///crib.db."
    ),
]
RulesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="URL",
        help="Allow answers for always, and keep them as rules in this database, such as "
        "sqlite:///crib.db.",
    ),
]
KeyFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help=f"A file with the log's key. Default: ${KEY} if it is set.",
    ),
]
RunOption: TypeAlias = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Only this run.")
]
CallOption: TypeAlias = Annotated[
    str | None, typer.Option("--call", metavar="ID", help="Only this call.")
]
EntryOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--entry",
        metavar="N",
        min=0,
        max=2**63 - 1,
        help="The number of an entry, instead of an id.",
    ),
]
ToolNameOption: TypeAlias = Annotated[
    str | None, typer.Option("--tool", metavar="NAME", help="Only this tool.")
]
CallerOption: TypeAlias = Annotated[
    str | None, typer.Option("--caller", metavar="ID", help="Only calls on behalf of this caller.")
]
StatusOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Only with this status: {', '.join(get_args(RecordStatus))}.",
        autocompletion=lambda: list(get_args(RecordStatus)),
    ),
]
CodeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--code",
        metavar="CODE",
        help="Only failures with this error code, such as timeout.",
        autocompletion=lambda: list(ErrorCode),
    ),
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="From this time on: 2026-11-22T14:30 (UTC without a zone), or 2h for the last two hours.",
    ),
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="Before this time, written like --since.")
]
LimitOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most N.")
]


class UnusableError(SourceError):
    """The command line names something that cannot be used."""


class UncheckedError(SourceError):
    """A log could not be opened or checked, which says nothing about its entries."""


class InterruptedTurn(Exception):  # noqa: N818  an ending, not a failure
    """Ctrl-C ended a command with `--json` that has already printed the calls that had run by then."""


SHOWS_TRACEBACKS: ContextVar[bool] = ContextVar("toolcrib_debug", default=False)
"""Whether `--debug` was given, before or after the command."""


OPENED: ContextVar[ExitStack] = ContextVar("toolcrib_opened")
"""Everything that the command has opened; it is closed when the command ends."""
_MCP_PREFIX = "mcp:"
_SILENT = 3.0  # seconds until a person at a terminal is told that a server is waited for
_OPENAPI_PREFIX = "openapi:"


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send what other code prints to stderr, and what programs print that it starts."""
    with ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(OSError):  # stdout or stderr may be closed
            own_stdout = os.dup(1)
            stack.callback(os.close, own_stdout)
            os.dup2(2, 1)
            stack.callback(os.dup2, own_stdout, 1)
        yield


def exception_hook() -> ExceptionHook | None:
    """With `--debug`, return a hook that prints the traceback of an exception in a tool; else None."""

    def print_traceback(_call: ToolCall, raised: BaseException) -> None:
        traceback.print_exception(raised, file=sys.stderr)

    return print_traceback if SHOWS_TRACEBACKS.get() else None


def no_terminal(record: ToolInvocationRecord) -> str:
    """Return how to approve a call for which nobody could be asked at a terminal, else an empty
    string."""
    needs_approval = record.error is not None and record.error.code is ErrorCode.APPROVAL_REQUIRED
    if not needs_approval or (sys.stdin is not None and sys.stdin.isatty()):
        return ""
    return "There is no terminal to ask at: pass --yes to approve it."


def approver(consent: bool | None) -> Approver:
    """Return an approver that asks at the terminal, or gives the answer of `--yes` or `--no`."""
    if consent is None:
        return TerminalApprover()

    async def fixed_answer(_request: ApprovalRequest) -> Answer:
        if consent:
            return Approve(by="--yes")
        return Refuse("refused by --no", by="--no")

    return fixed_answer


class Listed(msgspec.Struct, frozen=True):
    """A definition to choose from. No provider needs to accept its name or its schema."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def given_once(where: str | None, tools: list[str] | None) -> list[str] | None:
    """Return the sources named as WHERE or as --tools WHERE. Raises UnusableError if both were
    given."""
    if where is not None and tools:
        raise UnusableError(
            f"the tools are given twice, as {where} and {as_options(tools)}: choose one, or "
            "pass each source with --tools"
        )
    return tools if where is None else [where]


def as_options(tools: list[str]) -> str:
    """Return the sources as they stand on the command line, for errors."""
    return " ".join(f"--tools {where}" for where in tools)


def load_catalog(tools: list[str] | None, *, database: Path | None = None) -> Catalog:
    """Load the tools of all sources, or the kit's if there is none; those may read a `database`.

    Raises UnusableError if a source has nothing to load, DefinitionError for a wrong definition,
    and CatalogError for a name that two sources give.
    """
    if not tools:
        try:
            return kit.catalog(database=database)
        except SourceError as error:
            raise UnusableError(str(error)) from error
        except MissingExtraError as error:
            raise UnusableError(f"{error}, or name your own tools: --tools WHERE") from error
    if database is not None:
        raise UnusableError(
            f"--database works only with the kit: leave it out, or {as_options(tools)}"
        )
    return Catalog([_load(where) for where in tools])


def _load(where: str) -> Catalog:
    if where.startswith(_MCP_PREFIX):
        return _load_checked(where, lambda: _catalog_of_servers(where.removeprefix(_MCP_PREFIX)))
    if where.startswith(_OPENAPI_PREFIX):
        module, document = "toolcrib.bridges.openapi.catalog", where.removeprefix(_OPENAPI_PREFIX)
        return _load_checked(where, lambda: import_module(module).catalog_of(document))
    extend_import_path(where)
    return _load_checked(where, lambda: discover(where))


def extend_import_path(where: str) -> None:
    """Let imports look in the working directory, and in the folder of a file that is named."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    folder = str(Path(os.path.realpath(where)).parent)
    if where.endswith(".py") and folder not in sys.path:
        sys.path.append(folder)  # last, so that no file in it hides a standard module


def _load_checked(where: str, load: Callable[[], Catalog]) -> Catalog:
    """Load tools; what they print goes to stderr. Raises UnusableError if there are none."""
    try:
        with stdout_on_stderr():
            catalog = load()
    except SourceError as error:
        raise UnusableError(f"--tools {error}") from error
    if not catalog:
        raise UnusableError(f"--tools {where}: it has no tools")
    return catalog


def _catalog_of_servers(where: str) -> Catalog:
    """Start MCP servers in a separate thread until the command ends, and return their tools."""
    mcp = import_module("toolcrib.bridges.mcp")  # needs the extra `mcp`
    portals = import_module("anyio.from_thread")
    stack = OPENED.get()
    portal = stack.enter_context(portals.start_blocking_portal())
    servers = mcp.mcp_catalog(where)
    timer = threading.Timer(_SILENT, _print_waiting)
    timer.daemon = True
    timer.start()
    try:
        catalog: Catalog = stack.enter_context(portal.wrap_async_context_manager(servers))
    finally:
        timer.cancel()
    return catalog


def _print_waiting() -> None:
    if sys.stderr.isatty():
        typer.echo(
            "toolcrib: waiting for the MCP server to list its tools (Ctrl-C to stop)", err=True
        )


def each_source(tools: list[str] | None) -> Iterator[tuple[str, Catalog | list[ImportedForm]]]:
    """Load the sources, or the kit if there is none. Definitions in a file are returned unchecked.

    Raises UnusableError for a source that cannot be loaded.
    """
    if not tools:
        yield "the kit", load_catalog(None)
    for where in tools or ():
        try:
            source = None if where.startswith((_MCP_PREFIX, _OPENAPI_PREFIX)) else source_of(where)
            definitions = (
                read_definitions(source.path) if isinstance(source, DefinitionsFile) else None
            )
        except SourceError as error:
            raise UnusableError(f"--tools {error}") from error
        yield where, load_catalog([where]) if definitions is None else definitions


def names_to_try(names: Sequence[str], unknown_name: str = "") -> str:
    """List the names of a small catalog, or those of a large one that are most like the unknown
    name, or the first."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    closest = difflib.get_close_matches(unknown_name, names, n=5, cutoff=0.5) or names[:5]
    return f"{', '.join(closest)}, … ({len(names):,} in all)"


def load_for_picking(tools: list[str] | None) -> tuple[HasDefinition, ...]:
    """Load tools to choose from. A file of definitions is not checked, since none of them will run."""
    loaded: list[HasDefinition] = []
    for where, source in each_source(tools):
        loaded += (
            source if isinstance(source, Catalog) else (_listed(form, where) for form in source)
        )
    return tuple(loaded)


def _listed(form: Mapping[str, Any], where: str) -> Listed:
    form = own_form(form)
    name, schema = form.get("name"), form.get("input_schema")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"--tools {where}: a definition has no name")
    try:
        text = orjson.dumps(schema if isinstance(schema, dict) else {}).decode()
    except TypeError:
        raise DefinitionError(
            f"--tools {where}: the schema of {name!r} is nested too deeply, or holds an "
            "integer beyond 64 bits"
        ) from None
    return Listed(
        ToolDefinition(
            name=name,
            description=str(form.get("description") or ""),
            input_schema_json=text,
            annotations=marks_of_form(form),
        )
    )


def _named_url(url: str) -> str:
    """Return a database's URL for an error, with the environment variable that it came from."""
    variables = [f"${name}: " for name in (LOG, STORE_OF_RUNS) if os.environ.get(name) == url]
    return "".join(variables[:1]) + without_password(url)


def check_url(url: str) -> None:
    """Raise UnusableError for text that is no URL, such as a bare file name, and for a database in
    memory, since the next command could not read it."""
    shown_url = _named_url(url)
    if "://" not in url:
        example = (
            f"sqlite:///{without_password(url)}" if url.endswith(_SQLITE_SUFFIXES) else DATABASE
        )
        raise UnusableError(f"{shown_url}: give the URL of a database, such as {example}")
    match = _SQLITE.fullmatch(url)
    if match is not None and (match[1] in _IN_MEMORY or "mode=memory" in (match[2] or "")):
        raise UnusableError(
            f"{shown_url}: an in-memory database is lost when the program ends: give one in a "
            f"file, such as {DATABASE}"
        )


def store_of_runs(url: str | None) -> str:
    """Return the database of durable runs: `url`, $TOOLCRIB_RUNS, or a file in this folder."""
    return url or os.environ.get(STORE_OF_RUNS) or RUNS


def state_key(url: str, *, make: bool = True) -> bytes:
    """Return the key that signs the durable runs of a database, and its rules.

    It is $TOOLCRIB_STATE_KEY, or for a SQLite file the key stored next to it. With `make`, that key
    is made if it does not exist and nothing can have been signed yet. Raises UnusableError if there
    is no key, and for a database that cannot keep runs.
    """
    check_url(url)
    key, match = os.fsencode(os.environ.get(STATE_KEY, "")), _SQLITE.fullmatch(url)
    if key:
        try:
            return check_key(f"${STATE_KEY}", key)
        except ToolcribError as error:
            raise UnusableError(str(error)) from None
    if match is None:
        message = f"the state key of a server database must be set: set ${STATE_KEY}"
        raise UnusableError(f"{_named_url(url)}: {message}")
    file = Path(f"{match[1]}.key")
    if not make and not file.exists():
        raise UnusableError(
            f"{file}: there is no such file: set ${STATE_KEY} to the state_key of the program "
            "that asks for approval, or write that key to the file"
        )
    return _key_in_file(file)


def rules_in(url: str | None, consent: bool | None = None) -> ApprovalStore | None:
    """Return the store of rules, if rules are to be kept; its database is made if it does not
    exist.

    It is opened once here, since a rule that could not be stored would let nothing run. Raises
    UnusableError for a database that cannot keep rules, and if `consent` answers all questions
    anyway.
    """
    if url is None:
        return None
    if consent is not None:
        raise UnusableError("--rules keeps answers to questions: leave out --yes and --no")
    try:
        rules = ApprovalStore(url, state_key=state_key(url))
        with_open(rules, lambda store: store.rules(caller=""))
    except UnusableError as error:
        raise UnusableError(f"--rules {error}") from None
    except SourceError as error:
        raise UnusableError(f"--rules {without_password(url)}: {error}") from None
    return rules


def _key_in_file(file: Path) -> bytes:
    try:
        with contextlib.suppress(FileExistsError):
            write_new(file, os.urandom(32).hex().encode())
        key = file.read_bytes()
    except OSError as error:
        raise UnusableError(f"{file}: {error.strerror}") from None
    with contextlib.suppress(ToolcribError):
        return check_key(str(file), key)
    raise UnusableError(f"{file}: it holds no usable key; remove the file to have a new key made")


def existing_file(url: str, option: str = "--log") -> Path | None:
    """Return the file of a SQLite database, which `option` names, or None for a server.

    Raises UnusableError if there is no such file.
    """
    check_url(url)
    match = _SQLITE.fullmatch(url)
    if match is None or (match[1] or "").startswith("file:"):
        return None
    file = Path(match[1])
    if not file.is_file():
        reason = "it is a directory" if file.is_dir() else "there is no such file"
        raise UnusableError(f"{_named_url(url)}: {reason}; name another with {option} URL")
    return file


def check_holds(table: str, url: str, message: str, *, option: str) -> None:
    """Raise UnusableError as `existing_file` does, and SourceError for a file without that table.

    Opening the database of another program would add our tables to it.
    """
    file = existing_file(url, option)
    if file is None:
        return
    shown_url = _named_url(url)
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise SourceError(f"{shown_url}: {error.strerror}") from None
    if not start:
        raise SourceError(f"{shown_url}: the file is empty: {message}")
    if start != _SQLITE_MAGIC:
        raise SourceError(f"{shown_url}: it is not a SQLite database")
    tables = _tables(file)
    if tables is not None and table not in tables:
        raise SourceError(f"{shown_url}: {message}")


def _tables(file: Path) -> list[str] | None:
    """Return the tables of a SQLite file; None if it cannot be read, as opening it will report."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return [str(name) for (name,) in database.execute(query)]
    except sqlite3.Error:
        return None


def check_was_log(url: str) -> None:
    """Raise UnusableError as `existing_file` does, and SourceError for a file that has nothing of a
    log in it, since opening it would create one there. Any other damage is for the log to find."""
    file = existing_file(url)
    if file is None:
        return
    message = "it is not an audit log, or all of the log was erased"
    if not file.stat().st_size:
        raise SourceError(f"{_named_url(url)}: the file is empty: {message}")
    tables = _tables(file)
    if tables is not None and not any(name.startswith("audit_") for name in tables):
        raise SourceError(f"{_named_url(url)}: {message}")


def narrowed(
    audit_filter: AuditFilter,
    *,
    status: str | None,
    code: str | None,
    since: str | None,
    until: str | None,
) -> AuditFilter:
    """Return the filter with what else the options say. Raises UnusableError for unknown values."""
    return msgspec.structs.replace(
        audit_filter,
        status=one_of(
            _STATUSES,
            status,
            f"--status {status}: unknown status; use one of {', '.join(_STATUSES)}",
        ),
        code=one_of(
            ErrorCode, code, f"--code {code}: unknown error code; use one of {', '.join(ErrorCode)}"
        ),
        since=None if since is None else moment("--since", since),
        until=None if until is None else moment("--until", until),
    )


def moment(option: str, text: str) -> float:
    """Return the seconds since the epoch of an ISO 8601 time, or of a time ago: `30m`, `2h`, `3d`."""
    match = _AGO_PATTERN.fullmatch(text)
    if match is not None:
        return time.time() - int(match[1]) * _UNIT_SECONDS[match[2]]
    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UnusableError(
            f"{option} {text}: give a time such as 2026-11-22T14:30, or how long ago: 30m, 2h, 3d"
        ) from None


def head_of(text: str) -> Head:
    """Parse `SEQ:HASH`, as `verify` prints it. Raises UnusableError for any other text."""
    match = _HEAD_PATTERN.fullmatch(text)
    if match is None:
        raise UnusableError("--head: give SEQ:HASH, as `audit verify` prints it")
    return Head(int(match[1]), match[2])


def log_to_write(url: str | None, key_file: Path | None) -> AuditLog | None:
    """Return the log to record calls in, if there is one; it is made if it does not exist.

    It is opened once here: if nothing can be recorded, no tool runs and no model is asked. Raises
    UnusableError for a log that cannot be written to.
    """
    if url is None:
        if key_file is not None:
            raise UnusableError("--key-file needs --audit URL")
        return None
    try:
        check_url(url)
    except UnusableError as error:
        raise UnusableError(f"--audit {error}") from None
    key = key_of(key_file)
    try:
        log = AuditLog(url, key=key)
        with_open(log, AuditLog.open)
    except SourceError as error:
        raise UnusableError(f"--audit {without_password(url)}: {error}") from None
    return log


def log_to_read(url: str, key_file: Path | None, *, damaged: bool = False) -> AuditLog:
    """Return an existing log. Raises UnusableError if there is none. `damaged` also allows a
    damaged log."""
    key = key_of(key_file)
    if damaged:
        check_was_log(url)
    else:
        check_holds("audit_entries", url, "it holds no audit log", option="--log")
    try:
        return AuditLog(url, key=key)
    except (SourceError, MissingExtraError) as error:
        raise UncheckedError(f"{_named_url(url)}: {error}") from None


def of_log(url: str, log: AuditLog, work: Callable[[AuditLog], Awaitable[T]]) -> T:
    """Return the result of `work` on a log that exists, and close the log. Errors name the log.
    Raises UncheckedError if the log could not be read, which says nothing about its entries."""
    try:
        return with_open(log, work)
    except (UnreachableError, MissingExtraError) as error:
        raise UncheckedError(f"{_named_url(url)}: {error}") from None
    except UnusableError:
        raise  # an error about something else on the command line
    except SourceError as error:
        raise SourceError(f"{_named_url(url)}: {error}") from error


@contextlib.contextmanager
def named_in_errors(url: str) -> Iterator[None]:
    """Name a database in the error that it cannot be used, which does not say which it is."""
    try:
        yield
    except UnreachableError as error:
        raise SourceError(f"{_named_url(url)}: {error}") from None


def with_open(store: S, work: Callable[[S], Awaitable[T]]) -> T:
    """Return the result of `work` on what a database keeps, and close it."""

    async def run_and_close() -> T:
        async with aclosing(store):
            return await work(store)

    return asyncio.run(run_and_close())


def one_of(choices: Iterable[T], value: str | None, message: str) -> T | None:
    """Return the choice that equals the value, or None if there is no value. Raises UnusableError
    with `message` for a value that is not among the choices."""
    match = next((choice for choice in choices if choice == value), None)
    if match is None and value is not None:
        raise UnusableError(message)
    return match


def named_entry(call_or_run: str | None, seq: int | None) -> str:
    """Return the id or the entry that a command line names. Raises UnusableError unless it names
    exactly one.

    An id may be a number or empty, so an entry's number has an option of its own.
    """
    if (call_or_run is None) == (seq is None):
        raise UnusableError("give either an ID or --entry N")
    if call_or_run is None:
        return f"entry {seq} of a call"
    is_number = call_or_run.isascii() and call_or_run.isdecimal()
    return f"run and no call '{call_or_run}'" + (
        f" (for an entry: --entry {call_or_run})" * is_number
    )


def check_no_pipe(file: Path) -> None:
    """Raise UnusableError for a named pipe, because reading it would wait for a writer forever.

    A pipe that the shell has opened (`<(…)`, `/dev/stdin`) has a writer, and is read.
    """
    is_open = str(file).startswith(("/dev/", "/proc/"))
    if not is_open and stat.S_ISFIFO(file.stat().st_mode):
        raise UnusableError(f"{file}: it is a pipe, not a file")


def key_of(file: Path | None) -> bytes | None:
    """Return the key from the file or the environment, without the line feed at the file's end.

    Raises UnusableError for a file that cannot be read or is empty.
    """
    if file is None:
        return os.fsencode(os.environ.get(KEY, "")) or None
    try:
        check_no_pipe(file)
        key = file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise UnusableError(f"--key-file {file}: {error.strerror}") from None
    if not key:
        raise UnusableError(f"--key-file {file}: it is empty")
    return key
