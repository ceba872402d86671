"""Keys go where the document sends them, to the servers that were named, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.entities import codepoint2name
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from aiohttp import web
from openapi.documents import document
from openapi.petstore import serving
from rows import each_row

from toolcrib import Approve, Completed, Failed, File, Image, ToolCall, ToolRunner
from toolcrib.agent.history import result_message
from toolcrib.bridges.openapi import ApiServer, openapi_catalog
from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.kit import HttpLimits
from toolcrib.values.record import Outcome

JSON = "application/json"
KEY = "canary/key+5e1c="
SCHEMES = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "the key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "other": {"type": "http", "scheme": "token"},
    "oauth": {"type": "oauth2", "flows": {}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://login.example"},
    "mutual": {"type": "mutualTLS"},
}


async def yes(_: object) -> Approve:
    return Approve(by="a test")


async def echo(request: web.Request) -> web.StreamResponse:
    said = {"query": request.query_string, "headers": dict(request.headers), "path": request.path}
    return web.json_response(said)


async def nobody_asks(_: web.Request) -> web.StreamResponse:
    pytest.fail("it was asked")


@asynccontextmanager
async def answering(handler: Any = echo) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    async with serving(app) as origin:
        yield origin


async def asked(
    api: ApiServer, security: Any = (), *, method: str = "get", **operation: Any
) -> Outcome:
    """One call of the only operation of a document that demands these schemes."""
    said = {"operationId": "it", "responses": {}, "security": list(security), **operation}
    source = document({"/x": {method: said}}, components={"securitySchemes": SCHEMES})
    catalog = openapi_catalog(source, http=api)
    return await ToolRunner(catalog, approver=yes).exec(ToolCall("a", "it", "{}"))


async def answered(responses: Any, status: int, body: bytes, media_type: str) -> Outcome:
    """A call of an operation that may change something, and what is answered to it."""
    async with answering(saying(status, body, Content_Type=media_type)) as origin:
        return await asked(ApiServer(origin), method="post", responses=responses)


def echoed(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.value


def hexed(text: str) -> str:
    units = text.encode("utf-16-be").hex(" ", 2).upper().split()
    return "".join(f"\\u{unit}" for unit in units)


def slashed(text: str) -> str:
    return json.dumps(text)[1:-1].replace("/", "\\/")


def saying(status: int, body: bytes = b"", **headers: str) -> Any:
    async def handler(_: web.Request) -> web.StreamResponse:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, headers=said)

    return handler


@each_row(
    ("scheme", "place", "name", "told"),
    [
        ("header", "headers", "X-Key", "[key]"),
        ("cookie", "headers", "Cookie", "sid=[key]"),
        ("bearer", "headers", "Authorization", "Bearer [key]"),
        ("oauth", "headers", "Authorization", "Bearer [key]"),
        ("oidc", "headers", "Authorization", "Bearer [key]"),
        ("other", "headers", "Authorization", "Token [key]"),
    ],
)
async def test_a_key_is_sent_as_its_scheme_says_and_never_comes_back(
    scheme: str, place: str, name: str, told: str
) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers[name])
        return await echo(request)

    async with answering(handler) as origin:
        outcome = await asked(ApiServer(origin, keys={scheme: KEY}), [{scheme: []}])
    assert echoed(outcome)[place][name] == told
    assert seen == [told.replace("[key]", KEY)]
    assert KEY not in repr(outcome)


async def test_a_key_in_a_query_is_quoted_and_never_comes_back() -> None:
    async with answering() as origin:
        outcome = await asked(ApiServer(origin, keys={"query": KEY}), [{"query": []}])
    assert echoed(outcome)["query"] == "the key=[key]"


def in_html(text: str) -> str:
    """With names for all that have one."""
    return "".join(f"&{codepoint2name[ord(c)]};" if ord(c) in codepoint2name else c for c in text)


def by_number(text: str) -> str:
    return "".join(f"&#{ord(character)};" for character in text)


def by_code(text: str) -> str:
    return "".join(f"&#x{ord(character):04X};" for character in text)


def inner(text: str) -> str:
    return json.dumps(text)[1:-1]


def named(text: str) -> str:
    escaped = html.escape(text, quote=False)
    return escaped.replace("/", "&sol;").replace("+", "&plus;").replace("=", "&equals;")


ESCAPES: tuple[Any, ...] = (
    *(str, quote, lambda key: quote(key, safe=""), lambda key: quote(key, safe="+"), quote_plus),
    *(hexed, slashed, inner, html.escape, in_html, by_number, by_code, named),
    lambda key: by_number(key).replace(";", ""),
    lambda key: inner(named(key)).replace("&", "\\u0026"),
)
OF_ALL_KINDS = "abcdef \\ \"'<&>%41&lt;+/="
SECRETS = [KEY, OF_ALL_KINDS, "123456", "p4ss", "a+b", "kW", "k", "1234", "a&b", "50%", "x\\y"]


@each_row("escape", ESCAPES)
@each_row("secret", SECRETS)
async def test_however_a_server_writes_a_key_it_never_comes_back(escape: Any, secret: str) -> None:
    """A short one as a word, where it stands between other characters than letters and digits."""
    told = f"bad key {escape(secret)}! No <{escape(secret)}>"
    if "&" not in escape('/+="') or not escape(secret).endswith(tuple("0123456789")):
        told = f"{escape(secret)} {told}"
    async with answering(saying(200, told.encode(), Content_Type="text/plain")) as origin:
        outcome = await asked(ApiServer(origin, keys={"query": secret}), [{"query": []}])
    value = echoed(outcome)
    assert value.endswith("bad key [key]! No <[key]>"), value


@each_row("escape", [str, quote, lambda key: quote(key, safe=""), quote_plus, html.escape, by_code])
@each_row("dumps", [json.dumps, lambda value: json.dumps(value, ensure_ascii=False)])
@each_row("secret", SECRETS)
async def test_a_key_in_json_is_hidden_and_json_stays(escape: Any, dumps: Any, secret: str) -> None:
    told = f"é€\n{escape(secret)}\n\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")
    given = {"a": told, told: [told, 1.50, None, True], "other": 'a "text"\t\u20ac'}
    hidden = told.replace(escape(secret), "[key]")
    body = dumps(given).replace("/", "\\/").encode()
    async with answering(saying(200, body, Content_Type="application/json")) as origin:
        outcome = await asked(ApiServer(origin, keys={"query": secret}), [{"query": []}])
    found = echoed(outcome)
    assert found["a"] == hidden
    assert found[hidden] == [hidden, 1.5, None, True]
    assert secret in ("a", "k") or found["other"] == given["other"]


@each_row(
    ("key", "said", "told"),
    [
        (
            "123456",
            b'{"a": 123456, "b": 1234567, "c": 12345}',
            {"a": "[key]", "b": "[key]7", "c": 12345},
        ),
        (
            "1234",
            b'{"a": 1234, "b": "1234", "c": "12345"}',
            {"a": 1234, "b": "[key]", "c": "12345"},
        ),
        ("true", b'{"a": true, "b": "true"}', {"a": True, "b": "[key]"}),
        ("k", b'["k", "kid", "a k", "\\nk"]', ["[key]", "kid", "a [key]", "\n[key]"]),
        ("k", b'["K", "_k-", "%20k"]', ["K", "_[key]-", "%20[key]"]),
    ],
)
async def test_a_key_that_may_be_a_part_of_anything(key: str, said: bytes, told: Any) -> None:
    async with answering(saying(200, said, Content_Type="application/json")) as origin:
        outcome = await asked(ApiServer(origin, keys={"header": key}), [{"header": []}])
    assert echoed(outcome) == told


async def test_a_key_in_a_media_type_never_comes_back() -> None:
    async with answering(saying(200, b"\0", Content_Type="image/canary-1")) as origin:
        outcome = await asked(ApiServer(origin, keys={"header": "canary-1"}), [{"header": []}])
    assert isinstance(outcome, Completed)
    (part,) = outcome.parts
    assert isinstance(part, Image)
    assert "canary-1" not in part.media_type


async def test_bytes_in_which_there_is_no_key_stay_as_they_are() -> None:
    data = bytes(range(256)) * 2
    async with answering(saying(200, data, Content_Type="image/png")) as origin:
        outcome = await asked(ApiServer(origin, keys={"header": KEY}), [{"header": []}])
    assert isinstance(outcome, Completed)
    (part,) = outcome.parts
    assert isinstance(part, Image)
    assert part.to_bytes() == data


async def test_a_password_never_comes_back_in_whichever_form() -> None:
    user = "ada:canary-password"
    coded = base64.b64encode(user.encode()).decode()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Basic {coded}"
        return web.json_response({"a": coded, "b": user, "c": ["canary-password"]}, status=500)

    async with answering(handler) as origin:
        outcome = await asked(ApiServer(origin, keys={"basic": user}), [{"basic": []}])
    assert isinstance(outcome, Failed)
    assert outcome.model_text.endswith('{"a":"[key]","b":"[key]","c":["[key]"]}')


OF_ALL_ALPHABETS = "ada:pässwörd €\U0001f511/日本"


@each_row("escape", ESCAPES)
@each_row("charset", ["utf-8", "utf-16", "gb18030"])
async def test_a_password_of_any_alphabet_is_sent_and_never_comes_back(
    escape: Any, charset: str
) -> None:
    """It is sent as https://www.rfc-editor.org/rfc/rfc7617#section-2.1 says."""
    password = OF_ALL_ALPHABETS.partition(":")[2]
    coded = base64.b64encode(OF_ALL_ALPHABETS.encode()).decode()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Basic {coded}"
        body = f"bad key {escape(password)}! No <{escape(password)}>".encode(charset)
        return web.Response(body=body, headers={"Content-Type": f"text/plain; charset={charset}"})

    async with answering(handler) as origin:
        api = ApiServer(origin, keys={"basic": OF_ALL_ALPHABETS})
        outcome = await asked(api, [{"basic": []}])
    assert echoed(outcome) == "bad key [key]! No <[key]>"


