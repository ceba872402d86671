"""The work of reading a value is bounded, whatever unions the hint holds; it is counted, not timed."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    Json,
    Tag,
    ValidationError,
)
from rows import each_row
from samples import sample
from typing_extensions import TypedDict

from toolcrib import (
    ALL,
    Catalog,
    Completed,
    ErrorCode,
    Hydrated,
    Rejected,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.schema.derive import converter_for, unions
from toolcrib.schema.derive.adapters import adapter_for
from toolcrib.schema.derive.roundtrip import TooMuchWorkError

calls = 0


def counted(value: Any) -> Any:
    """Runs whenever a leaf is read, in whichever branch is tried."""
    global calls  # noqa: PLW0603  the measure of these tests
    calls += 1
    return value


Text = Annotated[str, AfterValidator(counted)]


class And(BaseModel):
    left: Expression
    right: Expression


class Or(BaseModel):
    left: Expression
    right: Expression
    either: bool = True


class Not(BaseModel):
    inner: Expression


class Leaf(BaseModel):
    name: Text


Expression = And | Or | Not | Leaf


@dataclass
class Plus:
    left: Sum
    right: Sum
    op: Literal["plus"] = "plus"


@dataclass
class Minus:
    left: Sum
    right: Sum
    op: Literal["minus"]


Sum = Plus | Minus | Text


class Options(BaseModel):
    """Has a default for each of its fields, so that pydantic makes one of any object."""

    a: int = 1


@dataclass
class Settings:
    a: int = 1


class Choices(TypedDict, total=False):
    a: int


class Open(BaseModel, extra="allow"):
    b: int = 1


class HasOptions(BaseModel):
    x: Options = Options()


class HasAny(BaseModel):
    x: dict[str, int] = {}


class Stop(BaseModel):
    kind: Literal["stop"]


class Move(BaseModel):
    kind: Literal["move"]
    to: Choices | Settings | None = None


class Group(BaseModel):
    kind: Literal["group"]
    step: Stop | Move


class Steps(BaseModel):
    kind: Literal["steps"]
    steps: list[Move | Stop]


TAGGED = [
    {"kind": "move"},
    {"kind": "move", "to": {"a": 1}},
    {"kind": "group", "step": {"kind": "stop"}},
    {"kind": "group", "step": {"kind": "move", "to": None}},
]

HONEST: dict[str, tuple[Any, list[Any]]] = {
    "a class of two unions": (Group | Move, TAGGED),
    "of three": (
        Steps | Group | Move,
        [*TAGGED, {"kind": "steps", "steps": [{"kind": "move", "to": {"a": 1}}, {"kind": "stop"}]}],
    ),
    "a model": (Options | dict[str, int], [{"b": -5}, {"b": 1, "c": 2}, {"a": 1, "b": 2}, {}]),
    "the dictionary first": (dict[str, int] | Options, [{"b": -5}, {"a": 2}, {}]),
    "a dataclass": (Settings | dict[str, int], [{"b": -5}, {"a": 2}]),
    "a TypedDict": (Choices | dict[str, int], [{"b": -5}, {"a": 2}, {}]),
    "anything": (Options | Any, [{"b": -5}, {"a": 2}, [1], "x"]),
    "an open class": (Options | Open, [{"b": 5}, {"a": 5, "c": 1}, {"a": 2}]),
    "in lists": (list[Options] | list[dict[str, int]], [[{"b": 5}], [{"a": 5}], []]),
    "of a list": (list[Options | dict[str, int]], [[{"b": 5}, {"a": 5}, {}]]),
    "in fields": (HasOptions | HasAny, [{"x": {"b": 5}}, {"x": {"a": 5}}, {}]),
    "in a dictionary": (
        dict[str, Options] | dict[str, dict[str, int]],
        [{"k": {"b": 5}}, {"k": {"a": 5}}],
    ),
    "two classes": (Options | Open | None, [None, {"a": 1}, {"b": 2}]),
}


@each_row(("hint", "values"), HONEST.values(), ids=HONEST)
def test_a_class_beside_a_free_object_drops_nothing_of_what_is_the_others(
    hint: Any, values: list[Any]
) -> None:
    """The closed schema chooses first: pydantic alone prefers the class, which drops what it lacks."""

    def keep(x):  # type: ignore[no-untyped-def]
        """Keep it."""
        return "kept"

    keep.__annotations__ = {"x": hint, "return": str}
    offered = Catalog([tool(visible=ALL)(keep)])
    for value in values:
        result = hydrate(ToolCall("1", "keep", json.dumps({"x": value})), offered)
        assert isinstance(result, Hydrated)
        shown = result.arguments["x"]
        assert shown == value or (isinstance(shown, dict) and shown.items() >= value.items())


class Above(TypedDict):
    kind: Literal["above"]
    below: list[Row] | dict[str, Row]


class Beside(TypedDict):
    kind: Literal["beside"]
    below: list[Row] | dict[str, Row]


class End(TypedDict):
    kind: Literal["end"]
    name: Text


Row = Above | Beside | End


class First(BaseModel):
    next: Same | None = None
    name: Text = ""


class Second(BaseModel):
    next: Same | None = None
    name: Text = ""


Same = First | Second


class Red(BaseModel):
    next: Alike | None = None
    name: Text = ""


class Green(BaseModel):
    next: Alike | None = None
    name: Text = ""
    parts: list[Alike] = Field(default_factory=list)


@dataclass
class Blue:
    next: Alike | None = None
    name: Text = ""


class Grey(TypedDict, total=False):
    next: Alike | None
    name: Text


Alike = Red | Green | Blue
AlikeToo = Red | Green | Grey | dict[str, Any]


def expressions(depth: int) -> Any:
    value: Any = {"name": "a"}
    for level in range(depth):
        value = [{"left": value, "right": {"name": "b"}, "either": False}, {"inner": value}][
            level % 2
        ]
    return value


def sums(depth: int) -> Any:
    value: Any = "a"
    for level in range(depth):
        value = {"left": value, "right": "b", **({"op": "minus"} if level % 2 else {})}
    return value


def rows(depth: int) -> Any:
    value: Any = {"kind": "end", "name": "a"}
    for level in range(depth // 2):
        below = [value] if level % 2 else {"a": value}
        value = {"kind": ("above", "beside")[level % 3 == 0], "below": below}
    return value


def same(depth: int) -> Any:
    value: Any = {"name": "a"}
    for _ in range(depth):
        value = {"next": value, "name": "b"}
    return value


def read(hint: Any, value: Any) -> Any:
    validator = unions.bounded(adapter_for(hint, "x")).validator
    assert isinstance(validator, unions.BoundedValidator)
    return validator.validate_json(json.dumps(value).encode(), strict=True)


CASES: list[tuple[Any, Any]] = [
    (Expression, expressions), (Sum, sums), (Row, rows), (list[Expression] | Expression, expressions),
    (dict[str, Sum] | list[Sum], lambda depth: {"a": sums(depth), "b": "c"}),
]  # fmt: skip


@each_row(("hint", "made"), CASES)
@each_row("depth", [1, 8, 40])
def test_each_leaf_is_read_once_or_twice(hint: Any, made: Any, depth: int) -> None:
    """At most once in each of the unions' own two modes, however deep it lies."""
    global calls  # noqa: PLW0603
    value = made(depth)
    calls = 0
    holds(read(hint, value), value)
    assert calls <= 2 * json.dumps(value).count('"')


