"""What a command does to its own process does not outlast its test."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--tools` puts folders on the module search path, for the rest of the program."""
    monkeypatch.setattr(sys, "path", list(sys.path))
