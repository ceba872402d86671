"""Limits on schemas that come from outside: an expensive one is refused at registration.

A validator walks a schema as often as its `$ref`s expand, and one written to do so can hold a
process for minutes ("billion laughs"). So nodes, depth and expansions are counted before a validator
is compiled, and a `$ref` may only point into the schema itself: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias
from urllib.parse import unquote

from toolcrib.errors import SchemaError

MAX_DEPTH = 100
MAX_NODES = 50_000
MAX_EXPANSIONS = 10_000  # of what one `$ref` points to
MAX_EXPANDED = 1_000_000  # of the whole schema
MAX_EXPANDED_DEPTH = 400  # times the depth of a value, this is what a validator's stack has to bear
_REFS = ("$ref", "$dynamicRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_SHELVES = ("$defs", "definitions")  # what lies there counts where a `$ref` leads to it
_SHOWN = 200
# A place in a schema as a chain of keys, the last one first: most are never shown.
_Place: TypeAlias = "tuple[_Place, object] | None"


def check_schema(schema: dict[str, Any]) -> None:
    """Raises SchemaError, with a pointer, for a schema that could not be used safely."""
    for nodes, (place, depth, node) in enumerate(_walk(schema), start=1):
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes")
        if depth > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH}", _pointer(place))
        for keyword, target in _refs(node):
            if not target.startswith("#"):
                raise SchemaError(
                    f"{keyword} must point into the schema itself ('#/$defs/…'); "
                    "nothing is fetched",
                    _pointer((place, keyword)),
                )
        if place and isinstance(node, dict) and isinstance(node.get("$id"), str):
            _check_embedded(node, place)
    _check_expansions(schema)


def _check_embedded(part: dict[str, Any], place: _Place) -> None:
    """In a part with an `$id` of its own, `#/…` would mean a place in that part, not in the whole."""
    for below, _, node in _walk(part, place):
        for keyword, _target in _refs(node):
            raise SchemaError(
                f"{keyword} lies in a part that has an $id of its own: remove that $id",
                _pointer((below, keyword)),
            )


class _Target:
    """Something that `$ref`s point to, while it is being expanded."""

    __slots__ = ("depth", "node", "place", "refs", "total")

    def __init__(self, node: Any, place: _Place) -> None:
        self.node, self.place = node, place
        self.total = self.depth = 0
        self.refs: list[tuple[_Place, str, int]] = []
        for below, depth, child in _walk(node, place):
            self.add(1, depth)
            self.refs += (((below, keyword), ref, depth + 1) for keyword, ref in _refs(child))

    def add(self, total: int, depth: int) -> None:
        self.total += total
        self.depth = max(self.depth, depth)


def _check_expansions(schema: dict[str, Any]) -> None:
    """Counts the nodes of a schema in which every `$ref` is replaced by what it points to.

    A `$ref` back into what is being expanded (recursion) ends there: a validator follows it only as
    deep as the value goes, and the value's depth is limited. No recursion here: a chain of `$ref`s
    may be longer than Python's stack.
    """
    references = References(schema)
    known: dict[int, tuple[int, int]] = {}
    reached = {key: child for key, child in schema.items() if key not in _SHELVES}
    path = [_Target(reached, None)]
    opened = {id(schema)}
    while path:
        current = path[-1]
        if current.refs:
            place, ref, depth = current.refs[-1]
            node = references.resolve(ref)
            if node is None and ref.startswith("#/"):
                raise SchemaError(f"$ref {ref[:_SHOWN]!r} points to nothing", _pointer(place))
            if node is not None and id(node) not in opened and id(node) not in known:
                path.append(_Target(node, place))
                opened.add(id(node))
                continue
            current.refs.pop()
            total, below = known.get(id(node), (1, 0))
            current.add(total, depth + below)
            continue
        path.pop()
        opened.discard(id(current.node))
        known[id(current.node)] = current.total, current.depth
        limit = MAX_EXPANSIONS if path else MAX_EXPANDED
        if current.total > limit:
            raise SchemaError(
                f"its $refs expand to more than {limit} nodes", _pointer(current.place)
            )
        if current.depth > MAX_EXPANDED_DEPTH:
            raise SchemaError(
                f"its $refs nest deeper than {MAX_EXPANDED_DEPTH}", _pointer(current.place)
            )


class References:
    """Where the `$ref`s of one schema lead; each is looked up once."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._found: dict[str, Any] = {"#": schema}
        self._anchors: dict[str, Any] | None = None

    def resolve(self, ref: str) -> Any:
        """What `#`, `#/…` or `#anchor` points to, or None."""
        if ref not in self._found:
            self._found[ref] = (
                _at(self._schema, ref) if ref.startswith("#/") else self._anchored(ref[1:])
            )
        return self._found[ref]

    def _anchored(self, name: str) -> Any:
        if self._anchors is None:
            self._anchors = {
                node[keyword]: node
                for _, _, node in _walk(self._schema)
                if isinstance(node, dict)
                for keyword in _ANCHORS
                if isinstance(node.get(keyword), str)
            }
        return self._anchors.get(name)


def resolve_ref(schema: Any, ref: str) -> Any:
    """What a local `$ref` (`#`, `#/…` or `#anchor`) points to, or None."""
    return References(schema).resolve(ref)


def _at(node: Any, ref: str) -> Any:
    for token in unquote(ref).removeprefix("#/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and _is_index(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def _walk(schema: Any, place: _Place = None) -> Iterator[tuple[_Place, int, Any]]:
    """Every node below, parents before children, no deeper than one step beyond the limit."""
    stack: list[tuple[_Place, int, Any]] = [(place, 0, schema)]
    while stack:
        place, depth, node = stack.pop()
        yield place, depth, node
        if depth <= MAX_DEPTH:
            stack.extend(((place, key), depth + 1, child) for key, child in _children(node))


def _children(node: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)


def _refs(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for keyword in _REFS:
            target = node.get(keyword)
            if isinstance(target, str):
                yield keyword, target


def _pointer(place: _Place) -> str:
    tokens: list[str] = []
    while place is not None:
        place, key = place
        tokens.append("/" + escape_pointer(key)[:_SHOWN])
    return "".join(reversed(tokens))[:_SHOWN]


def escape_pointer(token: object) -> str:
    """One reference token of a JSON Pointer (RFC 6901, section 3)."""
    return str(token).replace("~", "~0").replace("/", "~1")
