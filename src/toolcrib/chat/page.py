"""The page: files that are built from `web/`, and headers that let it run no script but its own.

Rule: nothing that a model or a tool says can become part of the page: scripts and styles come from
these files alone, and it talks to this server alone.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from toolcrib.errors import MissingExtraError

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "index.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page: `/` and its files. They hold nothing of anybody: who asks is
    asked where the threads are."""
    return [_route(name, kind) for name, kind in _FILES.items()]


def _route(name: str, kind: str) -> Route:
    body = files("toolcrib.chat").joinpath("built", name).read_bytes()
    headers = {**_HEADERS, "content-type": kind, "etag": f'"{hashlib.sha256(body).hexdigest()}"'}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return Route("/" if name == "index.html" else f"/{name}", endpoint, methods=["GET"])
