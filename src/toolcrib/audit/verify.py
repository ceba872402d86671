"""Checks the whole of a log, and reports the first fault.

Rule: garbage is a finding, never an exception.

Checked are: each entry's hash, its number and its link to the one before; that the columns agree
with the record; where the log begins and ends; that the index of keys and the tree hold just these
entries; and what the database finds in its own file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from secrets import token_bytes
from typing import Any

import msgspec

from toolcrib.audit import index, tree
from toolcrib.audit.append import PAGE, PrunePlan, pages, state_of
from toolcrib.audit.checkpoint import Checkpoint
from toolcrib.audit.entry import (
    BEGUN,
    FORMAT,
    GENESIS,
    KINDS,
    NOTHING,
    PRUNED,
    ROW,
    UNREADABLE,
    Fault,
    Head,
    Seal,
    State,
    Summary,
    Verification,
    columns_of,
    genesis_of,
    kind_of,
    line,
    pruned_of,
    seconds,
    summary_of,
)
from toolcrib.errors import SourceError
from toolcrib.storage import Transaction, UnreachableError
from toolcrib.values.json import canonical_json

_SELECT_ROWS = f"SELECT {ROW} FROM audit_entries WHERE seq > :after ORDER BY seq LIMIT :limit"  # noqa: S608


class FaultFound(Exception):  # noqa: N818  this module's own vocabulary
    def __init__(self, what: str, seq: int | None = None) -> None:
        super().__init__(what, seq)
        self.fault = Fault(seq, what)


class Checker:
    """Takes the entries of a log in order; raises FaultFound at the first fault."""

    def __init__(self, seal: Seal, kept: Head | None, *, gaps: bool = False) -> None:
        self._seal = seal
        self._kept = None if kept == GENESIS else kept  # the head of an empty log says nothing
        self._gaps = gaps
        self._begin: Head | None = None
        self._start = GENESIS
        self._seen = False
        self.head = GENESIS
        self.checked = 0  # not counting a genesis, which nobody wrote
        self.format = 1
        self.last = Summary()  # the summary of the last entry taken

    @property
    def begin(self) -> Head:
        """Return the head that the first entry follows."""
        return self.head if self._begin is None else self._begin

    def take(self, seq: Any, at: Any, text: Any, previous: Any, hash_: Any) -> tuple[str, ...]:
        """Check an entry, and return the columns that it must have."""
        known = self.head.seq + 1 if self.checked else None
        if type(seq) is not int or seq < 0:
            raise FaultFound("an entry's number is not a number", known)
        if not (
            isinstance(at, float | int) and all(isinstance(t, str) for t in (text, previous, hash_))
        ):
            raise FaultFound("the entry cannot be read", seq)
        self._link(seq, previous)
        try:
            head = self._seal.entry(Head(seq - 1, previous), at, text)
        except (TypeError, ValueError):
            raise FaultFound("the entry cannot be read", seq) from None
        if head.hash != hash_:
            raise FaultFound(
                "the entry was changed after it was written, or the log has another key", seq
            )
        columns = self._columns(seq, text, previous)
        self.head = head
        self.checked += seq > 0
        if self._kept is not None and self._kept.seq == seq:
            self._seen = True
            if self._kept.hash != hash_:
                raise FaultFound("the entry does not have the hash of the head that was kept", seq)
        return columns

    def finish(self) -> None:
        """Check, after all entries, that the log's start and the kept head are there."""
        begin = self.begin
        if not self._gaps and begin != self._start:
            raise FaultFound("entries are missing before the first one", begin.seq + 1)
        if self._kept is not None and not self._seen and self._kept != begin:
            raise FaultFound("the entry of the head that was kept is missing", self._kept.seq)

    def _link(self, seq: int, previous: str) -> None:
        if self._begin is None:
            self._begin = Head(seq - 1, previous)
        elif seq != self.head.seq + 1 and not (self._gaps and seq > self.head.seq):
            raise FaultFound("entries are missing, or not in order, before this one", seq)
        elif seq == self.head.seq + 1 and previous != self.head.hash:
            raise FaultFound("the entry does not follow from the one before", seq)

    def _columns(self, seq: int, text: str, previous: str) -> tuple[str, ...]:
        try:
            summary = summary_of(text)
            if summary.status == PRUNED:
                note = pruned_of(text)
                self._start = Head(note.through, note.hash)
            elif summary.status == BEGUN:
                self._check_genesis(seq, previous, text)
            elif seq == 0:
                raise FaultFound("the log does not begin with its genesis", seq)
        except UNREADABLE:
            raise FaultFound("the entry is not a record", seq) from None
        self.last = summary
        return columns_of(summary)

    def _check_genesis(self, seq: int, previous: str, text: str) -> None:
        """Check that a genesis is the first entry, or is where an older log was migrated."""
        note, behind = genesis_of(text), Head(seq - 1, previous)
        if note.format != FORMAT or behind != (Head(note.through, note.hash) if seq else NOTHING):
            raise FaultFound("the genesis is not in the place where it was written", seq)
        if behind == NOTHING:
            self._start = NOTHING
        self.format = note.format


