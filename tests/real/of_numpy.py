"""numpy: its own docstring style, no hints at run time, arrays that are lists in JSON."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from real.hinted import Case, Refusal, hinted

Row = list[float]
Matrix = list[list[float]]


def _plain(value: Any) -> Any:
    """Arrays and numpy's numbers as lists and numbers."""
    return [_plain(v) for v in value] if isinstance(value, tuple) else np.asarray(value).tolist()


CASES = (
    Case(
        hinted(
            np.linspace,
            Row,
            {"start": float, "stop": float, "num": int, "endpoint": bool},
            through=_plain,
        ),
        {"start": 2, "stop": 3, "num": 5},
        lambda: _plain(np.linspace(2, 3, num=5)),
    ),
    Case(
        hinted(np.geomspace, Row, {"start": float, "stop": float, "num": int}, through=_plain),
        {"start": 1, "stop": 1000, "num": 4},
        lambda: _plain(np.geomspace(1, 1000, 4)),
    ),
    Case(
        hinted(
            np.interp,
            Row,
            {"x": Row, "xp": Row, "fp": Row, "left": float | None, "right": float | None},
            through=_plain,
        ),
        {"x": [0, 1.5, 9], "xp": [1, 2], "fp": [3, 2], "right": -1},
        lambda: _plain(np.interp([0, 1.5, 9], [1, 2], [3, 2], right=-1)),
    ),
    Case(
        hinted(
            np.percentile,
            float | Row,
            {"a": Row, "q": float | Row, "method": Literal["linear", "lower", "higher", "nearest"]},
            through=_plain,
        ),
        {"a": [10, 7, 4], "q": 50},
        lambda: _plain(np.percentile([10, 7, 4], 50)),
    ),
    Case(
        hinted(np.std, float, {"a": Row, "ddof": float}, through=_plain),
        {"a": [1, 2, 3, 4], "ddof": 1},
        lambda: _plain(np.std([1, 2, 3, 4], ddof=1)),
    ),
    Case(
        hinted(
            np.average,
            Row,
            {"a": Matrix, "axis": int | None, "weights": Row | None},
            through=_plain,
        ),
        {"a": [[0, 1], [2, 3]], "axis": 1, "weights": [0.25, 0.75]},
        lambda: _plain(np.average([[0, 1], [2, 3]], axis=1, weights=[0.25, 0.75])),
    ),
    Case(
        hinted(
            np.convolve,
            Row,
            {"a": Row, "v": Row, "mode": Literal["full", "same", "valid"]},
            through=_plain,
        ),
        {"a": [1, 2, 3], "v": [0, 1, 0.5], "mode": "same"},
        lambda: _plain(np.convolve([1, 2, 3], [0, 1, 0.5], "same")),
    ),
    Case(
        hinted(np.polyval, Row, {"p": Row, "x": Row}, through=_plain),
        {"p": [3, 0, 1], "x": [5]},
        lambda: _plain(np.polyval([3, 0, 1], [5])),
    ),
    Case(
        hinted(np.cumsum, Row, {"a": Matrix, "axis": int | None}, through=_plain),
        {"a": [[1, 2], [3, 4]]},
        lambda: _plain(np.cumsum([[1, 2], [3, 4]])),
    ),
    Case(
        hinted(np.diff, Row, {"a": Row, "n": int}, through=_plain),
        {"a": [1, 2, 4, 7, 0], "n": 2},
        lambda: _plain(np.diff([1, 2, 4, 7, 0], n=2)),
    ),
    Case(
        hinted(
            np.clip, Row, {"a": Row, "a_min": float | None, "a_max": float | None}, through=_plain
        ),
        {"a": [1, 5, 9], "a_min": 2, "a_max": 8},
        lambda: _plain(np.clip([1, 5, 9], 2, 8)),
    ),
    Case(
        hinted(np.trapezoid, float, {"y": Row, "x": Row | None, "dx": float}, through=_plain),
        {"y": [1, 2, 3], "x": [4, 6, 8]},
        lambda: _plain(np.trapezoid([1, 2, 3], [4, 6, 8])),
    ),
    Case(
        hinted(
            np.histogram,
            tuple[list[int], Row],
            {"a": Row, "bins": int | Row, "range": tuple[float, float] | None},
            through=_plain,
        ),
        {"a": [1, 2, 1], "bins": [0, 1, 2, 3]},
        lambda: _plain(np.histogram([1, 2, 1], bins=[0, 1, 2, 3])),
    ),
    Case(
        hinted(
            np.searchsorted,
            int,
            {"a": Row, "v": float, "side": Literal["left", "right"]},
            through=_plain,
        ),
        {"a": [11, 12, 13], "v": 13, "side": "right"},
        lambda: _plain(np.searchsorted([11, 12, 13], 13, side="right")),
    ),
    Case(
        hinted(
            np.setdiff1d,
            list[int],
            {"ar1": list[int], "ar2": list[int], "assume_unique": bool},
            through=_plain,
        ),
        {"ar1": [1, 2, 3, 2], "ar2": [3, 4]},
        lambda: _plain(np.setdiff1d([1, 2, 3, 2], [3, 4])),
    ),
    Case(
        hinted(np.isclose, list[bool], {"a": Row, "b": Row, "rtol": float}, through=_plain),
        {"a": [1e10, 1e-7], "b": [1.00001e10, 1e-8]},
        lambda: _plain(np.isclose([1e10, 1e-7], [1.00001e10, 1e-8])),
    ),
    Case(
        hinted(np.base_repr, str, {"number": int, "base": int, "padding": int}),
        {"number": 255, "base": 16},
        lambda: np.base_repr(255, 16),
    ),
)

REFUSED = (
    Refusal(np.base_repr, ("base_repr", "number", "no type hint")),
    Refusal(
        hinted(np.median, float, {"a": np.ndarray[Any, np.dtype[np.float64]]}), ("median", "'a'")
    ),
    Refusal(np.median, ("median",)),
)
