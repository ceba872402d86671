"""What an agent, or one run of it, asks of its model; instructions and capabilities of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Protocol, get_args

import msgspec
import pytest
from children import run as run_program
from clients.exchanges import Noting
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Catalog,
    Done,
    PickOptions,
    RunError,
    RunInfo,
    RunStarted,
    RunState,
    Session,
    ToolCall,
    ToolRunner,
    capability,
    per_call,
    per_run,
    run_sync,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.clients import (
    AnthropicClient,
    CohereClient,
    GeminiClient,
    MistralClient,
    OllamaClient,
    OpenAIClient,
    Settings,
)
from toolcrib.errors import (
    BindingError,
    CatalogError,
    ConnectionFailed,
    ErrorCode,
    RequestError,
    SourceError,
)
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.json import JsonValue
from toolcrib.values.message import ChatRequest, Effort, Message, ToolChoice
from toolcrib.values.run import RunOptions, RunSettings
from toolcrib.wire import encode

KEY = b"a key of thirty-two random bytes"
ADA = Caller("ada", ("clerk",))


@capability
class Orders(Protocol):
    async def still_open(self) -> list[str]: ...


class OrdersOf:
    def __init__(self, customer: str) -> None:
        self.customer = customer

    async def still_open(self) -> list[str]:
        return [self.customer]


@tool(visible=ALL)
async def look(orders: Orders) -> list[str]:
    """List the open orders."""
    return await orders.still_open()


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(visible=ALL, safe=False)
async def refund(order: int) -> str:
    """Refund an order."""
    return "done"


def asked(request: ChatRequest) -> tuple[Settings, ToolChoice, bool | None]:
    return request.settings, request.tool_choice, request.parallel_calls


UNSET = (Settings(), ToolChoice(), None)
OPTIONS: RunOptions = {
    "temperature": 0,
    "max_tokens": 100,
    "reasoning": "low",
    "extra": {"seed": 1},
    "provider_tools": ({"type": "web_search"},),
    "tool_choice": "none",
    "parallel_tool_calls": False,
}
SET = (
    Settings(0, 100, {"seed": 1}, ({"type": "web_search"},), "low"),
    ToolChoice("none"),
    False,
)


async def test_what_nobody_sets_is_in_no_request() -> None:
    model = ScriptedClient(["a", "b"])
    agent = Agent(model, [add])
    await agent.run("go")
    await agent.session().send("go")
    assert [asked(request) for request in model.requests] == [UNSET, UNSET]


async def test_options_of_an_agent_go_with_each_request_also_of_a_copy() -> None:
    model = ScriptedClient(["a", "b"])
    agent = Agent(model, [add], **OPTIONS)
    await agent.run("go")
    await agent.replace(tools=[add]).run("go")
    assert [asked(request) for request in model.requests] == [SET, SET]


async def test_options_come_before_settings_and_those_of_a_run_before_both() -> None:
    model = ScriptedClient(["a", "b", "c", "d"])
    settings = Settings(1, 9, {"seed": 0, "top_p": 1})
    agent = Agent(model, [add], settings=settings, temperature=0.5, extra={"seed": 1})
    assert agent.settings == Settings(0.5, 9, {"seed": 1, "top_p": 1})
    await agent.run("go", max_tokens=7, reasoning="high")
    await agent.session().send("go", extra={"seed": 2}, parallel_tool_calls=True)
    async with agent.stream("go", temperature=0) as stream:
        await stream.result()
    async with agent.session().stream("go", tool_choice="add") as stream:
        await stream.result()
    one, two, three, four = map(asked, model.requests)
    assert one[0] == Settings(0.5, 7, {"seed": 1, "top_p": 1}, reasoning="high")
    assert two == (Settings(0.5, 9, {"seed": 2, "top_p": 1}), ToolChoice(), True)
    assert three[0].temperature == 0
    assert four[1] == ToolChoice("tool", "add")


async def test_the_clients_own_apply_where_nobody_says_anything() -> None:
    own = Settings(1, 9, {"seed": 0}, reasoning="high")
    client = OpenAIClient("gpt-5", base_url="http://127.0.0.1:1", settings=own)
    async with client:
        asks = client._completed(
            ChatRequest((), settings=Settings(reasoning="low", extra={"user": "ada"}))
        )
    assert asks.settings == Settings(1, 9, {"seed": 0, "user": "ada"}, reasoning="low")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temprature": 0}, TypeError, "no option 'temprature'.*'temperature'"),
        ({"temperature": "0"}, TypeError, "temperature must be"),
        ({"reasoning": "lots"}, TypeError, "reasoning must be one of 'none', 'minimal'"),
        ({"tool_choice": 1}, TypeError, "tool_choice must be 'auto', 'none', 'required', the name"),
        ({"tool_choice": "sub"}, CatalogError, "no tool 'sub'"),
        ({"tool_choice": ToolChoice(allowed=("sub",))}, CatalogError, "no tool 'sub'"),
        ({"parallel_tool_calls": "no"}, TypeError, "parallel_tool_calls must be"),
        ({"extra": {"x": object()}}, TypeError, "the options of a run must be JSON"),
        ({"extra": {"x": "\ud800"}}, TypeError, "the options of a run must be JSON"),
        ({"extra": {"x": b"x"}}, TypeError, "extra must be JSON"),
        ({"extra": {"x": {1}}}, TypeError, "extra must be JSON"),
        ({"extra": {"x": {1: 2}}}, TypeError, "extra must be JSON"),
        ({"extra": {"x": float("inf")}}, TypeError, "extra must be JSON"),
        ({"temperature": float("nan")}, TypeError, "temperature must be a finite"),
        ({"temperature": 10**400}, TypeError, "temperature must be a finite"),
        ({"max_tokens": 0}, TypeError, "max_tokens must be at least 1"),
    ],
)
async def test_an_option_that_cannot_be_meant(
    options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Agent(ScriptedClient([]), [add], **options)
    agent = Agent(ScriptedClient([]), [add])
    for begin in (agent.run, agent.session().send):
        with pytest.raises(error, match=words):
            await begin("go", **options)
    for start in (agent.stream, agent.session().stream, agent.prepare):
        with pytest.raises(error, match=words):
            start("go", **options)


async def test_what_a_wire_cannot_take_ends_the_run_before_anything_is_sent() -> None:
    client = OpenAIClient("gpt-5", base_url="http://127.0.0.1:1")
    agent = Agent(client, [add], extra={"reasoning_effort": "high"})
    with pytest.raises(RequestError, match=r"Settings\.reasoning and Settings\.extra both say"):
        await agent.run("go", reasoning="low")


# A call that is demanded is demanded once.


@pytest.mark.parametrize("choice", ["required", "add"])
async def test_a_forced_choice_holds_until_the_first_call(choice: str) -> None:
    model = ScriptedClient([call("add", a=1, b="x"), call("add", a=1, b=2), "3"])
    result = await Agent(model, [add, refund], tool_choice=choice).run("go")
    modes = [request.tool_choice.mode for request in model.requests]
    assert modes == ["required" if choice == "required" else "tool", "auto", "auto"]
    assert result.text == "3"


async def test_it_holds_again_in_the_next_run_of_a_conversation() -> None:
    model = ScriptedClient([call("add", a=1, b=2), "3", call("add", a=1, b=3), "4"])
    session = Agent(model, [add], tool_choice="required").session()
    await session.send("go")
    await session.send("go")
    modes = [request.tool_choice.mode for request in model.requests]
    assert modes == ["required", "auto", "required", "auto"]


async def test_tools_that_alone_are_allowed_stay_so() -> None:
    choice = ToolChoice("required", allowed=("add",))
    model = ScriptedClient([call("add", a=1, b=2), "3"])
    await Agent(model, [add, refund], tool_choice=choice).run("go")
    assert [request.tool_choice for request in model.requests] == [
        choice,
        ToolChoice(allowed=("add",)),
    ]


@pytest.mark.parametrize(
    "choice",
    [
        ToolChoice("none"),
        ToolChoice(allowed=("add",)),
        ToolChoice("required", None, ("add",)),
        ToolChoice("tool", "add"),
    ],
)
async def test_what_a_choice_does_not_allow_does_not_run(choice: ToolChoice) -> None:
    """Though the model calls it: some servers do not heed the choice."""
    model = ScriptedClient([call("refund", order=7), "Done."])
    runner = ToolRunner([add, refund], approver=answer_later)
    result = await Agent(model, runner, tool_choice=choice).run("go")
    assert (result.status, result.text) == ("completed", "Done.")
    (record,) = result.records
    assert record.error is not None
    assert record.error.code is ErrorCode.NOT_OFFERED


async def test_what_is_given_as_extra_is_nobodys_to_change() -> None:
    tags: list[JsonValue] = ["a"]
    model = ScriptedClient(["one", "two"])
    agent = Agent(model, [add], extra={"tags": tags})
    await agent.run("go")
    tags.append("b")
    await agent.run("go")
    assert [request.settings.extra for request in model.requests] == [{"tags": ["a"]}] * 2


async def test_a_tool_that_is_chosen_is_on_offer_where_the_agent_picks() -> None:
    @tool(visible=ALL)
    async def weather(city: str) -> str:
        """Tell the weather of a city."""
        return "sunny"

    model = ScriptedClient([call("add", a=1, b=2), "3"])
    agent = Agent(model, [weather, add], pick=PickOptions(max_candidates=1))
    await agent.run("What is the weather in the city of Rome?", tool_choice="add")
    offered = [tool.get_definition().name for tool in model.requests[0].tools]
    assert "add" in offered


# A run that goes on has the options that it began with.


def desk(*turns: Any, key: bytes | None = KEY) -> Agent:
    runner = ToolRunner([refund, add], approver=answer_later)
    return Agent(ScriptedClient(turns), runner, state_key=key, temperature=1)


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_run_that_is_resumed_has_its_options(key: bytes | None) -> None:
    before = desk(call("refund", order=7), key=key)
    waits = await before.run("go", **OPTIONS | {"tool_choice": "refund"})
    state = RunState.from_json(waits.state.to_json())
    assert state == waits.state
    later = desk("Done.", key=key)
    result = await later.resume(state, {waits.pending[0].id: Approve("eve")})
    (request,) = later.client.requests  # type: ignore[attr-defined]
    assert asked(request) == (SET[0], ToolChoice(), False)  # it has made its call
    assert result.state.settings == waits.state.settings


async def test_a_changed_option_is_found_by_the_signature() -> None:
    waits = await desk(call("refund", order=7)).run("go", extra={"seed": 1})
    changed = msgspec.structs.replace(waits.state, settings=RunSettings(extra={"seed": 2}))
    with pytest.raises(SourceError, match="signature"):
        await desk("Done.").resume(changed)


async def test_a_state_without_options_says_nothing_of_them() -> None:
    waits = await desk(call("refund", order=7)).run("go")
    saved = json.loads(waits.state.to_json())
    assert saved.pop("settings") == {}
    state = RunState.from_json(json.dumps(saved))  # as versions before had it
    state.check_signature(KEY)
    assert state == waits.state


PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from toolcrib import Approve, RunState
from agent.test_asking import asked, desk

async def main():
    state = RunState.from_json(Path(sys.argv[1]).read_text("utf-8"))
    agent = desk("Done.")
    result = await agent.resume(state, {state.pending[0].id: Approve("eve")})
    settings, choice, parallel = asked(agent.client.requests[0])
    print(result.text, settings.temperature, settings.reasoning, dict(settings.extra), parallel)

asyncio.run(main())
"""