@each_row(("scheme", "key"), [("header", OF_ALL_ALPHABETS), ("cookie", "canary;role=admin")])
async def test_a_key_that_cannot_be_sent_where_it_belongs_is_refused(scheme: str, key: str) -> None:
    async with answering(nobody_asks) as origin:
        outcome = await asked(ApiServer(origin, keys={scheme: key}), [{scheme: []}])
    assert isinstance(outcome, Failed)
    assert "not a string that a request can hold" in outcome.error.message
    assert "pässwörd" not in repr(outcome)


@each_row("user", ["admin:admin", "ada:p4ss", "u:1", "ada:"])
async def test_a_short_password_never_comes_back(user: str) -> None:
    name, _, password = user.partition(":")
    coded = base64.b64encode(user.encode()).decode()
    said = {"a": f"wrong password {password} of {name}s", "b": coded, "c": user}
    async with answering(saying(500, json.dumps(said).encode(), Content_Type=JSON)) as origin:
        outcome = await asked(ApiServer(origin, keys={"basic": user}), [{"basic": []}])
    assert isinstance(outcome, Failed)
    told = json.loads(outcome.model_text.partition("It says: ")[2])
    hidden = "[key]" if password else ""
    assert told == {"a": f"wrong password {hidden} of {name}s", "b": "[key]", "c": "[key]"}


