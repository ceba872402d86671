"""A runner's tools in LangChain's hands: one call each, through `exec`, and what others see of it."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from bridges.langchain_helpers import ASKED, agent, asks, model, reply, thread, told, tool_node
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.tools import ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from rows import each_row

from toolcrib import (
    ALL,
    Approve,
    CallContext,
    Caller,
    Catalog,
    Completed,
    File,
    Image,
    Link,
    ToolCall,
    ToolContent,
    ToolError,
    ToolRunner,
    per_call,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.bridges.langchain import from_langchain_tool, resume, to_langchain_tools
from toolcrib.errors import CatalogError
from toolcrib.policies import budget
from toolcrib.testing import MemorySink
from toolcrib.tools import capability
from toolcrib.values.content import kind_of

SECRET = "canary-3e7c"


@tool(visible=ALL)
async def divide(a: float, b: float) -> float:
    """Divide a by b."""
    if b == 0:
        raise ToolError("b is not 0")
    return a / b


@tool(visible=["receipt"], secret=["pin"])
async def pay(cents: int, pin: str) -> dict[str, str]:
    """Pay by card."""
    return {"receipt": f"paid {cents}", "account": SECRET}


def test_a_model_is_told_the_tools_own_schema() -> None:
    for one in to_langchain_tools(ToolRunner([divide, pay])):
        definition = divide.definition if one.name == "divide" else pay.definition
        shown = convert_to_openai_tool(one)["function"]
        assert (shown["name"], shown["description"]) == (definition.name, definition.description)
        assert shown["parameters"] == definition.input_schema
        assert one.args == (definition.input_schema or {})["properties"]


def test_a_name_that_a_provider_refuses_is_mapped() -> None:
    named = tool(visible=ALL, name="shop.divide")(divide.__wrapped__)
    (one,) = to_langchain_tools(ToolRunner([named]))
    assert one.name.startswith("shop_divide_")
    message = one.invoke(asks(one.name, a=1, b=4))
    assert (message.content, message.artifact["name"]) == ("0.25", "shop.divide")


async def test_a_tool_call_gives_a_message_whatever_becomes_of_it() -> None:
    sink = MemorySink()
    one, _ = to_langchain_tools(ToolRunner([divide, pay], sinks=[sink]))
    good = await one.ainvoke(asks("divide", "call_a", a=1, b=4))
    wrong = await one.ainvoke(asks("divide", "call_b", a=1, b="x"))
    failed = await one.ainvoke(asks("divide", "call_c", a=1, b=0))
    assert [m.status for m in (good, wrong, failed)] == ["success", "error", "error"]
    assert good.content == "0.25"
    error = json.loads(wrong.content)["error"]
    assert error["details"] == [{"path": "/b", "message": "expected number, got string"}]
    assert json.loads(failed.content)["error"]["message"] == "b is not 0"
    assert [m.tool_call_id for m in (good, wrong, failed)] == ["call_a", "call_b", "call_c"]
    assert [record.provider_id for record in sink.records] == ["call_a", "call_b", "call_c"]


async def test_without_a_tool_call_the_result_is_given_and_an_error_raised() -> None:
    one, two = to_langchain_tools(ToolRunner([divide, pay]))
    assert await one.ainvoke({"a": 1, "b": 4}) == 0.25
    assert await two.ainvoke('{"cents": 5, "pin": "x"}') == {"receipt": "paid 5", "account": SECRET}
    with pytest.raises(ToolException, match="expected number"):
        await one.ainvoke({"a": 1, "b": "x"})
    with pytest.raises(ToolException, match="invalid_json"):
        await one.ainvoke("1 by 4")


async def test_a_plain_call_works_with_and_without_a_loop() -> None:
    one, _ = to_langchain_tools(ToolRunner([divide, pay]))
    assert one.invoke({"a": 1, "b": 4}) == 0.25  # a loop runs in this thread
    assert await asyncio.to_thread(one.invoke, {"a": 1, "b": 4}) == 0.25


async def test_an_artifact_is_the_record_in_builtins() -> None:
    _, one = to_langchain_tools(ToolRunner([divide, pay]))
    artifact = (await one.ainvoke(asks("pay", cents=5, pin=SECRET))).artifact
    assert artifact["arguments"] == {"cents": 5, "pin": "***"}
    assert artifact["result"] == {"receipt": "paid 5"}
    assert json.loads(json.dumps(artifact)) == artifact
    assert SECRET not in json.dumps(artifact)


async def test_an_artifact_with_a_wide_integer_can_be_checkpointed() -> None:
    @tool(visible=ALL)
    async def power() -> dict[str, int]:
        """Give two large numbers."""
        return {"wide": 2**80, "narrow": 2**62}

    tools = to_langchain_tools(ToolRunner([power]))
    graph = agent(tools, reply(asks("power")), saver=InMemorySaver())
    (message,) = told(await graph.ainvoke(ASKED, thread()))
    assert message.artifact["result"] == {"wide": str(2**80), "narrow": 2**62}
    assert message.content == f'{{"wide":{2**80},"narrow":{2**62}}}'


@pytest.mark.parametrize("build", [agent, tool_node])
async def test_parallel_calls_an_error_and_its_correction(build: Any) -> None:
    both = asyncio.Barrier(2)

    @tool(visible=ALL)
    async def meet(name: str) -> str:
        """Wait for somebody else."""
        async with asyncio.timeout(5):
            await both.wait()
        return f"{name} was there"

    sink = MemorySink()
    tools = to_langchain_tools(ToolRunner([meet, divide], sinks=[sink]))
    graph = build(
        tools,
        reply(asks("meet", "call_0", name="ada"), asks("meet", "call_1", name="grace")),
        reply(asks("divide", "call_0", a=1, b="four")),
        reply(asks("divide", "call_0", a=1, b=4)),
    )
    result = await graph.ainvoke(ASKED)
    statuses = [(m.status, m.tool_call_id) for m in told(result)]
    assert statuses == [
        ("success", "call_0"),
        ("success", "call_1"),
        ("error", "call_0"),
        ("success", "call_0"),
    ]
    assert result["messages"][-1].content == "Done."
    assert len({record.id for record in sink.records}) == 4


def test_a_graph_may_be_called_without_a_loop() -> None:
    tools = to_langchain_tools(ToolRunner([divide]))
    graph = tool_node(tools, reply(asks("divide", "a", a=1, b=4), asks("divide", "b", a=1, b=2)))
    assert [m.content for m in told(graph.invoke(ASKED))] == ["0.25", "0.5"]


@pytest.mark.parametrize("config", [None, thread()])
@pytest.mark.parametrize("build", [agent, tool_node])
async def test_a_budget_is_of_a_whole_thread(build: Any, config: Any) -> None:
    tools = to_langchain_tools(ToolRunner([divide], policy=[budget(calls=3)]))
    two = [asks("divide", "call_0", a=1, b=4), asks("divide", "call_1", a=1, b=2)]
    graph = build(
        tools, reply(*two), reply(*two), saver=None if config is None else InMemorySaver()
    )
    messages = told(await graph.ainvoke(ASKED, config))
    assert [m.status for m in messages] == ["success", "success", "success", "error"]
    assert json.loads(messages[-1].content)["error"]["code"] == "budget_exceeded"


async def test_a_budget_is_of_a_thread_that_two_workers_serve_in_turns() -> None:
    saver = InMemorySaver()
    turns = [said for _ in range(5) for said in (reply(asks("divide", a=1, b=4)), reply())]
    workers = [
        tool_node(
            to_langchain_tools(ToolRunner([divide], policy=[budget(calls=3)])),
            *turns,
            saver=saver,
        )
        for _ in range(2)
    ]
    for at in range(5):
        result = await workers[at % 2].ainvoke(ASKED, thread())
    assert [m.status for m in told(result)] == ["success"] * 3 + ["error"] * 2


async def test_what_ended_beside_a_call_that_waits_counts_for_it() -> None:
    """In another process, which reads no message of it before all calls of the step have ended."""
    ran: list[str] = []

    @tool(visible=ALL, safe=False, untrusted_output=True)
    async def web(page: str) -> str:
        """Read a page."""
        ran.append(page)
        return "text"

    calls = reply(
        asks("web", "a", page="1"), asks("web", "b", page="2"), asks("web", "c", page="3")
    )
    saver, result = InMemorySaver(), None
    for _ in range(6):
        tools = to_langchain_tools(ToolRunner([web], policy=[budget(calls=2)]))
        graph = agent(tools, calls, saver=saver)
        given: Any = ASKED
        if result is not None:
            waits = result.get("__interrupt__", ())
            if not waits:
                break
            given = resume((waits[0], Approve("ada")))
        result = await graph.ainvoke(given, thread())
    assert ran == ["1", "2"]
    assert result is not None
    assert [m.status for m in told(result)] == ["success", "success", "error"]


async def test_calls_of_one_id_in_two_replies_are_two_calls() -> None:
    """Some models count their calls from 0 in each reply."""
    read: list[int] = []

    @tool(visible=ALL)
    async def tick() -> int:
        """Count."""
        read.append(1)
        return len(read)

    tools = to_langchain_tools(ToolRunner([tick]))
    graph = agent(tools, reply(asks("tick")), reply(asks("tick")), saver=InMemorySaver())
    result = await graph.ainvoke(ASKED, thread())
    assert [m.content for m in told(result)] == ["1", "2"]


async def test_outside_of_a_graph_a_thread_makes_an_id_one_call() -> None:
    (one,), charged = _charging()
    again = [await one.ainvoke(asks("charge", cents=5), thread()) for _ in range(2)]
    assert [m.content for m in again] == ["1", "1"]
    other = await one.ainvoke(asks("charge", cents=6), thread())
    assert json.loads(other.content)["error"]["code"] == "duplicate_call"
    assert charged == [5]
    await one.ainvoke(asks("charge", cents=5))
    await one.ainvoke(asks("charge", cents=5))
    assert charged == [5, 5, 5]  # without a thread each is a call of its own


async def test_a_call_of_a_reply_that_was_cut_does_not_run() -> None:
    """LangChain completes what there is of the arguments, so that it looks whole."""
    tools = to_langchain_tools(ToolRunner([divide]))
    for said in (
        {"finish_reason": "length"},
        {"stop_reason": "max_tokens"},
        {"finish_reason": "content_filter"},
        {"stop_reason": "model_context_window_exceeded"},
        {"finish_reason": "MALFORMED_FUNCTION_CALL"},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        {"finish_reason": "of_its_own"},
    ):
        graph = agent(tools, reply(asks("divide", a=1, b=4), **said))
        (message,) = told(await graph.ainvoke(ASKED))
        assert json.loads(message.content)["error"]["code"] == "truncated"
    listed = to_langchain_tools(ToolRunner([divide]), natural_reasons=["OF_ITS_OWN"])
    graph = agent(listed, reply(asks("divide", a=1, b=4), finish_reason="of_its_own"))
    assert [m.content for m in told(await graph.ainvoke(ASKED))] == ["0.25"]
    with pytest.raises(TypeError, match="a list of reasons"):
        to_langchain_tools(ToolRunner([divide]), natural_reasons="stop")


async def test_who_calls_is_said_by_a_function_of_the_config() -> None:
    @tool(visible=ALL, allowed_roles=["clerk"])
    async def who(context: CallContext) -> str:
        """Say who calls."""
        return context.caller.id

    def caller(config: Any) -> Caller:
        return Caller(config["configurable"]["user"], ("clerk",))

    graph = agent(to_langchain_tools(ToolRunner([who]), caller=caller), reply(asks("who")))
    (message,) = told(await graph.ainvoke(ASKED, thread(user="ada")))
    assert (message.content, message.artifact["caller"]) == ("ada", "ada")
    graph = agent(to_langchain_tools(ToolRunner([who])), reply(asks("who")))
    (message,) = told(await graph.ainvoke(ASKED, thread(user="ada")))
    assert json.loads(message.content)["error"]["code"] == "denied"


def test_who_calls_is_a_caller() -> None:
    with pytest.raises(TypeError, match="a function of a RunnableConfig"):
        to_langchain_tools(ToolRunner([divide]), caller="ada")  # type: ignore[arg-type]


async def test_a_capability_may_be_made_of_the_config() -> None:
    @capability
    class Tenant:
        def __init__(self, name: str = "") -> None:
            self.name = name

    @tool(visible=ALL)
    async def where(tenant: Tenant) -> str:
        """Say whose data it is."""
        return tenant.name

    def tenant() -> Tenant:
        return Tenant(get_config()["configurable"]["tenant"])

    runner = ToolRunner(Catalog([where]).bind({Tenant: per_call(tenant)}))
    graph = agent(to_langchain_tools(runner), reply(asks("where")))
    (message,) = told(await graph.ainvoke(ASKED, thread(tenant="north")))
    assert message.content == "north"


class Tracer(BaseCallbackHandler):
    """Keeps what it is told of tools, as a tracer would."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_tool_start(self, serialized: Any, input_str: str, **told: Any) -> None:
        self.seen.append(("start", (serialized, input_str, told["inputs"], told["tool_call_id"])))

    def on_tool_end(self, output: Any, **told: Any) -> None:
        self.seen.append(("end", output))

    def on_tool_error(self, error: BaseException, **told: Any) -> None:
        self.seen.append(("error", error))


