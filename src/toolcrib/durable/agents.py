"""Runs that outlive their process: `DurableAgents` begins them, answers them, and executes them.

Rule: beginning, asking and answering only write to the store, and any process may do them; a worker
carries out what is written there. A waiting run is a row: it holds no worker and no place in the
queue.

Rule: nothing from the store is used unless it was signed with the agent's key: states, stored
steps, and what people were shown before they answered. Answers are not signed, because the people
who may answer have no key.
"""

from __future__ import annotations

import asyncio
import os
import time
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
from typing import Any, Self, TypeVar, Unpack

import msgspec

from toolcrib.agent import Agent
from toolcrib.agent.fork import ForkPoint
from toolcrib.agent.history import is_cut_short, last_text, split_system
from toolcrib.agent.inner import inner_run_id
from toolcrib.agent.speaker import check_given
from toolcrib.agent.stream import Listener
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditEntry, AuditFilter, AuditLog
from toolcrib.closing import Closing, close_all
from toolcrib.durable.engine import (
    UNAVAILABLE,
    DurableSteps,
    Engine,
    Ownership,
    Segment,
    StoredStep,
    block_forever,
    finish,
    is_stop_of_worker,
    run_with_retries,
)
from toolcrib.durable.store import (
    STATUSES,
    UNDER_WAY,
    Place,
    RunStore,
    SegmentEnd,
    Sign,
    StoredRun,
    StoredStatus,
    check_storable,
    request_text,
)
from toolcrib.errors import ErrorCode, SourceError, ToolcribError, no_such
from toolcrib.failures import SafeLogger
from toolcrib.processes import has_ended, this_process
from toolcrib.storage import UnreachableError, storable
from toolcrib.values.content import Prompt
from toolcrib.values.decision import ANONYMOUS, Answer, ApprovalRequest, Caller
from toolcrib.values.message import Message
from toolcrib.values.record import (
    Attachment,
    CallError,
    Ledger,
    SpentWithin,
    ToolInvocationRecord,
    has_begun,
)
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    HandedOver,
    Repeat,
    ReplyFinished,
    RunOptions,
    RunRecord,
    RunResult,
    RunState,
    TextDelta,
    ToolCallFinished,
    check_signature,
)
from toolcrib.values.step import ReplyStep
from toolcrib.values.typed import (
    check_type,
    explains_wrong_types,
    got_type,
    names_parameters,
    names_wrong_types,
)

T = TypeVar("T")
_LOOK_SECONDS = 0.2  # seconds between two looks at the store
_BEAT = 2.0  # seconds between two heartbeats of a worker
_LEAST_LEASE = 3 * _BEAT
LEASE = 30.0
"""Seconds after which a silent worker counts as dead, if its process cannot be seen."""
GRACE = 30.0
"""Seconds in which the steps under way may end when a worker stops."""
_RESUMABLE = ("waiting", "failed", "limited", "cancelled")
RESOLVED = "resolved"
"""The note on a call whose outcome was unknown until somebody stated it."""
_NO_REASON = (
    "a worker could not read it, perhaps because of a different state_key. See the log of "
    "the worker, then resume the run"
)
_log = SafeLogger("toolcrib.durable")


