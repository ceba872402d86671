"""One value, the effective arguments: decided on, asked about, recorded and run are the same."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import InitVar, asdict, dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    Base64Str,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    EncodedStr,
    EncoderProtocol,
    Field,
    FutureDate,
    Json,
    PrivateAttr,
    RootModel,
    Secret,
    SecretStr,
    StringConstraints,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from rows import each_row
from samples import sampled

from toolcrib import (
    ALL,
    Agent,
    Allow,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    Deny,
    Failed,
    Hydrated,
    PolicyContext,
    Rejected,
    RunState,
    ToolCall,
    ToolError,
    ToolRunner,
    Waiting,
    hydrate,
    tool,
)
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.errors import DefinitionError, ErrorCode, Stage
from toolcrib.hydration import instance_of
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink, ScriptedClient
from toolcrib.testing import call as scripted
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Decision
from toolcrib.values.json import canonical_json

GOT: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_got() -> None:
    GOT.clear()


def call(tool_name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall("call_0", tool_name, json.dumps(arguments))


def taking(hint: Any, **options: Any) -> Any:
    """A tool with one parameter `x` of this hint, which keeps what it got."""

    def take(x: Any) -> int:
        """Take it."""
        GOT.append(x)
        return 1

    take.__annotations__ = {"x": hint, "return": int}
    return tool(visible=ALL, **options)(take)


def read(hint: Any, sent: Any, **options: Any) -> Any:
    return hydrate(call("take", x=sent), Catalog([taking(hint, **options)]))


# --- what an author sees is what runs


@dataclass
class Refund:
    order: int
    cents: int = 100_000


async def decided(subject: Any, **arguments: Any) -> tuple[list[Any], Any]:
    """What a policy, an approver and the record say of a call, and the outcome."""
    seen: list[Any] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        seen.append((hydrated.arguments, hydrated.defaults))
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve:
        seen.append((request.arguments, request.defaults))
        return Approve("grace")

    sink = MemorySink()
    runner = ToolRunner([subject], policy=policy, approver=approver, sinks=[sink])
    outcome = await runner.exec(call(subject.definition.name, **arguments))
    seen += [(record.arguments, record.defaulted) for record in sink.records]
    return seen, outcome


async def test_a_misspelt_nested_key_is_refused() -> None:
    @tool(visible=ALL, requires_approval=True)
    def refund(r: Refund) -> int:
        """Refund."""
        GOT.append(r)
        return r.cents

    _, outcome = await decided(refund, r={"order": 7, "amount_cents": 5})
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert GOT == []


async def test_nested_defaults_are_seen_by_whoever_decides() -> None:
    @tool(visible=ALL, requires_approval=True)
    def refund(r: Refund) -> int:
        """Refund."""
        return r.cents

    seen, outcome = await decided(refund, r={"order": 7})
    assert isinstance(outcome, Completed)
    assert outcome.value == 100_000
    # the policy, the approver, the policy again, the record
    assert seen == [({"r": {"order": 7, "cents": 100_000}}, ("/r/cents",))] * 4


async def test_a_policy_on_a_default_is_not_bypassed() -> None:
    @tool(visible=ALL, safe=True)
    def refund(order: int, cents: int = 100_000) -> int:
        """Refund."""
        GOT.append(cents)
        return cents

    def small(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        cents: Any = hydrated.arguments["cents"]
        return Allow() if cents <= 5_000 else Deny("too much")

    runner = ToolRunner([refund], policy=small)
    assert isinstance(await runner.exec(call("refund", order=7)), Failed)
    assert GOT == []
    hydrated = hydrate(call("refund", order=7), runner.catalog)
    assert isinstance(hydrated, Hydrated)
    assert hydrated.canonical == b'{"cents":100000,"order":7}'
    assert (hydrated.defaults, hydrated.provenance.parsed) == (("/cents",), {"order": 7})


async def test_a_tool_that_changes_its_default_changes_no_other_call() -> None:
    @tool(visible=ALL, safe=True)
    def collect(item: int, into: list[int] = []) -> list[int]:  # noqa: B006
        """Collect."""
        into.append(item)
        return into

    runner = ToolRunner([collect])
    for number in (1, 2):
        text = json.dumps({"item": number})
        outcome = await runner.exec(ToolCall(f"call_{number}", "collect", text))
        assert isinstance(outcome, Completed)
        assert outcome.value == [number]
        assert outcome.record.arguments == {"item": number, "into": []}


@dataclass(eq=False)  # hashable, so pydantic gives every instance the one object
class Fee:
    cents: int = 5


class FeeModel(BaseModel):
    fee: Fee = Fee()


class FeesModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    fee: tuple[Fee, ...] = (Fee(),)


@dataclass
class FeeData:
    fee: Fee = Fee()  # noqa: RUF009  shared by all instances, as the test wants it


@pydantic_dataclass(frozen=True)
class FeesData:
    fee: tuple[Fee, ...] = (Fee(),)


@pytest.mark.parametrize("hint", [FeeModel, FeesModel, FeeData, FeesData])
async def test_nobody_shares_the_default_of_a_class(hint: Any) -> None:
    """One object of a class would let whoever looks at a call change this one and each later one."""

    def fee_of(x: Any) -> Fee:
        held: Fee = x.fee[0] if isinstance(x.fee, tuple) else x.fee
        return held

    def pay(x: Any) -> int:
        """Pay."""
        fee_of(x).cents += 1
        return fee_of(x).cents

    pay.__annotations__["x"] = hint

    def change(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        fee_of(hydrated.tool.arguments["x"]).cents = 100_000
        return Allow()

    runner = ToolRunner([tool(visible=ALL)(pay)], policy=change)
    for number in (1, 2):
        outcome = await runner.exec(ToolCall(f"call_{number}", "pay", '{"x": {}}'))
        assert isinstance(outcome, Completed)
        assert outcome.value == 6
        assert outcome.record.arguments in (
            {"x": {"fee": {"cents": 5}}},
            {"x": {"fee": [{"cents": 5}]}},
        )


def test_a_sentinel_stays_the_object_that_it_is() -> None:
    unset = object()

    class Options(BaseModel):
        limit: Any = unset

    result = read(Options, {})
    assert isinstance(result, Hydrated)
    assert result.tool.arguments["x"].limit is unset


async def test_a_default_without_json_takes_no_part_in_comparisons() -> None:
    """Where a saved run goes on, it is another object of that type, and the tool gets that one."""

    class Unset:
        pass

    def wait_for(default: Any, replies: list[Any]) -> Agent:
        def wait(order: int, how: Any = default) -> int:
            """Wait."""
            GOT.append(how)
            return order

        async def nobody(_request: ApprovalRequest) -> None:
            return None

        subject = tool(visible=ALL, requires_approval=True)(wait)
        return Agent(ScriptedClient(replies), ToolRunner([subject], approver=nobody))

    one, another = Unset(), Unset()
    first = await wait_for(one, [scripted("wait", order=1)]).run("go")
    (pending,) = first.pending
    assert pending.arguments["how"] == {"default": "Unset"}
    state = RunState.from_json(first.state.to_json())
    last = await wait_for(another, ["done"]).resume(state, {pending.id: Approve("grace")})
    assert (last.status, GOT) == ("completed", [another])


def test_what_was_not_sent_is_not_set() -> None:
    class Patch(BaseModel):
        name: str | None = None
        note: str | None = None

    result = read(Patch, {"note": "x"})
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": {"name": None, "note": "x"}}
    assert result.defaults == ("/x/name",)
    (patch,) = result.tool.arguments.values()
    assert patch.model_dump(exclude_unset=True) == {"note": "x"}


def test_a_default_that_is_no_json_is_shown_by_its_type() -> None:
    class Unset: ...

    class Options(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        name: str
        code: SecretStr = SecretStr("hush")

    result = read(Options, {"name": "x"})
    assert isinstance(result, Hydrated)
    assert "/x/code" in result.defaults


# --- strict, and held against what was sent


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="allow")
    cents: int = Field(100_000, alias="amount")


class Choices(BaseModel):
    model_config = ConfigDict(extra="allow")
    cents: int = Field(100_000, validation_alias=AliasChoices("cents", "amount"))


class Doubled(BaseModel):
    cents: int

    @model_validator(mode="before")
    @classmethod
    def double(cls, data: Any) -> Any:
        data["cents"] = data["cents"] * 2
        return data


class Filled(BaseModel):
    cents: int
    currency: str = "EUR"

    @model_validator(mode="before")
    @classmethod
    def fill(cls, data: Any) -> Any:
        return {"currency": "USD", **data}


class After(BaseModel):
    cents: int

    @model_validator(mode="after")
    def add(self) -> After:
        self.cents += 1
        return self


@dataclass
class Posted:
    name: str

    def __post_init__(self) -> None:
        self.name = self.name * 2


class Loose(BaseModel):
    cents: Annotated[int, Field(strict=False)]


class Stripped(BaseModel):
    model_config = {"str_strip_whitespace": True}
    when: datetime | str


class Guess(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Guess:
        return cls.A


OPEN: dict[str, Any] = {"type": "object", "properties": {"x": {}}, "required": ["x"]}
REFUSED: list[tuple[Any, Any, str]] = [
    (ByName, {"cents": 5, "amount": 7}, "/x/cents"),
    (Choices, {"cents": 5, "amount": 7}, "/x/amount"),
    (Stripped, {"when": "2026-01-31T00:00:00Z "}, "/x/when"),  # read again, another branch's
]


@pytest.mark.parametrize(("hint", "sent", "place"), REFUSED)
def test_an_instance_that_is_not_what_was_sent_is_refused(hint: Any, sent: Any, place: str) -> None:
    result = read(hint, sent)
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.stage, error.code) == (Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS)
    assert error.path.replace("*", place.rpartition("/")[2]) == place
    assert error.message.startswith("the tool would")


@pytest.mark.parametrize(
    ("hint", "sent", "place"),
    [
        (Doubled, {"cents": 5}, "/x/cents"),
        (After, {"cents": 5}, "/x/cents"),
        (Posted, {"name": "a"}, "/x/name"),
    ],
)
def test_an_instance_that_code_of_a_whole_object_changed_is_its_authors_fault(
    hint: Any, sent: Any, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = read(hint, sent)
    assert isinstance(result, Rejected)
    (error,) = result.errors
    assert (error.stage, error.code) == (Stage.INSTANTIATE, ErrorCode.UNUSABLE_TOOL)
    assert f"{hint.__qualname__}." in caplog.text
    assert f" at {place} " in caplog.text


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (Annotated[int, Field(le=10)], "100000"),
        (int, True), (int, "1"), (float, True), (bool, 1), (bool, 1.0), (bool, "true"), (str, 5),
        (Literal[1], True), (Literal["1"], 1), (Guess, "b"), (Loose, {"cents": "7"}),
        (list[int], ["1"]), (datetime, 1), (bytes, 1), (dict[str, int], {"a": "1"}),
    ],
)  # fmt: skip
def test_no_kind_is_turned_into_another_whatever_the_schema_lets_through(
    hint: Any, sent: Any
) -> None:
    assert isinstance(read(hint, sent), Rejected)
    assert isinstance(read(hint, sent, input_schema=OPEN), Rejected)
    assert GOT == []


def test_a_model_validator_that_fills_in_is_seen() -> None:
    result = read(Filled, {"cents": 5})
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": {"cents": 5, "currency": "USD"}}
    assert result.defaults == ("/x/currency",)


class FilledInPlace(BaseModel):
    cents: int
    currency: str = "EUR"
    tags: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def fill(cls, data: Any) -> Any:
        data["currency"] = "USD"
        data.setdefault("tags", []).append("paid")
        return data


async def test_a_model_validator_changes_neither_what_was_sent_nor_the_record() -> None:
    result = read(Doubled, {"cents": 5})
    assert result.provenance.parsed == {"x": {"cents": 5}}
    subject = taking(FilledInPlace, requires_approval=True)
    seen, outcome = await decided(subject, x={"cents": 5})
    assert isinstance(outcome, Completed)
    effective = {"x": {"cents": 5, "currency": "USD", "tags": ["paid"]}}
    assert seen == [(effective, ("/x/currency", "/x/tags"))] * 4
    assert [got.model_dump() for got in GOT] == [effective["x"]]
    hydrated = hydrate(call("take", x={"cents": 5}), Catalog([subject]))
    assert hydrated.provenance.parsed == {"x": {"cents": 5}}
    for sent in ({"cents": 5, "tags": ["a"]}, {"cents": 5, "currency": "EUR"}):
        seen, outcome = await decided(subject, x=sent)
        assert isinstance(outcome, Failed)
        (record,) = seen  # nobody is asked about what the validator made of it
        assert record[0] in (None, {}, {"x": sent})
    assert len(GOT) == 1


class Tagged(BaseModel):
    tags: list[str]
    name: Annotated[str, StringConstraints(strip_whitespace=True)] = ""

    @field_validator("tags")
    @classmethod
    def tidy(cls, tags: list[str]) -> list[str]:
        return sorted({tag.lower() for tag in tags})


class Money:
    """An object that pydantic does not take apart."""

    def __init__(self, text: str) -> None:
        self.text = text


NORMALISED: list[tuple[Any, Any, Any]] = [
    (Tagged, {"tags": ["B", "a", "b"]}, {"tags": ["a", "b"], "name": ""}),
    (Tagged, {"tags": [], "name": " x "}, {"tags": [], "name": "x"}),
    (Annotated[int, AfterValidator(abs)], -5, 5),
    (Annotated[str, BeforeValidator(str.strip)], " a ", "a"),
]


@pytest.mark.parametrize(("hint", "sent", "effective"), NORMALISED)
def test_an_authors_own_validator_is_taken_and_noted(hint: Any, sent: Any, effective: Any) -> None:
    result = read(hint, sent)
    assert isinstance(result, Hydrated), result.errors
    assert result.arguments == {"x": effective}
    assert "normalised" in result.provenance.notes
    assert result.provenance.parsed == {"x": sent}


class Address(EncoderProtocol):
    """What `EmailStr` does, which needs another package: a name before an address is dropped."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        return data.rpartition(b"<")[2].rstrip(b">")

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def get_json_format(cls) -> str:
        return "mailbox"


