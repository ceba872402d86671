"""OpenAI Chat Completions, and the servers that speak it."""

from toolcrib.wire.openai_chat.wire import OPENAI_CHAT

__all__ = ["OPENAI_CHAT"]
