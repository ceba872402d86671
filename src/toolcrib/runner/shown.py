"""What was shown of a call: its arguments, its defaults, and how an edit's parts map to them.

Rule: a part of an object keeps its place under its name. An item keeps its place in a list whose
length did not change. If the length changed, unchanged items at the beginning and the end keep
their places.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Final, TypeAlias

from toolcrib.hydration import added_to
from toolcrib.runner.same import SameJson
from toolcrib.schema.references import read_text
from toolcrib.values.call import Hydrated

Steps: TypeAlias = tuple[str | int, ...]
ABSENT: Final[Any] = object()


class Shown:
    """The arguments of a call as they were shown.

    `origins` maps the places of its defaults to what a factory made there, or None without one;
    `above` holds these places and all places around them. What is in `whole` is left or written as
    a whole.
    """

    def __init__(self, hydrated: Hydrated) -> None:
        added = added_to(hydrated)
        self.arguments = hydrated.arguments
        self.sent = hydrated.building.sent
        self.given = added.given
        self.asked = added.asked
        self.origins = added.origins
        self.above = {at[:depth] for at in added.origins for depth in range(len(at) + 1)}
        self.whole = added.sets.union(hydrated.building.normalised)
        self.same = SameJson()

    def at(self, place: Steps) -> Any:
        """Return what was shown at a place."""
        return reduce(part_at, place, self.arguments)

    def places(self, edited: Any, shown: Any, at: Steps | None) -> dict[Any, Any]:
        """Map the steps in an edit to the old steps of the parts that kept their places.

        The object or list was shown at `at`. A list that ends in a default there is a tuple, whose
        items keep their places.
        """
        if isinstance(edited, dict):
            return {name: name for name in edited}
        if not isinstance(shown, list):
            return {}
        is_tuple = at is not None and (*at, len(shown) - 1) in self.origins
        shorter, more = min(len(edited), len(shown)), len(shown) - len(edited)
        if is_tuple or not more:
            return {index: index for index in range(shorter)}
        head = 0
        while head < shorter and self.same(edited[head], shown[head]):
            head += 1
        tail = len(edited)
        while tail > max(head, head - more) and self.same(edited[tail - 1], shown[tail - 1 + more]):
            tail -= 1
        moved = {index: index + more for index in range(tail, len(edited))}
        return {index: index for index in range(head)} | moved


def have_parts(one: Any, other: Any) -> bool:
    """Return whether both are objects, or both are lists."""
    return isinstance(one, dict | list) and isinstance(other, one.__class__)


def steps_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of an object or a list with their names or indexes."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def part_at(value: Any, step: Any) -> Any:
    """Return a part of an object or a list; `ABSENT` if there is none."""
    try:
        return value[step]
    except (LookupError, TypeError):
        return ABSENT


def json_in(text: Any) -> Any:
    """Return the object or the list that a string holds as JSON, if it does."""
    try:
        found = read_text(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
