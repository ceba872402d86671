"""What openai-agents does of the rows of `docs/compared.md`, in the ways that its own pages show."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
from typing import Annotated, Any
from unittest.mock import patch

import agents
import features
from agents import (
    Agent,
    AgentsException,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    ToolInputGuardrail,
    ToolOutputImage,
    ToolSearchTool,
    UserError,
    function_tool,
    handoff,
)
from agents.extensions import ToolOutputTrimmer
from agents.extensions.memory import AdvancedSQLiteSession
from agents.models.chatcmpl_helpers import ChatCmplHelpers
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.capabilities import Filesystem, Memory, Shell
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call
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
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field

agents.set_tracing_disabled(True)
ran: list[tuple[int, int]] = []


def refund(order: int, cents: int = 9) -> str:
    """Refund a part of an order."""
    ran.append((order, cents))
    return f"refunded {cents} cents of order {order}"


def scripted(*turns: Any) -> ScriptedModel:
    """Return its own scripted model, which says a text, or makes a call given as (name, arguments)."""
    steps: list[Any] = []
    for at, turn in enumerate(turns):
        if isinstance(turn, Exception):
            steps.append(turn)
        elif isinstance(turn, str):
            steps.append([assistant_message(turn)])
        else:
            steps.append([function_call(turn[0], turn[1], call_id=f"call_{at}")])
    return ScriptedModel(steps)


def asked(model: ScriptedModel, at: int) -> str:
    """Return what the request of a turn held, as text."""
    return str(model.calls[at].input)


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="k", max_retries=0)


def openai(url: str, **options: Any) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("gpt-4o", client(url), **options)


async def truncated_call() -> Cell:
    seen = {way: await runs_cut(*way, as_openai=True) for way in CUT_WAYS}
    elsewhere = {way: await runs_cut(*way, as_openai=False) for way in CUT_WAYS}
    assert [way[0] for way in CUT_WAYS if seen[way] != elsewhere[way]] == [
        "a stream that broke off"
    ]
    found = features.judged_cuts(seen)
    return partly(f"{found.what}; of other servers than OpenAI's, a stream that broke off, too")


async def runs_cut(name: str, stream: bool, *, as_openai: bool) -> bool:
    """Return whether a call of a reply that was cut is run."""
    ran.clear()
    is_openai = patch.object(ChatCmplHelpers, "is_openai", lambda _client: as_openai)
    with features.wire(CUT_TURNS[name], Turn(text="Done.")) as server, is_openai:
        agent = Agent("desk", model=openai(server.url), tools=[function_tool(refund)])
        with contextlib.suppress(Exception):  # an error is an answer, too
            if stream:
                streamed = Runner.run_streamed(agent, "Refund.")
                async for _ in streamed.stream_events():
                    pass
            else:
                await Runner.run(agent, "Refund.")
    return bool(ran)


class StrictLine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    article: str
    amount: int = 1


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
        agent = Agent("desk", model=scripted((name, arguments), "Done."))
        agent.tools = [function_tool(made)]
        await Runner.run(agent, "Tea.")
        return not taken

    by_itself = [await refuses(order, "order", each) for each in WRONG_KEYS]
    told_to = [await refuses(strict, "strict", each) for each in WRONG_KEYS]
    return features.judged_keys(by_itself, told_to)


async def string_for_int() -> Cell:
    def strict(order: Annotated[int, Field(strict=True)]) -> str:
        """Refund an order."""
        ran.append((order, 0))
        return "refunded"

    ran.clear()
    for made in (refund, strict):
        model = scripted((made.__name__, {"order": "5", "cents": 9}), "Done.")
        await Runner.run(Agent("desk", model=model, tools=[function_tool(made)]), "Refund.")
    assert ran == [(5, 9)]
    assert "An error occurred while running the tool" in asked(model, 1)
    return partly("with `Field(strict=True)`, but not told what is wrong; else it becomes 5")


async def async_policy() -> Cell:
    async def raises(_data: Any) -> Any:
        raise ConnectionError("the other system is away")

    async def hangs(_data: Any) -> Any:
        await asyncio.sleep(3_600)

    async def refund_later(order: int) -> str:
        """Refund an order."""
        return refund(order)

    ran.clear()
    seen = []
    for check in (raises, hangs):
        guardrail: Any = ToolInputGuardrail(guardrail_function=check, name="check")
        made = function_tool(refund_later, tool_input_guardrails=[guardrail], timeout=0.2)
        model = scripted(("refund_later", {"order": 7}), "Done.")
        agent = Agent("desk", model=model, tools=[made])
        seen.append(await features.ended(Runner.run(agent, "Refund.")))
    assert not ran
    assert isinstance(seen[0], Exception)
    assert seen[1] is None
    return partly("nothing runs, and the run ends; one that hangs is waited for")


def waiting(*turns: Any) -> Agent[Any]:
    tool = function_tool(refund, needs_approval=True)
    return Agent("desk", model=scripted(*turns), tools=[tool])


async def approval_bound() -> Cell:
    ran.clear()
    agent = waiting(("refund", {"order": 7, "cents": 500}), "Done.")
    waits = await Runner.run(agent, "Refund.")
    state = waits.to_state()
    state.approve(waits.interruptions[0])
    changed = state.to_string().replace("500", "50000")
    try:
        await Runner.run(agent, await RunState.from_string(agent, changed))
    except Exception:  # noqa: BLE001
        assert not ran
        return yes("a state whose call has other arguments is refused")
    return no(f"runs {ran}")


async def always_rule() -> Cell:
    made = ("refund", {"order": 79, "cents": 20}), ("refund", {"order": 80, "cents": 900})
    agent = waiting(made[0], made[1], "Done.", made[0], "Done.")
    waits = await Runner.run(agent, "Refund.")
    state = waits.to_state()
    state.approve(waits.interruptions[0], always_approve=True)
    result = await Runner.run(agent, state)
    assert not result.interruptions  # of other arguments nobody was asked
    later = await Runner.run(agent, "Refund.")
    assert later.interruptions
    return no("`always_approve`: whatever the arguments, in that run")


async def spend_per_caller() -> Cell:
    ended = []
    for _ in range(2):
        agent = Agent("desk", model=scripted("Hello."))
        await Runner.run(agent, "Hello?", max_turns=1)
        ended.append("completed")
    assert ended == ["completed"] * 2
    names = [name.lower() for name in (*RunConfig.__dataclass_fields__, *dir(agents))]
    assert not [name for name in names if "budget" in name or "spend" in name]
    return no("`max_turns` is of one run")


async def audit_verifies() -> Cell:
    session = SQLiteSession("ada", "session.db")
    agent = Agent("desk", model=scripted(("refund", {"order": 7, "cents": 900}), "Done."))
    agent.tools = [function_tool(refund)]
    await Runner.run(agent, "Refund.", session=session)
    with contextlib.closing(sqlite3.connect("session.db")) as database:
        text = "update agent_messages set message_data = replace(message_data, '900', '909')"
        assert database.execute(text).rowcount
        database.commit()
    assert "909" in str(await SQLiteSession("ada", "session.db").get_items())
    return no("a changed session is read like any other")


async def repeated_calls() -> Cell:
    model = scripted(*[("refund", {"order": 7, "cents": 1})] * 50)
    agent = Agent("desk", model=model, tools=[function_tool(refund)])
    try:
        await Runner.run(agent, "Refund.", max_turns=50)
    except MaxTurnsExceeded:
        return no(f"up to the limit on turns, {len(model.calls)}")
    return yes("stopped")


async def empty_reply() -> Cell:
    with features.wire(Turn()) as server:
        try:
            result = await Runner.run(
                Agent("desk", model=openai(server.url)), "Hello?", max_turns=5
            )
        except AgentsException as error:
            return yes(f"an error: {type(error).__name__}")
    assert not result.final_output
    return no("it is `''`")


async def resume_after_failure() -> Cell:
    ran.clear()
    made = ("refund", {"order": 7, "cents": 9})
    agent = Agent("desk", model=scripted(made, ConnectionError("down"), "Done."))
    agent.tools = [function_tool(refund)]
    streamed = Runner.run_streamed(agent, "Refund.")
    try:
        async for _ in streamed.stream_events():
            pass
    except ConnectionError:
        state = await RunState.from_string(agent, streamed.to_state().to_string())
    result = await Runner.run(agent, state)
    if (result.final_output, ran) == ("Done.", [(7, 9)]):
        plain = Agent("desk", model=scripted(made, ConnectionError("down")), tools=agent.tools)
        error = await features.ended(Runner.run(plain, "Refund."))
        assert isinstance(error, ConnectionError)
        assert not hasattr(error, "run_data")
        return partly("if it was streamed: `to_state()`; the error of `Runner.run` has no state")
    return no(f"the refund is made {len(ran)} times")


async def fork() -> Cell:
    ran.clear()
    made = ("refund", {"order": 7, "cents": 9})
    agent = Agent("desk", model=scripted("Hello.", made, "Done.", made, "Done."))
    agent.tools = [function_tool(refund)]
    session = AdvancedSQLiteSession(session_id="ada", create_tables=True)
    await Runner.run(agent, "Hello?", session=session)
    await Runner.run(agent, "My tea was cold.", session=session)
    await session.create_branch_from_turn(2)
    await Runner.run(agent, "Refund it, please.", session=session)
    assert ran == [(7, 9), (7, 9)]
    return partly("`AdvancedSQLiteSession` branches; the call is made twice")


async def plan() -> Cell:
    ran.clear()
    agent = waiting(("refund", {"order": 7, "cents": 9}), "Done.")
    waits = await Runner.run(agent, "Refund.")
    agent = waiting(("refund", {}), "Done.")
    unchecked = await Runner.run(agent, "Refund.")
    assert (len(waits.interruptions), ran) == (1, [])
    what = "checked" if not unchecked.interruptions else "not checked"
    return partly(f"calls of tools that need approval, with arguments {what}")


async def settings_refused() -> Cell:
    settings = ModelSettings(truncation="auto")
    with features.wire(Turn(text="Hello.")) as server:
        for strict in (False, True):
            model = openai(server.url, strict_feature_validation=strict)
            await Runner.run(Agent("desk", model=model, model_settings=settings), "Hello?")
    assert not [body for body in server.requests if "truncation" in body]
    return no("left out in silence (`truncation`, with Chat Completions)")


async def image_prompt() -> Cell:
    address = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": address, "detail": "auto"},
    ]
    prompt: Any = [{"role": "user", "content": parts}]
    with features.wire(Turn(text="A pixel.")) as server:
        await Runner.run(Agent("desk", model=openai(server.url)), prompt)
    assert "data:image/png;base64," in json.dumps(server.requests[0])
    return yes("an item of OpenAI's form")


async def image_result() -> Cell:
    address = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"

    @function_tool
    def screenshot() -> ToolOutputImage:
        """Take a picture of the screen."""
        return ToolOutputImage(image_url=address)

    turns = Turn((Call("screenshot", "{}"),), finish="tool_calls"), Turn(text="A pixel.")
    with features.wire(*turns) as server:
        agent = Agent("desk", model=openai(server.url), tools=[screenshot])
        await Runner.run(agent, "What is it?")
    assert "data:image/png;base64," not in json.dumps(server.requests[1])
    with features.wire(*turns) as server:
        agent.model = openai(server.url, strict_feature_validation=True)
        with contextlib.suppress(UserError):
            await Runner.run(agent, "What is it?")
    assert len(server.requests) == 1
    model = scripted(("screenshot", {}), "A pixel.")
    await Runner.run(Agent("desk", model=model, tools=[screenshot]), "What is it?")
    assert "input_image" in asked(model, 1)
    return partly("`ToolOutputImage` with Responses; with Chat Completions left out, or an error")


class City(BaseModel):
    name: str
    people: int


async def typed_retries() -> Cell:
    model = scripted('{"name": "Rome"}', '{"name": "Rome", "people": 3}')
    try:
        await Runner.run(Agent("desk", model=model, output_type=City), "Where?")
    except ModelBehaviorError:
        assert len(model.calls) == 1
        return no("the run ends with an error")
    return yes("it goes back")


async def partial_output() -> Cell:
    model = scripted('{"name": "Rome and more", "people": 3}')
    streamed = Runner.run_streamed(Agent("desk", model=model, output_type=City), "Where?")
    kinds = set()
    async for event in streamed.stream_events():
        kinds.add(type(getattr(event, "data", event)).__name__)
    assert streamed.final_output == City(name="Rome and more", people=3)
    assert "ResponseTextDeltaEvent" in kinds
    return no("pieces of its text")


async def context_spill() -> Cell:
    @function_tool
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    model = scripted(("report", {"year": 2025}), "It was 12.")
    trimmed = RunConfig(call_model_input_filter=ToolOutputTrimmer(recent_turns=1))
    agent = Agent("desk", model=model, tools=[report])
    await Runner.run(agent, "What was the surplus?", run_config=trimmed)
    assert len(asked(model, 1)) > 900_000
    return no("all of it is sent; of older turns a beginning (`ToolOutputTrimmer`)")


async def handover() -> Cell:
    model = scripted("You have it back.")
    billing = Agent("billing", model=model)
    model_of_front = scripted(("transfer_to_billing", {}))
    reception = Agent("reception", model=model_of_front, handoffs=[handoff(billing)])
    result = await Runner.run(reception, "My tea was cold.")
    assert result.last_agent.name == "billing"
    assert "My tea was cold." in asked(model, 0)
    return yes("`handoffs`")


async def methods_as_tools() -> Cell:
    notes = Notes()
    model = scripted(("add_note", {"text": "tea is out"}), "Kept.")
    tools = [function_tool(notes.add_note), function_tool(notes.read_notes)]
    await Runner.run(Agent("desk", model=model, tools=tools), "Note that tea is out.")
    assert notes.kept == ["tea is out"]
    return partly("each by itself")


async def background_tools() -> Cell:
    @function_tool
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    model = scripted(("report", {}), "It was 12.")
    await Runner.run(Agent("desk", model=model, tools=[report]), "What was the surplus?")
    assert "The surplus was 12." in asked(model, 1)
    return no("it is waited for")


async def deferred_tools() -> Cell:
    def ready(at: int) -> Any:
        def run(text: str = "") -> str:
            """Do a thing."""
            return text

        return function_tool(run, name_override=f"do_thing_{at}", defer_loading=True)

    tools = [*map(ready, range(60)), ToolSearchTool()]
    with features.wire(500) as server:
        model = OpenAIResponsesModel("gpt-5.4", client(server.url))
        with contextlib.suppress(Exception):  # the server refuses all
            await Runner.run(Agent("desk", model=model, tools=tools), "Do it.")
        sent = server.requests[0]["tools"]
        try:
            agent = Agent("desk", model=openai(server.url), tools=tools)
            await Runner.run(agent, "Do it.")
        except UserError:
            elsewhere = "an error elsewhere"
    assert sum(bool(tool.get("defer_loading")) for tool in sent) == 60
    assert {"type": "tool_search"} in [{"type": tool["type"]} for tool in sent]
    return partly(f"by the search of OpenAI's Responses; {elsewhere}")


async def graph() -> Cell:
    names = [name.lower() for name in agents.__all__]
    assert not [name for name in names if "graph" in name or "workflow" in name]
    return no("write it in Python")


async def memory() -> Cell:
    kept = {"memories/memory_summary.md": File(content=b"Ada drinks tea.")}
    model = scripted("Tea.")
    capabilities = [Shell(), Filesystem(), Memory(generate=None)]
    agent = SandboxAgent("desk", model=model, capabilities=capabilities)
    agent.default_manifest = Manifest(entries=kept)
    run_config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    await Runner.run(agent, "What do I drink?", run_config=run_config)
    assert "Ada drinks tea." in str(model.calls[0].system_instructions)
    return partly("`SandboxAgent` reads notes in its folder")


async def shell() -> Cell:
    model = scripted(("exec_command", {"cmd": "echo 4 | tr 4 5"}), "Done.")
    agent = SandboxAgent("desk", model=model, capabilities=[Shell()])
    run_config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    await Runner.run(agent, "Run it.", run_config=run_config)
    assert "5" in asked(model, 1)
    return yes("`SandboxAgent`")


if __name__ == "__main__":
    features.main(globals(), "openai-agents")
