"""OpenAI, and every server that speaks one of its two wires."""

from __future__ import annotations

import os
from typing import Literal, Unpack

import msgspec

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of, same_server
from toolcrib.clients.sdk import SdkClient, over_sdk
from toolcrib.errors import RequestError
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
    for another server: pass `api_key` if it wants one. Instead of both, `sdk` is a client of the
    openai package (`AsyncOpenAI`, `AsyncAzureOpenAI`), which has its own, and stays yours to close.

    Raises AuthenticationError where OpenAI's own server is meant and there is no key, RequestError for
    an API that there is not, and for an `sdk` that is none.
    """

    def __init__(
        self,
        model: str,
        *,
        api: Literal["chat", "responses"] = "chat",
        base_url: str | None = None,
        api_key: str | None = None,
        sdk: SdkClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        if sdk is not None:
            base, options = over_sdk(sdk, options, base_url=base_url, api_key=api_key)
        else:
            base = base_of(base_url)
        is_openai = same_server(checked_url(base), OPENAI_URL)
        wire = _wire(api, is_openai=is_openai)
        if sdk is None:
            key = key_for(checked_url(base), base_url, api_key)
            options = with_headers(wire.auth(key) if key else {}, options)
        super().__init__(wire, model, base_url=base, **options)


def base_of(base_url: str | None) -> str:
    """The address given, or that of the environment, or OpenAI's own."""
    return base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL


def key_for(base: str, base_url: str | None, api_key: str | None) -> str:
    """The key for the server at `base`, which is what `base_of` made of `base_url`; it may be empty.

    The environment's is for the environment's server, and OpenAI's own. Raises AuthenticationError
    where that is meant, and there is none.
    """
    is_openai = same_server(base, OPENAI_URL)
    look = base_url is None or is_openai
    return key_of(api_key, "OPENAI_API_KEY", looked_up=look, needed=is_openai)


def _wire(api: str, *, is_openai: bool) -> Wire:
    if api == "responses":
        return OPENAI_RESPONSES
    if api != "chat":
        raise RequestError(f"OpenAI has no API {api!r}; there are: chat, responses")
    return _OPENAI if is_openai else OPENAI_CHAT
