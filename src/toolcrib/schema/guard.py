"""Limits on schemas that come from outside: an expensive one is refused at registration.

A validator walks a schema as often as its `$ref`s expand, and one written to do so can hold a
process for minutes ("billion laughs"). So nodes, depth and expansions are counted before a validator
is compiled, and a `$ref` may only point into the schema itself: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from toolcrib.errors import SchemaError

MAX_DEPTH = 100
MAX_NODES = 50_000
MAX_EXPANSIONS = 10_000
_REFS = ("$ref", "$dynamicRef")


def check_schema(schema: dict[str, Any]) -> None:
    """Raises SchemaError, with a pointer, for a schema that could not be used safely."""
    for nodes, (pointer, depth, node) in enumerate(_walk(schema), start=1):
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes")
        if depth > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH}", pointer[:200])
        if isinstance(node, dict):
            _check_refs(node, pointer)
    _Expansions(schema).count(schema, "", ())


def _walk(schema: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    stack: list[tuple[str, int, Any]] = [("", 0, schema)]
    while stack:
        pointer, depth, node = stack.pop()
        yield pointer, depth, node
        if depth > MAX_DEPTH:
            continue
        for key, child in _children(node):
            stack.append((f"{pointer}/{escape_pointer(key)}", depth + 1, child))


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((str(key), child) for key, child in node.items())
    elif isinstance(node, list):
        yield from ((str(index), child) for index, child in enumerate(node))


def _check_refs(node: dict[str, Any], pointer: str) -> None:
    for keyword in _REFS:
        target = node.get(keyword)
        if isinstance(target, str) and not target.startswith("#"):
            raise SchemaError(
                f"{keyword} must point into the schema itself ('#/$defs/…'); nothing is fetched",
                f"{pointer}/{keyword}",
            )


class _Expansions:
    """Counts how many nodes a schema has once every `$ref` is replaced by what it points to.

    A `$ref` back into what is being expanded (recursion) ends there: a validator follows it only as
    deep as the value goes, and the value's depth is limited.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._known: dict[str, int] = {}

    def count(self, node: Any, pointer: str, open_refs: tuple[str, ...]) -> int:
        total = 1
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            total += self._expand(node["$ref"], pointer, open_refs)
        for key, child in _children(node):
            total += self.count(child, f"{pointer}/{key}", open_refs)
        if total > MAX_EXPANSIONS and open_refs:
            raise SchemaError(
                f"its $refs expand to more than {MAX_EXPANSIONS} nodes", pointer[:200]
            )
        return total

    def _expand(self, ref: str, pointer: str, open_refs: tuple[str, ...]) -> int:
        if ref in open_refs:
            return 1
        if ref not in self._known:
            target = resolve_ref(self._schema, ref)
            if target is None:
                if ref.startswith("#/"):
                    raise SchemaError(f"$ref {ref!r} points to nothing", f"{pointer}/$ref")
                return 1
            self._known[ref] = self.count(target, pointer, (*open_refs, ref))
        return self._known[ref]


def resolve_ref(schema: Any, ref: str) -> Any:
    """What a local `$ref` (`#` or `#/…`) points to, or None."""
    if ref == "#":
        return schema
    node = schema
    for token in unquote(ref).removeprefix("#/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def escape_pointer(token: object) -> str:
    """One reference token of a JSON Pointer (RFC 6901, section 3)."""
    return str(token).replace("~", "~0").replace("/", "~1")
