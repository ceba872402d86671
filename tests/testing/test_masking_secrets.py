"""No byte of a key gets into a cassette, in whatever form a provider repeats it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from rows import each_row
from testing.cassette_helpers import Wired

from toolcrib.clients import AiohttpTransport, Outgoing, WireClient
from toolcrib.errors import ClientError, ToolcribError
from toolcrib.testing import cassette, openai_server, raw
from toolcrib.testing.masking import secrets_of
from toolcrib.values.message import ChatRequest, Message

KEY = 'sk-canary-8f3b/52+e1d0="77'
LOGIN = base64.b64encode(f"me:{KEY}".encode()).decode()

CODED = base64.b64encode(f"user-name:{KEY}".encode()).decode()


def outgoing(url: str = "http://host/v1/x", **headers: str) -> Outgoing:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Outgoing(method="POST", url=url, headers=named, body=b"{}")


FROM_HERE = secrets_of(outgoing())


@each_row(
    ("request_", "found"),
    [
        (outgoing(authorization=f"Bearer {KEY}"), {KEY, f"Bearer {KEY}"}),
        (outgoing(X_Api_Key=KEY, Content_Type="application/json"), {KEY}),
        (outgoing(x_of_a_gateway=KEY, x_team="payments"), {KEY}),
        (outgoing(cookie="a=session-1234; b=2"), {"a=session-1234; b=2", "session-1234"}),
        (outgoing(Authorization=f"Basic {LOGIN}"), {LOGIN, f"Basic {LOGIN}", f"me:{KEY}", KEY}),
        (outgoing(Authorization="Basic no-base-64"), {"Basic no-base-64", "no-base-64"}),
        (outgoing(Authorization="ollama", anthropic_version="2023-06-01"), set()),
        (
            outgoing(f"http://user-name:{quote(KEY, safe='')}@host/"),
            {KEY, quote(KEY, safe=""), "user-name", CODED},
        ),
        (
            outgoing("http://host/?alt=sse&key=abcd%2Fefgh&api-version=2024-10-21"),
            {"abcd/efgh", "abcd%2Fefgh"},
        ),
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


@each_row(
    ("name", "held"),
    [
        *((name, True) for name in ("API_KEY", "OPENAI_KEY", "AWS_ACCESS_KEY_ID", "PGPASSWORD")),
        *((name, True) for name in ("GITHUB_PAT", "TOKEN", "my_secret", "AWS_SESSION_TOKEN")),
        *((name, True) for name in ("MYSQL_PWD", "DB_PWD", "DB_PW", "SSH_PASSPHRASE", "DB_PASS")),
        *(
            (name, True)
            for name in ("API_KEYS", "TOKENS", "APP_SECRETS", "X_CREDENTIALS", "X_CRED")
        ),
        *((name, True) for name in ("SECRET_KEY_BASE", "STRIPE_KEY_LIVE", "KEY2", "apiKey")),
        *(
            (name, True)
            for name in ("SESSION_COOKIE", "JWT", "BEARER", "PRIVATE_PEM", "REDIS_AUTH")
        ),
        *((name, True) for name in ("AWS_BEARER_TOKEN_BEDROCK", "clientSecret", "SOME_APIKEY")),
        *((name, False) for name in ("KEYBOARD", "A_KEYBOARD", "COMPASS", "XPAT", "MONKEY")),
        *((name, False) for name in ("PWD", "OLDPWD", "XAUTHORITY", "TOKENIZERS_PARALLELISM")),
        *((name, False) for name in ("TOKEN_URL", "KEY_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE")),
        *((name, False) for name in ("SSH_AUTH_SOCK", "SESSION_COOKIE_DOMAIN", "SECRET_NAME")),
    ],
)
def test_variables_that_hold_secrets(
    name: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, KEY)
    assert (KEY in secrets_of(outgoing())) is held


def test_how_long_a_secret_of_the_environment_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p@ssw0rd")
    monkeypatch.setenv("PGPASSWORD", "seven-7")
    assert "p@ssw0rd" in secrets_of(outgoing())
    assert "seven-7" not in secrets_of(outgoing())


def test_a_login_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me:pass%2Fword-long@host:5432/db")
    assert "pass/word-long" in secrets_of(outgoing())
    monkeypatch.setenv("DATABASE_URL", "postgres://postgres:postgres@host/db")
    assert "postgres" not in secrets_of(outgoing())  # words stay words


@each_row(
    "url",
    [
        "postgresql:///db?user=me&password={}",
        "jdbc:postgresql://host/db?password={}&ssl=true",
        "mssql+pyodbc:///?odbc_connect=PWD%3D{}%3B",
        "https://host/hook?token={}",
        "postgres://me:{}@host/db",
        "https://host/?next=https%3A%2F%2Fme%3A{}%40host%2F",
    ],
)
@each_row("password", ["Winter%21Secret-1941", "p@Secret/1941/43"])
async def test_no_password_of_a_variable_is_in_the_file(
    url: str, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url.format(password)
    monkeypatch.setenv("DATABASE_URL", url)
    said = f"{url}, which is {base64.b64encode(url.encode()).decode()}: {unquote(password)}"
    async with openai_server([said]) as server:
        with cassette(tmp_path / "tape.json", record="all") as tape:
            client = WireClient("openai-chat", "m", base_url=server.url, transport=tape)
            async with client:
                await client.chat(ChatRequest((Message.user("Hi"),)))
    written = content(tmp_path / "tape.json")
    assert "Secret" not in written
    assert base64.b64encode(url.encode()).decode() not in written


def test_a_body_has_keys_for_other_servers() -> None:
    body = {
        "tools": [
            {
                "type": "mcp",
                "server_url": "https://host/sse?api_key=in-url-1234",
                "authorization": "in-member-1",
                "headers": {"X-Of-A-Server": "Bearer in-header-1234", "Accept": "application/json"},
            },
            {
                "name": "f",
                "parameters": {"properties": {"token": {"type": "string", "default": "no-secret"}}},
            },
        ],
        "mcp_servers": [{"authorization_token": "in-member-2", "url": "https://[broken"}],
        "prompt_cache_key": "no-secret-either",
        "messages": [{"role": "user", "content": "x", "password": "is what is said"}],
    }
    request = Outgoing(
        method="POST", url="http://host/", headers={}, body=json.dumps(body).encode()
    )
    assert secrets_of(request) - FROM_HERE == {
        *("in-url-1234", "in-member-1", "in-member-2", "in-header-1234", "Bearer in-header-1234"),
    }


def test_a_form_that_asks_for_a_token() -> None:
    form = b"grant_type=refresh_token&refresh_token=abcd%2Fefgh&scope=everything"
    request = Outgoing(method="POST", url="http://host/", headers={}, body=form)
    assert secrets_of(request) - FROM_HERE == {"abcd/efgh", "abcd%2Fefgh"}


def content(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [200, 401])
async def test_a_provider_that_repeats_the_key_over_many_chunks(
    status: int, tmp_path: Path
) -> None:
    key = KEY.replace('"', "") * 5  # longer than the server's writes
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


async def test_a_secret_that_was_in_the_environment_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest takes `monkeypatch` back before it ends `cassette`."""
    async with openai_server(["it is canary-7f3b52e1d0"]) as server:
        with cassette(tmp_path / "tape.json", record="all") as tape:
            async with WireClient(
                "openai-chat", "m", base_url=server.url, transport=tape
            ) as client:
                monkeypatch.setenv("WEATHER_TOKEN", "canary-7f3b52e1d0")
                await client.tool_call("what is it?")
            monkeypatch.undo()
    assert "canary" not in content(tmp_path / "tape.json")
    assert "it is [key]" in content(tmp_path / "tape.json")


