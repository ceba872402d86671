"""Threads in a database: what was said, what ran, what a page shows of it.

Rule: what a page shows can be rebuilt from here alone. A turn is stored before its run begins, a
call before it runs. A run that nobody carries any more (its process is gone) is found by its
expired lease, and is shown as interrupted. Sessions and states hold raw arguments and the secrets
of a run, so anybody who reads the tables reads all of that.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from toolcrib.chat.view import Json, new_turn
from toolcrib.closing import Closing
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.storage import OWNER_ONLY, Row, SqlDatabase, Transaction, as_column, storable
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunState
from toolcrib.values.typed import names_wrong_types

T = TypeVar("T")
LEASE = 15.0
"""Seconds for which a run stays with its process without a sign of life."""
_RETRY_PAUSES = (0.1, 0.3)  # seconds between attempts to ask a database
_MAX_TITLE = 80  # characters of the first question
_ALL = 2**62  # rows
NOT_IN_TITLES = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters not allowed in titles.

They change the direction of the text around them (bidirectional controls), or not every screen and
database has them: other controls, halves of surrogate pairs.
"""
_RECORD = msgspec.json.Decoder(ToolInvocationRecord)

_NEW_THREAD = """INSERT INTO chat_threads (id, owner, title, created_at, updated_at)
    VALUES (:id, :owner, :title, :now, :now)"""
_LIST_THREADS = """SELECT id, title, created_at, updated_at FROM chat_threads
    WHERE owner IN :owners ORDER BY updated_at DESC, id LIMIT :most"""
_THREAD = "SELECT * FROM chat_threads WHERE id = :id AND owner IN :owners"
_RENAME = "UPDATE chat_threads SET title = :title WHERE id = :id AND owner IN :owners"
_TURNS = """SELECT id, run_id, status, view, state, lease FROM chat_turns
    WHERE thread_id = :id ORDER BY seq"""
_SESSION_BEFORE = "SELECT before FROM chat_turns WHERE id = :id"
_RUNNING_TURNS = """SELECT id FROM chat_turns WHERE thread_id = :id AND status = 'running'"""
_WAITING_TURNS = "SELECT id FROM chat_turns WHERE thread_id = :id AND status = 'waiting'"
_NEW_TURN = """INSERT INTO chat_turns (id, thread_id, seq, run_id, status, view, state, lease, before)
    VALUES (:id, :thread_id, :seq, '', 'running', :view, '', :lease, :before)"""
_BEGIN_AGAIN = """UPDATE chat_turns SET status = 'running', view = :view, lease = :lease
    WHERE id = :id AND status = 'waiting' AND state = :state"""
_IS_BEGUN = "SELECT id FROM chat_turns WHERE id = :id AND status = 'running' AND lease IN :leases"
_NAME_RUN = "UPDATE chat_turns SET run_id = :run_id WHERE id = :id"
# A turn that runs again has the state in which it waited; its earlier carrier has another state.
_SAVE_VIEW = """UPDATE chat_turns SET view = :view, lease = :lease
    WHERE id = :id AND status = 'running' AND state = :was"""
_END_TURN = """UPDATE chat_turns SET status = :status, view = :view, state = :state
    WHERE id = :id AND status = 'running' AND state = :was"""
_IS_ENDED = "SELECT id FROM chat_turns WHERE id = :id AND state = :state"
_SAVE_TIME = "UPDATE chat_threads SET updated_at = :now WHERE id = :id"
_SAVE_SESSION = "UPDATE chat_threads SET session = :session, updated_at = :now WHERE id = :id"
_SAVE_CALL = """INSERT INTO chat_calls (run_id, call_id, record) VALUES (:run_id, :call_id, :record)
    ON CONFLICT (run_id, call_id) DO UPDATE SET record = excluded.record"""
_CALLS = "SELECT * FROM chat_calls WHERE run_id = :run_id"
MOST_WAITING = 50
"""How many waiting runs are stored per caller, for clients that keep the thread themselves."""
_WAITING_RUN = "SELECT state FROM chat_waiting WHERE owner = :owner AND thread = :thread"
_DROP_EXPIRED = "DELETE FROM chat_waiting WHERE expires_at < :now"
_OLDEST_WAITING = "SELECT thread FROM chat_waiting WHERE owner = :owner ORDER BY kept_at, thread"
_KEEP_WAITING = """INSERT INTO chat_waiting (owner, thread, state, kept_at, expires_at)
    VALUES (:owner, :thread, :state, :now, :expires_at)
    ON CONFLICT (owner, thread) DO NOTHING"""
