"""Rules: a yes that is for always, to calls that fit it and to no others."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from children import Talking
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib import (
    ALL,
    Agent,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    Caller,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    Refuse,
    RunState,
    Tool,
    ToolCall,
    ToolInvocationRecord,
    ToolRunner,
    Waiting,
    tool,
)
from toolcrib.approvals import ApprovalStore, answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import ApprovalError, ToolcribError
from toolcrib.hydration import Sanitizer
from toolcrib.runner import CallScope
from toolcrib.storage import as_column
from toolcrib.testing import MemorySink, ScriptedClient, ToolEmulator, call
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Always, Answer, Decision, LimitedApprove
from toolcrib.values.json import JsonObject, canonical_json
from toolcrib.values.record import ALWAYS, FOR_RUN, FOR_RUN_EXACTLY, Outcome

KEY, OTHER = b"k" * 32, b"o" * 32
ADA = Caller("ada")
ran: list[JsonObject] = []


def refund_tool(description: str = "Refund an order.") -> Tool[..., Any]:
    @tool(visible=ALL, safe=False, secret=["pin"], name="refund", description=description)
    async def refund(order: int, cents: int = 5, note: Any = None, pin: str = "") -> str:
        ran.append({"order": order, "cents": cents, "note": note, "pin": pin})
        return f"refunded {cents}"

    return refund


REFUND = refund_tool()


def call_of(id_: str, **arguments: Any) -> ToolCall:
    return ToolCall(id_, "refund", json.dumps(arguments))


@pytest.fixture
def url(tmp_path: Path) -> str:
    ran.clear()
    return f"sqlite:///{tmp_path / 'crib.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[ApprovalStore]:
    async with ApprovalStore(url, state_key=KEY) as opened:
        yield opened


async def given_rule(
    store: ApprovalStore,
    runner: ToolRunner,
    call: ToolCall,
    answer: Answer,
    *,
    caller: Caller = ADA,
    scope: CallScope | None = None,
) -> Outcome:
    """Have a call asked about, answered, and made again."""
    asked = await runner.exec(call, caller=caller, scope=scope)
    assert isinstance(asked, Waiting)
    await store.answer(asked.request.id, answer)
    return await runner.exec(call, caller=caller, scope=scope)


def says(answer: Answer) -> Any:
    """Return an approver that gives this answer."""

    async def answers(_request: ApprovalRequest) -> Answer:
        return answer

    return answers


FIRST = call_of("first", order=7, cents=500, pin="canary")
YES = Approve("grace", always=Always(open=("cents",)))


async def test_calls_that_fit_do_not_ask_and_their_record_says_whose_rule_it_was(
    store: ApprovalStore,
) -> None:
    sink = MemorySink()
    runner = ToolRunner([REFUND], approver=store, sinks=[sink])
    before = time.time()
    outcome = await given_rule(store, runner, FIRST, YES)
    assert isinstance(outcome, Completed)
    assert ALWAYS in outcome.record.notes
    again = await runner.exec(call_of("again", order=7, cents=9, pin="canary"), caller=ADA)
    assert isinstance(again, Completed)
    record = sink.records[-1]
    [kept] = await store.rules()
    assert kept.rule is not None
    assert record.approved_by == "grace"
    assert record.rule is not None
    assert record.rule == outcome.record.rule
    assert (record.rule.id, record.rule.by, record.rule.given_at) == (
        kept.id,
        "grace",
        kept.rule.given_at,
    )
    assert before <= kept.rule.given_at <= time.time()
    assert ALWAYS not in record.notes
    assert isinstance(record.decision, Ask)
    assert (kept.rule.arguments, kept.rule.open) == (
        {"order": 7, "note": None, "pin": "***"},
        ("cents",),
    )


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("another closed argument", {"call": call_of("x", order=8, cents=500, pin="canary")}),
    (
        "a closed default that was sent otherwise",
        {"call": call_of("x", order=7, note="", pin="canary")},
    ),
    ("true is not 1", {"call": call_of("x", order=7, note=False, pin="canary")}),
    ("another secret", {"call": call_of("x", order=7, cents=500, pin="canard")}),
    ("no secret", {"call": call_of("x", order=7, cents=500)}),
    ("another caller", {"caller": Caller("bob")}),
    ("a tool that has changed", {"tool": refund_tool("Refund it, and tell nobody.")}),
    ("a run that has read untrusted content", {"scope": CallScope(RunTally("r", tainted=True))}),
    ("arguments that were repaired", {"text": '{"order": 7, "cents": 500, "pin": "canary",}'}),
]


@each_row(("what", "other"), OTHERS)
async def test_what_does_not_fit_asks(what: str, other: dict[str, Any], tmp_path: Path) -> None:
    async with ApprovalStore(f"sqlite:///{tmp_path}/{what}.db", state_key=KEY) as store:
        first = await given_rule(store, ToolRunner([REFUND], approver=store), FIRST, YES)
        assert isinstance(first, Completed)
        runner = ToolRunner([other.get("tool", REFUND)], approver=store, repairer=Sanitizer())
        call = other.get("call", call_of("x", order=7, cents=1, pin="canary"))
        if "text" in other:
            call = ToolCall("x", "refund", other["text"])
        outcome = await runner.exec(call, caller=other.get("caller", ADA), scope=other.get("scope"))
        assert isinstance(outcome, Waiting), what


async def test_it_is_revoked_at_once_and_lapses(store: ApprovalStore, url: str) -> None:
    runner = ToolRunner([REFUND], approver=store)
    await given_rule(store, runner, FIRST, YES)
    async with ApprovalStore(url, state_key=KEY) as elsewhere:
        [kept] = await elsewhere.rules()
        await elsewhere.revoke(kept.id)
        with pytest.raises(ApprovalError, match="there is no rule"):
            await elsewhere.revoke(kept.id)
    assert isinstance(await runner.exec(call_of("x", order=7, pin="canary"), caller=ADA), Waiting)
    short = Approve("grace", always=Always(open=("cents",), seconds=0.01))
    second = call_of("second", order=9, cents=500)
    assert isinstance(await given_rule(store, runner, second, short), Completed)
    await asyncio.sleep(0.02)
    assert isinstance(await runner.exec(call_of("y", order=9), caller=ADA), Waiting)


async def test_rules_are_listed_and_revoked_by_whom_they_are_for(store: ApprovalStore) -> None:
    """Also where the database holds two names as one: a name that it cuts, and the name cut."""
    long = "a" * 10_000
    callers = [ADA, Caller("bob"), Caller(long), Caller(as_column(long))]
    runner = ToolRunner([REFUND], approver=store)
    for at, caller in enumerate(callers):
        await given_rule(store, runner, call_of(f"call_{at}", order=7), YES, caller=caller)
    assert len(await store.rules()) == len(callers)
    for caller in callers:
        [kept] = await store.rules(caller=caller.id)
        assert kept.rule is not None
        assert kept.rule.caller == caller.id
        for other in callers:
            if other != caller:
                with pytest.raises(ApprovalError, match="there is no rule"):
                    await store.revoke(kept.id, caller=other.id)
        await store.revoke(kept.id, caller=caller.id)
        assert await store.rules(caller=caller.id) == []
    assert await store.rules(caller="") == []


async def test_who_was_asked_before_is_to_answer(store: ApprovalStore) -> None:
    """A no stays a no, and a question a question, whatever rule is given later."""
    runner = ToolRunner([REFUND], approver=store)
    refused = call_of("refused", order=7, cents=1, pin="canary")
    outcome = await given_rule(store, runner, refused, Refuse("no", by="grace"))
    assert isinstance(outcome, Failed)
    waits = call_of("waits", order=7, cents=2, pin="canary")
    assert isinstance(await runner.exec(waits, caller=ADA), Waiting)
    assert isinstance(await given_rule(store, runner, FIRST, YES), Completed)
    again = await ToolRunner([REFUND], approver=store).exec(refused, caller=ADA)
    assert isinstance(again, Failed)
    assert again.error.code is ErrorCode.APPROVAL_REFUSED
    assert isinstance(await runner.exec(waits, caller=ADA), Waiting)


async def test_it_speaks_for_edited_arguments_as_they_run(store: ApprovalStore) -> None:
    runner = ToolRunner([REFUND], approver=store)
    edit = Approve("grace", {"order": 1, "note": "ok", "pin": "***"}, always=Always())
    assert isinstance(await given_rule(store, runner, FIRST, edit), Completed)
    assert ran == [{"order": 1, "cents": 5, "note": "ok", "pin": "canary"}]
    same = call_of("same", order=1, cents=5, note="ok", pin="canary")
    assert isinstance(await runner.exec(same, caller=ADA), Completed)
    asked = call_of("asked", order=7, cents=500, pin="canary")
    assert isinstance(await runner.exec(asked, caller=ADA), Waiting)


def only_cheap(call: Hydrated, _context: PolicyContext) -> Allow | Ask | Deny:
    cents: Any = call.arguments["cents"]
    return Allow() if cents < 100 else Ask("it is much") if cents < 1_000 else Deny("too much")


async def test_it_answers_for_no_policy_that_did_not_ask_then(store: ApprovalStore) -> None:
    runner = ToolRunner([REFUND], approver=store, policy=only_cheap)
    first = call_of("first", order=7, cents=5)
    assert isinstance(await given_rule(store, runner, first, YES), Completed)
    for cents, kind in ((6, Completed), (500, Waiting), (5_000, Failed)):
        outcome = await runner.exec(call_of(f"c{cents}", order=7, cents=cents), caller=ADA)
        assert isinstance(outcome, kind), cents


@each_row(
    ("always", "told"),
    [
        (Always(open=("pin",)), "'pin' is secret and cannot be left open"),
        (Always(open=("cent",)), "the call has no argument 'cent'"),
    ],
)
async def test_what_cannot_be_open(always: Always, told: str, tmp_path: Path) -> None:
    async with ApprovalStore(f"sqlite:///{tmp_path}/{always.open[0]}.db", state_key=KEY) as store:
        asked = await ToolRunner([REFUND], approver=store).exec(FIRST, caller=ADA)
        assert isinstance(asked, Waiting)
        with pytest.raises(ApprovalError, match=told):
            await store.answer(asked.request.id, Approve("grace", always=always))

        async def desk(_request: ApprovalRequest) -> Approve:
            return Approve("grace", always=always)

        ran.clear()
        runner = ToolRunner([REFUND], approver=desk, rules=store)
        outcome = await runner.exec(call_of("c", order=7, pin="canary"), caller=ADA)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.APPROVAL_FAILED
        assert told in outcome.error.message
        assert (ran, await store.rules()) == ([], [])


async def test_without_a_key_there_are_no_rules_and_that_is_said(url: str) -> None:
    with pytest.raises(ToolcribError, match="state_key must be at least 16 random bytes"):
        ApprovalStore(url, state_key=b"short")
    async with ApprovalStore(url) as store:
        with pytest.raises(ToolcribError, match="rules= must be a store that signs"):
            ToolRunner([REFUND], rules=store)
        asked = await ToolRunner([REFUND], approver=store).exec(FIRST, caller=ADA)
        assert isinstance(asked, Waiting)
        assert not asked.request.always
        for method in (store.answer(asked.request.id, YES), store.rules()):
            with pytest.raises(ApprovalError, match="this store keeps no rules"):
                await method

    async def desk(_request: ApprovalRequest) -> Answer:
        return YES

    outcome = await ToolRunner([REFUND], approver=desk).exec(FIRST, caller=ADA)
    assert isinstance(outcome, Failed)
    assert "no rule can be given for this call" in outcome.error.message


async def test_who_keeps_the_questions_keeps_the_rules(
    store: ApprovalStore, tmp_path: Path
) -> None:
    """Another store would not know of a no that stands in the first one."""
    async with ApprovalStore(f"sqlite:///{tmp_path}/other.db") as other:
        with pytest.raises(
            ToolcribError, match="the approver is a store, and keeps the rules: give it"
        ):
            ToolRunner([REFUND], approver=other, rules=store)
        runner = ToolRunner([REFUND], rules=store).with_approver(other)
        asked = await runner.exec(FIRST, caller=ADA)
        assert isinstance(asked, Waiting)
        assert not asked.request.always


async def test_who_may_approve_some_questions_gives_no_rule(store: ApprovalStore) -> None:
    async def desk(_request: ApprovalRequest) -> Answer:
        return LimitedApprove("grace", always=Always(), may=lambda _: True)

    runner = ToolRunner([REFUND], approver=desk, rules=store)
    outcome = await runner.exec(FIRST, caller=ADA)
    assert isinstance(outcome, Failed)
    assert (ran, await store.rules()) == ([], [])


def edited(url: str, change: str, *values: object) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute(change, values).rowcount
        connection.commit()


WIDENED: list[tuple[str, dict[str, Any]]] = [
    ("open", {"open": ["cents", "order"], "closed": '{"note":null,"pin":"***"}'}),
    ("closed", {"closed": '{"note":null,"order":8,"pin":"***"}'}),
    ("lapses", {"expires_at": None}),
    ("caller", {"caller": "bob"}),
    ("by", {"by": "root"}),
    ("given", {"given_at": 1.0}),
    ("policies", {"asked_by": ["standard", "only_cheap"]}),
    ("taint", {"untrusted": True}),
    ("secret", {"secrets_mac": ""}),
]


@each_row(("what", "fields"), WIDENED)
async def test_a_rule_that_was_widened_in_the_store_lets_nothing_run(
    what: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/{what}.db"
    caller = Caller(fields.get("caller", "ada"))
    async with ApprovalStore(url, state_key=KEY) as store:
        runner = ToolRunner([REFUND], approver=store)
        yes = Approve("grace", always=Always(("cents",), 3_600))
        assert isinstance(await given_rule(store, runner, FIRST, yes), Completed)
        [kept] = await store.rules()
        content = json.loads(msgspec.json.encode(kept.rule))
        content |= fields
        edited(url, "UPDATE approval_rules SET content = ?", json.dumps(content))
        edited(url, "UPDATE approval_rules SET caller = ?", caller.id)
        ran.clear()
        order = 8 if what in ("open", "closed") else 7
        outcome = await runner.exec(call_of("x", order=order, pin="canary"), caller=caller)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.INVALID_RULE
        assert ran == []
        assert [each.rule for each in await store.rules()] == [None]
        await store.revoke(kept.id)
        asked = await runner.exec(call_of("y", order=7, pin="canary"), caller=caller)
        assert isinstance(asked, Waiting)


async def test_an_answer_is_made_no_rule_by_editing_the_store(
    store: ApprovalStore, url: str
) -> None:
    runner = ToolRunner([REFUND], approver=store)
    asked = await runner.exec(FIRST, caller=ADA)
    assert isinstance(asked, Waiting)
    await store.answer(asked.request.id, Approve("grace"))
    text = msgspec.json.encode(YES).decode()
    edited(url, "UPDATE approvals SET answer = ?", text)
    outcome = await runner.exec(FIRST, caller=ADA)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_RULE
    assert (ran, await store.rules()) == ([], [])


async def test_a_rule_of_another_key_is_none(store: ApprovalStore, url: str) -> None:
    await given_rule(store, ToolRunner([REFUND], approver=store), FIRST, YES)
    async with ApprovalStore(url, state_key=OTHER) as other:
        assert [kept.rule for kept in await other.rules()] == [None]
        runner = ToolRunner([REFUND], approver=other)
        outcome = await runner.exec(call_of("x", order=7, pin="canary"), caller=ADA)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_RULE


def all_bytes(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


async def test_no_secret_stands_in_the_store(store: ApprovalStore, tmp_path: Path) -> None:
    await given_rule(store, ToolRunner([REFUND], approver=store), FIRST, YES)
    await store.aclose()
    written = all_bytes(tmp_path)
    assert b"refund" in written
    assert b"canary" not in written


async def test_while_rules_cannot_be_read_somebody_is_asked(tmp_path: Path) -> None:
    async def desk(_request: ApprovalRequest) -> Answer:
        return Approve("grace")

    async with ApprovalStore(f"sqlite:///{tmp_path}/none/crib.db", state_key=KEY) as away:
        runner = ToolRunner([REFUND], approver=desk, rules=away)
        outcome = await runner.exec(FIRST, caller=ADA)
    assert isinstance(outcome, Completed)
    assert outcome.record.rule is None


NAMES = ("order", "cents", "note")
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "cents": st.integers(0, 2),
        "note": st.sampled_from([None, True, 1, 1.5, "1", [1], {"default": "int"}, {}]),
    },
).flatmap(lambda rest: st.integers(0, 1).map(lambda order: {"order": order, **rest}))


@given(VALUES, st.lists(VALUES, max_size=4), st.sets(st.sampled_from(NAMES)))
@settings(
    max_examples=sample(40, part=5), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_a_pattern_fits_exactly_what_it_shows(
    first: JsonObject, others: list[JsonObject], opened: set[str]
) -> None:
    full = {"order": None, "cents": 5, "note": None, "pin": ""}

    async def check() -> None:
        async with ApprovalStore("sqlite://", state_key=KEY) as store:
            runner = ToolRunner([REFUND], approver=store)
            yes = Approve("grace", always=Always(tuple(opened)))
            outcome = await given_rule(store, runner, call_of("first", **first), yes)
            assert isinstance(outcome, Completed)
            [kept] = await store.rules()
            assert kept.rule is not None
            for at, other in enumerate(others):
                told = await runner.exec(call_of(f"c{at}", **other), caller=ADA)
                sent = full | other
                closed = {name: value for name, value in sent.items() if name not in opened}
                closed["pin"] = "***"
                shown = canonical_json(closed) == canonical_json(kept.rule.arguments)
                assert isinstance(told, Completed) is shown

    asyncio.run(check())


def allows(*_: Any) -> Allow:
    return Allow()


def asks(*_: Any) -> Ask:
    return Ask("why not", "curious")


def denies_odd(call: Hydrated, _context: PolicyContext) -> Allow | Deny:
    cents: Any = call.arguments["cents"]
    return Deny("odd") if cents % 2 else Allow()


def denies(*_: Any) -> Deny:
    return Deny("never")


async def denies_late(call: Hydrated, _context: PolicyContext) -> Allow | Deny:
    await asyncio.sleep(0)
    return Deny("2") if call.arguments["cents"] == 2 else Allow()


@given(
    st.lists(
        st.sampled_from([allows, asks, denies_odd, denies, denies_late]), max_size=3, unique=True
    ),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
@settings(
    max_examples=sample(40, part=5), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_no_rule_lets_run_what_a_policy_denies(policies: list[Any], cents: list[int]) -> None:
    async def check() -> None:
        async with ApprovalStore("sqlite://", state_key=KEY) as store:
            lax = ToolRunner([REFUND], approver=store, policy=asks)
            yes = Approve("grace", always=Always(("cents", "note")))
            assert isinstance(
                await given_rule(store, lax, call_of("first", order=7), yes), Completed
            )
            runner = ToolRunner([REFUND], approver=store, policy=policies)
            for at, given in enumerate(cents):
                call = call_of(f"c{at}", order=7, cents=given)
                outcome = await runner.exec(call, caller=ADA)
                denied = (
                    denies in policies
                    or (denies_odd in policies and given % 2)
                    or (denies_late in policies and given == 2)
                )
                assert isinstance(outcome, Failed if denied else Completed)

    asyncio.run(check())


CHILD = """
import asyncio, json, sys
from approvals.test_always import ADA, KEY, REFUND, call_of
from toolcrib import ToolRunner
from toolcrib.approvals import ApprovalStore, answer_later
from toolcrib.audit import AuditLog

