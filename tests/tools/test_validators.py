"""Validators of a tool: eager, lazy and of another library; and what the provenance says of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Caller,
    Catalog,
    Failed,
    Hydrated,
    Rejected,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.errors import DefinitionError, ErrorCode, SchemaError, Stage
from toolcrib.schema import LazyValidator, Validator, Violation
from toolcrib.tools import tool_of
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonObject

SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TYPES = {"integer": int, "string": str, "object": dict}


class Small:
    """A validator of another make: top-level types and required properties, and no more."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema: Any = schema
        self.info = ValidatorInfo("small", "0.7", time.time())

    def is_valid(self, value: object, /) -> bool:
        return not self.violations(value)

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        if not isinstance(value, TYPES[self.schema["type"]]):
            return (Violation("", "type", f"expected {self.schema['type']}"),)
        if not isinstance(value, dict):
            return ()
        missing = [n for n in self.schema.get("required", ()) if n not in value]
        wrong = [
            name
            for name, node in self.schema.get("properties", {}).items()
            if name in value and not isinstance(value[name], TYPES[node["type"]])
        ]
        return tuple(Violation(f"/{name}", "small", "small says no") for name in missing + wrong)


@tool(visible=ALL)
def look(a: int) -> str:
    """Look."""
    return str(a)


@tool(visible=ALL, lazy=True)
def lazy_look(a: int) -> str:
    """Lazy look."""
    return str(a)


@tool(visible=ALL, lazy=True)
class LazyLook:
    """Lazy look."""

    def __init__(self, a: int) -> None:
        self.a = a

    async def run(self) -> str:
        return str(self.a)


def called(thing: Any, arguments: str) -> Hydrated | Rejected:
    name = tool_of(thing).definition.name
    return hydrate(ToolCall("c", name, arguments, provider_id="p"), Catalog([thing]))


def test_the_default_is_eager_and_says_what_it_is() -> None:
    before = time.time()
    made = tool(visible=ALL)(look.__wrapped__)
    after = time.time()
    for arguments in ('{"a":1}', '{"a":"x"}'):
        info = called(made, arguments).provenance.validator
        assert info is not None
        assert info.name == "jsonschema-rs"
        assert info.version[0].isdigit()
        assert before <= info.compiled_at <= after


def test_tools_whose_results_are_described_alike_share_a_validator() -> None:
    def one(a: int) -> dict[str, int]:
        return {}

    def two(b: str) -> dict[str, int]:
        return {}

    def third(a: int) -> dict[str, str]:
        return {}

    def fourth(a: int) -> dict[str, int]:
        return {}

    fourth.__doc__ = "Count.\n\nReturns:\n    " + "How many of each. " * 20
    made = [
        tool_of(tool(visible=ALL, description="It runs.")(f))
        for f in (one, two, third, fourth, fourth)
    ]
    outputs = [each.output_validator for each in made]
    assert outputs[0] is outputs[1]
    assert len({id(output) for output in outputs}) == 4  # a long text is not kept
    assert len({id(each.validator) for each in made}) == 5  # nor one of arguments
    for each, fits in zip(made, (True, True, False, True, True), strict=True):
        assert each.output_validator is not None
        assert each.output_validator.is_valid({"a": 1}) is fits
        assert each.output_validator.is_valid({"a": "x"}) is not fits


@pytest.mark.parametrize("thing", [lazy_look, LazyLook])
def test_a_lazy_tool_is_compiled_by_its_first_call(thing: Any) -> None:
    compiled = list[object]()

    def counted(schema: Any) -> Small:
        compiled.append(schema)
        return Small(schema)

    made = tool_of(thing).validated_by(counted, lazy=True)
    validator = made.validator
    assert isinstance(tool_of(thing).validator, LazyValidator)
    assert isinstance(validator, LazyValidator)
    assert compiled == []
    first = called(made, '{"a":1}')
    assert len(compiled) == 1
    assert isinstance(first, Hydrated)
    assert first.provenance.validator == validator.info
    assert validator.info.name == "small"
    assert called(made, '{"a":2}').provenance.validator == validator.info