@pytest.mark.parametrize("in_a_loop", [True, False])
async def test_callbacks_are_shown_what_a_record_shows(*, in_a_loop: bool) -> None:
    tracer = Tracer()
    _, one = to_langchain_tools(ToolRunner([divide, pay]))
    call: Any = asks("pay", cents=5, pin=SECRET)
    config: Any = {"callbacks": [tracer]}
    if in_a_loop:
        message = await one.ainvoke(call, config)
    else:
        message = await asyncio.to_thread(one.invoke, call, config)
    assert SECRET in message.content  # the model's view
    (_, start), (_, end) = tracer.seen
    assert start[2:] == ({"cents": 5, "pin": "***"}, "call_0")
    assert isinstance(end, ToolMessage)
    assert (end.content, end.tool_call_id) == ('{"receipt":"paid 5"}', "call_0")
    assert SECRET not in str(tracer.seen)


DATA = base64.b64encode(SECRET.encode()).decode()
PICTURE = Image("image/png", DATA)
PICTURE_BLOCK = {"type": "image", "base64": DATA, "mime_type": "image/png"}


@tool(visible=["total"])
async def sales(quarter: int) -> ToolContent[dict[str, int]]:
    """Draw the sales of a quarter."""
    return ToolContent({"total": 12, "cost": 8}, parts=[PICTURE, f"Told: {SECRET}."])


