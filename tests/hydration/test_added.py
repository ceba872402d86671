"""What defaults add to arguments is weighed before it is built, and bounded as what was sent is."""

from __future__ import annotations

import json
import random
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from pydantic import BaseModel, Field, Json, RootModel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from rows import each_row
from samples import sample

from toolcrib import ALL, Hydrated, Rejected, ToolCall, hydrate, tool
from toolcrib.errors import ErrorCode
from toolcrib.schema.derive.adapters import adapter_for, reader
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.roundtrip import MAX_ADDED, Findings, weight_of_default
from toolcrib.schema.derive.unions import bounded


class Line(BaseModel):
    sku: str | None = None
    text: str = "two words"
    count: int = 0
    tags: list[str] = []
    sub: list[Line] = []


class Made(BaseModel):
    tags: list[str] = Field(default_factory=lambda: ["a", "b"])
    when: datetime = Field(default_factory=lambda: datetime.now(UTC))
    line: Line = Line()


class Prompt(BaseModel):
    system: str = "You are a helpful assistant. " * 100


@dataclass
class Point:
    x: float = 0.0
    y: float = 0.0
    names: list[str] = field(default_factory=list)
    line: Line | None = None


@pydantic_dataclass
class Shape:
    points: list[Point] = field(default_factory=lambda: [Point()] * 3)
    kind: Literal["shape"] = "shape"


class Pair(NamedTuple):
    left: int = 1
    right: str = "right"


class Lines(RootModel[list[Line]]):
    pass


class Small(BaseModel):
    kind: Literal["small"]
    note: str = ""


class Huge(BaseModel):
    kind: Literal["huge"]
    text: str = "x" * 10_000


class Partial(TypedDict, total=False):
    line: Line
    pair: Pair


HINTS: dict[str, Any] = {
    "models": Line,
    "factories": Made,
    "long texts": Prompt,
    "dataclasses": Point,
    "nested dataclasses": Shape,
    "a named tuple": Pair,
    "a root model": Lines,
    "a typed dict": Partial,
    "or null": Line | None,
    "a union": Line | Made | int,
    "tagged": Small | Huge,
    "json in a text": Json[list[Line]],
    "tuples": tuple[Line, Point],
    "dicts": dict[str, Line | list[Point]],
}


def a_line(chance: random.Random, depth: int = 0) -> Any:
    """A line with some of its fields, and lines in it."""
    made: dict[str, Any] = {"sku": None, "tags": ["x"] * chance.randrange(3)}
    if depth < 4:
        made["sub"] = [a_line(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {name: value for name, value in made.items() if chance.random() < 0.4}


def a_point(chance: random.Random) -> Any:
    return chance.choice([{}, {"x": 1.5}, {"line": a_line(chance)}])


def many(make: Callable[[random.Random], Any], chance: random.Random) -> list[Any]:
    return [make(chance) for _ in range(chance.randrange(4))]


SENT: dict[str, Callable[[random.Random], Any]] = {
    "models": a_line,
    "factories": lambda chance: chance.choice([{}, {"tags": []}, {"line": a_line(chance)}]),
    "long texts": lambda chance: chance.choice([{}, {"system": "x"}]),
    "dataclasses": a_point,
    "nested dataclasses": lambda chance: chance.choice([{}, {"points": many(a_point, chance)}]),
    "a named tuple": lambda chance: [1, "x"][: chance.randrange(3)],
    "a root model": lambda chance: many(a_line, chance),
    "a typed dict": lambda chance: chance.choice([{}, {"line": a_line(chance), "pair": [1]}]),
    "or null": lambda chance: chance.choice([None, a_line(chance)]),
    "a union": lambda chance: chance.choice([1, a_line(chance), {"line": a_line(chance)}]),
    "tagged": lambda chance: {"kind": chance.choice(["small", "huge"])},
    "json in a text": lambda chance: json.dumps(many(a_line, chance)),
    "tuples": lambda chance: [a_line(chance), a_point(chance)],
    "dicts": lambda chance: {"a": a_line(chance), "b": many(a_point, chance)},
}


@pytest.mark.parametrize("seed", range(sample(20, part=4)))
def test_what_is_added_is_never_more_than_was_weighed(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  the same each time
    for name, hint in HINTS.items():
        sent = [SENT[name](chance) for _ in range(3)]
        read = reader(bounded(adapter_for(types.GenericAlias(list, hint), "x")))
        weighed = read.node.added_weight(sent, {})
        values = FactoryValues()
        _, shown = read.read(sent, None, Findings(), values)
        built = weight_of_default(shown) - weight_of_default(sent)
        assert built <= weighed + values.added, (name, sent)
        if name in ("models", "long texts", "a root model"):  # without factories and unions
            assert weighed <= built, (name, sent)


def call_with(hint: Any, sent: Any) -> Any:
    def take(x: Any) -> None:
        """Take."""

    take.__annotations__["x"] = list[hint]
    return hydrate(ToolCall("1", "take", json.dumps({"x": sent})), [tool(visible=ALL)(take)])


def least(hint: Any) -> Any:
    """The shortest thing that the hint takes."""
    if hint is Lines:
        return [{}]
    if hint == Small | Huge:
        return {"kind": "huge"}
    if hint is Pair:
        return []
    if hint == tuple[Line, Point]:
        return [{}, {}]
    if hint == Json[list[Line]]:
        return "[{},{},{}]"
    return {"a": {}} if hint == dict[str, Line | list[Point]] else {}


@each_row("hint", [h for h in HINTS.values() if h is not Partial], ids=str)
@pytest.mark.exhaustive
def test_what_defaults_add_is_bounded(hint: Any) -> None:
    started = time.perf_counter()
    rejected = call_with(hint, [least(hint)] * 25_000)
    assert time.perf_counter() - started < 3
    assert isinstance(rejected, Rejected)
    assert rejected.errors[0].code is ErrorCode.TOO_LARGE
    assert isinstance(call_with(hint, [least(hint)] * 100), Hydrated)


def test_what_factories_make_is_bounded_whatever_they_make() -> None:
    class Grown(BaseModel):
        big: list[int] = Field(default_factory=lambda: [1] * 10_000)

    rejected = call_with(Grown, [{}] * 1_000)
    assert isinstance(rejected, Rejected)
    assert rejected.errors[0].code is ErrorCode.TOO_LARGE
    assert isinstance(call_with(Grown, [{}] * 3), Hydrated)


def test_a_bound_holds_for_all_parameters_together() -> None:
    names = [f"p{number}" for number in range(12)]
    space: dict[str, Any] = {"Line": Line}
    exec(f"def many({', '.join(f'{n}: list[Line]' for n in names)}):\n  'Take.'", space)  # noqa: S102
    made = tool(visible=ALL)(space["many"])
    sent: Any = {name: [{}] * (MAX_ADDED // 12 // 100) for name in names}
    rejected = hydrate(ToolCall("1", "many", json.dumps(sent)), [made])
    assert isinstance(rejected, Rejected)
    assert rejected.errors[0].code is ErrorCode.TOO_LARGE
    few = json.dumps(dict.fromkeys(names, [{}] * 20))
    assert isinstance(hydrate(ToolCall("1", "many", few), [made]), Hydrated)


def test_a_branch_that_cannot_be_meant_does_not_count() -> None:
    assert isinstance(call_with(Small | Huge, [{"kind": "small"}] * 10_000), Hydrated)
