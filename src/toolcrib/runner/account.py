"""Counts a call in its run, together with what an agent spends that runs as the call's tool.

Rule: a call that has begun counts once in its run, wherever it began. A call that resumes, or
cannot resume, keeps its place: it is neither counted again nor refused for lack of budget. When a
call that did not begin here is reported as ended, or as unknown, the run takes over its count and
everything spent within it. The spending belongs to the run of the call's scope, whatever made that
run: a graph's thread, a client's run or the caller's own loop. The runner's budgets limit it as
they limit the run's own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolcrib.errors import SourceError
from toolcrib.runner.policy import Policy, has_spent_within
from toolcrib.runner.recorder import CallFacts
from toolcrib.values.context import Account, PolicyContext
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import key_of
from toolcrib.values.message import Usage
from toolcrib.values.record import Expense, SpentWithin, ToolInvocationRecord
from toolcrib.values.run import saved_run, spent_in


def account_of(facts: CallFacts, policies: Sequence[Policy], context: PolicyContext) -> Account:
    """Return the account that an agent running as the tool of this call spends from."""
    definition, call_id = facts.hydrated.definition, facts.hydrated.call.id
    assert definition is not None  # noqa: S101  otherwise there is no tool
    return facts.scope.account or TallyAccount(policies, context, definition, call_id)


def keep_place(facts: CallFacts, account: Callable[[], Account]) -> None:
    """Note in the run that this suspended call has begun, if the scope says so.

    The call and everything spent within it were counted when it began. A tally that lacks the count
    (because another request or process began the call) counts it now.
    """
    call_id, scope, definition = facts.hydrated.call.id, facts.scope, facts.hydrated.definition
    if call_id not in scope.suspended or definition is None:
        return
    tally, key = scope.tally, key_of(scope.tally.run_id, call_id)
    known = call_id in tally.begun
    if not known and not tally.counted.get(key):
        tally.count(definition.name, definition.annotations.cost)
    tally.keep_place(call_id)
    if scope.account is not None:
        return
    try:
        before = spent_in(saved_run(scope.suspended[call_id]))
    except SourceError:  # its agent cannot resume
        before = SpentWithin()
    if known and key not in tally.within:  # the saved tally includes what was spent within
        tally.within[key] = before
    else:
        account().count_again(call_id, before)


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
    key, before = key_of(tally.run_id, record.id), int(record.id in tally.begun)
    made = tally.counted[key] = tally.counted.get(key, before) + 1
    if definition is None or made != before + 1 + is_counted:
        return
    if not before:
        tally.count(definition.name, definition.annotations.cost)
    if record.spent is not None:
        account().count_again(record.id, record.spent)


class TallyAccount:
    """Holds the `Account` of an agent that runs as the tool of one call.

    It spends from the tally of the call's run and from the budgets among these policies.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        context: PolicyContext,
        definition: ToolDefinition,
        call_id: str,
    ) -> None:
        self._policies = policies
        self._context = context
        self._definition = definition
        self._key = key_of(context.run.run_id, call_id)

    def take(self, _tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        if has_spent_within(self._policies, self._definition, calls, self._context):
            return "budget"
        self._count(SpentWithin(spent))
        return None

    def give_back(self, spent: Expense) -> None:
        self._count(SpentWithin(Expense().plus(spent, -1)))

    def count_again(self, _call_id: str, spent: SpentWithin) -> None:
        self._count(spent.beyond(self._context.run.within.get(self._key, SpentWithin())))

    def use_within(self, _call_id: str, usage: Usage) -> None:
        self._count(SpentWithin(usage=usage))

    def _count(self, spent: SpentWithin) -> None:
        self._context.run.count_within(self._key, spent)
