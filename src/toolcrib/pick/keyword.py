"""The default scorer: words that a request and a definition share, weighed by BM25F.

Rule: it needs nothing but the standard library, and reads a request as words only, without any
syntax. Every limit on cost (characters, words) is fixed, and is not the caller's.

The module has the index of a catalog's words, then the query against it, and `KeywordScorer` last.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from heapq import nlargest, nsmallest
from itertools import pairwise, repeat, takewhile
from math import ceil, fsum, log
from operator import eq, mul, truth
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import CatalogCache, Hits, Score, numpy
from toolcrib.pick.words import Fields, clip, fields, stem, stems, words, words_of
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

# The words of a catalog: which tools have each of them, and with which impact.
#
# Rule: an index's content for a tool depends on that tool alone. So an index that lost some tools
# and got others is equal to a new one, except for the order of its slots, which is never visible.
#
# A word's impact on a tool is that of BM25F (S. Robertson, H. Zaragoza, "The Probabilistic
# Relevance Framework: BM25 and Beyond", 2009, 3.6), with fixed lengths in place of a collection's
# mean ones: `x = sum over fields of weight * count / (0.7 + 0.3 * length / usual)`, `impact = 2.2 x
# / (x + 1.2)`.

K1 = 1.2
SATURATION = K1 + 1
"""All impacts are below this."""

_WEIGHTS = (4.0, 1.0, 1.0, 0.6, 0.5)  # by field, in the order of `Fields`
_USUAL_LENGTHS = (4, 10, 4, 16, 2)  # words
_B = 0.3
_STEP = 64
_SHORTEST_PREFIX = 4
_COMMON_SHARE = 0.8
_NEIGHBOURS = 32
"""How many known words before and after an unknown one, in alphabetical order, are compared with it."""


class Posting(NamedTuple):
    """The tools that have a word: their slots, ascending, its impact on each, and the highest
    impact."""

    slots: array[int]
    impacts: array[float]
    highest: float


class WordIndex(msgspec.Struct, dict=True, eq=False):
    """A catalog's words. A tool has a slot. `positions[slot]` is its position, or -1 if the tool
    was removed.

    `texts[slot]` has the stems of its name and of its description, " one two | three four ".
    Nothing changes in an index once it is made, and indexes that were derived from one another
    share what they can.
    """

    definitions: Sequence[ToolDefinition]
    positions: array[int]
    texts: list[str]
    postings: dict[str, Posting]

    @cached_property
    def definition_set(self) -> frozenset[ToolDefinition]:
        return frozenset(self.definitions)

    @cached_property
    def slots(self) -> array[int]:
        """The slot of each position."""
        slot_of = array("i", bytes(4 * len(self.definitions)))
        for slot, position in enumerate(self.positions):
            if position >= 0:
                slot_of[position] = slot
        return slot_of

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The position of the first tool of each name."""
        names = [definition.name for definition in self.definitions]
        return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))

    def nearest(self, word: str) -> tuple[str, float] | None:
        """Return the known word that an unknown one most likely stands for, and their similarity,
        in 0..1.

        The known word has the same first letters (at least four, and four fifths of the word), or
        the unknown word begins with it, as "cryptocurrency" with "crypto". The similarity is the
        share of the longer word that they have in common.
        """
        if len(word) < _SHORTEST_PREFIX or not word.isalpha():
            return None
        prefix = word[: max(_SHORTEST_PREFIX, ceil(_COMMON_SHARE * len(word)))]
        matches: list[tuple[float, str]] = []
        index = bisect_left(self._sorted, word)
        for candidate in self._sorted[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS]:
            if candidate.startswith(prefix):
                shared = sum(1 for _ in takewhile(truth, map(eq, candidate, word)))
                matches.append((-shared / max(len(candidate), len(word)), candidate))
        for length in range(len(word) - 1, _SHORTEST_PREFIX - 1, -1):
            if word[:length] in self.postings:
                matches.append((-length / len(word), word[:length]))
                break
        if not matches:
            return None
        alike, candidate = min(matches)
        return candidate, -alike

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.postings)


