"""The default scorer: words that a request and a definition share, weighed by BM25F.

Rule: needs nothing beside the standard library, and reads a request as words only: there is no syntax
in it. Every bound on cost (characters, words) is fixed, not the caller's.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from toolcrib.pick.lexical.asked import asked_words
from toolcrib.pick.lexical.column import Column
from toolcrib.pick.lexical.index_file import IndexFolder
from toolcrib.pick.lexical.postings import SATURATION, WordIndex, index_steps
from toolcrib.pick.lexical.search import Plan, plan_of, weigh
from toolcrib.pick.scoring.catalog_cache import CatalogCache
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import Score
from toolcrib.pick.text.query import Query
from toolcrib.pick.text.stem import words_of
from toolcrib.pick.text.words import Fields, fields
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

_LABELS = Fields("name", "description", "parameters", "parameter descriptions", "tags")
_HALF = 0.3
_NO_MATCH = Score(0.0, "no word in common")


class KeywordScorer:
    """Scores by weighted BM25F over name, description, parameters and tags; needs no extra.

    A word of the request weighs its idf; half of it if any request may hold it ("find", "today") or if
    it has digits; and of each earlier turn 0.4 of what it would in the turn after it. A word that no
    tool has stands for the nearest one that is known. Two words that are side by side in a tool's name
    or description count once more (0.8 and 0.4 of their mean), and a tool that was used before gets 0.3
    of what a word weighs. Where the best few are wanted of thousands of tools, only the request's
    rarer words choose which are weighed at all. But a tool whose very name the last turn holds comes
    before all others; a single word is taken for a name only where it is the whole turn.

    The score says how much of a request a tool answers and how much that tells. With `e` what matched
    by 2.2 (by which BM25 multiplies a weight at most), `w` the weight of the request's words (of the
    heaviest ten, since no tool repeats a whole letter; one that no tool has weighs as much as the
    rarest) and `t` that of the rarest word: `x = (e / t) * (e / w)`, and the score is `x / (x + 0.3)`,
    always below 1. A tool that shares no word scores 0. Of a long request the 64 words that weigh most
    count.

    With `folder`, indexes are kept there too: one file for each of the 16 catalogs used last, read
    instead of built by any process. Raises PickError for a folder that cannot be made.

    Deterministic; one index per catalog, kept for the eight used last, derived from one another where
    they share half of their tools; safe to use from threads.
    """

    name = "keyword"

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else IndexFolder(folder)
        self._indexes = CatalogCache.in_steps(self._steps)
        self._last: tuple[Query, WordIndex, Plan] | None = None  # asked for again, to explain it
        self._last_column: tuple[Query, Column] | None = None

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """The tools that share a word, by their weight: all of them, or the best `limit`.

        Raises PickError once the query's deadline has passed; a build of an index that it stops is
        taken up again by the next request.
        """
        index = self._indexes.get(tools, query.deadline)
        plan = self._plan(query, index)
        if not plan.terms:
            return Hits([], [], float)
        found = weigh(index, plan, limit, query.deadline)
        return Hits(
            array("d", found.values()),
            array("i", map(index.place.__getitem__, found)),
            lambda weight: _calibrated(weight, plan.whole),
        )

    def glance(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        """What each tool has of its weight from single words, as an array. Needs numpy."""
        index = self._indexes.get(tools, query.deadline)
        return self._column(query, index).singly

    def weights(self, query: Query, tools: Sequence[HasDefinition], positions: Any = None) -> Any:
        """The weights of the tools at these positions, an array of them, or of all; as an array."""
        index = self._indexes.get(tools, query.deadline)
        return self._column(query, index).weights(positions, query.deadline)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, which words were found in which fields."""
        index = self._indexes.get(tools, query.deadline)
        plan = self._plan(query, index)
        return [_explanation(index.definitions[i], plan, query.used) for i in picked]

    def _column(self, query: Query, index: WordIndex) -> Column:
        last = self._last_column
        if last is None or last[0] is not query or last[1].index is not index:
            column = Column(index, self._plan(query, index), query.deadline)
            last = self._last_column = (query, column)
        return last[1]

    def _plan(self, query: Query, index: WordIndex) -> Plan:
        last = self._last
        if last is None or last[0] is not query or last[1] is not index:
            last = self._last = (query, index, plan_of(index, asked_words(query)))
        return last[2]

    def _steps(
        self, definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex]
    ) -> Iterator[WordIndex | None]:
        loaded = self._folder.load(definitions) if self._folder else None
        if loaded is not None:
            yield loaded
            return
        for index in index_steps(definitions, kept):
            if index is not None and self._folder:
                self._folder.save(index)
            yield index


def _calibrated(weight: float, whole: float) -> float:
    matched = weight / SATURATION
    share = matched * matched / whole
    return share / (share + _HALF)


def _explanation(definition: ToolDefinition, plan: Plan, used: Sequence[str]) -> Score:
    stems = frozenset(plan.worth)
    matched = {
        label: words_of(stems, text, stop_words=label == _LABELS.name)
        for label, text in zip(_LABELS, fields(definition), strict=True)
    }
    found: JsonObject = {label: [*words] for label, words in matched.items() if words}
    reasons = [f"{label}: {', '.join(words)}" for label, words in matched.items() if words]
    details: JsonObject = {"matched": found}
    if definition.name in plan.named:
        reasons.insert(0, "named in the request")
        details["named"] = True
    if plan.worth and definition.name in used:
        reasons.append("used before")
        details["used_before"] = True
    return Score(0.0, "; ".join(reasons), details) if reasons else _NO_MATCH
