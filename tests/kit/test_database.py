"""The two tools on a SQLite file, and what SQL may not do with it, whoever wrote it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit.kit_helpers import call
from rows import each_row

from toolcrib import kit
from toolcrib.errors import CapabilityError, SourceError, ToolError
from toolcrib.kit import Database, DatabaseLimits, ReadOnlyDatabase, sqlite_process
from toolcrib.kit.database import Cell, DatabaseTables, QueryResult, error_of
from toolcrib.tools import Catalog

CONTENTS = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, photo BLOB, balance REAL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers (id), note);
CREATE VIEW rich AS SELECT name FROM customers WHERE balance > 100;
CREATE VIEW broken AS SELECT * FROM nowhere;
CREATE VIRTUAL TABLE notes USING fts5(body);
INSERT INTO customers VALUES (1, 'Ann', x'00ff', 9e999), (2, 'Bob', NULL, -1.5);
INSERT INTO orders VALUES (1, 1, 'x'), (2, 1, 9223372036854775807), (3, 2, NULL);
INSERT INTO notes VALUES ('call back on Monday');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file whose name is full of what means something in a URI."""
    made = tmp_path / "my data?mode=rwc#%41&.db"
    _make(made)
    return made


def _make(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(CONTENTS)


@pytest.fixture
def catalog(path: Path, tmp_path: Path) -> Catalog:
    return kit.catalog(tmp_path, database=path, weather=False)


def reading(path: Path, **limits: Any) -> ReadOnlyDatabase:
    return ReadOnlyDatabase(path, DatabaseLimits(**limits))


async def test_the_tables_are_described(catalog: Catalog) -> None:
    found = await call(catalog, "describe_database")
    tables = {table["name"]: table for table in found["tables"]}
    assert (list(tables), found["truncated"]) == (
        ["broken", "customers", "notes", "orders", "rich"],
        False,
    )
    assert tables["customers"]["columns"] == [
        {"name": "id", "type": "INTEGER"},
        {"name": "name", "type": "TEXT"},
        {"name": "photo", "type": "BLOB"},
        {"name": "balance", "type": "REAL"},
    ]
    assert tables["orders"]["columns"][1:] == [
        {"name": "customer", "type": "INTEGER", "references": "customers.id"},
        {"name": "note", "type": ""},
    ]
    assert {name: table["kind"] for name, table in tables.items() if name in ("rich", "notes")} == {
        "rich": "view",
        "notes": "table",
    }
    assert tables["broken"]["columns"] == []


async def test_a_query_has_its_rows(catalog: Catalog) -> None:
    sql = "SELECT note, photo FROM orders JOIN customers ON customer = customers.id ORDER BY note"
    assert await call(catalog, "query_database", sql=sql) == {
        "columns": ["note", "photo"],
        "rows": [[None, None], [2**63 - 1, "(blob of 2 bytes)"], ["x", "(blob of 2 bytes)"]],
        "row_count": 3,
        "truncated": False,
    }


RIGHT: Any = (
    ("SELECT count(*) AS n FROM orders", ["n"], [[3]]),
    ("SELECT name FROM customers ORDER BY id", ["name"], [["Ann"], ["Bob"]]),
    ("SELECT note FROM orders ORDER BY id", ["note"], [["x"], [2**63 - 1], [None]]),
    ("SELECT photo FROM customers", ["photo"], [["(blob of 2 bytes)"], [None]]),
    ("SELECT balance FROM customers", ["balance"], [["Infinity"], [-1.5]]),
    ("SELECT -9e999 a, 9e999 - 9e999 b, 0.1 c", ["a", "b", "c"], [["-Infinity", None, 0.1]]),
    ("SELECT id, id FROM customers WHERE 0", ["id", "id"], []),
    ("SELECT CAST(x'ff41' AS TEXT) t", ["t"], [["\ufffdA"]]),
    ("SELECT 'a' || char(0) || 'b' t", ["t"], [["a\0b"]]),
    ("VALUES (1, 2)", ["column1", "column2"], [[1, 2]]),
    ("WITH c AS (SELECT 1 a) SELECT a FROM c;", ["a"], [[1]]),
    ("SELECT 1 a -- ; DROP TABLE orders", ["a"], [[1]]),
    ("/* ; */ SELECT 1 a", ["a"], [[1]]),
    ("SELECT body FROM notes WHERE notes MATCH 'monday'", ["body"], [["call back on Monday"]]),
    ("SELECT value v FROM json_each('[1, \"x\"]')", ["v"], [[1], ["x"]]),
    ("SELECT name FROM pragma_table_info('rich')", ["name"], [["name"]]),
    ("SELECT type FROM sqlite_master WHERE name = 'rich'", ["type"], [["view"]]),
    ("SELECT name FROM rich", ["name"], [["Ann"]]),
    (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 3) SELECT x FROM c",
        ["x"],
        [[1], [2], [3]],
    ),
)
FORBIDDEN = (
    "DELETE FROM orders",
    "UPDATE orders SET note = 1",
    "INSERT INTO orders VALUES (9, 9, 9)",
    "INSERT INTO orders VALUES (9, 9, 9) RETURNING id",
    "REPLACE INTO orders VALUES (1, 1, 1)",
    "WITH x AS (SELECT 1) DELETE FROM orders",
    "EXPLAIN DELETE FROM orders",
    "INSERT INTO notes (notes) VALUES ('rebuild')",
    "DROP TABLE orders",
    "ALTER TABLE orders RENAME TO o",
    "CREATE TABLE t (a)",
    "CREATE TEMP TABLE t (a)",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE TEMP TRIGGER t AFTER INSERT ON orders BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE t USING fts5(a)",
    "CREATE INDEX i ON orders (note)",
    "ATTACH 'other.db' AS other",
    "ATTACH ':memory:' AS other",
    "ATTACH 'file:other.db?mode=rwc' AS other",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'other.db'",
    "ANALYZE",
    "REINDEX",
    "BEGIN",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "SAVEPOINT s",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA trusted_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA database_list",
    "PRAGMA temp_store_directory = '/'",
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA mmap_size = 1000000000",
    "PRAGMA user_version = 7",
    "PRAGMA optimize",
    "PRAGMA compile_options",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_function_list",
    "SELECT load_extension('x.so')",
    "SELECT load_extension('x.so', 'main')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'4141414141414141')",
    "",
    " ",
    "-- nothing",
    "/* nothing */",
    ";",
)


