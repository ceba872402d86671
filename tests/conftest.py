"""Shared by all tests: where the data from outside lies."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from rows import count_of
from samples import use_profile

from toolcrib.clients.local import model_path

ROOT = Path(__file__).parents[1]


def pytest_configure() -> None:
    """Undo what a shell does to tests in the background (they ignore SIGINT); choose the samples."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_profile()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at thousands of tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str:
    """Say how many rows the tests run: with `each_row` they are more than the tests."""
    functions = [item.function for item in items if isinstance(item, pytest.Function)]
    return f"{sum(map(count_of, functions)):,} rows in {len(items):,} tests"


def missing(what: str) -> None:
    """Skip for want of a real part; in CI that is a failure instead."""
    if os.environ.get("CI"):
        pytest.fail(f"in CI this must be there: {what}")
    pytest.skip(what)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded traffic and retrieval sets; never copied into the project."""
    data = Path(os.environ.get("TOOLCRIB_SHARED", ROOT.parent / "shared")) / "data"
    if not data.is_dir():
        pytest.skip(f"no data at {data}: set TOOLCRIB_SHARED")
    return data


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The file of the embedded model."""
    path = model_path()
    if not path.is_file():
        missing("the embedded model: run `toolcrib local install`")
    return path
