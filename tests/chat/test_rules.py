"""Rules in the chat: given as an answer, listed and revoked by whom they are for, and nobody else."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from chat.browser import ask, browsing, violations
from chat.chat_helpers import Page, page_of, serving
from playwright.async_api import expect
from rows import each_row

from toolcrib import ALL, Agent, Caller, ToolRunner, tool
from toolcrib.approvals import ApprovalStore
from toolcrib.chat import chat_app
from toolcrib.durable import DurableAgents
from toolcrib.testing import ScriptedClient, call

KEY = b"k" * 32
WIDE = 2**53 + 1


@tool(visible=ALL, safe=False, secret=["pin"])
async def refund(order: int, cents: int, note: str = "sorry", pin: str = "") -> str:
    """Refund an order.

    Args:
        order: Its number.
        cents: How much.
        note: What the customer reads.
        pin: That of the desk.
    """
    return f"refunded {cents} of {order}"


def who(request: Any) -> Caller | None:
    name = request.headers.get("x-user")
    return Caller(name) if name else None


ADA, EVE = {"x-user": "ada"}, {"x-user": "eve"}


def refunds(*cents: int, **more: Any) -> list[Any]:
    turns = [[call("refund", order=WIDE, cents=each, **more), f"Done: {each}."] for each in cents]
    return [said for turn in turns for said in turn]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ApprovalStore]:
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as opened:
        yield opened


def shop(store: ApprovalStore | None, *turns: Any) -> Agent:
    return Agent(ScriptedClient(list(turns)), ToolRunner([refund], rules=store))


@asynccontextmanager
async def talking(agent: Agent, **options: Any) -> AsyncIterator[Page]:
    """Yield Ada's page of a chat with an agent."""
    app = chat_app(agent, store="sqlite://", authenticate=who, **options)
    async with page_of(app, headers=ADA) as page:
        yield page


async def sent(page: Page, method: str, path: str = "", **more: Any) -> tuple[int, Any]:
    """Return the status and the body of an answer about rules."""
    async with page.session.request(method, f"{page.base}/rules{path}", **more) as answer:
        return answer.status, None if answer.status == 204 else await answer.json()


async def given(page: Page, always: Any) -> tuple[int, Any]:
    """Ask for a refund, and answer for always."""
    await page.ask("Refund it.")
    await page.ended("waiting", turns=len(page.turns) or 1)
    asked = page.calls()[-1]["approval"]
    path = f"/{page.thread}/approvals/{asked['id']}"
    answer: tuple[int, Any] = await page.post(path, {"decision": "approve", "always": always})
    return answer


async def test_a_rule_is_listed_and_revoked_by_whom_it_is_for_alone(store: ApprovalStore) -> None:
    before = time.time()
    async with talking(shop(store, *refunds(5, 6, 7, pin="canary"))) as page:
        assert await sent(page, "GET") == (200, {"keeps_rules": True, "rules": []})
        assert (await given(page, {"open": ["cents"], "seconds": 60}))[0] == 202
        await page.ended("completed")
        status, listed = await sent(page, "GET")
        [kept] = listed["rules"]
        rule = kept["rule"]
        assert (status, rule["title"], rule["by"], rule["open"]) == (
            200,
            "refund",
            "ada",
            ["cents"],
        )
        assert rule["texts"] == {"order": str(WIDE), "note": '"sorry"', "pin": '"***"'}
        assert rule["arguments"]["order"] == str(WIDE)
        assert before < rule["given_at"] == rule["expires_at"] - 60
        assert "canary" not in str(listed)
        await page.ask("Once more.")
        await page.ended("completed", turns=2)  # nobody was asked
        for path in (f"/{kept['id']}", "/rule_nope"):
            status, told = await sent(page, "DELETE", path, headers=EVE)
            assert (status, told["error"]["code"]) == (404, "unknown_rule")
        assert (await sent(page, "GET", headers=EVE))[1]["rules"] == []
        assert len(await store.rules()) == 1
        assert await sent(page, "DELETE", f"/{kept['id']}") == (204, None)
        assert (await sent(page, "DELETE", f"/{kept['id']}"))[0] == 404
        await page.ask("And once more.")
        await page.ended("waiting", turns=3)


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("nobody", "GET", {"headers": {"x-user": ""}}, "401 unauthenticated"),
    ("nobody who revokes", "DELETE", {"headers": {"x-user": ""}}, "401 unauthenticated"),
    ("another page", "GET", {"headers": {"origin": "https://evil.example"}}, "403 wrong_origin"),
    (
        "another page that revokes",
        "DELETE",
        {"headers": {"origin": "https://evil.example"}},
        "403 wrong_origin",
    ),
    ("for somebody", "DELETE", {"json": {"caller": "ada"}}, "422 caller"),
    ("more than nothing", "DELETE", {"json": {"all": True}}, "422 invalid_body"),
    ("a form", "DELETE", {"data": "all=1"}, "415 not_json"),
]