@each_row(
    ("security", "keys", "header"),
    [
        ([{"bearer": []}, {"header": []}], {"header": KEY}, "X-Key"),
        ([{"bearer": []}, {"header": []}], {"header": KEY, "bearer": KEY}, "Authorization"),
        ([{}, {"header": []}], {"header": KEY}, "X-Key"),
        ([{"mutual": []}, {"header": []}], {"header": KEY, "mutual": KEY}, "X-Key"),
        ([{"header": [], "bearer": []}], {"header": KEY, "bearer": KEY}, "X-Key"),
        ([{"header": [], "bearer": []}], {"header": KEY, "bearer": KEY}, "Authorization"),
        ([{}, {"header": []}], {}, None),
        ([], {"header": KEY}, None),
    ],
)
async def test_the_first_alternative_whose_keys_are_here_is_taken(
    security: Any, keys: Any, header: str | None
) -> None:
    async with answering() as origin:
        headers = echoed(await asked(ApiServer(origin, keys=keys), security))["headers"]
    sent = {"X-Key", "Authorization"}.intersection(headers)
    assert header in sent if header else not sent


@each_row(
    "security",
    [[{"bearer": []}], [{"header": [], "bearer": []}], [{"mutual": []}], [{"unheard of": []}]],
)
async def test_without_the_keys_nothing_is_sent(security: Any) -> None:
    async with answering(nobody_asks) as origin:
        outcome = await asked(ApiServer(origin, keys={"header": KEY, "mutual": KEY}), security)
    assert isinstance(outcome, Failed)
    assert outcome.error.message.startswith("the API needs a key that was not given")
    assert not outcome.error.retryable


async def test_a_key_may_be_that_of_the_moment() -> None:
    tokens = iter(["first-token", "second-token"])

    async def renewed() -> str:
        await asyncio.sleep(0)
        return next(tokens)

    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.Response()

    async with answering(handler) as origin:
        api = ApiServer(origin, keys={"bearer": renewed, "header": lambda: "x"})
        for _ in range(2):
            await asked(api, [{"bearer": []}])
    assert seen == ["Bearer first-token", "Bearer second-token"]


