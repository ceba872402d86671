"""Approval: what a person is asked, what counts as an answer, and which call an answer lets run.

A request's id is a digest of run, call, tool, definition, arguments and caller, plus the occasion
where a call may be asked about on several. An answer is given under that id, so it cannot be taken
for an answer to another question.

Rule: a yes is an `Approve` with a name, and a no is a `Refuse`. Everything else, including an
exception, ends the call as `approval_failed` and is reported to the approver's author. The one
exception is a store that cannot be used: then the call waits. No refusal is recorded that no person
gave, and only a clear yes to this very question lets a call run. An approver who may answer only
some questions is checked against the arguments that will run, whichever arguments were asked about.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode, SourceError, Stage
from toolcrib.failures import Explained, log_without_approver
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.runner.edit import edited_call
from toolcrib.runner.execute import guarded
from toolcrib.runner.output import (
    MASK,
    is_masked,
    masked_arguments,
    masked_pointers,
    masks_a_part,
    name_at,
    own_copy,
    unmasked,
)
from toolcrib.runner.policy import NOT_TRUSTED, may_have_rule, spared_for_run, steered
from toolcrib.runner.running import slots_lent
from toolcrib.runner.stopped import NOT_ITS_OWN, ExceptionHook, Stopped
from toolcrib.schema.derive.plain import is_mark
from toolcrib.threads import cancel_requests, is_stop
from toolcrib.tools import Catalog
from toolcrib.tools.lock import CLOSED_NOW, closing_only
from toolcrib.values.call import Hydrated, HydrationResult
from toolcrib.values.context import CallScope, RunTally
from toolcrib.values.decision import (
    Answer,
    ApprovalRequest,
    Approve,
    Approver,
    Ask,
    Caller,
    KeepingApprover,
    LimitedApprove,
    OuterCall,
    Refuse,
)
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    canonical_bytes,
    canonical_json,
    digest,
    encodable,
    has_rounded,
    is_seen,
    sha256_hex,
    text_as_given,
)
from toolcrib.values.record import CallError
from toolcrib.values.rule import ApprovalRule, CallToApprove, KeepsRules, check_open
from toolcrib.values.typed import takes

DEFAULT_SECONDS = 7 * 24 * 3600.0
_COMPARED_FIELDS = (
    *("id", "run_id", "call_id", "caller", "tool", "definition_digest"),
    *("arguments_digest", "arguments", "defaults"),
)
_CALL_FIELDS = frozenset(("run_id", "call_id", "tool"))
_FACTORY_VALUE_CHANGED = (
    "The approval no longer fits this call. A default factory now makes a different value, or one that"
    " cannot be compared with the approved value because JSON cannot restore it."
)

NO_RULE = "no rule can be given for this call"
"""Used where no rules are kept, and where the call's arrival or arguments are in doubt."""
_RULE_NOT_STORED = "The approval rule could not be saved. The call did not run."
_EDIT_NOT_ALLOWED = (
    "The approver is not allowed to approve the edited arguments. The call did not run."
)
_MASKED_PART = (
    f"The edit has {MASK} inside a secret argument. It can only stand for the whole argument, because"
    " no part of a secret was shown. The call did not run."
)