WRONG = (
    ("SELECT 1; SELECT 2", "one statement at a time"),
    ("SELECT 1; DROP TABLE orders", "one statement at a time"),
    ("SELECT ?", "has parameters"),
    ("SELECT :name, $other, @third", "has parameters"),
    ("SELECT * FORM orders", 'near "FORM": syntax error'),
    ("SELECT nmae FROM customers", "no such column: nmae"),
    ("SELECT * FROM ordres", "no such table: ordres"),
    ("SELECT readfile('/etc/passwd')", "no such function: readfile"),
    ("SELECT writefile('x', 'y')", "no such function: writefile"),
    ("SELECT abs()", "wrong number of arguments to function abs()"),
    ("SELECT 'secret", "SQLite refused the statement"),
    ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "SQLite refused the statement"),
    ("SELECT " + "+".join(["1"] * 5000), "SQLite refused the statement"),
    ("SELECT " + ",".join(["1"] * 5000), "SQLite refused the statement"),
    (" UNION ALL ".join(["SELECT 1"] * 1000), "SQLite refused the statement"),
    ("SELECT zeroblob(2147483647)", "too large"),
    ("SELECT randomblob(1000000000)", "too large"),
    ("SELECT hex(zeroblob(900000))", "too large"),
    ("SELECT group_concat(hex(zeroblob(400000))) FROM orders, orders, orders", "too large"),
    ("SELECT replace(hex(zeroblob(400)), '0', hex(zeroblob(10000)))", "too large"),
)
ONE_BY_ONE = """
import json, runpy, sys
answer = runpy.run_path(sys.argv[1])["answer"]
print(json.dumps([answer(asked) for asked in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is answered to each statement of the tables; by one process, that it may not take long.

    Nothing else has come of them: the file is as it was, and there is no other one.
    """
    folder = tmp_path_factory.mktemp("asked")
    path = folder / "asked.db"
    _make(path)
    before = hashlib.sha256(path.read_bytes()).digest()
    limits = msgspec.to_builtins(DatabaseLimits(value_bytes=1_000_000))
    asked = {"uri": f"{path.as_uri()}?mode=ro", "limits": limits, "parameters": []}
    statements = [*(sql for sql, *_ in RIGHT), *FORBIDDEN, *(sql for sql, _ in WRONG)]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ONE_BY_ONE, sqlite_process.__file__],
        input=json.dumps([{**asked, "sql": sql} for sql in statements]).encode(),
        cwd=folder,
        capture_output=True,
        check=True,
    )
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert list(folder.iterdir()) == [path]
    return dict(zip(statements, json.loads(done.stdout), strict=True))


