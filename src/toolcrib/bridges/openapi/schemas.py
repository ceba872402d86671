"""The schemas of a document as JSON Schema 2020-12, each with everything that it refers to.

OpenAPI's own keywords are translated to those of JSON Schema: `nullable`, a boolean exclusive
bound, and a `discriminator`, as what each alternative has to say. A request's schema refuses what
is `readOnly`, an answer's does not mention what is `writeOnly`, and neither requires it. Keywords
that JSON Schema does not have (`xml`, `example`, `x-…`) are left out. Everything else stays as it
was written, and is judged like any schema.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from toolcrib.bridges.openapi.document import Document, DocumentFile, Node, NoTool, RefTarget
from toolcrib.schema.guard import MAX_DEPTH, MAX_NODES
from toolcrib.schema.lower.tree import ANNOTATIONS, ASSERTIONS, DOCUMENT, LISTS, MAPS, SINGLES
from toolcrib.schema.references import escape_pointer, steps_of
from toolcrib.values.json import JsonValue

_KNOWN = (ASSERTIONS | ANNOTATIONS) - DOCUMENT - {"discriminator"}
_ALONE = (ANNOTATIONS | {"$ref"}) & _KNOWN
"""The keywords that count next to a `$ref` before OpenAPI 3.1."""
_OTHER_REFS = ("$dynamicRef", "$recursiveRef")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that no name of a tool, an argument or a definition contains, since not every provider
takes them."""
_Schema: TypeAlias = dict[str, Any]
_Names: TypeAlias = frozenset[str]
_Place: TypeAlias = tuple[int, str]
_NONE: _Names = frozenset()
_PARTS = ("allOf",)
_ALTERNATIVES = ("anyOf", "oneOf")
_BRANCHES = (*_PARTS, *_ALTERNATIVES)
_CONDITIONS = ("if", "then", "else")
_OF_MORE = ("patternProperties", "additionalProperties", "unevaluatedProperties")
"""Keywords with schemas of properties that have no fixed names, in contrast to `properties`."""
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class Translated(NamedTuple):
    """A schema, the names of the definitions that it refers to, and the number of its nodes."""

    node: Any
    names: frozenset[str]
    size: int


_SAYS = frozenset(("type", "format", "items", "contentMediaType", "contentEncoding"))
"""Keywords of a schema that say what kind of value it is for."""