@each_row(
    ("url", "keys", "text"),
    [
        ("api.example.com", {}, "'api.example.com' is not a server"),
        ("ftp://api.example.com", {}, "is not a server"),
        ("https://", {}, "is not a server"),
        ("https://user:pw@api.example.com", {}, "is not a server"),
        ("https://canary@api.example.com", {}, "'https://***@api.example.com' is not a server"),
        (f"https://canary{'x' * 99}@api.example.com", {}, "is not a server"),
        ("https://api.example.com/v1?x=1", {}, "is not a server"),
        ("https://api.example.com#x", {}, "is not a server"),
        ("https://api.example.com", {"k": ""}, "the key 'k' is empty"),
        (
            "https://api.example.com",
            {"k": "canary\r\nX: y"},
            "not a string that a request can hold",
        ),
        ("https://api.example.com", {"k": 5}, "not a string that a request can hold"),
        ("https://api.example.com", {"k": "é"}, "not a string that a request can hold"),
        ("https://api.example.com", {"k": "ada:\ud800"}, "not a string that a request can hold"),
    ],
)
def test_what_is_no_server_or_no_key(url: str, keys: Any, text: str) -> None:
    with pytest.raises(SourceError) as caught:
        ApiServer(url, keys=keys)
    assert text in str(caught.value)
    assert "canary" not in str(caught.value)


@each_row("name", ["also", "private"])
def test_one_text_is_no_list_of_origins_or_networks(name: str) -> None:
    given: Any = {name: "https://api.example.com"}
    with pytest.raises(SourceError, match="also and private must be lists"):
        ApiServer("https://api.example.com", **given)


OTHERS = ("https://evil.example", "http://127.0.0.1:1", "//evil.example/v1", "ftp://x")


@each_row("server", [*OTHERS, "/", "/v2", "/v10", "..", "../v2", "%2e%2e", "/v1/%2E%2e/v2"])
@each_row("of_path", [False, True])
async def test_a_server_that_only_the_document_names_is_not_asked(
    server: str, of_path: bool
) -> None:
    operation = {"operationId": "it", "responses": {}, "security": [{"header": []}]}
    item: dict[str, Any] = {"get": operation}
    (item if of_path else operation)["servers"] = [{"url": server}]
    source = document({"/x": item}, components={"securitySchemes": SCHEMES})
    source["servers"] = [{"url": "https://evil.example/v1"}]
    async with answering(nobody_asks) as origin:
        catalog = openapi_catalog(source, http=ApiServer(f"{origin}/v1", keys={"header": KEY}))
        outcome = await ToolRunner(catalog, approver=yes).exec(ToolCall("a", "it", "{}"))
    assert isinstance(outcome, Failed)
    assert "that server is not on the list of allowed servers" in outcome.error.message


async def test_another_server_is_asked_if_its_author_names_it() -> None:
    async with answering() as first, answering() as second:
        port = second.rpartition(":")[2]
        servers = [{"url": "http://127.0.0.1:{port}/v9", "variables": {"port": {"default": port}}}]
        api = ApiServer(f"{first}/v1", also=[second])
        said = echoed(await asked(api, servers=servers))
        assert (said["headers"]["Host"], said["path"]) == (second[7:], "/v9/x")
        below = [("sub", "/v1/sub/x"), ("/v1/sub/", "/v1/sub/x"), (f"{first}/v1", "/v1/x")]
        for server, path in [*below, (".", "/v1/x")]:
            said = echoed(await asked(api, servers=[{"url": server}]))
            assert (said["headers"]["Host"], said["path"]) == (first[7:], path)
        both = ApiServer(f"{first}/v1", also=[first])
        said = echoed(await asked(both, servers=[{"url": "/v2"}]))
        assert (said["headers"]["Host"], said["path"]) == (first[7:], "/v2/x")
        said = echoed(await asked(api))
        assert (said["headers"]["Host"], said["path"]) == (first[7:], "/v1/x")


async def test_a_name_that_leads_to_a_private_address_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolved(host: str, port: int, *_: Any, **__: Any) -> Any:
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("socket.getaddrinfo", resolved)
    async with answering(nobody_asks) as origin:
        api = ApiServer(f"http://pets.example:{origin.rpartition(':')[2]}")
        outcome = await asked(api, method="post")
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "capability_error"
    assert "has no public address" in outcome.error.message


