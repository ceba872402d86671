"""Each entry seals the one before, and one seal is over all that the log says of itself.

An entry's hash is the SHA-256 of the RFC 8785 text of `{"at", "previous", "record", "seq"}`, in
hexadecimal; with a key it is the HMAC-SHA256 (RFC 2104). A plain chain proves nothing against who can
write to the database: it can be recomputed from any entry on. A key that is kept from the database, or
a head or checkpoint that is kept elsewhere, makes that show.

A log of format 2 begins with a genesis, entry 0, which says the format and the log's random id. The
seal of its `State` is over where it begins and ends, the index of its idempotency keys and the tree of
its entries: nothing else in the database decides anything unless it leads up to that seal. In format 1
only the last entry was sealed.

A seal does not say that it is the newest: an older copy of the database has a seal that fits, too. So a
`Seal` remembers the newest state that was committed while the log is open; later ones follow from it.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from typing import Any

import msgspec

from toolcrib.audit.entry import FORMAT, Head
from toolcrib.errors import ToolcribError
from toolcrib.threads import renewed_in_children
from toolcrib.values.json import canonical_json

GENESIS = Head(0, "0" * 64)  # what the first entry of format 1 follows, and the head of no log
NOTHING = Head(-1, "0" * 64)  # what a genesis follows


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that a log says of itself: its last entry and, from format 2 on, what else is sealed.

    `first` is the number of the entry that is leaf 0 of the tree, `root` the hash of the tree over
    all entries since then (`tree`), `keys` that of the index of idempotency keys (`index`).
    """

    head: Head
    format: int = FORMAT
    log: str = ""
    first: int = 0
    keys: str = ""
    root: str = ""

    @property
    def size(self) -> int:
        """How many leaves the tree has."""
        return self.head.seq - self.first + 1

    def told(self) -> dict[str, Any]:
        """What the seal is over, as JSON."""
        head = {"hash": self.head.hash, "seq": self.head.seq}
        if self.format == 1:
            return head
        return {
            **head,
            "first": self.first,
            "format": self.format,
            "keys": self.keys,
            "log": self.log,
            "root": self.root,
        }


class Seal:
    """The hash of a text, made with the log's key if it has one."""

    def __init__(self, key: str | bytes | None) -> None:
        if key is not None and not key:
            raise ToolcribError("the audit log's key is empty: anybody has that one")
        # an environment variable may hold bytes that are no text: they are the key's, as they were
        self._key = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        self.known: dict[str, str] = {}  # by hash, what was sealed or checked before: see `index`
        self.newest: dict[
            str, State
        ] = {}  # by log, of all that were read or written, and committed
        self.renew()
        renewed_in_children(self)

    def renew(self) -> None:
        """In a forked child another thread's lock would be held for good."""
        self._noting = threading.Lock()

    def __call__(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        if self._key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.digest(self._key, data, "sha256").hex()

    def note(self, state: State) -> None:
        """Remember a committed state, unless a newer one is remembered."""
        with self._noting:
            newest = self.newest.get(state.log)
            if newest is None or state.head.seq > newest.head.seq:
                self.newest[state.log] = state

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

    def fits(self, row: tuple[Any, ...]) -> bool:
        """Whether the hash of an entry (number, time, text, previous hash, hash) is of what it says."""
        seq, at, text, previous, own = row
        try:
            return bool(self.entry(Head(seq - 1, previous), at, text).hash == own)
        except (TypeError, ValueError):
            return False

    def fits_state(self, state: State, sealed: str) -> bool:
        """Whether a seal is over that state, made with this key."""
        try:
            return self.state(state) == sealed
        except (TypeError, ValueError):
            return False

    def state(self, state: State) -> str:
        """What only a holder of the key can say about a log: that this is all of it.

        Raises TypeError or ValueError if there is something in it that is no JSON.
        """
        return self(canonical_json(state.told()))


def line(head: Head, at: float, previous: str, record: str) -> str:
    """An entry as one line of an export: RFC 8785 text. Without its `hash`, it is what was hashed."""
    return _members(head.seq, at, previous, record, f'"hash":"{head.hash}",')


def leaf(seq: int, at: float, record: str) -> str:
    """An entry as a leaf of the tree: RFC 8785 text, without the links of the chain."""
    return f'{{"at":{_seconds(at)},"record":{record},"seq":{seq}}}'


def _members(seq: int, at: float, previous: str, record: str, own: str) -> str:
    return f'{{"at":{_seconds(at)},{own}"previous":"{previous}","record":{record},"seq":{seq}}}'


def _seconds(at: float) -> str:
    """Python writes the times of our days as RFC 8785 does, and sooner than `canonical_json`."""
    ours = at.__class__ is float and 1.0 < at < 1e15 and not at.is_integer()
    return repr(at) if ours else canonical_json(at)
