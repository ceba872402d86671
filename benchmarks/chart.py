"""Charts in SVG for the docs, written by hand: bars of one case each, and curves on two log scales.

Colours hold on a light and on a dark page; each line has its name at its end, so that no colour is
needed to tell them apart. Nothing is imported but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

OURS, OTHERS, TEXT = "#c2410c", "#64748b", "#6b7280"
WIDTH, BAR, PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 720, 18, 350, 230, 48
Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Curves over one quantity; both scales are logarithms."""

    title: str
    x: str
    curves: Mapping[str, Points]


def bars(groups: Mapping[str, Mapping[str, float]], ours: str = "toolcrib") -> str:
    """Draw each group's figures from the smallest on; lengths compare within a group."""
    parts, y = [], 8
    for title, figures in groups.items():
        y += 20
        parts.append(_text(8, y, title, weight="bold"))
        y += 8
        most = max(figures.values())
        for name, figure in sorted(figures.items(), key=lambda pair: pair[1]):
            length = max(1.0, 430 * figure / most)
            colour = OURS if name == ours else OTHERS
            parts.append(_text(140, y + 13, name, anchor="end"))
            parts.append(
                f'<rect x="148" y="{y + 2}" width="{length:.1f}" height="{BAR - 4}" fill="{colour}"/>'
            )
            parts.append(_text(154 + length, y + 13, f"{figure:,.{0 if figure >= 100 else 1}f}"))
            y += BAR
    return _page(WIDTH, y + 12, parts)


def curves(panels: Sequence[Panel], ours: str = "toolcrib") -> str:
    """Draw the panels, two in a row."""
    parts: list[str] = []
    for number, panel in enumerate(panels):
        left, top = number % 2 * PANEL_WIDTH, number // 2 * PANEL_HEIGHT
        parts += _panel(panel, left + MARGIN, top + 34, ours)
    rows = ceil(len(panels) / 2)
    return _page(2 * PANEL_WIDTH, rows * PANEL_HEIGHT + 6, parts)


def _panel(panel: Panel, left: float, top: float, ours: str) -> list[str]:
    width, height = PANEL_WIDTH - MARGIN - 70, PANEL_HEIGHT - 80
    every = [point for points in panel.curves.values() for point in points]
    low_x, high_x = log10(min(x for x, _ in every)), log10(max(x for x, _ in every))
    low_y, high_y = floor(log10(min(y for _, y in every))), ceil(log10(max(y for _, y in every)))
    high_y = max(high_y, low_y + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - low_x) / (high_x - low_x)
        return left + across * width, top + height * (high_y - log10(y)) / (high_y - low_y)

    parts = [_text(left, top - 12, panel.title, weight="bold")]
    for power in range(low_y, high_y + 1):
        _, y = at(10**low_x, 10**power)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="{TEXT}" stroke-opacity=".3"/>')
        parts.append(_text(left - 4, y + 4, f"{10**power:,g}", anchor="end"))
    for x in sorted({x for x, _ in every}):
        parts.append(_text(at(x, 10**low_y)[0], top + height + 14, _short(x), anchor="middle"))
    parts.append(_text(left + width / 2, top + height + 28, panel.x, anchor="middle"))
    ends: list[tuple[float, float, str]] = []
    for name, points in panel.curves.items():
        drawn = [at(x, y) for x, y in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        colour = OURS if name == ours else OTHERS
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append((drawn[-1][1] + 4, drawn[-1][0] + 5, name))
    y = float("-inf")
    for wanted, x, name in sorted(ends):
        y = max(wanted, y + 12)  # names of lines that end together stand below each other
        parts.append(_text(x, y, name))
    return parts


def _short(x: float) -> str:
    for least, letter in ((1e6, "M"), (1e3, "k")):
        if x >= least:
            return f"{x / least:g}{letter}"
    return f"{x:g}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )


def _page(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT}">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
