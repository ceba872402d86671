"""The context of a call: what its run has spent, who observes it, what policies and tools know."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from toolcrib.values.call import Hydrated
from toolcrib.values.decision import Answer, ApprovalRequest, Approver, Caller, Decision, OuterCall
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue, Redacted, keyed_digest
from toolcrib.values.message import Usage
from toolcrib.values.record import (
    Attachment,
    Choice,
    Expense,
    Origin,
    Outcome,
    Sink,
    SpentWithin,
    SuspendedCall,
)
from toolcrib.values.typed import Checked

T = TypeVar("T")
ROUNDING: Final = 1 + 1e-9
"""The factor by which a cost limit is multiplied, so that three times 0.1 does not exceed 0.3."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})  # shared by all scopes
_OF_THIS_PROCESS: Final = os.urandom(32)  # the key of a run that has no nonce


class ToolApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody's approval of a tool for a whole run; `id` is the id of the question that was answered.

    With `arguments_mac` (`RunTally.mac`) it covers only calls with exactly these arguments.
    """

    id: str
    by: str
    definition_digest: str
    caller: str
    arguments_mac: str = ""


class RunTally(Redacted, msgspec.Struct, dict=True):
    """Holds what a run has spent so far. The runner counts and policies read. The only mutable
    value here.

    `nonce` is the run's secret; it is in the saved state but in no record. `tokens` counts the
    tokens of the model's replies. `seconds_per_tool` counts only finished calls. `approved` lists
    the tools, or the specific calls of them, that somebody approved for the whole run
    (`Approve.for_run`). `inner` is what agents used as tools have spent. `calls`, `cost` and
    `tokens` include it; `per_tool` and `cost_per_tool` do not, because each of their counts
    corresponds to a record of this run. `begun` lists the ids of calls that were counted and then
    waited inside their tools: resuming them does not count again.

    All calls of a run in one process share one tally, through their `CallScope`.
    """

    redacted: ClassVar[tuple[str, ...]] = ("nonce",)
    run_id: str = ""
    nonce: str = ""
    started: float = 0.0
    calls: int = 0
    cost: float = 0.0
    tokens: int = 0
    tainted: bool = False
    per_tool: dict[str, int] = {}
    cost_per_tool: dict[str, float] = {}
    seconds_per_tool: dict[str, float] = {}
    approved: tuple[ToolApproval, ...] = ()
    inner: Expense = Expense()
    begun: tuple[str, ...] = ()

    @property
    def counted(self) -> dict[str, int]:
        """How often each call was made, by its key, since this process has known the run. Not
        saved."""
        counts: dict[str, int] = self.__dict__.setdefault("counted", {})
        return counts

    @property
    def spent_within(self) -> dict[str, SpentWithin]:
        """What was spent within each call whose tool is an agent, by its key, if no agent makes the
        run. Not saved."""
        spent: dict[str, SpentWithin] = self.__dict__.setdefault("spent_within", {})
        return spent

    def copied(self) -> RunTally:
        """Return an equal, independent tally."""
        return msgspec.structs.replace(
            self,
            per_tool=dict(self.per_tool),
            cost_per_tool=dict(self.cost_per_tool),
            seconds_per_tool=dict(self.seconds_per_tool),
        )

    def approval_of(self, hydrated: Hydrated, caller: str) -> ToolApproval | None:
        """Return the run-wide approval that covers this call, the widest if several, or None."""
        key = (hydrated.definition.digest, caller)
        approvals = [
            approval
            for approval in self.approved
            if (approval.definition_digest, approval.caller) == key
        ]
        mac = (
            self.mac_of(hydrated) if any(approval.arguments_mac for approval in approvals) else None
        )
        covering = [approval for approval in approvals if approval.arguments_mac in ("", mac)]
        return min(covering, key=lambda approval: approval.arguments_mac, default=None)

    def mac_of(self, hydrated: Hydrated) -> str | None:
        """Return the `mac` of a call's effective arguments.

        None if they cannot be compared with those of another call, because a default factory made a
        value that JSON cannot restore.
        """
        pinned = hydrated.building.pinned.values()
        if any(isinstance(value, list) and [] in value for value in pinned):
            return None
        return self.mac(hydrated.canonical.decode(), hydrated.defaults)

    def mac(self, arguments: str, defaulted: Iterable[str]) -> str:
        """Return a keyed digest of canonical arguments, not guessable without the nonce.

        It also covers which arguments were not sent, because a default may be displayed
        differently.
        """
        key = self.nonce.encode("utf-8", "surrogatepass") or _OF_THIS_PROCESS
        return keyed_digest(key, "arguments approved for the run", arguments, *sorted(defaulted))

    def count(self, tool: str, cost: float) -> None:
        """Count a call that is about to run."""
        self.calls += 1
        self.per_tool[tool] = self.per_tool.get(tool, 0) + 1
        if cost:
            self.cost += cost
            self.cost_per_tool[tool] = self.cost_per_tool.get(tool, 0.0) + cost

    def give_back(self, tool: str, cost: float) -> None:
        """Undo one `count`, for a call whose tool never began."""
        self.calls -= 1
        self.per_tool[tool] -= 1
        if not self.per_tool[tool]:
            del self.per_tool[tool]
            self.cost -= self.cost_per_tool.pop(tool, 0.0)  # all of it, so no rounding is left
        elif cost:
            self.cost -= cost
            self.cost_per_tool[tool] = self.cost_per_tool.get(tool, 0.0) - cost

    def mark_begun(self, call_id: str) -> None:
        """Note that a counted call has begun, and waits or is resumed."""
        if call_id not in self.begun:
            self.begun = (*self.begun, call_id)

    def count_inner(self, spent: Expense, sign: int = 1) -> None:
        """Count what an agent used as a tool spends; with `sign` -1, undo what it did not spend."""
        self.inner = self.inner.plus(spent, sign)
        self.calls += sign * spent.calls
        self.cost += sign * spent.cost

    def count_within(self, key: str, spent: SpentWithin) -> None:
        """Count what was spent within the call that has this key."""
        self.spent_within[key] = self.spent_within.get(key, SpentWithin()).plus(spent)
        self.count_inner(spent.expense)
        self.tokens += spent.usage.input_tokens + spent.usage.output_tokens

    @property
    def own_expense(self) -> Expense:
        """The number and cost of the run's own calls."""
        calls = sum(self.per_tool.values())
        cost = sum(self.cost_per_tool.values())
        return Expense(0, calls, cost, dict(self.per_tool), dict(self.cost_per_tool))

    def add_seconds(self, tool: str, seconds: float) -> None:
        """Add the `seconds` that a finished call took."""
        self.seconds_per_tool[tool] = self.seconds_per_tool.get(tool, 0.0) + seconds

    def add_stored(self, elapsed: float, approved: Iterable[ToolApproval] = ()) -> None:
        """Add what another process did in this run: the seconds taken and run-wide approvals."""
        self.started = min(self.started, time.monotonic() - elapsed)
        self.approved += tuple(approval for approval in approved if approval not in self.approved)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started


