"""What is a result, and what is not."""

from __future__ import annotations

import dataclasses
import enum
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from rows import each_row
from samples import sample

from toolcrib import (
    ALL,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolDefinition,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.runner import output
from toolcrib.runner.output import (
    CheckedOutput,
    Unusable,
    check_output,
    masked_arguments,
    masked_pointers,
    own_copy,
    project,
    public_arguments,
    public_pointers,
    public_view,
    redaction_missing,
    unmasked,
)
from toolcrib.schema.references import EACH, split_path
from toolcrib.values.json import canonical_json

CANARY = "canary-0b1d"


class Model(BaseModel):
    day: date
    key: SecretStr = SecretStr(CANARY)


class Struct(msgspec.Struct):
    day: date


class Around(msgspec.Struct):
    inner: Any


@dataclasses.dataclass
class Plain:
    parts: tuple[int, ...]


@tool(visible=ALL)
async def anything() -> Any:
    """Give anything."""


@tool(visible=ALL)
async def number() -> int:
    """Give a number."""
    return 1


async def parts() -> AsyncIterator[int]:
    yield 1


def items() -> Iterator[int]:
    yield 1


class Unwilling:
    def __iter__(self) -> Iterator[int]:
        raise ValueError(CANARY)


def around() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@each_row(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.0, 1.0),
        ("ä", "ä"),
        (Model(day=date(2026, 11, 22)), {"day": "2026-11-22", "key": "**********"}),
        (Struct(date(2026, 11, 22)), {"day": "2026-11-22"}),
        (
            {"a": [Around([Model(day=date(2026, 11, 22)), Around(Struct(date(2026, 11, 22)))])]},
            {
                "a": [
                    {
                        "inner": [
                            {"day": "2026-11-22", "key": "**********"},
                            {"inner": {"day": "2026-11-22"}},
                        ]
                    }
                ]
            },
        ),
        (Plain((1, 2)), {"parts": [1, 2]}),
        ({"a": {1}}, {"a": [1]}),
    ],
    ids=repr,
)
def test_what_is_a_result(value: Any, plain: Any) -> None:
    checked = check_output(anything, value)
    assert isinstance(checked, CheckedOutput)
    assert (checked.value, orjson.loads(checked.text)) == (plain, plain)


