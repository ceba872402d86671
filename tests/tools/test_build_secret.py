"""Which arguments no record may show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, Json, WithJsonSchema
from rows import each_row

from toolcrib import ALL, Catalog, Completed, ToolCall, ToolRunner, get_definition, tool
from toolcrib.errors import DefinitionError
from toolcrib.schema import references
from toolcrib.tools.build import check_given, secret_properties
from toolcrib.tools.lock import lock_catalog
from toolcrib.wire import encode_tools

HIDDEN = {"type": "string", "writeOnly": True}


def secrets(schema: Any, named: Any = ()) -> tuple[str, ...]:
    return secret_properties("t", check_given("t", "input_schema", schema), named)


@each_row(
    ("properties", "named", "secret"),
    [
        ({}, [], ()),
        ({"a": {}}, [], ()),
        ({"a": {}, "b": {}}, ["b"], ("b",)),
        ({"a": HIDDEN, "b": {}}, [], ("a",)),
        ({"a": HIDDEN, "b": {}}, ["b", "a"], ("b", "a")),
        ({"a": {"anyOf": [{"type": "null"}, HIDDEN]}}, [], ("a",)),
        ({"a": {"items": {"properties": {"x": HIDDEN}}}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/s"}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/s", "title": "beside"}, "b": {"$ref": "#/$defs/r"}}, [], ("a",)),
        ({"a": {"$ref": "#/$defs/r", "not": HIDDEN}}, [], ("a",)),
        ({"a": {"writeOnly": False}, "b": {"writeOnly": "yes"}}, [], ()),
        ({"writeOnly": {"type": "boolean"}}, [], ()),
        ({"a": True, "b": False}, [], ()),
        ({"a": {"type": "string", "format": "password"}, "b": {}}, [], ("a",)),
        ({"a": {"additionalProperties": HIDDEN}, "b": {"patternProperties": {"x": HIDDEN}}}, [],
         ("a", "b")),
        ({"a": {"$dynamicRef": "#named"}, "b": {"$ref": "#named"}, "c": {}}, [], ("a", "b")),
        ({"a": {"prefixItems": [{}, {"anyOf": [{"$ref": "#/$defs/q"}]}]}, "b": {}}, [], ("a",)),
    ],
)  # fmt: skip
def test_named_and_found(properties: Any, named: list[str], secret: tuple[str, ...]) -> None:
    schema = {"type": "object", "properties": properties}
    schema["$defs"] = {
        "s": HIDDEN,
        "r": {"items": {"$ref": "#/$defs/r"}},
        "q": {"items": {"$ref": "#/$defs/s"}},
        "named": {"$dynamicAnchor": "named", **HIDDEN},
    }
    assert secrets(schema, named) == secret


X = {"properties": {"x": HIDDEN}}


@each_row(
    ("schema", "secret"),
    [
        ({"allOf": [X]}, ("x",)),
        ({"anyOf": [{"oneOf": [X]}]}, ("x",)),
        ({"$ref": "#/$defs/x"}, ("x",)),
        ({"if": {"required": ["x"]}, "then": X}, ("x",)),
        ({"else": X}, ("x",)),
        ({"dependentSchemas": {"y": X}}, ("x",)),
        ({"dependencies": {"y": X, "x": ["y"]}}, ("x",)),
        ({"patternProperties": {"^x$": HIDDEN}}, ("x", "y", "*")),
        ({"additionalProperties": HIDDEN}, ("*",)),
        ({"allOf": [{"properties": {"x": {}}, "additionalProperties": HIDDEN}]}, ("y", "*")),
        ({"properties": {"x": {}, "y": {"$ref": "#"}}}, ()),
        ({"properties": {"x": HIDDEN, "y": {"$ref": "#"}}}, ("x", "y")),
        ({"items": X}, ()),
    ],
)
def test_what_is_said_of_the_arguments_as_a_whole(schema: Any, secret: tuple[str, ...]) -> None:
    """A record shows the declared properties, whatever part of a schema makes one secret."""
    whole = {"properties": {"x": {}, "y": {}}, "$defs": {"x": X if "$ref" in schema else {}}}
    assert secrets({**whole, **schema}) == secret


def test_thousands_of_references_are_followed_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up one by one, 9,000 names took minutes."""
    walks = 0
    subschemas = references.subschemas

    def counting(schema: Any) -> Any:
        nonlocal walks
        walks += 1
        return subschemas(schema)

    properties = {f"p{i}": {"$ref": "#s"} for i in range(500)}
    schema: Any = {"properties": properties, "$defs": {"s": {"$anchor": "s", "writeOnly": True}}}
    given = check_given("t", "input_schema", schema)
    monkeypatch.setattr(references, "subschemas", counting)
    assert secret_properties("t", given, []) == tuple(properties)
    assert walks == 1


def test_a_tool_without_a_schema_takes_any_name() -> None:
    assert secret_properties("t", None, ["anything"]) == ("anything",)


