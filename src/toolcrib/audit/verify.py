"""Checks the whole of a log, and says what is wrong first. Garbage is a finding, never an exception.

What is checked: each entry's hash, its number and its link to the one before; that the columns say what
the record says; where the log begins; where it ends; and what the database finds in its own file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from toolcrib.audit.append import head_of
from toolcrib.audit.chain import GENESIS, Seal, line
from toolcrib.audit.entry import Fault, Head, Verification
from toolcrib.audit.rows import COLUMNS, ENTRY, PRUNED, UNREADABLE, columns_of, pruned_of
from toolcrib.errors import SourceError
from toolcrib.storage import Transaction, UnreachableError

_PAGE = 100  # a record may have 4 MB
_ROWS = (
    f"SELECT {ENTRY}, {', '.join(COLUMNS)} FROM audit_entries"  # noqa: S608  names of our own
    " WHERE seq > :after ORDER BY seq LIMIT :limit"
)


class FaultFound(Exception):  # noqa: N818  the words of this room
    def __init__(self, what: str, seq: int | None = None) -> None:
        super().__init__(what, seq)
        self.fault = Fault(seq, what)


class Checker:
    """Takes the entries of a log in order; raises FaultFound at the first thing that is wrong."""

    def __init__(self, seal: Seal, kept: Head | None, *, gaps: bool = False) -> None:
        self._seal = seal
        self._kept = kept
        self._gaps = gaps
        self._begin: Head | None = None
        self._pruned = GENESIS
        self._seen = False
        self.head = GENESIS
        self.checked = 0

    def take(self, seq: Any, at: Any, text: Any, previous: Any, own: Any) -> tuple[str, ...]:
        """The columns that such an entry must have."""
        known = self.head.seq + 1 if self.checked else None
        if type(seq) is not int or seq < 1:
            raise FaultFound("an entry's number is not a number", known)
        if not (
            isinstance(at, float | int) and all(isinstance(t, str) for t in (text, previous, own))
        ):
            raise FaultFound("the entry cannot be read", seq)
        self._link(seq, previous)
        head = self._hashed(Head(seq - 1, previous), at, text)
        if head.hash != own:
            raise FaultFound("the entry is not as it was written, or the key is another one", seq)
        columns = self._columns(seq, text)
        self.head = head
        self.checked += 1
        if self._kept is not None and self._kept.seq == seq:
            self._seen = True
            if self._kept.hash != own:
                raise FaultFound("the entry has not the hash of the head that was kept", seq)
        return columns

    def finish(self) -> None:
        """All entries have been taken: was the first one the first, and is the kept head among them?"""
        begin = self.head if self._begin is None else self._begin
        if not self._gaps and begin != self._pruned:
            raise FaultFound("entries are missing before the first one", begin.seq + 1)
        if self._kept is not None and not self._seen and self._kept != begin:
            raise FaultFound("the entry of the head that was kept is not there", self._kept.seq)

    def _link(self, seq: int, previous: str) -> None:
        if self._begin is None:
            self._begin = Head(seq - 1, previous)
        elif seq != self.head.seq + 1 and not (self._gaps and seq > self.head.seq):
            raise FaultFound("entries are missing, or not in order, before this one", seq)
        elif seq == self.head.seq + 1 and previous != self.head.hash:
            raise FaultFound("the entry does not follow from the one before", seq)

    def _hashed(self, previous: Head, at: float, text: str) -> Head:
        try:
            return self._seal.entry(previous, at, text)
        except (TypeError, ValueError):
            raise FaultFound("the entry cannot be read", previous.seq + 1) from None

    def _columns(self, seq: int, text: str) -> tuple[str, ...]:
        try:
            columns = columns_of(text)
            if columns[COLUMNS.index("status")] == PRUNED:
                note = pruned_of(text)
                self._pruned = Head(note.through, note.hash)
        except UNREADABLE:
            raise FaultFound("the entry is no record", seq) from None
        return columns


def verify_database(transaction: Transaction, seal: Seal, kept: Head | None) -> Verification:
    """Check the log as it is at the moment that the transaction sees."""
    checker = Checker(seal, kept)
    fault: Fault | None = None
    try:
        for row in _rows(transaction):
            if checker.take(*row[:5]) != row[5:]:
                raise FaultFound("the columns do not say what the record says", row[0])
        checker.finish()
        _check_head(transaction, seal, checker.head)
        if damage := transaction.damage():
            raise FaultFound(f"the database finds its file damaged: {damage}")
        _check_count(transaction, checker.checked)
    except FaultFound as found:
        fault = found.fault
    return Verification(checker.checked, checker.head, fault)


def verify_lines(
    lines: Iterable[str], seal: Seal, kept: Head | None, *, gaps: bool
) -> Verification:
    """Check the lines of an export; one that was cut is forgiven if it is the last."""
    checker = Checker(seal, kept, gaps=gaps)
    fault: Fault | None = None
    torn = False
    try:
        for text in lines:
            entry = None if torn else _line(text)
            if entry is not None:
                checker.take(*entry)
            elif torn or not _is_cut(text):
                raise FaultFound("the line is no entry", checker.head.seq + 1)
            else:
                torn = True
        checker.finish()
    except FaultFound as found:
        fault, torn = found.fault, False
    return Verification(checker.checked, checker.head, fault, torn)


def _rows(transaction: Transaction) -> Iterator[tuple[Any, ...]]:
    """Page by page; a page that cannot be read is read row by row, up to the one that is broken."""
    after, limit = -(2**63), _PAGE
    while True:
        try:
            page = transaction.tuples(_ROWS, after=after, limit=limit)
        except UnreachableError:
            raise
        except SourceError as error:
            if limit == 1:
                raise FaultFound(
                    f"what follows cannot be read: {error}", max(after, 0) + 1
                ) from None
            limit = 1
            continue
        yield from page
        if not page:
            return
        after = page[-1][0]
        if not isinstance(after, int):
            raise FaultFound("an entry's number is not a number")


def _check_head(transaction: Transaction, seal: Seal, last: Head) -> None:
    try:
        head = head_of(transaction, seal)
    except UnreachableError:
        raise
    except SourceError as error:
        raise FaultFound(str(error)) from None
    if head != last:
        raise FaultFound(f"the log says that entry {head.seq} is the last", last.seq + 1)


def _check_count(transaction: Transaction, checked: int) -> None:
    """An entry whose number comes before all others, or is none, is not among those in order."""
    ((found,),) = transaction.tuples("SELECT count(*) FROM audit_entries")
    if found != checked:
        raise FaultFound(f"there are {found} entries, and {checked} are in order")


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    at: float
    hash: str
    previous: str
    record: msgspec.Raw
    seq: int


_START = '{"at":'
_decode_line = msgspec.json.Decoder(_Line).decode


def _line(text: str) -> tuple[Any, ...] | None:
    """The entry, or None: it must be written as it was exported, so that all read the same in it."""
    try:
        given = _decode_line(text)
        record = bytes(given.record).decode()
        written = line(Head(given.seq, given.hash), given.at, given.previous, record)
    except (*UNREADABLE, ValueError):
        return None
    if text.rstrip("\r\n") != written:
        return None
    return given.seq, given.at, record, given.previous, given.hash


def _is_cut(text: str) -> bool:
    """Whether a text can be the beginning of a line; what is whole, and no entry, was changed."""
    if text.endswith("\n") or text[: len(_START)] != _START[: len(text)]:
        return False
    try:
        json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return False