def approval_request(
    hydrated: Hydrated,
    ask: Ask,
    *,
    caller: Caller,
    run: RunTally,
    seconds: float = DEFAULT_SECONDS,
    within: tuple[OuterCall, ...] = (),
    occasion: str = "",
    asked_by: Iterable[str] = (),
) -> ApprovalRequest:
    """Return the approval request that `ask` leads to; it expires after `seconds`.

    `within` holds the calls that this call's run is inside of, and `asked_by` the names of all
    policies that ask.

    The run's `nonce` goes into the id: without it, short secrets could be guessed from the id. The
    `occasion` goes in too, so a question on another occasion is another question.
    """
    definition, call = hydrated.definition, hydrated.call
    arguments_digest = f"sha256:{sha256_hex(hydrated.canonical)}"
    id_parts = [run.run_id, run.nonce, call.id, caller.id]
    id_parts += [definition.name, definition.digest, arguments_digest, *filter(None, (occasion,))]
    now = time.time()
    return ApprovalRequest(
        id=_id_from(id_parts),
        tool=definition.name,
        arguments=masked_arguments(definition, hydrated.arguments),
        reason=ask.reason,
        expires_at=now + seconds,
        call_id=call.id,
        run_id=run.run_id,
        caller=caller.id,
        definition_digest=definition.digest,
        arguments_digest="" if definition.secret else arguments_digest,
        asked_at=now,
        defaults=masked_pointers(definition, hydrated.defaults),
        for_run=ask.policy == "standard" and spared_for_run(hydrated, run, caller.id),
        within=within,
        asked_by=tuple(sorted(asked_by)),
        untrusted=steered(hydrated, run),
    )


def as_asked_before(
    request: ApprovalRequest, earlier: ApprovalRequest, *, answered: bool
) -> ApprovalRequest:
    """Return a request as it was asked `earlier`, with the same expiry time.

    Once the question is answered, a rule covers what the answer was given to. Until then, it covers
    what both requests say.
    """
    both = tuple(name for name in request.asked_by if name in earlier.asked_by)
    return msgspec.structs.replace(
        request,
        asked_at=earlier.asked_at,
        expires_at=earlier.expires_at,
        always=earlier.always and (answered or request.always),
        asked_by=earlier.asked_by if answered else both,
        untrusted=earlier.untrusted and (answered or request.untrusted),
    )


def asked_call(hydrated: Hydrated, request: ApprovalRequest, run: RunTally) -> CallToApprove:
    """Return a call in the form that rules look at: the call asked about, or the edited one."""
    definition, arguments = hydrated.definition, hydrated.arguments
    marked_names = {name for name, value in arguments.items() if _holds_mark(value)}
    defaulted = masked_pointers(definition, hydrated.defaults)
    may_have_always = request.always and may_have_rule(hydrated, run)
    return CallToApprove(
        msgspec.structs.replace(_request_about(hydrated, request), always=may_have_always),
        {name: value for name, value in arguments.items() if is_masked(definition, name)},
        tuple(place for place in defaulted if name_at(place) in marked_names),
    )


def _holds_mark(value: JsonValue) -> bool:
    """Return whether some part of a value may be a marker for a default that has no JSON."""
    if isinstance(value, dict):
        return is_mark(value) or any(map(_holds_mark, value.values()))
    return isinstance(value, list) and any(map(_holds_mark, value))


def request_id(request: ApprovalRequest, run: RunTally) -> str:
    """Return the id that follows from a request, which must have a digest of its arguments."""
    id_parts = [request.run_id, run.nonce, request.call_id, request.caller]
    return _id_from([*id_parts, request.tool, request.definition_digest, request.arguments_digest])


def _id_from(parts: list[str]) -> str:
    return "apr_" + digest(parts).removeprefix("sha256:")[:40]


def differing(request: ApprovalRequest, other: ApprovalRequest) -> list[str]:
    """Return the names of the fields in which two requests are different questions.

    The times of asking and expiry are not part of a question. Neither is the reason: a run that has
    read untrusted content in the meantime gives that as its first reason.
    """
    return [
        name for name in _COMPARED_FIELDS if _comparable(request, name) != _comparable(other, name)
    ]


def _comparable(request: ApprovalRequest, name: str) -> object:
    """Return a field to compare; arguments as canonical JSON, because 1 equals True in Python."""
    value = getattr(request, name)
    return canonical_json(value) if name == "arguments" else value


def mismatch(differences: Iterable[str]) -> ErrorCode:
    """Return the error code of an approval that differs from the call in these fields.

    An approval for another run, call or tool is `other_call`. An approval for this call with
    another definition, caller or other arguments is `approval_mismatch`.
    """
    another = not _CALL_FIELDS.isdisjoint(differences)
    return ErrorCode.OTHER_CALL if another else ErrorCode.APPROVAL_MISMATCH


