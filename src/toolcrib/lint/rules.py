"""The rules of the linter, and `Finding`, which reports one thing that is worth a reader's time.

Rules for a single tool come first, then those that compare the tools of a catalog.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from toolcrib.errors import SchemaError, counted, did_you_mean, listed
from toolcrib.schema import compile_validator, references
from toolcrib.schema.lower.tree import Effect
from toolcrib.schema.references import References, pointer_to
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, escape_pointer, is_whole, json_copy

Rule: TypeAlias = Literal[
    "definition",  # it cannot be a tool: the error of registration
    "name",  # taken, changed on the wire, or easily confused with another
    "limit",  # more tools, or a longer description, than an endpoint accepts
    "schema",  # what a provider's view of the schema cannot express
    "description",  # missing, too short, or nothing but the name
    "parameter",  # parameters without a description
    "similar",  # two tools described in the same words
    "conflict",  # parameters with the same name and different meanings
    "spelling",  # one parameter under several names
    "default",  # a default that the schema itself refuses
    "enum",  # an enum without a type
    "keyword",  # a keyword that is probably misspelt, or a format that nothing checks
    "open",  # undeclared arguments run, and no record shows them
    "text",  # hidden characters, or sentences that give a model orders
]
RULES: tuple[Rule, ...] = get_args(Rule)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Reports one thing about a tool; `pointer` leads into the tool's dictionary form.

    A pointer is, for example, `/input_schema/properties/id`.

    `tool` is "" for a finding about all of them together. `provider` is "" for a finding that does
    not depend on the provider, and "toolcrib" for what toolcrib itself refuses. `refused`: the
    request or the registration fails; `lost`: the model sees less than the definition says;
    `doubtful`: it works, but may mislead a model or a reader. `message` says what is wrong, and
    what to do.
    """

    tool: str
    provider: str
    effect: Effect
    rule: Rule
    pointer: str
    message: str


class RuleFault(msgspec.Struct, frozen=True):
    """A finding without the tool's position and the provider, which the rules do not know."""

    rule: Rule
    pointer: str
    message: str
    effect: Effect = "doubtful"


# What the rules read from a tool: words in a comparable form, and places in a schema.

MAX_CHARS = 8_192
"""How much of a description is read, so that a longer one costs no more."""

_WORD = re.compile(r"[^\W_]+")
_NAME_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W_A-Za-z0-9]+")
_STOP_WORDS = frozenset(
    """
    a an and are as at be by can for from function given in into is it its method of on or that the
    this to tool use used using with you your
    """.split()  # noqa: SIM905  readable as text
)


def words(text: str) -> list[str]:
    """Return lower-case words after NFKC; scripts without spaces give unbroken runs."""
    return _WORD.findall(unicodedata.normalize("NFKC", text[:MAX_CHARS]).lower())


def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name: `getUser_byID2` has get, user, by, id, 2."""
    return tuple(part.lower() for part in _NAME_PART.findall(name))


def meaningful_words(text: str) -> frozenset[str]:
    """Return the meaningful words of a text, without endings, for comparison with a name."""
    return frozenset(stem(word) for word in words(text) if word not in _STOP_WORDS)


def stem(word: str) -> str:
    """Return a word without a plural or verb ending. This is deliberately crude: both sides are
    treated alike."""
    for ending in ("ing", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def is_spaceless(text: str) -> bool:
    """Return whether the text is in a script without spaces, where words measure no length."""
    return any(
        "\u3040" <= c <= "\u9fff" or "\uac00" <= c <= "\ud7af" or "\u0e00" <= c <= "\u0eff"
        for c in text
    )


# Where something is in a schema: its subschemas and its properties, with pointers.
#
# No `$ref` is followed, so each place is visited once; targets of `$ref`s are in `$defs`.


class Property(NamedTuple):
    """A property of an object somewhere in a schema."""

    name: str
    pointer: str
    schema: JsonObject


def subschemas(schema: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Return each subschema that is an object, with its pointer, in document order.

    The schema itself comes first.
    """
    return ((pointer_to(place), node) for place, node in references.subschemas(schema))


