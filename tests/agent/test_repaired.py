"""A repairer in the loop: policy asks, history is what a provider accepts, a saved run goes on."""

from __future__ import annotations

from toolcrib import ALL, Agent, Completed, RunState, ToolCall, ToolRunner, tool
from toolcrib.errors import ErrorCode
from toolcrib.hydration import RepairRequest
from toolcrib.policies import Standard
from toolcrib.testing import MemorySink, ScriptedClient, raw_call
from toolcrib.values.decision import Answer, ApprovalRequest, Approve
from toolcrib.values.run import ToolCallStarted

BROKEN = '{"a": 1, "b": 2,}'


@tool(visible=ALL, read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Fix:
    """Takes the trailing comma away, and counts how often it was asked."""

    name = "fix"

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, request: RepairRequest) -> str | None:
        self.asked += 1
        return request.call.arguments.replace(",}", "}")


async def yes(_request: ApprovalRequest) -> Answer:
    return Approve(by="grace")


async def later(_request: ApprovalRequest) -> None:
    return None


async def test_a_repaired_call_asks_runs_and_is_marked() -> None:
    sink, fix = MemorySink(), Fix()
    runner = ToolRunner([add], repairer=fix, approver=yes, sinks=[sink])
    outcome = await runner.exec(ToolCall("c", "add", BROKEN))
    assert isinstance(outcome, Completed)
    assert outcome.value == 3
    record = sink.records[0]
    assert (record.repaired, record.repaired_by, record.approved_by) == (True, "fix", "grace")
    assert record.arguments == {"a": 1, "b": 2}
    assert record.arguments_bytes == len(BROKEN)
    assert fix.asked == 1


async def test_without_a_repairer_nothing_is_repaired() -> None:
    outcome = await ToolRunner([add]).exec(ToolCall("c", "add", BROKEN))
    assert outcome.record.error is not None
    assert outcome.record.error.code is ErrorCode.INVALID_JSON


async def test_what_was_rejected_by_somebody_else_is_not_repaired_here() -> None:
    runner = ToolRunner([add], repairer=Fix(), policy=Standard("allow"))
    plain = ToolRunner([add])
    rejected = await plain.hydrate(ToolCall("c", "add", BROKEN))
    assert not isinstance(await runner.exec(rejected), Completed)


async def test_history_has_the_repaired_text() -> None:
    client = ScriptedClient([raw_call("add", BROKEN), "3"])
    runner = ToolRunner([add], repairer=Fix(), policy=Standard("allow"))
    stream = Agent(client, runner).stream("What is 1 + 2?")
    started = [event async for event in stream if isinstance(event, ToolCallStarted)]
    result = await stream.result()
    assert [event.arguments for event in started] == [{"a": 1, "b": 2}]
    assert [c.arguments for m in result.messages for c in m.tool_calls] == ['{"a": 1, "b": 2}']
    assert result.records[0].repaired


async def test_a_saved_run_goes_on_with_the_very_repair_that_was_asked_about() -> None:
    fix = Fix()
    client = ScriptedClient([raw_call("add", BROKEN), "3"])
    waiting = await Agent(client, ToolRunner([add], repairer=fix, approver=later)).run("go")
    assert waiting.status == "waiting"
    assert [c.arguments for m in waiting.messages for c in m.tool_calls] == [BROKEN]
    state = RunState.from_json(waiting.state.to_json())
    request = waiting.pending[0]
    elsewhere = Agent(client, ToolRunner([add]))  # no repairer here: it is not asked again
    result = await elsewhere.resume(state, {request.id: Approve(by="grace")})
    assert result.status == "completed"
    assert result.records[-1].repaired_by == "fix"
    assert result.records[-1].result == 3
    assert fix.asked == 1


async def test_edited_arguments_are_told_to_the_model() -> None:
    async def edits(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"a": 10, "b": 2})

    client = ScriptedClient([raw_call("add", BROKEN), "12"])
    sink = MemorySink()
    runner = ToolRunner([add], repairer=Fix(), approver=edits, sinks=[sink])
    result = await Agent(client, runner).run("go")
    told = next(m.content for m in result.messages if m.role == "tool")
    assert told == (
        'Whoever approved this call changed its arguments. It was made with: {"a":10,"b":2}\n\n12'
    )
    assert sink.records[0].edited
    assert sink.records[0].arguments == {"a": 10, "b": 2}
