"""Picking: of a catalog of any size, the few tools that a request needs, and why. Runs nothing.

Importing this room loads no optional dependency: `WordVectors` and `EmbeddingScorer` load theirs at
the first request.
"""

from toolcrib.pick.embedding import Embedder, EmbeddingScorer
from toolcrib.pick.filters import Excluded
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.pick import PickOptions, PickResult, Provenance, pick_tools
from toolcrib.pick.scorer import BatchScorer, ExplainingScorer, Score, Scorer, ToolScorer
from toolcrib.pick.vectors import WordVectors

__all__ = [
    "BatchScorer",
    "Embedder",
    "EmbeddingScorer",
    "Excluded",
    "ExplainingScorer",
    "KeywordScorer",
    "PickOptions",
    "PickResult",
    "Provenance",
    "Score",
    "Scorer",
    "ToolScorer",
    "WordVectors",
    "pick_tools",
]
