"""`toolcrib approvals`: questions shown and answered, without the agent that asked them."""

from __future__ import annotations

import asyncio
import getpass
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from rich.console import Console
from rich.text import Text

from toolcrib import (
    ALL,
    ApprovalRequest,
    Approve,
    Caller,
    Refuse,
    ToolCall,
    ToolRunner,
    Waiting,
    tool,
)
from toolcrib.approvals import ApprovalStore
from toolcrib.cli import approvals, render, run
from toolcrib.values.decision import Answer, ForRun

T = TypeVar("T")
HOUR = 3600.0
HOSTILE = "\x1b[2J\u202e\tx\ny"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Result]


def question(name: str, **fields: Any) -> ApprovalRequest:
    now = time.time()
    given: dict[str, Any] = {
        "tool": "refund",
        "arguments": {"cents": 500},
        "reason": "not safe",
        "caller": "ada",
    }
    given |= {"asked_at": now - 2.5 * HOUR, "expires_at": now + 50 * HOUR, "call_id": name}
    return ApprovalRequest(**(given | {"id": f"apr_{name}", "run_id": "run_1"} | fields))


def stored(work: Callable[[ApprovalStore], Awaitable[T]]) -> T:
    async def opened() -> T:
        store = ApprovalStore("sqlite:///crib.db")
        result = await work(store)
        await store.aclose()
        return result

    return asyncio.run(opened())


def ask(*requests: ApprovalRequest) -> None:
    async def save(store: ApprovalStore) -> None:
        for request in requests:
            assert await store(request) is None

    stored(save)


