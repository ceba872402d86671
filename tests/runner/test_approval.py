"""Approvals: an answer fits one question, once."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Ask,
    Caller,
    Catalog,
    Completed,
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
from toolcrib.errors import ApprovalError, SourceError
from toolcrib.runner import CallScope, approval_request
from toolcrib.runner.approval import question
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer

CALL = ToolCall("call_0", "", "delete", '{"path": "a", "password": "hush"}')


@tool(visible=ALL, safe=False, secret=["password"])
async def delete(path: str, password: str = "") -> str:
    """Delete a path."""
    return f"deleted {path}"


def requested(call: ToolCall = CALL, *, caller: str = "ada", run: str = "r") -> ApprovalRequest:
    hydrated = hydrate(call, Catalog([delete]))
    assert isinstance(hydrated, Hydrated)
    return approval_request(hydrated, Ask("why"), caller=Caller(caller), run=RunTally(run))


def test_the_id_changes_with_everything_that_an_approval_is_bound_to() -> None:
    base = requested()
    renamed = msgspec.structs.replace(CALL, id="call_1")
    other_arguments = msgspec.structs.replace(CALL, arguments='{"path": "b", "password": "hush"}')
    other_secret = msgspec.structs.replace(CALL, arguments='{"path": "a", "password": "x"}')
    others = [
        requested(renamed),
        requested(other_arguments),
        requested(other_secret),
        requested(caller="eve"),
        requested(run="other"),
    ]
    assert len({base.id, *(other.id for other in others)}) == 6


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
    assert requested().arguments == {"path": "a", "password": "***"}


def test_the_question_cannot_move_the_cursor() -> None:
    call = msgspec.structs.replace(CALL, arguments='{"path": "\\u001b[2Jx\\u202e"}')
    text = question(requested(call))
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("typed", "approved"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False), ("yep\n", False)],
)
async def test_only_a_clear_yes_approves(
    typed: str, approved: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    approver = TerminalApprover(source=io.StringIO(typed))
    outcome = await ToolRunner([delete], approver=approver).exec(CALL)
    assert isinstance(outcome, Completed) is approved
    assert 'Run delete {"path": "a", "password": "***"}?' in capsys.readouterr().err
    if isinstance(outcome, Failed):
        assert outcome.error.code is ErrorCode.APPROVAL_REFUSED


async def test_an_approver_that_fails_has_not_approved() -> None:
    async def broken(_request: ApprovalRequest) -> Answer:
        raise RuntimeError("secret")

    outcome = await ToolRunner([delete], approver=broken).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_REFUSED
    assert "secret" not in str(outcome)


async def test_edited_arguments_are_hydrated_anew_and_recorded() -> None:
    sink = MemorySink()

    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": "b"})

    outcome = await ToolRunner([delete], approver=editor, sinks=[sink]).exec(CALL)
    assert isinstance(outcome, Completed)
    assert outcome.value == "deleted b"
    assert sink.records[-1].arguments == {"path": "b"}
    assert sink.records[-1].approved_by == "grace"


async def test_edited_arguments_that_are_not_valid_do_not_run() -> None:
    async def editor(_request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"path": 1})

    outcome = await ToolRunner([delete], approver=editor).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS


async def test_an_answer_given_beforehand_fits_its_own_request_only() -> None:
    runner = ToolRunner([delete])
    request = requested(caller="anonymous", run="")
    fits = CallScope(RunTally(), {request.id: Approve(by="grace")})
    assert isinstance(await runner.exec(CALL, scope=fits), Completed)
    other = msgspec.structs.replace(CALL, arguments='{"path": "b"}')
    forged = await runner.exec(other, scope=CallScope(RunTally(), {request.id: Approve(by="eve")}))
    assert isinstance(forged, Failed)
    assert forged.error.code is ErrorCode.APPROVAL_REQUIRED


class TestStore:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'crib.db'}"

    async def test_a_stored_answer_is_used_once(self, url: str) -> None:
        store, elsewhere = ApprovalStore(url), ApprovalStore(url)
        runner = ToolRunner([delete], approver=store)
        waiting = await runner.exec(CALL)
        assert isinstance(waiting, Waiting)
        assert isinstance(await runner.exec(CALL), Waiting)
        pending = await elsewhere.pending()
        assert [(r.id, r.tool, r.reason) for r in pending] == [
            (waiting.request.id, "delete", "the tool is marked as not safe")
        ]
        await elsewhere.answer(pending[0].id, Approve(by="grace"))
        assert await elsewhere.pending() == []
        done = await runner.exec(CALL)
        assert isinstance(done, Completed)
        assert done.record.approved_by == "grace"
        replayed = await runner.exec(CALL)
        assert isinstance(replayed, Failed)
        assert replayed.error.code is ErrorCode.APPROVAL_MISMATCH
        await store.aclose()
        await elsewhere.aclose()

    async def test_no_is_an_answer_too(self, url: str) -> None:
        store = ApprovalStore(url)
        runner = ToolRunner([delete], approver=store)
        waiting = await runner.exec(CALL)
        assert isinstance(waiting, Waiting)
        await store.answer(waiting.request.id, Refuse("no", by="grace"))
        refused = await runner.exec(CALL)
        assert isinstance(refused, Failed)
        assert refused.error.code is ErrorCode.APPROVAL_REFUSED
        await store.aclose()

    async def test_what_was_not_asked_or_is_answered_cannot_be_answered(self, url: str) -> None:
        store = ApprovalStore(url)
        with pytest.raises(ApprovalError, match="there is no approval request apr_x"):
            await store.answer("apr_x", Approve(by="eve"))
        waiting = await ToolRunner([delete], approver=store).exec(CALL)
        assert isinstance(waiting, Waiting)
        await store.answer(waiting.request.id, Refuse("no", by="grace"))
        with pytest.raises(ApprovalError, match="answered before"):
            await store.answer(waiting.request.id, Approve(by="eve"))
        await store.aclose()

    async def test_an_approval_lapses(self, url: str) -> None:
        store = ApprovalStore(url)
        late = msgspec.structs.replace(requested(), expires_at=time.time() - 1)
        with pytest.raises(ApprovalError) as lapsed:
            await store(late)
        assert lapsed.value.code is ErrorCode.APPROVAL_EXPIRED
        with pytest.raises(ApprovalError, match="lapsed"):
            await store.answer(late.id, Approve(by="grace"))
        assert await store.pending() == []
        await store.aclose()

    async def test_a_database_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        store = ApprovalStore(f"sqlite:///{tmp_path}/no/such/folder/crib.db")
        with pytest.raises(SourceError, match="the database cannot be used"):
            await store.pending()


async def test_a_policy_may_ask_for_what_is_safe() -> None:
    @tool(visible=ALL)
    async def read() -> str:
        """Read."""
        return "read"

    def cautious(_call: Hydrated, _context: PolicyContext) -> Ask:
        return Ask("always ask")

    outcome = await ToolRunner([read], policy=[cautious]).exec(ToolCall("c", "", "read", "{}"))
    assert isinstance(outcome, Failed)
    assert outcome.record.decision == Ask("always ask", "cautious")


def test_a_reason_cannot_move_the_cursor_either() -> None:
    request = ApprovalRequest("apr", "pay", {}, "a\x1b[2K\n\u202e(safe)", 0.0)
    assert question(request) == "Run pay {}? (a\\u001b[2K\\n\\u202e(safe)) [y/N] "


async def test_a_question_that_was_given_up_leaves_the_next_line_alone() -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as source:
        approver = TerminalApprover(source=source)
        request = ApprovalRequest("apr", "pay", {}, "risky", 0.0)
        task = asyncio.ensure_future(approver(request))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(_readers_gone)
        os.write(master, b"for somebody else\n")
        assert source.readline() == "for somebody else\n"
        os.write(master, b"yes\n")
        assert isinstance(await approver(request), Approve)
    os.close(master)


def _readers_gone() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("toolcrib"):
            thread.join(5)


def test_one_approver_serves_several_loops() -> None:
    approver = TerminalApprover(source=io.StringIO("y\ny\ny\ny\n"))
    request = ApprovalRequest("apr", "pay", {}, "risky", 0.0)

    async def two() -> list[object]:
        return list(await asyncio.gather(approver(request), approver(request)))

    for _ in range(2):
        assert all(isinstance(answer, Approve) for answer in asyncio.run(two()))