class ApiSchemas:
    """Translates the schemas of one document, for requests or for answers. Each definition is
    translated once.

    With `kinds`, a schema whose discriminator has a `mapping` is any of its kinds.
    """

    def __init__(
        self, document: Document, meant: Literal["request", "answer"], *, kinds: bool = False
    ) -> None:
        self.document = document
        self._wants_kinds = kinds
        self.is_3_1 = document.version.startswith("3.1")
        self.has_styled_parts = self.is_3_1 or document.is_swagger
        self._hidden = "readOnly" if meant == "request" else "writeOnly"
        self.refuses = meant == "request"
        self._names: dict[tuple[_Place, bool], str] = {}
        self._targets: dict[str, Node] = {}
        self._made: dict[str, Translated] = {}
        self._children: defaultdict[_Place, list[str]] | None = None
        self._kinds_of: dict[_Place, _Schema | None] = {}
        self._is_hidden: dict[int, bool] = {}
        self._hidden_in: dict[tuple[int, tuple[str, ...]], _Names] = {}

    def translated(self, part: Node) -> Translated:
        """Return a schema of the document. Raises NoTool."""
        walk = _Walk(self, part.file)
        return Translated(walk.schema(part.node, 0), frozenset(walk.names), walk.size)

    def whole(self, schema: Translated, most: int = MAX_NODES) -> _Schema:
        """Return a schema with the definitions that it refers to. Raises NoTool if it has more
        nodes than `most`."""
        return self.with_definitions(as_object(schema.node), schema.names, most - schema.size)

    def with_definitions(
        self, schema: _Schema, roots: Iterable[str], most: int = MAX_NODES
    ) -> _Schema:
        """Return a schema with all definitions that these names lead to, directly or not. Raises
        NoTool if those have more nodes than `most`."""
        found: dict[str, Any] = {}
        pending = sorted(roots)
        size = 0
        while pending:
            name = pending.pop()
            if name in found:
                continue
            if name not in self._made:
                self._made[name] = self.translated(self._targets[name])
            made = self._made[name]
            size += made.size
            if size > most:
                raise NoTool("too large", f"its schema has more than {most} nodes")
            found[name] = made.node
            pending += sorted(made.names - found.keys())
        definitions = {name: found[name] for name in sorted(found)}
        return {**schema, "$defs": definitions} if definitions else schema

    def name_of(self, file: DocumentFile, ref: str, *, as_part: bool = False) -> str:
        """Return the name of a `$ref`'s target among the definitions. Raises NoTool.

        A target with kinds, by a discriminator with a `mapping`, is any of them. In an `allOf`
        (`as_part`) it is itself, as which its kinds include it.
        """
        target = self.document.follow(file, ref)
        kinds = self._kinds(target) if self._wants_kinds and not as_part else None
        key = (target.key, kinds is not None)
        if key not in self._names:
            base = NOT_IN_NAMES.sub("_", target.name).strip("_") or "schema"
            base = base if kinds is None else f"{base}_of_a_kind"
            name, number = base, 1
            while name in self._targets:
                number += 1
                name = f"{base}_{number}"
            self._names[key] = name
            self._targets[name] = target.part if kinds is None else Node(target.part.file, kinds)
        return self._names[key]

    @property
    def has_kinds(self) -> bool:
        """Return whether anything that was translated is checked for kinds."""
        return any(kinds is not None for kinds in self._kinds_of.values())

    def _kinds(self, target: RefTarget) -> _Schema | None:
        """Return the kinds of a `$ref`'s target as alternatives, or None if it has none."""
        if target.key not in self._kinds_of:
            self._kinds_of[target.key] = self._alternatives(target)
        return self._kinds_of[target.key]

    def _alternatives(self, target: RefTarget) -> _Schema | None:
        part = target.part
        said = part.get("discriminator")
        mapping = {} if said is None else said.members("mapping")
        if said is None or not mapping or not {"oneOf", "anyOf"}.isdisjoint(part.node):
            return None
        name = said.text("propertyName")
        if not name or name in self.hidden_in(part):
            return None
        named = {value: self._of_kind(part.file, node.node) for value, node in mapping.items()}
        told: dict[_Place | None, tuple[str, list[str]]] = {}
        for value, ref in named.items():
            if ref:
                told.setdefault(self.place(part.file, ref), (ref, []))[1].append(value)
        for ref in (target.key[1], *self._parts_of(target)):
            told.setdefault(self.place(part.file, ref), (ref, [steps_of(unquote(ref))[-1]]))
        # a reference that leads nowhere means the schema itself
        told[target.key][1].extend(value for value, ref in named.items() if not ref)
        return {
            "anyOf": [
                {"allOf": [{"$ref": ref}, _saying(name, values)]} for ref, values in told.values()
            ]
        }

    def _of_kind(self, file: DocumentFile, said: object) -> str:
        """Return the reference that a mapping means: an explicit one, or the name of a schema."""
        of_that_name = f"#/components/schemas/{said}"
        for ref in (said, of_that_name, self.document.main_from(file) + of_that_name):
            if isinstance(ref, str) and self.place(file, ref) is not None:
                return ref
        return ""

    def _parts_of(self, target: RefTarget) -> list[str]:
        """Return references, within its file, to the schemas of the document that have this one in
        an `allOf`."""
        if self._children is None:
            self._children = defaultdict(list)
            components = self.document.root.get("components")
            for name, child in (components.members("schemas") if components else {}).items():
                own = f"#/components/schemas/{escape_pointer(name)}"
                for ref in filter(None, (one.text("$ref") for one in child.items("allOf"))):
                    with suppress(NoTool):
                        self._children[self.document.follow(child.file, ref).key].append(own)
        main = self.document.main_from(target.part.file)
        return [main + ref for ref in self._children[target.key]]

    def meant(self, part: Node) -> Node:
        """Return a schema, or the one that it stands for. That is its only part, or its only
        alternative besides null, and its target, if the schema itself does not say what it is.
        Raises NoTool."""
        for _ in range(MAX_DEPTH):
            part = self.document.resolved(part)
            if not _SAYS.isdisjoint(as_object(part.node)):
                return part
            inner = [one for key in _BRANCHES for one in part.items(key) if not is_null(one.node)]
            if len(inner) != 1:
                return part
            part = inner[0]
        raise NoTool("too large", "its schema is nested too deeply, or holds too much")

    def takes_null(self, part: Node) -> bool:
        """Return whether a schema, or its target, says that it allows null. Raises NoTool."""
        part = self.document.resolved(part)
        alternatives = [one.node for key in _ALTERNATIVES for one in part.items(key)]
        said = "null" in [one.node for one in part.items("type")]
        return said or part.flag("nullable") or any(map(is_null, alternatives))

    def is_hidden(self, part: Node, depth: int = 0) -> bool:
        """Return whether a property is for the other direction only. The property itself, its
        target, a schema of its `allOf`, or each of its alternatives besides null says so. Raises
        NoTool."""
        node = part.node
        if not isinstance(node, dict) or node.keys().isdisjoint((self._hidden, "$ref", *_BRANCHES)):
            return False
        if self._hidden in node:
            return node[self._hidden] is True
        if depth > MAX_DEPTH:
            raise NoTool("too large", "its schema is nested too deeply, or holds too much")
        if id(node) not in self._is_hidden:
            self._is_hidden[id(node)] = False  # for a cycle back to itself
            alternatives = [
                [one for one in part.items(key) if not is_null(one.node)] for key in _ALTERNATIVES
            ]
            self._is_hidden[id(node)] = any(
                self.is_hidden(one, depth + 1) for one in self._in_place(part, _PARTS)
            ) or any(
                all(self.is_hidden(one, depth + 1) for one in each) for each in alternatives if each
            )
        return self._is_hidden[id(node)]

    def hidden_in(self, part: Node, keys: tuple[str, ...] = _PARTS) -> _Names:
        """Return the properties that an object may not have in this direction, according to this
        part of its schema, its target, and the parts below `keys`. Raises NoTool."""
        node = part.node
        if not isinstance(node, dict) or node.keys().isdisjoint(("properties", "$ref", *keys)):
            return _NONE
        at = (id(node), keys)
        if at not in self._hidden_in:
            self._hidden_in[at] = _NONE  # for a cycle back to itself
            own = [
                name for name, child in part.members("properties").items() if self.is_hidden(child)
            ]
            others = [self.hidden_in(one, keys) for one in self._in_place(part, keys)]
            self._hidden_in[at] = _NONE.union(own, *others)
        return self._hidden_in[at]

    def parts(self, part: Node, keys: tuple[str, ...] = _PARTS) -> Iterator[Node]:
        """Yield a schema, its target, and the schemas below `keys` in each. Raises NoTool."""
        seen: set[int] = set()
        pending = [part]
        while pending:
            one = pending.pop(0)
            if id(one.node) not in seen:
                seen.add(id(one.node))
                yield one
                pending += self._in_place(one, keys)

    def demands(self, part: Node, names: _Names) -> bool:
        """Return whether this part of an object's schema requires one of these. Raises NoTool."""
        required = [
            each.node for one in self.parts(part, _BRANCHES) for each in one.items("required")
        ]
        return any(isinstance(name, str) and name in names for name in required)

    def defaults(self, part: Node) -> tuple[JsonValue, ...]:
        """Return each `default` that a schema gives to its value, in any of its parts. Raises
        NoTool."""
        return tuple(one.node["default"] for one in self._judging(part) if "default" in one.node)

    def defaults_of_properties(self, part: Node) -> dict[str, tuple[JsonValue, ...]]:
        """Return the defaults of each property that an object's schema declares, in any of its
        parts. Raises NoTool."""
        found: dict[str, tuple[JsonValue, ...]] = {}
        for one in self._judging(part):
            for name, child in one.members("properties").items():
                found[name] = (*found.get(name, ()), *self.defaults(child))
        return found

    def _judging(self, part: Node) -> Iterator[Node]:
        """Yield the schema and each of its parts that judges the same value. Raises NoTool."""
        seen: set[int] = set()
        pending = [(part, False)]
        while pending:
            one, as_part = pending.pop()
            if not isinstance(one.node, dict) or id(one.node) in seen:
                continue
            seen.add(id(one.node))
            yield one
            if ref := one.text("$ref"):
                target = self.document.follow(one.file, ref)
                kinds = self._kinds(target) if self._wants_kinds and not as_part else None
                found = target.part if kinds is None else Node(target.part.file, kinds)
                pending.append((found, as_part))
                if not self.is_3_1:  # from 3.1 on, the keywords next to it count, too
                    continue
            pending += [(each, True) for each in one.items("allOf")]
            others = [each for key in _ALTERNATIVES for each in one.items(key)]
            others += filter(None, map(one.get, _CONDITIONS))
            others += one.members("dependentSchemas").values()
            pending += [(each, False) for each in others]

    def _in_place(self, part: Node, keys: tuple[str, ...]) -> list[Node]:
        """Return the other parts of a schema that judge the same value."""
        found = [one for key in keys for one in part.items(key)]
        ref = part.text("$ref")
        return [*found, self.document.follow(part.file, ref).part] if ref else found

    def place(self, file: DocumentFile, ref: str) -> _Place | None:
        """Return the place that a reference leads to, or None if it leads nowhere."""
        try:
            return self.document.follow(file, ref).key
        except NoTool:
            return None


