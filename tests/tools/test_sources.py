"""Where tools come from: every form of a source, and every way in which one can be broken."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from rows import each_row

from toolcrib import ALL, Catalog, capability, tool
from toolcrib.errors import CatalogError, DefinitionError, SchemaError, SourceError
from toolcrib.tools import (
    DefinitionsFile,
    EntryPoints,
    ModuleTools,
    PythonFile,
    Tools,
    ToolSource,
    discover,
    read_definitions,
    source_of,
)

HEAD = "from toolcrib import ALL, Catalog, tool\n"
TOOL = '''
@tool(visible=ALL)
def {name}(a: int) -> int:
    """Give it back."""
    return a
'''
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OURS = {"name": "ours", "description": "Our own.", "input_schema": SCHEMA}
MCP = {
    "name": "fs/read-file.v1",
    "title": "Read a file",
    "description": "Read it.",
    "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", **SCHEMA},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "destructiveHint": False},
    "_meta": {"x": 1},
}

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file into an importable folder; its path, or the name of its module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def written(name: str, content: Any) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def code(*names: str, rest: str = "") -> str:
    return HEAD + "".join(TOOL.format(name=name) for name in names) + textwrap.dedent(rest)


def test_a_module_gives_every_tool_in_the_order_of_the_file(write: Write) -> None:
    write("p6_shop.py", code("zeta", "alpha", rest="again = zeta\n"))
    assert discover("p6_shop").names == ("zeta", "alpha")
    assert discover(sys.modules["p6_shop"]).names == ("zeta", "alpha")
    assert [e.source for e in discover("p6_shop").entries] == ["p6_shop", "p6_shop"]


REST = """
catalog = Catalog([zeta]).prefixed("ready_")
one = zeta
several = [zeta, alpha]
as_tuple = (alpha,)
definition = {"name": "d", "description": "", "input_schema": {"type": "object"}}
bare = zeta.get_definition()
def made(): return [alpha]
def generated(): yield zeta
class holder:
    inner = alpha
"""


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("", ("ready_zeta",)),
        (":catalog", ("ready_zeta",)),
        (":one", ("zeta",)),
        (":several", ("zeta", "alpha")),
        (":as_tuple", ("alpha",)),
        (":definition", ("d",)),
        (":bare", ("zeta",)),
        (":made", ("alpha",)),
        (":generated", ("zeta",)),
        (":holder.inner", ("alpha",)),
    ],
)
def test_what_an_attribute_may_be(write: Write, attribute: str, names: tuple[str, ...]) -> None:
    write("p6_shop.py", code("zeta", "alpha", rest=REST))
    assert discover(f"p6_shop{attribute}").names == names


def test_a_file_may_be_called_like_a_module_of_python(write: Write) -> None:
    first = write("a/json.py", code("alpha"))
    second = write("b/json.py", code("beta"))
    assert discover(first, Path(second)).names == ("alpha", "beta")
    assert sys.modules["json"] is json
    assert discover(first).names == ("alpha",)


@capability
class Clock(Protocol):
    def now(self) -> float: ...


class FixedClock:
    def now(self) -> float:
        return 5.0


@tool(visible=ALL)
def alpha(clock: Clock) -> float:
    """Tell the time."""
    return clock.now()


class Given:
    """A source of one's own."""

    name = "a source of one's own"

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def tools(self) -> Tools:
        return self._tools


def test_a_source_of_ones_own_keeps_its_bindings() -> None:
    found = discover(Given(Catalog([alpha]).bind({Clock: FixedClock()})))
    found.check_bound()
    assert isinstance(Given([]), ToolSource)
    assert [e.source for e in found.entries] == ["a source of one's own"]
    assert discover().names == ()


@tool(visible=ALL)
def discover_me(a: int) -> int:
    """Give it back."""
    return a


def test_a_module_that_was_made_by_hand_is_itself_the_source() -> None:
    """Its name may be that of another one."""
    module: Any = types.ModuleType("json")
    module.here = discover_me
    found = discover(module)
    assert found.names == ("discover_me",)
    assert found.entries[0].source == "json"


