"""The one place that writes entries: a head that is locked, entries after it, the head they make.

All writers, in whichever process, take the lock on the head first. So the numbers have no gaps, and
a key that nobody has claimed when the transaction looks cannot be claimed before it is over. A key is
claimed by an entry of status `started`, or `completed` once that one is pruned: there is nothing else
to keep in step with the entries.
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
from toolcrib.errors import SourceError
from toolcrib.storage import Transaction
from toolcrib.values.origin import Attachment

_HEAD = "SELECT seq, hash, seal FROM audit_head WHERE id = 1"
_NAMES = ("seq", "at", "record", "previous", "hash", *COLUMNS)
_INSERT = (
    f"INSERT INTO audit_entries ({', '.join(_NAMES)})"  # noqa: S608  names of our own
    f" VALUES ({', '.join(':' + name for name in _NAMES)})"
)
_FIRST = "SELECT seq FROM audit_entries WHERE at >= :at ORDER BY seq LIMIT 1"
_CLAIMED = "status IN ('started', 'completed')"
_TAKEN = (
    "SELECT DISTINCT idempotency_key FROM audit_entries"  # noqa: S608  likewise
    f" WHERE idempotency_key IN :keys AND {_CLAIMED}"
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
_LAST = (
    f"SELECT {ENTRY} FROM audit_entries WHERE idempotency_key = :key"  # noqa: S608  likewise
    f" AND EXISTS (SELECT 1 FROM audit_entries WHERE idempotency_key = :key AND {_CLAIMED})"
    " ORDER BY seq DESC LIMIT 1"
)


class Draft(msgspec.Struct, frozen=True):
    """An entry that is to be written; with a `claim` only if nobody has claimed that key.

    An entry that is `once` is written only if no other is about the same thing: an attachment.
    """

    text: str
    columns: tuple[str, ...]
    claim: str = ""
    once: bool = False

    @staticmethod
    def of(record: Kept, *, claim: bool = False) -> Draft:
        """Raises SourceError if the record could not be read again."""
        text = text_of(record)
        columns = columns_of(text)
        claimed = columns[COLUMNS.index("idempotency_key")] if claim else ""
        return Draft(text, columns, claimed, isinstance(record, Attachment))


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
    """Write the entries; of each whose claim comes too late, the last one under its key instead."""
    head = _locked(transaction, seal)
    late = _late(transaction, drafts)
    known = _known(transaction, drafts)
    written: list[dict[str, Any]] = []
    for at, draft in enumerate(drafts):
        if at not in late and at not in known:
            values, head = _row(seal, head, draft)
            written.append(values)
    if written:
        transaction.execute_many(_INSERT, written)
        _set_head(transaction, seal, head)
    return [
        last_under(transaction, seal, draft.claim) if at in late else None
        for at, draft in enumerate(drafts)
    ]


def last_under(transaction: Transaction, seal: Seal, key: str) -> AuditEntry | SourceError | None:
    """The last entry under an idempotency key, if that has been claimed.

    It stands for a call that is not made again: an error, if it is not as it was written.
    """
    found = transaction.tuples(_LAST, key=column(key))
    if not found:
        return None
    seq, at, text, previous, own = found[0]
    if seal.entry(Head(seq - 1, previous), at, text).hash != own:
        return SourceError(f"entry {seq} of the audit log was changed: verify the log")
    return entry_of(found[0])


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


def _late(transaction: Transaction, drafts: Sequence[Draft]) -> set[int]:
    """Which of the drafts claim a key that was claimed before, or earlier in the same batch."""
    claims = [draft.claim for draft in drafts if draft.claim]
    if not claims:
        return set()
    taken = {key for (key,) in transaction.tuples(_TAKEN, keys=claims)}
    late = set()
    for at, draft in enumerate(drafts):
        if draft.claim in taken:
            late.add(at)
        elif draft.claim:
            taken.add(draft.claim)
    return late


def _known(transaction: Transaction, drafts: Sequence[Draft]) -> set[int]:
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