@each_row(
    ("parts", "content"),
    [
        ([PICTURE], [PICTURE_BLOCK]),
        (
            ["here", Image("image/png", url=f"data:image/png;base64,{DATA}")],
            [{"type": "text", "text": "here"}, PICTURE_BLOCK],
        ),
        (
            [Image(url="https://x.example/a.png"), "there"],
            [
                {"type": "image", "url": "https://x.example/a.png"},
                {"type": "text", "text": "there"},
            ],
        ),
        (
            [File("application/pdf", DATA, name="a.pdf"), File("audio/wav", DATA)],
            [
                {
                    "type": "file",
                    "base64": DATA,
                    "mime_type": "application/pdf",
                    "extras": {"filename": "a.pdf"},
                },
                {"type": "file", "base64": DATA, "mime_type": "audio/wav"},
            ],
        ),
        (
            [File("text/csv", text="a,b", name="a.csv"), Link("https://x.example", name="X")],
            [
                {"type": "text", "text": '[file "a.csv" text/csv]\na,b'},
                {"type": "text", "text": '[link] "X": https://x.example'},
            ],
        ),
    ],
)
async def test_parts_are_standard_content_blocks(parts: Any, content: Any) -> None:
    @tool(visible=ALL)
    async def look() -> Any:
        """Look."""
        return parts

    (one,) = to_langchain_tools(ToolRunner([look]))
    message = await one.ainvoke(asks("look"))
    assert message.content == message.content_blocks == content
    assert await one.ainvoke({}) == content
    assert DATA not in str(message.artifact)
    assert [part["kind"] for part in message.artifact["parts"]] == [*map(kind_of, parts)]
    (again,) = told(await tool_node([one], reply(asks("look"))).ainvoke(ASKED))
    assert again.content == content  # a ToolNode makes JSON of content that it does not know


