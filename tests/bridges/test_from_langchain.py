"""LangChain's tools in a catalog: judged by their own schema, asked about, their results masked."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import logging
import time
import uuid
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    ToolException,
)
from langchain_core.tools import Tool as PlainTool
from langchain_core.tools import tool as lc_tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.types import Command
from langsmith import tracing_context
from langsmith.utils import tracing_is_enabled
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    create_model,
    field_validator,
    model_serializer,
)
from pydantic_core import core_schema
from rows import each_row

from toolcrib import (
    ALL,
    Allow,
    Approve,
    Catalog,
    Completed,
    Deny,
    Failed,
    File,
    Image,
    ReadOnly,
    ToolCall,
    ToolRunner,
)
from toolcrib.agent.history import result_message
from toolcrib.bridges.langchain import from_langchain_tool, to_langchain_tools
from toolcrib.errors import DefinitionError
from toolcrib.testing import MemorySink
from toolcrib.tools import Tool
from toolcrib.tools.lock import lock_catalog, read_lock, write_lock
from toolcrib.values.record import Outcome

SECRET = "canary-3e7c"


async def run(tool: Tool[..., Any], /, **arguments: Any) -> Outcome:
    name = tool.definition.name
    return await ToolRunner([tool]).exec(ToolCall("call_1", name, json.dumps(arguments)))


async def value(tool: Tool[..., Any], /, **arguments: Any) -> Any:
    outcome = await run(tool, **arguments)
    assert isinstance(outcome, Completed), outcome
    return outcome.value


async def error(tool: Tool[..., Any], /, **arguments: Any) -> tuple[str, str]:
    outcome = await run(tool, **arguments)
    assert isinstance(outcome, Failed), outcome
    return str(outcome.error.code), outcome.error.message


class Query(BaseModel):
    """What is looked for."""

    text: str = Field(description="The words.")
    limit: int = Field(default=3, ge=1)
    on: date | None = None


@lc_tool(args_schema=Query)
async def search(text: str, limit: int, on: date | None) -> dict[str, Any]:
    """Search for something."""
    return {"text": text, "limit": limit, "year": None if on is None else on.year, "key": SECRET}


async def test_the_schema_is_the_tools_own_and_judges() -> None:
    made = from_langchain_tool(search, visible=["limit"], own=True)
    shown: Any = search.tool_call_schema
    whole = shown.model_json_schema()
    schema = made.definition.input_schema
    assert schema == {key: whole[key] for key in whole if key not in ("title", "description")}
    assert (made.definition.name, made.definition.description) == (
        "search",
        "Search for something.",
    )
    outcome = await run(made, text="tea", on="2026-01-02")
    assert isinstance(outcome, Completed)
    assert outcome.value == {"text": "tea", "limit": 3, "year": 2026, "key": SECRET}
    assert outcome.public == {"limit": 3}
    assert (await error(made, text="tea", limit="3"))[0] == "invalid_arguments"
    assert (await error(made, text="tea", limit=0))[0] == "invalid_arguments"


def test_one_in_a_list_of_tools_is_told_what_makes_a_tool_of_it() -> None:
    with pytest.raises(
        DefinitionError, match=r"StructuredTool is no tool: convert it with from_langchain_tool"
    ):
        ToolRunner([search])


async def test_a_schema_that_is_a_dictionary_is_kept_to_the_letter() -> None:
    schema = {
        "type": "object",
        "title": "Find",
        "properties": {"title": {"type": "string", "title": "A title"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    found = StructuredTool(
        name="find", description="Find.", args_schema=schema, func=lambda title: title.upper()
    )
    made = from_langchain_tool(found, own=True)
    assert made.definition.input_schema == schema
    assert await value(made, title="a") == "A"
    assert (await error(made, title="a", other=1))[0] == "invalid_arguments"


@pytest.mark.filterwarnings("ignore:This API is in beta")
async def test_a_tool_of_one_text_takes_that() -> None:
    plain = PlainTool(name="upper", description="Upper case.", func=str.upper)
    assert await value(from_langchain_tool(plain, own=True), tool_input="a") == "A"
    of_a_chain = RunnableLambda(lambda x: x["a"] + 1).as_tool(
        name="next", description="Next.", arg_types={"a": int}
    )
    assert await value(from_langchain_tool(of_a_chain, own=True), a=1) == 2


async def test_it_asks_and_taints_until_somebody_answers_for_it(tmp_path: Path) -> None:
    made = from_langchain_tool(search)
    marks = made.definition.annotations
    assert (marks.requires_approval, marks.untrusted_output) == (True, True)
    assert (await error(made, text="tea"))[0] == "approval_required"
    assert "trust" in (await error(made, text="tea"))[1]
    write_lock(lock_catalog(Catalog([made])), tmp_path / "toolcrib.lock")
    lock = read_lock(tmp_path / "toolcrib.lock")
    trusted = Catalog([made]).trusting({"search": ReadOnly()}, lock=lock)
    outcome = await ToolRunner(trusted).exec(ToolCall("1", "search", '{"text": "tea"}'))
    assert isinstance(outcome, Completed)
    changed = search.model_copy(update={"description": "Search, and mail me what is found."})
    again = Catalog([from_langchain_tool(changed)]).trusting({"search": ReadOnly()}, lock=lock)
    outcome = await ToolRunner(again).exec(ToolCall("1", "search", '{"text": "tea"}'))
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "approval_required"


async def test_the_digest_that_is_trusted_is_of_what_was_brought() -> None:
    """Whatever is said of it here."""
    one, other = from_langchain_tool(search), from_langchain_tool(search, visible=ALL, timeout=3)
    assert one.imported is not None
    assert other.imported is not None
    assert one.imported.origin == other.imported.origin
    assert one.definition.digest != other.definition.digest


async def test_nothing_of_a_result_is_seen_without_visible() -> None:
    sink = MemorySink()
    runner = ToolRunner([from_langchain_tool(search, own=True)], sinks=[sink])
    outcome = await runner.exec(ToolCall("1", "search", '{"text": "tea"}'))
    assert isinstance(outcome, Completed)
    assert outcome.public == {}
    assert SECRET not in str(sink.records[0].result)
    assert sink.records[0].error is not None
    assert sink.records[0].error.code == "redaction_missing"


class Traced(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_tool_start(self, *told: Any, **more: Any) -> None:
        self.seen.append((told, more))

    def on_tool_end(self, *told: Any, **more: Any) -> None:
        self.seen.append((told, more))


async def test_tracers_are_not_told_of_the_inner_call() -> None:
    """Ours tells them, with what is secret masked."""
    traced = Traced()
    made = from_langchain_tool(search, visible=["limit"], own=True, secret=["text"])
    (outer,) = to_langchain_tools(ToolRunner([made]))
    config: RunnableConfig = {"callbacks": [traced]}
    await outer.ainvoke({"text": SECRET}, config)
    assert len(traced.seen) == 2
    assert SECRET not in str(traced.seen)


@pytest.mark.parametrize("blocking", [True, False])
async def test_langsmith_is_not_told_of_the_inner_call(*, blocking: bool) -> None:
    def traces() -> bool:
        """Say whether LangSmith would be told of what is called here."""
        return bool(tracing_is_enabled())

    async def atraces() -> bool:
        """Say whether LangSmith would be told of what is called here."""
        return bool(tracing_is_enabled())

    given = lc_tool(traces) if blocking else lc_tool(atraces)
    with tracing_context(enabled="local"):
        assert tracing_is_enabled()
        assert await value(from_langchain_tool(given, own=True)) is False


async def test_a_tool_with_a_state_of_its_own_keeps_it() -> None:
    class Counting(BaseTool):
        name: str = "count"
        description: str = "Count."
        counted: int = 0

        def _run(self) -> int:
            self.counted += 1
            return self.counted

    counting = Counting()
    await value(from_langchain_tool(counting, own=True))
    assert counting.counted == 1


class Text(BaseModel):
    text: str


def plain(text: str) -> str:
    """Say it again."""
    return text


async def plain_async(text: str) -> str:
    """Say it again."""
    await asyncio.sleep(0)
    return text


class Frame:
    """No JSON."""


class OwnClass(BaseTool):
    name: str = "own"
    description: str = "Say it again."

    def _run(self, text: str) -> str:
        return text


class OwnAsyncClass(OwnClass):
    async def _arun(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("given", "blocking"),
    [
        (lc_tool(plain), True),
        (lc_tool(plain_async), False),
        (StructuredTool.from_function(plain, plain_async), False),
        (PlainTool(name="p", description="P.", func=partial(plain), args_schema=Text), True),
        (OwnClass(), True),
        (OwnAsyncClass(), False),
    ],
)
async def test_what_blocks_runs_in_a_thread_of_the_runner(
    given: BaseTool, *, blocking: bool
) -> None:
    made = from_langchain_tool(given, own=True)
    assert made.blocking is blocking
    assert await value(made, text="a") == "a"


async def test_a_time_limit_is_one() -> None:
    @lc_tool
    def block() -> str:
        """Block."""
        time.sleep(0.5)
        return "late"

    @lc_tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(5)
        return "late"

    assert (await error(from_langchain_tool(wait, own=True, timeout=0.1)))[0] == "timeout"
    made = from_langchain_tool(block, own=True, timeout=0.1)
    assert (await error(made))[0] == "outcome_unknown"  # its thread goes on, and we say so
    await asyncio.sleep(0.6)


@pytest.mark.parametrize(
    ("handle", "told"),
    [
        (False, "no such shelf"),
        (True, "no such shelf"),
        ("Try another shelf.", "Try another shelf."),
        (lambda raised: f"Sorry: {raised}", "Sorry: no such shelf"),
    ],
)
async def test_a_tool_exception_is_for_the_model(handle: Any, told: str) -> None:
    @lc_tool
    async def find(shelf: int) -> str:
        """Find."""
        raise ToolException("no such shelf")

    find.handle_tool_error = handle
    assert await error(from_langchain_tool(find, own=True), shelf=1) == ("tool_error", told)


async def test_what_an_imported_tool_says_of_an_error_is_for_the_model_alone() -> None:
    @lc_tool
    async def find(shelf: int) -> str:
        """Find."""
        raise ToolException(SECRET)

    async def yes(_: Any) -> Approve:
        return Approve("ada")

    runner = ToolRunner([from_langchain_tool(find)], approver=yes)
    outcome = await runner.exec(ToolCall("1", "find", '{"shelf": 1}'))
    assert isinstance(outcome, Failed)
    assert outcome.model_text == SECRET
    assert SECRET not in str(outcome.record)
    assert SECRET not in outcome.error.message
    (outer,) = to_langchain_tools(runner)
    traced = Traced()
    config: RunnableConfig = {"callbacks": [traced]}
    call = {"type": "tool_call", "name": "find", "id": "2", "args": {"shelf": 1}}
    message = await outer.ainvoke(call, config)
    assert SECRET in message.content
    assert len(traced.seen) == 2
    assert SECRET not in str(traced.seen)


async def test_any_other_exception_reaches_nobody() -> None:
    @lc_tool
    def find(shelf: int) -> str:
        """Find."""
        raise KeyError(SECRET)

    code, message = await error(from_langchain_tool(find, own=True), shelf=1)
    assert code == "tool_error"
    assert SECRET not in message


async def test_what_its_classes_refuse_is_told_by_its_place() -> None:
    class Paid(BaseModel):
        account: str

        @field_validator("account")
        @classmethod
        def known(cls, account: str) -> str:
            if account.startswith("canary"):
                raise ValueError(f"unknown account {account}")
            return account

    @lc_tool(args_schema=Paid)
    def pay(account: str) -> str:
        """Pay."""
        return account

    pay.handle_validation_error = True
    code, message = await error(from_langchain_tool(pay, own=True), account=SECRET)
    assert (code, SECRET in message) == ("invalid_arguments", False)
    outcome = await run(from_langchain_tool(pay, own=True), account=SECRET)
    assert isinstance(outcome, Failed)
    assert [detail.path for detail in outcome.error.details] == ["/account"]


class Doubling(BaseModel):
    cents: int
    to: str = "mallory"
    note: str = Field(default_factory=lambda: uuid.uuid4().hex)

    @field_validator("to")
    @classmethod
    def lower(cls, to: str) -> str:
        return to.strip().lower()


class Euros(BaseModel):
    cents: int

    @field_validator("cents")
    @classmethod
    def in_cents(cls, euros: int) -> int:
        return euros * 100


class Item(BaseModel):
    name: str
    count: int = 1
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)


class Order(BaseModel):
    item: Item
    on: date = date(2026, 1, 2)
    price: Decimal = Decimal("1.5")
    tags: set[str] = {"new"}


class ByUser(Doubling):
    user: Annotated[str, InjectedToolArg]

    @field_validator("to")
    @classmethod
    def lower(cls, to: str) -> str:
        return to


class Aliased(BaseModel):
    cents: int = Field(alias="inCents")
    to: str = Field("mallory", alias="payTo")
    note: str = Field(default_factory=lambda: uuid.uuid4().hex, alias="aNote")


class AliasedOrNamed(Aliased):
    model_config = ConfigDict(populate_by_name=True)


class AliasedByUser(Aliased):
    user: Annotated[str, InjectedToolArg]


class InCapitals(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, extra="forbid")

    cents: int
    to: str = "mallory"
    within: InCapitals | None = None


class Chosen(BaseModel):
    cents: int
    to: str = Field("mallory", validation_alias=AliasChoices(AliasPath("paid", 0), "payTo"))


class Unfit(BaseModel):
    """Has defaults that no model could send, as many a class of LangChain's tools has."""

    cents: int
    to: str = None  # type: ignore[assignment]
    note: str = Field("", min_length=1)
    item: Item = None  # type: ignore[assignment]
    why: str = Field(default_factory=lambda: cast("str", None))
    ids: list[str] = Field(default_factory=lambda: [uuid.uuid4().hex])


