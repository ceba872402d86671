"""docs/compared.md: its rows are those that are tried, and toolcrib does what its column says."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import compare
import pytest
from children import run
from features import GROUPS, ROWS, Cell

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compared.md"
SCRIPTS = ROOT / "benchmarks" / "compared"
CELL = re.compile(r"\*\*(yes|partly|no)\*\*: (.+)")


def tables() -> dict[str, list[str]]:
    """Return the cells of the page, of each question those of the columns in order."""
    lines = re.findall(r"^\| (?!\|)(.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {question: cells for question, *cells in (line.split(" | ") for line in lines)}


def functions(script: Path) -> list[str]:
    found = ast.parse(script.read_text(encoding="utf-8")).body
    return [node.name for node in found if isinstance(node, ast.AsyncFunctionDef)]


def script(name: str) -> Path:
    return SCRIPTS / f"try_{name.replace('-', '_')}.py"


def test_the_page_has_each_row_and_each_column() -> None:
    found = tables()
    assert list(found) == [row.question for row in ROWS]
    assert {len(cells) for cells in found.values()} == {len(compare.COLUMNS)}
    assert all(CELL.match(cell) for cells in found.values() for cell in cells)
    page = PAGE.read_text(encoding="utf-8")
    assert [group for group in GROUPS if f"## {group}\n" not in page] == []


@pytest.mark.parametrize("name", compare.COLUMNS)
def test_each_script_tries_each_row(name: str) -> None:
    tries = functions(script(name))
    assert [row.id for row in ROWS if tries.count(row.id) != 1] == []


@pytest.mark.parametrize("name", [more for each in compare.COLUMNS.values() for more in each])
def test_what_else_is_asked_tries_rows(name: str) -> None:
    assert {row.id for row in ROWS} & set(functions(script(name)))


def test_toolcrib_does_what_its_column_says(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = run(str(script("toolcrib")), cwd=tmp_path, env=env)
    found = json.loads(done.stdout)
    assert found["failed"] == {}
    said = {row.id: CELL.match(tables()[row.question][0]) for row in ROWS}
    assert found["cells"] == {row: list(cell.groups()) for row, cell in said.items() if cell}


def found_of(cells: dict[str, Cell], **failed: str) -> dict[str, Any]:
    return {"versions": {"a": "1", "b": "2"}, "cells": cells, "failed": failed}


def compared(
    monkeypatch: pytest.MonkeyPatch, folder: Path, found: dict[str, dict[str, Any]]
) -> tuple[int, str]:
    """Let `compare.py` write a page of what the scripts are said to have found."""
    peers, page = folder / "peers.json", folder / "page.md"
    names = [more for each in compare.COLUMNS.items() for more in (each[0], *each[1])]
    peers.write_text(json.dumps(dict.fromkeys(names, sys.executable)), encoding="utf-8")
    page.write_text(f"before\n{compare.BEGIN}OUTDATED\n{compare.END}after\n", encoding="utf-8")
    monkeypatch.setattr(compare, "tried", lambda name, *_: found[name])
    monkeypatch.setattr(sys, "argv", ["compare.py", "--peers", str(peers), "--docs", str(page)])
    return compare.main(), page.read_text(encoding="utf-8")


def everything() -> dict[str, dict[str, Any]]:
    whole = {row.id: Cell("no", "it does not") for row in ROWS}
    found = {name: found_of(whole) for name in compare.COLUMNS}
    for more in (more for each in compare.COLUMNS.values() for more in each):
        found[more] = found_of({"fork": Cell("yes", "more")})
    return found


def test_the_tables_take_the_place_of_the_old_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, page = compared(monkeypatch, tmp_path, everything())
    assert code == 0
    assert page.startswith(f"before\n{compare.BEGIN}\nTried with a 1 (with b 2); ")
    assert page.endswith(f"|\n\n{compare.END}after\n")
    assert "OUTDATED" not in page
    assert "| **no**: it does not; **yes** with more | **no**: it does not |" in page


def test_what_failed_is_told_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = everything()
    found["strands"] = found_of({}, plan="AssertionError: x")
    code, page = compared(monkeypatch, tmp_path, found)
    assert (code, "OUTDATED" in page) == (1, True)
    assert capsys.readouterr().err == "strands: plan: AssertionError: x\n"
