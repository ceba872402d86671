"""Of arguments that stream, the public ones: declared members of the top-level object, nothing else.

What has come so far is a prefix of one JSON object (RFC 8259), or nothing more shows from the first
character on that cannot be part of one. Each character is looked at a bounded number of times,
however the text is split, by regular expressions that take long runs at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Self

import orjson

from toolcrib.values.definition import ToolDefinition

_LONGEST = 1_000  # characters of a number; of an escape there are 12 at most
_SPACE = r"[ \t\n\r]*+"
_HEX = "[0-9A-Fa-f]"
_ESCAPE = (
    rf'\\(?:["\\/bfnrt]|u(?:[0-9A-CEFa-cef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}}'
    rf"|[Dd][89ABab]{_HEX}{{2}}\\u[Dd][C-Fc-f]{_HEX}{{2}}))"  # no half of a surrogate pair
)
_INSIDE = rf'(?:[^"\\\x00-\x1f\ud800-\udfff]++|{_ESCAPE})*+'
_SCALAR = r"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|true|false|null)"
_PLAIN = rf'(?:"{_INSIDE}"|{_SCALAR})'
_ITEMS = rf"(?:{_SPACE}{_PLAIN}{_SPACE},)*+"
_MEMBERS = rf'(?:{_SPACE}"{_INSIDE}"{_SPACE}:{_SPACE}{_PLAIN}{_SPACE},)*+'
_VALUE = rf'(?P<text>")|(?P<open>[\[{{])|(?P<scalar>{_SCALAR})(?=[ \t\n\r,\]}}])'
_KEY = '(?P<key>")'


def _state(tokens: str, run: str = "") -> re.Pattern[str]:
    """What may come: a run of what needs no look, white space, one token; each of them or none."""
    return re.compile(rf"{run}{_SPACE}(?:{tokens})?+")


_BEGIN: Final = _state(r"(?P<open>\{)")
_FIRST_KEY: Final = _state(_KEY + r"|(?P<close>\})")
_TOP_KEY: Final = _state(_KEY)
_INNER_KEY: Final = _state(_KEY, run=_MEMBERS)
_COLON: Final = _state("(?P<colon>:)")
_OF_MEMBER: Final = _state(_VALUE)
_FIRST_ITEM: Final = _state(_VALUE + r"|(?P<close>\])")
_ITEM: Final = _state(_VALUE, run=_ITEMS)
_AFTER: Final = _state(r"(?P<comma>,)|(?P<close>[\]}])")
_TEXT: Final = re.compile(f'{_INSIDE}(?P<end>")?+')
_OVER: Final = re.compile(".++", re.DOTALL)


class PublicText:
    """The public part of one call's arguments: `feed` it the pieces of their text, in order.

    What it gives is, put together, the text of an object with the `declared` members alone. A number
    is given when it is known to be whole.
    """

    __slots__ = ("_closers", "_comma", "_declared", "_held", "_key", "_shown", "_state", "_then")

    def __init__(self, declared: Collection[str]) -> None:
        self._declared = declared
        self._state = _BEGIN
        self._then = _AFTER  # the state when a text has ended
        self._closers: list[str] = []
        self._held = ""  # the beginning of an escape, a number or a word; or what is malformed
        self._key: list[str] = []  # the pieces of a member's name, while it is read
        self._shown = False
        self._comma = ""

    @classmethod
    def of(cls, definition: ToolDefinition) -> Self:
        """For the arguments of a tool; without a schema nothing is declared."""
        properties = (definition.input_schema or {}).get("properties")
        return cls(frozenset(properties if isinstance(properties, dict) else ()))

    def feed(self, piece: str) -> str:
        """What shows of it, and of what had to wait for it."""
        text = self._held + piece
        shown: list[str] = []
        at, length = 0, len(text)
        while at < length:
            found = self._state.match(text, at)
            end = at if found is None else found.end()
            if found is None or end == at:
                break
            shown.append(self._take(found.lastgroup, text[at:end]))
            at = end
        self._held = text[at:]
        if length - at > _LONGEST:
            self._state, self._shown, self._held = _OVER, False, ""
        return "".join(shown)

    def _take(self, token: str | None, text: str) -> str:
        """Go on by `text`, which ends in the token; what shows of it."""
        if self._key:
            return self._take_key(token, text)
        is_top = len(self._closers) == 1
        match token:
            case None if is_top and self._state is _AFTER:
                return ""  # white space between members, however it is split
            case "text":
                self._state, self._then = _TEXT, _AFTER
            case "key":
                self._state, self._then = _TEXT, _COLON
                self._key = ['"'] if is_top else []
            case "end":
                self._state = self._then
            case "colon":
                self._state = _OF_MEMBER
            case "scalar":
                self._state = _AFTER
            case "open":
                return self._opened(text)
            case "close":
                return self._closed(text)
            case "comma" if is_top:
                self._state, self._shown = _TOP_KEY, False
            case "comma":
                self._state = _INNER_KEY if self._closers[-1] == "}" else _ITEM
        return text if self._shown else ""

    def _take_key(self, token: str | None, text: str) -> str:
        """The name of a member: shown only when it is whole, and known to be declared."""
        self._key.append(text)
        if token is None:
            return ""
        name, self._key, self._state = "".join(self._key), [], _COLON
        self._shown = orjson.loads(name) in self._declared
        if not self._shown:
            return ""
        comma, self._comma = self._comma, ","
        return comma + name

    def _opened(self, text: str) -> str:
        is_object = text[-1] == "{"
        self._state = _FIRST_KEY if is_object else _FIRST_ITEM
        self._closers.append("}" if is_object else "]")
        return text if self._shown else "{" if len(self._closers) == 1 else ""

    def _closed(self, text: str) -> str:
        if self._closers.pop() != text[-1]:
            self._state, self._shown = _OVER, False
            return ""
        if self._closers:
            self._state = _AFTER
            return text if self._shown else ""
        self._state, self._shown = _OVER, False
        return "}"
