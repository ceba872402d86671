"""Policies: small functions that say whether a hydrated call may run. The strictest one wins.

A policy that raises denies, and so does one that gives no decision. Decisions depend on the
definition, the arguments, the caller and what was spent; never on what a model or a browser says
about itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode, Stage, ToolcribError
from toolcrib.failures import log_raised
from toolcrib.runner.recorder import Recorder, own_record
from toolcrib.runner.scope import CallScope
from toolcrib.runner.standard import ALLOWED, Standard, standard
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import encodable
from toolcrib.values.record import CallError, ToolInvocationRecord
from toolcrib.values.typed import came

Policy: TypeAlias = Callable[[Hydrated, PolicyContext], Decision]


@runtime_checkable
class CountingPolicy(Protocol):
    """A policy that keeps count of what has run, over more than one run.

    It is asked, then told by `count`, in the event loop and with nothing awaited in between, so that
    no two calls share a last allowance. One object may serve runners in several threads: then a lock
    of its own has to make `count` the judge of who came first.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Decision: ...

    def count(self, hydrated: Hydrated, context: PolicyContext, /) -> Deny | None:
        """The call is about to run: it is allowed and, where asked, approved.

        A Deny keeps it from running all the same, as does anything raised.
        """
        ...

    def settle(self, record: ToolInvocationRecord, context: PolicyContext, /) -> None:
        """A call that was counted is over, whether it ran to its end or did not even begin.

        What this raises is dropped: an outcome must not be lost over it.
        """
        ...


@runtime_checkable
class ForeseeingPolicy(Protocol):
    """A policy that knows of some tools, before there is a call, that it will not let them run.

    An agent that picks neither offers such tools nor lets its model find them. Whoever overrides
    `__call__` overrides `denies`, too.
    """

    def __call__(self, hydrated: Hydrated, context: PolicyContext, /) -> Decision: ...

    def denies(self, definition: ToolDefinition, context: PolicyContext, /) -> Deny | None:
        """The Deny of every call of this tool from now to the end of the run, whatever its arguments.

        None where that depends on the call, or may pass. One that raises denies.
        """
        ...


def with_standard(policies: Policy | Iterable[Policy]) -> tuple[Policy, ...]:
    """The standard policy, then `policies`; a `Standard` among them takes its place.

    Raises ToolcribError for what is no policy, for one whose `denies` is no method that can be asked
    (it would hide every tool), and for a second `Standard`.
    """
    if not callable(policies) and not isinstance(policies, Iterable):
        raise TypeError(f"policy is a function, or a list of them; {came(policies)}")
    given = [policies] if callable(policies) else list(policies)
    for policy in given:
        if not callable(policy) or isinstance(policy, type):
            kind = policy if isinstance(policy, type) else type(policy)
            raise ToolcribError(
                "a policy is called as (Hydrated, PolicyContext) -> Allow | Deny | Ask; "
                f"this is none: {kind.__name__}"
            )
        foresees = getattr(policy, "denies", None)
        if foresees is not None and (
            not callable(foresees) or inspect.iscoroutinefunction(foresees)
        ):
            raise ToolcribError(f"{_name(policy)}: `denies` is a method, and not async")
    own = [policy for policy in given if isinstance(policy, Standard)]
    if len(own) > 1:
        raise ToolcribError("there is one standard policy: give a runner at most one Standard")
    return (*(own or [standard]), *(p for p in given if not isinstance(p, Standard)))


def counting(policies: Sequence[Policy]) -> tuple[CountingPolicy, ...]:
    """Those that keep count. Raises ToolcribError for one that could not be relied on to count."""
    for policy in policies:
        methods = [getattr(policy, name, None) for name in ("count", "settle")]
        if any(methods) and (not all(methods) or any(map(inspect.iscoroutinefunction, methods))):
            raise ToolcribError(
                f"{_name(policy)}: a policy that counts has `count` and `settle`, and neither is async"
            )
    return tuple(policy for policy in policies if isinstance(policy, CountingPolicy))


