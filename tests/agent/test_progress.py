"""A run that gets nowhere ends by itself, and says why."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from rows import each_row

from toolcrib import ALL, Agent, Approve, Limits, RunState, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.errors import ToolError
from toolcrib.testing import MemorySink, ScriptedClient, call

MADE: list[Any] = []
COUNT = itertools.count()


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    MADE.clear()


@tool(visible=ALL)
async def look(shelf: int) -> str:
    """Look at a shelf."""
    MADE.append(shelf)
    return f"shelf {shelf} is empty"


@tool(visible=ALL)
async def poll(job: str) -> int:
    """Say how far a job is."""
    MADE.append(job)
    return next(COUNT)


@tool(visible=ALL)
async def fails(n: int) -> str:
    """Fail."""
    MADE.append(n)
    raise ToolError(f"not {n}")


def agent(turns: Any, *, limits: Limits = Limits(), **options: Any) -> Agent:  # noqa: B008
    return Agent(ScriptedClient(turns), [look, poll, fails], limits=limits, **options)


async def test_the_same_calls_again_and_again_stop_the_run() -> None:
    result = await agent([call("look", shelf=1)] * 20).run("Look.")
    assert (result.status, result.limit) == ("limited", "repeated_calls")
    assert MADE == [1] * 6  # the first one, and five that told nothing new
    last = result.messages[-1]
    assert (last.role, last.is_error) == ("tool", True)
    assert "budget_exceeded" in last.content


async def test_calls_in_turn_are_the_same_calls_too() -> None:
    result = await agent([call("look", shelf=n % 3) for n in range(20)]).run("Look.")
    assert (result.limit, MADE) == ("repeated_calls", [0, 1, 2, 0, 1, 2, 0, 1])


@each_row(
    "turns",
    [
        [call("poll", job="a")] * 15,
        [call("look", shelf=n) for n in range(15)],
        [[call("look", shelf=1), call("poll", job="a")]] * 7,
        [call("look", shelf=n % 5) for n in range(10)],
    ],
)
async def test_what_tells_something_new_is_no_repetition(turns: list[Any]) -> None:
    result = await agent([*turns, "Done."]).run("Go on.")
    assert (result.status, result.text) == ("completed", "Done.")


async def test_another_call_is_made_though_the_last_ones_told_nothing() -> None:
    shelves = [1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1]
    turns = [call("look", shelf=shelf) for shelf in shelves]
    result = await agent([*turns, "Done."]).run("Look.")
    assert (result.status, MADE) == ("completed", shelves)


async def test_a_tool_that_only_fails_is_not_called_for_ever() -> None:
    turns = [call("fails", n=n) for n in range(20)]
    result = await agent(turns, limits=Limits(tool_errors=3)).run("Try.")
    assert (result.status, result.limit, MADE) == ("limited", "tool_errors", [0, 1, 2])


async def test_errors_of_a_tool_are_counted_in_a_row() -> None:
    @tool(visible=ALL)
    async def at_times(n: int) -> str:
        """Fail at times."""
        MADE.append(n)
        if n % 3:
            raise ToolError(f"not {n}")
        return "done"

    turns: list[Any] = [*[call("at_times", n=n) for n in range(12)], "Done."]
    limits = Limits(tool_errors=3)
    result = await Agent(ScriptedClient(turns), [at_times], limits=limits).run("Try.")
    assert (result.status, len(MADE)) == ("completed", 12)


async def test_other_limits_and_none() -> None:
    limits = Limits(repeated_calls=None, tool_errors=None, turns=30)
    turns = [[call("look", shelf=1), call("fails", n=1)]] * 25
    result = await agent([*turns, "Done."], limits=limits).run("Look.")
    assert (result.status, len(MADE)) == ("completed", 50)
    MADE.clear()
    result = await agent([call("look", shelf=1)] * 3, limits=Limits(repeated_calls=0)).run("Look.")
    assert (result.limit, MADE) == ("repeated_calls", [1])


async def test_a_run_that_is_saved_goes_on_counting() -> None:
    """What it repeats, it repeats in another process too; what was said before it does not count."""

    @tool(visible=ALL, requires_approval=True)
    async def ask(shelf: int) -> str:
        """Look at a shelf, if somebody lets it."""
        MADE.append(shelf)
        return "empty"

    def made() -> Agent:
        client = ScriptedClient([call("ask", shelf=1)])
        return Agent(client, ToolRunner([ask], approver=answer_later))

    before = await agent([*[call("look", shelf=1)] * 3, "Done."]).run("Look.")
    MADE.clear()
    result = await made().run("Ask.", history=before.messages)
    while result.status == "waiting":
        state = RunState.from_json(result.state.to_json())
        answers = {each.id: Approve("ada") for each in result.pending}
        result = await made().resume(state, answers)
    assert (result.status, result.limit, MADE) == ("limited", "repeated_calls", [1] * 6)


async def test_calls_that_are_not_made_have_records() -> None:
    sink = MemorySink()
    client = ScriptedClient([call("look", shelf=1)] * 9)
    result = await Agent(client, ToolRunner([look], sinks=[sink])).run("Look.")
    ends = [record.status for record in sink.finished()]
    assert ends == ["completed"] * 6 + ["failed"]
    assert result.records == tuple(sink.finished())


# --- replies without anything


async def test_an_empty_reply_is_no_answer() -> None:
    client = ScriptedClient(["", " \n", "It is 3."])
    result = await Agent(client, [look]).run("What is it?")
    assert (result.status, result.text) == ("completed", "It is 3.")
    said = [m.content for m in result.messages if m.role == "user"]
    assert said[1:] == ["Your reply was empty. Write your answer, or call a tool."] * 2


@pytest.mark.parametrize("corrections", [0, 3])
async def test_a_model_that_says_nothing_has_not_completed(corrections: int) -> None:
    client = ScriptedClient([""] * 9)
    result = await Agent(client, [look], limits=Limits(corrections=corrections)).run("Well?")
    assert (result.status, result.limit, result.text) == ("limited", "empty_reply", "")
    assert len(client.requests) == corrections + 1
