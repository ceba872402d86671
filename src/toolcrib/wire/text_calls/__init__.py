"""Calls that models write in their text: the syntaxes by name, and what one of your own is made of."""

from __future__ import annotations

from collections.abc import Mapping

from toolcrib.errors import RequestError
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Cursor, EndedError, NoCallError
from toolcrib.wire.text_calls.deepseek import DEEPSEEK
from toolcrib.wire.text_calls.gemma import GEMMA
from toolcrib.wire.text_calls.hermes import HERMES, QWEN
from toolcrib.wire.text_calls.llama import LLAMA
from toolcrib.wire.text_calls.mistral import MISTRAL_TEXT
from toolcrib.wire.text_calls.syntax import TextSyntax

SYNTAXES: Mapping[str, TextSyntax] = {
    syntax.name: syntax for syntax in (HERMES, LLAMA, MISTRAL_TEXT, QWEN, GEMMA, DEEPSEEK)
}

__all__ = ["SYNTAXES", "Block", "Cursor", "EndedError", "NoCallError", "TextSyntax", "syntax_of"]


@names_wrong_types
def syntax_of(syntax: TextSyntax | str) -> TextSyntax:
    """The syntax of that name. Raises RequestError for a name that nobody knows."""
    if isinstance(syntax, TextSyntax):
        return syntax
    if syntax not in SYNTAXES:
        names = ", ".join(sorted(SYNTAXES))
        raise RequestError(f"there is no syntax of calls in text {syntax!r}; there are: {names}")
    return SYNTAXES[syntax]
