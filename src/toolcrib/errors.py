"""Everything that can go wrong, named.

Two families:

* `ErrorCode` is what may stop *a tool call*. It is a value, not an exception: a model's mistake is
  data that goes back to the model, never a traceback. The set is closed; each code has its stage,
  whether trying again can help, and one fixed sentence that is safe to show to a model.
* `ToolcribError` is what may stop *a program*: a wrong definition, a missing binding, a provider
  that cannot be reached.

    ToolcribError
    ├── DefinitionError          a tool that cannot be registered as it is written
    │   └── SchemaError          its schema cannot be used; .pointer says where
    ├── CatalogError             duplicate, confusable or missing names
    ├── BindingError             a capability without an implementation
    ├── ApprovalError            an approval that cannot be asked for, given or used; .code
    ├── PickError                a scorer that raised, or gave no score
    ├── MissingExtraError        an optional dependency that is not installed
    ├── AnswerError              a typed answer that its type's own code cannot read; .state
    ├── ContextError             a request that is more than the model takes; .state
    │   ├── ContextTooSmallError already by its instructions and its tools
    │   └── PromptTooLargeError  by what was said in it
    ├── SourceError              tools, a file or a model that are not where they are said to be
    └── ClientError              a provider, as seen from here; .status where there is one
        ├── RequestError         it refused the request (4xx)
        │   ├── AuthenticationError
        │   ├── ContentFilterError
        │   └── RateLimitError   .retry_after in seconds, where given
        ├── ProviderError        it failed (5xx, an error event in the stream)
        │   └── OverloadedError  it has more to do than it can (503, 529)
        ├── ConnectionFailed     it was not reached, or the connection broke
        └── WireError            it answered in a form that is not the wire's
    ToolError                    raised by a tool's author: its text is safe for the model to read
    ├── CapabilityError          the same, raised by a capability's adapter
    └── OutcomeUnknown           nobody can know whether the tool did what it does
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Stage(StrEnum):
    """Names the step at which a call was stopped."""

    PARSE = "parse"
    RESOLVE = "resolve"
    VALIDATE = "validate"
    INSTANTIATE = "instantiate"
    POLICY = "policy"
    APPROVAL = "approval"
    RUN = "run"
    OUTPUT = "output"


class ErrorCode(StrEnum):
    """Says why a tool call did not complete. The set is closed: match on it with `assert_never`."""

    INVALID_JSON = "invalid_json"
    TOO_LARGE = "too_large"
    TRUNCATED = "truncated"
    CONTRADICTORY = "contradictory"
    UNKNOWN_TOOL = "unknown_tool"
    NOT_OFFERED = "not_offered"
    NO_SCHEMA = "no_schema"
    INVALID_ARGUMENTS = "invalid_arguments"
    INVALID_REPAIR = "invalid_repair"
    UNUSABLE_TOOL = "unusable_tool"
    NOT_RUNNABLE = "not_runnable"
    DENIED = "denied"
    BUDGET_EXCEEDED = "budget_exceeded"
    RATE_LIMITED = "rate_limited"
    REPEATED_EFFECT = "repeated_effect"
    APPROVAL_REQUIRED = "approval_required"
    APPROVAL_REFUSED = "approval_refused"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_FAILED = "approval_failed"
    APPROVAL_MISMATCH = "approval_mismatch"
    ALREADY_USED = "already_used"
    OTHER_CALL = "other_call"
    UNKNOWN_APPROVAL = "unknown_approval"
    INVALID_RULE = "invalid_rule"
    NOT_RECORDED = "not_recorded"
    DUPLICATE_CALL = "duplicate_call"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CAPABILITY_ERROR = "capability_error"
    TOOL_ERROR = "tool_error"
    INVALID_OUTPUT = "invalid_output"
    REDACTION_MISSING = "redaction_missing"

    @property
    def info(self) -> CodeInfo:
        return _CODES[self]


class CodeInfo(NamedTuple):
    """Describes an error code: its `stage`, whether the model may try again, and a fixed `text`."""

    stage: Stage
    retryable: bool
    text: str


_CODES: dict[ErrorCode, CodeInfo] = {
    ErrorCode.INVALID_JSON: CodeInfo(
        Stage.PARSE, True, "The arguments are not valid JSON. Send one JSON object."
    ),
    ErrorCode.TOO_LARGE: CodeInfo(
        Stage.PARSE, True, "The arguments exceed a size limit. Send less."
    ),
    ErrorCode.TRUNCATED: CodeInfo(
        Stage.PARSE,
        True,
        "The reply was cut off before the call was complete. Call again, shorter.",
    ),
    ErrorCode.CONTRADICTORY: CodeInfo(
        Stage.PARSE, True, "The reply said the call more than once, and not the same. Call again."
    ),
    ErrorCode.UNKNOWN_TOOL: CodeInfo(
        Stage.RESOLVE, True, "There is no tool of that name. Use one of the tools offered."
    ),
    ErrorCode.NOT_OFFERED: CodeInfo(
        Stage.RESOLVE, True, "That tool was not offered here. Use one of the tools offered."
    ),
    ErrorCode.NO_SCHEMA: CodeInfo(
        Stage.VALIDATE, False, "The tool has no schema, so its arguments cannot be checked."
    ),
    ErrorCode.INVALID_ARGUMENTS: CodeInfo(
        Stage.VALIDATE, True, "The arguments do not match the tool's schema."
    ),
    ErrorCode.INVALID_REPAIR: CodeInfo(
        Stage.VALIDATE, True, "The arguments could not be repaired. Send them again, valid."
    ),
    ErrorCode.UNUSABLE_TOOL: CodeInfo(
        Stage.VALIDATE,
        False,
        "The tool cannot be used: its own code failed before it began. The arguments are not at fault.",
    ),
    ErrorCode.NOT_RUNNABLE: CodeInfo(Stage.RUN, False, "The tool is known but cannot be run here."),
    ErrorCode.DENIED: CodeInfo(Stage.POLICY, False, "The call is not permitted."),
    ErrorCode.BUDGET_EXCEEDED: CodeInfo(
        Stage.POLICY, False, "The budget for tool calls is used up."
    ),
    ErrorCode.RATE_LIMITED: CodeInfo(
        Stage.POLICY, True, "Too many calls in a short time. Try again later."
    ),
    ErrorCode.REPEATED_EFFECT: CodeInfo(
        Stage.POLICY,
        False,
        "The run that this one was forked from has made this call already, and what it did stands. It"
        " was not made again.",
    ),
    ErrorCode.APPROVAL_REQUIRED: CodeInfo(
        Stage.APPROVAL, False, "The call needs an approval and nobody is there to give it."
    ),
    ErrorCode.APPROVAL_REFUSED: CodeInfo(Stage.APPROVAL, False, "The call was not approved."),
    ErrorCode.APPROVAL_EXPIRED: CodeInfo(
        Stage.APPROVAL, True, "The approval came too late and has lapsed."
    ),
    ErrorCode.APPROVAL_FAILED: CodeInfo(
        Stage.APPROVAL, False, "Nobody answered: asking for the approval failed."
    ),
    ErrorCode.APPROVAL_MISMATCH: CodeInfo(
        Stage.APPROVAL,
        False,
        "The approval does not fit: the tool's definition, the caller or the arguments have changed.",
    ),
    ErrorCode.ALREADY_USED: CodeInfo(
        Stage.APPROVAL, False, "The approval was used before, and it counts once."
    ),
    ErrorCode.OTHER_CALL: CodeInfo(
        Stage.APPROVAL, False, "The approval was given for another call."
    ),
    ErrorCode.UNKNOWN_APPROVAL: CodeInfo(
        Stage.APPROVAL, False, "Nobody was asked under the id of this approval."
    ),
    ErrorCode.INVALID_RULE: CodeInfo(
        Stage.APPROVAL, False, "A rule for such calls is not as it was signed: it lets nothing run."
    ),
    ErrorCode.NOT_RECORDED: CodeInfo(
        Stage.RUN, True, "The call did not run: that it begins could not be recorded."
    ),
    ErrorCode.DUPLICATE_CALL: CodeInfo(
        Stage.RUN, False, "Another call has this id: it is running, or was not the same."
    ),
    ErrorCode.OUTCOME_UNKNOWN: CodeInfo(
        Stage.RUN, False, "The call was started before and its outcome is unknown."
    ),
    # Calls with the following codes may have taken effect, so trying again may do it twice. The
    # runner permits a retry if the tool is idempotent or only reads, if it had not begun, or if its
    # author says so.
    ErrorCode.TIMEOUT: CodeInfo(Stage.RUN, False, "The tool did not finish within its time limit."),
    ErrorCode.CANCELLED: CodeInfo(Stage.RUN, False, "The call was cancelled."),
    ErrorCode.CAPABILITY_ERROR: CodeInfo(
        Stage.RUN, False, "Something that the tool depends on failed."
    ),
    ErrorCode.TOOL_ERROR: CodeInfo(Stage.RUN, False, "The tool failed."),
    ErrorCode.INVALID_OUTPUT: CodeInfo(
        Stage.OUTPUT, False, "The tool ran, but gave a result that does not match its own schema."
    ),
    ErrorCode.REDACTION_MISSING: CodeInfo(
        Stage.OUTPUT,
        False,
        "The tool ran; its result cannot be shown: `visible` names no part of a result of this kind.",
    ),
}


class ToolcribError(Exception):
    """Base class of all errors that toolcrib raises to a program."""


class DefinitionError(ToolcribError):
    """A tool cannot be registered as written; the message says what to change."""


class SchemaError(DefinitionError):
    """A schema cannot be used. `pointer` is a JSON Pointer (RFC 6901) into it."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message, pointer)
        self.message = message
        self.pointer = pointer

    def __str__(self) -> str:
        return f"{self.message} (at {self.pointer or 'the top'})"


