"""Names of test cases that are the same in every process: tests are dealt out by name."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """As it is written in code, shortened; without addresses, and with sets in a fixed order."""
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(named, value))) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(named, value)) + "]"
    text = value if isinstance(value, str) else ascii(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)[:50]
