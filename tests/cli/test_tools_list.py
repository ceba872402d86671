"""`toolcrib tools list`: a table on a terminal, lines with tabs in a pipe; what a shell completes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolcrib import ReadOnly, discover
from toolcrib.cli import run
from toolcrib.cli.render import out

LONG = "x" * 100_000
TOOLS = [
    {"name": "pay_all_the_bills_of_a_month", "description": "Pay\tthem.\nAll.", "input_schema": {}},
    {"name": "say", "description": LONG, "input_schema": {}},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [tool | {"input_schema": {"type": "object"}} for tool in TOOLS]
    (tmp_path / "tools.json").write_text(json.dumps(rows), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("named", [["tools.json"], ["--tools", "tools.json"]])
def test_in_a_pipe_each_tool_is_a_line(
    named: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", 20)
    assert run(["tools", "list", *named]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t") == [
        "pay_all_the_bills_of_a_month",
        "Pay them.",
        "asks, untrusted output",
    ]
    assert second.split("\t")[0] == "say"
    assert second.split("\t")[1].endswith("xxx … (100000 characters)")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("width", [20, 40, 120])
def test_on_a_terminal_no_name_is_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", width)
    monkeypatch.setattr(out, "_color_system", None)
    assert run(["tools", "list", "tools.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join(line.split(" ")[0] for line in lines)
    assert "pay_all_the_bills_of_a_month" in shown


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("toolcrib tools check --provider o", "openai openai-chat openai-responses ollama"),
        ("toolcrib tools check --provider gem", "gemini"),
        ("toolcrib encode --provider an", "anthropic"),
        ("toolcrib decode --provider openai-c", "openai-chat"),
        ("toolcrib tools lo", "lock"),
    ],
)
def test_a_shell_completes_names(
    line: str,
    values: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_TOOLCRIB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == values.split()


IMPORTED = '[{"name": "say", "description": "Say.", "input_schema": {"type": "object"}}]'


def trusted_with(digest: str) -> bool:
    """Whether `trust=` takes the digest."""
    found = discover("imported.json", trust={"say": ReadOnly(digest)})
    return found["say"].get_definition().annotations.read_only


def test_the_digest_that_trust_takes_is_printed_by_that_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "imported.json").write_text(IMPORTED, encoding="utf-8")
    assert run(["tools", "list", "imported.json", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert run(["tools", "show", "say", "--tools", "imported.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert listed["trust_digest"] == shown["trust_digest"]
    assert trusted_with(listed["trust_digest"])
    assert not trusted_with(listed["digest"])
    assert run(["tools", "show", "say", "--tools", "imported.json"]) == 0
    line = f'trust={{"say": Trusted("{listed["trust_digest"]}")}}'
    assert line in capsys.readouterr().out


def test_nothing_of_trust_is_said_of_what_was_not_imported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["tools", "show", "convert_units", "--json"]) == 0
    assert "trust_digest" not in json.loads(capsys.readouterr().out)
    assert run(["tools", "show", "convert_units"]) == 0
    assert "trust=" not in capsys.readouterr().out
