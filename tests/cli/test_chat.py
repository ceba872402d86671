"""`toolcrib chat`, against a server on this machine that speaks the OpenAI wire."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import msgspec
import pexpect
import pytest
from children import ENVIRONMENT, AtTerminal
from samples import whole_only

from toolcrib import ToolCall, ToolRunner, run_sync
from toolcrib.audit import AuditLog
from toolcrib.cli import run, tools
from toolcrib.testing import call, cut, die_after, http_error, openai_server
from toolcrib.testing.scripted import ServerTurn
from toolcrib.values.record import ToolInvocationRecord

ROOT = Path(__file__).parents[2]
RISKY = '''
from toolcrib import ALL, tool

@tool(visible=ALL, safe=False)
def risky(path: str) -> str:
    """Do something risky."""
    return f"done with {path}"
'''


async def chat(
    turns: list[ServerTurn], *arguments: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    async with openai_server(turns) as server:
        command = ["chat", *arguments, "--model", f"{server.url}#model"]
        code = await asyncio.to_thread(run, command)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


async def test_a_question_shows_each_call_and_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns: list[ServerTurn] = [
        [
            "let me see",
            call("calculate", expression="23*17+5"),
            call("calculate", expression="1/0"),
        ],
        "It is 396.",
    ]
    code, out, err = await chat(turns, "What is 23*17+5?", capsys=capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "let me see"
    assert '✓ calculate {"expression":"23*17+5"}  allowed · ' in out
    assert '→ {"value":396}' in out
    assert "✗ calculate" in out
    assert "tool_error" in out
    assert lines[-1] == "It is 396."


async def test_json_is_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[ServerTurn] = [call("calculate", expression="1+1"), "Two."]
    code, out, _ = await chat(turns, "1+1?", "--json", capsys=capsys)
    value = json.loads(out)
    assert (code, value["status"], value["text"]) == (0, "completed", "Two.")
    assert value["records"][0]["result"] == {"value": 2}


async def test_without_a_terminal_what_approves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.py").write_text(RISKY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    turns: list[ServerTurn] = [call("risky", path="x"), "No."]
    code, out, err = await chat(turns, "go on", "--tools", "tools.py", capsys=capsys)
    assert (code, err) == (0, "There is no terminal to ask at: pass --yes to approve it.\n")
    assert "approval_required" in out


async def test_a_provider_that_dies_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = await chat([die_after(60, "some text that is long enough")], "hi", capsys=capsys)
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


async def test_a_turn_that_was_not_completed_is_no_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = await chat([cut("It is th")], "hi", "--json", capsys=capsys)
    assert (code, json.loads(out)["status"]) == (1, "limited")


async def test_escape_sequences_of_a_model_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns: list[ServerTurn] = [["\x1b[2J\x07", call("calc\x1b[1mulate")], "\x1b]0;title\x07done"]
    _, out, err = await chat(turns, "hi", capsys=capsys)
    assert "\x1b" not in out + err
    assert "\x07" not in out + err


def spawn(url: str, cwd: Path, *arguments: str) -> AtTerminal:
    command = ("-m", "toolcrib", "chat", "--model", f"{url}#model", *arguments)
    return AtTerminal(*command, cwd=cwd, env={**ENVIRONMENT, "TERM": "xterm"})


@pytest.mark.parametrize(
    ("typed", "told", "shown"),
    [
        ("y", "done with x", "approved by terminal"),
        ("n", "approval_refused", "refused by terminal"),
    ],
)
async def test_a_risky_call_is_asked_about_at_the_terminal(
    tmp_path: Path, typed: str, told: str, shown: str
) -> None:
    (tmp_path / "tools.py").write_text(RISKY, encoding="utf-8")

    def talk(url: str) -> str:
        child = spawn(url, tmp_path, "--tools", "tools.py", "go on")
        child.expect(r"\[y/N\] ")
        child.sendline(typed)
        child.expect(pexpect.EOF)
        return str(child.before)

    async with openai_server([call("risky", path="x"), "finished"]) as server:
        output = await asyncio.to_thread(talk, server.url)
    assert "finished" in output
    assert shown in output
    assert told in str(server.requests[1]["messages"][-1]["content"])


@pytest.mark.parametrize("durable", [[], whole_only(["--durable"])])
async def test_a_yes_at_the_terminal_may_be_for_always(tmp_path: Path, durable: list[str]) -> None:
    """The next conversation is not asked; the rule is listed, revoked, and asked about again."""
    (tmp_path / "tools.py").write_text(RISKY, encoding="utf-8")
    rules = "sqlite:///crib.db"
    options = ("--tools", "tools.py", "--rules", rules, *durable)

    def command(*arguments: str) -> str:
        child = AtTerminal("-m", "toolcrib", *arguments, cwd=tmp_path, env=ENVIRONMENT)
        child.expect(pexpect.EOF)
        return str(child.before)

    def talk(url: str) -> None:
        child = spawn(url, tmp_path, *options, "go on")
        child.expect(r"\[y/N, always: yes, and always to exactly this\] ")
        child.sendline("always")
        child.expect("finished")
        child.expect(pexpect.EOF)
        assert "approved by terminal" in command_of(url, "once more")
        listed = command("approvals", "rules", "list")
        assert 'risky {"path": "x"}, for cli' in listed
        [name] = re.findall("rule_[0-9a-f]+", listed)
        assert "revoked" in command("approvals", "rules", "revoke", name)
        child = spawn(url, tmp_path, *options, "and again")
        child.expect(r"\[y/N, always: ")
        child.sendline("n")
        child.expect(pexpect.EOF)

    def command_of(url: str, prompt: str) -> str:
        child = spawn(url, tmp_path, *options, prompt)
        child.expect("finished")
        return str(child.before)

    turns: list[ServerTurn] = [call("risky", path="x"), "finished"]
    async with openai_server(turns * 3) as server:
        await asyncio.to_thread(talk, server.url)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rules", "crib.db"], "--rules crib.db: give the URL of a database"),
        (["--rules", "sqlite://"], "--rules sqlite://: an in-memory database is lost"),
        (["--rules", "sqlite:///crib.db", "--no"], "leave out --yes and --no"),
        (["--rules", "sqlite:///none/crib.db"], "--rules none/crib.db.key: No such file"),
        (["--rules", "sqlite:///junk.db"], "--rules sqlite:///junk.db: "),
    ],
)
def test_where_no_rule_can_be_kept_nothing_is_asked(
    options: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk.db").write_bytes(b"not a database" * 100)
    for command in (["chat", "hi"], ["serve", "--port", "0"]):
        if command[0] == "serve" and "--no" in options:
            continue
        assert run([*command, "--model", "http://127.0.0.1:1/v1#m", *options]) == 2
        assert told in capsys.readouterr().err


async def test_a_conversation_remembers(tmp_path: Path) -> None:
    def talk(url: str) -> str:
        child = spawn(url, tmp_path)
        child.expect("> ")
        child.sendline("I am Ada")
        child.expect("Hello Ada")
        child.expect("> ")
        child.sendline("who am I?")
        child.expect("You are Ada")
        child.expect("> ")
        child.sendeof()
        child.expect(pexpect.EOF)
        child.close()
        return str(child.exitstatus)

    async with openai_server(["Hello Ada", "You are Ada"]) as server:
        assert await asyncio.to_thread(talk, server.url) == "0"
    roles = [m["role"] for m in server.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


async def test_what_is_typed_can_be_edited_and_of_any_length(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    long = "tea " * 2_000

    def talk(url: str) -> None:
        child = spawn(url, tmp_path)
        child.expect("Ctrl-D ends, /help says more")
        child.expect("> ")
        child.sendline("I am Eva\x7f\x7f\x7fAda")  # three characters back
        child.expect("Hello Ada")
        child.expect("> ")
        child.sendline("\x1b[A")  # up: the line before
        child.expect("Hello again")
        child.expect("> ")
        child.sendline(long)
        child.expect("So much tea")
        child.sendline("/help")
        child.expect("/quit, /exit .*end the conversation")
        child.sendline("/quit")
        child.expect(pexpect.EOF)
        child.close()

    async with openai_server(["Hello Ada", "Hello again", "So much tea"]) as server:
        await asyncio.to_thread(talk, server.url)
    said = [m["content"] for m in server.requests[2]["messages"] if m["role"] == "user"]
    assert said == ["I am Ada", "I am Ada", long.strip()]


async def test_ctrl_c_cancels_the_turn_not_the_conversation(tmp_path: Path) -> None:
    hangs = '''
import asyncio
from toolcrib import ALL, tool

@tool(visible=ALL)
async def hangs() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return ""
'''
    (tmp_path / "tools.py").write_text(hangs, encoding="utf-8")

    def talk(url: str) -> str:
        child = spawn(url, tmp_path, "--tools", "tools.py")
        child.expect("> ")
        child.sendline("hang")
        child.expect("running hangs")
        child.sendintr()
        child.expect("hangs {}: stopped before its outcome was known; it may have run")
        child.expect("Cancelled")
        child.expect("> ")
        child.sendline("still there?")
        child.expect("Yes")
        child.expect("> ")
        child.sendeof()
        child.expect(pexpect.EOF)
        child.close()
        return str(child.exitstatus)

    async with openai_server([call("hangs"), "Yes"]) as server:
        assert await asyncio.to_thread(talk, server.url) == "0"


async def test_ctrl_c_at_a_question_says_what_the_record_says(tmp_path: Path) -> None:
    """Two calls, one ran and one was asked about: the screen says of each what the log says."""
    (tmp_path / "tools.py").write_text(f"{RISKY}\n{PAY}", encoding="utf-8")

    def talk(url: str) -> str:
        child = spawn(url, tmp_path, "--tools", "tools.py", "--audit", "sqlite:///log.db")
        child.expect("> ")
        child.sendline("go on")
        child.expect(r"\[y/N\] ")
        child.sendintr()
        child.expect("Cancelled")
        shown = str(child.before)
        child.expect("> ")
        child.sendeof()
        child.expect(pexpect.EOF)
        child.close()
        return shown

    turns: list[ServerTurn] = [call("pay", order=7), call("risky", path="x")]
    async with openai_server(turns) as server:
        shown = await asyncio.to_thread(talk, server.url)
    assert "may have run" not in shown
    assert re.search(r"✗ .*risky.*cancelled: The call was cancelled. It did not run.", shown)
    async with AuditLog(f"sqlite:///{tmp_path / 'log.db'}") as log:
        last = {entry.record.name: entry.record for entry in await log.entries()}
    assert last["risky"].error is not None
    assert (str(last["risky"].error.code), last["risky"].idempotency_key) == ("cancelled", "")
    assert last["pay"].status == "completed"


@pytest.mark.parametrize(("turns", "code"), [(["One", "Two"], 0), ([http_error(400), "Two"], 1)])
async def test_a_script_is_told_that_a_turn_failed(
    turns: list[ServerTurn],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    ended, out, _ = await chat(turns, capsys=capsys)
    assert ended == code
    assert "Two" in out


async def test_a_conversation_begins_with_some_of_many_tools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    form = {"description": "Do something.", "input_schema": {"type": "object"}}
    many = tmp_path / "many.json"
    many.write_text(json.dumps([{"name": f"t{n}", **form} for n in range(300)]), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    _, _, told = await chat([], "--tools", str(many), capsys=capsys)
    assert "with t0, t1, t2, t3, t4, … (300 in all). Ctrl-D ends." in told


PAY = '''
from toolcrib import ALL, tool

@tool(visible=ALL)
def pay(order: int) -> str:
    """Pay an order."""
    with open("ledger", "a", encoding="utf-8") as ledger:
        ledger.write(f"{order}\\n")
    return "paid"
'''


async def test_what_ran_before_a_turn_failed_stays_in_the_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(PAY, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("pay 7\ntry again\n"))
    turns: list[ServerTurn] = [call("pay", order=7), http_error(400), "All is paid."]
    async with openai_server(turns) as server:
        command = ["chat", "--tools", "tools.py", "--model", f"{server.url}#model"]
        assert await asyncio.to_thread(run, command) == 1
    assert "All is paid." in capsys.readouterr().out
    assert (tmp_path / "ledger").read_text(encoding="utf-8") == "7\n"
    said = server.requests[-1]["messages"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "user"]
    assert (said[1]["tool_calls"][0]["function"]["name"], said[2]["content"]) == ("pay", "paid")


async def test_a_turn_that_failed_is_resumed_and_what_ran_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(PAY, encoding="utf-8")
    said = "/resume\npay 7\n/resume\n/resume\nwell?\n/resume\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    turns: list[ServerTurn] = ["What?", call("pay", order=7)]
    turns += [http_error(400), http_error(400), "All is paid.", "Yes.", "What?"]
    async with openai_server(turns) as server:
        command = ["chat", "--tools", "tools.py", "--model", f"{server.url}#model"]
        assert await asyncio.to_thread(run, command) == 1
    shown = capsys.readouterr()
    assert "All is paid." in shown.out
    assert shown.err.count("/resume continues from there; tools that ran are not run again.") == 2
    assert (tmp_path / "ledger").read_text(encoding="utf-8") == "7\n"
    roles = [m["role"] for m in server.requests[-1]["messages"]]
    assert roles == [  # where nothing has failed, it is a text like any other
        *("user", "assistant", "user", "assistant", "tool", "assistant"),
        *("user", "assistant", "user"),
    ]


async def test_a_cassette_is_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns: list[ServerTurn] = [call("calculate", expression="1+1"), "Two."]
    file = tmp_path / "tapes" / "two.json"

    async def told(server_turns: list[ServerTurn], *more: str) -> tuple[int, str, str]:
        return await chat(server_turns, "1+1?", "--cassette", str(file), *more, capsys=capsys)

    for recorded in (turns, []):
        code, out, err = await told(recorded)
        assert (code, out.splitlines()[-1], err) == (0, "Two.", "")
    code, out, _ = await told([turns[0], "It is two."], "--record")
    assert (code, out.splitlines()[-1]) == (0, "It is two.")
    code, out, _ = await told([])
    assert out.splitlines()[-1] == "It is two."
    code, _, err = await chat([], "1+2?", "--cassette", str(file), capsys=capsys)
    assert code == 1
    assert "was not recorded. Nearest is exchanges[0]" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--record",), "--record needs --cassette FILE"),
        (("--cassette", "x.json", "--model", "local"), "--model: a local model sends no requests"),
    ],
)
def test_a_cassette_that_makes_no_sense(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chat", "hi", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_the_help_names_every_provider(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["chat", "hi", "--model", "nobody:x"]) == 2
    providers = re.findall(r"([a-z-]+):MODEL", capsys.readouterr().err)
    assert len(providers) >= 8
    assert run(["chat", "--help"]) == 0
    assert f"({', '.join(providers)})" in " ".join(capsys.readouterr().out.split())


async def test_only_the_tools_that_fit_are_offered_and_the_model_searches_for_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns: list[ServerTurn] = [
        call("search_tools", query="calculate an arithmetic expression", limit=1),
        call("calculate", expression="2*3"),
        "6",
    ]
    async with openai_server(turns) as server:
        asked = ["chat", "convert 3 miles to km", "--pick", "1", "--scorer", "keyword"]
        code = await asyncio.to_thread(run, [*asked, "--model", f"{server.url}#model"])
    assert (code, capsys.readouterr().err) == (0, "")
    offered = [[t["function"]["name"] for t in r["tools"]] for r in server.requests]
    assert offered[0] == ["search_tools", "convert_units"]
    assert offered[1:] == [["search_tools", "convert_units", "calculate"]] * 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--scorer", "keyword"], "--scorer needs --pick N"),
        (["--pick", "3", "--scorer", "no-such"], "there is no scorer 'no-such'"),
        (["--pick", "0"], "--pick"),
    ],
)
def test_a_pick_that_makes_no_sense(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chat", "hi", "--model", "http://127.0.0.1:9#m", *arguments]) == 2
    assert told in capsys.readouterr().err


def unusable_logs(folder: Path) -> list[str]:
    """URLs of logs that nothing can be written to."""
    (folder / "text.db").write_text("no database at all, whatever its name says", encoding="utf-8")
    (folder / "folder.db").mkdir()
    sealed = AuditLog(f"sqlite:///{folder / 'sealed.db'}", key=b"k" * 32)
    runner = ToolRunner([], sinks=[sealed])
    run_sync(runner.exec(ToolCall("1", "nothing", "{}")))
    run_sync(sealed.aclose())
    names = ("no/such/folder/x.db", "text.db", "folder.db", "sealed.db")
    return [f"sqlite:///{folder / name}" for name in names] + ["nodialect://here", "no-url"]


async def test_no_model_is_asked_where_nothing_can_be_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = await asyncio.to_thread(unusable_logs, tmp_path)
    async with openai_server(["hello"] * len(urls)) as server:
        for url in urls:
            command = ["chat", "hi", "--audit", url, "--model", f"{server.url}#model"]
            assert await asyncio.to_thread(run, command) == 2, url
            assert capsys.readouterr().err.startswith("toolcrib: "), url
        assert server.requests == []


def test_no_tool_runs_where_nothing_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = "from pathlib import Path\nPath('loaded').touch()\n" + RISKY
    (tmp_path / "tools.py").write_text(loaded, encoding="utf-8")
    urls = unusable_logs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for url in urls:
        assert run(["call", "risky", "--tools", "tools.py", "--audit", url]) == 2, url
        assert "--audit" in capsys.readouterr().err or url == "no-url"
    assert not (tmp_path / "loaded").exists()


HANGS = '''
import asyncio
from toolcrib import ALL, tool

@tool(visible=ALL)
def quick() -> int:
    """Come back."""
    return 1

@tool(visible=ALL)
async def hangs() -> str:
    """Never come back."""
    open("running", "w").close()
    await asyncio.Event().wait()
    return ""
'''


async def interrupted(folder: Path, *command: str) -> tuple[int | None, dict[str, object]]:
    """The exit code and the one JSON value of a command that Ctrl-C ends while its tool runs."""
    (folder / "tools.py").write_text(HANGS, encoding="utf-8")
    (folder / "running").unlink(missing_ok=True)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolcrib", *command, "--tools", "tools.py", "--json"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        while not (folder / "running").exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, _ = await child.communicate()
    return child.returncode, json.loads(out)


@pytest.mark.exhaustive
async def test_ctrl_c_with_json_says_what_ran(tmp_path: Path) -> None:
    async with openai_server([call("quick"), call("hangs"), "never"]) as server:
        code, told = await interrupted(tmp_path, "chat", "go", "--model", f"{server.url}#m")
    records = msgspec.json.decode(json.dumps(told["records"]), type=list[ToolInvocationRecord])
    assert (code, told["status"]) == (130, "cancelled")
    assert [(r.name, r.status) for r in records] == [("quick", "completed"), ("hangs", "failed")]


@pytest.mark.exhaustive  # the one before is alike
async def test_ctrl_c_with_json_says_what_became_of_one_call(tmp_path: Path) -> None:
    code, told = await interrupted(tmp_path, "call", "hangs")
    record = msgspec.json.decode(json.dumps(told["record"]), type=ToolInvocationRecord)
    assert (code, record.name, record.status) == (130, "hangs", "failed")


def test_ctrl_c_with_json_is_one_value_where_nothing_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools, "load_catalog", stopped)
    assert run(["tools", "list", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "cancelled"
