"""What is of a wrong type is one sentence: the parameter, what it has to be, and what came."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from rows import each_row

from toolcrib import (
    ALL,
    Agent,
    Approve,
    Ask,
    CallContext,
    Caller,
    Catalog,
    Deny,
    Limits,
    Message,
    Offer,
    PickOptions,
    Refuse,
    Reply,
    RunState,
    Session,
    ToolCall,
    ToolDefinition,
    ToolError,
    ToolRunner,
    Usage,
    bundle_refs,
    capability,
    discover,
    function_to_tool_definition,
    get_definition,
    hydrate,
    per_call,
    pick_tools,
    repair,
    run_sync,
    tool,
)
from toolcrib.audit import (
    AuditFilter,
    AuditLog,
    Checkpoint,
    Checkpoints,
    PublicKey,
    SigningKey,
    verify_inclusion,
    verify_jsonl,
)
from toolcrib.clients import OpenAIClient, Settings
from toolcrib.errors import ToolcribError
from toolcrib.policies import deny_by_default, require_roles
from toolcrib.testing import ScriptedClient
from toolcrib.values.message import ToolChoice
from toolcrib.values.typed import _fields


class Alien:
    """Of no type that anybody wants, and with a secret in its repr."""

    def __repr__(self) -> str:
        return "canary-4410"


@tool(visible=ALL)
async def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


CALL = ToolCall("1", "", "add", '{"a": 1}')
TOOLS = [add]


def agent(**given: Any) -> Agent:
    return Agent(ScriptedClient(["hello"]), TOOLS, **given)


def runner(**given: Any) -> ToolRunner:
    return ToolRunner(TOOLS, **given)


def definition(**given: Any) -> ToolDefinition:
    said: dict[str, Any] = {"name": "x", "description": "", "input_schema_json": None}
    return ToolDefinition(**(said | given))


STATE = asyncio.run(agent().run("hi")).state
REJECTED = hydrate(ToolCall("1", "", "add", "{"), Catalog(TOOLS))
A: Any = Alien()

LOG = AuditLog("sqlite://")
SIGNING = SigningKey(PublicKey("example.com/shop", bytes(32)), lambda _text: b"")

# Each parameter of each public function and constructor that takes a value of a type of ours or of
# Python's, with something of another type; `None` where the parameter is named in another way.
CALLS: list[tuple[str, Callable[[], Any]]] = [
    ("model", lambda: Agent(A, TOOLS)),
    ("model", lambda: Agent(ScriptedClient, TOOLS)),  # type: ignore[arg-type]
    ("tool", lambda: Agent(ScriptedClient([]), A)),
    ("instructions", lambda: agent(instructions=A)),
    ("limits", lambda: agent(limits=A)),
    ("limits", lambda: agent(limits=5)),
    ("pick", lambda: agent(pick=A)),
    ("search_tools", lambda: agent(search_tools=A)),
    ("output", lambda: agent(output=A)),
    ("name", lambda: agent(name=A)),
    ("version", lambda: agent(version=A)),
    ("record_prompts", lambda: agent(record_prompts=A)),
    ("state_key", lambda: agent(state_key=A)),
    ("prompt", lambda: agent().run(A)),
    ("history", lambda: agent().run("x", history=A)),
    ("history", lambda: agent().run("x", history=[A])),
    ("history", lambda: agent().run("x", history=[{"role": "user"}])),  # type: ignore[list-item]
    ("history", lambda: agent().run("x", history="user")),  # type: ignore[arg-type]
    ("caller", lambda: agent().run("x", caller=A)),
    ("caller", lambda: agent().run("x", caller="ada")),  # type: ignore[arg-type]
    ("offered", lambda: agent().run("x", offered=A)),
    ("state", lambda: agent().resume(A)),
    ("answers", lambda: agent().resume(STATE, A)),
    ("answers", lambda: agent().resume(STATE, {"apr": True})),  # type: ignore[dict-item]
    ("state", lambda: agent().resume_stream(A)),
    ("model", lambda: agent().replace(model=A)),
    ("tool", lambda: agent().replace(tools=A)),
    ("messages", lambda: agent().session(A)),
    ("agent", lambda: Session(A)),
    ("messages", lambda: Session(agent(), (A,))),
    ("offered", lambda: Session(agent(), (), "add")),  # type: ignore[arg-type]
    ("prompt", lambda: agent().session().send(A)),
    ("caller", lambda: agent().session().send("x", caller=A)),
    ("text", lambda: Session.from_json(agent(), A)),
    ("text", lambda: RunState.from_json(A)),
    ("tool", lambda: ToolRunner(A)),
    ("policy", lambda: runner(policy=A)),
    ("policy", lambda: runner(policy=[A])),
    ("approver", lambda: runner(approver=A)),
    ("sink", lambda: runner(sinks=A)),
    ("sink", lambda: runner(sinks=[A])),
    ("timeout", lambda: runner(timeout=A)),
    ("concurrency", lambda: runner(concurrency=A)),
    ("repairer", lambda: runner(repairer=A)),
    ("remember", lambda: runner(remember=A)),
    ("approval_seconds", lambda: runner(approval_seconds=A)),
    ("max_result_bytes", lambda: runner(max_result_bytes=A)),
    ("on_exception", lambda: runner(on_exception=A)),
    ("call", lambda: runner().exec(A)),
    ("caller", lambda: runner().exec(CALL, caller=A)),
    ("scope", lambda: runner().exec(CALL, scope=A)),
    ("calls", lambda: runner().exec_all(A)),
    ("calls", lambda: runner().exec_all([CALL, A])),
    ("caller", lambda: runner().exec_all([CALL], caller=A)),
    ("lines", lambda: verify_jsonl(A)),
    ("lines", lambda: verify_jsonl(b"{}")),  # type: ignore[arg-type]
    ("lines", lambda: verify_jsonl("{}")),
    ("lines[0]", lambda: verify_jsonl([b"{}"])),  # type: ignore[list-item]
    ("key", lambda: verify_jsonl([], key=A)),
    ("head", lambda: verify_jsonl([], head=A)),
    ("url", lambda: AuditLog(A)),
    ("key", lambda: AuditLog("sqlite://", key=A)),
    ("checkpoints", lambda: AuditLog("sqlite://", checkpoints=A)),
    ("mode", lambda: AuditLog("sqlite://", mode=A)),
    ("record", lambda: LOG.write(A)),
    ("record", lambda: LOG.write_run(A)),
    ("attachment", lambda: LOG.attach(A)),
    ("intent", lambda: LOG.begin(A)),
    ("call", lambda: LOG.find(A)),
    ("filter", lambda: LOG.entries(A)),
    ("seq", lambda: LOG.entry(A)),
    ("run_id", lambda: LOG.runs(A)),
    ("digests", lambda: LOG.attachments(A)),
    ("digests", lambda: LOG.attachments("sha256:")),
    ("call_id", lambda: LOG.last(A)),
    ("run_id", lambda: LOG.last("call_1", run_id=A)),
    ("key", lambda: LOG.checkpoint(A)),
    ("rotates_to", lambda: LOG.checkpoint(SIGNING, rotates_to=A)),
    ("checkpoint", lambda: LOG.checkpoint(SIGNING, after=A)),
    ("seq", lambda: LOG.prove(A, "")),
    ("checkpoint", lambda: LOG.prove(1, A)),
    ("head", lambda: LOG.verify(head=A)),
    ("checkpoint", lambda: LOG.verify(checkpoint=A)),
    ("before", lambda: LOG.prune(before=A)),
    ("run_id", lambda: AuditFilter(run_id=A)),
    ("since", lambda: AuditFilter(since=A)),
    ("status", lambda: AuditFilter(status=A)),
    ("limit", lambda: AuditFilter(limit=A)),
    ("name", lambda: SigningKey.generate(A, "x.key")),
    ("file", lambda: SigningKey.generate("shop", A)),
    ("file", lambda: SigningKey.load(A)),
    ("public", lambda: SigningKey(A, SIGNING.sign)),
    ("sign", lambda: SigningKey(SIGNING.public, A)),
    ("text", lambda: PublicKey.parse(A)),
    ("checkpoint", lambda: Checkpoint.read(A)),
    ("checkpoint", lambda: Checkpoint.opened(A, SIGNING.public)),
    ("proof", lambda: verify_inclusion(A, SIGNING.public)),
    ("proof", lambda: verify_inclusion(b"c2sp")),  # type: ignore[arg-type]
    ("key", lambda: Checkpoints(A, "folder")),
    ("keep", lambda: Checkpoints(SIGNING, A)),
    ("every", lambda: Checkpoints(SIGNING, "folder", every=A)),
    ("seconds", lambda: Checkpoints(SIGNING, "folder", seconds=A)),
    ("call", lambda: hydrate(A, TOOLS)),
    ("tool", lambda: hydrate(CALL, A)),
    ("repairer", lambda: repair(REJECTED, Catalog(TOOLS), A)),  # type: ignore[arg-type]
    ("tool", lambda: Catalog(A)),
    ("tool", lambda: Catalog([A])),
    ("tool", lambda: Offer.of(A)),
    ("tool", lambda: get_definition(A)),
    ("tool", lambda: function_to_tool_definition(A)),
    ("tools", lambda: pick_tools("x", A)),
    ("options", lambda: pick_tools("x", TOOLS, A)),
    ("max_candidates", lambda: PickOptions(max_candidates=A)),
    ("per_call", lambda: per_call(A)),
    ("cls", lambda: capability(A)),
    ("tools", lambda: discover(A)),
    ("path", lambda: bundle_refs(A)),
    ("root", lambda: bundle_refs("x.json", root=A)),
    ("awaitable", lambda: run_sync(A)),
    ("safe_text", lambda: ToolError(A)),
    ("settings", lambda: OpenAIClient("m", api_key="k", settings=A)),
    ("settings", lambda: OpenAIClient("m", api_key="k", settings={})),  # type: ignore[arg-type]
    ("arguments", lambda: ToolCall("1", "", "pay", {"a": 1})),  # type: ignore[arg-type]
    ("roles", lambda: Caller("ada", "admin")),  # type: ignore[arg-type]
    ("roles", lambda: Caller("ada", (1,))),  # type: ignore[arg-type]
    ("turns", lambda: Limits(turns=True)),
    ("role", lambda: Message("nobody")),  # type: ignore[arg-type]
    ("content", lambda: Message.user(A)),
    ("result", lambda: agent().session().keep(A)),
    ("plan", lambda: runner().record_plan(A)),
    ("plan", lambda: runner().record_plan([A])),
    ("caller", lambda: runner().record_plan([], caller=A)),
    ("names", lambda: Catalog(TOOLS).only(["add"])),  # type: ignore[arg-type]
    ("names", lambda: Catalog(TOOLS).without(A)),
    ("holds", lambda: Catalog(TOOLS).where(A)),
    ("prefix", lambda: Catalog(TOOLS).prefixed(A)),
    ("handlers", lambda: Catalog.from_definitions([], handlers=[print])),  # type: ignore[arg-type]
    ("marks", lambda: Catalog.from_definitions([], marks=A)),
    ("marks", lambda: Catalog.from_definitions([], marks={"x": True})),  # type: ignore[dict-item]
    ("trust", lambda: Catalog.from_definitions([], trust=["x"])),  # type: ignore[arg-type]
    ("lock", lambda: Catalog(TOOLS).trusting({}, lock="x.lock")),  # type: ignore[arg-type]
    ("require_roles", lambda: require_roles(["admin"])),  # type: ignore[arg-type]
    ("deny_by_default", lambda: deny_by_default(allow=A)),
]


@each_row(("named", "make"), CALLS, ids=[f"{at}-{named}" for at, (named, _) in enumerate(CALLS)])
def test_a_wrong_type_is_one_sentence(named: str, make: Callable[[], Any]) -> None:
    async def in_a_loop() -> Any:
        made = make()
        return await made if inspect.isawaitable(made) else made

    sync = make.__code__.co_names[:1] == ("run_sync",)
    with pytest.raises((TypeError, ToolcribError)) as raised:
        make() if sync else asyncio.run(in_a_loop())
    told = str(raised.value)
    assert named in told
    assert "canary-4410" not in told or named in ("output", "max_candidates")  # an option, no value
    assert "\n" not in told
    assert "has no attribute" not in told


VALUES: list[Any] = [
    CALL,
    Caller("ada", ("admin",)),
    Limits(),
    Message.user("hi"),
    Usage(),
    Settings(),
    ToolChoice(),
    Reply(Message.assistant("hi"), "stop"),
    Approve("ada"),
    Refuse(),
    Ask("why"),
    Deny("why"),
    CallContext("c", "r", "k", Caller("ada"), None),
    definition(),
    STATE,
]


def checked_fields(value: Any) -> Any:
    kind: Any = type(value)
    return _fields(kind)


def fields_of_values() -> list[Any]:
    return [
        pytest.param(value, name, id=f"{type(value).__name__}.{name}")
        for value in VALUES
        for name, *_ in checked_fields(value)
    ]


@each_row(("value", "name"), fields_of_values())
def test_each_field_of_a_value_is_checked_when_it_is_made(value: Any, name: str) -> None:
    fields = {f: getattr(value, f) for f in value.__struct_fields__} | {name: A}
    with pytest.raises((TypeError, ToolcribError)) as raised:
        type(value)(**fields)
    told = str(raised.value)
    assert told.startswith(f"{type(value).__name__}: {name} is ")
    assert told.endswith("this is an Alien")


@each_row("value", VALUES, ids=lambda value: type(value).__name__)
def test_few_fields_cannot_be_checked(value: Any) -> None:
    """Those that may be anything, and what is known by its methods alone."""
    unchecked = {*value.__struct_fields__} - {name for name, *_ in checked_fields(value)}
    assert unchecked <= {"raw", "observer", "provider_state", "fault", "offer"}, unchecked


def test_lists_are_taken_for_tuples() -> None:
    made = Caller("ada", ["admin"])  # type: ignore[arg-type]
    assert made == Caller("ada", ("admin",))
    assert hash(made)