_NOWHERE = Posting(array("I"), array("f"), 0.0)
_EMPTY = WordIndex((), array("i"), [], {})


def index_steps(
    definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex] = ()
) -> Iterator[WordIndex | None]:
    """Yield None now and then, and the index of these definitions last.

    It is derived from the one of `kept` that shares most with it, if that is at least half of it.
    """
    base = _most_alike(definitions, kept)
    positions = array("i", [-1]) * len(base.positions)
    free_slots: dict[ToolDefinition, list[int]] = {}
    for position in range(len(base.definitions) - 1, -1, -1):
        free_slots.setdefault(base.definitions[position], []).append(base.slots[position])
    texts = base.texts.copy()
    added: dict[str, tuple[array[int], array[float]]] = defaultdict(
        lambda: (array("I"), array("f"))
    )
    for position, definition in enumerate(definitions):
        reusable = free_slots.get(definition) if free_slots else None
        if reusable:
            positions[reusable.pop()] = position
            continue
        impacts, text = entry_of(definition)
        slot = len(positions)
        for word, impact in impacts.items():
            slots_of_word, impacts_of_word = added[word]
            slots_of_word.append(slot)
            impacts_of_word.append(impact)
        positions.append(position)
        texts.append(text)
        if position % _STEP == 0:
            yield None
    removed: dict[str, list[int]] = {}
    for slot in sorted(slot for slots in free_slots.values() for slot in slots):
        texts[slot] = ""
        for word in entry_of(base.definitions[base.positions[slot]])[0]:
            removed.setdefault(word, []).append(slot)
    yield WordIndex(tuple(definitions), positions, texts, _changed(base.postings, removed, added))


def _most_alike(definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex]) -> WordIndex:
    definition_set = frozenset(definitions) if kept else frozenset()
    best, most_shared = _EMPTY, len(definition_set) // 2
    for index in kept:
        # Slots of removed tools count as well.
        is_small = len(index.positions) <= 2 * len(definitions)
        shared = len(definition_set & index.definition_set) if is_small else 0
        if shared > most_shared:
            best, most_shared = index, shared
    return best


def _changed(
    postings: dict[str, Posting],
    removed: dict[str, list[int]],
    added: dict[str, tuple[array[int], array[float]]],
) -> dict[str, Posting]:
    changed = postings.copy()
    for word, slots in removed.items():
        posting = postings[word]
        remaining = Posting(posting.slots[:], posting.impacts[:], 0.0)
        for slot in reversed(slots):
            index = bisect_left(remaining.slots, slot)
            del remaining.slots[index], remaining.impacts[index]
        if remaining.slots:
            changed[word] = remaining._replace(highest=max(remaining.impacts))
        else:
            del changed[word]
    for word, (slots_after, impacts_after) in added.items():
        previous = changed.get(word, _NOWHERE)
        impacts = previous.impacts + impacts_after
        changed[word] = Posting(previous.slots + slots_after, impacts, max(impacts))
    return changed


def entry_of(definition: ToolDefinition) -> tuple[dict[str, float], str]:
    """Return a tool's content in an index: each stem's impact, and the text of its name and
    description."""
    text = fields(definition)  # stop words count only in the name
    columns = [stems(text.name, stop_words=True), *map(stems, text[1:])]
    sums: dict[str, float] = defaultdict(float)
    for column, weight, usual_length in zip(columns, _WEIGHTS, _USUAL_LENGTHS, strict=True):
        if not column:
            continue
        share = weight / (1 - _B + _B * len(column) / usual_length)
        for word in column:
            sums[word] += share
    impacts = {word: SATURATION * x / (x + K1) for word, x in sums.items()}
    return impacts, f" {' '.join(columns[0])} | {' '.join(columns[1])} "


# A query as the keyword scorer reads it: its words, and how much each of them matters.
#
# Rule: this code knows no catalog, and no weight was learned from one.

