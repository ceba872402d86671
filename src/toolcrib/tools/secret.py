"""Which arguments no record may show: those that the author names, and those of secret types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.schema.guard import resolve_ref
from toolcrib.values.json import JsonObject


def secret_properties(
    tool: str, schema: JsonObject | None, named: Sequence[str]
) -> tuple[str, ...]:
    """Top-level properties named by the author, or holding a `SecretStr` (`writeOnly`) anywhere.

    Raises DefinitionError if a name is no property of the schema.
    """
    properties: Any = (schema or {}).get("properties", {})
    for name in named:
        if schema is not None and name not in properties:
            raise DefinitionError(f"tool '{tool}': secret names {name!r}, which is no parameter")
    hidden = [name for name, node in properties.items() if _holds_secret(schema, node, ())]
    return tuple(dict.fromkeys([*named, *hidden]))


def _holds_secret(root: Any, node: Any, seen: tuple[str, ...]) -> bool:
    if isinstance(node, list):
        return any(_holds_secret(root, child, seen) for child in node)
    if not isinstance(node, dict):
        return False
    if node.get("writeOnly") is True:
        return True
    ref = node.get("$ref")
    if isinstance(ref, str) and ref not in seen:
        target, seen = resolve_ref(root, ref), (*seen, ref)
        return _holds_secret(root, [target, *node.values()], seen)
    return any(_holds_secret(root, child, seen) for child in node.values())
