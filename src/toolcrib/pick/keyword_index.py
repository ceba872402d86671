"""The words of a catalog: in which tools each of them is, and how strongly.

Rule: what stands in an index of a tool depends on that tool alone. So an index that lost some tools and
got others is equal to one built anew, but for the order of its slots, which nothing shows.

A word's impact on a tool is BM25F's (S. Robertson, H. Zaragoza, "The Probabilistic Relevance Framework:
BM25 and Beyond", 2009, 3.6), but with fixed lengths where that has a collection's mean ones:
`x = sum over fields of weight * count / (0.7 + 0.3 * length / usual)`, `impact = 2.2 x / (x + 1.2)`.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import unicodedata
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b, sha256
from itertools import takewhile
from math import ceil
from operator import eq, truth
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.words import fields, stems
from toolcrib.storage import create_private
from toolcrib.values.definition import ToolDefinition

K1 = 1.2
SATURATION = K1 + 1
"""No impact is as high."""

_WEIGHTS = (4.0, 1.0, 1.0, 0.6, 0.5)  # by field, in the order of `Fields`
_USUAL = (4, 10, 4, 16, 2)  # words
_B = 0.3
_STEP = 64
_SHORTEST = 4
_ALIKE = 0.8
_BESIDE = 32
"""Known words before and after an unknown one, in the order of the alphabet, that are looked at."""


class Posting(NamedTuple):
    """The tools that have a word: their slots, ascending, its impact on each, and the highest."""

    slots: array[int]
    impacts: array[float]
    most: float


class WordIndex:
    """A catalog's words. A tool has a slot; `place[slot]` is its position, or -1 for one that is gone.

    `texts[slot]` is the stems of its name and of its description, " one two | three four ". Nothing in
    it changes once it is made, and indexes that were derived from one another share what they can.
    """

    def __init__(
        self,
        definitions: Sequence[ToolDefinition],
        place: array[int],
        texts: list[str],
        postings: dict[str, Posting],
    ) -> None:
        self.definitions = definitions
        self.place = place
        self.texts = texts
        self.postings = postings

    @cached_property
    def digests(self) -> frozenset[str]:
        return frozenset([definition.digest for definition in self.definitions])

    @cached_property
    def slots(self) -> array[int]:
        """The slot of each position."""
        found = array("i", bytes(4 * len(self.definitions)))
        for slot, position in enumerate(self.place):
            if position >= 0:
                found[position] = slot
        return found

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The position of the first tool of each name."""
        names = [definition.name for definition in self.definitions]
        return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))

    def nearest(self, word: str) -> tuple[str, float] | None:
        """The known word that an unknown one most likely stands for, and how alike they are, in 0..1.

        That is one with the same first letters (four, and four fifths of the word), or one that it
        begins with: "cryptocurrency" and "crypto". Alike is the part of the longer that they share.
        """
        if len(word) < _SHORTEST or not word.isalpha():
            return None
        begin = word[: max(_SHORTEST, ceil(_ALIKE * len(word)))]
        found: list[tuple[float, str]] = []
        at = bisect_left(self._sorted, word)
        for known in self._sorted[max(0, at - _BESIDE) : at + _BESIDE]:
            if known.startswith(begin):
                shared = sum(1 for _ in takewhile(truth, map(eq, known, word)))
                found.append((-shared / max(len(known), len(word)), known))
        for length in range(len(word) - 1, _SHORTEST - 1, -1):
            if word[:length] in self.postings:
                found.append((-length / len(word), word[:length]))
                break
        if not found:
            return None
        alike, known = min(found)
        return known, -alike

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.postings)


_NOWHERE = Posting(array("I"), array("f"), 0.0)
_EMPTY = WordIndex((), array("i"), [], {})


