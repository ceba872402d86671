"""`@tool` on functions and classes: what comes of it, and what still works as before."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from dataclasses import InitVar, dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar, Protocol, Self
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from rows import each_row
from tools.elsewhere import Stay
from typing_extensions import TypedDict

from toolcrib import (
    ALL,
    CallContext,
    Catalog,
    Hydrated,
    Tool,
    ToolCall,
    ToolComponent,
    ToolDefinition,
    capability,
    hydrate,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.tools import tool_of


@tool(visible=ALL, tags=["math"], safe=False, timeout=3, strict=True)
def double(number: int, by: float = 2.0) -> float:
    """Multiply a number.

    Args:
        number: What to multiply.
        by: The factor.
    """
    return number * by


@tool(visible=ALL)
async def shout(text: str) -> str:
    """Make it loud."""
    await asyncio.sleep(0)
    return text.upper()


def built(thing: Any, arguments: str) -> Any:
    """The instance that one call makes."""
    catalog = Catalog([thing])
    result = hydrate(ToolCall("c", catalog.names[0], arguments), catalog)
    assert isinstance(result, Hydrated), result.errors
    return result.tool


def schema_of(thing: Any) -> Any:
    return tool_of(thing).definition.input_schema


def test_a_function_is_still_callable() -> None:
    assert double(3) == 6.0
    assert double(number=3, by=1.5) == 4.5
    assert isinstance(double, Tool)
    assert double.__wrapped__(2, 2) == 4
    assert double.__name__ == "double"
    assert repr(double) == "<Tool double>"


async def test_a_coroutine_function_is_too() -> None:
    assert await shout("hi") == "HI"
    assert await shout(text="hi") == "HI"


def test_what_a_function_says() -> None:
    definition = double.get_definition()
    assert definition.name == "double"
    assert definition.description == "Multiply a number."
    assert definition.input_schema == {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "description": "What to multiply."},
            "by": {"type": "number", "description": "The factor.", "default": 2.0},
        },
        "required": ["number"],
        "additionalProperties": False,
    }
    assert definition.output_schema == {"type": "number"}
    assert (definition.tags, definition.strict) == (("math",), True)
    assert (definition.annotations.safe, definition.annotations.timeout) == (False, 3.0)


async def test_a_sync_function_runs_off_the_event_loop() -> None:
    @tool(visible=ALL)
    def where() -> str:
        """Where."""
        return threading.current_thread().name

    assert tool_of(where).blocking
    assert not tool_of(shout).blocking
    assert await built(where, "{}").run() != threading.current_thread().name
    assert await built(shout, '{"text":"a"}').run() == "A"


def test_its_own_name_and_description_may_be_given() -> None:
    @tool(visible=ALL, name="other", description="Other.")
    def original() -> int:
        """Original."""
        return 1

    definition = original.get_definition()
    assert (definition.name, definition.description) == ("other", "Other.")


@tool(visible=["cents"])
@dataclass(frozen=True)
class Refund:
    """Refund an order.

    Args:
        order: The number on the receipt.
    """

    limit: ClassVar[int] = 100

    order: int
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def first(cls) -> Self:
        return cls(1)

    @staticmethod
    def fee(cents: int) -> int:
        return cents // 10

    @property
    def label(self) -> str:
        return f"#{self.order}"

    async def run(self) -> dict[str, int]:
        return {"cents": self.order}


@tool(visible=ALL)
@dataclass(frozen=True, slots=True)
class Slotted:
    """Slotted."""

    value: int

    async def run(self) -> int:
        return self.value


@tool(visible=ALL)
class Plain:
    """Say something."""

    count = 0

    def __init__(self, text: str, times: int = 1) -> None:
        """
        Args:
            text: What to say.
        """
        self.text = text * times

    async def run(self) -> str:
        return self.text


@tool(visible=ALL)
class Empty:
    """Empty."""

    async def run(self) -> None:
        return None


@tool(visible=ALL)
class Explicit(ToolComponent):
    """Explicit."""

    def __init__(self, value: int) -> None:
        self.value = value

    async def run(self) -> int:
        return self.value


CLASSES: list[tuple[Any, str, Any]] = [
    (Refund, '{"order":7.0}', {"cents": 7}),
    (Slotted, '{"value":7}', 7),
    (Plain, '{"text":"a","times":2}', "aa"),
    (Empty, "{}", None),
    (Explicit, '{"value":7}', 7),
]


@each_row(("cls", "arguments", "result"), CLASSES)
async def test_a_class_is_made_from_arguments_and_run(
    cls: Any, arguments: str, result: Any
) -> None:
    instance = built(cls, arguments)
    assert type(instance) is cls
    assert isinstance(instance, ToolComponent)
    assert issubclass(cls, ToolComponent)
    assert await instance.run() == result
    assert isinstance(cls.get_definition(), ToolDefinition)
    assert instance.get_definition() is cls.get_definition()


def test_a_class_stays_what_it_was() -> None:
    refund = Refund(3)
    assert Refund.first() == Refund(1)
    assert (Refund.limit, Refund.fee(50), refund.label) == (100, 5, "#3")
    assert refund.reasons == []
    assert Plain.count == 0
    with pytest.raises(AttributeError):
        refund.order = 4  # type: ignore[misc]
    assert Refund.__mro__ == (Refund, object)


@pytest.mark.parametrize("instance", [Refund(3, ["late"]), Slotted(3)])
def test_instances_are_pickled_by_the_name_of_their_class(instance: object) -> None:
    assert pickle.loads(pickle.dumps(instance)) == instance  # noqa: S301  our own bytes
    assert pickle.loads(pickle.dumps(type(instance))) is type(instance)  # noqa: S301


def test_what_a_class_says() -> None:
    definition = Refund.get_definition()  # type: ignore[attr-defined]
    assert definition.description == "Refund an order."
    assert definition.input_schema == {
        "type": "object",
        "properties": {
            "order": {"type": "integer", "description": "The number on the receipt."},
            "reasons": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["order"],
        "additionalProperties": False,
    }
    assert definition.output_schema == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    assert schema_of(Plain)["properties"]["text"]["description"] == "What to say."
    assert tool_of(Slotted).definition.description == "Slotted."


def test_a_subclass_is_no_tool_until_it_is_decorated() -> None:
    class Bigger(Refund):
        """Refund more."""

    with pytest.raises(DefinitionError, match="Bigger is no tool"):
        Bigger.get_definition()  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match="Bigger is no tool"):
        Catalog([Bigger])
    decorated = tool(visible=ALL)(Bigger)
    assert decorated is Bigger
    assert tool_of(Bigger).definition.name == "Bigger"
    assert tool_of(Refund).definition.name == "Refund"
    assert built(Bigger, '{"order":1}') == Bigger(1)
    assert len(Catalog([Refund, Bigger])) == 2


def test_an_inherited_constructor_and_an_inherited_run() -> None:
    class Base:
        def __init__(self, a: int) -> None:
            self.a = a

        async def run(self) -> int:
            return self.a

    @tool(visible=ALL)
    class Derived(Base):
        """Derived."""

    assert schema_of(Derived)["required"] == ["a"]
    assert asyncio.run(built(Derived, '{"a":5}').run()) == 5


def test_the_fields_of_a_base_are_read_in_its_own_module() -> None:
    """Neither `date` nor `Money` mean there what they would mean here."""

    @tool(visible=ALL)
    @dataclass(frozen=True)
    class Booking(Stay):
        """Booking."""

        name: str = ""

        async def run(self) -> str:
            return f"{self.price} {self.arrival}"

    made = built(Booking, '{"arrival":"2024-02-29","price":"1.50","name":"x"}')
    assert made == Booking(date(2024, 2, 29), Decimal("1.50"), "x")


def test_a_dataclass_with_all_its_ways() -> None:
    @tool(visible=ALL)
    @dataclass
    class Ways:
        """Ways."""

        first: int
        seed: InitVar[int]
        named: str = field(default="n", kw_only=True)
        made: int = field(init=False, default=0)
        shared: ClassVar[int] = 1

        def __post_init__(self, seed: int) -> None:
            self.made = seed * 2

        async def run(self) -> int:
            return self.made

    assert list(schema_of(Ways)["properties"]) == ["first", "seed", "named"]
    assert built(Ways, '{"first":1,"seed":4.0}').made == 8


class Address(BaseModel):
    city: str = Field(min_length=2, description="Where.")
    since: date | None = None
    key: SecretStr | None = None


class Move(TypedDict, total=False):
    to: Address
    by: date


@dataclass
class Limits:
    top: float
    kids: list[Limits] = field(default_factory=list)


@tool(visible=ALL)
class TakesModel:
    """Takes model."""

    def __init__(self, where: Address) -> None:
        self.got = where

    async def run(self) -> None: ...


@tool(visible=ALL)
class TakesTypedDict:
    """Takes typed dict."""

    def __init__(self, move: Move) -> None:
        self.got = move

    async def run(self) -> None: ...


@tool(visible=ALL)
class TakesDataclass:
    """Takes dataclass."""

    def __init__(self, limits: Limits) -> None:
        self.got = limits

    async def run(self) -> None: ...


@pytest.mark.parametrize(
    ("cls", "arguments", "properties", "got"),
    [
        (TakesModel, '{"city":"Ulm","since":"2020-01-01"}', ["city", "since", "key"],
         Address(city="Ulm", since=date(2020, 1, 1))),
        (TakesTypedDict, '{"to":{"city":"Ulm"},"by":"2020-01-01"}', ["to", "by"],
         {"to": Address(city="Ulm"), "by": date(2020, 1, 1)}),
        (TakesDataclass, '{"top":1,"kids":[{"top":2}]}', ["top", "kids"],
         Limits(1.0, [Limits(2.0)])),
    ],
)  # fmt: skip
def test_a_sole_object_is_all_the_arguments(
    cls: Any, arguments: str, properties: list[str], got: Any
) -> None:
    assert list(schema_of(cls)["properties"]) == properties
    assert schema_of(cls)["type"] == "object"
    assert schema_of(cls)["additionalProperties"] is False
    assert built(cls, arguments).got == got


@tool(visible=ALL)
class TakesList:
    """Takes list."""

    def __init__(self, points: list[Limits]) -> None:
        self.got = points

    async def run(self) -> None: ...


def test_a_sole_parameter_that_is_no_object_is_a_parameter() -> None:
    assert list(schema_of(TakesList)["properties"]) == ["points"]
    assert built(TakesList, '{"points":[{"top":1}]}').got == [Limits(1.0)]


def test_a_secret_in_a_sole_object_is_secret() -> None:
    assert TakesModel.get_definition().secret == ("key",)  # type: ignore[attr-defined]


@tool(visible=ALL)
class Order(BaseModel):
    """Order something."""

    model_config = ConfigDict(frozen=True)

    item: str = Field(max_length=3, description="What.")
    amount: int = Field(alias="howMany", default=1, gt=0)
    notes: list[str] = Field(default_factory=list)

    async def run(self) -> str:
        return f"{self.amount} {self.item}"


async def test_a_model_that_is_a_tool() -> None:
    schema = schema_of(Order)
    assert schema["properties"]["item"]["maxLength"] == 3
    assert schema["properties"]["item"]["description"] == "What."
    assert list(schema["properties"]) == ["item", "howMany", "notes"]
    made = built(Order, '{"item":"tea","howMany":2}')
    assert made == Order(item="tea", howMany=2)
    assert await made.run() == "2 tea"
    assert [tool_of(registered).definition.name for registered in Catalog([Order])] == ["Order"]
    registered: Any = Catalog([Order])["Order"]
    assert registered is Order


@dataclass
class Point:
    x: float
    y: float = 0


class Size(Enum):
    S = "s"
    L = "l"


@tool(visible=ALL)
def everything(  # noqa: PLR0917  as many hints as there are
    size: Size,
    where: Point | None,
    code: UUID,
    price: Decimal,
    days: tuple[date, date],
    marks: Annotated[set[int], Field(max_length=3)],
    table: dict[str, list[Point]],
    note: str | None = None,
) -> Point | None:
    """Take everything."""
    return where


def test_typed_arguments() -> None:
    bound = built(
        everything,
        '{"size":"l","where":{"x":1},"code":"00000000-0000-0000-0000-000000000007","price":"0.10",'
        '"days":["2024-01-01","2024-01-02"],"marks":[1,2.0],"table":{"a":[{"x":2,"y":3}]}}',
    )
    assert bound.arguments == {
        "size": Size.L,
        "where": Point(1.0),
        "code": UUID(int=7),
        "price": Decimal("0.10"),
        "days": (date(2024, 1, 1), date(2024, 1, 2)),
        "marks": {1, 2},
        "table": {"a": [Point(2.0, 3.0)]},
        "note": None,
    }


def test_types_of_the_enclosing_function() -> None:
    @dataclass
    class Inner:
        n: int

    class InnerModel(BaseModel):
        m: int

    class Shape(Enum):
        ROUND = "round"

    @tool(visible=ALL)
    def take(inner: Inner, model: list[InnerModel], shape: Shape = Shape.ROUND) -> Inner:
        """Take."""
        return inner

    @tool(visible=ALL)
    @dataclass
    class Take:
        """Take."""

        inner: Inner
        shape: Shape

        async def run(self) -> Inner:
            return self.inner

    assert built(take, '{"inner":{"n":1},"model":[{"m":2}]}').arguments == {
        "inner": Inner(1),
        "model": [InnerModel(m=2)],
        "shape": Shape.ROUND,
    }
    assert built(Take, '{"inner":{"n":1},"shape":"round"}') == Take(Inner(1), Shape.ROUND)


def test_a_local_type_goes_before_a_global_one_of_that_name() -> None:
    @dataclass
    class Point:  # as Python itself would find it
        only_here: int

    @tool(visible=ALL)
    def take(point: Point) -> None:
        """Take."""

    assert built(take, '{"point":{"only_here":1}}').arguments == {"point": Point(1)}


def test_a_name_in_the_callers_scope_is_not_the_functions() -> None:
    UUID = int  # noqa: F841, N806  `everything` means the global one

    again = tool(visible=ALL)(everything.__wrapped__)
    assert schema_of(again)["properties"]["code"]["format"] == "uuid"


@capability
class Clock(Protocol):
    def now(self) -> float: ...


def test_what_is_injected_is_not_in_the_schema() -> None:
    @tool(visible=ALL)
    async def when(zone: str, clock: Clock, ctx: CallContext) -> float:
        """When."""
        return clock.now()

    @tool(visible=ALL)
    @dataclass
    class When:
        """When."""

        zone: str

        async def run(self, clock: Clock, ctx: CallContext) -> float:
            return clock.now()

    for thing in (when, When):
        made = tool_of(thing)
        assert list(schema_of(thing)["properties"]) == ["zone"]
        assert [need.parameter for need in made.needs] == ["clock"]
        assert made.context_parameter == "ctx"


def test_bound_methods_are_functions() -> None:
    class Shop:
        def price(self, item: str) -> int:
            """Price."""
            return len(item)

    assert built(
        tool(visible=ALL, description="It runs.")(Shop().price), '{"item":"abc"}'
    ).arguments == {"item": "abc"}


def test_the_original_signature_is_still_there() -> None:
    assert list(inspect.signature(double).parameters) == ["number", "by"]
    assert list(inspect.signature(Refund).parameters) == ["order", "reasons"]


def test_a_class_that_cannot_be_made_is_a_rejection() -> None:
    @tool(visible=ALL)
    class Unwilling:
        """Unwilling."""

        def __init__(self) -> None:
            raise TypeError("CANARY")

        async def run(self) -> None: ...

    result = hydrate(ToolCall("c", "Unwilling", "{}"), Catalog([Unwilling]))
    assert "CANARY" not in repr(result)
    assert result.errors[0].stage == "instantiate"
