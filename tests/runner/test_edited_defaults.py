"""What an edit leaves of a default is the very value that it was, of the same class, or nothing runs.

A default as a whole (of a parameter, a field, or made by a factory) is edited at one place. Nothing
else of what the tool gets may differ from what it would have got without the edit, though much of it
is written alike in JSON: what its classes keep for themselves, its time zones, and the classes of its
containers, too. A seeded sample runs with the other tests, 6,000 edits with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import json
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from hydration.test_edited_fuzz import MORE, One, Three, Two
from hydration.test_effective_fuzz import (
    GOT,
    MAKERS,
    NAMES,
    SCALARS,
    Dice,
    Given,
    Kind,
    a_tool,
    places,
    shape,
)
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import TzInfo
from rows import each_row
from samples import sample

from toolcrib import (
    Allow,
    ApprovalRequest,
    Approve,
    Completed,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
)
from toolcrib.errors import DefinitionError, ErrorCode

SEEDS = 6_000
REFUSALS = (
    ErrorCode.APPROVAL_MISMATCH,
    ErrorCode.INVALID_ARGUMENTS,
    ErrorCode.UNUSABLE_TOOL,  # a validator makes of what is written what its hint does not take
)


class Card(BaseModel):
    cents: int = 1
    card: str = "the company's"


class Voucher(BaseModel):
    cents: int = 1


class Order(BaseModel):
    qty: int = 1
    by: Card | Voucher = Voucher(cents=4)


class Bank(BaseModel):
    kind: Literal["bank"] = "bank"
    cents: int = 2


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    cents: int = 3


class Tagged(BaseModel):
    by: Annotated[Bank | Cash, Field(discriminator="kind")] = Cash()
    note: str = ""


@dataclasses.dataclass
class Options:
    rate: Any = Decimal("1.5")
    span: object = (1, 2)
    n: int = 1


class Lenient(BaseModel):
    note: str = ""
    tags: list[str] | None = None

    @field_validator("tags", mode="before")
    @classmethod
    def none_is_empty(cls, value: Any) -> Any:
        return value or []


@dataclasses.dataclass
class Untimed:
    since: datetime = datetime(2026, 1, 1)  # noqa: DTZ001  what JSON cannot say
    limit: int = None  # type: ignore[assignment]
    n: int = 1


class Money(BaseModel):
    cur: Annotated[str, AfterValidator(str.upper)] = "eur"
    n: int = 1


class Price(BaseModel):
    """What is sent are euros, and its default is in cents."""

    cents: Annotated[int, AfterValidator(lambda euros: euros * 100)] = 500
    n: int = 1


class Named(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = Field(1, validation_alias=AliasChoices("A", "AA"))
    by: Card | Voucher = Field(Voucher(cents=4), alias="By")


class Pair(NamedTuple):
    n: int = 1
    by: Card | Voucher = Voucher(cents=4)


@dataclasses.dataclass(frozen=True)
class FrozenCard:
    cents: int = 1


@dataclasses.dataclass(frozen=True)
class FrozenVoucher:
    cents: int = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Shop(BaseModel):
    name: str = "a"
    rate: float = 2
    _region: str = PrivateAttr("us")


def a_shop(region: str, **fields: Any) -> Shop:
    made = Shop(**fields)
    made._region = region
    return made


@dataclasses.dataclass
class Run:
    a: int = 1
    rate: float = 1.5
    owner: str = dataclasses.field(default="nobody", init=False)


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, part in attributes.items():
        setattr(value, name, part)
    return value


class SubRun(Run):
    pass


class SubPair(Pair):
    pass


class Names(list[str]):
    pass


BERLIN = datetime(2026, 7, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))


@dataclasses.dataclass
class Box:
    last: deque[int] = dataclasses.field(default_factory=deque)
    by: dict[int, str] = dataclasses.field(default_factory=dict)
    groups: defaultdict[str, list[int]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    at: datetime = BERLIN
    n: int = 1


def zeros() -> list[int]:
    return [0]


class Rooted(RootModel[dict[str, Card | Voucher]]):
    pass


class AsAWhole(NamedTuple):
    """A hint, and a default as a whole for it."""

    hint: Any
    value: Any


WHOLES = [
    AsAWhole(Order, Order()), AsAWhole(Order, Order(qty=2, by=Voucher(cents=9))),
    AsAWhole(Tagged, Tagged()), AsAWhole(Options, Options()), AsAWhole(Lenient, Lenient()),
    AsAWhole(Untimed, Untimed()), AsAWhole(Money, Money()), AsAWhole(Price, Price()),
    AsAWhole(Named, Named.model_validate({})), AsAWhole(Pair, Pair()), AsAWhole(Given, Given(3)),
    AsAWhole(Given, Given(3, 7)),
    AsAWhole(Rooted, Rooted({"a": Voucher(cents=4), "b": Card()})),
    AsAWhole(list[Card | Voucher], [Voucher(cents=4), Card(cents=2)]),
    AsAWhole(list[Order], [Order(), Order(by=Card(cents=2))]),
    AsAWhole(dict[str, Order], {"a": Order(), "b": Order(qty=2)}),
    AsAWhole(set[FrozenCard | FrozenVoucher], {FrozenVoucher(4), FrozenCard(2)}),
    AsAWhole(One | Two, Two(x=1)), AsAWhole(One | Three, Three(x=4)), AsAWhole(Any, Decimal("2.5")),
    AsAWhole(Any, {"k": Decimal(1), "l": (1, 2)}), AsAWhole(Sequence[str], ("a", "b")),
    AsAWhole(Mapping[str, Any], {"k": (1, Decimal("2.5"))}),
    AsAWhole(tuple[float, float], (0, 2)), AsAWhole(dict[str, float], {"a": 1, "b": 0.5}),
    AsAWhole(list[Shop], [a_shop("eu", rate=1), Shop()]), AsAWhole(Shop, Shop(name="b")),
    AsAWhole(Shop, a_shop("eu")), AsAWhole(list[Run], [Run(2), Run()]),
    AsAWhole(list[Given], [Given(3), Given(4)]), AsAWhole(dict[str, Given], {"a": Given(3)}),
    AsAWhole(list[Run], [Run(2, 3), with_attributes(Run(), owner="ada")]),
    AsAWhole(Run, with_attributes(Run(2), note="hi")), AsAWhole(Run, SubRun()),
    AsAWhole(Pair, SubPair(3)), AsAWhole(list[Pair], [SubPair(3), Pair()]),
    AsAWhole(list[str], Names(["a", "b"])), AsAWhole(list[datetime], [BERLIN, BERLIN]),
    AsAWhole(dict[str, int], Counter("aab")), AsAWhole(Counter[str], Counter("aab")),
    AsAWhole(dict[str, int], OrderedDict(a=1, b=2)),
    AsAWhole(dict[str, list[int]], defaultdict(list, a=[1], b=[2, 3])),
    AsAWhole(defaultdict[str, list[int]], defaultdict(list, a=[1], b=[2, 3])),
    AsAWhole(deque[int], deque([1, 2])), AsAWhole(deque[int], deque([1, 2], maxlen=2)),
    AsAWhole(dict[int, str], {1: "x", 2: "y"}), AsAWhole(dict[int, str], {Level.LOW: "x", 2: "y"}),
    AsAWhole(dict[Level, float], {Level.LOW: 1, Level.HIGH: 0.5}),
    AsAWhole(Box, Box()), AsAWhole(Box, Box(at=datetime.fromtimestamp(0, ZoneInfo("UTC")))),
    AsAWhole(Box, Box(last=deque([1], maxlen=2))), AsAWhole(Box, Box(by={Level.LOW: "x"})),
    AsAWhole(Box, Box(groups=defaultdict(list, a=[1]))),
    AsAWhole(Box, Box(groups=defaultdict(zeros, a=[1]))),
]  # fmt: skip


def a_whole(dice: Dice, depth: int) -> AsAWhole:
    """A hint with a default, which may be an object of fields with such defaults."""
    if depth and dice.random() < 0.6:
        return an_object(dice, depth - 1)
    if dice.random() < 0.5:
        return dice.choice(WHOLES)
    while True:
        kind: Kind = dice.choice([*MAKERS, *MORE])(dice, 1) if depth else dice.choice(SCALARS)
        try:
            value = TypeAdapter(kind.hint).validate_json(json.dumps(kind.make(dice)))
        except ValidationError:
            continue
        return AsAWhole(kind.hint, value)


def an_object(dice: Dice, depth: int) -> AsAWhole:
    fields = {name: a_whole(dice, depth) for name in "abc"[: 1 + dice.randrange(3)]} | {
        "n": AsAWhole(int, 1)
    }
    made: Any
    if dice.random() < 0.5:
        told: dict[str, Any] = {
            n: (f.hint, Field(default_factory=copied(f.value)) if dice.random() < 0.3 else f.value)
            for n, f in fields.items()
        }
        made = create_model(f"Model{next(NAMES)}", **told)
    else:
        listed = [
            (n, f.hint, dataclasses.field(default_factory=copied(f.value)))
            for n, f in fields.items()
        ]
        made = dataclasses.make_dataclass(f"Data{next(NAMES)}", listed)
    given = {n: f.value for n, f in fields.items() if dice.random() < 0.2}
    return AsAWhole(made, made(**copy.deepcopy(given)))


def copied(value: Any) -> Callable[[], Any]:
    return lambda: copy.deepcopy(value)


def edited_at_one_place(shown: Any, dice: Dice) -> Any:
    made = copy.deepcopy(shown)
    leaves = [(h, k) for h, k in places(made) if not isinstance(h[k], dict | list)]
    if not leaves:
        return None
    holder, key = dice.choice(leaves)
    match holder[key]:
        case bool(is_so):
            holder[key] = not is_so
        case int(number) | float(number):
            holder[key] = number + 1
        case "bank" | "cash":
            holder[key] = {"bank": "cash", "cash": "bank"}[holder[key]]
        case str(text):
            holder[key] = text + "q"
        case _:
            holder[key] = dice.choice(["q", 1, [], {}])
    return made


def exactly(value: Any) -> Any:
    """A value by its types, and all that it holds; what is no container by what pickle makes of it."""
    kind = type(value).__name__
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        private = getattr(value, "__pydantic_private__", None) or {}
        extra = getattr(value, "__pydantic_extra__", None) or {}
        listed = () if isinstance(value, BaseModel) else dataclasses.fields(value)
        fields = {f.name: getattr(value, f.name) for f in listed if hasattr(value, f.name)}
        parts = {**fields, **getattr(value, "__dict__", {}), **extra, **private}
        return kind, {name: exactly(part) for name, part in parts.items()}
    if isinstance(value, defaultdict):
        kind = f"{kind} of {value.default_factory}"
    if isinstance(value, deque):
        kind = f"{kind} of at most {value.maxlen}"
    if isinstance(value, dict):
        return kind, {f"{type(key)} {key!r}": exactly(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, map(exactly, value)))
    if isinstance(value, list | tuple | deque):
        return kind, [exactly(part) for part in value]
    if kind in ("int", "float"):
        return shape(value)
    try:
        return kind, pickle.dumps(value)
    except (pickle.PicklingError, AttributeError):  # of a class that was made here
        return shape(value)


def differing(one: Any, other: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places at which two shapes differ, but for what is only in the second."""
    if one[0] != other[0]:
        yield at
    match one[1], other[1]:
        case dict(parts), dict(others):
            for name, part in parts.items():
                if name == "total" and parts["a"] != others["a"]:
                    continue  # it is made of what was edited
                if name in others:
                    yield from differing(part, others[name], (*at, name))
                else:
                    yield (*at, name)
        case [*items], [*others] if one[0] not in ("set", "frozenset"):
            for index, pair in enumerate(zip(items, others, strict=False)):
                yield from differing(*pair, (*at, index))
        case [*items], [*others]:
            yield from [at] * max(0, len(set(items) - set(others)) - 1)
        case _ if one != other:
            yield at


