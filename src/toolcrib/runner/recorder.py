"""Drafts of records: what is known of a call so far, until it is final and goes to the sinks.

Records are made here and nowhere else, by keyword: a field that is added to them is filled here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from hashlib import sha256
from typing import Self

import msgspec

from toolcrib.runner.execute import until_done
from toolcrib.runner.redact import masked_arguments, shown_arguments
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import NOT_ITS_OWN
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.decision import Decision
from toolcrib.values.json import JsonObject, JsonValue, canonical_json
from toolcrib.values.record import (
    CallError,
    Failed,
    KeyScope,
    Outcome,
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
    def of(  # by position: one is made for every call
        cls,
        hydrated: HydrationResult,
        caller: str,
        run_id: str,
        key_scope: KeyScope,
    ) -> Self:
        """Of a call that comes in now."""
        now, clock = time.time(), time.perf_counter()
        shown, (size, digest) = _shown(hydrated), measured(hydrated)
        return cls(hydrated, caller, run_id, key_scope, now, clock, shown, size, digest)

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
        """What is known by now."""
        hydrated = self.hydrated
        call, definition, provenance = hydrated.call, hydrated.definition, hydrated.provenance
        over = status != "started"
        return ToolInvocationRecord(
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
            error=error,
            decision=self.decision,
            approved_by=self.approved_by,
            validated=provenance.validated,
            no_schema_mode=provenance.no_schema_mode,
            repaired=provenance.repaired,
            repaired_by=provenance.repaired_by,
            notes=provenance.notes,
            validator=provenance.validator,
            approval_id=self.approval_id,
            refusal=self.refusal,
            edited=self.edited,
            idempotency_key=self.key,
            key_scope=self.key_scope,
            ended_at=time.time() if over else None,
            seconds=time.perf_counter() - self.clock if over else None,
        )


def measured(hydrated: HydrationResult) -> tuple[int, str]:
    """Bytes and sha256 of the arguments as they were sent.

    Of a call that has secrets there is no sha256: one over a short text can be tried out.
    """
    text = hydrated.call.arguments.encode("utf-8", "surrogatepass")
    secret = hydrated.definition is not None and hydrated.definition.secret
    return len(text), "" if secret else sha256(text).hexdigest()


def _shown(hydrated: HydrationResult) -> JsonObject | None:
    """Nothing of a call that did not validate."""
    if not isinstance(hydrated, Hydrated):
        return None
    return shown_arguments(hydrated.definition, hydrated.arguments)


def tell(
    sinks: tuple[Sink, ...], outcome: Outcome, scope: CallScope | None
) -> Awaitable[None] | None:
    """Tell every sink, and then whoever watches; what has to be awaited for that, if anything.

    All are told, even when cancelled. What went wrong with a sink is raised when they have been.
    """
    for at, sink in enumerate(sinks, start=1):
        try:
            pending = sink.write(outcome.record)
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # noqa: BLE001  raised in the end
            return _told(None, sinks[at:], outcome, scope, raised)
        if pending is not None:
            return _told(pending, sinks[at:], outcome, scope)
    if scope is not None and scope.observer is not None:
        scope.observer.finished(outcome)
    return None


async def _told(
    pending: Awaitable[None] | None,
    others: tuple[Sink, ...],
    outcome: Outcome,
    scope: CallScope | None,
    trouble: BaseException | None = None,
) -> None:
    """The rest of `tell`: what one sink needs awaited, the others, and whoever watches."""
    try:
        for sink in (None, *others):
            try:
                pending = pending if sink is None else sink.write(outcome.record)
                if pending is not None:
                    await to_the_end(pending)
            except NOT_ITS_OWN:
                raise
            except BaseException as raised:  # noqa: BLE001  raised below
                trouble = trouble or raised
    finally:
        if scope is not None and scope.observer is not None:
            scope.observer.finished(outcome)
    if trouble is not None:
        raise trouble


def public_name(call: HydrationResult) -> str:
    """A name that no tool has was made up by a model: it is told only if it looks like a name."""
    name = call.call.name
    return name if call.definition or _NAME.fullmatch(name) else "*"


async def to_the_end(pending: Awaitable[None]) -> None:
    """Await something that cancelling the caller, however often, must not interrupt."""
    task = asyncio.ensure_future(pending)
    cancelled = await until_done(task)
    if cancelled is not None:
        raise cancelled from task.exception()
    task.result()
