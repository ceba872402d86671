"""Real processes at one store: exactly one gets each answer; a crash runs nothing unapproved."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from children import ENVIRONMENT, Talking, run, together
from pydantic import BaseModel, Field

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Completed,
    Failed,
    Refuse,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.approvals import ApprovalStore
from toolcrib.errors import ErrorCode
from toolcrib.runner import CallScope
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer
from toolcrib.values.record import Waiting

PROCESSES, QUESTIONS = 3, 25

ASK = """
import asyncio, json, sys
import msgspec
from toolcrib import ApprovalRequest
from toolcrib.approvals import ApprovalStore
from toolcrib.errors import ApprovalError

async def main(url, texts):
    store, ends = ApprovalStore(url), []
    await store.pending()
    print("ready", flush=True)
    sys.stdin.readline()
    for text in texts:
        try:
            answer = await store(msgspec.json.decode(text, type=ApprovalRequest))
            ends.append(type(answer).__name__)
        except ApprovalError as error:
            ends.append(str(error.code))
    print(json.dumps(ends))
    await store.aclose()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""

ANSWER = """
import asyncio, json, sys
from toolcrib import Approve, Refuse
from toolcrib.approvals import ApprovalStore
from toolcrib.errors import ApprovalError

async def main(url, ids, by):
    store = ApprovalStore(url)
    await store.pending()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        await store.answer_all({i: Approve(by=by) for i in (ids if by in "02" else ids[::-1])})
        print(json.dumps(by))
    except ApprovalError:
        print(json.dumps(None))
    await store.aclose()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]))
"""

DIE = """
import asyncio, os, signal, sys
from approvals.test_processes import CALL, SCOPE, touch
from toolcrib import ToolRunner
from toolcrib.approvals import ApprovalStore

class Dies:
    write_ahead = True
    def write(self, record):
        os.kill(os.getpid(), signal.SIGKILL)

runner = ToolRunner([touch], approver=ApprovalStore(sys.argv[1]), sinks=[Dies()])
asyncio.run(runner.exec(CALL, scope=SCOPE))
"""


