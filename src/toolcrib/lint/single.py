"""What one definition leaves out, or says against itself: rules that need no other tool."""

from __future__ import annotations

import json
from collections.abc import Iterator

from toolcrib.errors import SchemaError
from toolcrib.lint.finding import Fault
from toolcrib.lint.schemas import described, properties, subschemas
from toolcrib.lint.texts import check_texts
from toolcrib.lint.words import name_words, spaceless, stem, told, words
from toolcrib.schema import compile_validator
from toolcrib.schema.references import References
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

MIN_WORDS = 3
"""A description of fewer words is very short."""
_LISTED = 5
_SHOWN = 40
_SHELVES = ("$schema", "$defs", "definitions")
_PLAIN = frozenset({"type", "description", "title", "default", "examples"})
_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "array": (list,),
    "object": (dict,),
}


def check_single(definition: ToolDefinition) -> Iterator[Fault]:
    """All faults of one definition, whoever the provider is."""
    yield from _description(definition)
    schema = definition.input_schema
    if schema is not None:
        yield from _parameters(schema)
        yield from _defaults(schema)
        yield from _enums(schema)
    form = definition.to_dict()
    form["examples"] = [[e.request, e.arguments] for e in definition.examples]
    yield from check_texts(form)


def _description(definition: ToolDefinition) -> Iterator[Fault]:
    text = definition.description.strip()
    if not text:
        yield Fault(
            "description",
            "/description",
            "it has no description: say what it does, and when to use it",
        )
        return
    number = len(words(text))
    if number < MIN_WORDS and not spaceless(text):
        yield Fault(
            "description",
            "/description",
            f"its description is very short ({_words(number)}): say what it does, on what, "
            "and what comes back",
        )
    elif told(text) <= {stem(word) for word in name_words(definition.name)}:
        yield Fault(
            "description",
            "/description",
            "its description says no more than its name: say on what, and what comes back",
        )


def _words(number: int) -> str:
    return f"{number} word{'' if number == 1 else 's'}"


def _parameters(schema: JsonObject) -> Iterator[Fault]:
    """One fault for a tool: somebody who describes one parameter describes all of them."""
    root, known = References(schema), list(properties(schema))
    bare = [p for p in known if not described(p.schema, root)]
    if not bare:
        return
    names = ", ".join(f"'{p.name[:40]}'" for p in bare[:_LISTED])
    more = f" and {len(bare) - _LISTED} more" if len(bare) > _LISTED else ""
    yield Fault(
        "parameter",
        f"/input_schema{bare[0].pointer}",
        f"parameters without a description: {names}{more} ({len(bare)} of {len(known)})",
    )


def _defaults(schema: JsonObject) -> Iterator[Fault]:
    shelves = {key: schema[key] for key in _SHELVES if key in schema}
    nulls: list[str] = []
    for pointer, node in subschemas(schema):
        if "default" not in node or _fits(node, shelves):
            continue
        if node["default"] is None:
            nulls.append(pointer)
            continue
        yield Fault(
            "default",
            f"/input_schema{pointer}/default",
            f"its default {_short(node['default'])} does not fit its own schema: "
            "a model that sends it is refused",
        )
    if nulls:
        more = f" (and {len(nulls) - 1} more)" if len(nulls) > 1 else ""
        yield Fault(
            "default",
            f"/input_schema{nulls[0]}/default",
            f"its default{more} is null, which its own schema refuses: allow null, or drop it",
        )


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _fits(node: JsonObject, shelves: JsonObject) -> bool:
    """Judged with the `$defs` of the whole; what cannot be judged alone counts as fitting."""
    value = node["default"]
    if node.keys() <= _PLAIN:
        verdict = _plainly(node.get("type"), value)
        if verdict is not None:
            return verdict
    alone = {key: part for key, part in node.items() if key not in _SHELVES}
    try:
        validator = compile_validator({**shelves, "properties": {"value": alone}})
    except SchemaError:
        return True
    return validator.is_valid({"value": value})


def _plainly(kind: JsonValue, value: JsonValue) -> bool | None:
    """The verdict on a schema that is a type and nothing else, without compiling it."""
    if kind is None:
        return True
    if not isinstance(kind, str) or kind not in _PYTHON:
        return None
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind])


def _enums(schema: JsonObject) -> Iterator[Fault]:
    for pointer, node in subschemas(schema):
        if isinstance(node.get("enum"), list) and "type" not in node:
            yield Fault(
                "enum",
                f"/input_schema{pointer}/enum",
                "its enum comes without a type, which some endpoints need: add one",
            )
