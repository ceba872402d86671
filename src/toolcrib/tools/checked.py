"""A tool's schemas, checked: only text that was found safe is kept, and compiled."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from toolcrib.errors import DefinitionError, SchemaError
from toolcrib.schema import JsonSchemaValidator, LazyValidator, Validator, ValidatorFactory
from toolcrib.schema.foreign import made_by
from toolcrib.schema.guard import Inspected, inspect_schema
from toolcrib.schema.keywords import Draft
from toolcrib.schema.shape import schema_text
from toolcrib.schema.validator import check_keywords
from toolcrib.values.json import JsonObject, json_copy

_AS_IT_IS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME
_TOP = "tool '{}': the top of input_schema must be type 'object'"


class Checked(NamedTuple):
    """A schema that was checked: the text that is kept, and an object made of that text alone."""

    text: str
    schema: JsonObject
    inspected: Inspected


def check_given(name: str, what: str, schema: JsonObject | None) -> Checked | None:
    """Takes what will be stored, so that nothing that changes the original changes the tool.

    Raises SchemaError, naming the tool and the place, for what is not safe to use.
    """
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise DefinitionError(f"tool '{name}': {what} must be a dict, not {_kind(schema)}")
    try:
        text = schema_text(schema)
        copy = json_copy(text)
        return Checked(text, copy, inspect_schema(copy))
    except SchemaError as error:
        raise SchemaError(f"tool '{name}', {what}: {error.message}", error.pointer) from None


def check_derived(name: str, what: str, schema: JsonObject | None) -> Checked | None:
    """The same for a schema made of hints: most hold nothing that could be expensive or outward."""
    try:
        text = orjson.dumps(schema, option=_AS_IT_IS | orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:
        return check_given(name, what, schema)
    copy = json_copy(text)
    if copy is None or copy != schema or not _is_harmless(text):
        return check_given(name, what, schema)
    return Checked(text, copy, Inspected(Draft.D2020))


def _is_harmless(text: str) -> bool:
    """No patterns, and no references but from the top to definitions that have none themselves."""
    top, _, shared = text.partition('"$defs":')
    references = top.count('"$ref":"#/$defs/')
    return '"pattern' not in text and '"$' not in shared and top.count('"$') == references


def make_validator(
    name: str,
    what: str,
    checked: Checked | None,
    *,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
) -> Validator | None:
    """Compiles a schema now, or (lazy) at its first use. Raises SchemaError."""
    if checked is None:
        return None
    try:
        if lazy:
            return LazyValidator(checked.schema, factory or JsonSchemaValidator)
        if factory is None:
            return _compiled(checked, may_share=what == "output_schema")
        check_keywords(checked.schema, checked.inspected)
        return made_by(factory, json_copy(checked.text))
    except SchemaError as error:
        raise SchemaError(f"tool '{name}', {what}: {error.message}", error.pointer) from None
    except Exception as error:  # noqa: BLE001  a factory of others
        kind = type(error).__name__
        raise SchemaError(f"tool '{name}', {what}: no validator can be made ({kind})") from None


def _compiled(checked: Checked, *, may_share: bool) -> Validator:
    """Most results are described in few ways, and short: equal texts share one validator."""
    if not may_share or len(checked.text) > _SHORT:
        return JsonSchemaValidator(checked.schema, checked.inspected)
    made = _shared.get(checked.text)
    if made is None:
        made = JsonSchemaValidator(checked.schema, checked.inspected)
        if len(_shared) >= _MAX_SHARED:
            _shared.clear()
        _shared[checked.text] = made
    return made


_shared: dict[str, Validator] = {}
_SHORT, _MAX_SHARED = 200, 1024


def compile_schema(
    name: str,
    what: str,
    schema: JsonObject | None,
    *,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
) -> Validator | None:
    """Checks a schema and makes its validator. Raises SchemaError, naming tool and place."""
    checked = check_given(name, what, schema)
    return make_validator(name, what, checked, factory=factory, lazy=lazy)


def check_input(name: str, schema: JsonObject, *, derived: bool = False) -> Checked:
    """Checks what the arguments are judged by, which are an object by the schema's own word."""
    check = check_derived if derived else check_given
    checked = check(name, "input_schema", schema) if isinstance(schema, dict) else None
    if checked is None:
        raise DefinitionError(f"{_TOP.format(name)}: it is not even a dict, but {_kind(schema)}")
    check_top(name, checked)
    return checked


def check_top(name: str, checked: Checked) -> None:
    """Raises DefinitionError unless the top is an object, in words that say so."""
    start = _TOP.format(name)
    schema = checked.schema
    if schema.get("type") != "object":
        found = f"has type {schema['type']!r:.80}" if "type" in schema else "has no type"
        hint = " (write what its $ref leads to at the top)" if "$ref" in schema else ""
        raise DefinitionError(f"{start}: it {found}{hint}")
    if "$ref" in schema and checked.inspected.draft is Draft.D7:
        raise DefinitionError(
            f"{start}, and in draft 7 nothing counts beside a $ref: write what the $ref leads to "
            "at the top"
        )


def _kind(value: object) -> str:
    return type(value).__name__
