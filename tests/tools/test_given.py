"""A schema that was given: its types, and the hints that are then not needed."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field, RootModel, Secret, SecretStr, WithJsonSchema
from rows import each_row

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    Hydrated,
    ToolCall,
    ToolRunner,
    get_definition,
    hydrate,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.testing import MemorySink

if TYPE_CHECKING:
    from nowhere import Auth, Options  # type: ignore[import-not-found]


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


def made(hint: Any, declared: Any, **more: Any) -> Any:
    def pay(a):  # type: ignore[no-untyped-def]
        """Pay."""
        return a

    pay.__annotations__ = {"a": hint}
    schema = {"type": "object", "properties": {"a": declared}, "required": ["a"], **more}
    return tool(visible=ALL, input_schema=schema)(pay)


NUMBER_OR_TEXT = {"anyOf": [{"type": "number"}, {"type": "string"}]}
REFUSED: list[tuple[Any, Any, str]] = [
    (int, {"type": "string"}, "input_schema says string, but its type hint reads integer"),
    (str, {"type": "integer"}, "says integer, but its type hint reads string"),
    (
        bool,
        {"type": ["integer", "string"]},
        "says integer or string, but its type hint reads boolean",
    ),
    (list[int], {"type": "object"}, "says object, but its type hint reads array"),
    (Point, {"type": "array"}, "says array, but its type hint reads object"),
    (date, {"type": "integer"}, "says integer, but its type hint reads string"),
    (Color, {"enum": [1, 2]}, "says integer, but its type hint reads string"),
    (Literal["a"], {"const": None}, "says null, but its type hint reads string"),
    (
        int | None,
        NUMBER_OR_TEXT | {"type": "string"},
        "says string, but its type hint reads integer or null",
    ),
    (str, {"$ref": "#/$defs/N"}, "says number, but its type hint reads string"),
    (str, {"allOf": [{"type": ["string", "null"]}, {"type": "null"}]}, "says null"),
]


@each_row(("hint", "declared", "text"), REFUSED, ids=str)
def test_types_that_contradict_the_hint_are_refused(hint: Any, declared: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=f"tool 'pay': parameter 'a': .*{text}"):
        made(hint, declared, **{"$defs": {"N": {"type": "number"}}})


FINE: list[tuple[Any, Any]] = [
    (int, {"type": "integer"}), (int, {"type": "number"}), (float, {"type": "integer"}), (int, {}),
    (int, True), (Any, {"type": "string"}), (str | None, {"type": "string"}), (int, NUMBER_OR_TEXT),
    (date, {"type": "string"}), (Path, {"type": "string"}), (Color, {"enum": ["red", 1]}),
    (Point, {"type": "object"}), (Point, {"$ref": "#/$defs/N"}), (list[int], {"type": "array"}),
    (Annotated[int, BeforeValidator(int)], {"type": "string"}),
]  # fmt: skip


@each_row(("hint", "declared"), FINE, ids=str)
def test_types_that_have_something_in_common_are_taken(hint: Any, declared: Any) -> None:
    made(hint, declared, **{"$defs": {"N": {"type": "object"}}})


SCHEMA: Any = {
    "type": "object",
    "properties": {"url": {"type": "string"}, "times": {"type": "integer"}},
    "required": ["url"],
    "additionalProperties": False,
}


def fetch(url: str, times: int = 1, options: Options = None, **auth: Auth) -> str:
    """Fetch a page."""
    return url * times


@each_row("required", [[{"a": 1}], [["a"]], [None], "a", {"a": True}])
def test_what_is_no_name_is_not_required(required: Any) -> None:
    def f(a: int = 1) -> int:
        return a

    schema: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": required}
    with pytest.raises(DefinitionError, match="required"):
        tool(f, input_schema=schema, visible=ALL, description="It runs.")


def test_hints_that_cannot_be_read_are_not_read_where_a_schema_is_given() -> None:
    fetched = tool(fetch, parameters=SCHEMA, visible=ALL)
    assert fetched("a", 2) == "aa"
    call = ToolCall("1", "fetch", '{"url": "a", "times": 2.0}')
    hydrated = hydrate(call, Catalog([fetched]))
    assert isinstance(hydrated, Hydrated)


def test_nor_is_a_return_hint_that_json_lacks() -> None:
    class Response:
        """As that of `requests.get`."""

    def get(url: str) -> Response:
        """Get a page."""
        return Response()

    got = tool(get, parameters=SCHEMA | {"properties": {"url": {"type": "string"}}}, visible=ALL)
    assert got.definition.output_schema is None
    with pytest.raises(DefinitionError, match="the return type"):
        tool(get, visible=ALL)


def test_without_a_schema_the_error_says_what_to_give() -> None:
    with pytest.raises(DefinitionError, match=r"'options' .*with input_schema=… they need not be"):
        tool(fetch, visible=ALL)


def test_a_function_of_the_standard_library_is_taken() -> None:
    schema: Any = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    opened = tool(urllib.request.urlopen, input_schema=schema, visible=ALL)
    assert opened.definition.name == "urlopen"
    assert opened.defaults["timeout"].shown == {"default": "object"}


def test_a_hint_that_json_lacks_needs_no_reading_where_nobody_can_send_it() -> None:
    class Session:
        pass

    def ask(url: str, session: Session | None = None) -> str:
        """Ask."""
        return url

    asked = tool(ask, parameters=SCHEMA | {"properties": {"url": {}}}, visible=ALL)
    assert "session" not in asked.converters
    with pytest.raises(DefinitionError, match="parameter 'session'"):
        tool(ask, parameters=SCHEMA | {"properties": {"url": {}, "session": {}}}, visible=ALL)


class Login(BaseModel):
    user: str
    password: SecretStr


async def test_of_a_declared_union_the_members_that_json_has_are_read() -> None:
    class Url:
        """A type that JSON lacks."""

    def fetch(url: Url | str, retries: int | Url | None = None) -> str:
        """Fetch a page."""
        return f"{url} {retries}"

    declared = {"url": {"type": "string"}, "retries": {"type": ["integer", "null"]}}
    schema = {"type": "object", "properties": declared, "required": ["url"]}
    made = tool(fetch, input_schema=schema, visible=ALL)
    outcome = await ToolRunner([made]).exec(ToolCall("1", "fetch", '{"url":"a","retries":2}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == "a 2"
    fetch.__annotations__["url"] = Url | None
    with pytest.raises(DefinitionError, match=r"Url \| None cannot be expressed in JSON Schema"):
        tool(fetch, input_schema=schema, visible=ALL)


async def test_a_secret_of_a_hint_is_masked_whatever_the_given_schema_says() -> None:
    def sign_in(token: SecretStr, more: list[Login] | None = None, note: str = "") -> int:
        """Sign in."""
        return len(token.get_secret_value())

    properties: Any = {"token": {"type": "string"}, "more": {}, "note": {"type": "string"}}
    given = {"type": "object", "properties": properties, "required": ["token"]}
    sink = MemorySink()
    runner = ToolRunner([tool(sign_in, parameters=given, visible=ALL)], sinks=[sink])
    sent = '{"token": "hunter2", "more": [{"user": "u", "password": "hunter3"}], "note": "n"}'
    outcome = await runner.exec(ToolCall("1", "sign_in", sent))
    assert isinstance(outcome, Completed)
    assert outcome.value == 7
    assert sink.finished()[0].arguments == {"token": "***", "more": "***", "note": "n"}


Bare = Annotated[SecretStr, WithJsonSchema({"type": "string"})]
Number = Annotated[Secret[int], WithJsonSchema({"type": "integer"})]


def test_so_is_one_whose_author_wrote_its_schema() -> None:
    @tool(visible=ALL)
    def take(a: Bare, b: dict[str, Number], c: str = "") -> int:
        """Take it."""
        return 1

    @tool(visible=ALL)
    class Model(BaseModel):
        """Take it."""

        a: Bare = Field(alias="api-key")
        c: str = ""

        async def run(self) -> int:
            return 1

    assert take.definition.secret == ("a", "b")
    assert get_definition(Model).secret == ("api-key",)


class Keys(RootModel[dict[str, SecretStr]]):
    """Keep keys."""

    async def run(self) -> int:
        return len(self.root)


async def test_a_secret_that_no_property_declares_is_masked_and_edited_as_any() -> None:
    shown: list[Any] = []

    async def approver(request: ApprovalRequest) -> Approve:
        shown.append(request.arguments)
        return Approve("grace", arguments={**request.arguments, "b": "hunter3"})

    made = tool(visible=ALL, requires_approval=True)(Keys)
    sink = MemorySink()
    runner = ToolRunner([made], approver=approver, sinks=[sink])
    outcome = await runner.exec(ToolCall("1", "Keys", '{"a": "hunter2"}'))
    assert isinstance(outcome, Completed)
    assert outcome.value == 2
    assert shown == [{"a": "***"}]
    assert sink.finished()[0].arguments == {}
