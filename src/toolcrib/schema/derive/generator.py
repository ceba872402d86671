"""Write pydantic's core schemas as JSON Schema, tight for arguments and loose for results.

The schema for arguments (`validation`) accepts only what can be built. The schema for results
(`serialization`) is loose, so that each value of the hint fits.

Rule: an object of declared fields (a model, a dataclass, a TypedDict) that says nothing about other
properties is closed in an input schema, at every depth. The converter drops a property that no
field takes, so with an open schema an approver could read a value that the tool never gets.
`extra="allow"` is respected, and so is anything an author writes by hand about other properties
(`json_schema_extra`, a hook of the class). Output schemas stay open: a result may have more than
its hint says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum, Flag
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

import pydantic
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from toolcrib.schema.derive import constraints
from toolcrib.schema.derive.defaults import (
    STEADY,
    can_be_shown,
    named_in,
    steady_json,
    with_definitions,
)
from toolcrib.schema.derive.hints import annotated_text, quick_class_hints
from toolcrib.schema.docstring import class_doc, read_docstring
from toolcrib.schema.references import IN_PLACE, without

Json: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]

# Metadata that a type may have about its schema and that is not a function to call.
_SIMPLE = frozenset(("pydantic_js_updates", "pydantic_js_prefer_positional_arguments"))
_FUNCTIONS = "pydantic_js_functions"
_MODEL_HOOK = BaseModel.__get_pydantic_json_schema__.__func__  # type: ignore[attr-defined]
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties")
_COMPOSING = IN_PLACE | {"$ref", "$dynamicRef"}
_IDS = re.compile(r":[0-9]+")
_PATHS = re.compile(r"(?:[^.\[\],]+\.)+")
_NOT_ALLOWED_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


class SchemaGenerator(GenerateJsonSchema):
    """Names definitions after their classes, `Address` and `Address_2` if two share a name."""

    mode: Mode = "validation"

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode
        self.cores: Json = {}  # referenced core schemas, by their ref
        self._invalid: dict[str, PydanticInvalidForJsonSchema] = {}
        self._names: dict[str, str] = {}
        self._may_have_orphans = False
        self._hooked = set[int]()  # classes whose own functions run now, by the id of their core
        self._described = set[int]()  # those of them whose fields were described meanwhile
        self._tagged: list[tuple[Json, list[str]]] = []  # a branch, and the names its tag may have

    def build_schema_type_to_method(self) -> Any:
        self._methods = _Methods(self)
        return self._methods

    def derive(self, schemas: Iterable[tuple[str, Any]]) -> tuple[dict[str, Json], Json]:
        """Return a schema for each name, and the definitions that they refer to."""
        json_schemas = {name: dict(self.generate_inner(core)) for name, core in schemas}
        definitions: Json = dict(self.definitions.items())
        for branch, names in self._tagged:
            _require_tag(branch, names, definitions)
        if not self._may_have_orphans:
            return json_schemas, definitions
        referenced = {
            named_in(node) for node in with_definitions(json_schemas.values(), definitions)
        }
        for name in sorted((referenced - definitions.keys()) & self._invalid.keys()):
            raise self._invalid[name]
        return json_schemas, {
            name: node for name, node in definitions.items() if name in referenced
        }

    def generate_inner(self, schema: Any) -> Json:
        """Return what pydantic generates, by a shorter path if no function has to be called."""
        metadata = schema.get("metadata")
        has_functions = metadata and not metadata.keys() <= _SIMPLE and not _is_plain(metadata)
        if has_functions or (self.mode == "serialization" and "serialization" in schema):
            return self.by_functions(schema)
        updates = metadata.get("pydantic_js_updates") if metadata else None
        ref = schema.get("ref")
        if ref is None:
            json_schema = self._methods[schema["type"]](schema)
            return {**json_schema, **updates} if updates else json_schema
        definition_name = self.core_to_defs_refs.get((ref, self.mode))
        if definition_name is not None and definition_name in self.definitions:
            return {"$ref": self.core_to_json_refs[ref, self.mode]}
        json_schema = self._methods[schema["type"]](schema)
        if updates:
            json_schema = {**json_schema, **updates}
        name, reference = self.get_cache_defs_ref_schema(ref)
        if json_schema.get("$ref") != reference["$ref"]:
            self.definitions[name] = json_schema
        return dict(reference)

    def by_functions(self, schema: Any) -> Json:
        """Return what a type's functions and its serializer make of its schema.

        A class is closed after its functions ran, because they may add properties to those of its
        fields.
        """
        function = schema.get("function")
        if isinstance(function, dict) and function.get("function") is _import_function():
            raise PydanticInvalidForJsonSchema("an ImportString runs the module that a model names")
        core_id = id(schema)
        self._hooked.add(core_id)
        json_schema = _with_known_format(super().generate_inner(schema), self.mode)
        self._hooked.discard(core_id)
        if core_id not in self._described:
            return json_schema
        self._described.discard(core_id)
        name: Any = named_in(json_schema)
        if name not in self.definitions:
            return _closed(json_schema)
        self.definitions[name] = _closed(self.definitions[name])
        return json_schema

    def _closed_class(self, schema: Any, json_schema: Json) -> Json:
        """Return the schema of a class with fields, closed unless it is configured otherwise."""
        json_schema = _documented(json_schema, schema.get("cls"))
        extra_behavior, config = schema.get("extra_behavior"), schema.get("config", {})
        if (
            self.mode == "serialization"
            or (extra_behavior or config.get("extra_fields_behavior")) == "allow"
        ):
            return json_schema
        if id(schema) in self._hooked:
            self._described.add(id(schema))
            return json_schema
        return _closed(json_schema)

    def definitions_schema(self, schema: Any) -> Json:
        """Read definitions. A faulty one is an error only if something refers to it."""
        self._may_have_orphans = True
        self.cores |= {core["ref"]: core for core in schema["definitions"]}
        for core in schema["definitions"]:
            try:
                self.generate_inner(core)
            except PydanticInvalidForJsonSchema as error:
                self._invalid[self.get_cache_defs_ref_schema(core["ref"])[0]] = error
        return self.generate_inner(schema["schema"])

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Raise an error for what pydantic would drop from a union with a warning."""
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)

    def nullable_schema(self, schema: Any) -> Json:
        inner = self.generate_inner(schema["schema"])
        if "anyOf" in inner or inner == {"type": "null"}:
            return super().nullable_schema(schema)
        return {"anyOf": [inner, {"type": "null"}]}

    def default_schema(self, schema: Any) -> Json:
        if "default" not in schema:
            return self.generate_inner(schema["schema"])
        if self.mode == "validation" and schema["default"].__class__ in STEADY:
            json_schema = {**self.generate_inner(schema["schema"]), "default": schema["default"]}
        else:
            json_schema = super().default_schema(schema)
            if "default" not in json_schema:
                return json_schema
        without_default = without(json_schema, "default")
        return (
            json_schema
            if can_be_shown(json_schema["default"], without_default, self.definitions)
            else without_default
        )

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Omit the title of a property, which repeats its name. Items of a tuple have no title."""
        return not schema["type"].endswith("-field") and super().field_title_should_be_set(schema)

    def get_defs_ref(self, core_mode_ref: Any) -> Any:
        """Return a readable name, the same in each process; ids only distinguish classes."""
        core_ref = core_mode_ref[0]
        if core_ref not in self._names:
            readable = _PATHS.sub("", _IDS.sub("", core_ref))
            base_name = _NOT_ALLOWED_IN_NAMES.sub("_", readable).strip("_") or "Model"
            taken_names, name, number = set(self._names.values()), base_name, 2
            while name in taken_names:
                name, number = f"{base_name}_{number}", number + 1
            self._names[core_ref] = name
        return self._names[core_ref]

    def encode_default(self, dft: Any) -> Any:
        try:
            return steady_json(dft)
        except (ValueError, TypeError) as error:  # for example bytes that cannot be decoded
            raise PydanticSerializationError("a default that is not JSON") from error

    def field_is_present(self, field: Any) -> bool:
        """Omit what a constructor does not take, and in results what only a constructor has."""
        if self.mode == "serialization":
            return not field.get("init_only") and super().field_is_present(field)
        if field.get("init") is False:
            return False
        alias = field.get("validation_alias")
        if isinstance(alias, list) and not any(isinstance(p, list) and len(p) == 1 for p in alias):
            raise PydanticInvalidForJsonSchema("an AliasPath cannot be written in a schema")
        return True

    def model_schema(self, schema: Any) -> Json:
        return self._closed_class(schema, super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> Json:
        return self._closed_class(schema, super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> Json:
        return self._closed_class(schema, super().typed_dict_schema(schema))

    def str_schema(self, schema: Any) -> Json:
        json_schema = super().str_schema(schema)
        min_length = schema.get("min_length")
        if schema.get("strip_whitespace") and min_length and self.mode == "validation":
            json_schema.setdefault("pattern", constraints.stripped(min_length))
        if json_schema.get("pattern") == pydantic.ByteSize.byte_string_pattern:
            json_schema["pattern"] += r"\s*$"  # pydantic ignores what follows a size
        return json_schema

    def decimal_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else constraints.decimal(schema)

    def fraction_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else constraints.fraction(schema)

    def complex_schema(self, schema: Any) -> Json:
        if self.mode == "serialization":
            return {"type": "string"}
        return {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?([+-][0-9]+(\.[0-9]+)?j)?$"}

    def time_schema(self, schema: Any) -> Json:
        argument_schema = constraints.clock(schema)
        return self._temporal(super().time_schema(schema), argument_schema, constraints.TIME)

    def datetime_schema(self, schema: Any) -> Json:
        aware = schema.get("tz_constraint") == "aware"
        pattern = None if aware else r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T"
        return self._temporal(super().datetime_schema(schema), constraints.moment(schema), pattern)

    def timedelta_schema(self, schema: Any) -> Json:
        argument_schema = {
            "type": "string",
            "pattern": constraints.DURATION,
            "examples": ["PT1H30M"],
        }
        return self._temporal(super().timedelta_schema(schema), argument_schema, "^-?P")

    def _temporal(self, result_schema: Json, argument_schema: Json, pattern: str | None) -> Json:
        """Return the wanted schema, but keep a number if a model's configuration asks for one."""
        if self.mode == "validation":
            return argument_schema
        if result_schema.get("type") != "string" or pattern is None:
            return result_schema
        return {"type": "string", "pattern": pattern}

    def url_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else constraints.url(schema)

    def multi_host_url_schema(self, schema: Any) -> Json:
        return without(self.url_schema(schema), "format")

    def union_schema(self, schema: Any) -> Json:
        json_schema = super().union_schema(schema)
        if json_schema.get("anyOf") == []:
            raise PydanticInvalidForJsonSchema("SkipJsonSchema leaves out every part of a union")
        return json_schema

    def tagged_union_schema(self, schema: Any) -> Json:
        json_schema = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):  # it tells apart what the schemas may not
            json_schema["anyOf"] = json_schema.pop("oneOf")
        elif self.mode == "validation":
            names = _tag_names(schema["discriminator"])
            self._tagged += ((branch, names) for branch in json_schema["oneOf"])
        return json_schema

    def literal_schema(self, schema: Any) -> Json:
        expected = schema["expected"]
        if self.mode == "validation" and constraints.choices(expected) is None:
            raise PydanticInvalidForJsonSchema("a Literal of values that JSON does not have")
        members = [value for value in expected if isinstance(value, Enum)]
        if self.mode == "validation" and not all(isinstance(m, str | int) for m in members):
            raise PydanticInvalidForJsonSchema("a Literal of an Enum's members; use the Enum")
        distinct_schema: Any = {**schema, "expected": constraints.distinct(expected)}
        return super().literal_schema(distinct_schema)

    def enum_schema(self, schema: Any) -> Json:
        """List each member once. An alias is another name for a member, and JSON has its value."""
        members = constraints.distinct(schema["members"])
        if not members:
            raise PydanticInvalidForJsonSchema("an Enum without members")
        accepts_any_value = self.mode == "serialization" or "missing" in schema
        if not accepts_any_value and constraints.choices(members) is None:
            raise PydanticInvalidForJsonSchema("an Enum of values that JSON does not have")
        distinct_schema: Any = {**schema, "members": members}
        json_schema = super().enum_schema(distinct_schema)
        sums = constraints.flags(schema["cls"]) if issubclass(schema["cls"], Flag) else None
        return json_schema if sums is None else without(json_schema, "enum", "const") | sums

    def is_subclass_schema(self, schema: Any) -> Json:
        raise PydanticInvalidForJsonSchema("JSON has no classes")

    def call_schema(self, schema: Any) -> Json:
        """Describe a NamedTuple, before pydantic 2.14."""
        if not isinstance(schema["function"], type):
            raise PydanticInvalidForJsonSchema("a function is not a type")
        return super().call_schema(schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Json:
        class_name = getattr(schema.get("cls"), "__qualname__", schema["type"])
        raise PydanticInvalidForJsonSchema(f"JSON has no {class_name}")

    def generator_schema(self, schema: Any) -> Json:
        """Refuse a generator as an argument: pydantic passes it on unread, with invalid items."""
        if self.mode == "validation":
            raise PydanticInvalidForJsonSchema(
                "a Generator, or an Iterable in a class, is read while the tool runs; use a list"
            )
        return super().generator_schema(schema)

    def json_or_python_schema(self, schema: Any) -> Json:
        if _is_hashable(schema):
            return constraints.scalar_items({}) if self.mode == "validation" else {}
        if schema.get("serialization", {}).get("function") is not _secret_serializer():
            return super().json_or_python_schema(schema)
        is_masked = self.mode == "serialization"  # as asterisks
        json_schema = {"type": "string"} if is_masked else super().json_or_python_schema(schema)
        return {**json_schema, "writeOnly": True}

    def set_schema(self, schema: Any) -> Json:
        json_schema = super().set_schema(schema)
        if self.mode == "validation":
            items = schema.get("items_schema")
            if items is not None and not can_be_hashed(items, self.cores):
                message = "a set of values that cannot be hashed; use a list"
                raise PydanticInvalidForJsonSchema(message)
            json_schema["items"] = constraints.scalar_items(json_schema["items"])
        return json_schema

    frozenset_schema = set_schema

    def dict_schema(self, schema: Any) -> Json:
        """State which keys can be read. pydantic states too little for some, and nothing about
        patterns."""
        json_schema = super().dict_schema(schema)
        json_schema.pop("propertyNames", None)
        if self.mode == "serialization":
            return json_schema
        patterns = json_schema.pop("patternProperties", None)
        if patterns is not None:
            json_schema["additionalProperties"] = next(iter(patterns.values())) or True
        names = self._property_names_of(schema["keys_schema"]) if "keys_schema" in schema else {}
        if names:
            json_schema["propertyNames"] = names
        return json_schema

    ordered_dict_schema = counter_schema = dict_schema

    def _property_names_of(self, keys: Any) -> Json:
        """Return the schema of the property names from which keys of this type can be made."""
        self._may_have_orphans = True
        kind = keys["type"]
        if kind == "custom-error":
            return self._property_names_of(keys["schema"])
        if kind in _KEYS or _is_hashable(keys):
            return dict(_KEYS.get(kind, {}))
        if kind in ("nullable", "union"):
            choices = [keys["schema"]] if kind == "nullable" else keys["choices"]
            parts = [self._property_names_of(p[0] if isinstance(p, tuple) else p) for p in choices]
            return {"anyOf": parts} if len(parts) > 1 and all(parts) else {}
        json_schema = self.generate_inner(keys)
        resolved = self.resolve_ref_schema(json_schema)
        if resolved.get("type") == "string":
            return json_schema if "$ref" in json_schema else without(resolved, "type", "title")
        if resolved.get("type") == "integer" and issubclass(keys.get("cls", object), int):
            members = constraints.distinct(keys["members"])  # pydantic reads no sums of a Flag here
            return {"enum": [str(member.value) for member in members]}
        message = "a dict whose keys cannot be read from JSON property names"
        raise PydanticInvalidForJsonSchema(message)


class _Methods(dict[str, Any]):
    """The method for each type of a core schema, looked up on demand."""

    def __init__(self, generator: GenerateJsonSchema) -> None:
        super().__init__()
        self._generator = generator

    def __missing__(self, kind: str) -> Any:
        method = getattr(self._generator, f"{kind.replace('-', '_')}_schema")
        self[kind] = method
        return method


def _require_tag(branch: Json, names: list[str], definitions: Json) -> None:
    """Require the tag of a branch of a tagged union, once all definitions are known.

    pydantic chooses by the tag before it reads defaults, so a tag with a default has to be sent.
    """
    node = branch
    while (name := named_in(node)) in definitions:
        node = definitions[name]
    for inner in node.get("oneOf", ()):
        _require_tag(inner, names, definitions)
    tag = next((name for name in names if name in node.get("properties", {})), None)
    required = node.get("required", [])
    if tag is not None and tag not in required:
        node["required"] = [*required, tag]


def _tag_names(discriminator: Any) -> list[str]:
    """Return the names by which pydantic finds a tag: a field's own name, its alias, or both."""
    if isinstance(discriminator, str):
        return [discriminator]
    paths = [[step] if isinstance(step, str) else step for step in discriminator]
    return [path[0] for path in paths if len(path) == 1]


def _is_plain(metadata: Json) -> bool:
    """Return whether a model's only function is the one that all models have."""
    functions = metadata.get(_FUNCTIONS, ())
    return metadata.keys() <= _SIMPLE | {_FUNCTIONS} and all(
        getattr(function, "__func__", None) is _MODEL_HOOK for function in functions
    )


def _with_known_format(json_schema: Json, mode: Mode) -> Json:
    format_schema = constraints.FORMATS.get(str(json_schema.get("format")))
    if format_schema is None:
        return json_schema
    json_schema = without(json_schema, "format")
    return json_schema if mode == "serialization" else {**json_schema, **format_schema}


def _closed(json_schema: Json) -> Json:
    """Close an object of declared properties, unless it says something about other properties."""
    if "properties" not in json_schema or not json_schema.keys().isdisjoint(_OTHERS):
        return json_schema
    is_composed = not json_schema.keys().isdisjoint(_COMPOSING)
    return {
        **json_schema,
        "unevaluatedProperties" if is_composed else "additionalProperties": False,
    }


def _documented(json_schema: Json, cls: Any) -> Json:
    """Describe a class by its docstring, and its fields by what the docstring says about them.

    Descriptions from elsewhere (`Field(description=…)`, `json_schema_extra`) take precedence.
    """
    _describe_annotated(json_schema.get("properties", {}), cls)
    text = class_doc(cls) if isinstance(cls, type) else None
    if not text:
        return json_schema
    docstring = read_docstring(text)
    current = json_schema.get("description")
    is_docstring = current == inspect.cleandoc(text) or (current is None and is_dataclass(cls))
    if is_docstring and current != docstring.description:
        json_schema.pop("description", None)
        if docstring.description:
            json_schema["description"] = docstring.description
    properties = json_schema.get("properties", {})
    for name, description in docstring.parameters.items():
        if isinstance(properties.get(name), dict):
            properties[name].setdefault("description", description)
    return json_schema


def _describe_annotated(properties: Json, cls: Any) -> None:
    """Set descriptions from hints like `Annotated[int, "how many"]`; a `Field` takes precedence."""
    if not isinstance(cls, type) or not properties:
        return
    if issubclass(cls, BaseModel):
        fields = cls.model_fields.items()
        hints = {name: Annotated[(Any, *info.metadata)] for name, info in fields if info.metadata}
    else:
        hints = quick_class_hints(cls) or {}
    for name, hint in hints.items():
        text = annotated_text(hint)
        if text and isinstance(properties.get(name), dict):
            properties[name].setdefault("description", text)


# Whether a value made from JSON is hashable.

_UNHASHABLE = frozenset(
    ("list", "dict", "set", "deque", "typed-dict", "ordered-dict", "counter", "default-dict")
)
_INNER = ("schema", "json_schema", "fields", "arguments_schema", "items_schema", "choices")


def can_be_hashed(core: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return whether what a core schema makes is hashable; `definitions` are keyed by their ref.

    `Any` counts as hashable, because only JSON scalars are admitted for it: see `scalar_items`.
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
    """Return whether `dataclass` or pydantic generated the hash function of a class."""
    code = getattr(cls.__hash__, "__code__", None)
    return code is not None and (
        code.co_filename == "<string>" or cls.__hash__.__module__.startswith("pydantic.")
    )


def _cores(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, dict) and isinstance(node.get("type"), str):
        yield node
    elif isinstance(node, dict | list | tuple):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _cores(part)


_KEYS: Mapping[str, Json] = {
    "any": {},
    "int": {"pattern": constraints.WHOLE_KEY},
    "float": {"pattern": constraints.REAL_KEY},
    "decimal": {"pattern": constraints.REAL_KEY},
    "bool": {"enum": ["true", "false"]},
}


@cache
def _secret_serializer() -> object:
    """Return the function that marks a secret, however it is subclassed or subscripted."""
    core: Any = TypeAdapter(pydantic.Secret[int]).core_schema
    return core["serialization"]["function"]


@cache
def _import_function() -> object:
    core: Any = TypeAdapter(pydantic.ImportString).core_schema
    return core["function"]["function"]


def _is_hashable(schema: Any) -> bool:
    python = schema.get("python_schema")
    return python is not None and python.get("cls") is Hashable