_NAME_FORM = re.compile(r"\w(?:[\w.:/-]*\w)?")
_EVERYDAY_WEIGHT = 0.5
_DIGITS_WEIGHT = 0.5
_EARLIER_WEIGHT = 0.4
"""Weights of a word that any request may contain, of one that is more likely an argument than a
topic, and of the words of each turn relative to those of the next turn."""

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


class QueryWords(msgspec.Struct, frozen=True):
    """Stems with their weights, in the order of the text; which of them are adjacent in the last
    turn; what may be the name of a tool; and the names of the tools that were used before."""

    weights: dict[str, float]
    pairs: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    used: tuple[str, ...]


def query_words(query: Query) -> QueryWords:
    """Return the words that a query asks for. A stem of several turns counts as in the latest one."""
    weights: dict[str, float] = {}
    pairs: dict[tuple[str, str], None] = {}
    for age, turn in enumerate((query.text, *query.earlier)):
        # Names keep their stop words, so that a request of only stop words can still find one.
        turn_stems = stems(turn) or stems(turn, stop_words=True)
        for word in turn_stems:
            weights.setdefault(word, _weight(word) * _EARLIER_WEIGHT**age)
        if age == 0:
            pairs = dict.fromkeys(pair for pair in pairwise(turn_stems) if pair[0] != pair[1])
    return QueryWords(weights, tuple(pairs), _names(clip(query.text)), query.used)


def _names(text: str) -> tuple[str, ...]:
    """Return words written as a name of several words ("get_user", "getUser"). A single word counts
    only if it is the whole turn."""
    names = dict.fromkeys(_NAME_FORM.findall(text))
    if len(names) == 1:
        return tuple(names)
    return tuple(name for name in names if len(words(name, stop_words=True)) > 1)


def _weight(word: str) -> float:
    weight = _EVERYDAY_WEIGHT if word in _everyday_stems() else 1.0
    return weight * _DIGITS_WEIGHT if any(map(str.isdigit, word)) else weight


@cache
def _everyday_stems() -> frozenset[str]:
    return frozenset(map(stem, _EVERYDAY_WORDS.split()))


# The tools of a word index that answer a query best.
#
# Rule: a tool's weight does not depend on which other tools are weighed, and is added up in a fixed
# order. If only the best few of thousands of tools are wanted, only the words that contribute most
# choose the tools to weigh. Once 2,500 entries of these words were read, or a tenth of the number
# of tools, the other words count only for the 500 tools that are ahead by then.

_FEWEST_TOOLS = 100
"""The least number of tools that a catalog counts as having. With fewer, no word would be rare."""
_MAX_TERMS = 64
_MOST_COUNTED = 10
_PAIR_WEIGHT = 0.4
_NAMED_WEIGHT = 2
_USED_WEIGHT = 0.3
"""The share of the average weight of a word of the request that tools used before get."""
_READ, _PART = 2_500, 10
_CHOSEN = 500


class Term(msgspec.Struct, frozen=True):
    weight: float
    posting: Posting

    @property
    def highest(self) -> float:
        return self.weight * self.posting.highest


class Pair(msgspec.Struct, frozen=True):
    """Two adjacent words, by their positions among the terms, and the weight of the pair."""

    words: str
    first: int
    second: int
    weight: float


class QueryPlan(msgspec.Struct, frozen=True):
    """A query against one index: its terms, those that can contribute most first.

    `word_weights` are the weights of the words that the catalog has. `named` is what may be the
    name of a tool. `full_weight` is the most that a request of this size could weigh: the weight of
    a word that no tool has, multiplied by the sum of its heaviest ten.
    """

    terms: Sequence[Term]
    pairs: Sequence[Pair]
    word_weights: dict[str, float]
    named: Sequence[str]
    full_weight: float


