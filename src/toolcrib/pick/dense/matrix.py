"""A catalog's vectors under one another, and how near a request lies to them.

Rule: of a large catalog every row is read only in part, and whole only the rows that may matter; a
row's result does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toolcrib.pick.scoring.arrays import numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from toolcrib.pick.scoring.arrays import Vectors

_WHOLE = 0.7
_EARLIER = 0.3
_UNREAD = 0.3
"""The cosine of any tool with what is not read of a request: who cannot judge leaves out nothing."""
_MANY = 8_192
"""Rows from which a catalog is large: they are kept in half precision, and searched in two stages."""
_HEAD = 64
"""Dimensions that the first stage reads. WordLlama's vectors are trained to mean as much as they can
in their first 64, 128, …; of the ten nearest of 100,000, 96 % are among the 1,000 best by these."""
_AT_ONCE = 4_096


class QueryVectors(NamedTuple):
    """A request's vector and those of its parts; none for a request of one part.

    They are as long as the part of the request that was read; `unread` is what every tool gets for the
    rest.
    """

    whole: Vectors
    parts: Vectors
    unread: float


def query_vectors(rows: Vectors, earlier: int, read: float) -> QueryVectors:
    """Of the rows of a request, of so many turns before it, and of its parts, in this order.

    `read` is the part of the request that they stand for.
    """
    whole = rows[0]
    if earlier:
        whole = whole + _EARLIER * rows[1 : 1 + earlier].mean(axis=0)
        whole = whole / max(float(whole @ whole) ** 0.5, 1e-9)
    return QueryVectors(whole * read, rows[1 + earlier :] * read, (1 - read) * _UNREAD)


class Matrix(NamedTuple):
    """Unit rows; `starts[i]` is the first of tool i, or None where each has one. Of a large catalog
    `head` is the first dimensions, as much longer as they are of the whole on average."""

    rows: Any
    head: Vectors | None
    starts: NDArray[np.int64] | None

    @staticmethod
    def of(rows: Vectors, counts: Sequence[int]) -> Matrix:
        """`counts[i]` rows, at least one, are of tool i."""
        np = numpy()
        one_each = len(rows) == len(counts)
        starts = None if one_each else np.cumsum(np.array(counts)) - np.array(counts)
        if len(rows) < _MANY:
            return Matrix(rows, None, starts)
        head = np.ascontiguousarray(rows[:, :_HEAD])
        share = float(np.vecdot(head, head).mean())
        return Matrix(rows.astype("float16"), head / max(share, 1e-9), starts)

    @staticmethod
    def interleaved(first: Vectors, more: Vectors, counts: Sequence[int]) -> Matrix:
        """Each tool's own row, then so many of `more`."""
        if not len(more):
            return Matrix.of(first, [1] * len(first))
        before = numpy().cumsum(numpy().array(counts)) - numpy().array(counts)
        own = numpy().arange(len(first)) + before
        rows = numpy().empty((len(first) + len(more), first.shape[1]), "float32")
        is_own = numpy().zeros(len(rows), bool)
        is_own[own] = True
        rows[is_own], rows[~is_own] = first, more
        return Matrix.of(rows, [1 + count for count in counts])

    @property
    def dimensions(self) -> int:
        return int(self.rows.shape[1])

    def glance(self, asked: QueryVectors) -> Vectors | None:
        """How near each tool is, estimated from the first dimensions; None for a small catalog."""
        if self.head is None:
            return None
        vector = asked.whole
        if len(asked.parts):
            vector = _WHOLE * vector + (1 - _WHOLE) * asked.parts.mean(axis=0)
        found = _cosines(self.head, vector[:_HEAD])
        return found if self.starts is None else numpy().maximum.reduceat(found, self.starts)

    def nearness(self, asked: QueryVectors, positions: NDArray[np.int64] | None) -> Vectors:
        """Of the tools at these positions, or of all: the best of their texts."""
        np = numpy()
        if positions is None:
            near = np.concatenate(
                [
                    _near(self.rows[at : at + _AT_ONCE], asked)
                    for at in range(0, len(self.rows), _AT_ONCE)
                ]
            )
            best: Vectors = near if self.starts is None else np.maximum.reduceat(near, self.starts)
            return best
        if self.starts is None:
            return _near(self.rows[positions], asked)
        if not len(positions):
            return _near(self.rows[:0], asked)
        counts = np.diff(self.starts, append=len(self.rows))[positions]
        first = np.cumsum(counts) - counts
        rows = np.repeat(self.starts[positions] - first, counts) + np.arange(counts.sum())
        found: Vectors = np.maximum.reduceat(_near(self.rows[rows], asked), first)
        return found

    def texts_of(self, asked: QueryVectors, tool: int) -> Vectors:
        """How near each text of one tool is."""
        if self.starts is None:
            return _near(self.rows[tool : tool + 1], asked)
        end = self.starts[tool + 1] if tool + 1 < len(self.starts) else len(self.rows)
        return _near(self.rows[self.starts[tool] : end], asked)


def _near(rows: Any, asked: QueryVectors) -> Vectors:
    exact = rows.astype("float32", copy=False)
    near = _cosines(exact, asked.whole)
    if len(asked.parts):
        parts = _cosines(exact, asked.parts[:, None])
        near = _WHOLE * near + (1 - _WHOLE) * parts.max(axis=0)
    return near + asked.unread


def _cosines(rows: Vectors, vector: Vectors) -> Vectors:
    # Row by row, not `@`: a threaded BLAS takes milliseconds here whenever the cores are busy, and
    # a row's result must not depend on how many there are.
    found: Vectors = numpy().vecdot(rows, vector)
    return found


def best_of(weights: Any, count: int) -> Any:
    """The positions of the `count` highest of an array, ascending; of equal ones the first.

    Of at most so many, all.
    """
    np = numpy()
    if len(weights) <= count:
        return np.arange(len(weights))
    least = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = (weights > least).nonzero()[0]
    equal = (weights == least).nonzero()[0][: count - len(above)]
    return np.sort(np.concatenate([above, equal]))