def is_at_one_place(found: Sequence[tuple[Any, ...]]) -> bool:
    """Whether all of it is one part, and what is around that."""
    inner = max(found, key=len, default=())
    return all(inner[: len(at)] == at for at in found)


def kinds_around(value: Any, at: Sequence[Any]) -> Iterator[str]:
    """The types of the containers around a place, but for objects: what an edit says may be another."""
    for depth in range(len(at)):
        value = value[1][at[depth - 1]] if depth else value
        if not isinstance(value[1], dict) or " " in next(iter(value[1]), ""):
            yield value[0]


async def edit_at_random(seed: int) -> str:
    """How the edit of a default as a whole ended."""
    dice = random.Random(seed)  # noqa: S311  to be repeated
    try:
        default = a_whole(dice, 2)
    except ValidationError:  # a text of JSON is no default
        return "no default"
    is_field = dice.random() < 0.5
    if is_field:
        made: Any = create_model(
            f"Holder{next(NAMES)}", i=(default.hint, Field(default_factory=copied(default.value)))
        )
        default = AsAWhole(made, None)
    try:
        given = {} if is_field else {"x": default.value}
        subject = a_tool({"x": Kind(default.hint, lambda d: None)}, given)
    except DefinitionError:
        return "no tool"
    if subject.definition.secret:
        return "secret"
    before: list[Any] = []
    edits: list[Any] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Allow:
        before.append(hydrated.tool.arguments["x"])
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve:
        edits.append((request.arguments, edited_at_one_place(request.arguments, dice)))
        return Approve("grace", arguments=edits[0][1])

    GOT.clear()
    runner = ToolRunner([subject], policy=policy, approver=approver)
    sent = '{"x": {}}' if is_field else "{}"
    outcome = await runner.exec(ToolCall(f"call_{next(NAMES)}", "take", sent))
    if isinstance(outcome, Failed):
        assert GOT == []
        assert outcome.error.code in REFUSALS, (edits, outcome.error)
        return outcome.error.code.value
    assert isinstance(outcome, Completed)
    was, now = exactly(before[0]), exactly(GOT[0]["x"])
    found = list(differing(was, now))
    assert is_at_one_place(found), (edits, before[0], GOT, found)
    inner = max(found, key=len, default=())
    kinds = [list(kinds_around(one, inner)) for one in (was, now)]
    assert kinds[0] == kinds[1], (edits, before[0], GOT)
    return "ran"


