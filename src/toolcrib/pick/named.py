"""Scorers by name, as `PickOptions(scorer="…")` and the command line take them.

Rule: one instance a name and process, so that what it derived from a catalog outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from toolcrib.errors import PickError
from toolcrib.pick.embedding import EmbeddingScorer
from toolcrib.pick.keyword import KeywordScorer
from toolcrib.pick.scorer import Ranker

SCORERS: dict[str, Callable[[], Ranker]] = {
    "keyword": KeywordScorer,
    "embedding": EmbeddingScorer,
}
"""What a name stands for, the default first."""


@cache
def scorer_named(name: str) -> Ranker:
    """The shared scorer of that name. Raises PickError for another name, MissingExtraError."""
    if name not in SCORERS:
        raise PickError(f"there is no scorer {name!r}: take one of {', '.join(SCORERS)}")
    return SCORERS[name]()
