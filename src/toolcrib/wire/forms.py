"""How each provider is told of a tool: its form, its rule for names, its limits on strictness."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from toolcrib.errors import CatalogError
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
from toolcrib.values.json import JsonObject, sha256_hex

# How each provider is told of a tool: one small function a provider, and a table of them.
#
# A shape gives the facts of a tool their places and decides nothing: which view of the schema a
# provider gets, under which name, and whether strictly, has been settled before (`views`).


# Names that a provider accepts, for tools whose own names it would refuse.
#
# A legal name stays as it is. Another is made legal by itself alone (its hash is part of it), so that
# it is the same in every request; a legal name of another tool is never taken.


_DIGITS = 8


class NameRule(msgspec.Struct, frozen=True):
    """`allowed` is the inside of a regular expression's character class; `limit` in characters.

    `first` is the class of a name's first character, where that has a rule of its own.
    """

    allowed: str
    limit: int
    first: str | None = None

    def legal(self, name: str) -> bool:
        return _legal(self).fullmatch(name) is not None


@lru_cache
def _legal(rule: NameRule) -> re.Pattern[str]:
    begins = "" if rule.first is None else f"(?=[{rule.first}])"
    return re.compile(f"{begins}[{rule.allowed}]{{1,{rule.limit}}}")


def wire_name(rule: NameRule, name: str, *, salt: int = 0) -> str:
    """The legal form of one name; `salt` gives further ones, should the first be taken."""
    if not salt and rule.legal(name):
        return name
    stem = re.sub(f"[^{rule.allowed}]", "_", name) or "tool"
    if rule.first is not None and not re.match(f"[{rule.first}]", stem):
        stem = f"_{stem}"
    stem = stem[: rule.limit - _DIGITS - 1]
    return f"{stem}_{sha256_hex(f'{salt}:{name}' if salt else name)[:_DIGITS]}"


def wire_names(rule: NameRule, names: Iterable[str]) -> dict[str, str]:
    """Own name → wire name, one to one. Raises CatalogError for a name that comes twice."""
    own = list(names)
    legal = set(filter(rule.legal, own))
    taken = set(legal)
    mapping: dict[str, str] = {}
    for name in own:
        if name in mapping:
            raise CatalogError(f"two tools on offer are called {name!r}: rename or drop one")
        if name in legal:
            mapping[name] = name
            continue
        salt = 0
        while (candidate := wire_name(rule, name, salt=salt)) in taken:
            salt += 1
        taken.add(candidate)
        mapping[name] = candidate
    return mapping


# How much of strictness one request may hold, where a provider limits that.
#
# Tools are taken in their order; one that would go over a limit is sent without `strict`, since the
# provider would refuse the whole request.


class StrictLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what the strict tools of one request hold together.

    `optional` counts properties that are not required, `unions` parts with `anyOf` or a list of types.
    """

    tools: int
    optional: int
    unions: int


class Weight(NamedTuple):
    """The counts of one view that limits are about."""

    tools: int
    optional: int
    unions: int


_WHAT = ("strict tools", "optional properties of strict tools", "unions in strict tools")


class Allowance:
    """What is left for the further tools of one request."""

    def __init__(self, limits: StrictLimits) -> None:
        self._limits = (limits.tools, limits.optional, limits.unions)
        self._spent = Weight(0, 0, 0)

    def refusal(self, view: str) -> str | None:
        """Return why a view cannot be strict after the others; count it and return None if it can."""
        total = Weight(*map(sum, zip(self._spent, weight(view), strict=True)))
        for most, count, what in zip(self._limits, total, _WHAT, strict=True):
            if count > most:
                return f"a request takes at most {most} {what}, and with this one it had {count}"
        self._spent = total
        return None


@lru_cache(maxsize=1024)
def weight(view: str) -> Weight:
    """The weight of a view, which refers to nothing."""
    optional = unions = 0
    stack: list[Any] = [json.loads(view)]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        properties = part.get("properties", {})
        optional += len(properties.keys() - set(part.get("required", ())))
        unions += "anyOf" in part or isinstance(part.get("type"), list)
        stack += [*properties.values(), *part.get("anyOf", ()), part.get("items")]
    return Weight(1, optional, unions)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a form gets it. `schema` is JSON, or encoded text to be spliced in.

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
    """Write a declaration; https://ai.google.dev/api/caching#FunctionDeclaration.

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