def test_an_edit_of_one_part_leaves_the_very_rest_of_a_default() -> None:
    seeds = sample(SEEDS, part=144)
    ended: list[str] = []
    for seed in range(seeds):
        try:
            ended.append(asyncio.run(edit_at_random(seed)))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert ended.count("ran") > seeds // 3
    assert ended.count("approval_mismatch") > seeds // 50


# --- what runs, and what does not


class HasOptions(BaseModel):
    n: int = 1
    o: Lenient = Field(default_factory=Lenient)


def with_part(*steps: Any, value: Any) -> Callable[[Any], Any]:
    def change(shown: Any) -> Any:
        holder = shown
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]] = value
        return shown

    return change


def appended(item: Any) -> Callable[[Any], Any]:
    return lambda shown: [*shown, item]


async def edit_of(default: AsAWhole, sent: Any, change: Callable[[Any], Any]) -> Any:
    """The outcome of a call, `{}` for one in which nothing is sent, whose approver changes `x`."""

    async def approver(request: ApprovalRequest) -> Approve:
        return Approve("grace", arguments={"x": change(request.arguments["x"])})

    GOT.clear()
    subject = a_tool({"x": Kind(default.hint, lambda d: None)}, {"x": default.value})
    runner = ToolRunner([subject], approver=approver)
    return await runner.exec(ToolCall(f"call_{next(NAMES)}", "take", json.dumps(sent)))


