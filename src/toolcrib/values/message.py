"""A conversation: messages, the request made of them, the reply that comes back, the model's interface.

These are semantic types; how a provider spells them is known only in `wire/`. What a request offered
travels with its reply (`Offer`), so that hydration knows which tools the model could see, and under
which names, without asking anybody upstream.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from toolcrib.values.call import HydrationResult, PayloadRef, ToolCall
from toolcrib.values.content import Image, Part
from toolcrib.values.definition import HasDefinition, offered_tools
from toolcrib.values.json import JsonObject, JsonValue, Veiled, encodable
from toolcrib.values.typed import Checked, names_wrong_types

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "error", "incomplete", "doubtful"
]
"""`doubtful`: the reply ended for a reason that its wire does not list, or no call in it is whole."""


class ProviderState(Veiled, msgspec.Struct, frozen=True):
    """JSON that must be sent back as it came, to the provider that sent it.

    Thought signatures, reasoning items, blocks of the provider's own tools. `wire` names the wire, and
    the server where others of its format would refuse it: `openai-chat at api.deepseek.com`. `data` is
    None where nothing but the ids of calls has to go back as it came.
    """

    veiled: ClassVar[tuple[str, ...]] = ("data",)

    wire: str
    data: Any


class Message(Checked, Veiled, msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. Only the assistant's has `tool_calls`; only what a tool gave has `call_id` and
    `is_error`: the result of a call, and that of one in the background, which comes later, in the place
    of a user's message, since providers have no other for it.

    `images` are a user's; they come before the text. `parts` are a tool's or a user's, what a result
    or a prompt has besides `content` and behind it, in order. `provider_state` is opaque. `untrusted`
    marks what was said in a run that had read untrusted content by then: whoever goes on with the
    conversation knows by it. No provider is sent it. `loads` are a tool's: the names of the tools that
    its result brings, as that of a search for tools does; they may be called from there on.
    """

    veiled: ClassVar[tuple[str, ...]] = ("content", "parts")

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
        """Whether this is what a tool gave, at once or later."""
        return self.role == "tool" or self.call_id is not None

    @property
    def by_user(self) -> bool:
        """Whether a user says this."""
        return self.role == "user" and self.call_id is None

    @property
    def text(self) -> str:
        """The words of the message: its `content`, and the texts among its parts."""
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
        """Return the one result of `call`; `content` is the model's view of it, as text, and `parts`
        what it has besides: images, files, links and further texts."""
        return Message(
            "tool", content, call_id=call.id, name=call.name, is_error=is_error, parts=parts
        )

    @staticmethod
    @names_wrong_types
    def later(call: ToolCall, content: str, *, is_error: bool = False) -> Message:
        """Return what a call in the background gave, where its result has said that this follows.

        It is JSON with the content in it: no text of a tool passes for what somebody else says.
        """
        told = [call.id, call.name, _as_json(encodable(content))]
        shown = msgspec.json.encode(dict(zip(_LATER_MEMBERS, told, strict=True))).decode()
        text = f"{_LATER}\n{shown}"
        return Message("user", text, call_id=call.id, name=call.name, is_error=is_error)

    @property
    def result_text(self) -> str:
        """The content of a result, without what a later one is told in."""
        head, _, shown = self.content.partition("\n")
        if self.role == "tool" or head != _LATER:
            return self.content
        try:
            result = bytes(msgspec.json.decode(shown, type=_Later).result).decode()
            return str(json.loads(result)) if result.startswith('"') else result
        except (ValueError, RecursionError):  # whoever gave the history wrote it otherwise
            return self.content


_LATER = (
    "A call in the background has ended. This is what its tool gave, and nothing that a user says:"
)
_LATER_MEMBERS = ("call_id", "tool", "result")


class _Later(msgspec.Struct):
    """What `Message.later` writes, as far as it is read again."""

    result: msgspec.Raw