class Observer(Protocol):
    """Observes a call in progress. Its methods are called in the event loop and must not block."""

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def progress(self, call_id: str, part: JsonValue) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class Account(Protocol):
    """A run's budget, as seen by an agent that is one of its tools."""

    def take(self, tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        """Count what this tool's agent is about to spend: a reply, or calls of these definitions.

        If that would exceed a limit of this run or of an enclosing one, count nothing and return
        the limit's name.
        """
        ...

    def give_back(self, spent: Expense) -> None:
        """Undo a part of what was counted, because it was not spent."""
        ...

    def count_again(self, call_id: str, spent: SpentWithin) -> None:
        """Count what was spent within a call whose outcome is only reported again here.

        Limits do not apply, and what was counted before the call waited is not counted again.
        """
        ...

    def use_within(self, call_id: str, usage: Usage) -> None:
        """Count the usage of a reply by the model of the agent that is this call's tool."""
        ...


class Spend(msgspec.Struct, frozen=True):
    """What a call uses of its caller's budget; `call` is the same wherever the call is made."""

    caller: str
    call: str
    tool: str
    cost: float


class Payment(msgspec.Struct, frozen=True):
    """What a model request has cost its caller, in money; `request` identifies this one request."""

    caller: str
    request: str
    money: float


@runtime_checkable
class KeepsSpending(Protocol):
    """Keeps what callers have spent, shared between processes.

    `toolcrib.spending.SpendStore` does so in a database.
    """

    async def take(
        self,
        spend: Spend,
        limits: Mapping[str, float],
        *,
        only: Sequence[str] = (),
        window: float = math.inf,
    ) -> str | None:
        """Count a call exactly once, however often and from however many processes it is taken.

        If the call would exceed one of the limits (`calls`, `cost`), count nothing and return that
        limit's name. The limits apply to everything that the caller has spent on the tools in
        `only` (on all tools if it is empty) in the last `window` seconds. The check and the count
        are atomic.
        """
        ...

    async def give_back(self, spend: Spend) -> None:
        """Undo one `take`. A call that others have taken too stays counted."""
        ...


@runtime_checkable
class KeepsMoney(KeepsSpending, Protocol):
    """Keeps what the model requests of callers have cost, too."""

    async def begin_request(
        self, caller: str, request: str, limit: float, *, window: float = math.inf
    ) -> bool:
        """Register a request that is about to be sent, at no cost yet, and return True.

        If the caller's requests of the last `window` seconds have already cost `limit`, return
        False: the request must not be sent.

        It has to fail where `pay` would: if a store can be read but not written, nothing is sent.
        """
        ...

    async def pay(self, payment: Payment, *, window: float = math.inf) -> None:
        """Count the cost of a request once, however often it is reported.

        The highest reported cost counts, whether or not the request was begun. It is kept for at
        least `window`.
        """
        ...


class StepRunner(Protocol):
    """Stores the results of a run's steps. Each step is done once, whichever process continues.

    Optional attributes: a true `stopping` says that another process continues the run, so a call
    cancelled from then on has no outcome to report. A true `replays` says that a later step than
    the last requested one is stored: the next work had already begun, so no limit of the run stops
    it from being resumed. A method `run_with_retries(work)` runs work that needs the store
    of what callers spend, and may retry while that store cannot be reached.
    """

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:  # noqa: A002
        """Return the result of `work`, and store it as JSON of `type` (as msgspec handles it).

        If an earlier attempt at this run has stored the result, return that and skip the work.
        Steps are identified by their order and their names. Exceptions from `work` are raised and
        not stored. Without a place to store results, the work is done each time.
        """
        ...


def replays(steps: StepRunner | None) -> bool:
    """Return whether stored steps show that the run's next step was begun earlier."""
    return bool(getattr(steps, "replays", False))


class BegunSteps:
    """Wraps the steps of a run so that `begins` is awaited before the work of each step."""

    def __init__(self, steps: StepRunner, begins: Callable[[], Awaitable[None]]) -> None:
        self._steps = steps
        self._begins = begins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:  # noqa: A002
        async def begun() -> T:
            await self._begins()
            return await work()

        return await self._steps.run(name, begun, type)


def with_retries(
    steps: StepRunner | None, work: Callable[[], Awaitable[T]]
) -> Callable[[], Awaitable[T]]:
    """Wrap work that needs a store in the retries of the run's steps, if they have any."""
    retrying = getattr(steps, "run_with_retries", None)
    return work if retrying is None else partial(retrying, work)


class CallScope(msgspec.Struct, frozen=True):
    """Holds what a run adds to its calls: a tally, an observer, and answers of approvers in advance.

    `questions` holds the requests that these answers belong to, by id. A request expires at its own
    deadline, and a call that has one does not run without an answer. `origin` is the turn that made
    the call, `choice` says why its tools were offered, and `attachments` are the long texts that
    both refer to. `approver` replaces the runner's own. `suspended` holds, by call id, the calls
    that are resumed after their tools had begun.

    Agents used as tools spend from `account`, or from what the tally and the runner's budgets leave
    if there is none. `within` lists the calls that this run is nested in. The same question on
    another `occasion` is a different question. If there are `steps`, each call is one. Inner runs
    ask `guards` before all their own policies, and the policies in `paying` pay for the models of
    inner runs, too.

    `begins` is called when the code of a call's tool begins, and `ends` when it is over. If
    `called_off` returns True, a cancellation was meant for this call only, not for its run or the
    process. A `resumed` run continues from a saved state.
    """

    tally: RunTally
    answers: Mapping[str, Answer] = _NOTHING
    questions: Mapping[str, ApprovalRequest] = _NOTHING
    observer: Observer | None = None
    origin: Origin | None = None
    choice: Choice | None = None
    attachments: tuple[Attachment, ...] = ()
    approver: Approver | None = None
    suspended: Mapping[str, SuspendedCall] = _NOTHING
    account: Account | None = None
    within: tuple[OuterCall, ...] = ()
    occasion: str = ""
    steps: StepRunner | None = None
    guards: tuple[Guard, ...] = ()
    paying: tuple[PayingPolicy, ...] = ()
    begins: Callable[[], object] = type(None)
    ends: Callable[[], object] = type(None)
    called_off: Callable[[], bool] = bool
    resumed: bool = False

    @property
    def may_have_begun(self) -> bool:
        """Whether a call of the run may have begun earlier, for example in a process that is gone.
        True if the run has steps or continues from a saved state."""
        return self.steps is not None or self.resumed or bool(self.questions or self.suspended)

    def resuming(self, suspended_call: SuspendedCall) -> CallScope:
        """Return the scope for resuming a begun call, with the question that let it begin."""
        questions = dict(self.questions)
        if suspended_call.approval is not None:
            question = suspended_call.approval[0]
            questions[question.id] = question
        suspended = {suspended_call.call.call_id: suspended_call}
        return msgspec.structs.replace(self, suspended=suspended, questions=questions)

    def questions_about(self, call_id: str) -> Iterator[tuple[str, ApprovalRequest]]:
        """Yield, by question id, the requests about a call of this run, whatever the arguments."""
        call_key = (call_id, self.tally.run_id)
        return (
            item for item in self.questions.items() if (item[1].call_id, item[1].run_id) == call_key
        )


class PolicyContext(msgspec.Struct, frozen=True, gc=False):
    """Tells a policy on whose behalf a call is made, and what the run has spent."""

    caller: Caller
    run: RunTally


Guard: TypeAlias = Callable[[Hydrated, PolicyContext], Decision]
"""A policy that holds for a whole run, whichever agent makes the call."""


class ModelRequest(msgspec.Struct, frozen=True):
    """A request to a model, for the policies that pay for it; `id` identifies this one request.

    `models` are the models that may be asked. For an answered request, `model` is the one that
    answered and `usage` is what it used.
    """

    id: str
    models: tuple[str, ...]
    model: str = ""
    usage: Usage = Usage()


@runtime_checkable
class PayingPolicy(Protocol):
    """A policy that counts what model requests cost: those of a run and its summaries, and those of
    agents used as tools, whatever policies these agents have.

    Its exceptions are not caught, and the run fails.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Any: ...

    async def may_ask(self, request: ModelRequest, context: PolicyContext, /) -> bool:
        """Return whether a request may be sent, immediately before it is sent.

        If not, the run ends as limited by `money`. It is asked again about a request whose reply
        was not stored. It raises if nothing can be written, so that no request is sent that could
        not be paid for.
        """
        ...

    async def pay(self, request: ModelRequest, context: PolicyContext, /) -> None:
        """Count an answered request. It is always awaited to its end.

        A stored reply, as in a durable run, is paid for once, by the process that received it.
        """
        ...


class Surroundings(msgspec.Struct, frozen=True, eq=False):
    """Holds what an agent used as a tool receives from the enclosing run: the scope of its call,
    the run's approver and sinks, the account to spend from, the policies that pay for its model,
    and the steps of the outermost run."""

    scope: CallScope
    approver: Approver | None = None
    sinks: tuple[Sink, ...] = ()
    account: Callable[[], Account] | None = None
    paying: tuple[PayingPolicy, ...] = ()
    steps: StepRunner | None = None


class CallContext(Checked, Redacted, msgspec.Struct, frozen=True):
    """Tells a tool what it may know about its own call. The runner fills in a parameter of this type.

    `idempotency_key` is the same each time the same call is run again. `deadline` is on the clock
    of `time.monotonic()`, and None without a time limit. `around` is for agents used as tools.
    """

    redacted: ClassVar[tuple[str, ...]] = ("around",)

    call_id: str
    run_id: str
    idempotency_key: str
    caller: Caller
    deadline: float | None
    observer: Observer | None = None
    around: Surroundings | None = None

    def progress(self, part: JsonValue) -> None:
        """Report progress to the observers of the run. `part` is shown as is, so put no secrets in it.

        A part that is not JSON, or is larger than a result may be, ends the call as
        `invalid_output`.
        """
        if self.observer is not None:
            self.observer.progress(self.call_id, part)
