"""The programs of `examples/`, run as they stand; only the shop and the provider are stand-ins."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import children
import pexpect
import pytest
from children import AtTerminal

from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.testing import OpenAIServer, call, openai_server, raw_call
from toolcrib.testing.scripted import ServerTurn
from toolcrib.values.record import ToolInvocationRecord

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TAXI = {
    "name": "taxi_fare",
    "description": "What a taxi costs.",
    "input_schema": {
        "type": "object",
        "properties": {"distance_km": {"type": "number"}},
        "required": ["distance_km"],
    },
}

LATER = """
import runpy, sys, time
real = time.time
time.time = lambda: real() + 2 * 86_400
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""  # runs a program two days later
PATHS = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)]),
    "PYTHONWARNINGS": "error",
}


def environment(server: OpenAIServer) -> dict[str, str]:
    key = {"OPENAI_API_KEY": "sk-test-0123456789", "OPENAI_BASE_URL": server.url}
    return {**os.environ, **PATHS, **key, "MODEL": "openai:gpt-5"}


async def run(server: OpenAIServer, cwd: Path, script: str, *arguments: str) -> str:
    """The output of one program that asks a model."""
    return await output_of(cwd, environment(server), str(EXAMPLES / script), *arguments)


async def output_of(cwd: Path, env: dict[str, str], *command: str) -> str:
    """What Python prints, which has to end well and to write nothing on stderr."""
    done = await asyncio.to_thread(children.run, *command, cwd=cwd, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("typed", "content", "error"),
    [("y", '{"refunded_cents":1250}', None), ("n", None, "approval_refused")],
)
async def test_an_order_is_cancelled_if_a_person_says_yes(
    tmp_path: Path, typed: str, content: str | None, error: str | None
) -> None:
    async with openai_server([call("CancelOrder", order_id=77), "I did what I could."]) as server:
        output = await asyncio.to_thread(_at_a_terminal, server, tmp_path, typed)
    assert 'Run CancelOrder {"order_id": 77}? (the tool is marked as not safe) [y/N]' in output
    assert "I did what I could." in output
    told = server.requests[1]["messages"][-1]["content"]
    if error is None:
        assert told == content
    else:
        assert json.loads(told)["error"]["code"] == error


def _at_a_terminal(server: OpenAIServer, cwd: Path, typed: str) -> str:
    script = str(EXAMPLES / "cancel_order.py")
    child = AtTerminal(script, cwd=cwd, env=environment(server))
    child.expect(r"\[y/N\] ")
    output = str(child.before) + str(child.after)
    child.sendline(typed)
    child.expect(pexpect.EOF)
    return output + str(child.before)


async def test_the_programs_need_no_key(tmp_path: Path, embedded_model: Path) -> None:
    del embedded_model
    env = {**os.environ, **PATHS}
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TAXI]), encoding="utf-8")
    planned = (str(EXAMPLES / "plan_only.py"), str(tools), "What would a taxi for 12 km cost?")
    assert await output_of(tmp_path, env, *planned) == "taxi_fare {'distance_km': 12}\n"
    picked = await output_of(tmp_path, env, str(EXAMPLES / "pick_in_the_loop.py"))
    assert "called: export_invoice {'number': 7}" in picked
    asked = await output_of(tmp_path, env, str(EXAMPLES / "stored_approval.py"), "ask")
    assert asked == "waiting for an approval\n"


async def test_planning_runs_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TAXI]), encoding="utf-8")
    turns = [[call("taxi_fare", distance_km=12), raw_call("taxi_fare", '{"distance_km": "far"}')]]
    async with openai_server(turns) as server:
        output = await run(server, tmp_path, "plan_only.py", str(tools), "a taxi to the airport?")
    assert output == "taxi_fare {'distance_km': 12}\ntaxi_fare invalid_arguments at /distance_km\n"
    assert [t["function"]["name"] for t in server.requests[0]["tools"]] == ["taxi_fare"]
    async with AuditLog(f"sqlite:///{tmp_path}/plans.db") as log:
        records = [entry.record for entry in await log.entries()]
    assert [record.status for record in records] == ["planned", "rejected"]


