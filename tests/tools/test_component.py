"""The runtime half of a tool: typed arguments, instances, and what is refused on the way."""

from __future__ import annotations

import copy
import weakref
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from toolcrib import ALL, Tool, ToolComponent, ToolDefinition, tool
from toolcrib.errors import DefinitionError
from toolcrib.tools import BoundCall, tool_of
from toolcrib.tools.component import NotAcceptedError, value_faults
from toolcrib.values.definition import Example

CANARY = "CANARY_51c0"


@tool(visible=ALL)
def add(a: int, b: float = 0.5, *, when: date | None = None) -> float:
    """Add."""
    return a + b


@tool(visible=ALL)
def plain(text: str) -> str:
    """Say."""
    return text


@tool(visible=ALL)
class Count:
    """Count."""

    def __init__(self, to: int) -> None:
        self.to = to

    async def run(self) -> int:
        return self.to


def test_arguments_are_typed_by_name() -> None:
    typed = tool_of(add).make({"a": 3.0, "b": 1, "when": "2024-02-29"}).instance.arguments
    assert typed == {"a": 3, "b": 1.0, "when": date(2024, 2, 29)}
    assert [type(value) for value in typed.values()] == [int, float, date]


def test_plain_arguments_are_passed_on_as_they_are() -> None:
    arguments: dict[str, Any] = {"text": "x"}
    assert tool_of(plain).make(arguments).instance.arguments is arguments


async def test_a_call_holds_its_arguments() -> None:
    call = tool_of(add).make({"a": 1}).instance
    assert isinstance(call, BoundCall)
    assert isinstance(call, ToolComponent)
    assert await call.run() == 1.5
    assert tool_of(add).invoke(call, {}) == 1.5
    made = tool_of(Count).make({"to": 3.0}).instance
    assert isinstance(made, Count)
    assert await tool_of(Count).invoke(made, {}) == 3


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"a": 1, "b": 10**400}, [("b",)]),
        ({"a": "1"}, [("a",)]),
        ({"a": 1.5}, [("a",)]),
        ({"a": 1, "when": CANARY}, [("when",)]),
    ],
)
def test_what_the_hints_do_not_promise_is_refused(
    arguments: dict[str, Any], places: list[tuple[str, ...]]
) -> None:
    with pytest.raises(NotAcceptedError) as caught:
        tool_of(add).make(arguments)
    assert [where for where, _ in caught.value.faults] == places
    assert CANARY not in repr(caught.value.faults)
    assert caught.value.__cause__ is None


class Strict(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        if value == "value":
            raise ValueError(f"no {CANARY}")
        raise PydanticCustomError(f"no_{value}", "no {secret}", {"secret": CANARY})


@pytest.mark.parametrize(
    ("value", "kind"), [("value", "value_error"), (CANARY, "custom"), (3, "string_type")]
)
def test_a_fault_has_a_place_and_a_known_kind(value: object, kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Strict.model_validate({"name": value})
    ((where, text),) = value_faults(caught.value, "outer")
    assert where == ("outer", "name")
    assert text == f"this value is not accepted ({kind})"


def test_a_tool_of_which_only_the_definition_is_known() -> None:
    definition = ToolDefinition(name="x", description="", input_schema_json='{"type":"object"}')
    known = tool_of(definition)
    assert not known.runnable
    assert known.make({}).instance is None
    assert known.validator is not None
    with pytest.raises(DefinitionError, match="'x' cannot be called: only its definition is known"):
        known()


@pytest.mark.parametrize(
    "change",
    [
        {"input_schema_json": "{"},
        {"output_schema_json": '{"title":"\\ud800"}'},
        {"examples": (Example("q", '{"a":NaN}'),)},
    ],
)
def test_a_definition_of_which_no_digest_can_be_made_is_refused(change: dict[str, Any]) -> None:
    definition = ToolDefinition(
        **{"name": "x", "description": "", "input_schema_json": "{}"} | change
    )
    with pytest.raises(DefinitionError, match=r"'x' has .* cannot be written as JSON"):
        tool_of(definition)


def test_a_renamed_tool_keeps_all_but_its_name() -> None:
    original = tool_of(add)
    again = original.renamed("plus")
    assert (again.definition.name, original.definition.name) == ("plus", "add")
    made = {"definition", "__weakref__", "_instance"}
    kept = [slot for slot in Tool.__slots__ if slot not in made]
    assert [getattr(again, slot) for slot in kept] == [getattr(original, slot) for slot in kept]
    assert again.registered is again
    assert again(1) == 1.5


def test_a_tool_can_be_copied_and_referred_to_weakly() -> None:
    made = tool_of(add)
    assert weakref.ref(made)() is made
    for again in (copy.copy(made), copy.deepcopy(made)):
        assert (again.definition, again(1)) == (made.definition, 1.5)
        assert again.validator is not None
        assert again.validator.is_valid({"a": 1})


def test_components_are_abstract() -> None:
    with pytest.raises(TypeError):
        ToolComponent()  # type: ignore[abstract]
    with pytest.raises(DefinitionError, match="ToolComponent is no tool"):
        ToolComponent.get_definition()
    with pytest.raises(DefinitionError, match="BoundCall is no tool"):
        BoundCall.get_definition()


class Inheriting(ToolComponent):
    async def run(self) -> int:
        return 1


def test_inheriting_is_not_decorating() -> None:
    with pytest.raises(DefinitionError, match="Inheriting is no tool: decorate it"):
        tool_of(Inheriting)
