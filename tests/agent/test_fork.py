"""Going back: a fork is a run of its own, and repeats no effect of the first run unasked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Ask,
    Caller,
    Limits,
    Refuse,
    RunResult,
    RunState,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import ApprovalError, ConnectionFailed, SourceError, ToolcribError
from toolcrib.policies import budget
from toolcrib.testing import MemorySink, ScriptedClient, call, raw_call

KEY = b"a key of thirty-two random bytes"
RAN: list[Any] = []


@tool(visible=ALL, cost=2.0)
async def refund(order: int, reason: str = "none") -> str:
    """Refund an order."""
    RAN.append((order, reason))
    return f"refunded {order}"


@tool(visible=ALL, read_only=True, cost=1.0)
async def look(order: int) -> str:
    """Look an order up."""
    RAN.append(order)
    return "it is there"


@tool(visible=ALL, read_only=True, untrusted_output=True)
async def fetch() -> str:
    """Fetch a page."""
    return "a page"


def _now() -> datetime:
    return datetime.now(UTC)


@tool(visible=ALL, name="send")
@dataclass
class Send:
    """Send a letter."""

    to: str
    at: datetime = field(default_factory=_now)

    async def run(self) -> str:
        RAN.append(self.to)
        return "sent"


@tool(visible=ALL)
async def pay(amount: int, account: SecretStr) -> str:
    """Pay somebody."""
    RAN.append(amount)
    return "paid"


@dataclass
class Sub:
    key: str = field(default_factory=lambda: str(uuid4()))


@dataclass
class Meta:
    note: str = ""
    sub: Sub = field(default_factory=Sub)


@tool(visible=ALL)
async def book(order: int, meta: Meta = Meta(), other: Meta | None = None) -> str:  # noqa: B008
    """Book an order."""
    RAN.append((order, meta.note))
    return "booked"


TOOLS = (refund, look, fetch, Send, pay, book)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def agent(*turns: Any, key: bytes | None = None, **options: Any) -> Agent:
    runner = options.pop("runner", None) or ToolRunner(TOOLS, **options.pop("of_runner", {}))
    return Agent(ScriptedClient(turns), runner, state_key=key, **options)


async def ended(*turns: Any, **options: Any) -> RunResult:
    result = await agent(*turns, **options).run("Refund order 7.")
    RAN.clear()
    return result


@each_row(
    ("first", "again"),
    [
        (call("refund", order=7), call("refund", order=7)),
        (call("refund", order=7), call("refund", order=7, reason="none")),
        (call("refund", reason="none", order=7), call("refund", order=7)),
        (raw_call("refund", '{"order": 7.0}'), call("refund", order=7)),
        (call("send", to="ada"), call("send", to="ada")),
        (call("pay", amount=1, account="a"), call("pay", amount=1, account="b")),
        (call("book", order=7), call("book", order=7, meta={})),
        (call("book", order=7, meta={}), call("book", order=7)),
        (call("book", order=7, meta={"sub": {}}), call("book", order=7)),
        (call("book", order=7, meta={}), call("book", order=7, meta={"sub": {}})),
    ],
)
async def test_an_effect_that_has_happened_is_not_silently_repeated(first: Any, again: Any) -> None:
    done = await ended(call("look", order=7), first, "Done.")
    assert done.records[-1].status == "completed"
    for turn in (0, 1):
        other = agent(again, "So be it.")
        start = other.fork(done.state, turn=turn)
        result = await other.resume(start)
        assert [str(r.error and r.error.code) for r in result.records] == ["repeated_effect"]
        decision = result.records[0].decision
        assert decision is not None
        assert decision.policy == "fork"
        assert done.state.run_id in getattr(decision, "reason")  # noqa: B009  mypy
    assert RAN == []


@each_row(
    "again",
    [
        call("refund", order=8),
        call("refund", order=7, reason="cold"),
        call("send", to="bob"),
        call("look", order=7),
        call("book", order=7, meta={"note": "cold"}),
        call("book", order=7, meta={"sub": {"key": "k"}}),
        call("book", order=7, other={}),
    ],
)
async def test_what_is_another_call_or_only_reads_runs(again: Any) -> None:
    done = await ended(
        [
            call("refund", order=7),
            call("send", to="ada"),
            call("look", order=7),
            call("book", order=7),
        ],
        "Done.",
    )
    other = agent(again, "So be it.")
    result = await other.resume(other.fork(done.state, turn=0))
    assert [record.status for record in result.records] == ["completed"]
    assert len(RAN) == 1


async def test_what_happened_up_to_the_turn_is_known_and_no_effect() -> None:
    done = await ended(call("refund", order=7), call("refund", order=8), "Done.")
    other = agent("Stop.")
    start = other.fork(done.state, turn=1)
    assert start.fork is not None
    assert [(e.tool, e.turn, e.arguments) for e in start.fork.effects] == [
        ("refund", 2, {"order": 8, "reason": "none"})
    ]
    result = await other.resume(start)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.records == ()


async def test_a_call_that_ended_otherwise_than_well_may_have_happened() -> None:
    @tool(visible=ALL)
    async def wipe() -> str:
        """Wipe it."""
        raise RuntimeError

    first = agent(call("wipe"), "Sorry.", runner=ToolRunner([wipe]))
    done = await first.run("Wipe it.")
    start = first.fork(done.state, turn=0)
    assert start.fork is not None
    assert [effect.ended for effect in start.fork.effects] == ["failed (tool_error)"]


async def test_who_says_repeat_lets_a_person_or_the_policies_decide() -> None:
    done = await ended(call("refund", order=7), "Done.")
    asks = agent(call("refund", order=7), "Done.", of_runner={"approver": answer_later})
    waits = await asks.resume(asks.fork(done.state, turn=0, repeat="ask"))
    [question] = waits.pending
    assert "its first run has made this call" in question.reason
    over = await asks.resume(waits.state, {question.id: Approve("grace")})
    assert (over.records[0].status, over.records[0].approved_by) == ("completed", "grace")
    assert RAN == [(7, "none")]
    nobody = agent(call("refund", order=7), "Done.")
    alone = await nobody.resume(nobody.fork(done.state, turn=0, repeat="ask"))
    assert alone.records[0].error is not None
    assert alone.records[0].error.code == "approval_required"
    free = agent(call("refund", order=7), "Done.")
    start = free.fork(done.state, turn=0, repeat="allow")
    assert start.fork is not None
    assert len(start.fork.effects) == 1  # they are told all the same
    assert (await free.resume(start)).records[0].status == "completed"


async def test_the_guard_goes_with_the_state_into_another_process_and_another_fork() -> None:
    done = await ended(call("refund", order=7), "Done.")
    first = agent(call("refund", order=8), "Done.")
    forked = await first.resume(RunState.from_json(first.fork(done.state, turn=0).to_json()))
    assert forked.records[0].status == "completed"
    second = agent(call("refund", order=7), call("refund", order=8), "Done.")
    start = second.fork(RunState.from_json(forked.state.to_json()), turn=0)
    result = await second.resume(RunState.from_json(start.to_json()))
    assert [str(r.error and r.error.code) for r in result.records] == ["repeated_effect"] * 2
    assert RAN == [(8, "none")]


async def test_no_answer_of_the_first_run_speaks_for_the_fork() -> None:
    @tool(visible=ALL, requires_approval=True)
    async def order(article: str) -> str:
        """Order something."""
        return "ordered"

    runner = ToolRunner([order], approver=answer_later)
    first = agent(
        call("order", article="tea"), call("order", article="cup"), "Done.", runner=runner
    )
    waits = await first.run("Order tea.")
    question = waits.pending[0].id
    done = await first.resume(waits.state, {question: Approve("grace", for_run=True)})
    assert [record.status for record in done.records] == ["completed", "completed"]

    other = agent(call("order", article="milk"), runner=runner)
    asked = await other.resume(other.fork(done.state, turn=1))
    assert asked.status == "waiting"
    again = first.fork(waits.state, turn=1)  # the same call, in the name of another run
    anew = await first.resume(again)
    assert (anew.status, len(anew.pending)) == ("waiting", 1)
    assert anew.pending[0].id != question
    assert anew.pending[0].run_id == again.run_id
    with pytest.raises(ApprovalError):
        await first.resume(anew.state, {question: Approve("grace")})


async def test_what_was_spent_up_to_the_turn_counts() -> None:
    turns = [call("look", order=1), [call("refund", order=2), call("refund", order=3)], "Done."]
    done = await ended(*turns, limits=Limits(turns=4))
    for turn, calls, cost, tools in (
        (0, 0, 0.0, {}),
        (1, 1, 1.0, {"look": 1}),
        (2, 3, 5.0, {"look": 1, "refund": 2}),
    ):
        start = agent().fork(done.state, turn=turn)
        inner = start.tally.inner
        assert (start.tally.calls, start.tally.cost, inner.per_tool) == (calls, cost, tools)
        assert (inner.turns, start.usage.requests, start.turn) == (turn, turn, 0)
        assert start.tally.seconds_per_tool.keys() == tools.keys()
        assert 0 <= start.elapsed <= done.state.elapsed
    busy = agent(call("look", order=1), call("look", order=2), "Done.", limits=Limits(turns=4))
    cut = await busy.resume(busy.fork(done.state, turn=2))
    assert (cut.status, cut.limit) == ("limited", "turns")
    few = agent(call("look", order=1), "Done.", limits=Limits(calls=3))
    assert (await few.resume(few.fork(done.state, turn=2))).limit == "calls"
    cheap = agent(call("look", order=1), "Done.", limits=Limits(tool_cost=5.0))
    assert (await cheap.resume(cheap.fork(done.state, turn=2))).limit == "tool_cost"
    poor = agent(
        call("refund", order=9), "No.", of_runner={"policy": budget(calls=2, only=["refund"])}
    )
    denied = await poor.resume(poor.fork(done.state, turn=2))
    assert denied.records[0].error is not None
    assert denied.records[0].error.code == "budget_exceeded"


async def test_a_fork_of_a_fork_has_spent_what_both_have() -> None:
    done = await ended(call("look", order=1), call("look", order=2), "Done.")
    first = agent(call("look", order=3), call("look", order=4), "Done.")
    forked = await first.resume(first.fork(done.state, turn=1))
    assert forked.state.tally.calls == 3
    start = agent().fork(forked.state, turn=1)
    assert (start.tally.calls, start.tally.inner.turns, start.usage.requests) == (2, 2, 2)
    assert start.fork is not None
    assert (start.fork.run_id, start.fork.turn) == (forked.state.run_id, 1)
    took = (done.records[0].seconds or 0.0) + (forked.records[0].seconds or 0.0)
    assert start.tally.seconds_per_tool["look"] == pytest.approx(took)


async def test_state_record_and_log_name_the_run_it_was_forked_from() -> None:
    done = await ended(call("look", order=1), "Done.")
    memory, log = MemorySink(), AuditLog("sqlite://")
    other = agent(call("look", order=2), "Done.", of_runner={"sinks": [memory, log]})
    start = other.fork(done.state, turn=1)
    result = await other.resume(start)
    assert result.state.run_id == start.run_id != done.state.run_id
    assert result.state.fork == start.fork
    told = {(run.run_id, run.forked_from, run.forked_turn) for run in memory.runs}
    assert told == {(start.run_id, done.state.run_id, 1)}
    [record] = result.records
    assert record.origin is not None
    assert (record.run_id, record.origin.forked_from) == (start.run_id, done.state.run_id)
    assert {run.forked_from for run in await log.runs(start.run_id)} == {done.state.run_id}
    assert json.loads(result.state.to_json())["fork"]["run_id"] == done.state.run_id
    await log.aclose()


async def test_a_forged_state_does_not_fork_and_a_signed_one_gives_a_signed_one() -> None:
    done = await ended(call("refund", order=7), "Done.", key=KEY)
    guarded = agent(call("refund", order=7), "No.", key=KEY)
    start = guarded.fork(done.state, turn=0)
    start.check_signature(KEY)
    saved = json.loads(done.state.to_json())
    saved["records"] = []
    for forged in (json.dumps(saved), agent().fork(done.state, turn=0).to_json()):
        with pytest.raises(SourceError, match="signature"):
            guarded.fork(RunState.from_json(forged), turn=0)
    unguarded = json.loads(start.to_json())
    unguarded["fork"] = None
    with pytest.raises(SourceError, match="signature"):
        await guarded.resume(RunState.from_json(json.dumps(unguarded)))
    assert (await guarded.resume(start)).records[0].status == "failed"
    assert RAN == []


async def test_a_fork_is_tainted_by_what_was_read_up_to_its_turn_alone() -> None:
    done = await ended(call("look", order=7), call("fetch"), call("look", order=7), "Done.")
    assert not agent().fork(done.state, turn=1).tally.tainted
    assert agent().fork(done.state, turn=2).tally.tainted
    other = agent(call("refund", order=7), "No.")
    result = await other.resume(other.fork(done.state, turn=2))
    assert result.records[0].error is not None
    assert result.records[0].error.code == "approval_required"


async def test_a_reopened_turn_is_decided_anew_and_what_could_not_run_keeps_its_error() -> None:
    turn = [call("look", order=7), raw_call("look", '{"order": '), call("look", order="x")]
    done = await ended(turn, "Done.")
    other = agent("Well.")
    start = other.fork(done.state, turn=1, reopen=True)
    assert [m.role for m in start.messages] == ["user", "assistant", "tool", "tool"]
    result = await other.resume(start)
    assert RAN == [7]
    assert [record.name for record in result.records] == ["look"]
    assert [m.role for m in result.messages][-4:] == ["tool", "tool", "tool", "assistant"]


async def test_a_reopened_call_that_ran_is_held_back_too() -> None:
    done = await ended(call("refund", order=7), "Done.")
    other = agent("Well.")
    result = await other.resume(other.fork(done.state, turn=1, reopen=True))
    assert result.records[0].error is not None
    assert (result.records[0].error.code, RAN) == ("repeated_effect", [])


async def test_a_reopened_call_that_ran_with_other_arguments_is_held_back_too() -> None:
    def much(hydrated: Any, _context: Any) -> Any:
        return Ask("more than 7") if hydrated.arguments["order"] > 7 else Allow()

    first = agent(
        call("refund", order=9), "Done.", of_runner={"policy": much, "approver": answer_later}
    )
    waits = await first.run("Refund order 9.")
    edited = Approve("grace", arguments={"order": 7, "reason": "none"})
    done = await first.resume(waits.state, {waits.pending[0].id: edited})
    assert RAN == [(7, "none")]
    for again in (call("refund", order=9), call("refund", order=8)):
        other = agent(again, "Well.")  # of another order it is another call
        start = other.fork(done.state, turn=1, reopen=True)
        anew = await other.resume(RunState.from_json(start.to_json()))
        assert [str(r.error and r.error.code) for r in anew.records] == ["repeated_effect", "None"]
    assert RAN == [(7, "none"), (9, "none"), (8, "none")]
    asks = agent("Well.", of_runner={"approver": answer_later})
    waiting = await asks.resume(asks.fork(done.state, turn=1, reopen=True, repeat="ask"))
    twice = await agent("Well.").resume(agent().fork(waiting.state, turn=0))  # a fork of that fork
    assert [str(r.error and r.error.code) for r in twice.records] == ["repeated_effect"]
    assert len(RAN) == 3


async def test_another_answer_to_what_was_asked() -> None:
    @tool(visible=ALL, safe=False)
    async def wipe(disk: str) -> str:
        """Wipe a disk."""
        RAN.append(disk)
        return "wiped"

    runner = ToolRunner([wipe], approver=answer_later)
    first = agent(call("wipe", disk="a"), "Well.", runner=runner)
    waits = await first.run("Wipe it.")
    no = await first.resume(waits.state, {waits.pending[0].id: Refuse("no", by="eve")})
    other = agent("It is wiped.", runner=runner)
    start = other.fork(no.state, turn=1, reopen=True)
    assert start.fork is not None
    assert start.fork.effects == ()  # it did not begin
    asked = await other.resume(start)
    yes = await other.resume(asked.state, {asked.pending[0].id: Approve("grace")})
    assert (yes.text, RAN) == ("It is wiped.", ["a"])


async def test_a_repaired_call_is_not_reopened() -> None:
    class Mends:
        name = "mends"

        async def __call__(self, _request: Any) -> str:
            return '{"order": 7}'

    async def says_yes(_request: Any) -> Approve:
        return Approve("grace")

    runner = ToolRunner(TOOLS, repairer=Mends(), approver=says_yes)
    first = agent(call("look", order="seven"), "Done.", runner=runner)
    done = await first.run("Look.")
    assert done.records[0].repaired
    with pytest.raises(ToolcribError, match="cannot be reopened"):
        first.fork(done.state, turn=1, reopen=True)


async def test_an_agent_that_is_a_tool_is_held_back_whatever_it_is_told() -> None:
    inner = Agent(ScriptedClient([call("refund", order=7), "Done.", "Done."]), [refund])
    clerk = inner.as_tool("clerk", "Refunds.", visible=ALL)
    runner = ToolRunner([clerk])
    done = await agent(call("clerk", prompt="Refund 7."), "Done.", runner=runner).run("Go.")
    assert RAN == [(7, "none")]
    other = agent(call("clerk", prompt="Please refund 7."), "Done.", runner=runner)
    start = other.fork(done.state, turn=0)
    result = await other.resume(start)
    assert result.records[0].error is not None
    assert result.records[0].error.code == "repeated_effect"
    kept = other.fork(done.state, turn=1, prompt="And now?")
    assert (kept.tally.inner.turns, kept.tally.calls) == (3, 2)
    assert RAN == [(7, "none")]


@each_row("depth", [1, 2])
@each_row("repeat", ["deny", "ask", "allow"])
async def test_an_agent_within_a_fork_repeats_no_effect_either(depth: int, repeat: Any) -> None:
    def team(*front: Any, within: tuple[Any, ...] = ()) -> Agent:
        inner = Agent(ScriptedClient(within), [refund, look])
        for _ in range(depth - 1):
            said: list[Any] = [call("clerk", prompt="Refund 7."), "Done."]
            inner = Agent(ScriptedClient(said), [inner.as_tool("clerk", "Refunds.", visible=ALL)])
        clerk = inner.as_tool("clerk", "Refunds.", visible=ALL)
        return agent(*front, runner=ToolRunner([refund, clerk], approver=answer_later))

    done = await team(call("refund", order=7), "Done.").run("Go.")
    RAN.clear()
    calls = [call("look", order=7), call("refund", order=8), call("refund", order=7)]
    other = team(call("clerk", prompt="Refund 7."), "Well.", within=(calls, "Done.", "Done."))
    result = await other.resume(other.fork(done.state, turn=0, repeat=repeat))
    assert 7 in RAN  # what only reads
    assert ((8, "none") in RAN, (7, "none") in RAN) == (True, repeat == "allow")
    assert result.status == ("waiting" if repeat == "ask" else "completed")
    if repeat == "ask":
        [question] = result.pending
        assert "its first run has made this call" in question.reason
        anew = RunState.from_json(result.state.to_json())
        over = await other.resume(anew, {question.id: Refuse("no", by="eve")})
        assert (over.status, len(RAN)) == ("completed", 2)


async def test_an_agent_that_waits_within_its_call_has_begun() -> None:
    inner = Agent(ScriptedClient([call("pay", amount=1, account="a")]), [pay_after_asking])
    runner = ToolRunner([inner.as_tool("clerk", "Pays.")], approver=answer_later)
    first = agent(call("clerk", prompt="Pay."), runner=runner)
    waits = await first.run("Go.")
    assert waits.status == "waiting"
    start = first.fork(waits.state, turn=1)
    assert start.fork is not None
    assert [(e.tool, e.any_arguments) for e in start.fork.effects] == [("clerk", True)]
    result = await agent("Well.", runner=runner).resume(start)
    assert result.records[0].error is not None
    assert result.records[0].error.code == "repeated_effect"


@tool(visible=ALL, safe=False, name="pay")
async def pay_after_asking(amount: int, account: str) -> str:
    """Pay somebody."""
    return "paid"


@each_row(
    ("options", "error", "said"),
    [
        ({"turn": 3}, ToolcribError, "has no turn 3"),
        ({"turn": -1}, ToolcribError, "turn= is the number of a turn"),
        ({"turn": True}, ToolcribError, "turn= is the number of a turn"),
        ({"turn": 2}, ToolcribError, "turn 2 is an answer"),
        ({"turn": 1, "repeat": "maybe"}, ToolcribError, "repeat= is"),
        ({"turn": 1, "prompt": "So?", "reopen": True}, ToolcribError, "reopen=True, to decide"),
        ({"turn": 2, "reopen": True}, ToolcribError, "no call of turn . was decided"),
        ({"turn": 0, "reopen": True}, ToolcribError, "no call of turn . was decided"),
        ({"turn": 1, "prompt": 7}, TypeError, "prompt must be a str"),
    ],
)
async def test_what_no_fork_can_be(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    done = await ended(call("look", order=7), "Done.")
    with pytest.raises(error, match=said):
        agent().fork(done.state, **options)


async def test_an_answer_is_followed_by_what_the_user_says_next() -> None:
    done = await ended(call("look", order=7), "Done.")
    other = agent("You are welcome.")
    result = await other.resume(other.fork(done.state, turn=2, prompt="Thanks."))
    assert [m.content for m in result.messages][-3:] == ["Done.", "Thanks.", "You are welcome."]


async def test_a_state_that_does_not_say_where_its_turns_began() -> None:
    done = await ended(call("look", order=7), "Done.")
    saved = json.loads(done.state.to_json())
    del saved["marks"]
    with pytest.raises(SourceError, match="earlier version"):
        agent().fork(RunState.from_json(json.dumps(saved)), turn=1)


async def test_a_fork_goes_on_on_behalf_of_the_same_caller() -> None:
    first = agent(call("look", order=7), "Done.")
    done = await first.run("Look.", caller=Caller("ada", ("clerk",)), history=())
    assert first.fork(done.state, turn=1).caller == Caller("ada", ("clerk",))


async def test_a_run_whose_client_failed_forks_too() -> None:
    first = agent(call("look", order=7), ConnectionFailed("down"))
    with pytest.raises(ConnectionFailed) as raised:
        await first.run("Look.")
    state = raised.value.state
    assert isinstance(state, RunState)
    assert [mark.turn for mark in state.marks] == [1, 2]
    other = agent("It is there.")
    start = other.fork(state, turn=1)
    assert (start.tally.inner.turns, start.usage.requests) == (1, 1)
    assert (await other.resume(start)).text == "It is there."


async def test_a_run_that_was_handed_over_is_not_forked() -> None:
    billing = Agent(ScriptedClient(["Done."]), [look], name="billing")
    desk = Agent(
        ScriptedClient([call("hand_over_to_billing", reason="Money.")]),
        [look],
        name="desk",
        handovers=[billing],
    )
    done = await desk.run("Hello.")
    assert done.state.speakers == ("desk", "billing")
    with pytest.raises(ToolcribError, match="handed over to 'billing'"):
        desk.fork(done.state, turn=1)


async def test_an_edit_that_repeats_an_effect_is_refused_where_nobody_was_asked_about_that() -> (
    None
):
    done = await agent(call("refund", order=7), "Done.").run("Go.")
    asked: list[str] = []

    async def edits(request: Any) -> Approve:
        asked.append(request.reason)
        return Approve("bob", arguments={"order": 7})

    def runner(**options: Any) -> ToolRunner:
        return ToolRunner([refund], policy=lambda *_: Ask("look"), **options)

    for approver in (edits, answer_later):
        other = agent(call("refund", order=8), "Well.", "Fin.", runner=runner(approver=approver))
        result = await other.resume(other.fork(done.state, turn=0, repeat="ask"))
        if result.status == "waiting":
            asked += [each.reason for each in result.pending]
            answers = {each.id: Approve("bob", arguments={"order": 7}) for each in result.pending}
            result = await other.resume(RunState.from_json(result.state.to_json()), answers)
        [record] = result.records
        assert record.error is not None
        assert (record.error.code, record.approved_by) == ("repeated_effect", "bob")
    assert (RAN, len(asked), any("first run" in said for said in asked)) == (
        [(7, "none")],
        2,
        False,
    )


@pytest.mark.parametrize(
    ("edit", "ends"),
    [(7, "completed"), (8, "repeated_effect"), (9, "completed")],
    ids=["the one that was read", "another one of the first run", "none of the first run"],
)
@pytest.mark.parametrize("how", ["at once", "later", "reopened"])
async def test_a_yes_to_one_repetition_lets_no_edit_repeat_another(
    how: str, edit: int, ends: str
) -> None:
    both = [call("refund", order=7), call("refund", order=8)]
    done = await agent(both, "Done.").run("Go.")
    RAN.clear()
    yes = Approve("bob", arguments={"order": edit})

    async def edits(request: Any) -> Approve:
        assert "has made this call" in request.reason
        return yes

    later = edits if how == "at once" else answer_later
    turns = [] if how == "reopened" else [call("refund", order=7)]
    other = agent(*turns, "Well.", of_runner={"approver": later})
    at: dict[str, Any] = {"turn": 1, "reopen": True} if how == "reopened" else {"turn": 0}
    result = await other.resume(other.fork(done.state, repeat="ask", **at))
    if result.status == "waiting":
        asked = {each.arguments["order"]: each.id for each in result.pending}
        answers = {id_: Refuse() if order == 8 else yes for order, id_ in asked.items()}
        result = await other.resume(result.state, answers)
    record = result.records[0]
    assert ends == ("completed" if record.error is None else record.error.code)
    assert ([(edit, "none")] if ends == "completed" else []) == RAN


async def test_an_answer_to_what_the_first_run_asked_is_an_error_in_a_fork() -> None:
    runner = ToolRunner([pay_after_asking], approver=answer_later)
    waits = await agent(call("pay", amount=1, account="a"), runner=runner).run("Go.")
    answers = {each.id: Approve("eve") for each in waits.pending}
    for turn in (0, 1):
        other = agent("Well.", runner=runner)
        with pytest.raises(ApprovalError, match="does not ask about"):
            await other.resume(other.fork(waits.state, turn=turn), answers)


async def test_a_call_that_was_demanded_is_not_demanded_again() -> None:
    first = agent(raw_call("refund", "{}"), "Done.")
    done = await first.run("Go.", tool_choice="required")
    model = ScriptedClient(["Well."])
    other = first.replace(model=model)
    await other.resume(other.fork(done.state, turn=1))
    assert model.requests[0].tool_choice.mode == "auto"
