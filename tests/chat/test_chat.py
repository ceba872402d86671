"""A conversation by HTTP: asked, streamed, approved, cancelled, kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from chat.chat_helpers import Late, Page, applied, page_of, serving

from toolcrib import ALL, Agent, CallContext, Session, ToolRunner, tool
from toolcrib.approvals import ApprovalStore
from toolcrib.chat import chat_app
from toolcrib.chat.threads import ThreadStore
from toolcrib.chat.view import TurnView
from toolcrib.errors import ProviderError, SourceError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.call import ToolCall
from toolcrib.values.message import (
    ChatRequest,
    FinishReason,
    Message,
    ProviderState,
    Reply,
    StreamPart,
    Usage,
)


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


PAID: list[int] = []


@tool(visible=ALL, safe=False)
async def pay(cents: int) -> str:
    """Pay."""
    PAID.append(cents)
    return f"paid {cents}"


@tool(visible=ALL)
async def put(cents: int) -> str:
    """Pay without a question."""
    PAID.append(cents)
    return f"paid {cents}"


@tool(visible=ALL)
async def endless(ctx: CallContext) -> int:
    """Wait for ever."""
    ctx.progress({"done": 1})
    await asyncio.Event().wait()
    return 1


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    PAID.clear()


def agent(*turns: object) -> Agent:
    return Agent(ScriptedClient(list(turns)), ToolRunner([add, pay, endless]))  # type: ignore[arg-type]


async def test_a_question_is_answered_and_the_call_is_shown(url: str) -> None:
    app = chat_app(agent(call("add", a=1, b=2), "It is three."), store=url)
    async with page_of(app) as page:
        assert (await page.ask("1 + 2?"))[0] == 202
        turn = await page.ended()
        assert page.text() == "It is three."
        (card,) = page.calls()
        assert (card["name"], card["state"], card["result"]) == ("add", "completed", 3)
        assert card["arguments"] == {"a": 1, "b": 2}
        assert turn["asked"] == "1 + 2?"
        status, why = await page.get(f"/{page.thread}/calls/{card['id']}")
        assert (status, why["record"]["decision"]["type"]) == (200, "allow")
        assert (await page.get(f"/{page.thread}"))[1] == page.state


async def test_a_turn_that_could_not_say_which_run_it_is_says_it_before_its_calls(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait for what has failed."""
    monkeypatch.setattr("toolcrib.chat.live.LEASE", 3600)
    name_run, fails = ThreadStore.name_run, [True, False]

    async def named(store: ThreadStore, turn_id: str, run_id: str) -> None:
        if fails.pop(0):
            raise SourceError("the database is locked")
        await name_run(store, turn_id, run_id)

    monkeypatch.setattr(ThreadStore, "name_run", named)
    turns = [call("add", a=1, b=2), call("add", a=3, b=4), "It is seven."]
    async with page_of(chat_app(agent(*turns), store=url)) as page:
        await page.ask("3 + 4?")
        await page.ended()
        one, two = page.calls()
        assert (one["state"], two["state"], fails) == ("completed", "completed", [])
        for each in (one, two):
            assert (await page.get(f"/{page.thread}/calls/{each['id']}"))[0] == 200


@pytest.mark.parametrize(
    ("provider", "costs"),
    [
        ("openai-chat at api.openai.com", ("0.00225", "0.00450")),
        ("openai-chat at 10.0.0.7:8000", (None, None)),
        ("", (None, None)),
    ],
)
async def test_a_call_says_what_its_reply_has_cost(
    url: str, provider: str, costs: tuple[str | None, str | None]
) -> None:
    def reply(*calls: ToolCall) -> Reply:
        message = Message.assistant("" if calls else "Three.", calls)
        finish: FinishReason = "tool_calls" if calls else "stop"
        return Reply(message, finish, Usage(1, 1000, 100), model="gpt-5", provider=provider)

    app = chat_app(agent(reply(ToolCall("c", "add", '{"a":1,"b":2}')), reply()), store=url)
    async with page_of(app) as page:
        await page.ask("1 + 2?")
        await page.ended()
        _, why = await page.get(f"/{page.thread}/calls/c")
        assert (why["reply"]["cost"], why["turn"]["cost"]) == costs
        assert (why["reply"]["input_tokens"], why["turn"]["input_tokens"]) == (1000, 2000)
        assert [each["turn"] for each in page.turns[0]["replies"]] == [1, 2]


