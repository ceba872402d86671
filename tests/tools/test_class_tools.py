"""A decorated class stays what it was, whatever kind of class it is; a table of the kinds."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator
from rows import each_row

from toolcrib import ALL, Catalog, Hydrated, ToolCall, ToolComponent, hydrate, tool
from toolcrib.errors import DefinitionError
from toolcrib.tools import tool_of

T = TypeVar("T")


class Base:
    made: ClassVar[int] = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.registered = cls.__name__

    registered: ClassVar[str]

    def __init__(self, a: int) -> None:
        self.a = a

    def describe(self) -> str:
        return f"base {self.a}"

    async def run(self) -> str:
        return self.describe()


@tool(visible=ALL)
class Inheriting(Base):
    """Inherit."""

    LIMIT = 7

    def __init__(self, a: int, b: str = "x") -> None:
        super().__init__(a)
        self.b = b

    def describe(self) -> str:
        return super().describe() + self.b

    @classmethod
    def of(cls, a: int) -> Self:
        return cls(a)

    @staticmethod
    def twice(a: int) -> int:
        return 2 * a

    @property
    def both(self) -> tuple[int, str]:
        return self.a, self.b

    @both.setter
    def both(self, value: tuple[int, str]) -> None:
        self.a, self.b = value

    @cached_property
    def once(self) -> object:
        return object()

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inheriting) and self.both == other.both

    def __hash__(self) -> int:
        return hash(self.both)

    class Inner(Enum):
        ONE = 1


@tool(visible=ALL)
class Slots:
    """Slots."""

    __slots__ = ("__weakref__", "a")

    def __init__(self, a: int) -> None:
        self.a = a

    async def run(self) -> int:
        return self.a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slots) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]


@tool(visible=ALL)
class Generics(Generic[T]):
    """Generics."""

    def __init__(self, a: int) -> None:
        self.a = a

    async def run(self) -> int:
        return self.a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Generics) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]


@tool(visible=ALL)
@dataclass(frozen=True, order=True)
class Frozen:
    """Freeze."""

    a: int
    b: list[str] = field(default_factory=list, compare=False)

    async def run(self) -> int:
        return self.a


@tool(visible=ALL)
@dataclass(slots=True, kw_only=True)
class SlottedData:
    """Slotted data."""

    a: int

    async def run(self) -> int:
        return self.a


@tool(visible=ALL)
class Model(BaseModel):
    """Model it."""

    model_config = ConfigDict(frozen=True)

    a: int = Field(gt=0)

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.a == 13:
            raise ValueError("no")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.a

    async def run(self) -> int:
        return self.a


@tool(visible=ALL)
class Explicit(ToolComponent):
    """Explicit."""

    def __init__(self, a: int) -> None:
        self.a = a

    async def run(self) -> int:
        return self.a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explicit) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]


class Kind(NamedTuple):
    """A class, an instance that Python made, and what running it gives."""

    cls: Any
    make: Callable[[], Any]
    result: Any


KINDS = {
    "inheriting": Kind(Inheriting, lambda: Inheriting(4), "base 4x"),
    "slots": Kind(Slots, lambda: Slots(4), 4),
    "generic": Kind(Generics, lambda: Generics[str](4), 4),
    "frozen dataclass": Kind(Frozen, lambda: Frozen(4), 4),
    "slotted dataclass": Kind(SlottedData, lambda: SlottedData(a=4), 4),
    "pydantic model": Kind(Model, lambda: Model(a=4), 4),
    "component": Kind(Explicit, lambda: Explicit(4), 4),
}


def documented(cls: type) -> str:
    """What an author wrote; `@dataclass` writes the signature where nobody wrote anything."""
    text = cls.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else text


@each_row(("cls", "make", "result"), KINDS.values(), ids=KINDS)
async def test_each_kind(cls: Any, make: Callable[[], Any], result: Any) -> None:
    ours = make()
    hydrated = hydrate(ToolCall("c", cls.__name__, '{"a":4}'), Catalog([cls]))
    assert isinstance(hydrated, Hydrated), hydrated.errors
    assert type(hydrated.tool) is cls
    assert hydrated.tool == ours
    assert await ours.run() == await hydrated.tool.run() == result
    assert isinstance(ours, ToolComponent)
    assert issubclass(cls, ToolComponent)
    assert cls.get_definition().name == cls.__name__
    assert cls.get_definition() is tool_of(cls).definition
    assert cls.get_definition().description == documented(cls)
    assert (cls.__module__, cls.__qualname__) == (__name__, cls.__name__)
    for again in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):  # noqa: S301  our own bytes
        assert type(again) is cls
        assert again == ours
    assert pickle.loads(pickle.dumps(cls)) is cls  # noqa: S301  likewise


@each_row("cls", [kind.cls for kind in KINDS.values()], ids=KINDS)
def test_a_subclass_of_each_kind_is_a_component_and_no_tool(cls: Any) -> None:
    class Below(cls):  # type: ignore[misc]
        """Below."""

        async def run(self) -> str:
            return "below"

    assert issubclass(Below, ToolComponent)
    with pytest.raises(DefinitionError, match="Below is no tool"):
        tool_of(Below)
    with pytest.raises(DefinitionError, match="Below is no tool"):
        Below.get_definition()
    decorated = tool(visible=ALL, name="Lower")(Below)
    assert decorated is Below
    assert tool_of(Below).definition.name == "Lower"
    assert tool_of(cls).definition.name == cls.__name__
    hydrated = hydrate(ToolCall("c", "Lower", '{"a":4}'), Catalog([cls, Below]))
    assert type(hydrated.tool) is Below


def test_members() -> None:
    one = Inheriting.of(4)
    assert (Inheriting.LIMIT, Inheriting.made, Inheriting.twice(2), len(one)) == (7, 0, 4, 3)
    assert Inheriting.registered == "Inheriting"
    one.both = (5, "y")
    assert one.both == (5, "y")
    assert one.once is one.once
    assert one.describe() == "base 5y"
    assert Inheriting.Inner.ONE.value == 1
    assert Inheriting.__mro__ == (Inheriting, Base, object)
    assert isinstance(one, Base)
    assert not isinstance(Base(1), ToolComponent)


def test_slots_stay_slots() -> None:
    for one in (Slots(4), SlottedData(a=4)):
        assert not hasattr(one, "__dict__")
        with pytest.raises(AttributeError):
            one.other = 1  # type: ignore[union-attr]


def test_dataclasses_stay_dataclasses() -> None:
    one = Frozen(4, ["x"])
    assert repr(one) == "Frozen(a=4, b=['x'])"
    assert dataclasses.replace(one, a=5) == Frozen(5)
    assert dataclasses.asdict(one) == {"a": 4, "b": ["x"]}
    assert [f.name for f in dataclasses.fields(Frozen)] == ["a", "b"]
    assert Frozen(1) < Frozen(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.a = 1  # type: ignore[misc]
    match one:
        case Frozen(a=a):
            assert a == 4


def test_models_stay_models() -> None:
    assert Model.model_validate({"a": 4}).model_dump() == {"a": 4, "double": 8}
    assert Model.model_validate_json('{"a":4}').model_copy(update={"a": 5}).a == 5
    assert Model.model_json_schema()["properties"]["a"]["exclusiveMinimum"] == 0
    assert list(Model.model_fields) == ["a"]
    for wrong in (0, 13):
        with pytest.raises(ValueError, match="1 validation error"):
            Model(a=wrong)
    result = hydrate(ToolCall("c", "Model", '{"a":13}'), Catalog([Model]))
    assert [error.stage for error in result.errors] == ["instantiate"]


def test_generics_are_still_subscripted() -> None:
    assert Generics[int](3).a == 3
    assert Generics.__parameters__ == (T,)  # type: ignore[attr-defined]