MAKE = """
import asyncio, json, sys
import msgspec
from approvals.test_processes import TOOLS
from toolcrib import Caller, ToolCall, ToolRunner
from toolcrib.approvals import ApprovalStore

async def main(url, name, caller):
    store = ApprovalStore(url)
    call = ToolCall("call_0", name, '{"order": {"sku": "a"}}')
    outcome = await ToolRunner(TOOLS, approver=store).exec(call, caller=Caller(caller))
    error = outcome.record.error
    print(json.dumps([
        outcome.record.status, error and error.code, error and error.message,
        outcome.record.arguments, outcome.record.result,
    ]))
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crib.db"
    fresh: Callable[[], str] = request.getfixturevalue("postgres")
    return fresh()


def question(number: int, version: int = 0) -> ApprovalRequest:
    arguments: dict[str, object] = {"cents": version}
    return ApprovalRequest(
        f"apr_{number}_{version}",
        "pay",
        msgspec.convert(arguments, dict),
        "risky",
        time.time() + 600,
        call_id=f"call_{number}",
        run_id="run",
    )


def at_once(script: str, *arguments: list[str]) -> list[object]:
    """Return what each process prints; they start to work at the same moment."""
    return [json.loads(text) for text in together(*(["-c", script, *given] for given in arguments))]


def encoded(requests: list[ApprovalRequest]) -> str:
    return json.dumps([msgspec.json.encode(request).decode() for request in requests])


async def test_each_answer_is_given_to_exactly_one(url: str) -> None:
    store, asked = ApprovalStore(url), [question(n) for n in range(QUESTIONS)]
    for request in asked:
        assert await store(request) is None
    await store.answer_all({request.id: Approve(by="ada") for request in asked})
    await store.aclose()
    ends = at_once(ASK, *[[url, encoded(asked)]] * PROCESSES)
    for each in zip(*ends, strict=True):
        assert Counter(each) == {"Approve": 1, "already_used": PROCESSES - 1}


async def test_each_call_has_one_question(url: str) -> None:
    versions = [[question(n, v) for n in range(QUESTIONS)] for v in range(PROCESSES)]
    ends = at_once(ASK, *([url, encoded(requests)] for requests in versions))
    for each in zip(*ends, strict=True):
        assert Counter(each) == {"NoneType": 1, "approval_mismatch": PROCESSES - 1}
    store = ApprovalStore(url)
    calls = [request.call_id for request in await store.pending()]
    assert sorted(calls) == sorted(f"call_{n}" for n in range(QUESTIONS))
    await store.aclose()


async def test_of_several_batches_one_is_taken_whole(url: str) -> None:
    store, asked = ApprovalStore(url), [question(n) for n in range(QUESTIONS)]
    for request in asked:
        assert await store(request) is None
    ids = json.dumps([request.id for request in asked])
    won = [by for by in at_once(ANSWER, *([url, ids, str(n)] for n in range(PROCESSES))) if by]
    assert len(won) == 1
    assert {await store(request) for request in asked} == {Approve(by=str(won[0]))}
    await store.aclose()


CALL = ToolCall("run_0_0", "touch", "{}")
SCOPE = CallScope(RunTally("run", "nonce"))


@tool(visible=ALL, safe=False)
async def touch() -> str:
    """Leave a trace."""
    await asyncio.to_thread(Path(os.environ["TRACE"]).touch)
    return "done"


async def test_a_process_killed_before_its_tool_began_has_spent_the_approval(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("TRACE", str(trace))
    store = ApprovalStore(url)
    waiting = await ToolRunner([touch], approver=store).exec(CALL, scope=SCOPE)
    assert isinstance(waiting, Waiting)
    await store.answer(waiting.request.id, Approve(by="ada"))

    with Talking("-c", DIE, url, env=ENVIRONMENT | {"TRACE": str(trace)}) as killed:
        assert await asyncio.to_thread(killed.wait) == -signal.SIGKILL

    again = await ToolRunner([touch], approver=store).exec(CALL, scope=SCOPE)
    assert isinstance(again, Failed)
    assert again.error.code is ErrorCode.ALREADY_USED
    assert not trace.exists()

    anew = msgspec.structs.replace(
        CALL, id="run_1_0"
    )  # the model may call once more: a new question
    waiting = await ToolRunner([touch], approver=store).exec(anew, scope=SCOPE)
    assert isinstance(waiting, Waiting)
    await store.answer(waiting.request.id, Approve(by="ada"))
    assert isinstance(await ToolRunner([touch], approver=store).exec(anew, scope=SCOPE), Completed)
    assert trace.exists()
    await store.aclose()


class Order(BaseModel):
    sku: str
    number: UUID = Field(default_factory=uuid4)


class OddOrder(BaseModel):
    """What its factory makes has no JSON."""

    sku: str
    number: bytes = Field(default_factory=lambda: b"\xff" + os.urandom(16))


class Tagged(BaseModel):
    """What its factory makes has JSON that does not give it back."""

    sku: str
    tags: Any = Field(default_factory=lambda: (str(uuid4()),))


@tool(visible=ALL, safe=False)
def place(order: Order) -> str:
    """Place an order."""
    return str(order.number)


@tool(visible=ALL, safe=False)
def place_odd(order: OddOrder) -> str:
    """Place an order."""
    return order.sku


@tool(visible=ALL, safe=False)
def place_tagged(order: Tagged) -> str:
    """Place an order."""
    return order.sku


TOOLS = [place, place_odd, place_tagged]


def made(url: str, name: str, caller: str = "ada") -> list[Any]:
    """Return what becomes of the call in a process of its own."""
    ran = run("-c", MAKE, url, name, caller)
    assert ran.returncode == 0, ran.stderr
    told: list[Any] = json.loads(ran.stdout)
    return told


@pytest.mark.parametrize("answer", [Approve(by="ada"), Refuse("no", by="ada")])
async def test_what_factories_made_is_what_another_process_runs(url: str, answer: Answer) -> None:
    for _ in range(2):
        status, _, _, shown, _ = await asyncio.to_thread(made, url, "place")
        assert status == "waiting"
    store = ApprovalStore(url)
    (request,) = await store.pending()
    assert request.arguments == shown
    await store.answer(request.id, answer)
    await store.aclose()

    other = await asyncio.to_thread(made, url, "place", "eve")
    assert other[:2] == ["failed", "approval_mismatch"]
    assert other[3] != shown, "nobody else is given what was made"

    status, code, _, arguments, result = await asyncio.to_thread(made, url, "place")
    assert arguments == shown
    if isinstance(answer, Approve):
        assert (status, result) == ("completed", shown["order"]["number"])
    else:
        assert (status, code) == ("failed", "approval_refused")


@pytest.mark.parametrize("name", ["place_odd", "place_tagged"])
async def test_what_no_json_gives_back_is_not_run_by_another_process(url: str, name: str) -> None:
    assert (await asyncio.to_thread(made, url, name))[0] == "waiting"
    store = ApprovalStore(url)
    (request,) = await store.pending()
    await store.answer(request.id, Approve(by="ada"))
    await store.aclose()
    status, code, message, _, _ = await asyncio.to_thread(made, url, name)
    assert (status, code) == ("failed", "approval_mismatch")
    assert message.startswith("The approval no longer fits this call. A default factory")
