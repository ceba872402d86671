"""Composition: the strictest decision wins, and whatever a policy does, no call slips through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from policies.policy_helpers import CANARY, call_of, context_of, over
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Ask,
    Caller,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    Refuse,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import Stage, ToolcribError
from toolcrib.policies import Policy, Standard, deny_by_default, require_roles, standard
from toolcrib.runner.policy import (
    ALLOWED,
    count_all,
    counting,
    decide,
    settle_all,
    spared_for_run,
    with_standard,
)
from toolcrib.values.context import CallScope, RunTally, ToolApproval
from toolcrib.values.decision import Decision
from toolcrib.values.definition import NoSchemaMode
from toolcrib.values.record import ToolInvocationRecord


def allows(_call: Hydrated, _context: PolicyContext) -> Allow:
    return Allow("fine")


def asks(_call: Hydrated, _context: PolicyContext) -> Ask:
    return Ask("hm")


def denies(_call: Hydrated, _context: PolicyContext) -> Deny:
    return Deny("no")


def raises(_call: Hydrated, _context: PolicyContext) -> Allow:
    raise ValueError("what it knows")


def gives_nothing(_call: Hydrated, _context: PolicyContext) -> Any:
    return None


RANKS: dict[Policy, int] = {allows: 0, asks: 1, denies: 2, raises: 2, gives_nothing: 2}
DECISIONS: dict[Policy, Decision] = {
    asks: Ask("hm", "asks"),
    denies: Deny("no", "denies"),
    raises: Deny("the policy failed", "raises"),
    gives_nothing: Deny("the policy gave no decision (None)", "gives_nothing"),
}


@each_row("policies", list(product(RANKS, repeat=3)))
def test_the_first_of_the_strictest_wins(policies: tuple[Policy, ...]) -> None:
    strictest = max(RANKS[policy] for policy in policies)
    first = next(policy for policy in policies if RANKS[policy] == strictest)
    decision = decide(with_standard(policies), call_of(), context_of())
    expected = DECISIONS.get(first) or Allow("nothing about this tool asks for more", "standard")
    assert decision == expected


def test_the_standard_one_asks_first() -> None:
    decision = decide(with_standard(asks), call_of(safe=False), context_of())
    assert decision == Ask("the tool is marked as not safe", "standard")


def test_a_role_check_that_passes_does_not_drop_an_approval() -> None:
    context = context_of()
    admits = require_roles("admin")
    assert decide([standard, admits], call_of(safe=False), context).policy == "require_roles"
    assert isinstance(decide([standard, allows], call_of(safe=False), context), Ask)


def raising(error: BaseException) -> Policy:
    def policy(_call: Hydrated, _context: PolicyContext) -> Allow:
        raise error

    return policy


def giving(value: Any) -> Policy:
    def policy(_call: Hydrated, _context: PolicyContext) -> Any:
        return value() if callable(value) else value

    return policy


async def never_awaited() -> Allow:
    return Allow("later")


def forged() -> Deny:
    """A decision whose policy is no text: Python lets nobody make one, but code can."""
    given = Deny("no")
    msgspec.structs.force_setattr(given, "policy", 1)
    return given


class Unnamed(type):
    """Raises where one of its classes is asked for its name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class Odd(metaclass=Unnamed): ...


NO_DECISIONS: list[tuple[Policy, str]] = [
    (raising(RecursionError()), "the policy failed"),
    (raising(SystemExit(0)), "the policy failed"),
    (raising(asyncio.CancelledError()), "the policy failed"),
    (raising(GeneratorExit()), "the policy failed"),
    (giving(True), "the policy gave no decision (a bool)"),
    (giving("allow"), "the policy gave no decision (a str)"),
    (giving(lambda: Allow), "the policy gave no decision (the class Allow)"),
    (giving(lambda: Odd), "the policy gave no decision (something)"),
    (giving(type("A" * 1000, (), {})()), f"the policy gave no decision (an {'A' * 97})"),
    (giving(never_awaited), "the policy gave no decision (a coroutine)"),
    (giving(forged), "the policy gave no decision (a Deny)"),
    (raising(TypeError("Deny: reason must be a str; got an int")), "the policy failed"),
]