class DurableAgents(Closing):
    """Agents with stored runs: `DurableAgents("sqlite:///runs.db", {"shop": agent})`.

    `async with` executes the runs in this process, at most `slots` at a time, along with other
    processes that work on the same database. Without it, runs are only begun, watched and answered.
    Each agent needs a `state_key`, the same in all processes. An agent whose runner has no ledger
    gets a log in the same database, and one without an approver gets one that lets calls wait.
    `deps` returns the capabilities of a run (`Agent.run(deps=…)`) whenever a worker continues it. A
    worker that was silent for `lease` seconds, but at least for 6, counts as dead.

    Raises ToolcribError for an agent without a key, and MissingExtraError without DBOS.
    `async with` raises BindingError, without `deps`, for an agent with capabilities that each run
    has to be given, and for one that hands over to such an agent; ToolcribError if
    these are working already, or are stopped meanwhile.
    """

    @names_parameters
    def __init__(
        self,
        url: str,
        agents: Mapping[str, Agent],
        *,
        slots: int = 8,
        lease: float = LEASE,
        deps: Callable[[StoredRun], Mapping[Any, object]] | None = None,
    ) -> None:
        check_type("url", url, str, 'a str, such as "sqlite:///runs.db"')
        check_type("agents", agents, Mapping, "a dict of agents by name")
        for name, agent in agents.items():
            check_type(f"agents[{name!r}]", agent, Agent, "an Agent")
            check_storable("the name of an agent", name)
            if not agent.signs:
                raise ToolcribError(
                    f"agent '{name}' needs a state_key, because its saved runs are signed"
                )
        check_type("slots", slots, int, "a whole number from 1")
        check_type("lease", lease, (int, float), "a number of seconds above 0")
        if deps is not None and not callable(deps):
            raise TypeError(f"deps must be a function of a StoredRun; {got_type(deps)}")
        if slots < 1 or not lease > 0:
            raise ToolcribError("slots= must be at least 1, and lease= a number of seconds above 0")
        self._worker = ""  # from `async with` until it has stopped; a new one each time
        self._store = RunStore(url)
        self._engine = Engine(url, slots, agents)
        self._slots = slots
        self._steps = DurableSteps()
        self._log = _PatientLog(url, self._steps)
        self._agents = {name: self._durable(agent) for name, agent in agents.items()}
        self._lease = lease
        self._deps = deps
        self._serving: asyncio.Task[None] | None = None
        self._segments: set[Segment] = set()  # being done here

    def _durable(self, agent: Agent) -> Agent:
        runner = agent.runner
        if runner.ledger is None:
            runner = runner.with_sinks(self._log)
        if runner.approver is None:
            runner = runner.with_approver(answer_later)
        return agent.replace(tools=runner, durability=self._steps)

    # For any process.

    @explains_wrong_types
    async def start(
        self,
        agent: str,
        prompt: Prompt,
        *,
        caller: Caller = ANONYMOUS,
        history: Sequence[Message] = (),
        run_id: str | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> str:
        """Begin a run, and return its id at once; a worker does the rest.

        `options` and `speaker` are as in `Agent.run`. With a `run_id` the run is begun once,
        however often it is asked for. Raises ToolcribError for an agent that is not here, and for
        the id of another run: of another agent, speaker, prompt, history or caller, or with other
        options.
        """
        state = self._agent(agent).prepare(
            prompt, history=history, caller=caller, run_id=run_id, speaker=speaker, **options
        )
        if not await self._store.add(StoredRun.new(agent, state, self._sign(agent))):
            existing = await self._store.run(state.run_id)
            stored = existing.last
            self._check(existing, stored)
            _check_same(existing, stored, agent, state)
        return state.run_id

    @explains_wrong_types
    async def fork(
        self,
        run_id: str,
        *,
        turn: int,
        prompt: Prompt | None = None,
        reopen: bool = False,
        repeat: Repeat = "deny",
        agent: str = "",
        fork_id: str | None = None,
    ) -> str:
        """Begin a run that continues from an earlier turn of another one; return its id at once.

        A worker does the rest, and the first run does not change. What the fork keeps, and what
        applies to later effects of the first run, is as in `Agent.fork`. This includes calls that
        only the log knows to have begun, because their process was killed. `agent` names another
        agent with the same `state_key`, for example with another model. With a `fork_id` the fork
        is begun once, however often it is asked for.

        Raises ToolcribError for a run that is under way (await its `result`), or ended without
        saying what it did (`resume` it first), for an invalid fork, and for the id of another run
        or fork. Raises SourceError for a run that was changed.
        """
        point = ForkPoint.of(turn, prompt, reopen=reopen, repeat=repeat, fork_id=fork_id)
        run = await self._store.run(run_id)
        name = agent or run.agent
        forking_agent = self._agent(name)
        if fork_id and fork_id != run_id and await self._is_forked(run_id, name, point):
            return fork_id
        last = self._last(run)
        if not run.is_whole:
            problem = "is not finished: wait for it, or cancel it"
            if run.status not in UNDER_WAY:
                problem = (
                    f"is {run.status}, and its saved state does not hold all that it did: resume "
                    "it first"
                )
            raise ToolcribError(f"run {run_id} cannot be forked: it {problem}")
        state = forking_agent.team.forked_state(last, point, await self._begun_calls(run))
        if not await self._store.add(StoredRun.new(name, state, self._sign(name))):
            await self._is_forked(run_id, name, point)  # somebody else was first
        return state.run_id

    async def _begun_calls(self, run: StoredRun) -> list[ToolInvocationRecord]:
        """Return the calls of a run that began according to its log."""
        ledger = self._ledger(run)
        if not isinstance(ledger, AuditLog):
            records = [await ledger.find(each) for each in run.last.records]
            return [each for each in records if each is not None and has_begun(each)]
        entries = await ledger.entries(AuditFilter(run_id=run.id))
        begun = {each.record.id: each.record for each in entries if has_begun(each.record)}
        return list(begun.values())

    async def _is_forked(self, run_id: str, agent: str, point: ForkPoint) -> bool:
        """Return whether this fork of a run exists. Raises ToolcribError for another run's id."""
        run = await self._store.find(point.fork_id or "")
        if run is None:
            return False
        fork = self._last(run).fork
        origin = None if fork is None else (fork.run_id, fork.asked)
        if (run.agent, origin) != (agent, (run_id, point.digest)):
            reason = "it was forked from another run or agent, or with other options"
            raise ToolcribError(f"fork_id= {point.fork_id!r} is the id of another run: {reason}")
        return True

    @names_wrong_types
    async def result(self, run_id: str) -> RunResult:
        """Return how a run ended, or that it waits, as soon as it does.

        Raises ToolcribError for an unknown run, and for one that failed, with the reason. Raises
        SourceError for one that was changed, if its agent is here.
        """
        while (await self._store.place(run_id)).under_way:  # noqa: ASYNC110  others write it
            await asyncio.sleep(_LOOK_SECONDS)
        run = await self._store.run(run_id)
        if run.status in UNDER_WAY:  # somebody has answered in the meantime
            return await self.result(run_id)
        if run.status == "failed":
            self._last(run)
            raise ToolcribError(f"run {run_id} failed: {run.reason or _NO_REASON}")
        return await self._result(run)

    @names_wrong_types
    async def events(self, run_id: str) -> AsyncIterator[Event]:
        """Yield what happened in a run, then what happens, each event once, until it ends or waits.

        The events are texts, the ends of replies and calls, questions, and `Done` last. Raises
        ToolcribError for an unknown run, SourceError for one that was changed, if its agent is
        here.
        """
        self._checked(await self._store.run(run_id))
        seen: set[object] = set()
        reported_up_to = 0  # steps of the first segment up to here were all reported
        first_segment = 0
        run: StoredRun | None = None
        handovers: list[HandedOver] = []
        while run is None:
            place = await self._store.place(run_id)
            for segment in range(first_segment, place.segment + (place.status != "queued")):
                skipped = reported_up_to if segment == first_segment else 0
                for step in await self._steps_of(place.agent, run_id, segment, skipped):
                    if step.at == reported_up_to + 1 and segment == first_segment:
                        reported_up_to = step.at  # calls end in any order
                    # the segment after a cancelled one replays the same steps
                    key = (step.at, step.result.segment)
                    if key not in seen:
                        seen.add(key)
                        for event in _events_of(
                            step, seen, handovers, self._agents.get(place.agent)
                        ):
                            yield event
            reported_up_to = reported_up_to if first_segment == place.segment else 0
            first_segment = place.segment
            if place.under_way:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                run = await self._run_at(run_id, place)
        result = await self._result(run)
        for record in result.records:
            if record.id not in seen:  # a call that was cut off ends with its run
                yield ToolCallFinished(record)
        yield Done(result)

    async def _run_at(self, run_id: str, place: Place) -> StoredRun | None:
        """Return a run, unless it has moved on since it was there."""
        run = await self._store.run(run_id)
        return run if (run.segment, run.status) == (place.segment, place.status) else None

    async def _steps_of(
        self, agent: str, run_id: str, segment: int, skipped: int
    ) -> Sequence[StoredStep]:
        """Return the stored steps of a segment except the first `skipped`.

        Raises SourceError for one that was changed, if its agent is here.
        """
        steps = await self._engine.steps(run_id, segment, skipped)
        for step in steps if agent in self._agents else ():
            step.check(self._sign(agent), run_id)
        return steps

    async def pending(self) -> Sequence[ApprovalRequest]:
        """Return the unanswered questions of all runs, in the order in which they expire.

        Raises SourceError for one that was changed, if its agent is here.
        """
        questions = await self._store.pending()
        for each in questions:
            if each.agent in self._agents:
                signature = self._question_signature(each.agent, each.run_id, each.request)
                check_signature(each.signature, signature, f"question {each.request.id}")
        return [each.request for each in questions]

    @explains_wrong_types
    async def answer(self, request_id: str, answer: Answer) -> str:
        """Answer a question for good, so that its run continues. Return the id of the run.

        Raises ApprovalError if the question is unknown (`unknown_approval`), answered
        (`already_used`) or expired (`approval_expired`), or if the answer cannot be stored.
        """
        return await self._store.answer(request_id, answer)

    @explains_wrong_types
    async def list(self, status: StoredStatus | None = None) -> Sequence[StoredRun]:
        """Return the runs, all or those of one status, oldest first.

        Raises SourceError for one that was changed, if its agent is here, and ToolcribError for an
        unknown status.
        """
        if status is not None and status not in STATUSES:
            raise ToolcribError(no_such("status", status, STATUSES))
        runs = await self._store.runs(STATUSES if status is None else (status,))
        return [self._checked(run) for run in runs]

    @names_wrong_types
    async def show(self, run_id: str) -> StoredRun:
        """Return a run.

        Raises ToolcribError for an unknown id, SourceError for a run that was changed, if its agent
        is here.
        """
        return self._checked(await self._store.run(run_id))

    @names_wrong_types
    async def cancel(self, run_id: str) -> None:
        """Cancel a run, wherever it is: no further step begins, and a call in progress is cut off.

        Raises ToolcribError if the run is unknown or over.
        """
        if not await self._store.cancel(run_id):
            run = await self._store.run(run_id)
            raise ToolcribError(f"run {run_id} is over: it is {run.status}")

    @names_wrong_types
    async def resume(self, run_id: str) -> None:
        """Let a run continue that failed, waits, was cancelled or reached a limit.

        A cancelled run continues where it was, as after a crash, once its worker has stopped.
        Raises ToolcribError for a run that is over or under way, or whose worker does not stop, and
        SourceError for one that was changed, if its agent is here.
        """
        deadline = time.monotonic() + self._lease + _BEAT
        while (place := await self._store.place(run_id)).under_way and place.status == "cancelled":
            if time.monotonic() > deadline:
                raise ToolcribError(
                    f"run {run_id} cannot be resumed yet: its worker may still be running it"
                )
            await asyncio.sleep(_LOOK_SECONDS)
        run = await self.show(run_id)
        if run.status not in _RESUMABLE or not await self._store.requeue(run):
            raise ToolcribError(f"run {run_id} cannot be resumed: it is {run.status}")

    @names_wrong_types
    async def unknown_calls(self, run_id: str) -> Sequence[ToolInvocationRecord]:
        """Return the calls of a run whose outcome is unknown, also those within agents as tools.

        They are taken from the agent's log, if it is an AuditLog. Calls that a worker is executing
        are not included.
        """
        run = await self._store.run(run_id)
        is_under_way = (await self._store.place(run_id)).under_way
        ledger = self._ledger(run)
        records: Iterable[ToolInvocationRecord]
        if isinstance(ledger, AuditLog):
            records = await _calls(ledger, run_id)
        else:
            records = await self._records(run, self._last(run))
        unknown = [each for each in records if _is_unknown(each)]
        current = [await ledger.find(each) or each for each in unknown]
        return [each for each in current if _is_unknown(each, is_under_way=is_under_way)]

    @names_wrong_types
    async def resolve(self, run_id: str, call_id: str, *, happened: bool, by: str) -> None:
        """Record a person's statement that a call of unknown outcome was done, or was not.

        `call_id` is the `id` of a record that `unknown_calls` returns. Raises ToolcribError if
        there is no such call, SourceError if it cannot be written.
        """
        calls: dict[str, ToolInvocationRecord] = {}
        for record in await self.unknown_calls(run_id):
            calls.setdefault(record.id, record)
        if not by.strip():
            raise ToolcribError("by= is empty: name the person who says so")
        if call_id not in calls:
            names = ", ".join(calls) or "none"
            raise ToolcribError(
                f"run {run_id} has no call {call_id!r} with an unknown outcome; calls with an "
                f"unknown outcome: {names}"
            )
        call, now = calls[call_id], time.time()
        statement = "It was done" if happened else "It was not done"
        resolved = msgspec.structs.replace(
            call,
            status="completed" if happened else "failed",
            error=None
            if happened
            else CallError.of(ErrorCode.CANCELLED, f"{statement}, according to {by}."),
            notes=(*call.notes, RESOLVED),
            approved_by=by,
            ended_at=now,
        )
        writing = self._ledger(await self._store.run(run_id)).write(resolved)
        recorded = None if writing is None else await writing
        if recorded is not None and recorded != resolved:
            raise ToolcribError(
                f"call {call_id} has ended in the meantime: it is {recorded.status}"
            )

    # For a worker.

    async def __aenter__(self) -> Self:
        for name, agent in self._agents.items() if self._deps is None else ():
            for each in agent.team.members.values():
                who = f"agent '{name if each.name == agent.name else each.name}'"
                check_given(each.missing, "give deps=", who)
        if self._worker:
            raise ToolcribError(
                "these durable agents are already working: use `async with` once at a time"
            )
        self._steps.stops = False
        self._worker = worker = f"worker_{os.urandom(8).hex()}"
        try:
            await self._store.open()
            await self._store.beat(worker, this_process())
            work = partial(self._work, worker, asyncio.Semaphore(self._slots))
            await self._engine.open(work, worker)
        except BaseException:
            try:
                await finish(self._close())
            finally:
                self._worker = ""
            raise
        self._serving = asyncio.create_task(self._serve())
        if self._steps.stops:  # else it would take runs, and hold them
            await self.aclose()
            raise ToolcribError("these durable agents were stopped before they began to work")
        return self

    @names_wrong_types
    async def stop(self, grace: float = GRACE) -> bool:
        """Stop working: no step begins, and steps under way may end within `grace` seconds.

        Return whether all of them have. Others continue the runs, and treat a call that was cut off
        as one whose outcome is unknown. If already stopped, this waits for nothing. If it is
        cancelled, it stops at once, and whole.
        """
        self._steps.stops = True
        deadline = time.monotonic() + (0 if self._serving is None else grace)
        try:
            while self._active and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        finally:
            all_ended = not self._active
            for segment in self._segments:
                segment.leave()
            self._segments.clear()
            if self._serving is not None:
                await finish(self._retire(self._serving))
        return all_ended

    async def _retire(self, serving: asyncio.Task[None]) -> None:
        worker = self._worker
        serving.cancel()
        await asyncio.wait([serving])
        self._serving = None
        try:
            await self._engine.aclose()
            await self._store.retire(worker)
        except UnreachableError as error:  # others notice when its lease has expired
            _log.warning(UNAVAILABLE, error)
        finally:
            self._worker = ""

    @property
    def _active(self) -> int:
        """How many steps of runs are under way here."""
        return sum(segment.active for segment in self._segments)

    async def aclose(self) -> None:
        """Stop working, if this process does, and close what is open, even if it is cancelled."""
        try:
            await self.stop()
        finally:
            await finish(self._close())

    async def _close(self) -> None:
        await close_all(self._store, self._log, self._engine)  # the engine first

    async def _serve(self) -> None:
        beat = 0.0
        while True:
            try:
                for agent, run_id, segment in await self._store.queued(self._agents):
                    await self._engine.enqueue(agent, run_id, segment)
                    await self._store.mark_enqueued(run_id, segment, self._worker)
                await self._stop_cancelled()
                if time.monotonic() - beat >= _BEAT:
                    beat = time.monotonic()
                    await self._look_after_others()
            except Exception as error:  # noqa: BLE001  the database may be back soon
                _log.warning(UNAVAILABLE, error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look_after_others(self) -> None:
        await self._store.beat(self._worker, this_process())
        await self._store.queue_expired()
        lease = max(self._lease, _LEAST_LEASE)
        owners = await self._engine.owners()
        dead = await self._store.dead(self._worker, lease, has_ended, owners)
        if dead:
            await self._engine.recover(dead)
        for worker in dead:
            await self._store.leave(worker)

    async def _stop_cancelled(self) -> None:
        segments = list(self._segments)
        if segments:
            ownerships = await self._store.ownerships({each.fence: each.key for each in segments})
            for segment in self._segments.intersection(segments):  # those that have not ended since
                if not (segment.unreplayed and self._steps.stops):  # others take up what is left
                    segment.end(ownerships[segment.fence])

    async def _work(self, worker: str, slots: asyncio.Semaphore, run_id: str, number: int) -> bool:
        async with slots:
            return await self._run_segment(worker, run_id, number)

    async def _run_segment(self, worker: str, run_id: str, number: int) -> bool:
        """Return whether nobody has to continue the segment."""
        fence = f"{worker}:{os.urandom(8).hex()}"

        async def begin() -> tuple[bool, StoredRun | None]:
            await self._wait_if_stopped(worker)
            owns = await self._engine.owns(run_id, number)
            return owns, await self._store.begin(run_id, number, fence) if owns else None

        owns, run = await run_with_retries(begin)
        await self._wait_if_stopped(worker)
        if run is None:
            return owns
        segment = self._segment(run, fence)
        self._steps.enter(segment)
        self._segments.add(segment)
        try:
            end = await self._execute(run, segment)
            after = run.after(end, self._sign(run.agent))
            if await run_with_retries(partial(self._store.end, after, fence, end)):
                return True
        except asyncio.CancelledError:
            if not segment.cut:
                raise
        finally:
            self._segments.discard(segment)
        if segment.stop_reason == "lost":
            return False
        return await run_with_retries(partial(self._store.stopped, run, fence, segment.state))

    async def _wait_if_stopped(self, worker: str) -> None:
        """Block if this worker has stopped, even if the process works again as another worker."""
        if self._steps.stops or worker != self._worker:
            await block_forever()

    def _segment(self, run: StoredRun, fence: str) -> Segment:
        key = (run.id, run.segment)

        async def look() -> Ownership:
            ownerships = await run_with_retries(partial(self._store.ownerships, {fence: key}))
            return ownerships[fence]

        return Segment(key, fence, run.began, self._sign(run.agent), look)

    async def _stored_steps(self, run: StoredRun, segments: Iterable[int]) -> dict[int, StoredStep]:
        """Return the stored steps of these segments, which began with the same state."""
        groups = [await self._engine.steps(run.id, number) for number in segments]
        return {step.at: step for steps in groups for step in steps}

    async def _execute(self, run: StoredRun, segment: Segment) -> SegmentEnd:
        """Execute a segment and return how it ends.

        A failure while the worker stops is not an end: others continue.
        """

        def on_event(event: Event) -> None:
            if isinstance(event, Done):
                segment.result = event.result

        try:
            agent = self._agent(run.agent)
            state = RunState.from_json(run.state)
            self._check(run, state)
            await self._check_shown(run, state)
            earlier = await self._stored_steps(run, range(run.began, run.segment))
            segment.set_stored(earlier, await self._stored_steps(run, [run.segment]))
            deps = None if self._deps is None else self._deps(run)
            drive = agent.team.resumed_drive(state, run.given, deps)
            result = await drive(Listener(on_event, streaming=False))
            segment.check_end(result.status)
        except BaseException as error:  # whatever ends a run is stored
            if is_stop_of_worker(error):
                raise
            if self._steps.stopping and not segment.cut:
                await block_forever()
            _log.error("run %s of agent '%s' failed", run.id, run.agent, exc_info=error)
            detail = f": {error}" if isinstance(error, ToolcribError) else ""
            reason = f"{type(error).__name__}{detail}"
            return SegmentEnd("failed", segment.failed_state, reason=reason)
        status: StoredStatus = result.status
        signatures = {
            each.id: self._question_signature(run.agent, run.id, each) for each in result.pending
        }
        return SegmentEnd(status, result.state, result.text, result.limit or "", signatures)

    async def _check_shown(self, run: StoredRun, state: RunState) -> None:
        """Raise SourceError if what was shown to whoever answered is not what the state asks."""
        if not run.given:
            return
        requests = {each.id: each for each in state.pending}
        stored = await run_with_retries(partial(self._store.shown, run.given), lambda: False)
        for request_id, shown in stored.items():
            if shown != requests.get(request_id, shown):
                raise SourceError(f"question {request_id} was changed in the store: ask again")

    def _question_signature(self, agent: str, run_id: str, request: ApprovalRequest) -> str:
        return self._sign(agent)("toolcrib question", run_id, request_text(request))

    def _sign(self, agent: str) -> Sign:
        return self._agent(agent).team.signature

    def _checked(self, run: StoredRun) -> StoredRun:
        if run.agent in self._agents:
            run.check(self._sign(run.agent))
        return run

    def _last(self, run: StoredRun) -> RunState:
        """Return the last known state of a run. Raises SourceError as `_check` does."""
        state = run.last
        self._check(run, state)
        return state

    def _check(self, run: StoredRun, state: RunState) -> None:
        """Raise SourceError unless this is a state of the run and both are unchanged.

        Changes are detected only if the run's agent is here.
        """
        if run.agent in self._agents:
            self._agent(run.agent).team.check_saved(state)
        if (state.run_id, state.caller.id) != (run.id, run.caller):
            raise SourceError(f"the state of run {run.id} belongs to another run or another caller")
        self._checked(run)

    def _agent(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            raise ToolcribError(
                f"there is no agent '{name}' here; available: {', '.join(self._agents)}"
            )
        return agent

    def _ledger(self, run: StoredRun) -> Ledger:
        agent = self._agents.get(run.agent)
        ledger = None if agent is None else agent.runner.ledger
        return self._log if ledger is None else ledger

    async def _records(self, run: StoredRun, state: RunState) -> tuple[ToolInvocationRecord, ...]:
        """Return the calls of a run: those of its last state, and stored ones not yet taken up.

        Raises SourceError for a step that was changed, if its agent is here.
        """
        records = {each.id: each for each in state.records}
        for segment in () if run.is_whole else range(run.began, run.segment + 1):
            for step in await self._steps_of(run.agent, run.id, segment, 0):
                call = step.call
                if call is not None and call.request is None:
                    records[call.record.id] = call.record
        return tuple(records.values())

    async def _result(self, run: StoredRun) -> RunResult:
        state = self._last(run)
        agent = self._agents.get(run.agent)
        final_text = last_text(state.messages)
        text = (
            final_text
            if run.status == "cancelled" or storable(final_text) == run.text
            else run.text
        )
        output: Any = text
        if agent is not None and run.status == "completed":
            output = agent.output_of(text, state.speakers[-1] if state.speakers else "")
        status: Any = run.status  # the run's own status, since none is under way
        return RunResult(
            status=status,
            text=text,
            output=output,
            messages=state.messages,
            usage=state.usage,
            records=await self._records(run, state),
            pending=state.pending if status == "waiting" else (),
            state=state,
            limit=run.reason if status == "limited" else None,
            agent=state.speakers[-1] if state.speakers else "" if agent is None else agent.name,
        )


class _PatientLog(AuditLog):
    """The log of durable runs, in their own database.

    While the database cannot be used, the runs block, as they do for the engine. What was not
    written in time fails with a named error. Once it is closed, a run that was cut off here writes
    nothing more as the event loop ends: it would open the database again, and others report it.
    """

    def __init__(self, url: str, steps: DurableSteps) -> None:
        super().__init__(url)
        self._steps = steps

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        """Claim as a log does.

        An entry found on a retry belongs to this same attempt, whose answer was lost, not to
        another process.
        """
        begin = super().begin
        tries = 0

        async def claimed() -> ToolInvocationRecord | None:
            nonlocal tries
            tries += 1
            record = await begin(entry)
            return None if tries > 1 and record == entry else record

        return await self._patiently(claimed)

    async def write(self, record: ToolInvocationRecord) -> ToolInvocationRecord | None:
        return None if self._is_over else await self._patiently(partial(super().write, record))

    async def find(self, call: ToolInvocationRecord | str) -> ToolInvocationRecord | None:
        return await self._patiently(partial(super().find, call))

    async def last(
        self, call_id: str, *, run_id: str | None = None, approval_id: str | None = None
    ) -> AuditEntry | None:
        return await self._patiently(
            partial(super().last, call_id, run_id=run_id, approval_id=approval_id)
        )

    async def spent_within(self, call_id: str, run_id: str) -> SpentWithin | None:
        return await self._patiently(partial(super().spent_within, call_id, run_id))

    async def write_run(self, record: RunRecord) -> None:
        if not self._is_over:
            await self._patiently(partial(super().write_run, record))

    async def attach(self, attachment: Attachment) -> None:
        if not self._is_over:
            await self._patiently(partial(super().attach, attachment))

    @property
    def _is_over(self) -> bool:
        return self.closed and self._steps.is_abandoned

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._is_over:
            raise SourceError("the log of durable runs is closed")
        return await self._steps.run_with_retries(work)


def _is_unknown(record: ToolInvocationRecord, *, is_under_way: bool = False) -> bool:
    if record.status == "started":
        return not is_under_way
    is_unknown = record.error is not None and record.error.code is ErrorCode.OUTCOME_UNKNOWN
    return is_unknown or (is_cut_short(record) and RESOLVED not in record.notes)


async def _calls(log: AuditLog, run_id: str) -> list[ToolInvocationRecord]:
    """Return the log's last records of a run's calls, and of runs within them, at any depth."""
    records: list[ToolInvocationRecord] = []
    runs = [run_id]
    while runs:
        entries = await log.entries(AuditFilter(run_id=runs.pop(0)))
        last = _last_of(entry.record for entry in entries)
        records += last.values()
        runs += [inner_run_id(each.run_id, each.id) for each in last.values() if _ran_agent(each)]
    return records


def _last_of(records: Iterable[ToolInvocationRecord]) -> dict[str, ToolInvocationRecord]:
    """Return, by call, the last record that says what happened to it.

    The end of an attempt that did not begin says nothing about one that did.
    """
    last: dict[str, ToolInvocationRecord] = {}
    for record in records:
        previous = last.get(record.id)
        says_more = previous is None or has_begun(record) or record.status == "waiting"
        if says_more or not (previous and has_begun(previous)):
            last[record.id] = record
    return last


def _ran_agent(record: ToolInvocationRecord) -> bool:
    """Return whether a run may have begun within a call."""
    has_trace = record.spent is not None or record.status == "waiting"
    return has_trace or _is_unknown(record) or RESOLVED in record.notes


def _check_same(run: StoredRun, stored: RunState, agent: str, requested: RunState) -> None:
    """Raise ToolcribError unless a run is what is asked for under its id."""
    is_same = (run.agent, stored.caller, stored.settings) == (
        agent,
        requested.caller,
        requested.settings,
    )
    stored_speaker, requested_speaker = stored.speakers[:1], requested.speakers[:1]
    # it may be older than handovers, and name no speaker
    is_same = is_same and (
        stored_speaker == requested_speaker or not (stored_speaker and requested_speaker)
    )
    is_same = is_same and stored.fork is None
    if not is_same or not _begins_alike(stored, requested):
        difference = "its agent, speaker, prompt, history, caller or options are different"
        raise ToolcribError(f"{run.id!r} is the id of another run: {difference}")


def _begins_alike(stored: RunState, requested: RunState) -> bool:
    """Return whether a run began with what is asked for.

    Instructions may differ between versions of the agent, and after a handover. If only one of the
    runs has some, which may have replaced a system message of its history, the leading system
    messages are not compared.
    """
    stored_messages, requested_messages = _beginning(stored), _beginning(requested)
    mode = stored.instructions
    if mode is None or mode != requested.instructions:
        stored_messages = split_system(stored_messages)[1]
        requested_messages = split_system(requested_messages)[1]
    if stored.turn and not stored.marks:  # of an earlier version, which does not say where it began
        stored_messages = stored_messages[: len(requested_messages)]
    return msgspec.json.encode(stored_messages) == msgspec.json.encode(requested_messages)


def _beginning(state: RunState) -> tuple[Message, ...]:
    """Return what was said before the first turn, without the instructions."""
    end = state.marks[0].at if state.marks else len(state.messages)
    return state.messages[state.instructions in ("first", "replacing") : end]


def _events_of(
    step: StoredStep, seen: set[object], handovers: list[HandedOver], agent: Agent | None
) -> Iterator[Event]:
    """Yield what happened in a step.

    A question is reported once, however often its run waits. `handovers` holds those which take
    effect in the next reply.
    """
    kind = step.name.partition(" ")[0]
    if kind == "reply":
        yield from handovers
        handovers.clear()
        reply = msgspec.json.decode(step.text, type=ReplyStep).reply
        if reply.text:
            yield TextDelta(reply.text)
        turn = int(step.name.partition(" ")[2])
        yield ReplyFinished(turn, reply.finish, reply.usage, reply.model, reply.provider)
    call = step.call
    if call is not None:
        for request in () if call.request is None else (call.request, *call.others):
            if request.id not in seen:
                seen.add(request.id)
                yield ApprovalRequested(request)
        if call.request is None:
            seen.add(call.record.id)
            yield ToolCallFinished(call.record)
            handover = None if agent is None else agent.team.handover(call.record)
            handovers += [handover] if handover is not None else []
