"""A database of each kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from postgres import postgres

__all__ = ["postgres"]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crib.db"
    fresh: Callable[[], str] = request.getfixturevalue("postgres")
    return fresh()


@pytest.fixture
def child_environment() -> dict[str, str]:
    """For a process of our own, that imports what is tested here."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return os.environ | {"PYTHONPATH": path}
