"""The loop: what a run does, how it ends, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from inspect import signature
from typing import Any, cast, get_args

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    ApprovalRequested,
    Approve,
    CallContext,
    Caller,
    Done,
    Event,
    Limits,
    Message,
    PickOptions,
    Reply,
    RunError,
    RunResult,
    RunStarted,
    RunState,
    Session,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    ToolRunner,
    UsageReported,
    run_sync,
    tool,
)
from toolcrib import CallContext as Context
from toolcrib.errors import (
    ApprovalError,
    ClientError,
    ErrorCode,
    ProviderError,
    SourceError,
    ToolcribError,
)
from toolcrib.hydration import RepairRequest
from toolcrib.policies import Standard, deny_by_default
from toolcrib.testing import MemorySink, ScriptedClient, call, raw_call
from toolcrib.values.decision import Answer
from toolcrib.values.message import ChatRequest, FinishReason, Settings, TextPart
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunStatus

CANARY = "canary-77aa"


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(visible=ALL, safe=False)
async def delete(path: str) -> str:
    """Delete a path."""
    return f"deleted {path}"


@tool(visible=[], secret=["password"])
async def login(password: str) -> dict[str, str]:
    """Log in."""
    return {"token": CANARY}


@tool(visible=ALL)
async def slow(ctx: Context) -> str:
    """Take its time."""
    ctx.progress({"done": 0.5})
    await asyncio.Event().wait()
    return "never"


TOOLS = [add, delete, login, slow]


async def events_of(agent: Agent, prompt: str = "go") -> list[Event]:
    return [event async for event in agent.stream(prompt)]


def check_history(result: RunResult) -> None:
    """Every call is answered exactly once, directly after it, in the order of calls."""
    messages = list(result.messages)
    while messages:
        message = messages.pop(0)
        answers = [messages.pop(0).call_id for _ in message.tool_calls]
        assert answers == [c.id for c in message.tool_calls]
        assert message.role != "tool"


async def test_other_tools_are_run_by_the_same_policy_approver_and_sinks() -> None:
    async def nobody(request: ApprovalRequest) -> None:
        return None

    sink = MemorySink()
    shut = deny_by_default(allow=["delete"])
    first = Agent(ScriptedClient([]), ToolRunner([], policy=shut, approver=nobody, sinks=[sink]))
    model = ScriptedClient([[call("add", a=1, b=2), call("delete", path="a")]])
    result = await first.replace(model=model, tools=[add, delete]).run("go")
    assert result.status == "waiting"
    ended = [(record.name, record.status) for record in sink.records if record.status != "waiting"]
    assert ended == [("add", "failed")]


@each_row(("which", "name"), [("runner", "approver"), ("runner", "catalog"), ("agent", "runner")])
def test_who_decides_is_not_exchanged_by_an_assignment(which: str, name: str) -> None:
    """It would be ignored: what decides has been put together by then."""
    runner = ToolRunner([add])
    owner = {"runner": runner, "agent": Agent(ScriptedClient([]), runner)}[which]
    with pytest.raises(AttributeError, match="no setter"):
        setattr(owner, name, None)


async def test_settings_go_with_each_request_also_of_a_copy() -> None:
    model, other = ScriptedClient(["Yes."]), ScriptedClient(["No."])
    careful = Agent(model, settings=Settings(temperature=0, max_tokens=9))
    await careful.run("?")
    await careful.replace(model=other).run("?")
    assert model.requests[0].settings == other.requests[0].settings == Settings(0, 9)


async def test_a_question_is_answered_without_tools() -> None:
    client = ScriptedClient(["hello"])
    result = await Agent(client, TOOLS, instructions="be kind").run("hi")
    assert (result.status, result.text, result.output) == ("completed", "hello", "hello")
    assert [m.role for m in result.messages] == ["system", "user", "assistant"]
    assert [t.get_definition().name for t in client.requests[0].tools] == [
        "add",
        "delete",
        "login",
        "slow",
    ]


async def test_parallel_calls_a_bad_call_corrected_and_a_final_text() -> None:
    client = ScriptedClient(
        [
            [call("add", a=1, b=2), call("add", a=3, b=4)],
            ["let me see", call("add", a="x", b=1)],
            call("add", a=5, b=1),
            "done",
        ]
    )
    result = await Agent(client, TOOLS).run("add things")
    assert (result.status, result.text) == ("completed", "done")
    assert [r.status for r in result.records] == ["completed", "completed", "failed", "completed"]
    assert len({r.id for r in result.records}) == 4
    check_history(result)
    told = [m for m in result.messages if m.role == "tool"]
    assert [m.content for m in told[:2]] == ["3", "7"]
    assert json.loads(told[2].content)["error"] == {
        "code": "invalid_arguments",
        "message": "expected integer, got string",
        "details": [{"path": "/a", "message": "expected integer, got string"}],
    }
    assert told[2].is_error
    assert result.usage.requests == 4


async def test_the_events_tell_the_same_story_with_one_done() -> None:
    client = ScriptedClient([["adding", call("add", a=1, b=2)], "three"])
    events = await events_of(Agent(client, TOOLS))
    kinds = [type(event) for event in events]
    assert kinds[0] is RunStarted
    assert kinds[-1] is Done
    assert kinds.count(Done) == 1
    started = next(e for e in events if isinstance(e, ToolCallStarted))
    finished = next(e for e in events if isinstance(e, ToolCallFinished))
    assert started.id == finished.record.id
    assert started.arguments == {"a": 1, "b": 2}
    deltas = [e for e in events if isinstance(e, ToolArgumentsDelta)]
    assert "".join(d.text for d in deltas) == '{"a":1,"b":2}'
    assert {d.id for d in deltas} == {started.id}
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert text == "addingthree"
    assert sum(isinstance(e, UsageReported) for e in events) == 2


async def test_a_model_is_told_that_a_tool_ran_whose_result_does_not_fit() -> None:
    @tool(visible=ALL)
    async def lie(text: str) -> str:
        """Say another thing than the schema of its result."""
        return cast("str", {CANARY: text})

    client = ScriptedClient([call("lie", text="x"), "I see."])
    result = await Agent(client, ToolRunner([lie])).run("go")
    (told,) = [m.content for m in client.requests[-1].messages if m.role == "tool"]
    assert result.records[0].error is not None
    assert result.records[0].error.code is ErrorCode.INVALID_OUTPUT
    assert "The tool ran" in told
    assert CANARY not in told


async def test_malformed_arguments_are_not_echoed_back() -> None:
    client = ScriptedClient([raw_call("add", f'{{"a": {CANARY}'), "sorry"])
    result = await Agent(client, TOOLS).run("go")
    assert result.status == "completed"
    assert CANARY not in str(client.requests[1])
    assert CANARY not in str(result)
    assert result.records[0].error is not None
    assert result.records[0].error.code == "invalid_json"


async def test_secrets_reach_no_event_and_no_record() -> None:
    client = ScriptedClient([call("login", password=CANARY), "done"])
    events = await events_of(Agent(client, TOOLS))
    public = [e for e in events if not isinstance(e, Done)]
    assert CANARY not in str(public)
    assert not any(isinstance(e, ToolArgumentsDelta) for e in events)


@pytest.mark.parametrize(
    ("name", "code"), [("nobody", "unknown_tool"), ("delete", "not_offered"), ("add", None)]
)
async def test_only_what_was_offered_may_be_called(name: str, code: str | None) -> None:
    client = ScriptedClient([raw_call(name, '{"a": 1, "b": 2}'), "done"])
    agent = Agent(client, TOOLS, pick=PickOptions(max_candidates=1))
    result = await agent.run("add two numbers")
    assert [t.get_definition().name for t in client.requests[0].tools] == ["add"]
    error = result.records[0].error
    assert (error.code if error else None) == code


async def test_with_an_approver_picking_does_not_hide_what_is_not_safe() -> None:
    async def nobody(_request: ApprovalRequest) -> Answer | None:
        return None

    client = ScriptedClient(["fine"])
    pick = PickOptions(max_candidates=1)
    await Agent(client, ToolRunner(TOOLS, approver=nobody), pick=pick).run("delete the path")
    assert [t.get_definition().name for t in client.requests[0].tools] == ["delete"]


LIMITS: list[tuple[Limits, str]] = [
    (Limits(turns=2), "turns"),
    (Limits(calls=3), "calls"),
]


@pytest.mark.parametrize(("limits", "name"), LIMITS)
async def test_a_limit_is_an_outcome(limits: Limits, name: str) -> None:
    client = ScriptedClient([[call("add", a=1, b=2), call("add", a=1, b=2)]] * 5)
    result = await Agent(client, TOOLS, limits=limits).run("go")
    assert (result.status, result.limit) == ("limited", name)
    check_history(result)
    told = {call.id for message in result.messages for call in message.tool_calls}
    assert {record.id for record in result.records} == told
    if name == "calls":  # of the reply that would exceed it none runs
        assert [record.status for record in result.records] == ["completed"] * 2 + ["failed"] * 2


async def test_a_limit_on_time_cancels_the_tool_and_answers_its_call() -> None:
    client = ScriptedClient([[call("add", a=1, b=1), call("slow")]])
    result = await Agent(client, TOOLS, limits=Limits(seconds=0.1)).run("go")
    assert (result.status, result.limit) == ("limited", "seconds")
    check_history(result)
    assert result.messages[-2].content == "2"
    assert [r.error.code if r.error else None for r in result.records] == [None, "cancelled"]


async def test_a_limit_on_cost() -> None:
    @tool(visible=ALL, cost=0.6)
    async def dear() -> str:
        """Cost something."""
        return "paid"

    client = ScriptedClient([call("dear"), call("dear"), "never"])
    result = await Agent(client, [dear], limits=Limits(tool_cost=1)).run("go")
    assert (result.status, result.limit) == ("limited", "tool_cost")
    assert [r.error.code if r.error else None for r in result.records] == [None, "budget_exceeded"]


async def test_three_times_a_tenth_is_not_above_three_tenths() -> None:
    @tool(visible=ALL, cost=0.1)
    async def cheap() -> str:
        """Cost little."""
        return "paid"

    calls = [call("cheap")] * 3
    scripts: list[list[Any]] = [[calls, "done"], [*calls, "done"]]
    for turns in scripts:
        agent = Agent(ScriptedClient(turns), [cheap], limits=Limits(tool_cost=0.3))
        assert (await agent.run("go")).status == "completed"


def test_a_limit_is_a_number() -> None:
    with pytest.raises(ToolcribError, match="Limits: seconds must be a number"):
        Limits(seconds=float("nan"))
    with pytest.raises(ToolcribError, match="Limits: tool_cost must be at least 0"):
        Limits(tool_cost=float("nan"))
    with pytest.raises(ToolcribError, match="Limits: turns must be at least 0"):
        Limits(turns=-1)
    with pytest.raises(ToolcribError, match="Limits: tool_errors must be at least 1"):
        Limits(tool_errors=0)
    for name in Limits.__struct_fields__:
        for beyond in (10**400, -(10**400)):  # no clock and no cost could be compared with it
            with pytest.raises(
                ToolcribError, match=f"Limits: {name} must be a number that a float can"
            ):
                Limits(**{name: beyond})
        assert getattr(Limits(**{name: 10**300}), name) == 10**300


async def test_a_provider_that_fails_raises_with_the_state_and_tells_the_stream() -> None:
    client = ScriptedClient([call("add", a=1, b=2), ProviderError("overloaded", 503)])
    agent = Agent(client, TOOLS)
    with pytest.raises(ProviderError) as failed:
        await agent.run("go")
    state = failed.value.state
    assert isinstance(state, RunState)
    assert [m.role for m in state.messages] == ["user", "assistant", "tool"]

    stream = Agent(ScriptedClient([ProviderError("overloaded", 503)]), TOOLS).stream("go")
    kinds = [type(event) async for event in stream]
    assert kinds == [RunStarted, RunError, Done]
    with pytest.raises(ProviderError):
        await stream.result()


async def test_a_failed_run_can_go_on_from_its_state() -> None:
    failing = ScriptedClient([call("add", a=1, b=2), ProviderError("overloaded", 503)])
    with pytest.raises(ProviderError) as failed:
        await Agent(failing, TOOLS).run("go")
    result = await Agent(ScriptedClient(["three"]), TOOLS).resume(failed.value.state)
    assert (result.status, result.text, len(result.records)) == ("completed", "three", 1)


@pytest.mark.parametrize("failed", ["provider", "limit"])
async def test_a_run_that_goes_on_after_it_failed_may_call_tools(failed: str) -> None:
    if failed == "limit":
        short = Agent(ScriptedClient([call("add", a=1, b=2)]), TOOLS, limits=Limits(turns=1))
        state = (await short.run("go")).state
    else:
        failing = ScriptedClient([call("add", a=1, b=2), ProviderError("overloaded", 503)])
        with pytest.raises(ProviderError) as raised:
            await Agent(failing, TOOLS).run("go")
        assert isinstance(raised.value.state, RunState)
        state = raised.value.state
    client = ScriptedClient([call("add", a=3, b=4), "seven"])
    result = await Agent(client, TOOLS).resume(RunState.from_json(state.to_json()))
    assert (result.text, [r.result for r in result.records]) == ("seven", [3, 7])


async def test_a_run_that_could_not_say_that_it_waits_does_not_wait() -> None:
    class Full(MemorySink):
        def write_run(self, record: Any) -> None:
            if record.status == "waiting":
                raise OSError

    async def later(_request: ApprovalRequest) -> None:
        return None

    runner = ToolRunner([delete], approver=later, sinks=[Full()])
    stream = Agent(ScriptedClient([call("delete", path="a")]), runner).stream("go")
    done = [event async for event in stream][-1]
    assert isinstance(done, Done)
    assert (done.result.status, done.result.pending) == ("failed", ())
    going_on = Agent(ScriptedClient(["It did not run."]), runner)
    assert (await going_on.resume(done.result.state)).status == "completed"


async def test_an_unexpected_error_is_named_by_its_kind_only() -> None:
    def breaks(_request: object) -> Any:
        raise KeyError(CANARY)

    stream = Agent(ScriptedClient([breaks]), TOOLS).stream("go")
    events = [event async for event in stream]
    assert CANARY not in str(events)
    assert RunError("KeyError", "an unexpected error") in events
    with pytest.raises(KeyError):
        await stream.result()


async def test_waiting_and_going_on_in_another_agent() -> None:
    async def later(_request: ApprovalRequest) -> Answer | None:
        return None

    client = ScriptedClient(
        [[call("add", a=1, b=2), call("delete", path="x"), call("add", a=2, b=2)]]
    )
    agent = Agent(client, ToolRunner(TOOLS, approver=later))
    events = await events_of(agent)
    done = events[-1]
    assert isinstance(done, Done)
    waiting = done.result
    assert waiting.status == "waiting"
    assert [r.tool for r in waiting.pending] == ["delete"]
    assert any(isinstance(e, ApprovalRequested) for e in events)

    state = RunState.from_json(waiting.state.to_json())
    other = Agent(ScriptedClient(["all done"]), ToolRunner(TOOLS, approver=later))
    result = await other.resume(state, {waiting.pending[0].id: Approve(by="grace")})
    assert (result.status, result.text) == ("completed", "all done")
    check_history(result)
    assert [m.content for m in result.messages if m.role == "tool"] == ["3", "deleted x", "4"]
    assert [r.name for r in result.records] == ["add", "add", "delete"]


async def test_a_resumed_run_can_be_watched() -> None:
    async def later(_request: ApprovalRequest) -> Answer | None:
        return None

    client = ScriptedClient([call("delete", path="x"), "done"])
    agent = Agent(client, ToolRunner(TOOLS, approver=later))
    waiting = await agent.run("go")
    stream = agent.resume_stream(waiting.state, {waiting.pending[0].id: Approve(by="grace")})
    events = [event async for event in stream]
    finished = [e.record.name for e in events if isinstance(e, ToolCallFinished)]
    assert finished == ["delete"]
    assert (await stream.result()).text == "done"


async def test_resuming_without_an_answer_waits_again() -> None:
    async def later(_request: ApprovalRequest) -> Answer | None:
        return None

    agent = Agent(ScriptedClient([call("delete", path="x")]), ToolRunner(TOOLS, approver=later))
    first = await agent.run("go")
    again = await agent.resume(first.state)
    assert (first.status, again.status) == ("waiting", "waiting")
    assert first.pending[0].id == again.pending[0].id


async def test_an_answer_for_another_run_does_not_fit() -> None:
    async def later(_request: ApprovalRequest) -> Answer | None:
        return None

    def agent() -> Agent:
        return Agent(
            ScriptedClient([call("delete", path="x"), "done"]), ToolRunner(TOOLS, approver=later)
        )

    one, two = await agent().run("go"), await agent().run("go")
    with pytest.raises(ApprovalError, match="which this state does not ask about"):
        await agent().resume(two.state, {one.pending[0].id: Approve(by="eve")})
    assert (await agent().resume(two.state)).status == "waiting"


async def test_a_tool_that_is_gone_is_named_on_resume() -> None:
    result = await Agent(ScriptedClient(["hi"]), TOOLS).run("go")
    with pytest.raises(SourceError, match="'delete'"):
        await Agent(ScriptedClient([]), [add]).resume(result.state)


@each_row("text", ["", "{}", "[]", "nonsense", '{"version": 1}', b"\xff"])
def test_what_is_no_saved_run_is_refused(text: str | bytes) -> None:
    with pytest.raises(SourceError, match="not a saved run"):
        RunState.from_json(text)


async def test_leaving_the_stream_cancels_the_run() -> None:
    client = ScriptedClient([call("slow"), "never"])
    async with Agent(client, TOOLS).stream("go") as stream:
        async for event in stream:
            if isinstance(event, ToolCallProgress):
                assert event.part == {"done": 0.5}
                break
    result = await stream.result()
    assert result.status == "cancelled"
    check_history(result)
    assert [r.error.code for r in result.records if r.error] == ["cancelled"]


@each_row("untrusted", [True, False])
async def test_progress_of_what_others_wrote_says_so(untrusted: bool) -> None:
    @tool(visible=ALL, untrusted_output=untrusted)
    async def fetch(ctx: CallContext) -> str:
        """Fetch it."""
        ctx.progress("half of it")
        return "all of it"

    client = ScriptedClient([call("fetch"), "done"])
    stream = Agent(client, [fetch]).stream("go")
    told = [event async for event in stream if isinstance(event, ToolCallProgress)]
    assert [(event.part, event.untrusted) for event in told] == [("half of it", untrusted)]


async def test_a_run_goes_on_if_nobody_listens() -> None:
    client = ScriptedClient([call("add", a=1, b=2), "three"])
    stream = Agent(client, TOOLS).stream("go")
    async for _ in stream:
        break
    result = await stream.result()
    assert (result.text, await stream.result()) == ("three", result)


async def test_cancelling_run_cancels_the_tools() -> None:
    entered = asyncio.Event()
    left = asyncio.Event()

    @tool(visible=ALL)
    async def waits() -> str:
        """Wait."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return ""

    task = asyncio.ensure_future(Agent(ScriptedClient([call("waits")]), [waits]).run("go"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()


@each_row(
    ("turns", "ends"),
    [
        (["done"], "completed"),
        ([call("asks")], "waiting"),
        ([call("plain"), "too late"], "limited"),
        ([], "failed"),
    ],
)
async def test_a_run_that_is_cancelled_as_its_end_is_written_has_that_end_alone(
    turns: list[Any], ends: str
) -> None:
    written: list[str] = []
    writing = asyncio.Event()

    class Slow:
        async def write(self, record: ToolInvocationRecord) -> None: ...

        async def write_run(self, record: Any) -> None:
            written.append(record.status)
            if record.status != "running":
                writing.set()
                await asyncio.sleep(0.02)

    @tool(visible=ALL)
    def plain() -> int:
        """Count."""
        return 1

    @tool(visible=ALL, requires_approval=True)
    def asks() -> int:
        """Count."""
        return 1

    async def later(_request: ApprovalRequest) -> None:
        return None

    runner = ToolRunner([plain, asks], sinks=[Slow()], approver=later)
    session = Session(Agent(ScriptedClient(turns), runner, limits=Limits(turns=1)))
    task = asyncio.create_task(session.send("go"))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["running", ends]
    assert bool(session.messages) == (ends != "failed")  # it goes on with what was said


async def test_a_run_that_is_cancelled_and_could_not_say_that_it_waits_does_not_wait() -> None:
    written: list[str] = []
    writing = asyncio.Event()

    class Full:
        async def write(self, record: ToolInvocationRecord) -> None: ...

        async def write_run(self, record: Any) -> None:
            if record.status == "waiting":
                writing.set()
                await asyncio.sleep(0.02)
                raise OSError
            written.append(record.status)

    async def later(_request: ApprovalRequest) -> None:
        return None

    runner = ToolRunner([delete], approver=later, sinks=[Full()])
    agent = Agent(ScriptedClient([call("delete", path="a")]), runner)
    task = asyncio.create_task(agent.run("go"))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["running", "cancelled"]


class Stubborn(ScriptedClient):
    """A client that goes on when it was told to stop, as one with `except BaseException` does."""

    def __init__(self, turns: list[Any]) -> None:
        super().__init__(turns)
        self.asked = asyncio.Event()

    async def chat(self, request: ChatRequest) -> Reply:
        if not self.asked.is_set():
            self.asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await super().chat(request)


async def test_a_client_that_catches_the_cancellation_lets_nothing_run() -> None:
    client = Stubborn([call("add", a=1, b=2), "three"])
    sink = MemorySink()
    agent = Agent(client, ToolRunner(TOOLS, sinks=[sink]))
    task = asyncio.ensure_future(agent.run("go"))
    await client.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.records == []


async def test_a_client_that_catches_the_end_of_the_time_lets_nothing_run() -> None:
    client = Stubborn([call("add", a=1, b=2), "three"])
    result = await Agent(client, TOOLS, limits=Limits(seconds=0.01)).run("go")
    assert (result.status, result.limit, result.records) == ("limited", "seconds", ())


@pytest.mark.parametrize("by", ["agent", "runner"])
async def test_a_repairer_that_catches_the_cancellation_lets_nothing_run(by: str) -> None:
    asked = asyncio.Event()

    class Repairer:
        name = "stubborn"

        async def __call__(self, _request: RepairRequest) -> str:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "{}"

    ran: list[int] = []

    @tool(visible=ALL, read_only=True)
    async def look() -> None:
        """Look."""
        ran.append(1)

    runner = ToolRunner([look], repairer=Repairer(), policy=[Standard(repaired_reads="allow")])
    broken = Agent(ScriptedClient([raw_call("look", "{,}"), "done"]), runner)
    works = {"agent": broken.run("go"), "runner": runner.exec(ToolCall("c", "look", "{,}"))}
    task: asyncio.Future[object] = asyncio.ensure_future(works.pop(by))
    works.popitem()[1].close()
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []


async def test_a_session_remembers_and_can_be_saved() -> None:
    client = ScriptedClient([call("add", a=1, b=2), "three", "four"])
    session = Session(Agent(client, TOOLS, instructions="be kind"))
    await session.send("one and two?")
    restored = Session.from_json(session.agent, session.to_json())
    assert restored.messages == session.messages
    result = await restored.send("and one more?")
    assert result.text == "four"
    roles = [m.role for m in client.requests[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    with pytest.raises(SourceError, match="not a saved session"):
        Session.from_json(session.agent, "{")


async def test_a_session_takes_one_question_at_a_time() -> None:
    session = Session(Agent(ScriptedClient([call("slow")]), TOOLS))
    task = asyncio.ensure_future(session.send("go"))
    await asyncio.sleep(0)
    with pytest.raises(ToolcribError, match="busy"):
        await session.send("again")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_streamed_turn_is_a_turn_like_any_other() -> None:
    client = ScriptedClient([call("add", a=1, b=2), "three", "four"])
    session = Session(Agent(client, TOOLS))
    stream = session.stream("one and two?")
    with pytest.raises(ToolcribError, match="busy"):
        session.stream("and then?")
    with pytest.raises(ToolcribError, match="busy"):
        await session.send("and then?")
    async for event in stream:
        if isinstance(event, Done):
            assert session.messages == event.result.messages
    await session.send("and one more?")
    roles = "user assistant tool assistant user assistant"
    assert [message.role for message in session.messages] == roles.split()


async def test_a_stream_that_called_nothing_leaves_the_session_as_it_was() -> None:
    session = Session(
        Agent(ScriptedClient([call("slow"), ProviderError("down", 503), "yes", "still"]), TOOLS)
    )
    before = asyncio.all_tasks()
    stream = session.stream("go")
    (task,) = asyncio.all_tasks() - before
    task.cancel()  # before it began: there is no result at all
    with pytest.raises(asyncio.CancelledError):
        await stream.result()
    async with session.stream("go") as left:
        async for event in left:
            if isinstance(event, ToolCallStarted):
                break
    assert (await left.result()).status == "cancelled"
    assert "not known" in session.messages[-1].content  # what was begun is in the conversation
    kept = session.messages
    with pytest.raises(ProviderError, match="down"):
        await session.stream("go").result()
    assert session.messages == kept
    assert (await session.send("there?")).text == "yes"
    with pytest.raises(TypeError, match="prompt must be a str"):
        session.stream(None)  # type: ignore[arg-type]
    assert (await session.send("still there?")).status == "completed"


async def test_the_caller_reaches_policy_and_record() -> None:
    client = ScriptedClient([call("add", a=1, b=2), "three"])
    result = await Agent(client, TOOLS).run("go", caller=Caller("ada", ("admin",)))
    assert result.records[0].caller == "ada"
    assert result.records[0].run_id == result.state.run_id


async def test_history_is_continued_and_the_system_text_is_the_agents_own() -> None:
    client = ScriptedClient(["yes"])
    past = (Message.system("old"), Message.user("hi"), Message.assistant("hello"))
    await Agent(client, TOOLS, instructions="new").run("still there?", history=past)
    assert [m.content for m in client.requests[0].messages] == [
        "new",
        "hi",
        "hello",
        "still there?",
    ]


async def test_text_that_was_cut_is_a_limit() -> None:
    from toolcrib import Reply

    cut = Reply(Message.assistant("half a sen"), "length")
    result = await Agent(ScriptedClient([cut]), TOOLS).run("go")
    assert (result.status, result.limit, result.text) == ("limited", "length", "half a sen")


def test_what_run_sync_raises_has_no_other_error_before_it() -> None:
    with pytest.raises(ToolcribError) as raised:
        run_sync(Agent(ScriptedClient([ToolcribError("the line is down")])).run("hi"))
    assert raised.value.__context__ is None


def test_run_sync_runs_and_refuses_inside_a_loop() -> None:
    agent = Agent(ScriptedClient(["hello", "hello"]), TOOLS)
    assert run_sync(agent.run("hi")).text == "hello"

    async def inside() -> None:
        with pytest.raises(ToolcribError, match="already"):
            run_sync(agent.run("hi"))

    asyncio.run(inside())


def test_a_stream_needs_a_loop() -> None:
    with pytest.raises(ToolcribError, match=r"running event loop: .*run_sync\(agent.run"):
        Agent(ScriptedClient(["hello"]), TOOLS).stream("hi")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("instruction", r"mean 'instructions'\?\); there are: model, .*limits, .*, temperature"),
        ("max_turns", r"set it in the agent's limits: limits=Limits\(turns=…\)"),
        ("seconds", r"set it in the agent's limits: limits=Limits\(seconds=…\)"),
        ("approver", r"its runner has 'approver': Agent\(model, ToolRunner\(tools, approver=…\)\)"),
        ("sinks", r"ToolRunner\(tools, sinks=…\)"),
        ("policies", r"ToolRunner\(tools, policy=…\)"),
        ("audit", r"ToolRunner\(tools, sinks=…\)"),
        ("caller", r"each run has it: agent.run\(prompt, caller=…\)"),
        ("deps", r"each run has it: agent.run\(prompt, deps=…\)"),
        ("system_prompt", r"it is called 'instructions'"),
        ("max_steps", r"the agent's limits: limits=Limits\(turns=…\)"),
        ("memory", r"a session keeps a conversation: agent.session\(\)"),
        ("retries", r"a client has it for requests, and Limits\(corrections=…\) for typed answers"),
        ("output_type", r"mean 'output'\?"),
    ],
)
def test_an_unknown_option_is_told_whose_it_is(option: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Agent(ScriptedClient([]), TOOLS, **{option: "x"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("temprature", r"mean 'temperature'\?\); there are: caller, deps, history, temperature, "),
        ("output", r"its agent has it: Agent\(model, tools, output=…\)"),
        ("tools", r"its agent has it: agent.replace\(tools=…\)"),
        ("system", r"its agent has it: Agent\(model, tools, instructions=…\)"),
        ("max_turns", r"the agent's limits: Agent\(model, tools, limits=Limits\(turns=…\)\)"),
        ("approver", r"its runner has 'approver': Agent\(model, ToolRunner\(tools, approver=…\)\)"),
        ("user", r"it is called 'caller'"),
        ("messages", r"it is called 'history'"),
        ("role", r"there is no option 'role'; there are: caller, "),
    ],
)
def test_an_unknown_option_of_a_run_is_told_whose_it_is(option: str, words: str) -> None:
    agent = Agent(ScriptedClient([]), TOOLS)
    given: Any = {option: "x"}
    with pytest.raises(TypeError, match=words):
        run_sync(agent.run("hi", **given))
    with pytest.raises(TypeError, match=words):
        run_sync(agent.session().send("hi", **given))


@pytest.mark.parametrize(
    "option", [name for name in signature(Agent).parameters if name != "options"]
)
def test_a_run_refers_to_its_agent_for_each_option_of_the_agent(option: str) -> None:
    given: Any = {option: "x"}
    by_replacing = option in signature(Agent.replace).parameters
    how = f"agent.replace({option}=…)" if by_replacing else f"Agent(model, tools, {option}=…)"
    with pytest.raises(TypeError, match=re.escape(f"its agent has it: {how}")):
        run_sync(Agent(ScriptedClient([]), TOOLS).run("hi", **given))


def test_a_repr_says_which_agent_and_conversation_it_is() -> None:
    agent = Agent(ScriptedClient(["hello"]), [TOOLS[0]], name="shop")
    session = agent.session()
    result = run_sync(session.send("hi"))
    assert repr(agent) == "<Agent 'shop' of scripted, 1 tool>"
    assert repr(session) == "<Session of <Agent 'shop' of scripted, 1 tool>, 2 messages>"
    assert result.run_id == result.state.run_id


def test_replace_keeps_the_rest() -> None:
    agent = Agent(ScriptedClient([]), TOOLS, instructions="x", limits=Limits(turns=3))
    other = agent.replace(model=ScriptedClient(["hello"]))
    assert (other.instructions, other.limits, other.runner) == ("x", Limits(turns=3), agent.runner)
    assert run_sync(other.run("hi")).text == "hello"


def test_the_statuses_are_closed() -> None:
    from typing import get_args

    assert set(get_args(RunStatus)) == {"completed", "waiting", "limited", "failed", "cancelled"}


async def test_a_time_out_of_the_providers_own_is_an_error_like_any_other() -> None:
    def breaks(_request: object) -> Any:
        raise TimeoutError("socket")

    agent = Agent(ScriptedClient([breaks] * 2), TOOLS, limits=Limits(seconds=60))
    stream = agent.stream("go")
    assert [type(event) async for event in stream] == [RunStarted, RunError, Done]
    with pytest.raises(TimeoutError, match="socket"):
        await stream.result()


async def test_each_call_over_a_limit_is_recorded_even_if_a_sink_fails() -> None:
    class Broken:
        def __init__(self) -> None:
            self.ids: list[str] = []

        def write(self, record: ToolInvocationRecord) -> None:
            self.ids.append(record.id)
            raise OSError("disk full")

    sink = Broken()
    client = ScriptedClient([[call("add", a=n, b=1) for n in range(3)]])
    agent = Agent(client, ToolRunner(TOOLS, sinks=[sink]), limits=Limits(calls=2))
    with pytest.raises(OSError, match="disk full"):
        await agent.run("go")
    assert len(set(sink.ids)) == 3


class Odd:
    """A client of an application that does not do as `LLMClient` says."""

    model = "odd"

    def __init__(self, *given: object) -> None:
        self.given = given

    async def chat(self, _request: object) -> object:
        return self.given[0]

    async def stream(self, _request: object) -> AsyncIterator[object]:
        for part in self.given:
            yield part


async def test_what_a_client_gives_is_a_reply() -> None:
    with pytest.raises(TypeError, match="the reply of the client must be a Reply; got a dict"):
        await Agent(Odd({"text": "hello"}), []).run("hi")  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [(5,), (TextPart("hello"), "hello")])
async def test_what_a_client_streams_is_a_part(parts: tuple[object, ...]) -> None:
    stream = Agent(Odd(*parts), []).stream("hi")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="each part that the client streams must be a TextPart"):
        await stream.result()


@pytest.mark.parametrize("role", ["user", "tool", "system"])
async def test_a_reply_is_the_assistants(role: Any) -> None:
    reply = Reply(Message(role, tool_calls=(ToolCall("1", "add", '{"a": 1, "b": 2}'),)), "stop")
    with pytest.raises(ClientError, match="not the assistant's"):
        await Agent(Odd(reply), TOOLS).run("hi")  # type: ignore[arg-type]


@pytest.mark.parametrize("finish", [*get_args(FinishReason)])
async def test_no_call_of_a_reply_that_is_not_whole_runs(finish: FinishReason) -> None:
    """A client of an application may say that its reply was cut, and not that the calls in it were."""
    calls = (ToolCall("1", "add", '{"a": 1, "b": 2}'),)
    reply = Reply(Message.assistant("", calls), finish)
    agent = Agent(Odd(reply), TOOLS, limits=Limits(turns=1))  # type: ignore[arg-type]
    (record,) = (await agent.run("hi")).records
    whole = finish in ("tool_calls", "stop")
    assert record.status == ("completed" if whole else "failed")
    assert (record.error and record.error.code) == (None if whole else ErrorCode.TRUNCATED)


async def test_an_answer_to_what_nobody_asked_is_refused() -> None:
    @tool(visible=ALL, safe=False)
    async def refund() -> str:
        """Refund."""
        return "refunded"

    async def nobody(_request: ApprovalRequest) -> None:
        return None

    client = ScriptedClient([call("refund"), "It is done."])
    agent = Agent(client, ToolRunner([refund], approver=nobody))
    waiting = await agent.run("go")
    yes = {waiting.pending[0].id: Approve(by="grace")}
    with pytest.raises(ApprovalError, match="'apr_1', which this state does not ask") as raised:
        await agent.resume(waiting.state, {**yes, "apr_1": Approve(by="grace")})
    assert raised.value.code is ErrorCode.UNKNOWN_APPROVAL
    assert (await agent.resume(waiting.state, yes)).text == "It is done."