@each_row(
    ("value", "why"),
    [
        (items(), "an iterator"),
        (parts(), "an iterator"),
        (float("nan"), "not JSON"),
        ({"a": [float("inf")]}, "not JSON"),
        (object(), "not JSON"),
        (Around(object()), "not JSON"),
        (Around(around()), "not JSON"),
        (Around({"a": float("nan")}), "not JSON"),
        ({"a": Unwilling()}, "not JSON"),
        ("\ud800", "not JSON"),
        (around(), "not JSON"),
        ("x" * 99, "larger than 100 bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_none(value: Any, why: str) -> None:
    unusable = check_output(anything, value, 100)
    assert isinstance(unusable, Unusable)
    error = unusable.error
    assert error.code is ErrorCode.INVALID_OUTPUT
    assert why in error.message
    assert CANARY not in error.message


def test_the_largest_result() -> None:
    text = "x" * 98
    assert check_output(anything, text, 100) == CheckedOutput(text, f'"{text}"'.encode())


def test_a_result_of_another_kind_than_promised() -> None:
    unusable = check_output(number, CANARY)
    assert isinstance(unusable, Unusable)
    assert unusable.error.message.endswith("cannot be used: the top: expected integer, got string.")


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Agreeable(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.sampled_from([Colour.RED, Number.ONE, Agreeable(7), date(2024, 2, 29), Plain((1,)), -0.0])
    | st.builds(lambda: uuid.UUID(int=7))
)
_KEYS = st.text(max_size=3) | st.sampled_from([1, "1", None, True, Colour.RED, 1.5])
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=sample(1_500), deadline=None)
@given(_VALUES)
@example([float("nan")])
@example({"a": (1, 2)})
@example([2**64])
@example({1: "a", "1": "b"})
@example("\ud800")
def test_what_is_json_already_is_read_as_all_else(value: Any) -> None:
    quick = check_output(anything, value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "_as_it_is", lambda value, max_bytes: None)
        assert repr(check_output(anything, value)) == repr(quick)


def test_a_result_is_a_copy() -> None:
    value = {"items": [1, {"a": "b"}]}
    checked = check_output(anything, value)
    assert isinstance(checked, CheckedOutput)
    result = checked.value
    assert result == value
    assert result is not value
    assert isinstance(result, dict)
    assert result["items"] is not value["items"]


VALUE: Any = {"a": {"b": 1, "c": 2}, "items": [{"id": 1, "x": 2}, {"id": 3}], "n": None}

TABLE: list[tuple[Any, Any, Any]] = [
    (VALUE, ALL, VALUE),
    (VALUE, (), {}),
    (VALUE, ("a",), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a.b",), {"a": {"b": 1}}),
    (VALUE, ("a.b", "a"), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a", "a.b"), {"a": {"b": 1, "c": 2}}),
    (VALUE, ("a.z",), {"a": {}}),
    (VALUE, ("items",), {"items": VALUE["items"]}),
    (VALUE, ("items[].id",), {"items": [{"id": 1}, {"id": 3}]}),
    (VALUE, ("items[]",), {"items": VALUE["items"]}),
    (VALUE, ("items.id",), {"items": None}),
    (VALUE, ("n",), {"n": None}),
    ([{"id": 1, "x": 2}], ("[].id",), [{"id": 1}]),
    ([[{"id": 1}]], ("[][].id",), [[{"id": 1}]]),
    ([1, 2], (), None),
    ("secret", (), None),
    ("secret", ("a",), None),
    (7, ALL, 7),
    ({"a": 5}, ("a.b",), {"a": None}),
    ({"a": [{"b": 1, "c": 2}]}, ("a.b",), {"a": None}),
    ([{"a": 1}], ("a",), None),
    ({"a": 1}, ("[].a",), {}),
    ({"items": {"[]": "secret"}}, ("items[]",), {"items": {}}),
    ({"items": {"[]": {"id": 1}}}, ("items[].id",), {"items": {}}),
    ({"a.b": "secret", "a": {"b": 1}}, ("a.b",), {"a": {"b": 1}}),
    ([{"id": 1}, "secret", [2]], ("[].id",), [{"id": 1}, None, None]),
]


@each_row(("value", "paths", "shown"), TABLE)
def test_an_allowlist(value: Any, paths: Any, shown: Any) -> None:
    assert project(value, paths) == shown


@each_row(("value", "paths", "shown"), TABLE)
def test_the_order_of_paths_and_of_keys_makes_no_difference(
    value: Any, paths: Any, shown: Any
) -> None:
    turned = paths if paths is ALL else tuple(reversed(paths))
    assert project(value, turned) == shown
    assert canonical_json(project(_turned(value), paths)) == canonical_json(shown)


def test_what_is_left_stands_in_the_order_in_which_it_was() -> None:
    paths = ("rows[].a", "rows[].b", "total", "rows[].c.d")
    value: Any = {"total": 1, "rows": [{"b": 1, "x": 2, "c": {"e": 3, "d": 4}, "a": 5}, {"a": 6}]}
    shown: Any = {"total": 1, "rows": [{"b": 1, "c": {"d": 4}, "a": 5}, {"a": 6}]}
    assert json.dumps(project(value, paths)) == json.dumps(shown)
    odd = value | {"rows": [*value["rows"], "text", None]}
    left = shown | {"rows": [*shown["rows"], None, None]}
    assert json.dumps(project(odd, paths)) == json.dumps(left)


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _turned(child) for name, child in reversed(value.items())}
    return [_turned(child) for child in value] if isinstance(value, list) else value


Leaves = dict[tuple[Any, ...], Any]
_NAMES = st.sampled_from(["a", "b", "[]", "a.b"])
_PATHS = ["a", "b", "a.b", "a[]", "a[].b", "b.a[]", "[]", "[].a", "[][]", "[].a.b"]
_VALUES_redact = st.recursive(
    st.integers(0, 9) | st.just("text"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, min_size=2),
    max_leaves=12,
)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Leaves:
    """All that is no container, by where it is: names are texts, places in arrays are numbers."""
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        return {
            at: x for name, child in children for at, x in leaves(child, (*place, name)).items()
        }
    return {place: value}


def named(place: tuple[Any, ...], paths: tuple[str, ...]) -> bool:
    steps = tuple(0 if isinstance(step, int) else step for step in place)
    for path in paths:
        wanted = tuple(0 if step == EACH else step for step in split_path(path))
        if steps[: len(wanted)] == wanted:
            return True
    return False


@settings(max_examples=sample(300))
@given(_VALUES_redact, st.lists(st.sampled_from(_PATHS), max_size=6, unique=True).map(tuple))
def test_all_that_is_named_shows_and_nothing_else(value: Any, paths: tuple[str, ...]) -> None:
    shown = leaves(project(value, paths))
    expected = {at: x for at, x in leaves(value).items() if named(at, paths)}
    assert {at: x for at, x in shown.items() if x is not None} == expected


MISSING: list[tuple[Any, Any, bool]] = [
    ({"a": 1}, None, True),
    ({"a": 1}, (), False),
    ([1], None, True),
    ([1], (), False),
    ("text", None, True),
    ("text", (), False),
    (False, None, True),
    (False, (), False),
    (0, ("a",), True),
    ("text", ("[]",), True),
    ([{"a": 1}], ("a",), True),
    ({"a": 1}, ("[].a",), True),
    (None, (), False),
    ({}, (), False),
    ([], ("a",), False),
    ({"a": 1}, ALL, False),
    (7, ALL, False),
    ({"a": 1}, ("b",), False),
    ([1], ("[]",), False),
    ({"a": 1}, ("[]", "b"), False),
]


@each_row(("value", "paths", "missing"), MISSING)
def test_what_an_allowlist_says_nothing_of_is_withheld_and_that_can_be_told(
    value: Any, paths: Any, missing: bool
) -> None:
    assert redaction_missing(value, paths) is missing
    if missing:
        assert project(value, paths) in (None, {})


class Card(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    number: SecretStr
    last_digits: str = Field(serialization_alias="lastDigits")
    pin: str = Field(default="hush", exclude=True)


class Account(BaseModel):
    owner: str
    cards: list[Card]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def note(self) -> str:
        return f"hush {self.owner}"


class Bank(BaseModel):
    account: Account


@tool(visible=["account.cards[].lastDigits"], model_visible=["account.cards", "account.owner"])
async def open_account() -> Bank:
    """Open an account."""
    card = Card(number=SecretStr("4111 hush"), last_digits="1111")
    return Bank(account=Account(owner="grace", cards=[card]))


async def test_three_views_of_nested_models() -> None:
    outcome = await ToolRunner([open_account]).exec(ToolCall("1", "open_account", "{}"))
    assert isinstance(outcome, Completed)
    assert outcome.value.account.cards[0].number.get_secret_value() == "4111 hush"
    masked = {"number": "**********", "lastDigits": "1111"}
    assert outcome.model == {"account": {"owner": "grace", "cards": [masked]}}
    assert outcome.public == {"account": {"cards": [{"lastDigits": "1111"}]}}
    assert outcome.record.result == outcome.public


def test_undeclared_arguments_do_not_show_and_secret_ones_are_masked() -> None:
    schema = '{"type":"object","properties":{"user":{},"password":{}}}'
    definition = ToolDefinition(
        name="t", description="", input_schema_json=schema, secret=("password",)
    )
    given: Any = {"user": "u", "password": "hush", "other": "hidden"}
    assert public_arguments(definition, given) == {"user": "u", "password": "***"}


@each_row(
    ("rest", "secret", "shown"),
    [
        ({"additionalProperties": False}, (), {"a": 1, "b": 2}),
        ({"additionalProperties": False}, ("b",), {"a": 1, "b": "***"}),
        ({}, (), {"a": 1}),
        ({}, ("a",), {"a": "***"}),
        ({"additionalProperties": {}}, (), {"a": 1}),
        ({"additionalProperties": False, "patternProperties": {"b": {}}}, (), {"a": 1}),
    ],
)
def test_the_text_of_public_arguments_holds_no_more_than_they_do(
    rest: dict[str, Any], secret: tuple[str, ...], shown: dict[str, Any]
) -> None:
    closed = rest == {"additionalProperties": False}
    properties: dict[str, Any] = {"a": {}, "b": {}} if closed else {"a": {}}
    schema = json.dumps({"type": "object", "properties": properties, **rest})
    definition = ToolDefinition(name="t", description="", input_schema_json=schema, secret=secret)
    assert public_arguments(definition, {"a": 1, "b": 2}) == shown


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(-1e20, 1e20) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@example(
    {"\x00\x1f\b\u2028\ud7ff": [1.0, 2**70], "\uffff": {"\U0001f600": 1e16}, "s": 1}, {"s"}, {"x"}
)
@given(st.dictionaries(st.text(), _VALUES), st.sets(st.text()), st.sets(st.text()))
def test_the_public_view_is_the_canonical_text_of_public_arguments(
    arguments: dict[str, Any], secret: set[str], declared: set[str]
) -> None:
    names: dict[str, Any] = {name: {} for name in [*declared, *list(arguments)[::2]]}
    hidden = tuple(secret.union(list(arguments)[::3]) & names.keys())
    schema = json.dumps({"type": "object", "properties": names})
    definition = ToolDefinition(name="t", description="", input_schema_json=schema, secret=hidden)
    hydrated = hydrate(ToolCall("c", "t", json.dumps(arguments)), [definition])
    if hydrated.success:
        shown = public_arguments(definition, hydrated.arguments)
        assert bytes(public_view(hydrated)[0]) == canonical_json(shown).encode()


def test_of_a_tool_without_a_schema_no_argument_shows() -> None:
    definition = ToolDefinition(
        name="t", description="", input_schema_json=None, no_schema_mode="full"
    )
    assert public_arguments(definition, {"anything": 1}) == {}


def test_who_approves_sees_all_that_will_run_but_secrets() -> None:
    schema = '{"type":"object","properties":{"user":{},"password":{}}}'
    definition = ToolDefinition(
        name="t", description="", input_schema_json=schema, secret=("password",)
    )
    given: Any = {"user": ["u"], "password": ["hush"], "other": {"deep": 1}}
    shown = masked_arguments(definition, given)
    assert shown == {"user": ["u"], "password": "***", "other": {"deep": 1}}
    assert given["password"] == ["hush"]


PLACES = ToolDefinition(
    name="t",
    description="",
    input_schema_json='{"type":"object","properties":{"user":{},"pass/word":{},"~1":{},"a":{}}}',
    secret=("pass/word",),
)


@each_row(
    ("place", "public", "masked"),
    [
        ("/user", True, True),
        ("/user/0/pass~1word", True, True),
        ("/pass~1word", True, True),  # that there is a default may be seen
        ("/pass~1word/deep", False, False),
        ("/pass~1word/deep/er", False, False),
        ("/~01", True, True),
        ("/~01/deep", True, True),
        ("/other", False, True),
        ("/other/deep", False, True),
    ],
)
def test_no_place_leads_below_a_secret_and_no_public_one_to_what_is_not_declared(
    place: str, public: bool, masked: bool
) -> None:
    places = ("/a", place, "/a/b")
    assert public_pointers(PLACES, places) == tuple(p for p in places if p != place or public)
    assert masked_pointers(PLACES, places) == tuple(p for p in places if p != place or masked)
    assert public_pointers(None, places) == public_pointers(PLACES, ()) == ()


@each_row(
    ("edited", "original", "whole"),
    [
        (
            {"user": "e", "pass/word": "***"},
            {"user": "u", "pass/word": 1},
            {"user": "e", "pass/word": 1},
        ),
        ({"pass/word": "new"}, {"pass/word": "old"}, {"pass/word": "new"}),
        ({"user": "***"}, {"user": "u", "pass/word": "old"}, {"user": "***"}),
        ({"pass/word": "***"}, {"user": "u"}, {"pass/word": "***"}),  # there was none
        ({}, {"pass/word": "old"}, {}),
    ],
)
def test_a_secret_that_comes_back_masked_is_the_original(
    edited: Any, original: Any, whole: Any
) -> None:
    assert unmasked(PLACES, edited, original) == whole


@each_row(
    "given",
    [
        {"a": 1},
        {"a": 2**70, "b": [1e-300, {"c": None}], "d": "é\ud800"},
        {},
        {"deep": [[[[True]]]]},
        {"numbers": [1, 1.0, -0.0, True, 2**63, 2**64, 10**39, 1e22]},
    ],
)
def test_a_copy_is_equal_and_shares_nothing(given: Any) -> None:
    copy = own_copy(given)
    assert repr(copy) == repr(given)  # 1, 1.0 and True are equal
    assert copy is not given
    assert all(copy[k] is not v for k, v in given.items() if isinstance(v, dict | list))


async def test_a_result_that_nobody_said_may_be_seen_is_an_error_in_the_record() -> None:
    """It completes for the model and the application; whoever reads the log sees what is wrong."""

    async def find(text: str) -> dict[str, str]:
        return {"text": text}

    found: dict[str, Any] = {
        "name": "find",
        "description": "Find something.",
        "input_schema": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    }
    call = ToolCall("c", "find", '{"text": "a"}')
    unset = Catalog.from_definitions([found], handlers={"find": find})
    outcome = await ToolRunner(unset).exec(call)
    assert isinstance(outcome, Completed)
    assert (outcome.model, outcome.public) == ({"text": "a"}, {})
    assert outcome.record.status == "completed"
    assert outcome.record.error is not None
    assert outcome.record.error.code is ErrorCode.REDACTION_MISSING
    meant = Catalog.from_definitions([found], handlers={"find": find}, visible=())
    nothing = await ToolRunner(meant).exec(call)
    assert nothing.record.error is None
    assert nothing.record.result == {}
    digests = {catalog["find"].get_definition().digest for catalog in (unset, meant)}
    assert len(digests) == 2


ONE_NAME: list[Any] = [
    *({1: "a", "1": "b"}, {"rows": [{1: 1, "1": 2}]}, {True: 1, "true": 2}, {None: 1, "None": 2}),
    *({1.0: 1, "1.0": 2}, {b"a": 1, "a": 2}, [({1: 1, "1": 2},)]),
]


@each_row("value", ONE_NAME, ids=repr)
async def test_no_key_of_a_result_is_lost(value: Any) -> None:
    @tool(visible=ALL)
    def give() -> Any:
        """Give."""
        return value

    outcome = await ToolRunner([give]).exec(ToolCall("c", "give", "{}"))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert "two of its keys become the same name in JSON" in outcome.error.message


async def test_keys_that_are_no_text_are_written_as_text() -> None:
    @tool(visible=ALL)
    def give() -> Any:
        """Give."""
        return {1: "a", 2.5: "b"}

    outcome = await ToolRunner([give]).exec(ToolCall("c", "give", "{}"))
    assert isinstance(outcome, Completed)
    assert outcome.model == {"1": "a", "2.5": "b"}
