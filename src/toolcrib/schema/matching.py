"""How long a value's texts take to be matched with a schema's patterns; it is told before they are.

The engine never goes back in a text, and yet takes time in proportion to the text and to the pattern:
one large pattern could hold the process for minutes over a text of a megabyte.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from itertools import chain
from typing import Any

import jsonschema_rs

from toolcrib.schema.effort import pairs
from toolcrib.schema.guard import Inspected
from toolcrib.schema.references import References

# Bytes of text times bytes of compiled patterns. At the worst measured, 0.15 ns for each, it is 1.8 s.
MAX_MATCHING = 12_000_000_000
MAX_PAIRS = 200_000  # of a subschema and a part of the value, while that is counted
LARGEST_PATTERN = 5 << 19  # bytes; `^.{1,2400}$` is as large
_SIZES: tuple[int, ...] = tuple(LARGEST_PATTERN * 8**step // 10**step for step in range(30, -1, -1))


def matchable(inspected: Inspected, schema: Any, value: Any) -> bool:
    """Whether matching a value's texts with the schema's patterns takes at most MAX_MATCHING steps.

    Bounds that are quick to tell come first: they settle all but long texts.
    """
    work = _text_bytes(value) * inspected.matches
    if work * LARGEST_PATTERN <= MAX_MATCHING:
        return True
    if work * max(map(pattern_bytes, inspected.patterns)) <= MAX_MATCHING:
        return True
    work = 0
    met = chain([(schema, value)], pairs(References(schema), schema, value))
    for count, (node, part) in enumerate(met):
        work += _matching(node, part)
        if work > MAX_MATCHING or count > MAX_PAIRS:
            return False
    return True


@lru_cache(maxsize=4096)
def pattern_bytes(pattern: str) -> int:
    """What a pattern takes when it is compiled, as the engine counts it; up to a quarter more."""
    found = bisect_left(_SIZES, True, key=lambda size: _compiles(pattern, size))
    return _SIZES[min(found, len(_SIZES) - 1)]


def _compiles(pattern: str, size: int) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions(size_limit=size)
        )
    except jsonschema_rs.ValidationError:
        return False
    return True


def _matching(node: Any, part: Any) -> int:
    if not isinstance(node, dict):
        return 0
    if isinstance(part, str) and "pattern" in node:
        return _bytes(part) * pattern_bytes(node["pattern"])
    if isinstance(part, dict) and "patternProperties" in node:
        return sum(map(_bytes, part)) * sum(map(pattern_bytes, node["patternProperties"]))
    return 0


def _text_bytes(value: Any) -> int:
    """Those of all texts and keys together."""
    total = 0
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            total += _bytes(node)
        elif isinstance(node, dict):
            stack += node
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return total


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
