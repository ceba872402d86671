"""What tools, policies, approvers and sinks may do wrong: still one outcome and one true record."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any

import pytest
from named import named
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Approve,
    CallContext,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.errors import ToolcribError
from toolcrib.hydration import hydrate
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import JsonValue
from toolcrib.values.record import Outcome, ToolInvocationRecord
from toolcrib.values.run import RunRecord

CANARY = "canary-77aa"


class Watch:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def approval_requested(self, request: ApprovalRequest) -> None:
        self.told.append(request)

    def progress(self, call_id: str, part: JsonValue) -> None:
        self.told.append(part)

    def finished(self, outcome: Outcome) -> None:
        self.told.append(outcome)


@tool(visible=ALL, name="f", safe=False)
async def risky(given: dict[str, Any]) -> int:
    """Do it."""
    given["secret"] = CANARY
    return 1


def context_of(error: BaseException) -> str:
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        seen.append(found)
        found = found.__cause__ or found.__context__
    return repr(seen)


async def exec_one(
    target: Any, arguments: str = "{}", **options: Any
) -> tuple[Outcome, MemorySink]:
    sink = MemorySink()
    outcome = await ToolRunner([target], sinks=[sink], **options).exec(
        ToolCall("call_0", "f", arguments)
    )
    assert sink.records == [outcome.record]
    return outcome, sink


async def awaits_something_cancelled() -> int:
    """Await a task that somebody else has cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(10))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return 1


async def raises_cancelled() -> int:
    """Raise it."""
    raise asyncio.CancelledError


def raises_cancelled_in_a_thread() -> int:
    """Raise it."""
    raise asyncio.CancelledError


async def raises_an_error_as_safe_text() -> int:
    """Pass an exception on as text, by mistake."""
    raise ToolError(ValueError(CANARY))  # type: ignore[arg-type]


class PanicError(BaseException):
    """As a library in Rust raises it (pyo3's PanicException): no Exception."""


async def panics() -> int:
    """Call into such a library."""
    raise PanicError(CANARY)


def panics_in_a_thread() -> int:
    """Call into such a library."""
    raise PanicError(CANARY)


def raises_generator_exit_in_a_thread() -> int:
    """Raise what would close a coroutine that awaits it."""
    raise GeneratorExit


async def raises_generator_exit() -> int:
    """Raise what looks like the end of the event loop."""
    raise GeneratorExit


async def raises_generator_exit_later() -> int:
    """Raise it when it has waited."""
    await asyncio.sleep(0)
    raise GeneratorExit


async def raises_a_group() -> int:
    """As a task group does whose task panicked."""
    raise BaseExceptionGroup(CANARY, [PanicError(CANARY)])


