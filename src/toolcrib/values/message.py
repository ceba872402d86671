"""A conversation: its messages, the request made from them, the reply, and the interface of a model.

These types carry meaning; how a provider spells them is known only in `wire/`. What a request
offered travels with its reply (`Offer`), so that hydration knows which tools the model could see,
and under which names, without depending on the layers above.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import add, sub
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, runtime_checkable

import msgspec
from msgspec.structs import astuple, replace

from toolcrib.values.call import HydrationResult, PayloadRef, ToolCall
from toolcrib.values.content import Image, Part
from toolcrib.values.definition import HasDefinition, offered_tools
from toolcrib.values.json import JsonObject, JsonValue, Redacted, encodable, is_finite
from toolcrib.values.typed import (
    Checked,
    HandWritten,
    check_each,
    check_type,
    explains_wrong_types,
    names_wrong_types,
)

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "error", "incomplete", "doubtful"
]
"""`doubtful`: the reply ended for an unknown reason, or it has calls and none of them is whole."""


class ProviderState(Redacted, msgspec.Struct, frozen=True):
    """JSON that must be sent back unchanged to the provider that sent it.

    Examples are thought signatures, reasoning items, and blocks of the provider's own tools. `wire`
    names the wire, and the server if other servers of the same format would refuse the data:
    `openai-chat at api.deepseek.com`. `data` is None if only the ids of calls have to be sent back
    unchanged.
    """

    redacted: ClassVar[tuple[str, ...]] = ("data",)

    wire: str
    data: Any


class Message(Checked, Redacted, msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a conversation.

    Only the assistant's messages have `tool_calls`. `call_id` and `is_error` are set only on what a
    tool gave: the result of a call, or the later result of a background call, which has the role of
    a user because providers have no other place for it.

    `images` belong to a user's message and come before the text. `parts` belong to a tool's or a
    user's message: they follow `content`, in order. `provider_state` is opaque. `untrusted` marks a
    message from a run that had read untrusted content by then, so that whoever continues the
    conversation knows. It is never sent to a provider. `loads` belongs to a tool's message: the
    names of the tools that its result brings, as a search for tools does. They may be called from
    then on.
    """

    redacted: ClassVar[tuple[str, ...]] = ("content", "parts")

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    provider_state: ProviderState | None = None
    images: tuple[Image, ...] = ()
    untrusted: bool = False
    parts: tuple[Part, ...] = ()
    loads: tuple[str, ...] = ()

    @property
    def from_tool(self) -> bool:
        """Whether this is the result of a tool, immediate or later."""
        return self.role == "tool" or self.call_id is not None

    @property
    def by_user(self) -> bool:
        """Whether a user says this."""
        return self.role == "user" and self.call_id is None

    @property
    def text(self) -> str:
        """The words of the message: its `content`, and the strings among its parts."""
        if not self.parts:
            return self.content
        return "\n\n".join(filter(None, (self.content, *(p for p in self.parts if type(p) is str))))

    @staticmethod
    def system(text: str) -> Message:
        return Message("system", text)

    @staticmethod
    def user(text: str, images: tuple[Image, ...] = ()) -> Message:
        return Message("user", text, images=images)

    @staticmethod
    def assistant(text: str = "", tool_calls: tuple[ToolCall, ...] = ()) -> Message:
        return Message("assistant", text, tool_calls)

    @staticmethod
    @names_wrong_types
    def tool(
        call: ToolCall, content: str, parts: tuple[Part, ...] = (), *, is_error: bool = False
    ) -> Message:
        """Return the one result of `call`.

        `content` is the model's view of it, as text. `parts` are the images, files, links and
        further texts that follow it.
        """
        return Message(
            "tool", content, call_id=call.id, name=call.name, is_error=is_error, parts=parts
        )

    @staticmethod
    @names_wrong_types
    def later(call: ToolCall, content: str, *, is_error: bool = False) -> Message:
        """Return the result of a background call, which its immediate result announced.

        The content is embedded in JSON, so that no text of a tool can pass for something the user
        says.
        """
        payload = {"call_id": call.id, "tool": call.name, "result": _as_json(encodable(content))}
        encoded = msgspec.json.encode(payload).decode()
        text = f"{_LATER_PREFIX}\n{encoded}"
        return Message("user", text, call_id=call.id, name=call.name, is_error=is_error)

    @property
    def result_text(self) -> str:
        """The content of a result, unwrapped if it is a later one."""
        head, _, encoded = self.content.partition("\n")
        if self.role == "tool" or head != _LATER_PREFIX:
            return self.content
        try:
            result = bytes(msgspec.json.decode(encoded, type=_LaterResult).result).decode()
            return str(json.loads(result)) if result.startswith('"') else result
        except (ValueError, RecursionError):  # the history came in another form
            return self.content


