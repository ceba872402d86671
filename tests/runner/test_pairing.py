"""Which part was which: what stayed, was moved, copied or edited, by numbers alone."""

from __future__ import annotations

import pytest

from toolcrib.runner.pairing import between, most_voted, pairs


def numbered(text: str) -> dict[int, int]:
    return dict(enumerate(map(ord, text)))


@pytest.mark.parametrize(
    ("before", "now", "found", "copied"),
    [
        ("abc", "abc", {0: 0, 1: 1, 2: 2}, {}),
        ("abc", "bc", {0: 1, 1: 2}, {}),
        ("abc", "xabc", {1: 0, 2: 1, 3: 2}, {}),
        ("abc", "cab", {0: 2, 1: 0, 2: 1}, {}),
        ("aab", "ab", {0: 0, 1: 2}, {}),
        ("ab", "abb", {0: 0, 1: 1}, {2: 1}),
        ("ab", "axb", {0: 0, 2: 1}, {}),
        ("", "a", {}, {}),
    ],
)
def test_what_is_the_same_is_found(
    before: str, now: str, found: dict[int, int], copied: dict[int, int]
) -> None:
    made = pairs(numbered(now), numbered(before), lambda _step, _source: True, is_list=True)
    assert made == (found, copied)


@pytest.mark.parametrize(
    ("found", "now", "before", "rest"),
    [
        ([], 2, 2, {0: 0, 1: 1}),
        ([], 2, 3, {}),
        ([(1, 1)], 3, 3, {0: 0, 2: 2}),
        ([(1, 1)], 3, 4, {0: 0}),
        ([(0, 1), (1, 0)], 3, 3, {}),
    ],
)
def test_what_stands_between_the_same_two_was_there(
    found: list[tuple[int, int]], now: int, before: int, rest: dict[int, int]
) -> None:
    assert between(found, now, before) == rest


def test_a_tie_tells_nothing() -> None:
    assert most_voted({(0, 1): 3, (0, 2): 1, (1, 2): 2}) == {0: 1, 1: 2}
    assert most_voted({(0, 1): 2, (0, 2): 2}) == {}
    assert most_voted({(0, 1): 2, (1, 1): 2}) == {}
