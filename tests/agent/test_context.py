"""Requests that fit: what is shortened, what never is, and who may read what was left out."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from agent.test_prompt import PNG
from agent.test_steps import Steps
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from rows import each_row
from samples import sample
from wire.test_continued import FAULT_OF

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    ContextOptions,
    File,
    Image,
    Limits,
    Link,
    Message,
    PickOptions,
    ResultStore,
    RunResult,
    RunState,
    Session,
    ToolCall,
    ToolContent,
    ToolRunner,
    tool,
)
from toolcrib.agent.context import ContextView, transcript
from toolcrib.agent.results import NAME
from toolcrib.approvals import answer_later
from toolcrib.clients import fallback
from toolcrib.errors import (
    CatalogError,
    ClientError,
    ContextError,
    ContextTooSmallError,
    PromptTooLargeError,
    SourceError,
)
from toolcrib.policies import deny_by_default
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.content import Part
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, FinishReason, ProviderState, Reply, Settings, Usage
from toolcrib.wire import encode

LONG = 60_000
ADA, BOB = Caller("ada"), Caller("bob")
REFUSED = "This run has no shortened result of that id."
ID = re.compile(r"read_result\(id='(r_[0-9a-f]{20})'\)")


def text_of(number: int, size: int = LONG) -> str:
    """Return a text that differs from those of other numbers in each of its lines."""
    line = f"line of text number {number}, é. "
    return f"begin {number}. {line * (size // len(line))} end {number}."


@tool(visible=[], read_only=True)
async def long(number: int, size: int = LONG) -> str:
    """Give a long text."""
    return text_of(number, size)


@tool(visible=[], safe=False)
async def pay(number: int) -> str:
    """Pay, and give a long receipt."""
    return text_of(number)


def ids_in(request: ChatRequest) -> list[str]:
    return [found for m in request.messages for found in ID.findall(m.content)]


def reads(at: int = -1, **arguments: Any) -> Any:
    """Return the turn that reads the result whose id stands in the request at that place."""
    return lambda request: call(NAME, id=ids_in(request)[at], **arguments)


def answer(result: RunResult) -> Any:
    """Return what the last call gave its model."""
    return json.loads([m for m in result.messages if m.role == "tool"][-1].content)


async def test_what_fits_is_sent_as_it_is() -> None:
    model = ScriptedClient([call("long", number=1, size=200), "Done."])
    result = await Agent(model, [long], context=ContextOptions(tokens=32_000)).run("Go.")
    assert model.requests[1].messages == result.messages[:-1]
    assert [each.get_definition().name for each in model.requests[0].tools] == ["long", NAME]


async def test_a_large_result_is_shortened_for_the_model_and_whole_in_the_history() -> None:
    model = ScriptedClient([call("long", number=1), "Done."])
    result = await Agent(model, [long], context=ContextOptions(tokens=32_000)).run("Go.")
    shown, whole = model.requests[1].messages[-1], result.messages[-2]
    assert whole.content == text_of(1)
    mark, begin = shown.content.split("\n", 1)
    assert text_of(1).startswith(begin)
    assert 1_000 < len(begin) < 4_000
    assert f"the first {len(begin)} of {len(whole.content)} characters, read_result(" in mark
    assert len(ID.findall(mark)) == 1
    assert (shown.call_id, shown.name, shown.role) == (whole.call_id, whole.name, whole.role)


async def read_all(agent_of: Callable[[ScriptedClient], Agent], number: int) -> str:
    """Have a model read a result to its end."""
    pieces: list[str] = []

    def more(request: ChatRequest) -> Any:
        last = request.messages[-1]
        if last.name == NAME:
            got = json.loads(last.content)
            assert got["start"] == sum(map(len, pieces))
            pieces.append(got["text"])
            if got["end"] == got["size"]:
                return "Done."
        return call(NAME, id=ids_in(request)[0], start=sum(map(len, pieces)))

    model = ScriptedClient([call("long", number=number), *[more] * 60])
    await agent_of(model).run("Go.")
    return "".join(pieces)


@each_row("where", ["messages", "folder", "database"])
async def test_every_character_can_be_read(where: str, tmp_path: Path) -> None:
    place = {"folder": str(tmp_path / "results"), "database": f"sqlite:///{tmp_path}/crib.db"}
    store = ResultStore(place[where]) if where in place else None
    context = ContextOptions(tokens=16_000, results=store)
    limits = Limits(turns=70)
    text = await read_all(lambda m: Agent(m, [long], context=context, limits=limits), 7)
    assert text == text_of(7)
    if store is not None:
        await store.aclose()


async def test_a_result_over_the_usual_limit_is_left_out_and_not_refused() -> None:
    script: list[Any] = [call("long", number=1, size=5_000_000), reads(search="end 1"), "Done."]
    context = ContextOptions(tokens=32_000)
    result = await Agent(ScriptedClient(script), [long], context=context).run("Go.")
    assert answer(result)["found"]
    refused = Agent(ScriptedClient([script[0], "No."]), ToolRunner([long]), context=context)
    [record] = (await refused.run("Go.")).records
    assert record.error is not None
    assert record.error.code == "invalid_output"


@each_row("kind", ["sqlite", "postgres"])
async def test_a_database_keeps_each_text_for_its_caller(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    at = f"sqlite:///{tmp_path}/crib.db"
    store = ResultStore(at if kind == "sqlite" else request.getfixturevalue("postgres")())
    await store.keep("ada", {"r_1": "a\0b", "r_2": "ü" * 2_000_000})
    assert await store.read("ada", "r_1") == "a\0b"
    assert await store.read("ada", "r_2") == "ü" * 2_000_000
    assert await store.read("bob", "r_1") is None
    assert await store.forget(older_than=-1) == 2
    await store.aclose()


async def test_a_result_can_be_searched() -> None:
    script: list[Any] = [
        call("long", number=3),
        reads(search="end 3"),
        reads(search="none such"),
        "Done.",
    ]
    model = ScriptedClient(script)
    result = await Agent(model, [long], context=ContextOptions(tokens=32_000)).run("Go.")
    first, second = [json.loads(m.content) for m in result.messages if m.name == NAME]
    assert first["found"][0]["at"] == text_of(3).index("end 3")
    assert first["found"][0]["text"].endswith("end 3.")
    assert (second["found"], second["start"]) == ([], second["size"])
    record = result.records[1]
    assert (record.name, record.status) == (NAME, "completed")
    assert set(record.result) == {"start", "end", "size"}  # type: ignore[arg-type]


async def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Not another run of the same caller, and no other caller; nor is there a way out of the folder."""
    store = ResultStore(tmp_path)
    model = ScriptedClient([call("long", number=1), "Done."])
    agent = Agent(model, [long], context=ContextOptions(tokens=32_000, results=store))
    await agent.run("Go.", caller=ADA)
    [known] = ids_in(model.requests[1])
    assert await store.read("ada", known) == text_of(1)
    assert await store.read("bob", known) is None
    [file] = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    for caller in (ADA, BOB):
        for id_ in (known, file.stem, f"../{tmp_path.name}/{file.stem}", ""):
            other = agent.replace(model=ScriptedClient([call(NAME, id=id_), "No."]))
            result = await other.run("Read it.", caller=caller)
            [record] = result.records
            assert record.error is not None
            assert (record.error.code, record.error.message) == ("tool_error", REFUSED)
            assert result.messages[-2].is_error


