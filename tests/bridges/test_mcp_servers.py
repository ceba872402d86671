"""Which server is meant: commands, addresses, and files that other clients have, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rows import each_row

from toolcrib.bridges.mcp import HttpServer, StdioServer, read_servers
from toolcrib.bridges.mcp.servers import named_servers
from toolcrib.errors import SourceError

CANARY = "canary-31c7"


@each_row(
    ("text", "server"),
    [
        ("uvx mcp-server-time", StdioServer("uvx", ("mcp-server-time",))),
        ("git 'a b' --x=1", StdioServer("git", ("a b", "--x=1"))),
        (" https://example.com/mcp ", HttpServer("https://example.com/mcp")),
        ("node server.json x", StdioServer("node", ("server.json", "x"))),
    ],
)
def test_a_text_names_a_server(text: str, server: Any) -> None:
    assert named_servers(text) == {"": server}
    assert named_servers(server) == {"": server}


def test_a_file_names_its_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "t0ken")
    monkeypatch.delenv("NOT_SET", raising=False)
    servers = {
        "files": {
            "command": "npx",
            "args": ["-y", "server", "${NOT_SET:-/srv}"],
            "env": {"TOKEN": "${SHOP_TOKEN}", "EMPTY": ""},
            "cwd": "/srv",
            "autoApprove": ["read"],
        },
        "shop": {"url": "https://shop/mcp", "headers": {"authorization": "Bearer ${SHOP_TOKEN}"}},
        "typed": {"type": "streamable-http", "url": "https://shop/mcp"},
        "off": {"command": "x", "disabled": True},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    expected = {
        "files": StdioServer(
            "npx", ("-y", "server", "/srv"), {"TOKEN": "t0ken", "EMPTY": ""}, "/srv"
        ),
        "shop": HttpServer("https://shop/mcp", {"authorization": "Bearer t0ken"}),
        "typed": HttpServer("https://shop/mcp"),
    }
    assert read_servers(file) == named_servers(file) == named_servers(str(file)) == expected


@each_row(
    ("text", "told"),
    [
        (None, "there is no such file"),
        ("{", "it is not JSON"),
        ("[]", "it has no mcpServers"),
        ('{"mcpServers": {}}', "it has no mcpServers"),
        ('{"mcpServers": {"a": 1}}', "the server 'a' is not an object"),
        ('{"mcpServers": {"a": {}}}', "url must be a string, not NoneType"),
        ('{"mcpServers": {"a": {"command": " "}}}', "command is empty"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "args must be a list of strings"),
        ('{"mcpServers": {"a": {"command": "x", "args": [1]}}}', "args must be a string, not int"),
        ('{"mcpServers": {"a": {"command": "x", "env": []}}}', None),
        (
            '{"mcpServers": {"a": {"command": "x", "env": ["y"]}}}',
            "env must be an object of strings",
        ),
        ('{"mcpServers": {"a": {"type": "sse", "url": "x"}}}', "which MCP has replaced"),
        ('{"mcpServers": {"a": {"type": "htpp", "url": "x"}}}', "did you mean 'http'?"),
        ('{"mcpServers": {"a": {"command": "${NOT_SET}"}}}', "the variable NOT_SET is not set"),
        ('{"mcpServers": {"a": {"command": "x", "disabled": true}}}', "are disabled"),
        (
            '{"mcpServers": {"a": {"command": "x", "disabled": "true"}}}',
            "disabled must be true or false",
        ),
        (
            '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
            "the key 'a' appears twice",
        ),
        ('{"mcpServers": {"a": {"command": "x", "url": "https://y"}}}', "a command and a url"),
    ],
)
def test_a_file_that_names_none_says_why(
    text: str | None, told: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    if told is None:
        assert list(read_servers(file)) == ["a"]
        return
    with pytest.raises(SourceError, match=r"mcp\.json") as caught:
        read_servers(file)
    assert told in str(caught.value)


@each_row(
    ("text", "told"),
    [
        ("", "no MCP server is named"),
        ("a 'b", "it is not a command line"),
        ("http://", "'http://' is not the URL of a server"),
        ("http://[::1", "is not the URL of a server"),
        ("https://h:99999/mcp", "is not the URL of a server"),
    ],
)
def test_a_text_that_names_none_says_why(text: str, told: str) -> None:
    with pytest.raises(SourceError) as caught:
        named_servers(text)
    assert told in str(caught.value)


def test_an_address_that_names_no_server_is_shown_without_its_secrets(tmp_path: Path) -> None:
    for address in (
        f"ftp://ada:{CANARY}@h/mcp",
        f"h/mcp?key={CANARY}",
        f"http://ada:{CANARY}@[::1",
    ):
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"shop": {"url": address}}}), encoding="utf-8")
        with pytest.raises(SourceError, match=r"the server 'shop': .* is not the URL") as caught:
            read_servers(file)
        assert CANARY not in str(caught.value)
