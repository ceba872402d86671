"""Policies say whether a hydrated call may run; the strictest one wins.

Rule: a policy that raises denies, and so does one that gives no decision, or none in time.
Decisions depend on the definition, the arguments, the caller, what was spent, and what a policy
looks up. They never depend on what a model or a browser says about itself.

Every runner applies the standard policy, in addition to any others. It denies tools whose roles
exclude the caller. It asks about tools marked as risky, about unchecked arguments, about calls that
somebody else may have steered, and about doubts in how a call arrived. Doubts are in the call's
notes (`_DOUBTS`), and do not matter for a tool that only reads. A person who approved a tool, or
exactly this call of it, for the whole run is not asked again because of the tool's marks or because
of what the run has read.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode, SourceError, Stage, ToolcribError, did_you_mean
from toolcrib.failures import LOGGER, log_raised, log_unusable
from toolcrib.runner.recorder import CallFacts, Recorder, to_the_end
from toolcrib.runner.stopped import NotRecorded
from toolcrib.values.call import TOOL_CHANGED, Hydrated, HydrationResult
from toolcrib.values.context import (
    Account,
    CallScope,
    PayingPolicy,
    PolicyContext,
    RunTally,
    StepRunner,
    with_retries,
)
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import encodable, key_of
from toolcrib.values.message import Usage
from toolcrib.values.record import CallError, Expense, SpentWithin, ToolInvocationRecord
from toolcrib.values.run import saved_run, spent_in
from toolcrib.values.typed import got_type, takes

_FAILED = "the policy failed"
_UNCOUNTED = "the policy failed to count the call"
_UNDECIDED = "the policy gave no decision"
_DECISION = "Allow(), Ask(…) or Deny(…)"
_REFUSAL = "None or Deny(…)"
_MOST_COMPARED = 2_000  # tools, when a name may be misspelt: each takes 10 µs
_MAX_DESCRIPTION = 100  # characters of a wrong return value in the message
_RESERVED = "None, Deny(…) or an async function that releases the reservation"
_TOO_LATE = "the policy did not decide within {:g} seconds"
FORK: Final = "fork of a run"
"""The policy name of a fork that asks about what its first run has done; no rule answers that."""
NOT_TRUSTED = "it was imported, and nobody here trusts it yet (see trust=)"

LookingPolicy: TypeAlias = Callable[[Hydrated, PolicyContext], Awaitable[Decision]]
Policy: TypeAlias = Callable[[Hydrated, PolicyContext], Decision] | LookingPolicy
LookedUp: TypeAlias = tuple[Policy, Decision]
Release: TypeAlias = Callable[[], Awaitable[None]]
"""Releases what was reserved for a call."""


@runtime_checkable
class CountingPolicy(Protocol):
    """A policy that keeps a count of calls across runs.

    It is asked, then told by `count`, in the event loop with nothing awaited in between, so that no
    two calls share a last allowance. If one object serves runners in several threads, it needs a
    lock of its own, and `count` has to decide who came first. The same holds if `__call__` is
    async: other calls may begin before `count`.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Decision: ...

    def count(self, hydrated: Hydrated, context: PolicyContext, /) -> Deny | None:
        """Count a call that is about to run: it is allowed and, if asked about, approved.

        Returning a Deny, or raising, still keeps it from running.
        """
        ...

    def settle(self, record: ToolInvocationRecord, context: PolicyContext, /) -> None:
        """Settle a counted call that is over.

        It has run to its end, or it never began; then `record.seconds` is None. What this raises is
        dropped, so that no outcome is lost. A policy may also have a method
        `give_back(hydrated, context)`. It is called before `settle` for a counted call that never
        began, or that waits within its tool and will be counted when it resumes. A waiting call is
        in `context.run.begun`: a policy may keep its place, and not count it again.
        """
        ...


