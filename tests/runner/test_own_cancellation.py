"""Nobody is cancelled by what was cancelled within an author's code: only who is asked to stop stops.

Every part of an author's raises CancelledError of its own, as if something that it awaited had been
cancelled. No record says `cancelled`, the calls beside it end as ever, and whoever waits for the call
goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import pytest
from pydantic import AfterValidator, BaseModel, Field
from rows import each_row
from runner.test_idempotency import MemoryLedger

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    CallContext,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    Injected,
    PickOptions,
    ToolCall,
    ToolRunner,
    per_call,
    tool,
)
from toolcrib.errors import ClientError, PickError, ToolcribError
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink, ScriptedClient, call, raw_call
from toolcrib.values.context import RunTally
from toolcrib.values.message import ChatRequest, Reply, StreamPart
from toolcrib.values.record import Outcome, ToolInvocationRecord


class PanicError(BaseException):
    """What a library in Rust raises that panics: no Exception."""


KINDS: list[type[BaseException]] = [asyncio.CancelledError, SystemExit, PanicError]


class Part:
    """An author's code that raises, wherever one of its methods is put."""

    name = "part"

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.raised = 0

    def fails(self, *_given: object) -> NoReturn:
        self.raised += 1
        raise self.kind

    async def fails_later(self, *_given: object) -> Any:
        """Await what somebody else has cancelled, if that is its kind."""
        self.raised += 1
        if self.kind is not asyncio.CancelledError:
            await asyncio.sleep(0)
            raise self.kind
        task = asyncio.ensure_future(asyncio.sleep(10))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async def __call__(self, request: object, /) -> Any:
        return await self.fails_later(request)


class Db:
    pass


@tool(visible=ALL)
async def beside(n: int) -> int:
    """Take a moment."""
    await asyncio.sleep(0.02)
    return n


def _tool(part: Part) -> dict[str, Any]:
    @tool(visible=ALL)
    async def f(n: int) -> int:
        """Fail."""
        await part.fails_later()
        return n

    return {"tools": f}


def _thread(part: Part) -> dict[str, Any]:
    @tool(visible=ALL)
    def f(n: int) -> int:
        """Fail in a thread."""
        part.fails()

    return {"tools": f}


def _parts(part: Part) -> dict[str, Any]:
    @tool(visible=ALL)
    async def f(n: int) -> AsyncIterator[int]:
        """Fail between two parts."""
        yield n
        await part.fails_later()

    return {"tools": f}


def _validator(part: Part) -> dict[str, Any]:
    def check(_n: int) -> int:
        part.fails()

    class Given(BaseModel):
        n: Annotated[int, AfterValidator(check)]

    @tool(visible=ALL)
    async def f(given: Given) -> int:
        """Be built."""
        return given.n

    return {"tools": f, "arguments": '{"given": {"n": 1}}'}


def _default(part: Part) -> dict[str, Any]:
    class Made(BaseModel):
        z: int = Field(default_factory=lambda: part.fails())  # noqa: PLW0108

    @tool(visible=ALL)
    async def f(n: int, made: Made = Made(z=1)) -> int:  # noqa: B008
        """Be built."""
        return n

    return {"tools": f, "arguments": '{"n": 1, "made": {}}'}


@tool(visible=ALL)
async def opens(n: int, db: Injected[Db]) -> int:
    """Use what is opened for it."""
    return n


def _factory(part: Part) -> dict[str, Any]:
    return {"tools": opens, "made": part.fails_later, "name": "opens"}


def _leaving(part: Part) -> dict[str, Any]:
    @contextmanager
    def opened() -> Iterator[Db]:
        yield Db()
        part.fails()

    return {"tools": opens, "made": opened, "name": "opens"}


@tool(visible=ALL, name="f")
async def plain(n: int) -> int:
    """Do it."""
    return n


@tool(visible=ALL, name="f", safe=False)
async def risky(n: int) -> int:
    """Do it, if somebody says so."""
    return n


@tool(visible=ALL, name="f")
async def broken(n: int) -> int:
    """Fail."""
    raise ValueError


class Counts:
    def __init__(self, part: Part, where: str) -> None:
        self.part, self.where = part, where

    def __call__(self, hydrated: Any, _context: object) -> Allow:
        if self.where == "decide" and hydrated.call.name == "f":
            self.part.fails()
        return Allow()

    def count(self, hydrated: Any, _context: object) -> None:
        if self.where == "count" and hydrated.call.name == "f":
            self.part.fails()

    def settle(self, record: ToolInvocationRecord, _context: object) -> None:
        if self.where == "settle" and record.name == "f":
            self.part.fails()


