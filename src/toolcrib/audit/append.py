"""The only module that writes entries: it locks the state, adds entries, and stores the new state.

Every writer, in any process, first locks the row of the state. So the numbers have no gaps, and a key
that is unclaimed when the transaction looks stays unclaimed until the transaction ends. A key is
claimed by an entry that says that its call began, or that gives its final end (`kind_of`). That is the
`started` entry, and the end once the `started` entry is pruned. A call of a tool that only reads is
claimed by its end alone.

A final outcome is final. The first one under a key determines the outcome, whatever is written later,
and a later writer gets it in the same transaction. So does a writer that claims, under another key, the
resumption of the call.

Everything that decides whether a call runs is checked first, up to the seal of the state (`entry`). The
index of keys proves which entries a key has, or that it has none. Each returned entry is checked by its
hash and its place in the tree. The other columns of a row decide nothing: they are for queries. The
stored state must be the newest one that this log has read or written while open (`Seal.newest`), or
follow from it. Otherwise it is an error, because an older copy of the database was put back.
A log of format 1 has no index: its entries are found by the key's column and checked one by one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from toolcrib.audit import index, tree
from toolcrib.audit.checkpoint import Checkpoint
from toolcrib.audit.entry import (
    ATTACHMENTS,
    BEGAN,
    COLUMNS,
    ENDED,
    ENTRY,
    FINAL,
    FORMAT,
    KINDS,
    NOTHING,
    ROW,
    UNKNOWN,
    AuditEntry,
    Genesis,
    Head,
    Pruned,
    Seal,
    State,
    StoredRecord,
    Summary,
    attachment_of,
    column,
    columns_agree,
    columns_of,
    entry_of,
    kind_of,
    leaf,
    seconds,
    summary_of,
    summary_of_call,
    text_and_record,
)
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.storage import Insert, Row, Transaction
from toolcrib.threads import renew_in_children
from toolcrib.values.json import key_of
from toolcrib.values.record import (
    Attachment,
    ToolInvocationRecord,
    earlier_key_of,
    standing,
)

Generation: TypeAlias = tuple[str, int | None]
S = TypeVar("S")
T = TypeVar("T")
_IDLE_SECONDS = 5.0
_MOST_IN_GROUP = 500  # items in one transaction
_FEW_ENTRIES = 8
MOST_PRUNED = 20_000  # in one transaction: takes some seconds; other writers time out after ten
PAGE = 100  # a record may have 4 MB
_SELECT_STATE = """SELECT seq, hash, format, log_id, first_seq, keys_hash, tree_hash, seal
    FROM audit_head WHERE id = 1"""
_SELECT_OLDEST = "SELECT min(seq) FROM audit_entries"
_INSERT_HEAD = """INSERT INTO audit_head (id, seq, hash, seal, format)
    VALUES (1, -1, '', '', :format) ON CONFLICT (id) DO NOTHING"""
_UPDATE_HEAD = """UPDATE audit_head SET seq = :seq, hash = :hash, format = :format, log_id = :log,
    first_seq = :first, keys_hash = :keys, tree_hash = :root, seal = :seal WHERE id = 1"""
_UPDATE_HEAD_1 = "UPDATE audit_head SET seq = :seq, hash = :hash, seal = :seal WHERE id = 1"
_SELECT_WRITTEN_1 = f"""SELECT {ROW} FROM audit_entries JOIN (SELECT seal FROM audit_head
    WHERE id = 1 AND seq = :seq AND hash = :hash AND seal = :seal) AS head
    ON audit_entries.seq BETWEEN :oldest AND :seq ORDER BY seq"""  # noqa: S608  only our own names
_SELECT_WRITTEN = _SELECT_WRITTEN_1.replace(
    "id = 1",
    """id = 1 AND format = :format AND log_id = :log AND first_seq = :first AND keys_hash = :keys
    AND tree_hash = :root""",
)
_SELECT_ANYTHING = """SELECT 1 FROM audit_entries UNION ALL SELECT 1 FROM audit_keys
    UNION ALL SELECT 1 FROM audit_tiles LIMIT 1"""
_COLUMN_NAMES = ("seq", "at", "record", "previous", "hash", *COLUMNS)
_INSERT = Insert("audit_entries", _COLUMN_NAMES)
_SELECT_BY_NUMBER = f"SELECT {ENTRY} FROM audit_entries WHERE seq IN :numbers ORDER BY seq"  # noqa: S608
_SELECT_BY_KEY = f"SELECT {ENTRY} FROM audit_entries WHERE idempotency_key = :key ORDER BY seq"  # noqa: S608
_SELECT_BY_CALL = _SELECT_BY_KEY.replace(
    "WHERE", "WHERE run_id = :run_id AND call_id = :call_id AND"
)
_SELECT_PAGE = (
    f"SELECT {ENTRY} FROM audit_entries WHERE seq > :after AND seq <= :through"  # noqa: S608
    " ORDER BY seq LIMIT :limit"
)
_SELECT_SAME = (
    f"SELECT {ROW} FROM audit_entries"  # noqa: S608  only our own names
    " WHERE run_id = :run_id AND call_id = :call_id AND status = :status"
)
_EMPTY_ROOT = tree.EMPTY.hex()
_ONLY_BEGAN = frozenset([BEGAN])
_PUT_BACK = (
    "the audit log is not the one that was open: an older copy was put back;"
    " verify the log with a head or checkpoint that was kept"
)
_REPLACED = (
    "the audit log is not the one that was open: it was removed, or another log has taken its place;"
    " if that was meant, open it by another AuditLog"
)
_NO_THREAD = (
    "the audit log cannot be written: no thread can be started, so the process has too many of them or"
    " too little memory"
)
_PRUNED_MEANWHILE = (
    "the audit log was pruned meanwhile, or entries of it are gone: try again, or verify the log"
)


class PrunePlan(msgspec.Struct, frozen=True):
    """Says from where a verified log is to be pruned, and whose attachments stay.

    `begin` is the head that its first entry follows, `head` its last entry, and `runs` the runs of the
    entries that stay.
    """

    begin: Head
    head: Head
    runs: frozenset[str]


class CallKeys(msgspec.Struct, frozen=True):
    """Names one call in the log: by `key`, and by run and call among the entries under `earlier`.

    An empty key finds nothing.
    """

    key: str
    earlier: str
    run_id: str = ""
    call_id: str = ""

    @staticmethod
    def of(record: ToolInvocationRecord) -> CallKeys:
        """Return the keys under which this record's call may have entries."""
        key, run_id, call_id = record.idempotency_key, record.run_id, record.id
        return CallKeys(key, (key and earlier_key_of(run_id, call_id)) or key, run_id, call_id)

    @staticmethod
    def of_call(record: ToolInvocationRecord) -> CallKeys:
        """Return the call's own keys, for a record that claims its resumption under another key."""
        key = key_of(record.run_id, record.id)
        return CallKeys.of(msgspec.structs.replace(record, idempotency_key=key))

    @staticmethod
    def under(key: str) -> CallKeys:
        """Return the keys for a search by this key only."""
        return CallKeys(key, key)