def decide(policies: Iterable[Policy], hydrated: Hydrated, context: PolicyContext) -> Decision:
    """Deny before ask before allow; the first of the strictest, with the name of its policy."""
    strictest: Decision = ALLOWED
    for policy in policies:
        try:
            decision = policy(hydrated, context)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  CancelledError too: it denies
            log_raised(f"policy '{_name(policy)}'", raised)
            return Deny("the policy failed", _name(policy))
        if type(decision) is Allow:
            continue
        decision = _read(policy, decision)
        if isinstance(decision, Deny):
            return decision
        if isinstance(decision, Ask) and not isinstance(strictest, Ask):
            strictest = decision
    return strictest


def denied_outright(
    policies: Iterable[Policy], definition: ToolDefinition, context: PolicyContext
) -> Deny | None:
    """The Deny of the first policy that lets no call of this tool run, whatever its arguments."""
    for policy in policies:
        foresees = getattr(policy, "denies", None)
        if foresees is None:
            continue
        try:
            answer: object = foresees(definition, context)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  as in `decide`
            log_raised(f"policy '{_name(policy)}'", raised)
            return Deny("the policy failed", _name(policy))
        if answer is not None:
            decision = _read(policy, answer)
            return decision if isinstance(decision, Deny) else _no_decision(policy)
    return None


def count_all(
    policies: Sequence[CountingPolicy], hydrated: Hydrated, context: PolicyContext
) -> Deny | None:
    """Tell each that the call is about to run; the Deny of one that does not let it.

    None: whatever becomes of the call now, `settle_all` has to follow. A Deny: those that had counted
    the call have been told that it is over.
    """
    for at, policy in enumerate(policies):
        try:
            answer: object = policy.count(hydrated, context)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  as in `decide`
            log_raised(f"policy '{_name(policy)}'", raised)
            refused = Deny("the policy failed to count the call", _name(policy))
        else:
            if answer is None:
                continue
            decision = _read(policy, answer)
            refused = decision if isinstance(decision, Deny) else _no_decision(policy)
        settle_all(policies[:at], _refused(hydrated, context, refused), context)
        return refused
    return None


def settle_all(
    policies: Iterable[CountingPolicy], record: ToolInvocationRecord, context: PolicyContext
) -> None:
    """Add the time of a call that is over to its run's tally, and tell each that it is over."""
    if record.seconds is not None:
        context.run.settle(record.name, record.seconds)
    for policy in policies:
        try:
            policy.settle(own_record(record), context)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # noqa: BLE001  a CancelledError would lose the outcome, too
            log_raised(f"policy '{_name(policy)}'", raised)


def _refused(hydrated: Hydrated, context: PolicyContext, decision: Deny) -> ToolInvocationRecord:
    """What there is to say, to those that counted it, of a call that does not run after all."""
    draft = Recorder((), None).draft(hydrated, context.caller, CallScope(context.run))
    draft.decision = decision
    record = draft.failed(CallError.of(decision.code)).record
    return msgspec.structs.replace(record, seconds=None)  # it took no time of the run's


def _read(policy: Policy, given: Any) -> Decision:
    """A decision that a record can hold, with the name of its policy; a Deny if there is none."""
    if not isinstance(given, (Allow, Deny, Ask)):
        if inspect.iscoroutine(given):
            given.close()  # or Python warns that it was never awaited
        return _no_decision(policy)
    if not (isinstance(given.reason, str) and isinstance(given.policy, str)):
        return _no_decision(policy)
    reason, name = encodable(given.reason), encodable(given.policy) or _name(policy)
    if isinstance(given, Ask):
        return Ask(reason, name)
    if isinstance(given, Allow):
        return ALLOWED
    known = isinstance(given.code, ErrorCode) and given.code.info.stage is Stage.POLICY
    return Deny(reason, name, given.code if known else ErrorCode.DENIED)


def _no_decision(policy: Policy) -> Deny:
    return Deny("the policy gave no decision", _name(policy))


def _name(policy: Policy) -> str:
    function = getattr(policy, "func", policy)  # that of a functools.partial
    return str(getattr(function, "__name__", type(function).__name__))
