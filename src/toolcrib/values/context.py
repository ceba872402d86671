"""What surrounds a call: what its run has spent, who watches, what a policy and a tool may know."""

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
from toolcrib.values.json import JsonValue, Veiled, keyed_digest
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
"""What a limit of a cost is multiplied by: three times 0.1 is not more than 0.3."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})  # one for all scopes
_OF_THIS_PROCESS: Final = os.urandom(32)  # the key of a run that has no nonce


class ToolApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody's yes to a tool for a whole run; `id` is that of the question that it answered.

    With `arguments_mac` (`RunTally.mac`) it is a yes to calls with exactly these arguments.
    """

    id: str
    by: str
    definition_digest: str
    caller: str
    arguments_mac: str = ""


class RunTally(Veiled, msgspec.Struct, dict=True):
    """Holds what a run has spent so far; the runner counts, policies read. The one mutable value here.

    `nonce` is the run's own secret, in its saved state and no record. `tokens` are those of the model's
    replies, `seconds_per_tool` those of the calls that are over; `approved` are the tools, or the
    calls of them, that somebody approved for the whole run (`Approve.for_run`). `inner` is what agents
    that are its tools have spent; `calls`, `cost` and `tokens` have that, too, `per_tool` and
    `cost_per_tool` have not: a record of this run stands for each of theirs. `begun` are the ids of
    calls that are counted, and waited within their tools: to go on is no call more.

    It is one for all calls of a run in a process: each `CallScope` of theirs has it.
    """

    veiled: ClassVar[tuple[str, ...]] = ("nonce",)
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
        """How often each call was made, by its key, since this process knows of the run: it is counted
        once. No saved state has that."""
        known: dict[str, int] = self.__dict__.setdefault("counted", {})
        return known

    @property
    def within(self) -> dict[str, SpentWithin]:
        """What was counted within each call whose tool is an agent, by its key, in a run that is no
        agent's. No saved state has that."""
        known: dict[str, SpentWithin] = self.__dict__.setdefault("within", {})
        return known

    def copied(self) -> RunTally:
        """Return an equal tally of its own, which nobody counts on who has this one."""
        return msgspec.structs.replace(
            self,
            per_tool=dict(self.per_tool),
            cost_per_tool=dict(self.cost_per_tool),
            seconds_per_tool=dict(self.seconds_per_tool),
        )

    def approval_of(self, hydrated: Hydrated, caller: str) -> ToolApproval | None:
        """Return the approval for the run that covers this call, the widest one; None without one."""
        about = (hydrated.definition.digest, caller)
        given = [one for one in self.approved if (one.definition_digest, one.caller) == about]
        mac = self.mac_of(hydrated) if any(one.arguments_mac for one in given) else None
        covering = [one for one in given if one.arguments_mac in ("", mac)]
        return min(covering, key=lambda one: one.arguments_mac, default=None)

    def mac_of(self, hydrated: Hydrated) -> str | None:
        """Return the `mac` of the effective arguments of a call.

        None where nobody can say whether those of another call are the same: a default factory made
        what JSON does not give back.
        """
        made = hydrated.building.pinned.values()
        if any(isinstance(each, list) and [] in each for each in made):
            return None
        return self.mac(hydrated.canonical.decode(), hydrated.defaults)

    def mac(self, arguments: str, defaulted: Iterable[str]) -> str:
        """Return a digest of canonical arguments, and of which of them were not sent (a default may be
        shown as something else is), that nobody can try out without the nonce."""
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
        """Undo one `count`: the call's tool never began."""
        self.calls -= 1
        self.per_tool[tool] -= 1
        if not self.per_tool[tool]:
            del self.per_tool[tool]
            self.cost -= self.cost_per_tool.pop(tool, 0.0)  # all of it: no rounding is left
        elif cost:
            self.cost -= cost
            self.cost_per_tool[tool] = self.cost_per_tool.get(tool, 0.0) - cost

    def keep_place(self, call_id: str) -> None:
        """Note that a call that is counted has begun, and waits or goes on."""
        if call_id not in self.begun:
            self.begun = (*self.begun, call_id)

    def count_inner(self, spent: Expense, sign: int = 1) -> None:
        """Count what an agent that is a tool spends; with -1, what it did not spend after all."""
        self.inner = self.inner.plus(spent, sign)
        self.calls += sign * spent.calls
        self.cost += sign * spent.cost

    def count_within(self, key: str, spent: SpentWithin) -> None:
        """Count what was spent within the call of this key."""
        self.within[key] = self.within.get(key, SpentWithin()).plus(spent)
        self.count_inner(spent.expense)
        self.tokens += spent.usage.input_tokens + spent.usage.output_tokens

    @property
    def own(self) -> Expense:
        """What the calls of the run itself are and cost."""
        calls = sum(self.per_tool.values())
        cost = sum(self.cost_per_tool.values())
        return Expense(0, calls, cost, dict(self.per_tool), dict(self.cost_per_tool))

    def settle(self, tool: str, seconds: float) -> None:
        """Count a call that is over, after `seconds`."""
        self.seconds_per_tool[tool] = self.seconds_per_tool.get(tool, 0.0) + seconds

    def take_up(self, elapsed: float, approved: Iterable[ToolApproval] = ()) -> None:
        """Count what another process did of the run: the seconds that it had taken by then, and what
        was approved for all of it."""
        self.started = min(self.started, time.monotonic() - elapsed)
        self.approved += tuple(given for given in approved if given not in self.approved)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started


