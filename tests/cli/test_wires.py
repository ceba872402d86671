"""`toolcrib encode`: one JSON value on stdout, what is lost on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib.cli import run
from toolcrib.wire import FORMS

TOOL = {
    "name": "book",
    "description": "Book a table.",
    "input_schema": {"type": "object", "properties": {"when": {"type": "string"}}},
}


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL, TOOL | {"name": "x" * 100}]), encoding="utf-8")
    return str(path)


def encoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = run(["encode", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


@pytest.mark.parametrize("wire", FORMS)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_every_form_is_one_json_value(
    wire: str, more: tuple[str, ...], tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, value, said = encoded(capsys, "--wire", wire, "--tools", tools, *more)
    assert code == 0
    (first, *rest) = value[0]["functionDeclarations"] if wire == "gemini" else value
    assert first.get("function", first)["name"] == "book"
    assert len(rest) == 1
    lines = said.splitlines()
    assert all(line.startswith(("book: ", "x" * 100)) for line in lines)
    renamed = [line for line in lines if ": doubtful: name: " in line]
    assert len(renamed) == (0 if wire == "anthropic" else 1)


def test_an_unknown_wire_is_an_unusable_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, value, said = encoded(capsys, "--wire", "smoke")
    assert (code, value) == (2, None)
    assert said == (
        f"toolcrib: --wire smoke: there is no such wire; there are: {', '.join(FORMS)}\n"
    )
    code, value, _ = encoded(capsys, "--wire", "smoke", "--json")
    assert (code, value["error"]["kind"]) == (2, "UnusableError")


def test_what_a_strict_tool_does_not_get_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "strict.py"
    path.write_text(
        "from toolcrib import ALL, tool\n\n"
        "@tool(visible=ALL, strict=True)\n"
        "def f(n: int) -> int:\n"
        '    """Count."""\n'
        "    return n\n",
        encoding="utf-8",
    )
    code, value, said = encoded(capsys, "--wire", "ollama", "--tools", str(path))
    assert (code, len(value)) == (0, 1)
    assert "f: lost: strict: it is sent without strict: " in said
    code, value, said = encoded(capsys, "--wire", "openai-chat", "--tools", str(path))
    assert value[0]["function"]["strict"] is True
    assert "without strict" not in said
