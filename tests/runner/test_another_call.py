"""Under one key there is one call: nobody is told what became of another one, wherever it is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from samples import sampled, whole_only

from toolcrib import ALL, Caller, Completed, ErrorCode, Failed, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.errors import SourceError
from toolcrib.testing import MemorySink
from toolcrib.values.record import Outcome, ToolInvocationRecord

Made = tuple[str, str, str]  # tool, account, caller
FIRST = (("look", "a", "ada"), ("pay", "a", "ada"), ("put", "a", "ada"))
SECOND = (
    *FIRST,
    *(("look", "b", "ada"), ("look", "a", "bob"), ("peek", "a", "ada")),
    *(("pay", "b", "ada"), ("pay", "a", "bob"), ("put", "b", "bob")),
)


class Bank:
    """Tools that say on what they ran, and wait until they are let go."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def _run(self, name: str, account: str) -> str:
        self.ran.append((name, account))
        self.begun.set()
        await self.go.wait()
        return f"{name} {account}"

    def runner(self, *sinks: Any) -> ToolRunner:
        @tool(visible=ALL, read_only=True)
        async def look(account: str) -> str:
            """Look."""
            return await self._run("look", account)

        @tool(visible=ALL, read_only=True)
        async def peek(account: str) -> str:
            """Look elsewhere."""
            return await self._run("peek", account)

        @tool(visible=ALL)
        async def pay(account: str) -> str:
            """Pay."""
            return await self._run("pay", account)

        @tool(visible=ALL, idempotent=True)
        async def put(account: str) -> str:
            """Set."""
            return await self._run("put", account)

        return ToolRunner([look, peek, pay, put], sinks=sinks)


async def made(runner: ToolRunner, call: Made) -> Outcome:
    name, account, caller = call
    asked = ToolCall("c", name, f'{{"account": "{account}"}}')
    return await runner.exec(asked, caller=Caller(caller))


def check_told(outcome: Outcome, call: Made, *, ran: bool) -> None:
    """Each is told of its own call: what it gave, or that it may not be made."""
    name, account, caller = call
    record = outcome.record
    assert (record.name, record.caller, record.arguments) == (name, caller, {"account": account})
    if isinstance(outcome, Completed):
        assert ran
        assert outcome.value == outcome.public == f"{name} {account}"
    else:
        assert isinstance(outcome, Failed)
        assert outcome.error.code in (ErrorCode.DUPLICATE_CALL, ErrorCode.OUTCOME_UNKNOWN)


def check_outcomes(
    outcomes: list[Outcome], again: list[Outcome], *, same: bool, together: bool
) -> None:
    if same:
        assert isinstance(again[1], Completed)
    elif not together:
        assert isinstance(outcomes[1], Failed)
        assert outcomes[1].error.code is ErrorCode.DUPLICATE_CALL


@pytest.mark.parametrize("first", sampled(FIRST, part=2), ids=str)
@pytest.mark.parametrize("together", [False, True], ids=["over", "running"])
@pytest.mark.parametrize("where", ["memory", whole_only("one log"), "two logs"])
async def test_nobody_is_told_what_became_of_another_call(
    first: Made, together: bool, where: str, tmp_path: Path
) -> None:
    for number, second in enumerate(SECOND):
        bank, sink = Bank(), MemorySink()
        path = f"sqlite:///{tmp_path}/{number}.db"
        logs = [AuditLog(path) for _ in range(0 if where == "memory" else 2)]
        log = logs[0] if logs else None
        one = bank.runner(*logs[:1])
        two = one if log is None else bank.runner(logs[where == "two logs"], sink)
        if not together:
            bank.go.set()
        running = asyncio.ensure_future(made(one, first))
        await bank.begun.wait()
        if not together:
            await running
        bank.begun.clear()
        other = asyncio.ensure_future(made(two, second))
        waits = asyncio.ensure_future(bank.begun.wait())
        await asyncio.wait([other, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        bank.go.set()
        outcomes = [await running, await other]
        again = [await made(one, first), await made(two, second)]
        ran = set(bank.ran)
        for outcome, call in zip((*outcomes, *again), (first, second) * 2, strict=True):
            check_told(outcome, call, ran=call[:2] in ran)
        assert isinstance(outcomes[0], Completed) or together
        check_outcomes(outcomes, again, same=second == first, together=together)
        for effect in ("pay", "put"):  # what has an effect has it for one of the calls alone
            assert len({done for done in bank.ran if done[0] == effect}) <= 1
        if log is not None:
            written = [entry.record for entry in await log.entries()]
            assert all(outcome.record in written for outcome in (*outcomes, *again))
            assert {r.name for r in sink.records} <= {second[0]}
            assert (await log.verify()).ok
        for opened in logs:
            await opened.aclose()


async def test_an_outcome_that_is_written_later_finds_another_call() -> None:
    """A read could not be written; meanwhile another process made another call under its id."""

    class Full(AuditLog):
        full = True

        async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
            if self.full:
                raise SourceError("the disk is full")
            return await super().write(record)

    bank = Bank()
    bank.go.set()
    async with Full("sqlite://") as log:
        runner, ada, bob = bank.runner(log), ("look", "a", "ada"), ("look", "b", "bob")
        unknown = await made(runner, bob)
        assert isinstance(unknown, Failed)
        assert unknown.error.code is ErrorCode.OUTCOME_UNKNOWN
        log.full = False
        assert isinstance(await made(bank.runner(log), ada), Completed)
        for _ in range(2):
            told = await made(runner, bob)
            check_told(told, bob, ran=True)
            assert isinstance(told, Failed)
            assert told.error.code is ErrorCode.DUPLICATE_CALL
        kept = await made(runner, ada)  # the key is hers, in this process too
        assert isinstance(kept, Completed)
        assert kept.value == "look a"
