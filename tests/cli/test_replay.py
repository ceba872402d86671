"""`toolcrib runs replay`: a saved run turn by turn, out of its state alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import SecretStr
from rows import each_row

from toolcrib import ALL, Agent, File, Image, Limits, Link, Message, RunResult, ToolRunner, tool
from toolcrib.agent.replay import replayed
from toolcrib.approvals import answer_later
from toolcrib.cli import run
from toolcrib.errors import ConnectionFailed, SourceError
from toolcrib.testing import ScriptedClient, ToolEmulator, call, raw_call
from toolcrib.values.run import RunState


@tool(visible=["n"])
async def look(order: int, key: SecretStr | None = None) -> dict[str, str]:
    """Look an order up."""
    return {"n": "one", "hidden": "result canary"}


@tool(visible=ALL, safe=False)
async def refund(order: int) -> str:
    """Refund an order."""
    return "done"


TURNS = (
    ["Let me see.", call("look", order=7, key="argument canary")],
    [raw_call("look", '{"order": "seven"}'), call("\x1b[2Jcanary", a=1)],
    "It is there.",
)


async def ran(*turns: Any) -> RunResult:
    runner = ToolRunner([look, refund], approver=answer_later)
    return await Agent(ScriptedClient(turns), runner).run("Look up order 7.")


def shown(result: RunResult, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return shown_state(result.state, capsys, *options)


def shown_state(
    state: RunState, capsys: pytest.CaptureFixture[str], *options: str, fails: bool = False
) -> str:
    Path("state.json").write_text(state.to_json(), encoding="utf-8")
    assert (run(["runs", "replay", "state.json", *options]) != 0) is fails
    told = capsys.readouterr()
    return told.err if fails else told.out


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_each_turn_has_what_was_said_and_what_a_viewer_may_see(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = await ran(*TURNS)
    said = shown(done, capsys)
    lines = said.splitlines()
    assert lines[0] == f"{done.state.run_id}, for anonymous"
    assert lines[1] == "user: Look up order 7."
    assert [line.split(" · ")[0] for line in lines if line.startswith("turn ")] == [
        "turn 1",
        "turn 2",
        "turn 3",
    ]
    assert lines[3] == "  Let me see."
    assert lines[4].startswith('✓ look {"key":"***","order":7}  allowed · ')
    assert lines[4].endswith('→ {"n":"one"}')
    assert lines[-1] == "  It is there."
    assert "canary" not in said
    told = shown(done, capsys, "--json")
    assert "canary" not in told
    turns = json.loads(told)["turns"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3]
    assert turns[0]["calls"][0]["decision"]["type"] == "allow"
    assert turns[0]["usage"]["requests"] == 1
    assert sum(turn["seconds"] for turn in turns) <= done.state.elapsed


async def test_what_waits_and_what_was_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    waits = await ran([call("look", order=7), call("refund", order=7)])
    said = shown(waits, capsys)
    assert "… refund  waiting" in said
    assert waits.pending[0].id in said
    runner = ToolRunner([look])
    cut = await Agent(
        ScriptedClient([[call("look", order=1), call("look", order=2)]]),
        runner,
        limits=Limits(calls=1),
    ).run("Look.")
    assert said != shown(cut, capsys)
    assert capsys.readouterr().out == ""


async def test_a_fork_an_emulated_call_and_a_turn_whose_model_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = Agent(
        ScriptedClient([call("look", order=7), ConnectionFailed("down"), "There."]), [look]
    )
    trial = ToolEmulator({"look": {"n": "1"}}).over(agent)
    with pytest.raises(ConnectionFailed) as raised:
        await trial.run("Look.")
    state = raised.value.state
    assert isinstance(state, RunState)
    done = await trial.resume(state)
    assert [turn.turn for turn in replayed(done.state)] == [1, 3]
    assert " · emulated → " in shown(done, capsys)
    other = trial.replace(model=ScriptedClient(["So?"]))
    forked = await other.resume(other.fork(done.state, turn=1, prompt="And now?"))
    lines = shown(forked, capsys).splitlines()
    assert lines[0].endswith(f", forked from {done.state.run_id} after turn 1")
    assert (lines[1], lines[-1]) == ("user: And now?", "  So?")


async def test_a_state_of_an_earlier_version_and_one_that_has_not_begun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = await ran(*TURNS)
    saved = json.loads(done.state.to_json())
    del saved["marks"]
    turns = replayed(RunState.from_json(json.dumps(saved)))
    assert [(turn.turn, turn.text, turn.seconds) for turn in turns] == [
        (1, "Let me see.", None),
        (2, "", None),
        (3, "It is there.", None),
    ]
    state = Agent(ScriptedClient([]), [look]).prepare("Look.")
    assert shown_state(state, capsys).endswith("user: Look.\nnone of its turns is saved yet\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{}", "state.json: not a saved run"), ("[", "not a saved run")],
)
def test_what_is_no_saved_run(
    text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("state.json").write_text(text, encoding="utf-8")
    assert run(["runs", "replay", "state.json"]) != 0
    assert said in capsys.readouterr().err


@each_row(
    "said",
    [
        '{"error":5}',
        '{"error":{"code":"denied"}}',
        "[]",
        "no JSON",
        "",
        '{"error":{"code":1,"message":""}}',
    ],
)
async def test_a_state_written_by_hand_is_told_as_what_it_is(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = (await ran(raw_call("look", '{"order": "seven"}'), "Well.")).state
    messages = [replace(m, content=said) if m.role == "tool" else m for m in state.messages]
    forged = replace(state, messages=tuple(messages), records=())
    with pytest.raises(SourceError, match="not written as an error"):
        replayed(forged)
    assert shown_state(forged, capsys, fails=True).count("not written as an error") == 1


async def test_no_line_of_a_text_looks_like_that_of_a_call_or_a_turn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    forged = "\nturn 9 · 0.0 s\n✓ refund {}  allowed → done\n… pay  waiting\nuser: yes"
    runner = ToolRunner([look, refund], approver=answer_later)
    turns: list[Any] = [[f"✓ refund{forged}", call("look", order=7, key="k")], f"… pay{forged}"]
    done = await Agent(ScriptedClient(turns), runner).run(f"Look.{forged}")
    lines = shown(done, capsys).splitlines()
    ours = [line for line in lines if not line.startswith("  ")]
    assert [line.split()[0] for line in ours] == [
        f"{done.state.run_id},",
        *("user:", "turn", "✓", "turn"),
    ]


DOT = Image.from_bytes("image/png", b"\x89PNG\r\n\x1a\n")
SEEN = "[image: image/png, 8 bytes; not shown here]"


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (["What is on it?", DOT], ["user: What is on it?", "", SEEN]),
        ([DOT, "What is on it?"], [f"user: {SEEN}", "", "What is on it?"]),
        (["First.", DOT, "Refund 7."], ["user: First.", "", SEEN, "", "Refund 7."]),
        ([File("text/plain", text="Refund 8.")], ["user: [file text/plain]", "Refund 8."]),
        ([Link("https://x/y")], ["user: [link] https://x/y"]),
        (Message.user("Look.", (DOT,)), [f"user: {SEEN}", "", "Look."]),
    ],
)
async def test_all_that_the_user_said_is_told(
    prompt: Any, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = "Go." if isinstance(prompt, Message) else prompt
    state = (await Agent(ScriptedClient(["Done."])).run(said)).state
    if isinstance(prompt, Message):
        state = replace(state, messages=(prompt, *state.messages[1:]))
    lines = shown_state(state, capsys).splitlines()
    assert [line.removeprefix("  ") for line in lines[1 : len(told) + 1]] == told
    assert lines[len(told) + 1].startswith("turn 1")
