"""A validator that is compiled at its first use; its schema is checked now.

It fails closed: one that turns out not to compile finds every value invalid, and says why.
"""

from __future__ import annotations

from threading import Lock

from toolcrib.errors import SchemaError
from toolcrib.schema.foreign import made_by
from toolcrib.schema.guard import inspect_schema
from toolcrib.schema.shape import schema_text
from toolcrib.schema.validator import (
    Validator,
    ValidatorFactory,
    Violation,
    check_keywords,
    compile_validator,
)
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonObject, json_copy

_UNUSABLE = Violation("", "$schema", "the tool's own schema cannot be used")


class LazyValidator:
    """Compiles `schema` with `factory` once, whichever thread comes first.

    Raises SchemaError at once for a schema that `check_schema` refuses, or whose keywords are not of
    their form. `error` is why it could not be compiled, once that was tried.
    """

    __slots__ = ("_factory", "_lock", "_made", "_text", "error")

    def __init__(self, schema: JsonObject, factory: ValidatorFactory = compile_validator) -> None:
        self._text = schema_text(schema)
        copy = json_copy(self._text)
        check_keywords(copy, inspect_schema(copy))
        self._factory = factory
        self._lock = Lock()
        self._made: Validator | None = None
        self.error: SchemaError | None = None

    @property
    def info(self) -> ValidatorInfo:
        """That of the compiled validator, which is compiled for it; `unusable` if it cannot be."""
        made = self._compiled() if self._made is None else self._made
        return ValidatorInfo("unusable", "", 0.0) if made is None else made.info

    def is_valid(self, value: object, /) -> bool:
        made = self._compiled() if self._made is None else self._made
        return made is not None and made.is_valid(value)

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        made = self._compiled() if self._made is None else self._made
        return (_UNUSABLE,) if made is None else made.violations(value)

    def _compiled(self) -> Validator | None:
        with self._lock:
            if self._made is None and self.error is None:
                try:
                    self._made = made_by(self._factory, json_copy(self._text))
                except SchemaError as error:
                    self.error = error
                except Exception as error:  # noqa: BLE001  a factory of others; it fails closed
                    self.error = SchemaError(f"no validator can be made ({type(error).__name__})")
            return self._made
