"""What a scorer reads: plain words, from any request and any definition.

Rule: no input makes this code fail. Every text is first cut to a fixed length, so that hostile
input costs no more than a long harmless one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

from toolcrib.errors import PickError
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue, encodable

T = TypeVar("T")

MAX_CHARS = 16_384
_MAX_WORD = 64
_MAX_SCHEMAS = 4_096

STOP_WORDS = frozenset(
    """
    a about above after again against all also am an and any are as at be because been before being
    below between both but by can could d did do does doing don down during each either else ever
    few for from further get had has have having he her here hers herself him himself his how i if
    in into is it its itself just let like ll lot m me might more most must my myself need no nor
    not now of off on once one only or other our ours ourselves out over own per please re s same
    shall she should so some such t than that the their theirs them themselves then there these they
    this those through thus to too under until up upon us use using ve very via want was we were
    what when where whether which while who whom whose why will with within without would you your
    yours yourself yourselves
    """.split()  # noqa: SIM905  more readable
)

_SPLITTING_TABLE = bytes(code if chr(code).isalnum() else 32 for code in range(128)) + bytes(128)
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z][A-Z0-9]*|[0-9]+")
_CJK = (  # a pattern that is compiled when a text needs it
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
_MAPS_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_NOT_SCHEMAS = frozenset({"enum", "const", "default", "examples", "required"})
_CONTAINER = (dict, list)


def clip(text: str) -> str:
    """Return `text`, or the first and last `MAX_CHARS / 2` of a longer one. Lone surrogates become
    `?`."""
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]} {text[-half:]}"
    return text if text.isascii() else encodable(text)


def words(text: str, *, stop_words: bool = False) -> list[str]:
    """Return the searchable words of `text`, in order and with repetitions. English stop words are
    included only on request.

    NFKC and lower case are applied. camelCase and snake_case are split (a camelCase word is also
    kept whole, since "YouTube" is also written "youtube"). Runs of CJK become overlapping pairs.
    """
    all_words = [word for raw in raw_words(text) for word in parts(raw)]
    return all_words if stop_words else [word for word in all_words if word not in STOP_WORDS]


def raw_words(text: str) -> list[str]:
    """Return the runs of letters and digits in `text`, unchanged except for NFKC."""
    plain = clip(text)
    return _raw_words(plain if plain.isascii() else unicodedata.normalize("NFKC", plain))


def parts(raw: str) -> tuple[str, ...]:
    """Return the words that one of the `raw_words` stands for, without words longer than 64
    characters."""
    candidates = _humps(raw) if raw.isascii() else _pieces(raw)
    return tuple(word for word in candidates if len(word) <= _MAX_WORD)


def spaced_name(name: str) -> str:
    """Return a tool's or parameter's name as words: `getUser_byID` reads "get user by id"."""
    return " ".join(
        [_spaced(raw) if len(raw) <= _MAX_WORD else _split_words(raw) for raw in _raw_words(name)]
    )


def _split_words(raw: str) -> str:
    return " ".join(_HUMPS.findall(raw) or [raw]).lower()


_spaced = lru_cache(maxsize=1 << 14)(_split_words)


def _raw_words(text: str) -> list[str]:
    if not text.isascii():  # a combining mark is no \w, but belongs to its word
        text = "".join(
            c if c.isalnum() or unicodedata.category(c) in {"Mn", "Mc"} else " " for c in text
        )
        return [word for word in text.split() if any(map(str.isalnum, word))]
    return text.encode("ascii").translate(_SPLITTING_TABLE).decode("ascii").split()


def _humps(word: str) -> list[str]:
    if word.islower() or word.isdigit():
        return [word]
    parts = [part.lower() for part in _HUMPS.findall(word)]
    return [*parts, word.lower()] if len(parts) > 1 else parts


def _pieces(word: str) -> Iterator[str]:
    for piece in re.split(_CJK, word):
        if len(piece) > 1 and re.match(_CJK, piece):
            yield from (piece[i : i + 2] for i in range(len(piece) - 1))
        elif piece:
            yield piece.casefold()


def one_line(text: str, limit: int) -> str:
    """Return a text on one line, without any kind of line end, and cut to this length."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Fields(NamedTuple):
    """The texts of a definition, by field."""

    name: str
    description: str
    parameters: str
    parameter_text: str
    tags: str


