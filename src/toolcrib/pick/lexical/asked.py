"""A query as the keyword scorer reads it: which words, and how much each of them matters.

Rule: nothing here knows a catalog, and no weight was learned from one.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from toolcrib.pick.text.query import Query
from toolcrib.pick.text.stem import stem, stems
from toolcrib.pick.text.words import clip, words

_NAME = re.compile(r"\w(?:[\w.:/-]*\w)?")
_EVERYDAY = 0.5
_WITH_DIGITS = 0.5
_EARLIER = 0.4
"""Weights: of a word that any request may hold, of one that is likelier an argument than a topic, and
of the words of each turn beside those of the turn after it."""

_EVERYDAY_WORDS = """
able actual advice ago aim allow almost already always another answer anyone anything appreciate
ask assist assistance available away back bad base become believe best better big bit bring came
cannot care case certain chance change check choose clear come complete concern consider couple
current day deal decide detail different difficult easy effective enable enough ensure
especially etc even every everything exact example explain explore fact fast feel felt figure
find fine finish first five follow following form found four friend full fun future gave general
give go goes gone good got great guide half hand happen happy hard hear hello help helpful hey
hi hope hour idea important improve include information interested interesting involve issue
item keep key kind knew know known large last late later latest learn least leave left less
level life like likely little live long look love made main make many matter maybe mean meet
mention mind minute moment month move much name near nearly necessary never new next nice
nothing number offer often ok okay old ones option original others overall part particular pass
people perhaps person personal place plan point possible potential prefer present pretty
probably problem process properly provide put question quick quite rather ready real really
reason recent recommend recommendation regarding related remember request require result right
said say second see seem seen set several short show side similar simple since single small
somebody someone something sometimes soon sort specific specifically start state stay step still
stop stuff success suggest suggestion sure take talk tell thank thing think thought three time
tip today together told tomorrow tonight took top total toward towards true try turn two type
understand unique useful user usual various wait walk way week well went whatever whenever
wherever without wonder word work world worry wrong year yes yesterday yet
"""


class AskedWords(NamedTuple):
    """Stems with their weights, in the order of the text; which of them stand side by side in the last
    turn; what in it may be the name of a tool; and the names of the tools that were used before."""

    weights: dict[str, float]
    pairs: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    used: tuple[str, ...]


def asked_words(query: Query) -> AskedWords:
    """What the turns of a query ask for; a stem that comes in several counts as in the latest."""
    weights: dict[str, float] = {}
    pairs: dict[tuple[str, str], None] = {}
    for age, turn in enumerate((query.text, *query.earlier)):
        # Names keep their stop words, so a request of nothing else can still find one.
        found = stems(turn) or stems(turn, stop_words=True)
        for word in found:
            weights.setdefault(word, _weight(word) * _EARLIER**age)
        if age == 0:
            pairs = dict.fromkeys(pair for pair in pairwise(found) if pair[0] != pair[1])
    return AskedWords(weights, tuple(pairs), _names(clip(query.text)), query.used)


def _names(text: str) -> tuple[str, ...]:
    """What is written in one, of several words ("get_user", "getUser"); a word only if it is all."""
    found = dict.fromkeys(_NAME.findall(text))
    if len(found) == 1:
        return tuple(found)
    return tuple(name for name in found if len(words(name, stop_words=True)) > 1)


def _weight(word: str) -> float:
    weight = _EVERYDAY if word in _everyday_stems() else 1.0
    return weight * _WITH_DIGITS if any(map(str.isdigit, word)) else weight


@cache
def _everyday_stems() -> frozenset[str]:
    return frozenset(map(stem, _EVERYDAY_WORDS.split()))
