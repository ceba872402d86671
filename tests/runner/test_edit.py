"""The tool gets what an approver's edit says, or nothing runs.

Each tool has texts that a validator marks (`a` becomes `a!`, and would become `a!!`), or strips, fields
with defaults and ids that a factory makes. Of random edits (items left out, added, moved, changed in
part) the expected result is known: a mark for each text that was written anew, none for the others. A
seeded sample runs with the other tests, 8,000 edits with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import random
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    TypeAdapter,
    model_validator,
)
from rows import each_row
from samples import sample

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Catalog,
    Completed,
    Failed,
    Refuse,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.errors import ErrorCode
from toolcrib.hydration import Sanitizer
from toolcrib.tools import Tool
from toolcrib.values.decision import Answer

Marked = Annotated[str, AfterValidator(lambda text: f"{text}!")]
Stripped = Annotated[str, AfterValidator(str.strip)]
IDS = itertools.count()
SEEDS = 8_000
REFUSED = "refused"


def an_id() -> str:
    return f"id{next(IDS)}"


class Line(BaseModel):
    s: Marked
    q: int = 1
    note: Marked = "n"
    id: str = Field(default_factory=an_id)


@dataclasses.dataclass
class Plain:
    s: Marked
    q: int = 1
    note: Marked = "n"
    id: str = dataclasses.field(default_factory=an_id)


class Row(BaseModel):
    s: Stripped
    q: int = 1
    note: str = "n"
    id: str = Field(default_factory=an_id)


class Order(BaseModel):
    lines: list[Line] = []
    by_name: dict[str, Line] = {}
    note: Marked = "n"


class Pair(NamedTuple):
    s: Marked
    q: int = 1


GOT: list[Any] = []
HINTS = {
    "models": list[Line],
    "dataclasses": list[Plain],
    "tuples": tuple[Line, ...],
    "named": dict[str, Line],
    "orders": list[Order],
    "optional": list[Line | None],
    "texts": list[Marked],
    "rows": list[Row],
    "rows by name": dict[str, Row],
}
STABLE = ("rows", "rows by name")  # what they made of a text is what they would make of it again


def a_tool(hint: Any) -> Tool[..., Any]:
    def keep(x: Any, memo: str = "") -> str:
        """Keep it."""
        GOT.append(x)
        return "kept"

    keep.__annotations__ = {"x": hint, "memo": str, "return": str}
    return tool(visible=ALL, safe=False)(keep)


TOOLS = {name: a_tool(hint) for name, hint in HINTS.items()}


async def edited(subject: Tool[..., Any], sent: Any, change: Any) -> Any:
    """Return the outcome of a call whose approver gives `change(shown)` back."""

    async def approver(request: ApprovalRequest) -> Answer:
        return Approve(by="grace", arguments={"x": change(request.arguments["x"]), "memo": "m"})

    GOT.clear()
    call = ToolCall("call_1", "keep", json.dumps({"x": sent}))
    return await ToolRunner([subject], approver=approver).exec(call)


# --- random edits


def an_item(dice: random.Random, name: str) -> Any:
    text = dice.choice("abc")
    if name == "texts":
        return text
    if name == "orders":
        return {"lines": [an_item(dice, "models") for _ in range(dice.randrange(3))]}
    if name == "optional" and dice.random() < 0.2:
        return None
    return {"s": text, **({"q": dice.randrange(3)} if dice.random() < 0.4 else {})}


def marked(value: Any, name: str) -> Any:
    """Return what is read of a value that was written anew."""
    if name in STABLE:
        return value
    if isinstance(value, dict):
        texts = ("s", "note")
        return {k: f"{v}!" if k in texts else marked(v, name) for k, v in value.items()}
    if isinstance(value, list):
        return [marked(item, name) for item in value]
    return f"{value}!" if isinstance(value, str) else value


def changed(dice: random.Random, item: Any, name: str) -> tuple[Any, Any]:
    """Return an edited item and what is expected of it."""
    if name == "orders":
        lines, expected = edit_of(dice, item["lines"], "models")
        return {**item, "lines": lines}, {**item, "lines": expected}
    if not isinstance(item, dict):
        return ("x", "x!") if name == "texts" else ({"s": "x"}, {"s": "x!"})
    match dice.randrange(4):
        case 0:
            return {**item, "s": "x"}, {**item, "s": marked("x", name)}
        case 1:
            return {**item, "q": 9}, {**item, "q": 9}
        case 2:
            left = {k: v for k, v in item.items() if k != "q"}
            return left, left
        case _:
            return {**item, "id": "mine"}, {**item, "id": "mine"}


def edit_of(dice: random.Random, shown: Any, name: str) -> tuple[Any, Any]:
    """Return a random edit of what was shown, and what is expected of it."""
    keys = list(shown) if isinstance(shown, dict) else list(range(len(shown)))
    if isinstance(shown, list) and dice.random() < 0.3:
        dice.shuffle(keys)
    pairs = []
    for key in keys:
        if dice.random() < 0.2:
            continue
        item = shown[key]
        pairs.append((key, *(changed(dice, item, name) if dice.random() < 0.3 else (item, item))))
    if dice.random() < 0.4:
        new = an_item(dice, name)
        pairs.insert(dice.randrange(len(pairs) + 1), ("new", new, marked(new, name)))
    if isinstance(shown, dict):
        return {k: one for k, one, _ in pairs}, {k: other for k, _, other in pairs}
    return [one for _, one, _ in pairs], [other for _, _, other in pairs]


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def has(got: Any, expected: Any) -> bool:
    """Return whether a value has all that is expected of it; further names are defaults."""
    if isinstance(expected, dict):
        return all(name in got and has(got[name], item) for name, item in expected.items())
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(has, got, expected))
    return bool(got == expected)


def is_refused(outcome: Any) -> bool:
    """Return whether the call did not run, and says that the edit does not stand."""
    return (
        isinstance(outcome, Failed)
        and outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        and GOT == []
    )


def ids_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["id"]] if value.get("id", "").startswith("id") else []
        return own + [found for item in value.values() for found in ids_in(item)]
    return [found for item in value for found in ids_in(item)] if isinstance(value, list) else []


async def edit_at_random(seed: int) -> str | None:
    """Return what is wrong with one random edit, if anything is."""
    dice = random.Random(seed)  # noqa: S311  to be repeated
    name = dice.choice(list(HINTS))
    count = dice.randrange(4)
    items = [an_item(dice, name) for _ in range(count)]
    sent = {f"k{at}": item for at, item in enumerate(items)} if "name" in name else items
    told: list[Any] = []

    def change(shown: Any) -> Any:
        told[:] = [shown, *edit_of(dice, shown, name)]
        return told[1]

    outcome = await edited(TOOLS[name], sent, change)
    if not isinstance(outcome, Completed):
        mismatch = outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        return (
            REFUSED
            if mismatch and name not in STABLE
            else f"{seed} {name}: {outcome.error} after {told}"
        )
    got = plain(GOT[0])
    ids = ids_in(got)
    recorded = outcome.record.arguments == {"x": got, "memo": "m"}
    if recorded and has(got, told[2]) and len(ids) == len(set(ids)):
        return None
    return f"{seed} {name}: sent {sent}, shown, edited and expected {told}, got {got}"


@pytest.mark.parametrize("name", HINTS)
async def test_what_comes_back_as_it_was_shown_runs_as_it_was_shown(name: str) -> None:
    dice = random.Random(1)  # noqa: S311  to be repeated
    sent: Any = [an_item(dice, name) for _ in range(3)]
    sent = dict(zip("bca", sent, strict=True)) if "name" in name else sent
    told: list[Any] = []

    def change(shown: Any) -> Any:
        told.append(shown)
        return shown

    outcome = await edited(TOOLS[name], sent, change)
    assert isinstance(outcome, Completed), outcome
    assert plain(GOT[0]) == told[0]


async def test_random_edits() -> None:
    """Where a text would be marked twice nothing is written; what is only stripped is never refused."""
    found = [await edit_at_random(seed) for seed in range(sample(SEEDS, part=40))]
    assert [each for each in found if each not in (None, REFUSED)] == []
    assert found.count(REFUSED) <= len(found) / 2


# --- what runs, and what does not


class Lists(BaseModel):
    a: list[Marked]
    b: list[Marked]
    flag: bool | int = True
    share: float = 1.0


LISTS = {"a": ["p"], "b": ["q"], "share": 2.0}
LINE_TEXT = '{"s": "a", "note": "b"}'


def with_text(**changes: Any) -> Any:
    return lambda shown: json.dumps({**json.loads(shown), **changes})


def with_fields(**changes: Any) -> Any:
    return lambda shown: {**shown, **changes}


@pytest.mark.parametrize(
    ("hint", "sent", "change", "got"),
    [
        (Pair, ["a"], lambda _: ["a!"], ("a!", 1)),
        (Pair, ["a", 2], lambda _: ["x", 2], REFUSED),  # it would be x!
        (Pair, ["a", 2], lambda _: ["a!", 3], ("a!", 3)),
        (set[int], [3, 1], lambda _: [1, 5, 3], {1, 3, 5}),
        (list[list[Marked]], [["a"], ["b"]], lambda _: [["a!", "x"], ["b!"]], REFUSED),
        (list[list[Marked]], [["a"], ["b"]], lambda _: [["b!"]], [["b!"]]),
        (list[list[Marked]], [["a"], ["b"]], lambda _: [["b!"], ["a!"]], REFUSED),
        (dict[str, Marked], {"k": "a"}, lambda _: {"renamed": "a!"}, REFUSED),
        (dict[str, Stripped], {"k": " a"}, lambda _: {"renamed": "a"}, {"renamed": "a"}),
        (Lists, LISTS, with_fields(b=["q!", "z"]), REFUSED),
        (Lists, LISTS, with_fields(b=["q!", "p!"]), REFUSED),
        (Lists, LISTS, with_fields(b=["q!"], flag=1), {**LISTS, "a": ["p!"], "b": ["q!"], "flag": 1}),
        (Lists, LISTS, with_fields(share=1.0), {"a": ["p!"], "b": ["q!"], "share": 1.0}),
        (Json[Line], LINE_TEXT, with_text(s="x", note="y"), REFUSED),
        (Json[Line], LINE_TEXT, with_text(s="x"), REFUSED),  # the note would have another mark
        (Json[Line], LINE_TEXT, with_text(q=7), REFUSED),
        (Json[Line], '{"s": "a"}', with_text(s="x"), REFUSED),
        (Json[Row], LINE_TEXT, with_text(q=7), {"s": "a", "note": "b", "q": 7}),
        (Json[Order], f'{{"lines": [{LINE_TEXT}]}}', with_text(note="y"), REFUSED),
        (Json[Order], f'{{"lines": [{LINE_TEXT}]}}', with_text(lines=[], note="y"), REFUSED),
    ],
)  # fmt: skip
async def test_the_tool_gets_what_the_edit_says(
    hint: Any, sent: Any, change: Any, got: Any
) -> None:
    outcome = await edited(a_tool(hint), sent, change)
    if got is REFUSED:
        assert is_refused(outcome), GOT
        return
    assert isinstance(outcome, Completed), outcome
    found = GOT[0]
    if isinstance(found, Lists):
        assert repr(found.model_dump(exclude_unset=True)) == repr(
            {k: got[k] for k in ("a", "b", "flag", "share") if k in got}
        )
    else:
        assert has(plain(found), got) if isinstance(got, dict) else found == got


class Reader(BaseModel):
    scopes: list[str] = ["read"]
    limits: dict[str, int] = {"read": 1}


class Writer(BaseModel):
    scopes: list[str] = ["read", "write"]
    limits: dict[str, int] = {"read": 1, "write": 9}


class Grant(BaseModel):
    reader: Reader
    writer: Writer


@pytest.mark.parametrize("names", [("scopes",), ("limits",), ("scopes", "limits")])
async def test_a_value_that_is_anothers_default_is_what_was_written(names: tuple[str, ...]) -> None:
    def narrowed(shown: Any) -> Any:
        shown["writer"].update({name: shown["reader"][name] for name in names})
        return shown

    outcome = await edited(a_tool(Grant), {"reader": {}, "writer": {}}, narrowed)
    assert isinstance(outcome, Completed), outcome
    for name in names:
        assert getattr(GOT[0].writer, name) == getattr(GOT[0].reader, name)


Lowered = Annotated[str, AfterValidator(str.lower)]


class Person(BaseModel):
    name: Lowered
    age: int = 1


@dataclasses.dataclass(frozen=True)
class Slot:
    at: AwareDatetime
    seats: int = 1


@dataclasses.dataclass(frozen=True)
class Given:
    who: str
    cents: int
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class User:
    name: Lowered
    age: int = 1


def by_name(users: list[Person]) -> list[Person]:
    return sorted(users, key=lambda user: user.name)


NORMALISED: list[tuple[Any, Any]] = [
    (
        frozenset[Slot],
        [{"at": "2026-05-04T10:00:00+00:00", "seats": 3}, {"at": "2026-05-01T10:00:00Z"}],
    ),
    (
        frozenset[Given],
        [
            {"who": "zoe", "cents": 9, "tags": ["b", "a"]},
            {"who": "dan", "cents": 4, "tags": ["b", "a"]},
        ],
    ),
    (frozenset[User], [{"name": "Zoe"}, {"name": "dan", "age": 3}]),
    (
        Annotated[list[Person], AfterValidator(by_name)],
        [{"name": "Zoe"}, {"name": "dan", "age": 3}],
    ),
    (list[Lowered], ["aB", "Cd", "e"]),
    (set[Lowered], ["aB", "Cd", "e"]),
    (Annotated[list[Lowered], AfterValidator(sorted)], ["Cd", "aB"]),
    (dict[Lowered, Lowered], {"K": "V", "l": "W"}),
    (dict[str, list[Lowered]], {"K": ["V"], "l": []}),
    (list[list[Annotated[float, AfterValidator(lambda x: round(x, 1))]]], [[1.25], [2, 3.14]]),
    (list[Person], [{"name": "Ada"}, {"name": "Bob", "age": 2}]),
    (Lowered | list[Person], [{"name": "Ada"}, {"name": "bob", "age": 2}]),
]


FIELDS = ("name", "at", "who")


def any_edit(dice: random.Random, value: Any) -> Any:
    """Return a value with one part changed, left out or added, or with its items in another order."""
    if not isinstance(value, dict | list):
        if not isinstance(value, str):
            return dice.choice((7.77, 2, 4))
        dates = ("2026-05-04T10:00:00+00:00", "2026-01-01T10:00:00Z")
        return dice.choice(dates if value.startswith("20") else ("X", "b", "Ada", "dan"))
    steps = list(value) if isinstance(value, dict) else list(range(len(value)))
    is_object = isinstance(value, dict) and not value.keys().isdisjoint(FIELDS)
    made: Any = copy.deepcopy(value)
    match dice.randrange(4) if steps else 4:
        case 0:
            step = dice.choice(steps)
            made[step] = any_edit(dice, made[step])
        case 1 if not is_object:
            del made[dice.choice(steps)]
        case 2 if isinstance(value, list):
            dice.shuffle(made)
        case _ if steps and isinstance(value, list):
            made.insert(dice.randrange(len(made) + 1), any_edit(dice, value[0]))
        case _ if steps and not is_object:
            made["New"] = any_edit(dice, value[steps[0]])
    return made


def says_twice(value: Any) -> bool:
    """Return whether an item is twice in a list, which the schema of a set refuses."""
    if isinstance(value, dict):
        return any(map(says_twice, value.values()))
    if not isinstance(value, list):
        return False
    texts = [json.dumps(one, sort_keys=True) for one in value]
    return len(set(texts)) < len(texts) or any(map(says_twice, value))


async def test_a_validator_that_leaves_alone_what_it_made_keeps_no_edit_from_running() -> None:
    for seed in range(sample(SEEDS, part=32)):
        dice = random.Random(seed)  # noqa: S311  to be repeated
        hint, sent = dice.choice(NORMALISED)
        told: list[Any] = []

        def change(shown: Any, dice: random.Random = dice, told: list[Any] = told) -> Any:
            told[:] = [shown, any_edit(dice, any_edit(dice, shown))]
            return told[1]

        outcome = await edited(a_tool(hint), sent, change)
        try:
            expected = TypeAdapter(hint).validate_json(json.dumps(told[1]))
        except ValueError:  # no value of the hint, such as a set with an item twice
            continue
        if isinstance(outcome, Failed):
            assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS, (hint, told)
            assert says_twice(told[1]), (hint, told)
        else:
            assert GOT[0] == expected, (hint, told)


ACCOUNTS = dict[Annotated[str, AfterValidator(lambda name: f"acct/{name}")], int]


@pytest.mark.parametrize(
    ("hint", "sent", "change"),
    [
        (ACCOUNTS, {"ada": 10}, lambda x: dict.fromkeys(x, 11)),
        (ACCOUNTS, {"ada": 10, "bob": 20}, lambda x: {**x, "acct/ada": 11}),
        (list[ACCOUNTS], [{"ada": 10}], lambda x: [*x, {"acct/ada": 12}]),
        (Json[ACCOUNTS], '{"ada": 10}', lambda x: x.replace("10", "11")),
        (Annotated[list[list[int]], AfterValidator(lambda x: [*x, []])], [], lambda x: [*x, [7]]),
    ],
)
async def test_a_shown_name_and_what_is_empty_are_not_changed_again(
    hint: Any, sent: Any, change: Any
) -> None:
    assert is_refused(await edited(a_tool(hint), sent, change)), GOT


# --- what counts as sent


class Patch(BaseModel):
    id: int
    email: str | None = None
    phone: str | None = None


ONE, TWO = {"id": 1, "phone": "1"}, {"id": 2, "email": "x"}


@pytest.mark.parametrize(
    ("change", "patches"),
    [
        (lambda p: [p[0], {**p[1], "email": None}], [ONE, {"id": 2, "email": None}]),
        (lambda p: [p[0], {**p[1], "id": 3}], [ONE, {"id": 3, "email": "x"}]),
        (lambda p: [{"id": 4, "email": None}, *p], [{"id": 4, "email": None}, ONE, TWO]),
        (lambda p: [*p, {"id": 4}], [ONE, TWO, {"id": 4}]),
        (lambda p: p[1:], [TWO]),
        (lambda p: [{**p[1], "email": "y"}], [{"id": 2, "email": "y", "phone": None}]),
    ],
)
async def test_what_was_left_out_stays_out_where_the_item_is_at_its_place(
    change: Any, patches: Any
) -> None:
    outcome = await edited(a_tool(list[Patch]), [ONE, TWO], change)
    assert isinstance(outcome, Completed), outcome
    assert [patch.model_dump(exclude_unset=True) for patch in GOT[0]] == patches


async def test_the_other_items_of_a_large_list_stay_what_they_were() -> None:
    many = [{"id": number, "phone": "1"} for number in range(300)]
    outcome = await edited(
        a_tool(list[Patch]), many, lambda shown: [*shown[:99], {"id": -1}, *shown[101:]]
    )
    assert isinstance(outcome, Completed), outcome
    patches = [patch.model_dump(exclude_unset=True) for patch in GOT[0]]
    assert patches == [*many[:99], {"id": -1}, *many[101:]]


class Tagged(BaseModel):
    id: int
    tags: list[str] | dict[str, str] | str | None = None
    note: str = "n"


@pytest.mark.parametrize(
    ("before", "after"),
    list(itertools.permutations([["a"], {"a": "b"}, "a", None], 2)),
)
async def test_a_part_may_become_one_of_another_kind(before: Any, after: Any) -> None:
    sent = [{"id": 1, "tags": before}, {"id": 2, "tags": ["c"]}]
    outcome = await edited(
        a_tool(list[Tagged]), sent, lambda shown: [{**shown[0], "tags": after}, shown[1]]
    )
    assert isinstance(outcome, Completed), outcome
    first, second = (item.model_dump(exclude_unset=True) for item in GOT[0])
    assert (first, second) == ({"id": 1, "tags": after}, sent[1])


# --- defaults that depend on what was edited, and what validators make of many parts


def filled(sent: Any) -> Any:
    """What a default is depends on another field."""
    if isinstance(sent, dict):
        large = sent["cents"] > 100
        return {"limits": {"day": 9 if large else 1}, "unit": "E" if large else "c", **sent}
    return sent


class Mark:
    """It has no JSON."""


class Paid(BaseModel):
    cents: int
    limits: dict[str, int] = {}
    unit: str = ""
    mark: Any = Mark()
    fill = model_validator(mode="before")(filled)


async def test_a_default_that_would_be_another_one_now_is_sent_as_it_was_shown() -> None:
    """What is shown by its type alone is no value to send."""
    outcome = await edited(a_tool(Paid), {"cents": 5}, lambda shown: {**shown, "cents": 500})
    assert isinstance(outcome, Completed), outcome
    paid = GOT[0]
    assert (paid.cents, paid.limits, paid.unit) == (500, {"day": 1}, "c")
    assert isinstance(paid.mark, Mark)


def counted(texts: list[str]) -> list[str]:
    return [f"{text}{len(texts)}" for text in texts]


Swapped = Annotated[tuple[str, str], AfterValidator(lambda pair: (pair[1], pair[0]))]
Tag = Annotated[str, AfterValidator(str.lower)]
ODD = {
    "counted": (Annotated[list[str], AfterValidator(counted)], ["a", "b"]),
    "with one more": (Annotated[list[int], AfterValidator(lambda items: [*items, 1])], [5, 6]),
    "swapped": (list[Swapped], [["a", "b"], ["c", "d"]]),
    "added to": (set[Annotated[int, AfterValidator(lambda number: number + 1)]], [1, 2]),
    "stamped": (Annotated[list[str], AfterValidator(lambda b: [f"{b[0][:-1]}, 1]"])], ["[0]"]),
}
"""Hints whose validators make another value of whatever they read, of several parts at once."""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("counted", lambda shown: [*shown, "x"]),
        ("swapped", lambda shown: [["x", shown[0][1]], shown[1]]),
        ("added to", lambda shown: [*shown, 9]),
    ],
)
async def test_what_would_be_another_value_does_not_run(name: str, change: Any) -> None:
    hint, sent = ODD[name]
    outcome = await edited(a_tool(hint), sent, change)
    assert is_refused(outcome), GOT
    assert "would change a value again" in outcome.error.message


@pytest.mark.parametrize("edits", ODD)
@pytest.mark.parametrize("left", ODD)
async def test_what_is_not_edited_runs_as_it_was_shown_or_not_at_all(edits: str, left: str) -> None:
    def keep(x: Any, y: Any) -> str:
        """Keep them."""
        GOT.append((x, y))
        return "kept"

    (hint, sent), (other, as_sent) = ODD[edits], ODD[left]
    keep.__annotations__ = {"x": hint, "y": other, "return": str}
    shown: dict[str, Any] = {}

    async def approver(request: ApprovalRequest) -> Answer:
        shown.update(request.arguments)
        turned = shown["x"][::-1]
        return Approve(by="grace", arguments={"x": turned, "y": shown["y"]})

    GOT.clear()
    runner = ToolRunner([tool(visible=ALL, safe=False)(keep)], approver=approver)
    outcome = await runner.exec(ToolCall("c", "keep", json.dumps({"x": sent, "y": as_sent})))
    if isinstance(outcome, Failed):
        assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        assert GOT == []
    else:
        y = GOT[0][1]
        assert json.loads(json.dumps(sorted(y) if isinstance(y, set) else y)) == shown["y"]


class Event(BaseModel):
    name: Annotated[str, AfterValidator(str.upper)]
    n: int = 1


@dataclasses.dataclass(frozen=True)
class Article:
    article: int
    unit: str = "piece"


Events = Annotated[list[Event], AfterValidator(lambda them: sorted(them, key=lambda e: e.name))]
EVENTS = [{"name": "b", "n": 2}, {"name": "A"}]
ARTICLES = [{"article": 1}, {"article": 2, "unit": "kg"}]
SHOWN_ARTICLES = Article(1), Article(2, "kg")


@pytest.mark.parametrize(
    ("hint", "sent", "change", "got"),
    [
        (set[Tag], ["Bug", "UI", "api"], lambda x: x[:1] + x[2:], {"api", "ui"}),
        (set[Tag], ["Bug", "UI", "api"], lambda x: ["zz", *x[1:]], {"bug", "ui", "zz"}),
        (set[Tag], ["UI", "Bug", "API"], lambda x: ["zz", *x[1:]], {"bug", "ui", "zz"}),
        (
            frozenset[Article],
            ARTICLES,
            lambda x: [{"article": 3}, x[1]],
            {Article(2, "kg"), Article(3)},
        ),
        (frozenset[Article], ARTICLES, lambda x: [x[0], {"article": 0}], {Article(1), Article(0)}),
        (
            frozenset[Article],
            ARTICLES,
            lambda x: [{"article": 3}, *x],
            {*SHOWN_ARTICLES, Article(3)},
        ),
        (
            frozenset[Article],
            ARTICLES,
            lambda x: [*x, {"article": 0}],
            {*SHOWN_ARTICLES, Article(0)},
        ),
        (Events, EVENTS, lambda x: [x[0], {**x[1], "n": 7}], [("A", 1), ("B", 7)]),
        (Events, EVENTS, lambda x: x[1:], [("B", 2)]),
        (Events, EVENTS, lambda x: [*x, {"name": "C"}], [("A", 1), ("B", 2), ("C", 1)]),
    ],
)
async def test_what_comes_out_as_it_was_written_runs(
    hint: Any, sent: Any, change: Any, got: Any
) -> None:
    """What was sent for which item cannot be told where a validator, or a set, has moved it."""
    outcome = await edited(a_tool(hint), sent, change)
    assert isinstance(outcome, Completed), outcome
    found = GOT[0]
    assert (
        found if isinstance(found, set | frozenset) else [(one.name, one.n) for one in found]
    ) == got


# --- what factories made


TAKEN: list[int] = []
NOT_GIVEN = object()


def taken() -> int:
    TAKEN.append(1)
    return 1000 + len(TAKEN)


def a_list() -> list[int]:
    return [taken()]


class Read(BaseModel):
    model_config = ConfigDict(validate_default=True)
    k: str
    ids: list[int] = Field(default_factory=a_list)


class Stocked(BaseModel):
    id: int
    note: str = "n"
    ref: int = Field(default_factory=taken)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: [{"id": 1}, *x[1:]],
        lambda x: [{"id": 9}, *x],
        lambda x: [{"id": 9}, x[1], x[2]],
        lambda x: [{**x[0], "note": "m"}, *x[1:]],
        lambda x: x[1:],
        lambda x: x[:-1],
        lambda x: [x[0], x[2]],
        lambda x: [*x[:1], {"id": 9}, *x[1:]],
    ],
)
async def test_a_change_of_one_item_is_none_of_the_others(change: Any) -> None:
    shown: list[Any] = []

    def noted(items: Any) -> Any:
        shown.extend(copy.deepcopy(items))
        return change(items)

    TAKEN.clear()
    outcome = await edited(a_tool(list[Stocked]), [{"id": 1}, {"id": 2}, {"id": 3}], noted)
    assert isinstance(outcome, Completed), outcome
    refs = {item["id"]: item["ref"] for item in shown}
    edit = change(copy.deepcopy(shown))
    assert len(edit) == len(GOT[0])
    for row, item in zip(GOT[0], edit, strict=True):
        assert row.model_fields_set == ({"id"} if item.get("note") != "m" else {"id", "note"})
        assert (row.ref == refs.get(row.id)) == ("ref" in item)
    assert len(TAKEN) == 3 + sum("ref" not in item for item in edit)


class Kept(BaseModel):
    name: str
    id: int = Field(default_factory=taken)
    path: str = Field(default_factory=lambda data: f"/files/{data['id']}")


async def test_a_new_item_has_what_is_made_of_its_own_values() -> None:
    TAKEN.clear()
    sent = [{"name": "a", "path": "/mine"}, {"name": "b"}]
    outcome = await edited(a_tool(list[Kept]), sent, lambda x: [{"name": "new"}, *x])
    assert isinstance(outcome, Completed), outcome
    new, a, b = GOT[0]
    assert (a.path, b.path) == ("/mine", f"/files/{b.id}")
    assert new.path == f"/files/{new.id}"
    assert len({new.id, a.id, b.id}) == 3


class Around(BaseModel):
    base: Stocked = Stocked(id=0)
    n: int = 1


async def test_what_a_default_holds_is_nobody_elses() -> None:
    """The reference within a constant default was made when its class was: no factory of a call's."""
    raised: list[Any] = []
    subject = a_tool(list[Around])

    async def approver(request: ApprovalRequest) -> Answer:
        items: Any = request.arguments["x"]
        return Approve(by="grace", arguments={"x": [{"n": items[0]["n"]}, items[1]], "memo": "m"})

    GOT.clear()
    runner = ToolRunner(
        [subject], approver=approver, on_exception=lambda *told: raised.append(told)
    )
    call = ToolCall("c", "keep", json.dumps({"x": [{"base": {"id": 7}}, {}]}))
    outcome = await runner.exec(call)
    assert isinstance(outcome, Completed), outcome
    assert (raised, GOT[0][1].model_fields_set) == ([], set())


