"""What became of a call: decisions, approvals, the record, the outcome.

A record holds public views only (declared, not secret arguments; allowed result fields; fixed error
text). It is the one thing that sinks, events and audit are given.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import HydrationError
from toolcrib.values.definition import NoSchemaMode
from toolcrib.values.json import JsonObject, JsonValue


class Caller(msgspec.Struct, frozen=True):
    """On whose behalf a call is made. Who that is, is the application's to establish."""

    id: str
    roles: tuple[str, ...] = ()


ANONYMOUS = Caller("anonymous")


class Allow(msgspec.Struct, frozen=True, tag="allow"):
    """The call may run."""

    reason: str = ""
    policy: str = ""


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """The call may not run; `code` is `denied`, `budget_exceeded` or `rate_limited`."""

    reason: str
    policy: str = ""
    code: ErrorCode = ErrorCode.DENIED


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """The call may run if a person approves it."""

    reason: str
    policy: str = ""


Decision: TypeAlias = Allow | Deny | Ask


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A question to a person: may `tool` run with `arguments`?

    `id` is a digest over run, call, tool, definition, arguments and caller, so that an answer to it
    can be an answer to nothing else. `arguments` are what will run, secret ones masked.
    `expires_at` is in seconds since the epoch.
    """

    id: str
    tool: str
    arguments: JsonObject
    reason: str
    expires_at: float
    call_id: str = ""
    run_id: str = ""
    caller: str = ""
    definition_digest: str = ""
    arguments_digest: str = ""

    def expired(self, now: float | None = None) -> bool:
        return (time.time() if now is None else now) >= self.expires_at


class Approve(msgspec.Struct, frozen=True, tag="approve"):
    """Yes, by `by`; with `arguments`, yes to these instead (they are hydrated anew)."""

    by: str
    arguments: JsonObject | None = None


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """No, and why; the model is told that it was refused, not the reason."""

    reason: str = ""
    by: str = ""


Answer: TypeAlias = Approve | Refuse
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Answer | None]]


class CallError(msgspec.Struct, frozen=True):
    """Why a call did not complete. The message is safe: fixed text, or an author's `ToolError`."""

    code: ErrorCode
    message: str
    stage: Stage
    retryable: bool
    details: tuple[HydrationError, ...] = ()

    @staticmethod
    def of(
        code: ErrorCode, message: str | None = None, *, details: tuple[HydrationError, ...] = ()
    ) -> CallError:
        stage, retryable, text = code.info
        return CallError(
            code, message or text, details[0].stage if details else stage, retryable, details
        )


RecordStatus: TypeAlias = Literal["started", "completed", "failed", "waiting"]


class ToolInvocationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, as it may be read by anybody who may read the log.

    `started_at` and `ended_at` are seconds since the epoch, `seconds` is the monotonic duration.
    `arguments` is None for a call that did not validate: of that, only length and sha256 are kept.
    """

    id: str
    name: str
    status: RecordStatus
    started_at: float
    run_id: str = ""
    caller: str = ""
    provider_id: str = ""
    definition_digest: str = ""
    arguments: JsonObject | None = None
    arguments_bytes: int = 0
    arguments_sha256: str = ""
    result: JsonValue = None
    error: CallError | None = None
    decision: Decision | None = None
    approved_by: str | None = None
    validated: bool = False
    no_schema_mode: NoSchemaMode | None = None
    repaired: bool = False
    ended_at: float | None = None
    seconds: float | None = None


class Completed(msgspec.Struct, frozen=True):
    """The tool ran: `value` for the application, `model` for the model, `public` for everyone else."""

    record: ToolInvocationRecord
    value: Any
    model: JsonValue
    public: JsonValue


class Failed(msgspec.Struct, frozen=True):
    """The call did not complete; `error.message` is safe to show to the model."""

    record: ToolInvocationRecord
    error: CallError


class Waiting(msgspec.Struct, frozen=True):
    """Nobody has answered `request` yet. Execute the same call again once somebody has."""

    record: ToolInvocationRecord
    request: ApprovalRequest


Outcome: TypeAlias = Completed | Failed | Waiting


class Sink(Protocol):
    """Where records go, when a call is over.

    A sink that has to wait returns something to await, which is awaited to the end. One with an
    attribute `intents = True` is also told before a tool runs, by a record of status `started`.
    """

    def write(self, record: ToolInvocationRecord) -> Awaitable[None] | None: ...


class RunTally(msgspec.Struct):
    """What a run has spent so far; the runner counts, policies read. The one mutable value here.

    `nonce` is the run's own secret, in no record and no event.
    """

    run_id: str = ""
    nonce: str = ""
    started: float = 0.0
    calls: int = 0
    cost: float = 0.0
    tainted: bool = False
    per_tool: dict[str, int] = {}

    def count(self, tool: str, cost: float) -> None:
        self.calls += 1
        self.cost += cost
        self.per_tool[tool] = self.per_tool.get(tool, 0) + 1

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started


class Observer(Protocol):
    """Whoever watches a call while it is on its way; called in the event loop, must not block."""

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def progress(self, call_id: str, part: JsonValue) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class PolicyContext(msgspec.Struct, frozen=True):
    """What a policy may know besides the call: on whose behalf, and what the run has spent."""

    caller: Caller
    run: RunTally


class CallContext(msgspec.Struct, frozen=True):
    """What a tool may know of its own call. A parameter of this type is filled in by the runner.

    `idempotency_key` is the same whenever the same call is run again; `deadline` is on the clock of
    `time.monotonic()`, None without a time limit.
    """

    call_id: str
    run_id: str
    idempotency_key: str
    caller: Caller
    deadline: float | None
    observer: Observer | None = None

    def progress(self, part: JsonValue) -> None:
        """Tell whoever watches the run; `part` is shown as it is, so put nothing secret in it."""
        if self.observer is not None:
            self.observer.progress(self.call_id, part)
