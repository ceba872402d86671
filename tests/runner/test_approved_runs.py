"""What was sent is what is decided, asked about, run and recorded, whoever holds the call meanwhile."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.errors import ToolcribError
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.tools import Tool
from toolcrib.values.context import RunTally
from toolcrib.values.json import JsonObject, canonical_json, fresh
from toolcrib.values.record import ToolInvocationRecord

SENT = '{"to": "ada", "items": ["a"]}'
ASKED = {"to": "ada", "items": ["a"]}


@tool(visible=ALL, requires_approval=True, name="pay")
async def pay(to: str, items: list[str]) -> dict[str, Any]:
    """Pay for items."""
    return {"to": to, "items": items}


@tool(visible=ALL, requires_approval=True, name="pay")
async def pay_on(to: str, items: list[str], day: date = date(2026, 11, 22)) -> dict[str, Any]:
    """Pay, with an argument that is converted, and not sent."""
    return {"to": to, "items": items}


@tool(visible=ALL, requires_approval=True, name="pay")
class Pay:
    """Pay, as a class."""

    def __init__(self, to: str, items: list[str]) -> None:
        self.to, self.items = to, items

    async def run(self) -> dict[str, Any]:
        return {"to": self.to, "items": self.items}


TOOLS = pytest.mark.parametrize("subject", [pay, pay_on, Pay], ids=["plain", "converted", "class"])


def change(arguments: dict[str, Any]) -> None:
    arguments["to"] = "eve"
    arguments["items"].append("b")


def vars_of(instance: Any) -> dict[str, Any]:
    """What a tool's instance holds of its arguments."""
    held: dict[str, Any] = getattr(instance, "arguments", None) or vars(instance)
    return held


def given(subject: Any) -> tuple[Catalog, Hydrated]:
    catalog = Catalog([subject])
    hydrated = hydrate(ToolCall("call_0", "pay", SENT), catalog)
    assert isinstance(hydrated, Hydrated)
    return catalog, hydrated


class Person:
    """Approves what it is shown; `then` happens before the answer."""

    def __init__(self, then: Any = lambda: None) -> None:
        self.shown: list[Any] = []
        self.then = then

    async def __call__(self, request: ApprovalRequest) -> Approve:
        self.shown.append({**request.arguments, "items": [*_items(request)]})
        self.then()
        return Approve("grace")


class Counting:
    """A policy that changes all that it is told of, in the places of `when`."""

    def __init__(self, *when: str) -> None:
        self.when, self.asked = when, 0

    def __call__(self, call: Hydrated, _context: PolicyContext) -> Allow:
        self.asked += 1
        if f"asked {self.asked}" in self.when:
            change(call.arguments)
            change(vars_of(call.tool))
        return Allow()

    def count(self, call: Hydrated, _context: PolicyContext) -> Deny | None:
        if "count" in self.when:
            change(call.arguments)
        return None

    def settle(self, record: ToolInvocationRecord, _context: PolicyContext) -> None:
        change(record.arguments or {})


class Changes:
    def approval_requested(self, request: ApprovalRequest) -> None:
        change(request.arguments)

    def progress(self, call_id: str, part: Any) -> None: ...

    def finished(self, outcome: Any) -> None:
        change(outcome.record.arguments)


class Eraser:
    """A sink that changes the record that it is given."""

    write_ahead = True

    def write(self, record: ToolInvocationRecord) -> None:
        change(record.arguments or {})


def expected(subject: Any) -> dict[str, Any]:
    """The effective arguments: with the default of what was not sent."""
    return {**ASKED, "day": "2026-11-22"} if subject is pay_on else ASKED


@TOOLS
@each_row("when", [(), ("asked 1",), ("asked 2",), ("count",)], ids=str)
async def test_changed_in_anybodys_hands(subject: Any, when: tuple[str, ...]) -> None:
    catalog, hydrated = given(subject)
    person, sink = Person(lambda: change(hydrated.arguments)), MemorySink()
    runner = ToolRunner(
        catalog, approver=person, policy=Counting(*when), sinks=[Eraser(), sink, Eraser()]
    )
    change(vars_of(hydrated.tool))
    scope = CallScope(RunTally(), observer=Changes())
    outcome = await runner.exec(hydrated, scope=scope)
    assert isinstance(outcome, Completed)
    assert person.shown == [expected(subject)]
    assert outcome.value == ASKED
    assert outcome.record.arguments == expected(subject)
    assert [record.arguments for record in sink.records] == [expected(subject)]
    assert hydrated.arguments == expected(subject)


@TOOLS
async def test_other_arguments_are_another_call(subject: Any) -> None:
    """A call that somebody put together runs nothing."""
    catalog, hydrated = given(subject)
    forged = msgspec.structs.replace(hydrated, canonical=b'{"items":["a","b"],"to":"eve"}')
    person = Person()
    outcome = await ToolRunner(catalog, approver=person).exec(forged)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.NOT_RUNNABLE
    assert "not the arguments that were decided on" in outcome.error.message


def test_what_is_no_repairer_is_refused_at_once() -> None:
    made: Tool[..., Any] = pay
    with pytest.raises(ToolcribError, match="a repairer"):
        ToolRunner([made], repairer=lambda _request: "{}")  # type: ignore[arg-type]


def _items(request: ApprovalRequest) -> list[Any]:
    items = request.arguments["items"]
    assert isinstance(items, list)
    return items


class Meddling:
    """A sink that changes what it is given."""

    def __init__(self) -> None:
        self.seen: list[JsonObject] = []

    def write(self, record: ToolInvocationRecord) -> None:
        assert isinstance(record.result, dict)
        self.seen.append(fresh(canonical_json(record.result)))
        record.result["lines"] = []
        record.result["paid"] = 0


async def test_nobody_changes_the_result_that_others_are_told() -> None:
    @tool(visible=ALL)
    async def pay(order: int) -> JsonObject:
        """Pay."""
        return {"paid": order, "lines": [1]}

    first, second = Meddling(), Meddling()
    runner = ToolRunner([pay], sinks=[first, second])
    told: JsonObject = {"paid": 7, "lines": [1]}
    call = ToolCall("1", "pay", '{"order": 7}')
    for again in range(3):
        outcome = await runner.exec(call)
        assert isinstance(outcome, Completed)
        assert outcome.replayed is (again > 0)
        views = [outcome.model, outcome.public, outcome.record.result]
        assert views == [told] * 3
        for view in views:
            assert isinstance(view, dict)
            view["paid"] = again
    assert first.seen == second.seen == [told]
