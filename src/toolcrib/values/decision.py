"""May a call run: on whose behalf, what a policy says, what a person is asked and answers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.values.json import JsonObject, JsonValue, Veiled
from toolcrib.values.typed import Checked


class Caller(Checked, msgspec.Struct, frozen=True, gc=False):
    """On whose behalf a call is made. Who that is, is the application's to establish.

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


class Deny(Checked, msgspec.Struct, frozen=True, tag="deny", gc=False):
    """The call may not run; `code` is `denied`, `budget_exceeded`, `rate_limited` or, of a run that was
    forked, `repeated_effect`."""

    reason: str
    policy: str = ""
    code: ErrorCode = ErrorCode.DENIED


class Ask(Checked, msgspec.Struct, frozen=True, tag="ask", gc=False):
    """The call may run if a person approves it."""

    reason: str
    policy: str = ""


Decision: TypeAlias = Allow | Deny | Ask


# The characters that no reader sees, as one pattern.
#
# Rule: nothing that a person reads and decides on contains one of these. They are the controls other
# than tab and line feed, the categories Cf, Cs, Zl and Zp, what Unicode calls default ignorable
# (fillers, joiners, variation selectors), and the blank Braille pattern. (`lint` warns of fewer in
# descriptions: some of these belong to scripts and emoji.)
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2"
    "\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


class OuterCall(msgspec.Struct, frozen=True, gc=False):
    """A call whose tool is an agent, and in whose run something else happens."""

    run_id: str
    call_id: str
    tool: str


class ApprovalRequest(Checked, Veiled, msgspec.Struct, frozen=True, gc=False):
    """A question to a person: may `tool` run with `arguments`?

    `id` is a digest over run, call, tool, definition, arguments and caller, so that an answer to it
    can be an answer to nothing else. `arguments` are what will run, secret ones masked; `defaults`
    points (JSON Pointers) to those that were not sent and are the author's defaults.
    `asked_at` and `expires_at` are in seconds since the epoch. With `for_run`, a yes for the rest of
    the run (either `Approve.for_run`) would spare what the standard policy asks about further calls of
    the tool. If an agent that is a tool asks, it is `within` its call, and those around it. With
    `always` a yes may be a rule for calls like this one (`Approve.always`): for what the policies
    `asked_by` ask, and for runs that have read untrusted content only if it is `untrusted`, which says
    that this one had, and that the tool may have side effects.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments",)

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
        """The tool, behind the agents that want to call it: `research > refund`."""
        return " > ".join([*(outer.tool for outer in self.within), self.tool])

    def call_in(self, run_id: str) -> str:
        """Return the id of the call of a run that waits for the answer: the one asked about, or that of
        the agent which asks."""
        outer = (outer.call_id for outer in self.within if outer.run_id == run_id)
        return next(outer, self.call_id)

    def expired(self, now: float | None = None) -> bool:
        return (time.time() if now is None else now) >= self.expires_at


ForRun: TypeAlias = bool | Literal["exactly"]
"""For the rest of a run a yes is to any call of a tool, to none, or to the same call again."""


class Always(Checked, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Makes a yes a rule: further calls like this one do not ask, in whichever run and process.

    They are calls of this very definition by this caller, whose arguments are the same but for those
    named `open`, which may have any value. It lapses after `seconds`, if given, from when it was
    `given_at` (seconds since the epoch): whoever keeps an answer until its call takes it says when that
    was. Without it, it is given when the call takes it. Raises ValueError for what cannot be meant.
    """

    open: tuple[str, ...] = ()
    seconds: float | None = None
    given_at: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError("Always(seconds=…) is a number of seconds above 0")
        if self.given_at is not None and not 0 < self.given_at < math.inf:
            raise ValueError("Always(given_at=…) is a time in seconds since the epoch")

    def given_by(self, at: float) -> float:
        """Return when it was given: at this time, if not before."""
        return at if self.given_at is None else min(at, self.given_at)


class Approve(
    Checked, Veiled, msgspec.Struct, frozen=True, tag="approve", forbid_unknown_fields=True
):
    """Yes, by `by`; with `arguments`, yes to these instead (they are hydrated anew).

    Where nothing of `by` can be seen it is no answer: a store refuses it, and a call that it was given
    for ends as `approval_failed`.

    With `for_run` it is yes to the tool for the rest of the run as well: further calls of this very
    definition by this caller do not ask for what the tool is (`requires_approval`, as imported tools
    have it) or for what the run has read. With `"exactly"` that holds for those alone that have the
    same effective arguments as this one when it ran, edited or not. Each is recorded as approved by
    `by`. What else asks (what is marked as not safe, doubts about a call, other policies) asks as
    before.

    With `always` it is a rule, where the question says that it may be one: it speaks for the arguments
    that ran, edited or not, until it is revoked.

    In JSON a member that is none of these makes it no answer: a misspelt `arguments` would let the
    call run with those that were to be changed.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments",)

    by: str
    arguments: JsonObject | None = None
    for_run: ForRun = False
    always: Always | None = None

    def dated(self, at: float) -> Approve:
        """Return it so that the rule that it gives, if it gives one, lasts from this time, if not from
        before: for whoever keeps it until its call takes it."""
        if self.always is None:
            return self
        always = msgspec.structs.replace(self.always, given_at=self.always.given_by(at))
        return msgspec.structs.replace(self, always=always)


class LimitedApprove(Approve, frozen=True, kw_only=True):
    """A yes of somebody who may approve some questions only: those that `may` says True to.

    It is asked about the question with the arguments that will run, where the yes has others than were
    asked about. Such a yes is never to a whole tool, and no rule: about further calls nobody has asked.
    """

    may: Callable[[ApprovalRequest], bool]


class Refuse(Checked, msgspec.Struct, frozen=True, tag="refuse", forbid_unknown_fields=True):
    """Says no. The reason is for the record; the model learns that it was refused, not why."""

    reason: str = ""
    by: str = ""


Answer: TypeAlias = Approve | Refuse
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Answer | None]]


@runtime_checkable
class KeepingApprover(Protocol):
    """An approver that keeps, with each question, what default factories made for its call.

    The same call, made again in another process, is then the call that was asked about. What is kept is
    `Hydrated.building.pinned`; it may hold secrets.
    """

    async def ask_keeping(
        self, request: ApprovalRequest, pinned: dict[str, JsonValue], /
    ) -> Answer | None:
        """Answer, as an approver does. `pinned` is kept where the question is new."""
        ...

    async def kept(self, run_id: str, call_id: str, caller: str, /) -> dict[str, JsonValue]:
        """Return what was kept with the question about this call of this caller; {} for no question."""
        ...
