"""What a person is asked, and what counts as an answer.

A request's id is a digest over run, call, tool, definition, arguments and caller. An answer is given
under that id, so that it can be an answer to nothing else.

Only an answer is an answer: a yes is an `Approve` with a name, a no is a `Refuse`, and all else, an
exception included, is `approval_failed`. Nothing is recorded as a person's no that no person said.
"""

from __future__ import annotations

import functools
import inspect
import time
import unicodedata
from collections.abc import Callable, Iterable

from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.failures import Explained
from toolcrib.hydrate import ParseFailure, parse_arguments
from toolcrib.runner.redact import masked_arguments, masked_places
from toolcrib.runner.standard import spared_for_run
from toolcrib.values.call import Hydrated
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Ask, Caller, Refuse
from toolcrib.values.json import JsonObject, canonical_json, digest, encodable, sha256_hex

DEFAULT_SECONDS = 7 * 24 * 3600.0
_BOUND = (
    "id",
    "run_id",
    "call_id",
    "caller",
    "tool",
    "definition_digest",
    "arguments_digest",
    "arguments",
    "defaults",
)
_CALL = frozenset(("run_id", "call_id", "tool"))
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters, as Unicode has it, that nobody sees


def approval_request(
    hydrated: Hydrated,
    ask: Ask,
    *,
    caller: Caller,
    run: RunTally,
    seconds: float = DEFAULT_SECONDS,
) -> ApprovalRequest:
    """The question that `ask` leads to; it lapses after `seconds`.

    The run's `nonce` goes into the id: without one, short secrets could be tried out against it.
    """
    definition, call = hydrated.definition, hydrated.call
    arguments_digest = f"sha256:{sha256_hex(hydrated.canonical)}"
    bound = [run.run_id, run.nonce, call.id, caller.id]
    bound += [definition.name, definition.digest, arguments_digest]
    now = time.time()
    return ApprovalRequest(
        id=_id(bound),
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
        defaults=masked_places(definition, hydrated.defaults),
        for_run=ask.policy == "standard" and spared_for_run(definition, run, caller.id),
    )


def request_id(request: ApprovalRequest, run: RunTally) -> str:
    """The id that a question has by its own words; only of one whose arguments have a digest."""
    named = [request.run_id, run.nonce, request.call_id, request.caller]
    return _id([*named, request.tool, request.definition_digest, request.arguments_digest])


def _id(bound: list[str]) -> str:
    return "apr_" + digest(bound).removeprefix("sha256:")[:40]


def differing(one: ApprovalRequest, other: ApprovalRequest) -> list[str]:
    """The fields in which two requests are not the same question.

    When it was asked and when it lapses is not part of a question, nor is the reason: a run may have
    read untrusted content in the meantime, and then asks for that reason first.
    """
    return [name for name in _BOUND if _part(one, name) != _part(other, name)]


def _part(request: ApprovalRequest, name: str) -> object:
    """Arguments as canonical text: in Python 1 and true are equal."""
    value = getattr(request, name)
    return canonical_json(value) if name == "arguments" else value


def mismatch(differences: Iterable[str]) -> ErrorCode:
    """The code of an approval that differs from the call in these fields.

    One of another run, call or tool is `other_call`; one of this call as it was once, with another
    definition, caller or other arguments, is `approval_mismatch`.
    """
    another = not _CALL.isdisjoint(differences)
    return ErrorCode.OTHER_CALL if another else ErrorCode.APPROVAL_MISMATCH


def check_approver(approver: object) -> None:
    """Raises ApprovalError for what can be told beforehand to be no approver.

    A plain function is none: while it asked somebody, everything else in the event loop would wait.
    What wraps an async function (`functools.wraps`) is taken for what it wraps.
    """
    if inspect.isclass(approver):
        raise ApprovalError(f"an approver is an object, not a class: {approver.__name__}(…)")
    if not callable(approver):
        raise ApprovalError(f"a {type(approver).__name__} is no approver: it cannot be called")
    function = inspect.unwrap(_function_of(approver))
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        raise ApprovalError(f"an approver is an async function: {function.__name__} is a plain one")


def _function_of(approver: Callable[..., object]) -> Callable[..., object]:
    """What Python runs when it is called."""
    if isinstance(approver, functools.partial):
        return _function_of(approver.func)
    if inspect.ismethod(approver):
        return approver.__func__
    return approver if inspect.isroutine(approver) else type(approver).__call__


class NotAnAnswer(ApprovalError, Explained):  # noqa: N818  said of a value, not of what went wrong
    """What an approver gave is neither a yes nor a no; the log may say why, since no value is told."""


def checked_answer(answer: object) -> Answer:
    """Return the answer, if it is one. Raises ApprovalError; the call ends with its `code`.

    Whoever approves has a name. Edited arguments are a JSON object within the limits that hold for a
    model's, too (1 MiB, depth 100, 100,000 values, integers of 40 digits); whether they fit the tool
    is for hydration to say.
    """
    if not isinstance(answer, Approve | Refuse):
        raise NotAnAnswer(
            f"a {type(answer).__name__} is no answer: return Approve(by=…) or Refuse()"
        )
    if not isinstance(answer.by, str) or (isinstance(answer, Approve) and not _shows(answer.by)):
        raise NotAnAnswer("an approval needs the name of who gives it: Approve(by=…)")
    by = encodable(answer.by)
    if isinstance(answer, Refuse):
        return Refuse(encodable(str(answer.reason)), by)
    if not isinstance(answer.for_run, bool):
        raise NotAnAnswer("Approve(for_run=…) is True or False")
    arguments = answer.arguments
    return Approve(by, None if arguments is None else _checked_arguments(arguments), answer.for_run)


def _shows(name: str) -> bool:
    """Whether somebody who reads a name sees any of it."""
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _FILLERS for c in name)


def _checked_arguments(arguments: object) -> JsonObject:
    if not isinstance(arguments, dict):
        raise NotAnAnswer(
            f"edited arguments are a JSON object, not a {type(arguments).__name__}",
            ErrorCode.INVALID_ARGUMENTS,
        )
    try:
        parsed = parse_arguments(canonical_json(arguments))
    except (TypeError, ValueError, RecursionError):
        raise NotAnAnswer(
            "edited arguments are not JSON: they hold NaN, an infinity, or what is no JSON value",
            ErrorCode.INVALID_ARGUMENTS,
        ) from None
    if isinstance(parsed, ParseFailure):
        raise NotAnAnswer(f"edited arguments: {parsed.message}", ErrorCode.INVALID_ARGUMENTS)
    return parsed.value
