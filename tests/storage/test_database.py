"""The database: shared by threads, and quiet about what was written."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from toolcrib.approvals import ApprovalStore
from toolcrib.errors import ApprovalError, SourceError
from toolcrib.values.decision import ApprovalRequest, Approve

CANARY = "canary-88bb"


def request(at: int = 0) -> ApprovalRequest:
    return ApprovalRequest(f"apr_{at}", "pay", {"to": CANARY}, "risky", time.time() + 60 + at)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///{}/crib.db"])
async def test_many_at_once_see_one_database(url: str, tmp_path: Path) -> None:
    store = ApprovalStore(url.format(tmp_path))
    await asyncio.gather(*(store(request(at)) for at in range(12)))
    assert [r.id for r in await store.pending()] == [f"apr_{at}" for at in range(12)]
    given = await asyncio.gather(
        *(store.answer("apr_0", Approve(str(at))) for at in range(4)), return_exceptions=True
    )
    assert given.count(None) == 1
    used = await asyncio.gather(*(store(request()) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(answer, Approve) for answer in used) == 1
    assert sum(isinstance(answer, ApprovalError) for answer in used) == 3
    await store.aclose()


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////nowhere/at/all.db", f"oracle://u:{CANARY}@h/x"]
)
async def test_one_that_cannot_be_used_is_a_source_error_without_payload(url: str) -> None:
    with pytest.raises(SourceError, match="database") as raised:
        await ApprovalStore(url)(request())
    assert raised.value.__context__ is None
    assert CANARY not in str(raised.value)


async def test_what_is_no_answer_is_not_stored() -> None:
    store = ApprovalStore("sqlite://")
    await store(request())
    with pytest.raises(ApprovalError, match="no answer"):
        await store.answer("apr_0", True)  # type: ignore[arg-type]
    assert len(await store.pending()) == 1
    await store.aclose()
