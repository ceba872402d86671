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
MAX_EXPANSIONS = 10_000  # of what one `$ref` points to
MAX_EXPANDED = 1_000_000  # of the whole schema
_REFS = ("$ref", "$dynamicRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")


def check_schema(schema: dict[str, Any]) -> None:
    """Raises SchemaError, with a pointer, for a schema that could not be used safely."""
    for nodes, (pointer, depth, node) in enumerate(_walk(schema), start=1):
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes")
        if depth > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH}", pointer[:200])
        if isinstance(node, dict):
            _check_refs(node, pointer)
            if pointer and isinstance(node.get("$id"), str):
                _check_embedded(node, pointer)
    _check_expansions(schema)


def _walk(schema: Any) -> Iterator[tuple[str, int, Any]]:
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


def _refs(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for keyword in _REFS:
            target = node.get(keyword)
            if isinstance(target, str):
                yield keyword, target


def _check_refs(node: dict[str, Any], pointer: str) -> None:
    for keyword, target in _refs(node):
        if not target.startswith("#"):
            raise SchemaError(
                f"{keyword} must point into the schema itself ('#/$defs/…'); nothing is fetched",
                f"{pointer}/{keyword}",
            )


def _check_embedded(part: dict[str, Any], pointer: str) -> None:
    """In a part with an `$id` of its own, `#/…` would mean a place in that part, not in the whole."""
    for below, _, node in _walk(part):
        for keyword, _target in _refs(node):
            raise SchemaError(
                f"{keyword} lies in a part that has an $id of its own: remove that $id",
                f"{pointer}{below}/{keyword}",
            )


class _Target:
    """Something that `$ref`s point to, while it is being expanded."""

    __slots__ = ("node", "pointer", "refs", "total")

    def __init__(self, node: Any, pointer: str) -> None:
        self.node, self.pointer = node, pointer
        self.total = 0
        self.refs: list[tuple[str, str]] = []
        for below, _, child in _walk(node):
            self.total += 1
            self.refs += ((f"{pointer}{below}/{keyword}", ref) for keyword, ref in _refs(child))


def _check_expansions(schema: dict[str, Any]) -> None:
    """Counts the nodes of a schema in which every `$ref` is replaced by what it points to.

    A `$ref` back into what is being expanded (recursion) ends there: a validator follows it only as
    deep as the value goes, and the value's depth is limited. No recursion here: a chain of `$ref`s
    may be longer than Python's stack.
    """
    known: dict[int, int] = {}
    path = [_Target(schema, "")]
    opened = {id(schema)}
    while path:
        current = path[-1]
        if current.refs:
            pointer, ref = current.refs.pop()
            node = resolve_ref(schema, ref)
            if node is None and ref.startswith("#/"):
                raise SchemaError(f"$ref {ref[:200]!r} points to nothing", pointer)
            if id(node) in known:
                current.total += known[id(node)]
            elif node is None or id(node) in opened:
                current.total += 1
            else:
                path.append(_Target(node, pointer[:200]))
                opened.add(id(node))
            continue
        path.pop()
        opened.discard(id(current.node))
        known[id(current.node)] = current.total
        limit = MAX_EXPANSIONS if path else MAX_EXPANDED
        if current.total > limit and (path or known.keys() != {id(schema)}):
            raise SchemaError(f"its $refs expand to more than {limit} nodes", current.pointer)
        if path:
            path[-1].total += current.total


def resolve_ref(schema: Any, ref: str) -> Any:
    """What a local `$ref` (`#`, `#/…` or `#anchor`) points to, or None."""
    if ref == "#":
        return schema
    if not ref.startswith("#/"):
        return _anchored(schema, ref.removeprefix("#"))
    node = schema
    for token in unquote(ref).removeprefix("#/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and _is_index(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _anchored(schema: Any, name: str) -> Any:
    for _, _, node in _walk(schema):
        if isinstance(node, dict) and any(node.get(keyword) == name for keyword in _ANCHORS):
            return node
    return None


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def escape_pointer(token: object) -> str:
    """One reference token of a JSON Pointer (RFC 6901, section 3)."""
    return str(token).replace("~", "~0").replace("/", "~1")