class ClasslessError(Exception):
    """Raises when somebody asks what it is."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(CANARY)


async def raises_what_has_no_class() -> int:
    """Raise it."""
    raise ClasslessError


async def fails_without_a_class(*_: object) -> Any:
    raise ClasslessError


def raises_what_has_no_class_in_a_thread() -> int:
    """Raise it."""
    raise ClasslessError


def fails_without_a_class_at_once(*_: object) -> Any:
    raise ClasslessError


@each_row(
    "function",
    [
        awaits_something_cancelled,
        raises_cancelled,
        raises_cancelled_in_a_thread,
        panics,
        panics_in_a_thread,
        raises_generator_exit_in_a_thread,
        raises_generator_exit,
        raises_generator_exit_later,
        raises_a_group,
        raises_an_error_as_safe_text,
        raises_what_has_no_class,
        raises_what_has_no_class_in_a_thread,
    ],
)
async def test_a_tool_that_fails_oddly_has_failed(function: Any) -> None:
    outcome, sink = await exec_one(tool(visible=ALL, description="It runs.", name="f")(function))
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.message) == (
        ErrorCode.TOOL_ERROR,
        "The tool failed.",
    )
    assert CANARY not in repr(sink.records)


@pytest.mark.parametrize("fails", [False, True], ids=["well", "a sink fails"])
async def test_an_interrupt_passes_and_leaves_a_record(fails: bool) -> None:
    sink = MemorySink()
    sinks: list[Any] = [BadSink(), sink] if fails else [sink]

    @tool(visible=ALL)
    async def f() -> int:
        """Be interrupted at the keyboard."""
        raise KeyboardInterrupt

    running = ToolRunner([f], sinks=sinks).exec(ToolCall("call_0", "f", "{}"))
    with pytest.raises(KeyboardInterrupt):
        running.send(None)  # by hand: a task would pass it on to the event loop
    assert [r.error and r.error.code for r in sink.records] == [ErrorCode.CANCELLED]


async def test_safe_text_can_always_be_encoded() -> None:
    async def f() -> int:
        """Fail."""
        raise ToolError("a\ud800")

    outcome, _ = await exec_one(tool(visible=ALL)(f))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "a?"


async def test_a_wrapped_coroutine_function_is_awaited() -> None:
    async def f(x: int) -> int:
        """Add one."""
        await asyncio.sleep(0)
        return x + 1

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        """Wrapped."""
        return f(*args, **kwargs)

    outcome, _ = await exec_one(tool(visible=ALL)(wrapped), '{"x": 1}')
    assert isinstance(outcome, Completed)
    assert outcome.value == 2


def answering(answer: Any) -> Callable[[ApprovalRequest], Awaitable[Any]]:
    async def approver(_request: ApprovalRequest) -> Any:
        return answer

    return approver


async def cancelled_approver(_request: ApprovalRequest) -> Any:
    raise asyncio.CancelledError


async def exiting_approver(_request: ApprovalRequest) -> Any:
    raise GeneratorExit


async def exiting_approver_later(_request: ApprovalRequest) -> Any:
    await asyncio.sleep(0)
    raise GeneratorExit


@each_row(
    ("approver", "code"),
    [
        (answering(True), ErrorCode.APPROVAL_FAILED),
        (answering("yes"), ErrorCode.APPROVAL_FAILED),
        (cancelled_approver, ErrorCode.APPROVAL_FAILED),
        (exiting_approver, ErrorCode.APPROVAL_FAILED),
        (fails_without_a_class, ErrorCode.APPROVAL_FAILED),
        (exiting_approver_later, ErrorCode.APPROVAL_FAILED),
        (answering(Approve("x", {"given": {1, 2}})), ErrorCode.INVALID_ARGUMENTS),  # type: ignore[dict-item]
        (answering(Approve("x", {"given": float("nan")})), ErrorCode.INVALID_ARGUMENTS),
    ],
)
async def test_what_is_no_answer_approves_nothing(approver: Any, code: ErrorCode) -> None:
    outcome, _ = await exec_one(risky, '{"given": {}}', approver=approver)
    assert isinstance(outcome, Failed)
    assert outcome.error.code == code


SET: Any = {1}


@pytest.mark.parametrize(
    ("approver", "told"),
    [
        (answering(True), "a bool is not an answer: return Approve(by=…) or Refuse()"),
        (
            answering({"secret": "canary"}),
            "a dict is not an answer: return Approve(by=…) or Refuse()",
        ),
        (answering(Approve(" ")), "an approval needs the name of the approver, visible"),
        (answering(Approve("\ud800")), "an approval needs the name of the approver, visible"),
        (answering(Approve("x", {"given": SET})), "edited arguments are not JSON: set is not"),
        (attrgetter("for_run"), "it returned a bool, which cannot be awaited"),
    ],
)
async def test_the_log_says_what_an_approver_gave(
    approver: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    await exec_one(risky, '{"given": {}}', approver=approver)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the approver of tool 'f' failed: {told}")
    assert "canary" not in line


async def test_neither_tool_nor_approver_can_change_what_is_recorded() -> None:
    async def approver(request: ApprovalRequest) -> Approve:
        request.arguments["given"]["more"] = 1  # type: ignore[index,call-overload]
        return Approve("x")

    outcome, _ = await exec_one(risky, '{"given": {"a": [1]}}', approver=approver)
    assert isinstance(outcome, Completed)
    assert outcome.record.arguments == {"given": {"a": [1]}}


async def async_policy(_call: object, _context: object) -> Allow:
    raise SystemExit(3)


def exits(_call: object, _context: object) -> Allow:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "policy",
    [
        fails_without_a_class,
        fails_without_a_class_at_once,
        async_policy,
        exits,
        lambda _h, _c: Allow,
        lambda _h, _c: Deny("", code="denied"),  # type: ignore[arg-type]
    ],
)
async def test_a_policy_that_is_wrong_denies(policy: Any) -> None:
    outcome, _ = await exec_one(risky, '{"given": {}}', policy=policy)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.DENIED


def test_a_runner_that_could_run_nothing_is_refused() -> None:
    with pytest.raises(ToolcribError, match="concurrency is a whole number from 1"):
        ToolRunner([risky], concurrency=0)


@tool(visible=ALL, name="f")
async def fails() -> int:
    """Fail, with a secret."""
    raise ValueError(CANARY)


@tool(visible=ALL, name="f")
async def gives_way() -> int:
    """Give way once."""
    await asyncio.sleep(0)
    return 1


class BadSink:
    def write(self, _record: object) -> Awaitable[None] | None:
        raise OSError("disk full")

    write_run = write


async def test_what_a_sink_raises_carries_no_payload_and_who_watches_is_told() -> None:
    watch = Watch()
    with pytest.raises(OSError, match="disk full") as raised:
        await ToolRunner([fails], sinks=[BadSink()]).exec(
            ToolCall("call_0", "f", "{}"), scope=CallScope(RunTally(), observer=watch)
        )
    assert CANARY not in context_of(raised.value)
    assert [type(told) for told in watch.told] == [Failed]


class PanickingSink:
    """As one that calls into Rust: it raises what is no Exception, at once or after a while."""

    def __init__(self, *, later: bool) -> None:
        self.later = later

    def write(self, _record: ToolInvocationRecord) -> Awaitable[None] | None:
        if not self.later:
            raise PanicError

        async def panic() -> None:
            raise PanicError

        return panic()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("subject", [fails, gives_way], ids=named)
async def test_the_others_are_told_when_a_sink_panics(subject: Any, later: bool) -> None:
    watch, sink = Watch(), MemorySink()
    runner = ToolRunner([subject], sinks=[PanickingSink(later=later), sink])
    scope = CallScope(RunTally("r"), observer=watch)
    with pytest.raises(PanicError):
        await runner.exec(ToolCall("call_0", "f", "{}"), scope=scope)
    assert [told.record for told in watch.told] == sink.records
    left = [hydrate(ToolCall(f"call_{n}", "f", "{}"), runner.catalog) for n in (1, 2)]
    with pytest.raises(PanicError):
        await runner.refuse_all(left, scope=scope)
    assert [record.id for record in sink.records] == ["call_0", "call_1", "call_2"]


async def test_an_intent_that_cannot_be_written_leaves_a_record_elsewhere() -> None:
    class Intents(BadSink):
        write_ahead = True

        def write(self, record: Any) -> None:
            if record.status == "started":
                super().write(record)

    sink = MemorySink()
    with pytest.raises(OSError, match="disk full"):
        await ToolRunner([fails], sinks=[Intents(), sink]).exec(ToolCall("c", "f", "{}"))
    assert [record.error and record.error.code for record in sink.records] == ["not_recorded"]


@pytest.mark.parametrize("error", [RuntimeError("hook"), asyncio.CancelledError()], ids=repr)
async def test_a_debug_hook_that_raises_changes_nothing(error: BaseException) -> None:
    def hook(_call: ToolCall, _raised: BaseException) -> None:
        raise error

    outcome, _ = await exec_one(fails, on_exception=hook)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TOOL_ERROR


async def test_a_cancelled_call_carries_no_payload() -> None:
    begun = asyncio.Event()

    async def f() -> int:
        """Wait while an exception is handled."""
        try:
            raise ValueError(CANARY)
        except ValueError:
            begun.set()
            await asyncio.Event().wait()
        return 1

    await check_cancelled_without_payload(f, begun)


async def test_a_cancellation_that_a_tool_gives_a_cause_carries_no_payload() -> None:
    begun = asyncio.Event()

    async def f() -> int:
        """Say why it stops."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise error from ValueError(CANARY)
        return 1

    await check_cancelled_without_payload(f, begun)


