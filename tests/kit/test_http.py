"""Requests to a real server on this machine, and those that must never arrive anywhere."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from kit.loopback_http import PRIVATE, answer, serving
from rows import each_row

from toolcrib.errors import CapabilityError, MissingExtraError, SourceError
from toolcrib.kit import GuardedHttp, HttpLimits
from toolcrib.kit.http import Unanswered

QUICK = HttpLimits(seconds=0.2, body_bytes=1000)


async def test_an_answer_is_whole_and_the_query_is_quoted() -> None:
    asked: list[str] = []

    def answering(target: str) -> bytes:
        asked.append(target)
        return answer(b"hello")

    async with serving(answering) as origin:
        guarded = GuardedHttp(allow=[origin], private=PRIVATE)
        found = await guarded.get(f"{origin}/v1/x?a=1#part", {"name": "a&b=c#d/é\r\n", "n": "2"})
    assert (found.status, found.body) == (200, b"hello")
    assert asked == ["/v1/x?a=1&name=a%26b%3Dc%23d/%C3%A9%0D%0A&n=2"]


@each_row("status", [204, 400, 404, 429, 500, 503])
async def test_a_status_is_the_callers_to_judge(status: int) -> None:
    async with serving(lambda _: answer(b"", status=status)) as origin:
        found = await GuardedHttp(allow=[origin], private=PRIVATE).get(origin, {})
    assert found.status == status


@each_row("method", ["PUT", "DELETE", "POST", "PATCH", "GET", "HEAD", "OPTIONS"])
@each_row("body", [None, b"", b"{}"])
async def test_one_call_is_one_request_though_the_server_breaks_off(
    method: str, body: bytes | None
) -> None:
    """What it has done, it would do twice: aiohttp sends idempotent methods again."""
    asked: list[str] = []

    def cutting(target: str) -> bytes:
        asked.append(target)
        return b""

    async with serving(cutting) as origin:
        guarded = GuardedHttp(allow=[origin], private=PRIVATE)
        with pytest.raises(Unanswered, match="closed the connection") as caught:
            await guarded.send(method, f"{origin}/x", body=body)
    assert asked == ["/x"]
    assert (caught.value.sent, caught.value.status) == (True, 0)


@each_row(("body", "kind"), [(None, None), (b"{}", None), (b"{}", "text/plain")])
async def test_no_media_type_is_made_up(body: bytes | None, kind: str | None) -> None:
    heads: list[str] = []
    async with serving(lambda _: answer(b""), heads=heads) as origin:
        guarded = GuardedHttp(allow=[origin], private=PRIVATE)
        headers = {} if kind is None else {"Content-Type": kind}
        await guarded.send("POST", origin, headers=headers, body=body)
    said = [one for one in heads[0].split("\r\n") if one.lower().startswith("content-type")]
    assert said == ([] if kind is None else [f"Content-Type: {kind}"])


UNREADABLE = [
    b"what is this\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\n\r\n[1,2,3]",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n[1,2,3]",
]
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096


@each_row(
    ("said", "why"),
    [
        (answer(b"", status=301, headers="Location: /b\r\n"), "redirects are not followed"),
        (
            answer(b"", status=302, headers="Location: http://169.254.169.254/\r\n"),
            "redirects are not followed",
        ),
        (
            answer(b"", status=307, headers="Location: file:///etc/passwd\r\n"),
            "redirects are not followed",
        ),
        (answer(b"", status=304), "nothing has changed"),
        (answer(b"x" * 1001), "an answer that is too large"),
        (answer(b"x" * 2000, length=10**12), "an answer that is too large"),
        (ENDLESS, "an answer that is too large"),
        (
            answer(zlib.compress(b"0" * 100_000), headers="Content-Encoding: deflate\r\n"),
            "a compressed answer",
        ),
        (answer(b"short", length=500), "closed the connection"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Len", "closed the connection"),
        *((said, "cannot be read as HTTP") for said in UNREADABLE),
        (None, "did not answer in time"),
    ],
)
async def test_a_hostile_answer_is_an_error_and_says_nothing_of_it(
    said: bytes | None, why: str
) -> None:
    async with serving(lambda _: said) as origin:
        guarded = GuardedHttp(allow=[origin], private=PRIVATE, limits=QUICK)
        with pytest.raises(CapabilityError, match=why) as caught:
            await guarded.get(f"{origin}/secret", {"key": "canary"})
    assert caught.value.safe_text.startswith("127.0.0.1 ")
    assert "canary" not in caught.value.safe_text
    assert caught.value.__context__ is None


ALLOWED = ("api.example.com", "https://own.example.com:8443", "http://127.0.0.1:9")


@each_row(
    "url",
    [
        "http://api.example.com/",
        "https://api.example.com:444/",
        "https://api.example.com./",
        "https://api.example.com.evil.com/",
        "https://evil.com/api.example.com",
        "https://evil.com#api.example.com",
        "https://evil.com?https://api.example.com/",
        "https://api.example.com@evil.com/",
        "https://user@api.example.com/",
        "https://user:word@api.example.com/",
        "https://:word@api.example.com/",
        "https://api.example.com\\@evil.com/",
        "https://api.example.com%2eevil.com/",
        "https://\N{FULLWIDTH LATIN SMALL LETTER A}pi.example.com.evil.com/",
        "https://own.example.com/",
        "http://own.example.com:8443/",
        "http://127.0.0.1/",
        "http://localhost:9/",
        "http://127.1:9/",
        "http://2130706433:9/",
        "http://0x7f000001:9/",
        "http://[::1]:9/",
        "http://[::ffff:127.0.0.1]:9/",
        "ftp://api.example.com/",
        "file:///etc/passwd",
        "data:,x",
        "//api.example.com/",
        "api.example.com",
        "https://",
        "https://api.example.com:99999/",
        "https://api.example.com:8443:443/",
        "https://[::1/",
        "\0",
        "",
    ],
)
async def test_another_server_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _unwanted)
    monkeypatch.setattr(socket.socket, "connect", _unwanted)
    guarded = GuardedHttp(allow=ALLOWED)
    for asked in (guarded.get(url, {}), guarded.send("GET", url)):
        with pytest.raises(CapabilityError, match="not on the list of allowed servers") as caught:
            await asked
        assert not caught.value.retryable


def _unwanted(*_arguments: Any, **_options: Any) -> Any:
    raise AssertionError("nothing may be resolved or connected")


@each_row(
    ("host", "address"),
    [
        ("127.0.0.1", None),
        ("[::1]", None),
        ("[::ffff:127.0.0.1]", None),
        ("localhost", None),
        ("named.example.com", "127.0.0.1"),
        ("named.example.com", "127.0.0.2"),
        ("named.example.com", "0.0.0.0"),  # noqa: S104  connected to, as Linux reads it
        ("named.example.com", "169.254.169.254"),
        ("named.example.com", "10.0.0.1"),
        ("named.example.com", "::1"),
        ("named.example.com", "::ffff:127.0.0.1"),
        ("named.example.com", "fd00:ec2::254"),
    ],
)
async def test_an_address_that_is_not_public_is_not_connected_to_whatever_its_name(
    host: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answering(target: str) -> bytes:
        asked.append(target)
        return answer()

    async with serving(answering) as origin:
        port = origin.rpartition(":")[2]
        if address is not None:
            _resolve(monkeypatch, [address])
        guarded = GuardedHttp(allow=[f"http://{host}:{port}"])
        with pytest.raises(CapabilityError, match="has no public address") as caught:
            await guarded.get(f"http://{host}:{port}/", {})
    assert (asked, caught.value.retryable) == ([], False)


def _resolve(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    """Names resolve to one address after the other, as a rebinding server has it."""
    left = list(addresses)

    def getaddrinfo(_host: str, port: int, *_more: Any, **_options: Any) -> list[Any]:
        address = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        where = (address, port, 0, 0) if ":" in address else (address, port)
        return [(family, socket.SOCK_STREAM, 6, "", where)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def test_a_name_that_changes_its_address_is_judged_at_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(lambda _: answer()) as origin:
        named = origin.replace("127.0.0.1", "named.example.com")
        _resolve(monkeypatch, ["127.0.0.1", "127.0.0.9"])
        guarded = GuardedHttp(allow=[named], private=["127.0.0.1/32"])
        assert (await guarded.get(named, {})).status == 200
        with pytest.raises(CapabilityError, match="has no public address"):
            await guarded.get(named, {})


async def test_a_public_address_is_asked_and_a_private_one_beside_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def answering(target: str) -> bytes:
        asked.append(target)
        return answer()

    def getaddrinfo(_host: str, port: int, *_more: Any, **_options: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.1", "127.0.0.9")
        ]

    async with serving(answering) as origin:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        named = origin.replace("127.0.0.1", "named.example.com")
        guarded = GuardedHttp(allow=[named], private=["127.0.0.9/32"])
        with pytest.raises(CapabilityError):  # nobody listens there
            await guarded.get(named, {})
        assert asked == []
        assert (await GuardedHttp(allow=[named], private=["127.0.0.1/32"]).get(named, {})).status
    assert asked == ["/"]


def test_a_name_server_that_does_not_answer_keeps_nobody_waiting() -> None:
    """The look-up is given up with its request: the loop, and the program, can end without it."""
    ended = threading.Event()
    asked = threading.Event()

    def getaddrinfo(*_arguments: Any, **_options: Any) -> list[Any]:
        asked.set()
        assert ended.wait(60), "it was waited for"
        return []

    async def ask() -> None:
        guarded = GuardedHttp(allow=["named.example.com"], limits=QUICK)
        with pytest.raises(CapabilityError, match="did not answer in time"):
            await guarded.get("https://named.example.com/", {})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        waiting = threading.Thread(target=lambda: asyncio.run(ask()), daemon=True)
        waiting.start()
        waiting.join(20)
        assert (waiting.is_alive(), asked.is_set()) == (False, True)
        ended.set()


@pytest.mark.parametrize("host", [f"{'a' * 64}.example.com", f"{'a.' * 150}example.com"])
async def test_a_name_that_cannot_be_one_is_not_reached(host: str) -> None:
    with pytest.raises(CapabilityError, match="could not be reached"):
        await GuardedHttp(allow=[host]).get(f"https://{host}/", {})


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(lambda _: answer()) as origin:
        assert (await GuardedHttp(allow=[origin], private=PRIVATE).get(origin, {})).status == 200


async def test_a_server_that_is_not_there() -> None:
    async with serving(lambda _: answer()) as origin:
        pass
    with pytest.raises(
        CapabilityError, match=r"127\.0\.0\.1 could not be reached: is there a network"
    ):
        await GuardedHttp(allow=[origin], private=PRIVATE).get(origin, {})


async def test_a_name_that_is_not_known() -> None:
    with pytest.raises(CapabilityError, match="could not be reached: is there a network") as caught:
        await GuardedHttp(allow=["nowhere.invalid"]).get("https://nowhere.invalid/", {})
    assert caught.value.retryable


@pytest.fixture
def unsigned(tmp_path: Path) -> ssl.SSLContext:
    """A server's TLS, with a certificate that nobody has signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    made, key = str(tmp_path / "made.pem"), str(tmp_path / "key.pem")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    files = ("-keyout", key, "-out", made, "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([openssl, *words.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return context


