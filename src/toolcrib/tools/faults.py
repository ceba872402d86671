"""Valid arguments that an author's own hints refuse: where and of what kind, never their text."""

from __future__ import annotations

from typing import TypeAlias, get_args

from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

_KINDS = frozenset(get_args(ErrorType))
Fault: TypeAlias = tuple[tuple[int | str, ...], str]


class NotAcceptedError(Exception):
    """Valid by the schema, but not what the author's hints promise: where, and safe text."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("arguments not accepted")
        self.faults = faults


def value_faults(error: ValidationError, *prefix: str | int) -> tuple[Fault, ...]:
    """The places and kinds of a pydantic error, without its text: that repeats the value.

    A kind of the author's own is not shown: it is text that may be made of anything.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return tuple(
        (
            (*prefix, *fault["loc"]),
            f"the tool does not accept this value ({kind if kind in _KINDS else 'custom'})",
        )
        for fault in found
        for kind in (fault["type"],)
    )
