"""The short way of a call about which nothing is unusual: what the long way finds out is known here.

It is open where the standard policy decides alone and lets every call of a tool run, and where the
tool needs nothing but its arguments. A call that turns out otherwise before its tool begins is left to
the long way, with nothing done yet; a tool that waits for something, or fails, goes on there. Outcome,
record and effects are the same on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import CoroutineType
from typing import Any

from toolcrib.runner.attempt import Attempt, Setup
from toolcrib.runner.conclude import concluded
from toolcrib.runner.execute import awaited, exit_of_its_own, resumed
from toolcrib.runner.gate import Place
from toolcrib.runner.memory import Print, key_of
from toolcrib.runner.output import completed
from toolcrib.runner.recorder import Draft
from toolcrib.runner.scope import CallScope
from toolcrib.runner.standard import ALLOWED, Standard
from toolcrib.runner.stopped import Stopped
from toolcrib.tools import Entry, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Caller
from toolcrib.values.record import Completed, Outcome


def short_way(setup: Setup, entry: Entry) -> ShortWay | None:
    """That of a tool, if there is one. Worked out once, when a runner is made."""
    tool, definition, policies = entry.tool, entry.tool.definition, setup.policies
    injected = setup.executor.injections[definition.name]
    if len(policies) != 1 or not isinstance(policies[0], Standard) or setup.intents.wanted:
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
        self, hydrated: Hydrated, caller: Caller, scope: CallScope | None, fresh: bool
    ) -> Completed | Coroutine[Any, Any, Outcome] | None:
        """The outcome, of which sinks and observer are still to be told; or what is to be awaited
        instead, and tells them. None: the way is not open to this call, and nothing was done.

        `fresh`: nobody but the runner has had the call since it was hydrated.
        """
        setup, call, run_id = self._setup, hydrated.call, ""
        if hydrated.definition is not self._definition or hydrated.provenance.repaired:
            return None
        if scope is not None:
            run_id = scope.tally.run_id
            if scope.asked or (scope.tally.tainted and not self._marks.read_only):
                return None
        draft = Draft.of(hydrated, caller.id, run_id, "process", fresh)
        draft.decision = ALLOWED
        key = draft.key = key_of(run_id, call.id)
        place = self._entered(key, (self._digest, call.arguments, caller.id))
        if place is None:
            return None
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        if scope is not None:
            scope.tally.count(self._definition.name, self._marks.cost)
        work, value = self._begun(hydrated)
        if work is None and (task is None or task.cancelling() == cancels):
            try:
                outcome = completed(draft, self._tool, value, setup.max_result_bytes)
            except Stopped:
                pass  # the long way says what is wrong with the value
            else:
                setup.gate.leave(place)
                setup.memory.keep(key, outcome)
                if scope is not None:
                    self._settle(outcome, scope.tally)
                return outcome
        return self._goes_on(work or _given(value), draft, caller, scope, (place, cancels))

    def _entered(self, key: str, print_: Print) -> Place | None:
        """The call's place, if its key is new and nobody has to be waited for."""
        setup = self._setup
        if not setup.memory.try_claim(key, print_):
            return None
        place = setup.gate.try_enter(False)
        if place is None:
            setup.memory.release(key)
        return place

    def _begun(self, hydrated: Hydrated) -> tuple[Coroutine[Any, Any, Any] | None, Any]:
        """What has to be awaited for the tool's value; or nothing, and the value."""
        try:
            started = self._tool.invoke(hydrated.tool, self._injected)
            if started.__class__ is not CoroutineType:
                return awaited(started), None
            try:
                return resumed(started, started.send(None)), None
            except StopIteration as finished:
                return None, finished.value
            except GeneratorExit:
                raise exit_of_its_own() from None
        except BaseException as raised:  # noqa: BLE001  it is raised where the long way hears of it
            return _raising(raised), None

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

    def _settle(self, outcome: Completed, tally: RunTally) -> None:
        tally.settle(self._definition.name, outcome.record.seconds or 0.0)
        if self._marks.untrusted_output:
            tally.tainted = True


async def _given(value: Any) -> Any:
    return value


async def _raising(error: BaseException) -> Any:
    raise error
