"""What a wire does is counted."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.wire import history as history_module


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every item that a history encodes."""
    items: list[Any] = []
    dumps = history_module.dumps

    def counting(value: Any) -> bytes:
        items.append(value)
        return dumps(value)

    monkeypatch.setattr(history_module, "dumps", counting)
    return items
