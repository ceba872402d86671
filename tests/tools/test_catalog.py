"""Tools by name: fixed order, no name twice, bindings kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pytest
from rows import each_row

from toolcrib import ALL, Catalog, Rejected, ToolCall, capability, hydrate, tool
from toolcrib.errors import CatalogError, DefinitionError, SchemaError
from toolcrib.schema import compile_validator
from toolcrib.tools import as_tools, tool_of
from toolcrib.values.json import JsonObject


@capability
class Clock(Protocol):
    def now(self) -> float: ...


class FixedClock:
    def now(self) -> float:
        return 5.0


@tool(visible=ALL)
def alpha(a: int) -> int:
    """First."""
    return a


@tool(visible=ALL)
async def beta(clock: Clock) -> float:
    """Second."""
    return clock.now()


@tool(visible=ALL)
class Gamma:
    """Third."""

    async def run(self) -> int:
        return 3


DICTIONARY: dict[str, Any] = {
    "name": "delta",
    "description": "Fourth.",
    "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
}
FORMS: list[Any] = [alpha, beta, Gamma, DICTIONARY]


def test_anything_that_is_a_tool_in_the_order_of_registration() -> None:
    catalog = Catalog(FORMS)
    assert catalog.names == ("alpha", "beta", "Gamma", "delta")
    assert len(catalog) == 4
    assert [t.get_definition().name for t in catalog] == list(catalog.names)
    assert Catalog(reversed(FORMS)).names == ("delta", "Gamma", "beta", "alpha")
    assert repr(catalog) == "Catalog(['alpha', 'beta', 'Gamma', 'delta'])"
    many = Catalog([renamed(f"tool_{number}") for number in range(300)])
    assert repr(many).endswith("'tool_9'], and 290 more)")
    assert "alpha" in catalog
    assert "Alpha" not in catalog
    assert 3 not in catalog


def test_what_was_registered_is_handed_back() -> None:
    things: list[Any] = list(Catalog(FORMS))
    assert things[:3] == [alpha, beta, Gamma]
    gamma: Any = Catalog(FORMS)["Gamma"]
    assert gamma is Gamma


def renamed(name: str) -> Any:
    return tool(visible=ALL, name=name)(alpha.__wrapped__)


@each_row(
    ("tools", "text"),
    [
        ([alpha, alpha], "two tools are called 'alpha': rename one, or use .prefixed()"),
        ([alpha, renamed("alpha")], "two tools are called 'alpha'"),
        ([alpha, Catalog([beta, alpha])], "two tools are called 'alpha'"),
        ([alpha, renamed("Alpha")], "'Alpha' and 'alpha' differ only in case"),
        ([renamed("getX"), renamed("getx")], "'getx' and 'getX' differ only in case"),
        ([renamed("get_x"), renamed("getX")], "'getX' and 'get_x' differ only in case and under"),
        ([renamed("a_10"), renamed("a_1O")], "'a_1O' and 'a_10' look alike"),
        ([alpha, Catalog([renamed("a1pha")])], "'a1pha' and 'alpha' look alike"),
        ([DICTIONARY, DICTIONARY], "two tools are called 'delta'"),
    ],
)
def test_names_that_are_taken(tools: list[Any], text: str) -> None:
    with pytest.raises(CatalogError, match=text):
        Catalog(tools)


@each_row(
    ("tools", "text"),
    [
        ([lambda: 1], "tool name '<lambda>'"),
        ([FixedClock], "FixedClock is no tool"),
        ([FixedClock()], "FixedClock is no tool"),
        ([3], "int is no tool"),
        (["alpha"], "str is no tool"),
        ([None], "NoneType is no tool"),
        (
            "alpha",
            r"a list or Catalog of them, not str; to load a file or a module, use discover\(",
        ),
        (3, "int is no tool"),
        ([{**DICTIONARY, "name": "no name"}], "tool name 'no name'"),
    ],
)
def test_what_is_no_tool(tools: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Catalog(tools)
    with pytest.raises(DefinitionError, match=text):
        as_tools(tools)


CATALOG = Catalog(FORMS)
METHODS: list[tuple[Callable[[Catalog], Catalog], tuple[str, ...]]] = [
    (lambda c: c.only("delta", "alpha"), ("alpha", "delta")),
    (lambda c: c.only(), ()),
    (lambda c: c.without("beta", "Gamma"), ("alpha", "delta")),
    (lambda c: c.without(), CATALOG.names),
    (lambda c: c.prefixed("x_"), ("x_alpha", "x_beta", "x_Gamma", "x_delta")),
    (lambda c: c.prefixed("x_").prefixed("y_").only("y_x_beta"), ("y_x_beta",)),
    (lambda c: c.only("alpha").with_tools(beta, Gamma), ("alpha", "beta", "Gamma")),
    (lambda c: c.only("alpha").with_tools(c.prefixed("x_")),
     ("alpha", "x_alpha", "x_beta", "x_Gamma", "x_delta")),
    (lambda c: Catalog([c.prefixed("a_"), c.only("beta").prefixed("b_")]),
     ("a_alpha", "a_beta", "a_Gamma", "a_delta", "b_beta")),
    (lambda c: c.where(lambda d: "F" in d.description), ("alpha", "delta")),
    (lambda c: c.where(lambda d: d.annotations.safe), CATALOG.names),
    (lambda c: c.where(lambda d: "mail" in d.tags), ()),
    (lambda c: c.validated_by(compile_validator), CATALOG.names),
    (lambda c: c.validated_by(compile_validator, lazy=True), CATALOG.names),
    (lambda c: c.demand_portable(), CATALOG.names),
    (lambda c: Catalog([c]), CATALOG.names),
    (Catalog, CATALOG.names),
    (lambda c: Catalog([c.only("beta"), alpha]), ("beta", "alpha")),
]  # fmt: skip


@each_row(("method", "names"), METHODS)
def test_each_method_gives_a_new_catalog(
    method: Callable[[Catalog], Catalog], names: tuple[str, ...]
) -> None:
    assert method(CATALOG).names == names
    assert CATALOG.names == ("alpha", "beta", "Gamma", "delta")


UNKNOWN: list[Callable[[Catalog], object]] = [
    lambda c: c.only("alpha", "omega"),
    lambda c: c.without("omega"),
    lambda c: c["omega"],
]


@pytest.mark.parametrize("use", UNKNOWN)
def test_names_that_are_missing(use: Callable[[Catalog], object]) -> None:
    text = "no tool 'omega' in this catalog; it has alpha, beta, Gamma, delta"
    with pytest.raises(CatalogError, match=text):
        use(CATALOG)
    with pytest.raises(CatalogError, match="it has nothing"):
        Catalog()["alpha"]
    assert CATALOG.by_name.get("omega") is None


def test_a_missing_name_in_a_large_catalog_shows_what_is_near() -> None:
    large = Catalog({**DICTIONARY, "name": f"tool_{chr(97 + n)}"} for n in range(25))
    with pytest.raises(CatalogError, match=r"it has .*tool_\w, 25 tools$"):
        large.only("tool_")
    with pytest.raises(CatalogError, match=r"no tool 'qqq' in this catalog; it has 25 tools$"):
        large.without("qqq")


def test_names_are_checked_again_when_they_change() -> None:
    one, other = Catalog([renamed("x1")]), Catalog([renamed("l")])
    assert Catalog([one, other]).names == ("x1", "l")
    with pytest.raises(CatalogError, match="'xl' and 'x1' look alike"):
        Catalog([one, other.prefixed("x")])


def test_a_definition_that_nobody_checked_is_checked_here() -> None:
    strange = msgspec.structs.replace(tool_of(alpha).definition, name="аlpha")
    with pytest.raises(DefinitionError, match="tool name"):
        Catalog([strange])


def test_a_source_is_kept_and_named() -> None:
    shop = Catalog([alpha, beta], source="the shop")
    assert [e.source for e in Catalog([shop, Gamma]).entries] == ["the shop", "the shop", ""]
    kept = shop.prefixed("x_").only("x_alpha").bind({}).where(lambda d: True)
    assert [e.source for e in kept.entries] == ["the shop"]
    with pytest.raises(CatalogError, match=r"\(from the mall and from the shop\)"):
        Catalog([shop, Catalog([alpha], source="the mall")])


def test_what_is_not_portable_is_named() -> None:
    choice = {"type": "object", "properties": {"x": {"oneOf": [{"type": "integer"}]}}}
    catalog = Catalog([alpha, {**DICTIONARY, "input_schema": choice}])
    with pytest.raises(DefinitionError, match="not portable: tool 'delta': oneOf at /properties/x"):
        catalog.demand_portable()
    schemaless = tool(visible=ALL, allow_no_schema=True, no_schema_mode="full")(anything)
    with pytest.raises(DefinitionError, match="tool 'anything': it has no schema"):
        Catalog([schemaless]).demand_portable()


def test_a_prefix_has_to_make_names() -> None:
    for prefix in ("a/", "x" * 130, "ä"):
        with pytest.raises(DefinitionError, match="tool name"):
            CATALOG.prefixed(prefix)


def test_a_prefixed_tool_is_another_definition_of_the_same_tool() -> None:
    (plain,) = Catalog([Gamma])
    (prefixed,) = Catalog([Gamma]).prefixed("x_")
    assert prefixed.get_definition().digest != plain.get_definition().digest
    assert prefixed.get_definition().input_schema == plain.get_definition().input_schema
    assert tool_of(Gamma).definition.name == "Gamma"
    result = hydrate(ToolCall("c", "x_Gamma", "{}"), Catalog([Gamma]).prefixed("x_"))
    assert isinstance(result.tool, Gamma)


def bindings(catalog: Catalog, name: str) -> dict[type, object]:
    entry = catalog.by_name.get(name)
    assert entry is not None
    return dict(entry.bindings)


def test_bindings_are_kept_by_every_method() -> None:
    clock = FixedClock()
    bound = Catalog(FORMS).bind({Clock: clock})
    for catalog in (
        bound.only("beta"),
        bound.without("alpha"),
        Catalog([bound, renamed("omega")]),
        bound.with_tools(renamed("omega")),
        Catalog([renamed("omega")]).with_tools(bound),
        Catalog(bound),
        bound.where(lambda d: True),
        bound.validated_by(compile_validator),
        Catalog([bound.prefixed("x_"), bound]),
    ):
        assert bindings(catalog, "beta") == {Clock: clock}
        catalog.check_bound()
    assert bindings(bound.prefixed("x_"), "x_beta") == {Clock: clock}


def test_it_cannot_be_changed_through_what_it_hands_out() -> None:
    with pytest.raises(AttributeError):
        CATALOG.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        CATALOG["alpha"] = alpha  # type: ignore[index]


def test_as_tools_takes_the_same_things() -> None:
    names = [t.get_definition().name for t in as_tools([alpha, CATALOG.only("beta"), DICTIONARY])]
    assert names == ["alpha", "beta", "delta"]
    assert as_tools(CATALOG) == tuple(CATALOG)
    assert as_tools(()) == ()


def echo(x: int) -> int:
    """Handle it."""
    return x


async def echo_later(x: int) -> int:
    return x


def anything(**arguments: Any) -> int:
    """Anything."""
    return len(arguments)


@pytest.mark.parametrize("handler", [echo, echo_later, anything])
async def test_definitions_with_a_handler_run(handler: Callable[..., Any]) -> None:
    catalog = Catalog.from_definitions([DICTIONARY], handlers={"delta": handler})
    result = hydrate(ToolCall("c", "delta", '{"x": 4.0}'), catalog)
    assert result.success
    assert await result.tool.run() in (4, 1)
    definition = catalog["delta"].get_definition()
    assert definition.to_dict()["description"] == "Fourth."
    assert definition.input_schema == DICTIONARY["input_schema"]
    assert definition.visible is None


def test_a_handler_may_take_a_type_of_the_calling_function() -> None:
    @dataclass
    class Delta:
        x: int

    def handle(x: Delta) -> int:
        return x.x

    form = {
        **DICTIONARY,
        "input_schema": {"type": "object", "properties": {"x": {}}, "required": ["x"]},
    }
    catalog = Catalog.from_definitions([form], handlers={"delta": handle})
    result = hydrate(ToolCall("c", "delta", '{"x": {"x": 4}}'), catalog)
    assert result.success
    assert result.tool.arguments == {"x": Delta(4)}


def test_definitions_without_a_handler_are_planned() -> None:
    catalog = Catalog.from_definitions([DICTIONARY, {**DICTIONARY, "name": "other"}], visible=ALL)
    assert catalog.names == ("delta", "other")
    entry = catalog.by_name.get("delta")
    assert entry is not None
    assert not entry.tool.runnable
    assert entry.tool.definition.visible is ALL
    result = hydrate(ToolCall("c", "delta", '{"x": 4}'), catalog)
    assert result.success
    assert result.tool is None
    assert isinstance(hydrate(ToolCall("c", "delta", '{"x": "4"}'), catalog), Rejected)
    with pytest.raises(
        DefinitionError, match="'delta' cannot be called: only its definition is known"
    ):
        entry.tool(x=4)


def test_a_handler_may_give_the_description_that_is_missing() -> None:
    form = {key: DICTIONARY[key] for key in ("name", "input_schema")}
    catalog = Catalog.from_definitions([form], handlers={"delta": echo})
    assert catalog["delta"].get_definition().description == "Handle it."
    assert Catalog.from_definitions([form])["delta"].get_definition().description == ""


def wants_more(x: int, y: int) -> int:
    return x + y


@each_row(
    ("definitions", "handlers", "error", "text"),
    [
        ([{**DICTIONARY, "parameters": {}}], {}, DefinitionError,
         "unknown key 'parameters'; known: name, description, input_schema, output_schema"),
        ([{**DICTIONARY, "handler": 1}], {}, DefinitionError, "unknown key 'handler'"),
        ([{"description": "x"}], {}, DefinitionError, "no name; it has description"),
        ([{"name": "delta"}], {}, DefinitionError, "tool 'delta' has no schema"),
        ([{"name": "delta"}], {"delta": echo}, DefinitionError, "tool 'delta' has no schema"),
        ([{**DICTIONARY, "input_schema": None}], {}, DefinitionError, "has no schema"),
        ([{**DICTIONARY, "input_schema": "x"}], {}, DefinitionError, "input_schema must be a dict"),
        ([{**DICTIONARY, "input_schema": {}}], {}, DefinitionError, "must be type 'object'"),
        ([{**DICTIONARY, "description": 3}], {}, DefinitionError, "description must be a str"),
        ([{**DICTIONARY, "output_schema": []}], {}, DefinitionError, "output_schema must be a dict"),
        ([{**DICTIONARY, "name": "a\n"}], {}, DefinitionError, "tool name"),
        ([{**DICTIONARY, "input_schema": {"type": "object", "$ref": "x"}}], {}, SchemaError, "fetched"),
        (["delta"], {}, DefinitionError, "str is no tool: give the function itself"),
        ("delta", {}, DefinitionError, "a list or Catalog of them, not str"),
        ([DICTIONARY, DICTIONARY], {}, CatalogError, "two tools are called 'delta'"),
        ([DICTIONARY], {"omega": echo}, CatalogError, "handlers for tools .* as dictionaries: omega"),
        ([DICTIONARY], {"delta": wants_more}, DefinitionError, "requires y, which input_schema"),
        ([DICTIONARY], {"delta": 3}, DefinitionError, "a function or a class, not of a int"),
    ],
)  # fmt: skip
def test_definitions_that_are_wrong(
    definitions: Any, handlers: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Catalog.from_definitions(definitions, handlers=handlers)


def test_what_is_visible_is_checked_against_each_output() -> None:
    form = {**DICTIONARY, "output_schema": {"type": "object", "properties": {"sum": {}}}}
    assert Catalog.from_definitions([form], visible=["sum"]).names == ("delta",)
    with pytest.raises(DefinitionError, match="visible has 'total', which no result has"):
        Catalog.from_definitions([form], visible=["total"])


def test_what_is_visible_may_be_said_of_each_by_its_name() -> None:
    forms = [{**DICTIONARY, "name": name} for name in ("sum", "mean", "mode")]
    catalog = Catalog.from_definitions(forms, visible={"sum": ALL, "mean": ["value"]})
    assert [catalog[name].get_definition().visible for name in catalog.names] == [
        ALL,
        ("value",),
        None,
    ]
    with pytest.raises(CatalogError, match=r"visible for tools .* as dictionaries: total"):
        Catalog.from_definitions(forms, visible={"total": ALL})


def test_a_definition_that_changes_afterwards_changes_nothing() -> None:
    form: Any = {**DICTIONARY, "input_schema": {"type": "object", "properties": {"x": {}}}}
    catalog = Catalog.from_definitions([form])
    form["input_schema"]["properties"]["x"]["type"] = "string"
    form["input_schema"]["required"] = ["x", "y"]
    assert hydrate(ToolCall("c", "delta", '{"x": 4}'), catalog).success
    assert catalog["delta"].get_definition().input_schema == {
        "type": "object",
        "properties": {"x": {}},
    }


def test_what_is_mistyped_is_told_with_what_was_likely_meant() -> None:
    form = {"name": "price_of", "description": "Price.", "input_schema": {"type": "object"}}
    with pytest.raises(CatalogError, match=r"price_off \(did you mean 'price_of'\?\)"):
        Catalog.from_definitions([form], handlers={"price_off": print})

    async def total() -> dict[str, int]:
        """Sum up."""
        return {"total": 1}

    schema: JsonObject = {"type": "object", "properties": {"total": {"type": "integer"}}}
    schema["additionalProperties"] = False
    with pytest.raises(DefinitionError, match=r"'totl', which no result has \(did you mean 'total"):
        tool(visible=["totl"], output_schema=schema)(total)