async def test_what_an_agent_within_asks_is_answered_one_after_the_other(url: str) -> None:
    pays = [call("pay", cents=5), call("pay", cents=7)]
    clerk = Agent(ScriptedClient([pays, "Both paid."]), [pay]).as_tool(
        "clerk", "Pays.", visible=ALL
    )
    model = ScriptedClient([call("clerk", prompt="Pay 5 and 7."), "Done."])
    app = chat_app(Agent(model, ToolRunner([clerk])), store=url)
    async with page_of(app) as page:
        await page.ask("Pay 5 and 7.")
        for cents in (5, 7):
            await page.ended("waiting")
            (card,) = page.calls()
            asked = card["approval"]
            assert (card["name"], card["state"], asked["arguments"]) == (
                "clerk",
                "waiting",
                {"cents": cents},
            )
            assert asked["reason"] == "clerk > pay: the tool is marked as not safe"
            path = f"/{page.thread}/approvals/{asked['id']}"
            assert (await page.post(path, {"decision": "approve"}))[0] == 202
            await page.until(lambda _, path=asked["id"]: not _asks(page, path))  # type: ignore[misc]
        await page.ended()
        assert PAID == [5, 7]
        (card,) = page.calls()
        assert (card["state"], card["result"], card["approval"]) == (
            "completed",
            "Both paid.",
            None,
        )
        kinds = [part["type"] for part in card["progress"]]
        assert kinds.count("tool_call_finished") == 2
        assert page.turns[0]["usage"]["requests"] == 4


def _asks(page: Page, approval_id: str) -> bool:
    return any(card["approval"] and card["approval"]["id"] == approval_id for card in page.calls())


async def test_an_approval_waits_and_runs_once(url: str) -> None:
    app = chat_app(agent(call("pay", cents=5), "Done."), store=url)
    async with page_of(app) as page:
        await page.ask("Pay 5.")
        await page.ended("waiting")
        (card,) = page.calls()
        asked = card["approval"]
        assert asked["arguments"] == {"cents": 5}
        assert asked["schema"]["properties"]["cents"]["type"] == "integer"
        path = f"/{page.thread}/approvals/{asked['id']}"
        answers = await asyncio.gather(*(page.post(path, {"decision": "approve"}) for _ in "ab"))
        assert sorted(status for status, _ in answers) == [202, 409]
        await page.ended()
        assert PAID == [5]
        (card,) = page.calls()
        assert (card["state"], card["approved_by"], card["approval"]) == (
            "completed",
            "local",
            None,
        )
        assert (await page.post(path, {"decision": "approve"}))[0] == 409
        assert len([o for o in page.told if o["path"][-1:] == ["approval"] and o["value"]]) == 1


async def test_what_is_edited_runs_and_what_is_denied_does_not(url: str) -> None:
    app = chat_app(agent([call("pay", cents=5), call("pay", cents=7)], "Done."), store=url)
    async with page_of(app) as page:
        await page.ask("Pay.")
        await page.ended("waiting")
        five, seven = (c["approval"]["id"] for c in page.calls())
        edit = {"decision": "approve", "arguments": {"cents": 4}}
        assert (await page.post(f"/{page.thread}/approvals/{five}", edit))[0] == 202
        await page.until(lambda s: s["turns"][0]["parts"][0]["state"] == "completed")
        await page.ended("waiting")
        assert (await page.post(f"/{page.thread}/approvals/{seven}", {"decision": "deny"}))[
            0
        ] == 202
        await page.ended()
        assert PAID == [4]
        assert [c["state"] for c in page.calls()] == ["completed", "denied"]
        assert page.calls()[0]["arguments"] == {"cents": 4}


