"""What an agent that is a tool spends in a run that is no agent's: of somebody's own loop."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import msgspec
from agent.test_spending import COST, act, asks
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import sample

from toolcrib import Agent, Approve, Caller, RunState, ToolCall, ToolRunner
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.policies import budget
from toolcrib.runner import CallScope, Policy
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.context import RunTally
from toolcrib.values.message import ChatRequest, Reply, Usage
from toolcrib.values.record import Waiting, has_begun, state_of

Script: TypeAlias = list[list[str]]
SCRIPTS = st.lists(st.lists(st.sampled_from(["act", "asks"]), min_size=1, max_size=3), max_size=3)
LIMITS = st.one_of(
    st.fixed_dictionaries({"calls": st.integers(1, 8), "per": st.sampled_from(["run", "tool"])}),
    st.fixed_dictionaries({"cost": st.integers(1, 8).map(lambda n: n * COST)}),
    st.fixed_dictionaries({"tokens": st.integers(1, 60)}),
    st.fixed_dictionaries({"calls": st.integers(1, 4), "only": st.sampled_from(["act", "clerk"])}),
)
OWN: list[tuple[str, dict[str, Any]]] = [
    ("clerk", {"prompt": "go"}),
    ("act", {"steps": 0}),
    ("act", {"steps": 0}),
]
ADA = Caller("ada")


class Counted(ScriptedClient):
    """Its replies use tokens."""

    async def chat(self, request: ChatRequest) -> Reply:
        reply = await super().chat(request)
        return msgspec.structs.replace(reply, usage=Usage(input_tokens=7, output_tokens=3))


def runner(script: Script, policy: Policy, **options: Any) -> ToolRunner:
    """Return a runner whose agent's model says what comes next by the conversation."""
    turns = [[call(name, steps=0) for name in names] for names in script]

    def says(request: ChatRequest) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        return [*turns, "fin"][said]

    client = Counted([says] * 20)
    clerk = Agent(client, [act, asks]).as_tool("clerk", "Does it.", cost=COST)
    return ToolRunner([clerk, act], policy=policy, approver=answer_later, **options)


def saved(tally: RunTally) -> RunTally:
    """Return the tally of another process, which had its JSON."""
    return msgspec.json.decode(msgspec.json.encode(tally), type=RunTally)


async def own_loop(
    script: Script, policy: Policy, *, elsewhere: str, log: AuditLog
) -> tuple[list[str], RunTally]:
    """Make the calls one after the other; what waits goes on here, with a tally that was saved, or with
    one that knows nothing."""
    tally, ended = RunTally("run_1", "n" * 32), []
    made = runner(script, policy, sinks=[log])
    for at, (name, arguments) in enumerate(OWN):
        asked = ToolCall(f"call_{at}", name, json.dumps(arguments))
        outcome = await made.exec(asked, caller=ADA, scope=CallScope(tally))
        while isinstance(outcome, Waiting):
            assert outcome.suspended is not None
            if elsewhere:
                made = runner(script, policy, sinks=[log])
                tally = saved(tally) if elsewhere == "saved" else RunTally("run_1", "n" * 32)
            scope = CallScope(
                tally,
                {each.id: Approve("grace") for each in outcome.requests},
                suspended={asked.id: outcome.suspended},
            )
            outcome = await made.exec(asked, caller=ADA, scope=scope)
        ended.append(state_of(outcome.record))
        before = spent(tally)
        await made.exec(asked, caller=ADA, scope=CallScope(tally))  # its outcome is only given
        assert spent(tally) == before
    return ended, tally


async def agents_own(script: Script, policy: Policy) -> tuple[list[str], RunTally]:
    """Have an agent make the same calls."""
    replies: list[Any] = [*([call(name, **arguments)] for name, arguments in OWN), "bye"]
    outer = Agent(ScriptedClient(replies), runner(script, policy))
    result = await outer.run("go", caller=ADA)
    while result.status == "waiting":
        yes: Any = {each.id: Approve("grace") for each in result.pending}
        result = await outer.resume(RunState.from_json(result.state.to_json()), yes)
    return [state_of(record) for record in result.records], result.state.tally


def spent(tally: RunTally) -> Any:
    inner = tally.inner
    return (
        *(tally.calls, round(tally.cost, 6), tally.tokens, tally.per_tool),
        *(inner.turns, inner.calls, round(inner.cost, 6), inner.per_tool),
    )


@settings(max_examples=sample(200), deadline=None)
@example(script=[["act", "act"]], limits={"calls": 3, "per": "run"}, elsewhere="")
@example(script=[["act"], ["asks"], ["act"]], limits={"tokens": 20}, elsewhere="anew")
@example(script=[["act"], ["asks"]], limits={"calls": 3, "per": "run"}, elsewhere="saved")
@given(script=SCRIPTS, limits=LIMITS, elsewhere=st.sampled_from(["", "saved", "anew"]))
async def test_an_agent_within_a_run_of_ones_own_spends_what_that_has(
    script: Script, limits: dict[str, Any], elsewhere: str
) -> None:
    """As in the run of an agent: the same calls end in the same way, and the tally has the same, also
    after an outcome was given again, and where another process goes on."""
    async with AuditLog("sqlite://") as log:
        ended, tally = await own_loop(script, budget(**limits), elsewhere=elsewhere, log=log)
        expected, agents = await agents_own(script, budget(**limits))
        assert ended == expected
        assert spent(tally) == spent(agents)
        records = [entry.record for entry in await log.entries()]
    begun = {(r.run_id, r.id) for r in records if has_begun(r) and r.status != "started"}
    assert tally.calls == len(begun)


async def test_who_is_only_given_an_outcome_has_what_was_spent_within() -> None:
    """Once, in a tally that lacks it, however often it is given."""
    async with AuditLog("sqlite://") as log:
        asked = ToolCall("call_0", "clerk", '{"prompt": "go"}')
        policy = budget(calls=3)
        first = RunTally("run_1", "n" * 32)
        await runner([["act", "act"]], policy, sinks=[log]).exec(asked, scope=CallScope(first))
        other = RunTally("run_1", "n" * 32)
        for _ in range(3):
            made = runner([["act", "act"]], policy, sinks=[log])
            outcome = await made.exec(asked, scope=CallScope(other))
            assert outcome.record.status == "completed"
            assert spent(other) == spent(first)
            refused = await made.exec(ToolCall("c", "act", '{"steps": 0}'), scope=CallScope(other))
            assert state_of(refused.record) == "failed (budget_exceeded)"


async def test_a_call_of_no_run_is_one_with_budgets_of_its_own() -> None:
    made = runner([["act"] * 3], budget(calls=3))
    outcome = await made.exec(ToolCall("call_0", "clerk", '{"prompt": "go"}'))
    assert "the limit on budget is reached" in outcome.record.error.message  # type: ignore[union-attr]
