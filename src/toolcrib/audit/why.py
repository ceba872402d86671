"""`why_of`: one sentence that says why a call ran or did not run, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.record import (
    SUSPENDED,
    ToolInvocationRecord,
    has_begun,
    is_final,
    same_call,
    standing,
)

_CHECK_STAGES = (Stage.PARSE, Stage.RESOLVE, Stage.VALIDATE, Stage.INSTANTIATE)
_PLAN_STATUSES = ("planned", "rejected")
_DECISION_VERBS = {Allow: "allowed it", Ask: "asked for an approval", Deny: "denied it"}
_NOT_RUN_REASONS = {
    ErrorCode.APPROVAL_REQUIRED: "nobody could be asked for approval",
    ErrorCode.APPROVAL_EXPIRED: "the answer came too late",
    ErrorCode.APPROVAL_FAILED: "asking for approval failed",
    ErrorCode.APPROVAL_MISMATCH: "its definition, caller or arguments have changed since",
    ErrorCode.ALREADY_USED: "the answer was already used",
    ErrorCode.OTHER_CALL: "the answer was given for another call",
    ErrorCode.UNKNOWN_APPROVAL: "no request has the id of the answer",
    ErrorCode.INVALID_RULE: "the signature of a rule for such calls does not match",
    ErrorCode.CANCELLED: "the call was cancelled first",
    ErrorCode.NOT_RECORDED: "an audit sink failed to record its start",
    ErrorCode.DUPLICATE_CALL: "another call has its id",
    ErrorCode.NOT_RUNNABLE: "the tool cannot be run in that program",
}


def why_of(records: Sequence[ToolInvocationRecord]) -> str:
    """Return why a call ran or did not run, given all the records under its id in order.

    Several calls may have come under one id: the sentence is about the one whose outcome stands.
    """
    record = standing(records)
    own = [each for each in records if same_call(each, record)]
    if record.status in _PLAN_STATUSES:
        return f"It has not run: {_plan_text(record)}."
    if SUSPENDED in own[-1].notes and not is_final(record):
        return "It has begun, and waits for an answer to its question."
    if record.status == "waiting":
        return f"It has not run: {_decision_text(record.decision)}, and nobody has answered yet."
    if not _began(record, own):
        return f"It did not run: {_stop_reason(record).rstrip('.')}."
    if not is_final(record):  # only why it was started is known
        record = next((each for each in own if each.status == "started"), record)
    reason = _decision_text(record.decision) or "the log does not say who decided"
    if record.approved_by is not None:
        edited = " and changed its arguments" if record.edited else ""
        reason = f"{record.approved_by} approved it{edited}, after {reason}"
    if record.emulated:
        return f"It did not run (an emulator gave the result), because {reason}."
    unknown = "" if is_final(record) else ", and the log does not say how it ended"
    return f"It ran because {reason}{unknown}."


def _began(record: ToolInvocationRecord, own: Sequence[ToolInvocationRecord]) -> bool:
    """Return whether the call's tool may have begun: a record has a key or a status that says so,
    and no sink failed before the call."""
    if record.error is not None and record.error.code is ErrorCode.NOT_RECORDED:
        return False
    return any(has_begun(each) or each.status in ("started", "completed") for each in own)


def _decision_text(decision: Decision | None) -> str:
    if decision is None:
        return ""
    policy = f"the policy '{decision.policy}'" if decision.policy else "a policy"
    reason = f" ({decision.reason})" if decision.reason else ""
    return f"{policy} {_DECISION_VERBS[type(decision)]}{reason}"


def _plan_text(record: ToolInvocationRecord) -> str:
    if record.status == "rejected" and record.error is not None:
        return f"it was planned, and rejected: {record.error}".rstrip(".")
    return "it was only planned, never started"


def _stop_reason(record: ToolInvocationRecord) -> str:
    error, decision = record.error, _decision_text(record.decision)
    if error is None:
        return "the log does not say why"
    is_invalid = error.stage in _CHECK_STAGES or error.code is ErrorCode.APPROVAL_MISMATCH
    if record.edited and is_invalid:
        return f"{record.approved_by} changed its arguments: {error}"
    if error.stage in _CHECK_STAGES:
        return str(error)
    if isinstance(record.decision, Deny):
        return decision
    if error.code is ErrorCode.APPROVAL_REFUSED:
        answerer = record.approved_by or "whoever was asked"
        refusal = f" ({record.refusal})" if record.refusal else ""
        return f"{answerer} refused it{refusal}{f', after {decision}' if decision else ''}"
    reason = _NOT_RUN_REASONS.get(error.code) or str(error)
    return f"{decision}, and {reason}" if isinstance(record.decision, Ask) else reason
