"""Several scorers of any kind as one, by adding up their z-scores.

Rule: only the parts' own weights are added up, and `explain` shows every summand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import exp, isfinite, log
from typing import Any, NamedTuple, cast

import msgspec

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import (
    BatchScorer,
    ExplainingScorer,
    Hits,
    Ranker,
    Score,
    Scorer,
    ScoreRequest,
    ToolScorer,
    all_awaited,
    checked_score,
    has_to_be_awaited,
    in_answer,
    is_async,
    numpy,
    scorer_name,
    together,
)
from toolcrib.pick.vectors import best_of
from toolcrib.threads import in_thread
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import names_wrong_types

# Shared by scorers that are made of others: parts of any kind as rankers, and several reasons as
# one.
#
# Rule: a part is trusted no more than a scorer is. Its weights are checked before they are added
# up.


def as_ranker(scorer: Scorer) -> Ranker:
    """Return a ranker that does what this scorer does. A function gets the request's text.

    The scores of an asynchronous scorer are awaited before the ranker is asked: `AwaitedRanker`.
    Raises PickError for a value that is no scorer.
    """
    ask = getattr(scorer, "hits", None) or getattr(scorer, "score", None) or scorer
    if isinstance(scorer, type) or not callable(ask):
        raise PickError(f"a part must be a scorer, not {scorer!r}")
    if hasattr(scorer, "hits"):
        if is_async(ask):
            name = scorer_name(scorer)
            raise PickError(f"scorer {name!r}: `hits` is not async; an async scorer has `score`")
        return cast("Ranker", scorer)
    return _AwaitedScorer(scorer) if is_async(ask) else _ScoreRanker(scorer)


class _AwaitedScorer:
    """An asynchronous batch scorer or function as a ranker, whose scores are awaited first."""

    asynchronous = True

    def __init__(self, scorer: BatchScorer | ToolScorer) -> None:
        self.name = scorer_name(scorer)
        self._scorer = scorer

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Ranker:
        request = ScoreRequest(query.text, query, tuple(tools), 0.0, len(tools))
        scores = await all_awaited(self._scorer, request)
        values = [float(score.score) for score in scores]
        return _FixedRanker(self.name, Hits(values, None, float), self._scorer, scores)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        raise PickError(f"scorer {self.name!r} is asynchronous: `pick_tools` awaits it")


class _FixedRanker:
    """Gives what a scorer found for one query, as a ranker does."""

    def __init__(
        self, name: str, hits: Hits, scorer: object = None, scores: Sequence[Score] = ()
    ) -> None:
        self.name = name
        self._hits = hits
        self._scorer = scorer
        self._scores = scores

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        return self._hits

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        if isinstance(self._scorer, ExplainingScorer):
            return self._scorer.explain(query, tools, picked)
        return [self._scores[position] for position in picked]


class _ScoreRanker:
    """A batch scorer or a function as a ranker, whose scores are the weights."""

    def __init__(self, scorer: Scorer) -> None:
        self.name = scorer_name(scorer)
        self._scorer = scorer

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        scores = self._scores_of(query, tools)
        if len(scores) != len(tools):
            raise PickError(
                f"scorer {self.name!r} gave {len(scores)} scores for {len(tools)} tools"
            )
        values = [
            float(checked_score(score, self.name, tool).score)
            for score, tool in zip(scores, tools, strict=True)
        ]
        return Hits(values, None, lambda score: score)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        if isinstance(self._scorer, ExplainingScorer):
            return self._scorer.explain(query, tools, picked)
        scores = self._scores_of(query, [tools[position] for position in picked])
        return [score if isinstance(score, Score) else Score(0.0) for score in scores]

    def _scores_of(self, query: Query, tools: Sequence[HasDefinition]) -> list[object]:
        if hasattr(self._scorer, "score"):
            return list(cast("Any", self._scorer).score(query, tools))
        function = cast("ToolScorer", self._scorer)
        return [function(query.text, tool) for tool in tools]


def column_of(ranker: Ranker, hits: Hits, count: int, *, missing: float = 0.0) -> Any:
    """Return the weights of `count` tools as an array, with `missing` for those that are no hit.

    Raises PickError, which names the ranker, for a weight that is no finite number or belongs to no
    tool.
    """
    values = numpy().asarray(hits.values, "float64")
    if not numpy().isfinite(values).all():
        raise PickError(f"scorer {ranker.name!r} gave a weight that is not a finite number")
    listed = range(count) if hits.positions is None else hits.positions
    positions = numpy().asarray(listed, "int64")
    if len(values) != len(positions) or not ((positions >= 0) & (positions < count)).all():
        raise PickError(f"scorer {ranker.name!r} gave weights that do not fit {count} tools")
    if hits.positions is None:
        return values
    column = numpy().full(count, missing)
    column[positions] = values
    return column


def reasons_of(
    ranker: Ranker, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
) -> Sequence[Score]:
    """Return a ranker's reasons for the tools at these positions, or empty ones if it gives none."""
    if not isinstance(ranker, ExplainingScorer):
        return [Score(0.0)] * len(picked)
    return ranker.explain(query, tools, picked)


