"""Where what is real and what is made up meet: neither becomes the other, and each record says which.

Rule: nothing real goes on from what was made up, and of a real call nothing is forgotten because
something stood in for its tool, or it was made by what stands in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Completed,
    Deny,
    ErrorCode,
    RunResult,
    RunState,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.testing import MemorySink, ScriptedClient, ToolEmulator, call
from toolcrib.values.message import ChatRequest
from toolcrib.values.record import CallError

T = TypeVar("T")
KEY = b"k" * 32
REAL: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_real_yet() -> None:
    REAL.clear()


@tool(visible=ALL, safe=True)
async def refund(order: int) -> str:
    """Refund an order."""
    REAL.append(order)
    return f"refunded {order}"


class Steps:
    """Keeps steps, as a durable run does; before the one called `dies_at` the process ends."""

    def __init__(self, kept: list[tuple[str, bytes]], dies_at: int | None = None) -> None:
        self.kept = kept
        self.at = 0
        self.dies_at = dies_at

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
        self.at += 1
        if self.at <= len(self.kept):
            known, text = self.kept[self.at - 1]
            assert known == name
            kept: T = msgspec.json.decode(text, type=type)
            return kept
        if self.at == self.dies_at:
            raise KeyboardInterrupt
        made = await work()
        self.kept.append((name, msgspec.json.encode(made)))
        return made


# What was made up does not become real, wherever a run was when its process ended.

TURNS = ([call("refund", order=7)], [call("refund", order=8)], "Done.")


def clerk(*turns: Any, emulated: bool = False, **options: Any) -> Agent:
    made = Agent(ScriptedClient(turns), ToolRunner([refund], **options), state_key=KEY)
    return ToolEmulator({"refund": "made up"}).over(made) if emulated else made


@each_row(
    ("prepared_emulated", "dies_at"),
    [(emulated, at) for emulated in (True, False) for at in range(1, 7)],
)
async def test_no_run_that_was_killed_goes_on_for_real_from_what_was_made_up(
    prepared_emulated: bool, dies_at: int
) -> None:
    REAL.clear()
    kept: list[tuple[str, bytes]] = []
    state = clerk(emulated=prepared_emulated).prepare("Refund 7, then 8.", run_id="run_1")
    state = RunState.from_json(state.to_json())
    first = clerk(*TURNS, emulated=True).replace(durability=Steps(kept, dies_at))
    over = await _ended(first, state)
    made_up = sum(b'"emulated"' in text for _, text in kept)
    asked = sum(name.startswith("reply") for name, _ in kept)
    second = clerk(*TURNS[asked:]).replace(durability=Steps(kept))
    if not made_up and not prepared_emulated:  # nothing has been made up: the run is as any
        result = await second.resume(state)
        assert (REAL, [r.emulated for r in result.records]) == ([7, 8], [False, False])
        return
    with pytest.raises(SourceError, match="the run was emulated") as raised:
        await second.resume(state)
    left = getattr(raised.value, "state", None)
    if left is not None:  # and what is left of it says so
        assert left.emulated
        with pytest.raises(SourceError, match="the run was emulated"):
            await clerk("Done.").resume(left)
    assert REAL == []
    assert (over is None) == (dies_at < 6)


async def _ended(agent: Agent, state: RunState) -> RunResult | None:
    """Return how a run ended, None where its process did."""
    try:
        return await agent.resume(state)
    except KeyboardInterrupt:
        return None


async def test_a_run_that_an_emulated_agent_prepares_is_emulated_from_its_beginning() -> None:
    for agent in (clerk(emulated=True), clerk(emulated=True).replace(tools=[refund])):
        assert agent.prepare("Go.").emulated
    assert not clerk().prepare("Go.").emulated


async def test_a_state_whose_records_say_that_it_was_emulated_is_not_taken_for_a_real_one() -> None:
    def agent(*turns: Any) -> Agent:
        return Agent(ScriptedClient(turns), ToolRunner([refund, wipe], approver=answer_later))

    emulator = ToolEmulator({"refund": "made up", "wipe": "made up"})
    waits = await emulator.over(agent(call("refund", order=7), call("wipe", disk="a"))).run("Go.")
    forged = msgspec.structs.replace(waits.state, emulated=False)
    with pytest.raises(SourceError, match="emulated"):
        await agent("Done.").resume(RunState.from_json(forged.to_json()))


@tool(visible=ALL, safe=False)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    REAL.append(disk)
    return "wiped"


# A real call that what stands in makes is a call as any other.


@each_row("by", ["a call of the same runner", "a client", "an agent"])
@each_row("logged", [False, True])
async def test_a_real_call_by_what_stands_in_is_made_once_and_recorded_as_real(
    by: str, logged: bool
) -> None:
    REAL.clear()
    log, sink = AuditLog("sqlite://"), MemorySink()
    real = ToolRunner([refund, wipe], sinks=[sink, log] if logged else [sink])

    async def through(_arguments: Any) -> str:
        if by == "an agent":
            helper = Agent(ScriptedClient([call("refund", order=7), "Done."]), real)
            state = helper.prepare("Go.", run_id="run_1")
            return (await helper.resume(state)).text
        outcome = await real.exec(ToolCall("call_1", "refund", '{"order": 7}'))
        assert isinstance(outcome, Completed)
        return str(outcome.value)

    class Through(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Any:
            await through({})
            return await super().chat(request)

    model = Through(['"made up"'] * 2) if by == "a client" else None
    answers = {} if model else {"wipe": through}
    emulated = ToolEmulator(answers, model=model).over(real)
    emulated = emulated.with_approver(_yes)
    for name in ("call_2", "call_3"):
        outcome = await emulated.exec(ToolCall(name, "wipe", '{"disk": "a"}'))
        assert (outcome.record.status, outcome.record.emulated) == ("completed", True)
    assert REAL == [7]
    made = next(record for record in sink.finished() if record.name == "refund")
    assert (made.emulated, bool(made.idempotency_key)) == (False, True)
    if logged:
        entries = await log.entries()
        ended = [e.record.status for e in entries if e.record.name == "refund"]
        assert sorted(ended) == ["completed", "started"]
    await log.aclose()


async def _yes(_request: Any) -> Approve:
    return Approve("grace")


# A real call that has begun, and waits, is known to have begun whoever goes on with its run.


def desk(front: list[Any], within: list[Any], tools: Any = None, **options: Any) -> Agent:
    """An agent whose tool is an agent, which refunds at once and wipes if somebody lets it."""
    inner = Agent(
        ScriptedClient(within), ToolRunner(tools or [refund, wipe], approver=answer_later)
    )
    asks = inner.as_tool("clerk", "Refund and wipe.", visible=ALL)
    return Agent(ScriptedClient(front), ToolRunner([asks], approver=answer_later, **options))


async def _waiting() -> RunState:
    waits = desk([call("clerk", prompt="Do.")], [call("refund", order=7), call("wipe", disk="a")])
    return RunState.from_json((await waits.run("Go.")).state.to_json())


async def test_a_call_that_has_begun_for_real_does_not_go_on_emulated() -> None:
    state = await _waiting()
    yes = {each.id: Approve("grace") for each in state.pending}
    emulated = ToolEmulator({"clerk": "made up"}).over(desk(["Done."], []))
    over = await emulated.resume(state, yes)
    [record] = over.records
    assert (record.emulated, bool(record.idempotency_key)) == (False, True)
    assert record.error is not None
    assert record.error.code == "outcome_unknown"
    assert await _is_held_back(over.state)


def _denies(_call: Any, _context: Any) -> Any:
    return Deny("closed")


@each_row("ends", ["waits", "denied", "its tool is gone", "completes", "is cut"])
async def test_a_fork_holds_back_an_agent_that_has_begun_however_it_ended(ends: str) -> None:
    REAL.clear()
    state = await _waiting()
    yes = {each.id: Approve("grace") for each in state.pending}
    if ends == "denied":
        state = (await desk(["Well."], [], policy=_denies).resume(state, yes)).state
    elif ends == "its tool is gone":
        gone = desk(["Well."], [], tools=[wipe])
        over = await gone.resume(state, yes)
        assert "refund (completed)" in over.messages[-2].content  # the model is told what is done
        assert over.records[0].spent is not None
        state = over.state
    elif ends == "completes":
        state = (await desk(["Well."], ["Done."]).resume(state, yes)).state
    elif ends == "is cut":  # its process died: what the log knows of it, and no more
        record = msgspec.structs.replace(
            (await desk(["Well."], ["Done."]).resume(state, yes)).state.records[0],
            spent=None,
            status="failed",
            error=CallError.of(ErrorCode.OUTCOME_UNKNOWN),
        )
        done = (await desk(["Well."], ["Done."]).resume(state, yes)).state
        state = msgspec.structs.replace(done, records=(record,))
    assert await _is_held_back(state)


async def _is_held_back(state: RunState) -> bool:
    REAL.clear()
    other = desk([call("clerk", prompt="In other words."), "Fin."], [call("refund", order=7), "D."])
    result = await other.resume(other.fork(state, turn=0))
    error = result.records[0].error
    return error is not None and error.code == "repeated_effect" and REAL == []


# What a fork keeps of a run that was emulated.


def _refuses_8(call_: Any, _context: Any) -> Any:
    return Deny("no") if call_.arguments.get("order") == 8 else Allow()


def _pays(*turns: Any, emulated: bool = False) -> Agent:
    @tool(visible=ALL, safe=True, cost=3.0, name="refund")
    async def paid(order: int) -> str:
        """Refund an order."""
        if order < 0:
            raise ToolError("no")
        REAL.append(order)
        return "refunded"

    made = Agent(ScriptedClient(turns), ToolRunner([paid], policy=_refuses_8))
    fails = ToolEmulator({"refund": lambda a: "made up" if a["order"] > 0 else 1 / 0})
    return fails.over(made) if emulated else made


@each_row(
    ("orders", "stood_in"), [((8,), 0), ((7,), 1), ((8, 7), 1), ((-1,), 1), ((-1, 7, 8, 9), 3)]
)
async def test_a_fork_has_spent_what_a_stand_in_was_asked_for(
    orders: tuple[int, ...], stood_in: int
) -> None:
    calls = [call("refund", order=order) for order in orders]
    done = await _pays(calls, "Done.", emulated=True).run("Go.")
    fork = _pays().fork(done.state, turn=1)
    assert (fork.tally.calls, fork.tally.cost) == (stood_in, 3.0 * stood_in)
    assert (done.state.tally.calls, done.state.tally.cost) == (stood_in, 3.0 * stood_in)
    assert fork.emulated == (stood_in > 0)
    if not stood_in:  # nothing of it was made up
        assert (await _pays("Well.").resume(fork)).text == "Well."


async def test_a_fork_that_keeps_what_an_earlier_run_of_its_session_made_up_is_emulated() -> None:
    session = clerk(call("refund", order=7), "One.", "Two.", emulated=True).session()
    await session.send("First.")
    second = await session.send("Second.")
    fork = clerk().fork(second.state, turn=0)
    assert fork.emulated
    with pytest.raises(SourceError, match="the run was emulated"):
        await clerk("Three.").resume(fork)
    alone = await clerk("One.", emulated=True).run("Go.")  # nothing was made up
    assert not clerk().fork(alone.state, turn=0).emulated


@each_row("emulated", [True, False])
async def test_who_is_handed_over_to_writes_to_one_log_of_its_own(emulated: bool) -> None:
    logs = [AuditLog("sqlite://"), AuditLog("sqlite://")]
    turns: list[Any] = [call("refund", order=7), "Done."]
    second = Agent(ScriptedClient(turns), ToolRunner([refund], sinks=[logs[1]]), name="second")
    if emulated:
        second = ToolEmulator({"refund": "made up"}).over(second)
    hands = call("hand_over_to_second", reason="It is theirs.")
    first = Agent(
        ScriptedClient([hands]),
        ToolRunner([], sinks=[logs[0]]),
        name="first",
        handovers=[second],
    )
    await first.run("Go.")
    named = [{entry.record.name for entry in await log.entries()} for log in logs]
    assert named == [{"hand_over_to_second"}, {"refund"}]
    for log in logs:
        await log.aclose()
