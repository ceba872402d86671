"""A run whose steps are kept goes on in another process as if nothing had happened.

A process ends here by a step that never comes back, in an event loop that nobody drives any more:
nothing is cleaned up behind it, as nothing is behind `kill -9`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import pytest
from samples import sampled

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Catalog,
    Event,
    Image,
    Limits,
    PickOptions,
    RunResult,
    RunState,
    ToolContent,
    ToolError,
    ToolRunner,
    capability,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.clients import OpenAIClient, fallback
from toolcrib.clients.base import PlanningClient
from toolcrib.errors import BindingError, ClientError, ErrorCode, SourceError
from toolcrib.hydration import RepairRequest
from toolcrib.policies import deny_by_default
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.testing.scripted import Said, ServerTurn
from toolcrib.values.message import ChatRequest, Reply, StreamPart
from toolcrib.values.record import ToolInvocationRecord, state_of
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    ReplyFinished,
    RunStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)

T = TypeVar("T")
Place = Literal["before", "done", "kept"]
RAN: list[str] = []
_abandoned: list[object] = []  # tasks of processes that are gone
_open: list[tuple[asyncio.AbstractEventLoop, AuditLog]] = []  # what those have left open


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@pytest.fixture(autouse=True)
def closes_what_was_killed() -> Iterator[None]:
    yield
    while _open:
        loop, log = _open.pop()
        asyncio.run(log.aclose())
        loop.close()


class Steps:
    """Keeps steps as JSON, in order. `killed` names the step at which the process ends, and where."""

    def __init__(self, kept: dict[int, tuple[str, bytes]]) -> None:
        self.kept = kept
        self.at = 0
        self.killed: tuple[int, Place] | None = None
        self.gone = asyncio.Event()

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
        at = self.at
        self.at += 1
        if at in self.kept:
            known, text = self.kept[at]
            assert known == name
            made: T = msgspec.json.decode(text, type=type)
            return made
        await self._pass(at, "before")
        made = await work()
        await self._pass(at, "done")
        self.kept[at] = (name, msgspec.json.encode(made))
        await self._pass(at, "kept")
        return made

    async def _pass(self, at: int, place: Place) -> None:
        if self.killed == (at, place):
            self.gone.set()
            await asyncio.get_running_loop().create_future()


class Store:
    """What is left of a process: its kept steps, by segment, and its log."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'log.db'}"
        self.segments: list[dict[int, tuple[str, bytes]]] = []

    def run(
        self,
        made: Callable[[Steps, AuditLog], Agent],
        state: RunState,
        segment: int = 0,
        answers: dict[str, Approve] | None = None,
        *,
        killed: tuple[int, Place] | None = None,
        events: list[Event] | None = None,
    ) -> RunResult | None:
        """Run a segment in a process of its own; None if that was killed."""
        while len(self.segments) <= segment:
            self.segments.append({})

        async def process() -> RunResult | None:
            steps, log = Steps(self.segments[segment]), AuditLog(self.url)
            steps.killed = killed
            stream = made(steps, log).resume_stream(state, answers)
            ended = asyncio.ensure_future(_heard(stream, events))
            gone = asyncio.ensure_future(steps.gone.wait())
            await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                _abandoned.extend((stream, ended, gone))
                _open.append((asyncio.get_running_loop(), log))
                return None
            gone.cancel()
            await log.aclose()
            return ended.result()

        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(process())
        finally:
            if all(left is not loop for left, _ in _open):
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()


async def _heard(stream: Any, events: list[Event] | None) -> RunResult:
    async for event in stream:
        if events is not None:
            events.append(event)
    result: RunResult = await stream.result()
    return result


class Model(PlanningClient):
    """Says the turn that is next by what was said: it keeps nothing between requests."""

    def __init__(self, *turns: Said) -> None:
        self._turns = turns
        self.asked = 0

    @property
    def model(self) -> str:
        return "scripted"

    def _next(self, request: ChatRequest) -> ScriptedClient:
        self.asked += 1
        at = sum(message.role == "assistant" for message in request.messages)
        return ScriptedClient([self._turns[at]])

    async def chat(self, request: ChatRequest) -> Reply:
        return await self._next(request).chat(request)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        async for part in self._next(request).stream(request):
            yield part

    async def aclose(self) -> None: ...


