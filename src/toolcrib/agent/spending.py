"""What a run spends: its own, and that of agents that are its tools.

Rule: no run spends more than its limits, nor more than any run around it has left. What is about to
be spent is counted first, in the run itself and in each one around it, or in none of them where one
has not enough left. Nothing is awaited in between: agents that run together share no last allowance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolcrib.agent.inner import OuterRun
from toolcrib.runner import ToolRunner
from toolcrib.values.call import HydrationResult
from toolcrib.values.context import ROUNDING, Account, Expense, PolicyContext, RunTally
from toolcrib.values.decision import Caller
from toolcrib.values.message import Usage
from toolcrib.values.run import Event, Limits, RunState, UsageReported

_A_TURN = Expense(turns=1)
_NOTHING = Expense()


class Spending:
    """Counts what one run spends: an `Account` for the agents that are its tools."""

    def __init__(
        self,
        limits: Limits,
        state: RunState,
        tally: RunTally,
        *,
        runner: ToolRunner,
        outer: OuterRun | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._limits = limits
        self._tally = tally
        self._caller: Caller = state.caller
        self._runner = runner
        self._around: Account | None = None if outer is None else outer.around.scope.account
        self._tool = "" if outer is None else outer.call.tool
        self._emit = emit
        self._calls = self._before = _NOTHING
        self.turn = state.turn
        self.usage = state.usage

    @property
    def seconds_left(self) -> float | None:
        if self._limits.seconds is None:
            return None
        return max(0.0, self._limits.seconds - self._tally.elapsed)

    def begin_turn(self) -> str | None:
        """Count a turn; return the name of the limit that it would exceed, and count nothing then."""
        limit = self._exceeded(_A_TURN) or self._taken_around(_A_TURN)
        self.turn += limit is None
        return limit

    def begin_calls(self, calls: Sequence[HydrationResult]) -> str | None:
        """Likewise of calls, which the runner counts in the run itself; `end_calls` has to follow."""
        price = sum(c.definition.annotations.cost for c in calls if c.definition and c.success)
        more = Expense(calls=sum(call.success for call in calls), cost=price)
        limit = self._exceeded(more) or self._taken_around(more)
        self._calls, self._before = _NOTHING if limit else more, self._own
        return limit

    def end_calls(self) -> None:
        """Give back, around this run, what was counted for calls that were not made."""
        unused = self._calls.plus(self._own, -1).plus(self._before)
        if self._around is not None and self._calls != _NOTHING:
            self._around.give_back(unused)
        self._calls = _NOTHING

    def take(self, tool: str, spent: Expense) -> str | None:
        limit = self._exceeded(spent) or self._denied(tool, spent) or self._taken_around(spent)
        if limit is None:
            self._tally.count_inner(spent)
        return limit

    def give_back(self, spent: Expense) -> None:
        self._tally.count_inner(spent, -1)
        if self._around is not None:
            self._around.give_back(spent)

    def use(self, usage: Usage) -> None:
        self.usage += usage
        self._tally.tokens = self.usage.input_tokens + self.usage.output_tokens
        self._emit(UsageReported(self.usage))
        if self._around is not None:
            self._around.use(usage)

    @property
    def _own(self) -> Expense:
        """What the calls of this run itself are and cost."""
        tally = self._tally
        return Expense(0, tally.calls - tally.inner.calls, tally.cost - tally.inner.cost)

    def _exceeded(self, more: Expense) -> str | None:
        limits, tally = self._limits, self._tally
        if more.turns and self.turn + tally.inner.turns + more.turns > limits.turns:
            return "turns"
        if more.turns and self.seconds_left == 0.0:  # a timer fires only when something waits
            return "seconds"
        if more.calls and limits.calls is not None and tally.calls + more.calls > limits.calls:
            return "calls"
        cost = tally.cost + more.cost
        if limits.tool_cost is not None and cost > limits.tool_cost * ROUNDING:
            return "tool_cost"
        return None

    def _denied(self, tool: str, more: Expense) -> str | None:
        """Ask the policies of this run whether a budget has so much left: whether they would allow the
        tool once more if all but that call was spent."""
        definition, ahead = self._runner.catalog[tool].get_definition(), self._tally.copied()
        ahead.calls += more.calls - 1
        ahead.cost += more.cost - definition.annotations.cost
        context = PolicyContext(self._caller, ahead)
        return "budget" if self._runner.never_allows(definition, context) else None

    def _taken_around(self, more: Expense) -> str | None:
        return None if self._around is None else self._around.take(self._tool, more)
