"""What is made for a call: opened before the tool, closed after it, once, whatever became of it."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, Protocol

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    CallContext,
    Caller,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    Injected,
    ToolCall,
    ToolError,
    ToolRunner,
    capability,
    tool,
)
from toolcrib.errors import CapabilityError, MissingExtraError
from toolcrib.testing import MemorySink
from toolcrib.threads import CallThread
from toolcrib.tools import per_call
from toolcrib.values.record import Outcome

CANARY = "canary-c0de"
FIXED = "Something that the tool depends on failed."


@capability
class Db(Protocol):
    def rows(self) -> int: ...


@capability
class Mail(Protocol):
    def send(self) -> None: ...


class Session:
    """A `Db` and a `Mail` that writes down what is done to it."""

    def __init__(self, log: list[Any], name: str = "db") -> None:
        self.log = log
        self.name = name

    def rows(self) -> int:
        self.log.append(f"{self.name} used")
        return 3

    def send(self) -> None:
        self.log.append(f"{self.name} used")


class Manager(Session):
    def __enter__(self) -> Session:
        self.log.append(f"{self.name} in")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self.log.append(f"{self.name} out {kind.__name__ if kind else None}")


class AsyncManager(Session):
    async def __aenter__(self) -> Session:
        self.log.append(f"{self.name} in")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self.log.append(f"{self.name} out {kind.__name__ if kind else None}")


@tool(visible=ALL, name="t")
async def reads(db: Db) -> int:
    """Read."""
    return db.rows()


@tool(visible=ALL, name="t")
def reads_in_a_thread(db: Db) -> int:
    """Read, blocking."""
    return db.rows()


@tool(visible=ALL, name="t")
class Reads:
    """Read, as a class."""

    async def run(self, db: Db) -> int:
        await asyncio.sleep(0)
        return db.rows()


KINDS = [reads, reads_in_a_thread, Reads]


async def run(
    target: Any, bindings: dict[type, object], **options: Any
) -> tuple[Outcome, MemorySink]:
    sink = MemorySink()
    runner = ToolRunner(Catalog([target]).bind(bindings), sinks=[sink], **options)
    outcome = await runner.exec(ToolCall("call_0", "t", "{}"))
    assert sink.records == [outcome.record]
    assert CANARY not in repr(outcome)
    return outcome, sink


def plain(log: list[Any]) -> Callable[[], object]:
    return lambda: Session(log)


def later(log: list[Any]) -> Callable[[], object]:
    async def made() -> Session:
        await asyncio.sleep(0)
        return Session(log)

    return made


def later_manager(log: list[Any]) -> Callable[[], object]:
    async def made() -> Manager:
        return Manager(log)

    return made


def generator(log: list[Any]) -> Callable[[], object]:
    @contextmanager
    def made() -> Iterator[Session]:
        log.append("db in")
        yield Session(log)
        log.append("db out None")

    return made


def async_generator(log: list[Any]) -> Callable[[], object]:
    @asynccontextmanager
    async def made() -> AsyncIterator[Session]:
        log.append("db in")
        yield Session(log)
        log.append("db out None")

    return made


WHOLE = ["db in", "db used", "db out None"]


@each_row("target", KINDS)
@each_row(
    ("factory", "log"),
    [
        (plain, ["db used"]),
        (later, ["db used"]),
        (lambda log: lambda: Manager(log), WHOLE),
        (lambda log: lambda: AsyncManager(log), WHOLE),
        (later_manager, WHOLE),
        (generator, WHOLE),
        (async_generator, WHOLE),
    ],
)
async def test_whatever_a_factory_returns(target: Any, factory: Any, log: list[str]) -> None:
    seen: list[Any] = []
    outcome, _ = await run(target, {Db: per_call(factory(seen))})
    assert isinstance(outcome, Completed)
    assert outcome.value == 3
    assert seen == log


@pytest.mark.parametrize("takes", ["ctx", "keyword", "hinted"])
async def test_a_factory_may_take_the_context(takes: str) -> None:
    seen: list[CallContext] = []

    def made(ctx: CallContext) -> Session:
        seen.append(ctx)
        return Session([])

    def by_keyword(*, context: CallContext) -> Session:
        return made(context)

    def hinted(path: str = "x.db", ctx: CallContext = None) -> Session:  # type: ignore[assignment]
        assert path == "x.db"
        return made(ctx)

    factory: Any = {"ctx": made, "keyword": by_keyword, "hinted": hinted}[takes]
    runner = ToolRunner(Catalog([reads]).bind({Db: per_call(factory)}))
    await runner.exec(ToolCall("call_0", "t", "{}"), caller=Caller("ada"))
    assert [(c.call_id, c.caller.id) for c in seen] == [("call_0", "ada")]
    assert seen[0].deadline is not None


async def test_the_tool_and_the_factory_get_the_same_context() -> None:
    seen: list[Any] = []

    @tool(visible=ALL, name="t")
    async def both(db: Db, ctx: CallContext) -> int:
        """Take both."""
        seen.append(ctx)
        return db.rows()

    def made(ctx: CallContext) -> Session:
        seen.append(ctx)
        return Session([])

    await run(both, {Db: per_call(made)})
    assert seen[0] is seen[1]


async def raises(db: Db) -> int:
    """Raise a secret."""
    db.rows()
    raise ValueError(CANARY)


def raises_in_a_thread(db: Db) -> int:
    """Raise a secret, blocking."""
    db.rows()
    raise ValueError(CANARY)


async def hangs(db: Db) -> int:
    """Never come back."""
    db.rows()
    await asyncio.Event().wait()
    return 1


async def cancels_itself(db: Db) -> int:
    """Raise CancelledError out of nothing."""
    db.rows()
    raise asyncio.CancelledError


@each_row("manager", [Manager, AsyncManager])
@each_row(
    ("function", "code", "left"),
    [
        (raises, ErrorCode.TOOL_ERROR, "ValueError"),
        (raises_in_a_thread, ErrorCode.TOOL_ERROR, "ValueError"),
        (hangs, ErrorCode.TIMEOUT, "CancelledError"),
        (cancels_itself, ErrorCode.TOOL_ERROR, "CancelledError"),
    ],
)
async def test_it_is_closed_whatever_the_tool_does(
    manager: Any, function: Any, code: ErrorCode, left: str
) -> None:
    log: list[Any] = []
    made = tool(visible=ALL, description="It runs.", name="t", timeout=0.25)(function)
    outcome, _ = await run(made, {Db: per_call(lambda: manager(log))})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is code
    assert log == ["db in", "db used", f"db out {left}"]


@pytest.mark.parametrize("manager", [Manager, AsyncManager])
async def test_it_is_closed_when_the_call_is_cancelled(manager: Any) -> None:
    log: list[Any] = []
    begun = asyncio.Event()

    @tool(visible=ALL, name="t")
    async def waits(db: Db) -> int:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return db.rows()

    task = asyncio.ensure_future(run(waits, {Db: per_call(lambda: manager(log))}))
    await asyncio.wait_for(begun.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["db in", "db out CancelledError"]


async def test_several_are_closed_in_reverse_order() -> None:
    log: list[Any] = []

    @tool(visible=ALL, name="t")
    async def several(db: Db, mail: Mail) -> int:
        """Use both."""
        mail.send()
        return db.rows()

    bindings: dict[type, object] = {
        Mail: per_call(lambda: AsyncManager(log, "mail")),
        Db: per_call(lambda: Manager(log)),
    }
    await run(several, bindings)
    assert log == [
        "db in",
        "mail in",
        "mail used",
        "db used",
        "mail out None",
        "db out None",
    ]


async def test_one_factory_makes_one_implementation_for_a_call() -> None:
    log: list[Any] = []
    seen: list[Any] = []

    @tool(visible=ALL, name="t")
    async def several(db: Db, again: Db, mail: Mail) -> int:
        """Use one under three names."""
        seen.append((db, again, mail))
        return db.rows()

    one = per_call(lambda: Manager(log))
    await run(several, {Db: one, Mail: one})
    assert log == WHOLE
    assert seen[0][0] is seen[0][1] is seen[0][2]


async def test_two_calls_at_once_get_two() -> None:
    seen: list[Any] = []
    both = asyncio.Event()

    @tool(visible=ALL, name="t")
    async def meets(db: Db) -> int:
        """Wait for the other one."""
        seen.append(db)
        if len(seen) == 2:
            both.set()
        await both.wait()
        return 1

    runner = ToolRunner(Catalog([meets]).bind({Db: per_call(lambda: Session([]))}))
    await runner.exec_all([ToolCall(f"c{n}", "t", "{}") for n in range(2)])
    assert seen[0] is not seen[1]


def error(raised: BaseException) -> Callable[[], Any]:
    def made() -> Any:
        raise raised

    return made


def async_error(raised: BaseException) -> Callable[[], Any]:
    async def made() -> Any:
        raise raised

    return made


def broken_extra() -> Any:
    try:
        raise ImportError(CANARY)
    except ImportError:
        raise MissingExtraError("db", "x") from None


class PanicError(BaseException):
    """As a library in Rust raises it (pyo3's PanicException): no Exception."""


class EnterFails(Manager):
    def __enter__(self) -> Session:
        raise ValueError(CANARY)


class Nothing:
    pass


@each_row("target", KINDS)
@each_row(
    ("factory", "code", "message"),
    [
        (error(ValueError(CANARY)), ErrorCode.CAPABILITY_ERROR, FIXED),
        (async_error(ValueError(CANARY)), ErrorCode.CAPABILITY_ERROR, FIXED),
        (error(SystemExit(CANARY)), ErrorCode.CAPABILITY_ERROR, FIXED),
        (async_error(asyncio.CancelledError()), ErrorCode.CAPABILITY_ERROR, FIXED),
        (error(PanicError(CANARY)), ErrorCode.CAPABILITY_ERROR, FIXED),
        (async_error(PanicError(CANARY)), ErrorCode.CAPABILITY_ERROR, FIXED),
        (error(StopIteration()), ErrorCode.CAPABILITY_ERROR, FIXED),
        (error(CapabilityError("no db today")), ErrorCode.CAPABILITY_ERROR, "no db today"),
        (async_error(ToolError("no db today")), ErrorCode.CAPABILITY_ERROR, "no db today"),
        (error(MissingExtraError("db", "x")), ErrorCode.NOT_RUNNABLE, "'.[db]'"),
        (broken_extra, ErrorCode.NOT_RUNNABLE, "'.[db]'"),
        (lambda: EnterFails([]), ErrorCode.CAPABILITY_ERROR, FIXED),
        (lambda: Nothing(), ErrorCode.CAPABILITY_ERROR, FIXED),  # noqa: PLW0108
        (lambda: None, ErrorCode.CAPABILITY_ERROR, FIXED),
    ],
)  # fmt: skip
async def test_an_implementation_that_cannot_be_made(
    target: Any, factory: Any, code: ErrorCode, message: str
) -> None:
    log: list[Any] = []
    told: list[BaseException] = []
    outcome, _ = await run(
        target, {Db: per_call(factory)}, on_exception=lambda _call, raised: told.append(raised)
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is code
    assert message in outcome.error.message
    assert CANARY not in outcome.error.message
    assert log == []
    assert len(told) == 1


async def test_what_was_opened_before_is_closed_when_the_next_fails() -> None:
    log: list[Any] = []

    @tool(visible=ALL, name="t")
    async def several(db: Db, mail: Mail) -> int:
        """Use both."""
        mail.send()
        return db.rows()

    bindings: dict[type, object] = {
        Db: per_call(lambda: Manager(log)),
        Mail: per_call(error(ValueError(CANARY))),
    }
    outcome, _ = await run(several, bindings)
    assert isinstance(outcome, Failed)
    assert log == ["db in", "db out ValueError"]


async def succeeds(db: Db) -> int:
    """Succeed."""
    return 1


async def says(db: Db) -> int:
    """Fail, and say why."""
    raise ToolError("out of stock")


async def fails(db: Db) -> int:
    """Fail."""
    raise KeyError(CANARY)


def leaving(raised: BaseException | bool) -> Callable[[], Any]:
    class Leaves(Session):
        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_details: object) -> bool:
            if isinstance(raised, BaseException):
                raise raised
            return raised

    return lambda: Leaves([])


CLOSING: list[tuple[Any, Any, ErrorCode, str]] = [
    (succeeds, ValueError(CANARY), ErrorCode.CAPABILITY_ERROR, FIXED),
    (succeeds, PanicError(CANARY), ErrorCode.CAPABILITY_ERROR, FIXED),
    (succeeds, CapabilityError("not saved"), ErrorCode.CAPABILITY_ERROR, "not saved"),
    (says, ValueError(CANARY), ErrorCode.TOOL_ERROR, "out of stock"),
    (says, CapabilityError("not saved"), ErrorCode.TOOL_ERROR, "out of stock"),
    (fails, ValueError(CANARY), ErrorCode.TOOL_ERROR, "The tool failed."),
    (fails, CapabilityError("not saved"), ErrorCode.CAPABILITY_ERROR, "not saved"),
    (fails, True, ErrorCode.TOOL_ERROR, "The tool failed."),
    (hangs, ValueError(CANARY), ErrorCode.TIMEOUT, "The tool did not finish"),
    (hangs, CapabilityError("not saved"), ErrorCode.TIMEOUT, "The tool did not finish"),
    (hangs, True, ErrorCode.TIMEOUT, "The tool did not finish"),
]


async def closing_raises(target: Any, raised: Any) -> tuple[ErrorCode, str]:
    made = tool(
        visible=ALL, description="It runs.", name="t", timeout=0.05 if target is hangs else 60
    )(target)
    outcome, _ = await run(made, {Db: per_call(leaving(raised))})
    assert isinstance(outcome, Failed)
    return outcome.error.code, outcome.error.message


@each_row(("function", "raised", "code", "message"), CLOSING)
async def test_what_closing_raises(
    function: Any, raised: Any, code: ErrorCode, message: str
) -> None:
    """A success fails with it; a failure stays, unless only closing has something safe to say."""
    found = await closing_raises(function, raised)
    assert (found[0], found[1][: len(message)]) == (code, message)


@each_row(
    ("function", "raised", "code", "message"), [row for row in CLOSING if row[0] is not hangs]
)
async def test_what_closing_raises_in_a_thread(
    function: Any, raised: Any, code: ErrorCode, message: str
) -> None:
    def blocking(db: Db) -> int:
        """Do the same in a thread."""
        coroutine = function(db)
        with pytest.raises(StopIteration) as finished:
            coroutine.send(None)
        return int(finished.value.value)

    found = await closing_raises(blocking, raised)
    assert (found[0], found[1][: len(message)]) == (code, message)


async def test_others_are_closed_when_closing_one_raises() -> None:
    log: list[Any] = []

    @tool(visible=ALL, name="t")
    async def several(db: Db, mail: Mail) -> int:
        """Use both."""
        return 1

    class Raises(Manager):
        def __exit__(self, *_details: object) -> None:
            raise ValueError(CANARY)

    bindings: dict[type, object] = {
        Db: per_call(lambda: Manager(log)),
        Mail: per_call(lambda: Raises(log, "mail")),
    }
    outcome, _ = await run(several, bindings)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.CAPABILITY_ERROR
    assert log == ["db in", "mail in", "db out ValueError"]


class OpensForever(AsyncManager):
    async def __aenter__(self) -> Session:
        await asyncio.Event().wait()
        return self


class ClosesForever(AsyncManager):
    async def __aexit__(self, *_details: object) -> None:
        self.log.append("closing")
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("manager", "log"),
    [(OpensForever, []), (ClosesForever, ["db in", "db used", "closing"])],
)
async def test_opening_and_closing_are_within_the_time_limit(manager: Any, log: Any) -> None:
    seen: list[Any] = []
    made = tool(visible=ALL, name="t", timeout=0.05)(reads.__wrapped__)
    outcome, _ = await run(made, {Db: per_call(lambda: manager(seen))})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT
    assert seen == log


