"""Gemini generateContent."""

from toolcrib.wire.gemini.wire import GEMINI

__all__ = ["GEMINI"]