@each_row(("method", "code"), [("get", "tool_error"), ("post", "outcome_unknown")])
@each_row("status", [301, 302, 303, 307, 308])
@each_row("location", ["https://evil.example/", "http://169.254.169.254/", "/elsewhere"])
async def test_redirects_are_not_followed(
    method: str, code: str, status: int, location: str
) -> None:
    """And may stand for what was done: 303 says so."""

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path == "/x"
        return web.Response(status=status, headers={"Location": location})

    async with answering(handler) as origin:
        outcome = await asked(ApiServer(origin), method=method)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, False)
    assert "redirects are not followed" in outcome.error.message


@each_row(
    ("status", "method", "code", "again"),
    [
        (400, "post", "tool_error", False),
        (404, "get", "tool_error", False),
        (408, "post", "tool_error", True),
        (425, "post", "tool_error", True),
        (429, "post", "tool_error", True),
        (500, "get", "tool_error", True),
        (500, "post", "tool_error", False),
        (502, "get", "tool_error", True),
        (502, "post", "outcome_unknown", False),
        (503, "post", "tool_error", True),
        (504, "patch", "outcome_unknown", False),
        (504, "put", "outcome_unknown", True),
        (504, "delete", "outcome_unknown", True),
        (599, "get", "tool_error", True),
    ],
)
async def test_what_a_status_says_of_the_call(
    status: int, method: str, code: str, again: bool
) -> None:
    async with answering(saying(status)) as origin:
        outcome = await asked(ApiServer(origin), method=method)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, again)
    assert f"The API answered {status}" in outcome.error.message


async def test_a_model_is_told_when_to_ask_again() -> None:
    async with answering(saying(429, Retry_After="30")) as origin:
        outcome = await asked(ApiServer(origin))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == (
        "The API answered 429 Too Many Requests, and asks to retry in 30 seconds."
    )


@each_row(
    ("body", "kind", "said"),
    [
        (b'{"why": "no \\u0041"}', "application/problem+json", '{"why":"no A"}'),
        (b"no\n  such \x00 thing", "text/plain", "no such \x00 thing"),
        (b"<why> no </why>", "application/xml", "<why> no </why>"),
        (b"<html>", "application/octet-stream", None),
        (b"{broken", "application/json", None),
        (b"x" * 10_000, "text/plain", "x" * 4000),
        (b"", "text/plain", None),
        ("né".encode("latin-1"), "text/plain; charset=latin1", "né"),
        ("né".encode("latin-1"), "text/plain", None),
        ('{"why": "né"}'.encode("utf-16"), "application/json", '{"why":"né"}'),
    ],
)
async def test_what_a_model_reads_of_an_error(body: bytes, kind: str, said: str | None) -> None:
    async with answering(saying(400, body, Content_Type=kind)) as origin:
        outcome = await asked(ApiServer(origin))
    assert isinstance(outcome, Failed)
    told = f"The API answered 400 Bad Request. It says: {said}" if said else ""
    assert outcome.model_text == told


CHARSETS = [
    ("café;£5", "iso-8859-1"),
    ("5 €", "windows-1252"),
    ("5 €", "iso-8859-15"),
    ("日本", "shift_jis"),
    ("日本", "euc-jp"),
    ("漢字€", "gb18030"),
    ("한국", "euc-kr"),
    ("привет", "koi8-r"),
    ("hé", "utf-16"),
    ("ascii", "us-ascii"),
]
XML = '<?xml version="1.0" encoding="ISO-8859-1"?>'
META = '<html><meta http-equiv="x" content="text/html; charset=iso-8859-1">'


@each_row(
    ("body", "kind", "value"),
    [
        (b'{"a": [1, 2.5, null]}', "application/json", {"a": [1, 2.5, None]}),
        (b"123456789012345678901234567890", "application/json", 123456789012345678901234567890),
        (b"", "application/json", None),
        (b"", "text/plain", ""),
        (b"", "text/html; charset=utf-8", ""),
        (b"", "image/png", None),
        ("é".encode(), "text/plain", "é"),
        (b"<a/>", "application/xml", "<a/>"),
        (b"<svg/>", "image/svg+xml; charset=utf-8", "<svg/>"),
        (b"a,b", "text/csv", "a,b"),
        *(
            (text.encode(charset), f"text/csv; header=present; CharSet={quoted}", text)
            for text, charset in CHARSETS
            for quoted in (charset, f'"{charset.upper()}"')
        ),
        ("é".encode("utf-8-sig"), "text/plain", "é"),
        ("é".encode("utf-8-sig"), "text/plain; charset=iso-8859-1", "é"),
        ("é".encode("utf-16"), "text/plain", "é"),
        ("é".encode("utf-16-be"), "text/plain; charset=utf-16be", "é"),
        (f"{XML}é".encode("latin-1"), "application/xml", f"{XML}é"),
        (f"{XML}é".encode(), "text/xml; charset=utf-8", f"{XML}é"),
        (f"{XML}é".encode("utf-16-le"), "image/svg+xml", f"{XML}é"),
        (f"{META}ñ".encode("latin-1"), "text/html", f"{META}ñ"),
        ('{"a": "é"}'.encode("utf-8-sig"), "application/json", {"a": "é"}),
        ('{"a": "é"}'.encode("utf-16"), "application/json", {"a": "é"}),
        ('{"a": "é"}'.encode("utf-16-be"), "application/json; charset=utf-16", {"a": "é"}),
        ('{"a": "é"}'.encode("latin-1"), "application/json; charset=iso-8859-1", {"a": "é"}),
        ('{"a": "é"}'.encode(), "application/json; charset=iso-8859-1", {"a": "é"}),
    ],
)
async def test_what_an_answer_gives(body: bytes, kind: str, value: Any) -> None:
    async with answering(saying(200, body, Content_Type=kind)) as origin:
        outcome = await asked(ApiServer(origin))
    assert echoed(outcome) == value
    assert isinstance(outcome, Completed)
    assert outcome.parts == ()


