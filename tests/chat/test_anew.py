"""A question asked anew: another branch, that knows what has run; the first one stays to be read."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from chat.chat_helpers import Page, page_of, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib import ALL, Agent, ContextOptions, PickOptions, ToolRunner, tool
from toolcrib.chat import ThreadStore, chat_app
from toolcrib.chat.view import TurnView, line_of, new_turn
from toolcrib.testing import ScriptedCall, ScriptedClient, call, cut
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, Reply, Usage

PAID: list[int] = []


@tool(visible=ALL, read_only=True, untrusted_output=True)
async def look(order: int) -> str:
    """Look."""
    return "untouched"


@tool(visible=ALL)
async def pay(cents: int) -> str:
    """Pay."""
    PAID.append(cents)
    return f"paid {cents}"


@tool(visible=ALL, safe=False)
async def close(order: int) -> str:
    """Close."""
    return "closed"


@tool(visible=ALL)
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    PAID.clear()


def scripted(*turns: object) -> tuple[ScriptedClient, Agent]:
    client = ScriptedClient(list(turns))  # type: ignore[arg-type]
    return client, Agent(client, ToolRunner([look, pay, close]))


def said(client: ScriptedClient) -> str:
    return "\n".join(message.content for message in client.requests[-1].messages)


async def test_a_branch_goes_on_from_before_and_forgets_no_call(url: str) -> None:
    client, agent = scripted(
        "Hello.", [call("look", order=1), call("pay", cents=5)], "Paid.", "Gone on.", "Anew.", "On."
    )
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("I am Ada.")
        await page.ended()
        for at, text in enumerate(("Pay 5.", "And now?"), 2):
            await page.ask(text)
            await page.ended(turns=at)
        first = page.turns[1]["id"]
        assert (await page.ask("Pay 7.", instead_of=first))[0] == 202
        await page.ended(turns=4)
        assert (page.turns[3]["instead_of"], page.text()) == (first, "Anew.")
        heard = said(client)
        assert "I am Ada." in heard
        assert "Pay 7." in heard
        assert "Pay 5." not in heard
        assert "And now?" not in heard
        assert 'pay {"cents":5}: it has run' in heard
        assert "look" not in heard
        assert any(message.untrusted for message in client.requests[-1].messages)
        before = list(page.turns)
        await page.ask("Go on.")
        await page.ended(turns=5)
        assert "Pay 7." in said(client)
        assert page.turns[:4] == before
        assert [turn["asked"] for turn in line_of(page.turns)] == ["I am Ada.", "Pay 7.", "Go on."]
        assert PAID == [5]


@tool(visible=ALL, read_only=True)
async def far() -> str:
    """Give a long text."""
    return "x" * 9_000


def reads_rest(request: ChatRequest) -> ScriptedCall:
    ids = re.findall(r"id='(r_[0-9a-f]{20})'", request.messages[-1].content)
    return call("read_result", id=ids[0], end=5)


@pytest.mark.parametrize(
    ("turns", "made"),
    [
        ([call("far"), reads_rest], {"context": ContextOptions(tokens=8_000)}),
        (
            [call("search_tools", query="look")],
            {"pick": PickOptions(max_candidates=2), "search_tools": True},
        ),
        (
            [call("hand_over_to_back", reason="x")],
            {"handovers": [Agent(ScriptedClient([]), name="back")], "name": "front"},
        ),
    ],
)
async def test_what_an_agent_offers_of_its_own_is_not_told_as_made_and_taints_nothing(
    url: str, turns: Any, made: Any
) -> None:
    handed = made.get("handovers")
    client = ScriptedClient([*turns, *([] if handed else ["Ok."]), "Anew."])
    if handed:
        made["handovers"] = [handed[0].replace(model=ScriptedClient(["Ok."]))]
    agent = Agent(client, ToolRunner([far]), **made)
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("First words.")
        await page.ended()
        assert [each["state"] for each in page.calls()] == ["completed"] * len(turns)
        await page.ask("Other words.", instead_of=page.turns[0]["id"])
        await page.ended(turns=2)
        assert [m.content for m in client.requests[-1].messages] == ["Other words."]
        assert not client.requests[-1].messages[-1].untrusted


@tool(visible=ALL, read_only=True, name="pay")
async def paid_before(order: int) -> str:
    """Look up what was paid."""
    return "nothing"


async def test_a_call_is_judged_by_the_tool_of_the_agent_that_made_it(url: str) -> None:
    back = Agent(ScriptedClient([call("pay", cents=5), "Paid."]), [pay], name="back")
    client = ScriptedClient([call("hand_over_to_back", reason="x"), "Anew."])
    front = Agent(client, [paid_before], name="front", handovers=[back])
    async with page_of(chat_app(front, store=url)) as page:
        await page.ask("Pay 5.")
        await page.ended()
        await page.ask("Pay 7.", instead_of=page.turns[0]["id"])
        await page.ended(turns=2)
    assert 'pay {"cents":5}: it has run' in said(client)


async def test_a_branch_of_a_branch_knows_what_ran_in_both_and_outlives_a_restart(url: str) -> None:
    client, agent = scripted(call("pay", cents=5), "a", call("pay", cents=7), "b")
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("Pay 5.")
        await page.ended()
        await page.ask("Pay 7.", instead_of=page.turns[0]["id"])
        await page.ended(turns=2)
        thread, second = page.thread, page.turns[1]["id"]
    client, agent = scripted("c")
    async with serving(chat_app(agent, store=url)) as base, aiohttp.ClientSession() as session:
        page = Page(base, session)
        await page.open(thread)
        assert (await page.ask("Nothing.", instead_of=page.turns[0]["id"]))[1]["error"][
            "code"
        ] == "unknown_turn"
        await page.ask("Nothing.", instead_of=second)
        await page.ended(turns=3)
        heard = said(client)
        assert heard.count("it has run") == 2
        assert 'pay {"cents":5}' in heard
        assert 'pay {"cents":7}' in heard
        assert [turn["asked"] for turn in line_of(page.turns)] == ["Nothing."]
        await page.close()


async def test_a_branch_knows_of_an_earlier_call_that_was_approved_only_later(url: str) -> None:
    client, agent = scripted(call("close", order=1), "Meanwhile.", "Closed.", "Anew.")
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("Close it.")
        await page.ended("waiting")
        asked = page.calls()[0]["approval"]["id"]
        await page.ask("And the weather?")
        await page.ended(turns=2)
        await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "approve"})
        await page.until(lambda state: state["turns"][0]["status"] == "completed")
        await page.ask("And the time?", instead_of=page.turns[1]["id"])
        await page.ended(turns=3)
        assert 'close {"order":1}: it has run' in said(client)


async def test_what_cannot_be_asked_anew_says_so_and_changes_nothing(url: str) -> None:
    _, agent = scripted("One.", call("close", order=1), "Closed.", "Late.")
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("First.")
        await page.ended()
        first = page.turns[0]["id"]
        await page.ask("Close it.")
        await page.ended("waiting", 2)
        asked = page.calls()[0]["approval"]["id"]
        for turn_id, status, code in [(first, 409, "waiting"), ("turn_x", 404, "unknown_turn")]:
            answer = await page.ask("Anew.", instead_of=turn_id)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code)
        await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "approve"})
        await page.ended("completed", 2)
        async with ThreadStore(url) as store:  # as an older version left it
            await store._database.write("UPDATE chat_turns SET before = NULL")
        answer = await page.ask("Anew.", instead_of=first)
        assert (answer[0], answer[1]["error"]["code"]) == (409, "unknown_before")
        assert len(page.turns) == 2


async def test_a_question_that_has_lapsed_is_denied_and_asked_anew(url: str) -> None:
    client = ScriptedClient([call("close", order=1), "It was not closed.", "Anew."])
    agent = Agent(client, ToolRunner([close], approval_seconds=0.05))
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("Close it.")
        await page.ended("waiting")
        await asyncio.sleep(0.1)
        path = f"/{page.thread}/approvals/{page.calls()[0]['approval']['id']}"
        for body in ({}, {"arguments": {"order": 2}}):
            status, told = await page.post(path, {"decision": "approve", **body})
            assert (status, told["error"]["code"]) == (410, "approval_expired")
        assert (await page.post(path, {"decision": "deny"}))[0] == 202
        turn = await page.ended()
        assert (page.calls()[0]["state"], page.text()) == ("denied", "It was not closed.")
        assert (await page.ask("Anew.", instead_of=turn["id"]))[0] == 202
        await page.ended(turns=2)


async def test_of_two_that_ask_anew_at_once_one_is_told_that_it_is_busy(url: str) -> None:
    _, agent = scripted("One.", "Two.")
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("First.")
        await page.ended()
        first = page.turns[0]["id"]
        asked = (page.ask(f"Anew {n}.", instead_of=first) for n in range(2))
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _ in answers)[0] == 202
        assert all(status in (202, 404, 409) for status, _ in answers)
        await page.ended(turns=2)
        assert len(line_of(page.turns)) == 1


@given(
    script=st.lists(st.sampled_from(["say", "look", "pay"]), min_size=1, max_size=4),
    data=st.data(),
)
@settings(deadline=None, max_examples=sample(50))
async def test_what_was_tainted_stays_so_whatever_is_asked_anew(
    script: list[str], data: st.DataObject
) -> None:
    """However little ran: a turn that goes on from before a read is asked as the next one would be."""
    made: dict[str, list[Any]] = {"say": [["Hi."]], "look": [call("look", order=1), "Read."]}
    made["pay"] = [call("pay", cents=5), "Paid."]
    turns = [made[each] for each in script]
    read = "look" in script
    if read:  # then a payment waits for an answer: it has none in this test
        turns = [each for each, name in zip(turns, script, strict=True) if name != "pay"]
    _, agent = scripted(*(reply for turn in turns for reply in turn), call("pay", cents=7), "End.")
    async with page_of(chat_app(agent, store="sqlite://")) as page:
        for at in range(len(turns)):
            await page.ask(f"{at}")
            await page.ended(turns=at + 1)
        anew = data.draw(st.sampled_from(page.turns))["id"]
        await page.ask("Pay 7.", instead_of=anew)
        await page.ended("waiting" if read else "completed", len(turns) + 1)


async def test_what_a_turn_that_broke_off_had_read_taints_what_is_asked_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is in the conversation, and what a tool gave: also where it is asked anew."""
    client, agent = scripted(
        call("look", order=1), "Read.", call("pay", cents=7), "No.", call("pay", cents=7), "No."
    )
    app = chat_app(agent, store=url)
    async with page_of(app) as page:
        with monkeypatch.context() as failing:
            failing.setattr(TurnView, "ended", lambda *_given: 1 / 0)
            await page.ask("Look.")
            await page.ended("failed")
        await page.ask("Pay 7.")
        await page.ended("waiting", 2)
        assert "untouched" in said(client)
        asked = page.calls()[0]["approval"]["id"]
        await page.post(f"/{page.thread}/approvals/{asked}", {"decision": "deny"})
        await page.ended(turns=2)
        await page.ask("Pay 7.", instead_of=page.turns[0]["id"])
        await page.ended("waiting", 3)