async def test_what_is_shown_as_a_question_can_be_answered(url: str) -> None:
    """A question waits until its sibling calls have ended; by then it is stored, in any process."""
    gate, looked = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL, read_only=True)
    async def look() -> str:
        """Look."""
        looked.set()
        await gate.wait()
        return "seen"

    client = ScriptedClient([[call("pay", cents=5), call("look")], "Done."])
    app = chat_app(Agent(client, ToolRunner([pay, look])), store=url)
    other_process = chat_app(agent(), store=url)
    async with page_of(app) as page, serving(other_process) as elsewhere:
        await page.ask("Go.")
        await looked.wait()
        await page.until(
            lambda s: [p["state"] for t in s["turns"] for p in t["parts"][:1]] == ["waiting"]
        )
        for _ in range(3):
            assert page.calls()[0]["approval"] is None
            turns = (await page.get(f"/{page.thread}"))[1]["turns"]
            assert (turns[0]["parts"][0]["approval"], turns[0]["status"]) == (None, "running")
            await asyncio.sleep(0.05)
        gate.set()
        await page.ended("waiting")
        there = Page(elsewhere, page.session, page.thread)
        shown = (await there.get(f"/{page.thread}"))[1]["turns"][0]["parts"][0]["approval"]
        assert shown == page.calls()[0]["approval"]
        path = f"/{page.thread}/approvals/{shown['id']}"
        assert (await page.post(path, {"decision": "approve"}))[0] == 202
        await page.ended()
        assert PAID == [5]


async def test_a_second_question_waits_while_the_first_call_runs(url: str) -> None:
    gate, paying = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL, safe=False)
    async def slow(cents: int) -> str:
        """Pay slowly."""
        paying.set()
        await gate.wait()
        return await pay(cents)

    client = ScriptedClient([[call("slow", cents=5), call("pay", cents=7)], "Done."])
    app = chat_app(Agent(client, ToolRunner([pay, slow])), store=url)
    async with page_of(app) as page:
        await page.ask("Go.")
        await page.ended("waiting")
        first, second = (c["approval"]["id"] for c in page.calls())
        yes = {"decision": "approve"}
        assert (await page.post(f"/{page.thread}/approvals/{first}", yes))[0] == 202
        await paying.wait()
        await page.until(lambda s: s["turns"][0]["status"] == "running")
        assert [c["approval"] for c in page.calls()] == [None, None]
        status, told = await page.post(f"/{page.thread}/approvals/{second}", yes)
        assert (status, told["error"]["code"]) == (409, "busy")
        status, told = await page.post(f"/{page.thread}/approvals/{first}", yes)
        assert (status, told["error"]["code"]) == (409, "already_answered")
        gate.set()
        await page.ended("waiting")
        assert page.calls()[1]["approval"]["id"] == second
        assert (await page.post(f"/{page.thread}/approvals/{second}", yes))[0] == 202
        await page.ended()
        assert PAID == [5, 7]


async def test_a_turn_that_waits_cannot_be_cancelled(url: str) -> None:
    app = chat_app(agent(call("pay", cents=5), "Well."), store=url)
    async with page_of(app) as page:
        await page.ask("Pay.")
        await page.ended("waiting")
        status, told = await page.post(f"/{page.thread}/cancel")
        assert (status, told["error"]["code"]) == (409, "not_running")
        await page.ask("Never mind.")
        await page.ended("completed", 2)
        assert page.turns[0]["status"] == "waiting"


async def test_cancel_ends_a_run_and_the_page_hears_what_became_of_the_call(url: str) -> None:
    app = chat_app(agent(call("endless"), "again"), store=url)
    async with page_of(app) as page:
        await page.ask("Go.")
        await page.until(
            lambda s: (
                s["turns"] and s["turns"][0]["parts"] and s["turns"][0]["parts"][0]["progress"]
            )
        )
        assert (await page.ask("More?"))[1]["error"]["code"] == "busy"
        assert (await page.post(f"/{page.thread}/cancel"))[0] == 202
        await page.ended("cancelled")
        assert page.calls()[0]["state"] == "cancelled"
        assert (await page.post(f"/{page.thread}/cancel"))[0] == 409
        await page.ask("More?")
        await page.ended("completed", 2)
        assert page.text() == "again"


