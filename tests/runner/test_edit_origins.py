"""Each item of an edit has the values that were its own, in the one process that it was shown in.

Items have what factories make (lists, dicts, times, UUIDs, numbers, random bytes, objects without
JSON), a default that stands for "not given", and a text that a validator marks; they hold further
items. Edits change, add, insert, remove, move, swap and copy them. For each item of an edit `_Edit`
says where it came from, and so which values it has, which of them count as sent, and how often
factories ran. A seeded sample runs with the other tests, 20,000 edits with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import random
from collections import Counter
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json
from samples import sample

from toolcrib import (
    ALL,
    Allow,
    Approve,
    Completed,
    Failed,
    Hydrated,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ErrorCode

SEEDS = 20_000
REFUSED = "refused"
NOT_GIVEN: Any = object()
RUNS: Counter[str] = Counter()
NUMBERS = itertools.count(300)
GOT: list[dict[str, Any]] = []
Marked = Annotated[str, AfterValidator(lambda text: f"{text}!")]


class Opaque:
    """It has no JSON."""


def counted(name: str, make: Any) -> Any:
    def made() -> Any:
        RUNS[name] += 1
        return make()

    return made


FACTORIES: dict[str, Any] = {
    "at": counted("at", datetime.now),
    "uid": counted("uid", uuid4),
    "number": counted("number", lambda: next(NUMBERS)),
    "nonce": counted("nonce", lambda: os.urandom(8)),
    "opaque": counted("opaque", Opaque),
    "tags": list,
    "extra": dict,
}


class Model(BaseModel):
    key: str
    text: Marked = "n"
    owner: str | None = None
    limit: Any = NOT_GIVEN
    tags: list[str] = Field(default_factory=list)
    extra: dict[str, int] = Field(default_factory=dict)
    kids: list[Model] = Field(default_factory=list)
    at: datetime = Field(default_factory=FACTORIES["at"])
    uid: UUID = Field(default_factory=FACTORIES["uid"])
    number: int = Field(default_factory=FACTORIES["number"])
    nonce: bytes = Field(default_factory=FACTORIES["nonce"])
    opaque: Any = Field(default_factory=FACTORIES["opaque"])


@dataclasses.dataclass
class Data:
    key: str
    text: Marked = "n"
    owner: str | None = None
    limit: Any = NOT_GIVEN
    tags: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, int] = dataclasses.field(default_factory=dict)
    kids: list[Data] = dataclasses.field(default_factory=list)
    at: datetime = dataclasses.field(default_factory=FACTORIES["at"])
    uid: UUID = dataclasses.field(default_factory=FACTORIES["uid"])
    number: int = dataclasses.field(default_factory=FACTORIES["number"])
    nonce: bytes = dataclasses.field(default_factory=FACTORIES["nonce"])
    opaque: Any = dataclasses.field(default_factory=FACTORIES["opaque"])


@dataclasses.dataclass
class Mixed:
    key: str
    kids: list[Model] = dataclasses.field(default_factory=list)
    text: Marked = "n"
    limit: Any = NOT_GIVEN
    nonce: bytes = dataclasses.field(default_factory=FACTORIES["nonce"])
    number: int = dataclasses.field(default_factory=FACTORIES["number"])
    opaque: Any = dataclasses.field(default_factory=FACTORIES["opaque"])


def a_tool(hint: Any, last: Any) -> Any:
    def plan(todo: Any, done: Any, last: Any = None, note: str = "") -> str:
        """Plan."""
        GOT.append({"todo": todo, "done": done, "last": last})
        return "planned"

    plan.__annotations__ = {"todo": hint, "done": hint, "last": last, "note": str, "return": str}
    return tool(visible=ALL, safe=False)(plan)


TOOLS = {
    "models": a_tool(list[Model], Model | None),
    "dataclasses": a_tool(list[Data], Data | None),
    "mixed": a_tool(list[Mixed], Mixed | None),
}


class _Edit:
    """Edits what was shown, at random, and says where each item came from.

    `origin` has the key of the item that one was, by its identity; `written` the fields that it was
    given. What is moved to another list, or copied, stays as it is from then on.
    """

    def __init__(self, dice: random.Random, shown: Any, *, is_one_class: bool) -> None:
        self.dice = dice
        self.is_one_class = is_one_class
        self.whole = shown
        self.origin: dict[int, str] = {}
        self.written: dict[int, set[str]] = {}
        self.still: set[int] = set()
        self.kinds: list[str] = []
        self.alive: list[Any] = []
        self.new = itertools.count()
        for item in self.items():
            self.origin[id(item)] = item["key"]

    def items(self) -> list[Any]:
        return [item for each in (self.whole["todo"], self.whole["done"]) for item in within(each)]

    def lists(self) -> list[Any]:
        own = [self.whole["todo"], self.whole["done"]]
        return own + [i["kids"] for i in self.items() if "kids" in i and id(i) not in self.still]

    def touched(self, item: Any) -> bool:
        return any(
            id(one) not in self.origin or self.written.get(id(one)) for one in within([item])
        )

    def newcomer(self) -> Any:
        item: dict[str, Any] = {"key": f"new{next(self.new)}"}
        if self.dice.random() < 0.3:
            item["text"] = "w"
        self.written[id(item)] = set(item)
        self.alive.append(item)
        return item

    def holder(self, items: list[Any]) -> None:
        """Note that a list of items is written: it counts as sent where it was a default."""
        for item in self.items():
            if item.get("kids") is items:
                self.written.setdefault(id(item), set()).add("kids")

    def freeze(self, item: Any) -> None:
        self.still |= {id(one) for one in within([item])}

    def change_one(self) -> None:
        dice, kind = self.dice, self.dice.choice(KINDS)
        items = dice.choice(self.lists())
        free = [item for item in items if id(item) not in self.still]
        if kind == "add":
            items.insert(
                dice.choice([0, len(items), dice.randrange(len(items) + 1)]), self.newcomer()
            )
        elif not free:
            return
        else:
            item = dice.choice(free)
            if not getattr(self, kind)(items, item):
                return
        if kind != "change":
            self.holder(items)
        self.kinds.append(kind)

    def change(self, _items: list[Any], item: Any) -> bool:
        name = self.dice.choice(
            [n for n in ("text", "owner", "limit", "tags", "number") if n in item] or ["key"]
        )
        if name == "key":
            return False
        new = {"text": "z", "owner": "me", "limit": 5, "tags": ["t"], "number": 7}
        item[name] = copy.deepcopy(new[name])
        self.written.setdefault(id(item), set()).add(name)
        return True

    def remove(self, items: list[Any], item: Any) -> bool:
        self.alive.append(item)
        items[:] = [one for one in items if one is not item]
        return True

    def move(self, items: list[Any], item: Any) -> bool:
        self.remove(items, item)
        items.insert(self.dice.randrange(len(items) + 1), item)
        return True

    def swap(self, items: list[Any], _item: Any) -> bool:
        one, other = self.dice.randrange(len(items)), self.dice.randrange(len(items))
        items[one], items[other] = items[other], items[one]
        return True

    def across(self, items: list[Any], item: Any) -> bool:
        inside = [one.get("kids") for one in within([item])]
        top = (self.whole["todo"], self.whole["done"])
        others = [
            each
            for each in self.lists()
            if each is not items
            and not any(each is i for i in inside)
            and (self.is_one_class or any(each is t for t in top) == any(items is t for t in top))
        ]
        if self.touched(item) or not others:
            return False
        target = self.dice.choice(others)
        self.remove(items, item)
        target.insert(self.dice.randrange(len(target) + 1), item)
        self.freeze(item)
        self.holder(target)
        return True

    def copy(self, items: list[Any], item: Any) -> bool:
        if self.touched(item):
            return False
        made = copy.deepcopy(item)
        for one, was in zip(within([made]), within([item]), strict=True):
            self.origin[id(one)] = self.origin[id(was)]
        targets = [items, self.whole["done"]] if self.is_one_class else [items]
        self.dice.choice(targets).append(made)
        self.freeze(item)
        self.freeze(made)
        return True


KINDS = ["change", "change", "add", "add", "remove", "move", "swap", "across", "copy"]


def within(items: Any) -> list[Any]:
    """Return the items of a list and those that they hold, in the order of a walk."""
    return [one for item in items for one in (item, *within(item.get("kids", [])))]


def objects(items: Any) -> list[Any]:
    return [one for item in items for one in (item, *objects(item.kids))]


def an_item(dice: random.Random, keys: Any, depth: int, kind: str) -> Any:
    item: dict[str, Any] = {"key": f"k{next(keys)}"}
    may: dict[str, Any] = {"text": "a", "limit": 3}
    if kind != "mixed":
        may |= {"owner": "you", "tags": ["x"], "extra": {"a": 1}}
    item |= {name: value for name, value in may.items() if dice.random() < 0.2}
    if depth and dice.random() < 0.5:
        below = "models" if kind == "mixed" else kind
        item["kids"] = [an_item(dice, keys, depth - 1, below) for _ in range(dice.randrange(3))]
    return item


def set_fields(value: Any) -> set[str]:
    return value.model_fields_set if isinstance(value, BaseModel) else set()


def names_of(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    return [field.name for field in dataclasses.fields(value)]


def wrong_in(item: Any, got: Any, edit: _Edit, before: dict[str, Any]) -> list[str]:
    """Return what is wrong with one item that ran, given where it came from."""
    written = edit.written.get(id(item), set())
    was = before.get(edit.origin.get(id(item), ""))
    found = []
    for name in names_of(got):
        value = getattr(got, name)
        if name in written and name != "kids":
            expected = f"{item[name]}!" if name == "text" else item[name]
            right = value == expected and (name in set_fields(got) or not set_fields(got))
        elif was is None:
            right = True if name == "kids" else is_new(name, value, before)
        else:
            own = getattr(was[0], name)
            right = name == "kids" or value is own or (name != "opaque" and value == own)
            is_set = name in set_fields(got)
            right = right and (is_set == (name in was[1]) or name in written)
        if not right:
            found.append(f"{name} of {item}: {value!r}, was {was and getattr(was[0], name)!r}")
    return found


def is_new(name: str, value: Any, before: dict[str, Any]) -> bool:
    if name == "limit":
        return value is NOT_GIVEN
    if name in ("uid", "number", "nonce", "opaque"):
        return all(
            value is not getattr(one, name, None) and value != getattr(one, name, None)
            for one, _ in before.values()
        )
    return True


async def edit_at_random(seed: int) -> tuple[str, list[str], str]:
    """Return how it ended, the kinds of changes, and what is wrong with it."""
    dice = random.Random(seed)  # noqa: S311  to be repeated
    kind = dice.choice(list(TOOLS))
    keys = itertools.count()
    sent = {
        name: [an_item(dice, keys, 2, kind) for _ in range(dice.randrange(4))]
        for name in ("todo", "done")
    }
    before: dict[str, Any] = {}
    told: list[_Edit] = []

    def policy(call: Hydrated, _context: Any) -> Allow:
        if not told:
            building: Any = call.building
            arguments = building._unseen.instance.arguments
            for one in objects([*arguments["todo"], *arguments["done"]]):
                before[one.key] = one, set(set_fields(one))
        return Allow()

    async def approver(request: Any) -> Approve:
        shown = copy.deepcopy(request.arguments)
        edit = _Edit(dice, shown, is_one_class=kind != "mixed")
        told.append(edit)
        for _ in range(1 + dice.randrange(3)):
            edit.change_one()
        RUNS.clear()
        return Approve(by="grace", arguments=edit.whole | {"note": "n"})

    GOT.clear()
    runner = ToolRunner([TOOLS[kind]], policy=[policy], approver=approver)
    outcome = await runner.exec(ToolCall("c", "plan", json.dumps(sent)))
    kinds = told[0].kinds
    if isinstance(outcome, Completed):
        found = wrong_with(told[0], before)
        return ("wrong" if found else "ran"), kinds, f"{seed} {found}"
    assert isinstance(outcome, Failed)
    if outcome.error.code is ErrorCode.APPROVAL_MISMATCH:
        return "refused", kinds, outcome.error.message
    return "failed", kinds, f"{seed} {outcome.error}"


def wrong_with(edit: _Edit, before: dict[str, Any]) -> list[str]:
    """Return what is wrong with what ran of an edit."""
    found = []
    for name in ("todo", "done"):
        items, got = within(edit.whole[name]), objects(GOT[0][name])
        if [item["key"] for item in items] != [one.key for one in got]:
            return [f"{edit.whole} {GOT}"]
        for item, one in zip(items, got, strict=True):
            found += wrong_in(item, one, edit, before)
    new = sum(id(item) not in edit.origin for item in edit.items())
    if any(runs > new for runs in RUNS.values()):
        found.append(f"{new} new items and {RUNS}")
    return found


async def test_each_item_of_an_edit_has_the_values_that_were_its_own() -> None:
    ended = [await edit_at_random(seed) for seed in range(sample(SEEDS, part=100))]
    assert [each for each in ended if each[0] not in ("ran", "refused")] == []
    refused = [each for each in ended if each[0] == "refused"]
    assert len(refused) <= len(ended) / 50, Counter(tuple(kinds) for _, kinds, _ in refused)


# --- single cases


TAKEN: list[int] = []


def taken() -> int:
    TAKEN.append(1)
    return 1000 + len(TAKEN)


def a_list() -> list[int]:
    return [taken()]


def plus_one(number: int) -> int:
    return number + 1


class Read(BaseModel):
    model_config = ConfigDict(validate_default=True)
    k: str
    ids: list[int] = Field(default_factory=a_list)


class Raised(BaseModel):
    model_config = ConfigDict(validate_default=True)
    k: str
    n: Annotated[int, AfterValidator(plus_one)] = Field(default_factory=taken)


class Named(BaseModel):
    k: str
    ref: str = Field(default_factory=lambda data: f"{data['k']}-{taken()}")


class Free(BaseModel):
    k: str
    limit: Any = NOT_GIVEN
    n: int = Field(default_factory=taken)


class Short(BaseModel):
    a: str
    n: int = Field(default_factory=taken)


class Long(BaseModel):
    a: str
    b: int
    n: int = Field(default_factory=taken)


async def edited(hint: Any, sent: Any, change: Any) -> tuple[Any, Any]:
    """Return the outcome of an edit, and what was shown."""

    def keep(x: Any, note: str = "") -> str:
        """Keep it."""
        GOT.append({"x": x})
        return "kept"

    keep.__annotations__ = {"x": hint, "note": str, "return": str}
    shown: list[Any] = []

    async def approver(request: Any) -> Approve:
        shown.append(copy.deepcopy(request.arguments["x"]))
        return Approve(by="grace", arguments={"x": change(request.arguments["x"]), "note": "n"})

    GOT.clear()
    TAKEN.clear()
    runner = ToolRunner([tool(visible=ALL, safe=False)(keep)], approver=approver)
    return await runner.exec(ToolCall("c", "keep", json.dumps({"x": sent}))), shown[0]


TWO = [{"k": "a"}, {"k": "b"}]


@pytest.mark.parametrize("hint", [Read, Named, Free])
@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda x: x, "ab"),
        (lambda x: [{"k": "n"}, *x], "nab"),
        (lambda x: x[::-1], "ba"),
        (lambda x: x[1:], "b"),
        (lambda x: [{**x[0], "k": "z"}, x[1]], "zb"),
    ],
)
async def test_a_value_that_a_factory_made_stays_with_its_item(
    hint: Any, change: Any, keys: str
) -> None:
    outcome, shown = await edited(list[hint], TWO, change)
    assert isinstance(outcome, Completed), outcome
    got = GOT[0]["x"]
    assert "".join(one.k for one in got) == keys
    own = {item["k"]: item for item in shown} | {"z": shown[0]}
    for one in got:
        assert one.model_fields_set == {"k"}
        name = next(name for name in ("ids", "ref", "n") if hasattr(one, name))
        if one.k in own:
            assert getattr(one, name) == own[one.k][name]
        else:
            assert getattr(one, name) not in [item[name] for item in shown]
    assert len(TAKEN) == 2 + ("n" in keys) * (2 if hint is Named else 1)


async def test_a_union_asks_for_values_that_nobody_gets() -> None:
    sent = [{"a": "1"}, {"a": "2", "b": 1}]
    outcome, shown = await edited(
        list[Short | Long], sent, lambda x: [{"a": "n", "b": 2}, *x[::-1]]
    )
    assert isinstance(outcome, Completed), outcome
    numbers = [one.n for one in GOT[0]["x"]]
    assert numbers[1:] == [item["n"] for item in shown[::-1]]
    assert numbers[0] not in numbers[1:]


Text = Annotated[list[Free], Json()]


@pytest.mark.parametrize(
    ("hint", "sent", "change"),
    [
        (list[Raised], TWO, lambda x: x[::-1]),  # what a validator made of which number?
        (list[Raised], TWO, lambda x: [{"k": "n"}, *x]),
        (list[Free], TWO, lambda x: [*x, {"k": "c", "limit": x[0]["limit"]}]),
        (list[Free], TWO, lambda x: [*x, {**x[0], "k": "c"}]),
        (Text, json.dumps(TWO), lambda x: json.dumps(json.loads(x)[::-1])),
    ],
)
async def test_what_nobody_can_tell_does_not_run(hint: Any, sent: Any, change: Any) -> None:
    outcome, _ = await edited(hint, sent, change)
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert GOT == []


async def test_what_is_shown_by_its_type_may_be_a_value() -> None:
    outcome, _ = await edited(Any, {"default": "object"}, lambda x: [x, x])
    assert isinstance(outcome, Completed), outcome
    assert GOT == [{"x": [{"default": "object"}] * 2}]


LOCKS: list[Opaque] = []


def a_lock() -> Opaque:
    LOCKS.append(Opaque())
    return LOCKS[-1]


class Job(BaseModel):
    k: str
    note: str | None = None
    days: int = 30
    lock: Any = Field(default_factory=a_lock)


class Pair(BaseModel):
    main: Job
    spare: Job | None = None


def edit(x: Any, at: Any, **fields: Any) -> Any:
    x[at].update(fields)
    return x


def swap(x: Any, one: Any, other: Any) -> Any:
    x[one], x[other] = x[other], x[one]
    return x


def give_spare(x: Any) -> Any:
    x[0]["spare"] = x[1].pop("spare")
    return x


def jobs_in(value: Any) -> list[Job]:
    if isinstance(value, Job):
        return [value]
    parts = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
    parts = [value.main, value.spare] if isinstance(value, Pair) else parts
    return [job for part in parts or () for job in jobs_in(part)]


def renumber(x: Any) -> Any:
    return [{**job, "days": number} for number, job in enumerate(x, 1)]


NAMED = {"x": {"k": "a"}, "y": {"k": "b"}}
NUMBERED = [{"k": "a", "days": 1}, {"k": "b", "days": 2}, {"k": "c", "days": 3}]
PAIRS = [{"main": {"k": "a"}}, {"main": {"k": "b"}, "spare": {"k": "c"}}]
ALIKE = [{"k": "a", "note": None}, {"k": "a", "days": 30}, {"k": "b"}]
THREE = [*TWO, {"k": "c"}]


@pytest.mark.parametrize(
    ("hint", "sent", "change", "locks"),
    [
        (dict[str, Job], NAMED, lambda x: swap(x, "x", "y"), [1, 0]),
        (dict[str, Job], NAMED, lambda x: {"z": x["x"], "y": x["y"]}, [1, 0]),
        (dict[str, Job], NAMED, lambda x: edit(x, "x", k="b", days=7), [0, 1]),
        (dict[str, Job], NAMED, lambda x: {"x": x["y"], "y": {**x["y"], "k": "n"}}, REFUSED),
        (list[Pair], PAIRS, give_spare, [0, 2, 1]),
        (list[Pair], PAIRS, lambda x: [*x[:0:-1], {**x[0], "spare": x[1]["main"]}], [1, 2, 0, 1]),
        (list[Job], ALIKE, lambda x: edit(x, 0, days=7), [0, 1, 2]),
        (list[Job], ALIKE, lambda x: edit(x, 1, days=7), [0, 1, 2]),
        (list[Job], ALIKE, lambda x: [{"k": "n"}, *x], [3, 0, 1, 2]),
        (list[Job], ALIKE, lambda x: x[1:], REFUSED),
        (list[Job], ALIKE, lambda x: [*x, x[0]], REFUSED),
        (list[Job], THREE, lambda x: edit(x, 1, days=7)[1:], [1, 2]),
        (list[Job], THREE, lambda x: [x[2], *edit(x, 0, days=7)[:2]], [2, 0, 1]),
        (list[Job], TWO, lambda x: [*edit(x, 0, days=7), {"k": "n"}], [0, 1, 2]),
        (list[Job], NUMBERED, lambda x: renumber(x[1:]), [1, 2]),
        (list[Job], NUMBERED, lambda x: renumber([{"k": "n"}, *x]), [3, 0, 1, 2]),
        (list[Job], NUMBERED, lambda x: renumber([x[1], x[0], x[2]]), [1, 0, 2]),
        (list[Job], NUMBERED[:2], lambda x: edit(x, 1, days=1, note="b")[1:], [1]),
        (list[Job], TWO, lambda x: edit(edit(x, 0, days=7), 1, days=8)[::-1], [1, 0]),
        (list[Job], TWO, lambda x: edit(edit(x, 0, k="n"), 1, k="m")[1:], REFUSED),
    ],
)
async def test_each_item_has_the_object_that_was_its_own(
    hint: Any, sent: Any, change: Any, locks: Any
) -> None:
    LOCKS.clear()
    outcome, _ = await edited(hint, sent, change)
    if locks is REFUSED:
        assert isinstance(outcome, Failed), GOT
        assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        return
    assert isinstance(outcome, Completed), outcome
    assert [LOCKS.index(job.lock) for job in jobs_in(GOT[0]["x"])] == locks


@pytest.mark.parametrize(
    ("at", "first", "second"),
    [(0, {"k", "note", "days"}, {"k", "days"}), (1, {"k", "note"}, {"k", "days"})],
)
async def test_of_items_that_read_alike_the_one_at_the_place_was_edited(
    at: int, first: set[str], second: set[str]
) -> None:
    outcome, _ = await edited(list[Job], ALIKE, lambda x: edit(x, at, days=7))
    assert isinstance(outcome, Completed), outcome
    assert [job.model_fields_set for job in GOT[0]["x"]] == [first, second, {"k"}]


class Priced(BaseModel):
    k: str
    price: Annotated[float, AfterValidator(lambda price: price * 1.5)] = 0


@pytest.mark.parametrize(
    ("sent", "change", "prices"),
    [
        ((8, 4), lambda x: edit(x, 1, price=7), [12, 10.5]),
        ((8, 4), lambda x: edit(x, 1, price=12), [12, 18]),
        ((8, 4), lambda x: [*x, {"k": "n", "price": 6}], [12, 6, 9]),
        ((8, 4), lambda x: x[:1], [12]),
        ((8, 4), lambda x: [*x, {"k": "n", "price": 12}][1:], [6, 12]),
        ((8, 8), lambda x: [{"k": "n", "price": 12}], REFUSED),
    ],
)
async def test_what_is_written_is_read_and_what_may_have_been_left_is_not(
    sent: Any, change: Any, prices: Any
) -> None:
    lines = [{"k": f"k{price}", "price": price} for price in sent]
    outcome, _ = await edited(list[Priced], lines, change)
    if prices is REFUSED:
        assert isinstance(outcome, Failed), GOT
        assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        assert "as it was shown at /x/0/price would be" in outcome.error.message
        return
    assert isinstance(outcome, Completed), outcome
    assert [one.price for one in GOT[0]["x"]] == prices


Tag = Annotated[str, AfterValidator(str.lower)]


class Event(BaseModel):
    name: Annotated[str, AfterValidator(str.upper)]
    n: int = 1


Events = Annotated[list[Event], AfterValidator(lambda them: sorted(them, key=lambda e: e.name))]
EVENTS = [{"name": "b", "n": 2}, {"name": "A"}]


@pytest.mark.parametrize(
    ("hint", "sent", "change", "got"),
    [
        (set[Tag], ["Bug", "UI", "api"], lambda x: x[:1] + x[2:], {"api", "ui"}),
        (set[Tag], ["Bug", "UI", "api"], lambda x: ["zz", *x[1:]], {"bug", "ui", "zz"}),
        (set[Tag], ["UI", "Bug", "API"], lambda x: ["zz", *x[1:]], {"bug", "ui", "zz"}),
        (Events, EVENTS, lambda x: edit(x, 1, n=7), [("A", 1), ("B", 7)]),
        (Events, EVENTS, lambda x: x[1:], [("B", 2)]),
        (Events, EVENTS, lambda x: [*x, {"name": "c"}], [("A", 1), ("B", 2), ("C", 1)]),
    ],
)
async def test_what_comes_out_as_it_was_written_runs(
    hint: Any, sent: Any, change: Any, got: Any
) -> None:
    """What was sent for which item cannot be told where a validator, or a set, has moved it."""
    outcome, _ = await edited(hint, sent, change)
    assert isinstance(outcome, Completed), outcome
    found = GOT[0]["x"]
    assert (found if isinstance(found, set) else [(one.name, one.n) for one in found]) == got