async def test_for_a_blocking_tool_all_is_done_in_one_thread() -> None:
    """SQLite's connections refuse every other thread."""

    @tool(visible=ALL, name="t")
    def counts(db: Injected[sqlite3.Connection]) -> int:
        """Count."""
        found: int = db.execute("select 41 + 1").fetchone()[0]
        return found

    threads: list[int] = []

    def opened() -> Any:
        threads.append(threading.get_ident())
        return closing(sqlite3.connect(":memory:"))

    outcome, _ = await run(counts, {sqlite3.Connection: per_call(opened)})
    assert isinstance(outcome, Completed)
    assert outcome.value == 42
    assert threads != [threading.get_ident()]


async def test_a_thread_that_is_left_behind_closes_what_it_opened_after_it_is_done() -> None:
    log: list[Any] = []
    go_on, closed = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Closes(Manager):
        def __exit__(self, *details: object) -> None:
            super().__exit__(*details)  # type: ignore[arg-type]
            loop.call_soon_threadsafe(closed.set)

    @tool(visible=ALL, name="t", timeout=0.25)
    def overruns(db: Db) -> int:
        """Go on."""
        go_on.wait(5)
        return db.rows()

    outcome, _ = await run(overruns, {Db: per_call(lambda: Closes(log))})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert log == ["db in"]
    go_on.set()
    await asyncio.wait_for(closed.wait(), 5)
    assert log == ["db in", "db used", "db out CancelledError"]


