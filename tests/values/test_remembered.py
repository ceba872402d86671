"""What was made of texts is remembered within a number of bytes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.values.remembered import remembered


def test_a_text_is_worked_on_once() -> None:
    asked: list[tuple[str, int]] = []

    @remembered(10_000)
    def repeat(text: str, count: int) -> str:
        asked.append((text, count))
        return text * count

    assert [repeat("a", 2), repeat("a", 2), repeat("a", 3)] == ["aa", "aa", "aaa"]
    assert asked == [("a", 2), ("a", 3)]


def test_none_and_false_are_remembered_and_errors_are_not() -> None:
    asked: list[str] = []

    @remembered(10_000)
    def check(text: str) -> None:
        asked.append(text)
        if text == "wrong":
            raise ValueError(text)

    for text in ("fine", "fine", "wrong", "wrong"):
        if text == "wrong":
            with pytest.raises(ValueError, match="wrong"):
                check(text)
        else:
            check(text)
    assert asked == ["fine", "wrong", "wrong"]


@given(st.lists(st.integers(0, 4_000), max_size=60))
def test_what_is_kept_stays_within_its_bytes(lengths: list[int]) -> None:
    most, made = 10_000, list[int]()

    @remembered(most, times=2, each=100)
    def measure(text: str) -> int:
        made.append(len(text))
        return len(text)

    kept: dict[int, int] = {}  # what is there by the rule: what was put in first goes first
    for length in lengths:
        before = len(made)
        assert measure("x" * length) == length
        assert (len(made) == before) is (length in kept)
        if length not in kept:
            kept[length] = 100 + 2 * sys.getsizeof("x" * length)
            while sum(kept.values()) > most:
                del kept[next(iter(kept))]


def test_threads_that_come_at_once_are_told_the_same() -> None:
    @remembered(5_000)
    def double(text: str) -> str:
        return text * 2

    texts = [str(n % 20) for n in range(2_000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(double, texts)) == [text * 2 for text in texts]
