"""Hydrated calls and contexts, made to measure."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import sqlalchemy

from toolcrib import ALL, Caller, Catalog, Hydrated, PolicyContext, ToolCall, hydrate, tool
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS
from toolcrib.values.definition import NoSchemaMode
from toolcrib.values.record import ToolInvocationRecord

CANARY = "canary-7f3a"


@tool(visible=ALL)
async def subject(text: str) -> str:
    """Do it."""
    return text


def _hydrated() -> Hydrated:
    made = hydrate(ToolCall("c", "subject", f'{{"text": "{CANARY}"}}'), Catalog([subject]))
    assert isinstance(made, Hydrated)
    return made


_CALL = _hydrated()


def call_of(
    name: str = "subject",
    *,
    mode: NoSchemaMode | None = None,
    repaired: bool = False,
    notes: tuple[str, ...] = (),
    **marks: Any,
) -> Hydrated:
    """A call of a tool with these annotations; its argument is the canary."""
    definition = msgspec.structs.replace(
        _CALL.definition,
        name=name,
        no_schema_mode=mode,
        annotations=msgspec.structs.replace(_CALL.definition.annotations, **marks),
    )
    provenance = msgspec.structs.replace(
        _CALL.provenance,
        repaired=repaired,
        validated=mode is None,
        no_schema_mode=mode,
        notes=notes,
    )
    return msgspec.structs.replace(_CALL, definition=definition, provenance=provenance)


def context_of(tally: RunTally | None = None, caller: Caller = ANONYMOUS) -> PolicyContext:
    return PolicyContext(caller, RunTally() if tally is None else tally)


def over(name: str, seconds: float) -> ToolInvocationRecord:
    """The record of a call that is over."""
    return ToolInvocationRecord(
        id="c", name=name, status="completed", started_at=0.0, seconds=seconds
    )


_SET = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I {}', current_database()); END $$"
_DROP = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@contextmanager
def no_writes(url: str) -> Iterator[None]:
    """Have a database be read and not written: as a standby, or one whose files cannot grow."""
    made = sqlalchemy.make_url(url)
    if made.get_backend_name() != "sqlite":
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            server.execute(_SET.format("SET default_transaction_read_only = on") + ";" + _DROP)
            try:
                yield
            finally:
                server.execute(_SET.format("RESET ALL") + ";" + _DROP)
        return
    file = Path(made.database or "")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = max(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


_LEAVES_OUT = """CREATE FUNCTION leaves_out() RETURNS trigger
    AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql;
    CREATE TRIGGER leaves_out BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION leaves_out()"""


def leave_out(url: str, table: str) -> None:
    """Have a database take no row of a table, and say nothing of it."""
    made = sqlalchemy.make_url(url)
    if made.get_backend_name() != "sqlite":
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            server.execute(_LEAVES_OUT.format(table))
        return
    with closing(sqlite3.connect(made.database or "")) as file:
        file.execute(
            f"CREATE TRIGGER leaves_out BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END"
        )
