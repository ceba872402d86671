"""The page on how a call is decided lists what can become of one: exactly that, stage by stage."""

from __future__ import annotations

import re
from pathlib import Path

from toolcrib import policies
from toolcrib.errors import ErrorCode, Stage

PAGE = Path(__file__).parents[2] / "docs" / "deciding.md"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_every_code_stands_at_its_stage() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    told = {stage: set(re.findall(r"`(\w+)`", codes)) for stage, codes in rows}
    codes: dict[str, set[str]] = {stage.value: set() for stage in Stage}
    for code in ErrorCode:
        codes[code.info.stage.value].add(code.value)
    # its codes are those of validation
    codes[Stage.INSTANTIATE.value] = {"invalid_arguments", "unusable_tool"}
    codes[Stage.OUTPUT.value] -= {"redaction_missing"}  # no call ends with it: it completes
    assert told == codes
    assert [stage for stage, _ in rows] == [stage.value for stage in Stage]


def test_every_ready_made_policy_is_on_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    types = {"Policy", "CountingPolicy", "ForeseeingPolicy", "ReservingPolicy", "PayingPolicy"}
    types |= {"standard"}
    assert [name for name in set(policies.__all__) - types if f"{name}(" not in text] == []
