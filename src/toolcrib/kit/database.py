"""Asking a database. What is in it, names too, is data from outside: it taints the run.

Rows are not in the public view: a log that shows what was asked does not repeat what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, Protocol, TypeAlias

from typing_extensions import TypedDict

from toolcrib.errors import ToolError
from toolcrib.tools import capability, tool

Cell: TypeAlias = str | int | float | None

_LONGEST_SQL = 20_000


class ColumnInfo(TypedDict):
    """`type` is as declared, and may be empty.

    `references` is where a foreign key leads: `table.column`, or `table` if to its primary key.
    """

    name: str
    type: str
    references: NotRequired[str]


class TableInfo(TypedDict):
    """A table or a view."""

    name: str
    kind: Literal["table", "view"]
    columns: list[ColumnInfo]


class DatabaseTables(TypedDict):
    """`truncated` says that there is more: further tables, or columns of one that is without any."""

    tables: list[TableInfo]
    truncated: bool


class QueryResult(TypedDict):
    """`rows` have their cells in the order of `columns`; `truncated` says that there are more rows.

    A text that was cut says so at its end; of a blob there is only its size.
    """

    columns: list[str]
    rows: list[list[Cell]]
    row_count: int
    truncated: bool


@capability
class Database(Protocol):
    """A database that can be read and not changed.

    Both raise ToolError for what cannot be asked, CapabilityError if the database cannot be read.
    """

    def describe(self) -> DatabaseTables:
        """The tables and views, with their columns."""

    def query(self, sql: str, parameters: Sequence[Cell] = ()) -> QueryResult:
        """The rows of one SELECT; `parameters` are the values of its `?`, in their order."""


@tool(
    visible=["tables", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["database", "sql", "tables"],
    examples=[
        ("Which tables does the database have?", {}),
        ("Show me the schema of the database", {}),
        ("What columns are there in the customers table?", {}),
        ("Describe the database", {}),
        ("What kind of data is stored in the db?", {}),
        ("List all tables and views", {}),
    ],
)
def describe_database(*, database: Database) -> DatabaseTables:
    """List the tables and views of the database, with the names and types of their columns."""
    return database.describe()


@tool(
    visible=["columns", "row_count", "truncated"],
    read_only=True,
    idempotent=True,
    untrusted_output=True,
    timeout=20,
    tags=["database", "sql", "query", "table"],
    examples=[
        ("How many rows does the orders table have?", {"sql": "SELECT count(*) FROM orders"}),
        (
            "Show the first 10 customers in the database",
            {"sql": "SELECT * FROM customers LIMIT 10"},
        ),
        (
            "Run SELECT name FROM products WHERE price > 20",
            {"sql": "SELECT name FROM products WHERE price > 20"},
        ),
        (
            "What are the names of all employees, sorted?",
            {"sql": "SELECT name FROM employees ORDER BY name"},
        ),
        (
            "What is the average of amount in the payments table?",
            {"sql": "SELECT avg(amount) FROM payments"},
        ),
        (
            "Total sales by country from the db",
            {"sql": "SELECT country, sum(total) FROM sales GROUP BY country"},
        ),
        (
            "Query the users table for everybody who joined after 2024",
            {"sql": "SELECT * FROM users WHERE joined >= '2025-01-01'"},
        ),
        (
            "Which record in invoices has the highest total?",
            {"sql": "SELECT * FROM invoices ORDER BY total DESC LIMIT 1"},
        ),
    ],
)
def query_database(sql: str, *, database: Database) -> QueryResult:
    """Query the SQLite database with one SQL SELECT statement. It can be read, not changed.

    Args:
        sql: The statement, such as SELECT name FROM customers ORDER BY name LIMIT 10.
    """
    if not sql.strip() or "\0" in sql or len(sql) > _LONGEST_SQL:
        raise ToolError(f"sql has to be one statement of 1 to {_LONGEST_SQL} characters")
    return database.query(sql)
