"""Dotted paths into JSON (`total`, `items[].id`, `[].name`): the language of allowlists."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from toolcrib.schema.guard import resolve_ref

EACH = "[]"
_COMBINERS = ("anyOf", "oneOf", "allOf")


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    """`items[].id` → `("items", "[]", "id")`. Raises ValueError for an empty step."""
    steps: list[str] = []
    for part in path.split("."):
        name = part
        arrays = 0
        while name.endswith(EACH):
            name, arrays = name[: -len(EACH)], arrays + 1
        if not name and not arrays:
            raise ValueError(f"{path!r} has an empty step")
        steps += [name] if name else []
        steps += [EACH] * arrays
    return tuple(steps)


def path_exists(schema: dict[str, Any], path: str) -> bool:
    """Whether a value of this schema can have something at `path`."""
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Any, tuple[str, ...]]] = [(schema, split_path(path))]
    while stack:
        node, steps = stack.pop()
        if not steps or node is True or node == {}:
            return True
        if not isinstance(node, dict) or (id(node), len(steps)) in seen:
            continue
        seen.add((id(node), len(steps)))
        for keyword in _COMBINERS:
            stack += ((branch, steps) for branch in node.get(keyword, ()))
        if isinstance(node.get("$ref"), str):
            stack.append((resolve_ref(schema, node["$ref"]), steps))
        stack += ((child, steps[1:]) for child in _next(node, steps[0]))
    return False


def _next(node: dict[str, Any], step: str) -> list[Any]:
    if step == EACH:
        found = list(node.get("prefixItems", ()))
        if "items" in node or node.get("type") == "array":
            found.append(node.get("items", True))
        return found
    properties = node.get("properties", {})
    if step in properties:
        return [properties[step]]
    open_object = node.get("type") == "object" and "properties" not in node
    extra = node.get("additionalProperties", open_object)
    return [*node.get("patternProperties", {}).values(), *([extra] if extra is not False else [])]
