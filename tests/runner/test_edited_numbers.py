"""An edit is read like an argument: a number runs as it does where a model sends it, or not at all.

Five ways of the same text are held against a direct call: an approver in code, a stored answer by the
command line, the chat, AG-UI, and a typed answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from rows import each_row
from samples import sampled
from starlette.applications import Starlette
from starlette.routing import Mount

from toolcrib import ALL, Agent, Approve, Caller, Tool, ToolCall, ToolRunner, Waiting, tool
from toolcrib.approvals import ApprovalStore
from toolcrib.chat import chat_app
from toolcrib.chat.ag_ui import ag_ui_route
from toolcrib.cli import run
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.json import has_rounded, read_unrounded

NUMBERS = [
    "1e17", "9007199254740993.0", "9007199254740994.0", "9223372036854775809.0", "1e300", "3.0",
    "123456789012345678e0", "-18014398509481984.0", "7.0000000000000001", "7.5", "9007199254740993",
    "9007199254740992.0", "1e20", "1e21", "36893488147419103232", "-0.0", "1e-400",
]  # fmt: skip
HINTS: dict[str, tuple[Any, str]] = {
    "int": (int, "{}"),
    "float": (float, "{}"),
    "either": (int | float, "{}"),
    "nested": (list[dict[str, int]], '[{{"a": 5}}, {{"a": {}}}]'),
}
FIRST = {"int": 5, "float": 5, "either": 5, "nested": [{"a": 5}, {"a": 7}]}


class Till:
    """A tool that asks, and what it ran with."""

    def __init__(self, kind: str) -> None:
        self.ran: list[Any] = []
        self.hint, self.form = HINTS[kind]
        self.first = FIRST[kind]

        async def pay(cents):  # type: ignore[no-untyped-def]
            """Pay."""
            self.ran.append(cents)
            return "paid"

        pay.__annotations__ |= {"cents": self.hint, "return": str}
        self.tool: Tool[..., Any] = tool(visible=ALL, safe=False)(pay)

    def took(self) -> str | None:
        """Return what the tool ran with, None if it did not run."""
        ran, self.ran = self.ran, []
        return repr(ran[0]) if ran else None

    def agent(self) -> Agent:
        asked = call("pay", cents=self.first)
        return Agent(ScriptedClient([asked, "Done.", "Done."]), [self.tool])


async def direct(till: Till, arguments: str) -> str | None:
    async def yes(_request: object) -> Approve:
        return Approve("ada")

    await ToolRunner([till.tool], approver=yes).exec(ToolCall("1", "pay", arguments))
    return till.took()


async def in_code(till: Till, arguments: str, _folder: Path) -> str | None:
    async def yes(_request: object) -> Approve:
        return Approve("ada", json.loads(arguments))

    asked = ToolCall("1", "pay", json.dumps({"cents": till.first}))
    await ToolRunner([till.tool], approver=yes).exec(asked)
    return till.took()


async def by_command(till: Till, arguments: str, folder: Path) -> str | None:
    url = f"sqlite:///{folder}/crib.db"
    asked = ToolCall("1", "pay", json.dumps({"cents": till.first}))
    async with ApprovalStore(url) as store:
        runner = ToolRunner([till.tool], approver=store)
        waits = await runner.exec(asked)
        assert isinstance(waits, Waiting)
        words = ["approvals", "approve", waits.request.id, "--store", url, "--by", "ada"]
        await asyncio.to_thread(run, [*words, "--arguments", arguments])
        await runner.exec(asked)
    return till.took()


async def by_chat(till: Till, arguments: str, folder: Path) -> str | None:
    chat = chat_app(
        till.agent(), store=f"sqlite:///{folder}/chat.db", authenticate=lambda _: Caller("ada")
    )
    async with at(Starlette(routes=[Mount("/chat", chat)])) as http:
        thread = f"/chat/threads/{(await http.post('/chat/threads', json={})).json()['id']}"
        await http.post(f"{thread}/messages", json={"text": "go"})

        asked = (await ended(http, thread))["parts"][-1]["approval"]["id"]
        answer = f'{{"decision": "approve", "arguments": {arguments}}}'
        await post(http, f"{thread}/approvals/{asked}", answer)
        await ended(http, thread)
        await chat.state.chat._store.aclose()
    return till.took()


async def by_ag_ui(till: Till, arguments: str, _folder: Path) -> str | None:
    route = ag_ui_route(till.agent(), path="/agent", authenticate=lambda _: Caller("ada"))
    asks: dict[str, Any] = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": []}
    asks |= {"forwardedProps": {}, "messages": [{"id": "m", "role": "user", "content": "go"}]}
    async with at(Starlette(routes=[route])) as http:
        told = (await http.post("/agent", json=asks)).text.splitlines()
        ended = json.loads([line[6:] for line in told if line.startswith("data: ")][-1])
        yes: dict[str, Any] = {"interruptId": ended["outcome"]["interrupts"][0]["id"]}
        yes |= {"status": "resolved", "payload": {"approved": True, "editedArgs": "@"}}
        body = json.dumps({**asks, "resume": [yes]})
        await post(http, "/agent", body.replace('"@"', arguments))
    return till.took()


def at(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")


async def ended(http: httpx.AsyncClient, thread: str) -> Any:
    """Return the last turn of a thread once it does not run any more."""
    async with asyncio.timeout(10):
        while (turn := (await http.get(thread)).json()["turns"][-1])["status"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # a page may ask so often, and no more
    return turn


async def post(http: httpx.AsyncClient, path: str, body: str) -> None:
    await http.post(path, content=body, headers={"content-type": "application/json"})


Way = Callable[[Till, str, Path], Awaitable[str | None]]
WAYS: dict[str, Way] = {
    "code": in_code, "command": by_command, "chat": by_chat, "ag-ui": by_ag_ui,
}  # fmt: skip


ROWS = [(way, kind, number) for way in WAYS for kind in HINTS for number in NUMBERS]
IN_CODE = [row for row in ROWS if row[0] == "code"]


@each_row(("way", "kind", "number"), [*IN_CODE, *sampled(ROWS[len(IN_CODE) :], part=12)])
async def test_an_edited_number_is_read_like_an_argument(
    way: str, kind: str, number: str, tmp_path: Path
) -> None:
    till = Till(kind)
    arguments = f'{{"cents": {till.form.format(number)}}}'
    if way == "code":  # a float of Python has the digits that Python writes
        arguments = json.dumps(json.loads(arguments))
        if "Infinity" in arguments:
            return
    ran = await WAYS[way](till, arguments, tmp_path)
    at_the_door = way != "code" and read_unrounded(arguments.encode()) is not None  # for any hint
    assert ran == (None if at_the_door else await direct(till, arguments)), number
    if has_rounded(json.loads(number)) and kind in ("int", "nested"):
        assert ran is None
    if number == "1e17" and kind in ("float", "either"):
        assert ran == "1e+17"


@each_row(("kind", "number"), [(k, n) for k in HINTS for n in NUMBERS])
async def test_a_typed_answer_is_read_like_an_argument(kind: str, number: str) -> None:
    till = Till(kind)
    text = till.form.format(number)
    client = ScriptedClient([text, *['"no number"'] * 9])
    result = await Agent(client, [till.tool], output=till.hint).run("go")
    answer = repr(result.output) if result.status == "completed" else None
    assert answer == await direct(till, f'{{"cents": {text}}}')


async def test_what_was_sent_as_another_number_is_not_what_was_shown() -> None:
    till = Till("int")

    async def yes(_request: object) -> Approve:
        return Approve("ada", {"cents": 123456789012345678e0})

    asked = ToolCall("1", "pay", '{"cents": 123456789012345680}')
    await ToolRunner([till.tool], approver=yes).exec(asked)
    assert till.took() is None
