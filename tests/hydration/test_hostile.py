"""10,000 hostile texts: each call ends by a name, nothing is raised, and no memory is kept."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from typing import Any

import jsonschema_rs
from hydration.hostile_texts import CANARY, CODES, Maker
from rows import each_row
from samples import sample

from toolcrib import ALL, Catalog, ErrorCode, Hydrated, HydrationResult, Rejected, ToolCall, tool
from toolcrib import hydrate as check
from toolcrib.hydration import Sanitizer, repair

COUNT = sample(10_000, part=80)
BATCHES = sample(10, part=3)


@tool(visible=ALL)
def take(a: Any = None, n: int = 0) -> None:
    """Take anything."""


CATALOG = Catalog([take])
JUDGE = jsonschema_rs.Draft202012Validator(take.definition.input_schema or {})


async def end_of(text: str, codes: set[ErrorCode | None]) -> tuple[HydrationResult, bool]:
    """What became of a call with this text; True if it was repaired."""
    result = check(ToolCall("c", "take", text), CATALOG)
    code = None if isinstance(result, Hydrated) else result.errors[0].code
    assert code in codes, (code, result.errors)
    if isinstance(result, Hydrated):
        assert JUDGE.is_valid(result.arguments)
        if not result.provenance.notes:
            assert json.loads(text) == result.provenance.parsed
            assert result.arguments.keys() >= json.loads(text).keys()
        return result, False
    assert CANARY not in repr(result.errors)
    repaired = await repair(result, CATALOG, Sanitizer())
    if isinstance(repaired, Hydrated):
        assert json.loads(repaired.provenance.repaired_arguments or "") == repaired.building.sent
        assert JUDGE.is_valid(repaired.arguments)
    else:
        assert isinstance(repaired, Rejected)
        assert CANARY not in repr(repaired.errors)
    return repaired, repaired is not result


async def a_batch(dice: random.Random, count: int) -> int:
    """How many of `count` texts were repaired."""
    makers = list(CODES.items())
    repaired = 0
    for at in range(count):
        maker, codes = makers[at % len(makers)]
        _, changed = await end_of(maker(dice, dice.choice([24, 120, 600, 2400])), codes)
        repaired += changed
    return repaired


async def test_each_of_ten_thousand_ends_by_a_name_and_memory_is_flat() -> None:
    dice = random.Random(20261122)  # noqa: S311  texts, not secrets
    repaired = await a_batch(dice, COUNT // BATCHES)  # fills what is cached for good
    kept, peaks = [], []
    tracemalloc.start()
    try:
        for _ in range(BATCHES - 1):
            repaired += await a_batch(dice, COUNT // BATCHES)
            gc.collect()
            now, peak = tracemalloc.get_traced_memory()
            kept.append(now)
            peaks.append(peak)
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert 0 < repaired < COUNT // 10
    assert max(kept) - kept[0] < 100_000, kept
    assert max(peaks) < 1_000_000, peaks


@each_row("maker", CODES, ids=lambda maker: maker.__name__)
async def test_texts_of_100_kb(maker: Maker) -> None:
    dice = random.Random(7)  # noqa: S311
    for _ in range(sample(3)):
        await end_of(maker(dice, 100_000), CODES[maker])


@each_row("unit", ["[", "x", '{"a":', "é", "'", "\ud800", " ", "/*"])
async def test_ten_megabytes_are_refused_unread(unit: str) -> None:
    text = '{"a":"' + unit * (10_000_000 // len(unit))
    result, repaired = await end_of(text, {ErrorCode.TOO_LARGE})
    assert not repaired
    assert result.provenance.parsed is None
