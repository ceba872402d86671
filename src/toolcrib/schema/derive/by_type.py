"""What each type says as JSON Schema: no more than can be built, and no less than is returned.

Where a hint makes something for a model to fill in (`validation`) the schema is tight; what a tool
returns (`serialization`) it describes loosely, so that each value of the hint fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from functools import cache
from typing import Any

from pydantic import ImportString, Secret, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from toolcrib.schema.derive import tight
from toolcrib.schema.derive.generator import Generator, Json, without
from toolcrib.schema.derive.hashing import can_be_hashed

_KEYS: Mapping[str, Json] = {
    "any": {},
    "int": {"pattern": tight.WHOLE_KEY},
    "float": {"pattern": tight.REAL_KEY},
    "decimal": {"pattern": tight.REAL_KEY},
    "bool": {"enum": ["true", "false"]},
}


def _core(hint: Any) -> Any:
    return TypeAdapter(hint).core_schema


@cache
def _secret_serializer() -> object:
    """What tells a secret, however it is subclassed and subscribed."""
    return _core(Secret[int])["serialization"]["function"]


@cache
def _importer() -> object:
    """What tells an `ImportString`."""
    return _core(ImportString)["function"]["function"]


class SchemaGenerator(Generator):
    """pydantic's generator, tight for arguments and loose for results."""

    def str_schema(self, schema: Any) -> Json:
        made = super().str_schema(schema)
        shortest = schema.get("min_length")
        if schema.get("strip_whitespace") and shortest and self.mode == "validation":
            made.setdefault("pattern", tight.stripped(shortest))
        return made

    def decimal_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else tight.decimal(schema)

    def fraction_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else tight.fraction(schema)

    def complex_schema(self, schema: Any) -> Json:
        if self.mode == "serialization":
            return {"type": "string"}
        return {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?([+-][0-9]+(\.[0-9]+)?j)?$"}

    def time_schema(self, schema: Any) -> Json:
        return self._temporal(super().time_schema(schema), tight.clock(schema), tight.TIME)

    def datetime_schema(self, schema: Any) -> Json:
        aware = schema.get("tz_constraint") == "aware"
        pattern = None if aware else r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T"
        return self._temporal(super().datetime_schema(schema), tight.moment(schema), pattern)

    def timedelta_schema(self, schema: Any) -> Json:
        bounded = {"type": "string", "format": "duration", "pattern": tight.DURATION}
        return self._temporal(super().timedelta_schema(schema), bounded, "^-?P")

    def _temporal(self, base: Json, wanted: Json, pattern: str | None) -> Json:
        """Numbers (by the configuration of a model) stay as they are."""
        if self.mode == "validation":
            return wanted
        if base.get("type") != "string" or pattern is None:
            return base
        return {"type": "string", "pattern": pattern}

    def url_schema(self, schema: Any) -> Json:
        return {"type": "string"} if self.mode == "serialization" else tight.url(schema)

    def multi_host_url_schema(self, schema: Any) -> Json:
        made = self.url_schema(schema)
        made.pop("format", None)
        return made

    def union_schema(self, schema: Any) -> Json:
        made = super().union_schema(schema)
        if made.get("anyOf") == []:
            raise PydanticInvalidForJsonSchema("SkipJsonSchema leaves out all of a union")
        return made

    def literal_schema(self, schema: Any) -> Json:
        expected = schema["expected"]
        if self.mode == "validation" and tight.choices(expected) is None:
            raise PydanticInvalidForJsonSchema("a Literal of values that JSON does not have")
        members = [value for value in expected if isinstance(value, Enum)]
        if self.mode == "validation" and not all(isinstance(m, str | int) for m in members):
            raise PydanticInvalidForJsonSchema("a Literal of an Enum's members; use the Enum")
        distinct: Any = {**schema, "expected": tight.distinct(expected)}
        return super().literal_schema(distinct)

    def enum_schema(self, schema: Any) -> Json:
        """Each member once: an alias is another name for one, and JSON has its value."""
        members = tight.distinct(schema["members"])
        if not members:
            raise PydanticInvalidForJsonSchema("an Enum without members")
        fixed = self.mode == "serialization" or "missing" in schema
        if not fixed and tight.choices(members) is None:
            raise PydanticInvalidForJsonSchema("an Enum of values that JSON does not have")
        distinct: Any = {**schema, "members": members}
        return super().enum_schema(distinct)

    def is_subclass_schema(self, schema: Any) -> Json:
        raise PydanticInvalidForJsonSchema("JSON has no classes")

    def call_schema(self, schema: Any) -> Json:
        """Of a NamedTuple, before pydantic 2.14."""
        if not isinstance(schema["function"], type):
            raise PydanticInvalidForJsonSchema("a function is no type")
        return super().call_schema(schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Json:
        named = getattr(schema.get("cls"), "__qualname__", schema["type"])
        raise PydanticInvalidForJsonSchema(f"JSON has no {named}")

    def generator_schema(self, schema: Any) -> Json:
        """pydantic would hand it on unread, and what is wrong in it would show in the tool."""
        if self.mode == "validation":
            raise PydanticInvalidForJsonSchema(
                "a Generator, or an Iterable in a class, is read while the tool runs; use a list"
            )
        return super().generator_schema(schema)

    def json_or_python_schema(self, schema: Any) -> Json:
        if _is_hashable(schema):
            return tight.scalar_items({}) if self.mode == "validation" else {}
        if schema.get("serialization", {}).get("function") is not _secret_serializer():
            return super().json_or_python_schema(schema)
        shown = self.mode == "serialization"  # as asterisks
        made = {"type": "string"} if shown else super().json_or_python_schema(schema)
        return {**made, "writeOnly": True}

    def by_functions(self, schema: Any) -> Json:
        function = schema.get("function")
        if isinstance(function, dict) and function.get("function") is _importer():
            raise PydanticInvalidForJsonSchema("an ImportString runs the module that a model names")
        return super().by_functions(schema)

    def set_schema(self, schema: Any) -> Json:
        return self._set(schema, super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Json:
        return self._set(schema, super().frozenset_schema(schema))

    def _set(self, schema: Any, made: Json) -> Json:
        if self.mode == "validation":
            items = schema.get("items_schema")
            if items is not None and not can_be_hashed(items, self.cores):
                raise PydanticInvalidForJsonSchema("a set of what cannot be hashed; use a list")
            made["items"] = tight.scalar_items(made["items"])
        return made

    def dict_schema(self, schema: Any) -> Json:
        return self._mapping(schema, super().dict_schema(schema))

    def ordered_dict_schema(self, schema: Any) -> Json:
        return self._mapping(schema, super().ordered_dict_schema(schema))

    def counter_schema(self, schema: Any) -> Json:
        return self._mapping(schema, super().counter_schema(schema))

    def _mapping(self, schema: Any, made: Json) -> Json:
        """`made` says of the keys what pydantic would: of some too little, of patterns nothing."""
        if self.mode == "serialization":
            made.pop("propertyNames", None)
            return made
        patterns = made.pop("patternProperties", None)
        if patterns is not None:
            made["additionalProperties"] = next(iter(patterns.values())) or True
        made.pop("propertyNames", None)
        names = self._names_of(schema["keys_schema"]) if "keys_schema" in schema else {}
        if names:
            made["propertyNames"] = names
        return made

    def _names_of(self, keys: Any) -> Json:
        """What a property's name has to be, to make a key of this type."""
        self._may_have_orphans = True
        kind = keys["type"]
        if kind == "custom-error":
            return self._names_of(keys["schema"])
        if kind in _KEYS or _is_hashable(keys):
            return dict(_KEYS.get(kind, {}))
        if kind in ("nullable", "union"):
            listed = [keys["schema"]] if kind == "nullable" else keys["choices"]
            parts = [self._names_of(p[0] if isinstance(p, tuple) else p) for p in listed]
            return {"anyOf": parts} if len(parts) > 1 and all(parts) else {}
        made = self.generate_inner(keys)
        plain = self.resolve_ref_schema(made)
        if plain.get("type") == "string":
            return made if "$ref" in made else without(plain, "type", "title")
        if plain.get("type") == "integer" and issubclass(keys.get("cls", object), int):
            return {"enum": [str(value) for value in plain["enum"]]}
        raise PydanticInvalidForJsonSchema("a dict with keys that no JSON name can be read as")


def _is_hashable(schema: Any) -> bool:
    """`collections.abc.Hashable` as a hint."""
    python = schema.get("python_schema")
    return python is not None and python.get("cls") is Hashable
