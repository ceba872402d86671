"""Which alternative of a union a value was made for.

What can be seen at once decides first: the type, `const` and `enum` tags, what is required. Validators
are asked only where several alternatives are left that would treat the value differently.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from toolcrib.errors import SchemaError
from toolcrib.schema.effort import explainable
from toolcrib.schema.lower.tree import REFS, copied, names_in, pointers
from toolcrib.schema.references import References, subschemas
from toolcrib.schema.validator import Validator, compile_validator, kind_of
from toolcrib.values.json import JsonObject, JsonValue

MAX_CHOICES = 64  # made by validators in one go
_ROOT = "#/$defs/whole"


def may_be(references: References, branch: Any, value: JsonValue) -> bool:
    """Whether nothing that can be seen at once speaks against an alternative."""
    for _ in range(10):
        if not isinstance(branch, dict):
            return branch is not False
        if not _kind_fits(branch, value) or not _is_listed(branch, value):
            return False
        if isinstance(value, dict) and not _members_fit(references, branch, value):
            return False
        if not isinstance(branch.get("$ref"), str):
            return True
        branch = references.resolve(branch["$ref"])
    return True


def _kind_fits(branch: JsonObject, value: JsonValue) -> bool:
    wanted = names_in(branch.get("type"))
    kind = kind_of(value)
    if not wanted or kind in wanted:
        return True
    if kind == "integer":
        return "number" in wanted
    return isinstance(value, float) and value.is_integer() and "integer" in wanted


def _is_listed(branch: JsonObject, value: JsonValue) -> bool:
    if isinstance(value, dict | list):
        return True
    values: Any = [branch["const"]] if "const" in branch else branch.get("enum")
    return not isinstance(values, list) or value in values


def _members_fit(references: References, branch: JsonObject, value: JsonObject) -> bool:
    if any(name not in value for name in names_in(branch.get("required"))):
        return False
    properties = branch.get("properties")
    if not isinstance(properties, dict):
        return True
    return all(
        _is_listed(tag, value[name])
        for name, schema in properties.items()
        if value.get(name) is not None and (tag := _tag(references, schema)) is not None
    )


def _tag(references: References, schema: Any) -> JsonObject | None:
    """What lists the values of a property, one reference away at most."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = references.resolve(schema["$ref"])
    return schema if isinstance(schema, dict) and ("const" in schema or "enum" in schema) else None


class Judges:
    """Validators for parts of a schema, each compiled when it is first asked."""

    def __init__(self, schema: JsonObject, references: References) -> None:
        self._schema = schema
        self._references = references
        self._whole: Any = None
        self._pointers: dict[int, str] = {}
        self._judges: dict[int, Validator | None] = {}

    def accepts(self, branch: Any, value: JsonValue) -> bool:
        """Whether a value is valid under an alternative; false where that would take too long."""
        if not isinstance(branch, dict):
            return branch is not False
        if id(branch) not in self._judges:
            self._judges[id(branch)] = self._compiled(branch)
        judge = self._judges[id(branch)]
        if judge is None or not explainable(self._references, branch, value):
            return False
        return judge.is_valid(value)

    def _compiled(self, branch: JsonObject) -> Validator | None:
        if self._whole is None:
            self._pointers = pointers(self._schema)
            self._whole = _moved({k: v for k, v in self._schema.items() if k != "$id"})
        pointer = self._pointers.get(id(branch))
        if pointer is None:
            return None
        document: JsonObject = {"$defs": {"whole": self._whole}, "$ref": _ROOT + quote(pointer)}
        if "$schema" in self._schema:
            document["$schema"] = self._schema["$schema"]
        try:
            return compile_validator(document)
        except SchemaError:
            return None


def _moved(schema: JsonObject) -> JsonObject:
    """A copy in which references into the whole lead to where the whole is put."""
    copy: JsonObject = copied(schema)
    for _, node in list(subschemas(copy)):
        for keyword in REFS:
            ref = node.get(keyword)
            if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
                node[keyword] = _ROOT + ref[1:]
    return copy