def properties(schema: JsonObject) -> Iterator[Property]:
    """Yield each property of each object in a schema, except those with True or False as schema."""
    for pointer, node in subschemas(schema):
        members = node.get("properties")
        if isinstance(members, dict):
            for name, child in members.items():
                if isinstance(child, dict):
                    property_pointer = f"{pointer}/properties/{escape_pointer(name)}"
                    yield Property(name, property_pointer, child)


def is_described(schema: JsonObject, root: References) -> bool:
    """Return whether a schema is described: itself, or each property in it."""
    if _has_description(schema, root):
        return True
    nested = list(properties(schema))
    return bool(nested) and all(
        _has_description(p.schema, root) or any(properties(p.schema)) for p in nested
    )


def _has_description(schema: JsonObject, root: References) -> bool:
    """Return whether a schema, its `$ref`'s target, or one of its variants has a description."""
    nodes: list[object] = [schema]
    nodes += [v for key in ("anyOf", "oneOf", "allOf") for v in _list(schema.get(key))]
    targets = [node.get("$ref") for node in nodes if isinstance(node, dict)]
    nodes += [root.resolve(target) for target in targets if isinstance(target, str)]
    texts = [node.get("description") for node in nodes if isinstance(node, dict)]
    return "const" in schema or any(isinstance(text, str) and text.strip() for text in texts)


def types(schema: JsonObject) -> frozenset[str] | None:
    """Return the JSON types that a schema accepts, or None if it does not say.

    Null is left out, and integers are numbers.
    """
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list):
        names = {t for t in declared if isinstance(t, str)}
    else:
        variants = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        variant_types = [
            types(v) if isinstance(v, dict) and v.get("type") != "null" else frozenset[str]()
            for v in variants
        ]
        if not variant_types or any(variant_type is None for variant_type in variant_types):
            return None
        names = {t for variant_type in variant_types if variant_type for t in variant_type}
    return frozenset("number" if t == "integer" else t for t in names if t != "null") or None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


# Rule `text`: what a description hides from a reader, or tells a model to do.
#
# A description goes into the model's context unchanged ("tool poisoning"). Invisible characters,
# and sentences that speak to the model about other instructions or about keeping something from the
# user, are worth a look. These are only patterns. What they do not find may still be harmful, and
# the lock file is what keeps a text that was read from changing.

_MAX_QUOTED = 60
# Zero-width and other invisible characters, bidirectional overrides and isolates, tags, controls.
# ZWNJ and ZWJ (200c, 200d), LRM and RLM (200e, 200f) belong to scripts and emoji, so they count
# only next to ASCII.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u202a-\u202e"
    "\u2028\u2029\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0001-\U000e007f\U000e0100-\U000e01ef]"
    "|(?<=[\x00-\x7f])[\u200c-\u200f](?=[\x00-\x7f])"
)
_FLAG = re.compile("\U0001f3f4[\U000e0061-\U000e007a]{1,6}\U000e007f")  # England, Scotland, Wales

_ORDERS: dict[str, re.Pattern[str]] = {
    "tells the model to ignore other instructions": re.compile(
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
    "has markers of a chat template or of an instruction block": re.compile(
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?inst\]|<<sys>>"
        r"|</?\s*(?:system|important|instructions?|secret|hidden)\s*>"
    ),
    "names files that hold secrets": re.compile(
        r"(?:~|\$home|/root|/home/\w+)/\.(?:ssh|aws|gnupg|netrc|cursor)\b"
        r"|\bid_(?:rsa|ed25519)\b|/etc/(?:passwd|shadow)\b|\.cursor/mcp\.json"
    ),
}


def _hidden(pointer: str, text: str) -> Iterator[RuleFault]:
    if text.isascii() and text.isprintable():
        return
    hidden = sorted(set(_HIDDEN.findall(_FLAG.sub("", text))))
    if hidden:
        codes = listed([f"U+{ord(c):04X}" for c in hidden], 5)
        message = f"it holds invisible characters ({codes}): remove them"
        yield RuleFault("text", pointer, message)


def _ordering(pointer: str, text: str) -> Iterator[RuleFault]:
    visible_text = _HIDDEN.sub("", unicodedata.normalize("NFKC", _untagged(text))).lower()
    for problem, pattern in _ORDERS.items():
        match = pattern.search(visible_text)
        if match:
            quote = " ".join(match[0].split())[:_MAX_QUOTED]
            message = f"it {problem} (“{quote}”): a description should only say what the tool does"
            yield RuleFault("text", pointer, message)