def test_in_another_process_too(tmp_path: Path) -> None:
    waits = run_sync(desk(call("refund", order=7)).run("go", **OPTIONS | {"tool_choice": "auto"}))
    (tmp_path / "state").write_text(waits.state.to_json(), encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = run_program("program.py", "state", cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "Done. 0.0 low {'seed': 1} False", done.stderr


options_of_a_run = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.none() | st.floats(0, 2),
        "max_tokens": st.none() | st.integers(1, 10_000),
        "reasoning": st.sampled_from([None, *get_args(Effort)]),
        "extra": st.dictionaries(st.text(max_size=5), st.integers() | st.lists(st.text())),
        "provider_tools": st.lists(st.dictionaries(st.text(), st.text()), max_size=2).map(tuple),
        "tool_choice": st.sampled_from([None, "auto", "none", "required", "a"]),
        "parallel_tool_calls": st.none() | st.booleans(),
    },
)


@given(options=options_of_a_run)
def test_options_are_saved_whole(options: Any) -> None:
    made = RunSettings.of(options)
    state = RunState("run_1", 0, (), settings=made)
    assert RunState.from_json(state.to_json()) == state
    signed = state.signed(KEY)
    RunState.from_json(signed.to_json()).check_signature(KEY)
    if made == RunSettings():
        assert signed.signature == RunState("run_1", 0, (), tally=state.tally).signed(KEY).signature