def _as_json(content: str) -> object:
    """Return the content of a result as it stands in JSON: itself if it is an object or a list, else
    its text."""
    if content[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            msgspec.json.decode(content)
            return msgspec.Raw(content.encode())
    return content


class Usage(Checked, msgspec.Struct, frozen=True):
    """Tokens and requests spent; adds up with `+`.

    Of the input's tokens, `cache_read` were in the provider's cache, and `cache_written` were put in.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read + other.cache_read,
            self.cache_written + other.cache_written,
        )

    def beyond(self, known: Usage) -> Usage:
        """Return what this has more than another one."""
        names = self.__struct_fields__
        return Usage(*(max(0, getattr(self, name) - getattr(known, name)) for name in names))


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]
"""How much a model is to reason before it answers."""


class Settings(Checked, Veiled, msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a request. `extra` members go into the request body as they stand.

    `max_tokens` limits the answer; what a provider is told in tokens to reason with goes on top.
    `reasoning` is how much the model reasons: each wire writes it in its provider's form, and refuses
    a level that the provider does not have. `provider_tools` are tools that the provider has and runs
    itself, such as a web search, in its own form: they go behind the request's tools, as they stand.
    """

    veiled: ClassVar[tuple[str, ...]] = ("extra", "provider_tools")

    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, JsonValue] = {}
    provider_tools: tuple[Mapping[str, JsonValue], ...] = ()
    reasoning: Effort | None = None

    def over(self, others: Settings) -> Self:
        """Return these settings, and what they leave open as `others` have it; of `extra`, member by
        member."""
        return msgspec.structs.replace(
            self,
            temperature=others.temperature if self.temperature is None else self.temperature,
            max_tokens=others.max_tokens if self.max_tokens is None else self.max_tokens,
            extra={**others.extra, **self.extra},
            provider_tools=self.provider_tools or others.provider_tools,
            reasoning=others.reasoning if self.reasoning is None else self.reasoning,
        )


class ToolChoice(Checked, msgspec.Struct, frozen=True):
    """Says what the model is asked to do about tools: its choice, none, at least one, or one by name.

    `allowed` names those that its choice is among; the others stay in the request, for its cache.
    """

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] = ()


class OutputFormat(Checked, msgspec.Struct, frozen=True):
    """Says what the final text is to be: JSON valid by the schema of which `schema_json` is the text.

    `name` is what a provider is told that it is called. `tool` is one whose call may be the answer in
    place of a text, offered where the format cannot be said beside the request's tools; `strict_tool`
    is the same for a model that is known to hold to a schema. Raises ValueError for a text that is no
    object.
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
            raise ValueError("OutputFormat: schema_json is the text of a JSON object")  # noqa: TRY004


class ArgumentRestorer(Protocol):
    """Turns arguments that fit a provider's view of a schema into the author's terms."""

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return what a model sent for the view, in the author's terms, and leave the input alone.

        Never raises: what does not fit the view is passed on as it is, to be judged.
        """
        ...

    def to_view(self, arguments: JsonObject) -> JsonObject:
        """Return valid arguments, such as those of an example, in the terms of the view."""
        ...


class OutputRestorer(Protocol):
    """Turns an answer that fits a provider's view of the output's schema into the author's terms."""

    def restore(self, answer: JsonValue) -> JsonValue:
        """Return the answer in the author's terms; never raise, and leave the input alone."""
        ...


class Offer(msgspec.Struct, frozen=True):
    """Holds what one request offered to a model, and what encoding changed about it.

    `tools` are by their own names; `own_names` maps a wire name back where the two differ.
    `restorers`, by own name, undo what a provider's view of a schema changed about the arguments.
    `known` names tools that exist but were not offered: calling one of them is `not_offered`, while
    a name that nobody knows is `unknown_tool`.
    `output` undoes what a view of the request's output changed about the answer, if one did.
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
        """Return the offer of these tools, in any form. Raises DefinitionError for what is no tool."""
        by_name = {tool.get_definition().name: tool for tool in offered_tools(tools)}
        absent = frozenset(known) - by_name.keys()
        return Offer(by_name, own_names or {}, absent, restorers or {})

    def own_name(self, wire_name: str) -> str:
        """Return the tool's own name for the name that a provider knows it by."""
        return self.own_names.get(wire_name, wire_name)


