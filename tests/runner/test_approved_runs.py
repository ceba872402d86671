"""What was approved is what runs, whoever holds the call and changes it meanwhile."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

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
from toolcrib.tools import Tool
from toolcrib.values.context import RunTally
from toolcrib.values.record import ToolInvocationRecord

SENT = '{"to": "ada", "items": ["a"]}'
ASKED = {"to": "ada", "items": ["a"]}
OTHER = {"to": "eve", "items": ["a", "b"]}


@tool(visible=ALL, requires_approval=True, name="pay")
async def pay(to: str, items: list[str]) -> dict[str, Any]:
    """Pay for items."""
    return {"to": to, "items": items}


@tool(visible=ALL, requires_approval=True, name="pay")
async def pay_on(to: str, items: list[str], day: date = date(2026, 11, 22)) -> dict[str, Any]:
    """Pay, with an argument that is converted, so that the others are not shared."""
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


def given(subject: Any) -> tuple[Catalog, Hydrated]:
    catalog = Catalog([subject])
    hydrated = hydrate(ToolCall("call_0", "", "pay", SENT), catalog)
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
    """A policy that changes what it is told of, in the places of `when`."""

    def __init__(self, *when: str) -> None:
        self.when, self.asked = when, 0

    def __call__(self, call: Hydrated, _context: PolicyContext) -> Allow:
        self.asked += 1
        if f"asked {self.asked}" in self.when:
            change(call.arguments)
        return Allow()

    def count(self, call: Hydrated, _context: PolicyContext) -> Deny | None:
        if "count" in self.when:
            change(call.arguments)
        return None

    def settle(self, record: ToolInvocationRecord, _context: PolicyContext) -> None: ...


class Changes:
    def approval_requested(self, request: ApprovalRequest) -> None:
        change(request.arguments)

    def progress(self, call_id: str, part: Any) -> None: ...

    def finished(self, outcome: Any) -> None: ...


@TOOLS
async def test_changed_while_somebody_is_asked(subject: Any) -> None:
    catalog, hydrated = given(subject)
    person = Person(lambda: change(hydrated.arguments))
    outcome = await ToolRunner(catalog, approver=person).exec(hydrated)
    assert isinstance(outcome, Completed)
    assert person.shown == [ASKED]
    assert outcome.value == outcome.record.arguments == ASKED


@TOOLS
@pytest.mark.parametrize("when", ["asked 2", "count"])
async def test_changed_by_a_policy_after_the_answer(subject: Any, when: str) -> None:
    catalog, hydrated = given(subject)
    person = Person()
    runner = ToolRunner(catalog, approver=person, policy=Counting(when))
    outcome = await runner.exec(hydrated)
    assert isinstance(outcome, Completed)
    assert person.shown == [ASKED]
    assert outcome.value == outcome.record.arguments == ASKED


@TOOLS
async def test_changed_by_whoever_watches(subject: Any) -> None:
    catalog, hydrated = given(subject)
    person = Person()
    scope = CallScope(RunTally(), observer=Changes())
    outcome = await ToolRunner(catalog, approver=person).exec(hydrated, scope=scope)
    assert isinstance(outcome, Completed)
    assert person.shown == [ASKED]
    assert outcome.value == ASKED


@TOOLS
async def test_changed_before_anybody_is_asked_it_is_what_is_asked(subject: Any) -> None:
    catalog, hydrated = given(subject)
    person = Person()
    runner = ToolRunner(catalog, approver=person, policy=Counting("asked 1"))
    outcome = await runner.exec(hydrated)
    assert isinstance(outcome, Completed)
    assert person.shown == [OTHER]
    assert outcome.value == outcome.record.arguments == OTHER


@TOOLS
async def test_changed_into_what_is_not_valid_nobody_is_asked(subject: Any) -> None:
    catalog, hydrated = given(subject)
    hydrated.arguments["to"] = 7
    person = Person()
    outcome = await ToolRunner(catalog, approver=person).exec(hydrated)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert person.shown == []


def test_what_is_no_repairer_is_refused_at_once() -> None:
    made: Tool[..., Any] = pay
    with pytest.raises(ToolcribError, match="a repairer"):
        ToolRunner([made], repairer=lambda _request: "{}")  # type: ignore[arg-type]


def _items(request: ApprovalRequest) -> list[Any]:
    items = request.arguments["items"]
    assert isinstance(items, list)
    return items
