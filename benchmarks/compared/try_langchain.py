"""What langchain, with langgraph, does of the rows of `docs/compared.md`, as its own pages show it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import warnings
from typing import Any

import features
from features import (
    CUT_TURNS,
    CUT_WAYS,
    LONG,
    PIXEL,
    WRONG_KEYS,
    Call,
    Cell,
    Line,
    Notes,
    Turn,
    no,
    partly,
    yes,
)
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HostExecutionPolicy,
    HumanInTheLoopMiddleware,
    LLMToolSelectorMiddleware,
    ProviderToolSearchMiddleware,
    ShellToolMiddleware,
    ToolCallLimitMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

ran: list[tuple[int, int]] = []
THREAD: Any = {"configurable": {"thread_id": "1"}}


def refund(order: int, cents: int = 9) -> str:
    """Refund a part of an order."""
    ran.append((order, cents))
    return f"refunded {cents} cents of order {order}"


class Scripted(BaseChatModel):
    """A model of a user's own, which says a text, or makes a call given as (name, arguments)."""

    turns: list[Any]
    requests: list[Any] = Field(default_factory=list)
    offered: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        self.offered.append([getattr(each, "name", each) for each in tools])
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        turn = self.turns[len(self.requests)]
        self.requests.append(list(messages))
        turn = turn(messages) if callable(turn) else turn
        if isinstance(turn, Exception):
            raise turn
        said = AIMessage(turn) if isinstance(turn, str) else AIMessage("", tool_calls=[made(*turn)])
        return ChatResult(generations=[ChatGeneration(message=said)])


ids = iter(range(10_000))


def made(name: str, arguments: dict[str, Any]) -> Any:
    return {"name": name, "args": arguments, "id": f"call_{next(ids)}", "type": "tool_call"}


def scripted(*turns: Any) -> Scripted:
    return Scripted(turns=list(turns))


def said_by(prompt: Any) -> Any:
    return {"messages": [{"role": "user", "content": prompt}]}


