"""What a call knows of the graph that makes it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from bridges.langchain_helpers import asks, reply
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import ExecutionInfo
from pydantic import BaseModel

from toolcrib.bridges.langchain import graph_run
from toolcrib.bridges.langchain.graph_run import (
    AlikeCalls,
    AskedCall,
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


def runtime(state: Any, info: ExecutionInfo | None = None) -> ToolRuntime[Any, Any]:
    return ToolRuntime(state, None, {}, print, "call_0", None, execution_info=info)


def asked(id: str | None, name: str = "pay", **arguments: Any) -> AskedCall:
    return AskedCall(name, arguments, json.dumps(arguments), id)


def keys(
    messages: list[AnyMessage],
    *calls: AskedCall,
    alike: AlikeCalls | None = None,
    task: str = "task",
    at: float = 1.0,
) -> list[str]:
    """Return what calls of one execution of a step are called."""
    info = ExecutionInfo("checkpoint", "", task, node_first_attempt_time=at)
    kept = alike or AlikeCalls()
    return [graph_call({}, runtime(messages, info), one, kept).call_id for one in calls]


@pytest.mark.parametrize("state", [{"messages": MESSAGES}, MESSAGES, Model(), Plain()])
def test_the_messages_of_a_state_of_any_kind_are_read(state: Any) -> None:
    assert (
        list(graph_call({}, runtime(state), asked("call_0"), AlikeCalls()).messages) == []
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
    """Whatever its id: no two messages and calls are one. Without an id of the message, or of two calls
    that are alike, the step tells."""

    def named(id: str | None, *calls: str) -> str:
        asking = AIMessage("", id=id, tool_calls=[asks("pay", call) for call in calls])
        (key,) = keys([HumanMessage("Pay."), asking], asked("a"))
        return key

    assert (named("msg_1", "a"), named("m/s", "a"), named("\ud800", "a")) == (
        "msg_1/a",
        "m%2Fs/a",
        "%ED%A0%80/a",
    )
    assert [named(None, "a"), named("", "a"), named("msg_1", "b")] == ["task:task/a"] * 3
    assert named("msg_1", "a", "a") == "task:task:0/a"
    assert named("task:1", "a") == "task%3A1/a"
    assert keys([], asked("a")) == ["task:task/a"]
    twice = AIMessage("", id="msg_1", tool_calls=[asks("pay", "a")])
    assert keys([twice, HumanMessage("And?"), twice], asked("a")) == ["task:task/a"]


IDS = st.sampled_from(["", None, "a", "b", "m:0/a", "\ud800"])
CALLS = st.lists(st.tuples(IDS, st.sampled_from(["pay", "refund"]), st.integers(0, 1)), max_size=5)


@given(CALLS, CALLS, st.randoms())
def test_each_call_of_each_reply_has_a_key_of_its_own_in_whatever_order(
    first: list[Any], second: list[Any], random: Any
) -> None:
    """And the same one when the step is done again, in this process or another, but for which one of
    those that are alike it is."""
    before: list[AnyMessage] = []
    found: list[str] = []
    for number, calls in enumerate((first, second)):
        if not calls:
            continue
        made = [{"name": name, "id": given, "args": {"n": n}} for given, name, n in calls]
        before.append(AIMessage("", id=f"m{number}", tool_calls=made))
        wanted = [asked(given, name, n=n) for given, name, n in calls]
        task, kept = f"task_{number}", AlikeCalls()
        told = keys(before, *wanted, task=task, alike=kept)
        again = [*wanted]
        random.shuffle(again)
        for alike, at in ((kept, 2.0), (AlikeCalls(), 3.0)):
            assert sorted(keys(before, *again, task=task, alike=alike, at=at)) == sorted(told)
        for key in told:
            key.encode()
        found += told
    assert len(set(found)) == len(found)


def test_a_call_without_an_id_that_no_message_shows_is_known_by_what_it_says() -> None:
    one, same, other = keys([], asked("", n=1), asked("", n=1), asked("", n=2))
    assert one == same != other
    codes = keys([], asked(None, n=1), asked(None, n=1))
    assert codes[0] != codes[1]  # code that makes two calls means two


def test_what_a_thread_spent_is_in_its_messages() -> None:
    tallies = ThreadTallies("")
    spent = tallies.spent(GraphCall("thread_1", "call_3", messages=[*MESSAGES, MESSAGES[2]]))
    assert (spent.calls, spent.cost, spent.tainted) == (1, 2.0, True)
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
    with pytest.raises(MissingExtraError, match=r"'\.\[langchain\]'"):
        __import__("toolcrib.bridges.langchain")
