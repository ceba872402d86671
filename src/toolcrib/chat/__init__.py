"""The chat endpoint: threads on the server, streamed runs, and approvals that it asked for.

Its other interfaces are OpenAI's chat completions (`openai_routes`) and AG-UI
(`toolcrib.chat.ag_ui.ag_ui_route`).
"""

from __future__ import annotations

from toolcrib.chat.app import chat_app, stream_response
from toolcrib.chat.doors import ChatError, ChatLimits, bearer
from toolcrib.chat.messages import check_messages
from toolcrib.chat.openai import openai_routes
from toolcrib.chat.threads import ThreadStore

__all__ = [
    "ChatError",
    "ChatLimits",
    "ThreadStore",
    "bearer",
    "chat_app",
    "check_messages",
    "openai_routes",
    "stream_response",
]
