"""A schema that was given, held against the hints of the function that it is for.

Rule: a parameter whose schema and whose hint have no JSON type in common could never be called, and is
refused at registration. Of what JSON Schema says more than types nothing is compared: the author
knows what a pattern is for. A parameter that the schema does not declare needs no readable hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.errors import DefinitionError
from toolcrib.schema.derive.adapters import adapter_for
from toolcrib.schema.derive.hints import direct
from toolcrib.schema.derive.parameters import Parameter, derive_input
from toolcrib.schema.references import References
from toolcrib.values.json import JsonObject

_ALL = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_OF_VALUES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
_AUTHORS = frozenset(("function-before", "function-wrap", "function-plain"))
_DEEPEST = 20


def readable(declared: Mapping[str, Any], parameters: Sequence[Parameter]) -> list[Parameter]:
    """The parameters; the hint of one that the schema does not declare may say nothing."""
    return [
        one if one.name in declared or _can_be_read(one) else one._replace(hint=Any)
        for one in parameters
    ]


def check_types(schema: JsonObject, parameters: Sequence[Parameter]) -> None:
    """Raises DefinitionError, naming the parameter, where its schema contradicts its hint."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return
    given = References(schema)
    for parameter in parameters:
        node = properties.get(parameter.name, True)
        if node is True or parameter.hint is Any or not _says_what_it_reads(parameter):
            continue
        derived: Any = derive_input([Parameter(parameter.name, parameter.hint)]).schema
        wanted = derived["properties"][parameter.name]
        asked, read = _types(given, node), _types(References(derived), wanted)
        if not asked & read:
            raise DefinitionError(
                f"parameter '{parameter.name}': input_schema says {_listed(asked)}, its type hint "
                f"reads {_listed(read)}: no call could fit both; change one"
            )


def _can_be_read(parameter: Parameter) -> bool:
    try:
        adapter_for(parameter.hint, "")
    except DefinitionError:
        return False
    return True


def _says_what_it_reads(parameter: Parameter) -> bool:
    """Whether its schema tells what may come: a validator before the hint may take anything."""
    if direct(parameter.hint) is not None:
        return True
    pending: list[Any] = [adapter_for(parameter.hint, f"parameter '{parameter.name}'").core_schema]
    while pending:
        core = pending.pop()
        if core.get("type") in _AUTHORS:
            return False
        if core.get("type") in ("default", "nullable", "function-after", "definitions"):
            pending.append(core["schema"])
        elif core.get("type") == "union":
            pending += [c[0] if isinstance(c, tuple) else c for c in core["choices"]]
    return True


def _types(root: References, node: Any, level: int = 0) -> frozenset[str]:
    """The JSON types that a schema may accept; integers are numbers, too."""
    if not isinstance(node, dict) or level > _DEEPEST:
        return _ALL if node is not False else frozenset()
    found = _own_types(node)
    if isinstance(node.get("$ref"), str):
        found &= _types(root, root.resolve(node["$ref"]), level + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = node.get(keyword)
        if isinstance(branches, list):
            parts = [_types(root, branch, level + 1) for branch in branches]
            found &= frozenset[str]().union(*parts)
    for part in node.get("allOf", ()):
        found &= _types(root, part, level + 1)
    return found


def _own_types(node: Mapping[str, Any]) -> frozenset[str]:
    said = node.get("type")
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else list(_ALL)
    found = frozenset(listed) if _ALL.issuperset(listed) else _ALL  # what is no type is told later
    if "number" in found:
        found |= {"integer"}
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        kinds = {_OF_VALUES.get(type(v), "null" if v is None else "object") for v in values}
        found &= kinds | ({"integer"} if "number" in kinds else set())
    return found


def _listed(types: frozenset[str]) -> str:
    plain = types - ({"integer"} if "number" in types else set())
    return " or ".join(sorted(plain)) or "nothing"
