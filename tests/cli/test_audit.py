"""`toolcrib audit`: what became of calls and why, from the log alone, and whether it is as it was."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import resource
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg
import pytest
from cli.audit_records import (
    ASKED,
    NOON,
    POLICY_ASKED,
    REJECTED,
    begun,
    ended,
    failed,
    record,
    told,
    written,
)
from rich.console import Console
from samples import sampled

from toolcrib import ALL, Agent, Caller, PickOptions, Tool, ToolCall, ToolRunner, tool
from toolcrib.audit import AuditEntry, AuditLog, Head, RunRecord, SigningKey
from toolcrib.audit.entry import COLUMNS, Seal
from toolcrib.cli import audit, audit_check, render, run
from toolcrib.cli.audit import HIDDEN
from toolcrib.cli.options import UnusableError, log_to_read
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.storage import database
from toolcrib.testing import ScriptedClient, call, openai_server
from toolcrib.testing.scripted import ServerTurn
from toolcrib.urls import without_password
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.decision import Ask
from toolcrib.values.json import to_plain

HOSTILE = "\x1b[2J\u202eevil\nsecond line\ttab"
TOOLS = '''
from toolcrib import ALL, tool

@tool(visible=ALL, safe=False)
def risky(path: str) -> str:
    """Do something risky."""
    return f"done with {path}"
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


Toolcrib = Callable[..., Result]


@pytest.fixture
def toolcrib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Toolcrib:
    """Runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLCRIB_AUDIT", "TOOLCRIB_AUDIT_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("tools.py").write_text(TOOLS, encoding="utf-8")

    def command(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


# What is recorded, and what it is listed as.


def test_a_call_is_recorded_and_its_story_told(toolcrib: Toolcrib) -> None:
    command = ["risky", '{"path": "x"}', "--tools", "tools.py", "--audit", "sqlite:///crib.db"]
    assert toolcrib("call", *command, "--yes").code == 0
    assert toolcrib("call", *command, "--no").code == 1
    refused, approved = (line.split("\t") for line in toolcrib("audit", "list").out.splitlines())
    assert approved[3:6] == ["risky", "completed", "ask by standard, approved by --yes"]
    assert refused[3:6] == ["risky", "approval_refused", "ask by standard, refused by --no"]
    told = toolcrib("audit", "show", approved[2]).out
    assert '"done with x"' in told
    assert (
        "It ran because --yes approved it, after the policy 'standard' asked for an approval "
        "(the tool is marked as not safe)." in told
    )
    assert toolcrib("audit", "verify").code == 0


async def test_a_conversation_is_recorded_too(toolcrib: Toolcrib) -> None:
    turns: list[ServerTurn] = [call("calculate", expression="1+1"), "Two."]
    async with openai_server(turns) as server:
        asked = ["chat", "1+1?", "--model", f"{server.url}#model", "--audit", "sqlite:///crib.db"]
        answer = await asyncio.to_thread(toolcrib, *asked, "--json")
    (called,) = json.loads(answer.out)["records"]
    (entry,) = json.loads((await asyncio.to_thread(toolcrib, "audit", "list", "--json")).out)
    assert entry["record"] == called


def test_a_call_that_waited_and_then_ran_is_one_line(toolcrib: Toolcrib) -> None:
    later: dict[str, Any] = {"started_at": NOON + 5, "decision": ASKED, "approved_by": "eve"}
    waited = record(status="waiting", decision=ASKED)
    written(waited, waited, begun(**later), record(**later), record("call_2", status="waiting"))
    listed = json.loads(toolcrib("audit", "list", "--json").out)
    assert [(e["record"]["id"], e["record"]["status"]) for e in listed] == [
        ("call_2", "waiting"),
        ("call_1", "completed"),
    ]
    waiting = toolcrib("audit", "list", "--status", "waiting").out
    assert [line.split("\t")[2] for line in waiting.splitlines()] == ["call_2"]


def test_the_newest_call_comes_first_and_each_once(toolcrib: Toolcrib) -> None:
    later = {"started_at": NOON + 9, "run_id": "run_2"}
    written(begun(), record(), begun("call_2", **later), begun("call_3", **later))
    lines = [line.split("\t") for line in toolcrib("audit", "list").out.splitlines()]
    assert lines == [
        [
            "2023-11-15 12:00:09.000Z",
            "run_2",
            "call_3",
            "pay",
            "started",
            "allow by standard",
            "",
            "4",
        ],
        [
            "2023-11-15 12:00:09.000Z",
            "run_2",
            "call_2",
            "pay",
            "started",
            "allow by standard",
            "",
            "3",
        ],
        [
            "2023-11-15 12:00:00.000Z",
            "run_1",
            "call_1",
            "pay",
            "completed",
            "allow by standard",
            "250.0 ms",
            "2",
        ],
    ]
    assert len(toolcrib("audit", "list", "--limit", "2").out.splitlines()) == 2
    (entry,) = json.loads(toolcrib("audit", "list", "--limit", "1", "--json").out)
    assert (entry["seq"], entry["record"]["id"]) == (4, "call_3")
    assert set(entry) == {"seq", "at", "record", "previous", "hash", "intact"}


FILTERS: list[tuple[list[str], list[str]]] = [
    ([], ["e", "d", "c", "b", "a"]),
    (["--run", "run_2"], ["b"]),
    (["--call", "c"], ["c"]),
    (["--tool", "look"], ["c"]),
    (["--caller", "bob"], ["d"]),
    (["--status", "failed"], ["d", "b"]),
    (["--status", "started"], ["e"]),
    (["--status", "waiting"], []),
    (["--code", "timeout"], ["d"]),
    (["--caller", "ada", "--status", "failed"], ["b"]),
    (["--since", "1h"], ["e", "d", "c", "b", "a"]),
    (["--until", "1h"], []),
    (["--until", "2100-01-01"], ["e", "d", "c", "b", "a"]),
    (["--since", "2100-01-01T00:00:00+02:00"], []),
    (["--limit", "3"], ["e", "d", "c"]),
    (["--run", "' OR 1=1 --"], []),
]


@pytest.mark.parametrize(("options", "ids"), FILTERS, ids=[" ".join(f[0]) for f in FILTERS])
def test_filters(toolcrib: Toolcrib, options: list[str], ids: list[str]) -> None:
    written(
        begun("a"),
        record("a"),
        failed(ErrorCode.DENIED, "b", run_id="run_2"),
        record("c", name="look"),
        failed(ErrorCode.TIMEOUT, "d", caller="bob"),
        begun("e"),
    )
    listed = json.loads(toolcrib("audit", "list", *options, "--json").out)
    assert [entry["record"]["id"] for entry in listed] == ids
    if "--limit" not in options and "--status" not in options:
        lines = toolcrib("audit", "export", *options).out.splitlines()
        told = [json.loads(line).get("record", {}).get("id") for line in lines]
        exported = [given for given in told if given]  # without a genesis and an end
        assert list(dict.fromkeys(exported)) == ids[::-1]


def test_the_timeline_of_a_run(toolcrib: Toolcrib) -> None:
    read: dict[str, Any] = {
        "repaired": True,
        "repaired_by": "sanitizer",
        "notes": ("single_quotes",),
        "validator": ValidatorInfo("jsonschema-rs", "0.60.0", NOON - 60),
        "approval_id": "apr_1",
        "idempotency_key": "run_1/call_1",
    }
    approved: dict[str, Any] = {"decision": ASKED, "approved_by": "eve", "edited": True, **read}
    written(
        record(status="waiting", decision=ASKED, **read),
        begun(started_at=NOON + 60, **approved),
        record(started_at=NOON + 60, ended_at=NOON + 61, result={"paid": True}, **approved),
        told(REJECTED, None, id_="call_2", arguments=None, validated=False),
    )
    result = toolcrib("audit", "show", "run_1")
    lines = [line.rstrip() for line in result.out.splitlines()]
    started = next(line for line in lines if " started" in line)
    assert [line for line in lines if line != started] == [
        "pay  call_1, run run_1, for ada",
        '  2023-11-15 12:00:00.000Z  asked       {"cents":5}',
        "                            decided     ask by standard: the tool is marked as not safe",
        "  2023-11-15 12:00:00.250Z  waits       for an answer (question apr_1)",
        '  2023-11-15 12:01:00.000Z  asked again {"cents":5}',
        "                            decided     ask by standard: the tool is marked as not safe",
        (
            "                            answered    approved by eve, with other arguments (question "
            "apr_1)"
        ),
        '  2023-11-15 12:01:01.000Z  completed   {"paid":true} (250.0 ms)',
        "                            repaired    by sanitizer",
        "                            read with   single_quotes",
        (
            "                            validated   by jsonschema-rs 0.60.0, compiled 2023-11-15 "
            "11:59:00.000Z"
        ),
        "                            definition  sha256:d1",
        "                            key         run_1/call_1 (process)",
        (
            "                            why         It ran because eve approved it and changed its "
            f"arguments, after {POLICY_ASKED}."
        ),
        "",
        "pay  call_2, run run_1, for ada",
        "  2023-11-15 12:00:00.000Z  asked       arguments that did not validate",
        (
            "  2023-11-15 12:00:00.250Z  failed      invalid_arguments at /cents: expected integer, "
            "got string (250.0 ms)"
        ),
        "                            validated   no",
        "                            definition  sha256:d1",
        (
            "                            why         It did not run: invalid_arguments at /cents: "
            "expected integer, got string."
        ),
    ]


def test_what_follows_an_end_is_not_unknown(toolcrib: Toolcrib) -> None:
    """An earlier version wrote that a call goes on which had ended."""
    claims = [begun("a", started_at=NOON + n, idempotency_key=f"sha256:{n}") for n in range(3)]
    claims = [msgspec.structs.replace(each, process="p") for each in claims]
    written(begun("a"), *claims[:1], record("a"), *claims[1:])
    shown = toolcrib("audit", "show", "a").out
    assert shown.count("goes on") == 3
    assert shown.count("over        it had already ended, so it did not run again") == 2
    assert "does not say how it ended" not in shown


def test_a_story_as_json(toolcrib: Toolcrib) -> None:
    written(begun(), record(), record(run_id="run_2"))
    story = json.loads(toolcrib("audit", "show", "call_1", "--json").out)
    assert story["id"] == "call_1"
    assert [(call["run_id"], len(call["entries"])) for call in story["calls"]] == [
        ("run_1", 2),
        ("run_2", 1),
    ]
    assert story["calls"][0]["why"].startswith("It ran because")


def test_hostile_text_stays_text(toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch) -> None:
    written(
        record(
            HOSTILE,
            name=HOSTILE,
            run_id="run_1",
            caller=HOSTILE,
            arguments={HOSTILE: HOSTILE},
            result=HOSTILE,
            decision=Ask(HOSTILE, HOSTILE),
            approved_by=HOSTILE,
            repaired=True,
            repaired_by=HOSTILE,
            notes=(HOSTILE,),
        )
    )
    for command in (["list"], ["show", "run_1"]):
        shown_text = toolcrib("audit", *command).out
        assert "evil" in shown_text
        assert not {"\x1b", "\u202e"} & set(shown_text)
        assert not any(line.startswith("second") for line in shown_text.splitlines())
    assert toolcrib("audit", "list").out.count("\t") == 7
    shown_json = toolcrib("audit", "list", "--json").out
    assert not {"\x1b", "\u202e"} & set(shown_json)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)
    for module in (audit, audit_check, render):
        monkeypatch.setattr(module, "out", terminal)
    assert run(["audit", "list"]) == 0
    assert "evil" in terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "\u202e" not in terminal.file.getvalue()  # type: ignore[attr-defined]
    exported = toolcrib("audit", "export").out
    assert "\u202e" not in exported
    assert json.loads(exported.splitlines()[1])["record"]["caller"] == HOSTILE