async def check_cancelled_without_payload(function: Any, begun: asyncio.Event) -> None:
    task = asyncio.ensure_future(exec_one(tool(visible=ALL, description="It runs.")(function)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert CANARY not in context_of(raised.value)


async def test_a_tool_that_swallows_a_cancellation_stops_the_caller_all_the_same() -> None:
    begun, watch, sink = asyncio.Event(), Watch(), MemorySink()

    async def f() -> int:
        """Go on whatever happens."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 1
        return 2

    runner = ToolRunner([tool(visible=ALL)(f)], sinks=[sink])
    scope = CallScope(RunTally(), observer=watch)
    task = asyncio.ensure_future(runner.exec(ToolCall("c", "f", "{}"), scope=scope))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.status for record in sink.records] == ["completed"]
    assert [type(told) for told in watch.told] == [Completed]


async def test_a_call_cancelled_while_its_outcome_is_written_keeps_its_outcome() -> None:
    writing, go_on, watch = asyncio.Event(), asyncio.Event(), Watch()

    class Slow:
        async def write(self, _record: ToolInvocationRecord) -> None:
            writing.set()
            await go_on.wait()

    @tool(visible=ALL)
    async def f() -> int:
        """Do it."""
        return 1

    runner = ToolRunner([f], sinks=[Slow()])
    scope = CallScope(RunTally(), observer=watch)
    task = asyncio.ensure_future(runner.exec(ToolCall("c", "f", "{}"), scope=scope))
    await writing.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel("by its scope")
    await asyncio.sleep(0.01)
    assert not task.done()  # whoever cancels it, and however often
    go_on.set()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert raised.value.args == ("by its scope",)  # by which anyio knows its own
    assert [type(told) for told in watch.told] == [Completed]


async def test_progress_from_a_thread_arrives_while_the_tool_runs_and_not_after() -> None:
    loop = asyncio.get_running_loop()
    told, over, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Told(Watch):
        def progress(self, call_id: str, part: JsonValue) -> None:
            super().progress(call_id, part)
            told.set()

    @tool(visible=ALL)
    def f(ctx: CallContext) -> int:
        """Tell, wait to be heard, and tell again when nobody waits any more."""
        ctx.progress("early")
        asyncio.run_coroutine_threadsafe(told.wait(), loop).result(5)
        asyncio.run_coroutine_threadsafe(over.wait(), loop).result(5)
        ctx.progress("late")
        loop.call_soon_threadsafe(gone.set)
        return 1

    watch = Told()
    scope = CallScope(RunTally(), observer=watch)
    task = asyncio.ensure_future(ToolRunner([f]).exec(ToolCall("c", "f", "{}"), scope=scope))
    await asyncio.wait_for(told.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()
    await asyncio.wait_for(gone.wait(), 5)
    assert [t for t in watch.told if isinstance(t, str)] == ["early"]


class SlowSink:
    """It takes its time, so that the caller can be cancelled meanwhile."""

    def __init__(self) -> None:
        self.writing, self.go = asyncio.Event(), asyncio.Event()

    async def write(self, _record: object) -> None:
        self.writing.set()
        await self.go.wait()

    write_run = write


class BadLedger(BadSink):
    def begin(self, _entry: ToolInvocationRecord) -> None: ...

    def find(self, _entry: ToolInvocationRecord) -> None: ...


@pytest.mark.parametrize("sink", [BadSink, BadLedger], ids=named)
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("swallows", [False, True], ids=["stops", "swallows it"])
async def test_a_cancelled_call_is_cancelled_whatever_a_sink_raises(
    sink: type[Any], calls: int, swallows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def f() -> int:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return 1

    asked = [ToolCall(f"call_{number}", "f", "{}") for number in range(calls)]
    runner = ToolRunner([f], sinks=[sink()], concurrency=1)
    task = asyncio.ensure_future(runner.exec_all(asked))
    await begun.wait()
    task.cancel("by its scope")
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert task.cancelled()
    if calls == 1 and not swallows:
        assert raised.value.args == ("by its scope",)
    if sink is BadSink:
        assert "raised OSError" in caplog.text
        assert calls > 1 or isinstance(raised.value.__cause__, OSError)


async def test_a_limit_around_a_call_is_a_timeout_whatever_a_sink_raises() -> None:
    @tool(visible=ALL)
    async def f() -> None:
        """Wait."""
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await ToolRunner([f], sinks=[BadSink()]).exec(ToolCall("c", "f", "{}"))


@pytest.mark.parametrize("first", [True, False], ids=["it fails first", "it fails last"])
@pytest.mark.parametrize("what", ["exec", "refuse_all", "record_plan", "write_run"])
async def test_a_cancellation_while_sinks_are_told_overtakes_what_they_raise(
    what: str, first: bool
) -> None:
    slow, run = SlowSink(), RunRecord(run_id="r", status="completed", started_at=0.0)
    sinks: list[Any] = [BadSink(), slow] if first else [slow, BadSink()]
    runner = ToolRunner([gives_way], sinks=sinks)
    call = hydrate(ToolCall("c", "f", "{}"), runner.catalog)
    work: Any = {
        "exec": lambda: runner.exec(call),
        "refuse_all": lambda: runner.refuse_all([call, call], scope=CallScope(RunTally())),
        "record_plan": lambda: runner.record_plan([call, call]),
        "write_run": lambda: runner.write_run(run),
    }[what]
    task = asyncio.ensure_future(work())
    await slow.writing.wait()
    task.cancel()
    await asyncio.sleep(0)
    slow.go.set()
    await asyncio.wait([task])
    assert task.cancelled()
