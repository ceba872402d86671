"""Asking at a terminal: what is shown is what would run, and only a clear yes approves."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
import threading
from typing import Any, TextIO

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rows import each_row
from waiting import until

from toolcrib import (
    ALL,
    Agent,
    ApprovalRequest,
    Approve,
    Ask,
    Completed,
    Failed,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    tool,
)
from toolcrib.approvals import ApprovalStore, TerminalApprover, question, shown_arguments
from toolcrib.errors import ErrorCode
from toolcrib.testing import ScriptedClient, call
from toolcrib.threads import Work
from toolcrib.values.context import CallScope, RunTally, ToolApproval
from toolcrib.values.json import JsonObject, digest

CALL = ToolCall("call_0", "delete", '{"path": "a", "password": "hush"}')


@tool(visible=ALL, safe=False, secret=["password"])
async def delete(path: str, password: str = "") -> str:
    """Delete a path."""
    return f"deleted {path}"


def request(**arguments: Any) -> ApprovalRequest:
    return ApprovalRequest("apr", "pay", arguments, "risky", 2.0**40)


@each_row(
    ("typed", "approved"),
    [
        ("y\n", True),
        ("YES\n", True),
        (" y \r\n", True),
        ("n\n", False),
        ("\n", False),
        ("yep\n", False),
        ("y y\n", False),
        ("у\n", False),  # a Cyrillic letter
    ],
)
async def test_only_a_clear_yes_approves(
    typed: str, approved: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    approver = TerminalApprover(source=io.StringIO(typed))
    outcome = await ToolRunner([delete], approver=approver).exec(CALL)
    assert isinstance(outcome, Completed) is approved
    assert 'Run delete {"password": "***", "path": "a"}?' in capsys.readouterr().err
    if isinstance(outcome, Failed):
        assert outcome.error.code is ErrorCode.APPROVAL_REFUSED


@tool(visible=ALL, requires_approval=True)
async def read(path: str) -> str:
    """Read a path."""
    return path


@tool(visible=ALL, requires_approval=True, threat_level="high")
async def wipe(path: str) -> str:
    """Wipe a path."""
    return path


@tool(visible=ALL)
async def write(path: str) -> str:
    """Write a path."""
    return path


def asks_for_all(hydrated: Hydrated, context: PolicyContext) -> Ask:
    return Ask("all calls are asked about", "all")


APPROVED = ToolApproval("apr", "ada", read.get_definition().digest, "anonymous")


@pytest.mark.parametrize("word", ["run", "same"])
@each_row(
    ("made", "run", "notes", "offered"),
    [
        (read, RunTally(), (), True),
        (read, RunTally(), ("written_in_text",), True),
        (read, RunTally(approved=(APPROVED,)), ("written_in_text",), False),
        (write, RunTally(tainted=True), (), True),
        (write, RunTally(), ("written_in_text",), False),
        (write, RunTally(), (), False),
        (delete, RunTally(), (), False),
        (delete, RunTally(tainted=True), (), False),
        (wipe, RunTally(), (), False),
    ],
)
async def test_a_yes_for_the_run_is_offered_where_it_spares_questions(
    made: Any, run: RunTally, notes: Any, offered: bool, word: str, capsys: Any
) -> None:
    run = run.copied()
    approver = TerminalApprover(source=io.StringIO(f"{word}\n"))
    runner = ToolRunner([made], approver=approver, policy=asks_for_all)
    call = ToolCall("1", made.get_definition().name, '{"path": "a"}', notes=notes)
    before = len(run.approved)
    outcome = await runner.exec(call, scope=CallScope(run))
    assert isinstance(outcome, Completed) is offered
    told = "same: yes, and to exactly this for this run, run: yes, and to this tool for this run] "
    assert (told in capsys.readouterr().err) is offered
    assert len(run.approved) == before + offered
    assert not offered or bool(run.approved[-1].arguments_mac) is (word == "same")


async def test_a_yes_may_be_for_always_where_rules_are_kept(capsys: Any) -> None:
    for kept in (False, True):
        async with ApprovalStore("sqlite://", state_key=b"k" * 32) as store:
            approver = TerminalApprover(by="grace", source=io.StringIO("always\n"))
            rules = store if kept else None
            outcome = await ToolRunner([delete], approver=approver, rules=rules).exec(CALL)
            assert isinstance(outcome, Completed) is kept
            assert ("always: yes, and always to exactly this]" in capsys.readouterr().err) is kept
            assert [each.rule.by for each in await store.rules() if each.rule] == ["grace"] * kept


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None])
async def test_without_a_terminal_nobody_is_there_to_answer(
    monkeypatch: pytest.MonkeyPatch, stdin: TextIO | None
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = await ToolRunner([delete], approver=TerminalApprover()).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_REQUIRED
    assert outcome.record.approved_by is None


async def test_a_terminal_that_ended_is_nobodys_no() -> None:
    outcome = await ToolRunner([delete], approver=TerminalApprover(source=io.StringIO())).exec(CALL)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_REQUIRED
    assert outcome.record.refusal == ""


async def test_who_answers_is_named() -> None:
    answer = await TerminalApprover(by="ada", source=io.StringIO("y\n"))(request())
    assert answer == Approve(by="ada")


@each_row(
    "hostile",
    ["\x1b[2Jx", "\u202eabc", "a\r\n[y/N] y", "\x07\x08\x7f\x9b", "\u200b\ufeff", "раураl"],
)
def test_nothing_in_a_question_moves_the_cursor_or_passes_for_something_else(hostile: str) -> None:
    asked = ApprovalRequest("apr", hostile, {hostile: [hostile]}, hostile, 0.0)
    text = question(asked)
    assert text.isascii()
    assert text.isprintable()


def test_a_question_marks_defaults() -> None:
    asked = ApprovalRequest(
        "apr", "pay", {"cents": 5, "to": "a"}, "risky", 0.0, defaults=("/cents", "/x\u202e")
    )
    shown = 'Run pay {"cents": 5, "to": "a"} (defaults: /cents, "/x\\u202e")? (risky) [y/N] '
    assert question(asked) == shown
    many = msgspec.structs.replace(asked, defaults=tuple(f"/{n}" for n in range(23)))
    assert "/19 and 3 more)" in question(many)


@given(st.text("a \n", max_size=9_000), st.lists(st.text(max_size=9_000), max_size=30))
def test_neither_a_reason_nor_a_place_pushes_the_arguments_away(
    reason: str, keys: list[str]
) -> None:
    """A model chooses the keys of dictionaries: they are short, and quoted unless they are plain."""
    defaults = tuple(f"/{key}/n" for key in keys)
    asked = ApprovalRequest("apr", "wipe", {"disk": "sda"}, reason, 0.0, defaults=defaults)
    shown = question(asked)
    assert shown.startswith('Run wipe {"disk": "sda"}')
    assert len(shown) < 6_000
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", shown)  # without what is quoted
    assert bare.count("? (") == 1


def test_a_question_is_one_line() -> None:
    asked = ApprovalRequest("apr", "pay", {}, "a\x1b[2K\n\u202e(safe)", 0.0)
    assert question(asked) == "Run pay {}? (a\\u001b[2K\\n\\u202e(safe)) [y/N] "


@pytest.mark.parametrize(
    "arguments", [{}, {"a": 1}, {"a": {"b": [None, True, "c, d: e}"]}, "f": 0.5}, {"a": "x" * 398}]
)
def test_what_fits_is_shown_whole(arguments: dict[str, Any]) -> None:
    assert json.loads(shown_arguments(arguments)) == arguments


def test_a_long_value_hides_no_other_and_says_what_is_missing() -> None:
    arguments: JsonObject = {"content": f"a{'x' * 98_998}z", "path": "/etc/passwd"}
    shown = shown_arguments(arguments)
    cut = r'"(ax+)" <([0-9,]+) more characters> "(x+z)"'
    found = re.fullmatch(rf'\{{"content": {cut}, "path": "/etc/passwd"\}} <(.*)>', shown)
    assert found is not None
    assert len(found[1]) + int(found[2].replace(",", "")) + len(found[3]) == 99_000
    assert found[4] == digest(arguments)
    assert 15_500 < len(shown) < 16_200


def test_very_many_arguments_are_counted() -> None:
    arguments: JsonObject = {f"argument_{n}": n for n in range(10_000)}
    shown = shown_arguments(arguments)
    assert 15_500 < len(shown) < 16_200
    told = shown.count('"argument_')
    assert f", <{10_000 - told:,} more members>, " in shown
    assert shown.startswith('{"argument_0": 0, ')
    assert shown.endswith(f', "argument_9999": 9999}} <{digest(arguments)}>')


@each_row("most", [4_000, 16_000])
def test_both_ends_of_a_long_list_are_seen(most: int) -> None:
    to: list[Any] = [f"user{n}@example.org" for n in range(2_000)]
    shown = shown_arguments({"body": "b" * 20_000, "to": to, "cc": [{"x": to}]}, most)
    assert '"user0@example.org"' in shown
    assert shown.count('"user1999@example.org"') == 2
    left = re.findall("<([0-9,]+) more items>", shown)
    seen = len(re.findall(r'"user\d+@example.org"', shown))
    assert seen + sum(int(each.replace(",", "")) for each in left) == 4_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=90), inner),
    max_leaves=60,
)


@example({f"{n}{'x' * 99}": None for n in range(9)}, 950)  # with less room for each than it takes
@example({f"{n}{'x' * 99}": [] for n in range(9)}, 950)
@given(st.dictionaries(st.text(max_size=30), JSON, max_size=8), st.integers(400, 4_000))
def test_however_long_a_question_is_whole_or_says_what_is_missing(
    arguments: dict[str, Any], most: int
) -> None:
    shown = shown_arguments(arguments, most)
    assert shown.isascii()
    assert shown.isprintable()
    whole = json.dumps(arguments)
    if len(whole) <= most or shown == whole:
        assert shown == whole
        return
    assert len(shown) <= 1.5 * most + 100
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', shown)
    assert re.findall("<(.*?) more", bare)
    assert all(int(left.replace(",", "")) > 0 for left in re.findall("<(.*?) more", bare))
    assert bare.endswith(f"}} <{digest(arguments)}>")
    assert re.sub(r"<[^<>]*>", "", bare).count("<") == 0


def test_a_value_that_says_it_is_cut_stays_a_text() -> None:
    shown = shown_arguments({"a": '" <9 more characters>'})
    assert shown == '{"a": "\\" <9 more characters>"}'
    cut = shown_arguments({"a": '" <9 more characters> "' * 1_000})
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', cut)
    assert re.findall(r"<[0-9,]+ more characters>", bare) != ["<9 more characters>"]
    assert bare.count("more characters") == 1


class Typist(io.StringIO):
    """A screen in front of which somebody types once a question is shown."""

    def __init__(self, terminal: int, typed: bytes) -> None:
        super().__init__()
        self._terminal = terminal
        self._typed = typed

    def write(self, text: str) -> int:
        os.write(self._terminal, self._typed)
        return super().write(text)


@pytest.fixture
def terminal() -> Any:
    """The side of a person, and what a program reads."""
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as source:
        yield master, source
    os.close(master)


async def test_what_was_typed_before_the_question_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, terminal: tuple[int, TextIO]
) -> None:
    master, source = terminal
    os.write(master, b"yes\nyes\n")
    monkeypatch.setattr(sys, "stderr", Typist(master, b"n\n"))
    assert not isinstance(await TerminalApprover(source=source)(request()), Approve)
    monkeypatch.setattr(sys, "stderr", Typist(master, b"yes\n"))
    assert isinstance(await TerminalApprover(source=source)(request()), Approve)


async def test_a_question_that_was_given_up_leaves_the_next_line_alone(
    monkeypatch: pytest.MonkeyPatch, terminal: tuple[int, TextIO]
) -> None:
    master, source = terminal
    approver, before = TerminalApprover(source=source), Work.left_behind
    task = asyncio.ensure_future(approver(request()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: Work.left_behind == before)  # the thread that would have read
    os.write(master, b"for somebody else\n")
    assert source.readline() == "for somebody else\n"
    monkeypatch.setattr(sys, "stderr", Typist(master, b"yes\n"))
    assert isinstance(await approver(request()), Approve)


def test_one_approver_serves_several_loops() -> None:
    approver = TerminalApprover(source=io.StringIO("y\ny\ny\ny\n"))

    async def two() -> list[object]:
        return list(await asyncio.gather(approver(request()), approver(request())))

    for _ in range(2):
        assert all(isinstance(answer, Approve) for answer in asyncio.run(two()))


async def test_several_questions_are_asked_one_after_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    approver = TerminalApprover(source=io.StringIO("y\nn\n"))
    answers = await asyncio.gather(approver(request(n=1)), approver(request(n=2)))
    assert [isinstance(answer, Approve) for answer in answers] == [True, False]
    assert capsys.readouterr().err == (
        'Run pay {"n": 1}? (risky) [y/N] Run pay {"n": 2}? (risky) [y/N] '
    )


def test_one_question_at_a_time_however_many_loops_ask() -> None:
    """Two loops in turns: neither may make the other forget whose turn it is."""

    class Counting(io.StringIO):
        asking = 0
        most = 0

        def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
            Counting.asking += 1
            Counting.most = max(Counting.most, Counting.asking)
            line = super().readline()
            together.wait(0.01)
            Counting.asking -= 1
            return line

    together = threading.Event()
    approver = TerminalApprover(source=Counting("y\n" * 40))

    async def asks() -> list[Any]:
        return await asyncio.gather(*(approver(request(n=n)) for n in range(5)))

    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.extend(asyncio.run(asks()))) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Approve(by="terminal")] * 20
    assert Counting.most == 1


async def test_a_word_that_was_not_entered_is_no_answer() -> None:
    """A `y` before Ctrl-D, or before the connection is lost."""
    outcome = await ToolRunner([delete], approver=TerminalApprover(source=io.StringIO("y"))).exec(
        CALL
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.APPROVAL_REQUIRED


async def test_what_came_before_a_question_is_printed_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program that prints the events of a run, and asks at the same terminal."""
    approver = TerminalApprover(source=io.StringIO("y\n"))
    model = ScriptedClient([["I delete it.", call("delete", path="a")], "Done."])
    stream = Agent(model, ToolRunner([delete], approver=approver)).stream("Delete a.")
    async for event in stream:
        sys.stderr.write(f"{type(event).__name__}\n")
        await asyncio.sleep(0)
    printed = capsys.readouterr().err
    before, _, after = printed.partition("Run delete ")
    assert before.split()[-2:] == ["ToolCallStarted", "ApprovalRequested"]
    assert after.split()[-1] == "Done"