# Whether it is as it was.


# not of entry 0, whose random id of the log may have these letters
OTHER_CALLER = "UPDATE audit_entries SET record = replace(record, 'ada', 'bob') WHERE seq > 0"


def test_a_changed_entry_is_found(toolcrib: Toolcrib) -> None:
    written(begun(), record(), record("call_2"))
    good = toolcrib("audit", "verify")
    assert good.code == 0
    assert good.out.startswith("sqlite:///crib.db: 3 entries, all as written\nhead 3:")
    head = good.out.split()[-1]
    with closing(sqlite3.connect("crib.db")) as database:
        database.execute(OTHER_CALLER)
        database.commit()
    bad = toolcrib("audit", "verify")
    assert (bad.code, bad.err) == (1, "")
    assert bad.out.startswith(
        "sqlite:///crib.db: entry 1: the entry was changed after it was written"
    )
    told_ = json.loads(toolcrib("audit", "verify", "--json", "--head", head).out)
    assert (told_["ok"], told_["fault"]["seq"]) == (False, 1)


CHANGES = {
    "content": "UPDATE audit_entries SET record = replace(record, 'ada', 'bob') WHERE seq = 2",
    "time": "UPDATE audit_entries SET at = at + 1 WHERE seq = 2",
    "hash": "UPDATE audit_entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 2",
    "previous": "UPDATE audit_entries SET previous = upper(previous) WHERE seq = 2",
}


@pytest.mark.parametrize("key", [None, "hush" * 4])
@pytest.mark.parametrize("change", sampled(CHANGES, part=2))
def test_what_is_shown_of_a_changed_row_says_so(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, change: str, key: str | None
) -> None:
    written(record("a"), record("b"), record("c", run_id="run_2"), key=key)
    if key is not None:
        monkeypatch.setenv("TOOLCRIB_AUDIT_KEY", key)
    commands = (["list"], ["show", "run_1"], ["show", "b"], ["export"], ["export", "x", "--json"])
    for command in commands:
        good = toolcrib("audit", *command)
        assert (good.code, good.err, "not as written" in good.out) == (0, "", False)
    with closing(sqlite3.connect("crib.db")) as database:
        database.execute(CHANGES[change])
        database.commit()
    for command in commands:
        bad = toolcrib("audit", *command)
        assert bad.code == 1
        assert bad.err.endswith("run `toolcrib audit verify`\n")
        assert "not as written" in bad.err.splitlines()[-1]
    lines = {line.split("\t")[2]: line for line in toolcrib("audit", "list").out.splitlines()}
    assert "2 (not as written" in lines["b"]
    assert lines["a"].endswith("\t1")
    assert "changed     entry 2 is not as written" in toolcrib("audit", "show", "b").out
    assert toolcrib("audit", "show", "a").code == 0
    listed = json.loads(toolcrib("audit", "list", "--json").out)
    assert not {e["record"]["id"]: e["intact"] for e in listed}["b"]
    (story,) = json.loads(toolcrib("audit", "show", "b", "--json").out)["calls"]
    assert [entry["intact"] for entry in story["entries"]] == [False]
    assert json.loads(toolcrib("audit", "export", "x", "--json").out)["changed"] >= 1


def test_a_recomputed_row_does_not_follow_from_its_neighbours(toolcrib: Toolcrib) -> None:
    written(*(record(name) for name in "abc"))
    with closing(sqlite3.connect("crib.db")) as database:
        (row,) = database.execute("SELECT at, record, previous FROM audit_entries WHERE seq = 2")
        text = row[1].replace("ada", "bob")
        own = Seal(None).entry(Head(1, row[2]), row[0], text).hash
        sql = "UPDATE audit_entries SET record = ?, hash = ?, caller = 'bob' WHERE seq = 2"
        database.execute(sql, [text, own])
        database.commit()
    assert HIDDEN in toolcrib("audit", "show", "b").out  # the tree is not over this one
    for command in ("list", "export"):
        assert toolcrib("audit", command).code == 1


