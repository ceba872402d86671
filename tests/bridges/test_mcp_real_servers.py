"""Servers that nobody here wrote: PyPI has time, git and sqlite, npm everything, filesystem, memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bridges.mcp_helpers import (
    MODES,
    approves,
    failure,
    made,
    of_npm,
    of_pypi,
    of_sqlite,
    value,
)

from toolcrib import ALL, Agent, Completed, ErrorCode, ToolRunner
from toolcrib.bridges.mcp import StdioServer, mcp_catalog
from toolcrib.clients import LocalClient
from toolcrib.lint import check_tools
from toolcrib.values.content import File, Image, Link

pytestmark = pytest.mark.exhaustive  # real programs, for seconds each

TOOLS = {
    "time": ["get_current_time", "convert_time"],
    "git": ["git_status", "git_log", "git_commit"],
    "sqlite": ["read_query", "write_query", "create_table"],
    "everything": ["echo", "get-sum", "get-tiny-image"],
    "filesystem": ["read_text_file", "write_file", "list_directory"],
    "memory": ["create_entities", "read_graph"],
}


def server(name: str, *arguments: str) -> StdioServer:
    """PyPI's are modules, npm's are programs; that of SQLite has an SDK of before 2.0 beside it."""
    if name == "sqlite":
        return of_sqlite(*arguments)
    if name in ("time", "git"):
        return of_pypi(f"mcp_server_{name}", *arguments)
    return of_npm(name, *arguments)


def runner_of(catalog: Any, **options: Any) -> ToolRunner:
    return ToolRunner(catalog, approver=approves, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TOOLS)
async def test_its_tools_are_listed_and_no_provider_refuses_them(
    name: str, mode: str, tmp_path: Path
) -> None:
    folder, database = (str(tmp_path),), ("--db-path", str(tmp_path / "a.db"))
    arguments = {"filesystem": folder, "sqlite": database}.get(name, ())
    servers = mcp_catalog(server(name, *arguments), client={"mode": mode})
    async with servers as catalog:
        assert set(TOOLS[name]) <= set(catalog.names)
        assert servers.left_out == ()
        assert [one for one in check_tools(catalog) if one.effect == "refused"] == []


async def test_time() -> None:
    async with mcp_catalog(server("time", "--local-timezone=UTC")) as catalog:
        runner = runner_of(catalog)
        told = await value(runner, "get_current_time", timezone="Asia/Tokyo")
        assert (told["timezone"], told["is_dst"]) == ("Asia/Tokyo", False)
        bad = await failure(runner, "get_current_time", timezone=7)
        assert bad.error.code is ErrorCode.INVALID_ARGUMENTS
        unknown = await failure(runner, "get_current_time", timezone="Nowhere/Land")
        assert "Nowhere/Land" in unknown.model_text
        assert "Nowhere" not in unknown.error.message


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # noqa: S607
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    return tmp_path


async def test_git(repository: Path) -> None:
    async with mcp_catalog(server("git", "--repository", str(repository))) as catalog:
        runner = runner_of(catalog)
        assert "a.txt" in await value(runner, "git_status", repo_path=str(repository))
        await value(runner, "git_add", repo_path=str(repository), files=["a.txt"])
        assert "a.txt" in await value(runner, "git_diff_staged", repo_path=str(repository))
        outside = await failure(runner, "git_status", repo_path="/")
        assert outside.error.code is ErrorCode.TOOL_ERROR
        assert outside.model_text != outside.error.message


@pytest.mark.parametrize("mode", MODES)
async def test_sqlite(mode: str, tmp_path: Path) -> None:
    program = server("sqlite", "--db-path", str(tmp_path / "a.db"))
    async with mcp_catalog(program, client={"mode": mode}) as catalog:
        runner = runner_of(catalog)
        await value(runner, "create_table", query="CREATE TABLE t (a INTEGER)")
        await value(runner, "write_query", query="INSERT INTO t VALUES (7)")
        assert await value(runner, "read_query", query="SELECT a FROM t") == "[{'a': 7}]"
        bad = await failure(runner, "read_query", query=7)
        assert bad.error.code is ErrorCode.INVALID_ARGUMENTS
        # This server answers a failure as it does a result: the model reads what it says.
        assert "Only SELECT" in await value(runner, "read_query", query="DROP TABLE t")


async def test_filesystem(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    outside.write_text("secret", encoding="utf-8")
    async with mcp_catalog(server("filesystem", str(inside))) as catalog:
        runner = runner_of(catalog)
        path = str(inside / "a.txt")
        await value(runner, "write_file", path=path, content="hello")
        assert await value(runner, "read_text_file", path=path) == {"content": "hello"}
        for wrong in (str(outside), f"{inside}/../outside.txt"):
            failed = await failure(runner, "read_text_file", path=wrong)
            assert "Access denied" in failed.model_text
            assert failed.error.code is ErrorCode.TOOL_ERROR
        (inside / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        picture = await made(runner, "read_media_file", path=str(inside / "dot.png"))
        assert isinstance(picture, Completed)
        assert [part.media_type for part in picture.parts if isinstance(part, Image)] == [
            "image/png"
        ]


async def test_memory(tmp_path: Path) -> None:
    program = server("memory")
    kept = StdioServer(program.command, (), {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    async with mcp_catalog(kept) as catalog:
        await value(runner_of(catalog), "create_entities", entities=[entity])
        bad = await failure(runner_of(catalog), "create_entities", entities=[{"name": "Ada"}])
        assert bad.error.code is ErrorCode.INVALID_ARGUMENTS
    async with mcp_catalog(kept) as catalog:
        assert (await value(runner_of(catalog), "read_graph"))["entities"] == [entity]


async def test_everything() -> None:
    async with mcp_catalog(server("everything"), visible=ALL) as catalog:
        runner = runner_of(catalog)
        assert await value(runner, "get-sum", a=1, b=2) == "The sum of 1 and 2 is 3."
        shown = {
            "get-tiny-image": [str, Image, str],
            "get-resource-links": [str, Link, Link, Link],
            "get-resource-reference": [str, File, str],
        }
        for name, kinds in shown.items():
            outcome = await made(runner, name)
            assert isinstance(outcome, Completed)
            assert [type(part) for part in outcome.parts] == kinds
        weather = await value(runner, "get-structured-content", location="New York")
        assert set(weather) == {"temperature", "conditions", "humidity"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_long_call_is_cancelled_and_the_server_goes_on(mode: str) -> None:
    async with mcp_catalog(server("everything"), client={"mode": mode}) as catalog:
        runner = runner_of(catalog, timeout=0.5)
        slow = await failure(runner, "trigger-long-running-operation", duration=30, steps=3)
        assert slow.error.code is ErrorCode.TIMEOUT
        assert await value(runner, "echo", message="on") == "Echo: on"


@pytest.mark.parametrize("mode", MODES)
async def test_killed_in_a_call_and_back(mode: str) -> None:
    async with mcp_catalog(server("everything"), client={"mode": mode}) as catalog:
        runner, before = runner_of(catalog), children()
        calling = asyncio.create_task(
            failure(runner, "trigger-long-running-operation", duration=30, steps=30)
        )
        await asyncio.sleep(0.3)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert (await calling).error.code is ErrorCode.OUTCOME_UNKNOWN
        assert await value(runner, "echo", message="back") == "Echo: back"


def children() -> list[int]:
    """The processes that this one has started, and that are still there."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = [int(pid) for task in tasks for pid in task.read_text(encoding="utf-8").split()]
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [pid for pid, command in named.items() if b"mcp-server-everything" in command]


async def test_the_embedded_model_answers_with_a_servers_tool(embedded_model: Path) -> None:
    del embedded_model
    async with mcp_catalog(server("time", "--local-timezone=UTC")) as catalog:
        agent = Agent(LocalClient(), runner_of(catalog))
        result = await agent.run("Get the current time in Asia/Tokyo")
    (record,) = result.records
    assert (record.name, record.status) == ("get_current_time", "completed")
    assert "Asia/Tokyo" in result.text
