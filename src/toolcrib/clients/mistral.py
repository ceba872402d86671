"""Mistral, and every server that speaks its wire."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.clients.base import WireClient, checked_url
from toolcrib.clients.transport import Timeouts, Transport
from toolcrib.errors import AuthenticationError
from toolcrib.values.message import Settings
from toolcrib.wire import MISTRAL

MISTRAL_URL = "https://api.mistral.ai/v1"


class MistralClient(WireClient):
    """A model behind Mistral's wire.

    `base_url` (what comes before `/chat/completions`) defaults to Mistral's own; `api_key` then to
    `MISTRAL_API_KEY`, which no other server gets: pass `api_key` if it wants one. Raises
    AuthenticationError where Mistral's own server is meant and there is no key.
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
        base = checked_url(base_url or MISTRAL_URL)
        key = (api_key or "").strip()
        if not key and urlsplit(base).hostname == urlsplit(MISTRAL_URL).hostname:
            key = os.environ.get("MISTRAL_API_KEY", "").strip()
            if not key:
                raise AuthenticationError("there is no key: set MISTRAL_API_KEY, or pass api_key=…")
        super().__init__(
            MISTRAL,
            model,
            base_url=base,
            headers={**(MISTRAL.auth(key) if key else {}), **(headers or {})},
            settings=settings,
            transport=transport,
            timeouts=timeouts,
        )
