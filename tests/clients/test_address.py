"""Base URLs and headers, judged before anything is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from rows import each_row

from toolcrib.clients import AnthropicClient, EmbeddingsClient, OpenAIClient, WireClient
from toolcrib.clients.providers import PROVIDERS
from toolcrib.clients.server import checked_url, merged
from toolcrib.errors import RequestError
from toolcrib.testing import openai_server
from toolcrib.values.message import ChatRequest, Message

HI = ChatRequest((Message.user("Hi"),))


@pytest.mark.parametrize("url", ["http://h/v1#m", "http://h/a b", "http://h/a\tb", "http://h\n.x"])
def test_a_base_url_that_would_ask_another_path(url: str) -> None:
    with pytest.raises(RequestError, match="without # or spaces"):
        OpenAIClient("m", base_url=url)


@each_row("url", ["", "  ", "\n"])
@each_row("make", [make for name, make in PROVIDERS.items() if name != "local"])
def test_an_empty_base_url_is_not_the_providers_own(
    make: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from a variable that is not set; the request, and a key, would go to somebody else."""
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_HOST"):
        monkeypatch.setenv(name, "http://elsewhere")
    with pytest.raises(RequestError, match="base_url= is empty"):
        make("m", base_url=url, api_key="k")


@each_row("make", [EmbeddingsClient, partial(WireClient, "openai-chat")])
def test_an_empty_base_url_is_an_error(make: Any) -> None:
    with pytest.raises(RequestError, match="base"):
        make("m", base_url="")


def test_white_space_around_a_base_url_is_none_of_it() -> None:
    assert checked_url(" http://h/v1\n") == "http://h/v1"


@each_row("name", ["", "a b", "a:b", "a\r\nb", "é", 5])
def test_a_name_that_no_header_has(name: Any) -> None:
    with pytest.raises(RequestError, match="not the name of a header"):
        WireClient("openai-chat", "m", base_url="http://h", headers={name: "x"})


@each_row("value", [None, 5, b"k", "é", "a\nb"])
@each_row("make", [OpenAIClient, AnthropicClient])
def test_a_value_that_no_header_has(make: Any, value: Any) -> None:
    with pytest.raises(RequestError, match="'x-key' is not a string"):
        make("m", base_url="http://h", headers={"x-key": value})


async def test_names_of_headers_do_not_differ_by_case() -> None:
    own = {"Authorization": "Bearer k", "Accept": "a"}
    given = {"authorization": "Basic x"}
    assert merged(own, given) == {"Accept": "a", "authorization": "Basic x"}
    async with openai_server(["Hello"]) as server:
        async with OpenAIClient("m", base_url=server.url, api_key="k", headers=given) as client:
            await client.chat(HI)
        assert server.headers[0]["authorization"] == "Basic x"


async def test_a_login_in_the_url_and_a_key_besides() -> None:
    async with openai_server([]) as server:
        url = server.url.replace("//", "//user:password@")
        async with OpenAIClient("m", base_url=url, api_key="k") as client:
            with pytest.raises(RequestError, match="holds a login") as caught:
                await client.chat(HI)
    assert "password" not in str(caught.value)
    assert caught.value.__context__ is None
