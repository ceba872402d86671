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
from toolcrib.wire.json_text import mended

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+)|\[(?P<index>\d{1,9})\]"""
    r"""|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_QUOTED = re.compile(r'\\.|"', re.DOTALL)
_IN_JSON = {"\\'": "'", '"': r"\""}
"""Escapes that a quoted name of a path may contain and JSON does not have, as JSON writes them."""
_DEEPEST = 64
_VALUES = {
    "stringValue": (str,),
    "numberValue": (int, float),
    "boolValue": (bool,),
    "nullValue": (str, int),  # the name of an enum's only value, or its number
}
_OF_VALUE = _VALUES.keys() | {"jsonPath", "willContinue"}


class _GrowingText:
    """A string that may still grow."""

    __slots__ = ("grows", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.grows = True


class PartialArguments:
    """The values so far.

    `whole` says that every string in them has come to its end, `contradictory` that a place was
    given two different values.
    """

    def __init__(self) -> None:
        self.contradictory = False
        self._root: dict[str, Any] = {}
        self._growing = 0

    @property
    def any(self) -> bool:
        """Whether there were values at all."""
        return bool(self._root)

    @property
    def whole(self) -> bool:
        return self._growing == 0

    def add(self, values: list[Any]) -> None:
        """Take the `partialArgs` of one piece. Raises WireError for a value without a place."""
        for value in values:
            if not isinstance(value, dict):
                raise WireError("a partial argument is not an object")
            self._add(value)

    def text(self) -> str:
        return json.dumps(_settled(self._root), ensure_ascii=False)

    def _add(self, value: dict[str, Any]) -> None:
        *way, last = _steps(value.get("jsonPath"))
        holder: Any = self._root
        for step, after in zip(way, [*way, last][1:], strict=True):
            if _is_new(holder, step):
                _put(holder, step, [] if isinstance(after, int) else {})
            holder = holder[step]
        self.contradictory |= any(value[key] is not None for key in value.keys() - _OF_VALUE)
        said = _said_by(value)
        if not isinstance(said, str):
            self._settle(holder, last, said)
            return
        text = None if _is_new(holder, last) else holder[last]
        if isinstance(text, _GrowingText) and not text.grows and not value.get("willContinue"):
            self.contradictory |= "".join(text.pieces) != said
            return
        if not isinstance(text, _GrowingText) or not text.grows:
            self.contradictory |= text is not None or not _is_new(holder, last)
            _put(holder, last, text := _GrowingText())
            self._growing += 1
        text.pieces.append(said)
        if not value.get("willContinue"):
            text.grows = False
            self._growing -= 1

    def _settle(self, holder: Any, step: str | int, value: Any) -> None:
        """Give a place its value, which must not differ from an earlier one."""
        if not _is_new(holder, step):
            before = holder[step]
            self.contradictory |= type(before) is not type(value) or before != value
        _put(holder, step, value)


def _steps(path: Any) -> list[str | int]:
    if not isinstance(path, str) or not path.startswith("$"):
        raise WireError("a partial argument has no path")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or len(steps) == _DEEPEST:
            raise WireError("a partial argument has a path that cannot be read")
        name, index, single, double = found.group("name", "index", "single", "double")
        quoted = single if double is None else double
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if quoted is None else _unquoted(quoted))
        at = found.end()
    if not steps:
        raise WireError("a partial argument has the path of all arguments together")
    return steps


def _unquoted(quoted: str) -> str:
    """Return a name without its quotes: RFC 9535 has JSON's escapes, and one for `'`."""
    text = _QUOTED.sub(lambda found: _IN_JSON.get(found[0], found[0]), quoted)
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


def _said_by(value: dict[str, Any]) -> Any:
    """Return what a piece carries: one value, of the type that its member names.

    There may be further members that are null, since some servers write them all.
    """
    given = {key: value[key] for key in _VALUES if value.get(key) is not None}
    if not given and "nullValue" in value:
        return None  # as protobuf writes it
    if len(given) != 1:
        raise WireError("a partial argument does not have one value")
    ((kind, said),) = given.items()
    if type(said) not in _VALUES[kind]:
        raise WireError("a partial argument has a value of a different type than it declares")
    return None if kind == "nullValue" else said


def _settled(value: Any) -> Any:
    if isinstance(value, _GrowingText):
        return mended("".join(value.pieces))
    if isinstance(value, dict):
        return {mended(key): _settled(item) for key, item in value.items()}
    return [_settled(item) for item in value] if isinstance(value, list) else value
