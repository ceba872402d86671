"""`toolcrib chat --durable`: a terminal that is killed, left or interrupted, and the one after it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pexpect
import pytest

pytest.importorskip("dbos", reason="the extra durable is not installed")

from toolcrib.cli import run
from toolcrib.testing import call, http_error, openai_server
from toolcrib.testing.scripted import ServerTurn

ROOT = Path(__file__).parents[2]
ASKED = r"\[y/N\] "
SHOP = '''
import asyncio
from pathlib import Path
from toolcrib import ALL, tool

@tool(visible=ALL, safe=False)
def refund(order: int) -> str:
    """Refund an order."""
    with open("ledger", "a", encoding="utf-8") as ledger:
        ledger.write(f"{order}\\\\n")
    return "refunded"

@tool(visible=ALL)
async def slow() -> str:
    """Take long."""
    Path("begun").touch()
    await asyncio.sleep(60)
    return "done"
'''.replace("\\\\n", "\\n")


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLCRIB_RUNS", raising=False)
    monkeypatch.delenv("TOOLCRIB_STATE_KEY", raising=False)
    Path("shop.py").write_text(SHOP, encoding="utf-8")


def terminal(url: str) -> pexpect.spawn[str]:
    command = ["-m", "toolcrib", "chat", "--durable", "--tools", "shop.py", "--model", f"{url}#m"]
    child = pexpect.spawn(
        sys.executable,
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"},
        encoding="utf-8",
        timeout=30,
        dimensions=(24, 200),
    )
    child.delaybeforesend = 0.05
    return child


def kill(child: pexpect.spawn[str]) -> None:
    child.kill(signal.SIGKILL)
    child.wait()


def end(child: pexpect.spawn[str]) -> int | None:
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def until(there: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if there():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come")


def roles(server: Any) -> list[str]:
    return [message["role"] for message in server.requests[-1]["messages"]]


def refunded() -> str:
    return Path("ledger").read_text("utf-8")


def mode(file: str) -> int:
    return Path(file).stat().st_mode & 0o777


@pytest.mark.exhaustive
async def test_who_is_killed_is_gone_on_with_and_nothing_is_done_twice() -> None:
    def talk(url: str) -> None:
        child = terminal(url)
        child.expect("> ")
        child.sendline("Refund 7.")
        child.expect(ASKED)
        kill(child)
        child = terminal(url)
        child.expect("Continuing run_[0-9a-f]+: Refund 7. It is waiting for an answer.")
        child.expect(ASKED)
        child.sendline("y")
        child.expect("It is done.")
        child.expect("> ")
        child.sendline("Be slow.")
        until(Path("begun").exists)
        kill(child)
        child = terminal(url)
        child.expect("Continuing run_[0-9a-f]+: Be slow.")
        child.expect("outcome_unknown")
        child.expect("Who knows.")
        child.expect("> ")
        child.sendline("And now?")
        child.expect("Nothing more.")
        child.expect("> ")
        assert end(child) == 0

    turns: list[ServerTurn] = [
        call("refund", order=7),
        "It is done.",
        call("slow"),
        "Who knows.",
        "Nothing more.",
    ]
    async with openai_server(turns) as server:
        await asyncio.to_thread(talk, server.url)
    assert len(server.requests) == len(turns)  # nothing was asked again
    said = ["user", "assistant", "tool", "assistant"]
    assert roles(server) == [*said, *said, "user"]
    assert refunded() == "7\n"
    assert mode("runs.db.key") == 0o600


@pytest.mark.exhaustive  # a new interpreter, as the one before has them
async def test_what_is_asked_is_answered_elsewhere_and_ctrl_c_cancels_a_turn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk(url: str) -> None:
        child = terminal(url)
        child.expect("> ")
        child.sendline("Refund 7.")
        child.expect(ASKED)
        assert run(["runs", "list", "--status", "waiting", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert run(["runs", "show", found["id"], "--json"]) == 0
        (request,) = json.loads(capsys.readouterr().out)["pending"]
        assert run(["runs", "answer", request["id"], "--yes", "--by", "eve"]) == 0
        child.expect("answered elsewhere")
        child.expect("approved by eve")
        child.expect("> ")
        child.sendline("Be slow.")
        until(Path("begun").exists)
        child.sendintr()
        child.expect("Cancelled")
        child.expect("> ")
        child.sendline("And now?")
        child.expect("It was slow.")
        child.expect("> ")
        assert end(child) == 0

    turns: list[ServerTurn] = [call("refund", order=7), "Done.", call("slow"), "It was slow."]
    async with openai_server(turns) as server:
        await asyncio.to_thread(talk, server.url)
    said = ["user", "assistant", "tool"]
    assert roles(server) == [*said, "assistant", *said, "user"]
    assert "outcome_unknown" in server.requests[-1]["messages"][6]["content"]
    assert refunded() == "7\n"


async def test_the_same_prompt_again_is_the_same_run() -> None:
    async def chat(url: str, prompt: str, *more: str) -> tuple[int, str, str]:
        command = ("chat", "--durable", "--tools", "shop.py", "--model", f"{url}#m", prompt)
        made = await asyncio.to_thread(children.run, "-m", "toolcrib", *command, *more)
        return made.returncode, made.stdout, made.stderr

    turns: list[ServerTurn] = [call("refund", order=7), "Hello.", "It is done.", http_error(400)]
    async with openai_server(turns) as server:
        code, _, err = await chat(server.url, "Refund 7.")
        assert (code, "toolcrib runs answer apr_" in err) == (1, True), err
        code, out, err = await chat(server.url, "Hi.")
        assert (code, out) == (0, "Hello.\n")
        assert "Also open, started with other options or another prompt: run_" in err
        code, out, err = await chat(server.url, "Refund 7.", "--yes", "--json")
        told = json.loads(out)
        assert (code, told["status"], told["text"]) == (0, "completed", "It is done.")
        assert "Continuing run_" in err
        code, _, err = await chat(server.url, "Fail.")
        assert code == 1
        assert "failed: RequestError" in err
    assert [len(request["messages"]) for request in server.requests] == [1, 1, 3, 1]
    assert refunded() == "7\n"


@pytest.mark.parametrize(
    ("words", "key", "told"),
    [
        (("--store", "sqlite:///runs.db"), "", "--store needs --durable"),
        (("--durable", "--store", "runs.db"), "", "give the URL of a database"),
        (
            ("--durable", "--store", "sqlite://"),
            "",
            "an in-memory database is lost when the program ends",
        ),
        (("--durable", "--store", "postgresql://db/x"), "", "set $TOOLCRIB_STATE_KEY"),
        (("--durable",), "short", "$TOOLCRIB_STATE_KEY must be at least 16 random bytes"),
        (("--durable", "--store", "sqlite:///none/runs.db"), "", "No such file or directory"),
        (
            ("--durable", "--store", "sqlite:///empty.db"),
            "",
            "empty.db.key: it holds no usable key",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    words: tuple[str, ...],
    key: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("empty.db.key").touch()
    monkeypatch.setenv("TOOLCRIB_STATE_KEY", key)
    assert run(["chat", "hi", "--model", "http://127.0.0.1:1/v1#m", *words]) == 2
    assert told in capsys.readouterr().err
