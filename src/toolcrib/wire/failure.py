"""What a provider says went wrong, as a typed error.

The provider's own sentence is kept, since it is what helps; but bounded, on one line, and without
anything that looks like a key (OpenAI repeats part of a wrong one).
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)

_LONGEST = 500
_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|r8|csk|nvapi)[-_][\w*-]{6,}|\bAIza[\w-]{10,}|\b[Bb]earer\s+[\w.~+/=*-]{8,}"
)
_TEXTS = ("message", "error", "detail", "msg", "title")


def http_error(status: int, body: bytes, *, retry_after: float | None = None) -> ClientError:
    """The error for an HTTP status outside 200..299. `retry_after` in seconds."""
    said = _said(body)
    at = f"(HTTP {status}){said}"
    if status in (401, 403) or (status == 400 and b"API_KEY_INVALID" in body):  # Gemini's way
        return AuthenticationError(f"the provider did not accept the key {at}", status)
    if status == 429:
        return RateLimitError(f"the provider has had too many requests {at}", status, retry_after)
    if 400 <= status < 500:
        return RequestError(f"the provider refused the request {at}", status)
    if status >= 500:
        return ProviderError(f"the provider failed {at}", status)
    return WireError(f"the provider gave no answer {at}: is the base URL right?", status)


def reported_error(payload: Any) -> ProviderError:
    """The error for an error object in a 200 body or in a stream."""
    text = safe_text(error_text(payload))
    return ProviderError(f"the provider reported an error{': ' if text else ''}{text}")


def safe_text(text: str, limit: int = _LONGEST) -> str:
    """One line of at most `limit` characters, with what looks like a key taken out."""
    line = "".join(c if c.isprintable() else " " for c in text[: 8 * limit])
    line = _KEY.sub("[key]", " ".join(line.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_text(payload: Any) -> str:
    """The sentence in an error object of any of the forms seen, with its code; empty if none."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list):
        return error_text(payload[0]) if payload else ""
    if not isinstance(payload, dict):
        return ""
    text = next((found for key in _TEXTS if (found := error_text(payload.get(key)))), "")
    code = payload.get("code") or payload.get("type")
    if isinstance(code, str) and code and code not in text:
        return f"{text} ({code})" if text else code
    return text


def _said(body: bytes) -> str:
    try:
        text = error_text(orjson.loads(body))
    except (ValueError, RecursionError):
        text = body[: 8 * _LONGEST].decode("utf-8", "replace").strip()
        if text.startswith("<"):
            text = ""
    return f": {safe_text(text)}" if text else ""
