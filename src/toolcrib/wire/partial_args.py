"""Assemble the arguments of a call that Gemini streams value by value into one JSON object.

Each value comes with its place, a path such as `$.stops[0].city`; a string may come in several
pieces. The model's own text cannot be kept here, because the server sends values. An impossible
place is a WireError, since guessed arguments must not run. Shapes:
https://docs.cloud.google.com/vertex-ai/generative-ai/docs/reference/rest/v1beta1/Content#PartialArg
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolcrib.errors import WireError
from toolcrib.wire.json_text import is_encodable, paired

_PATH_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+)|\[(?P<index>\d{1,9})\]"""
    r"""|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_JSON_ESCAPES = {"\\'": "'", '"': r"\""}
"""Escapes that a quoted name of a path may contain and JSON does not have, as JSON writes them."""
_MAX_DEPTH = 64
_VALUE_TYPES = {
    "stringValue": (str,),
    "numberValue": (int, float),
    "boolValue": (bool,),
    "nullValue": (str, int),  # the name of an enum's only value, or its number
}
_KNOWN_MEMBERS = _VALUE_TYPES.keys() | {"jsonPath", "willContinue"}


class _GrowingText:
    """A string that may still grow."""

    __slots__ = ("is_growing", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_growing = True


class PartialArguments:
    """The values so far.

    `is_whole` says that every string in them has come to its end, `is_contradictory` that a place was
    given two different values.
    """

    def __init__(self) -> None:
        self.is_contradictory = False
        self._root: dict[str, Any] = {}
        self._growing = 0

    @property
    def has_values(self) -> bool:
        """Whether there were values at all."""
        return bool(self._root)

    @property
    def is_whole(self) -> bool:
        return self._growing == 0

    def add(self, pieces: list[Any]) -> None:
        """Take the `partialArgs` of one piece. Raises WireError for a value without a place."""
        for piece in pieces:
            if not isinstance(piece, dict):
                raise WireError("a partial argument is not an object")
            self._add(piece)

    def text(self) -> str:
        """Return all of it as JSON. Half of a surrogate pair is an escape, which strict parsers refuse:
        replaced, it would be another argument, or another name."""
        value = _plain_value(self._root)
        text = json.dumps(value, ensure_ascii=False)
        return text if is_encodable(text) else json.dumps(value)

    def _add(self, piece: dict[str, Any]) -> None:
        *parents, last = _steps(piece.get("jsonPath"))
        holder: Any = self._root
        for step, next_step in zip(parents, [*parents, last][1:], strict=True):
            if _is_new(holder, step):
                _put(holder, step, [] if isinstance(next_step, int) else {})
            holder = holder[step]
        self.is_contradictory |= any(
            piece[key] is not None for key in piece.keys() - _KNOWN_MEMBERS
        )
        value = _value_in(piece)
        if not isinstance(value, str):
            self._set_value(holder, last, value)
            return
        text = None if _is_new(holder, last) else holder[last]
        if isinstance(text, _GrowingText) and not text.is_growing and not piece.get("willContinue"):
            self.is_contradictory |= "".join(text.pieces) != value
            return
        if not isinstance(text, _GrowingText) or not text.is_growing:
            self.is_contradictory |= text is not None or not _is_new(holder, last)
            _put(holder, last, text := _GrowingText())
            self._growing += 1
        text.pieces.append(value)
        if not piece.get("willContinue"):
            text.pieces = ["".join(text.pieces)]  # for any further value of this place
            text.is_growing = False
            self._growing -= 1

    def _set_value(self, holder: Any, step: str | int, value: Any) -> None:
        """Give a place its value, which must not differ from an earlier one."""
        if not _is_new(holder, step):
            previous = holder[step]
            self.is_contradictory |= type(previous) is not type(value) or previous != value
        _put(holder, step, value)


def _steps(path: Any) -> list[str | int]:
    if not isinstance(path, str) or not path.startswith("$"):
        raise WireError("a partial argument has no path")
    steps: list[str | int] = []
    position = 1
    while position < len(path):
        match = _PATH_STEP.match(path, position)
        if match is None or len(steps) == _MAX_DEPTH:
            raise WireError("a partial argument has a path that cannot be read")
        name, index, single, double = match.group("name", "index", "single", "double")
        quoted = single if double is None else double
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if quoted is None else _unquoted(quoted))
        position = match.end()
    if not steps:
        raise WireError("a partial argument has the path of all arguments together")
    return steps


def _unquoted(quoted: str) -> str:
    """Return a name without its quotes: RFC 9535 has JSON's escapes, and one for `'`."""
    text = _ESCAPE_OR_QUOTE.sub(lambda match: _JSON_ESCAPES.get(match[0], match[0]), quoted)
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        raise WireError("a partial argument has a path that cannot be read") from None


def _is_new(holder: Any, step: str | int) -> bool:
    """Return whether nothing is at that place yet. Raises WireError if there is no such place."""
    if isinstance(holder, dict) and isinstance(step, str):
        return step not in holder
    if isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        return step == len(holder)
    raise WireError("a partial argument has a path that does not fit the earlier ones")


def _put(holder: Any, step: str | int, value: Any) -> None:
    if _is_new(holder, step) and isinstance(step, int):
        holder.append(value)
    else:
        holder[step] = value


def _value_in(piece: dict[str, Any]) -> Any:
    """Return what a piece carries: one value, of the type that its member names.

    There may be further members that are null, since some servers write them all.
    """
    values = {key: piece[key] for key in _VALUE_TYPES if piece.get(key) is not None}
    if not values and "nullValue" in piece:
        return None  # as protobuf writes it
    if len(values) != 1:
        raise WireError("a partial argument does not have one value")
    ((kind, value),) = values.items()
    if type(value) not in _VALUE_TYPES[kind]:
        raise WireError("a partial argument has a value of a different type than it declares")
    return None if kind == "nullValue" else value


def _plain_value(value: Any) -> Any:
    if isinstance(value, _GrowingText):
        return paired("".join(value.pieces))
    if isinstance(value, dict):
        return {paired(key): _plain_value(item) for key, item in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, list) else value
