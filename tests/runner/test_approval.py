"""What a person is asked, and what counts as an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    Caller,
    Catalog,
    Completed,
    Deny,
    ErrorCode,
    Failed,
    Hydrated,
    PolicyContext,
    Refuse,
    ToolCall,
    ToolRunner,
    Waiting,
    hydrate,
    tool,
)
from toolcrib.approvals import ApprovalStore, TerminalApprover
from toolcrib.audit import AuditLog
from toolcrib.errors import ApprovalError, MissingExtraError
from toolcrib.runner import CallScope, approval_request
from toolcrib.runner.approval import check_approver, checked_answer, differing, request_id
from toolcrib.testing import MemorySink
from toolcrib.tools.lock import CLOSED_NOW
from toolcrib.values.context import RunTally, ToolApproval
from toolcrib.values.decision import Answer, Approver, Decision, LimitedApprove
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.record import FOR_RUN, CallError

CALL = ToolCall("call_0", "delete", '{"path": "a", "password": "hush"}')


@tool(visible=ALL, safe=False, secret=["password"])
async def delete(path: str, password: str = "") -> str:
    """Delete a path."""
    return f"deleted {path}"


def requested(
    call: ToolCall = CALL, *, caller: str = "ada", run: str = "r", nonce: str = ""
) -> ApprovalRequest:
    hydrated = hydrate(call, Catalog([delete]))
    assert isinstance(hydrated, Hydrated)
    tally = RunTally(run, nonce)
    return approval_request(hydrated, Ask("why"), caller=Caller(caller), run=tally)


def test_the_id_changes_with_everything_that_an_approval_is_bound_to() -> None:
    base = requested()
    others = [
        requested(msgspec.structs.replace(CALL, id="call_1")),
        requested(msgspec.structs.replace(CALL, arguments='{"path": "b", "password": "hush"}')),
        requested(msgspec.structs.replace(CALL, arguments='{"path": "a", "password": "x"}')),
        requested(caller="eve"),
        requested(run="other"),
        requested(nonce="n"),
    ]
    assert len({base.id, *(other.id for other in others)}) == 7


NOT_YES: dict[str, Answer] = {
    "a no": Refuse("no", by="ada"),
    "an edit that does not fit": Approve("ada", {"path": 7}),
    "an edit that is none": Approve("ada", {"path": float("nan")}),
    "beyond what may be": LimitedApprove(
        "ada", {"path": "b"}, may=lambda asked: asked.arguments["path"] == "a"
    ),
}


@each_row("first", NOT_YES.values(), ids=NOT_YES)
@each_row("second", [Approve("grace"), Approve("grace", {"path": "c"}), Refuse(by="grace")])
@each_row("where", ["one process", "two with a log", "denied before, with a log", "two without"])
async def test_an_answered_question_is_used_up(
    first: Answer, second: Answer, where: str, tmp_path: Path
) -> None:
    """And no record names anybody for what another has answered."""
    asked = requested()
    sink = MemorySink()

    def closed(_call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("closed")

    async def answered(runner: ToolRunner, answer: Answer) -> Completed | Failed:
        scope = CallScope(RunTally("r"), answers={asked.id: answer}, questions={asked.id: asked})
        outcome = await runner.exec(CALL, caller=Caller("ada"), scope=scope)
        assert isinstance(outcome, Completed | Failed)
        return outcome

    async with AuditLog(f"sqlite:///{tmp_path}/log.db") as log:
        one, another = (
            ToolRunner([delete], sinks=[log, sink] if "with a log" in where else [sink])
            for _ in range(2)
        )
        if "denied" in where:  # the run went on without an answer, when nothing was allowed
            shut = ToolRunner([delete], sinks=[log], policy=[closed])
            await shut.exec(CALL, caller=Caller("ada"), scope=CallScope(RunTally("r")))
        ended = await answered(one, first)
        later = await answered(one if where == "one process" else another, second)
    assert isinstance(ended, Failed)
    if where == "two without":  # nobody has told the other one
        assert isinstance(later, Completed) == isinstance(second, Approve)
        return
    assert isinstance(later, Failed)
    assert later.error.code is ended.error.code
    assert (later.record.approved_by, later.record.edited) == ("ada", ended.record.edited)
    assert (later.notice, later.error.retryable) == (ended.notice, ended.error.retryable)
    assert {record.status for record in sink.records} == {"failed"}


async def test_an_edit_is_told_with_the_outcome_whoever_is_given_it(tmp_path: Path) -> None:
    """In the process that made the call, and in one that has the outcome from the log."""
    asked = requested()
    given = Approve("ada", {"path": "b", "password": "***"})
    scope = CallScope(RunTally("r"), answers={asked.id: given}, questions={asked.id: asked})
    async with AuditLog(f"sqlite:///{tmp_path}/log.db") as log:
        one, another = (ToolRunner([delete], sinks=[log]) for _ in range(2))
        outcomes = [
            await r.exec(CALL, caller=Caller("ada"), scope=scope) for r in (one, one, another)
        ]
    assert [o.replayed for o in outcomes if isinstance(o, Completed)] == [False, True, True]
    notices = {o.notice for o in outcomes if isinstance(o, Completed)}
    assert len(notices) == 1
    assert '{"password":"***","path":"b"}' in notices.pop()
    assert {outcome.record.edited for outcome in outcomes} == {True}


@pytest.mark.parametrize("who", ["the same answer", "nobody", "a live approver"])
async def test_an_edit_that_runs_elsewhere_is_told_with_its_arguments(
    who: str, tmp_path: Path
) -> None:
    """By whoever comes to the call while its tool runs, or after it was killed."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL, safe=False, secret=["password"], name="delete")
    async def slow(path: str, password: str = "") -> str:
        """Delete a path."""
        began.set()
        await goes_on.wait()
        return f"deleted {path}"

    async def live(_request: ApprovalRequest) -> Answer:
        return given

    asked = requested()
    given = Approve("ada", {"path": "b", "password": "***"})
    scope = CallScope(RunTally("r"), answers={asked.id: given}, questions={asked.id: asked})
    async with AuditLog(f"sqlite:///{tmp_path}/log.db") as log:
        one = ToolRunner([slow], sinks=[log])
        running = asyncio.create_task(one.exec(CALL, caller=Caller("ada"), scope=scope))
        await began.wait()
        later = scope if who == "the same answer" else CallScope(RunTally("r"))
        another = ToolRunner([slow], sinks=[log], approver=live if "live" in who else None)
        told = await another.exec(CALL, caller=Caller("ada"), scope=later)
        goes_on.set()
        ended = await running
    assert isinstance(told, Failed)
    assert told.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert isinstance(ended, Completed)
    assert told.notice == ended.notice
    shown = {"path": "b", "password": "***"}
    assert [(r.arguments, r.edited, r.approved_by) for r in (told.record, ended.record)] == [
        (shown, True, "ada")
    ] * 2


