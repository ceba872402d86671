"""What agents that are tools spend, in a run that has no account of its own.

Rule: what is spent within a call belongs to the run of its scope, whoever made that: a graph's thread,
a client's run, a loop of somebody's own. The runner's budgets limit it as they limit the run's own
calls, and the tally has it, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.runner.policy import Policy, has_spent_within
from toolcrib.values.context import PolicyContext
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import key_of
from toolcrib.values.message import Usage
from toolcrib.values.record import Expense, SpentWithin


class TallyAccount:
    """An `Account` for the agent that is the tool of one call: the tally of its run, and the budgets
    among these policies."""

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

    def use(self, usage: Usage) -> None:
        self._count(SpentWithin(usage=usage))

    def _count(self, spent: SpentWithin) -> None:
        self._context.run.count_within(self._key, spent)
