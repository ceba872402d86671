"""What a person edits runs as if it had been sent, and a saved run goes on with what was shown.

Tools with random parameters, many of which have defaults within objects, are given arguments that their
approver edits at random. Of each call that runs, policy and approver saw the same, the record has what
the policy judged last, and the tool got it. An edit runs as the same arguments would that a model
sends; where those are refused, the edit is. A seeded sample runs with the other tests, 20,000 calls and
2,000 saved runs with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import json
import operator
import random
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import pytest
from hydration import test_effective_fuzz as fuzz
from hydration.test_effective_fuzz import (
    GOT,
    HASHABLE,
    NAMES,
    Dice,
    Kind,
    a_tool,
    alike,
    fields_of,
    kind_of,
    mutated,
    other,
    places,
    shape,
    whole,
    without_nulls,
)
from pydantic import BaseModel, Field, Json, RootModel, TypeAdapter, create_model
from samples import sample

from toolcrib import (
    Agent,
    Allow,
    ApprovalRequest,
    Approve,
    Completed,
    Failed,
    Hydrated,
    PolicyContext,
    Refuse,
    RunState,
    ToolCall,
    ToolRunner,
    Waiting,
    hydrate,
)
from toolcrib.errors import DefinitionError, ErrorCode
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.json import canonical_json

CALLS = 20
SEEDS = 20_000 // CALLS
RUNS = 2_000


# --- hints with defaults within


@dataclasses.dataclass
class Inner:
    n: int = 3
    k: str = "k"


class InnerModel(BaseModel):
    n: int = 3
    k: str = "k"


class One(BaseModel):
    x: int
    d: int = 1


class Two(BaseModel):
    x: int
    d: int = 1
    e: int = 2


@dataclasses.dataclass
class Three:
    x: int
    d: int = 2
    f: str = "f"


@dataclasses.dataclass
class Four:
    x: str
    d: int = 1


def a_named_tuple(dice: Dice, depth: int) -> Kind:
    fields = fields_of(dice, depth)
    last = [dice.choice(SIMPLE) for _ in range(1 + dice.randrange(3))]
    named = {f"z{at}": default for at, default in enumerate(last)}
    hints = [*((n, k.hint) for n, k in fields.items()), *((n, named[n].hint) for n in named)]
    made: Any = NamedTuple(f"Named{next(NAMES)}", hints)  # type: ignore[misc]
    made._field_defaults = {name: default.value for name, default in named.items()}
    made.__new__.__defaults__ = tuple(made._field_defaults.values())

    def make(dice: Dice) -> Any:
        sent = {name: kind.make(dice) for name, kind in fields.items()}
        for name in list(named)[: dice.randrange(len(named) + 1)]:
            sent[name] = dice.choice([named[name].value, named[name].another])
        return list(sent.values()) if dice.random() < 0.5 else sent

    return Kind(made, make, all(k.honest for k in fields.values()), dumps=False)


class Default(NamedTuple):
    """A hint, its default, and another value for it."""

    hint: Any
    value: Any
    another: Any = None


SIMPLE = [
    Default(int, 0, 2), Default(int, 1, 0), Default(str, "x", "y"), Default(int | None, None, 7),
    Default(list[int], [1], [7]), Default(bool, False, True), Default(float, 1.5, 2.5),
]  # fmt: skip


def two_models() -> list[InnerModel]:
    return [InnerModel(n=1), InnerModel(n=2)]


def an_object_with_objects(dice: Dice, depth: int) -> Kind:
    """Objects with defaults as the defaults of fields, and a factory that looks at another field."""
    inner = kind_of(dice, depth)
    kinds: list[tuple[Default, list[Any]]] = [
        (Default(InnerModel, InnerModel(n=5)), [{}, {"n": 5}, {"k": "q"}]),
        (Default(list[InnerModel], two_models), [[], [{}], [{"n": 2}, {}]]),
        (Default(int, lambda data: data.get("j", 0) * 2), [6, 7]),
    ]
    default, objects = dice.choice(kinds)
    said: Any = {"default_factory" if callable(default.value) else "default": default.value}
    told: dict[str, Any] = {
        "a": (inner.hint, ...), "j": (int, 3), "i": (default.hint, Field(**said)),
    }  # fmt: skip
    made: Any = create_model(f"Model{next(NAMES)}", **told)
    if default.hint is InnerModel and dice.random() < 0.5:
        last = dataclasses.field(default_factory=lambda: Inner(5))
        made = dataclasses.make_dataclass(
            f"Data{next(NAMES)}", [("a", inner.hint), ("i", Inner, last), ("j", int, 3)]
        )

    def make(dice: Dice) -> Any:
        sent = {"a": inner.make(dice)}
        if dice.random() < 0.3:
            sent["j"] = dice.choice([3, 4])
        if dice.random() < 0.3:
            sent["i"] = dice.choice(objects)
        return sent

    return Kind(made, make, inner.honest, dumps=False)


def a_union(dice: Dice, _depth: int) -> Kind:
    """Objects that share names: which of them is meant may turn on one that is left out."""
    classes = dice.sample([One, Two, Three, Four, Inner], 2 + dice.randrange(2))
    hint = functools.reduce(operator.or_, classes)
    more: dict[str, list[Any]] = {"d": [1, 2], "e": [2, 3], "f": ["f", "g"], "n": [3, 4]}

    def make(dice: Dice) -> Any:
        sent: dict[str, Any] = {"x": dice.choice([1, 2, "s"])} if dice.random() < 0.9 else {}
        return sent | {n: dice.choice(v) for n, v in more.items() if dice.random() < 0.25}

    return Kind(hint, make, honest=False, dumps=False)


def a_set_of_many(dice: Dice, _depth: int) -> Kind:
    one, two = dice.choice(HASHABLE), dice.choice(HASHABLE)
    hint: Any = dice.choice([set[one.hint], frozenset[one.hint | two.hint]])  # type: ignore[name-defined]
    first = one if hint == set[one.hint] else two  # type: ignore[name-defined]
    if dice.random() < 0.3:
        hint = set[tuple[one.hint, two.hint]]  # type: ignore[name-defined]

        def make(dice: Dice) -> Any:
            return [[one.make(dice), two.make(dice)] for _ in range(dice.randrange(4))]

        return Kind(hint, make, honest=False, dumps=False)
    return Kind(
        hint,
        lambda d: [d.choice([one, first]).make(d) for _ in range(d.randrange(4))],
        honest=False,
        dumps=False,
    )


def a_root_model(dice: Dice, depth: int) -> Kind:
    inner = kind_of(dice, depth)
    return alike(inner, RootModel[inner.hint], inner.make)._replace(dumps=False)  # type: ignore[name-defined]


def a_text_of_json(dice: Dice, depth: int) -> Kind:
    """A text, without the defaults of None that `check_got` could not take out of it."""
    inner = kind_of(dice, depth)
    while '"default": null' in json.dumps(TypeAdapter(inner.hint).json_schema()):
        inner = dice.choice(HASHABLE)
    hint: Any = Annotated[inner.hint, Json()]  # type: ignore[type-arg]
    return Kind(hint, lambda d: json.dumps(wholes(inner.make(d))), honest=False, dumps=False)


def a_dict_of_many(dice: Dice, depth: int) -> Kind:
    inner = kind_of(dice, depth)
    hint: Any = dict.__class_getitem__((str, inner.hint))
    return alike(
        inner, hint, lambda d: {k: inner.make(d) for k in d.sample("abAz0", d.randrange(4))}
    )


def wholes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: wholes(part) for key, part in value.items()}
    return list(map(wholes, value)) if isinstance(value, list) else whole(value)


MORE = [
    a_named_tuple, a_named_tuple, an_object_with_objects, an_object_with_objects, a_union, a_union,
    a_set_of_many, a_root_model, a_text_of_json, a_dict_of_many, a_dict_of_many,
]  # fmt: skip
PARAMETERS = [
    Default(int, 5), Default(str, "x"), Default(list[int], [1, 2]), Default(Inner, Inner(7)),
    Default(One | Two | None, None), Default(One | Two, Two(x=1)), Default(dict[str, int], {"k": 1}),
    Default(float, 1.0), Default(InnerModel, InnerModel(n=9)), Default(bool, True),
    Default(tuple[int, ...], (1, 2)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _more_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "MAKERS", [*fuzz.MAKERS, *MORE])


# --- edits


def edited(shown: Any, dice: Dice) -> Any:
    """What a person may make of arguments: parts left out, doubled, moved, or another value."""
    made = copy.deepcopy(shown)
    for _ in range(1 + dice.randrange(2)):
        found = places(made)
        if not found:
            break
        holder, key = dice.choice(found)
        match dice.randrange(7):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(dice.choice(holder)))
            case 2 if isinstance(holder, list):
                del holder[key]
            case 3:
                above, name = dice.choice(found)
                holder[key] = copy.deepcopy(above[name])
            case 4 if type(holder[key]) is int:
                holder[key] += 1
            case 5 if isinstance(holder, list):
                dice.shuffle(holder)
            case _:
                holder[key] = other(holder[key], dice)
    return made


def as_sent(edit: Any, defaults: tuple[str, ...]) -> Any:
    """The edit as a model sends it: None that was shown as a default is left out where it stands."""
    made = copy.deepcopy(edit)
    for place in defaults:
        try:
            without_nulls(made, (place,))
        except (LookupError, TypeError, ValueError):  # the edit has it no more
            continue
    return made


class Asked(NamedTuple):
    """What an approver was shown, and what they made of it, None for nothing else."""

    shown: Any
    defaults: tuple[str, ...]
    edit: Any


def put_back(edit: Any, asked: Asked) -> Any:
    """The edit with the defaults that were shown and are not there any more: factories run once."""
    made = copy.deepcopy(edit)
    for place in asked.defaults:
        *above, last = place.split("/")[1:]
        holder, shown = made, asked.shown
        try:
            for step in above:
                holder = holder[int(step) if isinstance(holder, list) else step]
                shown = shown[int(step) if isinstance(shown, list) else step]
            if isinstance(holder, dict) and shown[last] is not None:
                holder.setdefault(last, shown[last])
        except (LookupError, TypeError, ValueError):
            continue
    return made


def check_edit(asked: Asked, ran: Any, runner: ToolRunner) -> None:
    """Assert that what ran is what was approved."""
    if asked.edit is None:
        assert canonical_json(ran) == canonical_json(asked.shown)
        return
    anew = as_sent(asked.edit, asked.defaults)
    read: list[str] = []
    for sent in (anew, anew, put_back(anew, asked)):
        result = hydrate(ToolCall("c", "take", canonical_json(sent)), runner.catalog)
        assert isinstance(result, Hydrated) or read, (asked, ran, result.errors)
        read.append(canonical_json(result.arguments) if isinstance(result, Hydrated) else "")
    if read[0] == read[1]:  # no factory gives another value each time
        assert canonical_json(ran) in read, asked


def check_got(hints: dict[str, Any], record: Any, got: dict[str, Any]) -> None:
    """Assert that the tool got what the record has."""
    shown = without_nulls(copy.deepcopy(record.arguments), record.defaulted)
    for name, hint in hints.items():
        if name in shown:
            again = TypeAdapter(hint).validate_json(json.dumps(shown[name]))
            assert shape(again) == shape(got[name]), (hint, shown[name], got[name])
        else:
            assert got[name] is None


def spoil_instance(instance: Any) -> None:
    """What a policy may do to the objects that it is given."""
    for value in instance.arguments.values():
        if isinstance(value, list):
            value.append("spoiled")
        elif dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
            for name in list(value.__dict__):
                object.__setattr__(value, name, "spoiled")


class Drawn(NamedTuple):
    """A tool with its hints, and how arguments for it are made."""

    tool: Any
    hints: dict[str, Any]
    make: Callable[[Dice], dict[str, Any]]


def drawn(dice: Dice, *, most: int, depth: int) -> Drawn | None:
    """A tool at random, None where its definition is refused (two parts of a union that are one), or
    where it takes secrets, which nobody sees who edits."""
    kinds = {name: kind_of(dice, depth) for name in ("x", "y")[: 1 + dice.randrange(most)]}
    extra = {name: dice.choice(PARAMETERS) for name in ("p", "q")[: dice.randrange(3)]}
    hinted = kinds | {name: Kind(default.hint, lambda d: None) for name, default in extra.items()}
    try:
        made = a_tool(hinted, {name: default.value for name, default in extra.items()})
    except DefinitionError:
        return None
    if made.definition.secret:
        return None

    def make(dice: Dice) -> dict[str, Any]:
        sent = {name: kind.make(dice) for name, kind in kinds.items()}
        for name, default in extra.items():
            if dice.random() < 0.3:
                sent[name] = TypeAdapter(default.hint).dump_python(default.value, mode="json")
        return sent

    return Drawn(made, {name: kind.hint for name, kind in hinted.items()}, make)


def run_seed(seed: int) -> tuple[int, int]:
    """How many calls ran, and how many were edited."""
    dice = random.Random(seed)  # noqa: S311
    one = drawn(dice, most=2, depth=3)
    if one is None:
        return 0, 0
    judged: list[Any] = []
    asked: list[Asked] = []

    def policy(hydrated: Hydrated, _context: PolicyContext) -> Allow:
        judged.append(hydrated.arguments)
        spoil_instance(hydrated.tool)
        return Allow()

    async def approver(request: ApprovalRequest) -> Approve:
        edit = edited(request.arguments, dice) if dice.random() < 0.75 else None
        asked.append(Asked(copy.deepcopy(request.arguments), request.defaults, edit))
        return Approve("grace", arguments=edit)

    runner = ToolRunner([one.tool], policy=policy, approver=approver, remember=2)
    ran = edits = 0
    for _ in range(CALLS):
        sent = one.make(dice)
        sent = mutated(sent, dice) if dice.random() < 0.3 else sent
        for seen in (judged, asked, GOT):
            seen.clear()
        made = ToolCall(f"call_{next(NAMES)}", "take", json.dumps(sent))
        outcome = asyncio.run(runner.exec(made))
        if not isinstance(outcome, Completed):
            assert GOT == []
            continue
        assert canonical_json(asked[0].shown) == canonical_json(judged[0])
        assert canonical_json(judged[-1]) == canonical_json(outcome.record.arguments)
        check_edit(asked[0], outcome.record.arguments, runner)
        check_got(one.hints, outcome.record, *GOT)
        ran, edits = ran + 1, edits + (asked[0].edit is not None)
    return ran, edits


async def save_and_resume(seed: int) -> tuple[int, int]:
    """How many calls ran, and how many of them edited, of a run that another agent resumed."""
    dice = random.Random(seed)  # noqa: S311
    one = drawn(dice, most=1, depth=2)
    if one is None:
        return 0, 0
    GOT.clear()
    runner = ToolRunner([one.tool], approver=nobody)
    said = [call("take", **one.make(dice)) for _ in range(1 + dice.randrange(2))]
    result = await Agent(ScriptedClient([said, "done"]), runner).run("Go.")
    assert GOT == []
    if result.status != "waiting":
        return 0, 0
    asked: dict[str, Asked] = {}
    answers: dict[str, Approve | Refuse] = {}
    for request in result.pending:
        edit = edited(request.arguments, dice) if dice.random() < 0.4 else None
        if dice.random() < 0.7:
            asked[request.call_id] = Asked(request.arguments, request.defaults, edit)
            answers[request.id] = Approve("grace", arguments=edit)
        elif dice.random() < 0.5:
            answers[request.id] = Refuse("no", by="grace")
    agent = Agent(ScriptedClient(["done"]), ToolRunner([one.tool], approver=nobody))
    assert result.state is not None
    resumed = await agent.resume(RunState.from_json(result.state.to_json()), answers)
    records = [record for record in resumed.records if record.status == "completed"]
    assert len(records) == len(GOT)
    for record in records:
        check_edit(asked[record.id], record.arguments, agent.runner)
    assert {record.result for record in records} == set(range(len(GOT)))
    for record in records:
        assert isinstance(record.result, int)
        check_got(one.hints, record, GOT[record.result])
    if resumed.state is not None:  # nothing runs again
        before = len(GOT)
        waiting = {request.id: Refuse("no", by="grace") for request in resumed.pending}
        await Agent(ScriptedClient(["done"]), runner).resume(resumed.state, waiting)
        assert len(GOT) == before
    return len(records), sum(asked[record.id].edit is not None for record in records)


async def nobody(_request: ApprovalRequest) -> None:
    return None


def total(run: Callable[[int], tuple[int, int]], seeds: int) -> tuple[int, int]:
    """What the runs of all seeds come to; one that fails says which."""
    first = second = 0
    for seed in range(seeds):
        try:
            one, two = run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        first, second = first + one, second + two
    return first, second


def test_an_edit_runs_as_if_it_had_been_sent() -> None:
    seeds = sample(SEEDS, part=80)
    ran, edits = total(run_seed, seeds)
    assert ran > 3 * seeds
    assert edits > 2 * seeds


def test_a_saved_run_goes_on_with_what_was_shown() -> None:
    seeds = sample(RUNS, part=40)
    ran, edits = total(lambda seed: asyncio.run(save_and_resume(seed)), seeds)
    assert ran > seeds // 3
    assert edits > seeds // 20


def test_what_factories_made_is_put_back_where_it_was() -> None:
    """A call that is read again with the values of its factories is the call that it was."""
    seeds = sample(RUNS, part=80)
    pinned = 0
    for seed in range(seeds):
        dice = random.Random(seed)  # noqa: S311
        one = drawn(dice, most=2, depth=3)
        if one is None:
            continue
        catalog = ToolRunner([one.tool]).catalog
        sent = ToolCall("c", "take", json.dumps(one.make(dice)))
        first = hydrate(sent, catalog)
        if not isinstance(first, Hydrated) or not first.building.pinned:
            continue
        again = hydrate(sent, catalog, pinned=first.building.pinned)
        assert isinstance(again, Hydrated), (seed, again.errors)
        assert again.canonical == first.canonical, seed
        assert again.defaults == first.defaults, seed
        assert again.building.pinned == first.building.pinned, seed
        pinned += 1
    assert pinned > seeds // 20


class Keeps:
    """A store of questions, as JSON, that two runners share."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self.answer: Approve | None = None
        self.pinned = "{}"

    async def __call__(self, request: ApprovalRequest) -> Approve | None:
        self.asked.append(request)
        return self.answer

    async def ask_keeping(
        self, request: ApprovalRequest, pinned: dict[str, Any], /
    ) -> Approve | None:
        if not self.asked:
            self.pinned = json.dumps(pinned)
        return await self(request)

    async def kept(self, _run: str, _call: str, _caller: str, /) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self.pinned)
        return kept


