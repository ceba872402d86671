"""What a page may not send: each thing is refused with a status and a code of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chat.chat_helpers import Page, page_of, serving
from rows import each_row

from toolcrib import ALL, Agent, Caller, ToolRunner, tool
from toolcrib.chat import ChatLimits, chat_app
from toolcrib.testing import ScriptedClient, call

RAN: list[str] = []


@tool(visible=ALL, safe=False)
async def wipe(path: str) -> str:
    """Delete."""
    RAN.append(path)
    return "gone"


def who(request: Any) -> Caller | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Caller(name) if name in ("ada", "eve") else None


def app_of(folder: Path, **options: Any) -> Any:
    RAN.clear()
    agent = Agent(ScriptedClient([call("wipe", path="/")] * 9), ToolRunner([wipe]))
    return chat_app(agent, store=f"sqlite:///{folder}/chat.db", authenticate=who, **options)


def signed_in(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


EVE, HI, YES = signed_in("eve"), {"text": "hi"}, {"decision": "approve"}
SAY, ANSWER = "POST /{t}/messages", "POST /{t}/approvals/{a}"
NO_EDIT = {"decision": "deny", "arguments": {}}
SENT: dict[str, tuple[str, Any, dict[str, str], str]] = {
    "nobody": (SAY, HI, {"authorization": ""}, "401 unauthenticated"),
    "somebody else's thread": (SAY, HI, EVE, "404 unknown_thread"),
    "somebody else's view": ("GET /{t}", None, EVE, "404 unknown_thread"),
    "somebody else's stream": ("GET /{t}/stream", None, EVE, "404 unknown_thread"),
    "somebody else's approval": (ANSWER, YES, EVE, "404 unknown_thread"),
    "a forged approval": ("POST /{t}/approvals/forged", YES, {}, "404 unknown_approval"),
    "an answer that is none": (ANSWER, {"decision": "sure"}, {}, "422 invalid_answer"),
    "a refusal that edits": (ANSWER, NO_EDIT, {}, "422 invalid_answer"),
    "an edit that the schema refuses": (
        ANSWER,
        YES | {"arguments": {"path": 5}},
        {},
        "422 invalid_arguments",
    ),
    "an edit with a key that nobody declares": (
        ANSWER,
        YES | {"arguments": {"path": "/a", "all": True}},
        {},
        "422 invalid_arguments",
    ),
    "an edit that lacks a key": (ANSWER, YES | {"arguments": {}}, {}, "422 invalid_arguments"),
    "an edit of one number too many": (
        ANSWER,
        YES | {"arguments": {"path": 10**50}},
        {},
        "422 invalid_arguments",
    ),
    "a key twice": (ANSWER, '{"decision": "deny", "decision": "approve"}', {}, "400 key_twice"),
    "a key twice in an edit": (
        ANSWER,
        '{"decision": "approve", "arguments": {"path": "/", "path": "/a"}}',
        {},
        "400 key_twice",
    ),
    "a key twice in a message": (SAY, '{"text": "a", "text": "b"}', {}, "400 key_twice"),
    "an assistant's message": (SAY, {**HI, "role": "assistant"}, {}, "422 invalid_body"),
    "a tool's result": (SAY, {"tool_results": []}, {}, "422 invalid_body"),
    "no text": (SAY, {"text": "  "}, {}, "422 no_text"),
    "too long a text": (SAY, {"text": "x" * 50_000}, {}, "413 too_long"),
    "too large a body": (SAY, {"text": "x" * 300_000}, {}, "413 too_large"),
    "another origin": (SAY, HI, {"origin": "https://evil.example"}, "403 wrong_origin"),
    "no origin at all": (SAY, HI, {"origin": "null"}, "403 wrong_origin"),
    "a form": (SAY, HI, {"content-type": "text/plain"}, "415 not_json"),
    "a thread that is not there": ("GET /thread_x", None, {}, "404 unknown_thread"),
    "a call that is not there": ("GET /{t}/calls/x", None, {}, "404 unknown_call"),
    "no title": ("PATCH /{t}", {"title": " "}, {}, "422 no_title"),
}


@each_row(("sent", "body", "headers", "refused"), SENT.values(), ids=SENT)
async def test_what_is_refused_and_how(
    sent: str, body: Any, headers: dict[str, str], refused: str, tmp_path: Path
) -> None:
    app = app_of(tmp_path)
    async with page_of(app, headers=signed_in("ada")) as page:
        await page.ask("Go.")
        await page.ended("waiting")
        method, _, path = sent.partition(" ")
        place = path.format(t=page.thread, a=page.calls()[0]["approval"]["id"])
        url = f"{page.base}/threads{place}"
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {"content-type": "application/json"} | headers
        async with page.session.request(method, url, data=text, headers=headers) as answer:
            told = await answer.json()
            assert f"{answer.status} {told['error']['code']}" == refused
        assert not RAN
        assert page.turns[0]["status"] == "waiting"


async def test_an_origin_that_is_allowed_may_ask(tmp_path: Path) -> None:
    app = app_of(tmp_path, allowed_origins=["https://shop.example"])
    async with page_of(app, headers=signed_in("ada")) as page:
        for origin, status in (("https://shop.example", 202), (page.base, 202)):
            answer = await page.post(
                f"/{page.thread}/messages", {"text": "hi"}, headers={"origin": origin}
            )
            assert answer[0] == status
            await page.until(lambda s: s["turns"] and s["turns"][-1]["status"] == "waiting")


async def test_who_may_not_approve_is_told_so(tmp_path: Path) -> None:
    app = app_of(tmp_path, may_approve=lambda caller, _asked: caller.id == "eve")
    async with page_of(app, headers=signed_in("ada")) as page:
        await page.ask("Go.")
        await page.ended("waiting")
        path = f"/{page.thread}/approvals/{page.calls()[0]['approval']['id']}"
        status, told = await page.post(path, {"decision": "approve"})
        assert (status, told["error"]["code"], RAN) == (403, "may_not_approve", [])


def _fails(*_given: Any) -> bool:
    raise RuntimeError("no database: hunter2")


async def _later(*_given: Any) -> bool:
    return True


@each_row("may", [_fails, _later, lambda *_given: None, lambda *_given: 1])
async def test_a_may_approve_that_fails_is_no_yes(
    may: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is what Python takes for one, such as a coroutine; the question stays."""
    async with page_of(app_of(tmp_path, may_approve=may), headers=signed_in("ada")) as page:
        await page.ask("Go.")
        await page.ended("waiting")
        path = f"/{page.thread}/approvals/{page.calls()[0]['approval']['id']}"
        status, told = await page.post(path, YES)
        assert (status, told["error"]["code"], RAN) == (500, "failed", [])
        assert page.turns[0]["status"] == "waiting"
    assert "may_approve" in caplog.text
    assert "hunter2" not in caplog.text + json.dumps(told)