def openai(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o", base_url=url, api_key="k", max_retries=0, **options)


async def truncated_call() -> Cell:
    seen = {}
    for name, stream in CUT_WAYS:
        ran.clear()
        with features.wire(CUT_TURNS[name], Turn(text="Done.")) as server:
            agent = create_agent(openai(server.url, streaming=stream), [refund])
            with contextlib.suppress(Exception):  # an error is an answer, too
                await agent.ainvoke(said_by("Refund."))
        seen[name, stream] = bool(ran)
    return features.judged_cuts(seen)


class StrictLine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    article: str
    amount: int = 1


class StrictOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")
    line: StrictLine
    note: str = ""


async def unknown_keys() -> Cell:
    taken: list[Any] = []

    def order(line: Line, note: str = "") -> str:
        """Order an article."""
        taken.append((line, note))
        return "ordered"

    def strict(line: StrictLine, note: str = "") -> str:
        """Order an article."""
        taken.append((line, note))
        return "ordered"

    async def refuses(made: Any, name: str, arguments: Any) -> bool:
        taken.clear()
        agent = create_agent(scripted((name, arguments), "Done."), [made])
        with contextlib.suppress(TypeError):
            await agent.ainvoke(said_by("Tea."))
        return not taken

    by_itself = [await refuses(order, "order", each) for each in WRONG_KEYS]
    whole = StructuredTool.from_function(strict, args_schema=StrictOrder)
    told_to = [await refuses(whole, "strict", each) for each in WRONG_KEYS]
    return features.judged_keys(by_itself, told_to)


async def string_for_int() -> Cell:
    class Strict(BaseModel):
        order: int = Field(strict=True)

    ran.clear()
    for made in (refund, StructuredTool.from_function(refund, args_schema=Strict)):
        model = scripted(("refund", {"order": "5"}), "Done.")
        await create_agent(model, [made]).ainvoke(said_by("Refund."))
    assert ran == [(5, 9)]
    assert "valid integer" in str(model.requests[1])
    return partly("with a strict `args_schema`; else it becomes 5")


async def async_policy() -> Cell:
    class Raises(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            raise ConnectionError("the other system is away")

    class Hangs(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            await asyncio.sleep(3_600)

    ran.clear()
    seen = []
    for check, seconds in ((Raises(), None), (Hangs(), None), (Hangs(), 0.2)):
        model = scripted(("refund", {"order": 7}), "Done.")
        agent = create_agent(model, [refund], middleware=[check])
        agent.step_timeout = seconds
        ended = await features.ended(agent.ainvoke(said_by("Refund.")))
        seen.append(type(ended).__name__)
    assert not ran
    assert seen[:2] == ["ConnectionError", "NoneType"], seen
    assert "Timeout" in seen[2], seen
    return partly("nothing runs, and the run ends; for what hangs set `step_timeout`")


def asking(model: Scripted, **options: Any) -> Any:
    saver = InMemorySaver()
    asks = HumanInTheLoopMiddleware(interrupt_on={"refund": True})
    return create_agent(model, [refund], middleware=[asks], checkpointer=saver, **options), saver


APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


EDIT: Any = {"name": "refund", "args": {"order": 7, "cents": 500}}
SAYS_THEM: Any = Command(resume={"decisions": [{"type": "edit", "edited_action": EDIT}]})


async def approval_bound() -> Cell:
    seen = []
    for answer in (APPROVE, SAYS_THEM):
        ran.clear()
        agent, saver = asking(scripted(("refund", {"order": 7, "cents": 500}), "Done."))
        waits = await agent.ainvoke(said_by("Refund."), THREAD)
        assert waits["__interrupt__"]
        kept, other = b"\xcd\x01\xf4", b"\xcd\xc3\x50"  # 500 and 50000 as msgpack
        for key, (kind, data) in saver.blobs.items():
            saver.blobs[key] = (kind, data.replace(kept, other))
        await agent.ainvoke(answer, THREAD)
        seen += ran
    assert seen == [(7, 50_000), (7, 500)], seen
    return partly("if the answer is an `edit` to the same; else what was changed runs")


async def always_rule() -> Cell:
    made_twice = ("refund", {"order": 79, "cents": 20})
    agent, _ = asking(scripted(made_twice, "Done.", made_twice, "Done."))
    asks = []
    for _ in range(2):
        waits = await agent.ainvoke(said_by("Refund."), THREAD)
        asks.append("__interrupt__" in waits)
        await agent.ainvoke(APPROVE, THREAD)
    assert asks == [True, True]
    return no("a yes is for one call")


async def spend_per_caller() -> Cell:
    ran.clear()
    limit = ToolCallLimitMiddleware(thread_limit=2, exit_behavior="continue")
    model = scripted(*[("refund", {"order": 7}), "Done."] * 3)
    saver = InMemorySaver()
    for _ in range(3):
        agent = create_agent(model, [refund], middleware=[limit], checkpointer=saver)
        await agent.ainvoke(said_by("Refund."), THREAD)
    assert len(ran) == 2
    return partly("calls in one thread (`ToolCallLimitMiddleware`)")


async def audit_verifies() -> Cell:
    agent, saver = asking(scripted(("refund", {"order": 7, "cents": 500}), "Done."))
    await agent.ainvoke(said_by("Refund."), THREAD)
    await agent.ainvoke(APPROVE, THREAD)
    for key, (kind, data) in saver.blobs.items():
        saver.blobs[key] = (kind, data.replace(b"refunded 500", b"refunded 509"))
    state = await agent.aget_state(THREAD)
    assert "refunded 509" in str(state.values["messages"])
    return no("a changed checkpoint is read like any other")


async def repeated_calls() -> Cell:
    model = scripted(*[("refund", {"order": 7, "cents": 1})] * 60)
    try:
        await create_agent(model, [refund]).ainvoke(said_by("Refund."), {"recursion_limit": 100})
    except GraphRecursionError:
        return no(f"up to the limit on steps, {len(model.requests)}")
    return yes("stopped")


async def empty_reply() -> Cell:
    with features.wire(Turn()) as server:
        result = await create_agent(openai(server.url)).ainvoke(said_by("Hello?"))
    assert result["messages"][-1].content == ""
    return no("it is `''`")


async def resume_after_failure() -> Cell:
    ran.clear()
    model = scripted(("refund", {"order": 7}), ConnectionError("down"), "Done.")
    saver = InMemorySaver()
    agent = create_agent(model, [refund], checkpointer=saver)
    with contextlib.suppress(ConnectionError):
        await agent.ainvoke(said_by("Refund."), THREAD)
    result = await create_agent(model, [refund], checkpointer=saver).ainvoke(None, THREAD)
    assert (result["messages"][-1].content, ran) == ("Done.", [(7, 9)])
    return yes("`invoke(None, …)`, with a checkpointer")


async def fork() -> Cell:
    ran.clear()
    model = scripted(("refund", {"order": 7}), "Done.", ("refund", {"order": 7}), "Done.")
    agent = create_agent(model, [refund], checkpointer=InMemorySaver())
    await agent.ainvoke(said_by("My tea was cold."), THREAD)
    [first] = [
        state
        async for state in agent.aget_state_history(THREAD)
        if len(state.values["messages"]) == 1
    ]
    [asked] = first.values["messages"]
    other = {"messages": [asked.model_copy(update={"content": "Refund it, please."})]}
    branch = await agent.aupdate_state(first.config, other)
    await agent.ainvoke(None, branch)
    assert "Refund it, please." in str(model.requests[2])
    assert ran == [(7, 9), (7, 9)]
    return partly("any checkpoint; the call is made twice")


async def plan() -> Cell:
    ran.clear()
    model = scripted(("refund", {}), "Done.")
    agent = create_agent(model, [refund], interrupt_before=["tools"], checkpointer=InMemorySaver())
    state = await agent.ainvoke(said_by("Refund."), THREAD)
    assert state["messages"][-1].tool_calls
    assert not ran
    return partly("`interrupt_before`: calls, with arguments not checked")


async def settings_refused() -> Cell:
    with features.wire(Turn(text="Hello.")) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = openai(server.url, top_k=5)
        try:
            await create_agent(model).ainvoke(said_by("Hello?"))
        except TypeError:
            assert not server.requests
            return yes("the provider's SDK raises (`top_k`)")
    if "top_k" in server.requests[0]:
        return partly("sent as it is")
    return no("left out in silence (`top_k`)")


ADDRESS = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"


async def image_prompt() -> Cell:
    block = {"type": "image", "base64": base64.b64encode(PIXEL).decode(), "mime_type": "image/png"}
    prompt = [{"type": "text", "text": "What is it?"}, block]
    with features.wire(Turn(text="A pixel.")) as server:
        await create_agent(openai(server.url)).ainvoke(said_by(prompt))
    assert ADDRESS in json.dumps(server.requests[0])
    return yes("a content block")


async def image_result() -> Cell:
    @tool
    def screenshot() -> list[dict[str, Any]]:
        """Take a picture of the screen."""
        data = base64.b64encode(PIXEL).decode()
        return [{"type": "image", "base64": data, "mime_type": "image/png"}]

    turns = Turn((Call("screenshot", "{}"),), finish="tool_calls"), Turn(text="A pixel.")
    with features.wire(*turns) as server:
        agent = create_agent(openai(server.url), [screenshot])
        result = await agent.ainvoke(said_by("What is it?"))
        sent = server.requests[1]["messages"][-1]
        with contextlib.suppress(Exception):  # the server does not speak Responses
            await openai(server.url, use_responses_api=True).ainvoke(result["messages"][:-1])
    assert (sent["role"], ADDRESS in json.dumps(sent)) == ("tool", True)
    output = server.requests[2]["input"][-1]
    assert (output["type"], ADDRESS in json.dumps(output)) == ("function_call_output", True)
    return partly(
        "with Responses; with Chat Completions in a tool's message, which takes text alone"
    )


class City(BaseModel):
    name: str
    people: int


async def typed_retries() -> Cell:
    model = scripted(("City", {"name": "Rome"}), ("City", {"name": "Rome", "people": 3}))
    agent = create_agent(model, [], response_format=ToolStrategy(City))
    result = await agent.ainvoke(said_by("Where?"))
    assert result["structured_response"] == City(name="Rome", people=3)
    assert "people" in str(model.requests[1])
    return yes("with what is wrong, where the answer is a tool")


class Town(TypedDict):
    """A town."""

    name: str
    people: int


async def partial_output() -> Cell:
    with features.wire(Turn(text='{"name": "Rome and more", "people": 3}')) as server:
        typed = openai(server.url).with_structured_output(Town, method="json_mode")
        seen = [value async for value in typed.astream("Where? Answer in JSON.")]
    answer = Call("Town", '{"name": "Rome and more", "people": 3}')
    with features.wire(Turn((answer,), finish="tool_calls")) as server:
        agent = create_agent(openai(server.url), response_format=ToolStrategy(Town))
        whole, grown = None, []
        async for piece, _ in agent.astream(said_by("Where?"), stream_mode="messages"):
            if isinstance(piece, AIMessageChunk):
                whole = piece if whole is None else whole + piece
                grown += [each["args"] for each in whole.tool_calls]
    assert len(seen) > 2
    assert seen[-1] == {"name": "Rome and more", "people": 3}
    assert len(grown) > 2
    assert grown[-1] == seen[-1]
    return partly("of a model alone; of an agent if you add its pieces up")


async def context_spill() -> Cell:
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    model = scripted(("report", {"year": 2025}), "It was 12.")
    edits = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=32_000)])
    agent = create_agent(model, [report], middleware=[edits])
    await agent.ainvoke(said_by("What was the surplus?"))
    assert len(str(model.requests[1])) > 900_000
    return no("all of it is sent; older results can be cleared")