async def test_an_edit_of_a_call_that_runs_in_this_process_is_not_said_to_have_not_run() -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    @tool(visible=ALL, safe=False, secret=["password"], name="delete")
    async def slow(path: str, password: str = "") -> str:
        """Delete a path."""
        began.set()
        await goes_on.wait()
        return f"deleted {path}"

    asked = requested()
    given = Approve("ada", {"path": "b"})
    scope = CallScope(RunTally("r"), answers={asked.id: given}, questions={asked.id: asked})
    runner = ToolRunner([slow])
    running = asyncio.create_task(runner.exec(CALL, caller=Caller("ada"), scope=scope))
    await began.wait()
    told = await runner.exec(CALL, caller=Caller("ada"), scope=scope)
    goes_on.set()
    assert isinstance(await running, Completed)
    assert isinstance(told, Failed)
    assert told.error.code is ErrorCode.DUPLICATE_CALL
    assert told.notice == "Whoever approved this call changed its arguments."


async def test_an_edit_that_is_denied_was_not_made() -> None:
    def few(call: Hydrated, _context: PolicyContext) -> Decision:
        return Deny("b") if call.arguments["path"] == "b" else Ask("why")

    async def live(_request: ApprovalRequest) -> Answer:
        return Approve("ada", {"path": "b", "password": "***"})

    outcome = await ToolRunner([delete], policy=[few], approver=live).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.DENIED
    assert outcome.notice == "Whoever approved this call changed its arguments. It has not run."


async def test_who_did_not_answer_may_still_do_so() -> None:
    asked = requested()
    runner = ToolRunner([delete])
    for answers in ({}, {asked.id: Approve("ada")}):
        scope = CallScope(RunTally("r"), answers=answers, questions={asked.id: asked})
        outcome = await runner.exec(CALL, caller=Caller("ada"), scope=scope)
    assert isinstance(outcome, Completed)


def test_the_id_does_not_change_with_spacing_and_key_order() -> None:
    same = msgspec.structs.replace(CALL, arguments='{"password":"hush","path":"a"}')
    assert requested(same).id == requested().id


def test_a_changed_definition_lapses_its_approvals() -> None:
    @tool(visible=ALL, safe=False, secret=["password"], name="delete")
    async def changed(path: str, password: str = "") -> str:
        """Delete a path, and tell everybody."""
        return path

    hydrated = hydrate(CALL, Catalog([changed]))
    assert isinstance(hydrated, Hydrated)
    other = approval_request(hydrated, Ask("why"), caller=Caller("ada"), run=RunTally("r"))
    assert other.id != requested().id


def test_secret_arguments_are_masked_in_the_question() -> None:
    asked = requested()
    assert asked.arguments == {"path": "a", "password": "***"}
    assert asked.arguments_digest == ""
    assert "hush" not in str(asked)


@pytest.mark.parametrize("asks", [Ask("why", "standard"), Ask("why", "own")])
def test_a_question_says_of_which_definition_and_arguments_it_is(asks: Ask) -> None:
    call = ToolCall("c", "delete", '{"path": "a"}')
    hydrated = hydrate(call, Catalog([delete]))
    assert isinstance(hydrated, Hydrated)
    tally = RunTally("r", tainted=True)
    secret = approval_request(hydrated, asks, caller=Caller("ada"), run=tally)
    assert secret.definition_digest == delete.get_definition().digest
    assert (secret.arguments_digest, secret.defaults) == ("", ("/password",))
    assert not secret.for_run  # a tool that is not safe is asked about each time
    open_ = hydrate(ToolCall("c", "pay", '{"cents": [1]}'), Catalog([pay]))
    assert isinstance(open_, Hydrated)
    request = approval_request(open_, asks, caller=Caller("ada"), run=tally)
    assert request.arguments_digest == f"sha256:{sha256(open_.canonical).hexdigest()}"
    risky = msgspec.structs.replace(
        open_,
        definition=msgspec.structs.replace(
            open_.definition,
            annotations=msgspec.structs.replace(
                open_.definition.annotations, safe=True, requires_approval=True
            ),
        ),
    )
    asked = approval_request(risky, asks, caller=Caller("ada"), run=tally)
    assert asked.for_run is (asks.policy == "standard")
    assert asked.caller == "ada"
    assert request_id(asked, tally) == asked.id
    assert re.fullmatch("apr_[0-9a-f]{40}", asked.id)
    for_all = (ToolApproval("apr_0", "grace", risky.definition.digest, "ada"),)
    approved = RunTally("r", tainted=True, approved=for_all)
    again = approval_request(risky, asks, caller=Caller("ada"), run=approved)
    assert not again.for_run  # somebody said so already, and it asks all the same


async def test_a_question_lapses_after_the_time_that_a_runner_was_given() -> None:
    waiting = await ToolRunner([delete], approver=_waits, approval_seconds=60).exec(CALL)
    assert isinstance(waiting, Waiting)
    assert waiting.request.expires_at - waiting.request.asked_at == 60