@each_row(
    ("default", "change", "got"),
    [
        (AsAWhole(Order, Order()), with_part("qty", value=2), Order(qty=2)),
        (AsAWhole(Options, Options()), with_part("n", value=2), Options(n=2)),
        (AsAWhole(Lenient, Lenient()), with_part("note", value="x"), Lenient(note="x")),
        (AsAWhole(HasOptions, HasOptions()), with_part("n", value=2), HasOptions(n=2)),
        (
            AsAWhole(list[Lenient], [Lenient()]),
            appended({"note": "k", "tags": ["t"]}),
            [Lenient(), Lenient(note="k", tags=["t"])],
        ),
        (AsAWhole(Untimed, Untimed()), with_part("n", value=2), Untimed(n=2)),
        (AsAWhole(Untimed, Untimed()), with_part("limit", value=2), Untimed(limit=2)),
        (AsAWhole(Tagged, Tagged()), with_part("by", "cents", value=9), Tagged(by=Cash(cents=9))),
        (
            AsAWhole(Tagged, Tagged()),
            with_part("by", "kind", value="bank"),
            Tagged(by=Bank(cents=3)),
        ),
        (
            AsAWhole(Named, Named.model_validate({})),
            with_part("A", value=2),
            Named.model_validate({"A": 2}),
        ),
        (AsAWhole(Given, Given(3)), with_part("a", value=4), Given(4)),
        (AsAWhole(list[Given], [Given(3), Given(4)]), lambda shown: shown[:1], [Given(3)]),
        (
            AsAWhole(list[Given], [Given(3), Given(4)]),
            with_part(1, "a", value=5),
            [Given(3), Given(5)],
        ),
        (
            AsAWhole(dict[str, Given], {"k": Given(3)}),
            with_part("l", value={"a": 5}),
            {"k": Given(3), "l": Given(5)},
        ),
        (AsAWhole(Money, Money()), with_part("cur", value="usd"), Money(cur="USD")),
        (AsAWhole(Sequence[str], ()), appended("a"), ["a"]),
        (AsAWhole(tuple[float, float], (0, 0)), with_part(1, value=2.5), (0.0, 2.5)),
        (AsAWhole(dict[str, float], {"a": 1, "b": 0.5}), with_part("b", value=2), {"a": 1, "b": 2}),
        (AsAWhole(list[float], [1, 2.5]), appended(4.5), [1.0, 2.5, 4.5]),
        (
            AsAWhole(Run, Run(rate=2)),
            with_part("a", value=5),
            with_attributes(Run(5, 2), owner="nobody"),
        ),
        (
            AsAWhole(list[Pair | Shop], [Shop(), Shop()]),
            with_part(1, "name", value="x"),
            [Shop(), Shop(name="x")],
        ),
        (
            AsAWhole(list[Shop], [Shop(), Shop()]),
            with_part(0, "name", value="x"),
            [Shop(name="x"), Shop()],
        ),
        (AsAWhole(deque[int], deque([1, 2])), with_part(0, value=3), deque([3, 2])),
        (AsAWhole(Box, Box()), with_part("n", value=2), Box(n=2)),
        (AsAWhole(Any, {"a": Decimal(1), "b": 1}), with_part("a", value="x"), {"a": "x", "b": 1}),
        (
            AsAWhole(list[datetime], [datetime(2026, 1, 2, tzinfo=UTC)]),
            appended("2026-02-03T00:00:00Z"),
            [datetime(2026, 1, 2, tzinfo=TzInfo(0)), datetime(2026, 2, 3, tzinfo=TzInfo(0))],
        ),
    ],
)
async def test_a_part_of_a_default_is_edited_and_the_rest_stays(
    default: AsAWhole, change: Any, got: Any
) -> None:
    outcome = await edit_of(default, {}, change)
    assert isinstance(outcome, Completed), outcome
    assert shape(GOT[0]["x"]) == shape(got)


