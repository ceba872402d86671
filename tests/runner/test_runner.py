"""The runner: every call ends in one outcome, one record, and never in an exception."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Generator, Iterator
from hashlib import sha256
from typing import Any, Protocol, cast

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    CallContext,
    Caller,
    Catalog,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolError,
    ToolRunner,
    capability,
    hydrate,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.errors import (
    ApprovalError,
    BindingError,
    CapabilityError,
    CatalogError,
    OutcomeUnknown,
    ToolcribError,
)
from toolcrib.hydration import RepairRequest
from toolcrib.policies import ask, budget
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.tools import per_call
from toolcrib.values.context import RunTally
from toolcrib.values.json import key_of
from toolcrib.values.record import Outcome, ToolInvocationRecord

CANARY = "canary-4f1d"


def call_of(name: str, arguments: str = "{}", *, id: str = "call_0") -> ToolCall:
    return ToolCall(id, name, arguments)


@tool(visible=["sum"])
async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b, "hidden": 1}


@tool(visible=ALL)
def add_in_thread(a: int, b: int) -> str:
    """Add, in a thread."""
    return f"{a + b} {threading.current_thread().name}"


@tool(visible=ALL, timeout=0.05)
async def hangs() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return "never"


@tool(visible=ALL, timeout=0.05)
async def stubborn() -> str:
    """Swallow the cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "too late"
    return "never"


@tool(visible=ALL)
async def raises(text: str) -> str:
    """Raise what it is given."""
    raise RuntimeError(text)


@tool(visible=ALL)
async def says(text: str) -> str:
    """Raise safe text."""
    raise ToolError("the shop is closed", retryable=False)


@tool(visible=ALL)
async def lacks() -> str:
    """Fail in a capability."""
    raise CapabilityError("the disk is full")


@tool(visible=ALL)
async def leaves() -> str:
    """Try to end the process."""
    raise SystemExit(CANARY)


@tool(visible=ALL)
async def not_a_number() -> float:
    """Give NaN."""
    return float("nan")


@tool(visible=ALL, output_schema={"type": "object", "required": ["x"]})
async def lies() -> dict[str, str]:
    """Give another result than promised."""
    return {CANARY: CANARY}


@tool(visible=ALL, safe=False)
async def deletes(path: str) -> str:
    """Delete something."""
    return f"deleted {path}"


@tool(visible=ALL, allowed_roles=["admin"])
async def for_admins() -> str:
    """Only for administrators."""
    return "done"


@tool(visible=[], secret=["password"])
async def login(user: str, password: str) -> dict[str, str]:
    """Log in."""
    return {"token": CANARY}


TOOLS = [
    add,
    add_in_thread,
    hangs,
    stubborn,
    raises,
    says,
    lacks,
    leaves,
    not_a_number,
    lies,
    deletes,
    for_admins,
    login,
]


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def runner(sink: MemorySink) -> ToolRunner:
    return ToolRunner(TOOLS, sinks=[sink])


async def test_a_call_runs_and_gives_three_views(runner: ToolRunner, sink: MemorySink) -> None:
    outcome = await runner.exec(call_of("add", '{"a": 1, "b": 2}'), caller=Caller("ada"))
    assert isinstance(outcome, Completed)
    assert outcome.value == {"sum": 3, "hidden": 1}
    assert outcome.model == {"sum": 3, "hidden": 1}
    assert outcome.public == {"sum": 3}
    record = outcome.record
    assert sink.records == [record]
    assert (record.status, record.name, record.caller) == ("completed", "add", "ada")
    assert record.arguments == {"a": 1, "b": 2}
    assert record.result == {"sum": 3}
    assert isinstance(record.decision, Allow)
    assert record.decision.policy == "standard"
    assert record.definition_digest == add.definition.digest
    assert record.validated
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at
    assert record.seconds is not None
    assert record.seconds >= 0


