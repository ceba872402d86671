"""`check_tools` as a whole: what it takes, what becomes of broken definitions, order, providers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows import each_row

from toolcrib import Catalog, ToolDefinition, kit, tool
from toolcrib.errors import DefinitionError, RequestError
from toolcrib.lint import RULES, check_tools
from toolcrib.values.definition import ALL
from toolcrib.values.json import JsonObject
from toolcrib.wire import FORMS

GOOD: JsonObject = {
    "name": "refund",
    "description": "Give a customer the money for an order back.",
    "input_schema": {
        "type": "object",
        "properties": {"order_id": {"type": "integer", "description": "On the receipt."}},
        "required": ["order_id"],
    },
}


def named(name: str, **changes: Any) -> JsonObject:
    return GOOD | {"name": name} | changes


@tool(visible=ALL)
def documented(city: str) -> str:
    """Say what the weather in a city is like.

    Args:
        city: Its English name.
    """
    return city


def test_there_is_nothing_to_say_of_the_kit() -> None:
    found = check_tools(kit.catalog())
    assert found == []


BROKEN: list[tuple[Any, str, str, str]] = [
    (named("a b"), "a b", "", "tool name 'a b'"),
    ({"description": "x"}, "#2", "", "name"),
    ({"name": 5}, "#2", "", "name"),
    (named("x", inputSchema={}), "x", "", "unknown key 'inputSchema'"),
    (named("x", description=7), "x", "", "description must be a str"),
    (named("x", input_schema=[]), "x", "", "input_schema"),
    (named("x", input_schema={"type": "string"}), "x", "", "object"),
    (
        named("x", input_schema={"type": "object", "properties": {"y": {"type": "strng"}}}),
        "x",
        "/input_schema/properties/y/type",
        "strng",
    ),
    (
        named("x", input_schema={"type": "object", "$ref": "https://example.com/s.json"}),
        "x",
        "/input_schema/$ref",
        "nothing is fetched",
    ),
    (named("x", output_schema={"items": {"type": "no"}}), "x", "/output_schema/items/type", "no"),
]


@each_row(("thing", "name", "pointer", "words"), BROKEN)
def test_a_broken_definition_is_a_finding_and_the_others_are_checked(
    thing: Any, name: str, pointer: str, words: str
) -> None:
    undescribed = named("last", description="")
    first, second = check_tools([GOOD, thing, undescribed], providers=())
    assert (first.tool, first.provider, first.rule) == (name, "toolcrib", "definition")
    assert (first.effect, first.pointer) == ("refused", pointer)
    assert words in first.message
    assert not first.message.startswith("tool 'x'")
    assert (second.tool, second.rule) == ("last", "description")


def test_what_is_no_tool_is_a_finding() -> None:
    def plain() -> None: ...

    (finding,) = check_tools([documented, plain], providers=())
    assert (finding.tool, finding.rule, finding.effect) == ("plain", "definition", "refused")
    assert "@tool" in finding.message


def test_it_takes_catalogs_tools_and_definitions_together() -> None:
    definition = ToolDefinition(name="whole", description="Count sheep.", input_schema_json="{}")
    catalog = Catalog([documented])
    things = [catalog, GOOD, definition, named("refund"), documented]
    taken = [f.tool for f in check_tools(things, providers=()) if f.rule == "name"]
    assert taken == ["refund", "documented"]
    assert check_tools(catalog, providers=()) == check_tools([documented], providers=())


@pytest.mark.parametrize("tools", ["refund", b"refund", None])
def test_a_text_is_no_tools(tools: Any) -> None:
    with pytest.raises(DefinitionError, match="a list or Catalog of them, not "):
        check_tools(tools)


@pytest.mark.parametrize("tools", [GOOD, documented, [[documented]], Catalog([documented])])
def test_a_single_tool_is_checked_as_a_list_of_it_is(tools: Any) -> None:
    assert check_tools(tools) == check_tools([tools])


@pytest.mark.parametrize("tools", [5, Catalog])
def test_one_thing_that_is_no_tool_is_a_finding(tools: Any) -> None:
    (finding,) = check_tools(tools)
    assert (finding.rule, finding.effect) == ("definition", "refused")


def test_an_unknown_provider_is_an_error() -> None:
    with pytest.raises(RequestError, match=r"no provider 'smoke'; there are: openai-chat, "):
        check_tools([GOOD], providers=["smoke"])


@each_row(
    ("providers", "asked"),
    [
        (None, set(FORMS)),
        (["openai"], {"openai-chat", "openai-responses"}),
        (["openai-chat"], {"openai-chat"}),
        ("gemini", {"gemini"}),
        (["gemini", "anthropic"], {"gemini", "anthropic"}),
        ([], set()),
    ],
)
def test_providers_are_chosen_by_name(providers: Any, asked: set[str]) -> None:
    found = check_tools([named("x" * 100), named("x" * 90 + "yyy")], providers)
    others = {"anthropic"} & asked  # 100 characters are legal there
    assert {f.provider for f in found if f.rule == "name" and f.provider} == asked - others


def test_a_name_that_a_provider_changes_is_shown_as_it_will_be() -> None:
    (finding,) = [f for f in check_tools([named("x" * 70)], ["openai-chat"]) if f.rule == "name"]
    assert (finding.effect, finding.pointer) == ("doubtful", "/name")
    assert "x" * 55 + "_" in finding.message


def test_names_that_are_one_once_they_are_cut() -> None:
    one, two = named("x" * 70 + "_start"), named("x" * 70 + "_stop")
    found = [f for f in check_tools([one, two], ["openai-chat"]) if "hash" in f.message]
    assert [(f.tool, f.rule) for f in found] == [(two["name"], "name")]
    assert "x" * 70 + "_start" in found[0].message


@pytest.mark.parametrize(
    ("number", "providers"),
    [
        (128, set()),
        (129, {"openai-chat", "openai-responses"}),
        (513, {"openai-chat", "openai-responses", "gemini"}),
    ],
)
def test_the_number_of_tools(number: int, providers: set[str]) -> None:
    """Doubtful, not refused: a catalog need not be offered whole."""
    tools = [named(f"t{'abc'[i % 3]}{i}") for i in range(number)]
    found = [f for f in check_tools(tools) if f.rule == "limit"]
    assert {f.provider for f in found} == providers
    assert {(f.tool, f.pointer, f.effect) for f in found} <= {("", "", "doubtful")}


def test_a_description_that_some_servers_find_too_long() -> None:
    tool = named("x", description="word " * 300)
    found = [f for f in check_tools([tool]) if f.rule == "limit"]
    assert {f.provider for f in found} == {"openai-chat", "openai-responses"}
    assert {(f.effect, f.pointer) for f in found} == {("doubtful", "/description")}
    assert "1500" in found[0].message


def test_a_schema_that_a_provider_cannot_be_told_whole_has_a_pointer_into_the_definition() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "tags": {"type": "object", "description": "T.", "patternProperties": {"^x": {}}}
        },
    }
    found = check_tools([named("x", input_schema=schema)], ["ollama"])
    assert found
    assert {f.rule for f in found} == {"schema"}
    (finding,) = found
    assert finding.pointer == "/input_schema/properties/tags/patternProperties"
    assert finding.message.startswith("patternProperties: ")


def test_that_an_object_is_closed_no_model_needs_to_be_told() -> None:
    closed: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    typed = closed | {"additionalProperties": {"type": "integer"}}
    assert check_tools([named("x", input_schema=closed)], ["ollama"]) == []
    assert check_tools([named("x", input_schema=typed)], ["ollama"]) != []


@pytest.mark.parametrize(("strict", "number"), [(None, 0), (True, 1)])
def test_strict_tools_are_judged_by_their_strict_view(strict: bool | None, number: int) -> None:
    """A dictionary of any keys has no strict form: it is sent without, and that is said."""
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "label": {
                "type": "object",
                "description": "What is on it.",
                "additionalProperties": {"type": "string"},
            }
        },
    }
    definition = ToolDefinition(
        name="x",
        description="Label a parcel for the post.",
        input_schema_json=json.dumps(schema),
        strict=strict,
    )
    found = [f for f in check_tools([definition]) if f.provider == "openai-chat"]
    assert [f.rule for f in found] == ["schema"] * number
    assert all("without strict" in f.message for f in found)
    assert not [f for f in check_tools([definition], ["gemini"]) if "strict" in f.message]


def test_the_order_is_that_of_tools_then_providers_then_rules() -> None:
    tools = [named("x" * 70, description=""), named("a b"), named("b", description="B.")]
    tools += [named(f"t{'abc'[i % 3]}{i}") for i in range(130)]
    found = check_tools(tools)
    names = [*(str(t["name"]) for t in tools), ""]
    providers = ["", "toolcrib", *FORMS]
    keys = [
        (names.index(f.tool), providers.index(f.provider), RULES.index(f.rule), f.pointer)
        for f in found
    ]
    assert keys == sorted(keys)
    assert found[-1].tool == ""
    assert found == check_tools(tools)


def test_the_tools_are_left_as_they_were() -> None:
    tools = [named(f"t{'abc'[i % 3]}{i}", description=f"Do {i}.") for i in range(20)]
    before = repr(tools)
    check_tools(tools)
    assert repr(tools) == before


@pytest.mark.exhaustive
def test_many_references_to_one_anchor_are_looked_up_once() -> None:
    """Were the anchors read anew for each of them, this would take minutes."""
    many = {f"p{number}": {"$ref": "#a"} for number in range(4_000)}
    schema = {"type": "object", "properties": many, "$defs": {"A": {"$anchor": "a"}}}
    given = {"name": "pay", "description": "Pay what is still open.", "input_schema": schema}
    found, size = check_tools([given], ["openai-chat"])
    assert (found.rule, size.rule) == ("parameter", "schema")
    assert "(4000 of 4000)" in found.message
