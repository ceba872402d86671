"""The standard policy: what each mark asks for, and that the marks add up."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from policies.policy_helpers import CANARY, call_of, context_of

from toolcrib import Allow, Ask, Caller, Deny
from toolcrib.errors import ToolcribError
from toolcrib.policies import Standard, standard
from toolcrib.values.context import RunTally
from toolcrib.values.definition import NoSchemaMode

APPROVAL = "the tool requires an approval"
UNSAFE = "the tool is marked as not safe"
THREAT = "the tool's threat level is high"
HUMAN = "its arguments were not checked, and its mode is human-approval"
READ_ONLY = "its arguments were not checked, and its mode is read-only"
REPAIRED = "its arguments were repaired"
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
    ({"tainted": True}, TAINTED, None, None),
]
POLICIES = {"ask": standard, "allow": Standard(repaired_reads="allow")}
ADMIN, ALICE = Caller("root", ("staff", "admin")), Caller("alice", ("staff",))


def decided(said: dict[str, Any], policy: Standard = standard, caller: Caller = ALICE) -> object:
    said = dict(said)
    tally = RunTally(tainted=said.pop("tainted", False))
    return policy(call_of(**said), context_of(tally, caller))


@pytest.mark.parametrize(("said", "writes", "reads", "repaired_reads"), REASONS)
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
    """3,072 decisions: roles deny before all else, and whoever is asked is told every reason."""
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