_LATER_PREFIX = (
    "A call in the background has ended. This is what its tool gave, and nothing that a user says:"
)


class _LaterResult(msgspec.Struct):
    """The part of what `Message.later` writes that is parsed again."""

    result: msgspec.Raw


def _as_json(content: str) -> object:
    """Return a result's content as JSON: itself if it is an object or a list, else as a string."""
    if content[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            msgspec.json.decode(content)
            return msgspec.Raw(content.encode())
    return content


class Usage(Checked, msgspec.Struct, frozen=True):
    """Tokens and requests spent; adds up with `+`.

    Of the input tokens, `cache_read` were read from the provider's cache and `cache_written`
    written to it.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))

    def beyond(self, known: Usage) -> Usage:
        """Return the difference from an earlier usage."""
        return Usage(*(max(0, n) for n in map(sub, astuple(self), astuple(known))))


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]
"""How much a model is to reason before it answers."""


class Settings(Redacted, HandWritten, frozen=True, omit_defaults=True):
    """Settings of a request. `extra` members go into the request body unchanged.

    `max_tokens` limits the answer; where a provider takes a token budget for reasoning, that is
    added on top. `reasoning` is how much the model reasons. Each wire writes it in its provider's
    form, and refuses a level that the provider does not have. `provider_tools` are tools that the
    provider runs itself, such as a web search, in its own form. They are appended to the request's
    tools unchanged.

    Raises ValueError for a temperature that is not a finite number. Whether `extra` and
    `provider_tools` are JSON is checked when they are sent.
    """

    redacted: ClassVar[tuple[str, ...]] = ("extra", "provider_tools")

    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, JsonValue] = {}
    provider_tools: tuple[Mapping[str, JsonValue], ...] = ()
    reasoning: Effort | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is not None and not is_finite(self.temperature):
            raise ValueError("Settings: temperature must be a finite number")

    @explains_wrong_types
    def over(self, others: Settings) -> Self:
        """Return these settings, with open ones taken from `others`; `extra` merges by member."""
        unset = [n for n in self.__struct_fields__ if getattr(self, n) in (None, ())]
        inherited = {name: getattr(others, name) for name in unset if hasattr(others, name)}
        return replace(self, **inherited, extra={**others.extra, **self.extra})


class ToolChoice(Checked, msgspec.Struct, frozen=True):
    """Says which tools the model may call: its choice, none, at least one, or one by name.

    `allowed` restricts its choice to these tools. The others stay in the request, so that the
    provider's cache stays valid.
    """

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] = ()


class OutputFormat(Checked, msgspec.Struct, frozen=True):
    """The required form of the final text: JSON valid against the schema in `schema_json`.

    `name` is the name of the format that the provider is told. `tool` is a tool whose call may be
    the answer instead of a text. It is offered if the format cannot be combined with the request's
    tools. `strict_tool` is the same for a model that is known to follow a schema. Raises ValueError
    for a text that is not a JSON object.
    """

    name: str
    schema_json: str
    tool: HasDefinition | None = None
    strict_tool: HasDefinition | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            schema = json.loads(self.schema_json)
        except ValueError:
            schema = None
        if not isinstance(schema, dict):
            raise ValueError("OutputFormat: schema_json must be the text of a JSON object")  # noqa: TRY004


class ArgumentRestorer(Protocol):
    """Translates arguments that fit a provider's view of a schema into the author's terms."""

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return arguments sent for the view in the author's terms; leave the input unchanged.

        Never raises. Arguments that do not fit the view are passed on unchanged, to be validated.
        """
        ...

    def to_view(self, arguments: JsonObject) -> JsonObject:
        """Return valid arguments, such as those of an example, in the terms of the view."""
        ...


class OutputRestorer(Protocol):
    """Translates an answer that fits a provider's view of the output into the author's terms."""

    def restore(self, answer: JsonValue) -> JsonValue:
        """Return the answer in the author's terms. Never raises; leaves the input unchanged."""
        ...


class Offer(msgspec.Struct, frozen=True):
    """Holds what one request offered to a model, and what encoding changed about it.

    `tools` is keyed by the tools' own names; `own_names` maps a wire name back if the two differ.
    `restorers`, by own name, undo the changes that a provider's view of a schema makes to
    arguments. `known` names tools that exist but were not offered. Calling one of them is
    `not_offered`; calling a name that is not known at all is `unknown_tool`. `output` undoes the
    changes that a view of the request's output makes to the answer, if there is one.
    """

    tools: Mapping[str, HasDefinition] = {}
    own_names: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()
    restorers: Mapping[str, ArgumentRestorer] = {}
    output: OutputRestorer | None = None

    @staticmethod
    def of(
        tools: Iterable[Any],
        *,
        own_names: Mapping[str, str] | None = None,
        known: Iterable[str] = (),
        restorers: Mapping[str, ArgumentRestorer] | None = None,
    ) -> Offer:
        """Return the offer of these tools, in any form. Raises DefinitionError for an object that
        is not a tool."""
        by_name = {tool.get_definition().name: tool for tool in offered_tools(tools)}
        absent = frozenset(known) - by_name.keys()
        return Offer(by_name, own_names or {}, absent, restorers or {})

    def permitted_by(self, choice: ToolChoice) -> Offer:
        """Return the offer with the tools that the model may call: some servers ignore the choice."""
        if choice.mode in ("auto", "required") and not choice.allowed:
            return self
        names = (choice.name,) if choice.mode == "tool" else choice.allowed
        allowed = () if choice.mode == "none" else names
        tools = {name: tool for name, tool in self.tools.items() if name in allowed}
        return replace(self, tools=tools, known=self.known | self.tools.keys())

    def own_name(self, wire_name: str) -> str:
        """Return the tool's own name for the name that a provider knows it by."""
        return self.own_names.get(wire_name, wire_name)


_MESSAGE_TYPES = {Message}


class ChatRequest(msgspec.Struct, frozen=True):
    """A request to a model: the messages and the tools on offer.

    Lists of messages and tools are kept as tuples, so that the request does not change if they do.
    The ids of the reply's calls are `{id_prefix}{index}` and serve as idempotency keys. Without a
    prefix, each reply gets a unique one. `parallel_calls` says whether a reply may contain several
    calls; None leaves it to the provider. `output` is the form that the final text is to have, for
    providers that support one. The messages describe it too, for those that do not.

    `search_tool` names the offered tool whose results bring other tools (`Message.loads`). Where
    provider and model are known to support it, those tools are declared where they were found, so
    that everything before stays cached. Other models get them in the list of tools. `deferred`
    overrides this: True for a model that is not known to support it (RequestError on a wire that
    has no form for it), False to turn it off.
    """

    messages: tuple[Message, ...]
    tools: tuple[HasDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    settings: Settings = Settings()
    id_prefix: str = ""
    parallel_calls: bool | None = None
    output: OutputFormat | None = None
    search_tool: str = ""
    deferred: bool | None = None

    def __post_init__(self) -> None:
        check_type("ChatRequest: messages", self.messages, (list, tuple), "a list of messages")
        messages = tuple(self.messages)
        if not _MESSAGE_TYPES.issuperset(map(type, messages)):
            check_each("ChatRequest: messages", messages, Message, "a list of messages")
        msgspec.structs.force_setattr(self, "messages", messages)
        if isinstance(self.tools, list | Iterator):
            msgspec.structs.force_setattr(self, "tools", tuple(self.tools))

    def with_answer_tool(self, *, strict: bool = False) -> ChatRequest:
        """Return the request with the answer tool appended, in place of the output format.

        Return it unchanged if it has no such tool, or if the model may not choose what it calls.
        """
        output = self.output
        tool = None if output is None else output.strict_tool if strict else output.tool
        choice = self.tool_choice
        if tool is None or choice.mode != "auto":
            return self
        if choice.allowed:
            allowed = (*choice.allowed, tool.get_definition().name)
            choice = replace(choice, allowed=allowed)
        tools = (*self.tools, tool)
        return replace(self, tools=tools, tool_choice=choice, output=None)

    @classmethod
    def check(cls, request: object) -> None:
        """Raise TypeError for anything else that a client is asked with."""
        wanted = "a request, such as toolcrib.wire.ChatRequest([Message.user('Hi')])"
        check_type("request", request, cls, wanted)

    def new_prefix(self) -> str:
        """Return the prefix for the ids of one reply's calls."""
        return self.id_prefix or f"call_{os.urandom(6).hex()}_"


class Reply(Checked, Redacted, msgspec.Struct, frozen=True):
    """A model's answer, decoded.

    `finish` is `tool_calls` if and only if `tool_calls` contains calls that may run. Calls of a cut
    reply are included with `complete=False`. `answers` are the texts that may each be the answer,
    or None if that is simply the reply's text. A typed answer is read only if there is exactly one.
    `model` is the one that was asked. `provider` names the wire and the server, if the client says
    so: `openai-chat at api.openai.com`.

    For observability only: `raw` is the provider's payload, or a stream's first event without its
    text. `events` are the data of a stream's events as they came, up to 256 KiB. `payload` is the
    reference that the reply's calls have, too.
    """

    redacted: ClassVar[tuple[str, ...]] = ("raw", "events", "answers")

    message: Message
    finish: FinishReason
    usage: Usage = Usage()
    offer: Offer = Offer()
    provider_finish: str | None = None
    raw: Any = None
    model: str = ""
    events: tuple[str, ...] = ()
    payload: PayloadRef | None = None
    provider: str = ""
    answers: tuple[str, ...] | None = None

    @property
    def text(self) -> str:
        return self.message.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls


class TextPart(Redacted, msgspec.Struct, frozen=True):
    """A piece of text, as it streams."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ReasoningPart(Redacted, msgspec.Struct, frozen=True):
    """A piece of the reasoning that the model discloses, as it streams: for display only."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ArgumentsPart(Redacted, msgspec.Struct, frozen=True):
    """A piece of a call's arguments, as it streams: for display only, never to be run."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    call_id: str
    name: str
    text: str


Piece: TypeAlias = TextPart | ReasoningPart | ArgumentsPart
"""A piece of a reply while it streams."""
StreamPart: TypeAlias = Piece | Reply


class Plan(list[HydrationResult]):
    """Holds what a model wants to do: hydrated or rejected calls, none of them run. `reply` has its
    text.

    `request` is what was asked, if the client says so. `ToolRunner.record_plan` records a plan.
    """

    def __init__(
        self, results: Iterable[HydrationResult], reply: Reply, request: ChatRequest | None = None
    ) -> None:
        super().__init__(results)
        self.reply = reply
        self.request = request


@runtime_checkable
class LLMClient(Protocol):
    """A model. `stream` gives parts as they arrive and the whole `Reply` last."""

    @property
    def model(self) -> str: ...

    async def chat(self, request: ChatRequest) -> Reply: ...

    def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]: ...

    async def tool_call(self, prompt: str | ChatRequest, tools: Iterable[Any]) -> Plan: ...

    async def aclose(self) -> None: ...
