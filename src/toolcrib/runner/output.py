"""From what a tool returned to checked JSON and its views. Nothing of a bad result is passed on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import orjson
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from toolcrib.errors import ErrorCode
from toolcrib.runner.recorder import Draft
from toolcrib.runner.redact import project, redaction_missing
from toolcrib.runner.stopped import NOT_ITS_OWN
from toolcrib.tools import Tool
from toolcrib.values.definition import ALL, ToolDefinition
from toolcrib.values.json import JsonValue
from toolcrib.values.record import CallError, Completed, Failed

MAX_RESULT_BYTES = 4 * 1_048_576
_PLAIN = frozenset((dict, list, str, int, float, bool))  # what nearly all results are
_NOTHING_CONVERTED = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_WRONG = (PydanticSerializationError, ValueError, TypeError, RecursionError)


class Unusable(Exception):  # noqa: N818  an outcome; it never leaves the runner
    """What a tool gave is no result, or no part of one. `why` is a sentence of our own."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    @property
    def error(self) -> CallError:
        text = f"The tool ran, but gave a result that cannot be used: {self.why}."
        return CallError.of(ErrorCode.INVALID_OUTPUT, text)


_NO_JSON = Unusable("it is not JSON")


def check_output(
    tool: Tool[..., Any], value: object, max_bytes: int = MAX_RESULT_BYTES
) -> tuple[JsonValue, CallError | None]:
    """The result as JSON, valid by the output schema; or `invalid_output`, saying what is wrong."""
    try:
        plain = _as_it_is(value, max_bytes) if value.__class__ in _PLAIN else None
        if plain is None and value is not None:
            plain = read_json(json_text(value, max_bytes))
    except Unusable as unusable:
        return None, unusable.error
    except NOT_ITS_OWN:
        raise
    except BaseException:  # noqa: BLE001  to look at a value may be to run an author's code
        return None, _NO_JSON.error
    validator = tool.output_validator
    if validator is not None and not validator.is_valid(plain):
        found = validator.violations(plain)
        where = f"{found[0].path or 'the top'}: {found[0].message}" if found else "it is invalid"
        return None, Unusable(where).error
    return plain, None


def _as_it_is(value: Any, max_bytes: int) -> JsonValue:
    """A copy of what is JSON already, as nearly all results are; None where that is not sure.

    What was written and read, and is equal to what it was, has lost nothing: NaN would be null, and a
    tuple a list.
    """
    try:
        text = orjson.dumps(value, None, _NOTHING_CONVERTED)
    except TypeError:
        return None
    copy: JsonValue = orjson.loads(text)
    return copy if copy == value and len(text) <= max_bytes else None


def outcome_of(
    draft: Draft, tool: Tool[..., Any], value: Any, max_bytes: int
) -> Completed | Failed:
    """What comes of a call that gave `value`; it is looked at once, for it may be used up then."""
    plain, error = check_output(tool, value, max_bytes)
    if error is not None:
        return draft.failed(error)
    model, public, error = views(tool.definition, plain)
    record = draft.record("completed", public, error)
    return Completed(record, value, model, public, draft.notice() if draft.edited else "")


def views(
    definition: ToolDefinition, plain: JsonValue
) -> tuple[JsonValue, JsonValue, CallError | None]:
    """The model's view of a result, the public one, and `redaction_missing` if nobody named any."""
    model = public = plain
    error = None
    if definition.model_visible is not ALL:
        model = project(plain, definition.model_visible)
    if definition.visible is not ALL:
        public = project(plain, definition.visible)
        if redaction_missing(plain, definition.visible):
            error = CallError.of(ErrorCode.REDACTION_MISSING)
    return model, public, error


def as_json(value: object, max_bytes: int) -> JsonValue:
    """The value as JSON has it. Raises Unusable if it is none, or longer than that."""
    if value is None or isinstance(value, bool):
        return value
    return read_json(json_text(value, max_bytes))


def json_text(value: object, max_bytes: int) -> bytes:
    """Raises Unusable; NaN and infinities are found by `read_json`."""
    if value.__class__ not in _PLAIN and isinstance(value, Iterator | AsyncIterator):
        raise Unusable("it is an iterator, and has no end that is known")
    try:
        text = to_json(value, inf_nan_mode="constants", fallback=_plain)
    except _WRONG:
        raise Unusable("it is not JSON") from None
    if len(text) > max_bytes:
        raise too_large(max_bytes)
    return text


def _plain(value: object) -> object:
    """A struct of msgspec, also one that holds what pydantic knows."""
    return msgspec.to_builtins(value, enc_hook=to_jsonable_python)


def read_json(text: bytes | bytearray) -> JsonValue:
    """Raises Unusable."""
    try:
        plain: JsonValue = from_json(text, allow_inf_nan=False)
    except _WRONG:
        raise Unusable("it is not JSON") from None
    return plain


def too_large(max_bytes: int) -> Unusable:
    return Unusable(f"it is larger than {max_bytes} bytes")
