"""A conversation keeps what ran: whatever ends a turn, wherever it ends, nothing is done twice.

The tools write into a ledger of their own what they did. After a turn was ended at some place the next
one asks the model again, and what the model is sent is held against that ledger.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any

import msgspec
import pytest
from samples import sampled
from wire.test_continued import FAULT_OF

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    Approve,
    CallContext,
    Done,
    Limits,
    Message,
    Refuse,
    Reply,
    RunState,
    Session,
    ToolRunner,
    tool,
)
from toolcrib.approvals import ApprovalStore, answer_later
from toolcrib.errors import ProviderError, SourceError, ToolcribError
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.decision import Answer
from toolcrib.values.json import canonical_json
from toolcrib.values.message import ChatRequest, StreamPart
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunRecord
from toolcrib.wire import WIRES, encode

world: list[str] = []


@tool(visible=ALL)
async def pay(order: int) -> str:
    """Pay an order; the money is gone in the middle of it."""
    await asyncio.sleep(0)
    world.append(f"pay {order}")
    await asyncio.sleep(0)
    return f"paid {order}"


@tool(visible=ALL)
async def note(text: str) -> str:
    """Write a note."""
    world.append(f"note {text}")
    return "noted"


TURNS: list[Any] = [
    ["let me see", call("pay", order=1), call("note", text="a")],
    [call("pay", order=2)],
    "Both are paid.",
]
MORE = ["Nothing more to do.", "Nothing more to do."]


@pytest.fixture(autouse=True)
def _empty_world() -> None:
    world.clear()


class YieldingSink:
    """A sink that has to wait."""

    async def write(self, _record: ToolInvocationRecord) -> None:
        await asyncio.sleep(0)


def conversation(turns: list[Any], *, sink: Any = None) -> tuple[Session, ScriptedClient]:
    client = ScriptedClient([*turns, *MORE])
    runner = ToolRunner([pay, note], sinks=[sink or YieldingSink()])
    return Session(Agent(client, runner, instructions="Be kind.")), client


def goes_on(session: Session) -> ScriptedClient:
    """Give the session a model that is where the conversation is after its first turn."""
    session.agent.client = client = ScriptedClient(MORE)
    return client


def check_nothing_is_forgotten(request: ChatRequest) -> None:
    """Each call that ran is there with its one result, and every wire takes the history."""
    told: Counter[str] = Counter()
    results = {m.call_id: m for m in request.messages if m.role == "tool"}
    for message in request.messages:
        for made in message.tool_calls:
            assert made.id in results
            arguments = json.loads(made.arguments)
            done = f"{made.name} {arguments.get('order', arguments.get('text'))}"
            told[done] += 1
            content = results[made.id].content
            if done in world:
                assert content in (f"paid {arguments.get('order')}", "noted") or (
                    re.search("not known|is unknown|tool failed", content)
                ), content
    assert all(told[done] == 1 for done in world), (told, world)
    check_every_wire_takes_it(request)


def check_every_wire_takes_it(request: ChatRequest) -> None:
    for name, wire in WIRES.items():
        made = encode(wire, request, model="some-model")
        fault = FAULT_OF[name](json.loads(made.body))
        assert fault is None, (name, fault)


class Interrupted:
    """Runs a coroutine, and throws an error into it where it waits for the `number`th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, error: BaseException) -> None:
        self.work, self.number, self.error = work, number, error
        self.thrown = False

    def __await__(self) -> Generator[Any, Any, Any]:
        waits, given = 0, None
        try:
            while True:
                pending = self.work.send(given)
                if waits == self.number:
                    self.thrown = True
                    pending = self.work.throw(self.error)
                waits += 1
                given = yield pending
        except StopIteration as finished:
            return finished.value


