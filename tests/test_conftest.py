"""In CI a test that would skip fails, whatever part it misses; which tests `make test` leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from children import ENVIRONMENT, run
from conftest import ROOT, pytest_collection_modifyitems
from samples import SLOW_ROOMS, is_slow

PROGRAM = """
import sys
import pytest

def test_whose_part_is_missing():
    pytest.skip("no model")

@pytest.mark.skipif(sys.platform != "none", reason="not on this system")
def test_of_another_system():
    raise AssertionError

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail():
    raise AssertionError
"""

REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"  # the fork has imported the conftest


@pytest.mark.parametrize(
    ("ci", "told"),
    [("1", "1 failed, 1 skipped, 1 xfailed, 1 error"), ("", "3 skipped, 1 xfailed")],
)
def test_a_skip_is_a_failure_in_ci(tmp_path: Path, ci: str, told: str) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "test_extra.py").write_text("import pytest\npytest.importorskip('no_extra')\n")
    hooks = (
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-W",
        REWRITTEN,
        "-c",
        str(ROOT / "pyproject.toml"),
        "--continue-on-collection-errors",
    )
    said = run("-m", "pytest", "-q", *hooks, cwd=tmp_path, env=ENVIRONMENT | {"CI": ci}).stdout
    assert told in said, said
    assert ("in CI this must be there: Skipped: no model" in said) is bool(ci)
    assert ("in CI this must be there: Skipped: could not import 'no_extra'" in said) is bool(ci)


def test_one_test_of_three_is_run_where_they_are_slow() -> None:
    for room in SLOW_ROOMS:
        assert (ROOT / "tests" / room).is_dir()
        tests = [f"tests/{room}/test_it.py::test_it[{row}]" for row in range(300)]
        assert 80 < len([test for test in tests if not is_slow(test)]) < 120
        assert not any(is_slow(test.replace(room, "runner")) for test in tests)


def test_what_is_slow_is_marked() -> None:
    items: Any = [Mock(nodeid=f"tests/{room}/test_it.py::test") for room in (*SLOW_ROOMS, "runner")]
    pytest_collection_modifyitems(items)
    slow = [item.nodeid for item in items if item.add_marker.called]
    assert slow == [item.nodeid for item in items if is_slow(item.nodeid)]
    assert 0 < len(slow) < len(SLOW_ROOMS)
