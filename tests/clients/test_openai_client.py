"""Where a client gets its server and key from, and clients by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from clients.exchanges import asks, is_below

from toolcrib import ALL, Agent, tool
from toolcrib.clients import OpenAIClient, Outgoing, Response, client_for
from toolcrib.errors import AuthenticationError, RequestError
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import Wire, decode, encode

OPENAI = "https://api.openai.com/v1"
OTHER = "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


SOURCES: list[tuple[dict[str, str], dict[str, str], tuple[str, str | None]]] = [
    ({}, {"api_key": "k1"}, (OPENAI, "k1")),
    ({"OPENAI_API_KEY": "k2"}, {}, (OPENAI, "k2")),
    ({"OPENAI_API_KEY": " k2\n"}, {}, (OPENAI, "k2")),
    ({"OPENAI_API_KEY": "k2"}, {"api_key": "k1"}, (OPENAI, "k1")),
    ({"OPENAI_BASE_URL": OTHER}, {}, (OTHER, None)),
    ({"OPENAI_BASE_URL": OTHER, "OPENAI_API_KEY": "k2"}, {}, (OTHER, "k2")),
    ({"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "k2"}, {}, (OPENAI, "k2")),
    ({"OPENAI_API_KEY": "k2"}, {"base_url": OTHER}, (OTHER, None)),
    ({"OPENAI_API_KEY": "k2"}, {"base_url": OTHER, "api_key": "k1"}, (OTHER, "k1")),
    ({"OPENAI_API_KEY": "k2"}, {"base_url": OPENAI + "/"}, (OPENAI + "/", "k2")),
]


@pytest.mark.parametrize(("environment", "given", "expected"), SOURCES)
def test_sources(
    environment: dict[str, str],
    given: dict[str, str],
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = OpenAIClient("m", **given)  # type: ignore[arg-type]
    url, headers = asks(OpenAIClient, "m", **given)
    assert is_below(url, expected[0])
    assert headers == ({"Authorization": f"Bearer {expected[1]}"} if expected[1] else {})
    openai = "api.openai.com" in expected[0]
    assert client.wire.max_tokens_key == ("max_completion_tokens" if openai else "max_tokens")


@pytest.mark.parametrize("base_url", [None, OPENAI, "https://api.openai.com/v1/"])
def test_openai_itself_needs_a_key(base_url: str | None) -> None:
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        OpenAIClient("m", base_url=base_url)


@pytest.mark.parametrize("base_url", [None, OTHER])
def test_either_api(base_url: str | None) -> None:
    chat = OpenAIClient("m", base_url=base_url, api_key="k")
    responses = OpenAIClient("m", api="responses", base_url=base_url, api_key="k")
    assert (chat.wire.name, responses.wire.name) == ("openai-chat", "openai-responses")
    assert responses.wire.max_tokens_key == "max_output_tokens"
    for api in ("chat", "responses"):
        _, headers = asks(OpenAIClient, "m", api=api, base_url=base_url, api_key="k")
        assert headers == {"Authorization": "Bearer k"}
    with pytest.raises(RequestError, match="'completions'"):
        OpenAIClient("m", api="completions", api_key="k")  # type: ignore[arg-type]


def test_clients_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for name, wire in (("openai", "openai-chat"), ("openai-responses", "openai-responses")):
        client = client_for(f"{name}:gpt-5")
        assert isinstance(client, OpenAIClient)
        assert (client.model, client.wire.name) == ("gpt-5", wire)
    assert isinstance(client_for(f"{OTHER.upper()}#org/model:7b"), OpenAIClient)
    server = client_for(f"{OTHER}#org/model:7b")
    assert isinstance(server, OpenAIClient)
    assert server.model == "org/model:7b"
    assert repr(server) == repr(OpenAIClient("org/model:7b", base_url=OTHER))


RESPONSES: list[list[dict[str, Any]]] = [
    [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "double",
            "arguments": '{"n": 2}',
        },
    ],
    [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}],
]


class Scripted:
    """A transport, and its own response, that answers from `RESPONSES`."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.status, self.headers = 200, {"content-type": "application/json"}

    async def send(self, request: Outgoing) -> Response:
        self.sent.append(request)
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        output = RESPONSES[len(self.sent) - 1]
        yield json.dumps({"object": "response", "status": "completed", "output": output}).encode()

    async def aclose(self, *, whole: bool = True) -> None:
        pass


@tool(visible=ALL)
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_an_agent_keeps_the_models_reasoning() -> None:
    server = Scripted()
    client = OpenAIClient("gpt-5", api="responses", api_key="k", transport=server)
    result = await Agent(client, [double]).run("double 2")
    assert result.text == "4"
    assert {request.url for request in server.sent} == {f"{OPENAI}/responses"}
    first, second = (json.loads(request.body) for request in server.sent)
    assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
    assert second["input"][1:3] == RESPONSES[0]
    assert second["input"][3]["call_id"] == "call_1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpt-5",
        "openai:",
        "openai-responses:",
        "local:",
        "nobody:x",
        OTHER,
        f"{OTHER}#",
        "https://#m",
    ],
)
def test_names_that_mean_no_client(name: str) -> None:
    with pytest.raises(RequestError):
        client_for(name)


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("localhost:8000/v1#m", "http://localhost:8000/v1#m"),
        ("localhost:8000/v1", "http://localhost:8000/v1#MODEL"),
        ("10.0.0.1/v1#org/m", "http://10.0.0.1/v1#org/m"),
        ("openai/gpt-5", "openai:gpt-5"),
        ("opnai:gpt-5", "openai:gpt-5"),
        ("gpt-5", "openai:gpt-5"),
        ("openai", "openai:MODEL"),
        ("ollama:", "ollama:MODEL"),
    ],
)
def test_what_a_wrong_name_of_a_model_likely_means(name: str, likely: str) -> None:
    with pytest.raises(RequestError) as raised:
        client_for(name)
    assert f"there is no model '{name}' (did you mean '{likely}'?)" in str(raised.value)


def test_what_one_server_wants_back_no_other_is_sent() -> None:
    thinks, strict = (
        OpenAIClient("m", base_url=url, api_key="k").wire
        for url in ("https://api.deepseek.com/v1", "https://api.groq.com/openai/v1")
    )
    said = {"role": "assistant", "content": "Hi", "reasoning_content": "A greeting."}
    reply = decode(thinks, json.dumps({"choices": [{"message": said}]}).encode())
    asked = ChatRequest((Message.user("hello"), reply.message, Message.user("and?")))

    def again(wire: Wire) -> Any:
        return json.loads(encode(wire, asked, model="m").body)["messages"][1]

    assert again(thinks) == said
    assert again(strict) == {"role": "assistant", "content": "Hi"}
