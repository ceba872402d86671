"""What toolcrib does of the rows of `docs/compared.md`. Run it to see; `compare.py` runs it, too."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import features
from features import CUT_TURNS, CUT_WAYS, LONG, PIXEL, WRONG_KEYS, Call, Cell, Line, Notes, no, yes

import toolcrib
from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Ask,
    Caller,
    Catalog,
    ContextOptions,
    HandedOver,
    Image,
    Limits,
    PartialOutput,
    PickOptions,
    ResultStore,
    RunResult,
    RunState,
    ToolRunner,
    ToolsOffered,
    kit,
    tool,
    toolset,
)
from toolcrib.approvals import Always, ApprovalStore, answer_later
from toolcrib.audit import AuditLog
from toolcrib.clients import GeminiClient, OpenAIClient
from toolcrib.errors import ClientError, RequestError, SourceError
from toolcrib.policies import budget
from toolcrib.spending import SpendStore
from toolcrib.testing import ScriptedClient, call, raw_call

ran: list[tuple[int, int]] = []


@tool(visible=ALL, safe=False, cost=1)
async def refund(order: int, cents: int) -> str:
    """Refund a part of an order."""
    ran.append((order, cents))
    return f"refunded {cents} cents of order {order}"


async def allow(_request: object) -> Approve:
    return Approve(by="grace")


def made_freely(*more: Any, **options: Any) -> ToolRunner:
    """Return a runner of `refund`, with somebody who says yes to everything."""
    return ToolRunner([refund, *more], approver=allow, **options)


def code_of(result: RunResult) -> str:
    """Return why the first call did not run."""
    error = result.records[0].error
    return error.code if error else ""


async def truncated_call() -> Cell:
    seen = {}
    for name, stream in CUT_WAYS:
        ran.clear()
        with features.wire(CUT_TURNS[name], features.Turn(text="Done.")) as server:
            client = OpenAIClient("gpt-4o", base_url=server.url, api_key="k", retries=None)
            async with client:
                try:
                    if stream:
                        async with Agent(client, made_freely()).stream("Refund.") as told:
                            await told.result()
                    else:
                        await Agent(client, made_freely()).run("Refund.")
                except ClientError:
                    pass  # a cut stream is an error of the wire
        seen[name, stream] = bool(ran)
    return features.judged_cuts(seen)


async def unknown_keys() -> Cell:
    taken: list[Line] = []

    @tool(visible=ALL)
    async def order(line: Line, note: str = "") -> str:
        """Order an article."""
        taken.append(line)
        return "ordered"

    refused = []
    for arguments, where in zip(WRONG_KEYS, ("/*", "/line/*"), strict=True):
        model = ScriptedClient([call("order", **arguments), "Sorry."])
        result = await Agent(model, [order]).run("Tea.")
        refused.append(code_of(result) == "invalid_arguments" and not taken)
        assert f'"path":"{where}"' in model.requests[1].messages[-1].content
    return features.judged_keys(refused, refused)


async def string_for_int() -> Cell:
    ran.clear()
    model = ScriptedClient([call("refund", order="5", cents=9), "Sorry."])
    result = await Agent(model, made_freely()).run("Refund.")
    assert (ran, code_of(result)) == ([], "invalid_arguments")
    assert "/order" in model.requests[1].messages[-1].content
    return yes("the model reads where")


async def async_policy() -> Cell:
    async def raises(_call: object, _context: object) -> Allow:
        raise ConnectionError("the other system is away")

    async def hangs(_call: object, _context: object) -> Allow:
        await asyncio.sleep(3_600)
        return Allow()

    ran.clear()
    codes = []
    for policy in (raises, hangs):
        model = ScriptedClient([call("refund", order=7, cents=9), "Sorry."])
        runner = made_freely(policy=policy, policy_seconds=0.2)
        result = await Agent(model, runner).run("Refund.")
        codes.append((result.status, code_of(result)))
    assert (ran, codes) == ([], [("completed", "denied")] * 2)
    return yes("both deny the call")


async def approval_bound() -> Cell:
    for key in (None, b"k" * 32):
        ran.clear()
        model = ScriptedClient([call("refund", order=7, cents=500), "Done."])
        agent = Agent(model, ToolRunner([refund], approver=answer_later), state_key=key)
        waits = await agent.run("Refund.")
        yes_to_it = {waits.pending[0].id: Approve("grace")}
        changed = waits.state.to_json().replace("500", "50000")
        with contextlib.suppress(SourceError):
            await agent.resume(RunState.from_json(changed), yes_to_it)
        assert not ran
        await agent.resume(waits.state, yes_to_it)
        assert ran == [(7, 500)]
    return yes("a state that was changed is refused")


async def always_rule() -> Cell:
    ran.clear()
    store = ApprovalStore("sqlite:///rules.db", state_key=b"k" * 32)
    ada = Caller("ada")

    async def asks(order: int, cents: int) -> bool:
        model = ScriptedClient([call("refund", order=order, cents=cents), "Done."])
        agent = Agent(model, ToolRunner([refund], approver=store), state_key=b"k" * 32)
        result = await agent.run("Refund.", caller=ada)
        if result.status == "waiting" and not await store.rules():
            rule = Approve(by="grace", always=Always(open=("cents",)))
            await store.answer(result.pending[0].id, rule)
            await agent.resume(result.state)
        return result.status == "waiting"

    seen = [await asks(79, 500), await asks(79, 20), await asks(80, 20)]
    [rule] = await store.rules()
    await store.revoke(rule.id)
    seen.append(await asks(79, 20))
    await store.aclose()
    assert (seen, ran[:2]) == ([True, False, True, True], [(79, 500), (79, 20)])
    return yes("each argument kept or left open, for one user, until revoked")


async def spend_per_caller() -> Cell:
    ran.clear()
    ended = []
    for who in ("ada", "ada", "ada", "bob"):  # each as in a process of its own
        store = SpendStore("sqlite:///spent.db")
        a_day = budget(cost=2, per="caller", store=store, window=86_400)
        model = ScriptedClient([call("refund", order=7, cents=9), "Done."])
        result = await Agent(model, made_freely(policy=a_day)).run("Refund.", caller=Caller(who))
        ended.append(result.records[0].status)
        await store.aclose()
    assert ended == ["completed", "completed", "failed", "completed"]
    return yes("calls or cost, in a window of time")


async def audit_verifies() -> Cell:
    async with AuditLog("sqlite:///log.db") as log:
        model = ScriptedClient([call("refund", order=7, cents=900), "Done."])
        await Agent(model, made_freely(sinks=[log])).run("Refund.")
        assert (await log.verify()).ok
    with contextlib.closing(sqlite3.connect("log.db")) as database:
        changed = "update audit_entries set record = replace(record, '900', '909')"
        assert database.execute(changed).rowcount
        database.commit()
    async with AuditLog("sqlite:///log.db") as log:
        assert not (await log.verify()).ok
    return yes("chained and sealed")


async def repeated_calls() -> Cell:
    @tool(visible=ALL, read_only=True)
    async def look_up(order: int) -> str:
        """Look an order up."""
        return f"order {order} is on its way"

    model = ScriptedClient([call("look_up", order=7)] * 50)
    result = await Agent(model, [look_up], limits=Limits(turns=50)).run("Where is it?")
    assert (result.status, result.limit) == ("limited", "repeated_calls")
    return yes(f"after {len(model.requests)} of 50: `limited`, by `repeated_calls`")


async def empty_reply() -> Cell:
    model = ScriptedClient([""] * 9)
    result = await Agent(model).run("Hello?")
    assert (result.status, result.limit) == ("limited", "empty_reply")
    return yes("asked again, then `limited`, by `empty_reply`")


async def resume_after_failure() -> Cell:
    ran.clear()
    error = toolcrib.errors.ConnectionFailed("the line is down")
    model = ScriptedClient([call("refund", order=7, cents=9), error, "Done."])
    agent = Agent(model, made_freely())
    try:
        await agent.run("Refund.")
    except ClientError as failed:
        saved = failed.state.to_json()
    result = await agent.resume(RunState.from_json(saved))
    assert (result.text, ran) == ("Done.", [(7, 9)])
    return yes("the error has the state")


async def fork() -> Cell:
    ran.clear()
    made = call("refund", order=7, cents=9)
    first = Agent(ScriptedClient([made, "Done."]), made_freely())
    done = await first.run("My tea was cold.")
    other = first.replace(model=ScriptedClient([made, "It was done before."]))
    start = other.fork(done.state, turn=0, prompt="Refund it, please.")
    again = await other.resume(start)
    assert start.fork
    assert [effect.tool for effect in start.fork.effects] == ["refund"]
    assert (ran, code_of(again)) == ([(7, 9)], "repeated_effect")
    return yes("a fork has their list, and does not repeat one")


async def plan() -> Cell:
    ran.clear()
    said = [call("refund", order=7, cents=9), raw_call("refund", "{}")]
    seen = await Agent(ScriptedClient([said]), ToolRunner([refund])).plan("Refund.")
    first, second = seen.calls
    assert isinstance(first.decision, Ask)
    assert second.call.errors[0].code == "invalid_arguments"
    assert not ran
    return yes("arguments, errors and decisions")


async def settings_refused() -> Cell:
    with features.wire(features.Turn(text="Hello.")) as server:
        async with GeminiClient("gemini-2.5-pro", base_url=server.url, api_key="k") as client:
            agent = Agent(client, [refund], parallel_tool_calls=False)
            try:
                await agent.run("Hello?")
            except RequestError:
                assert not server.requests
                return yes("before anything is sent")
    return no("sent")


async def image_prompt() -> Cell:
    with features.wire(features.Turn(text="A pixel.")) as server:
        client = OpenAIClient("gpt-4o", base_url=server.url, api_key="k")
        async with client:
            await Agent(client).run(["What is it?", Image.from_bytes("image/png", PIXEL)])
    assert "data:image/png;base64," in json.dumps(server.requests[0])
    return yes("`Image`")


async def image_result() -> Cell:
    @tool(visible=ALL, read_only=True)
    def screenshot() -> Image:
        """Take a picture of the screen."""
        return Image.from_bytes("image/png", PIXEL)

    turns = (
        features.Turn((Call("screenshot", "{}"),), finish="tool_calls"),
        features.Turn(text="A."),
    )
    with features.wire(*turns) as server:
        client = OpenAIClient("gpt-4o", base_url=server.url, api_key="k")
        async with client:
            await Agent(client, [screenshot]).run("What is it?")
    assert "data:image/png;base64," in json.dumps(server.requests[1])
    return yes("`Image`")


@dataclasses.dataclass
class City:
    name: str
    people: int


async def typed_retries() -> Cell:
    model = ScriptedClient(['{"name": "Rome"}', '{"name": "Rome", "people": 3}'])
    result = await Agent(model, output=City).run("Where?")
    assert result.output == City("Rome", 3)
    assert "people" in model.requests[1].messages[-1].content
    return yes("with what is wrong")


async def partial_output() -> Cell:
    agent = Agent(ScriptedClient(['{"name": "Rome and more", "people": 3}']), output=City)
    async with agent.stream("Where?") as stream:
        seen = [event.value async for event in stream if isinstance(event, PartialOutput)]
        assert (await stream.result()).output == City("Rome and more", 3)
    assert len(seen) > 2
    assert seen[0] != seen[-1]
    return yes("as plain data, not validated yet")


async def context_spill() -> Cell:
    @tool(visible=ALL, read_only=True)
    async def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    def look(request: Any) -> Any:
        mark = request.messages[-1].content.splitlines()[0]
        return call("read_result", id=mark.split("'")[1], search="surplus")

    model = ScriptedClient([call("report", year=2025), look, "It was 12."])
    context = ContextOptions(tokens=32_000, results=ResultStore("sqlite:///results.db"))
    await Agent(model, [report], context=context).run("What was the surplus?")
    sent = [len(request.messages[-1].content) for request in model.requests[1:]]
    assert max(sent) < 10_000
    assert "The surplus was 12." in model.requests[2].messages[-1].content
    return yes("by a tool that reads and searches")


async def handover() -> Cell:
    model = ScriptedClient(["You have it back.", "You are welcome."])
    billing = Agent(model, name="billing", description="Looks after refunds.")
    front = ScriptedClient([call("hand_over_to_billing", reason="A refund.")])
    reception = Agent(front, name="reception", handovers=[billing])
    session = reception.session()
    async with session.stream("My tea was cold.") as stream:
        who = [event.agent async for event in stream if isinstance(event, HandedOver)]
    await session.send("Thanks!")
    assert who == ["billing"]
    assert model.requests[0].messages[0].content == "My tea was cold."
    return yes("and stays")


async def methods_as_tools() -> Cell:
    notes = Notes()
    model = ScriptedClient([call("notes_add_note", text="tea is out"), "Kept."])
    made = toolset(notes, prefix="notes_", visible={"add_note": ALL, "read_notes": ALL})
    await Agent(model, made).run("Note that tea is out.")
    assert (len(made), notes.kept) == (2, ["tea is out"])
    return yes("all at once")


async def background_tools() -> Cell:
    @tool(visible=ALL, background=True)
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    model = ScriptedClient([call("report"), "It is on its way.", "It was 12."])
    result = await Agent(model, [report]).run("What was the surplus?")
    first, later = (str([m.content for m in request.messages]) for request in model.requests[1:])
    assert "The surplus was 12." not in first
    assert "The surplus was 12." in later
    assert (result.text, result.records[0].status) == ("It was 12.", "completed")
    return yes("as a later message, with a record of its own")


async def deferred_tools() -> Cell:
    def ready(name: str) -> Any:
        @tool(visible=ALL, name=name, description=f"Do {name.replace('_', ' ')}.")
        async def run(text: str = "") -> str:
            return f"{name}: {text}"

        return run

    names = [f"do_thing_{at}" for at in range(60)] + ["convert_currency"]
    model = ScriptedClient(
        [
            call("search_tools", query="convert currency", limit=1),
            call("convert_currency", text="10 EUR"),
            "It is 11 USD.",
        ]
    )
    catalog = Catalog([ready(name) for name in names])
    agent = Agent(model, catalog, pick=PickOptions(max_candidates=3), search_tools=True)
    async with agent.stream("What are 10 EUR?") as stream:
        offered = [event.names async for event in stream if isinstance(event, ToolsOffered)]
    assert len(offered[0]) < 10
    assert "convert_currency" in offered[-1]
    return yes("by a search of toolcrib's own")


def lacks(*words: str) -> bool:
    """Return whether nothing in toolcrib, and in its kit, is named like it."""
    names = [*toolcrib.__all__, *(found.stem for found in Path(toolcrib.__file__).parent.iterdir())]
    names += kit.catalog().names
    return not [name for name in names if any(word in name.lower() for word in words)]


async def graph() -> Cell:
    assert lacks("graph", "workflow", "node")
    return no("write it in Python")


async def memory() -> Cell:
    assert lacks("memory", "memories", "remember")
    return no("by tools of your own")


async def shell() -> Cell:
    assert lacks("shell", "bash", "command")
    return no("by a tool of your own")


if __name__ == "__main__":
    features.main(globals(), "toolcrib")