NOT_SAID = "application/octet-stream"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


@each_row(
    ("kind", "declared", "part"),
    [
        ("image/png", {}, Image("image/png", "AP8=")),
        ("IMAGE/PNG; q=1", {"200": ["application/pdf"]}, Image("image/png", "AP8=")),
        ("application/pdf", {}, File("application/pdf", "AP8=")),
        (DOCX, {}, File(DOCX, "AP8=")),
        (NOT_SAID, {}, File(NOT_SAID, "AP8=")),
        (NOT_SAID, {"200": ["image/png"]}, Image("image/png", "AP8=")),
        (NOT_SAID, {"2XX": ["image/png"]}, Image("image/png", "AP8=")),
        (NOT_SAID, {"default": ["audio/mpeg", "text/csv"]}, File("audio/mpeg", "AP8=")),
        (NOT_SAID, {"200": ["image/png", "image/gif"]}, File(NOT_SAID, "AP8=")),
        (NOT_SAID, {"200": ["text/csv"], "default": ["image/png"]}, File(NOT_SAID, "AP8=")),
        (NOT_SAID, {"200": ["image/*"]}, File(NOT_SAID, "AP8=")),
        (NOT_SAID, {"404": ["image/png"]}, File(NOT_SAID, "AP8=")),
    ],
)
async def test_bytes_are_a_picture_or_a_file(kind: str, declared: Any, part: Any) -> None:
    responses = {
        status: {"description": "x", "content": {one: {} for one in kinds}}
        for status, kinds in declared.items()
    }
    async with answering(saying(200, b"\x00\xff", Content_Type=kind)) as origin:
        outcome = await asked(ApiServer(origin), responses=responses)
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.parts) == (None, (part,))
    message = result_message(ToolCall("a", "it", "{}"), outcome, None)
    assert message is not None
    assert message.parts == (part,)  # the model is shown it
    (info,) = outcome.record.parts
    assert (info.size, info.sha256) == (2, hashlib.sha256(b"\x00\xff").hexdigest())
    assert "AP8=" not in repr(outcome.record)


async def test_a_picture_in_place_of_declared_json_is_no_such_answer() -> None:
    schema = {"application/json": {"schema": {"type": "object"}}}
    number = {"application/json": {"schema": {"type": "integer"}}}
    async with answering(saying(200, b"\x00", Content_Type="image/png")) as origin:
        api = ApiServer(origin)
        alone = await asked(api, responses={"200": {"content": schema}})
        two = {"200": {"content": schema}, "202": {"content": number}}
        differing = await asked(api, responses=two)
    assert isinstance(alone, Failed)
    assert isinstance(differing, Failed)
    assert (alone.error.code, differing.error.code) == ("tool_error", "tool_error")
    assert "It was done (status 200)" in differing.error.message


async def test_a_picture_has_the_limits_of_every_answer() -> None:
    async with answering(saying(200, b"\x00" * 2000, Content_Type="image/png")) as origin:
        outcome = await asked(ApiServer(origin, limits=HttpLimits(body_bytes=1000)))
    assert isinstance(outcome, Failed)
    assert "gave an answer that is too large" in outcome.error.message


A = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}}
SHORT = {"type": "string", "maxLength": 3}
OF_A = {"200": {"content": {"application/json": {"schema": A}}}}
OF_BOTH = {"200": {"content": {"application/json": {"schema": A}, "text/plain": {"schema": SHORT}}}}
OF_TWO = {**OF_A, "201": {"content": {"application/json": {"schema": B}}}}
OF_PDF = {"200": {"content": {"application/json": {"schema": A}, "application/pdf": {}}}}
OF_DOCX = {"200": {"content": {"application/json": {"schema": A}, DOCX: {}}}}
OF_XML = {"200": {"content": {"application/json": {"schema": A}, "text/xml": {"schema": A}}}}
OF_ANY = {"200": {"content": {"*/*": {"schema": SHORT}}}}
JSON_A, JSON_B, TEXT = (
    (b'{"a":1}', "application/json"),
    (b'{"b":1}', "application/json"),
    "text/plain",
)
PDF = File("application/pdf", "JVBERg==")


@each_row(
    ("responses", "status", "said", "value"),
    [
        (OF_BOTH, 200, JSON_A, {"a": 1}),
        (OF_BOTH, 200, (b"abc", TEXT), "abc"),
        (OF_BOTH, 200, (b"abc", "text/plain; charset=utf-8"), "abc"),
        (OF_A, 201, JSON_A, {"a": 1}),  # not listed, and of the one form that is
        (OF_TWO, 201, JSON_B, {"b": 1}),
        (OF_TWO, 202, JSON_B, {"b": 1}),
        (OF_PDF, 200, JSON_A, {"a": 1}),
        (OF_PDF, 200, (b"%PDF", "application/pdf"), PDF),
        (OF_DOCX, 200, (b"PK", DOCX), File(DOCX, "UEs=")),
        (OF_ANY, 200, (b"abc", TEXT), "abc"),
        (OF_ANY, 200, (b'"abc"', "application/json"), "abc"),
    ],
)
async def test_the_media_type_of_an_answer_chooses_its_schema(
    responses: Any, status: int, said: Any, value: Any
) -> None:
    outcome = await answered(responses, status, *said)
    assert isinstance(outcome, Completed)
    assert (outcome.parts or (outcome.value,)) == (value,)


WRONG = "the answer does not match the API's description for that status"
NO_SUCH = "the API's description has no answer with that media type"


@each_row(
    ("responses", "status", "said", "text"),
    [
        (OF_BOTH, 200, JSON_B, WRONG),
        (OF_BOTH, 200, (b"abcdef", TEXT), WRONG),
        (OF_BOTH, 200, (b'"abc"', "application/json"), WRONG),
        (OF_TWO, 200, JSON_B, WRONG),
        (OF_PDF, 200, JSON_B, WRONG),
        (OF_A, 200, (b"abc", TEXT), NO_SUCH),
        (OF_XML, 200, (b"<a/>", "text/xml"), NO_SUCH),
        (OF_XML, 200, (b"<a/>", "application/atom+xml"), NO_SUCH),
        (OF_A, 204, (b"", ""), "the answer is empty, which the API's description does not allow"),
        (OF_TWO, 204, (b"", ""), "the answer is empty, which the API's description does not allow"),
    ],
)
async def test_an_answer_that_the_document_does_not_have_was_done_all_the_same(
    responses: Any, status: int, said: Any, text: str
) -> None:
    outcome = await answered(responses, status, *said)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == f"It was done (status {status}), but {text}."
    assert (outcome.error.code, outcome.error.retryable) == ("tool_error", False)
    if text == NO_SUCH:
        assert outcome.model_text.endswith(f"It says: {said[0].decode()}")


