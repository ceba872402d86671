"""How a call is stopped on its way, and what of an exception a model and an author may be told.

Rule: only stops from outside end more than the call. Everything else that is raised is a failure of
the call itself, and only text that its author marked as safe is passed on.
"""

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
"""Exceptions that come from outside a tool and end more than its call.

Everything else that is raised is the tool's own failure, even if it is not an Exception: a Rust
library that panics raises a BaseException.
"""
STOPS = (asyncio.CancelledError, *NOT_ITS_OWN)


ExceptionHook: TypeAlias = Callable[[ToolCall, BaseException], None]


class Reporter:
    """Tells an author what their code raised: the place in the log, the exception to the hook."""

    def __init__(self, hook: ExceptionHook | None) -> None:
        self._hook = hook

    def raised(self, label: str, call: ToolCall, raised: BaseException) -> None:
        """Log and report an exception; `label` names the code that raised it: `tool 'pay'`."""
        log_raised(label, raised)
        self.debug(call, raised)

    def debug(self, call: ToolCall, raised: BaseException) -> None:
        """Tell only the hook; what the hook raises is logged and stops nothing."""
        if self._hook is None:
            return
        try:
            self._hook(call, raised)
        except KeyboardInterrupt:
            raise
        except BaseException as hook_error:  # noqa: BLE001  the author's code
            log_raised("on_exception", hook_error)


class Stopped(Exception):  # noqa: N818  carries an outcome out of the pipeline, never further
    """The call ends with `error`.

    `asked_digest` is the digest of the definition in an earlier question. `edited_by` is who
    approved it with something that cannot be arguments. `model_text` is what the model reads in
    place of the error's text. `left` says that work of its tool is still running; the call is over
    when its `work` is, if it has one. `late` says that it was stopped at its time limit; otherwise
    its caller was cancelled.
    """

    def __init__(
        self,
        error: CallError,
        asked_digest: str = "",
        *,
        edited_by: str = "",
        model_text: str = "",
        left: bool = False,
        work: Work | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(error.code)
        self.error = error
        self.asked_digest = asked_digest
        self.edited_by = edited_by
        self.model_text = model_text
        self.notes = (LEFT_BEHIND,) if left else ()
        self.work = work
        self.late = late


class Suspended(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """The tool has begun and waits for answers to `requests`; it resumes from its `saved` state."""

    def __init__(self, requests: tuple[ApprovalRequest, ...], saved: str) -> None:
        super().__init__()
        self.requests = requests
        self.saved = saved


class NotRecorded(Exception):  # noqa: N818  never leaves the pipeline; `raised` does
    """A sink or the ledger failed before the tool began: the call does not run."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised


def as_failure(raised: BaseException) -> BaseException:
    """Return the exception to raise for what a sink or an observer raised.

    A CancelledError that nobody requested would cancel whoever waits for the call, and the calls
    next to it, so it becomes a ToolcribError.
    """
    if issubclass(type(raised), asyncio.CancelledError):  # `isinstance` runs the author's code
        return ToolcribError(
            "a sink or an observer raised a CancelledError that nobody had asked for"
        )
    return raised


def raise_stop(stop: BaseException, failure: BaseException) -> NoReturn:
    """Raise the stop from outside, not what a sink or an observer raised in the meantime.

    Whoever cancels a task waits for its CancelledError. The failure becomes its cause, and is
    logged.
    """
    log_raised("a sink or an observer", failure)
    raise stop from failure


def check_stop(raised: BaseException, cancels: int) -> None:
    """Raise CancelledError in place of `raised` if this task was asked to stop.

    That is, if it was asked more than `cancels` times, and `raised` is not a stop itself.
    """
    if not isinstance(raised, STOPS) and cancel_requests() > cancels:  # the loop may be gone
        raise_stop(asyncio.CancelledError(), raised)


async def record_end(recording: Awaitable[object], raised: BaseException, cancels: int) -> None:
    """Await the recording of calls that were ended by `raised`.

    If `raised` is a stop, it is raised in place of any failure in recording.
    """
    try:
        await recording
    except BaseException as failure:
        if isinstance(raised, STOPS) and not isinstance(failure, STOPS):
            raise_stop(raised, failure)
        check_stop(failure, cancels)
        raise


def rejection(rejected: Rejected) -> CallError:
    """Return the error of a rejected call: its first reason, with all of them as details."""
    first = rejected.errors[0]
    return CallError.of(
        first.code, first.message, details=rejected.errors, retryable=rejected.retryable
    )


def model_text(raised: BaseException) -> str:
    """Return what only the model is told about an exception, if its author says something."""
    return sentence(words_of(raised).model_text)


def safe_error(raised: BaseException, *, may_repeat: bool) -> CallError:
    """Return what may be said of an exception: an author's safe text, else the code's sentence.

    `may_repeat` says whether the call may be made again, if the author does not say so.
    """
    if isinstance(raised, ToolError):
        words, code = words_of(raised), ErrorCode.TOOL_ERROR
        if isinstance(raised, CapabilityError):
            code = ErrorCode.CAPABILITY_ERROR
        elif isinstance(raised, OutcomeUnknown):
            code = ErrorCode.OUTCOME_UNKNOWN
        retryable = may_repeat if words.retryable is None else words.retryable
        return CallError.of(code, sentence(words.text) or None, retryable=retryable)
    if isinstance(raised, MissingExtraError):
        return CallError.of(ErrorCode.NOT_RUNNABLE, raised.advice)
    return CallError.of(ErrorCode.TOOL_ERROR, retryable=may_repeat)
