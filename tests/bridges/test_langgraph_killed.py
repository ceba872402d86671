"""`kill -9` between an effect and its checkpoint, or before an answer: it goes on, with one effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import Talking

from toolcrib.audit import AuditLog

pytestmark = pytest.mark.exhaustive  # real programs, for seconds each


def run_child(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    with Talking("-m", "bridges.langgraph_child", str(folder), *arguments) as child:
        lines = child.stdout.read().splitlines()
        return child.wait(), lines


@pytest.mark.parametrize(
    ("dies", "saver", "graph"),
    [
        ("asked", "async", "agent"),
        ("asked", "sync", "node"),
        ("effect", "async", "node"),
        ("effect", "sync", "agent"),
        ("recorded", "async", "agent"),
        ("recorded", "sync", "node"),
    ],
)
async def test_a_graph_that_was_killed_goes_on_with_one_effect(
    dies: str, saver: str, graph: str, tmp_path: Path
) -> None:
    assert run_child(tmp_path, saver, graph, dies) == (-9, [])
    code, lines = run_child(tmp_path, saver, graph, "never")
    assert code == 0
    assert (tmp_path / "paid").read_text(encoding="utf-8") == "5\n"
    looked, paid = lines
    assert looked == "success shelf 1"
    if dies == "effect":  # nobody knows that it was paid, and so it is not paid again
        assert paid.startswith('error {"error":{"code":"outcome_unknown"')
    else:
        assert paid == "success paid 5"
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as log:
        assert (await log.verify()).fault is None
        records = [entry.record for entry in await log.entries()]
    keys = {record.idempotency_key for record in records if record.name == "pay"} - {""}
    assert len(keys) == 1
    assert {(r.run_id, r.provider_id) for r in records if r.name == "pay"} == {
        ("thread_1", "call_1")
    }


@pytest.mark.parametrize(
    ("dies", "saver", "graph"),
    [
        ("asked", "async", "clerk"),
        ("asked", "sync", "clerk's node"),
        ("effect", "async", "clerk's node"),
        ("effect", "sync", "clerk"),
        ("recorded", "async", "clerk"),
        ("recorded", "sync", "clerk's node"),
    ],
)
async def test_an_agent_within_a_graph_that_was_killed_goes_on_with_one_effect(
    dies: str, saver: str, graph: str, tmp_path: Path
) -> None:
    """It goes on from where it waited: what it looked up before, it does not look up again."""
    assert run_child(tmp_path, saver, graph, dies) == (-9, [])
    assert run_child(tmp_path, saver, graph, "never") == (0, ["success All paid."])
    assert (tmp_path / "paid").read_text(encoding="utf-8") == "5\n"
    async with AuditLog(f"sqlite:///{tmp_path}/audit.db") as log:
        assert (await log.verify()).fault is None
        records = [entry.record for entry in await log.entries()]
    ends = [
        (r.name, r.status, r.error.code if r.error else None)
        for r in records
        if r.status in ("completed", "failed")
    ]
    assert ends.count(("look", "completed", None)) == 1
    paid = ("pay", "failed", "outcome_unknown") if dies == "effect" else ("pay", "completed", None)
    assert [end for end in ends if end[0] == "pay"] == [paid]
