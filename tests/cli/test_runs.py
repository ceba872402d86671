"""`toolcrib runs`: runs that commands begin, answer and resolve, and another process works on."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from children import ENVIRONMENT, Talking
from rich.console import Console

pytest.importorskip("dbos", reason="the extra durable is not installed")

from toolcrib.cli import render, run
from toolcrib.cli import runs as commands

SHOP = """
import asyncio
from pathlib import Path
from durable.desk import KEY, Model, desk
from toolcrib import ALL, Agent, tool
from toolcrib.testing import call

@tool(visible=ALL)
async def slow() -> str:
    "Take long."
    Path("begun").touch()
    await asyncio.sleep(60)
    return "done"

agents = {
    "desk": desk(Path()),
    "slow": Agent(Model(call("slow"), "Over."), [slow], state_key=KEY),
}
one = agents["desk"]
nothing = 7
"""


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(SHOP, encoding="utf-8")


class Commands:
    """Runs `toolcrib runs …` in this process, and reads what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        assert run(["runs", *words]) == code
        said = self._capsys.readouterr()
        return said.out if code == 0 else said.err

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def until(self, run_id: str, status: str) -> Any:
        for _ in range(300):
            found = self.json("show", run_id)
            if found["status"] == status:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{run_id} is {found['status']}, and not {status}")


