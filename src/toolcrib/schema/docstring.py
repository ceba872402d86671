"""Read docstrings in Google, NumPy and reST style, each in one pass over the lines.

Nothing here raises, and reading takes linear time. Text in no known form is description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import NamedTuple

MAX_CHARS = 16_384  # of one docstring; the rest is not read
_PARAMETER_TITLES = frozenset(
    ("args", "arguments", "parameters", "params", "attributes", "keyword args", "keyword arguments",
     "other parameters")
)  # fmt: skip
_RETURN_TITLES = frozenset(("returns", "return"))
_OTHER_TITLES = frozenset(
    ("raises", "exceptions", "except", "yields", "yield", "example", "examples", "see also",
     "references", "methods", "warns", "receives")
)  # fmt: skip
_TITLES = _PARAMETER_TITLES | _RETURN_TITLES | _OTHER_TITLES
_NUMPY = re.compile(r"(?m)^[A-Z][A-Za-z ]{0,30}\n-{3,}[ \t]*$")
_REST_PARAMETERS = frozenset(
    ("param", "parameter", "arg", "argument", "attribute", "key", "keyword", "ivar", "var")
)
_FIELDS = _REST_PARAMETERS | _RETURN_TITLES | frozenset(
    ("type", "vartype", "rtype", "raises", "raise", "except", "exception", "yield", "yields", "ytype")
)  # fmt: skip
_FIELD = re.compile(rf"(?m)^:({'|'.join(sorted(_FIELDS))})(?:[ \t]+([^:\n]*))?:(?:[ \t]+(.*))?$")
_NAMES = re.compile(r"\*{0,2}[^\W\d][\w.]*(?:[ \t]*,[ \t]*\*{0,2}[^\W\d][\w.]*)*")
_OPENING_BRACKETS = frozenset("([{")
_TYPE = re.compile(r"[\w.]+(?:\[[^\n]*\])?(?:[ \t]*\|[ \t]*[\w.]+(?:\[[^\n]*\])?)*")


class DocumentedSignature(NamedTuple):
    """The parts of a docstring: the text outside its sections, a line per parameter, the result."""

    description: str
    parameters: Mapping[str, str]
    returns: str = ""


def read_docstring(text: object) -> DocumentedSignature:
    """Read a docstring. Never raises: a docstring in no known style is a description as a whole."""
    if not isinstance(text, str) or not text.strip():
        return DocumentedSignature("", {})
    clean = _outdented(text[:MAX_CHARS])
    if "\n" not in clean:
        return DocumentedSignature(clean.strip(), {})
    if "\n---" in clean and _NUMPY.search(clean):
        return _gather(_numpy_sections(clean.split("\n")), google=False)
    if (clean[0] == ":" or "\n:" in clean) and _FIELD.search(clean):
        return _read_rest(clean.split("\n"))
    return _gather(_google_sections(clean.split("\n")), google=True)


def _outdented(text: str) -> str:
    """Remove the indentation that all lines but the first share, and empty lines around them."""
    if "\n" not in text:
        return text.expandtabs().strip()
    first, *rest = text.expandtabs().split("\n")
    margin = min(
        [len(line) - len(stripped) for line in rest if (stripped := line.lstrip())], default=0
    )
    lines = [first.lstrip(), *[line[margin:] for line in rest]]
    return "\n".join(lines).strip("\n").rstrip()


def class_doc(cls: type) -> str | None:
    """Return the author's docstring, not the one generated for a dataclass or NamedTuple."""
    doc = cls.__dict__.get("__doc__")
    generated = is_dataclass(cls) or issubclass(cls, tuple)
    if not isinstance(doc, str) or (generated and doc.startswith(f"{cls.__name__}(")):
        return None
    return doc


