"""`Speaker`: what an agent brings to a run: its client, tools, instructions and settings.

Rule: a speaker is a frozen value and knows no other speaker. What it does in a run follows from the
run's state: instructions that are a function of the run are called once, when it begins, and what
was picked once stays on offer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, ClassVar, TypeAlias

import msgspec

from toolcrib.agent.context import ContextKeeper
from toolcrib.agent.handover import handover_name, handover_target, within_catalog
from toolcrib.agent.history import split_system
from toolcrib.agent.output import OutputType, without_output
from toolcrib.agent.picking import AgentPicking, Toolbox
from toolcrib.errors import BindingError, SourceError, ToolcribError
from toolcrib.runner import ToolRunner
from toolcrib.values.context import PolicyContext, StepRunner
from toolcrib.values.json import Redacted, encodable
from toolcrib.values.message import LLMClient, Message, ToolChoice
from toolcrib.values.run import Instructions, Limits, RunInfo, RunSettings, RunState, moved
from toolcrib.values.step import ToolsStep
from toolcrib.values.typed import check_type

Deps: TypeAlias = Mapping[Any, object]
"""Capabilities of one run: an implementation, or `per_call(…)`, keyed by its interface, a class.

To a type checker a `dict[type[Orders], …]` is not a mapping of arbitrary classes, so the keys are
checked at run time.
"""
_PLACEHOLDER = Message.system("")
"""Reserves the place of instructions that are a function of the run, until it begins."""


class AgentLabel(msgspec.Struct, frozen=True):
    """Says what an agent is called in records, and whether they may refer to its prompts' text."""

    name: str = ""
    version: str = ""
    record_prompts: bool = False

    def __post_init__(self) -> None:
        for option, text in (("name", self.name), ("version", self.version)):
            if not isinstance(text, str):
                raise ToolcribError(f"{option}= is a str: {option}='…'")
            msgspec.structs.force_setattr(self, option, encodable(text))
        if not isinstance(self.record_prompts, bool):
            raise ToolcribError("record_prompts= is True or False")


