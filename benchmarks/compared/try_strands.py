"""What strands does of the rows of `docs/compared.md`, in the ways that its own pages show."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import features
import strands.vended_tools
from features import CUT_TURNS, LONG, PIXEL, WRONG_KEYS, Call, Cell, Line, Turn, no, partly, yes
from pydantic import BaseModel, ConfigDict, StrictInt
from strands import Agent, Plugin, tool
from strands.interventions import InterventionHandler, Proceed
from strands.memory import MemoryManager
from strands.models import Model
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder, Swarm
from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment
from strands.session import FileSessionManager
from strands.types.exceptions import EventLoopException
from strands.vended_interventions.hitl import HumanInTheLoop
from strands.vended_memory_stores.file_memory_store import FileMemoryStore
from strands.vended_plugins.context_offloader import ContextOffloader, InMemoryStorage
from strands.vended_tools import make_mcp_router

ran: list[tuple[int, int]] = []


@tool
def refund(order: int, cents: int = 9) -> str:
    """Refund a part of an order."""
    ran.append((order, cents))
    return f"refunded {cents} cents of order {order}"


class Scripted(Model):
    """A model of a user's own, which says a text, or makes a call given as (name, arguments)."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.requests: list[Any] = []
        self.offered: list[list[str]] = []

    def update_config(self, **_: Any) -> None:
        """Have no settings."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, *_: Any, **__: Any) -> Any:
        turn = self.turns[len(self.requests)]
        self.requests.append(copy.deepcopy(messages))
        self.offered.append([each["name"] for each in tool_specs or []])
        turn = turn(messages) if callable(turn) else turn
        if isinstance(turn, Exception):
            raise turn
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(turn, str):
            start: Any = {}
            deltas: list[Any] = [{"text": turn}]
        else:
            name, arguments = turn
            start = {"toolUse": {"name": name, "toolUseId": f"call_{len(self.requests)}"}}
            text = json.dumps(arguments)
            pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
            deltas = [{"toolUse": {"input": piece}} for piece in pieces]
        yield {"contentBlockStart": {"start": start}}
        for delta in deltas:
            yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(turn, str) else "tool_use"}}


def agent_of(model: Any, *tools: Any, **options: Any) -> Agent:
    options.setdefault("retry_strategy", None)
    return Agent(model=model, tools=list(tools), callback_handler=None, **options)


def openai(url: str, **params: Any) -> OpenAIModel:
    client = {"base_url": url, "api_key": "k", "max_retries": 0}
    return OpenAIModel(client_args=client, model_id="gpt-4o", params=params)


async def truncated_call() -> Cell:
    seen = {}
    for name, turn in CUT_TURNS.items():
        ran.clear()
        replies = features.wire(turn, Turn(text="Done."))
        with replies as server, contextlib.suppress(Exception):  # an error is an answer, too
            await agent_of(openai(server.url), refund).invoke_async("Refund.")
        seen[name, True] = bool(ran)  # it streams all that it asks for
    return features.judged_cuts(seen)


class StrictLine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    article: str
    amount: int = 1


async def unknown_keys() -> Cell:
    taken: list[Any] = []

    @tool
    def order(line: Line, note: str = "") -> str:
        """Order an article."""
        taken.append((line, note))
        return "ordered"

    @tool
    def strict(line: StrictLine, note: str = "") -> str:
        """Order an article."""
        taken.append((line, note))
        return "ordered"

    async def refuses(made: Any, name: str, arguments: Any) -> bool:
        taken.clear()
        agent = agent_of(Scripted((name, arguments), "Done."), made)
        await agent.invoke_async("Tea.")
        return not taken

    by_itself = [await refuses(order, "order", each) for each in WRONG_KEYS]
    told_to = [await refuses(strict, "strict", each) for each in WRONG_KEYS]
    return features.judged_keys(by_itself, told_to)


async def string_for_int() -> Cell:
    @tool
    def strict(order: StrictInt) -> str:
        """Refund an order."""
        ran.append((order, 0))
        return "refunded"

    ran.clear()
    for name, made in (("refund", refund), ("strict", strict)):
        model = Scripted((name, {"order": "5"}), "Done.")
        await agent_of(model, made).invoke_async("Refund.")
    assert ran == [(5, 9), (5, 0)]
    return no("it becomes 5, of a `StrictInt`, too")


async def async_policy() -> Cell:
    class Raises(InterventionHandler):
        name = "raises"

        async def before_tool_call(self, event: Any, **_: Any) -> Any:
            raise ConnectionError("the other system is away")

    class Denies(Raises):
        on_error = "deny"

    class Hangs(InterventionHandler):
        name = "hangs"

        async def before_tool_call(self, event: Any, **_: Any) -> Any:
            await asyncio.sleep(3_600)
            return Proceed()

    ran.clear()
    seen = []
    for handler in (Raises(), Denies(), Hangs()):
        model = Scripted(("refund", {"order": 7}), "Done.")
        agent = agent_of(model, refund, interventions=[handler])
        seen.append(type(await features.ended(agent.invoke_async("Refund."))).__name__)
    assert not ran
    assert seen[1:] == ["AgentResult", "NoneType"], seen
    return partly("what raises denies, with `on_error`; one that hangs is waited for")


async def approval_bound() -> Cell:
    ran.clear()
    model = Scripted(("refund", {"order": 7, "cents": 500}), "Done.")
    agent = agent_of(model, refund, interventions=[HumanInTheLoop()])
    waits = await agent.invoke_async("Refund.")
    assert waits.stop_reason == "interrupt"
    snapshot = agent.take_snapshot(preset="session")
    changed = json.loads(json.dumps(snapshot.data).replace("500", "50000"))
    agent.load_snapshot(dataclasses.replace(snapshot, data=changed))
    answer = {"interruptResponse": {"interruptId": waits.interrupts[0].id, "response": "y"}}
    try:
        await agent.invoke_async([answer])
    except Exception:  # noqa: BLE001
        assert not ran
        return yes("refused")
    assert ran == [(7, 50000)], ran
    return no("what was changed runs")


async def always_rule() -> Cell:
    ran.clear()
    asks: list[str] = []

    def ask(prompt: str, **_: Any) -> str:
        asks.append(prompt)
        return "t"

    made = ("refund", {"order": 79, "cents": 20}), ("refund", {"order": 80, "cents": 900})
    for _ in range(2):
        model = Scripted(*made, "Done.")
        trusting = HumanInTheLoop(enable_trust=True, ask=ask)
        await agent_of(model, refund, interventions=[trusting]).invoke_async("Refund.")
    assert (len(asks), len(ran)) == (2, 4)
    return no("`enable_trust`: whatever the arguments, in that session")


async def spend_per_caller() -> Cell:
    ended = []
    for _ in range(2):
        model = Scripted(("refund", {"order": 7}), "Done.")
        result = await agent_of(model, refund).invoke_async("Refund.", limits={"turns": 1})
        ended.append(result.stop_reason)
    assert ended == ["limit_turns"] * 2
    return no("`limits` are of one run")


def change_all(text: str, other: str) -> None:
    for path in Path("sessions").rglob("message_*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(text, other), encoding="utf-8")


async def audit_verifies() -> Cell:
    def of_session() -> Any:
        return FileSessionManager(session_id="ada", storage_dir="sessions")

    model = Scripted(("refund", {"order": 7, "cents": 900}), "Done.")
    agent = agent_of(model, refund, session_manager=of_session(), agent_id="desk")
    await agent.invoke_async("Refund.")
    change_all("900", "909")
    again = agent_of(Scripted(), refund, session_manager=of_session(), agent_id="desk")
    assert "refunded 909" in str(again.messages)
    return no("a changed session is read like any other")


async def repeated_calls() -> Cell:
    model = Scripted(*[("refund", {"order": 7, "cents": 1})] * 60)
    result = await agent_of(model, refund).invoke_async("Refund.", limits={"turns": 50})
    if result.stop_reason == "limit_turns":
        return no(f"up to the limit on turns, {len(model.requests)}")
    return yes("stopped")


async def empty_reply() -> Cell:
    with features.wire(Turn()) as server:
        result = await agent_of(openai(server.url)).invoke_async("Hello?")
    assert (result.stop_reason, str(result).strip()) == ("end_turn", "")
    return no("it is `''`")


async def resume_after_failure() -> Cell:
    ran.clear()
    model = Scripted(("refund", {"order": 7}), ConnectionError("down"), "Done.")
    agent = agent_of(model, refund)
    with contextlib.suppress(ConnectionError, EventLoopException):
        await agent.invoke_async("Refund.")
    saved = json.loads(json.dumps(agent.messages))
    later = agent_of(model, refund, messages=saved)
    result = await later.invoke_async()
    assert (str(result).strip(), ran) == ("Done.", [(7, 9)])
    return yes("its messages, and a run without a prompt")


async def fork() -> Cell:
    ran.clear()
    model = Scripted("Hello.", ("refund", {"order": 7}), "Done.", ("refund", {"order": 7}), "Done.")
    agent = agent_of(model, refund)
    await agent.invoke_async("Hello?")
    earlier = agent.take_snapshot(preset="session")
    await agent.invoke_async("My tea was cold.")
    agent.load_snapshot(earlier)
    await agent.invoke_async("Refund it, please.")
    assert ran == [(7, 9), (7, 9)]
    return partly("a snapshot that was taken then; the call is made twice")


async def plan() -> Cell:
    ran.clear()
    agent = agent_of(Scripted(("refund", {})), refund, interventions=[HumanInTheLoop()])
    waits = await agent.invoke_async("Refund.")
    assert (waits.stop_reason, len(waits.interrupts), ran) == ("interrupt", 1, [])
    return partly("calls of tools that ask, with arguments not checked")


async def settings_refused() -> Cell:
    with features.wire(Turn(text="Hello.")) as server:
        try:
            await agent_of(openai(server.url, top_k=5)).invoke_async("Hello?")
        except Exception:  # noqa: BLE001
            assert not server.requests
            return yes("the provider's SDK raises (`top_k`)")
    if "top_k" in server.requests[0]:
        return partly("sent as it is")
    return no("left out in silence")


PICTURE: Any = {"image": {"format": "png", "source": {"bytes": PIXEL}}}


async def image_prompt() -> Cell:
    with features.wire(Turn(text="A pixel.")) as server:
        await agent_of(openai(server.url)).invoke_async([{"text": "What is it?"}, PICTURE])
    assert "data:image/png;base64," in json.dumps(server.requests[0])
    return yes("a content block")


async def image_result() -> Cell:
    @tool
    def screenshot() -> dict[str, Any]:
        """Take a picture of the screen."""
        return {"status": "success", "content": [PICTURE]}

    turns = Turn((Call("screenshot", "{}"),), finish="tool_calls"), Turn(text="A pixel.")
    with features.wire(*turns) as server:
        await agent_of(openai(server.url), screenshot).invoke_async("What is it?")
    assert "data:image/png;base64," in json.dumps(server.requests[1])
    return yes("a content block")


class City(BaseModel):
    """A city."""

    name: str
    people: int


async def typed_retries() -> Cell:
    model = Scripted(("City", {"name": "Rome"}), ("City", {"name": "Rome", "people": 3}), "Done.")
    agent = agent_of(model, structured_output_model=City)
    result = await agent.invoke_async("Where?")
    assert result.structured_output == City(name="Rome", people=3)
    assert "people" in str(model.requests[1][-1])
    return yes("with what is wrong")


async def partial_output() -> Cell:
    model = Scripted(("City", {"name": "Rome and more", "people": 3}), "Done.")
    agent = agent_of(model, structured_output_model=City)
    kinds: set[str] = set()
    async for event in agent.stream_async("Where?"):
        kinds |= set(event)
    assert not [kind for kind in kinds if "partial" in kind]
    return no("pieces of its text")


async def context_spill() -> Cell:
    @tool
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    def look(messages: Any) -> Any:
        text = str(messages[-1])
        start = text.index("mem_")
        reference = (
            text[start:].split(maxsplit=1)[0].split("\\n", maxsplit=1)[0].strip("'\"`.,|)]:}")
        )
        return "retrieve_offloaded_content", {"reference": reference, "pattern": "surplus"}

    model = Scripted(("report", {"year": 2025}), look, "It was 12.")
    offloads = ContextOffloader(storage=InMemoryStorage(), include_retrieval_tool=True)
    agent = agent_of(model, report, plugins=[offloads])
    await agent.invoke_async("What was the surplus?")
    assert len(str(model.requests[1])) < 50_000
    assert "The surplus was 12." in str(model.requests[2][-1])
    return yes("`ContextOffloader`: by a tool that reads and searches")


async def handover() -> Cell:
    billing = Scripted("You have it back.")
    made = ("handoff_to_agent", {"agent_name": "billing", "message": "A refund."})
    agents = [
        agent_of(Scripted(made, "Handed over."), name="reception"),
        agent_of(billing, name="billing"),
    ]
    await Swarm(agents).invoke_async("My tea was cold.")
    assert "My tea was cold." in str(billing.requests[0])
    assert len(billing.requests[0]) == 1
    return partly("`Swarm`: told in one text of what was asked")


async def methods_as_tools() -> Cell:
    class Notes(Plugin):
        name = "notes"

        def __init__(self) -> None:
            super().__init__()
            self.kept: list[str] = []

        @tool
        def add_note(self, text: str) -> int:
            """Keep a note."""
            self.kept.append(text)
            return len(self.kept)

        @tool
        def read_notes(self) -> list[str]:
            """Read the notes."""
            return self.kept

    notes = Notes()
    model = Scripted(("add_note", {"text": "tea is out"}), "Kept.")
    await agent_of(model, plugins=[notes]).invoke_async("Note that tea is out.")
    assert notes.kept == ["tea is out"]
    assert set(model.offered[0]) == {"add_note", "read_notes"}
    return yes("all at once, of a `Plugin`")


async def background_tools() -> Cell:
    @tool
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    model = Scripted(("report", {}), "It is on its way.", "It was 12.")
    always: Any = {"always": ["report"]}
    result = await agent_of(model, report, background_tasks=always).invoke_async("The surplus?")
    assert "The surplus was 12." not in str(model.requests[1])
    assert "The surplus was 12." in str(model.requests[2])
    assert "It was 12." in str(result)
    return yes("`background_tasks`: as a later message")


MANY_TOOLS = """
from mcp.server import MCPServer

