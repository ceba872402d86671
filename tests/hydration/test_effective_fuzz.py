"""Any hint, any arguments: one value is decided on, asked about, recorded and run, or nothing runs.

Tools with random parameters are given valid arguments and near-valid ones. Of each call that runs, the
policy, the approver, the record and the hydrated call say the same, and the tool got that: read again
from what they saw, and written by pydantic from what it got. Valid arguments are never refused. A
seeded sample runs with the other tests, 100,000 calls with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    RootModel,
    Secret,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from rows import each_row
from samples import WHOLE
from typing_extensions import TypedDict

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Completed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.testing import MemorySink
from toolcrib.values.json import canonical_json

CALLS = 25
SEEDS = 100_000 // CALLS if WHOLE else 24
GOT: list[dict[str, Any]] = []


def note(arguments: dict[str, Any]) -> int:
    """Add to GOT and return the place there: the result of the call, as several may run at once."""
    GOT.append(arguments)
    return next(at for at, each in enumerate(GOT) if each is arguments)


MARKED: list[str] = []  # what the policy of the last call saw marked as defaults
Dice = random.Random


class Kind(NamedTuple):
    """A hint, and how valid JSON for it is made; `honest` if every such value is to be accepted,
    `dumps` if pydantic writes the value with the JSON kinds that were sent."""

    hint: Any
    make: Callable[[Dice], Any]
    honest: bool = True
    dumps: bool = True
    hashable: bool = False


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Guess(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, _value: object) -> Guess:
        return cls.A


@dataclasses.dataclass
class Node:
    value: int
    kids: list[Node] = dataclasses.field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    loud: bool


class Doubled(BaseModel):
    """Its validator changes what was sent: no call with it runs, unless it changes nothing."""

    n: int

    @model_validator(mode="before")
    @classmethod
    def double(cls, data: Any) -> Any:
        return {**data, "n": data["n"] * 2} if isinstance(data, dict) and "n" in data else data


class Filled(BaseModel):
    """Its validator fills in a field in place, in what it was given."""

    n: int
    unit: str = "EUR"

    @model_validator(mode="before")
    @classmethod
    def fill(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data.setdefault("unit", "USD")
        return data


class Spot(NamedTuple):
    x: int
    tags: list[str] = []  # noqa: RUF012  a default, which nobody may share


class Numbers(RootModel[list[int]]):
    pass


class Names(RootModel[dict[str, Filled]]):
    pass


@pydantic_dataclass
class Strict:
    a: int
    b: Annotated[str, Field(max_length=3)] = "q"
    c: list[int] = dataclasses.field(default_factory=list)


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    held: T
    more: list[T] = []


class Parent(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Child(Parent):
    spots: list[Spot] = [Spot(1)]


@dataclasses.dataclass
class Given:
    """What its constructor alone is given is in no field."""

    a: int
    rate: dataclasses.InitVar[int] = 2

    def __post_init__(self, rate: int) -> None:
        self.total = self.a * rate


def word(dice: Dice) -> str:
    return dice.choice(["", "a", " b ", "7", "true", "é\U0001f600", "2024-01-01", "null", "x" * 40])


def number(dice: Dice) -> Any:
    return dice.choice([0, 1, -1, 7, 2**53 + 1, -(2**70), 1.5, 3.0, -0.0, 1e300, 0.1])


def node(dice: Dice, depth: int = 3) -> Any:
    made: dict[str, Any] = {"value": dice.randrange(9)}
    if depth and dice.random() < 0.6:
        made["kids"] = [node(dice, depth - 1) for _ in range(dice.randrange(3))]
    return made


def integer(dice: Dice) -> Any:
    return dice.choice([0, 1, -5, 7.0, 10**20, -(10**30), 2.0**53])


MOMENTS = ["2024-01-01T00:00:00Z", "2024-02-29t12:30:00.5+05:30", "0001-01-01T00:00:00z"]
ANYTHING = [None, True, 1, 1.0, "1", [], {}, [1, [True]], {"a": {"b": 1}}, 2**70]
SCALARS = [
    Kind(str, word, hashable=True),
    Kind(int, integer, hashable=True),
    Kind(float, number),
    Kind(bool, lambda d: d.random() < 0.5, hashable=True),
    Kind(Any, lambda d: d.choice(ANYTHING)),
    Kind(Literal["a", "b"], lambda d: d.choice("ab"), hashable=True),
    Kind(Literal[1, 2], lambda d: d.choice([1, 2, 1.0])),
    Kind(Literal[1, True, "1"], lambda d: d.choice([1, True, "1"])),
    Kind(Color, lambda d: d.choice(["red", "blue"]), hashable=True),
    Kind(Level, lambda d: d.choice([1, 2, 2.0]), hashable=True),
    Kind(Guess, lambda d: "a"),
    Kind(datetime, lambda d: d.choice(MOMENTS)),
    Kind(date, lambda d: d.choice(["2024-02-29", "0001-01-01"]), hashable=True),
    Kind(time, lambda d: d.choice(["07:30", "23:59:59.5", "12:00:00Z"])),
    Kind(timedelta, lambda d: d.choice(["P1D", "PT36H", "P1W"])),
    Kind(UUID, lambda d: d.choice([str(UUID(int=7)), str(UUID(int=2**127)).upper()])),
    Kind(Path, lambda d: d.choice(["a/b", "/a", "a//b", "."])),
    Kind(Decimal, lambda d: d.choice(["1.50", 0.1, -7, "019.9", 19.99, 2e19]), dumps=False),
    Kind(bytes, lambda d: d.choice(["", "é", "abc"])),
    Kind(HttpUrl, lambda d: d.choice(["http://a", "https://A.b/c?d#e"])),
    Kind(Annotated[int, Field(ge=0, le=10)], lambda d: d.choice([0, 10, 3.0]), hashable=True),
    Kind(Annotated[str, Field(min_length=1)], lambda d: d.choice(["a", "7"])),
    Kind(Annotated[str, StringConstraints(strip_whitespace=True)], word),
    Kind(Annotated[int, AfterValidator(abs)], lambda d: d.choice([-5, 5, 0])),
    Kind(Annotated[str, BeforeValidator(str.strip)], word),
    Kind(Annotated[list[str], AfterValidator(sorted)], lambda d: [word(d) for _ in range(3)]),
    Kind(int | str, lambda d: d.choice([1, "1", "a"]), hashable=True),
    Kind(int | float, number),
    Kind(bool | int, lambda d: d.choice([True, 1, 0, False])),
    Kind(date | int, lambda d: d.choice(["2024-01-01", 3])),
    Kind(datetime | str, lambda d: d.choice([*MOMENTS, "a"])),
    Kind(Node, node),
    Kind(Cat | Dog, lambda d: d.choice([{"kind": "cat"}, {"kind": "dog", "loud": True}])),
    Kind(Annotated[Cat | Dog, Field(discriminator="kind")],
         lambda d: d.choice([{"kind": "cat", "lives": 7}, {"kind": "dog", "loud": False}])),
    Kind(Doubled, lambda d: {"n": d.randrange(3)}, honest=False),
    Kind(Filled, lambda d: d.choice([{"n": 1}, {"n": 2.0, "unit": "X"}]), dumps=False),
    Kind(Spot, lambda d: d.choice([[1], [7.0, ["a"]], [2, []]])),
    Kind(Numbers, lambda d: d.choice([[], [1, 2.0]])),
    Kind(Names, lambda d: {"k": {"n": 1}}, dumps=False),
    Kind(Strict, lambda d: d.choice([{"a": 1}, {"a": 2, "b": "xyz", "c": [3.0]}])),
    Kind(Box[int], lambda d: d.choice([{"held": 1.0}, {"held": 1, "more": [2]}])),
    Kind(Box[Spot | None], lambda d: d.choice([{"held": None}, {"held": [1], "more": [None]}])),
    Kind(Child, lambda d: d.choice([{"a": 1}, {"a": 1, "zz": [1.0, True], "spots": [[2, ["b"]]]}]),
         dumps=False),
    Kind(Given, lambda d: d.choice([{"a": 3}, {"a": 3, "rate": 5.0}]), dumps=False),
    Kind(Json[list[int]], lambda d: d.choice(["[]", "[1, 2.0]", " [3]"]), dumps=False),
    Kind(Json[Filled], lambda d: d.choice(['{"n": 1}', '{"n": 1, "unit": "X"}']), dumps=False),
    Kind(SecretStr, word, dumps=False),
    Kind(Secret[int], integer, dumps=False),
    Kind(deque[int], lambda d: [1, 2.0]),
    Kind(IPv4Address, lambda d: "127.0.0.1"),
    Kind(Mapping[str, Sequence[int]], lambda d: {"a": [1, 2.0]}),
]  # fmt: skip
HASHABLE = [kind for kind in SCALARS if kind.hashable]
NAMES = itertools.count()


def kind_of(dice: Dice, depth: int) -> Kind:
    if depth == 0 or dice.random() < 0.35:
        return dice.choice(SCALARS)
    return dice.choice(MAKERS)(dice, depth - 1)


def alike(inner: Kind, hint: Any, make: Callable[[Dice], Any]) -> Kind:
    return Kind(hint, make, inner.honest, inner.dumps)


def a_list(dice: Dice, depth: int) -> Kind:
    inner = kind_of(dice, depth)
    hint = dice.choice([list[inner.hint], tuple[inner.hint, ...]])  # type: ignore[name-defined]
    return alike(inner, hint, lambda d: [inner.make(d) for _ in range(d.randrange(3))])


def a_pair(dice: Dice, depth: int) -> Kind:
    one, two = kind_of(dice, depth), kind_of(dice, depth)
    return Kind(
        tuple[one.hint, two.hint],  # type: ignore[name-defined]
        lambda d: [one.make(d), two.make(d)],
        one.honest and two.honest,
        one.dumps and two.dumps,
    )


def a_set(dice: Dice, _depth: int) -> Kind:
    inner = dice.choice(HASHABLE)
    hint = dice.choice([set[inner.hint], frozenset[inner.hint]])  # type: ignore[name-defined]
    return alike(inner, hint, lambda d: [inner.make(d)] if d.random() < 0.8 else [])


def a_dict(dice: Dice, depth: int) -> Kind:
    inner, keys = kind_of(dice, depth), dice.choice([(str, "a"), (int, "-7"), (Color, "red")])
    hint: Any = dict.__class_getitem__((keys[0], inner.hint))
    return alike(inner, hint, lambda d: {keys[1]: inner.make(d)} if d.random() < 0.8 else {})


def a_choice(dice: Dice, depth: int) -> Kind:
    inner = kind_of(dice, depth)
    hint: Any = Optional[inner.hint]  # noqa: UP045
    return alike(inner, hint, lambda d: None if d.random() < 0.3 else inner.make(d))


def fields_of(dice: Dice, depth: int) -> dict[str, Kind]:
    return {name: kind_of(dice, depth) for name in "abc"[: 1 + dice.randrange(3)]}


def an_object(fields: dict[str, Kind], hint: Any, keys: dict[str, str], optional: set[str]) -> Kind:
    def make(dice: Dice) -> Any:
        sent = [n for n in fields if n not in optional or dice.random() < 0.5]
        dice.shuffle(sent)
        return {keys.get(name, name): fields[name].make(dice) for name in sent}

    kinds = fields.values()
    return Kind(hint, make, all(k.honest for k in kinds), all(k.dumps for k in kinds))


def default_for(dice: Dice) -> tuple[Any, Callable[[], Any] | None, Any]:
    """A hint, a factory or None, a default."""
    return dice.choice(
        [
            (int, None, 5), (str, None, "x"), (int, None, None), (Color, None, Color.RED),
            (list[int], list, None), (UUID, uuid4, None), (float, random.random, None),
            (datetime | None, None, None), (dict[str, int], lambda: {"k": 1}, None),
        ]
    )  # fmt: skip


def a_dataclass(dice: Dice, depth: int) -> Kind:
    fields = fields_of(dice, depth)
    hint, factory, default = default_for(dice)
    last = (
        dataclasses.field(default_factory=factory)
        if factory
        else dataclasses.field(default=default)
    )
    made = dataclasses.make_dataclass(
        f"Data{next(NAMES)}", [*((n, k.hint) for n, k in fields.items()), ("z", hint, last)]
    )
    return an_object(fields, made, {}, set())


def a_model(dice: Dice, depth: int) -> Kind:
    fields = fields_of(dice, depth)
    keys: dict[str, str] = {}
    alias = ""
    told: dict[str, Any] = {name: (kind.hint, ...) for name, kind in fields.items()}
    if dice.random() < 0.5:
        keys["a"] = "A"
        alias = dice.choice(["alias", "validation_alias", "choices"])
        said: Any = (
            {"validation_alias": AliasChoices("A", "AA")} if alias == "choices" else {alias: "A"}
        )
        told["a"] = (fields["a"].hint, Field(**said))
    hint, factory, default = default_for(dice)
    more: Any = {"exclude": True} if dice.random() < 0.2 else {}
    more |= {"default_factory": factory} if factory else {"default": default}
    told["z"] = (hint, Field(**more))
    config = ConfigDict(
        extra=dice.choice(["ignore", "forbid", "allow"]),
        populate_by_name=dice.random() < 0.3,
        str_strip_whitespace=dice.random() < 0.2,
    )
    made = create_model(f"Model{next(NAMES)}", __config__=config, **told)
    kind = an_object(fields, made, keys, set())
    return kind._replace(
        dumps=kind.dumps
        and config["extra"] != "allow"
        and "exclude" not in more
        and alias in ("", "alias")
    )


def a_typed_dict(dice: Dice, depth: int) -> Kind:
    fields = fields_of(dice, depth)
    optional = {name for name in fields if dice.random() < 0.4}
    hints = {n: NotRequired[k.hint] if n in optional else k.hint for n, k in fields.items()}
    make: Any = TypedDict
    made = make(f"Typed{next(NAMES)}", hints)
    return an_object(fields, made, {}, optional)


MAKERS = [a_list, a_pair, a_set, a_dict, a_choice, a_dataclass, a_model, a_model, a_typed_dict]


# --- arguments that are nearly valid


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each part of a JSON value, by what holds it."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        holder = pending.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in list(keys):
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                pending.append(holder[key])
    return found


def mutated(value: Any, dice: Dice) -> Any:
    made = copy.deepcopy(value)
    for _ in range(1 + dice.randrange(2)):
        found = places(made)
        if not found:
            break
        holder, key = dice.choice(found)
        objects = [made, *(h[k] for h, k in found if isinstance(h[k], dict))]
        match dice.randrange(6):
            case 0:
                dice.choice(objects)[dice.choice(["zz", "a", "A", "AA", "b", "z", "n"])] = number(
                    dice
                )
            case 1 if isinstance(holder, dict):
                del holder[key]
            case 2 if isinstance(holder, dict):
                holder[dice.choice(["a", "A", "AA", "zz"])] = holder.pop(key)
            case _:
                holder[key] = other(holder[key], dice)
    return made


def other(value: Any, dice: Dice) -> Any:
    """A value of another kind, or another value of the same."""
    if isinstance(value, bool):
        return dice.choice([int(value), str(value).lower(), not value, None])
    if isinstance(value, int | float):
        return dice.choice(
            [str(value), bool(value), float(value) if abs(value) < 1e300 else 0, -value]
        )
    if isinstance(value, str):
        return dice.choice([7, True, value + " ", value.upper(), [value], None])
    return dice.choice([None, [], {}, [value], "{}", 0])


# --- the rule


def shape(value: Any) -> Any:
    """A value by its types and parts: `1` and `True` differ, and so do classes."""
    kind = type(value).__name__
    if isinstance(value, Secret | SecretStr):
        return kind, shape(value.get_secret_value())
    if isinstance(value, BaseModel):
        parts = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return kind, {name: shape(part) for name, part in parts.items()}
    if dataclasses.is_dataclass(value):
        return kind, {name: shape(part) for name, part in vars(value).items()}
    if isinstance(value, dict):
        return kind, {repr(key): shape(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, map(shape, value)))
    if isinstance(value, list | tuple):
        return kind, [shape(part) for part in value]
    if kind == "Decimal" and not value:
        return kind, "0"  # JSON in canonical form has no sign of zero
    return ("number", repr(whole(value))) if kind in ("int", "float") else (kind, repr(value))


def whole(value: Any) -> Any:
    """A number as JSON has it: `1.0` is `1`, and `-0.0` is `0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def loosely(value: Any) -> str:
    """JSON in canonical form, arrays in any order: sets have none."""
    if isinstance(value, list):
        return "[" + ",".join(sorted(map(loosely, value))) + "]"
    if isinstance(value, dict):
        return canonical_json({key: loosely(part) for key, part in value.items()})
    return canonical_json(whole(value))


FORMS = ("function", "class", "model", "a schema of the author's", "an open schema")


def a_tool(
    kinds: dict[str, Kind], defaults: dict[str, Any] | None = None, form: str = "function"
) -> Any:
    if form in ("class", "model"):
        return a_class(kinds, form)

    def take(**arguments: Any) -> int:
        """Take it."""
        return note(arguments)

    given = defaults or {}
    taken = ", ".join(f"{n}=given[{n!r}]" if n in given else n for n in kinds)
    code = f"def take({taken}): return inner({', '.join(f'{n}={n}' for n in kinds)})"
    space: dict[str, Any] = {"inner": take, "given": given}
    exec(code, space)  # noqa: S102  a signature of our own making
    space["take"].__annotations__ = {**{n: k.hint for n, k in kinds.items()}, "return": int}
    options: Any = {"visible": ALL, "description": "It runs.", "requires_approval": True}
    made: Any = tool(**options)(space["take"])
    if form == "function":
        return made
    schema = made.definition.input_schema
    if form == "an open schema":
        names: dict[str, Any] = {name: {} for name in kinds}
        schema = {"type": "object", "properties": names, "required": list(names)}
    return tool(**options, parameters=schema)(space["take"])


def a_class(kinds: dict[str, Kind], form: str) -> Any:
    async def run(self: Any) -> int:
        return note({name: getattr(self, name) for name in kinds})

    hints = {name: kind.hint for name, kind in kinds.items()}
    made: type
    if form == "class":
        made = dataclasses.make_dataclass("Take", hints.items(), namespace={"run": run})
    else:
        told: Any = {name: (hint, ...) for name, hint in hints.items()}
        made = type("Take", (create_model("Fields", **told),), {"run": run})
    options: Any = {"name": "take", "description": "It runs.", "requires_approval": True}
    return tool(visible=ALL, **options)(made)


async def check_one(runner: ToolRunner, kinds: dict[str, Kind], sent: Any, seen: list[Any]) -> bool:
    """Whether the call ran; raises AssertionError if anybody saw another value."""
    GOT.clear()
    seen.clear()
    text = json.dumps(sent)
    outcome = await runner.exec(ToolCall(f"call_{next(NAMES)}", "take", text))
    if not isinstance(outcome, Completed):
        assert GOT == []
        return False
    assert len(seen) == 3  # the policy, the approver, the policy again
    effective = canonical_json(seen[0])
    assert canonical_json(seen[2]) == effective
    for shown in (seen[1], outcome.record.arguments):
        assert_shown(shown, seen[0], runner)
    (got,) = GOT
    for name, kind in kinds.items():
        adapter: Any = TypeAdapter(kind.hint)
        shown = without_nulls(json.loads(effective), MARKED)[name]
        again = adapter.validate_json(json.dumps(shown))
        assert shape(again) == shape(got[name]), (shown, again, got[name])
        if kind.dumps:
            dumped = adapter.dump_python(got[name], mode="json", by_alias=True, round_trip=True)
            assert loosely(dumped) == loosely(json.loads(effective)[name]), (dumped, shown)
    return True


def assert_shown(shown: Any, effective: Any, runner: ToolRunner) -> None:
    """An approver and a record have the same, but for secrets, of which they have nothing."""
    secret = runner.catalog["take"].get_definition().secret
    assert canonical_json(shown) == canonical_json(
        {name: "***" if name in secret else value for name, value in effective.items()}
    )


def without_nulls(effective: Any, defaults: Sequence[str]) -> Any:
    """The effective arguments as they can be read again: None is a default of any hint."""
    for place in defaults:
        *above, last = place.split("/")[1:]
        holder = effective
        for step in above:
            holder = holder[int(step) if isinstance(holder, list) else step]
        if isinstance(holder, dict) and holder[last] is None:
            del holder[last]
    return effective


def run_seed(seed: int) -> tuple[int, int]:
    """How many calls ran, and how many did not."""
    dice = random.Random(seed)  # noqa: S311
    form = dice.choice(FORMS)
    count = 2 if form == "class" else 1 + dice.randrange(2)  # the only one would be all arguments
    kinds = {name: kind_of(dice, 3) for name in ("x", "y")[:count]}
    seen: list[Any] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Allow:
        seen.append(hydrated.arguments)
        MARKED[:] = hydrated.defaults
        spoil(hydrated.arguments)
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve:
        seen.append(copy.deepcopy(request.arguments))
        spoil(request.arguments)
        return Approve("grace")

    class Spoils:
        def write(self, record: Any) -> None:
            spoil(record.arguments or {})

    sink = MemorySink()
    made = a_tool(kinds, form=form)
    runner = ToolRunner(
        [made], policy=policy, approver=approver, sinks=[Spoils(), sink], remember=2
    )
    ran = 0
    for _ in range(CALLS):
        valid = {name: kind.make(dice) for name, kind in kinds.items()}
        honest = all(kind.honest for kind in kinds.values()) and dice.random() < 0.5
        sent = valid if honest else mutated(valid, dice)
        sink.records.clear()
        done = asyncio.run(watched(runner, kinds, sent, seen, sink))
        if honest and not done:
            errors = hydrate(ToolCall("c", "take", json.dumps(sent)), runner.catalog).errors
            raise AssertionError((kinds, sent, errors))
        ran += done
    return ran, CALLS - ran


async def watched(
    runner: ToolRunner, kinds: dict[str, Kind], sent: Any, seen: list[Any], sink: MemorySink
) -> bool:
    done = await check_one(runner, kinds, sent, seen)
    if done:
        (record,) = sink.records
        assert_shown(record.arguments, seen[0], runner)
    return done


def spoil(arguments: Any) -> None:
    """What somebody who holds arguments may do to them."""
    for holder, key in places(arguments):
        holder[key] = "spoiled"
    arguments["zz"] = 1


@each_row("seed", range(12))
def test_a_sample(seed: int) -> None:
    ran, refused = run_seed(seed)
    assert ran + refused == CALLS


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE, reason="TOOLCRIB_FUZZ=all")
def test_all() -> None:
    ran = refused = 0
    for seed in range(SEEDS):
        done, not_done = run_seed(seed)
        ran, refused = ran + done, refused + not_done
    assert ran + refused >= 100_000
    assert min(ran, refused) > 20_000


@each_row("kind", SCALARS, ids=lambda kind: str(kind.hint)[:40])
def test_each_honest_value_of_each_hint_is_accepted(kind: Kind) -> None:
    """The table of honest rows: every hint by itself, and in what holds it."""
    dice = random.Random(1)  # noqa: S311
    if not kind.honest:
        return
    catalogs = [
        (ToolRunner([a_tool({"x": wrapped})]).catalog, wrapped)
        for wrapped in (
            kind,
            alike(kind, list[kind.hint], lambda d: [kind.make(d)]),  # type: ignore[name-defined]
            alike(kind, Optional[kind.hint], kind.make),  # noqa: UP045
            alike(kind, dict[str, kind.hint], lambda d: {"k": kind.make(d)}),  # type: ignore[name-defined]
        )
    ]
    for catalog, wrapped in catalogs:
        for _ in range(20):
            sent = wrapped.make(dice)
            result = hydrate(ToolCall("c", "take", json.dumps({"x": sent})), catalog)
            assert isinstance(result, Hydrated), (wrapped.hint, sent, result.errors)
