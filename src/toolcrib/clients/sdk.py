"""A provider's own client object as the transport, with its connections and its authentication.

Requests are still made, and answers read, by this library. Only what the object documents for your
own paths is used: `post(path, cast_to=Response, body=…, options=…, stream=True)`. It is not closed
here, and does not retry, since the caller already does. Redirects are not followed, because httpx
removes only `Authorization` of the headers with a key from a request to another server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from toolcrib.clients.server import merged, remembered
from toolcrib.clients.transport import (
    ASKED_CODINGS,
    LINGER,
    Decompressor,
    Outgoing,
    Response,
    is_delimited,
    is_large,
)
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    RequestError,
    WireError,
)
from toolcrib.wire.framing import FrameStream

if TYPE_CHECKING:
    from toolcrib.clients.base import Options

_PACKAGES = ("openai", "anthropic")
_OWN_OPTIONS = ("base_url", "api_key", "transport", "timeouts")
_KEY_ATTRIBUTES = (
    "api_key", "auth_token", "access_token",
    "aws_access_key", "aws_secret_key", "aws_session_token",
)  # fmt: skip
_FRAMES_TYPE = "application/vnd.amazon.eventstream"


class SdkClient(Protocol):
    """The part of `openai.AsyncOpenAI`, `anthropic.AsyncAnthropic` and their variants that is used
    here."""

    @property
    def base_url(self) -> Any: ...

    @property
    def post(self) -> Callable[..., Awaitable[Any]]: ...


def over_sdk(sdk: SdkClient, options: Options, **given: str | None) -> tuple[str, Options]:
    """Return the base URL of the SDK's client, and the options with the client as their transport.

    Raises RequestError if it is no asynchronous client of a known SDK, or if something that it has
    itself is `given` as well, or is among the options.
    """
    for name in _OWN_OPTIONS:
        if given.get(name) is not None or options.get(name) is not None:
            raise RequestError(
                f"{name}= cannot be given with sdk=, because the SDK's client has its own"
            )
    transport = SdkTransport(sdk)
    return transport.base, {**options, "transport": transport}


class SdkTransport:
    """Sends requests for paths below `base` through an SDK's client."""

    def __init__(self, sdk: SdkClient) -> None:
        package = next((name for name in _root_packages(type(sdk)) if name in _PACKAGES), None)
        if package is None:
            raise RequestError(
                f"sdk= takes a client of {' or '.join(_PACKAGES)}, not {type(sdk)!r}"
            )
        if not inspect.iscoroutinefunction(getattr(sdk, "post", None)):
            raise RequestError(
                f"{type(sdk).__name__} is synchronous: pass the asynchronous client, Async…"
            )
        self.base = str(sdk.base_url).rstrip("/")
        self._sdk = sdk
        self._package: Any = sys.modules[package]
        roots = _root_packages(self._package.DefaultAsyncHttpxClient)
        # httpx, or the library in its place
        self._http: Any = sys.modules[next(name for name in roots if name.startswith("httpx"))]
        self._sent_secrets: tuple[str, ...] = ()

    async def send(self, request: Outgoing) -> Response:
        """Return the beginning of the answer. Raises ConnectionFailed, AuthenticationError."""
        path = request.url.removeprefix(self.base)
        headers = merged({"Accept-Encoding": ASKED_CODINGS}, request.headers)
        request_options = {"headers": headers, "max_retries": 0, "follow_redirects": False}
        try:
            response = await self._sdk.post(
                path,
                cast_to=self._http.Response,
                body=json.loads(request.body),  # Azure, Vertex and Bedrock read and change it
                options=request_options,
                stream=True,
            )
        except self._package.APIStatusError as error:
            response = error.response  # its body was read already
        except Exception as error:  # noqa: BLE001  from the SDK, its HTTP client or cloud libraries
            failure: ClientError = self._failure(error, request.server)
            response = None
        if response is None:
            raise failure
        sent_request = response.request  # with the headers and keys that the SDK added
        self._sent_secrets = remembered(
            self._sent_secrets, str(sent_request.url), sent_request.headers
        )
        return _SdkResponse(response, self._http, request.server)

    async def aclose(self) -> None:
        """Do nothing, since the owner of the SDK's client closes it."""

    @property
    def secrets(self) -> list[str]:
        """The current keys of the SDK's client, which it may renew, and those that it has sent."""
        keys = (getattr(self._sdk, name, None) for name in _KEY_ATTRIBUTES)
        return [*(key for key in keys if isinstance(key, str)), *self._sent_secrets]

    def _failure(self, error: Exception, server: str) -> ClientError:
        if isinstance(error, self._package.APITimeoutError | self._http.TimeoutException):
            return _too_slow(server)
        if isinstance(error, self._package.APIConnectionError):
            return ConnectionFailed(f"{server}: no connection")
        if isinstance(error, self._http.HTTPError):  # while the SDK read an error's text
            return _broken(server)
        client_name, error_name = type(self._sdk).__name__, type(error).__name__
        is_closed = getattr(self._sdk, "is_closed", None)
        if callable(is_closed) and is_closed():
            return RequestError(f"{client_name} is already closed: keep it open while it is used")
        return AuthenticationError(
            f"{client_name} sent no request ({error_name}): check its credentials"
        )


