"""What an approver left as it was shown runs as it was shown, wherever it stands.

Each tool has texts that a validator marks (`a` becomes `a!`, and would become `a!!`), fields with
defaults and ids that a factory makes. Of random edits (items left out, added, moved, changed in part)
the expected result is known: a mark for each text that was written anew, none for the others. A seeded
sample runs with the other tests, 20,000 edits with TOOLCRIB_FUZZ=all.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import AfterValidator, BaseModel, Field, Json, model_validator
from samples import sample

from toolcrib import ALL, ApprovalRequest, Approve, Completed, Failed, ToolCall, ToolRunner, tool
from toolcrib.errors import ErrorCode
from toolcrib.tools import Tool
from toolcrib.values.decision import Answer

Marked = Annotated[str, AfterValidator(lambda text: f"{text}!")]
IDS = itertools.count()
SEEDS = 20_000
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
}


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


def marked(value: Any) -> Any:
    """Return what is read of a value that was written anew."""
    if isinstance(value, dict):
        texts = ("s", "note")
        return {k: f"{v}!" if k in texts else marked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [marked(item) for item in value]
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
            return {**item, "s": "x"}, {**item, "s": "x!"}
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
        pairs.insert(dice.randrange(len(pairs) + 1), ("new", new, marked(new)))
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
    sent = {f"k{at}": item for at, item in enumerate(items)} if name == "named" else items
    told: list[Any] = []

    def change(shown: Any) -> Any:
        told[:] = [shown, *edit_of(dice, shown, name)]
        return told[1]

    outcome = await edited(TOOLS[name], sent, change)
    if not isinstance(outcome, Completed):
        mismatch = outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        return REFUSED if mismatch else f"{seed} {name}: {outcome.error} after {told}"
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
    sent = dict(zip("bca", sent, strict=True)) if name == "named" else sent
    told: list[Any] = []

    def change(shown: Any) -> Any:
        told.append(shown)
        return shown

    outcome = await edited(TOOLS[name], sent, change)
    assert isinstance(outcome, Completed), outcome
    assert plain(GOT[0]) == told[0]


async def test_random_edits() -> None:
    """Of an item that has lost its id, in a list that has become shorter or longer, nobody can tell
    which one it was."""
    found = [await edit_at_random(seed) for seed in range(sample(SEEDS, part=50))]
    assert [each for each in found if each not in (None, REFUSED)] == []
    assert found.count(REFUSED) <= len(found) / 40


# --- single cases


@pytest.mark.parametrize(
    ("hint", "sent", "edit", "got"),
    [
        (Json[Line], '{"s": "a", "id": "i"}', '{"s":"x","id":"i"}', ("x!", 1, "n", "i")),
        (Pair, ["a"], ["a!"], ("a!", 1)),
        (Pair, ["a", 2], ["x", 2], ("x!", 2)),
        (set[int], [3, 1], [1, 5, 3], {1, 3, 5}),
        (list[list[Marked]], [["a"], ["b"]], [["b!", "x"], ["a!"]], [["b!", "x!"], ["a!"]]),
        (dict[str, Marked], {"k": "a"}, {"renamed": "a!"}, {"renamed": "a!"}),
    ],
)  # fmt: skip
async def test_other_hints(hint: Any, sent: Any, edit: Any, got: Any) -> None:
    outcome = await edited(a_tool(hint), sent, lambda _shown: edit)
    assert isinstance(outcome, Completed), outcome
    assert (tuple(plain(GOT[0]).values()) if isinstance(GOT[0], Line) else GOT[0]) == got


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


class Patch(BaseModel):
    id: int
    email: str | None = None
    phone: str | None = None


ONE, TWO = {"id": 1, "phone": "1"}, {"id": 2, "email": "x"}


@pytest.mark.parametrize(
    ("change", "patches"),
    [
        (lambda p: [{**p[1], "email": None}], [{"id": 2, "email": None}]),
        (lambda p: [p[0], {**p[1], "email": None}], [ONE, {"id": 2, "email": None}]),
        (lambda p: [{"id": 4, "email": None}, *p], [{"id": 4, "email": None}, ONE, TWO]),
    ],
)
async def test_what_is_written_is_set_though_it_is_a_default(change: Any, patches: Any) -> None:
    outcome = await edited(a_tool(list[Patch]), [ONE, TWO], change)
    assert isinstance(outcome, Completed), outcome
    assert [patch.model_dump(exclude_unset=True) for patch in GOT[0]] == patches


MANY = [{"id": number, "phone": "1"} for number in range(300)]


@pytest.mark.parametrize(
    "change",
    [
        lambda patches: [*patches[:0:-1], {**patches[0], "id": 1_000}],
        lambda patches: [{**patch, "id": patch["id"] + 1_000} for patch in patches],
    ],
    ids=["moved", "changed"],
)
async def test_of_many_items_each_is_found(change: Any) -> None:
    """What is the same is found, the last one is the one that is left, and where nothing was moved each
    is the one that was there."""
    outcome = await edited(a_tool(list[Patch]), MANY, change)
    assert isinstance(outcome, Completed), outcome
    patches = [patch.model_dump(exclude_unset=True) for patch in GOT[0]]
    assert patches == change(MANY)


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


async def test_a_new_item_has_none_of_the_ids_that_were_made_for_another() -> None:
    shown: list[Any] = []

    def replaced(lines: Any) -> Any:
        shown.extend(lines)
        return [{"s": "x", "q": 7, "note": "y"}]

    outcome = await edited(a_tool(list[Line]), [{"s": "a"}], replaced)
    assert isinstance(outcome, Completed), outcome
    assert GOT[0][0].id not in ("", shown[0]["id"])


async def test_what_was_shown_under_another_name_is_what_was_written() -> None:
    outcome = await edited(
        a_tool(list[Line]), [{"s": "a"}], lambda lines: [{**lines[0], "note": lines[0]["s"]}]
    )
    assert isinstance(outcome, Completed), outcome
    assert (GOT[0][0].s, GOT[0][0].note) == ("a!", "a!!")


LINE_TEXT = '{"s": "a", "note": "b"}'


@pytest.mark.parametrize(
    ("hint", "sent", "changes", "got"),
    [
        (Json[Line], LINE_TEXT, {"s": "x", "note": "y"}, {"s": "x!", "note": "y!"}),
        (Json[Line], LINE_TEXT, {"s": "x"}, None),  # the note would have another mark
        (Json[Line], LINE_TEXT, {"q": 7}, None),
        (Json[Line], '{"s": "a"}', {"s": "x"}, None),
        (Json[Order], f'{{"lines": [{LINE_TEXT}]}}', {"note": "y"}, None),
        (Json[Order], f'{{"lines": [{LINE_TEXT}], "note": "c"}}', {"lines": []}, None),
        (Json[Order], f'{{"lines": [{LINE_TEXT}]}}', {"lines": [], "note": "y"}, {"note": "y!"}),
    ],
)
async def test_what_stands_in_a_text_is_as_it_was_shown_or_does_not_run(
    hint: Any, sent: str, changes: Any, got: Any
) -> None:
    """Of a text nothing is sent again in part: what was left in it is read once more."""
    outcome = await edited(
        a_tool(hint), sent, lambda shown: json.dumps({**json.loads(shown), **changes})
    )
    if got is None:
        assert isinstance(outcome, Failed), GOT
        assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
        assert GOT == []
    else:
        assert isinstance(outcome, Completed), outcome
        assert has(plain(GOT[0]), got)


class Lists(BaseModel):
    a: list[Marked]
    b: list[Marked]
    flag: bool | int = True
    share: float = 1.0


@pytest.mark.parametrize(
    ("edit", "got"),
    [
        ({"b": ["q!", "p!"]}, {"a": ["p!"], "b": ["q!", "p!!"], "share": 2.0}),
        ({"flag": 1}, {"a": ["p!"], "b": ["q!"], "flag": 1, "share": 2.0}),
        ({"share": 1.0}, {"a": ["p!"], "b": ["q!"], "share": 1.0}),
    ],
)
async def test_a_value_is_what_was_shown_if_name_and_kind_are_the_same(edit: Any, got: Any) -> None:
    sent = {"a": ["p"], "b": ["q"], "share": 2.0}
    outcome = await edited(a_tool(Lists), sent, lambda shown: {**shown, **edit})
    assert isinstance(outcome, Completed), outcome
    assert repr(GOT[0].model_dump(exclude_unset=True)) == repr(got)


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


def as_text(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(("sent", "new"), [({"a": "b"}, {"a": "c"}), (["a"], ["c"])])
async def test_of_what_a_validator_made_one_text_nothing_is_known(sent: Any, new: Any) -> None:
    hint = Annotated[list[str] | dict[str, str] | str, AfterValidator(as_text)]
    outcome = await edited(a_tool(hint), sent, lambda _shown: new)
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH


def counted(texts: list[str]) -> list[str]:
    return [f"{text}{len(texts)}" for text in texts]


Swapped = Annotated[tuple[str, str], AfterValidator(lambda pair: (pair[1], pair[0]))]
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
        ("added to", lambda shown: [*shown, 1]),
    ],
)
async def test_what_would_be_another_value_does_not_run(name: str, change: Any) -> None:
    hint, sent = ODD[name]
    outcome = await edited(a_tool(hint), sent, change)
    assert isinstance(outcome, Failed), GOT
    assert outcome.error.code is ErrorCode.APPROVAL_MISMATCH
    assert "left as it was shown" in outcome.error.message
    assert GOT == []


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
