"""What a scorer reads: plain words, out of any request and any definition.

Rule: nothing here fails on what it is given. Every text is cut to a fixed length first, so hostile
input costs no more than a long honest one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue, encodable

MAX_CHARS = 16_384
_MAX_WORD = 64
_MAX_SCHEMAS = 4_096

STOP_WORDS = frozenset(
    """
    a about above after again against all also am an and any are as at be because been before being
    below between both but by can could d did do does doing don down during each either else ever
    few for from further get had has have having he her here hers herself him himself his how i if
    in into is it its itself just let like ll lot m me might more most must my myself need no nor
    not now of off on once one only or other our ours ourselves out over own per please re s same
    shall she should so some such t than that the their theirs them themselves then there these they
    this those through thus to too under until up upon us use using ve very via want was we were
    what when where whether which while who whom whose why will with within without would you your
    yours yourself yourselves
    """.split()  # noqa: SIM905  readable as text
)

_APART = bytes(code if chr(code).isalnum() else 32 for code in range(128)) + bytes(128)
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z][A-Z0-9]*|[0-9]+")
_CJK = (  # a pattern, compiled where a text needs it
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
_MAPS_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_NOT_SCHEMAS = frozenset({"enum", "const", "default", "examples", "required"})
_CONTAINER = (dict, list)


def clip(text: str) -> str:
    """`text`, or of a longer one its first and last `MAX_CHARS / 2`; lone surrogates become `?`."""
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    return text if text.isascii() else encodable(text)


def words(text: str, *, stop_words: bool = False) -> list[str]:
    """The searchable words of `text`, in order, repeats kept; English stop words only on request.

    NFKC, lower case; camelCase and snake_case come apart (a camelCase word is kept whole beside its
    parts, for "YouTube" is also written "youtube"); runs of CJK become overlapping pairs.
    """
    found = [word for raw in raw_words(text) for word in parts(raw)]
    return found if stop_words else [word for word in found if word not in STOP_WORDS]


def raw_words(text: str) -> list[str]:
    """The runs of letters and digits in `text`, as they are written but for NFKC."""
    plain = clip(text)
    return _raw_words(plain if plain.isascii() else unicodedata.normalize("NFKC", plain))


def parts(raw: str) -> tuple[str, ...]:
    """The words that one of the `raw_words` stands for, longer ones than 64 characters left out."""
    found = _humps(raw) if raw.isascii() else _pieces(raw)
    return tuple(word for word in found if len(word) <= _MAX_WORD)


def spaced_name(name: str) -> str:
    """A tool's or parameter's name as words: `getUser_byID` reads "get user by id"."""
    return " ".join(
        [_spaced(raw) if len(raw) <= _MAX_WORD else _apart(raw) for raw in _raw_words(name)]
    )


def _apart(raw: str) -> str:
    return " ".join(_HUMPS.findall(raw) or [raw]).lower()


_spaced = lru_cache(maxsize=1 << 14)(_apart)


def _raw_words(text: str) -> list[str]:
    if not text.isascii():  # a combining mark is no \w, yet it belongs to its word
        text = "".join(
            c if c.isalnum() or unicodedata.category(c) in {"Mn", "Mc"} else " " for c in text
        )
        return [word for word in text.split() if any(map(str.isalnum, word))]
    return text.encode("ascii").translate(_APART).decode("ascii").split()


def _humps(word: str) -> list[str]:
    if word.islower() or word.isdigit():
        return [word]
    parts = [part.lower() for part in _HUMPS.findall(word)]
    return [*parts, word.lower()] if len(parts) > 1 else parts


def _pieces(word: str) -> Iterator[str]:
    if word.isascii():
        yield word.casefold()
        return
    for piece in re.split(_CJK, word):
        if len(piece) > 1 and re.match(_CJK, piece):
            yield from (piece[i : i + 2] for i in range(len(piece) - 1))
        elif piece:
            yield piece.casefold()


class Fields(NamedTuple):
    """What a definition says, by field; each a text of its own words."""

    name: str
    description: str
    parameters: str
    parameter_text: str
    tags: str


def fields(definition: ToolDefinition) -> Fields:
    """The five searchable fields; `parameter_text` is descriptions and the strings of enums."""
    names: list[str] = []
    texts: list[str] = []
    for schema in _schemas(definition.input_schema):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            names += properties
        description = schema.get("description")
        if isinstance(description, str):
            texts.append(description)
        values = schema.get("enum")
        if isinstance(values, list):
            texts += [value for value in values if isinstance(value, str)]
    return Fields(
        definition.name,
        definition.description,
        " ".join(names),
        " ".join(texts),
        " ".join(definition.tags),
    )


def _schemas(schema: JsonValue) -> list[dict[str, Any]]:
    """The first `_MAX_SCHEMAS` subschemas in document order; no `$ref` is followed."""
    found: list[dict[str, Any]] = []
    waiting: list[JsonValue] = [schema]
    for _ in range(_MAX_SCHEMAS):
        if not waiting:
            break
        here = waiting.pop()
        if isinstance(here, list):
            waiting += reversed(here)
        elif isinstance(here, dict):
            found.append(here)
            below: list[JsonValue] = []
            for key, value in here.items():
                if not isinstance(value, _CONTAINER):
                    continue
                if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                    below += value.values()
                elif key not in _NOT_SCHEMAS:
                    below.append(value)
            waiting += reversed(below)
    return found
