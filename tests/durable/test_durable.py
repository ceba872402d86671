"""Runs that outlive their process, on a real database: begun, watched, answered, cancelled, resumed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from samples import WHOLE, whole_only
from waiting import until

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, PROMPT, TURNS, Model, desk

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Caller,
    Catalog,
    Deny,
    Event,
    Image,
    Injected,
    Limits,
    Message,
    PickOptions,
    Refuse,
    RunInfo,
    RunResult,
    ToolRunner,
    per_run,
    tool,
)
from toolcrib.approvals import ApprovalStore, answer_later
from toolcrib.audit import AuditLog
from toolcrib.durable import DurableAgents, StoredRun, engine
from toolcrib.errors import (
    ApprovalError,
    BindingError,
    ClientError,
    ErrorCode,
    MissingExtraError,
    ToolcribError,
)
from toolcrib.policies import budget
from toolcrib.spending import SpendStore
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import Always, LimitedApprove
from toolcrib.values.message import ChatRequest, Reply
from toolcrib.values.record import ToolInvocationRecord, state_of
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    ReplyFinished,
    TextDelta,
    ToolCallFinished,
)

ADA = Caller("ada")


@pytest.fixture(params=["sqlite", whole_only("postgres")])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    made: str = request.getfixturevalue("postgres")()
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def answered(durable: DurableAgents, run_id: str) -> RunResult:
    """Say yes to whatever a run asks, until it is over."""
    while (result := await durable.result(run_id)).status == "waiting":
        for request in await durable.pending():
            if request.run_id == run_id:
                await durable.answer(request.id, Approve(by="grace"))
    return result


def lines(folder: Path) -> list[str]:
    return (folder / "effects").read_text("utf-8").splitlines()


def effects(folder: Path) -> list[str]:
    return [" ".join(line.split()[:2]) for line in lines(folder)]


async def test_who_follows_a_run_that_is_answered_at_its_end_follows_it_on(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait is seen, and before its row is read, it has gone on, or is over."""
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        client = DurableAgents(file, {"desk": desk(tmp_path)})
        run_id = await worker.start("desk", PROMPT)
        await worker.result(run_id)
        read = client._store.run
        reads: list[str] = []

        async def run(run_id: str) -> StoredRun:
            if len(reads) == 1:
                await answered(worker, run_id)
            reads.append(run_id)
            return await read(run_id)

        monkeypatch.setattr(client._store, "run", run)
        events = [event async for event in client.events(run_id)]
        result = await worker.result(run_id)
        await client.aclose()
    ended = [event.record for event in events if isinstance(event, ToolCallFinished)]
    assert sorted(record.id for record in ended) == sorted(record.id for record in result.records)
    assert "".join(each.text for each in events if isinstance(each, TextDelta)) == "I pay.All done."
    assert events[-1] == Done(result)


async def test_a_run_is_begun_here_answered_there_and_ends(url: str, tmp_path: Path) -> None:
    elsewhere = DurableAgents(url, {"desk": desk(tmp_path)})
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        run_id = await elsewhere.start("desk", PROMPT, caller=ADA, run_id="order-7")
        assert run_id == "order-7"
        assert await elsewhere.start("desk", PROMPT, caller=ADA, run_id=run_id) == run_id
        waits = await elsewhere.result(run_id)
        assert waits.status == "waiting"
        events = [event async for event in elsewhere.events(run_id)]
        (request,) = await elsewhere.pending()
        assert (request.tool, request.caller) == ("refund", "ada")
        assert await elsewhere.answer(request.id, Approve(by="grace")) == run_id
        result = await answered(elsewhere, run_id)
        again = [event async for event in worker.events(run_id)]
    assert (result.status, result.text, result.output) == ("completed", "All done.", "All done.")
    assert [run.status for run in await elsewhere.list()] == ["completed"]
    assert await elsewhere.list("waiting") == []
    await elsewhere.aclose()
    assert effects(tmp_path).count("begin refund") == 1
    seen = [m.content for m in result.messages if m.name == "look"]
    assert seen == [f"what nobody else sees of {at}" for at in (1, 2, 3)]
    check_told(events, 3)
    check_told(again, 5)
    async with AuditLog(url) as log:
        assert (await log.verify()).ok


def check_told(events: list[Event], turns: int) -> None:
    """Each thing is told once, in order."""
    assert [e.turn for e in events if isinstance(e, ReplyFinished)] == list(range(1, turns + 1))
    ended = [e.record.id for e in events if isinstance(e, ToolCallFinished)]
    assert len(ended) == len(set(ended)) == {3: 6, 5: 9}[turns]
    assert sum(isinstance(e, ApprovalRequested) for e in events) == 1
    assert "I pay." in [e.text for e in events if isinstance(e, TextDelta)]
    assert [isinstance(e, Done) for e in events] == [False] * (len(events) - 1) + [True]


