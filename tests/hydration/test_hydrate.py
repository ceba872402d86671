"""From a call to what may run: each failure by its own name, and no value in any message."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Protocol

import msgspec
import pytest
from named import named
from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic_core import SchemaError as CoreSchemaError
from rows import each_row

from toolcrib import (
    ALL,
    CallContext,
    Catalog,
    ErrorCode,
    Hydrated,
    HydrationResult,
    Offer,
    Rejected,
    ToolCall,
    ToolError,
    capability,
    hydrate,
    tool,
)
from toolcrib.errors import SchemaError, Stage
from toolcrib.hydration import OtherArguments, ParseFailure, instance_of, parse_arguments
from toolcrib.values.call import CallFault, HydrationError, Provenance

CANARY = "CANARY_c4e1"
RAN: list[str] = []


class Size(Enum):
    S = "s"
    L = "l"


@dataclass
class Point:
    x: int
    y: float = 0.0


def no_fools(value: str) -> str:
    if value == CANARY:
        raise ValueError(f"{value} is a fool")
    if value == "crash":
        raise RuntimeError(f"{CANARY} in a crash")
    if value == "panic":  # what a library in Rust raises is no Exception
        raise BaseException(f"{CANARY} in a panic")  # noqa: TRY002  it is none of ours
    return value


def even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{CANARY} {value}")
    return value


@capability
class Clock(Protocol):
    def now(self) -> float: ...


@tool(visible=ALL)
def search(
    query: Annotated[str, AfterValidator(no_fools)],
    limit: Annotated[int, Field(ge=1, le=9)] = 3,
    size: Size | None = None,
    points: list[Point] | None = None,
    labels: dict[str, int] | None = None,
) -> int:
    """Search."""
    RAN.append(query)
    return 1


@tool(visible=ALL)
async def numbers(
    whole: int, real: float, clock: Clock, ctx: CallContext, either: int | str = 0
) -> None:
    """Take numbers."""
    RAN.append("numbers")


@tool(visible=ALL)
@dataclass(frozen=True)
class Guarded:
    """Refuse in the constructor."""

    name: str
    when: date | None = None

    def __post_init__(self) -> None:
        if self.name != "fine":
            raise LookupError(f"{CANARY}: {self.name}")

    async def run(self) -> None:
        RAN.append("Guarded")


class Period(BaseModel):
    first: int
    last: int

    @model_validator(mode="after")
    def ordered(self) -> Period:
        if self.first > self.last:
            raise ValueError(f"{CANARY} {self.first}")
        return self


@tool(visible=ALL)
class Plan:
    """Take a period."""

    def __init__(self, period: Period) -> None:
        self.period = period

    async def run(self) -> None:
        RAN.append("Plan")


@tool(visible=ALL)
class Rereads:
    """Refuse with what pydantic says of something else."""

    def __init__(self, n: int) -> None:
        Period.model_validate({"first": 5, "last": n})

    async def run(self) -> None:
        RAN.append("Rereads")


GIVEN: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {}, "secret_label": {}},
    "required": ["n"],
    "additionalProperties": True,
}


@tool(visible=ALL, input_schema=GIVEN)
def loose(n: int, secret_label: str = "") -> None:
    """Have a schema that lets more through than the signature."""


@tool(visible=ALL)
class Span(BaseModel):
    """Refuse as a pydantic model does."""

    first: int
    last: Annotated[int, AfterValidator(even)]

    @model_validator(mode="after")
    def ordered(self) -> Span:
        if self.first > self.last:
            raise ValueError(f"{CANARY} {self.first}")
        return self

    async def run(self) -> None:
        RAN.append("Span")


@tool(
    visible=ALL,
    input_schema={"type": "object", "properties": {"pair": {}}, "required": ["pair"]},
)
def paired(pair: tuple[int, int]) -> None:
    """Have a schema that lets a pair of one item through."""


@tool(visible=ALL)
def grown(n: Annotated[int, Field(le=9), AfterValidator(lambda n: n * 10)]) -> None:
    """Make of what fits the schema what does not."""


@tool(visible=ALL, input_schema=GIVEN)
def open_handed(n: int, **more: Any) -> None:
    """Take anything."""


@tool(visible=ALL, allow_no_schema=True, no_schema_mode="human-approval")
def unchecked(**anything: Any) -> None:
    """Have no schema."""


CATALOG = Catalog(
    [search, numbers, Guarded, Plan, Span, Rereads, paired, grown, loose, open_handed, unchecked]
)


def call(name: str, arguments: str | dict[str, Any], *, complete: bool = True) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call_1", name, text, provider_id="provider_1", complete=complete)


def check(name: str, arguments: str | dict[str, Any]) -> HydrationResult:
    return hydrate(call(name, arguments), CATALOG)


HYDRATED: list[tuple[str, Any, dict[str, Any]]] = [
    ("search", {"query": "x"}, {"query": "x"}),
    ("search", {"query": "x", "limit": 3.0, "size": "l"}, {"query": "x", "limit": 3, "size": Size.L}),
    ("search", {"query": "x", "points": [{"x": 1.0}, {"x": 2, "y": 3}]},
     {"query": "x", "points": [Point(1), Point(2, 3.0)]}),
    ("search", {"query": "x", "size": None, "labels": {"any": 1}},
     {"query": "x", "size": None, "labels": {"any": 1}}),
    ("numbers", {"whole": 3.0, "real": 3}, {"whole": 3, "real": 3.0}),
    ("numbers", {"whole": 2**70, "real": 2**70}, {"whole": 2**70, "real": float(2**70)}),
    ("numbers", {"whole": -(10**39), "real": 1e300, "either": "7"},
     {"whole": -(10**39), "real": 1e300, "either": "7"}),
    ("loose", {"n": 4.0}, {"n": 4}),
    ("open_handed", {"n": 4, "other": [CANARY]}, {"n": 4, "other": [CANARY]}),
    ("unchecked", {"what": "ever"}, {"what": "ever"}),
    ("unchecked", "", {}),
]  # fmt: skip


# What the signatures say for what is not sent.
DEFAULTS: dict[str, dict[str, Any]] = {
    "search": {"limit": 3, "size": None, "points": None, "labels": None},
    "numbers": {"either": 0},
    "loose": {"secret_label": ""},
}


@each_row(("name", "arguments", "typed"), HYDRATED)
def test_calls_that_may_run(name: str, arguments: Any, typed: dict[str, Any]) -> None:
    result = check(name, arguments)
    assert isinstance(result, Hydrated), result.errors
    got = {**DEFAULTS.get(name, {}), **typed}
    assert dict(result.tool.arguments) == got
    assert {n: type(v) for n, v in result.tool.arguments.items()} == {
        n: type(v) for n, v in got.items()
    }
    assert result.building.sent == (arguments or {})
    assert result.arguments.keys() == got.keys()
    assert {f"/{n}" for n in got.keys() - typed.keys()} <= set(result.defaults)
    assert result.definition.name == name


def test_nothing_runs() -> None:
    RAN.clear()
    for name, arguments, _ in HYDRATED:
        check(name, arguments)
    assert check("Guarded", {"name": "fine", "when": "2024-02-29"}).success
    assert check("Plan", {"first": 1, "last": 2}).success
    assert RAN == []


def test_the_instance_of_a_class() -> None:
    result = check("Guarded", {"name": "fine", "when": "2024-02-29"})
    assert result.tool == Guarded("fine", date(2024, 2, 29))
    assert check("Plan", {"first": 1, "last": 2}).tool.period == Period(first=1, last=2)  # type: ignore[union-attr]


def test_a_cut_call_is_truncated_whatever_it_holds() -> None:
    for name, arguments in [("search", '{"query": "x"}'), ("search", '{"que'), ("nobody", "{}")]:
        result = hydrate(call(name, arguments, complete=False), CATALOG)
        assert isinstance(result, Rejected)
        assert [(e.stage, e.code) for e in result.errors] == [(Stage.PARSE, ErrorCode.TRUNCATED)]
        assert result.provenance.parsed is None


OFFER = Offer.of([search], known=["search", "numbers"])


@each_row(
    ("name", "where", "code"),
    [
        ("nobody", CATALOG, ErrorCode.UNKNOWN_TOOL),
        ("Search", CATALOG, ErrorCode.UNKNOWN_TOOL),
        ("search ", CATALOG, ErrorCode.UNKNOWN_TOOL),
        ("", CATALOG, ErrorCode.UNKNOWN_TOOL),
        (CANARY * 1000, CATALOG, ErrorCode.UNKNOWN_TOOL),
        ("nobody", OFFER, ErrorCode.UNKNOWN_TOOL),
        ("numbers", OFFER, ErrorCode.NOT_OFFERED),
        ("search", Offer(), ErrorCode.UNKNOWN_TOOL),
    ],
)
def test_names(name: str, where: Offer | Catalog, code: ErrorCode) -> None:
    result = hydrate(call(name, {"query": CANARY}), where)
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.stage, error.code, error.message) == (Stage.RESOLVE, code, code.info.text)
    assert result.definition is None


def test_what_was_offered_is_found_in_the_offer() -> None:
    assert hydrate(call("search", {"query": "x"}), OFFER).success


@each_row(
    ("text", "code"),
    [
        ("{", ErrorCode.INVALID_JSON),
        (f'{{"query": {CANARY}}}', ErrorCode.INVALID_JSON),
        (f'{{"{CANARY}": 1, "{CANARY}": 2}}', ErrorCode.INVALID_JSON),
        ('{"limit": NaN}', ErrorCode.INVALID_JSON),
        ('{"limit": 1e400}', ErrorCode.INVALID_JSON),
        ('{"query": "\\ud800"}', ErrorCode.INVALID_JSON),
        ('{"query": "\ud800"}', ErrorCode.INVALID_JSON),
        (f'["{CANARY}"]', ErrorCode.INVALID_JSON),
        ("[" * 100_000, ErrorCode.TOO_LARGE),
        (f'{{"limit": {"9" * 41}}}', ErrorCode.TOO_LARGE),
        ('{"query": "' + CANARY * 1_000_000 + '"}', ErrorCode.TOO_LARGE),
    ],
    ids=named,
)
def test_text_that_cannot_be_read(text: str, code: ErrorCode) -> None:
    result = check("search", text)
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.stage, error.code, error.path) == (Stage.PARSE, code, "")
    assert parse_arguments(text) == ParseFailure(code, error.message)
    assert CANARY not in error.message
    assert result.provenance.arguments == text
    assert result.provenance.parsed is None
    assert result.definition is search.get_definition()


REJECTED: list[tuple[str, Any, list[tuple[str, str]]]] = [
    ("search", {}, [("", "the required property 'query' is missing")]),
    ("search", {"query": [CANARY]}, [("/query", "expected string, got array")]),
    ("search", {"query": "x", "limit": "seventy"}, [("/limit", "expected integer, got string")]),
    ("search", {"query": "x", "limit": 1.5}, [("/limit", "expected integer, got number")]),
    ("search", {"query": "x", "limit": True}, [("/limit", "expected integer, got boolean")]),
    ("search", {"query": "x", "limit": 10}, [("/limit", "expected at most 9")]),
    ("search", {"query": "x", CANARY: CANARY}, [("/*", "there is a property that is not declared")]),
    ("search", {"query": "x", "size": CANARY}, [("/size", "expected one of: s, l")]),
    ("search", {"query": "x", "size": [CANARY]}, [("/size", "expected string or null, got array")]),
    ("search", {"query": "x", "points": [{"x": 1}, {CANARY: 1}]},
     [("/points/1", "the required property 'x' is missing"),
      ("/points/1/*", "there is a property that is not declared")]),
    ("search", {"query": "x", "labels": {CANARY: CANARY}},
     [("/labels/*", "expected integer, got string")]),
    ("numbers", {"whole": CANARY, "real": None},
     [("/whole", "expected integer, got string"), ("/real", "expected number, got null")]),
    ("numbers", {"whole": 1, "real": 1, "clock": CANARY},
     [("/*", "there is a property that is not declared")]),
    ("numbers", {"whole": 1, "real": 1, "ctx": {}},
     [("/*", "there is a property that is not declared")]),
    ("Plan", {"first": CANARY, "last": 1}, [("/first", "expected integer, got string")]),
    ("Plan", {"first": 1, "last": 1, CANARY: 1}, [("/*", "there is a property that is not declared")]),
]  # fmt: skip


@each_row(("name", "arguments", "errors"), REJECTED)
def test_arguments_that_do_not_fit_the_schema(
    name: str, arguments: Any, errors: list[tuple[str, str]]
) -> None:
    result = check(name, arguments)
    assert isinstance(result, Rejected)
    assert sorted((e.path, e.message) for e in result.errors) == sorted(errors)
    assert {(e.stage, e.code) for e in result.errors} == {
        (Stage.VALIDATE, ErrorCode.INVALID_ARGUMENTS)
    }
    assert CANARY not in repr(result.errors)


def test_undeclared_keys_are_shown_as_stars() -> None:
    def look(table: dict[str, dict[str, int]]) -> None:
        """Look."""

    catalog = Catalog([tool(visible=ALL)(look)])
    bad = {"table": {CANARY: {f"{CANARY}/~": "x"}, "table": {"table": CANARY}}}
    result = hydrate(call("look", bad), catalog)
    assert {e.path for e in result.errors} == {"/table/*/*", "/table/table/table"}
    assert CANARY not in repr(result.errors)


INSTANTIATE: list[tuple[str, Any, str, str]] = [
    ("search", {"query": CANARY}, "/query", "this value is not accepted (value_error)"),
    ("Plan", {"first": 2, "last": 1}, "", "this value is not accepted (value_error)"),
    ("Span", {"first": 2, "last": 3}, "/last", "this value is not accepted (value_error)"),
    ("Span", {"first": 4, "last": 2}, "", "this value is not accepted (value_error)"),
    ("Rereads", {"n": 4}, "", "this value is not accepted (value_error)"),
    ("paired", {"pair": [1]}, "/pair", "this value is not accepted (missing)"),
    ("grown", {"n": 5}, "/n",
     "the tool's own validator turns this value into one that does not fit the tool's schema"),
    ("loose", {"n": CANARY}, "/n", "this value is not accepted"),
    ("loose", {"n": 1.5}, "/n", "expected integer, got number"),
    ("loose", {"n": None}, "/n", "this value is not accepted"),
    ("loose", {"n": 1, CANARY: CANARY}, "/*", "the tool does not take this property"),
]  # fmt: skip


@each_row(("name", "arguments", "path", "message"), INSTANTIATE)
def test_what_only_the_authors_code_can_judge(
    name: str, arguments: Any, path: str, message: str
) -> None:
    result = check(name, arguments)
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.stage, error.code) == (Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS)
    assert (error.path, error.message) == (path, message)
    assert CANARY not in repr(result.errors)
    assert (result.call.name, result.definition and result.definition.name) == (name, name)
    assert not result.provenance.validated


@each_row(
    ("name", "arguments", "kind"),
    [
        ("search", {"query": "crash"}, RuntimeError),
        ("search", {"query": "panic"}, BaseException),
        ("Guarded", {"name": CANARY}, LookupError),
    ],
)
def test_what_the_authors_code_raises_the_author_sees_and_no_model_is_accused(
    name: str, arguments: Any, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[ToolCall, BaseException]] = []
    sent = call(name, arguments)
    result = hydrate(sent, CATALOG, on_exception=lambda *told: seen.append(told))
    assert [(one, type(raised)) for one, raised in seen] == [(sent, kind)]
    assert f"tool '{name}', when it was given its arguments," in caplog.text
    (error,) = result.errors
    code = ErrorCode.UNUSABLE_TOOL
    assert error == HydrationError(Stage.INSTANTIATE, code, code.info.text)
    assert CANARY not in caplog.text + repr(result.errors)


@each_row("retryable", [None, True, False])
def test_an_error_that_an_author_words_is_no_exception_and_says_whether_to_retry(
    retryable: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(visible=ALL)
    class Refusing(BaseModel):
        """Refuse whatever comes."""

        n: int

        def model_post_init(self, _context: object) -> None:
            raise ToolError("not today", retryable=retryable)

        async def run(self) -> None:
            """Never run."""

    hooked: list[object] = []
    sent = call("Refusing", {"n": 1})
    result = hydrate(sent, [Refusing], on_exception=lambda *told: hooked.append(told))
    assert isinstance(result, Rejected)
    assert result.retryable is retryable
    (error,) = result.errors
    assert (error.stage, error.code) == (Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS)
    assert (hooked, caplog.text) == ([], "")


def test_a_pointer_leads_to_the_value_and_not_to_pydantics_own_steps() -> None:
    def look(
        either: int | list[Annotated[str, AfterValidator(no_fools)]],
        table: dict[Annotated[str, AfterValidator(no_fools)], str],
    ) -> None:
        """Look."""

    catalog = Catalog([tool(visible=ALL)(look)])
    result = hydrate(call("look", {"either": ["a", CANARY], "table": {}}), catalog)
    assert [e.path for e in result.errors] == ["/either/1"]
    result = hydrate(call("look", {"either": 1, "table": {CANARY: "x"}}), catalog)
    assert [e.path for e in result.errors] == ["/table/*"]


def test_an_integer_beyond_the_floats() -> None:
    schema: Any = {"type": "object", "properties": {"x": {}}, "required": ["x"]}

    def look(x: float) -> None:
        """Look."""

    catalog = Catalog([tool(visible=ALL, input_schema=schema)(look)])
    entry = catalog.by_name.get("look")
    assert entry is not None
    result = hydrate(call("look", f'{{"x": {10**39}}}'), catalog)
    assert isinstance(result, Hydrated)
    assert result.canonical == b'{"x":1e+39}'  # what the tool gets, to the last digit
    with pytest.raises(Exception, match="not accepted"):
        entry.tool.make({"x": 10**400})


def test_how_it_came_about_is_told_in_both_outcomes() -> None:
    text = ' {"query" : "x"} '
    good = check("search", text).provenance
    assert (good.provider_id, good.arguments, good.parsed) == ("provider_1", text, {"query": "x"})
    assert good.validated
    assert not good.repaired
    bad = check("search", '{"query": 3}').provenance
    assert (bad.provider_id, bad.parsed, bad.validated) == ("provider_1", {"query": 3}, False)
    for provenance in (good, bad):
        assert 0 < provenance.seconds < 60
        assert provenance.validator is not None
        assert provenance.validator.name == "jsonschema-rs"
        assert provenance.validator.version
        assert provenance.validator.compiled_at > 1e9
    for result in (check("search", "{"), check("nobody", "{}")):
        assert result.provenance.provider_id == "provider_1"
        assert 0 < result.provenance.seconds < 60
        assert not result.provenance.validated


@each_row(
    ("text", "notes"),
    [
        ('{"what":1}', ()),
        ("{'what':1}", ("single_quotes",)),
        ("null", ("empty_arguments",)),
        ("", ("empty_arguments",)),
        (json.dumps('{"what":1}'), ("double_encoded",)),
    ],
)
def test_liberties_are_noted(text: str, notes: tuple[str, ...]) -> None:
    assert check("unchecked", text).provenance.notes == notes


@each_row("name", ["unchecked", "search", "nobody"])
@each_row("text", ["{}", "{", "[]"])
@each_row("complete", [True, False])
def test_what_the_decoder_noted_is_kept(name: str, text: str, complete: bool) -> None:
    call = ToolCall("1", name, text, complete=complete, notes=("written_in_text",))
    assert hydrate(call, CATALOG).provenance.notes == ("written_in_text",)


def test_a_tool_without_a_schema_is_not_validated_and_says_so() -> None:
    result = check("unchecked", {"a": 1})
    assert result.success
    assert result.provenance == msgspec.structs.replace(
        Provenance("provider_1", '{"a": 1}', b'{"a": 1}'),
        seconds=result.provenance.seconds,
        no_schema_mode="human-approval",
    )


def test_a_tool_that_has_neither_schema_nor_leave_fails_closed() -> None:
    (entry,) = [CATALOG.by_name.get("unchecked")]
    assert entry is not None
    definition = msgspec.structs.replace(entry.tool.definition, no_schema_mode=None)
    result = hydrate(call("unchecked", {"a": 1}), Catalog([definition]))
    assert isinstance(result, Rejected)
    assert [(e.stage, e.code) for e in result.errors] == [(Stage.VALIDATE, ErrorCode.NO_SCHEMA)]


def test_the_same_call_gives_instances_of_its_own() -> None:
    one, other = check("search", {"query": "x"}), check("search", {"query": "x"})
    assert one.tool is not other.tool
    assert isinstance(one, Hydrated)
    one.arguments["query"] = "changed"
    assert other.provenance.parsed == {"query": "x"}


def counted(value: int) -> int:
    RAN.append("counted")
    return value + len(RAN)


@tool(visible=ALL)
def takes_turns(turn: Annotated[int, AfterValidator(counted)]) -> None:
    """Read another value of the same arguments each time."""


def turns_taken() -> Hydrated:
    RAN.clear()
    result = hydrate(call("takes_turns", {"turn": 1}), [takes_turns])
    assert isinstance(result, Hydrated)
    return result


def test_what_was_built_when_the_call_was_hydrated_is_what_runs_and_once() -> None:
    result = turns_taken()
    assert result.arguments == {"turn": 2}
    assert [result.tool.arguments["turn"] for _ in range(2)] == [2, 2]  # copies of it
    assert instance_of(result, takes_turns).arguments["turn"] == 2
    with pytest.raises(OtherArguments, match="a different value from these arguments each time"):
        instance_of(result, takes_turns)
    with pytest.raises(OtherArguments, match="a different value from these arguments each time"):
        _ = result.tool


def test_a_steady_call_is_built_anew_for_whoever_runs_it_again() -> None:
    result = check("search", {"query": "x"})
    assert isinstance(result, Hydrated)
    one, other = instance_of(result, search), instance_of(result, search)
    assert one is not other
    assert one.arguments == other.arguments == result.tool.arguments


def test_a_tool_that_was_registered_since_is_the_one_that_builds() -> None:
    """What the earlier one built is not run in its place, nor what reads other arguments."""

    def tool_of(step: int) -> Any:
        def count(number: int, by: int = step) -> int:
            """Count."""
            return number + by

        return tool(visible=ALL)(count)

    earlier, same, other = tool_of(1), tool_of(1), tool_of(2)
    result = hydrate(call("count", {"number": 1}), [earlier])
    assert isinstance(result, Hydrated)
    before = result.building
    assert instance_of(result, same).function is not before.another().function
    with pytest.raises(OtherArguments):
        instance_of(result, other)


def test_what_can_be_neither_built_again_nor_copied_is_seen_by_nobody() -> None:
    @tool(visible=ALL)
    def once(
        turn: Annotated[int, AfterValidator(counted)],
        items: Annotated[list[int], AfterValidator(lambda items: (item for item in items))],
    ) -> None:
        """Take what can be used once."""

    result = hydrate(call("once", {"turn": 1, "items": [1, 2]}), [once])
    assert isinstance(result, Hydrated)
    with pytest.raises(OtherArguments):
        _ = result.tool
    assert list(instance_of(result, once).arguments["items"]) == [1, 2]


def test_an_instance_is_of_a_hydrated_call_and_a_tool() -> None:
    wrong: Any = None
    result = check("search", {"query": "x"})
    assert isinstance(result, Hydrated)
    with pytest.raises(TypeError, match="hydrated"):
        instance_of(wrong, search)
    with pytest.raises(TypeError, match="tool"):
        instance_of(result, wrong)


@each_row(
    ("changed", "text"),
    [
        ({"canonical": b'{"query":"y"}'}, "not the arguments that were decided on"),
        ({"building": object()}, "only a call that was hydrated can run"),
    ],
)
def test_what_was_put_together_by_hand_is_no_instance(changed: Any, text: str) -> None:
    result = check("search", {"query": "x"})
    assert isinstance(result, Hydrated)
    with pytest.raises(OtherArguments, match=text):
        instance_of(msgspec.structs.replace(result, **changed), search)


def test_the_schema_that_the_provider_saw_does_not_judge() -> None:
    """The offer says under which name a tool went out; the definition says what is valid."""
    offer = Offer.of([search], own_names={"search_": "search"})
    assert hydrate(call(offer.own_name("search_"), {"query": "x"}), offer).success
    assert not hydrate(call("search", {"query": "x", "limit": 10}), offer).success


def test_a_recursive_value_that_would_take_hours_to_explain() -> None:
    value: Any = "not a number"
    for _ in range(80):
        value = {"op": "mul", "left": value}
    result = hydrate(call("calculate", {"e": value}), Catalog([calculate]))
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.code, error.path) == (ErrorCode.INVALID_ARGUMENTS, "/e")
    assert error.message == "does not fit the schema, in more ways than can be listed"


class Add(BaseModel):
    left: Expression
    op: str = Field(pattern="^add$")


class Mul(BaseModel):
    left: Expression
    op: str = Field(pattern="^mul$")


class Expression(BaseModel):
    root: Add | Mul | int = 0
    left: Add | Mul | int = 0


@tool(visible=ALL)
def calculate(e: Add | Mul | int) -> int:
    """Calculate."""
    return 1


def test_a_fault_of_a_call_is_what_it_is_rejected_for() -> None:
    fault = CallFault(ErrorCode.CONTRADICTORY, "the reply gave two different sets of arguments")
    sent = ToolCall("1", "search", '{"query": "x"}', fault=fault)  # whatever `complete` says
    result = hydrate(sent, CATALOG)
    assert [(e.stage, e.code, e.message) for e in result.errors] == [
        (Stage.PARSE, ErrorCode.CONTRADICTORY, fault.message)
    ]
    bare = hydrate(msgspec.structs.replace(sent, fault=CallFault(ErrorCode.CONTRADICTORY)), CATALOG)
    assert bare.errors[0].message == ErrorCode.CONTRADICTORY.info.text


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, RuntimeError])
def test_whatever_a_validator_raises_the_call_is_refused(raised: type[BaseException]) -> None:
    """Nothing awaits here, so that what would close a generator is the validator's own."""

    def leave(value: int) -> int:
        raise raised

    def take(x: Annotated[int, AfterValidator(leave)]) -> None:
        """Take."""

    result = hydrate(ToolCall("c", "take", '{"x": 1}'), [tool(visible=ALL)(take)])
    result = hydrate(ToolCall("c", "take", '{"x": 1}'), [tool(visible=ALL)(take)])
    assert isinstance(result, Rejected)
    assert result.errors[0].code is ErrorCode.UNUSABLE_TOOL


