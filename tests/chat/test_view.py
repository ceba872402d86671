"""A view follows events by operations alone, and holds nothing that an event does not show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from chat.chat_helpers import applied
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from stops import STOPS, stopped

from toolcrib import ALL, Agent, Event, Image, ToolContent, ToolRunner, tool
from toolcrib.chat.view import (
    LARGEST_RESULT,
    Json,
    Operation,
    ReadBack,
    TurnView,
    new_turn,
    readable,
)
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.run import (
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
)


def nothing(_name: str, _by: str) -> None:
    return None


@tool(visible=ALL, marks={"show": "table"})
async def rows(count: int) -> list[dict[str, int]]:
    """Give rows."""
    return [{"n": n} for n in range(count)]


@tool(visible=["kept"])
async def mixed(token: str) -> dict[str, str]:
    """Give some."""
    return {"kept": "yes", "canary-result": token}


@tool(visible=["kept"])
async def pictured() -> ToolContent[dict[str, str]]:
    """Give a picture."""
    return ToolContent({"kept": "yes", "other": "no"}, [Image("image/png", "aGk=")])


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


@each_row("seed", range(sample(50, part=4)))
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
    view = TurnView(new_turn("t", "asked"), lambda name, _by: catalog[name].tool.definition)
    told: list[Operation] = []
    async for event in agent.stream("asked"):
        told += view.take(event)
    return view.snapshot(), told


async def test_what_is_not_visible_is_nowhere() -> None:
    turn, told = await shown(call("mixed", token="canary-argument"), "done")
    assert "canary-result" not in repr((turn, told))
    assert turn["parts"][0]["result"] == {"kept": "yes"}


async def test_a_call_is_shown_as_the_tool_of_whoever_speaks_is() -> None:
    @tool(visible=ALL, name="rows", marks={"show": "plot"})
    async def others(count: int) -> int:
        """Count rows."""
        return count

    back = Agent(ScriptedClient([call("rows", count=1), "Done."]), [others], name="back")
    front = Agent(
        ScriptedClient([call("rows", count=1), call("hand_over_to_back", reason="It counts.")]),
        [rows],
        name="front",
        handovers=[back],
    )
    view = TurnView(new_turn("t", "asked"), front.team.definition)
    async for event in front.stream("asked"):
        view.take(event)
    calls = [part for part in view.turn["parts"] if part["kind"] == "call"]
    assert [part["show"] for part in calls] == ["table", "", "plot"]


async def test_a_refused_answer_and_the_accepted_one_are_two_parts() -> None:
    turn = new_turn("t", "Ask")
    view = TurnView(turn, nothing)
    async with Agent(ScriptedClient(["9.5", "9"]), output=int).stream("go") as run:
        async for event in run:
            view.take(event)
    assert [part["text"] for part in view.turn["parts"]] == ["9.5", "9"]


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


@each_row("how", STOPS)
async def test_a_card_of_a_stopped_call_says_whether_it_has_run(how: str) -> None:
    events, begun = await stopped(how)
    view = TurnView(new_turn("t", "asked"), nothing)
    for event in events:
        view.take(event)
    cards = [part for part in view.turn["parts"] if part["kind"] == "call"]
    assert len(cards) == len(STOPS[how][0])
    for card in cards:
        unknown = card["state"] == "unknown" or "what it did is not known" in str(card["error"])
        ended = card["state"] == "completed"
        assert (unknown or ended) is (card["name"] in begun), card
        assert card["error"] is None or card["error"]["code"] != "truncated"  # it came whole


def test_progress_is_bounded_and_the_newest_is_shown() -> None:
    view = TurnView(new_turn("t", "asked"), nothing)
    view.take(ToolCallStarted("c", "rows", {}))
    for n in range(500):
        view.take(ToolCallProgress("c", n))
    progress = view.turn["parts"][0]["progress"]
    assert (len(progress), progress[-1]) == (50, 499)


# What comes back of what was shown.

BIG = 2**60 + 1
VALUES = st.recursive(
    st.sampled_from([1, 2**53, BIG, -BIG, str(BIG), "x", None, True, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("xyz"), VALUES), VALUES)
def test_what_comes_back_as_it_was_shown_is_what_was_asked(asked: Json, other: Any) -> None:
    """With another member, with a member less, with one changed: never a text in a number's place."""
    back = ReadBack(asked)
    assert back.arguments(readable(asked)) == asked
    assert repr(back.arguments(asked)) == repr(asked)  # a client that can write the numbers
    for name in asked:
        rest = {n: value for n, value in asked.items() if n != name}
        assert back.arguments(readable(rest)) == rest
        assert back.arguments(readable(rest) | {name: 7}) == rest | {name: 7}
    edit = readable(asked) | {"new": readable(other)}
    try:
        read = back.arguments(edit)
    except ValueError:
        return  # the text may be a number or not
    assert {n: v for n, v in read.items() if n != "new"} == asked
    assert set(strings(read["new"])) & {str(n) for n in numbers(asked)} == set()


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


def numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, int) and abs(value) >= 2**53:
        yield value


ITEMS: dict[str, tuple[list[Any], list[Any], list[Any] | None]] = {
    "one less": ([BIG, 1, -BIG], [1, str(-BIG)], [1, -BIG]),
    "moved": ([BIG, 1], [1, str(BIG)], [1, BIG]),
    "twice": ([BIG], [str(BIG), str(BIG)], [BIG, BIG]),
    "one that moved whole": ([{"a": BIG}, {"a": 1}], [{"a": str(BIG)}], [{"a": BIG}]),
    "changed at its place": ([[BIG, 1]], [[str(BIG), 2]], [[BIG, 2]]),
    "changed and moved": ([{"a": BIG, "b": 1}, {}], [{"a": str(BIG), "b": 2}], None),
    "a number or a text": ([BIG, str(BIG)], [str(BIG)], None),
    "both at their places": ([BIG, str(BIG)], [str(BIG), str(BIG)], [BIG, str(BIG)]),
    "a number at another one's place": ([{"a": BIG, "b": -BIG}], [{"a": str(-BIG)}], None),
}  # fmt: skip


@each_row(("asked", "edited", "read"), ITEMS.values(), ids=ITEMS)
def test_items_are_known_by_what_was_shown(
    asked: list[Any], edited: list[Any], read: list[Any] | None
) -> None:
    back = ReadBack({"x": asked})
    if read is None:
        with pytest.raises(ValueError, match="it is unclear whether"):
            back.arguments({"x": edited})
    else:
        assert repr(back.arguments({"x": edited})) == repr({"x": read})


async def test_content_is_named_beside_the_result() -> None:
    client = ScriptedClient([call("pictured"), "Seen."])
    view = TurnView(new_turn("t", "Look."), nothing)
    async with Agent(client, ToolRunner([pictured])).stream("Look.") as events:
        async for event in events:
            view.take(event)
    (shown,) = [part for part in view.snapshot()["parts"] if part["kind"] == "call"]
    digest = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"
    told = {"kind": "image", "media_type": "image/png", "size": 2, "sha256": digest}
    assert shown["result"] == {"result": {"kept": "yes"}, "parts": [told]}


async def test_a_card_of_a_call_in_the_background_ends_while_a_text_goes_on() -> None:
    result = await Agent(ScriptedClient([call("rows", count=1), "Here."]), [rows]).run("Go.")
    (record,) = result.records
    view = TurnView(new_turn("t", "asked", at=0.0), nothing)
    for event in (
        ToolCallStarted(record.id, "rows", {"count": 1}),
        TextDelta("I "),
        ToolCallFinished(record),
        TextDelta("wait."),
    ):
        view.take(event)
    card, text = view.snapshot()["parts"]
    assert (card["state"], text["kind"]) == ("completed", "text")
    assert text["text"] == "I wait."
