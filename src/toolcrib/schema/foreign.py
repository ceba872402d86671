"""Validators of other makes, held to what the protocol promises: they judge, and never raise.

They fail closed: where one raises, or answers anything but True, the value is not valid.
"""

from __future__ import annotations

from toolcrib.schema.validator import (
    MAX_VIOLATIONS,
    JsonSchemaValidator,
    Validator,
    ValidatorFactory,
    Violation,
)
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonObject

_FAILED = Violation("", "$schema", "the validator failed, so the value cannot be checked")


class ForeignValidator:
    """A validator of others. Its `info` is read now, once."""

    __slots__ = ("_made", "info")

    def __init__(self, made: Validator) -> None:
        self._made = made
        self.info: ValidatorInfo = made.info

    def is_valid(self, value: object, /) -> bool:
        try:
            return self._made.is_valid(value) is True
        except Exception:  # noqa: BLE001  code of others; its text may repeat the value
            return False

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        try:
            found = tuple(self._made.violations(value))[:MAX_VIOLATIONS]
            return tuple(Violation(str(path), str(word), str(text)) for path, word, text in found)
        except Exception:  # noqa: BLE001  likewise
            return (_FAILED,)


def made_by(factory: ValidatorFactory, schema: JsonObject) -> Validator:
    """What a factory makes of a schema. Raises whatever the factory raises."""
    made = factory(schema)
    return made if isinstance(made, JsonSchemaValidator) else ForeignValidator(made)
