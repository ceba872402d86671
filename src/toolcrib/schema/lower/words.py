"""What an endpoint does not know of a schema, said in plain words for a description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolcrib.values.json import canonical_json

_LONGEST = 200  # of a value quoted in words
_ZERO = frozenset({"minItems", "minLength", "minProperties"})
_ANYTHING = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "items",
        "propertyNames",
        "contains",
    }
)


def says_nothing(keyword: str, value: object) -> bool:
    """Whether a keyword with this value admits everything."""
    if keyword in _ANYTHING:
        return value is True or value == {}
    if keyword == "uniqueItems":
        return value is False
    if keyword == "not":
        return value is False
    return value == 0 if keyword in _ZERO else value in ([], {})


def sentence(keyword: str, value: Any) -> str:
    """A sentence for a keyword, or nothing where none would help a model."""
    phrase = _PHRASES.get(keyword)
    return phrase(value) if phrase else ""


def with_sentences(description: object, sentences: list[str]) -> str:
    """A description and what is added to it."""
    text = description.strip() if isinstance(description, str) else ""
    if text and text[-1] not in ".!?:;,":
        text += "."
    return " ".join([text, *sentences]).strip()


def _quoted(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else canonical_json(value)
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= _LONGEST else ""


def _counted(words: str, one: str, many: str) -> Callable[[Any], str]:
    return lambda n: f"{words} {n} {one if n == 1 else many}."


def _quoting(words: str) -> Callable[[Any], str]:
    def phrase(value: Any) -> str:
        text = _quoted(value)
        return f"{words} {text}." if text else ""

    return phrase


def _default(value: Any) -> str:
    text = '""' if value == "" else _quoted(value)
    return f"Default: {text}." if text and value is not None else ""


def _examples(value: Any) -> str:
    shown = [text for text in map(_quoted, value[:3]) if text] if isinstance(value, list) else []
    return f"For example: {', '.join(shown)}." if shown else ""


def _others(value: Any) -> str:
    if value is False:
        return "No other properties."
    kind = value.get("type") if isinstance(value, dict) else None
    return f"Other properties are of type {kind}." if isinstance(kind, str) else ""


def _together(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    pairs = ((name, need) for name, need in value.items() if isinstance(need, list) and need)
    return " ".join(f"With {name}, also give {', '.join(map(str, need))}." for name, need in pairs)


def _excluded(value: Any) -> str:
    if not isinstance(value, dict) or len(value) != 1:
        return ""
    (keyword, what), *_ = value.items()
    if keyword == "enum" and isinstance(what, list):
        return f"Not one of: {', '.join(map(_quoted, what))}."
    return f"Not {_quoted(what)}." if keyword == "const" else ""


_PHRASES: dict[str, Callable[[Any], str]] = {
    "default": _default,
    "examples": _examples,
    "const": _quoting("Always"),
    "deprecated": lambda yes: "Deprecated." if yes is True else "",
    "minLength": _counted("At least", "character", "characters"),
    "maxLength": _counted("At most", "character", "characters"),
    "minItems": _counted("At least", "item", "items"),
    "maxItems": _counted("At most", "item", "items"),
    "minProperties": _counted("At least", "property", "properties"),
    "maxProperties": _counted("At most", "property", "properties"),
    "uniqueItems": lambda _: "No two items alike.",
    "minimum": _quoting("At least"),
    "maximum": _quoting("At most"),
    "exclusiveMinimum": _quoting("More than"),
    "exclusiveMaximum": _quoting("Less than"),
    "multipleOf": _quoting("A multiple of"),
    "pattern": _quoting("Matches the pattern"),
    "format": _quoting("Format:"),
    "contentEncoding": _quoting("Encoded as"),
    "contentMediaType": _quoting("Content of type"),
    "additionalProperties": _others,
    "dependentRequired": _together,
    "not": _excluded,
}
