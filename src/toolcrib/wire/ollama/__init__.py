"""Ollama's chat."""

from toolcrib.wire.ollama.wire import OLLAMA

__all__ = ["OLLAMA"]
