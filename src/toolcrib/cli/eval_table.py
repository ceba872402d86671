"""What `eval-pick` says: tables in Markdown, whole on a terminal and in a file, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolcrib.cli.eval_run import Row
from toolcrib.pick.evaluation import Figures, Quality, Spread, Threshold

_HEAD = (
    "set",
    "tools",
    "questions",
    "system",
    "nDCG@10",
    "recall@5",
    "recall@10",
    "MRR",
    "build ms",
    "CPU ms p50 / p95",
    "wall ms p50 / p95",
)
_NOTHING = "–"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the main table; `±` is one standard error, "300 of 2885" the first 300 of a set."""
    return _lines([_HEAD, *(_cells(row) for row in rows)], right=(1, 2, *range(4, len(_HEAD))))


def threshold_table(rows: Sequence[Row], min_score: float) -> Iterator[str]:
    """Where a set has requests that need no tool: how well `min_score` tells them. Else nothing."""
    found = [
        (row, row.result.threshold)
        for row in rows
        if isinstance(row.result, Figures)
        and row.result.threshold
        and row.result.threshold.needless
    ]
    if not found:
        return
    yield ""
    yield f"Where no tool is needed, at a min_score of {min_score:g}:"
    yield ""
    head = ("set", "system", "rightly empty", "right tool lost", "AUC of the best score")
    cells = [(row.of.name, row.system, *_threshold_cells(threshold)) for row, threshold in found]
    yield from _lines([head, *cells], right=(2, 3, 4))


def plain(row: Row) -> dict[str, Any]:
    """A row as JSON: the same figures, unrounded, or `{"error": …}` of a peer that failed."""
    told: dict[str, Any] = {
        "set": row.of.name,
        "tools": len(row.of.tools),
        "questions_in_set": len(row.of.questions),
        "system": row.system,
    }
    if isinstance(row.result, Figures):
        told |= msgspec.to_builtins(row.result)
    else:
        told["error"] = str(row.result)
    return told


def _cells(row: Row) -> tuple[str, ...]:
    result, whole = row.result, len(row.of.questions)
    of = (row.of.name, str(len(row.of.tools)))
    if not isinstance(result, Figures):
        return (*of, str(whole), row.system, "failed", *[_NOTHING] * 6)
    asked = str(whole) if result.questions == whole else f"{result.questions} of {whole}"
    return (
        *of,
        asked,
        row.system,
        *_quality_cells(result.quality),
        f"{result.build_ms:.0f}",
        _spread(result.cpu_ms),
        _spread(result.wall_ms),
    )


def _quality_cells(quality: Quality | None) -> tuple[str, ...]:
    if quality is None:
        return (_NOTHING,) * 4
    error = "" if quality.error is None else f" ± {_part(quality.error)}"
    rest = (quality.recall_at_5, quality.recall_at_10, quality.mrr)
    return (f"{_part(quality.ndcg_at_10)}{error}", *(_part(value) for value in rest))


def _threshold_cells(found: Threshold) -> tuple[str, str, str]:
    auc = _NOTHING if found.auc is None else _part(found.auc)
    return (
        f"{found.kept_empty} of {found.needless}",
        f"{found.lost} of {found.found}",
        auc,
    )


def _part(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _spread(found: Spread) -> str:
    return f"{found.p50:.2f} / {found.p95:.2f}"


def _lines(rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> Iterator[str]:
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    rule = [("-" * (w - 1) + ":") if i in right else "-" * w for i, w in enumerate(widths)]
    for row in [escaped[0], rule, *escaped[1:]]:
        cells = [
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"| {' | '.join(cells)} |"