async def test_what_a_thread_was_just_opening_is_closed_too() -> None:
    log: list[Any] = []
    go_on, closed = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Manager):
        def __enter__(self) -> Session:
            go_on.wait(5)
            return super().__enter__()

        def __exit__(self, *details: object) -> None:
            super().__exit__(*details)  # type: ignore[arg-type]
            loop.call_soon_threadsafe(closed.set)

    made = tool(visible=ALL, name="t", timeout=0.05)(reads_in_a_thread.__wrapped__)
    outcome, _ = await run(made, {Db: per_call(lambda: Slow(log))})
    assert isinstance(outcome, Failed)
    go_on.set()
    await asyncio.wait_for(closed.wait(), 5)
    assert log == ["db in", "db out CancelledError"]


REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


@contextmanager
def requests(log: list[Any]) -> Iterator[Session]:
    token = REQUEST.set("r1")
    yield Session(log)
    REQUEST.reset(token)  # raises in another context than that of `set`


@asynccontextmanager
async def tenants(log: list[Any]) -> AsyncIterator[Session]:
    token = TENANT.set("t1")
    yield Session(log)
    TENANT.reset(token)


@tool(visible=ALL, name="t")
async def looks_around(db: Db, mail: Mail) -> str:
    """Look."""
    return f"{REQUEST.get()} {TENANT.get()}"


