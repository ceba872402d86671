"""`AuditLog`: the tamper-evident record of every call.

Rule: a call is written before its tool runs and after, and what was acknowledged is on disk. The
log is a sink (`sinks=[AuditLog("sqlite:///crib.db")]`) and a ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeVar

from toolcrib.audit.append import (
    PAGE,
    CallKeys,
    GroupWriter,
    LockedLog,
    NewEntry,
    PrunePlan,
    append,
    inclusion_proof,
    read_oldest_ahead,
    standing_under,
    state_of,
    stored_state,
    tree_roots,
)
from toolcrib.audit.checkpoint import Checkpoint, Checkpoints, Proof, SigningKey
from toolcrib.audit.entry import (
    ATTACHMENTS,
    EVERYTHING,
    FORMAT,
    GENESIS,
    NO_CALLS,
    ROW,
    RUN,
    AuditEntry,
    AuditFilter,
    Fault,
    Head,
    Seal,
    State,
    Verification,
    attachment_of,
    column,
    columns_agree,
    entry_of,
    line,
    run_of,
    seconds,
)
from toolcrib.audit.verify import end_line, plan_prune, verify_database, verify_lines
from toolcrib.audit.why import why_of
from toolcrib.closing import Closing
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.storage import OWNER_ONLY, SqlDatabase, Transaction, UnreachableError
from toolcrib.values.json import keyed_digest
from toolcrib.values.record import (
    Attachment,
    SpentWithin,
    ToolInvocationRecord,
    has_begun,
    is_ended_by,
    standing,
)
from toolcrib.values.run import RunRecord
from toolcrib.values.typed import (
    check_each,
    check_type,
    explains_wrong_types,
    got_type,
    names_parameters,
)

T = TypeVar("T")
_PAUSE_SECONDS = 0.25  # seconds after which writers waiting for SQLite's lock look again
_RECORD = "a ToolInvocationRecord"
_LINES = "the lines of an export, each a text: a list of them, or a file opened as text"
_CHECKPOINT = "a Checkpoint, as Checkpoint.opened gives it"
_PROCESS_KEY = os.urandom(32)  # the key of logs that have no key of their own
_CONDITIONS = {
    "run_id": "run_id = :run_id",
    "call_id": "call_id = :call_id",
    "tool": "tool = :tool",
    "caller": "caller = :caller",
    "status": "status = :status",
    "code": "code = :code",
    "since": "at >= :since",
    "until": "at < :until",
}
_SELECT_RUN = (
    f"SELECT {ROW} FROM audit_entries"  # noqa: S608  only our own names
    f" WHERE run_id = :run_id AND call_id = '' AND status = '{RUN}' ORDER BY seq"
)
_SELECT_ATTACHMENTS = (
    "SELECT seq, record FROM audit_entries"  # noqa: S608  only our own names
    f" WHERE call_id IN :digests AND status IN ({', '.join(repr(k) for k in ATTACHMENTS)})"
)
# Entries that say less than another entry of the same call: that it began, or that its outcome is
# unknown, if its end is there; that it waits, if there is anything later.
_EXISTS_OTHER = """EXISTS (SELECT 1 FROM audit_entries AS other
    WHERE other.run_id = audit_entries.run_id AND other.call_id = audit_entries.call_id"""
_OTHER_IS_FINAL = (
    "other.idempotency_key <> '' AND (other.status = 'completed'"
    " OR (other.status = 'failed' AND other.code <> 'outcome_unknown'))"
)
_SUPERSEDED = (
    ("status IN ('started', 'waiting') OR code = 'outcome_unknown'", _OTHER_IS_FINAL),
    ("status = 'started'", "other.seq > audit_entries.seq AND other.idempotency_key <> ''"),
    ("status IN ('waiting', 'planned', 'rejected')", "other.seq > audit_entries.seq"),
)
_STATUSES_OF_NO_CALL = ", ".join(f"'{status}'" for status in NO_CALLS)
# Finds no row to change, and fails where nothing can be written: SQLite's BEGIN IMMEDIATE does not.
_TRY_TO_WRITE = "UPDATE audit_head SET seq = seq WHERE id = 0"
_NUMBERS = 2**63 - 1  # the largest value of an integer column, also in comparisons


class AuditLog(Closing):
    """Stores records in a database, as in `AuditLog("sqlite:///crib.db")`.

    PostgreSQL is `AuditLog("postgresql+psycopg://…")`. Several processes may write to one log.
    Without a `key`, anybody who can write to the database can recompute the chain after changing
    it. So give a key (for HMAC-SHA256; store it elsewhere), or store `head()` elsewhere and give it
    to `verify`, or have `checkpoints` signed. A new SQLite file is accessible only to its owner,
    unless `mode` says otherwise, for a group. The constructor raises MissingExtraError without
    SQLAlchemy. The methods raise SourceError if the database cannot be used, and the next call
    tries again; `await log.open()` at startup shows that it works.
    """

    write_ahead = True
    generation: object = None  # the log of the last commit: see `KeepsAttachments`

    @names_parameters
    def __init__(
        self,
        url: str,
        *,
        key: str | bytes | None = None,
        checkpoints: Checkpoints | None = None,
        mode: int = OWNER_ONLY,
    ) -> None:
        check_type("url", url, str, 'a text, such as "sqlite:///crib.db"')
        _check_key(key)
        check_type("checkpoints", checkpoints, Checkpoints | None, "a Checkpoints")
        check_type("mode", mode, int, "the mode of a file, such as 0o600")
        self._database = SqlDatabase(url, mode=mode)
        self._seal = Seal(key)
        self._checkpoints = checkpoints
        self._writer = GroupWriter(self._commit, self._sign)
        self._mac_key = self._seal.subkey("arguments") or _PROCESS_KEY

    async def open(self) -> None:
        """Open the database now, so that an unusable log is known before any call is made.

        Otherwise the first record opens it. Raises SourceError if the database cannot be written
        to, if another key has sealed the log, and for a new log whose key has less than 16 bytes.
        """
        if await self._database.transact(lambda t: _check_writable(t, self._seal)) is None:
            self._seal.check_new()

    def write(self, record: ToolInvocationRecord) -> Awaitable[ToolInvocationRecord | None]:
        """Write a record. What this returns is a future of the running event loop, whichever it is.

        It is done when the record is committed. If the record's key already has a final outcome, that
        outcome stands, and is the result.
        """
        if record.__class__ is not ToolInvocationRecord:
            check_type("record", record, ToolInvocationRecord, _RECORD)
        return self._writer.submit((record, False))

    async def write_run(self, record: RunRecord) -> None:
        """Record how a run ended, or that it waits; its calls already say that it began."""
        check_type("record", record, RunRecord, "a RunRecord")
        if record.status != "running":
            await self._writer.submit((record, False))

    async def attach(self, attachment: Attachment) -> None:
        """Store what records refer to, once. It is committed when this returns."""
        check_type("attachment", attachment, Attachment, "an Attachment")
        await self._writer.submit((attachment, False))

    def begin(self, entry: ToolInvocationRecord) -> Awaitable[ToolInvocationRecord | None]:
        """Claim `entry.idempotency_key` and write the entry, or neither, in any process.

        Returns a future, as `write` does. If the key is taken, the result is the record under it: the
        first final one, otherwise the last record of a call that never ended. A key is taken as long as
        the log has an entry that says that its call began, or how it finally ended. Calls that earlier
        versions began under the key of their run and call are found, too.
        """
        if entry.__class__ is not ToolInvocationRecord:
            check_type("entry", entry, ToolInvocationRecord, _RECORD)
        return self._writer.submit((entry, True))

    async def find(self, call: ToolInvocationRecord | str) -> ToolInvocationRecord | None:
        """Return the record that `begin` would return for this call or key, and claim nothing."""
        check_type("call", call, ToolInvocationRecord | str, f"{_RECORD}, or its key")
        keys = CallKeys.under(call) if isinstance(call, str) else CallKeys.of(call)
        return await self._read(lambda t: standing_under(t, self._seal, keys))

    @explains_wrong_types
    def mac(self, *parts: str) -> str:
        """Return a digest of strings that nobody can guess from without the log's key.

        It distinguishes calls with different secrets under one idempotency key. If the log has no
        key, the digest is valid only in this process.
        """
        return keyed_digest(self._mac_key, *parts)

    async def entries(self, filter: AuditFilter = EVERYTHING) -> list[AuditEntry]:  # noqa: A002
        """Return the entries that fit, oldest first (unless `newest`), all at once: set a `limit`.

        An entry is not `intact` if its hash or its columns do not fit its record, or if it does not
        follow from the returned entry next to it. The columns decide which entries fit: an entry
        left out because of a changed column is only found by `verify`.
        """
        return [entry async for entry in self.stream(filter)]

    async def stream(self, filter: AuditFilter = EVERYTHING) -> AsyncIterator[AuditEntry]:  # noqa: A002
        """Yield the entries that `entries` would return, page by page, for logs of any size."""
        check_type("filter", filter, AuditFilter, "an AuditFilter")
        async for row, intact in self._pages(filter, calls=True):
            yield entry_of(row[:5], intact=intact)

    async def entry(self, seq: int) -> AuditEntry | None:
        """Return the entry of that number, None if there is none."""
        check_type("seq", seq, int, "an entry's number")
        found = await self.entries(AuditFilter(after=seq - 1, limit=1))
        return found[0] if found and found[0].seq == seq else None

    async def runs(self, run_id: str) -> list[RunRecord]:
        """Return how a run ended; before that, each time that it waited.

        Raises SourceError for a record that cannot be read, or was changed.
        """
        found = await self.checked_runs(run_id)
        if not all(intact for _, intact in found):
            raise SourceError(
                "the record of a run was changed, or the log has another key: verify it"
            )
        return [record for record, _ in found]

    async def checked_runs(self, run_id: str) -> list[tuple[RunRecord, bool]]:
        """Return the records of a run, even changed ones, each with whether it is unchanged."""
        check_type("run_id", run_id, str, "a text, a run's id")
        rows = await self._read(lambda t: t.tuples(_SELECT_RUN, run_id=column(run_id)))
        fits = _RowCheck(self._seal)
        return [(run_of((row[0], row[2])), fits(row)) for row in rows]

    async def attachments(self, digests: Iterable[str]) -> dict[str, Attachment]:
        """Return the attachments with these digests that the log has.

        A record has digests in `definition_digest` and in its `origin`. Raises SourceError for an
        attachment that was changed.
        """
        given = check_each("digests", digests, str, "a list of digests")
        wanted = list(dict.fromkeys(digest for digest in given if digest))
        if not wanted:
            return {}
        rows = await self._read(lambda t: t.tuples(_SELECT_ATTACHMENTS, digests=wanted))
        return {found.digest: found for found in map(attachment_of, rows)}

    async def last(
        self, call_id: str, *, run_id: str | None = None, approval_id: str | None = None
    ) -> AuditEntry | None:
        """Return the entry with a call's outcome: the first final one, otherwise the last.

        Without a run id it is about the newest run that made such a call. With an `approval_id`, it
        is the outcome that an answer to that question led to; None if no answer ended the call.
        """
        check_type("call_id", call_id, str, "a text, a call's id")
        check_type("run_id", run_id, str | None, "a text, a run's id")
        check_type("approval_id", approval_id, str | None, "a text, a question's id")
        entries = await self._of_call(call_id, run_id)
        if approval_id is not None or not entries:
            ended = (entry for entry in entries if is_ended_by(entry.record, approval_id or ""))
            return next(ended, None)
        outcome = standing([entry.record for entry in entries])
        return next(entry for entry in entries if entry.record is outcome)

    async def why(self, call_id: str, *, run_id: str | None = None) -> str | None:
        """Return one sentence that says why a call ran or did not run, as `toolcrib audit show` does.

        None if the log has no such call. Without a run id it is about the newest run that made such
        a call. Raises SourceError if an entry of the call was changed or is missing.
        """
        check_type("call_id", call_id, str, "a text, a call's id")
        check_type("run_id", run_id, str | None, "a text, a run's id")
        entries, is_whole = await self.checked_call(await self._of_call(call_id, run_id))
        if not is_whole or not _all_intact(entries):
            raise SourceError(
                "an entry of the call was changed or is missing, or the log has another key: verify it"
            )
        return why_of([entry.record for entry in entries]) if entries else None

    async def checked_call(self, entries: Sequence[AuditEntry]) -> tuple[list[AuditEntry], bool]:
        """Return a call's entries, read again if there may be more by now, and whether they are whole.

        They are not whole if they lack the outcome that the log's sealed index names, because a
        column was changed. What was read before has to be found again unless it was pruned
        meanwhile, so a failed comparison is made a second time. Raises UnreachableError if the log
        cannot be read.
        """
        found = list(check_each("entries", entries, AuditEntry, "a list of AuditEntry"))
        for _ in range(2):
            record = standing([entry.record for entry in found]) if found else None
            if record is None or not has_begun(record) or not _all_intact(found):
                return found, True  # one is marked already, or the index has nothing about it
            try:
                outcome = await self.find(record)
            except UnreachableError:
                raise
            except SourceError:
                break
            if outcome is None or outcome in (entry.record for entry in found):
                return found, True
            of_call = AuditFilter(call_id=record.id, run_id=record.run_id)
            found = await self.entries(of_call) or found
            if outcome in (entry.record for entry in found):
                return found, True
        return found, not _all_intact(found)

    async def _of_call(self, call_id: str, run_id: str | None) -> list[AuditEntry]:
        """Return the entries of a call; without a run id, of the newest run that made such a call."""
        newest = AuditFilter(call_id=call_id, run_id=run_id, limit=1, newest=True)
        found = await self.entries(newest)
        if not found:
            return []
        of_call = AuditFilter(call_id=call_id, run_id=found[0].record.run_id)
        return await self.entries(of_call) or found  # pruned since, or a column was changed

    async def spent_within(self, call_id: str, run_id: str) -> SpentWithin | None:
        """Return what an agent that is this call's tool has spent, by the newest entry that says so.

        The entry of a call that waits within its tool says it, too. None if no intact entry does.
        """
        check_type("call_id", call_id, str, "a text, a call's id")
        check_type("run_id", run_id, str, "a text, a run's id")
        entries = await self.entries(AuditFilter(call_id=call_id, run_id=run_id, newest=True))
        spent = (entry.record.spent for entry in entries if entry.intact)
        return next((each for each in spent if each is not None), None)

    async def export(self, filter: AuditFilter = EVERYTHING) -> AsyncIterator[str]:  # noqa: A002
        """Yield the entries as lines of JSON, each ending in a newline; `verify_jsonl` checks them.

        A whole export is of one log. Raises SourceError if entries were pruned in the meantime, or
        the log was replaced, because the export would look like a log that somebody changed.
        """
        async for text, _ in self.checked_export(filter):
            yield text

    async def checked_export(
        self,
        filter: AuditFilter = EVERYTHING,  # noqa: A002
    ) -> AsyncIterator[tuple[str, bool]]:
        """Yield the same, each line with whether it is unchanged, as far as that is cheap to tell.

        See `entries`.
        """
        check_type("filter", filter, AuditFilter, "an AuditFilter")
        if filter != EVERYTHING:
            notes = filter == AuditFilter(after=filter.after)
            async for row, intact in self._pages(filter, calls=not notes):
                yield _line(row), intact
            return
        fits = _RowCheck(self._seal)
        behind, more, first = -1, True, None
        while more:
            query = _page_query(AuditFilter(after=behind), behind=None, limit=PAGE, calls=False)
            page, end, generation = await self._read(partial(_page_with_end, query))
            first = generation if first is None else first
            if generation != first:
                raise SourceError("the audit log was pruned while it was exported: export it again")
            for row in page:
                yield _line(row), fits(row)
            behind, more = page[-1][0] if page else behind, len(page) == PAGE
        if end is not None:  # as they were when the last page was read
            yield _exported("the head", partial(end_line, *end)), self._seal.fits_state(*end)

    async def checkpoint(
        self, key: SigningKey, *, after: str | None = None, rotates_to: SigningKey | None = None
    ) -> str:
        """Return a checkpoint of the log's present state, as a signed note.

        A checkpoint that `rotates_to` another key is signed by both, and names the new one. Raises
        SourceError if the log does not begin with the entries of an earlier checkpoint (`after`).
        """
        check_type("key", key, SigningKey, "a SigningKey")
        check_type("rotates_to", rotates_to, SigningKey | None, "a SigningKey")
        earlier = None if after is None else Checkpoint.read(after)
        old = 0 if earlier is None else earlier.size
        size, root, before = await self._read(lambda t: tree_roots(t, self._seal, old))
        if earlier is not None and before != earlier.root:
            raise SourceError("the log does not continue that of the earlier checkpoint: verify it")
        rotated = None if rotates_to is None else rotates_to.public
        keys = (key,) if rotates_to is None else (key, rotates_to)
        return Checkpoint(key.public.name, size, root, rotated).signed(*keys)

    async def prove(self, seq: int, checkpoint: str) -> str:
        """Return a proof that entry `seq` is in the log of a checkpoint, for `verify_inclusion`.

        Raises SourceError if there is no such entry, or if it is not in that checkpoint's log.
        """
        check_type("seq", seq, int, "an entry's number")
        given = Checkpoint.read(checkpoint)
        return Proof(
            *await self._read(lambda t: inclusion_proof(t, self._seal, seq, given)), checkpoint
        ).text

    async def verify(
        self, *, head: Head | None = None, checkpoint: Checkpoint | None = None
    ) -> Verification:
        """Check the whole log, optionally against a `head` or a `checkpoint` kept elsewhere.

        All faults are in the result. Raises SourceError only if the database cannot be reached.
        """
        _check_head(head)
        check_type("checkpoint", checkpoint, Checkpoint | None, _CHECKPOINT)
        try:
            return await self._read(lambda t: verify_database(t, self._seal, head, checkpoint))
        except UnreachableError:
            raise
        except SourceError as error:
            return Verification(0, Head(0, ""), Fault(None, str(error)))

    async def head(self) -> Head:
        """Return the last entry's number and hash, to be stored elsewhere."""
        state = await self._read(lambda t: state_of(t, self._seal))
        return GENESIS if state is None else state.head

    async def migrate(self) -> bool:
        """Bring a log of format 1 to the newest: seal its start, its tail and its index of keys.

        The log is verified first, and a note in the chain says up to where it had format 1. Returns
        False if there is nothing to do. Raises SourceError if something in the log was changed.
        """
        return await self._database.transact(lambda t: _migrate(t, self._seal))

    async def prune(self, *, before: float) -> int:
        """Remove the oldest entries, up to the first written at `before` or later; return how many.

        `before` is in seconds since the epoch. The log notes the pruning in the chain. The
        idempotency keys of calls that were begun in removed entries are forgotten. Raises
        SourceError if an entry was changed or is missing, and if another process prunes at the same
        time.
        """
        check_type("before", before, float | int, "a time, in seconds since the epoch")
        plan: PrunePlan | None = await self._read(lambda t: plan_prune(t, self._seal, before))
        pruned = 0
        while plan is not None:
            part = partial(_prune, self._seal, before, plan)
            removed, plan = await self._database.transact(part)
            pruned += removed
            if plan is not None:
                await asyncio.sleep(_PAUSE_SECONDS)
        return pruned

    @property
    def closed(self) -> bool:
        """Whether it was closed and got no record since, so nobody waits for another one."""
        return self._writer.closed

    async def aclose(self) -> None:
        """Wait for what is being written, sign a last checkpoint, and close the database.

        Raises ToolcribError inside the function that stores a checkpoint, since it would wait for
        itself.
        """
        if self._checkpoints is not None and self._checkpoints.keeping:
            raise ToolcribError(
                "a function that keeps the checkpoints of a log cannot close that log"
            )
        # in one thread, which ends it even if this is cancelled
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._close_sync))

    def _close_sync(self) -> None:
        try:
            self._writer.close()
            if self._checkpoints is not None:
                self._checkpoints.close(self._tree_roots)
        finally:
            self._database.close_sync()

    def _commit(
        self, items: Sequence[tuple[ToolInvocationRecord | Attachment | RunRecord, bool]]
    ) -> list[ToolInvocationRecord | ToolcribError | None]:
        """Commit a batch, in the writer's thread. A record that cannot be written fails alone."""
        answers: list[ToolInvocationRecord | ToolcribError | None] = []
        drafts: list[NewEntry] = []
        for record, claim in items:
            try:
                drafts.append(NewEntry.of(record, claim=claim))
                answers.append(None)
            except ToolcribError as error:
                answers.append(error)
        if drafts:
            written, self.generation = self._database.transact_sync(
                lambda t: append(t, self._seal, drafts)
            )
            outcomes = iter(written)
            answers = [next(outcomes) if answer is None else answer for answer in answers]
            if self._checkpoints is not None and self._checkpoints.count(len(drafts)):
                self._sign()
        return answers

    def _sign(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.sign(self._tree_roots)

    def _tree_roots(self, old: int) -> tuple[int, bytes, bytes | None]:
        return self._database.transact_sync(lambda t: tree_roots(t, self._seal, old), write=False)

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        return await self._database.transact(work, write=False)

    async def _pages(
        self, filter_: AuditFilter, *, calls: bool
    ) -> AsyncIterator[tuple[tuple[Any, ...], bool]]:
        """Yield each row with whether it is unchanged.

        Keyset paging: each page is a separate transaction, so that no reader holds up pruning.
        """
        fits = _RowCheck(self._seal)
        left, behind = filter_.limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            query = _page_query(filter_, behind=behind, limit=size, calls=calls)
            page = await self._read(partial(_rows, query))
            for row in page:
                yield row, fits(row)
            if len(page) < size:
                return
            left, behind = None if left is None else left - size, page[-1][0]


class _RowCheck:
    """Checks the rows of one reading: their hashes, their columns, and the link to a neighbour."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._last: tuple[Any, ...] | None = None

    def __call__(self, row: tuple[Any, ...]) -> bool:
        fits = self._seal.fits(row[:5]) and columns_agree(row)
        last, self._last = self._last, row if fits else None
        if not fits:
            return False
        if last is None or abs(last[0] - row[0]) != 1:
            return True
        before, after = sorted((last, row))
        return bool(after[3] == before[4])


def _page_query(
    filter_: AuditFilter, *, behind: int | None, limit: int, calls: bool
) -> tuple[str, dict[str, Any]]:
    """Return the SELECT of a page of rows, and its values.

    With `calls`, rows about the log itself are excluded. `behind` is the number of the last row of
    the page before.
    """
    conditions = ["seq > :after"]
    after = min(max(filter_.after, -_NUMBERS), _NUMBERS)
    values: dict[str, Any] = {"after": after, "limit": limit}
    if behind is not None:
        conditions.append("seq < :behind" if filter_.newest else "seq > :behind")
        values["behind"] = behind
    if calls:
        conditions.append(f"status NOT IN ({_STATUSES_OF_NO_CALL})")
    if filter_.latest:
        until = "" if filter_.until is None else " AND other.at < :until"
        for weak, strong in _SUPERSEDED:
            conditions.append(f"NOT (({weak}) AND {_EXISTS_OTHER}{until} AND {strong}))")
    for name, condition in _CONDITIONS.items():
        value = getattr(filter_, name)
        if value is not None:
            conditions.append(condition)
            values[name] = column(value) if isinstance(value, str) else seconds(value)
    return (
        f"SELECT {ROW} FROM audit_entries WHERE {' AND '.join(conditions)}"  # noqa: S608
        f" ORDER BY seq {'DESC' if filter_.newest else 'ASC'} LIMIT :limit"
    ), values


def _rows(query: tuple[str, dict[str, Any]], transaction: Transaction) -> Sequence[tuple[Any, ...]]:
    sql, values = query
    return transaction.tuples(sql, **values)


def _check_writable(transaction: Transaction, seal: Seal) -> State | None:
    """Return the log's state; raises SourceError if the database accepts no writes."""
    transaction.execute(_TRY_TO_WRITE)
    return state_of(transaction, seal)


def _prune(
    seal: Seal, before: float, plan: PrunePlan, transaction: Transaction
) -> tuple[int, PrunePlan | None]:
    return LockedLog(transaction, seal).prune(before, plan)


def _migrate(transaction: Transaction, seal: Seal) -> bool:
    locked = LockedLog(transaction, seal)
    if locked.state.format == FORMAT:
        return False
    fault = verify_database(transaction, seal, None).fault
    if fault is not None:
        raise SourceError(f"the audit log was not migrated: {fault.what}: verify the log")
    locked.migrate()
    return True


def _page_with_end(
    query: tuple[str, dict[str, Any]], transaction: Transaction
) -> tuple[Sequence[tuple[Any, ...]], tuple[State, str] | None, object]:
    """Return a page of rows, the end line's values if this page is the last, and the generation.

    The end line of a whole export has the state and its seal. The generation says which log it is.
    """
    found = stored_state(transaction)
    rows = _rows(query, transaction)
    if found is None:
        return rows, None, None
    end = None if found.state.format == 1 else (found.state, found.sealed)
    return rows, end, found.generation(read_oldest_ahead(transaction))


def _line(row: tuple[Any, ...]) -> str:
    seq, at, text, previous, hash_ = row[:5]
    return _exported(f"entry {seq}", lambda: line(Head(seq, hash_), at, previous, text))


def _exported(what: str, text: Callable[[], str]) -> str:
    try:
        return f"{text()}\n"
    except (TypeError, ValueError):
        failure = f"{what} of the audit log cannot be read: verify the log"
    raise SourceError(failure)


def verify_jsonl(
    lines: Iterable[str],
    *,
    key: str | bytes | None = None,
    head: Head | None = None,
    filtered: bool = False,
) -> Verification:
    """Check an export without its database. One cut line at the end is accepted: `torn` says so.

    `filtered` is for an export with a filter: each entry is checked, but missing ones go unnoticed.
    """
    if isinstance(lines, str | bytes | Mapping) or not isinstance(lines, Iterable):
        raise TypeError(f"lines must be {_LINES}; {got_type(lines)}")
    _check_key(key)
    _check_head(head)
    return verify_lines(_texts(lines), Seal(key), head, gaps=filtered)


def _texts(lines: Iterable[str]) -> Iterator[str]:
    for at, text in enumerate(lines):
        check_type(f"lines[{at}]", text, str, "a text, a line of the export")
        yield text


def _check_key(key: object) -> None:
    check_type("key", key, str | bytes | None, "a text or bytes, the log's key")


def _all_intact(entries: Iterable[AuditEntry]) -> bool:
    return all(entry.intact for entry in entries)


def _check_head(head: object) -> None:
    check_type("head", head, Head | None, "a Head, as AuditLog.head() gives it")
