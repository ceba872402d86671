"""`toolcrib providers`."""

from __future__ import annotations

import json

import pytest

from toolcrib.cli.app import run
from toolcrib.wire import WIRES


def test_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
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
