"""A narrowed schema takes a value only as it was sent, and makes of it what the careful way makes."""

from __future__ import annotations

import dataclasses
import random
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar

import orjson
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import SchemaValidator
from samples import sample
from typing_extensions import TypedDict

from toolcrib import ALL, tool
from toolcrib.schema.derive.adapters import adapter_for, reader
from toolcrib.schema.derive.cores import narrowed
from toolcrib.schema.derive.roundtrip import Differs, Findings
from toolcrib.tools import tool_of
from toolcrib.tools.component import NotAcceptedError

T = TypeVar("T")
Make = Any
SCALARS: list[tuple[Any, Make]] = [
    (str, lambda d: d.choice(["", "a", "é", "3", "1.0"])),
    (int, lambda d: d.choice([0, -7, 2**53 + 1, 2**70, 3.0, 1e3, True])),
    (float, lambda d: d.choice([0.5, -0.0, 3.0, 3, 2**53 + 1, 1e300, False])),
    (bool, lambda d: d.choice([True, False, 1, 0])),
    (type(None), lambda _: None),
    (Literal["a", "b"], lambda d: d.choice(["a", "b"])),
    (Annotated[int, Field(ge=0, le=10, strict=False)], lambda d: d.choice([0, 10, 3.0, "3"])),
    (Annotated[float, Field(gt=0, multiple_of=0.5)], lambda d: d.choice([0.5, 1, 1.5])),
    (Annotated[str, Field(min_length=1, pattern="^a")], lambda d: d.choice(["a", "ab"])),
]


class Node(BaseModel):
    name: str
    rate: float
    below: list[Node]


class Box(BaseModel, Generic[T]):
    held: T


def node(dice: random.Random, depth: int = 2) -> Any:
    below = [node(dice, depth - 1) for _ in range(dice.randrange(3))] if depth else []
    return {"name": "n", "rate": dice.choice([0.5, 2]), "below": below}


def drawn(dice: random.Random, depth: int) -> tuple[Any, Make]:
    """A hint that can be narrowed, and what makes values of it, some of them in another form."""
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(SCALARS)
    inner, make = drawn(dice, depth - 1)
    kind = dice.choice(["list", "dict", "optional", "model", "dataclass", "node", "box"])
    if kind == "list":
        return list[inner], lambda d: [make(d) for _ in range(d.randrange(4))]  # type: ignore[valid-type]
    if kind == "dict":
        return dict[str, inner], lambda d: {k: make(d) for k in "xy"[: d.randrange(3)]}  # type: ignore[valid-type]
    if kind == "optional":
        return Optional[inner], lambda d: d.choice([None, make(d)])  # noqa: UP045
    if kind == "node":
        return Node, node
    if kind == "box":
        return Box[inner], lambda d: {"held": make(d)}  # type: ignore[valid-type]
    other, also = drawn(dice, depth - 1)
    both = {"a": (inner, ...), "type": (other, ...)}
    hint: Any
    if kind == "model":
        closed = ConfigDict(extra=dice.choice(["ignore", "forbid"]))
        hint = create_model("Made", __config__=closed, **both)  # type: ignore[call-overload]
    else:
        hint = dataclasses.make_dataclass("Made", [("a", inner), ("type", other)])
    return hint, lambda d: {"a": make(d), "type": also(d)}


def mutated(dice: random.Random, value: Any) -> Any:
    """The same JSON with a change somewhere: a key more or less, another order, another type."""
    if isinstance(value, dict) and value and dice.random() < 0.7:
        key = dice.choice(list(value))
        how = dice.randrange(4)
        if how == 0:
            return {k: v for k, v in value.items() if k != key}
        if how == 1:
            return {**value, "zz": 1}
        if how == 2:
            return dict(reversed(value.items()))
        return {**value, key: mutated(dice, value[key])}
    if isinstance(value, list) and value:
        return [mutated(dice, value[0]), *value[1:]]
    return dice.choice([value, str(value), [value], {"a": value}, None, 1, 1.0, True])


def read(hint: Any, sent: Any, *, carefully: bool) -> Any:
    """What is read, as text that tells all types and their order apart."""
    made, found = reader(adapter_for(hint, "a hint")), Findings()
    if carefully:
        made._at_once = None
    sent = deepcopy(sent)
    try:
        value, shown = made.read(sent, None, found)
    except (Differs, ValidationError) as raised:
        return type(raised), str(raised)
    assert not any(id(part) in set(map(id, parts(sent))) for part in parts(value))
    fields = [part.model_fields_set for part in parts(value) if isinstance(part, BaseModel)]
    told = (found.defaults, found.normalised, found.sets)
    return repr(value), fields, orjson.dumps(shown, default=str, option=orjson.OPT_SORT_KEYS), told


