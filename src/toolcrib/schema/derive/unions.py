"""Convert unions with bounded work, whatever the hint and whatever is sent.

pydantic tries each branch of a union, twice, and keeps the best. If branches contain unions (`And |
Or | Not | Leaf`), each level of a value multiplies the tries: 300 bytes took seconds. For a class
next to a free object (`Options | dict[str, int]`) it prefers the class, which drops what it does
not declare.

Many types read more than their schema says: a `datetime` takes "1714" for a moment in 1970, although
a `str` next to it is meant.

Rule: the schema chooses the branch before anything is converted. Quick checks (the JSON type, the
names of the properties, tags such as `kind: Literal["and"]`) leave one branch of most unions. Among
several, the one whose schema accepts the value is used. Only if several schemas accept it does
pydantic try these branches as it normally would. If they contain unions, that happens once for each
value: the result is remembered, so that tries do not multiply (`_Trial`). All work is counted, in
nodes of the value times branches; above MAX_WORK the conversion ends with TooMuchWorkError. A union
of plain JSON is left to pydantic, and so is an author's own discriminator, because it already
selects one branch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import SchemaValidator, ValidationError, core_schema, to_json

from toolcrib.errors import SchemaError
from toolcrib.schema.derive.adapters import Adapter, FlatAdapter, reader
from toolcrib.schema.derive.cores import (
    choices_of,
    core_schemas,
    counting_patterns,
    is_core,
    parts_of,
    reachable,
    with_classes_apart,
)
from toolcrib.schema.derive.defaults import named_in
from toolcrib.schema.derive.factories import replayable
from toolcrib.schema.derive.generator import SchemaGenerator
from toolcrib.schema.derive.json_mode import has_code_before, in_json_mode
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import OWN_STEP, TooMuchWorkError, changes_text
from toolcrib.schema.references import nodes_of
from toolcrib.schema.validator import Validator, compile_validator

MAX_WORK = 400_000
"""Nodes times branches; less than a second. The largest arguments have 100,000 nodes."""

_OUTER_KEYS = ("ref", "serialization", "metadata")
_PAIR = 2  # branches, of which never some and not all are tried
_TRIES = 4  # pydantic tries each branch in two modes, and the result is thrown away
_LOOK_UP_COST = 2  # a value is written as JSON to look it up among the known ones
_TEXT = 50  # bytes that are written as fast as a node
_EMPTY = (list, dict, set)  # factories without side effects
_CHEAP_CONSTANTS = 40  # constants that are compared with a value as fast as a branch is tried
_ALL = f"{OWN_STEP}all branches"
_ACCEPTING = f"{OWN_STEP}the branches whose schema accepts the value"
_TYPES: Mapping[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number", "integer"),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}
_SCALARS = (str, bool, int, float, type(None))


class _Work(threading.local):
    """The remaining budget of the conversion in this thread, and the branches chosen in it.

    Branches are stored by union and value.
    """

    remaining = MAX_WORK

    def __init__(self) -> None:
        self.chosen: dict[tuple[int, bytes], str] = {}

    def spend(self, units: int) -> None:
        self.remaining -= units
        if self.remaining < 0:
            raise TooMuchWorkError


_work = _Work()


def bounded(adapter: Adapter) -> Adapter:
    """Return the adapter that calls use, which counts its work.

    Regular expressions are counted before they are compiled. Unions choose their branches by the
    schemas, unless they are plain JSON. What an author's validator passes on is read as JSON.
    Default factories ask the `FactoryValues` of the call.
    """
    core = counting_patterns(adapter.core_schema)
    nodes = list(core_schemas(core))
    definitions = {node["ref"]: node for node in nodes if "ref" in node}
    choosing: dict[int, bool] = {}
    for union in nodes:
        if union["type"] == "union":
            below = list(reachable(choices_of(union), definitions))
            if not all(map(_is_exact, below)):
                choosing[id(union)] = any(node["type"] in _UNIONS for node in below)
    is_unchanged = core is adapter.core_schema and not choosing and not has_code_before(core)
    if is_unchanged and not any("default_factory" in node for node in nodes):
        return adapter
    return FlatAdapter(core, _ChoosingValidator(core, choosing))


class BoundedValidator:
    """A SchemaValidator, made at its first use. Its unions share a budget of work for each value."""

    def __init__(self, core: Any, config: Any = None) -> None:
        self._core = core
        self._config = config

    def compile_part(self, core: Any, config: Any) -> BoundedValidator:
        """Return a validator that reads a part of this core schema in the same way."""
        return BoundedValidator(core, config)

    def validate_json(self, text: bytes, *, strict: bool | None = None) -> Any:
        """Validate JSON. Raises TooMuchWorkError, and what a SchemaValidator raises."""
        outer = _work.remaining, _work.chosen
        _work.remaining, _work.chosen = MAX_WORK, {}
        try:
            return self._validator.validate_json(text, strict=strict)
        finally:
            _work.remaining, _work.chosen = outer

    @cached_property
    def _validator(self) -> SchemaValidator:
        # The prebuilt validators of classes choose no branches, and do not ask for values.
        return SchemaValidator(self._changed(), self._config, _use_prebuilt=False)

    def _changed(self) -> Any:
        return self._core


class _ChoosingValidator(BoundedValidator):
    """The validator of a hint. `choosing` has its unions that choose, by their ids, and whether
    they contain unions."""

    def __init__(self, core: Any, choosing: Mapping[int, bool], config: Any = None) -> None:
        super().__init__(core, config)
        self._choosing = choosing

    def compile_part(self, core: Any, config: Any) -> BoundedValidator:
        return _ChoosingValidator(core, self._choosing, config)

    def _changed(self) -> Any:
        core = self._core
        if any(id(node) in self._choosing for node in core_schemas(core)):
            core = _ChoosingCore(core, self._choosing, self._config).core
        return replayable(in_json_mode(core), _codec_of)


def _codec_of(core: Any) -> TypedReader:
    """Return a reader of a core schema whose unions already choose."""
    return reader(FlatAdapter(core, BoundedValidator(core)))


class _ChoosingCore:
    """A core schema whose unions choose their branch. Each branch is in several places of it."""

    def __init__(self, core: Any, choosing: Mapping[int, bool], config: Any) -> None:
        self._choosing = choosing
        # A trial would call the author's factories once more.
        factories = (node.get("default_factory", list) for node in core_schemas(core))
        self._is_tried = all(factory in _EMPTY for factory in factories)
        self._configs = dict(_union_configs(core, config))
        self._generator = SchemaGenerator("validation")
        with suppress(PydanticInvalidForJsonSchema):  # an author's own schema describes the hint
            self._generator.derive([("", core)])
        changed, self._definitions = with_classes_apart(core, self._with_chooser)
        self.core = core_schema.definitions_schema(changed, list(self._definitions.values()))

    def _with_chooser(self, changed: Any, union: Any) -> Any:
        """Let a union choose a branch by the schemas; if they do not decide, try several.

        Its branches have labels. Without them, a validator's name would contain all names below it.
        """
        multiplies = self._choosing.get(id(union))
        if multiplies is None:
            return changed
        try:
            schemas = [self._generator.generate_inner(core) for core in choices_of(union)]
        except PydanticInvalidForJsonSchema:  # it reads Python's objects, such as a `SecretStr`
            return changed
        branches = [_Branch(schema, self._generator.definitions) for schema in schemas]
        choices = [
            choice if isinstance(choice, tuple) else (choice, str(number))
            for number, choice in enumerate(changed["choices"])
        ]
        accepting = [
            (core_schema.tagged_union_schema({"": core}, branch.tag), label)
            for branch, (core, label) in zip(branches, choices, strict=True)
        ]
        outer_part = {key: changed[key] for key in _OUTER_KEYS if key in changed}
        plain_union = {key: part for key, part in changed.items() if key not in _OUTER_KEYS}
        tried: dict[str, Any] = {_ALL: {**plain_union, "choices": choices}}
        if len(choices) > _PAIR:
            tried[_ACCEPTING] = {**plain_union, "choices": accepting}
        choices_by_label: dict[Any, Any] = {str(n): core for n, (core, _) in enumerate(choices)}
        trial = None
        if multiplies and self._is_tried:
            trial = _Trial(tried, partial(self._compile, id(union)))
        else:
            choices_by_label |= tried
        chooser = BranchChooser(branches, trial)
        return core_schema.tagged_union_schema(choices_by_label, chooser.choose) | outer_part

    def _compile(self, union: int, core: Any) -> SchemaValidator:
        """Return a validator of a part of a union, with all definitions and the same config."""
        whole_core = core_schema.definitions_schema(core, list(self._definitions.values()))
        return SchemaValidator(in_json_mode(whole_core), self._configs[union], _use_prebuilt=False)


def _union_configs(core: Any, config: Any) -> Iterator[tuple[int, Any]]:
    """Yield each union, by its id, with the config of the class around it."""
    pending, seen = [(core, config)], set[int]()
    while pending:
        node, config = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_core(node):
            if node["type"] == "union":
                yield id(node), config
            config = node.get("config", config)
        pending += [(part, config) for part in parts_of(node)]


class _Trial:
    """Lets pydantic choose a branch of a union, and discards the value that it makes."""

    def __init__(
        self, unions: Mapping[str, Any], compile_union: Callable[[Any], SchemaValidator]
    ) -> None:
        self._unions = unions
        self._compile = compile_union
        self._validators: dict[str, SchemaValidator] = {}

    def chosen(self, tried: str, text: bytes) -> str | None:
        """Return the chosen one of the branches that are `tried`, or None if there is none."""
        if tried not in self._validators:
            union = self._unions[tried]
            choices = [
                (
                    core_schema.no_info_after_validator_function(
                        partial(_label, str(number)), core
                    ),
                    name,
                )
                for number, (core, name) in enumerate(union["choices"])
            ]
            self._validators[tried] = self._compile({**union, "choices": choices})
        try:
            label: str = self._validators[tried].validate_json(text, strict=True)
        except ValidationError:
            return None
        return label


def _label(label: str, _value: Any) -> str:
    return label


class BranchChooser:
    """Finds the branch of a union for a value: its number as a string, or which ones to try.

    If the branches contain unions, a `trial` finds one of those, once for each value of a
    conversion. For a value that no branch accepts, it is the first possible branch, which reports
    the error.
    """

    def __init__(self, branches: Sequence[_Branch], trial: _Trial | None) -> None:
        self._branches = branches
        self._names = [str(number) for number in range(len(branches))]
        self._trial = trial

    def choose(self, value: Any) -> str:
        _work.spend(len(self._names))
        candidates = [
            n for n, branch in zip(self._names, self._branches, strict=True) if branch.may_be(value)
        ]
        if len(candidates) == 1:
            return candidates[0]
        if self._trial is None:
            candidates, tried = self._accepting(candidates, value)
            return candidates[0] if len(candidates) == 1 else tried
        chosen = _work.chosen
        key = id(self), to_json(value, inf_nan_mode="constants")
        _work.spend(_LOOK_UP_COST * _size(value) + len(key[1]) // _TEXT)
        if key not in chosen:
            candidates, tried = self._accepting(candidates, value)
            label = None if len(candidates) == 1 else self._trial.chosen(tried, key[1])
            chosen[key] = label or (candidates or self._names)[0]
        return chosen[key]

    def _accepting(self, candidates: list[str], value: Any) -> tuple[list[str], str]:
        """Return the branches whose schemas accept a value, and which ones pydantic should try."""
        nodes = _size(value)
        _work.spend(nodes * len(candidates))
        candidates = [n for n in candidates if self._branches[int(n)].accepts(value)]
        if len(candidates) != 1:
            _work.spend(nodes * len(self._names) * _TRIES)
        return candidates, _ALL if len(candidates) in (0, len(self._names)) else _ACCEPTING


def _size(value: Any) -> int:
    return 1 if isinstance(value, _SCALARS) else sum(1 for _ in nodes_of(value))


class _Branch:
    """The schema of one branch, with the definitions that it refers to."""

    def __init__(self, schema: Any, shared: Mapping[Any, Any]) -> None:
        self._schema, self._shared = schema, shared
        self._node = self._resolved(schema)

    def may_be(self, value: Any) -> bool:
        """Return whether a value may belong to this branch, without examining nested values."""
        return self._fits(self._node, value) and (
            not isinstance(value, dict) or self._has_properties(value)
        )

    def accepts(self, value: Any) -> bool:
        return self._validator is None or self._validator.is_valid(value)

    def tag(self, value: Any) -> str | None:
        """Return the only tag of a union of this branch alone, if its schema accepts a value."""
        _work.spend(_size(value))
        return "" if self.accepts(value) else None

    @cached_property
    def _validator(self) -> Validator | None:
        try:
            return compile_validator({"$defs": dict(self._shared), "allOf": [self._schema]})
        except SchemaError:  # such as a reference that this generator does not have
            return None

    def _has_properties(self, value: Mapping[str, Any]) -> bool:
        declared = self._node.get("properties", {})
        if not value.keys() >= set(self._node.get("required", ())):
            return False
        if self._node.get("additionalProperties") is False and not declared.keys() >= value.keys():
            return False
        return all(
            self._fits(self._resolved(declared[name]), part)
            for name, part in value.items()
            if name in declared and isinstance(part, _SCALARS)
        )

    @staticmethod
    def _fits(node: Mapping[str, Any], value: Any) -> bool:
        kinds = _TYPES.get(value.__class__)
        declared = node.get("type")
        if kinds is None:
            return True
        if isinstance(declared, str) and declared not in kinds:
            return False
        allowed = [node["const"]] if "const" in node else node.get("enum")
        if not isinstance(allowed, list) or not isinstance(value, _SCALARS):
            return True
        _work.spend(len(allowed) // _CHEAP_CONSTANTS)
        return any(
            constant == value and isinstance(constant, bool) is isinstance(value, bool)
            for constant in allowed
        )

    def _resolved(self, node: Any) -> dict[str, Any]:
        for _ in range(len(self._shared) + 1):
            name = named_in(node) if isinstance(node, dict) else ""
            if name not in self._shared:
                break
            node = self._shared[name]
        return node if isinstance(node, dict) else {}


_UNIONS = frozenset(("union", "tagged-union"))
# Kinds of core schemas that read exactly what their JSON Schemas accept. All others may read more:
# a `datetime` numbers in texts, a `UUID` texts without dashes, `Literal[1]` true, and a class drops
# what it does not declare.
_EXACT = frozenset(
    ("any", "str", "int", "float", "bool", "none", "literal", "nullable", "list", "dict")
)
_PLAIN_KEY = {"type": "str"}


def _is_exact(core: Any) -> bool:
    if core["type"] == "literal":
        return all(value.__class__ is str for value in core["expected"])
    has_plain_keys = core.get("keys_schema", _PLAIN_KEY)["type"] in ("any", "str")
    return core["type"] in _EXACT and has_plain_keys and not changes_text(core, {})
