"""What one of the processes of the fuzzer does.

Makes all calls, in an order of its own and some at a time, and goes on with the runs that wait for an
approval. Each execution of a tool is a line of the world's own ledger, FOLDER/world; each outcome that
a caller was given is a line of FOLDER/told. With `faults`, writes to the log fail now and
then: on SQLite the disk is full for this process, on PostgreSQL its connections are closed; some
commits are made, and nobody is told.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import psycopg

from toolcrib import ALL, Agent, Approve, CallContext, RunState, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.runner import CallScope
from toolcrib.storage import Transaction, UnreachableError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.context import RunTally
from toolcrib.values.json import JsonValue
from toolcrib.values.record import ToolInvocationRecord

RUN = "run"
CALLS = 24
RUNS = 4
TOGETHER = 8
ASKS = 3  # how often a call is made again whose outcome is not known
NAMES = ("pay", "put", "pay", "look")  # the tool of each call, by its number
LOST = 0.1  # of all commits, the answers of which are lost
FULL = 40_000  # bytes of a file: the log has more by then, and the world's ledger never


class World:
    """What happened, by nobody's word but that of the tools."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._world = os.open(folder / "world", flags)
        self._told = os.open(folder / "told", flags)
        self.chance = chance

    def close(self) -> None:
        os.close(self._world)
        os.close(self._told)

    async def happens(self, call_id: str) -> str:
        """Leave a line for an execution, at some moment of it; the token by which it is known."""
        token = uuid4().hex
        await self._pause()
        os.write(self._world, f"{call_id} {token}\n".encode())
        await self._pause()
        return token

    def tell(self, call_id: str, how: str, token: JsonValue) -> None:
        """Leave a line for what a caller was told."""
        os.write(self._told, f"{call_id} {how} {token}\n".encode())

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.01)))


def runner_of(log: AuditLog, world: World) -> ToolRunner:
    """The tools of the fuzzer: what may happen once, fail, happen again, read, or is asked about."""

    @tool(visible=ALL)
    async def pay(number: int, ctx: CallContext) -> str:
        """Pay once; each seventh payment fails when it has happened."""
        token = await world.happens(ctx.call_id)
        if number % 7 == 0:
            raise ValueError(token)
        return token

    @tool(visible=ALL, idempotent=True)
    async def put(number: int, ctx: CallContext) -> str:
        """Set something to a value."""
        return await world.happens(ctx.call_id)

    @tool(visible=ALL, read_only=True)
    async def look(number: int, ctx: CallContext) -> str:
        """Look at something that is different each time."""
        return await world.happens(ctx.call_id)

    @tool(visible=ALL, safe=False)
    async def charge(number: int, ctx: CallContext) -> str:
        """Charge somebody who has to be asked."""
        return await world.happens(ctx.call_id)

    async def later(_request: object) -> None:
        return None

    return ToolRunner([pay, put, look, charge], sinks=[log], approver=later)


async def prepare(url: str, folder: Path) -> None:
    """The runs that wait, each with one call, for all processes to go on with."""
    world = World(folder, random.Random(0))  # noqa: S311  seeded, to be repeated
    with closing(world):
        async with AuditLog(url) as log:
            for number in range(RUNS):
                client = ScriptedClient([call("charge", number=number)])
                result = await Agent(client, runner_of(log, world)).run("Charge it.")
                state = result.state.to_json()
                (folder / f"state_{number}").write_text(state, encoding="utf-8")


def saved_states(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("state_*")}


async def main(url: str, folder: Path, seed: int, faults: bool) -> None:
    world = World(folder, random.Random(seed))  # noqa: S311  likewise
    async with AuditLog(url) as log:
        runner = runner_of(log, world)
        states = saved_states(folder)
        work = [*range(CALLS), *sorted(states)]
        world.chance.shuffle(work)
        left = iter(work)

        async def worker() -> None:
            for one in left:
                for _ in range(ASKS):
                    with suppress(SourceError):  # it could not even begin
                        if isinstance(one, int):
                            known = await made(runner, world, one)
                        else:
                            known = await resumed(runner, world, states[one])
                        if known:
                            break

        async with failing(url, world.chance) if faults else nothing():
            await asyncio.gather(*(worker() for _ in range(TOGETHER)))


async def made(runner: ToolRunner, world: World, number: int) -> bool:
    """Make a call; whether its outcome is known."""
    scope = CallScope(RunTally(run_id=RUN))
    asked = ToolCall(f"call_{number}", NAMES[number % 4], f'{{"number":{number}}}')
    return tell(world, (await runner.exec(asked, scope=scope)).record)


async def resumed(runner: ToolRunner, world: World, state: str) -> bool:
    """Go on with a run; whether the outcome of its call is known."""
    saved = RunState.from_json(state)
    agent = Agent(ScriptedClient(["Done."]), runner)
    result = await agent.resume(saved, {saved.pending[0].id: Approve(by="grace")})
    known = [tell(world, record) for record in result.records if record.status != "waiting"]
    return all(known)


def tell(world: World, record: ToolInvocationRecord) -> bool:
    """Say what the caller was told; whether that was an outcome."""
    if record.error is None:
        world.tell(record.id, record.status, record.result)
        return True
    world.tell(record.id, record.error.code, "-")
    return record.error.code not in (ErrorCode.OUTCOME_UNKNOWN, ErrorCode.DUPLICATE_CALL)


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def failing(url: str, chance: random.Random) -> AsyncIterator[None]:
    """Writes fail for a moment, again and again; not any more when this is left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    fail = close_connections if url.startswith("postgresql") else fill_the_disk
    stop = asyncio.Event()

    async def again() -> None:
        while not stop.is_set():
            await asyncio.sleep(chance.uniform(0.002, 0.03))
            await fail(url, chance)

    task = asyncio.ensure_future(again())
    try:
        with losing_answers(chance):
            yield
    finally:
        stop.set()
        await task


@contextmanager
def losing_answers(chance: random.Random) -> Iterator[None]:
    """Some transactions are committed, and nobody is told."""
    commit = Transaction.commit

    def lost(transaction: Transaction) -> None:
        commit(transaction)
        if chance.random() < LOST:
            raise UnreachableError("the connection was cut")

    with patch.object(Transaction, "commit", lost):
        yield


async def fill_the_disk(_url: str, chance: random.Random) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))
    try:
        await asyncio.sleep(chance.uniform(0.01, 0.05))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


async def close_connections(url: str, _chance: random.Random) -> None:
    def close() -> None:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    with suppress(psycopg.Error):  # another process closes ours
        await asyncio.to_thread(close)


def run(url: str, folder: Path, seed: int, faults: bool) -> None:
    """In a process of its own."""
    logging.disable()
    asyncio.run(main(url, folder, seed, faults))
