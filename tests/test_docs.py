"""README and docs tell the truth: their programs run, their commands print what they say."""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

from children import run
from relayed import relayed
from rows import each_row
from samples import sampled

import toolcrib
from toolcrib import errors
from toolcrib.values.definition import AnnotationOptions

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = ROOT / "docs" / "names.md"
INDEX = ROOT / "docs" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# What is another one each time; in a page it stands as it looked once.
VARIES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z|[\d.]+ ms|\d+\.\d+\.\d+|[0-9a-f]{4}…")
# An example whose tool fails, or that asks where nobody answers: the logger says so.
LOGGED = re.compile(r"tool '\w+' raised |a call of tool '\w+' needs an approval, ")


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [body for kind, body in found if kind == language]


TUTORIAL = ROOT / "docs" / "tutorial.md"  # tests/test_tutorial.py goes through it step by step
TESTABLE = [
    page
    for page in PAGES[1:]  # the README's one program has a test of its own
    if page != TUTORIAL and (blocks(page, "python") or blocks(page, "console"))
]


@functools.cache
def servers() -> str:
    """A folder with the server of MCP that pages start, which would import for longer than it runs."""
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-servers-"))
    atexit.register(shutil.rmtree, folder)
    server = folder / "mcp-server-time"
    start = shlex.join(relayed("-m", "mcp_server_time"))
    server.write_text(f'#!/bin/sh\nexec {start} "$@"\n', encoding="utf-8")
    server.chmod(0o755)
    return str(folder)


def program(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = str(Path(sys.executable).parent)
    programs = os.pathsep.join([servers(), here, os.environ.get("PATH", "")])
    source = {"PYTHONPATH": str(ROOT / "src"), "PATH": programs}
    shown = {"COLUMNS": "100", "PYTHONWARNINGS": "error"}
    return run(*arguments, cwd=cwd, env=os.environ | source | shown)


def printed_by(command: str, cwd: Path) -> str:
    """Run a line of a shell that has one command, `toolcrib`, and one redirection, `>`."""
    line, _, target = command.partition(" > ")
    name, *arguments = shlex.split(line)
    assert name == "toolcrib", command
    done = program(cwd, "-m", "toolcrib", *arguments)
    if not target:
        return done.stdout + done.stderr
    (cwd / target).write_text(done.stdout, encoding="utf-8")
    return done.stderr


def commands(page: Path) -> list[tuple[str, str]]:
    """Command and expected output of each `$` line of the console blocks."""
    parts = [
        part.partition("\n")
        for block in blocks(page, "console")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    return [(command, output) for command, _, output in parts]


def is_as_shown(printed: str, shown: str) -> bool:
    """`…` stands for anything."""
    lines = "\n".join(line.rstrip() for line in printed.splitlines()).strip()
    pattern = re.escape(VARIES.sub("…", shown.strip())).replace("…", ".*?")
    return re.fullmatch(pattern, lines, re.DOTALL) is not None


@each_row("page", sampled(TESTABLE, part=3), ids=lambda page: page.name)
def test_a_page_tells_the_truth(page: Path, tmp_path: Path, embedded_model: Path) -> None:
    """Its programs run, as one; then its commands, on what they left, print what it says."""
    del embedded_model  # some of them ask it
    source = "\n\n".join(blocks(page, "python"))
    if source:
        script = tmp_path / "page.py"
        script.write_text(source, encoding="utf-8")
        done = program(tmp_path, str(script))
        told = [line for line in done.stderr.splitlines() if not LOGGED.match(line)]
        assert (done.returncode, told) == (0, [])
    for command, output in commands(page):
        printed = printed_by(command, tmp_path)
        assert is_as_shown(printed, output), f"$ {command}\n{printed}"


def test_the_example_of_the_readme_prints_what_stands_below_it(
    tmp_path: Path, embedded_model: Path
) -> None:
    del embedded_model
    (source,), (shown,) = blocks(ROOT / "README.md", "python"), blocks(ROOT / "README.md", "text")
    done = program(tmp_path, "-c", source)
    assert (done.stdout, done.stderr) == (shown, "")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@each_row("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index() -> None:
    listed = set(LINK.findall(INDEX.read_text(encoding="utf-8")))
    assert {page.name for page in INDEX.parent.glob("*.md")} - listed == {INDEX.name}


def named(text: str) -> set[str]:
    """The identifiers that stand in code: `tool`, `client_for("openai:NAME")`."""
    return {found[1] for found in re.finditer(r"`(\w+)[`(]", text)}


def test_every_public_name_is_told() -> None:
    """On the page of names, or among the events."""
    pages = [NAMES, ROOT / "docs" / "agents.md"]
    told = set().union(*(named(page.read_text(encoding="utf-8")) for page in pages))
    assert set(toolcrib.__all__) - told == set()


def test_every_word_of_the_decorator_is_told() -> None:
    page = (ROOT / "docs" / "defining-tools.md").read_text(encoding="utf-8")
    said = inspect.signature(typing.get_overloads(toolcrib.tool)[0]).parameters
    words = {*said, *AnnotationOptions.__annotations__}
    words -= {"annotations", "parameters"}  # the rest of them; another word for input_schema
    assert [
        word for word in sorted(words) if f"{word}=" not in page and f"`{word}`" not in page
    ] == []


def test_every_error_is_told_with_its_family() -> None:
    tree = inspect.getdoc(errors) or ""
    branches = [line.strip() for line in tree.splitlines() if re.match(r"\s*[├│└]", line)]
    told = NAMES.read_text(encoding="utf-8")
    assert branches
    assert [line for line in branches if line not in told] == []


def test_the_rooms_hold_what_is_told_of_them() -> None:
    rooms = re.findall(r"^\| (`\..+?) \| (.+) \| .+ \|$", NAMES.read_text(encoding="utf-8"), re.M)
    assert len(rooms) == 17
    for paths, held in rooms:
        modules = [importlib.import_module(f"toolcrib{p}") for p in re.findall(r"`(.+?)`", paths)]
        for name in named(held):
            assert any(hasattr(module, name) for module in modules), (paths, name)


def test_each_promise_is_held_by_a_test_that_exists() -> None:
    """`path::name` as written in the tables, where `::name` alone is in the file before it."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))]
    tables = [page for page in pages if "| held by |" in page]
    rows = [row for page in tables for row in page.splitlines() if "`tests/" in row]
    text = "\n".join(rows)
    file, named = "", 0
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`", text):
        if not (path or name):
            continue
        file = path or file
        source = ROOT / file
        assert source.is_file(), file
        if name:
            assert f"def {name}(" in source.read_text(encoding="utf-8"), f"{file}::{name}"
            named += 1
    assert named > 300