class Speaker(Redacted, msgspec.Struct, frozen=True, eq=False):
    """Holds what one agent brings to a run.

    `runner` has all of its tools: its own, the search for them, and those that hand over
    (`handover_targets` maps these to agents). `settings` are its model settings, which a run may
    override; `missing` names the capabilities that each run has to be given.
    """

    redacted: ClassVar[tuple[str, ...]] = ("instructions", "output")

    client: LLMClient
    runner: ToolRunner
    label: AgentLabel
    instructions: Instructions
    settings: RunSettings
    limits: Limits
    handover_targets: Mapping[str, str]
    missing: str
    output: OutputType | None
    picking: AgentPicking | None
    keeper: ContextKeeper | None

    @property
    def name(self) -> str:
        return self.label.name

    def system_messages(self) -> list[Message]:
        """Return the instructions that a run begins with; a placeholder for a function."""
        if not isinstance(self.instructions, str):
            return [_PLACEHOLDER]
        text = self._full_instructions(self.instructions)
        return [Message.system(text)] if text else []

    @property
    def is_instructed(self) -> bool:
        """Whether it has its own instructions, beyond those of `output`, the same for each run."""
        return isinstance(self.instructions, str) and self.instructions != ""

    def with_instructions(self, state: RunState, *, instructed: bool | None) -> RunState:
        """Return a run that has only its history and prompt, with instructions added.

        A leading system message is replaced: by a string at once, by a function's result if it is
        not empty. It is always replaced if a previous run was `instructed` with it, and never if a
        previous run left it there. What other agents' instructions say about writing a typed answer
        is removed, too.
        """
        system = self.system_messages()
        leading, conversation = split_system(state.messages)
        leading = tuple(filter(None, map(without_output, leading[1:] if instructed else leading)))
        has_own = leading != () and instructed is None
        if has_own and self.is_instructed:
            has_own, leading = False, leading[1:]
        mode: Any = "first" if system else "none"
        if has_own and system == [_PLACEHOLDER]:
            mode = "replacing"
        return msgspec.structs.replace(
            state, messages=(*system, *leading, *conversation), instructions=mode
        )

    def _full_instructions(self, instructions: str) -> str:
        """Return the instructions, with those for writing a typed answer."""
        texts = [encodable(instructions), self.output.instructions if self.output else ""]
        return "\n\n".join(text for text in texts if text)

    def instructions_for(self, state: RunState, deps: Deps) -> Callable[[], Awaitable[str]] | None:
        """Return a function that makes the instructions of a run that only has a placeholder."""
        if state.messages[:1] != (_PLACEHOLDER,):
            return None
        info = RunInfo(state.run_id, state.caller, self.name, state.messages[1:], deps)

        async def instruct() -> str:
            text: Any = self.instructions
            if callable(text):
                text = text(info)
            if isawaitable(text):
                text = await text
            check_type("the result of instructions", text, str, "a str")
            return self._full_instructions(text)

        return instruct

    def checked_settings(self, settings: RunSettings) -> RunSettings:
        """Return the settings. Raises CatalogError for the choice of a tool that does not exist."""
        for name in _names_in(settings.tool_choice):
            self.runner.catalog.only(name)
        return settings

    def settings_for(self, state: RunState) -> RunSettings:
        """Return what a run asks of the model: its own settings, then the agent's."""
        settings = state.settings
        if len(state.speakers) > 1:
            choice = within_catalog(settings.tool_choice, self.runner.catalog)
            settings = msgspec.structs.replace(settings, tool_choice=choice)
        return self.settings if settings == RunSettings() else settings.over(self.settings)

    def bound_runner(self, deps: Deps | None) -> ToolRunner:
        """Return the runner of one run, with the capabilities it is given. Raises BindingError."""
        runner, missing = self.runner, self.missing
        if deps:
            runner = runner.over(runner.catalog.bind(deps))
            missing = runner.catalog.given_each_run()
        check_given(missing, "give it with deps={Interface: implementation}")
        return runner

    async def new_toolbox(
        self, state: RunState, context: PolicyContext, steps: StepRunner | None
    ) -> Toolbox:
        """Return the toolbox of a run in which this agent begins to speak.

        The toolbox has all tools, or those picked for what was said; `state` names what was offered
        before. Picking is a step: what was picked once stays on offer, as far as it still exists.
        """
        catalog, picking = self.runner.catalog, self.picking
        if picking is None:
            return Toolbox(catalog, tuple(catalog))
        chosen = _names_in(self.settings_for(state).tool_choice)
        earlier = (*state.offered, *(name for name in chosen if name not in state.offered))
        begin = partial(picking.begin, state.messages, earlier, context, begun=state.turn > 0)
        if steps is None:
            return await begin()
        toolboxes: list[Toolbox] = []

        async def work() -> ToolsStep:
            toolboxes.append(await begin())
            return ToolsStep(toolboxes[0].names, toolboxes[0].choice)

        step = await steps.run("tools", work, ToolsStep)
        existing = [name for name in step.names if name in catalog]
        return toolboxes[0] if toolboxes else picking.reopen(existing, context, step.choice)

    def check_offered(self, state: RunState) -> None:
        """Raise SourceError if a tool that a saved run was offered no longer exists."""
        missing = [name for name in state.offered if name not in self.runner.catalog]
        if missing:
            raise SourceError(
                f"the run was offered the tool '{missing[0]}', which this agent does not have"
            )

    def restored_toolbox(self, state: RunState, context: PolicyContext) -> Toolbox:
        """Return the toolbox of a resumed run, with what it was offered."""
        offered = tuple(dict.fromkeys(state.offered))
        if self.picking is not None:
            return self.picking.reopen(offered, context, state.choice)
        return Toolbox.of(self.runner.catalog, offered)

    def is_handed_over(self, state: RunState) -> bool:
        """Return whether a run was handed over to this agent, which has said nothing since."""
        own_tool = {handover_name(self.name): self.name} if len(state.speakers) > 1 else {}
        return handover_target(state.messages, own_tool) is not None

    def taking_over(self, state: RunState, by: Speaker, before: tuple[str, ...] = ()) -> RunState:
        """Return the state of a run in which this agent begins to speak, handed over `by` another.

        It has this agent's instructions in place of the other's, and the tools that it offered
        `before`, if it has spoken in this process.
        """
        system, has_instructions = self.system_messages(), state.instructions not in ("none", None)
        if state.instructions is None:  # saved by an earlier version
            has_instructions = bool(by.system_messages()) and state.messages[0].role == "system"
        return msgspec.structs.replace(
            state,
            messages=(*system, *state.messages[has_instructions:]),
            instructions="first" if system else "none",
            marks=moved(state.marks, len(system) - has_instructions),
            offered=before,
            origin=None,
            choice=None,
        )


def check_given(missing: str, remedy: str, who: str = "") -> None:
    """Raise BindingError if capabilities are missing that each run has to be given, to `who`."""
    if missing:
        prefix = f"{who}: " if who else ""
        raise BindingError(f"{prefix}{missing}, which must be given to each run; {remedy}")


def _names_in(choice: ToolChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ()
    return (*choice.allowed, choice.name) if choice.name is not None else choice.allowed