async def test_a_policy_that_denies_meanwhile_says_with_which_code() -> None:
    decisions: list[Allow | Deny] = [Allow(), Deny("no more", code=ErrorCode.RATE_LIMITED)]

    def meanwhile(_call: Hydrated, _context: PolicyContext) -> Allow | Deny:
        return decisions.pop(0)

    async def yes(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace")

    outcome = await ToolRunner([delete], approver=yes, policy=meanwhile).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.RATE_LIMITED
    assert outcome.record.decision == Deny("no more", "meanwhile", ErrorCode.RATE_LIMITED)


NUMBERS = itertools.count(1)


@dataclasses.dataclass
class Booking:
    room: str
    number: int = dataclasses.field(default_factory=lambda: next(NUMBERS))


@tool(visible=ALL, safe=False)
async def book(booking: Booking) -> int:
    """Book a room."""
    return booking.number


async def test_a_default_that_is_made_for_a_call_is_made_once_though_it_waits() -> None:
    call = ToolCall("call_0", "book", '{"booking": {"room": "a"}}')
    runner = ToolRunner([book], approver=_waits)
    waiting = await runner.exec(call)
    assert isinstance(waiting, Waiting)
    request = waiting.request
    scope = CallScope(RunTally(), {request.id: Approve(by="grace")}, {request.id: request})
    outcome = await runner.exec(call, scope=scope)
    assert isinstance(outcome, Completed)
    assert request.arguments == {"booking": {"room": "a", "number": outcome.value}}


def test_a_question_says_when_it_was_asked_and_when_it_lapses() -> None:
    asked = requested()
    assert asked.expires_at - asked.asked_at == 7 * 24 * 3600
    assert not asked.expired()
    assert asked.expired(asked.expires_at)


@each_row("name", ["id", "tool", "call_id", "run_id", "caller", "definition_digest"])
def test_two_questions_differ_in_a_field(name: str) -> None:
    asked = requested()
    assert differing(asked, msgspec.structs.replace(asked, **{name: "other"})) == [name]


def test_when_and_why_it_was_asked_is_no_part_of_a_question() -> None:
    asked = requested()
    again = msgspec.structs.replace(asked, reason="tainted", expires_at=1.0, asked_at=0.0)
    assert differing(asked, again) == []


@each_row("other", [True, 1.5, "1", None, [1]])
def test_arguments_are_compared_as_json(other: Any) -> None:
    asked = msgspec.structs.replace(requested(), arguments={"n": 1})
    assert differing(asked, msgspec.structs.replace(asked, arguments={"n": 1.0})) == []
    changed = msgspec.structs.replace(asked, arguments={"n": other})
    assert differing(asked, changed) == ["arguments"]


async def asks(_request: ApprovalRequest) -> Answer | None:
    return None


def plain(_request: ApprovalRequest) -> Any:
    return Approve(by="ada")


@functools.wraps(asks)
def wrapping(request: ApprovalRequest) -> Awaitable[Answer | None]:
    return asks(request)


class Asker:
    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        return None

    async def ask(self, request: ApprovalRequest) -> Answer | None:
        return None

    def plain(self, request: ApprovalRequest) -> Any:
        return None


class PlainAsker:
    def __call__(self, request: ApprovalRequest) -> Any:
        return None


async def lacking() -> None:
    return None


@each_row(
    "approver",
    [asks, wrapping, functools.partial(asks), Asker(), Asker().ask, TerminalApprover()],
    ids=["function", "wrapper", "partial", "object", "method", "terminal"],
)
def test_what_is_an_approver(approver: Callable[..., Any]) -> None:
    check_approver(approver)


def test_a_store_is_an_approver() -> None:
    check_approver(ApprovalStore("sqlite://"))


@each_row(
    ("approver", "told"),
    [
        (plain, "an approver must be an async function: plain is a plain function"),
        (functools.partial(plain), "plain is a plain function"),
        (lambda _request: None, "<lambda> is a plain function"),
        (PlainAsker(), "__call__ is a plain function"),
        (input, "input is a plain function"),
        (Asker().plain, "plain is a plain function"),
        (TerminalApprover, r"not a class: TerminalApprover\(…\)"),
        (lacking, "one argument, the ApprovalRequest: lacking does not"),
        ("yes", "a str is not an approver"),
        (True, "a bool is not an approver"),
    ],
)
def test_what_is_no_approver(approver: object, told: str) -> None:
    with pytest.raises(ApprovalError, match=told):
        check_approver(approver)


class Yes(str):
    """Looks like an answer, and is none."""


def for_always() -> Approve:
    answer = Approve("ada")
    msgspec.structs.force_setattr(answer, "for_run", "always")
    return answer


@each_row(
    ("answer", "code", "told"),
    [
        (True, ErrorCode.APPROVAL_FAILED, "a bool is not an answer"),
        (Approve, ErrorCode.APPROVAL_FAILED, "the class Approve is not an answer"),
        (None, ErrorCode.APPROVAL_FAILED, "a NoneType is not an answer"),
        (Yes("approve"), ErrorCode.APPROVAL_FAILED, "a Yes is not an answer"),
        ({"type": "approve", "by": "eve"}, ErrorCode.APPROVAL_FAILED, "a dict is not an answer"),
        (Approve(by=""), ErrorCode.APPROVAL_FAILED, "needs the name"),
        (Approve(by=" \n"), ErrorCode.APPROVAL_FAILED, "needs the name"),
        (Approve(by="\u200b \u3164\u00ad"), ErrorCode.APPROVAL_FAILED, "needs the name"),
        (Approve("ada", {"n": float("nan")}), ErrorCode.INVALID_ARGUMENTS, "not JSON"),
        (Approve("ada", {"n": float("-inf")}), ErrorCode.INVALID_ARGUMENTS, "not JSON"),
        (Approve("ada", {"n": "\ud800"}), ErrorCode.INVALID_ARGUMENTS, "not JSON"),
        (Approve("ada", {1: 1}), ErrorCode.INVALID_ARGUMENTS, "not JSON"),  # type: ignore[dict-item]
        (
            Approve("ada", MappingProxyType({})),  # type: ignore[arg-type]
            ErrorCode.INVALID_ARGUMENTS,
            "edited arguments must be a JSON object, not a mappingproxy",
        ),
        (Approve("ada", {"n": b""}), ErrorCode.INVALID_ARGUMENTS, "not JSON"),  # type: ignore[dict-item]
        (Approve("ada", {"n": 10**50}), ErrorCode.INVALID_ARGUMENTS, "40 digits"),
        (Approve("ada", {"n": "x" * 1_048_576}), ErrorCode.INVALID_ARGUMENTS, "1048576 bytes"),
        (Approve("ada", {"n": [0] * 100_001}), ErrorCode.INVALID_ARGUMENTS, "100000 values"),
        (for_always(), ErrorCode.APPROVAL_FAILED, 'is True, False or "exactly"'),
    ],
)
def test_what_is_no_answer(answer: object, code: ErrorCode, told: str) -> None:
    with pytest.raises(ApprovalError, match=told) as raised:
        checked_answer(answer)
    assert raised.value.code is code
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@each_row(
    ("text", "answer"),
    [
        ('{"type":"approve","by":"ada"}', Approve("ada")),
        ('{"type":"approve","by":"ada","arguments":{"n":1}}', Approve("ada", {"n": 1})),
        ('{"type":"approve","by":"ada","for_run":false}', Approve("ada")),
        ('{"type":"approve","by":"ada","for_run":true}', Approve("ada", for_run=True)),
        ('{"type":"approve","by":"ada","for_run":"exactly"}', Approve("ada", for_run="exactly")),
        ('{"type":"refuse","reason":"no","by":"ada"}', Refuse("no", "ada")),
    ],
)
def test_an_answer_that_was_kept_as_json_still_reads(text: str, answer: Answer) -> None:
    assert msgspec.json.decode(text, type=Approve | Refuse) == answer
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Approve | Refuse) == answer


def test_arguments_that_contain_themselves_are_no_answer() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(ApprovalError, match="not JSON"):
        checked_answer(Approve("ada", endless))


def test_arguments_that_are_nested_too_deep_are_said_to_be() -> None:
    for depth in (101, 500, 100_000):
        deep: JsonValue = []
        for _ in range(depth):
            deep = [deep]
        with pytest.raises(ApprovalError, match="deep") as raised:
            checked_answer(Approve("ada", {"n": deep}))
        assert raised.value.code is ErrorCode.INVALID_ARGUMENTS


@each_row(
    "answer",
    [
        Approve("ada"),
        Approve("ada", {}),
        Approve("ada", {"n": [1, 2**70, 0.5, None, True, "é"]}),
        Refuse(),
        Refuse("no", by="ada"),
    ],
)
def test_what_is_an_answer_stays_as_it_is(answer: Answer) -> None:
    assert checked_answer(answer) == answer


def test_text_that_no_file_can_hold_is_replaced() -> None:
    assert checked_answer(Refuse("\ud800", by="a\udfff")) == Refuse("?", "a?")
    assert checked_answer(Approve("a\ud800")) == Approve("a?")