@each_row("wait", ["9" * 7, "9" * 400, "\u00b2", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", KEY])
async def test_no_record_has_more_of_an_error_than_its_status_and_some_seconds(wait: str) -> None:
    async with answering(saying(503, Retry_After=wait)) as origin:
        outcome = await asked(ApiServer(origin))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "The API answered 503 Service Unavailable."


@each_row(
    ("body", "headers", "text"),
    [
        (b"{broken", {"Content_Type": "application/json"}, "is not valid JSON, as it claims to be"),
        (
            b'{"a": 1, "a": 2}',
            {"Content_Type": "application/json"},
            "is not valid JSON, as it claims to be",
        ),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', {"Content_Type": "a/b+json"}, "is not valid JSON"),
        *(
            (
                "é".encode(charset),
                {"Content_Type": f"{kind}{said}"},
                "is not valid text, as it claims to be",
            )
            for kind in ("text/plain", "application/xml")
            for charset, said in (
                ("utf-32", "; charset=utf-32"),
                ("utf-32", ""),
                ("utf-32-be", "; charset=utf-32"),
                ("utf-32-le", "; charset=utf-32le"),
            )
        ),
        (
            f"{XML}".encode("utf-32-le"),
            {"Content_Type": "text/xml"},
            "is not valid text, as it claims to be",
        ),
        (
            f"{XML}".encode("utf-32-be"),
            {"Content_Type": "text/xml"},
            "is not valid text, as it claims to be",
        ),
        ("[1]".encode("utf-32"), {"Content_Type": "application/json"}, "is not valid JSON"),
        (b'"\xe9"', {"Content_Type": "application/json"}, "is not valid JSON, as it claims to be"),
        (b"\xe9", {"Content_Type": "text/plain"}, "is not valid text, as it claims to be"),
        (
            b"\xe9",
            {"Content_Type": "text/plain; charset=ascii"},
            "is not valid text, as it claims to be",
        ),
        (
            b"a",
            {"Content_Type": "text/plain; charset=hex"},
            "is not valid text, as it claims to be",
        ),
        (
            b"a",
            {"Content_Type": "text/plain; charset=utf-7"},
            "is not valid text, as it claims to be",
        ),
        (
            b"a",
            {"Content_Type": "text/plain; charset=what"},
            "is not valid text, as it claims to be",
        ),
        (b"\xff\xfea", {"Content_Type": "text/plain"}, "is not valid text, as it claims to be"),
        (b"x" * 2000, {}, "gave an answer that is too large"),
        (b"x", {"Content_Encoding": "gzip"}, "gave a compressed answer"),
    ],
)
async def test_what_was_done_is_said_to_be_done(body: bytes, headers: Any, text: str) -> None:
    async with answering(saying(201, body, **headers)) as origin:
        api = ApiServer(origin, limits=HttpLimits(body_bytes=1000))
        outcome = await asked(api, method="post")
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == ("tool_error", False)
    assert "It was done (status 201)" in outcome.error.message
    assert text in outcome.error.message


@each_row(
    ("status", "method", "code"),
    [(400, "post", "tool_error"), (500, "post", "outcome_unknown"), (500, "get", "tool_error")],
)
async def test_an_error_that_is_too_large_is_none_that_may_be_tried_again(
    status: int, method: str, code: str
) -> None:
    async with answering(saying(status, b"x" * 2000)) as origin:
        api = ApiServer(origin, limits=HttpLimits(body_bytes=1000))
        outcome = await asked(api, method=method)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, False)


@each_row(
    ("method", "code"),
    [("delete", "outcome_unknown"), ("put", "outcome_unknown"), ("post", "outcome_unknown"),
     ("get", "capability_error"), ("head", "capability_error")],
)  # fmt: skip
async def test_a_lost_connection_ends_one_request(method: str, code: str) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering(handler) as origin:
        outcome = await asked(ApiServer(origin), method=method)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, seen) == (code, [method.upper()])


@each_row("method", ["put", "delete", "post", "patch"])
@each_row("reset", [False, True])
async def test_what_may_have_been_done_is_not_sent_again(method: str, *, reset: bool) -> None:
    arrived: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.readuntil(b"\r\n\r\n"))
        if reset:
            writer.transport.abort()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        api = ApiServer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        outcome = await asked(api, method=method)
    assert [one.split(b" ")[0] for one in arrived] == [method.upper().encode()]
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "outcome_unknown"
    assert outcome.error.retryable is (method in ("put", "delete"))


async def test_an_answer_that_is_no_http_is_told_as_that() -> None:
    """The server did not break off, and may have done it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\n\r\n[1,2,3]")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        api = ApiServer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        outcome = await asked(api, method="post")
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "outcome_unknown"
    assert "gave an answer that cannot be read as HTTP, so it is unknown" in outcome.error.message


async def test_a_call_that_is_cancelled_ends_its_request() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        began.set()
        await reader.read()  # until the other side is gone
        ended.set()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        api = ApiServer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        task = asyncio.create_task(asked(api, method="post"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 5)


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("openapi: 3.0.0", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.setitem(sys.modules, "yaml", None)
    for made in (lambda: ApiServer("https://a.com"), lambda: openapi_catalog(tmp_path / "a.yaml")):
        with pytest.raises(MissingExtraError, match=r"pip install '\.\[openapi\]'"):
            made()


async def test_a_saved_key_is_in_no_part_of_a_definition() -> None:
    source = document({"/x": {"get": {"operationId": "it", "responses": {}}}})
    catalog = openapi_catalog(source, http=ApiServer("https://x.example", keys={"header": KEY}))
    definition = catalog["it"].get_definition()
    assert KEY not in json.dumps(definition.to_dict())
