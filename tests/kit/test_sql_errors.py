"""What of SQLite's own words reaches a model, and what does not."""

from __future__ import annotations

from rows import each_row

from toolcrib.errors import CapabilityError
from toolcrib.kit.database import error_of

REFUSED = "SQLite refused the statement"


@each_row(
    ("sql", "message", "told"),
    [
        ("SELECT * FORM t", 'near "FORM": syntax error', None),
        ("select Nmae from t", "no such column: Nmae", None),
        ("select t.x from t", "no such column: t.x", None),
        ("select f(1)", "no such function: F", None),
        ("select", "incomplete input", None),
        ("select 1 order by 2", "1st ORDER BY term out of range - should be between 1 and 1", None),
        # a word that stands in quotes may be data
        ("select * from t where a = 'canary", 'near "canary": syntax error', REFUSED),
        ('select "canary" from t', "no such column: canary", REFUSED),
        ("select [canary] from t", "no such column: canary", REFUSED),
        ("select `canary` from t", "no such column: canary", REFUSED),
        ("select 'it''s canary' x", "no such column: canary", REFUSED),
        ('-- "\nselect "canary" from t', "no such column: canary", REFUSED),
        ("/* ' */ select 'canary' x", "no such column: canary", REFUSED),
        ("select a -- canary", "no such column: canary", REFUSED),
        ("select a /* canary", "no such column: canary", REFUSED),
        ("select '--', Nmae from t", "no such column: Nmae", None),
        # a word that stands nowhere in the statement is of the database
        ("select * from v", "no such table: main.canary", REFUSED),
        ("select * from v", "no such column: canary", REFUSED),
        # what is no plain word, or has another form
        ("select 'x", 'unrecognized token: "\'canary"', REFUSED),
        ("select canary", 'near "canary\n": syntax error', REFUSED),
        ("select json_extract('{}', a) from t", "bad JSON path: 'canary'", REFUSED),
        ("select canary(1)", "user-defined function raised exception", REFUSED),
        ("select a", f"no such column: {'a' * 65}", REFUSED),
        ("select a", "malformed database schema (canary) - a", REFUSED),
        ("", "", REFUSED),
    ],
)
def test_only_the_models_own_words_are_repeated(sql: str, message: str, told: str | None) -> None:
    text = error_of("SQLITE_ERROR", message, sql).safe_text
    assert text.startswith(message if told is None else told)
    if told is not None:
        assert "canary" not in text


@each_row(
    ("name", "says", "of_database"),
    [
        ("SQLITE_AUTH", "only reading is permitted", False),
        ("SQLITE_READONLY", "only reading is permitted", False),
        ("SQLITE_READONLY_DIRECTORY", "cannot be read without writing", True),
        ("SQLITE_READONLY_ROLLBACK", "cannot be read without writing", True),
        ("SQLITE_BUSY", "is locked", True),
        ("SQLITE_BUSY_RECOVERY", "is locked", True),
        ("SQLITE_CANTOPEN_ISDIR", "cannot be opened", True),
        ("SQLITE_CORRUPT_VTAB", "is damaged", True),
        ("SQLITE_IOERR_READ", "could not be read", True),
        ("SQLITE_NOTADB", "is not a SQLite database", True),
        ("SQLITE_NOMEM", "too much memory", False),
        ("SQLITE_TOOBIG", "too large", False),
        ("DataError", "too large", False),
        ("TIME", "took too long", False),
        ("DIED", "the operating system stopped", True),
        ("Warning", "one statement at a time", False),
        ("SQLITE_SOMETHING_NEW", REFUSED, False),
        ("", REFUSED, False),
    ],
)
def test_each_name_has_a_sentence(name: str, says: str, of_database: bool) -> None:
    error = error_of(name, "canary", "SELECT 1")
    assert says in error.safe_text
    assert "canary" not in error.safe_text
    assert isinstance(error, CapabilityError) is of_database
