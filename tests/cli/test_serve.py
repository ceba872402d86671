"""`toolcrib serve`: what it refuses before it listens. tests/chat/test_page.py asks it something."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toolcrib.chat import ThreadStore
from toolcrib.cli import run
from toolcrib.testing import call, openai_server

TOKEN = "a-token-of-some-length"
ENDLESS = '''
import asyncio
from toolcrib import ALL, tool

@tool(visible=ALL)
async def endless() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""
'''


def test_a_port_that_is_taken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", "--port", port, "--store", f"sqlite:///{tmp_path}/chat.db"]) == 2
    assert "use --port 0 for any free port" in capsys.readouterr().err


def test_a_token_that_does_not_do_and_what_is_no_url_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for token in (
        "short",
        "ключ длинный достаточно",
        "a line that\nhas an end",
        "a token and a space ",
    ):
        monkeypatch.setenv("TOOLCRIB_TOKEN", token)
        assert run(["serve", "--port", "0"]) == 2
        assert "at least 16 characters" in capsys.readouterr().err
    assert run(["serve", "--store", "chat.db"]) == 2
    assert "give the URL of a database" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("sqlite:///{folder}/junk.db", "SQLITE_NOTADB"),
        ("sqlite:///{folder}/none/chat.db", "SQLITE_CANTOPEN"),
        ("nope://x", "its URL must look like"),
    ],
)
def test_a_store_that_keeps_nothing_is_refused_at_once(
    store: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "junk.db").write_bytes(b"not a database" * 100)
    model = ["--model", "http://127.0.0.1:1/v1#m"]
    url = store.format(folder=tmp_path)
    assert run(["serve", "--port", "0", "--store", url, *model]) == 2
    said = capsys.readouterr().err
    assert said.startswith("toolcrib: --store ")
    assert told in said
    assert "Ctrl-C" not in said


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    """Start the server, and open a session of one who has its token."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolcrib", "serve", "--port", "0", *options),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TOOLCRIB_TOKEN": TOKEN},
    )
    assert server.stderr is not None
    while "/#token=" not in (line := (await server.stderr.readline()).decode()):
        assert line, "the server did not start"
    base, headers = line.partition("#")[0], {"authorization": f"Bearer {TOKEN}"}
    async with asyncio.timeout(30), aiohttp.ClientSession(base, headers=headers) as session:
        yield server, session


@pytest.mark.exhaustive
async def test_its_page_has_rules_where_they_are_to_be_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    options = ("--store", url, "--model", "http://127.0.0.1:1/v1#m")
    for more in ((), ("--rules", url)):
        async with serving(*options, *more) as (server, session):
            async with session.get("rules") as listed:
                assert await listed.json() == {"keeps_rules": bool(more), "rules": []}
            server.send_signal(signal.SIGTERM)
            assert await server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.exhaustive
async def test_what_runs_when_it_is_ended_is_kept_as_cancelled(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    url = f"sqlite:///{tmp_path}/chat.db"
    async with openai_server([call("endless")]) as model:
        options = ("--model", f"{model.url}#m", "--tools", f"{tmp_path}/endless.py")
        async with serving("--store", url, *options) as (server, session):
            async with session.post("threads", json={}) as made:
                thread = (await made.json())["id"]
            await session.post(f"threads/{thread}/messages", json={"text": "Wait."})
            states: list[str] = []
            while states != ["called"]:
                await asyncio.sleep(0.05)
                async with session.get(f"threads/{thread}") as shown:
                    parts = (await shown.json())["turns"][0]["parts"]
                states = [part["state"] for part in parts]
            server.send_signal(number)
            assert await server.wait() == 0
    async with ThreadStore(url) as store:
        stored = await store.load(thread, "local")
    assert stored is not None
    assert [turn.status for turn in stored.turns] == ["cancelled"]
    assert [part["state"] for part in stored.turns[0].view["parts"]] == ["cancelled"]
