"""What a run spends: itself, and through agents that are its tools.

Rule: no run spends more than its limits, nor more than any outer run has left. An expense is
counted before it is spent, in the run itself and in each outer run, or in none of them if one does
not have enough left. Nothing is awaited in between, so agents that run together cannot share a last
allowance. What a run's reply has reserved counts as spent for the agents among its calls, before
they have begun: they get only what has not been promised to others.

When a call is only given its outcome here, what it has spent within, according to its record, is
counted here and in each outer run, once, whatever is left: the saved state of a run may lack it. A
budget of an outer run decides on a call as on its own calls: by that call's tool, for which all
calls count that were made in the run and within it. The call whose agent asks was counted once,
when it began.

The cost of a model request is known only with its reply. A request is announced while there is
money left, sent, and then paid for. A stored reply belongs to a request that was paid for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from toolcrib.agent.history import is_handle
from toolcrib.agent.inner import OuterRun
from toolcrib.clients.base import models_of
from toolcrib.errors import ClientError, ToolcribError
from toolcrib.runner import ToolRunner
from toolcrib.runner.recorder import to_the_end
from toolcrib.threads import is_stop
from toolcrib.values.call import HydrationResult, ToolCall
from toolcrib.values.context import (
    ROUNDING,
    Account,
    ModelRequest,
    PolicyContext,
    RunTally,
    StepRunner,
    replays,
    with_retries,
)
from toolcrib.values.decision import Caller
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.message import ChatRequest, LLMClient, Message, Reply, Usage
from toolcrib.values.record import Expense, SpentWithin, SuspendedCall
from toolcrib.values.run import Event, Limits, RunState, UsageReported, saved_run, spent_in
from toolcrib.values.typed import check_type

_NOTHING, _ONE_TURN = Expense(), Expense(turns=1)
MONEY: Final = "money"
"""The limit on the cost of model requests, which only a caller's budget has, not `Limits`."""


Ask: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]


