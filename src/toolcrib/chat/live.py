"""The runs that this process carries, and the watchers of their threads.

Rule: a turn is stored before its run begins, and a call before it runs, so that a killed process
leaves nothing unrecorded; the events of a durable run are read again. Watchers get a snapshot and then
operations; one that falls behind gets another snapshot. A run continues whether or not anybody
watches. Its turn ends with it, as failed if its end cannot be stored. Before anything is done with
a thread, it is loaded here, which ends turns that nobody carries any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from copy import deepcopy
from typing import TypeAlias, TypeVar

import msgspec

from toolcrib.agent import Agent, RunStream, Session
from toolcrib.agent.history import call_ids, final_results
from toolcrib.chat.doors import ChatError, check_answer, too_many_runs
from toolcrib.chat.durable_streams import DurableStream, DurableStreams
from toolcrib.chat.threads import (
    BUSY,
    LEASE,
    AskedAnew,
    BusyError,
    StoredThread,
    StoredTurn,
    ThreadStore,
)
from toolcrib.chat.view import (
    BrokenOff,
    Json,
    Operation,
    ReadBack,
    TurnView,
    calls_of,
    line_of,
    new_turn,
    own_id,
)
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.failures import SafeLogger
from toolcrib.storage import UnreachableError
from toolcrib.values.call import ToolCall
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Caller
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import canonical_json
from toolcrib.values.message import Message
from toolcrib.values.record import READ_UNTRUSTED, ToolInvocationRecord, has_begun, lost_parts
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    RunResult,
    RunStarted,
    RunState,
    ToolCallFinished,
    ToolCallStarted,
)

_log = SafeLogger("toolcrib.chat")
Carried: TypeAlias = RunStream | DurableStream
T = TypeVar("T")
_MOST_WAITING = 2_000  # operations that a watcher may be behind
_LOOK = 1.0  # seconds between looks at a thread whose run another process carries
_END_ATTEMPTS = 5
_STORED_EVENTS = (ToolCallStarted, ApprovalRequested, ToolCallFinished)


def _no_thread() -> ChatError:
    return ChatError(404, "unknown_thread", "you have no such thread")


class CallKeeper:
    """A sink that stores each call of the runs carried here, before it begins and when it ends."""

    write_ahead = True

    def __init__(self, store: ThreadStore) -> None:
        self._store = store
        self._started: dict[str, asyncio.Event] = {}
        self._unlinked_turns: dict[str, str] = {}  # of runs that the store does not know yet

    async def begin(self, run_id: str, turn_id: str) -> None:
        """Let the calls of a run be stored; `turn_id` is its turn.

        Raises SourceError if that cannot be written to the turn; it is tried again before the first
        call.
        """
        self._unlinked_turns[run_id] = turn_id
        self._event(run_id).set()
        await self._link_run(run_id)

    def forget(self, run_id: str) -> None:
        self._started.pop(run_id, None)
        self._unlinked_turns.pop(run_id, None)

    async def write(self, record: ToolInvocationRecord) -> None:
        if record.parent_run_id:
            return  # made within an agent that is a tool: a turn shows the outer call
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEASE):
                await self._event(record.run_id).wait()
        await self.keep(record)

    async def keep(self, record: ToolInvocationRecord) -> None:
        """Store the latest record of a call, after its turn has been linked to its run."""
        await self._link_run(record.run_id)
        await self._store.keep_call(record)

    async def _link_run(self, run_id: str) -> None:
        if run_id in self._unlinked_turns:
            await self._store.name_run(self._unlinked_turns[run_id], run_id)
            self._unlinked_turns.pop(run_id, None)

    def _event(self, run_id: str) -> asyncio.Event:
        return self._started.setdefault(run_id, asyncio.Event())


class _Watcher:
    """Holds what one reader of a thread has not read yet; too much of it becomes a snapshot."""

    def __init__(self) -> None:
        self.unread: list[Operation] = []
        self.needs_snapshot = True  # it begins with a snapshot
        self.wakeup = asyncio.Event()

    def tell(self, operations: Sequence[Operation]) -> None:
        if not self.needs_snapshot:
            self.unread += operations
            if len(self.unread) > _MOST_WAITING:
                self.needs_snapshot = True
                self.unread.clear()
        self.wakeup.set()


class _OpenThread:
    """A thread that somebody watches, or that runs here."""

    def __init__(self, stored: StoredThread) -> None:
        self.id = stored.id
        self.owner = stored.owner
        self.title = stored.title
        self.turns: list[Json] = [turn.view for turn in stored.turns]
        self.watchers: set[_Watcher] = set()
        self.view: TurnView | None = None
        self.stream: Carried | None = None
        self.changes = 0  # reported so far: data read before the last one is outdated

    def snapshot(self) -> Json:
        turns = deepcopy(self.turns)
        if self.view is not None:
            turns[self._index(self.view.turn["id"])] = self.view.snapshot()
        return {"thread": {"id": self.id, "title": self.title}, "turns": turns}

    def renew(self, stored: StoredThread) -> None:
        """Take over what the store has, because another process may have written it."""
        previous = self.title, self.turns
        self.title, self.turns = stored.title, [turn.view for turn in stored.turns]
        if previous != (self.title, self.turns):
            self.tell([{"type": "set", "path": [], "value": self.snapshot()}])

    def put(self, turn: Json) -> None:
        """Add a turn, or replace its view."""
        index = self._index(turn["id"])
        self.turns[index : index + 1] = [turn]
        self.tell([{"type": "set", "path": ["turns", str(index)], "value": deepcopy(turn)}])

    def change(self, turn_id: str, operations: Sequence[Operation]) -> None:
        path = ["turns", str(self._index(turn_id))]
        self.tell([{**operation, "path": [*path, *operation["path"]]} for operation in operations])

    def tell(self, operations: Sequence[Operation]) -> None:
        self.changes += 1
        for watcher in self.watchers:
            watcher.tell(operations)

    def _index(self, turn_id: str) -> int:
        ids = [turn["id"] for turn in self.turns]
        return ids.index(turn_id) if turn_id in ids else len(ids)


class LiveThreads:
    """Runs an agent for the threads of a store, and tells the watchers.

    `agent` is one whose calls a `CallKeeper` of that store stores. Callers are `limited` if they
    may approve only some questions. With `durable_streams`, durable runs do the work.
    """

    def __init__(
        self,
        agent: Agent,
        store: ThreadStore,
        keeper: CallKeeper,
        *,
        limited: bool,
        durable_streams: DurableStreams | None,
    ) -> None:
        self._durable_streams = durable_streams
        # turns that are about to be followed here, or deleted
        self._claimed_turns: set[str] = set()
        self._requested_runs: list[tuple[str, str]] = []  # owner and thread of each requested run
        self._agent = agent
        self._limited = limited
        self._store = store
        self._keeper = keeper
        self._open_threads: dict[str, _OpenThread] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self, thread_id: str, owner: str) -> StoredThread:
        """Return a thread.

        A run that nobody carries any more is followed again if it is durable, and otherwise ended.
        Raises ChatError.
        """
        stored = await self._store.load(thread_id, owner)
        if stored is None:
            raise _no_thread()
        changed = False
        for turn in stored.turns:
            if await self._is_followed(stored, turn):
                changed = True
            elif turn.is_abandoned and not self._is_carried(thread_id, turn.id):
                view = self._view_of(turn.view)
                await self._break_off(stored, turn, view, "interrupted")
                changed = True
        return await self.load(thread_id, owner) if changed else stored

    async def snapshot(self, thread_id: str, owner: str) -> Json:
        """Return what a page shows of a thread. Raises ChatError."""
        return (await self._current_thread(thread_id, owner)).snapshot()

    async def watch(self, thread_id: str, owner: str) -> AsyncGenerator[list[Operation], None]:
        """Yield a snapshot, then changes, until the reader has enough. Raises ChatError."""
        live = await self._current_thread(thread_id, owner)
        self._open_threads[thread_id] = live
        watcher = _Watcher()
        live.watchers.add(watcher)
        try:
            while True:
                watcher.wakeup.clear()
                operations, watcher.unread = watcher.unread, []
                if watcher.needs_snapshot:
                    watcher.needs_snapshot = False
                    operations = [{"type": "set", "path": [], "value": live.snapshot()}]
                if operations:
                    yield operations
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await watcher.wakeup.wait()
                if live.view is None and not watcher.wakeup.is_set():
                    await self._current_thread(thread_id, owner)
        finally:
            live.watchers.discard(watcher)
            self._close(live)

    async def ask(self, thread_id: str, caller: Caller, text: str, instead_of: str = "") -> str:
        """Begin a run of a thread with a question; return the id of its turn. Raises ChatError.

        `instead_of` is a turn whose question is asked again. That turn, and all after it, remain
        readable.
        """
        previous = await self.load(thread_id, caller.id)  # ends a turn that nobody carries any more
        anew = await self._rewound(previous, instead_of) if instead_of else None
        turn = await _unless_busy(self._store.begin(thread_id, caller.id, text, anew))
        if turn is None:
            raise _no_thread()
        stored = await self.load(thread_id, caller.id)
        self._announce_title(thread_id, stored.title)
        view = self._view_of(turn.view)
        try:
            await self._start(stored, turn, view, self._new_run(turn.id, text, caller))
        except Exception as error:  # for example a conversation saved with another key
            if self._durable_streams is not None and await self._durable_streams.has_gone_on(turn):
                return turn.id  # not confirmed: it is followed when the thread is loaded
            note = str(error) if isinstance(error, ToolcribError) else "The run could not begin."
            view.turn |= {"status": "failed", "note": note}
            await self._store.end(thread_id, turn, view.snapshot())
            raise
        return turn.id

    async def answer(
        self,
        thread_id: str,
        caller: Caller,
        approval_id: str,
        answer: Answer,
        may_answer: Callable[[ApprovalRequest], bool],
    ) -> str:
        """Answer a question of a run of the thread; return the id of its turn. Raises ChatError."""
        stored = await self.load(thread_id, caller.id)
        turn, state, request = _open_question(stored, approval_id)
        answer = as_asked(answer, request)
        runner = self._agent.speaking_in(state).runner
        await check_answer(runner, state, request, answer, may_answer)
        view = self._view_of(turn.view)
        waiting_snapshot = view.snapshot()
        view.answered(
            request.call_in(state.run_id), caller.id if isinstance(answer, Approve) else ""
        )
        self._claimed_turns.add(turn.id)
        try:
            snapshot = view.snapshot()
            if not await _unless_busy(
                self._store.begin_again(thread_id, caller.id, turn, snapshot)
            ):
                raise ChatError(409, "already_answered", "this question was already answered")
            stored = await self.load(thread_id, caller.id)  # it may have moved on in the meantime
            try:
                start = self._answered_run(state, approval_id, answer)
                await self._start(stored, turn, view, start)
            except Exception:
                await self._store.end(thread_id, turn, waiting_snapshot, state=turn.state)
                raise
        finally:
            self._claimed_turns.discard(turn.id)
        return turn.id

    async def cancel(self, thread_id: str, owner: str) -> None:
        """Stop what the thread runs. Raises ChatError if nothing runs here."""
        await self.load(thread_id, owner)
        live = self._open_threads.get(thread_id)
        if live is None or live.stream is None:
            raise ChatError(
                409, "not_running", "no run is active in this thread, or it runs in another process"
            )
        await live.stream.cancel()

    @contextlib.contextmanager
    def count_run(self, thread_id: str, owner: str, most: int) -> Iterator[None]:
        """Count a run of a thread among its caller's while it is being requested.

        It counts from before anything is awaited until the run is carried here, or was not begun.
        Raises ChatError for more than `most`.
        """
        threads = {thread for caller, thread in self._requested_runs if caller == owner}
        threads |= {
            live.id
            for live in self._open_threads.values()
            if live.owner == owner and live.stream is not None
        }
        if len(threads) >= most:
            raise too_many_runs()
        self._requested_runs.append((owner, thread_id))
        try:
            yield
        finally:
            self._requested_runs.remove((owner, thread_id))

    async def rename(self, thread_id: str, owner: str, title: str) -> None:
        """Give a thread another title. Raises ChatError."""
        await self.load(thread_id, owner)
        if not await self._store.rename(thread_id, owner, title):
            raise _no_thread()
        self._announce_title(thread_id, title)

    async def delete(self, thread_id: str, owner: str) -> None:
        """Delete a thread, after cancelling the durable runs that wait in it.

        So none of them is left to be approved. Raises ChatError.
        """
        stored = await self.load(thread_id, owner)
        if "running" in {turn.status for turn in stored.turns}:
            raise _busy()
        waiting_ids = {turn.id for turn in stored.turns if turn.status == "waiting"}
        self._claimed_turns |= waiting_ids
        try:
            for turn_id in waiting_ids:
                if self._durable_streams is not None:
                    await self._durable_streams.cancel(turn_id)
            if not await _unless_busy(self._store.delete(thread_id, owner, waiting_ids)):
                raise _no_thread()
        finally:
            self._claimed_turns -= waiting_ids

    def _announce_title(self, thread_id: str, title: str) -> None:
        """Tell the watchers that a thread has another title."""
        live = self._open_threads.get(thread_id)
        if live is not None and live.title != title:
            live.title = title
            live.tell([{"type": "set", "path": ["thread", "title"], "value": title}])

    async def aclose(self) -> None:
        """Cancel what runs here, and wait until each turn is stored as cancelled.

        A durable run is no longer followed.
        """
        for live in list(self._open_threads.values()):
            if isinstance(live.stream, RunStream):
                with contextlib.suppress(ToolcribError):
                    await live.stream.cancel()
        while tasks := [task for task in self._tasks if not task.done()]:  # one may begin another
            for task in tasks if self._durable_streams is not None else ():
                task.cancel()
            await asyncio.wait(tasks)

    def _new_run(self, turn_id: str, text: str, caller: Caller) -> Callable[[Session], Carried]:
        durable_streams = self._durable_streams
        if durable_streams is None:
            return lambda session: session.stream(text, caller=caller)
        return lambda session: durable_streams.begun(session, turn_id, text, caller)

    def _answered_run(
        self, state: RunState, approval_id: str, answer: Answer
    ) -> Callable[[Session], Carried]:
        durable_streams = self._durable_streams
        if durable_streams is None:
            return lambda session: session.resume_stream(state, {approval_id: answer})
        return lambda session: durable_streams.answered(session, state, approval_id, answer)

    async def _is_followed(self, stored: StoredThread, turn: StoredTurn) -> bool:
        """Follow the durable run of a turn if nobody does here; return whether it is now followed.

        It was begun by a process that is gone, or was answered elsewhere.
        """
        durable_streams = self._durable_streams
        if durable_streams is None or self._is_carried(stored.id, turn.id):
            return False
        if not await durable_streams.has_gone_on(turn):
            return False
        view = self._view_of(turn.view)
        if turn.status == "waiting":
            state = RunState.from_json(turn.state)
            for request in state.pending:
                view.answered(request.call_in(state.run_id), "")
            snapshot = view.snapshot()
            try:
                if not await self._store.begin_again(stored.id, stored.owner, turn, snapshot):
                    return False
            except BusyError:  # it is followed when the other run has ended
                return False
        else:
            old_snapshot = turn.view
            new_snapshot = new_turn(
                turn.id,
                old_snapshot["asked"],
                at=old_snapshot["at"],
                instead_of=old_snapshot["instead_of"],
            )
            view = self._view_of(new_snapshot)
        current = await self._store.load(stored.id, stored.owner)  # it may have moved on since
        if current is None or not current.runs(turn) or self._is_carried(stored.id, turn.id):
            return False
        await self._start(
            current, turn, view, lambda session: durable_streams.followed(session, turn)
        )
        return True

    async def _start(
        self,
        stored: StoredThread,
        turn: StoredTurn,
        view: TurnView,
        start: Callable[[Session], Carried],
    ) -> None:
        session = self._session(stored)
        live = self._open_threads.setdefault(stored.id, _OpenThread(stored))
        stream = start(session)
        live.view, live.stream = view, stream
        live.put(view.snapshot())
        live.renew(stored)  # other processes may have run turns since the last look
        if isinstance(stream, DurableStream):
            try:
                await stream.begin()
            except BaseException:
                live.view = live.stream = None
                self._close(live)
                raise
        task = asyncio.create_task(self._carry(live, turn, view, session, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        live: _OpenThread,
        turn: StoredTurn,
        view: TurnView,
        session: Session,
        stream: Carried,
    ) -> None:
        """Follow a run to its end, and store its view; the end is reported once it is stored."""
        lease = asyncio.create_task(self._renew_lease(turn, view, stream))
        try:
            try:
                result = await self._show_to_end(live, turn, view, stream)
                ended_view, changes = view.ended(result)
                await self._store_end(live, turn, ended_view, session, result)
            except Exception as error:  # noqa: BLE001  whatever it is, the turn ends
                if isinstance(stream, DurableStream) and isinstance(error, UnreachableError):
                    _log.warning(
                        "the database is not available, so a run is not followed for now: %s", error
                    )
                else:
                    _log.exception(
                        "the end of a turn could not be saved: the turn is saved as failed"
                    )
                    view = await self._end_as_failed(live, turn, view, stream)
            else:
                view = ended_view
                if live.stream is stream:
                    live.change(view.turn["id"], changes)
        finally:
            lease.cancel()
            if live.stream is stream:
                live.view = live.stream = None
                live.put(view.snapshot())
            if not self._is_carried(live.id, turn.id):  # otherwise it was answered, and continues
                self._keeper.forget(view.turn["run_id"])
            self._close(live)

    async def _show_to_end(
        self, live: _OpenThread, turn: StoredTurn, view: TurnView, stream: Carried
    ) -> RunResult:
        """Show a run as it progresses, and return its result."""
        result: RunResult | None = None
        async for event in stream:
            if isinstance(event, Done):
                result = event.result
                break
            live.change(view.turn["id"], view.take(event))
            await self._store_progress(turn, view, event)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await stream.result()
        if result is None:
            raise ToolcribError("the run has ended without a result")
        return result

    async def _end_as_failed(
        self, live: _OpenThread, turn: StoredTurn, view: TurnView, stream: Carried
    ) -> TurnView:
        """End a turn whose end could not be stored, with what is known of its calls.

        No call continues.
        """
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await stream.cancel()
        try:
            stored = await self._store.load(live.id, live.owner)
            if stored is not None:
                return await self._break_off(stored, turn, view, "failed")
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("a turn could not be saved as failed: it ends when its lease expires")
        return self._empty_view(view, "failed")

    async def _store_progress(self, turn: StoredTurn, view: TurnView, event: Event) -> None:
        """Store what a restart needs to know.

        A failure is logged: the sink lets no call run that it cannot store.
        """
        try:
            if isinstance(event, RunStarted):
                await self._keeper.begin(event.run_id, turn.id)
            if self._durable_streams is not None and isinstance(event, ToolCallFinished):
                await self._keeper.keep(event.record)  # its worker may be another process
            if isinstance(event, _STORED_EVENTS):
                await self._store.show(turn, view.snapshot())
        except SourceError as error:
            _log.warning("a turn could not be saved: %s", error)

    async def _renew_lease(self, turn: StoredTurn, view: TurnView, stream: Carried) -> None:
        """Renew the run's lease repeatedly; cancel the run if somebody has ended its turn.

        A durable run is not cancelled, because others follow it, too.
        """
        while True:
            await asyncio.sleep(LEASE / 3)
            try:
                if not await self._store.show(turn, view.snapshot()):
                    if isinstance(stream, RunStream):
                        await stream.cancel()
                    return
            except SourceError as error:
                _log.warning("the lease of a run could not be renewed: %s", error)

    async def _store_end(
        self,
        live: _OpenThread,
        turn: StoredTurn,
        view: TurnView,
        session: Session,
        result: RunResult,
    ) -> None:
        """Store how the run ended, and the conversation, retrying while the database is away."""
        state_json, session_json = result.state.to_json(), session.to_json()
        for attempt in range(_END_ATTEMPTS):
            snapshot = view.snapshot()
            try:
                is_stored = await self._store.end(
                    live.id, turn, snapshot, state=state_json, session=session_json
                )
            except SourceError as error:
                _log.warning("the end of a turn could not be saved: %s", error)
                await asyncio.sleep(2**attempt / 10)
                continue
            if not is_stored and self._durable_streams is None:
                _log.warning("another process has ended or continued a turn in the meantime")
            return

    async def _rewound(self, stored: StoredThread, turn_id: str) -> AskedAnew:
        """Return the conversation as it was before a turn, and what ran since. Raises ChatError."""
        if turn_id not in {turn.id for turn in stored.turns}:
            raise _unknown_turn()
        statuses = {turn.status for turn in stored.turns}
        if "running" in statuses:
            raise _busy()
        line_ids = [turn["id"] for turn in line_of(turn.view for turn in stored.turns)]
        if turn_id not in line_ids:
            raise _unknown_turn()
        if "waiting" in statuses:
            raise ChatError(409, "waiting", "a call waits for an answer: approve or deny it first")
        conversation = await self._store.before(turn_id)
        if conversation is None:
            raise ChatError(
                409,
                "unknown_before",
                "this question was asked in an older version of the conversation: ask at its end",
            )
        calls = {turn.id: await self._store.calls(turn.run_id) for turn in stored.turns}
        has_untrusted = any(message.untrusted for message in self._session(stored).messages)
        is_tainted = has_untrusted or any(map(self._has_read_untrusted, calls.values()))
        session = self._session(msgspec.structs.replace(stored, session=conversation))
        kept_ids = line_ids[: line_ids.index(turn_id)]
        texts = [
            self._done_text(part, calls[turn.id].get(call_id))
            for turn in _turns_since(stored.turns, turn_id, kept_ids)
            for call_id, part in calls_of(turn.view).items()
            if turn.id not in kept_ids
            or call_id not in _finished_ids(session.messages_of_run(turn.run_id), turn.run_id)
        ]
        call_notes = [text for text in texts if text]
        if call_notes or is_tainted:
            reminder = Message.user(
                "\n".join((_ANEW_NOTE, *((_DONE_NOTE, *call_notes) if call_notes else ())))
            )
            reminder = msgspec.structs.replace(reminder, untrusted=is_tainted)
            session.messages = (*session.messages, reminder)
        return AskedAnew(turn_id, conversation, session.to_json(), len(stored.turns))

    def _done_text(self, part: Json, record: ToolInvocationRecord | None) -> str:
        """Describe the end of a call that the conversation no longer has.

        The model must not make it again. Empty for a call that has not begun, or only read.
        """
        definitions = self._definitions(part["name"], record)
        is_read_only = bool(definitions) and all(
            definition.annotations.read_only for definition in definitions
        )
        is_begun = part["state"] in _OUTCOMES and (record is None or has_begun(record))
        if is_read_only or not is_begun:
            return ""
        return (
            f"{part['name']} {canonical_json(part['arguments'] or {})}: {_OUTCOMES[part['state']]}"
        )

    def _has_read_untrusted(self, calls: Mapping[str, ToolInvocationRecord]) -> bool:
        """Return whether a call has begun that may have read untrusted content.

        True if nobody here knows the tool, because nobody can say what it has read.
        """
        begun_calls = [record for record in calls.values() if has_begun(record)]
        definitions = [self._definitions(record.name, record) for record in begun_calls]
        return any(READ_UNTRUSTED in record.notes for record in begun_calls) or any(
            not candidates
            or any(definition.annotations.untrusted_output for definition in candidates)
            for candidates in definitions
        )

    def _definitions(
        self, name: str, record: ToolInvocationRecord | None
    ) -> tuple[ToolDefinition, ...]:
        """Return the definitions of the tools that a call may belong to."""
        origin = None if record is None else record.origin
        return self._agent.team.definitions(name, "" if origin is None else origin.agent)

    async def _current_thread(self, thread_id: str, owner: str) -> _OpenThread:
        """Return a thread with what other processes have written.

        A thread that runs here, or has changed here in the meantime, is newer than what was read.
        Raises ChatError.
        """
        live = self._open_threads.get(thread_id)
        changes = 0 if live is None else live.changes
        stored = await self.load(thread_id, owner)
        current = self._open_threads.get(thread_id)
        if current is None:
            return _OpenThread(stored)
        if current is live and current.view is None and current.changes == changes:
            current.renew(stored)
        return current

    def _close(self, live: _OpenThread) -> None:
        if not live.watchers and live.view is None:
            self._open_threads.pop(live.id, None)

    def _is_carried(self, thread_id: str, turn_id: str) -> bool:
        live = self._open_threads.get(thread_id)
        view = None if live is None else live.view
        return turn_id in self._claimed_turns or (view is not None and view.turn["id"] == turn_id)

    async def _break_off(
        self, stored: StoredThread, turn: StoredTurn, view: TurnView, status: BrokenOff
    ) -> TurnView:
        """End a turn that nobody carries on; the conversation keeps what is known of it.

        What cannot be stored is left out: the calls have their records all the same.
        """
        run_id = view.turn["run_id"] or turn.run_id  # its view may not have been stored
        view.turn["run_id"] = run_id
        calls = await self._store.calls(run_id) if run_id else {}
        try:
            view.break_off(calls, status)
            msgspec.json.encode(view.snapshot())
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("the shown state of a turn could not be saved")
            view = self._empty_view(view, status)
        session_json: str | None = None
        try:
            session = self._session(stored)
            messages = _messages_of(view.turn, calls, session.messages_of_run(run_id))
            if self._has_read_untrusted(calls):
                messages = [
                    msgspec.structs.replace(message, untrusted=True) for message in messages
                ]
            session.messages = (*session.messages, *messages)
            session_json = session.to_json()
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("a turn could not be added to the conversation")
        await self._store.end(stored.id, turn, view.snapshot(), session=session_json)
        return view

    def _empty_view(self, view: TurnView, status: BrokenOff) -> TurnView:
        """Return the view of a turn that was broken off, without what happened in it."""
        turn = view.turn
        empty = self._view_of(new_turn(turn["id"], turn["asked"], at=turn["at"]))
        empty.break_off({}, status)
        return empty

    def _view_of(self, turn: Json) -> TurnView:
        return TurnView(turn, self._agent.team.definition, limited=self._limited)

    def _session(self, stored: StoredThread) -> Session:
        if not stored.session:
            return self._agent.session()
        return Session.from_json(self._agent, stored.session)


def as_asked(answer: Answer, request: ApprovalRequest) -> Answer:
    """Return an answer in which values returned as shown are what was asked about.

    Raises ChatError.
    """
    if not isinstance(answer, Approve) or answer.arguments is None:
        return answer
    try:
        arguments = ReadBack(request.arguments).arguments(answer.arguments)
    except ValueError as error:
        raise ChatError(422, "invalid_arguments", str(error)) from None
    return msgspec.structs.replace(answer, arguments=arguments)


async def _unless_busy(work: Awaitable[T]) -> T:
    """Await work that needs the thread for itself. Raises ChatError if the thread is busy."""
    try:
        return await work
    except BusyError as error:
        raise ChatError(409, "busy", str(error)) from None


def _busy() -> ChatError:
    return ChatError(409, "busy", BUSY)


def _open_question(
    stored: StoredThread, approval_id: str
) -> tuple[StoredTurn, RunState, ApprovalRequest]:
    """Find an open question of the thread. Raises ChatError."""
    is_used = False
    for turn in stored.turns:
        if not turn.state:
            continue
        state = RunState.from_json(turn.state)
        for request in state.pending:
            if request.id == approval_id and turn.status == "waiting":
                return turn, state, request
            if request.id == approval_id and turn.status == "running" and _is_open(turn, request):
                raise ChatError(
                    409,
                    "busy",
                    "other calls of this turn are running: answer when the turn waits again",
                )
        is_used = is_used or any(record.approval_id == approval_id for record in state.records)
        is_used = is_used or any(request.id == approval_id for request in state.pending)
    if is_used:
        raise ChatError(409, "already_answered", "this question was already answered")
    raise ChatError(404, "unknown_approval", "this thread has no such question")


def _is_open(turn: StoredTurn, request: ApprovalRequest) -> bool:
    """Return whether a turn that runs again has left a question for later."""
    part = calls_of(turn.view).get(request.call_in(turn.run_id))
    return part is not None and part["state"] == "waiting"


_UNKNOWN_RESULT = (
    "The run was interrupted during this call, so its outcome is unknown. Do not make it "
    "again unless the user asks for it."
)
_STOPPED_MESSAGE = Message.assistant("[the run was interrupted]")


def _turns_since(
    turns: Sequence[StoredTurn], turn_id: str, kept_ids: Collection[str]
) -> list[StoredTurn]:
    """Return turns whose calls may be missing from a conversation that continues before a turn.

    These are the turns since it was first asked, and of the earlier ones those that it builds on.
    """
    indexes = {turn.id: index for index, turn in enumerate(turns)}
    first_index = indexes[turn_id]
    while (earlier_id := turns[first_index].view.get("instead_of")) in indexes:
        first_index = indexes[earlier_id]
    return [turn for index, turn in enumerate(turns) if index >= first_index or turn.id in kept_ids]


_ANEW_NOTE = "[The following was asked earlier in other words.]"
_DONE_NOTE = "[These calls were already made; do not make them again unless the user asks for it.]"
_OUTCOMES = {
    "completed": "it has run",
    "failed": "it failed",
    "cancelled": "it was stopped",
    "unknown": "its outcome is unknown",
}
_NOT_BEGUN_RESULT = "The run was interrupted before this call began, so it has not run."


def _unknown_turn() -> ChatError:
    return ChatError(404, "unknown_turn", "no question of this conversation has that id")


def _messages_of(
    turn: Json, calls: Mapping[str, ToolInvocationRecord], known_messages: Sequence[Message]
) -> list[Message]:
    """Return what the conversation says about a run that was cut off.

    Without it, a call might be made again because nobody remembers it. `known_messages`
    is what the conversation already has of that run.
    """
    run_id, parts = turn["run_id"], calls_of(turn)
    known_ids = {own_id(run_id, call_id) for call_id in call_ids(known_messages)}
    new_parts = {
        call_id: part
        for call_id, part in parts.items()
        if call_id not in known_ids and part["arguments"] is not None  # otherwise nothing was asked
    }
    messages = [] if known_ids & parts.keys() else [Message.user(turn["asked"])]
    waiting_ids = known_ids - _finished_ids(known_messages, run_id)
    outcomes = [
        f"{p['name']}: {_result_text(p, calls.get(c))}"
        for c, p in parts.items()
        if c in waiting_ids
    ]
    if outcomes:
        messages.append(
            Message.user("[the outcomes of the calls that were waiting]\n" + "\n".join(outcomes))
        )
    text = "".join(part["text"] for part in turn["parts"] if part["kind"] == "text")
    tool_calls = tuple(  # ids that no other run's calls have
        ToolCall(part["id"], part["name"], canonical_json(part["arguments"]))
        for part in new_parts.values()
    )
    if not tool_calls:
        return [*messages, Message.assistant(text) if text else _STOPPED_MESSAGE]
    results = [
        Message.tool(
            call, _result_text(part, calls.get(call_id)), is_error=part["error"] is not None
        )
        for call, (call_id, part) in zip(tool_calls, new_parts.items(), strict=True)
    ]
    return [*messages, Message.assistant(text, tool_calls), *results, _STOPPED_MESSAGE]


def _finished_ids(messages: Iterable[Message], run_id: str) -> set[str]:
    """Return the calls that are over, or may be, by their ids within their run."""
    return {
        own_id(run_id, call_id) for call_id, *_ in final_results(messages) if call_id is not None
    }


def _result_text(part: Json, record: ToolInvocationRecord | None) -> str:
    if record is not None and record.status == "completed":
        text = msgspec.json.encode(record.result).decode()
        return f"{text}\n{lost_parts(record)}" if record.parts else text
    if part["state"] == "unknown":
        return _UNKNOWN_RESULT
    error = part["error"] or {"code": "cancelled", "message": _NOT_BEGUN_RESULT}
    return f"{error['code']}: {error['message']}"