@runtime_checkable
class ReservingPolicy(Protocol):
    """A policy that counts in a store that other processes share, such as a database.

    `reserve` is awaited once the call is allowed, approved and counted, right before its tool
    begins: there the store decides and counts in one step. What it raises leaves the runner, and
    the call ends as `not_recorded`, as when a ledger cannot be written.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Decision: ...

    async def reserve(self, hydrated: Hydrated, context: PolicyContext, /) -> Deny | Release | None:
        """Count the call, or deny it. A `Release` is awaited if its tool then does not begin.

        A call that is reserved again, in whichever process, is recognized by its run and its id: it
        may have begun before that process was killed, and is counted once.
        """
        ...


@runtime_checkable
class ForeseeingPolicy(Protocol):
    """A policy that knows in advance that it will not let some tools run.

    An agent that picks tools neither offers such tools nor lets its model find them. A subclass
    that overrides `__call__` overrides `never_allows`, too.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Decision: ...

    def never_allows(self, definition: ToolDefinition, context: PolicyContext, /) -> Deny | None:
        """Return the Deny for every call of this tool until the run ends, whatever its arguments.

        None if that depends on the call, or may change. Raising denies.
        """
        ...


def with_standard(policies: Policy | Iterable[Policy]) -> tuple[Policy, ...]:
    """Return the standard policy, then `policies`; a `Standard` among them replaces it.

    Raises ToolcribError for something that is not a policy, for one whose `never_allows` cannot be
    called (it would hide every tool), and for a second `Standard`.
    """
    if not callable(policies) and not isinstance(policies, Iterable):
        raise TypeError(f"policy must be a function, or a list of them; {got_type(policies)}")
    policy_list = [policies] if callable(policies) else list(policies)
    for policy in policy_list:
        name = policy.__name__ if isinstance(policy, type) else _name(policy)
        if not callable(policy) or isinstance(policy, type) or not takes(policy, 2):
            raise ToolcribError(
                "a policy must be callable as (Hydrated, PolicyContext) -> Allow | Deny | Ask: "
                f"{name} is not"
            )
        never_allows = getattr(policy, "never_allows", None)
        if never_allows is not None and (
            not callable(never_allows) or inspect.iscoroutinefunction(never_allows)
        ):
            raise ToolcribError(f"{_name(policy)}: `never_allows` must be a method, and not async")
    standards = [policy for policy in policy_list if isinstance(policy, Standard)]
    if len(standards) > 1:
        raise ToolcribError("a runner has one standard policy: give it at most one Standard")
    return (*(standards or [standard]), *(p for p in policy_list if not isinstance(p, Standard)))


def warn_of_misspelt(policies: Iterable[Policy], tool_names: Collection[str]) -> None:
    """Log names in ready-made policies that look like misspelt tool names.

    A policy that names a tool wrongly limits nothing. A name is logged if no tool has it and a tool
    that the policy does not name has nearly that name.
    """
    if len(tool_names) > _MOST_COMPARED:
        return
    for policy in policies:
        policy_names: frozenset[str] = getattr(policy, "named", frozenset())
        for name in sorted(
            policy_names.difference(tool_names) if isinstance(policy_names, frozenset) else ()
        ):
            suggestion = did_you_mean(name, set(tool_names) - policy_names, cutoff=0.8)
            if suggestion:
                LOGGER.warning(
                    "policy '%s' names '%s', but this runner has no such tool%s",
                    _name(policy),
                    name,
                    suggestion,
                )


def split_async(policies: Sequence[Policy]) -> tuple[tuple[Policy, ...], tuple[LookingPolicy, ...]]:
    """Return the policies that decide at once, and the async ones, which may look something up."""
    at_once = tuple(policy for policy in policies if not _is_async(policy))
    looking = (policy for policy in policies if _is_async(policy))
    return at_once, cast("tuple[LookingPolicy, ...]", tuple(looking))


def _is_async(policy: Policy) -> bool:
    function = policy
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004  the method itself is inspected
    )


def counting(policies: Sequence[Policy]) -> tuple[CountingPolicy, ...]:
    """Return the policies that keep count. Raises ToolcribError for one that is unreliable."""
    for policy in policies:
        methods = [getattr(policy, name, None) for name in ("count", "settle", "give_back")]
        if any(methods) and (
            not all(methods[:2]) or any(map(inspect.iscoroutinefunction, methods))
        ):
            raise ToolcribError(
                f"{_name(policy)}: a policy that counts needs `count` and `settle`; these, and"
                " `give_back` if it has one, must not be async"
            )
    return tuple(policy for policy in policies if isinstance(policy, CountingPolicy))


