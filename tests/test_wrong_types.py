"""What is of a wrong type is one sentence: the parameter, what it has to be, and what came."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

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
    wire,
)
from toolcrib.approvals import ApprovalStore
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
from toolcrib.chat import chat_app, openai_routes
from toolcrib.chat.ag_ui import ag_ui_route
from toolcrib.clients import (
    LocalClient,
    OpenAIClient,
    Retries,
    Settings,
    client_for,
    fallback,
)
from toolcrib.errors import CapabilityError, ToolcribError
from toolcrib.pick import Feedback, Hybrid
from toolcrib.policies import budget, deny_by_default, require_roles
from toolcrib.spending import SpendStore
from toolcrib.testing import ScriptedClient, openai_server
from toolcrib.tools import Tool
from toolcrib.tools.lock import check_lock
from toolcrib.values.message import ChatRequest, ToolChoice
from toolcrib.values.typed import (
    _checkable_fields,
    _fits,
    _is_checked_by_class,
    _kind_of_hint,
    names_wrong_types,
)


class Alien:
    """Of no type that anybody wants, and with a secret in its repr."""

    def __repr__(self) -> str:
        return "canary-4410"


@tool(visible=ALL)
async def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


CALL = ToolCall("1", "add", '{"a": 1}')
TOOLS = [add]


def agent(**given: Any) -> Agent:
    return Agent(ScriptedClient(["hello"]), TOOLS, **given)


def runner(**given: Any) -> ToolRunner:
    return ToolRunner(TOOLS, **given)


def definition(**given: Any) -> ToolDefinition:
    said: dict[str, Any] = {"name": "x", "description": "", "input_schema_json": None}
    return ToolDefinition(**(said | given))


async def entered(server: Any) -> None:
    async with server:
        pass


STATE = asyncio.run(agent().run("hi")).state
REJECTED = hydrate(ToolCall("1", "add", "{"), Catalog(TOOLS))
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
    ("settings", lambda: agent(settings=A)),
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
    ("records", lambda: Feedback().learn("hello", A)),
    ("records[0]", lambda: Feedback().learn("hello", ["x"])),  # type: ignore[list-item]
    ("turns", lambda: entered(openai_server("Hello."))),
    ("turns[0]", lambda: entered(openai_server([A]))),
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
    ("entry", lambda: LOG.begin(A)),
    ("call", lambda: LOG.find(A)),
    ("filter", lambda: LOG.entries(A)),
    ("seq", lambda: LOG.entry(A)),
    ("run_id", lambda: LOG.runs(A)),
    ("digests", lambda: LOG.attachments(A)),
    ("digests", lambda: LOG.attachments("sha256:")),
    ("call_id", lambda: LOG.last(A)),
    ("run_id", lambda: LOG.last("call_1", run_id=A)),
    ("approval_id", lambda: LOG.last("call_1", approval_id=A)),
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
    ("arguments", lambda: ToolCall("1", "pay", {"a": 1})),  # type: ignore[arg-type]
    ("roles", lambda: Caller("ada", "admin")),  # type: ignore[arg-type]
    ("roles", lambda: Caller("ada", (1,))),  # type: ignore[arg-type]
    ("turns", lambda: Limits(turns=True)),
    ("role", lambda: Message("nobody")),  # type: ignore[arg-type]
    ("content", lambda: Message.user(A)),
    ("result", lambda: agent().session().keep(A)),
    ("state", lambda: agent().session().resume_stream(A)),
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
    ("retryable", lambda: ToolError("no", retryable=A)),
    ("retryable", lambda: CapabilityError("no", retryable="no")),  # type: ignore[arg-type]
    ("pinned", lambda: hydrate(CALL, TOOLS, pinned=A)),
    ("on_exception", lambda: hydrate(CALL, TOOLS, on_exception=A)),
    ("require_roles", lambda: require_roles(["admin"])),  # type: ignore[arg-type]
    ("allowed_origins", lambda: chat_app(agent(), store="sqlite://", allowed_origins="http://a")),
    ("allowed_origins", lambda: openai_routes(agent(), allowed_origins=[5])),  # type: ignore[list-item]
    ("allowed_origins", lambda: ag_ui_route(agent(), allowed_origins=A)),
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
    return _checkable_fields(kind)


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
    assert told.startswith(f"{type(value).__name__}: {name} must be ")
    assert told.endswith("got an Alien")


@each_row("value", VALUES, ids=lambda value: type(value).__name__)
def test_few_fields_cannot_be_checked(value: Any) -> None:
    """Those that may be anything, and what is known by its methods alone."""
    unchecked = {*value.__struct_fields__} - {name for name, *_ in checked_fields(value)}
    assert unchecked <= {"raw", "observer", "provider_state", "fault", "offer"}, unchecked


def test_lists_are_taken_for_tuples() -> None:
    made = Caller("ada", ["admin"])  # type: ignore[arg-type]
    assert made == Caller("ada", ("admin",))
    assert hash(made)


# --- rooms below the top package: each parameter of what their `__all__` names

ROOMS = (
    *("wire", "clients", "tools", "tools.lock", "hydration", "pick", "approvals", "policies"),
    *("storage", "kit", "testing", "chat", "chat.ag_ui"),
    "bridges.openapi",
)
WRONG: list[Any] = [3, None, "x", b"x", [1], {"a": 1}, A]
PYTHONS_OWN = re.compile(
    r"has no attribute|not supported between|is not iterable|unhashable|not subscriptable|no len\(\)"
    r"|expected str, bytes or|must be an iterable|argument of type|Expecting value|cannot unpack"
    r"|unsupported operand|unsupported format|Unknown format|bytes-like object|string pattern"
    r"|not JSON serializable"
)


def public(room: str) -> list[Any]:
    """The functions of a room, its classes that are made by calling them, and their other makers."""
    module = importlib.import_module(f"toolcrib.{room}".rstrip("."))
    names = getattr(module, "__all__", None) or ["check_lock", "lock_catalog", "read_lock"]
    found = [getattr(module, name) for name in names if hasattr(module, name)]
    made = [one for one in found if inspect.isfunction(one) or inspect.isclass(one)]
    return [one for one in made if not _is_made_otherwise(one)] + [
        getattr(one, name)
        for one in made
        if inspect.isclass(one)
        for name, held in vars(one).items()
        if isinstance(held, staticmethod | classmethod) and not name.startswith("_")
    ]


def _is_made_otherwise(one: Any) -> bool:
    """A protocol, an exception, and what only `@tool` makes."""
    error = inspect.isclass(one) and issubclass(one, BaseException)
    return bool(getattr(one, "_is_protocol", False)) or error or one is Tool


def wrong_calls(function: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for label, args, kwargs in wrong_arguments(function):
        yield label, functools.partial(function, *args, **kwargs)


def wrong_arguments(function: Any) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """A value of each wrong kind, for each parameter alone and for those that it cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_KEYWORD]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for value in WRONG:
            first = [value for p in needed if p.kind <= p.VAR_POSITIONAL]
            named = {p.name: value for p in needed if p.kind is p.KEYWORD_ONLY}
            if parameter not in needed:
                named[parameter.name] = value
            label = f"{parameter.name}={type(value).__name__}"
            yield label, first, named


