"""Ready-made policies, added to the standard one: `ToolRunner(…, policy=[…])`.

`docs/deciding.md` explains how a call is decided, and how to write your own policy.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from operator import itemgetter
from sys import float_info
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from toolcrib.clients import cost_of
from toolcrib.errors import ErrorCode, MissingExtraError, ToolcribError
from toolcrib.runner.policy import (
    CountingPolicy,
    ForeseeingPolicy,
    Policy,
    Release,
    ReservingPolicy,
    Standard,
    standard,
)
from toolcrib.values.call import Hydrated
from toolcrib.values.context import (
    ROUNDING,
    KeepsMoney,
    KeepsSpending,
    ModelRequest,
    PayingPolicy,
    Payment,
    PolicyContext,
    RunTally,
    Spend,
)
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import key_of
from toolcrib.values.message import Usage
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.typed import explains_wrong_types, got_type

__all__ = [
    "CountingPolicy",
    "ForeseeingPolicy",
    "PayingPolicy",
    "Policy",
    "ReservingPolicy",
    "Standard",
    "ask",
    "budget",
    "deny_by_default",
    "rate_limit",
    "require_roles",
    "standard",
]


# Policies that read a list of tools or roles. They store nothing and count nothing.


def _as_names(value: str | Iterable[str], option: str) -> frozenset[str]:
    """Return names as a set; a string is one name. Raises ToolcribError for anything else."""
    if isinstance(value, str):
        return frozenset([value])
    names = tuple(value) if isinstance(value, Iterable) else ()
    if not isinstance(value, Iterable) or not all(isinstance(name, str) for name in names):
        raise ToolcribError(f"{option}: names are strings")
    return frozenset(names)


def deny_by_default(*, allow: str | Iterable[str]) -> ForeseeingPolicy:
    """Deny all tools but those named."""
    return _AllowList(_as_names(allow, "deny_by_default(allow=…)"))


class _AllowList:
    __name__ = "deny_by_default"

    def __init__(self, allowed: frozenset[str]) -> None:
        self.named = allowed
        self._allows = Allow("it is on the list", self.__name__)
        self._denies = Deny("it is not on the list", self.__name__)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or self._allows

    def never_allows(self, definition: ToolDefinition, _context: PolicyContext) -> Deny | None:
        return None if definition.name in self.named else self._denies


def require_roles(*roles: str, only: str | Iterable[str] = ()) -> ForeseeingPolicy:
    """Deny callers that have none of `roles`, for all tools or those that `only` names.

    Raises ToolcribError without a role.
    """
    required_roles = _as_names(roles, "require_roles")
    tool_names = _as_names(only, "require_roles(only=…)")
    if not required_roles:
        raise ToolcribError("require_roles: name a role")
    return _Roles(roles, tool_names)


class _Roles:
    __name__ = "require_roles"

    def __init__(self, roles: tuple[str, ...], tool_names: frozenset[str]) -> None:
        self._roles = frozenset(roles)
        self.named = tool_names
        self._allows = Allow("the caller has the role, or the tool needs none", self.__name__)
        self._denies = Deny(f"it needs one of the roles {', '.join(roles)}", self.__name__)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or self._allows

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        if self.named and definition.name not in self.named:
            return None
        return self._denies if self._roles.isdisjoint(context.caller.roles) else None


def ask(*tools: str, reason: str = "somebody has to say yes to this tool") -> Policy:
    """Ask before the named tools run, whatever their authors say about them.

    Raises ToolcribError without a tool.
    """
    tool_names = _as_names(tools, "ask")
    if not tool_names:
        raise ToolcribError("ask: name a tool")
    return _Asks(tool_names, reason)


class _Asks:
    __name__ = "ask"

    def __init__(self, tool_names: frozenset[str], reason: str) -> None:
        self.named = tool_names
        self._allows = Allow("it is not on the list", self.__name__)
        self._asks = Ask(reason, self.__name__)

    def __call__(self, hydrated: Hydrated, _context: PolicyContext) -> Decision:
        return self._asks if hydrated.definition.name in self.named else self._allows


# `budget`: a limit on calls, tokens, cost or seconds: of a run, of each tool in it, or of each
# caller.
#
# What a run has spent is in its tally, and moves with the run to another process. What a caller has
# spent is kept here, in this process, or in a `store` that all processes share. An account is never
# dropped to save memory, since its caller would start from zero. A call is counted before its tool
# begins, so that calls cannot share a last allowance; if the tool never begins, the count is
# undone. A call that waited within its tool was counted when it began, in whichever process:
# resuming it (`RunTally.begun`) takes nothing from calls and cost. Money is what model requests
# cost, by prices. It keeps no call from running, but the next request from being sent.

Per: TypeAlias = Literal["run", "tool", "caller"]
Spent: TypeAlias = Callable[[ToolDefinition, PolicyContext], float]
Prices: TypeAlias = Callable[[Usage, str], Decimal | float | None]
"""Returns the cost of a request, from its usage and its model's name; None if unknown."""
_UNITS = {"calls": "calls", "tokens": "tokens", "cost": "units of cost", "seconds": "seconds"}
_WITHIN_BUDGET: Final = Allow("within the budget", "budget")