async def ask_and_run_elsewhere(seed: int) -> tuple[int, int]:
    """How many calls ran in another runner than the one that asked, and with what factories made."""
    dice = random.Random(seed)  # noqa: S311
    one = drawn(dice, most=2, depth=3)
    if one is None:
        return 0, 0
    ran = pinned = 0
    for _ in range(CALLS):
        GOT.clear()
        keeps, sent = Keeps(), ToolCall("c", "take", json.dumps(one.make(dice)))
        if not isinstance(await ToolRunner([one.tool], approver=keeps).exec(sent), Waiting):
            continue
        keeps.answer = Approve("grace")
        outcome = await ToolRunner([one.tool], approver=keeps).exec(sent)
        if isinstance(outcome, Failed):  # what JSON does not give back
            assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
            assert "[]" in keeps.pinned
            continue
        first, second = keeps.asked
        assert first.id == second.id
        assert canonical_json(first.arguments) == canonical_json(outcome.record.arguments)
        check_got(one.hints, outcome.record, *GOT)
        ran, pinned = ran + 1, pinned + (keeps.pinned != "{}")
    return ran, pinned


def test_what_was_asked_about_runs_in_another_runner() -> None:
    seeds = sample(RUNS, part=80)
    ran, pinned = total(lambda seed: asyncio.run(ask_and_run_elsewhere(seed)), seeds)
    assert ran > seeds
    assert pinned > seeds // 20