@each_row(("sql", "columns", "rows"), RIGHT)
def test_what_is_reading_is_answered(
    answers: dict[str, dict[str, Any]], sql: str, columns: list[str], rows: list[Any]
) -> None:
    assert answers[sql] == {"columns": columns, "rows": rows, "truncated": False}


@each_row("sql", FORBIDDEN)
def test_what_is_no_reading_is_refused(answers: dict[str, dict[str, Any]], sql: str) -> None:
    error = error_of(answers[sql]["error"], answers[sql].get("message", ""), sql)
    assert error.safe_text.startswith("only reading is permitted")
    assert not isinstance(error, CapabilityError)


def test_a_statement_that_would_write_fails_and_writes_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ToolError, match="only reading is permitted"):
        reading(path).query("DELETE FROM orders")
    assert path.read_bytes() == before


def test_the_schema_itself_cannot_be_written(path: Path) -> None:
    for sql in ("UPDATE sqlite_master SET sql = ''", "DELETE FROM sqlite_master"):
        with pytest.raises(ToolError):
            reading(path).query(sql)
    assert reading(path).query("SELECT count(*) > 5 FROM sqlite_master")["rows"] == [[1]]


@each_row(("sql", "why"), WRONG)
def test_what_cannot_be_asked_is_said(
    answers: dict[str, dict[str, Any]], sql: str, why: str
) -> None:
    error = error_of(answers[sql]["error"], answers[sql].get("message", ""), sql)
    assert why in error.safe_text
    assert "secret" not in error.safe_text
    assert not isinstance(error, CapabilityError)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 1 FROM c WHERE x < 0",
        # one step of SQLite, which nothing inside can interrupt
        "SELECT trim(replace(hex(zeroblob(200000)), '0', 'a'), hex(zeroblob(50000)) || 'a')",
    ],
)
def test_a_query_without_end_is_stopped(path: Path, sql: str) -> None:
    with pytest.raises(ToolError, match="took too long and was stopped"):
        reading(path, seconds=0.1, value_bytes=2_000_000).query(sql)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no alarm")
@pytest.mark.exhaustive
def test_a_question_ends_though_nobody_is_left_to_stop_it(path: Path) -> None:
    """Whatever the process that asked has made of the signal: it is inherited."""
    asked = {
        "uri": f"{path.as_uri()}?mode=ro",
        "limits": {**msgspec.to_builtins(DatabaseLimits()), "seconds": 0},
        "sql": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c",
        "parameters": [],
    }
    code = (
        "import os, signal, sys; signal.signal(14, signal.SIG_IGN); signal.pthread_sigmask(0, [14])\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-I", "-S", sqlite_process.__file__],
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT randomblob(900000) FROM orders a, orders b, orders c, orders d, orders e ORDER BY 1",
        "SELECT " + ",".join(["zeroblob(900000)"] * 200),
    ],
)
def test_a_query_that_eats_memory_is_stopped(path: Path, sql: str) -> None:
    limited = reading(path, memory_bytes=64 * 1024 * 1024, value_bytes=1_000_000, seconds=30)
    with pytest.raises(ToolError, match="too much memory"):
        limited.query(sql)


def test_more_rows_than_are_shown(path: Path) -> None:
    for most, truncated in ((2, True), (3, False)):
        found = reading(path, rows=most).query("SELECT id FROM orders ORDER BY id")
        assert (found["row_count"], found["truncated"]) == (most, truncated)
    described = reading(path, rows=2).describe()
    assert ([t["name"] for t in described["tables"]], described["truncated"]) == (
        ["broken", "customers"],
        True,
    )


def test_an_answer_has_a_size(path: Path) -> None:
    numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, 'é' FROM c"
    found = reading(path, result_bytes=500, rows=10**6).query(numbers)
    assert found["truncated"]
    assert 20 < found["row_count"] < 50
    with pytest.raises(ToolError, match="one row alone is too large"):
        reading(path, result_bytes=500).query("SELECT hex(zeroblob(600))")
    described = reading(path, result_bytes=200).describe()
    assert described["truncated"]


