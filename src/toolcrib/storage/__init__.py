"""The database: engine, migrations, transactions. Knows no meaning."""

from toolcrib.storage.cache_folder import create_private
from toolcrib.storage.database import Database, Row, Transaction, UnreachableError

__all__ = ["Database", "Row", "Transaction", "UnreachableError", "create_private"]
