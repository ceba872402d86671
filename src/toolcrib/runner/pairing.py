"""Which part of an object or a list is which part of what it was. Equal parts have one number.

Rule: what is the same is the one at its place, else one that was moved or copied; of what is not the
same, an item of a list is the one between the same two neighbours, if as many are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any


def pairs(
    now: Mapping[Any, int],
    before: Mapping[Any, int],
    may_move: Callable[[Any, Any], bool],
    *,
    is_list: bool,
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Match the parts of an object or a list that are as they were shown: those that are there once,
    where they stood or where they were moved to, and copies of them."""
    stayed = _in_place(now, before, is_list=is_list)
    kept = set(stayed.values())
    free: dict[int, deque[Any]] = {}
    for source, number in before.items():
        if source not in kept:
            free.setdefault(number, deque()).append(source)
    some = {number: source for source, number in before.items()}
    moved, copied = dict[Any, Any](), dict[Any, Any]()
    for step, number in now.items():
        sources = free.get(number)
        source = sources[0] if sources else some.get(number)
        if step in stayed or source is None or not may_move(step, source):
            continue
        if sources:
            moved[step] = sources.popleft()
        else:
            copied[step] = source
    return stayed | moved, copied


def _in_place(
    now: Mapping[Any, int], before: Mapping[Any, int], *, is_list: bool
) -> dict[Any, Any]:
    """Match what is as it was where it was; in a list of another length, at its beginning and end."""
    if not is_list or len(now) == len(before):
        return {step: step for step, number in now.items() if before.get(step) == number}
    shorter, more = min(len(now), len(before)), len(before) - len(now)
    head = next((i for i in range(shorter) if now[i] != before[i]), shorter)
    ends = range(len(now) - 1, len(now) - 1 - (shorter - head), -1)
    tail = next((i for i in ends if now[i] != before[i + more]), len(now) - 1 - (shorter - head))
    return {i: i for i in range(head)} | {i: i + more for i in range(tail + 1, len(now))}


def between(found: list[tuple[int, int]], now: int, before: int) -> dict[int, int]:
    """Match the items between those that were found, if these are in their order."""
    edges = [(-1, -1), *found, (now, before)]
    if any(one[1] >= other[1] for one, other in pairwise(edges)):
        return {}
    return {
        step: source
        for one, other in pairwise(edges)
        if other[0] - one[0] == other[1] - one[1]
        for step, source in zip(
            range(one[0] + 1, other[0]), range(one[1] + 1, other[1]), strict=True
        )
    }


def most_voted(votes: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return the pairs that have more votes than any other pair with one of the two."""
    best: dict[tuple[str, int], list[int]] = {}
    for (step, source), number in votes.items():
        for end in (("step", step), ("source", source)):
            best.setdefault(end, []).append(number)
    top = {end: max(those) if those.count(max(those)) == 1 else None for end, those in best.items()}
    return {
        step: source
        for (step, source), number in votes.items()
        if top["step", step] == number == top["source", source]
    }
