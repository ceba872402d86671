"""A call that is built again is the call that it was, whatever its default factories make."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pytest
from hydration.test_effective_fuzz import shape
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    Json,
    RootModel,
    create_model,
    model_validator,
)
from samples import sample

from toolcrib import ALL, Catalog, Hydrated, Rejected, ToolCall, hydrate, tool
from toolcrib.hydration import instance_of

RUNS = 4_000


class Dice(random.Random):
    """Also knows whether a union was drawn: its other branches are tried, and asked for defaults."""

    unions = False


NAMES = map("Made{}".format, itertools.count())
TICKS = itertools.count()
NEW_YEAR = datetime(2020, 1, 1, tzinfo=UTC)
RAN: Counter[str] = Counter()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Stamp(BaseModel):
    at: int
    note: str = "n"


class MoreStamp(Stamp):
    """No hint names it: JSON does not give it back."""


@dataclasses.dataclass
class Mark:
    at: int
    tags: list[str] = field(default_factory=lambda: counted("tags", lambda n: [str(n)]))


def counted(name: str, make: Callable[[int], Any]) -> Any:
    RAN[name] += 1
    return make(next(TICKS))


class Factory(NamedTuple):
    """A hint, what makes a value of it, another one each time, and what is sent in its place."""

    hint: Any
    make: Callable[[int], Any]
    sent: Any


FACTORIES = [
    Factory(int, lambda n: n, 5), Factory(str, str, "x"),
    Factory(UUID, lambda n: UUID(int=n), str(UUID(int=1))),
    Factory(datetime, lambda n: NEW_YEAR + timedelta(n), "2021-01-01T00:00:00Z"),
    Factory(Colour | int, lambda n: Colour.RED if n % 2 else n, "blue"),
    Factory(list[int], lambda n: [n, n + 1], [1]), Factory(dict[str, int], lambda n: {"k": n}, {}),
    Factory(set[int], lambda n: {n, -n}, [1, 2]), Factory(Stamp, lambda n: Stamp(at=n), {"at": 1}),
    Factory(list[Stamp], lambda n: [Stamp(at=n)], [{"at": 1}]), Factory(Mark, Mark, {"at": 1}),
    Factory(Stamp | None, lambda n: Stamp(at=n) if n % 3 else None, None),
    # What JSON does not give back, or what its hint would refuse.
    Factory(Stamp, lambda n: MoreStamp(at=n), {"at": 1}), Factory(Any, lambda n: Stamp(at=n), 1),
    Factory(Annotated[str, Field(min_length=3)], lambda n: "", "long"),
    Factory(Annotated[int, AfterValidator(lambda n: n + 1)], lambda n: n, 1),
    Factory(Any, lambda n: object(), 1),
]  # fmt: skip


class Drawn(NamedTuple):
    """A hint, and what is sent for it."""

    hint: Any
    sent: Callable[[Dice], Any]


def reversed_items(items: list[Any]) -> list[Any]:
    return items[::-1]


class Sees(BaseModel):
    """A model that looks at which of its fields were sent."""

    @model_validator(mode="before")
    @classmethod
    def not_all(cls, given: Any) -> Any:
        assert not isinstance(given, dict) or len(given) < 9
        return given

    @model_validator(mode="after")
    def knows(self) -> Sees:
        assert "f0" not in self.model_fields_set or "a" in self.model_fields_set
        return self


def an_object(dice: Dice, depth: int) -> Drawn:
    fields = {f"f{n}": dice.choice(FACTORIES) for n in range(1 + dice.randrange(3))}
    inner = drawn(dice, depth - 1) if depth else Drawn(int, lambda d: d.randrange(3))

    def making(name: str, one: Factory) -> Any:
        return lambda: counted(name, one.make)

    made: Any
    if dice.random() < 0.5:
        told: dict[str, Any] = {
            n: (f.hint, Field(default_factory=making(n, f))) for n, f in fields.items()
        }
        base = dice.choice([BaseModel, Sees])
        made = create_model(next(NAMES), __base__=base, a=(inner.hint, ...), **told)
    else:
        data = [(n, f.hint, field(default_factory=making(n, f))) for n, f in fields.items()]
        made = dataclasses.make_dataclass(next(NAMES), [("a", inner.hint), *data])

    def sent(dice: Dice) -> Any:
        some = {n: f.sent for n, f in fields.items() if dice.random() < 0.3}
        return {"a": inner.sent(dice)} | some

    return Drawn(made, sent)


def in_a_list(dice: Dice, depth: int) -> Drawn:
    inner = drawn(dice, depth - 1)
    hint: Any = list.__class_getitem__(inner.hint)
    if dice.random() < 0.3:
        hint = tuple.__class_getitem__((inner.hint, ...))
    if dice.random() < 0.3:
        hint = Annotated[hint, AfterValidator(reversed_items)]
    return Drawn(hint, lambda d: [inner.sent(d) for _ in range(d.randrange(3))])


def in_a_dict(dice: Dice, depth: int) -> Drawn:
    inner = drawn(dice, depth - 1)
    hint: Any = dict.__class_getitem__((str, inner.hint))
    return Drawn(hint, lambda d: {name: inner.sent(d) for name in d.sample("xyz", d.randrange(3))})


def in_a_union(dice: Dice, depth: int) -> Drawn:
    dice.unions = True
    each = [drawn(dice, depth - 1) for _ in range(2)]
    hint = functools.reduce(operator.or_, [one.hint for one in each], None)
    return Drawn(hint, lambda d: d.choice(each).sent(d))


def in_a_text(dice: Dice, depth: int) -> Drawn:
    inner = drawn(dice, depth - 1)
    hint: Any = Annotated[inner.hint, Json()]  # type: ignore[type-arg]
    return Drawn(hint, lambda d: json.dumps(inner.sent(d)))


def in_a_root(dice: Dice, depth: int) -> Drawn:
    inner = drawn(dice, depth - 1)
    return Drawn(RootModel[inner.hint], inner.sent)  # type: ignore[name-defined]


MAKERS = [an_object, an_object, an_object, in_a_list, in_a_dict, in_a_union, in_a_text, in_a_root]


def drawn(dice: Dice, depth: int) -> Drawn:
    return dice.choice(MAKERS)(dice, depth) if depth > 0 else an_object(dice, 0)


def a_tool(dice: Dice, one: Drawn) -> Any:
    """A tool of a function, whose own parameters may have factories, or of a class."""
    if dice.random() < 0.5:

        def take(x: Any) -> int:
            """Take."""
            return 1

        take.__annotations__ = {"x": one.hint, "return": int}
        return tool(visible=ALL)(take)
    own = dice.choice(FACTORIES)
    fields = [
        ("x", one.hint),
        ("own", own.hint, field(default_factory=lambda: counted("own", own.make))),
    ]

    class Take(dataclasses.make_dataclass("Base", fields)):  # type: ignore[misc]
        """Take."""

        async def run(self) -> int:
            return 1

    return tool(visible=ALL, name="take")(dataclasses.dataclass(Take))


def arguments_of(instance: Any) -> Any:
    return instance.arguments if hasattr(instance, "arguments") else vars(instance)


def form(value: Any) -> str:
    """A value by its types and parts; an instant has the same offset, by whichever class."""
    return str(shape(value)).replace("TzInfo(0)", "datetime.timezone.utc")


def sets_of(value: Any) -> list[Any]:
    """Which fields of each model were sent; of one that a factory made, none was."""
    if isinstance(value, BaseModel):
        if isinstance(value, Stamp):
            return []
        return [sorted(value.model_fields_set), *map(sets_of, value.__dict__.values())]
    if dataclasses.is_dataclass(value):
        return [sets_of(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [sets_of(part) for part in value.values()]
    return list(map(sets_of, value)) if isinstance(value, list | tuple) else []


def is_plain(text: str) -> bool:
    """Whether no part of a shape is an object without a form of its own."""
    return "object object" not in text


@pytest.mark.parametrize("part", range(4))
def test_a_call_that_is_built_again_is_the_call_that_it_was(part: int) -> None:
    """For whoever looks, and after it was saved; no factory runs again whose value JSON gives back."""
    counts: Counter[str] = Counter()
    for seed in range(part, sample(RUNS, part=40), 4):
        dice = Dice(seed)
        one = drawn(dice, 3)
        catalog = Catalog([a_tool(dice, one)])
        (name,) = catalog.names
        sent = ToolCall("c", name, json.dumps({"x": one.sent(dice)}))
        first = hydrate(sent, catalog)
        if isinstance(first, Rejected):
            counts["rejected"] += 1
            continue
        pinned = json.loads(json.dumps(first.building.pinned))
        before = RAN.copy()
        again = hydrate(sent, catalog, pinned=pinned)
        ran_again = RAN - before
        looked = first.tool
        entry = catalog.by_name.get(name)
        assert entry is not None
        runs = arguments_of(instance_of(first, entry.tool))
        told = form(runs)
        if is_plain(told):
            assert form(arguments_of(looked)) == told, seed
            assert sets_of(arguments_of(looked)) == sets_of(runs), seed
        lost = sum(kept == [] for listed in pinned.values() for kept in listed)
        if lost:
            counts["lost"] += 1
            continue
        assert not ran_again or dice.unions, (seed, ran_again)
        assert isinstance(again, Hydrated), (seed, again)
        assert again.canonical == first.canonical, seed
        assert again.defaults == first.defaults, seed
        assert json.loads(json.dumps(again.building.pinned)) == pinned, seed
        runs_again = arguments_of(instance_of(again, entry.tool))
        assert form(runs_again) == told, seed
        assert sets_of(runs_again) == sets_of(runs), seed
        counts["same"] += bool(pinned)
    assert counts["same"] > counts["rejected"], counts
    assert counts["lost"] > 0