Mail = Annotated[str, EncodedStr(encoder=Address)]
NAMED = "ceo@example.org <eve@example.com>"


@pytest.mark.parametrize(
    ("hint", "sent", "effective"),
    [
        (Mail, NAMED, "eve@example.com"),
        (Mail | None, NAMED, "eve@example.com"),
        (int | Mail, NAMED, "eve@example.com"),
        (list[Mail], [NAMED], ["eve@example.com"]),
        (set[Mail], [NAMED], ["eve@example.com"]),
        (dict[Mail, int], {NAMED: 1}, {"eve@example.com": 1}),
        (PurePosixPath, "a/./b//c", "a/b/c"),
        (PureWindowsPath | None, "C:/a/b", "C:\\a\\b"),
        (set[PurePath], ["a/./b"], ["a/b"]),
        (dict[PurePosixPath, int], {"a//b": 1}, {"a/b": 1}),
        (Base64Str, "YWRh", "YWRh"),  # "ada" would be read as another text
    ],
)
def test_a_text_that_a_type_reads_as_another_text_is_seen_as_it_was_read(
    hint: Any, sent: Any, effective: Any
) -> None:
    result = read(hint, sent)
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": effective}
    again = read(hint, effective)
    assert again.canonical == result.canonical


@pytest.mark.parametrize(
    ("hint", "sent"), [(ByteSize, 1e3), (Secret[int], 2.0), (Secret[int] | None, 2.0)]
)
def test_a_whole_number_is_an_integer_in_whatever_pydantic_makes_of_one(
    hint: Any, sent: float
) -> None:
    result = read(hint, sent)
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": int(sent)}