async def test_what_an_agent_within_had_read_in_a_turn_that_broke_off_taints_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk = Agent(ScriptedClient([call("look", order=1), "Read."]), [look, pay])
    turns = ScriptedClient([call("clerk", prompt="Look."), "Read.", call("pay", cents=7)])
    tools = ToolRunner([clerk.as_tool("clerk", "Looks.", visible=ALL), pay])
    async with page_of(chat_app(Agent(turns, tools), store=url)) as page:
        with monkeypatch.context() as failing:
            failing.setattr(TurnView, "ended", lambda *_given: 1 / 0)
            await page.ask("Look.")
            await page.ended("failed")
        await page.ask("Pay 7.")
        await page.ended("waiting", 2)
        assert PAID == []


@each_row(
    "first",
    [
        cut(call("pay", cents=5)),
        call("pay", cents="five"),
        call("nope", cents=5),
        [call("pay", cents="five"), call("nope", x=1), call("pay", cents=7)],
    ],
)
async def test_a_call_that_never_ran_is_not_told_as_one_that_was_made(first: Any, url: str) -> None:
    PAID.clear()
    client, agent = scripted(first, "Hm.", "Anew.")
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("Pay 5.")
        await page.until(lambda state: state["turns"] and state["turns"][0]["status"] != "running")
        await page.ask("Pay 7.", instead_of=page.turns[0]["id"])
        await page.ended(turns=2)
        lines = said(client).splitlines()
        told = [line for line in lines if line.startswith(("pay", "nope", "[These calls"))]
        assert [line for line in told if "it has run" in line] == (
            ['pay {"cents":7}: it has run'] if PAID else []
        )
        assert len(told) == 2 * len(PAID)