async def test_a_server_whose_certificate_nobody_has_signed_is_not_asked(
    unsigned: ssl.SSLContext,
) -> None:
    async with serving(lambda _: answer(), unsigned) as origin:
        with pytest.raises(CapabilityError, match="its certificate or its TLS is not valid"):
            await GuardedHttp(allow=[origin], private=PRIVATE).get(origin, {})


async def test_a_cancelled_request_leaves_nothing_open() -> None:
    arrived = asyncio.Event()

    def answering(_target: str) -> None:
        arrived.set()

    async with serving(answering) as origin:
        guarded = GuardedHttp(allow=[origin], private=PRIVATE)
        task = asyncio.create_task(guarded.get(origin, {}))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


@each_row(
    "entry",
    [
        *("", "https://", "ftp://a.com", "a.com/path", "https://a.com/path", "https://a.com?x=1"),
        *("https://u@a.com", "a.com:99999", "*.a.com/", "https://a.com#x"),
    ],
)
def test_an_entry_that_names_no_server_is_refused(entry: str) -> None:
    with pytest.raises(SourceError, match="is not a server"):
        GuardedHttp(allow=[entry])


def test_one_text_is_no_list_of_servers() -> None:
    with pytest.raises(SourceError, match="must be lists"):
        GuardedHttp(allow="api.example.com")
    with pytest.raises(SourceError, match="must be lists"):
        GuardedHttp(allow=["api.example.com"], private="10.0.0.0/8")


@pytest.mark.parametrize("entry", ["", "localhost", "127.0.0.1/7", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(entry: str) -> None:
    with pytest.raises(SourceError, match="is not a network"):
        GuardedHttp(allow=["a.com"], private=[entry])


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[http\]'"):
        GuardedHttp(allow=["a.com"])