async def test_a_default_of_a_sent_object_is_read_by_a_validator_that_leaves_it_alone() -> None:
    outcome = await edit_of(AsAWhole(Money, None), {"x": {}}, with_part("cur", value="usd"))
    assert isinstance(outcome, Completed), outcome
    assert GOT[0]["x"] == Money(cur="USD")


@each_row(
    ("default", "sent", "change", "place"),
    [
        (AsAWhole(Card | Voucher, Voucher(cents=4)), {}, with_part("cents", value=5), "/x"),
        (AsAWhole(Order, Order()), {}, with_part("by", "cents", value=5), "/x/by"),
        (AsAWhole(Order, None), {"x": {}}, with_part("by", "cents", value=5), "/x/by"),
        (AsAWhole(list[Card | Voucher], [Voucher(cents=4)]), {}, appended({"cents": 9}), "/x/0"),
        (AsAWhole(Given, Given(3, 7)), {}, with_part("a", value=4), "/x"),
        (AsAWhole(list[Given], [Given(3, 7)]), {}, appended({"a": 1}), "/x/0"),
        (AsAWhole(Any, (1, Decimal("1.5"))), {}, with_part(0, value=2), "/x/1"),
        (AsAWhole(Price, Price()), {}, with_part("cents", value=400), "/x/cents"),
        (AsAWhole(Sequence[str], ("a",)), {}, appended("b"), "/x"),
        (AsAWhole(Any, {"k": (1, 2), "n": 1}), {}, with_part("k", 0, value=3), "/x/k"),
        (AsAWhole(Pair, SubPair(3)), {}, with_part(0, value=4), "/x"),
        (AsAWhole(Run, SubRun()), {}, with_part("a", value=4), "/x"),
        (AsAWhole(list[str], Names(["a"])), {}, appended("b"), "/x"),
        (AsAWhole(dict[str, int], Counter("aab")), {}, with_part("a", value=4), "/x"),
        (AsAWhole(dict[str, int], OrderedDict(a=1)), {}, with_part("b", value=4), "/x"),
        (AsAWhole(dict[str, list[int]], defaultdict(list)), {}, with_part("b", value=[]), "/x"),
        (AsAWhole(deque[int], deque(maxlen=2)), {}, appended(1), "/x"),
        (AsAWhole(dict[int, str], {Level.LOW: "x"}), {}, with_part("2", value="y"), "/x"),
        (AsAWhole(list[Shop], [a_shop("eu"), Shop()]), {}, with_part(1, "name", value="b"), "/x/0"),
        (AsAWhole(Shop, a_shop("eu")), {}, with_part("name", value="b"), "/x"),
        (
            AsAWhole(Run, with_attributes(Run(), owner="ada")),
            {},
            with_part("a", value=4),
            "/x",
        ),
        (AsAWhole(Run, with_attributes(Run(), note="hi")), {}, with_part("a", value=4), "/x"),
        (AsAWhole(list[datetime], [BERLIN]), {}, appended("2026-01-01T00:00:00Z"), "/x/0"),
        (AsAWhole(Box, Box(last=deque([1], maxlen=2))), {}, with_part("n", value=2), "/x/last"),
        (AsAWhole(Box, Box(by={Level.LOW: "x"})), {}, with_part("n", value=2), "/x/by"),
        (
            AsAWhole(Box, Box(groups=defaultdict(zeros, a=[1]))),
            {},
            with_part("n", value=2),
            "/x/groups",
        ),
    ],
)
async def test_what_no_arguments_say_of_a_default_is_named(
    default: AsAWhole, sent: Any, change: Any, place: str
) -> None:
    outcome = await edit_of(default, sent, change)
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert f"at {place}" in outcome.error.message
    assert GOT == []


class Filled(BaseModel):
    """What its unit is depends on its number, unless it is sent."""

    n: int = 1
    by: Card | Voucher = Voucher(cents=4)
    unit: str = ""

    @model_validator(mode="before")
    @classmethod
    def fill(cls, sent: Any) -> Any:
        return {"unit": "E" if sent.get("n", 1) > 100 else "c", **sent}


async def test_all_of_an_edit_is_sent_only_if_the_defaults_in_it_stay() -> None:
    """The unit has to be sent, and so would the voucher, which would be a card then."""
    outcome = await edit_of(AsAWhole(Filled, None), {"x": {"n": 5}}, with_part("n", value=500))
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert GOT == []


async def test_json_in_a_text_is_edited_as_far_as_the_rest_stays() -> None:
    hint = Annotated[list[Order], Json()]

    def more(shown: Any) -> Any:
        (order,) = json.loads(shown)
        return json.dumps([{**order, "qty": 2}])

    outcome = await edit_of(AsAWhole(hint, None), {"x": "[{}]"}, more)
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert GOT == []
