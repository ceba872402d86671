"""A conversation at the terminal whose turns are durable runs: `toolcrib chat --durable`.

Rule: open runs are in the store and nowhere else. A turn is worked on while it is shown in this
terminal, and in no other process, since its agent has the conversation's name. So a process that is
killed leaves a run which the next `toolcrib chat --durable` finds. A run's questions may be
answered here or from another process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from toolcrib.agent import Agent, Session
from toolcrib.cli.options import named_in_errors, store_of_runs
from toolcrib.cli.render import err, printable, shortened
from toolcrib.errors import ApprovalError, ErrorCode, ToolcribError
from toolcrib.urls import without_password
from toolcrib.values.decision import Approver, Caller
from toolcrib.values.json import sha256_hex
from toolcrib.values.run import Done, Event, RunResult, RunStarted, RunState

if TYPE_CHECKING:
    from toolcrib.durable import DurableAgents, StoredRun

_POLL_SECONDS = 0.2  # seconds between two queries of the store
_OPEN_STATUSES = ("queued", "running", "waiting")
_KEPT_STATUSES = ("completed", "limited", "waiting")
CALLER = Caller("cli")


class DurableConversation:
    """Keeps what was said, and makes the turns. `name` is both the conversation's and its agent's."""

    def __init__(self, store: str, name: str, agent: Agent, ask: Approver) -> None:
        self.store = store
        self.name = name
        self.session = Session(agent)
        self.ask = ask

    def turn(self, text: str) -> DurableTurn:
        return DurableTurn(self, text)


class DurableTurn:
    """One run of a conversation, which this process works on while it is shown.

    It goes on with the open run `run_id`, or begins a new one.
    """

    def __init__(self, conversation: DurableConversation, text: str, run_id: str = "") -> None:
        self._conversation = conversation
        self._text = text
        self._is_started = bool(run_id)
        self._run_id = run_id or f"run_{os.urandom(8).hex()}"
        self._shown_events = 0  # number of the run's events that were shown
        self._result: RunResult | None = None

    async def run(self, show: Callable[[Event], None]) -> RunResult:
        """Run the turn, show its events and ask its questions, until it ends or nobody answers.
        Cancelling this cancels the run."""
        session = self._conversation.session
        agents = {self._conversation.name: session.agent}
        async with import_module("toolcrib.durable").DurableAgents(
            self._conversation.store, agents
        ) as durable:
            show(RunStarted(self._run_id))
            try:
                if not self._is_started:
                    self._is_started = True
                    arguments = {
                        "caller": CALLER,
                        "history": session.messages,
                        "run_id": self._run_id,
                    }
                    await durable.start(self._conversation.name, self._text, **arguments)
                done = await self._final_event(durable, show)
            except asyncio.CancelledError:
                with suppress(ToolcribError):
                    await durable.cancel(self._run_id)
                    self._show_end(await self._show_until_pause(durable, show), show)
                raise
            self._show_end(done, show)
            for request in done.result.pending:
                err.print(printable(_how_to_answer(request.id, self._conversation.store)))
            await durable.result(self._run_id)  # raises the error of a failed run
            return done.result

    async def rest(self, show: Callable[[Event], None]) -> None:
        """Show nothing: the remaining events of a cancelled run were shown already."""

    async def result(self) -> RunResult:
        """Return how the run ended. Raises CancelledError if that is not known."""
        if self._result is None:
            raise asyncio.CancelledError
        return self._result

    def _show_end(self, done: Done, show: Callable[[Event], None]) -> None:
        self._result = done.result
        if done.result.status in _KEPT_STATUSES or done.result.records:
            self._conversation.session.keep(done.result)
        show(done)

    async def _final_event(self, durable: DurableAgents, show: Callable[[Event], None]) -> Done:
        done = await self._show_until_pause(durable, show)
        while done.result.status == "waiting" and await self._ask_until_answered(
            durable, done.result
        ):
            done = await self._show_until_pause(durable, show)
        return done

    async def _show_until_pause(
        self, durable: DurableAgents, show: Callable[[Event], None]
    ) -> Done:
        """Show new events until the run ends or waits."""
        event_count = 0
        async for event in durable.events(self._run_id):
            if isinstance(event, Done):
                return event
            event_count += 1
            if event_count > self._shown_events:
                self._shown_events = event_count
                show(event)
        raise ToolcribError("the run has ended without a result")

    async def _ask_until_answered(self, durable: DurableAgents, result: RunResult) -> bool:
        """Ask a question until it is answered, here or elsewhere; return whether it was."""
        pending_ids = {request.id for request in await durable.pending()}
        request = next(
            (candidate for candidate in result.pending if candidate.id in pending_ids), None
        )
        if request is None:  # all were answered or have lapsed; the run goes on soon
            await asyncio.sleep(_POLL_SECONDS)
            return True
        answer_task = asyncio.ensure_future(self._conversation.ask(request))
        closed_task = asyncio.ensure_future(_wait_until_closed(durable, request.id))
        try:
            await asyncio.wait((answer_task, closed_task), return_when=asyncio.FIRST_COMPLETED)
            answer = answer_task.result() if answer_task.done() else None
            if answer is not None:
                await durable.answer(request.id, answer)
        except ApprovalError as error:
            if error.code is ErrorCode.APPROVAL_REQUIRED:  # there is no terminal to ask at
                return False
            err.print(printable(f"{request.title}: {error}"))
            return True
        finally:
            for task in (answer_task, closed_task):
                task.cancel()
            await asyncio.wait((answer_task, closed_task))
        if answer is None and closed_task.cancelled():
            return False
        if answer is None:
            err.print(printable(f"{request.title}: it was answered elsewhere, or has expired."))
        return True


def _how_to_answer(request_id: str, store: str) -> str:
    store_option = "" if store == store_of_runs(None) else f" --store {without_password(store)}"
    command = f"toolcrib runs answer {request_id} --yes{store_option}"
    return f"Answer with: {command} (or --no). Then run the same command again to continue."


async def _wait_until_closed(durable: DurableAgents, request_id: str) -> None:
    """Wait until a question is no longer open."""
    while any(request.id == request_id for request in await durable.pending()):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)


async def continued_conversation(
    agent: Agent, ask: Approver, store: str, options_json: str, prompt: str | None
) -> tuple[DurableConversation, list[DurableTurn]]:
    """Return the conversation to go on with and turns that go on with its open runs, oldest first,
    and print them. Where none is open, return a new conversation.

    It is the newest conversation that was begun with the same options (`options_json`). With a
    prompt, it is the one that was asked the same and has no answer yet.
    """
    prefix = f"chat_{sha256_hex(options_json)[:8]}_"
    prompts = await _open_runs(store)
    matching = [
        run
        for run, asked_prompt in prompts.items()
        if run.agent.startswith(prefix) and prompt in (None, asked_prompt)
    ]
    name = matching[-1].agent if matching else f"{prefix}{os.urandom(4).hex()}"
    open_runs = [run for run in matching if run.agent == name]
    for run in open_runs:
        waiting_note = " It is waiting for an answer." if run.status == "waiting" else ""
        err.print(printable(f"Continuing {run.id}: {shortened(prompts[run])}{waiting_note}"))
    others = [run.id for run in prompts if run not in open_runs]
    if others:
        mismatch = "with other options or another prompt" if prompt else "with other options"
        err.print(
            printable(f"Also open, started {mismatch}: {', '.join(others)} (toolcrib runs list)")
        )
    conversation = DurableConversation(store, name, agent, ask)
    return conversation, [DurableTurn(conversation, prompts[run], run.id) for run in open_runs]


async def _open_runs(store: str) -> dict[StoredRun, str]:
    """Return the open runs of conversations, oldest first, and what was asked.

    They wait, or their processes are gone.
    """
    durable_agents = import_module("toolcrib.durable").DurableAgents(store, {})
    with named_in_errors(store):
        async with aclosing(durable_agents) as durable:
            open_runs = [run for status in _OPEN_STATUSES for run in await durable.list(status)]
    conversation_runs = [
        run for run in open_runs if run.agent.startswith("chat_") and run.caller == CALLER.id
    ]
    conversation_runs.sort(key=lambda run: run.created_at)
    return {run: _last_prompt(run) for run in conversation_runs}


def _last_prompt(run: StoredRun) -> str:
    messages = RunState.from_json(run.state).messages
    return next((m.text for m in reversed(messages) if m.by_user), "")