def fields(definition: ToolDefinition) -> Fields:
    """Return the five searchable fields. `parameter_text` has descriptions and the strings of
    enums.

    Raises PickError for a definition whose schema is not JSON.
    """
    names: list[str] = []
    texts: list[str] = []
    try:
        input_schema = definition.input_schema
    except ValueError:
        raise no_json(definition.name) from None
    for schema in _schemas(input_schema):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            names += properties
        description = schema.get("description")
        if isinstance(description, str):
            texts.append(description)
        values = schema.get("enum")
        if isinstance(values, list):
            texts += [value for value in values if isinstance(value, str)]
    return Fields(
        definition.name,
        definition.description,
        " ".join(names),
        " ".join(texts),
        " ".join(definition.tags),
    )


def no_json(tool: str) -> PickError:
    return PickError(
        f"tool {tool!r}: a schema or an example of its definition is not JSON, or is nested too deeply"
    )


def _schemas(schema: JsonValue) -> list[dict[str, Any]]:
    """Return the first `_MAX_SCHEMAS` subschemas in document order. No `$ref` is followed."""
    schemas: list[dict[str, Any]] = []
    pending: list[JsonValue] = [schema]
    for _ in range(_MAX_SCHEMAS):
        if not pending:
            break
        current = pending.pop()
        if isinstance(current, list):
            pending += reversed(current)
        elif isinstance(current, dict):
            schemas.append(current)
            children: list[JsonValue] = []
            for key, value in current.items():
                if not isinstance(value, _CONTAINER):
                    continue
                if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                    children += value.values()
                elif key not in _NOT_SCHEMAS:
                    children.append(value)
            pending += reversed(children)
    return schemas


# Stems: a word without accents, and for English words without its ending.
#
# Rule: a stem depends on its word alone. Words of other alphabets keep their endings.
#
# The algorithm is Porter's: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980.
# Where a comment names a condition, it is in the paper's notation. Two of the author's later
# changes are included: -bli and -logi (https://tartarus.org/martin/PorterStemmer).


_LONGEST, _MOST = 40, 1 << 15
"""Characters of the longest raw word whose stems are kept, and how many words are kept."""
_ACCENTS = dict.fromkeys(range(0x300, 0x370))
_VOWELS = frozenset("aeiou")

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize",
    "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful",
    "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion",
     "ou", "ism", "ate", "iti", "ous", "ive", "ize"], ""
)  # fmt: skip
# Step 4: (m>1 and (*S or *T)) ION, the letter before it stays.
_KEPT_LETTERS = {"sion": "s", "tion": "t"}


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of a lower-case word. "currencies" and "currency" have the same, as do
    "zürich" and "zurich"."""
    if not word.isascii():
        unaccented = unicodedata.normalize("NFD", word).translate(_ACCENTS)
        word = unicodedata.normalize("NFC", unaccented) or word
    if len(word) < 3 or not word.isascii() or word[-1].isdigit():
        return word
    word = _step_1(word)
    word = _replaced(word, _STEP_2, above=0)
    word = _replaced(word, _STEP_3, above=0)
    word = _replaced(word, _STEP_4, above=1)
    return _step_5(word)


def stems(text: str, *, stop_words: bool = False) -> list[str]:
    """Return the stems of `text.words(text)`, in order."""
    return (_STEMS_WITH_ALL if stop_words else _STEMS).of(raw_words(text))


def words_of(stems: frozenset[str], text: str, *, stop_words: bool = False) -> list[str]:
    """Return those of `text.words(text)` that have one of these stems, each once."""
    cache, has_none = _STEMS_WITH_ALL if stop_words else _STEMS, stems.isdisjoint
    raws = raw_words(text)
    if has_none(cache.of(raws)):
        return []
    matching = [raw for raw in raws if not has_none(cache.of([raw]))]
    candidates = (word for raw in matching for word in parts(raw) if stem(word) in stems)
    return [word for word in dict.fromkeys(candidates) if stop_words or word not in STOP_WORDS]


class _Stems:
    """The stems of each of the `text.raw_words`, which are made when they are first needed.

    Long words (a sentence of CJK, which has no spaces) are not kept, and if there are too many
    words, all are dropped. So no request fills the memory.
    """

    def __init__(self, without: frozenset[str]) -> None:
        self._without = without
        self._kept: dict[str, tuple[str, ...]] = {}

    def of(self, raws: list[str]) -> list[str]:
        try:
            return [*chain.from_iterable(map(self._kept.__getitem__, raws))]
        except KeyError:  # one of the words is new
            return [*chain.from_iterable(map(self._stems_of, raws))]

    def _stems_of(self, raw: str) -> tuple[str, ...]:
        raw_stems = self._kept.get(raw)
        if raw_stems is None:
            raw_stems = tuple(stem(word) for word in parts(raw) if word not in self._without)
            if len(raw) <= _LONGEST:
                if len(self._kept) >= _MOST:
                    self._kept.clear()
                self._kept[raw] = raw_stems
        return raw_stems


_STEMS = _Stems(STOP_WORDS)
_STEMS_WITH_ALL = _Stems(frozenset())


def _shape(word: str) -> str:
    """Return `v` for each vowel and `c` for each consonant. A y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        is_vowel = letter in _VOWELS or (letter == "y" and shape[-1:] == "c")
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _is_short(word: str) -> bool:
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"  # *o


