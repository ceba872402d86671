"""The index of idempotency keys: under which numbers a key has entries, and that it has no others.

A key that nobody has used lets a call run, so it has to be known, and not only believed, that there is
no entry under it: a column that somebody changed would hide one. The index is a tree, and the log's
seal is over the hash of its root. A node stands at a prefix of the SHA-256 of keys, in hexadecimal; its
content is JSON: the hashes of the nodes below, by the next digit, or, where there are few keys, the
numbers of the entries of each, with what they say of the key in the last two bits (`kind_of`). Its hash
is made with the log's key, over prefix and content. Whatever is read leads from the root to where
a key is, or would be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

import msgspec

from toolcrib.audit.entry import Seal
from toolcrib.errors import SourceError
from toolcrib.storage import Transaction
from toolcrib.values.json import sha256_hex

_DIGITS = "0123456789abcdef"
_MOST = 16  # keys in a node that has none below
_REMEMBERED = 15_000  # nodes, of two to three kilobytes
_LENGTH = 32  # hexadecimal digits of a node's hash: 128 bits of HMAC-SHA256
Inner: TypeAlias = list[str]
Last: TypeAlias = dict[str, tuple[int, ...]]  # not lists: the garbage collector passes tuples by
_content = msgspec.json.Decoder(Inner | Last)
_write = msgspec.json.Encoder(order="sorted").encode
_NODES = "SELECT prefix, content FROM audit_keys WHERE prefix IN :prefixes"
_SAVE = """INSERT INTO audit_keys (prefix, content) VALUES (:prefix, :content)
    ON CONFLICT (prefix) DO UPDATE SET content = excluded.content"""
_ALL = "SELECT prefix, content FROM audit_keys WHERE prefix > :after ORDER BY prefix LIMIT 100"


class ChangedIndexError(SourceError):
    """Says that what is read does not lead up to the root."""

    def __init__(self) -> None:
        super().__init__("the index of keys in the audit log was changed: verify the log")


@lru_cache(maxsize=4096)
def digest_of(key: str) -> str:
    """Return the name of an idempotency key in the index."""
    return sha256_hex(key)


class Index:
    """The nodes that lead to some keys, checked; `root` is the hash that the log's seal is over."""

    def __init__(self, transaction: Transaction, seal: Seal, root: str) -> None:
        self._transaction = transaction
        self._seal = seal
        self._hashes = {
            "": root
        }  # of the nodes that are known to be there, "" of those that are not
        self._nodes: dict[str, Inner | Last] = {}
        self._changed: set[str] = set()

    def load(self, keys: Iterable[str]) -> None:
        """Read what leads to these keys, level by level; raises SourceError if it was changed."""
        digests = [digest_of(key) for key in keys]
        depth = 0
        while digests:
            at = {digest[:depth] for digest in digests}
            self._read([p for p in at if p not in self._nodes and self._hashes.get(p)])
            digests = [d for d in digests if isinstance(self._nodes.get(d[:depth]), list)]
            depth += 1

    def under(self, key: str) -> list[int]:
        """Return the numbers of the entries under a key that was loaded, in order."""
        digest = digest_of(key)
        node = self._nodes.get(self._place(digest))
        return list(node.get(digest, ())) if isinstance(node, dict) else []

    def add(self, key: str, number: int) -> None:
        """Add an entry to a key that was loaded."""
        digest = digest_of(key)
        place = self._place(digest)
        node = self._nodes.setdefault(place, {})
        assert isinstance(node, dict)  # noqa: S101  _place ends at one
        node[digest] = (*node.get(digest, ()), number)
        self._changed.add(place)
        if len(node) > _MOST:
            self._split(place, node)

    def forget(self, key: str, through: int) -> None:
        """Remove the entries up to that number from a key that was loaded."""
        digest = digest_of(key)
        place = self._place(digest)
        node = self._nodes.get(place)
        if isinstance(node, dict) and digest in node:
            node[digest] = tuple(number for number in node[digest] if number > through)
            if not node[digest]:
                del node[digest]
            self._changed.add(place)

    def save(self) -> str:
        """Write what has changed; the new root's hash."""
        rows = []
        # the longest first: a node's hash is in the one above
        for place in sorted(_with_above(self._changed), key=len, reverse=True):
            node = self._nodes[place]
            content = _write(node).decode()
            self._hashes[place] = own = node_hash(self._seal, place, content)
            self._remember(own, node)
            rows.append({"prefix": place, "content": content})
            if place:
                above = self._nodes[place[:-1]]
                assert isinstance(above, list)  # noqa: S101  as _split left it
                above[_DIGITS.index(place[-1])] = own
        self._transaction.execute_many(_SAVE, rows)
        self._changed = set()
        return self._hashes[""]

    def _place(self, digest: str) -> str:
        """Return the prefix of the last node on the way to a digest."""
        depth = 0
        while isinstance(self._nodes.get(digest[:depth]), list):
            depth += 1
        if digest[:depth] not in self._nodes and self._hashes.get(digest[:depth]):
            raise ChangedIndexError  # a node that nobody has read
        return digest[:depth]

    def _split(self, place: str, node: Last) -> None:
        self._nodes[place] = [""] * len(_DIGITS)
        for digest, numbers in node.items():
            below = self._nodes.setdefault(digest[: len(place) + 1], {})
            assert isinstance(below, dict)  # noqa: S101  it is new
            below[digest] = numbers
            self._changed.add(digest[: len(place) + 1])
        for digit in _DIGITS:
            small = self._nodes.get(place + digit)
            if isinstance(small, dict) and len(small) > _MOST:
                self._split(place + digit, small)

    def _read(self, prefixes: Collection[str]) -> None:
        known = self._seal.known
        missing = []
        for place in prefixes:
            node = known.get(self._hashes[place])
            if node is None:
                missing.append(place)
            else:
                self._take(place, node)
        if not missing:
            return
        found = dict(self._transaction.tuples(_NODES, prefixes=missing))
        for place in missing:
            content, own = found.get(place), self._hashes[place]
            if not isinstance(content, str) or node_hash(self._seal, place, content) != own:
                raise ChangedIndexError
            node = _decoded(content)
            self._remember(own, node)
            self._take(place, node)

    def _remember(self, own: str, node: Inner | Last) -> None:
        """Keep a copy of a node by its hash, so that it is read once for as long as the log is open."""
        known = self._seal.known
        if len(known) >= _REMEMBERED:
            known.clear()
        known[own] = node.copy()

    def _take(self, place: str, node: Inner | Last) -> None:
        self._nodes[place] = node = node.copy()
        if isinstance(node, list):
            self._hashes.update(
                {place + digit: own for digit, own in zip(_DIGITS, node, strict=True)}
            )


