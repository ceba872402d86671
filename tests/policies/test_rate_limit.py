"""Rate limits: no stretch of time holds more calls than it may, whoever calls, and however many."""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies.policy_helpers import CANARY, call_of, context_of
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Caller,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    ToolCall,
    ToolRunner,
    policies,
    tool,
)
from toolcrib.errors import MissingExtraError, ToolcribError
from toolcrib.policies import CountingPolicy, rate_limit
from toolcrib.runner.policy import count_all, decide
from toolcrib.values.context import RunTally


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(policies, "time", made)
    return made


def ran(
    policy: CountingPolicy, *, tool_name: str = "subject", caller: str = "ada", run: str = "r"
) -> bool:
    """Whether the next call would run; it is counted if so."""
    call, context = call_of(tool_name), context_of(RunTally(run), Caller(caller))
    if isinstance(decide([policy], call, context), Deny):
        return False
    assert count_all([policy], call, context) is None
    return True


def test_no_more_than_that_in_any_minute(clock: Clock) -> None:
    policy = rate_limit("3/minute")
    times = [(0, True), (50, True), (59, True), (59.9, False), (60, True), (61, False), (110, True)]
    for at, expected in times:
        clock.now = 1000.0 + at
        assert ran(policy) is expected, at


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab")), max_size=60))
def test_any_stretch_of_any_caller(steps: list[tuple[int, str]]) -> None:
    clock, policy = Clock(), rate_limit("3 per 10 seconds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "time", clock)
        taken: list[tuple[float, str]] = []
        for seconds, caller in steps:
            clock.now += seconds
            recent = sum(at > clock.now - 10 and by == caller for at, by in taken)
            assert ran(policy, caller=caller) is (recent < 3)
            if recent < 3:
                taken.append((clock.now, caller))


@pytest.mark.parametrize(
    ("per", "others"),
    [
        ("all", (False, False, False)),
        ("tool", (True, False, False)),
        ("caller", (False, True, False)),
        ("run", (False, False, True)),
    ],
)
def test_whose_limit_it_is(per: Any, others: tuple[bool, bool, bool], clock: Clock) -> None:
    del clock
    policy = rate_limit("1/hour", per=per)
    assert ran(policy)
    assert not ran(policy)
    others_run = (ran(policy, tool_name="x"), ran(policy, caller="eve"), ran(policy, run="s"))
    assert others_run == others


def test_the_reason_says_the_limit_and_no_more() -> None:
    policy = rate_limit("2 per 5 minutes")
    assert ran(policy)
    assert ran(policy)
    decision = decide([policy], call_of(), context_of(RunTally("r"), Caller("ada")))
    text = "the limit of 2 calls in 300 seconds a caller is reached"
    assert decision == Deny(text, "rate_limit", ErrorCode.RATE_LIMITED)
    assert CANARY not in repr(decision)


def test_only_the_tools_that_it_names() -> None:
    policy = rate_limit("1/day", only="other")
    assert [ran(policy) for _ in range(3)] == [True] * 3
    assert [ran(policy, tool_name="other") for _ in range(2)] == [True, False]


def test_who_comes_too_late_to_count_does_not_run() -> None:
    policy, call, context = rate_limit("1/day"), call_of(), context_of()
    assert count_all([policy], call, context) is None
    late = count_all([policy], call, context)  # as a call in another thread would be
    assert isinstance(late, Deny)
    assert late.code is ErrorCode.RATE_LIMITED


def test_another_thread_may_forget_calls_while_they_are_counted(clock: Clock) -> None:
    policy: Any = rate_limit("50/minute")
    others: list[threading.Thread] = []

    class Moment(float):
        """A time that another thread uses for a call while it is looked at."""

        def __gt__(self, other: float) -> bool:
            if not others:
                count = partial(policy.count, call_of(), context_of())
                others.append(threading.Thread(target=count))
                others[0].start()
                others[0].join(0.2)
            return float(self) > other

    clock.now = Moment(1000)
    for _ in range(8):
        assert policy.count(call_of(), context_of()) is None
    others.clear()
    clock.now = 1061.0
    assert isinstance(policy(call_of(), context_of()), Allow)
    others[0].join()


def test_those_that_left_the_window_are_forgotten(clock: Clock) -> None:
    policy: Any = rate_limit("5/minute")
    for number in range(1000):
        assert ran(policy, caller=f"caller {number}")
    windows = policy._windows
    assert len(windows._calls) == 1000
    clock.now += 50
    assert ran(policy, caller="caller 0")
    clock.now += 11
    assert ran(policy, caller="the last")
    assert len(windows._calls) == 2


def test_a_caller_cannot_write_himself_another_key() -> None:
    policy = rate_limit("1/day", per="caller")
    assert ran(policy, caller="a")
    assert ran(policy, caller="a/1/1/day")
    assert not ran(policy, caller="a")


@each_row(
    "wrong",
    ["", "5", "5/fortnight", "-1/minute", "a few/day", 5, None, "5 per 0 seconds", "5/00 minutes"],
)
def test_what_is_no_limit_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ToolcribError, match='write a limit like "5/minute"'):
        rate_limit(wrong)


def test_two_limits_are_two_policies() -> None:
    with pytest.raises(ToolcribError, match="a second policy"):
        rate_limit("5/minute; 100/day")


def test_whose_else_is_refused() -> None:
    with pytest.raises(ToolcribError, match="per is one of all, tool, caller, run"):
        rate_limit("5/minute", per="agent")  # type: ignore[arg-type]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "limits", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[limits\]'"):
        rate_limit("5/minute")


def test_a_module_of_the_name_of_the_library_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "limits"]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "limits.py").write_text("MOST = 3", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    told = r"'\.\[limits\]' in a checkout of toolcrib \(it cannot be imported: .*limits\.py"
    with pytest.raises(MissingExtraError, match=told) as raised:
        rate_limit("5/minute")
    assert str(tmp_path) not in raised.value.advice
    monkeypatch.delitem(sys.modules, "limits")


@tool(visible=ALL)
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_hundred_calls_at_the_same_time() -> None:
    runner = ToolRunner([look], policy=rate_limit("10/hour", per="all"))
    outcomes = await runner.exec_all(ToolCall(f"c{n}", "look", "{}") for n in range(100))
    assert sum(isinstance(outcome, Completed) for outcome in outcomes) == 10
    failed = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
    assert {error.code for error in failed} == {ErrorCode.RATE_LIMITED}
    assert all(error.retryable for error in failed)


async def test_calls_outside_of_a_run_have_one_limit_of_runs() -> None:
    runner = ToolRunner([look], policy=rate_limit("2/hour", per="run"))
    outcomes = [await runner.exec(ToolCall(f"c{n}", "look", "{}")) for n in range(3)]
    assert [isinstance(outcome, Completed) for outcome in outcomes] == [True, True, False]


async def test_what_another_policy_denies_does_not_count() -> None:
    limit, shut = rate_limit("1/hour"), SimpleNamespace(yes=True)
    runner = ToolRunner([look], policy=[limit, lambda *_: Deny("shut") if shut.yes else limit(*_)])
    denied = await runner.exec(ToolCall("c1", "look", "{}"))
    shut.yes = False
    done = await runner.exec(ToolCall("c2", "look", "{}"))
    assert isinstance(denied, Failed)
    assert isinstance(done, Completed)