def test_lazy_or_not_a_tool_is_the_same() -> None:
    eager = tool(visible=ALL, name="lazy_look")(lazy_look.__wrapped__)
    assert eager.definition == lazy_look.definition
    assert [e.message for e in called(eager, '{"a":"x"}').errors] == [
        e.message for e in called(lazy_look, '{"a":"x"}').errors
    ]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_validator_of_another_make(lazy: bool) -> None:
    other = look.validated_by(Small, lazy=lazy)
    assert other.definition is look.definition
    assert other(3) == "3"
    good, bad = called(other, '{"a":1}'), called(other, '{"a":"x"}')
    assert isinstance(good, Hydrated)
    assert good.provenance.validated
    assert good.provenance.validator is not None
    assert (good.provenance.validator.name, good.provenance.validator.version) == ("small", "0.7")
    assert isinstance(bad, Rejected)
    assert [(e.code, e.path, e.message) for e in bad.errors] == [
        (ErrorCode.INVALID_ARGUMENTS, "/a", "small says no")
    ]
    assert other.output_validator is not None
    assert other.output_validator.info.name == "small"
    original = called(look, '{"a":1}').provenance.validator
    assert original is not None
    assert original.name == "jsonschema-rs"


def test_a_class_tool_keeps_its_class() -> None:
    result = called(tool_of(LazyLook).validated_by(Small), '{"a":1}')
    assert isinstance(result, Hydrated)
    assert type(result.tool) is LazyLook
    assert tool_of(LazyLook).registered is LazyLook  # type: ignore[comparison-overlap]


def test_dictionaries_take_them_too() -> None:
    given = {"name": "x", "description": "", "input_schema": SCHEMA}
    made = tool_from_dict(given, {}, (), factory=Small)
    assert made.validator is not None
    assert made.validator.info.name == "small"
    lazy = tool_from_dict(given, {"x": look.__wrapped__}, ALL, factory=Small, lazy=True)
    assert isinstance(lazy.validator, LazyValidator)
    assert lazy.validator.info.name == "small"


def unwilling(_schema: JsonObject) -> Validator:
    raise ValueError("CANARY")


def test_a_factory_that_fails_now() -> None:
    with pytest.raises(SchemaError, match="tool 'look', input_schema: no validator can be made"):
        look.validated_by(unwilling)


def test_a_factory_that_fails_later_is_told_to_the_author_and_not_as_the_models_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[BaseException] = []
    made = look.validated_by(unwilling, lazy=True)
    sent = ToolCall("c", "look", '{"a":1}')
    result = hydrate(sent, [made], on_exception=lambda _, raised: told.append(raised))
    assert isinstance(result, Rejected)
    assert [(e.stage, e.code) for e in result.errors] == [(Stage.VALIDATE, ErrorCode.UNUSABLE_TOOL)]
    assert [type(raised) for raised in told] == [SchemaError]
    said = "tool 'look', its validator, failed: no validator can be made (ValueError)"
    assert said in caplog.text
    assert "CANARY" not in caplog.text
    assert not result.provenance.validated
    assert result.provenance.validator == ValidatorInfo("unusable", "", 0.0)


class Broken(Small):
    """One that breaks its word, in one of many ways."""

    how = ""

    def is_valid(self, value: object, /) -> bool:
        if self.how == "raises":
            raise RecursionError("CANARY")
        if self.how in {"not a bool", "no answer"}:
            return "CANARY" if self.how == "not a bool" else None  # type: ignore[return-value]
        return False

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        if self.how == "no tuples":
            return (("CANARY",),)  # type: ignore[return-value]
        if self.how == "endless":
            return (Violation("/a", "small", "small says no"),) * 1000
        raise ValueError("CANARY")