# Instructions as a function of the run.


def greeting(run: RunInfo) -> str:
    return f"{run.agent} talks to {run.caller.id} about {run.prompt!r}, {len(run.messages)}"


async def greeting_later(run: RunInfo) -> str:
    return greeting(run)


@pytest.mark.parametrize("instructions", [greeting, greeting_later])
async def test_instructions_know_the_run(instructions: Any) -> None:
    model = ScriptedClient(["Hello."])
    agent = Agent(model, [add], instructions=instructions, name="desk")
    result = await agent.run("Hi", caller=ADA)
    told = "desk talks to ada about 'Hi', 1"
    assert model.requests[0].messages[0].content == told
    assert [message.content for message in result.messages] == [told, "Hi", "Hello."]


async def test_they_are_made_once_a_run() -> None:
    made: list[str] = []

    def instructions(run: RunInfo) -> str:
        made.append(run.run_id)
        return f"{len(made)}"

    def agent(*turns: Any) -> Agent:
        runner = ToolRunner([refund], approver=answer_later)
        return Agent(ScriptedClient(turns), runner, instructions=instructions)

    waits = await agent(call("refund", order=7)).run("go")
    done = await agent("Done.").resume(waits.state, {waits.pending[0].id: Approve("eve")})
    assert (made, done.messages[0].content) == ([waits.state.run_id], "1")
    session = agent("a", "b").session()
    await session.send("go")
    await session.send("go on")
    assert [m.content for m in session.messages if m.role == "system"] == ["3"]


