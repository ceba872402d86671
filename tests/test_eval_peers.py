"""benchmarks/eval_peers.py: peers are measured next to our scorers, and a bad peer harms no other."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import eval_peers
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TOOLS = [
    {"name": "get_weather", "description": "Tells the weather of a city."},
    {"name": "send_mail", "description": "Sends a letter to somebody."},
    {"name": "list_files", "description": "Lists the files of a folder."},
]
QUESTIONS: list[dict[str, Any]] = [
    {"query": "weather in the city of Lisbon", "gold": ["get_weather"]},
    {"query": "send a letter", "gold": ["send_mail"]},
    {"query": "zzz", "gold": ["list_files"]},
    {"query": "xyzzy", "gold": []},
]
PEER = """
import json, os, sys, time
lines = map(json.loads, sys.stdin)
names = [tool["name"] for tool in next(lines)["tools"]]
assert names == ["get_weather", "send_mail", "list_files"], names
def say(found):
    print(found if isinstance(found, str) else json.dumps(found), flush=True)
"""
HONEST = """
say({"build_ms": 7})
for line in lines:
    assert line["top"] == 10
    say({"ranking": [n for n in names if n.split("_")[1] in line["query"]], "cpu_ms": 0.25})
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.out)["results"]
        return found

    @property
    def failed(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.out)["failed"]
        return found


EvalPeers = Callable[..., Result]