def reserving(policies: Sequence[Policy]) -> tuple[ReservingPolicy, ...]:
    """Return the policies that reserve. Raises ToolcribError if a `reserve` is not async."""
    for policy in policies:
        reserve = getattr(policy, "reserve", None)
        if reserve is not None and not inspect.iscoroutinefunction(reserve):
            raise ToolcribError(f"{_name(policy)}: `reserve` must be an async method")
    return tuple(policy for policy in policies if isinstance(policy, ReservingPolicy))


def paying(policies: Sequence[Policy]) -> tuple[PayingPolicy, ...]:
    """Return the policies that pay for models.

    Raises ToolcribError for methods that are not async, and for a policy that has `may_ask` without
    `pay`: nothing would be counted.
    """
    payers = tuple(policy for policy in policies if isinstance(policy, PayingPolicy))
    for policy in policies:
        if hasattr(policy, "may_ask") and policy not in payers:
            raise ToolcribError(f"{_name(policy)}: a policy with `may_ask` needs `pay`, too")
    for policy in payers:
        if not all(map(inspect.iscoroutinefunction, (policy.may_ask, policy.pay))):
            raise ToolcribError(f"{_name(policy)}: `may_ask` and `pay` must be async methods")
    return payers


async def reserve_each(
    policies: Sequence[ReservingPolicy],
    hydrated: Hydrated,
    context: PolicyContext,
    releases: list[Release],
    steps: StepRunner | None,
) -> Deny | None:
    """Have each policy reserve the call; return the Deny of one that refuses.

    What releases a reservation is added to `releases`. The wait for an unreachable store is that of
    the `steps` around the call. Each reservation is completed even if the caller is cancelled, since
    otherwise nobody would know what was reserved. Raises NotRecorded with what a policy raised, and
    CancelledError.
    """
    for policy in policies:
        reserve = with_retries(steps, partial(policy.reserve, hydrated, context))
        result = await to_the_end(reserve)
        answer = result.value
        if callable(answer):
            releases.append(answer)
        if result.cancelled is None and result.error is not None:
            raise NotRecorded(result.error)
        result.check()
        if answer is not None and not callable(answer):
            return _denial_of(policy, answer, _RESERVED)
    return None


async def release_each(releases: Sequence[Release]) -> None:
    """Release what was reserved for a call whose tool did not begin.

    Failures are logged: what is not released stays counted. A cancellation in the meantime is not
    lost, because the caller checks for it.
    """
    if isinstance(sys.exception(), GeneratorExit):  # the loop is gone: nothing can be awaited
        return
    for release in reversed(releases):
        result = await to_the_end(release)
        if result.error is not None:
            log_raised("a policy that releases its reservation", result.error)


def decide(
    policies: Iterable[Policy],
    hydrated: Hydrated,
    context: PolicyContext,
    looked_up: Sequence[LookedUp] = (),
    ask_reasons: dict[str, str] | None = None,
) -> Decision:
    """Return the first of the strictest decisions: deny before ask before allow.

    Decisions that were `looked_up` come last. The names of all policies that ask are added to
    `ask_reasons`, with their reasons.
    """
    strictest: Decision = ALLOWED
    for policy in policies:
        try:
            answer = policy(hydrated, context)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  CancelledError too: it denies
            log_raised(f"policy '{_name(policy)}'", raised)
            return Deny(_FAILED, _name(policy))
        if answer.__class__ is Allow:
            continue
        decision = _read_decision(policy, answer)
        if isinstance(decision, Deny):
            return decision
        if isinstance(decision, Ask):
            strictest = _stricter(strictest, policy, decision, ask_reasons)
    for policy, decision in looked_up:
        if isinstance(decision, Deny):
            return decision
        if isinstance(decision, Ask):
            strictest = _stricter(strictest, policy, decision, ask_reasons)
    return strictest