async def test_planning_when_no_tool_is_wanted(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text("[]", encoding="utf-8")
    async with openai_server(["Take the train."]) as server:
        output = await run(server, tmp_path, "plan_only.py", str(tools), "a taxi to the airport?")
    assert output == "no tool wanted: Take the train.\n"


async def test_an_approval_takes_three_processes(tmp_path: Path) -> None:
    async with openai_server(
        [call("CancelOrder", order_id=77), "Order 77 is cancelled."]
    ) as server:
        asked = await run(server, tmp_path, "stored_approval.py", "ask")
        decided = await run(server, tmp_path, "stored_approval.py", "decide")
        finished = await run(server, tmp_path, "stored_approval.py", "finish")
    assert asked == "waiting for an approval\n"
    assert decided == "CancelOrder {'order_id': 77} the tool is marked as not safe\n"
    assert finished == "Order 77 is cancelled.\n"
    assert server.requests[1]["messages"][-1]["content"] == '{"refunded_cents":1250}'


async def test_the_log_alone_says_why_a_call_ran(tmp_path: Path) -> None:
    env = {**os.environ, **PATHS}
    program = str(EXAMPLES / "audited.py")
    asked = "the policy 'standard' asked for an approval (the tool is marked as not safe)"
    log = [
        "2: cancel_order {'order_id': 77} waiting",
        "3: cancel_order {'order_id': 77} started",
        "4: cancel_order {'order_id': 77} completed",
        "   standard asked: the tool is marked as not safe",
        "   grace approved it, for ada: {'refunded_cents': 1250}",
        f"It ran because grace approved it, after {asked}.",
        "as written: True",
    ]
    first = (await output_of(tmp_path, env, program)).splitlines()
    assert first[0] == "asked: cancel_order {'order_id': 77} the tool is marked as not safe"
    assert first[1] == "result: {'refunded_cents': 1250, 'card_ending': 4242}"
    assert first[2:] == log
    again = (await output_of(tmp_path, env, program)).splitlines()
    assert again == ["known: {'refunded_cents': 1250}", *log]
    told = await output_of(tmp_path, env, "-m", "toolcrib", "audit", "show", "call_77")
    assert "It ran because grace approved it, after the policy 'standard' asked" in told


async def test_a_model_finds_more_tools_than_it_was_offered(tmp_path: Path) -> None:
    turns: list[ServerTurn] = [
        call("export_invoice", number=7),
        call("search_tools", query="list the salaries, or count the parcels", limit=3),
        call("count_parcel", number=2),
        "All done.",
    ]
    async with openai_server(turns) as server:
        output = await run(server, tmp_path, "pick_in_the_loop.py")
    lines = output.splitlines()
    assert lines[0].startswith("offered, of 300: search_tools ")
    assert "export_invoice" in lines[0]
    assert lines[1] == "called: export_invoice {'number': 7} export invoice 7: done"
    assert lines[2].startswith("called: search_tools ")
    assert lines[3].startswith(lines[0])
    assert "count_parcel" in lines[3]
    assert "salary" not in output.replace("salaries", "")
    assert lines[4:] == ["called: count_parcel {'number': 2} count parcel 2: done", "All done."]


async def test_a_refund_waits_for_two_days_and_ends_in_another_process(
    tmp_path: Path,
) -> None:
    pytest.importorskip("dbos", reason="the extra durable is not installed")
    script, later = "refund_desk.py", tmp_path / "later.py"
    later.write_text(LATER, encoding="utf-8")
    async with openai_server(
        [call("CancelOrder", order_id=77), "Order 77 is cancelled."]
    ) as server:
        begun = await run(server, tmp_path, script, "handle", "77")
        again = await run(server, tmp_path, script, "handle", "77")
        asked = await run(server, tmp_path, script, "work")
        then = (str(later), str(EXAMPLES / script))
        approved = await output_of(tmp_path, environment(server), *then, "approve")
        ended = await output_of(tmp_path, environment(server), *then, "work")
    assert begun == again == "202 Accepted: order-77\n"
    assert asked == "order-77 is waiting: somebody is asked\n"
    assert approved == "CancelOrder {'order_id': 77} the tool is marked as not safe\n"
    assert ended == "order-77 is completed: Order 77 is cancelled.\n"
    assert server.requests[1]["messages"][-1]["content"] == '{"refunded_cents":1250}'
    async with AuditLog(f"sqlite:///{tmp_path / 'runs.db'}") as log:
        entries = [entry.record for entry in await log.entries(AuditFilter(tool="CancelOrder"))]
        assert (await log.verify()).ok
    waited, *_, ran = [record for record in entries if isinstance(record, ToolInvocationRecord)]
    assert (waited.status, ran.status, ran.approved_by) == ("waiting", "completed", "grace")
    assert ran.started_at - waited.started_at > 2 * 86_400
