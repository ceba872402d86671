"""Almost-JSON made JSON: the syntax is mended, no value is guessed.

Every token that is mended has one reading: a quoted text, a word before a colon, `True`, `False`,
`None`, a comment, a comma before a closing bracket. All else is passed on as it is, and the strict
parser judges the whole: what was cut, does not balance or holds a bare word stays what it was. A
lenient parser of others would not do: they close what was cut, invent values, and drop what they do
not understand. Time is linear in the text.
"""

from __future__ import annotations

import re

from toolcrib.errors import ErrorCode
from toolcrib.hydrate.parse import Parsed, parse_arguments
from toolcrib.hydrate.repair import RepairRequest

_LITERALS = {"True": "true", "False": "false", "None": "null"}
_NO_KEYS = frozenset((*_LITERALS, *_LITERALS.values()))
_ESCAPED = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in range(32)}
    | {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"'}
)
_BROKEN_ESCAPE = re.compile(r"\\[\x00-\x1f]")
_FENCE = "```"
_FLAGS = re.VERBOSE | re.DOTALL  # of two patterns that are compiled at their first use
_MOST = 10_000  # runs and tokens; what lies after them is left as it is
_STRUCTURE = re.compile(r"[{}\[\]\"“”]")
# A run that is right is one match: whatever is no start of a token below, whole texts, numbers.
# Texts and comments that do not end are taken to the end, so that none is looked at twice.
_SPELLED = r"""
    (?P<right> (?:
        [^"'“‘/\#A-Za-z_$0-9\x0b\x0c\x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]
      | "(?:[^"\\\x00-\x1f]|\\["\\/bfnrtu])*+"
      | [0-9][0-9A-Za-z_.+-]*+
      | (?:true|false|null)(?![\w$])(?!\s*+:)
    )++ )
  | "(?P<double>(?:[^"\\]|\\.)*+)(?:"|\Z)
  | '(?P<single>(?:[^'\\]|\\.)*+)(?:'|\Z)
  | “(?P<curly>(?:[^“”\\]|\\.)*+)(?:”|\Z)
  | ‘(?P<curled>(?:[^‘’\\]|\\.)*+)(?:’|\Z)
  | (?P<comment> //[^\n]*+ | \#[^\n]*+ | /\*(?:[^*]|\*(?!/))*+(?:\*/|\Z) )
  | (?P<word> [A-Za-z_$][\w$]*+ ) (?P<key> (?=\s*+:) )?
  | (?P<space> [^\S \t\n\r]++ | [\u200b\u2060\ufeff]++ )
    """
# A run with no comma to drop, and the comma after it, if that is what ended the run.
_LAST_COMMA = r"""
    (?P<kept> (?: [^",\[{] | "(?:[^"\\]|\\.)*+"? | ,(?!\s*+[}\]]) | [\[{](?:\s*+,)?+ )++ )
    (?: ,(?=\s*+[}\]]) )?
    """


class Sanitizer:
    """A `Repairer` that mends the syntax of arguments, and nothing else; always in the same way.

    Code fences and prose around one object, comments, trailing commas, `True`/`False`/`None`, keys
    without quotes, single and typographic quotes, line breaks inside of a text.
    """

    name = "sanitizer"

    async def __call__(self, request: RepairRequest, /) -> str | None:
        if request.errors[0].code is not ErrorCode.INVALID_JSON:
            return None
        return mend(request.call.arguments)


def mend(text: str) -> str | None:
    """The one object that a text can be read as, as JSON; None if there is none, or nothing to mend."""
    start, end = text.find("{"), text.rfind("}") + 1
    if not 0 <= start < end or not _is_around(text[:start], text[end:]):
        return None
    tokens = re.sub(_SPELLED, _mended, text[start:end], count=_MOST, flags=_FLAGS)
    mended = re.sub(_LAST_COMMA, r"\g<kept>", tokens, count=_MOST, flags=_FLAGS)
    if mended == text:
        return None
    parsed = parse_arguments(mended)
    return mended if isinstance(parsed, Parsed) and not parsed.notes else None


def _is_around(before: str, after: str) -> bool:
    """Whether this is a fence, or prose: nothing that the object between could be a part of."""
    if _STRUCTURE.search(before) or _STRUCTURE.search(after):
        return False
    if "=" in before:  # it is given to some name: `filter={…}`, `<parameter=filter>`
        return False
    fences = before.count(_FENCE)
    if fences > 1 or after.count(_FENCE) != fences:
        return False
    if after.lstrip().startswith((",", ":", "=")):
        return False
    label = before.rstrip()
    if label.endswith((",", "'", "‘", "’")):
        return False
    return not label.endswith(":") or _is_sentence(label.rpartition("\n")[2])


def _is_sentence(line: str) -> bool:
    """`Here they are:` and not `filter:`, which names a member that the object may be."""
    return line.count(":") == 1 and len(line.split()) >= 3


def _mended(token: re.Match[str]) -> str:
    kind = token.lastgroup or ""
    if kind == "right":
        return token[0]
    if kind == "comment":
        return " " if token[0].startswith(("//", "#")) or token[0].endswith("*/") else token[0]
    if kind == "space":
        return " "
    if kind == "key":
        return token[0] if token[0] in _NO_KEYS else f'"{token[0]}"'
    if kind == "word":
        return _LITERALS.get(token[0], token[0])
    return _quoted(token[0], token[kind])


def _quoted(token: str, content: str) -> str:
    """The same text in double quotes; as it was where it has no end, or escapes a control character."""
    if len(token) == len(content) + 1:
        return token
    if "\\" not in content:
        return f'"{content.translate(_ESCAPED)}"'
    parts = content.split("\\\\")  # what is left in them escapes one character
    if any(map(_BROKEN_ESCAPE.search, parts)):
        return token
    plain = (part.replace("\\'", "'").replace('\\"', '"').translate(_ESCAPED) for part in parts)
    return '"' + "\\\\".join(plain) + '"'