@each_row(
    ("where", "source"),
    [
        ("pkg.mod", ModuleTools("pkg.mod")),
        ("pkg.mod:attr", ModuleTools("pkg.mod", "attr")),
        ("pkg:a.b", ModuleTools("pkg", "a.b")),
        ("dir/x.py", PythonFile(Path("dir/x.py"))),
        (Path("x.py"), PythonFile(Path("x.py"))),
        ("x.json", DefinitionsFile(Path("x.json"))),
        ("x.jsonl", DefinitionsFile(Path("x.jsonl"))),
        ("entry-points", EntryPoints()),
        ("entry-points:a,b", EntryPoints(("a", "b"))),
    ],
)
def test_which_source_is_meant(where: Any, source: object) -> None:
    assert source_of(where) == source
    assert source_of(where).name == str(where)


@each_row(
    ("where", "text"),
    [
        ("", "it names nothing: give module:attribute, a module, a Python file"),
        ("a b", "'a b': it is not a source of tools"),
        ("pkg:", "it is not a source of tools"),
        ("pkg:a b", "it is not a source of tools"),
        (":x", "it is not a source of tools"),
        ("./", "'./': it is a directory"),
        ("a/b", "it is not a source of tools"),
        ("tools.yaml:x.y:z", "it is not a source of tools"),
        ("mcp:server", "async with mcp_catalog"),
        ("mcp:servers.json", "async with mcp_catalog"),
        ("https://me:hidden@x/mcp", r"https://me:\*\*\*@x/mcp: nothing is fetched.* mcp:URL"),
        ("http://x/tools.json", "nothing is fetched"),
        ("entry-points:", "name an entry point after the colon"),
        ("entry-points: ,", "name an entry point after the colon"),
        (
            "tools.py:x",
            "tools.py:x: name the file alone, to take its `catalog` .* one of them, .* MODULE:x",
        ),
        (3, "a int is not a source of tools"),
        (Given, "a type is not a source of tools"),
        ("no_such_module_p6", "No module named 'no_such_module_p6' .give module:attribute"),
        ("no_such_p6.mod:x", "No module named 'no_such_p6' .give module:attribute"),
        ("json:nothing", "json:nothing: the module has no 'nothing'"),
        ("json:decoder.nothing", "the module has no 'decoder.nothing'"),
        ("json:__doc__", "it is not a Catalog, a tool or a list of tools"),
        ("json", "json: no tools in it; decorate them"),
        ("no/such.py", "no/such.py: there is no such file"),
        ("no/such.json", "no/such.json: there is no such file"),
    ],
)
def test_what_is_no_source(where: Any, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        discover(where)


@each_row("name", ["bin", "shop.tools", "my tools", "tools.txt"])
def test_a_file_whose_name_ends_otherwise_is_said_to_be_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("x = 1")
    with pytest.raises(
        SourceError, match=r"it is a file, and its name ends in .*, not in .py: give"
    ):
        discover(name)


GIVERS = """
from __future__ import annotations
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from toolcrib.tools import Tool
called = []
class Row(NamedTuple):
    id: int
def wipe(path: str) -> str:
    "Wipe it."
    called.append("wipe")
    return path
def now() -> str:
    "Tell the time."
    called.append("now")
    return ""
def unhinted(path: str):
    "Wipe it."
    called.append("unhinted")
def rows() -> list[dict[str, Any]]:
    "List the rows."
    called.append("rows")
    return []
def row() -> Row:
    "Give the row."
    called.append("row")
    return Row(1)
async def later() -> str:
    "Tell the time."
    called.append("later")
    return ""
def listed() -> list[Callable[..., Any]]:
    return [zeta]
def some(number: int = 1) -> Catalog | None:
    return Catalog([zeta])
def each() -> Iterator[Tool[..., Any]]:
    yield zeta
def bare() -> list:
    return [zeta]
def anything() -> Any:
    return [zeta]
def unread() -> Iterator[Absent]:
    yield zeta
def unsaid():
    return [zeta]
def none() -> None:
    "Do it."
    called.append("none")
def search(query: str) -> list:
    "Search."
    called.append("search")
    return []
"""


@each_row("name", ["wipe", "now", "unhinted", "rows", "row", "later", "none", "search"])
def test_a_plain_function_that_gives_no_tools_is_one_and_is_not_called(
    write: Write, name: str
) -> None:
    """To list the tools ran it: unchecked, with nobody asked, and in no record."""
    write("p6_givers.py", GIVERS)
    found = discover(f"p6_givers:{name}")
    assert found.names == (name,)
    assert sys.modules["p6_givers"].called == []


@each_row("name", ["listed", "some", "each", "bare", "anything", "unread", "unsaid"])
def test_a_function_whose_hint_says_tools_is_called_for_them(write: Write, name: str) -> None:
    write("p6_givers.py", GIVERS + code("zeta"))
    assert discover(f"p6_givers:{name}").names == ("zeta",)


BROKEN: list[tuple[str, str, str, type[Exception], str]] = [
    ("syntax", "def x(:\n", "", SourceError, "SyntaxError: "),
    ("null", "a = 1\0", "", SourceError, "SyntaxError|ValueError"),
    ("exits", "import sys\nsys.exit(3)", "", SourceError,
     r"SystemExit: 3, at .*p6_broken\.py:2 in <module> .it ends the program .* `if __name__ == "),
    ("exits silently", "raise SystemExit", "", SourceError,
     r"SystemExit, at .*:1 in <module> \(it ends"),
    ("panics", "class Panic(BaseException): ...\nraise Panic('x')", "", SourceError,
     "Panic: x, at .*:2 in <module>$"),
    ("no text", "class E(Exception):\n def __str__(self): return 1/0\nraise E", "", SourceError,
     ": E, at .*:3 in <module>$"),
    ("a module that raises when asked", code("a", rest="def __getattr__(n): return 1/0"), "",
     SourceError, "ZeroDivisionError: division by zero"),
    ("a thing that raises when looked at", code("a", rest="""
class X:
    @property
    def __class__(self): return 1/0
x = X()"""), "", SourceError, "ZeroDivisionError"),
    ("raises", "raise ValueError('a\\nb')", "", SourceError,
     r"ValueError: a, at .*p6_broken\.py:1 in <module>$"),
    ("imports", "import no_such_p6", "", SourceError,
     r"No module named 'no_such_p6', at .*p6_broken\.py:1 in"),
    ("empty", "", "", SourceError, "no tools in it"),
    ("undecorated", HEAD + "def f(): ...", "", SourceError, "no tools in it"),
    ("wrong tool", HEAD + "@tool(visible=ALL)\ndef f(a): ...", "", DefinitionError, "no schema"),
    ("twice", code("a", rest="b = tool(visible=ALL, name='A')(a.__wrapped__)"), "",
     CatalogError, "'A' and 'a' differ only in case .both from"),
    ("listed wrong", code("a", rest="x = [a, 3]"), ":x", DefinitionError, "int is no tool"),
    ("async", code("a", rest="async def x(): return [a]"), ":x", SourceError, "it is async"),
    ("raises late", code("a", rest="def x():\n yield a\n raise KeyError(1)"), ":x",
     SourceError, "KeyError: 1"),
    ("raises when called", code("a", rest="def x(): raise TypeError('no')"), ":x", SourceError,
     "TypeError: no, at .* in x$"),
    ("gives a number", code("a", rest="def x(): return 3"), ":x", SourceError, "a list of tools"),
    ("a class", code("a", rest="class x: ..."), ":x", DefinitionError, "x is no tool"),
    ("toolcrib", HEAD + "Catalog([3])", "", DefinitionError, "int is no tool"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "attribute", "error", "text"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
def test_broken_modules(
    write: Write, content: str, attribute: str, error: type[Exception], text: str
) -> None:
    path = write("p6_broken.py", content)
    with pytest.raises(error, match=text) as raised:
        discover(f"p6_broken{attribute}")
    assert "p6_broken" in str(raised.value)
    if not attribute:
        with pytest.raises(error, match=text) as raised:
            discover(path)
        assert path in str(raised.value)


def test_a_file_that_fails_leaves_no_module_behind(write: Write) -> None:
    path = write("p6_broken.py", "raise ValueError")
    with pytest.raises(SourceError):
        discover(path)
    assert not [name for name in sys.modules if "p6_broken" in name]


def test_two_sources_of_one_name_are_both_named(write: Write) -> None:
    write("p6_one.py", code("alpha"))
    other = write("other.json", [{**OURS, "name": "Alpha"}])
    with pytest.raises(CatalogError, match=r"from .*other\.json and from p6_one") as raised:
        discover("p6_one", other)
    assert "rename one, or use .prefixed()" in str(raised.value)
    merged = Catalog([discover("p6_one"), discover(other).prefixed("o_")])
    assert merged.names == ("alpha", "o_Alpha")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", [OURS]),
        ("x.json", OURS),
        ("x.json", "\ufeff" + json.dumps([OURS])),
        ("x.json", {"tools": [OURS]}),
        ("x.jsonl", json.dumps(OURS) + "\n\n" + json.dumps({**OURS, "name": "more"}) + "\n"),
        ("x.jsonl", json.dumps(OURS).replace("Our own.", "a\u2028b\x85c")),
    ],
)
def test_files_of_definitions(write: Write, name: str, content: Any) -> None:
    path = write(name, content)
    assert discover(path).names[0] == "ours"
    assert read_definitions(path)[0]["input_schema"] == SCHEMA


@pytest.mark.parametrize(
    "content",
    [
        {"tools": [MCP]},
        {"tools": [MCP], "nextCursor": None, "_meta": {}},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [MCP]}},
        [MCP],
    ],
)
def test_a_saved_listing_of_an_mcp_server(write: Write, content: Any) -> None:
    """Its annotations are claims: nothing of them reaches a policy."""
    (found,) = discover(write("listing.json", content))
    definition = found.get_definition()
    assert definition.name == "fs_read-file.v1"
    assert definition.description == "Read it."
    assert definition.output_schema == {"type": "object"}
    assert definition.annotations.read_only is False


