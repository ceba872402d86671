"""The index of idempotency keys: which entries a key has, and proof that it has no others.

Rule: everything that is read leads from the sealed root to the place where a key is, or would be. A
key that nobody has used lets a call run, so the log must prove that there is no entry under it: a
changed column could hide one.

The index is a tree, and the log's seal covers the hash of its root. A node is stored under a prefix
of the SHA-256 of keys, in hexadecimal. Its content is JSON: the hashes of the nodes below, by the
next digit, or, if there are few keys, the numbers of the entries of each, with the entry's kind in
the last two bits (`kind_of`). Its hash is made with the log's key, over prefix and content.
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
_INDEX_OF = {digit: at for at, digit in enumerate(_DIGITS)}
_MOST_KEYS = 16  # keys in a node without nodes below
_REMEMBERED = 15_000  # nodes, of two to three kilobytes
_LEVELS_AHEAD = 5  # that are read together, for up to _FEW_KEYS keys
_FEW_KEYS = 16
_LENGTH = 32  # hexadecimal digits of a node's hash: 128 bits of HMAC-SHA256
Inner: TypeAlias = list[str]
Leaf: TypeAlias = dict[str, tuple[int, ...]]  # tuples, not lists: the garbage collector skips them
RequestedNodes: TypeAlias = Callable[[], Iterable[tuple[Any, ...]]]
_content = msgspec.json.Decoder(Inner | Leaf)
_write = msgspec.json.Encoder(order="sorted").encode
_SELECT_NODES = "SELECT prefix, content FROM audit_keys WHERE prefix IN :prefixes"
SAVE = Insert(
    "audit_keys",
    ("prefix", "content"),
    "ON CONFLICT (prefix) DO UPDATE SET content = excluded.content",
)
_SELECT_NEXT = (
    "SELECT prefix, content FROM audit_keys WHERE prefix > :after ORDER BY prefix LIMIT 100"
)


class ChangedIndexError(SourceError):
    """Says that what was read does not lead up to the root."""

    def __init__(self) -> None:
        super().__init__("the index of keys in the audit log was changed: verify the log")


@lru_cache(maxsize=4096)
def digest_of(key: str) -> str:
    """Return the name of an idempotency key in the index."""
    return sha256_hex(key)


class Index:
    """The checked nodes that lead to some keys; `root` is the hash that the log's seal covers."""

    def __init__(
        self, transaction: Transaction, seal: Seal, root: str, ahead: RequestedNodes = tuple
    ) -> None:
        self._transaction = transaction
        self._seal = seal
        self._root = root
        self._nodes: dict[str, Inner | Leaf] = {}  # by prefix; unchanged nodes are shared
        self._changed: set[str] = set()
        self._prefixes: dict[str, str] = {}  # by digest: the prefix of the last node on its path
        self._ahead: dict[str, object] = {}  # contents of nodes that have not been checked yet
        self._requested = ahead

    def load(self, keys: Iterable[str]) -> None:
        """Read what leads to these keys in one query. Raises SourceError if it was changed."""
        self._find({digest for digest in map(digest_of, keys) if digest not in self._prefixes})

    def under(self, key: str) -> tuple[int, ...]:
        """Return the numbers of the entries under a key, in order."""
        digest = digest_of(key)
        node = self._nodes.get(self._prefix_of(digest))
        return node.get(digest, ()) if isinstance(node, dict) else ()

    def add(self, key: str, number: int) -> None:
        """Add an entry to a key."""
        digest = digest_of(key)
        prefix = self._prefix_of(digest)
        node = self._writable(prefix)
        assert isinstance(node, dict)  # noqa: S101  a path ends at one
        node[digest] = (*node.get(digest, ()), number)
        if len(node) > _MOST_KEYS:
            self._split(prefix, node)

    def forget(self, key: str, through: int) -> None:
        """Remove the entries up to number `through` from a key."""
        digest = digest_of(key)
        prefix = self._prefix_of(digest)
        node = self._nodes.get(prefix)
        if isinstance(node, dict) and digest in node:
            node = self._writable(prefix)
            assert isinstance(node, dict)  # noqa: S101  it is a copy
            node[digest] = tuple(number for number in node[digest] if number > through)
            if not node[digest]:
                del node[digest]

    def changed(self) -> tuple[str, list[Row]]:
        """Return the root's hash, and the rows for SAVE of the nodes changed since the last call."""
        rows: list[Row] = []
        # longest prefixes first: a node's hash is in the node above
        for prefix in sorted(_all_prefixes(self._changed), key=len, reverse=True):
            node = self._writable(prefix)
            content = _write(node).decode()
            hash_ = node_hash(self._seal, prefix, content)
            self._remember(hash_, node)
            rows.append({"prefix": prefix, "content": content})
            if prefix:
                parent, at = self._writable(prefix[:-1]), _INDEX_OF[prefix[-1]]
                assert isinstance(parent, list)  # noqa: S101  as _split left it
                replaced, parent[at] = parent[at], hash_
            else:
                replaced, self._root = self._root, hash_
            self._seal.known.pop(replaced, None)  # if this is rolled back, it is read again
        self._changed = set()
        return self._root, rows

    def _find(self, digests: Collection[str]) -> None:
        """Read what leads to these digests, as far as it is not known."""
        found = {digest: self._follow(digest) for digest in digests}
        while missing := {digest: node for digest, node in found.items() if node is not None}:
            self._read(missing)
            found = {digest: self._follow(digest) for digest in missing}

    def _follow(self, digest: str) -> tuple[str, str] | None:
        """Follow known nodes to where a digest is, or would be.

        Returns the prefix and hash of the first unknown node, if there is one.
        """
        nodes, known = self._nodes, self._seal.known
        prefix, hash_ = "", self._root
        for digit in digest:
            node = nodes.get(prefix)
            if node is None and hash_:
                node = known.get(hash_)
                if node is None:
                    return prefix, hash_
                nodes[prefix] = node
            if node.__class__ is not list:
                break
            prefix, hash_ = prefix + digit, node[_INDEX_OF[digit]]
        self._prefixes[digest] = prefix
        return None

    def _prefix_of(self, digest: str) -> str:
        """Return the prefix of the last node on the path to a digest."""
        if digest not in self._prefixes:
            self._find({digest})
        prefix = self._prefixes[digest]
        while self._nodes.get(prefix).__class__ is list:  # it has been split since
            prefix = self._prefixes[digest] = digest[: len(prefix) + 1]
        return prefix

    def _writable(self, prefix: str) -> Inner | Leaf:
        """Return a node that may be changed: a copy of what was read, or a new one."""
        if prefix not in self._changed:
            self._nodes[prefix] = self._nodes[prefix].copy() if prefix in self._nodes else {}
            self._changed.add(prefix)
        return self._nodes[prefix]

    def _split(self, prefix: str, node: Leaf) -> None:
        self._nodes[prefix] = [""] * len(_DIGITS)
        for digest, numbers in node.items():
            child = self._writable(digest[: len(prefix) + 1])
            assert isinstance(child, dict)  # noqa: S101  it is new
            child[digest] = numbers
        for digit in _DIGITS:
            below = self._nodes.get(prefix + digit)
            if isinstance(below, dict) and len(below) > _MOST_KEYS:
                self._split(prefix + digit, below)

    def _read(self, missing: Mapping[str, tuple[str, str]]) -> None:
        """Read and check the nodes, given by prefix and hash, that these digests lack.

        Nodes that may be below them are read in the same query, so that a server is asked once.
        """
        self._ahead.update(self._requested())
        self._requested = tuple
        paths = [(digest, len(at)) for digest, (at, _) in missing.items() if at not in self._ahead]
        if paths:
            levels = _LEVELS_AHEAD if len(paths) <= _FEW_KEYS else 1
            ahead = {digest[: at + more] for digest, at in paths for more in range(levels)}
            self._ahead.update(self._transaction.tuples(_SELECT_NODES, prefixes=sorted(ahead)))
        for prefix, hash_ in set(missing.values()):
            content = self._ahead.pop(prefix, None)
            if not isinstance(content, str) or node_hash(self._seal, prefix, content) != hash_:
                raise ChangedIndexError
            self._nodes[prefix] = node = _decoded(content)
            self._remember(hash_, node)

    def _remember(self, hash_: str, node: Inner | Leaf) -> None:
        """Remember a node by its hash, so that it is read only once while the log is open."""
        known = self._seal.known
        if len(known) >= _REMEMBERED:
            known.clear()
        known[hash_] = node


