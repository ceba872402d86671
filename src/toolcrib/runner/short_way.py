"""The short way of a call about which nothing is unusual: what the long way finds out is known here.

It is open where the standard policy (no subclass of it) decides alone and lets every call of a tool
run, and where the tool needs nothing but its arguments. A call that turns out otherwise before its tool
begins is left to the long way, with nothing done yet; a tool that waits for something, or fails, goes
on there. Outcome, record and effects are the same on both.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias, cast

from toolcrib.runner.attempt import Attempt, Setup
from toolcrib.runner.conclude import concluded
from toolcrib.runner.execute import begun
from toolcrib.runner.gate import Place
from toolcrib.runner.memory import key_of
from toolcrib.runner.output import check_output, views
from toolcrib.runner.recorder import Draft, measured
from toolcrib.runner.redact import all_public, own_copy, shown_arguments
from toolcrib.runner.scope import CallScope
from toolcrib.runner.standard import ALLOWED, Standard
from toolcrib.tools import Entry, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Caller
from toolcrib.values.definition import ALL
from toolcrib.values.json import JsonObject
from toolcrib.values.record import (
    CallError,
    Completed,
    Failed,
    Outcome,
    ToolInvocationRecord,
)


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
        self._gate = setup.gate
        self._memory = setup.memory
        self._max_result_bytes = setup.max_result_bytes
        self._tool = tool
        self._definition = tool.definition
        self._marks = tool.definition.annotations
        self._digest = tool.definition.digest
        self._injected = injected
        self._all_public = all_public(tool.definition)
        self._shows_all = self._definition.visible is ALL and self._definition.model_visible is ALL

    def begin(
        self, hydrated: Hydrated, caller: Caller, scope: CallScope | None, cancels: int
    ) -> Completed | Failed | Coroutine[Any, Any, Outcome] | None:
        """The outcome, of which sinks and observer are still to be told; or what is to be awaited
        instead, and tells them. None: the way is not open to this call, and nothing was done.

        `cancels` is what `cancel_requests` said before.
        """
        if hydrated.definition is not self._definition or hydrated.provenance.repaired:
            return None
        if scope is not None and not self._is_open(scope):
            return None
        call = hydrated.call
        run_id = "" if scope is None else scope.tally.run_id
        arguments = hydrated.arguments
        public = self._all_public.issuperset(arguments)
        shown = own_copy(arguments) if public else shown_arguments(self._definition, arguments)
        key = key_of(run_id, call.id) if run_id else call.id
        if not self._memory.try_claim(key, (self._digest, call.arguments, caller.id)):
            return None
        place = self._gate.try_enter(False)
        if place is None:
            self._memory.release(key)
            return None
        told = (hydrated, caller.id, run_id, key, shown, time.time(), time.perf_counter())
        try:
            if scope is not None:
                scope.tally.count(self._definition.name, self._marks.cost)
            work, value = begun(self._tool, hydrated.tool, self._injected)
            if work is None:
                outcome = self._outcome(value, told)
        except BaseException as raised:  # noqa: BLE001  raised again where it is written down
            work = _raising(raised)
        if work is not None:
            return self._goes_on(work, _draft(told), caller, scope, (place, cancels))
        self._gate.leave(place)
        self._memory.keep(key, outcome)
        if scope is not None:
            self._settle(outcome, scope.tally)
        return outcome

    def _is_open(self, scope: CallScope) -> bool:
        """Nobody was asked about calls of this run, and nothing has tainted it."""
        return not scope.asked and (self._marks.read_only or not scope.tally.tainted)

    def _outcome(self, value: Any, told: _Told) -> Completed | Failed:
        """As `outcome_of` and `Draft.record`, of a call that was not asked about, nor repaired."""
        model, error = check_output(self._tool, value, self._max_result_bytes)
        public, failed = model, error is not None
        if not (failed or self._shows_all):
            model, public, error = views(self._definition, model)
        hydrated, caller, run_id, key, shown, started_at, clock = told
        call, provenance = hydrated.call, hydrated.provenance
        size, digest = measured(hydrated)
        record = ToolInvocationRecord(  # by position: so many keywords would take most of the time
            call.id,
            call.name,
            "failed" if failed else "completed",
            started_at,
            run_id,
            caller,
            call.provider_id,
            self._digest,
            shown,
            size,
            digest,
            public,
            error,
            ALLOWED,
            None,
            provenance.validated,
            provenance.no_schema_mode,
            False,
            "",
            provenance.notes,
            provenance.validator,
            "",
            "",
            False,
            key,
            "process",
            time.time(),
            time.perf_counter() - clock,
        )
        if failed:
            return Failed(record, cast("CallError", error))
        return Completed(record, value, model, public)

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


_Told: TypeAlias = tuple[Hydrated, str, str, str, JsonObject, float, float]
"""A call, its caller, run and key, its public arguments, and when it began, by two clocks."""


def _draft(told: _Told) -> Draft:
    hydrated, caller, run_id, key, shown, started_at, clock = told
    draft = Draft(hydrated, caller, run_id, "process", started_at, clock, shown)
    draft.size, draft.sha256 = measured(hydrated)
    draft.decision, draft.key = ALLOWED, key
    return draft


async def _raising(error: BaseException) -> Any:
    try:
        raise error
    finally:
        del error  # its traceback holds this frame
