"""Cohere's chat, version 2."""

from toolcrib.wire.cohere.wire import COHERE

__all__ = ["COHERE"]