def check_approver(approver: object) -> None:
    """Raise ApprovalError for an object that certainly is not an approver.

    A plain function is not one: it would block the event loop while it asks. A wrapper around an
    async function (`functools.wraps`) is judged by the function it wraps.
    """
    if inspect.isclass(approver):
        raise ApprovalError(f"an approver is an object, not a class: {approver.__name__}(…)")
    if not callable(approver):
        raise ApprovalError(f"a {type(approver).__name__} is not an approver: it cannot be called")
    function = inspect.unwrap(_function_of(approver))
    is_function = inspect.isfunction(function) or inspect.isbuiltin(function)
    if is_function and not inspect.iscoroutinefunction(function):
        raise ApprovalError(
            f"an approver must be an async function: {function.__name__} is a plain function"
        )
    if not takes(approver, 1):
        name = getattr(function, "__name__", type(approver).__name__)
        raise ApprovalError(
            f"an approver must take one argument, the ApprovalRequest: {name} does not"
        )


def _function_of(approver: Callable[..., object]) -> Callable[..., object]:
    """Return the function that Python runs when the approver is called."""
    if isinstance(approver, functools.partial):
        return _function_of(approver.func)
    if inspect.ismethod(approver):
        return approver.__func__
    return approver if inspect.isroutine(approver) else type(approver).__call__


class NotAnAnswer(ApprovalError, Explained):  # noqa: N818  describes a value, not a failure
    """Says that an answer is neither a yes nor a no. Its message, without values, may be logged."""


class NotArguments(NotAnAnswer):
    """Says that what `by` gave in place of a call's arguments cannot be arguments."""

    def __init__(self, message: str, by: str) -> None:
        super().__init__(message, ErrorCode.INVALID_ARGUMENTS)
        self.by = by


class NotARule(SourceError, Explained):  # noqa: N818  as above
    """Says that a store of rules returned something that is not a rule."""


def _kind_of(answer: object) -> str:
    if isinstance(answer, type):
        return f"the class {answer.__name__}"
    return f"a {type(answer).__name__}"


def checked_answer(answer: object) -> Answer:
    """Return the answer if it is valid. Raises ApprovalError; the call ends with its `code`.

    An approval needs the name of who approves. Edited arguments are a JSON object within the limits
    that also hold for a model's arguments (1 MiB, depth 100, 100,000 values, integers of 40
    digits). Whether they fit the tool is checked by hydration.
    """
    if isinstance(answer, NotAnAnswer):  # an approver passed on an earlier verdict
        raise answer
    if not isinstance(answer, Approve | Refuse):
        raise NotAnAnswer(f"{_kind_of(answer)} is not an answer: return Approve(by=…) or Refuse()")
    if not isinstance(answer.by, str) or (isinstance(answer, Approve) and not is_seen(answer.by)):
        raise NotAnAnswer("an approval needs the name of the approver, visible: Approve(by=…)")
    by = encodable(answer.by)
    if isinstance(answer, Refuse):
        return Refuse(encodable(str(answer.reason)), by)
    arguments, for_run = answer.arguments, answer.for_run
    if not isinstance(for_run, bool) and (not isinstance(for_run, str) or for_run != "exactly"):
        raise NotAnAnswer('Approve(for_run=…) is True, False or "exactly"')
    if isinstance(answer, LimitedApprove) and (for_run is True or answer.always is not None):
        raise NotAnAnswer(
            "an approver who may answer only some questions cannot approve a whole tool for a run, or"
            " give a rule"
        )
    arguments = None if arguments is None else _checked_arguments(arguments, by)
    return msgspec.structs.replace(answer, by=by, arguments=arguments, for_run=for_run)


