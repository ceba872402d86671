"""A plan that nobody runs is written down, and is never taken for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib import ALL, Caller, Catalog, Completed, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.cli.audit import stories
from toolcrib.clients import OpenAIClient
from toolcrib.errors import ErrorCode
from toolcrib.hydration import hydrate
from toolcrib.testing import MemorySink, ScriptedClient, call, openai_server, raw_call
from toolcrib.values.call import PayloadRef
from toolcrib.values.message import ChatRequest, Message, Plan
from toolcrib.values.record import ToolInvocationRecord, prompt_of

RAN: list[int] = []
CANARY = "canary-77"


@tool(visible=ALL, secret=["pin"], safe=False)
async def pay(cents: int, pin: str = "") -> int:
    """Pay."""
    RAN.append(cents)
    return cents


PLAN = [call("pay", cents=5), raw_call("pay", f'{{"cents": "{CANARY}"}}'), call("nothing")]


async def test_each_call_of_a_plan_has_a_record_and_none_has_run() -> None:
    RAN.clear()
    sink = MemorySink()
    plan = await ScriptedClient([PLAN]).tool_call("Pay 5.", [pay])
    await ToolRunner([pay], sinks=[sink]).record_plan(plan, caller=Caller("ada", ("boss",)))
    first, second, third = sink.records
    assert [r.status for r in sink.records] == ["planned", "rejected", "rejected"]
    assert first.arguments == {"cents": 5, "pin": "***"}
    assert (first.defaulted, first.definition_digest) == (("/pin",), pay.definition.digest)
    assert (first.caller, first.caller_roles) == ("ada", ("boss",))
    assert (second.arguments, second.error and second.error.code) == (
        None,
        ErrorCode.INVALID_ARGUMENTS,
    )
    assert third.error is not None
    assert third.error.code is ErrorCode.UNKNOWN_TOOL
    assert {r.idempotency_key for r in sink.records} == {""}
    assert {r.ended_at for r in sink.records} == {None}
    assert [a.kind for a in sink.attachments] == ["definition"]
    assert sink.finished() == []
    assert CANARY not in repr(sink.records)
    assert RAN == []


async def test_it_says_from_which_prompt_it_is() -> None:
    sink = MemorySink()
    asked = ChatRequest((Message.system("Be kind."), Message.user("Pay 5.")))
    plan = await ScriptedClient([PLAN]).tool_call(asked, [pay])
    await ToolRunner([pay], sinks=[sink]).record_plan(plan)
    origin = sink.records[0].origin
    assert origin is not None
    assert origin.prompt_digest == prompt_of(asked.messages, [pay]).digest
    await ToolRunner([pay], sinks=[sink]).record_plan(Plan(plan[:1], plan.reply))
    unasked = sink.records[-1].origin
    assert unasked is not None
    assert unasked.prompt_digest == ""


async def test_it_refers_to_the_model_and_to_the_providers_payload(tmp_path: Path) -> None:
    """To the payload by digest, size and the call's position in it; in the log, too."""
    sink = MemorySink()
    async with (
        openai_server([PLAN[:2]]) as server,
        OpenAIClient("m", base_url=server.url) as client,
        AuditLog(f"sqlite:///{tmp_path}/crib.db") as log,
    ):
        plan = await client.tool_call("Pay 5.", [pay])
        await ToolRunner([pay], sinks=[sink, log]).record_plan(plan)
        logged = [entry.record.payload for entry in await log.entries()]
    told = {(r.origin.model, r.origin.provider) for r in sink.records if r.origin is not None}
    assert told == {(plan.reply.model, plan.reply.provider)}
    assert "" not in told.pop()
    reference = plan[0].call.payload
    assert reference is not None
    assert (len(reference.digest), reference.size > 100) == (64, True)
    wanted = [PayloadRef(reference.digest, reference.size, at) for at in (0, 1)]
    assert [record.payload for record in sink.records] == wanted
    assert sorted(logged, key=lambda one: one.position if one else -1) == wanted


async def test_what_was_hydrated_elsewhere_is_written_down_too() -> None:
    sink = MemorySink()
    made = [
        hydrate(
            ToolCall("c", "pay", '{"cents": 5, "pin": "1234"}', provider_id="p1"), Catalog([pay])
        )
    ]
    await ToolRunner([pay], sinks=[sink]).record_plan(made)
    (record,) = sink.records
    assert (record.provider_id, record.origin) == ("p1", None)
    assert record.arguments == {"cents": 5, "pin": "***"}
    assert record.arguments_mac
    assert "1234" not in repr(record).replace(record.arguments_mac, "")


async def test_a_ledger_does_not_take_it_for_a_run(tmp_path: Path) -> None:
    """It runs afterwards, once, and its story tells both."""
    RAN.clear()

    @tool(visible=ALL)
    async def charge(cents: int) -> int:
        """Charge."""
        RAN.append(cents)
        return cents

    plan = await ScriptedClient([[call("charge", cents=7)]]).tool_call("Charge 7.", [charge])
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db") as log:
        for _ in range(2):
            await ToolRunner([charge], sinks=[log]).record_plan(plan)
        (latest,) = await log.entries(AuditFilter(latest=True))
        assert latest.record.status == "planned"
        (story,) = stories(await log.entries())
        assert story.why() == "It has not run: it was only planned, never started."
        for _ in range(2):
            outcome = await ToolRunner([charge], sinks=[log]).exec(plan[0])
            assert isinstance(outcome, Completed)
        assert RAN == [7]
        entries = await log.entries()
        statuses = [entry.record.status for entry in entries]
        assert statuses == ["planned", "planned", "started", "completed"]
        (latest,) = await log.entries(AuditFilter(latest=True))
        assert latest.record.status == "completed"
        (story,) = stories(entries)
        assert story.why().startswith("It ran because")
        assert [told.what for told in story.lines()].count("planned") == 2


async def test_a_rejected_one_tells_why(tmp_path: Path) -> None:
    plan = await ScriptedClient([PLAN[1:2]]).tool_call("Pay.", [pay])
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db") as log:
        await ToolRunner([pay], sinks=[log]).record_plan(plan)
        (story,) = stories(await log.entries())
        lines = [json.loads(line) async for line in log.export()]
        exported = [line["record"] for line in lines if "record" in line]
    assert story.why().startswith("It has not run: it was planned, and rejected: invalid_arguments")
    assert [record["status"] for record in exported[-2:]] == ["definition", "rejected"]


async def test_all_of_it_is_written_where_one_sink_fails() -> None:
    class Full:
        def write(self, _record: ToolInvocationRecord) -> Any:
            raise OSError("the disk is full")

    sink = MemorySink()
    plan = await ScriptedClient([PLAN]).tool_call("Pay 5.", [pay])
    with pytest.raises(OSError, match="the disk is full"):
        await ToolRunner([pay], sinks=[Full(), sink]).record_plan(plan)
    assert len(sink.records) == 3
