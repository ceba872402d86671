"""Questions about unparsed JSON text: is it an object, does it end too early.

Nothing here builds the value. Hydration does that, under its own limits.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NamedTuple

import jiter
import msgspec
import orjson

from toolcrib.errors import WireError
from toolcrib.values.json import refuse_constant, with_unique_keys

SPACE = " \t\r\n"
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CONTAINER_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_VALUE_DECODER = json.JSONDecoder()
_MAX_REPEATS = 64
LONGEST = 1_048_576
"""In characters. Calls with a longer text do not run, because hydration accepts at most 1 MiB, and
searching it for its end would block the event loop."""
_STRING_DECODER = msgspec.json.Decoder(str)
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE = re.compile(r'[^"\[\]{}]*+')
_EMPTY_FIRST = re.compile(r"(?:\s*\{\s*\})+\s*(?=\{)")


def is_object(text: str) -> bool:
    """Return whether the text is one complete JSON object."""
    try:
        _OBJECT_DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def is_readable_object(text: str) -> bool:
    """Return whether the text is one JSON object that every parser reads: its numbers fit a double."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


class Settled(NamedTuple):
    """The arguments of a call that was not cut.

    `notes` are those for the `ToolCall`. `same` is False if the text contains several objects that
    contradict each other.
    """

    text: str
    notes: tuple[str, ...] = ()
    same: bool = True


def settled(text: str) -> Settled:
    """Return the arguments of a call that was not cut: the text as sent, except for five known habits.

    No text and `null` become `{}` (Groq, OpenRouter). A JSON string that contains an object becomes
    that object. Empty objects before the real one are dropped (`{}{"a":1}`), and so are repetitions
    after it (Soju06/codex-lb#284).
    """
    stripped = text.strip(SPACE)
    if stripped in {"", "null"}:
        return Settled("{}", ("empty_arguments",))
    if stripped.startswith('"'):
        inner = _object_in_string(stripped)
        return Settled(text) if inner is None else Settled(inner, ("double_encoded",))
    if not stripped.startswith("{") or len(stripped) > LONGEST or is_object(stripped):
        return Settled(text)
    if (empties := _EMPTY_FIRST.match(stripped)) and is_object(stripped[empties.end() :]):
        return Settled(stripped[empties.end() :], ("empty_object_first",))
    objects = _consecutive_objects(stripped)
    if len(objects) < 2:
        return Settled(text)
    if all(same_json(objects[0], repeat) for repeat in objects[1:]):
        return Settled(objects[0], ("said_twice",))
    return Settled(text, same=False)


def _consecutive_objects(text: str) -> list[str]:
    """Return the consecutive JSON objects in a text; empty if it contains anything else."""
    objects: list[str] = []
    position = 0
    try:
        while position < len(text) and len(objects) < _MAX_REPEATS:
            if text[position] in SPACE:
                position += 1
                continue
            value, end = _VALUE_DECODER.raw_decode(text, position)
            if not isinstance(value, dict):
                return []
            objects.append(text[position:end])
            position = end
    except (ValueError, RecursionError):
        return []
    return objects if position == len(text) else []


def same_json(one: str, other: str) -> bool:
    """Return whether two texts are the same JSON: `1` and `1.0` are, `1` and `true` are not.

    A text that is not JSON, or that repeats a key, equals only itself. To compare many texts, compare
    their `json_key`, so that each is read once.
    """
    return one == other or json_key(one) == json_key(other)


