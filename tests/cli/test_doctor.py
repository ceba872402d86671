"""`toolcrib doctor` says what is there, and no secret; `chat` offers it and does not use it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rows import each_row

from toolcrib.cli import doctor, run
from toolcrib.cli.chat import who_answers
from toolcrib.clients.providers import KEYS


@contextmanager
def serving(answers: dict[str, bytes], *, seconds: float = 0.0) -> Iterator[str]:
    """Serve these bodies by their paths; give the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(seconds)
            body = answers.get(self.path, b"")
            with suppress(
                OSError
            ):  # who asked may have gone, and a later test sees what is printed
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no server, no log: only what a test puts there."""
    monkeypatch.chdir(tmp_path)
    for names in KEYS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    nowhere = tuple(s._replace(url="http://127.0.0.1:9") for s in doctor._SERVERS)
    monkeypatch.setattr(doctor, "_SERVERS", nowhere)
    monkeypatch.setattr(doctor, "OLLAMA_URL", "http://127.0.0.1:9")


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run(["doctor", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


TAGS = json.dumps({"models": [{"name": "qwen3:4b"}, {"size": 1}, {"name": "llama3"}]}).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": "phi-4", "object": "model"}]}).encode()


def test_what_is_here_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("CO_API_KEY", "canary")
    (tmp_path / "crib.db").touch()
    with serving({"/api/tags": TAGS}) as ollama, serving({"/v1/models": MODELS}) as other:
        monkeypatch.setenv("OLLAMA_HOST", ollama.removeprefix("http://"))
        servers = tuple(
            s._replace(url=other) if s.name == "llama.cpp" else s for s in doctor._SERVERS
        )
        monkeypatch.setattr(doctor, "_SERVERS", servers)
        found = told(capsys)
        assert found["model_servers"] == {
            "Ollama": ["ollama:qwen3:4b", "ollama:llama3"],
            "llama.cpp": [f"{other}/v1#phi-4"],
        }
        assert found["keys"] == {"cohere": "CO_API_KEY"}
        assert found["audit_log"] == str(tmp_path / "crib.db")
        assert found["durable_runs"] == "none in this folder"
        offered = who_answers("local")
        assert "--model cohere:MODEL or ollama:qwen3:4b or ollama:llama3 and 1 more" in offered
        assert run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "cohere: CO_API_KEY" in text
    assert "canary" not in text + offered


def test_nothing_is_said_of_what_is_not_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys)
    assert (found["model_servers"], found["keys"]) == ({}, {})
    assert found["audit_log"] == "none in this folder"
    monkeypatch.setenv("TOOLCRIB_AUDIT", "sqlite:///other.db")
    monkeypatch.setenv("TOOLCRIB_RUNS", "postgresql+psycopg://ada:canary@db/runs")
    found = told(capsys)
    assert found["audit_log"] == "none: sqlite:///other.db"
    assert found["durable_runs"] == "postgresql+psycopg://ada:***@db/runs"
    assert re.fullmatch(r"The embedded model answers(, without Needle .*)?\.", who_answers("local"))
    assert who_answers("openai:gpt-5\x1b[2J") == "openai:gpt-5\\x1b[2J answers."


def test_a_model_of_a_server_is_not_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "llama\nkeys:\n  openai: set"
    with serving({"/api/tags": json.dumps({"models": [{"name": name}]}).encode()}) as address:
        monkeypatch.setenv("OLLAMA_HOST", address)
        assert "\n" not in who_answers("local")
        assert run(["doctor"]) == 0
    assert r"Ollama: ollama:llama\nkeys:\n  openai: set" in capsys.readouterr().out


@each_row("body", [b"<html>", b"[]", b'{"models": 3}', b'{"models": [3]}', b"{"])
def test_another_server_is_none_of_models(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"/api/tags": body}) as address:
        monkeypatch.setenv("OLLAMA_HOST", address)
        assert doctor.found_servers() == []


def test_a_server_that_does_not_answer_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE", 0.05)
    with serving({"/api/tags": TAGS}, seconds=0.3) as address:
        monkeypatch.setenv("OLLAMA_HOST", address)
        assert doctor.found_servers() == []
