"""What is read from a signature, before anything is derived from it."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from toolcrib.schema.annotations import quick_class_hints, quick_hints
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


@pytest.mark.parametrize(
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