@explains_wrong_types
def budget(  # noqa: PLR0913  what may be limited, and of whom
    *,
    calls: int | None = None,
    tokens: int | None = None,
    cost: float | None = None,
    seconds: float | None = None,
    money: float | None = None,
    per: Per = "run",
    only: str | Iterable[str] = (),
    store: KeepsSpending | None = None,
    window: float | None = None,
    prices: Prices = cost_of,
) -> ForeseeingPolicy:
    """Deny, as `budget_exceeded`, calls that would go over one of the limits.

    `per="run"` counts what a run spends, `"tool"` what each tool spends within a run, `"caller"`
    what each caller spends in all runs of this process; `only` restricts counting and limits to the
    calls of the tools that it names. `cost` is in the unit of the tools' annotations; `tokens` are
    those of the model's replies, in and out. `seconds` are counted since a run began; for tools and
    callers, they are those of finished calls, so that calls which run together can go over the
    limit.

    With a `store` (`SpendStore(url)`), calls and cost of callers are counted across all processes
    that use it, in the last `window` seconds, or ever. `money` is the cost of the model requests
    that an agent makes for the caller: a run without money left sends no further request, and ends
    as `limited`. `prices` returns the cost of a request from its usage and model, in US dollars if
    it is `cost_of`, and None if unknown: then nothing is sent, and ToolcribError is raised.

    Raises ToolcribError for tokens of tools, for a limit that is not a number from 0, without any
    limit, and for a limit that a store does not count; MissingExtraError for money without prices
    or the extra of that name.
    """
    requested = {"calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds, "money": money}
    limits = {
        unit: _checked_limit(unit, limit) for unit, limit in requested.items() if limit is not None
    }
    tool_names = _as_names(only, "budget(only=…)")
    if not limits:
        raise ToolcribError("budget: give a limit: calls, tokens, cost, seconds or money")
    if per not in get_args(Per):
        raise ToolcribError(f"budget: per is one of {', '.join(get_args(Per))}")
    if "tokens" in limits and (per == "tool" or tool_names):
        raise ToolcribError(
            "budget: tokens= counts those of a run or a caller, not those of a tool"
        )
    if "money" in limits and (per != "caller" or tool_names or store is None):
        raise ToolcribError(
            "budget: money= counts what the models of a caller cost: give per='caller' and "
            "store=SpendStore(url), and leave out only="
        )
    if store is not None:
        window = _checked_window(limits, per, window)
        if "money" in limits:
            return _MoneyBudget(limits, store, window, prices)
        return _StoredBudget(limits, tool_names, store, window)
    if window is not None:
        raise ToolcribError(
            "budget: window= needs store=: without a store, all calls of a process count"
        )
    if per == "caller":
        return (_TokenBudget if "tokens" in limits else _CallerBudget)(limits, tool_names)
    return _Budget(_limits(limits, _spent_in_run(per, tool_names), per), tool_names)


class _BudgetLimit(NamedTuple):
    """A limit; `next_call` is what one more call certainly spends, None if that is unknown.

    Without it, a call is denied once nothing is left.
    """

    spent: Spent
    next_call: Spent | None
    limit: float
    denial: Deny


def _checked_limit(unit: str, limit: float) -> float:
    is_whole = unit in ("calls", "tokens")
    kinds = int if is_whole else (int, float)
    if not isinstance(limit, kinds) or isinstance(limit, bool) or not 0 <= limit <= float_info.max:
        kind = "a whole" if is_whole else "a finite"
        raise ToolcribError(f"budget: {unit} is {kind} number from 0 that a float can hold")
    return limit


_NEXT_CALL_SPENDS: Mapping[str, Spent] = {
    "calls": lambda _definition, _context: 1,
    "cost": lambda definition, _context: definition.annotations.cost,
}


def _limits(
    limits: Mapping[str, float], spent: Mapping[str, Spent], per: Per
) -> list[_BudgetLimit]:
    return [
        _BudgetLimit(
            spent[unit],
            _NEXT_CALL_SPENDS.get(unit),
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
    """A budget of a run: what it denies now it denies for the rest of the run.

    What ran is never given back. What was counted for a call that then did not begin is; until
    then, that call holds what may be the last allowance.
    """

    __name__ = "budget"

    def __init__(self, limits: list[_BudgetLimit], tool_names: frozenset[str]) -> None:
        self._limits = limits
        self.named = tool_names

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        return self.never_allows(hydrated.definition, context) or _WITHIN_BUDGET

    def never_allows(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        return self._denied(definition, context, self._limits)

    def _denied(
        self, definition: ToolDefinition, context: PolicyContext, limits: list[_BudgetLimit]
    ) -> Deny | None:
        if self.named and definition.name not in self.named:
            return None
        for spent, next_call, limit, denial in limits:
            so_far = spent(definition, context)
            if (
                so_far >= limit
                if next_call is None
                else so_far + next_call(definition, context) > limit
            ):
                return denial
        return None


def _spent_in_run(per: Per, tool_names: frozenset[str]) -> Mapping[str, Spent]:
    """Return how a run's tally says what was spent: by the run, the named tools, or this tool."""
    if per == "run" and not tool_names:
        return {
            "calls": lambda _, context: context.run.calls,
            "tokens": lambda _, context: context.run.tokens,
            "cost": lambda _, context: context.run.cost,
            "seconds": lambda _, context: context.run.elapsed,
        }

    def of_tools(spent: Callable[[RunTally, str], float]) -> Spent:
        if per == "tool":
            return lambda tool, context: spent(context.run, tool.name)
        return lambda _, context: sum(spent(context.run, tool) for tool in tool_names)

    return {
        "calls": of_tools(lambda run, tool: _spent_on(tool, run.per_tool, run.inner.per_tool)),
        "cost": of_tools(
            lambda run, tool: _spent_on(tool, run.cost_per_tool, run.inner.cost_per_tool)
        ),
        "seconds": of_tools(lambda run, tool: run.seconds_per_tool.get(tool, 0.0)),
    }


def _spent_on(tool: str, *spent: Mapping[str, float]) -> float:
    """Return what was spent on a tool, by the run itself and within it."""
    return sum(amounts.get(tool, 0) for amounts in spent)


class _Account(msgspec.Struct):
    calls: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    tokens: int = 0


class _CallerBudget(_Budget):
    """Counts calls and cost when a call is about to run, seconds when it is over."""

    def __init__(self, limits: Mapping[str, float], tool_names: frozenset[str]) -> None:
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()  # a runner may serve several loops, each in its own thread
        spent: dict[str, Spent] = {
            "calls": lambda _, context: self._account_of(context).calls,
            "tokens": lambda _, context: self._account_of(context).tokens,
            "cost": lambda _, context: self._account_of(context).cost,
            "seconds": lambda _, context: self._account_of(context).seconds,
        }
        super().__init__(_limits(limits, spent, "caller"), tool_names)
        self._known_only_afterwards = [limit for limit in self._limits if limit.next_call is None]

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        limits = (
            self._known_only_afterwards if hydrated.call.id in context.run.begun else self._limits
        )
        return self._denied(hydrated.definition, context, limits) or _WITHIN_BUDGET

    def count(self, hydrated: Hydrated, context: PolicyContext) -> Deny | None:
        if self.named and hydrated.definition.name not in self.named:
            return None
        with self._lock:
            is_resumed = hydrated.call.id in context.run.begun
            denied = None if is_resumed else self.never_allows(hydrated.definition, context)
            if denied is not None:
                return denied  # a call in another thread was first
            account = self._accounts.setdefault(context.caller.id, _Account())
            if not is_resumed:
                account.calls += 1
                account.cost += hydrated.definition.annotations.cost
            return None

    def give_back(self, hydrated: Hydrated, context: PolicyContext) -> None:
        is_other_tool = self.named and hydrated.definition.name not in self.named
        if is_other_tool or hydrated.call.id in context.run.begun:
            return
        with self._lock:
            account = self._accounts[context.caller.id]
            account.calls -= 1
            account.cost -= hydrated.definition.annotations.cost

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None:
        if self.named and record.name not in self.named:
            return
        with self._lock:
            account = self._accounts.setdefault(context.caller.id, _Account())
            account.seconds += record.seconds or 0.0

    def _account_of(self, context: PolicyContext) -> _Account:
        return self._accounts.get(context.caller.id, _NOTHING)


_NOTHING: Final = _Account()


class _TokenBudget(_CallerBudget):
    """Counts tokens as well: each answered model request once, also of agents that are tools.

    They are counted whether the run makes calls or not. It keeps no request from being sent.
    """

    async def may_ask(self, _request: ModelRequest, _context: PolicyContext) -> bool:
        return True

    async def pay(self, request: ModelRequest, context: PolicyContext) -> None:
        with self._lock:
            account = self._accounts.setdefault(context.caller.id, _Account())
            account.tokens += request.usage.input_tokens + request.usage.output_tokens


def _checked_window(limits: Mapping[str, float], per: Per, window: float | None) -> float:
    """Return the seconds in which calls count. Raises ToolcribError for what no store counts."""
    if per != "caller" or not limits.keys() <= {*_NEXT_CALL_SPENDS, "money"}:
        raise ToolcribError(
            "budget: store= counts only calls, cost and money, and needs per='caller'"
        )
    is_invalid = not isinstance(window, (int, float, NoneType)) or isinstance(window, bool)
    if is_invalid or (window is not None and not 0 < window <= float_info.max):
        raise ToolcribError("budget: window is a number of seconds above 0 that a float can hold")
    return math.inf if window is None else window


class _StoredBudget(_Budget):
    """Denies a call that alone exceeds a limit; its store checks the rest when a call begins."""

    def __init__(
        self,
        limits: Mapping[str, float],
        tool_names: frozenset[str],
        store: KeepsSpending,
        window: float,
    ) -> None:
        if isinstance(store, type) or not isinstance(store, KeepsSpending):
            raise ToolcribError(
                f"budget: store= must be a SpendStore, such as SpendStore(url); {got_type(store)}"
            )
        spent: dict[str, Spent] = dict.fromkeys(_NEXT_CALL_SPENDS, lambda _definition, _context: 0)
        super().__init__(_limits(limits, spent, "caller"), tool_names)
        self._limit_by_unit = dict(zip(limits, self._limits, strict=True))
        self._tools = sorted(tool_names)
        self._store = store
        self._window = window

    async def reserve(self, hydrated: Hydrated, context: PolicyContext) -> Deny | Release | None:
        definition, call_id, run = hydrated.definition, hydrated.call.id, context.run
        is_other_tool = self.named and definition.name not in self.named
        if not self._limit_by_unit or is_other_tool or call_id in run.begun:
            return None
        # outside of a run nobody knows whether a call of the same id is the same call
        key = key_of(run.run_id, call_id) if run.run_id else os.urandom(16).hex()
        spend = Spend(context.caller.id, key, definition.name, definition.annotations.cost)
        limits = {unit: limit.limit for unit, limit in self._limit_by_unit.items()}
        exceeded = await self._store.take(spend, limits, only=self._tools, window=self._window)
        return (
            partial(self._store.give_back, spend)
            if exceeded is None
            else self._limit_by_unit[exceeded].denial
        )


class _MoneyBudget(_StoredBudget):
    """Lets a model be asked while money is left; the reply determines the cost of a request.

    Its limits on calls and cost work as in a `_StoredBudget`.
    """

    def __init__(
        self, limits: Mapping[str, float], store: KeepsSpending, window: float, prices: Prices
    ) -> None:
        if not isinstance(store, KeepsMoney):
            methods = "`take`, `give_back`, `begin_request` and `pay`"
            raise ToolcribError(f"budget: this store= keeps no money: it needs {methods}")
        call_limits = {unit: limit for unit, limit in limits.items() if unit != "money"}
        super().__init__(call_limits, frozenset(), store, window)
        self._money_store = store
        self._unpaid: dict[str, Payment] = {}  # by request: what the store has not accepted yet
        self._money = limits["money"]
        self._prices = prices
        if prices is cost_of:
            cost_of(_MINIMAL_USAGE, "")  # raises now if the extra is missing
        if not callable(prices):
            raise ToolcribError(
                f"budget: prices= must be a function of usage and model; {got_type(prices)}"
            )

    async def may_ask(self, request: ModelRequest, context: PolicyContext) -> bool:
        for model in request.models:
            if self._price(_MINIMAL_USAGE, model) is None:
                raise ToolcribError(
                    f"budget: it is not known what the model {model!r} costs, so it is not asked:"
                    " return it from budget(money=…, prices=lambda usage, model: …)"
                )
        caller = context.caller.id
        for payment in list(self._unpaid.values()):
            if payment.caller == caller:
                await self._pay(payment)
        begin = self._money_store.begin_request
        return await begin(caller, request.id, self._money, window=self._window)

    async def pay(self, request: ModelRequest, context: PolicyContext) -> None:
        """Count what a request has cost.

        If the model that answered has an unknown price and another name than was asked for, count
        the most that it can have cost.
        """
        money = self._price(request.usage, request.model)
        if money is None:
            costs = (self._price(request.usage, model) for model in request.models)
            money = max((cost for cost in costs if cost is not None), default=None)
        if money is None:
            raise ToolcribError(
                f"budget: prices= gives no price for what the model {request.model!r} has used, though"
                " it gave one before: that request is not counted"
            )
        await self._pay(Payment(context.caller.id, request.id, money))

    async def _pay(self, payment: Payment) -> None:
        """Pay; what the store does not accept is owed, and paid before the next request."""
        try:
            await self._money_store.pay(payment, window=self._window)
        except BaseException:
            self._unpaid[payment.request] = payment
            raise
        self._unpaid.pop(payment.request, None)

    def _price(self, usage: Usage, model: str) -> float | None:
        price: Any = self._prices(usage, model)
        if price is None:
            return None
        is_number = isinstance(price, int | float | Decimal) and not isinstance(price, bool)
        try:
            amount = float(price) if is_number else math.nan
        except (ValueError, OverflowError):  # for a signalling NaN, or an integer beyond all floats
            amount = math.nan
        if not 0 <= amount < math.inf:
            raise ToolcribError("budget: prices= must return an amount of money from 0, or None")
        return amount


_MINIMAL_USAGE: Final = Usage(1, 1, 1)  # a request's usage, to ask whether it has a price


# `rate_limit`: a limit on calls in any stretch of time, by the library `limits`, an extra.
#
# The notation is the library's. Calls are counted here: the library's own memory storage starts a
# thread at a call and goes through all keys it ever saw (10,000 callers took half a core).

RatePer: TypeAlias = Literal["all", "tool", "caller", "run"]
_RunAndCall: TypeAlias = tuple[str, str]
_WITHIN_RATE: Final = Allow("within the rate limit", "rate_limit")


@explains_wrong_types
def rate_limit(
    limit: str, *, per: RatePer = "caller", only: str | Iterable[str] = ()
) -> CountingPolicy:
    """Deny, as `rate_limited`, a call that would be one too many.

    `"5/minute"` or `"100 per 2 hours"`: no more than that in any period of that length, per caller,
    per tool, per run, or in total; denied calls do not count. `only` restricts counting and limits
    to the calls of the tools that it names. The limit holds in this process. Raises ToolcribError
    for an invalid limit, or more than one, and MissingExtraError without the extra `limits`.
    """
    if per not in get_args(RatePer):
        raise ToolcribError(f"rate_limit: per is one of {', '.join(get_args(RatePer))}")
    return _RateLimit(limit, per, _as_names(only, "rate_limit(only=…)"))


class _RateLimit:
    __name__ = "rate_limit"

    def __init__(self, limit: str, per: RatePer, tool_names: frozenset[str]) -> None:
        calls, seconds = _read_limit(limit)
        self._windows = _Windows(calls, seconds)
        self._per = per
        self.named = tool_names
        text = f"the limit of {calls} calls in {seconds} seconds"
        per_whom = "" if per == "all" else f" a {per}"
        self._denial = Deny(f"{text}{per_whom} is reached", "rate_limit", ErrorCode.RATE_LIMITED)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        if not self._is_counted(hydrated, context):
            return _WITHIN_RATE
        is_free = self._windows.has_room(self._key(hydrated, context))
        return _WITHIN_RATE if is_free else self._denial

    def count(self, hydrated: Hydrated, context: PolicyContext) -> Deny | None:
        if not self._is_counted(hydrated, context):
            return None
        call = context.run.run_id, hydrated.call.id
        return None if self._windows.take(self._key(hydrated, context), call) else self._denial

    def give_back(self, hydrated: Hydrated, context: PolicyContext) -> None:
        if self._is_counted(hydrated, context):
            call = context.run.run_id, hydrated.call.id
            self._windows.give_back(self._key(hydrated, context), call)

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None:
        """Do nothing: a call counts when it begins."""

    def _is_counted(self, hydrated: Hydrated, context: PolicyContext) -> bool:
        """Return whether the call is of a limited tool and is not being resumed."""
        is_named = not self.named or hydrated.definition.name in self.named
        return is_named and hydrated.call.id not in context.run.begun

    def _key(self, hydrated: Hydrated, context: PolicyContext) -> str:
        match self._per:
            case "all":
                return ""
            case "tool":
                return hydrated.definition.name
            case "caller":
                return context.caller.id
            case "run":
                return context.run.run_id


class _Windows:
    """The times of each key's last calls, oldest first.

    Keys whose calls have all left the window are forgotten at the next call of any key, so nothing
    is stored beyond the calls of one window. Seconds are on the monotonic clock.
    """

    def __init__(self, max_calls: int, seconds: int) -> None:
        self._max_calls = max_calls
        self._seconds = seconds
        # the most recently called key is last
        self._calls: dict[str, list[tuple[float, _RunAndCall]]] = {}
        self._lock = threading.Lock()  # a runner may serve several loops, each in its own thread

    def has_room(self, key: str) -> bool:
        with self._lock:
            calls = self._calls.get(key, [])
            expired_count = bisect_right(calls, time.monotonic() - self._seconds, key=itemgetter(0))
            return len(calls) - expired_count < self._max_calls

    def take(self, key: str, call: _RunAndCall) -> bool:
        """Count a call, if there is room for it."""
        with self._lock:
            now = time.monotonic()
            calls = self._calls.get(key, [])
            del calls[: bisect_right(calls, now - self._seconds, key=itemgetter(0))]
            if len(calls) >= self._max_calls:
                return False
            calls.append((now, call))
            self._calls.pop(key, None)
            self._calls[key] = calls
            while self._calls[oldest := next(iter(self._calls))][-1][0] <= now - self._seconds:
                del self._calls[oldest]
            return True

    def give_back(self, key: str, call: _RunAndCall) -> None:
        """Forget a call that did not begin.

        If two look alike, the older one is removed: the other stays longer, so that there is never
        one call too many.
        """
        with self._lock:
            calls = self._calls.get(key, [])
            position = next(
                (index for index, (_, counted_call) in enumerate(calls) if counted_call == call),
                None,
            )
            if position is not None:
                del calls[position]
                if not calls:
                    del self._calls[key]


_PERIOD_OF_ZERO = re.compile(r"(?:/|per)\s*0+(?!\d)", re.IGNORECASE)  # `limits` reads a 1 there


def _read_limit(limit: str) -> tuple[int, int]:
    """Return how many calls a limit allows, in how many seconds."""
    try:
        from limits import parse_many
    except ImportError:
        raise MissingExtraError("limits", "rate_limit") from None
    try:
        items = [] if _PERIOD_OF_ZERO.search(str(limit)) else parse_many(limit)
    except ValueError:
        items = []
    if not items:
        raise ToolcribError('rate_limit: write a limit like "5/minute", "100 per 2 hours"')
    if len(items) != 1:
        raise ToolcribError("rate_limit: give one limit; for a second one, add a second policy")
    return items[0].amount, items[0].get_expiry()