@each_row(("what", "method", "more", "told"), REFUSED)
async def test_what_is_not_a_callers_is_refused(
    what: str, method: str, more: dict[str, Any], told: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/{what}.db"
    async with (
        ApprovalStore(url, state_key=KEY) as store,
        talking(shop(store, *refunds(5))) as page,
    ):
        await given(page, {})
        await page.ended("completed")
        [kept] = await store.rules()
        status, body = await sent(page, method, f"/{kept.id}" * (method == "DELETE"), **more)
        assert f"{status} {body['error']['code']}" == told
        assert len(await store.rules()) == 1


async def test_a_rule_says_what_it_may_and_no_more(store: ApprovalStore) -> None:
    """When it was given is the server's to say, and how long it holds is a number that JSON has."""
    async with talking(shop(store, *refunds(5))) as page:
        wrong = [
            {"given_at": 1.0},
            {"by": "eve"},
            {"seconds": 0},
            {"seconds": "30d"},
            {"open": "cents"},
            {"open": ["pin"]},
            {"open": ["cent"]},
        ]
        await page.ask("Refund it.")
        await page.ended("waiting")
        path = f"{page.base}/threads/{page.thread}/approvals/{page.calls()[0]['approval']['id']}"
        for always in wrong:
            body = {"decision": "approve", "always": always}
            async with page.session.post(path, json=body) as answer:
                assert answer.status == 422, always
        endless = '{"decision": "approve", "always": {"seconds": 1e999}}'
        typed = {"content-type": "application/json"}
        async with page.session.post(path, data=endless, headers=typed) as answer:
            assert answer.status == 422
        assert page.calls()[0]["state"] == "waiting"
        assert await store.rules() == []


async def test_one_that_was_changed_is_told_and_can_be_revoked(
    store: ApprovalStore, tmp_path: Path
) -> None:
    async with talking(shop(store, *refunds(5, 6))) as page:
        await given(page, {})
        await page.ended("completed")
        with closing(sqlite3.connect(tmp_path / "crib.db")) as connection:
            connection.execute("UPDATE approval_rules SET content = replace(content, 'ada', 'eve')")
            connection.commit()
        [kept] = (await sent(page, "GET"))[1]["rules"]
        assert kept["rule"] is None
        assert (await sent(page, "GET", headers=EVE))[1]["rules"] == []
        assert (await sent(page, "DELETE", f"/{kept['id']}", headers=EVE))[0] == 404
        assert (await sent(page, "DELETE", f"/{kept['id']}"))[0] == 204


async def test_where_no_rules_are_kept_none_is_offered_or_listed() -> None:
    async with talking(shop(None, *refunds(5))) as page:
        assert await sent(page, "GET") == (200, {"keeps_rules": False, "rules": []})
        assert (await sent(page, "DELETE", "/rule_x"))[1]["error"]["code"] == "unknown_rule"
        assert (await given(page, {}))[0] == 422
        assert not page.calls()[0]["approval"]["always"]


async def test_who_may_approve_some_questions_gives_none_and_sees_those_given_for_them(
    store: ApprovalStore,
) -> None:
    async with talking(shop(store, *refunds(5))) as page:
        await given(page, {})
        await page.ended("completed")
    limited = {"may_approve": lambda _caller, _asked: True}
    async with talking(shop(store, call("refund", order=1, cents=1)), **limited) as page:
        assert (await given(page, {}))[0] in (403, 422)
        assert not page.calls()[0]["approval"]["always"]
        [kept] = (await sent(page, "GET"))[1]["rules"]
        assert (await sent(page, "DELETE", f"/{kept['id']}"))[0] == 204


async def test_rules_of_whoever_is_handed_over_to_are_listed_too(tmp_path: Path) -> None:
    """Each agent of a team may keep its own; one store that two of them have is asked once."""
    async with (
        ApprovalStore(f"sqlite:///{tmp_path}/one.db", state_key=KEY) as one,
        ApprovalStore(f"sqlite:///{tmp_path}/two.db", state_key=KEY) as two,
    ):
        client = ScriptedClient([call("hand_over_to_desk", reason="A refund."), *refunds(5)])
        desk = Agent(client, ToolRunner([refund], rules=two), name="desk")
        front = Agent(client, ToolRunner([refund], rules=one), name="front", handovers=[desk])
        async with talking(front) as page:
            await given(page, {})
            await page.ended("completed")
            [kept] = (await sent(page, "GET"))[1]["rules"]
            assert await one.rules() == []
            assert (await sent(page, "DELETE", f"/{kept['id']}"))[0] == 204
            assert await two.rules() == []


async def test_a_rule_for_what_an_agent_within_asks_says_so(store: ApprovalStore) -> None:
    """It is for that agent's call, and not for one of the tool by the agent around it."""
    runner = ToolRunner([refund], rules=store)
    clerk = Agent(ScriptedClient(refunds(5, 6)), runner).as_tool("clerk", "Refund.")
    delegates: list[Any] = [call("clerk", prompt="Refund it."), "Done."]
    client = ScriptedClient([*delegates, *delegates, *refunds(5)])
    async with talking(Agent(client, ToolRunner([clerk, refund], rules=store))) as page:
        assert (await given(page, {"open": ["cents"]}))[0] == 202
        await page.ended("completed")
        [kept] = (await sent(page, "GET"))[1]["rules"]
        assert kept["rule"]["title"] == "clerk > refund"
        await page.ask("Once more.")
        await page.ended("completed", turns=2)
        await page.ask("Do it yourself.")
        await page.ended("waiting", turns=3)
        assert page.calls()[-1]["approval"]["title"] == "refund"


async def test_a_durable_run_keeps_a_rule_from_when_it_was_answered(
    store: ApprovalStore, tmp_path: Path
) -> None:
    runner = ToolRunner([refund], rules=store)
    agent = Agent(ScriptedClient(refunds(5, 6)), runner, state_key=KEY)
    url = f"sqlite:///{tmp_path}/runs.db"
    async with DurableAgents(url, {"chat": agent}) as durable:
        app = chat_app(agent, store=url, authenticate=who, durable=durable)
        async with page_of(app, headers=ADA) as page, aclosing(app.state.chat):
            assert (await given(page, {"open": ["cents"]}))[0] == 202
            await page.ended("completed")
            [kept] = (await sent(page, "GET"))[1]["rules"]
            assert kept["rule"]["open"] == ["cents"]
            await page.ask("Once more.")
            await page.ended("completed", turns=2)


@pytest.mark.exhaustive
async def test_the_page_shows_a_rule_before_it_is_given_lists_it_and_revokes_it(
    store: ApprovalStore,
) -> None:
    app = chat_app(shop(store, *refunds(5, 6, 7, pin="canary")), store="sqlite://")
    async with serving(app) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(base)
        await ask(page, "Refund it.")
        await page.get_by_role("radio", name="always for this").check()
        rule = page.get_by_role("region", name="The rule")
        exact = f'refund note: "sorry", order: {WIDE}, pin: "***"'
        await expect(rule).to_contain_text(f'cents: 5, note: "sorry", order: {WIDE}, pin: "***"')
        await expect(page.get_by_role("checkbox", name="pin")).to_have_count(
            0
        )  # nobody is shown it
        await page.get_by_role("checkbox", name="cents").check()
        await expect(rule).to_contain_text(f"{exact} with any cents")
        span, yes = page.get_by_label("For how long"), page.get_by_role("button", name="always")
        await span.fill("soon")
        await yes.click()
        await expect(page.get_by_text("Write a span such as")).to_be_visible()
        assert await violations(page) == []
        assert await store.rules() == []
        await span.fill("30d")
        await yes.click()
        await expect(page.get_by_text("Done: 5.")).to_be_visible()
        [kept] = await store.rules()
        assert kept.rule is not None
        assert kept.rule.open == ("cents",)
        assert kept.rule.expires_at == kept.rule.given_at + 30 * 86_400
        await ask(page, "Once more.")
        await expect(page.get_by_text("Done: 6.")).to_be_visible()
        await page.get_by_role("button", name="Why? refund").last.click()
        await expect(page.get_by_text(f"{kept.id}, given by local")).to_be_visible()
        await page.get_by_role("button", name="Rules").click()
        shown = page.get_by_role("dialog")
        await expect(shown).to_contain_text(f"{exact} with any cents")
        await expect(shown).to_contain_text("Given by local")
        assert await violations(page) == []
        await shown.get_by_role("button", name="Revoke").click()
        await expect(shown).to_contain_text("There are none.")
        await expect(shown.get_by_role("button", name="Close")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Rules")).to_be_focused()
        assert await store.rules() == []
        await ask(page, "And once more.")
        await expect(page.get_by_text("May this call run?")).to_be_visible()


@pytest.mark.exhaustive
async def test_an_edit_gives_no_rule_and_where_none_is_kept_none_is_offered(
    store: ApprovalStore,
) -> None:
    app = chat_app(shop(store, *refunds(5)), store="sqlite://")
    async with serving(app) as base, browsing() as context:
        page = await context.new_page()
        await page.set_viewport_size({"width": 380, "height": 740})
        await page.goto(base)
        await ask(page, "Refund it.")
        await page.get_by_role("radio", name="always for this").check()
        assert await violations(page) == []
        await page.get_by_role("button", name="Edit", exact=True).click()
        await expect(page.get_by_role("radio")).to_have_count(0)
        await page.get_by_label("cents").fill("6")
        await page.get_by_role("button", name="Approve these arguments").click()
        await expect(page.get_by_text(f"refunded 6 of {WIDE}")).to_be_visible()
        assert await store.rules() == []
        await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Rules").click()
        await expect(page.get_by_role("dialog")).to_contain_text("There are none.")
        assert await violations(page) == []
    app = chat_app(shop(None, *refunds(5)), store="sqlite://")
    async with serving(app) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(base)
        await ask(page, "Refund it.")
        await expect(page.get_by_text("May this call run?")).to_be_visible()
        await expect(page.get_by_role("radio")).to_have_count(0)
        await expect(page.get_by_role("button", name="Rules")).to_have_count(0)