class Observer(Protocol):
    """Whoever watches a call while it is on its way; called in the event loop, must not block."""

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def progress(self, call_id: str, part: JsonValue) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class Account(Protocol):
    """A run as an agent that is a tool of it knows it: what there is left to spend."""

    def take(self, tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        """Count what this tool's agent is about to spend, for `calls` of these or a reply; return the
        name of the limit that keeps it from that, of this run or of one around it: then nothing is
        counted."""
        ...

    def give_back(self, spent: Expense) -> None:
        """Undo a part of what was counted: it was not spent."""
        ...

    def count_again(self, call_id: str, spent: SpentWithin) -> None:
        """Count what was spent within a call that is only given its outcome here, whatever is left; but
        for what was counted before it waited."""
        ...

    def use_within(self, call_id: str, usage: Usage) -> None:
        """Count what a reply of the model of that agent has used, which is the tool of this call."""
        ...


class Spend(msgspec.Struct, frozen=True):
    """What a call takes of what its caller may spend; `call` is the same wherever the call is made."""

    caller: str
    call: str
    tool: str
    cost: float


class Payment(msgspec.Struct, frozen=True):
    """What a request of a model has cost its caller, in money; `request` is of that request alone."""

    caller: str
    request: str
    money: float


@runtime_checkable
class KeepsSpending(Protocol):
    """Keeps what callers have spent, where several processes can ask for it.

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
        """Count a call, once, however often and from however many processes it is taken.

        Return which of the limits (`calls`, `cost`) it would go over, with all that its caller has
        spent on these tools (all, if none is named) in the last `window` seconds: then nothing is
        counted. Nobody else comes in between the question and the count.
        """
        ...

    async def give_back(self, spend: Spend) -> None:
        """Undo one `take`; a call that others have taken as well stays counted."""
        ...


@runtime_checkable
class KeepsMoney(KeepsSpending, Protocol):
    """Keeps what the requests of models of callers have cost, too."""

    async def begin_request(
        self, caller: str, request: str, limit: float, *, window: float = math.inf
    ) -> bool:
        """Write down a request that is about to be sent, which has cost nothing yet, unless what those
        of its caller have cost in the last `window` seconds is `limit` by now; return whether it may
        be sent.

        It has to fail where `pay` would: a store that can be read and not written lets nothing be sent.
        """
        ...

    async def pay(self, payment: Payment, *, window: float = math.inf) -> None:
        """Count what a request has cost, once, however often it is told of: the most that was told,
        whether it was begun or not. It is not forgotten within `window`."""
        ...


class StepRunner(Protocol):
    """Keeps what the steps of a run give: each is done once, whichever process goes on with the run.

    One with an attribute `stopping` that is true says that another process goes on: what is cancelled
    from then on has no end that anybody is told of. While an attribute `replays` is true a later step
    is kept than the last one that it was asked for: what comes next had begun before, and no limit of
    the run keeps it from being taken up. One with a method `patiently(work)` does what needs
    the store of what callers spend, and may try that again where it cannot be reached for a while.
    """

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:  # noqa: A002
        """Return what `work` gives, kept as JSON of `type` (as msgspec writes and reads it); where an
        earlier attempt at this run has kept that, do no work and return what it gave.

        Steps are known by their order and their names. What `work` raises is raised, and not kept.
        Where there is nothing to keep it in, the work is done.
        """
        ...


def replays(steps: StepRunner | None) -> bool:
    """Return whether what a run with these steps comes to next had begun before, as is kept."""
    return bool(getattr(steps, "replays", False))


class BegunSteps:
    """The steps of a run, which awaits `begins` before the work of each of them is done."""

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


def patiently(
    steps: StepRunner | None, work: Callable[[], Awaitable[T]]
) -> Callable[[], Awaitable[T]]:
    """Return what does work in a store as patiently as a run with these steps is."""
    tried = getattr(steps, "patiently", None)
    return work if tried is None else partial(tried, work)


class CallScope(msgspec.Struct, frozen=True):
    """Holds what a run adds to its calls: a tally, a watcher, and approvers' answers given beforehand.

    `asked` are the requests of these answers, by id: a request lapses at its own time limit, and a call
    that has one does not run without an answer. `origin` is the turn that made the
    call, `choice` why its tools were on offer, and `attachments` the long texts that the two refer to.
    `approver` is asked in place of the runner's own. `suspended` has, by call id, the calls whose tools
    have begun and go on. Agents that are tools spend from `account`, or else what the tally and the
    runner's budgets leave; the run itself is `within` these calls. What is asked on another `occasion`
    is another question. With `steps` each call is a step. The runs within ask `guards`, too, before
    all their policies, and the runs around it pay for their models, too, as `paying` says. `begins` is
    told when the code of a call's tool begins, `ends` when that is over. What cancels a call that is
    `called_off` is somebody who wants that one ended, and not its run, or the process. A run that was
    `resumed` goes on from a saved state.
    """

    tally: RunTally
    answers: Mapping[str, Answer] = _NOTHING
    asked: Mapping[str, ApprovalRequest] = _NOTHING
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
    def went_before(self) -> bool:
        """Whether a call of the run may have begun before, in a process that is gone, say: it has
        steps, or goes on from what was saved."""
        return self.steps is not None or self.resumed or bool(self.asked or self.suspended)

    def going_on(self, begun: SuspendedCall) -> CallScope:
        """Return the scope in which a call goes on whose tool has begun: with the question, too, by
        whose yes it was let begin."""
        asked = dict(self.asked)
        if begun.approval is not None:
            question = begun.approval[0]
            asked[question.id] = question
        suspended = {begun.call.call_id: begun}
        return msgspec.structs.replace(self, suspended=suspended, asked=asked)

    def asked_about(self, call_id: str) -> Iterator[tuple[str, ApprovalRequest]]:
        """Yield what somebody was asked about a call of this run, with whatever arguments, by the ids
        of the questions."""
        own = (call_id, self.tally.run_id)
        return (item for item in self.asked.items() if (item[1].call_id, item[1].run_id) == own)


class PolicyContext(msgspec.Struct, frozen=True, gc=False):
    """Tells a policy on whose behalf a call is made, and what the run has spent."""

    caller: Caller
    run: RunTally


Guard: TypeAlias = Callable[[Hydrated, PolicyContext], Decision]
"""A policy that holds for a run, whichever agent makes the call."""


class ModelRequest(msgspec.Struct, frozen=True):
    """A request of a model, for whoever pays for it; `id` is that of this request alone.

    `models` are those that may be asked; of one that was answered, `model` is the one that did, and
    `usage` what it has used.
    """

    id: str
    models: tuple[str, ...]
    model: str = ""
    usage: Usage = Usage()


@runtime_checkable
class PayingPolicy(Protocol):
    """A policy that counts what requests of models cost: those of a run, what is summarised
    for it, and those of agents that are its tools, whatever policies these have.

    What it raises leaves the run, which fails.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Any: ...

    async def may_ask(self, request: ModelRequest, context: PolicyContext, /) -> bool:
        """Return whether a request may be sent, right before it is: if not, the run is limited by
        `money`. It is asked again about one that nobody has kept the reply of. What could not be paid
        for lets nothing be sent: it raises where nothing can be written."""
        ...

    async def pay(self, request: ModelRequest, context: PolicyContext, /) -> None:
        """Count a request that was answered. It is awaited to its end. A reply that is kept, as in a
        durable run, is paid for once, by who has got it."""
        ...


class Surroundings(msgspec.Struct, frozen=True, eq=False):
    """What an agent that is the tool of a call has from the run around it: the call's scope, whom that
    run asks and tells, the account that the call spends from, who pays for its model, and the steps of
    the run that all of them are within."""

    scope: CallScope
    approver: Approver | None = None
    sinks: tuple[Sink, ...] = ()
    account: Callable[[], Account] | None = None
    paying: tuple[PayingPolicy, ...] = ()
    steps: StepRunner | None = None


class CallContext(Checked, Veiled, msgspec.Struct, frozen=True):
    """Says what a tool may know of its own call. A parameter of this type is filled in by the runner.

    `idempotency_key` is the same whenever the same call is run again; `deadline` is on the clock of
    `time.monotonic()`, None without a time limit. `around` is for agents that are tools.
    """

    veiled: ClassVar[tuple[str, ...]] = ("around",)

    call_id: str
    run_id: str
    idempotency_key: str
    caller: Caller
    deadline: float | None
    observer: Observer | None = None
    around: Surroundings | None = None

    def progress(self, part: JsonValue) -> None:
        """Tell whoever watches the run; `part` is shown as it is, so put nothing secret in it.

        What is not JSON, or larger than a result may be, ends the call as `invalid_output`.
        """
        if self.observer is not None:
            self.observer.progress(self.call_id, part)
