"""Dotted paths into JSON (`total`, `items[].id`, `[].name`): the language of allowlists."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from toolcrib.schema.keywords import IN_PLACE
from toolcrib.schema.references import References, children

EACH = "[]"
_REFS = ("$ref", "$dynamicRef")
# What these say is about other values than those that a result has.
_ELSEWHERE = frozenset(("not", "if"))
_FORMS = IN_PLACE.union(
    ("type", "enum", "const", "properties", "patternProperties", "additionalProperties"),
    ("items", "prefixItems", *_REFS),
)


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
    references = References(schema)
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Any, tuple[str, ...]]] = [(schema, split_path(path))]
    while stack:
        node, steps = stack.pop()
        if not steps or node is True:
            return True
        if not isinstance(node, dict) or (id(node), len(steps)) in seen:
            continue
        if _FORMS.isdisjoint(node):  # a title, or nothing: any value fits
            return True
        seen.add((id(node), len(steps)))
        for keyword in IN_PLACE.intersection(node) - _ELSEWHERE:
            stack += ((branch, steps) for _, branch in children(None, keyword, node[keyword]))
        for keyword in _REFS:
            if isinstance(node.get(keyword), str):
                stack.append((references.resolve(node[keyword]), steps))
        stack += ((child, steps[1:]) for child in _next(node, steps[0]))
    return False


def _next(node: dict[str, Any], step: str) -> list[Any]:
    if step == EACH:
        found = list(node.get("prefixItems", ()))
        items = node.get("items", True)
        if isinstance(items, list):  # draft 7
            return [*items, node.get("additionalItems", True)]
        if "items" in node or _may_be(node, "array"):
            found.append(items)
        return found
    properties = node.get("properties", {})
    if step in properties:
        return [properties[step]]
    open_object = _may_be(node, "object") and "properties" not in node
    extra = node.get("additionalProperties", open_object)
    return [*node.get("patternProperties", {}).values(), *([extra] if extra is not False else [])]


def _may_be(node: dict[str, Any], kind: str) -> bool:
    named = node.get("type")
    return named == kind or (isinstance(named, list) and kind in named)