class RebuiltTree:
    """Compares the tree and the key index that the entries make with what is stored and sealed."""

    def __init__(
        self, transaction: Transaction, seal: Seal, state: State, signed: Checkpoint | None
    ) -> None:
        self._transaction = transaction
        self._signed = signed
        self._seal = seal
        self._state = state
        self._tree = tree.Tree(0, lambda _places: {})
        self._secret = token_bytes(32)  # secret, so that nobody can forge an equal sum
        self._sum = 0

    def take(self, rows: Sequence[tuple[Any, ...]], summaries: Sequence[Summary]) -> None:
        """Take a page of entries, the first of all of them, or those that follow."""
        if rows and not self._tree.size:
            self._pruned(rows[0][0] - self._state.first)
        self._extend([tree.leaf_hash(*row[:3]) for row in rows])
        for row, summary in zip(rows, summaries, strict=True):
            if summary.idempotency_key:
                number = row[0] * KINDS + kind_of(summary)
                self._add(index.digest_of(summary.idempotency_key), number, 1)

    def finish(self) -> None:
        """Check what can only be checked after all entries."""
        size = self._tree.size
        if self._signed is not None and self._signed.size > size:
            compared = f"{self._signed.size} entries, but the log has {size}"
            raise FaultFound(f"entries are gone: the checkpoint is of {compared}")
        ((found,),) = self._transaction.tuples("SELECT count(*) FROM audit_tiles")
        stored = (self._state.size, self._state.root, found)
        if (size, self._tree.root().hex(), tree.count_of_tiles(size)) != stored:
            raise FaultFound("the tree of the log does not fit its entries")
        self._compare(self._tree.edge())
        for digest, number in index.pairs(self._transaction, self._seal, self._state.keys):
            self._add(digest, number, -1)
        if self._sum:
            raise FaultFound("the index of keys does not fit the entries")

    def _pruned(self, count: int) -> None:
        """Check the leaves of removed entries, of which nothing else is left."""
        for first in range(0, count, PAGE * tree.WIDTH):
            last = min(first + PAGE * tree.WIDTH, count)
            self._extend(tree.leaves(self._transaction, first, last))

    def _extend(self, hashes: Sequence[bytes]) -> None:
        signed, size = self._signed, self._tree.size
        if signed is not None and size < signed.size <= size + len(hashes):
            self._tree.extend(hashes[: signed.size - size])
            hashes = hashes[signed.size - size :]
            if self._tree.root() != signed.root:
                raise FaultFound("the log does not begin with the entries of the checkpoint")
        self._tree.extend(hashes)
        made = self._tree.changed()
        self._compare({place: made[place] for place in made if tree.is_full(made[place])})

    def _compare(self, made: dict[tree.Place, bytes]) -> None:
        if tree.tiles(self._transaction, made) != made:
            raise FaultFound("the tree of the log does not fit its entries")

    def _add(self, digest: str, number: int, sign: int) -> None:
        text = f"{digest} {number}".encode()
        digest_of_pair = blake2b(text, key=self._secret, digest_size=16).digest()
        self._sum += sign * int.from_bytes(digest_of_pair, "big")


