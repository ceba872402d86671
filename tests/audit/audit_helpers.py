"""Records to write, and ways to look at what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from records import raw_json

from toolcrib.audit import AuditLog
from toolcrib.errors import ErrorCode
from toolcrib.values.decision import Allow
from toolcrib.values.record import CallError, RecordStatus, ToolInvocationRecord

CANARY = "canary-5d1e"


def raw(value: Any) -> msgspec.Raw:
    """JSON text of a value, or text that is no JSON of one that has none."""
    try:
        return raw_json(value)
    except (ValueError, TypeError):
        return msgspec.Raw(repr(value).encode())


def record(
    number: int = 0, status: RecordStatus = "completed", **given: Any
) -> ToolInvocationRecord:
    """A record of call `number`, with much in it."""
    values: dict[str, Any] = {
        "id": f"call_{number}",
        "name": "search",
        "status": status,
        "started_at": 1_764_000_000.25,
        "run_id": "run_1",
        "caller": "anna",
        "arguments": {"query": "tea", "limit": number},
        "decision": Allow("harmless", "standard"),
        "idempotency_key": f"run_1/{number}",
        "key_scope": "store",
    }
    if status == "completed":
        values |= {"result": {"found": number, "price": 1.5}, "seconds": 0.25}
    if status == "failed":
        values["error"] = CallError.of(ErrorCode.TOOL_ERROR)
    made = values | given
    for name in ("arguments", "result"):
        made[f"{name}_json"] = raw(made.pop(name, None))
    return ToolInvocationRecord(**made)


async def write_calls(log: AuditLog, numbers: range) -> None:
    for number in numbers:
        assert await log.begin(record(number, "started")) is None
        await log.write(record(number))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, as somebody sees it who has another program."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection
