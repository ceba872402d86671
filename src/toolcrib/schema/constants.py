"""What it costs to compare a value with the constants of a schema, in units of 10 ns.

A validator looks up texts in an `enum` of texts, and whole numbers in one of whole numbers. It compares
anything else with one constant after the other: numbers with a fraction as exact fractions, which takes
microseconds, and ten times that for very small or very large ones; objects and arrays node by node.
"""

from __future__ import annotations

from math import frexp
from typing import Any, NamedTuple

LISTED = ("enum", "const")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COMPARED = frozenset((*LISTED, *BOUNDS))

_STEP = 2  # for a constant of any kind
_INTEGER = 30
_CONTAINER = 40  # for each node of the value
_NUMBER = 300
EXTREME = 32  # a number far from 1 takes so many times as long
_FAR = 60  # powers of two
_EXACT = 1 << 53  # beyond it, an integer is compared as a fraction is


def is_extreme(number: float) -> bool:
    """Return whether a number takes long to compare, as a fraction of very many digits."""
    return number.__class__ is float and abs(frexp(number)[1]) > _FAR


class Constants(NamedTuple):
    """The constants of one keyword, how many are compared one by one, and what that costs.

    `integer` is the cost for a whole number, `number` that for any other one, `extreme` that for one
    far from 1, and `node` that for each node of an object or an array. What is looked up is free.
    """

    listed: int = 0
    integer: int = 0
    number: int = 0
    extreme: int = 0
    node: int = 0

    @property
    def most(self) -> int:
        """Return the largest cost for one node of a value; an extreme number is `EXTREME` nodes."""
        return _STEP * self.listed + max(self.integer, self.number, self.node)

    def cost(self, part: Any, weight: int) -> int:
        """Return the cost for one part of a value, which weighs as much as `weight` nodes."""
        scan = _STEP * self.listed
        if part is None or part.__class__ is bool:
            return scan
        if isinstance(part, str):
            return scan * weight
        if isinstance(part, dict | list):
            return scan + self.node * weight
        if is_extreme(part):
            return scan + self.extreme
        return scan + (self.integer if _is_whole(part) else self.number)


_FREE = Constants()


def constants(keyword: str, said: Any) -> Constants:
    """Return what one keyword of a schema has to compare a value with."""
    if keyword not in COMPARED:
        return _FREE
    if keyword in BOUNDS:
        if said.__class__ is not float:  # of other types: data of an unknown keyword
            return _FREE
        return _counted([said])
    listed = said if keyword == "enum" and said.__class__ is list else [said]
    if len(listed) > 1 and all(one is None or one.__class__ is str for one in listed):
        return _FREE
    if all(one is None or _is_whole(one) for one in listed):
        return _counted(listed)._replace(listed=0, integer=0)
    return _counted(listed)


def _counted(listed: list[Any]) -> Constants:
    integer = number = extreme = node = 0
    for one in listed:
        if isinstance(one, dict | list):
            node += max(_CONTAINER, *map(_of_number, _leaves(one)))
        elif (cost := _of_number(one)) > 0:
            integer += cost
            number += cost
            extreme += _NUMBER * EXTREME
    return Constants(len(listed), integer, number, extreme, node)


def _of_number(constant: Any) -> int:
    if constant.__class__ is int:
        return _INTEGER if _is_whole(constant) else _NUMBER
    if constant.__class__ is float:
        return _NUMBER * (EXTREME if is_extreme(constant) else 1)
    return 0


def _is_whole(value: Any) -> bool:
    return value.__class__ is int and -_EXACT <= value <= _EXACT


def _leaves(data: Any) -> list[Any]:
    found: list[Any] = [0]
    stack = [data]
    while stack:
        node = stack.pop()
        for child in node.values() if isinstance(node, dict) else node:
            (stack if isinstance(child, dict | list) else found).append(child)
    return found
