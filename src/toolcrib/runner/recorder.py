"""Drafts of records: what is known of a call so far, until it is final and goes to the sinks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable

from toolcrib.runner.redact import own_copy, public_arguments
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.context import Observer
from toolcrib.values.decision import Caller, Decision
from toolcrib.values.json import JsonObject, JsonValue, sha256_hex
from toolcrib.values.record import (
    CallError,
    Failed,
    Outcome,
    RecordStatus,
    Sink,
    ToolInvocationRecord,
)

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Draft:
    """One call's record in the making; `close` writes the final one, once."""

    __slots__ = (
        "_arguments",
        "_caller",
        "_clock",
        "_hydrated",
        "_run_id",
        "_sha256",
        "_sinks",
        "_size",
        "_started_at",
        "approved_by",
        "decision",
    )

    def __init__(
        self, sinks: tuple[Sink, ...], hydrated: HydrationResult, caller: Caller, run_id: str
    ) -> None:
        self._sinks = sinks
        self._caller = caller
        self._run_id = run_id
        self._started_at = time.time()
        self._clock = time.perf_counter()
        self.take(hydrated)
        self.decision: Decision | None = None
        self.approved_by: str | None = None

    def take(self, hydrated: HydrationResult) -> None:
        """The call that the record is about; another one if its arguments were edited."""
        self._hydrated = hydrated
        self._arguments = _public(hydrated)
        text = hydrated.call.arguments.encode("utf-8", "surrogatepass")
        self._size, self._sha256 = len(text), "" if _has_secrets(hydrated) else sha256_hex(text)

    async def intend(self) -> None:
        """Tell the sinks that want to know that the tool is about to run."""
        for sink in self._sinks:
            if getattr(sink, "intents", False):
                pending = sink.write(self.record("started"))
                if pending is not None:
                    await pending

    def failed(self, error: CallError) -> Failed:
        return Failed(self.record("failed", error=error), error)

    async def write(self, record: ToolInvocationRecord) -> None:
        """Tell every sink, to the end, even when cancelled.

        What went wrong with a sink is raised when all of them have been told.
        """
        trouble: BaseException | None = None
        for sink in self._sinks:
            try:
                pending = sink.write(record)
                if pending is not None:
                    await _to_the_end(pending)
            except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  raised below
                trouble = trouble or raised
        if trouble is not None:
            raise trouble

    async def close(self, outcome: Outcome, observer: Observer | None) -> None:
        """Write the record and tell who watches, who is told also if a sink fails."""
        try:
            await self.write(outcome.record)
        finally:
            if observer is not None:
                observer.finished(outcome)

    def record(
        self, status: RecordStatus, result: JsonValue = None, error: CallError | None = None
    ) -> ToolInvocationRecord:
        """What is known by now."""
        hydrated = self._hydrated
        call, definition, provenance = hydrated.call, hydrated.definition, hydrated.provenance
        over = status != "started"
        return ToolInvocationRecord(
            id=call.id,
            name=public_name(hydrated),
            status=status,
            started_at=self._started_at,
            run_id=self._run_id,
            caller=self._caller.id,
            provider_id=call.provider_id,
            definition_digest="" if definition is None else definition.digest,
            arguments=self._arguments,
            arguments_bytes=self._size,
            arguments_sha256=self._sha256,
            result=result,
            error=error,
            decision=self.decision,
            approved_by=self.approved_by,
            validated=provenance.validated,
            no_schema_mode=provenance.no_schema_mode,
            repaired=provenance.repaired,
            ended_at=time.time() if over else None,
            seconds=time.perf_counter() - self._clock if over else None,
        )


def public_name(call: HydrationResult) -> str:
    """A name that no tool has was made up by a model: it is told only if it looks like a name."""
    name = call.call.name
    return name if call.definition or _NAME.fullmatch(name) else "*"


def _has_secrets(hydrated: HydrationResult) -> bool:
    """A digest over a short secret can be tried out: of such a call there is none."""
    return hydrated.definition is not None and bool(hydrated.definition.secret)


def _public(hydrated: HydrationResult) -> JsonObject | None:
    """A copy: a tool may change what it is given, a record may not change with it."""
    if isinstance(hydrated, Hydrated):
        return own_copy(public_arguments(hydrated.definition, hydrated.arguments))
    return None


async def _to_the_end(pending: Awaitable[None]) -> None:
    """Await something that a cancellation of the caller must not interrupt."""
    task = asyncio.ensure_future(pending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
