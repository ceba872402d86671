"""An agent is a tool within a graph: what it asks stops the graph, and it goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bridges.langchain_helpers import ASKED, agent, asks, reply, thread, told, tool_node
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from toolcrib import ALL, Agent, Approve, Caller, Refuse, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.bridges.langchain import resume, to_langchain_tools
from toolcrib.bridges.langchain.graph_run import MARK
from toolcrib.policies import budget
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import Answer

BUILDS = pytest.mark.parametrize("build", [agent, tool_node])
SAYS = [
    call("refund", order="1"),
    [call("refund", order="2"), call("refund", order="3")],
    "All done.",
]
KEY = b"32 random bytes, kept elsewhere."


class Desk:
    """A graph whose model asks a clerk, which asks about three refunds, two of them at a time.

    `within` is how many agents stand between the graph and the clerk.
    """

    def __init__(
        self,
        build: Any = tool_node,
        *ids: str,
        saver: Any = None,
        sinks: Any = (),
        within: int = 0,
        asks_first: bool = False,
        approver: Any = None,
        policy: Any = (),
    ) -> None:
        self.build, self.saver, self.approver, self.policy = build, saver, approver, policy
        self.sinks, self.within, self.asks_first = sinks, within, asks_first
        self.asked = [asks("clerk", id_, prompt="Refund them.") for id_ in ids or ("call_a",)]
        self.refunded: list[str] = []
        self.turns: list[int] = []

    def _turn(self, request: Any) -> Any:
        turn = sum(message.role == "assistant" for message in request.messages)
        self.turns.append(turn)
        return SAYS[turn]

    def graph(self) -> Any:
        """Return the graph, made anew, as another process makes it."""

        @tool(visible=ALL, safe=False)
        async def refund(order: str) -> str:
            """Refund an order."""
            self.refunded.append(order)
            return f"refunded {order}"

        runner = ToolRunner([refund], sinks=self.sinks)
        clerk = Agent(ScriptedClient([self._turn] * 9), runner, state_key=KEY)
        for _ in range(self.within):
            inner = clerk.as_tool("clerk", "Has orders refunded.", visible=ALL)
            says = [call("clerk", prompt="Refund them."), "All done."]
            turns: list[Any] = [lambda request: says[len(request.messages) > 2]] * 9  # noqa: B023  made once
            clerk = Agent(ScriptedClient(turns), ToolRunner([inner], sinks=self.sinks))
        outer = clerk.as_tool(
            "clerk", "Has orders refunded.", visible=ALL, requires_approval=self.asks_first
        )
        runner = ToolRunner([outer], sinks=self.sinks, approver=self.approver, policy=self.policy)
        tools = to_langchain_tools(runner, caller=Caller("ann"))
        return self.build(tools, reply(*self.asked), saver=self.saver)

    async def ask(self) -> Any:
        return await self.graph().ainvoke(ASKED, thread())

    async def answer(self, result: Any, answer: Answer | None = None) -> Any:
        """Answer the first question that the graph stopped with."""
        asked = result["__interrupt__"][0]
        command = resume((asked, answer or Approve("ada")))
        return await self.graph().ainvoke(command, thread())


def shown(result: Any) -> list[Any]:
    """Return the arguments in the questions that a graph stopped with."""
    return [each.value["arguments"] for each in result.get("__interrupt__", ())]


@BUILDS
@pytest.mark.parametrize("within", [0, 1])
async def test_what_an_agent_asks_is_answered_and_it_goes_on_from_there(
    within: int, build: Any, tmp_path: Path
) -> None:
    """In another process each time; its model is asked nothing again."""
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as log:
        desk = Desk(build, saver=InMemorySaver(), sinks=[log], within=within)
        result = await desk.ask()
        for order in "123":
            assert shown(result) == [{"order": order}]
            result = await desk.answer(result)
        assert shown(result) == []
        assert [message.content for message in told(result)] == ["All done."]
        assert desk.refunded == ["1", "2", "3"]
        assert desk.turns == [0, 1, 2]
        assert (await log.verify()).fault is None
        records = [entry.record for entry in await log.entries() if entry.record.name == "refund"]
    ended = [record for record in records if record.status == "completed"]
    assert [(r.caller, r.approved_by) for r in ended] == [("ann", "ada")] * 3


@BUILDS
async def test_an_agent_that_has_to_be_asked_about_asks_then(build: Any) -> None:
    desk = Desk(build, saver=InMemorySaver(), asks_first=True)
    result = await desk.ask()
    assert shown(result) == [{"prompt": "Refund them."}]
    assert desk.turns == []
    result = await desk.answer(result)
    assert shown(result) == [{"order": "1"}]
    result = await desk.answer(result, Approve("ada", {"order": "7"}))
    result = await desk.answer(result, Refuse("not that one", "ada"))
    result = await desk.answer(result)
    assert [message.content for message in told(result)] == ["All done."]
    assert desk.refunded == ["7", "3"]


async def test_two_agents_of_a_step_go_on_each_with_its_own(tmp_path: Path) -> None:
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as log:
        desk = Desk(tool_node, "call_a", "call_b", saver=InMemorySaver(), sinks=[log])
        result = await desk.ask()
        for _ in range(6):
            assert len(shown(result)) >= 1
            result = await desk.answer(result)
        assert shown(result) == []
    assert [message.content for message in told(result)] == ["All done."] * 2
    assert sorted(desk.refunded) == ["1", "1", "2", "2", "3", "3"]
    assert sorted(desk.turns) == [0, 0, 1, 1, 2, 2]


async def test_an_agent_waits_in_a_file_of_checkpoints(tmp_path: Path) -> None:
    for _ in range(2):
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
            desk = Desk(saver=saver)
            result = await desk.ask()
            while shown(result):
                result = await desk.answer(result)
            assert desk.refunded == ["1", "2", "3"]
            await saver.adelete_thread("thread_1")  # and with it all that is kept of its agents


def test_an_agent_waits_in_a_graph_that_is_not_async(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        desk = Desk(saver=saver)
        result = desk.graph().invoke(ASKED, thread())
        while shown(result):
            command = resume((result["__interrupt__"][0], Approve("ada")))
            result = desk.graph().invoke(command, thread())
    assert desk.refunded == ["1", "2", "3"]
    assert desk.turns == [0, 1, 2]


async def test_an_answer_to_another_question_of_an_agent_is_none() -> None:
    desk = Desk(saver=InMemorySaver())
    first = await desk.ask()
    second = await desk.answer(first)
    assert shown(await desk.answer(first)) == shown(second) == [{"order": "2"}]
    assert desk.refunded == ["1"]


async def test_an_agent_whose_state_was_changed_does_not_go_on() -> None:
    saver = InMemorySaver()
    desk = Desk(saver=saver)
    result = await desk.ask()
    (kept,) = [
        each
        for namespace in saver.storage["thread_1"]
        if namespace.startswith("toolcrib:")
        for each in [await saver.aget_tuple(_within(namespace))]
        if each is not None
    ]
    checkpoint = kept.checkpoint
    text = checkpoint["channel_values"]["suspended"].replace("Refund them.", "Refund all.")
    checkpoint["channel_values"]["suspended"] = text
    versions: dict[str, Any] = {"suspended": saver.get_next_version(None, None)}
    checkpoint["channel_versions"] = versions
    await saver.aput(kept.config, checkpoint, kept.metadata, versions)
    (message,) = told(await desk.answer(result))
    assert "The agent failed (SourceError)" in message.content
    assert desk.refunded == []


def _within(namespace: str) -> Any:
    return {"configurable": {"thread_id": "thread_1", "checkpoint_ns": namespace}}


async def test_a_graph_that_cannot_stop_says_what_an_agent_has_begun() -> None:
    desk = Desk(approver=answer_later)
    (message,) = told(await desk.ask())
    assert "outcome_unknown" in message.content
    assert "had begun" in message.content
    assert message.status == "error"
    assert desk.refunded == []


@BUILDS
@pytest.mark.parametrize("marked", [True, False])
async def test_what_an_agent_spends_is_of_its_thread(marked: bool, build: Any) -> None:
    """The thread's budget limits it while it runs; another process finds what it spent in the message,
    if that says so."""
    saver, ran = InMemorySaver(), list[int]()

    @tool(visible=ALL, read_only=True)
    async def look(order: int) -> str:
        """Look an order up."""
        ran.append(order)
        return "found"

    def graph(*replies: Any) -> Any:
        looks: list[Any] = [[call("look", order=n) for n in (1, 2)], "Done."]
        clerk = Agent(ScriptedClient(looks), [look]).as_tool("clerk", "Looks.", visible=ALL)
        tools = to_langchain_tools(ToolRunner([clerk, look], policy=budget(calls=4)))
        return build(tools, *replies, saver=saver)

    first = reply(asks("clerk", "call_a", prompt="Look."))
    result = await graph(first).ainvoke(ASKED, thread())
    assert ran == [1, 2]
    (message,) = told(result)
    assert message.artifact[MARK]["spent"]["expense"]["per_tool"] == {"look": 2}
    if not marked:  # as it was before
        del message.artifact[MARK]["spent"]
        await graph(first).aupdate_state(thread(), {"messages": [message]})
    looks = [reply(asks("look", f"call_{n}", order=n)) for n in (3, 4)]
    result = await graph(first, reply(), *looks).ainvoke(ASKED, thread())
    assert ran == ([1, 2, 3] if marked else [1, 2, 3, 4])


@pytest.mark.parametrize("again", [False, True])
async def test_an_agent_that_goes_on_in_another_process_has_spent_what_it_had(again: bool) -> None:
    """Its thread has that, too; in the same process, once."""
    desk = Desk(saver=InMemorySaver(), policy=budget(calls=3))
    result = await desk.ask()
    graph = desk.graph()
    for _ in range(3):
        result = await (graph if again else desk.graph()).ainvoke(
            resume((result["__interrupt__"][0], Approve("ada"))), thread()
        )
        if not shown(result):
            break
    assert "the limit on budget is reached" in told(result)[0].content
    assert desk.refunded == ["1"]