FAILS: list[BaseException] = []


def made_now() -> Any:
    raise FAILS[-1]


class PanicError(BaseException):
    """What a library in Rust raises, which is no Exception."""


class Inner(BaseModel):
    stamp: str = Field(default_factory=made_now, alias="at")


@dataclass
class Row:
    inner: Inner | int
    number: int = field(default_factory=made_now)


class Around(BaseModel):
    @model_validator(mode="wrap")
    @classmethod
    def looks(cls, sent: Any, read: Any) -> Any:
        return read(sent)

    stamp: int = Field(default_factory=made_now)


@each_row("raised", [ValueError(CANARY), KeyError(CANARY), SystemExit(CANARY)])
@each_row(
    ("hint", "sent", "name"),
    [
        (None, {}, "number"),
        (Inner, {}, "stamp"),
        (list[Row], [{"inner": {}}], "stamp"),
        (dict[str, Row], {"a": {"inner": 1}}, "number"),
        (Around | Row, {}, "stamp"),
    ],
)
def test_a_factory_that_raises_is_named_and_is_no_fault_of_what_was_sent(
    hint: Any, sent: Any, name: str, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(visible=ALL, name="take")
    @dataclass
    class Whole:
        """Take."""

        number: int = field(default_factory=made_now)

        async def run(self) -> None:
            """Never run."""

    def take(x: Any) -> None:
        """Take."""

    take.__annotations__["x"] = hint
    made = Whole if hint is None else tool(visible=ALL)(take)
    FAILS.append(raised)
    told: list[BaseException] = []
    result = hydrate(
        call("take", {} if hint is None else {"x": sent}),
        [made],
        on_exception=lambda _, raised: told.append(raised),
    )
    (error,) = result.errors
    assert (error.stage, error.code) == (Stage.INSTANTIATE, ErrorCode.UNUSABLE_TOOL)
    assert error.message == f"The tool cannot be used: the default of '{name}' could not be made."
    assert told == [raised]
    said = f"tool 'take', the default factory of '{name}', raised {type(raised).__name__} at "
    assert caplog.records[-1].getMessage().startswith(said)
    assert CANARY not in caplog.text + repr(result)


@pytest.mark.parametrize("raised", [SchemaError("no"), CoreSchemaError("no"), PanicError("no")])
@pytest.mark.parametrize("stage", ["validate", "instantiate"])
def test_what_of_ours_fails_at_its_first_use_is_no_fault_of_what_was_sent(
    stage: str,
    raised: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "object"}}, "required": ["x"]}

    def take(x: Inner) -> None:
        """Take."""

    def fails(*_given: Any, **_options: Any) -> Any:
        raise raised

    made = tool(visible=ALL)(take)
    if stage == "validate":
        made = Catalog([{"name": "take", "input_schema": schema}]).by_name["take"].tool
    patched = (
        "validator.JsonSchemaValidator" if stage == "validate" else "derive.unions.SchemaValidator"
    )
    monkeypatch.setattr(f"toolcrib.schema.{patched}", fails)
    told: list[BaseException] = []
    for _ in range(2):
        result = hydrate(
            call("take", {"x": {}}), [made], on_exception=lambda _, raised: told.append(raised)
        )
        assert [(e.stage, e.code) for e in result.errors] == [(stage, ErrorCode.UNUSABLE_TOOL)]
    assert told == [raised, raised]
    assert "tool 'take', " in caplog.text


@each_row("retryable", [None, True])
def test_what_an_author_words_of_a_factory_is_told_as_the_tools(retryable: bool | None) -> None:
    def take(x: Inner) -> None:
        """Take."""

    FAILS.append(ToolError("the clock is away", retryable=retryable))
    result = hydrate(call("take", {"x": {}}), [tool(visible=ALL)(take)])
    assert isinstance(result, Rejected)
    assert [(e.code, e.message) for e in result.errors] == [
        (ErrorCode.UNUSABLE_TOOL, "the clock is away")
    ]
    assert result.retryable is retryable