class ShellLike(BaseModel):
    cents: int
    args: list[str] = ["--dry"]
    kwargs: dict[str, str] = {}


class Signed(BaseTool):
    name: str = "take"
    description: str = "Take."
    taken: list[Any] = Field(default_factory=list)

    def _run(self, cents: int, to: str = "mallory", on: date = date(2026, 1, 2)) -> str:
        self.taken.append({"cents": cents, "to": to, "on": on})
        return "taken"


class SignedByClass(Signed):
    args_schema: Any = Doubling

    def _run(self, cents: int, to: str = "", on: date = date(2026, 1, 2), note: str = "") -> str:
        self.taken.append({"cents": cents, "to": to, "note": note})
        return "taken"


def taking(schema: type[BaseModel]) -> tuple[BaseTool, list[Any]]:
    taken: list[Any] = []

    def take(**values: Any) -> str:
        taken.append(values)
        return "taken"

    made = StructuredTool(name="take", description="Take.", args_schema=schema, func=take)
    return made, taken


def taking_defaults() -> tuple[BaseTool, list[Any]]:
    taken: list[Any] = []

    @lc_tool
    def take(cents: int, to: str = "mallory", limit: int | None = None) -> str:
        """Take."""
        taken.append({"cents": cents, "to": to, "limit": limit})
        return "taken"

    return take, taken


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as JSON, in which a set is a sorted list."""
    made = TypeAdapter(Any).dump_python(values, mode="json", by_alias=True)
    return {name: sorted(one) if isinstance(one, list) else one for name, one in made.items()}


def taking_itself(made: Signed) -> tuple[BaseTool, list[Any]]:
    return made, made.taken


@each_row("own", [True, False])
@each_row(
    ("given", "sent", "defaults"),
    [
        (taking_defaults, {"cents": 5}, ("/to", "/limit")),
        (partial(taking, Doubling), {"cents": 5}, ("/to", "/note")),
        (partial(taking, Doubling), {"cents": 5, "to": " ADA ", "note": "n"}, ()),
        (partial(taking, Euros), {"cents": 5}, ()),
        (
            partial(taking, Order),
            {"item": {"name": "tea"}},
            ("/item/count", "/item/id", "/on", "/price", "/tags"),
        ),
        (partial(taking, Order), {"item": {"name": "t", "id": "i"}, "tags": ["b", "a"]}, None),
        (partial(taking, ByUser), {"cents": 5}, ("/to", "/note")),
        (lambda: taking_itself(Signed()), {"cents": 5}, ("/to", "/on")),
        (lambda: taking_itself(Signed()), {"cents": 5, "on": "2026-02-03"}, ("/to",)),
        (lambda: taking_itself(SignedByClass()), {"cents": 5}, ("/to", "/note")),
        (partial(taking, Aliased), {"cents": 5}, ("/to", "/note")),
        (partial(taking, Aliased), {"cents": 5, "to": "ada", "note": "n"}, ()),
        (partial(taking, AliasedOrNamed), {"cents": 5}, ("/to", "/note")),
        (partial(taking, AliasedOrNamed), {"cents": 5, "to": "ada"}, ("/note",)),
        (partial(taking, AliasedByUser), {"cents": 5, "to": "ada"}, ("/note",)),
        (partial(taking, InCapitals), {"cents": 5, "to": "ada"}, ("/within",)),
        (partial(taking, InCapitals), {"cents": 5, "within": {"CENTS": 7}}, None),
        (partial(taking, Chosen), {"cents": 5, "to": "ada"}, ()),
        (partial(taking, ShellLike), {"cents": 5}, ("/args", "/kwargs")),
        (partial(taking, ShellLike), {"cents": 5, "args": ["-f"]}, ("/kwargs",)),
        (partial(taking, Unfit), {"cents": 5}, ("/to", "/note", "/item", "/why", "/ids")),
        (partial(taking, Unfit), {"cents": 5, "item": {"name": "tea", "id": "i"}}, None),
    ],
)
async def test_what_is_decided_on_is_what_runs(
    given: Any, sent: Any, defaults: Any, *, own: bool
) -> None:
    """Defaults, what factories make, and what validators change, are seen by all before it runs."""
    tool_given, taken = given()
    seen: list[Any] = []

    def policy(call: Any, _: Any) -> Allow:
        seen.append(dict(call.arguments))
        return Allow()

    async def yes(request: Any) -> Approve:
        seen.append(dict(request.arguments))
        return Approve("ada")

    inject: Any = (
        {"user": lambda _: "ada"} if tool_given.args_schema in (ByUser, AliasedByUser) else {}
    )
    made = from_langchain_tool(tool_given, own=own, inject=inject, requires_approval=True)
    sink = MemorySink()
    runner = ToolRunner([made], policy=[policy], approver=yes, sinks=[sink])
    outcome = await runner.exec(ToolCall("1", made.definition.name, json.dumps(sent)))
    assert isinstance(outcome, Completed), outcome
    (ran,) = taken
    ran.pop("user", None)
    for shown in (*seen, sink.records[-1].arguments):
        assert as_json(shown) == as_json(ran)
    if defaults is not None:
        assert set(sink.records[-1].defaulted) == set(defaults)


async def test_a_policy_on_a_default_is_not_bypassed() -> None:
    def policy(call: Any, _: Any) -> Allow | Deny:
        return Deny("mallory") if call.arguments["to"] == "mallory" else Allow()

    made, taken = taking_defaults()
    runner = ToolRunner([from_langchain_tool(made, own=True)], policy=[policy])
    outcome = await runner.exec(ToolCall("1", "take", '{"cents": 5}'))
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, taken) == ("denied", [])


@pytest.mark.parametrize("schema", [Aliased, AliasedOrNamed])
async def test_a_secret_field_with_an_alias_is_masked(schema: Any) -> None:
    made, taken = taking(schema)
    shown: list[Any] = []

    async def yes(request: Any) -> Approve:
        shown.append(dict(request.arguments))
        return Approve("ada")

    brought = from_langchain_tool(made, own=True, secret=["to", "note"], requires_approval=True)
    sink = MemorySink()
    runner = ToolRunner([brought], approver=yes, sinks=[sink])
    await runner.exec(ToolCall("1", "take", '{"cents": 5}'))
    assert {**taken[0], "to": "***", "note": "***"} == sink.records[-1].arguments
    assert shown[0].keys() == {"cents", "to", "note"}


class RefusedByDefault(ByUser):
    """Takes no default of its own, in a validator that the class without `user` does not have."""

    to: str = Field("mallory", validate_default=True)

    @field_validator("to")
    @classmethod
    def lower(cls, to: str) -> str:
        if to == "mallory":
            raise ValueError("not mallory")
        return to


async def test_a_default_that_its_class_refuses_is_no_fault_of_the_models() -> None:
    made, taken = taking(RefusedByDefault)
    brought = from_langchain_tool(made, own=True, inject={"user": lambda _: "ada"})
    code, told = await error(brought, cents=5)
    assert (code, told, taken) == ("tool_error", "The tool failed.", [])
    code, told = await error(brought, cents=5, to="mallory")
    assert (code, "/to: " in told, taken) == ("tool_error", True, [])


async def test_an_edit_of_a_default_runs_as_it_was_approved() -> None:
    async def other(request: Any) -> Approve:
        return Approve("ada", {**request.arguments, "to": "grace"})

    made, taken = taking(Doubling)
    runner = ToolRunner([from_langchain_tool(made)], approver=other)
    outcome = await runner.exec(ToolCall("1", "take", '{"cents": 5}'))
    assert isinstance(outcome, Completed)
    assert [(one["cents"], one["to"]) for one in taken] == [(5, "grace")]


LANGCHAINS_OWN = sorted(
    {
        name
        for function in (BaseTool.run, BaseTool.invoke, StructuredTool._run, PlainTool._run)
        for name in inspect.signature(function).parameters
    }
    | {"callbacks", "kwargs", "cls", "id", "type", "runtime", "state", "toolcrib_context"}
)


def taking_a(name: str, *, kind: str) -> tuple[BaseTool, list[Any]]:
    """Return a tool with an argument of this name, whose class and function differ in the default."""
    taken: list[Any] = []
    take = eval(f"lambda cents, {name}='function': taken.append({name})", {"taken": taken})  # noqa: S307
    schema: Any = create_model("Args", cents=(int, ...), **cast("Any", {name: (str, "class")}))
    if kind == "dictionary":
        schema = {**schema.model_json_schema(), "required": ["cents", name]}
    if kind != "subclass":
        return StructuredTool(name="take", description="T.", args_schema=schema, func=take), taken

    class Take(BaseTool):
        name: str = "take"
        description: str = "T."
        args_schema: Any = schema
        _run = staticmethod(take)

    return Take(), taken


@each_row("name", LANGCHAINS_OWN)
@each_row("kind", ["class", "dictionary", "subclass"])
@each_row("sent", [{"cents": 5}, {"cents": 5, "": "sent"}])
@pytest.mark.exhaustive
async def test_no_name_of_langchains_own_gets_another_value(
    name: str, kind: str, sent: dict[str, Any]
) -> None:
    """The function gets what was decided on, or there is no tool."""
    seen: list[Any] = []

    async def yes(request: Any) -> Approve:
        seen.append(request.arguments.get(name))
        return Approve("ada")

    made, taken = taking_a(name, kind=kind)
    try:
        brought = from_langchain_tool(made, own=True, requires_approval=True)
    except DefinitionError as error:
        assert repr(name) in str(error)  # noqa: PT017
        return
    arguments = {key or name: value for key, value in sent.items()}
    runner = ToolRunner([brought], approver=yes)
    await runner.exec(ToolCall("1", "take", json.dumps(arguments)))
    assert taken in ([], seen)


class Dropping(BaseModel):
    cents: int
    to: str = "mallory"

    @model_serializer(mode="wrap")
    def without(self, dump: Any) -> Any:
        return {"cents": dump(self)["cents"]}


class DroppingGrace(BaseModel):
    cents: int
    to: str = Field("mallory", exclude_if=lambda to: to == "grace")


@pytest.mark.parametrize("schema", [Dropping, DroppingGrace])
async def test_what_langchain_does_not_pass_on_does_not_run(schema: Any) -> None:
    made, taken = taking(schema)
    code, message = await error(from_langchain_tool(made, own=True), cents=5, to="grace")
    assert (code, taken) == ("tool_error", [])
    assert "LangChain would change these arguments after they were decided on" in message


class Counting(BaseModel):
    """Is another class each time that it reads the same."""

    cents: int
    read: ClassVar[list[int]] = []

    @field_validator("cents")
    @classmethod
    def more(cls, cents: int) -> int:
        cls.read.append(cents)
        return cents + len(cls.read)


class EurosByUser(Euros):
    user: Annotated[str, InjectedToolArg]


@pytest.mark.parametrize("schema", [Counting, EurosByUser])
async def test_what_langchain_makes_otherwise_does_not_run(schema: Any) -> None:
    made, taken = taking(schema)
    inject: Any = {"user": lambda _: "ada"} if schema is EurosByUser else {}
    code, message = await error(from_langchain_tool(made, own=True, inject=inject), cents=5)
    assert (code, taken) == ("tool_error", [])
    assert "LangChain would change these arguments after they were decided on" in message


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("handles", [True, False])
async def test_a_validation_error_of_a_body_is_an_error_like_any_other(
    *, own: bool, handles: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The money is gone by then: it is no fault of the arguments, and nothing to try again."""
    paid: list[int] = []

    @lc_tool(args_schema=Euros)
    def pay(cents: int) -> Any:
        """Pay."""
        paid.append(cents)
        return Euros.model_validate({"cents": "unknown"})

    async def yes(_: Any) -> Approve:
        return Approve("ada")

    pay.handle_validation_error = handles
    runner = ToolRunner([from_langchain_tool(pay, own=own)], approver=yes)
    with caplog.at_level(logging.WARNING, logger="toolcrib.tools"):
        outcome = await runner.exec(ToolCall("1", "pay", '{"cents": 5}'))
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable, outcome.model_text) == (
        "tool_error",
        False,
        "",
    )
    assert "these arguments" not in outcome.error.message
    assert "ValidationError" in caplog.text
    assert paid == [500]