@dataclass
class Order:
    id: str
    total: float
    secret: str = "canary"


@tool(visible=["id"])
async def order(id: str) -> Order:
    """Look up an order."""
    RAN.append(f"order {id}")
    return Order(id, 9.5)


@tool(visible=(), read_only=True, cost=0.5)
async def stock(of: str) -> str:
    """Look up how many there are."""
    RAN.append(f"stock {of}")
    return f"three of {of}"


@tool(visible=(), read_only=True, untrusted_output=True)
async def page(url: str) -> str:
    """Read a page."""
    RAN.append(f"page {url}")
    return f"the words of {url}"


@tool(visible=ALL)
async def fails(why: str) -> str:
    """Fail."""
    RAN.append(f"fails {why}")
    raise ToolError("it did not work", model_text="it did not work, says canary")


@tool(visible=ALL, safe=False, cost=2.0)
async def refund(id: str) -> str:
    """Refund an order."""
    RAN.append(f"refund {id}")
    return f"refunded {id}"


TURNS: tuple[Said, ...] = (
    [call("order", id="1"), call("stock", of="a"), call("nobody", x=1)],
    ["Let me see.", call("fails", why="z"), call("order", id=7)],
    [call("refund", id="1"), call("order", id="2")],
    call("page", url="b"),
    "All done.",
)


def desk(steps: Steps | None, log: AuditLog | None) -> Agent:
    runner = ToolRunner(
        [order, stock, page, fails, refund],
        approver=answer_later,
        sinks=[] if log is None else [log],
    )
    key = b"k" * 32
    return Agent(Model(*TURNS), runner, instructions="Help.", durability=steps, state_key=key)


def told(result: RunResult) -> list[tuple[Any, ...]]:
    return [(m.role, m.content, m.call_id, m.is_error) for m in result.messages]


def spent(result: RunResult) -> Any:
    tally = msgspec.to_builtins(result.state.tally)
    for timed in ("started", "seconds_per_tool"):
        del tally[timed]
    return tally


async def _prepared(agent: Agent) -> RunState:
    return agent.prepare("Help me.", run_id="run_1", caller=Caller("ada"))


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunState, RunResult, RunResult]:
    """The state in which the run begins, how it waits and how it ends, where nobody kills it."""
    store = Store(tmp_path_factory.mktemp("unkilled"))
    state = asyncio.run(_prepared(desk(None, None)))
    first = store.run(desk, state)
    assert first is not None
    assert first.status == "waiting"
    answers = {first.pending[0].id: Approve("grace")}
    last = store.run(desk, first.state, 1, answers)
    assert last is not None
    assert (last.status, last.text) == ("completed", "All done.")
    return state, first, last


_STEPS = 10  # the steps of the first segment: three replies, and seven calls
moments = pytest.mark.parametrize(
    ("at", "place"), sampled(product(range(_STEPS), ["before", "done", "kept"]), part=3)
)