@pytest.mark.parametrize("in_a_loop", [True, False])
async def test_the_data_of_a_part_is_for_the_model_alone(*, in_a_loop: bool) -> None:
    tracer = Tracer()
    (one,) = to_langchain_tools(ToolRunner([sales]))
    call: Any = asks("sales", quarter=3)
    config: Any = {"callbacks": [tracer]}
    if in_a_loop:
        message = await one.ainvoke(call, config)
    else:
        message = await asyncio.to_thread(one.invoke, call, config)
    assert message.content == [
        {"type": "text", "text": '{"total":12,"cost":8}'},
        PICTURE_BLOCK,
        {"type": "text", "text": f"Told: {SECRET}."},
    ]
    (_, _), (_, end) = tracer.seen
    shown = json.loads(end.content)
    assert shown["result"] == message.artifact["result"] == {"total": 12}
    assert [part["kind"] for part in shown["parts"]] == ["image", "text"]
    for withheld in (DATA, SECRET):
        assert withheld not in str((tracer.seen, message.artifact))


async def test_a_part_that_the_model_may_not_see_is_named_and_not_given() -> None:
    narrow = tool(visible=[], model_visible=["total"])(sales.__wrapped__)
    (one,) = to_langchain_tools(ToolRunner([narrow]))
    message = await one.ainvoke(asks("sales", quarter=3))
    assert message.content.startswith('{"total":12}')
    assert "not shown to you: image/png" in message.content
    assert await one.ainvoke({"quarter": 3}) == {"total": 12}