@pytest.mark.parametrize(
    ("sql", "cell"),
    [
        ("SELECT 'abcde'", "abcde"),
        ("SELECT 'abcdef'", "abcde… (cut, it has 6 bytes)"),
        ("SELECT 'ééééé'", "ééééé"),
        ("SELECT '🙂🙂🙂🙂🙂'", "🙂🙂🙂🙂🙂"),
        ("SELECT '🙂🙂🙂🙂🙂🙂'", "🙂🙂🙂🙂🙂… (cut, it has 24 bytes)"),
        ("SELECT hex(zeroblob(50))", "00000… (cut, it has 100 bytes)"),
    ],
)
def test_a_long_text_is_cut_and_says_so(path: Path, sql: str, cell: str) -> None:
    assert reading(path, cell_characters=5).query(sql)["rows"] == [[cell]]


def test_a_value_that_is_too_large_does_not_hide_the_others(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO customers VALUES (3, 'Cleo', zeroblob(3000000), 1)")
        database.commit()
    limited = reading(path, value_bytes=1_000_000)
    assert limited.query("SELECT name FROM customers WHERE id = 3")["rows"] == [["Cleo"]]
    with pytest.raises(ToolError, match="leave out the column"):
        limited.query("SELECT * FROM customers")


def test_values_are_bound_for_those_who_write_tools(path: Path) -> None:
    found = reading(path).query("SELECT name FROM customers WHERE name = ? AND id < ?", ["Ann", 5])
    assert found["rows"] == [["Ann"]]
    hostile: Cell = "'; DROP TABLE orders"
    assert reading(path).query("SELECT ?", [hostile])["rows"] == [[hostile]]
    for values, why in (
        ([1, 2], "has parameters"),
        ([2**63], "too large"),
        (["\ud800"], "refused"),
    ):
        with pytest.raises(ToolError, match=why):
            reading(path).query("SELECT ?", values)


@pytest.mark.parametrize("sql", ["", "  \n", "SELECT '\0'", "SELECT 1 -- " + "x" * 20_000])
async def test_sql_has_a_form(catalog: Catalog, sql: str) -> None:
    with pytest.raises(ToolError, match="one statement of 1 to 20000 characters"):
        await call(catalog, "query_database", sql=sql)


def test_a_name_in_the_file_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute('CREATE TABLE "a""b; DROP --" ("c\'d" "x y", "' + "e" * 300 + '")')
        database.execute('CREATE VIRTUAL TABLE "v""t" USING fts5(a)')
    odd, virtual = reading(path, cell_characters=3).describe()["tables"]
    assert (odd["name"], odd["columns"][0]) == ('a"b; DROP --', {"name": "c'd", "type": "x y"})
    assert odd["columns"][1]["name"] == "e" * 200 + "…"
    assert [column["name"] for column in virtual["columns"]] == ["a"]


def test_columns_that_are_computed_are_described_and_hidden_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "computed.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE a (x INT, twice INT AS (x * 2), half REAL AS (x / 2) STORED)"
        )
        database.execute("CREATE VIRTUAL TABLE b USING fts5(body)")
    a, b = reading(path).describe()["tables"]
    assert [(c["name"], c["type"].split()[0]) for c in a["columns"]] == [
        ("x", "INT"),
        ("twice", "INT"),
        ("half", "REAL"),
    ]
    assert [column["name"] for column in b["columns"]] == ["body"]


def test_a_table_whose_columns_have_no_room_hides_no_other_one(tmp_path: Path) -> None:
    path = tmp_path / "wide.db"
    names = [f"a_column_with_a_rather_long_name_{i}" for i in range(1990)]
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE a_wide ({','.join(names)})")
        database.execute("CREATE TABLE narrow (x)")
    assert reading(path).describe() == {
        "tables": [
            {"name": "a_wide", "kind": "table", "columns": []},
            {"name": "narrow", "kind": "table", "columns": [{"name": "x", "type": ""}]},
        ],
        "truncated": True,
    }
    with pytest.raises(ToolError, match="select fewer columns"):
        reading(path).query("SELECT * FROM a_wide")
    assert reading(path).query("SELECT * FROM narrow")["columns"] == ["x"]


