"""Several schemas that all apply, as one: what `allOf` says without saying `allOf`.

Nothing is guessed: where one schema cannot say what two say together, there is no merged one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolcrib.schema.lower.tree import ANNOTATIONS, names_in
from toolcrib.values.json import JsonObject, canonical_json


class UnmergeableError(Exception):
    """There is no one schema for both; `keyword` is why."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


def merged(first: JsonObject, second: JsonObject) -> JsonObject:
    """A schema for what is valid under both; annotations of the first win. Raises UnmergeableError."""
    _check_closed(first, second)
    _check_closed(second, first)
    result = dict(first)
    for keyword, value in second.items():
        if keyword not in result:
            result[keyword] = value
        elif keyword in ANNOTATIONS or canonical_json(result[keyword]) == canonical_json(value):
            continue
        elif keyword in _RULES:
            result[keyword] = _RULES[keyword](result[keyword], value)
        else:
            raise UnmergeableError(keyword)
    return result


def _check_closed(closed: JsonObject, other: JsonObject) -> None:
    """What one says of properties it does not declare must not meet what the other declares."""
    declared: Any = closed.get("properties", {})
    added: Any = other.get("properties", {})
    if all(name in declared for name in added):
        return
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if closed.get(keyword, True) not in (True, {}):
            raise UnmergeableError(keyword)
    if "patternProperties" in closed:
        raise UnmergeableError("patternProperties")


def _types(first: Any, second: Any) -> Any:
    wanted = set(names_in(second))
    if "number" in wanted:
        wanted.add("integer")
    common = [name for name in names_in(first) if name in wanted]
    if "number" in names_in(first) and "integer" in wanted and "number" not in wanted:
        common.append("integer")
    if not common:
        raise UnmergeableError("type")
    return common[0] if len(common) == 1 else common


def _values(first: Any, second: Any) -> Any:
    allowed = {canonical_json(value) for value in second}
    common = [value for value in first if canonical_json(value) in allowed]
    if not common:
        raise UnmergeableError("enum")
    return common


def _both(first: Any, second: Any) -> Any:
    """Merged in its turn, when it is lowered."""
    return {"allOf": [first, second]}


def _properties(first: Any, second: Any) -> Any:
    result = dict(first)
    for name, schema in second.items():
        if name not in result or canonical_json(result[name]) == canonical_json(schema):
            result.setdefault(name, schema)
        else:
            result[name] = _both(result[name], schema)
    return result


def _others(first: Any, second: Any) -> Any:
    if first in (True, {}):
        return second
    if second in (True, {}):
        return first
    if first is False or second is False:
        return False
    return _both(first, second)


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "properties": _properties,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
    "items": _both,
    "additionalProperties": _others,
    "unevaluatedProperties": _others,
    "propertyNames": _both,
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
    "uniqueItems": lambda a, b: a or b,
}
