"""The picture of `eval-pick --plot`: how good on each set, how fast by the size of the catalog.

Rule: this is the one door to matplotlib, opened only where a picture is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from toolcrib.cli.options import UnusableError
from toolcrib.cli.render import printable
from toolcrib.errors import MissingExtraError
from toolcrib.pick.evaluation import Figures

_FORMATS = (".png", ".svg")


class Point(NamedTuple):
    """What one system reached on one set."""

    of: str
    tools: int
    system: str
    figures: Figures


def check_plot(path: Path) -> None:
    """Raises UnusableError for a file that could not be drawn, and MissingExtraError."""
    if path.suffix.lower() not in _FORMATS:
        raise UnusableError(f"--plot {path}: name a file that ends in {' or '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise UnusableError(f"--plot {path}: there is no such folder")
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plot", "--plot")


def draw(points: Sequence[Point], path: Path) -> None:
    """Writes the picture of these points (at least one). Raises OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plot", "--plot") from None
    systems = list(dict.fromkeys(point.system for point in points))
    figure = Figure(figsize=(11, 4.5 + 0.12 * len(systems)), layout="constrained")
    quality, speed = figure.subplots(1, 2)
    _draw_quality(quality, points, systems)
    _draw_speed(speed, points, systems)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        figure.savefig(path, dpi=150)


def _draw_quality(axes: Any, points: Sequence[Point], systems: Sequence[str]) -> None:
    sets = list(dict.fromkeys(point.of for point in points))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        own = [p for p in points if p.system == system and p.figures.quality is not None]
        where = [sets.index(p.of) - 0.4 + (place + 0.5) * width for p in own]
        found = [p.figures.quality for p in own if p.figures.quality is not None]
        errors = [quality.error or 0.0 for quality in found]
        heights = [quality.ndcg_at_10 for quality in found]
        axes.bar(where, heights, width, yerr=errors, color=_color(place))
    axes.set_xticks(range(len(sets)), map(_label, sets))
    axes.set_ylim(0, 1)
    axes.set_ylabel("nDCG@10, with its standard error")


def _draw_speed(axes: Any, points: Sequence[Point], systems: Sequence[str]) -> None:
    for place, system in enumerate(systems):
        own = sorted((p.tools, p.figures.cpu_ms.p50) for p in points if p.system == system)
        axes.plot(*zip(*own, strict=True), marker="o", label=_label(system), color=_color(place))
    sizes = sorted({point.tools for point in points})
    axes.set_xscale("log")
    axes.set_yscale("log", subs=[2, 5])
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("tools in the catalog")
    axes.set_ylabel("CPU milliseconds a request, median")


def _label(name: str) -> str:
    """The name as it is: no formula, and not one of those that a legend leaves out."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _color(place: int) -> tuple[str, float]:
    """Ten colours, and the same ones paler."""
    return f"C{place % 10}", 1.0 if place < 10 else 0.5