def test_the_call_of_the_issue_is_quick() -> None:
    @tool(visible=ALL)
    def find(where: Expression) -> None:
        """Find."""

    global calls  # noqa: PLW0603
    calls = 0
    text = json.dumps({"where": expressions(12)}, separators=(",", ":"))
    assert len(text) < 500
    assert isinstance(hydrate(ToolCall("1", "find", text), Catalog([find])), Hydrated)
    assert calls < 100


def test_what_no_schema_tells_apart_is_too_large_when_it_multiplies() -> None:
    global calls  # noqa: PLW0603

    @tool(visible=ALL)
    def find(where: list[Same]) -> None:
        """Find."""

    catalog = Catalog([find])

    def result(depth: int) -> Any:
        text = json.dumps({"where": [same(depth)]})
        return hydrate(ToolCall("1", "find", text), catalog)

    assert isinstance(result(2), Hydrated)
    calls = 0
    rejected = result(90)
    assert isinstance(rejected, Rejected)
    assert [error.code for error in rejected.errors] == [ErrorCode.TOO_LARGE]
    assert calls < unions.MAX_WORK


def test_a_budget_is_for_one_conversion_and_comes_back() -> None:
    with pytest.raises(TooMuchWorkError):
        read(Same, same(90))
    holds(read(Same, same(2)), same(2))
    with pytest.raises(TooMuchWorkError):
        read(Same, same(90))


