"""numpy, imported when it is first needed, and rows of numbers that others gave.

Rule: rows are believed only once they are checked, and compared only once they are of length 1.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolcrib.errors import MissingExtraError, PickError

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]


def numpy() -> Any:
    """The numpy module, imported on the first call; MissingExtraError without the extra "pick"."""
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtraError("pick", "numpy") from None


def checked_rows(given: object, count: int, *, who: str, form: str | None = None) -> Any:
    """What was given as an array of shape (count, d), d at least 1.

    Its dtype is `form`; without one float32 stays what it is, and all else is float64. Raises
    PickError, naming who gave it, for what is no such array, or not finite.
    """
    np = numpy()
    try:
        with np.errstate(over="ignore"):
            rows = np.asarray(given, form)
            if form is None and rows.dtype != "float32":
                rows = np.asarray(rows, "float64")
    except (TypeError, ValueError, OverflowError):
        raise PickError(f"{who} gave no rows of numbers, all of one length") from None
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise PickError(f"{who} gave shape {rows.shape} for {count} texts, not a row each")
    if not np.isfinite(rows).all():
        raise PickError(f"{who} gave a number that is not finite")
    return rows


def units(rows: Any) -> Vectors:
    """Rows of any lengths as rows of length 1, float32; a row of zeros stays one."""
    np = numpy()
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.vecdot(rows, rows))
        if ((abs(lengths - 1) < 1e-3) | ~rows.any(axis=1)).all():
            return np.asarray(rows, "float32")  # type: ignore[no-any-return]
        wide = np.asarray(rows, "float64")
        most = abs(wide).max(axis=1, keepdims=True)
        wide = wide / np.where(most > 0, most, 1.0)  # no square is too large or too small now
        lengths = np.sqrt(np.vecdot(wide, wide))[:, None]
        found: Vectors = (wide / np.maximum(lengths, 1e-12)).astype("float32")
    return found
