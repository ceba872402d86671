"""Asking somebody about a call: whose answer counts, and which call it lets run.

Nothing but a clear yes to this very question lets one run. What an approver raises, or gives in place
of an answer, is neither yes nor no: the call ends as `approval_failed`, and its author is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode, SourceError, Stage
from toolcrib.hydrate import hydrate
from toolcrib.runner.approval import NotAnAnswer, checked_answer, differing, mismatch
from toolcrib.runner.execute import cancel_requests, own
from toolcrib.runner.redact import own_copy, unmasked
from toolcrib.runner.scope import CallScope
from toolcrib.runner.stopped import ExceptionHook, Stopped, accepted
from toolcrib.schema.references import lacks, remove_at, same_at
from toolcrib.tools import Catalog
from toolcrib.tools.lock import CLOSED_NOW, closing_only
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Approver, Refuse
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, canonical_json
from toolcrib.values.record import CallError

_NOT_ANSWERED: Final = frozenset(
    code
    for code in ErrorCode
    if code.info.stage is Stage.APPROVAL and code is not ErrorCode.APPROVAL_REFUSED
)
"""What an approver may raise as an ApprovalError: a no is a `Refuse`, said by somebody."""


async def answer_to(
    request: ApprovalRequest,
    scope: CallScope,
    approver: Approver | None,
    failed: Callable[[BaseException], None],
) -> Answer | None:
    """Return the answer to this very question, if there is one. Raises Stopped.

    One that was given beforehand counts; else the approver is asked. A yes lapses with its question.
    `failed` is told what the approver raised.
    """
    _check_shown(request, scope.asked)
    given: object = scope.answers.get(request.id)
    if given is None:
        earlier = _asked_differently(request, scope)
        if earlier is not None:
            raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH), earlier.definition_digest)
        if request.expired():
            raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
        if approver is None:
            raise Stopped(CallError.of(ErrorCode.APPROVAL_REQUIRED))
        if scope.observer is not None:
            scope.observer.approval_requested(_own_request(request))
        given = await _ask(approver, _own_request(request), failed)
    if given is None:
        return None
    try:
        answer = checked_answer(given)
    except ApprovalError as error:
        failed(error)
        told = str(error) if error.code is ErrorCode.APPROVAL_FAILED else None
        raise Stopped(CallError.of(error.code, told)) from None
    if isinstance(answer, Approve) and request.expired():
        raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
    return answer


def approved_call(
    hydrated: Hydrated, answer: Answer, catalog: Catalog, hook: ExceptionHook
) -> Hydrated:
    """The call that may run: `hydrated` itself, or, hydrated anew, with the arguments that somebody
    put in place of its own. `hook` is given what the author's code raises then. Raises Stopped."""
    if isinstance(answer, Refuse):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED))
    if answer.arguments is None:
        return hydrated
    whole = unmasked(hydrated.definition, answer.arguments, hydrated.arguments)
    edited, left_out = _sent_anew(whole, hydrated)
    read = _edited_call(edited, hydrated, catalog, hook)
    same = isinstance(read, Hydrated) and all(same_at(read.arguments, whole, p) for p in left_out)
    if (
        left_out and not same
    ):  # after the edit another default holds there, or none: what was approved is sent
        read = _edited_call(whole, hydrated, catalog, hook)
    return accepted(read)


def _edited_call(
    edited: JsonObject, hydrated: Hydrated, catalog: Catalog, hook: ExceptionHook
) -> HydrationResult:
    """The call with these arguments in place of its own, checked as a model's would be."""
    text = canonical_json(edited)
    call = msgspec.structs.replace(hydrated.call, name=hydrated.definition.name, arguments=text)
    pinned = _still_pinned(edited, hydrated)
    return hydrate(call, catalog, pinned=pinned, on_exception=hook)


def _own_request(request: ApprovalRequest) -> ApprovalRequest:
    """The same question, to give away: who looks changes nothing of what is asked."""
    return msgspec.structs.replace(request, arguments=own_copy(request.arguments))


def _sent_anew(edited: JsonObject, hydrated: Hydrated) -> tuple[JsonObject, tuple[str, ...]]:
    """Edited arguments without the defaults that were shown beside them and left as they were, and the
    places of those: what was not sent is not sent now."""
    edited, shown = own_copy(edited), hydrated.arguments
    left_out = tuple(place for place in hydrated.defaults if same_at(edited, shown, place))
    for place in reversed(left_out):  # from the end of an array
        remove_at(edited, place)
    return edited, left_out


def _still_pinned(edited: JsonObject, hydrated: Hydrated) -> dict[str, JsonValue]:
    """What default factories made of this call, where there is still a place for it."""
    return {p: v for p, v in hydrated.building.pinned.items() if lacks(edited, p)}


def _check_shown(request: ApprovalRequest, asked: Mapping[str, ApprovalRequest]) -> None:
    """An answer is to what was shown: if that is not what would run now, it is no answer to it."""
    shown = asked.get(request.id)
    differences = [] if shown is None else differing(shown, request)
    if differences:
        raise Stopped(CallError.of(mismatch(differences)))


def _asked_differently(request: ApprovalRequest, scope: CallScope) -> ApprovalRequest | None:
    """The question about this call as it was once, with another definition, caller or arguments."""
    earlier = (
        asked
        for id_, asked in scope.asked.items()
        if id_ != request.id and id_ in scope.answers
        if asked.run_id == request.run_id and asked.call_id == request.call_id
    )
    return next(earlier, None)


def lapsed_by_closing(stopped: Stopped, definition: ToolDefinition) -> Stopped:
    """Say so where an approval does not fit any more because toolcrib states more of the very same
    tool than it did when somebody was asked: nobody has swapped it."""
    digest = stopped.asked_digest
    if not digest or digest == definition.digest or not closing_only(definition, digest):
        return stopped
    return Stopped(CallError.of(stopped.error.code, f"The approval has lapsed: {CLOSED_NOW}."))


async def _ask(
    approver: Approver, request: ApprovalRequest, failed: Callable[[BaseException], None]
) -> Answer | None:
    """Ask. An approver that fails has not answered; SourceError is raised where its store cannot be
    used: it may have the answer, and the call is not over."""
    cancels = cancel_requests()
    try:
        answer: Answer | None = await own(_called(approver, request))
    except ApprovalError as error:
        code = error.code
        if code not in _NOT_ANSWERED:
            code = ErrorCode.APPROVAL_FAILED
        if code is ErrorCode.APPROVAL_FAILED:
            failed(error)
        raise Stopped(CallError.of(code), error.asked_digest) from None
    except SourceError:
        raise  # as with a sink that cannot write
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancel_requests() > cancels:
            raise
        failed(error)
        raise Stopped(CallError.of(ErrorCode.APPROVAL_FAILED)) from None
    if cancel_requests() > cancels:
        raise asyncio.CancelledError  # it caught that; what was cancelled does not run all the same
    return answer


async def _called(approver: Approver, request: ApprovalRequest) -> Answer | None:
    """One coroutine, whatever it is that an approver gives to await."""
    given: object = approver(request)
    if not isinstance(given, Awaitable):
        raise NotAnAnswer(
            f"it gave a {type(given).__name__}, which cannot be awaited: an approver is an async"
            " function"
        )
    answer: Answer | None = await given
    return answer
