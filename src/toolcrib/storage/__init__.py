"""The database: engine, pragmas, tables. Knows no meaning."""

from toolcrib.storage.database import Database, Row

__all__ = ["Database", "Row"]
