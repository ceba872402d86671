"""`Agent`: a model, a runner and limits, and what can be done with them.

Rule: an agent is frozen; each of its runs has its own state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import NoneType
from typing import Any, Unpack

from toolcrib.agent.context import SPILLED_BYTES, ContextKeeper, ContextOptions
from toolcrib.agent.driving import NO_LISTENER, RunPlan, Team
from toolcrib.agent.fork import ForkPoint
from toolcrib.agent.handover import (
    check_handovers,
    check_own_names,
    check_resolved,
    checked_handovers,
    handover_name,
    handover_tools,
    targets_of,
    team_of,
)
from toolcrib.agent.inner import OuterRun, Runs, agent_tool, inner_run_id
from toolcrib.agent.options import check_options
from toolcrib.agent.output import OutputType
from toolcrib.agent.picking import DEFERRED, AgentPicking, SearchTools
from toolcrib.agent.results import NAME as READ_RESULT
from toolcrib.agent.session import Session
from toolcrib.agent.speaker import AgentLabel, Deps, Speaker, check_given
from toolcrib.agent.stream import Drive, RunStream
from toolcrib.clients import client_for
from toolcrib.clients.base import models_of
from toolcrib.errors import AnswerError, DefinitionError, ToolcribError, counted
from toolcrib.pick import PickOptions
from toolcrib.runner import ToolRunner
from toolcrib.runner.output import MAX_RESULT_BYTES
from toolcrib.tools import Catalog, Tool, Tools
from toolcrib.values.content import Prompt
from toolcrib.values.context import StepRunner
from toolcrib.values.decision import ANONYMOUS, Answer, Caller
from toolcrib.values.definition import All, AnnotationOptions
from toolcrib.values.json import check_key
from toolcrib.values.message import LLMClient, Message, Settings
from toolcrib.values.run import (
    Instructions,
    Limits,
    Repeat,
    RunOptions,
    RunResult,
    RunSettings,
    RunState,
    check_run_id,
)
from toolcrib.values.typed import check_type, explains_wrong_types, got_type, names_parameters

_LONGEST = 3600.0  # seconds that an agent may take as a tool if its limits do not say
_TO_END = 60.0  # seconds after its limit in which its run has to end on its own


class Agent:
    """Runs the loop: the model calls tools until it has an answer, or a limit is reached.

    `model` is a client or a name such as `openai:gpt-5`. `tools` is a `ToolRunner`, or tools for a
    standard runner, which has no approver: what needs approval is refused. `instructions` are a
    string, or a function of the run (`RunInfo`), called once when the run begins. `settings` and
    `options` (`temperature=0`, `reasoning="low"`, `tool_choice=` … `RunOptions`) are sent with each
    request; options take precedence over settings, and the client's own settings apply where
    neither says anything.

    With `pick`, each run offers only the tools picked for its prompt and history. With
    `search_tools` the model can find more of them with a tool of that name; `"deferred"` and
    `"listed"` fix where it gets the tools found, in the result or in the list of tools, whatever is
    known of the provider.

    `name` and `version` are in the records of the agent's calls and in telemetry. With
    `record_prompts`, the system's and the user's messages are given to the sinks that keep
    attachments. With a `state_key` (32 random bytes, stored out of users' reach) the states and
    sessions that it saves are signed, and it accepts no others. With `durability` each reply of its
    model, and each call of a tool, is a stored step; `toolcrib.durable` sets this.

    `handovers` are agents that this one may hand the conversation over to (`description` says what
    an agent is for), or names of agents of the same run, such as the one it came from. `output` is
    the type that the final text is parsed as (JSON, by pydantic); a text that does not fit goes
    back to the model. With a `context`, each request is kept within what the model takes, and
    offers `read_result` for what was left out.

    Raises CatalogError if `search_tools` or `read_result` would be the name of two tools, or if
    `tool_choice` names none of the tools; ContextError for a `context` whose number of tokens
    nobody has given; ToolcribError for `search_tools` without `pick`, for an invalid key, and for
    handovers to itself or to two agents of one name.
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
        search_tools: SearchTools = False,
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
        check_options("an agent", options)
        if not callable(instructions):
            check_type("instructions", instructions, str, "a str, or a function of a RunInfo")
        check_type("settings", settings, Settings, "a Settings, such as Settings(temperature=0)")
        check_type("limits", limits, Limits, "a Limits, such as Limits(turns=5)")
        check_type("pick", pick, (PickOptions, NoneType), "a PickOptions, or None")
        check_type(
            "context", context, (ContextOptions, NoneType), "a ContextOptions(tokens=…), or None"
        )
        if type(search_tools) not in (bool, str) or search_tools not in DEFERRED:
            expected = "True, False, 'deferred' or 'listed'"
            raise TypeError(f"search_tools must be {expected}; {got_type(search_tools)}")
        if search_tools and pick is None:
            problem = f"search_tools={search_tools!r} needs pick=PickOptions(…)"
            raise ToolcribError(f"{problem}: without it, all tools are offered")
        self.client = _client_of(model)
        max_bytes = MAX_RESULT_BYTES if context is None else SPILLED_BYTES
        self._base_runner = (
            tools
            if isinstance(tools, ToolRunner)
            else ToolRunner(tools, max_result_bytes=max_bytes)
        )
        self.instructions = instructions
        self._run_settings = RunSettings.of(options).over(settings)
        self.settings = self._run_settings.of_requests
        self.limits = limits
        self.pick = pick
        self.search_tools = search_tools
        self._label = AgentLabel(name, version, record_prompts)
        check_type("description", description, str, "a str: what the agent is for")
        self.description = description
        self.handovers = checked_handovers(handovers)
        self.context = context
        self._keeper: ContextKeeper | None = None
        self._picking: AgentPicking | None = None
        self.output = output
        self._runner = self._full_runner()
        self._check_team()
        self._missing = self._runner.catalog.given_each_run()
        self._output = None if output is str else OutputType(output, self._runner.catalog)
        self._speaker.checked_settings(self._run_settings)
        self._state_key = None if state_key is None else check_key("state_key", state_key)
        if durability is not None and not callable(getattr(durability, "run", None)):
            raise TypeError(f"durability must be a StepRunner; {got_type(durability)}")
        self._durability = durability

    @property
    def runner(self) -> ToolRunner:
        """The runner of its tools; `replace(tools=…)` makes an agent with another one."""
        return self._base_runner

    @property
    def name(self) -> str:
        """The agent's name in records and telemetry, if it has one."""
        return self._label.name

    @property
    def version(self) -> str:
        """The author's version of the agent in records and telemetry, if there is one."""
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
        """Run to the end.

        Raises ClientError if the provider fails (RequestError, before anything is sent, for a part
        of the prompt that it cannot take) and AnswerError if the code of `output` fails; both have
        `.state`. Raises PickError if the scorer fails, what a function of `instructions` raises,
        and, before anything runs, BindingError for `deps` that do not fit or are missing.

        `deps` are capabilities for this run, keyed by their interfaces, as `Catalog.bind` takes
        them. They supply what is bound as `per_run`, or replace another binding. `options` are
        model options for this run (`RunOptions`), where they differ from the agent's.

        With `pick`, pass in `offered` what the previous run of the same conversation offered
        (`state.offered`): it stays on offer, so that the provider's cache remains useful. `speaker`
        names the agent that begins, from `handovers` or theirs: the one that answered last in the
        same conversation (`result.agent`). A session passes both.
        """
        state = self.team.prepared_state(prompt, history, caller, offered, options, speaker=speaker)
        return await self.team.new_drive(state, deps)(NO_LISTENER)

    async def plan(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        deps: Deps | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> RunPlan:
        """Ask the model once, and return what it would do: its calls and what policies say.

        The calls are hydrated, but none runs, nobody is asked, and no budget is spent, except a
        caller's budget of tokens or money, by the request. The sinks get a record of each call as
        `planned` or `rejected`. Takes and raises what `run` does.
        """
        state = self.team.prepared_state(prompt, history, caller, offered, options, speaker=speaker)
        return await self.team.plan(state, deps)

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
        """Start a run in the running event loop, and return its events as a stream."""
        state = self.team.prepared_state(prompt, history, caller, offered, options, speaker=speaker)
        return RunStream(self.team.new_drive(state, deps))

    async def resume(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunResult:
        """Continue a waiting run where it stopped; `answers` maps approval request ids to answers.

        The run keeps the options that it began with. No state holds `deps`, which are the
        application's objects, so they are given again. Raises BindingError, before anything runs,
        if they are missing.

        Raises SourceError if a tool that was offered no longer exists, if the state was changed
        since it was saved (as far as that can be told without a `state_key`), or if the run was
        emulated and this agent is not. Raises ApprovalError for an answer to a question that the
        state does not ask.
        """
        return await self.team.resumed_drive(state, answers or {}, deps)(NO_LISTENER)

    def resume_stream(
        self,
        state: RunState,
        answers: Mapping[str, Answer] | None = None,
        *,
        deps: Deps | None = None,
    ) -> RunStream:
        """Do what `resume` does, and return its events as a stream."""
        return RunStream(self.team.resumed_drive(state, answers or {}, deps))

    def prepare(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        caller: Caller = ANONYMOUS,
        offered: Sequence[str] = (),
        run_id: str | None = None,
        speaker: str = "",
        **options: Unpack[RunOptions],
    ) -> RunState:
        """Return the state of a run that has not begun: `resume` begins it, in any process.

        `run_id` is a run id that no other run has; without it, one is made. Raises ToolcribError
        for an id that is blank, longer than 200 characters, or not printable.
        """
        check_run_id("run_id", run_id)
        state = self.team.prepared_state(
            prompt, history, caller, offered, options, run_id=run_id or "", speaker=speaker
        )
        return self.team.signed(state)

    def fork(
        self,
        state: RunState,
        *,
        turn: int,
        prompt: Prompt | None = None,
        reopen: bool = False,
        repeat: Repeat = "deny",
        fork_id: str | None = None,
    ) -> RunState:
        """Return the state of a new run that continues from an earlier turn of another one.

        `resume` begins it. Its `fork` names the first run, and the effects that came after that
        turn.

        Everything up to the results of `turn` is kept (0: what was said before the first turn).
        From there the model is asked again, with `prompt` as what the user says next, or in place
        of what they said last. With `reopen`, the calls of that turn are decided, and asked about,
        again. Answers given in the first run do not count; what it had spent by then does. A call
        that would repeat an effect is denied as `repeated_effect`; with `repeat="ask"` somebody is
        asked, with "allow" the other policies decide. `fork_id` is the new run's id, like `run_id`
        in `prepare`.

        Raises SourceError as `resume` does, and ToolcribError for a turn that does not exist.
        """
        check_type(
            "state", state, RunState, "a RunState: result.state, or RunState.from_json(text)"
        )
        point = ForkPoint.of(turn, prompt, reopen=reopen, repeat=repeat, fork_id=fork_id)
        return self.team.forked_state(state, point)

    @names_parameters
    def replace(
        self,
        *,
        model: LLMClient | str | None = None,
        tools: ToolRunner | Catalog | Tools | None = None,
        durability: StepRunner | None = None,
    ) -> Agent:
        """Return a copy of the agent with another model, other tools or other steps.

        Tools that are not a runner are run with the agent's own policy, approver and sinks. An
        emulated agent stays emulated.
        """
        if isinstance(tools, ToolRunner):
            tools = tools.emulated_as(self.runner)
        elif tools is not None:
            tools = self.runner.over(tools)
        return Agent(
            self.client if model is None else model,
            self.runner if tools is None else tools,
            instructions=self.instructions,
            settings=self.settings,
            tool_choice=self._run_settings.tool_choice,
            parallel_tool_calls=self._run_settings.parallel_tool_calls,
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
        """Return a completed run's text as the `output` type of the agent that spoke.

        Raises AnswerError if the code of `output` fails, or refuses the text now.
        """
        if speaker not in ("", self.name):
            return self.speaking(speaker).output_of(text)
        if self._output is None:
            return text
        value, complaint = self._output.read(text, hook=self.runner.on_exception)
        if complaint is not None:
            raise AnswerError("the answer of this run does not fit the agent's present `output`")
        return value

    @property
    def signs(self) -> bool:
        """Whether the states that it saves are signed, so that it accepts no others."""
        return self._state_key is not None

    def as_tool(
        self,
        name: str = "",
        description: str = "",
        *,
        visible: Sequence[str] | All = (),
        **annotations: Unpack[AnnotationOptions],
    ) -> Tool[..., Any]:
        """Return a tool that gives the agent a `prompt`, with its answer as the result.

        Without a `name` or `description` the tool has the agent's own. The agent's run is part of
        the run that calls it: it spends from that run's budget, and if it waits for an approval,
        that run waits. If the agent has no approver or no sinks, it uses those of that run. The
        result's schema is that of `output`; `visible` says which of its fields others may see, by
        default none. Without annotations the tool is `read_only` if all tools of the agent are, and
        may take as long as the agent (an hour, unless its limits say otherwise). That run's options
        and `deps` are not passed to the agent.

        Raises DefinitionError, also if an agent that it hands over to has another `output`, and
        BindingError for an agent with capabilities that each run has to be given.
        """
        name, description = name or self.name, description or self.description
        if not (name and description):
            raise DefinitionError(
                "an agent needs a name and a description to be a tool: Agent(…, name=…, description=…),"
                " or as_tool(name, description)"
            )
        team = self._members.values()
        for each in team:
            check_given(
                each._missing, "an agent that is a tool is given none: bind it in its catalog"
            )
            if each.output != self.output:
                reason = f"agent '{each.name}', which it may hand over to, has a different output="
                raise DefinitionError(f"tool '{name}': {reason}")
        entries = (entry for each in team for entry in each._runner.catalog.entries)
        is_read_only = all(entry.tool.definition.annotations.read_only for entry in entries)
        seconds = self.limits.seconds
        options: AnnotationOptions = {
            "read_only": is_read_only,
            "timeout": _LONGEST if seconds is None else seconds + _TO_END,
            **annotations,
        }

        def begin(prompt: str, outer: OuterRun) -> Drive:
            run_id = inner_run_id(outer.call.run_id, outer.call.call_id)
            state = self.team.prepared_state(prompt, (), outer.caller, (), {}, run_id=run_id)
            return self.team.new_drive(state, None, outer)

        def resume(state: RunState, answers: Mapping[str, Answer], outer: OuterRun) -> Drive:
            return self.team.resumed_drive(state, answers, None, outer)

        runs = Runs(begin, resume)
        return agent_tool(
            self, runs, name, description, output=self.output, visible=visible, annotations=options
        )

    def __repr__(self) -> str:
        """Name the agent, its model and its number of tools."""
        name = f" {self.name!r}" if self.name else ""
        return f"<Agent{name} of {self.client.model}, {counted(len(self._runner.catalog), 'tool')}>"

    def session(self, messages: tuple[Message, ...] = ()) -> Session[Agent]:
        """Return a conversation with this agent."""
        return Session(self, messages)

    @property
    def _speaker(self) -> Speaker:
        return Speaker(
            client=self.client,
            runner=self._runner,
            label=self._label,
            instructions=self.instructions,
            settings=self._run_settings,
            limits=self.limits,
            handover_targets=targets_of(self),
            missing=self._missing,
            output=self._output,
            picking=self._picking,
            keeper=self._keeper,
        )

    @property
    def team(self) -> Team:
        """The agents that may speak in its runs, in their present form, as a team."""
        members = {name: each._speaker for name, each in self._members.items()}
        return Team(members, self._state_key, self._durability)

    # Handing over: which other agents speak in this agent's runs.

    def _full_runner(self) -> ToolRunner:
        """Return the runner of everything that the agent offers.

        That is its tools and the search for them, the handovers, and `read_result`. Raises
        ToolcribError, CatalogError and ContextError.
        """
        extra = Catalog()
        if self.handovers:
            check_handovers(self)
            extra = handover_tools(self.handovers)
        if self.context is not None:
            picks = self.pick is not None
            self._keeper = ContextKeeper(self.context, models_of(self.client), picks=picks)
            extra = extra.with_tools(self._keeper.tools)
        if self.pick is None:
            return self.runner.with_tools(extra) if extra.names else self.runner
        answer_tools = int(self.output is not str)
        self._picking = AgentPicking(
            self.runner,
            self.pick,
            search=self.search_tools,
            always=extra,
            answer_tools=answer_tools,
        )
        return self._picking.runner

    def _check_team(self) -> None:
        """Check the names in its team.

        Raises ToolcribError for two agents of one name, and CatalogError for a tool with the name
        of one of the handovers, or of `read_result` if one of the agents has a context.
        """
        if not self.handovers:
            return
        team = team_of(self)
        reserved = {handover_name(name): f"the handover to '{name}'" for name in team}
        for each in team.values():
            if each.context is not None:
                reserved[READ_RESULT] = f"the tool that '{each.name}' has for its context="
        for each in team.values():
            check_own_names(each.name, each.runner.catalog.names, reserved)

    @property
    def _members(self) -> Mapping[str, Agent]:
        """The agents of its runs, by name. Raises ToolcribError for a handover to any other."""
        return self._handed_to if self.handovers else {self.name: self}

    @cached_property
    def _handed_to(self) -> Mapping[str, Agent]:
        team = team_of(self)
        check_resolved(team)
        others = {  # they use this agent's sinks and approver if they have none
            name: each.replace(tools=each.runner.completed_by(self.runner))
            for name, each in team.items()
            if each is not self
        }
        return {self.name: self, **others}

    def speaking(self, name: str) -> Agent:
        """Return the agent with this name in its runs, itself for "". Raises SourceError."""
        return self._members[self.team.member(name).name]

    @explains_wrong_types
    def speaking_in(self, state: RunState) -> Agent:
        """Return the agent that continues a run.

        Raises SourceError if that agent is not here, or if the records of the run say otherwise.
        """
        return self._members[self.team.speaking_in(state).name]


def _client_of(model: LLMClient | str) -> LLMClient:
    client = client_for(model) if isinstance(model, str) else model
    if isinstance(model, type) or not callable(getattr(client, "chat", None)):
        expected = "a client of toolcrib.clients, or a name such as 'openai:gpt-5'"
        own = _OVER_SDK.get(getattr(model, "__module__", "").partition(".")[0])
        advice = f": write {own}(NAME, sdk=…), of toolcrib.clients" if own else ""
        raise TypeError(f"model must be {expected}; {got_type(model)}{advice}")
    return client


_OVER_SDK = {"openai": "OpenAIClient", "anthropic": "AnthropicClient"}
"""Our client over the client object of a provider's own package."""
