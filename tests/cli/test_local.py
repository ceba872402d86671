"""`toolcrib local install`, as far as it goes without fetching anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolcrib.cli import run
from toolcrib.clients.local import model_path
from toolcrib.clients.local.model import SMOLLM2


@pytest.fixture(autouse=True)
def nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def pretend_installed() -> Path:
    path = model_path()
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SMOLLM2.size)  # a hole: it takes no room
    return path


def test_what_is_there_is_not_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    path = pretend_installed()
    assert run(["local", "install"]) == 0
    assert capsys.readouterr().out == f"The embedded model is installed: {path}\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = pretend_installed()
    assert run(["local", "install", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"path": str(path), "bytes": SMOLLM2.size, "fetched": False}


@pytest.mark.parametrize("more", [[], ["--json"], ["--force"]])
def test_what_cannot_be_fetched(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    assert run(["local", "install", *more]) == 1
    shown = capsys.readouterr()
    assert ("SourceError" in shown.out) == ("--json" in more)
    last = shown.err.splitlines()[-1]
    assert last.startswith("toolcrib: pip could not fetch the embedded model: ERROR: ")
    assert "Traceback" not in shown.err
