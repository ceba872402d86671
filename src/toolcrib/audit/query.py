"""What is asked of the log, as SQL. Values are bound, and names are our own."""

from __future__ import annotations

from typing import Any

from toolcrib.audit.entry import AuditFilter
from toolcrib.audit.rows import ATTACHMENTS, ENTRY, NO_CALLS, RUN, column, seconds

_CONDITIONS = {
    "run_id": "run_id = :run_id",
    "call_id": "call_id = :call_id",
    "tool": "tool = :tool",
    "caller": "caller = :caller",
    "status": "status = :status",
    "code": "code = :code",
    "since": "at >= :since",
    "until": "at < :until",
}
OF_RUN = (
    f"SELECT {ENTRY} FROM audit_entries"  # noqa: S608  names of our own
    f" WHERE run_id = :run_id AND call_id = '' AND status = '{RUN}' ORDER BY seq"
)
ATTACHED = (
    "SELECT seq, record FROM audit_entries"  # noqa: S608  names of our own
    f" WHERE call_id IN :digests AND status IN ({', '.join(repr(k) for k in ATTACHMENTS)})"
)
# What says less than another entry of the same call does: that it was begun, or that somebody did not
# know how it ended, beside how it ended; that it waits, beside whatever came later.
_OTHER = """EXISTS (SELECT 1 FROM audit_entries AS other
    WHERE other.run_id = audit_entries.run_id AND other.call_id = audit_entries.call_id"""
_FINAL = (
    "other.idempotency_key <> '' AND (other.status = 'completed'"
    " OR (other.status = 'failed' AND other.code <> 'outcome_unknown'))"
)
_SUPERSEDED = (
    ("status IN ('started', 'waiting') OR code = 'outcome_unknown'", _FINAL),
    (
        "status = 'started'",
        "other.seq > audit_entries.seq AND other.idempotency_key = audit_entries.idempotency_key",
    ),
    ("status IN ('waiting', 'planned', 'rejected')", "other.seq > audit_entries.seq"),
)
_NO_CALLS = ", ".join(f"'{status}'" for status in NO_CALLS)
_NUMBERS = 2**63 - 1  # what a column of numbers can hold, and so can what is compared with it


def select(
    asked: AuditFilter, *, behind: int | None, limit: int, calls: bool
) -> tuple[str, dict[str, Any]]:
    """The rows of ENTRY that fit, a page of them; with `calls` none about the log itself.

    `behind` is the number of the last row of the page before.
    """
    conditions = ["seq > :after"]
    after = min(max(asked.after, -_NUMBERS), _NUMBERS)
    values: dict[str, Any] = {"after": after, "limit": limit}
    if behind is not None:
        conditions.append("seq < :behind" if asked.newest else "seq > :behind")
        values["behind"] = behind
    if calls:
        conditions.append(f"status NOT IN ({_NO_CALLS})")
    if asked.latest:
        until = "" if asked.until is None else " AND other.at < :until"
        for weak, strong in _SUPERSEDED:
            conditions.append(f"NOT (({weak}) AND {_OTHER}{until} AND {strong}))")
    for name, condition in _CONDITIONS.items():
        value = getattr(asked, name)
        if value is not None:
            conditions.append(condition)
            values[name] = column(value) if isinstance(value, str) else seconds(value)
    return (
        f"SELECT {ENTRY} FROM audit_entries WHERE {' AND '.join(conditions)}"  # noqa: S608
        f" ORDER BY seq {'DESC' if asked.newest else 'ASC'} LIMIT :limit"
    ), values
