"""The tables, as a list of migrations, to which new ones are only appended.

The table `toolcrib_schema` holds a database's version. When a database is first opened, the missing
migrations are applied in one transaction, under a lock. A database newer than this list is left
unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolcrib.errors import SourceError
from toolcrib.storage.errors import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection


_SCHEMA_LOCK = 7_665_646_001  # an advisory lock: any number that no other program uses
_APPROVALS = {"id", "request", "expires_at", "answer", "used_at"}  # the columns of version 1
# Databases older than the table of versions have no row for version 1, but may have its table.
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
    # Entries that exist already have format 1 until they are migrated: `toolcrib.audit.entry`.
    (
        "ALTER TABLE audit_head ADD COLUMN format INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN log_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN first_seq {serial} NOT NULL DEFAULT 1",
        "ALTER TABLE audit_head ADD COLUMN keys_hash TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit_head ADD COLUMN tree_hash TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE audit_keys (prefix TEXT PRIMARY KEY, content TEXT NOT NULL)",
        "CREATE TABLE audit_tiles (place TEXT PRIMARY KEY, hashes TEXT NOT NULL)",
    ),
    (
        """CREATE TABLE chat_threads (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            title TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            updated_at DOUBLE PRECISION NOT NULL,
            session TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX chat_threads_by_owner ON chat_threads (owner, updated_at)",
        """CREATE TABLE chat_turns (
            id TEXT PRIMARY KEY,
            thread_id TEXT NOT NULL,
            seq INTEGER NOT NULL,
            run_id TEXT NOT NULL,
            status TEXT NOT NULL,
            view TEXT NOT NULL,
            state TEXT NOT NULL,
            lease DOUBLE PRECISION NOT NULL,
            UNIQUE (thread_id, seq)
        )""",
        """CREATE TABLE chat_calls (
            run_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (run_id, call_id)
        )""",
    ),
    # The conversation before a turn. It is unknown (NULL) for turns that exist already.
    ("ALTER TABLE chat_turns ADD COLUMN before TEXT",),
    ("ALTER TABLE approvals ADD COLUMN pinned TEXT NOT NULL DEFAULT ''",),
    (
        """CREATE TABLE chat_waiting (
            owner TEXT NOT NULL,
            thread TEXT NOT NULL,
            state TEXT NOT NULL,
            kept_at DOUBLE PRECISION NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (owner, thread)
        )""",
    ),
    (
        """CREATE TABLE durable_runs (
            id TEXT PRIMARY KEY,
            agent TEXT NOT NULL,
            caller TEXT NOT NULL,
            status TEXT NOT NULL,
            segment INTEGER NOT NULL,
            state TEXT NOT NULL,
            answers TEXT NOT NULL,
            text TEXT NOT NULL,
            reason TEXT NOT NULL,
            worker TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            updated_at DOUBLE PRECISION NOT NULL
        )""",
        "CREATE INDEX durable_runs_by_status ON durable_runs (status, updated_at)",
        """CREATE TABLE durable_questions (
            id TEXT PRIMARY KEY,
            run_id TEXT NOT NULL,
            request TEXT NOT NULL,
            expires_at DOUBLE PRECISION NOT NULL,
            answer TEXT
        )""",
        "CREATE INDEX durable_questions_by_run ON durable_questions (run_id)",
        """CREATE TABLE durable_workers (
            id TEXT PRIMARY KEY,
            process TEXT NOT NULL,
            beat_at DOUBLE PRECISION NOT NULL
        )""",
    ),
    (
        "CREATE TABLE spenders (caller TEXT PRIMARY KEY)",
        """CREATE TABLE spent_calls (
            caller TEXT NOT NULL,
            call_key TEXT NOT NULL,
            tool TEXT NOT NULL,
            cost DOUBLE PRECISION NOT NULL,
            spent_at DOUBLE PRECISION NOT NULL,
            kept_until DOUBLE PRECISION NOT NULL,
            takers INTEGER NOT NULL,
            PRIMARY KEY (caller, call_key)
        )""",
        "CREATE INDEX spent_calls_by_time ON spent_calls (caller, spent_at)",
    ),
    (
        "ALTER TABLE durable_runs ADD COLUMN began INTEGER NOT NULL DEFAULT 0",
        """UPDATE durable_runs SET began = CASE WHEN status IN ('queued', 'running')
            THEN segment ELSE segment + 1 END""",
        "ALTER TABLE durable_runs ADD COLUMN cut TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE durable_questions ADD COLUMN signature TEXT NOT NULL DEFAULT ''",
    ),
    (
        """CREATE TABLE spilled_results (
            name TEXT PRIMARY KEY,
            kept_at DOUBLE PRECISION NOT NULL,
            text TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE approvals ADD COLUMN signature TEXT NOT NULL DEFAULT ''",
        """CREATE TABLE approval_rules (
            id VARCHAR(64) PRIMARY KEY,
            definition_digest TEXT NOT NULL,
            caller TEXT NOT NULL,
            content TEXT NOT NULL,
            signature TEXT NOT NULL
        )""",
        "CREATE INDEX approval_rules_by_call ON approval_rules (definition_digest, caller)",
    ),
    ("ALTER TABLE approvals ADD COLUMN answered_at DOUBLE PRECISION",),
    (
        """CREATE TABLE paid_requests (
            caller TEXT NOT NULL,
            request_key TEXT NOT NULL,
            money DOUBLE PRECISION NOT NULL,
            paid_at DOUBLE PRECISION NOT NULL,
            kept_until DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (caller, request_key)
        )""",
        "CREATE INDEX paid_requests_by_time ON paid_requests (caller, paid_at)",
    ),
    ("ALTER TABLE durable_runs ADD COLUMN ended TEXT NOT NULL DEFAULT ''",),
    # Keys are found in audit_keys, or in a log of format 1 by run and call.
    ("DROP INDEX IF EXISTS audit_entries_by_key",),
)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version. Raises SourceError if it has a newer one."""
    run = connection.exec_driver_sql
    kind = connection.dialect.name
    if kind == "postgresql":  # on SQLite the write lock keeps other migrations out
        run(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
    run("CREATE TABLE IF NOT EXISTS toolcrib_schema (version INTEGER PRIMARY KEY)")
    serial = "INTEGER" if kind == "sqlite" else "BIGINT"  # a 64-bit key
    known = version_of(connection)
    if known == 0:
        _check_free(connection)
    for version, statements in enumerate(MIGRATIONS[known:], start=known + 1):
        for statement in statements:
            run(statement.format(serial=serial))
        run(f"INSERT INTO toolcrib_schema (version) VALUES ({version})")  # noqa: S608  a number


def _check_free(connection: Connection) -> None:
    """Raise SourceError if another program has tables of these names, so they are not altered."""
    found = sqlalchemy().inspect(connection)
    there = set(found.get_table_names())
    taken = there & {"audit_entries", "audit_head", "audit_keys", "audit_tiles"}
    if "approvals" in there:
        named = {column["name"] for column in found.get_columns("approvals")}
        taken |= set() if named == _APPROVALS else {"approvals"}
    if taken:
        raise SourceError(
            f"the database has a table {min(taken)} of another program: give toolcrib a database, or on"
            " a server a schema, of its own"
        )


def version_of(connection: Connection) -> int:
    """Return the version that the database records, 0 if none. Raises SourceError if not known."""
    sa = sqlalchemy()
    if not sa.inspect(connection).has_table("toolcrib_schema"):
        return 0
    version = connection.execute(sa.text("SELECT max(version) FROM toolcrib_schema")).scalar() or 0
    if not isinstance(version, int) or version > len(MIGRATIONS):
        raise SourceError(
            f"the database has version {version}, but this toolcrib knows versions up to"
            f" {len(MIGRATIONS)}: install a newer toolcrib"
        )
    return version