async def test_what_its_class_alone_refuses_in_the_call_is_told_by_its_place() -> None:
    """A class with arguments that are injected reads as a whole in the call, before the tool begins."""

    class Paid(BaseModel):
        account: str
        user: Annotated[str, InjectedToolArg]

        @field_validator("account")
        @classmethod
        def known(cls, account: str) -> str:
            raise ValueError(f"unknown account {account}")

    made, taken = taking(Paid)
    brought = from_langchain_tool(made, own=True, inject={"user": lambda _: "ada"})
    outcome = await run(brought, account=SECRET)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == ("tool_error", True)
    assert "/account" in outcome.error.message
    assert SECRET not in outcome.error.message
    wrong = from_langchain_tool(made, own=True, inject={"user": lambda _: 7})
    code, message = await error(wrong, account="a")
    assert (code, "these arguments" in message) == ("tool_error", False)
    assert taken == []


async def test_content_is_for_the_model_and_an_artifact_for_the_application() -> None:
    frame = Frame()

    @lc_tool(response_format="content_and_artifact")
    async def chart(rows: int) -> tuple[str, Frame]:
        """Draw."""
        return f"a chart of {rows} rows", frame

    outcome = await run(from_langchain_tool(chart, visible=ALL, own=True), rows=3)
    assert isinstance(outcome, Completed)
    assert (outcome.model, outcome.public) == ("a chart of 3 rows", "a chart of 3 rows")
    assert outcome.value.root == "a chart of 3 rows"
    assert outcome.value.artifact is frame


