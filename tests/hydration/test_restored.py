"""Arguments made for a provider's view, put back into the author's terms before they are judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rows import each_row

from toolcrib import ALL, Catalog, Hydrated, Offer, Rejected, ToolCall, hydrate, tool
from toolcrib.values.json import JsonObject
from toolcrib.wire import tool_views


class Back:
    """An argument restorer made of a function."""

    def __init__(self, restore: Callable[[JsonObject], Any]) -> None:
        self._restore = restore

    def restore(self, arguments: JsonObject) -> JsonObject:
        restored: JsonObject = self._restore(arguments)
        return restored

    def to_view(self, arguments: JsonObject) -> JsonObject:
        return arguments


def without_nulls(arguments: JsonObject) -> JsonObject:
    return {key: value for key, value in arguments.items() if value is not None}


def unwrapped(arguments: JsonObject) -> JsonObject:
    inner = arguments.get("input")
    return inner if isinstance(inner, dict) and len(arguments) == 1 else arguments


@tool(visible=ALL, strict=True)
def book(city: str, nights: int = 1, note: str | None = "none") -> str:
    """Book a room."""
    return f"{city} {nights} {note}"


FREE = Catalog.from_definitions(
    [
        {
            "name": "free",
            "description": "Take either of two shapes, and whatever else there is.",
            "input_schema": {
                "type": "object",
                "anyOf": [
                    {"properties": {"id": {"type": "integer"}}},
                    {"properties": {"name": {"type": "string"}}},
                ],
            },
        }
    ]
)


def offer(thing: Any, back: Callable[[JsonObject], Any]) -> Offer:
    name = thing.get_definition().name
    return Offer.of([thing], restorers={name: Back(back)})


def called(name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("c", name, text)


RESTORED: list[tuple[Any, Any, bool]] = [
    ({"city": "Rome", "nights": None, "note": "x"}, {"city": "Rome", "note": "x"}, True),
    ({"city": "Rome", "nights": 2, "note": "x"}, {"city": "Rome", "nights": 2, "note": "x"}, False),
    ({"city": "Rome", "nights": None}, {"city": "Rome"}, True),
    ({"city": "Rome"}, {"city": "Rome"}, False),
]


@pytest.mark.parametrize(("sent", "arguments", "noted"), RESTORED)
def test_arguments_come_back(sent: Any, arguments: Any, noted: bool) -> None:
    result = hydrate(called("book", sent), offer(book, without_nulls))
    assert isinstance(result, Hydrated)
    assert result.building.sent == arguments
    assert result.arguments == {"nights": 1, "note": "none", **arguments}
    assert result.provenance.parsed == sent
    assert result.provenance.arguments == result.call.arguments == json.dumps(sent)
    assert result.provenance.validated
    assert result.provenance.notes == (("restored",) if noted else ())


def test_the_restorer_is_that_of_the_tool_called() -> None:
    def never(_: JsonObject) -> JsonObject:
        raise AssertionError

    other = Offer.of([book], restorers={"other": Back(never)})
    assert hydrate(called("book", {"city": "Rome"}), other).success
    catalog = Catalog([book])
    assert not hydrate(called("book", {"city": "Rome", "nights": None}), catalog).success


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ({"input": {"id": 7}}, {"id": 7}),  # as it was sent it fits the open schema as well
        ({"id": 7}, {"id": 7}),
        ({"input": {"id": "seven", "name": 3}}, {"input": {"id": "seven", "name": 3}}),
        ({"input": 3}, {"input": 3}),
    ],
)
def test_a_wrapped_root_is_unwrapped_first(sent: Any, arguments: Any) -> None:
    result = hydrate(called("free", sent), offer(FREE["free"], unwrapped))
    assert isinstance(result, Hydrated)
    assert result.arguments == arguments


def test_faults_are_told_of_the_restored_arguments() -> None:
    """A null that the view asked for is no fault of the model's."""
    sent = {"city": 3, "nights": None, "note": None}
    result = hydrate(called("book", sent), offer(book, without_nulls))
    assert isinstance(result, Rejected)
    assert [error.path for error in result.errors] == ["/city"]
    assert result.provenance.parsed == sent


def test_liberties_in_reading_are_noted_beside_it() -> None:
    sent = json.dumps(json.dumps({"city": "Rome", "nights": None}))
    result = hydrate(called("book", sent), offer(book, without_nulls))
    assert result.success
    assert result.provenance.notes == ("double_encoded", "restored")


def test_a_restorer_that_gives_no_object_is_not_followed() -> None:
    result = hydrate(called("book", {"city": "Rome"}), offer(book, lambda _: ["no", "object"]))
    assert isinstance(result, Hydrated)
    assert result.building.sent == {"city": "Rome"}


def test_nothing_is_restored_for_a_tool_without_schema() -> None:
    @tool(visible=ALL, allow_no_schema=True, no_schema_mode="full", input_schema=None)
    def anything(**values: Any) -> str:
        """Take anything."""
        return str(values)

    result = hydrate(called("anything", {"a": None}), offer(anything, without_nulls))
    assert isinstance(result, Hydrated)
    assert (result.arguments, result.provenance.notes) == ({"a": None}, ())


JUNK = [
    {},
    {"city": None, "nights": None, "note": None},
    {"city": [None], "nights": {"a": None}},
    {"city": {"city": {"city": None}}},
    {"value": None},
    {"value": {"value": {"value": []}}},
    {"": None, "\x00": [[[]]], "city": 1e308},
    {str(at): None for at in range(2000)},
]


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic", "gemini"])
@each_row("junk", JUNK)
def test_junk_is_judged_and_crashes_nothing(wire: str, junk: Any) -> None:
    for thing in (book, FREE["free"]):
        definition = thing.get_definition()
        (view,) = tool_views(wire, [definition])
        restorers = {} if view.restorer is None else {definition.name: view.restorer}
        result = hydrate(called(definition.name, junk), Offer.of([thing], restorers=restorers))
        assert isinstance(result, Hydrated | Rejected)
