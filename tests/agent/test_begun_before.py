"""A call that began in a process that is gone is never said not to have begun, whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import pytest
from agent.test_steps import Model
from samples import sampled

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Deny,
    Limits,
    RunResult,
    RunState,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.hydration import Sanitizer
from toolcrib.testing import call
from toolcrib.testing.scripted import Said
from toolcrib.values.record import ToolInvocationRecord, has_begun, state_of

T = TypeVar("T")
Dies = Literal["killed", "stopped"]
Ends = Literal["cancelled", "cancelled early", "out of time", "refused"]
Kind = Literal["plain", "idempotent", "background", "agent", "within"]
Before: TypeAlias = tuple[RunState, Any, dict[int, bytes]]
_abandoned: list[object] = []
_left: list[tuple[asyncio.AbstractEventLoop, AuditLog]] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _left:
        loop, log = _left.pop()
        asyncio.run(log.aclose())
        loop.close()


class Steps:
    """Keeps steps as JSON. `stops` names a kind of step before which the run is cancelled, as an engine
    does that looks before each step whether the run is still its own."""

    def __init__(self, kept: dict[int, bytes], stops: str = "") -> None:
        self.kept, self.at, self.stops = kept, 0, stops
        self.stopping = False
        self.task: asyncio.Task[Any] | None = None
        self.begun = asyncio.Event()

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
        at, self.at = self.at, self.at + 1
        if self.stops and name.startswith(self.stops):
            assert self.task is not None
            self.task.cancel()
            await asyncio.Event().wait()
        if at in self.kept:
            made: T = msgspec.json.decode(self.kept[at], type=type)
            return made
        made = await work()
        self.kept[at] = msgspec.json.encode(made)
        return made


def desk(kind: Kind, steps: Steps, log: AuditLog, *, asks: bool, policy: Any = ()) -> Agent:
    marks: dict[str, Any] = {"idempotent": kind == "idempotent", "background": kind == "background"}

    @tool(visible=ALL, safe=not asks or kind in ("agent", "within"), **marks)
    async def pay(to: str) -> str:
        """Pay somebody."""
        steps.begun.set()
        await asyncio.Event().wait()
        return to

    tools, said = [pay], call("pay", to="ada")
    if kind in ("agent", "within"):
        inner = Agent(Model(said, "Paid."), tools)
        repeats = kind == "within"
        tools = [inner.as_tool("clerk", "Pays.", visible=ALL, safe=not asks, idempotent=repeats)]
        said = call("clerk", prompt="Pay Ada.")
    turns: list[Said] = [said, *["Done."] * 4]
    runner = ToolRunner(
        tools,
        sinks=[log],
        approver=answer_later,
        policy=policy,
        repairer=Sanitizer(),  # so that the arguments are a step
    )
    return Agent(Model(*turns), runner, durability=steps, limits=Limits(seconds=50))


def process(url: str, work: Callable[[AuditLog], Awaitable[T]], *, dies: bool = False) -> T:
    """Do the work in an event loop of its own, which nobody drives any more when the process `dies`."""
    loop, log = asyncio.new_event_loop(), AuditLog(url)
    _left.append((loop, log))
    given = loop.run_until_complete(work(log))
    if not dies:
        loop.run_until_complete(loop.shutdown_default_executor())
    return given


def begun(url: str, kind: Kind, dies: Dies, *, asks: bool) -> Before:
    """Have a call begin in a process that ends then; return from where the next one goes on."""
    kept: dict[int, bytes] = {}

    async def work(log: AuditLog) -> tuple[RunState, Any]:
        steps, answers = Steps(kept), None
        agent = desk(kind, steps, log, asks=asks)
        state = agent.prepare("Pay Ada.", run_id="run_7", caller=Caller("ada"))
        if asks:
            waits = await agent.resume(state)
            state, answers = waits.state, {waits.pending[0].id: Approve("grace")}
            kept.clear()
            steps = Steps(kept)
            agent = desk(kind, steps, log, asks=asks)
        task = asyncio.ensure_future(agent.resume(state, answers))
        _abandoned.append(task)
        await steps.begun.wait()
        if dies == "stopped":
            steps.stopping = True
            task.cancel()
            await asyncio.wait({task})
        return state, answers

    return (*process(url, work, dies=True), kept)


def ended(
    url: str, kind: Kind, ends: Ends, before: Before, *, asks: bool = False
) -> tuple[RunResult, list[ToolInvocationRecord]]:
    """Go on in a process in which the run ends before it comes to the call; return what the log has."""
    state, answers, kept = before
    refuses: Any = (lambda _call, _context: Deny("closed")) if ends == "refused" else ()
    if ends == "out of time":  # all of it was used up before the call, or the answer
        state = msgspec.structs.replace(state, elapsed=60.0 if asks else 0.0)
        kept = {at: text.replace(b'"elapsed":', b'"elapsed":600') for at, text in kept.items()}

    async def work(log: AuditLog) -> tuple[RunResult, list[ToolInvocationRecord]]:
        stops = {"cancelled": "call", "cancelled early": "arguments"}.get(ends, "")
        steps = Steps(dict(kept), stops)
        agent = desk(kind, steps, log, asks=asks, policy=refuses)
        stream = agent.resume_stream(state, answers)
        steps.task = stream._task
        result = await stream.result()
        entries = [entry.record for entry in await log.entries()]
        calls = [each for each in entries if isinstance(each, ToolInvocationRecord)]
        await log.aclose()
        return result, calls

    return process(url, work)


@pytest.mark.parametrize("asks", [False, True], ids=["", "approved"])
@pytest.mark.parametrize(
    ("kind", "dies", "ends"),
    sampled(
        product(
            ["plain", "idempotent", "background", "agent", "within"],
            ["killed", "stopped"],
            ["cancelled", "cancelled early", "out of time", "refused"],
        ),
        part=3,
    ),
)
def test_what_the_log_says_to_have_begun_is_never_said_not_to_have(
    tmp_path: Path, kind: Kind, dies: Dies, ends: Ends, asks: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    before = begun(url, kind, dies, asks=asks)
    result, entries = ended(url, kind, ends, before, asks=asks)
    (record,) = result.records
    assert (state_of(record), has_begun(record)) == ("failed (outcome_unknown)", True)
    assert record.approved_by == ("grace" if asks else None)
    assert record.decision is not None
    told = [m.content for m in result.messages if m.call_id == record.id]
    assert any('"outcome_unknown"' in each for each in told)
    for call_id in {entry.id for entry in entries}:
        ours = [entry for entry in entries if entry.id == call_id]
        assert has_begun(ours[-1]) >= any(map(has_begun, ours))
    if ends in ("cancelled", "out of time"):
        assert result.status == {"cancelled": "cancelled", "out of time": "limited"}[ends]


@pytest.mark.parametrize("ends", ["cancelled", "cancelled early"])
def test_a_call_that_did_not_begin_is_said_not_to_have(tmp_path: Path, ends: Ends) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    state = process(url, _prepared)
    result, entries = ended(url, "plain", ends, (state, None, {}))
    assert [state_of(each) for each in result.records] == [state_of(each) for each in entries]
    assert {state_of(each) for each in entries} <= {"failed (cancelled)"}
    assert not any(map(has_begun, entries))
    (told,) = [m.content for m in result.messages if m.role == "tool"]
    assert '"cancelled"' in told


async def _prepared(log: AuditLog) -> RunState:
    return desk("plain", Steps({}), log, asks=False).prepare("Pay Ada.", run_id="run_7")


def test_of_a_log_that_cannot_be_asked_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    before = begun(url, "plain", "killed", asks=False)

    async def fails(*_: object) -> None:
        raise SourceError("the log cannot be read")

    monkeypatch.setattr(AuditLog, "find", fails)
    result, entries = ended(url, "plain", "cancelled", before)
    assert [state_of(each) for each in result.records] == ["failed (outcome_unknown)"]
    assert has_begun(entries[-1])


def test_a_call_that_had_ended_is_told_as_it_ended(tmp_path: Path) -> None:
    """Its process was killed before its step was kept, but not before the log had its end."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    before = begun(url, "plain", "killed", asks=False)

    async def pays(log: AuditLog) -> None:
        (entry,) = [
            e.record for e in await log.entries() if isinstance(e.record, ToolInvocationRecord)
        ]
        paid = msgspec.structs.replace(entry, status="completed", result_json=msgspec.Raw(b'"ada"'))
        await log.write(paid)

    process(url, pays)
    result, entries = ended(url, "plain", "cancelled", before)
    assert [state_of(each) for each in result.records] == ["completed"]
    assert [state_of(each) for each in entries] == ["started", "completed"]
    assert [m.content for m in result.messages if m.role == "tool"] == ["ada"]


def test_a_prepared_run_that_is_begun_again_without_steps_looks_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"

    def agent_of(log: AuditLog, limits: Limits, begun: asyncio.Event) -> Agent:
        @tool(visible=ALL)
        async def pay(to: str) -> str:
            """Pay somebody."""
            begun.set()
            await asyncio.Event().wait()
            return to

        model = Model(call("pay", to="ada"), "Done.")
        return Agent(model, ToolRunner([pay], sinks=[log]), limits=limits)

    async def begins(log: AuditLog) -> RunState:
        begun = asyncio.Event()
        agent = agent_of(log, Limits(), begun)
        state = agent.prepare("Pay Ada.", run_id="run_7", caller=Caller("ada"))
        _abandoned.append(asyncio.ensure_future(agent.resume(state)))
        await begun.wait()
        return state

    state = process(url, begins, dies=True)

    async def goes_on(log: AuditLog) -> RunResult:
        return await agent_of(log, Limits(calls=0), asyncio.Event()).resume(state)

    (record,) = process(url, goes_on).records
    assert (state_of(record), has_begun(record)) == ("failed (outcome_unknown)", True)
