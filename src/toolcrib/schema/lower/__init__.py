"""Views of an author's schema for endpoints that take less than all of JSON Schema."""

from toolcrib.schema.lower.as_it_is import taken_as_it_is
from toolcrib.schema.lower.base import Dialect, Effect, Loss, Lowered
from toolcrib.schema.lower.compact import compact
from toolcrib.schema.lower.top import WRAPPER, lower
from toolcrib.schema.lower.way_back import ViewWayBack

__all__ = [
    "WRAPPER",
    "Dialect",
    "Effect",
    "Loss",
    "Lowered",
    "ViewWayBack",
    "compact",
    "lower",
    "taken_as_it_is",
]