def verify_database(
    transaction: Transaction, seal: Seal, kept: Head | None, signed: Checkpoint | None = None
) -> Verification:
    """Check the log as the transaction sees it.

    `kept` and `signed` are the log's head, and a checkpoint of it, at an earlier time.
    """
    checker = Checker(seal, kept)
    fault: Fault | None = None
    state: State | FaultFound | None = None
    try:
        state = _state(transaction, seal)
        rebuilt = None
        if isinstance(state, State) and state.format > 1:
            rebuilt = RebuiltTree(transaction, seal, state, signed)
        for page in _pages(transaction):
            summaries = []
            for row in page:
                if checker.take(*row[:5]) != row[5:]:
                    raise FaultFound("the columns differ from the record", row[0])
                summaries.append(checker.last)
            if rebuilt is not None:
                rebuilt.take(page, summaries)
        checker.finish()
        _check_state(state, checker)
        if rebuilt is not None:
            rebuilt.finish()
        elif signed is not None:
            raise FaultFound("the log is older than the checkpoint: it has no tree")
        if damage := transaction.damage():
            raise FaultFound(f"the database finds its file damaged: {damage}")
        _check_count(transaction, checker)
    except FaultFound as found:
        fault = found.fault
    version = state.format if isinstance(state, State) else checker.format
    return Verification(checker.checked, checker.head, fault, format=version)


def plan_prune(transaction: Transaction, seal: Seal, before: float) -> PrunePlan:
    """Check the whole log, and return the plan of its prune.

    The first entry written at `before` or later stays, and all after it. The columns do not count,
    because no hash covers them.

    Raises SourceError if the chain is broken: what was changed, or removed for a while, would be
    lost for good, and the pruned log could no longer show it.
    """
    state, limit = state_of(transaction, seal), seconds(before)
    if state is None:
        return PrunePlan(NOTHING, NOTHING, frozenset())
    checker, runs, stays = Checker(seal, None), set(), False
    try:
        for row in chain.from_iterable(pages(transaction, -1, state.head.seq)):
            checker.take(*row)
            stays = stays or row[1] >= limit
            if stays:
                runs.add(checker.last.run_id)
        checker.finish()
        _check_state(state, checker)
    except FaultFound as found:
        fault = found.fault
    else:
        return PrunePlan(checker.begin, checker.head, frozenset(runs))
    where = "" if fault.seq is None else f" at entry {fault.seq}"
    raise SourceError(f"the audit log was not pruned: {fault.what}{where}: verify the log")


def verify_lines(
    lines: Iterable[str], seal: Seal, kept: Head | None, *, gaps: bool
) -> Verification:
    """Check the lines of an export; a cut line is accepted if it is the last.

    In a whole export from format 2 on, the last line is the log's sealed state.
    """
    checker = Checker(seal, kept, gaps=gaps)
    fault: Fault | None = None
    torn = False
    end: State | None = None
    try:
        for text in lines:
            known = None if torn or end is not None else _line(text)
            if isinstance(known, tuple):
                checker.take(*known)
            elif known is not None:
                end = _end_state(known, seal, checker)
            elif torn or end is not None or not _is_cut(text):
                raise FaultFound("the line is not an entry", checker.head.seq + 1)
            else:
                torn = True
        checker.finish()
        if end is None and not torn and not gaps and checker.format > 1:
            raise FaultFound("the export has no end: lines are missing", checker.head.seq + 1)
        if checker.checked == 0 and end is None and not torn and not gaps:
            raise FaultFound("there is nothing in it")
    except FaultFound as found:
        fault, torn = found.fault, False
    version = checker.format if end is None else end.format
    return Verification(checker.checked, checker.head, fault, torn, version)


