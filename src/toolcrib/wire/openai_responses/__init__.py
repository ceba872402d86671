"""OpenAI Responses."""

from toolcrib.wire.openai_responses.wire import OPENAI_RESPONSES

__all__ = ["OPENAI_RESPONSES"]
