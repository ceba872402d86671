"""Word indexes on disk: one file a catalog, named by what is in it.

Rule: a file is taken only if it is whole and is the one for these very definitions and this version of
the index; otherwise it is not there. Nothing that is read from it is run.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import unicodedata
from array import array
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from uuid import uuid4

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.lexical.postings import Posting, WordIndex
from toolcrib.storage import create_private
from toolcrib.values.definition import ToolDefinition

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
