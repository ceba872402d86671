"""The life of a call is a table: which steps it may take, and what its end changes in each state."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, get_args

import pytest

from toolcrib import (
    ALL,
    Catalog,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    ToolCall,
    ToolError,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.policies import deny_by_default
from toolcrib.runner import CallScope, call
from toolcrib.tools import Tool
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Decision
from toolcrib.values.record import Completed, ToolInvocationRecord

RAN: list[str] = []


def test_each_state_but_the_last_may_end_and_says_what_that_changes() -> None:
    states = set(get_args(call.State))
    assert set(call.NEXT) == states
    assert set(call.ENDS) == states - {"ended"}
    assert call.NEXT["ended"] == {"end late": "late"}  # of a tool that was left behind
    assert all(call.NEXT[state]["end"] == "ended" for state in call.ENDS)


def test_each_state_and_each_event_is_reached_from_the_first() -> None:
    reached, events, stack = {"arrived"}, set[str](), ["arrived"]
    while stack:
        for event, state in call.NEXT[stack.pop()].items():  # type: ignore[index]
            events.add(event)
            if state not in reached:
                reached.add(state)
                stack.append(state)
    assert (reached, events) == (set(get_args(call.State)), set(get_args(call.Event)))


def test_the_text_on_top_says_what_the_table_does() -> None:
    rows = {
        cells[1].strip(): cells
        for line in (call.__doc__ or "").splitlines()
        if (cells := line.split("|"))[0] == "" and len(cells) == 6
    }
    for state, end in call.ENDS.items():
        assert rows[state][3].strip().startswith(end.key)
        counts = {"nothing": "no", "undone": "undone", "kept": "kept", "settled": "yes"}[end.counts]
        assert rows[state][4].strip() == counts


class Counts:
    """A policy that counts, and refuses in the end where it is told to."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses, self.open = refuses, 0

    def __call__(self, _hydrated: Hydrated, _context: PolicyContext) -> Decision | None:
        return deny_by_default(allow="f")(_hydrated, _context)

    def count(self, _hydrated: Hydrated, _context: PolicyContext) -> Deny | None:
        if self.refuses:
            return Deny("no more")
        self.open += 1
        return None

    def settle(self, _record: ToolInvocationRecord, _context: PolicyContext) -> None:
        self.open -= 1


@tool(visible=ALL, untrusted_output=True, read_only=True)
async def f(how: str) -> str:
    """Run."""
    RAN.append(how)
    if how == "fails":
        raise ToolError("it failed")
    return how


@pytest.mark.parametrize("state", ["arrived", "claimed", "begun", "begun, failing"])
async def test_the_end_of_a_call_changes_what_its_state_says(state: str) -> None:
    """Its key runs again unless its tool was started; what was counted is settled; what ran taints."""
    RAN.clear()
    policy = Counts(refuses=state == "claimed")
    runner = ToolRunner([f], policy=policy)  # type: ignore[arg-type]
    tally = RunTally("run")
    scope = CallScope(tally)
    how = {"arrived": "1", "begun, failing": '"fails"'}.get(state, '"works"')
    asked = ToolCall("c", "f", f'{{"how": {how}}}')
    outcome = await runner.exec(asked, scope=scope)
    end = call.ENDS["begun" if state.startswith("begun") else state]  # type: ignore[index]
    assert isinstance(outcome, Completed if state == "begun" else Failed)
    assert tally.calls == int(end.counts == "settled")
    assert tally.tainted is end.taints
    assert policy.open == 0
    policy.refuses = False
    again = await runner.exec(asked, scope=scope)
    assert getattr(again, "replayed", False) is (end.key == "kept")
    assert len(RAN) == (0 if state == "arrived" else 1)
    if isinstance(again, Failed):
        assert again.error.code is not ErrorCode.DUPLICATE_CALL


async def test_a_call_whose_event_loop_is_gone_has_its_end() -> None:
    """Nothing can be awaited any more; what counts is settled, and its tool does not run again."""

    @tool(visible=ALL, untrusted_output=True)
    async def f(how: str) -> None:
        """Never end."""
        RAN.append(how)
        await asyncio.Event().wait()

    RAN.clear()
    policy, tally = Counts(refuses=False), RunTally("run")
    runner, scope = ToolRunner([f], policy=policy), CallScope(tally)  # type: ignore[arg-type]
    asked = ToolCall("c", "f", '{"how": "begins"}')
    running = runner.exec(asked, scope=scope)
    Context().run(running.send, None)
    assert (RAN, policy.open) == (["begins"], 1)
    running.close()
    assert (policy.open, tally.tainted) == (0, True)
    again = await runner.exec(asked, scope=scope)
    assert isinstance(again, Failed)
    assert (again.error.code, again.replayed) == (ErrorCode.CANCELLED, True)
    assert RAN == ["begins"]


async def test_a_call_of_an_equal_tool_runs() -> None:
    """As it is where a program is started anew: what a tool says decides, not which object it is."""

    def made() -> Tool[..., Any]:
        @tool(visible=ALL)
        async def f(how: str) -> str:
            """Run."""
            return how

        return f

    hydrated = hydrate(ToolCall("c", "f", '{"how": "works"}'), Catalog([made()]))
    assert isinstance(hydrated, Hydrated)
    assert isinstance(await ToolRunner([made()]).exec(hydrated), Completed)
