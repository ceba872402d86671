"""What is read from a signature, before anything is derived from it."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import InitVar, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest
from pydantic import Field
from rows import each_row

from toolcrib import (
    ALL,
    CallContext,
    Catalog,
    Completed,
    ToolCall,
    ToolRunner,
    get_definition,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.hints import quick_class_hints, quick_hints
from toolcrib.tools.signature import read_class, read_function

Later: Any = list["Later2"]
Text: Any = "int"
Later2 = int


def documented(a: int, *, b: str = "x") -> dict[str, int]:
    """Count.

    Args:
        a: The a.
        b: The b.

    Returns:
        How many there are.
    """
    return {b: a}


class Counting:
    """Count.

    Returns:
        How many, says the class.
    """

    def __init__(self, a: int) -> None:
        self.a = a

    async def run(self) -> int:
        """Go.

        Returns:
            How many, says run.
        """
        return self.a


class Silent(Counting):
    """Count.

    Returns:
        How many, says the class.
    """

    async def run(self) -> int:
        return self.a


@pytest.mark.parametrize(
    ("read", "of", "text"),
    [
        (read_function, documented, "How many there are."),
        (read_class, Counting, "How many, says run."),
        (read_class, Silent, "How many, says the class."),
    ],
)
def test_the_description_of_the_result(read: Any, of: Any, text: str) -> None:
    signature = read(of, {})
    assert signature.returns_description == text
    assert signature.description == "Count."


def test_parameters_by_keyword_with_their_texts() -> None:
    parameters = read_function(documented, {}).parameters
    assert [(p.name, p.hint, p.description) for p in parameters] == [
        ("a", int, "The a."),
        ("b", str, "The b."),
    ]


def plain(
    a: int, b: list[str] | None, c: Literal["x"], d: Annotated[int, Field(gt=1)], e: None
) -> Any: ...


def with_forward_reference(a: Later) -> None: ...


def with_text_in_text(a: Text) -> None: ...


def without_hints(a, b): ...  # type: ignore[no-untyped-def]


@each_row(
    ("function", "quick"),
    [(plain, True), (documented, True), (without_hints, True), (with_forward_reference, False),
     (with_text_in_text, False)],
)  # fmt: skip
def test_quick_hints_are_those_of_typing(function: Any, quick: bool) -> None:
    found = quick_hints(function.__annotations__, function.__globals__, {})
    assert (found is not None) is quick
    if found is not None:
        slow = typing.get_type_hints(function, include_extras=True)
        assert list(found) == list(slow)
        assert str(found) == str(slow)


@dataclass
class Point:
    x: int
    y: Literal["a"] = "a"


@dataclass
class Point3(Point):
    z: float = 0.0


def test_quick_hints_of_a_class() -> None:
    assert quick_class_hints(Point3) == typing.get_type_hints(Point3)


def test_a_wrapped_function_is_read_where_it_was_written() -> None:
    namespace: dict[str, Any] = {}
    exec(  # noqa: S102  a function of another module
        "from __future__ import annotations\nOwn = int\ndef inner(a: Own) -> Own: return a",
        namespace,
    )

    @functools.wraps(namespace["inner"])
    def outer(*args: Any, **kwargs: Any) -> Any:
        return namespace["inner"](*args, **kwargs)

    assert [p.hint for p in read_function(outer, {}).parameters] == [int]


@pydantic.dataclasses.dataclass
class OfPydantic:
    """Count.

    Args:
        a: The a.
    """

    a: int
    marks: list[int] = Field(default_factory=list)
    seed: InitVar[int] = 3

    async def run(self) -> int:
        return self.a


class OfTuple(NamedTuple):
    a: int
    marks: tuple[int, ...] = ()

    async def run(self) -> int:
        return self.a


class OfMsgspec(msgspec.Struct):
    a: int
    marks: list[int] = []

    async def run(self) -> int:
        return self.a


class MadeByNew:
    def __new__(cls, a: int, marks: str = "x") -> typing.Self:
        made = object.__new__(cls)
        made.a = a  # type: ignore[attr-defined]
        return made

    async def run(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("cls", "hints"),
    [
        (OfPydantic, [int, list[int], int]),
        (OfTuple, [int, tuple[int, ...]]),
        (OfMsgspec, [int, list[int]]),
        (MadeByNew, [int, str]),
    ],
)
def test_whoever_wrote_the_constructor_its_hints_are_read(cls: Any, hints: list[Any]) -> None:
    signature = read_class(cls, {})
    assert [p.hint for p in signature.parameters] == hints
    assert signature.undocumentable == ()
    assert signature.returns is int


async def test_a_pydantic_dataclass_is_a_tool() -> None:
    catalog = Catalog([tool(visible=ALL)(OfPydantic)])
    outcome = await ToolRunner(catalog).exec(ToolCall("c", "OfPydantic", '{"a": 2, "seed": 1}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == 2
    schema: Any = get_definition(OfPydantic).input_schema
    assert schema["properties"]["a"] == {"type": "integer", "description": "The a."}
    assert schema["required"] == ["a"]


def positional(first: int, /, second: int) -> None: ...


def not_imported(first: int, second: list[Missing]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def no_result(first: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821


def broken(first: "int |") -> None: ...  # type: ignore[valid-type]  # noqa: F722


def raising(first: 1 / 0) -> None: ...  # type: ignore[valid-type]


def in_a_field(first: Annotated[int, Field(5)]) -> None: ...


def in_a_factory(first: Annotated[list[int], Field(default_factory=list)]) -> None: ...


def two_contexts(first: CallContext, second: CallContext) -> None: ...


class Unreadable:
    def __init__(self, first: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def run(self) -> None: ...


class UnreadableField(pydantic.BaseModel):
    first: int
    second: Missing  # type: ignore[name-defined]  # noqa: F821

    async def run(self) -> None: ...


@each_row(
    ("read", "of", "says"),
    [
        (
            read_function,
            positional,
            ["positional: parameter 'first' is positional only", "wrap it"],
        ),
        (
            read_function,
            not_imported,
            ["not_imported: ", "parameter 'second'", "Missing", "run time"],
        ),
        (read_function, no_result, ["no_result: ", "the return type", "Missing"]),
        (read_function, broken, ["broken: ", "parameter 'first'"]),
        (read_function, raising, ["raising: ", "parameter 'first' (ZeroDivisionError)"]),
        (read_function, in_a_field, ["in_a_field: parameter 'first'", "a plain default"]),
        (read_function, in_a_factory, ["in_a_factory: parameter 'first'", "a plain default"]),
        (read_function, two_contexts, ["two_contexts: first and second"]),
        (read_class, Unreadable, ["Unreadable: ", "parameter 'first'", "Missing"]),
        (read_class, UnreadableField, ["UnreadableField: ", "parameter 'second'", "Missing"]),
    ],
)
def test_an_error_names_the_function_and_the_parameter(read: Any, of: Any, says: list[str]) -> None:
    with pytest.raises(DefinitionError) as caught:
        read(of, {})
    assert [part for part in says if part not in str(caught.value)] == []


def nested(levels: int) -> Any:
    hint: Any = int
    for level in range(levels):
        hint = [list[hint], dict[str, hint], tuple[hint, ...]][level % 3]
    return hint


def taking(parameter: str, hint: Any) -> Any:
    def function(first: int) -> None: ...

    function.__annotations__[parameter] = hint
    return function


def constructed_of(parameter: str, hint: Any) -> Any:
    class Made:
        def __init__(self, first: int) -> None: ...

        async def run(self) -> None: ...

    where: Any = Made.run if parameter == "return" else Made.__init__
    where.__annotations__[parameter] = hint
    return Made


@each_row(("parameter", "place"), [("first", "'first'"), ("return", "return type")])
@each_row(("make", "read"), [(taking, read_function), (constructed_of, read_class)])
@each_row(
    "hint",
    [
        nested(101),
        nested(2_000),
        nested(100_000),
        types.GenericAlias(list, (nested(2_000) | None,)),
    ],
)
def test_a_hint_that_is_nested_too_deep_is_refused(
    make: Any, read: Any, parameter: str, place: str, hint: Any
) -> None:
    with pytest.raises(DefinitionError, match=r"(function|Made).*deeper than 100") as caught:
        read(make(parameter, hint), {})
    assert place in str(caught.value)


@pytest.mark.parametrize(("make", "read"), [(taking, read_function), (constructed_of, read_class)])
def test_a_hint_may_be_nested_as_deep_as_a_schema(make: Any, read: Any) -> None:
    assert read(make("first", nested(100)), {}).parameters[0].hint == nested(100)


def test_a_field_that_is_nested_too_deep_is_refused() -> None:
    class Fields(NamedTuple):
        deep: int

    Fields.__annotations__["deep"] = nested(2_000)
    with pytest.raises(DefinitionError, match=r"'first': .*Fields .*\(it is nested too deeply\)"):
        tool(visible=ALL, description="It runs.")(taking("first", Fields))


def test_a_default_beside_the_one_in_a_field_is_the_one() -> None:
    def both(first: Annotated[int, Field(5)] = 6) -> None: ...

    assert [p.default for p in read_function(both, {}).parameters] == [6]
