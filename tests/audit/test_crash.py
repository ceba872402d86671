"""`kill -9` at random points during 200 calls: what was acknowledged is there, nothing ran twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from audit.crash_child import CALLS, RUN
from children import Talking

from toolcrib.audit import AuditLog
from toolcrib.values.record import ToolInvocationRecord

SEED = 20_261_122


def run_child(url: str, side: Path, *, kill_after: int = -1, dies: int = -1) -> int:
    """Run the calls; kill the process once it has told so many lines. What it ended with."""
    with Talking("-m", "audit.crash_child", url, str(side), str(dies)) as child:
        for told, _ in enumerate(child.stdout, start=1):
            if told == kill_after:
                child.kill()
        return child.wait()


def told(side: Path) -> list[tuple[str, int]]:
    lines = [line.split() for line in side.read_text(encoding="utf-8").splitlines()]
    return [(word, int(number)) for word, number in lines]


async def records(url: str) -> list[ToolInvocationRecord]:
    async with AuditLog(url) as log:
        assert (await log.verify()).fault is None
        return [entry.record for entry in await log.entries()]


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_killed_at_random_points(url: str, seed: int, tmp_path: Path) -> None:
    side = tmp_path / "told"
    chance = random.Random(seed)  # noqa: S311  seeded, to be repeated
    dies = 2 * chance.randrange(20)
    assert run_child(url, side, dies=dies) == -9
    check(told(side), await records(url))
    kills = 0
    for _ in range(2):
        kills += run_child(url, side, kill_after=chance.randrange(1, 130)) == -9
        check(told(side), await records(url))
    assert kills == 2
    assert run_child(url, side) == 0
    written = await records(url)
    check(told(side), written)
    check_the_end(told(side), written, dies)


def check(lines: list[tuple[str, int]], written: list[ToolInvocationRecord]) -> None:
    """What was told is written; what ran was begun; what may not run twice has not."""
    kept = {(record.id, record.status) for record in written}
    for word, number in lines:
        status = {"ran": "started", "completed": "completed"}.get(word, "failed")
        assert (f"call_{number}", status) in kept, (word, number)
    runs = Counter(number for word, number in lines if word == "ran")
    assert all(count == 1 for number, count in runs.items() if number % 2 == 0)
    ended = Counter(record.id for record in written if record.status == "completed")
    assert not ended or max(ended.values()) == 1


def check_the_end(
    lines: list[tuple[str, int]], written: list[ToolInvocationRecord], dies: int
) -> None:
    """Each call has come to one end: it is completed, or nobody knows what became of it."""
    assert {record.run_id for record in written} == {RUN}
    last = {record.id: record for record in written}
    assert len(last) == CALLS
    runs = Counter(number for word, number in lines if word == "ran")
    unknown = set()
    for number in range(CALLS):
        record = last[f"call_{number}"]
        if record.status == "completed":
            assert runs[number] >= 1
            continue
        assert record.error is not None
        assert record.error.code == "outcome_unknown"
        assert number % 2 == 0  # one that is idempotent runs again, and ends
        assert runs[number] <= 1
        unknown.add(number)
    assert unknown == {number for word, number in lines if word == "outcome_unknown"}
    assert dies in unknown
