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
    if isinstance(named, str):
        raise DefinitionError(f"tool '{tool}': secret is a list of parameters such as ['pin']")
    properties: Any = (schema or {}).get("properties", {})
    for name in named:
        if schema is not None and name not in properties:
            raise DefinitionError(f"tool '{tool}': secret names {name!r}, which is no parameter")
    hidden = [name for name, node in properties.items() if _holds_secret(schema, node)]
    return tuple(dict.fromkeys([*named, *hidden]))


def _holds_secret(root: Any, node: Any) -> bool:
    stack, seen = [node], set()
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            if node.get("writeOnly") is True:
                return True
            if isinstance(node.get("$ref"), str):
                stack.append(resolve_ref(root, node["$ref"]))
            stack += node.values()
    return False
