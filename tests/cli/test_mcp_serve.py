"""`toolcrib mcp serve`, as a client starts it: standard output is the protocol's alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from bridges.mcp_helpers import approves, failure, value
from conftest import ROOT
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from relayed import relayed

from toolcrib import ErrorCode, ToolRunner
from toolcrib.bridges.mcp import StdioServer, mcp_catalog
from toolcrib.cli import run

SHOP = '''
import asyncio, os, subprocess, sys
from toolcrib import ALL, tool

print("printed as it is loaded")


@tool(visible=ALL, read_only=True)
def stock(item: str) -> dict[str, int]:
    """Say how many of an item are left."""
    print("printed by a tool")
    os.write(1, b"written by a tool\\n")
    subprocess.run([sys.executable, "-c", "print('printed by a program')"], check=True)
    return {item: len(sys.stdin.read())}


@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(visible=ALL)
async def nap() -> str:
    """Rest."""
    await asyncio.sleep(0.5)
    return "rested"


@tool(visible=ALL)
async def slow() -> str:
    """Take long."""
    with open("began", "w"):
        pass
    await asyncio.sleep(60)
    return "never"


@tool(visible=ALL)
async def late() -> str:
    """Finish what has begun."""
    try:
        return await slow()
    except asyncio.CancelledError:
        await asyncio.sleep(0.1)
        return "late"
'''
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def command(*options: str) -> list[str]:
    return ["-m", "toolcrib", "mcp", "serve", "--tools", "shop.py", *options]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **more}


@asynccontextmanager
async def client_of(folder: Path, *options: str, answer: Any = None) -> AsyncIterator[Client]:
    program, *arguments = relayed(*command(*options))
    server = StdioServerParameters(command=program, args=arguments, cwd=folder, env=environment())
    async with Client(server, elicitation_callback=answer) as client:
        yield client


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def test_what_tools_print_is_not_the_protocols(folder: Path) -> None:
    async with client_of(folder) as client:
        assert [one.name for one in (await client.list_tools()).tools] == [
            "stock",
            "refund",
            "nap",
            "slow",
            "late",
        ]
        for _ in range(2):
            done = await client.call_tool("stock", {"item": "nut"})
            assert done.structured_content == {"nut": 0}  # nor has a tool read what is its


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "approval_required"),
        (("--yes",), "refunded 7"),
        (("--no",), "approval_refused"),
        (("--elicit",), "refunded 7"),
    ],
)
async def test_who_approves_is_said_on_the_command_line(
    options: tuple[str, ...], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def yes(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    audit = f"sqlite:///{folder / 'log.db'}"
    async with client_of(folder, *options, "--audit", audit, answer=yes) as client:
        assert told in text_of(await client.call_tool("refund", {"order": 7}))
    assert await asyncio.to_thread(run, ["audit", "list", "--log", audit, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)[0]["record"]
    approved = {"--yes": "--yes", "--no": "--no", "--elicit": "mcp"}
    assert record["caller"] == "mcp"
    assert record.get("approved_by") == (approved[options[0]] if options else None)


async def test_the_clients_user_may_answer_for_always(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next server is not asked; the rule is listed with the others of its database."""
    asked: list[str] = []

    async def always(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        answer = "yes, and always to exactly this"
        return types.ElicitResult(action="accept", content={"answer": answer})

    rules = f"sqlite:///{folder / 'crib.db'}"
    for _ in range(2):
        async with client_of(folder, "--elicit", "--rules", rules, answer=always) as client:
            assert "refunded 7" in text_of(await client.call_tool("refund", {"order": 7}))
    assert len(asked) == 1
    listed = ["approvals", "rules", "list", "--store", rules]
    assert await asyncio.to_thread(run, listed) == 0
    assert 'refund {"order": 7}, for mcp' in capsys.readouterr().out


async def test_what_a_file_asks_is_answered_before_its_end(folder: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "nap", "arguments": {}}},
    ]
    lines = "\n".join(json.dumps({"jsonrpc": "2.0", **message}) for message in asked)
    (folder / "calls.jsonl").write_text(lines, encoding="utf-8")
    with (folder / "calls.jsonl").open("rb") as file:
        server = await asyncio.create_subprocess_exec(
            *relayed(*command()),
            cwd=folder,
            env=environment(),
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            said, _ = await server.communicate()
    assert json.loads(said.splitlines()[1])["result"]["content"][0]["text"] == "rested"


async def test_a_call_that_a_signal_breaks_off_is_unknown_and_the_next_one_runs(
    folder: Path,
) -> None:
    """The server is a toolcrib that is ended as a service manager does it, and so is its client."""
    settings = {"PYTHONPATH": str(ROOT / "src")}
    program = f"import os; os.chdir({str(folder)!r}); open('pid', 'w').write(str(os.getpid())); "
    program += f"import runpy, sys; sys.argv = {command('--yes')[1:]!r}; sys.path.insert(0, '')\n"
    program += "runpy.run_module('toolcrib', run_name='__main__', alter_sys=True)"
    start, *arguments = relayed("-c", program)
    async with mcp_catalog(StdioServer(start, tuple(arguments), settings)) as catalog:
        runner = ToolRunner(catalog, approver=approves)
        slow = asyncio.create_task(failure(runner, "slow"))
        async with asyncio.timeout(20):
            while not (folder / "began").exists():  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.02)
        os.kill(int((folder / "pid").read_text(encoding="utf-8")), signal.SIGTERM)
        assert (await slow).error.code is ErrorCode.OUTCOME_UNKNOWN
        assert await value(runner, "refund", order=7) == "refunded 7"


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "end of input"])
@pytest.mark.parametrize("tool", ["slow", "late"])
async def test_a_call_that_runs_when_it_ends_is_recorded_and_answered(
    tool: str, end: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = f"sqlite:///{folder / 'log.db'}"
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *command("--audit", audit),
        cwd=folder,
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdin is not None
    for message in (
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}},
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    async with asyncio.timeout(20):
        while not (folder / "began").exists():  # noqa: ASYNC110  it is another process
            await asyncio.sleep(0.02)
        if end == "end of input":
            server.stdin.close()
        else:
            server.send_signal(signal.Signals[end])
        assert server.stdout is not None
        said = await server.stdout.read()
        assert await server.wait() == 0
    assert [json.loads(line)["id"] for line in said.splitlines()] == [1, 2]
    answer = json.loads(said.splitlines()[1])
    if tool == "slow":
        assert answer["error"]["message"] == "Connection closed"
        assert answer["error"]["data"]["code"] == "cancelled"
    else:
        assert answer["result"]["content"][0]["text"] == "late"
    assert await asyncio.to_thread(run, ["audit", "list", "--log", audit, "--json"]) == 0
    assert ('"cancelled"' if tool == "slow" else '"completed"') in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_by_http_whoever_has_the_token(
    number: signal.Signals, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *command("--http", f"127.0.0.1:{port}"),
        cwd=folder,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    told = [(await server.stderr.readline()).decode().strip() for _ in range(5)]
    assert told[-3] == f"http://127.0.0.1:{port}/mcp"
    name, _, value = told[-2].partition(": ")
    async with httpx2.AsyncClient(headers={name: value}) as http:
        async with Client(streamable_http_client(told[-3], http_client=http)) as client:
            assert "refunded" not in text_of(await client.call_tool("refund", {"order": 7}))
        refused = await http.post(told[-3], json={}, headers={name: "Bearer no"})
        assert refused.status_code == 401
    server.send_signal(number)
    async with asyncio.timeout(10):
        assert await server.wait() == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--elicit", "--yes"], "leave out --yes and --no"),
        (["--allow-host", "x"], "need --http"),
        (["--http", "8018"], "give HOST:PORT"),
        (["--http", "127.0.0.1:x"], "give HOST:PORT"),
        (["--http", "127.0.0.1:70000"], "give HOST:PORT"),
        (["--http", "no.such.host.invalid:0"], "use port 0 for any free port"),
        (["--audit", "log.db"], "give the URL of a database, such as sqlite:///log.db"),
        (["--rules", "crib.db"], "--rules crib.db: give the URL of a database"),
        (["--rules", "sqlite:///crib.db", "--yes"], "leave out --yes and --no"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["mcp", "serve", *options]) == 2
    assert told in capsys.readouterr().err


def test_a_short_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLCRIB_TOKEN", "short")
    assert run(["mcp", "serve", "--http", "127.0.0.1:0"]) == 2
    assert "at least 16 characters" in capsys.readouterr().err
