"""Run a table of cases as one test that names every row that fails.

`@each_row` is written and stacked as `@pytest.mark.parametrize` is, but the table is one test item and
not an item a row: a table of a thousand recordings costs what its rows cost. All rows run, and their
failures are raised together, each with its traceback. Each row has a `tmp_path` and a `monkeypatch` of
its own; other fixtures are shared. A row that skips has failed: it has no place in a table.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from named import named

Test = Callable[..., Any]
Names = Callable[[Any], object] | Iterable[object] | None
Failed = list[tuple[str, BaseException]]
PARAM = type(pytest.param())


class Row(NamedTuple):
    """What one row gives a test, and how to say which row that is once it failed."""

    arguments: dict[str, Any]
    told: tuple[Callable[[], str], ...] = ()

    @property
    def name(self) -> str:
        return "-".join(tell() for tell in self.told)


def each_row(
    names: str | Sequence[str], table: Iterable[Any], ids: Names = None
) -> Callable[[Test], Test]:
    """Run a test with each row of `table`; stacked, with each row of the one table and the other."""
    single = isinstance(names, str) and "," not in names
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    cases = [(given,) if single else given for given in table]
    assert cases, f"a table without rows tests nothing: {names}"
    fixed = [None] * len(cases) if ids is None or callable(ids) else list(ids)
    of_value = ids if callable(ids) else named
    made = [_row(words, case, name, of_value) for case, name in zip(cases, fixed, strict=True)]

    def decorate(test: Test) -> Test:
        inner, below = getattr(test, "tabled", (test, [Row({})]))
        both = [
            Row(low.arguments | row.arguments, low.told + row.told) for row in made for low in below
        ]
        whole: Test = _one_test(inner, both)
        return whole

    return decorate


def count_of(test: object) -> int:
    """Return how many rows a test function runs."""
    return len(getattr(test, "tabled", ("", [""]))[1])


def _row(words: list[str], case: Any, name: object, of_value: Callable[[Any], object]) -> Row:
    if len(case) == 1 and isinstance(case[0], PARAM):
        (case,) = case
    if isinstance(case, PARAM):
        assert not case.marks, "a mark is for a test, not for a row"
        case, name = case.values, name or case.id

    def tell() -> str:
        if name is not None:
            return str(name)
        said = [(of_value(value), value) for value in case]
        return "-".join(named(value if word is None else word) for word, value in said)

    return Row(dict(zip(words, case, strict=True)), (tell,))


def _one_test(test: Any, table: list[Row]) -> Any:
    """Return the test that runs all rows: it asks for the fixtures of `test`."""
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def whole(*args: Any, **fixtures: Any) -> None:
            failed: Failed = []
            for at, row in enumerate(table):
                with _running(row, at, fixtures, failed) as own:
                    await test(*args, **own, **row.arguments)
            _raise(failed, len(table))
    else:

        @functools.wraps(test)
        def whole(*args: Any, **fixtures: Any) -> None:
            failed: Failed = []
            for at, row in enumerate(table):
                with _running(row, at, fixtures, failed) as own:
                    test(*args, **own, **row.arguments)
            _raise(failed, len(table))

    asked = inspect.signature(test)
    given = table[0].arguments.keys()
    assert given <= asked.parameters.keys(), f"{test.__name__} does not take all of {list(given)}"
    kept = [word for name, word in asked.parameters.items() if name not in given]
    whole.__dict__["__signature__"] = asked.replace(parameters=kept)
    whole.__dict__["tabled"] = (test, table)
    return whole


@contextmanager
def _running(
    row: Row, at: int, fixtures: dict[str, Any], failed: Failed
) -> Iterator[dict[str, Any]]:
    """Give one row its own folder and patches, and keep the failure that it ends with."""
    own = dict(fixtures)
    if folder := fixtures.get("tmp_path"):
        own["tmp_path"] = folder / f"row-{at}"
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in fixtures:
            own["monkeypatch"] = patch
        try:
            yield own
        except pytest.skip.Exception as skipped:
            failed.append((row.name, AssertionError(f"row {row.name} skips: {skipped}")))
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  raised after the last row
            error.add_note(f"in row {row.name}")
            failed.append((row.name, error))


def _raise(failed: Failed, count: int) -> None:
    if failed:
        told = "; ".join(name for name, _ in failed)
        errors = [error for _, error in failed]
        raise BaseExceptionGroup(f"{len(failed)} of {count} rows failed: {told}", errors)
