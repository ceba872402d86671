"""The error in an answer that is no success: its body in words, its headers on when to try again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from datetime import UTC

from toolcrib.clients.transport import Response
from toolcrib.errors import ClientError, ConnectionFailed
from toolcrib.wire import http_error

_LONGEST = 64 * 1024
_PATIENCE = 5.0
"""Seconds that an error's text may take, once the error itself is known."""
_SAYS = {"true": True, "false": False}


async def refusal(response: Response) -> ClientError:
    """The error, with as much of its text as can be had.

    `x-should-retry` is how OpenAI and Anthropic tell their own clients whether to.
    """
    body = b""
    with contextlib.suppress(ConnectionFailed, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            async for data in response.chunks():
                body += data
                if len(body) > _LONGEST:
                    break
    headers = response.headers
    when = retry_after(headers, time.time())
    error = http_error(response.status, body, retry_after=when)
    error.retryable = _SAYS.get(headers.get("x-should-retry", "").lower(), error.retryable)
    if error.retryable and when is not None:
        error.retry_after = when
    return error


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that an answer's headers, with lower-case names, say to wait; None if they do not.

    `retry-after-ms` is Azure's and OpenAI's; `retry-after` is seconds, or a date (RFC 9110, 10.2.3),
    which counts from `now`, in seconds since 1970; one without a zone is in UTC (5.6.7).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name, ""))
        if seconds is not None:
            return seconds * unit
    from email.utils import parsedate_to_datetime  # 5 ms, which `import toolcrib` need not pay

    try:
        then = parsedate_to_datetime(headers.get("retry-after", ""))
        then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
        return max(0.0, then.timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None
