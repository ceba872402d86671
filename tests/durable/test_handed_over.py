"""Durable runs that one agent hands over to another: they go on in the one that was speaking."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest

pytest.importorskip("dbos", reason="the extra durable is not installed")

from durable.desk import KEY, Model

from toolcrib import ALL, Agent, Approve, Event, HandedOver, tool
from toolcrib.durable import DurableAgents
from toolcrib.errors import ClientError, SourceError
from toolcrib.testing import call
from toolcrib.values.message import ChatRequest, LLMClient, Reply
from toolcrib.values.run import Done, ReplyFinished, ToolCallFinished


@tool(visible=ALL, safe=False)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def team(before: Callable[[str], Any] = lambda _who: None, model: LLMClient | None = None) -> Agent:
    """Return the first of two; `before` is told whose model is asked; `model` is the second's."""
    to_billing = call("hand_over_to_billing", reason="A refund.")
    second = Model(to_billing, call("refund", order=7), "Done.", before=lambda _: before("billing"))
    billing = Agent(
        model or second,
        [refund],
        instructions=lambda run: f"You refund for {run.caller.id}.",
        name="billing",
    )
    front = Model(to_billing, before=lambda _: before("front"))
    return Agent(front, name="front", handovers=[billing], state_key=KEY)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def test_a_durable_run_waits_and_goes_on_in_the_second_agent(file: str) -> None:
    async with DurableAgents(file, {"shop": team()}) as durable:
        run_id = await durable.start("shop", "Hello")
        waits = await durable.result(run_id)
        assert (waits.status, waits.agent) == ("waiting", "billing")
        await durable.answer(waits.pending[0].id, Approve(by="grace"))
        done = await durable.result(run_id)
        events: list[Event] = [event async for event in durable.events(run_id)]
    assert (done.status, done.text, done.agent) == ("completed", "Done.", "billing")
    assert done.state.speakers == ("front", "billing")
    kinds = (HandedOver, ReplyFinished, ToolCallFinished, Done)
    assert [type(e).__name__ for e in events if isinstance(e, kinds)] == [
        "ReplyFinished",
        "ToolCallFinished",
        "HandedOver",
        "ReplyFinished",
        "ToolCallFinished",
        "ReplyFinished",
        "Done",
    ]


class Stuck(Model):
    """Answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def chat(self, _request: ChatRequest) -> Reply:
        self.asked.set()
        await self.released.wait()
        raise ClientError("nobody answers")


async def test_a_worker_that_stops_after_the_handover_leaves_the_rest_to_another(file: str) -> None:
    asked: list[str] = []
    stuck = Stuck()
    first = DurableAgents(file, {"shop": team(asked.append, model=stuck)})
    async with first:
        run_id = await first.start("shop", "Hello")
        await stuck.asked.wait()
        await first.stop(grace=0)
        stuck.released.set()
    assert asked == ["front"]
    asked.clear()
    async with DurableAgents(file, {"shop": team(asked.append)}) as second:
        waits = await second.result(run_id)
    assert (waits.status, waits.agent, asked) == ("waiting", "billing", ["billing"])
    assert [record.name for record in waits.records] == ["hand_over_to_billing"]


@pytest.mark.exhaustive
async def test_a_worker_that_is_killed_after_the_handover_leaves_the_rest_to_another(
    file: str,
) -> None:
    program = f"""
import asyncio, os, signal
from durable.test_handed_over import team
from toolcrib.durable import DurableAgents

def die(who):
    if who == "billing":
        os.kill(os.getpid(), signal.SIGKILL)

async def work():
    async with DurableAgents({file!r}, {{"shop": team(die)}}) as durable:
        await durable.result(await durable.start("shop", "Hello", run_id="one"))

asyncio.run(work())
"""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=dict(children.ENVIRONMENT)
    )
    assert await worker.wait() == -signal.SIGKILL
    asked: list[str] = []
    async with DurableAgents(file, {"shop": team(asked.append)}) as durable:
        waits = await durable.result("one")
    assert (waits.status, waits.agent, asked) == ("waiting", "billing", ["billing"])
    assert [record.name for record in waits.records] == ["hand_over_to_billing"]


async def test_a_worker_without_the_second_agent_fails_the_run_by_name(file: str) -> None:
    async with DurableAgents(file, {"shop": team()}) as durable:
        run_id = await durable.start("shop", "Hello")
        waits = await durable.result(run_id)
    alone = Agent(Model("Hi."), name="front", state_key=KEY)
    with pytest.raises(SourceError, match="'billing'"):
        await alone.resume(waits.state)