async def broken(_request: ApprovalRequest) -> Answer:
    raise RuntimeError("hunter2")


async def lacks_an_extra(_request: ApprovalRequest) -> Any:
    raise MissingExtraError("pager", "paging somebody")


async def test_what_an_approver_lacks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The record says only that nobody answered."""
    failed = await ToolRunner([delete], approver=lacks_an_extra).exec(CALL)
    assert isinstance(failed, Failed)
    assert failed.error.code is ErrorCode.APPROVAL_FAILED
    assert "the approver of tool 'delete' failed: paging somebody needs an extra" in caplog.text


async def says_true(_request: ApprovalRequest) -> Any:
    return True


async def nameless(_request: ApprovalRequest) -> Any:
    return Approve(by="")


async def says_no_by_exception(_request: ApprovalRequest) -> Any:
    raise ApprovalError("no", ErrorCode.APPROVAL_REFUSED)


async def cancels_itself(_request: ApprovalRequest) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("approver", "told"),
    [
        (broken, "asking for the approval failed"),
        (says_true, r"a bool is not an answer: return Approve\(by=…\) or Refuse\(\)"),
        (nameless, "an approval needs the name of the approver"),
        (cancels_itself, "asking for the approval failed"),
        (says_no_by_exception, "asking for the approval failed"),
    ],
)
async def test_an_approver_that_fails_is_nobodys_no(
    approver: Approver, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[tuple[str, BaseException]] = []
    sink = MemorySink()
    runner = ToolRunner(
        [delete],
        approver=approver,
        sinks=[sink],
        on_exception=lambda call, error: raised.append((call.id, error)),
    )
    outcome = await runner.exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_FAILED
    assert re.search(told, outcome.error.message)
    [record] = sink.records
    assert (record.approved_by, record.refusal) == (None, "")
    assert [call_id for call_id, _ in raised] == [CALL.id]
    how = "raised" if "failed" in told else f"failed: {told}"
    assert re.search(f"the approver of tool 'delete' {how}", caplog.text)
    assert "hunter2" not in f"{outcome} {caplog.text}"


@each_row(
    ("field", "value", "code"),
    [
        ("arguments", {"path": "b", "password": "***"}, ErrorCode.APPROVAL_MISMATCH),
        ("caller", "eve", ErrorCode.APPROVAL_MISMATCH),
        ("definition_digest", "sha256:0", ErrorCode.APPROVAL_MISMATCH),
        ("tool", "other", ErrorCode.OTHER_CALL),
        ("call_id", "call_9", ErrorCode.OTHER_CALL),
        ("run_id", "other", ErrorCode.OTHER_CALL),
    ],
)
async def test_a_yes_to_what_was_shown_runs_nothing_else(
    field: str, value: object, code: ErrorCode
) -> None:
    """What somebody was shown under an id was another question than what the id stands for."""
    asked = requested(caller="anonymous", run="")
    shown = msgspec.structs.replace(asked, **{field: value})
    scope = CallScope(RunTally(), {asked.id: Approve(by="grace")}, {asked.id: shown})
    outcome = await ToolRunner([delete]).exec(CALL, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is code


async def test_edited_arguments_are_hydrated_anew_and_recorded() -> None:
    sink = MemorySink()

    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": "b"})

    outcome = await ToolRunner([delete], approver=editor, sinks=[sink]).exec(CALL)
    assert isinstance(outcome, Completed)
    assert outcome.value == "deleted b"
    assert sink.records[-1].arguments == {"path": "b", "password": "***"}
    assert sink.records[-1].defaulted == ("/password",)
    assert sink.records[-1].approved_by == "grace"


async def test_arguments_that_come_back_as_they_were_shown_are_not_edited() -> None:
    async def form(request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments=request.arguments)

    outcome = await ToolRunner([delete], approver=form).exec(CALL)
    assert isinstance(outcome, Completed)
    assert (outcome.record.approved_by, outcome.record.edited) == ("grace", False)
    assert outcome.notice == ""


@dataclasses.dataclass
class ByCard:
    kind: Literal["card"]
    cents: int = 100


@dataclasses.dataclass
class ByBank:
    kind: Literal["bank"]
    cents: int = 100_000


@dataclasses.dataclass
class InCash:
    kind: Literal["cash"]
    cents: int


@pytest.mark.parametrize("kind", ["bank", "cash"])
async def test_a_default_that_was_shown_stays_where_an_edit_would_change_it(kind: str) -> None:
    @tool(visible=ALL, safe=False)
    async def pay(by: ByCard | ByBank | InCash) -> int:
        """Pay."""
        return by.cents

    async def editor(request: ApprovalRequest) -> Answer:
        assert request.arguments == {"by": {"kind": "card", "cents": 100}}
        return Approve(by="grace", arguments={"by": {"kind": kind, "cents": 100}})

    call = ToolCall("call_1", "pay", '{"by": {"kind": "card"}}')
    outcome = await ToolRunner([pay], approver=editor).exec(call)
    assert isinstance(outcome, Completed)
    assert outcome.value == 100
    assert outcome.record.arguments == {"by": {"kind": kind, "cents": 100}}


class Fee(NamedTuple):
    order: int
    cents: int = 2
    times: int = 3


@dataclasses.dataclass(frozen=True)
class Line:
    order: int
    cents: int = 9


LINES = [{"order": 3}, {"order": 5, "cents": 7}, {"order": 6, "cents": 7}]


@pytest.mark.parametrize("note", ["", "edited"])
@pytest.mark.parametrize(
    ("hint", "sent", "edited"),
    [
        (Fee, [1], [1, 2, 2]), (Fee, [1], [1, 3, 3]), (Fee, [1], [1, 2, 3]), (Fee, [1], [1, 2]),
        (list[Fee], [[1], [2, 9]], [[1, 2, 2], [2, 9, 3]]), (list[Line], LINES, LINES[1:]),
        (set[Line], LINES, None), (frozenset[Line], LINES[::-1], None),
        (set[Line], LINES, [{"order": 3, "cents": 7}, *LINES[1:]]),
        (set[tuple[Line, int]], [[line, 1] for line in LINES], None),
    ],
)  # fmt: skip
async def test_an_edit_of_what_stands_in_arrays_runs_as_it_was_approved(
    hint: Any, sent: Any, edited: Any, note: str
) -> None:
    """A default that is left out and comes back must not come back at another item."""
    got: list[Any] = []

    def pay(fees: Any, note: str = "") -> int:
        """Pay."""
        got.append(fees)
        return 1

    pay.__annotations__ = {"fees": hint, "note": str, "return": int}
    approved: list[Any] = []

    async def editor(request: ApprovalRequest) -> Answer:
        shown = request.arguments["fees"]
        approved.append(shown if edited is None else edited)
        return Approve(by="grace", arguments={"fees": approved[0], "note": note})

    call = ToolCall("call_1", "pay", json.dumps({"fees": sent}))
    runner = ToolRunner([tool(visible=ALL, safe=False)(pay)], approver=editor)
    outcome = await runner.exec(call)
    assert isinstance(outcome, Completed), outcome
    fresh = ToolCall("call_2", "pay", json.dumps({"fees": approved[0], "note": note}))
    wanted = hydrate(fresh, runner.catalog)
    assert isinstance(wanted, Hydrated)
    assert outcome.record.arguments == wanted.arguments
    assert got == [wanted.tool.arguments["fees"]]


@pytest.mark.parametrize("order", [7, 8])
async def test_what_a_validator_changed_is_not_changed_again_by_an_edit_of_the_rest(
    order: int,
) -> None:
    @tool(visible=ALL, safe=False)
    def refund(order: int, cents: Annotated[int, AfterValidator(lambda euros: 100 * euros)]) -> int:
        """Refund."""
        return cents

    async def editor(request: ApprovalRequest) -> Answer:
        assert request.arguments == {"order": 7, "cents": 500}
        return Approve("grace", arguments={**request.arguments, "order": order})

    call = ToolCall("1", "refund", '{"order": 7, "cents": 5}')
    outcome = await ToolRunner([refund], approver=editor).exec(call)
    assert isinstance(outcome, Completed)
    assert outcome.value == 500
    assert outcome.record.arguments == {"order": order, "cents": 500}


class Raised(BaseModel):
    cents: Annotated[int, AfterValidator(lambda cents: cents + 1)] = Field(
        default_factory=lambda: 5
    )


async def test_a_default_that_its_validator_would_change_runs_as_it_was_shown() -> None:
    @tool(visible=ALL, safe=False)
    def refund(refund: Raised) -> int:
        """Refund."""
        return refund.cents

    async def editor(request: ApprovalRequest) -> Answer:
        assert request.arguments == {"refund": {"cents": 5}}
        return Approve("grace", arguments=request.arguments)

    outcome = await ToolRunner([refund], approver=editor).exec(
        ToolCall("1", "refund", '{"refund": {}}')
    )
    assert isinstance(outcome, Completed)
    assert outcome.value == 5
    assert outcome.record.arguments == {"refund": {"cents": 5}}


class Counted(BaseModel):
    cents: int
    number: int = Field(default_factory=itertools.count().__next__)


async def test_what_factories_made_in_what_a_validator_moved_runs_as_it_was_approved() -> None:
    @tool(visible=ALL, safe=False)
    def refund(
        all_of: Annotated[list[Counted], AfterValidator(lambda all_of: all_of[::-1])],
    ) -> list[int]:
        """Refund."""
        return [one.number for one in all_of]

    shown: list[Any] = []

    async def editor(request: ApprovalRequest) -> Answer:
        shown.extend(request.arguments["all_of"])  # type: ignore[arg-type]
        return Approve("grace", arguments=request.arguments)

    outcome = await ToolRunner([refund], approver=editor).exec(
        ToolCall("1", "refund", '{"all_of": [{"cents": 1}, {"cents": 2}]}')
    )
    assert isinstance(outcome, Completed)
    assert outcome.record.arguments == {"all_of": shown}
    assert outcome.value == [one["number"] for one in shown]


class Stamped(BaseModel):
    a: int
    v: int = Field(default_factory=lambda: 5)


class Fixed(BaseModel):
    b: int
    v: int = 7


class Texts(BaseModel):
    b: int
    v: str = "s"


class Free(BaseModel, extra="allow"):
    b: int


@pytest.mark.parametrize(
    ("hint", "sent", "edited", "shown"),
    [
        (Stamped | dict[str, int], {"a": 1}, {"b": 2}, {"b": 2}),
        (Stamped | Fixed, {"a": 1}, {"b": 2}, {"b": 2, "v": 7}),
        (Stamped | Texts, {"a": 1}, {"b": 2}, {"b": 2, "v": "s"}),
        (Stamped | Free, {"a": 1}, {"b": 2}, {"b": 2}),
        (
            list[Stamped | dict[str, int]], [{"a": 1}, {"a": 2}], [{"b": 1}, {"a": 2}],
            [{"b": 1}, {"a": 2, "v": 5}],
        ),
    ],
)  # fmt: skip
async def test_what_a_factory_made_is_put_only_where_a_factory_stands(
    hint: Any, sent: Any, edited: Any, shown: Any
) -> None:
    """An approver may put another kind of object in the place of one that had such a default."""
    got: list[Any] = []

    def take(x: Any) -> int:
        """Take."""
        got.append(x)
        return 1

    take.__annotations__ = {"x": hint, "return": int}

    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve("grace", arguments={"x": edited})

    runner = ToolRunner([tool(visible=ALL, safe=False)(take)], approver=editor)
    outcome = await runner.exec(ToolCall("1", "take", json.dumps({"x": sent})))
    assert isinstance(outcome, Completed)
    assert outcome.record.arguments == {"x": shown}
    assert TypeAdapter(hint).dump_python(got[0]) == shown


async def test_edited_arguments_that_are_not_valid_do_not_run() -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": 1})

    outcome = await ToolRunner([delete], approver=editor).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert "but the changed arguments are not valid" in outcome.notice
    record = outcome.record
    assert (record.approved_by, record.edited) == ("grace", True)
    assert record.arguments == {"path": "a", "password": "***"}


async def test_a_model_is_not_told_how_a_person_wrote_arguments_wrong() -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve("grace", {"path": float("nan")})

    outcome = await ToolRunner([delete], approver=editor).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error == CallError.of(ErrorCode.INVALID_ARGUMENTS, retryable=False)
    assert "but the changed arguments are not valid" in outcome.notice


ENTERED: list[Any] = []


@tool(visible=ALL, safe=False, secret=["login"])
def enter(login: dict[str, Any] | str, note: str = "") -> str:
    """Enter."""
    ENTERED.append(login)
    return note


@each_row(
    ("edit", "gets"),
    [
        ({"login": "***", "note": "a"}, {"user": "***", "keys": ["***"]}),
        ({"login": {"user": "eve"}}, {"user": "eve"}),
        ({"login": {"user": "eve"}, "note": "***"}, {"user": "eve"}),
        ({"login": {"user": "*** "}, "note": "***"}, None),
        ({"login": {"user": "***"}}, None),
        ({"login": {"user": "eve", "keys": [{"of": ["a", "***"]}]}}, None),
        ({"login": {"user": "a***"}}, None),
        ({"login": {"user": "eve", "keys": [{"***": "a"}]}}, None),
    ],
)
async def test_a_mask_stands_for_a_whole_secret_argument_and_not_for_a_part(
    edit: Any, gets: Any
) -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve("grace", edit)

    asked = ToolCall("1", "enter", '{"login": {"user": "***", "keys": ["***"]}}')
    sink = MemorySink()
    outcome = await ToolRunner([enter], approver=editor, sinks=[sink]).exec(asked)
    (record,) = sink.finished()
    assert record.edited
    if gets is not None:
        assert isinstance(outcome, Completed)
        assert ENTERED.pop() == gets
        return
    assert isinstance(outcome, Failed)
    assert not ENTERED
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert outcome.error.message.startswith("The edit has *** inside a secret argument.")


@each_row("user", ["ada", "bob"])
async def test_a_mask_that_the_model_sent_and_a_person_wrote_again_is_a_persons_edit(
    user: str,
) -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve("grace", {"login": {"user": user, "keys": ["***"]}})

    sink = MemorySink()
    asked = ToolCall("1", "enter", '{"login": {"user": "ada", "keys": ["***"]}}')
    outcome = await ToolRunner([enter], approver=editor, sinks=[sink]).exec(asked)
    assert isinstance(outcome, Failed)
    assert (sink.finished()[0].edited, outcome.error.retryable) == (True, False)
    assert outcome.notice.startswith("Whoever approved this call changed its arguments")


def no_longer(path: str) -> str:
    if path == "raises":
        raise KeyError(path)
    return path if path == "a" else f"{path}!"


@tool(visible=ALL, safe=False)
def moves(path: Annotated[str, AfterValidator(no_longer)], to: str = "b", size: int = 0) -> str:
    """Move a path."""
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "edited", "said"),
    [
        (None, None, False, ""),
        ({"path": "a", "to": "b", "size": 0}, None, False, ""),
        ({"path": "a", "to": "c"}, None, True, "It was made with: "),
        ({"path": "a", "to": "/"}, ErrorCode.DENIED, True, "It has not run."),
        ({"path": "a", "to": 5}, ErrorCode.INVALID_ARGUMENTS, True, "not valid"),
        ({"path": float("inf")}, ErrorCode.INVALID_ARGUMENTS, True, "not valid"),
        ({"path": "raises"}, ErrorCode.UNUSABLE_TOOL, True, "arguments. It has not run."),
        ({"path": "a", "to": {"default": "str"}}, ErrorCode.INVALID_ARGUMENTS, True, "not valid"),
        (Refuse("no", by="grace"), ErrorCode.APPROVAL_REFUSED, False, ""),
    ],
)
async def test_edited_says_that_whoever_approved_gave_other_arguments_whether_they_ran_or_not(
    arguments: Any, code: ErrorCode | None, edited: bool, said: str
) -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        if isinstance(arguments, Refuse):
            return arguments
        return Approve("grace", arguments)

    def no_root(hydrated: Hydrated, _context: PolicyContext) -> Deny | Ask:
        return Deny("no root") if hydrated.arguments["to"] == "/" else Ask("it moves")

    sink = MemorySink()
    runner = ToolRunner([moves], policy=no_root, approver=editor, sinks=[sink])
    outcome = await runner.exec(ToolCall("1", "moves", '{"path": "a"}'))
    (record,) = sink.finished()
    error = outcome.error if isinstance(outcome, Failed) else None
    assert (error and error.code) == code
    assert not (error and error.retryable)
    assert (record.approved_by, record.edited) == ("grace", edited)
    assert isinstance(outcome, Completed | Failed)
    assert said in outcome.notice
    assert bool(outcome.notice) == edited


async def test_an_edit_that_would_change_what_was_left_is_edited_too() -> None:
    readings = itertools.count()

    def another(path: str) -> str:
        return f"{path}{next(readings)}"

    @tool(visible=ALL, safe=False)
    def numbers(path: Annotated[str, AfterValidator(another)], to: str = "b") -> str:
        """Take a path that is another one each time."""
        return path

    async def editor(request: ApprovalRequest) -> Answer:
        return Approve("grace", {**request.arguments, "to": "c"})

    outcome = await ToolRunner([numbers], approver=editor).exec(
        ToolCall("1", "numbers", '{"path": "x"}')
    )
    assert isinstance(outcome, Failed), outcome
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert (outcome.record.approved_by, outcome.record.edited) == ("grace", True)
    assert "are not valid" in outcome.notice


async def test_who_wrote_a_validator_is_told_of_what_it_raised_about_edited_arguments() -> None:
    class Canary(Exception):  # noqa: N818  no error of the call's: the validator is broken
        pass

    def broken(path: str) -> str:
        if path == "b":
            raise Canary
        return path

    @tool(visible=ALL, safe=False, name="delete")
    async def checked(path: Annotated[str, AfterValidator(broken)], password: str = "") -> str:
        """Delete a path."""
        return path

    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": "b"})

    told: list[tuple[str, BaseException]] = []
    runner = ToolRunner(
        [checked], approver=editor, on_exception=lambda call, raised: told.append((call.id, raised))
    )
    assert isinstance(await runner.exec(CALL), Failed)
    assert [(id_, type(raised)) for id_, raised in told] == [("call_0", Canary)]


async def test_an_answer_given_beforehand_fits_its_own_request_only() -> None:
    runner = ToolRunner([delete])
    request = requested(caller="anonymous", run="")
    fits = CallScope(RunTally(), {request.id: Approve(by="grace")})
    assert isinstance(await runner.exec(CALL, scope=fits), Completed)
    other = ToolCall("call_1", "delete", '{"path": "b"}')
    forged = await runner.exec(other, scope=CallScope(RunTally(), {request.id: Approve(by="eve")}))
    assert isinstance(forged, Failed)
    assert forged.error.code is ErrorCode.APPROVAL_REQUIRED


@pytest.mark.parametrize(
    ("late", "expected"), [(0.0, None), (8 * 24 * 3600.0, ErrorCode.APPROVAL_EXPIRED)]
)
async def test_a_live_approver_may_think_for_too_long(
    monkeypatch: pytest.MonkeyPatch, late: float, expected: ErrorCode | None
) -> None:
    now = requested().asked_at

    async def thoughtful(_request: ApprovalRequest) -> Answer:
        monkeypatch.setattr("time.time", lambda: now + 60 + late)
        return Approve(by="ada")

    outcome = await ToolRunner([delete], approver=thoughtful).exec(CALL)
    code = outcome.error.code if isinstance(outcome, Failed) else None
    assert code is expected


async def test_a_policy_may_ask_for_what_is_safe() -> None:
    @tool(visible=ALL)
    async def read() -> str:
        """Read."""
        return "read"

    def cautious(_call: Hydrated, _context: PolicyContext) -> Ask:
        return Ask("always ask")

    outcome = await ToolRunner([read], policy=[cautious]).exec(ToolCall("c", "read", "{}"))
    assert isinstance(outcome, Failed)
    assert outcome.record.decision == Ask("always ask", "cautious")


async def test_a_question_asked_with_other_arguments_before_is_a_mismatch() -> None:
    """The very call was asked about, and answered, while it had other arguments."""
    runner = ToolRunner([delete], approver=_never_asked)
    asked = requested(caller="anonymous", run="")
    other = msgspec.structs.replace(CALL, arguments='{"path": "b"}')
    scope = CallScope(RunTally(), {asked.id: Approve(by="eve")}, {asked.id: asked})
    outcome = await runner.exec(other, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error == CallError.of(ErrorCode.APPROVAL_MISMATCH)


async def test_a_second_yes_for_the_run_changes_nothing() -> None:
    """A tool that is not safe asks each time; somebody else's yes is another one."""

    async def for_run(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", for_run=True)

    tally, sink = RunTally("run"), MemorySink()
    runner = ToolRunner([delete], approver=for_run, sinks=[sink])
    callers = (Caller("ada"), Caller("ada"), Caller("eve"))
    scope = CallScope(tally)
    for n, caller in enumerate(callers):
        call = msgspec.structs.replace(CALL, id=f"call_{n}")
        assert isinstance(await runner.exec(call, caller=caller, scope=scope), Completed)
    assert [(one.by, one.caller) for one in tally.approved] == [("grace", "ada"), ("grace", "eve")]
    assert [FOR_RUN in record.notes for record in sink.records] == [True, False, True]


@pytest.mark.parametrize("which", ["another call", "another run", "no answer"])
async def test_a_question_that_is_not_about_this_call_or_has_no_answer_says_nothing(
    which: str,
) -> None:
    if which == "another call":
        asked = requested(msgspec.structs.replace(CALL, id="call_1"), caller="anonymous", run="")
    else:
        run = "r2" if which == "another run" else ""
        asked = requested(caller="anonymous", run=run, nonce="other")
    answers: dict[str, Answer] = {} if which == "no answer" else {asked.id: Approve(by="grace")}
    scope = CallScope(RunTally(), answers, {asked.id: asked})
    outcome = await ToolRunner([delete], approver=_waits).exec(CALL, scope=scope)
    assert isinstance(outcome, Waiting)
    assert outcome.request.id != asked.id


async def test_an_approval_of_another_definition_lapses_without_further_reason() -> None:
    asked = msgspec.structs.replace(
        requested(caller="anonymous", run=""), id="apr_before", definition_digest="sha256:other"
    )
    scope = CallScope(RunTally(), {asked.id: Approve(by="grace")}, {asked.id: asked})
    outcome = await ToolRunner([delete]).exec(CALL, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error == CallError.of(ErrorCode.APPROVAL_MISMATCH)


async def _never_asked(request: ApprovalRequest) -> Answer:
    raise AssertionError(f"asked about {request.tool}")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Refuse("no", by="ada"), ErrorCode.APPROVAL_REFUSED),
        (Approve(by="ada"), ErrorCode.APPROVAL_EXPIRED),
    ],
)
async def test_a_no_is_a_no_however_late(answer: Answer, code: ErrorCode) -> None:
    asked = msgspec.structs.replace(requested(caller="anonymous", run=""), expires_at=1.0)
    scope = CallScope(RunTally(), {asked.id: answer}, {asked.id: asked})
    outcome = await ToolRunner([delete]).exec(CALL, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is code


async def test_a_secret_that_comes_back_masked_is_the_one_that_was_sent() -> None:
    seen: list[tuple[str, str]] = []

    @tool(visible=(), secret=["password"], requires_approval=True)
    async def log_in(user: str, password: str) -> None:
        """Log in."""
        seen.append((user, password))

    async def edits(request: ApprovalRequest) -> Answer:
        return Approve(by="ada", arguments={**request.arguments, "user": "root"})

    call = ToolCall("c", "log_in", '{"user": "me", "password": "hunter2"}')
    outcome = await ToolRunner([log_in], approver=edits).exec(call)
    assert isinstance(outcome, Completed)
    assert seen == [("root", "hunter2")]
    assert outcome.record.arguments == {"user": "root", "password": "***"}
    assert "hunter2" not in outcome.notice


def test_what_is_no_approver_is_refused_at_once() -> None:
    with pytest.raises(ApprovalError, match="async function"):
        ToolRunner([delete], approver=lambda _request: None)  # type: ignore[arg-type, return-value]


async def test_an_approver_that_catches_the_cancellation_lets_nothing_run() -> None:
    asked, ran = asyncio.Event(), []

    async def stubborn(_request: ApprovalRequest) -> Answer:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Approve(by="grace")

    @tool(visible=ALL, safe=False)
    async def fire() -> None:
        """Fire."""
        ran.append(1)

    sink = MemorySink()
    runner = ToolRunner([fire], approver=stubborn, sinks=[sink])
    task = asyncio.ensure_future(runner.exec(ToolCall("c", "fire", "{}")))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []
    assert [r.error.code for r in sink.records if r.error] == [ErrorCode.CANCELLED]


@tool(visible=ALL, safe=False)
async def pay(cents: list[int]) -> int:
    """Pay."""
    return sum(cents)


def more(arguments: JsonObject) -> None:
    cents = arguments["cents"]
    assert isinstance(cents, list)
    cents.append(1_000_000)


PAY = ToolCall("c", "pay", '{"cents": [1]}')


@pytest.mark.parametrize("edited", [None, {"cents": [2]}])
async def test_what_was_approved_is_what_runs(edited: Any) -> None:
    """A policy that changes the arguments after they were approved changes a copy."""
    seen: list[Hydrated] = []

    def greedy(hydrated: Hydrated, _context: PolicyContext) -> Allow:
        seen.append(hydrated)
        if len(seen) == 2:
            more(hydrated.arguments)
        return Allow()

    async def approves(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments=edited)

    outcome = await ToolRunner([pay], policy=greedy, approver=approves).exec(PAY)
    assert len(seen) == 2
    assert isinstance(outcome, Completed)
    assert outcome.value == (1 if edited is None else 2)
    assert outcome.record.arguments == (edited or {"cents": [1]})


async def test_a_call_that_is_changed_while_somebody_is_asked_runs_as_approved() -> None:
    hydrated = hydrate(PAY, Catalog([pay]))
    assert isinstance(hydrated, Hydrated)

    async def approves(request: ApprovalRequest) -> Answer:
        more(request.arguments)  # its own copy
        more(hydrated.arguments)
        return Approve(by="grace")

    outcome = await ToolRunner([pay], approver=approves).exec(hydrated)
    assert isinstance(outcome, Completed)
    assert outcome.value == 1


async def test_an_approver_may_change_its_own_copy_of_the_arguments() -> None:
    async def approves(request: ApprovalRequest) -> Answer:
        more(request.arguments)
        return Approve(by="grace")

    outcome = await ToolRunner([pay], approver=approves).exec(PAY)
    assert isinstance(outcome, Completed)
    assert outcome.value == 1


async def test_edited_arguments_are_of_the_same_tool() -> None:
    """A call that claims another name than that of its tool."""
    hydrated = hydrate(PAY, Catalog([pay, delete]))
    assert isinstance(hydrated, Hydrated)
    forged = msgspec.structs.replace(
        hydrated, call=msgspec.structs.replace(hydrated.call, name="delete")
    )

    async def approves(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": "a"})

    outcome = await ToolRunner([pay, delete], approver=approves).exec(forged)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS


async def _waits(_request: ApprovalRequest) -> None:
    return None


async def _question(call: ToolCall = PAY) -> ApprovalRequest:
    waiting = await ToolRunner([pay], approver=_waits).exec(call)
    assert isinstance(waiting, Waiting)
    return waiting.request


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Refuse(), ErrorCode.APPROVAL_REFUSED),
        (None, ErrorCode.APPROVAL_REQUIRED),
        (Approve(by="grace"), None),
    ],
)
async def test_whoever_was_asked_is_heard_even_if_nobody_would_be_asked_now(
    answer: Answer | None, code: ErrorCode | None
) -> None:
    asks = [True]

    def sometimes(_hydrated: Hydrated, _context: PolicyContext) -> Allow | Ask:
        return Ask("why") if asks.pop() else Allow()

    @tool(visible=ALL)
    async def fire() -> int:
        """Fire."""
        return 1

    call = ToolCall("c", "fire", "{}")
    waiting = await ToolRunner([fire], policy=sometimes, approver=_waits).exec(call)
    assert isinstance(waiting, Waiting)
    asks[:] = [False, False]
    request = waiting.request
    answers = {} if answer is None else {request.id: answer}
    scope = CallScope(RunTally(), answers, {request.id: request})
    outcome = await ToolRunner([fire], policy=sometimes).exec(call, scope=scope)
    assert (outcome.error.code if isinstance(outcome, Failed) else None) is code