class ChatRequest(msgspec.Struct, frozen=True):
    """A request to a model: the messages and the tools on offer.

    The ids of the reply's calls are `{id_prefix}{index}`; they are the idempotency keys of what is run.
    Without a prefix each reply has one that no other reply has.
    `parallel_calls` says whether a reply may hold several calls; None leaves it to the provider.
    `output` is what a provider that has a form for it is to hold the final text to; the messages say
    it, too, for those that have none.
    `search_tool` names the tool on offer whose results bring others (`Message.loads`). A provider and
    model known to take those where they were found are told them there, so that what stands before
    stays as it was; others have them in the list of tools. `deferred` says True where nobody knows it
    (RequestError on a wire without a form for it), and False where it is not wanted.
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

    def with_answer_tool(self, *, strict: bool = False) -> ChatRequest:
        """Return the request with the tool for its output, last, in place of the format; itself where
        it has none, or where the model may not choose what it calls."""
        output = self.output
        tool = None if output is None else output.strict_tool if strict else output.tool
        choice = self.tool_choice
        if tool is None or choice.mode != "auto":
            return self
        if choice.allowed:
            allowed = (*choice.allowed, tool.get_definition().name)
            choice = msgspec.structs.replace(choice, allowed=allowed)
        tools = (*self.tools, tool)
        return msgspec.structs.replace(self, tools=tools, tool_choice=choice, output=None)

    def new_prefix(self) -> str:
        """Return the prefix of the ids of one reply's calls."""
        return self.id_prefix or f"call_{os.urandom(6).hex()}_"


class Reply(Checked, Veiled, msgspec.Struct, frozen=True):
    """A model's answer, decoded.

    `finish` is `tool_calls` if and only if `tool_calls` holds calls that may run; calls of a cut
    reply are there with `complete=False`. `answers` are the texts that may each be its answer, None
    where that is its text; a typed answer is read where there is exactly one. `model` is the one that
    was asked, and `provider` who was, where the client says so: the wire and the server,
    `openai-chat at api.openai.com`.

    For observability only: `raw` is the provider's payload, of a stream its first event without what
    was said; `events` are the data of a stream's events as they came, up to 256 KiB of them; `payload`
    is the reference that its calls have, too.
    """

    veiled: ClassVar[tuple[str, ...]] = ("raw", "events", "answers")

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


class TextPart(Veiled, msgspec.Struct, frozen=True):
    """A piece of text, as it streams."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ReasoningPart(Veiled, msgspec.Struct, frozen=True):
    """A piece of what the model lets us read of its reasoning, as it streams: for display only."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ArgumentsPart(Veiled, msgspec.Struct, frozen=True):
    """A piece of a call's arguments, as it streams: for display only, never to be run."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    call_id: str
    name: str
    text: str


Piece: TypeAlias = TextPart | ReasoningPart | ArgumentsPart
"""What a reply is made of while it streams."""
StreamPart: TypeAlias = Piece | Reply


class Plan(list[HydrationResult]):
    """Holds what a model wants to do: hydrated or rejected calls, none of
    them run. `reply` has its text.

    `request` is what was asked, where the client says so. `ToolRunner.record_plan` writes a plan down.
    """

    def __init__(
        self, results: Iterable[HydrationResult], reply: Reply, request: ChatRequest | None = None
    ) -> None:
        super().__init__(results)
        self.reply = reply
        self.request = request


@runtime_checkable
class LLMClient(Protocol):
    """A model. `stream` gives parts as they come and the whole `Reply` last."""

    @property
    def model(self) -> str: ...

    async def chat(self, request: ChatRequest) -> Reply: ...

    def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]: ...

    async def tool_call(self, prompt: str | ChatRequest, tools: Iterable[Any]) -> Plan: ...

    async def aclose(self) -> None: ...
