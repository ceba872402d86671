"""The arguments of a LangChain tool, read by its own class before anybody decides on them.

Rule: what is decided on is what runs. LangChain validates arguments inside of the call, where its class
adds defaults and its validators change values, unseen. So the class reads them here first, strictly, as
any model of a tool's; and what LangChain then makes of what was sent has to be the same values.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from toolcrib.errors import ToolError
from toolcrib.schema.derive.adapters import adapter_for
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.reading import TypedReader
from toolcrib.schema.derive.roundtrip import At, Differs, Findings
from toolcrib.schema.derive.unions import bounded
from toolcrib.tools.component import value_faults
from toolcrib.values.json import JsonObject, JsonValue, Veiled, canonical_bytes

_OTHER_VALUES = (
    "The tool did not run: LangChain makes other values of these arguments than were decided on."
)


class ReadArguments(Veiled, msgspec.Struct, frozen=True):
    """Holds what was sent, the instance that it was read as, and the effective arguments."""

    veiled: ClassVar[tuple[str, ...]] = ("sent", "made", "shown")

    sent: JsonObject
    made: BaseModel
    shown: JsonObject


class ArgsReader(TypedReader):
    """Reads arguments by `model`, which has no field that is injected. `validating` is the class by
    which LangChain validates them in the call; None where it passes them on as they are."""

    __slots__ = ("_model", "_validating")

    def __init__(
        self, tool: str, model: type[BaseModel], validating: type[BaseModel] | None
    ) -> None:
        adapter = bounded(adapter_for(model, f"tool '{tool}': its args_schema"))
        super().__init__(adapter.core_schema, adapter.validator.validate_json)
        self._model = model
        self._validating = validating

    def read(
        self, sent: JsonValue, at: At, found: Findings, values: FactoryValues | None = None
    ) -> tuple[Any, JsonValue]:
        made, shown = super().read(sent, at, found, values)
        assert isinstance(sent, dict)  # noqa: S101  the schema says so
        assert isinstance(shown, dict)  # noqa: S101
        return ReadArguments(sent, made, shown), shown

    def passed_on(self, read: ReadArguments, injected: Mapping[str, Any]) -> dict[str, Any]:
        """Return what LangChain is given, of which it makes what was decided on. Raises ToolError where
        its class refuses that, or makes something else of it."""
        if self._validating is None:  # its defaults are the function's own
            shown = {name: read.shown[name] for name in read.sent if name in read.shown}
            return {**shown, **injected}
        try:
            validated = self._validating.model_validate({**self._as_sent(read), **injected})
        except ValidationError as error:
            raise _refused(error, injected) from error
        if not self._holds(read, validated):
            raise ToolError(_OTHER_VALUES)
        return {**self._as_sent(read), **injected}

    def _as_sent(self, read: ReadArguments) -> dict[str, Any]:
        """Return what was sent; of a class with default factories what it made, as they run once."""
        if not self.has_factories:
            return copy.deepcopy(read.sent)
        fields = self._model.model_fields.items()
        made = {_key(name, field): getattr(read.made, name) for name, field in fields}
        return {**made, **(read.made.model_extra or {})}

    def _holds(self, read: ReadArguments, validated: BaseModel) -> bool:
        """Return whether these are the values that were decided on."""
        if validated.__class__ is not self._model:
            values = {name: getattr(validated, name) for name in self._model.model_fields}
            validated = self._model.model_construct(**values)
        try:
            shown = self.node.check(validated, read.sent, None, Findings())
        except Differs:
            return False
        return canonical_bytes(shown) == canonical_bytes(read.shown)


def _key(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return alias if isinstance(alias, str) else name


def _refused(error: ValidationError, injected: Mapping[str, Any]) -> Exception:
    """Return what the model is told: where and of what kind, since pydantic's text repeats the value.
    What was injected is no fault of the model's."""
    faults = value_faults(error)
    if any(where[:1] and where[0] in injected for where, _ in faults):
        return error
    places = (f"/{'/'.join(map(str, where))}: {what}" for where, what in faults)
    return ToolError(f"The tool does not take these arguments: {'; '.join(places)}", retryable=True)