def _untagged(text: str) -> str:
    """Return tag characters as the ASCII that they hide, because some models read it."""
    if text.isascii():
        return text
    return "".join(chr(ord(c) - 0xE0000) if 0xE0020 <= ord(c) < 0xE007F else c for c in text)


def _strings(form: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield every string of a tool's dictionary form, including keys, with its pointer."""
    pending: list[tuple[str, JsonValue]] = [("", form)]
    while pending:
        pointer, value = pending.pop()
        if isinstance(value, str):
            yield pointer, value
        elif isinstance(value, dict):
            children = [(f"{pointer}/{escape_pointer(k)}", k, v) for k, v in value.items()]
            yield from (
                (child_pointer, key) for child_pointer, key, _ in children if not key.isidentifier()
            )
            pending += [(child_pointer, child) for child_pointer, _, child in reversed(children)]
        elif isinstance(value, list):
            pending += [(f"{pointer}/{i}", v) for i, v in reversed(list(enumerate(value)))]


# The other rules for a single tool: what its definition leaves out, or where it contradicts itself.

MIN_WORDS = 3
"""A description of fewer words is very short."""
_MAX_LISTED = 5
_MAX_SHOWN = 40
_DEFINITION_KEYWORDS = ("$schema", "$defs", "definitions")
_TYPE_AND_ANNOTATIONS = frozenset({"type", "description", "title", "default", "examples"})
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "array": (list,),
    "object": (dict,),
}


def check_single(definition: ToolDefinition) -> Iterator[RuleFault]:
    """Yield all faults of one definition that do not depend on the provider."""
    yield from _description(definition)
    schema = definition.input_schema
    if schema is not None:
        for rule in (_parameters, _defaults, _enums, _keywords, _formats):
            yield from rule(schema)
        yield from _open(definition, schema)
    form = definition.to_dict()
    form["examples"] = [[e.request, e.arguments] for e in definition.examples]
    for pointer, text in _strings(form):
        yield from _hidden(pointer, text)
        yield from _ordering(pointer, text)


def _description(definition: ToolDefinition) -> Iterator[RuleFault]:
    text = definition.description.strip()
    word_count = len(words(text))
    if not text:
        message = "it has no description: say what it does, and when to use it"
    elif word_count < MIN_WORDS and not is_spaceless(text):
        count_text = counted(word_count, "word")
        message = (
            f"its description is very short ({count_text}): say what it does, on what, "
            "and what comes back"
        )
    elif meaningful_words(text) <= {stem(word) for word in name_words(definition.name)}:
        message = "its description says no more than its name: say on what, and what comes back"
    else:
        return
    yield RuleFault("description", "/description", message)


def _parameters(schema: JsonObject) -> Iterator[RuleFault]:
    """Yield at most one fault per tool: who describes one parameter will describe all of them."""
    root, declared = References(schema), list(properties(schema))
    undescribed = [p for p in declared if not is_described(p.schema, root)]
    if not undescribed:
        return
    names = listed([f"'{p.name[:40]}'" for p in undescribed], _MAX_LISTED)
    message = f"parameters without a description: {names} ({len(undescribed)} of {len(declared)})"
    yield RuleFault("parameter", f"/input_schema{undescribed[0].pointer}", message)


def _defaults(schema: JsonObject) -> Iterator[RuleFault]:
    definitions = {key: schema[key] for key in _DEFINITION_KEYWORDS if key in schema}
    nulls: list[str] = []
    for pointer, node in subschemas(schema):
        if "default" not in node or _fits(node, definitions):
            continue
        if node["default"] is None:
            nulls.append(pointer)
            continue
        yield RuleFault(
            "default",
            f"/input_schema{pointer}/default",
            f"its default {_short(node['default'])} does not fit its own schema: "
            "a call that sends it is refused",
        )
    if nulls:
        more = f" (and {len(nulls) - 1} more)" if len(nulls) > 1 else ""
        yield RuleFault(
            "default",
            f"/input_schema{nulls[0]}/default",
            f"its default{more} is null, which its own schema refuses: allow null, or remove "
            "the default",
        )