def _stricter(
    strictest: Decision, policy: Policy, ask: Ask, ask_reasons: dict[str, str] | None
) -> Decision:
    if ask_reasons is not None:
        name = _asking_name(policy)
        ask_reasons[name if ask.policy == name else f"{name}: {ask.policy}"] = ask.reason
    return strictest if isinstance(strictest, Ask) else ask


def have_distinct_names(policies: Iterable[Policy], asked_by: Iterable[str]) -> bool:
    """Return whether each name in `asked_by` belongs to exactly one of these policies.

    Two instances of a class share a name, and so do two functions made by one function, and
    partials.
    """
    names = [_asking_name(policy) for policy in policies]
    return all(
        sum(asking_name == name or asking_name.startswith(f"{name}: ") for name in names) == 1
        for asking_name in asked_by
    )


def _asking_name(policy: Policy) -> str:
    return "standard" if isinstance(policy, Standard) else _name(policy)


async def look_up(
    policies: Sequence[LookingPolicy], hydrated: Hydrated, context: PolicyContext, seconds: float
) -> list[LookedUp]:
    """Return what looking policies decide, asked all at the same time, within `seconds`.

    One that raises, or is not ready by then, denies. It is cancelled and not waited for.
    """
    tasks = [asyncio.ensure_future(_answer_of(policy, hydrated, context)) for policy in policies]
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
                _OVERDUE.add(task)  # the loop holds its tasks weakly
                task.add_done_callback(_OVERDUE.discard)
    return [
        (policy, _decision_of(policy, task, seconds))
        for policy, task in zip(policies, tasks, strict=True)
    ]


_OVERDUE: Final[set[asyncio.Future[Any]]] = set()


async def _answer_of(
    policy: LookingPolicy, hydrated: Hydrated, context: PolicyContext
) -> Decision | BaseException:
    try:
        return _read_decision(policy, await policy(hydrated, context))
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  as in `decide`
        return raised


def _decision_of(
    policy: LookingPolicy, future: asyncio.Future[Decision | BaseException], seconds: float
) -> Decision:
    is_in_time = future.done() and not future.cancelled()
    result = future.result() if is_in_time else TimeoutError()
    if not isinstance(result, BaseException):
        return result
    log_raised(f"policy '{_name(policy)}'", result)
    return Deny(_FAILED if is_in_time else _TOO_LATE.format(seconds), _name(policy))


def never_allowed(
    policies: Iterable[Policy], definition: ToolDefinition, context: PolicyContext
) -> Deny | None:
    """Return the Deny of the first policy that never allows this tool, whatever the arguments."""
    for policy in policies:
        method = getattr(policy, "never_allows", None)
        if method is None:
            continue
        answer = _call_method(policy, method, definition, context)
        if answer is not None:
            return _denial_of(policy, answer, _REFUSAL)
    return None


def has_spent(
    policies: Iterable[Policy], definition: ToolDefinition, context: PolicyContext
) -> bool:
    """Return whether a policy has nothing left for this tool in the rest of the run.

    A policy that fails counts as having nothing left. Other reasons to deny do not count.
    """
    for policy in policies:
        denied = never_allowed((policy,), definition, context)
        if denied is not None and (
            denied.code is ErrorCode.BUDGET_EXCEEDED
            or denied.reason == _FAILED
            or denied.reason.startswith(f"{_UNDECIDED} (")
        ):
            return True
    return False


def has_spent_within(
    policies: Sequence[Policy],
    tool: ToolDefinition,
    calls: Sequence[ToolDefinition],
    context: PolicyContext,
) -> bool:
    """Return whether a budget of a run denies one of these calls by an agent that is its tool.

    Each call is judged as if those before it had been made. Without calls, the agent's next reply
    is judged as the call of `tool` itself, which is in the tally and already counted by policies
    that keep count themselves.
    """
    tally = context.run.copied()
    if not calls:
        tally.give_back(tool.name, tool.annotations.cost)
        judging = (p for p in policies if not isinstance(p, CountingPolicy))
        return has_spent(judging, tool, PolicyContext(context.caller, tally))
    for definition in calls:
        if has_spent(policies, definition, PolicyContext(context.caller, tally)):
            return True
        tally.count_inner(Expense.of([definition]))
    return False


