"""What each type says as JSON Schema: no more than can be built, and no less than is returned.

Where a hint makes something for a model to fill in (`validation`) the schema is tight; what a tool
returns (`serialization`) it describes loosely, so that each value of the hint fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema

from toolcrib.schema import derive_tight as tight
from toolcrib.schema.derive_json import Generator, Json, without

_KEY_TYPES = frozenset(("date", "time", "datetime", "timedelta", "uuid", "decimal", "str"))
_KEYS: Mapping[str, Json] = {
    "any": {},
    "int": {"pattern": tight.WHOLE_KEY},
    "float": {"pattern": tight.REAL_KEY},
    "bool": {"enum": ["true", "false"]},
}


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

    def literal_schema(self, schema: Any) -> Json:
        expected = schema["expected"]
        if self.mode == "validation" and tight.choices(expected) is None:
            raise PydanticInvalidForJsonSchema("a Literal of values that JSON does not have")
        members = [value for value in expected if isinstance(value, Enum)]
        if self.mode == "validation" and not all(isinstance(m, str | int) for m in members):
            raise PydanticInvalidForJsonSchema("a Literal of an Enum's members; use the Enum")
        return super().literal_schema(schema)

    def enum_schema(self, schema: Any) -> Json:
        fixed = self.mode == "serialization" or "missing" in schema
        if not fixed and tight.choices(schema["members"]) is None:
            raise PydanticInvalidForJsonSchema("an Enum of values that JSON does not have")
        return super().enum_schema(schema)

    def set_schema(self, schema: Any) -> Json:
        return self._set(schema, super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Json:
        return self._set(schema, super().frozenset_schema(schema))

    def _set(self, schema: Any, made: Json) -> Json:
        if self.mode == "validation":
            items = schema.get("items_schema")
            if items is not None and not tight.can_be_hashed(items):
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
        if kind in _KEYS:
            return dict(_KEYS[kind])
        if kind in ("nullable", "union"):
            listed = [keys["schema"]] if kind == "nullable" else keys["choices"]
            parts = [self._names_of(p[0] if isinstance(p, tuple) else p) for p in listed]
            return {"anyOf": parts} if len(parts) > 1 and all(parts) else {}
        if kind in _KEY_TYPES or "schema" in keys or "ref" in keys or kind == "definition-ref":
            made = self.generate_inner(keys)
            plain = self.resolve_ref_schema(made)
            if kind == "decimal":
                plain = {"type": "string", "pattern": r"^-?[0-9]{1,40}(\.[0-9]{1,40})?$"}
            if plain.get("type") == "string":
                return made if "$ref" in made else without(plain, "type", "title")
            if plain.get("type") == "integer" and issubclass(keys.get("cls", object), int):
                return {"enum": [str(value) for value in plain["enum"]]}
        if kind == "literal" and all(isinstance(value, str) for value in keys["expected"]):
            return {"enum": list(keys["expected"])}
        made = self.generate_inner(keys)
        if made.get("type") == "string":
            return without(made, "type", "title")
        raise PydanticInvalidForJsonSchema("a dict with keys that no JSON name can be read as")
