"""Anthropic, and every server that speaks its Messages wire."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from toolcrib.clients.base import WireClient, checked_url
from toolcrib.clients.transport import Timeouts, Transport
from toolcrib.errors import AuthenticationError
from toolcrib.values.message import Settings
from toolcrib.wire import ANTHROPIC

ANTHROPIC_URL = "https://api.anthropic.com"


class AnthropicClient(WireClient):
    """A model behind Anthropic's Messages wire.

    `base_url` (what comes before `/v1/messages`) and `api_key` default to `ANTHROPIC_BASE_URL` and
    `ANTHROPIC_API_KEY`, the base then to Anthropic's own. A `base_url` that is passed here gets no key
    from the environment, which is meant for another server: pass `api_key` if it wants one. Features
    in beta are asked for by `headers={"anthropic-beta": …}`. Raises AuthenticationError where
    Anthropic's own server is meant and there is no key.
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
        base = base_url or os.environ.get("ANTHROPIC_BASE_URL", "").strip() or ANTHROPIC_URL
        checked_url(base)
        key = (api_key or "").strip()
        is_anthropic = urlsplit(base).hostname == urlsplit(ANTHROPIC_URL).hostname
        if not key and (base_url is None or is_anthropic):
            key = os.environ.get("ANTHROPIC_API_KEY", "").strip()
        if not key and is_anthropic:
            raise AuthenticationError("there is no key: set ANTHROPIC_API_KEY, or pass api_key=…")
        super().__init__(
            ANTHROPIC,
            model,
            base_url=base,
            headers={**(ANTHROPIC.auth(key) if key else {}), **(headers or {})},
            settings=settings,
            transport=transport,
            timeouts=timeouts,
        )
