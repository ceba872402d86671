"""Is it JSON at all, and of a bearable size? Asked of an author's object before anything else is.

The walk is counted, so that an object that holds itself, or one small object a million times (an
alias bomb in YAML), is refused after so many steps; only then is it safe to write it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import orjson

from toolcrib.errors import SchemaError
from toolcrib.schema.references import Place, pointer_to

MAX_DEPTH = 100
MAX_NODES = 50_000
MAX_BYTES = 1_000_000  # of the schema's text
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def schema_text(schema: object) -> str:
    """The JSON text of a schema, key by key as its author wrote it. Raises as `check_shape` does."""
    check_shape(schema)
    try:
        return orjson.dumps(schema).decode()
    except TypeError:  # a tuple, a float or a dict of a class of its own
        raise SchemaError("it is not JSON: it holds values of classes of their own") from None


def check_shape(schema: object) -> None:
    """Raises SchemaError, with a pointer, for what is no JSON, too deep, or too large.

    Limits: depth 100, 50,000 nodes, 1,000,000 bytes of text, integers of 64 bits.
    """
    nodes, size = 1, 0
    stack: list[tuple[Place, int, Any]] = [(None, 0, schema)]
    while stack:
        place, depth, node = stack.pop()
        if depth > MAX_DEPTH:
            raise SchemaError(
                f"the schema is nested deeper than {MAX_DEPTH}, or holds itself", pointer_to(place)
            )
        members = _members(place, node)
        nodes += len(node)
        if nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} nodes", pointer_to(place))
        size += 2 + 3 * len(node) + (_keys(node, place) if isinstance(node, dict) else 0)
        for key, child in members:
            kind = child.__class__
            if kind is str:
                size += len(child) if child.isascii() else _encoded(child, (place, key))
            elif kind is dict or kind is list or kind is tuple:
                stack.append(((place, key), depth + 1, child))
            elif kind is not bool and child is not None:
                size += _other(stack, (place, key), depth + 1, child)
        if size > MAX_BYTES:
            raise SchemaError(
                f"the text of the schema is longer than {MAX_BYTES} bytes", pointer_to(place)
            )


def _members(place: Place, node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list | tuple):
        return enumerate(node)
    raise SchemaError(f"it is not JSON: a {type(node).__name__}", pointer_to(place))


def _other(stack: list[tuple[Place, int, Any]], place: Place, depth: int, value: Any) -> int:
    """Numbers, and subclasses of what JSON has. The number of bytes that it takes."""
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise SchemaError(
                "it is not JSON that others can read: an integer beyond 64 bits", pointer_to(place)
            )
        return value.bit_length() // 3 + 1
    if value.__class__ is float:
        if not isfinite(value):
            raise SchemaError("it is not JSON: NaN or an infinity", pointer_to(place))
        return 24
    if isinstance(value, str):
        return _encoded(value, place)
    if isinstance(value, dict | list | tuple):
        stack.append((place, depth, value))
        return 0
    raise SchemaError(f"it is not JSON: a {type(value).__name__}", pointer_to(place))


def _keys(node: dict[Any, Any], place: Place) -> int:
    """The bytes of all keys together."""
    try:
        joined = "".join(node)
    except TypeError:
        strange = next(key for key in node if not isinstance(key, str))
        raise SchemaError(
            f"it is not JSON: a key is of type {type(strange).__name__}, and keys are text",
            pointer_to(place),
        ) from None
    return len(joined) if joined.isascii() else _encoded(joined, place)


def _encoded(text: str, place: Place) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise SchemaError(
            "it is not JSON: a text holds a lone surrogate", pointer_to(place)
        ) from None
