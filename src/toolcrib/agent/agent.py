"""`Agent`: a model, a runner and limits; `Session`: a conversation with one.

An agent is frozen; each of its runs has its own state.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, partial
from inspect import isawaitable
from types import NoneType
from typing import Any, TypeAlias, Unpack

import msgspec

from toolcrib.agent.context import SPILLED_BYTES, ContextKeeper, ContextOptions
from toolcrib.agent.fork import ForkPoint, RepeatGuard, fork_of
from toolcrib.agent.handover import (
    check_handovers,
    check_own_names,
    check_resolved,
    check_speakers,
    checked_handovers,
    handed_to,
    handover_name,
    handover_tools,
    heirs_of,
    strictest,
    team_of,
    within_catalog,
)
from toolcrib.agent.history import (
    RunTurn,
    SaidWithin,
    check_state,
    error_content,
    joined,
    settled,
    split_system,
)
from toolcrib.agent.inner import OuterRun, Runs, agent_tool, inner_run_id
from toolcrib.agent.loop import AgentLabel, Listener, OutputType, Run, RunTerms
from toolcrib.agent.picking import AgentPicking, OpenToolbox, Toolbox
from toolcrib.agent.plan import Planning, RunPlan
from toolcrib.agent.prompt import asked_message
from toolcrib.agent.stream import RunStream
from toolcrib.clients import client_for
from toolcrib.errors import (
    AnswerError,
    BindingError,
    DefinitionError,
    ErrorCode,
    SourceError,
    ToolcribError,
)
from toolcrib.pick import PickOptions
from toolcrib.runner import ToolRunner, is_tainted_here
from toolcrib.runner.approval import NotAnAnswer
from toolcrib.runner.output import MAX_RESULT_BYTES
from toolcrib.tools import Catalog, Tool, Tools
from toolcrib.values.content import Prompt
from toolcrib.values.context import PolicyContext, RunTally, StepRunner
from toolcrib.values.decision import ANONYMOUS, Answer, Approve, Caller, Refuse
from toolcrib.values.definition import All, AnnotationOptions, ToolDefinition
from toolcrib.values.json import canonical_json, encodable, keyed_digest
from toolcrib.values.message import LLMClient, Message, Settings, ToolChoice
from toolcrib.values.record import CallError, ToolInvocationRecord
from toolcrib.values.run import (
    Done,
    Event,
    HandedOver,
    Instructions,
    Limits,
    Repeat,
    RunInfo,
    RunOptions,
    RunResult,
    RunSettings,
    RunStarted,
    RunState,
    check_all_read,
    check_signature,
)
from toolcrib.values.step import ToolsStep
from toolcrib.values.typed import came, check_each, check_type

# A session: each `send` is a run that knows what was said before.
#
# Rule: a call that was made stays in the conversation with its one result, however its run ended. A
# model that is told "try again" must see what it has done already, or it does it twice. A run that
# failed, or was cancelled, before it called anything leaves nothing behind.

Deps: TypeAlias = Mapping[Any, object]
"""Capabilities of one run: an implementation, or `per_call(…)`, by its interface, a class. To a type
checker a `dict[type[Orders], …]` is no mapping of any classes, so the keys are checked when it runs."""
_SHORTEST_KEY = 16
_LONGEST_ID = 200  # characters of a run's
_LONGEST = 3600.0  # seconds that an agent may take as a tool, if its limits do not say
_TO_END = 60.0  # seconds after its limit in which its run has to end by itself
_KEPT = ("completed", "limited", "waiting")
_ELSEWHERE = "the run is of another conversation, or of a turn of this one that was not kept"
_MADE_UP = (
    "the run was emulated, so what its tools gave was made up, and nothing has happened: resume it"
    " with the agent that ToolEmulator(…).over(…) gives, or begin it anew"
)
_STALE = (
    "the state is not the last one of its run, which has gone on in this conversation:"
    " resume the state that it ended with, or send(…) what is to be done now"
)


class _SavedTurn(msgspec.Struct, frozen=True):
    """A turn, without its messages: how many of the conversation's it has."""

    run_id: str
    before: int
    count: int
    over: bool = False
    within: dict[str, SaidWithin] = {}