@pytest.mark.parametrize("same_call", [False, True])
@pytest.mark.parametrize("denies", [False, True])
async def test_having_been_asked_makes_nothing_laxer_and_other_calls_no_stricter(
    same_call: bool, denies: bool
) -> None:
    """A yes of before opens nothing that is denied by now; other calls are as if nobody was asked."""

    @tool(visible=ALL)
    async def fire() -> int:
        """Fire."""
        return 1

    def asks(_call: Hydrated, _context: PolicyContext) -> Ask:
        return Ask("why")

    def by_now(_call: Hydrated, _context: PolicyContext) -> Allow | Deny:
        return Deny("no more") if denies else Allow()

    call = ToolCall("c", "fire", "{}")
    waiting = await ToolRunner([fire], policy=asks, approver=_waits).exec(call)
    assert isinstance(waiting, Waiting)
    request = waiting.request
    scope = CallScope(RunTally(), {request.id: Approve(by="grace")}, {request.id: request})
    now = call if same_call else ToolCall("d", "fire", "{}")
    outcome = await ToolRunner([fire], policy=by_now, approver=_never_asked).exec(now, scope=scope)
    if denies:
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.DENIED
        assert outcome.record.decision == Deny("no more", "by_now")
    else:
        assert isinstance(outcome, Completed)
        heard = Ask("somebody was asked about this call before", "standard")
        assert (outcome.record.decision == heard) is same_call
        assert outcome.record.approved_by == ("grace" if same_call else None)