async def test_an_answer_counts_once_whoever_gives_it(url: str, tmp_path: Path) -> None:
    clients = [DurableAgents(url, {"desk": desk(tmp_path)}) for _ in range(4)]
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        run_id = await worker.start("desk", PROMPT)
        await worker.result(run_id)
        (request,) = await worker.pending()
        given = await asyncio.gather(
            *(client.answer(request.id, Approve(by="grace")) for client in clients),
            return_exceptions=True,
        )
        refused = [each for each in given if isinstance(each, ApprovalError)]
        assert [error.code for error in refused] == [ErrorCode.ALREADY_USED] * 3
        assert (await answered(worker, run_id)).status == "completed"
        with pytest.raises(ApprovalError, match="no run has the question"):
            await worker.answer("apr_none", Approve(by="grace"))
        with pytest.raises(ApprovalError, match="name"):
            await worker.answer(request.id, Approve(by=" "))
    for client in clients:
        await client.aclose()
    assert effects(tmp_path).count("begin refund") == 1


async def test_an_answer_and_the_end_of_a_segment_do_not_wait_for_each_other(
    postgres: Callable[[], str], tmp_path: Path
) -> None:
    """PostgreSQL would end one of them, and nobody would have answered."""
    url = postgres()
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as durable:
        run_id = await durable.start("desk", PROMPT)
        await durable.result(run_id)
        (request, *_) = await durable.pending()
    with psycopg.connect(url.replace("+psycopg", "")) as ending:  # as a worker's transaction does
        ending.execute("SELECT 1 FROM durable_runs WHERE id = %s FOR UPDATE", [run_id])
        answer = asyncio.create_task(durable.answer(request.id, Approve(by="grace")))
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: bool(ending.execute(waits).fetchall()))
        again = "INSERT INTO durable_questions TABLE durable_questions ON CONFLICT DO NOTHING"
        await asyncio.to_thread(ending.execute, again)
        ending.commit()
    assert await answer == run_id
    await durable.aclose()


async def test_what_is_answered_while_nobody_works_is_taken_up(file: str, tmp_path: Path) -> None:
    client = DurableAgents(file, {"desk": desk(tmp_path)})
    run_id = await client.start("desk", PROMPT)
    assert [run.status for run in await client.list()] == ["queued"]
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        await worker.result(run_id)
    (request,) = await client.pending()
    await client.answer(request.id, Refuse("no", by="grace"))
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        result = await answered(worker, run_id)
    await client.aclose()
    assert result.status == "completed"
    assert "begin refund" not in effects(tmp_path)


@pytest.mark.exhaustive
async def test_of_fifty_that_wait_and_ten_that_work_on_two_slots_none_starves(
    url: str, tmp_path: Path
) -> None:
    """Of each agent whoever began first goes first; agents take turns; what is answered joins the
    queue, what waits is not in it."""
    works = desk(tmp_path, turns=(TURNS[0], TURNS[1], "Done."))
    slots, agents = 2, {"desk": desk(tmp_path), "works": works}
    many, few, asked_again = (50, 10, 10) if WHOLE else (15, 3, 3)
    client = DurableAgents(url, agents)
    waits = [await client.start("desk", PROMPT) for _ in range(many)]
    goes = [await client.start("works", PROMPT) for _ in range(few)]
    await client.aclose()
    async with DurableAgents(url, agents, slots=slots) as worker:
        async with asyncio.timeout(60):
            results = await asyncio.gather(*map(worker.result, waits + goes))
        assert [result.status for result in results] == ["waiting"] * many + ["completed"] * few
        first = list(dict.fromkeys(line.split()[2] for line in lines(tmp_path)))
        for runs in (waits, goes):
            began = [run for run in first if run in runs]
            assert max(abs(began.index(run) - at) for at, run in enumerate(runs)) <= slots
        # an agent's queue is looked at ten times a second: of few runs, less can be said
        assert max(map(first.index, goes)) < (4 * few if WHOLE else many + few - 1)

        asked = await worker.pending()
        assert len(asked) == many
        working = [await worker.start("works", PROMPT) for _ in range(5)]
        for request in asked[:-asked_again]:
            await worker.answer(request.id, Approve(by="grace"))
        working += [await worker.start("works", PROMPT) for _ in range(5)]
        answered = [request.run_id for request in asked[:-asked_again]]
        async with asyncio.timeout(60):
            ended_now = await asyncio.gather(*map(worker.result, [*working, *answered]))
        assert {result.status for result in ended_now} == {"completed"}
        assert {run.id for run in await worker.list("waiting")} == {
            r.run_id for r in asked[-asked_again:]
        }
    assert effects(tmp_path).count("begin refund") == many - asked_again