async def test_what_they_know_of_a_conversation() -> None:
    known: list[RunInfo] = []

    def instructions(run: RunInfo) -> str:
        known.append(run)
        return ""

    model = ScriptedClient(["a", "b"])
    session = Agent(model, Catalog([look]).bind({Orders: per_run}), instructions=instructions)
    talk, orders = session.session(), OrdersOf("ada")
    await talk.send("one", deps={Orders: orders})
    await talk.send("two", deps={Orders: orders})
    assert [m.content for m in known[1].messages] == ["one", "a", "two"]
    assert known[1].deps[Orders] is orders
    assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "user"]


async def test_they_come_with_what_says_how_a_typed_answer_is_written() -> None:
    model = ScriptedClient(["7"])
    result = await Agent(model, instructions=greeting, output=int).run("Hi")
    told = model.requests[0].messages[0].content
    assert told.startswith(" talks to anonymous")
    assert "JSON Schema" in told
    assert result.output == 7


async def test_a_prepared_run_gets_them_when_it_begins() -> None:
    model = ScriptedClient(["Hello."])
    agent = Agent(model, instructions=greeting, name="desk", state_key=KEY)
    state = RunState.from_json(agent.prepare("Hi", caller=ADA, temperature=0).to_json())
    result = await agent.resume(state)
    assert result.messages[0].content == "desk talks to ada about 'Hi', 1"
    assert model.requests[0].settings.temperature == 0