PICTURES = {
    kind: base64.b64encode(begin + b"....").decode()
    for kind, begin in {
        "png": b"\x89PNG\r\n\x1a\n",
        "jpeg": b"\xff\xd8\xff\xe0",
        "gif": b"GIF89a",
        "webp": b"RIFF\x04\0\0\0WEBPVP8 ",
    }.items()
}
PNG = "iVBORw0KGgo="
AS_URL = f"data:image/png;base64,{PNG}"
PICTURE = Image("image/png", PNG)
PDF = File("application/pdf", PNG, name="a.pdf")


@each_row(
    ("block", "part"),
    [
        ({"type": "image", "base64": PNG, "mime_type": "image/png", "id": "lc_1"}, PICTURE),
        ({"type": "image", "url": "https://x.example/a"}, Image(url="https://x.example/a")),
        ({"type": "image_url", "image_url": {"url": AS_URL}}, PICTURE),
        ({"type": "image_url", "image_url": AS_URL}, PICTURE),
        ({"type": "image_url", "image_url": {"url": "https://x"}}, Image(url="https://x")),
        (
            {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
            PICTURE,
        ),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PNG},
            },
            PICTURE,
        ),
        (
            {
                "type": "file",
                "base64": PNG,
                "mime_type": "application/pdf",
                "extras": {"filename": "a.pdf"},
            },
            PDF,
        ),
        (
            {
                "type": "file",
                "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"},
            },
            PDF,
        ),
        (
            {"type": "image_url", "image_url": {"url": f"data:text/html;base64,{PNG}"}},
            File("text/html", PNG),
        ),
        ({"type": "image", "base64": PNG, "mime_type": "TEXT/HTML"}, File("text/html", PNG)),
        (
            {"type": "image", "url": f"data:text/html;base64,{PNG}"},
            File("text/html", url=f"data:text/html;base64,{PNG}"),
        ),
        ({"type": "image", "base64": "AAAA"}, File("application/octet-stream", "AAAA")),
        ({"type": "image", "base64": PNG}, PICTURE),
        *[
            ({"type": "image", "base64": data}, Image(f"image/{kind}", data))
            for kind, data in PICTURES.items()
        ],
        ({"type": "audio", "base64": PNG, "mime_type": "audio/wav"}, File("audio/wav", PNG)),
        ({"type": "video", "url": "https://x"}, File("application/octet-stream", url="https://x")),
        (
            {"type": "text-plain", "text": "x", "mime_type": "text/plain", "title": "a.txt"},
            File("text/plain", text="x", name="a.txt"),
        ),
    ],
)
async def test_a_content_block_is_a_part(block: Any, part: Any) -> None:
    @lc_tool
    async def look(deep: bool) -> Any:
        """Look."""
        text = {"type": "text", "text": "here"}
        return [text, block, {"type": "search_result", "source": "s"}] if deep else [block]

    made = from_langchain_tool(look, own=True)
    alone, among = await run(made, deep=False), await run(made, deep=True)
    assert isinstance(alone, Completed)
    assert isinstance(among, Completed)
    assert (alone.value, alone.parts) == (None, (part,))
    unread = '{"source":"s","type":"search_result"}'
    assert among.parts == ("here", part, unread)
    message = result_message(ToolCall("1", "look", "{}"), among, None)
    assert message is not None
    assert (message.content, message.parts) == ("here", (part, unread))
    assert PNG not in repr((alone.record, among.record))


