"""From what a tool returned to a checked JSON value. Nothing of a bad result is passed on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic_core import PydanticSerializationError, from_json, to_json

from toolcrib.errors import ErrorCode
from toolcrib.tools import Tool
from toolcrib.values.json import JsonValue
from toolcrib.values.record import CallError

MAX_RESULT_BYTES = 4 * 1_048_576


def check_output(tool: Tool[..., Any], value: object) -> tuple[JsonValue, CallError | None]:
    """The result as JSON, valid by the output schema; or `invalid_output`, saying what is wrong."""
    if value is None or isinstance(value, bool):
        plain: JsonValue = value
    else:
        if isinstance(value, Iterator):
            return None, _invalid("it is an iterator, and has no end that is known")
        try:
            text = to_json(value, inf_nan_mode="constants", fallback=msgspec.to_builtins)
            if len(text) > MAX_RESULT_BYTES:
                return None, _invalid(f"it is larger than {MAX_RESULT_BYTES} bytes")
            plain = from_json(text, allow_inf_nan=False)
        except (PydanticSerializationError, ValueError, TypeError, RecursionError):
            return None, _invalid("it is not JSON")
    validator = tool.output_validator
    if validator is not None and not validator.is_valid(plain):
        found = validator.violations(plain)
        where = f"{found[0].path or 'the top'}: {found[0].message}" if found else "it is invalid"
        return None, _invalid(where)
    return plain, None


def _invalid(why: str) -> CallError:
    return CallError.of(
        ErrorCode.INVALID_OUTPUT, f"The tool gave a result that cannot be used: {why}."
    )
