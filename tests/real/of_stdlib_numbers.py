"""Numbers, of the standard library: statistics, mathematics, searching, check sums."""

from __future__ import annotations

import binascii
import bisect
import colorsys
import heapq
import math
import statistics
from decimal import Decimal
from typing import Literal

from real.hinted import Case, hinted

Numbers = list[float]
Words = list[str]

CASES = (
    Case(
        hinted(statistics.fmean, float, {"data": Numbers, "weights": Numbers | None}),
        {"data": [1, 2.5], "weights": [3, 1]},
        lambda: statistics.fmean([1, 2.5], [3, 1]),
    ),
    Case(
        hinted(statistics.mean, Decimal, {"data": list[Decimal]}),
        {"data": ["0.1", "0.2"]},
        lambda: statistics.mean([Decimal("0.1"), Decimal("0.2")]),
    ),
    Case(
        hinted(
            statistics.quantiles,
            Numbers,
            {"data": Numbers, "n": int, "method": Literal["exclusive", "inclusive"]},
        ),
        {"data": [1, 2, 4, 8], "method": "inclusive"},
        lambda: statistics.quantiles([1, 2, 4, 8], method="inclusive"),
    ),
    Case(
        hinted(statistics.mode, str, {"data": Words}),
        {"data": ["red", "blue", "red"]},
        lambda: statistics.mode(["red", "blue", "red"]),
    ),
    Case(
        hinted(
            statistics.linear_regression,
            tuple[float, float],
            {"x": Numbers, "y": Numbers, "proportional": bool},
        ),
        {"x": [1, 2, 3], "y": [2, 4, 6.5]},
        lambda: statistics.linear_regression([1, 2, 3], [2, 4, 6.5]),
    ),
    Case(
        hinted(statistics.median_grouped, float, {"data": Numbers, "interval": float}),
        {"data": [52, 52, 53, 54], "interval": 2},
        lambda: statistics.median_grouped([52, 52, 53, 54], 2),
    ),
    Case(hinted(math.comb, int, {"n": int, "k": int}), {"n": 5.0, "k": 2}, lambda: math.comb(5, 2)),
    Case(
        hinted(math.dist, float, {"p": Numbers, "q": Numbers}),
        {"p": [0, 0], "q": [3, 4]},
        lambda: math.dist([0, 0], [3, 4]),
    ),
    Case(
        hinted(math.isclose, bool, {"a": float, "b": float, "rel_tol": float, "abs_tol": float}),
        {"a": 1, "b": 1.0000001, "rel_tol": 1e-6},
        lambda: math.isclose(1, 1.0000001, rel_tol=1e-6),
    ),
    Case(
        hinted(bisect.bisect_left, int, {"a": Numbers, "x": float, "lo": int, "hi": int | None}),
        {"a": [1, 3, 5], "x": 4},
        lambda: bisect.bisect_left([1, 3, 5], 4),
    ),
    Case(
        hinted(heapq.nsmallest, Numbers, {"n": int, "iterable": Numbers}),
        {"n": 2, "iterable": [5, 1, 4]},
        lambda: heapq.nsmallest(2, [5, 1, 4]),
    ),
    Case(
        hinted(
            colorsys.rgb_to_hls, tuple[float, float, float], {"r": float, "g": float, "b": float}
        ),
        {"r": 0.2, "g": 0.4, "b": 0.4},
        lambda: colorsys.rgb_to_hls(0.2, 0.4, 0.4),
    ),
    Case(
        hinted(binascii.crc32, int, {"data": bytes, "crc": int}),
        {"data": "toolcrib"},
        lambda: binascii.crc32(b"toolcrib"),
    ),
)
