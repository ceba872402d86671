"""Rules that look at one tool: what its definition leaves out, says against itself, or hides."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

from toolcrib.errors import SchemaError
from toolcrib.lint.finding import RuleFault
from toolcrib.lint.reading import (
    described,
    name_words,
    properties,
    spaceless,
    stem,
    subschemas,
    told,
    words,
)
from toolcrib.schema import compile_validator
from toolcrib.schema.references import References, escape_pointer
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

# Rule `text`: what a description hides from a reader, or tells a model to do.
#
# A description goes into the model's context unchanged ("tool poisoning"). Characters that a
# reader cannot see, and sentences that speak to the model about other instructions or about keeping
# something from the user, are worth a look. These are patterns: what they do not find may still be
# harmful, and the lock file is what keeps a text that was read from changing.

_QUOTED = 60
# Zero-width and other invisible ones, bidirectional overrides and isolates, tags, controls.
# ZWNJ and ZWJ (200c, 200d), LRM and RLM (200e, 200f) belong to scripts and emoji: only beside ASCII.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u202a-\u202e"
    "\u2028\u2029\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0001-\U000e007f\U000e0100-\U000e01ef]"
    "|(?<=[\x00-\x7f])[\u200c-\u200f](?=[\x00-\x7f])"
)
_FLAG = re.compile("\U0001f3f4[\U000e0061-\U000e007a]{1,6}\U000e007f")  # England, Scotland, Wales

_ORDERS: dict[str, re.Pattern[str]] = {
    "speaks of setting other instructions aside": re.compile(
        r"\b(?:ignore|disregard|forget|override|bypass)\s+(?:(?:all|any|every|the|your|of|these|"
        r"those|my)\s+){0,3}(?:previous|prior|earlier|above|preceding|other|existing|system|"
        r"original|initial)\s+(?:\w+\s+)?(?:instruction|prompt|rule|message|guideline|"
        r"direction|command|context|policies)\w*"
    ),
    "asks to keep something from the user": re.compile(
        r"\b(?:do\s+not|don['’]?t|never|must\s+not|without)\s+(?:\w+\s+)?(?:tell(?:ing)?|"
        r"inform(?:ing)?|mention(?:ing)?|notify(?:ing)?|alert(?:ing)?|show(?:ing)?)\s+"
        r"(?:(?:this|that|it|anything|about|to)\s+){0,3}(?:the\s+)?(?:user|human)\b"
    ),
    "has the marks of a chat template or of an instruction block": re.compile(
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?inst\]|<<sys>>"
        r"|</?\s*(?:system|important|instructions?|secret|hidden)\s*>"
    ),
    "names files that hold secrets": re.compile(
        r"(?:~|\$home|/root|/home/\w+)/\.(?:ssh|aws|gnupg|netrc|cursor)\b"
        r"|\bid_(?:rsa|ed25519)\b|/etc/(?:passwd|shadow)\b|\.cursor/mcp\.json"
    ),
}


def check_texts(form: JsonObject) -> Iterator[RuleFault]:
    """Yield every string of a tool's dictionary form, keys included."""
    for pointer, text in _strings(form):
        yield from _hidden(pointer, text)
        yield from _ordering(pointer, text)


def _hidden(pointer: str, text: str) -> Iterator[RuleFault]:
    if text.isascii() and text.isprintable():
        return
    found = sorted(set(_HIDDEN.findall(_FLAG.sub("", text))))
    if found:
        codes = ", ".join(f"U+{ord(c):04X}" for c in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        yield RuleFault(
            "text",
            pointer,
            f"it holds characters that a reader does not see ({codes}{more}): remove them",
        )


def _ordering(pointer: str, text: str) -> Iterator[RuleFault]:
    plain = _HIDDEN.sub("", unicodedata.normalize("NFKC", _untagged(text))).lower()
    for what, pattern in _ORDERS.items():
        match = pattern.search(plain)
        if match:
            words = " ".join(match[0].split())[:_QUOTED]
            yield RuleFault(
                "text",
                pointer,
                f"it {what} (“{words}”): a description says what a tool does, and no more",
            )


def _untagged(text: str) -> str:
    """Tag characters are a hidden copy of ASCII, which some models read: so it is read here too."""
    if text.isascii():
        return text
    return "".join(chr(ord(c) - 0xE0000) if 0xE0020 <= ord(c) < 0xE007F else c for c in text)


def _strings(form: JsonObject) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, JsonValue]] = [("", form)]
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, str):
            yield pointer, value
        elif isinstance(value, dict):
            children = [(f"{pointer}/{escape_pointer(k)}", k, v) for k, v in value.items()]
            yield from ((at, key) for at, key, _ in children if not key.isidentifier())
            waiting += [(at, child) for at, _, child in reversed(children)]
        elif isinstance(value, list):
            waiting += [(f"{pointer}/{i}", v) for i, v in reversed(list(enumerate(value)))]