@each_row(("policy", "reason"), NO_DECISIONS)
def test_what_is_no_decision_denies(
    policy: Policy, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    decision = decide(with_standard(policy), call_of(), context_of())
    assert decision == Deny(reason, "policy", ErrorCode.DENIED)
    assert ("policy 'policy' raised" in caplog.text) is (reason == "the policy failed")


def test_the_log_says_what_a_policy_gave_and_what_it_has_to_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A forgotten `return` let no call run, and nothing said so."""
    decide([gives_nothing], call_of(), context_of())
    decide([giving(Refuse("no"))], call_of(), context_of())
    decided = "Allow(), Ask(…) or Deny(…)"
    unusable = "gave a result that cannot be used"
    assert [record.getMessage() for record in caplog.records] == [
        f"policy 'gives_nothing' {unusable}: None, but it must return {decided}",
        f"policy 'policy' {unusable}: a Refuse, but it must return {decided}",
    ]


def test_who_interrupts_the_program_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        decide([raising(KeyboardInterrupt())], call_of(), context_of())


@each_row("code", [*ErrorCode])
def test_a_deny_has_a_code_of_its_stage(code: ErrorCode) -> None:
    decision = decide([giving(Deny("no", "p", code))], call_of(), context_of())
    own = {code for code in ErrorCode if code.info.stage is Stage.POLICY}
    assert len(own) == 4
    expected = code if code in own else ErrorCode.DENIED
    assert decision == Deny("no", "p", expected)


def test_a_reason_can_be_written_down() -> None:
    decision = decide([giving(Ask("a\ud800b"))], call_of(), context_of())
    assert decision == Ask("a?b", "policy")


class Named:
    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Deny:
        return Deny("no")


NAMES: list[tuple[Any, str]] = [
    (denies, "denies"),
    (partial(lambda _extra, call, context: denies(call, context), 1), "<lambda>"),
    (Named(), "Named"),
    (Named().__call__, "__call__"),
    (giving(Deny("no", "its own name")), "its own name"),
]


@each_row(("policy", "name"), NAMES)
def test_every_decision_says_which_policy_made_it(policy: Policy, name: str) -> None:
    assert decide([policy], call_of(), context_of()).policy == name


class TestWithStandard:
    def test_it_is_always_there_and_always_first(self) -> None:
        assert with_standard(()) == (standard,)
        assert with_standard(denies) == (standard, denies)
        assert with_standard([denies, standard, asks]) == (standard, denies, asks)

    def test_another_one_takes_its_place(self) -> None:
        other = Standard("allow")
        assert with_standard(other) == (other,)
        assert with_standard([denies, other]) == (other, denies)

    @each_row(
        ("wrong", "kind"),
        [
            ("deny", "str"),
            (None, "NoneType"),
            (Deny("no"), "Deny"),
            (Standard, "Standard"),
            (Named, "Named"),
            (lambda _call: Allow(), "<lambda>"),
            (deny_by_default, "deny_by_default"),  # called with what it allows, it makes one
        ],
    )
    def test_what_is_no_policy_is_refused_at_once(self, wrong: Any, kind: str) -> None:
        with pytest.raises(
            ToolcribError, match=f"^a policy must be callable as .*: {kind} is not$"
        ):
            with_standard([wrong])

    def test_what_is_no_list_of_them_either(self) -> None:
        with pytest.raises(TypeError, match=r"a function, or a list of them; .* int"):
            with_standard(1)  # type: ignore[arg-type]

    @each_row("foresees", [1, never_awaited])
    def test_one_that_foresees_can_be_asked(self, foresees: Any) -> None:
        def own(_call: Hydrated, _context: PolicyContext) -> Allow:
            return Allow()

        own.never_allows = foresees  # type: ignore[attr-defined]
        with pytest.raises(ToolcribError, match=r"^own: `never_allows` must be a method"):
            with_standard(own)

    def test_there_are_no_two_of_them(self) -> None:
        with pytest.raises(ToolcribError, match="at most one Standard"):
            with_standard([Standard("allow"), standard])


class Counter:
    """Counts, and says what it was told."""

    def __init__(self, answer: Callable[[], Any] = lambda: None) -> None:
        self.told: list[str] = []
        self.settled: list[ToolInvocationRecord] = []
        self.contexts: list[PolicyContext] = []
        self._answer = answer

    def __call__(self, _call: Hydrated, _context: PolicyContext) -> Allow:
        return Allow("so far")

    def count(self, call: Hydrated, context: PolicyContext) -> Deny | None:
        self.contexts.append(context)
        self.told.append(f"counts {call.definition.name}")
        answer: Deny | None = self._answer()
        return answer

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None:
        self.contexts.append(context)
        self.settled.append(record)
        self.told.append(f"settles {record.name}")
        self._answer()


class TestCounting:
    def test_only_those_that_count_are_told(self) -> None:
        counter = Counter()
        assert list(counting((standard, denies, counter))) == [counter]

    def test_half_a_counting_policy_would_count_nothing(self) -> None:
        def forgot(_call: Hydrated, _context: PolicyContext) -> Allow:
            return Allow()

        forgot.count = lambda *_: None  # type: ignore[attr-defined]
        with pytest.raises(ToolcribError, match="forgot: a policy that counts needs"):
            counting((standard, forgot))

    def test_an_async_one_would_count_nothing_either(self) -> None:
        class Late(Counter):
            async def settle(  # type: ignore[override]
                self, record: ToolInvocationRecord, context: PolicyContext
            ) -> None: ...

        with pytest.raises(
            ToolcribError, match=r"Late: a policy that counts needs .* must not be async"
        ):
            counting((Late(),))

    @each_row(
        ("answer", "expected"),
        [
            (lambda: None, None),
            (lambda: Deny("late", "own"), Deny("late", "own")),
            (lambda: Deny("late", code=ErrorCode.RATE_LIMITED), "late"),
            (lambda: 1 / 0, "the policy failed to count the call"),
            (lambda: 1, "the policy gave no decision (an int)"),
            (Allow, "the policy gave no decision (an Allow)"),
            (never_awaited, "the policy gave no decision (a coroutine)"),
        ],
    )
    def test_what_a_count_may_say(self, answer: Callable[[], Any], expected: Any) -> None:
        before, after, context = Counter(), Counter(), context_of(caller=ALICE)
        refused = count_all((before, Counter(answer), after), call_of(), context)
        if isinstance(expected, str):
            assert isinstance(refused, Deny)
            assert (refused.reason, refused.policy) == (expected, "Counter")
        else:
            assert refused == expected
        assert before.told == ["counts subject", *(["settles subject"] if expected else [])]
        assert after.told == (["counts subject"] if expected is None else [])
        assert all(known is context for known in [*before.contexts, *after.contexts])
        for record in before.settled:  # it is over before it began, and took no time
            assert (record.status, record.caller, record.seconds) == ("failed", "alice", None)
            assert record.decision == refused
            assert record.error is not None
            assert refused is not None
            assert record.error.code is refused.code
        assert context.run.seconds_per_tool == {}

    def test_the_log_says_which_policy_cannot_count(self, caplog: pytest.LogCaptureFixture) -> None:
        count_all((Counter(lambda: 1 / 0),), call_of(), context_of())
        assert "policy 'Counter' raised ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("error", [ValueError(), SystemExit(), asyncio.CancelledError()])
    def test_what_settling_raises_is_dropped_and_the_others_are_told(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails() -> None:
            raise error

        after, context = Counter(), context_of(RunTally())
        settle_all((Counter(fails), after), over("subject", 1.5), context)
        assert "policy 'Counter' raised" in caplog.text
        assert after.contexts == [context]
        assert after.told == ["settles subject"]


@tool(visible=ALL)
async def spend(fail: bool = False) -> str:
    """Spend."""
    if fail:
        raise ValueError
    return "spent"


async def test_a_runner_tells_each_call_that_runs_to_those_that_count() -> None:
    counter, tally = Counter(), RunTally()
    runner = ToolRunner([spend], policy=counter)
    outcomes = [
        await runner.exec(ToolCall(f"c{at}", "spend", arguments), scope=CallScope(tally))
        for at, arguments in enumerate(("{}", '{"fail": true}', '{"nonsense": 1}'))
    ]
    assert counter.told == ["counts spend", "settles spend"] * 2
    took = sum(outcome.record.seconds or 0 for outcome in outcomes[:2])  # the third never ran
    assert tally.seconds_per_tool == {"spend": pytest.approx(took)}


async def test_one_that_cannot_count_keeps_the_call_from_running() -> None:
    outcome = await ToolRunner([spend], policy=Counter(lambda: 1 / 0)).exec(
        ToolCall("c", "spend", "{}")
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.DENIED
    assert outcome.record.decision == Deny("the policy failed to count the call", "Counter")


async def test_one_that_cannot_settle_does_not_lose_the_outcome() -> None:
    class Careless(Counter):
        def settle(self, _record: ToolInvocationRecord, _context: PolicyContext) -> None:
            raise ValueError

    counter = Careless()
    outcome = await ToolRunner([spend], policy=counter).exec(ToolCall("c", "spend", "{}"))
    assert isinstance(outcome, Completed)


APPROVAL = "the tool requires an approval"
UNSAFE = "the tool is marked as not safe"
THREAT = "the tool's threat level is high"
HUMAN = "its arguments were not checked, and its mode is human-approval"
READ_ONLY = "its arguments were not checked, and its mode is read-only"
REPAIRED = "its arguments were repaired"
IN_TEXT = (
    "the call was written in the text of the reply, and this model's text calls are not trusted"
)
NO_ARGUMENTS = "the reply sent no arguments for the call, but the tool has parameters"
STREAMED = "its streamed arguments differ from those in the finished reply"
TAINTED = "the run has read untrusted content, and this tool may have side effects"

# What is said of a call, and why it is asked about: of a tool that may write, of one that only reads,
# and of one that only reads where policy says that repaired reads may run.
REASONS: list[tuple[dict[str, Any], str | None, str | None, str | None]] = [
    ({"requires_approval": True}, APPROVAL, APPROVAL, APPROVAL),
    ({"safe": False}, UNSAFE, UNSAFE, UNSAFE),
    ({"threat_level": "high"}, THREAT, THREAT, THREAT),
    ({"threat_level": "medium"}, None, None, None),
    ({"mode": "human-approval"}, HUMAN, HUMAN, HUMAN),
    ({"mode": "read-only"}, READ_ONLY, None, None),
    ({"mode": "full"}, None, None, None),
    ({"repaired": True}, REPAIRED, REPAIRED, None),
    ({"notes": ("written_in_text",)}, IN_TEXT, None, None),
    ({"notes": ("written_in_text", "text_call_trusted")}, None, None, None),
    ({"notes": ("single_quotes", "restored", "after_end")}, None, None, None),
    ({"notes": ("empty_arguments",)}, NO_ARGUMENTS, None, None),
    ({"notes": ("streamed_otherwise",)}, STREAMED, None, None),
    ({"tainted": True}, TAINTED, None, None),
]
POLICIES = {"ask": standard, "allow": Standard(repaired_reads="allow")}
ADMIN, ALICE = Caller("root", ("staff", "admin")), Caller("alice", ("staff",))


def decided(said: dict[str, Any], policy: Standard = standard, caller: Caller = ALICE) -> object:
    said = dict(said)
    tally = RunTally(tainted=said.pop("tainted", False))
    return policy(call_of(**said), context_of(tally, caller))


@each_row(("said", "writes", "reads", "repaired_reads"), REASONS)
def test_each_mark_by_itself(
    said: dict[str, Any], writes: str | None, reads: str | None, repaired_reads: str | None
) -> None:
    for expected, policy, read_only in [
        (writes, standard, False),
        (writes, POLICIES["allow"], False),
        (reads, standard, True),
        (repaired_reads, POLICIES["allow"], True),
    ]:
        decision = decided({**said, "read_only": read_only}, policy)
        if expected is None:
            assert decision == Allow("nothing about this tool asks for more", "standard")
        else:
            assert decision == Ask(expected, "standard")


def test_all_marks_together() -> None:
    """18,432 decisions: roles deny before all else, and whoever is asked is told every reason."""
    words = [next(iter(said.items())) for said, *_ in REASONS]
    names = list(dict.fromkeys(name for name, _ in words))
    choices = [[None, *(value for name, value in words if name == of)] for of in names]
    for values in product(*choices):
        given = {n: v for n, v in zip(names, values, strict=True) if v is not None}
        for read_only, (word, policy), caller in product(
            (False, True), POLICIES.items(), (ADMIN, ALICE)
        ):
            reasons: list[str] = []
            for one, writes, reads, repaired_reads in REASONS:
                reason = writes if not read_only else reads if word == "ask" else repaired_reads
                reasons += [reason] if reason and one.items() <= given.items() else []
            expected = "; ".join(reasons)
            said = given | {"read_only": read_only}
            if expected:
                assert decided(said, policy, caller) == Ask(expected, "standard")
            else:
                assert isinstance(decided(said, policy, caller), Allow)
            restricted = decided(said | {"allowed_roles": ("admin", "owner")}, policy, caller)
            if caller is ALICE:
                assert restricted == Deny("it needs one of the roles admin, owner", "standard")
            else:
                assert restricted == decided(said, policy, caller)


# Marks of a tool, who said yes to it for the run, what asks then, and whether a yes for the run would
# spare the next question: not where something asks whatever anybody said of the tool.
SPARED: list[tuple[dict[str, Any], str, str | None, bool]] = [
    ({}, "", None, False),
    ({"requires_approval": True}, "", APPROVAL, True),
    ({"requires_approval": True, "read_only": True}, "", APPROVAL, True),
    ({"requires_approval": True, "threat_level": "medium"}, "", APPROVAL, True),
    ({"requires_approval": True, "safe": False}, "", f"{APPROVAL}; {UNSAFE}", False),
    ({"requires_approval": True, "threat_level": "high"}, "", f"{APPROVAL}; {THREAT}", False),
    ({"requires_approval": True, "mode": "full"}, "", APPROVAL, False),
    ({"tainted": True}, "", TAINTED, True),
    ({"tainted": True, "safe": False}, "", f"{UNSAFE}; {TAINTED}", False),
    ({"tainted": True, "read_only": True}, "", None, False),
    ({"tainted": True, "requires_approval": True}, "", f"{APPROVAL}; {TAINTED}", True),
    ({"requires_approval": True}, "alice", None, False),
    ({"tainted": True}, "alice", None, False),
    ({"tainted": True, "requires_approval": True}, "alice", None, False),
    ({"requires_approval": True, "safe": False}, "alice", UNSAFE, False),
    ({"requires_approval": True}, "bob", APPROVAL, True),
    ({"tainted": True}, "bob", TAINTED, True),
    ({"requires_approval": True}, "another tool", APPROVAL, True),
    ({"tainted": True}, "another tool", TAINTED, True),
]


@each_row(("said", "yes_by", "asked", "spared"), SPARED)
def test_a_yes_for_the_run_holds_for_this_tool_and_this_caller(
    said: dict[str, Any], yes_by: str, asked: str | None, spared: bool
) -> None:
    said = dict(said)
    tally = RunTally(tainted=said.pop("tainted", False))
    call = call_of(**said)
    digest = "sha256:other" if yes_by == "another tool" else call.definition.digest
    caller = "alice" if yes_by == "another tool" else yes_by
    given = ToolApproval("apr_1", "grace", digest, caller)
    exactly = msgspec.structs.replace(given, arguments_mac=tally.mac_of(call))
    for one in (given, exactly) if yes_by else (None,):
        tally.approved = () if one is None else (one,)
        decision = standard(call, context_of(tally, ALICE))
        assert decision == (ALLOWED if asked is None else Ask(asked, "standard"))
        assert spared_for_run(call, tally, "alice") is spared
    if yes_by == "alice":  # of exactly these arguments it covers no others
        tally.approved = ()
        without = standard(call, context_of(tally, ALICE))
        of_others = msgspec.structs.replace(given, arguments_mac=tally.mac('{"other":1}', ()))
        tally.approved = (of_others,)
        assert standard(call, context_of(tally, ALICE)) == without


@each_row(
    ("schema", "asks"),
    [
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}, "required": []}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "description": "Nothing.", "$defs": {"a": {"type": "string"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, True),
        ({"type": "object", "additionalProperties": {}}, True),
        ({"type": "object", "additionalProperties": True}, True),
        ({"type": "object", "patternProperties": {"^x": {}}}, True),
        ({"type": "object", "minProperties": 1}, True),
        ({"type": "object", "anyOf": [{"required": ["a"]}, {}]}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}}, True),
        (None, True),
    ],
)
def test_no_arguments_are_all_of_them_where_a_tool_has_no_parameters(
    schema: dict[str, Any] | None, asks: bool
) -> None:
    call = call_of(notes=("empty_arguments",))
    text = None if schema is None else json.dumps(schema)
    definition = msgspec.structs.replace(call.definition, input_schema_json=text)
    decision = standard(msgspec.structs.replace(call, definition=definition), context_of())
    assert decision == (Ask(NO_ARGUMENTS, "standard") if asks else ALLOWED)


def test_a_tool_that_is_always_allowed_is_not_where_its_call_is_doubtful() -> None:
    call = call_of(notes=("written_in_text",))
    assert standard(call_of(), context_of()) == ALLOWED
    assert isinstance(standard(call, context_of()), Ask)


def test_the_table_knows_every_mode() -> None:
    assert {said["mode"] for said, *_ in REASONS if "mode" in said} == set(get_args(NoSchemaMode))


def test_it_is_a_value() -> None:
    assert Standard() == standard
    assert Standard("allow") != standard
    with pytest.raises(AttributeError):
        standard.repaired_reads = "allow"  # type: ignore[misc]
    with pytest.raises(ToolcribError, match="'ask' or 'allow'"):
        Standard("sometimes")  # type: ignore[arg-type]


def test_no_reason_holds_an_argument() -> None:
    everything = {"safe": False, "requires_approval": True, "threat_level": "high"}
    decision = decided({**everything, "repaired": True, "tainted": True})
    assert CANARY not in repr(decision)
