"""What a call knows of the graph that makes it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from bridges.langchain_helpers import asks, reply
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel

from toolcrib.bridges.langchain import graph_run
from toolcrib.bridges.langchain.graph_run import (
    GraphCall,
    ThreadTallies,
    graph_call,
    storable,
)
from toolcrib.bridges.langchain.reply_end import fault_of
from toolcrib.errors import MissingExtraError

MARK = {"key": "sha256:a", "tool": "pay", "cost": 2.0, "tainted": True}
MESSAGES: list[AnyMessage] = [
    HumanMessage("Pay."),
    reply(asks("pay", "call_0"), finish_reason="length"),
    ToolMessage("paid", tool_call_id="call_0", artifact={"toolcrib": MARK}),
    ToolMessage("of another's tool", tool_call_id="call_1", artifact=["anything"]),
    reply(asks("pay", "call_2"), finish_reason="stop"),
]


class Model(BaseModel):
    messages: list[Any] = MESSAGES


@dataclass
class Plain:
    messages: list[AnyMessage] = field(default_factory=lambda: MESSAGES)


def runtime(state: Any) -> ToolRuntime[Any, Any]:
    return ToolRuntime(state, None, {}, print, "call_0", None)


@pytest.mark.parametrize("state", [{"messages": MESSAGES}, MESSAGES, Model(), Plain()])
def test_the_messages_of_a_state_of_any_kind_are_read(state: Any) -> None:
    assert (
        list(graph_call({}, runtime(state), "call_0").messages) == []
    )  # no graph says where it is
    assert list(graph_run._messages(runtime(state))) == MESSAGES


@pytest.mark.parametrize("state", [{}, {"messages": "none"}, {"other": []}, 7, None])
def test_a_state_without_messages_has_none(state: Any) -> None:
    assert list(graph_run._messages(runtime(state))) == []


def test_a_reply_that_was_cut_is_found_by_the_call() -> None:
    replies = [graph_run._reply(MESSAGES, call_id) for call_id in ("call_0", "call_2", "call_9")]
    cut, whole, none = (fault_of(one, ()) for one in replies)
    assert cut is not None
    assert cut.code == "truncated"
    assert (whole, none) == (None, None)
    assert replies[:2] == [MESSAGES[1], MESSAGES[4]]


def test_a_call_is_known_by_the_message_that_asked_for_it() -> None:
    """Whatever its id: no two messages and calls are one. Without an id, or of two calls of one id, the
    step tells."""

    def named(id: str | None, *calls: str) -> str:
        asking = AIMessage("", id=id, tool_calls=[asks("pay", call) for call in calls])
        return graph_run._asked_by([HumanMessage("Pay."), asking], asking, "a")

    assert (named("msg_1", "a"), named("m/s", "a"), named("\ud800", "a")) == (
        "msg_1",
        "m%2Fs",
        "%ED%A0%80",
    )
    assert [named(None, "a"), named("", "a"), named("msg_1", "a", "a"), named("msg_1", "b")] == [
        ""
    ] * 4
    assert named("task:1", "a") != "task:1"
    assert graph_run._asked_by([], None, "a") == ""
    twice = AIMessage("", id="msg_1", tool_calls=[asks("pay", "a")])
    assert graph_run._asked_by([twice, HumanMessage("And?"), twice], twice, "a") == ""


def test_what_a_thread_spent_is_in_its_messages() -> None:
    tallies = ThreadTallies("")
    spent = tallies.spent(GraphCall("thread_1", "call_3", messages=[*MESSAGES, MESSAGES[2]]))
    assert (spent.tally.calls, spent.tally.cost, spent.tally.tainted) == (1, 2.0, True)
    assert spent.counted == {"sha256:a": 1}
    assert tallies.spent(GraphCall("thread_1", "call_4")) is spent


def test_a_process_keeps_only_so_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_run, "_MOST", 2)
    tallies = ThreadTallies("")
    first, second, _ = (tallies.spent(GraphCall(name, "call_0")) for name in "abc")
    assert tallies.spent(GraphCall("b", "call_1")) is second
    assert tallies.spent(GraphCall("a", "call_1")) is not first


@pytest.mark.parametrize("made", ["", "no UUID", "a3bb189e-8bf9-3888-9912-ace4e6543002"])
def test_a_checkpoint_that_does_not_say_when_it_was_made_is_of_now(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 5.0)
    assert graph_run._time_of(made) == 5.0


def test_the_time_of_a_checkpoint_is_in_its_id() -> None:
    assert graph_run._time_of(str(uuid6())) == pytest.approx(time.time(), abs=1)
    assert graph_run._time_of(str(uuid6(clock_seq=0x3FFF))) == pytest.approx(time.time(), abs=1)


def test_wide_integers_are_kept_as_digits() -> None:
    value = {"a": [2**63, 2**63 - 1, -(2**63) - 1], "b": 1}
    assert storable(value) == {"a": [str(2**63), 2**63 - 1, str(-(2**63) - 1)], "b": 1}


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("toolcrib.bridges.langchain")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langgraph.types", None)
    with pytest.raises(MissingExtraError, match=r"toolcrib\[langchain\]"):
        __import__("toolcrib.bridges.langchain")