class Named(BaseModel):
    k: str
    ref: str = Field(default_factory=lambda data: f"{data['k']}-{taken()}")


class Free(BaseModel):
    k: str
    limit: Any = NOT_GIVEN
    n: int = Field(default_factory=taken)


A_AND_B = [{"k": "a"}, {"k": "b"}]


@pytest.mark.parametrize("hint", [Read, Named, Free])
@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda x: [{"k": "n"}, *x], "nab"),
        (lambda x: [*x, {"k": "n"}], "abn"),
        (lambda x: x[::-1], "ba"),
        (lambda x: x[1:], "b"),
        (lambda x: [{**x[0], "k": "z"}, x[1]], "zb"),
    ],
)
async def test_a_value_that_a_factory_made_stays_with_its_item(
    hint: Any, change: Any, keys: str
) -> None:
    shown: list[Any] = []

    def noted(items: Any) -> Any:
        shown.extend(copy.deepcopy(items))
        return change(items)

    TAKEN.clear()
    outcome = await edited(a_tool(list[hint]), A_AND_B, noted)
    assert isinstance(outcome, Completed), outcome
    got = GOT[0]
    assert "".join(one.k for one in got) == keys
    own = {item["k"]: item for item in shown} | {"z": shown[0]}
    for one in got:
        name = next(name for name in ("ids", "ref", "n") if hasattr(one, name))
        if one.k in own:
            assert getattr(one, name) == own[one.k][name]
        else:
            assert getattr(one, name) not in [item[name] for item in shown]
    assert len(TAKEN) == 2 + ("n" in keys) * (2 if hint is Named and keys[0] == "n" else 1)


