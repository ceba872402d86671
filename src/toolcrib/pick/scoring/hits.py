"""`Hits`: what a scorer found in a catalog, in columns, and how the best of them are taken.

Rule: no object is made for a tool that is not picked, so a catalog of 100,000 costs what its best few
cost and a pass of C over numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from math import fsum, isfinite
from typing import Any, NamedTuple


class Hits(NamedTuple):
    """Weights of tools, as a scorer measures: any finite numbers, more is better.

    `values[i]` is that of the tool at `positions[i]`, or of tool `i` where `positions` is None; a tool
    that is not named does not fit at all. Both may be lists or arrays of numpy. `calibrated` turns a
    weight into a score in 0..1, and never turns an order round.
    """

    values: Sequence[float]
    positions: Sequence[int] | None
    calibrated: Callable[[float], float]

    def are_finite(self) -> bool:
        """Whether every weight is a number: one that is not would make any order of them wrong."""
        values: Any = self.values
        return isfinite(values.sum() if hasattr(values, "sum") else fsum(values))

    def best(self, count: int) -> list[tuple[int, float]]:
        """(position, weight) of the best `count`, best first, equal ones by position."""
        values: Any = self.values
        if len(values) > count and hasattr(values, "partition"):
            rows = _least_needed(values, count)
            found = [(self._position(row), float(values[row])) for row in rows]
        else:
            places = range(len(values)) if self.positions is None else self.positions
            found = [(int(p), float(v)) for p, v in zip(places, values, strict=True)]
        return nsmallest(count, found, key=lambda hit: (-hit[1], hit[0]))

    def _position(self, row: int) -> int:
        return row if self.positions is None else int(self.positions[row])


def _least_needed(values: Any, count: int) -> list[int]:
    """Rows of an array that hold its best `count`: down to the last of them, and all equal to it."""
    last = values.copy()
    last.partition(len(values) - count)
    rows: list[int] = (values >= last[len(values) - count]).nonzero()[0].tolist()
    return rows