async def test_a_picture_goes_through_langchain_and_back() -> None:
    (theirs,) = to_langchain_tools(ToolRunner([sales]))
    runner = ToolRunner([from_langchain_tool(theirs, own=True)])
    outcome = await runner.exec(ToolCall("1", "sales", '{"quarter": 3}'))
    assert isinstance(outcome, Completed)
    assert outcome.parts == ('{"total":12,"cost":8}', PICTURE, f"Told: {SECRET}.")


async def test_of_arguments_that_are_not_valid_callbacks_are_shown_nothing() -> None:
    tracer = Tracer()
    _, one = to_langchain_tools(ToolRunner([divide, pay]))
    await one.ainvoke(asks("pay", cents=SECRET, pin=5), {"callbacks": [tracer]})
    with pytest.raises(ToolException):
        await one.ainvoke({"cents": 5, "pin": 5, SECRET: 1}, {"callbacks": [tracer]})
    assert [kind for kind, _ in tracer.seen] == ["start", "end", "start", "error"]
    assert SECRET not in str(tracer.seen)


async def test_events_of_tools_are_masked_in_a_graph() -> None:
    tools = to_langchain_tools(ToolRunner([divide, pay]))
    graph = agent(tools, reply(asks("pay", cents=5, pin=SECRET)), saver=InMemorySaver())
    events = [event async for event in graph.astream_events(ASKED, thread(), version="v2")]
    tool_events = [event for event in events if event["event"].startswith("on_tool")]
    assert [event["event"] for event in tool_events] == ["on_tool_start", "on_tool_end"]
    assert SECRET not in str(tool_events)
    assert tool_events[1]["data"]["output"].content == '{"receipt":"paid 5"}'


@pytest.mark.filterwarnings("ignore:astream_")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("configured", [True, False])
async def test_events_of_a_tool_that_is_called_itself_are_masked(
    version: Any, *, configured: bool
) -> None:
    _, one = to_langchain_tools(ToolRunner([divide, pay]))
    tool: Any = one.with_config(tags=["x"]) if configured else one
    pin, masked = "canary-of-a-pin", {"cents": 5, "pin": "***"}
    calls: list[tuple[Any, Any]] = [
        (asks("pay", cents=5, pin=pin), masked),
        ({"cents": 5, "pin": pin}, masked),
        (asks("pay", cents=pin, pin=5), {}),
        (asks("pay", cents=5, pin=pin, other=pin), {}),
    ]
    for given, shown in calls:
        events = [event async for event in tool.astream_events(given, version=version)]
        starts = [event for event in events if event["event"] == "on_tool_start"]
        assert [event["data"]["input"] for event in starts] == [shown]
        assert pin not in str(events)
        ends = [event for event in events if event["event"] == "on_tool_end"]
        assert version == "v1" or SECRET not in str(ends)


