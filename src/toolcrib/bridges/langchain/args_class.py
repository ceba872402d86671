"""The arguments of a LangChain tool, which its own class reads before anybody decides on them.

Rule: what was decided on is what runs. LangChain validates arguments within the call. There its
class adds defaults and its validators change values unseen, and it passes on what that class would
dump. So the class reads the arguments here first, strictly, like any model of a tool. What
LangChain later makes of them and passes to the tool's function has to be the same values.

The schema that LangChain shows, and that judges arguments, calls each field by its own name,
whatever alias the class reads it by. Everybody who decides on or reads the arguments uses these
names, and only LangChain is given the aliases. Arguments that nobody sent are left to LangChain's
class, since they need not be valid there. The exception is what a factory made, because the factory
would make something else the next time.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from langchain_core.tools import BaseTool
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaValidator

from toolcrib.errors import DefinitionError, ToolError
from toolcrib.schema.derive.adapters import Adapter, FlatAdapter, adapter_for, part_compiler
from toolcrib.schema.derive.cores import core_schemas, definitions_of, holds_factory
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import At, Differs, Findings
from toolcrib.schema.derive.unions import bounded
from toolcrib.tools.component import value_faults
from toolcrib.values.json import JsonObject, JsonValue, Redacted, canonical_bytes

_OTHER_VALUES = (
    "The tool did not run: LangChain would change these arguments after they were decided on."
)
NO_FIELDS = "tool '{}': its args_schema is not a class with fields, which LangChain needs"
_SYNTHETIC = frozenset(("args", "kwargs"))
"""Names of fields whose defaults LangChain does not pass on, because it takes them for a function's
`*args` and `**kwargs`."""


class ReadArguments(Redacted, msgspec.Struct, frozen=True):
    """Holds what was sent, the instance that was read from it, and the effective arguments."""

    redacted: ClassVar[tuple[str, ...]] = ("sent", "made", "shown")

    sent: JsonObject
    made: BaseModel
    shown: JsonObject


class ArgsReader(TypedReader):
    """Reads arguments by `model`, which has no injected fields.

    `validating` is the class by which LangChain validates them in the call, or None if it passes
    them on unchanged. Arguments in `left_out` do not reach the function unless they were sent, and
    it has no default for them.
    """

    __slots__ = ("_holding", "_keys", "_left_out", "_making", "_model", "_tool", "_validating")

    def __init__(
        self,
        tool: BaseTool,
        model: type[BaseModel],
        validating: type[BaseModel] | None,
        left_out: frozenset[str],
    ) -> None:
        label = f"tool '{tool.name}': its args_schema"
        model_adapter = adapter_for(model, label)
        self._holding = _factory_fields(tool.name, model_adapter.core_schema)
        adapter = bounded(_adapter_by_own_names(model, model_adapter))
        super().__init__(
            adapter.core_schema, adapter.validator.validate_json, part_compiler(adapter)
        )
        self._tool = tool
        self._model = model
        self._validating = validating
        self._left_out = left_out & _SYNTHETIC
        self._keys = {}
        if validating is not None:
            validating_fields = validating.model_fields.items()
            self._keys = {
                n: _key(tool.name, n, f, validating.model_config) for n, f in validating_fields
            }
        fields = model.model_fields.items()
        optional = {name for name, field in fields if not field.is_required()}
        self._making = (self._holding | (_SYNTHETIC - self._left_out)) & optional

    def read(
        self, sent: JsonValue, at: At, found: Findings, values: FactoryValues | None = None
    ) -> tuple[Any, JsonValue]:
        instance, shown = super().read(sent, at, found, values)
        assert isinstance(sent, dict)  # noqa: S101  by the schema
        assert isinstance(shown, dict)  # noqa: S101
        return ReadArguments(sent, instance, shown), shown

    def passed_on(
        self, read_arguments: ReadArguments, injected: Mapping[str, Any], call_id: str
    ) -> dict[str, Any]:
        """Return the arguments to give to LangChain, which makes of them what was decided on.
        Raises ToolError if its class refuses them, or if something else would reach the function.
        """
        if self._validating is None:  # the function fills in its own defaults
            shown = {
                name: read_arguments.shown[name]
                for name in read_arguments.sent
                if name in read_arguments.shown
            }
            return {**shown, **injected}
        return self._checked(read_arguments, {**self._as_sent(read_arguments), **injected}, call_id)

    def _checked(
        self, read_arguments: ReadArguments, arguments: dict[str, Any], call_id: str
    ) -> dict[str, Any]:
        """Return `arguments` if LangChain passes on what was decided on. A default that nobody sent and
        the class refuses is left to the class. Raises the same errors as `passed_on`."""
        try:
            passed = self._tool._to_args_and_kwargs({**arguments}, call_id)  # noqa: SLF001  as it does
        except ValidationError as error:
            refused = {path[0] for path, _ in value_faults(error) if path}
            factory_keys = {self._keys[name] for name in self._making - read_arguments.sent.keys()}
            if refused and refused <= factory_keys & arguments.keys():
                remaining = {key: value for key, value in arguments.items() if key not in refused}
                return self._checked(read_arguments, remaining, call_id)
            raise self._refused(error, read_arguments) from error
        if not self._passes_same_values(read_arguments, *passed):
            raise ToolError(_OTHER_VALUES)
        return arguments

    def _as_sent(self, read_arguments: ReadArguments) -> dict[str, Any]:
        """Return what was sent, by the names that the class reads. Also return what default
        factories made, since they run once, and the defaults that LangChain would not pass on."""
        names = [*read_arguments.sent, *sorted(self._making - read_arguments.sent.keys())]
        extras = (read_arguments.made.model_extra or {}) if self.has_factories else {}
        arguments = {}
        for name in names:
            if name in self._holding or name not in read_arguments.sent:
                value = getattr(read_arguments.made, name)
            else:
                value = extras[name] if name in extras else copy.deepcopy(read_arguments.sent[name])
            arguments[self._keys.get(name, name)] = value
        return arguments

    def _refused(self, error: ValidationError, read_arguments: ReadArguments) -> Exception:
        """Return an error that tells the model where and of what kind the fault is. pydantic's own
        text repeats the value. A fault in what the model did not send (a default, an injected
        argument) is not the model's."""
        names = {key: name for name, key in self._keys.items()}
        faults = [
            ((names.get(str(path[0]), path[0]), *path[1:]) if path else path, problem)
            for path, problem in value_faults(error)
        ]
        if any(path and path[0] not in read_arguments.sent for path, _ in faults):
            return error
        problems = (f"/{'/'.join(map(str, path))}: {problem}" for path, problem in faults)
        return ToolError(
            f"The tool does not take these arguments: {'; '.join(problems)}", retryable=True
        )

    def _passes_same_values(
        self, read_arguments: ReadArguments, positional: Sequence[Any], by_name: Mapping[str, Any]
    ) -> bool:
        passed = (
            dict(zip(read_arguments.shown, positional, strict=False)) if positional else by_name
        )
        missing = read_arguments.shown.keys() - passed.keys()
        if missing - (self._left_out - read_arguments.sent.keys()):
            return False
        values = {name: passed[name] for name in read_arguments.shown if name in passed}
        try:
            instance = read_arguments.made.model_copy(update=values)
            effective = self.node.check(instance, read_arguments.sent, None, Findings())
        except Differs:
            return False
        return canonical_bytes(effective) == canonical_bytes(read_arguments.shown)


