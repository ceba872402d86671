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
from toolcrib.schema.references import steps_of
from toolcrib.values.json import JsonValue, escape_pointer

_KEPT_KEYWORDS = (ASSERTIONS | ANNOTATIONS) - DOCUMENT - {"discriminator"}
_BESIDE_REF = (ANNOTATIONS | {"$ref"}) & _KEPT_KEYWORDS
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
_UNNAMED_PROPERTIES = ("patternProperties", "additionalProperties", "unevaluatedProperties")
"""Keywords with schemas of properties that have no fixed names, in contrast to `properties`."""
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class Translated(NamedTuple):
    """A schema, the names of the definitions that it refers to, and the number of its nodes."""

    node: Any
    names: frozenset[str]
    size: int


_TYPE_KEYWORDS = frozenset(("type", "format", "items", "contentMediaType", "contentEncoding"))
"""Keywords of a schema that say what kind of value it is for."""


class ApiSchemas:
    """Translates the schemas of one document, for requests or for answers. Each definition is
    translated once.

    With `kinds`, a schema whose discriminator has a `mapping` is any of its kinds.
    """

    def __init__(
        self, document: Document, direction: Literal["request", "answer"], *, kinds: bool = False
    ) -> None:
        self.document = document
        self._wants_kinds = kinds
        self.is_3_1 = document.version.startswith("3.1")
        self.has_styled_parts = self.is_3_1 or document.is_swagger
        self._hidden_keyword = "readOnly" if direction == "request" else "writeOnly"
        self.refuses = direction == "request"
        self._names: dict[tuple[_Place, bool], str] = {}
        self._targets: dict[str, Node] = {}
        self._definitions: dict[str, Translated] = {}
        self._children: defaultdict[_Place, list[str]] | None = None
        self._kinds_of: dict[_Place, _Schema | None] = {}
        self._is_hidden: dict[int, bool] = {}
        self._hidden_in: dict[tuple[int, tuple[str, ...]], _Names] = {}

    def translated(self, part: Node) -> Translated:
        """Return a schema of the document. Raises NoTool."""
        translator = _SchemaTranslator(self, part.file)
        return Translated(
            translator.schema(part.node, 0), frozenset(translator.names), translator.size
        )

    def whole(self, schema: Translated, max_nodes: int = MAX_NODES) -> _Schema:
        """Return a schema with the definitions that it refers to. Raises NoTool if it has more
        nodes than `max_nodes`."""
        return self.with_definitions(as_object(schema.node), schema.names, max_nodes - schema.size)

    def with_definitions(
        self, schema: _Schema, roots: Iterable[str], max_nodes: int = MAX_NODES
    ) -> _Schema:
        """Return a schema with all definitions that these names lead to, directly or not. Raises
        NoTool if those have more nodes than `max_nodes`."""
        collected: dict[str, Any] = {}
        pending = sorted(roots)
        size = 0
        while pending:
            name = pending.pop()
            if name in collected:
                continue
            if name not in self._definitions:
                self._definitions[name] = self.translated(self._targets[name])
            translated = self._definitions[name]
            size += translated.size
            if size > max_nodes:
                raise NoTool("too large", f"its schema has more than {max_nodes} nodes")
            collected[name] = translated.node
            pending += sorted(translated.names - collected.keys())
        definitions = {name: collected[name] for name in sorted(collected)}
        return {**schema, "$defs": definitions} if definitions else schema

    def name_of(self, file: DocumentFile, ref: str, *, as_part: bool) -> str:
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
        discriminator = part.get("discriminator")
        mapping = {} if discriminator is None else discriminator.members("mapping")
        if discriminator is None or not mapping or not {"oneOf", "anyOf"}.isdisjoint(part.node):
            return None
        name = discriminator.text("propertyName")
        if not name or name in self.hidden_in(part):
            return None
        refs = {value: self._ref_of_kind(part.file, entry.node) for value, entry in mapping.items()}
        by_target: dict[_Place | None, tuple[str, list[str]]] = {}
        for value, ref in refs.items():
            if ref:
                by_target.setdefault(self.place(part.file, ref), (ref, []))[1].append(value)
        for ref in (target.key[1], *self._parts_of(target)):
            by_target.setdefault(self.place(part.file, ref), (ref, [steps_of(unquote(ref))[-1]]))
        # a reference that leads nowhere means the schema itself
        by_target[target.key][1].extend(value for value, ref in refs.items() if not ref)
        return {
            "anyOf": [
                {"allOf": [{"$ref": ref}, _requiring_one_of(name, values)]}
                for ref, values in by_target.values()
            ]
        }

    def _ref_of_kind(self, file: DocumentFile, mapped: object) -> str:
        """Return the reference that a mapping means: an explicit one, or the name of a schema."""
        component_ref = f"#/components/schemas/{mapped}"
        for ref in (mapped, component_ref, self.document.main_from(file) + component_ref):
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
                component_ref = f"#/components/schemas/{escape_pointer(name)}"
                for ref in filter(None, (branch.text("$ref") for branch in child.items("allOf"))):
                    with suppress(NoTool):
                        self._children[self.document.follow(child.file, ref).key].append(
                            component_ref
                        )
        main = self.document.main_from(target.part.file)
        return [main + ref for ref in self._children[target.key]]

    def effective(self, part: Node) -> Node:
        """Return a schema, or the one that it stands for. That is its only part, or its only
        alternative besides null, and its target, if the schema itself does not say what it is.
        Raises NoTool."""
        for _ in range(MAX_DEPTH):
            part = self.document.resolved(part)
            if not _TYPE_KEYWORDS.isdisjoint(as_object(part.node)):
                return part
            inner = [
                branch
                for key in _BRANCHES
                for branch in part.items(key)
                if not is_null(branch.node)
            ]
            if len(inner) != 1:
                return part
            part = inner[0]
        raise NoTool("too large", "its schema is nested too deeply, or holds too much")

    def takes_null(self, part: Node) -> bool:
        """Return whether a schema, or its target, says that it allows null. Raises NoTool."""
        part = self.document.resolved(part)
        alternatives = [entry.node for key in _ALTERNATIVES for entry in part.items(key)]
        has_null_type = "null" in [entry.node for entry in part.items("type")]
        return has_null_type or part.flag("nullable") or any(map(is_null, alternatives))

    def is_hidden(self, part: Node, depth: int = 0) -> bool:
        """Return whether a property is for the other direction only. The property itself, its
        target, a schema of its `allOf`, or each of its alternatives besides null says so. Raises
        NoTool."""
        node = part.node
        if not isinstance(node, dict) or node.keys().isdisjoint(
            (self._hidden_keyword, "$ref", *_BRANCHES)
        ):
            return False
        if self._hidden_keyword in node:
            return node[self._hidden_keyword] is True
        if depth > MAX_DEPTH:
            raise NoTool("too large", "its schema is nested too deeply, or holds too much")
        if id(node) not in self._is_hidden:
            self._is_hidden[id(node)] = False  # for a cycle back to itself
            alternatives = [
                [branch for branch in part.items(key) if not is_null(branch.node)]
                for key in _ALTERNATIVES
            ]
            self._is_hidden[id(node)] = any(
                self.is_hidden(branch, depth + 1) for branch in self._branches_of(part, _PARTS)
            ) or any(
                all(self.is_hidden(branch, depth + 1) for branch in group)
                for group in alternatives
                if group
            )
        return self._is_hidden[id(node)]

    def hidden_in(self, part: Node, keys: tuple[str, ...] = _PARTS) -> _Names:
        """Return the properties that an object may not have in this direction, according to this
        part of its schema, its target, and the parts below `keys`. Raises NoTool."""
        node = part.node
        if not isinstance(node, dict) or node.keys().isdisjoint(("properties", "$ref", *keys)):
            return _NONE
        cache_key = (id(node), keys)
        if cache_key not in self._hidden_in:
            self._hidden_in[cache_key] = _NONE  # for a cycle back to itself
            hidden = [
                name for name, child in part.members("properties").items() if self.is_hidden(child)
            ]
            others = [self.hidden_in(branch, keys) for branch in self._branches_of(part, keys)]
            self._hidden_in[cache_key] = _NONE.union(hidden, *others)
        return self._hidden_in[cache_key]

    def parts(self, part: Node, keys: tuple[str, ...] = _PARTS) -> Iterator[Node]:
        """Yield a schema, its target, and the schemas below `keys` in each. Raises NoTool."""
        seen: set[int] = set()
        pending = [part]
        while pending:
            current = pending.pop(0)
            if id(current.node) not in seen:
                seen.add(id(current.node))
                yield current
                pending += self._branches_of(current, keys)

    def demands(self, part: Node, names: _Names) -> bool:
        """Return whether this part of an object's schema requires one of these. Raises NoTool."""
        required = [
            entry.node
            for branch in self.parts(part, _BRANCHES)
            for entry in branch.items("required")
        ]
        return any(isinstance(name, str) and name in names for name in required)

    def defaults(self, part: Node) -> tuple[JsonValue, ...]:
        """Return each `default` that a schema gives to its value, in any of its parts. Raises
        NoTool."""
        return tuple(
            branch.node["default"]
            for branch in self._parts_of_value(part)
            if "default" in branch.node
        )

    def defaults_of_properties(self, part: Node) -> dict[str, tuple[JsonValue, ...]]:
        """Return the defaults of each property that an object's schema declares, in any of its
        parts. Raises NoTool."""
        by_name: dict[str, tuple[JsonValue, ...]] = {}
        for branch in self._parts_of_value(part):
            for name, child in branch.members("properties").items():
                by_name[name] = (*by_name.get(name, ()), *self.defaults(child))
        return by_name

    def _parts_of_value(self, part: Node) -> Iterator[Node]:
        """Yield the schema and each of its parts that judges the same value. Raises NoTool."""
        seen: set[int] = set()
        pending = [(part, False)]
        while pending:
            current, as_part = pending.pop()
            if not isinstance(current.node, dict) or id(current.node) in seen:
                continue
            seen.add(id(current.node))
            yield current
            if ref := current.text("$ref"):
                target = self.document.follow(current.file, ref)
                kinds = self._kinds(target) if self._wants_kinds and not as_part else None
                followed = target.part if kinds is None else Node(target.part.file, kinds)
                pending.append((followed, as_part))
                if not self.is_3_1:  # from 3.1 on, the keywords next to it count, too
                    continue
            pending += [(branch, True) for branch in current.items("allOf")]
            others = [branch for key in _ALTERNATIVES for branch in current.items(key)]
            others += filter(None, map(current.get, _CONDITIONS))
            others += current.members("dependentSchemas").values()
            pending += [(branch, False) for branch in others]

    def _branches_of(self, part: Node, keys: tuple[str, ...]) -> list[Node]:
        """Return the other parts of a schema that judge the same value."""
        branches = [branch for key in keys for branch in part.items(key)]
        ref = part.text("$ref")
        return [*branches, self.document.follow(part.file, ref).part] if ref else branches

    def place(self, file: DocumentFile, ref: str) -> _Place | None:
        """Return the place that a reference leads to, or None if it leads nowhere."""
        try:
            return self.document.follow(file, ref).key
        except NoTool:
            return None


