"""A definition is a value: nothing changes it, and its digest tells any two apart."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import msgspec
import pytest
from rows import each_row

from toolcrib.errors import DefinitionError
from toolcrib.values.definition import ALL, Annotations, Example, HasDefinition, ToolDefinition

SCHEMA = '{"type":"object","properties":{"a":{"type":"string","enum":["x"]}},"required":["a"]}'


def definition(**changes: Any) -> ToolDefinition:
    facts: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema_json": SCHEMA}
    return ToolDefinition(**{**facts, **changes})


@each_row("field", [*ToolDefinition.__struct_fields__, "digest"])
def test_no_field_can_be_set(field: str) -> None:
    value = definition()
    with pytest.raises(AttributeError):
        setattr(value, field, "other")
    with pytest.raises((AttributeError, TypeError)):
        delattr(value, field)


@each_row("field", Annotations.__struct_fields__)
def test_no_annotation_can_be_set(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(definition().annotations, field, True)


def test_a_schema_is_handed_out_as_a_fresh_copy() -> None:
    value = definition(output_schema_json='{"type":"object"}')
    before = value.digest
    schema: Any = value.input_schema
    schema["properties"]["a"]["enum"].append("y")
    schema["required"].clear()
    output: Any = value.output_schema
    output["type"] = "string"
    form: Any = value.to_dict()
    form["input_schema"].clear()
    form["output_schema"].clear()
    assert value.input_schema == msgspec.json.decode(SCHEMA)
    assert value.output_schema == {"type": "object"}
    assert definition(output_schema_json='{"type":"object"}').digest == before == value.digest


def test_examples_are_handed_out_as_fresh_copies() -> None:
    example = Example("look at x", '{"a":"x"}')
    example.arguments["a"] = "changed"
    assert example.arguments == {"a": "x"}


def test_a_tool_without_a_schema_says_so() -> None:
    value = definition(input_schema_json=None)
    assert value.input_schema is None
    assert value.output_schema is None
    assert value.to_dict() == {"name": "look", "description": "Look."}


def test_the_dictionary_form() -> None:
    assert definition(output_schema_json='{"type":"integer"}').to_dict() == {
        "name": "look",
        "description": "Look.",
        "input_schema": msgspec.json.decode(SCHEMA),
        "output_schema": {"type": "integer"},
    }


CHANGES: list[dict[str, Any]] = [
    {},
    {"name": "see"},
    {"description": "Look!"},
    {"input_schema_json": '{"type":"object"}'},
    {"input_schema_json": None},
    {"output_schema_json": '{"type":"object"}'},
    {"strict": True},
    {"strict": False},
    {"tags": ("a",)},
    {"examples": (Example("q", '{"a":"x"}'),)},
    {"visible": ("a",)},
    {"visible": ALL},
    {"model_visible": ("a",)},
    {"secret": ("a",)},
    {"no_schema_mode": "full"},
    {"annotations": Annotations(safe=False)},
    {"annotations": Annotations(timeout=3)},
    {"annotations": Annotations(allowed_roles=("admin",))},
]


def test_each_change_is_another_digest() -> None:
    digests = [definition(**change).digest for change in CHANGES]
    for one, other in itertools.combinations(range(len(CHANGES)), 2):
        assert digests[one] != digests[other], (CHANGES[one], CHANGES[other])


@pytest.mark.parametrize(
    "same",
    [
        {"input_schema_json": SCHEMA.replace(",", ", ").replace(":", " : ")},
        {
            "input_schema_json": '{"required":["a"],"properties":{"a":{"enum":["x"],"type":"string"}}'
            ',"type":"object"}'
        },
    ],
)
def test_spacing_and_the_order_of_keys_are_the_same_digest(same: dict[str, Any]) -> None:
    assert definition(**same).digest == definition().digest


def test_the_order_of_keys_in_an_example_is_the_same_digest() -> None:
    one = definition(examples=(Example("q", '{"a":1,"b":2}'),))
    other = definition(examples=(Example("q", '{"b":2,"a":1}'),))
    assert one.digest == other.digest


def test_a_digest_cannot_be_claimed() -> None:
    with pytest.raises(TypeError):
        definition(digest="sha256:0")
    with pytest.raises(TypeError):
        msgspec.structs.replace(definition(), digest="sha256:0")


def test_a_digest_is_made_when_it_is_asked_for_and_once() -> None:
    """Neither it nor that it was asked for makes a difference to what a definition is."""
    asked, other = definition(), definition()
    made = asked.digest
    assert asked.digest is made
    assert (asked, hash(asked), repr(asked)) == (other, hash(other), repr(other))
    assert msgspec.structs.asdict(asked) == msgspec.structs.asdict(other)
    assert len({asked, other}) == 1


@each_row(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301  our own bytes
    ],
)
@each_row("asked_before", [True, False])
def test_a_copy_has_the_same_digest(again: Any, asked_before: bool) -> None:
    value = definition(examples=(Example("q", '{"a":"x"}'),))
    before = value.digest if asked_before else ""
    copied = again(value)
    assert copied == value
    assert copied.digest == value.digest
    assert not asked_before or copied.digest == before


LONE = "a \ud800 b"


@each_row(
    "change",
    [
        {"name": LONE},
        {"description": LONE},
        {"input_schema_json": f'{{"title":"{LONE}"}}'},
        {"output_schema_json": f'{{"title":"{LONE}"}}'},
        {"tags": ("a", LONE)},
        {"examples": (Example(LONE, "{}"),)},
        {"examples": (Example("q", f'{{"a":"{LONE}"}}'),)},
        {"visible": (LONE,)},
        {"model_visible": ("a", LONE)},
        {"secret": (LONE,)},
        {"annotations": Annotations(allowed_roles=(LONE,))},
        {"annotations": Annotations(features=("a", LONE))},
        {"description": None},
        {"tags": (1,)},
    ],
)
def test_what_is_no_text_is_refused_at_once(change: dict[str, Any]) -> None:
    """Not when its digest is made, which may be while it runs."""
    with pytest.raises(DefinitionError, match=r"lone surrogate|^ToolDefinition: ") as caught:
        definition(**change)
    str(caught.value).encode()
    with pytest.raises(DefinitionError, match=r"lone surrogate|^ToolDefinition: "):
        msgspec.structs.replace(definition(), **change)


def test_a_changed_copy_has_a_digest_of_its_own() -> None:
    changed = msgspec.structs.replace(definition(), description="Send all files.")
    assert changed.digest == definition(description="Send all files.").digest
    assert changed.digest != definition().digest


def test_renamed() -> None:
    assert definition().renamed("see") == definition(name="see")
    assert definition().renamed("look") == definition()


def test_all_has_to_be_written_out() -> None:
    assert repr(ALL) == "ALL"
    assert definition().visible is None
    assert definition().model_visible is ALL


def test_a_definition_alone_is_no_tool() -> None:
    class Holder:
        def get_definition(self) -> ToolDefinition:
            return definition()

    assert isinstance(Holder(), HasDefinition)
    assert not isinstance(definition(), HasDefinition)
