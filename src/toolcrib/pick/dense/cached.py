"""Vectors that were made once, kept on disk for every later process.

Rule: a kept vector is the one that the embedder gave, to the bit, or it is not there. What cannot be
kept on disk is kept in memory: a cache is no reason for a pick to fail.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.errors import PickError, SourceError
from toolcrib.pick.dense.embedding import Embedder
from toolcrib.pick.dense.vector_file import VectorFile
from toolcrib.pick.scoring.arrays import checked_rows, numpy
from toolcrib.pick.scoring.kept import trim
from toolcrib.storage.cache_folder import cache_folder

if TYPE_CHECKING:
    from toolcrib.pick.scoring.arrays import Vectors

_FILE = "vectors.sqlite"
_IN_MEMORY = 4096
_AT_ONCE = 256
"""Texts that are embedded before they are kept: what is stopped in a large catalog loses no more."""
_FORM = "<f4"


class CachedEmbedder:
    """Any embedder, asked only for texts that it was not asked for before.

    `name` says whose vectors they are: model, version, number of dimensions and all else that they
    depend on. By default it is the embedder's own `name`; embedders of different names may share a
    file. Meant for the texts of tools: scorers embed requests by `uncached`, the embedder itself.

    `path` is the file, by default `vectors.sqlite` in the user's cache folder (`TOOLCRIB_CACHE`,
    `XDG_CACHE_HOME`), which several processes may use at once. It grows to `max_bytes`, and then loses
    what was not used for longest. A broken file is begun anew. There are no texts in it, but vectors
    tell what a text was about: only its owner may read it. Where none can be written the 4,096 vectors
    made last are kept in memory instead, and a RuntimeWarning says so, once.

    Raises ValueError for an embedder without a name; `embed` SourceError where a file of another kind
    lies at a `path` that was given, PickError where the embedder does not give one finite row for each
    text, all of one length. Safe to use from threads and after a fork.
    """

    def __init__(
        self,
        embedder: Embedder,
        path: Path | str | None = None,
        *,
        name: str | None = None,
        max_bytes: int = 1 << 28,
    ) -> None:
        given = name or getattr(embedder, "name", None)
        if not isinstance(given, str) or not given:
            raise ValueError("CachedEmbedder: the embedder has no name; pass name=…")
        self.name = given
        self.uncached = embedder
        self._key = sha256(given.encode()).digest()
        self._memory: dict[bytes, bytes] = {}
        self._warned = False
        self._file: VectorFile | None = None
        try:
            where = Path(path).expanduser() if path else cache_folder() / _FILE
            self._file = VectorFile(where, max_bytes=max_bytes, sole=not path)
        except (SourceError, RuntimeError, OSError) as error:  # no home folder, no working folder
            self._warn(error)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, as the embedder gives them."""
        keys = [self._key_of(text) for text in texts]
        by_key = dict(zip(keys, texts, strict=True))
        rows = {key: numpy().frombuffer(kept, _FORM) for key, kept in self._kept(by_key).items()}
        rows |= self._made([key for key in by_key if key not in rows], by_key)
        if len({len(row) for row in rows.values()}) > 1:  # another model has the name now
            rows = self._made(list(by_key), by_key)
        if not rows:
            return self.uncached.embed([])
        if len({len(row) for row in rows.values()}) > 1:
            raise PickError(f"embedder {self.name!r} gave rows of different lengths")
        found: Vectors = numpy().stack([rows[key] for key in keys]).astype("float32")
        return found

    def _key_of(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return blake2b(data, key=self._key, digest_size=32).digest()

    def _made(self, keys: Sequence[bytes], texts: Mapping[bytes, str]) -> dict[bytes, Vectors]:
        found: dict[bytes, Vectors] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            new = dict(zip(some, self._embedded([texts[key] for key in some]), strict=True))
            self._keep({key: row.tobytes() for key, row in new.items()})
            found |= new
        return found

    def _embedded(self, texts: list[str]) -> Vectors:
        given = self.uncached.embed(texts)
        rows: Vectors = checked_rows(given, len(texts), who=f"embedder {self.name!r}", form=_FORM)
        return rows

    def _kept(self, keys: Mapping[bytes, object]) -> dict[bytes, bytes]:
        found = {key: kept for key in keys if (kept := self._memory.get(key)) is not None}
        wanted = [key for key in keys if key not in found]
        if wanted and self._file is not None:
            try:
                found |= self._file.get(wanted)
            except (OSError, sqlite3.Error) as error:
                self._warn(error)
        return found

    def _keep(self, entries: Mapping[bytes, bytes]) -> None:
        if self._file is not None:
            try:
                self._file.put(entries)
            except (OSError, sqlite3.Error) as error:
                self._warn(error)
            else:
                return
        self._memory |= entries
        trim(self._memory, _IN_MEMORY)

    def _warn(self, error: Exception) -> None:
        if self._warned or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return
        self._warned = True
        reason = error.strerror if isinstance(error, OSError) else error
        warnings.warn(
            f"vectors are kept in memory only, for the file cannot be used: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