def count_all(
    policies: Sequence[CountingPolicy], hydrated: Hydrated, context: PolicyContext
) -> Deny | None:
    """Tell each policy that the call is about to run; return the Deny of one that refuses it.

    If this returns None, `settle_all` or `give_back_all` must follow, whatever happens to the call.
    If it returns a Deny, the policies that had counted the call have been told that it is over.
    """
    for index, policy in enumerate(policies):
        answer = _call_method(policy, policy.count, hydrated, context, reason=_UNCOUNTED)
        if answer is None:
            continue
        denial = _denial_of(policy, answer, _REFUSAL)
        give_back_all(
            policies[:index], hydrated, _record_of_denial(hydrated, context, denial), context
        )
        return denial
    return None


def give_back_all(
    policies: Iterable[CountingPolicy],
    hydrated: Hydrated,
    record: ToolInvocationRecord,
    context: PolicyContext,
) -> None:
    """Tell each policy that a counted call is over and never began, or that it waits."""
    for policy in policies:
        give_back = getattr(policy, "give_back", None)
        if give_back is not None:
            _call_method(policy, give_back, hydrated, context)
    settle_all(policies, msgspec.structs.replace(record, seconds=None), context)


def settle_all(
    policies: Iterable[CountingPolicy], record: ToolInvocationRecord, context: PolicyContext
) -> None:
    """Tell each policy that a counted call is over."""
    for policy in policies:
        _call_method(policy, policy.settle, record, context)


