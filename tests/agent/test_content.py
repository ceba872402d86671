"""Content of results on its way: to the model, into what is saved, and back out of it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from toolcrib import (
    ALL,
    Agent,
    Approve,
    File,
    Image,
    Link,
    Message,
    RunState,
    Session,
    ToolCall,
    ToolContent,
    ToolRunner,
    tool,
)
from toolcrib.agent.history import result_message
from toolcrib.approvals import ApprovalStore
from toolcrib.audit import AuditLog
from toolcrib.clients import OpenAIClient
from toolcrib.runner import CallScope
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.values.context import RunTally
from toolcrib.values.run import ToolCallFinished

CANARY = "canary-77b0"
PNG = Image.from_bytes("image/png", CANARY.encode())
PARTS = ("here it is", PNG, File("text/plain", text="a note"), Link("demo://1"))
KEY = b"a key of thirty-two random bytes"


@tool(visible=ALL)
async def look() -> list[str | Image | File | Link]:
    """Look."""
    return list(PARTS)


@tool(visible=["sum"])
async def chart(quarter: int) -> ToolContent[dict[str, int]]:
    """Draw the sales of a quarter."""
    return ToolContent({"sum": quarter, "cost": 9}, [PNG])


@tool(visible=ALL, model_visible=["sum"], output_schema={"properties": {"sum": {}}})
async def kept() -> Any:
    """Draw, for the application alone."""
    return ToolContent({"sum": 1, "cost": 9}, [PNG, "more"])


@tool(visible=ALL, safe=False)
async def pay() -> str:
    """Pay."""
    return "paid"


def agent(*turns: Any, **options: Any) -> Agent:
    runner = ToolRunner([look, chart, kept, pay], approver=ApprovalStore("sqlite://"))
    return Agent(ScriptedClient(turns), runner, **options)


def results_of(messages: tuple[Message, ...]) -> list[tuple[str, Any]]:
    return [(m.content, m.parts) for m in messages if m.role == "tool"]


async def test_a_model_reads_the_value_and_is_shown_the_parts_behind_it() -> None:
    one = agent([call("look"), call("chart", quarter=3), call("kept")], "Seen.")
    result = await one.run("Look.")
    assert results_of(result.messages) == [
        ("here it is", PARTS[1:]),
        ('{"sum":3,"cost":9}', (PNG,)),
        ('{"sum":1}\n\n[not shown to you: image/png, 11 bytes; text, 4 bytes]', ()),
    ]
    client = one.client
    assert isinstance(client, ScriptedClient)
    assert results_of(client.requests[1].messages) == results_of(result.messages)


async def test_events_have_nothing_of_it() -> None:
    shown = []
    async with agent([call("look"), call("chart", quarter=3)], "Seen.").stream("Look.") as events:
        async for event in events:
            if isinstance(event, ToolCallFinished):
                shown.append(event.record)
    assert [record.result for record in shown] == [None, {"sum": 3}]
    assert [[str(info) for info in record.parts] for record in shown] == [
        ["text, 10 bytes", "image/png, 11 bytes", "text/plain, 6 bytes", "link"],
        ["image/png, 11 bytes"],
    ]


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_run_that_waits_is_saved_with_it_and_goes_on(key: bytes | None) -> None:
    waits = await agent([call("look"), call("pay")], state_key=key).run("Look, and pay.")
    assert waits.status == "waiting"
    state = RunState.from_json(waits.state.to_json())
    assert state.messages == waits.state.messages
    later = agent("Seen.", state_key=key)
    answers = {waits.pending[0].id: Approve("grace")}
    done = await later.resume(state, answers)
    assert done.status == "completed"
    assert results_of(done.messages) == [("here it is", PARTS[1:]), ("paid", ())]


async def test_a_conversation_is_saved_with_it() -> None:
    session = Session(agent([call("look")], "Seen."))
    await session.send("Look.")
    again = Session.from_json(agent("Yes."), session.to_json())
    assert again.messages == session.messages
    await again.send("Sure?")
    assert results_of(again.messages) == [("here it is", PARTS[1:])]


async def test_what_only_a_ledger_remembers_is_told_as_lost(tmp_path: Any) -> None:
    asked = ToolCall("c", "chart", '{"quarter": 3}')
    told = []
    for _ in range(2):  # each in a process that knows nothing of the other
        async with AuditLog(f"sqlite:///{tmp_path / 'audit.db'}") as log:
            runner = ToolRunner([chart], sinks=[log])
            outcome = await runner.exec(asked, scope=CallScope(RunTally("run_1")))
            message = result_message(asked, outcome, None)
            assert message is not None
            told.append((message.content, message.parts))
    lost = "The result of this call had content that was not kept: image/png, 11 bytes."
    assert told == [('{"sum":3,"cost":9}', (PNG,)), (f'{lost}\n\n{{"sum":3}}', ())]


async def test_an_image_reaches_a_server_as_an_image() -> None:
    async with openai_server([[call("look")], "Seen."]) as server:
        async with OpenAIClient("m", base_url=server.url) as client:
            await Agent(client, ToolRunner([look])).run("Look.")
        said = server.requests[1]["messages"]
    data = base64.b64encode(CANARY.encode()).decode()
    assert said[-1]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{data}"
    assert said[-2]["content"] == (
        "here it is\n\n[image: image/png, 11 bytes; attachment 1]\n\n"
        "[file text/plain]\na note\n\n[link] demo://1"
    )


async def test_a_server_of_a_model_for_text_is_told_of_it() -> None:
    async with openai_server([[call("look")], "Seen."]) as server:
        async with OpenAIClient("m", base_url=server.url, result_media=()) as client:
            await Agent(client, ToolRunner([look])).run("Look.")
        said = server.requests[1]["messages"]
    assert said[-1]["role"] == "tool"
    assert "[image: image/png, 11 bytes; not shown here]" in said[-1]["content"]