FILES: list[tuple[str, Any, type[Exception], str]] = [
    ("x.json", "{", SourceError, "x.json: not JSON at line 1"),
    ("x.json", "[\n1,\n}", SourceError, "not JSON at line 3"),
    ("x.jsonl", json.dumps(OURS) + "\n{", SourceError, "not JSON at line 2"),
    ("x.json", "", SourceError, "not JSON at line 1"),
    ("x.json", "3", SourceError, "it holds a int: give a list of definitions"),
    ("x.json", [OURS, 3], SourceError, "definition 2 is a int"),
    ("x.json", {"tools": 3}, SourceError, "its 'tools' is not a list"),
    ("x.json", {"tools": [MCP], "nextCursor": "x"}, SourceError, "one page of a longer listing"),
    ("x.json", '{"name": "a", "name": "b"}', SourceError, "the key 'name' appears twice"),
    ("x.jsonl", json.dumps(OURS) + '\n{"a": 1, "a": 2}', SourceError, r"twice \(line 2\)"),
    ("x.json", '{"name": NaN}', SourceError, "NaN is not JSON"),
    ("x.json", "[" * 100_000, SourceError, "nested too deeply"),
    ("x.json", '{"x": ' + "9" * 5000 + "}", SourceError, "x.json: "),
    ("x.json", {"tools": [{**MCP, "name": "a/b"}, {**MCP, "name": "a_b"}]}, SourceError,
     "'a/b' and 'a_b' would both be called 'a_b'"),
    ("x.json", {"tools": [{**MCP, "name": "a.b"}, {**MCP, "name": "a-b"}]}, CatalogError,
     "'a-b' and 'a.b' differ only in case and underscores"),
    ("x.json", {"tools": [MCP, MCP]}, CatalogError, "two tools are called 'fs_read-file.v1' .both"),
    ("x.json", {"tools": [{**MCP, "name": "аb"}]}, DefinitionError, "x.json: tool name"),
    ("x.json", [{**OURS, "name": "a/b"}], DefinitionError, "x.json: tool name 'a/b'"),
    ("x.json", [{**OURS, "input_schema": {"type": "object", "$ref": "#/x"}}], SchemaError, "x.json"),
    ("x.json", [{**MCP, "name": "a", "input_schema": {}}], DefinitionError,
     "tool 'a': unknown key 'inputSchema'"),
    ("x.json", [{**MCP, "name": "a", "output_schema": {}}], DefinitionError,
     "tool 'a': unknown key 'inputSchema'; known: .* .it is called input_schema here"),
    ("x.json", [{"type": "function", "function": {"parameters": {}}}], DefinitionError,
     "x.json: a definition has no name; it has input_schema; known: name, description"),
    ("x.json", [{"type": "web_search"}], DefinitionError, "a 'web_search' tool runs at its provider"),
    ("x.json", {"jsonrpc": "2.0", "error": {}}, DefinitionError, "it has jsonrpc, error"),
    ("x.json", [{"name": "a", "parameters": {}}], DefinitionError,
     r"unknown key 'parameters'; .*it is called input_schema here"),
    ("X.JSON", "{", SourceError, "X.JSON: not JSON at line 1"),
    ("X.JSONL", json.dumps(OURS) + "\n{", SourceError, "not JSON at line 2"),
    ("x.json", "{" + "".join(f'"k{n}": 1,' for n in range(60_000)) + '"k59999": 2}', SourceError,
     "the key 'k59999' appears twice"),
    ("x.json", [{"name": "a"}], DefinitionError, "x.json: tool 'a' has no schema"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "error", "text"), FILES)