class CatalogError(ToolcribError):
    """A name is missing from a catalog, or in it twice."""


class BindingError(ToolcribError):
    """A tool's capability has no implementation, or one that lacks a method."""


class ApprovalError(ToolcribError):
    """An approval cannot be asked for, given or used; its call ends with `code`.

    The code is `approval_failed` unless another one is given: an error while asking is not a
    refusal. `asked_digest` is the digest of the definition that somebody was asked about, if the
    call has another one now.
    """

    asked_digest: str = ""
    code: ErrorCode = ErrorCode.APPROVAL_FAILED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.APPROVAL_FAILED) -> None:
        super().__init__(message)
        self.code = code


class PickError(ToolcribError):
    """A scorer raised, or answered with something that is not a score in 0..1."""


class AnswerError(ToolcribError):
    """An author's own code (a validator or default factory) failed while reading a typed answer.

    The log says where; `state` is the `RunState` that the run had reached.
    """

    state: Any = None


class ContextError(ToolcribError):
    """A request is more than the model takes (`ContextOptions`), or that limit is unknown.

    Nothing was sent. If raised out of a run, `state` is the `RunState` that it had reached.
    """

    state: Any = None


class ContextTooSmallError(ContextError):
    """The instructions and the tools alone are more than a request may have."""


class PromptTooLargeError(ContextError):
    """The conversation is more than a request may have, and nothing more in it can be shortened."""