class _SchemaTranslator:
    """Copies one schema. Raises NoTool for one that is no schema, too deep or too large."""

    def __init__(self, schemas: ApiSchemas, file: DocumentFile) -> None:
        self._schemas, self._file = schemas, file
        self._is_3_0 = not schemas.is_3_1
        self.names: set[str] = set()
        self.size = 0

    def schema(
        self, node: Any, depth: int, hidden: _Names = _NONE, *, in_all_of: bool = False
    ) -> Any:
        """Return one schema. `hidden` are the properties that other schemas of the same value
        hide."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise NoTool(
                "schema", f"a {type(node).__name__} is in a place where a schema is expected"
            )
        self.size += 1 + len(node)
        if depth > MAX_DEPTH or self.size > MAX_NODES:
            raise NoTool("too large", "its schema is nested too deeply, or holds too much")
        is_bare_ref = self._is_3_0 and isinstance(node.get("$ref"), str)
        keywords = _BESIDE_REF if is_bare_ref else _KEPT_KEYWORDS
        if not node.keys().isdisjoint(_OTHER_REFS):
            raise NoTool("reference", "a $dynamicRef or $recursiveRef cannot be followed")
        if not is_bare_ref:
            hidden |= self._schemas.hidden_in(Node(self._file, node))
        inlined = self._inlined(node.get("$ref"), depth + 1, hidden)
        keywords = keywords - {"$ref"} if inlined else keywords
        translated = {
            key: self._ref(value, as_part=in_all_of)
            if key == "$ref" and isinstance(value, str)
            else self._member(key, value, depth + 1, hidden)
            for key, value in node.items()
            if key in keywords
        }
        if inlined:
            translated["allOf"] = [*translated.get("allOf", ()), *inlined]
        if not is_bare_ref:
            self._discriminate(node, translated)
            self._hide(node, translated, hidden)
        return _nullable(node, _bounded(translated)) if self._is_3_0 else translated

    def _inlined(self, ref: Any, depth: int, hidden: _Names) -> list[Any]:
        """Return the target of a `$ref`, to be inserted in its place, if it requires what may not
        be there."""
        if not hidden or not isinstance(ref, str):
            return []
        target = self._schemas.document.follow(self._file, ref).part
        if not self._schemas.demands(target, hidden - self._schemas.hidden_in(target)):
            return []
        inner = _SchemaTranslator(self._schemas, target.file)
        inner.size, inner.names = self.size, self.names
        inlined = inner.schema(target.node, depth, hidden)
        self.size = inner.size
        return [inlined]

    def _ref(self, ref: str, *, as_part: bool) -> str:
        name = self._schemas.name_of(self._file, ref, as_part=as_part)
        self.names.add(name)
        return f"#/$defs/{name}"

    def _member(self, key: str, value: Any, depth: int, hidden: _Names) -> Any:
        """Return the value of a keyword with the schemas in it translated. Everything else in it is
        data."""
        if key in SINGLES and not isinstance(value, list):
            return (
                self._property(value, depth)
                if key in _UNNAMED_PROPERTIES
                else self.schema(value, depth)
            )
        if (key in SINGLES or key in LISTS) and isinstance(value, list):
            inherited = hidden if key in _BRANCHES else _NONE
            return [
                self.schema(child, depth, inherited, in_all_of=key == "allOf") for child in value
            ]
        if key in MAPS and isinstance(value, dict):
            translate = self._property if key in _UNNAMED_PROPERTIES else self.schema
            return {name: translate(child, depth) for name, child in value.items()}
        return value

    def _property(self, node: Any, depth: int) -> Any:
        hidden = self._schemas.refuses and self._schemas.is_hidden(Node(self._file, node))
        return False if hidden else self.schema(node, depth)

    def _hide(self, node: _Schema, translated: _Schema, hidden: _Names) -> None:
        """Refuse the properties that only an answer has, and leave out those that only a request
        has. Neither is required."""
        properties: Any = translated.get("properties")
        if hidden and isinstance(properties, dict):
            visible = {name: child for name, child in properties.items() if name not in hidden}
            refused = dict.fromkeys(hidden.intersection(properties), False)
            translated["properties"] = (
                {**properties, **refused} if self._schemas.refuses else visible
            )
        required: Any = translated.get("required")
        if isinstance(required, list):
            hidden |= self._schemas.hidden_in(Node(self._file, node), _BRANCHES)
            translated["required"] = [
                name for name in required if not (isinstance(name, str) and name in hidden)
            ]

    def _discriminate(self, node: _Schema, translated: _Schema) -> None:
        """Make each alternative say which one it is, in the way in which the discriminator
        distinguishes them."""
        discriminator: Any = node.get("discriminator")
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        key = "oneOf" if "oneOf" in translated else "anyOf"
        alternatives: Any = node.get(key)
        if not isinstance(name, str) or not isinstance(alternatives, list):
            return
        mapping: Any = discriminator.get("mapping")
        constraints = []
        for child in alternatives:
            ref = child.get("$ref") if isinstance(child, dict) else None
            if not isinstance(ref, str):
                return
            if name in self._schemas.hidden_in(Node(self._file, child)):
                return
            values = self._values(ref, mapping if isinstance(mapping, dict) else {})
            constraints.append(_requiring_one_of(name, values))
        translated[key] = [
            {"allOf": [*pair]} for pair in zip(translated[key], constraints, strict=True)
        ]

    def _values(self, ref: str, mapping: _Schema) -> list[str]:
        schema_name, place = ref.rpartition("/")[2], self._schemas.place(self._file, ref)
        texts = [(value, target) for value, target in mapping.items() if isinstance(target, str)]
        matches = [
            value
            for value, target in texts
            if target == schema_name or (place and place == self._schemas.place(self._file, target))
        ]
        return matches or [schema_name]


def _requiring_one_of(name: str, values: list[str]) -> _Schema:
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


def _bounded(schema: _Schema) -> _Schema:
    """Translate a boolean exclusive bound of OpenAPI 3.0 to JSON Schema."""
    for exclusive, bound in _BOUNDS:
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)
    return schema


def _nullable(node: _Schema, translated: _Schema) -> _Schema:
    if node.get("nullable") is not True:
        return translated
    declared_type = translated.get("type")
    if isinstance(declared_type, str) and not any(
        key in translated for key in ("allOf", "anyOf", "oneOf", "$ref")
    ):
        translated["type"] = [declared_type, "null"]
        choices = translated.get("enum")
        if isinstance(choices, list) and None not in choices:
            translated["enum"] = [*choices, None]
        return translated
    if declared_type is None and not translated.keys() - ANNOTATIONS:
        return translated  # it allows anything
    annotations: _Schema = {
        key: translated.pop(key) for key in ("title", "description") if key in translated
    }
    return {**annotations, "anyOf": [translated, {"type": "null"}]}
