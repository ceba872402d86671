"""A provider may repeat a key, in other characters or in part: an error's text has none of it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from rows import each_row

from toolcrib.clients import OpenAIClient, Outgoing, Response
from toolcrib.clients.server import hidden, secrets_in, secrets_of
from toolcrib.errors import AuthenticationError, ConnectionFailed
from toolcrib.testing import openai_server, raw
from toolcrib.testing.scripted import RawTurn
from toolcrib.values.message import ChatRequest, Message, Reply
from toolcrib.wire.failure import safe_text

HI = ChatRequest((Message.user("Hi"),))
KEY = "Zk9/aB+cD=eFgH1234567890&xyz+QQ=="

FORMS: dict[str, str] = {
    "plain": KEY,
    "json": KEY.replace("/", "\\/").replace("+", "\\u002B"),
    "url": quote(KEY, safe=""),
    "url, lower case": quote(KEY, safe="").replace("%2B", "%2b"),
    "html": html.escape(KEY).replace("=", "&#61;").replace("/", "&#x2f;"),
    "two lines": f"{KEY[:12]} {KEY[12:]}",
    "cut": f"{KEY[:20]}…",
    "cut short": KEY[:8],
}


@each_row("form", FORMS)
def test_a_key_in_any_form_is_hidden(form: str) -> None:
    assert hidden(f"no key: {FORMS[form]} of yours", [KEY]) == "no key: [key] of yours"


LOOKS = "sk-canary+/=0123456789abcdefXYZ&more"
"""It begins as keys of a known provider do, which are hidden by their looks wherever they stand."""


@each_row("key", [KEY, LOOKS])
def test_a_key_in_pieces_of_any_length_is_hidden(key: str) -> None:
    """By both who hide something: what looks like a key, and what is known to be one."""
    for at in range(1, len(key)):
        for broken in (f"{key[:at]}\n{key[at:]}", f"{quote(key[:at], safe='')} {key[at:]}"):
            told = hidden(safe_text(f"bad {broken} given"), [key, f"Bearer {key}"])
            pieces = [key[n : n + 6] for n in range(len(key) - 5)]
            assert not [piece for piece in pieces if piece in told], at
            assert told.startswith("bad [key]"), at
            assert told.endswith(" given"), at


@each_row("form", FORMS)
def test_a_key_that_looks_like_one_is_hidden_in_any_form(form: str) -> None:
    forms = {
        "url": quote(LOOKS, safe=""), "html": html.escape(LOOKS).replace("=", "&#61;"),
        "json": LOOKS.replace("/", "\\/").replace("+", "\\u002B"),
    }  # fmt: skip
    told = hidden(safe_text(f"no key: {forms.get(form, LOOKS)} of yours"), [LOOKS])
    assert told == "no key: [key] of yours"


def test_what_is_not_secret_stays() -> None:
    text = "Zk9/aB is too short, and abcde is none"
    assert hidden(text, [KEY, "abcde", ""]) == text
    assert hidden("my-title-1 or my-title", ["my-title"]) == "[key]-1 or [key]"


LOGIN = base64.b64encode(b"user:pass/word").decode()


def test_where_secrets_are() -> None:
    url = "https://user:pass%2Fword@h/v1?api-version=2024-10-21&key=a%2Bb+c"
    assert secrets_of(url, {"Authorization": "Bearer k1", "x": "k2"}) == [
        "a+b+c", "a+b c", "a%2Bb+c", "user", "pass/word", "pass%2Fword", LOGIN,
        "Bearer k1", "k1", "k2", "k2"]  # fmt: skip


@each_row("before", ["", "a", "me:", "a user:"])
@each_row("code", [base64.b64encode, base64.urlsafe_b64encode])
@each_row("secret", [KEY, "s3cret", "Zk9/+aB"])
def test_base64_of_a_secret_is_hidden(
    before: str, code: Callable[[bytes], bytes], secret: str
) -> None:
    coded = code(f"{before}{secret}".encode()).decode()
    told = hidden(f"no login {coded}, sorry", [secret])
    assert "[key]" in told
    assert told.endswith(", sorry")
    assert len(told) < len(f"no login {coded}, sorry") - len(secret) + 5
    assert hidden(f"no login {coded}, sorry", ["another-key-0123456789"]).count(coded) == 1


@each_row("end", ["\n", "\r\n", "\\n", "\\r\\n", "\\\\n", "\n  "])
@each_row("width", [7, 64, 76])
@each_row("secret", [KEY, "s3cret"])
def test_base64_in_lines_of_a_secret_is_hidden(end: str, width: int, secret: str) -> None:
    """`base64` ends lines after 76 characters, `openssl` after 64."""
    for before in range(width):
        coded = base64.b64encode(b"c" * before + secret.encode()).decode()
        lines = end.join(coded[at : at + width] for at in range(0, len(coded), width))
        told = hidden(f"no login {lines}, sorry", [secret])
        assert "[key]" in told, before
        assert told.endswith(", sorry"), before


@each_row("login", ["team:s3cretpwd", "team:pass%2Fword%20%C3%A9", "only-a-user", ":s3cretpwd"])
async def test_a_login_is_hidden_as_it_goes_over_the_line(login: str) -> None:
    """Whoever sends it: a server that repeats the headers that it was sent repeats the login."""
    sent: list[str] = []

    def repeats(_: object) -> RawTurn:
        headers = {name.lower(): value for name, value in server.headers[-1].items()}
        sent.append(headers["authorization"])
        return raw(json.dumps({"error": {"message": f"no: {sent[-1]}"}}), status=401)

    async with openai_server([repeats]) as server:
        url = server.url.replace("://", f"://{login}@")
        async with OpenAIClient("m", base_url=url, retries=None) as client:
            with pytest.raises(AuthenticationError, match=r"\[key\]") as caught:
                await client.chat(HI)
    assert sent[0].startswith("Basic ")
    assert sent[0].removeprefix("Basic ") not in str(caught.value)


@each_row("header", ["Cookie", "X-Auth", "Proxy-Authorization"])
def test_each_value_in_a_header_is_hidden_alone(header: str) -> None:
    """A provider may repeat a cookie's value without its name."""
    headers = {header: 'sid=SECRET1; theme=SECRET2,x="SECRET3"; last=Zk9/+aB=='}
    for secret in ("SECRET1", "SECRET2", "SECRET3", "Zk9/+aB=="):
        told = hidden(f"no session {secret} here", secrets_of("https://h", headers))
        assert told == "no session [key] here"
    asked = json.dumps({"tools": [{"headers": {header: "sid=SECRET1"}}, {"cookie": "a=SECRET2"}]})
    for secret in ("SECRET1", "SECRET2"):
        assert secret not in hidden(f"no session {secret}", secrets_in(asked.encode()))


