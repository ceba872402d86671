"""The values that decide whether a call may run: caller, decision, question and answer."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.values.json import JsonObject, JsonValue, Redacted
from toolcrib.values.typed import Checked, HandWritten


class Caller(HandWritten, frozen=True, gc=False):
    """The user on whose behalf a call is made. The application is responsible for authenticating them.

    Raises ValueError for text with a lone surrogate, which no log can hold.
    """

    logged: ClassVar[tuple[str, ...]] = ("id", "roles")

    id: str
    roles: tuple[str, ...] = ()


ANONYMOUS = Caller("anonymous")


class Allow(Checked, msgspec.Struct, frozen=True, tag="allow", gc=False):
    """The call may run."""

    reason: str = ""
    policy: str = ""


class Deny(HandWritten, frozen=True, tag="deny", gc=False):
    """The call may not run.

    `code` is `denied`, `budget_exceeded`, `rate_limited` or, in a forked run, `repeated_effect`.
    """

    reason: str
    policy: str = ""
    code: ErrorCode = ErrorCode.DENIED


class Ask(HandWritten, frozen=True, tag="ask", gc=False):
    """The call may run if a person approves it."""

    reason: str
    policy: str = ""


Decision: TypeAlias = Allow | Deny | Ask


# Invisible characters, as one pattern.
#
# Rule: no text that a person reads and decides on contains one of these. They are the control
# characters other than tab and line feed, the categories Cf, Cs, Zl and Zp, what Unicode calls
# default ignorable (fillers, joiners, variation selectors), and the blank Braille pattern. (`lint`
# warns of fewer in descriptions, because some of these belong to scripts and emoji.)
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2"
    "\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


class OuterCall(msgspec.Struct, frozen=True, gc=False):
    """A call whose tool is an agent, and whose run contains the call or question at hand."""

    run_id: str
    call_id: str
    tool: str


class ApprovalRequest(Checked, Redacted, msgspec.Struct, frozen=True, gc=False):
    """A question to a person: may `tool` run with `arguments`?

    `id` is a digest over run, call, tool, definition, arguments and caller, so that an answer to it
    cannot be used for anything else. `arguments` are what will run, with secret ones masked;
    `defaults` points (JSON Pointers) to those that were not sent and are the author's defaults.
    `asked_at` and `expires_at` are in seconds since the epoch.

    `for_run` says that an approval for the rest of the run (`Approve.for_run`, with either value)
    would spare the questions that the standard policy asks about further calls of the tool.
    `within` lists the calls that the question is nested in, if an agent used as a tool asks.
    `always` says that an approval may become a rule for calls like this one (`Approve.always`).
    Such a rule covers what the policies `asked_by` ask. It covers runs that have read untrusted
    content only if `untrusted` is set, which says that this run had read some and that the tool may
    have side effects.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

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
    asked_at: float = 0.0
    defaults: tuple[str, ...] = ()
    for_run: bool = False
    within: tuple[OuterCall, ...] = ()
    always: bool = False
    asked_by: tuple[str, ...] = ()
    untrusted: bool = False

    @property
    def title(self) -> str:
        """The tool, preceded by the agents that want to call it: `research > refund`."""
        return " > ".join([*(outer.tool for outer in self.within), self.tool])

    def call_in(self, run_id: str) -> str:
        """Return the id of the call in the given run that waits for the answer: the call in
        question, or the call of the agent that asks."""
        outer = (outer.call_id for outer in self.within if outer.run_id == run_id)
        return next(outer, self.call_id)

    def expired(self, now: float | None = None) -> bool:
        return (time.time() if now is None else now) >= self.expires_at


ForRun: TypeAlias = bool | Literal["exactly"]
"""What an approval covers for the rest of a run: any call of the tool, none, or the same call."""


class Always(HandWritten, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Turns an approval into a rule: further calls like this one do not ask, in any run and process.

    It covers calls of exactly this definition by this caller whose arguments are the same, except
    for those named in `open`, which may have any value. It expires `seconds` after `given_at`
    (seconds since the epoch), if `seconds` is given. A store that keeps an answer until its call
    takes it sets `given_at`; otherwise the rule is given when the call takes the answer. Raises
    ValueError for invalid values.
    """

    open: tuple[str, ...] = ()
    seconds: float | None = None
    given_at: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError("Always(seconds=…) must be a number of seconds above 0")
        if self.given_at is not None and not 0 < self.given_at < math.inf:
            raise ValueError("Always(given_at=…) must be a time in seconds since the epoch")

    def given_by(self, at: float) -> float:
        """Return when the rule was given: `at`, or `given_at` if that is earlier."""
        return at if self.given_at is None else min(at, self.given_at)


class Approve(Redacted, HandWritten, frozen=True, tag="approve", forbid_unknown_fields=True):
    """An approval by `by`. With `arguments`, it approves these instead, and they are hydrated anew.

    If `by` has no visible character, this is not a valid answer: a store refuses it, and a call
    that receives it ends as `approval_failed`.

    `for_run` extends the approval to the tool for the rest of the run. Further calls of exactly
    this definition by this caller are then not asked about because of what the tool is
    (`requires_approval`, as imported tools have it) or what the run has read. With `"exactly"` this
    holds only for calls with the same effective arguments as this one had when it ran, edited or
    not. Each is recorded as approved by `by`. Other reasons to ask (a tool marked as not safe,
    doubts about a call, other policies) still apply.

    `always` turns the approval into a rule, if the question says that it may be one. It covers the
    arguments that ran, edited or not, until it is revoked.

    In JSON, an unknown member makes the answer invalid: with a misspelt `arguments`, the call would
    run with the very arguments that were to be changed.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    by: str
    arguments: JsonObject | None = None
    for_run: ForRun = False
    always: Always | None = None

    def dated(self, at: float) -> Approve:
        """Return the answer with its rule, if it has one, dated `at` or earlier (`Always.given_by`).

        For stores that keep an answer until its call takes it.
        """
        if self.always is None:
            return self
        always = msgspec.structs.replace(self.always, given_at=self.always.given_by(at))
        return msgspec.structs.replace(self, always=always)


class LimitedApprove(Approve, frozen=True, kw_only=True):
    """An approval by somebody who may approve only those questions for which `may` returns True.

    If the approval changes the arguments, `may` is asked about the question with the arguments that
    will run. Such an approval never covers a whole tool and never becomes a rule, because further
    calls have not been checked.
    """

    may: Callable[[ApprovalRequest], bool]


class Refuse(HandWritten, frozen=True, tag="refuse", forbid_unknown_fields=True):
    """A refusal. The reason is for the record; the model learns that the call was refused, not
    why."""

    reason: str = ""
    by: str = ""


Answer: TypeAlias = Approve | Refuse
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Answer | None]]


@runtime_checkable
class KeepingApprover(Protocol):
    """An approver that keeps, with each question, what default factories made for its call.

    The same call made again in another process is then exactly the call that was asked about. The
    stored value is `Hydrated.building.pinned`, which may hold secrets.
    """

    async def ask_keeping(
        self, request: ApprovalRequest, pinned: dict[str, JsonValue], /
    ) -> Answer | None:
        """Answer as an approver does, and keep `pinned` if the question is new."""
        ...

    async def kept(self, run_id: str, call_id: str, caller: str, /) -> dict[str, JsonValue]:
        """Return what was kept with the question about this caller's call; {} if there is none."""
        ...


@runtime_checkable
class ReturnsApproval(Protocol):
    """An approver whose yes is used up when it is returned."""

    async def give_back(self, request: ApprovalRequest, /) -> None:
        """Let the yes that was returned last count again: its call was stopped before it began."""
        ...