def _policy(where: str) -> Callable[[Part], dict[str, Any]]:
    return lambda part: {"tools": plain, "policy": Counts(part, where)}


Setup = Callable[[Part], dict[str, Any]]
OWN: list[tuple[str, Setup, ErrorCode | None]] = [
    ("tool", _tool, ErrorCode.TOOL_ERROR),
    ("thread", _thread, ErrorCode.TOOL_ERROR),
    ("parts", _parts, ErrorCode.TOOL_ERROR),
    ("validator", _validator, ErrorCode.UNUSABLE_TOOL),
    ("default", _default, ErrorCode.UNUSABLE_TOOL),
    ("factory", _factory, ErrorCode.CAPABILITY_ERROR),
    ("leaving", _leaving, ErrorCode.CAPABILITY_ERROR),
    ("policy", _policy("decide"), ErrorCode.DENIED),
    ("count", _policy("count"), ErrorCode.DENIED),
    ("settle", _policy("settle"), None),
    ("approver", lambda part: {"tools": risky, "approver": part}, ErrorCode.APPROVAL_FAILED),
    (
        "repairer",
        lambda part: {"tools": plain, "repairer": part, "arguments": '{"n": 1'},
        ErrorCode.INVALID_REPAIR,
    ),
    (
        "on_exception",
        lambda part: {"tools": broken, "on_exception": part.fails},
        ErrorCode.TOOL_ERROR,
    ),
]


def made(setup: Setup, part: Part) -> tuple[ToolRunner, MemorySink, ToolCall]:
    given = setup(part)
    tools, arguments = given.pop("tools"), given.pop("arguments", '{"n": 1}')
    name, factory = given.pop("name", "f"), given.pop("made", None)
    catalog = Catalog([tools, beside])
    if factory is not None:
        catalog = catalog.bind({Db: per_call(factory)})
    sink = MemorySink()
    return ToolRunner(catalog, sinks=[sink], **given), sink, ToolCall("c", name, arguments)


@pytest.mark.parametrize("kind", KINDS)
@each_row(("which", "setup", "code"), OWN)
async def test_what_an_authors_part_raises_ends_its_own_call_alone(
    which: str, setup: Setup, code: ErrorCode | None, kind: type[BaseException]
) -> None:
    part = Part(kind)
    runner, sink, made_call = made(setup, part)
    outcome, other = await runner.exec_all([made_call, ToolCall("b", "beside", '{"n": 2}')])
    assert part.raised, which
    assert (outcome.error.code if isinstance(outcome, Failed) else None) is code
    assert isinstance(other, Completed)
    assert {record.id: record for record in sink.finished()} == {
        "c": outcome.record,
        "b": other.record,
    }
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@each_row(("which", "setup", "code"), OWN)
async def test_a_run_goes_on_whatever_was_cancelled_in_a_part(
    which: str, setup: Setup, code: ErrorCode | None
) -> None:
    part = Part(asyncio.CancelledError)
    runner, _, sent = made(setup, part)
    turn = [raw_call(sent.name, sent.arguments), call("beside", n=2)]
    session = Agent(ScriptedClient([turn, "Done."]), runner).session()
    result = await session.send("go")
    assert part.raised, which
    assert (result.status, result.text) == ("completed", "Done.")
    results = [message.content for message in session.messages if message.role == "tool"]
    assert "cancelled" not in "".join(results)
    assert results[1] == "2"


class Sink(MemorySink):
    """Fails at one status, at once or later."""

    write_ahead = True

    def __init__(self, fails: Callable[[], Any], at: str) -> None:
        super().__init__()
        self.fails, self.at = fails, at

    def write(self, record: ToolInvocationRecord) -> Awaitable[None] | None:  # type: ignore[override]
        if record.status == self.at:
            given: Awaitable[None] | None = self.fails()
            return given
        return super().write(record)


class FailingLedger(MemoryLedger):
    def __init__(self, part: Part, at: str) -> None:
        super().__init__()
        self.part, self.at = part, at

    async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        if self.at == "find":
            await self.part.fails_later()
        return await super().find(entry)

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        if self.at == "begin":
            await self.part.fails_later()
        return await super().begin(entry)


class Watch:
    def __init__(self, part: Part, at: str) -> None:
        self.part, self.at = part, at

    def _told(self, what: str) -> None:
        if what == self.at:
            self.part.fails()

    def approval_requested(self, _request: object) -> None:
        self._told("asked")

    def progress(self, _call_id: str, _part: object) -> None:
        self._told("progress")

    def finished(self, _outcome: Outcome) -> None:
        self._told("finished")