async def handover() -> Cell:
    @tool
    def to_billing(runtime: ToolRuntime) -> Command[Any]:
        """Hand over to billing."""
        asked = runtime.state["messages"]
        done = ToolMessage("You are with billing.", tool_call_id=runtime.tool_call_id)
        update = {"messages": [*asked, done]}
        return Command(goto="billing", update=update, graph=Command.PARENT)

    billing = scripted("You have it back.")
    built = StateGraph(MessagesState)
    built.add_node("reception", create_agent(scripted(("to_billing", {})), [to_billing]))
    built.add_node("billing", create_agent(billing, []))
    built.add_edge(START, "reception")
    await built.compile().ainvoke(said_by("My tea was cold."))
    assert "My tea was cold." in str(billing.requests[0])
    return partly("by a tool and a graph of your own")


async def methods_as_tools() -> Cell:
    notes = Notes()
    model = scripted(("add_note", {"text": "tea is out"}), "Kept.")
    agent = create_agent(model, [notes.add_note, notes.read_notes])
    await agent.ainvoke(said_by("Note that tea is out."))
    assert notes.kept == ["tea is out"]
    return partly("each by itself")


async def background_tools() -> Cell:
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    model = scripted(("report", {}), "It was 12.")
    await create_agent(model, [report]).ainvoke(said_by("What was the surplus?"))
    assert "The surplus was 12." in str(model.requests[1])
    return no("it is waited for")


