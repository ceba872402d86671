"""Cohere, and every server that speaks version 2 of its chat."""

from __future__ import annotations

from typing import Unpack

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of, same_server
from toolcrib.wire import COHERE

COHERE_URL = "https://api.cohere.com/v2"


class CohereClient(WireClient):
    """A model behind Cohere's wire.

    `base_url` (what comes before `/chat`) defaults to Cohere's own; `api_key` then to `CO_API_KEY` or
    `COHERE_API_KEY`, which no other server gets: pass `api_key` if it wants one. Raises
    AuthenticationError where Cohere's own server is meant and there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        base = checked_url(base_url or COHERE_URL)
        own = same_server(base, COHERE_URL)
        key = key_of(api_key, "CO_API_KEY", "COHERE_API_KEY", looked_up=own, needed=own)
        super().__init__(
            COHERE,
            model,
            base_url=base,
            **with_headers(COHERE.auth(key) if key else {}, options),
        )
