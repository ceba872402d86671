"""What pydantic-ai does of the rows of `docs/compared.md`, in the ways that its own pages show."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import features
import pydantic_ai.capabilities
import pydantic_ai.common_tools
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
from pydantic_ai import (
    Agent,
    BinaryContent,
    BinaryImage,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    MemoryTool,
    Tool,
    ToolApproved,
    UnexpectedModelBehavior,
    UsageLimits,
    capture_run_messages,
)
from pydantic_ai.capabilities import Hooks, NativeTool, ToolSearch
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_graph import GraphBuilder
from typing_extensions import TypedDict

ran: list[tuple[int, int]] = []


def refund(order: int, cents: int = 9) -> str:
    """Refund a part of an order."""
    ran.append((order, cents))
    return f"refunded {cents} cents of order {order}"


class Scripted:
    """A `FunctionModel` that says one turn after the other: a text, or a call as (name, arguments)."""

    def __init__(self, *turns: Any) -> None:
        self.requests: list[list[Any]] = []
        self.offered: list[list[str]] = []
        self._turns: Iterator[Any] = iter(turns)
        self.model = FunctionModel(self._say, stream_function=self._stream)

    def _say(self, messages: list[Any], info: AgentInfo) -> ModelResponse:
        self.requests.append(messages)
        self.offered.append([each.name for each in info.function_tools])
        turn = next(self._turns)
        if callable(turn):
            turn = turn(messages)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)] if turn else [])
        name, arguments = turn
        if name == "output":
            name = info.output_tools[0].name
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    async def _stream(self, messages: list[Any], info: AgentInfo) -> Any:
        part = self._say(messages, info).parts[0]
        if isinstance(part, TextPart):
            yield part.content
            return
        text = part.args_as_json_str()
        yield {0: DeltaToolCall(name=part.tool_name, json_args="")}
        for at in range(0, len(text), 7):
            yield {0: DeltaToolCall(json_args=text[at : at + 7])}


def openai(url: str, **options: Any) -> OpenAIChatModel:
    client = AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
    return OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client), **options)


def told(messages: list[Any]) -> str:
    """Return what went back to the model as a mistake of its own, as text."""
    parts = [part for message in messages for part in message.parts]
    return "".join(str(p.content) for p in parts if getattr(p, "outcome", "") == "retried")


async def truncated_call() -> Cell:
    seen = {}
    for name, stream in CUT_WAYS:
        ran.clear()
        with features.wire(CUT_TURNS[name], Turn(text="Done.")) as server:
            agent = Agent(openai(server.url), tools=[refund])
            try:
                if stream:
                    async with agent.run_stream("Refund.") as streamed:
                        await streamed.get_output()
                else:
                    await agent.run("Refund.")
            except Exception:  # noqa: BLE001, S110  an error is an answer, too
                pass
        seen[name, stream] = bool(ran)
    return features.judged_cuts(seen)


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
        said = Scripted((name, arguments), "Done.")
        await Agent(said.model, tools=[made]).run("Tea.")
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
        said = Scripted((made.__name__, {"order": "5"}), "Done.")
        await Agent(said.model, tools=[made]).run("Refund.")
    assert ran == [(5, 9)]
    assert "valid integer" in told(said.requests[1])
    return partly("with `Field(strict=True)`; else it becomes 5")


async def async_policy() -> Cell:
    async def raises(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the other system is away")

    async def hangs(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3_600)

    ran.clear()
    seen = []
    for check, seconds in ((raises, None), (hangs, None), (hangs, 0.2)):
        hooks = Hooks()
        hooks.on.before_tool_execute(check, timeout=seconds)
        said = Scripted(("refund", {"order": 7}), "Done.")
        agent = Agent(said.model, tools=[refund], capabilities=[hooks])
        seen.append(type(await features.ended(agent.run("Refund."))).__name__)
    assert not ran
    assert seen == ["ConnectionError", "NoneType", "HookTimeoutError"], seen
    return partly("nothing runs, and the run ends; for what hangs set `timeout=`")


def needs_approval(*turns: Any) -> tuple[Agent[None, Any], Scripted]:
    said = Scripted(*turns)
    tools = [Tool(refund, requires_approval=True)]
    return Agent(said.model, tools=tools, output_type=[str, DeferredToolRequests]), said


async def approval_bound() -> Cell:
    seen = []
    for says_them in (False, True):
        ran.clear()
        agent, _ = needs_approval(("refund", {"order": 7, "cents": 500}), "Done.")
        waits = await agent.run("Refund.")
        [asked] = waits.output.approvals
        changed = waits.all_messages_json().decode().replace("500", "50000")
        history = ModelMessagesTypeAdapter.validate_json(changed)
        answer = ToolApproved(override_args=asked.args_as_dict()) if says_them else True
        answers = DeferredToolResults(approvals={asked.tool_call_id: answer})
        await agent.run(message_history=history, deferred_tool_results=answers)
        seen += ran
    assert seen == [(7, 50000), (7, 500)]
    return partly(
        "if the yes says the arguments again (`override_args`); else what was changed runs"
    )


async def always_rule() -> Cell:
    asks = []
    agent, _ = needs_approval(*[("refund", {"order": 79, "cents": 20}), "Done."] * 2)
    for _ in range(2):
        waits = await agent.run("Refund.")
        asks.append(bool(waits.output.approvals))
        answers = waits.output.build_results(approve_all=True)
        await agent.run(message_history=waits.all_messages(), deferred_tool_results=answers)
    assert asks == [True, True]
    assert {field.name for field in dataclasses.fields(DeferredToolResults)} >= {"approvals"}
    return no("a yes is for one call")


async def spend_per_caller() -> Cell:
    limit = UsageLimits(tool_calls_limit=1)
    ended = []
    for _ in range(2):
        said = Scripted(("refund", {"order": 7}), "Done.")
        await Agent(said.model, tools=[refund]).run("Refund.", usage_limits=limit)
        ended.append("completed")
    said = Scripted(("refund", {"order": 7}), ("refund", {"order": 7}), "Done.")
    try:
        await Agent(said.model, tools=[refund]).run("Refund.", usage_limits=limit)
    except UsageLimitExceeded:
        ended.append("limited")
    assert ended == ["completed", "completed", "limited"]
    return no("`UsageLimits` are of one run")


async def audit_verifies() -> Cell:
    said = Scripted(("refund", {"order": 7, "cents": 900}), "Done.")
    result = await Agent(said.model, tools=[refund]).run("Refund.")
    changed = result.all_messages_json().decode().replace("900", "909")
    history = ModelMessagesTypeAdapter.validate_json(changed)
    said = Scripted("Of 909 cents.")
    await Agent(said.model).run("Of how much?", message_history=history)
    return no("a changed history is read like any other")


async def repeated_calls() -> Cell:
    said = Scripted(*[("refund", {"order": 7, "cents": 1})] * 80)
    try:
        await Agent(said.model, tools=[refund]).run("Refund.")
    except UsageLimitExceeded:
        return no(f"up to the limit on requests, {len(said.requests)}")
    return no("made to the end")


async def empty_reply() -> Cell:
    said = Scripted("", "", "", "")
    try:
        await Agent(said.model).run("Hello?")
    except UnexpectedModelBehavior:
        return yes("asked again, then an error")
    return no("an answer")


async def resume_after_failure() -> Cell:
    ran.clear()
    down = ModelHTTPError(503, "scripted")
    said = Scripted(("refund", {"order": 7}), down, "Done.")
    agent = Agent(said.model, tools=[refund])
    with capture_run_messages() as messages, contextlib.suppress(ModelHTTPError):
        await agent.run("Refund.")
    saved = ModelMessagesTypeAdapter.dump_json(messages)
    history = ModelMessagesTypeAdapter.validate_json(saved)
    result = await agent.run(message_history=history)
    assert (result.output, ran) == ("Done.", [(7, 9)])
    return yes("`capture_run_messages` gives the history to go on with")


async def fork() -> Cell:
    ran.clear()
    said = Scripted(("refund", {"order": 7}), "Done.", ("refund", {"order": 7}), "Done.")
    agent = Agent(said.model, tools=[refund])
    first = await agent.run("My tea was cold.")
    await agent.run("Refund it, please.", message_history=first.all_messages()[:0])
    assert ran == [(7, 9), (7, 9)]
    return partly("the history, cut by you; the call is made twice")


async def plan() -> Cell:
    ran.clear()
    agent, said = needs_approval(("refund", {}), ("refund", {"order": 7, "cents": 9}))
    waits = await agent.run("Refund.")
    assert (len(waits.output.approvals), ran) == (1, [])
    assert "order" in told(said.requests[1])  # the first went back to the model
    return partly("calls of tools that require approval, with checked arguments")


async def settings_refused() -> Cell:
    profile = {"openai_unsupported_model_settings": ("parallel_tool_calls",)}
    asked: Any = [({}, {"top_k": 5}), ({"profile": profile}, {"parallel_tool_calls": False})]
    warned = []
    with features.wire(Turn(text="Hello.")) as server:
        for options, settings in asked:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                agent = Agent(openai(server.url, **options), tools=[refund])
                await agent.run("Hello?", model_settings=settings)
            (setting,) = settings
            warned.append([each for each in caught if setting in str(each.message)] != [])
            assert setting not in server.requests[-1]
    assert warned == [False, True]
    return partly("left out: in silence (`top_k`), or with a warning (`parallel_tool_calls`)")


async def image_prompt() -> Cell:
    with features.wire(Turn(text="A pixel.")) as server:
        picture = BinaryContent(PIXEL, media_type="image/png")
        await Agent(openai(server.url)).run(["What is it?", picture])
    assert "data:image/png;base64," in json.dumps(server.requests[0])
    return yes("`BinaryContent`")


async def image_result() -> Cell:
    def screenshot() -> BinaryImage:
        """Take a picture of the screen."""
        return BinaryImage(PIXEL, media_type="image/png")

    turns = Turn((Call("screenshot", "{}"),), finish="tool_calls"), Turn(text="A pixel.")
    with features.wire(*turns) as server:
        await Agent(openai(server.url), tools=[screenshot]).run("What is it?")
    assert "data:image/png;base64," in json.dumps(server.requests[1])
    return yes("`BinaryImage`")


@dataclasses.dataclass
class City:
    name: str
    people: int


async def typed_retries() -> Cell:
    said = Scripted(("output", {"name": "Rome"}), ("output", {"name": "Rome", "people": 3}))
    result = await Agent(said.model, output_type=City).run("Where?")
    assert result.output == City("Rome", 3)
    assert "people" in str(said.requests[1])
    return yes("with what is wrong")


class Town(TypedDict, total=False):
    name: str
    people: int


async def partial_output() -> Cell:
    said = Scripted(("output", {"name": "Rome and more", "people": 3}))
    seen = []
    async with Agent(said.model, output_type=Town).run_stream("Where?") as stream:
        async for value in stream.stream_output(debounce_by=None):
            seen.append(value)
    assert len(seen) > 2
    assert seen[-1] == {"name": "Rome and more", "people": 3}
    return yes("as far as it is valid")


async def context_spill() -> Cell:
    def report(year: int) -> str:
        """Give the report of a year."""
        del year
        return LONG

    said = Scripted(("report", {"year": 2025}), "It was 12.")
    await Agent(said.model, tools=[report]).run("What was the surplus?")
    assert LONG in str(said.requests[1][-1].parts[0].content)
    return no("all of it is sent")


async def handover() -> Cell:
    billing = Scripted("You have it back.")
    second = Agent(billing.model, name="billing")
    reached = []

    async def to_billing(reason: str) -> None:
        """Hand over to billing."""
        del reason
        reached.append("billing")

    said = Scripted(("output", {"reason": "A refund."}))
    first: Agent[None, Any] = Agent(said.model, output_type=to_billing)
    result = await first.run("My tea was cold.")
    await second.run(message_history=result.all_messages())
    assert reached
    assert "My tea was cold." in str(billing.requests[0])
    return partly("a second run with the history, in your code")


async def methods_as_tools() -> Cell:
    notes = Notes()
    said = Scripted(("notes_add_note", {"text": "tea is out"}), "Kept.")
    tools = FunctionToolset([notes.add_note, notes.read_notes]).prefixed("notes")
    await Agent(said.model, toolsets=[tools]).run("Note that tea is out.")
    assert notes.kept == ["tea is out"]
    return partly("each by itself")


def ready(name: str) -> Callable[..., str]:
    def run(text: str = "") -> str:
        return f"{name}: {text}"

    run.__name__, run.__doc__ = name, f"Do {name.replace('_', ' ')}."
    return run


async def background_tools() -> Cell:
    async def report() -> str:
        """Give the report, which takes a while."""
        await asyncio.sleep(0.2)
        return "The surplus was 12."

    said = Scripted(("report", {}), "It was 12.")
    await Agent(said.model, tools=[report]).run("What was the surplus?")
    assert "The surplus was 12." in str(said.requests[1][-1])
    return no("it is waited for")


async def deferred_tools() -> Cell:
    names = [f"do_thing_{at}" for at in range(60)] + ["convert_currency"]
    tools = [Tool(ready(name), defer_loading=True) for name in names]
    said = Scripted(
        ("search_tools", {"queries": ["convert currency"]}),
        ("convert_currency", {"text": "10 EUR"}),
        "It is 11 USD.",
    )
    agent = Agent(said.model, tools=tools, capabilities=[ToolSearch()])
    result = await agent.run("What are 10 EUR?")
    assert result.output == "It is 11 USD."
    assert len(said.offered[0]) <= 1
    assert "convert_currency" in said.offered[1]
    return yes("by a search of its own")


async def graph() -> Cell:
    built = GraphBuilder(input_type=int, output_type=int)

    @built.step
    async def double(ctx: Any) -> int:
        return int(ctx.inputs) * 2

    built.add(
        built.edge_from(built.start_node).to(double), built.edge_from(double).to(built.end_node)
    )
    assert await built.build().run(inputs=4) == 8
    return yes("`pydantic_graph`")


async def memory() -> Cell:
    with features.wire(Turn(text="Hello.")) as server:
        agent = Agent(openai(server.url), capabilities=[NativeTool(MemoryTool())])
        try:
            await agent.run("Hello?")
        except UserError:
            return partly("by Anthropic's own tool; with OpenAI an error")
    return yes("a tool of the provider's")


async def shell() -> Cell:
    names = [*vars(pydantic_ai.capabilities), *vars(pydantic_ai.common_tools), *pydantic_ai.__all__]
    assert not [name for name in names if "shell" in name.lower()]
    return no("by a tool of your own")


if __name__ == "__main__":
    features.main(globals(), "pydantic-ai-slim")