# The keywords that JSON Schema and OpenAPI know. Any other keyword is an annotation, which checks
# nothing.
_KEYWORDS = frozenset(references.ROLES) | frozenset(
    """
    $comment $vocabulary const contentEncoding contentMediaType default dependentRequired deprecated
    description discriminator enum example examples exclusiveMaximum exclusiveMinimum externalDocs
    format maxContains maxItems maxLength maxProperties maximum minContains minItems minLength
    minProperties minimum multipleOf nullable readOnly required title type uniqueItems writeOnly xml
    """.split()  # noqa: SIM905  readable as text
)
CHECKED_FORMATS = frozenset(
    """
    date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference
    json-pointer regex relative-json-pointer time uri uri-reference uri-template uuid
    """.split()  # noqa: SIM905  readable as text
)
# Formats that are checked by the hint they were derived from, or that only say how a string is
# shown or encoded.
_OTHER_FORMATS = frozenset(
    """
    base64url binary byte color directory-path file-path ipv4interface ipv4network ipv6interface
    ipv6network ipvanyaddress ipvanyinterface ipvanynetwork json-string multi-host-uri name-email
    password path uuid1 uuid3 uuid4 uuid5 uuid6 uuid7 uuid8
    """.split()  # noqa: SIM905  readable as text
)


def _keywords(schema: JsonObject) -> Iterator[RuleFault]:
    for pointer, node in subschemas(schema):
        for key in node.keys() - _KEYWORDS:
            suggestion = did_you_mean(key, _KEYWORDS, cutoff=0.75)
            if suggestion:
                yield RuleFault(
                    "keyword",
                    f"/input_schema{pointer}/{escape_pointer(key)}",
                    f"the unknown keyword '{key[:_MAX_SHOWN]}' checks nothing{suggestion}",
                )


def _formats(schema: JsonObject) -> Iterator[RuleFault]:
    """Yield at most one fault per tool, at the first format that nothing checks."""
    pointers: dict[str, str] = {}
    for pointer, node in subschemas(schema):
        name = node.get("format")
        if isinstance(name, str) and name not in CHECKED_FORMATS | _OTHER_FORMATS:
            pointers.setdefault(name[:_MAX_SHOWN], pointer)
    if pointers:
        names = ", ".join(f"'{name}'" for name in list(pointers)[:_MAX_LISTED])
        is_single = len(pointers) == 1
        yield RuleFault(
            "keyword",
            f"/input_schema{next(iter(pointers.values()))}/format",
            f"nothing checks the format{'' if is_single else 's'} {names}: any value passes; add a "
            "pattern or an enum",
        )


def _open(definition: ToolDefinition, schema: JsonObject) -> Iterator[RuleFault]:
    keywords = ("additionalProperties", "unevaluatedProperties", "patternProperties")
    open_keywords = [key for key in keywords if schema.get(key) not in (None, False, {})]
    if not open_keywords:
        return
    defaults = {} if definition.defaults_json is None else json_copy(definition.defaults_json)
    undeclared = [name for name in defaults if name not in definition.properties]
    parameters_text = (
        f", its parameters {', '.join(undeclared[:_MAX_LISTED])} among them" if undeclared else ""
    )
    yield RuleFault(
        "open",
        f"/input_schema/{open_keywords[0]}",
        f"it takes arguments that it does not declare{parameters_text}: they reach the tool, but no "
        "record shows them; declare what may be sent, and remove the keyword",
    )


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _fits(node: JsonObject, definitions: JsonObject) -> bool:
    """Check a default with the `$defs` of the whole schema. If it cannot be checked separately, it
    counts as valid."""
    value = node["default"]
    if node.keys() <= _TYPE_AND_ANNOTATIONS:
        is_valid = _fits_type(node.get("type"), value)
        if is_valid is not None:
            return is_valid
    bare = {key: part for key, part in node.items() if key not in _DEFINITION_KEYWORDS}
    try:
        validator = compile_validator({**definitions, "properties": {"value": bare}})
    except SchemaError:
        return True
    return validator.is_valid({"value": value})


def _fits_type(kind: JsonValue, value: JsonValue) -> bool | None:
    """Return the verdict on a schema that consists only of a type, without compiling it."""
    if kind is None:
        return True
    if not isinstance(kind, str) or kind not in _PYTHON_TYPES:
        return None
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return is_whole(value)
    return isinstance(value, _PYTHON_TYPES[kind])


