"""A parameter that a given schema does not name is its author's: no call sets it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from rows import each_row

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    Rejected,
    ToolCall,
    ToolRunner,
    get_definition,
    hydrate,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.testing import MemorySink
from toolcrib.tools import read_definitions
from toolcrib.values.definition import mcp_form

RAN: list[dict[str, Any]] = []
D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"order": {"type": "integer"}, "cents": {"type": "integer"}},
    "required": ["order"],
}
ORDER: dict[str, Any] = {"type": "object", "required": ["order"]}
PARTS: dict[str, Any] = {"$defs": {"o": {"properties": PLAIN["properties"]}}}
SENT = {"order": 7, "cents": 5}


def refund(order: int, cents: int = 1, dry_run: bool = True, account: str = "shop") -> str:
    """Refund an order."""
    RAN.append({"order": order, "cents": cents, "dry_run": dry_run, "account": account})
    return "ok"


def anything(**parameters: Any) -> str:
    """Take what comes."""
    RAN.append(parameters)
    return "ok"


async def later(order: int, cents: int = 1, **parameters: Any) -> str:
    """Take what comes, later."""
    RAN.append(parameters)
    return "ok"


class Refund:
    """Refund an order."""

    def __init__(self, order: int, cents: int = 1, dry_run: bool = True) -> None:
        self.dry_run = dry_run

    async def run(self) -> str:
        RAN.append({"dry_run": self.dry_run})
        return "ok"


class Model(BaseModel):
    """Refund an order."""

    order: int
    cents: int = 1
    dry_run: bool = True

    async def run(self) -> str:
        RAN.append({"dry_run": self.dry_run})
        return "ok"


HANDLERS: list[Any] = [refund, anything, later, Refund, Model]
CLOSED: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "draft 7": PLAIN | D7,
    "allOf": ORDER | {"allOf": [{"properties": PLAIN["properties"]}]},
    "anyOf": PLAIN | {"anyOf": [{"required": ["order"]}, {"required": ["cents"]}]},
    "$ref": ORDER | PARTS | {"$ref": "#/$defs/o"},
    "$ref in allOf": ORDER | PARTS | {"allOf": [{"$ref": "#/$defs/o"}]},
    "draft 7, allOf": ORDER | D7 | {"allOf": [{"properties": PLAIN["properties"]}]},
    "draft 7, a ref": ORDER
    | D7
    | {"definitions": {"o": {"properties": PLAIN["properties"]}}}
    | {"allOf": [{"$ref": "#/definitions/o"}]},
    "a pattern": PLAIN | {"patternProperties": {"^x_": {}}},
    "a pattern, draft 7": PLAIN | D7 | {"patternProperties": {"^x_": {}}, "allOf": [{}]},
    "a condition": PLAIN | {"if": {"required": ["cents"]}, "then": {}},
    "not": PLAIN | {"not": {"required": ["never"]}},
    "said by itself": PLAIN | {"additionalProperties": False},
    "an open not": PLAIN | {"not": {"required": ["never"], "additionalProperties": True}},
    "an open if": PLAIN | {"if": {"additionalProperties": True}, "then": {}},
}
OPENED: dict[str, dict[str, Any]] = {
    "true": PLAIN | {"additionalProperties": True},
    "a schema": PLAIN | {"additionalProperties": {"type": ["boolean", "string"]}},
    "unevaluated": PLAIN | {"unevaluatedProperties": True},
    "in allOf": PLAIN | {"allOf": [{"additionalProperties": True}]},
    "in anyOf": PLAIN | {"anyOf": [{"additionalProperties": True}]},
    "behind a $ref": PLAIN | {"$ref": "#/$defs/o", "$defs": {"o": {"additionalProperties": True}}},
    "draft 7": PLAIN | D7 | {"allOf": [{"additionalProperties": True}]},
    "a pattern": PLAIN | {"patternProperties": {"^dry_run$": {}, "^account$": {}}},
    "a pattern, draft 7": PLAIN | D7 | {"allOf": [{"patternProperties": {"dry_run|account": {}}}]},
}


def made(handler: Any, schema: dict[str, Any]) -> Any:
    target = handler
    if isinstance(handler, type):  # a tool of its own for each schema
        target = type(handler.__name__, (handler,), {"__doc__": handler.__doc__})
    return tool(visible=ALL, input_schema=schema)(target)


async def ran(thing: Any, arguments: dict[str, Any], **options: Any) -> Any:
    name = get_definition(thing).name
    RAN.clear()
    return await ToolRunner([thing], **options).exec(ToolCall("c1", name, json.dumps(arguments)))


@each_row("handler", HANDLERS)
@each_row("schema", CLOSED.values())
async def test_what_a_given_schema_does_not_name_is_the_authors(handler: Any, schema: Any) -> None:
    thing = made(handler, schema)
    assert isinstance(await ran(thing, SENT), Completed)
    for more in ({"dry_run": False}, {"account": "mallory"}, {"": 1}):
        outcome = await ran(thing, SENT | more)
        assert isinstance(outcome, Failed)
        assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
        assert "mallory" not in outcome.error.message
        assert RAN == []


@each_row("schema", OPENED.values())
async def test_what_is_opened_in_words_runs_and_the_record_says_how_many(schema: Any) -> None:
    sink = MemorySink()
    async with AuditLog("sqlite://") as log:
        thing = made(refund, schema)
        outcome = await ran(
            thing, SENT | {"dry_run": False, "account": "mallory"}, sinks=[sink, log]
        )
        assert isinstance(outcome, Completed)
        assert RAN == [SENT | {"dry_run": False, "account": "mallory"}]
        (record,) = sink.records
        assert record.notes == ("undeclared:2",)
        assert record.arguments == SENT
        assert [e.record.notes for e in await log.entries()] == [("undeclared:2",)] * 2
    assert "mallory" not in msgspec.json.encode(record).decode()
    assert (await ran(thing, SENT)).record.notes == ()


async def test_an_edit_of_what_is_not_declared_is_told_as_edited() -> None:
    async def approver(request: ApprovalRequest) -> Approve:
        return Approve(by="grace", arguments={**request.arguments, "dry_run": False})

    thing = tool(
        visible=ALL, input_schema=PLAIN | {"additionalProperties": True}, requires_approval=True
    )(refund)
    outcome = await ran(thing, SENT, approver=approver)
    assert isinstance(outcome, Completed)
    assert (outcome.record.edited, outcome.record.notes) == (True, ("undeclared:1",))
    shut = tool(visible=ALL, input_schema=PLAIN, requires_approval=True)(refund)
    refused = await ran(shut, SENT, approver=approver)
    assert isinstance(refused, Failed)
    assert refused.error.code is ErrorCode.INVALID_ARGUMENTS


OPENAI = {"type": "function", "function": {"name": "refund", "parameters": PLAIN}}


@pytest.mark.parametrize("handler", [refund, anything, later])
async def test_dictionaries_with_a_handler_are_closed(handler: Callable[..., Any]) -> None:
    (thing,) = Catalog.from_definitions([OPENAI], handlers={"refund": handler}, visible=ALL)
    outcome = await ran(thing, SENT | {"dry_run": False})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS


@pytest.mark.parametrize(("handler", "runs"), [(refund, False), (later, False), (anything, True)])
async def test_a_servers_tool_takes_what_json_schema_lets_it(
    handler: Callable[..., Any], runs: bool
) -> None:
    """One that passes all on by `**arguments`, and has no parameter of its own, is its server's."""
    brought = mcp_form({"name": "refund", "description": "Refund.", "inputSchema": PLAIN})
    (thing,) = Catalog.from_definitions([brought], handlers={"refund": handler}, visible=ALL)
    result = hydrate(ToolCall("c", "refund", '{"order": 1, "dry_run": false}'), Catalog([thing]))
    assert result.success == runs
    assert not runs or result.provenance.notes == ("undeclared:1",)
    (alone,) = Catalog.from_definitions([brought])
    assert alone.get_definition().input_schema == PLAIN


