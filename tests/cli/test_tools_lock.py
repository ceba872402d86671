"""`toolcrib tools lock`: written, compared, and never torn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolcrib.cli import run


class Result(NamedTuple):
    code: int
    out: str
    err: str


Lock = Callable[..., Result]

PAY: dict[str, Any] = {
    "name": "pay",
    "description": "Pay a bill.",
    "input_schema": {"type": "object"},
}
SAY: dict[str, Any] = {
    "name": "say",
    "description": "Say a word.",
    "input_schema": {"type": "object"},
}


def tools(*definitions: dict[str, Any]) -> None:
    Path("tools.json").write_text(json.dumps(definitions), encoding="utf-8")


@pytest.fixture
def lock(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Lock:
    """Runs `tools lock` on `tools.json` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    tools(PAY, SAY)

    def command(*arguments: str) -> Result:
        code = run(["tools", "lock", "--tools", "tools.json", *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def test_write_then_check_then_change(lock: Lock) -> None:
    assert lock() == (0, "pay: added\nsay: added\ntoolcrib.lock: 2 tools locked, 2 changed\n", "")
    assert lock("--check") == (0, "toolcrib.lock: 2 tools, all as locked\n", "")
    tools(PAY | {"description": "Pay all bills."}, {**SAY, "name": "shout"})
    written = Path("toolcrib.lock").read_text(encoding="utf-8")
    result = lock("--check")
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        "pay: changed in description",
        "say: removed",
        "shout: added",
        "toolcrib.lock: 2 tools, 3 not as locked",
    ]
    assert Path("toolcrib.lock").read_text(encoding="utf-8") == written
    assert lock().out.splitlines()[-1] == "toolcrib.lock: 2 tools locked, 3 changed"
    assert lock("--check").code == 0


def test_nothing_changed_writes_nothing(lock: Lock) -> None:
    lock("--file", "my.lock")
    before = Path("my.lock").stat()
    assert lock("--file", "my.lock") == (0, "my.lock: 2 tools locked, 0 changed\n", "")
    assert Path("my.lock").stat().st_ino == before.st_ino
    assert not Path("toolcrib.lock").exists()


def test_json(lock: Lock) -> None:
    no = {"closing": False, "unknown_claims": False}
    added = {"kind": "added", "parts": [], **no}
    assert json.loads(lock("--json").out) == {
        "file": "toolcrib.lock",
        "tools": 2,
        "changes": [{"tool": "pay", **added}, {"tool": "say", **added}],
    }
    tools(PAY, SAY | {"input_schema": {"type": "object", "properties": {}}})
    result = lock("--check", "--json")
    assert result.code == 1
    assert json.loads(result.out)["changes"] == [
        {"tool": "say", "kind": "changed", "parts": ["input_schema"], **no}
    ]


def test_no_lock_to_check_is_a_failure(lock: Lock) -> None:
    result = lock("--check")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "toolcrib: toolcrib.lock: there is no lock file; `toolcrib tools lock` writes one\n"
    )
    assert json.loads(lock("--check", "--json").out)["error"]["kind"] == "SourceError"


TORN = [
    "",
    '{"toolcrib_lock": 1, "tools": {',
    '<<<<<<< ours\n{"toolcrib_lock": 1}',
    '{"toolcrib_lock": 4, "tools": {}}',
]


@pytest.mark.parametrize("text", TORN)
def test_a_lock_that_is_none_fails_the_check_and_is_written_anew(lock: Lock, text: str) -> None:
    Path("toolcrib.lock").write_text(text, encoding="utf-8")
    result = lock("--check")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    result = lock()
    assert result.code == 0
    assert "the old lock file is ignored" in result.err
    assert lock("--check").code == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "my-page"}',
        "[tool.x]\n",
        "\0",
        '{"needs": "toolcrib_lock"}',
        "see toolcrib_lock: 3",
    ],
)
def test_a_file_that_never_was_a_lock_is_not_written_over(lock: Lock, text: str) -> None:
    Path("package.json").write_text(text, encoding="utf-8")
    result = lock("--file", "package.json")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "package.json: it is not a lock file of toolcrib, so it is not overwritten" in result.err
    assert Path("package.json").read_text(encoding="utf-8") == text


def test_a_folder_is_no_lock(lock: Lock) -> None:
    Path("folder").mkdir()
    assert "it is not a lock" in lock("--file", "folder").err


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders")
def test_a_pipe_is_no_lock(lock: Lock) -> None:
    os.mkfifo("pipe")
    for options in ([], ["--check"]):
        result = lock("--file", "pipe", *options)
        assert (result.code, result.err) == (2, "toolcrib: pipe: it is a pipe, not a file\n")


def test_a_folder_that_is_not_there(lock: Lock) -> None:
    result = lock("--file", "nowhere/toolcrib.lock")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "cannot be written" in result.err


def test_a_broken_definition_locks_nothing(lock: Lock) -> None:
    tools(PAY, {"name": "a b"})
    result = lock()
    assert (result.code, result.out) == (1, "")
    assert "tool name 'a b'" in result.err
    assert not Path("toolcrib.lock").exists()


def test_help_says_what_it_does(lock: Lock) -> None:
    result = lock("--help")
    assert result.code == 0
    for word in ("--file", "--check", "--json", "digests"):
        assert word in result.out
