"""Conversations whose runs are durable: servers that are killed, answers from elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("dbos", reason="the extra durable is not installed")

from chat.browser import browsing
from chat.chat_helpers import RAN, Late, Page, add, page_of, pay
from durable.desk import KEY, Model
from playwright.async_api import expect
from rows import each_row
from waiting import until

from toolcrib import ALL, Agent, Approve, tool
from toolcrib.chat import ThreadStore, chat_app
from toolcrib.durable import DurableAgents
from toolcrib.errors import ClientError, SourceError, ToolcribError
from toolcrib.testing import call, openai_server
from toolcrib.testing.scripted import Said, ServerTurn

TOKEN = "a-token-of-some-length"
SHOP = '''
import asyncio
from pathlib import Path
from toolcrib import ALL, tool

HERE = Path(__file__).parent

@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    with (HERE / "ledger").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{order} ")
    return f"refunded {order}"

@tool(visible=ALL)
async def slow() -> str:
    """Take long."""
    (HERE / "begun").touch()
    await asyncio.sleep(60)
    return "done"
'''


@asynccontextmanager
async def command(url: str, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `toolcrib serve --durable`; yield its process, and its address with the token."""
    words = ("serve", "--durable", "--port", "0", "--tools", "shop.py", "--model", f"{url}#m")
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolcrib", *words),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TOOLCRIB_TOKEN": TOKEN},
    )
    assert server.stderr is not None
    while "/#token=" not in (line := (await server.stderr.readline()).decode()):
        assert line, "the server did not start"
    try:
        yield server, line.strip()
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


@pytest.mark.exhaustive  # a browser, and three servers one after the other
async def test_a_killed_server_goes_on_and_shows_what_it_asked(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    turns: list[ServerTurn] = [
        ["Let me see.", call("refund", order=7)],
        "It is done.",
        call("slow"),
        "Who knows.",
        "Nothing more.",
    ]
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with openai_server(turns) as model, aiohttp.ClientSession(headers=headers) as session:

        def at(address: str, thread: str = "") -> Page:
            return Page(address.partition("/#")[0], session, thread)

        async with command(model.url, tmp_path) as (server, address):
            page = at(address)
            await page.open()
            await page.ask("Refund 7.")
            await page.ended("waiting")
            server.kill()
            await page.close()
        async with command(model.url, tmp_path) as (server, address), browsing() as browser:
            shown = await browser.new_page()
            await shown.goto(address)
            await shown.get_by_role("link", name="Refund 7.").click()
            await shown.get_by_role("button", name="Approve", exact=True).click()
            await expect(shown.get_by_text("It is done.")).to_be_visible()
            await expect(shown.get_by_text("Let me see.")).to_have_count(1)
            page = at(address, page.thread)
            await page.open()
            await page.ended()
            await page.ask("Be slow.")
            await until((tmp_path / "begun").exists, 60)
            await browser.close()
            server.kill()
            await page.close()
        async with command(model.url, tmp_path) as (server, address):
            page = at(address, page.thread)
            await page.open()
            await page.ended("completed", 2)
            assert [each["state"] for each in page.calls()] == ["unknown"]
            await page.ask("And now?")
            await page.ended("completed", 3)
            assert page.text() == "Nothing more."
            server.send_signal(signal.SIGINT)
            assert await server.wait() == 0
            await page.close()
    assert len(model.requests) == len(turns)  # nothing was asked again
    said = [message["role"] for message in model.requests[-1]["messages"]]
    assert said == [*["user", "assistant", "tool", "assistant"] * 2, "user"]
    assert (tmp_path / "ledger").read_text() == "7 "


def agent(*turns: Said, **made: Any) -> Agent:
    return Agent(made.pop("model", None) or Model(*turns), [add, pay, hang], state_key=KEY)


@tool(visible=ALL)
async def hang() -> str:
    """Hang."""
    RAN.append("hang")
    await asyncio.Event().wait()
    return "never"


@asynccontextmanager
async def chatting(url: str, made: Agent) -> AsyncIterator[tuple[Page, DurableAgents]]:
    """Serve a chat of an agent whose runs are durable, and open a new thread of it."""
    RAN.clear()
    async with (
        DurableAgents(url, {"chat": made}) as durable,
        page_of(chat_app(made, store=url, durable=durable)) as page,
    ):
        yield page, durable


async def test_what_the_page_asks_may_be_answered_elsewhere_and_counts_once(url: str) -> None:
    async with chatting(url, agent(["Hm.", call("pay", cents=5)], "Paid.")) as (page, durable):
        await page.ask("Pay.")
        await page.ended("waiting")
        asked = page.calls()[0]["approval"]["id"]
        assert page.calls()[0]["approval"]["schema"]["properties"] == {"cents": {"type": "integer"}}
        await durable.answer(asked, Approve(by="eve"))
        await page.ended("completed")
        assert page.text() == "Hm.Paid."
        assert page.calls()[0]["approved_by"] == "eve"
        status, told = await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "approve"})
        assert (status, told["error"]["code"]) == (409, "already_answered")
        (run,) = await durable.list()
        assert (run.status, run.agent, run.caller) == ("completed", "chat", "local")
        _, why = await page.get(f"/{page.thread}/calls/{page.calls()[0]['id']}")
        assert why["record"]["approved_by"] == "eve"
    assert RAN == [5]


