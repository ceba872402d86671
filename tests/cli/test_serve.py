"""`toolcrib serve`: what it refuses before it listens. tests/chat/test_page.py asks it something."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from toolcrib.cli import run


def test_a_port_that_is_taken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", "--port", port, "--store", f"sqlite:///{tmp_path}/chat.db"]) == 2
    assert "--port 0 takes a free one" in capsys.readouterr().err


def test_a_short_token_and_what_is_no_url_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLCRIB_TOKEN", "short")
    assert run(["serve", "--port", "0"]) == 2
    assert "at least 16 characters" in capsys.readouterr().err
    assert run(["serve", "--store", "chat.db"]) == 2
    assert "give the URL of a database" in capsys.readouterr().err
