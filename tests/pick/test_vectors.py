from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.pick.vectors import Matrix, QueryVectors, best_of, query_vectors

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")


def units(count: int, dimensions: int, seed: int = 0) -> Any:
    rows = np.random.default_rng(seed).standard_normal((count, dimensions)).astype("float32")
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_of_many_tools_the_nearest_are_among_the_likely() -> None:
    rows = units(20_000, 64)
    matrix, asked = (
        Matrix.of(rows, [1] * len(rows)),
        QueryVectors(units(1, 64, 1)[0], units(0, 64), 0),
    )
    likely = best_of(matrix.glance(asked), 1_000)
    assert len(likely) == 1_000
    best = set(np.argsort(-(rows @ asked.whole))[:20].tolist())
    assert best <= set(likely.tolist())
    exact = dict(zip(likely.tolist(), matrix.nearness(asked, likely).tolist(), strict=True))
    everywhere = matrix.nearness(asked, None)
    assert all(exact[position] == everywhere[position] for position in best)


def test_a_small_catalog_needs_no_glance() -> None:
    rows = units(100, 8)
    assert Matrix.of(rows, [1] * 100).glance(QueryVectors(rows[0], rows[:0], 0)) is None


@pytest.mark.parametrize("count", [50, 9_000])
def test_a_tool_is_as_near_as_its_nearest_text(count: int) -> None:
    rows = units(3 * count, 16)
    matrix = Matrix.of(rows, [1, 3, 2] * (count // 2))
    asked = QueryVectors(rows[2], rows[:0], 0)
    near = matrix.nearness(asked, None)
    assert near[1] == pytest.approx(1, abs=1e-3)
    some = np.array([0, 1, 5])
    assert matrix.nearness(asked, some).tolist() == near[some].tolist()
    assert matrix.texts_of(asked, 1).argmax() == 1
    glance = matrix.glance(asked)
    assert glance is None or 1 in best_of(glance, 500).tolist()


@each_row(
    ("weights", "count", "best"),
    [
        ([3, 1, 2], 2, [0, 2]),
        ([1, 2, 2, 2, 0], 2, [1, 2]),
        ([1, 3, 1, 1], 3, [0, 1, 2]),
        ([5, 4], 2, [0, 1]),
        ([], 3, []),
    ],
)
def test_the_best_of_an_array_the_first_of_equal_ones(
    weights: list[float], count: int, best: list[int]
) -> None:
    assert best_of(np.array(weights), count).tolist() == best


def test_examples_come_after_their_tools_own_row() -> None:
    own, more = units(3, 4), units(3, 4, 1)
    matrix = Matrix.interleaved(own, more, [2, 0, 1])
    expected = [own[0], more[0], more[1], own[1], own[2], more[2]]
    assert (matrix.rows == np.stack(expected)).all()
    assert matrix.starts is not None
    assert matrix.starts.tolist() == [0, 3, 4]


def test_a_request_of_turns_and_parts() -> None:
    rows = np.array([[1, 0], [0, 1], [0, -1], [0.6, 0.8]], "float32")
    asked = query_vectors(rows, 2, 1.0)
    assert asked.whole.tolist() == [1, 0]
    assert asked.parts.tolist() == rows[3:].tolist()


def test_what_is_not_read_of_a_request_is_as_near_to_all() -> None:
    rows = units(20, 8)
    whole, half = query_vectors(rows[:1], 0, 1.0), query_vectors(rows[:1], 0, 0.5)
    matrix = Matrix.of(rows, [1] * 20)
    near = matrix.nearness(half, None)
    assert near.tolist() == pytest.approx((0.5 * matrix.nearness(whole, None) + 0.15).tolist())
    assert matrix.texts_of(half, 3).tolist() == [near[3]]
