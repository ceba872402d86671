"""Whatever form a secret is written in, it does not stay; and nothing else goes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.clients.server import in_base64
from toolcrib.testing.masking import masked, masked_text, masked_url

KEY = 'sk-canary-8f3b/52+e1d0="77'
IN_JSON = json.dumps(KEY)[1:-1]


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://me:pw@host:1/v1/x", "https://host:1/v1/x"),
        ("https://host/x?alt=sse&key=short&v=1#here", "https://host/x?alt=sse&key=[key]&v=1"),
        ("https://host/canary-in-path/x", "https://host/[key]/x"),
        ("https://host/x?a=%20b&flag", "https://host/x?a=%20b&flag"),
    ],
)
def test_a_url_without_secrets(url: str, kept: str) -> None:
    assert masked_url(url, {"canary-in-path"}) == kept


FORMS = [
    *(KEY, IN_JSON, IN_JSON.replace("/", "\\/"), quote(KEY), quote(KEY, safe="").lower()),
    json.dumps(IN_JSON.replace("/", "\\/"))[1:-1],  # arguments of a call
    quote(quote(KEY, safe="")),
    KEY.replace("=", "\\u003d")
    .replace("+", "\\u002B")
    .replace('"', "\\u0022"),  # as Java writes it
]


@given(
    st.lists(st.sampled_from([*FORMS, "a", "canary", "ä"]), max_size=8),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_masking_keeps_the_other_bytes_and_cuts(texts: list[str], sizes: list[int]) -> None:
    body = "".join(texts).encode()
    chunks, at = [], 0
    for size in [*sizes, len(body)]:
        if piece := body[at : at + size]:
            chunks.append(piece)
        at += size
    kept = masked(chunks, {KEY})
    expected = "".join("[key]" if text in FORMS else text for text in texts).encode()
    assert b"".join(kept) == expected
    assert all(kept)
    assert len(kept) <= len(chunks)
    if not set(texts) & set(FORMS):
        assert kept == chunks


@given(
    st.text(st.sampled_from('\n\r\t\b\f "\\/é'), max_size=4),
    st.lists(st.text(st.sampled_from('ab\n\r\t\b\f "\\/é😀'), min_size=1), max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_secret_with_any_characters_in_json_within_json(
    around: str, parts: list[str], deep: int, ascii_only: bool
) -> None:
    secret = f"canary{'b1'.join(parts)}canary"
    text = f"<{secret}>"
    for _ in range(deep):
        text = json.dumps(text, ensure_ascii=ascii_only)
    shown = masked_text(text, {f"{around.strip()}{secret}", f" {secret}\n"})
    for _ in range(deep):
        shown = json.loads(shown)
    assert shown == "<[key]>"


@each_row("before", ["", "a", "ab", "me:", "user"])
@each_row("code", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_a_secret(before: str, code: Callable[[bytes], bytes]) -> None:
    coded = code(f"{before}{KEY} and more".encode()).decode()
    text = masked_text(f"it is {coded}.", {KEY})
    assert "[key]" in text
    assert base64.b64encode(KEY.encode()[2:-2]).decode()[3:-4] not in text
    assert len(text) < len(coded) - len(KEY) + 8


@given(
    st.integers(0, 80),
    st.sampled_from([1, 20, 60, 64, 72, 76]),
    st.sampled_from(["\n", "\r\n", "\r", "\n    "]),
    st.integers(0, 3),
    st.sampled_from([bytes, base64.b64encode, base64.urlsafe_b64encode]),
)
def test_a_secret_over_lines(
    before: int, width: int, end: str, deep: int, code: Callable[[bytes], bytes]
) -> None:
    """`base64` ends lines after 76 characters, `openssl` after 64; a terminal where it is full."""
    key = "k3y-Plain9876543+abcdefghijklmnop"
    around = b"c" * before, b"\nregion: eu"
    whole = code(b"%b%b%b" % (around[0], key.encode(), around[1]))
    sure = [form for form in (key, *in_base64(key)) if form in whole.decode()]
    text = end.join(whole.decode()[at : at + width] for at in range(0, len(whole), width))
    for _ in range(deep):
        text = json.dumps(text)
    shown = masked_text(f"<{text}>", {key})
    assert (shown[0], shown[-1]) == ("<", ">")
    shown = shown[1:-1]
    for _ in range(deep):
        shown = json.loads(shown)
    joined = "".join(shown.split())
    assert "[key]" in joined
    assert not [form for form in sure if form in joined]
    kept = whole.decode().split(max(sure, key=len))
    assert joined.split("[key]") == ["".join(part.split()) for part in kept]


@each_row("piece", [b"a\n", b"\n", b"\\", b"%25", b"\n  ", b"x" * 76 + b"\n"])
@pytest.mark.exhaustive
def test_lines_are_joined_in_linear_time(piece: bytes) -> None:
    def seconds(size: int) -> float:
        """The least of three: whatever else the machine does only adds to it."""
        taken = []
        for _ in range(3):
            began = time.process_time()
            assert masked([piece * (size // len(piece))], {KEY})
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(2_000_000) < 40 * max(seconds(200_000), 0.02)


@pytest.mark.parametrize(
    ("secret", "text", "kept"),
    [
        ("canary-8f3b52e1d0-77", "key canary-8f3b5..., and", "key [key]..., and"),
        ("canary-8f3b52e1d0-77", "canary-8f3b52e1d0-99 canary-8f", "[key] canary-8f"),
        ("canary-8f3b52e1d0-77", "canary-8f3b52e1d0-77-and canary-8f3b52e1d0-7", "[key]-and [key]"),
        ("customer-support-agent", "customer-support-desk", "customer-support-desk"),
        ("https://host-1/x/of-a-referer", "https://host-1/other", "https://host-1/other"),
    ],
)
def test_a_key_that_was_cut_short(secret: str, text: str, kept: str) -> None:
    assert masked_text(text, {secret}) == kept


@pytest.mark.parametrize("secrets", [{"abcdefgh12345678", "12345678ijklmnop"}])
def test_secrets_that_overlap(secrets: set[str]) -> None:
    assert masked_text("x abcdefgh12345678ijklmnop y", secrets) == "x [key] y"


@each_row(
    ("text", "kept"),
    [
        ("provided: sk-proj-*****7aB3. You", "provided: [key]. You"),
        (r"key:\nsk-ant-api03-Ab3dEf6hIj9lMn2pQr5t", r"key:\n[key]"),
        ("gh_x ghp_" + "a1" * 18, "gh_x [key]"),
        ("AKIAIOSFODNN7EXAMPLE", "[key]"),
        (r"x-amz-security-token:FwoG/Zx+Y=\nhost", r"x-amz-security-token:[key]\nhost"),
        ("?X-Amz-Credential=me%2Faws4&X-Amz-Date=1", "?X-Amz-Credential=[key]&X-Amz-Date=1"),
        ('{"access_token": "opaque-123", "n": 1}', '{"access_token": "[key]", "n": 1}'),
        (
            "in organization org-AbCdEfGhIjKlMnOpQrStUvWx on",
            "in organization [key] on",
        ),
        (f"AIza{'x' * 35}", "[key]"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl", "[key]"),
        (
            r"-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\n-----END RSA PRIVATE KEY-----\n",
            r"[key]\n",
        ),
        *(
            (text, text)
            for text in (
                "risk-adjusted-returns-2024-of-all-funds task-1234567890-abcdefghij",
                "sk-learn-based-pipelines-for-everybody",
                "call_abcdefghijklmnopqrstuvwx12345678 chatcmpl-sk-1234567890abcdefghij",
                "req_011CZabcdefghijklmnopqrst fp_44709d6fcb",
                '"max_tokens": 12345678, "token": "of-appreciation"',
            )
        ),
    ],
)
def test_known_forms_of_keys(text: str, kept: str) -> None:
    assert masked_text(text, ()) == kept