async def test_nothing_in_the_tables_is_a_pickle(url: str, tmp_path: Path) -> None:
    def fail(at: int) -> None:
        if at == 1:
            raise ClientError("the line is down")

    broken = desk(tmp_path, model=Model(*TURNS, before=fail))
    async with DurableAgents(url, {"desk": desk(tmp_path), "broken": broken}) as worker:
        await answered(worker, await worker.start("desk", PROMPT))
        with pytest.raises(ToolcribError, match="failed: ClientError: the line is down"):
            await worker.result(await worker.start("broken", PROMPT))
    texts = [value for row in _rows(url) for value in row if isinstance(value, str | bytes)]
    assert len(texts) > 100
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    assert not [text for text in raw if text.startswith((b"\x80", b"gA"))]  # in base64, too


def _rows(url: str) -> Iterator[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as found:
            named = found.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in named:
                yield from found.execute(f'SELECT * FROM "{name}"')  # noqa: S608
        found.close()
        return
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        asked = (
            "SELECT quote_ident(table_schema) || '.' || quote_ident(table_name)"
            " FROM information_schema.tables WHERE table_schema IN ('public', 'dbos')"
        )
        for (name,) in connection.execute(asked).fetchall():
            yield from connection.execute(f"SELECT * FROM {name}")  # noqa: S608


async def test_a_run_that_failed_goes_on_from_where_it_was(file: str, tmp_path: Path) -> None:
    down = [True]

    def fail(at: int) -> None:
        if at == 1 and down:
            down.clear()
            raise ClientError("the line is down")

    agents = {"desk": desk(tmp_path, model=Model(*TURNS, before=fail))}
    async with DurableAgents(file, agents) as worker:
        run_id = await worker.start("desk", PROMPT)
        with pytest.raises(ToolcribError, match="the line is down"):
            await worker.result(run_id)
        (run,) = await worker.list("failed")
        assert run.reason == "ClientError: the line is down"
        await worker.resume(run_id)
        assert (await answered(worker, run_id)).text == "All done."
        with pytest.raises(ToolcribError, match="cannot be resumed: it is completed"):
            await worker.resume(run_id)
    paid = [line for line in effects(tmp_path) if line == "begin pay"]
    assert len(paid) == 3


async def test_a_run_is_cancelled_wherever_it_is(file: str, tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    hangs = Agent(Model(call("hang"), "Never."), [hang], state_key=KEY)
    async with DurableAgents(file, {"desk": desk(tmp_path), "hangs": hangs}) as worker:
        running = await worker.start("hangs", PROMPT)
        await begun.wait()
        await worker.cancel(running)
        result = await worker.result(running)
        assert (result.status, [state_of(record) for record in result.records]) == (
            "cancelled",
            ["failed (outcome_unknown)"],
        )
        assert [message.role for message in result.messages] == ["user", "assistant", "tool"]
        events = [event async for event in worker.events(running)]
        assert [e.record.id for e in events if isinstance(e, ToolCallFinished)] == [
            record.id for record in result.records
        ]
        waiting = await worker.start("desk", PROMPT)
        await worker.result(waiting)
        await worker.cancel(waiting)
        assert await worker.pending() == []
        with pytest.raises(ToolcribError, match="is over: it is cancelled"):
            await worker.cancel(waiting)
        with pytest.raises(ToolcribError, match="there is no run"):
            await worker.cancel("run_none")
        while worker._segments:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with AuditLog(file) as log:
        told = [e.record for e in await log.entries()]
    hung = [record for record in told if isinstance(record, ToolInvocationRecord)]
    assert [state_of(record) for record in hung if record.name == "hang"] == [
        "started",
        "failed (outcome_unknown)",
    ]


async def test_a_worker_leaves_the_runs_of_agents_that_it_has_not(url: str, tmp_path: Path) -> None:
    def only(name: str) -> DurableAgents:
        agent = Agent(Model("Done."), [], state_key=KEY)
        return DurableAgents(url, {name: agent})

    async with only("one") as worker:
        client = only("two")
        theirs = await client.start("two", PROMPT)
        ours = await worker.start("one", PROMPT)
        assert (await worker.result(ours)).text == "Done."
        await asyncio.sleep(0.5)
        assert [run.status for run in await client.list()] == ["queued", "completed"]
        await client.aclose()
    async with only("two") as worker:
        assert (await worker.result(theirs)).text == "Done."


async def test_a_question_that_lapses_ends_its_call(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.durable.agents._BEAT", 0.1)
    agent = desk(tmp_path)
    runner = agent.runner
    monkeypatch.setattr(runner, "_setup", _asking_for(runner, 0.5))
    async with DurableAgents(file, {"desk": agent}) as worker:
        run_id = await worker.start("desk", PROMPT)
        while (await worker.show(run_id)).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        result = await worker.result(run_id)
    (refund,) = [record for record in result.records if record.name == "refund"]
    assert refund.error is not None
    assert refund.error.code is ErrorCode.APPROVAL_EXPIRED


def _asking_for(runner: Any, seconds: float) -> Any:
    return msgspec.structs.replace(runner._setup, approval_seconds=seconds)


async def test_what_a_worker_cuts_is_unknown_and_a_person_says_what_happened(
    url: str, tmp_path: Path
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL)
    async def slow(at: int) -> str:
        """Take long."""
        begun.set()
        await go.wait()
        return "done"

    def agents() -> dict[str, Agent]:
        return {"slow": Agent(Model(call("slow", at=1), "Over."), [slow], state_key=KEY)}

    worker = DurableAgents(url, agents())
    await worker.__aenter__()
    run_id = await worker.start("slow", PROMPT)
    await begun.wait()
    assert await worker.stop(0.1) is False
    async with DurableAgents(url, agents()) as other:
        result = await other.result(run_id)
        assert result.text == "Over."
        (record,) = await other.unknown_calls(run_id)
        assert record.name == "slow"
        with pytest.raises(ToolcribError, match=f"calls with an unknown outcome: {record.id}"):
            await other.resolve(run_id, "another", happened=True, by="eve")
        with pytest.raises(ToolcribError, match="by= is empty"):
            await other.resolve(run_id, record.id, happened=True, by=" ")
        await other.resolve(run_id, record.id, happened=False, by="eve")
        assert await other.unknown_calls(run_id) == []
        with pytest.raises(ToolcribError, match="unknown outcome"):
            await other.resolve(run_id, record.id, happened=True, by="eve")
    async with AuditLog(url) as log:
        assert (await log.verify()).ok
        stands = await log.find(record)
    assert stands is not None
    assert (stands.status, stands.approved_by) == ("failed", "eve")
    go.set()
    await worker.aclose()


async def test_a_worker_that_stops_lets_calls_end(file: str, tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def slow(at: int) -> str:
        """Take a while."""
        begun.set()
        await asyncio.sleep(0.3)
        return "done"

    def agents() -> dict[str, Agent]:
        return {"slow": Agent(Model(call("slow", at=1), "Over."), [slow], state_key=KEY)}

    worker = DurableAgents(file, agents())
    await worker.__aenter__()
    run_id = await worker.start("slow", PROMPT)
    await begun.wait()
    assert await worker.stop(5) is True
    await worker.aclose()
    async with DurableAgents(file, agents()) as other:
        result = await other.result(run_id)
    assert [m.content for m in result.messages if m.role == "tool"] == ["done"]


async def test_no_thread_that_is_waited_for_at_the_end_sleeps_long(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = time.sleep

    def counted(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", counted)
    async with DurableAgents(file, {"desk": desk(tmp_path)}):
        await until(lambda: bool(slept))
    assert max(slept) <= 0.1


async def test_a_worker_that_stops_takes_no_threads_from_the_rest_of_the_program(
    file: str, tmp_path: Path
) -> None:
    over = False

    async def goes_on() -> int:
        done = 0
        while not over:
            await asyncio.to_thread(time.sleep, 0.001)
            done += 1
        return done

    rest = [asyncio.create_task(goes_on()) for _ in range(20)]  # more than there are threads
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        run_id = await worker.start("desk", PROMPT)
        await worker.result(run_id)
    over = True
    assert all(await asyncio.gather(*rest))


async def test_what_cannot_be_meant_is_named(file: str, tmp_path: Path) -> None:
    with pytest.raises(ToolcribError, match="agent 'bare' needs a state_key"):
        DurableAgents(file, {"bare": Agent(Model("Hi."))})
    with pytest.raises(TypeError, match="agents must be a dict of agents by name; got a list"):
        DurableAgents(file, [desk(tmp_path)])  # type: ignore[arg-type]
    with pytest.raises(ToolcribError, match="slots"):
        DurableAgents(file, {}, slots=0)
    with pytest.raises(
        ToolcribError, match=r"the name of an agent is 'de\\x00sk', which holds NUL"
    ):
        DurableAgents(file, {"de\0sk": desk(tmp_path)})
    with pytest.raises(ToolcribError, match="a database in a file or on a server"):
        DurableAgents("sqlite://", {})
    async with DurableAgents(file, {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match=r"no status 'waitng' \(did you mean 'waiting'"):
            await worker.list("waitng")  # type: ignore[arg-type]
        with pytest.raises(ToolcribError, match="there is no agent 'shop' here; available: desk"):
            await worker.start("shop", PROMPT)
        with pytest.raises(ToolcribError, match="already working in this process"):
            await DurableAgents(file, {}).__aenter__()
        with pytest.raises(ToolcribError, match="there is no run"):
            await worker.result("run_none")


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("slots", "3"), ("slots", 2.5), ("lease", None), ("deps", {"Till": object()})],
)
def test_an_option_of_a_wrong_type_is_named(file: str, option: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"^{option} must be a"):
        DurableAgents(file, {}, **{option: wrong})


async def test_a_word_that_is_no_truth_value_resolves_no_call(file: str) -> None:
    durable = DurableAgents(file, {})
    with pytest.raises(TypeError, match=r"DurableAgents\.resolve: happened must be a bool"):
        await durable.resolve("run_1", "call_1", happened="no", by="eve")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"DurableAgents\.cancel: run_id must be a str"):
        await durable.cancel(7)  # type: ignore[arg-type]
    await durable.aclose()


async def test_an_id_that_no_database_can_hold_is_that_of_nothing(
    postgres: Callable[[], str], tmp_path: Path
) -> None:
    durable = DurableAgents(postgres(), {"desk": desk(tmp_path)})
    with pytest.raises(ToolcribError, match="the id of a caller is 'a\\\\x00da', which holds NUL"):
        await durable.start("desk", PROMPT, caller=Caller("a\0da"))
    await durable.start("desk", PROMPT, run_id="run_?")
    for id_ in ("run_\0", "run_\ud800", "x" * 5_000):
        for use in (durable.show, durable.cancel, durable.resume, durable.result):
            with pytest.raises(ToolcribError, match="there is no run"):
                await use(id_)
        with pytest.raises(ApprovalError) as raised:
            await durable.answer(id_, Approve(by="grace"))
        assert raised.value.code is ErrorCode.UNKNOWN_APPROVAL
    await durable.aclose()


PNG = b"\x89PNG\r\n\x1a\n"


async def test_a_typed_answer_is_read_again_from_the_store(file: str) -> None:
    agents = {"count": Agent(Model("17"), output=int, state_key=KEY)}
    async with DurableAgents(file, agents) as worker:
        result = await worker.result(await worker.start("count", "How many?"))
        found: StoredRun = await worker.show(result.state.run_id)
    assert (result.output, found.text) == (17, "17")


async def test_a_prompt_with_an_image_is_kept(file: str) -> None:
    image, other = (Image.from_bytes("image/png", PNG + more) for more in (b"", b"1"))
    async with DurableAgents(file, {"look": Agent(Model("A pixel."), state_key=KEY)}) as worker:
        for _ in range(2):
            run_id = await worker.start("look", ["What is it?", image], run_id="one")
        result = await worker.result(run_id)
        with pytest.raises(ToolcribError, match="the id of another run"):
            await worker.start("look", ["What is it?", other], run_id="one")
    assert (result.text, result.messages[0].parts) == ("A pixel.", (image,))


async def test_what_a_worker_leaves_undone_others_do(url: str, tmp_path: Path) -> None:
    """Whatever of it was begun, queued, or only given to the engine when it stopped."""
    for at in range(4):
        async with DurableAgents(url, {"desk": desk(tmp_path)}, slots=1) as worker:
            for _ in range(2):
                await worker.start("desk", PROMPT)
            await asyncio.sleep(0.15 * at)
    async with DurableAgents(url, {"desk": desk(tmp_path)}) as worker:
        runs = [run.id for run in await worker.list()]
        results = await asyncio.gather(*(answered(worker, run_id) for run_id in runs))
    assert [result.text for result in results] == ["All done."] * 8
    cut = [r for result in results for r in result.records if state_of(r).endswith("unknown)")]
    assert cut == []


async def test_a_run_that_nobody_ever_worked_on_has_no_events(url: str, tmp_path: Path) -> None:
    client = DurableAgents(url, {"desk": desk(tmp_path)})
    run_id = await client.start("desk", PROMPT)
    await client.cancel(run_id)
    (done,) = [event async for event in client.events(run_id)]
    assert isinstance(done, Done)
    assert done.result.status == "cancelled"
    with pytest.raises(ApprovalError, match="cannot be stored"):
        await client.answer("apr_1", LimitedApprove("grace", may=lambda _request: True))
    await client.aclose()


async def test_without_the_extra_it_says_what_to_install(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    engine.dbos.cache_clear()
    monkeypatch.setattr(engine, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[durable\]'"):
        DurableAgents(file, {})


@pytest.mark.parametrize("changed", ["definition", "gone"])
async def test_a_new_version_goes_on_with_what_waits_and_says_what_has_changed(
    file: str, changed: str
) -> None:
    ran: list[int] = []

    def version(description: str) -> dict[str, Agent]:
        @tool(visible=ALL, safe=False, description=description or "Gone.")
        async def refund(order: int) -> str:
            ran.append(order)
            return "refunded"

        tools = [refund] if description else []
        return {"shop": Agent(Model(call("refund", order=7), "Done."), tools, state_key=KEY)}

    async with DurableAgents(file, version("Refund an order.")) as worker:
        run_id = await worker.start("shop", PROMPT)
        await worker.result(run_id)
    (request,) = await worker.pending()
    await worker.answer(request.id, Approve(by="grace"))
    newer = version("Refund all of an order." if changed == "definition" else "")
    async with DurableAgents(file, newer) as worker:
        if changed == "gone":
            with pytest.raises(ToolcribError, match="'refund', which this agent does not have"):
                await worker.result(run_id)
        else:
            (record,) = (await worker.result(run_id)).records
            assert state_of(record) == "failed (approval_mismatch)"
    assert ran == []


@pytest.mark.parametrize("then", ["waiting", "completed"])
async def test_what_a_run_no_longer_asks_is_not_asked(file: str, then: str) -> None:
    """A new version asks anew about its tool, or denies it: the old question has no answer left."""

    def version(description: str, denies: Any = ()) -> dict[str, Agent]:
        @tool(visible=ALL, safe=False, description=description)
        async def refund(order: int) -> str:
            return "refunded"

        turns = ([call("refund", order=7), call("refund", order=8)], "Done.")
        return {"shop": Agent(Model(*turns), ToolRunner([refund], policy=denies), state_key=KEY)}

    async with DurableAgents(file, version("Refund an order.")) as worker:
        run_id = await worker.start("shop", PROMPT)
        await worker.result(run_id)
        first, second = await worker.pending()
    await worker.answer(first.id, Approve(by="grace"))
    denies = (lambda _call, _context: Deny("not any more")) if then == "completed" else ()
    async with DurableAgents(file, version("Refund all of it.", denies)) as newer:
        result = await newer.result(run_id)
        assert (result.status, tuple(await newer.pending())) == (then, result.pending)
        with pytest.raises(ApprovalError) as raised:
            await newer.answer(second.id, Approve(by="grace"))
        assert raised.value.code is ErrorCode.UNKNOWN_APPROVAL
        assert (await answered(newer, run_id)).status == "completed"


async def test_a_run_under_way_asks_about_a_tool_that_has_changed_meanwhile(
    url: str, tmp_path: Path
) -> None:
    """The model had called the tool as the old version has it; no worker of that had begun the call."""

    def version(description: str, before: Callable[[int], Any] = lambda _at: None) -> Agent:
        @tool(visible=ALL, description=description)
        async def pay(to: str) -> str:
            ran.append(description)
            return "paid"

        turns = (call("pay", to="ada"), call("pay", to="bob"), "Done.")
        return Agent(Model(*turns, before=before), [pay], state_key=KEY)

    def stop(at: int) -> None:
        older._steps.stops = at == 1  # no step begins after this reply

    ran: list[str] = []
    older = DurableAgents(url, {"shop": version("Pay.", stop)})
    async with older:
        run_id = await older.start("shop", PROMPT)
        while len(await older._engine.steps(run_id, 0)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with DurableAgents(url, {"shop": version("Pay it all.")}) as newer:
        assert (await newer.result(run_id)).status == "waiting"
        (request,) = await newer.pending()
        assert request.reason == "the tool's definition has changed since the model called it"
        await newer.answer(request.id, Approve(by="grace"))
        result = await newer.result(run_id)
    assert (result.text, ran) == ("Done.", ["Pay.", "Pay it all."])
    assert [record.notes for record in result.records] == [(), ("tool_changed",)]


@pytest.mark.parametrize("picks", [False, True], ids=["it picks", "it picks no more"])
async def test_a_version_with_other_steps_says_so_and_loses_nothing(
    url: str, tmp_path: Path, picks: bool
) -> None:
    def version(*, picks: bool, stops: bool = False) -> DurableAgents:
        def stop(at: int) -> None:
            durable._steps.stops = stops and at == 1  # no step begins after this reply

        turns = (call("pay", to="ada"), call("pay", to="bob"), "Done.")
        options: Any = {"pick": PickOptions()} if picks else {}
        model = Model(*turns, before=stop)
        durable = DurableAgents(url, {"desk": desk(tmp_path, model=model, **options)})
        return durable

    async with version(picks=picks, stops=True) as older:
        run_id = await older.start("desk", "Pay.")
        while len(await older._engine.steps(run_id, 0)) < 3 + picks:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with version(picks=not picks) as newer:
        for _ in range(2):
            with pytest.raises(
                ToolcribError, match=r"failed: .*step 1 of run .* in this version of the program"
            ):
                await newer.result(run_id)
            await newer.resume(run_id)
        with pytest.raises(ToolcribError, match="step 1 of run"):
            await newer.result(run_id)
    async with version(picks=picks) as older:
        await older.resume(run_id)
        assert (await older.result(run_id)).text == "Done."
    ran = [line.split()[1] for line in (tmp_path / "effects").read_text("utf-8").splitlines()]
    assert ran == ["pay"] * 4  # each of two begins and ends


async def test_who_watches_reads_what_is_told_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 30
    read: list[int] = []
    steps = engine.Engine._steps

    def counted(self: engine.Engine, workflow: str, skipped: int) -> list[Any]:
        found = steps(self, workflow, skipped)
        read.append(len(found))
        return found

    monkeypatch.setattr(engine.Engine, "_steps", counted)
    monkeypatch.setattr("toolcrib.durable.agents._LOOK_SECONDS", 0.02)
    said = [call("look", what=str(at)) for at in range(turns)]
    agents = {"desk": desk(tmp_path, turns=(*said, "Over."), limits=Limits(turns=99))}
    async with DurableAgents(url, agents) as worker:
        run_id = await worker.start("desk", PROMPT)
        told = [event async for event in worker.events(run_id)]
    ended = [event.record.id for event in told if isinstance(event, ToolCallFinished)]
    assert len(ended) == len(set(ended)) == turns
    assert len(read) > 10
    assert sum(read) <= 2 * turns + 1 + len(read)


class Shop:
    def __init__(self, caller: str) -> None:
        self.caller = caller


@tool(visible=ALL, safe=False)
async def close(shop: Injected[Shop]) -> str:
    """Close the shop."""
    return f"closed for {shop.caller}"


async def test_a_run_has_its_options_its_instructions_and_what_it_is_given(file: str) -> None:
    told: list[str] = []
    asked: list[ChatRequest] = []

    class Asked(Model):
        async def chat(self, request: ChatRequest) -> Reply:
            asked.append(request)
            return await super().chat(request)

    def instructions(run: RunInfo) -> str:
        told.append(run.deps[Shop].caller)
        return f"You talk to {run.caller.id}."

    tools = Catalog([close]).bind({Shop: per_run})
    agent = Agent(Asked(call("close"), "Done."), tools, instructions=instructions, state_key=KEY)
    async with DurableAgents(file, {"a": agent}, deps=lambda run: {Shop: Shop(run.caller)}) as here:
        run_id = await here.start("a", "go", caller=ADA, reasoning="low", tool_choice="close")
        result = await answered(here, run_id)
    assert [record.result for record in result.records] == ["closed for ada"]
    assert (told, result.messages[0].content) == (["ada"], "You talk to ada.")
    assert [request.tool_choice.mode for request in asked] == ["tool", "auto"]
    assert {request.settings.reasoning for request in asked} == {"low"}


async def test_a_worker_has_to_know_what_each_run_is_given(file: str) -> None:
    agent = Agent(Model("Done."), Catalog([close]).bind({Shop: per_run}), state_key=KEY)
    client = DurableAgents(file, {"a": agent})
    run_id = await client.start("a", "go")
    with pytest.raises(BindingError, match="agent 'a': tool 'close' needs Shop"):
        await client.__aenter__()
    async with DurableAgents(file, {"a": agent}, deps=lambda _run: {}) as worker:
        with pytest.raises(ToolcribError, match="failed: BindingError: tool 'close' needs Shop"):
            await worker.result(run_id)
    await client.aclose()


async def test_a_worker_has_to_know_what_is_given_to_whoever_may_be_handed_over_to(
    file: str,
) -> None:
    needs = Catalog([close]).bind({Shop: per_run})
    last = Agent(Model("Done."), needs, name="last")
    middle = Agent(Model("Done."), name="middle", handovers=[last])
    first = Agent(Model("Done."), name="first", handovers=[middle], state_key=KEY)
    client = DurableAgents(file, {"a": first})
    with pytest.raises(BindingError, match=r"agent 'last': tool 'close' needs Shop.*give deps="):
        await client.__aenter__()
    await client.aclose()
    async with DurableAgents(file, {"a": first}, deps=lambda _run: {Shop: Shop("ada")}) as worker:
        assert (await worker.result(await worker.start("a", "go"))).text == "Done."


@tool(visible=ALL, safe=False)
async def repay(order: int, cents: int = 5) -> str:
    """Pay back."""
    return "paid back"


@pytest.mark.parametrize("second", ["", "Be brief."])
async def test_a_run_that_was_handed_over_is_still_the_one_that_was_asked_for(
    file: str, second: str
) -> None:
    """Its instructions are made by a function, in place of a system message of its history."""
    heir = Agent(Model("Done.", "Done."), [], name="heir", instructions=second, state_key=KEY)
    first = Agent(
        Model(call("hand_over_to_heir", reason="it knows"), "Never said."),
        [],
        name="first",
        instructions=lambda info: f"You serve {info.caller.id}.",
        handovers=[heir],
        state_key=KEY,
    )
    history = (Message.system("You are kind."),)
    async with DurableAgents(file, {"first": first}) as durable:
        for _ in range(3):
            asked = await durable.start(
                "first", PROMPT, history=history, caller=ADA, run_id="run_a"
            )
            assert (await durable.result(asked)).status == "completed"
        with pytest.raises(ToolcribError, match="another run"):
            await durable.start("first", "Other.", history=history, caller=ADA, run_id="run_a")


@pytest.mark.parametrize(("seconds", "ago"), [(0.2, None), (600.0, None), (600.0, 300.0)])
async def test_a_rule_lasts_from_the_answer_not_from_when_a_worker_takes_it(
    seconds: float, ago: float | None, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with ApprovalStore(f"sqlite:///{tmp_path / 'rules.db'}", state_key=KEY) as store:
        runner = ToolRunner([repay], approver=answer_later, rules=store)
        shop = Agent(Model([call("repay", order=7)], "Done."), runner, state_key=KEY)
        async with DurableAgents(url, {"shop": shop}) as durable:
            run_id = await durable.start("shop", PROMPT, caller=ADA)
            [question] = (await durable.result(run_id)).pending
        said_at = None if ago is None else time.time() - ago  # it was said elsewhere, before
        yes = Approve("grace", always=Always(("cents",), seconds, said_at))
        nobody_works = DurableAgents(url, {})
        await nobody_works.answer(question.id, yes)
        answered_at = time.time()
        await nobody_works.aclose()
        await asyncio.sleep(0.3)
        async with DurableAgents(url, {"shop": shop}) as durable:
            done = await durable.result(run_id)
        assert done.status == "completed"
        given = [each.rule.given_at for each in await store.rules() if each.rule is not None]
        assert len(given) == (seconds > 1)
        assert all(at <= answered_at and said_at in (None, at) for at in given)


async def test_a_run_without_money_is_limited_and_goes_on_when_there_is_some(file: str) -> None:
    """What was paid for before is kept, and neither asked nor paid for again."""

    def agents(store: SpendStore, money: float) -> dict[str, Agent]:
        policy = budget(money=money, per="caller", store=store, prices=lambda _usage, _model: 1)
        turns = ["Done."] if money == 3 else [call("look", at=n) for n in range(3)]
        runner = ToolRunner([look], policy=policy)
        return {"shop": Agent(ScriptedClient(turns), runner, state_key=KEY)}

    @tool(visible=ALL, read_only=True)
    async def look(at: int) -> str:
        """Look."""
        return f"seen {at}"

    async with SpendStore(file) as store:
        async with DurableAgents(file, agents(store, 2)) as durable:
            run_id = await durable.start("shop", "Look.", caller=ADA)
            result = await durable.result(run_id)
            assert (result.status, result.limit) == ("limited", "money")
            assert await store.paid("ada") == 2
        async with DurableAgents(file, agents(store, 3)) as durable:
            await durable.resume(run_id)
            result = await durable.result(run_id)
        assert (result.status, await store.paid("ada")) == ("completed", 3)


@pytest.mark.parametrize("blank", ["", "  "])
async def test_a_blank_id_is_no_id(blank: str, tmp_path: Path) -> None:
    """An application whose key is empty by mistake would begin a run each time."""
    async with DurableAgents(f"sqlite:///{tmp_path}/runs.db", {"desk": desk(tmp_path)}) as worker:
        with pytest.raises(ToolcribError, match="run_id= must be at most 200"):
            await worker.start("desk", PROMPT, run_id=blank)
        run_id = await worker.start("desk", PROMPT)
        with pytest.raises(ToolcribError, match="fork_id= must be at most 200"):
            await worker.fork(run_id, turn=0, fork_id=blank)
