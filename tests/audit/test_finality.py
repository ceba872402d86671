"""A final outcome is final: later entries only add to it. Nobody is told what the log does not have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from audit.audit_helpers import opened, record
from hypothesis import example, given
from hypothesis import strategies as st

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    Completed,
    Deny,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.audit.entry import BEGAN, FINAL, kind_of
from toolcrib.cli.audit import stories
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.runner import CallScope
from toolcrib.storage import Transaction, UnreachableError
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Decision
from toolcrib.values.json import key_of
from toolcrib.values.record import (
    NO_JSON,
    CallError,
    Outcome,
    ToolInvocationRecord,
    earlier_key_of,
)

UNKNOWN = CallError.of(ErrorCode.OUTCOME_UNKNOWN)
CALL = ToolCall("10", "pay", '{"cents":5}')


def scope(run_id: str = "run_1", **given: Any) -> CallScope:
    return CallScope(RunTally(run_id), **given)


class Slow:
    """What a tool waits for when it has begun."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.begun.set()
        await self.go_on.wait()


def paying(ran: list[int], slow: Slow | None = None) -> Any:
    @tool(visible=ALL)
    async def pay(cents: int) -> int:
        """Pay once."""
        ran.append(cents)
        if slow is not None:
            await slow.wait()
        return len(ran)

    return pay


def unknown(number: int = 1, **given: Any) -> ToolInvocationRecord:
    return record(number, "failed", error=UNKNOWN, started_at=1_764_000_001.5, **given)


async def test_the_first_final_outcome_stands_whatever_is_written_later(url: str) -> None:
    """By `find`, `begin`, `last`, `show` and `list`; before this, the last entry was believed."""
    async with AuditLog(url) as log:
        begun = record(1, "started")
        assert await log.begin(begun) is None
        assert await log.write(unknown()) is None  # a gap is filled
        assert await log.find(begun) == unknown()
        assert await log.write(record(1)) is None
        assert await log.write(unknown()) == record(1)
        assert await log.write(record(1, result={"found": 2})) == record(1)
        assert await log.write(record(1, "failed")) == record(1)
        assert await log.find(begun) == await log.begin(begun) == record(1)
        last = await log.last("call_1")
        assert last is not None
        assert last.record == record(1)
        entries = await log.entries()
        assert [e.record.status for e in entries] == [
            *("started", "failed", "completed", "completed", "failed")
        ]
        (story,) = stories(entries)
        assert story.record == record(1)
        listed = await log.entries(AuditFilter(latest=True))
        assert [e.seq for e in listed] == [3, 4, 5]  # not that somebody did not know
        assert (await log.verify()).ok


async def test_outcomes_that_are_committed_together_have_one_winner(url: str) -> None:
    async with AuditLog(url) as log:
        await log.begin(record(1, "started"))
        mine = [record(1, result={"found": n}) for n in range(9)]
        told = await asyncio.gather(*(log.write(one) for one in (unknown(), *mine, unknown())))
        assert told == [None, None, *[mine[0]] * 9]


@pytest.mark.parametrize("together", [False, True])
async def test_nothing_goes_on_after_an_end(together: bool, url: str) -> None:
    """Whoever claims that a call goes on is given its end, and writes nothing; committed together or
    not."""
    key = key_of("run_1", "call_1")
    ended, begun = record(1, idempotency_key=key), record(1, "started", idempotency_key=key)

    def claim(number: int) -> ToolInvocationRecord:
        return record(1, "started", idempotency_key=f"sha256:{number}", process="p")

    async with AuditLog(url) as log:
        assert await log.begin(begun) is None
        assert await log.begin(claim(1)) is None
        assert await log.begin(claim(1)) == claim(1)
        assert await log.write(unknown(idempotency_key=key)) is None
        assert await log.begin(claim(2)) is None
        if together:
            told = await asyncio.gather(log.write(ended), *map(log.begin, map(claim, (1, 3, 4))))
            assert told == [None, ended, ended, ended]
        else:
            assert await log.write(ended) is None
        assert [await log.begin(claim(number)) for number in (1, 3)] == [ended, ended]
        other = record(2, "started", idempotency_key="sha256:5", process="p")
        assert await log.begin(other) is None  # that call has not ended
        told = [entry.record for entry in await log.entries()]
        assert told == [begun, claim(1), unknown(idempotency_key=key), claim(2), ended, other]
        assert (await log.verify()).ok