async def test_a_tool_that_starts_a_runnable_is_its_parent_in_a_trace() -> None:
    runs: list[tuple[str, uuid.UUID, uuid.UUID | None]] = []

    class Tree(BaseCallbackHandler):
        def on_tool_start(self, *_: Any, run_id: Any, parent_run_id: Any = None, **__: Any) -> None:
            runs.append(("tool", run_id, parent_run_id))

        def on_chat_model_start(
            self, *_: Any, run_id: Any, parent_run_id: Any = None, **__: Any
        ) -> None:
            runs.append(("model", run_id, parent_run_id))

    @tool(visible=ALL)
    async def ask(question: str) -> str:
        """Ask a model."""
        return str((await model().ainvoke(question)).content)

    (one,) = to_langchain_tools(ToolRunner([ask]))
    await one.ainvoke(asks("ask", question="who?"), {"callbacks": [Tree()]})
    (_, outer, _), (_, _, parent) = runs
    assert parent == outer


async def test_parts_of_a_streaming_tool_are_custom_events() -> None:
    @tool(visible=ALL)
    async def count(to: int) -> Any:
        """Count."""
        for number in range(to):
            yield number

    graph = agent(to_langchain_tools(ToolRunner([count])), reply(asks("count", to=3)))
    parts = [part async for part in graph.astream(ASKED, stream_mode="custom")]
    told = {"tool": "count", "tool_call_id": "call_0"}
    assert parts == [{"toolcrib": {**told, "progress": number}} for number in range(3)]


async def test_an_agent_ends_with_what_a_direct_tool_gives() -> None:
    tools = to_langchain_tools(ToolRunner([divide]), return_direct=["divide"])
    result = await agent(tools, reply(asks("divide", a=1, b=4))).ainvoke(ASKED)
    assert result["messages"][-1].content == "0.25"
    with pytest.raises(CatalogError, match="did you mean 'divide'"):
        to_langchain_tools(ToolRunner([divide]), return_direct=["divid"])
    with pytest.raises(TypeError, match="return_direct must be a list"):
        to_langchain_tools(ToolRunner([divide]), return_direct="divide")


async def test_no_model_fills_in_what_a_node_does() -> None:
    tools = to_langchain_tools(ToolRunner([divide]))
    graph = agent(tools, reply(asks("divide", a=1, b=4, toolcrib_runtime="mine")))
    assert [m.content for m in told(await graph.ainvoke(ASKED))] == ["0.25"]
    (one,) = tools
    message = await one.ainvoke(asks("divide", a=1, b=4, toolcrib_runtime="mine"))
    assert json.loads(message.content)["error"]["code"] == "invalid_arguments"


async def test_a_sink_that_fails_is_raised() -> None:
    class Full:
        def write(self, record: object) -> None:
            raise OSError("no space left")

    tracer = Tracer()
    (one,) = to_langchain_tools(ToolRunner([divide], sinks=[Full()]))
    with pytest.raises(OSError, match="no space"):
        await one.ainvoke(asks("divide", a=1, b=4), {"callbacks": [tracer]})
    assert [kind for kind, _ in tracer.seen] == ["start", "error"]


