"""`budget`: a limit on calls, tokens, cost or seconds; in a run, of each tool in it, or of each caller.

What a run has spent is in its tally, and goes on with it in another process. What a caller has spent
is kept here, in this process. An account is never dropped to save room: its caller would begin anew.
A call that was counted stays counted, even if another policy then keeps it from running.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.policies.rules import names_of
from toolcrib.runner.policy import ForeseeingPolicy
from toolcrib.values.call import Hydrated
from toolcrib.values.context import ROUNDING, PolicyContext, RunTally
from toolcrib.values.decision import Allow, Decision, Deny
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.typed import explains_wrong_types

Per: TypeAlias = Literal["run", "tool", "caller"]
Spent: TypeAlias = Callable[[ToolDefinition, PolicyContext], float]
_UNITS = {"calls": "calls", "tokens": "tokens", "cost": "units of cost", "seconds": "seconds"}
_WITHIN: Final = Allow("within the budget", "budget")
_OPEN_RUNS = 16


@explains_wrong_types
def budget(
    *,
    calls: int | None = None,
    tokens: int | None = None,
    cost: float | None = None,
    seconds: float | None = None,
    per: Per = "run",
    only: str | Iterable[str] = (),
) -> ForeseeingPolicy:
    """Deny, as `budget_exceeded`, calls that would go over one of the limits.

    `per="run"` counts what a run spends, `"tool"` what each tool spends within a run, `"caller"` what
    each caller spends in all runs of this process; `only` counts and limits the calls of the tools
    that it names. `cost` is in the unit of the tools' annotations; `tokens` are those of the model's
    replies, in and out. `seconds` are those since a run began; of tools and callers, those of the
    calls that are over, so that calls which run together can go over it. Raises ToolcribError for
    tokens of tools, for a limit that is no number from 0, and without any limit.
    """
    given = {"calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds}
    limits = {unit: _number(unit, limit) for unit, limit in given.items() if limit is not None}
    named = names_of(only, "budget(only=…)")
    if not limits:
        raise ToolcribError("budget: give a limit: calls, tokens, cost or seconds")
    if per not in get_args(Per):
        raise ToolcribError(f"budget: per is one of {', '.join(get_args(Per))}")
    if "tokens" in limits and (per == "tool" or named):
        raise ToolcribError("budget: tokens are a run's or a caller's, not a tool's")
    if per == "caller":
        return _CallerBudget(limits, named)
    return _Budget(_limits(limits, _spent_in_run(per, named), per), named)


class _BudgetLimit(NamedTuple):
    """`ahead` is what one more call certainly spends; without any, nothing may be left to spend."""

    spent: Spent
    ahead: Spent | None
    limit: float
    denial: Deny


def _number(unit: str, limit: float) -> float:
    whole = unit in ("calls", "tokens")
    kinds = int if whole else (int, float)
    if not isinstance(limit, kinds) or isinstance(limit, bool) or not 0 <= limit < math.inf:
        raise ToolcribError(f"budget: {unit} is {'a whole' if whole else 'a finite'} number from 0")
    return limit


def _one(_definition: ToolDefinition, _context: PolicyContext) -> float:
    return 1


def _price(definition: ToolDefinition, _context: PolicyContext) -> float:
    return definition.annotations.cost


_AHEAD: Mapping[str, Spent] = {"calls": _one, "cost": _price}


def _limits(
    limits: Mapping[str, float], spent: Mapping[str, Spent], per: Per
) -> list[_BudgetLimit]:
    return [
        _BudgetLimit(
            spent[unit],
            _AHEAD.get(unit),
            limit * ROUNDING if unit == "cost" else limit,
            Deny(
                f"the {per}'s budget of {limit} {_UNITS[unit]} is used up",
                "budget",
                ErrorCode.BUDGET_EXCEEDED,
            ),
        )
        for unit, limit in limits.items()
    ]


class _Budget:
    """Nothing is ever given back, so what is denied now is denied for the rest of the run."""

    __name__ = "budget"

    def __init__(self, limits: list[_BudgetLimit], named: frozenset[str]) -> None:
        self._limits = limits
        self._named = named

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or _WITHIN

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        if self._named and definition.name not in self._named:
            return None
        for spent, ahead, limit, denial in self._limits:
            so_far = spent(definition, context)
            if so_far >= limit if ahead is None else so_far + ahead(definition, context) > limit:
                return denial
        return None


def _spent_in_run(per: Per, named: frozenset[str]) -> Mapping[str, Spent]:
    """Return where a run's tally says what was spent: by the run, by the
    named tools, or by this one."""
    if per == "run" and not named:
        return {
            "calls": lambda _, context: context.run.calls,
            "tokens": lambda _, context: context.run.tokens,
            "cost": lambda _, context: context.run.cost,
            "seconds": lambda _, context: context.run.elapsed,
        }

    def of_tools(by_tool: Callable[[RunTally], Mapping[str, float]]) -> Spent:
        if per == "tool":
            return lambda tool, context: by_tool(context.run).get(tool.name, 0)
        return lambda _, context: sum(by_tool(context.run).get(tool, 0) for tool in named)

    return {
        "calls": of_tools(lambda run: run.per_tool),
        "cost": of_tools(lambda run: run.cost_per_tool),
        "seconds": of_tools(lambda run: run.seconds_per_tool),
    }


class _Account(msgspec.Struct):
    """Holds what one caller has spent. The tokens of late runs are read
    where their loops count them."""

    calls: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    runs: dict[str, RunTally] = {}

    def tokens_with(self, run: RunTally) -> int:
        """Return those of all runs, this one included whether it is known yet or not."""
        runs = list(self.runs.items())  # in one step: a run may begin in another thread
        others = (known.tokens for name, known in runs if name != run.run_id)
        return self.tokens + sum(others) + run.tokens

    def note(self, run: RunTally) -> None:
        """Note a run. A forgotten run that goes on counts again as a whole: too strict, not too lax."""
        if not run.run_id:
            return  # calls without a loop; nobody counts their tokens
        self.runs[run.run_id] = run
        if len(self.runs) > _OPEN_RUNS:
            self.tokens += self.runs.pop(next(iter(self.runs))).tokens


class _CallerBudget(_Budget):
    """Counts calls and cost when a call is about to run, seconds when it is over."""

    def __init__(self, limits: Mapping[str, float], named: frozenset[str]) -> None:
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()  # a runner may serve several loops, each in its thread
        spent: dict[str, Spent] = {
            "calls": lambda _, context: self._of(context).calls,
            "tokens": lambda _, context: self._of(context).tokens_with(context.run),
            "cost": lambda _, context: self._of(context).cost,
            "seconds": lambda _, context: self._of(context).seconds,
        }
        super().__init__(_limits(limits, spent, "caller"), named)

    def count(self, hydrated: Hydrated, context: PolicyContext) -> Deny | None:
        if self._named and hydrated.definition.name not in self._named:
            return None
        with self._lock:
            denied = self.never_allows(hydrated.definition, context)
            if denied is not None:
                return denied  # a call in another thread was first
            account = self._accounts.setdefault(context.caller.id, _Account())
            account.calls += 1
            account.cost += hydrated.definition.annotations.cost
            account.note(context.run)
            return None

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None:
        if self._named and record.name not in self._named:
            return
        with self._lock:
            account = self._accounts.setdefault(context.caller.id, _Account())
            account.seconds += record.seconds or 0.0

    def _of(self, context: PolicyContext) -> _Account:
        return self._accounts.get(context.caller.id, _NOTHING)


_NOTHING: Final = _Account()
