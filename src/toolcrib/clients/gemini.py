"""Google's Gemini, and every server that speaks its generateContent wire."""

from __future__ import annotations

from typing import Unpack

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of, same_server
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
        **options: Unpack[Options],
    ) -> None:
        base = checked_url(base_url or GEMINI_URL)
        own = same_server(base, GEMINI_URL)
        key = key_of(api_key, *_KEYS, looked_up=own, needed=own)
        super().__init__(
            GEMINI,
            model,
            base_url=base,
            **with_headers(GEMINI.auth(key) if key else {}, options),
        )
