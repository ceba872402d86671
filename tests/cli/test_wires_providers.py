"""`toolcrib providers`."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from toolcrib.cli.app import run
from toolcrib.wire import WIRES


def test_a_row_for_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.cli.wires.out", Console(width=200, soft_wrap=True))
    assert run(["providers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(WIRES)
    assert next(line for line in lines if line.startswith("ollama")).split()[1:4] == [
        "fewer",
        "no",
        "no",
    ]


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["providers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["anthropic"]["marks_errors"] is True
    assert told.keys() == WIRES.keys()


@pytest.mark.parametrize(
    ("width", "lines"), [(40, len(WIRES)), (89, len(WIRES)), (90, 2 + len(WIRES))]
)
def test_no_width_of_a_terminal_cuts_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, lines: int
) -> None:
    monkeypatch.setattr("toolcrib.cli.wires.out", Console(width=width, soft_wrap=True))
    assert run(["providers"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert len(out.splitlines()) == lines
    assert ("openai-chat  no tool: yes, any tool: yes," in out) is (width < 90)