async def test_a_new_item_has_none_of_the_ids_that_were_made_for_another() -> None:
    shown: list[Any] = []

    def replaced(lines: Any) -> Any:
        shown.extend(lines)
        return [{"s": "x", "q": 7, "note": "y"}]

    outcome = await edited(a_tool(list[Row]), [{"s": "a"}], replaced)
    assert isinstance(outcome, Completed), outcome
    assert GOT[0][0].id not in ("", shown[0]["id"])


# --- what has no JSON: its mark stands for it at its place, and nowhere else


LOCKS: list[Mark] = []


def a_lock() -> Mark:
    LOCKS.append(Mark())
    return LOCKS[-1]


class Job(BaseModel):
    k: str
    days: int = 30
    lock: Any = Field(default_factory=a_lock)


def plus_one(number: int) -> int:
    return number + 1


class Raised(BaseModel):
    model_config = ConfigDict(validate_default=True)
    k: str
    n: Annotated[int, AfterValidator(plus_one)] = Field(default_factory=taken)


NAMED = {"x": {"k": "a"}, "y": {"k": "b"}}
FREE_TEXT = Annotated[list[Free], Json()]


@pytest.mark.parametrize(
    ("hint", "sent", "change", "locks"),
    [
        (dict[str, Job], NAMED, lambda x: {**x, "x": {**x["x"], "k": "n", "days": 7}}, [0, 1]),
        (dict[str, Job], NAMED, lambda x: {"z": x["x"], "y": x["y"]}, REFUSED),
        (dict[str, Job], NAMED, lambda x: {"z": {"k": "n"}, "y": x["y"]}, [1, 2]),
        (dict[str, Job], NAMED, lambda x: {"y": x["y"]}, [1]),
        (list[Job], A_AND_B, lambda x: [{**x[0], "days": 7}, x[1]], [0, 1]),
        (list[Job], A_AND_B, lambda x: [*x, {"k": "n"}], [0, 1, 2]),
        (list[Job], A_AND_B, lambda x: x[:1], [0]),
        (list[Job], A_AND_B, lambda x: [{"k": "n"}, *x], [2, 0, 1]),
        (list[Job], A_AND_B, lambda x: x[1:], [1]),
        (list[Job], A_AND_B, lambda x: x[::-1], [0, 1]),  # a mark stands for what was at its place
        (list[Job], A_AND_B, lambda x: [x[1], x[0], {"k": "n"}], REFUSED),
        (list[Job], A_AND_B, lambda x: [*x, x[0]], REFUSED),
        (list[Job], A_AND_B, lambda x: [*x, {"k": "n", "lock": x[0]["lock"]}], REFUSED),
        (list[Job], A_AND_B, lambda x: [{"k": x[1]["k"]}], [2]),
        (list[Free], A_AND_B, lambda x: [*x, {"k": "c", "limit": x[0]["limit"]}], REFUSED),
        (list[Raised], A_AND_B, lambda x: [{"k": "n"}, *x], REFUSED),  # raised again
        (FREE_TEXT, json.dumps(A_AND_B), lambda x: json.dumps(json.loads(x)[::-1]), REFUSED),
    ],
)  # fmt: skip
async def test_what_has_no_json_stays_at_its_place_or_nothing_runs(
    hint: Any, sent: Any, change: Any, locks: Any
) -> None:
    LOCKS.clear()
    outcome = await edited(a_tool(hint), sent, change)
    if locks is REFUSED:
        assert is_refused(outcome), GOT
        return
    assert isinstance(outcome, Completed), outcome
    jobs = GOT[0] if isinstance(GOT[0], list) else [GOT[0][name] for name in sorted(GOT[0])]
    assert [LOCKS.index(job.lock) for job in jobs] == locks