def _enums(schema: JsonObject) -> Iterator[RuleFault]:
    for pointer, node in subschemas(schema):
        if isinstance(node.get("enum"), list) and "type" not in node:
            message = "its enum has no type, which some endpoints need: add one"
            yield RuleFault("enum", f"/input_schema{pointer}/enum", message)


# Rule `name`: names that a model or a reader confuses.
#
# Beyond what a catalog refuses, these are worth a look: names of the same words in another order,
# and names that differ only in their digits, or by one letter within a word (a typing error, or two
# spellings). A plural is not such an error: `get_user` and `get_users` are often both wanted.

_MIN_LETTERS = 5
"""With fewer letters, changing one letter makes a different word (`min` and `mid`)."""

_DIRECTIONS = frozenset("to from into in of by as for before after 2".split())  # noqa: SIM905
"""Around these words the order has a meaning: `celsius_to_fahrenheit`."""


def check_names(names: Sequence[str]) -> Iterator[tuple[int, RuleFault]]:
    """Yield each name that is easily confused with an earlier one, with its position."""
    reported: set[int] = set()
    for key, relation in _CONFUSIONS:
        first_indices: dict[object, int] = {}
        for index, name in enumerate(names):
            for variant in key(name):
                first_index = first_indices.setdefault(variant, index)
                if first_index != index and index not in reported and names[first_index] != name:
                    if relation == _BY_A_LETTER and not _is_misspelling(name, names[first_index]):
                        continue
                    reported.add(index)
                    message = f"it {relation} '{names[first_index]}': rename one of them"
                    yield index, RuleFault("name", "/name", message)


def _sorted_words(name: str) -> Iterator[object]:
    parts = name_words(name)
    if not _DIRECTIONS.intersection(parts):
        yield tuple(sorted(parts))


def _without_digits(name: str) -> Iterator[object]:
    yield tuple(word for word in name_words(name) if not word.isdigit())


def _one_letter(name: str) -> Iterator[object]:
    """Yield forms: two words that share one differ by a letter, or have two letters swapped."""
    parts = name_words(name)
    for index, word in enumerate(parts):
        if len(word) >= _MIN_LETTERS and word.isalpha():
            for shortened in {word} | {word[:i] + word[i + 1 :] for i in range(len(word))}:
                yield parts[:index], shortened, parts[index + 1 :]


_BY_A_LETTER = "differs by a letter from"
_CONFUSIONS: tuple[tuple[Callable[[str], Iterator[object]], str], ...] = (
    (_sorted_words, "has the same words as"),
    (_without_digits, "differs only in digits from"),
    (_one_letter, _BY_A_LETTER),
)


def _is_misspelling(name: str, other: str) -> bool:
    """Return whether a letter was added, changed or swapped, other than for a plural."""
    pairs = zip(name_words(name), name_words(other), strict=True)
    ((word, other_word),) = [(a, b) for a, b in pairs if a != b]
    if len(word) != len(other_word):
        short, long = sorted((word, other_word), key=len)
        return long != short + "s"
    indices = [index for index, (a, b) in enumerate(zip(word, other_word, strict=True)) if a != b]
    if len(indices) == 2:
        first, second = indices
        return (
            second == first + 1
            and word[first] == other_word[second]
            and word[second] == other_word[first]
        )
    return len(indices) == 1


# Rule `similar`: two tools that are described in the same words.
#
# The measure is the Jaccard index of the sets of words, |A ∩ B| / |A ∪ B|, over lower-case words
# after NFKC, of the first 8,192 characters. `SIMILAR` or more counts as the same. If two
# descriptions differ exactly in the words in which the names differ (create/delete), they tell a
# model what it needs, and pass.
#
# Candidates come from an inverted index over each set's rarest words. For an index of at least t,
# two sets share one of the |A| - ceil(t·|A|) + 1 rarest words of each (prefix filtering, Chaudhuri
# et al. 2006, "A primitive operator for similarity joins"), so few pairs are compared.

SIMILAR = 0.9
_MAX_CANDIDATES = 300  # index entries for one description; with more, there are other problems


