"""What each provider is told of a tool: exact members, written by hand from the providers' pages."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from rows import each_row
from samples import sampled
from wire.forms_helpers import (
    NOTHING,
    PLAIN,
    TOOLS,
    UNION,
    defined,
    inner,
)

from toolcrib.errors import CatalogError, DefinitionError, RequestError
from toolcrib.schema.lower import Loss, Lowered
from toolcrib.schema.validator import compile_validator
from toolcrib.values.definition import Example, PlainTool
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import FORMS, OPENAI_CHAT, encode, encode_tools, form_of, tool_views
from toolcrib.wire.forms import wire_name


def parts(wire: str, form: Any) -> tuple[set[str], set[str]]:
    """The members of a tool's JSON, and those of its `function` or `toolSpec` where there is one."""
    return set(form), set(form.get("function") or form.get("toolSpec") or {})


# wire: the members outside, those in `function` or `toolSpec`, and where the schema is
MEMBERS: dict[str, tuple[set[str], set[str], str]] = {
    "openai-chat": ({"type", "function"}, {"name", "description", "parameters"}, "parameters"),
    "openai-responses": (
        {"type", "name", "description", "parameters", "strict"},
        set(),
        "parameters",
    ),
    "anthropic": ({"name", "description", "input_schema"}, set(), "input_schema"),
    "ollama": ({"type", "function"}, {"name", "description", "parameters"}, "parameters"),
    "gemini": ({"name", "description", "parametersJsonSchema"}, set(), "parametersJsonSchema"),
    "mistral": ({"type", "function"}, {"name", "description", "parameters"}, "parameters"),
    "cohere": ({"type", "function"}, {"name", "description", "parameters"}, "parameters"),
    "bedrock-converse": ({"toolSpec"}, {"name", "description", "inputSchema"}, "inputSchema"),
}


def test_the_table_of_forms() -> None:
    assert set(FORMS) == set(MEMBERS)
    assert all(form_of(name) is form for name, form in FORMS.items())
    assert form_of(OPENAI_CHAT) is FORMS["openai-chat"]
    with pytest.raises(
        RequestError, match="'smoke'; there are: anthropic, bedrock-converse, cohere, gemini"
    ):
        form_of("smoke")


@each_row("wire", FORMS)
@each_row("tool", TOOLS)
def test_exact_members(wire: str, tool: str) -> None:
    definition = TOOLS[tool]
    (view,) = tool_views(wire, [definition])
    outer, function, schema = MEMBERS[wire]
    outer, function = set(outer), set(function)
    described = function or outer
    if not definition.description and wire != "cohere":
        described.remove("description")
    said = view.strict or definition.strict is False
    if wire == "bedrock-converse" and view.strict:
        described.add("strict")
    if wire in ("openai-chat", "mistral", "anthropic") and said:
        described.add("strict")
    if wire == "anthropic" and definition.examples:
        described.add("input_examples")
    assert parts(wire, view.form) == (outer, function)
    told: Any = inner(view.form)[schema]
    assert (told["json"] if wire == "bedrock-converse" else told) == view.schema
    assert view.definition is definition
    assert view.form.get("type", "function") == "function"


@each_row("wire", FORMS)
@each_row("tool", TOOLS)
def test_every_view_is_an_object_under_a_legal_name(wire: str, tool: str) -> None:
    (view,) = tool_views(wire, [TOOLS[tool]])
    assert view.schema["type"] == "object"
    assert FORMS[wire].names.legal(view.wire_name)
    assert inner(view.form)["name"] == view.wire_name


def test_gemini_gets_all_tools_in_one_element() -> None:
    tools = [defined("a"), defined("b")]
    (only,) = encode_tools("gemini", tools)
    assert [declaration["name"] for declaration in only["functionDeclarations"]] == ["a", "b"]  # type: ignore[index, call-overload, union-attr]
    assert encode_tools("gemini", []) == []


@each_row("wire", FORMS)
def test_a_tool_without_schema_is_shown_as_one_without_arguments(wire: str) -> None:
    (view,) = tool_views(wire, [TOOLS["without a schema"]])
    assert view.schema == NOTHING
    assert (view.losses, view.restorer) == ((), None)


def test_anthropic_gets_a_few_examples() -> None:
    (tool,) = encode_tools("anthropic", [TOOLS["with examples"]])
    assert tool["input_examples"] == [{"city": str(at)} for at in range(5)]


def test_examples_are_told_as_the_view_has_them() -> None:
    """They have to fit the schema beside them, which here wraps the author's."""
    given = (Example("seven", '{"id":7}'), Example("Ann", '{"name":"Ann"}'))
    tool = defined(schema=UNION, examples=given)
    (view,) = tool_views("anthropic", [tool])
    examples: Any = view.form["input_examples"]
    validator = compile_validator(view.schema)
    assert all(map(validator.is_valid, examples))
    assert not any(map(validator.is_valid, (example.arguments for example in given)))
    assert view.restorer is not None
    assert [view.restorer.restore(example) for example in examples] == [{"id": 7}, {"name": "Ann"}]