@tool(visible=ALL, read_only=True, name="pay")
async def paid_before(order: int) -> str:
    """Look up what was paid."""
    return "nothing"


async def test_a_question_shows_the_schema_of_the_agent_that_asks(url: str) -> None:
    turns: list[Said] = [call("hand_over_to_back", reason="x"), call("pay", cents=5), "Paid."]
    back = Agent(Model(*turns), [pay], name="back")
    front = Agent(Model(*turns), [paid_before], name="chat", handovers=[back], state_key=KEY)
    async with chatting(url, front) as (page, _):
        await page.ask("Pay.")
        await page.ended("waiting")
        shown = page.calls()[-1]["approval"]
        assert shown["schema"]["properties"] == {"cents": {"type": "integer"}}
        await page.post(f"/{page.thread}/approvals/{shown['id']}", {"decision": "approve"})
        await page.ended("completed")
        assert page.text() == "Paid."


async def test_two_questions_are_answered_one_after_the_other(url: str) -> None:
    both: Said = ["Both.", call("pay", cents=1), call("pay", cents=2)]
    async with chatting(url, agent(both, "Done.")) as (page, _):
        await page.ask("Pay twice.")
        await page.ended("waiting")
        for at, each in enumerate(page.calls()):
            asked = each["approval"]["id"]
            answer = {"decision": "approve"}
            assert (await page.post(f"/{page.thread}/approvals/{asked}", answer))[0] == 202
            await page.until(partial(_is_over, at=at))
        await page.ended("completed")
        assert page.text() == "Both.Done."
        assert len(page.turns[0]["replies"]) == 2
    assert RAN == [1, 2]


def _is_over(state: Any, *, at: int) -> bool:
    turn = state["turns"][0]
    calls = [part for part in turn["parts"] if part["kind"] == "call"]
    return bool(calls[at]["state"] == "completed" and turn["status"] != "running")


async def test_a_run_is_cancelled_from_another_server_and_its_call_is_known(url: str) -> None:
    made = agent(call("hang"), "It hung.")
    async with chatting(url, made) as (page, _):
        await page.ask("Hang.")
        await until(lambda: RAN == ["hang"], 20)
        elsewhere = DurableAgents(url, {"chat": made})
        async with page_of(chat_app(made, store=url, durable=elsewhere)) as other:
            await other.close()
            await other.open(page.thread)
            assert (await other.post(f"/{page.thread}/cancel"))[0] == 202
            await other.ended("cancelled")
        await page.ended("cancelled")
        assert [each["state"] for each in page.calls()] == ["unknown"]
        await page.ask("And?")
        await page.ended("completed", 2)
        assert page.text() == "It hung."
        await elsewhere.aclose()


