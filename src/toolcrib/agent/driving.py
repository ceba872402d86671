"""Driving a run from its first speaker to its last: how it is prepared, begun, planned and resumed.

Rule: a run is driven by the team that it began with, whoever speaks in it. All members sign with
one key, store the same steps and ask the same guards first. A run that was emulated resumes only
emulated. A run that was given capabilities resumes only with the same ones: its state names them,
and so does each stored reply, which is written before the calls that the reply asks for run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import msgspec

from toolcrib.agent.fork import ForkPoint, RepeatGuard, fork_of
from toolcrib.agent.handover import check_speakers, over_limit, strictest, with_one_handover
from toolcrib.agent.history import error_content
from toolcrib.agent.inner import OuterRun, is_agent
from toolcrib.agent.loop import Run, RunTerms
from toolcrib.agent.options import check_options
from toolcrib.agent.output import ANSWER_TAKEN
from toolcrib.agent.prompt import prompt_message
from toolcrib.agent.saved import check_state
from toolcrib.agent.speaker import Deps, Speaker
from toolcrib.agent.spending import LimitReached
from toolcrib.agent.stream import Drive, Listener
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.runner import ToolRunner, is_tainted_here
from toolcrib.runner.approval import NotAnAnswer
from toolcrib.tools import Tool
from toolcrib.tools.capability import check_given_again, given_names
from toolcrib.values.call import HydrationResult
from toolcrib.values.content import Prompt
from toolcrib.values.context import Guard, PolicyContext, RunTally, StepRunner
from toolcrib.values.decision import Answer, Approve, Caller, Decision, Refuse
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, Redacted, keyed_digest
from toolcrib.values.message import ChatRequest, FinishReason, Message, Plan, Reply, Usage
from toolcrib.values.record import MADE_UP, CallError, ToolInvocationRecord
from toolcrib.values.run import HandedOver, RunOptions, RunResult, RunSettings, RunState
from toolcrib.values.typed import check_each, check_type

_HISTORY = "a list of Message: result.messages, or of OpenAI's form toolcrib.wire.decode_messages"
_OWN_ERRORS = frozenset(error_content(CallError.of(code)) for code in ErrorCode)
NO_LISTENER = Listener(lambda _event: None, streaming=False)


# What an agent would do next: one reply of its model, its calls hydrated and decided, none run.
#
# Rule: nothing happens except that the model is asked, and perhaps a repairer. Nobody is asked for an
# approval, no budget is spent except a caller's budget of tokens or money, by the request, and the
# sinks get records of calls that were planned, or rejected.


class PlannedCall(Redacted, msgspec.Struct, frozen=True):
    """A call that the model wants to make, and what the policies say of it.

    `decision` is None for a call that could not run whoever allowed it; `call.errors` says why.
    """

    redacted: ClassVar[tuple[str, ...]] = ("call",)

    call: HydrationResult
    decision: Decision | None

    @property
    def name(self) -> str:
        return self.call.call.name

    @property
    def arguments(self) -> JsonObject | None:
        """The effective arguments, as the tool would get them; None if the call was rejected."""
        return self.call.arguments if self.call.success else None


class RunPlan(Redacted, msgspec.Struct, frozen=True):
    """What an agent would do next: the model's `text`, and its `calls`, of which none has run.

    `limit` names the limit of the agent that would keep all of them from running. If it is `money`,
    the caller has none left and the model was not asked.
    """

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    calls: tuple[PlannedCall, ...]
    usage: Usage
    finish: FinishReason
    limit: str | None = None


class Planning(Run):
    """A run that takes the first half of its first turn: it never drives a call."""

    _sent: ChatRequest

    async def plan(self) -> RunPlan:
        """Return what the model wants. Raises ClientError, ContextError, and what a sink raises."""
        self._begin()
        context = PolicyContext(self._caller, self.tally)
        try:
            await self._take_instructions()
            self._toolbox = await self._open_toolbox()
            limit = self._spending.begin_turn()
            try:
                reply = await self._ask_model()
            except LimitReached as error:  # no money is left to ask
                return RunPlan("", (), self._spending.usage, "incomplete", error.name)
            if self._spending.seconds_left == 0.0:  # a run would have ended by now
                limit = limit or "seconds"
            offer = self._toolbox.offer(reply.offer, reply.tool_calls).permitted_by(self._choice)
            output_type = self._output_type
            answers = [] if output_type is None else output_type.calls_in(reply)
            tool_calls = [call for call in reply.tool_calls if call not in answers]
            calls = with_one_handover(
                await self._hydrated(tool_calls, offer), self._speaker.handover_targets
            )
        finally:
            self._close()
        limit = limit or over_limit(
            self._terms.limits, self._initial_state.speakers, calls, self._speaker.handover_targets
        )
        limit = limit or self._spending.begin_calls(calls)
        decisions = await self._runner.foreseen(calls, context)
        await self._runner.record_plan(Plan(calls, reply, self._sent), caller=self._caller)
        planned = tuple(map(PlannedCall, calls, decisions))
        text = reply.text if output_type is None else output_type.text_of(reply) or reply.text
        return RunPlan(text, planned, self._spending.usage, reply.finish, limit)

    async def _request_reply(self, request: ChatRequest) -> Reply:
        self._sent = request
        return await super()._request_reply(request)


# The agents of a run.


class Team(Redacted, msgspec.Struct, frozen=True, eq=False):
    """Holds the agents that may speak in a run, by name.

    The first is the agent whose run it is; `state_key` and `steps` are that agent's.
    """

    redacted: ClassVar[tuple[str, ...]] = ("state_key",)

    members: Mapping[str, Speaker]
    state_key: bytes | None
    steps: StepRunner | None

    @property
    def first(self) -> Speaker:
        return next(iter(self.members.values()))

    @property
    def is_instructed(self) -> bool:
        """Whether the instructions of every member are known without making them for a run."""
        return all(member.is_instructed for member in self.members.values())

    def member(self, name: str) -> Speaker:
        """Return the member of this name, the first for "". Raises SourceError."""
        check_type("speaker", name, str, "the name of an agent, a str")
        if name and name not in self.members:
            names = ", ".join(filter(None, self.members))
            known = f"it leads to: {names}" if names else "it has no name, and leads to no other"
            raise SourceError(f"this agent does not lead to an agent {name!r}; {known}")
        return self.members[name] if name else self.first

    def speaking_in(self, state: RunState) -> Speaker:
        """Return the member that continues a run.

        Raises SourceError for one that is not here, or if the records of the run say otherwise.
        """
        if state.speakers or self.first.handover_targets:
            check_speakers(
                state, {name: each.handover_targets for name, each in self.members.items()}
            )
        return self.members[state.speakers[-1]] if state.speakers else self.first

    def signed(self, state: RunState) -> RunState:
        """Return a state in the form that is saved."""
        return state if self.state_key is None else state.signed(self.state_key)

    def check_saved(self, state: RunState) -> None:
        """Raise SourceError unless a state was saved by a team with this key."""
        if self.state_key is not None:
            state.check_signature(self.state_key)

    def forked_state(
        self, state: RunState, point: ForkPoint, begun: Iterable[ToolInvocationRecord] = ()
    ) -> RunState:
        """Return the state of a run that continues from an earlier turn of another one.

        `begun` are calls of that run which, according to its log, have begun, too. Raises what
        `Agent.fork` raises.
        """
        self.check_saved(state)
        check_state(state)
        handover_targets = self.speaking_in(state).handover_targets
        return self.signed(
            fork_of(state, point, self, handover_targets=handover_targets, begun=begun)
        )

    def signature(self, kind: str, *texts: str) -> str:
        """Sign strings as something of this kind; return "" without a key."""
        return "" if self.state_key is None else keyed_digest(self.state_key, kind, *texts)

    def handover(self, record: ToolInvocationRecord) -> HandedOver | None:
        """Return who speaks next, if a call by one of the members has handed the run over."""
        speaker = self.members.get(
            self.first.name if record.origin is None else record.origin.agent
        )
        if (
            speaker is None
            or record.status != "completed"
            or record.name not in speaker.handover_targets
        ):
            return None
        next_agent = speaker.handover_targets[record.name]
        return HandedOver(next_agent, speaker.name, self.members[next_agent].label.version)

    def definition(self, name: str, by: str = "") -> ToolDefinition | None:
        """Return the first of `definitions`, if there is one."""
        return next(iter(self.definitions(name, by)), None)

    def definitions(self, name: str, by: str = "") -> tuple[ToolDefinition, ...]:
        """Return the definitions of the tools of this name that the member called `by` offers.

        If there is no such member, the definitions of all members, the first one's first. The
        agent's own tools (handovers, `search_tools`, `read_result`, the tool for its answer) are
        included.
        """
        definitions = (tool.definition for tool in self._tools(name, by))
        answer_tools = (
            each.output.definition for each in self._members_for(by) if each.output is not None
        )
        return (
            *definitions,
            *(definition for definition in answer_tools if definition.name == name),
        )

    def _members_for(self, by: str) -> Iterable[Speaker]:
        return [self.members[by]] if by in self.members else self.members.values()

    def _tools(self, name: str, by: str) -> list[Tool[..., Any]]:
        entries = (each.runner.catalog.by_name.get(name) for each in self._members_for(by))
        return [entry.tool for entry in entries if entry is not None]

    def only_reads(self, name: str, by: str) -> bool:
        """Return whether a call of this name, by the member `by` or the first one, only reads.

        False for a tool that is gone: nobody knows what it did.
        """
        definitions = self.definitions(name, by or self.first.name)
        return bool(definitions) and all(each.annotations.read_only for each in definitions)

    def may_run_agent(self, name: str, by: str) -> bool:
        """Return whether a call of this name by the member `by` may have begun an agent's run.

        True for a tool that is gone: nobody knows what it did.
        """
        tools = self._tools(name, by)
        return not tools or any(is_agent(tool) for tool in tools)

    def is_untrusted(self, past: Iterable[Message]) -> bool:
        """Return whether there is untrusted content in a history, from any agent.

        That is content marked so, and the result of a tool that is untrusted here, or unknown here:
        nobody can say what it has read. The library's own fixed wording is not untrusted.
        """
        return any(m.untrusted or (m.from_tool and self._reads_others(m)) for m in past)

    def _reads_others(self, result: Message) -> bool:
        definitions = self.definitions(result.name or "")
        if not definitions:
            own_texts = _OWN_ERRORS if result.is_error else (ANSWER_TAKEN,)
            return bool(result.parts) or result.content not in own_texts
        return any(definition.annotations.untrusted_output for definition in definitions)

    def prepared_state(
        self,
        prompt: Prompt,
        history: Sequence[Message],
        caller: Caller,
        offered: Sequence[str],
        options: RunOptions,
        *,
        run_id: str = "",
        speaker: str = "",
        instructed: bool | None = None,
    ) -> RunState:
        """Return the state of a run that has not begun, in which the member `speaker` speaks first.

        `instructed` says whether the history begins with the instructions of a previous run; None
        if there was no run.
        """
        member = self.member(speaker)
        check_options("a run", options)
        check_type("caller", caller, Caller, "a Caller, such as Caller('ada')")
        history = check_each("history", history, Message, _HISTORY)
        unmarked = prompt_message(prompt)
        run_id = run_id or f"run_{os.urandom(8).hex()}"
        is_tainted = is_tainted_here()  # a tool that has read untrusted content may quote it
        is_run_tainted = is_tainted or self.is_untrusted(history)
        message = msgspec.structs.replace(unmarked, untrusted=is_tainted)
        state = RunState(
            run_id,
            0,
            (*history, message),
            tally=RunTally(run_id, os.urandom(16).hex(), tainted=is_run_tainted),
            caller=caller,
            offered=_names(offered),
            settings=member.checked_settings(RunSettings.of(options)),
            speakers=(member.name,) if self.first.handover_targets else (),
            emulated=member.runner.emulates,
        )
        return member.with_instructions(state, instructed=instructed)

    async def plan(self, state: RunState, deps: Deps | None) -> RunPlan:
        """Return what the model would do first in a prepared run."""
        member = self.speaking_in(state)
        planning = Planning(
            member,
            member.bound_runner(deps),
            state,
            terms=self._terms(state, deps or {})._replace(steps=None),
            listener=NO_LISTENER,
            answers={},
        )
        return await planning.plan()

    def new_drive(self, state: RunState, deps: Deps | None, outer: OuterRun | None = None) -> Drive:
        """Return the function that drives a prepared run. Raises BindingError."""
        member = self.speaking_in(state)
        # if the outer call was begun before, the runs within it were, too
        is_resumed = outer is not None and outer.around.scope.may_have_begun
        return self._driven(member, state, {}, deps, outer, resumed=is_resumed)

    def resumed_drive(
        self,
        state: RunState,
        answers: Mapping[str, Answer],
        deps: Deps | None,
        outer: OuterRun | None = None,
    ) -> Drive:
        """Return the function that drives a saved run. Raises `Agent.resume`'s early errors."""
        check_type("state", state, RunState, "a RunState: RunState.from_json(text)")
        check_type("answers", answers, Mapping, "a dict of answers by the id of their request")
        expected = "a dict of Approve(by=…) and Refuse()"
        check_each("answers", answers.values(), (Approve, Refuse, NotAnAnswer), expected)
        self.check_saved(state)
        check_state(state)
        member = self.speaking_in(state)
        is_new = not state.speakers and not state.turn
        if self.first.handover_targets and is_new:  # prepared before it could hand over
            state = msgspec.structs.replace(state, speakers=(self.first.name,))
        if is_tainted_here() or self.is_untrusted(state.messages):
            tally = msgspec.structs.replace(state.tally, tainted=True)
            state = msgspec.structs.replace(state, tally=tally)
        is_handed_over = member.is_handed_over(state)
        if is_handed_over and state.origin is not None:  # it has not taken over yet
            state = member.taking_over(state, self.members[state.speakers[-2]])
        begins = is_handed_over or not state.turn
        if not begins:
            member.check_offered(state)
        return self._driven(member, state, answers, deps, outer, begins=begins, resumed=True)

    def _driven(
        self,
        member: Speaker,
        state: RunState,
        answers: Mapping[str, Answer],
        deps: Deps | None,
        outer: OuterRun | None,
        *,
        begins: bool = True,
        resumed: bool,
    ) -> Drive:
        """Return the function that drives a run in which `member` continues, and then others."""
        guards = () if outer is None else outer.around.scope.guards
        if state.fork is not None:
            guards = (*guards, RepeatGuard(state.fork))
        runners = self._runners(state, deps, guards)
        deps = deps or {}
        if deps or state.given:  # the state names what a run is given, as far as a tool needs it
            needed = self._needed()
            check_given_again(state.given, needed, deps)
            names = {*state.given, *given_names(needed, deps)}
            state = msgspec.structs.replace(state, given=tuple(sorted(names)))
        if state.emulated and not runners[member.name].emulates:
            raise SourceError(MADE_UP)

        async def drive(listener: Listener) -> RunResult:
            speaker, current_state, speaker_begins, current_answers = member, state, begins, answers
            tally: RunTally | None = None
            offered: dict[str, tuple[str, ...]] = {}  # keeps what a provider has read in its place
            while True:
                runner = runners[speaker.name]
                run = Run(
                    speaker,
                    runner if outer is None else runner.or_sinks(outer.around.sinks),
                    current_state,
                    terms=self._terms(current_state, deps)._replace(
                        tally=tally, guards=guards, begins=speaker_begins, resumed=resumed
                    ),
                    listener=listener,
                    answers=current_answers,
                    outer=outer,
                )
                result = await run.drive()
                if run.next_agent is None:
                    return result
                previous, speaker, tally = speaker, self.members[run.next_agent], run.tally
                runners[speaker.name] = runners[speaker.name].emulated_as(runner)
                offered[previous.name] = result.state.offered
                current_state = speaker.taking_over(
                    result.state, previous, offered.get(speaker.name, ())
                )
                speaker_begins, current_answers = True, {}
                listener.emit(HandedOver(speaker.name, previous.name, speaker.label.version))

        return drive

    def _needed(self) -> dict[type, set[str]]:
        """Return the interfaces that tools need, each with its places: `tool.parameter`.

        With several agents, a place is `agent.tool.parameter`.
        """
        needed: dict[type, set[str]] = {}
        for name, member in self.members.items():
            prefix = f"{name}." if len(self.members) > 1 else ""
            for entry in member.runner.catalog.entries:
                for need in entry.tool.needs:
                    path = f"{prefix}{entry.tool.definition.name}.{need.parameter}"
                    needed.setdefault(need.interface, set()).add(path)
        return needed

    def _runners(
        self, state: RunState, deps: Deps | None, guards: Iterable[Guard]
    ) -> dict[str, ToolRunner]:
        runners = {name: each.bound_runner(deps) for name, each in self.members.items()}
        for guard in guards:
            runners = {name: each.asking_first(guard) for name, each in runners.items()}
        for previous, name in pairwise(state.speakers):
            runners[name] = runners[name].emulated_as(runners[previous])
        return runners

    def _terms(self, state: RunState, deps: Deps) -> RunTerms:
        """Return the terms of a run, with the strictest limits of all its speakers."""
        limits = [self.first.limits, *(self.members[name].limits for name in state.speakers)]
        return RunTerms(
            strictest(limits) if state.speakers else self.first.limits,
            deps,
            self.state_key,
            self.steps,
            lambda before: check_given_again(before, self._needed(), deps),
        )


def _names(offered: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple. Raises ToolcribError for anything else, such as one string."""
    is_list = isinstance(offered, Sequence) and not isinstance(offered, str)
    if not is_list or not all(isinstance(name, str) for name in offered):
        raise ToolcribError(
            "offered= is a list of tool names, such as `state.offered` of the run before"
        )
    return tuple(offered)