server = MCPServer("many")
for at in range(60):
    server.add_tool(lambda text="": text, name=f"do_thing_{at}", description="Do a thing.")
server.run()
"""


async def deferred_tools() -> Cell:
    features.write("many.py", MANY_TOOLS)
    router = make_mcp_router(servers={"many": {"command": sys.executable, "args": ["many.py"]}})
    here = {"connection_id": "here"}
    model = Scripted(
        ("mcp_router", {"command": "connect", "server_name": "many", **here}),
        ("mcp_router", {"command": "list_tools", **here}),
        ("mcp_router", {"command": "call_tool", "tool_name": "do_thing_7", **here}),
        "Done.",
    )
    await agent_of(model, router).invoke_async("Do it.")
    assert model.offered == [["mcp_router"]] * 4
    assert "do_thing_59" in str(model.requests[2][-1])
    assert "success" in str(model.requests[3][-1])
    return partly("those of MCP servers (`make_mcp_router`)")


async def graph() -> Cell:
    built = GraphBuilder()
    built.add_node(agent_of(Scripted("yes"), name="ask"), "ask")
    built.add_node(agent_of(Scripted("done"), name="act"), "act")
    built.add_edge("ask", "act", condition=lambda state: "yes" in str(state.results["ask"].result))
    built.set_entry_point("ask")
    result = await built.build().invoke_async("Do it.")
    assert "done" in str(result.results["act"].result)
    return yes("`GraphBuilder`")


async def memory() -> Cell:
    def manager() -> MemoryManager:
        return MemoryManager(stores=[FileMemoryStore(name="ada")], add_tool_config=True)

    model = Scripted(("add_memory", {"entries": ["Ada drinks tea."]}), "Noted.")
    await agent_of(model, memory_manager=manager()).invoke_async("I drink tea.")
    model = Scripted(("search_memory", {"query": "tea"}), "Tea.")
    await agent_of(model, memory_manager=manager()).invoke_async("What do I drink?")
    assert "Ada drinks tea." in str(model.requests[1][-1])
    return yes("`MemoryManager`")


async def shell() -> Cell:
    model = Scripted(("shell", {"command": "echo 4 | tr 4 5"}), "Done.")
    agent = agent_of(model, strands.vended_tools.shell, sandbox=NotASandboxLocalEnvironment())
    await agent.invoke_async("Run it.")
    assert "5" in str(model.requests[1][-1])
    return yes("`shell`")


if __name__ == "__main__":
    features.main(globals(), "strands-agents")
