"""Mistral, and every server that speaks its wire."""

from __future__ import annotations

from typing import Unpack

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of, same_server
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
        **options: Unpack[Options],
    ) -> None:
        base = checked_url(base_url or MISTRAL_URL)
        own = same_server(base, MISTRAL_URL)
        key = key_of(api_key, "MISTRAL_API_KEY", looked_up=own, needed=own)
        super().__init__(
            MISTRAL,
            model,
            base_url=base,
            **with_headers(MISTRAL.auth(key) if key else {}, options),
        )
