"""The closed list of codes, and the tree of exceptions."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

from rows import each_row

from toolcrib import errors
from toolcrib.errors import (
    ApprovalError,
    AuthenticationError,
    BindingError,
    CapabilityError,
    CatalogError,
    ClientError,
    ConnectionFailed,
    ContentFilterError,
    DefinitionError,
    ErrorCode,
    MissingExtraError,
    OutcomeUnknown,
    OverloadedError,
    PickError,
    ProviderError,
    RateLimitError,
    RequestError,
    SchemaError,
    SourceError,
    Stage,
    ToolcribError,
    ToolError,
    WireError,
)

CODES = [
    "invalid_json",
    "too_large",
    "truncated",
    "contradictory",
    "unknown_tool",
    "not_offered",
    "no_schema",
    "invalid_arguments",
    "invalid_repair",
    "unusable_tool",
    "not_runnable",
    "denied",
    "budget_exceeded",
    "rate_limited",
    "repeated_effect",
    "approval_required",
    "approval_refused",
    "approval_expired",
    "approval_failed",
    "approval_mismatch",
    "already_used",
    "other_call",
    "unknown_approval",
    "invalid_rule",
    "not_recorded",
    "duplicate_call",
    "outcome_unknown",
    "timeout",
    "cancelled",
    "capability_error",
    "tool_error",
    "invalid_output",
    "redaction_missing",
]


def test_the_codes_are_exactly_those_of_the_api() -> None:
    assert [str(code) for code in ErrorCode] == CODES


@each_row("code", list(ErrorCode))
def test_each_code_has_a_stage_and_one_fixed_sentence(code: ErrorCode) -> None:
    stage, retryable, text = code.info
    assert stage in Stage
    assert isinstance(retryable, bool)
    assert re.fullmatch(r"[A-Z][^{}%]{10,120}\.", text), text


def test_no_two_codes_say_the_same() -> None:
    assert len({code.info.text for code in ErrorCode}) == len(ErrorCode)


@each_row(
    ("code", "stage", "retryable"),
    [
        (ErrorCode.INVALID_JSON, Stage.PARSE, True),
        (ErrorCode.TRUNCATED, Stage.PARSE, True),
        (ErrorCode.CONTRADICTORY, Stage.PARSE, True),
        (ErrorCode.UNKNOWN_TOOL, Stage.RESOLVE, True),
        (ErrorCode.INVALID_ARGUMENTS, Stage.VALIDATE, True),
        (ErrorCode.UNUSABLE_TOOL, Stage.VALIDATE, False),
        (ErrorCode.DENIED, Stage.POLICY, False),
        (ErrorCode.APPROVAL_REFUSED, Stage.APPROVAL, False),
        (ErrorCode.TIMEOUT, Stage.RUN, False),
        (ErrorCode.TOOL_ERROR, Stage.RUN, False),
        (ErrorCode.CAPABILITY_ERROR, Stage.RUN, False),
        (ErrorCode.OUTCOME_UNKNOWN, Stage.RUN, False),
        (ErrorCode.INVALID_OUTPUT, Stage.OUTPUT, False),
    ],
)
def test_what_follows_from_a_code(code: ErrorCode, stage: Stage, retryable: bool) -> None:
    assert (code.info.stage, code.info.retryable) == (stage, retryable)


@each_row(
    ("error", "bases"),
    [
        (SchemaError("no", "/a"), (DefinitionError, ToolcribError)),
        (CatalogError("no"), (ToolcribError,)),
        (BindingError("no"), (ToolcribError,)),
        (ApprovalError("no", ErrorCode.APPROVAL_EXPIRED), (ToolcribError,)),
        (PickError("no"), (ToolcribError,)),
        (SourceError("no"), (ToolcribError,)),
        (MissingExtraError("local", "LocalClient"), (ToolcribError, ImportError)),
        (RequestError("no", 400), (ClientError, ToolcribError)),
        (AuthenticationError("no", 401), (RequestError,)),
        (RateLimitError("no", 429, 2.5), (RequestError,)),
        (ProviderError("no", 500), (ClientError,)),
        (OverloadedError("no", 529), (ProviderError,)),
        (ContentFilterError("no", 400), (RequestError,)),
        (ConnectionFailed("no"), (ClientError,)),
        (WireError("no"), (ClientError,)),
        (ToolError("safe", retryable=False), (Exception,)),
        (CapabilityError("safe"), (ToolError,)),
        (OutcomeUnknown("safe"), (ToolError,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_tree(error: Exception, bases: tuple[type, ...]) -> None:
    assert isinstance(error, bases)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301  our own bytes
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_what_an_author_raises_is_no_error_of_the_program() -> None:
    assert not issubclass(ToolError, ToolcribError)
    assert ToolError("there is no such order").safe_text == "there is no such order"


def test_errors_say_where_and_what_to_do() -> None:
    assert str(SchemaError("no", "/a/b")) == "no (at /a/b)"
    assert str(SchemaError("no")) == "no (at the top)"
    extra = MissingExtraError("local", "LocalClient")
    assert (
        str(extra) == "LocalClient needs an extra: pip install '.[local]' in a checkout of toolcrib"
    )
    assert (RateLimitError("x", 429, 2.5).status, RateLimitError("x", 429, 2.5).retry_after) == (
        429,
        2.5,
    )
    assert ApprovalError("x").code is ErrorCode.APPROVAL_FAILED


def test_the_tree_that_the_module_draws_is_the_tree_that_it_has() -> None:
    drawn = set(re.findall(r"([A-Z]\w+(?:Error|Failed|Unknown))\b", errors.__doc__ or ""))
    there = {
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing)
        and issubclass(thing, Exception)
        and thing.__module__ == errors.__name__
    }
    assert drawn == there
