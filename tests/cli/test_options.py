"""`--tools WHERE`: one line for whatever cannot be loaded, and nothing of it on stdout."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import each_row

from toolcrib.cli import run
from toolcrib.cli.options import Listed, UnusableError, load_catalog, load_for_picking
from toolcrib.errors import DefinitionError

LOUD = '''
import atexit, sys
from toolcrib import ALL, tool
print("importing")

@tool(visible=ALL)
def loud(a: int) -> int:
    """Shout."""
    return a

def made():
    print("making")
    return [loud]
'''
MCP = {"tools": [{"name": "a-b", "description": "x", "inputSchema": {"type": "object"}}]}
Toolcrib = Callable[..., tuple[int, str, str]]


@pytest.fixture
def toolcrib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Toolcrib]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    Path("p6_loud.py").write_text(LOUD, encoding="utf-8")
    Path("p6_exits.py").write_text("import sys\nsys.exit('bye\\nbye')", encoding="utf-8")
    Path("listing.json").write_text(json.dumps(MCP), encoding="utf-8")
    Path("empty.json").write_text("[]", encoding="utf-8")
    Path("folder.json").mkdir()
    Path("folder.py").mkdir()
    before = set(sys.modules)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield command
    for name in set(sys.modules) - before:
        if name.startswith(("p6_", "toolcrib_file_p6_")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("p6_loud", ["loud"]),
        ("p6_loud:loud", ["loud"]),
        ("p6_loud:made", ["loud"]),
        ("p6_loud.py", ["loud"]),
        ("./p6_loud.py", ["loud"]),
        ("listing.json", ["a-b"]),
    ],
)
def test_what_is_printed_while_loading_goes_to_stderr(
    toolcrib: Toolcrib, where: str, names: list[str]
) -> None:
    code, out, err = toolcrib("tools", "list", "--tools", where, "--json")
    assert (code, [tool["name"] for tool in json.loads(out)]) == (0, names)
    assert ("importing" in err) is where.removeprefix("./").startswith("p6_")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("p6_exits", "--tools p6_exits: SystemExit: bye"),
        ("p6_exits.py", "--tools p6_exits.py: SystemExit: bye"),
        ("folder.json", "--tools folder.json: it is a directory"),
        ("folder.py", "--tools folder.py: it is a directory"),
        (".", "--tools '.': it is a directory: give module:attribute"),
        ("", "--tools '': it names nothing: give module:attribute"),
        ("empty.json", "--tools empty.json: it has no tools"),
        ("entry-points:nope", "no entry point 'nope' in the group toolcrib.tools"),
        ("no_such_p6", "give module:attribute, a module, a Python file"),
        ("mcp:no-such-program-here", "there is no program"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(toolcrib: Toolcrib, where: str, text: str) -> None:
    for command in (["tools", "list"], ["pick", "x"]):
        if command[0] == "pick" and where == "empty.json":
            continue
        code, out, err = toolcrib(*command, "--tools", where)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert text in err


def test_a_file_may_import_what_stands_beside_it_as_a_script_may(
    toolcrib: Toolcrib, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "p6_helper.py").write_text("NAME = 'helped'", encoding="utf-8")
    (beside / "colorsys.py").write_text("raise ValueError('it hides another')", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    text = """
import colorsys
import p6_helper
from toolcrib import ALL, tool
@tool(visible=ALL, name=p6_helper.NAME)
def f(x: int) -> str:
    "Do it now."
    return str(x)
"""
    (beside / "p6_tools.py").write_text(text, encoding="utf-8")
    code, out, err = toolcrib("tools", "list", "beside/p6_tools.py")
    assert (code, out, err) == (0, "helped\tDo it now.\t\n", "")


OTHER = """
from toolcrib import ALL, tool
@tool(visible=ALL, name="quiet")
def quiet(x: int) -> int:
    "Do it later."
    return x