def _checked_arguments(arguments: object, by: str) -> JsonObject:
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise NotArguments(f"edited arguments must be a JSON object, not a {kind}", by)
    try:
        parsed = parse_arguments(text_as_given(arguments))
    except RecursionError:
        raise NotArguments(
            "edited arguments are not JSON: they are nested too deeply, or contain themselves", by
        ) from None
    except (TypeError, ValueError) as error:
        too_long = str(error).startswith("Exceeds the limit")  # Python's own wording
        reason = "an integer has too many digits" if too_long else str(error)
        raise NotArguments(f"edited arguments are not JSON: {reason}", by) from None
    if isinstance(parsed, ParseFailure):
        raise NotArguments(f"edited arguments: {parsed.message}", by)
    return parsed.value


_RAISABLE: Final = frozenset(
    code
    for code in ErrorCode
    if code.info.stage is Stage.APPROVAL and code is not ErrorCode.APPROVAL_REFUSED
)
"""The codes that an approver may raise in an ApprovalError. A no is a `Refuse`, never raised."""


async def answer_to(
    request: ApprovalRequest,
    scope: CallScope,
    approver: Approver | None,
    failed: Callable[[BaseException], None],
    by_rule: Callable[[], Awaitable[Approve | None]],
) -> Answer | None:
    """Return the answer to this very question, if there is one. Raises Stopped.

    An answer given beforehand comes first, then the yes of a rule (`by_rule`), then the approver is
    asked. A yes expires with its question, unless the call has already begun with it. `failed` is
    called with what the approver raised.
    """
    _check_same(scope.questions.get(request.id, request), request)
    suspended = scope.suspended.get(request.call_id)
    if suspended is not None and suspended.approval is not None:
        asked_request, yes = suspended.approval
        _check_same(asked_request, request, asked_request.definition_digest)
        return yes
    raw_answer: object = scope.answers.get(request.id)
    if raw_answer is None:
        earlier = _other_answered_request(request, scope)
        if earlier is not None:
            _check_same(earlier, request, earlier.definition_digest)
        if request.expired():
            raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
        raw_answer = await by_rule() or await _ask_now(request, scope, approver, failed)
    if raw_answer is None:
        return None
    try:
        answer = checked_answer(raw_answer)
    except ApprovalError as error:
        failed(error)
        text = str(error) if error.code is ErrorCode.APPROVAL_FAILED else None
        edited_by = error.by if isinstance(error, NotArguments) else ""
        retryable = False if edited_by else None  # no call of the model can fix what a person wrote
        raise Stopped(
            CallError.of(error.code, text, retryable=retryable), edited_by=edited_by
        ) from None
    if isinstance(answer, Approve) and request.expired():
        raise Stopped(CallError.of(ErrorCode.APPROVAL_EXPIRED))
    return answer


async def _ask_now(
    request: ApprovalRequest,
    scope: CallScope,
    approver: Approver | None,
    failed: Callable[[BaseException], None],
) -> Answer | None:
    if approver is None:
        text, is_imported = ErrorCode.APPROVAL_REQUIRED.info.text, NOT_TRUSTED in request.reason
        if is_imported:  # then the message says so, and names `trust=`
            text = f"{text[:-1]}: {NOT_TRUSTED}."
        log_without_approver(request.tool, imported=is_imported)
        raise Stopped(CallError.of(ErrorCode.APPROVAL_REQUIRED, text))
    if scope.observer is not None:
        scope.observer.approval_requested(own_request(request))
    return await _ask(approver, own_request(request), failed)


def _check_same(earlier: ApprovalRequest, request: ApprovalRequest, digest: str = "") -> None:
    """Raise Stopped, with this `asked_digest`, if what was asked is another question."""
    differences = differing(earlier, request)
    if differences:
        raise Stopped(CallError.of(mismatch(differences)), digest)


def edit_of(hydrated: Hydrated, answer: Answer) -> JsonObject | None:
    """Return the arguments that an answer puts in place of the call's; None if it changes none."""
    if isinstance(answer, Refuse) or answer.arguments is None:
        return None
    arguments = unmasked(hydrated.definition, answer.arguments, hydrated.arguments)
    is_same = canonical_bytes(arguments) == hydrated.canonical and not has_rounded(arguments)
    return (
        None if is_same and not masks_a_part(hydrated.definition, answer.arguments) else arguments
    )