@each_row("lazy", [False, True])
@each_row(
    ("how", "kind"),
    [
        ("raises", RecursionError),
        ("not a bool", TypeError),
        ("no answer", TypeError),
        ("no tuples", ValueError),
        ("no violations", ValueError),
    ],
)
async def test_a_validator_that_breaks_its_word_lets_nothing_run_and_accuses_no_model(
    lazy: bool, how: str, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []
    factory = type(how, (Broken,), {"how": how})
    made = tool(visible=ALL)(look.__wrapped__).validated_by(factory, lazy=lazy)
    result = called(made, '{"a":1}')
    assert isinstance(result, Rejected)
    assert [e.code for e in result.errors] == [ErrorCode.UNUSABLE_TOOL]
    assert result.provenance.validator is not None
    assert result.provenance.validator.name == "small"
    runner = ToolRunner([made], on_exception=lambda _, raised: told.append(raised))
    ended = await runner.exec(result.call, caller=Caller("ada"))
    assert isinstance(ended, Failed)
    assert (ended.error.code, ended.record.validated) == (ErrorCode.UNUSABLE_TOOL, False)
    assert not ended.error.retryable
    assert [type(raised) for raised in told] == [kind]
    assert "tool 'look', its validator, raised" in caplog.text
    assert "CANARY" not in repr((result.errors, ended)) + caplog.text


@each_row("lazy", [False, True])
def test_the_violations_of_a_validator_are_cut(lazy: bool) -> None:
    factory = type("endless", (Broken,), {"how": "endless"})
    result = called(look.validated_by(factory, lazy=lazy), '{"a":1}')
    told = [(e.code, e.message) for e in result.errors]
    assert told == [(ErrorCode.INVALID_ARGUMENTS, "small says no")] * 20


@each_row("how", ["raises", "no answer", "no tuples"])
async def test_a_validator_of_results_that_fails_is_told_to_the_author(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    class OfResults(Small):
        def is_valid(self, value: object, /) -> bool:
            if self.schema["type"] == "object":
                return True
            broken: Validator = type(how, (Broken,), {"how": how})(self.schema)
            return broken.is_valid(value)

        def violations(self, value: object, /) -> tuple[Violation, ...]:
            raise ValueError("CANARY")

    told: list[BaseException] = []
    made = look.validated_by(OfResults)
    runner = ToolRunner([made], on_exception=lambda _, raised: told.append(raised))
    ended = await runner.exec(ToolCall("c", "look", '{"a":1}'))
    assert isinstance(ended, Failed)
    assert ended.error.code is ErrorCode.INVALID_OUTPUT
    assert [raised.__cause__ is not None for raised in told] == [True]
    assert "the result validator of tool 'look' raised" in caplog.text
    assert "CANARY" not in repr(ended) + caplog.text


def test_a_validator_that_fails_on_an_example_is_found_when_the_tool_is_registered() -> None:
    def broken(schema: JsonObject) -> Validator:
        made: Validator = type("raises", (Broken,), {"how": "raises"})(schema)
        return made

    for factory in (broken, unwilling):
        given = {"name": "x", "input_schema": SCHEMA, "input_examples": [{"a": 1}]}
        with pytest.raises(
            DefinitionError, match=r"no validator can be made|failed on the example"
        ):
            tool_from_dict(given, {}, (), factory=factory, lazy=True)


def test_one_that_does_not_say_what_it_is_is_refused() -> None:
    class Nameless:
        def __init__(self, _schema: JsonObject) -> None: ...

    with pytest.raises(SchemaError, match=r"no validator can be made \(AttributeError\)"):
        look.validated_by(Nameless)  # type: ignore[arg-type]


@each_row("lazy", [False, True])
@each_row("factory", [None, Small])
@each_row(
    ("schema", "text"),
    [
        ({"$ref": "http://127.0.0.1:9/x"}, "nothing is fetched"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "never end"),
        ({"properties": []}, "not a usable schema"),
        ({"properties": {"a": {"type": "x"}}}, "not a usable schema"),
    ],
)
def test_nothing_dangerous_is_registered(lazy: bool, factory: Any, schema: Any, text: str) -> None:
    given = {"name": "x", "input_schema": {"type": "object", **schema}}
    with pytest.raises(DefinitionError, match=text):
        tool_from_dict(given, {}, (), factory=factory, lazy=lazy)


def test_examples_are_checked_although_it_is_lazy() -> None:
    with pytest.raises(DefinitionError, match="does not fit input_schema"):
        tool(visible=ALL, lazy=True, examples=[("q", {"a": "x"})])(look.__wrapped__)
