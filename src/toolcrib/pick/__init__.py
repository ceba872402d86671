"""Picking: of a catalog of any size, the few tools that a request needs, and why. Runs nothing.

Importing this room loads no optional dependency: `WordVectors` and `EmbeddingScorer` load theirs at
the first request.
"""

from toolcrib.pick.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.filters import Excluded
from toolcrib.pick.hits import Hits
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.named import SCORERS, scorer_named
from toolcrib.pick.options import PickOptions
from toolcrib.pick.pick import PickResult, Provenance, pick_tools
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.scorer import BatchScorer, ExplainingScorer, Ranker, Score, Scorer, ToolScorer
from toolcrib.pick.vectors import WordVectors

__all__ = [
    "SCORERS",
    "BatchScorer",
    "Embedder",
    "EmbeddingScorer",
    "Excluded",
    "ExplainingScorer",
    "Hits",
    "KeywordScorer",
    "PickOptions",
    "PickResult",
    "Provenance",
    "Query",
    "Ranker",
    "Score",
    "Scorer",
    "ToolScorer",
    "WordVectors",
    "pick_tools",
    "query_of",
    "scorer_named",
]