async def test_a_run_that_fails_says_why_and_the_thread_is_free(url: str) -> None:
    def fail(at: int) -> None:
        if at == 0 and not failed:
            failed.append(at)
            raise ClientError("the line is down")

    failed: list[int] = []
    made = agent(model=Model("Here I am.", before=fail))
    async with chatting(url, made) as (page, _):
        await page.ask("Hello?")
        await page.ended("failed")
        assert page.turns[0]["note"] == "the line is down"
        await page.ask("Hello?", instead_of=page.turns[0]["id"])
        await page.ended("completed", 2)
        assert page.text() == "Here I am."


class Unconfirmed:
    """Durable agents whose database does what one of them is to do, and does not confirm it: as often
    as said. Without `does` it does nothing."""

    def __init__(self, runs: DurableAgents, name: str, times: int, *, does: bool = True) -> None:
        self._runs, self._name, self._times, self._does = runs, name, times, does

    def __getattr__(self, name: str) -> Any:
        return self._unconfirmed if name == self._name else getattr(self._runs, name)

    async def _unconfirmed(self, *given: Any, **named: Any) -> Any:
        self._times -= 1
        if self._does or self._times < 0:
            done = await getattr(self._runs, self._name)(*given, **named)
        if self._times >= 0:
            raise SourceError("the connection was lost")
        return done


@each_row(
    ("name", "times", "does"),
    [
        ("start", 1, True),
        ("start", 1, False),
        ("start", 99, True),
        ("answer", 1, True),
        ("cancel", 1, True),
    ],
)
async def test_what_is_done_and_not_confirmed_is_shown_as_done(
    name: str, times: int, *, does: bool, tmp_path: Path
) -> None:
    RAN.clear()
    url = f"sqlite:///{tmp_path}/chat.db"
    made = agent(call("pay", cents=5), "Paid.")
    async with DurableAgents(url, {"chat": made}) as durable:
        unconfirmed: Any = Unconfirmed(durable, name, times, does=does)
        async with page_of(chat_app(made, store=url, durable=unconfirmed)) as page:
            assert (await page.ask("Pay."))[0] == 202
            await page.ended("waiting")
            if name == "cancel":
                assert (await page.post(f"/{page.thread}", method="DELETE"))[0] == 204
            else:
                path = f"/{page.thread}/approvals/{page.calls()[0]['approval']['id']}"
                assert (await page.post(path, {"decision": "approve"}))[0] == 202
                await page.ended("completed")
                assert page.text() == "Paid."
            ended = "cancelled" if name == "cancel" else "completed"
            assert [run.status for run in await durable.list()] == [ended]
    assert ([] if name == "cancel" else [5]) == RAN


async def test_a_run_that_could_not_begin_fails_its_turn(url: str) -> None:
    made = agent("Hello.")
    async with DurableAgents(url, {"chat": made}) as durable:
        unconfirmed: Any = Unconfirmed(durable, "start", 99, does=False)
        async with page_of(chat_app(made, store=url, durable=unconfirmed)) as page:
            assert (await page.ask("Hello?"))[0] == 503
            await page.ended("failed")
            assert await durable.list() == []


async def test_a_thread_that_is_deleted_asks_nothing_any_more(url: str) -> None:
    made = agent(call("pay", cents=5), "Paid.")
    async with chatting(url, made) as (page, durable):
        await page.ask("Pay.")
        await page.ended("waiting")
        await page.close()
        assert (await page.post(f"/{page.thread}", method="DELETE"))[0] == 204
        assert await durable.pending() == []
        assert [run.status for run in await durable.list()] == ["cancelled"]
        with pytest.raises(ToolcribError, match="may_approve"):
            chat_app(made, store=url, durable=durable, may_approve=lambda _who, _what: True)


