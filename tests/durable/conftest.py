"""Workers of these tests see a new queue at once, not at the next of the looks of every second."""

from __future__ import annotations

import threading
from typing import Any

import pytest

LOOK = 0.1
"""Seconds between two looks at the queue, as workers are told."""


class Soon:
    """What tells DBOS to stop, and wakes it before."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def wait(self, timeout: float) -> bool:
        return self._stop.wait(min(timeout, LOOK))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stop, name)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    dbos = pytest.importorskip("dbos._dbos", reason="the extra durable is not installed")
    serve = dbos.queue_thread
    monkeypatch.setattr(dbos, "queue_thread", lambda stop, engine: serve(Soon(stop), engine))