def index_steps(
    definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex] = ()
) -> Iterator[WordIndex | None]:
    """The index of these definitions, after a None every now and then.

    It is derived from the one of `kept` that shares most with it, if that is at least half of it.
    """
    base = _most_alike(definitions, kept)
    place = array("i", [-1]) * len(base.place)
    free: dict[str, list[int]] = {}
    for position in range(len(base.definitions) - 1, -1, -1):
        free.setdefault(base.definitions[position].digest, []).append(base.slots[position])
    texts = base.texts.copy()
    grown: dict[str, tuple[array[int], array[float]]] = defaultdict(_columns)
    for position, definition in enumerate(definitions):
        known = free.get(definition.digest) if free else None
        if known:
            place[known.pop()] = position
            continue
        impacts, text = entry_of(definition)
        slot = len(place)
        for word, impact in impacts.items():
            slots_of_word, impacts_of_word = grown[word]
            slots_of_word.append(slot)
            impacts_of_word.append(impact)
        place.append(position)
        texts.append(text)
        if position % _STEP == 0:
            yield None
    gone: dict[str, list[int]] = {}
    for slot in sorted(slot for slots in free.values() for slot in slots):
        texts[slot] = ""
        for word in entry_of(base.definitions[base.place[slot]])[0]:
            gone.setdefault(word, []).append(slot)
    yield WordIndex(tuple(definitions), place, texts, _changed(base.postings, gone, grown))


def _columns() -> tuple[array[int], array[float]]:
    return array("I"), array("f")


def _most_alike(definitions: Sequence[ToolDefinition], kept: Sequence[WordIndex]) -> WordIndex:
    wanted = frozenset([definition.digest for definition in definitions]) if kept else frozenset()
    best, most = _EMPTY, len(wanted) // 2
    for index in kept:
        small_enough = len(index.place) <= 2 * len(definitions)  # with the slots of those gone
        shared = len(wanted & index.digests) if small_enough else 0
        if shared > most:
            best, most = index, shared
    return best


def _changed(
    postings: dict[str, Posting],
    gone: dict[str, list[int]],
    grown: dict[str, tuple[array[int], array[float]]],
) -> dict[str, Posting]:
    found = postings.copy()
    for word, slots in gone.items():
        old = postings[word]
        left = Posting(old.slots[:], old.impacts[:], 0.0)
        for slot in reversed(slots):
            at = bisect_left(left.slots, slot)
            del left.slots[at], left.impacts[at]
        if left.slots:
            found[word] = left._replace(most=max(left.impacts))
        else:
            del found[word]
    for word, (slots_after, impacts_after) in grown.items():
        before = found.get(word, _NOWHERE)
        impacts = before.impacts + impacts_after
        found[word] = Posting(before.slots + slots_after, impacts, max(impacts))
    return found


def entry_of(definition: ToolDefinition) -> tuple[dict[str, float], str]:
    """What an index holds of a tool: each stem's impact, and the text of its name and description."""
    columns = stems_by_field(definition)
    weighed: dict[str, float] = {}
    for column, weight, usual in zip(columns, _WEIGHTS, _USUAL, strict=True):
        if not column:
            continue
        each = weight / (1 - _B + _B * len(column) / usual)
        for word in column:
            weighed[word] = weighed.get(word, 0.0) + each
    impacts = {word: SATURATION * x / (x + K1) for word, x in weighed.items()}
    return impacts, f" {' '.join(columns[0])} | {' '.join(columns[1])} "


def stems_by_field(definition: ToolDefinition) -> list[list[str]]:
    """The stems of each of the `Fields`: of the name all, of the others all but stop words."""
    text = fields(definition)
    return [stems(text.name, stop_words=True), *map(stems, text[1:])]


# Word indexes on disk: one file a catalog, named by what is in it.
#
# Rule: a file is taken only if it is whole and is the one for these very definitions and this version
# of the index; otherwise it is not there. Nothing that is read from it is run.