@pytest.mark.parametrize("hint", [Decimal, Decimal | None, list[Decimal] | Decimal, Fraction])
@pytest.mark.parametrize("sent", ["12345678901234567890.5", "9007199254740993.0", "1e23", "3.0"])
def test_a_float_that_is_read_by_its_digits_is_seen_as_it_was_read(hint: Any, sent: str) -> None:
    """A float of 1234567890123456768 is written as 1.2345678901234568e+18, which a Decimal is."""
    subject = taking(hint)
    result = hydrate(ToolCall("1", "take", f'{{"x": {sent}}}'), Catalog([subject]))
    assert isinstance(result, Hydrated)
    got = instance_of(result, subject).arguments["x"]
    assert got == result.arguments["x"]
    assert read(Secret[hint], json.loads(sent)).canonical == result.canonical
    again = hydrate(ToolCall("2", "take", result.canonical.decode()), Catalog([subject]))
    assert isinstance(again, Hydrated)
    assert instance_of(again, subject).arguments["x"] == got


NOON = "2026-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (set[int | bool], [1, True]), (frozenset[Any], [True, 1]), (set[Literal[1, True]], [1, True]),
        (set[tuple[int | bool, ...]], [[1], [True]]), (list[set[float | bool]], [[0.0, False]]),
        (set[Decimal], ["1.0", "1.00"]), (set[datetime], [NOON, "2026-01-01T13:00:00+01:00"]),
    ],
)  # fmt: skip
def test_items_that_a_set_takes_for_one_are_refused(hint: Any, sent: Any) -> None:
    result = read(hint, sent)
    assert isinstance(result, Rejected)
    assert result.errors[0].message == "the tool would treat two of these items as one"


async def test_duplicates_of_a_set_are_one_where_the_schema_lets_them_through() -> None:
    """A derived schema does not: it says that items differ, and a model may mean a count."""
    assert isinstance(read(set[int], [1, 1]), Rejected)
    subject = taking(set[int], input_schema=OPEN, requires_approval=True)
    seen, outcome = await decided(subject, x=[2, 1, 1.0, 2])
    assert isinstance(outcome, Completed)
    assert ([arguments for arguments, _ in seen], GOT) == ([{"x": [1, 2]}] * 4, [{1, 2}])


class Numbers(BaseModel):
    of: set[int]


OF_ONE_HASH = [number * (2**61 - 1) for number in range(200)]
UUIDS = [str(UUID(int=number)) for number in OF_ONE_HASH]


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (set[int], OF_ONE_HASH), (frozenset[Any], OF_ONE_HASH), (list[Numbers], [{"of": OF_ONE_HASH}]),
        (set[UUID] | None, UUIDS), (set[Decimal], [str(number) for number in OF_ONE_HASH]),
        (set[tuple[int, ...]], [[*bits] for bits in itertools.product((-1, -2), repeat=8)]),
        (dict[int, int], {str(number): 1 for number in OF_ONE_HASH}),
        (dict[UUID, int], dict.fromkeys(UUIDS, 1)),
        (Json[set[int]], json.dumps(OF_ONE_HASH)),
        (Json[set[int]], json.dumps([*OF_ONE_HASH, math.nan])),
        (Json[Numbers], f'{{"of": [], "of": {OF_ONE_HASH}}}'),
    ],
)  # fmt: skip
def test_items_that_hash_alike_are_counted(hint: Any, sent: Any) -> None:
    """A set compares each pair of them: 20,000 would hold the process for seconds."""
    result = read(hint, sent)
    assert isinstance(result, Rejected)
    assert result.errors[0].code is ErrorCode.TOO_LARGE
    assert "with the same hash" in result.errors[0].message
    assert isinstance(read(set[int], [*range(-1_000, 1_000)]), Hydrated)


@dataclass
class Chain:
    """It does not keep what it is given, which is read again at each level of each level above."""

    next: InitVar[Chain | None] = None


@dataclass(frozen=True)
class Nest:
    inner: frozenset[Nest] = frozenset()
    numbers: frozenset[int] = frozenset()


@pytest.mark.exhaustive
def test_what_is_read_again_is_counted() -> None:
    """160 bytes would hold the process for minutes, since each level doubles the work."""

    def sent(kind: type, depth: int, innermost: Any) -> Any:
        for _ in range(depth):
            innermost = {"next": innermost} if kind is Chain else {"inner": [innermost]}
        return read(kind, innermost)

    numbers = {"numbers": [*range(50_000)]}
    deep = [(Chain, 20, None), (Nest, 40, numbers)]
    for each in sampled(deep, part=2):
        refused = sent(*each)
        assert isinstance(refused, Rejected)
        assert refused.errors[0].code is ErrorCode.TOO_LARGE
    for honest in (sent(Chain, 8, None), sent(Nest, 40, {}), sent(Nest, 2, numbers)):
        assert isinstance(honest, Hydrated)
    assert isinstance(read(set[frozenset[int]], [[*range(80_000)]]), Hydrated)


class Grep(BaseModel):
    pattern: re.Pattern[str]
    flags: int = 0


PATTERNS: list[Any] = [
    *(re.Pattern, re.Pattern[str], re.Pattern[str] | str, str | re.Pattern[str]),
    *(re.Pattern[str] | None | int | list[int], list[re.Pattern[str]], set[re.Pattern[str]]),
    *(dict[str, re.Pattern[str]], dict[re.Pattern[str], int], tuple[re.Pattern[str], ...]),
    *(Grep, list[Grep], Grep | re.Pattern[str]),
]


def held(hint: Any, pattern: str) -> Any:
    """A value of the hint with this pattern in it."""
    if "dict[str" in str(hint):
        return {"a": pattern}
    if "dict[re" in str(hint):
        return {pattern: 1}
    grep = {"pattern": pattern}
    if "Grep" in str(hint):
        return [grep] if "list" in str(hint) else grep
    return [pattern] if str(hint).startswith(("list", "set", "tuple")) else pattern


@each_row("hint", PATTERNS, ids=str)
def test_a_regular_expression_is_counted_before_it_is_compiled(hint: Any) -> None:
    """Ranges of letters that are no ASCII are compiled letter by letter: 6 KB took seconds."""
    for honest in ("^[a-z0-9_-]+@[a-z-]+$", "[\u4e00-\u9fff]{2,}", "a{2}|b" * 300):
        assert isinstance(read(hint, held(hint, honest)), Hydrated), honest
    for bomb in ("[\u0100-\ud7ff]" * 800, r"a[\u0001-\uffff]" * 300, "a|" * 100_000):
        started = time.perf_counter()
        rejected = read(hint, held(hint, bomb))
        assert time.perf_counter() - started < 2
        if hint in (re.Pattern[str] | str, str | re.Pattern[str]) and isinstance(
            rejected, Hydrated
        ):
            assert str(hint).startswith("str")  # which takes all texts, and pydantic tries it first
            continue
        assert isinstance(rejected, Rejected), bomb[:20]
        assert rejected.errors[0].code is ErrorCode.TOO_LARGE


class Both(BaseModel):
    kind: Literal["both"] = "both"
    of: list[Both | Either | int] = []


class Either(BaseModel):
    kind: Literal["either"] = "either"
    of: list[Both | Either | int] = []


def test_a_whole_number_is_looked_for_once_in_each_part_of_a_union() -> None:
    """Each branch of each union would look into all below it: 40 levels would take for ever."""
    sent: Any = 1.0
    for level in range(40):
        sent = {"kind": "both" if level % 2 else "either", "of": [sent]}
    result = read(Both | Either, sent)
    assert isinstance(result, Hydrated)
    assert b"1.0" not in result.canonical


def test_secret_names_are_told_apart() -> None:
    ada, bob = (read(dict[SecretStr, int], {name: 1}) for name in ("ada", "bob"))
    assert ada.canonical != bob.canonical
    assert isinstance(read(dict[SecretStr, int], {"ada": 1, "bob": 1}), Hydrated)