def _root_packages(cls: type) -> list[str]:
    return [base.__module__.partition(".")[0] for base in cls.__mro__]


class _SdkResponse:
    def __init__(self, response: Any, http: Any, server: str) -> None:
        self._response = response
        self._http = http
        self._server = server
        self.status: int = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        is_framed = getattr(response, "http_version", "") in ("HTTP/2", "HTTP/3")
        self.delimited = is_framed or is_delimited(self.headers)
        is_read = response.is_stream_consumed  # and decompressed by the SDK
        self._decompressor = Decompressor({} if is_read else self.headers)
        self._raw_chunks = response.aiter_bytes() if is_read else response.aiter_raw()

    async def chunks(self) -> AsyncIterator[bytes]:
        frames = FrameStream() if _FRAMES_TYPE in self.headers.get("content-type", "") else None
        while True:
            try:
                chunk = await anext(self._raw_chunks, None)
            except self._http.TimeoutException:
                failure = _too_slow(self._server)
                break
            except self._http.HTTPError:
                failure = _broken(self._server)
                break
            if chunk is None and self._decompressor.whole and not (frames and frames.close()):
                return
            if chunk is None:
                failure = _broken(self._server)
                break
            try:
                for piece in self._decompressor.feed(chunk):
                    yield piece if frames is None else _events(frames, piece)
                    if is_large(piece):
                        await asyncio.sleep(0)
            except ValueError as error:
                failure = ConnectionFailed(f"{self._server}: {error}")
                break
        raise failure

    async def aclose(self, *, whole: bool) -> None:
        try:
            if whole:  # after a complete read the connection can be reused
                with contextlib.suppress(self._http.HTTPError, TimeoutError):
                    async with asyncio.timeout(LINGER):
                        while await anext(self._raw_chunks, None) is not None:
                            pass
        finally:
            await self._response.aclose()


def _too_slow(server: str) -> ConnectionFailed:
    """Return the error for a slow server. It may still be working on the request, so it is not
    asked again."""
    failure = ConnectionFailed(f"{server} did not answer within the SDK client's time limit")
    failure.retryable = False
    return failure


def _broken(server: str) -> ConnectionFailed:
    return ConnectionFailed(f"{server}: the connection broke in the middle of the reply")


def _events(frames: FrameStream, chunk: bytes) -> bytes:
    """Return Anthropic's events from Bedrock's frames, in the form that Anthropic's own server
    sends.

    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_PayloadPart.html
    """
    events = bytearray()
    for event in frames.feed(chunk):
        try:
            payload = orjson.loads(event.data)
            body = base64.b64decode(payload["bytes"]) if "bytes" in payload else event.data
        except (ValueError, TypeError):
            raise WireError("a frame of the event stream holds no event") from None
        events += b"data: " + body + b"\n\n"
    return bytes(events)