def test_headers_that_hold_none() -> None:
    beta = {"Anthropic-Beta": "context-1m-2025-08-07", "Content-Type": "application/json"}
    assert not any(secrets_of("https://h", beta))


@each_row("stream", [False, True])
@each_row(("before", "finish"), [("", "doubtful"), ("content_filter: ", "content_filter")])
@each_row("secret", [KEY, "Sh0rt/K"])
async def test_a_reason_that_repeats_a_key_shows_none(
    secret: str, before: str, finish: str, stream: bool
) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    reason = f"{before}{secret}"
    body = {"choices": [{"index": 0, "message": said, "delta": said, "finish_reason": reason}]}
    turn = raw(f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n" if stream else json.dumps(body))
    async with (
        openai_server([turn]) as server,
        OpenAIClient("m", base_url=server.url, api_key=secret) as client,
    ):
        if stream:
            *_, reply = [part async for part in client.stream(HI)]
        else:
            reply = await client.chat(HI)
    assert isinstance(reply, Reply)
    assert (reply.finish, reply.provider_finish) == (finish, f"{before}[key]")
    if finish == "doubtful":
        assert reply.tool_calls[0].fault is not None
        assert "[key]" in reply.tool_calls[0].fault.message
    assert secret[:7] not in f"{reply!r} {reply.tool_calls!r}"


class Talking:
    """A transport whose errors say what they were sent."""

    async def send(self, request: Outgoing) -> Response:
        raise ConnectionFailed(f"could not POST {request.url} with {dict(request.headers)}")

    async def aclose(self) -> None: ...


async def test_a_transport_may_say_what_it_was_sent() -> None:
    url = f"https://h/v1?key={quote('abcd1234efgh', safe='')}"
    client = OpenAIClient("m", base_url=url, api_key=KEY, transport=Talking(), retries=None)
    with pytest.raises(ConnectionFailed, match="could not POST") as caught:
        await client.chat(HI)
    assert KEY[:8] not in str(caught.value)
    assert "abcd" not in str(caught.value)


BODIES: dict[str, str] = {
    "within": json.dumps({"error": {"message": f"wrong: {KEY}"}}),
    "cut by our limit": json.dumps({"error": {"message": "z" * 485 + KEY}}),
    "cut by a longer limit": json.dumps({"error": {"message": " " * 3990 + KEY}}),
    "larger than what is read": json.dumps({"error": {"message": KEY, "x": "y" * 70_000}}).replace(
        "/", "\\/"
    ),
}


@each_row("body", BODIES)
@each_row("in_url", [False, True], ids=["header", "url"])
async def test_no_part_of_a_key_gets_out(body: str, in_url: bool) -> None:
    async with openai_server([raw(BODIES[body], status=401)]) as server:
        url = f"{server.url}?key={quote(KEY)}" if in_url else server.url
        async with OpenAIClient("m", base_url=url, api_key="" if in_url else KEY) as client:
            with pytest.raises(AuthenticationError) as caught:
                await client.chat(HI)
    assert "[key]" in str(caught.value)
    assert KEY[:8] not in repr(caught.value)
    assert KEY[12:20] not in repr(caught.value)
