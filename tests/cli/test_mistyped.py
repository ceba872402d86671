"""What a person types wrong is answered with what was likely meant."""

from __future__ import annotations

import re
from itertools import product

import pytest
from rows import each_row

from toolcrib import Catalog, kit
from toolcrib.cli import run
from toolcrib.cli.app import EXAMPLES
from toolcrib.clients import client_for
from toolcrib.errors import (
    CatalogError,
    PickError,
    RequestError,
    ToolcribError,
    did_you_mean,
)
from toolcrib.pick import PickOptions
from toolcrib.urls import without_passwords
from toolcrib.wire import decoder, encode_tools

TYPED: dict[str, tuple[list[str], str]] = {
    "a command": (["chatt"], "'chat'?"),
    "a command of a group": (["tools", "lst"], "'list'?"),
    "an option": (["chat", "--modle", "x", "hi"], "--model?"),
    "the database of a log": (["audit", "list", "--store", "x"], "--log?"),
    "the database of approvals": (["approvals", "list", "--log", "x"], "--store?"),
    "the databases of a chat": (["serve", "--log", "x"], "--audit, --store?"),
    "the provider to encode for": (["encode", "--wire", "gemini"], "--provider?"),
    "the provider to check for": (["tools", "check", "--wire", "gemini"], "--provider?"),
    "a tool to call": (["call", "calculat", "{}"], "'calculate'?"),
    "a tool to show": (["tools", "show", "calculat"], "'calculate'?"),
    "a scorer": (["pick", "x", "--scorer", "keywrd"], "'keyword'?"),
    "a scorer to measure": (["eval-pick", "--scorer", "ligth", "--set", "x"], "'light'?"),
    "a wire to encode for": (["encode", "--provider", "openai-caht"], "'openai-chat'?"),
    "a wire to decode": (["decode", "--provider", "Gemni", "x.json"], "'gemini'?"),
    "a provider": (["tools", "check", "--provider", "antropic"], "'anthropic'?"),
    "a provider of a model": (["chat", "-m", "opnai:gpt-5", "hi"], "'openai:gpt-5'?"),
    "a model without provider": (["chat", "-m", "claude-9", "hi"], "'anthropic:claude-9'?"),
}


@each_row(("line", "meant"), TYPED.values(), ids=TYPED)
def test_what_was_meant_is_named(
    line: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) in (1, 2)
    told = capsys.readouterr().err
    assert meant in told
    assert "id you mean" in told
    assert told.count("\n") == 1


DATABASES = [
    *(["audit", name, "--log"] for name in ("list", "verify", "head", "migrate", "export")),
    *(["audit", "show", "x", "--log"], ["approvals", "list", "--store"], ["audit", "list"]),
    ["serve", "--store"],
]
URLS = ["sqlite:///no.db", "sqlite://", "no.db", "nonsense://127.0.0.1/db", "sqlite:/no.db"]


@each_row("password", ["s3cretpw", "s3cr/etpw", "s3cr@etpw", "s3cr:etpw", "e"])
@each_row(
    "line",
    [
        ["chat", "hi", "--model", "ftp://me:{}@127.0.0.1:9/v1#m"],
        ["chat", "hi", "--model", "https//me:{}@127.0.0.1:9/v1#m"],
        ["chat", "hi", "--model", "http:/me:{}@127.0.0.1:9/v1#m"],
        ["chat", "hi", "--audit", "me:{}@127.0.0.1:9/db", "--model", "http://127.0.0.1:9/v1#m"],
        ["audit", "list", "postgresql://me:{}@127.0.0.1:9/db"],
        ["audit", "list", "postgresql://:{}@127.0.0.1:9/db"],
        ["tools", "list", "http://me:{}@127.0.0.1:9/x.json"],
        ["tools", "list", "openapi:http://me:{}@127.0.0.1:9/x.json"],
        ["--model", "me:{}@127.0.0.1"],
        *([*command, f"{url}?password={{}}@"] for command in DATABASES for url in URLS),
        ["tools", "list", "http://127.0.0.1:9/x.json?api_key={}@"],
        ["audit", "list", "--log", "jdbc:sqlserver://db.example;password={}@"],
        ["audit", "list", "--log", "host=db.example password={}@"],
    ],
)
def test_no_error_repeats_the_password_of_a_mistyped_url(
    line: list[str], password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [part.format(password) for part in line]
    for arguments in (typed, [*typed, "--json"]):
        assert run(arguments) in (1, 2, 4)
        told = capsys.readouterr()
        for text in (told.out, told.err):
            assert f"{password}@" not in text
            assert "s3cr" not in text


def test_what_is_no_login_is_told_as_it_is() -> None:
    for text in (
        "http://host:80/v1",
        "openai:gpt-5: a@b",
        "mcp:npx -y @scope/tool@1.0",
        "at 12:30",
    ):
        assert without_passwords(text) == text
    assert without_passwords(f"{'a:' * 50_000}") == "a:" * 50_000


def test_the_library_says_it_too() -> None:
    catalog = kit.catalog()
    errors: list[tuple[type[ToolcribError], str, object]] = [
        (RequestError, "'openai-chat'", lambda: decoder("openai_chat")),
        (RequestError, "'anthropic'", lambda: encode_tools("antropic", [])),
        (RequestError, "'mistral:large'", lambda: client_for("mistal:large")),
        (PickError, "'rerank'", lambda: PickOptions(scorer="rerankr")),
        (CatalogError, "'calculate'", lambda: catalog.only("calculator")),
    ]
    for kind, meant, mistake in errors:
        assert callable(mistake)
        with pytest.raises(kind, match=meant):
            mistake()
    assert isinstance(catalog, Catalog)


def test_what_is_like_nothing_is_not_guessed() -> None:
    assert did_you_mean("zzz", ["openai-chat"]) == ""
    assert did_you_mean("x" * 10_000_000, ["openai-chat"]) == ""
    assert did_you_mean("", []) == ""


@each_row(("columns", "path"), product([20, 60, 76, 200], ["", *EXAMPLES]))
def test_help_fits_and_cuts_no_word(
    columns: int,
    path: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*path.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert "…" not in re.sub(r'curl …|/shop\+…|"…"|, …\]|failed\s+…', "", told)
    assert "\x1b" not in told
    assert max(map(len, told.splitlines())) <= max(columns, 60)
    if columns == 200:  # each option names its value
        assert not re.search(r"^. +--[^│]*<(str|int|float|list|path)", told, re.MULTILINE)
