"""Turn what a provider reports as wrong into a typed error that says what to do.

The provider's own sentence is kept, because it helps most. It is limited in length, put on one
line, and stripped of anything that looks like a key (OpenAI repeats part of a wrong one). Its word
for the kind of error counts if there is no HTTP error status: in a stream, or in a 200.

Words and statuses: https://platform.openai.com/docs/guides/error-codes,
https://platform.claude.com/docs/en/api/errors,
https://ai.google.dev/gemini-api/docs/troubleshooting,
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ContentFilterError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.values.typed import names_wrong_types

_MAX_LENGTH = 500
_KEY = (  # a pattern, compiled at the first failure
    r"\b(?:sk|pk|rk|gsk|xai|hf|r8|csk|nvapi)[-_][\w*+/=.~-]{6,}|\bAIza[\w-]{10,}|\bya29\.[\w.-]{10,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\b(?:ABSK|bedrock-api-key-)[\w+/=-]{8,}"
    r"|\bx-amz-security-token:\S+|\b[Bb]earer\s+[\w.~+/=*-]{8,}"
)
_TEXTS = ("message", "Message", "error", "detail", "msg", "title")
_ERROR_TYPES: dict[str, type[ClientError]] = {
    "authentication_error": AuthenticationError,
    "invalid_api_key": AuthenticationError,
    "permission_error": AuthenticationError,
    "permission_denied": AuthenticationError,
    "unauthenticated": AuthenticationError,
    "rate_limit_error": RateLimitError,
    "rate_limit_exceeded": RateLimitError,
    "resource_exhausted": RateLimitError,
    "insufficient_quota": RateLimitError,
    "throttlingexception": RateLimitError,
    "overloaded_error": OverloadedError,
    "overloaded": OverloadedError,
    "unavailable": OverloadedError,
    "service_unavailable": OverloadedError,
    "serviceunavailableexception": OverloadedError,
    "3505": OverloadedError,  # Mistral: the capacity of its service tier is exceeded
    "content_filter": ContentFilterError,  # Azure
    "content_policy_violation": ContentFilterError,
    "invalid_request_error": RequestError,
    "invalid_argument": RequestError,
    "not_found_error": RequestError,
    "request_too_large": RequestError,
    "validationexception": RequestError,
}
_PHRASES: dict[type[ClientError], tuple[str, str]] = {
    AuthenticationError: (
        "the provider did not accept the key",
        "Check the key and its permissions",
    ),
    RateLimitError: ("the provider received too many requests", "Try again later"),
    OverloadedError: ("the provider is overloaded", "Try again later, or use another provider"),
    ContentFilterError: (
        "a content filter of the provider stopped the request",
        "Rephrase the request",
    ),
    RequestError: ("the provider refused the request", ""),
    ProviderError: ("the provider failed", ""),
    WireError: ("the provider gave no answer", "Check the base URL"),
}
_REPORTED = ("the provider reported an error", "")
_HINTS = {404: "Check the model's name and the base URL", 413: "Send a smaller request"}
_RETRYABLE = (408, 409)
"""A timeout and a lock, which OpenAI's and Anthropic's own clients retry, too."""
_NO_QUOTA = "insufficient_quota"
_DELAY = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)s")


@names_wrong_types
def http_error(status: int, body: bytes, *, retry_after: float | None = None) -> ClientError:
    """Return the error for an HTTP status outside 200..299. `retry_after` is in seconds."""
    payload = _payload(body)
    words = _words(payload)
    kind = _error_type(status)
    named_kind = next((_ERROR_TYPES[word] for word in words if word in _ERROR_TYPES), kind)
    if kind in (RequestError, ProviderError) and issubclass(named_kind, kind):
        kind = named_kind  # a filter's 400, an overload's 500
    if status == 400 and b"API_KEY_INVALID" in body:  # Gemini's way
        kind = AuthenticationError
    return _error(kind, payload, status, retry_after=retry_after, status_text=f" (HTTP {status})")


def reported_error(payload: Any) -> ClientError:
    """Return the error for an error object in a 200 body or in a stream."""
    words = _words(payload)
    kind = next((_ERROR_TYPES[word] for word in words if word in _ERROR_TYPES), None)
    status = next((int(word) for word in words if re.fullmatch(r"[45]\d\d", word)), None)
    if kind is None:
        kind = ProviderError if status is None else _error_type(status)
    error = _error(kind, payload, status)
    error.status = None  # the response's own status was a success
    return error


def _error_type(status: int) -> type[ClientError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 429:
        return RateLimitError
    if status in (503, 529):
        return OverloadedError
    if 400 <= status < 500:
        return RequestError
    return ProviderError if status >= 500 else WireError


def _error(
    kind: type[ClientError],
    payload: Any,
    status: int | None,
    *,
    retry_after: float | None = None,
    status_text: str = "",
) -> ClientError:
    """Make the error: what happened, the provider's own sentence, and what to do about it."""
    what, hint = _PHRASES[kind] if status_text or kind is not ProviderError else _REPORTED
    words = _words(payload)
    if kind is RequestError:
        hint = _HINTS.get(status or 0, hint)
    if _NO_QUOTA in words:
        hint = "The quota of the account is used up"
    retry_after = _retry_delay(payload) if retry_after is None else retry_after
    error = kind("", status)
    error.retryable = (kind.retryable or status in _RETRYABLE) and _NO_QUOTA not in words
    if error.retryable and retry_after is not None:
        error.retry_after = retry_after
        hint = f"Try again in {_seconds(retry_after)} s"
    sentence = safe_text(error_text(payload))
    text = f"{what}{status_text}{': ' if sentence else ''}{sentence}"
    error.args = (f"{text.rstrip('.')}. {hint.rstrip('.')}" if hint else text,)
    return error