def test_broken_files(
    write: Write, name: str, content: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        discover(write(name, content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "latin.json").write_bytes(b'["\xe4"]')
    for name, text in (
        ("folder.json", "it is a directory"),
        ("folder.py", "it is a directory"),
        ("latin.json", "it is not UTF-8 text"),
        ("nul\0.json", "cannot be read"),
    ):
        with pytest.raises(SourceError, match=text):
            discover(str(tmp_path / name))


def installed(write: Write, dist: str, entries: dict[str, str]) -> None:
    folder = f"{dist.replace('-', '_')}-1.2.dist-info"
    write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    write(f"{folder}/entry_points.txt", "\n".join(["[toolcrib.tools]", *lines]))
    importlib.invalidate_caches()


def test_entry_points_are_found_by_distribution_and_name(write: Write) -> None:
    write("p6_zeta.py", code("zeta", "beta", rest="def made(): return [beta]"))
    write("p6_acme.py", code("alpha", "omega", rest="catalog = Catalog([omega, alpha])"))
    installed(write, "zeta-tools", {"one": "p6_zeta:zeta", "b": "p6_zeta:made"})
    installed(write, "acme-tools", {"all": "p6_acme:catalog"})
    found = discover("entry-points")
    assert found.names == ("omega", "alpha", "beta", "zeta")
    assert found.entries[0].source == "entry point 'all' of acme-tools 1.2"
    assert discover("entry-points:one").names == ("zeta",)
    assert discover(EntryPoints(("all", "b"))).names == ("omega", "alpha", "beta")
    assert discover(EntryPoints(group="no.such.group")).names == ()
    with pytest.raises(SourceError, match=r"no entry point 'c' .*; there are: all, b, one"):
        discover("entry-points:one,c")


def test_an_entry_point_may_be_a_module(write: Write) -> None:
    write("p6_acme.py", code("alpha", "omega"))
    installed(write, "acme-tools", {"all": "p6_acme"})
    assert discover("entry-points").names == ("alpha", "omega")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("no_such_p6:x", SourceError, r"\(no_such_p6:x\): No module named 'no_such_p6'"),
        ("p6_acme:nothing", SourceError, r"\(p6_acme:nothing\): AttributeError"),
        ("p6_exits:x", SourceError, r"\(p6_exits:x\): SystemExit: 2"),
        ("p6_acme:number", SourceError, "it is not a Catalog"),
        ("p6_acme:numbers", DefinitionError, "int is no tool"),
    ],
)
def test_a_broken_entry_point_is_named_and_the_others_can_be_had(
    write: Write, value: str, error: type[Exception], text: str
) -> None:
    write("p6_acme.py", code("alpha", rest="number = 3\nnumbers = [3]"))
    write("p6_exits.py", "raise SystemExit(2)")
    installed(write, "acme-tools", {"bad": value, "good": "p6_acme:alpha"})
    with pytest.raises(error, match=f"^entry point 'bad' of acme-tools 1.2.*{text}"):
        discover("entry-points")
    assert discover("entry-points:good").names == ("alpha",)


def test_two_entry_points_of_one_name_are_both_named(write: Write) -> None:
    write("p6_acme.py", code("alpha"))
    installed(write, "acme-tools", {"a": "p6_acme:alpha"})
    installed(write, "zeta-tools", {"b": "p6_acme:alpha"})
    text = "from entry point 'b' of zeta-tools 1.2 and from entry point 'a' of acme-tools 1.2"
    with pytest.raises(CatalogError, match=text):
        discover("entry-points")
