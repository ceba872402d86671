"""Ollama, on this machine or another."""

from __future__ import annotations

import os
from typing import Unpack
from urllib.parse import urlsplit

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of
from toolcrib.errors import RequestError
from toolcrib.wire import OLLAMA

OLLAMA_URL = "http://localhost:11434"

_PORT = 11434
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  where a server listens, not where it is


class OllamaClient(WireClient):
    """A model that an Ollama server has (`ollama pull NAME`).

    `base_url` (what comes before `/api/chat`) defaults to `OLLAMA_HOST`, then to
    `http://localhost:11434`. Without a scheme it is taken as Ollama's own programs take it:
    `gpu-box` is `http://gpu-box:11434`. A server of one's own asks for no key; ollama.com does: pass
    `api_key`.

    The server drops the beginning of a conversation that is longer than its context, without a word:
    set that with `Settings(extra={"options": {"num_ctx": 32768}})`. A model may take minutes to load:
    `timeouts` says how long to wait for its first word.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        key = key_of(api_key, looked_up=False, needed=False)
        super().__init__(
            OLLAMA,
            model,
            base_url=_url(base_url or os.environ.get("OLLAMA_HOST", "").strip() or OLLAMA_URL),
            **with_headers(OLLAMA.auth(key) if key else {}, options),
        )


def _url(host: str) -> str:
    """The base URL for what `OLLAMA_HOST` may hold. Raises RequestError.

    `:8080`, `gpu-box`, `gpu-box/ollama`, a URL; the address that means every interface is this
    machine.
    """
    bare = "://" not in host
    try:
        parts = urlsplit(f"http://{host}" if bare else host)
        port = parts.port or (_PORT if bare else None)
    except ValueError:
        raise RequestError("OLLAMA_HOST, or the base URL, is neither a host nor a URL") from None
    name = parts.hostname or ("127.0.0.1" if bare else "")
    name = _ANYWHERE.get(name, f"[{name}]" if ":" in name else name)
    login = parts.netloc.rpartition("@")[0]
    server = f"{login}@{name}" if login else name
    end = f":{port}" if port else ""
    query = f"?{parts.query}" if parts.query else ""
    return checked_url(f"{parts.scheme}://{server}{end}{parts.path.rstrip('/')}{query}")