def _key(tool: str, name: str, field: FieldInfo, config: ConfigDict) -> str:
    """Return the key under which a class reads a field. Raises DefinitionError."""
    alias = field.validation_alias
    if alias is None or config.get("validate_by_alias") is False:
        return name
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    steps = [choice.path if isinstance(choice, AliasPath) else [choice] for choice in choices]
    key = next((step for step, *below in steps if isinstance(step, str) and not below), None)
    if key is not None:
        return key
    if config.get("validate_by_name") or config.get("populate_by_name"):
        return name
    raise DefinitionError(
        f"tool '{tool}': its args_schema reads '{name}' only at an AliasPath, where no model "
        "would put it"
    )


def _adapter_by_own_names(model: type[BaseModel], adapter: Adapter) -> Adapter:
    """Return a reader of a class's fields by their own names. Nested fields keep their aliases."""
    if all(field.validation_alias is None for field in model.model_fields.values()):
        return adapter
    core = _without_aliases(adapter.core_schema, _shared_definitions(adapter.core_schema))
    return FlatAdapter(core, SchemaValidator(core, _use_prebuilt=False))


def _without_aliases(core: Any, shared: Mapping[str, Any]) -> Any:
    """Return a class's core schema without the aliases of its own fields, even if it refers to
    itself."""
    if core["type"] == "model-fields":
        fields = {
            name: {key: value for key, value in field.items() if key != "validation_alias"}
            for name, field in core["fields"].items()
        }
        return {**core, "fields": fields}
    if core["type"] == "definition-ref":
        return _without_aliases(shared[core["schema_ref"]], shared)
    copied = {key: value for key, value in core.items() if key != "ref"}
    return {**copied, "schema": _without_aliases(core["schema"], shared)}


def _shared_definitions(core: Any) -> Mapping[str, Any]:
    return {definition["ref"]: definition for definition in definitions_of(core)}


def _factory_fields(tool: str, core: Any) -> frozenset[str]:
    """Return the fields of a class in which a factory makes something, at any depth. Raises
    DefinitionError for a class without fields."""
    shared = _shared_definitions(core)
    while core["type"] != "model-fields":
        is_ref = core["type"] == "definition-ref"
        core = shared[core["schema_ref"]] if is_ref else core.get("schema")
        if not isinstance(core, dict):
            raise DefinitionError(NO_FIELDS.format(tool))
    shared_has_factory = holds_factory(list(shared.values()))
    return frozenset(
        name
        for name, field in core["fields"].items()
        if holds_factory(field)
        or (
            shared_has_factory
            and any(part["type"] == "definition-ref" for part in core_schemas(field))
        )
    )
