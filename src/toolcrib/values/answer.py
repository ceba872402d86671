"""The sentence by which a result is stated: a tool's `answer`, such as `{expression} is {value}`.

Braces hold names of fields of the result and of arguments, the result's first; `{result}` is a result
that is no object. Nothing else of Python's format strings is taken, and each value is the call's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter

from toolcrib.values.json import JsonValue, canonical_json

RESULT = "result"
_LONGEST = 300


def names_in(template: str) -> tuple[str, ...]:
    """Return the names in a template's braces. Raises ValueError, saying why, for what is none."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        raise ValueError("a brace is not closed or not opened; a brace itself is doubled") from None
    except TypeError:
        raise ValueError("it is a str, such as '{expression} is {value}'") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError("each pair of braces holds a name, and nothing else")
    return tuple(name for _, name, _, _ in parts if name is not None)


def stated(template: str, arguments: Mapping[str, JsonValue], result: JsonValue) -> str | None:
    """Return the sentence; None where a value is not there, or cannot be said within a sentence."""
    fields = result if isinstance(result, dict) else {RESULT: result}
    said = []
    for literal, name, _, _ in Formatter().parse(template):
        said.append(literal)
        if name is None:
            continue
        value = fields.get(name, arguments.get(name))
        if value is None or isinstance(value, dict | list):
            return None
        text = value if isinstance(value, str) else canonical_json(value)
        if len(text) > _LONGEST or not text.isprintable():
            return None
        said.append(text)
    return "".join(said)