NAMES = [
    ("openai-chat", "x" * 64, True),
    ("openai-chat", "x" * 65, False),
    ("openai-chat", "a.b", False),
    ("openai-responses", "9-lives", True),
    ("anthropic", "x" * 128, True),
    ("anthropic", "x" * 129, False),
    ("anthropic", "a.b", False),
    ("ollama", "a b", False),
    ("gemini", "a.b-c_d", True),
    ("gemini", "_a", True),
    ("gemini", "9lives", False),
    ("gemini", "-a", False),
    ("gemini", "a:b", False),
    ("gemini", "x" * 65, False),
]


@each_row(("wire", "name", "legal"), NAMES)
def test_names(wire: str, name: str, legal: bool) -> None:
    (view,) = tool_views(wire, [defined(name)])
    assert (view.wire_name == name) is legal
    assert any(loss.keyword == "name" for loss in view.losses) is not legal


@each_row("wire", FORMS)
def test_names_that_become_alike_stay_apart(wire: str) -> None:
    rule = FORMS[wire].names
    names = ["a b", "a/b", "a_b", wire_name(rule, "a b"), "9 b", "_9_b"]
    views = tool_views(wire, [defined(name) for name in names])
    assert len({view.wire_name for view in views}) == len(names)
    assert [view.wire_name for view in views if rule.legal(view.definition.name)] == [
        name for name in names if rule.legal(name)
    ]
    with pytest.raises(CatalogError, match="'a b'"):
        tool_views(wire, [defined("a b"), defined("a b")])


@each_row("wire", FORMS)
@each_row("tool", TOOLS)
def test_what_is_handed_out_is_fresh(wire: str, tool: str) -> None:
    definition = TOOLS[tool]
    before, text = tool_views(wire, [definition]), definition.input_schema_json
    for view in tool_views(wire, [definition]):
        _ruin(view.schema)
        _ruin(view.form)
    for view in tool_views(wire, [definition]):
        _ruin(view.form)
        assert view.schema == before[0].schema
    assert tool_views(wire, [definition]) == before
    assert definition.input_schema_json == text


def _ruin(value: Any) -> None:
    children = list(value.values()) if isinstance(value, dict) else list(value)
    for child in children:
        if isinstance(child, dict | list):
            _ruin(child)
    value.clear()


def test_long_descriptions_are_doubtful_where_some_servers_refuse_them() -> None:
    tool = defined(description="d" * 1025)
    for wire in FORMS:
        (view,) = tool_views(wire, [tool])
        doubts = [loss.keyword for loss in view.losses if loss.effect == "doubtful"]
        assert doubts == (["description"] if wire.startswith("openai") else [])


def test_a_tool_that_would_be_refused_is_listed_but_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One refused tool fails a whole request, so the error comes before it, with names and place."""
    loss = Loss("/properties/a", "not", "refused", "`not` is not known there")
    form = OPENAI_CHAT.tools

    def refusing(schema: Any, _dialect: Any) -> Any:
        return Lowered(copy.deepcopy(schema), (loss,))

    monkeypatch.setattr("toolcrib.wire.forms.accepts_unchanged", lambda *_: False)
    monkeypatch.setattr("toolcrib.wire.forms.lower", refusing)
    tool = defined("bad", {**PLAIN, "title": "only here"})
    (view,) = tool_views(form, [tool])
    assert view.losses == (loss,)
    request = ChatRequest((Message.user("Hi"),), (PlainTool(tool),))
    for send in (
        lambda: encode_tools(form, [tool]),
        lambda: encode("openai-chat", request, model="m"),
    ):
        with pytest.raises(RequestError) as raised:
            send()
        for part in (
            "openai-chat",
            "'bad'",
            "`not` is not known",
            "/properties/a",
            "leave the tool",
        ):
            assert part in str(raised.value)


@each_row("wire", FORMS)
@each_row("text", ["3", '{"type":"object","allOf":3}'])
def test_what_is_no_schema_at_all_is_listed_as_refused(wire: str, text: str) -> None:
    """Of a definition made by hand."""
    tool = defined(input_schema_json=text)
    (view,) = tool_views(wire, [tool])
    refused = [loss for loss in view.losses if loss.effect == "refused"]
    assert refused
    with pytest.raises(RequestError, match="'f'"):
        encode_tools(wire, [tool])


def test_numbers_of_a_view_keep_their_digits() -> None:
    schema = '{"type":"object","properties":{"n":{"const":12345678901234567890123,"x":1.0}}}'
    tool = defined(input_schema_json=schema)
    (view,) = tool_views("openai-chat", [tool])
    assert view.schema["properties"]["n"]["const"] == 12345678901234567890123  # type: ignore[index, call-overload]


def usable(row: Any) -> bool:
    """Some collections have types such as `hashmap`."""
    try:
        compile_validator(row.get("input_schema", {}))
    except DefinitionError:
        return False
    return True


@functools.cache
def collected(path: Path) -> list[Any]:
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return list({row["name"]: row for row in rows if usable(row)}.values())


@each_row("source", ["bfcl", "metatool", "nestful"])
@each_row("wire", FORMS)
def test_collected_definitions_have_a_view_everywhere(
    shared_data: Path, source: str, wire: str
) -> None:
    unique = collected(shared_data / "pick" / source / "tools.jsonl")
    assert len(unique) > 30
    some = sampled(unique, part=3)
    views = tool_views(wire, some)
    assert len(views) == len(some)
    for view in views:
        assert FORMS[wire].names.legal(view.wire_name)
        assert json.loads(json.dumps(view.form)) == view.form