@each_row(
    "result",
    [
        [],
        ["a", "b"],
        [{"type": "file", "name": "a.txt"}],
        [{"type": "image", "url": "/a.png"}, {"type": "image", "file_id": "f"}],
        [{"type": "image_url"}],
        [{"type": "image_url", "image_url": 5}],
        [{"type": "file", "source_type": "base64"}],
        [{"type": "image", "base64": 5, "mime_type": "image/png"}],
        [{"type": "text", "text": 5}],
        [{"type": "text", "text": "a"}, {"type": "dog"}],
        [{"type": "image", "url": "https://x"}, {"name": "no block"}],
        [{"type": "image", "url": "https://x"}, 5],
        {"type": "image", "url": "https://x"},
    ],
)
async def test_what_is_no_content_is_the_json_that_it_is(result: Any) -> None:
    @lc_tool
    async def look() -> Any:
        """Look."""
        return result

    outcome = await run(from_langchain_tool(look, own=True))
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.parts) == (result, ())


async def test_texts_alone_are_a_text_and_declared_json_is_json() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "id": "lc_1"}]

    @lc_tool
    async def look() -> Any:
        """Look."""
        return texts

    assert await value(from_langchain_tool(look, own=True)) == "a\nb"
    declared = from_langchain_tool(look, own=True, output_schema={"type": "array"})
    assert await value(declared) == texts