def parts(value: Any) -> list[Any]:
    """Each list and object in a value, itself included."""
    if isinstance(value, list):
        below = value
    elif isinstance(value, dict):
        below = list(value.values())
    elif hasattr(value, "__dict__"):
        below = list(vars(value).values())
    else:
        return []
    return [value, *(part for one in below for part in parts(one))]


@pytest.mark.parametrize("seed", range(sample(12, part=4)))
def test_what_is_read_at_once_is_what_is_read_carefully(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311  a fuzzer's
    at_once = 0
    for _ in range(40):
        hint, make = drawn(dice, 3)
        assert narrowed(adapter_for(hint, "a hint").core_schema) is not None, hint
        for _ in range(6):
            sent = make(dice)
            if dice.random() < 0.4:
                sent = mutated(dice, sent)
            if any(isinstance(n, int) and abs(n) > 2**63 for n in leaves(sent)):
                continue  # orjson does not write it, in this test
            assert read(hint, sent, carefully=False) == read(hint, sent, carefully=True)
            at_once += taken(hint, sent)
    assert at_once > 40


def built(hints: dict[str, Any], sent: dict[str, Any], *, carefully: bool) -> Any:
    """What a tool makes of all arguments, as text; and whether each was read as it was sent."""

    async def take(a: Any, b: Any, n: Any, f: Any = 0.5) -> None:
        """Take arguments."""

    take.__annotations__ = hints
    made = tool_of(tool(visible=ALL)(take))
    if carefully:
        made._at_once, made._fixed = None, None
    try:
        one = made.make(deepcopy(sent))
    except NotAcceptedError as error:
        return False, error.faults
    as_sent = made._at_once is not None and made._as_sent(deepcopy(sent)) is not None
    arguments = repr(sorted(one.instance.arguments.items()))
    return as_sent, (arguments, one.canonical, one.defaults, one.normalised, one.sets)


def test_all_arguments_that_are_read_at_once_are_what_is_read_carefully() -> None:
    dice = random.Random(1)  # noqa: S311  a fuzzer's
    at_once = 0
    for _ in range(sample(60, part=3)):
        (one, make), (other, also) = drawn(dice, 2), drawn(dice, 2)
        hints = {"a": one, "b": dice.choice((one, other)), "n": int, "f": float}
        make_b = make if hints["b"] is one else also
        for _ in range(5):
            sent = {"a": make(dice), "b": make_b(dice), "n": 7, "f": dice.choice((1.5, 2.0, 3))}
            if dice.random() < 0.4:
                sent = {**sent, "a": mutated(dice, sent["a"])}
            if dice.random() < 0.3:
                del sent["f"]
            at_once_too, told = built(hints, sent, carefully=False)
            assert told == built(hints, sent, carefully=True)[1]
            at_once += at_once_too
    assert at_once > 10


def leaves(value: Any) -> list[Any]:
    if isinstance(value, list | dict):
        below = value.values() if isinstance(value, dict) else value
        return [leaf for one in below for leaf in leaves(one)]
    return [value]


def taken(hint: Any, sent: Any) -> bool:
    narrow = SchemaValidator(narrowed(adapter_for(hint, "a hint").core_schema), _use_prebuilt=False)
    try:
        narrow.validate_python(sent)
    except ValidationError:
        return False
    return True


class Color(Enum):
    RED = "red"


class Aliased(BaseModel):
    n: int = Field(alias="N")


class Filled(BaseModel):
    n: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Stripping(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    n: str


class Coercing(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    n: str


class After(BaseModel):
    n: int

    def model_post_init(self, _context: object, /) -> None:
        self.n += 1


class Checked(BaseModel):
    n: int

    @model_validator(mode="after")
    def change(self) -> Checked:
        self.n += 1
        return self


class Constructed(BaseModel):
    n: int

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.n += 1


@dataclass
class Posted:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Typed(TypedDict):
    n: int


@pytest.mark.parametrize(
    "hint",
    [
        Any, list, dict, list[Any], dict[str, Any], dict[int, str], Literal[1], Literal["a", 1], Color,
        date, bytes, set[str], tuple[int, str], int | str, RootModel[int], Aliased, Filled, Open,
        Stripping, Coercing, After, Checked, Constructed, Posted, Typed,
        Annotated[int, AfterValidator(abs)], Annotated[str, StringConstraints(strip_whitespace=True)],
    ],
)  # fmt: skip
def test_what_may_be_changed_or_left_out_is_read_carefully(hint: Any) -> None:
    for around in (hint, list[hint], Box[hint]):
        assert narrowed(adapter_for(around, "a hint").core_schema) is None