def test_with_another_key_every_row_is_in_doubt(toolcrib: Toolcrib) -> None:
    written(record("a"), key="hush" * 4)
    listed = toolcrib("audit", "list")
    assert (listed.code, "the log has a different key" in listed.out) == (1, True)


RAN = RunRecord(run_id="run_9", status="completed", started_at=NOON, caller="ada")


def test_a_run_whose_record_was_changed_says_so(toolcrib: Toolcrib) -> None:
    async def write() -> None:
        async with AuditLog("sqlite:///crib.db") as log:
            await log.write_run(RAN)

    asyncio.run(write())
    assert toolcrib("audit", "show", "run_9").code == 0
    with closing(sqlite3.connect("crib.db")) as database:
        database.execute(OTHER_CALLER)
        database.commit()
    bad = toolcrib("audit", "show", "run_9")
    assert (bad.code, "not as written" in bad.out) == (1, True)
    (run_,) = json.loads(toolcrib("audit", "show", "run_9", "--json").out)["runs"]
    assert not run_["intact"]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_whose_columns_say_something_else_is_marked(toolcrib: Toolcrib, column: str) -> None:
    """Which rows fit a filter is asked of columns: what they brought here says so."""
    written(record("a"), record("b"), key="k" * 16)
    _by_sql(f"UPDATE audit_entries SET {column} = 'a' WHERE seq = 2")  # noqa: S608
    found = toolcrib("audit", "list", "--json", "--key-file", _key_file())
    rows = {entry["seq"]: entry["intact"] for entry in json.loads(found.out)}
    assert rows.get(2, False) is False
    assert rows[1]
    assert found.code == (1 if 2 in rows else 0)


@pytest.mark.parametrize(("column", "asked"), [("call_id", "a"), ("run_id", "run_1")])
def test_a_story_says_that_its_end_does_not_show(
    toolcrib: Toolcrib, column: str, asked: str
) -> None:
    """An end that is hidden by its columns is known to the sealed index."""
    written(begun("a"), record("a"), key="k" * 16)
    assert toolcrib("audit", "show", asked, "--key-file", _key_file()).code == 0
    _by_sql(f"UPDATE audit_entries SET {column} = 'x' WHERE seq = 2")  # noqa: S608
    shown = toolcrib("audit", "show", asked, "--key-file", _key_file())
    assert shown.code == 1
    assert HIDDEN in shown.out
    story = json.loads(toolcrib("audit", "show", asked, "--json", "--key-file", _key_file()).out)
    assert story["calls"][0]["whole"] is False


def _by_sql(sql: str) -> None:
    with closing(sqlite3.connect("crib.db")) as database:
        database.execute(sql)
        database.commit()


def _key_file() -> str:
    Path("key").write_bytes(b"k" * 16)
    return "key"


def test_an_id_that_looks_like_another_hides_nothing(toolcrib: Toolcrib) -> None:
    """Ids are the provider's: they may have slashes, and look like a run and a call."""
    decoy = record("run_1/a", run_id="run_2", name="decoy", idempotency_key="1")
    deep = record("a/b", name="deep", idempotency_key="2")
    written(decoy, record("a", idempotency_key="3"), deep)
    shown = json.loads(toolcrib("audit", "show", "run_1/a", "--json").out)
    assert [call["name"] for call in shown["calls"]] == ["decoy", "pay"]
    shown = json.loads(toolcrib("audit", "show", "run_1/a/b", "--json").out)
    assert [call["name"] for call in shown["calls"]] == ["deep"]


def test_ids_that_differ_in_what_nobody_sees_look_different(toolcrib: Toolcrib) -> None:
    for at, between in enumerate((" ", "\n", "\t", "\r", "\x1b", "\u2028")):
        written(record(f"c{between}1", run_id=f"r{between}1", idempotency_key=str(at)))
    for command in (["list"], ["show", "r\n1"]):
        out = toolcrib("audit", *command).out
        assert "c\\n1" in out
        assert "r\\n1" in out
    rows = toolcrib("audit", "list").out.splitlines()
    assert len({tuple(row.split("\t")[1:3]) for row in rows}) == len(rows) == 6


