"""pydantic's core schemas as JSON Schema: names of definitions, order, descriptions, and speed.

One generator per schema. It takes the shorter way where nothing custom is asked for; what the types
themselves say stands in `derive_types`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, to_jsonable_python

from toolcrib.schema import derive_tight as tight
from toolcrib.schema.docstring import read_docstring
from toolcrib.values.json import canonical_json

Json: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]

_CUSTOM = ("pydantic_js_extra", "pydantic_js_functions", "pydantic_js_annotation_functions")
_MODEL_HOOK = BaseModel.__get_pydantic_json_schema__.__func__  # type: ignore[attr-defined]
_IDS = re.compile(r":[0-9]+")
_PATHS = re.compile(r"(?:[^.\[\],]+\.)+")
_ODD = re.compile(r"[^a-zA-Z0-9_-]+")
_SECTIONS = re.compile(r"(?m)^\s*(?:(?:Args|Attributes|Parameters)\b|:(?:param|ivar|var|attr)\b)")
_WRAPPERS = frozenset(
    ("model-field", "dataclass-field", "typed-dict-field", "default", "nullable", "function-after",
     "function-before", "function-wrap", "definitions")
)  # fmt: skip
_ALIASES = frozenset(("validation_alias", "serialization_alias", "alias"))


class Generator(GenerateJsonSchema):
    """Definitions are named after their classes, `Address` and `Address_2` where two share a name."""

    mode: Mode = "validation"

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode
        self._names: dict[str, str] = {}
        self._may_have_orphans = False

    def build_schema_type_to_method(self) -> Any:
        return _Methods(self)

    def derive(self, schemas: Iterable[tuple[str, Any]]) -> tuple[dict[str, Json], Json]:
        """A schema for each name, and the definitions that they refer to."""
        made = {name: dict(self.generate_inner(core)) for name, core in schemas}
        shared: Json = dict(self.definitions.items())
        if not self._may_have_orphans:
            return made, shared
        reached = set[str]()
        pending: list[Any] = list(made.values())
        while pending:
            node = pending.pop()
            if isinstance(node, dict):
                ref = node.get("$ref")
                if isinstance(ref, str) and (name := ref.rpartition("/")[2]) not in reached:
                    reached.add(name)
                    pending.append(shared[name])
                pending += [child for child in node.values() if isinstance(child, dict | list)]
            elif isinstance(node, list):
                pending += node
        return made, {name: node for name, node in shared.items() if name in reached}

    def generate_inner(self, schema: Any) -> Json:
        """As pydantic does it, by a shorter way where nothing custom is asked for."""
        metadata = schema.get("metadata")
        updates = None
        if metadata:
            updates = metadata.get("pydantic_js_updates")
            if any(key in metadata for key in _CUSTOM) and not _is_plain_model(metadata):
                return _known_formats(super().generate_inner(schema), self.mode)
        if self.mode == "serialization" and "serialization" in schema:
            return _known_formats(super().generate_inner(schema), self.mode)
        ref = schema.get("ref")
        if ref is None:
            made = self._schema_type_to_method[schema["type"]](schema)
            return {**made, **updates} if updates else made
        known = self.core_to_defs_refs.get((ref, self.mode))
        if known is not None and known in self.definitions:
            return {"$ref": self.core_to_json_refs[ref, self.mode]}
        made = self._schema_type_to_method[schema["type"]](schema)
        if updates:
            made = {**made, **updates}
        name, reference = self.get_cache_defs_ref_schema(ref)
        if made.get("$ref") != reference["$ref"]:
            self.definitions[name] = made
        return dict(reference)

    def definitions_schema(self, schema: Any) -> Json:
        self._may_have_orphans = True
        return super().definitions_schema(schema)

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Only said where an alternative is left out, which may leave its definitions behind."""
        self._may_have_orphans = True

    def nullable_schema(self, schema: Any) -> Json:
        inner = self.generate_inner(schema["schema"])
        if "anyOf" in inner or inner == {"type": "null"}:
            return super().nullable_schema(schema)
        return {"anyOf": [inner, {"type": "null"}]}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """The base's own as a loop: not for what is a definition, however it is wrapped."""
        while schema["type"] in _WRAPPERS and not schema.get("ref"):
            schema = schema["schema"]
        return not schema.get("ref") and super().field_title_should_be_set(schema)

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value

    def get_defs_ref(self, core_mode_ref: Any) -> Any:
        """Readable, and the same in each process: the ids in it are only to tell classes apart."""
        core_ref = core_mode_ref[0]
        if core_ref not in self._names:
            plain = _PATHS.sub("", _IDS.sub("", core_ref))
            base = _ODD.sub("_", plain).strip("_") or "Model"
            taken, name, number = set(self._names.values()), base, 2
            while name in taken:
                name, number = f"{base}_{number}", number + 1
            self._names[core_ref] = name
        return self._names[core_ref]

    def encode_default(self, dft: Any) -> Any:
        return steady_json(dft)

    def field_is_present(self, field: Any) -> bool:
        """Fields that a constructor does not take are not asked for; those it alone has, not shown."""
        if self.mode == "serialization":
            return not field.get("init_only") and super().field_is_present(field)
        if field.get("init") is False:
            return False
        alias = field.get("validation_alias")
        if (
            isinstance(alias, list)
            and [p for p in alias if isinstance(p, list) and len(p) == 1] == []
        ):
            raise PydanticInvalidForJsonSchema("an AliasPath has no place in a schema")
        return True

    def _named_required_fields_schema(self, named_required_fields: Any) -> Json:
        """The base's own, without what costs and is not needed for fields without an alias.

        Were it to be renamed there, only the speed would be lost.
        """
        properties: Json = {}
        required: list[str] = []
        for name, needed, field in named_required_fields:
            if field.keys() & _ALIASES or field["type"] == "computed-field":
                whole: Json = super()._named_required_fields_schema(named_required_fields)
                return whole
            try:
                made = dict(self.generate_inner(field))
            except PydanticOmit:
                continue
            if "title" not in made and self.field_title_should_be_set(field):
                made["title"] = self.get_title_from_name(name)
            properties[name] = made
            if needed:
                required.append(name)
        schema: Json = {"type": "object", "properties": properties}
        return schema | {"required": required} if required else schema

    def model_schema(self, schema: Any) -> Json:
        return _documented(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Json:
        return _documented(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> Json:
        return _documented(super().typed_dict_schema(schema), schema.get("cls"))


class _Methods(dict[str, Any]):
    """The method for each type of a core schema, looked up when it is needed."""

    def __init__(self, generator: GenerateJsonSchema) -> None:
        super().__init__()
        self._generator = generator

    def __missing__(self, kind: str) -> Any:
        method = getattr(self._generator, f"{kind.replace('-', '_')}_schema")
        self[kind] = method
        return method


def _is_plain_model(metadata: Json) -> bool:
    """Whether a model's only custom function is the one that all models have."""
    if metadata.keys() & {"pydantic_js_extra", "pydantic_js_annotation_functions"}:
        return False
    functions = metadata.get("pydantic_js_functions", ())
    return all(getattr(f, "__func__", None) is _MODEL_HOOK for f in functions)


def _known_formats(made: Json, mode: Mode) -> Json:
    wanted = tight.FORMATS.get(str(made.get("format")))
    if wanted is None:
        return made
    made = without(made, "format")
    return made if mode == "serialization" else {**made, **wanted}


def _documented(made: Json, cls: Any) -> Json:
    """Fields get their descriptions from the docstring of their class, if it has sections."""
    text = cls.__doc__ if isinstance(cls, type) else None
    if not text or not made.get("description") or not _SECTIONS.search(text):
        return made
    read = read_docstring(text)
    properties = made.get("properties")
    if not read.parameters or not isinstance(properties, dict):
        return made
    for name, description in read.parameters.items():
        node = properties.get(name)
        if isinstance(node, dict):
            node.setdefault("description", description)
    if read.description:
        made["description"] = read.description
    return made


def without(node: Json, *keys: str) -> Json:
    return {key: value for key, value in node.items() if key not in keys}


def steady_json(value: Any) -> Any:
    """A value as JSON, the same in each process: sets have no order of their own.

    Raises what pydantic-core's serializer raises for what is not JSON.
    """
    if isinstance(value, set | frozenset):
        return sorted(map(steady_json, value), key=canonical_json)
    if isinstance(value, list | tuple):
        return [steady_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: steady_json(item) for key, item in value.items()}
    return to_jsonable_python(value)
