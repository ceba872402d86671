"""Learning from use: a tool that served a request gets a higher score for similar requests.

Rule: nothing is learned unless the application passes in the request and its records, because a
record holds no user's text. Of a request, only its words are kept, in alphabetical order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from heapq import nlargest
from math import log, sqrt
from threading import Lock
from typing import Any, cast

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.hybrid import reasons_of
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.scorer import (
    CatalogCache,
    Hits,
    Ranker,
    Score,
    has_to_be_awaited,
    in_answer,
    scorer_name,
)
from toolcrib.pick.words import words
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.typed import explains_wrong_types, names_wrong_types

_MAX_WORDS = 64
_NEAREST = 10
_CONSIDERED = 100
_STRENGTH = 0.6


class _ServedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    words: tuple[str, ...]
    tools: tuple[str, ...]


class _SavedFeedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    served: tuple[_ServedRequest, ...]


class Feedback:
    """Remembers which definitions, by digest, served which requests: the last `size` requests.

    Requests are compared by the cosine of their words, weighted by idf over all kept requests. The
    nudge of a tool is `0.6 * (1 - product of (1 - cosine²))` over those of the ten nearest requests
    that it served. Safe to use from threads.

    The kept words come from users: `to_json` is personal data if the requests were.
    """

    @names_wrong_types
    def __init__(self, *, size: int = 10_000) -> None:
        if size < 1:
            raise PickError(f"size must be 1 or more, not {size}")
        self._size = size
        self._lock = Lock()
        self._next = 0
        self._served: dict[int, _ServedRequest] = {}
        self._requests_with: dict[str, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._served)

    @names_wrong_types
    def learn(self, request: object, records: Iterable[ToolInvocationRecord]) -> None:
        """Learn from the `records` of the calls that this request led to, if they completed.

        A sink gets them as they are written. An audit log has them by run: `[entry.record for entry
        in await log.entries(AuditFilter(run_id=…))]`. `request` is what `pick_tools` was given.
        Raises PickError in the same cases.
        """
        digests = [record.definition_digest for record in records if record.status == "completed"]
        self._add(_words(query_of(request).text), tuple(dict.fromkeys(filter(None, digests))))

    @explains_wrong_types
    def nudges(self, text: str) -> dict[str, float]:
        """Return the nudge of each definition, by digest, for this request, in 0..0.6."""
        request_words = _words(text)
        with self._lock:
            misses: dict[str, float] = {}
            for request_id, cosine in self._nearest(request_words):
                for tool in self._served[request_id].tools:
                    misses[tool] = misses.get(tool, 1.0) * (1 - min(cosine, 1.0) ** 2)
        return {tool: _STRENGTH * (1 - miss) for tool, miss in misses.items()}

    def to_json(self) -> JsonObject:
        """Return everything that is kept, oldest first, for `from_json`."""
        with self._lock:
            saved = _SavedFeedback(tuple(self._served.values()))
        return cast("JsonObject", msgspec.to_builtins(saved))

    @classmethod
    def from_json(cls, value: Any, *, size: int = 10_000) -> Feedback:
        """Read the output of `to_json`. Raises PickError for anything else."""
        try:
            saved = msgspec.convert(value, _SavedFeedback)
        except msgspec.ValidationError as error:
            raise PickError(f"the saved text is not feedback: {error}") from None
        feedback = cls(size=size)
        for request in saved.served:
            distinct_words = tuple(dict.fromkeys(request.words[:_MAX_WORDS]))
            feedback._add(distinct_words, request.tools)
        return feedback

    def _add(self, request_words: tuple[str, ...], tools: tuple[str, ...]) -> None:
        if not (request_words and tools):
            return
        with self._lock:
            self._served[self._next] = _ServedRequest(request_words, tools)
            for word in request_words:
                self._requests_with.setdefault(word, {})[self._next] = None
            self._next += 1
            if len(self._served) > self._size:
                self._forget(next(iter(self._served)))

    def _forget(self, request_id: int) -> None:
        for word in self._served.pop(request_id).words:
            request_ids = self._requests_with[word]
            request_ids.pop(request_id, None)
            if not request_ids:
                del self._requests_with[word]

    def _nearest(self, request_words: tuple[str, ...]) -> list[tuple[int, float]]:
        """Return the nearest requests by cosine. Of equal ones, the latest comes first.

        The cosine is computed for the requests with most words in common, which are nearly all that
        can be near.
        """
        total = len(self._served)

        @cache
        def square(word: str) -> float:
            """Return the square of `log(1 + (N - n + .5) / (n + .5))`, the idf of BM25."""
            count = len(self._requests_with.get(word, ()))
            return log(1 + (total - count + 0.5) / (count + 0.5)) ** 2

        common_weights: dict[int, float] = {}
        for word in request_words:
            for request_id in self._requests_with.get(word, ()):
                common_weights[request_id] = common_weights.get(request_id, 0.0) + square(word)
        length = sqrt(sum(map(square, request_words)))
        candidates = nlargest(
            _CONSIDERED, zip(common_weights.values(), common_weights.keys(), strict=True)
        )
        cosines = [
            (dot / (length * sqrt(sum(map(square, self._served[request_id].words)))), request_id)
            for dot, request_id in candidates
        ]
        return [(request_id, cosine) for cosine, request_id in nlargest(_NEAREST, cosines)]


def _words(text: str) -> tuple[str, ...]:
    """Return the first 64 different words, sorted so that their order reveals nothing."""
    return tuple(sorted([*dict.fromkeys(words(text))][:_MAX_WORDS]))


# `WithFeedback`: any ranker, with what was learned from use on top of it.
#
# Rule: learning only raises scores, so a request that is like none before finds the same tools as
# without it.

_DEPTH = 100


class WithFeedback:
    """Scores like `scorer`, and raises the scores of tools that served similar requests.

    With a score `s` and a nudge `n`, both in 0..1, the tool has `s + (1 - s) * n`. The `s` of a tool
    that is not among the scorer's best 100 counts as 0. If nothing was learned from similar
    requests, the hits are those of `scorer`.
    """

    @names_wrong_types
    def __init__(self, scorer: Ranker, feedback: Feedback) -> None:
        if not hasattr(scorer, "hits"):
            raise PickError(f"feedback needs a Ranker (with `hits`), not {scorer_name(scorer)!r}")
        self._scorer = scorer
        self._feedback = feedback
        self._positions = CatalogCache(_positions)

    @property
    def asynchronous(self) -> bool:
        """Whether the scorer has to be awaited. If so, `pick_tools` awaits it, and `hits` cannot be
        used."""
        return has_to_be_awaited(self._scorer)

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> WithFeedback:
        """Return the same with a scorer that has its answers."""
        return WithFeedback(await in_answer(self._scorer, query, tools), self._feedback)

    @property
    def name(self) -> str:
        return f"{scorer_name(self._scorer)}+feedback"

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return the scorer's hits, with the nudged tools among them."""
        nudges = self._nudges(query, tools)
        if not nudges:
            return self._scorer.hits(query, tools, limit)
        depth = None if limit is None else max(limit, _DEPTH)
        hits = self._scorer.hits(query, tools, depth)
        count = len(hits.values) if depth is None else depth
        scores = {position: hits.calibrated(weight) for position, weight in hits.best(count)}
        for position, nudge in nudges.items():
            score = scores.get(position, 0.0)
            scores[position] = score + (1 - score) * nudge
        return Hits([*scores.values()], [*scores], lambda score: score)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return the scorer's reasons, and how much each tool was nudged."""
        reasons = reasons_of(self._scorer, query, tools, picked)
        nudges = self._nudges(query, tools)
        return [
            _nudged(reason, nudges[position]) if position in nudges else reason
            for position, reason in zip(picked, reasons, strict=True)
        ]

    def _nudges(self, query: Query, tools: Sequence[HasDefinition]) -> dict[int, float]:
        by_digest = self._feedback.nudges(query.text)
        if not by_digest:
            return {}
        positions = self._positions.get(tools)
        return {
            position: nudge
            for digest, nudge in by_digest.items()
            for position in positions.get(digest, ())
        }


def _positions(definitions: Sequence[ToolDefinition]) -> dict[str, list[int]]:
    positions: dict[str, list[int]] = {}
    for position, definition in enumerate(definitions):
        positions.setdefault(definition.digest, []).append(position)
    return positions


def _nudged(reason: Score, nudge: float) -> Score:
    text = f"served requests like this one ({nudge:+.2f})"
    details: JsonObject = reason.details or {}
    parts = details.get("parts")
    parts = {**(parts if isinstance(parts, dict) else {}), "feedback": round(nudge, 6)}
    full_reason = f"{reason.reason}; {text}" if reason.reason else text
    return Score(0.0, full_reason, {**details, "parts": parts})
