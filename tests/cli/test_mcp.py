"""`--tools mcp:…`: every command that takes tools takes those of a server, and ends it."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread, main_thread
from time import monotonic

import pytest
from bridges.mcp_helpers import asked, is_alive, odd_itself, raw
from rows import each_row

from toolcrib.cli import options
from toolcrib.cli.app import run

Toolcrib = Callable[..., tuple[int, str, str]]
SERVER = f"mcp:{shlex.quote(sys.executable)} -m mcp_server_time --local-timezone=UTC"


@pytest.fixture
def toolcrib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Toolcrib:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.mark.exhaustive
def test_a_server_is_listed_checked_locked_picked_from_and_called(
    toolcrib: Toolcrib, tmp_path: Path
) -> None:
    code, out, _ = toolcrib("tools", "list", SERVER, "--json")
    assert (code, [one["name"] for one in json.loads(out)]) == (
        0,
        ["get_current_time", "convert_time"],
    )
    code, out, _ = toolcrib("tools", "show", "convert_time", "--tools", SERVER)
    assert (code, "imported. To trust it:" in out) == (0, True)
    code, out, _ = toolcrib("tools", "check", SERVER)
    assert (code, "2 imported tools ask and taint" in out) == (0, True)
    lock = str(tmp_path / "toolcrib.lock")
    assert toolcrib("tools", "lock", SERVER, "--file", lock)[0] == 0
    assert toolcrib("tools", "lock", SERVER, "--file", lock, "--check")[0] == 0
    code, out, _ = toolcrib("pick", "what time is it", "--tools", SERVER, "--json")
    assert code == 0
    assert "get_current_time" in out
    asked_for = ("call", "get_current_time", '{"timezone": "Asia/Tokyo"}', "--tools", SERVER)
    code, out, _ = toolcrib(*asked_for, "--yes", "--json")
    assert (code, json.loads(out)["result"]["timezone"]) == (0, "Asia/Tokyo")
    code, _, err = toolcrib(*asked_for)
    assert (code, "approval_required" in err) == (1, True)


@pytest.mark.exhaustive
def test_the_embedded_model_chats_with_a_servers_tools(
    toolcrib: Toolcrib, embedded_model: Path
) -> None:
    del embedded_model
    question = "Get the current time in Asia/Tokyo"
    code, out, _ = toolcrib("chat", question, "--tools", SERVER, "--yes", "--json")
    told = json.loads(out)
    (record,) = told["records"]
    assert (code, record["name"], record["status"]) == (0, "get_current_time", "completed")
    assert "Asia/Tokyo" in told["text"]


@pytest.mark.exhaustive
def test_a_server_ends_with_its_command(toolcrib: Toolcrib, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tools = f"mcp:{odd_itself(log).name}"
    code, out, err = toolcrib("call", "refuse", "--tools", tools, "--yes")
    assert (code, out) == (1, "")
    assert "no such order" in err  # who calls is told what the model would be
    code, out, err = toolcrib("call", "die", "--tools", tools, "--yes")
    assert (code, "outcome_unknown" in err) == (1, True)
    pids = [int(line.split()[1]) for line in asked(log) if line.startswith("start ")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_what_cannot_be_used_is_left_out_and_told(
    toolcrib: Toolcrib, caplog: pytest.LogCaptureFixture
) -> None:
    tools = f"mcp:{raw('list', 'bombs').name}"
    code, out, _ = toolcrib("tools", "list", tools, "--json")
    assert (code, [one["name"] for one in json.loads(out)]) == (0, ["pattern", "seven"])
    assert "left out: tool 'bomb', input_schema: its $refs expand" in caplog.text


@each_row(
    ("where", "text"),
    [
        ("mcp:no-such-program-here", "there is no program 'no-such-program-here'"),
        ("mcp:none.json", "none.json: there is no such file"),
        ("mcp:", "no MCP server is named"),
        ("mcp:a 'b", "it is not a command line"),
        ("mcp:http://127.0.0.1:9/mcp", "it cannot be reached"),
        (
            f"mcp:{sys.executable} -c 'exit(\"no license\")'",
            "it ended before it answered: no license",
        ),
    ],
)
def test_a_server_that_is_not_there_is_one_line(toolcrib: Toolcrib, where: str, text: str) -> None:
    for command in (["tools", "list"], ["tools", "check"], ["pick", "x"], ["call", "x"]):
        code, out, err = toolcrib(*command, "--tools", where)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert text in err


def test_ctrl_c_ends_a_command_whose_server_says_nothing(toolcrib: Toolcrib) -> None:
    def press(silent: socket.socket) -> None:
        with silent.accept()[0] as held:
            held.recv(1)
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
            ended.wait(60)

    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        presses = Thread(target=press, args=(silent,))
        presses.start()
        began = monotonic()
        code, out, _ = toolcrib(
            "tools", "list", f"mcp:http://127.0.0.1:{silent.getsockname()[1]}/mcp", "--json"
        )
        took = monotonic() - began
        ended.set()
        presses.join()
    assert took < 30  # a session may take 60 seconds to open
    assert (code, json.loads(out)["error"]["message"]) == (130, "cancelled")


@each_row("terminal", [True, False])
def test_a_server_that_takes_long_is_told_at_a_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_SILENT", 0.2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert run(["tools", "list", "mcp:sleep 1"]) == 2
    told = capsys.readouterr()
    assert ("waiting for the MCP server" in told.err) is terminal
    assert "it ended before it answered" in told.err
    assert told.out == ""
