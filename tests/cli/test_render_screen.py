"""What reaches a terminal, from files, tools and models that mean no good."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rows import each_row
from stops import STOPS, stopped

from toolcrib import ALL, Agent, tool
from toolcrib.cli import render, run
from toolcrib.cli.render import Screen
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    RunStarted,
    TextDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
)

HOSTILE = "\x1b[31m \x9b31m \u202e \u2066 \u061c \U000e0041 \ud800"
NOISY = '''
from typing import Any
from toolcrib import ALL, tool
print("on import")

@tool(visible=ALL)
def echo(x: Any) -> Any:
    """Give it back."""
    print("on running")
    return x
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    return tmp_path


def test_json_holds_nothing_that_a_terminal_acts_upon_and_is_the_same_json() -> None:
    text = render.json_text({"a": HOSTILE, "n": 2**70})
    assert render.printable(text) == text
    assert json.loads(text) == {"a": HOSTILE, "n": 2**70}


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.usefixtures("folder")
def test_a_result_is_shown_as_it_is_and_moves_nothing(
    capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    given = {"x": [HOSTILE[:-2], ":100: [/red]", 2**70]}
    assert run(["call", "echo", json.dumps(given), "--tools", "noisy.py", *more]) == 0
    out = capsys.readouterr().out
    assert render.printable(out) == out
    assert ":100: [/red]" in out
    shown = json.loads(out)
    assert (shown["result"] if more else shown) == given["x"]


@pytest.mark.usefixtures("folder")
def test_what_tools_print_is_not_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["call", "echo", '{"x": 1}', "--tools", "noisy.py", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["result"] == 1
    assert captured.err.split("\n")[:2] == ["on import", "on running"]


@pytest.mark.parametrize("name", ["json.py", "toolcrib.py", "asyncio.py"])
def test_a_file_may_be_called_like_a_module(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = sys.modules.get(name.removesuffix(".py"))
    (folder / name).write_text(NOISY, encoding="utf-8")
    assert run(["tools", "list", "--tools", f"./{name}"]) == 0
    assert "echo" in capsys.readouterr().out
    assert sys.modules.get(name.removesuffix(".py")) is before


def test_a_file_that_exits_is_unusable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "exits.py").write_text("raise SystemExit(0)", encoding="utf-8")
    assert run(["tools", "list", "--tools", "exits.py"]) == 2
    assert "SystemExit" in capsys.readouterr().err


def test_definitions_nested_without_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    assert run(["tools", "list", "--tools", "deep.json"]) == 2
    assert "nested too deeply" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["decode"], ["call", "x", "-"], ["chat", "-m", "http://h#m"]]
)
def test_without_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(arguments) == 2
    assert "stdin is closed" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[::1", "http://\x1b[31m/v1", "http://h:999999"])
def test_a_url_that_is_none(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run(["chat", "hi", "--model", f"{url}#m"]) == 2
    assert "base URL" in capsys.readouterr().err


def test_a_spinner_takes_its_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(render, "err", Console(file=shown, force_terminal=True, emoji=False))
    it = Screen("thinking …")
    it.show(ToolCallStarted("c", "[/x]", None))
    it.show(ToolCallProgress("c", "[/red] 5 of 7"))
    it.close()
    assert "[/red] 5 of 7" in shown.getvalue()


async def test_a_question_comes_after_what_was_said_before_and_no_spinner_wipes_it_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(render, "err", Console(file=shown, force_terminal=True))
    request = ApprovalRequest("apr", "pay", {}, "risky", 0.0)
    it, asked = Screen("thinking …"), asyncio.Event()

    async def ask() -> None:
        async with it.question(request):
            asked.set()

    it.show(RunStarted("r"))
    task = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    assert not asked.is_set()
    it.show(ToolCallStarted("c", "pay", None))
    it.show(ApprovalRequested(request))
    before = shown.getvalue()
    it.show(ToolCallStarted("d", "pay", None))
    assert shown.getvalue() == before
    await task
    it.show(ToolCallStarted("e", "pay", None))
    it.close()
    assert len(shown.getvalue()) > len(before)


@each_row("how", STOPS)
async def test_what_is_said_of_a_stopped_call_is_what_its_record_says(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    for console in ("out", "err"):
        monkeypatch.setattr(render, console, Console(file=shown, width=300))
    events, begun = await stopped(how)
    for lost in (0, 1):  # the event at which Ctrl-C came may not have been shown
        shown.seek(0)
        shown.truncate()
        screen = Screen("thinking …")
        for event in events:
            if not (lost and isinstance(event, ToolCallFinished)):
                screen.show(event)
        screen.close()
        lines = shown.getvalue().splitlines()
        for name in [each.name for each in STOPS[how][0]]:
            (line,) = [
                line for line in lines if line.removeprefix("✗ ").startswith(f"{name} ")
            ] or [line for line in lines if line.startswith(f"✓ {name} ")]
            ran = "may have run" in line or line.startswith("✓")
            assert ran is (name in begun), line


async def test_the_end_of_a_call_in_the_background_is_a_line_within_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @tool(visible=ALL)
    async def brew(what: str) -> str:
        """Brew something."""
        return f"{what} is ready"

    result = await Agent(ScriptedClient([call("brew", what="tea"), "x"]), [brew]).run("Go.")
    (record,) = result.records
    screen = Screen("thinking …")
    for event in (
        ToolCallStarted(record.id, "brew", {"what": "tea"}),
        TextDelta("I wait"),
        ToolCallFinished(record),
        TextDelta("ed for it."),
        Done(result),
    ):
        screen.show(event)
    screen.close()
    first, line, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("I wait", "ed for it.")
    assert line.startswith("✓ brew")
    assert line.endswith('tea is ready"')