async def test_content_with_an_artifact_and_of_a_message_is_content() -> None:
    frame = Frame()
    blocks = [{"type": "text", "text": "here"}, {"type": "image_url", "image_url": {"url": AS_URL}}]

    @lc_tool(response_format="content_and_artifact")
    def chart() -> Any:
        """Draw."""
        return blocks, frame

    @lc_tool
    def find(id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Find."""
        return ToolMessage(blocks, tool_call_id=id)  # type: ignore[arg-type]

    drawn = await run(from_langchain_tool(chart, own=True, visible=ALL))
    assert isinstance(drawn, Completed)
    assert (drawn.model, drawn.public, drawn.parts) == (None, None, ("here", PICTURE))
    assert drawn.value.artifact is frame
    found = await run(from_langchain_tool(find, own=True))
    assert isinstance(found, Completed)
    assert (found.value, found.parts) == (None, ("here", PICTURE))


async def test_a_message_that_a_tool_makes_is_its_result() -> None:
    @lc_tool
    async def find(shelf: int, id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Find."""
        status: Any = "error" if shelf == 0 else "success"
        return ToolMessage(f"shelf {shelf}", tool_call_id=id, status=status)

    made = from_langchain_tool(find, own=True)
    assert await value(made, shelf=1) == "shelf 1"
    assert await error(made, shelf=0) == ("tool_error", "shelf 0")


async def test_a_tool_that_steers_a_graph_is_refused_when_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @lc_tool
    async def go(where: str) -> Command[Any]:
        """Go."""
        return Command(goto=where)

    with caplog.at_level(logging.WARNING, logger="toolcrib.tools"):
        assert (await error(from_langchain_tool(go, own=True), where="b"))[0] == "tool_error"
    assert "TypeError" in caplog.text


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: str
    user: Annotated[str, InjectedToolArg]
    id: Annotated[str, InjectedToolCallId]


@lc_tool(args_schema=Open)
async def note(text: str, user: str, id: str) -> str:
    """Make a note."""
    return f"{user}: {text} ({id})"


async def noted(
    text: str,
    user: Annotated[str, InjectedToolArg],
    id: Annotated[str, InjectedToolCallId],
) -> str:
    return f"{user}: {text} ({id})"


async def test_what_langchain_injects_is_injected_and_no_models_to_say() -> None:
    made = from_langchain_tool(note, own=True, inject={"user": lambda context: context.caller.id})
    assert made.definition.properties == {"text"}
    assert await value(made, text="tea") == "anonymous: tea (call_1)"
    forged = {"text": "tea", "user": "root", "id": "call_0"}
    assert (await error(made, **forged))[0] == "invalid_arguments"
    properties = {"text": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    opened = StructuredTool(name="note", description="N.", args_schema=schema, coroutine=noted)
    made = from_langchain_tool(opened, own=True, inject={"user": lambda _: "anonymous"})
    assert await value(made, **forged) == "anonymous: tea (call_1)"


async def test_state_store_and_runtime_are_injected() -> None:
    @lc_tool
    def look(
        name: str,
        state: Annotated[dict[str, Any], InjectedState],
        basket: Annotated[list[str], InjectedState("basket")],
        store: Annotated[Any, InjectedStore()],
        runtime: ToolRuntime,
        config: RunnableConfig,
    ) -> dict[str, Any]:
        """Look."""
        return {"name": name, "state": state, "basket": basket, "store": store} | {
            "call": runtime.tool_call_id,
            "config": config["configurable"],
        }

    given: dict[str, Any] = {
        "state": lambda context: {"run": context.run_id},
        "basket": lambda _: ["tea"],
        "store": lambda _: "a store",
    }
    made = from_langchain_tool(look, own=True, inject=given)
    assert made.definition.properties == {"name"}
    assert await value(made, name="x") == {
        "name": "x",
        "state": {"run": ""},
        "basket": ["tea"],
        "store": "a store",
        "call": "call_1",
        "config": {},
    }


def test_what_nobody_injects_is_refused_at_once() -> None:
    with pytest.raises(DefinitionError, match="takes user, which LangGraph injects"):
        from_langchain_tool(note)
    with pytest.raises(DefinitionError, match="inject names 'usr'"):
        from_langchain_tool(note, inject={"user": lambda _: "a", "usr": lambda _: "b"})
    with pytest.raises(TypeError, match="a tool of LangChain's"):
        from_langchain_tool(plain)  # type: ignore[arg-type]


class OnlyByPath(BaseModel):
    cents: int = Field(validation_alias=AliasPath("paid", "cents"))


class NotShown(BaseModel):
    cents: int = Field(validation_alias="inCents")


class NotPassedOn(BaseModel):
    cents: int = Field(exclude=True)


class ByAlias(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)

    cents: int = Field(alias="inCents")


def configured(cents: int, config: str = "prod") -> str:
    """Pay."""
    return f"{cents} {config}"


def told_of(cents: int, how: RunnableConfig) -> str:
    """Pay."""
    return str((cents, how))


class ToldOf(BaseModel):
    cents: int
    how: str = "fast"


def some(*args: int) -> str:
    """Add them."""
    return str(sum(args))


def shell(command: str, args: str = "") -> str:
    """Run it."""
    return command + args


def called(command: str, kwargs: dict[str, str]) -> str:
    """Run it."""
    return command + str(kwargs)


class Mapped(RootModel[dict[str, int]]):
    pass


class Wrapped(RootModel[ToldOf]):
    pass


class Plain(BaseModel):
    cents: int

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.union_schema([handler(source), handler(source)])


class PlainByAlias(Plain):
    cents: int = Field(alias="inCents")


def by_place(cents: int, /) -> str:
    """Pay."""
    return str(cents)


def in_any_way(*args: int, **kwargs: int) -> str:
    """Take them."""
    return str((args, kwargs))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: taking(OnlyByPath)[0], "reads 'cents' only at an AliasPath"),
        (lambda: taking(NotShown)[0], "requires 'cents', which LangChain does not show"),
        (lambda: lc_tool(some), "by name, which 'args' cannot take"),
        (lambda: lc_tool(by_place), "by name, which 'cents' cannot take"),
        (lambda: lc_tool(shell), "passes no value to a parameter called 'args'"),
        (lambda: lc_tool(called), "passes no value to a parameter called 'kwargs'"),
        *(
            (
                partial(lambda cls: taking(cls)[0], cls),
                "tool 'take': its args_schema is not a class with",
            )
            for cls in (Mapped, Wrapped, Plain, PlainByAlias)
        ),
        (lambda: taking(NotPassedOn)[0], "args_schema dumps, and these do not include 'cents'"),
        (lambda: taking(ByAlias)[0], "args_schema dumps, and these do not include 'cents'"),
        (lambda: lc_tool(configured), "LangChain fills in 'config' itself"),
        (lambda: lc_tool(args_schema=ToldOf)(told_of), "LangChain fills in 'how' itself"),
    ],
)
def test_an_argument_that_no_call_can_give_refuses_the_tool(given: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        from_langchain_tool(given())


def test_a_function_that_takes_any_name_is_a_tool() -> None:
    assert from_langchain_tool(lc_tool(in_any_way)).definition.name == "in_any_way"


async def test_a_name_of_langchains_may_be_changed() -> None:
    odd = StructuredTool.from_function(plain, name="say it again!", description="Say.")
    with pytest.raises(DefinitionError, match="tool name"):
        from_langchain_tool(odd)
    assert from_langchain_tool(odd, name="say").definition.name == "say"


async def test_there_and_back_it_is_asked_about_and_runs_once() -> None:
    async def yes(_: Any) -> Approve:
        return Approve("ada")

    sink = MemorySink()
    runner = ToolRunner(
        [from_langchain_tool(search, visible=["limit"])], approver=yes, sinks=[sink]
    )
    (outer,) = to_langchain_tools(runner)
    message = await outer.ainvoke(
        {"type": "tool_call", "name": "search", "id": "call_7", "args": {"text": "tea"}}
    )
    assert json.loads(message.content)["limit"] == 3
    assert [(r.approved_by, r.provider_id) for r in sink.records] == [("ada", "call_7")]
