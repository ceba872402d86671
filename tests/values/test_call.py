"""What ran and what may not run are different types."""

from __future__ import annotations

from typing import Any, assert_never

import pytest
from rows import each_row

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import (
    FactoryResults,
    Hydrated,
    HydrationError,
    HydrationResult,
    Provenance,
    Rejected,
    ToolCall,
    ValidatorInfo,
)
from toolcrib.values.decision import Caller
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

CALL = ToolCall("c1", "look", '{"a": 1}', provider_id="p1")
DEFINITION = ToolDefinition(name="look", description="", input_schema_json='{"type":"object"}')
ERROR = HydrationError(Stage.PARSE, ErrorCode.INVALID_JSON, "no", "/a")


class Built:
    """What builds the instances of a call: a new one for whoever looks."""

    def __init__(self) -> None:
        self.sent: JsonObject = {"a": 1}
        self.pinned: dict[str, JsonValue] = {}
        self.normalised: tuple[str, ...] = ()
        self.distrusted = False
        self.factory_values: FactoryResults | None = None

    def another(self) -> object:
        return object()


HYDRATED = Hydrated(CALL, DEFINITION, b'{"a":1}', Provenance("p1", '{"a": 1}'), Built())
REJECTED = Rejected(CALL, (ERROR,), Provenance("p1", '{"a": 1}'))


def tell(result: HydrationResult) -> str:
    match result:
        case Hydrated():
            return f"run {result.definition.name}"
        case Rejected():
            return f"no: {result.errors[0].code}"
        case _:
            assert_never(result)


def test_the_two_are_told_apart_by_match() -> None:
    assert tell(HYDRATED) == "run look"
    assert tell(REJECTED) == "no: invalid_json"


def test_both_answer_the_same_questions() -> None:
    results: list[HydrationResult] = [HYDRATED, REJECTED]
    assert [r.success for r in results] == [True, False]
    assert [r.errors for r in results] == [(), (ERROR,)]
    assert [r.tool is None for r in results] == [False, True]
    assert {r.provenance.arguments for r in results} == {'{"a": 1}'}


@each_row(
    ("value", "field"),
    [
        (CALL, "arguments"),
        (ERROR, "message"),
        (HYDRATED, "arguments"),
        (HYDRATED, "tool"),
        (REJECTED, "errors"),
        (HYDRATED.provenance, "validated"),
        (ValidatorInfo("v", "1", 0.0), "name"),
    ],
)
def test_they_are_frozen(value: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, field, None)


def test_a_call_is_whole_unless_it_is_said_to_be_cut() -> None:
    assert CALL.complete
    assert not ToolCall("c", "look", "{", complete=False).complete


@pytest.mark.parametrize(("who", "roles"), [("ada\udfff", ()), ("ada", ("x", "\ud800"))])
def test_a_caller_is_text_that_a_log_can_hold(who: str, roles: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"Caller: (id|roles) holds a lone surrogate"):
        Caller(who, roles)
    assert Caller("é😀", ("ä",)).id == "é😀"


@pytest.mark.parametrize("field", ["id", "provider_id"])
def test_the_ids_of_a_call_are_text_that_a_log_can_hold(field: str) -> None:
    given: dict[str, Any] = {"id": "c1", "name": "look", "arguments": "{}"}
    for _ in range(2):  # it is looked at again, though such a call was right before
        with pytest.raises(ValueError, match=f"ToolCall: {field} holds a lone surrogate"):
            ToolCall(**given | {field: "call_\ud800"})
        assert getattr(ToolCall(**given | {field: "é😀"}), field) == "é😀"
    assert ToolCall("c1", "a\ud800", "{}").name == "a\ud800"  # a model's: it names no tool


@pytest.mark.parametrize(
    "wrong",
    [{"notes": (1,)}, {"notes": "note"}, {"complete": 1}, {"id": b"c1"}, {"fault": "cut"}],
    ids=repr,
)
def test_a_wrong_field_is_found_though_many_calls_were_right(wrong: Any) -> None:
    for notes in ((), ("said_twice",)):
        right: dict[str, Any] = {
            "id": "c1",
            "name": "look",
            "arguments": "{}",
            "complete": True,
            "notes": notes,
        }
        assert [ToolCall(**right).notes for _ in range(2)] == [notes, notes]
        with pytest.raises(TypeError, match=f"ToolCall: {next(iter(wrong))} must be "):
            ToolCall(**right | wrong)
    assert ToolCall("c1", "look", "{}", notes=["said_twice"]).notes == ("said_twice",)  # type: ignore[arg-type]
