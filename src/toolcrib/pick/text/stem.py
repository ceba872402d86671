"""What a word counts as: itself without accents, an English one without its ending.

Rule: a stem depends on its word alone. Words of other alphabets keep their endings.

The algorithm is Porter's: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980. Where
a comment names a condition, it is in the paper's notation. Two of the author's later changes are in:
-bli and -logi (https://tartarus.org/martin/PorterStemmer).
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from itertools import chain

from toolcrib.pick.text.words import STOP_WORDS, parts, raw_words

_LONGEST, _MOST = 40, 1 << 15
"""Characters of a raw word whose stems are kept, and how many of them are."""
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
_KEPT = {"sion": "s", "tion": "t"}  # step 4: (m>1 and (*S or *T)) ION, the letter before it stays


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a lower-case word: "currencies" and "currency" have one, "zürich" and "zurich"."""
    if not word.isascii():
        plain = unicodedata.normalize("NFD", word).translate(_ACCENTS)
        word = unicodedata.normalize("NFC", plain) or word
    if len(word) < 3 or not word.isascii() or word[-1].isdigit():
        return word
    word = _step_1(word)
    word = _replaced(word, _STEP_2, above=0)
    word = _replaced(word, _STEP_3, above=0)
    word = _replaced(word, _STEP_4, above=1)
    return _step_5(word)


def stems(text: str, *, stop_words: bool = False) -> list[str]:
    """The stems of `text.words(text)`, in order."""
    known = _STEMS_WITH_ALL if stop_words else _STEMS
    return [*chain.from_iterable(map(known.__getitem__, raw_words(text)))]


def words_of(stems: frozenset[str], text: str, *, stop_words: bool = False) -> list[str]:
    """Those of `text.words(text)` that have one of these stems, each once."""
    known, none = _STEMS_WITH_ALL if stop_words else _STEMS, stems.isdisjoint
    raws = raw_words(text)
    if none(chain.from_iterable(map(known.__getitem__, raws))):
        return []
    found = [raw for raw in raws if not none(known[raw])]
    each = (word for raw in found for word in parts(raw) if stem(word) in stems)
    return [word for word in dict.fromkeys(each) if stop_words or word not in STOP_WORDS]


class _Stems(dict[str, tuple[str, ...]]):
    """The stems of each of the `text.raw_words`, made when they are first asked for.

    Long ones (a sentence of CJK, which has no spaces) are not kept, and all are forgotten when they
    are too many: so no request fills the memory.
    """

    def __init__(self, without: frozenset[str]) -> None:
        self._without = without

    def __missing__(self, raw: str) -> tuple[str, ...]:
        found = tuple(stem(word) for word in parts(raw) if word not in self._without)
        if len(raw) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[raw] = found
        return found


_STEMS = _Stems(STOP_WORDS)
_STEMS_WITH_ALL = _Stems(frozenset())


def _shape(word: str) -> str:
    """`v` for each vowel, `c` for each consonant; a y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        vowel = letter in _VOWELS or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
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
    """What remains without -ed or -ing, as the word is written without them."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _is_double(word) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _replaced(word: str, endings: dict[str, str], *, above: int) -> str:
    """The longest of these endings replaced, where what is before it has a measure above that."""
    for length in range(min(7, len(word)), 1, -1):
        ending = word[-length:]
        if ending in endings:
            before = word[:-length] + _KEPT.get(ending, "")
            return before + endings[ending] if _measure(before) > above else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