class Summand(NamedTuple):
    """The weight that a named part adds to a tool, and the reason."""

    name: str
    added: float
    why: Score


def explained(parts: Sequence[Summand]) -> Score:
    """Join several reasons. The one of the part that added most comes first.

    `details["parts"]` has what each part added, by name. The parts' own details are next to it.
    """
    texts = [
        f"{name} {added:+.2f} ({why.reason})" if why.reason else f"{name} {added:+.2f}"
        for name, added, why in sorted(parts, key=lambda part: -abs(part.added))
    ]
    details: JsonObject = {name: why.details for name, _, why in parts if why.details is not None}
    added_up: JsonObject = {name: round(added, 6) for name, added, _ in parts}
    return Score(0.0, "; ".join(texts), {**details, "parts": added_up})


_NO_SPREAD = 1e-9
"""A spread below this share of the highest weight is a rounding error."""


class Hybrid:
    """Ranks by a weighted sum of z-scores, for parts whose weights have different units.

    A part is a ranker, a batch scorer or a function `(text, tool)`, sync or async (such as a
    `JudgeScorer`), with a weight. Its z-score is `(w - mean) / standard deviation` over all tools
    of the catalog, or 0 if all are equal. For a tool that is no hit, `w` is 0, or the part's lowest
    weight if that is lower. The best tool's score is the mean of the scores that its parts give it,
    by their weights (those below 0 count as 0). A tool whose sum is lower by `d` has `exp(-d / sum
    of |weights|)` of that, which is a factor of 0.37 for one standard deviation less in every part.

    Tools that were used before count as they do in the parts. A reason says what each part added,
    and `details["parts"]` has it by name. Raises PickError for parts that cannot be added up, and
    MissingExtraError without the extra "pick" (numpy). As deterministic, and as safe to use from
    threads, as its parts are. (`Light` and `Rerank` know the units of their parts, and do better.)
    """

    @names_wrong_types
    def __init__(self, parts: Sequence[tuple[Scorer, float]], *, name: str = "hybrid") -> None:
        if find_spec("numpy") is None:
            raise MissingExtraError("pick", "Hybrid")
        self.name = name
        self._rankers = [as_ranker(scorer) for scorer, _ in parts]
        self._weights = [float(weight) for _, weight in parts]
        self._sum = sum(map(abs, self._weights))
        if not isfinite(self._sum) or max(self._weights, default=0.0) <= 0:
            raise PickError(f"scorer {name!r} needs parts with finite weights, one of them above 0")
        names = [ranker.name for ranker in self._rankers]
        if len(set(names)) < len(names):
            raise PickError(f"scorer {name!r} has two parts of one name: {', '.join(names)}")

    @property
    def asynchronous(self) -> bool:
        """Whether a part has to be awaited. If so, `pick_tools` awaits it, and `hits` cannot be
        used."""
        return any(map(has_to_be_awaited, self._rankers))

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Hybrid:
        """Return the same with parts that have their answers. All of them are awaited together."""
        rankers = await together(in_answer(ranker, query, tools) for ranker in self._rankers)
        return Hybrid(list(zip(rankers, self._weights, strict=True)), name=self.name)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return the sum for every tool."""
        if not tools:
            return Hits([], None, float)
        columns = self._columns(query, tools)
        total: Any = sum(column.added for column in columns)
        best_position = int(total.argmax())
        highest = float(total[best_position])
        positive = [max(weight, 0.0) for weight in self._weights]
        scores = [column.score(best_position) for column in columns]
        best_score = sum(w * s for w, s in zip(positive, scores, strict=True)) / sum(positive)
        return Hits(
            total, None, lambda weight: best_score * exp(min(weight - highest, 0.0) / self._sum)
        )

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return, for the tools at these positions, what each part added, and why."""
        columns = self._columns(query, tools)
        reasons = [reasons_of(ranker, query, tools, picked) for ranker in self._rankers]
        names = [ranker.name for ranker in self._rankers]
        return [
            explained(
                [
                    Summand(name, float(column.added[position]), why[row])
                    for name, column, why in zip(names, columns, reasons, strict=True)
                ]
            )
            for row, position in enumerate(picked)
        ]

    def _columns(self, query: Query, tools: Sequence[HasDefinition]) -> list[_Column]:
        return [
            _standardised(ranker, weight, ranker.hits(query, tools, None), len(tools))
            for ranker, weight in zip(self._rankers, self._weights, strict=True)
        ]