class SourceError(ToolcribError):
    """Tools, a file or a model cannot be loaded from where they were said to be.

    If raised out of a run, for example by a store of results, `state` is the `RunState` that it had
    reached.
    """

    state: Any = None


class MissingExtraError(ToolcribError, ImportError):
    """An optional dependency is not installed; `advice` is the command that installs it.

    If a module of that name exists and cannot be imported, the message also says why: another
    module may have its name, or a system library may be missing.
    """

    extra: str = ""
    feature: str = ""
    _why: str = ""

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(extra, feature)
        self.extra = extra
        self.feature = feature
        self._why = _why_broken(sys.exc_info()[1])

    @property
    def advice(self) -> str:
        """The message without details of the machine, which models may read."""
        if not self.extra:
            return "An optional dependency is not installed."
        return f"{self.feature} needs an extra: {install_hint(self.extra)}"

    def __str__(self) -> str:
        return f"{self.advice} (it cannot be imported: {self._why})" if self._why else self.advice


def install_hint(extra: str) -> str:
    """Return how to install an extra. toolcrib is not on PyPI: its name there is nobody's yet."""
    return f"pip install '.[{extra}]' in a checkout of toolcrib"


def _why_broken(raised: BaseException | None) -> str:
    """Return the first line of what an import raised, unless the module simply does not exist."""
    if not isinstance(raised, ImportError) or isinstance(raised, MissingExtraError):
        return ""
    is_absent = isinstance(raised, ModuleNotFoundError) and "." not in (raised.name or "")
    return "" if is_absent else str(raised).strip().partition("\n")[0]