def plan_of(index: WordIndex, query: QueryWords) -> QueryPlan:
    """Return the words that the catalog has, weighed by how few of its tools have them."""
    rarest = _idf(0, max(len(index.definitions), _FEWEST_TOOLS))
    word_weights, unknown = _word_weights(index, query, rarest)
    pairs = {
        (a, b): _PAIR_WEIGHT * (word_weights[a] + word_weights[b]) / 2
        for a, b in query.pairs
        if a in word_weights and b in word_weights
    }
    terms = {word: Term(weight, index.postings[word]) for word, weight in word_weights.items()}
    if word_weights and (used_posting := _by_name(index, query.used)).slots:
        terms[" used"] = Term(
            _USED_WEIGHT * fsum(word_weights.values()) / len(word_weights), used_posting
        )
    if (named_posting := _by_name(index, query.named)).slots:
        # The weight of a tool that was named is above that of any other tool.
        named_weight = SATURATION * fsum([rarest, *word_weights.values()]) + _NAMED_WEIGHT * fsum(
            pairs.values()
        )
        terms[" named"] = Term(named_weight, named_posting)
    order = sorted(terms, key=lambda word: (-terms[word].highest, word))
    rank_of = {word: rank for rank, word in enumerate(order)}
    return QueryPlan(
        [terms[word] for word in order],
        [Pair(f" {a} {b} ", rank_of[a], rank_of[b], weight) for (a, b), weight in pairs.items()],
        word_weights,
        query.named,
        rarest * fsum(nlargest(_MOST_COUNTED, [*word_weights.values(), *unknown]) or [rarest]),
    )


def _word_weights(
    index: WordIndex, query: QueryWords, rarest: float
) -> tuple[dict[str, float], list[float]]:
    """Return the weights of the words that the catalog has, and of those that it does not have."""
    weights: dict[str, float] = {}
    unknown: list[float] = []
    for word, weight in query.weights.items():
        if word in index.postings:
            weights[word] = max(weight, weights.get(word, 0.0))
        elif (nearest := index.nearest(word)) is not None:
            neighbour, similarity = nearest
            weights[neighbour] = max(similarity * weight, weights.get(neighbour, 0.0))
        else:
            unknown.append(weight * rarest)
    tool_count = max(len(index.definitions), _FEWEST_TOOLS)
    word_weights = {
        word: weight * _idf(len(index.postings[word].slots), tool_count)
        for word, weight in weights.items()
    }
    if len(word_weights) > _MAX_TERMS:
        word_weights = dict(
            nsmallest(_MAX_TERMS, word_weights.items(), key=lambda pair: (-pair[1], pair[0]))
        )
    return word_weights, unknown


def _idf(count: int, tool_count: int) -> float:
    """Return a word's weight by the number of tools that have it (Lucene's formula, which is never
    negative)."""
    return log(1 + (tool_count - count + 0.5) / (count + 0.5))


def _by_name(index: WordIndex, names: Sequence[str]) -> Posting:
    """Return the first tool with each of these names, as if the names were words in the tools."""
    positions = {index.by_name[name] for name in names if name in index.by_name}
    slots = array("I", sorted(index.slots[position] for position in positions))
    return Posting(slots, array("f", [1.0]) * len(slots), 1.0)