async def test_a_plain_function_runs_in_a_thread_of_its_own(runner: ToolRunner) -> None:
    outcome = await runner.exec(call_of("add_in_thread", '{"a": 1, "b": 2}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == "3 toolcrib-work"


FAILURES: list[tuple[str, str, ErrorCode, str]] = [
    ("nobody", "{}", ErrorCode.UNKNOWN_TOOL, "There is no tool of that name"),
    ("add", "{", ErrorCode.INVALID_JSON, "not valid JSON"),
    ("add", '{"a": NaN, "b": 1}', ErrorCode.INVALID_JSON, "not valid JSON"),
    ("add", '{"a": 1e400, "b": 1}', ErrorCode.INVALID_JSON, "out of the range"),
    ("add", '{"a": 1, "a": 2, "b": 1}', ErrorCode.INVALID_JSON, "appears twice"),
    ("add", '{"a": "' + "x" * 10_000_000 + '"}', ErrorCode.TOO_LARGE, "1048576 bytes"),
    ("add", '{"a": "x", "b": 1}', ErrorCode.INVALID_ARGUMENTS, "expected integer, got string"),
    ("hangs", "{}", ErrorCode.TIMEOUT, "within its time limit"),
    ("stubborn", "{}", ErrorCode.TIMEOUT, "within its time limit"),
    ("raises", f'{{"text": "{CANARY}"}}', ErrorCode.TOOL_ERROR, "The tool failed."),
    ("says", f'{{"text": "{CANARY}"}}', ErrorCode.TOOL_ERROR, "the shop is closed"),
    ("lacks", "{}", ErrorCode.CAPABILITY_ERROR, "the disk is full"),
    ("leaves", "{}", ErrorCode.TOOL_ERROR, "The tool failed."),
    ("not_a_number", "{}", ErrorCode.INVALID_OUTPUT, "it is not JSON"),
    ("lies", "{}", ErrorCode.INVALID_OUTPUT, "required property 'x'"),
    ("deletes", '{"path": "x"}', ErrorCode.APPROVAL_REQUIRED, "needs an approval"),
    ("for_admins", "{}", ErrorCode.DENIED, "not permitted"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "text"), FAILURES, ids=[f"{f[0]}-{f[2]}" for f in FAILURES]
)
async def test_each_failure_has_its_name_and_one_record(
    runner: ToolRunner, sink: MemorySink, name: str, arguments: str, code: ErrorCode, text: str
) -> None:
    outcome = await runner.exec(call_of(name, arguments))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is code
    assert text in outcome.error.message
    assert [r.status for r in sink.records] == ["failed"]
    assert sink.records[0].error == outcome.error
    if name not in ("raises", "says"):  # those were given the canary as a public argument
        assert CANARY not in str(outcome)
    assert CANARY not in str(outcome.error)


async def test_a_cut_call_never_runs(runner: ToolRunner) -> None:
    outcome = await runner.exec(ToolCall("call_0", "add", '{"a": 1, "b": 2}', complete=False))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TRUNCATED


async def test_of_a_call_that_is_not_valid_only_length_and_digest_are_kept(
    sink: MemorySink,
) -> None:
    text = f'{{"a": "{CANARY}", "{CANARY}": 1}}'
    await ToolRunner([add], sinks=[sink]).exec(call_of("add", text))
    record = sink.records[0]
    assert record.arguments is None
    assert record.arguments_bytes == 38
    assert record.arguments_sha256 == sha256(text.encode()).hexdigest()
    assert CANARY not in str(record)


@each_row(
    "call",
    [
        ToolCall("call_0", "logn", '{"password": "1"}'),  # a name that no tool has
        ToolCall("call_0", "add", '{"password": "1"}'),  # another tool
        ToolCall("call_0", "login", '{"password": "1"'),
        ToolCall("call_0", "login", '{"password": "1", "user": "u"}'),
    ],
)
async def test_no_secret_can_be_guessed_from_a_digest_of_what_was_sent(call: ToolCall) -> None:
    """Whatever tool the model named: with a plain SHA-256, who reads the record could try all."""
    sink = MemorySink()
    await ToolRunner([add, login], sinks=[sink]).exec(call)
    record = sink.records[-1]
    assert record.arguments_sha256 == ""
    assert len(record.arguments_mac) > 40


async def test_secret_arguments_and_results_are_masked(
    runner: ToolRunner, sink: MemorySink
) -> None:
    outcome = await runner.exec(call_of("login", f'{{"user": "u", "password": "{CANARY}"}}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == {"token": CANARY}
    assert sink.records[0].arguments == {"user": "u", "password": "***"}
    assert sink.records[0].result == {}
    assert CANARY not in str(sink.records)


async def test_roles_let_a_caller_through(runner: ToolRunner) -> None:
    outcome = await runner.exec(call_of("for_admins"), caller=Caller("root", ("admin",)))
    assert isinstance(outcome, Completed)


async def test_a_policy_that_raises_denies(sink: MemorySink) -> None:
    def broken(_call: Hydrated, _context: PolicyContext) -> Allow:
        raise RuntimeError(CANARY)

    outcome = await ToolRunner([add], policy=broken, sinks=[sink]).exec(
        call_of("add", '{"a": 1, "b": 2}')
    )
    assert isinstance(outcome, Failed)
    assert sink.records[0].decision == Deny("the policy failed", "broken")
    assert CANARY not in str(sink.records)


async def test_a_call_hydrated_against_another_tool_does_not_run() -> None:
    @tool(visible=ALL, name="add")
    async def other(a: int, b: int) -> int:
        """Another tool of the same name."""
        return a - b

    hydrated = hydrate(call_of("add", '{"a": 1, "b": 2}'), Catalog([other]))
    outcome = await ToolRunner([add]).exec(hydrated)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.NOT_RUNNABLE


async def test_definition_only_tools_are_not_runnable_and_handlers_make_them_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    definition = {
        "name": "greet",
        "description": "Greet somebody.",
        "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    known = await ToolRunner(Catalog.from_definitions([definition])).exec(call_of("greet"))
    assert isinstance(known, Failed)
    assert known.error.code is ErrorCode.NOT_RUNNABLE
    [told] = caplog.messages  # for the author: the model can do nothing about it
    assert "'greet' cannot be run" in told
    assert "handlers={'greet': …}" in told

    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    runnable = Catalog.from_definitions([definition], handlers={"greet": greet})
    outcome = await ToolRunner(runnable).exec(call_of("greet", '{"name": "ada"}'))
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.public) == ("hello ada", None)


def test_what_is_not_bound_fails_before_anything_runs() -> None:
    @capability
    class Clock(Protocol):
        def now(self) -> float: ...

    @tool(visible=ALL)
    async def needs_clock(clock: Clock) -> float:
        """Tell the time."""
        return clock.now()

    with pytest.raises(BindingError, match="tool 'needs_clock' needs Clock"):
        ToolRunner([needs_clock])


async def test_a_tool_is_told_of_its_call() -> None:
    seen: list[CallContext] = []

    @tool(visible=ALL, timeout=5)
    async def curious(ctx: CallContext) -> str:
        """Look at its own call."""
        seen.append(ctx)
        ctx.progress("half")
        return "done"

    await ToolRunner([curious]).exec(call_of("curious", id="call_9"), caller=Caller("ada"))
    assert (seen[0].call_id, seen[0].idempotency_key) == ("call_9", key_of("", "call_9"))
    assert seen[0].caller == Caller("ada")
    assert seen[0].deadline is not None


async def test_cancelling_reaches_the_tool_and_is_recorded(sink: MemorySink) -> None:
    reached = asyncio.Event()
    entered = asyncio.Event()

    @tool(visible=ALL)
    async def waits() -> str:
        """Wait to be cancelled."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            reached.set()
        return "never"

    task = asyncio.ensure_future(ToolRunner([waits], sinks=[sink]).exec(call_of("waits")))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached.is_set()
    assert [r.error.code for r in sink.records if r.error] == [ErrorCode.CANCELLED]


async def test_calls_of_one_reply_run_together_and_come_back_in_order() -> None:
    together = asyncio.Barrier(3)

    @tool(visible=ALL)
    async def meet(n: int) -> int:
        """Wait for the others."""
        await together.wait()
        return n

    calls = [call_of("meet", f'{{"n": {n}}}', id=f"call_{n}") for n in range(3)]
    outcomes = await ToolRunner([meet]).exec_all(calls)
    assert [o.value for o in outcomes if isinstance(o, Completed)] == [0, 1, 2]


@each_row("count", [1, 3])
@each_row("scope", [CallScope(RunTally("run_1")), None])
async def test_calls_of_one_reply_are_of_one_caller_and_one_run(
    count: int, scope: CallScope | None
) -> None:
    seen: list[PolicyContext] = []

    def look(_hydrated: Hydrated, context: PolicyContext) -> Allow:
        seen.append(context)
        return Allow()

    sink = MemorySink()
    runner = ToolRunner([add], policy=look, sinks=[sink])
    calls = [call_of("add", '{"a": 1, "b": 2}', id=f"call_{n}") for n in range(count)]
    began = time.monotonic()
    await runner.exec_all(calls, caller=Caller("ada"), scope=scope)
    assert [r.caller for r in sink.records] == ["ada"] * count
    assert {context.caller for context in seen} == {Caller("ada")}
    tally = seen[0].run
    assert all(context.run is tally for context in seen)
    assert (tally is scope.tally) if scope else (began <= tally.started <= time.monotonic())
    await runner.exec(call_of("add", '{"a": 1, "b": 2}', id="alone"), scope=scope)
    tally = seen[-1].run
    assert (tally is scope.tally) if scope else (began <= tally.started <= time.monotonic())


async def test_calls_that_are_cancelled_before_they_begin_are_recorded_as_their_callers() -> None:
    sink = MemorySink()
    calls = [call_of("add", '{"a": 1, "b": 2}', id=f"call_{n}") for n in range(2)]
    given = [*calls, *(hydrate(call_of("add", text, id="h"), [add]) for text in ("{}",))]
    scope = CallScope(RunTally("run_1"))

    async def later(_request: ApprovalRequest) -> None:
        return None

    runner = ToolRunner([add, take], policy=ask("take"), approver=later, sinks=[sink])
    await runner.exec(call_of("take", '{"x": {"text": "a"}}', id="waits"), scope=scope)
    task = asyncio.ensure_future(runner.exec_all(given, caller=Caller("ada"), scope=scope))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    told = [(r.id, r.caller, r.run_id, r.error and r.error.code) for r in sink.records]
    assert told == [
        ("waits", "anonymous", "run_1", None),
        ("call_0", "ada", "run_1", ErrorCode.CANCELLED),
        ("call_1", "ada", "run_1", ErrorCode.CANCELLED),
        ("h", "ada", "run_1", ErrorCode.INVALID_ARGUMENTS),
    ]


async def test_a_call_within_a_call_is_recorded_as_such_though_it_does_not_run() -> None:
    sink = MemorySink()
    inner = call_of("add", '{"a": 1, "b": 2}', id="inner")

    @tool(visible=ALL)
    async def outer() -> None:
        """Call the runner."""
        await both.exec(inner, scope=CallScope(RunTally("below")))
        refused = hydrate(call_of("add", '{"a": 1, "b": 2}', id="refused"), [add])
        await both.refuse_all([refused], scope=CallScope(RunTally("below")))

    both = ToolRunner([outer, add], sinks=[sink])
    await both.exec(call_of("outer", id="outer"), scope=CallScope(RunTally("above")))
    told = {r.id: (r.status, r.parent_run_id, r.parent_call_id) for r in sink.records}
    assert told == {
        "inner": ("completed", "above", "outer"),
        "refused": ("failed", "above", "outer"),
        "outer": ("completed", "", ""),
    }


async def test_a_sink_that_raises_ends_a_reply_when_all_of_its_calls_are_over() -> None:
    over: list[int] = []

    @tool(visible=ALL)
    async def tidies(n: int) -> None:
        """Take its time to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            over.append(n)

    class Full(MemorySink):
        def write(self, record: ToolInvocationRecord) -> None:
            if record.name == "add":
                raise OSError("full")
            super().write(record)

    sink = Full()
    calls = [call_of("tidies", f'{{"n": {n}}}', id=f"call_{n}") for n in range(2)]
    calls.append(call_of("add", '{"a": 1, "b": 2}', id="add"))
    with pytest.raises(OSError, match="full"):
        await ToolRunner([tidies, add], sinks=[sink]).exec_all(calls)
    assert over == [0, 1]
    assert [r.error and r.error.code for r in sink.records] == [ErrorCode.CANCELLED] * 2


def next_number() -> int:
    RAN.append("made")
    return len(RAN)


@dataclasses.dataclass
class Numbered:
    text: str
    number: int = dataclasses.field(default_factory=next_number)


@tool(visible=ALL)
async def take(x: Numbered) -> int:
    """Take it."""
    return x.number


class Mends:
    name = "mends"

    async def __call__(self, _request: RepairRequest) -> str:
        return '{"x": {"text": "a"}}'


@each_row("sent", ['{"x": {"text": "a"}}', '{"x": {"text": 7}}'])
async def test_what_factories_made_of_a_call_before_is_used_again(sent: str) -> None:
    RAN.clear()
    runner = ToolRunner([take], repairer=Mends())
    before = await runner.hydrate(call_of("take", sent))
    assert isinstance(before, Hydrated)
    again = await runner.hydrate(call_of("take", sent), pinned=before.building.pinned)
    assert isinstance(again, Hydrated)
    assert (again.canonical, len(RAN)) == (before.canonical, 1)
    assert again.provenance.repaired is ("7" in sent)


def test_of_some_tools_a_runner_knows_for_whom_they_are(runner: ToolRunner) -> None:
    definition = for_admins.get_definition()
    for roles in ((), ("admin",)):
        context = PolicyContext(Caller("ada", roles), RunTally())
        assert (runner.never_allows(definition, context) is None) is bool(roles)


async def test_an_exclusive_tool_runs_alone() -> None:
    running: set[str] = set()
    seen: list[set[str]] = []

    async def enter(name: str) -> str:
        running.add(name)
        await asyncio.sleep(0.001)
        seen.append(set(running))
        running.discard(name)
        return name

    @tool(visible=ALL)
    async def shared(name: str) -> str:
        """Run with others."""
        return await enter(name)

    @tool(visible=ALL, exclusive=True)
    async def alone(name: str) -> str:
        """Run alone."""
        return await enter(name)

    names = ["s1", "s2", "a1", "s3", "a2", "s4"]
    calls = [
        call_of("alone" if n[0] == "a" else "shared", f'{{"name": "{n}"}}', id=n) for n in names
    ]
    outcomes = await ToolRunner([shared, alone]).exec_all(calls)
    assert [o.value for o in outcomes if isinstance(o, Completed)] == names
    for group in seen:
        assert len(group) == 1 or not any(n.startswith("a") for n in group)
    assert any(len(group) > 1 for group in seen)


async def test_no_more_than_the_limit_run_together() -> None:
    running = 0
    most = 0

    @tool(visible=ALL)
    async def counted() -> int:
        """Count who runs."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return most

    await ToolRunner([counted], concurrency=3).exec_all(
        call_of("counted", id=f"c{n}") for n in range(20)
    )
    assert most == 3


async def test_cancelling_a_waiting_call_frees_its_place() -> None:
    release = asyncio.Event()

    @tool(visible=ALL)
    async def holds() -> str:
        """Hold the only place."""
        await release.wait()
        return "done"

    runner = ToolRunner([holds], concurrency=1)
    first = asyncio.ensure_future(runner.exec(call_of("holds", id="c1")))
    second = asyncio.ensure_future(runner.exec(call_of("holds", id="c2")))
    third = asyncio.ensure_future(runner.exec(call_of("holds", id="c3")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    outcomes: list[Outcome] = [await first, await third]
    assert all(isinstance(outcome, Completed) for outcome in outcomes)


async def test_a_sink_that_waits_is_awaited_and_may_ask_for_entries_ahead() -> None:
    class Slow:
        write_ahead = True

        def __init__(self) -> None:
            self.seen: list[str] = []

        async def write(self, record: ToolInvocationRecord) -> None:
            await asyncio.sleep(0)
            self.seen.append(record.status)

    slow = Slow()
    await ToolRunner([add], sinks=[slow]).exec(call_of("add", '{"a": 1, "b": 2}'))
    assert slow.seen == ["started", "completed"]


async def test_an_intent_that_cannot_be_written_stops_the_call() -> None:
    ran: list[int] = []

    class Broken:
        write_ahead = True

        async def write(self, record: ToolInvocationRecord) -> None:
            if record.status == "started":
                raise OSError("disk full")

    @tool(visible=ALL)
    async def effect() -> int:
        """Have an effect."""
        ran.append(1)
        return 1

    with pytest.raises(OSError, match="disk full"):
        await ToolRunner([effect], sinks=[Broken()]).exec(call_of("effect"))
    assert ran == []


async def test_what_a_tool_raised_can_be_seen_by_the_application_only() -> None:
    seen: list[BaseException] = []
    runner = ToolRunner([raises], on_exception=lambda _call, error: seen.append(error))
    outcome = await runner.exec(call_of("raises", '{"text": "why"}'))
    assert isinstance(outcome, Failed)
    assert [str(error) for error in seen] == ["why"]


RESULTS: list[tuple[Any, Any]] = [
    ("text", "text"),
    (None, None),
    (2**70, 2**70),
    ([1, {"a": (2, 3)}], [1, {"a": [2, 3]}]),
    ({"when": __import__("datetime").date(2026, 1, 2)}, {"when": "2026-01-02"}),
]


async def test_a_tool_that_names_no_time_limit_has_that_of_its_runner() -> None:
    @tool(visible=ALL)
    async def waits() -> None:
        """Wait for nobody."""
        await asyncio.Event().wait()

    outcome = await ToolRunner([waits], timeout=0.01).exec(call_of("waits"))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT


async def test_a_cancellation_of_before_a_call_is_not_the_calls() -> None:
    """A task that goes on though it was cancelled runs tools as ever, whatever these raise."""

    @tool(visible=ALL)
    async def stops() -> None:
        """Raise what only a task's canceller should."""
        raise asyncio.CancelledError

    async def goes_on() -> Outcome:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await ToolRunner([stops]).exec(call_of("stops"))

    task = asyncio.ensure_future(goes_on())
    await asyncio.sleep(0)
    task.cancel()
    outcome = await task
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TOOL_ERROR


class Later:
    def __await__(self) -> Generator[Any, None, int]:
        yield from asyncio.sleep(0).__await__()
        return 7


async def test_whatever_can_be_awaited_is_awaited() -> None:
    @tool(visible=ALL)
    def gives() -> Any:
        """Give what can be awaited."""
        return Later()

    outcome = await ToolRunner([gives]).exec(call_of("gives"))
    assert isinstance(outcome, Completed)
    assert outcome.value == 7


async def test_a_result_may_be_as_large_as_a_runner_was_told() -> None:
    @tool(visible=ALL)
    async def repeats(text: str) -> str:
        """Say it again."""
        return text

    told: list[tuple[str, str]] = []
    runner = ToolRunner(
        [repeats],
        max_result_bytes=10,
        on_exception=lambda call, raised: told.append((call.id, str(raised))),
    )
    fits = await runner.exec(call_of("repeats", '{"text": "12345678"}', id="fits"))
    large = await runner.exec(call_of("repeats", '{"text": "123456789"}', id="large"))
    assert isinstance(fits, Completed)
    assert isinstance(large, Failed)
    assert large.error.code is ErrorCode.INVALID_OUTPUT
    assert told == [("large", "it is larger than 10 bytes")]


async def test_an_iterator_is_no_result() -> None:
    @tool(visible=ALL)
    async def endless() -> Any:
        """Count for ever."""
        return itertools.count()

    outcome = await ToolRunner([endless]).exec(call_of("endless"))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT


@each_row(("value", "plain"), RESULTS, ids=[str(r[0])[:20] for r in RESULTS])
async def test_results_become_json(value: Any, plain: Any) -> None:
    @tool(visible=ALL)
    async def gives() -> Any:
        """Give it."""
        return value

    outcome = await ToolRunner([gives]).exec(call_of("gives"))
    assert isinstance(outcome, Completed)
    assert outcome.value == value
    assert outcome.model == outcome.public == plain


@capability
class Shop(Protocol):
    def open(self) -> bool: ...


class Open:
    def open(self) -> bool:
        return True


AGAIN: list[tuple[str, dict[str, Any], ErrorCode, bool]] = [
    ("hang", {}, ErrorCode.TIMEOUT, False),
    ("hang", {"idempotent": True}, ErrorCode.TIMEOUT, True),
    ("hang", {"read_only": True}, ErrorCode.TIMEOUT, True),
    ("raise", {}, ErrorCode.TOOL_ERROR, False),
    ("raise", {"idempotent": True}, ErrorCode.TOOL_ERROR, True),
    ("say", {}, ErrorCode.TOOL_ERROR, False),
    ("say", {"read_only": True}, ErrorCode.TOOL_ERROR, True),
    ("say again", {}, ErrorCode.TOOL_ERROR, True),
    ("say never", {"idempotent": True}, ErrorCode.TOOL_ERROR, False),
    ("lose", {}, ErrorCode.OUTCOME_UNKNOWN, False),
    ("lose", {"idempotent": True}, ErrorCode.OUTCOME_UNKNOWN, True),
    ("lose", {"read_only": True}, ErrorCode.OUTCOME_UNKNOWN, True),
    ("lack", {}, ErrorCode.CAPABILITY_ERROR, False),
    ("lack", {"idempotent": True}, ErrorCode.CAPABILITY_ERROR, True),
    ("open", {}, ErrorCode.CAPABILITY_ERROR, True),
    ("close", {}, ErrorCode.CAPABILITY_ERROR, False),
    ("close", {"idempotent": True}, ErrorCode.CAPABILITY_ERROR, True),
    ("close again", {}, ErrorCode.CAPABILITY_ERROR, False),
    ("close again", {"idempotent": True}, ErrorCode.CAPABILITY_ERROR, True),
    ("close never", {"idempotent": True}, ErrorCode.CAPABILITY_ERROR, False),
    ("open lost", {}, ErrorCode.CAPABILITY_ERROR, True),
    ("close lost", {}, ErrorCode.OUTCOME_UNKNOWN, False),
    ("lie", {"idempotent": True}, ErrorCode.INVALID_OUTPUT, False),
]


@each_row(("how", "marks", "code", "again"), AGAIN)
async def test_what_may_have_happened_is_not_tried_again_unless_it_may_be(
    how: str, marks: dict[str, Any], code: ErrorCode, again: bool
) -> None:
    @contextlib.contextmanager
    def opened() -> Iterator[Open]:
        lost = OutcomeUnknown if how.endswith("lost") else CapabilityError
        if how.startswith("open"):
            raise lost("closed")
        yield Open()
        if how.startswith("close"):
            raise lost("closed", retryable={"close": None}.get(how, how == "close again"))

    @tool(visible=ALL, timeout=0.05, **marks)
    async def f(shop: Shop) -> str:
        """Fail in some way."""
        match how:
            case "hang":
                await asyncio.Event().wait()
            case "raise":
                raise ValueError(how)
            case "say" | "say again" | "say never":
                raise ToolError("no", retryable={"say": None}.get(how, how == "say again"))
            case "lose" | "lack":
                raise {"lose": OutcomeUnknown, "lack": CapabilityError}[how]("no")
            case "lie":
                return cast("str", object())
        return "done"

    runner = ToolRunner(Catalog([f]).bind({Shop: per_call(opened)}))
    outcome = await runner.exec(call_of("f"))
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, again)
    assert outcome.record.error == outcome.error
    assert ("The tool ran" in outcome.error.message) is (code is ErrorCode.INVALID_OUTPUT)


@tool(visible=ALL)
async def f() -> int:
    """Do it."""
    return 1


@each_row(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency is a whole number from 1"),
        ({"concurrency": 1.5}, "concurrency is a whole number from 1"),
        ({"concurrency": True}, "concurrency is a whole number from 1"),
        ({"remember": -1}, "remember is a whole number from 0"),
        ({"max_result_bytes": 0}, "max_result_bytes is a whole number from 1"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": math.nan}, "timeout is a number of seconds above 0"),
        ({"timeout": "5"}, "timeout is a number of seconds above 0"),
        ({"approval_seconds": math.nan}, "approval_seconds is a number of seconds above 0"),
        ({"approval_seconds": math.inf}, "approval_seconds is a number of seconds above 0"),
        ({"approval_seconds": -1}, "approval_seconds is a number of seconds above 0"),
        ({"sinks": [print]}, "builtin_function_or_method is not"),
        ({"sinks": [MemorySink]}, "MemorySink is not"),
        ({"sinks": MemorySink()}, "sinks is a list"),
        ({"on_exception": "print"}, "on_exception is a plain function"),
        ({"on_exception": MemorySink}, "on_exception is a plain function"),
        ({"on_exception": f.__wrapped__}, "on_exception is a plain function"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolcribError, match=told):
        ToolRunner([f], **options)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
async def test_what_a_sink_gives_is_nobodys(later: bool, ahead: bool) -> None:
    taken: list[ToolInvocationRecord] = []

    class Giving:
        write_ahead = ahead

        def write(self, record: ToolInvocationRecord) -> Any:
            taken.append(record)

            async def five() -> int:
                return 5

            return five() if later else 5

    outcome = await ToolRunner(TOOLS, sinks=[Giving()]).exec(call_of("add", '{"a": 1, "b": 2}'))
    assert isinstance(outcome, Completed)
    assert taken[ahead:] == [outcome.record]


async def test_sinks_that_can_be_read_only_once_are_told() -> None:
    sink = MemorySink()
    sinks: Any = (s for s in [sink])
    await ToolRunner([f], sinks=sinks).exec(ToolCall("c", "f", "{}"))
    assert len(sink.records) == 1


RAN: list[str] = []


@tool(visible=ALL)
async def first(text: str) -> str:
    """The first."""
    RAN.append(text)
    return text


@tool(visible=ALL)
async def second(text: str) -> str:
    """The second."""
    return f"second {text}"


@capability
class Store(Protocol):
    async def get(self) -> str: ...


@tool(visible=ALL)
async def needy(store: Store) -> str:
    """It needs something."""
    return await store.get()


def call_of_tools(name: str, number: int) -> ToolCall:
    return ToolCall(f"c{number}", name, '{"text": "x"}')


async def test_it_shares_policies_sinks_and_the_memory_of_calls() -> None:
    RAN.clear()
    sink = MemorySink()
    one = ToolRunner([first], policy=budget(calls=3, per="caller"), sinks=[sink])
    two = one.with_tools(second)
    assert (one.catalog.names, two.catalog.names) == (("first",), ("first", "second"))
    outcomes = [
        await one.exec(call_of_tools("first", 1)),
        await two.exec(call_of_tools("first", 1)),
        await two.exec(call_of_tools("second", 2)),
        await two.exec(call_of_tools("first", 3)),
        await one.exec(call_of_tools("first", 4)),
    ]
    assert [o.record.status for o in outcomes] == ["completed"] * 4 + ["failed"]
    assert RAN == ["x", "x"]  # the second time it was the same call
    assert [r.id for r in sink.records] == ["c1", "c2", "c3", "c4"]
    assert (
        await one.exec(call_of_tools("second", 5))
    ).record.status == "failed"  # it knows no such tool
    three = two.over([second])
    assert three.catalog.names == ("second",)
    spent = await three.exec(call_of_tools("second", 6))
    assert isinstance(spent, Failed)
    assert spent.error.code is ErrorCode.BUDGET_EXCEEDED


async def test_further_sinks_and_another_approver_are_one_runners_own() -> None:
    RAN.clear()
    first_sink, more = MemorySink(), MemorySink()
    one = ToolRunner([first], sinks=[first_sink], policy=[lambda *_: Ask("why")])

    async def yes(request: ApprovalRequest) -> Approve:
        return Approve(by=f"for {request.tool}")

    two = one.with_sinks(more).with_approver(yes)
    assert (one.approver, two.approver) == (None, yes)
    refused = await one.exec(call_of_tools("first", 1))
    assert [r.error and r.error.code for r in first_sink.records] == [ErrorCode.APPROVAL_REQUIRED]
    assert more.records == []
    done = await two.exec(call_of_tools("first", 2))
    assert (refused.record.status, done.record.status) == ("failed", "completed")
    assert [r.approved_by for r in more.finished()] == ["for first"]
    assert first_sink.finished()[1:] == more.finished()
    assert (await one.exec(call_of_tools("first", 2))).record == done.record
    assert RAN == ["x"]
    with pytest.raises(ToolcribError, match="a sink must be an object"):
        one.with_sinks(cast("Any", object()))
    with pytest.raises(ApprovalError):
        one.with_approver(cast("Any", lambda _request: None))


async def test_a_ledger_that_is_a_further_sink_begins_the_calls() -> None:
    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([first], sinks=[MemorySink()]).with_sinks(log)
        await runner.exec(call_of_tools("first", 1))
        assert [e.record.status for e in await log.entries()] == ["started", "completed"]
        again = ToolRunner([first], sinks=[log])
        outcome = await again.exec(call_of_tools("first", 1))
        assert isinstance(outcome, Completed)
        assert outcome.replayed


def test_a_name_that_is_taken_and_a_need_that_nobody_meets() -> None:
    runner = ToolRunner([first])
    with pytest.raises(CatalogError, match="two tools are called 'first'"):
        runner.with_tools(first)
    with pytest.raises(BindingError, match="needy"):
        runner.with_tools(needy)
