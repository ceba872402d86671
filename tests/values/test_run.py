"""A run's state is JSON that another process can read."""

from __future__ import annotations

import pytest
from rows import each_row

from toolcrib.errors import SourceError
from toolcrib.values.call import ToolCall
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Caller
from toolcrib.values.message import Message, Usage
from toolcrib.values.run import Limits, RunState

CALL = ToolCall("c1", "look", '{"a": 1e400, "a": 2}', provider_id="p1")
STATE = RunState(
    "r1",
    2,
    (Message.user("é\u2028"), Message.assistant("", (CALL,)), Message.tool(CALL, "no")),
    usage=Usage(1, 2, 3),
    tally=RunTally("r1", calls=2, per_tool={"look": 2}),
    caller=Caller("grace", ("admin",)),
    offered=("look",),
    elapsed=1.5,
)


def test_it_comes_back_as_it_was() -> None:
    assert RunState.from_json(STATE.to_json()) == STATE
    assert RunState.from_json(STATE.to_json().encode()) == STATE


@each_row(
    "text",
    [
        "",
        "{}",
        "[]",
        "not json",
        '{"run_id":1,"turn":0,"messages":[]}',
        '{"run_id":"r","turn":0,"messages":[{"role":"nobody"}]}',
        '{"run_id":"r","turn":0,"messages":[],"version":2}',
        b"\xff",
        "\ud800",
    ],
)
def test_what_is_no_state_is_refused(text: str | bytes) -> None:
    with pytest.raises(SourceError):
        RunState.from_json(text)


def test_limits_have_defaults_that_end() -> None:
    assert (Limits().turns, Limits().calls) == (20, 100)
    with pytest.raises(AttributeError):
        Limits().turns = 10**6  # type: ignore[misc]
