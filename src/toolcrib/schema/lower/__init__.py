"""Views of an author's schema for endpoints that do not support all of JSON Schema."""

from toolcrib.schema.lower.restore import ViewRestorer
from toolcrib.schema.lower.tree import Dialect, Effect, Loss, Lowered
from toolcrib.schema.lower.walk import WRAPPER, accepts_unchanged, compact, lower

__all__ = [
    "WRAPPER",
    "Dialect",
    "Effect",
    "Loss",
    "Lowered",
    "ViewRestorer",
    "accepts_unchanged",
    "compact",
    "lower",
]