@moments
def test_a_run_that_is_killed_anywhere_goes_on_as_if_it_was_not(
    tmp_path: Path, unkilled: Any, at: int, place: Place
) -> None:
    begun, first, last = unkilled
    store, events = Store(tmp_path), list[Event]()
    assert store.run(desk, begun, killed=(at, place)) is None
    ran = list(RAN)
    waits = store.run(desk, begun, events=events)
    assert waits is not None
    cut = _cut_short(waits)
    assert not _twice()
    if not cut:
        assert told(waits) == told(first)
        assert spent(waits) == spent(first)
        assert waits.usage == first.usage
    assert _names(waits) == _names(first)
    assert len(_named(events, ToolCallFinished)) == len(set(_named(events, ToolCallFinished))) == 6
    assert len(_named(events, ToolCallStarted)) == 7
    assert [e.turn for e in events if isinstance(e, ReplyFinished)] == [1, 2, 3]
    assert sum(isinstance(e, ApprovalRequested) for e in events) == 1
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Let me see."
    assert sum(isinstance(e, RunStarted | Done) for e in events) == 2
    assert waits.pending[0].id == first.pending[0].id
    answers = {waits.pending[0].id: Approve("grace")}
    assert store.run(desk, waits.state, 1, answers, killed=(0, "kept")) is None
    ended = store.run(desk, waits.state, 1, answers)
    assert ended is not None
    assert (ended.status, ended.text) == ("completed", last.text)
    assert RAN.count("refund 1") == 1
    assert len(ran) <= len(RAN)
    assert asyncio.run(_verified(store.url))


