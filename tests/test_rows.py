"""A table that is one test loses no row, and hides no failure."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rows import count_of, each_row


def failing(test: Callable[..., Any], **fixtures: Any) -> BaseExceptionGroup[BaseException]:
    with pytest.raises(BaseExceptionGroup) as told:
        test(**fixtures)
    return told.value


def test_every_row_runs_and_every_failure_is_named() -> None:
    seen: list[object] = []

    @each_row("number", range(5))
    def test(number: int) -> None:
        seen.append(number)
        assert number % 2 == 0, "odd"

    error = failing(test)
    assert seen == [0, 1, 2, 3, 4]
    assert error.message == "2 of 5 rows failed: 1; 3"
    assert [str(below).splitlines()[0] for below in error.exceptions] == ["odd", "odd"]
    assert error.exceptions[0].__notes__ == ["in row 1"]


def test_tables_that_are_stacked_are_multiplied() -> None:
    seen: list[object] = []

    @each_row("a", "xy")
    @each_row(("b", "c"), [(1, 2), pytest.param(3, 4, id="last")], ids=lambda value: f"n{value}")
    def test(a: str, b: int, c: int) -> None:
        seen.append((a, b, c))
        assert a == "x"

    assert failing(test).message == "2 of 4 rows failed: n1-n2-y; last-y"
    assert seen == [("x", 1, 2), ("x", 3, 4), ("y", 1, 2), ("y", 3, 4)]
    assert count_of(test) == 4


def test_what_is_left_are_fixtures() -> None:
    @pytest.mark.parametrize("wire", [1])
    @each_row("b", [1])
    def test(wire: int, b: int, folder: Path) -> None:
        raise AssertionError

    assert list(inspect.signature(test).parameters) == ["wire", "folder"]
    assert [mark.name for mark in vars(test)["pytestmark"]] == ["parametrize"]


def test_each_row_has_a_folder_and_patches_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @each_row("b", [1, 2])
    def test(b: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "TOOLCRIB_ROW" not in os.environ
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setenv("TOOLCRIB_ROW", "1")
        (tmp_path / "made").touch()

    test(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert "TOOLCRIB_ROW" not in os.environ


@each_row("number", [1, 2])
async def test_a_coroutine_is_awaited(number: int) -> None:
    @each_row("below", [number])
    async def test(below: int) -> None:
        raise ValueError(below)

    with pytest.raises(BaseExceptionGroup, match=f"1 of 1 rows failed: {number}"):
        await test()


def test_a_row_that_skips_has_failed() -> None:
    @each_row("number", [1])
    def test(number: int) -> None:
        pytest.skip("not here")

    (error,) = failing(test).exceptions
    assert str(error) == "row 1 skips: not here"


def test_a_table_without_rows_or_with_a_wrong_name_is_refused() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        each_row("a", [])
    with pytest.raises(AssertionError, match="does not take all of"):
        each_row("b", [1])(lambda a: a)
    with pytest.raises(AssertionError, match="a mark is for a test"):
        each_row("a", [pytest.param(1, marks=pytest.mark.exhaustive)])
