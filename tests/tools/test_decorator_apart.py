"""What may ask for a process of its own, and what is refused when it is decorated."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
from rows import each_row

from toolcrib import ALL, CallContext, capability, tool
from toolcrib.errors import DefinitionError


def plain(a: int, ctx: CallContext) -> int:
    return a


@capability
class Clock(Protocol):
    def now(self) -> float: ...


async def waits() -> int:
    return 1


async def streams() -> AsyncIterator[int]:
    yield 1


def needs(clock: Clock) -> int:
    return 1


def might_use(clock: Clock | None = None) -> int:
    return 1


class Shop:
    def open(self) -> int:
        return 1

    @staticmethod
    def closed(a: int) -> int:
        return a


class Classy:
    async def run(self) -> int:
        return 1


def local() -> Any:
    def inside() -> int:
        return 1

    return inside


def of_no_module() -> Any:
    made: dict[str, Any] = {"__name__": "nowhere"}
    exec("def built() -> int:\n    return 1\n", made)  # noqa: S102
    return made["built"]


def unnamed() -> Any:
    function = lambda: 1  # noqa: E731
    function.__qualname__ = "<lambda>"
    return function


@pytest.mark.parametrize("function", [plain, Shop.closed, functools.wraps(plain)(lambda **k: 1)])
def test_what_may(function: Any) -> None:
    apart = tool(visible=ALL, description="It runs.", name="t", subprocess=True)(function)
    here = tool(visible=ALL, description="It runs.", name="t")(function)
    assert (apart.subprocess, here.subprocess, apart.blocking) == (True, False, True)
    assert apart.definition.digest == here.definition.digest  # where it runs is not what it is
    assert apart.renamed("other").subprocess


@each_row(
    ("target", "text"),
    [
        (waits, "waits: .* it is async, .* write `def` instead of `async def`"),
        (streams, "streams: .* it is async"),
        (needs, "needs: .* Clock is injected, and lives in this process; create it inside"),
        (might_use, "might_use: .* Clock is injected"),
        (Shop().open, "Shop.open: .* its instance lives in this process"),
        (Classy, "Classy: .* a class tool runs in the event loop; make a tool of a plain function"),
        (local(), "local.<locals>.inside: .* cannot find it; define it with `def` at the top"),
        (unnamed(), "<lambda>: .* cannot find it"),
        (of_no_module(), "built: .* its module is not in a file"),
    ],
)
def test_what_may_not(target: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        tool(visible=ALL, description="It runs.", name="t", subprocess=True)(target)


def test_a_program_without_a_file() -> None:
    program = (
        "from toolcrib import ALL, tool\n"
        "from toolcrib.errors import DefinitionError\n"
        "def f() -> int: ...\n"
        "try:\n"
        "    tool(visible=ALL, subprocess=True)(f)\n"
        "except DefinitionError as error:\n"
        "    print(error)\n"
    )
    path = "import sys; sys.path[:] = sys.argv[1:]\n"
    said = subprocess.run(
        [sys.executable, "-c", path + program, *sys.path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "f: subprocess=True is not possible: its module is not in a file" in said.stdout