class _Walk:
    """Copies one schema. Raises NoTool for one that is no schema, too deep or too large."""

    def __init__(self, schemas: ApiSchemas, file: DocumentFile) -> None:
        self._schemas, self._file = schemas, file
        self._is_3_0 = not schemas.is_3_1
        self.names: set[str] = set()
        self.size = 0

    def schema(
        self, node: Any, depth: int, gone: _Names = _NONE, *, in_all_of: bool = False
    ) -> Any:
        """Return one schema. `gone` are the properties that other schemas of the same value hide."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise NoTool(
                "schema", f"a {type(node).__name__} is in a place where a schema is expected"
            )
        self.size += 1 + len(node)
        if depth > MAX_DEPTH or self.size > MAX_NODES:
            raise NoTool("too large", "its schema is nested too deeply, or holds too much")
        alone = self._is_3_0 and isinstance(node.get("$ref"), str)
        kept = _ALONE if alone else _KNOWN
        if not node.keys().isdisjoint(_OTHER_REFS):
            raise NoTool("reference", "a $dynamicRef or $recursiveRef cannot be followed")
        if not alone:
            gone |= self._schemas.hidden_in(Node(self._file, node))
        taken = self._taken_in(node.get("$ref"), depth + 1, gone)
        kept = kept - {"$ref"} if taken else kept
        made = {
            key: self._ref(value, as_part=in_all_of)
            if key == "$ref" and isinstance(value, str)
            else self._member(key, value, depth + 1, gone)
            for key, value in node.items()
            if key in kept
        }
        if taken:
            made["allOf"] = [*made.get("allOf", ()), *taken]
        if not alone:
            self._discriminate(node, made)
            self._hide(node, made, gone)
        return _nullable(node, _bounded(made)) if self._is_3_0 else made

    def _taken_in(self, ref: Any, depth: int, gone: _Names) -> list[Any]:
        """Return the target of a `$ref`, to be inserted in its place, if it requires what may not
        be there."""
        if not gone or not isinstance(ref, str):
            return []
        target = self._schemas.document.follow(self._file, ref).part
        if not self._schemas.demands(target, gone - self._schemas.hidden_in(target)):
            return []
        inner = _Walk(self._schemas, target.file)
        inner.size, inner.names = self.size, self.names
        taken = inner.schema(target.node, depth, gone)
        self.size = inner.size
        return [taken]

    def _ref(self, ref: str, *, as_part: bool) -> str:
        name = self._schemas.name_of(self._file, ref, as_part=as_part)
        self.names.add(name)
        return f"#/$defs/{name}"

    def _member(self, key: str, value: Any, depth: int, gone: _Names) -> Any:
        """Return the value of a keyword with the schemas in it translated. Everything else in it is
        data."""
        if key in SINGLES and not isinstance(value, list):
            return self._property(value, depth) if key in _OF_MORE else self.schema(value, depth)
        if (key in SINGLES or key in LISTS) and isinstance(value, list):
            inherited = gone if key in _BRANCHES else _NONE
            return [
                self.schema(child, depth, inherited, in_all_of=key == "allOf") for child in value
            ]
        if key in MAPS and isinstance(value, dict):
            read = self._property if key in _OF_MORE else self.schema
            return {name: read(child, depth) for name, child in value.items()}
        return value

    def _property(self, node: Any, depth: int) -> Any:
        hidden = self._schemas.refuses and self._schemas.is_hidden(Node(self._file, node))
        return False if hidden else self.schema(node, depth)

    def _hide(self, node: _Schema, made: _Schema, gone: _Names) -> None:
        """Refuse the properties that only an answer has, and leave out those that only a request
        has. Neither is required."""
        properties: Any = made.get("properties")
        if gone and isinstance(properties, dict):
            kept = {name: child for name, child in properties.items() if name not in gone}
            refused = dict.fromkeys(gone.intersection(properties), False)
            made["properties"] = {**properties, **refused} if self._schemas.refuses else kept
        required: Any = made.get("required")
        if isinstance(required, list):
            gone |= self._schemas.hidden_in(Node(self._file, node), _BRANCHES)
            made["required"] = [
                name for name in required if not (isinstance(name, str) and name in gone)
            ]

    def _discriminate(self, node: _Schema, made: _Schema) -> None:
        """Make each alternative say which one it is, in the way in which the discriminator
        distinguishes them."""
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
            if name in self._schemas.hidden_in(Node(self._file, child)):
                return
            own = self._values(ref, mapping if isinstance(mapping, dict) else {})
            told.append(_saying(name, own))
        made[key] = [{"allOf": [*pair]} for pair in zip(made[key], told, strict=True)]

    def _values(self, ref: str, mapping: _Schema) -> list[str]:
        last, place = ref.rpartition("/")[2], self._schemas.place(self._file, ref)
        texts = [(value, target) for value, target in mapping.items() if isinstance(target, str)]
        meaning = [
            value
            for value, target in texts
            if target == last or (place and place == self._schemas.place(self._file, target))
        ]
        return meaning or [last]


def _saying(name: str, values: list[str]) -> _Schema:
    """Return the schema of an object that has one of these values in a property of that name."""
    return {"properties": {name: {"enum": values}}, "required": [name]}


def is_null(node: Any) -> bool:
    return isinstance(node, dict) and (
        node.get("type") == "null" or node.get("enum") == [None] or node.get("const", 0) is None
    )


def as_object(schema: Any) -> _Schema:
    """Return a schema as an object, even if it is `true` or `false`."""
    if isinstance(schema, dict):
        return dict(schema)
    return {} if schema else {"not": {}}


def _bounded(made: _Schema) -> _Schema:
    """Translate a boolean exclusive bound of OpenAPI 3.0 to JSON Schema."""
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
        return made  # it allows anything
    apart: _Schema = {key: made.pop(key) for key in ("title", "description") if key in made}
    return {**apart, "anyOf": [made, {"type": "null"}]}
