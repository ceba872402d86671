"""Be a Python program in a fork of a process that has imported what it needs."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import runpy
import sys
import termios
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType


def become(
    arguments: Sequence[str], cwd: str, env: Mapping[str, str], streams: Sequence[int]
) -> None:
    """Be what `python ARGUMENTS` would be, in the fork."""
    gc.freeze()  # what was imported before is no garbage, and is not looked at again
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # for Ctrl-C, when it is typed there
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            os.fdopen(number, mode, closefd=False), encoding="utf-8", line_buffering=number == 2
        )
        for number, mode in enumerate(("rb", "wb", "wb"))
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if env.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    kind, *rest = arguments
    where = {"-c": "", "-m": cwd}.get(kind, str(Path(kind).parent))
    sys.path[:0] = [where, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))  # noqa: S102  that is what it is for
    elif kind == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(kind, run_name="__main__")
