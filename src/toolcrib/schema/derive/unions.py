"""Convert unions with bounded work, whatever the hint and whatever is sent.

pydantic tries each branch of a union, twice, and keeps the best. If branches contain unions (`And |
Or | Not | Leaf`), each level of a value multiplies the tries: 300 bytes took seconds. For a class
next to a free object (`Options | dict[str, int]`) it prefers the class, which drops what it does
not declare.

Rule: the schema chooses the branch before anything is converted. Quick checks (the JSON type, the
names of the properties, tags such as `kind: Literal["and"]`) leave one branch of most unions. Among
several, the one whose schema accepts the value is used. Only if several schemas accept it does
pydantic try the union as it normally would. That happens once for each value: the result is
remembered, so that tries do not multiply (`_Trial`). All work is counted, in nodes of the value
times branches; above MAX_WORK the conversion ends with TooMuchWorkError. An author's own
discriminator is left unchanged, because it already selects one branch.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, core_schema, to_json

from toolcrib.errors import SchemaError
from toolcrib.schema.derive.adapters import Adapter, FlatAdapter
from toolcrib.schema.derive.cores import (
    CLASSES,
    choices_of,
    core_schemas,
    counting_patterns,
    reachable,
    rewritten,
)
from toolcrib.schema.derive.defaults import named_in
from toolcrib.schema.derive.factories import replayable
from toolcrib.schema.derive.generator import SchemaGenerator
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import TooMuchWorkError
from toolcrib.schema.references import nodes_of
from toolcrib.schema.validator import Validator, compile_validator

MAX_WORK = 400_000
"""Nodes times branches; less than a second. The largest arguments have 100,000 nodes."""

_OUTER_KEYS = ("ref", "serialization", "metadata")
_TRIES = 4  # pydantic tries each branch in two modes, and the result is thrown away
_LOOK_UP_COST = 2  # a value is written as JSON to look it up among the known ones
_TEXT = 50  # bytes that are written as fast as a node
_EMPTY = (list, dict, set)  # factories without side effects
_CHEAP_CONSTANTS = 40  # constants that are compared with a value as fast as a branch is tried
_ANY = "toolcrib: more than one branch"
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

    Regular expressions are counted before they are compiled. If a union contains another one, or a
    class next to a free object, the validator chooses branches by their schemas. Its default
    factories ask the `FactoryValues` of the call.
    """
    core = counting_patterns(adapter.core_schema)
    nodes = list(core_schemas(core))
    definitions = {node["ref"]: node for node in nodes if "ref" in node}
    unions = [node for node in nodes if node["type"] == "union"]
    risky = {id(node) for node in unions if _is_risky(node, definitions)}
    is_unchanged = core is adapter.core_schema
    if is_unchanged and not risky and not any("default_factory" in node for node in nodes):
        return adapter
    return FlatAdapter(core, BoundedValidator(core, risky))


class BoundedValidator:
    """A SchemaValidator for one hint, made at its first use. `risky` holds the ids of its
    unions."""

    def __init__(self, core: Any, risky: set[int]) -> None:
        self._core = core
        self._risky = risky

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
        core = _ChoosingCore(self._core, self._risky).core if self._risky else self._core
        # The prebuilt validators of classes choose no branches, and do not ask for values.
        return SchemaValidator(replayable(core, _codec_of), _use_prebuilt=False)


def _codec_of(core: Any) -> TypedReader:
    return TypedReader(core, SchemaValidator(core, _use_prebuilt=False).validate_json)


