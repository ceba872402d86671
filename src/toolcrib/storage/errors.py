"""What a database's error means: the SourceError for an error of SQLAlchemy or of a driver.

Rule: a SourceError holds the code of the error and advice, never the error's text, which may quote what
was written.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.failures import Explained

T = TypeVar("T")

URL_FORMS = (
    "must look like sqlite:///crib.db or postgresql+psycopg://HOST/NAME"
    " (only to read: sqlite:///file:crib.db?mode=ro&uri=true)"
)
_CONNECTION_ERRORS = ("OperationalError", "InterfaceError", "ProgrammingError", "TimeoutError")
_URL_ERRORS = ("ArgumentError", "NoSuchModuleError")
_UNREACHABLE = {  # by the beginning of an SQLSTATE or of the name of a SQLite error
    "08": "the connection to it could not be made, or was lost",
    "25006": "it accepts no writes: it is a standby, or is set to read only",
    "25P03": "it ended the connection",
    "25P04": "the transaction took longer than it may",
    "28": "it refuses to log this user in",
    "3D": "there is no database of that name",
    "3F": "there is no schema of that name",
    "40": "it undid the transaction, because it and another one were in each other's way",
    "42501": "this user lacks a permission for that",
    "53": "it has no memory, no disk or no connections left",
    "55P03": "another program has locked it, and did not release it in time",
    "57014": "the statement took longer than it may, or somebody ended it",
    "57P0": "it was shut down, or ended the connection",
    "58030": "its disk cannot be read or written",
    "SQLITE_BUSY": "another program has locked it, and did not release it in time",
    "SQLITE_CANTOPEN": "the file or its folder does not exist, or cannot be opened",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "its disk is full or broken, or files are limited in size",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_NOMEM": "there is no memory left",
    "SQLITE_PERM": "this user may not read it",
    "SQLITE_PROTOCOL": "it is locked",
    "SQLITE_READONLY": "this user may not write to it",
}
_CONSTRAINT_VIOLATIONS = ("23", "44", "P0001", "SQLITE_CONSTRAINT")  # also of views and triggers
NOT_STORED = (
    "the database did not store what was written, so nothing of it is kept: look for a trigger, or a"
    " rule, on its tables"
)
FEATURE_NOT_SUPPORTED = "0A000"
_DIVISION_BY_ZERO = "22012"  # how PostgreSQL reports a failed `Transaction.require`
_SQLITE_CONSTRAINT = re.compile(r"(?:CHECK|NOT NULL|UNIQUE) constraint failed: (.+)", re.DOTALL)
_MAX_NAME = 100


class UnreachableError(SourceError, Explained):
    """The database could not be reached or used. The error says nothing about its content."""


def sqlalchemy() -> Any:
    """Return the module `sqlalchemy`. Raises MissingExtraError if it is not installed."""
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtraError("audit", "a database") from None
    return sqlalchemy


def advice(error: Exception) -> str:
    """Return a hint about what is wrong or where to look."""
    if type(error).__name__ in _URL_ERRORS:
        return f"its URL {URL_FORMS}"
    known = (said for code, said in _UNREACHABLE.items() if code_of(error).startswith(code))
    return next(known, "check its URL and its state")


def unreachable(error: Exception) -> bool:
    """Return whether an error means that the database is unavailable, not that its data is wrong.

    The error's code decides, and its class only if the driver gives no code: a ProgrammingError
    without one is about an option of the URL.
    """
    code = code_of(error)
    if code.startswith(tuple(_UNREACHABLE)) or type(error).__name__ in _URL_ERRORS:
        return True
    if code or isinstance(getattr(error, "orig", error), sqlite3.Error):
        return False  # sqlite3 raises OperationalError for most errors
    return type(error).__name__ in _CONNECTION_ERRORS


def code_of(error: Exception) -> str:
    """Return the driver's name or number for an error, never its text, which may hold written data."""
    original = getattr(error, "orig", error)
    return str(
        getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", "") or ""
    )


def _constraint_of(error: Exception) -> str:
    original = getattr(error, "orig", error)
    if isinstance(original, sqlite3.Error):
        found = _SQLITE_CONSTRAINT.fullmatch(str(original))
        name = "" if found is None else found[1]
    else:
        name = getattr(getattr(original, "diag", None), "constraint_name", None) or ""
    return name if len(name) <= _MAX_NAME else ""


def failed_by(error: Exception) -> SourceError:
    """Return the SourceError for an error of SQLAlchemy or a driver, with its code, never its text."""
    code = code_of(error)
    if code == _DIVISION_BY_ZERO:
        return SourceError(NOT_STORED)
    told = ", ".join(filter(None, (type(error).__name__, code)))
    if code.startswith(_CONSTRAINT_VIOLATIONS):
        name = _constraint_of(error)
        what = f"its constraint {name}" if name else "a constraint or a trigger of it"
        return SourceError(
            f"the database refused what was to be written ({told}): {what} is not toolcrib's, or does"
            " not fit. Remove it; nothing of the transaction was kept"
        )
    kind = UnreachableError if unreachable(error) else SourceError
    return kind(f"the database cannot be used ({told}): {advice(error)}")


def with_safe_errors(work: Callable[[], T]) -> T:
    """Run `work` and return its result. Raises SourceError for an error of SQLAlchemy or a driver."""
    try:
        return work()
    except ModuleNotFoundError as error:
        failure: SourceError = UnreachableError(
            f"the database's driver is not installed: {error.name}"
        )
    except (sqlalchemy().exc.SQLAlchemyError, UnicodeError) as error:
        failure = failed_by(error)
    raise failure  # raised outside, without a context that may quote what was written