async def deferred_tools() -> Cell:
    def ready(name: str) -> StructuredTool:
        def run(text: str = "") -> str:
            return text

        return StructuredTool.from_function(run, name=name, description=f"Do {name}.")

    tools = [ready(name) for name in [*(f"do_thing_{at}" for at in range(60)), "convert_currency"]]
    model = scripted(("convert_currency", {"text": "10 EUR"}), "It is 11 USD.")
    with features.wire(Turn(text='{"tools": ["convert_currency"]}')) as server:
        picks = LLMToolSelectorMiddleware(model=openai(server.url), max_tools=3)
        agent = create_agent(model, tools, middleware=[picks])
        await agent.ainvoke(said_by("What are 10 EUR?"))
    assert model.offered[0] == ["convert_currency"]
    assert len(server.requests) == 2
    names: list[Any] = [each.name for each in tools]
    with features.wire(500) as server:
        model = openai(server.url, use_responses_api=True)
        searches = ProviderToolSearchMiddleware(searchable_tools=names)
        agent = create_agent(model, tools, middleware=[searches])
        with contextlib.suppress(Exception):  # the server refuses all
            await agent.ainvoke(said_by("What are 10 EUR?"))
    assert sum(bool(each.get("defer_loading")) for each in server.requests[0]["tools"]) == 61
    return partly("another model picks; or by the search of OpenAI's Responses")


async def graph() -> Cell:
    built = StateGraph(MessagesState)
    built.add_node("ask", lambda _state: {"messages": [AIMessage("yes")]})
    built.add_node("act", lambda _state: {"messages": [AIMessage("done")]})
    built.add_edge(START, "ask")

    def branch(state: Any) -> str:
        return "act" if state["messages"][-1].content == "yes" else END

    built.add_conditional_edges("ask", branch, ["act", END])
    result = await built.compile().ainvoke({"messages": []})
    assert result["messages"][-1].content == "done"
    return yes("`langgraph`")


async def memory() -> Cell:
    @tool
    def remember(text: str, runtime: ToolRuntime) -> str:
        """Remember something."""
        assert runtime.store
        runtime.store.put(("ada",), "drink", {"text": text})
        return "kept"

    store = InMemoryStore()
    model = scripted(("remember", {"text": "tea"}), "Noted.")
    agent = create_agent(model, [remember], store=store)
    await agent.ainvoke(said_by("I drink tea."))
    kept = store.get(("ada",), "drink")
    assert kept
    assert kept.value == {"text": "tea"}
    return partly("a store, for tools of your own")


async def shell() -> Cell:
    runs = ShellToolMiddleware(execution_policy=HostExecutionPolicy())
    model = scripted(("shell", {"command": "echo 4 | tr 4 5"}), "Done.")
    await create_agent(model, [], middleware=[runs]).ainvoke(said_by("Run it."))
    assert "5" in model.requests[1][-1].content
    return yes("`ShellToolMiddleware`")


if __name__ == "__main__":
    features.main(globals(), "langchain", "langgraph")