async def test_an_agent_with_a_text_begins_a_run_that_another_one_prepared() -> None:
    state = Agent(ScriptedClient([]), instructions=greeting).prepare("Hi")
    for instructions, roles in (("Be brief.", ["system", "user"]), ("", ["user"])):
        model = ScriptedClient(["Hello."])
        await Agent(model, instructions=instructions).resume(state)
        assert [message.role for message in model.requests[0].messages] == roles


def failing(_run: RunInfo) -> str:
    raise LookupError("a secret")


@each_row(("instructions", "kind"), [(failing, LookupError), (lambda _run: 7, TypeError)])
async def test_what_they_raise_is_raised_and_nothing_is_asked(
    instructions: Any, kind: type[Exception]
) -> None:
    model = ScriptedClient(["Hello."])
    agent = Agent(model, instructions=instructions)
    with pytest.raises(kind):
        await agent.run("Hi")
    async with agent.stream("Hi") as stream:
        events = [event async for event in stream]
    assert [type(event) for event in events] == [RunStarted, RunError, Done]
    assert "a secret" not in str(events[1])
    session = agent.session()
    with pytest.raises(kind):
        await session.send("Hi")
    assert (session.messages, model.requests) == ((), [])


def test_what_is_neither_a_text_nor_a_function() -> None:
    with pytest.raises(TypeError, match="instructions must be a str, or a function of a RunInfo"):
        Agent(ScriptedClient([]), instructions=7)  # type: ignore[arg-type]


# Capabilities of a run.


def desk_of(*turns: Any, **made: Any) -> Agent:
    tools = Catalog([look, refund]).bind({Orders: per_run})
    return Agent(ScriptedClient(turns), ToolRunner(tools, approver=answer_later), **made)


async def test_each_run_has_its_own() -> None:
    agent = desk_of(call("look"), "a", call("look"), "b")
    one = await agent.run("go", deps={Orders: OrdersOf("ada")})
    two = await agent.run("go", deps={Orders: per_call(lambda: OrdersOf("bob"))})
    assert [r.records[0].result for r in (one, two)] == [["ada"], ["bob"]]


async def test_one_that_is_bound_is_replaced_for_one_run() -> None:
    tools = Catalog([look]).bind({Orders: OrdersOf("all")})
    agent = Agent(ScriptedClient([call("look"), "a", call("look"), "b"]), tools)
    one = await agent.run("go", deps={Orders: OrdersOf("ada")})
    two = await agent.run("go")
    assert [r.records[0].result for r in (one, two)] == [["ada"], ["all"]]


@pytest.mark.parametrize("bound", [OrdersOf("all"), per_run])
async def test_a_call_that_a_tool_makes_has_those_of_its_run(bound: Any) -> None:
    found: list[Any] = []

    @tool(visible=ALL)
    async def twice(n: int) -> int:
        """Look by another call."""
        outcome = await runner.exec(ToolCall(f"inner_{n}", "look", "{}"))
        found.append(outcome.record.result)
        if n:
            await runner.exec(ToolCall(f"deeper_{n}", "twice", f'{{"n": {n - 1}}}'))
        return n

    runner = ToolRunner(Catalog([look, twice]).bind({Orders: bound}))
    agent = Agent(ScriptedClient([call("twice", n=1), "a"]), runner)
    await agent.run("go", deps={Orders: OrdersOf("ada")})
    assert found == [["ada"], ["ada"]]


MISSING = r"tool 'look' needs Orders \(its parameter 'orders'\), which must be given to each run"


@pytest.mark.parametrize(
    ("deps", "words"),
    [
        (None, MISSING),
        ({}, MISSING),
        ({int: 7}, MISSING),
        ({Orders: object()}, "has no 'still_open'"),
        ({Orders: OrdersOf}, "is a class"),
        ({"orders": OrdersOf("ada")}, "no interface"),
    ],
)
async def test_one_that_is_missing_or_does_not_fit(deps: Any, words: str) -> None:
    agent = desk_of()
    for begin in (agent.run, agent.session().send):
        with pytest.raises(BindingError, match=words):
            await begin("go", deps=deps)
    session = agent.session()
    for start in (agent.stream, session.stream, session.stream):  # it is not busy after that
        with pytest.raises(BindingError, match=words):
            start("go", deps=deps)
    state = agent.prepare("go")
    with pytest.raises(BindingError, match=words):
        await agent.resume(state, deps=deps)
    assert agent.client.requests == []  # type: ignore[attr-defined]