def answer_to(request: ApprovalRequest) -> Answer | None:
    return stored(lambda store: store(request))


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs `approvals` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Result:
        code = run(["approvals", *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


def test_what_waits_is_listed_next_to_lapse_first(command: Command) -> None:
    late = question("late", expires_at=time.time() + 200 * HOUR, asked_at=0.0)
    ask(late, question("soon"))
    result = command("list")
    assert (result.code, result.err) == (0, "")
    assert [line.split("\t") for line in result.out.splitlines()] == [
        ["apr_soon", "refund", '{"cents": 500}', "not safe", "ada", "2 h", "2 d"],
        ["apr_late", "refund", '{"cents": 500}', "not safe", "ada", "?", "8 d"],
    ]


def test_on_a_terminal_each_has_a_paragraph(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(force_terminal=True, no_color=True, width=60, highlight=False, soft_wrap=True)
    monkeypatch.setattr(approvals, "out", screen)
    ask(question("one"))
    with screen.capture() as shown:
        command("list")
    lines = [line.rstrip() for line in Text.from_ansi(shown.get()).plain.splitlines()]
    assert lines == [
        "apr_one  asked 2 h ago, expires in 2 d",
        '  refund {"cents": 500}',
        "  for ada: not safe",
    ]


def test_nothing_waits(command: Command) -> None:
    ask()
    stored(lambda store: store.pending())
    assert command("list") == (0, "", "")
    assert command("list", "--json") == (0, "[]\n", "")


def test_of_one_run_or_caller(command: Command) -> None:
    ask(question("a"), question("b", run_id="run_2"), question("c", caller="eve"))

    def listed(*arguments: str) -> list[str]:
        return [request["id"] for request in json.loads(command("list", "--json", *arguments).out)]

    assert sorted(listed()) == ["apr_a", "apr_b", "apr_c"]
    assert listed("--run", "run_2") == ["apr_b"]
    assert listed("--caller", "eve") == ["apr_c"]


def test_json_holds_the_whole_question(command: Command) -> None:
    asked = question("one", arguments={"text": "x" * 5_000, "n": 2**70}, reason=HOSTILE)
    ask(asked)
    result = command("list", "--json")
    assert render.printable(result.out) == result.out
    (shown,) = json.loads(result.out)
    assert shown["arguments"] == asked.arguments
    assert shown["reason"] == HOSTILE
    assert shown["expires_at"] == asked.expires_at


def test_a_hostile_question_stays_on_its_line(command: Command) -> None:
    ask(question("one", tool=HOSTILE, reason=HOSTILE, caller=HOSTILE, arguments={HOSTILE: HOSTILE}))
    (line,) = command("list").out.splitlines()
    assert render.printable(line) == line
    assert len(line.split("\t")) == 7


INVISIBLE = "a\u3164\u00ad\ufe0f\ufff9\u034f\u202e\u200b"


def test_a_question_marks_defaults_and_shows_what_is_invisible(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(force_terminal=True, no_color=True, width=900, highlight=False, soft_wrap=True)
    hidden = question(
        "one", tool=INVISIBLE, arguments={INVISIBLE: INVISIBLE, "cents": 5}, reason=INVISIBLE,
        caller=INVISIBLE, defaults=("/cents", f"/{INVISIBLE}"),
    )  # fmt: skip
    ask(hidden)
    written = r"a\u3164\u00ad\ufe0f\ufff9\u034f\u202e\u200b"
    said = f'{{"{written}": "{written}", "cents": 5}} (defaults: /cents, "/{written}")'
    short = written.replace("u00ad", "xad")
    assert command("list").out.split("\t")[1:5] == [short, said, short, short]
    with monkeypatch.context() as patched:
        patched.setattr(approvals, "out", screen)
        with screen.capture() as shown:
            command("list")
    assert f"  {short} {said}" in Text.from_ansi(shown.get()).plain
    approved = command("approve", "apr_one", "--by", "grace")
    assert approved.out.replace("\n", "") == f"approved: {short} {said}"


def test_a_question_is_approved_by_name(command: Command) -> None:
    one, two = question("one"), question("two")
    ask(one, two)
    result = command("approve", "apr_one", "--by", "grace")
    assert result == (0, 'approved: refund {"cents": 500}\n', "")
    assert answer_to(one) == Approve("grace")
    assert answer_to(two) is None


def test_a_batch_and_the_login_name(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "lin")
    one, two = question("one"), question("two")
    ask(one, two)
    result = command("refuse", "apr_one", "apr_two", "apr_one", "--reason", "no", "--json")
    assert json.loads(result.out) == {
        "ids": ["apr_one", "apr_two"],
        "answer": {"type": "refuse", "reason": "no", "by": "lin"},
    }
    assert answer_to(one) == answer_to(two) == Refuse("no", "lin")


@pytest.mark.parametrize(
    ("option", "for_run"), [("--for-run", True), ("--for-run-exactly", "exactly")]
)
def test_a_yes_for_the_run(option: str, for_run: ForRun, command: Command) -> None:
    one = question("one")
    ask(one)
    result = command("approve", "apr_one", "--by", "grace", option, "--json")
    assert json.loads(result.out)["answer"] == {
        "type": "approve", "by": "grace", "arguments": None, "for_run": for_run, "always": None,
    }  # fmt: skip
    assert answer_to(one) == Approve("grace", for_run=for_run)


def test_edited_arguments(command: Command) -> None:
    one = question("one")
    ask(one)
    result = command("approve", "apr_one", "--by", "grace", "--arguments", '{"cents": 5}')
    assert result.out == 'approved: refund {"cents": 500}, to run with {"cents": 5}\n'
    assert answer_to(one) == Approve("grace", {"cents": 5})


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_edit_shows_no_secret(command: Command, more: list[str]) -> None:
    """Its name says nothing to whoever has no definition here: only what was shown is no secret."""
    ask(asked := question("one", arguments={"cents": 500, "pin": "***", "to": {"token": "x"}}))
    edit: Any = {"cents": 5, "pin": "canary-1", "other": "canary-2", "to": {"token": "shown"}}
    arguments = ["--by", "grace", "--arguments", json.dumps(edit), *more]
    result = command("approve", "apr_one", *arguments)
    assert (result.code, result.err) == (0, "")
    assert "canary" not in result.out
    assert result.out.count("***") == (2 if more else 3)
    assert "shown" in result.out
    assert answer_to(asked) == Approve("grace", edit)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["approve", "apr_one", "apr_x"], 1, "there is no approval request apr_x"),
        (["approve", "apr_one", "apr_old"], 1, "apr_old has lapsed"),
        (["refuse", "apr_done", "apr_one"], 1, "apr_done was answered before"),
        (["approve"], 2, "Missing argument"),
        (["approve", "apr_one", "--by", " "], 2, "--by is empty: give the name of who answers"),
        (
            ["approve", "apr_one", "--for-run", "--for-run-exactly"],
            2,
            "--for-run already covers any",
        ),
        (["approve", "apr_one", "--arguments", "{"], 2, "--arguments: not valid JSON"),
        (["approve", "apr_one", "--arguments", ""], 2, "--arguments: give one JSON object"),
        (["approve", "apr_one", "--arguments", "{'a': 1}"], 2, "--arguments: give one JSON object"),
        (["approve", "apr_one", "--arguments", "[1]"], 2, "--arguments: the arguments must be"),
        (["approve", "apr_one", "--arguments", '{"a": NaN}'], 2, "--arguments: not valid JSON"),
        (
            ["approve", "apr_one", "--arguments", '{"a": 7.0000000000000001}'],
            2,
            "--arguments: a number would",
        ),
        (["approve", "apr_one", "apr_two", "--arguments", "{}"], 2, "takes one request"),
        (
            ["list", "--store", "sqlite:///none.db"],
            2,
            "no such file; name another with --store URL",
        ),
        (
            ["list", "--store", "nonsense"],
            2,
            "nonsense: give the URL of a database, such as sqlite:///crib.db",
        ),
        (["list", "--store", "sqlite+pysqlite:///none.db"], 2, "there is no such file"),
        (
            ["list", "--store", "sqlite://"],
            2,
            "an in-memory database is lost when the program ends",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    command: Command, arguments: list[str], code: int, told: str
) -> None:
    now = time.time()
    ask(question("one"), question("two"), question("done"))
    stored(lambda store: store.answer("apr_done", Refuse()))
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr("time.time", lambda: now - 100 * HOUR)
        ask(question("old", expires_at=now - HOUR))
    result = command(*arguments)
    assert (result.code, result.out) == (code, "")
    assert told in result.err
    assert len(result.err.splitlines()) == 1
    waiting = stored(lambda store: store.pending())
    assert [request.id for request in waiting] == ["apr_one", "apr_two"]
    assert not Path("none.db").exists()


def test_a_database_of_something_else_is_left_as_it_is(command: Command) -> None:
    with closing(sqlite3.connect("other.db")) as database:
        database.execute("CREATE TABLE mine (x INTEGER)")
    before = Path("other.db").read_bytes()
    for arguments in (["list"], ["approve", "apr_one", "--by", "grace"], ["refuse", "apr_one"]):
        result = command(*arguments, "--store", "sqlite:///other.db")
        assert (result.code, result.out) == (1, "")
        assert "it holds no approvals" in result.err
    assert Path("other.db").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["other.db"]


def test_without_a_login_name_one_has_to_be_said(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError

    monkeypatch.setattr(getpass, "getuser", nobody)
    ask(question("one"))
    result = command("approve", "apr_one")
    assert (result.code, result.err) == (
        2,
        "toolcrib: your login name cannot be found: give --by NAME\n",
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400, "1 d"), (9e6, "104 d")],
)
def test_spans_are_rounded_down(seconds: float, shown: str) -> None:
    assert approvals._span(seconds) == shown


def run_it(name: str, cents: int, caller: str = "ada") -> Any:
    """Run a call in the program that asks, which has the key that the command line uses."""

    file = Path("crib.db.key")
    if not file.exists():
        file.write_bytes(b"k" * 32)
    key = file.read_bytes()

    async def opened() -> Any:
        async with ApprovalStore("sqlite:///crib.db", state_key=key) as store:
            runner = ToolRunner([refund], approver=store)
            call = ToolCall(name, "refund", json.dumps({"order": 7, "cents": cents}))
            return await runner.exec(call, caller=Caller(caller))

    return asyncio.run(opened())


@tool(visible=ALL, safe=False)
async def refund(order: int, cents: int) -> str:
    """Refund a part of an order."""
    return f"refunded {cents} of {order}"


def test_a_rule_is_shown_given_listed_and_revoked(command: Command) -> None:
    asked = run_it("one", 500)
    given = ("approve", asked.request.id, "--by", "grace", "--always", "--open", "cents")
    shown = 'always: refund {"order": 7} with any "cents", for ada\n'
    before = command(*given)
    assert (before.code, before.out) == (2, "")
    assert before.err.startswith(shown)
    assert "pass --yes" in before.err
    assert isinstance(run_it("one", 500), Waiting)
    result = command(*given, "--for", "30d", "--yes")
    assert (result.code, result.err) == (0, shown)
    assert result.out == 'approved, always: refund {"cents": 500, "order": 7}\n'
    assert run_it("one", 500).value == "refunded 500 of 7"
    assert run_it("two", 900).value == "refunded 900 of 7"
    assert isinstance(run_it("three", 900, caller="bob"), Waiting)
    [line] = command("rules", "list").out.splitlines()
    name, pattern, by, at, until = line.split("\t")
    assert (pattern, by) == ('refund {"order": 7} with any "cents", for ada', "grace")
    assert at < until
    [listed] = json.loads(command("rules", "list", "--json").out)
    assert listed["rule"]["open"] == ["cents"]
    assert command("rules", "revoke", name) == (0, f"revoked: {name}\n", "")
    assert command("rules", "list") == (0, "", "")
    assert isinstance(run_it("four", 900), Waiting)
    assert f"there is no rule {name}" in command("rules", "revoke", name).err


def test_a_rule_that_was_changed_is_listed_as_that(command: Command) -> None:
    asked = run_it("one", 500)
    command("approve", asked.request.id, "--by", "grace", "--always", "--yes")
    run_it("one", 500)
    with closing(sqlite3.connect("crib.db")) as connection:
        connection.execute("UPDATE approval_rules SET content = replace(content, '7', '8')")
        connection.commit()
    [line] = command("rules", "list").out.splitlines()
    assert "it was changed, or signed with" in line
    assert command("rules", "revoke", line.split("\t")[0]).code == 0


def test_without_the_key_that_has_signed_none_is_made(command: Command) -> None:
    """Another one than the program's own has signed no question and no rule."""
    asked = run_it("one", 500)
    key = Path("crib.db.key")
    kept = key.rename("elsewhere")
    given = ("approve", asked.request.id, "--by", "grace", "--always", "--yes")
    for arguments in (given, ("rules", "list")):
        result = command(*arguments)
        assert result.code != 0
        assert "crib.db.key: there is no such file: set $TOOLCRIB_STATE_KEY" in result.err
        assert not key.exists()
    kept.rename(key)
    assert command(*given).code == 0


def test_rules_that_are_there_are_revoked_beside_one_that_is_not(command: Command) -> None:
    for name, cents in (("one", 1), ("two", 2)):
        asked = run_it(name, cents)
        command("approve", asked.request.id, "--by", "grace", "--always", "--yes")
        run_it(name, cents)
    first, second = (line.split("\t")[0] for line in command("rules", "list").out.splitlines())
    result = command("rules", "revoke", first, "rule_nope", second)
    assert result.code != 0
    assert result.out == f"revoked: {first}\nrevoked: {second}\n"
    assert "there is no rule rule_nope" in result.err
    assert command("rules", "list").out == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--open", "cents"), "--open, --for and --yes need --always"),
        (("--always", "--for", "soon"), "give a time span such as"),
        (("--always", "--for", "0d"), "give a time span such as"),
        (("--always", "--for-run"), "--always takes one request"),
        (("--always", "--arguments", "{}"), "--always takes one request"),
        (("--always", "--yes", "--open", "cent"), "the call has no argument 'cent'"),
    ],
)
def test_what_is_no_rule_answers_nothing(
    command: Command, options: tuple[str, ...], told: str
) -> None:
    asked = run_it("one", 500)
    result = command("approve", asked.request.id, "--by", "grace", *options)
    assert result.code != 0
    assert told in result.err
    assert isinstance(run_it("one", 500), Waiting)