def test_what_a_validator_makes_is_judged_by_the_schema_again() -> None:
    hint = Annotated[int, Field(le=10), AfterValidator(lambda n: n * 100)]
    assert isinstance(read(hint, 0), Hydrated)
    result = read(hint, 5)
    assert isinstance(result, Rejected)
    assert [(e.stage, e.path) for e in result.errors] == [(Stage.INSTANTIATE, "/x")]


# --- JSON in a text, and what a class is given and does not keep


@pytest.mark.parametrize(
    "text",
    [
        '{"order": 7, "amount_cents": 5}',
        '{"order": 7, "order": 8}',
        '{"order": 7.5}',
        '{"order": "7"}',
    ],
)
def test_json_in_a_text_is_held_as_strictly(text: str) -> None:
    found = read(Json[Refund], text)
    assert isinstance(found, Rejected)
    assert [error.path for error in found.errors] == ["/x"]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "1e999", '[{"b": {"c": 1, "c": 1}}]'])
def test_json_of_anything_in_a_text_is_unambiguous(text: str) -> None:
    assert isinstance(read(Annotated[Any, Json], text), Rejected)
    assert isinstance(read(list[Annotated[Any, Json]], ["1", text]), Rejected)


async def test_defaults_within_a_text_are_seen_by_whoever_decides() -> None:
    seen, outcome = await decided(taking(Json[Refund], safe=False), x='{"order": 7}')
    assert isinstance(outcome, Completed)
    assert [Refund(7)] == GOT
    assert {said["x"] for said, _ in seen} == {'{"cents":100000,"order":7}'}
    said = '{"order": 7, "cents": 5}'
    assert read(Json[Refund], said).arguments == {"x": said}


@dataclass
class Paid:
    order: int
    cents: InitVar[int] = 100_000
    refund: InitVar[Refund | None] = None
    lots: InitVar[Annotated[int, AfterValidator(lambda lots: lots * 2)]] = 1

    def __post_init__(self, cents: int, refund: Refund | None, lots: int) -> None:
        GOT.append((cents, refund, lots))


async def test_what_a_constructor_is_given_by_default_is_seen_by_whoever_decides() -> None:
    seen, outcome = await decided(taking(Paid, safe=False), x={"order": 7})
    assert isinstance(outcome, Completed)
    assert GOT[0] == (100_000, None, 1)
    shown = {"order": 7, "cents": 100_000, "refund": None, "lots": 1}
    assert [said for said, _ in seen] == [{"x": shown}] * len(seen)
    assert {defaults for _, defaults in seen} == {("/x/cents", "/x/refund", "/x/lots")}


def test_what_a_constructor_is_given_is_held_as_attributes_are() -> None:
    found = read(Paid, {"order": 7, "refund": {"order": 8}, "lots": 3.0})
    assert GOT[0] == (100_000, Refund(8), 6)
    assert found.arguments["x"]["refund"] == {"order": 8, "cents": 100_000}
    assert found.arguments["x"]["lots"] == 6
    assert "/x/refund/cents" in found.defaults
    assert "normalised" in found.provenance.notes


@pydantic_dataclass
class Listed:
    order: int
    lots: InitVar[list[int]] = Field(default_factory=list)


def test_what_a_factory_makes_for_a_constructor_alone_is_shown_as_unknown() -> None:
    found = read(Listed, {"order": 7})
    assert found.arguments == {"x": {"order": 7, "lots": {"default": "FactoryValue"}}}
    assert found.defaults == ("/x/lots",)


@dataclass
class Stamped:
    number: int
    stamp: int = field(default_factory=itertools.count().__next__)
    parts: list[int] = field(default_factory=list)


@dataclass
class Printed:
    order: int
    stamped: InitVar[Stamped | None] = None


def test_what_a_factory_makes_for_a_constructor_is_the_same_each_time_or_refused() -> None:
    assert isinstance(read(Printed, {"order": 7, "stamped": {"number": 1}}), Rejected)
    found = read(Printed, {"order": 7, "stamped": {"number": 1, "stamp": 5}})
    assert found.arguments["x"]["stamped"] == {"number": 1, "stamp": 5, "parts": []}


def test_an_object_of_an_authors_class_is_what_was_sent() -> None:
    result = read(Annotated[Any, AfterValidator(Money)], "5 EUR", input_schema=OPEN)
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": "5 EUR"}


class Hiding(BaseModel):
    cents: int = Field(exclude=True)
    order: int

    @field_serializer("order")
    def never(self, order: int) -> str:
        return "order"


def test_excluded_fields_and_serializers_hide_nothing() -> None:
    result = read(Hiding, {"cents": 5, "order": 7})
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": {"cents": 5, "order": 7}}


class Typed(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, datetime]


class Untold(BaseModel):
    """What it writes of itself is not what it holds."""

    model_config = ConfigDict(extra="allow")

    cents: int = Field(1, exclude=True)
    to: str = "nobody"

    @field_serializer("to")
    def _told(self, _to: str) -> str:
        return "***"


class Wider(Untold):
    more: int = 3


HELD = {"cents": 100_000, "to": "eve", "note": "an extra"}
UNTOLD = Untold.model_validate(HELD)


class HidesOne(BaseModel):
    kept: Untold = UNTOLD


class HidesMany(BaseModel):
    kept: list[Untold] = [UNTOLD]


class HidesAnywhere(BaseModel):
    kept: Any = {"k": UNTOLD}


class HidesWider(BaseModel):
    kept: Untold = Wider.model_validate(HELD)


@pytest.mark.parametrize(
    ("hint", "held"),
    [
        (HidesOne, HELD),
        (HidesMany, [HELD]),
        (HidesAnywhere, {"k": HELD}),
        (HidesWider, {**HELD, "more": 3}),
    ],
)
def test_a_default_is_shown_as_what_it_holds(hint: Any, held: Any) -> None:
    assert read(hint, {}).arguments == {"x": {"kept": held}}


def test_the_default_of_a_parameter_is_shown_as_what_it_holds() -> None:
    @tool(visible=ALL)
    def refund(one: Untold = UNTOLD, many: dict[int, Untold] = {1: UNTOLD}) -> int:  # noqa: B006
        """Refund."""
        return one.cents + len(many)

    hydrated = hydrate(call("refund"), Catalog([refund]))
    assert isinstance(hydrated, Hydrated)
    assert hydrated.arguments == {"one": HELD, "many": {"1": HELD}}


class SecretAnywhere(BaseModel):
    token: Any = SecretStr("hunter2")
    tokens: dict[str, Any] = {"k": [SecretStr("hunter2")]}


def test_a_secret_default_that_no_hint_tells_of_is_shown_by_its_type() -> None:
    shown = {"token": {"default": "SecretStr"}, "tokens": {"default": "dict"}}
    assert read(SecretAnywhere, {}).arguments == {"x": shown}


def holding_itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


class HoldsItself(BaseModel):
    kept: Any = Field(default_factory=holding_itself)


def test_a_default_that_holds_itself_is_shown_by_its_type() -> None:
    assert read(HoldsItself, {}).arguments == {"x": {"kept": {"default": "list"}}}


class MadeIterator(BaseModel):
    made: Any = Field(default_factory=lambda: iter([1, 2]))


def test_to_look_at_an_iterator_does_not_use_it_up() -> None:
    @tool(visible=ALL)
    def take(one: Annotated[list[int], AfterValidator(iter)], two: MadeIterator) -> list[int]:
        """Take."""
        return [*one, *two.made]

    hydrated = hydrate(call("take", one=[3, 4], two={}), Catalog([take]))
    assert isinstance(hydrated, Hydrated)
    made = instance_of(hydrated, take)
    assert [*made.arguments["one"], *made.arguments["two"].made] == [3, 4, 1, 2]
    two = {"made": {"default": "list_iterator"}}
    assert hydrated.arguments == {"one": [3, 4], "two": two}