class _Column(msgspec.Struct, frozen=True):
    """The hits of a part as a column of what they add to each tool."""

    hits: Hits
    added: Any

    def score(self, position: int) -> float:
        """Return the part's own score of a tool."""
        positions = self.hits.positions
        if positions is not None:
            rows = numpy().nonzero(numpy().asarray(positions) == position)[0]
            if not len(rows):
                return 0.0
            position = int(rows[0])
        return self.hits.calibrated(float(self.hits.values[position]))


def _standardised(ranker: Ranker, weight: float, hits: Hits, count: int) -> _Column:
    lowest = min([0.0, *map(float, hits.values)]) if hits.positions is not None else 0.0
    column = column_of(ranker, hits, count, missing=lowest)
    largest = abs(column).max()
    if largest == 0:
        return _Column(hits, column)
    column = column / largest  # so that squares neither overflow nor underflow
    spread = column.std()
    if spread <= _NO_SPREAD:
        return _Column(hits, numpy().zeros(count))
    return _Column(hits, weight * (column - column.mean()) / spread)


# Two scorers in a row: a quick one looks at all tools, a thorough one at the best of them.
#
# Rule: a tool that the first does not pick is no hit, whatever the second would say about it.


class Cascade:
    """`first` picks `keep` tools of the catalog. `then` ranks and scores only those.

    Each is a ranker, a batch scorer or a function `(text, tool)`, sync or async, and may itself be
    made of others: `Cascade(Light(), JudgeScorer(client))` asks a model about the best of many.
    What `then` knows about a catalog (how common a word is) is based on the picked tools only.
    Raises PickError for a value that is no scorer, and for a `keep` below 1. As deterministic, and
    as safe to use from threads, as the two are.
    """

    @names_wrong_types
    def __init__(
        self, first: Scorer, then: Scorer, *, keep: int = 100, name: str = "cascade"
    ) -> None:
        if keep < 1:
            raise PickError(f"scorer {name!r}: keep must be at least 1, not {keep!r}")
        self.name = name
        self._first = as_ranker(first)
        self._then = as_ranker(then)
        self._keep = keep

    @property
    def asynchronous(self) -> bool:
        """Whether one of the two has to be awaited. If so, `pick_tools` awaits it, and `hits`
        cannot be used."""
        return has_to_be_awaited(self._first) or has_to_be_awaited(self._then)

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Cascade:
        """Return the same with two that have their answers. `then` is asked about what `first`
        picked."""
        first = await in_answer(self._first, query, tools)
        positions = await in_thread(lambda: self._best(first, query, tools))
        then = await in_answer(self._then, query, tuple([tools[i] for i in positions]))
        fixed = _FixedRanker(first.name, Hits([0.0] * len(positions), positions, float))
        return Cascade(fixed, then, keep=self._keep, name=self.name)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return the tools that `first` picked, with the weights that `then` gives them."""
        positions = self._best(self._first, query, tools)
        hits = self._then.hits(query, tuple([tools[i] for i in positions]), limit)
        rows = range(len(positions)) if hits.positions is None else hits.positions
        return Hits(hits.values, [positions[row] for row in rows], hits.calibrated)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return the reasons of `then`."""
        positions = self._best(self._first, query, tools)
        row_of = {position: row for row, position in enumerate(positions)}
        ranked = [position for position in picked if position in row_of]
        ranked_tools = tuple([tools[i] for i in positions])
        reasons = reasons_of(
            self._then, query, ranked_tools, [row_of[position] for position in ranked]
        )
        reason_of = dict(zip(ranked, reasons, strict=True))
        unranked = Score(0.0, f"not among the best {self._keep} of {self._first.name}")
        return [reason_of.get(position, unranked) for position in picked]

    def _best(self, first: Ranker, query: Query, tools: Sequence[HasDefinition]) -> list[int]:
        """Return the best positions in registration order, which equal scores then keep."""
        return sorted(p for p, _ in first.hits(query, tools, self._keep).best(self._keep))


