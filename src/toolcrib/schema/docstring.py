"""Docstrings as documentation of parameters: Google, NumPy and reST, read by docstring-parser."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import NamedTuple

from docstring_parser import DocstringStyle, ParseError, parse

_NUMPY = re.compile(r"^\s*(Parameters|Returns)\s*\n\s*-{3,}", re.MULTILINE)
_REST = re.compile(r"^\s*:(param|returns?|type|raises)\b", re.MULTILINE)


class DocumentedSignature(NamedTuple):
    """What a docstring says: the text before its sections, and a line for each parameter."""

    description: str
    parameters: Mapping[str, str]


def read_docstring(text: str | None) -> DocumentedSignature:
    """Never raises: a docstring in no known style is a description as a whole."""
    if not text or not text.strip():
        return DocumentedSignature("", {})
    clean = inspect.cleandoc(text).strip()
    if "\n" not in clean:
        return DocumentedSignature(clean, {})
    try:
        parsed = parse(f"\n{clean}", style=_style(clean))  # it dedents all but the first line again
    except (ParseError, IndexError, ValueError):  # a bare `:param` is an IndexError to it
        return DocumentedSignature(clean, {})
    parts = (parsed.short_description, parsed.long_description)
    gap = "\n\n" if parsed.blank_after_short_description else "\n"
    return DocumentedSignature(
        gap.join(part.strip() for part in parts if part),
        {
            name.strip().lstrip("*"): p.description.strip()
            for p in parsed.params
            if p.description
            for name in p.arg_name.split(",")  # NumPy documents `x, y : float` together
        },
    )


def _style(text: str) -> DocstringStyle:
    """Telling the style by its marks costs a fifth of trying all parsers."""
    if _REST.search(text):
        return DocstringStyle.REST
    if _NUMPY.search(text):
        return DocstringStyle.NUMPYDOC
    return DocstringStyle.GOOGLE
