"""Whose fault it is that valid JSON cannot be read: the sender's, or that of an author's own code."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    RootModel,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from rows import each_row

from toolcrib import ALL, Rejected, ToolCall, hydrate, tool
from toolcrib.errors import ErrorCode
from toolcrib.failures import LOGGER
from toolcrib.hydration.hydrate import MadeOtherwise
from toolcrib.tools import Tool

CANARY = "canary-7f3a"


def taking(hint: Any) -> Tool[..., Any]:
    def take(x: Any) -> str:
        return "ok"

    take.__annotations__ = {"x": hint, "return": str}
    return tool(visible=ALL, description="Take it.")(take)


def read(one: Tool[..., Any], sent: Any) -> tuple[Any, list[BaseException]]:
    raised: list[BaseException] = []
    call = ToolCall("c", "take", json.dumps({"x": sent}))
    return hydrate(call, [one], on_exception=lambda _, error: raised.append(error)), raised


class Before(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def code(cls, data: Any) -> Any:
        {key.lower(): value for key, value in data.items()}


class Dropping(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def code(cls, data: Any) -> Any:
        return {}


class Adding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @model_validator(mode="before")
    @classmethod
    def code(cls, data: Any) -> Any:
        return {**data, CANARY: 1}


class DroppingOptional(BaseModel):
    a: int = 0

    @model_validator(mode="before")
    @classmethod
    def code(cls, data: Any) -> Any:
        return {}


class After(BaseModel):
    a: int

    @model_validator(mode="after")
    def code(self) -> Any:
        assert self.a < 100


class Wrapped(BaseModel):
    a: int

    @model_validator(mode="wrap")
    @classmethod
    def code(cls, data: Any, handler: Any) -> Any:
        handler(data)


class Changing(BaseModel):
    a: int

    @model_validator(mode="after")
    def code(self) -> Changing:
        self.a = self.a + 1
        return self


class PostInit(BaseModel):
    a: int

    def model_post_init(self, _context: Any) -> None:
        self.a += 1


class OfField(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def code(cls, value: int) -> Any:
        assert value < 100


class BeforeField(BaseModel):
    a: int

    @field_validator("a", mode="before")
    @classmethod
    def code(cls, value: Any) -> Any:
        assert value


class AnotherType(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def code(cls, value: int) -> Any:
        return str(value)


class BeforeAnotherType(BaseModel):
    a: int

    @field_validator("a", mode="before")
    @classmethod
    def code(cls, value: Any) -> Any:
        return [value]


@dataclass
class Posted:
    a: int

    def __post_init__(self) -> None:
        self.a = self.a * 2


@checked_dataclass
class CheckedPosted:
    a: int

    def __post_init__(self) -> None:
        self.a = self.a * 2


class Root(RootModel[int]):
    @model_validator(mode="after")
    def code(self) -> Any:
        pass


def code(value: Any) -> Any:
    pass


def code_around(value: Any, handler: Any) -> Any:
    handler(value)


class Pair(NamedTuple):
    a: int


class Keyed(TypedDict):
    a: int


def of_default() -> Any:
    return "canary"


class WrongDefault(BaseModel):
    model_config = ConfigDict(validate_default=True)
    a: int
    b: int = Field(default_factory=of_default)


A = {"a": 1}
BROKEN: list[tuple[Any, Any, str]] = [
    *[(hint, A, f"{hint.__name__}.code") for hint in (Before, Dropping, Adding, DroppingOptional)],
    *[(hint, A, f"{hint.__name__}.code") for hint in (After, Wrapped, Changing)],
    *[(hint, A, f"{hint.__name__}.code") for hint in (OfField, BeforeField, AnotherType)],
    (BeforeAnotherType, A, "BeforeAnotherType.code"),
    (PostInit, A, "PostInit.model_post_init"),
    (Posted, A, "Posted.__post_init__"),
    (CheckedPosted, A, "CheckedPosted.__post_init__"),
    (Root, 1, "Root.code"),
    (Annotated[int, AfterValidator(code)], 1, "code"),
    (Annotated[int, BeforeValidator(code)], 1, "code"),
    (Annotated[int, WrapValidator(code_around)], 1, "code_around"),
    (Annotated[Pair, AfterValidator(code)], [1], "code"),
    (Annotated[Keyed, AfterValidator(code)], A, "code"),
    (Annotated[list[int], AfterValidator(code)], [1], "code"),
    (Annotated[list[int], BeforeValidator(code)], [1], "code"),
    (WrongDefault, A, "validator"),
]
AROUND: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda hint: hint, lambda sent: sent),
    "in a list": (lambda hint: GenericAlias(list, (hint,)), lambda sent: [sent]),
    "in a dict": (lambda hint: GenericAlias(dict, (str, hint)), lambda sent: {CANARY: sent}),
    "or none": (lambda hint: hint | None, lambda sent: sent),
}


@pytest.mark.parametrize("around", AROUND)
@each_row(("hint", "sent", "named"), BROKEN)
def test_what_code_makes_of_valid_arguments_is_its_authors_fault(
    hint: Any, sent: Any, named: str, around: str, caplog: pytest.LogCaptureFixture
) -> None:
    if around == "or none" and named.startswith("code"):
        return  # None is of this hint
    caplog.clear()
    as_hint, as_sent = AROUND[around]
    result, raised = read(taking(as_hint(hint)), as_sent(sent))
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.code, error.message) == (
        ErrorCode.UNUSABLE_TOOL,
        ErrorCode.UNUSABLE_TOOL.info.text,
    )
    assert [type(one) for one in raised] == [MadeOtherwise]
    (log,) = caplog.records
    assert (log.name, log.levelno) == (LOGGER.name, logging.WARNING)
    said = log.getMessage()
    assert said.startswith("tool 'take', when it was given its arguments, failed: ")
    assert named in said
    assert "/x" in said
    assert "canary" not in said


def upper(text: str) -> str:
    return text.upper()


class Guess(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Guess:
        return cls.A


class Holds(BaseModel):
    guess: Guess

    @model_validator(mode="after")
    def code(self) -> Holds:
        return self


def split(value: Any) -> Any:
    """Read a text as a list, in which `null` is none."""
    return [None if one == "null" else one for one in str(value).split(",")]


class Widened(BaseModel):
    kind: Annotated[Literal["A", "B"], BeforeValidator(upper, json_schema_input_type=str)]


@dataclass
class Later:
    when: datetime
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append(1)


UNKNOWN: list[tuple[Any, Any, str]] = [
    (Widened, {"kind": CANARY}, "/x/kind"),
    (Annotated[int, Field(le=9), AfterValidator(lambda n: n * 10)], 5, "/x"),
    (Annotated[list[int], BeforeValidator(split, json_schema_input_type=str)], CANARY, "/x"),
    (Annotated[list[int], BeforeValidator(split, json_schema_input_type=str)], "null", "/x"),
    (list[Widened], [{"kind": "A"}, {"kind": CANARY}, {"kind": CANARY}], "/x/*/kind"),
    (Annotated[Json[int], AfterValidator(lambda n: n)], "null", "/x"),
    (dict[str, Widened], {CANARY: {"kind": CANARY}}, "/x/*/kind"),
]


@each_row(("hint", "sent", "place"), UNKNOWN)
def test_where_nobody_can_tell_the_author_is_warned_once(
    hint: Any, sent: Any, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    one = taking(hint)
    for _ in range(3):
        result, raised = read(one, sent)
        assert isinstance(result, Rejected)
        assert {error.code for error in result.errors} == {ErrorCode.INVALID_ARGUMENTS}
        assert not raised
    (log,) = caplog.records
    assert (log.name, log.levelno) == (LOGGER.name, logging.WARNING)
    said = log.getMessage()
    assert said.startswith(f"tool 'take' refused at {place} what its schema takes")
    assert CANARY not in said


class InWords(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def code(cls, value: int) -> int:
        raise ValueError(CANARY)


@each_row(
    ("hint", "sent"),
    [
        (InWords, A),
        (list[InWords], [A]),
        (Guess, "b"),
        (Annotated[int, Field(strict=False)], "5"),
        (OfField, {"a": "x"}),
        (re.Pattern, "(" * 2000 + ")" * 2000),  # `re` recurses
    ],
)
def test_what_is_refused_in_words_or_by_a_hint_accuses_no_code(
    hint: Any, sent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result, raised = read(taking(hint), sent)
    assert isinstance(result, Rejected)
    assert {error.code for error in result.errors} == {ErrorCode.INVALID_ARGUMENTS}
    assert (raised, caplog.records) == ([], [])


def test_a_hint_that_reads_another_value_is_told_apart_from_the_code_around_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`_missing_` makes another member of a text; the validator around it changes nothing."""

    def take(x: Holds) -> str:
        return "ok"

    schema: Any = {"type": "object", "properties": {"x": {}}, "required": ["x"]}
    one = tool(visible=ALL, description="Take it.", input_schema=schema)(take)
    result, raised = read(one, {"guess": "b"})
    assert isinstance(result, Rejected)
    assert {error.code for error in result.errors} == {ErrorCode.INVALID_ARGUMENTS}
    assert not raised
    assert "Holds.code" in caplog.text


def unbounded(value: Any) -> Any:
    return [float("inf")] if isinstance(value, list) else float("nan")


@pytest.mark.parametrize(("hint", "sent"), [(int, 3), (float, 0.5), (list[float], [1.5])])
def test_what_a_validator_makes_and_no_json_shows_does_not_run(hint: Any, sent: Any) -> None:
    found, raised = read(taking(Annotated[hint, AfterValidator(unbounded)]), sent)
    assert isinstance(found, Rejected)
    assert [error.code for error in found.errors] == [ErrorCode.UNUSABLE_TOOL]
    assert len(raised) == 1
