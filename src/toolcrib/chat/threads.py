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
from toolcrib.storage import OWNERS, Row, SqlDatabase, Transaction, as_column, storable
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunState
from toolcrib.values.typed import names_wrong_types

T = TypeVar("T")
LEASE = 15.0
"""Seconds for which a run stays with its process without a sign of life."""
_PAUSES = (0.1, 0.3)  # seconds between attempts to ask a database
_TITLE = 80  # characters of the first question
NOT_IN_TITLES = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters not allowed in titles.

They change the direction of the text around them (bidirectional controls), or not every screen and
database has them: other controls, halves of surrogate pairs.
"""
_RECORD = msgspec.json.Decoder(ToolInvocationRecord)

_NEW_THREAD = """INSERT INTO chat_threads (id, owner, title, created_at, updated_at)
    VALUES (:id, :owner, :title, :now, :now)"""
_THREADS = """SELECT id, title, created_at, updated_at FROM chat_threads
    WHERE owner IN :owners AND (:like = '' OR lower(title) LIKE :like ESCAPE '!')
    ORDER BY updated_at DESC, id LIMIT :most"""
_THREAD = "SELECT * FROM chat_threads WHERE id = :id AND owner IN :owners"
_RENAME = "UPDATE chat_threads SET title = :title WHERE id = :id AND owner IN :owners"
_TURNS = """SELECT id, run_id, status, view, state, lease FROM chat_turns
    WHERE thread_id = :id ORDER BY seq"""
_BEFORE = "SELECT before FROM chat_turns WHERE id = :id"
_RUNNING = """SELECT id FROM chat_turns WHERE thread_id = :id AND status = 'running'"""
_WAIT = "SELECT id FROM chat_turns WHERE thread_id = :id AND status = 'waiting'"
_NEW_TURN = """INSERT INTO chat_turns (id, thread_id, seq, run_id, status, view, state, lease, before)
    VALUES (:id, :thread_id, :seq, '', 'running', :view, '', :lease, :before)"""
_BEGIN_AGAIN = """UPDATE chat_turns SET status = 'running', view = :view, lease = :lease
    WHERE id = :id AND status = 'waiting' AND state = :state"""
_IS_BEGUN = "SELECT id FROM chat_turns WHERE id = :id AND status = 'running' AND lease IN :leases"
_NAME_RUN = "UPDATE chat_turns SET run_id = :run_id WHERE id = :id"
# A turn that runs again has the state in which it waited; its earlier carrier has another state.
_SHOW = """UPDATE chat_turns SET view = :view, lease = :lease
    WHERE id = :id AND status = 'running' AND state = :was"""
_END = """UPDATE chat_turns SET status = :status, view = :view, state = :state
    WHERE id = :id AND status = 'running' AND state = :was"""
_IS_ENDED = "SELECT id FROM chat_turns WHERE id = :id AND state = :state"
_TOUCH = "UPDATE chat_threads SET updated_at = :now WHERE id = :id"
_KEEP = "UPDATE chat_threads SET session = :session, updated_at = :now WHERE id = :id"
_CALL = """INSERT INTO chat_calls (run_id, call_id, record) VALUES (:run_id, :call_id, :record)
    ON CONFLICT (run_id, call_id) DO UPDATE SET record = excluded.record"""
_CALLS = "SELECT * FROM chat_calls WHERE run_id = :run_id"
MOST_WAITING = 50
"""How many waiting runs are stored per caller, for clients that keep the thread themselves."""
_WAITING = "SELECT state FROM chat_waiting WHERE owner = :owner AND thread = :thread"
_OVER = "DELETE FROM chat_waiting WHERE expires_at < :now"
_OLDEST = "SELECT thread FROM chat_waiting WHERE owner = :owner ORDER BY kept_at, thread"
_KEEP_WAITING = """INSERT INTO chat_waiting (owner, thread, state, kept_at, expires_at)
    VALUES (:owner, :thread, :state, :now, :expires_at)
    ON CONFLICT (owner, thread) DO NOTHING"""
_TAKE = "DELETE FROM chat_waiting WHERE owner = :owner AND thread = :thread"
_DROP = (
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
        now = [(each.id, each.state) for each in self.turns if each.status == "running"]
        return (turn.id, turn.state) in now


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
    for pause in _PAUSES:
        try:
            return await ask()
        except SourceError:
            await asyncio.sleep(pause)
    return await ask()


class ThreadStore(Closing):
    """Stores the threads of all callers: `ThreadStore("sqlite:///crib.db")`.

    `url` is SQLAlchemy's, and may be that of the audit log. A thread belongs to its owner: every
    method that takes `owner` (a caller's id) sees no other threads. All methods raise SourceError
    if the database cannot be used, MissingExtraError without SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNERS) -> None:
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
        """Return threads, the newest first: id, title, created_at, updated_at (seconds)."""
        escaped = search.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        like = f"%{storable(escaped)}%" if escaped else ""
        rows = await self._database.read(_THREADS, owners=_owners(owner), like=like, most=most)
        return [dict(row) for row in rows]

    async def load(self, thread_id: str, owner: str) -> StoredThread | None:
        """Return a thread with its turns in order; None if the owner has no such thread."""

        def work(transaction: Transaction) -> StoredThread | None:
            rows = transaction.rows(_THREAD, **_theirs(thread_id, owner))
            if not rows:
                return None
            turns = tuple(map(_turn, transaction.rows(_TURNS, id=thread_id)))
            return StoredThread(**{**rows[0], "owner": owner}, turns=turns)

        return await self._database.transact(work, write=False)

    async def rename(self, thread_id: str, owner: str, title: str) -> bool:
        """Rename a thread; return whether it exists."""
        named = _theirs(thread_id, owner)
        return await self._database.write(_RENAME, **named, title=storable(title)) > 0

    async def delete(
        self, thread_id: str, owner: str, waiting: Collection[str] | None = None
    ) -> bool:
        """Delete a thread; return whether it existed.

        Raises BusyError while it runs, and if it has changed: a turn waits that is not in
        `waiting`, if given.
        """

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(_THREAD + transaction.for_update, **_theirs(thread_id, owner)):
                return False
            _check_idle(transaction, thread_id)
            now = {row["id"] for row in transaction.rows(_WAIT, id=thread_id)}
            if waiting is not None and not now.issubset(waiting):
                raise _gone_on()
            for statement in _DROP:
                transaction.execute(statement, id=thread_id)
            return True

        return await self._database.transact(work)

    async def before(self, turn_id: str) -> str | None:
        """Return the conversation as it was before a turn; None if that is not known."""
        rows = await self._database.read(_BEFORE, id=turn_id)
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
            rows = transaction.rows(_THREAD + transaction.for_update, **_theirs(thread_id, owner))
            if not rows:
                return None
            _check_idle(transaction, thread_id)
            turns = len(transaction.rows(_TURNS, id=thread_id))
            if anew is not None and anew.turns != turns:
                raise _gone_on()
            lease = time.time() + LEASE
            transaction.execute(
                _NEW_TURN,
                id=turn_id,
                thread_id=thread_id,
                seq=turns,
                view=_text(view),
                lease=lease,
                before=rows[0]["session"] if anew is None else anew.before,
            )
            transaction.execute(_TOUCH, id=thread_id, now=time.time())
            if anew is not None:
                transaction.execute(_KEEP, id=thread_id, session=anew.session, now=time.time())
            if not rows[0]["title"]:
                title = NOT_IN_TITLES.sub("?", " ".join(asked.split()))[:_TITLE]
                transaction.execute(_RENAME, **_theirs(thread_id, owner), title=title)
            return StoredTurn(turn_id, "", "running", view, "", lease)

        return await self._database.transact(work)

    async def begin_again(self, thread_id: str, owner: str, turn: StoredTurn, view: Json) -> bool:
        """Let a waiting turn run again; return whether it still waited, in this very state.

        Raises BusyError while another turn of the thread runs.
        """

        def work(transaction: Transaction) -> bool:
            if not transaction.rows(_THREAD + transaction.for_update, **_theirs(thread_id, owner)):
                return False
            if transaction.rows(_IS_BEGUN, id=turn.id, leases=leases):  # by an earlier attempt
                return True
            _check_idle(transaction, thread_id)
            leases.append(time.time() + LEASE)
            named = {"id": turn.id, "view": _text(view), "state": turn.state}
            begun = transaction.execute(_BEGIN_AGAIN, **named, lease=leases[-1]) > 0
            if begun:  # it waits no more: nobody else begins it
                transaction.require([{"id": turn.id}], _IS_BEGUN, id=turn.id, leases=leases)
            return begun

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
        named = {"id": turn.id, "view": _text(view), "lease": time.time() + LEASE}
        return await self._database.write(_SHOW, **named, was=turn.state) > 0

    async def keep_call(self, record: ToolInvocationRecord) -> None:
        """Store the latest record of a call, awaited by a sink's `write` before the call begins."""
        await self._database.write(
            _CALL,
            run_id=as_column(record.run_id),
            call_id=as_column(record.id),
            record=msgspec.json.encode(record).decode(),
        )

    async def calls(self, run_id: str) -> Mapping[str, ToolInvocationRecord]:
        """Return the latest record of each call of a run, by call id."""
        rows = await self._database.read(_CALLS, run_id=as_column(run_id))
        found: dict[str, ToolInvocationRecord] = {}
        for row in rows:
            try:
                record = _RECORD.decode(row["record"])
            except msgspec.DecodeError:
                raise SourceError("a stored call cannot be read: it was changed") from None
            if record.id not in found or row["call_id"] == as_column(record.id):
                found[record.id] = record  # an older version wrote some ids differently
        return found

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
            named = {"id": turn.id, "state": state}
            ended = transaction.execute(
                _END, **named, status=view["status"], view=_text(view), was=turn.state
            )
            if ended and session is not None:
                transaction.execute(_KEEP, id=thread_id, session=session, now=time.time())
            return ended > 0 or bool(state and transaction.rows(_IS_ENDED, **named))

        return await self._database.transact(work)

    async def keep_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        """Store a waiting run of a thread that its client keeps, until its questions have expired.

        Returns False if another run of the thread waits. Only a caller's newest runs are stored.
        """
        saved = state.to_json()

        def work(transaction: Transaction) -> bool:
            now = time.time()
            transaction.execute(_OVER, now=now)
            for row in transaction.rows(_WAITING, **place):
                return bool(row["state"] == saved)  # True if an earlier attempt stored it
            kept = [row["thread"] for row in transaction.rows(_OLDEST, owner=place["owner"])]
            for oldest in kept[: max(0, len(kept) + 1 - MOST_WAITING)]:
                transaction.execute(_TAKE, owner=place["owner"], thread=oldest)
            until = max((asked.expires_at for asked in state.pending), default=now)
            named = {"state": saved, "now": now, "expires_at": until}
            return transaction.execute(_KEEP_WAITING, **place, **named) > 0

        place = _place(owner, thread)
        return await asked_again(lambda: self._database.transact(work))

    async def waiting(self, owner: str, thread: str) -> RunState | None:
        """Return the run that waits in a thread that its client keeps."""
        place = _place(owner, thread)
        rows = await self._database.read(_WAITING, **place)
        return RunState.from_json(rows[0]["state"]) if rows else None

    async def take_waiting(self, owner: str, thread: str, state: RunState) -> bool:
        """Take that run out to continue it; return False if somebody else has."""

        def work(transaction: Transaction) -> bool:
            rows = transaction.rows(_WAITING + transaction.for_update, **place)
            if not rows or RunState.from_json(rows[0]["state"]) != state:
                return False
            transaction.execute(_TAKE, **place)
            transaction.require([], _WAITING, **place)  # otherwise somebody else takes it, too
            return True

        place = _place(owner, thread)
        return await self._database.transact(work)

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does this, too."""
        await self._database.aclose()


def _check_idle(transaction: Transaction, thread_id: str) -> None:
    """Raise BusyError while a turn runs, whoever carries it."""
    if transaction.rows(_RUNNING, id=thread_id):
        raise BusyError(BUSY)


def _gone_on() -> BusyError:
    return BusyError("this thread has changed in the meantime: load it again")


def _turn(row: Row) -> StoredTurn:
    try:
        view: Any = msgspec.json.decode(row["view"])
    except msgspec.DecodeError:
        raise SourceError("a stored turn cannot be read: it was changed") from None
    return StoredTurn(row["id"], row["run_id"], row["status"], view, row["state"], row["lease"])


def _text(view: Json) -> str:
    return msgspec.json.encode(view).decode()


def _place(owner: str, thread: str) -> dict[str, object]:
    """Return the key of a waiting run whose thread its client keeps."""
    return {"owner": as_column(owner), "thread": as_column(thread)}


def _theirs(thread_id: str, owner: str) -> dict[str, object]:
    return {"id": as_column(thread_id), "owners": _owners(owner)}


def _owners(owner: str) -> list[str]:
    """Return the stored forms of a caller's id: older versions stored a long id whole."""
    column = as_column(owner)
    is_long = len(owner) > len(column) and storable(owner) == owner
    return [column, owner] if is_long else [column]