_DROP_WAITING = "DELETE FROM chat_waiting WHERE owner = :owner AND thread = :thread"
_DROP_THREAD = (
    """DELETE FROM chat_calls WHERE run_id IN
        (SELECT run_id FROM chat_turns WHERE thread_id = :id)""",
    "DELETE FROM chat_turns WHERE thread_id = :id",
    "DELETE FROM chat_threads WHERE id = :id",
)


class StoredTurn(msgspec.Struct, frozen=True):
    """A turn as it is stored.

    `state` is the JSON of the saved run that waits, or ended, or is empty. A turn that runs again
    has the state in which it waited.
    """

    id: str
    run_id: str
    status: str
    view: Json
    state: str
    lease: float

    @property
    def is_abandoned(self) -> bool:
        return self.status == "running" and self.lease < _now()


class StoredThread(msgspec.Struct, frozen=True):
    """A thread as it is stored; `session` is the model's conversation as JSON, or empty."""

    id: str
    owner: str
    title: str
    created_at: float
    updated_at: float
    session: str
    turns: tuple[StoredTurn, ...] = ()

    def runs(self, turn: StoredTurn) -> bool:
        """Return whether a turn runs, and has not ended since it was begun in this state."""
        running = [(stored.id, stored.state) for stored in self.turns if stored.status == "running"]
        return (turn.id, turn.state) in running


def _now() -> float:
    return time.time()


class AskedAnew(msgspec.Struct, frozen=True):
    """Says which turn a new one replaces, and what the model knows then.

    `before` is the conversation as it was before that turn, `session` the same with notes on the
    calls that ran since. `turns` is how many turns the thread had when this was made.
    """

    turn_id: str
    before: str
    session: str
    turns: int


BUSY = "this thread is busy: its last run has not ended yet"


class BusyError(ToolcribError):
    """Another run of the thread is under way."""


