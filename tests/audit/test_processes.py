"""Two processes write to one log at once, from the creation of its tables on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from audit.writing_child import SHARED
from conftest import ROOT

from toolcrib.audit import AuditLog


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_two_processes_share_one_chain_and_claim_each_key_once(url: str) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "audit.writing_child", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    told = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        told += [int(number) for number in out.split()]
    assert sorted(told) == list(range(SHARED))
    async with AuditLog(url) as log:
        assert (await log.verify()).fault is None
        entries = await log.entries()
    assert [entry.seq for entry in entries] == list(range(1, SHARED + 201))
    assert max(Counter((e.record.id, e.record.status) for e in entries).values()) == 1