@pytest.mark.parametrize("strong", ["completed", "failed"])
async def test_a_call_that_runs_is_listed_as_started_until_it_ends(strong: Any) -> None:
    """Whatever another attempt of the same call came to, without its key."""
    async with AuditLog("sqlite://") as log:
        await log.begin(record(1, "started"))
        await log.write(record(1, "failed", idempotency_key=""))
        latest = AuditFilter(latest=True)
        assert [e.seq for e in await log.entries(latest)] == [1, 2]
        await log.write(record(1, strong))
        await log.write(record(1, "waiting", idempotency_key=""))
        assert [e.seq for e in await log.entries(latest)] == [2, 3]


async def test_a_row_whose_columns_were_changed_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}") as log:
        await log.begin(record(1, "started"))
        with opened(path) as database:
            database.execute("UPDATE audit_entries SET status = 'completed', code = ''")
        assert await log.find("run_1/1") == record(1, "started")
        assert await log.begin(record(1, "started")) == record(1, "started")
        assert await log.write(record(1)) is None
        assert await log.find("run_1/1") == record(1)
        assert not (await log.verify()).ok


async def test_the_loser_of_two_has_the_outcome_of_the_winner(url: str) -> None:
    ran: list[int] = []
    slow = Slow()
    pay = paying(ran, slow)
    async with AuditLog(url) as log, AuditLog(url) as other:
        others = other if url != "sqlite://" else log
        one = asyncio.ensure_future(ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope()))
        await slow.begun.wait()
        two = ToolRunner([pay], sinks=[others])
        first = await two.exec(CALL, scope=scope())
        assert isinstance(first, Failed)
        assert first.error == UNKNOWN
        slow.go_on.set()
        won = await one
        again = await two.exec(CALL, scope=scope())
        assert isinstance(won, Completed)
        assert isinstance(again, Completed)
        assert (again.replayed, again.record) == (True, won.record)
        (story,) = stories(await log.entries())
        assert story.record == won.record
        assert ran == [5]


async def test_who_could_not_know_is_told_if_the_log_knows_by_then() -> None:
    """The winner's outcome lands between the loser's look at the key and the loser's own entry."""
    ran: list[int] = []
    pay = paying(ran)

    class Late(AuditLog):
        async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
            known = await super().begin(entry)
            if known is None:
                return None
            return msgspec.structs.replace(known, status="started", result_json=NO_JSON)

    async with Late("sqlite://") as log:
        won = await ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope())
        sink = MemorySink()
        lost = await ToolRunner([pay], sinks=[log, sink]).exec(CALL, scope=scope())
        assert isinstance(lost, Completed)
        assert (lost.replayed, lost.record) == (True, won.record)
        assert sink.records == []
        assert [e.record.status for e in await log.entries()] == ["started", "completed"]


async def test_what_runs_twice_has_one_outcome() -> None:
    """An idempotent tool may run in two processes; both callers are told what the log has."""
    first, results = Slow(), iter((1, 2))

    @tool(visible=ALL, idempotent=True)
    async def pay(cents: int) -> int:
        """Set it."""
        mine = next(results)
        if mine == 1:
            await first.wait()
        return mine

    async with AuditLog("sqlite://") as log:
        slow = asyncio.ensure_future(ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope()))
        await first.begun.wait()
        fast = await ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope())
        first.go_on.set()
        outcome = await slow
        assert isinstance(fast, Completed)
        assert isinstance(outcome, Completed)
        assert (fast.value, fast.replayed, outcome.value, outcome.replayed) == (2, False, 2, True)


async def test_two_resumes_at_once_have_one_story(url: str) -> None:
    """Of an approved call; before this, `show` told of the one that did not run it."""

    @tool(visible=ALL, safe=False)
    async def pay(cents: int) -> int:
        """Pay once."""
        await asyncio.sleep(0)
        return cents

    async def later(_request: object) -> None:
        return None

    for at in range(8):
        call = ToolCall(f"call_{at}", "pay", '{"cents":5}')
        async with AuditLog(url) as log:
            waits: Any = await ToolRunner([pay], sinks=[log], approver=later).exec(
                call, scope=scope()
            )
            yes = scope(
                answers={waits.request.id: Approve(by="grace")},
                questions={waits.request.id: waits.request},
            )
            outcomes = await asyncio.gather(
                *(ToolRunner([pay], sinks=[log]).exec(call, scope=yes) for _ in range(2))
            )
            done = [one for one in outcomes if isinstance(one, Completed) and not one.replayed]
            assert len(done) == 1
            (story,) = stories(await log.entries(AuditFilter(call_id=call.id)))
            assert story.record == done[0].record
            assert story.why().startswith("It ran because grace approved it, after the policy")
            assert not story.why().endswith("how it ended.")