def _is_double(word: str) -> bool:
    return word[-1:] == word[-2:-1] and _shape(word).endswith("cc")  # *d


def _step_1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    elif word.endswith("ed") and _has_vowel(word[:-2]):
        word = _mended(word[:-2])
    elif word.endswith("ing") and _has_vowel(word[:-3]):
        word = _mended(word[:-3])
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mended(word: str) -> str:
    """Return what remains without -ed or -ing, in its own spelling."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _is_double(word) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _replaced(word: str, endings: dict[str, str], *, above: int) -> str:
    """Return the word with the longest of these endings replaced, if the rest has a measure above
    that."""
    for length in range(min(7, len(word)), 1, -1):
        ending = word[-length:]
        if ending in endings:
            rest = word[:-length] + _KEPT_LETTERS.get(ending, "")
            return rest + endings[ending] if _measure(rest) > above else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


# The parts of a request that asks for several things.
#
# Rule: nothing is added, and every word of the text is in exactly one segment.

_MOST_SEGMENTS = 8
_SEGMENT_WORDS = 4
"""Words of a segment. A shorter one ("Hello.", "e.g.", "1.") is joined with what follows it."""

_ENDS = r"(?<=[.!?;…؟؛۔।])(?=\s)|(?<=[。！？；｡])|\n+"
_PAUSES = r"[,،](?=\s)|[，、]"
_TURNS = r"[,;]?(?<!\s)\s++(?=(?:and|then|also|afterwards|finally|additionally|furthermore)\b)"
_BREAK = f"(?i){_ENDS}|{_TURNS}|{_PAUSES}"  # patterns that are compiled when first needed
_WORD = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+"


def segments(text: str) -> list[str]:
    """Return the parts of a request, one to eight, in order; none for a text without a word.

    A text is split at the ends of sentences and lines and at commas, in any script, and before the
    English words that begin a further request ("and", "then", "also", …). Parts of fewer than four
    words (for Chinese, Japanese and Korean, characters) are joined with the next part. If there are
    more than eight parts, neighbours are joined.

    The parts are meant to be scored one by one, and a tool by the best of them. Among the sets of
    `toolcrib eval-pick`, nestful, whose requests ask for several tools, gains 0.012 nDCG@10.
    """
    parts: list[str] = []
    pieces: list[str] = []
    words = 0
    for piece in filter(None, map(str.strip, re.split(_BREAK, clip(text)))):
        pieces.append(piece)
        words += len(re.findall(_WORD, piece))
        if words >= _SEGMENT_WORDS:
            parts.append(" ".join(pieces))
            pieces, words = [], 0
    if words:
        parts[-1:] = [" ".join([*parts[-1:], *pieces])]
    return _joined(parts)


def _joined(parts: list[str]) -> list[str]:
    """Join neighbours into at most eight runs of about equal numbers."""
    count = min(_MOST_SEGMENTS, len(parts))
    bounds = [len(parts) * index // count for index in range(count + 1)] if count else []
    return [" ".join(parts[start:end]) for start, end in pairwise(bounds)]
