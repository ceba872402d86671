"""The chat endpoint: threads on the server, streamed runs, approvals that it asked for."""

from __future__ import annotations

from toolcrib.chat.app import chat_app, stream_response
from toolcrib.chat.doors import ChatError, ChatLimits, bearer
from toolcrib.chat.messages import check_messages
from toolcrib.chat.threads import ThreadStore

__all__ = [
    "ChatError",
    "ChatLimits",
    "ThreadStore",
    "bearer",
    "chat_app",
    "check_messages",
    "stream_response",
]
