"""The page in a real browser: asked, shown, approved, edited, denied, lost and found again."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from chat.browser import ask, browsing, violations
from chat.chat_helpers import broken, endless, serving
from chat.states import process
from playwright.async_api import Page, expect

from toolcrib import ALL, Agent, tool
from toolcrib.chat import app as chat_module
from toolcrib.chat import bearer, chat_app
from toolcrib.clients import OpenAIClient
from toolcrib.errors import ProviderError
from toolcrib.pick import PickOptions
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.values.call import ToolCall
from toolcrib.values.message import Message, Reply, Usage

WIDE = 2**53 + 1
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \x1b[31m \u202eabc"
TOKEN = "a-token-of-some-length"


@tool(visible=ALL, safe=False)
async def refund(order: int, cents: int, note: str = "sorry") -> str:
    """Refund an order.

    Args:
        order: Its number.
        cents: How much.
        note: What the customer reads.
    """
    return f"refunded {cents} of {order}: {note}"


@tool(visible=ALL)
async def orders() -> list[dict[str, int | str]]:
    """List the orders."""
    return [{"order": n, "item": f"thing {n}", "cents": n * 995} for n in range(1, 4)]


@tool(visible=ALL, marks={"show": "plot"})
async def sales() -> dict[str, int]:
    """Give the sales of each month."""
    return {"Jan": 3, "Feb": 8, "Mar": 5}


@tool(visible=ALL)
async def hostile(times: int = 1) -> str:
    """Give what somebody else wrote."""
    return HOSTILE * times


TOOLS = [refund, orders, sales, hostile, broken, endless]


def agent(*turns: object, pick: PickOptions | None = None) -> Agent:
    return Agent(ScriptedClient(list(turns)), TOOLS, pick=pick)  # type: ignore[arg-type]


async def test_a_call_is_shown_edited_approved_and_explained() -> None:
    model = agent(
        ["Let me look.", call("orders"), call("sales"), call("hostile")],
        call("refund", order=2, cents=WIDE),
        "It is **refunded**. <b>x</b> ![pixel](https://example.com/p.png) [bad](javascript:alert(1))",
        pick=PickOptions(max_candidates=6),
    )
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        assert await violations(page) == []
        await ask(page, "Refund the hostile orders, give sales.")
        approval = page.get_by_role("region", name="Approval of refund")
        await expect(approval.get_by_text(str(WIDE))).to_be_visible()
        await expect(page.get_by_role("cell", name="thing 3")).to_be_visible()
        await expect(page.get_by_role("img", name="Plot of 3 values")).to_be_visible()
        await expect(page.get_by_text("<script>document.title")).to_be_visible()
        await expect(page.get_by_text("U+202E")).to_be_visible()
        await expect(page).to_have_title("Refund the hostile orders, give sales. · toolcrib")
        assert await violations(page) == []
        await approval.get_by_role("button", name="Edit").click()
        assert await violations(page) == []
        await page.get_by_label("note").fill("much too late")
        await approval.get_by_role("button", name="Approve these arguments").click()
        result = page.get_by_text(f"refunded {WIDE} of 2: much too late")
        await expect(result).to_be_visible()
        await expect(page.locator("strong", has_text="refunded")).to_be_visible()
        await expect(page.get_by_text("<b>x</b>")).to_be_visible()
        assert await page.locator("main img").count() == 0
        assert await page.locator("a[href^='javascript']").count() == 0
        await page.get_by_role("button", name="Why? refund").click()
        why = page.get_by_role("region", name="Why refund")
        await expect(why.get_by_text("with other arguments")).to_be_visible()
        await expect(why.get_by_role("cell", name="refund", exact=True)).to_be_visible()
        address = page.url
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.get_by_text("What is to be done?")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        await page.goto(address)
        await expect(result).to_be_visible()
        await page.emulate_media(color_scheme="dark")
        assert await violations(page) == []
        await page.set_viewport_size({"width": 380, "height": 740})
        await page.get_by_role("button", name="Conversations").click()
        assert await violations(page) == []


INHERITED = ("constructor", "toString", "valueOf", "hasOwnProperty", "__proto__")


@tool(visible=ALL)
async def rows() -> list[dict[str, str]]:
    """Give rows of which each has names that the others have not."""
    return [{name: f"the {name}"} for name in INHERITED]


@tool(visible=ALL)
async def wide() -> list[dict[str, int]]:
    """Give a table of a million cells, in less than 64 kB."""
    return [{f"k{n}": n for n in range(5_000)}, *({} for _ in range(250))]


@tool(visible=ALL, marks={"show": "plot"})
async def odd_points() -> Any:
    """Give points whose names are objects, as far apart as numbers can be."""
    return [[{"toString": 1, "valueOf": 2}, 1e308], [None, -1e308]]


@tool(visible=ALL)
async def half_cut() -> dict[str, Any]:
    """Give what looks like the beginning of a large result."""
    return {"truncated": True, "head": "a head", "bytes": {"toString": 1, "valueOf": 2}}


NUMBERS = {name: {"type": "integer"} for name in INHERITED[:-1]}
TURNED = {"a\u202eb": {"enum": ["c\u202ed"], "description": "what is\u200b hidden"}}
OPTIONAL: dict[str, Any] = {"type": "object", "properties": NUMBERS | TURNED}


@tool(visible=ALL, safe=False, input_schema=OPTIONAL)
async def choose(**given_: Any) -> str:
    """Take some of many."""
    return f"chosen: {given_}"


async def test_nothing_that_a_model_or_a_tool_says_ends_the_page() -> None:
    texts = [f"{marks} deep" for marks in (">" * 2_000, "- " * 1_000, ">" * 10_000)]
    client = ScriptedClient(
        [
            [texts[0], call("rows"), call("wide"), call("odd_points"), call("half_cut")],
            [texts[1], call("choose", toString=7)],
            texts[2],
        ]
    )
    app = chat_app(Agent(client, [rows, wide, odd_points, half_cut, choose]), store="sqlite://")
    async with serving(app) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Say all of it.")
        approval = page.get_by_role("region", name="Approval of choose")
        await expect(approval.get_by_text("toString")).to_be_visible()
        await expect(approval.get_by_text("constructor")).to_have_count(0)
        for name in INHERITED:
            await expect(page.get_by_role("cell", name=f"the {name}", exact=True)).to_be_visible()
        await expect(page.get_by_role("columnheader", name="[__proto__]")).to_be_visible()
        await expect(page.get_by_text('"k4999": 4999')).to_be_visible()
        await expect(page.get_by_role("img", name="Plot of 2 values")).to_be_visible()
        await expect(page.get_by_text('"head": "a head"')).to_be_visible()
        await approval.get_by_role("button", name="Edit", exact=True).click()
        for hidden in ("aU+202Eb", "what isU+200B hidden"):
            await expect(approval.get_by_text(hidden, exact=True)).to_be_visible()
        for name in NUMBERS:
            if name != "toString":
                await approval.get_by_role("button", name=f"Give it {name}").click()
            await approval.get_by_label(name, exact=True).fill("no number")
        await approval.get_by_role("button", name="Approve these arguments").click()
        await expect(approval.get_by_text("Write a number.")).to_have_count(len(NUMBERS))
        for name in NUMBERS:
            await approval.get_by_label(name, exact=True).fill("3")
        await approval.get_by_role("button", name="Approve these arguments").click()
        await expect(page.get_by_text(f"chosen: {dict.fromkeys(NUMBERS, 3)}")).to_be_visible()
        for text in texts:
            await expect(page.get_by_text(text, exact=True)).to_be_visible()
        assert await violations(page) == []


@tool(visible=ALL, marks={"show": "plot"})
async def turned_names() -> dict[str, int]:
    """Give values under names that are not what they look like."""
    return {"a\u202eb": 1, "c\u200bd": 2}


async def test_what_cannot_be_seen_is_shown_wherever_it_is() -> None:
    note = "to ada\u202e@gro.elpmaxe\u200b"
    model = agent(
        [call("turned_names"), call("refund", order=2, cents=5, note=note)],
        "zero\u200bwidth, tag\U000e0041, Persian \u0645\u06cc\u200c\u062e, \u2764\ufe0f",
    )
    model = model.replace(tools=[*TOOLS, turned_names])
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Show it.")
        plot = page.get_by_role("img", name="Plot of 2 values")
        for label in ("a⟦U+202E⟧b", "c⟦U+200B⟧d"):
            await expect(plot.get_by_text(label, exact=True)).to_be_attached()
        approval = page.get_by_role("region", name="Approval of refund")
        await approval.get_by_role("button", name="Edit").click()
        field = approval.get_by_label("note")
        await expect(field).to_have_accessible_description(
            "What the customer reads. With what cannot be seen above: "
            "to adaU+202E@gro.elpmaxeU+200B"
        )
        await field.fill("to ada")
        await expect(field).to_have_accessible_description("What the customer reads.")
        await approval.get_by_role("button", name="Approve these arguments").click()
        said = "zero⟦U+200B⟧width, tag⟦U+E0041⟧, Persian \u0645\u06cc\u200c\u062e, \u2764\ufe0f"
        await expect(page.get_by_text(said, exact=True)).to_be_visible()


async def test_a_model_makes_no_link_into_the_page_and_labels_its_tasks() -> None:
    back = ("./#token=of-somebody-else", "?x=1", "#/t/x", "{base}/#token=x", "//{host}#x", "")
    out = ("/orders/7", "https://example.com/", "mailto:ada@example.com")
    turns: list[str] = []  # it knows its server's address only when it is asked
    model = agent(lambda _request: turns[0])
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        host = base.partition("//")[2]
        links = [link.format(base=base, host=host) for link in (*back, *out)]
        turns.append(" ".join(f"[link]({link})" for link in links) + "\n\n- [ ] ask\n- [x] pay")
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Link.")
        await expect(page.get_by_role("checkbox", name="not done", exact=True)).to_be_visible()
        await expect(page.get_by_role("checkbox", name="done", exact=True)).to_be_checked()
        shown = page.locator(".said a")
        assert [await link.get_attribute("href") for link in await shown.all()] == [*out]
        assert await violations(page) == []


@pytest.mark.exhaustive
async def test_a_question_waits_through_a_reload_and_a_second_tab_hears_the_answer() -> None:
    model = agent(call("refund", order=2, cents=5), "It was not to be.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Refund order 2.")
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await page.reload()
        other = await context.new_page()
        await other.goto(page.url)
        await expect(other.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Deny").click()
        await page.get_by_label("Why not?").fill("ask sales")
        await page.get_by_role("button", name="Deny the call").click()
        for each in (page, other):
            await expect(each.get_by_text("It was not to be.")).to_be_visible()
            await expect(each.get_by_text("did not run")).to_be_visible()
            await expect(each.get_by_text("denied by")).to_be_visible()
            await expect(each.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
        await page.get_by_role("button", name="Why? refund").click()
        why = page.get_by_role("region", name="Why refund")
        await expect(why.get_by_text("Denied by")).to_be_visible()
        await expect(why.get_by_text("ask sales", exact=True)).to_be_visible()


@pytest.mark.exhaustive
async def test_what_fails_or_hangs_is_shown_and_stays() -> None:
    model = agent(call("broken"), call("endless"), ProviderError("the model is away"))
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Try.")
        await expect(page.get_by_text("The tool failed.")).to_be_visible()
        await expect(page.get_by_text("at it")).to_be_visible()
        assert await page.get_by_text("a secret").count() == 0
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("This answer was cancelled.")).to_be_visible()
        await page.get_by_role("button", name="Ask again", exact=True).click()
        await expect(page.get_by_text("This answer failed.")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("This answer was cancelled.")).to_be_visible()
        await expect(page.get_by_text("This answer failed.")).to_be_visible()
        assert await violations(page) == []


@pytest.mark.exhaustive
async def test_megabytes_are_cut_and_do_not_stop_the_page() -> None:
    long, longer = (call("hostile", times=size // len(HOSTILE)) for size in (3_000_000, 5_000_000))
    model = agent([long, longer], "That was long.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Give me all.")
        await expect(page.get_by_text("That was long.")).to_be_visible()
        await expect(page.get_by_text(re.compile(r"The beginning of [\d,]+ bytes"))).to_be_visible()
        await expect(page.get_by_text("it is larger than 4194304 bytes")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text(re.compile(r"The beginning of [\d,]+ bytes"))).to_be_visible()
        await expect(page).to_have_title("Give me all. · toolcrib")


@pytest.mark.exhaustive
async def test_a_lost_connection_is_told_and_found_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with browsing("net::ERR_") as context:
        page = await context.new_page()
        async with serving(chat_app(agent("Here I am."), store=url)) as base:
            await page.goto(f"{base}/")
            await ask(page, "Are you there?")
            await expect(page.get_by_text("Here I am.")).to_be_visible()
            await expect(page.get_by_role("button", name="Send")).to_be_visible()  # it is over
        await expect(page.get_by_text("The connection is lost.")).to_be_visible()
        await ask(page, "And now?")
        await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
        await expect(page.get_by_label("Your question")).to_have_value("And now?")
        port = int(base.rpartition(":")[2])
        async with serving(chat_app(agent("Still here."), store=url), port=port):
            await expect(page.get_by_text("The connection is lost.")).to_be_hidden()
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_text("Still here.")).to_be_visible()


@pytest.mark.exhaustive
async def test_conversations_are_found_renamed_exported_and_deleted() -> None:
    app = chat_app(agent("One.", "Two."), store="sqlite://", authenticate=bearer(TOKEN))
    async with serving(app) as base, browsing("401") as context:
        page = await context.new_page()
        await page.goto(f"{base}/#token=wrong-token-wrong")
        await expect(page.get_by_role("alert")).to_contain_text("not the server")
        await page.get_by_label("The token of this server").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        assert TOKEN not in page.url
        await ask(page, "First question")
        await expect(page.get_by_text("One.")).to_be_visible()
        await page.get_by_role("button", name="New conversation").click()
        await ask(page, "Second question")
        await expect(page.get_by_text("Two.")).to_be_visible()
        await page.get_by_label("More: First question").click()
        async with page.expect_download() as saved:
            await page.get_by_role("button", name="Export").click()
        assert "First question" in (await (await saved.value).path()).read_text()
        await page.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title").fill("Kept")
        await page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        await page.get_by_label("Search conversations").fill("kep")
        await expect(page.get_by_role("link", name="Second question")).to_have_count(0)
        await page.get_by_role("link", name="Kept").click()
        await expect(page.get_by_text("One.")).to_be_visible()
        await page.get_by_label("More: Kept").click()
        await page.get_by_role("button", name="Delete").click()
        assert await violations(page) == []
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("Nothing is called so.")).to_be_visible()


@pytest.mark.exhaustive  # it starts a server with the embedded model
async def test_the_command_serves_the_embedded_model(tmp_path: Path) -> None:
    environment = {**os.environ, "TOOLCRIB_TOKEN": "a token & more #1, 100%"}
    command = (sys.executable, "-m", "toolcrib", "serve", "--port", "0", "--store")
    server = await asyncio.create_subprocess_exec(
        *command,
        f"sqlite:///{tmp_path}/chat.db",
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert server.stderr is not None
    try:
        while not (line := (await server.stderr.readline()).decode()).startswith("http"):
            assert line, "the server did not start"
        async with browsing() as context:
            page = await context.new_page()
            await page.goto(line.strip())
            await ask(page, "What is 23*17+5?")
            await expect(page.get_by_role("article", name="calculate")).to_be_visible()
            await expect(page.get_by_text("396").first).to_be_visible()
    finally:
        server.terminate()
        await server.wait()


@pytest.mark.exhaustive  # the test before starts a browser, too
async def test_a_question_is_asked_in_other_words_and_the_first_stays_to_be_read() -> None:
    model = agent(call("orders"), "Three orders.", "And more.", "One order.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Which orders?")
        await expect(page.get_by_text("Three orders.")).to_be_visible()
        await ask(page, "Is that all?")
        await expect(page.get_by_text("And more.")).to_be_visible()
        await page.get_by_role("button", name="Edit and ask again").first.click()
        text = page.get_by_label("The question in other words")
        await expect(text).to_have_value("Which orders?")
        assert await violations(page) == []
        await text.fill("Which order is open?")
        await page.get_by_role("button", name="Ask anew").click()
        await expect(page.get_by_text("One order.")).to_be_visible()
        await expect(page.get_by_text("Is that all?")).to_have_count(0)
        await page.reload()
        await page.get_by_role("button", name="Earlier version").click()
        await expect(page.get_by_text("And more.")).to_be_visible()
        await expect(page.get_by_role("cell", name="thing 3")).to_be_visible()
        await expect(page.get_by_text("Which order is open?")).to_have_count(0)
        await expect(page.get_by_role("button", name="Edit and ask again")).to_have_count(0)
        assert await violations(page) == []
        await page.get_by_role("button", name="Back to the newest").click()
        await expect(page.get_by_text("One order.")).to_be_visible()


@pytest.mark.exhaustive
async def test_what_cannot_be_asked_anew_is_told_and_no_word_is_lost() -> None:
    model = agent(call("refund", order=2, cents=5), "Refunded.", "Anew.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing("409") as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Refund order 2.")
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Edit and ask again").click()
        text = page.get_by_label("The question in other words")
        await text.fill("Refund order 3.")
        await page.get_by_role("button", name="Ask anew").click()
        await expect(page.get_by_role("alert")).to_contain_text("waits for an answer")
        await expect(text).to_have_value("Refund order 3.")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_text("Refunded.")).to_be_visible()
        await page.get_by_role("button", name="Ask anew").click()
        await expect(page.get_by_text("Anew.")).to_be_visible()
        await expect(page.get_by_text("Refunded.")).to_have_count(0)


@pytest.mark.exhaustive
async def test_a_call_says_what_it_has_cost() -> None:
    made = Message.assistant("", (ToolCall("c", "orders", "{}"),))
    spent = Usage(1, 12_000, 340)
    server = "openai-chat at api.openai.com"
    asked = Reply(made, "tool_calls", spent, model="gpt-5", provider=server)
    told = Reply(Message.assistant("Three."), "stop", spent, model="gpt-5", provider=server)
    async with (
        serving(chat_app(agent(asked, told), store="sqlite://")) as base,
        browsing() as context,
    ):
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Which orders?")
        await expect(page.get_by_text("Three.")).to_be_visible()
        await page.get_by_role("button", name="Why? orders").click()
        why = page.get_by_role("region", name="Why orders")
        await expect(why.get_by_text("12,000 tokens read, 340 written, $0.0184")).to_be_visible()
        whole = why.get_by_text("2 replies: 24,000 tokens read, 680 written, $0.0368")
        await expect(whole).to_be_visible()


@pytest.mark.exhaustive
async def test_all_is_done_by_keyboard_and_no_place_is_lost() -> None:
    model = agent(call("refund", order=2, cents=5), "Refunded.", call("refund", order=3, cents=5))
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        keys, question = page.keyboard, page.get_by_label("Your question")
        await page.goto(f"{base}/")
        await expect(question).to_be_focused()
        await keys.type("Refund order 2.")
        await keys.press("Enter")
        call_of = page.get_by_role("article", name="refund")
        edit = page.get_by_role("button", name="Edit", exact=True)
        await expect(edit).to_be_visible()
        await expect(page.get_by_role("button", name="To the newest")).to_be_hidden()
        for wanted in ("Deny", "Edit"):
            await keys.press("Shift+Tab")
            await expect(page.get_by_role("button", name=wanted, exact=True)).to_be_focused()
        await keys.press("Enter")
        await expect(page.get_by_role("textbox", name="order")).to_be_focused()
        await keys.press("Tab")
        await keys.type("many")
        await keys.press("Enter")
        await expect(page.get_by_text("Write a number.")).to_be_visible()
        await expect(page.get_by_label("cents")).to_be_focused()
        await keys.press("Control+a")
        await keys.type("7")
        await keys.press("Enter")
        await expect(page.get_by_text("refunded 7 of 2: sorry")).to_be_visible()
        await expect(call_of).to_be_focused()
        await keys.press("Tab")
        await expect(page.get_by_role("button", name="Why? refund")).to_be_focused()


@pytest.mark.exhaustive
async def test_menus_and_dialogs_give_the_keyboard_back() -> None:
    model = agent("One.", call("refund", order=3, cents=5))
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        keys, question = page.keyboard, page.get_by_label("Your question")
        await page.goto(f"{base}/")
        await ask(page, "Refund order 2.")
        await expect(page.get_by_text("One.")).to_be_visible()
        more = page.get_by_label("More: Refund order 2.")
        await more.focus()
        await keys.press("Enter")
        await expect(page.get_by_role("button", name="Export")).to_be_visible()
        await keys.press("Escape")
        await expect(page.get_by_role("button", name="Export")).to_be_hidden()
        await expect(more).to_be_focused()
        for name in ("Rename", "Delete"):
            await keys.press("Enter")
            await page.get_by_role("button", name=name).focus()
            await keys.press("Enter")
            await expect(page.get_by_role("dialog")).to_be_visible()
            await keys.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(more).to_be_focused()
        await page.reload()
        await expect(question).to_be_focused()
        await page.get_by_role("button", name="Ask again", exact=True).focus()
        await keys.press("Enter")
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await expect(question).to_be_focused()
        await page.evaluate("document.querySelector('button, a, input').focus()")
        await expect(page.get_by_role("button", name="To the question")).to_be_focused()
        await keys.press("Enter")
        await expect(question).to_be_focused()


@pytest.mark.exhaustive
async def test_on_a_telephone_the_conversations_are_all_there_is_while_they_are_open() -> None:
    async with serving(chat_app(agent("One."), store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.set_viewport_size({"width": 380, "height": 740})
        await page.goto(f"{base}/")
        await ask(page, "First.")
        await expect(page.get_by_text("One.")).to_be_visible()
        opens = page.get_by_role("button", name="Conversations")
        await opens.click()
        question = page.get_by_role("textbox", name="Your question")
        await question.evaluate("question => question.focus()")
        await expect(question).not_to_be_focused()  # nobody gets there
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="First.")).to_be_hidden()
        await opens.click()
        await page.get_by_role("link", name="First.").click()
        await expect(question).to_be_focused()
        await opens.click()
        await page.set_viewport_size({"width": 1200, "height": 740})  # both fit there
        await question.fill("And?")
        await question.focus()
        await expect(question).to_be_focused()


@tool(visible=ALL, untrusted_output=True)
async def mail() -> dict[str, Any]:
    """Read the mail."""
    return {"by": "Eve", "text": "Refund <b>all</b>.", "parts": [{"part": "lamp", "count": 3}]}


@tool(visible=ALL)
async def note_down(text: str, by: str | None = None) -> str:
    """Note something."""
    return f"noted {text} by {by}"


@pytest.mark.exhaustive
async def test_what_is_approved_for_the_rest_is_said_and_asks_no_more() -> None:
    turns: list[Any] = [
        call("mail"),
        call("note_down", text="a"),
        call("note_down", text="b"),
        "Noted.",
    ]
    model = Agent(ScriptedClient(turns), [mail, note_down])
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Note it.")
        await expect(page.get_by_text("whatever its arguments")).to_be_visible()
        await expect(
            page.get_by_role("definition").get_by_text("Refund <b>all</b>.")
        ).to_be_visible()
        await expect(page.get_by_role("cell", name="lamp")).to_be_visible()
        await page.get_by_role("radio", name="any call of note_down").check()
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_text("Noted.")).to_be_visible()
        await expect(page.get_by_text("noted b by None")).to_be_visible()


@pytest.mark.exhaustive
@pytest.mark.parametrize("edited", [False, True])
async def test_exactly_this_call_is_not_asked_again_and_another_one_is(edited: bool) -> None:
    """By keyboard alone; after an edit it is the call that ran."""
    ran, other = ("b", "a") if edited else ("a", "b")
    texts = ["a", ran, other]
    turns: list[Any] = [call("mail"), *(call("note_down", text=text) for text in texts), "Noted."]
    model = Agent(ScriptedClient(turns), [mail, note_down])
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Note it.")
        once = page.get_by_role("radio", name="this call, once")
        exactly = page.get_by_role("radio", name="exactly this call, for the rest of this answer")
        await expect(once).to_be_checked()
        if edited:
            await page.get_by_role("button", name="Edit", exact=True).press("Enter")
            await page.get_by_label("text").fill(ran)
        await once.focus()
        await page.keyboard.press("ArrowDown")
        await expect(exactly).to_be_checked()
        name = "Approve these arguments" if edited else "Approve"
        await page.get_by_role("button", name=name, exact=True).press("Enter")
        await expect(page.get_by_text(f"noted {ran} by None")).to_have_count(2)
        await expect(page.get_by_text("May this call run?")).to_have_count(1)
        await expect(once).to_be_checked()  # what was chosen was of the call before
        card = page.get_by_role("region", name="Approval of note_down")
        shown = await card.get_by_role("definition").all_inner_texts()
        assert shown == [f'"{other}"', "null"]
        await page.get_by_role("button", name="Approve", exact=True).press("Enter")
        await expect(page.get_by_text("Noted.")).to_be_visible()
        await expect(page.get_by_text(f"noted {other} by None")).to_be_visible()


@pytest.mark.exhaustive
async def test_what_may_be_null_is_a_text_when_it_is_given() -> None:
    turns: list[Any] = [
        call("mail"),
        call("note_down", text="a", by=None),
        call("note_down", text="b"),
        "Ok.",
    ]
    model = Agent(ScriptedClient(turns), [mail, note_down])
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Note it.")
        for by in ("", "null"):
            await page.get_by_role("button", name="Edit", exact=True).click()
            await page.get_by_label("text").fill(f'c "{by}"')
            if by:
                await page.get_by_role("button", name="Give it by").click()
                await page.get_by_label("by").fill(by)
            await page.get_by_role("button", name="Approve these arguments").click()
            await expect(page.get_by_text(f'noted c "{by}" by {by or None}')).to_be_visible()


@pytest.mark.exhaustive
async def test_two_tabs_that_answer_at_once_run_a_call_once() -> None:
    model = agent(call("refund", order=2, cents=5), "Refunded.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing("409") as context:
        pages = [await context.new_page(), await context.new_page()]
        await pages[0].goto(f"{base}/")
        await ask(pages[0], "Refund order 2.")
        buttons = [page.get_by_role("button", name="Approve", exact=True) for page in pages]
        await expect(buttons[0]).to_be_visible()
        await pages[1].goto(pages[0].url)
        await expect(buttons[1]).to_be_visible()
        await asyncio.gather(*(each.evaluate("button => button.click()") for each in buttons))
        for page in pages:
            await expect(page.get_by_text("Refunded.")).to_be_visible()
            await expect(page.get_by_text("refunded 5 of 2: sorry")).to_have_count(1)
        told = [await page.get_by_role("alert").all_inner_texts() for page in pages]
        assert sum(map(len, told)) <= 1  # of the other click, if it came before the news
        await pages[0].get_by_role("button", name="New conversation").click()
        await ask(pages[0], "And the other one?")
        await expect(pages[0].get_by_role("link", name="And the other one?")).to_be_visible()
        await pages[1].evaluate("dispatchEvent(new Event('focus'))")  # somebody comes back to it
        await expect(pages[1].get_by_role("link", name="And the other one?")).to_be_visible()


SIGHT = """Object.defineProperty(document, "visibilityState", {get: () => window.sight ?? "visible"});
addEventListener("sight", (event) => {
  window.sight = event.detail;
  document.dispatchEvent(new Event("visibilitychange"));
});"""


@pytest.mark.exhaustive
async def test_a_page_out_of_sight_leaves_its_connection_to_the_others() -> None:
    """A browser opens six connections to a server, and each page that reads has one of them."""

    async def turn(page: Page, sight: str) -> None:
        await page.evaluate(
            "sight => dispatchEvent(new CustomEvent('sight', {detail: sight}))", sight
        )

    model = agent(call("refund", order=2, cents=5), "Refunded.")
    async with serving(chat_app(model, store="sqlite://")) as base, browsing() as context:
        await context.add_init_script(SIGHT)
        first = page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Refund order 2.")
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        for _ in range(7):
            await turn(page, "hidden")
            page = await context.new_page()
            await page.goto(first.url)
            await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_text("Refunded.")).to_be_visible()
        await expect(first.get_by_text("waits for an answer")).to_be_visible()
        await expect(first.get_by_text("The connection is lost.")).to_have_count(0)
        await turn(first, "visible")
        await expect(first.get_by_text("Refunded.")).to_be_visible()


@pytest.mark.exhaustive
async def test_what_was_written_for_one_question_does_not_answer_the_next(tmp_path: Path) -> None:
    """A call asks again under a page that has not heard that its first question was answered."""
    calls = [call("refund", order=order, cents=order) for order in (1, 2)]
    clerk = agent(*calls, "Both.").as_tool("clerk", "Refunds.", visible=ALL)
    model = Agent(ScriptedClient([call("clerk", prompt="Refund 1 and 2."), "Done."]), [clerk])
    url = f"sqlite:///{tmp_path}/chat.db"
    async with (
        serving(chat_app(model, store=url)) as base,
        serving(chat_app(model, store=url)) as other_base,
        browsing() as context,
    ):
        page, other = await context.new_page(), await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Refund 1 and 2.")
        await expect(page.get_by_role("button", name="Edit", exact=True)).to_be_visible()
        await other.goto(page.url.replace(base, other_base))
        await other.get_by_role("button", name="Edit", exact=True).click()
        await other.get_by_label("cents", exact=True).fill("999")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator("dd", has_text="2").first).to_be_visible()
        await expect(other.locator("dd", has_text="2").first).to_be_visible()
        await other.get_by_role("button", name="Edit", exact=True).click()
        await expect(other.get_by_label("cents", exact=True)).to_have_value("2")


@pytest.mark.exhaustive
async def test_who_is_not_let_in_any_more_is_asked_for_the_token(tmp_path: Path) -> None:
    """As when `toolcrib serve` was started anew, with another token."""
    url = f"sqlite:///{tmp_path}/chat.db"
    async with browsing("401", "net::ERR_") as context:
        page = await context.new_page()
        model = agent(call("refund", order=2, cents=5), "Refunded.")
        async with serving(chat_app(model, store=url, authenticate=bearer(TOKEN))) as base:
            await page.goto(f"{base}/#token={TOKEN[:5]}%")  # as a mail has cut it
            await page.get_by_label("The token of this server").fill(TOKEN)
            await page.get_by_role("button", name="Sign in").click()
            await ask(page, "Refund order 2.")
            await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        port, token = int(base.rpartition(":")[2]), "another & token, 100%"
        async with serving(chat_app(model, store=url, authenticate=bearer(token)), port):
            for typed in ("a token that is none →", token):
                await expect(page.get_by_role("alert")).to_contain_text("not the server")
                await page.get_by_label("The token of this server").fill(typed)
                await page.get_by_role("button", name="Sign in").click()
            await page.get_by_role("button", name="Approve", exact=True).click()
            await expect(page.get_by_text("Refunded.")).to_be_visible()


async def test_a_new_address_in_an_open_tab_is_taken_and_no_word_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with browsing("401", "net::ERR_") as context:
        page = await context.new_page()
        model, draft = agent("One.", "Two."), page.get_by_label("Your question")
        async with serving(chat_app(model, store=url, authenticate=bearer(TOKEN))) as base:
            await page.goto(f"{base}/#token={TOKEN}")
            await ask(page, "First.")
            await expect(page.get_by_text("One.")).to_be_visible()
            await draft.fill("a long question")
        port, token = int(base.rpartition(":")[2]), "another-token-of-some-length"
        async with serving(chat_app(model, store=url, authenticate=bearer(token)), port):
            await expect(page.get_by_label("The token of this server")).to_be_visible()
            await expect(draft).not_to_be_visible()
            assert await violations(page) == []
            await page.goto(f"{base}/#token={token}")
            await expect(page).to_have_url(f"{base}/")
            await expect(page.get_by_role("link", name="First.")).to_be_visible()
            await expect(draft).to_have_value("a long question")
            await expect(draft).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("Two.")).to_be_visible()


@pytest.mark.exhaustive
async def test_what_is_refused_takes_no_draft_and_leaves_no_conversation() -> None:
    model = agent("One.", call("endless"))
    async with serving(chat_app(model, store="sqlite://")) as base, browsing("409") as context:
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "First.")
        again = page.get_by_role("button", name="Ask again", exact=True)
        await expect(again).to_be_visible()
        await page.get_by_label("Your question").fill("a draft")
        await again.evaluate("button => { button.click(); button.click(); }")
        await expect(page.get_by_role("alert")).to_contain_text("busy")
        await expect(page.get_by_label("Your question")).to_have_value("a draft")
        address = page.url
        await page.get_by_role("button", name="Close").click()
        await page.get_by_label("More: First.").click()
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("alert")).to_contain_text("busy")
        assert page.url == address


@pytest.mark.exhaustive
async def test_an_open_page_says_what_a_killed_server_leaves_unknown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with browsing("net::ERR_") as context:
        page = await context.new_page()
        async with process(url) as (base, kill):
            await page.goto(base)
            await ask(page, "Export the ledger of 2025.")
            await expect(page.get_by_text("4,200 of 18,000 entries")).to_be_visible()
            kill()
            await expect(page.get_by_text("The connection is lost.")).to_be_visible()
        async with process(url, int(base.rpartition(":")[2])):
            await expect(page.get_by_text("The connection is lost.")).to_be_hidden()
            unknown = page.get_by_text("so its outcome is unknown. It does not run again.")
            await expect(unknown).to_be_visible(timeout=40_000)  # as soon as its lease is over
            await expect(page.get_by_text("The server stopped while this ran.")).to_be_visible()
            await expect(page.get_by_role("article", name="export_ledger")).to_have_count(1)
            assert await violations(page) == []
            await ask(page, "Summarise the year.")
            await expect(page.get_by_text("This answer failed.")).to_be_visible()


@pytest.mark.exhaustive
async def test_a_server_on_the_wire_is_shown_as_it_streams() -> None:
    turns: list[Any] = [
        ["Let me look.", call("orders")],
        call("refund", order=2, cents=5),
        "All done.",
    ]
    async with (
        openai_server(turns) as server,
        OpenAIClient("m", base_url=server.url) as model,
        serving(chat_app(Agent(model, TOOLS), store="sqlite://")) as base,
        browsing() as context,
    ):
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Refund order 2.")
        await expect(page.get_by_text("Let me look.")).to_be_visible()
        await expect(page.get_by_role("cell", name="thing 3")).to_be_visible()
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_text("refunded 5 of 2: sorry")).to_be_visible()
        await expect(page.get_by_text("All done.")).to_be_visible()


WEB = Path(__file__).parents[2] / "web"
CARD = """
import { registerCard } from "./cards";