class ClientError(ToolcribError):
    """A provider could not be used. `status` is its HTTP status, if there was one.

    `retryable` says whether the same request may succeed if made again, `retry_after` in how many
    seconds, if the provider said so. If raised out of a run, `state` is the `RunState` that it had
    reached.
    """

    state: Any = None
    retryable: bool = False
    retry_after: float | None = None

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RequestError(ClientError):
    """The provider refused the request (4xx)."""


class AuthenticationError(RequestError):
    """The key is missing, wrong, or lacks a right (401, 403)."""


class ContentFilterError(RequestError):
    """The provider's content filter stopped the request; a stopped reply has it in its `finish`."""


class RateLimitError(RequestError):
    """Too many requests (429); `retry_after` in seconds if the provider said so."""

    retryable = True

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after


class ProviderError(ClientError):
    """The provider failed: a 5xx, or an error event in a stream."""

    retryable = True


class OverloadedError(ProviderError):
    """The provider is overloaded: 503, 529, or its own word for that."""


class ConnectionFailed(ClientError):  # noqa: N818  the field's usual name
    """The provider was not reached, or the connection broke before the reply was complete."""

    retryable = True


class WireError(ClientError):
    """The provider answered with something that is not its wire format."""


class ToolError(Exception):
    """Raised by a tool's author; `safe_text` goes to the model and to records unchanged.

    A text of more than 65,536 characters is cut there, and says so. The text of any other exception
    reaches neither, because it may hold secrets. `retryable` says whether the same call may be made
    again; if left out, it may if its tool is marked `idempotent` or `read_only`. With a
    `model_text` the model reads that in place of `safe_text`, and no record has it. It is for text
    of a server, which helps the model but is not the author's own. If a subclass does not call this
    constructor, its errors have no text and are reported like any other exception.
    """

    safe_text: str = ""
    retryable: bool | None = None
    model_text: str = ""

    def __init__(
        self, safe_text: str, *, retryable: bool | None = None, model_text: str = ""
    ) -> None:
        if not isinstance(safe_text, str):
            raise TypeError(f"ToolError: safe_text must be a str; got a {type(safe_text).__name__}")
        if not (retryable is None or isinstance(retryable, bool)):
            kind = type(retryable).__name__
            raise TypeError(f"ToolError: retryable must be True, False or None; got a {kind}")
        if not isinstance(model_text, str):
            kind = type(model_text).__name__
            raise TypeError(f"ToolError: model_text must be a str; got a {kind}")
        super().__init__(safe_text)
        self.safe_text = safe_text
        self.retryable = retryable
        self.model_text = model_text


class CapabilityError(ToolError):
    """Raised by a capability's adapter: the call ends as `capability_error` with this text."""


class OutcomeUnknown(ToolError):  # noqa: N818  named like the error code
    """Raised by a tool that cannot know whether it took effect, for example if the server died.

    The call ends as `outcome_unknown` with this text. `retryable` is as for ToolError.
    """


def did_you_mean(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ` (did you mean 'x'?)` for the known word most like a mistyped one, or "".

    It follows the unknown word in an error message.
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given[:100].lower(), names, n=1, cutoff=cutoff)
    return f" (did you mean '{names[near[0]]}'?)" if near else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 tool`, `2 tools`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first items, at most `most`, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{separator.join(items[:most])}{more}"


def no_such(kind: str, given: str, known: Iterable[str]) -> str:
    """Return an error message about an unknown name: what was likely meant, and what exists."""
    names = tuple(known)
    likely = did_you_mean(given, names)
    return f"there is no {kind} {given!r}{likely}; there are: {', '.join(names)}"
