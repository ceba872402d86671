"""The runs that this process carries, and the watchers of their threads.

Rule: a turn is stored before its run begins, and a call before it runs, so that a killed process
leaves nothing unrecorded; a durable run is followed again. Watchers get a snapshot and then
operations; one that falls behind gets another snapshot. A run continues whether or not anybody
watches. Its turn ends with it, as failed if its end cannot be stored. Before anything is done with
a thread, it is loaded here, which ends turns that nobody carries any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
from toolcrib.agent.history import call_ids, told
from toolcrib.chat.doors import ChatError, check_answer, too_many_runs
from toolcrib.chat.lasting import LastingRun, LastingRuns
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

_log = logging.getLogger("toolcrib.chat")
Carried: TypeAlias = RunStream | LastingRun
T = TypeVar("T")
_MOST_WAITING = 2_000  # operations that a watcher may be behind
_LOOK = 1.0  # seconds between looks at a thread whose run another process carries
_TRIES = 5
_KEPT_EVENTS = (ToolCallStarted, ApprovalRequested, ToolCallFinished)


def _no_thread() -> ChatError:
    return ChatError(404, "unknown_thread", "you have no such thread")


class CallKeeper:
    """A sink that stores each call of the runs carried here, before it begins and when it ends."""

    write_ahead = True

    def __init__(self, store: ThreadStore) -> None:
        self._store = store
        self._begun: dict[str, asyncio.Event] = {}
        self._turns: dict[str, str] = {}  # of runs that the store does not know yet

    async def begin(self, run_id: str, turn_id: str) -> None:
        """Let the calls of a run be stored; `turn_id` is its turn.

        Raises SourceError if that cannot be written to the turn; it is tried again before the first
        call.
        """
        self._turns[run_id] = turn_id
        self._event(run_id).set()
        await self._name(run_id)

    def over(self, run_id: str) -> None:
        self._begun.pop(run_id, None)
        self._turns.pop(run_id, None)

    async def write(self, record: ToolInvocationRecord) -> None:
        if record.parent_run_id:
            return  # made within an agent that is a tool: a turn shows the outer call
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEASE):
                await self._event(record.run_id).wait()
        await self.keep(record)

    async def keep(self, record: ToolInvocationRecord) -> None:
        """Store the latest record of a call, after its turn has been linked to its run."""
        await self._name(record.run_id)
        await self._store.keep_call(record)

    async def _name(self, run_id: str) -> None:
        if run_id in self._turns:
            await self._store.name_run(self._turns[run_id], run_id)
            self._turns.pop(run_id, None)

    def _event(self, run_id: str) -> asyncio.Event:
        return self._begun.setdefault(run_id, asyncio.Event())


class _Watcher:
    """Holds what one reader of a thread has not read yet; too much of it becomes a snapshot."""

    def __init__(self) -> None:
        self.waiting: list[Operation] = []
        self.behind = True  # it begins with a snapshot
        self.woken = asyncio.Event()

    def tell(self, operations: Sequence[Operation]) -> None:
        if not self.behind:
            self.waiting += operations
            if len(self.waiting) > _MOST_WAITING:
                self.behind = True
                self.waiting.clear()
        self.woken.set()


class _OpenThread:
    """A thread that somebody watches, or that runs here."""

    def __init__(self, stored: StoredThread) -> None:
        self.id = stored.id
        self.owner = stored.owner
        self.title = stored.title
        self.turns: list[Json] = [turn.view for turn in stored.turns]
        self.watchers: set[_Watcher] = set()
        self.shown: TurnView | None = None
        self.stream: Carried | None = None
        self.changes = 0  # reported so far: data read before the last one is outdated

    def snapshot(self) -> Json:
        turns = deepcopy(self.turns)
        if self.shown is not None:
            turns[self._place(self.shown.turn["id"])] = self.shown.snapshot()
        return {"thread": {"id": self.id, "title": self.title}, "turns": turns}

    def renew(self, stored: StoredThread) -> None:
        """Take over what the store has, because another process may have written it."""
        before = self.title, self.turns
        self.title, self.turns = stored.title, [turn.view for turn in stored.turns]
        if before != (self.title, self.turns):
            self.tell([{"type": "set", "path": [], "value": self.snapshot()}])

    def put(self, turn: Json) -> None:
        """Add a turn, or replace its view."""
        at = self._place(turn["id"])
        self.turns[at : at + 1] = [turn]
        self.tell([{"type": "set", "path": ["turns", str(at)], "value": deepcopy(turn)}])

    def change(self, turn_id: str, operations: Sequence[Operation]) -> None:
        place = ["turns", str(self._place(turn_id))]
        self.tell([{**o, "path": [*place, *o["path"]]} for o in operations])

    def tell(self, operations: Sequence[Operation]) -> None:
        self.changes += 1
        for watcher in self.watchers:
            watcher.tell(operations)

    def _place(self, turn_id: str) -> int:
        ids = [turn["id"] for turn in self.turns]
        return ids.index(turn_id) if turn_id in ids else len(ids)


class LiveThreads:
    """Runs an agent for the threads of a store, and tells the watchers.

    `agent` is one whose calls a `CallKeeper` of that store stores. Callers are `limited` if they
    may approve only some questions. With `lasting`, durable runs do the work.
    """

    def __init__(
        self,
        agent: Agent,
        store: ThreadStore,
        keeper: CallKeeper,
        *,
        limited: bool,
        lasting: LastingRuns | None = None,
    ) -> None:
        self._lasting = lasting
        self._beginning: set[str] = set()  # turns that are about to be followed here, or deleted
        self._places: list[tuple[str, str]] = []  # owner and thread of each requested run
        self._agent = agent
        self._limited = limited
        self._store = store
        self._keeper = keeper
        self._open: dict[str, _OpenThread] = {}
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
                shown = self._view(turn.view)
                await self._break_off(stored, turn, shown, "interrupted")
                changed = True
        return await self.load(thread_id, owner) if changed else stored

    async def snapshot(self, thread_id: str, owner: str) -> Json:
        """Return what a page shows of a thread. Raises ChatError."""
        return (await self._read(thread_id, owner)).snapshot()

    async def watch(self, thread_id: str, owner: str) -> AsyncGenerator[list[Operation], None]:
        """Yield a snapshot, then changes, until the reader has enough. Raises ChatError."""
        live = await self._read(thread_id, owner)
        self._open[thread_id] = live
        watcher = _Watcher()
        live.watchers.add(watcher)
        try:
            while True:
                watcher.woken.clear()
                waiting, watcher.waiting = watcher.waiting, []
                if watcher.behind:
                    watcher.behind = False
                    waiting = [{"type": "set", "path": [], "value": live.snapshot()}]
                if waiting:
                    yield waiting
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await watcher.woken.wait()
                if live.shown is None and not watcher.woken.is_set():
                    await self._read(thread_id, owner)
        finally:
            live.watchers.discard(watcher)
            self._close(live)

    async def ask(self, thread_id: str, caller: Caller, text: str, instead_of: str = "") -> str:
        """Begin a run of a thread with a question; return the id of its turn. Raises ChatError.

        `instead_of` is a turn whose question is asked again. That turn, and all after it, remain
        readable.
        """
        known = await self.load(thread_id, caller.id)  # ends a turn that nobody carries any more
        anew = await self._anew(known, instead_of) if instead_of else None
        turn = await _free(self._store.begin(thread_id, caller.id, text, anew))
        if turn is None:
            raise _no_thread()
        stored = await self.load(thread_id, caller.id)
        self._renamed(thread_id, stored.title)
        shown = self._view(turn.view)
        try:
            await self._start(stored, turn, shown, self._asking(turn.id, text, caller))
        except Exception as error:  # for example a conversation saved with another key
            if self._lasting is not None and await self._lasting.has_gone_on(turn):
                return turn.id  # not confirmed: it is followed when the thread is loaded
            note = str(error) if isinstance(error, ToolcribError) else "The run could not begin."
            shown.turn |= {"status": "failed", "note": note}
            await self._store.end(thread_id, turn, shown.snapshot())
            raise
        return turn.id

    async def answer(
        self,
        thread_id: str,
        caller: Caller,
        approval_id: str,
        answer: Answer,
        allowed: Callable[[ApprovalRequest], bool],
    ) -> str:
        """Answer a question of a run of the thread; return the id of its turn. Raises ChatError."""
        stored = await self.load(thread_id, caller.id)
        turn, state, request = _asked(stored, approval_id)
        answer = as_asked(answer, request)
        runner = self._agent.speaking_in(state).runner
        await check_answer(runner, state, request, answer, allowed)
        shown = self._view(turn.view)
        waiting = shown.snapshot()
        shown.answered(
            request.call_in(state.run_id), caller.id if isinstance(answer, Approve) else ""
        )
        self._beginning.add(turn.id)
        try:
            view = shown.snapshot()
            if not await _free(self._store.begin_again(thread_id, caller.id, turn, view)):
                raise ChatError(409, "already_answered", "this question was already answered")
            stored = await self.load(thread_id, caller.id)  # it may have moved on in the meantime
            try:
                start = self._answering(state, approval_id, answer)
                await self._start(stored, turn, shown, start)
            except Exception:
                await self._store.end(thread_id, turn, waiting, state=turn.state)
                raise
        finally:
            self._beginning.discard(turn.id)
        return turn.id

    async def cancel(self, thread_id: str, owner: str) -> None:
        """Stop what the thread runs. Raises ChatError if nothing runs here."""
        await self.load(thread_id, owner)
        live = self._open.get(thread_id)
        if live is None or live.stream is None:
            raise ChatError(
                409, "not_running", "no run is active in this thread, or it runs in another process"
            )
        await live.stream.cancel()

    @contextlib.contextmanager
    def place(self, thread_id: str, owner: str, most: int) -> Iterator[None]:
        """Count a run of a thread among its caller's while it is being requested.

        It counts from before anything is awaited until the run is carried here, or was not begun.
        Raises ChatError for more than `most`.
        """
        threads = {thread for by, thread in self._places if by == owner}
        threads |= {o.id for o in self._open.values() if o.owner == owner and o.stream is not None}
        if len(threads) >= most:
            raise too_many_runs()
        self._places.append((owner, thread_id))
        try:
            yield
        finally:
            self._places.remove((owner, thread_id))

    async def rename(self, thread_id: str, owner: str, title: str) -> None:
        """Give a thread another title. Raises ChatError."""
        await self.load(thread_id, owner)
        if not await self._store.rename(thread_id, owner, title):
            raise _no_thread()
        self._renamed(thread_id, title)

    async def delete(self, thread_id: str, owner: str) -> None:
        """Delete a thread, after cancelling the durable runs that wait in it.

        So none of them is left to be approved. Raises ChatError.
        """
        stored = await self.load(thread_id, owner)
        if "running" in {turn.status for turn in stored.turns}:
            raise _busy()
        waiting = {turn.id for turn in stored.turns if turn.status == "waiting"}
        self._beginning |= waiting
        try:
            for turn_id in waiting:
                if self._lasting is not None:
                    await self._lasting.cancel(turn_id)
            if not await _free(self._store.delete(thread_id, owner, waiting)):
                raise _no_thread()
        finally:
            self._beginning -= waiting

    def _renamed(self, thread_id: str, title: str) -> None:
        """Tell the watchers that a thread has another title."""
        live = self._open.get(thread_id)
        if live is not None and live.title != title:
            live.title = title
            live.tell([{"type": "set", "path": ["thread", "title"], "value": title}])

    async def aclose(self) -> None:
        """Cancel what runs here, and wait until each turn is stored as cancelled.

        A durable run is no longer followed.
        """
        for live in list(self._open.values()):
            if isinstance(live.stream, RunStream):
                with contextlib.suppress(ToolcribError):
                    await live.stream.cancel()
        for task in self._tasks if self._lasting is not None else ():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _asking(self, turn_id: str, text: str, caller: Caller) -> Callable[[Session], Carried]:
        lasting = self._lasting
        if lasting is None:
            return lambda session: session.stream(text, caller=caller)
        return lambda session: lasting.begun(session, turn_id, text, caller)

    def _answering(
        self, state: RunState, approval_id: str, answer: Answer
    ) -> Callable[[Session], Carried]:
        lasting = self._lasting
        if lasting is None:
            return lambda session: session.resume_stream(state, {approval_id: answer})
        return lambda session: lasting.answered(session, state, approval_id, answer)

    async def _is_followed(self, stored: StoredThread, turn: StoredTurn) -> bool:
        """Follow the durable run of a turn if nobody does here; return whether it is now followed.

        It was begun by a process that is gone, or was answered elsewhere.
        """
        lasting = self._lasting
        if lasting is None or self._is_carried(stored.id, turn.id):
            return False
        if not await lasting.has_gone_on(turn):
            return False
        shown = self._view(turn.view)
        if turn.status == "waiting":
            state = RunState.from_json(turn.state)
            for request in state.pending:
                shown.answered(request.call_in(state.run_id), "")
            view = shown.snapshot()
            try:
                if not await self._store.begin_again(stored.id, stored.owner, turn, view):
                    return False
            except BusyError:  # it is followed when the other run has ended
                return False
        else:
            was = turn.view
            fresh = new_turn(turn.id, was["asked"], at=was["at"], instead_of=was["instead_of"])
            shown = self._view(fresh)
        now = await self._store.load(stored.id, stored.owner)  # it may have moved on since
        if now is None or not now.runs(turn) or self._is_carried(stored.id, turn.id):
            return False
        await self._start(now, turn, shown, lambda session: lasting.followed(session, turn))
        return True

    async def _start(
        self,
        stored: StoredThread,
        turn: StoredTurn,
        shown: TurnView,
        start: Callable[[Session], Carried],
    ) -> None:
        session = self._session(stored)
        live = self._open.setdefault(stored.id, _OpenThread(stored))
        stream = start(session)
        live.shown, live.stream = shown, stream
        live.put(shown.snapshot())
        live.renew(stored)  # other processes may have run turns since the last look
        if isinstance(stream, LastingRun):
            try:
                await stream.begin()
            except BaseException:
                live.shown = live.stream = None
                self._close(live)
                raise
        task = asyncio.create_task(self._carry(live, turn, shown, session, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        live: _OpenThread,
        turn: StoredTurn,
        shown: TurnView,
        session: Session,
        stream: Carried,
    ) -> None:
        """Follow a run to its end, and store its view; the end is reported once it is stored."""
        lease = asyncio.create_task(self._hold(turn, shown, stream))
        try:
            try:
                result = await self._followed(live, turn, shown, stream)
                ended, changes = shown.ended(result)
                await self._end(live, turn, ended, session, result)
            except Exception as error:  # noqa: BLE001  whatever it is, the turn ends
                if isinstance(stream, LastingRun) and isinstance(error, UnreachableError):
                    _log.warning(
                        "the database is not available, so a run is not followed for now: %s", error
                    )
                else:
                    _log.exception(
                        "the end of a turn could not be saved: the turn is saved as failed"
                    )
                    shown = await self._failed(live, turn, shown, stream)
            else:
                shown = ended
                if live.stream is stream:
                    live.change(shown.turn["id"], changes)
        finally:
            lease.cancel()
            if live.stream is stream:
                live.shown = live.stream = None
                live.put(shown.snapshot())
            if not self._is_carried(live.id, turn.id):  # otherwise it was answered, and continues
                self._keeper.over(shown.turn["run_id"])
            self._close(live)

    async def _followed(
        self, live: _OpenThread, turn: StoredTurn, shown: TurnView, stream: Carried
    ) -> RunResult:
        """Show a run as it progresses, and return its result."""
        result: RunResult | None = None
        async for event in stream:
            if isinstance(event, Done):
                result = event.result
                break
            live.change(shown.turn["id"], shown.take(event))
            await self._keep(turn, shown, event)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await stream.result()
        if result is None:
            raise ToolcribError("the run has ended without a result")
        return result

    async def _failed(
        self, live: _OpenThread, turn: StoredTurn, shown: TurnView, stream: Carried
    ) -> TurnView:
        """End a turn whose end could not be stored, with what is known of its calls.

        No call continues.
        """
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await stream.cancel()
        try:
            stored = await self._store.load(live.id, live.owner)
            if stored is not None:
                return await self._break_off(stored, turn, shown, "failed")
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("a turn could not be saved as failed: it ends when its lease expires")
        return self._bare(shown, "failed")

    async def _keep(self, turn: StoredTurn, shown: TurnView, event: Event) -> None:
        """Store what a restart needs to know.

        A failure is logged: the sink lets no call run that it cannot store.
        """
        try:
            if isinstance(event, RunStarted):
                await self._keeper.begin(event.run_id, turn.id)
            if self._lasting is not None and isinstance(event, ToolCallFinished):
                await self._keeper.keep(event.record)  # its worker may be another process
            if isinstance(event, _KEPT_EVENTS):
                await self._store.show(turn, shown.snapshot())
        except SourceError as error:
            _log.warning("a turn could not be saved: %s", error)

    async def _hold(self, turn: StoredTurn, shown: TurnView, stream: Carried) -> None:
        """Renew the run's lease repeatedly; cancel the run if somebody has ended its turn.

        A durable run is not cancelled, because others follow it, too.
        """
        while True:
            await asyncio.sleep(LEASE / 3)
            try:
                if not await self._store.show(turn, shown.snapshot()):
                    if isinstance(stream, RunStream):
                        await stream.cancel()
                    return
            except SourceError as error:
                _log.warning("the lease of a run could not be renewed: %s", error)

    async def _end(
        self,
        live: _OpenThread,
        turn: StoredTurn,
        shown: TurnView,
        session: Session,
        result: RunResult,
    ) -> None:
        """Store how the run ended, and the conversation, retrying while the database is away."""
        state, said = result.state.to_json(), session.to_json()
        for tried in range(_TRIES):
            view = shown.snapshot()
            try:
                kept = await self._store.end(live.id, turn, view, state=state, session=said)
            except SourceError as error:
                _log.warning("the end of a turn could not be saved: %s", error)
                await asyncio.sleep(2**tried / 10)
                continue
            if not kept and self._lasting is None:
                _log.warning("another process has ended or continued a turn in the meantime")
            return

    async def _anew(self, stored: StoredThread, turn_id: str) -> AskedAnew:
        """Return the conversation as it was before a turn, and what ran since. Raises ChatError."""
        if turn_id not in {turn.id for turn in stored.turns}:
            raise _unknown_turn()
        statuses = {turn.status for turn in stored.turns}
        if "running" in statuses:
            raise _busy()
        line = [turn["id"] for turn in line_of(turn.view for turn in stored.turns)]
        if turn_id not in line:
            raise _unknown_turn()
        if "waiting" in statuses:
            raise ChatError(409, "waiting", "a call waits for an answer: approve or deny it first")
        before = await self._store.before(turn_id)
        if before is None:
            raise ChatError(
                409,
                "unknown_before",
                "this question was asked in an older version of the conversation: ask at its end",
            )
        calls = {turn.id: await self._store.calls(turn.run_id) for turn in stored.turns}
        heard = any(message.untrusted for message in self._session(stored).messages)
        tainted = heard or any(map(self._read_others, calls.values()))
        session = self._session(msgspec.structs.replace(stored, session=before))
        stays = line[: line.index(turn_id)]
        done = [
            self._done(part, calls[turn.id].get(call_id))
            for turn in _since(stored.turns, turn_id, stays)
            for call_id, part in calls_of(turn.view).items()
            if turn.id not in stays
            or call_id not in _over(session.said_in(turn.run_id), turn.run_id)
        ]
        made = [each for each in done if each]
        if made or tainted:
            said = Message.user("\n".join((_ANEW, *((_DONE, *made) if made else ()))))
            said = msgspec.structs.replace(said, untrusted=tainted)
            session.messages = (*session.messages, said)
        return AskedAnew(turn_id, before, session.to_json(), len(stored.turns))

    def _done(self, part: Json, record: ToolInvocationRecord | None) -> str:
        """Describe the end of a call that the conversation no longer has.

        The model must not make it again. Empty for a call that has not begun, or only read.
        """
        definitions = self._definitions(part["name"], record)
        reads = bool(definitions) and all(each.annotations.read_only for each in definitions)
        begun = part["state"] in _BEGUN and (record is None or has_begun(record))
        if reads or not begun:
            return ""
        return f"{part['name']} {canonical_json(part['arguments'] or {})}: {_BEGUN[part['state']]}"

    def _read_others(self, calls: Mapping[str, ToolInvocationRecord]) -> bool:
        """Return whether a call has begun that may have read untrusted content.

        True if nobody here knows the tool, because nobody can say what it has read.
        """
        begun = [record for record in calls.values() if has_begun(record)]
        definitions = [self._definitions(record.name, record) for record in begun]
        return any(READ_UNTRUSTED in record.notes for record in begun) or any(
            not known or any(each.annotations.untrusted_output for each in known)
            for known in definitions
        )

    def _definitions(
        self, name: str, record: ToolInvocationRecord | None
    ) -> tuple[ToolDefinition, ...]:
        """Return the definitions of the tools that a call may belong to."""
        origin = None if record is None else record.origin
        return self._agent.team.definitions(name, "" if origin is None else origin.agent)

    async def _read(self, thread_id: str, owner: str) -> _OpenThread:
        """Return a thread with what other processes have written.

        A thread that runs here, or has changed here in the meantime, is newer than what was read.
        Raises ChatError.
        """
        live = self._open.get(thread_id)
        changes = 0 if live is None else live.changes
        stored = await self.load(thread_id, owner)
        now = self._open.get(thread_id)
        if now is None:
            return _OpenThread(stored)
        if now is live and now.shown is None and now.changes == changes:
            now.renew(stored)
        return now

    def _close(self, live: _OpenThread) -> None:
        if not live.watchers and live.shown is None:
            self._open.pop(live.id, None)

    def _is_carried(self, thread_id: str, turn_id: str) -> bool:
        live = self._open.get(thread_id)
        shown = None if live is None else live.shown
        return turn_id in self._beginning or (shown is not None and shown.turn["id"] == turn_id)

    async def _break_off(
        self, stored: StoredThread, turn: StoredTurn, shown: TurnView, status: BrokenOff
    ) -> TurnView:
        """End a turn that nobody carries on; the conversation keeps what is known of it.

        What cannot be stored is left out: the calls have their records all the same.
        """
        run_id = shown.turn["run_id"] or turn.run_id  # its view may not have been stored
        shown.turn["run_id"] = run_id
        calls = await self._store.calls(run_id) if run_id else {}
        try:
            shown.break_off(calls, status)
            msgspec.json.encode(shown.snapshot())
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("the shown state of a turn could not be saved")
            shown = self._bare(shown, status)
        said: str | None = None
        try:
            session = self._session(stored)
            more = _told_of(shown.turn, calls, session.said_in(run_id))
            if self._read_others(calls):
                more = [msgspec.structs.replace(message, untrusted=True) for message in more]
            session.messages = (*session.messages, *more)
            said = session.to_json()
        except Exception:  # noqa: BLE001  whatever it is, the turn ends
            _log.exception("a turn could not be added to the conversation")
        await self._store.end(stored.id, turn, shown.snapshot(), session=said)
        return shown

    def _bare(self, shown: TurnView, status: BrokenOff) -> TurnView:
        """Return the view of a turn that was broken off, without what happened in it."""
        turn = shown.turn
        bare = self._view(new_turn(turn["id"], turn["asked"], at=turn["at"]))
        bare.break_off({}, status)
        return bare

    def _view(self, turn: Json) -> TurnView:
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


async def _free(work: Awaitable[T]) -> T:
    """Await work that needs the thread for itself. Raises ChatError if the thread is busy."""
    try:
        return await work
    except BusyError as error:
        raise ChatError(409, "busy", str(error)) from None


def _busy() -> ChatError:
    return ChatError(409, "busy", BUSY)


def _asked(stored: StoredThread, approval_id: str) -> tuple[StoredTurn, RunState, ApprovalRequest]:
    """Find an open question of the thread. Raises ChatError."""
    used = False
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
        used = used or any(record.approval_id == approval_id for record in state.records)
        used = used or any(request.id == approval_id for request in state.pending)
    if used:
        raise ChatError(409, "already_answered", "this question was already answered")
    raise ChatError(404, "unknown_approval", "this thread has no such question")


def _is_open(turn: StoredTurn, request: ApprovalRequest) -> bool:
    """Return whether a turn that runs again has left a question for later."""
    part = calls_of(turn.view).get(request.call_in(turn.run_id))
    return part is not None and part["state"] == "waiting"


_UNKNOWN = (
    "The run was interrupted during this call, so its outcome is unknown. Do not make it "
    "again unless the user asks for it."
)
_STOPPED = Message.assistant("[the run was interrupted]")


def _since(turns: Sequence[StoredTurn], turn_id: str, stays: Collection[str]) -> list[StoredTurn]:
    """Return turns whose calls may be missing from a conversation that continues before a turn.

    These are the turns since it was first asked, and of the earlier ones those that it builds on.
    """
    places = {turn.id: at for at, turn in enumerate(turns)}
    first = places[turn_id]
    while (earlier := turns[first].view.get("instead_of")) in places:
        first = places[earlier]
    return [turn for at, turn in enumerate(turns) if at >= first or turn.id in stays]


_ANEW = "[The following was asked earlier in other words.]"
_DONE = "[These calls were already made; do not make them again unless the user asks for it.]"
_BEGUN = {
    "completed": "it has run",
    "failed": "it failed",
    "cancelled": "it was stopped",
    "unknown": "its outcome is unknown",
}
_NOT_BEGUN = "The run was interrupted before this call began, so it has not run."


def _unknown_turn() -> ChatError:
    return ChatError(404, "unknown_turn", "no question of this conversation has that id")


def _told_of(
    turn: Json, calls: Mapping[str, ToolInvocationRecord], before: Sequence[Message]
) -> list[Message]:
    """Return what the conversation says about a run that was cut off.

    Without it, a call might be made again because nobody remembers it. `before` is what the
    conversation already has of that run.
    """
    run_id, shown = turn["run_id"], calls_of(turn)
    known = {own_id(run_id, call_id) for call_id in call_ids(before)}
    made = {
        call_id: part
        for call_id, part in shown.items()
        if call_id not in known and part["arguments"] is not None  # otherwise nothing was asked
    }
    messages = [] if known & shown.keys() else [Message.user(turn["asked"])]
    waited = known - _over(before, run_id)
    late = [f"{p['name']}: {_result(p, calls.get(c))}" for c, p in shown.items() if c in waited]
    if late:
        messages.append(
            Message.user("[the outcomes of the calls that were waiting]\n" + "\n".join(late))
        )
    text = "".join(part["text"] for part in turn["parts"] if part["kind"] == "text")
    asked = tuple(  # ids that no other run's calls have
        ToolCall(part["id"], part["name"], canonical_json(part["arguments"]))
        for part in made.values()
    )
    if not asked:
        return [*messages, Message.assistant(text) if text else _STOPPED]
    results = [
        Message.tool(call, _result(part, calls.get(call_id)), is_error=part["error"] is not None)
        for call, (call_id, part) in zip(asked, made.items(), strict=True)
    ]
    return [*messages, Message.assistant(text, asked), *results, _STOPPED]


def _over(messages: Iterable[Message], run_id: str) -> set[str]:
    """Return the calls that are over, or may be, by their ids within their run."""
    return {own_id(run_id, call_id) for call_id, *_ in told(messages) if call_id is not None}


def _result(part: Json, record: ToolInvocationRecord | None) -> str:
    if record is not None and record.status == "completed":
        text = msgspec.json.encode(record.result).decode()
        return f"{text}\n{lost_parts(record)}" if record.parts else text
    if part["state"] == "unknown":
        return _UNKNOWN
    error = part["error"] or {"code": "cancelled", "message": _NOT_BEGUN}
    return f"{error['code']}: {error['message']}"
