"""Shared by all tests: where the data from outside lies, and where they write."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from late import import_slow_ones_late
from postgres import databases, own_server, postgres
from rows import count_of
from samples import WHOLE, is_slow, use_profile

from toolcrib.clients.local import model_path
from toolcrib.clients.local.model import NEEDLE, model_at
from toolcrib.clients.local.needle import needle_at

__all__ = ["databases", "own_server", "postgres"]

ROOT = Path(__file__).parents[1]
YOUNG = 5_000
"""New objects after which the garbage collector looks at them: as most tests make fewer, few wait."""
OPEN, LEFT_BY_A_TEST, LEFT_BY_A_FILE = Path("/proc/self/fd"), 64, 48
BEFORE = pytest.StashKey[int]()
MEMORY, ROOM = Path("/dev/shm"), 2 * 2**30  # noqa: S108  a folder in memory, on Linux


def is_roomy(folder: Path) -> bool:
    """Return whether temporary files may lie in a folder, programs among them."""
    if not folder.is_dir():
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC


def pytest_configure() -> None:
    """Undo what a shell does to tests in the background (they ignore SIGINT); choose the samples.

    A sample writes in memory where it can, as a disk takes most of the time of a thousand databases.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_profile()
    import_slow_ones_late()
    if not WHOLE and "TMPDIR" not in os.environ and is_roomy(MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at thousands of tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    items.sort(
        key=lambda item: item.path.name != "test_wheel.py"
    )  # minutes, and nobody waits for it


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str:
    """Say how many rows the tests run: with `each_row` they are more than the tests."""
    functions = [item.function for item in items if isinstance(item, pytest.Function)]
    return f"{sum(map(count_of, functions)):,} rows in {len(items):,} tests"


def in_ci_nothing_is_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip: in CI every real part that a test asks for has to be there."""
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.longrepr = f"in CI this must be there: {told}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave alone what a `skipif` says of the system itself, as that root may do everything."""
    report = yield
    if item.get_closest_marker("skipif") is None:
        in_ci_nothing_is_missing(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell of a failure at once in CI: of a run that is ended from outside nobody sees the summary."""
    if report.failed and os.environ.get("CI") and "PYTEST_XDIST_WORKER" not in os.environ:
        told = f"{report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}"
        print(f"\nFAILED {told}", file=sys.__stderr__, flush=True)


def files_open() -> int:
    """How many files and connections this process holds; where no system tells, none."""
    return len(os.listdir(OPEN)) if OPEN.is_dir() else 0  # noqa: PTH208  asked after each test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what is open before a test begins."""
    item.stash[BEFORE] = files_open()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Hold that a test closes what it opens, or leaves it to the garbage collector."""
    yield
    check_open(item.stash[BEFORE] + LEFT_BY_A_TEST)


@pytest.fixture(scope="module", autouse=True)
def few_are_left_open() -> Iterator[None]:
    """Hold the same of the tests of a file: two that each of them leaves are hundreds in the end."""
    before = files_open()
    yield
    check_open(before + LEFT_BY_A_FILE)


def check_open(most: int) -> None:
    if files_open() > most:
        gc.collect()
        left = files_open()
        assert left <= most, (
            f"{left} files are open, {most} may be: close logs, loops and databases"
        )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    in_ci_nothing_is_missing(report)
    return report


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded traffic and retrieval sets; never copied into the project."""
    data = Path(os.environ.get("TOOLCRIB_SHARED", ROOT.parent / "shared")) / "data"
    if not data.is_dir():
        pytest.skip(f"no data at {data}: set TOOLCRIB_SHARED")
    return data


@pytest.fixture(scope="session")
def embedded_model() -> Iterator[Path]:
    """The file of the embedded model, which is held here, Needle too: each is loaded once for all."""
    path = model_path()
    if not path.is_file():
        pytest.skip("the embedded model: run `toolcrib local install`")
    held = model_at(path), needle_at(model_path(NEEDLE))
    yield path
    del held