def pairs(transaction: Transaction, seal: Seal, root: str) -> Iterator[tuple[str, int]]:
    """Yield every key's digest with every number under it; raises SourceError if a node was changed.

    Nodes are read in the order of their prefixes: each comes after the one above it.
    """
    hashes = {"": root} if root else {}
    after, rows = "", transaction.tuples("SELECT prefix, content FROM audit_keys WHERE prefix = ''")
    while rows:
        for place, content in rows:
            known = hashes.pop(place, None)
            if not isinstance(content, str) or known != node_hash(seal, place, content):
                raise ChangedIndexError
            node = _decoded(content)
            if isinstance(node, list):
                below = zip(_DIGITS, node, strict=True)
                hashes.update({place + digit: own for digit, own in below if own})
            else:
                yield from ((digest, number) for digest, those in node.items() for number in those)
            after = place
        rows = transaction.tuples(_ALL, after=after)
    if hashes:
        raise ChangedIndexError


def node_hash(seal: Seal, prefix: str, content: str) -> str:
    return seal(f'{{"content":{content},"prefix":"{prefix}"}}')[:_LENGTH]


def _with_above(places: Iterable[str]) -> set[str]:
    return {place[:depth] for place in places for depth in range(len(place) + 1)}


def _decoded(content: str) -> Inner | Last:
    try:
        node: Inner | Last = _content.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ChangedIndexError from None
    if isinstance(node, list) and len(node) != len(_DIGITS):
        raise ChangedIndexError
    return node