async def test_what_is_shown_by_its_type_may_be_a_value() -> None:
    outcome = await edited(a_tool(Any), {"default": "object"}, lambda x: [x, x])
    assert isinstance(outcome, Completed), outcome
    assert GOT == [[{"default": "object"}] * 2]


# Notes of an edit that did not fit are about arguments that the record does not show.


@each_row(
    ("sent", "edit", "notes"),
    [
        ({"cents": 5}, {"cents": "x", "to": "eve"}, ()),
        ({"cents": 5}, {"cents": 6, "to": "eve"}, ("undeclared:1",)),
        ({"cents": 5, "to": "ada"}, {"cents": "x"}, ("undeclared:1",)),
        ({"cents": 5, "to": "ada"}, {"cents": 6}, ()),
        ({"cents": 5, "to": "ada"}, {"cents": "x", "to": "eve", "at": 1}, ("undeclared:1",)),
    ],
)
async def test_notes_are_on_the_arguments_that_the_record_shows(
    sent: dict[str, Any], edit: dict[str, Any], notes: tuple[str, ...]
) -> None:
    async def approver(_request: ApprovalRequest) -> Answer:
        return Approve("ada", edit)

    cents = {"cents": {"type": "integer"}}
    schema = {"type": "object", "properties": cents, "additionalProperties": True}
    pay = {"name": "pay", "description": "Pay.", "input_schema": schema}
    catalog = Catalog.from_definitions(
        [pay], handlers={"pay": lambda **_given: "paid"}, marks={"pay": {"requires_approval": True}}
    )
    runner = ToolRunner(catalog, approver=approver)
    outcome = await runner.exec(ToolCall("1", "pay", json.dumps(sent)))
    fits = edit["cents"] != "x"
    assert outcome.record.status == ("completed" if fits else "failed")
    assert outcome.record.arguments == {"cents": edit["cents"] if fits else sent["cents"]}
    assert (outcome.record.edited, outcome.record.notes) == (True, notes)


