"""How each provider is told of a tool: one small function a provider, and a table of them.

A shape gives the facts of a tool their places and decides nothing: which view of the schema a provider
gets, under which name, and whether strictly, has been settled before (`views`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolcrib.schema.dialects import (
    ANTHROPIC,
    ANTHROPIC_STRICT,
    COHERE,
    GEMINI,
    OLLAMA,
    OPENAI,
    OPENAI_STRICT,
)
from toolcrib.schema.lower import Dialect
from toolcrib.values.json import JsonObject
from toolcrib.wire.names import NameRule
from toolcrib.wire.strict import StrictLimits


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider is told of one tool. `schema` is JSON, or encoded text to be spliced in.

    `strict` is None where nothing is to be said of it.
    """

    name: str
    description: str
    schema: Any
    strict: bool | None = None
    examples: tuple[JsonObject, ...] = ()


Shape: TypeAlias = Callable[[Told], dict[str, Any]]
Gather: TypeAlias = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class ToolForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider takes tools: `shape` is the JSON of one, `gather` the request's list of them.

    Without a `strict_dialect` nothing is said of strictness; `strict_limits` are those of a whole
    request. `examples` is how many of a tool's examples go along; `long_description` the length in
    characters that some of the provider's servers refuse to exceed.
    """

    name: str
    names: NameRule
    dialect: Dialect
    shape: Shape
    gather: Gather = list
    strict_dialect: Dialect | None = None
    strict_limits: StrictLimits | None = None
    examples: int = 0
    long_description: int | None = None

    def __repr__(self) -> str:
        return f"ToolForm({self.name!r})"


def openai_chat(told: Told) -> dict[str, Any]:
    """Nested; https://platform.openai.com/docs/api-reference/chat/create, `tools`."""
    function = _described(told) | {"parameters": told.schema}
    if told.strict is not None:
        function["strict"] = told.strict
    return {"type": "function", "function": function}


def openai_responses(told: Told) -> dict[str, Any]:
    """Flat, and always saying `strict`, which is on by default there (in Chat Completions it is off).

    https://platform.openai.com/docs/guides/migrate-to-responses
    """
    said = {"parameters": told.schema, "strict": told.strict is True}
    return {"type": "function"} | _described(told) | said


def anthropic(told: Told) -> dict[str, Any]:
    """https://platform.claude.com/docs/en/api/messages/create, `tools`: `input_examples` included.

    Each example has to fit the schema that is sent, or the whole request is refused.
    """
    form = _described(told) | {"input_schema": told.schema}
    if told.strict is not None:
        form["strict"] = told.strict
    if told.examples:
        form["input_examples"] = list(told.examples)
    return form


def ollama(told: Told) -> dict[str, Any]:
    """Nested, without strictness; https://docs.ollama.com/api/chat, `tools`."""
    return {"type": "function", "function": _described(told) | {"parameters": told.schema}}


def cohere(told: Told) -> dict[str, Any]:
    """Nested; https://docs.cohere.com/v2/reference/chat, `tools`. It takes no `strict` of one tool.

    "the 'tool_1' tool must have at least a description, input, or output": the name stands in.
    """
    function = {"name": told.name, "description": told.description or told.name}
    return {"type": "function", "function": function | {"parameters": told.schema}}


def gemini(told: Told) -> dict[str, Any]:
    """One declaration; https://ai.google.dev/api/caching#FunctionDeclaration.

    A schema is there also for a tool without parameters: mode ANY refuses a tool that has none
    (googleapis/python-genai#981).
    """
    return _described(told) | {"parametersJsonSchema": told.schema}


def bedrock_converse(told: Told) -> dict[str, Any]:
    """https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html

    Only `strict: true` is said, which few of the models there know.
    """
    spec = _described(told) | {"inputSchema": {"json": told.schema}}
    return {"toolSpec": spec | {"strict": True} if told.strict else spec}


def declarations(forms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gemini's `tools`: all functions in one element."""
    return [{"functionDeclarations": forms}] if forms else []


def _described(told: Told) -> dict[str, Any]:
    named: dict[str, Any] = {"name": told.name}
    return named | {"description": told.description} if told.description else named


_OPENAI_NAMES = NameRule("A-Za-z0-9_-", 64)
_OPENAI_DESCRIPTION = 1024
"""OpenAI's own servers dropped this limit in 2025 (run-llama/llama_index#18784); others keep it."""

OPENAI_CHAT_TOOLS = ToolForm(
    name="openai-chat",
    names=_OPENAI_NAMES,
    dialect=OPENAI,
    strict_dialect=OPENAI_STRICT,
    shape=openai_chat,
    long_description=_OPENAI_DESCRIPTION,
)
MISTRAL_TOOLS = msgspec.structs.replace(OPENAI_CHAT_TOOLS, name="mistral", long_description=None)
OPENAI_RESPONSES_TOOLS = ToolForm(
    name="openai-responses",
    names=_OPENAI_NAMES,
    dialect=OPENAI,
    strict_dialect=OPENAI_STRICT,
    shape=openai_responses,
    long_description=_OPENAI_DESCRIPTION,
)
ANTHROPIC_TOOLS = ToolForm(
    name="anthropic",
    names=NameRule("A-Za-z0-9_-", 128),
    dialect=ANTHROPIC,
    strict_dialect=ANTHROPIC_STRICT,
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs#schema-complexity-limits.
    # There are limits besides that have no number ("Schema is too complex for compilation").
    strict_limits=StrictLimits(tools=20, optional=24, unions=16),
    shape=anthropic,
    examples=5,  # each costs tokens in every request; more than that teach little
)
# The server has no rule for names; its models' templates and parsers were made for OpenAI's.
OLLAMA_TOOLS = ToolForm(name="ollama", names=_OPENAI_NAMES, dialect=OLLAMA, shape=ollama)
# What every version of the service takes, as its refusals say it (google-gemini/gemini-cli#7869);
# newer ones also take colons, and 128 characters.
GEMINI_TOOLS = ToolForm(
    name="gemini",
    names=NameRule("A-Za-z0-9_.-", 64, first="A-Za-z_"),
    dialect=GEMINI,
    shape=gemini,
    gather=declarations,
)
# "tool names can only contain certain characters (A-Za-z0-9_) and can't begin with a digit"
# (https://docs.cohere.com/reference/errors). Of their length nothing is said.
COHERE_TOOLS = ToolForm(
    name="cohere",
    names=NameRule("A-Za-z0-9_", 64, first="A-Za-z_"),
    dialect=COHERE,
    shape=cohere,
)
# What the strictest of the models there take, which are Anthropic's; for all of them, "inputSchema.
# json.type must be one of the following: object". Strictness: https://docs.aws.amazon.com/bedrock/
# latest/userguide/structured-output.html.
BEDROCK_TOOLS = ToolForm(
    name="bedrock-converse",
    names=_OPENAI_NAMES,
    dialect=ANTHROPIC,
    strict_dialect=ANTHROPIC_STRICT,
    strict_limits=ANTHROPIC_TOOLS.strict_limits,
    shape=bedrock_converse,
)

FORMS: Mapping[str, ToolForm] = {
    form.name: form
    for form in (
        OPENAI_CHAT_TOOLS,
        OPENAI_RESPONSES_TOOLS,
        ANTHROPIC_TOOLS,
        OLLAMA_TOOLS,
        GEMINI_TOOLS,
        MISTRAL_TOOLS,
        COHERE_TOOLS,
        BEDROCK_TOOLS,
    )
}