def _seconds(number: float) -> str:
    return f"{number:.0f}" if 100 <= number < 1e12 else f"{number:.3g}"


def _words(payload: Any) -> list[str]:
    """Return the words and numbers in which an error object gives its kind, in lower case."""
    outer = payload[0] if isinstance(payload, list) and payload else payload
    outer = outer if isinstance(outer, dict) else {}
    inner = outer.get("error")
    forms = [inner, outer] if isinstance(inner, dict) else [outer]
    values = [form.get(key) for form in forms for key in ("code", "type", "status", "status_code")]
    return [str(word).lower() for word in values if isinstance(word, str | int)]


def _retry_delay(payload: Any) -> float | None:
    """Return the seconds of Google's `RetryInfo` (google/rpc/error_details.proto), or None."""
    inner = payload[0] if isinstance(payload, list) and payload else payload
    inner = inner.get("error", inner) if isinstance(inner, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    for detail in details if isinstance(details, list) else []:
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        match = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
        if match is not None:
            return float(match[1])
    return None


def safe_text(text: str, limit: int = _MAX_LENGTH) -> str:
    """Return one line of at most `limit` characters, without anything that looks like a key."""
    line = "".join(c if c.isprintable() else " " for c in text[: 8 * limit])
    line = re.sub(_KEY, "[key]", " ".join(line.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_text(payload: Any, depth: int = 16) -> str:
    """Return the sentence in an error object of any known form, with its code; empty if none."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list):
        return error_text(payload[0], depth - 1) if payload and depth else ""
    if not isinstance(payload, dict) or not depth:
        return ""
    texts = (error_text(payload.get(key), depth - 1) for key in _TEXTS)
    text = next(filter(None, texts), "")
    code = payload.get("code") or payload.get("type")
    if isinstance(code, str) and code and code not in text:
        return f"{text} ({code})" if text else code
    return text


def _payload(body: bytes) -> Any:
    """Return the JSON of a body, or its text; nothing for an HTML page."""
    try:
        return orjson.loads(body)
    except (ValueError, RecursionError):
        text = body[: 8 * _MAX_LENGTH].decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else text
