"""The store of threads: whose each id is, on both databases."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest
from chat.chat_helpers import page_of

from toolcrib import ALL, Agent, Caller, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.chat import ThreadStore, chat_app
from toolcrib.chat.threads import BusyError
from toolcrib.errors import SourceError
from toolcrib.storage import SqlDatabase, as_column
from toolcrib.testing import MemorySink, ScriptedClient, call
from toolcrib.values.call import ToolCall
from toolcrib.values.context import CallScope, RunTally
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunState

BOTH = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
LONG = "".join(map(str, range(3_000)))
IDS = ["ada", "ada\0", "ada?", LONG, LONG[:-1], as_column("ada\0"), as_column(LONG)]
"""What some database cannot hold or index, or holds alike, and what each of them is written as."""


@tool(visible=ALL, safe=False)
async def pay(cents: int) -> int:
    """Pay."""
    return cents


async def record_of(call_id: str) -> ToolInvocationRecord:
    sink = MemorySink()
    scope = CallScope(RunTally("run_1", "x" * 32))
    await ToolRunner([pay], sinks=[sink]).exec(
        ToolCall(call_id, "pay", '{"cents": 5}'), scope=scope
    )
    return sink.records[-1]


async def waits(owner: str) -> RunState:
    """Return a run of a caller that waits for an answer."""
    runner = ToolRunner([pay], approver=answer_later)
    agent = Agent(ScriptedClient([call("pay", cents=5)]), runner)
    return (await agent.run("Pay.", caller=Caller(owner))).state


@BOTH
async def test_a_thread_is_its_owners_alone_whatever_their_id_is(url: str) -> None:
    async with ThreadStore(url) as store:
        threads = {owner: await store.create(owner, "Mine.") for owner in IDS}
        for owner, other in itertools.permutations(IDS, 2):
            theirs = threads[other]
            assert await store.load(theirs, owner) is None
            assert not await store.rename(theirs, owner, "Not mine.")
            assert await store.begin(theirs, owner, "Go.") is None
            assert not await store.delete(theirs, owner)
        for owner, mine in threads.items():
            assert await store.rename(mine, owner, "Still mine.")
            assert await store.begin(mine, owner, "Go.")
            loaded = await store.load(mine, owner)
            assert loaded is not None
            assert (loaded.id, loaded.owner, len(loaded.turns)) == (mine, owner, 1)
            listed = await store.list(owner)
            assert [(each["id"], each["title"]) for each in listed] == [(mine, "Still mine.")]


@BOTH
async def test_a_run_that_waits_is_its_owners_and_its_threads_alone(url: str) -> None:
    places = list(itertools.product(IDS, IDS))
    async with ThreadStore(url) as store:
        states = {place: await waits(place[0]) for place in places}
        for place in places:
            await store.keep_waiting(*place, states[place])
        for place in places:
            assert await store.waiting(*place) == states[place]
        for place in places:
            assert await store.take_waiting(*place, states[place])
            assert await store.waiting(*place) is None


@BOTH
async def test_of_two_runs_of_a_thread_that_come_to_wait_at_once_one_is_kept(url: str) -> None:
    states = [await waits("ada") for _ in range(2)]
    async with ThreadStore(url) as one, ThreadStore(url) as other:
        stores = one, other
        assert [await store.waiting("ada", "main") for store in stores] == [None, None]
        for thread in map(str, range(20)):
            kept = await asyncio.gather(
                *(s.keep_waiting("ada", thread, w) for s, w in zip(stores, states, strict=True))
            )
            assert sorted(kept) == [False, True]
            assert await one.waiting("ada", thread) == states[kept.index(True)]


@BOTH
async def test_what_is_kept_and_not_confirmed_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, really, lost = await waits("ada"), SqlDatabase.transact, list[bool]()

    async def unconfirmed(database: SqlDatabase, work: Any, *, write: bool = True) -> Any:
        done = await really(database, work, write=write)
        if write and lost.pop():
            raise SourceError("the connection was lost")
        return done

    async with ThreadStore(url) as store:
        thread = await store.create("ada")
        turn = await store.begin(thread, "ada", "Pay.")
        assert turn is not None
        view = {**turn.view, "status": "waiting"}
        assert await store.end(thread, turn, view, state=state.to_json())
        loaded = await store.load(thread, "ada")
        assert loaded is not None
        (turn,) = loaded.turns
        monkeypatch.setattr(SqlDatabase, "transact", unconfirmed)
        lost[:] = [False, True, True]
        assert await store.begin_again(thread, "ada", turn, view)
        lost[:] = [False]
        with pytest.raises(BusyError):
            await store.begin_again(thread, "ada", turn, view)
        lost[:] = [False, True, True]
        assert await store.keep_waiting("ada", "main", state)
        lost[:] = [False]
        assert not await store.keep_waiting("ada", "main", await waits("ada"))
        assert await store.waiting("ada", "main") == state


@BOTH
async def test_each_call_of_a_run_is_kept_whatever_its_id_is(url: str) -> None:
    records = {call_id: await record_of(call_id) for call_id in IDS}
    async with ThreadStore(url) as store:
        for record in records.values():
            await store.keep_call(record)
            await store.keep_call(record)
        assert await store.calls("run_1") == records


@BOTH
async def test_no_thread_has_an_id_that_no_database_holds(url: str) -> None:
    bodies = {"GET": {}, "DELETE": {}, "PATCH": {"title": "Mine."}}
    async with page_of(chat_app(Agent(ScriptedClient([])), store=url)) as page:
        for method, body in bodies.items():
            status, told = await page.post("/thread_%00", body, method=method)
            assert (method, status, told["error"]["code"]) == (method, 404, "unknown_thread")


@BOTH
async def test_a_title_is_found_by_its_words_in_any_case(url: str) -> None:
    titles = ["Ärger mit Überweisung", "ΣΊΣΥΦΟΣ", "привет мир", "Straße", "100%_!", "ABC\x00"]
    async with ThreadStore(url) as store:
        for title in titles:
            await store.create("ada", title)
            await store.create("eve", title)
        for title in titles:
            for search in (title, title.lower(), title.upper(), title[1:4].title()):
                (found,) = await store.list("ada", search=search)
                assert found["title"] == title.replace("\x00", "?")
        assert len(await store.list("ada", search="", most=4)) == 4
        assert len(await store.list("ada", search=" ", most=4)) == 2
        assert len(await store.list("ada", search="р", most=1)) == 1
        assert await store.list("ada", search="%") != await store.list("ada")


@BOTH
async def test_what_an_older_version_kept_is_found_still(url: str) -> None:
    """It wrote long ids as they are, and a NUL of a call's as `?`."""
    owner, nul = "ada" * 100, "call_\0"
    ids = {nul: "call_?", LONG[:300]: LONG[:300]}
    records = {call_id: await record_of(call_id) for call_id in ids}
    began = {i: msgspec.structs.replace(each, status="started") for i, each in records.items()}
    async with ThreadStore(url) as store:
        thread = await store.create(owner)
        await store._database.write("UPDATE chat_threads SET owner = :owner", owner=owner)
        for call_id, record in began.items():
            await store._database.write(
                "INSERT INTO chat_calls (run_id, call_id, record) VALUES ('run_1', :id, :record)",
                id=ids[call_id],
                record=msgspec.json.encode(record).decode(),
            )
        assert [each["id"] for each in await store.list(owner)] == [thread]
        assert await store.load(thread, owner) is not None
        assert await store.calls("run_1") == began
        for record in records.values():
            await store.keep_call(record)
        assert await store.calls("run_1") == records
        for placed, kept in (("ada", True), (nul, False)):
            state = await waits(placed)
            await store._database.write(
                "INSERT INTO chat_waiting (owner, thread, state, kept_at, expires_at)"
                " VALUES (:owner, 't', :state, 0, :until)",
                owner=placed.replace("\0", "?"),
                state=state.to_json(),
                until=time.time() + 60,
            )
            assert (await store.waiting(placed, "t") == state) == kept
