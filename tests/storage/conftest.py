"""A database of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crib.db"
    fresh: Callable[[], str] = request.getfixturevalue("postgres")
    return fresh()
