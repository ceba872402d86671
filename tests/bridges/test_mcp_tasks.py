"""Calls that become tasks: polled for, asked back about, cancelled, broken off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from bridges.mcp_helpers import approves, asked, failure, of_npm, raw, until, value
from relayed import relayed
from rows import each_row

from toolcrib import ErrorCode, ToolRunner
from toolcrib.bridges.mcp import McpCatalog, StdioServer, mcp_catalog
from toolcrib.bridges.mcp.connection import UNANSWERED
from toolcrib.bridges.mcp.content import UNUSABLE
from toolcrib.bridges.mcp.tasks import LOST, NO_ANSWER, TASK_LOST

SERVER = Path(__file__).parent / "mcp_task_server.py"


async def tells_its_name(context: Any, params: Any) -> types.ElicitResult:
    del context, params
    return types.ElicitResult(action="accept", content={"name": "Ada"})


def tasks(log: Path, **client: Any) -> McpCatalog:
    program, *arguments = relayed(str(SERVER), str(log))
    return mcp_catalog(StdioServer(program, tuple(arguments)), client=client)


@each_row(
    ("tool", "gives"),
    [
        ("at_once", "done"),
        ("works", "done"),
        ("asks", '{"who": {"action": "accept", "content": {"name": "Ada"}}}'),
        ("asks_at_once", '{"who": {"action": "accept", "content": {"name": "Ada"}}}'),
    ],
)
async def test_the_result_of_a_task_is_that_of_the_call(
    tool: str, gives: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with tasks(log, elicitation_callback=tells_its_name) as catalog:
        assert await value(ToolRunner(catalog, approver=approves), tool) == gives
    assert asked(log).count("tools/call") == 1 + (tool == "asks_at_once")
    assert asked(log).count("tasks/update") == (tool == "asks")


@each_row(
    ("tool", "code", "message", "told"),
    [
        ("fails", ErrorCode.TOOL_ERROR, "The server says that its tool failed.", "out of order"),
        ("is_cancelled", ErrorCode.TOOL_ERROR, "The server says", "somebody stopped it"),
        ("asks", ErrorCode.OUTCOME_UNKNOWN, NO_ANSWER, "Elicitation not supported"),
        ("asks_oddly", ErrorCode.OUTCOME_UNKNOWN, NO_ANSWER, ""),
        ("asks_at_once", ErrorCode.OUTCOME_UNKNOWN, UNANSWERED, "Elicitation not supported"),
        ("is_empty", ErrorCode.TOOL_ERROR, UNUSABLE, ""),
        ("dies", ErrorCode.OUTCOME_UNKNOWN, LOST, ""),
        ("is_forgotten", ErrorCode.OUTCOME_UNKNOWN, TASK_LOST, ""),
        ("is_another", ErrorCode.OUTCOME_UNKNOWN, TASK_LOST, ""),
        ("is_no_state", ErrorCode.OUTCOME_UNKNOWN, TASK_LOST, ""),
        ("is_odd", ErrorCode.TOOL_ERROR, UNUSABLE, ""),
        ("ends_odd", ErrorCode.TOOL_ERROR, UNUSABLE, ""),
    ],
)
async def test_a_task_that_gives_no_result(
    tool: str, code: ErrorCode, message: str, told: str, tmp_path: Path
) -> None:
    async with tasks(tmp_path / "log") as catalog:
        runner = ToolRunner(catalog, approver=approves)
        failed = await failure(runner, tool)
        assert (failed.error.code, failed.error.retryable) == (code, False)
        assert failed.error.message.startswith(message)
        assert told in failed.model_text
        assert await value(runner, "at_once") == "done"


async def test_a_task_whose_answers_are_not_taken_is_unknown(tmp_path: Path) -> None:
    async with tasks(tmp_path / "log", elicitation_callback=tells_its_name) as catalog:
        failed = await failure(ToolRunner(catalog, approver=approves), "takes_no_answer")
        assert (failed.error.code, failed.error.message) == (ErrorCode.OUTCOME_UNKNOWN, TASK_LOST)


async def test_a_task_that_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with tasks(log) as catalog:
        failed = await failure(ToolRunner(catalog, approver=approves, timeout=0.3), "never")
        assert failed.error.code is ErrorCode.TIMEOUT
        await until(log, "cancelled")
        log.write_text("", encoding="utf-8")
        calling = asyncio.create_task(failure(ToolRunner(catalog, approver=approves), "never"))
        await until(log, "tasks/get")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(log, "cancelled")


async def test_a_task_of_2025_that_asks_is_cancelled_too() -> None:
    """Its result is waited for by a request of its own."""
    async with mcp_catalog(raw("tasks")) as catalog:
        failed = await failure(ToolRunner(catalog, approver=approves, timeout=0.5), "t")
        assert failed.error.code is ErrorCode.TIMEOUT
        runner = ToolRunner(catalog, approver=approves)
        async with asyncio.timeout(10):
            while await value(runner, "same", x="cancelled") != "1":
                pass


async def says_nothing(context: Any, params: Any) -> Any:
    del context, params


async def raises(context: Any, params: Any) -> Any:
    del context, params
    raise RuntimeError("no answer")


@each_row(
    ("tool", "callback"),
    [
        ("asks", None),
        ("asks", raises),
        ("asks", says_nothing),
        ("asks_oddly", tells_its_name),
        ("takes_no_answer", tells_its_name),
        ("is_another", None),
        ("is_forgotten", None),
    ],
)
async def test_a_task_is_cancelled_whyever_nobody_waits_for_its_end(
    tool: str, callback: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with tasks(log, elicitation_callback=callback) as catalog:
        failed = await failure(ToolRunner(catalog, approver=approves), tool)
    assert failed.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert asked(log).count("cancelled") == 1


async def test_a_real_server_of_2025_has_a_tool_that_is_a_task() -> None:
    async with mcp_catalog(of_npm("everything")) as catalog:
        runner = ToolRunner(catalog, approver=approves)
        found = await value(runner, "simulate-research-query", topic="tea")
        assert found.startswith("# Research Report: tea")
        brief = ToolRunner(catalog, approver=approves, timeout=0.5)
        failed = await failure(brief, "simulate-research-query", topic="tea")
        assert failed.error.code is ErrorCode.TIMEOUT
        assert await value(runner, "echo", message="on") == "Echo: on"