async def test_what_is_required_is_named_by_the_schema() -> None:
    thing = tool(visible=ALL, input_schema=PLAIN | {"required": ["order", "more"]})(anything)
    assert isinstance(await ran(thing, SENT | {"more": 1}), Completed)
    assert isinstance(await ran(thing, SENT | {"more": 1, "other": 1}), Failed)


def test_the_schema_itself_stays_what_it_was() -> None:
    (handled,) = Catalog.from_definitions([OPENAI], handlers={"refund": anything})
    assert handled.get_definition().input_schema == PLAIN


def test_a_trust_and_a_file_keep_their_digest(tmp_path: Any) -> None:
    """What was brought is pinned as it was brought, whatever handler it has here."""
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"name": "refund", "description": "R.", "input_schema": PLAIN}]))
    definitions = read_definitions(path)
    catalogs = [Catalog.from_definitions(definitions, handlers=h) for h in ({}, {"refund": refund})]
    origins = {c["refund"].imported.origin for c in catalogs}  # type: ignore[attr-defined]
    assert len(origins) == 1


def schema_of(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a part of a schema, which declares some names, and may combine others."""
    names = dice.sample("abcde", dice.randrange(3))
    part: dict[str, Any] = {"properties": {name: {} for name in names}}
    if depth and dice.random() < 0.6:
        key = dice.choice(["allOf", "anyOf", "oneOf"])
        part[key] = [schema_of(dice, depth - 1) for _ in range(dice.randrange(1, 3))]
    if depth and dice.random() < 0.3:
        part["if"], part["then"] = {"required": ["a"]}, schema_of(dice, depth - 1)
    return part


def named(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(named, schema))
    if not isinstance(schema, dict):
        return set()
    below = (value for key, value in schema.items() if key != "properties")
    return set(schema.get("properties", ())).union(*map(named, below))


@pytest.mark.parametrize("draft", [{}, D7])
def test_no_name_gets_through_that_no_part_of_a_schema_says(draft: dict[str, str]) -> None:
    dice = random.Random(20261)  # noqa: S311  a test
    for _ in range(200):
        schema = {"type": "object", **draft, **schema_of(dice)}
        thing = Catalog([tool(visible=ALL, input_schema=schema)(anything)])
        for _ in range(5):
            sent = dict.fromkeys(dice.sample("abcdefgh", dice.randrange(5)), 1)
            result = hydrate(ToolCall("c", "anything", json.dumps(sent)), thing)
            if not sent.keys() <= named(schema):
                assert isinstance(result, Rejected), (schema, sent)


@each_row("rest", [{}, {"additionalProperties": False}, {"unevaluatedProperties": False}])
async def test_a_default_that_no_schema_names_is_seen_by_approvers_alone(
    rest: dict[str, Any],
) -> None:
    """Not by records, nor by the model that is told which arguments a person wrote."""
    asked = []

    async def approver(request: ApprovalRequest) -> Approve:
        asked.append(request.arguments)
        return Approve(by="grace", arguments={**request.arguments, "cents": 5})

    thing = tool(visible=ALL, input_schema=PLAIN | rest, requires_approval=True)(refund)
    sink = MemorySink()
    outcome = await ran(thing, {"order": 7, "cents": 1}, approver=approver, sinks=[sink])
    assert isinstance(outcome, Completed)
    assert asked == [{"order": 7, "cents": 1, "dry_run": True, "account": "shop"}]
    assert RAN == [{"order": 7, "cents": 5, "dry_run": True, "account": "shop"}]
    for record in sink.records:
        assert record.arguments in ({"order": 7, "cents": 1}, {"order": 7, "cents": 5})
        assert record.defaulted == ()
    assert '{"cents":5,"order":7}' in outcome.notice
    assert "shop" not in outcome.notice + msgspec.json.encode(outcome.record).decode()


@each_row("combined", [{"anyOf": [{"required": ["order"]}, {"required": ["cents"]}]}, {"if": {}}])
async def test_what_the_signature_needs_and_combined_schemas_may_leave_out(
    combined: dict[str, Any],
) -> None:
    schema = {key: value for key, value in PLAIN.items() if key != "required"} | combined
    outcome = await ran(tool(visible=ALL, input_schema=schema)(refund), {"cents": 1})
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, RAN) == (ErrorCode.INVALID_ARGUMENTS, [])
    assert [(each.path, each.message) for each in outcome.error.details] == [
        ("", "the tool needs the property 'order'")
    ]
