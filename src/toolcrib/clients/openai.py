"""OpenAI, and every server that speaks one of its two wires."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.base import WireClient, checked_url
from toolcrib.clients.transport import Timeouts, Transport
from toolcrib.errors import AuthenticationError, RequestError
from toolcrib.values.message import Settings
from toolcrib.wire import OPENAI_CHAT, OPENAI_RESPONSES, Wire

OPENAI_URL = "https://api.openai.com/v1"

_OPENAI = msgspec.structs.replace(OPENAI_CHAT, max_tokens_key="max_completion_tokens")
"""OpenAI refuses `max_tokens` for its reasoning models; many other servers know only that."""


class OpenAIClient(WireClient):
    """A model behind OpenAI's wires: `api` is "chat" (Chat Completions) or "responses".

    Models that reason keep their reasoning between the turns of a conversation only with
    "responses"; "chat" is what nearly every other server knows.

    `base_url` and `api_key` default to `OPENAI_BASE_URL` and `OPENAI_API_KEY`, the base then to
    OpenAI's own. A `base_url` that is passed here gets no key from the environment, which is meant
    for another server: pass `api_key` if it wants one. Raises AuthenticationError where OpenAI's
    own server is meant and there is no key, RequestError for an API that there is not.
    """

    def __init__(
        self,
        model: str,
        *,
        api: Literal["chat", "responses"] = "chat",
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008  frozen
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        base = base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL
        checked_url(base)
        key = (api_key or "").strip()
        is_openai = urlsplit(base).hostname == urlsplit(OPENAI_URL).hostname
        if not key and (base_url is None or is_openai):
            key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key and is_openai:
            raise AuthenticationError("there is no key: set OPENAI_API_KEY, or pass api_key=…")
        wire = _wire(api, is_openai=is_openai)
        super().__init__(
            wire,
            model,
            base_url=base,
            headers={**(wire.auth(key) if key else {}), **(headers or {})},
            settings=settings,
            transport=transport,
            timeouts=timeouts,
        )


def _wire(api: str, *, is_openai: bool) -> Wire:
    if api == "responses":
        return OPENAI_RESPONSES
    if api != "chat":
        raise RequestError(f"OpenAI has no API {api!r}; there are: chat, responses")
    return _OPENAI if is_openai else OPENAI_CHAT
