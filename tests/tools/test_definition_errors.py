"""What cannot be registered, and what is said about it."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

import pytest
from named import named
from pydantic import BaseModel, Field, RootModel
from rows import each_row

from toolcrib import (
    ALL,
    CallContext,
    Injected,
    ToolComponent,
    capability,
    function_to_tool_definition,
    tool,
)
from toolcrib.errors import DefinitionError, SchemaError
from toolcrib.lint import check_tools
from toolcrib.tools import Catalog, tool_of


def fine(a: int = 1) -> int:
    """Fine."""
    return a


def needs_a(a: int) -> int:
    """Needs a."""
    return a


def gives_object() -> dict[str, int]:
    """Gives object."""
    return {}


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """No hint."""
    return 1


def star(*a: int) -> int:
    return 1


def stars(**a: int) -> int:
    """Stars."""
    return 1


def positional(a: int, /) -> int:
    return a


def unknown_type(a: NotThere) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


def broken_hint(a: Any) -> int:
    return 1


broken_hint.__annotations__["a"] = "int |"


def strange_type(a: range) -> int:
    return 1


def unmarked(a: Runs) -> int:
    return 1


def strange_result() -> range:
    return range(1)


def field_default(a: int = Field(default=1, gt=0)) -> int:
    return a


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> int:  # type: ignore[misc]
    yield 1


def injects_no_class(a: Injected[int | str]) -> int:
    return 1


@capability
class Clock(Protocol):
    def now(self) -> float: ...


def positional_capability(clock: Clock, /) -> int:
    return 1


def one_of_several(clock: Clock | int) -> int:
    return 1


class Callable_:  # noqa: N801
    def __call__(self, a: int) -> int:
        return a


class NoRun:
    pass


class SyncRun:
    def run(self) -> int:
        return 1


class RunTakesArguments:
    async def run(self, a: int) -> int:
        return a


class RunTakesAnything:
    async def run(self, **a: int) -> int:
        return 1


class ConstructorTakesContext:
    def __init__(self, ctx: CallContext) -> None: ...

    async def run(self) -> None: ...


class ConstructorTakesCapability:
    def __init__(self, clock: Clock) -> None: ...

    async def run(self) -> None: ...


class ConstructorTakesAnything:
    def __init__(self, **a: int) -> None: ...

    async def run(self) -> None: ...


class HasDefinitionAlready:
    def get_definition(self) -> None: ...

    async def run(self) -> None: ...


class FieldsOnly:
    a: int
    b: str

    async def run(self) -> None: ...


class Numbers(RootModel[list[int]]):
    pass


class TopIsNoObject:
    def __init__(self, numbers: Numbers) -> None: ...

    async def run(self) -> None: ...


class Unfinished(BaseModel):
    later: NotThere  # type: ignore[name-defined]  # noqa: F821


class TakesUnfinished:
    def __init__(self, it: Unfinished) -> None: ...

    async def run(self) -> None: ...


@dataclass
class HintOfNothing:
    a: NotThere  # type: ignore[name-defined]  # noqa: F821

    async def run(self) -> None: ...


@dataclass
class FieldOfPydantic:
    a: int = Field(default=1)

    async def run(self) -> None: ...


class NoSignature(dict):  # type: ignore[type-arg]
    async def run(self) -> None: ...


class Greeter:
    def greet(self, name: str) -> str:
        """Greet."""
        return name


class Abstract(abc.ABC):
    @abc.abstractmethod
    async def run(self) -> int: ...

    @abc.abstractmethod
    def also(self) -> int: ...


class Runs(Protocol):
    async def run(self) -> int: ...


class Seal(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise AttributeError(name)


class Sealed(metaclass=Seal):
    """Sealed."""

    async def run(self) -> None: ...


TARGETS: list[tuple[Any, str]] = [
    (no_hint, r"'no_hint' has no schema: a \(has no type hint\).*Give every parameter a type hint"),
    (no_hint, r"input_schema=….*allow_no_schema=True.*read-only, human-approval, full"),
    (star, r"'star' has no schema: \*a \(arguments are passed by name: take a list, a: list\[…\]\)"),
    (stars, r"'stars' has no schema: \*\*a \(can be anything\)"),
    (positional, "'a' is positional only.*remove the '/'"),
    (positional_capability, "'clock' is positional only"),
    (unknown_type, "unknown_type: its type hints cannot be read.*NotThere"),
    (broken_hint, "broken_hint: its type hints cannot be read"),
    (strange_type, "tool 'strange_type': parameter 'a': range cannot be expressed in JSON Schema"),
    (strange_type, r"model; if your program provides it, write Injected\[range\]$"),
    (unmarked, "model; if your program provides it, decorate Runs with @capability$"),
    (strange_result, "tool 'strange_result': the return type: range cannot be .* pydantic model$"),
    (one_of_several, "a capability must be a single type, not a union of types"),
    (field_default, r"parameter 'a': write Annotated\[…, Field\(…\)\]"),
    (generator, "generator yields: write `async def` to stream its parts, or return a list"),
    (async_generator, r"async_generator yields: its return type must be AsyncIterator\[…\] of"),
    (injects_no_class, r"Injected takes a class, not int \| str"),
    (lambda: 1, "tool name '<lambda>'"),
    (functools.partial(fine, 1), r"a function or a class, not of a partial \(.*fine\): wrap it in a"),
    (functools.lru_cache(fine), r"not of a _lru_cache_wrapper \(.*fine\): wrap it in a function"),
    (Callable_(), "a function or a class, not of a Callable_: wrap it in a function that has type"),
    (math.gcd, r"not of a builtin_function_or_method \(math.gcd\): wrap it in a function"),
    (str.upper, r"not of a method_descriptor \(str.upper\): wrap it in a function"),
    ("text", "a function or a class, not of a str$"),
    (None, "a function or a class, not of a NoneType$"),
    (math, r"a function or a class, not of a module \(math\)$"),
    (tool(visible=ALL)(fine), r"not of a Tool \(fine\): it is already a tool; renamed"),
    (staticmethod(fine), r"not of a staticmethod \(.*fine\): put @tool below @staticmethod"),
    (classmethod(no_hint), r"not of a classmethod \(.*no_hint\): decorate the bound method"),
    (property(fine), "not of a property"),
    (Greeter.greet, r"Greeter.greet is a method .*: toolset\(thing\) makes .*\(thing.greet\)"),
    (Abstract, "Abstract is abstract: decorate a subclass that has also, run"),
    (Runs, "Runs is a Protocol: decorate a class that implements it"),
    (Sealed, "Sealed does not let its attributes be set: decorate a subclass of it"),
    (NoRun, r"NoRun needs an `async def run.*; toolset\(NoRun\(…\)\) makes tools of its methods"),
    (SyncRun, "SyncRun needs an `async def run"),
    (RunTakesArguments, "RunTakesArguments.run takes a, which nothing provides"),
    (RunTakesAnything, r"RunTakesAnything.run takes \*\*a .*which nothing provides"),
    (ConstructorTakesContext, "ConstructorTakesContext: its constructor takes what the model sends"),
    (ConstructorTakesCapability, "take capabilities and CallContext as parameters of `run`"),
    (ConstructorTakesAnything, r"no schema: \*\*a \(can be anything\)"),
    (HasDefinitionAlready, "has a `get_definition` already: rename it"),
    (FieldsOnly, "no constructor takes its fields a, b; put @tool above @dataclass"),
    (TopIsNoObject, "the top of input_schema must be type 'object'"),
    (TakesUnfinished, "tool 'TakesUnfinished': the arguments: Unfinished cannot be expressed"),
    (HintOfNothing, "HintOfNothing: its type hints cannot be read"),
    (NoSignature, "NoSignature has no signature that can be read"),
    (FieldOfPydantic, r"parameter 'a': write Annotated"),
]  # fmt: skip


@each_row(("target", "text"), TARGETS)
def test_targets(target: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        tool(visible=ALL, description="It runs.")(target)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("base", [object, ToolComponent])
def test_a_class_twice(base: type) -> None:
    class Once(base):  # type: ignore[misc]
        """Once."""

        async def run(self) -> None: ...

    first = tool_of(tool(visible=ALL, name="once")(Once))
    with pytest.raises(
        DefinitionError, match="Once is already the tool 'once': to make another tool"
    ):
        tool(visible=ALL, name="twice")(Once)
    assert tool_of(Once) is first


def test_a_method_of_an_instance_is_a_function() -> None:
    assert tool(visible=ALL, description="It runs.")(Greeter().greet).definition.name == "greet"


def test_dataclass_above_tool() -> None:
    with pytest.raises(DefinitionError, match="put @tool above @dataclass"):

        @dataclass
        @tool(visible=ALL)
        class Wrong:
            """Wrong."""

            a: int
            b: list[int] = field(default_factory=list)

            async def run(self) -> None: ...


OBJECT: dict[str, Any] = {"type": "object"}


def prop(schema: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": {"a": schema}, "required": ["a"]}


def bomb(layers: int) -> dict[str, Any]:
    made = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(layers)}
    return {**prop({"$ref": "#/$defs/0"}), "$defs": {**made, str(layers): {}}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


NO_LISTS_OF_NAMES: list[Any] = [
    "a", {"a"}, frozenset("a"), {"a": 1}, iter("a"), [["a"]], [1], ALL, None, 5,
]  # fmt: skip
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"visible": None}, "^@tool needs visible="),
    ({"visible": "a"}, "visible is a list of paths"),
    ({"visible": {"a"}}, "visible is a list of paths"),
    ({"visible": [1]}, "visible is a list of paths"),
    ({"visible": ["a"]}, "visible has 'a', which no result has"),
    ({"visible": ["a..b"]}, "visible: 'a..b' has an empty step"),
    ({"model_visible": ["a"]}, "model_visible has 'a', which no result has"),
    ({"model_visible": "a"}, "model_visible is a list of paths"),
    ({"secret": ["z"]}, "secret names 'z', which is no parameter"),
    *(({"secret": wrong}, r"secret is a list of parameters such as \['pin'\]")
      for wrong in NO_LISTS_OF_NAMES),
    ({"name": ""}, "tool name ''"),
    ({"name": "a b"}, "tool name 'a b': use 1 to 128 of a-z"),
    ({"name": "a\n"}, r"tool name 'a\\n'"),
    ({"name": "раy"}, "tool name"),  # the first two letters are Cyrillic
    ({"name": "ａ"}, "tool name"),  # full width
    ({"name": "a\u200b"}, "tool name"),
    ({"name": "é"}, "tool name"),
    ({"name": "a/b"}, "tool name 'a/b'"),
    ({"name": "a b"}, "tool name 'a b'"),
    ({"name": "a" * 129}, "tool name 'a"),
    ({"name": 5}, "tool name '5'"),
    ({"safe": "yes"}, "a wrong annotation: Expected `bool`"),
    ({"timeout": "10s"}, "a wrong annotation"),
    ({"cost": None}, "a wrong annotation"),
    ({"cost": -1}, "cost must be a finite number, 0 or more, not -1"),
    ({"cost": float("nan")}, "cost must be a finite number"),
    ({"cost": float("inf")}, "cost must be a finite number"),
    ({"timeout": 0}, "timeout must be a finite number of seconds above 0, not 0"),
    ({"timeout": -1.5}, "timeout must be"),
    ({"timeout": float("nan")}, "timeout must be"),
    ({"timeout": float("inf")}, "timeout must be"),
    ({"threat_level": "huge"}, "a wrong annotation"),
    ({"allowed_roles": "admin"}, "a wrong annotation"),
    ({"allowed_roles": []}, "allowed_roles is empty, .*leave it out for everybody"),
    ({"allowed_roles": ()}, "allowed_roles is empty"),
    ({"allowed_roles": set()}, "allowed_roles is empty"),
    ({"allowed_roles": frozenset()}, "allowed_roles is empty"),
    ({"allowed_roles": {}}, "allowed_roles is empty"),
    ({"allowed_roles": ""}, "a wrong annotation"),
    ({"allowed_roles": None}, "a wrong annotation"),
    ({"allowed_roles": {"a", "b"}}, "allowed_roles is a set, whose order is another in each process"),
    ({"features": frozenset("ab")}, "features is a set, .*: write a list"),
    ({"tags": {"a", "b"}}, "tags is a set, .*: write a list"),
    ({"tags": "abc"}, "a wrong annotation"),
    ({"tags": [1]}, "a wrong annotation"),
    ({"strict": "yes"}, "a wrong annotation"),
    ({"dangerous": True}, "@tool: there is no option 'dangerous'; there are: visible, .*, safe, read_"),
    ({"readonly": True}, r"@tool: there is no option 'readonly' \(did you mean 'read_only'\?\)"),
    ({"schema": OBJECT}, r"@tool: there is no option 'schema' \(did you mean 'input_schema'\?\)"),
    ({"imported": True}, "@tool: there is no option 'imported'"),
    ({"no_schema_mode": "maybe"}, "no_schema_mode is one of read-only, human-approval, full"),
    ({"allow_no_schema": "no"}, "allow_no_schema is True or False, not str"),
    ({"lazy": 1}, "lazy is True or False, not int"),
    ({"subprocess": None}, "subprocess is True or False, not NoneType"),
    ({"examples": None}, "examples is a list of pairs"),
    ({"examples": {"q": {}}}, "examples is a list of pairs"),
    ({"examples": [("only a request",)]}, "an example is a pair"),
    ({"examples": ["text"]}, "an example is a pair"),
    ({"examples": [("q", {"a": date(2020, 1, 1)})]}, "with JSON arguments"),
    ({"examples": [("q", {"a": float("nan")})]}, "with JSON arguments"),
    ({"examples": [("q", [1])]}, "an example is a pair"),
    ({"examples": [("q", {"a": "one"})]}, "does not fit input_schema: /a: expected integer"),
    ({"examples": [("q", {"zz": 1})]}, "does not fit input_schema: /\\*: "),
    ({"input_schema": prop({}), "parameters": prop({})}, "parameters is another name"),
    ({"input_schema": {}}, "the top of input_schema must be type 'object'"),
    ({"input_schema": True}, "the top of input_schema must be type 'object'"),
    ({"input_schema": []}, "the top of input_schema must be type 'object'"),
    ({"input_schema": {"type": "array"}}, "the top of input_schema must be type 'object'"),
    ({"input_schema": {"type": ["object", "null"]}}, "the top of input_schema must be type 'object'"),
    ({"parameters": {"type": "string"}}, "the top of input_schema must be type 'object'"),
    ({"input_schema": {**OBJECT, "properties": {"b": {}}}}, "declares b, which the signature does"),
    ({"output_schema": []}, "output_schema must be a dict"),
    ({"output_schema": {"type": "nothing"}}, "output_schema: not a usable schema"),
    ({"output_schema": {"$ref": "http://example.com"}}, "output_schema: .*nothing is fetched"),
    ({"output_schema": {**bomb(60), "type": "object"}, "visible": ["a"]}, "expand to more than"),
]  # fmt: skip


@each_row(("options", "text"), OPTIONS, ids=named)
def test_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        tool(**{"visible": ALL, **options})(fine)


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_tool_of_ones_own_has_a_description(text: str | None) -> None:
    def pay(a: int) -> None: ...

    class Bare:
        async def run(self) -> None: ...

    for target in (pay, Bare):
        with pytest.raises(
            DefinitionError, match=r"has no description.* write a docstring, or pass"
        ):
            tool(visible=ALL, description=text)(target)
    assert tool(visible=ALL, description="Pay.")(pay).definition.description == "Pay."


def test_a_definition_from_elsewhere_needs_no_description() -> None:
    form: Any = {"name": "pay", "input_schema": {"type": "object", "properties": {"a": {}}}}
    form["input_schema"]["required"] = ["a"]

    def pay(a: Any) -> None: ...

    for made in (Catalog([form]), Catalog.from_definitions([form], handlers={"pay": pay})):
        (one,) = made
        assert one.get_definition().description == ""
        assert [f.rule for f in check_tools(made) if f.pointer == "/description"] == ["description"]


class Fine:
    """Fine."""

    async def run(self) -> int:
        return 1


async def fine_parts(a: int) -> AsyncIterator[int]:
    """Fine parts."""
    yield a


BARE: Any = tool
NEEDS_VISIBLE = (
    r"^@tool needs visible=, the fields of a result that UI, logs and audit may show \(the "
    r"model sees all of it\): write @tool\(visible=ALL\), @tool\(visible=\['total'\]\), or "
    r"@tool\(visible=\[\]\) for none of them$"
)


@pytest.mark.parametrize("target", [fine, Fine, fine_parts])
def test_visible_has_no_default(target: Any) -> None:
    refusals: list[Callable[[], Any]] = [
        lambda: BARE(),  # noqa: PLW0108
        lambda: BARE(target),  # @tool without parentheses
        lambda: BARE()(target),
        lambda: BARE(target, name="x"),
        lambda: BARE(visible=None)(target),
    ]
    for refused in refusals:
        with pytest.raises(DefinitionError, match=NEEDS_VISIBLE):
            refused()


@each_row(
    ("target", "kind"),
    [(123, "int"), ("pay", "str"), (["total"], "list"), (ALL, "All"), ({}, "dict")],
)
def test_what_is_no_function_is_said_to_be_none(target: Any, kind: str) -> None:
    said = rf"^a tool is made of a function or a class, not of (a|an) {kind}$"
    refusals: list[Callable[[], Any]] = [
        lambda: BARE(target),
        lambda: BARE(target, visible=ALL),
        lambda: BARE(visible=ALL)(target),
    ]
    for refused in refusals:
        with pytest.raises(DefinitionError, match=said):
            refused()


SCHEMAS: list[tuple[dict[str, Any], str, str]] = [
    (prop({"$ref": "http://example.com/s"}), "nothing is fetched", "/properties/a/$ref"),
    (prop({"$ref": "#/$defs/b"}), "points to nothing", "/properties/a/$ref"),
    (bomb(60), "expand to more than 10000 nodes", "/properties/a/$ref"),
    (prop({"pattern": "("}), "not a usable schema", "/properties/a/pattern"),
    (prop({"pattern": "(?=a)"}), "not a usable schema", "/properties/a/pattern"),
    (prop({"type": "nothing"}), "not a usable schema", "/properties/a/type"),
    (prop(5), "not a usable schema", "/properties/a"),
    (prop(deep(150)), "nested deeper", ""),
]


@each_row(("schema", "text", "pointer"), SCHEMAS, ids=named)
def test_schemas(schema: dict[str, Any], text: str, pointer: str) -> None:
    with pytest.raises(SchemaError, match=f"tool 'needs_a', input_schema: .*{text}") as caught:
        tool(visible=ALL, input_schema=schema)(needs_a)
    assert caught.value.pointer.startswith(pointer)


def cyclic() -> dict[str, Any]:
    schema = prop({})
    schema["properties"]["a"]["not"] = schema
    return schema


@each_row(
    "schema",
    [
        prop({"maximum": float("inf")}),
        prop({"default": float("nan")}),
        prop({"maximum": 2**70}),
        prop({"default": date(2020, 1, 1)}),
        prop({"default": {1: 2}}),
        prop({"enum": [Clock]}),
        prop({"title": "\ud800"}),
        prop({"maximum": type("float64", (float,), {})(1.5)}),
    ],
    ids=["infinity", "NaN", "2**70", "date", "key", "class", "surrogate", "float64"],
)
def test_schemas_that_are_no_json(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="tool 'needs_a', input_schema: it is not JSON") as caught:
        tool(visible=ALL, input_schema=schema)(needs_a)
    assert caught.value.pointer.startswith("/properties/a")


@pytest.mark.parametrize("schema", [prop(deep(100_000)), cyclic()], ids=["deep", "cyclic"])
def test_schemas_without_a_bottom(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="nested deeper than 100, or contains itself"):
        tool(visible=ALL, input_schema=schema)(needs_a)


def test_a_given_schema_has_to_require_what_the_signature_does() -> None:
    schema = {**OBJECT, "properties": {"a": {}}}
    with pytest.raises(DefinitionError, match="does not require a, which the signature does"):
        tool(visible=ALL, input_schema=schema)(needs_a)
    with pytest.raises(DefinitionError, match="requires a, which input_schema does not declare"):
        tool(visible=ALL, input_schema=OBJECT)(needs_a)
    assert tool_of(tool(visible=ALL, input_schema=schema)(fine)).definition.input_schema == schema
    combined = {**schema, "anyOf": [{"required": ["a"]}]}
    assert (
        tool(visible=ALL, input_schema=combined)(needs_a).get_definition().input_schema == combined
    )


def test_no_schema_declares_what_is_injected() -> None:
    def told(ctx: CallContext, **rest: Any) -> None: ...

    schema = {**OBJECT, "properties": {"ctx": {}}}
    with pytest.raises(
        DefinitionError, match="declares 'ctx', but the parameter of that name is injected"
    ):
        tool(visible=ALL, description="x", input_schema=schema)(told)


def test_a_given_schema_for_parameters_without_hints() -> None:
    assert tool(visible=ALL, input_schema=prop({}))(no_hint).get_definition().input_schema == prop(
        {}
    )
    with pytest.raises(DefinitionError, match=r"declares b, .*; the signature requires a, which "):
        tool(visible=ALL, input_schema={**OBJECT, "properties": {"b": {}}})(no_hint)
    assert tool(visible=ALL, input_schema=prop({}))(stars).get_definition().input_schema == prop({})


NO_SCHEMA: list[tuple[dict[str, Any], str | None]] = [
    ({}, "has no schema"),
    ({"no_schema_mode": "full"}, "has no schema"),
    ({"allow_no_schema": True}, "has no schema.*a no_schema_mode"),
    ({"allow_no_schema": True, "no_schema_mode": "yes"}, "no_schema_mode is one of"),
    ({"allow_no_schema": True, "no_schema_mode": "read-only"}, None),
    ({"allow_no_schema": True, "no_schema_mode": "human-approval"}, None),
    ({"allow_no_schema": True, "no_schema_mode": "full"}, None),
]


@each_row("target", [no_hint, star, stars, ConstructorTakesAnything])
@each_row(("options", "text"), NO_SCHEMA)
def test_tools_without_a_schema(target: Any, options: dict[str, Any], text: str | None) -> None:
    if text is not None:
        with pytest.raises(DefinitionError, match=text):
            tool(visible=ALL, **options)(target)
        return
    cls = type(target.__name__, (target,), {}) if isinstance(target, type) else target
    definition = tool_of(tool(visible=ALL, description="Do.", **options)(cls)).definition
    assert definition.input_schema is None
    assert definition.no_schema_mode == options["no_schema_mode"]


def test_opting_out_does_not_throw_a_schema_away() -> None:
    definition = tool(visible=ALL, allow_no_schema=True, no_schema_mode="full")(
        fine
    ).get_definition()
    assert definition.input_schema is not None
    assert definition.no_schema_mode is None


@pytest.mark.parametrize("target", [no_hint, star, positional, strange_type])
def test_a_function_as_a_dictionary_needs_the_same(target: Any) -> None:
    with pytest.raises(DefinitionError):
        function_to_tool_definition(target)


def test_an_output_schema_may_say_nothing() -> None:
    assert tool(visible=["x"], output_schema={})(fine).get_definition().output_schema == {}
    assert tool(visible=["x"])(gives_object).get_definition().visible == ("x",)
