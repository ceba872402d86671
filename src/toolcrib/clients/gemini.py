"""Google's Gemini, and every server that speaks its generateContent wire."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.clients.base import WireClient, checked_url
from toolcrib.clients.transport import Timeouts, Transport
from toolcrib.errors import AuthenticationError
from toolcrib.values.message import Settings
from toolcrib.wire import GEMINI

GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta"

_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")


class GeminiClient(WireClient):
    """A model behind Gemini's generateContent wire.

    `model` is a name below `models/`, or that of a resource (`tunedModels/…`); `base_url` is what
    comes before it, and defaults to Google's own. `api_key` defaults to `GEMINI_API_KEY`, then
    `GOOGLE_API_KEY`. A `base_url` that is passed here gets no key from the environment, which is meant
    for another server: pass `api_key` if it wants one, or `headers={"Authorization": …}` where it is
    Vertex AI. Raises AuthenticationError where Google's own server is meant and there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008  frozen
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        base = checked_url(base_url or GEMINI_URL)
        key = (api_key or "").strip()
        if urlsplit(base).hostname == urlsplit(GEMINI_URL).hostname:
            key = key or next(filter(None, (os.environ.get(n, "").strip() for n in _KEYS)), "")
            if not key:
                raise AuthenticationError("there is no key: set GEMINI_API_KEY, or pass api_key=…")
        super().__init__(
            GEMINI,
            model,
            base_url=base,
            headers={**(GEMINI.auth(key) if key else {}), **(headers or {})},
            settings=settings,
            transport=transport,
            timeouts=timeouts,
        )
