"""What one lowering knows and gathers: the schema, the dialect, losses, definitions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from toolcrib.schema.lower.base import Dialect, Effect, Loss
from toolcrib.schema.lower.nulls import Nulls
from toolcrib.schema.lower.tree import DOCUMENT, Places, own_copy
from toolcrib.schema.references import References
from toolcrib.values.json import JsonObject

MAX_INLINED = 2_000  # parts of a view in which references are replaced by what they lead to
MAX_LEVELS = 64
# What a keyword that the author did not write was made from.
_BEFORE = {"anyOf": ("oneOf",), "enum": ("const",), "items": ("prefixItems",)}


class Context:
    """Made for one call of `lower`; the rules of the walk are functions over it."""

    def __init__(self, schema: JsonObject, dialect: Dialect) -> None:
        self.root: JsonObject = own_copy(schema)
        self.dialect = dialect
        self.refs = dialect.refs
        self.references = References(self.root)
        self.nulls = Nulls(self.references)
        self.places = Places(self.root)
        self.open: Counter[int] = Counter()
        self.definitions: dict[str, Any] = {}  # name to what it stands for in the author's schema
        self.spent = 0
        self.level = 0
        self.wrapped = False
        self.filled = False  # whether the view requires what the author's schema does not
        self._names: dict[int, str] = {}
        self._losses: dict[Loss, None] = {}

    def lose(self, part: object, keyword: str, effect: Effect, message: str) -> None:
        """Notes a loss; a part that is inlined twice is told of once."""
        source = self.places.source(part, keyword)
        if isinstance(source, dict) and keyword not in source:
            keyword = next((k for k in _BEFORE.get(keyword, ()) if k in source), keyword)
        self._losses[Loss(self.places.pointer(source), keyword, effect, message)] = None

    def losses(self) -> tuple[Loss, ...]:
        return tuple(self._losses)

    def keeps(self, keyword: str, *, top: bool = False) -> bool:
        """Whether a keyword may stand in a view, or at its top."""
        if keyword in DOCUMENT and self.refs != "any":
            return False
        if top and keyword in self.dialect.root_without:
            return False
        return self.dialect.keywords is None or keyword in self.dialect.keywords

    def over(self, opened: list[int]) -> bool:
        """Whether what was opened is open often enough, or the view is large enough."""
        limit = self.dialect.unroll if self.refs == "none" else 1
        if any(self.open[target] >= limit for target in opened):
            return True
        return self.refs == "none" and (self.spent > MAX_INLINED or self.level > MAX_LEVELS)

    def definition_name(self, target: object, ref: str) -> str:
        """The name under `$defs` of what a reference leads to; it is lowered later."""
        if id(target) not in self._names:
            wish = _legal(ref.rpartition("/")[2].lstrip("#"))
            name, count = wish, 1
            while name in self.definitions:
                count += 1
                name = f"{wish}_{count}"
            self._names[id(target)] = name
            self.definitions[name] = target
        return self._names[id(target)]


def _legal(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)
    return kept[:64] or "root"
