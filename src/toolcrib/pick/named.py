"""Scorers by name, as `PickOptions(scorer="…")` and the command line take them.

Rule: one instance a name and process, so that what it derived from a catalog outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick.dense.embedding import EmbeddingScorer
from toolcrib.pick.fusion.light import Light
from toolcrib.pick.fusion.rerank import Rerank
from toolcrib.pick.lexical.keyword import KeywordScorer
from toolcrib.pick.scoring.scorer import Ranker


def _auto() -> Ranker:
    """The best that is installed, under its own name."""
    for name in ("rerank", "light"):
        try:
            return scorer_named(name)
        except MissingExtraError:
            continue
    return scorer_named("keyword")


SCORERS: dict[str, Callable[[], Ranker]] = {
    "keyword": KeywordScorer,
    "embedding": EmbeddingScorer,
    "light": Light,
    "rerank": Rerank,
    "auto": _auto,
}
"""What a name stands for, the default first."""

DEFAULT_SCORER = next(iter(SCORERS))


@cache
def scorer_named(name: str) -> Ranker:
    """The shared scorer of that name; "auto" is "rerank", "light" or "keyword", the best installed.

    Raises PickError for another name, MissingExtraError for one that needs what is not installed.
    """
    if name not in SCORERS:
        raise PickError(f"there is no scorer {name!r}: take one of {', '.join(SCORERS)}")
    return SCORERS[name]()
