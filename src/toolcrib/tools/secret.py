"""Which arguments no record may show: those that the author names, and those of secret types.

A secret is found wherever it lies: behind references, in alternatives, below arrays and open objects.
Where a schema leaves open which properties a part of it means, all that it may mean are secret.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.schema.keywords import IN_PLACE
from toolcrib.schema.references import References, children
from toolcrib.tools.checked import Checked
from toolcrib.values.json import JsonObject

_MARKS = ('"writeOnly"', '"password"')  # no secret without one; most schemas have neither
_REFS = ("$ref", "$dynamicRef")
_OTHERS = ("additionalProperties", "unevaluatedProperties")


def secret_properties(tool: str, given: Checked | None, named: Sequence[str]) -> tuple[str, ...]:
    """Top-level properties named by the author, or holding a secret anywhere.

    A secret is `writeOnly`, as pydantic says of a `SecretStr`, or has the format `password`.
    Raises DefinitionError if a name is no property of the schema.
    """
    if isinstance(named, str):
        raise DefinitionError(f"tool '{tool}': secret is a list of parameters such as ['pin']")
    if given is None:
        return tuple(dict.fromkeys(named))
    properties: Any = given.schema.get("properties", {})
    for name in named:
        if name not in properties:
            raise DefinitionError(f"tool '{tool}': secret names {name!r}, which is no parameter")
    marked = any(mark in given.text for mark in _MARKS)
    hidden = _hidden(given.schema, frozenset(properties)) if marked else set()
    return tuple(dict.fromkeys([*named, *(name for name in properties if name in hidden)]))


def _hidden(schema: JsonObject, names: frozenset[str]) -> set[str]:
    references = References(schema)
    holding = _holding(references, schema)
    hidden: set[str] = set()
    for node in _about_arguments(references, schema):
        declared = node.get("properties", {})
        hidden.update(name for name, child in declared.items() if id(child) in holding)
        if any(id(child) in holding for child in node.get("patternProperties", {}).values()):
            hidden |= names
        if any(id(node[key]) in holding for key in _OTHERS if key in node):
            hidden |= names.difference(declared)
    return hidden


def _about_arguments(references: References, schema: JsonObject) -> Iterator[dict[str, Any]]:
    """The subschemas that judge the arguments as a whole, the schema itself among them."""
    stack: list[Any] = [schema]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack += _led_to(references, node)
        stack += (
            child
            for key in IN_PLACE.intersection(node)
            for _, child in children(None, key, node[key])
        )


def _holding(references: References, schema: JsonObject) -> set[int]:
    """The ids of all in a schema that a secret lies in, or below what it refers to."""
    above: dict[int, list[int]] = defaultdict(list)
    stack: list[Any] = [schema]
    seen: set[int] = set()
    found: list[int] = []
    while stack:
        node = stack.pop()
        if id(node) in seen or not isinstance(node, dict | list):
            continue
        seen.add(id(node))
        below = node
        if isinstance(node, dict):
            below = [*node.values(), *_led_to(references, node)]
            if node.get("writeOnly") is True or node.get("format") == "password":
                found.append(id(node))
        for child in below:
            above[id(child)].append(id(node))
        stack += below
    holding = set(found)
    while found:
        higher = [node for node in above[found.pop()] if node not in holding]
        holding.update(higher)
        found += higher
    return holding


def _led_to(references: References, node: dict[str, Any]) -> list[Any]:
    return [references.resolve(node[key]) for key in _REFS if isinstance(node.get(key), str)]