@each_row("hint", [Same, Alike, list[Alike] | Alike, AlikeToo])
@each_row("depth", [1, 8, 20, 30])
def test_what_no_schema_tells_apart_is_tried_once(hint: Any, depth: int) -> None:
    """Once in each branch, and read once more for each value around it."""
    global calls  # noqa: PLW0603
    value = same(depth)
    calls = 0
    holds(read(hint, value), value)
    assert calls <= 5 * (depth + 2) ** 2


class Counts(BaseModel):
    next: Counted | None = None
    number: int = Field(default_factory=lambda: counted(1))


class CountsToo(BaseModel):
    next: Counted | None = None
    number: int = 1


Counted = Counts | CountsToo


def test_an_authors_factory_makes_nothing_for_a_trial() -> None:
    global calls  # noqa: PLW0603
    calls = 0
    read(Counted, {})
    assert calls == 1
    with pytest.raises(TooMuchWorkError):
        read(Counted, {"next": same(40)})


def test_a_discriminator_of_the_author_stays() -> None:
    seen: list[Any] = []

    def which(value: Any) -> str:
        seen.append(value)
        return "first"

    own = Annotated[
        Annotated[First, Tag("first")] | Annotated[Second, Tag("second")], Discriminator(which)
    ]
    held = Annotated[list[own | int] | own, Field(description="It.")]
    assert isinstance(read(held, {"name": "a"}), First)
    assert seen


class Earlier(BaseModel):
    name: str


class Later(BaseModel):
    name: str
    version: int = 2


def _version(value: Any) -> str:
    return "later" if isinstance(value, Later) or "version" in value else "earlier"


ByVersion = Annotated[
    Annotated[Earlier, Tag("earlier")] | Annotated[Later, Tag("later")], Discriminator(_version)
]


async def test_a_discriminator_of_the_author_tells_apart_what_schemas_do_not() -> None:
    """Both in what a tool is sent and in what it returns."""

    @tool(visible=ALL)
    async def keep(one: ByVersion, more: list[ByVersion]) -> list[ByVersion]:
        """Keep."""
        return [one, *more]

    older, newer = {"name": "a"}, {"name": "a", "version": 3}
    runner = ToolRunner([keep])
    for one, more in ((older, [newer]), (newer, [older, newer])):
        arguments = json.dumps({"one": one, "more": more})
        outcome = await runner.exec(ToolCall(arguments, "keep", arguments))
        assert isinstance(outcome, Completed)
        assert [each.model_dump() for each in outcome.value] == [one, *more]
        assert outcome.record.arguments == {"one": one, "more": more}


def test_unions_of_plain_json_are_left_to_pydantic() -> None:
    for hint in (int | str, list[int] | list[str], dict[str, int | None] | None):
        adapter = adapter_for(hint, "x")
        assert unions.bounded(adapter) is adapter


def holds(made: Any, sent: Any) -> None:
    """Whatever was sent is in what was made, under its own name: nothing was dropped."""
    if isinstance(sent, dict):
        for name, part in sent.items():
            held = made[name] if isinstance(made, dict) else getattr(made, name)
            holds(held, part)
    elif isinstance(sent, list):
        assert len(made) == len(sent)
        for one, part in zip(made, sent, strict=True):
            holds(one, part)
    else:
        assert (type(made), made) == (type(sent), sent)


