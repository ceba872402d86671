"""How the tables came to be: a list that is only ever added to.

A database tells its version in `toolcrib_schema`; what is missing is applied in one transaction,
under a lock, when the database is first opened. One that is newer than this list is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolcrib.errors import SourceError
from toolcrib.storage.dialect import column_types, lock_schema, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Version 1 has no row in databases that are older than the table of versions: it is taken over.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE IF NOT EXISTS approvals (
            id VARCHAR(64) PRIMARY KEY,
            request TEXT NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            answer TEXT,
            used_at DOUBLE PRECISION
        )""",
    ),
    (
        "ALTER TABLE approvals ADD COLUMN run_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE approvals ADD COLUMN call_id TEXT NOT NULL DEFAULT ''",
        """CREATE UNIQUE INDEX approvals_by_call ON approvals (run_id, call_id)
            WHERE call_id <> ''""",
        """CREATE TABLE audit_entries (
            seq {serial} PRIMARY KEY,
            at DOUBLE PRECISION NOT NULL,
            run_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            idempotency_key TEXT NOT NULL,
            tool TEXT NOT NULL,
            caller TEXT NOT NULL,
            status TEXT NOT NULL,
            code TEXT NOT NULL,
            record TEXT NOT NULL,
            previous TEXT NOT NULL,
            hash TEXT NOT NULL
        )""",
        "CREATE INDEX audit_entries_by_run ON audit_entries (run_id, call_id)",
        "CREATE INDEX audit_entries_by_call ON audit_entries (call_id)",
        "CREATE INDEX audit_entries_by_key ON audit_entries (idempotency_key)",
        """CREATE TABLE audit_head (
            id INTEGER PRIMARY KEY,
            seq {serial} NOT NULL,
            hash TEXT NOT NULL,
            seal TEXT NOT NULL
        )""",
    ),
    # What was written before is of format 1 until it is migrated: `toolcrib.audit.chain`.
    (
        "ALTER TABLE audit_head ADD COLUMN format INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN log_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN first_seq {serial} NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN keys_hash TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN tree_hash TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE audit_keys (prefix TEXT PRIMARY KEY, content TEXT NOT NULL)",
        "CREATE TABLE audit_tiles (place TEXT PRIMARY KEY, hashes TEXT NOT NULL)",
    ),
)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version; raises SourceError if it is of a newer one."""
    text = sqlalchemy().text
    lock_schema(connection)
    connection.execute(
        text("CREATE TABLE IF NOT EXISTS toolcrib_schema (version INTEGER PRIMARY KEY)")
    )
    types = column_types(connection)
    for version, statements in enumerate(MIGRATIONS, start=1):
        if version <= version_of(connection):
            continue
        for statement in statements:
            connection.execute(text(statement.format(**types)))
        connection.execute(
            text("INSERT INTO toolcrib_schema (version) VALUES (:version)"), {"version": version}
        )


def version_of(connection: Connection) -> int:
    """The version that the database says it is of, 0 if it says none."""
    sa = sqlalchemy()
    if not sa.inspect(connection).has_table("toolcrib_schema"):
        return 0
    version = connection.execute(sa.text("SELECT max(version) FROM toolcrib_schema")).scalar() or 0
    if not isinstance(version, int) or version > len(MIGRATIONS):
        raise SourceError(
            f"the database is of version {version}, and this toolcrib knows {len(MIGRATIONS)}:"
            " install a newer one"
        )
    return version
