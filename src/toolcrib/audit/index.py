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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from toolcrib.audit.entry import Seal
from toolcrib.errors import SourceError
from toolcrib.storage import Insert, Row, Transaction
from toolcrib.values.json import sha256_hex

_DIGITS = "0123456789abcdef"
_MOST = 16  # keys in a node that has none below
_REMEMBERED = 15_000  # nodes, of two to three kilobytes
_AHEAD, _FEW = 5, 16  # levels that are read together, for that many keys at most
_LENGTH = 32  # hexadecimal digits of a node's hash: 128 bits of HMAC-SHA256
Inner: TypeAlias = list[str]
Last: TypeAlias = dict[str, tuple[int, ...]]  # not lists: the garbage collector passes tuples by
Ahead: TypeAlias = Callable[[], Iterable[tuple[Any, ...]]]
_content = msgspec.json.Decoder(Inner | Last)
_write = msgspec.json.Encoder(order="sorted").encode
_NODES = "SELECT prefix, content FROM audit_keys WHERE prefix IN :prefixes"
SAVE = Insert(
    "audit_keys",
    ("prefix", "content"),
    "ON CONFLICT (prefix) DO UPDATE SET content = excluded.content",
)
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

    def __init__(
        self, transaction: Transaction, seal: Seal, root: str, ahead: Ahead = tuple
    ) -> None:
        self._transaction = transaction
        self._seal = seal
        self._root = root
        self._nodes: dict[str, Inner | Last] = {}  # by prefix; what is not changed is everybody's
        self._changed: set[str] = set()
        self._places: dict[str, str] = {}  # of each digest, the prefix of the last node on its way
        self._ahead: dict[str, object] = {}  # contents of nodes that nobody has checked yet
        self._asked = ahead

    def load(self, keys: Iterable[str]) -> None:
        """Read what leads to these keys at once; raises SourceError if it was changed."""
        self._find({digest for digest in map(digest_of, keys) if digest not in self._places})

    def under(self, key: str) -> list[int]:
        """Return the numbers of the entries under a key, in order."""
        digest = digest_of(key)
        node = self._nodes.get(self._place(digest))
        return list(node.get(digest, ())) if isinstance(node, dict) else []

    def add(self, key: str, number: int) -> None:
        """Add an entry to a key."""
        digest = digest_of(key)
        place = self._place(digest)
        node = self._own(place)
        assert isinstance(node, dict)  # noqa: S101  _place ends at one
        node[digest] = (*node.get(digest, ()), number)
        if len(node) > _MOST:
            self._split(place, node)

    def forget(self, key: str, through: int) -> None:
        """Remove the entries up to that number from a key."""
        digest = digest_of(key)
        place = self._place(digest)
        node = self._nodes.get(place)
        if isinstance(node, dict) and digest in node:
            node = self._own(place)
            assert isinstance(node, dict)  # noqa: S101  it is a copy
            node[digest] = tuple(number for number in node[digest] if number > through)
            if not node[digest]:
                del node[digest]

    def changed(self) -> tuple[str, list[Row]]:
        """Return the root's hash, and the nodes that have changed since this was last asked as the rows
        that SAVE takes."""
        rows: list[Row] = []
        # the longest first: a node's hash is in the one above
        for place in sorted(_with_above(self._changed), key=len, reverse=True):
            node = self._own(place)
            content = _write(node).decode()
            own = node_hash(self._seal, place, content)
            self._remember(own, node)
            rows.append({"prefix": place, "content": content})
            if place:
                above = self._own(place[:-1])
                assert isinstance(above, list)  # noqa: S101  as _split left it
                above[int(place[-1], 16)] = own
            else:
                self._root = own
        self._changed = set()
        return self._root, rows

    def _find(self, digests: Collection[str]) -> None:
        """Read what leads to these digests, as far as it is not known."""
        found = {digest: self._follow(digest) for digest in digests}
        while missing := {digest: node for digest, node in found.items() if node is not None}:
            self._read(missing)
            found = {digest: self._follow(digest) for digest in missing}

    def _follow(self, digest: str) -> tuple[str, str] | None:
        """Go by known nodes to where a digest is, or would be. If one is not known, return its prefix
        and hash."""
        nodes, known = self._nodes, self._seal.known
        place, own = "", self._root
        for digit in digest:
            node = nodes.get(place)
            if node is None and own:
                node = known.get(own)
                if node is None:
                    return place, own
                nodes[place] = node
            if not isinstance(node, list):
                break
            place, own = place + digit, node[int(digit, 16)]
        self._places[digest] = place
        return None

    def _place(self, digest: str) -> str:
        """Return the prefix of the last node on the way to a digest."""
        if digest not in self._places:
            self._find({digest})
        place = self._places[digest]
        while isinstance(self._nodes.get(place), list):  # it was split since
            place = self._places[digest] = digest[: len(place) + 1]
        return place

    def _own(self, place: str) -> Inner | Last:
        """Return a node that may be changed: a copy of what was read, or a new one."""
        if place not in self._changed:
            self._nodes[place] = self._nodes[place].copy() if place in self._nodes else {}
            self._changed.add(place)
        return self._nodes[place]

    def _split(self, place: str, node: Last) -> None:
        self._nodes[place] = [""] * len(_DIGITS)
        for digest, numbers in node.items():
            below = self._own(digest[: len(place) + 1])
            assert isinstance(below, dict)  # noqa: S101  it is new
            below[digest] = numbers
        for digit in _DIGITS:
            small = self._nodes.get(place + digit)
            if isinstance(small, dict) and len(small) > _MOST:
                self._split(place + digit, small)

    def _read(self, missing: Mapping[str, tuple[str, str]]) -> None:
        """Take the nodes, by prefix and hash, that are missing on the way to these digests, and read
        what may be below them together with them: a server is asked once."""
        self._ahead.update(self._asked())
        self._asked = tuple
        ways = [(digest, len(at)) for digest, (at, _) in missing.items() if at not in self._ahead]
        if ways:
            levels = _AHEAD if len(ways) <= _FEW else 1
            ahead = {digest[: at + more] for digest, at in ways for more in range(levels)}
            self._ahead.update(self._transaction.tuples(_NODES, prefixes=sorted(ahead)))
        for place, own in set(missing.values()):
            content = self._ahead.pop(place, None)
            if not isinstance(content, str) or node_hash(self._seal, place, content) != own:
                raise ChangedIndexError
            self._nodes[place] = node = _decoded(content)
            self._remember(own, node)

    def _remember(self, own: str, node: Inner | Last) -> None:
        """Keep a node by its hash, so that it is read once for as long as the log is open."""
        known = self._seal.known
        if len(known) >= _REMEMBERED:
            known.clear()
        known[own] = node


def read_ahead(transaction: Transaction, keys: Collection[str]) -> Ahead:
    """Ask for the nodes that may lead to a few keys, and return what gives them."""
    if len(keys) > _FEW:
        return tuple
    ahead = {digest_of(key)[:depth] for key in keys for depth in range(_AHEAD)}
    return transaction.ahead(_NODES, prefixes=sorted(ahead))


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