def json_key(text: str) -> Hashable:
    """Return what is equal for two texts if they are the same JSON (`same_json`)."""
    try:
        return True, _frozen(_EXACT_DECODER.decode(text.strip(SPACE)))
    except (ValueError, ArithmeticError, RecursionError):
        return False, text


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return frozenset((key, _frozen(member)) for key, member in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return (bool, value) if isinstance(value, bool) else value  # True equals 1


class _RepeatedKeys(dict[str, Any]):
    """An object with a repeated key. `items` gives all its members, as they were written."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return list(self._pairs)


def _keeping_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _RepeatedKeys(pairs)


_EXACT_DECODER = json.JSONDecoder(
    parse_int=Decimal,
    parse_float=Decimal,
    parse_constant=refuse_constant,
    object_pairs_hook=with_unique_keys,
)


def _object_in_string(text: str) -> str | None:
    try:
        inner = _STRING_DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return inner if is_object(inner) else None


def ends_early(text: str) -> bool:
    """Return whether the text stops inside a string, an object or an array.

    A text that is too long to run, and not an object, counts as cut.
    """
    if is_object(text):
        return False
    if len(text) > LONGEST:
        return True
    balance = Balance()
    balance.scan(text)
    return balance.inside


def parsed(data: bytes) -> Any:
    """Parse JSON that strict parsers refuse (lone surrogates, NaN); None if it is not JSON at all.

    JavaScript servers cut a text between the halves of a surrogate pair and escape each half. An
    object with a repeated key still has both when `json.dumps` writes it, so that rewritten
    arguments are judged like those whose bytes could be kept.
    """
    try:
        return json.loads(data, object_pairs_hook=_keeping_repeated_keys)
    except (ValueError, RecursionError):
        return None


def check_keys(value: Any, data: bytes) -> None:
    """Raise ValueError if an object in a JSON text has a key twice; `value` is what orjson read.

    If the text of the value is the same, nothing was lost, and the slower parser is not needed.
    Raises TypeError for what is nested too deeply to be written.
    """
    if orjson.dumps(value) != data:
        jiter.from_json(data, catch_duplicate_keys=True)


_JUDGED_LATER = frozenset(("arguments", "args", "input"))
"""Where a call has its arguments, as an object. Hydration refuses a key that is there twice."""


def has_repeated_keys(value: Any) -> bool:
    """Return whether a `parsed` value has an object with a key twice, outside of arguments."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, _RepeatedKeys):
            return True
        if isinstance(value, dict):
            values += [item for key, item in value.items() if key not in _JUDGED_LATER]
        elif isinstance(value, list):
            values += value
    return False


def dumped(value: Any, what: str) -> str:
    """Write a value from JSON that strict parsers refuse as text. Raises WireError."""
    try:
        return json.dumps(value)
    except RecursionError:
        raise WireError(f"the {what} nested too deeply") from None


class RawJson(msgspec.Struct, eq=False):
    """One JSON text, from which arguments that come as a value are cut out.

    They are the original bytes. If strict parsers refuse the JSON around them, such as half a
    surrogate pair, they are written anew, with every key. Each holder is read once.
    """

    data: bytes
    _members_by_path: dict[tuple[str | int, ...], Any] = {}
    _parsed: Any = msgspec.UNSET

    def text(self, path: tuple[str | int, ...], value: Any, error_message: str) -> str:
        """Return what is at a path; `null` if its last member is not there.

        `value` is its parsed form, for a list of one object that counts as that object. Raises
        WireError with `error_message` for what is nested too deeply, and where `value` is None.
        """
        try:
            return bytes(self._members(path[:-1]).get(path[-1], b"null")).decode()
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            pass
        try:
            if self._parsed is msgspec.UNSET:
                self._parsed = parsed(self.data)
            original = self._parsed
            for key in path:
                original = original[key]
        except (LookupError, TypeError):
            original = value
        if original is None:
            raise WireError(error_message)
        try:
            return json.dumps(original)
        except RecursionError:
            raise WireError(error_message) from None

    def _members(self, path: tuple[str | int, ...]) -> Any:
        """Return the members of the object at a path, or the items of a list, as their bytes."""
        if path not in self._members_by_path:
            data = self._members(path[:-1])[path[-1]] if path else self.data
            self._members_by_path[path] = _CONTAINER_DECODER.decode(data)
        return self._members_by_path[path]


def mended(text: str) -> str:
    """Return text that can be encoded: split surrogate pairs joined, lone surrogates replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def paired(text: str) -> str:
    """Return text with split surrogate pairs joined. Lone surrogates stay."""
    if is_encodable(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def is_encodable(text: str) -> bool:
    """Return whether a text has no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str | None:
    """Return arguments that can be encoded, with halves of surrogate pairs as escapes.

    Strict parsers refuse these escapes. Return None if such an escape would be read as something
    else.
    """
    if _ESCAPED_HALF.search(text):
        return None
    return text.encode("utf-8", "backslashreplace").decode()


_ESCAPED_HALF = re.compile(r"\\[\ud800-\udfff]")
_MAX_DEPTH = 100


def savable(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a provider's JSON in a form that can be saved and sent: all its strings can be encoded.

    Raises ValueError for numbers that are not finite or larger than a float, for keys that would
    become equal, and for more than 100 levels.
    """
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, int | float):
        if not abs(value) <= sys.float_info.max:  # catches NaN, too
            raise ValueError("it has a number that is not finite")
        return value
    if value is None:
        return None
    if not depth:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [savable(item, depth - 1) for item in value]
    members = {mended(name): savable(value[name], depth - 1) for name in value}
    if len(members) < len(value):
        raise ValueError("two of its keys would become the same")
    return members


class Balance:
    """Counts brackets over fragments. Each is scanned once, so that asking costs only what is
    new."""

    __slots__ = ("_depth", "_escaped", "_opened", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._opened = self._quoted = self._escaped = False

    @property
    def inside(self) -> bool:
        return self._quoted or self._depth > 0

    @property
    def whole(self) -> bool:
        """Whether at least one bracket or string was opened, and all are closed."""
        return self._opened and not self.inside

    def scan(self, text: str) -> None:
        position, end = (1 if self._escaped and text else 0), len(text)
        self._escaped = self._escaped and not text
        while position < end:
            pattern = _IN_STRING if self._quoted else _OUTSIDE
            match = pattern.match(text, position)
            position = match.end() if match else position
            if position >= end:
                return
            char = text[position]
            position += 1
            if char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = not self._quoted
                self._opened = True
            else:
                self._depth += 1 if char in "[{" else -1
                self._opened = True
