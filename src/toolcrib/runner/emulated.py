"""Runs a stand-in in place of each tool: the one executor that starts no tool's code.

Rule: everything around a tool stays the same (policies, approvals, time limits, the check and the
views of its result), and the outside world is left alone. No capability is opened, no ledger is
asked, and nothing is taken from a store of budgets. Such a call never begins: its record has no
idempotency key, and carries the note `emulated`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeAlias

import msgspec

from toolcrib.runner.execute import awaited, called, limited
from toolcrib.runner.executor import Executor, Parts, ToolPlan, plan_of
from toolcrib.runner.stopped import Reporter
from toolcrib.tools import Catalog, Tool
from toolcrib.values.call import Hydrated
from toolcrib.values.context import CallContext
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject

StandIn: TypeAlias = Callable[[ToolDefinition, JsonObject], Any]
"""Returns the value of a call of this tool with these effective arguments.

It may also return an awaitable, or a generator of parts whose last part is the value.
"""


class EmulatingExecutor(Executor):
    """Runs `stand_in` for the tools of a catalog, except for library tools that `spares` names."""

    emulates = True

    def __init__(
        self,
        catalog: Catalog,
        timeout: float | None,
        reporter: Reporter,
        *,
        max_result_bytes: int,
        stand_in: StandIn,
        spares: Callable[[Tool[..., Any]], bool],
    ) -> None:
        super().__init__(catalog, timeout, reporter, max_result_bytes=max_result_bytes)
        self.stand_in = stand_in
        self.spares = spares
        plans = [plan_of(entry, timeout) for entry in catalog.entries]
        self.plans = {
            plan.tool.definition.name: plan
            if spares(plan.tool)
            else msgspec.structs.replace(plan, plain=False, emulated=True)
            for plan in plans
        }

    def over(self, catalog: Catalog) -> Executor:
        return EmulatingExecutor(
            catalog,
            self.timeout,
            self._reporter,
            max_result_bytes=self._max_bytes,
            stand_in=self.stand_in,
            spares=self.spares,
        )

    async def _with(
        self, context: CallContext, plan: ToolPlan, hydrated: Hydrated, instance: Any
    ) -> Any:
        if self.spares(plan.tool):
            return await super()._with(context, plan, hydrated, instance)
        definition = hydrated.definition
        parts = Parts(context.call_id, definition.visible, context.observer, self._max_bytes)
        return await limited(self._value(plan, hydrated, parts), plan.limit)

    async def _value(self, plan: ToolPlan, hydrated: Hydrated, parts: Parts) -> Any:
        made = called(lambda: self.stand_in(hydrated.definition, hydrated.arguments))
        made = await awaited(made)
        if inspect.isgenerator(made) or isinstance(made, AsyncIterator):
            return await parts.last(_each(made)) if plan.tool.streaming else await _last(made)
        return await parts.last(_each(iter([made]))) if plan.tool.streaming else made


async def _each(made: Any) -> AsyncGenerator[Any, None]:
    if isinstance(made, AsyncIterator):
        async for part in made:
            yield part
    else:
        for part in made:
            yield part


async def _last(made: Any) -> Any:
    """Return the last of the parts that a stand-in gave for a tool that does not stream."""
    last = None
    async for last in _each(made):  # noqa: B007
        pass
    return last