class TestTheFile:
    def test_an_empty_one_is_an_empty_database(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.db"
        path.touch()
        assert reading(path).describe() == {"tables": [], "truncated": False}

    @each_row(
        ("name", "why"),
        [
            ("missing.db", "there is no database file"),
            (".", "there is no database file"),
            ("text.txt", "cannot be used: the file is not a SQLite database"),
            ("a\0b", "there is no database file"),
            ("x" * 5000, "there is no database file"),
        ],
    )
    def test_what_is_no_database_is_an_error_at_once(
        self, tmp_path: Path, name: str, why: str
    ) -> None:
        (tmp_path / "text.txt").write_text("no database at all", encoding="utf-8")
        with pytest.raises(SourceError, match=why):
            ReadOnlyDatabase(tmp_path / name)
        with pytest.raises(SourceError, match=why):
            kit.catalog(tmp_path, database=tmp_path / name)

    def test_the_url_of_another_database_is_told_without_its_password(self) -> None:
        with pytest.raises(SourceError, match="there is no database file") as caught:
            ReadOnlyDatabase("postgresql://ada:canary@127.0.0.1/shop")
        assert "canary" not in str(caught.value)

    def test_a_loop_of_links_leads_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with pytest.raises(SourceError, match="there is no database file"):
            ReadOnlyDatabase(tmp_path / "a")

    def test_a_pipe_is_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceError, match="there is no database file"):
            ReadOnlyDatabase(tmp_path / "pipe")

    def test_one_that_is_gone(self, path: Path) -> None:
        database = reading(path)
        path.unlink()
        with pytest.raises(CapabilityError, match="its file is missing"):
            database.query("SELECT 1 FROM orders")
        assert not path.exists()

    def test_one_that_is_damaged(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xa5" * (len(content) - 4096)
        path.write_bytes(content)
        with pytest.raises(CapabilityError, match="the database is damaged"):
            reading(path).query("SELECT * FROM customers")

    def test_one_that_became_something_else(self, path: Path) -> None:
        database = reading(path)
        path.write_text("no database at all " * 100, encoding="utf-8")
        with pytest.raises(CapabilityError, match="is not a SQLite database"):
            database.describe()

    def test_one_that_is_locked(self, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as writing:
            writing.execute("BEGIN EXCLUSIVE")
            database = reading(path)
            with pytest.raises(CapabilityError, match="is locked by another program"):
                database.query("SELECT * FROM customers")
            writing.execute("ROLLBACK")
        assert reading(path).query("SELECT 1")["rows"] == [[1]]

    def test_one_in_wal_mode_shows_what_was_written_last(self, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as writing:
            writing.execute("PRAGMA journal_mode = WAL")
            writing.execute("DELETE FROM orders")
            assert reading(path).query("SELECT count(*) FROM orders")["rows"] == [[0]]
            writing.execute("INSERT INTO orders VALUES (7, 1, 1)")
            assert reading(path).query("SELECT count(*) FROM orders")["rows"] == [[1]]

    @pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
    def test_one_in_wal_mode_in_a_folder_that_is_read_only(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as writing:
            writing.execute("PRAGMA journal_mode = WAL")
        path.parent.chmod(0o555)
        try:
            with pytest.raises(SourceError, match="in WAL mode in a folder"):
                reading(path)
        finally:
            path.parent.chmod(0o755)


class Pretended:
    """Another adapter: nothing of it is a file."""

    def describe(self) -> DatabaseTables:
        return {"tables": [], "truncated": False}

    def query(self, sql: str, parameters: Any = ()) -> QueryResult:
        rows: list[list[Cell]] = [[sql]]
        return {"columns": ["sql"], "rows": rows, "row_count": 1, "truncated": False}


async def test_another_adapter_can_be_bound(catalog: Catalog) -> None:
    bound = catalog.bind({Database: Pretended()})
    assert (await call(bound, "query_database", sql="q"))["rows"] == [["q"]]
    assert (await call(bound, "describe_database"))["tables"] == []


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/nowhere/python", "no process could be started"),
        ("/bin/false", "the operating system stopped"),
    ],
)
def test_a_process_that_does_not_answer(
    path: Path, python: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = reading(path)
    monkeypatch.setattr("sys.executable", python)
    with pytest.raises(CapabilityError, match=why):
        database.query("SELECT 1")
