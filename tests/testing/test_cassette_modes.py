"""A cassette holds what was said: a new one is its owner's, one that is there keeps its mode, and
what is no file stays."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from toolcrib.errors import SourceError
from toolcrib.testing import cassette
from toolcrib.testing.cassettes import write


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
def test_who_can_read_a_cassette(tmp_path: Path) -> None:
    path = tmp_path / "cassette.json"
    write(path, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o644, 0o666, 0o400):
        path.chmod(mode)
        write(path, [])
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [file.name for file in tmp_path.iterdir()] == ["cassette.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders")
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="cannot be written"):
        cassette(tmp_path / "pipe", record="all").__enter__()
    assert (tmp_path / "pipe").is_fifo()
