"""A view follows events by operations alone, and holds nothing that an event does not show."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from toolcrib import ALL, Agent, Event, ToolRunner, tool
from toolcrib.chat.view import LARGEST_RESULT, Operation, TurnView, applied, new_turn
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.run import (
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallProgress,
    ToolCallStarted,
)


def nothing(_name: str) -> None:
    return None


@tool(visible=ALL, marks={"show": "table"})
async def rows(count: int) -> list[dict[str, int]]:
    """Give rows."""
    return [{"n": n} for n in range(count)]


@tool(visible=["kept"])
async def mixed(token: str) -> dict[str, str]:
    """Give some."""
    return {"kept": "yes", "canary-result": token}


def random_event(chance: random.Random) -> Event:
    call_id = f"c{chance.randrange(4)}"
    text = chance.choice(["a", "é\n", "\ud83d", "</script>", "\x1b[31m", "\u202e", ""])
    made: list[Event] = [
        TextDelta(text),
        ReasoningDelta(text),
        ToolArgumentsDelta(call_id, "rows", text),
        ToolCallStarted(call_id, "rows", {"count": 1}),
        ToolCallProgress(call_id, {"text": text}),
    ]
    return chance.choice(made)


@pytest.mark.parametrize("seed", range(50))
def test_operations_make_of_any_snapshot_the_next_one(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  a seeded test
    view = TurnView(new_turn("t", "asked", at=0.0), nothing)
    state: Any = view.snapshot()
    pending: list[Operation] = []
    for _ in range(200):
        pending += view.take(random_event(chance))
        if chance.random() < 0.2:
            state = applied(state, deepcopy(pending))
            pending = []
            assert state == view.snapshot()


async def shown(*turns: object) -> tuple[dict[str, Any], list[Operation]]:
    agent = Agent(ScriptedClient(list(turns)), ToolRunner([rows, mixed]))  # type: ignore[arg-type]
    catalog = agent.runner.catalog.by_name
    view = TurnView(new_turn("t", "asked"), lambda name: catalog[name].tool.definition)
    told: list[Operation] = []
    async for event in agent.stream("asked"):
        told += view.take(event)
    return view.snapshot(), told


async def test_what_is_not_visible_is_nowhere() -> None:
    turn, told = await shown(call("mixed", token="canary-argument"), "done")
    assert "canary-result" not in repr((turn, told))
    assert turn["parts"][0]["result"] == {"kept": "yes"}


async def test_a_large_result_is_cut_and_says_so() -> None:
    turn, _ = await shown(call("rows", count=20_000), "done")
    (card, _text) = turn["parts"]
    assert card["result"]["truncated"]
    assert card["result"]["bytes"] > LARGEST_RESULT >= len(card["result"]["head"])
    assert card["show"] == "table"


async def test_a_call_that_never_came_whole_does_not_stay_open() -> None:
    turn, _ = await shown("It is 3.")
    view = TurnView(turn, nothing)
    view.take(ToolArgumentsDelta("c", "rows", "{"))
    stopped = view.break_off({}, "interrupted")
    assert [p["state"] for p in view.turn["parts"] if p["kind"] == "call"] == ["cancelled"]
    assert stopped[-1]["value"] == "The server stopped while this ran."


def test_progress_is_bounded_and_the_newest_is_shown() -> None:
    view = TurnView(new_turn("t", "asked"), nothing)
    view.take(ToolCallStarted("c", "rows", {}))
    for n in range(500):
        view.take(ToolCallProgress("c", n))
    progress = view.turn["parts"][0]["progress"]
    assert (len(progress), progress[-1]) == (50, 499)