class _ChoosingCore:
    """A core schema whose risky unions choose their branch. Each branch is a definition, because it
    is used twice."""

    def __init__(self, core: Any, risky: set[int]) -> None:
        self._risky = risky
        # A trial would call the author's factories once more.
        factories = (node.get("default_factory", list) for node in core_schemas(core))
        self._is_tried = all(factory in _EMPTY for factory in factories)
        self._generator = SchemaGenerator("validation")
        self._generator.derive([("", core)])
        # By their refs: pydantic repeats a class that it inlines.
        self._branches: dict[str, Any] = {}
        changed: Any = rewritten(core, self._with_chooser)
        definitions = {node["ref"]: node for node in changed.get("definitions", ())}
        whole_core = (
            changed
            if changed["type"] == "definitions"
            else core_schema.definitions_schema(changed, [])
        )
        self._definitions = list((definitions | self._branches).values())
        self.core: Any = {**whole_core, "definitions": self._definitions}

    def _with_chooser(self, changed: Any, union: Any) -> Any:
        """Let a risky union choose a branch by the schemas; if they do not decide, try the original.

        Its branches have labels. Without them, a validator's name would contain all names below it.
        """
        if id(union) not in self._risky:
            return changed
        schemas = [self._generator.generate_inner(core) for core in choices_of(union)]
        choices = [
            (self._reference_to(choice[0]), choice[1])
            if isinstance(choice, tuple)
            else (self._reference_to(choice), str(number))
            for number, choice in enumerate(changed["choices"])
        ]
        outer_part = {key: changed[key] for key in _OUTER_KEYS if key in changed}
        trial_core = {key: part for key, part in changed.items() if key not in _OUTER_KEYS}
        choices_by_label: dict[Any, Any] = {
            str(number): core for number, (core, _) in enumerate(choices)
        }
        choices_by_label[_ANY] = {**trial_core, "choices": choices}
        trial = _Trial(choices_by_label[_ANY], self) if self._is_tried else None
        chooser = BranchChooser(schemas, self._generator.definitions, trial)
        return core_schema.tagged_union_schema(choices_by_label, chooser.choose) | outer_part

    def validator_of(self, core: Any) -> SchemaValidator:
        """Return a validator of a part, with the definitions of all parts."""
        whole_core = core_schema.definitions_schema(core, self._definitions)
        return SchemaValidator(whole_core, _use_prebuilt=False)

    def _reference_to(self, branch: Any) -> Any:
        if branch["type"] == "definition-ref":
            return branch
        ref = branch.get("ref") or f"toolcrib:{len(self._branches)}"
        self._branches[ref] = {**branch, "ref": ref}
        return core_schema.definition_reference_schema(ref)


class _Trial:
    """Lets pydantic choose a branch of a union, and discards the value that it makes."""

    def __init__(self, union: Any, choosing_core: _ChoosingCore) -> None:
        self._union = union
        self._choosing_core = choosing_core

    @cached_property
    def _validator(self) -> SchemaValidator:
        choices = [
            (core_schema.no_info_after_validator_function(partial(_label, str(number)), core), name)
            for number, (core, name) in enumerate(self._union["choices"])
        ]
        return self._choosing_core.validator_of({**self._union, "choices": choices})

    def chosen(self, text: bytes) -> str | None:
        """Return the chosen branch, or None if there is none."""
        try:
            label: str = self._validator.validate_json(text, strict=True)
        except ValidationError:
            return None
        return label


def _label(label: str, _value: Any) -> str:
    return label


class BranchChooser:
    """Finds the branch of a union for a value: its number as a string, or _ANY if undecided.

    If the schemas do not decide, the `trial` does, once for each value of a conversion. For a value
    that no branch accepts, the first possible branch reports the error.
    """

    def __init__(
        self, branches: Sequence[Any], shared: Mapping[Any, Any], trial: _Trial | None
    ) -> None:
        self._branches = [_Branch(schema, shared) for schema in branches]
        self._names = [str(number) for number in range(len(branches))]
        self._trial = trial

    def choose(self, value: Any) -> str:
        _work.spend(len(self._names))
        candidates = [
            n for n, branch in zip(self._names, self._branches, strict=True) if branch.may_be(value)
        ]
        if len(candidates) == 1:
            return candidates[0]
        nodes = sum(1 for _ in nodes_of(value))
        if self._trial is None:
            return self._choose_by_schemas(candidates, value, nodes)
        chosen = _work.chosen
        key = id(self), to_json(value, inf_nan_mode="constants")
        _work.spend(_LOOK_UP_COST * nodes + len(key[1]) // _TEXT)
        if key not in chosen:
            chosen[key] = self._choose_by_schemas(candidates, value, nodes, key[1])
        return chosen[key]

    def _choose_by_schemas(
        self, candidates: list[str], value: Any, nodes: int, text: bytes | None = None
    ) -> str:
        if candidates:
            _work.spend(nodes * len(candidates))
            candidates = [n for n in candidates if self._branches[int(n)].accepts(value)]
        if len(candidates) == 1:
            return candidates[0]
        _work.spend(nodes * len(self._names) * _TRIES)
        if text is None or self._trial is None:
            return _ANY
        return self._trial.chosen(text) or (candidates or self._names)[0]


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
_FREE = frozenset(("any", "dict", "ordered-dict", "counter", "defaultdict"))


def _is_risky(union: Any, shared: Mapping[str, Any]) -> bool:
    """Return whether pydantic alone might try branches for too long, or choose the wrong one.

    The first can happen if a branch contains a union (including this one), the second if there are
    a class and a free object.
    """
    node_types = set[str]()
    for node in reachable(choices_of(union), shared):
        config = node.get("config") or {}
        is_open = "allow" in (node.get("extra_behavior"), config.get("extra_fields_behavior"))
        node_types.add("any" if is_open else node["type"])
        classes, free_types = node_types & CLASSES, node_types & _FREE
        if node_types & _UNIONS or (classes and free_types):
            return True
    return False
