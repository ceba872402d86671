"""What the rules read of a tool: words in the form that is compared, and places in a schema."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from toolcrib.schema import references
from toolcrib.schema.references import References, pointer_to
from toolcrib.values.json import JsonObject, JsonValue

MAX_CHARS = 8_192
"""How much of a description is read: a longer one costs no more."""

_WORD = re.compile(r"[^\W_]+")
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W_A-Za-z0-9]+")
_EMPTY = frozenset(
    """
    a an and are as at be by can for from function given in into is it its method of on or that the
    this to tool use used using with you your
    """.split()  # noqa: SIM905  readable as text
)


def words(text: str) -> list[str]:
    """Lower-case words after NFKC; scripts without spaces come as runs."""
    return _WORD.findall(unicodedata.normalize("NFKC", text[:MAX_CHARS]).lower())


def name_words(name: str) -> tuple[str, ...]:
    """`getUser_byID2` → get, user, by, id, 2."""
    return tuple(part.lower() for part in _HUMPS.findall(name))


def told(text: str) -> frozenset[str]:
    """Return the words that tell something, without endings: those that a name may repeat."""
    return frozenset(stem(word) for word in words(text) if word not in _EMPTY)


def stem(word: str) -> str:
    """Without a plural or a verb's ending. Crude on purpose: both sides are treated alike."""
    for ending in ("ing", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def spaceless(text: str) -> bool:
    """Return whether it is in a script that puts no spaces between words,
    so that words tell no length."""
    return any(
        "\u3040" <= c <= "\u9fff" or "\uac00" <= c <= "\ud7af" or "\u0e00" <= c <= "\u0eff"
        for c in text
    )


# Where in a schema something stands: its subschemas and its properties, with pointers.
#
# No `$ref` is followed, so each place is visited once; what a `$ref` leads to stands in `$defs`.


class Property(NamedTuple):
    """A property of an object somewhere in a schema."""

    name: str
    pointer: str
    schema: JsonObject


def subschemas(schema: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Return each subschema that is an object with its pointer, itself first, in document order."""
    return ((pointer_to(place), node) for place, node in references.subschemas(schema))


def properties(schema: JsonObject) -> Iterator[Property]:
    """Yield each property of each object in it that is a schema of its own (not True or False)."""
    for pointer, node in subschemas(schema):
        found = node.get("properties")
        if isinstance(found, dict):
            for name, child in found.items():
                if isinstance(child, dict):
                    at = f"{pointer}/properties/{references.escape_pointer(name)}"
                    yield Property(name, at, child)


def described(schema: JsonObject, root: References) -> bool:
    """Return whether it is described: itself, or by each property within it."""
    if _said(schema, root):
        return True
    within = list(properties(schema))
    return bool(within) and all(_said(p.schema, root) or _holds_more(p.schema) for p in within)


def _holds_more(schema: JsonObject) -> bool:
    return next(properties(schema), None) is not None


def _said(schema: JsonObject, root: References) -> bool:
    """Return whether it, what its `$ref` leads to, or one of its variants has a description."""
    if _ref_has_text(schema, root) or _has_text(schema) or "const" in schema:
        return True
    variants = [v for key in ("anyOf", "oneOf", "allOf") for v in _list(schema.get(key))]
    return any(_has_text(v) or _ref_has_text(v, root) for v in variants if isinstance(v, dict))


def _ref_has_text(schema: JsonObject, root: References) -> bool:
    target = schema.get("$ref")
    found = root.resolve(target) if isinstance(target, str) else None
    return isinstance(found, dict) and _has_text(found)


def _has_text(schema: JsonObject) -> bool:
    text = schema.get("description")
    return isinstance(text, str) and bool(text.strip())


def types(schema: JsonObject) -> frozenset[str] | None:
    """Return the JSON types that it takes, without null, integers as
    numbers; None if it does not say."""
    given = schema.get("type")
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list):
        named = {t for t in given if isinstance(t, str)}
    else:
        variants = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        parts = [
            types(v) if isinstance(v, dict) and v.get("type") != "null" else frozenset[str]()
            for v in variants
        ]
        if not parts or any(part is None for part in parts):
            return None
        named = {t for part in parts if part for t in part}
    return frozenset("number" if t == "integer" else t for t in named if t != "null") or None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
