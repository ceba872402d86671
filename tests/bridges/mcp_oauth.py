"""OAuth for one user who always says yes: the server's side, and what a person does at the client's."""

from __future__ import annotations

import secrets
import time
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl


class OneUser:
    """Gives codes and tokens to every client that registers, and keeps them in memory."""

    def __init__(self) -> None:
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._tokens: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._clients[client_info.client_id or ""] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self._codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        del client
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        token = AccessToken(
            token=secrets.token_urlsafe(),
            client_id=client.client_id or "",
            scopes=authorization_code.scopes,
            resource=authorization_code.resource,
        )
        self._tokens[token.token] = token
        return OAuthToken(access_token=token.token)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        del client, refresh_token
        return None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        raise NotImplementedError

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        raise NotImplementedError

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self._tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self._tokens.pop(token.token, None)


class Person:
    """Goes to the address that a client shows, and comes back with a code."""

    back_to = AnyUrl("http://127.0.0.1:7/back")

    def __init__(self) -> None:
        self.asked = 0
        self.client: OAuthClientInformationFull | None = None
        self._back = ""
        self._tokens: OAuthToken | None = None

    def signs_in(self, url: str, metadata_url: str | None = None) -> OAuthClientProvider:
        told = OAuthClientMetadata(redirect_uris=[self.back_to])
        ways = (self.goes_to, self.comes_back)
        return OAuthClientProvider(url, told, self, *ways, client_metadata_url=metadata_url)

    async def goes_to(self, address: str) -> None:
        self.asked += 1
        async with httpx2.AsyncClient(verify=False) as browser:
            self._back = (await browser.get(address)).headers["location"]

    async def comes_back(self) -> AuthorizationCodeResult:
        found = parse_qs(urlsplit(self._back).query)
        issuer = found.get("iss", [None])[0]
        return AuthorizationCodeResult(code=found["code"][0], state=found["state"][0], iss=issuer)

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info