async def test_a_call_that_was_never_whole_is_not_told_of_a_turn_that_broke_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, agent = scripted([call("pay", cents="five"), call("pay", cents=7)], "Hm.", "On.")
    async with page_of(chat_app(agent, store=url)) as page:
        with monkeypatch.context() as failing:
            failing.setattr(TurnView, "ended", lambda *_given: 1 / 0)
            await page.ask("Pay.")
            await page.ended("failed")
        await page.ask("Go on.")
        await page.ended(turns=2)
        calls = [each for message in client.requests[-1].messages for each in message.tool_calls]
        assert [each.arguments for each in calls] == ['{"cents":7}']


async def test_who_asks_anew_while_that_runs_is_told_that_it_is_busy(url: str) -> None:
    agent = Agent(ScriptedClient(["One.", call("wait")]), ToolRunner([wait]))
    async with page_of(chat_app(agent, store=url)) as page:
        await page.ask("First.")
        await page.ended()
        first = page.turns[0]["id"]
        answers = await asyncio.gather(*(page.ask(f"{n}", instead_of=first) for n in range(5)))
        refused = [body["error"]["code"] for status, body in answers if status != 202]
        assert refused == ["busy"] * 4
        await page.post(f"/{page.thread}/cancel")
        await page.ended("cancelled", 2)


