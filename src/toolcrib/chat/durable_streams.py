"""Durable runs as the chat follows them: any process finds a turn's run by the turn's id.

Rule: the store of runs says what has happened, and a turn shows it. So a run is always begun and
answered in that store first, followers do not change it, and whoever finds it can follow it again.
If the store does not confirm an action, it may have happened: it is requested again, and a turn
fails only if the store says that its run has not begun.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from toolcrib.agent import Agent, Session
from toolcrib.chat.threads import StoredTurn, asked_again
from toolcrib.errors import ApprovalError, SourceError, ToolcribError
from toolcrib.values.decision import Answer, Caller
from toolcrib.values.message import Message
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    HandedOver,
    ReplyFinished,
    RunError,
    RunResult,
    RunStarted,
    RunState,
    TextDelta,
    ToolCallFinished,
    UsageReported,
)

_KEPT_STATUSES = ("completed", "limited", "waiting")


class DurableRuns(Protocol):
    """Describes what the chat needs of `toolcrib.durable.DurableAgents`."""

    async def start(
        self,
        agent: str,
        prompt: str,
        *,
        caller: Caller,
        history: Sequence[Message],
        run_id: str,
        speaker: str,
    ) -> str: ...

    def events(self, run_id: str) -> AsyncIterator[Event]: ...

    async def result(self, run_id: str) -> RunResult: ...

    async def answer(self, request_id: str, answer: Answer) -> str: ...

    async def cancel(self, run_id: str) -> None: ...

    async def show(self, run_id: str) -> Any: ...


class DurableStream:
    """Follows a durable run as a `RunStream` is followed: its events, once, with `Done` last.

    Call `begin` first: it awaits `start`, which begins the run, or answers it. What was reported up
    to `reported_state`, the state in which it waited before, is not reported again.
    """

    def __init__(
        self,
        runs: DurableRuns,
        session: Session[Agent],
        run_id: str,
        *,
        start: Callable[[], Awaitable[object]] | None = None,
        reported_state: RunState | None = None,
    ) -> None:
        self._runs = runs
        self._session = session
        self._run_id = run_id
        self._start = start
        self._current_reply = 0  # the last one that has arrived
        # the number of replies that were reported
        self._reported_replies = 0 if reported_state is None else reported_state.turn
        self._reported_ids = _reported_ids(reported_state)
        speakers = reported_state is not None and reported_state.speakers
        self._speaker = speakers[0] if speakers else session.speaker  # the agent that began the run

    async def begin(self) -> None:
        """Store durably what this run is to do. Raises ToolcribError if that cannot be stored."""
        if self._start is not None:
            await self._start()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        yield RunStarted(self._run_id, self._speaker)
        async for event in self._runs.events(self._run_id):
            if self._is_reported(event):
                continue
            if isinstance(event, Done):
                async for closing_event in self._closing_events(event.result):
                    yield closing_event
            if isinstance(event, HandedOver):
                self._speaker = event.agent
            yield self._with_schema(event) if isinstance(event, ApprovalRequested) else event

    def _is_reported(self, event: Event) -> bool:
        match event:
            case TextDelta():
                return self._current_reply < self._reported_replies
            case ReplyFinished(turn=turn):
                self._current_reply = turn
                return turn <= self._reported_replies
            case ToolCallFinished(record=record):
                return record.id in self._reported_ids
            case ApprovalRequested(request=request):
                return request.id in self._reported_ids
            case _:
                return False

    async def result(self) -> RunResult:
        """Return how the run ended, or that it waits. Raises ToolcribError for one that failed."""
        return await self._runs.result(self._run_id)

    async def cancel(self) -> None:
        """Cancel the run; its events report what it did. Raises SourceError if it may continue."""
        await _cancel(self._runs, self._run_id)

    def _with_schema(self, event: ApprovalRequested) -> ApprovalRequested:
        request = event.request
        definition = self._session.agent.team.definition(request.tool, self._speaker)
        if definition is None or request.within:
            return event
        return ApprovalRequested(request, definition.input_schema)

    async def _closing_events(self, result: RunResult) -> AsyncIterator[Event]:
        """Keep the run in the conversation, unless it did nothing; report its usage and failure."""
        if result.status in _KEPT_STATUSES or result.records:
            self._session.keep(result)
        yield UsageReported(result.usage)
        if result.status == "failed":
            run = await self._runs.show(self._run_id)
            kind, _, message = run.reason.partition(": ")
            yield RunError(kind, message or "The run failed.")


def _reported_ids(reported_state: RunState | None) -> set[str | None]:
    """Return the ids of the calls that had ended, and of the questions that had been asked."""
    if reported_state is None:
        return set()
    records = reported_state.records
    request_ids = {request.id for request in reported_state.pending}
    return {
        *request_ids,
        *(record.id for record in records),
        *(record.approval_id for record in records),
    }


class DurableStreams:
    """Makes followers for the runs of turns.

    `agent` is the agent's name among the durable ones.
    """

    def __init__(self, runs: DurableRuns, agent: str) -> None:
        self._runs = runs
        self._agent = agent

    def begun(
        self, session: Session[Agent], turn_id: str, text: str, caller: Caller
    ) -> DurableStream:
        """Return a run that has not begun."""
        run_id, history, speaker = _run_id_of(turn_id), session.messages, session.speaker

        async def start() -> str:
            return await self._runs.start(
                self._agent, text, caller=caller, history=history, run_id=run_id, speaker=speaker
            )

        return DurableStream(self._runs, session, run_id, start=lambda: asked_again(start))

    def answered(
        self, session: Session[Agent], state: RunState, request_id: str, answer: Answer
    ) -> DurableStream:
        """Return a run that is about to be answered.

        If somebody else's answer came first, that one counts.
        """

        async def send_answer() -> None:
            with suppress(ApprovalError):
                await asked_again(lambda: self._runs.answer(request_id, answer))

        return DurableStream(
            self._runs, session, state.run_id, start=send_answer, reported_state=state
        )

    def followed(self, session: Session[Agent], turn: StoredTurn) -> DurableStream:
        """Return the run of a known turn, to follow from the beginning or from where it waits."""
        waiting_state = RunState.from_json(turn.state) if turn.status == "waiting" else None
        return DurableStream(self._runs, session, _run_id_of(turn.id), reported_state=waiting_state)

    async def has_gone_on(self, turn: StoredTurn) -> bool:
        """Return whether there is something to follow.

        That is a run that has begun and, if its turn waits, was answered or cancelled.
        """
        if turn.status not in ("running", "waiting"):
            return False
        try:
            run = await self._runs.show(_run_id_of(turn.id))
        except SourceError:
            raise
        except ToolcribError:  # it has not begun
            return False
        if turn.status == "running" or run.status != "waiting":
            return True
        pending_ids = [
            {request.id for request in RunState.from_json(state).pending}
            for state in (run.state, turn.state)
        ]
        return pending_ids[0] != pending_ids[1]

    async def cancel(self, turn_id: str) -> None:
        """Cancel the run of a waiting turn. Raises SourceError if it may continue."""
        await _cancel(self._runs, _run_id_of(turn_id))


async def _cancel(runs: DurableRuns, run_id: str) -> None:
    """Cancel a run; one that is over, or has not begun, stays unchanged."""
    try:
        await asked_again(lambda: runs.cancel(run_id))
    except SourceError:
        raise
    except ToolcribError:
        return


def _run_id_of(turn_id: str) -> str:
    return f"run_{turn_id.removeprefix('turn_')}"