# How a call came is a fact of the call, whatever somebody puts in place of its arguments.


@each_row(
    ("sent", "read"),
    [
        ('{"order": 7,}', ("sanitizer",)),
        ("{order: 7} // one", ("sanitizer",)),
        ("{'order': 7}", ("single_quotes",)),
        ('"{\\"order\\": 7}"', ("double_encoded",)),
        ('{"order": 7}', ()),
    ],
)
async def test_how_a_call_came_is_in_its_record_whatever_the_answer(
    sent: str, read: tuple[str, ...]
) -> None:
    def pay(order: int, cents: int = 5) -> str:
        """Pay."""
        return f"{order}/{cents}"

    answers: list[Answer] = [
        Approve("ada"),
        Approve("ada", {"order": 7, "cents": 9}),
        Approve("ada", {"order": 7, "cents": "nine"}),
        Refuse("eve"),
    ]
    told = []
    for answer in answers:

        async def approver(_request: ApprovalRequest, said: Answer = answer) -> Answer:
            return said

        runner = ToolRunner(
            [tool(pay, visible=ALL, requires_approval=True)],
            approver=approver,
            repairer=Sanitizer(),
        )
        told.append((await runner.exec(ToolCall("1", "pay", sent))).record)
    for record in told:
        assert record.repaired == bool(record.repaired_by)
        assert (*([record.repaired_by] if record.repaired else []), *record.notes) == read
    assert [record.status for record in told] == ["completed", "completed", "failed", "failed"]
