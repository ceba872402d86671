"""Where Ollama's client gets its server from, and how it talks to a real server."""

from __future__ import annotations

import pytest
from clients.exchanges import ADD, HI, LONG, answered, asks, both, offered, reply_of
from rows import each_row
from servers.ollama import ollama_server

from toolcrib import ALL, Agent, tool
from toolcrib.clients import OllamaClient, client_for
from toolcrib.errors import (
    ProviderError,
    RequestError,
)
from toolcrib.testing import call, raw
from toolcrib.values.message import ChatRequest, Message, Settings, Usage

CANARY = "canary-0123456789abcdef"

HOSTS: list[tuple[str, str]] = [
    ("", "http://localhost:11434"),
    ("gpu-box", "http://gpu-box:11434"),
    ("gpu-box:8080", "http://gpu-box:8080"),
    (":8080", "http://127.0.0.1:8080"),
    ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104  where a server listens
    ("0.0.0.0:8080", "http://127.0.0.1:8080"),
    ("[::]:8080", "http://[::1]:8080"),
    ("[fe80::1]", "http://[fe80::1]:11434"),
    ("gpu-box/ollama/", "http://gpu-box:11434/ollama"),
    ("http://gpu-box", "http://gpu-box"),
    ("https://ollama.com/", "https://ollama.com"),
    ("https://me:secret@gpu-box:8080/x?y=1", "https://me:secret@gpu-box:8080/x?y=1"),
    (" gpu-box\n", "http://gpu-box:11434"),
]


@each_row(("host", "base"), HOSTS)
def test_sources(host: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    url, headers = asks(OllamaClient, "m")
    assert (url.startswith(f"{base}/") or "?" in base, headers) == (True, {})
    monkeypatch.setenv("OLLAMA_HOST", "http://elsewhere")
    if host:
        assert asks(OllamaClient, "m", base_url=host.strip())[0] == url


@pytest.mark.parametrize("host", ["ftp://gpu-box", "http://", "gpu-box:port", "http://[::1"])
def test_a_host_that_is_none(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(RequestError, match="base URL"):
        OllamaClient("m")


def test_a_key_is_for_whom_it_is_passed() -> None:
    _, headers = asks(OllamaClient, "m", base_url="https://ollama.com", api_key=" k\n")
    assert headers == {"Authorization": "Bearer k"}


def test_the_client_by_name() -> None:
    client = client_for("ollama:qwen3:4b")
    assert isinstance(client, OllamaClient)
    assert client.model == "qwen3:4b"
    with pytest.raises(RequestError, match="ollama:MODEL"):
        client_for("ollama:")


@both
async def test_a_conversation(stream: bool) -> None:
    request = ChatRequest(
        (Message.system("Be brief."), Message.user("Hi")),
        (ADD,),  # type: ignore[arg-type]
        settings=Settings(0.5, 99),
        id_prefix="r_0_",
    )
    async with (
        ollama_server([offered, "3"]) as server,
        OllamaClient("m", base_url=server.url, api_key=CANARY) as client,
    ):
        reply = await reply_of(client, request, stream=stream)
        assert (reply.text, reply.finish) == ("Let me add. ", "tool_calls")
        assert reply.usage == Usage(1, 11, 7)
        assert [(c.id, c.provider_id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0_0", "call_1_0", LONG, '{"a":1}'),
            ("r_0_1", "call_1_1", LONG, '{"a":2}'),
        ]
        assert (await reply_of(client, answered(request, reply), stream=stream)).text == "3"
    assert server.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert [bool(body.get("stream")) for body in server.requests] == [stream] * 2
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]


async def test_a_server_that_fails_in_the_middle_of_a_stream() -> None:
    body = '{"message":{"role":"assistant","content":"Hm"},"done":false}\n{"error":"overloaded"}\n'
    async with (
        ollama_server([raw(body, content_type="application/x-ndjson")]) as server,
        OllamaClient("m", base_url=server.url) as client,
    ):
        with pytest.raises(ProviderError, match="overloaded"):
            await reply_of(client, HI, stream=True)


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_an_agent() -> None:
    async with (
        ollama_server([call("double", n=2), "4"]) as server,
        OllamaClient("m", base_url=server.url) as client,
    ):
        result = await Agent(client, [double]).run("double 2")
    assert result.text == "4"
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert server.requests[1]["messages"][2]["tool_name"] == "double"
