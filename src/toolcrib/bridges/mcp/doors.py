"""Who may connect over HTTP: from which place, under which name, with which token.

Rule: a server that requires no token answers this machine alone. `Host` and `Origin` are always
checked, so that no web page in a browser reaches a server on its user's machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from mcp.server.auth.provider import AccessToken, TokenVerifier, principal_components
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.bridges.mcp.faults import MAX_MESSAGE, ambiguity_of
from toolcrib.doors import HERE, host_in, is_from_here, token_matcher
from toolcrib.values.decision import ANONYMOUS, Caller
from toolcrib.values.typed import check_each, names_wrong_types

ENDED = "The server is shutting down, so the call was interrupted. Its record says how it ended."
_NAMES = (b"host", b"origin")


def caller_of(token: AccessToken | None) -> Caller:
    """Return the caller that a verified token stands for, with its scopes as roles.

    Its id is the client's, followed by a subject and an issuer if the verifier gives them:
    `client#subject#issuer`. Without a token it is `ANONYMOUS`.
    """
    if token is None:
        return ANONYMOUS
    client, issuer, subject = principal_components(token)
    parts = (client, subject or "", issuer or "")
    escaped = [part.replace("%", "%25").replace("#", "%23") for part in parts]
    return Caller("#".join(escaped).rstrip("#"), tuple(token.scopes))


@names_wrong_types
def bearer(token: str, client: str = "local") -> TokenVerifier:
    """Return a verifier for one token: whoever sends `Authorization: Bearer TOKEN` is `client`.

    Raises ValueError for a token that is too short, or that no header can bring.
    """
    return _OneToken(token_matcher(token), client)


class _OneToken:
    def __init__(self, is_token: Callable[[str], bool], client: str) -> None:
        self._is_token = is_token
        self._client = client

    async def verify_token(self, token: str) -> AccessToken | None:
        if not self._is_token(token):
            return None
        return AccessToken(token="", client_id=self._client, scopes=[])


def security_of(hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    """Return the SDK's settings for the names of a server, and of the web pages that may call it."""
    names = (*HERE, *check_each("hosts", hosts, str, 'a list of str: ["mcp.example.com"]'))
    pages = check_each("origins", origins, str, 'a list of str: ["https://example.com"]')
    return TransportSecuritySettings(
        allowed_hosts=[
            pattern for host in names for pattern in (host.lower(), f"{host.lower()}:*")
        ],
        allowed_origins=[f"http://{host}:*" for host in HERE]
        + [f"http://{host}" for host in HERE]
        + [page.lower() for page in pages],
    )


def guarded(app: Starlette, *, only_here: bool) -> Starlette:
    """Put the checks of this module before an app of the SDK's."""
    app.user_middleware.append(Middleware(_HostCheck))
    if only_here:
        app.user_middleware.append(Middleware(_OnlyHere))
    app.user_middleware.append(Middleware(_BodyCheck))
    app.user_middleware.insert(0, Middleware(_InterruptionReply))
    return app


class _HostCheck:
    """Refuses a Host or an Origin whose port is no number, since to the SDK `host:*` is any text
    that begins with `host:`. It converts both to lower case, since the SDK compares them letter by
    letter."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        host, origin = headers.get("host", ""), headers.get("origin", "")
        app = self._app
        if host_in(host) is None:
            app = PlainTextResponse("Invalid Host header", 421)
        elif host_in(origin.partition("://")[2]) is None:
            app = PlainTextResponse("Invalid Origin header", 403)
        lowered = [
            (name, value.lower() if name.lower() in _NAMES else value)
            for name, value in scope.get("headers", ())
        ]
        await app({**scope, "headers": lowered}, receive, send)


class _BodyCheck:
    """Refuses a message that is too long, or that can be read in two ways."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        body, has_more = bytearray(), True
        while has_more and len(body) <= MAX_MESSAGE:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        if len(body) > MAX_MESSAGE:
            refusal: ASGIApp = _refusal(413, f"a message may have at most {MAX_MESSAGE:,} bytes")
        elif ambiguity := ambiguity_of(bytes(body)):
            refusal = _refusal(400, ambiguity)
        else:
            whole: list[Message] = [{"type": "http.request", "body": bytes(body)}]

            async def receive_again() -> Message:
                return whole.pop() if whole else await receive()

            return await self._app(scope, receive_again, send)
        return await refusal(scope, receive, send)


def _refusal(status: int, text: str) -> JSONResponse:
    error = {"code": INVALID_REQUEST, "message": f"Invalid request: {text}"}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status)


class _InterruptionReply:
    """Answers a request with a JSON-RPC error if the end of the process interrupts it. Otherwise
    the web server would say that the application has failed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if scope["type"] == "http" and not has_begun:
                error = {"code": INTERNAL_ERROR, "message": ENDED}
                body = {"jsonrpc": "2.0", "id": None, "error": error}
                with suppress(OSError):
                    await JSONResponse(body, 503)(scope, receive, send)
            raise


class _OnlyHere:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            client, _ = scope.get("client") or (None, 0)
            if not is_from_here(client, Headers(scope=scope).items()):
                app = PlainTextResponse(
                    "only this machine may send requests, because no tokens are set up", 403
                )
        await app(scope, receive, send)