async def test_a_run_that_goes_on_is_given_them_again() -> None:
    given = {Orders: OrdersOf("ada")}
    before = desk_of(call("refund", order=7))
    waits = await before.run("go", deps=given)
    state = RunState.from_json(waits.state.to_json())
    assert "OrdersOf" not in waits.state.to_json()
    answers: Mapping[str, Any] = {waits.pending[0].id: Approve("eve")}
    with pytest.raises(BindingError, match=MISSING):
        await desk_of().resume(state, answers)
    later = await desk_of(call("look"), "Done.").resume(state, answers, deps=given)
    assert [record.result for record in later.records] == ["done", ["ada"]]
    async with desk_of(call("look"), "Done.").resume_stream(state, answers, deps=given) as stream:
        assert (await stream.result()).text == "Done."


class Unneeded:
    """No tool needs it."""


async def test_a_run_that_was_given_its_own_does_not_go_on_with_the_catalogs() -> None:
    def desk_with(bound: object, *turns: Any) -> Agent:
        tools = Catalog([look, refund]).bind({Orders: bound})
        return Agent(ScriptedClient(turns), ToolRunner(tools, approver=answer_later))

    own: Any = {Orders: OrdersOf("ada"), Unneeded: Unneeded()}
    shared = OrdersOf("the house")
    waits = await desk_with(shared, call("refund", order=7)).run("go", deps=own)
    assert waits.state.given == (f"{__name__}.Orders",)
    state = RunState.from_json(waits.state.to_json())
    answers = {waits.pending[0].id: Approve("eve")}
    again = desk_with(shared, call("look"), "Done.")
    for deps in (None, {}, {Unneeded: Unneeded()}):
        with pytest.raises(BindingError, match=r"given its own .*Orders, .* deps=\{Orders:"):
            await again.resume(state, answers, deps=deps)
    done = await again.resume(state, answers, deps={Orders: OrdersOf("ada")})
    assert [record.result for record in done.records] == ["done", ["ada"]]
    with pytest.raises(BindingError, match=r"given its own .*Orders"):
        await desk_with(shared, "Done.").resume(again.fork(done.state, turn=0))
    gone = Agent(ScriptedClient(["Done."]), [])  # which needs it no more
    assert (await gone.resume(gone.prepare("go"))).state.given == ()


class Elsewhere:
    @capability
    class Orders(Protocol):
        async def still_open(self) -> list[str]: ...


@tool(visible=ALL)
async def look_elsewhere(orders: Elsewhere.Orders) -> list[str]:
    """Look at the orders of another shop."""
    return await orders.still_open()


async def test_another_interface_of_that_name_is_not_what_it_was_given() -> None:
    house = OrdersOf("the house")
    bound = Catalog([refund, look, look_elsewhere]).bind({Orders: house, Elsewhere.Orders: house})

    def desk(*turns: Any) -> Agent:
        return Agent(ScriptedClient(turns), ToolRunner(bound, approver=answer_later))

    other: Any = {Elsewhere.Orders: OrdersOf("eve")}
    own: Any = {Orders: OrdersOf("ada")}
    waits = await desk(call("refund", order=7)).run("go", deps=own)
    answers = {waits.pending[0].id: Approve("eve")}
    with pytest.raises(BindingError, match=rf"given its own {__name__}\.Orders"):
        await desk().resume(waits.state, answers, deps=other)
    done = await desk(call("look"), "Done.").resume(waits.state, answers, deps=own | other)
    assert done.records[-1].result == ["ada"]
    assert done.state.given == (f"{__name__}.Elsewhere.Orders", f"{__name__}.Orders")
    before = msgspec.structs.replace(waits.state, given=("Orders",))  # of an earlier version
    with pytest.raises(BindingError, match="given its own Orders"):
        await desk().resume(before, answers)
    done = await desk(call("look"), "Done.").resume(before, answers, deps=own)
    assert (done.records[-1].result, f"{__name__}.Orders" in done.state.given) == (["ada"], True)
    for module in (
        "__main__",
        "shop.orders",
    ):  # in which it was then: all that are called so are meant
        moved = msgspec.structs.replace(waits.state, given=(f"{module}.Orders",))
        for deps in (None, own, other):
            with pytest.raises(BindingError, match=r"deps=\{Orders: implementation\}"):
                await desk().resume(moved, answers, deps=deps)
        done = await desk(call("look"), "Done.").resume(moved, answers, deps=own | other)
        assert done.records[-1].result == ["ada"]