@tool(visible=ALL, name="t")
def looks_around_in_a_thread(db: Db, mail: Mail) -> str:
    """Look, blocking."""
    return f"{REQUEST.get()} {TENANT.get()}"


@pytest.mark.parametrize("target", [looks_around, looks_around_in_a_thread])
@pytest.mark.parametrize("first", [Db, Mail])
async def test_context_variables_that_are_set_while_opening_are_seen_and_reset(
    target: Any, first: type
) -> None:
    """`decimal.localcontext`, spans and bound log contexts all work like this."""
    second = Mail if first is Db else Db
    bindings: dict[type, object] = {
        first: per_call(lambda: requests([])),
        second: per_call(lambda: tenants([])),
    }
    outcome, _ = await run(target, bindings)
    assert isinstance(outcome, Completed)
    assert outcome.value == "r1 t1"
    assert (REQUEST.get(), TENANT.get()) == ("none", "none")


async def hangs_with_mail(mail: Mail, db: Db) -> int:
    """Never come back."""
    await asyncio.Event().wait()
    return 1


async def reads_with_mail(mail: Mail, db: Db) -> int:
    """Read."""
    return db.rows()


@pytest.mark.parametrize("function", [hangs_with_mail, reads_with_mail])
async def test_closing_after_the_time_limit_has_that_limit_once_more(function: Any) -> None:
    """A tool that overran because its database hangs would else hang in the rollback."""
    log: list[Any] = []

    class NeverCloses(AsyncManager):
        async def __aexit__(self, *_details: object) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append("gave up")
                raise

    bindings: dict[type, object] = {
        Db: per_call(lambda: NeverCloses([])),
        Mail: per_call(lambda: AsyncManager(log, "mail")),
    }
    target = tool(visible=ALL, description="It runs.", name="t", timeout=0.05)(function)
    outcome, _ = await asyncio.wait_for(run(target, bindings), 5)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT
    assert log == ["mail in", "gave up", "mail out CancelledError"]