class NewEntry(msgspec.Struct, frozen=True):
    """An entry to be written.

    `summary` is what its columns say, and `call` is the call that it is about. With a `claim` it is
    written only if the call's key is unclaimed. With `resumed`, a call that waited and is to be
    resumed, it is written only if that call has not ended. With `once` (an attachment) it is written
    only if the log has no other entry about the same thing.
    """

    text: str
    summary: Summary
    call: CallKeys = CallKeys("", "")
    resumed: CallKeys = CallKeys("", "")
    claim: bool = False
    once: bool = False

    @staticmethod
    def of(record: StoredRecord, *, claim: bool = False) -> NewEntry:
        """Make an entry from a record. Raises SourceError if the record could not be read back."""
        text, known = text_and_record(record)
        if not isinstance(known, ToolInvocationRecord):
            return NewEntry(text, summary_of(text), once=isinstance(known, Attachment))
        claims = claim and known.idempotency_key != ""
        summary, call = summary_of_call(known), CallKeys.of(known)
        if claims and known.process:
            return NewEntry(text, summary, call, CallKeys.of_call(known), claims)
        return NewEntry(text, summary, call, claim=claims)

    @property
    def settles(self) -> bool:
        """Whether this entry depends on the entries that its key already has."""
        return self.call.key != "" and (self.claim or self.summary.status in ENDED)


class StoredState(NamedTuple):
    """The log's state and its seal, as the database has them.

    `log_id` is the stored value, which the seal of format 1 does not cover.
    """

    state: State
    sealed: str
    log_id: str

    def generation(self, oldest: Callable[[], Sequence[tuple[Any, ...]]]) -> Generation:
        """Return the log's id and the number of its oldest entry.

        The result changes when entries are pruned or another log replaces this one, whoever did it.
        """
        ((first,),) = oldest()
        return self.log_id, first


def read_oldest_ahead(transaction: Transaction) -> Callable[[], Sequence[tuple[Any, ...]]]:
    """Request the number of the oldest entry, in a separate statement.

    A statement that waits for a lock sees the locked row as it is afterwards, but everything else as
    it was before the wait.
    """
    return transaction.read_ahead(_SELECT_OLDEST)


