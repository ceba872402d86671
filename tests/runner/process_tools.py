"""Tools that run in a process of their own; what they do there, no test would survive here."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from datetime import date
from functools import partial
from typing import Any

from toolcrib import ALL, CallContext, Image, Link, ToolContent, ToolError, tool
from toolcrib.errors import CapabilityError, MissingExtraError, OutcomeUnknown

CANARY = "canary-9f1e"
apart = partial(tool, visible=ALL, subprocess=True)


def halve(day: date, count: int = 10) -> dict[str, Any]:
    """No tool, but one can be made of it."""
    return {"weekday": day.isoweekday(), "half": count // 2, "pid": os.getpid()}


@apart(secret=["key"])
def where(key: str, number: float, ctx: CallContext) -> dict[str, Any]:
    """Tell where it runs, and what it was given."""
    print(CANARY, key)  # noqa: T201
    print(CANARY, key, file=sys.stderr)  # noqa: T201
    ctx.progress({"number": number})
    ctx.progress("second")
    return {
        "pid": os.getpid(),
        "leads": os.getpgid(0) == os.getsid(0) == os.getpid(),
        "number": number,
        "key": ctx.idempotency_key,
        "caller": ctx.caller.id,
        "roles": list(ctx.caller.roles),
        "left": None if ctx.deadline is None else ctx.deadline - time.monotonic(),
        "variable": os.environ.get("TOOLCRIB_TEST_APART"),
        "input": sys.stdin.read(),
    }


class PanicError(BaseException):
    """As a library in Rust raises it."""


WAYS_TO_DIE: dict[str, Any] = {
    "raises": lambda: _raise(ValueError(CANARY)),
    "panics": lambda: _raise(PanicError(CANARY)),
    "sys.exit": lambda: sys.exit(CANARY),
    "interrupt": lambda: _raise(KeyboardInterrupt(CANARY)),
    "generator exit": lambda: _raise(GeneratorExit(CANARY)),
    "stop iteration": lambda: next(iter(())),
    "memory": lambda: bytearray(1 << 60),
    "recursion": lambda: _deep(0),
    "exit 3": lambda: os._exit(3),
    "exit 0": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "whole group": lambda: os.killpg(0, signal.SIGTERM),
    "closes all": lambda: os.closerange(3, 256),
    "junk": lambda: _junk(b"junk, and more junk than a head of a frame holds"),
    "junk result": lambda: _junk(b"e" + (9).to_bytes(8, "big") + b"{'a': 1}\n"),
    "endless ending": lambda: _junk(b"e" + (1 << 60).to_bytes(8, "big")),
}


@apart()
def dies(how: str) -> int:
    """Die."""
    WAYS_TO_DIE[how]()
    return 1


TOLD: dict[str, BaseException] = {
    "told": ToolError("no such order", retryable=False),
    "capability": CapabilityError("the shop is closed"),
    "quoted": ToolError("the shop refused", model_text=CANARY),
    "long": ToolError("\0" * 700_000, model_text="é" * 6_000_000),
    "lost": OutcomeUnknown("the server is gone"),
    "extra": MissingExtraError("kit", "units"),
}


@apart()
def ends(how: str) -> Any:
    """End in a way that is told."""
    if how in TOLD:
        raise TOLD[how]
    match how:
        case "large":
            return "x" * 10_000_000
        case "large part":
            _junk(b"p" + (1 << 40).to_bytes(8, "big"))
        case "nan":
            return {"a": float("nan")}
        case "object":
            return {"a": object()}
        case "iterator":
            return iter([1, 2])
    return None


@tool(visible=["count"], subprocess=True)
def looks(count: int, size: int = 9) -> ToolContent[dict[str, Any]]:
    """Give content beside a value."""
    pictures = [Image.from_bytes("image/png", CANARY.encode() * size)] * count
    return ToolContent({"count": count, "canary": CANARY}, ["a text", *pictures, Link("demo://1")])


@apart()
def lingers(ctx: CallContext, busy: bool = False, returns: bool = False) -> int:
    """Start another process, say which, and go on for ever; or return, and leave it behind."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ctx.progress([os.getpid(), started.pid])
    if busy:
        re.match("(a+)+$", "a" * 60 + "b")  # holds on to the interpreter: no thread gets its turn
    while not returns:
        signal.pause()
    return 1


def _raise(raised: BaseException) -> None:
    raise raised


def _deep(level: int) -> int:
    return _deep(level + 1) + 1


def _junk(data: bytes) -> None:
    for descriptor in range(3, 32):
        try:
            os.write(descriptor, data)
        except OSError:
            continue
