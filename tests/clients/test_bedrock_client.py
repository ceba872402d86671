"""Where Bedrock's client gets its server, key and signature from, and what it asks of whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.clients import (
    AiohttpTransport,
    BedrockClient,
    Outgoing,
    SigningTransport,
    client_for,
)
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    MissingExtraError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
)
from toolcrib.values.message import ChatRequest, Message, Reply, Settings

OTHER = "http://localhost:8000"
CANARY = "ABSKcanary0123456789"
HI = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
VARIABLES = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE",
             "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # fmt: skip


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")


def amazon(region: str) -> str:
    return f"https://bedrock-runtime.{region}.amazonaws.com"


KEY = {"AWS_BEARER_TOKEN_BEDROCK": " k1\n"}
SOURCES: list[tuple[dict[str, str], dict[str, str], tuple[str, str | None]]] = [
    (KEY | {"AWS_REGION": "eu-west-1"}, {}, (amazon("eu-west-1"), "Bearer k1")),
    (KEY | {"AWS_DEFAULT_REGION": "eu-west-2"}, {}, (amazon("eu-west-2"), "Bearer k1")),
    (KEY | {"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, {}, (amazon("a"), "Bearer k1")),
    (KEY | {"AWS_REGION": "a"}, {"region": "us-east-1"}, (amazon("us-east-1"), "Bearer k1")),
    (KEY, {"region": "a", "api_key": "k2"}, (amazon("a"), "Bearer k2")),
    (KEY, {"base_url": OTHER}, (OTHER, None)),
    (KEY, {"base_url": OTHER, "api_key": "k2"}, (OTHER, "Bearer k2")),
    (KEY, {"base_url": "https://vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com"},
     ("https://vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com", "Bearer k1")),
    (KEY, {"base_url": "https://evil.test/.amazonaws.com"},
     ("https://evil.test/.amazonaws.com", None)),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "given", "expected"), SOURCES)
async def test_sources(
    environment: dict[str, str],
    given: dict[str, str],
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    transport = by_default(monkeypatch)
    await BedrockClient("m", **given).chat(HI)  # type: ignore[arg-type]
    (sent,) = transport.sent
    base, authorization = expected
    assert sent.url == f"{base}/model/m/converse"
    assert sent.headers.get("Authorization") == authorization


@pytest.mark.parametrize(
    ("region", "words"), [(None, "AWS_REGION"), ("", "AWS_REGION"), ("a.evil.test/", "evil")]
)
def test_a_region_is_needed_and_is_a_region(region: str | None, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        BedrockClient("m", region=region, api_key="k")


def test_the_client_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "k")
    client = client_for("bedrock:us.anthropic.claude-x-v1:0")
    assert isinstance(client, BedrockClient)
    assert client.model == "us.anthropic.claude-x-v1:0"
    with pytest.raises(RequestError, match="bedrock:MODEL"):
        client_for("bedrock:")


class Answer:
    """An answer out of a table, in two pieces."""

    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        yield self._body[half:]

    async def aclose(self, *, whole: bool) -> None:
        pass


class Canned:
    """A transport that keeps what was sent."""

    def __init__(self, answer: Answer) -> None:
        self.sent: list[Outgoing] = []
        self.closed = False
        self._answer = answer

    async def send(self, request: Outgoing) -> Answer:
        self.sent.append(request)
        return self._answer

    async def aclose(self) -> None:
        self.closed = True


def said() -> Answer:
    message = {"role": "assistant", "content": [{"text": "Hello."}]}
    body = {"output": {"message": message}, "stopReason": "end_turn"}
    return Answer(200, json.dumps(body).encode())


def by_default(monkeypatch: pytest.MonkeyPatch) -> Canned:
    """Let every client whose transport is aiohttp's send to this one, signed or not."""
    canned = Canned(said())
    monkeypatch.setattr(AiohttpTransport, "send", lambda _self, request: canned.send(request))
    return canned


async def test_a_reply() -> None:
    transport = Canned(said())
    settings = Settings(max_tokens=9)
    client = BedrockClient(
        "m:0", region="a", api_key=CANARY, transport=transport, settings=settings
    )
    reply = await client.chat(HI)
    assert isinstance(reply, Reply)
    assert reply.text == "Hello."
    (sent,) = transport.sent
    assert sent.url == f"{amazon('a')}/model/m:0/converse"
    assert sent.headers["Authorization"] == f"Bearer {CANARY}"
    assert json.loads(sent.body) == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "inferenceConfig": {"maxTokens": 9},
    }
    assert CANARY not in repr(client)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestError),
        (403, AuthenticationError),
        (404, RequestError),
        (424, RequestError),
        (429, RateLimitError),
        (500, ProviderError),
        (503, OverloadedError),
    ],
)
async def test_refusals(status: int, kind: type[ClientError]) -> None:
    answer = Answer(status, json.dumps({"message": f"{CANARY} because"}).encode())
    transport = Canned(answer)
    client = BedrockClient("m", region="a", api_key=CANARY, transport=transport, retries=None)
    with pytest.raises(kind, match="because") as caught:
        await client.chat(HI)
    assert type(caught.value) is kind
    assert CANARY not in str(caught.value)


async def test_what_amazon_repeats_of_a_request_holds_no_secret() -> None:
    """Its refusal of a signature quotes the headers that were signed."""
    said = (
        "The Canonical String should have been 'POST\nx-amz-security-token:IQoJcanary+/==\n\nhost'"
    )
    answer = Answer(403, json.dumps({"Message": f"{said} {CANARY}x"}).encode())
    client = BedrockClient("m", base_url=OTHER, transport=Canned(answer))
    with pytest.raises(AuthenticationError, match="Canonical String") as caught:
        await client.chat(HI)
    assert "canary" not in str(caught.value)


SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "AWS_SESSION_TOKEN": "session-canary",
}


async def test_without_a_key_requests_are_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what botocore finds; here it is in the environment."""
    pytest.importorskip("botocore")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    client = BedrockClient("m", region="eu-west-1", headers={"X-Mine": "1"})
    transport = by_default(monkeypatch)
    await client.chat(HI)
    (sent,) = transport.sent
    authorization = sent.headers["Authorization"]
    start = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"
    assert authorization.startswith(start)
    assert "/eu-west-1/bedrock/aws4_request, SignedHeaders=" in authorization
    assert "content-type;host;x-amz-date;x-amz-security-token;x-mine" in authorization
    assert sent.headers["X-Amz-Security-Token"] == "session-canary"
    assert "canary" not in repr(sent)
    await client.aclose()


async def test_who_signs_closes_what_it_sends_by() -> None:
    pytest.importorskip("botocore")
    transport = Canned(said())
    await SigningTransport(transport, region="a").aclose()
    assert transport.closed


async def test_what_goes_by_a_transport_of_ones_own_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("botocore")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    transport = Canned(said())
    await BedrockClient("m", region="a", transport=transport).chat(HI)
    assert transport.sent[0].headers["Authorization"].startswith("AWS4-HMAC-SHA256")
    await BedrockClient("m", region="a", api_key=CANARY, transport=transport).chat(HI)
    assert transport.sent[1].headers["Authorization"] == f"Bearer {CANARY}"
    await BedrockClient("m", base_url=OTHER, transport=transport).chat(HI)
    assert "Authorization" not in transport.sent[2].headers


def test_what_the_transport_below_knows_to_be_secret_is_named() -> None:
    pytest.importorskip("botocore")

    class Keyed(Canned):
        secrets = (CANARY,)

    assert SigningTransport(Keyed(said()), region="a").secrets == (CANARY,)
    assert SigningTransport(Canned(said()), region="a").secrets == ()


async def test_the_token_that_a_request_was_signed_with_is_hidden() -> None:
    credentials = pytest.importorskip("botocore.credentials").Credentials("AKIAONE", "s", CANARY)
    answer = Answer(403, json.dumps({"message": f"The signature of {CANARY} is wrong"}).encode())
    signing = SigningTransport(Canned(answer), region="a", credentials=credentials)
    with pytest.raises(AuthenticationError, match=r"The signature of \[key\] is wrong"):
        await BedrockClient("m", region="a", transport=signing).chat(HI)


async def test_each_request_has_the_credentials_of_its_time() -> None:
    credentials = pytest.importorskip("botocore.credentials").Credentials("AKIAONE", "s")
    transport = Canned(said())
    signing = SigningTransport(transport, region="a", credentials=credentials)
    client = BedrockClient("m", region="a", transport=signing)
    await client.chat(HI)
    credentials.access_key = "AKIATWO"
    await client.chat(HI)
    found = [sent.headers["Authorization"].partition("=")[2] for sent in transport.sent]
    assert [text.partition("/")[0] for text in found] == ["AKIAONE", "AKIATWO"]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "there are no AWS credentials: set AWS_BEARER_TOKEN_BEDROCK"),
        ({"AWS_PROFILE": "secret-name"}, "no usable AWS credentials: ProfileNotFound"),
        ({"AWS_ACCESS_KEY_ID": "AKIA"}, "no usable AWS credentials: PartialCredentialsError"),
    ],
)
async def test_credentials_that_are_not_there(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = BedrockClient("m", region="a", retries=None)
    with pytest.raises(AuthenticationError, match=words) as caught:
        await client.chat(HI)
    assert caught.value.__context__ is None
    assert "secret-name" not in str(caught.value)


class Failing:
    """Credentials that cannot be fetched anew."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_frozen_credentials(self) -> Any:
        raise self._error


@pytest.mark.parametrize("name", ["ClientError", "NoCredentialsError", "RuntimeError", "OSError"])
async def test_credentials_that_cannot_be_fetched_anew(name: str) -> None:
    kinds = pytest.importorskip("botocore.exceptions")
    kind = getattr(kinds, name, None) or {"RuntimeError": RuntimeError, "OSError": OSError}[name]
    said = {"Error": {"Code": "AccessDenied", "Message": "canary"}}
    error = kind(said, "AssumeRole") if name == "ClientError" else kind()
    transport = Canned(Answer(200, b""))
    signing = SigningTransport(transport, region="a", credentials=Failing(error))
    client = BedrockClient("m", region="a", transport=signing, retries=None)
    with pytest.raises(AuthenticationError, match=f"no usable AWS credentials: {name}") as caught:
        await client.chat(HI)
    assert "canary" not in str(caught.value)
    assert transport.sent == []


@pytest.mark.parametrize("said", ["{canary", '["canary"]', '{"Version": 1, "canary": "x"}'])
async def test_what_a_program_says_that_gives_no_credentials(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    (tmp_path / "said").write_text(said, encoding="utf-8")
    (tmp_path / "config").write_text(
        f"[default]\ncredential_process = cat {tmp_path / 'said'}\n", encoding="utf-8"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    client = BedrockClient("m", region="a", retries=None)
    with pytest.raises(AuthenticationError, match="no usable AWS credentials") as caught:
        await client.chat(HI)
    assert caught.value.__context__ is None
    assert "canary" not in str(caught.value)


def test_signing_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("toolcrib.clients.transport.import_module", absent)
    with pytest.raises(MissingExtraError, match=r"'\.\[bedrock\]'"):
        BedrockClient("m", region="a")
    assert BedrockClient("m", region="a", api_key="k").model == "m"
