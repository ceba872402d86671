"""`toolcrib eval-pick`: real runs on a small set, and what it says of a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolcrib.cli import run

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


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.out)["results"]
        return found


EvalPick = Callable[..., Result]


def write(folder: Path, tools: list[Any], questions: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in (("tools", tools), ("queries", questions)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def eval_pick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> EvalPick:
    """Runs the command in a folder that holds the set `small`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small", TOOLS, QUESTIONS)

    def command(*arguments: str) -> Result:
        code = run(["eval-pick", *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def test_a_set_is_measured(eval_pick: EvalPick) -> None:
    result = eval_pick("--set", "small", "--json")
    (row,) = result.rows
    assert result.code == 0
    assert (row["set"], row["tools"], row["questions"], row["system"]) == ("small", 3, 4, "keyword")
    assert row["quality"] == {
        "ndcg_at_10": pytest.approx(2 / 3),
        "error": pytest.approx(1 / 3),
        "recall_at_5": pytest.approx(2 / 3),
        "recall_at_10": pytest.approx(2 / 3),
        "mrr": pytest.approx(2 / 3),
    }
    assert row["threshold"] == {
        "min_score": 0.05,
        "needless": 1,
        "kept_empty": 1,
        "found": 2,
        "lost": 0,
        "auc": pytest.approx(5 / 6),
    }
    assert 0 <= row["cpu_ms"]["p50"] <= row["cpu_ms"]["p95"]
    assert "small: keyword (4 questions) …" in result.err


def test_the_table_is_markdown(eval_pick: EvalPick) -> None:
    result = eval_pick("--set", "small", "--scorer", "keyword", "--scorer", "embedding")
    lines = result.out.splitlines()
    assert lines[0].startswith("| set   | tools | questions | system    |")
    assert lines[1].startswith("| ----- | ----: | --------: | --------- |")
    assert lines[2].startswith("| small |     3 |         4 | keyword   | .667 ± .333 |")
    assert lines[3].startswith("| small |     3 |         4 | embedding |")
    assert "Where no tool is needed, at a min_score of 0.05:" in lines
    assert any(line.startswith("| small | keyword   |        1 of 1 |") for line in lines)
    assert len({len(line) for line in lines[:4]}) == 1


def test_a_limit_is_marked(eval_pick: EvalPick) -> None:
    result = eval_pick("--set", "small", "--limit", "2")
    assert "| small |     3 |    2 of 4 | keyword | 1.000 ± .000 |" in result.out
    assert "Where no tool is needed" not in result.out


def test_a_min_score_of_1_loses_everything(eval_pick: EvalPick) -> None:
    (row,) = eval_pick("--set", "small", "--min-score", "1", "--json").rows
    assert (row["threshold"]["found"], row["threshold"]["lost"]) == (2, 2)
    assert row["quality"]["recall_at_5"] == pytest.approx(2 / 3)  # the ranking itself is unmoved


def test_tools_come_from_anywhere(eval_pick: EvalPick, tmp_path: Path) -> None:
    kit = tmp_path / "kit.jsonl"
    kit.write_text('{"query": "what time is it", "gold": ["current_time"]}', encoding="utf-8")
    (row,) = eval_pick("--queries", "kit.jsonl", "--json").rows
    assert (row["set"], row["quality"]["mrr"]) == ("kit", 1.0)
    two = ["--tools", "small/tools.jsonl", "--queries", "small/queries.jsonl", "--json"]
    assert eval_pick(*two).rows[0]["set"] == "queries"


def test_several_sets_make_one_table(eval_pick: EvalPick, tmp_path: Path) -> None:
    write(tmp_path / "large", TOOLS, QUESTIONS[:1])
    rows = eval_pick("--set", "small", "--set", "large", "--json").rows
    assert [row["set"] for row in rows] == ["small", "large"]


UNUSABLE: list[tuple[list[str], str]] = [
    ([], "--queries FILE, or --set FOLDER"),
    (["--tools", "small/tools.jsonl"], "--queries FILE, or --set FOLDER"),
    (["--set", "small", "--queries", "small/queries.jsonl"], "give either --set, or"),
    (["--set", "small", "--set", "./small"], "two sets are both called small"),
    (["--set", "circle"], "circle/tools.jsonl: it cannot be read"),
    (["--set", "nowhere"], "nowhere/tools.jsonl: there is no such file"),
    (["--queries", "nowhere.jsonl"], "nowhere.jsonl: it cannot be read"),
    (["--set", "small", "--scorer", "magic"], "--scorer: there is no scorer 'magic'"),
    (
        ["--set", "small", "--scorer", "keyword", "--scorer", "keyword"],
        "two systems are both called",
    ),
    (["--set", "small", "--min-score", "1.5"], "min-score"),
    (["--set", "small", "--limit", "0"], "limit"),
]


@pytest.mark.parametrize(("arguments", "why"), UNUSABLE, ids=[" ".join(a) for a, _ in UNUSABLE])
def test_an_unusable_command_line_is_one_line(
    eval_pick: EvalPick, arguments: list[str], why: str
) -> None:
    Path("circle").symlink_to("circle")
    result = eval_pick(*arguments)
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("tools", "questions", "why"),
    [
        ([], QUESTIONS, "bad/tools.jsonl: it has no tools"),
        (TOOLS, [], "bad/queries.jsonl: it has no questions"),
        ([*TOOLS, TOOLS[0]], QUESTIONS, "bad/tools.jsonl: tools 1 and 4 are both called"),
        (TOOLS, [*QUESTIONS, {"query": "q", "gold": ["none"]}], "line 5: no tool is called 'none'"),
        (TOOLS, [*QUESTIONS, 7], "bad/queries.jsonl: line 5 is not an object"),
    ],
)
def test_a_bad_set_is_named(
    eval_pick: EvalPick, tmp_path: Path, tools: list[Any], questions: list[Any], why: str
) -> None:
    write(tmp_path / "bad", tools, questions)
    result = eval_pick("--set", "bad")
    assert (result.code, result.out) == (2, "")
    assert why in result.err


def test_a_bar_in_a_name_does_not_break_the_table(eval_pick: EvalPick, tmp_path: Path) -> None:
    write(tmp_path / "a|b", TOOLS, QUESTIONS)
    assert "| a\\|b |" in eval_pick("--set", "a|b").out