def weigh(
    index: WordIndex, plan: QueryPlan, limit: int | None, deadline: float
) -> dict[int, float]:
    """Return weights by slot, of every tool that has a word, or at least of the best `limit`.

    Raises PickError once the deadline has passed.
    """
    weights: dict[int, float] = {}
    read_count, enough_read = 0, max(_READ, len(index.definitions) // _PART)
    for term in plan.terms:
        check_time(deadline)
        if limit is not None and read_count > enough_read and len(weights) > limit:
            weights = _best(weights, max(_CHOSEN, 2 * limit))
            _add_to_known(weights, term)
        else:
            _add(weights, term)
            read_count += len(term.posting.slots)
    for pair in plan.pairs:
        check_time(deadline)
        _add_pair(index, weights, pair, plan)
    return weights if limit is None else _best(weights, limit)


def check_time(deadline: float) -> None:
    if monotonic() >= deadline:
        raise PickError("the time limit of the query passed before all tools were scored")


def _best(weights: dict[int, float], count: int) -> dict[int, float]:
    """Return the `count` highest weights, and all that are equal to the last of them."""
    if len(weights) <= count:
        return weights
    if count < 1:
        return {}
    least = nlargest(count, weights.values())[-1]
    return {slot: weight for slot, weight in weights.items() if weight >= least}


def _add(weights: dict[int, float], term: Term) -> None:
    slots, impacts, _ = term.posting
    weight = term.weight
    if not weights:
        weights.update(zip(slots, map(mul, impacts, repeat(weight)), strict=True))
        return
    weight_of = weights.get
    for slot, impact in zip(slots, impacts, strict=True):
        weights[slot] = weight_of(slot, 0.0) + weight * impact


def _add_to_known(weights: dict[int, float], term: Term) -> None:
    slots, impacts, _ = term.posting
    for slot in weights:
        index = bisect_left(slots, slot)
        if index < len(slots) and slots[index] == slot:
            weights[slot] += term.weight * impacts[index]


def _add_pair(index: WordIndex, weights: dict[int, float], pair: Pair, plan: QueryPlan) -> None:
    of_first, of_second = (
        plan.terms[position].posting.slots for position in (pair.first, pair.second)
    )
    shortest = min(weights, of_first, of_second, key=len)
    texts = index.texts
    for slot in [slot for slot in shortest if pair.words in texts[slot] and slot in weights]:
        in_name = texts[slot].index(pair.words) < texts[slot].index("|")
        weights[slot] += pair.weight * (_NAMED_WEIGHT if in_name else 1)


# The weights of a catalog's tools by their words, as one column of numbers; needs numpy.
#
# Rule: a tool's weight is bit by bit the one that `weigh` adds up, since terms and pairs are added
# in the same order.


class Column:
    """A query against one index. `singly` has the sum of the weights of each tool's single words,
    by position; float64, 0 for a tool that has none.

    Raises PickError once the deadline has passed.
    """

    def __init__(self, index: WordIndex, plan: QueryPlan, deadline: float) -> None:
        np = numpy()
        self.index = index
        self._plan = plan
        self._term_slots = [np.frombuffer(term.posting.slots, "uint32") for term in plan.terms]
        self._slots_by_position = np.frombuffer(index.slots, "int32")
        totals = np.zeros(len(index.positions))
        for term, slots in zip(plan.terms, self._term_slots, strict=True):
            check_time(deadline)
            impacts = np.frombuffer(term.posting.impacts, "float32").astype("float64")
            totals[slots] += impacts * term.weight
        self.singly = totals[self._slots_by_position]

    def weights(self, positions: Any, deadline: float) -> Any:
        """Return the weights of words and adjacent pairs for the tools at these positions, or for
        all."""
        weights = self.singly.copy() if positions is None else self.singly[positions]
        slots = self._slots_by_position if positions is None else self._slots_by_position[positions]
        pairs, texts = self._plan.pairs, self.index.texts
        is_in_term, has_term = numpy().zeros(len(texts), bool), {}
        for term in sorted({position for pair in pairs for position in (pair.first, pair.second)}):
            is_in_term[self._term_slots[term]] = True
            has_term[term] = is_in_term[slots]
            is_in_term[self._term_slots[term]] = False
        for pair in pairs:
            check_time(deadline)
            rows = (has_term[pair.first] & has_term[pair.second]).nonzero()[0]
            for row, slot in zip(rows.tolist(), slots[rows].tolist(), strict=True):
                text = texts[slot]
                position = text.find(pair.words)
                if position >= 0:
                    weights[row] += pair.weight * (
                        _NAMED_WEIGHT if position < text.index("|") else 1
                    )
        return weights


_LABELS = Fields("name", "description", "parameters", "parameter descriptions", "tags")
_HALF_SHARE = 0.3
_NO_MATCH = Score(0.0, "no word in common")


class KeywordScorer:
    """Scores by weighted BM25F over name, description, parameters and tags. Needs no extra.

    A word of the request weighs its idf. It weighs half of that if any request may contain it
    ("find", "today") or if it has digits. In each earlier turn it weighs 0.4 of what it would in
    the next turn. A word that no tool has stands for the nearest known one. Two words that are
    adjacent in a tool's name or description count once more (0.8 and 0.4 of their mean), and a tool
    that was used before gets 0.3 of the weight of a word. If only the best few of thousands of
    tools are wanted, only the request's rarer words choose which tools are weighed. A tool whose
    exact name occurs in the last turn comes before all others; a single word is taken for a name
    only if it is the whole turn.

    The score combines how much of a request a tool answers with how significant that is. With `e`
    the matched weight divided by 2.2 (the most by which BM25 multiplies a weight), `w` the weight
    of the request's words (the heaviest ten, since no tool repeats a whole letter; a word that no
    tool has weighs as much as the rarest) and `t` that of the rarest word: `x = (e / t) * (e / w)`,
    and the score is `x / (x + 0.3)`, always below 1. A tool that shares no word scores 0. Of a long
    request the 64 heaviest words count.

    Deterministic, and safe to use from threads. There is one index for each catalog. Those of the
    eight catalogs used last are kept, and are derived from one another if they share half of their
    tools.
    """

    name = "keyword"

    def __init__(self) -> None:
        self._indexes = CatalogCache.in_steps(index_steps)
        # the last query, which is asked again for its explanation
        self._last: tuple[Query, WordIndex, QueryPlan] | None = None
        self._last_column: tuple[Query, Column] | None = None

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return the tools that share a word, by their weight: all of them, or the best `limit`.

        Raises PickError once the query's deadline has passed. The next request continues a build of
        an index that this stopped.
        """
        index = self._indexes.get(tools, query.deadline)
        plan = self._plan(query, index)
        if not plan.terms:
            return Hits([], [], float)
        weights = weigh(index, plan, limit, query.deadline)
        return Hits(
            array("d", weights.values()),
            array("i", map(index.positions.__getitem__, weights)),
            lambda weight: _calibrated(weight, plan.full_weight),
        )

    def glance(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        """Return the part of each tool's weight that comes from single words, as an array. Needs
        numpy."""
        index = self._indexes.get(tools, query.deadline)
        return self._column(query, index).singly

    def weights(self, query: Query, tools: Sequence[HasDefinition], positions: Any = None) -> Any:
        """Return the weights of the tools at these positions (an array), or of all, as an array."""
        index = self._indexes.get(tools, query.deadline)
        return self._column(query, index).weights(positions, query.deadline)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return, for the tools at these positions, which words were found in which fields."""
        index = self._indexes.get(tools, query.deadline)
        plan = self._plan(query, index)
        return [_explanation(index.definitions[i], plan, query.used) for i in picked]

    def _column(self, query: Query, index: WordIndex) -> Column:
        last = self._last_column
        if last is None or last[0] is not query or last[1].index is not index:
            column = Column(index, self._plan(query, index), query.deadline)
            last = self._last_column = (query, column)
        return last[1]

    def _plan(self, query: Query, index: WordIndex) -> QueryPlan:
        last = self._last
        if last is None or last[0] is not query or last[1] is not index:
            last = self._last = (query, index, plan_of(index, query_words(query)))
        return last[2]


def _calibrated(weight: float, full_weight: float) -> float:
    matched = weight / SATURATION
    share = matched * matched / full_weight
    return share / (share + _HALF_SHARE)


def _explanation(definition: ToolDefinition, plan: QueryPlan, used: Sequence[str]) -> Score:
    stems = frozenset(plan.word_weights)
    matched = {
        label: words_of(stems, text, stop_words=label == _LABELS.name)
        for label, text in zip(_LABELS, fields(definition), strict=True)
    }
    matched_words: JsonObject = {label: [*words] for label, words in matched.items() if words}
    reasons = [f"{label}: {', '.join(words)}" for label, words in matched.items() if words]
    details: JsonObject = {"matched": matched_words}
    if definition.name in plan.named:
        reasons.insert(0, "named in the request")
        details["named"] = True
    if plan.word_weights and definition.name in used:
        reasons.append("used before")
        details["used_before"] = True
    return Score(0.0, "; ".join(reasons), details) if reasons else _NO_MATCH
