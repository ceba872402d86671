"""Strict tools through the whole loop: what a model sends for the strict view runs as the author means.

Over HTTP, so that view, offer, decoder and hydration are those of a real request.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Catalog,
    Completed,
    Limits,
    RunResult,
    RunState,
    ToolArgumentsDelta,
    ToolCallStarted,
    ToolRunner,
    tool,
)
from toolcrib.clients import OpenAIClient
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.testing.scripted import ServerTurn
from toolcrib.values.json import sha256_hex

RAN: list[tuple[Any, ...]] = []


@tool(visible=ALL, strict=True)
async def book(city: str, nights: int = 1, note: str | None = "none") -> str:
    """Book a room.

    Args:
        city: Where.
        nights: How many nights.
        note: A note for the host.
    """
    RAN.append((city, nights, note))
    return f"{nights} nights in {city}"


@tool(visible=ALL, strict=True, safe=False)
async def cancel(city: str, reason: str = "none", refund: bool = True) -> str:
    """Cancel a booking."""
    RAN.append((city, reason, refund))
    return f"cancelled {city}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def drive(agent: Agent, *, streaming: bool) -> tuple[RunResult, list[Any]]:
    if not streaming:
        return await agent.run("Book."), []
    async with agent.stream("Book.") as stream:
        events = [event async for event in stream]
        return await stream.result(), events


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_strict_call_runs_and_is_replayed_as_the_model_made_it(streaming: bool) -> None:
    turns: list[ServerTurn] = [
        [call("book", city="Rome", nights=None, note=None), call("book", city="Bari", nights=3)],
        call("book", city=None, nights=None, note=None),
        "Booked.",
    ]
    async with openai_server(turns) as server, OpenAIClient("m", base_url=server.url) as client:
        result, events = await drive(Agent(client, [book]), streaming=streaming)
    assert (result.status, result.text) == ("completed", "Booked.")
    # `note` may be null, so a null for it is the model's own; `nights` may not, so it was left out
    assert sorted(RAN) == [("Bari", 3, "none"), ("Rome", 1, None)]
    function = server.requests[0]["tools"][0]["function"]
    assert function["strict"] is True
    assert sorted(function["parameters"]["required"]) == ["city", "nights", "note"]
    first, *_, wrong = result.records
    assert first.arguments == {"city": "Rome", "nights": 1, "note": None}
    assert first.defaulted == ("/nights",)
    sent = json.dumps({"city": "Rome", "nights": None, "note": None})
    replayed = server.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(replayed) == json.loads(sent)
    assert first.arguments_sha256 == sha256_hex(replayed)
    assert [detail.path for detail in wrong.error.details] == ["/city"]  # type: ignore[union-attr]
    shown = [e.arguments for e in events if isinstance(e, ToolCallStarted)][:1]
    assert shown == ([{"city": "Rome", "nights": 1, "note": None}] if streaming else [])
    assert any(isinstance(e, ToolArgumentsDelta) for e in events) is streaming


async def test_a_plan_holds_restored_calls_that_a_runner_runs() -> None:
    turn = call("book", city="Rome", nights=None, note="x")
    async with openai_server([turn]) as server, OpenAIClient("m", base_url=server.url) as client:
        (planned,) = await client.tool_call("Book.", [book])
    assert planned.success
    assert planned.arguments == {"city": "Rome", "nights": 1, "note": "x"}
    assert planned.provenance.notes == ("restored",)
    outcome = await ToolRunner([book]).exec(planned)
    assert isinstance(outcome, Completed)
    assert RAN == [("Rome", 1, "x")]


async def nobody(_request: object) -> None:
    return None


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_run_that_waited_resumes_with_what_was_approved(elsewhere: bool) -> None:
    """Also in another process with another model, which knows nothing of the first one's view."""
    runner = ToolRunner([book, cancel], approver=nobody)
    asked = [
        call("cancel", city="Rome", reason=None, refund=False),
        call("book", city="Bari", nights=None, note=None),
        call("cancel", city="Bari", reason=None, refund=None),
    ]
    turns: list[ServerTurn] = [asked, "Cancelled."]
    async with openai_server(turns) as server, OpenAIClient("m", base_url=server.url) as client:
        waiting = await Agent(client, runner).run("Cancel.")
        assert waiting.status == "waiting"
        assert [p.arguments for p in waiting.pending] == [
            {"city": "Rome", "reason": "none", "refund": False},
            {"city": "Bari", "reason": "none", "refund": True},
        ]
        assert [p.defaults for p in waiting.pending] == [("/reason",), ("/reason", "/refund")]
        state = RunState.from_json(waiting.state.to_json())
        assert list(state.restored) == [p.call_id for p in waiting.pending]
        first, second = waiting.pending
        model = ScriptedClient(["Cancelled."]) if elsewhere else client
        agent = Agent(model, runner)
        again = await agent.resume(state, {first.id: Approve("grace")})
        assert [p.id for p in again.pending] == [second.id]
        state = RunState.from_json(again.state.to_json())
        assert list(state.restored) == [second.call_id]
        done = await agent.resume(state, {second.id: Approve("grace")})
    assert (done.status, done.text) == ("completed", "Cancelled.")
    assert sorted(RAN, key=str) == [
        ("Bari", "none", True),
        ("Bari", 1, None),
        ("Rome", "none", False),
    ]
    assert done.state.restored == {}
    texts = {made.id: made.arguments for m in done.messages for made in m.tool_calls}
    assert json.loads(texts[first.call_id]) == {"city": "Rome", "reason": None, "refund": False}
    assert all(r.arguments_sha256 == sha256_hex(texts[r.id]) for r in done.records)


async def test_a_limited_run_keeps_nothing_of_calls_that_have_a_result() -> None:
    turn = call("book", city="Rome", nights=None, note=None)
    async with openai_server([turn]) as server, OpenAIClient("m", base_url=server.url) as client:
        result = await Agent(client, [book], limits=Limits(turns=1)).run("Book.")
    assert (result.status, result.state.restored) == ("limited", {})
    assert RAN == [("Rome", 1, None)]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("sent", [{"arguments": {"id": 7}}, {"id": 7}])
async def test_a_union_at_the_top_is_wrapped_and_unwrapped(
    sent: dict[str, Any], streaming: bool
) -> None:
    """OpenAI refuses one at the top; a model that answers without the wrapper is understood."""

    def find(**either: Any) -> str:
        RAN.append(tuple(either.items()))
        return "found"

    schema = {
        "type": "object",
        "anyOf": [
            {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
            {"properties": {"name": {"type": "string"}}, "required": ["name"]},
        ],
    }
    given = {"name": "find", "description": "Find one.", "input_schema": schema}
    catalog = Catalog.from_definitions([given], handlers={"find": find}, visible=ALL)
    turns: list[ServerTurn] = [call("find", **sent), "Found."]
    async with openai_server(turns) as server, OpenAIClient("m", base_url=server.url) as client:
        result, _ = await drive(Agent(client, catalog), streaming=streaming)
    parameters = server.requests[0]["tools"][0]["function"]["parameters"]
    assert set(parameters["properties"]) == {"arguments"}
    assert (result.status, RAN) == ("completed", [(("id", 7),)])
    replayed = server.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(replayed) == sent