def _call_method(
    policy: Policy, method: Callable[..., object], *args: object, reason: str = _FAILED
) -> object:
    """Return what a method of a policy returns; if it raises, log that, and return a Deny."""
    try:
        return method(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  a CancelledError would lose the outcome, too
        log_raised(f"policy '{_name(policy)}'", raised)
        return Deny(reason, _name(policy))


def _record_of_denial(
    hydrated: Hydrated, context: PolicyContext, decision: Deny
) -> ToolInvocationRecord:
    facts = Recorder((), None).facts(hydrated, context.caller, CallScope(context.run))
    facts.decision = decision
    return facts.failed(CallError.of(decision.code)).record


def _denial_of(policy: Policy, answer: Any, expected: str) -> Deny:
    """Return the Deny that was given; if something else was given, a Deny that says so."""
    decision = _read_decision(policy, answer, expected)
    return decision if isinstance(decision, Deny) else _no_decision(policy, answer, expected)


def _read_decision(policy: Policy, answer: Any, expected: str = _DECISION) -> Decision:
    """Return a decision that a record can hold, with its policy's name; otherwise a Deny."""
    if not isinstance(answer, (Allow, Deny, Ask)):
        if inspect.iscoroutine(answer):
            answer.close()  # otherwise Python warns that it was never awaited
        return _no_decision(policy, answer, expected)
    if not (isinstance(answer.reason, str) and isinstance(answer.policy, str)):
        return _no_decision(policy, answer, expected)
    reason, name = encodable(answer.reason), encodable(answer.policy) or _name(policy)
    if isinstance(answer, Ask):
        return Ask(reason, name)
    if isinstance(answer, Allow):
        return ALLOWED
    is_policy_code = isinstance(answer.code, ErrorCode) and answer.code.info.stage is Stage.POLICY
    return Deny(reason, name, answer.code if is_policy_code else ErrorCode.DENIED)


def _no_decision(policy: Policy, answer: object, expected: str) -> Deny:
    """Return the Deny for what is not a decision, and tell the author what to return instead."""
    try:
        description = got_type(answer).removeprefix("got ")
        if answer is None or isinstance(answer, type):
            description = "None" if answer is None else f"the class {answer.__name__}"
    except Exception:  # noqa: BLE001  a foreign class may raise on its name
        description = "something"
    description = encodable(description[:_MAX_DESCRIPTION])
    log_unusable(f"policy '{_name(policy)}'", f"{description}, but it must return {expected}")
    return Deny(f"{_UNDECIDED} ({description})", _name(policy))


def _name(policy: Policy) -> str:
    function = getattr(policy, "func", policy)  # the function of a functools.partial
    return str(getattr(function, "__name__", type(function).__name__))


ALLOWED: Final = Allow("nothing about this tool asks for more", "standard")

_DOUBTS: Final = {
    "written_in_text": (
        "the call was written in the text of the reply, and this model's text calls are not trusted"
    ),
    "empty_arguments": "the reply sent no arguments for the call, but the tool has parameters",
    "streamed_otherwise": "its streamed arguments differ from those in the finished reply",
    TOOL_CHANGED: "the tool's definition has changed since the model called it",
}
"""The notes on a call that lead to a question, and the reason shown to the person."""


class Standard(msgspec.Struct, frozen=True):
    """The standard policy as a value: give a runner another instance to change its options.

    A call whose arguments were repaired asks. With `repaired_reads="allow"` it does not ask if its
    tool is marked as read-only. Raises ToolcribError for any other value.
    """

    repaired_reads: Literal["ask", "allow"] = "ask"

    def __post_init__(self) -> None:
        if self.repaired_reads not in ("ask", "allow"):
            raise ToolcribError("repaired_reads must be 'ask' or 'allow'")

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        """Deny the tool if its roles exclude this caller; part of `ForeseeingPolicy`."""
        roles = definition.annotations.allowed_roles
        if not roles or not set(roles).isdisjoint(context.caller.roles):
            return None
        return Deny(f"it needs one of the roles {', '.join(roles)}", "standard")

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        definition = hydrated.definition
        marks = definition.annotations
        denied = self.never_allows(definition, context) if marks.allowed_roles else None
        if denied is not None:
            return denied
        if (
            marks.safe
            and not marks.requires_approval
            and marks.threat_level != "high"
            and definition.no_schema_mode is None
            and not hydrated.provenance.repaired
            and not hydrated.provenance.notes
            and not (context.run.tainted and not marks.read_only)
        ):
            return ALLOWED  # the path of most calls; the code below finds the reasons
        reasons = "; ".join(self._reasons(hydrated, context))
        return Ask(reasons, "standard") if reasons else ALLOWED

    def _reasons(self, hydrated: Hydrated, context: PolicyContext) -> Iterator[str]:
        """Yield all reasons to ask: a person must know of a repair and of the marks."""
        marks, mode = hydrated.definition.annotations, hydrated.definition.no_schema_mode
        is_risky = context.run.tainted and not marks.read_only
        approval = (marks.requires_approval or is_risky) and context.run.approval_of(
            hydrated, context.caller.id
        )
        if marks.requires_approval and not approval:
            yield NOT_TRUSTED if hydrated.building.distrusted else "the tool requires an approval"
        if not marks.safe:
            yield "the tool is marked as not safe"
        if marks.threat_level == "high":
            yield "the tool's threat level is high"
        if mode == "human-approval" or (mode == "read-only" and not marks.read_only):
            yield f"its arguments were not checked, and its mode is {mode}"
        if hydrated.provenance.repaired and not (
            marks.read_only and self.repaired_reads == "allow"
        ):
            yield "its arguments were repaired"
        if not marks.read_only:
            yield from _doubts(hydrated)
        if is_risky and not approval:
            yield "the run has read untrusted content, and this tool may have side effects"


def spared_for_run(hydrated: Hydrated, run: RunTally, caller: str) -> bool:
    """Return whether a yes for the run would end the standard policy's questions about a tool."""
    definition = hydrated.definition
    marks = definition.annotations
    if run.approval_of(hydrated, caller):
        return False  # a person approved it already: this question has another reason
    is_asked_anyway = (
        not marks.safe or marks.threat_level == "high" or definition.no_schema_mode is not None
    )
    return not is_asked_anyway and (
        marks.requires_approval or (run.tainted and not marks.read_only)
    )


def steered(hydrated: Hydrated, run: RunTally) -> bool:
    """Return whether somebody else may have steered a call that may have side effects."""
    return run.tainted and not hydrated.definition.annotations.read_only


def may_have_rule(hydrated: Hydrated, run: RunTally) -> bool:
    """Return whether a rule may approve a call.

    Nothing about how it arrived is doubtful, its arguments were checked, and they can be compared
    with those of another call.
    """
    is_unchecked = hydrated.definition.no_schema_mode is not None or hydrated.provenance.repaired
    is_doubtful = is_unchecked or any(_doubts(hydrated))
    return not is_doubtful and run.mac_of(hydrated) is not None


def _doubts(hydrated: Hydrated) -> Iterator[str]:
    """Yield what was doubtful in how the call arrived and was not declared harmless."""
    notes = hydrated.provenance.notes
    for note, reason in _DOUBTS.items():
        is_harmless = (note == "written_in_text" and "text_call_trusted" in notes) or (
            note == "empty_arguments" and hydrated.definition.parameterless
        )
        if note in notes and not is_harmless:
            yield reason


standard: Final = Standard()


# What a call counts for in its run, together with what an agent spends that runs as its tool.
#
# Rule: a call that has begun counts once in its run, wherever it began. A call that resumes, or
# cannot resume, keeps its place: it is neither counted again nor refused for lack of budget. When a
# call that did not begin here is reported as ended, or as unknown, the run takes over its count and
# everything spent within it. The spending belongs to the run of the call's scope, whatever made that
# run: a graph's thread, a client's run or the caller's own loop. The runner's budgets limit it as
# they limit the run's own calls.


def count_resumed_call(facts: CallFacts, account: Callable[[], Account]) -> None:
    """Note in the run that this suspended call has begun, if the scope says so.

    The call and everything spent within it were counted when it began. A tally that lacks the count
    (because another request or process began the call) counts it now.
    """
    call_id, scope, definition = facts.hydrated.call.id, facts.scope, facts.hydrated.definition
    if call_id not in scope.suspended or definition is None:
        return
    tally, key = scope.tally, key_of(scope.tally.run_id, call_id)
    is_begun = call_id in tally.begun
    if not is_begun and not tally.counted.get(key):
        tally.count(definition.name, definition.annotations.cost)
    tally.mark_begun(call_id)
    if scope.account is not None:
        return
    try:
        spent = spent_in(saved_run(scope.suspended[call_id]))
    except SourceError:  # its agent cannot resume
        spent = SpentWithin()
    if is_begun and key not in tally.spent_within:  # the saved tally includes what was spent within
        tally.spent_within[key] = spent
    else:
        account().count_again(call_id, spent)


def count_begun(
    facts: CallFacts,
    record: ToolInvocationRecord,
    account: Callable[[], Account],
    *,
    is_counted: bool,
) -> None:
    """Count a call that began earlier or elsewhere as if it had run here.

    `is_counted` says that this process had already counted it, because it was about to run it.
    """
    definition, tally = facts.hydrated.definition, facts.scope.tally
    key, earlier = key_of(tally.run_id, record.id), int(record.id in tally.begun)
    count = tally.counted[key] = tally.counted.get(key, earlier) + 1
    if definition is None or count != earlier + 1 + is_counted:
        return
    if not earlier:
        tally.count(definition.name, definition.annotations.cost)
    if record.spent is not None:
        account().count_again(record.id, record.spent)


class TallyAccount:
    """Holds the `Account` of an agent that runs as the tool of one call.

    It spends from the tally of the call's run and from the budgets among these policies.
    """

    def __init__(
        self, policies: Sequence[Policy], context: PolicyContext, hydrated: HydrationResult
    ) -> None:
        assert hydrated.definition is not None  # noqa: S101  otherwise there is no tool
        self._policies = policies
        self._context = context
        self._definition = hydrated.definition
        self._key = key_of(context.run.run_id, hydrated.call.id)

    def take(self, _tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        if has_spent_within(self._policies, self._definition, calls, self._context):
            return "budget"
        self._count(SpentWithin(spent))
        return None

    def give_back(self, spent: Expense) -> None:
        self._count(SpentWithin(Expense().plus(spent, -1)))

    def count_again(self, _call_id: str, spent: SpentWithin) -> None:
        self._count(spent.beyond(self._context.run.spent_within.get(self._key, SpentWithin())))

    def use_within(self, _call_id: str, usage: Usage) -> None:
        self._count(SpentWithin(usage=usage))

    def _count(self, spent: SpentWithin) -> None:
        self._context.run.count_within(self._key, spent)
