"""The database: engine, migrations, transactions. It knows nothing of what it stores."""

from toolcrib.storage.cache_folder import OWNERS, create_private, mode_of
from toolcrib.storage.database import (
    Insert,
    Row,
    SqlDatabase,
    Transaction,
    UnreachableError,
    as_column,
    storable,
)

__all__ = [
    "OWNERS",
    "Insert",
    "Row",
    "SqlDatabase",
    "Transaction",
    "UnreachableError",
    "as_column",
    "create_private",
    "mode_of",
    "storable",
]
