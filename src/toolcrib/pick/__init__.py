"""Picking: of a catalog of any size, the few tools that a request needs, and why. Runs nothing.

Importing this room loads no optional dependency: scorers load theirs at the first request.
"""

from toolcrib.pick.dense.cached import CachedEmbedder
from toolcrib.pick.dense.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.dense.function_embedder import FunctionEmbedder
from toolcrib.pick.dense.minilm import MiniLM
from toolcrib.pick.dense.vectors import WordVectors
from toolcrib.pick.filters import Excluded, Quota
from toolcrib.pick.fusion.cascade import Cascade
from toolcrib.pick.fusion.feedback import Feedback
from toolcrib.pick.fusion.hybrid import Hybrid
from toolcrib.pick.fusion.light import Light
from toolcrib.pick.fusion.rerank import Rerank
from toolcrib.pick.fusion.with_feedback import WithFeedback
from toolcrib.pick.judge import JudgeScorer
from toolcrib.pick.lexical.keyword import KeywordScorer
from toolcrib.pick.named import SCORERS, scorer_named
from toolcrib.pick.options import PickOptions
from toolcrib.pick.pick import PickResult, Provenance, pick_tools
from toolcrib.pick.report import PickReport, ScoredTool, explain_pick
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import (
    BatchScorer,
    ExplainingScorer,
    Ranker,
    Score,
    Scorer,
    ToolScorer,
)
from toolcrib.pick.text.query import Query, query_of

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
    "PickReport",
    "PickResult",
    "Provenance",
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
