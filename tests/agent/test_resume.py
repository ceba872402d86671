"""Going on with a saved run: changed, twice, late, or with tools that are others by now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import AfterValidator
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    Approve,
    Deny,
    Limits,
    Refuse,
    RunResult,
    RunState,
    ToolRunner,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import Answer
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunRecord

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool(visible=ALL, safe=False)
async def delete(path: str) -> str:
    """Delete a path."""
    RAN.append(path)
    await asyncio.sleep(0)
    return f"deleted {path}"


async def later(_request: ApprovalRequest) -> None:
    return None


def agent(tools: list[Any], *turns: Any) -> Agent:
    return Agent(ScriptedClient(list(turns)), ToolRunner(tools, approver=later))


async def waiting() -> tuple[RunState, str]:
    """A saved run that waits, and the id of its question."""
    result = await agent([delete], call("delete", path="x")).run("go")
    assert result.status == "waiting"
    return RunState.from_json(result.state.to_json()), result.pending[0].id


def told(result: RunResult) -> str:
    """The code of the last error that the model was told, else what it was told."""
    content = [m.content for m in result.messages if m.role == "tool"][-1]
    try:
        return str(json.loads(content)["error"]["code"])
    except ValueError:
        return content


def arguments(saved: dict[str, Any]) -> None:
    saved["messages"][-1]["tool_calls"][0]["arguments"] = '{"path": "/"}'


def arguments_and_question(saved: dict[str, Any]) -> None:
    arguments(saved)
    saved["pending"][0]["arguments"] = {"path": "/"}


def caller(saved: dict[str, Any]) -> None:
    saved["caller"] = {"id": "eve"}


def restored(saved: dict[str, Any]) -> None:
    made = saved["messages"][-1]["tool_calls"][0]["id"]
    saved["restored"] = {made: {"path": "/"}}


def nonce(saved: dict[str, Any]) -> None:
    saved["tally"]["nonce"] = "another"


@pytest.mark.parametrize("change", [arguments, arguments_and_question, caller, restored, nonce])
async def test_what_was_approved_is_not_what_was_put_in_its_place(
    change: Callable[[dict[str, Any]], None],
) -> None:
    state, question = await waiting()
    saved = json.loads(state.to_json())
    change(saved)
    changed = RunState.from_json(json.dumps(saved))
    with pytest.raises(SourceError, match=r"the saved state was changed: pending\[0\]\."):
        await agent([delete], "done").resume(changed, {question: Approve("grace")})
    assert RAN == []


class Line:
    """A connection: JSON gives no such thing back."""


FAILS: list[str] = []


def connected() -> Line:
    if FAILS:
        raise ConnectionError("canary")
    return Line()


def still(path: str) -> str:
    if FAILS:
        raise ValueError("canary")
    return path


@tool(visible=ALL, safe=False, name="reach")
@dataclass
class Reach:
    """Reach a path."""

    path: str
    line: Any = field(default_factory=connected)

    async def run(self) -> None:
        RAN.append(self.path)


@tool(visible=ALL, safe=False)
async def check(path: Annotated[str, AfterValidator(still)]) -> str:
    """Check a path."""
    RAN.append(path)
    return path


@pytest.mark.parametrize(
    ("one", "code", "logged"),
    [
        (Reach, "unusable_tool", "the default factory of 'line', raised ConnectionError at "),
        (check, "invalid_arguments", ""),
    ],
)
async def test_what_fails_when_a_run_goes_on_is_told_as_what_it_is(
    one: Any, code: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    FAILS.clear()
    name = one.get_definition().name
    first = await agent([one], call(name, path="x")).run("go")
    state = RunState.from_json(first.state.to_json())
    FAILS.append("it fails now")
    result = await agent([one], "done").resume(state, {first.pending[0].id: Approve("grace")})
    assert told(result) == code
    assert "canary" not in str(result.messages)
    assert logged in caplog.text
    assert RAN == []


@each_row(
    ("answer", "edited"),
    [
        (Approve("grace", {"path": "y"}), True),
        (Approve("grace", {"path": float("nan")}), True),
        (Approve("grace", {}), True),
        (Approve("grace", {"path": "x"}), False),
        (Approve("grace"), False),
        (Refuse(by="grace"), False),
    ],
)
@pytest.mark.parametrize("fails", ["its validator", "a policy", "a budget"])
async def test_edited_says_that_other_arguments_were_given_though_nobody_looked_at_them(
    answer: Answer, fails: str, edited: bool
) -> None:
    FAILS.clear()
    first = await agent([check], call("check", path="x")).run("go")
    state = RunState.from_json(first.state.to_json())
    client = ScriptedClient(["done"])
    made = Agent(client, ToolRunner([check], approver=later))
    if fails == "its validator":
        FAILS.append("it fails now")
    elif fails == "a policy":
        runner = ToolRunner([check], approver=later, policy=lambda _call, _context: Deny("no"))
        made = Agent(client, runner)
    else:
        made = Agent(client, ToolRunner([check], approver=later), limits=Limits(calls=0))
    result = await made.resume(state, {first.pending[0].id: answer})
    record = result.records[-1]
    assert record.status == "failed"
    assert (record.edited, record.approved_by) == (edited, "grace" if edited else None)
    said = next(m.content for m in reversed(result.messages) if m.role == "tool")
    assert ("Whoever approved this call changed its arguments. It has not run." in said) == edited
    assert RAN == []


@pytest.mark.parametrize("answer", [Approve("grace"), Refuse()])
async def test_an_answer_is_none_for_a_tool_that_is_another_by_now(answer: Answer) -> None:
    @tool(visible=ALL, name="delete")
    async def changed(path: str) -> str:
        """Delete a path, without asking."""
        RAN.append(path)
        return path

    state, question = await waiting()
    result = await agent([changed], "done").resume(state, {question: answer})
    assert told(result) == "approval_mismatch"
    assert RAN == []


def deleting(**parameters: Any) -> Any:
    async def another(**arguments: Any) -> str:
        RAN.append(str(arguments))
        return "deleted"

    schema: Any = {"type": "object", "properties": parameters, "required": list(parameters)}
    options: Any = {"visible": ALL, "name": "delete", "description": "Delete.", "safe": False}
    return tool(parameters=schema, **options)(another)


@pytest.mark.parametrize(
    ("answer", "edited"),
    [
        (Approve("grace"), False),
        (Approve("grace", {"path": "y"}), True),
        (Refuse(by="grace"), False),
    ],
)
@pytest.mark.parametrize(
    "changed",
    [
        deleting(file={"type": "string"}),
        deleting(path={"type": "string"}, reason={"type": "string"}),
        deleting(path={"type": "integer"}),
        deleting(path={}),
    ],
    ids=["renamed", "one more", "another type", "any type"],
)
async def test_arguments_are_at_no_fault_of_a_tool_that_has_changed(
    changed: Any, answer: Answer, edited: bool
) -> None:
    """Whether its new schema takes what the old one took, or not."""
    state, question = await waiting()
    result = await agent([changed], "done").resume(state, {question: answer})
    record = result.records[-1]
    assert record.error is not None
    assert (record.error.code, record.error.retryable) == (ErrorCode.APPROVAL_MISMATCH, False)
    assert (record.edited, record.approved_by) == (edited, "grace" if edited else None)
    assert RAN == []


async def test_resumed_twice_in_one_process_it_runs_once() -> None:
    state, question = await waiting()
    going_on = agent([delete], "done", "done")
    first = await going_on.resume(state, {question: Approve("grace")})
    second = await going_on.resume(state, {question: Approve("grace")})
    assert (told(first), told(second)) == ("deleted x", "deleted x")
    assert RAN == ["x"]


async def test_resumed_twice_at_once_it_runs_once() -> None:
    state, question = await waiting()
    going_on = agent([delete], "done", "done")
    answers = {question: Approve("grace")}
    both = await asyncio.gather(*(going_on.resume(state, answers) for _ in range(2)))
    assert sorted(map(told, both)) == ["deleted x", "duplicate_call"]
    assert RAN == ["x"]


async def test_waiting_again_does_not_put_off_when_a_question_lapses() -> None:
    state, _ = await waiting()
    again = await agent([delete]).resume(state)
    assert again.status == "waiting"
    assert again.pending == state.pending


async def test_a_question_lapses_whether_or_not_it_was_answered() -> None:
    state, question = await waiting()
    old = tuple(msgspec.structs.replace(r, expires_at=1.0) for r in state.pending)
    state = msgspec.structs.replace(state, pending=old)
    answers: list[dict[str, Answer]] = [{}, {question: Approve("grace")}]
    for given in answers:
        assert told(await agent([delete], "done").resume(state, given)) == "approval_expired"
    assert RAN == []


async def test_what_fails_before_a_waiting_call_is_decided_leaves_it_waiting() -> None:
    """No answer is used up by a failure that comes before it is used."""
    ran: list[int] = []

    @tool(visible=ALL, safe=False)
    async def pay(cents: int) -> int:
        """Pay."""
        ran.append(cents)
        return cents

    class Full:
        full = False

        def write(self, record: ToolInvocationRecord) -> None:
            """Nothing is kept."""

        def write_run(self, record: RunRecord) -> None:
            if self.full:
                raise SourceError("no room is left")

    sink = Full()
    runner = ToolRunner([pay], approver=answer_later, sinks=[sink])
    key = b"a key of thirty-two random bytes"
    agent = Agent(ScriptedClient([call("pay", cents=5), "Paid."]), runner, state_key=key)
    waits = await agent.run("Pay.")
    answers = {waits.pending[0].id: Approve("ada")}
    sink.full = True
    with pytest.raises(SourceError, match="no room") as raised:
        await agent.resume(waits.state, answers)
    state = RunState.from_json(raised.value.state.to_json())
    assert state.pending == waits.pending
    sink.full = False
    again = await agent.resume(state)
    assert (again.status, ran) == ("waiting", [])
    done = await agent.resume(again.state, answers)
    assert (done.status, ran) == ("completed", [5])


@dataclass
class Weather:
    degrees: int


ANSWERS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({}, "It is 3."),
    "typed": ({"output": Weather}, '{"degrees": 3}'),
    "typed, as a call": ({"output": Weather}, call("final_answer", answer={"degrees": 3})),
    "fenced": ({"output": list[int]}, "```json\n[1, 2]\n```"),
}


@each_row(("options", "turn"), ANSWERS.values(), ids=ANSWERS)
@each_row("key", [None, b"k" * 32])
async def test_a_run_that_has_completed_is_not_asked_again(
    options: dict[str, Any], turn: Any, key: bytes | None
) -> None:
    made = options | {"state_key": key}
    first = await Agent(ScriptedClient([call("delete", path="a"), turn]), [delete], **made).run("?")
    state = RunState.from_json(first.state.to_json())
    RAN.clear()
    again = await Agent(ScriptedClient([]), [delete], **made).resume(state)
    assert (again.status, again.text, again.output) == ("completed", first.text, first.output)
    assert (again.messages, again.usage, RAN) == (first.messages, first.usage, [])
    assert [record.id for record in again.records] == [record.id for record in first.records]
    once_more = await Agent(ScriptedClient([]), [delete], **made).resume(again.state)
    assert once_more.output == first.output


async def test_an_answer_that_is_of_another_type_by_now_goes_back_to_the_model() -> None:
    first = await Agent(ScriptedClient(["[1]"]), output=list[int]).run("?")
    later_agent = Agent(ScriptedClient(['["a"]']), output=list[str])
    result = await later_agent.resume(first.state)
    assert (result.output, result.messages[-2].role) == (["a"], "user")
    assert result.state.answer == '["a"]'


async def test_a_run_that_was_cut_or_forked_is_asked_on() -> None:
    """Neither has its answer yet."""
    limited = await Agent(
        ScriptedClient([call("delete", path="a")]), [delete], limits=Limits(turns=1)
    ).run("?")
    assert (limited.status, limited.state.answer) == ("limited", None)
    done = await Agent(ScriptedClient(["Over."]), [delete]).resume(limited.state)
    assert (done.text, done.state.answer) == ("Over.", "Over.")
    forking = Agent(ScriptedClient(["Once more."]), [delete])
    assert (await forking.resume(forking.fork(done.state, turn=1))).text == "Once more."