def till_of(currency: str) -> tuple[Any, Any]:
    """Return an interface and the tool that needs it, as a function makes them for each currency."""

    @capability
    class Till(Protocol):
        async def still_open(self) -> list[str]: ...

    @tool(visible=ALL, safe=False, name=f"pay_{currency}")
    async def pay(till: Till) -> list[str]:
        """Pay."""
        return await till.still_open()

    return Till, pay


@pytest.mark.parametrize("handed", [False, True])
async def test_of_interfaces_that_one_function_made_the_run_is_given_its_own_again(
    handed: bool,
) -> None:
    house, ada = OrdersOf("the house"), OrdersOf("ada")
    (eur, pay_eur), (usd, pay_usd) = till_of("eur"), till_of("usd")
    bound = Catalog([pay_eur, pay_usd]).bind({eur: house, usd: house})

    def desk(*turns: Any) -> Agent:
        runner = ToolRunner(bound, approver=answer_later)
        if not handed:
            return Agent(ScriptedClient(turns), runner)
        payer = Agent(ScriptedClient(turns), ToolRunner(bound), name="payer")
        return Agent(ScriptedClient(turns), runner, handovers=[payer], name="desk")

    waits = await desk(call("pay_eur")).run("go", deps={eur: ada})
    path = f"{__name__}.till_of.<locals>.Till"
    places = "desk.pay_eur.till, payer.pay_eur.till" if handed else "pay_eur.till"
    assert waits.state.given == (f"{path} ({places})",)
    state = RunState.from_json(waits.state.to_json())
    answers: Mapping[str, Any] = {waits.pending[0].id: Approve("eve")}
    moved = msgspec.structs.replace(state, given=(f"__main__.Till ({places})",))
    lacks = r"deps=\{Till: implementation\}"
    for saved, deps in product((state, moved), (None, {}, {usd: ada})):
        with pytest.raises(BindingError, match=lacks + "$"):
            await desk().resume(saved, answers, deps=deps)
        done = await desk("Done.").resume(saved, answers, deps={eur: ada})
        assert done.records[-1].result == ["ada"]
    unclear = [(path,), (f"{path} (pay_gbp.till)",)]  # what is meant is not known: all of them are
    for names, own in product(unclear, (eur, usd)):
        old = msgspec.structs.replace(state, given=names)
        with pytest.raises(BindingError, match=lacks + " for each .*pay_eur.* and .*pay_usd"):
            await desk().resume(old, answers, deps={own: ada})
        done = await desk("Done.").resume(old, answers, deps={eur: ada, usd: ada})
        assert done.records[-1].result == ["ada"]
    both = await desk(call("pay_usd")).run("go", deps={eur: ada, usd: house})
    yes: Mapping[str, Any] = {both.pending[0].id: Approve("eve")}
    for own in (eur, usd):
        with pytest.raises(BindingError, match=lacks + "$"):
            await desk().resume(both.state, yes, deps={own: ada})


async def test_a_conversation_goes_on_with_them() -> None:
    agent = desk_of(call("refund", order=7), call("look"), "Done.")
    session = agent.session()
    waits = await session.send("go", deps={Orders: OrdersOf("ada")})
    answers: Mapping[str, Any] = {waits.pending[0].id: Approve("eve")}
    session = Session.from_json(agent, session.to_json())
    result = await session.resume(waits.state, answers, deps={Orders: OrdersOf("bob")})
    assert result.records[-1].result == ["bob"]