ERRORS = [
    asyncio.CancelledError(),
    RuntimeError("of a sink, or of whoever watches"),
    KeyboardInterrupt(),
    ProviderError("down", 503),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_is_thrown_where_a_turn_waits_what_ran_is_remembered(
    error: BaseException,
) -> None:
    number, thrown = 0, True
    while thrown:
        world.clear()
        session, client = conversation(TURNS)
        turn = Interrupted(session.send("pay both"), number, error)
        try:
            await turn
        except type(error):
            for _ in range(20):  # those that were cancelled come to their end
                await asyncio.sleep(0)
        client = goes_on(session)
        await session.send("try again")
        check_nothing_is_forgotten(client.requests[-1])
        number, thrown = number + 1, turn.thrown
    assert number >= 4


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelled_after_any_number_of_steps_what_ran_is_remembered(streamed: bool) -> None:
    steps, ended = 0, False
    while not ended:
        world.clear()
        session, client = conversation(TURNS)

        async def turn(session: Session = session) -> None:
            if not streamed:
                await session.send("pay both")
                return
            async with session.stream("pay both") as stream:
                async for _ in stream:
                    pass

        task = asyncio.ensure_future(turn())
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client = goes_on(session)
        await session.send("try again")
        check_nothing_is_forgotten(client.requests[-1])
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_fails_after_a_tool_ran(failing: int, streamed: bool) -> None:
    session, client = conversation([*TURNS[:failing], ProviderError("down", 503)])
    turn = session.stream("pay both").result() if streamed else session.send("pay both")
    with pytest.raises(ProviderError):
        await turn
    assert (await session.send("try again")).status == "completed"
    check_nothing_is_forgotten(client.requests[-1])
    assert [m.content for m in session.messages if m.role == "user"] == ["pay both", "try again"]


class BreaksInTheStream(ScriptedClient):
    """Its connection breaks in the middle of the second reply."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        async for part in super().stream(request):
            if len(self.requests) == 2 and isinstance(part, Reply):
                raise ProviderError("the connection broke")
            yield part


async def test_whoever_else_hears_of_its_end_a_stream_is_kept() -> None:
    session, heard = Session(Agent(ScriptedClient(["One.", "Two."]))), list[Any]()
    for _ in range(2):
        stream = session.stream("Go on.")
        stream.when_ended(heard.append)
        await stream.result()
    assert [result.text for result in heard] == ["One.", "Two."]
    assert [each.content for each in session.messages] == ["Go on.", "One.", "Go on.", "Two."]


async def test_a_stream_that_breaks_after_a_tool_ran() -> None:
    client = BreaksInTheStream([TURNS[0], "Both are", *MORE])
    session = Session(Agent(client, [pay, note]))
    with pytest.raises(ProviderError):
        await session.stream("pay both").result()
    await session.stream("try again").result()
    check_nothing_is_forgotten(client.requests[-1])


class FailsAt:
    def __init__(self, number: int) -> None:
        self.left = number

    def write(self, _record: ToolInvocationRecord) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("the disk is full")


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_sink_that_fails_after_a_tool_ran(number: int) -> None:
    session, client = conversation(TURNS, sink=FailsAt(number))
    with pytest.raises(OSError, match="full"):
        await session.send("pay both")
    client = goes_on(session)
    await session.send("try again")
    check_nothing_is_forgotten(client.requests[-1])


@pytest.mark.parametrize("limits", [Limits(turns=1), Limits(turns=2), Limits(calls=2)])
async def test_a_limit_that_ends_a_turn_after_a_tool_ran(limits: Limits) -> None:
    session, client = conversation(TURNS)
    session.agent.limits = limits
    assert (await session.send("pay both")).status == "limited"
    client = goes_on(session)
    await session.send("try again")
    check_nothing_is_forgotten(client.requests[-1])


@tool(visible=ALL)
async def interrupted(order: int) -> str:
    """Pay, and be interrupted by Ctrl-C."""
    world.append(f"interrupted {order}")
    raise KeyboardInterrupt


def test_ctrl_c_in_the_middle_of_a_tool() -> None:
    client = ScriptedClient([call("interrupted", order=7), *MORE])
    session = Session(Agent(client, [interrupted]))
    with asyncio.Runner() as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.run(session.send("go"))
        loop.run(session.send("try again"))
    check_nothing_is_forgotten(client.requests[-1])


async def test_a_turn_that_failed_before_it_called_anything_leaves_nothing() -> None:
    session = Session(Agent(ScriptedClient([ProviderError("down"), "Hello."]), [pay]))
    with pytest.raises(ProviderError):
        await session.send("hi")
    assert session.messages == ()
    assert (await session.send("hi")).text == "Hello."


@tool(visible=ALL, safe=False)
async def refund(order: int) -> str:
    """Refund an order."""
    world.append(f"refund {order}")
    return f"refunded {order}"


def asking(turns: list[Any]) -> tuple[Session, ScriptedClient]:
    client = ScriptedClient(turns)
    runner = ToolRunner([pay, refund], approver=ApprovalStore("sqlite://"))
    return Session(Agent(client, runner)), client


async def test_a_turn_that_waits_is_part_of_the_conversation() -> None:
    session, client = asking([[call("pay", order=1), call("refund", order=2)], "Hello."])
    assert (await session.send("pay and refund")).status == "waiting"
    await session.send("are you there?")
    pay_result, refund_result = (m for m in client.requests[-1].messages if m.role == "tool")
    assert pay_result.content == "paid 1"
    assert "It has not run" in refund_result.content
    check_every_wire_takes_it(client.requests[-1])


@pytest.mark.parametrize("meanwhile", [0, 1, 2])
async def test_a_run_that_waited_takes_its_place_in_the_conversation(meanwhile: int) -> None:
    said = [f"said {number}" for number in range(meanwhile)]
    session, client = asking([call("refund", order=2), *said, "It is refunded.", *MORE])
    waiting = await session.send("refund")
    for text in said:
        await session.send(f"ask for {text}")
    saved = Session.from_json(session.agent, session.to_json())
    state = RunState.from_json(waiting.state.to_json())
    answers = {waiting.pending[0].id: Approve(by="grace")}
    saved.keep(await session.agent.resume(state, answers))
    assert [m.content for m in saved.messages if m.role != "tool" and m.content] == [
        "refund",
        "It is refunded.",
        *(text for each in said for text in (f"ask for {each}", each)),
    ]
    assert [m.content for m in saved.messages if m.role == "tool"] == ["refunded 2"]
    await saved.send("anything else?")
    check_every_wire_takes_it(client.requests[-1])


class FailsOnce:
    """A sink that fails at a record of one status, or of a run, once it is told to."""

    def __init__(self, at: str) -> None:
        self.at, self.armed, self.write_ahead = at, False, at == "started"

    def write(self, record: ToolInvocationRecord) -> None:
        self.fail(record.status)

    async def write_run(self, record: RunRecord) -> None:
        self.fail(f"run {record.status}")

    def fail(self, at: str) -> None:
        if self.armed and at == self.at:
            self.armed = False
            raise OSError("the disk is full")


@pytest.mark.parametrize("meanwhile", [0, 1])
@pytest.mark.parametrize(
    ("at", "told"),
    [
        ("run running", "It has not run"),
        ("started", "could not be recorded"),
        ("completed", "refunded 2"),
        ("run completed", "refunded 2"),
    ],
)
async def test_what_ran_stays_when_a_run_that_is_resumed_fails(
    at: str, told: str, meanwhile: int
) -> None:
    """Whoever asks again is told what was done, and a run that had not begun waits as before."""
    said = [f"said {number}" for number in range(meanwhile)]
    client = ScriptedClient([call("refund", order=2), *said, *["It is refunded."] * 3])
    sink = FailsOnce(at)
    runner = ToolRunner([refund], approver=ApprovalStore("sqlite://"), sinks=[sink])
    session = Session(Agent(client, runner))
    waiting = await session.send("refund")
    for text in said:
        await session.send(text)
    sink.armed = True
    answers = {waiting.pending[0].id: Approve(by="grace")}
    with pytest.raises(OSError, match="full"):
        await session.resume(waiting.state, answers)
    (result,) = (m for m in session.messages if m.role == "tool")
    assert told in result.content
    assert world == (["refund 2"] if "refunded" in told else [])
    if told == "It has not run":
        assert (await session.resume(waiting.state, answers)).status == "completed"
        assert world == ["refund 2"]
    await session.send("and now?")
    check_every_wire_takes_it(client.requests[-1])


async def test_a_run_of_another_conversation_is_not_resumed_in_this_one() -> None:
    session, _ = asking([call("refund", order=2), "Hello."])
    waiting = await session.agent.run("refund")
    answers = {waiting.pending[0].id: Approve(by="grace")}
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        await session.resume(waiting.state, answers)
    assert world == []


async def test_a_turn_that_failed_at_once_leaves_nothing_behind_a_run_that_waits() -> None:
    session, _ = asking([call("refund", order=2), ProviderError("down", 503)])
    await session.send("refund")
    before = session.messages
    with pytest.raises(ProviderError):
        await session.send("well?")
    assert session.messages == before


async def test_a_call_that_waits_is_not_said_to_have_begun() -> None:
    """Another call of its turn ran, and a sink failed: of this one everything is known."""
    sink = FailsOnce("completed")
    sink.armed = True
    client = ScriptedClient([[call("pay", order=1), call("refund", order=2)], *MORE])
    runner = ToolRunner([pay, refund], approver=ApprovalStore("sqlite://"), sinks=[sink])
    session = Session(Agent(client, runner))
    with pytest.raises(OSError, match="full"):
        await session.send("pay and refund")
    paid, refunded = (m.content for m in session.messages if m.role == "tool")
    assert paid == "paid 1"
    assert "unknown" not in refunded
    assert '"cancelled"' in refunded or '"approval_required"' in refunded  # it waits already


async def test_of_a_call_that_waits_record_and_conversation_say_the_same() -> None:
    """What it waits for could not be written down in one place; elsewhere it was."""
    sink, elsewhere = FailsOnce("waiting"), MemorySink()
    sink.armed = True
    client = ScriptedClient([call("refund", order=2), *MORE])
    runner = ToolRunner([refund], approver=answer_later, sinks=[sink, elsewhere])
    session = Session(Agent(client, runner))
    with pytest.raises(OSError, match="full"):
        await session.send("refund")
    (refunded,) = (m.content for m in session.messages if m.role == "tool")
    assert [record.status for record in elsewhere.records] == ["waiting"]
    assert "waits for somebody's approval" in refunded
    assert "cancelled" not in refunded


async def test_a_run_that_is_kept_again_takes_nothing_out_of_the_conversation() -> None:
    session, _ = asking([call("refund", order=2), "I ask.", "It is refunded.", "Hello."])
    waiting = await session.send("refund")
    await session.send("well?")
    answers = {waiting.pending[0].id: Approve(by="grace")}
    refunded = await session.agent.resume(waiting.state, answers)
    session.keep(refunded)
    kept = session.messages
    for again in (refunded, waiting):
        session.keep(again)
        assert session.messages == kept
    assert [m.content for m in kept if m.role == "tool"] == ["refunded 2"]
    another = await session.agent.run("hi")
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        session.keep(another)
    assert session.messages == kept


async def test_a_session_is_not_busy_after_a_turn_that_raised() -> None:
    session, _ = conversation([ProviderError("down"), "Hello."])
    with pytest.raises(ProviderError):
        await session.send("hi")
    assert (await session.send("hi")).status == "completed"


async def nobody(_request: ApprovalRequest) -> None:
    """Nobody has answered yet."""


async def test_a_state_without_a_place_here_is_refused_before_anything_of_it_runs() -> None:
    """A run that called nothing yet has no calls by which its conversation could be told."""
    failed = Session(Agent(ScriptedClient([ProviderError("down")]), [note]))
    with pytest.raises(ProviderError) as raised:
        await failed.send("Another conversation.")
    session, client = conversation(["Hello.", call("note", text="a"), "Noted."])
    await session.send("hi")
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        await session.resume(raised.value.state)
    assert world == []
    assert len(client.requests) == 1


async def test_a_turn_that_failed_at_once_goes_on_unless_the_conversation_has() -> None:
    script: list[Any] = [ProviderError("down"), call("note", text="a"), "Noted.", "Hello."]
    session, client = conversation(script)
    with pytest.raises(ProviderError) as raised:
        await session.send("hi")
    state = raised.value.state
    assert (await session.resume(state)).text == "Noted."
    kept, asked = session.messages, len(client.requests)
    with pytest.raises(ToolcribError, match="the state is out of date"):
        await session.resume(state)
    again, other = conversation([ProviderError("down"), "Hello."])
    with pytest.raises(ProviderError) as raised:
        await again.send("hi")
    await again.send("hi")
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        await again.resume(raised.value.state)
    assert (session.messages, len(client.requests), len(other.requests)) == (kept, asked, 2)
    assert world == ["note a"]


async def test_a_run_that_is_kept_during_a_turn_loses_nothing_of_either() -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def slow() -> str:
        """Take a while."""
        began.set()
        await gate.wait()
        return "slow is done"

    def agent(*turns: Any) -> Agent:
        return Agent(ScriptedClient(turns), ToolRunner([refund, slow], approver=nobody))

    session = agent(call("refund", order=2)).session()
    waiting = await session.send("refund")
    session.agent = agent(call("slow"), "That was slow.")
    meanwhile = asyncio.create_task(session.send("be slow"))
    await began.wait()
    answers = {waiting.pending[0].id: Approve(by="grace")}
    session.keep(await agent("It is refunded.").resume(waiting.state, answers))
    gate.set()
    assert (await meanwhile).status == "completed"
    assert [m.content for m in session.messages if m.content] == [
        *("refund", "refunded 2", "It is refunded."),
        *("be slow", "slow is done", "That was slow."),
    ]


@pytest.mark.parametrize("meanwhile", [0, 1])
async def test_a_call_that_ran_stays_so_whatever_is_answered_later(meanwhile: int) -> None:
    """The same state goes on again in another process, which does not know what was done."""

    def agent(*turns: Any) -> Agent:
        return Agent(ScriptedClient(turns), ToolRunner([refund], approver=nobody))

    said = ["Hello."] * meanwhile
    session = agent(call("refund", order=2), ProviderError("down"), *said).session()
    waiting = await session.send("refund")
    with pytest.raises(ProviderError):
        await session.resume(waiting.state, {waiting.pending[0].id: Approve(by="grace")})
    for _ in said:
        await session.send("hi")
    later = Session.from_json(agent("It was refused."), session.to_json())
    with pytest.raises(ToolcribError, match="the state is out of date"):
        await later.resume(waiting.state, {waiting.pending[0].id: Refuse(by="joan")})
    late = await later.agent.resume(waiting.state, {waiting.pending[0].id: Refuse(by="joan")})
    with pytest.raises(ToolcribError, match="continued differently"):
        later.keep(late)
    assert later.messages == session.messages
    texts = [m.content for m in later.messages if m.content]
    assert texts == ["refund", "refunded 2", *["hi", "Hello."] * meanwhile]


def rolled(dice: random.Random) -> ScriptedClient:
    """Return a model that says, calls or fails at random."""
    said = itertools.count()

    def roll(request: ChatRequest) -> Any:
        text, number = f"text {next(said)}", dice.random()
        if number < 0.2:
            return ProviderError("down")
        if number < 0.5 or len(request.messages) > 40:
            return text
        names = dice.choices(["act", "ask_and_act"], k=dice.randrange(1, 3))
        return [text, *(call(name, n=dice.randrange(3)) for name in names)]

    return ScriptedClient([roll] * 300)


@tool(visible=ALL)
async def act(n: int, context: CallContext) -> str:
    """Act."""
    world.append(context.call_id)
    return f"did {n}"


@tool(visible=ALL, safe=False)
async def ask_and_act(n: int, context: CallContext) -> str:
    """Act, when somebody agrees."""
    world.append(context.call_id)
    return f"did {n}"


REFUSED = "to another conversation|the state is out of date"


def check_nothing_is_lost(session: Session, before: tuple[Message, ...]) -> None:
    made = [(each.id, each.arguments) for m in session.messages for each in m.tool_calls]
    results = [(m.call_id, m.content) for m in session.messages if m.role == "tool"]
    assert len(dict(made)) == len(made)
    assert [id_ for id_, _ in made] == [id_ for id_, _ in results]
    arguments, told = dict(made), dict(results)
    for id_ in world:
        assert told[id_] == f"did {json.loads(arguments[id_])['n']}"
    said = Counter(m.content for m in session.messages if m.role != "tool")
    assert Counter(m.content for m in before if m.role != "tool") <= said


@pytest.mark.parametrize("seed", [*sampled(range(60), part=3), 1156, 1254, 1296, 2052])
async def test_a_conversation_loses_nothing_in_whatever_order_its_runs_go_on(seed: int) -> None:
    """Turns, runs that go on again, results that are kept late, processes that know nothing."""
    dice = random.Random(seed)  # noqa: S311  a test
    model = rolled(dice)
    session = Agent(model, ToolRunner([act, ask_and_act], approver=nobody)).session()
    states: list[RunState] = []
    for step in range(12):
        before, state, done = session.messages, dice.choice([None, *states]), [*world]
        if dice.random() < 0.3:
            fresh = Agent(model, ToolRunner([act, ask_and_act], approver=nobody))
            session = Session.from_json(fresh, session.to_json())
        answers: dict[str, Answer] = {
            asked.id: Approve(by="grace") if dice.random() < 0.5 else Refuse(by="joan")
            for asked in (state.pending if state else ())
            if dice.random() < 0.8
        }
        by_agent = dice.random() < 0.3
        try:
            if state is None:
                result = await session.send(f"prompt {step}")
            elif by_agent:
                result = await session.agent.resume(state, answers)
                session.keep(result)
            else:
                result = await session.resume(state, answers)
        except ToolcribError as error:
            if isinstance(error, ProviderError) and not (state and by_agent):
                states.append(error.state)
            elif state and by_agent:
                world[:] = done  # docs/rules.md: what failed there is not the session's
            elif not re.search(REFUSED, str(error)) or world != done:
                raise
        else:
            states.append(result.state)
            assert result.status == "waiting" or result.text in [
                m.content for m in session.messages
            ]
        check_nothing_is_lost(session, before)


class TakesTime:
    """A sink that is slow to write that a run has failed."""

    write_ahead = False

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    def write(self, record: ToolInvocationRecord) -> None:
        pass

    async def write_run(self, record: RunRecord) -> None:
        if record.status == "failed":
            self.reached.set()
            for _ in range(9):
                await asyncio.sleep(0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelled_while_it_is_written_that_a_run_failed(streamed: bool) -> None:
    sink = TakesTime()
    session, _ = conversation([call("pay", order=1), ProviderError("down"), "Paid."], sink=sink)
    if streamed:
        stream = session.stream("pay")
        async with stream:
            await sink.reached.wait()
        assert isinstance([event async for event in stream][-1], Done)
    else:
        task = asyncio.create_task(session.send("pay"))
        await sink.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [m.content for m in session.messages if m.role == "tool"] == ["paid 1"]
    assert (await session.send("again")).text == "Paid."


@pytest.mark.parametrize("more", [[], [call("pay", order=9)]])
@pytest.mark.parametrize("by_agent", [False, True])
async def test_two_runs_that_wait_go_on_one_after_the_other(
    more: list[Any], by_agent: bool
) -> None:
    """What the first one did by then stands in the conversation of the second."""
    said = [call("refund", order=1), call("refund", order=2), *more, "One.", *more, "Two."]
    session, _ = asking(said)
    session.agent = session.agent.replace(tools=ToolRunner([refund, pay], approver=nobody))
    for waiting in [await session.send("one"), await session.send("two")]:
        answers = {waiting.pending[0].id: Approve(by="grace")}
        if by_agent:
            session.keep(await session.agent.resume(waiting.state, answers))
        else:
            await session.resume(waiting.state, answers)
    paid = ["paid 9"] * len(more)
    assert [m.content for m in session.messages if m.content] == [
        *("one", "refunded 1", *paid, "One."),
        *("two", "refunded 2", *paid, "Two."),
    ]


class Counting(ScriptedClient):
    """A server whose calls have the number that they have in the request as their id."""

    async def chat(self, request: ChatRequest) -> Reply:
        number = sum(len(message.tool_calls) for message in request.messages)
        reply = await super().chat(request)
        calls = tuple(
            msgspec.structs.replace(each, id=f"functions.{each.name}:{at}")
            for at, each in enumerate(reply.tool_calls, number)
        )
        message = msgspec.structs.replace(reply.message, tool_calls=calls)
        return msgspec.structs.replace(reply, message=message)


@pytest.mark.parametrize("how", ["resume", "stream", "keep"])
@pytest.mark.parametrize("first", [0, 1])
async def test_runs_side_by_side_whose_calls_have_one_id(how: str, first: int) -> None:
    """What the one did is not told as what the other did."""
    said: list[Any] = [call("pay", order=7), "Seven.", call("pay", order=8), "Eight."]
    client = Counting([call("refund", order=1), call("refund", order=2), *said, "Nothing."])
    agent = Agent(client, ToolRunner([refund, pay], approver=nobody))
    session = agent.session()
    both = [await session.send("one"), await session.send("two")]
    for waiting in (both[first], both[1 - first]):
        session = Session.from_json(agent, session.to_json())
        answers = {waiting.pending[0].id: Approve(by="grace")}
        if how == "keep":
            session.keep(await agent.resume(waiting.state, answers))
        elif how == "stream":
            await session.resume_stream(waiting.state, answers).result()
        else:
            await session.resume(waiting.state, answers)
    expected = ["refunded 1", "paid 7", "refunded 2", "paid 8"]
    results = {m.call_id: m.content for m in session.messages if m.role == "tool"}
    assert sorted(results.values()) == sorted(expected)
    arguments = [
        (each.arguments, results[each.id]) for m in session.messages for each in m.tool_calls
    ]
    assert all(json.loads(made)["order"] == int(told[-1]) for made, told in arguments)
    await Session.from_json(agent, session.to_json()).send("and now?")
    check_every_wire_takes_it(client.requests[-1])


async def test_messages_that_were_kept_as_a_list_go_on() -> None:
    """What an application has in a table of its own names no runs."""
    client = ScriptedClient([call("refund", order=1), "Well.", "It is refunded."])
    agent = Agent(client, ToolRunner([refund], approver=nobody), instructions="Be kind.")
    before = agent.session()
    waiting = await before.send("refund")
    await before.send("well?")
    session = agent.session(before.messages)
    await session.resume(waiting.state, {waiting.pending[0].id: Approve(by="grace")})
    assert [m.content for m in session.messages if m.content] == [
        *("Be kind.", "refund", "refunded 1", "It is refunded.", "well?", "Well."),
    ]


async def test_a_run_is_not_kept_while_it_goes_on_here() -> None:
    session, _ = asking([call("refund", order=2), "One.", "Two."])
    waiting = await session.send("refund")
    answers = {waiting.pending[0].id: Approve(by="grace")}
    stream = session.resume_stream(waiting.state, answers)
    with pytest.raises(ToolcribError, match="busy with that run"):
        session.keep(waiting)
    with pytest.raises(ToolcribError, match="busy"):
        session.resume_stream(waiting.state, answers)
    assert (await stream.result()).text == session.messages[-1].content == "One."


@pytest.mark.parametrize(
    "wrong", [{"count": 9}, {"count": -1}, {"before": -1}, {"run_id": "run_x"}, {"count": "2"}]
)
async def test_a_saved_session_whose_turns_are_not_its_messages(wrong: Any) -> None:
    session, _ = asking([call("refund", order=2), call("refund", order=3)])
    await session.send("refund")
    await session.send("refund")
    saved = json.loads(session.to_json())
    saved["turns"] = [turn | wrong for turn in saved["turns"]]
    with pytest.raises(SourceError, match="not a saved session"):
        Session.from_json(session.agent, json.dumps(saved))


async def test_a_turn_that_was_not_kept_takes_the_place_of_no_other() -> None:
    """The conversation was reloaded, and went on, since the turn failed."""
    script: list[Any] = ["Hello.", ProviderError("down"), call("refund", order=1), "Late."]
    agent = Agent(ScriptedClient(script), ToolRunner([refund], approver=nobody))
    session = agent.session()
    await session.send("hi")
    session = Session.from_json(agent, session.to_json())
    with pytest.raises(ProviderError) as raised:
        await session.send("well?")
    await session.send("refund")
    before = session.messages
    late = await agent.resume(raised.value.state)
    assert late.text == "Late."
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        session.keep(late)
    assert session.messages == before


async def test_an_application_may_put_messages_behind_the_others() -> None:
    """It may take some away as well; a run whose place is not known any more is refused."""
    said: list[Any] = [call("refund", order=1), call("refund", order=2), "One.", "Two."]
    agent = Agent(ScriptedClient(said), ToolRunner([refund], approver=nobody))
    session = agent.session()
    both = [await session.send("one"), await session.send("two")]
    session.messages = (*session.messages, Message.user("A note."))
    for waiting in both:
        answers = {waiting.pending[0].id: Approve(by="grace")}
        await session.resume(waiting.state, answers)
    expected = ["one", "refunded 1", "One.", "two", "refunded 2", "Two.", "A note."]
    assert [m.content for m in session.messages if m.content] == expected
    session.messages = session.messages[-1:]
    with pytest.raises(ToolcribError, match="belongs to another conversation"):
        await session.resume(both[1].state, {})
    with pytest.raises(TypeError, match="messages must be a list of Message"):
        session.messages = ("text",)  # type: ignore[assignment]


def asking_within(depth: int) -> Agent:
    """Return an agent whose tool asks twice, so many agents further in; what is known of it is in
    its messages alone."""

    def turn(request: ChatRequest) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        return call("ask_and_act", n=said) if said < 2 else "done"

    def calls(request: ChatRequest) -> Any:
        return call("within", prompt="go") if request.messages[-1].role == "user" else "out"

    key, runner = b"k" * 32, ToolRunner([ask_and_act], approver=nobody)
    agent = Agent(ScriptedClient([turn] * 9), runner, state_key=key)
    for at in range(depth):
        risky = at + 1 == depth and depth > 1
        inner = agent.as_tool("within", "Does it.", visible=ALL, safe=not risky)
        runner = ToolRunner([inner], approver=nobody)
        agent = Agent(ScriptedClient([calls] * 9), runner, state_key=key)
    return agent


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("seed", range(12))
async def test_a_state_is_older_whose_run_went_on_within_a_call(depth: int, seed: int) -> None:
    """What was done within a call that still waits stands in no message of the run around it."""
    dice = random.Random(seed)  # noqa: S311  a test
    session = asking_within(depth).session()
    result = await session.send("go")
    states = [result.state.to_json()]
    for _ in range(12):
        if dice.random() < 0.5:
            session = Session.from_json(asking_within(depth), session.to_json())
        at, done = dice.randrange(len(states)), [*world]
        state = RunState.from_json(states[at])
        answers: dict[str, Answer] = {
            each.id: Approve("grace") if dice.random() < 0.5 else Refuse(by="joan")
            for each in state.pending
        }
        try:
            result = await session.resume(state, answers)
        except ToolcribError as error:
            if not re.search(REFUSED, str(error)) or world != done or at == len(states) - 1:
                raise
        else:
            assert at == len(states) - 1
            states.append(result.state.to_json())
            if result.status == "completed":
                break
    assert len(world) == len(set(world))


@pytest.mark.parametrize("yes_here", [True, False])
async def test_a_run_that_went_on_otherwise_within_a_call_is_not_kept(yes_here: bool) -> None:
    agent = asking_within(1)
    session = agent.session()
    first = await session.send("go")
    both: list[Answer] = [Refuse(by="joan"), Approve("grace")]
    here, there = ({first.pending[0].id: both[yes]} for yes in (yes_here, not yes_here))
    second = await session.resume(first.state, here)
    kept = session.to_json()
    session.keep(first)
    parted = await asking_within(1).resume(first.state, there)
    with pytest.raises(ToolcribError, match="continued differently"):
        session.keep(parted)
    with pytest.raises(ToolcribError, match="the state is out of date"):
        await session.resume(parted.state)
    assert session.to_json() == kept
    refused: dict[str, Answer] = {second.pending[0].id: Refuse(by="joan")}
    session.keep(await agent.resume(second.state, refused))
    assert session.messages[-1].content == "out"


async def test_a_session_that_says_nothing_of_what_is_within_goes_on() -> None:
    """As an earlier version saved and signed it, and as a list of messages."""
    agent = asking_within(1)
    saved = agent.session()
    waiting = await saved.send("go")
    older = json.loads(saved.to_json())
    assert older["turns"][0].pop("within")
    signed = canonical_json([older["messages"], older["offered"], older["turns"]])
    older["signature"] = agent.team.signature("toolcrib session", signed)
    answers: dict[str, Answer] = {waiting.pending[0].id: Refuse(by="joan")}
    for session in (
        Session.from_json(asking_within(1), json.dumps(older)),
        asking_within(1).session(saved.messages),
    ):
        second = await session.resume(waiting.state, answers)
        with pytest.raises(ToolcribError, match="the state is out of date"):
            await session.resume(waiting.state, answers)
        again: dict[str, Answer] = {second.pending[0].id: Refuse(by="joan")}
        assert (await session.resume(second.state, again)).text == "out"


@pytest.mark.parametrize("name", ["history", "offered", "speaker"])
async def test_what_a_session_has_itself_is_no_option_and_says_where_it_is(name: str) -> None:
    session = Agent(ScriptedClient(["Hello."])).session()
    given: Any = {name: ""}
    with pytest.raises(
        TypeError,
        match=rf"^{name}= cannot be given to a session, which has its own: session\.[a-z]+",
    ):
        await session.send("Hi.", **given)
    with pytest.raises(TypeError, match=f"^{name}= cannot be given"):
        session.stream("Hi.", **given)
    assert (await session.send("Hi.")).text == "Hello."
