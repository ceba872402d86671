"""Where what is real and what is made up meet: neither becomes the other, and each record says which.

Rule: nothing real goes on from what was made up, and of a real call nothing is forgotten because
something stood in for its tool, or it was made by what stands in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from rows import each_row

from toolcrib import ALL, Agent, RunResult, RunState, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.errors import SourceError
from toolcrib.testing import ScriptedClient, ToolEmulator, call

T = TypeVar("T")
KEY = b"k" * 32
REAL: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_real_yet() -> None:
    REAL.clear()


@tool(visible=ALL, safe=True)
async def refund(order: int) -> str:
    """Refund an order."""
    REAL.append(order)
    return f"refunded {order}"


class Steps:
    """Keeps steps, as a durable run does; before the one called `dies_at` the process ends."""

    def __init__(self, kept: list[tuple[str, bytes]], dies_at: int | None = None) -> None:
        self.kept = kept
        self.at = 0
        self.dies_at = dies_at

    async def run(self, name: str, work: Callable[[], Awaitable[T]], type: Any) -> T:
        self.at += 1
        if self.at <= len(self.kept):
            known, text = self.kept[self.at - 1]
            assert known == name
            kept: T = msgspec.json.decode(text, type=type)
            return kept
        if self.at == self.dies_at:
            raise KeyboardInterrupt
        made = await work()
        self.kept.append((name, msgspec.json.encode(made)))
        return made


# What was made up does not become real, wherever a run was when its process ended.

TURNS = ([call("refund", order=7)], [call("refund", order=8)], "Done.")


def clerk(*turns: Any, emulated: bool = False, **options: Any) -> Agent:
    made = Agent(ScriptedClient(turns), ToolRunner([refund], **options), state_key=KEY)
    return ToolEmulator({"refund": "made up"}).over(made) if emulated else made


@each_row(
    ("prepared_emulated", "dies_at"),
    [(emulated, at) for emulated in (True, False) for at in range(1, 7)],
)
async def test_no_run_that_was_killed_goes_on_for_real_from_what_was_made_up(
    prepared_emulated: bool, dies_at: int
) -> None:
    REAL.clear()
    kept: list[tuple[str, bytes]] = []
    state = clerk(emulated=prepared_emulated).prepare("Refund 7, then 8.", run_id="run_1")
    state = RunState.from_json(state.to_json())
    first = clerk(*TURNS, emulated=True).replace(durability=Steps(kept, dies_at))
    over = await _ended(first, state)
    made_up = sum(b'"emulated"' in text for _, text in kept)
    asked = sum(name.startswith("reply") for name, _ in kept)
    second = clerk(*TURNS[asked:]).replace(durability=Steps(kept))
    if not made_up and not prepared_emulated:  # nothing has been made up: the run is as any
        result = await second.resume(state)
        assert (REAL, [r.emulated for r in result.records]) == ([7, 8], [False, False])
        return
    with pytest.raises(SourceError, match="the run was emulated") as raised:
        await second.resume(state)
    left = getattr(raised.value, "state", None)
    if left is not None:  # and what is left of it says so
        assert left.emulated
        with pytest.raises(SourceError, match="the run was emulated"):
            await clerk("Done.").resume(left)
    assert REAL == []
    assert (over is None) == (dies_at < 6)


async def _ended(agent: Agent, state: RunState) -> RunResult | None:
    """Return how a run ended, None where its process did."""
    try:
        return await agent.resume(state)
    except KeyboardInterrupt:
        return None


async def test_a_run_that_an_emulated_agent_prepares_is_emulated_from_its_beginning() -> None:
    for agent in (clerk(emulated=True), clerk(emulated=True).replace(tools=[refund])):
        assert agent.prepare("Go.").emulated
    assert not clerk().prepare("Go.").emulated


async def test_a_state_whose_records_say_that_it_was_emulated_is_not_taken_for_a_real_one() -> None:
    def agent(*turns: Any) -> Agent:
        return Agent(ScriptedClient(turns), ToolRunner([refund, wipe], approver=answer_later))

    emulator = ToolEmulator({"refund": "made up", "wipe": "made up"})
    waits = await emulator.over(agent(call("refund", order=7), call("wipe", disk="a"))).run("Go.")
    forged = msgspec.structs.replace(waits.state, emulated=False)
    with pytest.raises(SourceError, match="emulated"):
        await agent("Done.").resume(RunState.from_json(forged.to_json()))


@tool(visible=ALL, safe=False)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    REAL.append(disk)
    return "wiped"
