"""The schemas of a document as JSON Schema 2020-12, each with all that it refers to.

What OpenAPI says in words of its own is put into those of JSON Schema: `nullable`, an exclusive bound
that is true or false, a `discriminator` as what each alternative has to say. A request's schema lacks
what is `readOnly`, an answer's what is `writeOnly`. Keywords that JSON Schema does not have (`xml`,
`example`, `x-…`) are left out; all else stands as it was written, and is judged as any schema is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from toolcrib.bridges.openapi.document import Document, DocumentFile, Node, NoTool
from toolcrib.schema.guard import MAX_DEPTH, MAX_NODES
from toolcrib.schema.lower.tree import ANNOTATIONS, ASSERTIONS, DOCUMENT, LISTS, MAPS, SINGLES

_KNOWN = (ASSERTIONS | ANNOTATIONS) - DOCUMENT - {"discriminator"}
_ALONE = (ANNOTATIONS | {"$ref"}) & _KNOWN
"""The keywords that count next to a `$ref` before OpenAPI 3.1."""
_OTHER_REFS = ("$dynamicRef", "$recursiveRef")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
"""What stands in no name of a tool, an argument or a definition: not every provider takes it."""
_Schema: TypeAlias = dict[str, Any]
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class Translated(NamedTuple):
    """A schema, the names of the definitions that it refers to, and how many nodes it has."""

    node: Any
    names: frozenset[str]
    size: int


class ApiSchemas:
    """Translates the schemas of one document, for requests or for answers; each definition once."""

    def __init__(self, document: Document, meant: Literal["request", "answer"]) -> None:
        self._document = document
        self.is_3_1 = document.root.text("openapi").startswith("3.1")
        self._hidden = "readOnly" if meant == "request" else "writeOnly"
        self._names: dict[tuple[int, str], str] = {}
        self._targets: dict[str, Node] = {}
        self._made: dict[str, Translated] = {}

    def translated(self, part: Node) -> Translated:
        """Return a schema of the document. Raises NoTool."""
        return _Walk(self, part.file).whole(part.node)

    def whole(self, schema: Translated, most: int = MAX_NODES) -> _Schema:
        """Return a schema with the definitions that it leads to. Raises NoTool if it has more nodes
        than `most`."""
        return self.with_definitions(as_object(schema.node), schema.names, most - schema.size)

    def with_definitions(
        self, schema: _Schema, roots: Iterable[str], most: int = MAX_NODES
    ) -> _Schema:
        """Return a schema with the definitions that these names lead to, however far. Raises NoTool if
        those have more nodes than `most`."""
        found: dict[str, Any] = {}
        pending = sorted(roots)
        size = 0
        while pending:
            name = pending.pop()
            if name in found:
                continue
            made = self._definition(name)
            size += made.size
            if size > most:
                raise NoTool("too large", f"its schema has more than {most} nodes")
            found[name] = made.node
            pending += sorted(made.names - found.keys())
        definitions = {name: found[name] for name in sorted(found)}
        return {**schema, "$defs": definitions} if definitions else schema

    def resolved(self, part: Node) -> Node:
        return self._document.resolved(part)

    def _definition(self, name: str) -> Translated:
        if name not in self._made:
            self._made[name] = self.translated(self._targets[name])
        return self._made[name]

    def name_of(self, file: DocumentFile, ref: str) -> str:
        """Return what the target of a `$ref` is called among the definitions. Raises NoTool."""
        target = self._document.follow(file, ref)
        if target.key not in self._names:
            base = NOT_IN_NAMES.sub("_", target.name).strip("_") or "schema"
            name, number = base, 1
            while name in self._targets:
                number += 1
                name = f"{base}_{number}"
            self._names[target.key] = name
            self._targets[name] = target.part
        return self._names[target.key]

    def is_hidden(self, file: DocumentFile, node: Any) -> bool:
        """Return whether a property is for the other direction alone."""
        if not isinstance(node, dict):
            return False
        if isinstance(node.get("$ref"), str) and self._hidden not in node:
            node = self._document.resolved(Node(file, node)).node
        return isinstance(node, dict) and node.get(self._hidden) is True

    def same_place(self, file: DocumentFile, one: str, other: str) -> bool:
        """Return whether two references, as a discriminator has them, lead to one schema."""
        try:
            return self._document.follow(file, one).key == self._document.follow(file, other).key
        except NoTool:
            return False


class _Walk:
    """Copies one schema. Raises NoTool for what is no schema, too deep or too large."""

    def __init__(self, schemas: ApiSchemas, file: DocumentFile) -> None:
        self._schemas, self._file = schemas, file
        self._is_3_0 = not schemas.is_3_1
        self._names: set[str] = set()
        self._size = 0

    def whole(self, node: Any) -> Translated:
        return Translated(self._schema(node, 0), frozenset(self._names), self._size)

    def _schema(self, node: Any, depth: int) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise NoTool("schema", f"a {type(node).__name__} stands where a schema is meant")
        self._size += 1 + len(node)
        if depth > MAX_DEPTH or self._size > MAX_NODES:
            raise NoTool("too large", "its schema is nested too deeply, or holds too much")
        alone = self._is_3_0 and isinstance(node.get("$ref"), str)
        kept = _ALONE if alone else _KNOWN
        if not node.keys().isdisjoint(_OTHER_REFS):
            raise NoTool("reference", "a $dynamicRef or $recursiveRef cannot be followed")
        made = {
            key: self._member(key, value, depth + 1) for key, value in node.items() if key in kept
        }
        if not alone:
            self._discriminate(node, made)
            self._hide(node, made)
        return _nullable(node, _bounded(made)) if self._is_3_0 else made

    def _member(self, key: str, value: Any, depth: int) -> Any:
        """Return the value of a keyword, with the schemas in it translated; what it is not is data."""
        if key == "$ref" and isinstance(value, str):
            name = self._schemas.name_of(self._file, value)
            self._names.add(name)
            return f"#/$defs/{name}"
        if key in SINGLES and not isinstance(value, list):
            return self._schema(value, depth)
        if (key in SINGLES or key in LISTS) and isinstance(value, list):
            return [self._schema(child, depth) for child in value]
        if key in MAPS and isinstance(value, dict):
            return {name: self._schema(child, depth) for name, child in value.items()}
        return value

    def _hide(self, node: _Schema, made: _Schema) -> None:
        """Leave out the properties that are for the other direction."""
        properties: Any = node.get("properties")
        if not isinstance(properties, dict):
            return
        gone = [
            name for name, child in properties.items() if self._schemas.is_hidden(self._file, child)
        ]
        if gone:
            made["properties"] = {n: c for n, c in made["properties"].items() if n not in gone}
            required: Any = made.get("required")
            if isinstance(required, list):
                made["required"] = [name for name in required if name not in gone]

    def _discriminate(self, node: _Schema, made: _Schema) -> None:
        """Have each alternative say which one it is, as the discriminator tells them apart."""
        said: Any = node.get("discriminator")
        name = said.get("propertyName") if isinstance(said, dict) else None
        key = "oneOf" if "oneOf" in made else "anyOf"
        given: Any = node.get(key)
        if not isinstance(name, str) or not isinstance(given, list):
            return
        mapping: Any = said.get("mapping")
        told = []
        for child in given:
            ref = child.get("$ref") if isinstance(child, dict) else None
            if not isinstance(ref, str):
                return
            own = self._values(ref, mapping if isinstance(mapping, dict) else {})
            told.append({"properties": {name: {"enum": own}}, "required": [name]})
        made[key] = [{"allOf": [*pair]} for pair in zip(made[key], told, strict=True)]

    def _values(self, ref: str, mapping: _Schema) -> list[str]:
        """Return the values of a discriminator that mean what a reference leads to."""
        last = ref.rpartition("/")[2]
        meaning = [
            value
            for value, target in mapping.items()
            if isinstance(target, str)
            and (target == last or self._schemas.same_place(self._file, ref, target))
        ]
        return meaning or [last]


def as_object(schema: Any) -> _Schema:
    """Return a schema that may be true or false as an object."""
    if isinstance(schema, dict):
        return dict(schema)
    return {} if schema else {"not": {}}


def _bounded(made: _Schema) -> _Schema:
    """Put an exclusive bound of OpenAPI 3.0, which is true or false, into JSON Schema's words."""
    for exclusive, bound in _BOUNDS:
        said = made.get(exclusive)
        if isinstance(said, bool):
            del made[exclusive]
            if said and bound in made:
                made[exclusive] = made.pop(bound)
    return made


def _nullable(node: _Schema, made: _Schema) -> _Schema:
    if node.get("nullable") is not True:
        return made
    kind = made.get("type")
    if isinstance(kind, str) and not any(
        key in made for key in ("allOf", "anyOf", "oneOf", "$ref")
    ):
        made["type"] = [kind, "null"]
        listed = made.get("enum")
        if isinstance(listed, list) and None not in listed:
            made["enum"] = [*listed, None]
        return made
    if kind is None and not made.keys() - ANNOTATIONS:
        return made  # it takes anything
    apart: _Schema = {key: made.pop(key) for key in ("title", "description") if key in made}
    return {**apart, "anyOf": [made, {"type": "null"}]}