async def test_the_thread_of_a_call_ends_with_it() -> None:
    before = threading.active_count()
    thread = CallThread()
    thread.close()
    ident = await (started := CallThread()).run(threading.get_ident)
    assert await started.run(threading.get_ident) == ident
    ended = threading.Event()
    started.submit(lambda: (_ for _ in ()).throw(SystemExit))
    started.submit(ended.set)
    started.close()
    assert ended.wait(5)
    assert threading.active_count() <= before + 1


@tool(visible=ALL, name="t")
async def perhaps(db: Db | None, mail: Mail | None = None) -> str:
    """Use what there is."""
    return f"{db is not None} {mail is not None}"


DEFAULT = Session([])


@tool(visible=ALL, name="t")
async def falls_back(db: Db = DEFAULT) -> str:
    """Use the default, unless another is bound."""
    return str(db is DEFAULT)


@tool(visible=ALL, name="t")
class Perhaps:
    """Use what there is."""

    async def run(self, ctx: CallContext, db: Injected[Session] | None = None) -> str:
        return str(db is not None)


@each_row(
    ("target", "bindings", "value"),
    [
        (perhaps, {}, "False False"),
        (perhaps, {Db: Session([])}, "True False"),
        (perhaps, {Mail: per_call(lambda: Manager([]))}, "False True"),
        (falls_back, {}, "True"),
        (falls_back, {Db: Session([])}, "False"),
        (Perhaps, {}, "False"),
        (Perhaps, {Session: per_call(lambda: Session([]))}, "True"),
    ],
)
async def test_optional_needs(target: Any, bindings: dict[type, object], value: str) -> None:
    outcome, _ = await run(target, bindings)
    assert isinstance(outcome, Completed)
    assert outcome.value == value


@pytest.mark.parametrize("manager", [Manager, AsyncManager])
async def test_a_tool_that_raises_what_ends_a_loop_has_failed_and_all_is_closed(
    manager: type[Session],
) -> None:
    log: list[Any] = []

    @tool(visible=ALL, name="t")
    async def raises(db: Db) -> int:
        """Raise what closes a coroutine."""
        raise GeneratorExit

    outcome, _ = await run(raises, {Db: per_call(lambda: manager(log))})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TOOL_ERROR
    assert log == ["db in", "db out RuntimeError"]


def raises_at_once() -> object:
    raise GeneratorExit


async def raises_when_awaited() -> object:
    raise GeneratorExit


class RaisesOnEntering(AsyncManager):
    def __init__(self) -> None:
        super().__init__([])

    async def __aenter__(self) -> Session:
        raise GeneratorExit


@pytest.mark.parametrize("factory", [raises_at_once, raises_when_awaited, RaisesOnEntering])
async def test_a_factory_that_raises_what_ends_a_loop_has_failed(factory: Any) -> None:
    outcome, _ = await run(reads, {Db: per_call(factory)})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.CAPABILITY_ERROR
