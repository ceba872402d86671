"""Views of an author's schema for endpoints that take less than all of JSON Schema."""

from toolcrib.schema.lower.base import Dialect, Effect, Loss, Lowered

__all__ = ["Dialect", "Effect", "Loss", "Lowered"]
