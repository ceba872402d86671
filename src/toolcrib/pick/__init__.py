"""Picking: the few tools that a request needs from a catalog of any size, and why. No tool runs.

Importing this package loads no optional dependency. Scorers load theirs at the first request.
"""

from toolcrib.pick.embedding import CachedEmbedder, Embedder, EmbeddingScorer, FunctionEmbedder
from toolcrib.pick.feedback import Feedback, WithFeedback
from toolcrib.pick.hybrid import Cascade, Hybrid, Light
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.options import SCORERS, Excluded, PickOptions, Quota, scorer_named
from toolcrib.pick.pick import (
    PickProvenance,
    PickReport,
    PickResult,
    ScoredTool,
    explain_pick,
    pick_tools,
)
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.rerank import JudgeScorer, MiniLM, Rerank
from toolcrib.pick.scorer import (
    BatchScorer,
    ExplainingScorer,
    Hits,
    Ranker,
    Score,
    Scorer,
    ToolScorer,
)
from toolcrib.pick.vectors import WordVectors

__all__ = [
    "SCORERS",
    "BatchScorer",
    "CachedEmbedder",
    "Cascade",
    "Embedder",
    "EmbeddingScorer",
    "Excluded",
    "ExplainingScorer",
    "Feedback",
    "FunctionEmbedder",
    "Hits",
    "Hybrid",
    "JudgeScorer",
    "KeywordScorer",
    "Light",
    "MiniLM",
    "PickOptions",
    "PickProvenance",
    "PickReport",
    "PickResult",
    "Query",
    "Quota",
    "Ranker",
    "Rerank",
    "Score",
    "ScoredTool",
    "Scorer",
    "ToolScorer",
    "WithFeedback",
    "WordVectors",
    "explain_pick",
    "pick_tools",
    "query_of",
    "scorer_named",
]