# The recommended scorer with numpy and WordLlama: words and meaning together, offline.
#
# Rule: a tool's weight depends on the request, the tool and how common its words are, and not on
# the weights of other tools. BM25 and a cosine are added up directly.
#
# This is better than z-scores (nDCG@10 on metatool, bfcl, nestful: .709, .807, .866 against .688,
# .803, .865), which exaggerate a chance match if there is no real one. It also needs no mean over
# the catalog. Logistic regressions that were fitted on two of the sets, with and without z-scores
# among their features, were no better on the third.

_NEARNESS_WEIGHT = 35.0
"""The value of a cosine of 1 in units of BM25."""
_MOST_LIKELY = 300
_FEWEST_TOOLS = 100


class Light:
    """Ranks by `BM25 + 35 * nearness`, the weights of `KeywordScorer` and `EmbeddingScorer`;
    offline.

    The score is `1 / (1 + exp(-(weight - 10 - 4 ln n) / 7.5))`, with `n` the number of tools, at
    least 100. The best tools of a larger catalog reach higher weights by accident. At 0.05, 3 % of
    the requests of metatool, bfcl and nestful lose their right tool.

    In a large catalog (8,192 texts) only 300 tools are weighed exactly: the best by single words
    and by the first 64 of 256 dimensions. With 30,000 tools, those include 99 of 100 that are among
    the best ten. Raises MissingExtraError without the extra "pick". Deterministic, and safe to use
    from threads.
    """

    name = "light"

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._embedding = EmbeddingScorer(vectors)
        self._keyword = KeywordScorer()

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """Return every tool's weight. With a `limit`, for a large catalog, only those that may be
        the best."""
        if not tools:
            return Hits([], None, float)
        positions = (
            None if limit is None else self._likely(query, tools, max(_MOST_LIKELY, 2 * limit))
        )
        word_weights, nearness = self._added(query, tools, positions)
        return Hits(word_weights + nearness, positions, logistic(10.0, 4.0, 7.5, len(tools)))

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """Return, for these tools, which words they share with the request, and how near they are
        to it."""
        return [explained(parts) for parts in self.summands(query, tools, picked)]

    def summands(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> list[list[Summand]]:
        """Return what the weights of the tools at these positions consist of."""
        word_weights, nearness = self._added(query, tools, numpy().array(picked, "int64"))
        word_reasons = self._keyword.explain(query, tools, picked)
        meaning_reasons = self._embedding.explain(query, tools, picked)
        return [
            [
                Summand(self._keyword.name, float(word_weights[row]), word_reasons[row]),
                Summand(self._embedding.name, float(nearness[row]), meaning_reasons[row]),
            ]
            for row in range(len(picked))
        ]

    def _added(
        self, query: Query, tools: Sequence[HasDefinition], positions: Any
    ) -> tuple[Any, Any]:
        """Return what words and meaning add to the tools at these positions, or to all; float64."""
        words = self._keyword.weights(query, tools, positions)
        return words, _NEARNESS_WEIGHT * self._embedding.weights(query, tools, positions).astype(
            "float64"
        )

    def _likely(self, query: Query, tools: Sequence[HasDefinition], count: int) -> Any:
        """Return the `count` best by an estimate, or None if all are to be weighed."""
        nearness = self._embedding.glance(query, tools)
        if nearness is None or count >= len(tools):
            return None
        return best_of(self._keyword.glance(query, tools) + _NEARNESS_WEIGHT * nearness, count)


def logistic(middle: float, slope: float, spread: float, tools: int) -> Callable[[float], float]:
    """Return a function from weights to scores, with 0.5 at `middle + slope * ln(n)`, where n is
    the number of tools, at least 100. Each further `spread` multiplies the odds by 2.7."""
    half = middle + slope * log(max(tools, _FEWEST_TOOLS))

    def score(weight: float) -> float:
        distance = (weight - half) / spread
        return 1 / (1 + exp(-distance)) if distance > 0 else exp(distance) / (1 + exp(distance))

    return score
