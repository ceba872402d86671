"""`Agent`: a model, a runner and limits. Frozen; each run has a state of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from toolcrib.agent.loop import Offered, Run
from toolcrib.agent.output import OutputType
from toolcrib.agent.session import Session
from toolcrib.agent.stream import RunStream
from toolcrib.clients import client_for
from toolcrib.errors import SourceError
from toolcrib.pick import PickOptions, pick_tools
from toolcrib.runner import ToolRunner
from toolcrib.tools import Catalog, Tools
from toolcrib.values.client import LLMClient
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS, Answer, Caller
from toolcrib.values.definition import HasDefinition
from toolcrib.values.event import Event
from toolcrib.values.json import encodable
from toolcrib.values.message import Message
from toolcrib.values.run import Limits, RunResult, RunState


class Agent:
    """Runs the loop: the model calls tools until it has an answer, or a limit is reached.

    `model` is a client or a name such as `openai:gpt-5`; `tools` a `ToolRunner`, or tools for a
    standard one (without an approver: what needs approval is refused). With `pick`, each run offers
    only the tools picked for its prompt. `output` is the type that the final text is read as (JSON,
    by pydantic); a text that does not fit goes back to the model.
    """

    def __init__(
        self,
        model: LLMClient | str,
        tools: ToolRunner | Catalog | Tools = (),
        *,
        instructions: str = "",
        limits: Limits = Limits(),  # noqa: B008  frozen
        pick: PickOptions | None = None,
        output: Any = str,
    ) -> None:
        self.client = client_for(model) if isinstance(model, str) else model
        self.runner = tools if isinstance(tools, ToolRunner) else ToolRunner(tools)
        self.instructions = instructions
        self.limits = limits
        self.pick = pick
        self.output = output
        self._output = None if output is str else OutputType(output)

    async def run(
        self, prompt: str, *, history: Sequence[Message] = (), caller: Caller = ANONYMOUS
    ) -> RunResult:
        """Run to the end. Raises ClientError (with `.state`) if the provider fails."""
        return await self._begin(prompt, history, caller)(None)

    def stream(
        self, prompt: str, *, history: Sequence[Message] = (), caller: Caller = ANONYMOUS
    ) -> RunStream:
        """Start a run in the running event loop, and give its events as they come."""
        return RunStream(self._begin(prompt, history, caller))

    async def resume(
        self, state: RunState, answers: Mapping[str, Answer] | None = None
    ) -> RunResult:
        """Go on where a waiting run stopped; `answers` by the id of their approval request.

        Raises SourceError if a tool that was offered is not there any more.
        """
        return await self._resumed(state, answers or {})(None)

    def resume_stream(
        self, state: RunState, answers: Mapping[str, Answer] | None = None
    ) -> RunStream:
        """`resume`, with its events."""
        return RunStream(self._resumed(state, answers or {}))

    def replace(
        self,
        *,
        model: LLMClient | str | None = None,
        tools: ToolRunner | Catalog | Tools | None = None,
    ) -> Agent:
        """The same agent with another model, or other tools."""
        return Agent(
            self.client if model is None else model,
            self.runner if tools is None else tools,
            instructions=self.instructions,
            limits=self.limits,
            pick=self.pick,
            output=self.output,
        )

    def session(self, messages: tuple[Message, ...] = ()) -> Session:
        """A conversation with this agent."""
        return Session(self, messages)

    def _begin(self, prompt: str, history: Sequence[Message], caller: Caller) -> _Drive:
        prompt = encodable(prompt)
        past = [m for i, m in enumerate(history) if i or m.role != "system"]
        told = [self.instructions, self._output.instructions if self._output else ""]
        instructions = "\n\n".join(text for text in told if text)
        system = [Message.system(instructions)] if instructions else []
        run_id = f"run_{os.urandom(8).hex()}"
        state = RunState(
            run_id,
            0,
            (*system, *past, Message.user(prompt)),
            tally=RunTally(run_id, os.urandom(16).hex(), tainted=self._is_tainted(past)),
            caller=caller,
        )

        async def offered() -> tuple[HasDefinition, ...]:
            return await self._offered(prompt)

        return self._driven(state, offered, {})

    def _is_tainted(self, past: Sequence[Message]) -> bool:
        """Untrusted content of an earlier run is as untrusted in this one."""
        entries = [self.runner.catalog.entry(m.name or "") for m in past if m.role == "tool"]
        return any(e.tool.definition.annotations.untrusted_output for e in entries if e)

    def _resumed(self, state: RunState, answers: Mapping[str, Answer]) -> _Drive:
        gone = [name for name in state.offered if name not in self.runner.catalog]
        if gone:
            raise SourceError(f"the run was offered '{gone[0]}', which this agent does not have")
        tools = tuple(self.runner.catalog[name] for name in state.offered)

        async def offered() -> tuple[HasDefinition, ...]:
            return tools

        return self._driven(state, offered, answers)

    def _driven(self, state: RunState, offered: Offered, answers: Mapping[str, Answer]) -> _Drive:
        async def drive(emit: _Emit | None) -> RunResult:
            run = Run(
                self.client,
                self.runner,
                state,
                offered=offered,
                limits=self.limits,
                output=self._output,
                emit=emit,
                answers=answers,
            )
            return await run.drive()

        return drive

    async def _offered(self, prompt: str) -> tuple[HasDefinition, ...]:
        """All tools, or those picked; where somebody can approve, policy decides on unsafe ones."""
        if self.pick is None:
            return tuple(self.runner.catalog)
        options = self.pick
        if self.runner.approver is not None:
            options = msgspec.structs.replace(options, allow_unsafe=True)
        return tuple(p.tool for p in await pick_tools(prompt, self.runner.catalog, options))


_Emit: TypeAlias = Callable[[Event], None]
_Drive: TypeAlias = Callable[[_Emit | None], Coroutine[Any, Any, RunResult]]
