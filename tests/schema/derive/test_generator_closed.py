"""Each object of declared fields in an input schema is closed, at every depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from rows import each_row
from typing_extensions import TypedDict

from toolcrib import ErrorCode, Rejected, ToolCall, hydrate, tool
from toolcrib.schema import Parameter, compile_validator, derive_input, derive_output
from toolcrib.schema.derive import derive_object
from toolcrib.tools import Catalog

STRANGER = "amount_cents"


@dataclass
class Refund:
    order: int
    cents: int = 100_000


@pydantic_dataclass
class Checked:
    order: int


class Typed(TypedDict):
    order: int


class Model(BaseModel):
    order: int


class Sub(Model):
    note: str = ""


class Empty(BaseModel):
    pass


class Pair(NamedTuple):
    refund: Refund
    times: int = 1


class Tree(BaseModel):
    order: int = 1
    kids: list[Tree] = []


class Before(BaseModel):
    order: int

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return value


class Conditional(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"allOf": [{"properties": {"note": {"type": "string"}}}]}
    )
    order: int


class Hooked(BaseModel):
    order: int

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        return {"allOf": [{"required": ["order"]}], **handler.resolve_ref_schema(handler(core))}


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    number: int = Field(alias="order")


class Choices(BaseModel):
    number: int = Field(validation_alias=AliasChoices("order", "number"))


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    order: int


class Dog(BaseModel):
    kind: Literal["dog"]
    order: int


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    kind: Literal["named"] = Field("named", alias="type")


class OtherNamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    kind: Literal["other"] = Field(alias="type")


class Leaf(BaseModel):
    op: Literal["leaf"] = "leaf"


class Branch(BaseModel):
    op: Literal["branch"] = "branch"
    below: Operation | None = None


Operation = Annotated[Leaf | Branch, Field(discriminator="op")]
Branch.model_rebuild()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    order: int


class OpenBelow(Open):
    note: str = ""


class OpenTyped(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    order: int


@pydantic_dataclass(config=ConfigDict(extra="allow"))
class OpenDataclass:
    order: int


class OpenTypedDict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    order: int


class SaysItself(BaseModel):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})
    order: int


GOOD: Any = {"order": 7}
BAD: Any = {"order": 7, STRANGER: 5}
CLOSED = [Refund, Checked, Typed, Model, Sub, Before, Conditional, Hooked, ByName, Choices]


# As values, since type checkers take no variable for a type.
List: Any = list
Dict: Any = dict
Tuple: Any = tuple
Root: Any = RootModel
Noted: Any = Annotated


def _accepts(hint: Any, value: Any) -> bool:
    return compile_validator(derive_input([Parameter("x", hint)]).schema).is_valid({"x": value})


@each_row("hint", CLOSED)
@each_row(
    ("around", "within"),
    [
        (lambda t: t, lambda v: v),
        (lambda t: t | None, lambda v: v),
        (lambda t: int | t, lambda v: v),
        (lambda t: List[t], lambda v: [v]),
        (lambda t: List[t | None], lambda v: [v]),
        (lambda t: Dict[str, t], lambda v: {"a": v}),
        (lambda t: Tuple[t, ...], lambda v: [v]),
        (lambda t: Tuple[int, t], lambda v: [1, v]),
        (lambda t: Noted[t, Field(description="It.")], lambda v: v),
        (lambda t: Root[t], lambda v: v),
        (lambda t: Root[List[t]], lambda v: [v]),
    ],
)
def test_what_no_field_takes_is_refused(hint: Any, around: Any, within: Any) -> None:
    assert _accepts(around(hint), within(GOOD))
    assert not _accepts(around(hint), within(BAD))


@each_row("hint", CLOSED)
def test_so_is_an_object_that_is_all_the_arguments(hint: Any) -> None:
    judge = compile_validator(derive_object(hint).schema)
    assert judge.is_valid(GOOD)
    assert not judge.is_valid(BAD)


def test_recursive_composed_and_empty_ones_are_closed() -> None:
    assert _accepts(Tree, {"kids": [{"kids": [GOOD]}]})
    assert not _accepts(Tree, {"kids": [{"kids": [BAD]}]})
    assert _accepts(Conditional, GOOD | {"note": "a"})
    assert _accepts(Empty, {})
    assert not _accepts(Empty, GOOD)
    assert not _accepts(Pair, [BAD])
    assert not _accepts(Pair, [GOOD, 1, 2])


def test_each_branch_of_a_union_is_closed() -> None:
    for hint in (Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")]):
        assert _accepts(hint, GOOD | {"kind": "dog"})
        assert not _accepts(hint, BAD | {"kind": "dog"})


@each_row(
    ("hint", "value", "tag"),
    [
        (Annotated[Cat | Dog, Field(discriminator="kind")], GOOD | {"kind": "cat"}, "kind"),
        (Annotated[Named | OtherNamed, Field(discriminator="kind")], {"type": "named"}, "type"),
        (Operation, {"op": "leaf"}, "op"),
        (list[Operation] | None, [{"op": "branch", "below": {"op": "leaf"}}], "op"),
        (dict[str, Operation], {"a": {"op": "leaf"}}, "op"),
    ],
)
def test_a_tag_with_a_default_has_to_be_sent(hint: Any, value: Any, tag: str) -> None:
    assert _accepts(hint, value)
    TypeAdapter(hint).validate_python(value)
    innermost = value
    while tag not in innermost or "below" in innermost:
        innermost = innermost[0] if isinstance(innermost, list) else [*innermost.values()][-1]
    del innermost[tag]
    assert not _accepts(hint, value)
    with pytest.raises(ValidationError):
        TypeAdapter(hint).validate_python(value)


@pytest.mark.parametrize("hint", [ByName, Choices])
def test_a_field_has_the_one_name_that_its_schema_says(hint: Any) -> None:
    assert not _accepts(hint, {"number": 7})
    assert not _accepts(hint, GOOD | {"number": 7})


@each_row(
    "hint",
    [
        *(Open, OpenBelow, OpenDataclass, OpenTypedDict, OpenTyped, SaysItself),
        *(dict[str, int], dict, Any, Annotated[Model, WithJsonSchema({"type": "object"})]),
    ],
)
def test_what_its_author_opened_stays_open(hint: Any) -> None:
    assert _accepts(hint, BAD)
    assert _accepts(list[hint], [BAD])


def test_the_type_of_further_properties_is_theirs() -> None:
    assert not _accepts(OpenTyped, GOOD | {STRANGER: "x"})


def test_output_schemas_stay_open() -> None:
    for hint in (Refund, Typed, Model, list[Tree]):
        assert "additionalProperties" not in str(derive_output(hint))


def test_the_call_of_the_issue_is_refused() -> None:
    @tool(visible=["order"])
    def refund(r: Refund) -> dict[str, int]:
        """Pay money back."""
        return {"order": r.order}

    call = ToolCall("1", "refund", '{"r": {"order": 7, "amount_cents": 5}}')
    rejected = hydrate(call, Catalog([refund]))
    assert isinstance(rejected, Rejected)
    assert rejected.errors[0].code is ErrorCode.INVALID_ARGUMENTS
    assert rejected.errors[0].path.startswith("/r")