async def test_one_run_cannot_read_what_another_one_of_the_same_time_left_out() -> None:
    known, over = asyncio.Queue[str](), asyncio.Event()

    class Slow(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Any:
            reply = await super().chat(request)
            for found in ids_in(request):
                known.put_nowait(found)
                await over.wait()
            return reply

    model = Slow([call("long", number=1), "Done."])
    agent = Agent(model, [long], context=ContextOptions(tokens=32_000))
    running = asyncio.create_task(agent.run("Go.", caller=ADA))
    script = ScriptedClient([call(NAME, id=await known.get()), "No."])
    result = await agent.replace(model=script).run("Read it.", caller=ADA)
    over.set()
    await running
    assert result.records[0].error is not None
    assert result.records[0].error.message == REFUSED


@dataclass
class Card:
    text: str
    number: str


async def test_only_what_the_model_would_have_seen_is_kept(tmp_path: Path) -> None:
    @tool(visible=[], model_visible=["text"], secret=["token"])
    async def card(token: str) -> Card:
        """Give a card."""
        return Card(text_of(1), "4111-1111")

    folder = tmp_path / "results"
    script: list[Any] = [call("card", token="s3cret"), reads(search="4111"), "Done."]
    context = ContextOptions(tokens=32_000, results=ResultStore(folder))
    result = await Agent(ScriptedClient(script), [card], context=context).run("Go.")
    assert answer(result)["found"] == []
    [file] = folder.iterdir()
    kept = file.read_text(encoding="utf-8")
    assert json.loads(kept) == {"text": text_of(1)}
    assert "4111" not in kept
    assert "s3cret" not in kept
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_of_images_the_mark_says_that_they_were_there() -> None:
    @tool(visible=[])
    async def photo() -> ToolContent[None]:
        """Take a photo."""
        return ToolContent(None, (text_of(1, 3_000), Image("image/png", "aGk=")))

    script: list[Any] = [
        call("photo"),
        *[call("long", number=n, size=5_000) for n in range(3)],
        "Done.",
    ]
    model = ScriptedClient(script)
    context = ContextOptions(tokens=8_000, result_tokens=2_000)
    result = await Agent(model, [photo, long], context=context).run("Go.")
    assert model.requests[1].messages[-1].parts == (Image("image/png", "aGk="),)
    shown = model.requests[-1].messages[2]
    assert "an image (image/png) left out" in shown.content
    assert shown.parts == ()
    assert result.messages[2].parts == (Image("image/png", "aGk="),)


CSV = "tea,3\n" * 10_000


@pytest.mark.parametrize(
    "file",
    [
        File("text/csv", text=CSV),
        File.from_bytes("text/csv", CSV.encode()),
        File.from_bytes("application/pdf", b"%PDF-1.7" + b"x" * 300_000),
        File("application/pdf", url=File.from_bytes("application/pdf", bytes(300_000)).as_url()),
    ],
)
async def test_a_file_weighs_what_is_sent_of_it_in_whatever_form_it_is_kept(file: File) -> None:
    model = ScriptedClient(["Done."])
    with pytest.raises(PromptTooLargeError):
        await Agent(model, context=ContextOptions(tokens=8_000)).run(["Read it.", file])
    assert model.requests == []


@pytest.mark.parametrize(
    "part",
    [
        File("text/csv", text=CSV + "the end", name="a.csv"),
        File.from_bytes("text/csv", f"{CSV}the end".encode(), name="a.csv"),
        Link("demo://a", description=CSV + "the end"),
    ],
)
async def test_a_result_that_is_a_file_of_text_is_shortened_and_can_be_read(part: Part) -> None:
    @tool(visible=ALL)
    async def table() -> Part:
        """Return the table."""
        return part

    def read(request: ChatRequest) -> Any:
        mark = request.messages[-1].content
        (id_,) = re.findall(r"read_result\(id='(r_[0-9a-f]+)'\)", mark)
        return call(NAME, id=id_, search="the end")

    model = ScriptedClient([call("table"), read, "Done."])
    await Agent(model, [table], context=ContextOptions(tokens=8_000)).run("Go.")
    shown = model.requests[1].messages[-1]
    assert len(shown.content) < 8_000
    assert shown.parts == ()
    assert "the end" in model.requests[2].messages[-1].content


def weight(view: ContextOptions, window: int, messages: tuple[Message, ...]) -> int:
    meter = ContextView(view, window, "")._meter
    return sum(map(meter.message, messages))


class Counting:
    """Counts tokens, and the characters that it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def __call__(self, text: str) -> int:
        self.characters += len(text)
        return len(text) // 4 + 1


def check_calls(messages: tuple[Message, ...]) -> None:
    """Each call has exactly one result, right behind its message."""
    wanted: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call_id in wanted
            wanted.remove(message.call_id)
        else:
            assert wanted == []
            wanted = [each.id for each in message.tool_calls]
    assert wanted == []


async def test_three_hundred_turns_of_large_results() -> None:
    """All fit; the work of a turn does not grow; few turns change what was sent before; and everything
    that was left out can be read at the end."""
    turns, counting, work = max(sample(300), 120), Counting(), [0]

    def calls(number: int) -> Callable[[ChatRequest], Any]:
        def say(_request: ChatRequest) -> Any:
            work.append(counting.characters)
            return call("long", number=number)

        return say

    read = (0, turns // 2, turns - 1)
    last = [reads(at, search=f"end {at}") for at in read]
    model = ScriptedClient([*map(calls, range(turns)), *last, "Done."])
    context = ContextOptions(tokens=32_000, count=counting)
    limits = Limits(turns=400, calls=None)
    result = await Agent(model, [long], context=context, limits=limits).run("Go.")
    assert result.status == "completed"
    for request in model.requests:
        check_calls(request.messages)
        assert weight(context, 32_000, request.messages) <= 28_000
    per_turn = [after - before for before, after in pairwise(work)]
    assert max(per_turn[-40:]) <= 1.2 * max(per_turn[10:60])
    changed = [
        before.messages != after.messages[: len(before.messages)]
        for before, after in pairwise(model.requests)
    ]
    assert sum(changed) <= 30
    assert len(set(ids_in(model.requests[-1]))) == turns
    found = [json.loads(m.content)["found"] for m in result.messages if m.name == NAME]
    assert [each[0]["at"] for each in found] == [text_of(n).index(f"end {n}") for n in read]
    assert result.messages[2].content == text_of(0)


async def test_results_of_one_turn_share_what_there_is() -> None:
    model = ScriptedClient([[call("long", number=n, size=6_000) for n in range(40)], "Done."])
    context = ContextOptions(tokens=32_000)
    await Agent(model, [long], context=context, limits=Limits(calls=None)).run("Go.")
    results = model.requests[1].messages[-40:]
    check_calls(model.requests[1].messages)
    assert weight(context, 32_000, model.requests[1].messages) <= 28_000
    assert all("begin" in each.content for each in results)
    assert len({len(each.content) // 100 for each in results}) == 1


async def test_a_session_sends_in_its_next_turn_what_it_sent_before(tmp_path: Path) -> None:
    for store in (None, ResultStore(tmp_path)):
        script = [call("long", number=n, size=3_000 + n) for n in range(30)]
        context = ContextOptions(tokens=12_000, results=store)
        limits = Limits(turns=50)
        model = ScriptedClient([*script, "Done."])
        agent = Agent(model, [long], context=context, limits=limits)
        session = agent.session()
        await session.send("Go.", caller=ADA)
        saved = session.to_json()
        again = ScriptedClient([reads(0, search="end 0"), "Done."])
        later = Session.from_json(agent.replace(model=again), saved)
        result = await later.send("And?", caller=ADA)
        before = model.requests[-1].messages
        assert len(ids_in(model.requests[-1])) > 10
        assert again.requests[0].messages[: len(before)] == before
        assert answer(result)["found"]


async def test_a_run_that_waits_goes_on_with_what_was_left_out() -> None:
    def agent(script: list[Any]) -> tuple[Agent, ScriptedClient]:
        model = ScriptedClient(script)
        runner = ToolRunner([long, pay], approver=answer_later)
        return Agent(model, runner, context=ContextOptions(tokens=32_000)), model

    def both(request: ChatRequest) -> Any:
        return [call("pay", number=2), call(NAME, id=ids_in(request)[0], search="end 1")]

    first, model = agent([call("long", number=1), both])
    waits = await first.run("Go.", caller=ADA)
    assert waits.status == "waiting"
    state = RunState.from_json(waits.state.to_json())
    second, other = agent([reads(0, search="end 1"), "Done."])
    done = await second.resume(state, {waits.pending[0].id: Approve("eve")})
    assert [r.status for r in done.records] == ["completed"] * 4
    before = model.requests[-1].messages
    assert other.requests[0].messages[: len(before)] == before
    assert answer(done)["found"]


async def test_a_call_that_reads_may_come_first_when_a_run_goes_on() -> None:
    """Its process ended before the call began."""

    def say(request: ChatRequest) -> Any:
        return call(NAME, id=ids_in(request)[0], search="end 1")

    def agent(steps: Steps, script: list[Any]) -> Agent:
        context = ContextOptions(tokens=32_000)
        return Agent(ScriptedClient(script), [long], context=context, durability=steps)

    steps = Steps({})
    whole = agent(steps, [call("long", number=1), say, "Done."])
    start = whole.prepare("Go.", run_id="run_1")
    await whole.resume(start)
    kept = dict(sorted(steps.kept.items())[:3])  # as far as the reply that asks to read
    again = await agent(Steps(kept), ["Done."]).resume(start)
    assert answer(again)["found"]


async def test_what_cannot_be_shortened_is_an_error_before_anything_is_sent() -> None:
    model = ScriptedClient(["Done."])
    agent = Agent(model, [long], context=ContextOptions(tokens=8_000))
    with pytest.raises(
        PromptTooLargeError, match=r"\(estimated\).*messages\[0\], of the user"
    ) as told:
        await agent.run("x" * 30_000)
    assert model.requests == []
    larger = Agent(model, [long], context=ContextOptions(tokens=32_000))
    assert (await larger.resume(told.value.state)).text == "Done."


async def test_a_window_that_the_instructions_and_tools_fill_is_an_error_of_its_own() -> None:
    model = ScriptedClient(["Done."])
    for tokens, told in ((300, "Be brief."), (8_000, "x" * 30_000)):
        agent = Agent(model, [long], context=ContextOptions(tokens=tokens), instructions=told)
        with pytest.raises(ContextTooSmallError, match="the instructions and the tools take"):
            await agent.run("Go.")
    assert model.requests == []
    for reply, told in (
        (7_000, "the tools take"),
        (9_000, "9000 of 7100 tokens are kept for the reply, so nothing"),
    ):
        wanted = Settings(max_tokens=reply)
        small = Agent(model, [long], context=ContextOptions(tokens=7_100), settings=wanted)
        with pytest.raises(ContextTooSmallError, match=told):
            await small.run("Go.")


def test_a_model_that_nobody_knows_needs_a_number() -> None:
    with pytest.raises(ContextError, match=r"'scripted' takes: ContextOptions\(tokens=…\)"):
        Agent(ScriptedClient([]), [long], context=ContextOptions())
    known = {"gpt-4.1-mini": 1_000_000, "openai/gpt-4o": 128_000, "claude-sonnet-4-5": 200_000}
    known |= {"o1": 200_000, "o1-mini": 128_000, "gpt-5-mini": 400_000}
    known |= {"gpt-5-chat-latest": 128_000}
    assert {name: ContextOptions().window(name) for name in known} == known
    for wrong in ({"tokens": 0}, {"result_tokens": -1}):
        with pytest.raises(ValueError, match="at least 1"):
            ContextOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"provider_tools": ({"type": "web_search", "note": "w" * 30_000},)},
        {"extra": {"prediction": "w" * 30_000}},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_what_a_run_asks_for_besides_is_weighed_too(options: Any) -> None:
    model = ScriptedClient(["Done."])
    agent = Agent(model, context=ContextOptions(tokens=8_000))
    with pytest.raises(ContextTooSmallError):
        await agent.run("Go.", **options)
    assert model.requests == []
    assert (await agent.run("Go.")).text == "Done."
    odd = Settings(extra={"no JSON": {1, 2}})  # type: ignore[dict-item]
    told = Agent(ScriptedClient(["Done."]), settings=odd, context=ContextOptions(tokens=8_000))
    assert (await told.run("Go.")).text == "Done."  # of a client that takes it


async def test_of_clients_of_which_any_may_be_asked_the_smallest_window_holds() -> None:
    def asked(*models: str) -> Agent:
        first, *more = (ScriptedClient(["Done."], model=model) for model in models)
        return Agent(fallback([first, fallback(more)]), context=ContextOptions())

    with pytest.raises(PromptTooLargeError, match="of 128000 tokens"):
        await asked("gpt-5", "o3", "gpt-4o").run("w " * 250_000)
    assert (await asked("gpt-5", "o3").run("w " * 250_000)).text == "Done."
    with pytest.raises(ContextError, match="how many tokens the model 'mine' takes"):
        asked("gpt-5", "mine")


@pytest.mark.parametrize("most", [30, 150, 400, None])
async def test_what_a_search_finds_is_no_larger_than_a_result_may_be(most: int | None) -> None:
    def look(request: ChatRequest, start: int = 0) -> Any:
        return call(NAME, id=ids_in(request)[0], search="line", start=start)

    def look_on(request: ChatRequest) -> Any:
        return look(request, json.loads(request.messages[-1].content)["end"])

    model = ScriptedClient([call("long", number=1), look, look_on, "Done."])
    context = ContextOptions(tokens=32_000, result_tokens=most)
    await Agent(model, [long], context=context).run("Go.")
    first, second = (json.loads(request.messages[-1].content) for request in model.requests[2:])
    for read in (first, second):
        assert 1 <= len(read["found"]) <= 10
        texts = sum(len(each["text"]) for each in read["found"])
        assert texts <= 3 * max(most or 3_500, 80) or len(read["found"]) == 1
    assert first["end"] == first["found"][-1]["at"] + len("line")
    assert second["found"][0]["at"] > first["found"][-1]["at"]


async def test_a_summary_that_is_too_long_is_what_is_blamed() -> None:
    context = ContextOptions(6_000, summarize=ScriptedClient(["w " * 9_000]))
    agent = Agent(ScriptedClient([*map(note, range(30))]), [take], context=context)
    with pytest.raises(
        PromptTooLargeError, match=r"the summary that summarize= made takes 60\d\d:"
    ):
        await agent.run("Take the notes.")


async def test_a_tool_of_that_name_is_an_error_and_a_policy_decides_on_it() -> None:
    @tool(visible=ALL, name=NAME)
    async def own() -> str:
        """It is another one."""
        return ""

    with pytest.raises(CatalogError, match=NAME):
        Agent(ScriptedClient([]), [own], context=ContextOptions(tokens=32_000))
    for at in range(3):  # its results would be taken for what was read of others, and cut for good
        reader = (at + 1) % 3
        has: list[Any] = [
            ContextOptions(tokens=32_000) if at == reader else None for at in range(3)
        ]
        tools: list[Any] = [[own] if each == at else [] for each in range(3)]
        last = Agent(ScriptedClient([]), tools[2], name="a2", context=has[2])
        middle = Agent(ScriptedClient([]), tools[1], name="a1", context=has[1], handovers=["a2"])
        with pytest.raises(CatalogError, match=f"'a{at}'.* the tool that 'a{reader}' has for its"):
            Agent(
                ScriptedClient([]),
                tools[0],
                name="a0",
                context=has[0],
                handovers=[middle, last],
            )
    runner = ToolRunner([long], policy=deny_by_default(allow=["long"]))
    model = ScriptedClient([call("long", number=1), reads(), "Done."])
    result = await Agent(model, runner, context=ContextOptions(tokens=32_000)).run("Go.")
    assert result.records[1].error is not None
    assert result.records[1].error.code == "denied"


async def test_an_agent_that_picks_offers_it_in_each_run() -> None:
    model = ScriptedClient([call("long", number=1), reads(search="end 1"), "Done."])
    pick = PickOptions(max_candidates=1)
    context = ContextOptions(tokens=32_000)
    agent = Agent(model, [long, pay], pick=pick, search_tools=True, context=context)
    result = await agent.run("Give me the long text.")
    assert result.state.offered == ("search_tools", NAME, "long")
    assert answer(result)["found"]
    state = RunState.from_json(result.state.to_json())
    assert state.choice is not None
    assert {c.name: c.reason for c in state.choice.offered}[NAME].startswith("offered by each")


@tool(visible=ALL, description="Convert currency. " + "More of it. " * 120)
async def currency() -> str:
    return "11"


async def yes(_request: object) -> Approve:
    return Approve("ada")


async def test_tools_that_are_found_later_change_nothing_of_what_was_sent() -> None:
    found = call("search_tools", query="convert currency", limit=1)
    longs = [call("long", number=at, size=2_000) for at in range(7)]
    sent: list[list[ChatRequest]] = []
    for approver in (yes, answer_later):
        model = ScriptedClient([*longs[:6], found, longs[6], call("pay", number=1), "Done.", "On."])
        agent = Agent(
            model,
            ToolRunner([long, pay, currency], approver=approver),
            pick=PickOptions(max_candidates=2),
            search_tools=True,
            context=ContextOptions(tokens=6_000, result_tokens=800),
        )
        session = agent.session()
        result = await session.send("Give a long text, then pay.")
        if result.status == "waiting":
            state = RunState.from_json(result.state.to_json())
            await session.resume(state, {state.pending[0].id: Approve("ada")})
        await session.send("And now?")
        sent.append(model.requests)
    at_once, resumed = (
        [[ID.sub("", m.content) for m in each.messages] for each in requests] for requests in sent
    )
    assert at_once == resumed
    last, later = sent[0][-2:]
    assert len(last.tools) > len(sent[0][0].tools)
    assert later.messages[: len(last.messages)] == last.messages
    assert ids_in(last)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_mark_that_was_shown_can_be_read_where_there_is_room_for_more_now(
    kept: bool, tmp_path: Path
) -> None:
    longs = [call("long", number=at, size=900) for at in range(6)]
    model = ScriptedClient([*longs, "Done."])
    store = ResultStore(tmp_path) if kept else None
    context = ContextOptions(tokens=3_000, result_tokens=400, results=store)
    asked = Agent(model, [long], context=context, max_tokens=1_500)
    before = await asked.run("Go.")
    marks = ids_in(model.requests[-1])
    roomy = ScriptedClient([call(NAME, id=marks[0], end=7), "Ok."])
    wide = Agent(roomy, [long], context=context, max_tokens=10)
    result = await wide.run("And?", history=before.messages)
    assert not ids_in(roomy.requests[0])
    assert answer(result)["text"] == "begin 0"


async def test_a_state_that_goes_on_twice_at_once_reads_its_own_results() -> None:
    later, over = asyncio.Event(), asyncio.Event()

    class First(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Reply:
            if len(self.requests) == 2:  # it has its long result
                await later.wait()
            return await super().chat(request)

    class Later(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Reply:
            later.set()
            await over.wait()
            return await super().chat(request)

    first = First([call("pay", number=0), call("long", number=1), reads(end=7), "Ok."])
    agent = Agent(
        first,
        ToolRunner([long, pay], approver=answer_later),
        context=ContextOptions(tokens=32_000),
    )
    saved = (await agent.run("Go.")).state
    answers = {saved.pending[0].id: Approve("ada")}
    going = asyncio.create_task(agent.resume(saved, answers))
    await asyncio.sleep(0)  # it has its client
    agent.client = Later(["Ok."])
    other = asyncio.create_task(agent.resume(saved, answers))
    assert answer(await going)["text"] == "begin 1"
    over.set()
    await other


async def test_a_store_forgets_when_it_is_told_to_and_the_model_reads_that(tmp_path: Path) -> None:
    for place in (tmp_path / "folder", f"sqlite:///{tmp_path}/crib.db"):
        store = ResultStore(place)
        await store.keep("ada", {"r_1": "a\0b\ud83d".encode("utf-8", "replace").decode()})
        await store.keep("ada", {"r_1": "another"})
        assert await store.read("ada", "r_1") == "a\0b?"
        assert await store.forget(older_than=60) == 0
        if isinstance(place, Path):
            (place / "deleted-by-another.result").symlink_to(place / "gone")
        assert await store.forget(older_than=-1) == 1
        assert await store.read("ada", "r_1") is None

        context = ContextOptions(tokens=32_000, results=store)

        class Gone(ScriptedClient):
            async def chat(self, request: ChatRequest) -> Any:
                if len(self.requests) == 1:
                    await store.forget(older_than=-1)  # noqa: B023
                return await super().chat(request)

        model = Gone([call("long", number=1), reads(), "Done."])
        result = await Agent(model, [long], context=context).run("Go.")
        assert result.records[1].error is not None
        assert "make the call again" in result.records[1].error.message
        await store.aclose()


async def test_a_store_that_cannot_be_written_to_ends_the_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    model = ScriptedClient([call("long", number=1), "Done."])
    context = ContextOptions(tokens=32_000, results=ResultStore(file))
    with pytest.raises(SourceError, match="cannot be written to") as raised:
        await Agent(model, [long], context=context).run("Go.")
    assert [each.name for each in raised.value.state.records] == ["long"]
    assert len(model.requests) == 1


def note(number: int) -> Any:
    """Return a turn whose arguments no result's shortening makes any smaller."""
    return call("take", number=number, text=f"note {number}: {'word ' * 300}")


@tool(visible=[], read_only=True)
async def take(number: int, text: str) -> str:
    """Take a note."""
    return f"noted {number}, {len(text)}"


class Summaries(ScriptedClient):
    """Counts what it was asked."""

    def __init__(self) -> None:
        super().__init__([f"Summary {n}." for n in range(20)])

    async def chat(self, request: ChatRequest) -> Any:
        reply = await super().chat(request)
        return structs.replace(reply, usage=Usage(1, 100, 10))


async def test_a_model_summarises_what_is_too_long_even_without_its_results(tmp_path: Path) -> None:
    for store in (None, ResultStore(tmp_path)):
        summaries = Summaries()
        context = ContextOptions(8_000, store, summarize=summaries)
        model = ScriptedClient([*map(note, range(40)), "Done."])
        agent = Agent(model, [take], context=context, limits=Limits(turns=60), instructions="Hm.")
        session = agent.session()
        result = await session.send("Take the notes.", caller=ADA)
        assert len([m for m in result.messages if m.role == "tool"]) == 40
        for request in model.requests:
            check_calls(request.messages)
            assert weight(context, 8_000, request.messages) <= 7_000
            for wire, fault_of in FAULT_OF.items():
                body = encode(wire, ChatRequest(request.messages, TOOLS), model="m").body
                assert fault_of(json.loads(body)) is None, wire
        last = model.requests[-1].messages
        asked = len(summaries.requests)
        assert 2 <= asked <= 8
        assert [m.role for m in last[:4]] == ["system", "user", "user", "assistant"]
        assert last[1].content.endswith(f"earlier messages]\nSummary {asked - 1}.")
        assert last[2].content == "Take the notes."
        assert "note 0:" in summaries.requests[0].messages[1].content
        assert "Summary 0." in summaries.requests[1].messages[1].content
        assert result.usage.input_tokens >= 100 * asked
        again = ScriptedClient(["Yes."])
        later = Session.from_json(agent.replace(model=again), session.to_json())
        if store is None:  # the agent that remembers
            later, agent.client = session, again
        await later.send("All?", caller=ADA)
        assert len(summaries.requests) == asked
        assert again.requests[0].messages[: len(last)] == last


@pytest.mark.parametrize("stored", [False, True])
async def test_a_durable_run_spends_its_summaries_wherever_it_goes_on(
    tmp_path: Path, *, stored: bool
) -> None:
    """Wherever its process ended: with a store the summary is there by then, and was not free."""

    def agent(steps: Steps, script: list[Any], summaries: Summaries) -> Agent:
        store = ResultStore(tmp_path) if stored else None
        context = ContextOptions(4_000, store, summarize=summaries)
        return Agent(ScriptedClient(script), [take], context=context, durability=steps)

    script = [*map(note, range(16)), "Done."]
    steps, first = Steps({}), Summaries()
    whole = agent(steps, script, first)
    start = whole.prepare("Take the notes.", run_id="run_1")
    told = await whole.resume(start)
    assert len(first.requests) >= 2
    assert told.usage.input_tokens == 100 * len(first.requests)
    names = [name for name, _ in steps.kept.values()]
    for end in range(len(names) + 1):
        kept = dict(sorted(steps.kept.items())[:end])
        replies = sum(name.startswith("reply") for name in names[:end])
        known = names[:end].count("summary")
        summaries = Summaries()
        again = await agent(Steps(kept), script[replies:], summaries).resume(start)
        assert again.messages == told.messages
        assert len(summaries.requests) == (0 if stored else len(first.requests) - known)
        assert again.usage.input_tokens == 100 * (known + len(summaries.requests))
        assert again.state.tally.tokens == again.usage.input_tokens + again.usage.output_tokens


async def test_a_summary_is_where_others_find_it_once_it_is_a_step(tmp_path: Path) -> None:
    """Or a process that ends in between would leave one of which no step says what it cost."""
    found: list[int] = []

    class Late(ResultStore):
        async def keep(self, caller: str, texts: Mapping[str, str]) -> None:
            if any(id_.startswith("s_") for id_ in texts):
                found.append([name for name, _ in steps.kept.values()].count("summary"))
            await super().keep(caller, texts)

    def agent(script: list[Any], store: ResultStore, steps: Steps) -> Agent:
        context = ContextOptions(4_000, store, summarize=Summaries())
        return Agent(ScriptedClient(script), [take], context=context, durability=steps)

    steps = Steps({})
    whole = agent([*map(note, range(16)), "Done."], Late(tmp_path / "one"), steps)
    start = whole.prepare("Take the notes.", run_id="run_1")
    told = await whole.resume(start)
    assert found == list(range(1, len(found) + 1))
    other = ResultStore(tmp_path / "other")  # it was not there yet when the process ended
    again = await agent([], other, Steps(dict(steps.kept))).resume(start)
    assert again.usage == told.usage
    assert len(list((tmp_path / "other").iterdir())) == len(found)


async def test_who_summarises_reads_the_parts_of_prompts_and_of_results() -> None:
    @tool(visible=ALL)
    async def balance() -> File:
        """Return the balance."""
        return File("text/plain", text="the balance is 815")

    summaries = Summaries()
    said: list[Any] = [call("balance"), "Noted.", *["x" * 900] * 7]
    context = ContextOptions(tokens=3_600, summarize=summaries)
    session = Session(Agent(ScriptedClient(said), [balance], context=context))
    await session.send(["Look:", PNG, "my account is 4711", Link("demo://a")])
    for _ in range(7):
        await session.send("w" * 900)
    read = summaries.requests[0].messages[1].content
    for text in ("the balance is 815", "image/png", "my account is 4711", "demo://a"):
        assert text in read


@pytest.mark.parametrize(
    ("tokens", "count"), [(3_200, None), (2_400, lambda text: len(text) // 4 + 1), (9_600, len)]
)
@pytest.mark.parametrize("name", ["take", "take_" * 12])
@pytest.mark.parametrize("seed", range(8))
async def test_who_summarises_reads_all_that_it_stands_for(
    seed: int, name: str, tokens: int, count: Callable[[str], int] | None
) -> None:
    """Whatever is not in a request any more was given to the model that summarises, to its end."""
    chance, marks = random.Random(seed), itertools.count()  # noqa: S311

    def said(*most: int) -> str:
        return "word" * chance.choice([1, 20, 80, 150, *most]) + f"<{next(marks)}>"

    def says(_request: ChatRequest) -> Any:
        notes = chance.choice([0, 1, 3])
        return [call(name, text=said()) for _ in range(notes)] or said(600, 600)

    @tool(visible=[], name=name, description="Take a note.")
    async def taken(text: str) -> str:
        return "ok"

    summarizer, model = ScriptedClient(["Short."] * 30), ScriptedClient([says] * 90)
    context = ContextOptions(tokens, summarize=summarizer, count=count)
    session = Agent(model, [taken], context=context, limits=Limits(turns=40)).session()
    while len(summarizer.requests) < 3:
        await session.send(said(800, 800))
    asked = (m for request in summarizer.requests for m in request.messages)
    given = transcript([*asked, *model.requests[-1].messages])
    known = re.findall("<[0-9]+>", transcript(session.messages[:-1]))
    assert [mark for mark in known if mark not in given] == []


async def test_a_summary_takes_the_place_of_a_prompt_that_was_answered() -> None:
    context = ContextOptions(4_000, summarize=ScriptedClient(["Short."]))
    model = ScriptedClient(["Noted.", "Both are noted."])
    session = Agent(model, [], context=context).session()
    await session.send("A" * 6_000)
    await session.send("B" * 6_000)
    summary, *rest = model.requests[1].messages
    assert summary.content.endswith("Short.")
    assert rest == [Message.user("B" * 6_000)]


async def test_an_agent_remembers_the_summaries_of_many_conversations() -> None:
    summarizer = ScriptedClient(["Short."] * 300)
    context = ContextOptions(1_400, summarize=summarizer)
    agent = Agent(ScriptedClient(["Yes."] * 300), [], context=context)
    for number in [*range(150), *range(150)]:
        said = Message.user(f"{number} {'w' * 1_500}"), Message.assistant("x" * 1_500)
        await agent.run("Go on.", history=said)
    assert len(summarizer.requests) == 150


async def test_a_summary_that_fails_ends_the_run_which_can_go_on() -> None:
    failing = ScriptedClient([ClientError("away"), "  ", "Short."])
    script = [*map(note, range(12)), "Done."]
    model = ScriptedClient(script)
    context = ContextOptions(6_000, summarize=failing)
    agent = Agent(model, [take], context=context)
    with pytest.raises(ClientError, match="away") as first:
        await agent.run("Take the notes.")
    with pytest.raises(ClientError, match="gave no text") as second:
        await agent.resume(first.value.state)
    result = await agent.resume(second.value.state)
    assert (result.status, len(result.records)) == ("completed", 12)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            asyncio.CancelledError(),
            "the client that summarises raised a CancelledError that nobody had asked for",
        ),
        (
            Reply(Message.user("What?"), finish="stop"),
            "summarises gave a reply whose message is not the assistant's",
        ),
        *(
            (Reply(Message.assistant("Half of"), finish=finish), f"ended with '{finish}'")
            for finish in get_args(FinishReason)
            if finish != "stop"
        ),
        ("A text.", "the reply of .* must be a Reply"),
    ],
)
async def test_a_summary_that_is_none_fails_the_run(given: Any, error: str) -> None:
    class Other(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Any:
            if isinstance(given, BaseException):
                raise given
            return given

    context = ContextOptions(6_000, summarize=Other([]))
    agent = Agent(ScriptedClient([*map(note, range(12))]), [take], context=context)
    with pytest.raises((ClientError, TypeError), match=error):
        await agent.run("Take the notes.")


HALF = "half \ud800"
HALVES: dict[str, tuple[Message, ...]] = {
    "a user's": (Message.user(HALF), Message.assistant("Yes.")),
    "the model's": (Message.user("Hm."), Message.assistant(HALF)),
    "a part": (Message("user", "Hm.", parts=(HALF, Link(HALF), File("text/plain", text=HALF))),),
    "arguments": (
        Message.assistant("", (ToolCall("c1", "take", f'{{"text": "{HALF}"}}'),)),
        Message.tool(ToolCall("c1", "take", "{}"), "Noted."),
    ),
    "a name": (
        Message.assistant("", (ToolCall("c1", HALF, "{}"),)),
        Message.tool(ToolCall("c1", HALF, "{}"), "There is none."),
    ),
    "a result": (
        Message.assistant("", (ToolCall("c1", "take", "{}"),)),
        Message.tool(ToolCall("c1", "take", "{}"), HALF, (HALF, File("text/plain", text=HALF))),
    ),
}


@pytest.mark.parametrize("place", [None, "folder", "sqlite"])
@pytest.mark.parametrize("where", [*HALVES, "the summary"])
async def test_half_a_character_is_summarised_as_any_text(
    tmp_path: Path, where: str, place: str | None
) -> None:
    """Half of a surrogate pair, which is no character of UTF-8, wherever it stands."""
    url = tmp_path if place == "folder" else f"sqlite:///{tmp_path / 'crib.db'}"
    store = None if place is None else ResultStore(url)
    more = (Message.user("w" * 1_500), Message.assistant("x" * 1_500)) * 6
    summarizer = ScriptedClient([HALF if where == "the summary" else "Short."])
    model = ScriptedClient(["Done."])
    context = ContextOptions(6_000, store, summarize=summarizer)
    agent = Agent(model, [take], context=context)
    result = await agent.run("Go.", history=(*HALVES.get(where, ()), *more))
    assert result.status == "completed"
    for request in (*summarizer.requests, *model.requests):
        assert "".join(message.content for message in request.messages).encode()
    if store is not None:
        await store.aclose()


@pytest.mark.parametrize("place", ["folder", "sqlite"])
async def test_a_store_gives_back_any_text(tmp_path: Path, place: str) -> None:
    url = tmp_path if place == "folder" else f"sqlite:///{tmp_path / 'crib.db'}"
    async with ResultStore(url) as store:
        await store.keep("ada", {"r_1": "\ud800\0é\r\n"})
        assert await store.read("ada", "r_1") == "\ud800\0é\r\n"


async def test_a_folder_that_can_be_none_is_an_error_of_the_store() -> None:
    store = ResultStore("a\0b")
    for use in (store.keep("ada", {"r_1": "x"}), store.read("ada", "r_1")):
        with pytest.raises(SourceError, match=r"cannot be .* \(ValueError\)"):
            await use


async def test_what_cannot_be_a_summarizer_or_an_age_is_an_error_where_it_is_given(
    tmp_path: Path,
) -> None:
    for wrong in (3, ScriptedClient):
        with pytest.raises(TypeError, match="summarize must be a client, or a name"):
            ContextOptions(summarize=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="older_than"):
        await ResultStore(tmp_path).forget(older_than="x")  # type: ignore[arg-type]


# Every request of a random history is one that all eight wires send.

TOOLS = (
    PlainTool(ToolDefinition(name="f", description="F.", input_schema_json='{"type": "object"}')),
    PlainTool(ToolDefinition(name=NAME, description="R.", input_schema_json='{"type": "object"}')),
)
SIZES = st.sampled_from([0, 10, 400, 3_000, 40_000])
THOUGHT = [
    {"type": "thinking", "thinking": "Hm", "signature": "s" * 200},
    {"type": "text", "text": "Hi"},
]


@st.composite
def histories(draw: Any) -> tuple[Message, ...]:
    messages = [Message.system("Be brief.")] if draw(st.booleans()) else []
    messages.append(Message.user("Go."))
    for number in range(draw(st.integers(1, 12))):
        calls = tuple(
            ToolCall(f"c.{number}:{at}", draw(st.sampled_from(["f", NAME])), '{"a": 1}')
            for at in range(draw(st.integers(0, 3)))
        )
        thinks = not calls and draw(st.booleans())
        state = ProviderState("anthropic", THOUGHT) if thinks else None
        messages.append(Message("assistant", "Hi", calls, provider_state=state))
        images = st.sampled_from([(), (Image("image/png", "aGk="),), ("more" * 2_000,)])
        results = [
            Message.tool(each, text_of(at, draw(SIZES)), draw(images), is_error=draw(st.booleans()))
            for at, each in enumerate(calls)
        ]
        messages += draw(st.permutations(results))
        if not calls:
            messages.append(Message.user("And?"))
    return tuple(messages)


@pytest.mark.parametrize("special", [1, 2, 30])
async def test_a_tokenizer_may_count_something_for_nothing(special: int) -> None:
    context = ContextOptions(
        tokens=4_000, result_tokens=3_000, count=lambda text: len(text) // 4 + special
    )
    calls = [call("long", number=at, size=10_000) for at in range(5)]
    model = ScriptedClient([*calls, "Done."])
    result = await Agent(model, [long], context=context).run("Go.")
    assert result.status == "completed"
    shown = [each.content for each in model.requests[-1].messages if each.role == "tool"]
    assert "begin 4." in shown[-1]
    assert all(ID.search(each) for each in shown[:-1])


@pytest.mark.parametrize("given", [float("nan"), 1.5, None, "7", -1, ValueError("secret")])
async def test_what_is_no_number_of_tokens_is_named_with_the_state(given: Any) -> None:
    def count(_text: str) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    model = ScriptedClient(["Done."])
    agent = Agent(model, [long], context=ContextOptions(tokens=4_000, count=count))
    with pytest.raises(
        ContextError, match=r"^ContextOptions\(count=…\) (raised|returned)"
    ) as raised:
        await agent.run("Go.")
    assert "secret" not in str(raised.value)
    assert raised.value.state is not None
    assert not model.requests


@given(histories(), st.sampled_from([2_000, 4_000, 9_000, 40_000]), st.booleans())
@example((Message.user("Go."), Message.assistant("Hi"), Message.user("And?")), 2_000, True)
@settings(max_examples=sample(400))
def test_every_request_has_each_call_with_one_result_on_all_wires(
    messages: tuple[Message, ...], tokens: int, reading: bool
) -> None:
    tools = TOOLS if reading else TOOLS[:1]
    context = ContextOptions(tokens=tokens)
    view, ends = ContextView(context, tokens, "ada"), request_ends(messages)
    sent: list[tuple[Message, ...]] = []
    for end in ends:
        try:
            sent.append(asyncio.run(view.fit(ChatRequest(messages[:end], tools))))
        except ContextError:
            return
        assert weight(context, tokens, sent[-1]) <= tokens
        check_shown(messages[:end], sent[-1], view)
        for wire, fault_of in FAULT_OF.items():
            body = encode(wire, ChatRequest(sent[-1], tools), model="m").body
            assert fault_of(json.loads(body)) is None, wire
    afresh = ContextView(context, tokens, "ada")
    assert asyncio.run(afresh.fit(ChatRequest(messages, tools))) == sent[-1]


def request_ends(messages: tuple[Message, ...]) -> list[int]:
    ends = [at for at, each in enumerate(messages) if each.role == "assistant"]
    return [*ends, len(messages)] if messages[-1].role != "assistant" else ends


def check_shown(whole: tuple[Message, ...], shown: tuple[Message, ...], view: ContextView) -> None:
    check_calls(shown)
    assert len(whole) == len(shown)
    for before, after in zip(whole, shown, strict=True):
        if before.role != "tool":
            assert before is after
        elif before is not after:
            head = (before.call_id, before.name, before.is_error, before.untrusted)
            assert head == (after.call_id, after.name, after.is_error, after.untrusted)
            for id_ in ID.findall(after.content):
                text = asyncio.run(view.text(id_, "ada"))
                assert text is not None
                assert text.startswith(before.content)