MIN_WORDS = 3
"""A description of fewer words is very short."""
_LISTED = 5
_SHOWN = 40
_SHELVES = ("$schema", "$defs", "definitions")
_PLAIN = frozenset({"type", "description", "title", "default", "examples"})
_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "array": (list,),
    "object": (dict,),
}


def check_single(definition: ToolDefinition) -> Iterator[RuleFault]:
    """Yield all faults of one definition, whoever the provider is."""
    yield from _description(definition)
    schema = definition.input_schema
    if schema is not None:
        yield from _parameters(schema)
        yield from _defaults(schema)
        yield from _enums(schema)
    form = definition.to_dict()
    form["examples"] = [[e.request, e.arguments] for e in definition.examples]
    yield from check_texts(form)


def _description(definition: ToolDefinition) -> Iterator[RuleFault]:
    text = definition.description.strip()
    if not text:
        yield RuleFault(
            "description",
            "/description",
            "it has no description: say what it does, and when to use it",
        )
        return
    number = len(words(text))
    if number < MIN_WORDS and not spaceless(text):
        yield RuleFault(
            "description",
            "/description",
            f"its description is very short ({_words(number)}): say what it does, on what, "
            "and what comes back",
        )
    elif told(text) <= {stem(word) for word in name_words(definition.name)}:
        yield RuleFault(
            "description",
            "/description",
            "its description says no more than its name: say on what, and what comes back",
        )


def _words(number: int) -> str:
    return f"{number} word{'' if number == 1 else 's'}"


def _parameters(schema: JsonObject) -> Iterator[RuleFault]:
    """Yield at most one fault a tool: somebody who describes one parameter describes all of them."""
    root, known = References(schema), list(properties(schema))
    bare = [p for p in known if not described(p.schema, root)]
    if not bare:
        return
    names = ", ".join(f"'{p.name[:40]}'" for p in bare[:_LISTED])
    more = f" and {len(bare) - _LISTED} more" if len(bare) > _LISTED else ""
    yield RuleFault(
        "parameter",
        f"/input_schema{bare[0].pointer}",
        f"parameters without a description: {names}{more} ({len(bare)} of {len(known)})",
    )


def _defaults(schema: JsonObject) -> Iterator[RuleFault]:
    shelves = {key: schema[key] for key in _SHELVES if key in schema}
    nulls: list[str] = []
    for pointer, node in subschemas(schema):
        if "default" not in node or _fits(node, shelves):
            continue
        if node["default"] is None:
            nulls.append(pointer)
            continue
        yield RuleFault(
            "default",
            f"/input_schema{pointer}/default",
            f"its default {_short(node['default'])} does not fit its own schema: "
            "a model that sends it is refused",
        )
    if nulls:
        more = f" (and {len(nulls) - 1} more)" if len(nulls) > 1 else ""
        yield RuleFault(
            "default",
            f"/input_schema{nulls[0]}/default",
            f"its default{more} is null, which its own schema refuses: allow null, or drop it",
        )


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _fits(node: JsonObject, shelves: JsonObject) -> bool:
    """Judged with the `$defs` of the whole; what cannot be judged alone counts as fitting."""
    value = node["default"]
    if node.keys() <= _PLAIN:
        verdict = _plainly(node.get("type"), value)
        if verdict is not None:
            return verdict
    alone = {key: part for key, part in node.items() if key not in _SHELVES}
    try:
        validator = compile_validator({**shelves, "properties": {"value": alone}})
    except SchemaError:
        return True
    return validator.is_valid({"value": value})


def _plainly(kind: JsonValue, value: JsonValue) -> bool | None:
    """Return the verdict on a schema that is a type and nothing else, without compiling it."""
    if kind is None:
        return True
    if not isinstance(kind, str) or kind not in _PYTHON:
        return None
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind])


def _enums(schema: JsonObject) -> Iterator[RuleFault]:
    for pointer, node in subschemas(schema):
        if isinstance(node.get("enum"), list) and "type" not in node:
            yield RuleFault(
                "enum",
                f"/input_schema{pointer}/enum",
                "its enum comes without a type, which some endpoints need: add one",
            )
