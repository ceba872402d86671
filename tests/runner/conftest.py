"""What the tests before have left behind has ended: a process counts it for all runners."""

from __future__ import annotations

import time

import pytest

from toolcrib import ToolRunner

PATIENCE = 40.0
"""Seconds: a tool of a test blocks for 30 at most."""


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> None:
    runner, until = ToolRunner([]), time.monotonic() + PATIENCE
    while runner.left_behind and time.monotonic() < until:
        time.sleep(0.01)