def read_ahead(transaction: Transaction, keys: Collection[str]) -> RequestedNodes:
    """Request the nodes that may lead to a few keys, and return a function that returns them."""
    if len(keys) > _FEW_KEYS:
        return tuple
    ahead = {digest_of(key)[:depth] for key in keys for depth in range(_LEVELS_AHEAD)}
    return transaction.read_ahead(_SELECT_NODES, prefixes=sorted(ahead))


def pairs(transaction: Transaction, seal: Seal, root: str) -> Iterator[tuple[str, int]]:
    """Yield every key's digest with every number under it.

    Nodes are read in the order of their prefixes, so each comes after the one above it. Raises
    SourceError if a node was changed.
    """
    hashes = {"": root} if root else {}
    after, rows = "", transaction.tuples("SELECT prefix, content FROM audit_keys WHERE prefix = ''")
    while rows:
        for prefix, content in rows:
            expected = hashes.pop(prefix, None)
            if not isinstance(content, str) or expected != node_hash(seal, prefix, content):
                raise ChangedIndexError
            node = _decoded(content)
            if isinstance(node, list):
                children = zip(_DIGITS, node, strict=True)
                hashes.update({prefix + digit: hash_ for digit, hash_ in children if hash_})
            else:
                yield from (
                    (digest, number) for digest, numbers in node.items() for number in numbers
                )
            after = prefix
        rows = transaction.tuples(_SELECT_NEXT, after=after)
    if hashes:
        raise ChangedIndexError


def node_hash(seal: Seal, prefix: str, content: str) -> str:
    return seal(f'{{"content":{content},"prefix":"{prefix}"}}')[:_LENGTH]


def _all_prefixes(prefixes: Iterable[str]) -> set[str]:
    return {prefix[:depth] for prefix in prefixes for depth in range(len(prefix) + 1)}


def _decoded(content: str) -> Inner | Leaf:
    try:
        node: Inner | Leaf = _content.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ChangedIndexError from None
    if isinstance(node, list) and len(node) != len(_DIGITS):
        raise ChangedIndexError
    return node