async def main(url):
    async with ApprovalStore(url, state_key=KEY) as store:
        runner = ToolRunner([REFUND], approver=store)
        for line in sys.stdin:
            outcome = await runner.exec(call_of(line.strip(), order=7, pin="canary"), caller=ADA)
            print(type(outcome).__name__, flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_two_processes_have_the_same_rules(store: ApprovalStore, url: str) -> None:
    with Talking("-c", CHILD, url) as child:

        async def told(name: str) -> str:
            print(name, file=child.stdin, flush=True)
            return (await asyncio.to_thread(child.stdout.readline)).strip()

        assert await told("a") == "Waiting"
        await given_rule(store, ToolRunner([REFUND], approver=store), FIRST, YES)
        assert await told("b") == "Completed"
        [kept] = await store.rules()
        await store.revoke(kept.id)
        assert await told("c") == "Waiting"
        assert await asyncio.to_thread(child.ended) == ""


async def test_an_answer_that_a_saved_run_is_resumed_with_may_be_a_rule(
    store: ApprovalStore,
) -> None:
    """In an agent's run, also of an agent that is a tool: its rule is for calls within it alone."""
    replies: list[Any] = [call("refund", order=7, cents=cents) for cents in (5, 6)]
    runner = ToolRunner([REFUND], rules=store, approver=answer_later)
    waiting = await Agent(ScriptedClient(replies[:1]), runner).run("Refund.", caller=ADA)
    [question] = waiting.pending
    answers = {question.id: Approve("grace", always=Always(("cents",)))}
    agent = Agent(ScriptedClient([*replies[1:], "Done."]), runner)
    result = await agent.resume(waiting.state, answers)
    assert result.status == "completed"
    assert [each["cents"] for each in ran] == [5, 6]
    clerk = Agent(ScriptedClient([call("refund", order=7, cents=7)]), runner, name="clerk")
    model = ScriptedClient([call("clerk", prompt="Refund.")])
    around = ToolRunner([clerk.as_tool("clerk", "Refunds.")], rules=store, approver=answer_later)
    within = await Agent(model, around).run("Refund.", caller=ADA)
    assert within.status == "waiting"
    assert within.pending[0].always


class Above:
    """Asks about more than so much."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, call: Hydrated, _context: PolicyContext) -> Allow | Ask:
        cents: Any = call.arguments.get("cents", 0)
        return Ask(f"more than {self.most}") if cents > self.most else Allow()


def above(most: int) -> Any:
    return lambda call, _: Ask(f"more than {most}") if call.arguments["cents"] > most else Allow()


def more_than(call: Hydrated, _context: PolicyContext, most: int) -> Allow | Ask:
    return Above(most)(call, _context)


@each_row(
    ("policies", "offered"),
    [
        ([Above(100), Above(1_000)], False),
        ([above(100), above(1_000)], False),
        ([partial(more_than, most=100), partial(more_than, most=1_000)], False),
        ([Above(100), above(1_000), above(2_000)], True),  # those of one name did not ask
    ],
)
async def test_of_two_policies_of_one_name_none_is_answered_by_a_rule(
    policies: list[Any], offered: bool, tmp_path: Path
) -> None:
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:
        runner = ToolRunner([REFUND], approver=store, policy=policies)
        asked = await runner.exec(FIRST, caller=ADA)
        assert isinstance(asked, Waiting)
        assert asked.request.always is offered
        one = ToolRunner([REFUND], approver=store, policy=policies[0])
        first = call_of("one", order=7, cents=500, pin="canary")
        assert isinstance(await given_rule(store, one, first, YES), Completed)
        large = call_of("large", order=7, cents=5_000, pin="canary")
        assert isinstance(await runner.exec(large, caller=ADA), Waiting)


@tool(visible=ALL, untrusted_output=True, read_only=True)
async def fetch() -> str:
    """Read what others wrote."""
    return "x"


@each_row(("resumed",), [(False,), (True,)])
async def test_a_rule_is_for_what_was_asked_when_it_was_asked(
    resumed: bool, tmp_path: Path
) -> None:
    """Not for what has come by the time at which the answer is used: that call has its yes, no more."""
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:
        approver: Any = answer_later if resumed else store
        rules = store if resumed else None

        def runner(*policies: Any) -> ToolRunner:
            return ToolRunner([REFUND, fetch], approver=approver, rules=rules, policy=policies)

        replies: list[Any] = [[call("refund", order=7, cents=500), call("fetch")], "Done."]
        waiting = await Agent(ScriptedClient(replies[:1]), runner()).run("Refund.", caller=ADA)
        [question] = waiting.pending
        if not resumed:
            await store.answer(question.id, YES)
        agent = Agent(ScriptedClient(replies[1:]), runner(Above(100)))
        state = RunState.from_json(waiting.state.to_json())
        done = await agent.resume(state, {question.id: YES} if resumed else {})
        assert done.status == "completed"
        [kept] = await store.rules()
        assert kept.rule is not None
        assert (kept.rule.asked_by, kept.rule.untrusted) == (("standard",), False)
        replies = [[call("fetch")], [call("refund", order=7, cents=6)]]
        later = await Agent(ScriptedClient(replies), runner()).run("Refund.", caller=ADA)
        assert later.status == "waiting"
        large = call_of("large", order=7, cents=500)
        assert isinstance(await runner(Above(100)).exec(large, caller=ADA), Waiting)
        assert isinstance(await runner().exec(large, caller=ADA, scope=other()), Completed)


def other() -> CallScope:
    return CallScope(RunTally("other"))


async def test_a_rule_lasts_from_when_it_was_given(store: ApprovalStore, url: str) -> None:
    """Not from when the call goes on; one that has lapsed by then is none, and the call has its yes."""
    runner = ToolRunner([REFUND], approver=store)
    for seconds, kept in ((0.01, 0), (60.0, 1)):
        waits = call_of(f"c{seconds}", order=7, cents=500)
        asked = await runner.exec(waits, caller=ADA)
        assert isinstance(asked, Waiting)
        before = time.time()
        yes = Approve("grace", always=Always(("cents",), seconds))
        await store.answer(asked.request.id, yes)
        answered = time.time()
        await asyncio.sleep(0.05)
        outcome = await runner.exec(waits, caller=ADA)
        assert isinstance(outcome, Completed)
        assert (ALWAYS in outcome.record.notes) is bool(kept)
        rules = [each.rule for each in await store.rules()]
        assert len(rules) == kept
        for rule in rules:
            assert rule is not None
            assert before <= rule.given_at <= answered
            assert rule.expires_at == rule.given_at + seconds
    third = call_of("third", order=8, cents=500)
    asked = await runner.exec(third, caller=ADA)
    assert isinstance(asked, Waiting)
    await store.answer(asked.request.id, YES)
    edited(url, "UPDATE approvals SET answered_at = answered_at + 9 WHERE call_id = 'third'")
    outcome = await runner.exec(third, caller=ADA)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_RULE


FORGED: list[tuple[str, Any]] = [
    ("within", [{"run_id": "r", "call_id": "c", "tool": "sandbox"}]),
    ("reason", "it is harmless"),
    ("asked_by", ["standard", "Above"]),
    ("untrusted", True),
    ("always", True),
]


@each_row(("field", "value"), FORGED)
async def test_nobody_is_misled_about_what_a_rule_is_for(
    field: str, value: Any, tmp_path: Path
) -> None:
    """By who can write to the database, and has no key: before the answer, or once it is given."""
    url = f"sqlite:///{tmp_path}/crib.db"
    async with ApprovalStore(url, state_key=KEY) as store:
        policies = [Above(1), Above(2)] if field == "always" else []
        runner = ToolRunner([REFUND], approver=store, policy=policies)
        asked = await runner.exec(FIRST, caller=ADA)
        assert isinstance(asked, Waiting)
        request = json.loads(msgspec.json.encode(asked.request))
        forged = json.dumps(request | {field: value})
        edited(url, "UPDATE approvals SET request = ?", forged)
        assert [each.always for each in await store.pending()] == [False]
        with pytest.raises(ApprovalError, match="was changed in the database") as raised:
            await store.answer(asked.request.id, YES)
        assert raised.value.code is ErrorCode.INVALID_RULE
        if field == "always":
            return
        edited(url, "UPDATE approvals SET request = ?", msgspec.json.encode(asked.request).decode())
        assert [each.always for each in await store.pending()] == [True]
        await store.answer(asked.request.id, YES)
        edited(url, "UPDATE approvals SET request = ?", forged)
        outcome = await runner.exec(FIRST, caller=ADA)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.INVALID_RULE
        assert await store.rules() == []


@tool(visible=ALL)
async def pay(order: int) -> str:
    """Pay an order."""
    ran.append({"order": order})
    return "paid"


async def test_no_rule_answers_a_fork_about_what_its_first_run_has_done(
    store: ApprovalStore,
) -> None:
    """Nor is one offered; whatever a policy is named that asked in the first run."""

    def fork(*_: Any) -> Ask:
        return Ask("why not")

    def guard(*_: Any) -> Ask:
        return Ask("why not", "fork of a run")

    for order, policy in enumerate((fork, guard)):
        runner = ToolRunner([pay], approver=store, policy=policy)
        made = call("pay", order=order)
        waiting = await Agent(ScriptedClient([made]), runner).run("Pay.", caller=ADA)
        [question] = waiting.pending
        assert question.always
        await store.answer(question.id, Approve("grace", always=Always()))
        agent = Agent(ScriptedClient(["Paid."]), runner)
        done = await agent.resume(waiting.state)
        assert done.status == "completed"
        forked = agent.replace(model=ScriptedClient([made, "Paid."]))
        ran.clear()
        asks = await forked.resume(forked.fork(done.state, turn=0, repeat="ask"))
        assert (asks.status, ran) == ("waiting", [])
        assert not asks.pending[0].always
        with pytest.raises(ApprovalError, match="no rule can be given"):
            await store.answer(asks.pending[0].id, Approve("grace", always=Always()))


@each_row(
    ("cents", "repeat", "ends", "rules"),
    [
        (9, "ask", "completed", 1),
        (13, "ask", "denied", 0),
        (5, "deny", "repeated_effect", 0),
        (5, "ask", "repeated_effect", 0),
    ],
)
async def test_an_edit_that_may_not_run_gives_no_rule(
    cents: int, repeat: Any, ends: str, rules: int, tmp_path: Path
) -> None:
    """In a fork of a run that has paid 5: a rule is for what ran after the edit."""

    def unlucky(call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("unlucky") if call.arguments["cents"] == 13 else Allow()

    edits = says(Approve("bob", {"order": 7, "cents": cents}, always=Always()))
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:
        asked = ToolRunner([REFUND], approver=says(Approve("eve")))
        first = Agent(ScriptedClient([call("refund", order=7), "Done."]), asked)
        done = await first.run("Go.", caller=ADA)
        ran.clear()
        runner = ToolRunner([REFUND], approver=edits, policy=unlucky, rules=store)
        agent = Agent(ScriptedClient([call("refund", order=7, cents=4), "Done."]), runner)
        [record] = (await agent.resume(agent.fork(done.state, turn=0, repeat=repeat))).records
        assert ends == ("completed" if record.error is None else record.error.code)
        assert (len(ran), len(await store.rules())) == (rules, rules)
        assert (record.rule is not None, ALWAYS in record.notes) == (bool(rules), bool(rules))


async def test_policies_are_asked_after_a_rule_was_kept_as_well(tmp_path: Path) -> None:
    """Which takes time, in which the run may spend what it has."""
    ran.clear()
    spent: list[bool] = []

    class SlowRules(NoRules):
        async def keep_rule(self, asked: Any, always: Always, by: str) -> Any:
            spent.append(True)
            return await self.given.keep_rule(asked, always, by)

    def policy(_call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("spent") if spent else Allow()

    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:
        kept = SlowRules(store)
        runner = ToolRunner([REFUND], approver=says(YES), policy=policy, rules=kept)
        outcome = await runner.exec(FIRST, caller=ADA)
        assert isinstance(outcome, Failed)
        assert (outcome.error.code, ran) == (ErrorCode.DENIED, [])
        assert ALWAYS in outcome.record.notes  # it was kept, and the record says so
        assert len(await store.rules()) == 1


async def test_what_asks_after_a_rule_has_answered_asks_a_person(store: ApprovalStore) -> None:
    await given_rule(store, ToolRunner([REFUND], approver=store), FIRST, YES)
    ran.clear()
    looks = 0

    async def risk(call: Hydrated, _context: PolicyContext) -> Allow | Ask:
        nonlocal looks
        looks += call.definition.name == "refund"
        return Ask("it is a risk by now") if looks > 1 else Allow()

    fits = call_of("fits", order=7, cents=9, pin="canary")
    runner = ToolRunner([REFUND], approver=store, policy=risk)
    outcome = await runner.exec(fits, caller=ADA)
    assert isinstance(outcome, Waiting)
    assert (outcome.record.rule, outcome.record.approved_by) == (None, None)
    assert outcome.request.reason == "the tool is marked as not safe; it is a risk by now"
    await store.answer(outcome.request.id, Approve("ada"))
    assert isinstance(await runner.exec(fits, caller=ADA), Completed)
    ran.clear()
    looks = 0

    @tool(visible=ALL, untrusted_output=True, read_only=True)
    async def fetch() -> str:
        """Read what others wrote."""
        return "x"

    async def slow(call: Hydrated, context: PolicyContext) -> Allow:
        nonlocal looks
        looks += call.definition.name == "refund"
        while looks > 1 and not context.run.tainted:  # noqa: ASYNC110  no event says so
            await asyncio.sleep(0)
        return Allow()

    replies: list[Any] = [[call("refund", order=7, cents=8, pin="canary"), call("fetch")]]
    runner = ToolRunner([REFUND, fetch], approver=store, policy=slow)
    waiting = await Agent(ScriptedClient(replies), runner).run("Refund.", caller=ADA)
    assert (waiting.status, ran) == ("waiting", [])
    assert waiting.pending[0].untrusted


@each_row(("first",), [(Refuse("no", by="eve"),), (None,)])
async def test_a_live_approver_that_was_asked_is_to_answer_as_well(
    first: Answer | None, tmp_path: Path
) -> None:
    ran.clear()
    answers: list[Answer | None] = [first, YES, first]

    async def desk(_request: ApprovalRequest) -> Answer | None:
        return answers.pop(0)

    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:
        runner = ToolRunner([REFUND], approver=desk, rules=store)
        asked = call_of("asked", order=7, cents=1, pin="canary")
        for _ in range(2):
            outcome = await runner.exec(asked, caller=ADA)
            assert isinstance(outcome, Waiting if first is None else Failed)
            if len(answers) == 2:
                assert isinstance(await runner.exec(FIRST, caller=ADA), Completed)
        assert not answers
        again = call_of("again", order=7, cents=1, pin="canary")
        assert isinstance(await runner.exec(again, caller=ADA), Completed)
        assert [each["cents"] for each in ran] == [500, 1]


def desk(
    clerk: list[Any], front: list[Any], store: ApprovalStore, sinks: Sequence[Any] = ()
) -> Agent:
    """Make an agent with another one as its tool, which asks, and whose tool does so, too."""
    inner = Agent(ScriptedClient(clerk), ToolRunner([REFUND], approver=answer_later))
    asks = inner.as_tool("clerk", "Refunds.", visible=ALL, requires_approval=True)
    runner = ToolRunner([asks], approver=answer_later, rules=store, sinks=sinks)
    return Agent(ScriptedClient(front), runner, state_key=KEY)


ANY_PROMPT = Always(open=("prompt",))
YESES: list[tuple[str, Approve | None]] = [
    ("plain", Approve("grace")),
    ("edited", Approve("grace", {"prompt": "refund it"})),
    ("for the run", Approve("grace", for_run=True)),
    ("for the run, exactly", Approve("grace", for_run="exactly")),
    ("a rule", Approve("grace", always=ANY_PROMPT)),
    ("a rule, edited", Approve("grace", {"prompt": "refund it"}, always=ANY_PROMPT)),
    ("by a rule", None),
]


@each_row(("what", "yes"), YESES)
@pytest.mark.parametrize("logged", [False, True])
async def test_a_call_that_waits_within_says_who_let_it_begin_and_by_which_rule(
    what: str, yes: Approve | None, logged: bool, tmp_path: Path
) -> None:
    """Each time that it goes on, in another process: it names a question that somebody was asked."""
    url, sink = f"sqlite:///{tmp_path}/{what}.db", MemorySink()
    orders = [call("refund", order=7), call("refund", order=8)]
    begins = [call("clerk", prompt="go")]
    async with ApprovalStore(url, state_key=KEY) as store, AuditLog(url) as log:
        sinks = [log, sink] if logged else [sink]
        question = ""
        if yes is None:  # a rule was given to another call
            first = await desk([], begins, store).run("x", caller=ADA)
            rule, question = Approve("grace", always=ANY_PROMPT), first.pending[0].id
            done = await desk(["d"], ["f"], store).resume(first.state, {question: rule})
            assert done.status == "completed"
        result = await desk(orders[:1], begins, store, sinks).run("x", caller=ADA)
        if yes is not None:
            question = result.pending[0].id
            agent = desk(orders[:1], [], store, sinks)
            result = await agent.resume(result.state, {question: yes})
        for left in ([orders[1]], ["done"]):
            state = RunState.from_json(result.state.to_json())
            answers: dict[str, Answer] = {result.pending[0].id: Approve("bob")}
            result = await desk(left, ["fin"], store, sinks).resume(state, answers)
        assert result.text == "fin"
        kept = [each.rule for each in await store.rules()]
    records = [each for each in sink.records if each.name == "clerk" and each.approved_by]
    assert [each.status for each in records] == ["waiting", "waiting", "completed"]
    named = {(each.approved_by, each.approval_id) for each in records}
    assert named == {("grace", question)}
    of_rules = (FOR_RUN, FOR_RUN_EXACTLY, ALWAYS)
    notes = {tuple(note for note in of_rules if note in each.notes) for each in records}
    assert len(notes) == 1
    assert (ALWAYS in notes.pop()) is (yes is not None and yes.always is not None)
    assert {each.edited for each in records} == {yes is not None and yes.arguments is not None}
    rules = {None if each.rule is None else each.rule.id for each in records}
    assert rules == {None if rule is None else rule.id for rule in kept or [None]}


@each_row(
    ("what", "yes", "ends"),
    [(*each, ends) for each in YESES for ends in ("denied", "changed", "stood in")],
)
async def test_a_call_that_cannot_go_on_says_who_let_it_begin_and_by_which_rule(
    what: str, yes: Approve | None, ends: str, tmp_path: Path
) -> None:
    url, sink = f"sqlite:///{tmp_path}/{what} {ends}.db", MemorySink()
    begins, within = [call("clerk", prompt="go")], [call("refund", order=7)]
    async with ApprovalStore(url, state_key=KEY) as store:
        given = yes or Approve("grace", always=ANY_PROMPT)
        result = await desk(within, begins, store).run("x", caller=ADA)
        question = result.pending[0].id
        result = await desk(within, ["f"], store).resume(result.state, {question: given})
        if yes is None:
            done = desk(["d"], ["f"], store)
            await done.resume(result.state, {result.pending[0].id: Approve("bob")})
            result = await desk(within, begins, store).run("x", caller=ADA)
        agent = desk(["d"], ["f"], store, [sink])
        if ends == "denied":
            denies = ToolRunner(
                [entry.tool for entry in agent.runner.catalog.entries],
                policy=lambda *_: Deny("closed"),
                approver=answer_later,
                rules=store,
                sinks=[sink],
            )
            agent = agent.replace(tools=denies)
        elif ends == "changed":
            other = Agent(ScriptedClient(["d"]), ToolRunner([REFUND], approver=answer_later))
            tool = other.as_tool("clerk", "Others.", visible=ALL, requires_approval=True)
            changed = ToolRunner([tool], approver=answer_later, rules=store, sinks=[sink])
            agent = agent.replace(tools=changed)
        else:
            agent = ToolEmulator({"clerk": "made up"}).over(agent)
        answers = {result.pending[0].id: Approve("bob")}
        await agent.resume(RunState.from_json(result.state.to_json()), answers)
        [kept] = [each.rule for each in await store.rules()] or [None]
    [record] = [each for each in sink.records if each.name == "clerk"]
    assert record.error is not None
    assert record.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert (record.approved_by, record.approval_id) == ("grace", question)
    assert record.edited is (yes is not None and yes.arguments is not None)
    assert (record.rule and record.rule.id) == (kept and kept.id)
    assert (ALWAYS in record.notes) is (yes is not None and yes.always is not None)


@each_row(("idempotent", "killed"), [(False, False), (True, False), (True, True), (False, True)])
async def test_a_rule_that_was_revoked_stays_so_when_its_run_goes_on_again(
    idempotent: bool, killed: bool, tmp_path: Path
) -> None:
    """From the state in which its answer was given: the call has its yes, and makes no rule."""
    deaths = [KeyboardInterrupt()] * killed

    @tool(visible=ALL, safe=False, idempotent=idempotent)
    async def refund(order: int, cents: int = 5) -> str:
        """Refund."""
        if deaths:
            raise deaths.pop()
        return "refunded"

    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:

        def agent(*replies: Any) -> Agent:
            runner = ToolRunner([refund], approver=answer_later, rules=store)
            return Agent(ScriptedClient(replies), runner)

        waiting = await agent(call("refund", order=7)).run("x", caller=ADA)
        state = RunState.from_json(waiting.state.to_json())
        answers: dict[str, Answer] = {waiting.pending[0].id: YES}
        with pytest.raises(KeyboardInterrupt) if killed else nullcontext():
            await agent("ok").resume(state, answers)
        [kept] = await store.rules()
        await store.revoke(kept.id)
        done = await agent("ok").resume(state, answers)
        assert [each.status for each in done.records] == ["completed"]
        assert done.records[0].rule is None
        assert ALWAYS not in done.records[0].notes
        assert await store.rules() == []
        with pytest.raises(ApprovalError, match="there is no rule"):
            await store.revoke(kept.id)
        again = await agent(call("refund", order=7, cents=9)).run("x", caller=ADA)
        assert again.status == "waiting"


@each_row(
    ("ago", "seconds", "again", "kept"),
    [
        (0, 600, 0, True),
        (300, 600, 0, True),
        (700, 600, 0, False),  # it has lapsed while its answer was kept
        (700, None, 0, True),
        (-700, 600, 0, True),  # a clock that is wrong gives it no more time
        (300, 600, 1, True),  # nor does a run that goes on once more
    ],
)
async def test_a_rule_lasts_from_when_its_answer_was_given_wherever_that_was_kept(
    ago: float, seconds: float | None, again: int, kept: bool, tmp_path: Path
) -> None:
    async with ApprovalStore(f"sqlite:///{tmp_path}/crib.db", state_key=KEY) as store:

        def agent(*replies: Any) -> Agent:
            runner = ToolRunner([REFUND], approver=answer_later, rules=store)
            return Agent(ScriptedClient(replies), runner)

        waiting = await agent(call("refund", order=7)).run("x", caller=ADA)
        given_at = time.time() - ago
        always = Always(("cents",), seconds, given_at)
        for at in range(again + 1):
            if at:
                always = Always(("cents",), seconds)
            yes = Approve("grace", always=always)
            done = await agent("ok").resume(waiting.state, {waiting.pending[0].id: yes})
            assert (ALWAYS in done.records[0].notes) is kept
        rules = [each.rule for each in await store.rules()]
        assert len(rules) == kept
        for rule in rules:
            assert rule is not None
            assert rule.given_at == given_at if ago > 0 else rule.given_at <= time.time()
            assert rule.expires_at == (None if seconds is None else rule.given_at + seconds)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="a time in seconds"):
            Always(given_at=wrong)


@tool(visible=ALL, safe=False)
async def remark(text: str) -> str:
    """Say something."""
    return text


async def test_a_text_that_looks_like_a_mask_is_no_secret(store: ApprovalStore) -> None:
    runner = ToolRunner([remark], approver=store)
    first = ToolCall("first", "remark", '{"text": "***"}')
    yes = Approve("grace", always=Always(("text",)))
    assert isinstance(await given_rule(store, runner, first, yes), Completed)
    another = ToolCall("other", "remark", '{"text": "any"}')
    assert isinstance(await runner.exec(another, caller=ADA), Completed)


async def test_where_others_are_secret_the_runner_tells_such_a_text_from_a_mask(
    store: ApprovalStore,
) -> None:
    """Given by a person who is asked at once, or as the value of an argument that is open."""
    yes = Approve("grace", always=Always(("note",)))
    answers: list[Answer | None] = [yes]

    async def desk(_request: ApprovalRequest) -> Answer | None:
        return answers.pop() if answers else None

    runner = ToolRunner([REFUND], approver=desk, rules=store)
    for at, (note, cents) in enumerate((("***", 5), ("any", 5), ("***", 6))):
        if at == 2:
            answers.append(yes)
        made = call_of(f"c{at}", order=7, note=note, cents=cents, pin="canary")
        assert isinstance(await runner.exec(made, caller=ADA), Completed)
    later = call_of("later", order=7, note="***", cents=5, pin="canary")
    assert isinstance(await runner.exec(later, caller=ADA), Completed)
    assert answers == []
    pin = call_of("pin", order=7, note="***", cents=5, pin="***")
    assert isinstance(await runner.exec(pin, caller=ADA), Waiting)


async def test_a_yes_that_asks_who_may_give_it_cannot_be_stored(store: ApprovalStore) -> None:
    asked = await ToolRunner([REFUND], approver=store).exec(FIRST, caller=ADA)
    assert isinstance(asked, Waiting)
    with pytest.raises(ApprovalError, match="a LimitedApprove cannot be kept"):
        await store.answer(asked.request.id, LimitedApprove("grace", may=lambda _: True))
    assert [each.id for each in await store.pending()] == [asked.request.id]


class NoRules:
    """A store of rules that gives what is none."""

    keeps_rules = True

    def __init__(self, given: Any) -> None:
        self.given = given

    async def rule_for(self, _asked: Any) -> Any:
        return self.given

    async def keep_rule(self, _asked: Any, _always: Always, _by: str) -> Any:
        return self.given

    async def rules(self, *, caller: str | None = None) -> Any:
        return []

    async def revoke(self, rule_id: str, *, caller: str | None = None) -> None:
        """Forget nothing."""


@each_row(("given",), [(True,), ("rule",), ({},), (1,)])
async def test_what_is_no_rule_lets_nothing_run(given: Any, tmp_path: Path) -> None:
    """Somebody is asked, as where rules cannot be read; a yes that gives one counts for nothing."""
    ran.clear()
    runner = ToolRunner([REFUND], approver=answer_later, rules=NoRules(given))
    assert isinstance(await runner.exec(FIRST, caller=ADA), Waiting)

    async def yes(_request: ApprovalRequest) -> Answer:
        return YES

    outcome = await ToolRunner([REFUND], approver=yes, rules=NoRules(given)).exec(FIRST, caller=ADA)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_FAILED
    assert ran == []


@each_row(("revoked", "by_rule"), [(False, False), (True, False), (False, True)])
async def test_a_call_that_was_cut_says_by_which_rule_it_began(
    revoked: bool, by_rule: bool, tmp_path: Path
) -> None:
    """Where its run goes on in another process, which knows it from the log."""
    deaths: list[BaseException] = []

    @tool(visible=ALL, safe=False)
    async def refund(order: int, cents: int = 5) -> str:
        """Refund."""
        if deaths:
            raise deaths.pop()
        return "refunded"

    url = f"sqlite:///{tmp_path}/crib.db"
    first, cut = call_of("first", order=7), call_of("cut", order=7, cents=9)
    async with ApprovalStore(url, state_key=KEY) as store, AuditLog(url) as log:

        def runner(*sinks: Any) -> ToolRunner:
            return ToolRunner([refund], approver=answer_later, rules=store, sinks=sinks)

        if by_rule:
            asked = await runner().exec(first, caller=ADA)
            assert isinstance(asked, Waiting)
            scope = answering(asked.request)
            assert isinstance(await runner().exec(first, caller=ADA, scope=scope), Completed)
            scope = CallScope(RunTally("run", "nonce"))
        else:
            asked = await runner().exec(cut, caller=ADA, scope=CallScope(RunTally("run", "nonce")))
            assert isinstance(asked, Waiting)
            scope = answering(asked.request)
        deaths.append(KeyboardInterrupt())
        entry = BeginsOnly(log)
        with pytest.raises(KeyboardInterrupt):
            await runner(entry).exec(cut, caller=ADA, scope=scope)
        [kept] = await store.rules()
        if revoked:
            await store.revoke(kept.id)
        outcome = await runner(log).exec(cut, caller=ADA, scope=scope)
    assert isinstance(outcome, Failed)
    record = outcome.record
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert record.rule is not None
    assert (record.rule.id, record.approved_by) == (kept.id, "grace")
    assert record.notes.count(ALWAYS) == (not by_rule)


def answering(question: ApprovalRequest) -> CallScope:
    tally = RunTally("run", "nonce") if question.run_id else RunTally("")
    return CallScope(tally, answers={question.id: YES}, questions={question.id: question})


class BeginsOnly:
    """A ledger of which only the beginnings of calls get through: a process that is killed."""

    write_ahead = True

    def __init__(self, log: AuditLog) -> None:
        self.log = log

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        return await self.log.begin(entry)

    async def write(self, record: ToolInvocationRecord) -> None:
        return None

    async def find(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        return await self.log.find(record)


async def test_a_rule_lasts_from_its_answer_also_where_another_store_keeps_it(
    store: ApprovalStore, tmp_path: Path
) -> None:
    async with ApprovalStore(f"sqlite:///{tmp_path}/asks.db", state_key=KEY) as asks:

        async def ask(request: Any) -> Any:
            return await asks(request)

        runner = ToolRunner([REFUND], approver=ask, rules=store)
        waits = call_of("c", order=7, cents=500)
        asked = await runner.exec(waits, caller=ADA)
        assert isinstance(asked, Waiting)
        await asks.answer(asked.request.id, Approve("grace", always=Always(("cents",), 60.0)))
        answered = time.time()
        await asyncio.sleep(0.05)
        assert isinstance(await runner.exec(waits, caller=ADA), Completed)
        (kept,) = await store.rules()
        assert kept.rule is not None
        assert kept.rule.given_at <= answered
