"""The Merkle tree over the entries, which makes the proof of one entry short.

Rule: tiles prove nothing by themselves. What is read must lead up to the root that the log's seal
covers.

Hashes follow RFC 9162, section 2.1: SHA-256 of 0x00 and an entry's text (`entry.leaf`), or of 0x01
and two hashes. The text does not include the links of the chain, so that anybody who has the entry
can check it, and any writer can add the next one. Stored are tiles of up to 16 hashes, like those
of https://c2sp.org/tlog-tiles (which have 256): tile N of level L holds nodes 16 N to 16 N + 15 of
height 4 L. Only whole subtrees have a node, so a full tile never changes, and adding an entry needs
only the last tile of each level.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, TypeAlias

from toolcrib.audit.entry import leaf
from toolcrib.errors import SourceError
from toolcrib.storage import Insert, Row, Transaction

Place: TypeAlias = tuple[int, int]  # level, number
Read: TypeAlias = Callable[[Iterable[Place]], Mapping[Place, bytes]]

WIDTH = 16
_HEIGHT = 4  # of a tile: 2 ** 4 hashes
_BYTES = 32
_FULL = WIDTH * _BYTES
EMPTY = sha256(b"").digest()
_MISSING = "the tree of the audit log lacks hashes of tile {}/{}: verify the log"
_SELECT_TILES = "SELECT place, hashes FROM audit_tiles WHERE place IN :places"
SAVE = Insert(
    "audit_tiles", ("place", "hashes"), "ON CONFLICT (place) DO UPDATE SET hashes = excluded.hashes"
)


def leaf_hash(seq: int, at: float, record: str) -> bytes:
    return sha256(b"\0" + leaf(seq, at, record).encode("utf-8", "surrogatepass")).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


class Tree:
    """A tree of `size` leaves whose tiles are read when they are needed."""

    def __init__(self, size: int, read: Read) -> None:
        self.size = size
        self.read = read
        """Returns tiles that are not known here, as they are now, with this tree's additions."""
        self._tiles: dict[Place, bytes] = {}
        self._changed: set[Place] = set()

    def root(self) -> bytes:
        """Return the root: whole subtrees, joined from the right, where the smallest are."""
        edge = _edge(self.size)
        self.load(edge)
        root = b""
        for place in edge:
            count = (self.size >> _HEIGHT * place[0]) % WIDTH
            hashes = self._tiles.get(place, b"")
            if len(hashes) < count * _BYTES:
                raise SourceError(_MISSING.format(*place))
            while count:
                low = count & (count - 1)  # without the smallest subtree
                peak = _subtree_root(hashes[low * _BYTES : count * _BYTES])
                root, count = node_hash(peak, root) if root else peak, low
        return root or EMPTY

    def root_at(self, size: int) -> bytes:
        """Return the root that the tree had when it was smaller."""
        return Tree(size, self.read).root()

    def inclusion(self, index: int) -> list[bytes]:
        """Return a proof (RFC 9162, 2.1.3.1) that leaf `index` is in the tree, from the leaf up."""
        self.load([*_edge(self.size), *_path(index, self.size)])
        proof = []
        low, high = 0, self.size
        while high - low > 1:
            middle = low + _largest_power_below(high - low)
            if index < middle:
                proof.append(self._range(middle, high))
                high = middle
            else:
                proof.append(self._range(low, middle))
                low = middle
        return proof[::-1]

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add the hashes of further leaves."""
        self.load(_edge(self.size))
        level, start, hashes = 0, self.size, list(leaves)
        self.size += len(leaves)
        while hashes:
            number, partial = divmod(start, WIDTH)
            known = self._tile(level, number)[: partial * _BYTES] if partial else b""
            run = known + b"".join(hashes)
            hashes = []
            for at in range(0, len(run), _FULL):
                tile = run[at : at + _FULL]
                place = (level, number + at // _FULL)
                self._tiles[place] = tile
                self._changed.add(place)
                if len(tile) == _FULL:
                    hashes.append(_subtree_root(tile))
            level, start = level + 1, number

    def changed(self) -> dict[Place, bytes]:
        """Return the tiles that `extend` made since the last call; only the edge is kept."""
        made = {place: self._tiles[place] for place in self._changed}
        self._changed = set()
        self._tiles = {place: self._tiles[place] for place in _edge(self.size)}
        return made

    def edge(self) -> dict[Place, bytes]:
        """Return the tiles at the right end that are not full."""
        return {place: self._tile(*place) for place in _edge(self.size)}

    def add_checked(self, edge: Mapping[Place, bytes]) -> None:
        """Take over the tiles of `edge`, of the same tree, that were checked before."""
        self._tiles.update(edge)

    def load(self, places: Iterable[Place]) -> None:
        """Read these tiles in one query, unless they are known."""
        if not self._tiles.keys() >= set(places):
            self._tiles.update(self.read(set(places) - self._tiles.keys()))

    def _range(self, low: int, high: int) -> bytes:
        """Return the hash over leaves `low` up to `high`, a subtree of the tree of that size."""
        width = high - low
        if width & (width - 1) == 0 and low % width == 0:
            return self._node(width.bit_length() - 1, low // width)
        middle = low + _largest_power_below(width)
        return node_hash(self._range(low, middle), self._range(middle, high))

    def _node(self, height: int, index: int) -> bytes:
        level, rest = divmod(height, _HEIGHT)
        number, at = divmod(index << rest, WIDTH)
        hashes = self._tile(level, number)[at * _BYTES : (at + (1 << rest)) * _BYTES]
        if len(hashes) != _BYTES << rest:
            raise SourceError(_MISSING.format(level, number))
        return _subtree_root(hashes)

    def _tile(self, level: int, number: int) -> bytes:
        place = (level, number)
        if place not in self._tiles:
            self.load([place])
        return self._tiles.get(place, b"")


def read_ahead(transaction: Transaction, size: int) -> Read:
    """Return a function that reads tiles as they are before this transaction writes any.

    The last tiles of a tree of that size, and those after them in case it has grown a little, are
    requested now.
    """
    edge = {(level, number + more) for level, number in _path(size, size) for more in (0, 1)}
    edge.add((len(edge) // 2, 0))
    requested = cache(_requested(transaction, edge))

    def read(places: Iterable[Place]) -> Mapping[Place, bytes]:
        wanted = set(places)
        if not wanted <= edge:
            return tiles(transaction, wanted)
        return {place: tile for place, tile in requested().items() if place in wanted}

    return read


def tiles(transaction: Transaction, places: Iterable[Place]) -> dict[Place, bytes]:
    """Return the tiles that exist and can be read."""
    return _requested(transaction, places)()


def _requested(
    transaction: Transaction, places: Iterable[Place]
) -> Callable[[], dict[Place, bytes]]:
    names = {f"{level}/{number}": (level, number) for level, number in places}
    if not names:
        return dict
    rows = transaction.read_ahead(_SELECT_TILES, places=list(names))
    return lambda: _decoded(rows(), names)


def _decoded(rows: Iterable[tuple[Any, ...]], names: Mapping[str, Place]) -> dict[Place, bytes]:
    found = {}
    for name, text in rows:
        with suppress(binascii.Error, TypeError, ValueError):
            hashes = base64.b64decode(text, validate=True)
            if base64.b64encode(hashes).decode() == text:  # exactly as it was written
                found[names[name]] = hashes
    return found


def leaves(transaction: Transaction, first: int, last: int) -> list[bytes]:
    """Return the stored hashes of the leaves `first` up to `last`; `first` begins a tile."""
    places = [(0, number) for number in range(first // WIDTH, -(-last // WIDTH))]
    found = tiles(transaction, places)
    run = b"".join(found.get(place, b"") for place in places)
    return [run[at : at + _BYTES] for at in range(0, (last - first) * _BYTES, _BYTES)]


def is_full(tile: bytes) -> bool:
    return len(tile) == _FULL


def rows_of(made: Mapping[Place, bytes]) -> list[Row]:
    """Return tiles as the rows that SAVE takes."""
    return [
        {"place": f"{level}/{number}", "hashes": base64.b64encode(hashes).decode()}
        for (level, number), hashes in made.items()
    ]


def count_of_tiles(size: int) -> int:
    """Return how many tiles a tree has."""
    count = 0
    while size:
        count += -(-size // WIDTH)
        size //= WIDTH
    return count


def root_of_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that a proof leads to (RFC 9162, 2.1.3.2); None if it is invalid."""
    if not 0 <= index < size:
        return None
    found, at, last = leaf, index, size - 1
    for sibling in proof:
        if last == 0:
            return None
        if at & 1 or at == last:
            found = node_hash(sibling, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        at, last = at >> 1, last >> 1
    return found if last == 0 else None


def _largest_power_below(width: int) -> int:
    """Return the largest power of two below `width`."""
    return 1 << ((width - 1).bit_length() - 1)


@lru_cache(maxsize=8)  # adding an entry asks for two of them, several times
def _edge(size: int) -> tuple[Place, ...]:
    """Return the tiles at the right end that are not full: a root is made from these alone."""
    found = []
    level = 0
    while size:
        if size % WIDTH:
            found.append((level, size // WIDTH))
        size, level = size // WIDTH, level + 1
    return tuple(found)


def _path(index: int, size: int) -> list[Place]:
    """Return the tiles on the path from a leaf to the root."""
    found = []
    level = 0
    while size:
        found.append((level, index // WIDTH))
        index, size, level = index // WIDTH, size // WIDTH, level + 1
    return found


@lru_cache(maxsize=1024)  # at the right end they are folded again for each root
def _subtree_root(hashes: bytes) -> bytes:
    """Return the node over a power of two of nodes."""
    while len(hashes) > _BYTES:
        pairs = range(0, len(hashes), 2 * _BYTES)
        hashes = b"".join(sha256(b"\1" + hashes[at : at + 2 * _BYTES]).digest() for at in pairs)
    return hashes