class LimitReached(Exception):  # noqa: N818  an outcome; it never leaves the run
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


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
        steps: StepRunner | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._limits = limits
        self._tally = tally
        self._caller: Caller = state.caller
        self._runner = runner
        account = None if outer is None else outer.around.account
        self._outer: Account | None = None if account is None else account()
        self._tool = "" if outer is None else outer.call.tool
        self._call_id = "" if outer is None else outer.call.call_id
        self._steps = steps if outer is None else outer.around.steps
        self._own_steps = steps if outer is None else None
        self._emit = emit
        outer_policies = () if outer is None else outer.around.paying
        self._paying = tuple(
            {id(each): each for each in (*runner.paying, *outer_policies)}.values()
        )
        self._promised = _NOTHING  # the run's total including the calls that were begun
        self._suspended = dict(state.suspended)
        self._inner_usage: dict[str, Usage] = {}  # by call, for calls made since
        self.turn = state.turn
        self.usage = state.usage

    @property
    def seconds_left(self) -> float | None:
        if self._limits.seconds is None:
            return None
        return max(0.0, self._limits.seconds - self._tally.elapsed)

    def begin_turn(self) -> str | None:
        """Count a turn, or return the name of the limit that it would exceed."""
        limit = self._exceeded_limit(_ONE_TURN) or self._take_outer(_ONE_TURN, ())
        self.turn += limit is None
        return limit

    def give_turn_back(self) -> None:
        """Uncount the turn that was begun, because no model was asked in it."""
        self.turn -= 1
        if self._outer is not None:
            self._outer.give_back(_ONE_TURN)

    def begin_calls(self, calls: Sequence[HydrationResult]) -> str | None:
        """Reserve calls, which the runner counts in the run itself, or return the exceeded limit.

        `end_calls` must follow.
        """
        new_calls = [call for call in calls if call.call.id not in self._tally.begun]
        definitions = [call.definition for call in new_calls if call.definition and call.success]
        expense = Expense.of(definitions)
        limit = self._exceeded_limit(expense, resumes=len(new_calls) < len(calls))
        limit = limit or (self._take_outer(expense, definitions) if definitions else None)
        if limit is None:
            self._promised = self._tally.own_expense.plus(expense)
        return limit

    def end_calls(self) -> None:
        """Give back, in outer runs, what was counted for calls that were not made."""
        if self._outer is not None:
            self._outer.give_back(self._reserved)
        self._promised = _NOTHING

    def take(self, tool: str, spent: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        limit = self._exceeded_limit(spent)
        if limit is None:
            context = PolicyContext(self._caller, self._tally)
            limit = "budget" if self._runner.has_spent(tool, calls, context) else None
        limit = limit or self._take_outer(spent, calls)
        if limit is None:
            self._tally.count_inner(spent)
        return limit

    def give_back(self, spent: Expense) -> None:
        self._tally.count_inner(spent, -1)
        if self._outer is not None:
            self._outer.give_back(spent)

    def hold(self, call_id: str, suspended: SuspendedCall) -> None:
        """Note what a suspended call has spent so far, which is already counted."""
        self._suspended[call_id] = suspended

    def count_again(self, call_id: str, spent: SpentWithin) -> None:
        suspended = self._suspended.get(call_id)
        added = spent.beyond(SpentWithin() if suspended is None else spent_in(saved_run(suspended)))
        self.give_back(Expense().plus(added.expense, -1))
        self.use_within(call_id, added.usage)

    async def paid(
        self,
        client: LLMClient,
        ask: Ask,
        request: ChatRequest,
        cancels: int,
        who: str = "the client",
    ) -> Reply:
        """Return what a client replies to a request, if money is left for it, once it is paid for.

        `ask` asks the client, in a task with `cancels` earlier cancellation requests.
        Raises LimitReached if there is none, and what a paying policy raises. A run with steps
        waits for the store of budgets as its steps do, so that no reply is lost because the store
        is away for a while.
        """
        if not self._paying:
            return await _replied(ask, request, cancels, who)
        context = PolicyContext(self._caller, self._tally)
        model_request = ModelRequest(os.urandom(16).hex(), models_of(client))
        for policy in self._paying:
            is_allowed = await with_retries(
                self._steps, partial(policy.may_ask, model_request, context)
            )()
            if is_allowed is False:
                raise LimitReached(MONEY)
            if is_allowed is not True:  # anything else, such as a Deny, is not a yes
                raise ToolcribError(
                    f"{type(policy).__name__}.may_ask must return True or False, but returned a"
                    f" {type(is_allowed).__name__}: no request is sent"
                )
        reply = await _replied(ask, request, cancels, who)
        model = reply.model or client.model
        paid_request = msgspec.structs.replace(model_request, model=model, usage=reply.usage)
        payments = [
            with_retries(self._steps, partial(p.pay, paid_request, context)) for p in self._paying
        ]
        results = [await to_the_end(each) for each in payments]
        try:
            for each in results:
                each.check()
        except BaseException:
            self.use(reply.usage)  # it was answered, though nobody continues with it
            raise
        return reply

    def use(self, usage: Usage) -> None:
        self.usage += usage
        self._tally.tokens = self.usage.input_tokens + self.usage.output_tokens
        self._emit(UsageReported(self.usage))
        if self._outer is not None:
            self._outer.use_within(self._call_id, usage)

    def use_within(self, call_id: str, usage: Usage) -> None:
        self._inner_usage[call_id] = self._inner_usage.get(call_id, Usage()) + usage
        self.use(usage)

    def used_within(self, call_ids: Iterable[str]) -> dict[str, Usage]:
        """Return what agents that are the tools of these calls have used so far."""
        return {each: self._inner_usage[each] for each in call_ids if each in self._inner_usage}

    @property
    def _reserved(self) -> Expense:
        """What the reply's calls that have not begun will add."""
        promised = self._promised
        return promised if promised is _NOTHING else promised.plus(self._tally.own_expense, -1)

    def _exceeded_limit(self, expense: Expense, *, resumes: bool = False) -> str | None:
        limits, tally, reserved = self._limits, self._tally, self._reserved
        if replays(self._own_steps):  # these began under other limits: what is stored is spent
            return None
        if expense.turns and self.turn + tally.inner.turns + expense.turns > limits.turns:
            return "turns"
        if expense.turns and self.seconds_left == 0.0:  # a timer fires only when something waits
            return "seconds"
        calls = tally.calls + reserved.calls + expense.calls
        if (expense.calls or resumes) and limits.calls is not None and calls > limits.calls:
            return "calls"
        cost = tally.cost + reserved.cost + expense.cost
        if limits.tool_cost is not None and cost > limits.tool_cost * ROUNDING:
            return "tool_cost"
        return None

    def _take_outer(self, expense: Expense, calls: Sequence[ToolDefinition]) -> str | None:
        return None if self._outer is None else self._outer.take(self._tool, expense, calls)


# What a client returns as its reply, whoever wrote the client.
#
# Rule: no call is whole unless the reply is, and a client that returns anything but a reply has
# failed. A CancelledError raised by the client itself is such a failure: only whoever cancels the
# run's task ends the run by that.

WHOLE_FINISHES = ("tool_calls", "stop")
"""How whole replies end. A typed answer is read only from these: half a reply may be JSON, too."""


async def _replied(ask: Ask, request: ChatRequest, cancels: int, who: str) -> Reply:
    """Return the reply of a client.

    Raises what the client raises, and ClientError and TypeError for something that is not an
    assistant's reply.
    """
    try:
        reply = await ask(request)
    except asyncio.CancelledError as raised:
        if is_stop(raised, cancels):
            raise
        raise ClientError(f"{who} raised a CancelledError that nobody had asked for") from None
    check_type(f"the reply of {who}", reply, Reply, "a Reply")
    if reply.message.role != "assistant":
        raise ClientError(f"{who} gave a reply whose message is not the assistant's")
    if reply.finish in WHOLE_FINISHES or not reply.tool_calls:
        return reply
    cut_calls = tuple(msgspec.structs.replace(call, complete=False) for call in reply.tool_calls)
    message = msgspec.structs.replace(reply.message, tool_calls=cut_calls)
    return msgspec.structs.replace(reply, message=message)


# Whether a run makes progress: calls that tell its model nothing new, and tools that only fail.
#
# Rule: a call repeats another one of the run if it is the same (tool and arguments) and its result
# was the same. Calls that poll for a change are not repetitions, nor are alternating calls of which
# one says something new. All of this is read from the messages, so that a run resumed elsewhere knows
# it, too.

_CallKey: TypeAlias = tuple[str, str]  # the tool, and the arguments as JSON text


class MadeCalls:
    """Reads the calls of one run, as they are answered."""

    def __init__(self, limits: Limits, state: RunState, answer: str) -> None:
        self._limits = limits
        self._answer = answer  # a call of this tool is not a call of the run
        self._position = _first_own(state)
        self._unanswered: dict[str, _CallKey] = {}
        self._answered: set[_CallKey] = set()
        self._result_keys: set[int] = set()
        self._repeated = 0
        self._failures: dict[str, int] = {}

    def limit(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> str | None:
        """Return the limit of the run that keeps these calls from being made.

        They are the last in `messages` and have no results yet.
        """
        self._read_new(messages)
        repeated, failures = self._limits.repeated_calls, self._limits.tool_errors
        is_stuck = repeated is not None and self._repeated >= repeated
        if is_stuck and all((call.name, call.arguments) in self._answered for call in calls):
            return "repeated_calls"
        if failures is not None and any(self._failures.get(c.name, 0) >= failures for c in calls):
            return "tool_errors"
        return None

    def _read_new(self, messages: Sequence[Message]) -> None:
        for message in messages[self._position :]:
            for call in message.tool_calls:
                if call.name != self._answer:
                    self._unanswered[call.id] = (call.name, call.arguments)
            if is_handle(message):
                continue  # it is answered later
            call_key = self._unanswered.pop(message.call_id or "", None)
            if call_key is None:
                continue
            result_key, tool = hash((call_key, message.result_text, message.parts)), call_key[0]
            self._repeated = self._repeated + 1 if result_key in self._result_keys else 0
            self._result_keys.add(result_key)
            self._answered.add(call_key)
            self._failures[tool] = self._failures.get(tool, 0) + 1 if message.is_error else 0
        self._position = len(messages)


def _first_own(state: RunState) -> int:
    """Return where the messages of the run itself begin, after those of its conversation."""
    recorded = {record.id for record in state.records}
    for at, message in enumerate(state.messages):
        if any(call.id in recorded for call in message.tool_calls):
            return at
    return len(state.messages)
