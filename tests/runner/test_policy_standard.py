"""The standard policy: what each mark asks for, and that the marks add up."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from policies.policy_helpers import CANARY, call_of, context_of
from rows import each_row

from toolcrib import Allow, Ask, Caller, Deny
from toolcrib.errors import ToolcribError
from toolcrib.policies import Standard, standard
from toolcrib.runner.policy import ALLOWED
from toolcrib.values.context import RunTally
from toolcrib.values.definition import NoSchemaMode

APPROVAL = "the tool requires an approval"
UNSAFE = "the tool is marked as not safe"
THREAT = "the tool's threat level is high"
HUMAN = "its arguments were not checked, and its mode is human-approval"
READ_ONLY = "its arguments were not checked, and its mode is read-only"
REPAIRED = "its arguments were repaired"
IN_TEXT = (
    "the call was written in the text of the reply, and this model's text calls are not trusted"
)
NO_ARGUMENTS = "the reply had no arguments for it, and the tool has parameters"
STREAMED = "its arguments were streamed otherwise than they arrived in the end"
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
    assert standard.always_allows(call.definition)
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
