"""The chat endpoint: threads on the server, streamed runs, approvals that it asked for."""

from __future__ import annotations

from toolcrib.chat.app import ChatLimits, chat_app
from toolcrib.chat.threads import ThreadStore

__all__ = ["ChatLimits", "ThreadStore", "chat_app"]
