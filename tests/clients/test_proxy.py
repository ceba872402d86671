"""The proxy of the environment: which, for what, and what is said where it cannot be used."""

from __future__ import annotations

import asyncio
import base64

import pytest

from toolcrib.clients import OpenAIClient
from toolcrib.clients.server import proxy_of
from toolcrib.errors import AuthenticationError, ConnectionFailed, RequestError
from toolcrib.testing import openai_server, raw
from toolcrib.values.message import ChatRequest, Message

HI = ChatRequest((Message.user("Hi"),))
URL = "https://api.openai.com/v1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "no", "all"):
        for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
            monkeypatch.delenv(name, raising=False)


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of(URL) is None
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_of(URL) == "http://proxy:3128"
    for url in (
        "https://inside.example/v1",
        "http://127.0.0.1:1/",
        "http://localhost/",
        "http://[::1]/",
    ):
        assert proxy_of(url) is None


@pytest.mark.parametrize(
    "excepted", ["h.example:8000", "h.example", "*", ".example", "x, h.example"]
)
def test_what_is_excepted(excepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", excepted)
    assert proxy_of("http://user:pw@h.example:8000/v1") is None
    assert proxy_of("http://h.example.org:8000/v1") == (
        None if excepted == "*" else "http://proxy:3128"
    )


@pytest.mark.parametrize(
    ("name", "value", "proxy"),
    [
        ("all_proxy", "http://proxy:1", "http://proxy:1"),
        ("HTTPS_PROXY", "proxy:1", "http://proxy:1"),
        ("http_proxy", "http://proxy:1", None),
    ],
)
def test_how_it_may_be_written(
    name: str, value: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert proxy_of(URL) == proxy


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://user:password@proxy:1",
        *("http://user:password@[::1", "http://user:password@", "http://user:password@h:99999"),
        *("http://user:password@h x:1", "://password"),
    ],
)
async def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    async with OpenAIClient("m", api_key="k") as client:
        with pytest.raises(RequestError, match="must be an http:// URL that names a") as caught:
            await client.chat(HI)
    assert "password" not in str(caught.value)


async def test_a_proxy_gets_its_login_and_does_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with openai_server([raw("no pass/word here", status=403)]) as server:
        address = server.url.removeprefix("http://").removesuffix("/v1")
        monkeypatch.setenv("http_proxy", f"http://me:pass%2Fword@{address}")
        async with OpenAIClient("m", base_url="http://far.example/v1", api_key="k" * 20) as client:
            with pytest.raises(AuthenticationError, match=r"no \[key\] here"):
                await client.chat(HI)
        login = base64.b64encode(b"me:pass/word").decode()
        assert server.headers[0]["proxy-authorization"] == f"Basic {login}"


async def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        async with OpenAIClient("m", api_key="sk-canary-canary") as client:
            with pytest.raises(
                ConnectionFailed, match="proxy in the environment refused"
            ) as caught:
                await client.chat(HI)
    assert not caught.value.retryable
    (request,) = asked
    assert request.startswith(b"CONNECT api.openai.com:443 ")
    assert b"canary" not in request