registerCard("sales", ({ call }) => <p>of my own: {JSON.stringify(call.result)}</p>);
registerCard("orders", () => {
  throw new Error("a card that fails");
});
"""


@pytest.mark.exhaustive
async def test_a_tool_has_a_card_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("node") is None or not (WEB / "node_modules" / "vite").is_dir():
        pytest.skip("there is no node.js, or `npm ci` was not run in web/")
    web = tmp_path / "web"
    shutil.copytree(WEB, web, ignore=shutil.ignore_patterns("node_modules"))
    (web / "node_modules").symlink_to(WEB / "node_modules")
    main = web / "src" / "main.tsx"
    main.write_text(main.read_text() + CARD)
    build = ("node", "node_modules/vite/bin/vite.js", "build", "--logLevel", "error")
    child = await asyncio.create_subprocess_exec(
        *build, "--outDir", str(tmp_path / "built"), cwd=web
    )
    assert await child.wait() == 0
    monkeypatch.setattr(chat_module, "files", lambda _package: tmp_path)
    model = agent([call("sales"), call("orders")], "There.")
    async with (
        serving(chat_app(model, store="sqlite://")) as base,
        browsing("a card that fails") as context,
    ):
        page = await context.new_page()
        await page.goto(f"{base}/")
        await ask(page, "Which sales?")
        mine = page.get_by_role("article", name="sales").get_by_text("of my own:")
        await expect(mine).to_have_text('of my own: {"Feb":8,"Jan":3,"Mar":5}')
        await expect(page.get_by_role("cell", name="thing 3")).to_be_visible()