class Held(ThreadStore):
    """Has its thread deleted only when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.held, self.told = asyncio.Event(), asyncio.Event()

    async def delete(self, *given: Any) -> bool:
        self.held.set()
        await self.told.wait()
        return await super().delete(*given)


async def test_a_question_that_is_asked_as_its_thread_is_deleted_keeps_it(url: str) -> None:
    made, store = agent(call("pay", cents=5), "Paid."), Held(url)
    async with (
        store,
        DurableAgents(url, {"chat": made}) as durable,
        page_of(chat_app(made, store=store, durable=durable)) as page,
    ):
        deleting = asyncio.create_task(page.post(f"/{page.thread}", method="DELETE"))
        await store.held.wait()
        await page.ask("Pay.")
        await page.ended("waiting")
        store.told.set()
        status, told = await deleting
        assert (status, told["error"]["code"]) == (409, "busy")
        assert len(await durable.pending()) == 1
        assert (await page.post(f"/{page.thread}", method="DELETE"))[0] == 204
        assert await durable.pending() == []


class Away:
    """Durable agents whose database is away when a run is to be cancelled."""

    def __init__(self, runs: DurableAgents) -> None:
        self._runs = runs
        self.is_away = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def cancel(self, run_id: str) -> None:
        if self.is_away:
            raise SourceError("the database cannot be reached")
        await self._runs.cancel(run_id)


@pytest.mark.parametrize(
    ("tool", "method", "path", "done"),
    [("hang", "POST", "/cancel", 202), ("pay", "DELETE", "", 204)],
    ids=["a run", "a thread"],
)
async def test_nothing_is_told_as_cancelled_that_goes_on(
    tool: str, method: str, path: str, done: int, url: str
) -> None:
    RAN.clear()
    made = agent(call(tool, **({"cents": 5} if tool == "pay" else {})), "Done.")
    async with (
        DurableAgents(url, {"chat": made}) as durable,
        page_of(chat_app(made, store=url, durable=(away := Away(durable)))) as page,
    ):
        await page.ask("Go.")
        if tool == "pay":
            await page.ended("waiting")
        await until(lambda: tool == "pay" or RAN == ["hang"], 20)
        status, told = await page.post(f"/{page.thread}{path}", method=method)
        assert (status, told["error"]["code"]) == (503, "unavailable")
        assert (await page.get(f"/{page.thread}"))[0] == 200
        away.is_away = False
        assert (await page.post(f"/{page.thread}{path}", method=method))[0] == done
        assert [run.status for run in await durable.list()] == ["cancelled"]


async def test_what_was_said_while_a_question_waited_stays_in_the_conversation(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._LOOK", 60.0)
    begun, gate = asyncio.Event(), asyncio.Event()
    looked = Late(monkeypatch, DurableAgents, "show")

    @tool(visible=ALL)
    async def slow() -> str:
        """Wait."""
        begun.set()
        await gate.wait()
        return "done"

    made = Agent(Model(call("pay", cents=5), call("slow"), "Done."), [pay, slow], state_key=KEY)
    async with (
        DurableAgents(url, {"chat": made}) as durable,
        ThreadStore(url) as store,
        page_of(chat_app(made, store=store, durable=durable)) as page,
    ):
        await page.ask("Pay.")
        await page.ended("waiting")
        await page.ask("Something else.")
        await begun.wait()
        looked.is_next = True
        await durable.answer(page.calls(0)[0]["approval"]["id"], Approve(by="eve"))
        reading = asyncio.create_task(page.get(f"/{page.thread}"))
        await looked.found.wait()
        gate.set()
        await page.ended(turns=2)
        looked.given.set()  # the reading has seen how all was before
        await reading
        await page.until(lambda s: [t["status"] for t in s["turns"]] == ["completed"] * 2)
        stored = await store.load(page.thread, "local")
        assert stored is not None
        assert "Something else." in stored.session
