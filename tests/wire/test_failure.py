"""What providers say went wrong: its kind, its words, what to do, and no key in any of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from rows import each_row

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
from toolcrib.wire import http_error
from toolcrib.wire.failure import reported_error, safe_text

Kind = type[ClientError]

STATUSES: dict[int, tuple[Kind, bool, str]] = {
    302: (WireError, False, "Check the base URL"),
    400: (RequestError, False, "refused the request (HTTP 400): no"),
    401: (AuthenticationError, False, "Check the key"),
    403: (AuthenticationError, False, "Check the key"),
    404: (RequestError, False, "Check the model's name and the base URL"),
    408: (RequestError, True, "(HTTP 408)"),
    409: (RequestError, True, "(HTTP 409)"),
    413: (RequestError, False, "Send a smaller request"),
    422: (RequestError, False, "(HTTP 422)"),
    429: (RateLimitError, True, "Try again later"),
    500: (ProviderError, True, "the provider failed (HTTP 500): no"),
    502: (ProviderError, True, "(HTTP 502)"),
    503: (OverloadedError, True, "use another provider"),
    529: (OverloadedError, True, "the provider is overloaded (HTTP 529): no"),
}


@each_row("status", STATUSES)
def test_statuses(status: int) -> None:
    kind, retryable, said = STATUSES[status]
    error = http_error(status, b'{"error": {"message": "no."}}')
    assert (type(error), error.retryable, error.status) == (kind, retryable, status)
    assert said in str(error)
    assert ".." not in str(error)


def anthropic(word: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": word, "message": "no"}}


# In a stream or a 200 there is no status: the provider's word for it counts.
REPORTED: list[tuple[Any, Kind, bool]] = [
    (anthropic("overloaded_error"), OverloadedError, True),
    (anthropic("rate_limit_error"), RateLimitError, True),
    (anthropic("authentication_error"), AuthenticationError, False),
    (anthropic("permission_error"), AuthenticationError, False),
    (anthropic("invalid_request_error"), RequestError, False),
    (anthropic("api_error"), ProviderError, True),
    (anthropic("something_new"), ProviderError, True),
    ({"code": 503, "message": "no", "status": "UNAVAILABLE"}, OverloadedError, True),
    ({"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED"}, RateLimitError, True),
    ({"code": 500, "message": "no", "status": "INTERNAL"}, ProviderError, True),
    ({"code": 403, "message": "no", "status": "PERMISSION_DENIED"}, AuthenticationError, False),
    ({"code": 404, "message": "no", "status": "NOT_FOUND"}, RequestError, False),
    ({"code": "insufficient_quota", "message": "no"}, RateLimitError, False),
    ({"code": "rate_limit_exceeded", "message": "no"}, RateLimitError, True),
    ({"code": "server_error", "message": "no"}, ProviderError, True),
    ({"code": "content_filter", "message": "no"}, ContentFilterError, False),
    ({"code": "400", "message": "no"}, RequestError, False),
    ({"message": "no", "type": "throttlingException"}, RateLimitError, True),
    ({"message": "no", "type": "serviceUnavailableException"}, OverloadedError, True),
    ({"message": "no", "type": "modelStreamErrorException"}, ProviderError, True),
    ({"message": "no", "type": "validationException"}, RequestError, False),
    ({"message": "no", "code": "3505"}, OverloadedError, True),
    ("no", ProviderError, True),
    ([{"message": "no", "code": 503}], OverloadedError, True),
    ({"message": "no", "code": True, "type": None, "status": []}, ProviderError, True),
]


@each_row(("payload", "kind", "retryable"), REPORTED)
def test_reported(payload: Any, kind: Kind, retryable: bool) -> None:
    error = reported_error(payload)
    assert (type(error), error.retryable, error.status) == (kind, retryable, None)
    assert ": no" in str(error)


WORDS: list[tuple[int, str, Kind]] = [
    (400, "content_filter", ContentFilterError),
    (400, "content_policy_violation", ContentFilterError),
    (500, "overloaded_error", OverloadedError),
    (
        400,
        "overloaded_error",
        RequestError,
    ),  # the status is the better witness of whose fault it is
    (401, "invalid_request_error", AuthenticationError),
    (503, "invalid_request_error", OverloadedError),
]


@each_row(("status", "word", "kind"), WORDS)
def test_a_word_says_more_than_a_status(status: int, word: str, kind: Kind) -> None:
    body = json.dumps({"error": {"message": "no", "code": word}}).encode()
    assert type(http_error(status, body)) is kind


def test_a_quota_that_is_used_up_is_not_waited_for() -> None:
    body = b'{"error": {"message": "Over.", "type": "insufficient_quota"}}'
    error = http_error(429, body, retry_after=1)
    assert (type(error), error.retryable, error.retry_after) == (RateLimitError, False, None)
    assert "The quota of the account is used up" in str(error)


@each_row(
    ("seconds", "said"),
    [
        *((0, "0"), (0.25, "0.25"), (90, "90"), (3600, "3600"), (1e9, "1000000000")),
        *((1e12, "1e+12"), (1e308, "1e+308")),
    ],
)
def test_when_to_come_back(seconds: float, said: str) -> None:
    error = http_error(503, b'{"message": "wait"}', retry_after=seconds)
    assert error.retry_after == seconds
    assert str(error) == f"the provider is overloaded (HTTP 503): wait. Try again in {said} s"


DELAYS: list[tuple[Any, float | None]] = [
    ([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}], 34.07),
    ([{"@type": "other"}, {"retryDelay": "7s"}], 7),
    ([{"retryDelay": "soon"}], None),
    ([{"retryDelay": 7}], None),
    ([5], None),
    ("7s", None),
]


@each_row(("details", "seconds"), DELAYS)
def test_google_says_when_in_the_body(details: Any, seconds: float | None) -> None:
    error = {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED", "details": details}
    assert http_error(429, json.dumps({"error": error}).encode()).retry_after == seconds
    assert http_error(429, json.dumps([{"error": error}]).encode()).retry_after == seconds
    assert reported_error(error).retry_after == seconds


KEYS = [
    "sk-proj-abc123def456",
    "sk-ant-api03-abc_def-ghi",
    "gsk_abcdef123456",
    "AIzaSyA1234567890abcdef",
    "ya29.a0AfH6SMBx-abc_def",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "Bearer abcdefgh.ijkl",
]


@each_row("key", KEYS)
def test_keys_are_masked(key: str) -> None:
    assert safe_text(f"wrong: {key}, sorry") == "wrong: [key], sorry"
    body = json.dumps({"error": {"message": f"wrong: {key}", "code": "invalid_api_key"}}).encode()
    assert key not in str(http_error(401, body))


HOSTILE = [
    b"",
    b"5",
    b"null",
    b"[]",
    b"[[[]]]",
    b'{"error": []}',
    b'{"error": {"error": {"error": 5}}}',
    b'{"error":' * 900 + b"1" + b"}" * 900,
    b"[" * 900 + b"]" * 900,
    b'{"message": "' + b"x" * 100_000 + b'"}',
    b"\xff\xfe\x00",
]


@each_row("body", HOSTILE)
def test_whatever_the_body(body: bytes) -> None:
    error = http_error(500, body)
    assert type(error) is ProviderError
    assert len(str(error)) < 600
    assert str(error).isprintable()


def test_recorded_errors(shared_data: Path) -> None:
    """Every recorded refusal has the class of its status, and the provider's own sentence."""
    seen = 0
    for path in sorted((shared_data / "wire").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if row["kind"] == "error"]
        for row in rows:
            body = row["response_body"]
            error = http_error(row["status"], body.encode())
            expected = STATUSES[row["status"]][0]
            if "API_KEY_INVALID" in body:
                expected = AuthenticationError
            assert type(error) is expected, (path.name, row["id"])
            payload = json.loads(body)
            payload = payload.get("error", payload)
            sentence = payload.get("message") or payload["detail"]
            assert " ".join(sentence.split())[:100].rstrip(".") in str(error)
            seen += 1
    assert seen == 57
