"""The database: engine, migrations, transactions. It knows nothing of what it stores."""

from toolcrib.storage.cache_folder import OWNER_ONLY, create_private, mode_of, replacing, write_new
from toolcrib.storage.database import SqlDatabase
from toolcrib.storage.errors import UnreachableError
from toolcrib.storage.transaction import Insert, Row, Transaction, as_column, storable

__all__ = [
    "OWNER_ONLY",
    "Insert",
    "Row",
    "SqlDatabase",
    "Transaction",
    "UnreachableError",
    "as_column",
    "create_private",
    "mode_of",
    "replacing",
    "storable",
    "write_new",
]
