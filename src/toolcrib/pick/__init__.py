"""Picking: of a catalog of any size, the few tools that a request needs, and why. Runs nothing.

Importing this room loads no optional dependency: scorers load theirs at the first request.
"""

from toolcrib.pick.cached import CachedEmbedder
from toolcrib.pick.cascade import Cascade
from toolcrib.pick.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.feedback import Feedback
from toolcrib.pick.filters import Excluded, Quota
from toolcrib.pick.function_embedder import FunctionEmbedder
from toolcrib.pick.hits import Hits
from toolcrib.pick.hybrid import Hybrid
from toolcrib.pick.judge import JudgeScorer
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.light import Light
from toolcrib.pick.minilm import MiniLM
from toolcrib.pick.named import SCORERS, scorer_named
from toolcrib.pick.options import PickOptions
from toolcrib.pick.pick import PickResult, Provenance, pick_tools
from toolcrib.pick.query import Query, query_of
from toolcrib.pick.report import PickReport, ScoredTool, explain_pick
from toolcrib.pick.rerank import Rerank
from toolcrib.pick.scorer import BatchScorer, ExplainingScorer, Ranker, Score, Scorer, ToolScorer
from toolcrib.pick.vectors import WordVectors
from toolcrib.pick.with_feedback import WithFeedback

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
