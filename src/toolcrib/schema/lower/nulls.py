"""Whether a schema takes `null`, told from the schema alone.

Only `type`, `enum`, `const`, references and combinations can refuse null: all other keywords speak of
values of other types. So this is exact, and needs no validator. It ends, since a schema that
`check_schema` passed never leads back to itself without a step into the value.
"""

from __future__ import annotations

from typing import Any

from toolcrib.schema.lower.tree import REFS, names_in
from toolcrib.schema.references import References


class Nulls:
    """Answers for the parts of one schema, kept once they are known; threads may share them."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._known: dict[int, tuple[object, bool]] = {}

    def taken_by(self, node: object) -> bool:
        """Whether null is valid."""
        if not isinstance(node, dict):
            return node is not False
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._judged(node)
        return known[1]

    def _judged(self, node: dict[str, Any]) -> bool:
        if "type" in node and "null" not in names_in(node["type"]):
            return False
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            return False
        if "const" in node and node["const"] is not None:
            return False
        return self._combined(node)

    def _combined(self, node: dict[str, Any]) -> bool:
        takes = self.taken_by
        refs = (node[keyword] for keyword in REFS if isinstance(node.get(keyword), str))
        targets = [target for ref in refs if (target := self._references.resolve(ref)) is not None]
        if not all(map(takes, targets)) or not all(map(takes, node.get("allOf", ()))):
            return False
        if "anyOf" in node and not any(map(takes, node["anyOf"])):
            return False
        if "oneOf" in node and sum(map(takes, node["oneOf"])) != 1:
            return False
        if "not" in node and takes(node["not"]):
            return False
        return "if" not in node or takes(node.get("then" if takes(node["if"]) else "else", True))