def approved_call(
    hydrated: Hydrated,
    answer: Answer,
    catalog: Catalog,
    hook: ExceptionHook,
    *,
    asked: ApprovalRequest,
) -> HydrationResult:
    """Return the call that may run.

    That is `hydrated` itself, or a call hydrated again with the approver's arguments, or Rejected
    if those do not fit. `asked` is the question; `hook` is called with what the author's code
    raises during hydration. Raises Stopped.
    """
    if isinstance(answer, Refuse):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_REFUSED))
    factory_values = hydrated.building.factory_values
    if factory_values is not None and factory_values.lost:
        raise Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _FACTORY_VALUE_CHANGED))
    edit = edit_of(hydrated, answer)
    if answer.arguments is not None and masks_a_part(hydrated.definition, answer.arguments):
        raise Stopped(CallError.of(ErrorCode.INVALID_ARGUMENTS, _MASKED_PART, retryable=False))
    if edit is None:
        return hydrated
    approved = edited_call(edit, hydrated, catalog, hook)
    if (
        isinstance(answer, LimitedApprove)
        and isinstance(approved, Hydrated)
        and not answer.may(_request_about(approved, asked))
    ):
        raise Stopped(CallError.of(ErrorCode.APPROVAL_REQUIRED, _EDIT_NOT_ALLOWED))
    return approved


def _request_about(hydrated: Hydrated, request: ApprovalRequest) -> ApprovalRequest:
    """Return the question as if it had been asked about the edited arguments."""
    definition = hydrated.definition
    return msgspec.structs.replace(
        request,
        arguments=masked_arguments(definition, hydrated.arguments),
        defaults=masked_pointers(definition, hydrated.defaults),
        arguments_digest="" if definition.secret else f"sha256:{sha256_hex(hydrated.canonical)}",
    )


def own_request(request: ApprovalRequest) -> ApprovalRequest:
    """Return a copy of the request, so that changes to it do not affect the question."""
    return msgspec.structs.replace(request, arguments=own_copy(request.arguments))


def _other_answered_request(request: ApprovalRequest, scope: CallScope) -> ApprovalRequest | None:
    earlier = (
        asked
        for id_, asked in scope.questions_about(request.call_id)
        if id_ != request.id and id_ in scope.answers
    )
    return next(earlier, None)


async def rule_for(
    rules: KeepsRules, call: CallToApprove, failed: Callable[[BaseException], None]
) -> ApprovalRule | None:
    """Return a rule that approves a call; None if there is none, or the store cannot be used.

    With None, somebody is asked. `failed` is called with what the store raised. Raises Stopped if a
    rule was changed.
    """
    stored = await _from_store(lambda: rules.rule_for(call), failed)
    if isinstance(stored, ApprovalError):
        raise Stopped(CallError.of(stored.code))
    return None if isinstance(stored, BaseException) else stored


async def _from_store(
    use_store: Callable[[], Awaitable[ApprovalRule | None]], failed: Callable[[BaseException], None]
) -> ApprovalRule | BaseException | None:
    """Return what a store of rules returns or raises; `failed` is called with what it raises."""
    cancels = cancel_requests()
    try:
        rule: object = await use_store()
        if rule is None or isinstance(rule, ApprovalRule):
            return rule
        raise NotARule(
            f"the rule store returned a {type(rule).__name__}, not an ApprovalRule or None"
        )
    except NOT_ITS_OWN:
        raise
    except BaseException as raised:
        if is_stop(raised, cancels):
            raise
        failed(raised)
        return raised


def check_always(asked: ApprovalRequest, answer: Approve) -> None:
    """Raise ApprovalError if an answer gives a rule that it cannot give to this question."""
    if answer.always is None:
        return
    if not asked.always:
        raise ApprovalError(NO_RULE)
    arguments = asked.arguments | (answer.arguments or {})
    masks_secrets = not asked.arguments_digest  # if all arguments have a digest, none is secret
    secret_names = [
        name for name, value in asked.arguments.items() if masks_secrets and value == MASK
    ]
    check_open(
        answer.always.open, msgspec.structs.replace(asked, arguments=arguments), secret_names
    )


