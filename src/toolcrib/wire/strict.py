"""How much of strictness one request may hold, where a provider limits that.

Tools are taken in their order; one that would go over a limit is sent without `strict`, since the
provider would refuse the whole request.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec


class StrictLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the strict tools of one request may hold together.

    `optional` counts properties that are not required, `unions` parts with `anyOf` or a list of types.
    """

    tools: int
    optional: int
    unions: int


class Weight(NamedTuple):
    """What one view adds to the sums of its request."""

    tools: int
    optional: int
    unions: int


_WHAT = ("strict tools", "optional properties of strict tools", "unions in strict tools")


class Allowance:
    """What is left for the further tools of one request."""

    def __init__(self, limits: StrictLimits) -> None:
        self._limits = (limits.tools, limits.optional, limits.unions)
        self._spent = Weight(0, 0, 0)

    def refusal(self, view: str) -> str | None:
        """Why a view, as JSON text, cannot be strict beside those before it; None once it is in."""
        total = Weight(*map(sum, zip(self._spent, weight(view), strict=True)))
        for most, count, what in zip(self._limits, total, _WHAT, strict=True):
            if count > most:
                return f"a request takes at most {most} {what}, and with this one it had {count}"
        self._spent = total
        return None


@lru_cache(maxsize=1024)
def weight(view: str) -> Weight:
    """The weight of a view, which refers to nothing."""
    optional = unions = 0
    stack: list[Any] = [json.loads(view)]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        properties = part.get("properties", {})
        optional += len(properties.keys() - set(part.get("required", ())))
        unions += "anyOf" in part or isinstance(part.get("type"), list)
        stack += [*properties.values(), *part.get("anyOf", ()), part.get("items")]
    return Weight(1, optional, unions)
