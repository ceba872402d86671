"""README and docs tell the truth: their programs run, their commands print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [body for kind, body in found if kind == language]


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONWARNINGS": "error",
        "COLUMNS": "100",
    }
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path, embedded_model: Path) -> None:
    del embedded_model  # some of them ask it
    program = "\n\n".join(blocks(page, "python"))
    if not program:
        pytest.skip("no program on this page")
    script = tmp_path / "page.py"
    script.write_text(program, encoding="utf-8")
    done = run([sys.executable, str(script)], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def commands() -> list[tuple[str, str, str]]:
    """Page, command and expected output of each `$` line of a console block."""
    rows = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                rows.append((page.name, command, output))
    return rows


@pytest.mark.parametrize(("page", "command", "output"), commands())
def test_the_commands_of_a_page_print_what_it_says(
    page: str, command: str, output: str, embedded_model: Path
) -> None:
    del page, embedded_model
    shown = command.replace("toolcrib ", f"{sys.executable} -m toolcrib ", 1)
    done = run(["bash", "-c", shown], ROOT)
    pattern = re.escape(output.strip()).replace("…", ".*?")
    lines = (done.stdout + done.stderr).splitlines()
    printed = "\n".join(line.rstrip() for line in lines).strip()
    assert re.fullmatch(pattern, printed, re.DOTALL), printed
