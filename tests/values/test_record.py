"""Decisions, approvals, records and the context of a call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import HydrationError
from toolcrib.values.context import CallContext, RunTally
from toolcrib.values.decision import (
    ANONYMOUS,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    Decision,
    Deny,
    Refuse,
)
from toolcrib.values.json import JsonValue
from toolcrib.values.record import CallError, Outcome, ToolInvocationRecord


@pytest.mark.parametrize(
    "decision", [Allow("fine", "p"), Deny("no", "p", ErrorCode.RATE_LIMITED), Ask("may it?", "p")]
)
def test_decisions_come_back_from_json_as_what_they_were(decision: Decision) -> None:
    text = msgspec.json.encode(decision)
    assert msgspec.json.decode(text, type=Allow | Deny | Ask) == decision


@pytest.mark.parametrize("answer", [Approve("grace", {"a": 1}), Refuse("no", "grace")])
def test_answers_come_back_from_json_as_what_they_were(answer: Approve | Refuse) -> None:
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Approve | Refuse) == answer


def test_a_denial_is_denied_unless_it_says_otherwise() -> None:
    assert Deny("no").code is ErrorCode.DENIED


@pytest.mark.parametrize(("now", "expired"), [(99.0, False), (100.0, True), (101.0, True)])
def test_a_request_lapses(now: float, expired: bool) -> None:
    assert ApprovalRequest("i", "t", {}, "why", expires_at=100.0).expired(now) is expired


def test_an_error_is_a_line_with_its_places() -> None:
    details = tuple(
        HydrationError(Stage.VALIDATE, ErrorCode.INVALID_ARGUMENTS, message, path)
        for message, path in (("'b' is missing", ""), ("expected integer, got string", "/a"))
    )
    error = CallError.of(ErrorCode.INVALID_ARGUMENTS, details=details)
    told = "invalid_arguments at /a: expected integer, got string; 'b' is missing"
    assert str(error) == told
    assert str(CallError.of(ErrorCode.TOOL_ERROR)) == "tool_error: The tool failed."


def test_an_error_has_the_fixed_text_of_its_code() -> None:
    error = CallError.of(ErrorCode.TIMEOUT)
    assert error.message == ErrorCode.TIMEOUT.info.text
    assert (error.stage, error.retryable) == (Stage.RUN, False)


def test_an_error_may_carry_an_authors_safe_text_and_where_it_arose() -> None:
    detail = HydrationError(Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS, "no", "/a")
    error = CallError.of(ErrorCode.INVALID_ARGUMENTS, "safe", details=(detail,))
    assert (error.message, error.stage, error.details) == ("safe", Stage.INSTANTIATE, (detail,))


def test_a_record_is_json() -> None:
    record = ToolInvocationRecord(
        id="c", name="t", status="failed", started_at=1.0, error=CallError.of(ErrorCode.DENIED)
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=ToolInvocationRecord) == record
    with pytest.raises(AttributeError):
        record.status = "completed"  # type: ignore[misc]


def test_a_tally_counts() -> None:
    tally = RunTally()
    tally.count("a", 0.5)
    tally.count("a", 0.25)
    tally.count("b", 0.0)
    assert (tally.calls, tally.cost, tally.per_tool) == (3, 0.75, {"a": 2, "b": 1})
    assert RunTally().per_tool == {}


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def approval_requested(self, request: ApprovalRequest) -> None:
        raise NotImplementedError

    def progress(self, call_id: str, part: JsonValue) -> None:
        self.seen.append((call_id, part))

    def finished(self, outcome: Outcome) -> None:
        raise NotImplementedError


def test_progress_reaches_whoever_watches() -> None:
    watcher = Watcher()
    CallContext("c", "r", "k", ANONYMOUS, None, watcher).progress({"done": 1})
    CallContext("c", "r", "k", ANONYMOUS, None).progress("nobody hears it")
    assert watcher.seen == [("c", {"done": 1})]


OLD_ROW = (
    '{"arguments":{"order":7},"arguments_bytes":11,"caller":"ada","decision":{"policy":"standard",'
    '"reason":"","type":"allow"},"definition_digest":"sha256:00","id":"call_7","idempotency_key":'
    '"run_1/call_7","key_scope":"store","name":"refund","result":{"cents":5},"run_id":"run_1",'
    '"seconds":0.25,"started_at":1764000000.25,"status":"completed","validated":true}'
)
"""What this library wrote before its records had `defaulted` and what follows it."""


def test_a_record_of_before_is_read_and_written_as_it_was() -> None:
    old = msgspec.json.decode(OLD_ROW, type=ToolInvocationRecord)
    assert (old.defaulted, old.parent_run_id, old.parent_call_id) == ((), "", "")
    assert msgspec.json.encode(old, order="sorted").decode() == OLD_ROW


def test_a_record_is_made_by_keyword() -> None:
    with pytest.raises(TypeError):
        ToolInvocationRecord("c", "t", "completed", 0.0)  # type: ignore[call-arg]