def _pages(transaction: Transaction) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield pages of rows; an unreadable page is read row by row, up to the broken one."""
    after, limit = -(2**63), PAGE
    while True:
        try:
            page = transaction.tuples(_SELECT_ROWS, after=after, limit=limit)
        except UnreachableError:
            raise
        except SourceError as error:
            if limit == 1:
                raise FaultFound(
                    f"what follows cannot be read: {error}", max(after, 0) + 1
                ) from None
            limit = 1
            continue
        if not page:
            return
        yield page
        after = page[-1][0]
        if not isinstance(after, int):
            raise FaultFound("an entry's number is not a number")


def _state(transaction: Transaction, seal: Seal) -> State | FaultFound | None:
    """Return what the log says about itself.

    A fault in it is returned, to be reported after faults in the entries.
    """
    try:
        return state_of(transaction, seal)
    except UnreachableError:
        raise
    except SourceError as error:
        return FaultFound(str(error))


def _check_state(state: State | FaultFound | None, checker: Checker) -> None:
    last = checker.head
    if isinstance(state, FaultFound):
        raise FaultFound(state.fault.what, None if last == GENESIS else last.seq + 1)
    if state is None:
        raise FaultFound("nothing was ever written to this log, or all of it was erased")
    if state.head != last:
        raise FaultFound(
            f"the log's head says that entry {state.head.seq} is the last", last.seq + 1
        )
    if state.format < checker.format:
        raise FaultFound("the log's head has an older format than its entries")


def _check_count(transaction: Transaction, checker: Checker) -> None:
    """Count all entries: one numbered below all others, or not at all, is on no page."""
    ((found,),) = transaction.tuples("SELECT count(*) FROM audit_entries WHERE seq <> 0")
    if found != checker.checked:
        raise FaultFound(f"there are {found} entries, but only {checker.checked} are in order")


def end_line(state: State, seal: str) -> str:
    """Return the last line of a whole export: the state, and its seal."""
    return canonical_json({**state.members(), "seal": seal})


def _end_state(end: _End, seal: Seal, checker: Checker) -> State:
    state = State(
        head=Head(end.seq, end.hash),
        format=end.format,
        log=end.log,
        first=end.first,
        keys=end.keys,
        root=end.root,
    )
    if end.seal != seal.state(state):
        raise FaultFound(
            "the last line was changed after it was written, or the log has another key"
        )
    if state.head != checker.head:
        raise FaultFound("the last line belongs to other entries", checker.head.seq + 1)
    return state


class _ExportedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    at: float
    hash: str
    previous: str
    record: msgspec.Raw
    seq: int


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: int
    format: int
    hash: str
    keys: str
    log: str
    root: str
    seal: str
    seq: int


_STARTS = ('{"at":', '{"first":')
_decode_line = msgspec.json.Decoder(_ExportedLine).decode
_decode_end = msgspec.json.Decoder(_End).decode


def _line(text: str) -> tuple[Any, ...] | _End | None:
    """Return an entry, the end, or None for anything that is not spelled exactly as exported.

    So everybody who reads the line reads the same.
    """
    known: tuple[Any, ...] | _End
    try:
        if text.startswith(_STARTS[1]):
            known = _decode_end(text)
            written = canonical_json(msgspec.to_builtins(known))
        else:
            given = _decode_line(text)
            record = bytes(given.record).decode()
            written = line(Head(given.seq, given.hash), given.at, given.previous, record)
            known = (given.seq, given.at, record, given.previous, given.hash)
    except (*UNREADABLE, ValueError):
        return None
    return known if text.rstrip("\r\n") == written else None


def _is_cut(text: str) -> bool:
    """Return whether a text can be the beginning of a line.

    A whole line that is not an entry was changed.
    """
    if text.endswith("\n") or all(text[: len(start)] != start[: len(text)] for start in _STARTS):
        return False
    try:
        json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return False
