"""An agent that waits within a graph is one call in whichever branch of the thread it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from bridges.langchain_helpers import agent, thread, told, tool_node
from bridges.test_langchain_agents import Desk, shown
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from samples import sample, sampled, whole_only

from toolcrib import Approve
from toolcrib.audit import AuditLog
from toolcrib.bridges.langchain import resume
from toolcrib.values.record import is_final, standing

BUILDS = pytest.mark.parametrize("build", [agent, whole_only(tool_node)])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[AuditLog]:
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as opened:
        yield opened


async def changed(desk: Desk) -> Any:
    """Add to the state while the agent waits, as another process; return what the graph stops with."""
    graph = desk.graph()
    await graph.aupdate_state(thread(), {"messages": []})
    return await graph.ainvoke(None, thread(), durability="sync")


async def gone_back(desk: Desk) -> Any:
    """Fork the checkpoint before the tools, as another process; return what the graph stops with."""
    graph = desk.graph()
    states = [state async for state in graph.aget_state_history(thread())]
    before = [state for state in states if state.next == ("tools",)][-1]
    return await graph.ainvoke(None, before.config, durability="sync")


BRANCHES = pytest.mark.parametrize("branch", [changed, gone_back])


@BUILDS
@BRANCHES
@pytest.mark.parametrize(
    ("answered", "asks_first"), sampled(product(range(4), [False, True]), part=2)
)
async def test_a_fork_goes_on_with_the_agent_that_waits(
    asks_first: bool, answered: int, branch: Any, build: Any, log: AuditLog
) -> None:
    """Whatever was answered by then, and with the yes that it began with; nothing is done twice."""
    desk = Desk(build, saver=InMemorySaver(), sinks=[log], asks_first=asks_first)
    result = await desk.ask()
    for _ in range(answered + asks_first):
        result = await desk.answer(result)
    if result.get("__interrupt__") or branch is gone_back:
        result = await branch(desk)
    assert shown(result) == [{"order": order} for order in "123"[answered:][:1]]
    while result.get("__interrupt__"):
        result = await desk.answer(result)
    assert [message.content for message in told(result)] == ["All done."]
    assert desk.refunded == ["1", "2", "3"]
    assert desk.turns == [0, 1, 2]


@BUILDS
async def test_before_it_began_an_agent_is_asked_about_in_each_branch(build: Any) -> None:
    desk = Desk(build, saver=InMemorySaver(), asks_first=True)
    first = await desk.ask()
    second = await changed(desk)
    ids = [each["__interrupt__"][0].value["id"] for each in (first, second)]
    assert ids[0] != ids[1]
    assert shown(await desk.answer(second)) == [{"order": "1"}]


@BUILDS
@pytest.mark.parametrize("logged", [False, True])
async def test_an_agent_that_has_ended_is_not_gone_on_with(
    logged: bool, build: Any, log: AuditLog
) -> None:
    """With a log its outcome is given. Without one it is another agent: nobody knows of the first."""
    desk = Desk(build, saver=InMemorySaver(), sinks=[log] if logged else [])
    asked = await desk.ask()
    waits = (await desk.graph().aget_state(thread())).config
    result = asked
    while result.get("__interrupt__"):
        result = await desk.answer(result)
    command = resume((asked["__interrupt__"][0], Approve("ada")))
    again = await desk.graph().ainvoke(command, waits, durability="sync")
    assert desk.refunded == ["1", "2", "3"]
    if logged:
        assert [message.content for message in told(again)] == ["All done."]
        return
    assert desk.turns == [0, 1, 2, 0]
    assert again["__interrupt__"][0].value["id"] != asked["__interrupt__"][0].value["id"]


@BUILDS
async def test_an_answer_of_one_branch_is_used_up_in_the_other(build: Any, log: AuditLog) -> None:
    desk = Desk(build, saver=InMemorySaver(), sinks=[log])
    asked = await desk.ask()
    waits = (await desk.graph().aget_state(thread())).config
    await desk.answer(await changed(desk))
    assert desk.refunded == ["1"]
    command = resume((asked["__interrupt__"][0], Approve("eve", {"order": "9"})))
    result = await desk.graph().ainvoke(command, waits, durability="sync")
    assert shown(result) == [{"order": "2"}]
    assert desk.refunded == ["1"]


@BUILDS
@pytest.mark.parametrize("processes", [1, 2])
async def test_two_branches_at_once_do_it_once(processes: int, build: Any, log: AuditLog) -> None:
    """One goes on; the other is told that, or goes on after it. What was said of it stays open."""
    desk = Desk(build, saver=InMemorySaver(), sinks=[log])
    first = await desk.ask()
    waits = (await desk.graph().aget_state(thread())).config
    second = await changed(desk)
    graphs = [desk.graph()] * 2 if processes == 1 else [desk.graph(), desk.graph()]
    one, other = (resume((r["__interrupt__"][0], Approve("ada"))) for r in (first, second))
    await asyncio.gather(
        graphs[0].ainvoke(one, waits, durability="sync"),
        graphs[1].ainvoke(other, thread(), durability="sync"),
    )
    assert desk.refunded == ["1"]
    result = await gone_back(desk)
    while result.get("__interrupt__"):
        result = await desk.answer(result)
    assert sorted(desk.refunded) == ["1", "2", "3"]
    assert [message.content for message in told(result)] == ["All done."]
    clerks = [e.record for e in await log.entries() if e.record.name == "clerk"]
    ends = [record for record in clerks if is_final(record) and record.idempotency_key]
    assert [record.status for record in ends] == ["completed"]
    assert standing(clerks).status == "completed"


@settings(max_examples=sample(25), deadline=None)
@given(steps=st.lists(st.sampled_from(["answer", "change", "back", "old"]), max_size=9))
async def test_whatever_branches_are_gone_on_with_all_is_done_once(steps: list[str]) -> None:
    """One branch after the other, with answers to any question of any of them."""
    async with AuditLog("sqlite://") as log:
        desk = Desk(agent, saver=InMemorySaver(), sinks=[log])
        result = await desk.ask()
        waiting = [((await desk.graph().aget_state(thread())).config, result)]
        for step in steps:
            if step == "change" and result.get("__interrupt__"):
                result = await changed(desk)
            elif step == "back":
                result = await gone_back(desk)
            elif step == "old":
                config, asked = waiting[len(steps) % len(waiting)]
                command = resume((asked["__interrupt__"][0], Approve("ada")))
                result = await desk.graph().ainvoke(command, config, durability="sync")
            elif result.get("__interrupt__"):
                result = await desk.answer(result)
            if result.get("__interrupt__"):
                waiting.append(((await desk.graph().aget_state(thread())).config, result))
        while result.get("__interrupt__"):
            result = await desk.answer(result)
        assert [message.content for message in told(result)] == ["All done."]
        assert sorted(desk.refunded) == ["1", "2", "3"]
        assert desk.turns == [0, 1, 2]
        records = [e.record for e in await log.entries() if e.record.name == "clerk"]
        ends = [record.status for record in records if is_final(record)]
        assert set(ends) == {"completed"}
