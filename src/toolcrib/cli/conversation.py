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
from toolcrib.cli.options import store_of_runs
from toolcrib.cli.render import err, printable, shortened
from toolcrib.errors import ApprovalError, ErrorCode, ToolcribError
from toolcrib.urls import without_password
from toolcrib.values.decision import Approver, Caller
from toolcrib.values.json import sha256_hex
from toolcrib.values.run import Done, Event, RunResult, RunStarted, RunState

if TYPE_CHECKING:
    from toolcrib.durable import DurableAgents, StoredRun

_LOOK = 0.2  # seconds between two queries of the store
_OPEN = ("queued", "running", "waiting")
_KEPT = ("completed", "limited", "waiting")
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
        self._of = conversation
        self._text = text
        self._begun = bool(run_id)
        self._run_id = run_id or f"run_{os.urandom(8).hex()}"
        self._told = 0  # number of the run's events that were shown
        self._result: RunResult | None = None

    async def run(self, show: Callable[[Event], None]) -> RunResult:
        """Run the turn, show its events and ask its questions, until it ends or nobody answers.
        Cancelling this cancels the run."""
        session = self._of.session
        agents = {self._of.name: session.agent}
        async with import_module("toolcrib.durable").DurableAgents(
            self._of.store, agents
        ) as durable:
            show(RunStarted(self._run_id))
            try:
                if not self._begun:
                    self._begun = True
                    asked = {"caller": CALLER, "history": session.messages, "run_id": self._run_id}
                    await durable.start(self._of.name, self._text, **asked)
                done = await self._followed(durable, show)
            except asyncio.CancelledError:
                with suppress(ToolcribError):
                    await durable.cancel(self._run_id)
                    self._end(await self._next(durable, show), show)
                raise
            self._end(done, show)
            for request in done.result.pending:
                err.print(printable(_how_to_answer(request.id, self._of.store)))
            await durable.result(self._run_id)  # raises the error of a failed run
            return done.result

    async def rest(self, show: Callable[[Event], None]) -> None:
        """Show nothing: the remaining events of a cancelled run were shown already."""

    async def result(self) -> RunResult:
        """Return how the run ended. Raises CancelledError if that is not known."""
        if self._result is None:
            raise asyncio.CancelledError
        return self._result

    def _end(self, done: Done, show: Callable[[Event], None]) -> None:
        self._result = done.result
        if done.result.status in _KEPT or done.result.records:
            self._of.session.keep(done.result)
        show(done)

    async def _followed(self, durable: DurableAgents, show: Callable[[Event], None]) -> Done:
        done = await self._next(durable, show)
        while done.result.status == "waiting" and await self._answered(durable, done.result):
            done = await self._next(durable, show)
        return done

    async def _next(self, durable: DurableAgents, show: Callable[[Event], None]) -> Done:
        """Show new events until the run ends or waits."""
        at = 0
        async for event in durable.events(self._run_id):
            if isinstance(event, Done):
                return event
            at += 1
            if at > self._told:
                self._told = at
                show(event)
        raise ToolcribError("the run has ended without a result")

    async def _answered(self, durable: DurableAgents, result: RunResult) -> bool:
        """Ask a question until it is answered, here or elsewhere; return whether it was."""
        known = {request.id for request in await durable.pending()}
        request = next((each for each in result.pending if each.id in known), None)
        if request is None:  # all were answered or have lapsed; the run goes on soon
            await asyncio.sleep(_LOOK)
            return True
        asking = asyncio.ensure_future(self._of.ask(request))
        elsewhere = asyncio.ensure_future(_gone(durable, request.id))
        try:
            await asyncio.wait((asking, elsewhere), return_when=asyncio.FIRST_COMPLETED)
            answer = asking.result() if asking.done() else None
            if answer is not None:
                await durable.answer(request.id, answer)
        except ApprovalError as error:
            if error.code is ErrorCode.APPROVAL_REQUIRED:  # there is no terminal to ask at
                return False
            err.print(printable(f"{request.title}: {error}"))
            return True
        finally:
            for task in (asking, elsewhere):
                task.cancel()
            await asyncio.wait((asking, elsewhere))
        if answer is None and elsewhere.cancelled():
            return False
        if answer is None:
            err.print(printable(f"{request.title}: it was answered elsewhere, or has expired."))
        return True


def _how_to_answer(request_id: str, store: str) -> str:
    elsewhere = "" if store == store_of_runs(None) else f" --store {without_password(store)}"
    answer = f"toolcrib runs answer {request_id} --yes{elsewhere}"
    return f"Answer with: {answer} (or --no). Then run the same command again to continue."


async def _gone(durable: DurableAgents, request_id: str) -> None:
    """Wait until a question is no longer open."""
    while any(request.id == request_id for request in await durable.pending()):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK)


async def go_on(
    agent: Agent, ask: Approver, store: str, made: str, prompt: str | None
) -> tuple[DurableConversation, list[DurableTurn]]:
    """Return the conversation to go on with and turns that go on with its open runs, oldest first,
    and print them. Where none is open, return a new conversation.

    It is the newest conversation that was begun with the same options (`made`). With a prompt, it
    is the one that was asked the same and has no answer yet.
    """
    prefix = f"chat_{sha256_hex(made)[:8]}_"
    found = await _open_runs(store)
    mine = [
        run
        for run, asked in found.items()
        if run.agent.startswith(prefix) and prompt in (None, asked)
    ]
    name = mine[-1].agent if mine else f"{prefix}{os.urandom(4).hex()}"
    left = [run for run in mine if run.agent == name]
    for run in left:
        waits = " It is waiting for an answer." if run.status == "waiting" else ""
        err.print(printable(f"Continuing {run.id}: {shortened(found[run])}{waits}"))
    others = [run.id for run in found if run not in left]
    if others:
        told = "with other options or another prompt" if prompt else "with other options"
        err.print(printable(f"Also open, started {told}: {', '.join(others)} (toolcrib runs list)"))
    conversation = DurableConversation(store, name, agent, ask)
    return conversation, [DurableTurn(conversation, found[run], run.id) for run in left]


async def _open_runs(store: str) -> dict[StoredRun, str]:
    """Return the open runs of conversations, oldest first, and what was asked.

    They wait, or their processes are gone.
    """
    async with aclosing(import_module("toolcrib.durable").DurableAgents(store, {})) as durable:
        found = [run for status in _OPEN for run in await durable.list(status)]
    mine = [run for run in found if run.agent.startswith("chat_") and run.caller == CALLER.id]
    mine.sort(key=lambda run: run.created_at)
    return {run: _said_last(run) for run in mine}


def _said_last(run: StoredRun) -> str:
    messages = RunState.from_json(run.state).messages
    return next((m.text for m in reversed(messages) if m.by_user), "")