async def test_asking_again_does_not_put_off_when_a_question_lapses() -> None:
    request = await _question()
    earlier = msgspec.structs.replace(request, asked_at=1.0, expires_at=time.time() + 60)
    scope = CallScope(RunTally(), {}, {request.id: earlier})
    again = await ToolRunner([pay], approver=_waits).exec(PAY, scope=scope)
    assert isinstance(again, Waiting)
    assert (again.request.asked_at, again.request.expires_at) == (1.0, earlier.expires_at)


async def test_nobody_is_asked_a_question_that_has_lapsed() -> None:
    request = await _question()
    lapsed = msgspec.structs.replace(request, expires_at=1.0)

    async def never(_request: ApprovalRequest) -> Answer:
        raise AssertionError("asked")

    scope = CallScope(RunTally(), {}, {request.id: lapsed})
    outcome = await ToolRunner([pay], approver=never).exec(PAY, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_EXPIRED


async def test_two_answers_of_one_reply_cannot_be_swapped() -> None:
    """One is a yes to 1 cent, the other a no to 9: neither fits the other's call."""
    other = ToolCall("d", "pay", '{"cents": [9]}')
    first, second = await _question(), await _question(other)
    asked = {first.id: first, second.id: second}
    runner = ToolRunner([pay])
    right = CallScope(RunTally(), {first.id: Approve("g"), second.id: Refuse()}, asked)
    outcomes = await runner.exec_all([PAY, other], scope=right)
    assert [type(o) for o in outcomes] == [Completed, Failed]
    swapped = msgspec.structs.replace(other, arguments=PAY.arguments)
    for answer in (Approve("g"), Refuse()):
        scope = CallScope(RunTally(), {second.id: answer}, asked)
        outcome = await ToolRunner([pay]).exec(swapped, scope=scope)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH


@dataclasses.dataclass
class Refund:
    order: int


@tool(visible=ALL, safe=False)
async def refund(r: Refund) -> str:
    """Refund an order."""
    return "refunded"


@pytest.mark.parametrize("stored", [False, True])
async def test_an_approval_of_before_toolcrib_closed_the_schema_lapses_and_says_so(
    stored: bool,
) -> None:
    """The definition has another digest by now, and nobody has swapped the tool."""
    now = refund.get_definition()
    schema = json.loads(now.input_schema_json or "")
    closed = schema["properties"]["r"] if "properties" in schema["properties"]["r"] else None
    nested = closed or next(iter(schema["$defs"].values()))
    del nested["additionalProperties"]
    before = msgspec.structs.replace(now, input_schema_json=json.dumps(schema), defaults_json=None)
    asked = ApprovalRequest(
        "apr_before",
        "refund",
        {"r": {"order": 7}},
        "risky",
        2.0**40,
        call_id="c1",
        run_id="run",
        caller="anonymous",
        definition_digest=before.digest,
    )
    answers: dict[str, Answer] = {asked.id: Approve(by="grace")}
    store = ApprovalStore("sqlite://")
    approver = store if stored else None
    if stored:
        await store(asked)
        await store.answer_all(answers)
    scope = CallScope(RunTally("run"), {} if stored else answers, {asked.id: asked})
    call = ToolCall("c1", "refund", '{"r": {"order": 7}}')
    outcome = await ToolRunner([refund], approver=approver).exec(call, scope=scope)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert CLOSED_NOW in outcome.error.message


async def test_whoever_is_asked_reads_the_reasons_of_all_policies_that_ask() -> None:
    asked: list[ApprovalRequest] = []

    async def yes(request: ApprovalRequest) -> Answer:
        asked.append(request)
        return Approve("ada")

    def large(_call: Hydrated, _context: PolicyContext) -> Decision:
        return Ask("it is more than 50.00")

    def watched(_call: Hydrated, _context: PolicyContext) -> Decision:
        return Ask("the customer is on the watch list")

    done = await ToolRunner([delete], policy=[large, watched], approver=yes).exec(CALL)
    assert isinstance(done, Completed)
    (request,) = asked
    assert request.asked_by == ("large", "standard", "watched")
    for reason in ("more than 50.00", "on the watch list", "not safe"):
        assert reason in request.reason
