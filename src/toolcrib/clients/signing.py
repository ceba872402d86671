"""Requests to AWS, signed on their way through another transport.

What is signed is the request as it is sent, path and body to the byte: nothing may change it after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from toolcrib.clients.server import remembered
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Response,
    Timeouts,
    Transport,
    limit_of,
)
from toolcrib.errors import AuthenticationError, MissingExtraError
from toolcrib.values.typed import names_wrong_types


class SigningTransport:
    """Signs with AWS Signature Version 4, and sends by `transport` (aiohttp's if there is none).

    `credentials` are botocore's, such as `boto3.Session(profile_name=…).get_credentials()`; without
    them it is botocore that looks for some, at the first request: the environment, profiles, SSO, the
    machine's role. Raises MissingExtraError if botocore is not installed, and in `send`
    AuthenticationError where there are no credentials.
    """

    @names_wrong_types
    def __init__(
        self,
        transport: Transport | None = None,
        *,
        region: str,
        service: str = "bedrock",
        credentials: Any = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._library = _library()
        self._transport = transport or AiohttpTransport(timeouts)
        self._region = region
        self._service = service
        self._credentials = credentials
        self._sent: tuple[str, ...] = ()

    @property
    def secrets(self) -> Iterable[str]:
        """The secrets of the wrapped transport, and what requests were signed with."""
        return (*getattr(self._transport, "secrets", ()), *self._sent)

    @property
    def total(self) -> float | None:
        """The limit of the wrapped transport."""
        return limit_of(self._transport)

    async def send(self, request: Outgoing) -> Response:
        """Sign in a thread, since credentials may be fetched over the network, and send the request."""
        headers = await asyncio.to_thread(self._signed, request)
        self._sent = remembered(self._sent, request.url, headers)
        return await self._transport.send(msgspec.structs.replace(request, headers=headers))

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _signed(self, request: Outgoing) -> dict[str, str]:
        sending = self._library.awsrequest.AWSRequest(
            method=request.method,
            url=request.url,
            data=request.body,
            headers=dict(request.headers),
        )
        sign = self._library.auth.SigV4Auth(self._frozen(), self._service, self._region)
        sign.add_auth(sending)
        return dict(sending.headers.items())

    def _frozen(self) -> Any:
        """Return the credentials as they are now. An error says what kind
        it is, and nothing of them."""
        try:
            if self._credentials is None:
                self._credentials = self._library.session.get_session().get_credentials()
            frozen = self._credentials and self._credentials.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  of botocore, of the files and programs it reads
            failure = AuthenticationError(
                f"there are no usable AWS credentials: {type(error).__name__}"
            )
        else:
            if frozen:
                return frozen
            failure = AuthenticationError(
                "there are no AWS credentials: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        raise failure


class _Library(NamedTuple):
    auth: ModuleType
    awsrequest: ModuleType
    session: ModuleType


def _library() -> _Library:
    try:
        return _Library(*(import_module(f"botocore.{name}") for name in _Library._fields))
    except ImportError:
        raise MissingExtraError("bedrock", "signing requests with AWS credentials") from None
