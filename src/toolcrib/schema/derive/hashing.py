"""Whether what is made of JSON may stand in a set."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

_UNHASHABLE = frozenset(
    ("list", "dict", "set", "deque", "typed-dict", "ordered-dict", "counter", "default-dict")
)
_INNER = ("schema", "json_schema", "fields", "arguments_schema", "items_schema", "choices")


def can_be_hashed(core: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Whether the values that a core schema makes may stand in a set; `definitions` by their ref.

    Anything at all (`Any`) may, of what JSON has, if it is a scalar: see `scalar_items`.
    """
    pending, seen = [core], set[str]()
    while pending:
        part = pending.pop()
        kind = part["type"]
        if kind in _UNHASHABLE or (kind == "any" and part is not core):
            return False
        if kind == "json-or-python" and part["python_schema"].get("cls") is Hashable:
            continue
        if kind in ("model", "dataclass") and not _hashes_its_fields(part["cls"]):
            if part["cls"].__hash__ is None:
                return False
            continue
        ref = part.get("schema_ref")
        if ref is not None and ref in definitions and ref not in seen:
            seen.add(ref)
            pending.append(definitions[ref])
        pending += [inner for key in _INNER for inner in _cores(part.get(key))]
    return True


def _hashes_its_fields(cls: type) -> bool:
    """By a function that `dataclass` or pydantic wrote."""
    code = getattr(cls.__hash__, "__code__", None)
    return code is not None and (
        code.co_filename == "<string>" or cls.__hash__.__module__.startswith("pydantic.")
    )


def _cores(node: Any) -> Iterator[Mapping[str, Any]]:
    """The core schemas in a list or a dict of them."""
    if isinstance(node, dict) and isinstance(node.get("type"), str):
        yield node
    elif isinstance(node, dict | list | tuple):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _cores(part)