@each_row("secret", ["rosebud-1941", "rose\nbud\t1941", "rose\r\nbud-1941"])
@each_row("end", ["", "\n"])
async def test_a_secret_that_nobody_could_know_is_named(
    secret: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "tape.json"
    async with openai_server([f"The vault says {secret}."]) as server:
        with cassette(path, record="all", secrets=[secret + end]) as tape:
            client = WireClient("openai-chat", "m", base_url=server.url, transport=tape)
            async with client:
                await client.chat(ChatRequest((Message.user(f"Is it {secret}?"),)))
    written = path.read_text()
    assert "1941" not in written
    assert "The vault says [key]." in written
    assert "Is it [key]?" in written


class Keyed(Wired):
    """A transport with a key of its own."""

    secrets = ("rosebud-1941",)


async def test_what_the_transport_below_knows_to_be_secret_is_in_no_error(tmp_path: Path) -> None:
    turn = raw("no access for rosebud-1941", status=401)
    async with openai_server([turn]) as server:
        below = Keyed(AiohttpTransport())
        with cassette(tmp_path / "tape.json", transport=below, record="all") as tape:
            client = WireClient("openai-chat", "m", base_url=server.url, transport=tape)
            async with client:
                with pytest.raises(ClientError, match=r"no access for \[key\]"):
                    await client.chat(ChatRequest((Message.user("Hi"),)))


@pytest.mark.parametrize("secrets", [[""], [" "], [7]])
def test_what_is_no_secret(secrets: list[str], tmp_path: Path) -> None:
    with pytest.raises(ToolcribError, match="none of them blank"):
        cassette(tmp_path / "tape.json", secrets=secrets)