async def asked_again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a database for something, and retry if it fails.

    It may have been done with only the confirmation lost, so `ask` must have its effect once,
    however often it is called.
    """
    for pause in _RETRY_PAUSES:
        try:
            return await ask()
        except SourceError:
            await asyncio.sleep(pause)
    return await ask()


class ThreadStore(Closing):
    """Stores the threads of all callers: `ThreadStore("sqlite:///crib.db")`.

    `url` is SQLAlchemy's, and may be that of the audit log. A thread belongs to its owner: every
    method that takes `owner` (a caller's id) sees no other threads. All methods raise SourceError
    if the database cannot be used, the constructor MissingExtraError without SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNER_ONLY) -> None:
        self._database = SqlDatabase(url, mode=mode)

    async def create(self, owner: str, title: str = "") -> str:
        """Make a thread; return its id."""
        thread_id = f"thread_{os.urandom(12).hex()}"
        await self._database.write(
            _NEW_THREAD,
            id=thread_id,
            owner=as_column(owner),
            title=storable(title),
            now=time.time(),
        )
        return thread_id

    async def list(self, owner: str, *, search: str = "", most: int = 200) -> list[Json]:
        """Return threads, the newest first: id, title, created_at, updated_at (seconds).

        With `search`, only threads with these words in their title, in any case.
        """
        most_read = _ALL if search else most  # many databases lower ASCII letters only
        rows = await self._database.read(_LIST_THREADS, owners=_owners(owner), most=most_read)
        words = storable(search).casefold()
        return [dict(row) for row in rows if words in row["title"].casefold()][:most]

    async def load(self, thread_id: str, owner: str) -> StoredThread | None:
        """Return a thread with its turns in order; None if the owner has no such thread."""

        def work(transaction: Transaction) -> StoredThread | None:
            rows = transaction.rows(_THREAD, **_thread_key(thread_id, owner))
            if not rows:
                return None
            turns = tuple(map(_stored_turn, transaction.rows(_TURNS, id=thread_id)))
            return StoredThread(**{**rows[0], "owner": owner}, turns=turns)

        return await self._database.transact(work, write=False)

    async def rename(self, thread_id: str, owner: str, title: str) -> bool:
        """Rename a thread; return whether it exists."""
        key = _thread_key(thread_id, owner)
        return await self._database.write(_RENAME, **key, title=storable(title)) > 0

    async def delete(
        self, thread_id: str, owner: str, waiting: Collection[str] | None = None
    ) -> bool:
        """Delete a thread; return whether it existed.

        Raises BusyError while it runs, and if it has changed: a turn waits that is not in
        `waiting`, if given.
        """

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(
                _THREAD + transaction.for_update, **_thread_key(thread_id, owner)
            ):
                return False
            _check_idle(transaction, thread_id)
            waiting_ids = {row["id"] for row in transaction.rows(_WAITING_TURNS, id=thread_id)}
            if waiting is not None and not waiting_ids.issubset(waiting):
                raise _changed_error()
            for statement in _DROP_THREAD:
                transaction.execute(statement, id=thread_id)
            return True

        return await self._database.transact(work)

    async def before(self, turn_id: str) -> str | None:
        """Return the conversation as it was before a turn; None if that is not known."""
        rows = await self._database.read(_SESSION_BEFORE, id=turn_id)
        return rows[0]["before"] if rows else None

    async def begin(
        self, thread_id: str, owner: str, asked: str, anew: AskedAnew | None = None
    ) -> StoredTurn | None:
        """Add a turn that runs from now on; None if the owner has no such thread.

        With `anew` it replaces another turn, and the conversation continues from there. Raises
        BusyError while another turn of the thread runs, or if one has begun since `anew` was made.
        """
        turn_id = f"turn_{os.urandom(12).hex()}"
        view = new_turn(turn_id, asked, instead_of=anew.turn_id if anew else "")

        def work(transaction: Transaction) -> StoredTurn | None:
            rows = transaction.rows(
                _THREAD + transaction.for_update, **_thread_key(thread_id, owner)
            )
            if not rows:
                return None
            _check_idle(transaction, thread_id)
            turn_count = len(transaction.rows(_TURNS, id=thread_id))
            if anew is not None and anew.turns != turn_count:
                raise _changed_error()
            lease = time.time() + LEASE
            transaction.execute(
                _NEW_TURN,
                id=turn_id,
                thread_id=thread_id,
                seq=turn_count,
                view=_view_json(view),
                lease=lease,
                before=rows[0]["session"] if anew is None else anew.before,
            )
            transaction.execute(_SAVE_TIME, id=thread_id, now=time.time())
            if anew is not None:
                transaction.execute(
                    _SAVE_SESSION, id=thread_id, session=anew.session, now=time.time()
                )
            if not rows[0]["title"]:
                title = NOT_IN_TITLES.sub("?", " ".join(asked.split()))[:_MAX_TITLE]
                transaction.execute(_RENAME, **_thread_key(thread_id, owner), title=title)
            return StoredTurn(turn_id, "", "running", view, "", lease)

        return await self._database.transact(work)

    async def begin_again(self, thread_id: str, owner: str, turn: StoredTurn, view: Json) -> bool:
        """Let a waiting turn run again; return whether it still waited, in this very state.

        Raises BusyError while another turn of the thread runs.
        """

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(
                _THREAD + transaction.for_update, **_thread_key(thread_id, owner)
            ):
                return False
            if transaction.rows(_IS_BEGUN, id=turn.id, leases=leases):  # by an earlier attempt
                return True
            _check_idle(transaction, thread_id)
            leases.append(time.time() + LEASE)
            values = {"id": turn.id, "view": _view_json(view), "state": turn.state}
            is_begun = transaction.execute(_BEGIN_AGAIN, **values, lease=leases[-1]) > 0
            if is_begun:  # it waits no more: nobody else begins it
                transaction.require([{"id": turn.id}], _IS_BEGUN, id=turn.id, leases=leases)
            return is_begun

        leases: list[float] = []
        return await asked_again(lambda: self._database.transact(work))

    async def name_run(self, turn_id: str, run_id: str) -> None:
        """Record which run a turn is, before any of its calls is stored."""
        await self._database.write(_NAME_RUN, id=turn_id, run_id=run_id)

    async def show(self, turn: StoredTurn, view: Json) -> bool:
        """Store the view of a running turn, and renew its lease.

        Returns False if the turn has ended since it was begun in this state, even if it was begun
        again.
        """
        values = {"id": turn.id, "view": _view_json(view), "lease": time.time() + LEASE}
        return await self._database.write(_SAVE_VIEW, **values, was=turn.state) > 0

    async def keep_call(self, record: ToolInvocationRecord) -> None:
        """Store the latest record of a call, awaited by a sink's `write` before the call begins."""
        await self._database.write(
            _SAVE_CALL,
            run_id=as_column(record.run_id),
            call_id=as_column(record.id),
            record=msgspec.json.encode(record).decode(),
        )

    async def calls(self, run_id: str) -> Mapping[str, ToolInvocationRecord]:
        """Return the latest record of each call of a run, by call id."""
        rows = await self._database.read(_CALLS, run_id=as_column(run_id))
        calls: dict[str, ToolInvocationRecord] = {}
        for row in rows:
            try:
                record = _RECORD.decode(row["record"])
            except msgspec.DecodeError:
                raise SourceError("a stored call cannot be read: it was changed") from None
            if record.id not in calls or row["call_id"] == as_column(record.id):
                calls[record.id] = record  # an older version wrote some ids differently
        return calls

    async def end(
        self,
        thread_id: str,
        turn: StoredTurn,
        view: Json,
        *,
        state: str = "",
        session: str | None = None,
    ) -> bool:
        """Store how a turn ended, and its conversation.

        Returns False if it ended otherwise since it was begun in this state. A turn that was begun
        again is left alone, so an end may be retried if its confirmation was lost.
        """

        def work(transaction: Transaction) -> bool:
            key = {"id": turn.id, "state": state}
            ended_rows = transaction.execute(
                _END_TURN, **key, status=view["status"], view=_view_json(view), was=turn.state
            )
            if ended_rows and session is not None:
                transaction.execute(_SAVE_SESSION, id=thread_id, session=session, now=time.time())
            return ended_rows > 0 or bool(state and transaction.rows(_IS_ENDED, **key))

        return await self._database.transact(work)

    async def keep_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        """Store a waiting run of a thread that its client keeps, until its questions have expired.

        Returns False if another run of the thread waits. Only a caller's newest runs are stored.
        """
        state_json = state.to_json()

        def work(transaction: Transaction) -> bool:
            now = time.time()
            transaction.execute(_DROP_EXPIRED, now=now)
            for row in transaction.rows(_WAITING_RUN, **key):
                return bool(row["state"] == state_json)  # True if an earlier attempt stored it
            threads = [
                row["thread"] for row in transaction.rows(_OLDEST_WAITING, owner=key["owner"])
            ]
            for oldest in threads[: max(0, len(threads) + 1 - MOST_WAITING)]:
                transaction.execute(_DROP_WAITING, owner=key["owner"], thread=oldest)
            expires_at = max((request.expires_at for request in state.pending), default=now)
            values = {"state": state_json, "now": now, "expires_at": expires_at}
            return transaction.execute(_KEEP_WAITING, **key, **values) > 0

        key = _waiting_key(owner, thread)
        return await asked_again(lambda: self._database.transact(work))

    async def waiting(self, owner: str, thread: str) -> RunState | None:
        """Return the run that waits in a thread that its client keeps."""
        key = _waiting_key(owner, thread)
        rows = await self._database.read(_WAITING_RUN, **key)
        return RunState.from_json(rows[0]["state"]) if rows else None

    async def take_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        """Take that run out to continue it; return False if somebody else has."""

        def work(transaction: Transaction) -> bool:
            rows = transaction.rows(_WAITING_RUN + transaction.for_update, **key)
            if not rows or RunState.from_json(rows[0]["state"]) != state:
                return False
            transaction.execute(_DROP_WAITING, **key)
            transaction.require([], _WAITING_RUN, **key)  # otherwise somebody else takes it, too
            return True

        key = _waiting_key(owner, thread)
        return await self._database.transact(work)

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does this, too."""
        await self._database.aclose()


def _check_idle(transaction: Transaction, thread_id: str) -> None:
    """Raise BusyError while a turn runs, whoever carries it."""
    if transaction.rows(_RUNNING_TURNS, id=thread_id):
        raise BusyError(BUSY)


def _changed_error() -> BusyError:
    return BusyError("this thread has changed in the meantime: load it again")


def _stored_turn(row: Row) -> StoredTurn:
    try:
        view: Any = msgspec.json.decode(row["view"])
    except msgspec.DecodeError:
        raise SourceError("a stored turn cannot be read: it was changed") from None
    return StoredTurn(row["id"], row["run_id"], row["status"], view, row["state"], row["lease"])


def _view_json(view: Json) -> str:
    return msgspec.json.encode(view).decode()


def _waiting_key(owner: str, thread: str) -> dict[str, object]:
    """Return the key of a waiting run whose thread its client keeps."""
    return {"owner": as_column(owner), "thread": as_column(thread)}


def _thread_key(thread_id: str, owner: str) -> dict[str, object]:
    return {"id": as_column(thread_id), "owners": _owners(owner)}


def _owners(owner: str) -> list[str]:
    """Return the stored forms of a caller's id: older versions stored a long id whole."""
    column = as_column(owner)
    is_long = len(owner) > len(column) and storable(owner) == owner
    return [column, owner] if is_long else [column]
