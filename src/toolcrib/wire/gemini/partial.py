"""Arguments of a call that Gemini streams value by value, put together to one JSON object.

Each value comes with its place, a path such as `$.stops[0].city`; a text may come in several pieces.
There is no text of the model's own to keep here: what it sent is values. A place that cannot be is a
WireError, since arguments that were guessed at must not run.
Shapes: https://docs.cloud.google.com/vertex-ai/generative-ai/docs/reference/rest/v1beta1/Content#PartialArg
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
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_DEEPEST = 64
_VALUES = ("stringValue", "numberValue", "boolValue")


class _Text:
    """A text that may still grow."""

    __slots__ = ("grows", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.grows = True


class PartialArguments:
    """The values so far. `whole` is whether every text in them has come to its end, `contradictory`
    whether a place was given two values."""

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

    def add(self, values: Any) -> None:
        """Take the `partialArgs` of one piece. Raises WireError for what has no place."""
        for value in values if isinstance(values, list) else [values]:
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
        if not isinstance(value.get("stringValue"), str):
            self._settle(holder, last, _scalar(value))
            return
        text = None if _is_new(holder, last) else holder[last]
        if isinstance(text, _Text) and not text.grows and not value.get("willContinue"):
            self.contradictory |= "".join(text.pieces) != value["stringValue"]
            return
        if not isinstance(text, _Text) or not text.grows:
            self.contradictory |= text is not None or not _is_new(holder, last)
            _put(holder, last, text := _Text())
            self._growing += 1
        text.pieces.append(value["stringValue"])
        if not value.get("willContinue"):
            text.grows = False
            self._growing -= 1

    def _settle(self, holder: Any, step: str | int, value: Any) -> None:
        """Give a place its value, which cannot be another one than it had."""
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
            steps.append(name if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = found.end()
    if not steps:
        raise WireError("a partial argument has the path of the whole")
    return steps


def _is_new(holder: Any, step: str | int) -> bool:
    """Whether nothing is at that place yet. Raises WireError if it is none."""
    if isinstance(holder, dict) and isinstance(step, str):
        return step not in holder
    if isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        return step == len(holder)
    raise WireError("a partial argument has a place that cannot be")


def _put(holder: Any, step: str | int, value: Any) -> None:
    if _is_new(holder, step) and isinstance(step, int):
        holder.append(value)
    else:
        holder[step] = value


def _scalar(value: dict[str, Any]) -> Any:
    if "nullValue" in value:
        return None
    found = next((value[key] for key in _VALUES if key in value), "")
    if not isinstance(found, bool | int | float):
        raise WireError("a partial argument has no value")
    return found


def _settled(value: Any) -> Any:
    if isinstance(value, _Text):
        return mended("".join(value.pieces))
    if isinstance(value, dict):
        return {mended(key): _settled(item) for key, item in value.items()}
    return [_settled(item) for item in value] if isinstance(value, list) else value
