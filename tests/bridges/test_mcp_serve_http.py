"""Our tools by streamable HTTP: who may come in, as whom, and what ends with its client."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import httpx2
import mcp_types as types
import pytest
from bridges.mcp_http import Era, client_of, reached
from mcp import MCPError
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from toolcrib import ALL, Caller, Catalog, ToolRunner, per_call, tool
from toolcrib.bridges.mcp import (
    McpClient,
    McpServer,
    bearer,
    caller_of,
    calling_client,
    mcp_server,
)
from toolcrib.bridges.mcp.doors import ENDED
from toolcrib.bridges.mcp.faults import MAX_MESSAGE
from toolcrib.testing import MemorySink

ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def calling(tool: str) -> dict[str, str]:
    """Return the headers of a call in the newer era."""
    version = "2026-07-28"
    return {"mcp-protocol-version": version, "mcp-method": "tools/call", "mcp-name": tool}


@tool(visible=ALL, read_only=True)
def stock(item: str) -> str:
    """Say how many of an item are left."""
    return f"3 {item}"


@tool(visible=ALL, untrusted_output=True)
def search(text: str) -> str:
    """Search the web."""
    return text


@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(visible=ALL)
def note(text: str) -> str:
    """Note a text."""
    return text


class Tokens:
    """Knows two users of one client, and a client of its own."""

    async def verify_token(self, token: str) -> AccessToken | None:
        known = {
            "token-of-ada": ("app", "ada", ["read"]),
            "token-of-bob": ("app", "bob", ["read", "refund"]),
            "token-of-robot": ("robot", None, []),
        }
        if token not in known:
            return None
        client, subject, scopes = known[token]
        return AccessToken(token=token, client_id=client, subject=subject, scopes=list(scopes))


def shop(**options: Any) -> tuple[McpServer, MemorySink]:
    sink = MemorySink()
    return mcp_server(ToolRunner([stock, search, refund, note], sinks=[sink]), **options), sink


@ERAS
async def test_a_question_is_sent_whatever_text_its_tool_gives(era: Era) -> None:
    """A file name that is not UTF-8 has lone surrogates, which JSON cannot hold."""
    name = os.fsdecode(b"caf\xe9 \xff")
    asked: list[str] = []

    @tool(visible=ALL)
    async def ask(client: McpClient) -> str:
        """Ask the user, and the model."""
        form = {"type": "object", "properties": {}}
        given = await client.elicit(f"Delete {name}?", form, key=name)
        text = types.TextContent(text=f"Describe {name} \N{WARNING SIGN}")
        messages = [types.SamplingMessage(role="user", content=text)]
        wanted = types.CreateMessageRequestParams(messages=messages, max_tokens=5)
        return f"{given.action}, {(await client.sample(wanted)).model}"

    async def fill(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={})

    async def write(
        _context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        content = params.messages[0].content
        assert isinstance(content, types.TextContent)
        asked.append(content.text)
        return types.CreateMessageResult(role="assistant", content=content, model="tiny")

    catalog = Catalog([ask]).bind({McpClient: per_call(calling_client)})
    answering: dict[str, Any] = {"elicitation_callback": fill, "sampling_callback": write}
    async with (
        reached(mcp_server(ToolRunner(catalog))) as url,
        client_of(url, era=era, **answering) as client,
    ):
        done = await client.call_tool("ask", {})
    assert done.content == [types.TextContent(text="accept, tiny")]
    assert asked == ["Delete caf? ??", "Describe caf? ? \N{WARNING SIGN}"]


@ERAS
async def test_whoever_has_a_token_is_the_caller(era: Era) -> None:
    server, sink = shop()
    async with reached(server, token_verifier=Tokens()) as url:
        for token in ("token-of-ada", "token-of-bob", "token-of-robot"):
            async with client_of(url, token, era) as client:
                assert not (await client.call_tool("stock", {"item": "nut"})).is_error
    assert [(record.caller, record.caller_roles) for record in sink.records] == [
        ("app#ada", ("read",)),
        ("app#bob", ("read", "refund")),
        ("robot", ()),
    ]


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_nobody_comes_in_without_a_token_that_is_known(token: str) -> None:
    server, sink = shop()
    auth = AuthSettings(
        issuer_url=AnyHttpUrl("https://as.example/"),
        resource_server_url=AnyHttpUrl("https://mcp.example/mcp"),
        validate_token_resource=False,
    )
    headers = {**JSON, "authorization": f"Bearer {token}"} if token else JSON
    async with (
        reached(server, token_verifier=Tokens(), auth=auth) as url,
        httpx2.AsyncClient(verify=False) as http,
    ):
        refused = await http.post(url, json=HELLO, headers=headers)
        where = url.removesuffix("/mcp") + "/.well-known/oauth-protected-resource/mcp"
        told = await http.get(where)
    assert refused.status_code == 401
    assert "resource_metadata=" in refused.headers["www-authenticate"]
    assert told.json()["authorization_servers"] == ["https://as.example/"]
    assert sink.records == []


async def test_one_token_is_enough_for_a_program_of_ones_own() -> None:
    server, sink = shop()
    secret = "a-secret-of-16-characters"
    async with (
        reached(server, token_verifier=bearer(secret)) as url,
        httpx2.AsyncClient(verify=False) as http,
    ):
        async with client_of(url, secret) as client:
            await client.call_tool("stock", {"item": "nut"})
        refused = await http.post(url, json=HELLO, headers={**JSON, "authorization": "Bearer no"})
    assert refused.status_code == 401
    assert [record.caller for record in sink.records] == ["local"]
    with pytest.raises(ValueError, match="at least 16 characters"):
        bearer("short")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "mcp.example"}, 200),
        ({"host": "mcp.example:8443"}, 200),
        ({"host": "mcp.example.evil.example"}, 421),
        ({"origin": "http://localhost:5173"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://app.example"}, 200),
        ({"origin": "https://app.example.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "127.0.0.1:80.evil.com"}, 421),
        ({"host": "mcp.example:443.evil.com"}, 421),
        ({"host": "[::1]:80"}, 200),
        ({"host": "[::1]:80.evil.com"}, 421),
        ({"host": "localhost:"}, 421),
        ({"origin": "http://localhost:1.evil.com"}, 403),
        ({"origin": "http://[::1]:5173"}, 200),
        ({"origin": "http://localhost:5173/evil"}, 403),
        ({"host": "LocalHost:1"}, 200),
        ({"host": "MCP.Example:8443"}, 200),
        ({"host": "MCP.Example.evil.example"}, 421),
        ({"origin": "HTTP://LOCALHOST:5173"}, 200),
        ({"origin": "https://App.Example"}, 200),
        ({"origin": "https://other.example"}, 200),
    ],
)
async def test_no_page_reaches_a_server_on_its_users_machine(
    header: dict[str, str], status: int
) -> None:
    server, _ = shop()
    async with (
        reached(
            server, hosts=["mcp.Example"], origins=["https://app.example", "https://Other.Example"]
        ) as url,
        httpx2.AsyncClient(verify=False) as http,
    ):
        answer = await http.post(url, json=HELLO, headers={**JSON, **header})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"arguments": []}, "params.arguments: not valid"),
        ({"name": None}, "params.name: not valid"),
        ({"inputResponses": {"a": {"action": "?"}}}, "params.inputResponses.a: not valid"),
        ({"inputResponses": {"x" * 5_000: {}}}, "params.inputResponses.xxx"),
        ({"inputResponses": "y"}, "params.inputResponses: not valid"),
    ],
)
async def test_what_has_not_its_form_is_told(params: dict[str, Any], told: str) -> None:
    server, sink = shop()
    said = {"name": "stock", "arguments": {"item": "nut"}, "_meta": META, **params}
    named = calling("stock")
    if params.get("name", "") is None:
        del said["name"], named["mcp-name"]
        told = "params: no name"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": said}
    async with reached(server) as url, httpx2.AsyncClient(verify=False) as http:
        answer = await http.post(url, json=body, headers={**JSON, **named})
    error = answer.json()["error"]
    assert error["code"] == -32602
    assert error["message"].startswith(f"Invalid request parameters: {told}")
    assert len(error["message"]) < 300
    assert sink.records == []


@pytest.mark.parametrize(
    ("item", "status"),
    [
        ('"nut"', 200),
        ('"nut","item":"bolt"', 400),
        ("9007199254740993.0", 400),
        ('"' + "x" * MAX_MESSAGE + '"', 413),
    ],
)
async def test_a_message_says_one_thing_and_is_not_too_long(item: str, status: int) -> None:
    server, sink = shop()
    said = {"name": "stock", "arguments": {"item": "@"}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": said}
    text = json.dumps(body).replace('"@"', item)
    async with reached(server) as url, httpx2.AsyncClient(verify=False) as http:
        answer = await http.post(url, content=text, headers={**JSON, **calling("stock")})
    assert answer.status_code == status
    assert len(sink.records) == (status == 200)
    assert ("error" in answer.json()) == (status != 200)


@pytest.mark.parametrize(
    ("address", "passed_on", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("10.0.0.7", {}, 403),
        ("?", {}, 403),
        ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, 200),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.9"}, 403),
    ],
)
async def test_without_tokens_only_this_machine_may_call(
    address: str, passed_on: dict[str, str], status: int
) -> None:
    server, _ = shop()
    app = server.http_app()
    transport = httpx2.ASGITransport(app, client=(address, 1))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        answer = await http.post("/mcp", json=HELLO, headers={**JSON, **passed_on})
    assert answer.status_code == status


@ERAS
async def test_what_one_has_read_is_nothing_to_another(era: Era) -> None:
    server, _ = shop()
    async with (
        reached(server, token_verifier=Tokens()) as url,
        client_of(url, "token-of-ada", era) as ada,
        client_of(url, "token-of-bob", era) as bob,
    ):
        await ada.call_tool("search", {"text": "x"})
        assert (await ada.call_tool("note", {"text": "x"})).is_error  # it asks from now on
        assert not (await bob.call_tool("note", {"text": "x"})).is_error


@ERAS
async def test_only_whom_the_author_allows_approves_by_elicitation(era: Era) -> None:
    server, sink = shop(may_approve=lambda caller, _request: "refund" in caller.roles)

    async def yes(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    async with reached(server, token_verifier=Tokens()) as url:
        for token in ("token-of-ada", "token-of-bob"):
            async with client_of(url, token, era, elicitation_callback=yes) as client:
                await client.call_tool("refund", {"order": 7})
    ended = [(r.status, r.approved_by) for r in sink.records if r.status != "waiting"]
    assert ended == [("failed", None), ("completed", "app#bob")]


async def test_an_answer_is_not_another_clients_to_use() -> None:
    server, sink = shop(may_approve=lambda *_: True)
    answers: types.InputResponses = {
        "approval": types.ElicitResult(action="accept", content={"answer": "yes"})
    }

    async def never(_context: Any, _params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError

    async with reached(server, token_verifier=Tokens()) as url:
        async with client_of(
            url, "token-of-ada", "2026-07-28", elicitation_callback=never
        ) as client:
            asked = await client.session.call_tool(
                "refund", {"order": 7}, allow_input_required=True
            )
        assert isinstance(asked, types.InputRequiredResult)
        async with client_of(
            url, "token-of-bob", "2026-07-28", elicitation_callback=never
        ) as client:
            with pytest.raises(MCPError, match="requestState"):
                await client.session.call_tool(
                    "refund",
                    {"order": 7},
                    input_responses=answers,
                    request_state=asked.request_state,
                )
    assert not [record for record in sink.records if record.status == "completed"]


@ERAS
@pytest.mark.parametrize("ends", ["the call", "the server"])
async def test_a_call_ends_with_its_client_and_with_its_server(era: Era, ends: str) -> None:
    began = asyncio.Event()

    @tool(visible=ALL)
    async def slow() -> str:
        """Take long."""
        began.set()
        await asyncio.sleep(60)
        return "never"

    sink = MemorySink()
    server = mcp_server(ToolRunner([slow], sinks=[sink]))
    async with reached(server) as url, client_of(url, era=era) as client:
        calling = asyncio.ensure_future(client.call_tool("slow", {}))
        await began.wait()
        if ends == "the call":
            calling.cancel()
            async with asyncio.timeout(5):
                while not sink.records:  # noqa: ASYNC110  the server is another party
                    await asyncio.sleep(0.01)
        calling.cancel()
    assert [record.error.code for record in sink.records if record.error] == ["cancelled"]


async def test_a_request_that_is_broken_off_as_the_server_ends_is_answered() -> None:
    began, sent = asyncio.Event(), list[Any]()

    @tool(visible=ALL)
    async def slow() -> str:
        """Take long."""
        began.set()
        await asyncio.sleep(60)
        return "never"

    sink = MemorySink()
    app = mcp_server(ToolRunner([slow], sinks=[sink])).http_app()
    params = {"name": "slow", "arguments": {}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"host": "localhost", **JSON, **calling("slow")}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    bodies = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        if not bodies:
            await asyncio.Event().wait()
        return bodies.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        answering = asyncio.ensure_future(app(scope, receive, send))
        await began.wait()
        answering.cancel()  # as uvicorn does with what runs when its time is up
        with pytest.raises(asyncio.CancelledError):
            await answering
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["message"] == ENDED
    assert [record.error.code for record in sink.records if record.error] == ["cancelled"]


def test_callers_of_different_tokens_are_never_the_same() -> None:
    def of(client: str, subject: str | None = None, issuer: str | None = None) -> str:
        claims = {"iss": issuer} if issuer else None
        token = AccessToken(
            token="t", client_id=client, subject=subject, claims=claims, scopes=["a"]
        )
        return caller_of(token).id

    made = [
        of("a"),
        of("a", "b"),
        of("a#b"),
        of("a%23b"),
        of("a", "b", "c"),
        of("a", None, "c"),
        of("a", "b#c"),
        of("a", "", "b#c"),
        of("https://app.example/client.json", "ada"),
    ]
    assert len(set(made)) == len(made)
    assert made[-1] == "https://app.example/client.json#ada"
    assert caller_of(None) == Caller("anonymous")
