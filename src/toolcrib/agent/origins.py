"""Where the calls of a run come from: whose agent, which turn, which model, from which prompt."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from toolcrib.agent.toolbox import Toolbox
from toolcrib.errors import ToolcribError
from toolcrib.runner import CallScope
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import encodable
from toolcrib.values.message import Message, Reply
from toolcrib.values.origin import PEOPLE, Attachment, Choice, Origin, prompt_of


class AgentLabel(msgspec.Struct, frozen=True):
    """What an agent is called in records, and whether they may refer to the text of its prompts."""

    name: str = ""
    version: str = ""
    record_prompts: bool = False

    def __post_init__(self) -> None:
        for option, text in (("name", self.name), ("version", self.version)):
            if not isinstance(text, str):
                raise ToolcribError(f"{option}= is a text: {option}='…'")
            msgspec.structs.force_setattr(self, option, encodable(text))
        if not isinstance(self.record_prompts, bool):
            raise ToolcribError("record_prompts= is True or False")


class Origins:
    """Tells of one run, turn by turn, what its records refer to; what is long is made once."""

    def __init__(self, label: AgentLabel, run_id: str, before: Origin | None) -> None:
        self._label = label
        self._run_id = run_id
        self._prompts: tuple[object, ...] = ()
        self._prompt: Attachment | None = None
        self._choices: tuple[Choice, Attachment] | None = None
        self.last = before

    def of_reply(self, reply: Reply, model: str, turn: int) -> None:
        """The calls that are made from here on came in this reply."""
        self.last = Origin(
            agent=self._label.name,
            agent_version=self._label.version,
            turn=turn,
            model=reply.model or model,
            provider=reply.provider,
        )

    def scope(self, scope: CallScope, messages: Sequence[Message], toolbox: Toolbox) -> CallScope:
        """The scope of the calls of the reply at hand; `messages` are those up to it.

        What a run that goes on had been asked for before keeps the origin that it had.
        """
        prompt = self._prompt_of(messages, toolbox.tools)
        choice = self._choice_of(toolbox.choice)
        origin = self.last or Origin(agent=self._label.name, agent_version=self._label.version)
        if not origin.prompt_digest:
            origin = msgspec.structs.replace(
                origin,
                prompt_digest=prompt.digest,
                choice_digest="" if choice is None else choice.digest,
            )
        self.last = origin
        kept = [prompt] if self._label.record_prompts else []
        kept += [] if choice is None else [choice]
        referred = (origin.prompt_digest, origin.choice_digest)
        attachments = tuple(each for each in kept if each.digest in referred)
        return msgspec.structs.replace(
            scope, origin=origin, choice=toolbox.choice, attachments=attachments
        )

    def prompt_digest(self, messages: Sequence[Message], toolbox: Toolbox) -> str:
        """That of the prompt as it is now."""
        return self._prompt_of(messages, toolbox.tools).digest

    def _prompt_of(
        self, messages: Sequence[Message], tools: tuple[HasDefinition, ...]
    ) -> Attachment:
        said = [message for message in messages if message.role in PEOPLE]
        asked = (len(said), tools)
        if self._prompt is None or asked != self._prompts:
            self._prompt = prompt_of(said, tools, run_id=self._run_id)
            self._prompts = asked
        return self._prompt

    def _choice_of(self, choice: Choice | None) -> Attachment | None:
        if choice is None:
            return None
        if self._choices is None or self._choices[0] is not choice:
            made = Attachment.of("choice", choice, run_id=self._run_id)
            self._choices = (choice, made)
        return self._choices[1]
