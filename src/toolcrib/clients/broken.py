"""What aiohttp says of a connection that failed, in words that quote nothing of the request."""

from __future__ import annotations

from types import ModuleType

from toolcrib.errors import ConnectionFailed, MissingExtraError


def aiohttp_library() -> ModuleType:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtraError("http", "a client over HTTP") from None
    return aiohttp


def is_closed(error: Exception) -> bool:
    """Whether the other side had gone, before it answered anything (RFC 9112, 9.3.1)."""
    known = aiohttp_library()
    gone = (known.ServerDisconnectedError, known.ClientOSError, ConnectionError)
    return isinstance(error, gone) and not isinstance(error, TimeoutError)


def failure_of(error: Exception, server: str) -> ConnectionFailed:
    """What broke, in words that quote nothing. Raised outside the handler: it carries no context.

    A server that has the request and is slow is not asked again: it may still be at work on it.
    """
    known = aiohttp_library()
    if isinstance(error, TimeoutError):
        failure = ConnectionFailed(f"{server} did not answer within the time limit")
        failure.retryable = isinstance(error, known.ConnectionTimeoutError)
        return failure
    reasons = (
        (known.ClientConnectorDNSError, "there is no server of that name"),
        (known.ClientConnectorCertificateError, "its certificate is not valid"),
        (known.ClientHttpProxyError, "the proxy of the environment refused to connect"),
        (known.ClientProxyConnectionError, "the proxy of the environment was not reached"),
        (known.ClientConnectorError, "no connection"),
        (known.InvalidURL, "this is not a URL that can be requested"),
        (known.ClientResponseError, "what answers there does not speak HTTP as it should"),
        (known.ClientPayloadError, "the connection broke in the middle of the reply"),
    )
    reason = next((text for kind, text in reasons if isinstance(error, kind)), None)
    if reason == "no connection" and getattr(error, "os_error", None) is not None:
        reason = f"no connection ({error.os_error.strerror or 'refused'})"  # type: ignore[attr-defined]
    text = reason or "the connection broke before the reply was whole"
    failure = ConnectionFailed(f"{server}: {text}")
    for_good = (known.InvalidURL, known.ClientSSLError, known.ClientResponseError)
    failure.retryable = not isinstance(error, for_good)
    return failure
