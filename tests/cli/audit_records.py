"""Records as a log could hold them, and logs that hold them."""

from __future__ import annotations

import asyncio
from typing import Any

from records import raw_json

from toolcrib.audit import AuditLog
from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import HydrationError
from toolcrib.values.decision import Allow, Ask, Decision
from toolcrib.values.record import CallError, ToolInvocationRecord

NOON = 1_700_049_600.0  # 2023-11-15 12:00 UTC
ALLOWED = Allow("nothing about this tool asks for more", "standard")
ASKED = Ask("the tool is marked as not safe", "standard")
POLICY_ASKED = "the policy 'standard' asked for an approval (the tool is marked as not safe)"
REJECTED = CallError.of(
    ErrorCode.INVALID_ARGUMENTS,
    details=(
        HydrationError(
            Stage.VALIDATE, ErrorCode.INVALID_ARGUMENTS, "expected integer, got string", "/cents"
        ),
    ),
)


def record(id_: str = "call_1", **given: Any) -> ToolInvocationRecord:
    """A call of `pay` that completed at noon, but for what is given."""
    plain: dict[str, Any] = {
        "id": id_,
        "name": "pay",
        "status": "completed",
        "started_at": NOON,
        "run_id": "run_1",
        "caller": "ada",
        "definition_digest": "sha256:d1",
        "arguments": {"cents": 5},
        "decision": ALLOWED,
        "validated": True,
        "ended_at": NOON + 0.25,
        "seconds": 0.25,
    }
    if given.get("status", "completed") in ("started", "completed"):  # it has begun
        plain["idempotency_key"] = f"key of {id_}"
    made = plain | given
    for name in ("arguments", "result"):
        made[f"{name}_json"] = raw_json(made.pop(name, None))
    return ToolInvocationRecord(**made)


def begun(id_: str = "call_1", **given: Any) -> ToolInvocationRecord:
    return record(id_, **{"status": "started", "ended_at": None, "seconds": None, **given})


def failed(code: ErrorCode, id_: str = "call_1", **given: Any) -> ToolInvocationRecord:
    return record(id_, status="failed", error=CallError.of(code), **given)


def ended(code: ErrorCode, id_: str = "call_1", **given: Any) -> ToolInvocationRecord:
    """A call that failed when it had begun."""
    return failed(code, id_, idempotency_key=f"key of {id_}", **given)


def told(error: ErrorCode | CallError, decision: Decision | None, **given: Any) -> Any:
    whole = error if isinstance(error, CallError) else CallError.of(error)
    return record(status="failed", error=whole, decision=decision, **given)


def written(
    *records: ToolInvocationRecord, url: str = "sqlite:///crib.db", key: str | None = None
) -> None:
    async def write() -> None:
        async with AuditLog(url, key=key) as log:
            for one in records:
                await log.write(one)

    asyncio.run(write())
