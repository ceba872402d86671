"""A server that is killed in the middle: the page says what is unknown, and nothing runs twice."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chat.chat_helpers import RAN, Page, add, killed_thread, page_of, serving

from toolcrib import ALL, Agent, Message, ToolRunner, tool
from toolcrib.chat import chat_app, threads
from toolcrib.errors import SourceError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.call import ToolCall
from toolcrib.values.json import canonical_json
from toolcrib.values.message import ChatRequest, Reply, StreamPart, Usage


class Listening(ScriptedClient):
    """Keeps the last request's messages."""

    heard: tuple[Message, ...] = ()

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        self.heard = request.messages
        async for part in super().stream(request):
            yield part


@tool(visible=ALL)
async def pay(cents: int) -> str:
    """Pay."""
    return f"{cents}"


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, *, leases: int = 1) -> Iterator[None]:
    """Do this block when so many leases are over."""
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_now", lambda: time.time() + leases * threads.LEASE + 1)
        yield


@pytest.mark.parametrize("asks", ["no", "yes"])
async def test_a_killed_server_forgets_no_call(
    asks: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await killed_thread(url, tmp_path, asks)
    client = Listening(["I see."])
    app = chat_app(Agent(client, ToolRunner([pay])), store=url)
    async with serving(app) as base, aiohttp.ClientSession() as session:
        page = Page(base, session)
        with later(monkeypatch):
            await page.open(thread)
        assert page.turns[0]["status"] == "interrupted"
        states = {card["name"]: card["state"] for card in page.calls(0)}
        assert states == {"add": "completed", "pay": "unknown"}
        await page.ask("Try again.")
        await page.ended("completed", 2)
        said = "\n".join(message.content for message in client.heard)
        assert "Pay five, please." in said
        assert "its outcome is unknown" in said
        await page.close()
    assert (tmp_path / "ledger").read_text() == "5\n"


AT = "/threads/{thread_id}"
EACH_ROUTE: dict[tuple[str, str], tuple[object, int]] = {
    ("get", AT): (None, 200),
    ("patch", AT): ({"title": "Another"}, 200),
    ("delete", AT): ({}, 204),
    ("get", f"{AT}/export"): (None, 200),
    ("get", f"{AT}/stream"): (None, 200),
    ("post", f"{AT}/messages"): ({"text": "And now?"}, 202),
    ("post", f"{AT}/cancel"): ({}, 409),
    ("post", f"{AT}/approvals/{{approval_id}}"): ({"decision": "deny"}, 404),
    ("get", f"{AT}/calls/{{call_id}}"): (None, 404),
}
"""What is sent to each route of a thread, and the status of its answer where a turn was abandoned."""


async def test_each_route_of_a_thread_ends_a_turn_that_nobody_carries_any_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = threads.ThreadStore(url)
    app = chat_app(Agent(ScriptedClient(["I see."])), store=store)
    async with serving(app) as base, aiohttp.ClientSession(base) as session:
        described = (await (await session.get("/openapi.json")).json())["paths"]
        routes = {(method, path) for path in described for method in described[path]}
        assert {each for each in routes if "{thread_id}" in each[1]} == EACH_ROUTE.keys()
        for (method, path), (body, status) in EACH_ROUTE.items():
            thread = await store.create("local")
            assert await store.begin(thread, "local", "Pay five, please.")
            at = path.format(thread_id=thread, approval_id="x", call_id="x")
            with later(monkeypatch):
                async with session.request(method, at, json=body) as answer:
                    assert (path, method, answer.status) == (path, method, status)
            left = await store.load(thread, "local")
            ended = left is None or left.turns[0].status == "interrupted"
            assert (path, method, ended) == (path, method, True)


async def test_a_turn_whose_beginning_the_database_does_not_keep_is_not_begun(
    tmp_path: Path,
) -> None:
    store = threads.ThreadStore(f"sqlite:///{tmp_path}/crib.db")
    thread = await store.create("anna")
    turn = await store.begin(thread, "anna", "Pay.")
    assert turn is not None
    waiting = {**turn.view, "status": "waiting"}
    assert await store.end(thread, turn, waiting, state="{}")
    loaded = await store.load(thread, "anna")
    assert loaded is not None
    (turn,) = loaded.turns
    with closing(sqlite3.connect(tmp_path / "crib.db")) as database:
        database.execute(
            "CREATE TRIGGER back AFTER UPDATE ON chat_turns"
            " BEGIN UPDATE chat_turns SET status = 'waiting' WHERE id = new.id; END"
        )
        with pytest.raises(SourceError, match="did not store"):
            await store.begin_again(thread, "anna", turn, waiting)
        database.execute("DROP TRIGGER back")
    assert await store.begin_again(thread, "anna", turn, waiting)
    await store.aclose()


class Unconfirmed(threads.ThreadStore):
    """Commits the first end of a turn, and loses its confirmation once somebody has gone on with it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.committed, self.lost, self.tried = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def end(self, *given: Any, **named: Any) -> bool:
        kept = await super().end(*given, **named)
        if self.committed.is_set():
            self.tried.set()
            return kept
        self.committed.set()
        await self.lost.wait()
        raise SourceError("the connection was lost after COMMIT")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_an_end_that_is_tried_again_takes_no_turn_that_goes_on(
    where: str, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._LOOK", 0.05)
    monkeypatch.setattr("toolcrib.chat.live.LEASE", 60.0)
    RAN.clear()
    paying, gate = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL, safe=False)
    async def slow(cents: int) -> str:
        """Pay slowly."""
        RAN.append(cents)
        paying.set()
        await gate.wait()
        return f"paid {cents}"

    turns: list[Any] = [call("slow", cents=5), call("add", a=1, b=2), "Paid."]
    store = Unconfirmed(url)
    app = chat_app(Agent(ScriptedClient(turns), [slow, add]), store=store)
    other = chat_app(Agent(ScriptedClient(turns[1:]), [slow, add]), store=url)
    async with page_of(app) as page, serving(app if where == "here" else other) as base:
        answering = Page(base, page.session, page.thread)
        await page.ask("Pay.")
        await store.committed.wait()
        stored = await store.load(page.thread, "local")
        assert stored is not None
        asked = stored.turns[0].view["parts"][0]["approval"]
        path = f"/{page.thread}/approvals/{asked['id']}"
        assert (await answering.post(path, {"decision": "approve"}))[0] == 202
        await paying.wait()
        store.lost.set()
        await store.tried.wait()
        gate.set()
        await page.ended()
        assert page.text() == "Paid."
        status, told = await answering.post(path, {"decision": "approve"})
        assert (status, told["error"]["code"]) == (409, "already_answered")
    assert RAN == [5, 1]
    assert [r.getMessage() for r in caplog.records] == [
        "the end of a turn could not be saved: the connection was lost after COMMIT"
    ]


async def test_whoever_carried_a_turn_before_says_nothing_of_it_once_it_runs_again(
    url: str,
) -> None:
    async with threads.ThreadStore(url) as store:
        thread = await store.create("anna")
        first = await store.begin(thread, "anna", "Pay.")
        assert first is not None
        waiting = {**first.view, "status": "waiting"}
        assert await store.show(first, first.view)
        assert await store.end(thread, first, waiting, state="{}")
        assert not await store.show(first, first.view)
        loaded = await store.load(thread, "anna")
        assert loaded is not None
        (again,) = loaded.turns
        assert await store.begin_again(thread, "anna", again, first.view)
        assert await store.end(thread, first, waiting, state="{}")  # as it was, before
        assert not await store.end(thread, first, waiting, state="[]")
        assert not await store.end(thread, first, {**waiting, "status": "failed"})
        assert not await store.show(first, waiting)
        assert await store.show(again, {**first.view, "note": "it goes on"})
        loaded = await store.load(thread, "anna")
        assert loaded is not None
        (now,) = loaded.turns
        assert (now.status, now.view["note"]) == ("running", "it goes on")
        assert await store.end(thread, again, {**waiting, "status": "completed"}, state="[]")


@tool(visible=ALL)
async def hang(cents: int) -> str:
    """Pay, and do not come to an end."""
    RAN.append(str(cents))
    await asyncio.Event().wait()
    return ""


@tool(visible=ALL, safe=False)
async def ok(n: int) -> str:
    """Say so."""
    return "ok"


def hanging(*said: Any, store: str) -> Any:
    return chat_app(Agent(ScriptedClient([*said]), ToolRunner([ok, hang])), store=store)


def with_id(call_id: str, name: str, **arguments: int) -> Reply:
    """A reply of a client that numbers calls by itself."""
    made = ToolCall(call_id, name, canonical_json(arguments))
    return Reply(Message.assistant("", (made,)), "tool_calls", Usage(1))


async def until_ran(*paid: str) -> None:
    async with asyncio.timeout(20):
        while list(paid) != RAN:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
def _nothing_ran() -> Iterator[None]:
    RAN.clear()
    yield
    RAN.clear()


def told_of(client: Listening) -> list[str]:
    calls = [made for message in client.heard for made in message.tool_calls]
    return [made.arguments for made in calls if made.name == "hang"]


@pytest.mark.exhaustive  # a server waits for a tool that hangs
@pytest.mark.usefixtures("_nothing_ran")
async def test_a_turn_of_which_no_view_was_kept_tells_of_its_call(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed between the call and the view."""

    async def never(*_given: Any) -> bool:
        await asyncio.Event().wait()
        return True

    client = Listening(["I see."])
    async with aiohttp.ClientSession() as session:
        with monkeypatch.context() as killed:
            killed.setattr(threads.ThreadStore, "show", never)
            async with serving(hanging(call("hang", cents=5), store=url)) as base:
                page = Page(base, session)
                await page.open()
                await page.ask("Pay five.")
                await until_ran("5")
                await page.close()
        again = chat_app(Agent(client, ToolRunner([ok, hang])), store=url)
        async with serving(again) as base:
            other = Page(base, session)
            with later(monkeypatch):
                await other.open(page.thread)
            await other.ask("And now?")
            await other.ended(turns=2)
            (card,) = other.calls(0)
            assert (card["state"], card["arguments"]) == ("unknown", {"cents": 5})
            assert told_of(client) == ['{"cents":5}']
            await other.close()


@pytest.mark.exhaustive  # a server waits for a tool that hangs
@pytest.mark.usefixtures("_nothing_ran")
@pytest.mark.parametrize("first", ["a", "b"])
async def test_two_turns_that_broke_off_side_by_side_are_told_with_all_calls(
    first: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ids a client gives their calls."""
    client = Listening(["I see."])
    async with aiohttp.ClientSession() as session:
        said = with_id("c", "ok", n=1), with_id(first, "hang", cents=5)
        async with serving(hanging(*said, store=url)) as base:
            page = Page(base, session)
            await page.open()
            await page.ask("One.")
            await page.ended("waiting")
            asked = page.calls(0)[0]["approval"]["id"]
            await page.ask("Two.")
            await until_ran("5")
            await page.close()
        async with serving(hanging(with_id("b", "hang", cents=7), store=url)) as base:
            page = Page(base, session, page.thread)
            with later(monkeypatch):
                await page.open()
            answer = f"/{page.thread}/approvals/{asked}", {"decision": "approve"}
            assert (await page.post(*answer))[0] == 202
            await until_ran("5", "7")
            await page.close()
        again = chat_app(Agent(client, ToolRunner([ok, hang])), store=url)
        async with serving(again) as base:
            page = Page(base, session, page.thread)
            with later(monkeypatch, leases=2):
                await page.open()
            await page.ask("And now?")
            await page.ended(turns=3)
            assert sorted(told_of(client)) == ['{"cents":5}', '{"cents":7}']
            await page.close()
