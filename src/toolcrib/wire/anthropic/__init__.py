"""Anthropic Messages."""

from toolcrib.wire.anthropic.wire import ANTHROPIC

__all__ = ["ANTHROPIC"]
