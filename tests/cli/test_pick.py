"""`toolcrib pick`, as people script it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from toolcrib.cli import run
from toolcrib.pick import SCORERS

TOOLS = '''
from toolcrib import ALL, tool

@tool(visible=ALL, tags=("mail",), cost=2)
def send_mail(to: str) -> str:
    """Send a letter to somebody."""
    return ""

@tool(visible=ALL, allowed_roles=("admin",), tags=("mail", "log"))
def read_log() -> str:
    """Read the log of letters sent."""
    return ""

@tool(visible=ALL, safe=False)
def burn() -> str:
    """Burn a letter."""
    return ""
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Pick(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture
def pick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Pick:
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text(TOOLS, encoding="utf-8")

    def command(*arguments: str) -> Result:
        code = run(["pick", "letter", "--tools", "letters.py", *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def picked(result: Result) -> list[str]:
    assert (result.code, result.err) == (0, "")
    return sorted(tool["name"] for tool in json.loads(result.out))


OPTIONS: list[tuple[list[str], list[str]]] = [
    ([], ["read_log", "send_mail"]),
    (["--no-unsafe"], ["read_log", "send_mail"]),
    (["--unsafe"], ["burn", "read_log", "send_mail"]),
    (["--unsafe", "--role", "user"], ["burn", "send_mail"]),
    (["--role", "user", "--role", "admin"], ["read_log", "send_mail"]),
    (["--tag", "log", "--tag", "x"], ["read_log"]),
    (["--tag", "mail"], ["read_log", "send_mail"]),
    (["--unsafe", "--max-cost", "1.5"], ["burn", "read_log"]),
    (["--min-score", "1"], []),
    (["--timeout-ms", "60000"], ["read_log", "send_mail"]),
    (["--unsafe", "--scorer", "keyword"], ["burn", "read_log", "send_mail"]),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=[" ".join(o) for o, _ in OPTIONS])
def test_options_decide_who_is_ranked(pick: Pick, options: list[str], expected: list[str]) -> None:
    assert picked(pick("--json", *options)) == expected
    explained = json.loads(pick("--json", "--explain", *options).out)
    assert sorted(explained["picked"]) == expected


UNUSABLE: list[tuple[list[str], str]] = [
    (["--scorer", "nope"], f"there is no scorer 'nope'; there are: {', '.join(SCORERS)}"),
    (["--min-score", "1.5"], "min"),
    (["--max-cost", "-1"], "max"),
    (["--timeout-ms", "0"], "timeout_ms must be above 0, or None for no limit, not 0"),
    (["--timeout-ms", "nan"], "timeout_ms must be above 0"),
    (["--top", "0"], "--top"),
]


@pytest.mark.parametrize(("options", "error"), UNUSABLE, ids=[" ".join(o) for o, _ in UNUSABLE])
def test_unusable_options_exit_with_2(pick: Pick, options: list[str], error: str) -> None:
    result = pick(*options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert error in result.err


def test_what_was_left_out_as_unsafe_is_said(pick: Pick) -> None:
    plain = pick()
    assert "burn" not in plain.out
    assert plain.err == "1 tool is marked unsafe and left out: add --unsafe to include them.\n"
    assert pick("--unsafe").err == ""
    assert "burn" in pick("--unsafe").out


def test_explain_shows_every_tool(pick: Pick) -> None:
    out = pick("--explain", "--top", "1").out
    assert "2 scored, 1 left out" in out
    assert "* picked: 1, with a score of at least 0.05" in out
    assert "burn  it is marked unsafe and allow_unsafe is off" in out


def test_explain_explains_without_a_hit(pick: Pick) -> None:
    result = pick("--explain", "--min-score", "1", "--unsafe")
    assert (result.code, result.err) == (0, "")
    assert "* picked: 0, with a score of at least 1" in result.out
    for name in ("send_mail", "read_log", "burn"):
        assert name in result.out


def test_explain_as_json_is_one_value(pick: Pick) -> None:
    value: dict[str, Any] = json.loads(
        pick("--explain", "--json", "--role", "user", "--unsafe").out
    )
    assert value["query"]["text"] == "letter"
    assert value["scorer"] == next(iter(SCORERS))
    assert {tool["name"] for tool in value["scored"]} == {"send_mail", "burn"}
    assert value["excluded"] == [{"name": "read_log", "reason": "it needs one of the roles admin"}]


def test_nothing_found_is_no_error(pick: Pick) -> None:
    assert pick("--min-score", "1", "--unsafe") == Result(0, "", "No tool matches.\n")


def test_a_terminal_is_shown_nothing_to_act_upon(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"name": "a\x1b[2Jb\nc", "description": "letter \x1b[31m"}]
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(rows[0]), encoding="utf-8")
    for options in ([], ["--explain"]):
        assert run(["pick", "letter \x1b[2J", "--tools", str(path), *options]) == 0
        shown_text = capsys.readouterr().out
        assert "\x1b" not in shown_text
        assert not [line for line in shown_text.splitlines() if line.strip().startswith("c")]


def test_scorers_are_completed_in_a_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TOOLCRIB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "toolcrib pick x --scorer ")
    monkeypatch.setenv("COMP_CWORD", "4")
    with pytest.raises(SystemExit):
        run([])
    assert set(SCORERS) <= set(capsys.readouterr().out.split())