def test_a_type_of_the_root_that_pydantic_reads_by_a_function_is_read() -> None:
    assert read(RootModel[re.Pattern[str]], "a+").arguments == {"x": "a+"}


@dataclass(eq=False)
class Plain:
    cents: int = 1


class HasPlain(BaseModel):
    n: int
    kept: Plain = Plain()


def test_nobody_shares_a_default_in_what_a_validator_made() -> None:
    @tool(visible=ALL)
    def take(x: Annotated[list[HasPlain], AfterValidator(reversed_list)]) -> int:
        """Take."""
        return len(x)

    hydrated = hydrate(call("take", x=[{"n": 1}, {"n": 2}]), Catalog([take]))
    assert isinstance(hydrated, Hydrated)
    looked: Any = hydrated.tool
    for item in looked.arguments["x"]:
        item.kept.cents = 100_000
    made = instance_of(hydrated, take)
    assert [item.kept.cents for item in made.arguments["x"]] == [1, 1]
    assert HasPlain(n=1).kept.cents == 1


def reversed_list(items: list[Any]) -> list[Any]:
    return items[::-1]


def test_typed_extras_are_what_was_sent() -> None:
    result = read(Typed, {"a": "2024-01-01T00:00:00z"})
    assert isinstance(result, Hydrated)
    assert result.arguments == {"x": {"a": "2024-01-01T00:00:00Z"}}


async def test_further_properties_of_an_open_schema_are_seen_by_whoever_decides() -> None:
    """A function with `**more` needs a schema of its author's. The record leaves them out."""

    def take(a: int, **more: int) -> int:
        """Take it."""
        GOT.append((a, more))
        return 1

    options: dict[str, Any] = {"visible": ALL, "requires_approval": True}
    with pytest.raises(DefinitionError, match=r"\*\*more \(can be anything\).*pass input_schema="):
        tool(**options)(take)
    declared: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    subject = tool(**options, parameters={**declared, "additionalProperties": {"type": "integer"}})(
        take
    )
    seen, outcome = await decided(subject, a=1, b=2)
    assert isinstance(outcome, Completed)
    assert [arguments for arguments, _ in seen] == [{"a": 1, "b": 2}] * 3 + [{"a": 1}]
    assert GOT == [(1, {"b": 2})]
    _, outcome = await decided(subject, a=1, b="x")
    assert isinstance(outcome, Failed)
    assert len(GOT) == 1


# --- default factories run once a call


def counting() -> tuple[Any, Callable[[], int]]:
    counter = itertools.count(1)

    @dataclass
    class Stamped:
        name: str
        number: int = field(default_factory=lambda: next(counter))

    return Stamped, lambda: next(counter)


@pytest.mark.parametrize("nested", [True, False])
async def test_a_default_factory_runs_once_a_call(nested: bool) -> None:
    made, following = counting()
    arguments: dict[str, Any]
    if nested:
        subject, arguments, place = (
            taking(made, requires_approval=True),
            {"x": {"name": "a"}},
            "/x/number",
        )
    else:

        class Take(made):  # type: ignore[misc, valid-type]
            """Take it."""

            async def run(self) -> int:
                GOT.append(self)
                return int(self.number)

        subject = tool(visible=ALL, requires_approval=True, name="take")(dataclass(Take))
        arguments, place = {"name": "a"}, "/number"
    seen: list[Any] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        seen.append(hydrated.arguments)
        _ = hydrated.tool, hydrated.tool
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve:
        seen.append(request.arguments)
        assert request.defaults == (place,)
        return Approve("grace")

    runner = ToolRunner([subject], policy=policy, approver=approver)
    outcome = await runner.exec(call("take", **arguments))
    assert isinstance(outcome, Completed)
    seen.append(outcome.record.arguments)
    assert len({canonical_json(one) for one in seen}) == 1
    assert '"number":1' in canonical_json(seen[0])
    (got,) = GOT
    assert got.number == 1
    assert following() == 2, "it ran once"


async def test_what_a_factory_made_is_what_a_replay_has(tmp_path: Path) -> None:
    made, _ = counting()
    subject = taking(made)
    outcomes: list[Any] = []
    async with AuditLog(f"sqlite:///{tmp_path / 'x.db'}", key="k" * 16) as log:
        first = ToolRunner([subject], sinks=[log])
        for runner in (first, first, ToolRunner([subject], sinks=[log])):
            scope = CallScope(RunTally("run_1"))
            outcomes.append(await runner.exec(call("take", x={"name": "a"}), scope=scope))
    for outcome in outcomes:
        assert isinstance(outcome, Completed)
        assert outcome.record.arguments == {"x": {"name": "a", "number": 1}}
    assert [outcome.replayed for outcome in outcomes] == [False, True, True]
    assert [got.number for got in GOT] == [1]


class Stepped(BaseModel):
    """A model that takes its own JSON for another one."""

    x: Annotated[int, AfterValidator(lambda given: given + 1)] = 0


class Offbeat(NamedTuple):
    """A hint, and a factory whose value the hint would change, or refuse."""

    hint: Any
    make: Callable[[], Any]


OFFBEAT = {
    "changed": Offbeat(Annotated[int, AfterValidator(lambda given: given + 1)], lambda: 5),
    "too short": Offbeat(Annotated[str, Field(min_length=1)], lambda: ""),
    "none": Offbeat(int, lambda: None),
    "no text of JSON": Offbeat(Json[list[int]], lambda: [1, 2]),
    "its class changes it": Offbeat(Stepped, lambda: Stepped(x=5)),
    "an item's class does": Offbeat(list[Stepped], lambda: [Stepped(x=5)]),
    "raises": Offbeat(Annotated[str, AfterValidator(lambda given: given[0] + given)], lambda: ""),
    "a date that has passed": Offbeat(FutureDate, lambda: date(2020, 1, 1)),
}


@pytest.mark.parametrize("offbeat", OFFBEAT.values(), ids=OFFBEAT)
@pytest.mark.parametrize(
    "where", ["a model", "a dataclass", "a union", "a text", "a tuple", "beside", "the tool"]
)
async def test_what_a_factory_made_comes_back_as_it_was(where: str, offbeat: Offbeat) -> None:
    """No class judges its defaults: neither is one judged when the call is built once more."""
    model: Any = create_model("Model", a=str, v=(offbeat.hint, Field(default_factory=offbeat.make)))
    data: Any = make_dataclass(
        "Data", [("a", str), ("v", offbeat.hint, field(default_factory=offbeat.make))]
    )
    hints = {
        "a model": model,
        "a dataclass": data,
        "a union": model | int,
        "a text": text_of(model),
    }
    sent_whole: dict[str, Any] = {
        "a text": '{"a":"q"}',
        "a tuple": [{"a": "q"}, "2020-01-01"],
        "beside": {"inner": {"a": "q"}, "days": ["2020-01-01"]},
    }
    hints["a tuple"] = tuple[model, date]
    hints["beside"] = create_model(
        "Beside", inner=model, days=(set[date], Field(default_factory=set))
    )
    if where == "the tool":

        class Take(data):  # type: ignore[misc]
            """Take it."""

            async def run(self) -> int:
                GOT.append(self)
                return 1

        subject: Any = tool(visible=ALL, requires_approval=True, name="take")(dataclass(Take))
        sent = call("take", a="q")
    else:
        subject = taking(hints[where], requires_approval=True)
        sent = call("take", x=sent_whole.get(where, {"a": "q"}))

    def model_in(given: Any) -> Any:
        return given[0] if where == "a tuple" else given.inner if where == "beside" else given

    looked: list[Any] = []
    asked: list[ApprovalRequest] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        given = hydrated.tool
        looked.append(given if where == "the tool" else given.arguments["x"])
        return Allow()

    async def later(request: ApprovalRequest) -> Approve | None:
        asked.append(request)
        return Approve("grace") if len(asked) > 1 else None

    runner = ToolRunner([subject], policy=policy, approver=later)
    assert isinstance(await runner.exec(sent), Waiting)
    assert isinstance(await runner.exec(sent), Completed)
    assert asked[0].arguments == asked[1].arguments
    assert [model_in(got).v for got in (*GOT, *looked)] == [offbeat.make()] * (1 + len(looked))
    assert looked