@pytest.fixture
def runs(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def is_running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""  # a zombie has none
    except OSError:
        return False


@contextmanager
def working(*options: str) -> Iterator[Talking]:
    command = ("-m", "toolcrib", "runs", "worker", "--agents", "shop.py", *options)
    with Talking(*command, env=ENVIRONMENT | {"PWD": os.fspath(Path.cwd())}) as child:
        yield child


def test_on_a_terminal_runs_are_a_table(runs: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    runs("start", "desk", "My tea was cold.", "--agents", "shop.py:agents", "--run", "tea")
    terminal = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=80)
    for module in (commands, render):
        monkeypatch.setattr(module, "out", terminal)
    runs("list")
    heading, line = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert line.split()[:4] == ["tea", "queued", "desk", "cli"]
    assert "caller" in heading


def test_a_run_is_begun_worked_on_and_answered_by_commands(runs: Commands) -> None:
    said = runs("start", "desk", "My tea was cold.", "--agents", "shop.py:agents", "--run", "tea")
    assert said == "tea\n"
    assert runs.json("list", "--status", "queued")[0]["id"] == "tea"
    assert "none of its turns is saved yet" in runs("replay", "tea")
    with working("--slots", "2") as worker:
        (asked,) = runs.until("tea", "waiting")["pending"]
        assert "tea\twaiting\tdesk\tcli" in runs("list")
        assert "refund" in runs("show", "tea")
        assert "tea continues" in runs("answer", asked["id"], "--yes", "--by", "grace")
        assert "already answered" in runs("answer", asked["id"], "--no", code=1)
        found = runs.until("tea", "completed")
        assert (found["text"], len(found["calls"])) == ("All done.", 9)
        assert "All done." in runs("show", "tea")
        (told,) = [line for line in runs("replay", "tea").splitlines() if "approved by" in line]
        assert "✓ refund " in told
        turns = runs.json("replay", "tea")["turns"]
        assert sum(len(turn["calls"]) for turn in turns) == 9
        back = ("fork", "tea", "--agents", "shop.py", "--turn")
        assert runs(*back, "3", "--run", "tea-2") == "tea-2\n"
        assert runs.json(*back, "3", "--run", "tea-2") == {"run": "tea-2"}
        calls = runs.until("tea-2", "completed")["calls"]
        codes = {each["name"]: each.get("error", {}).get("code") for each in calls}
        assert codes == {"ship": "repeated_effect", "look": None}
        assert "tea-2, for cli, forked from tea after turn 3" in runs("replay", "tea-2")
        assert "has no turn 9" in runs(*back, "9", code=1)
        assert "--repeat must be one of" in runs(*back, "3", "--repeat", "maybe", code=2)
        worker.process.terminate()
        assert worker.wait() == 0


def test_of_a_call_that_a_worker_cut_a_person_says_what_happened(runs: Commands) -> None:
    started = runs.json("start", "slow", "Go.", "--agents", "shop.py")["run"]
    with working("--grace", "0.1") as worker:
        while not Path("begun").exists():
            time.sleep(0.02)
        worker.process.terminate()
        assert worker.wait() == 0
    with working() as worker:
        (call,) = runs.until(started, "completed")["calls"]
        assert call["error"]["code"] == "outcome_unknown"
    assert f"outcome unknown: slow, call {call['id']}" in runs("show", started)
    assert runs.json("show", started)["unknown"] == [call["id"]]
    said = runs("resolve", call["id"], "--run", started, "--did-not", "--by", "eve")
    assert "it was not done, according to eve" in said
    again = runs("resolve", call["id"], "--run", started, "--happened", "--by", "eve", code=1)
    assert "unknown outcome" in again


@pytest.mark.exhaustive
def test_several_workers_end_with_the_one_that_started_them(runs: Commands) -> None:
    runs("start", "desk", "Go.", "--agents", "shop.py", "--run", "tea")
    with working("--workers", "2") as worker:
        runs.until("tea", "waiting")
        os.kill(worker.process.pid or 0, signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.exhaustive
def test_several_workers_end_where_the_one_that_started_them_was_killed(runs: Commands) -> None:
    runs("start", "desk", "Go.", "--agents", "shop.py", "--run", "tea")
    with working("--workers", "2") as worker:
        runs.until("tea", "waiting")
        pid = worker.process.pid or 0
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(started) == 2
        os.kill(pid, signal.SIGKILL)
        while any(map(is_running, started)):
            time.sleep(0.05)


def test_runs_are_cancelled_and_resumed_by_commands(runs: Commands) -> None:
    runs("start", "desk", "Go.", "--agents", "shop.py:one", "--run", "tea", code=1)
    runs("start", "agent", "Go.", "--agents", "shop.py:one", "--run", "tea")
    assert "cancelled: tea" in runs("cancel", "tea")
    assert "is over" in runs("cancel", "tea", code=1)
    assert "tea continues" in runs("resume", "tea")
    assert runs.json("show", "tea")["status"] == "queued"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("list",), 2, "runs.db: there is no such file; name another with --store URL"),
        (("list", "--status", "odd"), 2, "--status must be one of queued, running"),
        (("start", "desk", "Go.", "--agents", "shop.py:nothing"), 2, "is not a dict of agents"),
        (("start", "desk", "Go.", "--agents", "shop.py:absent"), 2, "it has no 'absent'"),
        (("start", "desk", "Go.", "--agents", "none.py"), 2, "there is no such file"),
        (("start", "desk", "Go.", "--agents", "no_such_module"), 1, "no_such_module"),
        (("replay", "none.json"), 2, "none.json: No such file"),
        (("answer", "apr_1", "--no", "--arguments", "{}"), 2, "--arguments needs --yes"),
        (("answer", "apr_1"), 2, "Missing option '--yes' or '--no'. Try --help."),
        (("resolve", "run_1", "call_1"), 2, "Missing option '--happened' or '--did-not'."),
    ],
)
def test_what_cannot_be_used_is_named(
    runs: Commands, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in runs(*words, code=code)


NOWHERE = "postgresql://ada:s3cret@127.0.0.1:1/runs"
OF_A_STORE = {
    "start": ["runs", "start", "desk", "Hi.", "--agents", "shop.py:agents"],
    "worker": ["runs", "worker", "--agents", "shop.py:agents"],
    "list": ["runs", "list"],
    "chat": ["chat", "Hi.", "--durable", "--model", "http://127.0.0.1:1/v1#m"],
}


@pytest.mark.parametrize("command", OF_A_STORE)
def test_a_database_that_cannot_be_used_is_named(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_STATE_KEY", "k" * 32)
    assert run([*OF_A_STORE[command], "--store", NOWHERE]) == 1
    told = capsys.readouterr().err
    assert told.startswith("toolcrib: postgresql://ada:***@127.0.0.1:1/runs: the database cannot")
    assert told.count("\n") == 1
