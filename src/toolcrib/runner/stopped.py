"""How a call is stopped on its way, and what may be said of an exception: to a model, to an author."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeAlias

from toolcrib.errors import (
    CapabilityError,
    ErrorCode,
    MissingExtraError,
    OutcomeUnknown,
    ToolcribError,
    ToolError,
)
from toolcrib.failures import log_raised, words_of
from toolcrib.threads import Work, cancel_requests
from toolcrib.values.call import Rejected, ToolCall
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import sentence
from toolcrib.values.record import LEFT_BEHIND, CallError

NOT_ITS_OWN = (KeyboardInterrupt, GeneratorExit)
"""What comes over a tool from outside, and ends more than its call. All else that is raised is its own
failure, also what is no Exception: a library in Rust that panics raises a BaseException."""
STOPS = (asyncio.CancelledError, *NOT_ITS_OWN)


ExceptionHook: TypeAlias = Callable[[ToolCall, BaseException], None]


class Reporter:
    """Tells an author what their code raised: the log where it was, the hook the exception itself."""

    def __init__(self, hook: ExceptionHook | None = None) -> None:
        self._hook = hook

    def raised(self, what: str, call: ToolCall, raised: BaseException) -> None:
        """`what` names the code that raised: `tool 'pay'`."""
        log_raised(what, raised)
        self.debug(call, raised)

    def debug(self, call: ToolCall, raised: BaseException) -> None:
        """Tell the hook alone; what it raises itself is logged, and stops nothing."""
        if self._hook is None:
            return
        try:
            self._hook(call, raised)
        except KeyboardInterrupt:
            raise
        except BaseException as failed:  # noqa: BLE001  code of the author's
            log_raised("on_exception", failed)


class Stopped(Exception):  # noqa: N818  carries an outcome out of the pipeline, never further
    """The call ends with `error`; `asked_digest` is that of the definition of an earlier question.

    `edited_by` is who approved it with what can be no arguments. `told` is what the model reads in
    place of the error's text. `left` says that work of its tool
    goes on; the call is over when its `body` is, if it has one. `late` says that it was stopped at its
    time limit, else its caller was cancelled.
    """

    def __init__(
        self,
        error: CallError,
        asked_digest: str = "",
        *,
        edited_by: str = "",
        told: str = "",
        left: bool = False,
        body: Work | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(error.code)
        self.error = error
        self.asked_digest = asked_digest
        self.edited_by = edited_by
        self.told = told
        self.notes = (LEFT_BEHIND,) if left else ()
        self.body = body
        self.late = late


class Suspended(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool has begun, and waits for answers to `requests`; it goes on from what it has `saved`."""

    def __init__(self, requests: tuple[ApprovalRequest, ...], saved: str) -> None:
        super().__init__()
        self.requests = requests
        self.saved = saved


class NotRecorded(Exception):  # noqa: N818  never leaves the pipeline: what was `raised` does
    """A sink or the ledger failed before the tool began: the call does not run."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised


def as_failure(raised: BaseException) -> BaseException:
    """Return what is raised for what a sink or a watcher raised: a CancelledError that nobody asked for
    would cancel whoever waits for the call, and the calls beside it."""
    if isinstance(raised, asyncio.CancelledError):
        return ToolcribError("what takes records or watches raised CancelledError of its own")
    return raised


def raise_stop(stop: BaseException, failed: BaseException) -> NoReturn:
    """Raise what stops a call from outside, and not what a sink or a watcher raised meanwhile: whoever
    cancels a task waits for its CancelledError. What failed is its cause, and is logged."""
    log_raised("what takes records or watches", failed)
    raise stop from failed


def check_stop(raised: BaseException, cancels: int) -> None:
    """Raise CancelledError in place of what was raised, if this task was asked to stop more than
    `cancels` times and that is no stop itself."""
    if not isinstance(raised, STOPS) and cancel_requests() > cancels:  # a loop may be gone
        raise_stop(asyncio.CancelledError(), raised)


async def record_end(ended: Awaitable[object], raised: BaseException, cancels: int) -> None:
    """Have it recorded that calls were ended by what was `raised`, and is raised then: if it is a stop,
    whatever fails as that is written."""
    try:
        await ended
    except BaseException as failed:
        if isinstance(raised, STOPS) and not isinstance(failed, STOPS):
            raise_stop(raised, failed)
        check_stop(failed, cancels)
        raise


def rejection(rejected: Rejected) -> CallError:
    """Return the error of a rejected call: its first reason, with all of them as details."""
    first = rejected.errors[0]
    return CallError.of(
        first.code, first.message, details=rejected.errors, retryable=rejected.retryable
    )


def model_text(raised: BaseException) -> str:
    """Return what the model alone is told of an exception, if its author says something."""
    return sentence(words_of(raised).model_text)


def safe_error(raised: BaseException, *, again: bool) -> CallError:
    """Return what may be said of an exception: an author's safe text, else the code's sentence.

    `again` says that the call may be made again, if the author does not say whether it may.
    """
    if isinstance(raised, ToolError):
        words, code = words_of(raised), ErrorCode.TOOL_ERROR
        if isinstance(raised, CapabilityError):
            code = ErrorCode.CAPABILITY_ERROR
        elif isinstance(raised, OutcomeUnknown):
            code = ErrorCode.OUTCOME_UNKNOWN
        retryable = again if words.retryable is None else words.retryable
        return CallError.of(code, sentence(words.text) or None, retryable=retryable)
    if isinstance(raised, MissingExtraError):
        return CallError.of(ErrorCode.NOT_RUNNABLE, raised.advice)
    return CallError.of(ErrorCode.TOOL_ERROR, retryable=again)