class Full(AuditLog):
    """A log whose disk is full when an outcome has to be written, as long as it says so."""

    full = True

    def _commit(self, items: Any) -> Any:
        if self.full and any(
            getattr(item, "status", "") in ("completed", "failed") for item, _claim in items
        ):
            raise SourceError("the disk is full")
        return super()._commit(items)


async def test_an_outcome_that_cannot_be_written_is_unknown_until_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[int] = []
    sink, told = MemorySink(), list[Outcome]()

    class Watch:
        def finished(self, outcome: Outcome) -> None:
            told.append(outcome)

    watched = scope(observer=Watch())
    async with Full("sqlite://") as log:
        runner = ToolRunner([paying(ran)], sinks=[sink, log], remember=1)
        with caplog.at_level(logging.WARNING, "toolcrib.audit"):
            outcomes = [await runner.exec(CALL, scope=watched) for _ in range(2)]
        assert "pay ran" in caplog.text
        assert "the disk is full" in caplog.text
        for outcome in outcomes:
            assert isinstance(outcome, Failed)
            assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
            assert outcome.error.message.startswith("The tool ran, but")
        log.full = False
        for number in range(3):  # what the log has not is not forgotten
            await runner.exec(msgspec.structs.replace(CALL, id=f"other_{number}"), scope=scope())
        log.full = True
        assert (await runner.exec(CALL, scope=watched)).record.error is not None
        log.full = False
        again = [await runner.exec(CALL, scope=watched) for _ in range(2)]
        for outcome in again:
            assert isinstance(outcome, Completed)
            assert (outcome.value, outcome.replayed) == (1, True)
        found = await log.find(key_of("run_1", "10"))
        assert found == again[0].record
        assert found is not None
        assert [r.status for r in sink.records if r.id == "10"] == ["failed", "completed"]
        assert told == [*outcomes, told[2], *again]
        assert len(ran) == 4


