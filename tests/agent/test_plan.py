"""A plan: what a model would do, decided, with nothing run, nobody asked and nothing spent."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Allow,
    Approve,
    Ask,
    Caller,
    Catalog,
    ContextOptions,
    Deny,
    Limits,
    PickOptions,
    ToolRunner,
    capability,
    per_call,
    tool,
)
from toolcrib.audit import AuditFilter, AuditLog
from toolcrib.errors import ConnectionFailed, PromptTooLargeError
from toolcrib.policies import budget, rate_limit, require_roles
from toolcrib.testing import ScriptedClient, call, raw_call
from toolcrib.values.message import ChatRequest

TOUCHED: list[Any] = []


@capability
class Till(Protocol):
    async def pay(self, amount: int) -> None: ...


def opened(_context: Any) -> Any:
    TOUCHED.append("till")
    raise AssertionError


@tool(visible=ALL, cost=2.0)
async def pay(amount: int, till: Till) -> str:
    """Pay."""
    TOUCHED.append(amount)
    return "paid"


@tool(visible=ALL, safe=False)
async def wipe(disk: str = "a") -> str:
    """Wipe a disk."""
    TOUCHED.append(disk)
    return "wiped"


async def approver(_request: Any) -> Approve:
    TOUCHED.append("asked")
    return Approve("grace")


@pytest.fixture(autouse=True)
def _untouched() -> Any:
    TOUCHED.clear()
    yield
    assert TOUCHED == []


def agent(*said: Any, runner: dict[str, Any] | None = None, **options: Any) -> Agent:
    catalog = Catalog([pay, wipe]).bind({Till: per_call(opened)})
    made = ToolRunner(catalog, approver=approver, **(runner or {}))
    return Agent(ScriptedClient([list(said)]), made, **options)


async def test_calls_are_hydrated_and_decided_and_none_runs() -> None:
    log = AuditLog("sqlite://")
    said = [call("pay", amount=1), call("wipe"), raw_call("pay", '{"amount": '), call("gone")]
    plan = await agent(*said, runner={"sinks": [log]}).plan("Go.", caller=Caller("ada"))
    assert [each.name for each in plan.calls] == ["pay", "wipe", "pay", "gone"]
    assert [type(each.decision) for each in plan.calls] == [Allow, Ask, type(None), type(None)]
    assert [each.arguments for each in plan.calls] == [{"amount": 1}, {"disk": "a"}, None, None]
    codes = [str(error.code) for each in plan.calls for error in each.call.errors]
    assert codes == ["invalid_json", "unknown_tool"]
    assert (plan.usage.requests, plan.limit) == (1, None)
    entries = await log.entries(AuditFilter())
    told = {(e.record.status, e.record.caller, e.record.idempotency_key) for e in entries}
    assert told == {("planned", "ada", ""), ("rejected", "ada", "")}
    assert len(entries) == 4
    await log.aclose()


async def test_policies_that_look_something_up_are_asked() -> None:
    async def is_open(hydrated: Any, _context: Any) -> Any:
        return Deny("closed") if hydrated.definition.name == "pay" else Allow()

    said = [call("pay", amount=1), call("wipe")]
    planned = (await agent(*said, runner={"policy": [is_open]}).plan("Go.")).calls
    assert [type(each.decision) for each in planned] == [Deny, Ask]


async def test_each_is_decided_as_if_those_before_it_had_been_made_and_nothing_is_spent() -> None:
    policies = [budget(calls=1, only=["pay"]), rate_limit("1/hour", only="wipe")]
    planner = agent(call("pay", amount=1), call("pay", amount=2), runner={"policy": policies})
    kinds = [type(each.decision) for each in (await planner.plan("Go.")).calls]
    assert kinds == [Allow, Deny]
    for _ in range(2):  # a rate limit is not used up by plans
        again = planner.replace(model=ScriptedClient([call("wipe")]))
        [planned] = (await again.plan("Go.")).calls
        assert isinstance(planned.decision, Ask)


async def test_what_policies_count_by_themselves_is_as_it_is_now() -> None:
    paid = [call("pay", amount=each) for each in range(3)]
    for policy in (rate_limit("2/minute"), budget(calls=2, per="caller")):
        plan = await agent(*paid, runner={"policy": policy}).plan("Go.")
        assert [type(each.decision) for each in plan.calls] == [Allow] * 3


async def test_the_second_handover_of_a_reply_is_refused_and_limits_hold() -> None:
    heirs = [Agent(ScriptedClient([]), name=name) for name in ("ada", "bob")]
    both = [call(f"hand_over_to_{each.name}", reason="Theirs.") for each in heirs]
    plan = await agent(*both, name="front", handovers=heirs).plan("Go.")
    first, second = plan.calls
    assert (type(first.decision), second.decision, plan.limit) == (Allow, None, None)
    assert "second handover" in second.call.errors[0].message
    none = await agent(*both, name="front", handovers=heirs, limits=Limits(handovers=0)).plan("Go.")
    assert none.limit == "handovers"


async def test_roles_limits_and_settings_are_those_of_a_run() -> None:
    said = [call("pay", amount=1), call("pay", amount=2)]
    poor = await agent(*said, limits=Limits(calls=1)).plan("Go.")
    assert (poor.limit, len(poor.calls)) == ("calls", 2)
    assert (await agent(*said, limits=Limits(tool_cost=3.0)).plan("Go.")).limit == "tool_cost"
    strict = agent(*said, runner={"policy": require_roles("clerk")})
    assert all(isinstance(each.decision, Deny) for each in (await strict.plan("Go.")).calls)
    chosen = await agent(*said).plan("Go.", tool_choice="none")
    assert [str(each.call.errors[0].code) for each in chosen.calls] == ["not_offered"] * 2


async def test_a_plan_is_no_step_and_picks_like_a_run() -> None:
    class Steps:
        async def run(self, *_: Any) -> Any:
            raise AssertionError

    pick = PickOptions(max_candidates=1, scorer="keyword")
    planner = agent(call("pay", amount=1), durability=Steps(), pick=pick)
    plan = await planner.plan("Wipe a disk.")
    assert str(plan.calls[0].call.errors[0].code) == "not_offered"


async def test_an_answer_is_a_plan_without_calls_and_a_client_may_fail() -> None:
    plan = await agent("Nothing to do.").plan("Go.")
    assert (plan.text, plan.calls, plan.finish) == ("Nothing to do.", (), "stop")
    assert "Nothing" not in repr(plan)
    failing = agent().replace(model=ScriptedClient([ConnectionFailed("down")]))
    with pytest.raises(ConnectionFailed):
        await failing.plan("Go.")


# A plan asks the model as a run does.


@tool(visible=ALL, read_only=True, untrusted_output=True)
async def fetch() -> str:
    """Fetch a page."""
    return "a page"


@each_row("how", ["run", "plan"])
async def test_a_plan_of_untrusted_content_taints_the_run_that_it_is_made_in(how: str) -> None:
    first = Agent(ScriptedClient([call("fetch"), "It is read."]), [fetch])
    history = (await first.run("Read.")).messages
    inner = Agent(ScriptedClient(["Pay the other one."]), [fetch])

    @tool(visible=ALL, read_only=True)
    async def think() -> str:
        """Think of what to do next."""
        thought: Any = await getattr(inner, how)("What next?", history=history)
        return str(thought.text)

    outer = Agent(ScriptedClient([call("think"), "Done."]), [think])
    assert (await outer.run("Go.")).state.tally.tainted


@each_row("how", ["run", "plan"])
async def test_a_plan_keeps_its_request_within_the_context(how: str) -> None:
    model = ScriptedClient(["Well.", "Well."])
    small = Agent(model, [fetch], context=ContextOptions(tokens=8_000))
    first = Agent(ScriptedClient([call("long"), "It is read."]), [long])
    history = (await first.run("Read.")).messages
    await getattr(small, how)("And?", history=history)
    assert sum(len(message.content) for message in model.requests[0].messages) < 32_000
    with pytest.raises(PromptTooLargeError):
        await getattr(small, how)("y" * 100_000)
    assert len(model.requests) == 1


@tool(visible=ALL, read_only=True)
async def long() -> str:
    """Read a long page."""
    return "x" * 400_000


async def test_a_plan_names_the_time_limit_and_who_speaks_first() -> None:
    late = agent(call("pay", amount=1), limits=Limits(seconds=-1))
    assert (await late.plan("Go.")).limit == "seconds"

    class Slow(ScriptedClient):
        async def chat(self, request: ChatRequest) -> Any:
            await asyncio.sleep(0.05)
            return await super().chat(request)

    slow = agent(limits=Limits(seconds=0.02)).replace(model=Slow([call("pay", amount=1)]))
    plan = await slow.plan("Go.")
    assert (plan.limit, [each.name for each in plan.calls]) == ("seconds", ["pay"])
    second = Agent(ScriptedClient(["I am the second."]), [], name="second")
    team = Agent(ScriptedClient(["I am the first."]), [], name="first", handovers=[second])
    assert (await team.plan("Go.", speaker="second")).text == "I am the second."
