"""How much is tried of what could be: a seeded sample on each change, the whole in `make test-all`.

A test that draws its cases says how many make the whole, and `sample` how many of them run now.
In rooms whose tests start workers, servers and browsers, `make test` runs one test of three, always the
same ones; `make cov` and `make test-all` run all of them, and so does pytest by itself.
Hypothesis draws the same examples in each sample, and in CI, so that a change fails by what it changed;
`make test-all` by hand draws new ones each time.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")

WHOLE = os.environ.get("TOOLCRIB_FUZZ") == "all"
PART = 48
SLOW_ROOMS = ("bridges", "chat", "cli", "clients", "durable", "openapi", "real", "servers")
_SLOW = tuple(f"{room}/" for room in SLOW_ROOMS)


def sample(whole: int, *, part: int = PART) -> int:
    """Return how many of `whole` cases run now: all, or one of `part` of them, rounded up."""
    return whole if WHOLE else -(-whole // part)


def sampled(table: Iterable[Case], *, part: int = PART) -> list[Case]:
    """Return as many cases of a table, the same ones in each run."""
    cases = list(table)
    chosen = random.Random(0).sample(range(len(cases)), sample(len(cases), part=part))  # noqa: S311
    return [cases[at] for at in sorted(chosen)]


def whole_only(*values: Any) -> Any:
    """Return a row of `parametrize`, or a parameter of a fixture, for `make test-all` alone."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def use_profile() -> None:
    """Have Hypothesis draw as many examples where a test does not say how many."""
    name = "whole" if WHOLE else "sample"
    same = not WHOLE or "CI" in os.environ
    settings.register_profile(name, max_examples=sample(100), derandomize=same, deadline=None)
    settings.load_profile(name)


def is_slow(test: str) -> bool:
    """Return whether `make test` leaves a test, by its node id, to the longer runs."""
    _tests, _, path = test.partition("/")
    return path.startswith(_SLOW) and zlib.crc32(test.encode()) % 3 > 0
