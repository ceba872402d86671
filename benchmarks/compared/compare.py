"""Lets each library try the rows of `docs/compared.md`, in its own environment, and writes the tables.

    python benchmarks/compared/compare.py --peers FILE [--docs FILE] [--only ROW …]

`--peers` is what `benchmarks/peers/install.py --compared` has written. Without `--docs` the tables are
printed. They are written only if every cell was tried: what failed is told, and ends in 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from features import GROUPS, ROWS, Cell

HERE = Path(__file__).parent
BEGIN, END = "<!-- what was tried -->\n", "<!-- until here -->\n"

# The columns, and who else is asked where the library alone does not do it.
COLUMNS: dict[str, tuple[str, ...]] = {
    "toolcrib": (),
    "pydantic-ai": ("pydantic-ai-harness",),
    "openai-agents": (),
    "langchain": ("langchain-more",),
    "strands": (),
}
Tried = dict[str, dict[str, Any]]


def tried(name: str, python: str, rows: list[str]) -> dict[str, Any]:
    """Return the versions, the cells and the failures that a script prints."""
    script = HERE / f"try_{name.replace('-', '_')}.py"
    ran = subprocess.run(  # noqa: S603  our own scripts
        [python, str(script), *rows], stdout=subprocess.PIPE, text=True, check=False
    )
    lines = ran.stdout.splitlines()
    if not lines:
        return {"versions": {}, "cells": {}, "failed": {"it": f"ended with {ran.returncode}"}}
    found: dict[str, Any] = json.loads(lines[-1])
    found["cells"] = {row: Cell(*cell) for row, cell in found["cells"].items()}
    return found


def cell(found: Tried, column: str, row: str) -> str:
    """Return what a library did, and what it does with more of its makers' packages."""
    own = found[column]["cells"][row]
    shown = f"**{own.verdict}**: {own.what}"
    for more in COLUMNS[column]:
        if row in found[more]["cells"]:
            other = found[more]["cells"][row]
            shown += f"; **{other.verdict}** with {other.what}"
    return shown


def versions(each: dict[str, Any]) -> str:
    """Return the packages that a script has tried, with their versions."""
    first, *others = (f"{name} {version}" for name, version in each["versions"].items())
    return f"{first} (with {', '.join(others)})" if others else first


def tables(found: Tried) -> str:
    """Return the versions, and a table for each group of rows."""
    lines = [f"Tried with {'; '.join(map(versions, found.values()))}."]
    for group, rows in GROUPS.items():
        lines += ["", f"## {group}", "", "| | " + " | ".join(COLUMNS) + " |"]
        lines.append("|---" * (len(COLUMNS) + 1) + "|")
        for row in rows:
            cells = " | ".join(cell(found, column, row.id) for column in COLUMNS)
            lines.append(f"| {row.question} | {cells} |")
    return "\n".join(lines) + "\n"


def written(page: str, made: str) -> str:
    """Return the page with these tables in the place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, metavar="FILE", required=True)
    parser.add_argument("--docs", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    asked = parser.parse_args()
    pythons = {"toolcrib": sys.executable, **json.loads(asked.peers.read_text(encoding="utf-8"))}
    wanted = [name for column, more in COLUMNS.items() for name in (column, *more)]
    if missing := [name for name in wanted if name not in pythons]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    found = {name: tried(name, pythons[name], asked.only) for name in wanted}
    failed = [
        f"{name}: {row}: {why}"
        for name, each in found.items()
        for row, why in each["failed"].items()
    ]
    if asked.only or failed:
        cells = {name: each["cells"] for name, each in found.items()}
        print(json.dumps(cells, indent=1, ensure_ascii=False))
        print(*failed, sep="\n", file=sys.stderr)
        return 1 if failed else 0
    assert all(row.id in found[column]["cells"] for column in COLUMNS for row in ROWS)
    made = tables(found)
    if asked.docs is None:
        print(made)
    else:
        page = asked.docs.read_text(encoding="utf-8")
        asked.docs.write_text(written(page, made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
