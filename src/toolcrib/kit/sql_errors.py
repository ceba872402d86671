"""What SQLite says of a statement, as sentences that tell nothing but what the model wrote itself.

Its own text may quote data, of a row or of a literal. It is passed on only where it has a known form
and the one name in it is a plain word of the statement, outside of quotes and comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolcrib.errors import CapabilityError, ToolError

_QUOTED = re.compile(  # comments too: a quote in one would turn inside and outside around
    r"'[^']*'?|\"[^\"]*\"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL
)
_WORD = r"([A-Za-z_][\w.]{0,63})"
_FORMS = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf'near "{_WORD}": syntax error',
        rf"no such (?:table|column|function|collation sequence): {_WORD}",
        rf"ambiguous column name: {_WORD}",
        rf"wrong number of arguments to function {_WORD}\(\)",
        rf"misuse of (?:window function|aggregate(?: function)?:?) {_WORD}\(\)",
        r"incomplete input",
        r"no tables specified",
        r"a GROUP BY clause is required before HAVING",
        r"sub-select returns \d+ columns - expected \d+",
        r"\d+\w\w (?:ORDER|GROUP) BY term out of range - should be between 1 and \d+",
        r"\d+\w\w ORDER BY term does not match any column in the result set",
        r"SELECTs to the left and right of [A-Z ]+ do not have the same number of result columns",
        r"integer overflow",
    )
)
_ONLY_SELECT = "only reading is permitted: use one SELECT statement"
_REFUSED = (
    "SQLite refused the statement: check its syntax, and its names by describing the database"
)
_ONE = "one statement at a time: leave out all but the first"
_TOO_BIG = "a value or the statement is too large: leave out the column with the large values"

# By SQLite's own name of the result (sqlite.org/rescode.html), or the longest beginning of it.
_OF_STATEMENT: Mapping[str, str] = {
    "LARGE_ROW": "one row alone is too large for an answer: select fewer columns",
    "NO_QUERY": _ONLY_SELECT,
    "SQLITE_AUTH": _ONLY_SELECT,
    "SQLITE_CONSTRAINT": _ONLY_SELECT,
    "SQLITE_MISMATCH": "a value has the wrong type for its place, or is too large a number",
    "SQLITE_NOMEM": "the query needs too much memory: ask for less at once",
    "SQLITE_RANGE": "the statement has parameters: write the values into it instead",
    "SQLITE_READONLY": _ONLY_SELECT,
    "SQLITE_TOOBIG": _TOO_BIG,
    "DataError": _TOO_BIG,
    "TIME": "the query took too long and was stopped: ask for less, or without joining so much",
    "Warning": _ONE,
}
_OF_DATABASE: Mapping[str, str] = {
    "SQLITE_BUSY": "the database is locked by another program: try again later",
    "SQLITE_CANTOPEN": "the database cannot be opened: its file is gone, or may not be read",
    "SQLITE_CORRUPT": "the database is damaged",
    "SQLITE_FORMAT": "the database is damaged",
    "SQLITE_IOERR": "the database could not be read",
    "SQLITE_LOCKED": "the database is locked by another program: try again later",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_PERM": "the database may not be read",
    "SQLITE_PROTOCOL": "the database is locked by another program: try again later",
    "SQLITE_READONLY_": "the database cannot be read without writing: it is in WAL mode in a folder "
    "that cannot be written to, or has to be recovered by a program that may write to it",
    "SQLITE_SCHEMA": "the database was changed meanwhile: try again",
    "DIED": "the query was ended by the system: ask for less at once",
}


def error_of(name: str, message: str, sql: str) -> ToolError:
    """The error for what SQLite calls `name`; a CapabilityError where the statement is not at fault."""
    known = [k for k in (*_OF_STATEMENT, *_OF_DATABASE) if name.startswith(k)]
    if known:
        found = max(known, key=len)
        if found in _OF_DATABASE:
            return CapabilityError(_OF_DATABASE[found])
        return ToolError(_OF_STATEMENT[found])
    if name == "ProgrammingError":  # Python's: of several statements, or of parameters
        return ToolError(_ONE if "one statement" in message else _OF_STATEMENT["SQLITE_RANGE"])
    if message.startswith(("not authorized", "access to ", "prohibited", "unsafe use of ")):
        return ToolError(_ONLY_SELECT)
    return ToolError(_told(message, sql) or _REFUSED)


def _told(message: str, sql: str) -> str | None:
    for form in _FORMS:
        match = form.fullmatch(message)
        if match is not None:
            words = {word.lower() for word in re.findall(r"[\w.]+", _QUOTED.sub(" ", sql))}
            names = {group.lower() for group in match.groups()}
            return message if names <= words else None
    return None