def counted(number: int, name: str, arguments: str) -> Reply:
    """Return a reply of a client that counts the calls of each reply, or of each run, anew."""
    calls = (ToolCall(f"call_{number}", name, arguments),)
    return Reply(Message.assistant("", calls), "tool_calls", Usage(1, 1, 1))


CLOSE = counted(0, "close", '{"order": 1}')
PAY_5, PAY_7 = (counted(1, "pay", json.dumps({"cents": cents})) for cents in (5, 7))


async def ask_and_approve(page: Page, turns: int, **more: str) -> None:
    await page.ask("Close it, then pay.", **more)
    await page.ended("waiting", turns)
    await approve(page, turns - 1)


async def approve(page: Page, turn: int) -> None:
    path = f"/{page.thread}/approvals/{page.calls(turn)[0]['approval']['id']}"
    assert (await page.post(path, {"decision": "approve"}))[0] == 202
    await page.until(lambda state: state["turns"][turn]["status"] in ("completed", "failed"))


async def ask_side_by_side(page: Page) -> None:
    """Have a run wait while another one runs: neither knows of the other's calls."""
    await page.ask("Close it, then pay 7.")
    await page.ended("waiting")
    await page.ask("Pay 5.")
    await page.ended(turns=2)


SIDE_BY_SIDE = [CLOSE, PAY_5, "Paid."]
ANEW = [CLOSE, PAY_5, "Done.", CLOSE, PAY_7, "Done."]


@each_row("anew", [False, True])
async def test_a_call_has_an_id_of_its_own_in_its_thread(anew: bool, tmp_path: Path) -> None:
    PAID.clear()
    _, agent = scripted(*ANEW) if anew else scripted(*SIDE_BY_SIDE, PAY_7, "Done.")
    async with page_of(chat_app(agent, store=f"sqlite:///{tmp_path}/chat.db")) as page:
        if anew:
            await ask_and_approve(page, 1)
            await ask_and_approve(page, 2, instead_of=page.turns[0]["id"])
        else:
            await ask_side_by_side(page)
            await approve(page, 0)
        cards = [*page.calls(0), *page.calls(1)]
        paid = [card["arguments"]["cents"] for card in cards if card["name"] == "pay"]
        assert sorted(paid) == sorted(PAID) == [5, 7]
        assert len({card["id"] for card in cards}) == len(cards)
        for card in cards:
            at = f"/{page.thread}/calls/{quote(card['id'], safe='')}"
            record = (await page.get(at))[1]["record"]
            shown = {name: card[name] for name in ("name", "arguments", "result", "approved_by")}
            assert shown == {name: record.get(name) for name in shown}


async def test_a_branch_knows_of_a_later_call_that_has_the_id_of_another(url: str) -> None:
    client, agent = scripted(*SIDE_BY_SIDE, "Hm.", PAY_7, "Done.", "Anew.")
    async with page_of(chat_app(agent, store=url)) as page:
        await ask_side_by_side(page)
        await page.ask("And now?")
        await page.ended(turns=3)
        await approve(page, 0)
        await page.ask("And then?", instead_of=page.turns[2]["id"])
        await page.ended(turns=4)
    assert 'pay {"cents":7}: it has run' in said(client)
    assert PAID == [5, 7]


async def test_a_turn_that_broke_off_is_told_with_a_call_that_has_the_id_of_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, agent = scripted(*SIDE_BY_SIDE, PAY_7, "Done.", "I see.")
    async with page_of(chat_app(agent, store=url)) as page:
        await ask_side_by_side(page)
        with monkeypatch.context() as failing:
            failing.setattr(TurnView, "ended", lambda *_given: 1 / 0)
            await approve(page, 0)
            assert page.turns[0]["status"] == "failed"
        await page.ask("Go on.")
        await page.ended(turns=3)
    assert "closed" in said(client)
    assert "paid 7" in said(client)
    assert PAID == [5, 7]


def test_a_line_has_the_newest_version_of_each_question() -> None:
    def turn(name: str, instead_of: str = "") -> dict[str, object]:
        return new_turn(name, name, instead_of=instead_of)

    turns = [turn("a"), turn("b"), turn("c"), turn("d", "b"), turn("e"), turn("f", "d")]
    assert [each["id"] for each in line_of(turns)] == ["a", "f"]
    assert [each["id"] for each in line_of(turns[:5])] == ["a", "d", "e"]
    assert [each["id"] for each in line_of([*turns, turn("g", "c")])] == ["a", "f", "g"]
