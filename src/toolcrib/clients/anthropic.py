"""Anthropic, and every server that speaks its Messages wire."""

from __future__ import annotations

import os
from typing import Unpack

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of, same_server
from toolcrib.clients.sdk import SdkClient, over_sdk
from toolcrib.wire import ANTHROPIC

ANTHROPIC_URL = "https://api.anthropic.com"


class AnthropicClient(WireClient):
    """A model behind Anthropic's Messages wire.

    `base_url` (what comes before `/v1/messages`) and `api_key` default to `ANTHROPIC_BASE_URL` and
    `ANTHROPIC_API_KEY`, the base then to Anthropic's own; without a key, `ANTHROPIC_AUTH_TOKEN` is
    sent as a bearer token. A `base_url` that is passed here gets neither from the environment, which is
    meant for another server: pass `api_key` if it wants one. Instead of both, `sdk` is a client of the
    anthropic package (`AsyncAnthropic`, or that for Vertex, Bedrock or Foundry), which has its own, and
    stays yours to close. Features in beta are asked for by `headers={"anthropic-beta": …}`.

    Raises AuthenticationError where Anthropic's own server is meant and there is no key, RequestError
    for an `sdk` that is none.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        sdk: SdkClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        if sdk is not None:
            base, options = over_sdk(sdk, options, base_url=base_url, api_key=api_key)
        else:
            base = base_url or os.environ.get("ANTHROPIC_BASE_URL", "").strip() or ANTHROPIC_URL
            own = same_server(checked_url(base), ANTHROPIC_URL)
            auth = _auth(api_key, looked_up=base_url is None or own, needed=own)
            options = with_headers(auth, options)
        super().__init__(ANTHROPIC, model, base_url=base, **options)


def _auth(api_key: str | None, *, looked_up: bool, needed: bool) -> dict[str, str]:
    """The header for a key; else that for a token, as Anthropic's own client does it."""
    token = key_of(None, "ANTHROPIC_AUTH_TOKEN", looked_up=looked_up, needed=False)
    needed = needed and not token
    key = key_of(api_key, "ANTHROPIC_API_KEY", looked_up=looked_up, needed=needed)
    if key:
        return dict(ANTHROPIC.auth(key))
    return {"Authorization": f"Bearer {token}"} if token else {}