async def test_what_no_json_gives_back_is_copied_for_whoever_looks() -> None:
    """What a factory made may be of a class that its hint does not name."""

    class Base(BaseModel):
        n: int = 1

    class More(Base):
        more: int = 2

    class Holding(BaseModel):
        kept: Base = Field(default_factory=More)

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        looked = hydrated.tool.arguments["x"].kept
        assert looked == More()
        looked.more = 9
        return Allow()

    outcome = await ToolRunner([taking(Holding)], policy=policy).exec(call("take", x={}))
    assert isinstance(outcome, Completed)
    assert outcome.record.arguments == {"x": {"kept": {"n": 1, "more": 2}}}
    assert [Holding(kept=More())] == GOT


@pytest.mark.parametrize("steady", [True, False])
async def test_what_no_json_gives_back_is_made_anew_and_compared(steady: bool) -> None:
    """In a saved run: the class stays what its factory makes, and no other value runs."""
    made, counter = type("More", (Shade,), {}), itertools.count()

    class Holding(BaseModel):
        kept: Shade = Field(default_factory=lambda: made(n=0 if steady else next(counter)))

    asked: list[ApprovalRequest] = []

    async def later(request: ApprovalRequest) -> None:
        asked.append(request)

    runner = ToolRunner([taking(Holding, requires_approval=True)], approver=later)
    client = ScriptedClient([scripted("take", x={}), "Done."])
    waiting = await Agent(client, runner).run("go")
    state = RunState.from_json(waiting.state.to_json())
    answers = {asked[0].id: Approve("grace")}
    if steady:
        await Agent(client, runner).resume(state, answers)
        assert [type(got.kept) for got in GOT] == [made]
    else:
        result = await Agent(client, runner).resume(state, answers)
        error = result.records[-1].error
        assert error is not None
        assert error.code is ErrorCode.APPROVAL_MISMATCH
        assert error.message.startswith("The approval no longer fits this call. A default factory")
        assert GOT == []


class Shade(BaseModel):
    n: int = 1


class Numbered(BaseModel):
    name: str
    number: UUID = Field(default_factory=uuid4)


def by_name(items: list[Numbered]) -> list[Numbered]:
    return sorted(items, key=lambda item: item.name)


@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_factory_made_in_what_a_validator_changed_never_becomes_another(
    waits: bool,
) -> None:
    """Items may stand elsewhere then: whoever looks gets a copy, and nothing else runs for them."""
    shown: list[Any] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        looked = hydrated.tool.arguments["x"]
        shown.append([json.loads(item.model_dump_json()) for item in looked])
        assert hydrated.arguments["x"] == shown[-1]
        looked.clear()
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve | None:
        assert request.arguments["x"] == shown[-1]
        return Approve("grace") if not waits or len(shown) > 1 else None

    subject = taking(Annotated[list[Numbered], AfterValidator(by_name)], requires_approval=True)
    runner = ToolRunner([subject], policy=policy, approver=approver)
    sent = call("take", x=[{"name": "b"}, {"name": "a"}])
    outcome = await runner.exec(sent)
    if waits:
        assert isinstance(outcome, Waiting)
        outcome = await runner.exec(sent)  # it is asked about anew
    assert isinstance(outcome, Completed)
    (got,) = GOT
    assert [json.loads(item.model_dump_json()) for item in got] == shown[-1]
    assert outcome.record.arguments == {"x": shown[-1]}


class Locked(BaseModel):
    n: int = 1
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


def test_what_cannot_be_copied_is_no_default_and_may_be_made_for_a_call() -> None:
    class Shared(BaseModel):
        kept: Locked = Locked()

    with pytest.raises(DefinitionError, match=r"'kept'.*cannot be copied.*default_factory"):
        taking(Shared)

    def take(x: Locked = Locked()) -> int:  # noqa: B008  that is what is refused
        """Take it."""
        return x.n

    with pytest.raises(DefinitionError, match=r"cannot be copied.*default_factory"):
        tool(visible=ALL)(take)

    class Own(BaseModel):
        kept: Locked = Field(default_factory=Locked)

    assert isinstance(read(Own, {}), Hydrated)


def test_a_pinned_value_is_used_again_and_stays_unset() -> None:
    class Note(BaseModel):
        text: str
        at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    catalog = Catalog([taking(Note)])
    first = hydrate(call("take", x={"text": "a"}), catalog)
    assert isinstance(first, Hydrated)
    again = hydrate(call("take", x={"text": "a"}), catalog, pinned=first.building.pinned)
    assert isinstance(again, Hydrated)
    assert (again.canonical, again.defaults) == (first.canonical, ("/x/at",))
    note = again.tool.arguments["x"]
    assert note.model_dump(exclude_unset=True) == {"text": "a"}
    other = hydrate(call("take", x={"text": "a"}), catalog)
    assert isinstance(other, Hydrated)
    assert other.canonical != first.canonical


class Within(NamedTuple):
    """How an object stands in an argument: the hint for its class, what is sent for it, and the place
    of it in what the tool gets."""

    hint: Callable[[Any], Any]
    sent: Callable[[Any], Any]
    got: Callable[[Any], Any]


def text_of(hint: Any) -> Any:
    """`Json[hint]`, of a hint that is made as the test runs."""
    return Annotated[hint, Json()]  # type: ignore[type-arg]


