"""`toolcrib tools check`: a table for a reader, JSON for a script, the exit code for CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolcrib.cli import run
from toolcrib.cli.render import out

MODULE = '''
from toolcrib import ALL, tool

@tool(visible=ALL)
def read_it(path: str) -> str:
    """Read."""
    return path
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


Check = Callable[..., Result]


@pytest.fixture
def check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Check:
    """Runs `tools check` in an empty folder that holds `mytools.py` and two files of definitions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytools.py").write_text(MODULE, encoding="utf-8")
    rows: list[dict[str, Any]] = [
        {"name": "a b", "input_schema": {}},
        {"name": "pay", "description": "Pay \u001b[2J\u202e now, please.", "input_schema": {}},
        {"name": "gone", "description": "Go away.", "input_schema": {"type": "object"}, "x": 1},
        {"name": "ok", "description": "Count the sheep.", "input_schema": {"type": "object"}},
    ]
    rows[1]["input_schema"] = {"type": "object", "properties": {"x": {"type": "string"}}}
    text = "\n".join(map(json.dumps, rows))
    (tmp_path / "broken.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "broken.json").write_text(json.dumps(rows), encoding="utf-8")

    def command(*arguments: str) -> Result:
        code = run(["tools", "check", *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def test_the_kit_passes(check: Check) -> None:
    result = check()
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].startswith("7 tools: ")


@pytest.mark.parametrize("file", ["broken.json", "broken.jsonl"])
def test_each_broken_definition_is_reported(check: Check, file: str) -> None:
    result = check("--tools", file, "--provider", "anthropic")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0] == "a b"
    assert lines[1].startswith("  refused definition: tool name 'a b'")
    assert "unknown key 'x'" in result.out
    assert "a description: 'x' (1 of 1) (/input_schema/properties/x)" in result.out
    assert "ok" not in lines
    assert lines[-1].startswith("4 tools: 2 refused, 0 lost, ")


def test_a_terminal_is_not_at_the_mercy_of_a_description(check: Check) -> None:
    for arguments in ([], ["--json"]):
        result = check("--tools", "broken.json", *arguments)
        assert "\x1b" not in result.out
        assert "\u202e" not in result.out


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_text_of_a_tool_is_a_line_of_the_report(
    check: Check, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    name = "a\n9 tools: no findings"
    rows = [
        {"name": name, "input_schema": {}},
        {"name": "ok", "input_schema": {"type": "object", "properties": {name: {"maxLenght": 3}}}},
    ]
    Path("evil.json").write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(out, "_force_terminal", is_terminal)
    monkeypatch.setattr(out, "_width", 300)
    lines = check("evil.json").out.splitlines()
    assert sum(r"a\n9 tools" in line for line in lines) >= 4
    assert not [line for line in lines if "9 tools" in line.replace(r"a\n9 tools", "")]


def test_json_is_one_value_with_every_finding(check: Check) -> None:
    result = check("--tools", "broken.json", "--provider", "gemini", "--json")
    value = json.loads(result.out)
    assert (result.code, value["tools"]) == (1, 4)
    assert value["counts"]["refused"] == 2
    first = value["findings"][0]
    assert set(first) == {"tool", "provider", "effect", "rule", "pointer", "message"}
    assert (first["tool"], first["provider"], first["effect"]) == ("a b", "toolcrib", "refused")
    assert sum(value["counts"].values()) == len(value["findings"])


def test_what_is_only_doubtful_exits_with_0(check: Check) -> None:
    result = check("--tools", "mytools.py")
    assert result.code == 0
    assert "very short (1 word)" in result.out


def test_an_imported_tool_without_a_description_is_doubtful(check: Check, tmp_path: Path) -> None:
    """The author of the import cannot write it: it is a warning, and CI goes on."""
    properties = {"path": {"type": "string", "description": "Where the file is."}}
    listed = {"name": "read_file", "inputSchema": {"type": "object", "properties": properties}}
    (tmp_path / "listed.json").write_text(json.dumps({"tools": [listed]}), encoding="utf-8")
    result = check("--tools", "listed.json", "--json")
    found = [f for f in json.loads(result.out)["findings"] if f["pointer"] == "/description"]
    assert result.code == 0
    assert {(f["tool"], f["rule"], f["effect"]) for f in found} == {
        ("read_file", "description", "doubtful")
    }


def test_what_several_providers_do_is_told_once(check: Check, tmp_path: Path) -> None:
    long = [{"name": "x", "description": "word " * 300, "input_schema": {"type": "object"}}]
    (tmp_path / "long.json").write_text(json.dumps(long), encoding="utf-8")
    result = check("--tools", "long.json", "--provider", "openai")
    assert result.out.count("1500") == 1
    assert "openai-chat, openai-responses" in result.out
    assert result.out.splitlines()[-1] == "1 tool: 0 refused, 0 lost, 1 doubtful"


def test_what_befalls_a_schema_in_several_places_is_told_once(check: Check, tmp_path: Path) -> None:
    about = {"type": "integer", "description": "How many there are.", "minimum": 1, "maximum": 9}
    schema = {"type": "object", "properties": {"sheep": about, "goats": about}}
    tools = [{"name": "x", "description": "Count the herd.", "input_schema": schema}]
    (tmp_path / "herd.json").write_text(json.dumps(tools), encoding="utf-8")
    *lines, imported, _, closing = check(
        "--tools", "herd.json", "--provider", "ollama"
    ).out.splitlines()
    assert len(lines) == 2
    assert imported == "1 imported tool asks and taints. To trust it:"
    assert "minimum" in lines[1]
    assert "maximum" in lines[1]
    assert "/input_schema/properties/" in lines[1]
    assert " and 3 more" in lines[1]
    assert closing == "1 tool: 0 refused, 1 lost, 0 doubtful"


def test_a_narrow_terminal_wraps_and_cuts_nothing(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", 48)
    monkeypatch.setattr(out, "_color_system", None)
    result = check("--tools", "broken.json", "--provider", "gemini")
    lines = [line for line in result.out.splitlines() if "trust=" not in line]  # those are to paste
    assert max(map(len, lines)) <= 48
    assert "/input_schema/properties/x" in "".join(result.out.split())


def test_a_sliver_of_a_terminal_cuts_nothing_either(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", 20)
    monkeypatch.setattr(out, "_color_system", None)
    assert "unknown key 'x'; known: name" in check("broken.json").out


def test_the_tools_may_be_named_without_the_option(check: Check) -> None:
    assert check("broken.json") == check("--tools", "broken.json")


UNUSABLE: list[tuple[list[str], str]] = [
    (["--provider", "smoke"], "no provider 'smoke'; there are: openai-chat, openai-responses, "),
    (["--tools", "nope.py"], "there is no such file"),
    (["--tools", "nope.json"], "there is no such file"),
    (["nope.json"], "--tools nope.json: there is no such file"),
    (["a.json", "--tools", "b.json"], "given twice, as a.json and --tools b.json: choose one"),
    (["a.json", "b.json"], "b.json"),
    (["--nope"], "No such option"),
]


@pytest.mark.parametrize(("arguments", "words"), UNUSABLE)
def test_an_unusable_command_line(check: Check, arguments: list[str], words: str) -> None:
    result = check(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words in result.err


def test_help_says_what_it_does(check: Check) -> None:
    result = check("--help")
    assert result.code == 0
    for word in ("--provider", "--tools", "--json", "exit 1"):
        assert word in result.out
