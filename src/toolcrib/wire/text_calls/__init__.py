"""Calls that models write in their text: the syntaxes by name, and what custom ones are made of."""

from __future__ import annotations

from collections.abc import Mapping

from toolcrib.errors import RequestError
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.text_calls.reading import Cursor, EndedError, FoundCalls, NoCallError
from toolcrib.wire.text_calls.syntaxes import (
    DEEPSEEK,
    GEMMA,
    HERMES,
    LLAMA,
    MISTRAL_TEXT,
    QWEN,
    TextSyntax,
)

SYNTAXES: Mapping[str, TextSyntax] = {
    syntax.name: syntax for syntax in (HERMES, LLAMA, MISTRAL_TEXT, QWEN, GEMMA, DEEPSEEK)
}

__all__ = [
    "SYNTAXES",
    "Cursor",
    "EndedError",
    "FoundCalls",
    "NoCallError",
    "TextSyntax",
    "syntax_of",
]


@names_wrong_types
def syntax_of(syntax: TextSyntax | str) -> TextSyntax:
    """Return the syntax of that name. Raises RequestError for an unknown name."""
    if isinstance(syntax, TextSyntax):
        return syntax
    if syntax not in SYNTAXES:
        names = ", ".join(sorted(SYNTAXES))
        raise RequestError(f"there is no syntax of calls in text {syntax!r}; there are: {names}")
    return SYNTAXES[syntax]