WITHIN = {
    "itself": Within(lambda cls: cls, lambda sent: sent, lambda got: got),
    "in a text": Within(text_of, json.dumps, lambda got: got),
    "in texts of a list in a text": Within(
        lambda cls: text_of(list.__class_getitem__(text_of(cls))),
        lambda sent: json.dumps([json.dumps(sent)]),
        lambda got: got[0],
    ),
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
@pytest.mark.parametrize("saved", [True, False])
async def test_a_call_that_waits_keeps_what_its_factories_made(saved: bool, within: Within) -> None:
    """Approved is what was shown, in a run that is saved and goes on, and in a call made again."""
    made, following = counting()
    asked: list[ApprovalRequest] = []
    answers: dict[str, Approve] = {}

    async def later(request: ApprovalRequest) -> Approve | None:
        asked.append(request)
        return answers.get(request.id)

    runner = ToolRunner([taking(within.hint(made), requires_approval=True)], approver=later)
    sent = within.sent({"name": "a"})
    if saved:
        client = ScriptedClient([scripted("take", x=sent), "Done."])
        waiting = await Agent(client, runner).run("go")
        state = RunState.from_json(waiting.state.to_json())
        (request,) = state.pending
        done = await Agent(client, runner).resume(state, {request.id: Approve("grace")})
        assert done.status == "completed"
    else:
        one = call("take", x=sent)
        assert isinstance(await runner.exec(one), Waiting)
        answers[asked[0].id] = Approve("grace")
        assert isinstance(await runner.exec(one), Completed)
    (got,) = GOT
    assert within.got(got).number == 1
    assert following() == 2


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
def test_what_a_factory_makes_for_a_constructor_alone_is_refused(within: Within) -> None:
    """Nobody can see what the constructor got: it may be another value than the one that is shown."""
    made, _ = counting()
    hints = {"s": InitVar.__class_getitem__(within.hint(made))}
    hint: Any = dataclass(type("Holder", (), {"__annotations__": hints}))
    result = read(hint, {"s": within.sent({"name": "a"})})
    assert isinstance(result, Rejected)
    assert result.errors[0].message == "the tool would get a different value each time it is read"


@pytest.mark.parametrize("edit", ['{"name":"a","name":"b"}', '{"name":NaN}', '{"name":"a"', "[]"])
async def test_an_edited_text_is_read_as_strictly_as_one_that_is_sent(edit: str) -> None:
    """What a factory made before is not put into a text that would be refused without it."""
    made, _ = counting()

    async def approver(_request: ApprovalRequest) -> Approve:
        return Approve("grace", arguments={"x": edit})

    runner = ToolRunner([taking(text_of(made), requires_approval=True)], approver=approver)
    outcome = await runner.exec(call("take", x='{"name":"a"}'))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert GOT == []


@pytest.mark.parametrize("edit", ['{"name":"a","number":7}', '{"name":"b"}'])
async def test_what_a_factory_made_in_a_text_is_edited_like_anything_else(edit: str) -> None:
    made, _ = counting()

    async def approver(_request: ApprovalRequest) -> Approve:
        return Approve("grace", arguments={"x": edit})

    runner = ToolRunner([taking(text_of(made), requires_approval=True)], approver=approver)
    outcome = await runner.exec(call("take", x='{"name":"a"}'))
    assert isinstance(outcome, Completed)
    ran = {"number": 1, **json.loads(edit)}
    assert outcome.record.arguments == {"x": canonical_json(ran)}
    (got,) = GOT
    assert asdict(got) == ran


# --- what stands in sets, and under keys of many spellings


@dataclass(frozen=True)
class Ticket:
    order: int
    number: UUID = field(default_factory=uuid4, compare=False)


@dataclass(frozen=True)
class Item:
    order: int
    cents: int = 9


@dataclass(eq=False)
class Shared:
    cents: int = 5


SHARED = Shared()


@dataclass(frozen=True)
class Holder:
    order: int
    shared: Shared = SHARED


@pytest.mark.parametrize(
    "hint", [set[Ticket], frozenset[Ticket], list[set[Ticket]], set[tuple[Ticket, int]]]
)
async def test_an_item_of_a_set_is_shown_as_the_tool_gets_it(hint: Any) -> None:
    """An item that equals another one may differ from it in what its class does not compare."""
    GOT.clear()
    one: Any = [{"order": 1}, {"order": 2}]
    sent = [one] if hint == list[set[Ticket]] else one
    sent = [[item, 1] for item in one] if hint == set[tuple[Ticket, int]] else sent
    outcome = await ToolRunner([taking(hint)]).exec(call("take", x=sent))
    assert isinstance(outcome, Completed), outcome
    numbers = re.findall(r"UUID\('([^']*)", repr(GOT))
    assert len(numbers) == 2
    shown = json.dumps(outcome.record.arguments)
    assert all(number in shown for number in numbers), (shown, GOT)


@pytest.mark.parametrize(
    "row",
    [
        (set[Item], [{"order": 3}, {"order": 5, "cents": 7}], ["/x/1/cents"]),
        (set[Item], [{"order": 3}, {"order": 3, "cents": 9}], ["/x/0/cents"]),
        (
            set[tuple[Item, int]],
            [[{"order": 3}, 2], [{"order": 5, "cents": 7}, 1]],
            ["/x/1/0/cents"],
        ),
        (list[frozenset[Item]], [[], [{"order": 3}, {"order": 5, "cents": 7}]], ["/x/1/1/cents"]),
        (dict[UUID, Item], {str(UUID(int=10)).upper(): {"order": 3}}, [f"/x/{UUID(int=10)}/cents"]),
        (
            dict[UUID, set[Item]],
            {str(UUID(int=10)).upper(): [{"order": 3}, {"order": 5, "cents": 7}]},
            [f"/x/{UUID(int=10)}/1/cents"],
        ),
    ],
)
def test_defaults_are_marked_where_they_are_shown(row: tuple[Any, Any, list[str]]) -> None:
    """Sets are shown sorted, and keys in a canonical form: places point into that."""
    hint, sent, places = row
    result = read(hint, sent)
    assert isinstance(result, Hydrated), result
    assert list(result.defaults) == places
    for place in places:
        shown: Any = result.arguments
        for step in place.split("/")[1:]:
            shown = shown[int(step) if isinstance(shown, list) else step]
        assert shown == 9


def test_a_default_in_a_set_that_would_be_shared_is_refused() -> None:
    """A copy of it would have another hash, and the set would lose its item."""
    result = read(set[Holder], [{"order": 1}])
    assert isinstance(result, Rejected)
    assert "default" in result.errors[0].message


# --- edited by an approver


async def test_edited_arguments_keep_defaults_unset_and_factories_pinned() -> None:
    made, following = counting()

    class Patch(BaseModel):
        stamped: made  # type: ignore[valid-type]
        name: str | None = None
        note: str = ""

    async def editor(request: ApprovalRequest) -> Approve:
        arguments = dict(request.arguments)
        arguments["x"]["note"] = "edited"  # type: ignore[index, call-overload]
        return Approve("grace", arguments)

    runner = ToolRunner([taking(Patch, requires_approval=True)], approver=editor)
    outcome = await runner.exec(call("take", x={"stamped": {"name": "a"}}))
    assert isinstance(outcome, Completed), outcome
    (got,) = GOT
    assert got.model_dump(exclude_unset=True) == {
        "stamped": {"name": "a", "number": 1},
        "note": "edited",
    }
    assert outcome.record.defaulted == ("/x/stamped/number", "/x/name")
    assert "(defaults: /x/stamped/number, /x/name)" in outcome.notice
    assert following() == 2


# --- an author's own text


class Guarded(BaseModel):
    order: int

    @field_validator("order")
    @classmethod
    def known(cls, order: int) -> int:
        if order == 1:
            raise ToolError("There is no order 1: ask for the orders first.")
        raise RuntimeError("canary")


async def test_a_tool_error_from_a_validator_reaches_the_model_as_it_stands() -> None:
    runner = ToolRunner([taking(Guarded)])
    outcome = await runner.exec(call("take", x={"order": 1}))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert outcome.error.message == "There is no order 1: ask for the orders first."
    other = await runner.exec(ToolCall("2", "take", '{"x": {"order": 2}}'))
    assert isinstance(other, Failed)
    assert other.error.code is ErrorCode.UNUSABLE_TOOL


async def test_a_tool_error_from_a_constructor_reaches_the_model_as_it_stands() -> None:
    @tool(visible=ALL)
    class Pay:
        """Pay."""

        def __init__(self, cents: int) -> None:
            raise ToolError("Amounts are whole euros.")

        async def run(self) -> int:
            return 1

    outcome = await ToolRunner([Pay]).exec(call("Pay", cents=5))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "Amounts are whole euros."


def test_a_datetime_without_offset_gets_a_hint() -> None:
    result = read(datetime, "2024-01-01T00:00:00")
    assert isinstance(result, Rejected)
    assert "add an offset such as +00:00 or Z" in result.errors[0].message


async def test_watchers_see_defaults_too() -> None:
    shown: list[Any] = []

    class Watcher:
        def approval_requested(self, request: ApprovalRequest) -> None:
            shown.append(request.arguments)

        def progress(self, call_id: str, part: Any) -> None: ...

        def finished(self, outcome: Any) -> None:
            shown.append(outcome.record.arguments)

    @tool(visible=ALL, requires_approval=True)
    def refund(order: int, cents: int = 5) -> int:
        """Refund."""
        return cents

    async def yes(_request: ApprovalRequest) -> Approve:
        return Approve("grace")

    scope = CallScope(RunTally(), observer=Watcher())
    await ToolRunner([refund], approver=yes).exec(call("refund", order=1), scope=scope)
    assert shown == [{"cents": 5, "order": 1}] * 2


# --- what is an argument, and whose


@dataclass
class Window:
    start: int = 1
    days: int = 7

    def __post_init__(self) -> None:
        self.end = self.start + self.days
        self._password = "hunter2"

    @functools.cached_property
    def address(self) -> str:
        return f"https://ada:{self._password}@db"


class WindowModel(BaseModel):
    start: int = 1
    days: int = 7

    @functools.cached_property
    def address(self) -> str:
        return "https://ada:hunter2@db"


class HasWindow(BaseModel):
    made: Window = Field(default_factory=Window)
    kept: Window = Window()


@pytest.mark.parametrize("kind", [Window, WindowModel])
async def test_only_fields_are_arguments(kind: Any) -> None:
    used = kind()
    assert used.address

    def plan(window: Any = used) -> int:
        """Plan."""
        GOT.append(window)
        return 1

    plan.__annotations__["window"] = kind
    subject = tool(visible=ALL, requires_approval=True)(plan)
    assert "hunter2" not in json.dumps(subject.definition.input_schema)
    seen, _ = await decided(subject)
    assert seen == [({"window": {"days": 7, "start": 1}}, ("/window",))] * 4

    async def shorter(request: ApprovalRequest) -> Approve:
        return Approve("grace", arguments={"window": {**request.arguments["window"], "days": 2}})  # type: ignore[dict-item]

    outcome = await ToolRunner([subject], approver=shorter).exec(call("plan"))
    assert isinstance(outcome, Completed)
    assert GOT[-1] == kind(days=2)


def test_only_fields_of_nested_objects_are_arguments() -> None:
    shown = {"days": 7, "start": 1}
    assert read(HasWindow, {}).arguments == {"x": {"kept": shown, "made": shown}}


SENTINEL = object()


class Search(BaseModel):
    words: list[str] = []
    most: float = math.inf


class HasSearch(BaseModel):
    search: Search = Search()
    one: list[Any] = [math.inf, []]


async def test_nobody_shares_a_default_without_json() -> None:
    @tool(visible=ALL)
    def find(x: HasSearch, search: Search = Search(), one: Any = SENTINEL) -> list[str]:  # noqa: B008
        """Find."""
        assert one is SENTINEL
        search.words.append("the tool's")
        x.search.words.append("the tool's")
        x.one[1].append("the tool's")
        return [*search.words, *x.search.words, *x.one[1]]

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        seen = hydrated.tool.arguments
        for words in (seen["search"].words, seen["x"].search.words, seen["x"].one[1]):
            words.append("a policy's")
        return Allow()

    runner = ToolRunner([find], policy=policy)
    for number in range(2):
        outcome = await runner.exec(ToolCall(f"call_{number}", "find", '{"x": {}}'))
        assert isinstance(outcome, Completed)
        assert outcome.value == ["the tool's"] * 3


async def test_what_pydantic_does_not_take_apart_is_made_once_a_call() -> None:
    drawn: list[object] = []

    class Ticket:
        def __init__(self) -> None:
            drawn.append(self)

    class Job(BaseModel):
        ticket: Any = Field(default_factory=Ticket)
        tickets: list[Any] = Field(default_factory=lambda: [Ticket()])

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Decision:
        for _ in range(2):
            looked = hydrated.tool.arguments["x"]
            assert [looked.ticket, *looked.tickets] == drawn
            looked.tickets.clear()
        return Allow()

    asked: list[ApprovalRequest] = []

    async def later(request: ApprovalRequest) -> Approve | None:
        asked.append(request)
        return None if len(asked) == 1 else Approve("grace")

    subject = taking(Job, requires_approval=True)
    runner = ToolRunner([subject], policy=policy, approver=later)
    assert isinstance(await runner.exec(call("take", x={})), Waiting)
    assert isinstance(await runner.exec(call("take", x={})), Completed)
    (got,) = GOT
    assert [got.ticket, *got.tickets] == drawn
    assert len(drawn) == 2


class Drawn:
    """What only its type shows, another one each time."""


FOR_SAVED: list[tuple[Any, Any]] = [
    (float, [math.inf, -math.inf]),
    (bytes, [b"\xff\x00", b"\xff\x01"]),
    (Any, [Drawn(), Drawn()]),
    (Any, [("a",), ("b",)]),
    (Any, [{"a"}, {"b"}]),
    (Any, [Decimal(1), Decimal(2)]),
    (Any, [SecretStr("a"), SecretStr("b")]),
]


@pytest.mark.parametrize(("hint", "makes"), FOR_SAVED)
@pytest.mark.parametrize("nested", [True, False])
async def test_a_saved_run_goes_on_with_no_other_value(hint: Any, makes: Any, nested: bool) -> None:
    """Only the call whose value is gone is refused; what JSON keeps goes on."""
    following = iter(makes)
    if nested:
        job: Any = create_model("Job", v=(hint, Field(default_factory=lambda: next(following))))
        subject = taking(job, requires_approval=True)
    else:
        made = make_dataclass("Take", [("v", hint, field(default_factory=lambda: next(following)))])

        class Take(made):  # type: ignore[misc, valid-type]
            """Take it."""

            async def run(self) -> None:
                GOT.append(self)

        subject = tool(visible=ALL, requires_approval=True, name="take")(dataclass(Take))
    plain = taking(Numbered, requires_approval=True, name="plain")
    runner = ToolRunner([subject, plain], approver=answer_later)
    calls = [scripted("take", **({"x": {}} if nested else {})), scripted("plain", x={"name": "a"})]
    client = ScriptedClient([calls, "Done."])
    waiting = await Agent(client, runner).run("go")
    state = RunState.from_json(waiting.state.to_json())
    answers = {request.id: Approve("grace") for request in state.pending}
    result = await Agent(client, runner).resume(state, answers)
    by_name = {record.name: record for record in result.records}
    assert by_name["plain"].status == "completed"
    error = by_name["take"].error
    assert error is not None
    assert error.code is ErrorCode.APPROVAL_MISMATCH
    assert error.message.startswith("The approval no longer fits this call. A default factory")
    assert [json.loads(got.model_dump_json()) for got in GOT] == [state.pending[1].arguments["x"]]


# --- what an author's validator of a list makes of items that have defaults without JSON

NO_LIMIT = object()


class Latch:
    """It has no JSON."""


class Bid(BaseModel):
    cents: Annotated[int, AfterValidator(lambda cents: cents * 100)]
    n: int = 1000
    limit: float = math.inf
    owner: Any = NO_LIMIT
    lock: Any = Field(default_factory=Latch)


@dataclass
class PlainBid:
    cents: Annotated[int, AfterValidator(lambda cents: cents * 100)]
    n: int = 1000
    limit: float = math.inf
    owner: Any = NO_LIMIT
    lock: Any = field(default_factory=Latch)


LISTS = {
    "as it is": lambda bids: bids,
    "sorted": lambda bids: sorted(bids, key=lambda bid: bid.cents),
    "turned": lambda bids: bids[::-1],
    "the dear ones": lambda bids: [bid for bid in bids if bid.cents > 300],
    "one of a kind": lambda bids: list({bid.cents: bid for bid in bids}.values()),
}


@pytest.mark.parametrize("kind", [Bid, PlainBid])
@pytest.mark.parametrize("name", LISTS)
async def test_what_a_validator_makes_of_a_list_is_seen_by_all(kind: Any, name: str) -> None:
    got: list[Any] = []
    seen: list[Any] = []

    def offer(bids: Any) -> str:
        """Bid."""
        got.extend(bids)
        return "ok"

    offer.__annotations__ = {
        "bids": Annotated[list[kind], AfterValidator(LISTS[name])],
        "return": str,
    }

    def policy(call: Hydrated, _context: Any) -> Allow:
        seen.append(call.arguments["bids"])
        return Allow()

    runner = ToolRunner([tool(visible=ALL)(offer)], policy=[policy])
    dice = random.Random(name)  # noqa: S311  to be repeated
    for number in range(40):
        got.clear()
        sent = [
            {
                "cents": dice.randrange(1, 6),
                **({"n": dice.randrange(3)} if dice.random() < 0.4 else {}),
            }
            for _ in range(dice.randrange(4))
        ]
        call = ToolCall(f"c{number}", "offer", json.dumps({"bids": sent}))
        outcome = await runner.exec(call)
        assert isinstance(outcome, Completed), outcome
        told = [
            {
                "cents": one.cents,
                "n": one.n,
                "limit": {"default": "float"},
                "owner": {"default": "object"},
                "lock": {"default": "Latch"},
            }
            for one in got
        ]
        assert outcome.record.arguments == {"bids": told}
        assert seen.pop() == told