async def test_an_idle_tab_hears_of_a_run_and_a_late_one_sees_all(url: str) -> None:
    app = chat_app(agent("Hello there.", "Again."), store=url)
    async with page_of(app) as first:
        second = Page(first.base, first.session)
        await second.open(first.thread)
        await first.ask("Hi")
        await first.ended()
        assert (await second.ended())["asked"] == "Hi"
        late = Page(first.base, first.session)
        await late.open(first.thread)
        assert late.state == first.state == second.state
        await late.close()
        await second.close()


async def test_a_failure_of_the_provider_is_shown_and_the_thread_goes_on(url: str) -> None:
    app = chat_app(agent(ProviderError("the provider is away"), "Here again."), store=url)
    async with page_of(app) as page:
        await page.ask("Hi")
        assert (await page.ended("failed"))["note"] == "the provider is away"
        await page.ask("Hi?")
        await page.ended("completed", 2)


async def test_another_process_shows_the_same_and_goes_on(url: str) -> None:
    async with page_of(chat_app(agent(call("pay", cents=5)), store=url)) as page:
        await page.ask("Pay 5.")
        await page.ended("waiting")
        thread, state = page.thread, page.state
    other = chat_app(agent("Paid."), store=url)
    async with serving(other) as base, aiohttp.ClientSession() as session:
        page = Page(base, session)
        await page.open(thread)
        assert page.state == state
        asked = page.calls()[0]["approval"]
        path = f"/{thread}/approvals/{asked['id']}"
        assert (await page.post(path, {"decision": "approve"}))[0] == 202
        await page.ended()
        assert (PAID, page.text()) == ([5], "Paid.")
        await page.close()


async def shown_by(page: Page, how: str) -> list[str]:
    """Return what was asked in a thread, as its server shows it in one of the ways that it has."""
    if how == "another tab":
        tab = Page(page.base, page.session)
        await tab.open(page.thread)
        await tab.close()
        return [turn["asked"] for turn in tab.turns]
    if how == "the stream":
        return [turn["asked"] for turn in page.turns]
    _, shown = await page.get(f"/{page.thread}{'/export' if how == 'the export' else ''}")
    return [turn["asked"] for turn in shown["turns"]]