async def stored_rule(
    rules: KeepsRules | None,
    call: CallToApprove,
    answer: Approve,
    failed: Callable[[BaseException], None],
) -> ApprovalRule | None:
    """Return the rule that an answer gives, once stored; None if it has expired or was revoked.

    Raises Stopped for a rule that cannot be given for this call, or that could not be stored:
    whoever gave it would rely on it. `failed` is called with the reason.
    """
    rule: ApprovalRule | BaseException | None
    if rules is None or answer.always is None or not call.request.always:
        rule = ApprovalError(NO_RULE)
        failed(rule)
    else:
        store_rule = functools.partial(rules.keep_rule, call, answer.always, answer.by)
        rule = await _from_store(store_rule, failed)
    if not isinstance(rule, BaseException):
        return rule
    is_explained = isinstance(rule, ApprovalError)
    text = (
        f"No rule was given, and the call did not run: {rule}."
        if is_explained
        else _RULE_NOT_STORED
    )
    raise Stopped(CallError.of(ErrorCode.APPROVAL_FAILED, text))


def keeping(approver: Approver | None, pinned: JsonObject) -> Approver | None:
    """Return an approver that also stores the values of default factories, if it can."""
    if not pinned or not isinstance(approver, KeepingApprover):
        return approver
    ask = approver.ask_keeping
    return lambda request: ask(request, pinned)


def with_explanation(stopped: Stopped, hydrated: Hydrated) -> Stopped:
    """Explain why an approval no longer fits although nobody changed anything.

    Either a default factory made another value, or toolcrib now states more about the very same
    tool than when somebody was asked.
    """
    factory_values = hydrated.building.factory_values
    if (
        factory_values is not None
        and factory_values.anew
        and stopped.error.code is ErrorCode.APPROVAL_MISMATCH
    ):
        return Stopped(CallError.of(ErrorCode.APPROVAL_MISMATCH, _FACTORY_VALUE_CHANGED))
    definition, digest = hydrated.definition, stopped.asked_digest
    if not digest or digest == definition.digest or not closing_only(definition, digest):
        return stopped
    return Stopped(CallError.of(stopped.error.code, f"The approval has lapsed: {CLOSED_NOW}."))


async def _ask(
    approver: Approver, request: ApprovalRequest, failed: Callable[[BaseException], None]
) -> Answer | None:
    """Ask the approver. One that fails has not answered.

    If its store cannot be used (SourceError), the call waits: the store may have the answer, and
    can be asked again.
    """
    cancels = cancel_requests()
    answer: Answer | None = None
    try:
        with slots_lent():
            answer = await guarded(_call_approver(approver, request))
    except ApprovalError as error:
        code = error.code
        if code not in _RAISABLE:
            code = ErrorCode.APPROVAL_FAILED
        if code is ErrorCode.APPROVAL_FAILED:
            failed(error)
        raise Stopped(CallError.of(code), error.asked_digest) from None
    except SourceError as error:
        failed(error)
    except NOT_ITS_OWN:
        raise
    except BaseException as error:  # the approver is the author's code
        if is_stop(error, cancels):
            raise
        failed(error)
        raise Stopped(CallError.of(ErrorCode.APPROVAL_FAILED)) from None
    if cancel_requests() > cancels:
        raise asyncio.CancelledError  # the approver caught it; the call still does not run
    return answer


async def _call_approver(approver: Approver, request: ApprovalRequest) -> Answer | None:
    """Wrap whatever awaitable an approver returns in one coroutine."""
    awaitable: object = approver(request)
    if not isinstance(awaitable, Awaitable):
        raise NotAnAnswer(
            f"it returned a {type(awaitable).__name__}, which cannot be awaited: an approver must be an"
            " async function"
        )
    answer: Answer | None = await awaitable
    return answer