@pytest.mark.parametrize(("turn", "reopen"), [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("place", ["before", "done", "kept"])
def test_a_fork_that_is_killed_anywhere_repeats_nothing_and_ends_as_one_that_is_not(
    tmp_path: Path, unkilled: Any, turn: int, reopen: bool, place: Place
) -> None:
    _, _, last = unkilled

    async def forked() -> RunState:
        return desk(None, None).fork(last.state, turn=turn, reopen=reopen, fork_id="again")

    state = asyncio.run(forked())
    whole = Store(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    live = whole.run(desk, state)
    assert live is not None
    assert (live.status, live.text) == ("completed", "All done.")
    ran = sorted(RAN)
    assert not any(each.startswith("refund") for each in ran)
    for at in sampled(range(len(whole.segments[0])), part=3):
        RAN.clear()
        (folder := tmp_path / str(at)).mkdir()
        store = Store(folder)
        assert store.run(desk, state, killed=(at, place)) is None
        again = store.run(desk, state)
        assert again is not None
        assert (again.status, again.text) == ("completed", "All done.")
        assert _twice() <= {"page b"}  # which only reads
        assert _names(again) == _names(live)
        assert {*RAN} <= {*ran}
        if not _cut_short(again):
            assert (told(again), spent(again), again.usage) == (told(live), spent(live), live.usage)


def newer(steps: Steps | None, log: AuditLog | None) -> Agent:
    """The desk in its next version, in which the definition of `order` is another one."""

    @tool(visible=["id"], description="Look up an order, and count that.")
    async def order(id: str) -> Order:
        RAN.append(f"new order {id}")
        return Order(id, 9.5)

    runner = desk(steps, log).runner
    others = [
        entry.tool for entry in runner.catalog.entries if entry.tool.definition.name != "order"
    ]
    return desk(steps, log).replace(tools=runner.over([order, *others]))


@moments
def test_a_call_for_a_tool_that_has_changed_meanwhile_says_so_and_asks(
    tmp_path: Path, unkilled: Any, at: int, place: Place
) -> None:
    """What had ended stays, what was cut is unknown, what had not begun waits for a person."""
    store, begun = Store(tmp_path), unkilled[0]
    assert store.run(desk, begun, killed=(at, place)) is None
    kept = [name for name, _ in store.segments[0].values()]
    result = store.run(newer, begun)
    assert result is not None
    made_before = {f"run_1_{int(n.split()[1]) - 1}_" for n in kept if n.startswith("reply")}
    orders = [record for record in result.records if record.name == "order"]
    asked = {request.call_id: request for request in result.pending if request.tool == "order"}
    known = {record.id: state_of(record) for record in orders}
    for call_id in {*known, *asked}:
        turn = int(call_id.split("_")[2])
        which = {0: "1", 2: "2"}.get(turn)
        if which is None:
            continue  # its arguments do not fit
        ran, ran_new = f"order {which}" in RAN, f"new order {which}" in RAN
        assert not (ran and ran_new)
        if f"run_1_{turn}_" not in made_before:
            assert (ran, ran_new) == (False, True)
        elif f"call {call_id}" in kept:
            assert (ran, known[call_id]) == (True, "completed")
        elif ran or call_id in known:  # it was begun, as the log says
            assert known[call_id] == "failed (outcome_unknown)"
        else:
            assert not ran_new
            assert "has changed since the model called it" in asked[call_id].reason
    if asked:
        answers = {request.id: Approve("grace") for request in result.pending}
        again = store.run(newer, result.state, 1, answers)
        assert again is not None
        notes = {record.id: record.notes for record in again.records}
        assert all("tool_changed" in notes[call_id] for call_id in asked)
        late = (
            "failed (outcome_unknown)"  # a thread of the killed run's log wrote that it had begun
        )
        ends = {state_of(record) for record in again.records if record.id in asked}
        assert ends <= {"completed", late}
    made = [ran for ran in RAN if "order" in ran]
    assert len(made) == len(set(made))


def _cut_short(result: RunResult) -> list[str]:
    """The calls of which nobody knows whether they were done: none of a tool that only reads."""
    cut = [
        record
        for record in result.records
        if record.error is not None and record.error.code is ErrorCode.OUTCOME_UNKNOWN
    ]
    assert not any(record.name == "stock" for record in cut)
    return [record.id for record in cut]


def _twice() -> set[str]:
    """The calls that were begun twice, of tools that may not be."""
    return {ran for ran in RAN if RAN.count(ran) > 1 and not ran.startswith("stock")}


def _names(result: RunResult) -> list[tuple[str, str]]:
    return sorted((record.id, record.name) for record in result.records)


def _named(events: list[Event], kind: Any) -> list[str]:
    return [
        e.id if isinstance(e, ToolCallStarted) else e.record.id
        for e in events
        if isinstance(e, kind)
    ]


async def _verified(url: str) -> bool:
    async with AuditLog(url) as log:
        found = await log.verify()
        entries = [e.record for e in await log.entries() if e.record.status != "started"]
        told_of = [(r.id, state_of(r)) for r in entries if hasattr(r, "id") and r.idempotency_key]
        return bool(found.ok) and len(told_of) == len(set(told_of))


# What is kept is all that a run needs: nobody is asked again, and nothing runs again.


@tool(visible=["sum"], model_visible=["sum", "note"])
async def chart(quarter: int) -> ToolContent[dict[str, int]]:
    """Draw the sales of a quarter."""
    RAN.append("chart")
    return ToolContent({"sum": quarter, "note": 1, "secret": 9}, [PNG, "more"])


@tool(visible=ALL)
async def shown() -> list[str | Image]:
    """Look."""
    RAN.append("shown")
    return ["here it is", PNG]


@tool(visible=(), model_visible=())
async def hidden(word: str) -> str:
    """Say nothing to anybody."""
    RAN.append("hidden")
    return word


@dataclass
class Number:
    at: int = field(default_factory=lambda: len(MADE))


@tool(visible=ALL, requires_approval=True)
async def ticket(number: Number) -> int:
    """Take a number."""
    RAN.append(f"ticket {number}")
    return number.at


@tool(visible=ALL, requires_approval=True)
async def mail(to: str) -> str:
    """Write to somebody."""
    RAN.append(f"mail {to}")
    return "sent"


@tool(visible=ALL, strict=True)
async def book(city: str, nights: int = 1) -> str:
    """Book a room."""
    RAN.append(f"book {city}")
    return f"{nights} nights in {city}"


PNG = Image.from_bytes("image/png", b"canary")
MADE: list[object] = []


class Mends:
    """Mends what a model sent, another way each time."""

    name = "mends"

    async def __call__(self, _request: RepairRequest) -> str:
        MADE.append(None)
        return json.dumps({"id": str(len(MADE))})


def plain(turns: Sequence[Said], tools: Sequence[Any], **made: Any) -> Callable[..., Agent]:
    runner = {name: made.pop(name) for name in ("repairer", "policy") if name in made}

    def agent(steps: Steps, log: AuditLog) -> Agent:
        crib = ToolRunner(tools, approver=answer_later, sinks=[log], **runner)
        return Agent(Model(*turns), crib, durability=steps, **made)

    return agent


def clerk(_steps: Steps, _log: AuditLog) -> Agent:
    turns = [call("page", url="c"), call("refund", id="3")]
    inner = Agent(Model(*turns), ToolRunner([refund, page], approver=answer_later))
    tools = [inner.as_tool("clerk", "Refunds."), stock]
    said = [[call("clerk", prompt="go"), call("stock", of="b")]]
    return plain(said, tools)(_steps, _log)


RUNS: dict[str, Callable[..., Agent]] = {
    "content": plain([[call("chart", quarter=3), call("shown")], "Seen."], [chart, shown]),
    "hidden": plain([call("hidden", word="canary"), "Done."], [hidden]),
    "a default factory": plain([call("ticket", number={})], [ticket]),
    "a repairer": plain([call("order", id=7), "Mended."], [order], repairer=Mends()),
    "picked": plain(
        [call("order", id="7"), "Picked."],
        [order, hidden, shown],
        pick=PickOptions(max_candidates=1, scorer="keyword"),
    ),
    "found": plain(
        [call("search_tools", query="chart"), call("chart", quarter=3), "Found."],
        [hidden, shown, order, chart],
        pick=PickOptions(max_candidates=1, scorer="keyword"),
        search_tools=True,
    ),
    "an agent that waits": clerk,
    "no calls": plain(["Hello."], [order]),
    "a typed answer": plain(["no number", "17"], [order], output=int),
    "a limit": plain([[call("order", id="1")] * 3, "no"], [order], limits=Limits(calls=2)),
}


@pytest.mark.parametrize("named", RUNS)
def test_a_run_that_is_all_kept_is_the_same_again(tmp_path: Path, named: str) -> None:
    made, store = RUNS[named], Store(tmp_path)
    state = asyncio.run(_state(made))
    live = store.run(made, state)
    ran = list(RAN)
    models: list[Agent] = []

    def again(steps: Steps, log: AuditLog) -> Agent:
        MADE.append(None)
        models.append(made(steps, log))
        return models[0]

    replayed = store.run(again, state)
    assert live is not None
    assert replayed is not None
    assert ran == RAN
    assert getattr(models[0].client, "asked") == 0  # noqa: B009  mypy
    assert (told(replayed), replayed.output) == (told(live), live.output)
    assert [m.parts for m in replayed.messages] == [m.parts for m in live.messages]
    assert [m.untrusted for m in replayed.messages] == [m.untrusted for m in live.messages]
    assert (replayed.status, replayed.limit, replayed.usage) == (
        live.status,
        live.limit,
        live.usage,
    )
    assert spent(replayed) == spent(live)
    assert replayed.state.tally.seconds_per_tool == live.state.tally.seconds_per_tool
    if named != "a limit":  # its calls were refused once more
        assert sorted(replayed.records, key=str) == sorted(live.records, key=str)
    for name in ("pinned", "repaired", "restored", "suspended", "choice", "offered"):
        assert getattr(replayed.state, name) == getattr(live.state, name)
    assert [request.id for request in replayed.pending] == [request.id for request in live.pending]


async def _state(made: Callable[..., Agent]) -> RunState:
    return made(Steps({}), None or AuditLog("sqlite://")).prepare("Look up the order.", run_id="r")


# Another version of the program has other tools, and goes on with the same steps.


def report(*, background: bool, asks: bool = False) -> Any:
    async def report(year: int) -> str:
        await asyncio.sleep(0)
        RAN.append("report")
        return f"a surplus of {year}"

    made: dict[str, Any] = {"background": background, "requires_approval": asks}
    return tool(visible=ALL, description="Write a report.", **made)(report)


@tool(visible=ALL, name="numbered")
async def numbered(number: Number) -> int:
    """Take a number of your own."""
    return number.at


@tool(visible=ALL, name="numbered")
async def unnumbered(number: int) -> int:
    """Take a number of your own."""
    return number


def picking(tools: Sequence[Any], allowed: Sequence[str]) -> Callable[..., Agent]:
    said: list[Said] = [
        call("search_tools", query="chart", limit=1),
        call("order", id="7"),
        "Found.",
    ]
    picks = PickOptions(max_candidates=1, scorer="keyword")
    only = deny_by_default(allow=["search_tools", *allowed])
    return plain(said, tools, pick=picks, search_tools=True, policy=only)


_REPORTS: list[Said] = [
    [call("report", year=1), call("stock", of="a")],
    call("report", year=2),
    call("stock", of="b"),
    *["I wait."] * 6,
]
_BEHIND, _AHEAD = report(background=True), report(background=False)
_ASKS: list[Said] = [[call("report", year=1), call("mail", to="a")], "I wait.", "I wait.", "Done."]
_LATER, _NOW = report(background=True, asks=True), report(background=False, asks=True)
_ALL_FOUND = [order, hidden, shown, chart]
_FOUND = picking(_ALL_FOUND, ["order", "chart", "hidden", "shown"])
_TWO: list[Said] = [call("order", id="1"), call("order", id="2"), call("mail", to="a"), "Done."]
VERSIONS: dict[str, tuple[Callable[..., Agent], Callable[..., Agent]]] = {
    "what was found is denied": (_FOUND, picking(_ALL_FOUND, ["order", "hidden", "shown"])),
    "what was found is gone": (_FOUND, picking([order, hidden, shown], ["order", "hidden"])),
    "what was picked is gone": (_FOUND, picking([hidden, shown, chart], ["hidden", "chart"])),
    "nothing is searched for": (
        _FOUND,
        plain(["Found."] * 3, _ALL_FOUND, pick=PickOptions(max_candidates=1, scorer="keyword")),
    ),
    "what was denied is found": (picking(_ALL_FOUND, ["order"]), _FOUND),
    "not in the background": (plain(_REPORTS, [_BEHIND, stock]), plain(_REPORTS, [_AHEAD, stock])),
    "in the background": (plain(_REPORTS, [_AHEAD, stock]), plain(_REPORTS, [_BEHIND, stock])),
    "what ran in the background is gone": (
        plain(_REPORTS, [_BEHIND, stock]),
        plain(_REPORTS, [stock]),
    ),
    "what is approved is not in the background": (
        plain(_ASKS, [_LATER, mail]),
        plain(_ASKS, [_NOW, mail]),
    ),
    "what is approved is in the background": (
        plain(_ASKS, [_NOW, mail]),
        plain(_ASKS, [_LATER, mail]),
    ),
    "a factory more": (plain(_TWO, [order, mail]), plain(_TWO, [order, mail, numbered])),
    "a factory less": (
        plain(_TWO, [order, mail, numbered]),
        plain(_TWO, [order, mail, unnumbered]),
    ),
    "a repairer more": (plain(_TWO, [order, mail]), plain(_TWO, [order, mail], repairer=Mends())),
    "a repairer less": (plain(_TWO, [order, mail], repairer=Mends()), plain(_TWO, [order, mail])),
}


@pytest.mark.parametrize("named", VERSIONS)
def test_a_version_with_other_tools_takes_up_the_steps_that_are_kept(
    tmp_path: Path, named: str
) -> None:
    """Whether there is a step follows from what is kept, in a run and in one that was answered."""
    first, then = VERSIONS[named]
    state, answers, segment = asyncio.run(_state(first)), dict[str, Approve](), 0
    whole = Store(tmp_path)
    while True:
        ended = whole.run(first, state, segment, answers)
        assert ended is not None
        for at in sampled(range(len(whole.segments[segment])), part=3):
            (folder := tmp_path / f"{segment} {at}").mkdir()
            store = Store(folder)
            if store.run(first, state, segment, answers, killed=(at, "kept")) is not None:
                continue  # it had fewer steps: what ran in the background had ended sooner
            kept = dict(store.segments[segment])
            result = store.run(then, state, segment, answers)
            assert result is not None
            assert result.status in ("completed", "waiting")
            assert store.segments[segment] | kept == store.segments[segment]
            begun = {m.call_id for m in result.messages if "running in the background" in m.text}
            assert begun == {
                call_id
                for name, text in store.segments[segment].values()
                if name.startswith("begun")
                for call_id in json.loads(text)
            }
        if ended.status != "waiting":
            return
        state, segment = ended.state, segment + 1
        answers = {request.id: Approve("grace") for request in ended.pending}


def test_what_is_approved_for_the_run_is_approved_in_the_next_process(tmp_path: Path) -> None:
    turns: list[Said] = [call("mail", to="a"), call("mail", to="b"), "Both."]
    made, store = plain(turns, [mail]), Store(tmp_path)
    waits = store.run(made, asyncio.run(_state(made)))
    assert waits is not None
    answers = {waits.pending[0].id: Approve("grace", for_run=True)}
    assert store.run(made, waits.state, 1, answers, killed=(1, "before")) is None
    ended = store.run(made, waits.state, 1, answers)
    assert ended is not None
    assert (ended.status, RAN) == ("completed", ["mail a", "mail b"])
    assert [record.approved_by for record in ended.records] == ["grace", "grace"]
    assert len(ended.state.tally.approved) == 1


def test_the_time_that_a_run_has_taken_is_not_given_back(tmp_path: Path) -> None:
    turns: list[Said] = [call("order", id="1"), call("order", id="2"), "Late."]
    made, store = plain(turns, [order], limits=Limits(seconds=50)), Store(tmp_path)
    state = asyncio.run(_state(made))
    assert store.run(made, state, killed=(2, "before")) is None
    name, text = store.segments[0][1]
    store.segments[0][1] = (name, text.replace(b'"elapsed":', b'"elapsed":60'))
    ended = store.run(made, state)
    assert ended is not None
    assert (ended.status, ended.limit, RAN) == ("limited", "seconds", ["order 1"])
    assert ended.state.elapsed > 60


def test_what_a_client_raises_is_not_kept(tmp_path: Path) -> None:
    def broken(steps: Steps, _log: AuditLog) -> Agent:
        down = ScriptedClient([ClientError("the line is down")])
        return Agent(down, [order], durability=steps)

    store = Store(tmp_path)
    state = asyncio.run(_state(broken))
    with pytest.raises(ClientError, match="the line is down"):
        store.run(broken, state)
    assert store.segments == [{}]
    ended = store.run(plain(["Here I am."], [order]), state)
    assert ended is not None
    assert ended.text == "Here I am."


@pytest.mark.parametrize("behind", [False, True])
async def test_a_call_for_a_lowered_view_is_understood_in_the_next_process(behind: bool) -> None:
    """The offer of the reply, which had the restorer, was another process's: it is made again."""
    turns: list[ServerTurn] = [call("book", city="Rome", nights=None), "Booked."]
    kept: dict[int, tuple[str, bytes]] = {}
    async with openai_server(turns) as server:
        first, other = (OpenAIClient("m", base_url=server.url) for _ in range(2))
        down = OpenAIClient("m", base_url="http://127.0.0.1:1", retries=None)
        async with first, other, down:
            steps = Steps(kept)
            steps.killed = (0, "kept")
            agent = Agent(first, [book], durability=steps)
            state = agent.prepare("Book.")
            task = asyncio.create_task(agent.resume(state))
            await steps.gone.wait()
            task.cancel()
            client = fallback([down, other], on=(ClientError,)) if behind else other
            ended = await Agent(client, [book], durability=Steps(kept)).resume(state)
    assert (ended.text, RAN) == ("Booked.", ["book Rome"])
    assert ended.records[0].arguments == {"city": "Rome", "nights": 1}
    assert len(server.requests) == 2


async def test_without_an_engine_around_it_the_work_is_done() -> None:
    class Outside:
        async def run(self, _name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
            return await work()

    agent = Agent(Model(*TURNS[:1], "Bye."), [order, stock], durability=Outside())
    result = await agent.run("Go.")
    assert (result.status, sorted(RAN)) == ("completed", ["order 1", "stock a"])
    assert agent.replace(model=Model("Hi.")).client is not agent.client
    with pytest.raises(TypeError, match="durability must be a StepRunner"):
        Agent(Model(), durability=object())  # type: ignore[arg-type]


@capability
class Till(Protocol):
    async def pay(self, amount: int) -> str: ...


class TillOf:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    async def pay(self, amount: int) -> str:
        RAN.append(f"{self.owner} {amount}")
        return "paid"


@tool(visible=ALL, idempotent=True)
async def pay(amount: int, till: Till) -> str:
    """Pay an amount."""
    return await till.pay(amount)


async def test_a_run_under_way_goes_on_with_what_it_was_given_wherever_it_was_cut() -> None:
    """Once a reply is kept: before that nothing that a tool does has been done."""

    def till_desk(kept: dict[int, tuple[str, bytes]]) -> Agent:
        model = Model([call("pay", amount=1)], [call("pay", amount=2)], "Paid.")
        tools = Catalog([pay]).bind({Till: TillOf("the house")})
        return Agent(model, ToolRunner(tools), durability=Steps(kept))

    own: dict[Any, object] = {Till: TillOf("ada")}
    kept: dict[int, tuple[str, bytes]] = {}
    state = till_desk(kept).prepare("Pay.")
    await till_desk(kept).resume(state, deps=own)
    names = [name.partition(" ")[0] for name, _ in kept.values()]
    assert names == ["reply", "call", "reply", "call", "reply"]
    for cut in range(1, len(kept) + 1):
        RAN.clear()
        until = {at: step for at, step in kept.items() if at < cut}
        with pytest.raises(BindingError, match=r"given its own .*\.Till, .*deps=\{Till:"):
            await till_desk({**until}).resume(state)
        assert RAN == []
        done = await till_desk(until).resume(state, deps=own)
        assert (done.status, done.state.given) == ("completed", (f"{__name__}.Till",))
        assert ["ada 1", "ada 2"][cut // 2 :] == RAN
    without: dict[int, tuple[str, bytes]] = {}
    await till_desk(without).resume(state)
    assert not any(b"given" in text for _, text in without.values())


async def test_a_prepared_run_has_the_id_that_it_was_given() -> None:
    state = desk(None, None).prepare("Help me.", run_id="order-7")
    assert (state.run_id, state.tally.run_id, state.turn) == ("order-7", "order-7", 0)
    made = desk(None, None).prepare("Help me.")
    assert made.run_id.startswith("run_")
    assert made.tally.nonce != state.tally.nonce
    with pytest.raises(SourceError, match="signature"):
        await desk(None, None).resume(msgspec.structs.replace(state, run_id="order-8"))


@pytest.mark.parametrize("name", ["refund", "order", "nobody"])
async def test_a_call_that_is_cancelled_while_its_step_is_kept_has_one_end(name: str) -> None:
    """One that did not begin was told of by then; of one that did, nobody says anything for good."""
    kept: list[str] = []

    class Hangs:
        async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
            made = await work()
            if name.startswith("call"):
                kept.append(name)
                await asyncio.Event().wait()
            return made

    async with AuditLog("sqlite://") as log:
        agent = plain([call(name, id="1"), "Bye."], [refund, order])(Hangs(), log)
        stream = agent.stream("Go.")
        while not kept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        result = await stream.cancel()
        assert result.status == "cancelled"
        entries = [entry.record for entry in await log.entries()]
    told_of = {
        "refund": ["waiting"],
        "order": ["started", "failed (outcome_unknown)"],
        "nobody": ["failed (unknown_tool)"],
    }
    calls = [record for record in entries if isinstance(record, ToolInvocationRecord)]
    assert [state_of(record) for record in calls] == told_of[name]