def stored_state(transaction: Transaction) -> StoredState | None:
    """Return the log's state as the database has it, unchecked; None if the log was never begun.

    In a log of format 1 only the head is sealed, so nothing else in the row becomes part of the state.
    """
    return _stored(transaction.tuples(_SELECT_STATE))


def _stored(found: Sequence[tuple[Any, ...]]) -> StoredState | None:
    if not found:
        return None
    seq, hash_, version, log, first, keys, root, sealed = found[0]
    head = Head(seq, hash_)
    state = State(head=head, format=version, log=log, first=first, keys=keys, root=root)
    if version == 1:
        state = State(head=head, format=1)
    return StoredState(state, sealed, log)


def state_of(transaction: Transaction, seal: Seal) -> State | None:
    """Return the stored state of the log, checked; None if the log was never begun.

    Raises SourceError if the state was not sealed with this log's key, is older than one that is known,
    or is gone.
    """
    # copied before the transaction's first read, so that the read sees all that is remembered
    newest = dict(seal.newest)
    found = stored_state(transaction)
    if found is None:
        _check_not_begun(newest, transaction)
        return None
    state = _check_state(seal, found.state, found.sealed)
    _check_follows(newest, state, partial(tree.tiles, transaction))
    seal.remember(state)
    return state


def _check_follows(known: Mapping[str, State], state: State, read: tree.Read) -> None:
    """Raise SourceError unless a state is the newest known one or follows from it.

    A new log in place of the known one would not have the calls that have run, and they would run
    again. Entries that others wrote since then are cheap to check: the tree gives the root that it
    had at the earlier size. A migrated log never has format 1 again.
    """
    newest = known.get(state.log)
    if any(other.format > 1 for other in known.values()):
        if state.format == 1:
            raise SourceError(_PUT_BACK)
        if newest is None:
            raise SourceError(_REPLACED)
    if newest is None or state == newest:
        return
    follows = state.head.seq > newest.head.seq
    if newest.format > 1:
        follows = follows and state.format == newest.format
        follows = follows and tree.Tree(state.size, read).root_at(newest.size).hex() == newest.root
    if not follows:
        raise SourceError(_PUT_BACK)


def _check_state(seal: Seal, state: State, sealed: str) -> State:
    if not seal.fits_state(state, sealed):
        raise SourceError(
            "the audit log's head does not fit: the log has another key, or its head was changed"
        )
    if state.format > FORMAT:
        raise SourceError(f"the audit log has format {state.format}: install a newer toolcrib")
    return state


def _check_not_begun(known: Mapping[str, State], transaction: Transaction) -> None:
    """Raise SourceError if a log without a head has entries, or if one was open here (`known`)."""
    if transaction.tuples(_SELECT_ANYTHING):
        raise SourceError("the audit log has entries, but no head: verify the log")
    if known:
        raise SourceError(_REPLACED)


class ReadAhead(NamedTuple):
    """Reads tiles and index nodes that were requested before the state was known."""

    tiles: tree.Read
    nodes: index.RequestedNodes = tuple

    @staticmethod
    def of(transaction: Transaction, seal: Seal, calls: Iterable[CallKeys]) -> ReadAhead:
        """Request them if others wrote to the log last: then what is remembered is out of date."""
        if not seal.others_wrote:
            return ReadAhead(partial(tree.tiles, transaction))
        size = max(state.size for state in seal.newest.values())
        keys = _keys_of(calls)
        return ReadAhead(tree.read_ahead(transaction, size), index.read_ahead(transaction, keys))


def _keys_of(calls: Iterable[CallKeys]) -> set[str]:
    return {key for call in calls for key in (call.key, call.earlier) if key}


