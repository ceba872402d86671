"""The question about one call: who is asked or has answered, and when a yes lets the call run.

Rule: an answer is used once. If the call ended by it before its tool began, or began with it and
waits, any further answer comes too late, the same one included. A call that was stopped before its
tool began has not used its answer. A yes for the run is stored in the
run's tally, and a rule given with a yes is stored, once the call may run as it was approved.
`approval` says what counts as an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.runner.approval import (
    answer_to,
    approval_request,
    approved_call,
    as_asked_before,
    asked_call,
    differing,
    edit_of,
    keeping,
    rule_for,
    stored_rule,
    with_explanation,
)
from toolcrib.runner.executor import Executor
from toolcrib.runner.idempotency import EndedByAnswer, IdempotencyCache, WriteAhead
from toolcrib.runner.policy import (
    FORK,
    CountingPolicy,
    LookingPolicy,
    Policy,
    ReservingPolicy,
    have_distinct_names,
    may_have_rule,
    steered,
)
from toolcrib.runner.recorder import CallFacts, Recorder, to_the_end
from toolcrib.runner.running import Limiter
from toolcrib.runner.stopped import Reporter, Stopped, rejection
from toolcrib.tools import Catalog
from toolcrib.values.call import Hydrated, Rejected
from toolcrib.values.context import PayingPolicy, ToolApproval
from toolcrib.values.decision import (
    Answer,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Caller,
    Refuse,
    ReturnsApproval,
)
from toolcrib.values.json import key_of
from toolcrib.values.record import (
    ALWAYS,
    FOR_RUN,
    FOR_RUN_EXACTLY,
    AppliedRule,
    CallError,
    Failed,
    SuspendedCall,
    is_final,
)
from toolcrib.values.rule import KeepsRules

_WAITS_WITHIN = CallError.of(
    ErrorCode.OUTCOME_UNKNOWN,
    "This call has already begun with that answer, and now waits for another approval. It was not"
    " begun again.",
)


class Setup(msgspec.Struct, frozen=True, eq=False):
    """Holds what all calls of a runner share."""

    catalog: Catalog
    policies: tuple[Policy, ...]
    at_once: tuple[Policy, ...]  # the policies that decide without awaiting
    looking: tuple[LookingPolicy, ...]  # async policies, which share `policy_seconds`
    policy_seconds: float
    counting: tuple[CountingPolicy, ...]
    reserving: tuple[ReservingPolicy, ...]
    paying: tuple[PayingPolicy, ...]
    approver: Approver | None
    rules: KeepsRules | None
    approval_seconds: float
    limiter: Limiter
    write_ahead: WriteAhead
    executor: Executor
    reporter: Reporter
    cache: IdempotencyCache
    max_result_bytes: int
    recorder: Recorder


class CallQuestion(msgspec.Struct):
    """Holds what is asked about a call, and the `yes` with which its tool may begin."""

    setup: Setup
    facts: CallFacts
    caller: Caller
    hydrated: Hydrated
    request: ApprovalRequest
    rules: KeepsRules | None = None  # the rules that may answer it
    yes: Approve | None = None
    answered_in_advance: bool = False
    by_rule: bool = False
    answer_with_rule: Approve | None = None
    giving_back: Callable[[], Awaitable[None]] | None = None  # what the approver took as used up

    @staticmethod
    def of(
        setup: Setup,
        facts: CallFacts,
        caller: Caller,
        hydrated: Hydrated,
        ask: Ask,
        ask_reasons: Mapping[str, str],
    ) -> CallQuestion:
        """Return the question that policies ask, for these `ask_reasons`.

        A question that was asked before keeps its expiry time.
        """
        scope = facts.scope
        request = approval_request(
            hydrated,
            ask,
            caller=caller,
            run=scope.tally,
            seconds=setup.approval_seconds,
            within=scope.within,
            occasion=scope.occasion,
            asked_by=ask_reasons,
        )
        always = (
            setup.rules is not None
            and have_distinct_names(setup.policies, ask_reasons)
            and FORK not in ask_reasons
            and may_have_rule(hydrated, scope.tally)
        )
        # whoever answers reads all that the yes is about
        reason = "; ".join(dict.fromkeys(ask_reasons.values())) or request.reason
        request = msgspec.structs.replace(request, always=always, reason=reason)
        earlier = scope.questions.get(request.id)
        if earlier is not None:
            request = as_asked_before(request, earlier, answered=request.id in scope.answers)
        return CallQuestion(setup, facts, caller, hydrated, request, setup.rules)

    async def approved(self) -> Hydrated | None:
        """Return the call that somebody approved, perhaps with edited arguments.

        None while nobody has answered. Raises Stopped.
        """
        facts, setup, hydrated, request = self.facts, self.setup, self.hydrated, self.request
        facts.approval_id = request.id
        suspended = facts.scope.suspended.get(request.call_id)
        if suspended is not None:
            facts.take_suspended(suspended)
        await self._use_up()
        try:
            answer = await answer_to(
                request, facts.scope, self._approver(), self._failed, self._by_rule
            )
        except Stopped as stopped:
            if stopped.edited_by:
                facts.approved_by, facts.edit = stopped.edited_by, "unfit"
            raise with_explanation(stopped, hydrated) from None
        if answer is None:
            return None
        facts.approved_by = answer.by
        facts.refusal = answer.reason if isinstance(answer, Refuse) else ""
        facts.edit = "none" if edit_of(hydrated, answer) is None else "unfit"  # until accepted
        approved = approved_call(
            hydrated, answer, setup.catalog, setup.reporter.debug, asked=request
        )
        if approved is not hydrated:
            facts.take_edit(approved)
        if isinstance(approved, Rejected):
            error = rejection(approved)  # no call of the model can fix what a person wrote
            raise Stopped(msgspec.structs.replace(error, retryable=False))
        if isinstance(answer, Approve):
            self.answer_with_rule = None if answer.always is None else answer
            self.yes = Approve(answer.by, answer.arguments, answer.for_run)
        return approved

    def _approver(self) -> Approver | None:
        """Return the approver to ask; a yes that it takes as used up can be given back."""
        approver = self.facts.scope.approver or self.setup.approver
        ask = keeping(approver, self.hydrated.building.pinned)
        if ask is None or not isinstance(approver, ReturnsApproval):
            return ask
        give_back = approver.give_back

        async def ask_taking(request: ApprovalRequest) -> Answer | None:
            answer = await ask(request)
            if isinstance(answer, Approve):
                self.giving_back = partial(give_back, request)
            return answer

        return ask_taking

    async def give_back(self) -> None:
        """Give a yes back to the approver that took it as used up: the call was stopped too early."""
        if self.giving_back is None:
            return
        given_back = await to_the_end(self.giving_back)
        if given_back.error is not None:
            self._failed(given_back.error)

    async def _by_rule(self) -> Approve | None:
        """Return the yes of a rule that approves the call. Raises Stopped if a rule was changed.

        If somebody was asked about the call before, that person answers, not a rule. If rules
        cannot be read, somebody is asked.
        """
        setup, facts, request = self.setup, self.facts, self.request
        if setup.rules is None:
            return None
        key = key_of(request.run_id, request.call_id)
        asked_before = key in setup.cache.asked or any(facts.scope.questions_about(request.call_id))
        if self.rules is not None and request.always and not asked_before:
            call = asked_call(self.hydrated, request, facts.scope.tally)
            rule = await rule_for(self.rules, call, self._failed)
            if rule is not None:
                self.by_rule = True
                facts.approval_id = rule.approval_id
                facts.rule = AppliedRule(rule.id, rule.by, rule.given_at)
                return Approve(rule.by)
        approver: object = facts.scope.approver or setup.approver
        if approver is not None and approver is not setup.rules and request.call_id:
            setup.cache.keep_asked(key)  # a store knows this itself
        return None

    def outgrown(self, ask_reasons: Mapping[str, str]) -> bool:
        """Return whether a rule has answered, and more is asked now than it was checked against.

        More may be asked by the policies, or because of what the run has read.
        """
        request = self.request
        is_steered = steered(self.hydrated, self.facts.scope.tally)
        has_more = not ask_reasons.keys() <= set(request.asked_by) or is_steered > request.untrusted
        return self.by_rule and bool(ask_reasons) and has_more

    async def keep_rule(self, approved: Hydrated) -> bool:
        """Store the rule that the yes gives, and return whether it gives one.

        Raises Stopped if it cannot be stored.
        """
        if self.answer_with_rule is None:
            return False
        call = asked_call(approved, self.request, self.facts.scope.tally)
        rule = await stored_rule(self.setup.rules, call, self.answer_with_rule, self._failed)
        if rule is not None:
            self.facts.rule = AppliedRule(rule.id, rule.by, rule.given_at)
            self.facts.notes += (ALWAYS,)
        return True

    async def _use_up(self) -> None:
        """Use up an answer that was given in advance. Raises Stopped if it comes too late."""
        facts, request = self.facts, self.request
        if request.id not in facts.scope.answers or request.call_id in facts.scope.suspended:
            return
        self.answered_in_advance = True
        cached = self.setup.cache.answered.get(request.id)
        ended = cached or await self.setup.write_ahead.answered(request.id, facts)
        if ended is None:
            return
        if ended.begun_record is None:
            facts.take_earlier_answer(ended.by, ended.edit)
        else:
            facts.take_begun(ended.begun_record)
        raise Stopped(ended.error)

    def _failed(self, error: BaseException) -> None:
        label = f"the approver of tool '{self.hydrated.definition.name}'"
        self.setup.reporter.raised(label, self.hydrated.call, error)

    def keep_for_run(self, approved: Hydrated) -> None:
        """Store a yes to the tool, or to exactly this call of it, for the rest of the run."""
        yes, tally = self.yes, self.facts.scope.tally
        if yes is None or not yes.for_run:
            return
        digest, caller = approved.definition.digest, self.caller.id
        mac = tally.mac_of(approved) if yes.for_run == "exactly" else ""
        earlier = tally.approval_of(approved, caller)
        if mac is None or (earlier is not None and earlier.arguments_mac in ("", mac)):
            return
        approval = ToolApproval(self.request.id, yes.by, digest, caller, mac)
        tally.approved = (*tally.approved, approval)
        self.facts.notes += (FOR_RUN_EXACTLY if mac else FOR_RUN,)

    def keep_end(self, outcome: Failed) -> None:
        """Remember how the call ended by an answer given in advance, before its tool began."""
        record = outcome.record
        if self.answered_in_advance and is_final(record):
            ended = EndedByAnswer(outcome.error, record.approved_by, record.edited)
            self.setup.cache.keep_answered(record.approval_id, ended)

    def waits_within(
        self, requests: Sequence[ApprovalRequest]
    ) -> tuple[ApprovalRequest, Approve] | None:
        """Return the yes with which a tool began that now asks itself and will resume.

        The yes expires with these questions. An approval for the run counts only from when the tool
        resumes, because it has to have a record.
        """
        request, yes, tally = self.request, self.yes, self.facts.scope.tally
        if yes is None:
            return None
        begun = EndedByAnswer(_WAITS_WITHIN, yes.by, begun_record=self.facts.record("started"))
        tally.approved = tuple(each for each in tally.approved if each.id != request.id)
        self.setup.cache.keep_answered(request.id, begun)
        expires_at = max(each.expires_at for each in (request, *requests))
        return msgspec.structs.replace(request, expires_at=expires_at), yes


def take_begun_with(
    setup: Setup, facts: CallFacts, caller: Caller, suspended: SuspendedCall
) -> None:
    """Take over who approved a suspended call that cannot resume, and with which arguments.

    An edit is read again if the call is still the one that was asked about.
    """
    facts.take_suspended(suspended)
    hydrated, scope = facts.hydrated, facts.scope
    if suspended.approval is None or facts.edit != "unread" or not isinstance(hydrated, Hydrated):
        return
    request, yes = suspended.approval
    current = approval_request(
        hydrated, Ask(request.reason), caller=caller, run=scope.tally, occasion=scope.occasion
    )
    if differing(request, current):
        return
    with suppress(Stopped):  # otherwise its arguments at the start are unknown
        approved = approved_call(hydrated, yes, setup.catalog, setup.reporter.debug, asked=request)
        if approved is hydrated:
            facts.edit = "none"
        elif isinstance(approved, Hydrated):
            facts.take_edit(approved)
