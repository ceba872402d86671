"""What an agent would do next: one reply of its model, its calls hydrated and decided, none run.

Rule: nothing happens except that the model is asked, and perhaps a repairer. Nobody is asked for an
approval, no budget is spent except a caller's budget of tokens or money, by the request, and the
sinks get records of calls that were planned, or rejected.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from toolcrib.agent.handover import once, over_limit
from toolcrib.agent.loop import Run, permitted
from toolcrib.agent.spending import LimitReached
from toolcrib.values.call import HydrationResult
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Decision
from toolcrib.values.json import JsonObject, Veiled
from toolcrib.values.message import ChatRequest, FinishReason, Plan, Reply, Usage


class PlannedCall(Veiled, msgspec.Struct, frozen=True):
    """A call that the model wants to make, and what the policies say of it.

    `decision` is None for a call that could not run whoever allowed it; `call.errors` says why.
    """

    veiled: ClassVar[tuple[str, ...]] = ("call",)

    call: HydrationResult
    decision: Decision | None

    @property
    def name(self) -> str:
        return self.call.call.name

    @property
    def arguments(self) -> JsonObject | None:
        """The effective arguments, as the tool would get them; None if the call was rejected."""
        return self.call.arguments if self.call.success else None


class RunPlan(Veiled, msgspec.Struct, frozen=True):
    """What an agent would do next: the model's `text`, and its `calls`, of which none has run.

    `limit` names the limit of the agent that would keep all of them from running. If it is `money`,
    the caller has none left and the model was not asked.
    """

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    calls: tuple[PlannedCall, ...]
    usage: Usage
    finish: FinishReason
    limit: str | None = None


class Planning(Run):
    """A run that takes the first half of its first turn: it never drives a call."""

    _sent: ChatRequest

    async def plan(self) -> RunPlan:
        """Return what the model wants. Raises ClientError, ContextError, and what a sink raises."""
        self._begin()
        context = PolicyContext(self._caller, self._tally)
        try:
            await self._take_instructions()
            self._toolbox = await self._open_toolbox(context)
            limit = self._spending.begin_turn()
            try:
                reply = await self._ask()
            except LimitReached as reached:  # no money is left to ask
                return RunPlan("", (), self._spending.usage, "incomplete", reached.name)
            if self._spending.seconds_left == 0.0:  # a run would have ended by now
                limit = limit or "seconds"
            offer = permitted(self._toolbox.offer(reply.offer, reply.tool_calls), self._choice)
            typed = self._terms.output
            answers = [] if typed is None else typed.calls_in(reply)
            asked = [call for call in reply.tool_calls if call not in answers]
            calls = once(await self._hydrated(asked, offer), self._terms.heirs)
        finally:
            self._close()
        limit = limit or over_limit(
            self._terms.limits, self._saved.speakers, calls, self._terms.heirs
        )
        limit = limit or self._spending.begin_calls(calls)
        decided = await self._runner.foreseen(calls, context)
        await self._runner.record_plan(Plan(calls, reply, self._sent), caller=self._caller)
        planned = tuple(map(PlannedCall, calls, decided))
        text = reply.text if typed is None else typed.text_of(reply) or reply.text
        return RunPlan(text, planned, self._spending.usage, reply.finish, limit)

    async def _replied(self, request: ChatRequest) -> Reply:
        self._sent = request
        return await super()._replied(request)