class CheckedLog:
    """Reads entries of a log, and raises an error for any that the seal of its state does not cover."""

    def __init__(
        self, transaction: Transaction, seal: Seal, state: State, ahead: ReadAhead | None = None
    ) -> None:
        ahead = ahead or ReadAhead(partial(tree.tiles, transaction))
        self._transaction = transaction
        self._seal = seal
        self.state = state
        self._index = index.Index(transaction, seal, state.keys, ahead.nodes)
        self._tree = tree.Tree(state.size, ahead.tiles)

    def load_keys(self, calls: Iterable[CallKeys]) -> None:
        """Load the index rows of these keys."""
        if self.state.format > 1:
            self._index.load(_keys_of(calls))

    def kinds(self, call: CallKeys) -> list[int]:
        """Return the kind (`kind_of`) of each entry about this call.

        The index has the kinds of the entries under `key`. Entries under an earlier key are read,
        because several calls may share one.
        """
        if self.state.format == 1:
            return [kind_of(entry.record) for entry in self.about(call)]
        kinds = [number % KINDS for number in self._index.under(call.key)]
        return kinds + [kind_of(entry.record) for entry in self._earlier(call)]

    def about(self, call: CallKeys) -> list[AuditEntry]:
        """Return all entries about a call, oldest first. Raises SourceError if one was changed."""
        entries = [*self._under(call.key, call), *self._earlier(call)]
        return sorted(entries, key=lambda entry: entry.seq)

    def _earlier(self, call: CallKeys) -> list[AuditEntry]:
        if call.earlier == call.key:
            return []
        run_and_call = (call.run_id, call.call_id)
        entries = self._under(call.earlier, call)
        return [
            entry for entry in entries if (entry.record.run_id, entry.record.id) == run_and_call
        ]

    def _under(self, key: str, call: CallKeys) -> list[AuditEntry]:
        """Return the entries under a key; in a log of format 1, only those about this call if known."""
        if not key:
            return []
        if self.state.format == 1:
            sql = _SELECT_BY_CALL if call.call_id else _SELECT_BY_KEY
            run_id, call_id = column(call.run_id), column(call.call_id)
            rows = self._transaction.tuples(sql, key=column(key), run_id=run_id, call_id=call_id)
            return [entry_of(self.placed(row)) for row in rows]
        numbers = [number // KINDS for number in self._index.under(key)]
        if not numbers:
            return []
        rows = self._transaction.tuples(_SELECT_BY_NUMBER, numbers=numbers)
        missing = set(numbers) - {row[0] for row in rows}
        if missing:
            raise SourceError(f"entry {min(missing)} of the audit log is gone: verify the log")
        return [entry_of(self.placed(row)) for row in rows]

    def placed(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the row, or raise SourceError unless it is unchanged and in its place in this log.

        A log of format 1 has no tree, so there the place is not checked.
        """
        seq, at, text, _, _ = self.unchanged(row)
        if self.state.format > 1:
            index, size = seq - self.state.first, self.state.size
            proof = self._tree.inclusion(index) if 0 <= index < size else ()
            root = tree.root_of_inclusion(tree.leaf_hash(seq, at, text), index, size, proof)
            if root is None or root.hex() != self.state.root:
                raise SourceError(
                    f"entry {seq} of the audit log belongs to another log: verify the log"
                )
        return row

    def unchanged(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the row, or raise SourceError if it was changed."""
        if not self._seal.fits(row):
            raise SourceError(f"entry {row[0]} of the audit log was changed: verify the log")
        return row


class LockedLog(CheckedLog):
    """The end of a log, locked: no other writer can add entries before this transaction ends."""

    def __init__(
        self, transaction: Transaction, seal: Seal, calls: Iterable[CallKeys] = ()
    ) -> None:
        self.generation: Generation | None = None
        under_lock = transaction.read_ahead(_SELECT_STATE + transaction.for_update)
        oldest = (
            read_oldest_ahead(transaction)
            if seal.others_wrote
            else partial(transaction.tuples, _SELECT_OLDEST)
        )
        ahead = ReadAhead.of(transaction, seal, calls)
        found = _stored(under_lock())
        if found is None and transaction.execute(_INSERT_HEAD, format=FORMAT) == 1:
            _check_not_begun(seal.newest, transaction)
            seal.check_new()
            self._use(transaction, seal, State(head=NOTHING, log=uuid4().hex, root=_EMPTY_ROOT))
            self.add([NewEntry.of(Genesis(self.state.log, FORMAT))])
            self.generation = self.state.log, 0
            return
        if found is None:  # another writer has begun the log while this one waited
            found = _stored(transaction.tuples(_SELECT_STATE + transaction.for_update))
            oldest = read_oldest_ahead(transaction)
        if found is None:
            raise SourceError("the head of the audit log is gone: verify the log")
        known = seal.remembered(found.state).oldest  # if known, nobody has pruned since
        self.generation = found.generation(oldest) if known is None else (found.log_id, known)
        state = _check_state(seal, found.state, found.sealed)
        newest = dict(seal.newest)  # under the lock no state can be newer than the stored one
        _check_follows(newest, state, ahead.tiles)
        seal.others_wrote = newest.get(state.log, state) != state
        self._use(transaction, seal, state, ahead)

    def add(self, drafts: Sequence[NewEntry]) -> None:
        """Write entries, whose keys must have been loaded (`load_keys`), and the state that results."""
        if not drafts:
            return
        rows: list[Row] = []
        head = self.state.head
        for draft in drafts:
            at, previous = round(time.time(), 6), head
            head = self._seal.entry(previous, at, draft.text)
            entry = (head.seq, at, draft.text, previous.hash, head.hash)
            rows.append(_as_row(entry + columns_of(draft.summary)))
        summaries, insert = [draft.summary for draft in drafts], (_INSERT, rows)
        if len(rows) <= _FEW_ENTRIES:
            self._seal_in(rows, summaries, insert)  # in one statement, which takes least time
        else:
            self._transaction.insert(*insert)  # a server works on it meanwhile
            self._seal_in(rows, summaries)

    def prune(self, before: float, plan: PrunePlan) -> tuple[int, PrunePlan | None]:
        """Remove the entries before the first one written at `before` or later.

        Returns how many entries are gone, and what the next call needs if more are to be removed,
        else None. A call ends soon after MOST_PRUNED entries, so that other writers do not wait too
        long. Everything that later entries may refer to is written again: all definitions, and
        attachments of runs that still have entries. Raises SourceError unless the log's entries form
        a chain from `plan.begin` through `plan.head`, which were verified a moment ago.
        """
        limit, through = seconds(before), plan.head.seq
        removed, last, more = 0, None, False
        attachments: list[Attachment] = []
        for rows in self._rows_after(plan.begin):
            pruned = list(takewhile(lambda row: row[1] < limit and row[0] <= through, rows))
            summaries = [summary_of(row[2]) for row in pruned]
            self.load_keys(CallKeys.under(summary.idempotency_key) for summary in summaries)
            for summary, row in zip(summaries, pruned, strict=True):
                if summary.status in ATTACHMENTS:
                    attachments.append(attachment_of((row[0], row[2])))
                if summary.idempotency_key and self.state.format > 1:
                    self._index.forget(summary.idempotency_key, row[0] * KINDS + KINDS - 1)
            removed += sum(row[0] > 0 for row in pruned)  # a genesis is not counted
            last = pruned[-1] if pruned else last
            more = len(pruned) == len(rows)
            if not more or removed >= MOST_PRUNED:
                break
        if last is None or not removed:
            return 0, None
        added = [row for rows in self._rows_after(plan.head) for row in rows]
        runs = plan.runs | {"", *(summary_of(row[2]).run_id for row in added)}
        kept_attachments = [each for each in attachments if each.run_id in runs]
        self._transaction.execute("DELETE FROM audit_entries WHERE seq <= :seq", seq=last[0])
        self.generation = None
        continuation: list[StoredRecord] = [Pruned(last[0], last[4], removed), *kept_attachments]
        self.add([NewEntry.of(entry) for entry in continuation])
        remaining = msgspec.structs.replace(plan, begin=Head(last[0], last[4]))
        return removed - len(kept_attachments), remaining if more else None

    def _rows_after(self, last: Head) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of all entries after one, page by page.

        Raises SourceError unless each follows from the one before, up to the head.
        """
        for rows in pages(self._transaction, last.seq, self.state.head.seq):
            for row in map(self.unchanged, rows):
                if (row[0], row[3]) != (last.seq + 1, last.hash):
                    raise SourceError(_PRUNED_MEANWHILE)
                last = Head(row[0], row[4])
            yield rows
        if last != self.state.head:
            raise SourceError(_PRUNED_MEANWHILE)

    def migrate(self) -> None:
        """Migrate a verified log of format 1: seal its entries in, and add an entry that says so."""
        end = self.state.head
        for table in ("audit_keys", "audit_tiles"):  # format 1 has no rows there
            self._transaction.execute(f"DELETE FROM {table}")  # noqa: S608  only our own names
        oldest = self._transaction.tuples(_SELECT_OLDEST)[0][0]
        first = end.seq + 1 if oldest is None else oldest
        begin = State(head=Head(first - 1, ""), log=uuid4().hex, first=first, root=_EMPTY_ROOT)
        self._use(self._transaction, self._seal, begin)
        for rows in pages(self._transaction, first - 1, end.seq):
            summaries = [summary_of(text) for _, _, text, _, _ in rows]
            self.load_keys(CallKeys.under(summary.idempotency_key) for summary in summaries)
            with_summaries = zip(rows, summaries, strict=True)
            self._seal_in(
                [_as_row((*row, *columns_of(summary))) for row, summary in with_summaries],
                summaries,
            )
        self.state = msgspec.structs.replace(self.state, head=end)
        self.add([NewEntry.of(Genesis(self.state.log, FORMAT, first, end.seq, end.hash))])

    def _seal_in(
        self,
        rows: Sequence[Row],
        summaries: Sequence[Summary],
        *inserts: tuple[Insert, Sequence[Row]],
    ) -> None:
        """Put entries into the index and the tree, and set the head to the last one.

        `inserts` stores the entries, unless they are stored already.

        Raises SourceError unless the entries and the head are stored then: no call may run whose entry
        the database has not kept.
        """
        state = msgspec.structs.replace(self.state, head=Head(rows[-1]["seq"], rows[-1]["hash"]))
        if state.format > 1:
            for row, summary in zip(rows, summaries, strict=True):
                if summary.idempotency_key:
                    self._index.add(summary.idempotency_key, row["seq"] * KINDS + kind_of(summary))
            self._tree.extend(
                [tree.leaf_hash(row["seq"], row["at"], row["record"]) for row in rows]
            )
            tiles = tree.rows_of(self._tree.changed())
            self._tree.read = partial(tree.tiles, self._transaction)  # not the tiles read ahead
            root = self._tree.root().hex()
            keys, nodes = self._index.changed()
            inserts += ((tree.SAVE, tiles), (index.SAVE, nodes))
            state = msgspec.structs.replace(state, keys=keys, root=root)
        self.state = state
        values = {**state.members(), "seal": self._seal.state(state)}
        is_old = state.format == 1
        self._transaction.write(inserts, _UPDATE_HEAD_1 if is_old else _UPDATE_HEAD, **values)
        select = _SELECT_WRITTEN_1 if is_old else _SELECT_WRITTEN
        self._transaction.require(rows, select, **values, oldest=rows[0]["seq"])
        edge = self._tree.edge() if state.format > 1 else {}
        oldest = None if self.generation is None else self.generation[1]
        self._transaction.when_committed = lambda: self._seal.remember(state, edge, oldest)

    def _use(
        self, transaction: Transaction, seal: Seal, state: State, ahead: ReadAhead | None = None
    ) -> None:
        super().__init__(transaction, seal, state, ahead)
        if state.format == 1:
            return
        known = seal.remembered(state).edge
        if known is not None:  # this process wrote the tree, so it leads to this root
            self._tree.add_checked(known)
        elif self._tree.root().hex() != state.root:
            raise SourceError("the tree of the audit log does not fit its root: verify the log")


def _as_row(row: tuple[Any, ...]) -> Row:
    return dict(zip(_COLUMN_NAMES, row, strict=True))


def append(
    transaction: Transaction, seal: Seal, drafts: Sequence[NewEntry]
) -> tuple[list[ToolInvocationRecord | SourceError | None], Generation | None]:
    """Write the entries.

    Returns one item for each draft, and the log's `generation`. The item is None if the draft's key was
    not settled before, else the record that determines the outcome, or the error of reading it.

    Three kinds of draft are not written. One is a claim that comes too late. One is an unknown outcome
    of a call that has a final one. The third is an outcome that the log already has in the same text:
    its writer lost the answer and writes again.
    """
    # a draft that does not depend on earlier entries needs only its own key
    settles = [draft.settles for draft in drafts]
    calls_of_drafts = [
        draft.call if depends else CallKeys.under(draft.summary.idempotency_key)
        for draft, depends in zip(drafts, settles, strict=True)
    ]
    calls = [*calls_of_drafts, *(d.resumed for d in drafts)]
    log = LockedLog(transaction, seal, calls)
    log.load_keys(calls)
    already_stored = _already_stored(transaction, log, drafts)
    settled: dict[int, CallKeys] = {}
    written: list[NewEntry] = []
    under: dict[str, list[NewEntry]] = {}  # the written ones, by key
    for at, draft in enumerate(drafts):
        if at in already_stored:
            continue
        if draft.resumed.key and _is_settled(_kinds(log, draft.resumed, under), claim=False):
            settled[at] = draft.resumed
            continue
        if settles[at]:
            kinds = _kinds(log, draft.call, under)
            if _is_settled(kinds, claim=draft.claim):
                settled[at] = draft.call
                if draft.claim or draft.summary.code == UNKNOWN:
                    continue
            if not draft.claim and _is_written(log, draft, under, kinds):
                continue
        written.append(draft)
        under.setdefault(draft.call.key, []).append(draft)
    log.add(written)
    outcomes = [
        _standing_or_error(log, settled[at]) if at in settled else None for at in range(len(drafts))
    ]
    return outcomes, log.generation


def standing_under(
    transaction: Transaction, seal: Seal, call: CallKeys
) -> ToolInvocationRecord | None:
    """Return the record that determines a call's outcome, or None if its key is unclaimed.

    A call with a claimed key is not made again. Raises SourceError if an entry about it was changed.
    """
    state = state_of(transaction, seal)
    if state is None or not call.key:
        return None
    log = CheckedLog(transaction, seal, state)
    log.load_keys([call])
    return _standing(log, call)


def tree_roots(transaction: Transaction, seal: Seal, old: int) -> tuple[int, bytes, bytes | None]:
    """Return the size of the log's tree, its root, and its root at the size `old`.

    The last is None if `old` is 0 or larger than the tree. Raises SourceError if there is no tree.
    """
    state = state_of(transaction, seal)
    if state is None or state.format == 1:
        raise SourceError("the audit log has no tree: it is empty, or must be migrated first")
    known = tree.Tree(state.size, partial(tree.tiles, transaction))
    before = known.root_at(old) if 0 < old <= state.size else None
    return state.size, bytes.fromhex(state.root), before


def inclusion_proof(
    transaction: Transaction, seal: Seal, seq: int, checkpoint: Checkpoint
) -> tuple[str, int, tuple[bytes, ...]]:
    """Return an entry's text, its index in the tree, and the hashes from there to a checkpoint's root.

    Raises SourceError if the entry is not in the log, was changed, or is not in the checkpoint's tree.
    """
    state = state_of(transaction, seal)
    rows: Sequence[tuple[Any, ...]] = ()
    if state is not None and state.format > 1 and state.first <= seq <= state.head.seq:
        rows = transaction.tuples(_SELECT_BY_NUMBER, numbers=[seq])
    if state is None or not rows:
        raise SourceError(f"there is no entry {seq} in the audit log's tree")
    _, at, text, _, _ = CheckedLog(transaction, seal, state).unchanged(rows[0])
    index = seq - state.first
    if not 0 <= index < checkpoint.size:
        raise SourceError(
            f"entry {seq} of the audit log came after the checkpoint: take a later one"
        )
    leaf_text = leaf(seq, at, text)
    proof = tree.Tree(checkpoint.size, partial(tree.tiles, transaction)).inclusion(index)
    hash_ = tree.leaf_hash(seq, at, text)
    if tree.root_of_inclusion(hash_, index, checkpoint.size, proof) != checkpoint.root:
        raise SourceError(f"entry {seq} is not in the log of the checkpoint: verify the log")
    return leaf_text, index, tuple(proof)


def pages(transaction: Transaction, after: int, through: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows (ENTRY) with numbers above `after`, up to `through`, page by page."""
    while True:
        rows = list(transaction.tuples(_SELECT_PAGE, after=after, through=through, limit=PAGE))
        if not rows:
            return
        yield rows
        after = rows[-1][0]


def _kinds(
    log: LockedLog, call: CallKeys, before: Mapping[str, Sequence[NewEntry]]
) -> list[int] | None:
    """Return the kinds of a call's entries, and of those `before` this one in the batch.

    None if the entries cannot be checked.
    """
    try:
        kinds = log.kinds(call)
    except SourceError:
        return None
    kinds += [kind_of(other.summary) for other in before.get(call.key, ())]
    if call.earlier in before and call.earlier != call.key:
        run_and_call = (call.run_id, call.call_id)
        kinds += [
            kind_of(other.summary)
            for other in before[call.earlier]
            if (other.call.run_id, other.call.call_id) == run_and_call
        ]
    return kinds


def _is_settled(kinds: Sequence[int] | None, *, claim: bool) -> bool:
    """Return whether a call is settled: for a `claim`, whether its key is claimed already.

    For anything else, return whether the call has a final outcome. The answer is also True if the
    entries cannot be checked.
    """
    return kinds is None or any(kind if claim else kind & FINAL for kind in kinds)


def _is_written(
    log: LockedLog,
    draft: NewEntry,
    before: Mapping[str, Sequence[NewEntry]],
    kinds: Sequence[int] | None,
) -> bool:
    """Return whether the key has the same text already, in the log or `before` in the same batch.

    If the key only has entries that its call began, which is the usual case, no entry is read.
    """
    if kinds is not None and _ONLY_BEGAN.issuperset(kinds):  # this entry says how its call ended
        return False
    if any(other.text == draft.text for other in before.get(draft.call.key, ())):
        return True
    with suppress(SourceError):  # the entries cannot be checked: write it again
        return any(
            text_and_record(entry.record)[0] == draft.text for entry in log.about(draft.call)
        )
    return False


def _standing(log: CheckedLog, call: CallKeys) -> ToolInvocationRecord | None:
    records = [entry.record for entry in log.about(call)]
    return standing(records) if any(map(kind_of, records)) else None


def _standing_or_error(log: LockedLog, call: CallKeys) -> ToolInvocationRecord | SourceError | None:
    """Return the record that determines a call's outcome, or the error for this draft's caller only."""
    try:
        return _standing(log, call)
    except SourceError as error:
        return error


def _already_stored(
    transaction: Transaction, log: LockedLog, drafts: Sequence[NewEntry]
) -> set[int]:
    """Return the indexes of the `once` drafts that the log, or the batch before them, already has.

    An entry counts only if its columns agree with its record and it is in the log's tree. Anyone who
    can write to the table could have added any other row, and could remove it again.
    """
    stored, seen = set(), set()
    for at, draft in enumerate(drafts):
        if draft.once:
            columns = dict(zip(COLUMNS, columns_of(draft.summary), strict=True))
            key = {name: columns[name] for name in ("run_id", "call_id", "status")}
            values = tuple(key.values())
            rows = () if values in seen else transaction.tuples(_SELECT_SAME, **key)
            if values in seen or any(_is_in_log(log, row) for row in rows):
                stored.add(at)
            seen.add(values)
    return stored


def _is_in_log(log: LockedLog, row: tuple[Any, ...]) -> bool:
    with suppress(SourceError):
        return columns_agree(row) and bool(log.placed(row[:5]))
    return False


class GroupWriter(Generic[S, T]):
    """Commits queued items in groups, in one thread, so that many records share one commit.

    `commit` gets the queued items in order and returns a result or an error for each. A caller gets its
    result only after the transaction with its record is committed. The thread starts with the first
    item and ends when it has been idle for a while.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[S]], Sequence[T | ToolcribError]],
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._commit = commit
        self._idle = idle  # called when the thread ends
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make a new lock and an empty queue in a forked child.

        There another thread's lock would stay locked, and the parent commits what is queued.
        """
        self._changed = threading.Condition()
        self._queue: list[tuple[S, asyncio.Future[T]]] = []
        self._thread: threading.Thread | None = None  # the last one
        self._is_serving = False  # whether it takes what is queued, or ends
        self._closing = False

    def submit(self, item: S) -> asyncio.Future[T]:
        """Queue an item from any event loop. The returned future is done once it is committed.

        Raises SourceError if no thread can be started.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._changed:
            if not self._is_serving or self._thread is None or not self._thread.is_alive():
                self._closing = False
                thread = threading.Thread(target=self._serve, name="toolcrib-audit", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    raise SourceError(_NO_THREAD) from None
                self._thread, self._is_serving = thread, True
            self._queue.append((item, future))
            self._changed.notify()
        return future

    @property
    def closed(self) -> bool:
        """Whether the writer was closed and has not been used since."""
        return self._closing

    def close(self) -> None:
        """Wait until everything queued is committed and the thread has ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _serve(self) -> None:
        while batch := self._take():
            _deliver_all(batch, self._commit_all([item for item, _ in batch]))
        self._idle()

    def _take(self) -> list[tuple[S, asyncio.Future[T]]]:
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(_IDLE_SECONDS)
            batch, self._queue = self._queue[:_MOST_IN_GROUP], self._queue[_MOST_IN_GROUP:]
            self._is_serving = bool(batch)
            return batch

    def _commit_all(self, items: Sequence[S]) -> Sequence[T | ToolcribError]:
        try:
            return self._commit(items)
        except ToolcribError as error:
            return [error] * len(items)
        except BaseException as error:  # noqa: BLE001  a caller waits for each answer
            return [SourceError(f"the audit log failed ({type(error).__name__})")] * len(items)


def _deliver_all(
    batch: Sequence[tuple[object, asyncio.Future[T]]], answers: Sequence[T | ToolcribError]
) -> None:
    """Pass on the answers, with one callback for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[T], T | ToolcribError]]] = {}
    for (_, future), answer in zip(batch, answers, strict=True):
        loops.setdefault(future.get_loop(), []).append((future, answer))
    for loop, settled in loops.items():
        with suppress(RuntimeError):  # the loop is closed, so no caller waits there
            loop.call_soon_threadsafe(_deliver, settled)


def _copy_of(error: ToolcribError) -> ToolcribError:
    """Return a copy for one caller: a shared exception would collect every caller's traceback.

    The copy is made without its class's `__init__`, whose parameters differ: `copy.copy` would fail
    for some classes, and the caller would get no error at all.
    """
    kind = type(error)
    own = kind.__new__(kind, *error.args)
    vars(own).update(vars(error))
    return own


def _deliver(settled: Sequence[tuple[asyncio.Future[T], T | ToolcribError]]) -> None:
    for future, answer in settled:
        if future.done():
            continue  # the caller was cancelled; the record is written anyway
        if isinstance(answer, ToolcribError):
            future.set_exception(_copy_of(answer))
        else:
            future.set_result(answer)
