"""The tools of a word index that answer a query best.

Rule: a weight is the same whoever else is weighed, added up in one order. In a catalog of thousands,
where the best few are wanted, only the words that bring most choose who is weighed: once 2,500 places
of them have been read, or a tenth as many as there are tools, the other words count for the 500 tools
that are then ahead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import nlargest, nsmallest
from itertools import repeat
from math import fsum, log
from operator import mul
from time import monotonic
from typing import NamedTuple

from toolcrib.errors import PickError
from toolcrib.pick.lexical.asked import AskedWords
from toolcrib.pick.lexical.postings import SATURATION, Posting, WordIndex

_FEWEST = 100
"""Tools that a catalog counts as, at least: with fewer, no word would be rare."""
_MAX_TERMS = 64
_ENOUGH = 10
_PAIR = 0.4
NAMED = 2
_USED = 0.3
"""What the tools used before get: so much of what a word of the request brings on average."""
_READ, _PART = 2_500, 10
_CHOSEN = 500


class Term(NamedTuple):
    weight: float
    posting: Posting

    @property
    def most(self) -> float:
        return self.weight * self.posting.most


class Pair(NamedTuple):
    """Two words that stand side by side, by their places among the terms, and what that is worth."""

    words: str
    first: int
    second: int
    weight: float


class Plan(NamedTuple):
    """A query against one index: its terms, those that can bring most first.

    `worth` is the weight of each word that the catalog has, `named` what may be a name of a tool;
    `whole` what a request of this size could be worth: the product of the weight of a word that no
    tool has and the sum of its heaviest ten.
    """

    terms: Sequence[Term]
    pairs: Sequence[Pair]
    worth: dict[str, float]
    named: Sequence[str]
    whole: float


def plan_of(index: WordIndex, asked: AskedWords) -> Plan:
    """The words that the catalog has, weighed by how few of its tools have them."""
    rarest = _idf(0, max(len(index.definitions), _FEWEST))
    worth, unknown = _worth(index, asked, rarest)
    pairs = {
        (a, b): _PAIR * (worth[a] + worth[b]) / 2
        for a, b in asked.pairs
        if a in worth and b in worth
    }
    terms = {word: Term(weight, index.postings[word]) for word, weight in worth.items()}
    if worth and (used := _by_name(index, asked.used)).slots:
        terms[" used"] = Term(_USED * fsum(worth.values()) / len(worth), used)
    if (named := _by_name(index, asked.named)).slots:  # gets more than any other tool can have
        most = SATURATION * fsum([rarest, *worth.values()]) + NAMED * fsum(pairs.values())
        terms[" named"] = Term(most, named)
    order = sorted(terms, key=lambda word: (-terms[word].most, word))
    at = {word: place for place, word in enumerate(order)}
    return Plan(
        [terms[word] for word in order],
        [Pair(f" {a} {b} ", at[a], at[b], weight) for (a, b), weight in pairs.items()],
        worth,
        asked.named,
        rarest * fsum(nlargest(_ENOUGH, [*worth.values(), *unknown]) or [rarest]),
    )


def _worth(
    index: WordIndex, asked: AskedWords, rarest: float
) -> tuple[dict[str, float], list[float]]:
    """The weights of the words that the catalog has, and of those that it has not."""
    weights: dict[str, float] = {}
    unknown: list[float] = []
    for word, weight in asked.weights.items():
        if word in index.postings:
            weights[word] = max(weight, weights.get(word, 0.0))
        elif (near := index.nearest(word)) is not None:
            known, alike = near
            weights[known] = max(alike * weight, weights.get(known, 0.0))
        else:
            unknown.append(weight * rarest)
    rows = max(len(index.definitions), _FEWEST)
    worth = {
        word: weight * _idf(len(index.postings[word].slots), rows)
        for word, weight in weights.items()
    }
    if len(worth) > _MAX_TERMS:
        worth = dict(nsmallest(_MAX_TERMS, worth.items(), key=lambda pair: (-pair[1], pair[0])))
    return worth, unknown


def _idf(count: int, rows: int) -> float:
    """The weight of a word that so many of the tools have: as Lucene has it, never negative."""
    return log(1 + (rows - count + 0.5) / (count + 0.5))


def _by_name(index: WordIndex, names: Sequence[str]) -> Posting:
    """The first tool of each of these names, as if they were words that it has."""
    positions = {index.by_name[name] for name in names if name in index.by_name}
    slots = array("I", sorted(index.slots[position] for position in positions))
    return Posting(slots, array("f", [1.0]) * len(slots), 1.0)


def weigh(index: WordIndex, plan: Plan, limit: int | None, deadline: float) -> dict[int, float]:
    """Weights by slot: of every tool that has a word, or at least of those that are the best `limit`.

    Raises PickError once the deadline has passed.
    """
    found: dict[int, float] = {}
    read, enough = 0, max(_READ, len(index.definitions) // _PART)
    for term in plan.terms:
        check_time(deadline)
        if limit is not None and read > enough and len(found) > limit:
            found = _best(found, max(_CHOSEN, 2 * limit))
            _add_to_found(found, term)
        else:
            _add(found, term)
            read += len(term.posting.slots)
    for pair in plan.pairs:
        check_time(deadline)
        _add_pair(index, found, pair, plan)
    return found if limit is None else _best(found, limit)


def check_time(deadline: float) -> None:
    if monotonic() >= deadline:
        raise PickError("the time of the query was over before all tools were weighed")


def _best(found: dict[int, float], count: int) -> dict[int, float]:
    """Those of the `count` highest weights: all that are equal to the last of them, too."""
    if len(found) <= count:
        return found
    if count < 1:
        return {}
    least = nlargest(count, found.values())[-1]
    return {slot: weight for slot, weight in found.items() if weight >= least}


def _add(found: dict[int, float], term: Term) -> None:
    slots, impacts, _ = term.posting
    weight = term.weight
    if not found:
        found.update(zip(slots, map(mul, impacts, repeat(weight)), strict=True))
        return
    known = found.get
    for slot, impact in zip(slots, impacts, strict=True):
        found[slot] = known(slot, 0.0) + weight * impact


def _add_to_found(found: dict[int, float], term: Term) -> None:
    slots, impacts, _ = term.posting
    for slot in found:
        at = bisect_left(slots, slot)
        if at < len(slots) and slots[at] == slot:
            found[slot] += term.weight * impacts[at]


def _add_pair(index: WordIndex, found: dict[int, float], pair: Pair, plan: Plan) -> None:
    of_first, of_second = (plan.terms[at].posting.slots for at in (pair.first, pair.second))
    fewest = min(found, of_first, of_second, key=len)
    texts = index.texts
    for slot in [slot for slot in fewest if pair.words in texts[slot] and slot in found]:
        in_name = texts[slot].index(pair.words) < texts[slot].index("|")
        found[slot] += pair.weight * (NAMED if in_name else 1)