async def test_they_are_bound_where_the_agent_picks_and_searches() -> None:
    agent = Agent(
        ScriptedClient([call("search_tools", query="open orders"), call("look"), "Done."]),
        Catalog([look, add]).bind({Orders: per_run}),
        pick=PickOptions(max_candidates=2),
        search_tools=True,
    )
    result = await agent.run("List the open orders", deps={Orders: OrdersOf("ada")})
    assert result.records[-1].result == ["ada"]


async def test_an_agent_that_is_a_tool_keeps_its_own() -> None:
    clerk_model = ScriptedClient([call("look"), "Done."])
    clerk = Agent(
        clerk_model, Catalog([look]).bind({Orders: OrdersOf("own")}), temperature=1, name="clerk"
    )
    within = clerk.as_tool("clerk", "Looks things up.", visible=ALL)
    front = Agent(ScriptedClient([call("clerk", prompt="look"), "Yes."]), [within])
    await front.run("go", deps={Orders: OrdersOf("ada")}, temperature=0, tool_choice="required")
    assert [asked(request) for request in clerk_model.requests] == [
        (Settings(1), ToolChoice(), None)
    ] * 2
    assert "own" in clerk_model.requests[1].messages[-1].content


def test_an_agent_that_is_a_tool_is_given_none() -> None:
    with pytest.raises(
        BindingError, match=f"{MISSING}; an agent that is a tool is given none: bind"
    ):
        desk_of().as_tool("clerk", "Looks things up.")


async def test_without_a_run_such_a_call_says_why_it_fails() -> None:
    runner = ToolRunner(Catalog([look]).bind({Orders: per_run}))
    (planned,) = await ScriptedClient([call("look")]).tool_call("go", runner.catalog)
    outcome = await runner.exec(planned)
    assert outcome.record.error is not None
    assert outcome.record.error.code == "capability_error"
    assert "deps=" in outcome.record.error.message


# What goes out, by each provider's client.

CLIENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "openai-chat": (OpenAIClient, {}, "gpt-5"),
    "openai-responses": (OpenAIClient, {"api": "responses"}, "gpt-5"),
    "anthropic": (AnthropicClient, {}, "claude-opus-5"),
    "gemini": (GeminiClient, {}, "gemini-2.5-flash"),
    "mistral": (MistralClient, {}, "mistral-large-4-0"),
    "ollama": (OllamaClient, {}, "gpt-oss"),
    "cohere": (CohereClient, {}, "command-a-plus-05-2026"),
}


@each_row("wire", CLIENTS)
async def test_each_client_sends_what_its_wire_says(wire: str) -> None:
    kind, given_, model = CLIENTS[wire]
    noting = Noting()
    client = kind(model, base_url="http://127.0.0.1:1", transport=noting, retries=None, **given_)
    settings = Settings(0, 50, reasoning="low")
    with pytest.raises(ConnectionFailed) as raised:
        await Agent(client, [add]).run("Hi", temperature=0, max_tokens=50, reasoning="low")
    request = ChatRequest((Message.user("Hi"),), (add,), settings=settings)
    (sent,) = noting.sent
    assert json.loads(sent.body) == json.loads(encode(wire, request, model=model).body)
    state = raised.value.state
    assert isinstance(state, RunState)
    assert state.settings.of_requests == settings


@each_row("wire", CLIENTS)
async def test_a_run_without_options_sends_not_a_byte_of_them(wire: str) -> None:
    kind, given_, model = CLIENTS[wire]
    noting = Noting()
    client = kind(model, base_url="http://127.0.0.1:1", transport=noting, retries=None, **given_)
    with pytest.raises(ConnectionFailed):
        await Agent(client, [add]).run("Hi")
    bare = ChatRequest((Message.user("Hi"),), (add,))
    assert noting.sent[0].body == encode(wire, bare, model=model).body
