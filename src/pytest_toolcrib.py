"""The pytest plugin: a fixture `cassette`, which records a test's exchanges and replays them.

pytest loads it for everybody who has toolcrib installed, used or not. So it lies outside of the
package, and imports toolcrib only for a test that asks for it: that costs others nothing, and leaves
toolcrib to be imported after whatever measures it (coverage) has begun.
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from toolcrib.testing import Cassette

_ENDED_WELL = pytest.StashKey[bool]()
_ODD = re.compile(r"[^\w.\[\]-]", re.ASCII)
_LONGEST = 100
_HELP = (
    "What cassettes do: once, record where there is no file, else replay it; none, only replay; "
    "all, record all anew. Default: none where CI is set, else once."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("toolcrib")
    group.addoption("--toolcrib-record", choices=("once", "none", "all"), default=None, help=_HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Notes what ended well; not what failed, was expected to, or skipped the rest of itself.

    What Ctrl-C stops comes to no report, and so has not ended well either.
    """
    if call.excinfo is not None:
        item.stash[_ENDED_WELL] = False
    elif call.when == "call":
        item.stash.setdefault(_ENDED_WELL, True)


@pytest.fixture
def cassette_options() -> dict[str, Any]:
    """More arguments for `toolcrib.testing.cassettes`; override it: `{"compare": …}`."""
    return {}


@pytest.fixture
def cassette(
    request: pytest.FixtureRequest, cassette_options: dict[str, Any]
) -> Generator[Cassette]:
    """Give a test a transport that plays the file `cassettes/<module>/<test>.json` next to its module.

    A test that failed leaves the file as it was.
    """
    if _ENDED_WELL in request.node.stash:
        del request.node.stash[_ENDED_WELL]  # of an attempt before this one
    testing = importlib.import_module("toolcrib.testing")
    record = request.config.getoption("--toolcrib-record")
    options = cassette_options if record is None else {**cassette_options, "record": record}
    with testing.cassette(_path(request.node), **options) as tape:
        yield tape
        if not request.node.stash.get(_ENDED_WELL, False):
            tape.discard()


def _path(item: pytest.Item) -> Path:
    names = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    name = ".".join([*names, item.name])
    safe = _ODD.sub("_", name)
    mixed = safe.partition("[")[2]  # `[a]` and `[A]` are one file on some machines
    if safe != name or mixed != mixed.lower() or len(safe) > _LONGEST:  # two must not become one
        safe = f"{safe[:_LONGEST]}-{zlib.crc32(name.encode()):08x}"
    return item.path.parent / "cassettes" / item.path.stem / f"{safe}.json"
