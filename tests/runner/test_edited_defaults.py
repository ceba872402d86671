"""What an edit leaves of a default is the very value that it was, of the same class, or nothing runs.

A default as a whole (of a parameter, a field, or made by a factory) is edited at one place. Nothing
else of what the tool gets may differ from what it would have got without the edit, though much of it
is written alike in JSON. A seeded sample runs with the other tests, 20,000 edits with
TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

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
    RootModel,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
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

SEEDS = 20_000
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
    found = list(differing(shape(before[0]), shape(GOT[0]["x"])))
    assert is_at_one_place(found), (edits, before[0], GOT, found)
    return "ran"


def test_an_edit_of_one_part_leaves_the_very_rest_of_a_default() -> None:
    seeds = sample(SEEDS, part=40)
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
        (AsAWhole(Money, Money()), with_part("cur", value="usd"), Money(cur="USD")),
        (AsAWhole(Sequence[str], ()), appended("a"), ["a"]),
        (AsAWhole(Sequence[str], ("a",)), appended("b"), ["a", "b"]),
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
