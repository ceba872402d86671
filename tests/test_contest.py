"""benchmarks/contest.py: contenders take turns in processes of their own, and the median counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import chart
import contest
import pytest
from chart import Points
from contest import Case, Result

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = """
import itertools, os, sys
import chart
import contest
from contest import Case

def figures(*given):
    async def make(_closing):
        found = iter(given)
        async def once():
            with open("turns", "a") as file:
                file.write(f"{given[0]} {os.getpid()}\\n")
            return next(found)
        return once
    return make

async def absent(_closing):
    raise ImportError("nobody is here")

both = {"floor": figures(4.0, 2.0, 9.0), "toolcrib": figures(8.0, 80.0, 7.0), "absent": absent}
contest.main([Case("one", "ms", both, "2 x", 3), Case("two", "ms", both, "", 3, cold=True)], "x")
"""


@pytest.mark.parametrize(
    ("name", "ours", "floor", "processes"), [("one", 8, 4, 2), ("two", 8, 4, 6)]
)
@pytest.mark.exhaustive
def test_contenders_take_turns(
    tmp_path: Path, name: str, ours: float, floor: float, processes: int
) -> None:
    script = tmp_path / "cases.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(script), "--only", name, "--json", "found.json", "--svg", "a.svg"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["rows"]
    assert row["figures"] == {"floor": floor, "toolcrib": ours}
    assert f"{name}: absent: absent: nobody is here" in ran.stderr
    drawn = ElementTree.parse(tmp_path / "a.svg").getroot()  # noqa: S314  ours
    assert {f"{name}, ms", "toolcrib", "8.0"} <= {text.text for text in drawn.iter(f"{SVG}text")}
    turns = [line.split() for line in (tmp_path / "turns").read_text().splitlines()]
    assert [first for first, _ in turns] == ["4.0", "8.0"] * 3
    assert len({process for _, process in turns}) == processes


def test_curves_are_drawn_with_their_names() -> None:
    both: dict[str, Points] = {"floor": [(1, 0.5), (1000, 5)], "toolcrib": [(1, 1), (1000, 90)]}
    panels = [chart.Panel("a < b", "tools", both)] * 3
    drawn = ElementTree.fromstring(chart.curves(panels))  # noqa: S314  ours
    assert len(drawn.findall(f"{SVG}polyline")) == 6
    told = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"a < b", "tools", "floor", "toolcrib", "1k", "0.1", "100"} <= set(told)


@pytest.mark.parametrize(("more_is_better", "ratio"), [(False, 2.0), (True, 0.5)])
def test_a_ratio_says_how_much_worse(*, more_is_better: bool, ratio: float) -> None:
    case = Case("calls", "calls/s", {}, more_is_better=more_is_better)
    result = Result(case, {contest.FLOOR: 10.0, contest.OURS: 20.0})
    assert result.ratio(contest.OURS) == ratio
    assert result.ratio("nobody") is None
    assert Result(case, {contest.OURS: 20.0}).ratio(contest.OURS) is None
