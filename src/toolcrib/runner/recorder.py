"""Drafts of records: what is known of a call so far, until it is final and goes to the sinks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any, Self

import msgspec

from toolcrib.runner.redact import masked_arguments, own_copy, public_arguments
from toolcrib.values.call import Hydrated, HydrationResult, Provenance
from toolcrib.values.decision import Decision
from toolcrib.values.json import JsonObject, JsonValue, canonical_json
from toolcrib.values.record import (
    CallError,
    Failed,
    KeyScope,
    RecordStatus,
    Sink,
    ToolInvocationRecord,
)

_LONGEST_NOTICE = 2_000
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Draft(msgspec.Struct):
    """One call's record in the making. `key` is known once the call begins."""

    hydrated: HydrationResult
    caller: str
    run_id: str
    key_scope: KeyScope
    started_at: float
    clock: float
    arguments: JsonObject | None = None
    size: int = 0
    sha256: str = ""
    decision: Decision | None = None
    approved_by: str | None = None
    approval_id: str = ""
    refusal: str = ""
    edited: bool = False
    key: str = ""

    @classmethod
    def of(cls, hydrated: HydrationResult, caller: str, run_id: str, key_scope: KeyScope) -> Self:
        """Of a call that has secrets there is no sha256: a digest over a short one can be tried out."""
        text = hydrated.call.arguments.encode("utf-8", "surrogatepass")
        secret = hydrated.definition is not None and hydrated.definition.secret
        return cls(
            hydrated,
            caller,
            run_id,
            key_scope,
            time.time(),
            time.perf_counter(),
            _shown(hydrated),
            len(text),
            "" if secret else sha256(text).hexdigest(),
        )

    def take(self, hydrated: HydrationResult) -> None:
        """What was made of the call by a repair; size and digest stay those of what was sent."""
        self.hydrated = hydrated
        self.arguments = _shown(hydrated)

    def edit(self, hydrated: Hydrated) -> None:
        """Whoever approved the call changed its arguments; the digest is that of what was sent."""
        self.take(hydrated)
        self.edited = True

    def failed(self, error: CallError) -> Failed:
        return Failed(self.record("failed", error=error), error, self.notice())

    def notice(self) -> str:
        """What the model has to know besides the result: which arguments it is the result of."""
        hydrated = self.hydrated
        if not self.edited or not isinstance(hydrated, Hydrated):
            return ""
        ran = canonical_json(masked_arguments(hydrated.definition, hydrated.arguments))
        if len(ran) > _LONGEST_NOTICE:
            ran = f"{ran[:_LONGEST_NOTICE]} … ({len(ran)} characters)"
        return f"Whoever approved this call changed its arguments. It was made with: {ran}"

    def record(
        self, status: RecordStatus, result: JsonValue = None, error: CallError | None = None
    ) -> ToolInvocationRecord:
        """What is known by now. What most calls do not have is added only where it is."""
        hydrated = self.hydrated
        call, definition, provenance = hydrated.call, hydrated.definition, hydrated.provenance
        over = status != "started"
        record = ToolInvocationRecord(
            id=call.id,
            name=public_name(hydrated) if definition is None else call.name,
            status=status,
            started_at=self.started_at,
            run_id=self.run_id,
            caller=self.caller,
            provider_id=call.provider_id,
            definition_digest="" if definition is None else definition.digest,
            arguments=self.arguments,
            arguments_bytes=self.size,
            arguments_sha256=self.sha256,
            result=result,
            decision=self.decision,
            validated=provenance.validated,
            validator=provenance.validator,
            idempotency_key=self.key,
            key_scope=self.key_scope,
            ended_at=time.time() if over else None,
            seconds=time.perf_counter() - self.clock if over else None,
        )
        rest = self._unusual(provenance, error)
        return msgspec.structs.replace(record, **rest) if rest else record

    def _unusual(self, provenance: Provenance, error: CallError | None) -> dict[str, Any]:
        """Half the time of making a record goes into the number of keywords."""
        rest: dict[str, Any] = {} if error is None else {"error": error}
        if self.approval_id:
            rest["approval_id"], rest["approved_by"] = self.approval_id, self.approved_by
            rest["edited"], rest["refusal"] = self.edited, self.refusal
        if provenance.repaired:
            rest["repaired"], rest["repaired_by"] = True, provenance.repaired_by
        if provenance.notes:
            rest["notes"] = provenance.notes
        if provenance.no_schema_mode is not None:
            rest["no_schema_mode"] = provenance.no_schema_mode
        return rest


def _shown(hydrated: HydrationResult) -> JsonObject | None:
    """A copy, for a tool may change what it is given; nothing of a call that did not validate."""
    if not isinstance(hydrated, Hydrated):
        return None
    return own_copy(public_arguments(hydrated.definition, hydrated.arguments))


async def write_all(sinks: tuple[Sink, ...], record: ToolInvocationRecord) -> None:
    """Tell every sink, to the end, even when cancelled.

    What went wrong with a sink is raised when all of them have been told.
    """
    trouble: BaseException | None = None
    for sink in sinks:
        try:
            pending = sink.write(record)
            if pending is not None:
                await to_the_end(pending)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  raised below
            trouble = trouble or raised
    if trouble is not None:
        raise trouble


def public_name(call: HydrationResult) -> str:
    """A name that no tool has was made up by a model: it is told only if it looks like a name."""
    name = call.call.name
    return name if call.definition or _NAME.fullmatch(name) else "*"


async def to_the_end(pending: Awaitable[None]) -> None:
    """Await something that cancelling the caller, however often, must not interrupt."""
    task, cancelled = asyncio.ensure_future(pending), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError from task.exception()
    task.result()