async def yes(_request: object) -> Approve:
    return Approve(by="ada")


TELLING: list[tuple[str, Callable[[Part], dict[str, Any]], str]] = [
    ("at once", lambda part: {"sink": Sink(part.fails, "completed")}, "completed"),
    ("later", lambda part: {"sink": Sink(part.fails_later, "completed")}, "completed"),
    ("intent", lambda part: {"sink": Sink(part.fails_later, "started")}, "not_recorded"),
    ("find", lambda part: {"sink": FailingLedger(part, "find")}, "not_recorded"),
    ("begin", lambda part: {"sink": FailingLedger(part, "begin")}, "not_recorded"),
    ("asked", lambda part: {"observer": Watch(part, "asked")}, "not_runnable"),
    ("finished", lambda part: {"observer": Watch(part, "finished")}, "completed"),
]


@each_row(("which", "setup", "told"), TELLING)
async def test_what_is_told_of_calls_and_fails_is_raised_as_a_failure(
    which: str, setup: Callable[[Part], dict[str, Any]], told: str
) -> None:
    part, others = Part(asyncio.CancelledError), MemorySink()
    given = setup(part)
    sinks = [each for each in (given.get("sink"), others) if each is not None]
    runner = ToolRunner([risky], approver=yes, sinks=sinks)
    scope = CallScope(RunTally("r"), observer=given.get("observer"))
    with pytest.raises(ToolcribError, match="a CancelledError that nobody had asked for"):
        await runner.exec(ToolCall("c", "f", '{"n": 1}'), scope=scope)
    assert part.raised, which
    ends = [str(r.error.code) if r.error else r.status for r in others.finished()]
    assert ends == [told]


@tool(visible=ALL)
async def reports(ctx: CallContext) -> int:
    """Report."""
    ctx.progress("half")
    ctx.progress("all")
    return 1


@tool(visible=ALL)
def reports_in_a_thread(ctx: CallContext) -> int:
    """Report."""
    ctx.progress("half")
    ctx.progress("all")
    return 1


@tool(visible=ALL)
async def yields() -> AsyncIterator[int]:
    """Report."""
    yield 0
    yield 1


class Parts(Watch):
    def __init__(self, part: Part) -> None:
        super().__init__(part, "progress")
        self.parts: list[object] = []

    def progress(self, _call_id: str, part: object) -> None:
        self.parts.append(part)
        super().progress(_call_id, part)


@pytest.mark.parametrize("works", [reports, reports_in_a_thread, yields])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, LookupError, SystemExit])
async def test_a_watcher_that_fails_at_a_part_is_no_failure_of_the_tool(
    works: Any, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on, and is recorded as it ended; then the failure is raised."""
    sink, watch, heard = MemorySink(), Parts(Part(kind)), list[object]()
    runner = ToolRunner([works], sinks=[sink], on_exception=lambda *told: heard.append(told))
    scope = CallScope(RunTally("r"), observer=watch)
    with pytest.raises(ToolcribError if kind is asyncio.CancelledError else kind):
        await runner.exec(ToolCall("c", runner.catalog.names[0], "{}"), scope=scope)
    assert len(watch.parts) == 1  # it is told of no part after that
    (record,) = sink.finished()
    assert (record.status, record.result) == ("completed", 1)
    assert heard == []
    assert "toolcrib.tools" not in {each.name for each in caplog.records}


class Client(ScriptedClient):
    """In which something of its own was cancelled, such as a pool that was closed."""

    def __init__(self) -> None:
        super().__init__(["never"])
        self.part = Part(asyncio.CancelledError)

    async def chat(self, request: ChatRequest) -> Reply:
        await self.part.fails_later()
        return await super().chat(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        await self.part.fails_later()
        async for piece in super().stream(request):
            yield piece


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_in_which_something_was_cancelled_has_failed(streamed: bool) -> None:
    agent = Agent(Client(), [plain])
    going = agent.stream("go").result() if streamed else agent.run("go")
    with pytest.raises(ClientError, match="a CancelledError that nobody had asked for") as caught:
        await going
    assert caught.value.state.messages[-1].content == "go"


async def test_a_scorer_in_which_something_was_cancelled_has_failed() -> None:
    part = Part(asyncio.CancelledError)

    async def scorer(_query: object, _tool: object) -> float:
        await part.fails_later()
        return 1.0

    agent = Agent(ScriptedClient(["never"]), [plain], pick=PickOptions(scorer=scorer))
    with pytest.raises(PickError, match="CancelledError"):
        await agent.run("go")