class Random:
    """A random recursive union, written as the source of a module, and values of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  it has to be the same each time
        self.classes = [self._fields(number) for number in range(self.random.randint(2, 4))]

    def _fields(self, number: int) -> dict[str, tuple[str, bool]]:
        """By name: what it holds, and whether it has to be there."""
        pick = self.random.choice
        found: dict[str, tuple[str, bool]] = {}
        for name in self.random.sample("xyz", self.random.randint(1, 2)):
            hint = pick(["Node", "list[Node]", "dict[str, Node]", "Node | None"])
            found[name] = hint, number > 0 and pick([True, False])
        for name in self.random.sample("abn", self.random.randint(0, 2)):
            hint = pick(["int", "str", "Text", f"Literal['{number}']", "bool | int"])
            found[name] = hint, pick([True, False])
        return found

    def source(self) -> str:
        lines = []
        for number, found in enumerate(self.classes):
            kind = self.random.choice(["BaseModel", "TypedDict", "@dataclass"])
            base = "" if kind == "@dataclass" else f"({kind})"
            lines += ["@dataclass(kw_only=True)"] if kind == "@dataclass" else []
            lines.append(f"class C{number}{base}:")
            for name, (hint, required) in found.items():
                if kind == "TypedDict":
                    lines.append(f"    {name}: {hint if required else f'NotRequired[{hint}]'}")
                else:
                    lines.append(f"    {name}: {hint}{'' if required else ' = None'}")
        names = [f"C{number}" for number in range(len(self.classes))]
        union = " | ".join(names + self.random.sample(["int", "str", "list[C0]"], 1))
        return "\n".join([*lines, f"Node = Union[{union.replace(' | ', ', ')}]"])

    def value(self, depth: int) -> Any:
        """Deep in one of its fields, so that it grows with the depth and not with its power."""
        found = self.classes[self.random.randrange(len(self.classes)) if depth else 0]
        made: dict[str, Any] = {}
        for name, (hint, required) in found.items():
            if "Node" not in hint:
                if required or self._maybe():
                    made[name] = self._part(hint, 0)
            elif required or depth:
                made[name] = self._part(hint, depth)
                depth = min(depth, 1)
        return made

    def _maybe(self) -> bool:
        return self.random.random() < 0.5

    def _part(self, hint: str, depth: int) -> Any:
        if hint.startswith("Literal"):
            return hint[9]
        plain = {"int": 1, "str": "s", "Text": "t", "bool | int": True}
        if hint in plain:
            return plain[hint]
        below = self.value(max(depth - 1, 0))
        return [below] if "list" in hint else {"k": below} if "dict" in hint else below


PRELUDE = (
    "from __future__ import annotations\n"
    "from dataclasses import dataclass\nfrom typing import Literal, Union\n"
    "from pydantic import BaseModel\nfrom typing_extensions import NotRequired, TypedDict\n"
)


@each_row("seed", range(sample(1000, part=80)))
def test_random_recursive_unions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent is what is made, 30 levels deep; and the work is never more than some tries."""
    global calls  # noqa: PLW0603
    made = Random(seed)
    module = ModuleType(f"random_unions_{seed}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module)["Text"] = Text
    exec(compile(PRELUDE + made.source(), module.__name__, "exec"), vars(module))  # noqa: S102
    hint = vars(module)["Node"]
    derived = derive_input([Parameter("x", hint)])
    judge = compile_validator(derived.schema)
    for depth in (1, 3, 12, 30):
        value = made.value(depth)
        if len(json.dumps(value)) > 5000 or not judge.is_valid({"x": value}):
            continue
        calls = 0
        holds(read(hint, value), value)
        assert calls <= unions.MAX_WORK // 100


def test_the_random_unions_are_of_every_kind() -> None:
    text = "".join(Random(seed).source() for seed in range(60))
    for part in (
        "BaseModel",
        "TypedDict",
        "@dataclass",
        "list[Node]",
        "dict[str, Node]",
        "Literal",
    ):
        assert text.count(part) > 20


def test_what_is_made_is_compared_field_by_field() -> None:
    assert is_dataclass(Plus)
    assert [field.name for field in fields(Plus)] == ["left", "right", "op"]
    with pytest.raises(AttributeError):
        holds(Leaf(name="a"), {"nome": "a"})


class Size(BaseModel):
    n: int


class SizeToo(BaseModel):
    n: int


class Weight(BaseModel):
    n: float


class Noted(BaseModel):
    n: int
    note: str = ""


class Held(BaseModel):
    part: Size | Noted


class HeldToo(BaseModel):
    part: Noted | Size
    note: str = ""


LOOK_ALIKES: list[Any] = [
    Size | SizeToo,
    Size | Weight,
    Weight | Size,
    Noted | Size,
    Held | HeldToo,
    list[Size | Noted],
    dict[str, Noted | Size] | Size,
    int,
]
SENT: list[Any] = [1, 1.5, {"n": 1}, {"n": 1.5}, {"n": 1, "note": "a"}, {"n": 1, "more": 2}]
SENT += [{"part": SENT[4]}, {"part": SENT[2], "note": "b"}, [SENT[2], SENT[4]], {"k": SENT[4]}]


def taken(hint: Any, sent: Any) -> bool:
    def take(x: Any) -> None:
        """Take."""

    take.__annotations__["x"] = hint
    call = ToolCall("1", "take", json.dumps({"x": sent}))
    return hydrate(call, Catalog([tool(visible=ALL)(take)])).success


@each_row("hint", LOOK_ALIKES, ids=str)
def test_json_in_a_text_is_taken_where_the_plain_value_is(hint: Any) -> None:
    """A whole float is an integer in both: JSON knows one kind of number."""
    for sent in SENT:
        for text in {json.dumps(sent), json.dumps(sent).replace("1}", "1.0}"), "1.0"}:
            plain = taken(hint, json.loads(text))
            assert taken(Annotated[hint, Json], text) is plain, text


class NamedLikeCore(BaseModel):
    """Its field has the name of a member of a pydantic core schema."""

    config: set[int]


def test_items_of_one_hash_are_counted_whatever_the_name_of_their_field() -> None:
    convert = converter_for(NamedLikeCore)
    assert convert is not None
    alike = [number * (2**61 - 1) for number in range(200)]
    with pytest.raises(TooMuchWorkError):
        convert({"config": alike})


@each_row("hint", [Same, Alike, AlikeToo, *LOOK_ALIKES[:-1]], ids=str)
def test_a_trial_takes_the_branch_that_pydantic_takes(hint: Any) -> None:
    for value in [*SENT, *map(same, range(4)), {"name": "a", "parts": [same(1), {"parts": []}]}]:
        _same_either_way(hint, value)


@each_row("seed", range(sample(400, part=40)))
def test_a_trial_of_random_unions_takes_the_branch_that_pydantic_takes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Random(seed)
    module = ModuleType(f"tried_unions_{seed}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module)["Text"] = Text
    exec(compile(PRELUDE + made.source(), module.__name__, "exec"), vars(module))  # noqa: S102
    for depth in range(4):
        _same_either_way(vars(module)["Node"], made.value(depth))


def _same_either_way(hint: Any, value: Any) -> None:
    """What is read with trials is what is read where pydantic tries each union anew, if it can."""
    outcomes = []
    for empty in (unions._EMPTY, ()):  # with no empty factory there are no trials
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(unions, "_EMPTY", empty)
            adapter = unions.bounded(adapter_for(hint, "x"))
            try:
                made = adapter.validator.validate_json(json.dumps(value).encode(), strict=True)
            except ValidationError:
                outcomes.append("refused")
            except TooMuchWorkError:
                return
            else:
                outcomes.append(repr(made))
    assert outcomes[0] == outcomes[1], json.dumps(value)