@pytest.mark.parametrize("how", ["a reading", "the export", "another tab", "the stream"])
async def test_a_turn_that_ran_elsewhere_is_shown_before_and_while_the_next_one_runs(
    how: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._LOOK", 60.0)  # nobody looks by themselves
    app = chat_app(agent("One.", call("endless")), store=url)
    async with page_of(app) as page, serving(chat_app(agent("Two."), store=url)) as base:
        await page.ask("1")
        await page.ended()
        other = Page(base, page.session)
        await other.open(page.thread)
        await other.ask("2")
        await other.ended(turns=2)
        await other.close()
        if how != "the stream":
            assert await shown_by(page, how) == ["1", "2"]
        await page.ask("3")
        await page.until(lambda s: s["turns"][-1]["asked"] == "3" and s["turns"][-1]["parts"])
        assert await shown_by(page, how) == ["1", "2", "3"]
        assert page.turns[-1]["status"] == "running"
        await page.post(f"/{page.thread}/cancel")
        await page.ended("cancelled", 3)


async def test_what_was_read_before_a_question_is_not_put_in_its_place(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._LOOK", 0.05)
    reading = Late(monkeypatch, ThreadStore, "load")
    async with page_of(chat_app(agent(call("endless"), "Well."), store=url)) as page:
        reading.is_next = True
        await reading.found.wait()  # by who looks whether another process has run a turn
        assert (await page.ask("Go."))[0] == 202
        reading.given.set()
        await page.until(lambda s: s["turns"] and s["turns"][0]["parts"])
        await page.post(f"/{page.thread}/cancel")
        await page.ended("cancelled")
        await page.ask("And?")
        await page.ended("completed", 2)
        assert [each["path"] for each in page.told].count([]) == 1  # the first snapshot


async def test_a_conversation_that_cannot_go_on_says_why_and_stays_free(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._LOOK", 0.05)

    def signing(key: bytes) -> Agent:
        return Agent(ScriptedClient(["Hello."] * 3), state_key=key)

    async with page_of(chat_app(signing(b"a" * 32), store=url)) as page:
        await page.ask("Hi")
        await page.ended()
        thread = page.thread
    app = chat_app(signing(b"b" * 32), store=url)
    async with serving(app) as base, aiohttp.ClientSession() as session:
        page = Page(base, session)
        await page.open(thread)
        for count in (2, 3):
            status, told = await page.ask("Hi again")
            assert (status, told["error"]["code"]) == (503, "unavailable")
            turn = await page.ended("failed", count)
            assert "signature" in turn["note"]
        await page.close()


class Unkept(ScriptedClient):
    """Gives a state that no JSON can hold, as a client of somebody's own may."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        async for part in super().stream(request):
            if isinstance(part, Reply) and part.tool_calls:
                state = ProviderState("odd", {"x": "half \ud83d"})
                said = msgspec.structs.replace(part.message, provider_state=state)
                yield msgspec.structs.replace(part, message=said)
            else:
                yield part


def failing(*_given: Any, **_named: Any) -> Any:
    raise RuntimeError("cannot be kept")


BREAKS: dict[str, tuple[Any, str, Any]] = {
    "its conversation": (Session, "to_json", failing),
    "its view": (TurnView, "ended", failing),
    "its place in the database": (ThreadStore, "end", failing),
    "an event": (TurnView, "_finish", failing),
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_a_turn_ends_however_its_saving_fails(
    broken: str, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of, name, fails = BREAKS[broken]
    working, times = getattr(of, name), itertools.count()

    def once(*given: Any, **named: Any) -> Any:
        return (working if next(times) else fails)(*given, **named)

    monkeypatch.setattr(of, name, once)
    client = ScriptedClient([call("put", cents=5), "Done.", "I see."])
    async with page_of(chat_app(Agent(client, ToolRunner([put])), store=url)) as page:
        await page.ask("Pay.")
        turn = await page.ended("failed")
        assert turn["note"] == "The server could not save how this ended."
        assert [c["state"] for c in page.calls()] == ["completed"]
        assert PAID == [5]
        assert "cannot be kept" in caplog.text
        assert "Traceback" in caplog.text
        assert (await page.get(f"/{page.thread}"))[1]["turns"] == [turn]
        assert (await page.ask("And?"))[0] == 202
        await page.ended(turns=2)
        said = [message.content for message in client.requests[-1].messages]
        assert said[0] == "Pay."
        assert "paid 5" in "".join(said)
    assert PAID == [5]


async def test_a_state_that_cannot_be_saved_ends_its_turn(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Unkept([call("put", cents=5), "Done.", "I see."])
    async with page_of(chat_app(Agent(client, ToolRunner([put])), store=url)) as page:
        await page.ask("Pay.")
        await page.ended("failed")
        assert [c["state"] for c in page.calls()] == ["completed"]
        assert "UnicodeEncodeError" in caplog.text
        await page.ask("And?")
        await page.ended(turns=2)


@tool(visible=ALL, requires_approval=True)
async def send(cents: int) -> str:
    """Send money."""
    return f"sent {cents}"


@pytest.mark.parametrize(
    ("for_run", "edit", "sent", "asks"),
    [
        (False, None, 5, True),
        (True, None, 6, False),
        ("exactly", None, 5, False),
        ("exactly", None, 6, True),
        ("exactly", {"cents": 6}, 6, False),
        ("exactly", {"cents": 6}, 5, True),
    ],
)
async def test_a_yes_may_be_for_the_rest_of_an_answer(
    for_run: Any, edit: Any, sent: int, asks: bool, url: str
) -> None:
    model = ScriptedClient([call("send", cents=5), call("send", cents=sent), "Done."])
    async with page_of(chat_app(Agent(model, [send]), store=url)) as page:
        await page.ask("Send.")
        await page.ended("waiting")
        asked = page.calls()[0]["approval"]
        assert (asked["for_run"], asked["for_tool"]) == (True, True)
        given = {"decision": "approve", "arguments": edit, "for_run": for_run}
        path = f"/{page.thread}/approvals/{asked['id']}"
        assert (await page.post(path, given))[0] == 202
        await page.until(lambda s: len(s["turns"][-1]["parts"]) > 1)
        await page.until(lambda s: s["turns"][-1]["status"] in ("waiting", "completed"))
        assert page.turns[-1]["status"] == ("waiting" if asks else "completed")


async def test_a_yes_may_be_for_always_where_rules_are_kept(url: str) -> None:
    calls = [call("send", cents=5), call("send", cents=6)]
    async with ApprovalStore(url, state_key=b"k" * 32) as rules:
        runner = ToolRunner([send], rules=rules)
        model = ScriptedClient([*calls, "Done."])
        async with page_of(chat_app(Agent(model, runner), store=url)) as page:
            await page.ask("Send.")
            await page.ended("waiting")
            asked = page.calls()[0]["approval"]
            assert asked["always"]
            path = f"/{page.thread}/approvals/{asked['id']}"
            for wrong in ({"open": ["cent"]}, {"opened": ["cents"]}, {"seconds": -1}):
                given = {"decision": "approve", "always": wrong}
                assert (await page.post(path, given))[0] == 422
            given = {"decision": "approve", "always": {"open": ["cents"]}}
            assert (await page.post(path, given))[0] == 202
            await page.ended("completed")
            [kept] = await rules.rules()
            assert kept.rule is not None
            assert kept.rule.open == ("cents",)


@pytest.mark.parametrize("hint", [int, int | str, Any, float | str])
async def test_a_number_that_was_shown_as_a_text_stays_a_number(hint: Any, url: str) -> None:
    account, ran = 2**60 + 256, list[Any]()  # a float has it, too

    async def move(account, cents=1):  # type: ignore[no-untyped-def]
        """Move."""
        ran.append((account, cents))
        return "moved"

    move.__annotations__ |= {"account": hint, "cents": int, "return": str}
    client = ScriptedClient([call("move", account=account), "Done."])
    moving = tool(visible=ALL, safe=False)(move)
    async with page_of(chat_app(Agent(client, ToolRunner([moving])), store=url)) as page:
        await page.ask("Move.")
        await page.ended("waiting")
        asked = page.calls()[0]["approval"]
        path = f"/{page.thread}/approvals/{asked['id']}"
        odd = {"account": 5, "cents": asked["arguments"]["account"]}
        status, told = await page.post(path, {"decision": "approve", "arguments": odd})
        assert (status, told["error"]["code"]) == (422, "invalid_arguments")
        edit = asked["arguments"] | {"cents": 2}
        answered = await page.post(path, {"decision": "approve", "arguments": edit})
        assert answered[0] == 202
        await page.ended()
    assert ran == [(account, 2)]
    assert type(ran[0][0]) is (float if hint == float | str else int)


async def test_a_reader_that_falls_behind_gets_a_snapshot(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.chat.live._MOST_WAITING", 3)
    app = chat_app(
        agent([call("add", a=1, b=2), call("add", a=3, b=4)], "Three, and seven."), store=url
    )
    async with page_of(app) as page:
        changes = app.state.chat.watch(page.thread, "local")
        state = applied(None, await anext(changes))
        await page.ask("Add.")
        await page.ended()
        operations = await anext(changes)
        assert [each["path"] for each in operations] == [[]]
        await changes.aclose()
        assert applied(state, operations) == page.state


async def test_a_title_is_kept_as_it_is_shown(url: str) -> None:
    """Whoever watches, who opens the thread later, and who lists it read the same."""
    app = chat_app(agent("Hi.", "Hi."), store=url)
    async with page_of(app) as page:
        await page.ask("a\x00\u202e b \x1b[31m")
        await page.ended("completed")
        titles = ["a?? b ?[31m", "👩‍👩‍👧 שלום " + "x" * 189, "two words"]
        for title, given in zip(titles, [None, titles[1], " two\n\u2028words\t"], strict=True):
            if given is not None:
                status, told = await page.post(f"/{page.thread}", {"title": given}, method="PATCH")
                assert (status, told) == (200, {"title": title})
            await page.until(lambda state: title == state["thread"]["title"])  # noqa: B023
            assert (await page.get(f"/{page.thread}"))[1]["thread"]["title"] == title
            assert [each["title"] for each in (await page.get(""))[1]["threads"]] == [title]
