"""Each entry seals the one before: what is changed, removed or put in later shows.

An entry's hash is the SHA-256 of the RFC 8785 text of `{"at", "previous", "record", "seq"}`, in
hexadecimal; with a key it is the HMAC-SHA256 (RFC 2104). A plain chain proves nothing against who can
write to the database: it can be recomputed from any entry on. A key that is kept from the database, or
a head that is kept elsewhere, makes that show.
"""

from __future__ import annotations

import hashlib
import hmac

from toolcrib.audit.entry import Head
from toolcrib.errors import ToolcribError
from toolcrib.values.json import canonical_json

GENESIS = Head(0, "0" * 64)


class Seal:
    """The hash of a text, made with the log's key if it has one."""

    def __init__(self, key: str | bytes | None) -> None:
        if key is not None and not key:
            raise ToolcribError("the audit log's key is empty: anybody has that one")
        # an environment variable may hold bytes that are no text: they are the key's, as they were
        self._key = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key

    def __call__(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        if self._key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.digest(self._key, data, "sha256").hex()

    def subkey(self, purpose: str) -> bytes | None:
        """A key for something else, of the log's own: what it makes can never pass for a seal, whose
        texts all begin with a brace. None for a log without a key."""
        if self._key is None:
            return None
        return hmac.digest(self._key, f"toolcrib {purpose}".encode(), "sha256")

    def entry(self, previous: Head, at: float, record: str) -> Head:
        """The head that an entry makes, with the canonical text of its record, after `previous`."""
        number = previous.seq + 1
        return Head(number, self(_members(number, at, previous.hash, record, "")))

    def head(self, head: Head) -> str:
        """What only a holder of the key can say about a head: that it was the last one."""
        return self(f'{{"hash":"{head.hash}","seq":{head.seq}}}')


def line(head: Head, at: float, previous: str, record: str) -> str:
    """An entry as one line of an export: RFC 8785 text. Without its `hash`, it is what was hashed."""
    return _members(head.seq, at, previous, record, f'"hash":"{head.hash}",')


def _members(seq: int, at: float, previous: str, record: str, own: str) -> str:
    return f'{{"at":{_seconds(at)},{own}"previous":"{previous}","record":{record},"seq":{seq}}}'


def _seconds(at: float) -> str:
    """Python writes the times of our days as RFC 8785 does, and sooner than `canonical_json`."""
    ours = at.__class__ is float and 1.0 < at < 1e15 and not at.is_integer()
    return repr(at) if ours else canonical_json(at)