"""


def test_tools_given_twice_are_one_catalog(toolcrib: Toolcrib, tmp_path: Path) -> None:
    """What stands first was dropped: `tools check` said nothing to tools that it had not looked at."""
    (tmp_path / "p6_quiet.py").write_text(OTHER, encoding="utf-8")
    both = ("--tools", "p6_loud.py", "--tools", "p6_quiet.py")
    code, out, _ = toolcrib("tools", "list", *both, "--json")
    assert (code, [tool["name"] for tool in json.loads(out)]) == (0, ["loud", "quiet"])
    assert toolcrib("call", "quiet", '{"x": 3}', *both)[:2] == (0, "3\n")
    assert toolcrib("call", "loud", '{"a": 3}', *both)[0] == 0
    picked = json.loads(toolcrib("pick", "shout", *both, "--json")[1])
    assert [tool["name"] for tool in picked] == ["loud"]
    code, _, err = toolcrib("tools", "list", "--tools", "p6_loud.py", "--tools", "p6_loud:made")
    assert (code, err.count("p6_loud")) == (1, 2)


def test_tools_are_checked_whichever_stands_last(toolcrib: Toolcrib, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('[{"name": "a", "input_schema": 3}]', encoding="utf-8")
    (tmp_path / "p6_quiet.py").write_text(OTHER, encoding="utf-8")
    for order in (("broken.json", "p6_quiet.py"), ("p6_quiet.py", "broken.json")):
        options = [word for where in order for word in ("--tools", where)]
        code, out, _ = toolcrib("tools", "check", *options)
        assert (code, "2 tools: 1 refused" in out) == (1, True)


@pytest.mark.parametrize(
    ("name", "value", "words", "text"),
    [
        (
            "TOOLCRIB_AUDIT",
            "nonsense",
            "audit list",
            "$TOOLCRIB_AUDIT: nonsense: give the URL of a",
        ),
        (
            "TOOLCRIB_AUDIT",
            "sqlite:///no.db",
            "audit list",
            "$TOOLCRIB_AUDIT: sqlite:///no.db: there",
        ),
        ("TOOLCRIB_RUNS", "nonsense", "runs list", "$TOOLCRIB_RUNS: nonsense: give the URL of a"),
        (
            "OPENAI_BASE_URL",
            "localhost:1",
            "chat x -m openai:m",
            "$OPENAI_BASE_URL must begin with http",
        ),
        (
            "OPENAI_API_KEY",
            "sk-ü",
            "chat x -m openai:m",
            "$OPENAI_API_KEY holds a character that is not",
        ),
        (
            "GEMINI_API_KEY",
            "a\nb",
            "chat x -m gemini:m",
            "$GEMINI_API_KEY holds a character that is not",
        ),
    ],
)
def test_a_value_of_the_environment_is_named_as_one(
    toolcrib: Toolcrib,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    words: str,
    text: str,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv(name, value)
    code, out, err = toolcrib(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err
    assert "sk-" not in err


def test_the_kit_if_left_out() -> None:
    assert load_catalog(None).names == tuple(
        tool.get_definition().name for tool in load_for_picking(None)
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript("CREATE TABLE kites (name); INSERT INTO kites VALUES ('Delta')")
    return path


def test_the_kit_reads_a_database_that_is_named(toolcrib: Toolcrib, shop: Path) -> None:
    asked = json.dumps({"sql": "SELECT name FROM kites"})
    code, out, err = toolcrib("call", "query_database", asked, "--database", str(shop), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["result"]["rows"] == [["Delta"]]
    named = toolcrib("tools", "list", "--database", str(shop))
    assert "query_database" in named[1]
    whole = toolcrib("tools", "show", "query_database", "--database", str(shop), "--json")
    assert json.loads(whole[1])["name"] == "query_database"
    code, out, err = toolcrib("call", "query_database", asked)
    assert (code, out) == (1, "")
    assert "no tool of that name" in err


@pytest.mark.parametrize("command", [["call", "calculate"], ["chat", "Hello"]])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--database", "nowhere.db"], "there is no database file 'nowhere.db'"),
        (["--database", "listing.json"], "the file is not a SQLite database"),
        (["--database", "shop.db", "--tools", "p6_loud"], "--database works only with the kit"),
    ],
)
def test_a_database_that_cannot_be_read_is_one_line(
    toolcrib: Toolcrib, shop: Path, command: list[str], options: list[str], text: str
) -> None:
    assert shop.is_file()
    code, out, err = toolcrib(*command, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


def test_picking_takes_names_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"name": "a.b"}\n{"name": "A.b", "input_schema": []}', encoding="utf-8")
    found = load_for_picking([str(path)])
    assert all(isinstance(tool, Listed) for tool in found)
    assert [tool.get_definition().name for tool in found] == ["a.b", "A.b"]


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        ({"description": "x"}, DefinitionError, "a definition has no name"),
        ({"name": 3}, DefinitionError, "a definition has no name"),
        (3, UnusableError, "definition 1 is a int"),
        ({"name": "a", "input_schema": {"maximum": 2**70}}, DefinitionError, "beyond 64 bits"),
    ],
)
def test_what_cannot_be_picked(tmp_path: Path, row: Any, error: type[Exception], text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([row]), encoding="utf-8")
    with pytest.raises(error, match=text):
        load_for_picking([str(path)])


IN_MEMORY = [
    *("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite://", "sqlite://?timeout=1"),
    *("sqlite:///file::memory:?uri=true", "sqlite:///file:x?mode=memory&uri=true"),
]


@each_row(
    "line",
    [
        ["call", "calculate", '{"expression": "1"}', "--audit"],
        ["chat", "hi", "--model", "http://127.0.0.1:9/v1#m", "--audit"],
        ["mcp", "serve", "--audit"],
        ["serve", "--model", "http://127.0.0.1:9/v1#m", "--audit"],
        ["serve", "--model", "http://127.0.0.1:9/v1#m", "--store"],
        *(["runs", name, "x", "--store"] for name in ("show", "cancel", "resume")),
        ["runs", "list", "--store"],
        ["runs", "start", "--agents", "x.py:agents", "a", "hi", "--store"],
        ["runs", "worker", "--agents", "x.py:agents", "--store"],
        ["approvals", "list", "--store"],
        ["audit", "list", "--log"],
    ],
)
@each_row("url", IN_MEMORY)
def test_nothing_is_kept_in_memory(
    line: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a command keeps is for the next one: it says so before anything runs."""
    assert run([*line, url]) == 2
    told = capsys.readouterr()
    assert "an in-memory database is lost when the program ends" in told.err
    assert told.out == ""