class _SavedSession(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    offered: tuple[str, ...] = ()
    signature: str = ""
    turns: tuple[_SavedTurn, ...] = ()
    speaker: str = ""


class Session:
    """Keeps the messages of a conversation with an agent. One `send` or `stream` at a time.

    `offered` names the tools that its runs have offered, where the agent picks them. `speaker` names
    the agent that the next run begins with, "" for `agent` itself: the one that spoke last, where one
    hands over to another.
    """

    def __init__(
        self, agent: Agent, messages: tuple[Message, ...] = (), offered: tuple[str, ...] = ()
    ) -> None:
        if not callable(getattr(agent, "start", None)):
            raise TypeError(f"agent is an Agent; {came(agent)}")
        self.agent = agent
        self._turns: tuple[RunTurn, ...] = ()
        self._messages: tuple[Message, ...] = ()
        self.messages = messages
        self.offered = check_each("offered", offered, str, "a list of names")
        self.speaker = ""
        self._busy: RunTurn | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, as the next run will know it."""
        return self._messages

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        """Take other messages; runs stay known where these go on with what there is."""
        here = split_system(self._messages)[1]
        checked = check_each("messages", messages, Message, "a list of Message")
        self._system, said = split_system(checked)
        goes_on = said[: len(here)] == here
        kept, more = (self._turns, said[len(here) :]) if goes_on else ((), said)
        self._take((*kept, RunTurn(messages=more)))

    async def send(
        self,
        prompt: Prompt,
        *,
        caller: Caller = ANONYMOUS,
        deps: Deps | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run the agent; its messages become the history. Raises ToolcribError during another run.

        Takes and raises what `Agent.run` does; what ran before that stays in the conversation.
        """
        return await self._run(
            self._next_turn(),
            lambda heard: self.agent.start(
                prompt,
                heard,
                history=self.messages,
                caller=caller,
                offered=self.offered,
                deps=deps,
                speaker=self.speaker,
                **options,
            ),
        )

    async def resume(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunResult:
        """Go on with a run of this conversation that waits, or failed, and keep it.

        Raises what `Agent.resume` does; what ran before that stays in the conversation. Raises
        ToolcribError, before anything runs, for a run that is none of this conversation, and for a
        state that is not the last one of its run here.
        """
        return await self._run(
            self._turn_of(state),
            lambda heard: self.agent.start_again(state, heard, answers or {}, deps=deps),
        )

    async def _run(
        self,
        turn: RunTurn,
        start: Callable[[Callable[[Event], None]], Coroutine[Any, Any, RunResult]],
    ) -> RunResult:
        self._begin(turn)
        ended: list[RunResult] = []

        def heard(event: Event) -> None:
            if isinstance(event, Done):
                ended.append(event.result)

        try:
            return await start(heard)
        finally:
            self._end(turn, ended[0] if ended else None)

    def stream(
        self,
        prompt: Prompt,
        *,
        caller: Caller = ANONYMOUS,
        deps: Deps | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream:
        """Run `send` with its events; the session is busy until the run has ended, read or not."""
        return self._streamed(
            self._next_turn(),
            lambda: self.agent.stream(
                prompt,
                history=self.messages,
                caller=caller,
                offered=self.offered,
                deps=deps,
                speaker=self.speaker,
                **options,
            ),
        )

    def resume_stream(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunStream:
        """`resume`, with its events."""
        return self._streamed(
            self._turn_of(state), lambda: self.agent.resume_stream(state, answers, deps=deps)
        )

    def _streamed(self, turn: RunTurn, start: Callable[[], RunStream]) -> RunStream:
        self._begin(turn)
        try:
            stream = start()
        except BaseException:
            self._end(turn, None)
            raise
        stream.when_ended(lambda result: self._end(turn, result))
        return stream

    def keep(self, result: RunResult) -> None:
        """Take a run into the conversation that an agent has resumed; `send`, `stream` and `resume` see
        to their own.

        The run takes the place that it has, also where the conversation went on while it waited. What
        the conversation has already is not taken again. Raises ToolcribError for a run that is none of
        this conversation, and for one that has gone on otherwise here: that would be lost.
        """
        check_type("result", result, RunResult, "a RunResult: what agent.resume(…) gives")
        if self._busy is not None and self._busy.run_id == result.state.run_id:
            raise ToolcribError("this session is busy with that run: await its end before")
        before = self._known(result.state)
        turn = before.replaced(result.state, over=result.status == "completed")
        if turn.extends(before):
            self._put(turn, result)
        elif not before.extends(turn):
            raise ToolcribError("the run has gone on otherwise in this conversation")

    def _next_turn(self) -> RunTurn:
        """Return the turn, still empty, of a run that begins now."""
        return RunTurn(before=len(split_system(self.messages)[1]))

    def _turn_of(self, state: RunState) -> RunTurn:
        """Return the turn of the run whose last state here this is. Raises ToolcribError otherwise."""
        check_type("state", state, RunState, "a RunState: RunState.from_json(text)")
        known = self._known(state)
        turn = known.replaced(state)
        if not known.messages and turn.tells_more(known):
            raise ToolcribError(_ELSEWHERE)
        if known.messages and not (turn.extends(known) and known.extends(turn)):
            raise ToolcribError(_STALE)
        return known

    def _known(self, state: RunState) -> RunTurn:
        """Return the turn of a run as the conversation has it, empty if it begins behind all of that.

        Raises ToolcribError for a run that has no place here.
        """
        for turn in self._turns:
            if turn.run_id == state.run_id:
                return turn
        said, here = settled(state), split_system(self.messages)[1]
        next_ = said[len(here) : len(here) + 1]  # a run begins with what a user says
        if next_ and next_[0].role == "user" and said[: len(here)] == here:
            return RunTurn(state.run_id, len(here))
        return self._adopted(RunTurn(state.run_id, messages=said))

    def _adopted(self, whole: RunTurn) -> RunTurn:
        """Return the turn of a run whose messages were given to the session as a list.

        They begin with all of it, and go on, if at all, with what a user said. Raises ToolcribError.
        """
        first, *others = self._turns or (RunTurn(),)
        at = len(whole.messages)
        same = first.messages[:at] == whole.messages
        begins = bool(first.messages) and first.messages[:1] == whole.messages[:1]
        extends = not others and whole.extends(first)  # others began on messages that it has not
        if first.run_id or not (begins and (same or extends)):
            raise ToolcribError(_ELSEWHERE)
        if any(message.role != "user" for message in first.messages[at : at + 1]):
            raise ToolcribError(_STALE)
        turn = msgspec.structs.replace(whole, messages=first.messages[:at])
        self._take((turn, RunTurn(messages=first.messages[at:]), *others))
        return turn

    def _take(self, turns: tuple[RunTurn, ...]) -> None:
        self._turns = tuple(turn for turn in turns if turn.messages)
        self._messages = (*self._system, *joined(self._turns))

    def _put(self, turn: RunTurn, result: RunResult) -> None:
        """Put a turn in its place: where it is already, or behind all others."""
        before = self._messages
        if any(each.run_id == turn.run_id for each in self._turns):
            turns = tuple(turn if t.run_id == turn.run_id else t for t in self._turns)
        else:
            self._system, turns = split_system(result.messages)[0], (*self._turns, turn)
        self._take(turns)
        spoke = self.agent.speaking((result.state.speakers or ("",))[-1])
        if self._messages != before and spoke.pick is not None:
            self.offered = result.state.offered or self.offered
        if result.state.speakers and self._turns and self._turns[-1].run_id == turn.run_id:
            self.speaker = result.state.speakers[-1]

    def _begin(self, turn: RunTurn) -> None:
        if self._busy is not None:
            raise ToolcribError("this session is busy: await the send, or the stream, before")
        self._busy = turn

    def _end(self, turn: RunTurn, result: RunResult | None) -> None:
        """Keep the run, unless it failed, or was cancelled, before it called anything; or, where it was
        resumed, before there was more to tell of a call."""
        self._busy = None
        if result is None:
            return
        begun = msgspec.structs.replace(turn, run_id=result.state.run_id)
        ended = begun.replaced(result.state, over=result.status == "completed")
        if result.status in _KEPT or ended.tells_more(begun):
            self._put(ended, result)

    def to_json(self) -> str:
        """Return the messages as a JSON list, or an object with what else has to be known: what was
        offered where the agent picks, which runs may go on, the signature."""
        saved = self._saved()
        signature = self._signature(saved)
        if not (saved.offered or saved.turns or saved.speaker or signature):
            return msgspec.json.encode(saved.messages).decode()
        return msgspec.json.encode(msgspec.structs.replace(saved, signature=signature)).decode()

    @classmethod
    def from_json(cls, agent: Agent, text: str | bytes) -> Session:
        """Raise SourceError if the text is not a saved session, or not as an agent with the same
        `state_key` has saved it."""
        check_type("text", text, (str, bytes), "the JSON of a saved session, str or bytes")
        try:
            saved = msgspec.json.decode(text, type=_SavedSession | tuple[Message, ...])
            check_all_read(text, saved)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"not a saved session: {error}") from None
        if not isinstance(saved, _SavedSession):
            saved = _SavedSession(saved)
        session = cls(agent, saved.messages, saved.offered)
        if saved.speaker:
            session.speaker = agent.speaking(saved.speaker).name
        made = session._signature(saved)
        if made:
            check_signature(saved.signature, made, "the saved session")
        if saved.turns:
            session._take(_turns_of(saved))
        return session

    def _saved(self) -> _SavedSession:
        said = tuple(message for turn in self._turns for message in turn.messages)
        messages = (*self._system, *said)
        turns = tuple(
            _SavedTurn(turn.run_id, turn.before, len(turn.messages), turn.over, turn.within)
            for turn in self._turns
        )
        over = all(turn.over or not turn.run_id for turn in turns)
        plain = over and messages == self._messages
        kept = () if plain else turns
        return _SavedSession(messages, self.offered, turns=kept, speaker=self.speaker)

    def _signature(self, saved: _SavedSession) -> str:
        signed = (saved.messages, saved.offered, *([saved.turns] if saved.turns else []))
        plain = msgspec.json.decode(msgspec.json.encode(signed))
        plain += [{"speaker": saved.speaker}] if saved.speaker else []
        for turn in plain[2] if saved.turns else ():
            if not turn["within"]:
                del turn["within"]  # 0.2 had none: what it signed goes on
        return self.agent.signature("toolcrib session", canonical_json(plain))


def _turns_of(saved: _SavedSession) -> tuple[RunTurn, ...]:
    """Return the turns with their messages. Raises SourceError if they are not those of these."""
    said = split_system(saved.messages)[1]
    ids = [turn.run_id for turn in saved.turns if turn.run_id]
    counts = [turn.count for turn in saved.turns]
    wrong = min(counts) < 0 or sum(counts) != len(said) or len(set(ids)) != len(ids)
    if wrong or any(turn.before < 0 for turn in saved.turns):
        raise SourceError("not a saved session: its turns are not those of its messages")
    ends = itertools.accumulate(counts)
    return tuple(
        RunTurn(turn.run_id, turn.before, said[end - turn.count : end], turn.over, turn.within)
        for turn, end in zip(saved.turns, ends, strict=True)
    )


def checked_key(key: bytes | None) -> bytes | None:
    """Return a key for signing. Raises ToolcribError for what is none."""
    if key is not None and (not isinstance(key, bytes) or len(key) < _SHORTEST_KEY):
        raise ToolcribError(f"state_key is at least {_SHORTEST_KEY} random bytes: os.urandom(32)")
    return key


class Agent:
    """Runs the loop: the model calls tools until it has an answer, or a limit is reached.

    `model` is a client or a name such as `openai:gpt-5`; `tools` a `ToolRunner`, or tools for a
    standard one (without an approver: what needs approval is refused). `instructions` are a text, or a
    function of the run (`RunInfo`), which is called once, when it begins. `settings` and `options`
    (`temperature=0`, `reasoning="low"`, `tool_choice=` … `RunOptions`), which come before them, go with
    each request; the client's own apply where they say nothing. With `pick`, each run
    offers only the tools picked for its prompt and history; with `search_tools` the model can find more
    of them by a tool of that name. `name` and `version` are in the records of the agent's calls and in
    telemetry; with `record_prompts`, what the system and the user said is given to the sinks that keep
    what records refer to. With a `state_key` (32 random bytes, kept where no user is) the states and
    sessions that it saves are signed, and it goes on with no others. With `durability` each reply of
    its model, and each call of a tool, is a step that is kept; `toolcrib.durable` sees to that.
    `handovers` are agents that this one may hand the conversation over to (`description` says what an
    agent is for), or names of agents of the same run, such as that which it came from.
    `output` is the type that the final text is read as (JSON, by pydantic); a text that does not fit
    goes back to the model. With a `context` each request is kept within what the model takes, and has
    `read_result` for what was left out. Raises CatalogError where `search_tools` or `read_result` would
    be the name of two tools, and for a `tool_choice` that is none of the tools; ContextError for a
    `context` of as many tokens as nobody has said; ToolcribError for `search_tools` without `pick`, for
    what is no key, and for handovers to itself or to two agents of one name.
    """

    def __init__(  # noqa: PLR0913  what an application may want to set, each with a default
        self,
        model: LLMClient | str,
        tools: ToolRunner | Catalog | Tools = (),
        *,
        instructions: Instructions = "",
        settings: Settings = Settings(),  # noqa: B008  frozen
        limits: Limits = Limits(),  # noqa: B008  frozen
        pick: PickOptions | None = None,
        search_tools: bool = False,
        output: Any = str,
        name: str = "",
        version: str = "",
        record_prompts: bool = False,
        state_key: bytes | None = None,
        durability: StepRunner | None = None,
        context: ContextOptions | None = None,
        handovers: Sequence[Agent | str] = (),
        description: str = "",
        **options: Unpack[RunOptions],
    ) -> None:
        if not callable(instructions):
            check_type("instructions", instructions, str, "a str, or a function of a RunInfo")
        check_type("settings", settings, Settings, "a Settings, such as Settings(temperature=0)")
        check_type("limits", limits, Limits, "a Limits, such as Limits(turns=5)")
        check_type("pick", pick, (PickOptions, NoneType), "a PickOptions, or None")
        check_type(
            "context", context, (ContextOptions, NoneType), "a ContextOptions(tokens=…), or None"
        )
        check_type("search_tools", search_tools, bool, "True or False")
        if search_tools and pick is None:
            raise ToolcribError("search_tools=True needs pick=PickOptions(…): else all are offered")
        self.client = client_for(model) if isinstance(model, str) else model
        if isinstance(model, type) or not callable(getattr(self.client, "chat", None)):
            wanted = "a client, or a name such as 'openai:gpt-5'"
            raise TypeError(f"model is {wanted}; {came(model)}")
        most = MAX_RESULT_BYTES if context is None else SPILLED_BYTES
        self._given = (
            tools if isinstance(tools, ToolRunner) else ToolRunner(tools, max_result_bytes=most)
        )
        self.instructions = instructions
        self._asked = RunSettings.of(options).over(settings)
        self.settings = self._asked.of_requests
        self.limits = limits
        self.pick = pick
        self.search_tools = search_tools
        self._label = AgentLabel(name, version, record_prompts)
        check_type("description", description, str, "a str: what the agent is for")
        self.description = description
        self.handovers = checked_handovers(handovers)
        self.context = context
        hands = self._own_tools()
        self._hands = self.runner.with_tools(hands) if hands.names else self.runner
        self._picking = (
            None
            if pick is None
            else AgentPicking(self.runner, pick, search=search_tools, always=hands)
        )
        self._check_team()
        self._check_choice(self._asked)
        self._given_each_run = self._runner.catalog.given_each_run()
        self.output = output
        self._output = None if output is str else OutputType(output)
        self._state_key = checked_key(state_key)
        if durability is not None and not callable(getattr(durability, "run", None)):
            raise TypeError(f"durability is a StepRunner; {came(durability)}")
        self._durability = durability

    @property
    def runner(self) -> ToolRunner:
        """The runner of its tools; `replace(tools=…)` makes an agent with another one."""
        return self._given

    @property
    def name(self) -> str:
        """What the agent is called in records and telemetry, if it has a name."""
        return self._label.name

    @property
    def version(self) -> str:
        """The author's version of the agent, which records and telemetry have, if there is one."""
        return self._label.version

    async def run(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        deps: Deps | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run to the end. Raises ClientError if the provider fails (RequestError, before anything is
        sent, for a part of the prompt that it cannot be given), AnswerError if the code of `output`
        does (both have `.state`), PickError if the scorer does, what a function of `instructions`
        raises, and, before anything runs, BindingError for `deps` that do not fit or are missing.

        `deps` are capabilities for this run, by their interfaces, as `Catalog.bind` takes them: what is
        bound as `per_run`, or is to take the place of another. `options` are what this run asks of the
        model (`RunOptions`), where it is not as the agent does.
        With `pick`, what the run before it in the same conversation `offered` (`state.offered`) stays
        on offer, so that the provider's cache of it stays of use; a session sees to that.
        `speaker` names the agent of `handovers`, or of theirs, that begins: who answered last in the
        same conversation (`result.agent`); a session sees to that, too.
        """
        state = self._prepared(prompt, history, caller, offered, options, speaker=speaker)
        return await self._begin(state, deps)(_NOBODY)

    async def plan(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        deps: Deps | None = None,
        **options: Unpack[RunOptions],
    ) -> RunPlan:
        """Ask the model once, and return what it would do: its calls, hydrated, and what the policies
        say of each. None of them runs, nobody is asked, no budget is spent; the sinks get a record
        of each as `planned`, or `rejected`. Takes and raises what `run` does."""
        state = self._prepared(prompt, history, caller, offered, options)
        speaks = self.speaking_in(state)
        planning = Planning(
            speaks.client,
            speaks._bound(deps),
            state,
            open_toolbox=speaks._begun(state, keeps=False),
            terms=self._terms(speaks, state, deps or {}, None)._replace(steps=None),
            listener=_NOBODY,
            answers={},
        )
        return await planning.plan()

    def stream(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        deps: Deps | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> RunStream:
        """Start a run in the running event loop, and give its events as they come."""
        state = self._prepared(prompt, history, caller, offered, options, speaker=speaker)
        return self._streamed(self._begin(state, deps))

    def start(
        self,
        prompt: Prompt,
        emit: Callable[[Event], None],
        *,
        history: Sequence[Message],
        caller: Caller,
        offered: Sequence[str],
        deps: Deps | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, RunResult]:
        """Run for a session: `emit` gets every event, the last of them also where the run raises."""
        listener = Listener(emit, streaming=False)
        state = self._prepared(prompt, history, caller, offered, options, speaker=speaker)
        return self._begin(state, deps)(listener)

    def start_again(
        self,
        state: RunState,
        emit: Callable[[Event], None],
        answers: Mapping[str, Answer],
        *,
        deps: Deps | None = None,
    ) -> Coroutine[Any, Any, RunResult]:
        """Resume for a session, likewise."""
        return self._resumed(state, answers, deps)(Listener(emit, streaming=False))

    async def resume(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunResult:
        """Go on where a waiting run stopped; `answers` by the id of their approval request.

        The run goes on with the options that it began with. No state holds `deps`, which are the
        application's objects: they are given again. Raises BindingError, before anything runs, where
        they are missing.
        Raises SourceError if a tool that was offered is not there any more, if the state was changed
        since it was saved, as far as that can be told without a `state_key`, or if the run was emulated
        and this agent is not.
        Raises ApprovalError for an answer to a question that the state does not ask.
        """
        return await self._resumed(state, answers or {}, deps)(_NOBODY)

    def resume_stream(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunStream:
        """`resume`, with its events."""
        return self._streamed(self._resumed(state, answers or {}, deps))

    def prepare(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        run_id: str = "",
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> RunState:
        """Return the state of a run that has not begun: `resume` begins it, in any process.

        `run_id` is the run's id, one that no other run has; without it, one is made. Raises
        ToolcribError for one that is blank or longer than 200 characters, or not all printable.
        """
        check_type("run_id", run_id, str, "a str: the id of the run, as no other has it")
        if run_id and (not run_id.strip() or len(run_id) > _LONGEST_ID or not run_id.isprintable()):
            raise ToolcribError("run_id= is a text of at most 200 characters that can be printed")
        state = self._prepared(
            prompt, history, caller, offered, options, run_id=run_id, speaker=speaker
        )
        return state if self._state_key is None else state.signed(self._state_key)

    def fork(
        self,
        state: RunState,
        *,
        turn: int,
        prompt: Prompt | None = None,
        reopen: bool = False,
        repeat: Repeat = "deny",
    ) -> RunState:
        """Return the state of a run of its own that goes on from an earlier turn of another one:
        `resume` begins it. Its `fork` names the first run, and the effects of that which came later.

        All up to the results of `turn` is kept (0: what was said before the first). The model is asked
        again from there, with `prompt` as what the user says next, or in place of what they said last;
        with `reopen`, the calls of that turn are decided, and asked about, anew. No answer of the first
        run counts, and what it had spent by then does. A call that would repeat an effect is denied, as
        `repeated_effect`; with `repeat="ask"` somebody is asked, with "allow" the other policies
        decide. Raises SourceError as `resume` does, and ToolcribError for a turn that there is not.
        """
        check_type(
            "state", state, RunState, "a RunState: result.state, or RunState.from_json(text)"
        )
        self.check_saved(state)
        check_state(state)
        said = None if prompt is None else asked_message(prompt)
        if said is not None:  # in a tool that has read untrusted content, it may quote that
            said = msgspec.structs.replace(said, untrusted=is_tainted_here())

        def reads_only(name: str) -> bool:
            known = self.definition(name, self.name)
            return known is not None and known.annotations.read_only

        point = ForkPoint(turn, said, reopen, repeat)
        made = fork_of(state, point, reads_only=reads_only, reads_others=self._is_untrusted)
        return made if self._state_key is None else made.signed(self._state_key)

    def replace(
        self,
        *,
        model: LLMClient | str | None = None,
        tools: ToolRunner | Catalog | Tools | None = None,
        durability: StepRunner | None = None,
    ) -> Agent:
        """Return a copy of the agent with another model, other tools or other steps; what is no runner
        is run by the agent's own policy, approver and sinks. An agent that is emulated stays so."""
        if isinstance(tools, ToolRunner):
            tools = tools.emulated_as(self.runner)
        elif tools is not None:
            tools = self.runner.over(tools)
        return Agent(
            self.client if model is None else model,
            self.runner if tools is None else tools,
            instructions=self.instructions,
            settings=self.settings,
            tool_choice=self._asked.tool_choice,
            parallel_tool_calls=self._asked.parallel_tool_calls,
            limits=self.limits,
            pick=self.pick,
            search_tools=self.search_tools,
            output=self.output,
            name=self.name,
            version=self.version,
            record_prompts=self._label.record_prompts,
            state_key=self._state_key,
            durability=self._durability if durability is None else durability,
            context=self.context,
            handovers=self.handovers,
            description=self.description,
        )

    def output_of(self, text: str, speaker: str = "") -> Any:
        """Return what the text of a completed run is as `output` of the agent that spoke. Raises
        AnswerError where the code of `output` fails, or refuses the text now."""
        if speaker not in ("", self.name):
            return self.speaking(speaker).output_of(text)
        if self._output is None:
            return text
        found, complaint = self._output.read(text, hook=self.runner.on_exception)
        if complaint is not None:
            raise AnswerError("the answer of this run is not of the type of `output`, as it is now")
        return found

    def check_saved(self, state: RunState) -> None:
        """Raise SourceError unless a state is as this agent, or one with its `state_key`, saved it."""
        if self._state_key is not None:
            state.check_signature(self._state_key)

    @property
    def signs(self) -> bool:
        """Whether the states that it saves are signed, and it goes on with no others."""
        return self._state_key is not None

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        visible: Sequence[str] | All = (),
        **annotations: Unpack[AnnotationOptions],
    ) -> Tool[..., Any]:
        """Return a tool that gives the agent a `prompt`, and what it answers as the result.

        The agent's run is a part of the run that calls it: it spends what that has left, and where it
        waits for an approval, that waits. An approver and sinks that it has not are those of that run.
        The result's schema is that of `output`; `visible` says which of its fields others may see,
        by default none. Without annotations the tool is `read_only` if all tools of the agent are, and
        may take as long as the agent (an hour, unless its limits say). The options and `deps` of that
        run are not the agent's. Raises DefinitionError, also where an agent that it hands over to has
        another `output`, and BindingError for an agent with capabilities that each run is to be given.
        """
        team = self._team.values()
        for each in team:
            self._check_given(
                each._given_each_run, "an agent that is a tool is given none: bind it"
            )
            if each.output != self.output:
                why = f"agent '{each.name}', which it may hand over to, has another output="
                raise DefinitionError(f"tool '{name}': {why}")
        entries = (entry for each in team for entry in each._runner.catalog.entries)
        reads = all(entry.tool.definition.annotations.read_only for entry in entries)
        seconds = self.limits.seconds
        said: AnnotationOptions = {
            "read_only": reads,
            "timeout": _LONGEST if seconds is None else seconds + _TO_END,
            **annotations,
        }
        runs = Runs(self._begin_within, self._resume_within)
        return agent_tool(
            self, runs, name, description, output=self.output, visible=visible, annotations=said
        )

    def _begin_within(
        self, prompt: str, outer: OuterRun, emit: Callable[[Event], None]
    ) -> Coroutine[Any, Any, RunResult]:
        run_id = inner_run_id(outer.call.run_id, outer.call.call_id)
        state = self._prepared(prompt, (), outer.caller, (), {}, run_id=run_id)
        return self._begin(state, None, outer)(Listener(emit, streaming=False))

    def _resume_within(
        self,
        state: RunState,
        answers: Mapping[str, Answer],
        outer: OuterRun,
        emit: Callable[[Event], None],
    ) -> Coroutine[Any, Any, RunResult]:
        return self._resumed(state, answers, None, outer)(Listener(emit, streaming=False))

    def signature(self, kind: str, *texts: str) -> str:
        """Sign texts, as something of this kind, with the agent's `state_key`; return "" where it has
        none."""
        return "" if self._state_key is None else keyed_digest(self._state_key, kind, *texts)

    def session(self, messages: tuple[Message, ...] = ()) -> Session:
        """Return a conversation with this agent."""
        return Session(self, messages)

    def _streamed(self, drive: _Drive) -> RunStream:
        return RunStream(lambda emit: drive(Listener(emit)))

    def _begin(self, state: RunState, deps: Deps | None, outer: OuterRun | None = None) -> _Drive:
        speaks = self.speaking_in(state)
        return self._driven(speaks, state, speaks._begun(state, outer), {}, deps, outer)

    def _prepared(
        self,
        prompt: Prompt,
        history: Sequence[Message],
        caller: Caller,
        offered: Sequence[str],
        options: RunOptions,
        *,
        run_id: str = "",
        speaker: str = "",
    ) -> RunState:
        speaks = self.speaking(speaker) if speaker or self.handovers else self
        check_type("caller", caller, Caller, "a Caller, such as Caller('ada')")
        wanted = (
            "a list of Message: result.messages, or of OpenAI's form toolcrib.wire.decode_messages"
        )
        history = check_each("history", history, Message, wanted)
        said = asked_message(prompt)
        past = [m for i, m in enumerate(history) if i or m.role != "system"]
        system = speaks._system()
        run_id = run_id or f"run_{os.urandom(8).hex()}"
        within = is_tainted_here()  # a tool that has read untrusted content may quote it
        tainted = within or self._is_untrusted(past)
        asked = msgspec.structs.replace(said, untrusted=within)
        return RunState(
            run_id,
            0,
            (*system, *past, asked),
            tally=RunTally(run_id, os.urandom(16).hex(), tainted=tainted),
            caller=caller,
            offered=_names(offered),
            settings=speaks._check_choice(RunSettings.of(options)),
            speakers=(speaks.name,) if self.handovers else (),
        )

    def _system(self) -> list[Message]:
        """Return the instructions as a run begins with them; those of a function are still to come."""
        if not isinstance(self.instructions, str):
            return [_TO_COME]
        text = self._told(self.instructions)
        return [Message.system(text)] if text else []

    def _told(self, instructions: str) -> str:
        """Return the instructions with what says how a typed answer is written."""
        told = [encodable(instructions), self._output.instructions if self._output else ""]
        return "\n\n".join(text for text in told if text)

    def _check_choice(self, asked: RunSettings) -> RunSettings:
        """Return the settings. Raises CatalogError for a choice of a tool that there is not."""
        for name in _names_in(asked.tool_choice):
            self._runner.catalog.only(name)
        return asked

    @staticmethod
    def _check_given(missing: str, why: str) -> None:
        if missing:
            raise BindingError(f"{missing}, which each run is given; {why}")

    def _instructing(self, state: RunState, deps: Deps) -> Callable[[], Awaitable[str]] | None:
        """Return what makes the instructions of a run that has none yet, but a place for them."""
        if state.messages[:1] != (_TO_COME,):
            return None
        info = RunInfo(state.run_id, state.caller, self.name, state.messages[1:], deps)

        async def instruct() -> str:
            text: Any = self.instructions
            if callable(text):
                text = text(info)
            if isawaitable(text):
                text = await text
            check_type("what instructions gives", text, str, "a str")
            return self._told(text)

        return instruct

    def _is_untrusted(self, past: Iterable[Message]) -> bool:
        """Return whether there is untrusted content in a history, of whichever agent.

        That is what is marked so, and the result of a tool that is untrusted here, or that nobody here
        knows: who knows what it has read? Errors in our own fixed words are nobody's content.
        """
        return any(m.untrusted or (m.role == "tool" and self._reads_others(m)) for m in past)

    def _reads_others(self, result: Message) -> bool:
        found = self.definitions(result.name or "")
        if not found:
            return not (result.is_error and result.content in _OWN_WORDS)
        return any(definition.annotations.untrusted_output for definition in found)

    def _resumed(
        self,
        state: RunState,
        answers: Mapping[str, Answer],
        deps: Deps | None,
        outer: OuterRun | None = None,
    ) -> _Drive:
        check_type("state", state, RunState, "a RunState: RunState.from_json(text)")
        check_type("answers", answers, Mapping, "a dict of answers by the id of their request")
        wanted = "a dict of Approve(by=…) and Refuse()"
        check_each("answers", answers.values(), (Approve, Refuse, NotAnAnswer), wanted)
        self.check_saved(state)
        check_state(state)
        speaks = self.speaking_in(state)
        if self.handovers and not state.speakers and not state.turn:  # older than its handovers
            state = msgspec.structs.replace(state, speakers=(self.name,))
        if is_tainted_here() or self._is_untrusted(state.messages):
            tally = msgspec.structs.replace(state.tally, tainted=True)
            state = msgspec.structs.replace(state, tally=tally)
        if speaks._is_handed(state):
            state = speaks._taking_over(state, self._team[state.speakers[-2]])
        elif state.turn:
            opened = speaks._reopened(state)
            return self._driven(speaks, state, opened, answers, deps, outer)
        return self._driven(speaks, state, speaks._begun(state, outer), answers, deps, outer)

    def _reopened(self, state: RunState) -> OpenToolbox:
        """Return what a run was offered. Raises SourceError for a tool that is not there any more."""
        catalog, picking = self._runner.catalog, self._picking
        offered = tuple(dict.fromkeys(state.offered))
        gone = [name for name in offered if name not in catalog]
        if gone:
            raise SourceError(f"the run was offered '{gone[0]}', which this agent does not have")

        async def opened(context: PolicyContext) -> Toolbox:
            if picking is not None:
                return picking.reopen(offered, context, state.choice)
            return Toolbox.of(catalog, offered)

        return opened

    def _begun(
        self, state: RunState, outer: OuterRun | None = None, *, keeps: bool = True
    ) -> OpenToolbox:
        """Return all tools, or those picked for what was said; `state` names
        what was offered before it."""
        catalog, picking = self._runner.catalog, self._picking
        steps = self._durability if keeps and outer is None else None
        before = state.offered
        if picking is not None:
            chosen = _names_in(self._asking(state).tool_choice)
            before = (*before, *(name for name in chosen if name not in before))

        async def opened(context: PolicyContext) -> Toolbox:
            if picking is None:
                return Toolbox(catalog, tuple(catalog))
            begin = partial(picking.begin, state.messages, before, begun=state.turn > 0)
            if steps is None:
                return await begin(context)
            return await _picked(begin, picking, context, steps)

        return opened

    @property
    def _runner(self) -> ToolRunner:
        """Return the runner of the calls: the agent's tools, the search for them, and handovers."""
        return self._hands if self._picking is None else self._picking.runner

    def _driven(
        self,
        speaks: Agent,
        state: RunState,
        opened: OpenToolbox,
        answers: Mapping[str, Answer],
        deps: Deps | None,
        outer: OuterRun | None,
    ) -> _Drive:
        """Return what drives a run of this agent, in which `speaks` goes on, and then whoever is handed
        over to. Raises BindingError."""
        runners = {name: each._bound(deps) for name, each in self._team.items()}
        guards = () if outer is None else outer.around.scope.guards
        if state.fork is not None:
            guards = (*guards, RepeatGuard(state.fork))
        for guard in guards:
            runners = {name: each.asking_first(guard) for name, each in runners.items()}
        for before, name in itertools.pairwise(state.speakers):
            runners[name] = runners[name].emulated_as(runners[before])
        if state.emulated and not runners[speaks.name].emulates:
            raise SourceError(_MADE_UP)

        async def drive(listener: Listener) -> RunResult:
            agent, at, toolbox, given, told = speaks, state, opened, answers, listener
            tally: RunTally | None = None
            offered: dict[str, tuple[str, ...]] = {}  # what a provider has read stays in its place
            while True:
                runner = runners[agent.name]
                run = Run(
                    agent.client,
                    runner if outer is None else runner.or_sinks(outer.around.sinks),
                    at,
                    open_toolbox=toolbox,
                    terms=self._terms(agent, at, deps or {}, tally)._replace(guards=guards),
                    listener=told,
                    answers=given,
                    outer=outer,
                )
                result = await run.drive()
                if run.heir is None:
                    return result
                by, agent, tally = agent, self._team[run.heir], run.tally
                runners[agent.name] = runners[agent.name].emulated_as(runner)
                offered[by.name] = result.state.offered
                before = offered.get(agent.name, ())
                at, given = agent._taking_over(result.state, by, before), {}
                toolbox, told = agent._begun(at, outer), going_on(listener)
                listener.emit(HandedOver(agent.name, by.name, agent.version))

        return drive

    def _terms(
        self, speaks: Agent, state: RunState, deps: Deps, tally: RunTally | None
    ) -> RunTerms:
        """Return the terms of a run while an agent speaks in it: the strictest of all who have."""
        limits = [self.limits, *(self._team[name].limits for name in state.speakers)]
        return RunTerms(
            strictest(limits) if state.speakers else self.limits,
            speaks._output,
            speaks._label,
            self._state_key,
            speaks._asking(state),
            self._durability,
            speaks._instructing(state, deps),
            heirs_of(speaks) if speaks.handovers else {},
            tally,
            speaks._keeper,
        )

    def _asking(self, state: RunState) -> RunSettings:
        """Return what a run asks of the model: what it says itself, and else what the agent does."""
        own = state.settings
        if len(state.speakers) > 1:
            choice = within_catalog(own.tool_choice, self._runner.catalog)
            own = msgspec.structs.replace(own, tool_choice=choice)
        return self._asked if own == RunSettings() else own.over(self._asked)

    # Handing over: who else speaks in the runs of this agent.

    def _own_tools(self) -> Catalog:
        """Return what the agent offers besides its tools: the handovers, and what reads on in results.
        Raises ToolcribError, and ContextError."""
        hands = Catalog()
        if self.handovers:
            check_handovers(self)
            hands = handover_tools(self.handovers)
        self._keeper: ContextKeeper | None = None
        if self.context is not None:
            picks = self.pick is not None
            self._keeper = ContextKeeper(self.context, self.client.model, picks=picks)
            hands = hands.with_tools(self._keeper.tools)
        return hands

    def _check_team(self) -> None:
        """Raise ToolcribError for agents of one name, and CatalogError for a tool called as one of
        their handovers."""
        if not self.handovers:
            return
        team = team_of(self)
        reserved = {handover_name(name): name for name in team}
        for each in team.values():
            check_own_names(each.name, each.runner.catalog.names, reserved)

    @property
    def _team(self) -> Mapping[str, Agent]:
        """The agents of its runs, by name. Raises ToolcribError for a handover to none of them."""
        return self._handed_to if self.handovers else {self.name: self}

    @cached_property
    def _handed_to(self) -> Mapping[str, Agent]:
        found = team_of(self)
        check_resolved(found)
        return {name: self if each is self else each._lent(self) for name, each in found.items()}

    def _lent(self, first: Agent) -> Agent:
        """Return the agent for runs of another one: with its sinks, its key, and its approver, where
        this one has none."""
        lent = self.replace(tools=self.runner.completed_by(first.runner))
        lent._state_key, lent._durability = first._state_key, first._durability
        return lent

    def speaking(self, name: str) -> Agent:
        """Return the agent of its runs that has this name, itself for "". Raises SourceError."""
        if name in ("", self.name):
            return self
        if name not in self._team:
            raise SourceError(
                f"there is no agent {name!r} that this one leads to: {', '.join(self._team)}"
            )
        return self._team[name]

    def definition(self, name: str, by: str = "") -> ToolDefinition | None:
        """Return the first of `definitions`."""
        return next(iter(self.definitions(name, by)), None)

    def definitions(self, name: str, by: str = "") -> tuple[ToolDefinition, ...]:
        """Return the definitions of the tools of this name that an agent of its runs offers: the one
        called `by`, or, where there is none, each of them, itself first. What it offers of its own
        (handovers, `search_tools`, `read_result`) is among them."""
        team = self._team
        asked = [team[by]] if by in team else team.values()
        named = (each._runner.catalog.by_name.get(name) for each in asked)
        return tuple(entry.tool.definition for entry in named if entry is not None)

    def handover(self, record: ToolInvocationRecord) -> HandedOver | None:
        """Return who speaks next, where a call of a run of this agent has handed it over."""
        by = record.origin.agent if record.origin is not None else self.name
        if not self.handovers or record.status != "completed" or by not in self._team:
            return None
        heir = heirs_of(self._team[by]).get(record.name)
        return None if heir is None else HandedOver(heir, by, self._team[heir].version)

    def speaking_in(self, state: RunState) -> Agent:
        """Return the agent that goes on with a run. Raises SourceError for one that is not here, and
        where the records of the run say otherwise."""
        if not state.speakers and not self.handovers:
            return self
        check_speakers(state, self._team)
        return self._team[state.speakers[-1]] if state.speakers else self

    def _is_handed(self, state: RunState) -> bool:
        """Return whether a run was handed over to this agent, which has said nothing since."""
        own = {handover_name(self.name): self.name} if len(state.speakers) > 1 else {}
        return handed_to(state.messages, own) is not None

    def _taking_over(self, state: RunState, by: Agent, before: tuple[str, ...] = ()) -> RunState:
        """Return the state of a run as this agent begins to speak in it, handed over `by` another one:
        with its instructions instead of theirs, and what it offered `before`, if it has spoken in this
        process."""
        instructed = bool(by._system()) and state.messages[0].role == "system"
        said = state.messages[1:] if instructed else state.messages
        return msgspec.structs.replace(
            state, messages=(*self._system(), *said), offered=before, origin=None, choice=None
        )

    def _bound(self, deps: Deps | None) -> ToolRunner:
        """Return the runner of one run, with the capabilities that it is given. Raises BindingError."""
        runner, missing = self._runner, self._given_each_run
        if deps:
            runner = runner.over(runner.catalog.bind(deps))
            missing = runner.catalog.given_each_run()
        self._check_given(missing, "give it with deps={Interface: implementation}")
        return runner


async def _picked(
    begin: Callable[[PolicyContext], Awaitable[Toolbox]],
    picking: AgentPicking,
    context: PolicyContext,
    steps: StepRunner,
) -> Toolbox:
    """Pick as a step of the run: what was picked once stays on offer."""
    opened: list[Toolbox] = []

    async def work() -> ToolsStep:
        opened.append(await begin(context))
        return ToolsStep(opened[0].names, opened[0].choice)

    step = await steps.run("tools", work, ToolsStep)
    return opened[0] if opened else picking.reopen(step.names, context, step.choice)


def going_on(listener: Listener) -> Listener:
    """Return the listener for an agent that goes on with a run, which has begun once."""

    def tell(event: Event) -> None:
        if not isinstance(event, RunStarted):
            listener.emit(event)

    return Listener(tell, listener.streaming)


def _names_in(choice: ToolChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ()
    return (*choice.allowed, choice.name) if choice.name is not None else choice.allowed


def _names(offered: Sequence[str]) -> tuple[str, ...]:
    """Raise ToolcribError for what are no names, such as one string."""
    several = isinstance(offered, Sequence) and not isinstance(offered, str)
    if not several or not all(isinstance(name, str) for name in offered):
        raise ToolcribError("offered= is a list of names: that of the run before, `state.offered`")
    return tuple(offered)


_TO_COME = Message.system("")
"""Keeps the place of instructions that are a function of the run, until it begins."""
_OWN_WORDS = frozenset(error_content(CallError.of(code)) for code in ErrorCode)
_Drive: TypeAlias = Callable[[Listener], Coroutine[Any, Any, RunResult]]
_NOBODY = Listener(lambda _event: None, streaming=False)
