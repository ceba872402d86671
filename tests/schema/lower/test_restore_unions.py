"""Below a union a null is taken away only where what is left is the alternative that was meant.

The schemas are unions of closed objects, in one another to a depth of three; what is sent for one is
made for a path through them that is known, with all properties that the view requires.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from samples import sample

from toolcrib.schema.lower import ViewRestorer
from toolcrib.schema.validator import JsonSchemaValidator

Json = dict[str, Any]
_DEPTH = 3
_LEAVES: tuple[tuple[Json, Any], ...] = (
    ({"type": "integer"}, 1),
    ({"type": "integer", "default": 0}, 1),
    ({"type": "number", "default": 0}, 1),
    ({"type": "string", "default": "x"}, "y"),
    ({"type": ["integer", "null"]}, 1),
    ({"type": ["string", "null"], "default": "x"}, "y"),
)


class Meant:
    """A union, the alternative of it that was meant, and what was meant below."""

    def __init__(self, branches: list[Json], branch: Json, below: dict[str, Meant]) -> None:
        self.branches = branches
        self.branch = branch
        self.below = below


@st.composite
def unions(draw: Any, depth: int = _DEPTH) -> tuple[Json, Any, Meant]:
    """A union, a value for its view, and the way through it that the value was made for."""
    made = [draw(_objects(depth)) for _ in range(draw(st.integers(2, 3)))]
    branches = [schema for schema, _, _ in made]
    branch, value, below = draw(st.sampled_from(made))
    return {"anyOf": branches}, value, Meant(branches, branch, below)


@st.composite
def _objects(draw: Any, depth: int) -> tuple[Json, Json, dict[str, Meant]]:
    properties: Json = {}
    value: Json = {}
    below: dict[str, Meant] = {}
    required = []
    for name in draw(st.lists(st.sampled_from("ab"), unique=True, min_size=1)):
        if depth > 1 and draw(st.booleans()):
            properties[name], value[name], below[name] = draw(unions(depth - 1))
        else:
            properties[name], value[name] = draw(st.sampled_from(_LEAVES))
        if draw(st.booleans()):
            required.append(name)
        elif draw(st.booleans()):
            value[name] = None
            below.pop(name, None)
    closed = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object"} | closed, value, below


def misread(meant: Meant, sent: Any, back: Any) -> Iterator[tuple[Json, Any]]:
    """Yield the alternatives that a changed value fits, besides the one that was meant."""
    if sent == back:
        return
    for branch in meant.branches:
        if branch != meant.branch and JsonSchemaValidator(branch).is_valid(back):
            yield branch, back
    for name, below in meant.below.items():
        yield from misread(below, sent[name], back[name])


def readings(schema: Json, value: Any) -> list[Any]:
    """Return what may have been meant by a value for the view, once for each way through the unions."""
    if "anyOf" in schema:
        return [one for branch in schema["anyOf"] for one in readings(branch, value)]
    if "properties" not in schema:
        return [value] if JsonSchemaValidator(schema).is_valid(value) else []
    if not isinstance(value, dict) or value.keys() != schema["properties"].keys():
        return []
    found: list[Json] = [{}]
    for name, part in schema["properties"].items():
        meant = [{name: one} for one in readings(part, value[name])]
        if value[name] is None and name not in schema["required"]:
            meant = meant or [{}]
        found = [one | other for one in found for other in meant]
    return found


def fitting(schema: Json, value: Any) -> int:
    """Return in how many ways a value fits a schema, by the unions in it."""
    if "anyOf" in schema:
        return sum(fitting(branch, value) for branch in schema["anyOf"])
    if not JsonSchemaValidator(schema).is_valid(value):
        return 0
    ways = 1
    for name, part in schema.get("properties", {}).items():
        if name in value:
            ways *= fitting(part, value[name])
    return ways


def unfilled(sent: Any, back: Any) -> Any:
    """Return what came back without the defaults that stand where a null was sent."""
    if not isinstance(back, dict):
        return back
    kept = {name: part for name, part in back.items() if sent[name] is not None or part is None}
    return {name: unfilled(sent[name], part) for name, part in kept.items()}


@given(made=unions())
@settings(deadline=None, max_examples=sample(400))
def test_what_was_sent_for_one_alternative_never_becomes_another(
    made: tuple[Json, Any, Meant],
) -> None:
    union, value, meant = made
    schema = {"type": "object", "properties": {"p": union}, "required": ["p"]}
    back = ViewRestorer(json.dumps(schema)).restore({"p": value})
    if not JsonSchemaValidator(schema).is_valid(back):
        event("refused")
        return
    event("as it was sent" if back["p"] == value else "restored")
    assert list(misread(meant, value, back["p"])) == []
    if back["p"] != value:
        possible = readings(union, value)
        assert all(one == possible[0] for one in possible)
        assert unfilled(value, back["p"]) == possible[0]


@given(made=unions())
@settings(deadline=None, max_examples=sample(400))
def test_what_can_mean_one_thing_only_is_taken(made: tuple[Json, Any, Meant]) -> None:
    union, value, _ = made
    meant = readings(union, value)
    if len(meant) != 1 or fitting(union, meant[0]) != 1:
        return
    event("taken")
    schema = {"type": "object", "properties": {"p": union}, "required": ["p"]}
    assert ViewRestorer(json.dumps(schema)).restore({"p": value}) == {"p": meant[0]}
