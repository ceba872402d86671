"""Mistral's chat."""

from toolcrib.wire.mistral.wire import MISTRAL

__all__ = ["MISTRAL"]