async def test_a_call_that_is_cancelled_is_recorded_so() -> None:
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def wait() -> None:
        """Wait."""
        begun.set()
        await asyncio.sleep(60)

    sink, tracer = MemorySink(), Tracer()
    (one,) = to_langchain_tools(ToolRunner([wait], sinks=[sink]))
    task = asyncio.create_task(one.ainvoke(asks("wait"), {"callbacks": [tracer]}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.error and record.error.code for record in sink.records] == ["cancelled"]
    assert [kind for kind, _ in tracer.seen] == ["start", "error"]


async def test_arguments_that_are_no_json_do_not_run() -> None:
    (one,) = to_langchain_tools(ToolRunner([divide]))
    message = await one.ainvoke(asks("divide", a=1, b=float("nan")))
    assert json.loads(message.content)["error"]["code"] == "invalid_json"
    with pytest.raises(ToolException, match="The arguments are not JSON"):
        await one.ainvoke({"a": 1, "b": object()})


def _cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize("value", [b"1", object(), _cyclic(), _deep(), {(1, 2): 3}, {1, 2}])
@pytest.mark.parametrize("shown", [True, False])
async def test_arguments_that_json_cannot_hold_are_one_refusal_with_a_record(
    value: Any, *, shown: bool
) -> None:
    """Whether or not somebody watches."""

    @tool(visible=ALL)
    async def take(value: Any) -> str:
        """Take anything."""
        raise AssertionError("it ran")

    sink, tracer = MemorySink(), Tracer()
    (one,) = to_langchain_tools(ToolRunner([take], sinks=[sink]))
    config: Any = {"callbacks": [tracer]} if shown else {}
    message = await one.ainvoke(asks("take", value=value), config)
    assert json.loads(message.content)["error"]["code"] == "invalid_json"
    (record,) = sink.records
    assert record.error is not None
    assert (record.status, record.error.code) == ("failed", "invalid_json")
    assert [told for _, told in tracer.seen[:1]] == [
        ({"name": "take", "description": "Take anything."}, "{}", {}, "call_0")
    ] * shown


@pytest.mark.parametrize("build", [agent, tool_node])
async def test_an_id_that_no_log_can_hold_is_a_refusal_with_a_record(build: Any) -> None:
    sink = MemorySink()
    tools = to_langchain_tools(ToolRunner([divide], sinks=[sink]))
    result = await build(tools, reply(asks("divide", "\ud800", a=1, b=1))).ainvoke(ASKED)
    (message,) = told(result)
    assert (message.status, message.tool_call_id) == ("error", "\ud800")
    assert "lone surrogate" in json.loads(message.content)["error"]["message"]
    (record,) = sink.records
    assert (record.status, record.provider_id) == ("failed", "?")


async def test_a_node_and_a_task_of_ones_own_make_calls_once() -> None:
    """Without a ToolNode, which would say what the state is."""
    (pay_once,), paid = _paying()

    def node(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [pay_once.invoke(call) for call in calls]}

    graph = StateGraph(MessagesState)
    graph.add_node("pay", node)
    graph.add_edge(START, "pay")
    compiled = graph.compile(checkpointer=InMemorySaver())
    said: Any = {"messages": [reply(asks("pay", cents=5))]}
    (asked,) = compiled.invoke(said, thread())["__interrupt__"]
    result = compiled.invoke(resume((asked, Approve("ada"))), thread())
    assert (paid, told(result)[0].content) == ([5], "paid 5")


async def test_a_task_of_the_functional_interface_makes_calls_once() -> None:
    (pay_once,), paid = _paying()

    @task
    async def pay_task(call: Any) -> Any:
        return await pay_once.ainvoke(call)

    @entrypoint(checkpointer=InMemorySaver())
    async def work(call: Any) -> str:
        return str((await pay_task(call)).content)

    (asked,) = (await work.ainvoke(asks("pay", cents=5), thread()))["__interrupt__"]
    assert await work.ainvoke(resume((asked, Approve("ada"))), thread()) == "paid 5"
    assert paid == [5]


async def test_an_agent_within_a_graph_stops_and_goes_on() -> None:
    tools, paid = _paying()
    graph = StateGraph(MessagesState)
    graph.add_node("clerk", agent(tools, reply(asks("pay", cents=5))))
    graph.add_edge(START, "clerk")
    compiled: Any = graph.compile(checkpointer=InMemorySaver())
    (asked,) = (await compiled.ainvoke(ASKED, thread()))["__interrupt__"]
    result = await compiled.ainvoke(resume((asked, Approve("ada"))), thread())
    assert (paid, told(result)[0].content) == ([5], "paid 5")


@pytest.mark.parametrize("build", [agent, tool_node])
@pytest.mark.parametrize("anew", [True, False], ids=["another process", "the same process"])
async def test_a_checkpoint_that_is_gone_back_to_makes_its_calls_once(
    build: Any, tmp_path: Path, *, anew: bool
) -> None:
    """LangGraph forks it: the step is another one, and the message that asks is the same."""
    charged: list[int] = []

    @tool(visible=ALL)
    async def charge(cents: int) -> str:
        """Charge."""
        charged.append(cents)
        return f"charged {len(charged)}"

    @tool(visible=ALL, safe=False)
    async def pay(cents: int) -> str:
        """Pay."""
        charged.append(cents)
        return f"paid {len(charged)}"

    saver = InMemorySaver()
    replies = [reply(asks("charge", cents=1)), reply(asks("pay", cents=2))]
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as log:

        def graph() -> Any:
            tools = to_langchain_tools(ToolRunner([charge, pay], sinks=[log]))
            return build(tools, *replies, saver=saver)

        made = graph()
        (asked,) = (await made.ainvoke(ASKED, thread()))["__interrupt__"]
        first = told(await made.ainvoke(resume((asked, Approve("ada"))), thread()))
        made = graph() if anew else made
        before = [s async for s in made.aget_state_history(thread()) if s.next == ("tools",)]
        for state in before:
            result = await made.ainvoke(None, state.config)
            again = told(result)
            assert [m.content for m in again] == [m.content for m in first][: len(again)]
            assert not result.get("__interrupt__")
    assert charged == [1, 2]


async def test_a_fork_without_the_message_makes_its_call_anew() -> None:
    """Nobody shows it to a node of one's own: there, its step is what tells a call."""
    (one,), charged = _charging()

    def node(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [one.invoke(call) for call in calls]}

    graph = StateGraph(MessagesState)
    graph.add_node("pay", node)
    graph.add_edge(START, "pay")
    compiled: Any = graph.compile(checkpointer=InMemorySaver())
    compiled.invoke({"messages": [reply(asks("charge", cents=5))]}, thread())
    (before,) = [s for s in compiled.get_state_history(thread()) if s.next == ("pay",)]
    compiled.invoke(None, before.config)
    assert charged == [5, 5]


async def test_a_message_that_was_changed_under_its_id_is_no_other_call() -> None:
    tools, charged = _charging()
    graph = tool_node(tools, reply(asks("charge", cents=5)), reply(), saver=InMemorySaver())
    await graph.ainvoke(ASKED, thread())
    (before,) = [s async for s in graph.aget_state_history(thread()) if s.next == ("tools",)]
    asking = before.values["messages"][-1]
    for message_id, codes in ((asking.id, ["duplicate_call"]), ("msg_other", [])):
        changed = reply(asks("charge", cents=6)).model_copy(update={"id": message_id})
        gone_back = await graph.aupdate_state(before.config, {"messages": [changed]})
        (message, *_) = told(await graph.ainvoke(None, gone_back))
        said = [json.loads(message.content)["error"]["code"]] if message.status == "error" else []
        assert said == codes
    assert charged == [5, 6]


def _charging() -> tuple[list[Any], list[int]]:
    """Return a tool that does not ask, and what it charged."""
    charged: list[int] = []

    async def charge(cents: int) -> int:
        """Charge."""
        charged.append(cents)
        return len(charged)

    return to_langchain_tools(ToolRunner([tool(charge, visible=ALL)])), charged


def _paying() -> tuple[list[Any], list[int]]:
    """Return a tool that asks, and what it paid."""
    paid: list[int] = []

    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    return to_langchain_tools(ToolRunner([tool(pay, visible=ALL, safe=False)])), paid


@each_row("arguments", [[1], None, "x", 5])
async def test_arguments_that_are_no_dictionary_are_refused_like_any_others(arguments: Any) -> None:
    sink = MemorySink()
    (made,) = to_langchain_tools(ToolRunner([divide], sinks=[sink]))
    with pytest.raises(ToolException, match="invalid_"):
        await made.ainvoke(arguments)
    assert [record.status for record in sink.records] == ["failed"]
    with pytest.raises(TypeError, match="tool_call_id must be the id of a call"):
        await made.ainvoke({"type": "tool_call", "name": "divide", "id": 5, "args": {}})