@pytest.mark.parametrize("room", ROOMS)
def test_no_public_function_of_a_room_fails_inside_for_a_wrong_type(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a text may be the name of a file, and then is made
    failures = []
    for function in public(room):
        for label, wrong_call in wrong_calls(function):
            try:
                made = wrong_call()
                if inspect.iscoroutine(made):
                    asyncio.run(made)
                if isinstance(made, io.IOBase):
                    made.close()
            except (ToolcribError, OSError):
                continue
            except Exception as error:  # noqa: BLE001  whatever it is, it is judged
                if is_pythons_own(error):
                    failures.append(f"{function.__qualname__}({label}): {error!r}")
    assert failures == []


def is_pythons_own(error: Exception) -> bool:
    is_told = isinstance(error, TypeError | ValueError)
    return not is_told or PYTHONS_OWN.search(str(error)) is not None


RESULT = asyncio.run(agent(state_key=bytes(32)).run("hi"))
OBJECTS: dict[str, Callable[[], Any]] = {
    "Agent": agent,
    "Session": lambda: agent().session(),
    "ToolRunner": runner,
    "Catalog": lambda: Catalog(TOOLS),
    "Tool": lambda: add,
    "ToolDefinition": add.get_definition,
    "RunResult": lambda: RESULT,
    "RunState": lambda: RESULT.state,
    "Message": lambda: Message.user("hi"),
    "Offer": lambda: Offer.of(TOOLS),
    "Settings": Settings,
    "AuditLog": lambda: AuditLog("sqlite://"),
    "ApprovalStore": lambda: ApprovalStore("sqlite://", state_key=bytes(32)),
    "SpendStore": lambda: SpendStore("sqlite://"),
    "Feedback": Feedback,
    "ScriptedClient": lambda: ScriptedClient(["hi"]),
    "FallbackClient": lambda: fallback([ScriptedClient(["hi"])]),
    "LocalClient": LocalClient,
    "OpenAIClient": lambda: OpenAIClient("m", base_url="http://127.0.0.1:1", api_key="k"),
    "a decoder": lambda: wire.decoder(wire.OPENAI_CHAT, True, Offer()),
}
BETWEEN_ROOMS = {
    "Feedback.learn",  # a dict is an iterable
    *("Offer.own_name", "Offer.permitted_by"),
    *("Tool.code_at", "Tool.invoke", "Tool.make", "Tool.registered"),
    *("ToolRunner.emulated_as", "ToolRunner.foreseen", "ToolRunner.or_sinks"),
    *("ToolRunner.record_begun", "ToolRunner.refuse_all"),
}
"""What the library's own code calls with what it has checked."""


@each_row("name", OBJECTS)
def test_no_public_method_fails_inside_for_a_wrong_type(name: str) -> None:
    make, failures = OBJECTS[name], []
    for method in dir(make()):
        held = inspect.getattr_static(make(), method)
        if method[0] == "_" or f"{name}.{method}" in BETWEEN_ROOMS or not inspect.isfunction(held):
            continue
        for label, args, kwargs in wrong_arguments(getattr(make(), method)):
            error = asyncio.run(fails_inside(make(), method, args, kwargs))
            failures += [] if error is None else [f"{name}.{method}({label}): {error!r}"]
    assert failures == []


async def fails_inside(
    one: Any, method: str, args: list[Any], kwargs: dict[str, Any]
) -> Exception | None:
    """What a method raises if that says nothing to whoever called it."""
    try:
        made = getattr(one, method)(*args, **kwargs)
        if inspect.isawaitable(made):
            await made
        elif hasattr(made, "__anext__"):
            await anext(made)
    except (ToolcribError, OSError):
        return None
    except Exception as error:  # noqa: BLE001  whatever it is, it is judged
        return error if is_pythons_own(error) else None
    finally:
        if hasattr(one, "aclose"):
            await one.aclose()
    return None


# Values that toolcrib makes and hands out: what is in them was checked before.
MADE_HERE = frozenset(
    (
        *("ApprovalRequested", "Completed", "Done", "Failed", "HandedOver", "Hydrated", "Offer"),
        *("PickResult",),
        *("PolicyContext", "ReasoningDelta", "Rejected", "ReplyFinished", "RunError", "RunResult"),
        *("RunStarted", "TextDelta", "ToolArgumentsDelta", "ToolCallFinished", "ToolCallProgress"),
        *("ToolCallStarted", "ToolInvocationRecord", "ToolsOffered", "UsageReported", "Waiting"),
        *("ApprovalRule", "KeptRule"),
        *(
            "Outgoing",
            "Parsed",
            "RepairRequest",
            "Excluded",
            "PickProvenance",
            "PickReport",
            "Query",
        ),
        *("Score", "ScoredTool", "BoundCall", "PerCall", "ChatRequest", "HttpRequest", "Memo"),
        *("ToolForm", "ToolView", "Wire"),
    )
)
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
SAMPLES: dict[Any, Any] = {
    str: "x",
    int: 1,
    float: 1.0,
    bool: True,
    bytes: b"x",
    tuple: (),
    list: [],
    dict: {},
    type(None): None,
    ToolCall: CALL,
    Agent: agent(),
    type(REJECTED): REJECTED,
}


def judged_parameters() -> Iterator[Any]:
    """Each parameter of all that is public whose hint says by a class what it takes."""
    met = set[Any]()
    for room in ("", *ROOMS):
        for one in public(room):
            if one in met or one.__name__ in MADE_HERE:
                continue
            met.add(one)
            for name, kind in kinds_of(one).items():
                if all(map(_is_checked_by_class, kind.types)) and not name.startswith("_"):
                    yield pytest.param(one, name, kind, id=f"{room}.{one.__qualname__}({name}=)")


def kinds_of(one: Any) -> dict[str, Any]:
    """What each parameter takes, by its hint; not those of which no class can tell."""
    struct = hasattr(one, "__struct_fields__")
    of: Any = one.__init__ if inspect.isclass(one) and not struct else one
    try:
        hints, parameters = get_type_hints(of), inspect.signature(one).parameters
    except (NameError, ValueError):  # of an optional extra; of a class without a constructor
        return {}
    kinds: dict[str, Any] = {}
    for name, parameter in parameters.items():
        kind = _kind_of_hint(hints[name]) if name in hints else None
        if kind is not None and object not in kind.types and parameter.kind is not VAR_KEYWORD:
            kinds[name] = kind
    return kinds


def call_with(one: Any, name: str, value: Any) -> Callable[[], Any]:
    """Call it with a value for one parameter, and for those that it cannot do without."""
    kinds, args, named = kinds_of(one), list[Any](), dict[str, Any]()
    for parameter in inspect.signature(one).parameters.values():
        if parameter.name == name:
            given = value
        elif parameter.default is parameter.empty and parameter.kind < parameter.VAR_KEYWORD:
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            given = sample(parameter.name, kinds.get(parameter.name))
        else:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            named[parameter.name] = given
        else:
            args.append(given)
    return functools.partial(one, *args, **named)


def sample(name: str, kind: Any) -> Any:
    by_name = {"tools": TOOLS, "offered": TOOLS, "model": ScriptedClient(["x"]), "url": "sqlite://"}
    if kind is None or name == "url":
        return by_name.get(name)
    return next((SAMPLES[each] for each in kind.types if each in SAMPLES), {})


def settled(make: Callable[[], Any]) -> None:
    made = make()
    if inspect.iscoroutine(made):
        asyncio.run(made)


@each_row(("one", "name", "kind"), list(judged_parameters()))
def test_a_wrong_type_is_never_taken_in_silence(
    one: Any, name: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in (A, 5, "no", None, [A]):
        if _fits(kind, wrong) or (isinstance(wrong, list) and tuple in kind.types):
            continue
        with pytest.raises((TypeError, ToolcribError)) as raised:
            settled(call_with(one, name, wrong))
        assert PYTHONS_OWN.search(str(raised.value)) is None, wrong


def test_what_is_named_as_made_here_is_public() -> None:
    known = {one.__name__ for room in ("", *ROOMS) for one in public(room)}
    assert known >= MADE_HERE


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: client_for(A), "client_for: name must be a str; got an Alien"),
        (lambda: wire.decode(wire.OPENAI_CHAT, A), "decode: body must be a bytes"),
        (lambda: wire.encode_tools([add], "openai"), "encode_tools: wire must be a"),  # type: ignore[arg-type]
        (lambda: check_lock(3, 3), "check_lock: "),  # type: ignore[arg-type]
        (
            lambda: Hybrid([1]),  # type: ignore[list-item]
            r"Hybrid: each item of parts must be a tuple; parts\[0\]: got an int",
        ),
        (
            lambda: Approve("ada", for_run="always"),  # type: ignore[arg-type]
            "Approve: for_run must be one of False, True, 'exactly'; got a str",
        ),
        (lambda: Retries(attempts="3"), "Retries: attempts must be an int; got a str"),  # type: ignore[arg-type]
        (lambda: ChatRequest(["Hi"]), r"messages must be a list of messages; .*\[0\]: got a str"),  # type: ignore[arg-type]
    ],
)
def test_the_sentence_names_the_parameter_and_what_it_wants(call: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told) as raised:
        call()
    assert "canary" not in str(raised.value)
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: Limits(max_turns=3),  # type: ignore[call-arg]
            r"^Limits: there is no field 'max_turns' \(did you mean 'turns'\?\); there are: turns, ",
        ),
        (
            lambda: AuditFilter(run="run_1"),  # type: ignore[call-arg]
            r"^AuditFilter: there is no field 'run' \(did you mean 'run_id'\?\)",
        ),
        (lambda: PickOptions(top=3), "^PickOptions: there is no field 'top'; .*max_candidates"),  # type: ignore[call-arg]
        (Approve, "^Approve: by= is missing$"),
        (lambda: Caller(roles=("x",)), "^Caller: id= is missing$"),  # type: ignore[call-arg]
        (lambda: Caller("ada", (), 3), "^Extra positional arguments"),  # type: ignore[call-arg]
    ],
)
def test_a_field_that_a_value_lacks_is_answered_with_those_it_has(make: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        make()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: ToolRunner([add], policies=[]),  # type: ignore[call-arg]
            r"^ToolRunner: there is no parameter 'policies' \(did you mean 'policy'\?\); there are: t",
        ),
        (
            lambda: AuditLog(path="x"),  # type: ignore[call-arg]
            "^AuditLog: there is no parameter 'path'; there are: url, key",
        ),
        (lambda: agent().replace(approver=A), "^Agent.replace: .*; there are: model, tools, "),  # type: ignore[call-arg]
        (lambda: budget(call=3), r"^budget: .* 'call' \(did you mean 'calls'\?\)"),  # type: ignore[call-arg]
        (ToolRunner, "missing 1 required positional argument: 'tools'"),
        (  # not that a key is missing
            lambda: OpenAIClient("m", url="http://localhost/v1"),  # type: ignore[call-arg]
            "^OpenAIClient: there is no parameter 'url'; there are: model, api, base_url, .*, retries",
        ),
    ],
)
def test_a_parameter_that_does_not_exist_is_answered_with_those_that_do(
    make: Any, told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        make()


def test_what_fails_for_another_reason_stays_what_it_is() -> None:
    @names_wrong_types
    def fails(text: str, *, times: int = 1) -> str:
        return {"a": text * times}["b"]

    with pytest.raises(KeyError):
        fails("x")
    with pytest.raises(TypeError, match="fails: times must be an int; got a list"):
        fails("x", times=[])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fails()  # type: ignore[call-arg]