_VERSION = 1
"""To be raised with every change of the words of a definition, their stems or their impacts."""
_MAGIC = b"tcwords\n"
_HASH = 32
_SUFFIX = ".words"
_UNFINISHED = ".unfinished"
_KEPT = 16
_MAX_BYTES = 1 << 30
_HOUR = 3600.0


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The columns of an index. `counts` is the number of slots of each word."""

    words: list[str]
    counts: bytes
    slots: bytes
    impacts: bytes
    most: bytes
    place: bytes
    texts: list[str]


class IndexFolder:
    """A folder for at most 16 indexes: those not used for longest go first. Any number of processes
    may use it, and one that cannot write there reads. Who writes there may change a ranking, but
    gets nothing run. Raises PickError for a folder that cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PickError(
                f"the folder {self._folder} for indexes cannot be made ({error.strerror})"
            ) from None

    def load(self, definitions: Sequence[ToolDefinition]) -> WordIndex | None:
        """The index of these definitions, if it is there, and is whole."""
        key = _key(definitions)
        path = self._path(key)
        try:
            content = _content(path)
        except OSError:
            return None
        head, payload = content[: len(_MAGIC) + _HASH], memoryview(content)[len(_MAGIC) + _HASH :]
        if head != _MAGIC + _hash(key, payload):
            return None
        try:
            found = _index(msgspec.msgpack.decode(payload, type=_Kept), definitions)
        except (msgspec.DecodeError, ValueError):
            return None
        with suppress(OSError):  # a folder that may only be read serves as well
            os.utime(path)
        return found

    def save(self, index: WordIndex) -> None:
        """Where it cannot be written, nothing is: the index is in memory, and that is enough."""
        key = _key(index.definitions)
        payload = msgspec.msgpack.encode(_kept(index))
        with suppress(OSError):
            unfinished = self._folder / (uuid4().hex + _UNFINISHED)
            try:
                with create_private(unfinished) as file:
                    file.write(_MAGIC + _hash(key, payload))
                    file.write(payload)
                unfinished.replace(self._path(key))
            finally:
                unfinished.unlink(missing_ok=True)
            self._prune()

    def _path(self, key: bytes) -> Path:
        return self._folder / (key.hex() + _SUFFIX)

    def _prune(self) -> None:
        aged = []
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process may have been quicker
                used = path.stat().st_mtime
                if path.suffix == _SUFFIX:
                    aged.append((used, path))
                elif path.suffix == _UNFINISHED and used < time.time() - _HOUR:
                    path.unlink()  # of a process that was killed
        for _, path in sorted(aged)[: max(0, len(aged) - _KEPT)]:
            with suppress(OSError):
                path.unlink()


def _content(path: Path) -> bytes:
    """What is in a regular file; a pipe is not waited for. Raises OSError where there is none."""
    with open(path, "rb", opener=_opened) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
            raise OSError("no index")
        return file.read()


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _key(definitions: Sequence[ToolDefinition]) -> bytes:
    """Over the digests in their order, and all else that an index depends on."""
    widths = f"{sys.byteorder} {array('I').itemsize} {array('i').itemsize}"
    made_by = f"{_VERSION} {unicodedata.unidata_version} {widths}"
    return sha256("\n".join([made_by, *(d.digest for d in definitions)]).encode()).digest()


def _hash(key: bytes, payload: bytes | memoryview) -> bytes:
    return blake2b(payload, digest_size=_HASH, key=key).digest()


def _kept(index: WordIndex) -> _Kept:
    postings = index.postings.values()
    return _Kept(
        words=list(index.postings),
        counts=array("I", [len(posting.slots) for posting in postings]).tobytes(),
        slots=b"".join([posting.slots.tobytes() for posting in postings]),
        impacts=b"".join([posting.impacts.tobytes() for posting in postings]),
        most=array("f", [posting.most for posting in postings]).tobytes(),
        place=index.place.tobytes(),
        texts=index.texts,
    )


def _index(kept: _Kept, definitions: Sequence[ToolDefinition]) -> WordIndex:
    slots, impacts = array("I", kept.slots), array("f", kept.impacts)
    postings: dict[str, Posting] = {}
    start = 0
    for word, count, most in zip(
        kept.words, array("I", kept.counts), array("f", kept.most), strict=True
    ):
        end = start + count
        postings[word] = Posting(slots[start:end], impacts[start:end], most)
        start = end
    return WordIndex(tuple(definitions), array("i", kept.place), kept.texts, postings)