def _gather(sections: Iterator[tuple[str, list[str]]], *, google: bool) -> DocumentedSignature:
    """Gather the sections. Text outside sections, before or after one, is the description."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    returns = ""
    for title, lines in sections:
        if not title:
            description.append("\n".join(lines).strip())
        elif title in _PARAMETER_TITLES:
            for head, body in _items(lines):
                names, rest = _split_head(head) if google else (head.partition(":")[0], "")
                text = _joined([rest, *body])
                if text and names.isidentifier():
                    parameters[names] = text
                elif text and _NAMES.fullmatch(names.strip()):
                    parameters |= {name.strip().lstrip("*"): text for name in names.split(",")}
        elif title in _RETURN_TITLES and not returns:
            returns = _result(lines) if google else _numpy_result(lines)
    return DocumentedSignature("\n\n".join(filter(None, description)), parameters, returns)


def _google_sections(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield sections: a known title with a colon, and the indented lines below it."""
    title, body = "", list[str]()
    for line in lines:
        if line[:1].strip():  # at the margin
            heading = line.rstrip(" \t")
            is_title = heading[-1] == ":" and heading[:-1].lower() in _TITLES
            if is_title or title:
                yield title, body
                title, body = (heading[:-1].lower(), [""]) if is_title else ("", [])
            if is_title:
                continue
        body.append(line)
    yield title, body


def _numpy_sections(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield sections: a title underlined with dashes, and all lines up to the next one."""
    title, body = "", list[str]()
    for line in lines:
        stripped = line.strip()
        if len(stripped) > 2 and not stripped.strip("-") and body and body[-1].strip():
            heading = body.pop().strip().lower()
            yield title, body
            title, body = heading, []
        else:
            body.append(line)
    yield title, body


def _items(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each line that is indented like the first one, with the deeper lines that follow it."""
    margin: int | None = None
    head, body = "", list[str]()
    for line in lines:
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        if stripped and (margin is None or indent <= margin):
            margin = indent if margin is None else margin
            if head:
                yield head, body
            head, body = stripped.rstrip(), []
        else:
            body.append(line)
    if head:
        yield head, body


def _split_head(head: str) -> tuple[str, str]:
    """Split `name (type, optional): text` into name and text; the type may contain colons."""
    name, colon, rest = head.partition(":")
    if _OPENING_BRACKETS.isdisjoint(name):
        return (name, rest) if colon else ("", "")
    depth = 0
    for index, character in enumerate(head):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == ":" and depth <= 0:
            return head[:index].partition("(")[0], head[index + 1 :]
    return "", ""


def _result(lines: Sequence[str]) -> str:
    """Return the description of a result, without the type that may precede it."""
    text = _joined(lines)
    type_text, colon, rest = text.partition(":")
    return rest.strip() if colon and _TYPE.fullmatch(type_text.strip()) else text


def _numpy_result(lines: Sequence[str]) -> str:
    """Return the description below the type, or those of several results."""
    return "\n".join(text for _, body in _items(lines) if (text := _joined(body)))


def _read_rest(lines: Sequence[str]) -> DocumentedSignature:
    """Read `:param type name: text`, with the lines up to the next paragraph at the margin."""
    description: list[str] = []
    fields: list[tuple[str, str, list[str]]] = []
    in_field = False
    for line, previous_line in zip(lines, ["", *lines], strict=False):
        field = _FIELD.match(line)
        if field is not None:
            in_field = True
            fields.append((field[1], (field[2] or "").strip(), [field[3] or ""]))
            continue
        in_field = in_field and not (line[:1].strip() and not previous_line.strip())
        (fields[-1][2] if in_field else description).append(line)
    parameters: dict[str, str] = {}
    returns = ""
    for kind, field_argument, body in fields:
        text = _joined(body)
        if kind in _REST_PARAMETERS and field_argument and text:
            parameters[field_argument.split()[-1].lstrip("*")] = text
        elif kind in _RETURN_TITLES and text:
            returns = returns or text
    return DocumentedSignature("\n".join(description).strip(), parameters, returns)


def _joined(lines: Sequence[str]) -> str:
    """Join lines, without the indentation that all but the first share."""
    first, rest = lines[0].strip() if lines else "", lines[1:]
    if not any(rest):
        return first
    margins = [len(line) - len(line.lstrip()) for line in rest if line.strip()]
    margin = min(margins, default=0)
    return "\n".join([first, *[line[margin:].rstrip() for line in rest]]).strip()