def check_similar(definitions: Sequence[ToolDefinition]) -> Iterator[tuple[int, RuleFault]]:
    """Yield each description that nearly repeats an earlier one, with the position of its tool."""
    word_sets = [frozenset(words(d.description)) for d in definitions]
    counts = Counter(word for word_set in word_sets for word in word_set)
    tools_by_word: defaultdict[str, list[int]] = defaultdict(list)
    first_indices: dict[frozenset[str], int] = {}
    for index, word_set in enumerate(word_sets):
        if not word_set:
            continue
        prefix = _prefix(word_set, counts)
        first_index = first_indices.setdefault(word_set, index)
        similar_index = (
            first_index
            if first_index != index
            else _earlier_similar(index, prefix, tools_by_word, word_sets, definitions)
        )
        if first_index == index:
            for word in prefix:
                tools_by_word[word].append(index)
        if similar_index is not None:
            yield index, _fault(definitions[similar_index], exact=first_index != index)


def _prefix(word_set: frozenset[str], counts: Counter[str]) -> list[str]:
    length = len(word_set) - ceil(SIMILAR * len(word_set)) + 1
    return sorted(word_set, key=lambda word: (counts[word], word))[:length]


def _earlier_similar(
    index: int,
    prefix: list[str],
    tools_by_word: defaultdict[str, list[int]],
    word_sets: list[frozenset[str]],
    definitions: Sequence[ToolDefinition],
) -> int | None:
    word_set = word_sets[index]
    candidates = islice(
        (candidate for word in prefix for candidate in tools_by_word[word]), _MAX_CANDIDATES
    )
    for candidate in dict.fromkeys(candidates):
        shared = len(word_set & word_sets[candidate])
        if shared >= SIMILAR * (len(word_set) + len(word_sets[candidate]) - shared):
            differing = word_set ^ word_sets[candidate]
            name, candidate_name = (
                set(name_words(definitions[tool_index].name)) for tool_index in (index, candidate)
            )
            if not differing <= name ^ candidate_name:
                return candidate
    return None


def _fault(other: ToolDefinition, *, exact: bool) -> RuleFault:
    relation = (
        "has the same description as" if exact else "is described in nearly the same words as"
    )
    message = f"it {relation} '{other.name}': say when to use which, or merge them into one tool"
    return RuleFault("similar", "/description", message)


# Rules `conflict` and `spelling`: parameters across tools, whose meaning a model carries from one
# to another.
#
# If one tool takes `id` as a number, another should not take it as a string. If one counts in
# seconds, another should not count in milliseconds. One meaning should have one spelling. Each such
# parameter is reported once per catalog, at the tool that is in the minority. It is normal, and no
# fault, that two tools mean different things by a common word (`name`, `query`).


# Words that name a role and no thing. Their type depends on the tool.
_ROLES = frozenset(
    """
    a arg args argument arguments array b body c config content criteria data default details
    element elements fields filter filters input inputs item items k key list m metadata n num
    number numbers object operand options order output p parameter parameters params payload
    properties query r range result results sort source t target text threshold type update
    updates v val value values vector x y z
    """.split()  # noqa: SIM905  readable as text
)
# The words for the units of time, length, temperature, mass, money and size, and forms of dates.
_UNITS = [
    {unit: re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) for unit, words in units.items()}
    for units in (
        {
            "seconds": "seconds|secs",
            "milliseconds": "milliseconds|millis|msecs|ms",
            "minutes": "minutes|mins",
            "hours": "hours",
            "days": "days",
        },
        {
            "metres": "met(?:re|er)s",
            "kilometres": "kilomet(?:re|er)s|km",
            "miles": "miles",
            "feet": "feet",
            "centimetres": "centimet(?:re|er)s|cm",
        },
        {"Celsius": "celsius", "Fahrenheit": "fahrenheit", "kelvin": "kelvins?"},
        {"kilograms": "kilograms?|kg", "grams": "grams", "pounds": "pounds|lbs"},
        {"cents": "cents", "dollars": "dollars"},
        {
            form: form.lower()
            for form in ("YYYY-MM-DD", "MM/DD/YYYY", "DD/MM/YYYY", "MM-DD-YYYY", "DD-MM-YYYY")
        },
        {"bytes": "bytes", "megabytes": "megabytes|mb"},
    )
]
_MAX_TOOLS = 3

_ParameterUse: TypeAlias = "tuple[int, Property]"


