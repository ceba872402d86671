"""Defaults: what a tool gets for an argument that was not sent, and what a schema shows of it.

Rule: None is always a valid default, whatever the hint. Any other value either fits its hint as it
is, or is read by the hint's strict reader (`when: date = "2020-01-01"`), and the tool gets the
value that was read. A value that does neither is refused at registration, in the fields of nested
classes too. A value without a JSON form (a sentinel, a callable, a connection, a secret) is kept as
it is and shown as `{"default": "<type>"}`. A field's default is set by its class, which nobody else
may change. If it would have to be read, it is refused, unless the class itself reads it strictly in
each call (`validate_default=True`; a string can then become a URL or a secret, but never a date).

A schema shows a default if it is JSON, the schema accepts it, and it hides nothing, because a model
copies what it is shown and providers check it. Any other default still takes effect in Python.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import (
    PydanticSerializationError,
    SchemaValidator,
    core_schema,
    from_json,
    to_json,
    to_jsonable_python,
)
from pydantic_core import SchemaError as CoreSchemaError

from toolcrib.errors import DefinitionError, SchemaError
from toolcrib.schema.derive.adapters import Adapter, FlatAdapter, reader, whole_numbers
from toolcrib.schema.derive.cores import (
    core_schemas,
    fields_of,
    is_core,
    is_pydantics,
    parts_of,
    reachable,
)
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.hints import show
from toolcrib.schema.derive.plain import (
    MISSING,
    WRITTEN,
    attributes_of,
    is_object,
    is_secret,
    mark_of,
    own_copy,
    plain_default,
)
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import READ_FROM_TEXT, Differs
from toolcrib.schema.guard import schema_text
from toolcrib.schema.validator import compile_validator
from toolcrib.values.json import JsonValue, canonical_json

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
_SIMPLE = frozenset(_KINDS.values())
STEADY = frozenset((str, bool, int, NoneType))  # types that JSON represents unchanged
_BOUNDS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_QUICK_KEYWORDS = frozenset(("type", "title", "description", "examples")) | _BOUNDS.keys()
_UNION = frozenset(("anyOf", "title", "description"))
_INTEGER_LIMIT = 2**63
_SHOWN_BY_HINT = (Decimal, Fraction, *READ_FROM_TEXT)  # shown as their hint would have them sent
_BUILT_IN_TYPES = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset)
_MADE_OF_FIELDS = frozenset(("model", "dataclass", "named-tuple", "call"))
# Errors about a default that depend on the day or the machine, or come from the author's own
# validators. Those never ran on defaults, and `= ""` with a validator that requires text is a
# common way to write "not set".
_NOT_THE_HINT = frozenset(
    ("value_error", "assertion_error", "date_past", "date_future", "datetime_past", "datetime_future",
     "path_not_file", "path_not_directory", "path_exists", "path_not_exists", "socket_not_exists")
)  # fmt: skip


class Factory(msgspec.Struct, frozen=True):
    """A default that is made for each call: `field(default_factory=list)`."""

    make: Callable[[], Any]


class Default(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a tool gets for one parameter that was not sent.

    `value` is what the tool gets; `shown` is the JSON that policies, approvers and records see. If
    `is_json` is False, `shown` is `{"default": "<type>"}` and is left out of comparisons. With a
    `factory` the value is not known before a call: `for_call` makes it, once per call.
    """

    value: Any
    shown_json: str
    is_json: bool
    factory: Callable[[], Any] | None = None

    @property
    def shown(self) -> JsonValue:
        shown: JsonValue = from_json(self.shown_json)  # keeps large integers whole
        return shown

    def by_type(self) -> JsonValue:
        """Return the placeholder for the value where nobody may see it."""
        return mark_of(type(self.value)) if self.is_json else self.shown

    def for_call(
        self,
        name: str = "",
        values: FactoryValues | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Default:
        """Return the default for one call, with a value that no other call shares.

        A factory asks `values`, under the name of its parameter; `read` reads the JSON form of such
        a value. Raises FactoryFailed, or without `values` whatever the factory raises.
        """
        if self.factory is not None:
            if values is None:
                value = self.factory()
            else:
                value = values.value(name, self.factory, lambda: _ParameterCodec(read), field=name)
            return default_of(value, _reader_of(read))
        if self.value.__class__ in STEADY:
            return self
        own_value = copy.deepcopy(self.value) if self.is_json else own_copy(self.value)
        return msgspec.structs.replace(self, value=own_value)


class _ParameterCodec(msgspec.Struct, frozen=True):
    """Converts the values that a parameter's default factory may make to and from JSON."""

    read: Callable[[Any], Any] | None

    def shown(self, value: Any) -> Any:
        default = default_of(value, _reader_of(self.read))
        return default.shown if default.is_json else MISSING

    def __call__(self, shown: JsonValue, /) -> Any:
        return shown if self.read is None else self.read(shown)


def _reader_of(read: Callable[[Any], Any] | None) -> Callable[[], TypedReader] | None:
    return (lambda: read) if isinstance(read, TypedReader) else None


def default_of(value: Any, read: Callable[[], TypedReader] | None = None) -> Default:
    """Return a default with its JSON, if it has one. Sets get an order that is the same everywhere.

    `read` returns the reader of its hint, which knows the names that fields are sent under.
    """
    with suppress(PydanticSerializationError, ValueError, TypeError, RecursionError):
        if not _has_no_json(value):
            shown = steady_json(value)
            has_names = isinstance(shown, dict | list) or isinstance(value, _SHOWN_BY_HINT)
            if shown and has_names and read is not None:
                with suppress(Differs):  # otherwise it does not fit its hint
                    shown = read().shown(value)
            if shown is not MISSING:
                return Default(value=value, shown_json=canonical_json(shown), is_json=True)
    return _without_json(value)


def _without_json(value: Any) -> Default:
    return Default(value=value, shown_json=canonical_json(mark_of(type(value))), is_json=False)


def factory_default(factory: Callable[[], Any]) -> Default:
    """Return the default of a parameter whose value is made for each call."""
    shown = canonical_json(mark_of(factory))
    return Default(value=None, shown_json=shown, is_json=False, factory=factory)


def read_default(value: Any, hint: Any, adapter: Adapter | None) -> Default:
    """Return the default of a parameter with this hint; without an adapter the hint requires nothing.

    Raises DefinitionError for a value that the hint does not accept.
    """
    if isinstance(value, Factory):
        return factory_default(value.make)
    if value is None or adapter is None or (hint in STEADY and value.__class__ is hint):
        default = default_of(value)
    else:
        default = _read(value, adapter, show(hint))
    if default.is_json:
        _check_copied(default.value)
    return default


def _check_copied(value: Any) -> None:
    if value.__class__ in STEADY:
        return
    try:
        copy.deepcopy(value)
    except Exception as error:  # noqa: BLE001  an author's class may raise anything
        raise DefinitionError(
            f"its default (a {type(value).__name__}) cannot be copied for each call "
            f"({type(error).__name__}): give a default_factory"
        ) from None


def check_nested(core: Any) -> None:
    """Check the defaults of all fields in a core schema, at every depth.

    Raises DefinitionError, naming the field, for a default that its own hint does not accept, and
    for one that would have to be read but that its class does not read.
    """
    _check_sets(core)
    shared: list[Any] = []
    nested_defaults = list(_with_defaults(core, shared))
    for field, node, read_by_class in nested_defaults:
        value, inner = node["default"], node["schema"]
        if value is None or _KINDS.get(value.__class__) == _CORE_KINDS.get(_plain_type(inner), "-"):
            continue
        whole_core = core_schema.definitions_schema(inner, shared) if shared else inner
        try:
            validator = SchemaValidator(whole_core)
        except CoreSchemaError:  # a part that cannot stand alone
            continue
        try:
            adapter = FlatAdapter(whole_core, validator)
            converted = _read(value, adapter, inner.get("type", "hint")).value
            if value.__class__ not in STEADY and _shown_default(value, adapter) is not MISSING:
                _check_copied(value)
        except DefinitionError as error:
            raise DefinitionError(f"its field '{field}': {error}") from None
        if converted is not value and not (read_by_class and _reads_strictly(value, validator)):
            type_name = type(converted).__name__
            expression = (
                f"{type_name}.{converted.name}"
                if isinstance(converted, Enum)
                else f"{type_name}(…)"
            )
            raise DefinitionError(
                f"its field '{field}': its default is a {type(value).__name__}, which the "
                f"tool would get unconverted instead of as a {type_name}: write the default as "
                f"{expression}"
            )


def _check_sets(core: Any) -> None:
    """Raise DefinitionError for set items with fields that a factory makes anew each time.

    An item is found in its set by equality, so such an item could not be matched to what was sent.
    A factory that is a class (`frozenset`) makes equal values, and a field that a dataclass does
    not compare may differ.
    """
    nodes = list(core_schemas(core))
    sets = (node for node in nodes if node["type"] in ("set", "frozenset"))
    items = [node["items_schema"] for node in sets if "items_schema" in node]
    for node in reachable(items, {node["ref"]: node for node in nodes if "ref" in node}):
        for name in _factory_fields(node):
            raise DefinitionError(
                f"the default_factory of '{name}' ({node['cls'].__name__}) may make different "
                "set items each time, which cannot be matched with the items that were sent: "
                "use a list, or a dataclass with field(…, compare=False)"
            )


def _factory_fields(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a class that a factory makes and that its equality compares."""
    inner = node.get("schema")
    is_model = node["type"] == "model" and node["cls"].__eq__ is BaseModel.__eq__
    if not is_model and node["type"] != "dataclass":
        return
    while isinstance(inner, dict) and "fields" not in inner:
        inner = inner.get("schema")
    compared = getattr(node["cls"], "__dataclass_fields__", {})
    for name, field in fields_of(inner) if isinstance(inner, dict) else ():
        factory = field["schema"].get("default_factory")
        if factory is None or isinstance(factory, type):
            continue
        if name not in compared or compared[name].compare:
            yield name


def _shown_default(value: Any, adapter: Adapter) -> Any:
    """Return what a call shows of a field's default; MISSING if it is passed on as it is."""
    try:
        return reader(adapter).shown(value)
    except Differs:
        return plain_default(value)


def _reads_strictly(value: Any, validator: SchemaValidator) -> bool:
    """Return whether a class with `validate_default=True` accepts this default in each call."""
    try:
        validator.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


_CORE_KINDS = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}


def _plain_type(core: Mapping[str, Any]) -> str:
    """Return the type of a core schema without constraints, which needs no validator; else ""."""
    return core["type"] if core.keys() <= {"type", "metadata", "serialization", "strict"} else ""


def _with_defaults(core: Any, shared: list[Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield each default in a core schema, with its field's name and whether its class reads it.

    Definitions are collected in `shared`.
    """
    pending: list[tuple[str, Any, bool]] = [("", core, False)]
    seen = set[int]()
    while pending:
        field, node, reads_defaults = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_core(node):
            reads_defaults = bool(node.get("config", {}).get("validate_default", reads_defaults))
            if "name" in node and "schema" in node:
                field = node["name"]
            if node["type"] == "default" and "default" in node:
                yield field, node, node.get("validate_default", reads_defaults)
            if node["type"] == "definitions":
                shared += node["definitions"]
        elif isinstance(node, dict):  # the fields of a model or a TypedDict, by name
            for name, part in node.items():
                is_field = is_core(part) and part["type"].endswith("-field")
                pending.append((str(name) if is_field else field, part, reads_defaults))
            continue
        pending += [(field, part, reads_defaults) for part in parts_of(node)]


def _read(value: Any, adapter: Adapter, hint: str) -> Default:
    """Return a default as it is if it fits its hint, or else read it from JSON.

    Validators may raise anything. For `Json[…]`, the value that its text would contain is accepted,
    too.
    """
    core = adapter.core_schema
    if core["type"] == "json" and not isinstance(value, str | bytes):
        inner_core = core.get("schema", core_schema.any_schema())
        return _read(value, FlatAdapter(inner_core, SchemaValidator(inner_core)), hint)
    try:
        validated = adapter.validator.validate_python(value, strict=True)
        if _is_unchanged(value, validated) or _is_made_by_author(value, validated, core):
            return default_of(value, lambda: reader(adapter))
    except ValidationError as error:
        if _NOT_THE_HINT.issuperset(fault["type"] for fault in error.errors(include_url=False)):
            return default_of(value)
    except Exception:  # noqa: BLE001  an author's validator that needs more than the value
        return default_of(value)
    json_value = _json_value(value)
    if json_value is MISSING and not (isinstance(value, _BUILT_IN_TYPES) or is_secret(value)):
        return _without_json(value)  # a sentinel
    with suppress(Differs, ValidationError, CoreSchemaError, ValueError):
        if json_value is not MISSING and not isinstance(value, bool):
            typed_reader = reader(adapter)
            return default_of(typed_reader(json_value), lambda: typed_reader)
    raise DefinitionError(
        f"its default (a {type(value).__name__}) does not fit its hint {hint}: give a value that the "
        "hint takes, or None"
    )


def _json_value(value: Any) -> Any:
    """Return the JSON to read; MISSING for a value without any, and for Enum members."""
    if (isinstance(value, Enum) and not isinstance(value, _BUILT_IN_TYPES)) or _has_no_json(value):
        return MISSING
    try:
        return from_json(to_json(whole_numbers(steady_json(value))))
    except (PydanticSerializationError, ValueError, TypeError):
        return MISSING


def _is_unchanged(value: Any, validated: Any) -> bool:
    """Return whether a default stayed what it is, at any depth, when its hint validated it.

    pydantic accepts a dict for a model, and a string for JSON or a secret. Such a default has to be
    read, or it would reach the tool unread.
    """
    if validated is value:
        return True
    if isinstance(value, bool):  # `Literal[1]` accepts True, which equals 1 in Python
        return False
    kind = validated.__class__
    if validated is MISSING:  # a key that is sent under another name
        return False
    if isinstance(value, int | float) and kind in (float, complex):
        return True
    if not isinstance(value, kind):  # a `Page` fits `Page[int]` without being an instance
        generic = getattr(kind, "__pydantic_generic_metadata__", {})
        return generic.get("origin") is value.__class__
    if isinstance(value, dict):
        pairs = [(item, validated.get(key, MISSING)) for key, item in value.items()]
    elif isinstance(value, list | tuple | deque):
        pairs = list(zip(value, validated, strict=False))
    else:
        return True
    return len(value) == len(validated) and all(_is_unchanged(*pair) for pair in pairs)


def _is_made_by_author(value: Any, validated: Any, core: Any) -> bool:
    """Return whether an author's validator, on a value or its items, may have made another type.

    Those validators do not judge defaults. An object of fields, a secret or a URL is made by
    pydantic.
    """
    if isinstance(value, bool) or is_secret(validated) or hasattr(validated, "unicode_string"):
        return False
    pending = [core]
    while pending:
        node = inner = pending.pop()
        while is_core(inner) and inner["type"].startswith("function-") and "schema" in inner:
            inner = inner["schema"]
        if is_core(inner) and inner["type"] in _MADE_OF_FIELDS:
            continue
        if is_core(node) and not is_pydantics(node):
            return True
        pending += parts_of(node)
    return False


def _has_no_json(value: Any) -> bool:
    """Return whether a value must not be converted to JSON, or would lose its meaning by that."""
    if isinstance(value, Iterator) or is_secret(value):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_no_json, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | deque | set | frozenset):
        return any(map(_has_no_json, value))
    if isinstance(value, BaseModel):
        return any(_has_no_json(part) for _, part in value)
    if is_object(value):
        return any(_has_no_json(getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return False


def steady_json(value: Any) -> Any:
    """Return a value as JSON, the same in each process, although sets have no order.

    An object is converted by its attributes, whatever its serializers write and its excluded fields
    omit. Raises PydanticSerializationError for a value without JSON form.
    """
    if value.__class__ in STEADY:
        return value
    if isinstance(value, set | frozenset):
        try:
            return sorted(map(steady_json, value), key=canonical_json)
        except (ValueError, TypeError):
            raise PydanticSerializationError("a set of values that are not JSON") from None
    if isinstance(value, list | tuple | deque):
        return [steady_json(item) for item in value]
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else next(iter(to_jsonable_python({key: None}))): part
            for key, part in ((key, steady_json(item)) for key, item in value.items())
        }
    if is_object(value):
        return steady_json(attributes_of(value))
    return str(value) if isinstance(value, WRITTEN) else to_jsonable_python(value, round_trip=True)


def can_be_shown(value: Any, schema: Mapping[str, Any], definitions: Mapping[Any, Any]) -> bool:
    """Return whether `schema`, with these definitions, may show `value` as its default."""
    verdict = _quick_verdict(value, schema)
    if verdict is not None:
        return verdict
    if any(node.get("writeOnly") is True for node in with_definitions([schema], definitions)):
        return False  # it may contain a secret: masked, it is not a value to copy
    try:
        schema_text([value])
        return compile_validator({**schema, "$defs": dict(definitions)}).is_valid(value)
    except SchemaError:  # the value is not JSON, or a reference is not known yet
        return False


def _quick_verdict(value: Any, schema: Mapping[str, Any]) -> bool | None:
    """Return whether the schema accepts a default; None in the rare case that needs a validator."""
    if "anyOf" in schema and schema.keys() <= _UNION:
        verdicts = [_quick_verdict(value, part) for part in schema["anyOf"]]
        return True if True in verdicts else None if None in verdicts else False
    kind = schema.get("type")
    if value == [] and kind == "array" and "minItems" not in schema:
        return True
    value_kind = _KINDS.get(type(value))
    if value_kind is None or kind not in _SIMPLE or not schema.keys() <= _QUICK_KEYWORDS:
        return None
    if value_kind == "number" or (value_kind == "string" and not value.isascii()):
        return None
    if value_kind == "integer":
        return (
            kind in ("integer", "number")
            and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
            and all(compare(value, schema[k]) for k, compare in _BOUNDS.items() if k in schema)
        )
    return bool(value_kind == kind)


def with_definitions(
    schemas: Iterable[Any], definitions: Mapping[Any, Any]
) -> Iterator[Mapping[str, Any]]:
    """Yield each object in these schemas, and in the definitions they refer to at any distance."""
    pending: list[Any] = list(schemas)
    seen = set[str]()
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, Mapping):
            yield node
            pending += node.values()
            name = named_in(node)
            if name in definitions and name not in seen:
                seen.add(name)
                pending.append(definitions[name])


def named_in(node: Mapping[str, Any]) -> str:
    """Return the name of the definition that a schema's `$ref` points to; empty without one."""
    return str(node.get("$ref", "")).rpartition("/")[2]
