"""No byte of a key gets into a cassette, in whatever form a provider repeats it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.tape.tape_helpers import Wired

from toolcrib.clients import AiohttpTransport, Outgoing, WireClient
from toolcrib.errors import ClientError
from toolcrib.testing import cassette, openai_server, raw
from toolcrib.testing.tape.secrets import masked, masked_url, secrets_of

KEY = 'sk-canary-8f3b/52+e1d0="77'
IN_JSON = json.dumps(KEY)[1:-1]
LOGIN = base64.b64encode(f"me:{KEY}".encode()).decode()


def outgoing(url: str = "http://host/v1/x", **headers: str) -> Outgoing:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Outgoing(method="POST", url=url, headers=named, body=b"{}")


FROM_HERE = secrets_of(outgoing())


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (outgoing(authorization=f"Bearer {KEY}"), {KEY, f"Bearer {KEY}"}),
        (outgoing(X_Api_Key=KEY, Content_Type="application/json"), {KEY}),
        (outgoing(x_of_a_gateway=KEY, x_team="payments"), {KEY}),
        (outgoing(cookie="a=session-1234; b=2"), {"a=session-1234; b=2", "session-1234"}),
        (outgoing(Authorization=f"Basic {LOGIN}"), {LOGIN, f"Basic {LOGIN}", f"me:{KEY}", KEY}),
        (outgoing(Authorization="Basic no-base-64"), {"Basic no-base-64", "no-base-64"}),
        (outgoing(Authorization="ollama", anthropic_version="2023-06-01"), set()),
        (outgoing(f"http://user-name:{quote(KEY, safe='')}@host/"), {KEY, "user-name"}),
        (outgoing("http://host/?alt=sse&key=abcd%2Fefgh&api-version=2024-10-21"), {"abcd/efgh"}),
    ],
)
def test_what_is_a_secret(request_: Outgoing, found: set[str]) -> None:
    secrets = secrets_of(request_) - FROM_HERE
    assert secrets >= found
    assert all(any(part in each for part in found) for each in secrets)


def test_a_key_of_the_transport_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "replay")
    monkeypatch.setenv("A_KEYBOARD", "us-international")
    found = secrets_of(outgoing())
    assert KEY in found
    assert not found & {"replay", "us-international"}


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
    KEY.replace("=", "\\u003d")
    .replace("+", "\\u002B")
    .replace('"', "\\u0022"),  # as Java writes it
]


@given(
    st.lists(st.sampled_from([*FORMS, "a", "sk-canary", "ä"]), max_size=8),
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


def content(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [200, 401])
async def test_a_provider_that_repeats_the_key_over_many_chunks(
    status: int, tmp_path: Path
) -> None:
    key = KEY.replace('"', "") * 9  # longer than the server's writes
    said = f"{key} is not valid: {quote(key)}, nor is {key}"
    body = json.dumps({"error": {"message": said}, "padding": "ä" * 99}, ensure_ascii=False)
    path = tmp_path / "tape.json"
    kinds = []
    for _ in range(2):
        async with openai_server([raw(body, status=status)]) as server:
            with cassette(path, transport=Wired(AiohttpTransport(), 7), record="once") as tape:
                async with WireClient(
                    "openai-chat",
                    "m",
                    base_url=f"{server.url}?key={quote(key)}",
                    headers={"Authorization": f"Bearer {key}", "X-Title": "mine"},
                    transport=tape,
                    retries=None,
                ) as client:
                    with pytest.raises(ClientError) as failed:
                        await client.tool_call(f"is {key} a key?")
        kinds.append((type(failed.value), failed.value.status))
    assert kinds[0] == kinds[1]
    text = content(path)
    assert "canary" not in text
    assert key[-20:] not in text
    exchange = json.loads(text)["exchanges"][0]
    assert exchange["request"]["url"].endswith("/v1/chat/completions?key=[key]")
    assert exchange["request"]["body"]["messages"][0]["content"] == "is [key] a key?"
    assert len(exchange["response"]["chunks"]) > 1
