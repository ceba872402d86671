"""Start Python programs as processes of their own, without the price of a new interpreter.

A new interpreter takes half a second to import toolcrib and what it needs. `start` and `run` fork a
process that has imported all of that: a program has a process of its own still, and can be killed, but
it begins at once. What is about the start of Python (hash seeds, what an import does) starts Python.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Self

from becoming import become
from conftest import ROOT
from pexpect.fdpexpect import fdspawn

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
WARNED = ENVIRONMENT | {"PYTHONWARNINGS": "error"}
IMPORTED = [
    *("pytest", "hypothesis", "sqlalchemy.dialects.sqlite", "psycopg", "numpy", "aiohttp"),
    *("rich.console", "rich.table", "typer.core"),
    *("toolcrib.audit", "toolcrib.approvals", "toolcrib.clients", "toolcrib.kit", "toolcrib.pick"),
    *("toolcrib.bridges.mcp", "toolcrib.testing", "children"),
]  # not `toolcrib.cli`, which asks the environment how wide the terminal is
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(IMPORTED)


class Child:
    """A running program that is written to and read as text."""

    def __init__(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        given = (arguments, str(cwd), dict(env), [_Descriptor(stream) for stream in streams])
        self.process = FORKS.Process(target=become, args=given, daemon=True)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float = 120) -> int:
        """Wait until it has ended; minus the number of a signal that ended it."""
        self.process.join(timeout)
        if (code := self.process.exitcode) is None:
            self.process.kill()
            raise AssertionError(f"the program does not end within {timeout} s")
        return code


class Talking(Child):
    """A program that takes part: what it prints is read while it runs."""

    def __init__(self, *arguments: str, env: Mapping[str, str] = ENVIRONMENT) -> None:
        (taken, given), (printed, prints) = os.pipe(), os.pipe()
        super().__init__(arguments, Path.cwd(), env, [taken, prints, 2])
        os.close(taken)
        os.close(prints)
        self.stdin = os.fdopen(given, "w", encoding="utf-8")
        self.stdout = os.fdopen(printed, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdin.close()
        self.stdout.close()
        self.wait()

    def ended(self) -> str:
        """Close its stdin, and return the rest of what it prints once it has ended well."""
        self.stdin.close()
        rest = self.stdout.read()
        assert self.wait() == 0
        return rest


class AtTerminal(fdspawn):  # type: ignore[type-arg]
    """A program at a terminal of its own, as `pexpect.spawn` has it."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str]) -> None:
        shown, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (24, 200))
        self._program = Child(arguments, cwd, env, [terminal] * 3)
        os.close(terminal)
        super().__init__(shown, encoding="utf-8", timeout=30)

    def sendintr(self) -> None:
        self.send("\x03")

    def sendeof(self) -> None:
        self.send("\x04")

    def close(self) -> None:
        super().close()
        self.exitstatus = self._program.wait()


def run(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] = ENVIRONMENT,
    mixed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: `("-c", code)`, `("-m", module, …)` or `(script, …)`.

    `mixed` as a terminal has it: what it complains of is among what it prints.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        Path(os.devnull).open() as none,
    ):
        streams = [none.fileno(), out.fileno(), (out if mixed else err).fileno()]
        code = Child(arguments, cwd or Path.cwd(), env, streams).wait()
        printed, complained = (_whole(stream) for stream in (out, err))
    return subprocess.CompletedProcess(list(arguments), code, printed, complained)


def together(*programs: Sequence[str]) -> list[str]:
    """Return what each program says; they go on at the same moment, when all have said "ready"."""
    with ExitStack() as stack:
        children = [stack.enter_context(Talking(*arguments)) for arguments in programs]
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return [child.ended() for child in children]


@functools.cache
def pythons() -> list[str]:
    """Return this Python and each newer `python3.x` of the machine that starts."""
    found = [shutil.which(f"python3.{minor}") for minor in range(sys.version_info.minor + 1, 30)]
    return [sys.executable, *(program for program in found if program and _starts(program))]


def _starts(program: str) -> bool:
    """Tell a Python from a shim of a version manager that has none."""
    return subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0


def _whole(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode()
    return text


class _Descriptor:
    """An open file that the fork is given."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, (DupFd(self.number),)


def _taken(given: Any) -> int:
    number: int = given.detach()
    return number