class Cut:
    """A connection that is cut between a commit and its answer, so often as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        commit = Transaction.commit

        def lost(transaction: Transaction) -> None:
            commit(transaction)
            if self.left:
                self.left -= 1
                raise UnreachableError("the connection was cut")

        monkeypatch.setattr(Transaction, "commit", lost)


@pytest.mark.parametrize("kind", ["completes", "fails", "only reads"])
@pytest.mark.parametrize("times", [1, 2])
async def test_an_outcome_whose_answer_was_lost_is_written_once(
    url: str, kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, ran = Cut(monkeypatch), list[int]()

    @tool(visible=ALL, read_only=kind == "only reads")
    async def pay(cents: int) -> int:
        """Pay once."""
        ran.append(cents)
        cut.left = times
        if kind == "fails":
            raise ToolError("no money")
        return len(ran)

    async with AuditLog(url) as log:
        runner = ToolRunner([pay], sinks=[log])
        told = [await runner.exec(CALL, scope=scope()) for _ in range(times + 2)]
        assert told[0].record.error is not None
        assert told[0].record.error.code is ErrorCode.OUTCOME_UNKNOWN
        assert told[-1].record == told[-2].record
        begun = [] if kind == "only reads" else ["started"]
        ended = "failed" if kind == "fails" else "completed"
        assert [e.record.status for e in await log.entries()] == [*begun, ended]
        assert (await log.entries())[-1].record == told[-1].record
        assert len(ran) == 1


async def test_a_begin_whose_answer_was_lost_lets_no_call_run_and_is_written_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, ran = Cut(monkeypatch), list[int]()
    async with AuditLog(url) as log:
        runners = [ToolRunner([paying(ran)], sinks=[log]) for _ in range(2)]
        await runners[0].exec(msgspec.structs.replace(CALL, id="9"), scope=scope())
        cut.left = 1
        with pytest.raises(SourceError, match="cut"):
            await runners[0].exec(CALL, scope=scope())
        for runner in (*runners, *runners):
            assert not isinstance(await runner.exec(CALL, scope=scope()), Completed)
        assert len(ran) == 1
        entries = await log.entries(AuditFilter(call_id="10"))
        assert [e.record.status for e in entries].count("started") == 1


async def test_an_unknown_outcome_whose_answer_was_lost_is_written_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, unknown = Cut(monkeypatch), record(1, "failed", error=UNKNOWN)
    async with AuditLog(url) as log:
        await log.begin(record(1, "started"))
        cut.left = 1
        with pytest.raises(SourceError, match="cut"):
            await log.write(unknown)
        for written in (unknown, record(1), record(1), record(1, result={"found": 2})):
            await log.write(written)
        assert [e.record for e in await log.entries()] == [
            record(1, "started"),
            unknown,
            record(1),
            record(1, result={"found": 2}),
        ]


async def test_an_outcome_that_is_given_again_before_it_is_committed_is_written_once(
    url: str,
) -> None:
    """As by another event loop, when the one that wrote it first has ended: both are in one batch."""
    async with AuditLog(url) as log:
        await log.begin(record(1, "started"))
        told = [record(1)] * 5 + [record(1, "failed", error=UNKNOWN)] * 2
        await asyncio.gather(*map(log.write, told))
        assert [e.record for e in await log.entries()] == [record(1, "started"), record(1)]
        assert (await log.verify()).ok


async def test_other_sinks_that_fail_are_told_of_as_ever() -> None:
    class Broken:
        def write(self, _record: ToolInvocationRecord) -> None:
            raise OSError("disk full")

    ran: list[int] = []
    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([paying(ran)], sinks=[Broken(), log])
        with pytest.raises(OSError, match="disk full"):
            await runner.exec(CALL, scope=scope())
        again = await runner.exec(CALL, scope=scope())
        assert isinstance(again, Completed)
        assert again.replayed


async def test_a_refusal_that_cannot_be_written_raises() -> None:
    """Nothing has happened that would have to be told of."""
    async with Full("sqlite://") as log:
        runner = ToolRunner([paying([])], sinks=[log])
        with pytest.raises(SourceError, match="the disk is full"):
            await runner.exec(msgspec.structs.replace(CALL, arguments="{}"), scope=scope())


# Short texts of few characters, so that pairs which join to one text come up often.
TEXTS = st.text(alphabet="01:/é\ud800", max_size=4) | st.text(max_size=8)
PAIRS = st.tuples(TEXTS, TEXTS)


@given(PAIRS, PAIRS)
@example(("1", "10"), ("10", "10"))
@example(("", "a/b"), ("a", "b"))
@example(("1", "1:"), ("11", ":"))
def test_no_two_calls_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (key_of(*one) == key_of(*other)) is (one == other)


async def test_a_call_of_another_run_gets_no_receipt_of_this_one() -> None:
    ran: list[int] = []
    async with AuditLog("sqlite://") as log:
        for run_id in ("1", "10"):
            outcome = await ToolRunner([paying(ran)], sinks=[log]).exec(CALL, scope=scope(run_id))
            assert isinstance(outcome, Completed)
            assert not outcome.replayed
    assert ran == [5, 5]


@pytest.mark.parametrize("ended", [True, False])
async def test_what_began_under_an_old_key_is_found_by_its_run_and_call(
    url: str, ended: bool
) -> None:
    """Both calls had the key "10" in earlier versions; one of them was made there."""
    ran: list[int] = []
    pay = paying(ran)
    assert earlier_key_of("1", "10") == earlier_key_of("10", "10") == "10"
    scratch = MemorySink()
    await ToolRunner([pay], sinks=[scratch]).exec(CALL, scope=scope("1"))
    (made,) = scratch.records
    ran.clear()
    async with AuditLog(url) as log:
        old = msgspec.structs.replace(made, idempotency_key="10", key_scope="store")
        begun = msgspec.structs.replace(
            old, status="started", result_json=NO_JSON, ended_at=None, seconds=None
        )
        await log.write(begun)
        if ended:
            await log.write(old)
        same = await ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope("1"))
        assert ran == []
        if ended:
            assert isinstance(same, Completed)
            assert (same.replayed, same.record) == (True, old)
        else:
            assert isinstance(same, Failed)
            assert same.error.code is ErrorCode.OUTCOME_UNKNOWN
        other = await ToolRunner([pay], sinks=[log]).exec(CALL, scope=scope("10"))
        assert isinstance(other, Completed)
        assert not other.replayed
        assert ran == [5]


async def test_somebody_is_not_asked_about_what_ended_under_an_old_key() -> None:
    @tool(visible=ALL, safe=False)
    async def pay(cents: int) -> int:
        """Pay."""
        raise AssertionError

    async def asked(_request: object) -> Approve:
        raise AssertionError

    async with AuditLog("sqlite://") as log:
        runner = ToolRunner([pay], sinks=[log], approver=asked)
        scratch = MemorySink()
        await ToolRunner([pay], sinks=[scratch]).exec(CALL, scope=scope("1"))
        made = scratch.records[0]
        await log.write(
            msgspec.structs.replace(made, status="completed", error=None, idempotency_key="10")
        )
        outcome = await runner.exec(CALL, scope=scope("1"))
        assert isinstance(outcome, Completed)
        assert outcome.replayed


@pytest.mark.parametrize("at", ["attach", "started"])
async def test_a_second_sink_that_fails_before_the_tool_is_said_to_have_failed(
    url: str, at: str
) -> None:
    """Nobody cancelled the call: the log says that it did not run, and why, and so does its story."""

    class Fails:
        write_ahead = True

        async def attach(self, _attachment: object) -> None:
            if at == "attach":
                raise OSError("disk full")

        async def write(self, record: ToolInvocationRecord) -> None:
            if at == record.status:
                raise OSError("disk full")

    ran: list[int] = []
    async with AuditLog(url) as log:
        with pytest.raises(OSError, match="disk full"):
            await ToolRunner([paying(ran)], sinks=[log, Fails()]).exec(CALL, scope=scope())
        (story,) = stories(await log.entries())
        assert [entry.record.status for entry in story.entries] == ["started", "failed"]
        assert story.why().startswith("It did not run: an audit sink failed")
        again = await ToolRunner([paying(ran)], sinks=[log]).exec(CALL, scope=scope())
        assert isinstance(again, Failed)
        assert again.error.code is ErrorCode.NOT_RECORDED
    assert ran == []


@pytest.mark.parametrize("old", [False, True], ids=["its key", "its earlier key"])
async def test_a_read_that_failed_has_ended_and_its_key_is_taken(url: str, old: bool) -> None:
    """It has no `started`: before this, it was told differing ends until one of them completed."""
    code = ErrorCode.CANCELLED
    failed, other = record(1, "failed"), record(1, "failed", error=CallError.of(code))
    asked, key = record(1, "started"), "run_1/call_1" if old else failed.idempotency_key
    failed = msgspec.structs.replace(failed, idempotency_key=key)
    async with AuditLog(url) as log:
        assert await log.write(unknown()) is None  # nobody knows: it may be read again
        assert await log.find(asked) is None
        assert await log.write(failed) is None
        assert await log.find(asked) == failed
        assert await log.write(other) == failed
        assert await log.begin(asked) == failed
        assert await log.write(record(1)) == failed
        assert await log.find(asked) == await log.begin(asked) == failed
        last = await log.last("call_1")
        assert last is not None
        assert last.record == failed
        (story,) = stories(await log.entries())
        assert story.record == failed
        assert [entry.record.status for entry in await log.entries()].count("started") == 0
        assert (await log.verify()).ok


async def test_a_read_that_ends_and_a_claim_that_are_committed_together_have_one_winner(
    url: str,
) -> None:
    async with AuditLog(url) as log:
        failed, begun = record(1, "failed"), record(1, "started")
        told = await asyncio.gather(log.write(failed), log.begin(begun), log.write(record(1)))
        assert tuple(told) == (None, failed, failed)


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (record(1, "started"), BEGAN),
        (record(1, "completed"), BEGAN + FINAL),
        (record(1, "failed"), FINAL),
        (record(1, "failed", error=UNKNOWN), 0),
        (record(1, "waiting"), 0),
    ],
    ids=lambda given: getattr(given, "status", str(given)),
)
def test_what_the_index_says_of_an_entry_is_what_it_said_in_older_logs(
    ended: ToolInvocationRecord, kind: int
) -> None:
    assert (kind_of(ended), BEGAN, FINAL) == (kind, 1, 2)


class Reader:
    """Two tools: one that reads and ends in these ways, one after the other, and one with effects."""

    def __init__(self, ways: list[str]) -> None:
        self.left, self.paid = ways.copy(), 0

    def tools(self) -> list[Any]:
        @tool(visible=ALL, read_only=True)
        async def look(cents: int) -> str:
            """Look."""
            way = self.left.pop(0) if self.left else "given"
            if way == "cancelled":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            if way in ("bad", "worse"):
                raise ToolError(way)
            return way

        @tool(visible=ALL)
        async def pay(cents: int) -> str:
            """Pay."""
            self.paid += 1
            return "paid"

        return [look, pay]


async def ends(names: list[str], runners: list[ToolRunner]) -> list[object]:
    """What is told of each of these calls, all of one id; None of one whose caller was cancelled."""
    told: list[object] = []
    for name, runner in zip(names, runners, strict=True):
        call = msgspec.structs.replace(CALL, name=name)
        asked = asyncio.ensure_future(runner.exec(call, scope=scope()))
        await asyncio.wait([asked])
        record = None if asked.cancelled() else asked.result().record
        told.append(record and (record.name, record.status, record.error, record.result))
    return told


@given(
    st.lists(st.sampled_from(["given", "bad", "worse", "cancelled"]), min_size=2, max_size=4),
    st.integers(0, 4),
)
@example(["bad", "worse"], 4)
@example(["bad", "worse"], 1)
def test_a_read_has_one_end_in_its_process_and_in_all(ways: list[str], at: int) -> None:
    """What a runner remembers is what a log tells runners that remember nothing; a call with effects
    under the id of the read runs only if it is the first."""
    names = ["pay" if number == at else "look" for number in range(len(ways))]
    one, many = Reader(ways), Reader(ways)

    async def both() -> tuple[list[object], list[object]]:
        async with AuditLog("sqlite://") as log:
            remembered = await ends(names, [ToolRunner(one.tools())] * len(ways))
            runners = [ToolRunner(many.tools(), sinks=[log]) for _ in ways]
            found = await ends(names, runners)
            assert (await log.verify()).ok
            return remembered, found

    for remembered, found in zip(*asyncio.run(both()), strict=True):
        assert remembered == found or None in (remembered, found)
    assert one.paid == many.paid == (at == 0)


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_a_read_that_never_began_has_not_ended(url: str, how: str) -> None:
    """Another sink kept its tool from beginning: the log has no `started`, and the key is free."""
    writing, ran = asyncio.Event(), list[int]()

    class Announced:
        write_ahead = True
        well = False

        async def write(self, record: ToolInvocationRecord) -> None:
            if record.status == "started" and not self.well:
                writing.set()
                await asyncio.sleep(0.01)
                if how == "fails":
                    raise OSError("disk full")

    @tool(visible=ALL, read_only=True)
    async def pay(cents: int) -> int:
        """Read what was paid."""
        ran.append(cents)
        return cents

    async with AuditLog(url) as log:
        sink = Announced()
        runner = ToolRunner([pay], sinks=[log, sink])
        first = asyncio.ensure_future(runner.exec(CALL, scope=scope()))
        await writing.wait()
        if how == "cancelled":
            first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (first.cancelled(), ran) == (how == "cancelled", [])
        assert [entry.record.idempotency_key for entry in await log.entries()] == [""]
        sink.well = True
        for again in (runner, ToolRunner([pay], sinks=[log])):
            assert isinstance(await again.exec(CALL, scope=scope()), Completed)
        (story,) = stories(await log.entries())
        assert story.record.status == "completed"


def interrupted(*, read_only: bool) -> list[Any]:
    marks: dict[str, Any] = {"visible": ALL, "read_only": read_only}

    @tool(**marks)
    async def at_once(cents: int) -> int:
        """Be interrupted."""
        raise KeyboardInterrupt

    @tool(**marks)
    async def later(cents: int) -> int:
        """Be interrupted when it has waited."""
        await asyncio.sleep(0.001)
        raise KeyboardInterrupt

    @tool(**marks)
    async def streams(cents: int) -> AsyncIterator[int]:
        """Be interrupted after a part."""
        yield cents
        raise KeyboardInterrupt

    @tool(**marks)
    def thread(cents: int) -> int:
        """Be interrupted in a thread."""
        raise KeyboardInterrupt

    return [at_once, later, streams, thread]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with another"])
@pytest.mark.parametrize("read_only", [False, True], ids=["effects", "reads"])
@pytest.mark.parametrize("name", ["at_once", "later", "streams", "thread"])
def test_a_program_that_is_interrupted_has_its_calls_in_the_log(
    tmp_path: Path, name: str, read_only: bool, beside: bool
) -> None:
    """By a tool itself, as by Ctrl-C: the whole program ends, and each call that began has an end."""
    url = f"sqlite:///{tmp_path}/crib.db"

    @tool(visible=ALL, read_only=read_only)
    async def waits(cents: int) -> None:
        """Wait until it is cancelled."""
        await asyncio.sleep(30)

    calls = [ToolCall("0", name, CALL.arguments), ToolCall("1", "waits", CALL.arguments)]

    async def program() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it prints such ends
        async with AuditLog(url) as log:
            runner = ToolRunner([*interrupted(read_only=read_only), waits], sinks=[log])
            await (runner.exec_all(calls) if beside else runner.exec(calls[0]))

    async def told() -> list[tuple[str, str, str]]:
        async with AuditLog(url) as log:
            records = [entry.record for entry in await log.entries()]
        return [(one.id, one.status, one.error.code if one.error else "") for one in records]

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    ids = {call.id for call in calls[: 1 + beside]}
    found = asyncio.run(told())
    assert {line for line in found if line[1] == "failed"} == {
        (i, "failed", "cancelled") for i in ids
    }
    begun = [id_ for id_, status, _ in found if status == "started"]
    assert sorted(begun) == ([] if read_only else sorted(ids))


class Refuses:
    """Denies each call, at one of the times at which a policy is asked."""

    def __init__(self, when: str) -> None:
        self._when = when

    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("closed") if self._when == "decides" else Allow()


class Counting(Refuses):
    def count(self, _call: Hydrated, _context: PolicyContext) -> Deny | None:
        return Deny("closed") if self._when == "counts" else None

    def settle(self, _record: ToolInvocationRecord, _context: PolicyContext) -> None:
        """Nothing was counted."""


class Reserving(Refuses):
    async def reserve(self, _call: Hydrated, _context: PolicyContext) -> Deny:
        return Deny("closed")


@pytest.mark.parametrize("policy", [Refuses("decides"), Counting("counts"), Reserving("reserves")])
async def test_a_call_that_has_ended_has_its_outcome_whenever_it_is_denied_now(
    policy: Refuses,
) -> None:
    """It is asked for again in another process, where it would not be made."""
    ran: list[int] = []
    async with AuditLog("sqlite://") as log:
        made = await ToolRunner([paying(ran)], sinks=[log]).exec(CALL, scope=scope())
        again = ToolRunner([paying(ran)], sinks=[log], policy=[policy])
        told = await again.exec(CALL, scope=scope())
        assert isinstance(made, Completed)
        assert isinstance(told, Completed)
        assert (told.record, told.replayed, ran) == (made.record, True, [5])
        new = await again.exec(msgspec.structs.replace(CALL, id="11"), scope=scope())
        assert isinstance(new, Failed)
        assert (new.error.code, isinstance(new.record.decision, Deny)) == (ErrorCode.DENIED, True)


async def test_a_call_that_ends_while_somebody_is_asked_has_its_outcome_though_it_is_denied_then() -> (
    None
):
    """It runs in another process meanwhile, and here nothing is allowed any more."""
    ran: list[int] = []

    class Closes:
        closed = False

        def __call__(self, _call: Hydrated, _context: PolicyContext) -> Decision:
            return Deny("closed") if self.closed else Ask("about money", "closes")

    async with AuditLog("sqlite://") as log:
        elsewhere, closes = ToolRunner([paying(ran)], sinks=[log]), Closes()

        async def slow(_request: ApprovalRequest) -> Approve:
            made = await elsewhere.exec(CALL, scope=scope())
            assert isinstance(made, Completed)
            closes.closed = True
            return Approve(by="eve")

        here = ToolRunner([paying(ran)], sinks=[log], policy=[closes], approver=slow)
        told = await here.exec(CALL, scope=scope())
        assert (type(told), ran) == (Completed, [5])
        assert isinstance(told, Completed)
        assert told.replayed
