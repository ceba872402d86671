"""The three views of a result and the public view of arguments: allowlists, applied the same always.

What is not named does not show. The application's view is the value itself; the model's is the whole
validated result unless the tool narrows it; the public one is what `visible` names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from toolcrib.schema.paths import EACH, split_path
from toolcrib.values.definition import All, ToolDefinition, Visibility
from toolcrib.values.json import JsonObject, JsonValue, canonical_bytes, fresh, json_copy

MASK = "***"
_Tree: TypeAlias = dict[str, Any]


def project(value: JsonValue, visible: Visibility | None) -> JsonValue:
    """What an allowlist leaves of a value: named fields only, None where nothing is named."""
    if isinstance(visible, All):
        return value
    return _keep(value, _tree(visible or ()))


def redaction_missing(value: JsonValue, visible: Visibility | None) -> bool:
    """Whether something is withheld because nobody said whether such a value may be seen.

    There is no allowlist, or it names fields of an object where a list came, elements where an
    object came, either where a text or a number came: those only `ALL` shows. An empty allowlist
    says that nothing may be; and what it names and the value lacks is not missing: a field may be
    absent.
    """
    if isinstance(visible, All) or visible == () or value is None or value in ({}, []):
        return False
    if visible is None:
        return True
    tree = _tree(visible)
    if isinstance(value, dict):
        return tree.keys() <= {EACH}
    return not isinstance(value, list) or EACH not in tree


def public_arguments(definition: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """Declared top-level arguments, secret ones masked; undeclared ones do not show."""
    declared = _declared(definition.input_schema_json)
    if not definition.secret and declared.issuperset(arguments):
        return arguments
    return {
        name: MASK if name in definition.secret else value
        for name, value in arguments.items()
        if name in declared
    }


def public_bytes(definition: ToolDefinition, canonical: bytes) -> bytes:
    """The public part of effective arguments, as canonical JSON."""
    if not definition.secret and _all_declared(definition.input_schema_json):
        return canonical
    return canonical_bytes(public_arguments(definition, fresh(canonical)))


def public_places(definition: ToolDefinition | None, places: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some JSON Pointers into the arguments that lead to what shows of them."""
    if not places or definition is None:
        return ()
    declared = _declared(definition.input_schema_json)
    shown = []
    for place in places:
        top, _, below = place[1:].partition("/")
        name = top.replace("~1", "/").replace("~0", "~")
        if name in declared and not (below and name in definition.secret):
            shown.append(place)
    return tuple(shown)


def masked_arguments(definition: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """All that will run, secret ones masked: what somebody who approves has to see."""
    return {n: MASK if n in definition.secret else v for n, v in arguments.items()}


def masked_places(definition: ToolDefinition, places: tuple[str, ...]) -> tuple[str, ...]:
    """JSON Pointers into masked arguments: nothing shows below a secret one."""
    return tuple(p for p in places if p.count("/") == 1 or p.split("/")[1] not in definition.secret)


def unmasked(definition: ToolDefinition, edited: JsonObject, original: JsonObject) -> JsonObject:
    """Edited arguments; a secret one that came back masked, as it was shown, is the original one."""
    hidden = {n for n in definition.secret if edited.get(n) == MASK and n in original}
    return {name: original[name] if name in hidden else value for name, value in edited.items()}


_Json = TypeVar("_Json")


def own_copy(value: _Json) -> _Json:
    """The same JSON, to the last digit, sharing no list and no object with this."""
    if not isinstance(value, dict | list):
        return value
    copied: _Json = msgspec.to_builtins(value)
    return copied


@lru_cache(maxsize=4096)
def _all_declared(schema_json: str | None) -> bool:
    """Whether valid arguments hold nothing but what the schema names."""
    schema = json_copy(schema_json) if schema_json else {}
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


@lru_cache(maxsize=4096)
def _declared(schema_json: str | None) -> frozenset[str]:
    properties = json_copy(schema_json).get("properties") if schema_json else None
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


@lru_cache(maxsize=4096)
def _tree(paths: tuple[str, ...]) -> _Tree:
    """`("a.b", "c[]")` → `{"a": {"b": {}}, "c": {"[]": {}}}`; an empty node keeps all below it."""
    root: _Tree = {}
    for path in sorted(paths, key=lambda p: len(split_path(p)), reverse=True):
        node = root
        for step in split_path(path)[:-1]:
            node = node.setdefault(step, {})
        node[split_path(path)[-1]] = {}
    return root


def _keep(value: JsonValue, tree: _Tree) -> JsonValue:
    if isinstance(value, dict):
        return {
            name: child if not tree[name] else _keep(child, tree[name])
            for name, child in value.items()
            if name in tree and name != EACH  # no path names a field that is called so
        }
    if isinstance(value, list) and EACH in tree:
        below = tree[EACH]
        return [child if not below else _keep(child, below) for child in value]
    return None
