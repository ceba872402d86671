"""Why did this call run? One sentence, from the entries of the log; and the times that one may name."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from cli.audit_records import (
    ALLOWED,
    ASKED,
    NOON,
    POLICY_ASKED,
    REJECTED,
    begun,
    ended,
    failed,
    record,
    told,
)
from rows import each_row

from toolcrib.audit import AuditEntry
from toolcrib.cli.audit import stories
from toolcrib.cli.options import moment
from toolcrib.errors import ErrorCode
from toolcrib.values.decision import Allow, Deny
from toolcrib.values.record import FOR_RUN, FOR_RUN_EXACTLY, ToolInvocationRecord

RAN = "It ran because the policy 'standard' allowed it (nothing about this tool asks for more)"
WHY: list[tuple[Sequence[ToolInvocationRecord], str]] = [
    (
        [begun(), record()],
        "It ran because the policy 'standard' allowed it (nothing about this tool asks for more).",
    ),
    ([begun(decision=Allow()), record(decision=Allow())], "It ran because a policy allowed it."),
    (
        [begun(), ended(ErrorCode.TIMEOUT)],
        "It ran because the policy 'standard' allowed it (nothing about this tool asks for more).",
    ),
    (
        [begun(decision=ASKED, approved_by="eve", edited=True)],
        (
            f"It ran because eve approved it and changed its arguments, after {POLICY_ASKED}, and the "
            "log does not say how it ended."
        ),
    ),
    (
        [begun(), ended(ErrorCode.NOT_RECORDED)],
        "It did not run: an audit sink failed to record its start.",
    ),
    (
        [told(REJECTED, None, arguments=None)],
        "It did not run: invalid_arguments at /cents: expected integer, got string.",
    ),
    (
        [told(REJECTED, ASKED, approved_by="eve", edited=True)],
        (
            "It did not run: eve changed its arguments: invalid_arguments at /cents: expected integer, "
            "got string."
        ),
    ),
    (
        [told(ErrorCode.BUDGET_EXCEEDED, Deny("10 calls", "budget", ErrorCode.BUDGET_EXCEEDED))],
        "It did not run: the policy 'budget' denied it (10 calls).",
    ),
    (
        [told(ErrorCode.APPROVAL_REQUIRED, ASKED)],
        f"It did not run: {POLICY_ASKED}, and nobody could be asked for approval.",
    ),
    (
        [told(ErrorCode.APPROVAL_REFUSED, ASKED, approved_by="eve")],
        f"It did not run: eve refused it, after {POLICY_ASKED}.",
    ),
    (
        [told(ErrorCode.APPROVAL_REFUSED, ASKED, approved_by="eve", refusal="too much")],
        f"It did not run: eve refused it (too much), after {POLICY_ASKED}.",
    ),
    (
        [told(ErrorCode.APPROVAL_EXPIRED, ASKED)],
        f"It did not run: {POLICY_ASKED}, and the answer came too late.",
    ),
    (
        [record(status="waiting", decision=ASKED)],
        f"It has not run: {POLICY_ASKED}, and nobody has answered yet.",
    ),
    (
        [
            record(status="waiting", decision=ASKED),
            begun(started_at=NOON + 5, decision=ASKED, approved_by="eve"),
            record(started_at=NOON + 5, decision=ASKED, approved_by="eve"),
        ],
        f"It ran because eve approved it, after {POLICY_ASKED}.",
    ),
    (
        [begun(), ended(ErrorCode.OUTCOME_UNKNOWN, started_at=NOON + 5, decision=None)],
        f"{RAN}, and the log does not say how it ended.",
    ),
    # Two processes make one call: whoever did not know of its outcome says so before or after it.
    ([begun(), record(), ended(ErrorCode.OUTCOME_UNKNOWN, started_at=NOON + 5)], f"{RAN}."),
    ([begun(), ended(ErrorCode.OUTCOME_UNKNOWN, started_at=NOON + 5), record()], f"{RAN}."),
    ([begun(), failed(ErrorCode.APPROVAL_MISMATCH, started_at=NOON + 5), record()], f"{RAN}."),
    ([begun(), record(), failed(ErrorCode.DENIED, started_at=NOON + 5)], f"{RAN}."),
    (
        [begun(), record(status="waiting", notes=("suspended",))],
        "It has begun, and waits for an answer to its question.",
    ),
    ([begun(), record(status="waiting", notes=("suspended",)), record()], f"{RAN}."),
    ([begun(), record(), record(status="waiting", started_at=NOON + 5)], f"{RAN}."),
    (
        [begun(), failed(ErrorCode.DENIED, started_at=NOON + 5)],
        f"{RAN}, and the log does not say how it ended.",
    ),
    (
        [told(ErrorCode.DENIED, Deny("no", "p")), failed(ErrorCode.DUPLICATE_CALL)],
        "It did not run: the policy 'p' denied it (no).",
    ),
    (
        [failed(ErrorCode.CANCELLED), told(ErrorCode.DENIED, Deny("no", "p"))],
        "It did not run: the policy 'p' denied it (no).",
    ),
    ([failed(ErrorCode.CANCELLED)], "It did not run: the call was cancelled first."),
    # A tool that only reads is written down when it is over: that it began, its key says.
    ([ended(ErrorCode.TOOL_ERROR)], f"{RAN}."),
    ([ended(ErrorCode.CANCELLED)], f"{RAN}."),
    (
        [ended(ErrorCode.NOT_RECORDED)],
        "It did not run: an audit sink failed to record its start.",
    ),
    # Another call under the id is not why this one ran, or did not.
    (
        [
            begun(name="look", definition_digest="sha256:d2", decision=Allow("other", "p")),
            ended(ErrorCode.OUTCOME_UNKNOWN, started_at=NOON + 5),
        ],
        f"{RAN}, and the log does not say how it ended.",
    ),
]


@each_row(("records", "why"), WHY, ids=[w[1][:60] for w in WHY])
def test_why_did_this_run(records: Sequence[ToolInvocationRecord], why: str) -> None:
    (story,) = stories(AuditEntry(n, NOON, one, "", "") for n, one in enumerate(records, 1))
    assert story.why() == why


@pytest.mark.parametrize(
    ("note", "told"),
    [
        (FOR_RUN, "for the whole run"),
        (FOR_RUN_EXACTLY, "for the same arguments in the whole run"),
    ],
)
def test_a_yes_for_the_whole_run_is_told_as_one(note: str, told: str) -> None:
    given = begun(decision=ASKED, approved_by="eve", notes=(note,))
    (story,) = stories([AuditEntry(1, NOON, given, "", "")])
    lines = [f"{line.what} {line.text}" for line in story.lines()]
    assert f"answered approved by eve, {told}" in lines
    assert not any(note in line for line in lines)


@each_row("code", ErrorCode)
def test_there_is_a_story_for_every_code(code: ErrorCode) -> None:
    for decision in (None, ALLOWED, ASKED, Deny("no", "p")):
        for first in ([], [begun(decision=decision)]):
            records = [*first, told(code, decision)]
            (story,) = stories(AuditEntry(n, NOON, one, "", "") for n, one in enumerate(records, 1))
            assert story.why().startswith("It ")
            assert next(line.what for line in story.lines()) == "asked"


MOMENTS: list[tuple[str, float]] = [
    ("2023-11-15T12:00", NOON),
    ("2023-11-15 12:00:00Z", NOON),
    ("2023-11-15T14:00+02:00", NOON),
    ("2023-11-15", NOON - 12 * 3600),
]


@pytest.mark.parametrize(("text", "at"), MOMENTS)
def test_a_moment(text: str, at: float) -> None:
    assert moment("--since", text) == at


@pytest.mark.parametrize(("text", "ago"), [("30s", 30), ("5m", 300), ("2h", 7200), ("1w", 604800)])
def test_a_moment_so_long_ago(text: str, ago: float) -> None:
    before = time.time()
    assert before - ago <= moment("--since", text) <= time.time() - ago
