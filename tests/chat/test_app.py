"""A run on a route of one's own, and the description of the chat app's routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import jsonschema_rs
import msgspec
import pytest
from assistant_stream.assistant_stream_chunk import UpdateStateChunk
from assistant_stream.serialization.data_stream import DataStreamEncoder
from chat.chat_helpers import applied, endless_tool, page_of, serving
from openapi_spec_validator import validate
from rows import each_row
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from toolcrib import ALL, Agent, Caller, Limits, ToolRunner, tool
from toolcrib.agent import RunStream
from toolcrib.approvals import ApprovalStore, answer_later
from toolcrib.chat import chat_app, stream_response
from toolcrib.chat.doors import NOT_A_CLIENTS
from toolcrib.chat.threads import ThreadStore
from toolcrib.chat.view import ShownTurn, TurnView, new_turn
from toolcrib.errors import ProviderError, ToolcribError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import Approve
from toolcrib.values.run import Done, ToolArgumentsDelta

OPEN = ("streaming", "called", "waiting")
Json = dict[str, Any]


@tool(visible=ALL)
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(visible=ALL, safe=False)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def agent(*turns: object, **options: Any) -> Agent:
    runner = ToolRunner([add, pay], approver=answer_later)
    return Agent(ScriptedClient([*turns]), runner, **options)  # type: ignore[list-item]


@asynccontextmanager
async def reading(
    start: Callable[[], RunStream], **options: Any
) -> AsyncIterator[aiohttp.StreamReader]:
    """Serve a run on a route, and read it."""

    async def endpoint(_request: Request) -> Response:
        return stream_response(start(), asked="Go.", **options)

    app = Starlette(routes=[Route("/run", endpoint)])
    async with (
        serving(app) as base,
        aiohttp.ClientSession() as session,
        session.get(f"{base}/run") as answer,
    ):
        assert answer.headers["x-vercel-ai-data-stream"] == "v1"
        yield answer.content


async def states(start: Callable[[], RunStream]) -> list[Json]:
    """Return what a page has after each operation of a run."""
    found: list[Json] = []
    state: Any = None
    async with reading(start) as lines:
        async for line in lines:
            kind, _, text = line.decode().partition(":")
            assert kind == "aui-state"
            for operation in json.loads(text):
                state = applied(state, [operation])
                found.append(json.loads(json.dumps(state)))
    return found


ENDS: dict[str, tuple[list[Any], str]] = {
    "completed": (["Well. ", [call("add", a=1, b=2), call("add", a=1, b=3)], "Done."], "completed"),
    "failed": ([call("add", a=1, b=2), ProviderError("away")], "failed"),
    "limited": ([call("add", a=1, b=2)] * 3, "limited"),
    "waiting": ([[call("pay", cents=1), call("add", a=1, b=2)]], "waiting"),
}


@each_row(("turns", "status"), ENDS.values(), ids=ENDS)
async def test_each_call_has_ended_before_its_turn(turns: list[Any], status: str) -> None:
    of = agent(*turns, limits=Limits(turns=3))
    shown = await states(lambda: of.stream("Go."))
    assert shown[0]["asked"] == "Go."
    assert shown[-1]["status"] == status
    for state in shown:
        msgspec.convert(state, type=ShownTurn)
        calls = [part for part in state["parts"] if part["kind"] == "call"]
        if state["status"] not in ("running", "waiting"):
            assert not any(part["state"] in OPEN for part in calls)
            assert all(part["result"] is not None or part["error"] for part in calls)
    (question,) = [p["approval"] for p in shown[-1]["parts"] if p.get("approval")] or [None]
    assert bool(question) == (status == "waiting")


async def test_a_call_that_was_cut_ends_before_its_turn() -> None:
    """Of a reply that breaks off in the middle of a call nothing runs, and nothing stays open."""
    ended = await agent("Hi.").run("Go.")
    view = TurnView(new_turn("t", "Go."), lambda _name, _by: None)
    view.take(ToolArgumentsDelta("c", "add", '{"a": '))
    state = view.snapshot()
    for operation in view.take(Done(ended)):
        state = applied(state, [operation])
        assert state["status"] == "running" or state["parts"][0]["state"] == "cancelled"
    assert state["status"] == "completed"


async def test_a_run_that_waits_goes_on_by_another_request() -> None:
    of = agent([call("pay", cents=5)], "Done.")
    waiting = await of.run("Go.")
    answers = {waiting.pending[0].id: Approve(by="ada")}
    shown = await states(lambda: of.resume_stream(waiting.state, answers))
    card, text = shown[-1]["parts"]
    assert (card["result"], card["approved_by"], text["text"]) == ("paid 5", "ada", "Done.")


async def test_what_is_sent_is_of_its_time_whoever_encodes_it_when() -> None:
    """Operations are copies: a queue in between, or another encoder, sees what was true then."""
    run = agent([call("add", a=1, b=2), call("add", a=2, b=2)], "Done.").stream("Go.")
    response: Any = stream_response(run)
    encoder = DataStreamEncoder()
    chunks, at_once = [], []
    async for chunk in response._chunks():
        assert isinstance(chunk, UpdateStateChunk)
        chunks.append(chunk)
        at_once.append(encoder.encode_chunk(chunk))
    assert [encoder.encode_chunk(chunk) for chunk in chunks] == at_once


async def test_a_reader_that_leaves_cancels_the_run_and_a_silent_one_is_kept() -> None:
    endless, begun, ended = endless_tool()
    waiting = Agent(ScriptedClient([call("endless")]), [endless])
    runs: list[RunStream] = []

    def start() -> RunStream:
        runs.append(waiting.stream("Go."))
        return runs[0]

    async with asyncio.timeout(10):
        async with reading(start, heartbeat=0.05) as lines:
            await begun.wait()
            while await lines.readline() != b"\n":  # a heartbeat
                pass
            assert not ended.is_set()
        await ended.wait()
        assert (await runs[0].result()).status == "cancelled"


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(TypeError, match="run must be a RunStream"):
        stream_response("run")  # type: ignore[arg-type]


async def test_a_run_is_given_once() -> None:
    run = agent("Hi.").stream("Go.")
    assert stream_response(run).status_code == 200
    with pytest.raises(ToolcribError, match="only once"):
        stream_response(run)
    await run.cancel()


async def test_a_run_that_is_read_already_is_refused() -> None:
    for whole in (False, True):
        run = agent("Hi.").stream("Go.")
        await anext(run)
        if whole:
            assert [event async for event in run]
        with pytest.raises(ToolcribError, match="already being read"):
            stream_response(run)
        await run.cancel()


# The description.


async def test_the_description_is_valid_and_says_where_the_app_is(tmp_path: Path) -> None:
    app = chat_app(agent("Hi."), store=f"sqlite:///{tmp_path}/chat.db")
    mounted = Starlette(routes=[Mount("/chat", app)])
    async with (
        serving(mounted) as base,
        aiohttp.ClientSession() as session,
        session.get(f"{base}/chat/openapi.json") as answer,
    ):
        described = await answer.json()
    validate(described)
    assert described["servers"] == [{"url": "/chat"}]
    told = {(m.upper(), path) for path, of in described["paths"].items() for m in of}
    made = {
        (method, route.path.replace(":path}", "}"))
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith(("/threads", "/rules"))
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert told == made
    for of in described["paths"].values():
        for operation in of.values():
            why_not = operation["responses"]["default"]["description"]
            says_all = all(
                f"`{code}`, {why}" in why_not for code, (why, _) in NOT_A_CLIENTS.items()
            )
            assert says_all == ("requestBody" in operation)


async def test_the_description_is_of_what_is_really_sent(tmp_path: Path) -> None:
    """Each body that is taken, and each answer, is valid by the description; others are neither."""
    url = f"sqlite:///{tmp_path}/chat.db"
    rules = ApprovalStore(url, state_key=b"k" * 32)
    client = ScriptedClient([["Well.", call("pay", cents=2**60)], "Done."])
    app = chat_app(Agent(client, ToolRunner([pay], rules=rules)), store=url)
    async with rules, page_of(app) as page:
        async with page.session.get(f"{page.base}/openapi.json") as answer:
            described = await answer.json()

        def valid(schema: Json, value: Any) -> bool:
            whole = {**schema, "components": described["components"]}
            return jsonschema_rs.validator_for(whole).is_valid(value)

        async def checked(method: str, path: str, body: Any = None, **names: str) -> Any:
            operation = described["paths"][path][method]
            url = page.base + path.format(thread_id=page.thread, **names)
            async with page.session.request(method, url, json=body) as answer:
                said = await answer.json() if answer.status != 204 else None
                default = operation["responses"]["default"]
                response = operation["responses"].get(str(answer.status), default)
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                assert valid(schema, body) == (response is not default)
            if "content" in response:
                assert valid(response["content"]["application/json"]["schema"], said), said
            assert not valid(default["content"]["application/json"]["schema"], {"error": "no"})
            return said

        thread = "/threads/{thread_id}"
        await checked("post", "/threads")
        await checked("get", "/threads")
        await checked("patch", thread, {"title": "A title"})
        await checked("patch", thread, {"name": "A title"})
        await checked("post", f"{thread}/messages", {"text": 5})
        await checked("post", f"{thread}/messages", {"text": "Pay."})
        await page.ended("waiting")
        shown = await checked("get", thread)
        card = shown["turns"][0]["parts"][1]
        approval = f"{thread}/approvals/{{approval_id}}"
        id_ = card["approval"]["id"]
        await checked("post", approval, {"decision": "sure"}, approval_id=id_)
        wrong = {"decision": "approve", "always": {"seconds": 0}}
        await checked("post", approval, wrong, approval_id=id_)
        await checked("get", "/rules")
        always = {"open": ["cents"], "seconds": 60}
        await checked("post", approval, {"decision": "approve", "always": always}, approval_id=id_)
        await page.ended("completed")
        await checked("get", f"{thread}/export")
        await checked("get", f"{thread}/calls/{{call_id}}", call_id=card["id"])
        [kept] = (await checked("get", "/rules"))["rules"]
        for _ in range(2):
            await checked("delete", "/rules/{rule_id}", rule_id=kept["id"])
        await checked("post", f"{thread}/cancel")
        await checked("delete", thread)


async def test_what_no_route_takes_is_a_refusal_too(tmp_path: Path) -> None:
    def who(request: Request) -> Caller | None:
        if request.headers.get("x-asks") == "teapot":
            raise HTTPException(418, "short and stout", {"x-kind": "teapot"})
        return Caller("ada")

    app = chat_app(agent("Hi."), store=f"sqlite:///{tmp_path}/chat.db", authenticate=who)
    asked = [
        ("GET", "/nowhere", {}, 404, "unknown_path"),
        ("PUT", "/threads", {}, 405, "wrong_method"),
        ("DELETE", "/openapi.json", {}, 405, "wrong_method"),
        ("GET", "/threads", {"x-asks": "teapot"}, 418, "refused"),
    ]
    async with serving(app) as base, aiohttp.ClientSession() as session:
        async with session.get(f"{base}/openapi.json") as answer:
            described = await answer.json()
        schema = {"$ref": "#/components/schemas/Refusal", "components": described["components"]}
        for method, path, headers, status, code in asked:
            async with session.request(method, base + path, headers=headers) as answer:
                said = await answer.json()
                assert jsonschema_rs.validator_for(schema).is_valid(said)
                assert (answer.status, said["error"]["code"]) == (status, code)
                assert ("allow" in answer.headers) == (status == 405)
                assert answer.headers.get("x-kind") == headers.get("x-asks")


async def test_what_went_wrong_is_a_refusal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: Any, **_named: Any) -> Any:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(ThreadStore, "list", fails)
    app = chat_app(agent("Hi."), store=f"sqlite:///{tmp_path}/chat.db")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/threads")
    told = {"error": {"code": "failed", "message": "something went wrong"}}
    assert (answer.status_code, answer.json()) == (500, told)