def test_a_log_that_nobody_could_check_is_no_changed_one(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.05))
    written(record())
    with closing(sqlite3.connect("crib.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        found = toolcrib("audit", "verify")
        assert (found.code, "SQLITE_BUSY" in found.err) == (4, True)
        found = toolcrib("audit", "verify", "--json")
        assert found.code == 4
        assert json.loads(found.out)["error"]["kind"] == "UncheckedError"
    assert toolcrib("audit", "verify").code == 0
    _by_sql("UPDATE audit_entries SET caller = 'bob'")
    assert toolcrib("audit", "verify").code == 1


@pytest.mark.parametrize(
    "url", ["oracle://host/log", "postgresql+none://host/log", "postgresql+psycopg://host:x/log"]
)
def test_a_log_that_nobody_can_reach_from_here_is_no_changed_one(
    toolcrib: Toolcrib, url: str
) -> None:
    """Its driver is not installed, or its URL is none: each command says so alike."""
    for command in (
        ("verify",),
        ("list",),
        ("show", "a"),
        ("show", "--entry", "1"),
        ("head",),
        ("export",),
        ("export", "log.jsonl"),
        ("migrate",),
        ("prune", "--before", "3d", "--yes"),
    ):
        found = toolcrib("audit", *command, "--log", url)
        assert (found.code, found.out) == (4, ""), command
        assert found.err.startswith(f"toolcrib: {url}: the database")


@pytest.mark.parametrize("missing", ["sqlalchemy", "cryptography"])
def test_a_log_that_cannot_be_checked_without_an_extra_is_no_changed_one(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    public = str(SigningKey.generate("example.com/shop", tmp_path / "shop.key").public)
    written(record())
    assert toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key").code == 0
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    found = toolcrib("audit", "verify", "--checkpoint", "one", "--public-key", public)
    assert (found.code, "pip install" in found.err) == (4, True)


def test_a_head_that_was_kept_needs_no_cryptography(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    written(record("a"))
    head = toolcrib("audit", "head").out.strip()
    written(record("b"))
    assert toolcrib("audit", "verify", "--head", head).code == 0
    with closing(sqlite3.connect("crib.db")) as connection, connection:
        connection.execute("DELETE FROM audit_entries WHERE seq = 1")
    assert toolcrib("audit", "verify", "--head", head).code == 1
    refused = toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop")
    assert (refused.code != 0, "pip install" in refused.err) == (True, True)


async def test_the_runs_of_a_changed_log_are_not_given_unseen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/crib.db"
    async with AuditLog(url) as log:
        await log.write_run(RAN)
        assert len(await log.runs("run_9")) == 1
        with closing(sqlite3.connect(tmp_path / "crib.db")) as database:
            database.execute("UPDATE audit_entries SET at = at + 1")
            database.commit()
        with pytest.raises(SourceError, match="was changed"):
            await log.runs("run_9")


def test_a_call_without_an_id_is_found_by_its_entry(toolcrib: Toolcrib) -> None:
    first = {"arguments": {"cents": 1}, "idempotency_key": ""}
    second = {"arguments": {"cents": 2}, "idempotency_key": "", "started_at": NOON + 1}
    written(record("", **first), record("", **second), record("7"))
    entries = [line.split("\t")[-1] for line in toolcrib("audit", "list").out.splitlines()]
    assert entries == ["3", "2", "1"]
    for entry, cents in (("1", 1), ("2", 2)):
        told_ = toolcrib("audit", "show", "--entry", entry)
        assert (told_.code, told_.out.count("asked"), f'"cents":{cents}' in told_.out) == (
            0,
            1,
            True,
        )
    for nothing in ("0", "9", "99999999999999999999", "²", "-1"):
        assert toolcrib("audit", "show", "--entry", nothing).code == 2


def test_a_number_is_an_id_and_an_entrys_has_its_own_option(
    toolcrib: Toolcrib, tmp_path: Path
) -> None:
    SigningKey.generate("example.com/shop", tmp_path / "shop.key")
    written(record("a"), record("1", run_id="run_2"))
    toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key")

    def shown(*which: str) -> list[str]:
        story = toolcrib("audit", "show", *which, "--json")
        return [call["id"] for call in json.loads(story.out)["calls"]]

    assert (shown("1"), shown("--entry", "1"), shown("--entry", "2")) == (["1"], ["a"], ["1"])
    by_id = toolcrib("audit", "prove", "1", "--checkpoint", "one").out
    assert by_id == toolcrib("audit", "prove", "--entry", "2", "--checkpoint", "one").out != ""
    assert toolcrib("audit", "prove", "--entry", "1", "a.proof", "--checkpoint", "one").code == 0
    assert Path("a.proof").read_text(encoding="utf-8") != by_id
    for command in (["show"], ["prove", "--checkpoint", "one"]):
        missing = toolcrib("audit", *command, "2")
        assert (missing.code, "--entry 2" in missing.err) == (2, True)
        for wrong in ((), ("a", "--entry", "1", "b")[: 4 if "prove" in command else 3], ("",)):
            assert toolcrib("audit", *command, *wrong).code == 2


def test_an_id_may_be_empty(toolcrib: Toolcrib, tmp_path: Path) -> None:
    SigningKey.generate("example.com/shop", tmp_path / "shop.key")
    written(record("a", run_id=""), record("", run_id=""))
    toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key")
    story = json.loads(toolcrib("audit", "show", "", "--json").out)
    assert [call["id"] for call in story["calls"]] == [""]
    proof = toolcrib("audit", "prove", "", "--checkpoint", "one").out
    assert proof == toolcrib("audit", "prove", "--entry", "2", "--checkpoint", "one").out != ""
    assert toolcrib("audit", "show", "", "--entry", "1").code == 2


def test_a_call_that_ends_while_it_is_told_is_no_changed_one(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the index leads to may be newer than the entries that were read, at each look."""
    written(begun("a"))
    find, later = AuditLog.find, [ended(ErrorCode.OUTCOME_UNKNOWN, "a"), record("a")]

    async def ended_before(log: AuditLog, call: Any) -> object:
        if later:
            await log.write(later.pop(0))
        return await find(log, call)

    monkeypatch.setattr(AuditLog, "find", ended_before)
    shown = toolcrib("audit", "show", "a")
    assert (shown.code, "outcome_unknown" in shown.out, HIDDEN in shown.out) == (0, True, False)
    shown = toolcrib("audit", "show", "a")
    assert (shown.code, "completed" in shown.out, HIDDEN in shown.out) == (0, True, False)


async def test_a_reader_who_may_not_read_all_is_told_so(
    toolcrib: Toolcrib, postgres: Callable[[], str]
) -> None:
    """What nobody could look up says nothing about the call."""
    url = postgres()
    async with AuditLog(url) as log:
        await log.write(begun("a"))
        await log.write(record("a"))
    reader, plain = f"reader_{os.getpid()}", url.replace("+psycopg", "")
    asked = ("audit", "show", "a", "--log", url.replace("//crib@", f"//{reader}@"))
    tables = ("audit_entries", "audit_head", "audit_keys", "audit_tiles", "toolcrib_schema")
    with psycopg.connect(plain, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {reader} LOGIN")
        try:
            for missing in tables:
                for name in tables:
                    change = (
                        "REVOKE SELECT ON {} FROM" if name == missing else "GRANT SELECT ON {} TO"
                    )
                    owner.execute(f"{change.format(name)} {reader}")
                shown = await asyncio.to_thread(toolcrib, *asked)
                assert (shown.code, "42501" in shown.err) == (4, True), missing
                assert "not as written" not in shown.err + shown.out
            owner.execute(f"GRANT SELECT ON toolcrib_schema TO {reader}")
            assert (await asyncio.to_thread(toolcrib, *asked)).code == 0
        finally:
            owner.execute(f"DROP OWNED BY {reader}")
            owner.execute(f"DROP ROLE {reader}")


WRONG = ("directory", "pipe", "/dev/null", "empty", "binary", "locked", "loop", "nowhere/x")
FILES: dict[str, list[str]] = {
    "list log": ["list", "--log", "sqlite:///{}"],
    "list key": ["list", "--key-file", "{}"],
    "show log": ["show", "a", "--log", "sqlite:///{}"],
    "show key": ["show", "a", "--key-file", "{}"],
    "verify log": ["verify", "--log", "sqlite:///{}"],
    "verify key": ["verify", "--key-file", "{}"],
    "verify jsonl": ["verify", "--jsonl", "{}"],
    "verify checkpoint": ["verify", "--checkpoint", "{}", "--public-key", "shop.pub"],
    "verify public": ["verify", "--checkpoint", "one", "--public-key", "{}"],
    "head log": ["head", "--log", "sqlite:///{}"],
    "head key": ["head", "--key-file", "{}"],
    "migrate log": ["migrate", "--log", "sqlite:///{}"],
    "migrate key": ["migrate", "--key-file", "{}"],
    "export log": ["export", "--log", "sqlite:///{}"],
    "export key": ["export", "--key-file", "{}"],
    "prune log": ["prune", "--yes", "--before", "1d", "--log", "sqlite:///{}"],
    "prune key": ["prune", "--yes", "--before", "1d", "--key-file", "{}"],
    "keygen": ["keygen", "{}", "--name", "example.com/shop"],
    "checkpoint log": ["checkpoint", "--signing-key", "shop.key", "--log", "sqlite:///{}"],
    "checkpoint key": ["checkpoint", "--signing-key", "shop.key", "--key-file", "{}"],
    "checkpoint signing": ["checkpoint", "--signing-key", "{}"],
    "checkpoint after": ["checkpoint", "--signing-key", "shop.key", "--after", "{}"],
    "checkpoint rotate": ["checkpoint", "--signing-key", "shop.key", "--rotate-to", "{}"],
    "prove log": ["prove", "a", "--checkpoint", "one", "--log", "sqlite:///{}"],
    "prove key": ["prove", "a", "--checkpoint", "one", "--key-file", "{}"],
    "prove checkpoint": ["prove", "a", "--checkpoint", "{}"],
    "inclusion": ["verify-inclusion", "{}", "--public-key", "shop.pub"],
    "inclusion public": ["verify-inclusion", "proof", "--public-key", "{}"],
}


@pytest.mark.parametrize("command", sampled(FILES, part=3))
def test_a_file_of_a_wrong_kind_is_one_line_and_never_waited_for(
    toolcrib: Toolcrib, command: str
) -> None:
    written(record("a"))
    toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop")
    Path("shop.pub").write_text(str(SigningKey.load("shop.key").public), encoding="utf-8")
    assert toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key").code == 0
    assert toolcrib("audit", "prove", "a", "proof", "--checkpoint", "one").code == 0
    Path("directory").mkdir()
    os.mkfifo("pipe")
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)) * 20)
    Path("locked").write_bytes(b"x")
    Path("locked").chmod(0)
    Path("loop").symlink_to("loop")
    before = set(Path().iterdir())
    failed_ = []
    with ThreadPoolExecutor(1) as other:
        for wrong in WRONG:
            arguments = [part.format(wrong) for part in FILES[command]]
            ended = other.submit(toolcrib, "audit", *arguments)
            try:
                result = ended.result(timeout=20)
            except TimeoutError:
                failed_.append((wrong, "it waits"))
                os.close(os.open("pipe", os.O_RDWR))
                continue
            said = result.err.count("\n") + ("verify" in command) * result.out.count("\n")
            if result.code not in (1, 2) or not 1 <= said <= 2 or "Traceback" in result.err:
                failed_.append((wrong, f"{result}"))
            if "Error:" in result.err or "Error(" in result.err:
                failed_.append((wrong, f"{result}"))
    assert failed_ == []
    own = {Path("crib.db-wal"), Path("crib.db-shm")}  # SQLite's, of a log that is only looked into
    assert set(Path().iterdir()) - own == before


def test_a_head_that_was_kept_shows_that_entries_are_gone(toolcrib: Toolcrib) -> None:
    written(record("a"))
    head = toolcrib("audit", "verify").out.split()[-1]
    written(record("b"))
    assert toolcrib("audit", "verify", "--head", head).code == 0
    Path("crib.db").unlink()
    written(record("other"), record("b"))
    assert toolcrib("audit", "verify").code == 0
    assert toolcrib("audit", "verify", "--head", head).code == 1


def test_a_key_comes_from_a_file_or_the_environment(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(record(), key="hush-1 of 16 bytes")
    Path("key").write_bytes(b"hush-1 of 16 bytes\n")
    assert toolcrib("audit", "verify").code == 1
    assert toolcrib("audit", "verify", "--key-file", "key").code == 0
    monkeypatch.setenv("TOOLCRIB_AUDIT_KEY", "hush-1 of 16 bytes")
    assert run(["audit", "verify"]) == 0
    command = ["call", "calculate", '{"expression": "1"}', "--audit", "sqlite:///crib.db"]
    assert run([*command, "--key-file", "key"]) == 0
    assert run(["audit", "export", "log.jsonl"]) == 0
    assert run(["audit", "verify", "--jsonl", "log.jsonl"]) == 0
    monkeypatch.setenv("TOOLCRIB_AUDIT_KEY", "hush-2 of 16 bytes")
    assert run(["audit", "verify", "--jsonl", "log.jsonl"]) == 1


def test_an_export_is_whole_and_can_be_checked(toolcrib: Toolcrib) -> None:
    written(begun(), record(), record("call_2"))
    assert toolcrib("audit", "export", "log.jsonl").out == "log.jsonl: 3 entries written\n"
    assert Path("log.jsonl").stat().st_mode & 0o777 == 0o600
    text = Path("log.jsonl").read_text(encoding="utf-8")
    assert toolcrib("audit", "export").out == text
    said = toolcrib("audit", "verify", "--jsonl", "log.jsonl").out
    assert said == toolcrib("audit", "verify").out.replace("sqlite:///crib.db", "log.jsonl")
    Path("log.jsonl").write_text(text.replace("ada", "bob", 1), encoding="utf-8")
    assert toolcrib("audit", "verify", "--jsonl", "log.jsonl").code == 1
    Path("log.jsonl").write_bytes(text[:-20].encode())
    assert "the last line is incomplete" in toolcrib("audit", "verify", "--jsonl", "log.jsonl").out
    Path("log.jsonl").write_bytes(b"\xff\xfe\n" + text.encode())
    assert toolcrib("audit", "verify", "--jsonl", "log.jsonl").code == 1


def test_what_is_no_file_is_written_to_and_not_replaced(toolcrib: Toolcrib) -> None:
    written(record("a"))
    text = toolcrib("audit", "export").out
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with ThreadPoolExecutor(1) as other:
            read = other.submit(Path(name).read_text, encoding="utf-8")
            assert toolcrib("audit", "export", name).out == f"{name}: 1 entry written\n"
            assert read.result(timeout=30) == text
    assert stat.S_ISFIFO(Path("link").stat().st_mode)
    assert toolcrib("audit", "export", ".").code == 1
    assert sorted(Path().glob(".export*")) == []


@pytest.mark.parametrize("name", ["crib.db", "../{}/crib.db", "crib.db-wal", "crib.db-shm", "link"])
def test_an_export_is_not_put_in_the_place_of_the_log(toolcrib: Toolcrib, name: str) -> None:
    written(record("a"))
    Path("link").symlink_to("crib.db")
    refused = toolcrib("audit", "export", name.format(Path.cwd().name))
    assert refused.code == 2
    assert "it is the log itself" in refused.err
    assert toolcrib("audit", "verify").code == 0


@pytest.mark.parametrize("command", ["checkpoint", "prove"])
@pytest.mark.parametrize("name", ["crib.db", "link", "other.db", "shop.key", "other"])
def test_what_is_signed_is_written_over_nothing_else(
    toolcrib: Toolcrib, name: str, command: str
) -> None:
    written(record("a"))
    toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop")
    toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key")
    Path("link").symlink_to("crib.db")
    shutil.copy("crib.db", "other.db")
    proved = ("prove", "a", "--checkpoint", "one")
    given = proved if command == "prove" else ("checkpoint", "--signing-key", "shop.key")
    other = ("checkpoint", "--signing-key", "shop.key") if command == "prove" else proved
    assert toolcrib("audit", *other, "other").code == 0
    before = Path(name).read_bytes()
    refused = toolcrib("audit", *given, name)
    assert (refused.code, "it already holds something else" in refused.err) == (2, True)
    assert Path(name).read_bytes() == before
    for _ in range(2):
        assert toolcrib("audit", *given, "again").code == 0


def test_an_export_needs_somewhere_to_go(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(record("a"))
    refused = toolcrib("audit", "export", "--json")  # its lines are no one JSON value
    assert (refused.code, json.loads(refused.out)["error"]["kind"]) == (2, "UnusableError")
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["audit", "export"]) == 2
    assert run(["audit", "list", "--json"]) == 0


def test_part_of_a_log_can_be_exported_and_checked(toolcrib: Toolcrib) -> None:
    written(record("a"), record("b", run_id="run_2"), record("c"))
    command = ["audit", "export", "part.jsonl", "--run", "run_1", "--json"]
    assert json.loads(toolcrib(*command).out) == {
        "file": "part.jsonl",
        "entries": 2,
        "changed": 0,
    }
    check = ["audit", "verify", "--jsonl", "part.jsonl"]
    assert toolcrib(*check).code == 1
    filtered = toolcrib(*check, "--filtered")
    assert (filtered.code, "format 1" in filtered.out) == (0, False)
    assert "missing entries cannot be detected" in filtered.out


def test_an_export_that_fails_leaves_what_was_there(toolcrib: Toolcrib) -> None:
    written(record("a"))
    Path("log.jsonl").write_text("before", encoding="utf-8")
    with closing(sqlite3.connect("crib.db")) as database:
        database.execute("DROP TABLE audit_entries")
        database.execute("CREATE TABLE audit_entries (seq INTEGER)")
        database.commit()
    assert toolcrib("audit", "export", "log.jsonl").code == 1
    assert Path("log.jsonl").read_text(encoding="utf-8") == "before"
    assert sorted(Path().glob(".export*")) == []
    assert "cannot be written" in toolcrib("audit", "export", "no/such/log.jsonl").err


@pytest.mark.parametrize("width", [20, 80, 100, 200])
def test_on_a_terminal_no_id_is_broken(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    ids = [f"run_884039ab47245a9e_{n}_0" for n in range(3)]
    written(*map(record, ids))
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, soft_wrap=True)
    for module in (audit, render):
        monkeypatch.setattr(module, "out", terminal)
    assert toolcrib("audit", "list").code == 0
    assert toolcrib("audit", "list", "--tool", "nobody").code == 0
    lines = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(any(each in line for line in lines) for each in ids)
    assert "outcome" in lines[0]
    assert "took" in lines[0]
    assert lines[-1] == "No calls match."


def test_prune_asks_and_leaves_a_note(toolcrib: Toolcrib) -> None:
    written(record("a"), record("b"))
    refused = toolcrib("audit", "prune", "--before", "2100-01-01")
    assert (refused.code, refused.err) == (
        2,
        "toolcrib: there is no terminal to confirm at: pass --yes\n",
    )
    assert len(toolcrib("audit", "list").out.splitlines()) == 2
    done = toolcrib("audit", "prune", "--before", "2100-01-01", "--yes", "--json")
    assert json.loads(done.out)["removed"] == 2
    assert toolcrib("audit", "list").out == ""
    assert toolcrib("audit", "verify").code == 0


# What cannot be used.

UNUSABLE: list[tuple[list[str], int, str]] = [
    (
        ["list", "--log", "sqlite:///no.db"],
        2,
        "no such file; name another with --log URL",
    ),
    (["show", "x", "--log", "sqlite:///no.db"], 2, "there is no such file"),
    (["verify", "--log", "sqlite:///no.db"], 2, "there is no such file"),
    (["export", "--log", "sqlite:///no.db"], 2, "there is no such file"),
    (["prune", "--before", "1d", "--log", "sqlite:///no.db"], 2, "there is no such file"),
    (["list", "--log", "sqlite:///tools.py"], 1, "sqlite:///tools.py: it is not a SQLite database"),
    (["list", "--log", "sqlite:///empty"], 1, "sqlite:///empty: the file is empty: it holds no"),
    (["verify", "--log", "sqlite:///empty"], 1, "sqlite:///empty: the file is empty: it is no"),
    (["list", "--log", "sqlite:///cut.db"], 1, "sqlite:///cut.db: the database cannot be used"),
    (["head", "--log", "sqlite:///cut.db"], 1, "sqlite:///cut.db: the database cannot be used"),
    (["list", "--log", "sqlite:///other.db"], 1, "sqlite:///other.db: it holds no audit log"),
    (["list", "--log", "sqlite://"], 2, "an in-memory database is lost when the program ends"),
    (["list", "--log", "crib.db"], 2, "give the URL of a database, such as sqlite:///crib.db"),
    (["list", "--since", "yesterday"], 2, "--since yesterday: give a time such as"),
    (["list", "--until", "99999-01-01"], 2, "--until 99999-01-01: give a time such as"),
    (
        ["list", "--status", "open"],
        2,
        "--status open: unknown status; use one of started, completed",
    ),
    (["list", "--code", "open"], 2, "--code open: unknown error code; use one of invalid_json"),
    (["list", "--limit", "0"], 2, "--limit"),
    (["show", "nothing"], 2, "it has no run and no call 'nothing'"),
    (["show"], 2, "give either an ID or --entry N"),
    (["show", ""], 2, "it has no run and no call ''"),
    (["verify", "--filtered"], 2, "--filtered needs --jsonl FILE"),
    (["verify", "--head", "7"], 2, "--head: give SEQ:HASH"),
    (["verify", "--jsonl", "no.jsonl"], 2, "--jsonl no.jsonl: No such file"),
    (["verify", "--key-file", "no.key"], 2, "--key-file no.key: No such file"),
    (["verify", "--key-file", "empty"], 2, "--key-file empty: it is empty"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), UNUSABLE, ids=[" ".join(u[0]) for u in UNUSABLE]
)
def test_what_cannot_be_used_is_said_in_one_line(
    toolcrib: Toolcrib, arguments: list[str], code: int, said: str
) -> None:
    written(record())
    Path("empty").touch()
    with closing(sqlite3.connect("crib.db")) as database:  # all of it in one file
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    Path("cut.db").write_bytes(Path("crib.db").read_bytes()[:5_000])
    with closing(sqlite3.connect("other.db")) as database:
        database.execute("CREATE TABLE mine (x INTEGER)")
    before = set(Path().iterdir())
    result = toolcrib("audit", *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert result.err.count("\n") == 1
    assert set(Path().iterdir()) == before
    with closing(sqlite3.connect("other.db")) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_what_is_no_database_is_no_log_as_it_was_written(toolcrib: Toolcrib) -> None:
    result = toolcrib("audit", "verify", "--log", "sqlite:///tools.py", "--json")
    assert (result.code, json.loads(result.out)["ok"]) == (1, False)


def test_the_log_is_where_the_environment_says(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(record(), url="sqlite:///else.db")
    monkeypatch.setenv("TOOLCRIB_AUDIT", "sqlite:///else.db")
    assert len(json.loads(toolcrib("audit", "list", "--json").out)) == 1


def test_a_password_is_not_repeated() -> None:
    url = "postgresql+psycopg://ada:p@ss:word@db.example:5432/crib"
    assert without_password(url) == "postgresql+psycopg://ada:***@db.example:5432/crib"
    assert without_password("sqlite:///crib.db") == "sqlite:///crib.db"
    asked = "postgresql+psycopg://db.example/crib?user=ada&password=hush%21&sslmode=require"
    assert without_password(asked) == "postgresql+psycopg://db.example/crib?…"
    for name in ("sslpassword", "passwd", "passw%6frd", "Password"):
        told = without_password(f"mysql+pymysql://u:a?b@db.example/crib?{name}=hush")
        assert told == "mysql+pymysql://u:***@db.example/crib?…"


def test_a_server_is_not_looked_for_among_the_files() -> None:
    assert isinstance(log_to_read("postgresql+psycopg://ada@db.example/crib", None), AuditLog)
    with pytest.raises(UnusableError):
        log_to_read("sqlite:///no such.db", None)


def test_entries_are_plain_json() -> None:
    entry = AuditEntry(1, NOON, record(), "", "")
    assert json.loads(json.dumps(to_plain(entry)))["record"]["name"] == "pay"


def test_a_key_without_a_log_is_a_mistake(toolcrib: Toolcrib) -> None:
    Path("key").write_bytes(b"hush-1 of 16 bytes\n")
    for command in (["call", "calculate", "{}"], ["chat", "hello"]):
        result = toolcrib(*command, "--key-file", "key")
        assert result == (2, "", "toolcrib: --key-file needs --audit URL\n")


# --- where a call came from -------------------------------------------------------------------------


@tool(visible=ALL)
async def refund(order: int) -> int:
    """Refund an order."""
    return order


@tool(visible=ALL)
async def look(order: int) -> int:
    """Look at an order."""
    return order


@tool(visible=ALL, safe=False)
async def wipe() -> int:
    """Wipe all orders."""
    return 0


def refunded_by_an_agent_in_a_tool() -> tuple[str, str]:
    """The run of an agent that was a tool of another one, and the outer one's."""

    async def go() -> tuple[str, str]:
        runs = []
        async with AuditLog("sqlite:///crib.db", key="k" * 16) as log:
            inner = Agent(
                ScriptedClient([call("refund", order=7), "done"]),
                ToolRunner([look, refund, wipe], sinks=[log]),
                name="refunds",
                version="1.2",
                instructions="Be kind.",
                pick=PickOptions(max_candidates=2, min_score=0.0),
                record_prompts=True,
            )

            @tool(visible=ALL)
            async def delegate() -> str:
                """Have it done."""
                done = await inner.run("Refund order 7.", caller=Caller("ada", ("support",)))
                runs.append(done.state.run_id)
                return done.text

            outer = Agent(
                ScriptedClient([call("delegate"), "done"]), ToolRunner([delegate], sinks=[log])
            )
            result = await outer.run("Do it.")
        return runs[0], result.state.run_id

    return asyncio.run(go())


def test_the_story_tells_where_a_call_came_from(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_AUDIT_KEY", "k" * 16)
    inner, outer = refunded_by_an_agent_in_a_tool()
    first, *rest = toolcrib("audit", "show", inner).out.splitlines()
    assert first.startswith(
        f"run {inner} by refunds 1.2, for ada: completed, turns: 2, calls begun: 1, "
    )
    lines = [line[28:].rstrip() for line in rest]
    facts = {line[:11].rstrip(): line[12:] for line in lines if line[:11].strip()}
    digest = refund.definition.digest
    assert facts["definition"] == f"{digest}: Refund an order."
    assert facts["roles"] == "support"
    assert facts["agent"] == "refunds 1.2, turn 1"
    assert facts["model"] == "scripted"
    assert facts["prompt"].startswith("sha256:")
    assert any(line.endswith("system: Be kind.") for line in lines)
    assert any(line.endswith("user: Refund order 7.") for line in lines)
    assert facts["picked"].startswith("refund 0.")
    assert facts["choice"] == "by keyword"
    assert facts["  offered"].startswith("look 0.")
    assert facts["  left out"].startswith("wipe: ")
    assert facts["called by"] == f"delegate  {outer}_0_0, run {outer}, for anonymous: completed"
    assert facts["why"].startswith("It ran because")
    assert toolcrib("audit", "verify").code == 0


def test_it_is_json_too_and_a_call_can_be_named_with_its_run(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_AUDIT_KEY", "k" * 16)
    inner, outer = refunded_by_an_agent_in_a_tool()
    told = json.loads(toolcrib("audit", "show", f"{inner}/{inner}_0_0", "--json").out)
    (story,) = told["calls"]
    origin = story["entries"][-1]["record"]["origin"]
    attached = story["attachments"]
    assert {found["kind"] for found in attached.values()} == {"definition", "prompt", "choice"}
    assert attached[refund.definition.digest]["text"]["description"] == "Refund an order."
    said = attached[origin["prompt_digest"]]["text"]["messages"]
    assert [message["content"] for message in said] == ["Be kind.", "Refund order 7."]
    assert attached[origin["choice_digest"]]["text"]["scorer"] == "keyword"
    (caller,) = story["called_by"]
    assert (caller["run_id"], caller["name"]) == (outer, "delegate")
    assert toolcrib("audit", "show", f"{inner}/nothing").code == 2
    (run,) = json.loads(toolcrib("audit", "show", outer, "--json").out)["runs"]
    assert (run["run_id"], run["outcome"]) == (outer, "completed")


# Another call under the same id: nobody is told what became of it as what became of this one.


@tool(visible=ALL)
def ship(order: int) -> str:
    """Ship an order."""
    return f"shipped {order}"


@tool(visible=ALL, read_only=True)
def track(order: int) -> str:
    """Say where an order is."""
    return f"order {order} is on its way"


def reading(name: str, description: str) -> Tool[..., str]:
    @tool(name=name, description=description, visible=ALL, read_only=True)
    def other(order: int) -> str:
        return f"other {order}"

    return other


ADA = Caller("ada", ("support",))
Asked = tuple[Tool[..., Any], Caller]
FIRST: Asked = (track, ADA)
OTHERS: list[tuple[str, Asked, dict[str, str]]] = [
    ("tool that reads", (reading("peek", "Look."), ADA), {"name": "tool peek"}),
    ("tool that is refused", (ship, ADA), {"name": "tool ship"}),
    ("caller", (track, Caller("eve", ADA.roles)), {"caller": "caller eve"}),
    ("roles", (track, Caller("ada", ("admin", "root"))), {"caller_roles": "roles admin, root"}),
    ("no roles", (track, Caller("ada")), {"caller_roles": "no roles"}),
    ("definition", (reading("track", "Find it."), ADA), {"definition_digest": "definition"}),
    ("everything", (ship, Caller("eve", ADA.roles)), {"name": "tool ship", "caller": "caller eve"}),
]


def asked_under_one_id(*asked: Asked) -> None:
    """Have each made by a runner of its own, as by another process, under the same id."""

    async def go() -> None:
        for one, caller in asked:
            async with AuditLog("sqlite:///crib.db") as log:
                runner = ToolRunner([one], sinks=[log])
                sent = ToolCall("call_0", one.definition.name, '{"order": 7}')
                await runner.exec(sent, caller=caller)

    asyncio.run(go())


@pytest.mark.parametrize(("other", "differs"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
def test_an_attempt_says_what_it_has_otherwise_than_the_story(
    toolcrib: Toolcrib, other: Asked, differs: dict[str, str]
) -> None:
    asked_under_one_id(FIRST, other)
    digest = other[0].definition.digest
    if digest != track.definition.digest:
        differs = {**differs, "definition_digest": f"definition {digest}"}
    heading, *lines = toolcrib("audit", "show", "call_0").out.splitlines()
    assert heading == "track  call_0, for ada"
    told = [line[28:].rstrip() for line in lines]
    again = next(at for at, line in enumerate(told) if line.startswith("asked again"))
    assert told[again + 1] == f"differs     {'; '.join(differs.values())}"
    assert not any(line.startswith("differs") for line in told[: again + 1])

    (story,) = json.loads(toolcrib("audit", "show", "call_0", "--json").out)["calls"]
    first, second = story["attempts"]
    whose = {entry["seq"]: entry["record"] for entry in story["entries"]}
    assert (first["differs"], set(second["differs"])) == ({}, set(differs))
    assert [*first["entries"], *second["entries"]] == list(whose)
    for seq in second["entries"]:
        assert {name: whose[seq].get(name, []) for name in differs} == second["differs"]
    assert digest in story["attachments"]


def test_an_attempt_before_the_call_that_ran_says_it_too(toolcrib: Toolcrib) -> None:
    """The story is told by the call that ran, whoever came first."""
    first = failed(ErrorCode.DENIED, name="look", caller="eve", started_at=NOON - 5)
    written(first, begun(), record())
    heading, _, differs, *_ = toolcrib("audit", "show", "call_1").out.splitlines()
    assert heading == "pay  call_1, run run_1, for ada"
    assert differs[28:] == "differs     tool look; caller eve"


def test_two_that_were_asked_for_in_one_moment_are_two_attempts(toolcrib: Toolcrib) -> None:
    written(begun(), failed(ErrorCode.DUPLICATE_CALL, name="look", caller="eve"), record())
    (story,) = json.loads(toolcrib("audit", "show", "call_1", "--json").out)["calls"]
    assert story["attempts"] == [
        {"entries": [1, 3], "differs": {}},
        {"entries": [2], "differs": {"name": "look", "caller": "eve"}},
    ]


def test_a_caller_whose_id_another_call_had_too_is_not_named_for_sure(toolcrib: Toolcrib) -> None:
    asked_under_one_id((look, ADA), FIRST)
    written(record("call_1", run_id="", parent_call_id="call_0"))
    told = toolcrib("audit", "show", "call_1").out
    by = "look  call_0, for ada: completed; or another call under this id"
    assert f"called by   {by}\n" in told


def test_a_run_without_calls_is_told_too(toolcrib: Toolcrib) -> None:
    async def go() -> str:
        async with AuditLog("sqlite:///crib.db") as log:
            agent = Agent(ScriptedClient(["Hello."]), ToolRunner([look], sinks=[log]))
            return (await agent.run("Hi.")).state.run_id

    run_id = asyncio.run(go())
    told = toolcrib("audit", "show", run_id).out
    assert told.startswith(f"run {run_id}, for anonymous: completed, turns: 1, calls begun: 0, ")


def test_calls_that_name_each_other_as_callers_are_told_once(toolcrib: Toolcrib) -> None:
    written(
        record("a", parent_run_id="run_1", parent_call_id="b"),
        record("b", parent_run_id="run_1", parent_call_id="a"),
    )
    assert toolcrib("audit", "show", "a").out.count("called by") == 1


def test_checkpoints_from_key_to_proof(toolcrib: Toolcrib, tmp_path: Path) -> None:
    written(begun("a"), record("a"))
    public = toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop").out.strip()
    assert public.startswith("example.com/shop+")
    signed = toolcrib("audit", "checkpoint", "one.checkpoint", "--signing-key", "shop.key")
    assert (signed.code, signed.out) == (0, "")
    written(record("b"))
    verified = ("audit", "verify", "--checkpoint", "one.checkpoint", "--public-key")
    assert toolcrib(*verified, public).code == 0
    Path("shop.pub").write_text(f"{public}\n", encoding="utf-8")
    assert toolcrib(*verified, "shop.pub").code == 0
    assert toolcrib(*verified, public[:-4] + "AAA=").code == 2
    other = toolcrib("audit", "keygen", "other.key", "--name", "example.com/shop").out.strip()
    assert toolcrib(*verified, other).code == 1
    assert toolcrib(*verified[:-1]).code == 2
    after = ("audit", "checkpoint", "--signing-key", "shop.key", "--after", "one.checkpoint")
    assert toolcrib(*after).out.startswith("example.com/shop\n4\n")
    toolcrib("audit", "keygen", "new.key", "--name", "example.com/shop")
    rotated = toolcrib(*after, "--rotate-to", "new.key").out
    Path("two.checkpoint").write_text(rotated, encoding="utf-8")
    told = toolcrib("audit", "verify", "--checkpoint", "two.checkpoint", "--public-key", public).out
    assert "after this checkpoint, checkpoints are signed with example.com/shop+" in told
    toolcrib("audit", "prove", "a", "a.proof", "--checkpoint", "one.checkpoint")
    included = ("audit", "verify-inclusion", "a.proof", "--public-key", public)
    assert json.loads(toolcrib(*included, "--json").out)["entry"]["record"]["id"] == "a"
    Path("crib.db").unlink()
    assert toolcrib(*included).code == 0
    proof = Path("a.proof").read_text(encoding="utf-8")
    Path("a.proof").write_text(proof.replace("index 2", "index 1"), encoding="utf-8")
    assert toolcrib(*included).code == 1
    for made in ("shop.key", "one.checkpoint", "a.proof"):
        assert stat.S_IMODE(Path(made).stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_whole_is_not_written(toolcrib: Toolcrib) -> None:
    """As on a full disk: the earlier checkpoint stays, and no key is left that is none."""
    written(record("a"))
    keygen = ("audit", "keygen", "--name", "x" * 1_000_000)
    sign = ("audit", "checkpoint", "one.checkpoint", "--signing-key", "shop.key")
    assert [toolcrib(*keygen, "shop.key").code, toolcrib(*sign).code] == [0, 0]
    before = Path("one.checkpoint").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for line in (sign, (*keygen, "new.key")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, limits[1]))  # the log's files fit
        try:
            failed = toolcrib(*line)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (failed.code, failed.out) == (1, "")
        assert os.strerror(errno.EFBIG) in failed.err
    assert Path("one.checkpoint").read_bytes() == before
    assert not Path("new.key").exists()
    assert not [*Path().glob(".*.part")]


@pytest.mark.parametrize("option", ["--checkpoint", "--public-key"])
@pytest.mark.parametrize("content", [None, b"", b"hi", b"\xff\xfe", b"a+b+c", b"x\n1\n2\n"])
def test_a_file_that_is_no_checkpoint_or_key_is_named(
    toolcrib: Toolcrib, option: str, content: bytes | None
) -> None:
    """It exits with 2: nothing was found out about the log."""
    written(record("a"))
    public = toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop").out.strip()
    assert toolcrib("audit", "checkpoint", "one", "--signing-key", "shop.key").code == 0
    if content is not None:
        Path("wrong").write_bytes(content)
    given = {"--checkpoint": "one", "--public-key": public} | {option: "wrong"}
    result = toolcrib("audit", "verify", *(part for pair in given.items() for part in pair))
    assert (result.code, result.out) == (2, "")
    assert f"{option} wrong: " in result.err
    if option == "--checkpoint":
        assert toolcrib("audit", "prove", "a", "--checkpoint", "wrong").code == 2
        after = ("audit", "checkpoint", "--signing-key", "shop.key", "--after", "wrong")
        assert "--after wrong: " in toolcrib(*after).err


@pytest.mark.parametrize("kind", ["empty", "another program's"])
def test_a_file_that_is_no_log_is_not_made_one(toolcrib: Toolcrib, kind: str) -> None:
    Path("x.db").touch()
    if kind != "empty":
        with closing(sqlite3.connect("x.db")) as database:
            database.execute("CREATE TABLE mine (x INTEGER)")
    before = Path("x.db").read_bytes()
    for command in ("verify", "head", "list", "export"):
        result = toolcrib("audit", command, "--log", "sqlite:///x.db")
        assert (result.code, result.out) == (1, "")
        assert result.err.count("\n") == 1
    assert "it is not an audit log" in toolcrib("audit", "verify", "--log", "sqlite:///x.db").err
    assert Path("x.db").read_bytes() == before
    assert [path.name for path in Path().glob("x.db*")] == ["x.db"]


def test_a_dash_is_stdout(toolcrib: Toolcrib) -> None:
    written(begun("a"), record("a"))
    assert toolcrib("audit", "export", "-").out == toolcrib("audit", "export").out
    assert toolcrib("audit", "export", "-", "--json").code == 2
    toolcrib("audit", "keygen", "shop.key", "--name", "example.com/shop")
    signed = toolcrib("audit", "checkpoint", "-", "--signing-key", "shop.key").out
    assert signed.startswith("example.com/shop\n")
    Path("one").write_text(signed, encoding="utf-8")
    assert toolcrib("audit", "prove", "a", "-", "--checkpoint", "one").out
    assert not Path("-").exists()


def test_the_head_of_an_empty_log_proves_nothing_of_another(toolcrib: Toolcrib) -> None:
    written(record("a"))
    told = toolcrib("audit", "verify", "--head", "0:" + "0" * 64)
    assert (told.code, "proves nothing" in told.out) == (0, True)
    head = toolcrib("audit", "head").out.strip()
    assert "proves nothing" not in toolcrib("audit", "verify", "--head", head).out


def test_the_head_is_what_verify_takes(toolcrib: Toolcrib) -> None:
    written(begun("a"), record("a"))
    head = toolcrib("audit", "head").out.strip()
    written(record("b"))
    assert toolcrib("audit", "verify", "--head", head).code == 0
    assert json.loads(toolcrib("audit", "head", "--json").out)["seq"] == 3


def test_an_older_log_has_an_exit_code_of_its_own(toolcrib: Toolcrib) -> None:
    old = Path(__file__).parent.parent / "audit" / "format_1.sql"
    with closing(sqlite3.connect("crib.db")) as connection, connection:
        connection.executescript(old.read_text(encoding="utf-8"))
    Path("key").write_text("a key", encoding="utf-8")
    told = toolcrib("audit", "verify", "--key-file", "key")
    assert told.code == 3
    assert "start and end of the log are not sealed" in told.out
    toolcrib("audit", "export", "old.jsonl")
    exported = ("audit", "verify", "--jsonl", "old.jsonl", "--key-file", "key")
    assert toolcrib(*exported).code == 3
    assert toolcrib("audit", "migrate", "--key-file", "key").code == 0
    assert toolcrib("audit", "verify", "--key-file", "key").code == 0
    assert "already" in toolcrib("audit", "migrate", "--key-file", "key").out


def test_a_log_that_was_erased_is_found(toolcrib: Toolcrib) -> None:
    written(begun("a"), record("a"))
    with closing(sqlite3.connect("crib.db")) as connection, connection:
        connection.executescript("DELETE FROM audit_entries; DELETE FROM audit_head")
    assert toolcrib("audit", "verify").code == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
def test_an_export_is_its_owners_and_one_that_is_there_keeps_its_mode(toolcrib: Toolcrib) -> None:
    written(record("a"))
    toolcrib("audit", "export", "log.jsonl")
    assert stat.S_IMODE(Path("log.jsonl").stat().st_mode) == 0o600
    Path("log.jsonl").chmod(0o664)
    toolcrib("audit", "export", "log.jsonl")
    assert stat.S_IMODE(Path("log.jsonl").stat().st_mode) == 0o664