def write(folder: Path, tools: list[Any], questions: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in (("tools", tools), ("queries", questions)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def evaluate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> EvalPeers:
    """Return a function that runs the script in a folder that holds the set `small`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small", TOOLS, QUESTIONS)

    def command(*arguments: str) -> Result:
        code = eval_peers.main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def ends(pid: int) -> bool:
    """Whether the process of this id has ended, or does so within a minute."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended = select.poll()  # its number may be more than `select` can take
        ended.register(process, select.POLLIN)
        return bool(ended.poll(60_000))
    finally:
        os.close(process)


def beside(code: str, tmp_path: Path, name: str = "peer") -> tuple[str, str]:
    """The option for a peer that runs `code`."""
    script = tmp_path / f"{name.partition(':')[0]}.py"
    script.write_text(PEER + code, encoding="utf-8")
    return "--beside", f"{name}={shlex.join([sys.executable, str(script)])}"


UNUSABLE: list[tuple[list[str], str]] = [
    (["--set", "small", "--beside", "name"], "give NAME=COMMAND"),
    (["--set", "small", "--beside", "=true"], "give NAME=COMMAND"),
    (["--set", "small", "--beside", "a="], "give NAME=COMMAND"),
    (["--set", "small", "--beside", "a='"], "no closing quotation"),
    (["--set", "small", "--beside", "a:x=true"], "give a number of questions"),
    (["--set", "small", "--beside", "a:0=true"], "give a number of questions"),
    (["--set", "small", "--beside", "keyword=true"], "two systems are both called keyword"),
    (["--set", "small", "--limit", "0"], "--limit 0: ask at least one question"),
    (["--set", "small", "--plot", "a.jpg"], "ends in .png or .svg"),
    (["--set", "small", "--plot", "nowhere/a.png"], "there is no such folder"),
]


@pytest.mark.parametrize(("arguments", "why"), UNUSABLE, ids=[" ".join(a) for a, _ in UNUSABLE])
def test_an_unusable_command_line_is_one_line(
    evaluate: EvalPeers, arguments: list[str], why: str
) -> None:
    result = evaluate(*arguments)
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG\r\n"), ("p.SVG", b"<?xml")])
@pytest.mark.exhaustive
def test_a_picture_is_drawn(evaluate: EvalPeers, tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    peer = beside(HONEST, tmp_path)
    result = evaluate("--set", "small", "--plot", name, *peer)
    assert result.code == 0, result.err
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begins)
    assert b"svg" not in begins or b"</svg>" in drawn


def test_names_in_a_picture_are_no_formulas(evaluate: EvalPeers, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "$\\frac{$日", TOOLS, QUESTIONS)
    peer = beside(HONEST, tmp_path, "_$x$")
    result = evaluate("--set", "$\\frac{$日", "--plot", "p.svg", *peer, "--json")
    assert (result.code, len(result.rows)) == (0, 2)
    drawn = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert "<!--  _$x$ -->" in drawn  # a comment has what the paths show


def test_a_picture_that_cannot_be_written_loses_no_figures(
    evaluate: EvalPeers, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "p.png").mkdir()
    result = evaluate("--set", "small", "--plot", "p.png", "--json")
    assert (result.code, len(result.rows)) == (1, 1)
    assert "--plot p.png: it cannot be written (Is a directory)" in result.err


def test_a_picture_needs_matplotlib(evaluate: EvalPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_peers, "find_spec", lambda _: None)
    result = evaluate("--set", "small", "--plot", "p.png")
    assert (result.code, result.out) == (2, "")
    assert "pip install 'matplotlib" in result.err


def test_a_peer_is_measured_beside(evaluate: EvalPeers, tmp_path: Path) -> None:
    peer = beside(HONEST, tmp_path)
    rows = evaluate("--set", "small", *peer, "--json").rows
    assert [row["system"] for row in rows] == ["keyword", "peer"]
    found = rows[1]
    assert found["quality"]["ndcg_at_10"] == pytest.approx(1 / 3)
    assert found["threshold"] is None
    assert found["build_ms"] == 7
    assert found["cpu_ms"] == {"p50": 0.25, "p95": 0.25}
    assert found["wall_ms"]["p50"] > 0


def test_a_slow_peer_may_be_asked_less(evaluate: EvalPeers, tmp_path: Path) -> None:
    peer = beside(HONEST, tmp_path, "slow:2")
    rows = evaluate("--set", "small", *peer, "--json").rows
    assert [(row["system"], row["questions"]) for row in rows] == [("keyword", 4), ("slow", 2)]


READY = 'say({"build_ms": 1}); next(lines)\n'
FAILING = [
    ("", "it ended (exit code 0) before it answered"),
    (
        "os.write(2, b'first\\nlast words\\n'); os._exit(3)",
        "it ended (exit code 3) before it answered; its last words: last words",
    ),
    (READY + "os._exit(9)", "it ended (exit code 9)"),
    (READY + "sys.stdout.write('{'); sys.stdout.flush(); os._exit(0)", "it ended (exit code 0)"),
    ("os.close(1); time.sleep(60)", "it closed its stdout before it answered"),
    ("time.sleep(60)", "it gave no answer within 0.5 s"),
    (READY + "time.sleep(60)", "it gave no answer within 0.5 s"),
    ("say('nonsense'); time.sleep(60)", "no JSON object: nonsense"),
    ("os.write(1, b'\\xff\\n'); time.sleep(60)", "no JSON object: \ufffd"),
    ("say('\\x1b[2J'); time.sleep(60)", "no JSON object: \\x1b[2J"),
    ("say([]); time.sleep(60)", "no JSON object"),
    ("say('{' * 20_000_000); time.sleep(60)", "more than 16777216 bytes on a line"),
    ("say({}); time.sleep(60)", "'build_ms' is no number"),
    ("say({'build_ms': True}); time.sleep(60)", "'build_ms' is no number"),
    (READY + "say({'cpu_ms': 1})", "'ranking' is no list of names"),
    (READY + "say({'ranking': [1], 'cpu_ms': 1})", "'ranking' is no list of names"),
    (READY + "say({'ranking': ['gold'], 'cpu_ms': 1})", "ranks 'gold', which is not among"),
    (READY + "say({'ranking': names + names, 'cpu_ms': 1})", "or one twice"),
    (READY + "say({'ranking': list('abcdefghijk'), 'cpu_ms': 1})", "more than 10 names"),
    (READY + "say({'ranking': names, 'cpu_ms': -1})", "'cpu_ms' is no number"),
    (READY + 'say(\'{"ranking": [], "cpu_ms": NaN}\')', "'cpu_ms' is no number"),
    (READY + 'say(\'{"ranking": [], "cpu_ms": 1e400}\')', "'cpu_ms' is no number"),
]


@pytest.mark.parametrize(("code", "why"), FAILING, ids=[code[-40:] for code, _ in FAILING])
@pytest.mark.exhaustive
def test_a_peer_that_fails_is_named_and_harms_no_other(
    evaluate: EvalPeers, tmp_path: Path, code: str, why: str
) -> None:
    patience = "0.5" if "0.5" in why else "30"
    both = [*beside(code, tmp_path, "bad"), *beside(HONEST, tmp_path, "good")]
    result = evaluate("--set", "small", *both, "--patience", patience, "--json")
    assert result.code == 1
    keyword, good = result.rows
    (bad,) = result.failed
    assert (keyword["system"], bad["system"], bad["set"]) == ("keyword", "bad", "small")
    assert why in bad["error"].replace("\x1b", "\\x1b")
    assert "\n" not in bad["error"]
    assert good["quality"]["ndcg_at_10"] == pytest.approx(1 / 3)
    assert why in result.err
    assert "\x1b" not in result.err + result.out


def test_who_a_peer_leaves_behind_is_ended_too(evaluate: EvalPeers, tmp_path: Path) -> None:
    leaving = (
        "import subprocess; left = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(left.pid)); os._exit(3)"
    )
    result = evaluate("--set", "small", *beside(leaving, tmp_path), "--patience", "2")
    assert result.code == 1
    assert "it gave no answer within 2 s" in result.err
    assert ends(int((tmp_path / "pid").read_text(encoding="utf-8")))


@pytest.mark.parametrize("to_group", [True, False], ids=["terminal", "kill -INT"])
@pytest.mark.usefixtures("evaluate")
@pytest.mark.exhaustive
def test_interrupted_it_ends_its_peers(tmp_path: Path, to_group: bool) -> None:
    here = tmp_path / "here"
    os.mkfifo(here)
    waiting = (
        "import subprocess; left = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(here)!r}, 'w').write(str(left.pid)); left.wait()"
    )
    arguments = ["--set", "small", *beside(waiting, tmp_path), "--json"]
    with subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "eval_peers.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    ) as process:
        left = int(here.read_text(encoding="utf-8"))  # waits until it is there
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert ends(left)


def test_a_peer_that_is_not_there(evaluate: EvalPeers) -> None:
    result = evaluate("--set", "small", "--beside", "gone=./no-such-program x")
    assert result.code == 1
    assert (
        "gone on small: ./no-such-program cannot be run (No such file or directory)" in result.err
    )
    assert "| small |     3 |         4 | keyword |" in result.out


def test_an_adapter_is_installed_and_driven(evaluate: EvalPeers, tmp_path: Path) -> None:
    install = [
        sys.executable,
        str(BENCHMARKS / "peers" / "install.py"),
        "--into",
        str(tmp_path),
        "overlap",
    ]
    made = subprocess.run(install, capture_output=True, text=True, check=True)
    rows = evaluate("--set", "small", *shlex.split(made.stdout), "--json").rows
    assert [row["system"] for row in rows] == ["keyword", "overlap"]
    assert rows[1]["quality"]["ndcg_at_10"] == pytest.approx(2 / 3)
    assert rows[1]["build_ms"] >= 0


def test_an_unknown_adapter_is_named() -> None:
    install = [sys.executable, str(BENCHMARKS / "peers" / "install.py"), "nobody"]
    made = subprocess.run(install, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert "there is no peer 'nobody'; there are: overlap, " in made.stderr
