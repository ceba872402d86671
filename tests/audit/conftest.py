"""The log on both databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from samples import whole_only


@pytest.fixture(params=["sqlite", whole_only("memory"), whole_only("postgresql")])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "memory":
        return "sqlite://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crib.db"
    fresh: Callable[[], str] = request.getfixturevalue("postgres")
    return fresh()
