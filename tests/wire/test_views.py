"""Which tools a provider is sent as strict, and why others are not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rows import each_row
from wire.forms_helpers import NOTHING, PLAIN, TOOLS, defined, inner

from toolcrib.values.definition import Example, PlainTool
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import FORMS, OPENAI_CHAT, encode, encode_tools, tool_views
from toolcrib.wire.forms import ToolForm, encoded

# the tool; what is said of it in Chat Completions, and to Anthropic, which takes no recursion
STRICT = [
    ("plain", None, None),
    ("strict", True, True),
    ("never strict", False, False),
    ("strict, impossible", None, None),
    ("strict, without a schema", None, None),
    ("optional and nullable", True, True),
    ("recursive", None, None),
    ("recursive, strict", True, None),
    ("a union at the top, strict", True, True),
]


@each_row(("tool", "chat", "anthropic"), STRICT)
def test_strict_is_said_where_it_holds(
    tool: str, chat: bool | None, anthropic: bool | None
) -> None:
    """Responses takes a tool as strict unless it says otherwise, so there it is always said."""
    for wire, said in (("openai-chat", chat), ("anthropic", anthropic)):
        (view,) = tool_views(wire, [TOOLS[tool]])
        assert inner(view.form).get("strict") is said
        assert view.strict is (said is True)
    (view,) = tool_views("openai-responses", [TOOLS[tool]])
    assert view.form["strict"] is (chat is True)
    for wire in ("ollama", "gemini"):
        (view,) = tool_views(wire, [TOOLS[tool]])
        assert not view.strict
        assert "strict" not in inner(view.form)


NOT_STRICT = [
    ("openai-chat", "strict, impossible", "(at the top)"),
    ("openai-responses", "strict, without a schema", "the tool has no schema"),
    ("anthropic", "recursive, strict", "it is recursive"),
    ("ollama", "strict", "ollama has no strict mode"),
    ("gemini", "strict", "gemini has no strict mode"),
]


@each_row(("wire", "tool", "why"), NOT_STRICT)
def test_a_strict_tool_that_is_not_sent_so_says_why(wire: str, tool: str, why: str) -> None:
    (view,) = tool_views(wire, [TOOLS[tool]])
    (loss,) = [loss for loss in view.losses if loss.keyword == "strict"]
    assert (loss.pointer, loss.effect) == ("", "lost")
    assert loss.message.startswith("it is sent without strict: ")
    assert why in loss.message


def _objects(schema: Any) -> list[dict[str, Any]]:
    """Every object schema in a view."""
    found = []
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") in ("object", ["object", "null"]):
            found.append(schema)
        for value in schema.values():
            found += _objects(value)
    elif isinstance(schema, list):
        for value in schema:
            found += _objects(value)
    return found


@each_row("tool", TOOLS)
def test_what_is_sent_as_strict_is_closed_and_requires_all(tool: str) -> None:
    (view,) = tool_views("openai-chat", [TOOLS[tool]])
    if not view.strict:
        assert "strict" not in inner(view.form) or inner(view.form)["strict"] is False
        return
    for schema in _objects(view.schema):
        assert schema["additionalProperties"] is False
        assert sorted(schema["required"]) == sorted(schema["properties"])


MAYBE = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


@pytest.mark.parametrize(
    ("properties", "required", "strict", "why"),
    [
        ({"a": {"type": "string"}}, ["a"], 20, "at most 20 strict tools"),
        ({n: {"type": "string"} for n in "abcd"}, ["a"], 8, "at most 24 optional properties"),
        (dict.fromkeys("abcde", MAYBE), list("abcde"), 3, "at most 16 unions"),
        ({"l": {"type": "array", "items": MAYBE}, "m": MAYBE}, ["l", "m"], 8, "at most 16 unions"),
    ],
    ids=["tools", "optional", "unions", "unions below"],
)
def test_what_is_over_the_limits_of_a_request_is_sent_without_strict(
    properties: Any, required: list[str], strict: int, why: str
) -> None:
    """By the order of the tools; a smaller one that comes later may still be strict."""
    schema = {"type": "object", "properties": properties, "required": required}
    tools = [defined(f"t{i}", schema, strict=True) for i in range(25)]
    small = defined("small", NOTHING, strict=True)
    views = tool_views("anthropic", [*tools, small])
    assert [view.strict for view in views[:-1]] == [True] * strict + [False] * (25 - strict)
    assert views[-1].strict is (strict < 20)
    assert all("strict" not in view.form for view in views[strict:-1])
    losses = [loss for view in views for loss in view.losses if loss.keyword == "strict"]
    assert len(losses) == 25 - strict + (strict == 20)
    assert all(why in loss.message for loss in losses)
    assert [view.form for view in views] == encode_tools("anthropic", [*tools, small])
    assert all(view.strict for view in tool_views("openai-chat", tools))


def test_a_wire_whose_server_knows_no_strictness_is_a_changed_value() -> None:
    form = msgspec.structs.replace(OPENAI_CHAT.tools, strict_dialect=None)
    wire = msgspec.structs.replace(OPENAI_CHAT, tools=form)
    for tool in (TOOLS["strict"], TOOLS["never strict"]):
        assert encode_tools(wire, [tool]) == encode_tools(form, [TOOLS["plain"]])
        request = ChatRequest((Message.user("Hi"),), (PlainTool(tool),))
        sent = json.loads(encode(wire, request, model="m").body)
        assert sent["tools"] == encode_tools(form, [TOOLS["plain"]])


def test_an_example_that_the_strict_view_does_not_take_is_not_sent() -> None:
    """The author's schema is open, the strict view is closed."""
    given = (Example("more", '{"city":"Rome","when":"now"}'), Example("plain", '{"city":"Bari"}'))
    opened = {**PLAIN, "additionalProperties": True}
    for strict, sent, lost in ((None, 2, []), (True, 1, ["additionalProperties", "examples"])):
        (view,) = tool_views("anthropic", [defined(schema=opened, examples=given, strict=strict)])
        examples: Any = view.form["input_examples"]
        assert examples == [example.arguments for example in given][-sent:]
        assert [loss.keyword for loss in view.losses] == lost


@each_row("form", FORMS.values(), ids=FORMS)
def test_the_bytes_of_a_request_say_the_same(form: ToolForm) -> None:
    tools = [
        msgspec.structs.replace(tool, name=f"t{at}{tool.name}")
        for at, tool in enumerate(TOOLS.values())
    ]
    made = encoded(form, tools)
    assert json.loads(made.body) == encode_tools(form, tools)
    views = tool_views(form, tools)
    assert made.names == {view.definition.name: view.wire_name for view in views}
    assert made.restorers == {v.definition.name: v.restorer for v in views if v.restorer}
