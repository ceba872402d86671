"""Dictionaries that remember: those entries stay that were put in last."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def trim(known: dict[K, V], size: int) -> None:
    """Take out what was put in first, until there are `size`; another thread may do the same."""
    for old in list(known)[: max(0, len(known) - size)]:
        known.pop(old, None)
