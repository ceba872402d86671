"""No repr shows what may be secret: what was said, what a tool is called with, what it gave."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

import toolcrib
from toolcrib import (
    Agent,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    Failed,
    Message,
    RunResult,
    ToolCall,
    ToolRunner,
    Waiting,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog, Checkpoints, PublicKey, SigningKey
from toolcrib.clients import OpenAIClient
from toolcrib.hydration import hydrate
from toolcrib.policies import ask
from toolcrib.testing import ScriptedClient, call
from toolcrib.testing.scripted import Turn
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer
from toolcrib.values.json import Redacted
from toolcrib.values.message import Settings

CANARY = "canary-7be1"


def structs() -> Iterator[type[msgspec.Struct]]:
    """Every value of the package."""
    for module in pkgutil.walk_packages(toolcrib.__path__, "toolcrib."):
        if module.name.endswith("__main__") or ".local" in module.name:
            continue
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, msgspec.Struct) and found.__module__ == module.name:
                yield found


# What holds what was said, sent or given, by the names that such fields have in this package.
TELLING = {
    "arguments", "sent", "canonical", "repaired_arguments", "value", "content", "body", "raw",
    "restored", "pinned", "text", "output", "headers", "extra", "provider_tools", "model_value",
    "nonce", "notice",
}  # fmt: skip
# Fields of those names that hold nothing of it, or public views only, or are for tests.
HARMLESS = {
    "ToolInvocationRecord.arguments",  # those that are declared, secret ones masked
    "ToolCallStarted.arguments",  # likewise
    "ChatRequest.output",  # the schema of an author's type, and the restorer of a provider's form
    "Offer.output",  # likewise
    "ChatLimits.text",  # how many characters
    "RefusedOperation.text",  # why an operation of a document is no tool
    "RequestPlan.body",  # how a body is made, before there is one
}
INTERNAL = (
    ".runner.limiter.",
    ".runner.process.",
    ".schema.",
    ".kit.",
    ".wire.",
    ".testing.loopback",
    ".testing.script",
    ".audit.",
    ".cli.",
    ".pick.",
    ".lint.",
)


def test_every_value_that_can_hold_a_secret_is_redacted() -> None:
    """A field that is added later, under one of these names, is redacted or said to be harmless."""
    open_ones = [
        f"{kind.__name__}.{field}"
        for kind in structs()
        for field in kind.__struct_fields__
        if field in TELLING
        and not any(part in f"{kind.__module__}." for part in INTERNAL)
        and not kind.__name__.startswith("_")
        and field not in getattr(kind, "redacted", ())
    ]
    assert sorted(set(open_ones) - HARMLESS) == []


def test_what_is_redacted_is_a_field() -> None:
    for kind in structs():
        if issubclass(kind, Redacted):
            assert set(kind.redacted) <= set(kind.__struct_fields__), kind


@tool(visible=["ok"])
async def pay(token: str) -> dict[str, Any]:
    """Pay with a token."""
    return {"ok": True, "receipt": f"{CANARY}{token}"}


def shows(value: object) -> bool:
    return CANARY in repr(value) or CANARY in pretty_repr(value)


async def test_no_value_on_the_way_of_a_call_shows_it() -> None:
    sent = ToolCall("call_1", "pay", f'{{"token": "{CANARY}"}}')
    hydrated = hydrate(sent, [pay])
    outcome = await ToolRunner([pay]).exec(sent)
    assert isinstance(outcome, Completed)
    assert CANARY in str(outcome.value)
    client = ScriptedClient([call("pay", token=CANARY), f"Paid {CANARY}."])
    result: RunResult = await Agent(client, ToolRunner([pay])).run(f"Pay with {CANARY}.")
    values = [
        sent,
        hydrated,
        hydrated.provenance,
        outcome,
        Message.user(CANARY),
        Settings(extra={"key": CANARY}),
        Approve("grace", {"token": CANARY}),
        *(message for message in result.messages),
        result.state.restored,
        RunTally(nonce=CANARY),
        result,
        *result.records,
    ]
    assert [value for value in values if shows(value)] == []


async def test_nothing_shows_what_no_record_names() -> None:
    """Undeclared arguments, and those that an approver wrote in place of the model's."""
    form = {
        "name": "pay",
        "description": "Pay.",
        "input_schema": {
            "type": "object",
            "properties": {"cents": {"type": "integer"}},
            "additionalProperties": True,
        },
    }
    catalog = Catalog.from_definitions(
        [form],
        handlers={"pay": lambda **_given: "paid"},
        marks={"pay": {"requires_approval": True}},
    )
    sent = ToolCall("call_1", "pay", f'{{"cents": 1, "{CANARY}": "{CANARY}"}}')
    waiting = await ToolRunner(catalog, approver=answer_later).exec(sent)
    assert isinstance(waiting, Waiting)
    values: list[object] = [waiting, waiting.request]
    for cents in (2, "two"):
        edited = {"cents": cents, CANARY: CANARY}

        async def approver(_request: ApprovalRequest, to: Any = edited) -> Answer:
            return Approve("grace", to)

        values.append(await ToolRunner(catalog, approver=approver).exec(sent))
    assert [type(value) for value in values[2:]] == [Completed, Failed]
    assert [value for value in values if shows(value)] == []


async def test_no_client_log_or_key_shows_its_secret() -> None:
    client = OpenAIClient("m", api_key=CANARY, base_url="http://127.0.0.1:9")
    log = AuditLog("sqlite://", key=CANARY)
    secret = SigningKey(PublicKey("shop", b"k" * 32), lambda _: CANARY.encode())
    values: list[object] = [client, log, vars(log)["_seal"], secret, Checkpoints(secret, print)]
    assert [value for value in values if shows(value)] == []
    await client.aclose()


@pytest.mark.parametrize("value", [ToolCall("1", "a", "x" * 12), Message.user("x" * 12)])
def test_a_repr_says_how_much_there_is(value: object) -> None:
    assert "<12 characters>" in repr(value)
    assert "x" * 12 not in repr(value)


async def test_a_result_is_shown_in_a_few_lines() -> None:
    """As a notebook shows it: how it ended, and a line for each call."""
    said: list[Turn] = [[call("pay", token="t"), call("pay", tokn="t")], "Paid."]
    result = await Agent(ScriptedClient(said), [pay]).run("Pay.")
    assert repr(result).splitlines() == [
        "<RunResult completed, 5 characters, 2 calls>",
        "  'pay': completed",
        "  'pay': failed (invalid_arguments)",
    ]
    record = result.records[0]
    assert repr(record) == f"<ToolInvocationRecord {record.id!r} 'pay': completed>"
    many = msgspec.structs.replace(result, records=(record,) * 99, status="limited", limit="turns")
    lines = repr(many).splitlines()
    assert lines[0] == "<RunResult limited: turns, 5 characters, 99 calls>"
    assert (len(lines), lines[-1]) == (22, "  and 79 more")
    assert len(pretty_repr(result)) < 400


async def test_a_result_that_waits_shows_for_what() -> None:
    asking = ToolRunner([pay], policy=ask("pay"), approver=answer_later)
    said: list[Turn] = [call("pay", token="t")]
    result = await Agent(ScriptedClient(said), asking).run("Pay.")
    assert repr(result).splitlines()[1:] == ["  'pay': waiting"]
