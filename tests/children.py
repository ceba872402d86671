"""Processes of our own that import what is tested here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

from conftest import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}


def together(count: int, *arguments: str) -> list[str]:
    """What so many say that start at the same moment: each says "ready" and waits for a line first."""
    children = [
        subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        for _ in range(count)
    ]
    streams: list[Any] = [(child.stdin, child.stdout) for child in children]
    for _, out in streams:
        assert out.readline() == "ready\n"
    for given, _ in streams:
        given.write("go\n")
        given.flush()
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * count
    return said


def pythons() -> list[str]:
    """Return this Python and each newer `python3.x` of the machine that starts."""
    found = [shutil.which(f"python3.{minor}") for minor in range(sys.version_info.minor + 1, 30)]
    return [sys.executable, *(program for program in found if program and _starts(program))]


def _starts(program: str) -> bool:
    """Tell a Python from a shim of a version manager that has none."""
    return subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0
