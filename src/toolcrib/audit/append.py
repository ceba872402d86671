"""The one place that writes entries: a head that is locked, entries after it, the head they make.

All writers, in whichever process, take the lock on the head first. So the numbers have no gaps, and
a key that nobody has claimed when the transaction looks cannot be claimed before it is over. A key is
claimed by an entry of status `started`, or `completed` once that one is pruned: there is nothing else
to keep in step with the entries.

A final outcome is final: the first under a key stands, whatever is written there later, and whoever
writes later is told of it in the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from toolcrib.audit.chain import GENESIS, Seal
from toolcrib.audit.entry import AuditEntry, Head
from toolcrib.audit.rows import (
    ATTACHMENTS,
    COLUMNS,
    ENTRY,
    Kept,
    Pruned,
    column,
    columns_of,
    entry_of,
    seconds,
    text_of,
)
from toolcrib.errors import ErrorCode, SourceError
from toolcrib.storage import Transaction
from toolcrib.values.origin import Attachment
from toolcrib.values.record import ToolInvocationRecord, earlier_key_of, standing

_HEAD = "SELECT seq, hash, seal FROM audit_head WHERE id = 1"
_NAMES = ("seq", "at", "record", "previous", "hash", *COLUMNS)
_INSERT = (
    f"INSERT INTO audit_entries ({', '.join(_NAMES)})"  # noqa: S608  names of our own
    f" VALUES ({', '.join(':' + name for name in _NAMES)})"
)
_FIRST = "SELECT seq FROM audit_entries WHERE at >= :at ORDER BY seq LIMIT 1"
_KEYS = (
    "SELECT idempotency_key, run_id, call_id, status, code FROM audit_entries"
    " WHERE idempotency_key IN :keys"
)
_THERE = (
    "SELECT 1 FROM audit_entries"
    " WHERE run_id = :run_id AND call_id = :call_id AND status = :status LIMIT 1"
)
_CARRIED = (
    "SELECT record FROM audit_entries AS old WHERE seq <= :seq"  # noqa: S608  likewise
    f" AND status IN ({', '.join(repr(kind) for kind in ATTACHMENTS)}) AND (run_id = ''"
    " OR EXISTS (SELECT 1 FROM audit_entries WHERE run_id = old.run_id AND seq > :seq))"
    " ORDER BY seq"
)
_UNDER = (
    f"SELECT {ENTRY}, {', '.join(COLUMNS)} FROM audit_entries"  # noqa: S608  likewise
    " WHERE idempotency_key = :key"
    " OR (idempotency_key = :earlier AND run_id = :run_id AND call_id = :call_id) ORDER BY seq"
)
_STATUS, _CODE = COLUMNS.index("status"), COLUMNS.index("code")
_CLAIMS = ("started", "completed")
_ENDED = ("completed", "failed")
_UNKNOWN = ErrorCode.OUTCOME_UNKNOWN.value


class Asked(msgspec.Struct, frozen=True):
    """Whose entries are looked for: those under `key`, and of this run and call those under `earlier`.

    All of it is as columns hold it. Without a key nothing is looked for.
    """

    key: str
    earlier: str
    run_id: str = ""
    call_id: str = ""

    @staticmethod
    def of(record: ToolInvocationRecord) -> Asked:
        """Of the call of a record."""
        key, run_id, call_id = record.idempotency_key, record.run_id, record.id
        earlier = (key and earlier_key_of(run_id, call_id)) or key
        return Asked(column(key), column(earlier), column(run_id), column(call_id))

    @staticmethod
    def under(key: str) -> Asked:
        """Under that key alone."""
        return Asked(column(key), column(key))

    def fits(self, key: str, run_id: str, call_id: str) -> bool:
        """Whether an entry with these columns is about this call."""
        own = key == self.earlier and (run_id, call_id) == (self.run_id, self.call_id)
        return key == self.key or own


class Draft(msgspec.Struct, frozen=True):
    """An entry that is to be written; with a `claim` only if nobody has claimed its key.

    An entry that is `once` is written only if no other is about the same thing: an attachment.
    """

    text: str
    columns: tuple[str, ...]
    asked: Asked = Asked("", "")
    claim: bool = False
    once: bool = False

    @staticmethod
    def of(record: Kept, *, claim: bool = False) -> Draft:
        """Raises SourceError if the record could not be read again."""
        text = text_of(record)
        columns = columns_of(text)
        if not isinstance(record, ToolInvocationRecord):
            return Draft(text, columns, once=isinstance(record, Attachment))
        return Draft(text, columns, Asked.of(record), claim and record.idempotency_key != "")

    @property
    def about(self) -> tuple[str, str, str, str, str]:
        """Key, run, call, status and code, as the columns have them."""
        told = dict(zip(COLUMNS, self.columns, strict=True))
        key, run_id, call_id = told["idempotency_key"], told["run_id"], told["call_id"]
        return key, run_id, call_id, told["status"], told["code"]


def head_of(transaction: Transaction, seal: Seal, *, lock: bool = False) -> Head:
    """The last entry's head; raises SourceError if this log's key did not make it."""
    found = transaction.tuples(_HEAD + (transaction.for_update if lock else ""))
    if not found:
        return GENESIS
    head = Head(*found[0][:2])
    if found[0][2] != seal.head(head):
        raise SourceError("the audit log's head does not fit: it has another key, or was changed")
    return head


def append(
    transaction: Transaction, seal: Seal, drafts: Sequence[Draft]
) -> list[AuditEntry | SourceError | None]:
    """Write the entries; of each whose key was settled before, the entry that stands there.

    A claim that comes too late is not written, nor that somebody did not know of a final outcome.
    """
    head = _locked(transaction, seal)
    known = _Known(transaction, drafts)
    there = _there(transaction, drafts)
    settled: set[int] = set()
    written: list[dict[str, Any]] = []
    for at, draft in enumerate(drafts):
        if at in there:
            continue
        if known.settles(draft):
            settled.add(at)
            if draft.claim or draft.columns[_CODE] == _UNKNOWN:
                continue
        values, head = _row(seal, head, draft)
        written.append(values)
        known.take(draft)
    if written:
        transaction.execute_many(_INSERT, written)
        _set_head(transaction, seal, head)
    return [
        standing_under(transaction, seal, draft.asked) if at in settled else None
        for at, draft in enumerate(drafts)
    ]


class _Known:
    """What the columns say of the keys of some drafts, and what the drafts before one add to that."""

    def __init__(self, transaction: Transaction, drafts: Sequence[Draft]) -> None:
        asked = [
            draft.asked for draft in drafts if draft.columns[_STATUS] != "started" or draft.claim
        ]
        keys = {key for one in asked for key in (one.key, one.earlier) if key}
        rows = transaction.tuples(_KEYS, keys=sorted(keys)) if keys else ()
        self._rows: dict[str, list[tuple[str, ...]]] = {}
        for row in rows:
            self._rows.setdefault(row[0], []).append(tuple(row))

    def settles(self, draft: Draft) -> bool:
        """Whether a claim comes too late, or an outcome after a final one."""
        asked = draft.asked
        if not asked.key or (draft.columns[_STATUS] not in _ENDED and not draft.claim):
            return False
        found = (*self._rows.get(asked.key, ()), *self._rows.get(asked.earlier, ()))
        about = [row for row in found if asked.fits(*row[:3])]
        if draft.claim:
            return any(status in _CLAIMS for *_, status, _code in about)
        return any(status in _ENDED and code != _UNKNOWN for *_, status, code in about)

    def take(self, draft: Draft) -> None:
        """A draft is written."""
        if draft.asked.key:
            self._rows.setdefault(draft.asked.key, []).append(draft.about)


def standing_under(
    transaction: Transaction, seal: Seal, asked: Asked
) -> AuditEntry | SourceError | None:
    """The entry that stands for a call (see `standing`), if its key has been claimed.

    It stands for a call that is not made again: an error, if an entry is not as it was written, or its
    columns do not say what its record says.
    """
    if not asked.key:
        return None
    entries = []
    of_whom = {"run_id": asked.run_id, "call_id": asked.call_id, "earlier": asked.earlier}
    for row in transaction.tuples(_UNDER, key=asked.key, **of_whom):
        seq, at, text, previous, own = row[:5]
        same = seal.entry(Head(seq - 1, previous), at, text).hash == own
        entries.append(entry_of(row[:5]))
        if not same or columns_of(text) != row[5:]:
            return SourceError(f"entry {seq} of the audit log was changed: verify the log")
    if not any(entry.record.status in _CLAIMS for entry in entries):
        return None
    stands = standing([entry.record for entry in entries])
    return next(entry for entry in entries if entry.record is stands)


def prune(transaction: Transaction, seal: Seal, before: float) -> int:
    """Remove the oldest entries, up to the first that was written at `before` or later.

    What later entries may refer to is written again: all definitions, and what was attached to runs
    of which later entries are left.
    """
    limit = seconds(before)
    head = _locked(transaction, seal)
    kept = transaction.tuples(_FIRST, at=limit)
    through = kept[0][0] - 1 if kept else head.seq
    last = transaction.tuples("SELECT hash FROM audit_entries WHERE seq = :seq", seq=through)
    if not last:
        return 0
    carried = [text for (text,) in transaction.tuples(_CARRIED, seq=through)]
    removed = transaction.execute("DELETE FROM audit_entries WHERE seq <= :seq", seq=through)
    text = text_of(Pruned(through, last[0][0], removed))
    written = []
    for again in (text, *carried):
        values, head = _row(seal, head, Draft(again, columns_of(again)))
        written.append(values)
    transaction.execute_many(_INSERT, written)
    _set_head(transaction, seal, head)
    return removed - len(carried)


def _locked(transaction: Transaction, seal: Seal) -> Head:
    """The head, which nobody else may move on before this transaction ends."""
    transaction.execute(
        "INSERT INTO audit_head (id, seq, hash, seal) VALUES (1, :seq, :hash, :seal)"
        " ON CONFLICT (id) DO NOTHING",
        seq=GENESIS.seq,
        hash=GENESIS.hash,
        seal=seal.head(GENESIS),
    )
    return head_of(transaction, seal, lock=True)


def _there(transaction: Transaction, drafts: Sequence[Draft]) -> set[int]:
    """Which of the drafts are in the log already, or come earlier in the same batch."""
    known, seen = set(), set()
    for at, draft in enumerate(drafts):
        if draft.once:
            about = dict(zip(COLUMNS, draft.columns, strict=True))
            named = {name: about[name] for name in ("run_id", "call_id", "status")}
            same = tuple(named.values())
            if same in seen or transaction.tuples(_THERE, **named):
                known.add(at)
            seen.add(same)
    return known


def _row(seal: Seal, previous: Head, draft: Draft) -> tuple[dict[str, Any], Head]:
    at = round(time.time(), 6)
    head = seal.entry(previous, at, draft.text)
    own = (head.seq, at, draft.text, previous.hash, head.hash)
    return dict(zip(_NAMES, own + draft.columns, strict=True)), head


def _set_head(transaction: Transaction, seal: Seal, head: Head) -> None:
    transaction.execute(
        "UPDATE audit_head SET seq = :seq, hash = :hash, seal = :seal WHERE id = 1",
        seq=head.seq,
        hash=head.hash,
        seal=seal.head(head),
    )
