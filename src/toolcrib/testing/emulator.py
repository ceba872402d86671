"""`ToolEmulator` replaces an agent's tools, so that the agent can be tried without effects.

Rule: no code of a tool or a capability runs. Everything else about a call is unchanged. Results
come from the test (a script) or are made up by a model, and every record says so
(`record.emulated`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from toolcrib.agent import Agent
from toolcrib.agent.handover import is_handover, team_of
from toolcrib.agent.output import unfenced
from toolcrib.agent.picking import search_tools
from toolcrib.agent.results import read_result
from toolcrib.clients import client_for
from toolcrib.errors import ToolError
from toolcrib.hydration import ParseFailure, parse_json
from toolcrib.runner import ToolRunner
from toolcrib.runner.output import public_arguments
from toolcrib.tools import Tool
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, canonical_json
from toolcrib.values.message import ChatRequest, LLMClient, Message, OutputFormat
from toolcrib.values.typed import check_type, names_parameters

T = TypeVar("T", Agent, ToolRunner)
_NO_ANSWERS: Mapping[str, object] = MappingProxyType({})
_INSTRUCTIONS = (
    "You stand in for a tool, so that an agent that calls it can be tried: nothing really happens."
    " Answer with what the tool '{name}' would plausibly give for these arguments, and with nothing"
    " else. What it is for: {description}"
)
_JSON_INSTRUCTIONS = " Its result is one JSON value, valid by this JSON Schema: {schema}"


class ToolEmulator:
    """Replaces tools: `ToolEmulator({"refund": "done"}).over(agent)` is that agent without effects.

    `answers` has for each tool a value; an exception, which is raised; or a function of the
    arguments (a dictionary in the form of the tool's schema), async or not, or a generator of the
    parts of a streaming tool. Results without an answer are made up by `model`, a client or a name.
    It is told what the tool is for, the arguments except secret ones, and the schema of the result.
    Without a model such a call fails as `tool_error`. Results are checked by the tool's output
    schema, like those of the tool.
    """

    @names_parameters
    def __init__(
        self, answers: Mapping[str, object] = _NO_ANSWERS, *, model: LLMClient | str | None = None
    ) -> None:
        check_type("answers", answers, Mapping, "a dict of answers by the names of tools")
        self._answers = dict(answers)
        self._model = client_for(model) if isinstance(model, str) else model

    def over(self, thing: T) -> T:
        """Return an agent or a runner like this one whose tools are all replaced, including tools
        that it is given later and those of agents that it hands over to. Raises CatalogError for an
        answer of an unknown tool."""
        check_type("what is emulated", thing, (Agent, ToolRunner), "an Agent or a ToolRunner")
        runner = thing.runner if isinstance(thing, Agent) else thing
        self._check_answers(runner, thing)
        emulated: Any = runner.emulated(self._value, spares=_is_ours)
        if isinstance(thing, Agent):
            emulated = thing.replace(tools=emulated)
        result: T = emulated
        return result

    def _check_answers(self, runner: ToolRunner, thing: Agent | ToolRunner) -> None:
        """Raise CatalogError for an answer of a tool that no agent has that may speak."""
        team = team_of(thing) if isinstance(thing, Agent) and thing.handovers else {}
        team_tools = {name for speaker in team.values() for name in speaker.runner.catalog.names}
        runner.catalog.only(*(name for name in self._answers if name not in team_tools))

    def _value(self, definition: ToolDefinition, arguments: JsonObject) -> Any:
        """Return the value of a call, or what produces it."""
        if definition.name not in self._answers:
            return self._model_answer(definition, arguments)
        answer = self._answers[definition.name]
        if isinstance(answer, BaseException):
            raise answer
        return answer(arguments) if callable(answer) else copy.deepcopy(answer)

    async def _model_answer(self, definition: ToolDefinition, arguments: JsonObject) -> Any:
        if self._model is None:
            raise ToolError("The emulator has no answer for this tool.", retryable=False)
        schema = definition.output_schema_json
        instructions = _INSTRUCTIONS.format(
            name=definition.name, description=definition.description
        )
        instructions += "" if schema is None else _JSON_INSTRUCTIONS.format(schema=schema)
        arguments_json = canonical_json(public_arguments(definition, arguments))
        output = None if schema is None else OutputFormat(definition.name, schema)
        request = ChatRequest(
            (Message.system(instructions), Message.user(arguments_json)), output=output
        )
        reply = await self._model.chat(request)
        if schema is None:
            return reply.text
        parsed = parse_json(unfenced(reply.text))
        if isinstance(parsed, ParseFailure):
            raise ToolError(
                "The model that emulates this tool did not answer with JSON.", retryable=True
            )
        restorer = reply.offer.output
        return parsed[0] if restorer is None else restorer.restore(parsed[0])


def _is_ours(tool: Tool[..., Any]) -> bool:
    """Return whether a tool is the library's own, without effects: search, read on, hand over."""
    return tool is search_tools() or tool is read_result() or is_handover(tool)
