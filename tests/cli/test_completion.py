"""The shell completes the values of options that name one of a known few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from toolcrib.cli import run
from toolcrib.clients.providers import PROVIDERS
from toolcrib.pick import SCORERS
from toolcrib.values.record import RecordStatus
from toolcrib.wire import FORMS, SYNTAXES, WIRES

MODELS = ["local", *(f"{provider}:" for provider in PROVIDERS if provider != "local")]
ROWS = [
    ("chat --model ", MODELS),
    ("chat -m open", ["openai:", "openai-responses:"]),
    ("chat --scorer ", SCORERS),
    ("pick x --scorer ", SCORERS),
    ("eval-pick --scorer ke", ["keyword"]),
    ("encode --provider ", FORMS),
    ("decode --provider ", WIRES),
    ("decode --text-calls ", SYNTAXES),
    ("tools check --provider ", ["openai", *FORMS]),
    ("audit list --status ", get_args(RecordStatus)),
    ("audit export --code unknown_t", ["unknown_tool"]),
    ("runs list --status w", ["waiting"]),
]


@pytest.mark.parametrize(("typed", "values"), ROWS, ids=[typed for typed, _ in ROWS])
def test_values_are_completed(
    typed: str,
    values: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = f"toolcrib {typed}"
    monkeypatch.setenv("_TOOLCRIB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert sorted(capsys.readouterr().out.split()) == sorted(values)
