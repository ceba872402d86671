"""The short way of a call about which nothing is unusual: what the long way finds out is known here.

It is open where the standard policy (no subclass of it) decides alone and lets every call of a tool
run, and where the tool needs nothing but its arguments. A call that turns out otherwise before its tool
begins is left to the long way, with nothing done yet; a tool that waits for something, or fails, goes
on there. Outcome, record and effects are the same on both.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from toolcrib.runner.attempt import Attempt, Setup
from toolcrib.runner.conclude import concluded
from toolcrib.runner.execute import begun
from toolcrib.runner.gate import Place
from toolcrib.runner.memory import key_of
from toolcrib.runner.output import outcome_of
from toolcrib.runner.recorder import Draft
from toolcrib.runner.scope import CallScope
from toolcrib.runner.standard import ALLOWED, Standard
from toolcrib.tools import Entry, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Caller
from toolcrib.values.record import Completed, Failed, Outcome


def short_way(setup: Setup, entry: Entry) -> ShortWay | None:
    """That of a tool, if there is one. Worked out once, when a runner is made."""
    tool, definition, policies = entry.tool, entry.tool.definition, setup.policies
    injected = setup.executor.injections[definition.name]
    if len(policies) != 1 or type(policies[0]) is not Standard or setup.intents.wanted:
        return None
    if not policies[0].always_allows(definition) or definition.annotations.exclusive:
        return None
    if tool.blocking or not tool.runnable or not injected.plain:
        return None
    return ShortWay(setup, entry.tool, injected.fixed)


class ShortWay:
    """Of one tool of one runner."""

    def __init__(self, setup: Setup, tool: Tool[..., Any], injected: Mapping[str, object]) -> None:
        self._setup = setup
        self._tool = tool
        self._definition = tool.definition
        self._marks = tool.definition.annotations
        self._digest = tool.definition.digest
        self._injected = injected

    def begin(
        self,
        draft: Draft,
        hydrated: Hydrated,
        caller: Caller,
        scope: CallScope | None,
        cancels: int,
    ) -> Completed | Failed | Coroutine[Any, Any, Outcome] | None:
        """The outcome, of which sinks and observer are still to be told; or what is to be awaited
        instead, and tells them. None: the way is not open to this call, and nothing was done.

        `draft` is of the call; `cancels` is what `cancel_requests` said before.
        """
        if not self._is_open(hydrated, scope):
            return None
        setup, call = self._setup, hydrated.call
        key = key_of(draft.run_id, call.id)
        if not setup.memory.try_claim(key, (self._digest, call.arguments, caller.id)):
            return None
        place = setup.gate.try_enter(False)
        if place is None:
            setup.memory.release(key)
            return None
        draft.decision, draft.key = ALLOWED, key
        try:
            if scope is not None:
                scope.tally.count(self._definition.name, self._marks.cost)
            work, value = begun(self._tool, hydrated.tool, self._injected)
            if work is None:
                outcome = outcome_of(draft, self._tool, value, setup.max_result_bytes)
        except BaseException as raised:  # noqa: BLE001  raised again where it is written down
            work = _raising(raised)
        if work is not None:
            return self._goes_on(work, draft, caller, scope, (place, cancels))
        setup.gate.leave(place)
        setup.memory.keep(key, outcome)
        if scope is not None:
            self._settle(outcome, scope.tally)
        return outcome

    def _is_open(self, hydrated: Hydrated, scope: CallScope | None) -> bool:
        if hydrated.definition is not self._definition or hydrated.provenance.repaired:
            return False
        if scope is None:
            return True
        return not scope.asked and (self._marks.read_only or not scope.tally.tainted)

    def _goes_on(
        self,
        work: Coroutine[Any, Any, Any],
        draft: Draft,
        caller: Caller,
        scope: CallScope | None,
        entered: tuple[Place, int],
    ) -> Coroutine[Any, Any, Outcome]:
        """The rest of the long way: the tool has begun, and `work` gives its value."""
        place, cancels = entered
        if scope is None:
            scope = CallScope(RunTally())
        context = PolicyContext(caller, scope.tally)
        attempt = Attempt(
            self._setup, draft, context, scope, key=draft.key, counted=True, begun=True
        )
        return concluded(attempt, attempt.rest(self._tool, work, place, cancels), cancels)

    def _settle(self, outcome: Completed | Failed, tally: RunTally) -> None:
        tally.settle(self._definition.name, outcome.record.seconds or 0.0)
        if self._marks.untrusted_output:
            tally.tainted = True


async def _raising(error: BaseException) -> Any:
    try:
        raise error
    finally:
        del error  # its traceback holds this frame