async def test_an_authenticate_that_fails_is_nobody(tmp_path: Path) -> None:
    for name in ("fails", "wrong"):
        agent = Agent(ScriptedClient(["hi"]))
        who = _fails if name == "fails" else lambda _request: "ada"
        app = chat_app(agent, store=f"sqlite:///{tmp_path}/chat.db", authenticate=who)  # type: ignore[arg-type]
        async with serving(app) as base, aiohttp.ClientSession() as session:
            status, told = await Page(base, session).post("")
            assert (status, told["error"]["code"]) == (500, "failed")


async def test_without_a_sign_in_only_this_machine_may_ask(tmp_path: Path) -> None:
    agent = Agent(ScriptedClient(["hi"]))
    async with page_of(chat_app(agent, store=f"sqlite:///{tmp_path}/chat.db")) as page:
        rebound = {"host": "evil.example"}  # a name that leads here: DNS rebinding
        status, told = await page.post("", headers=rebound)
        assert (status, told["error"]["code"]) == (403, "elsewhere")


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (ChatLimits(requests=3), "too_many_requests"),
        (ChatLimits(streams=1), "too_many_streams"),
        (ChatLimits(runs=0), "too_many_runs"),
    ],
)
async def test_limits_are_told(limits: ChatLimits, code: str, tmp_path: Path) -> None:
    async with page_of(app_of(tmp_path, limits=limits), headers=signed_in("ada")) as page:
        codes = []
        for path, method in (("/stream", "GET"), ("/messages", "POST"), ("/messages", "POST")):
            url = f"{page.base}/threads/{page.thread}{path}"
            async with page.session.request(method, url, json={"text": "hi"}) as answer:
                if answer.status == 429:
                    assert answer.headers["retry-after"]
                    codes.append((await answer.json())["error"]["code"])
        assert code in codes


async def test_threads_are_their_owners(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    async with page_of(app, headers=signed_in("ada")) as page:
        assert (await page.post(f"/{page.thread}", {"title": "100% sure_"}, method="PATCH"))[
            0
        ] == 200
        for name, search, count in (
            ("ada", "", 1),
            ("eve", "", 0),
            ("ada", "%25 SURE_", 1),
            ("ada", "1%250", 0),
        ):
            async with aiohttp.ClientSession(headers=signed_in(name)) as session:
                other = Page(page.base, session)
                found = (await other.get(f"?search={search}"))[1]["threads"]
                assert len(found) == count
        exported = await page.get(f"/{page.thread}/export")
        assert exported[1]["thread"]["title"] == "100% sure_"
        assert (await page.post(f"/{page.thread}", method="DELETE"))[0] == 204
        assert (await page.get(f"/{page.thread}"))[0] == 404