@pytest.mark.parametrize("named", [["z"], "a", ["a", "z"], {"a"}, iter(["a"])])
def test_names_that_are_no_parameters(named: Any) -> None:
    with pytest.raises(DefinitionError, match="tool 't': secret"):
        secrets({"properties": {"a": {}}}, named)


class Login(BaseModel):
    """Log in."""

    user: str
    pin: str = "canary-pin"

    async def run(self) -> str:
        return self.pin


def login(user: str, pin: str = "canary-pin") -> str:
    """Log in."""
    return pin


@pytest.mark.parametrize("target", [login, Login])
async def test_no_definition_tells_the_default_of_a_secret(target: Any) -> None:
    made = tool(visible=ALL, secret=["pin"], name="login")(target)
    definition = get_definition(made)
    assert "canary" not in definition.canonical()
    assert "canary" not in str(encode_tools("openai-chat", Catalog([made])))
    outcome = await ToolRunner([made]).exec(ToolCall("c", "login", '{"user": "ada"}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == "canary-pin"
    assert outcome.record.arguments == {"user": "ada", "pin": "***"}


@dataclass
class Port:
    number: int = 1
    knock: str = "canary-knock"


class Account(BaseModel):
    """None of its fields is called secret."""

    host: str = "localhost"
    pin: str = "canary-pin"
    backup: Account | None = None
    ports: dict[str, Port] = {}


def connect(
    account: Account | None = None,
    several: Sequence[Account] | None = None,
    written: Json[Account] | None = None,
    retries: int = 3,
) -> str:
    """Connect."""
    return f"{account.pin if account else None}, {retries}"


@pytest.mark.parametrize("secret", [["account"], ["several"], ("written",)])
async def test_no_definition_tells_a_default_inside_a_secret_parameter(secret: Any) -> None:
    """Not even of another parameter of the same class."""
    made = tool(visible=ALL, secret=secret)(connect)
    definition = get_definition(made)
    for told in (definition.canonical(), repr(lock_catalog(Catalog([made])))):
        assert "canary" not in told
    schema: Any = definition.input_schema
    assert schema["properties"]["retries"]["default"] == 3
    outcome = await ToolRunner([made]).exec(ToolCall("c", "connect", '{"account": {"host": "h"}}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == "canary-pin, 3"


class Tree(BaseModel):
    kids: list[Tree] = []


@pytest.mark.parametrize(
    "hint",
    [
        int,
        Literal["a"],
        Literal[1, 2],
        Annotated[float, Field(le=1.5)],
        Annotated[str, Field(pattern="^a")],
        dict[int, str],
        Decimal,
        date,
        Tree,
        Annotated[str, WithJsonSchema({"const": 5})],
    ],
)
def test_what_else_a_tool_takes_brings_no_default_of_a_secret_back(hint: Any) -> None:
    """Schemas with patterns, with costly constants or with references that nest take other ways."""

    def pay(to: Any, pin: str = "canary-pin", more: Any = "canary-more") -> None:
        """Pay."""

    more = Annotated[str, Field(json_schema_extra={"writeOnly": True})]
    pay.__annotations__ |= {"to": hint, "more": more}
    definition = tool(visible=ALL, secret=["pin"])(pay).definition
    assert definition.secret == ("pin", "more")
    assert "canary" not in definition.canonical()


class Marked(BaseModel):
    """Hold fields that a schema calls secret, though their types do not."""

    pin: str = Field("canary-pin", json_schema_extra={"writeOnly": True})
    default: str = Field("canary-of-a-field", json_schema_extra={"format": "password"})


def marked(
    user: str,
    pin: Annotated[str, Field(json_schema_extra={"format": "password"})] = "canary-pin",
    more: Annotated[list[str], Field(json_schema_extra={"items": {"format": "password"}})] = [  # noqa: B006
        "canary-of-a-list"
    ],
    held: Marked = Marked(pin="canary-pin", default="canary-of-an-object"),  # noqa: B008
    several: list[Marked] | None = None,
) -> str:
    """Log in."""
    return f"{pin}, {more[0]}, {held.pin}, {held.default}, {len(several or [])}"


async def test_no_definition_tells_the_default_of_what_its_schema_marks() -> None:
    made = tool(visible=ALL)(marked)
    definition = get_definition(made)
    assert definition.secret == ("pin", "more", "held", "several")
    for told in (definition.canonical(), repr(definition), repr(lock_catalog(Catalog([made])))):
        assert "canary" not in told
    for provider in ("openai-chat", "openai-responses", "anthropic", "gemini", "cohere"):
        assert "canary" not in str(encode_tools(provider, Catalog([made])))
    schema: Any = definition.input_schema
    fields = schema["$defs"]["Marked"]["properties"]
    assert fields.keys() == {"pin", "default"}
    outcome = await ToolRunner([made]).exec(ToolCall("c", "marked", '{"user": "ada"}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == "canary-pin, canary-of-a-list, canary-pin, canary-of-an-object, 0"
    assert "canary" not in str(outcome.record.arguments)