def check_shared(definitions: Sequence[ToolDefinition]) -> Iterator[tuple[int, RuleFault]]:
    """Yield each parameter that differs between tools, with the position of the odd tool."""
    schemas = [definition.input_schema or {} for definition in definitions]
    uses_by_name: defaultdict[str, list[_ParameterUse]] = defaultdict(list)
    spellings: defaultdict[str, dict[str, list[_ParameterUse]]] = defaultdict(dict)
    for index, schema in enumerate(schemas):
        for parameter in _top_parameters(schema):
            uses_by_name[parameter.name].append((index, parameter))
            key = parameter.name.replace("_", "").replace("-", "").lower()
            spellings[key].setdefault(parameter.name, []).append((index, parameter))
    names = [definition.name for definition in definitions]
    roots = [References(schema) for schema in schemas]
    for name, uses in uses_by_name.items():
        if len(uses) > 1 and name.lower() not in _ROLES:
            yield from _conflicts(name, uses, roots, names)
    for variants in spellings.values():
        if len(variants) > 1:
            yield _spelling(variants, names)


def _top_parameters(schema: JsonObject) -> Iterator[Property]:
    return (p for p in properties(schema) if p.pointer.count("/") == 2)


def _conflicts(
    name: str, uses: list[_ParameterUse], roots: list[References], names: list[str]
) -> Iterator[tuple[int, RuleFault]]:
    for relation, measure in _MEASURES:
        uses_by_value: defaultdict[str, list[_ParameterUse]] = defaultdict(list)
        for index, parameter in uses:
            value = measure(parameter, roots[index])
            if value is not None:
                uses_by_value[value].append((index, parameter))
        if len(uses_by_value) < 2:
            continue
        (usual_value, usual_uses), *odd_groups = sorted(
            uses_by_value.items(), key=lambda group: -len(group[1])
        )
        for value, odd_uses in odd_groups:
            index, parameter = odd_uses[0]
            message = (
                f"'{name}' is {relation} {value} in {_tools(odd_uses, names)}, and {usual_value} in "
                f"{_tools(usual_uses, names)}: make them the same, or give them different names"
            )
            yield index, RuleFault("conflict", f"/input_schema{parameter.pointer}", message)


def _type(parameter: Property, root: References) -> str | None:
    """Return string, number or boolean, which are easily confused; None for lists and objects."""
    schema = parameter.schema
    target = schema.get("$ref")
    if isinstance(target, str):
        resolved = root.resolve(target)
        schema = resolved if isinstance(resolved, dict) else schema
    kinds = types(schema)
    if kinds is None or len(kinds) != 1:
        return None
    (kind,) = kinds
    return kind if kind in ("string", "number", "boolean") else None


def _unit(units: dict[str, re.Pattern[str]], parameter: Property, _root: References) -> str | None:
    """Return the unit that a parameter's description names, if it names exactly one."""
    text = parameter.schema.get("description")
    if not isinstance(text, str):
        return None
    named_units = [unit for unit, pattern in units.items() if pattern.search(text)]
    return named_units[0] if len(named_units) == 1 else None


def _format(parameter: Property, _root: References) -> str | None:
    format_name = parameter.schema.get("format")
    return format_name if isinstance(format_name, str) else None


_Measure: TypeAlias = Callable[[Property, References], str | None]
# What a parameter is by one measure; parameters that differ in it conflict.
_MEASURES: tuple[tuple[str, _Measure], ...] = (
    ("a", _type),
    ("of format", _format),
    *(("in", partial(_unit, units)) for units in _UNITS),
)


def _spelling(variants: dict[str, list[_ParameterUse]], names: list[str]) -> tuple[int, RuleFault]:
    ranked = sorted(variants.items(), key=lambda variant: -len(variant[1]))
    (usual_name, usual_uses), (_, odd_uses) = ranked[0], ranked[-1]
    index, parameter = odd_uses[0]
    others = "; ".join(f"'{name}' in {_tools(uses, names)}" for name, uses in ranked[1:])
    return index, RuleFault(
        "spelling",
        f"/input_schema{parameter.pointer}",
        f"one parameter with several spellings: '{usual_name}' in {_tools(usual_uses, names)}; "
        f"{others}: use one",
    )


def _tools(uses: list[_ParameterUse], names: list[str]) -> str:
    indices = list(dict.fromkeys(index for index, _ in uses))
    return listed([names[index] for index in indices], _MAX_TOOLS)
