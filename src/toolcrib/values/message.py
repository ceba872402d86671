"""A conversation: messages, the request made of them, the reply that comes back.

These are semantic types; how a provider spells them is known only in `wire/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonValue
from toolcrib.values.offer import Offer

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "error", "incomplete"
]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `tool_calls` only on the assistant's; `call_id` and `is_error` only on a tool's.

    `provider_state` is opaque: what must be sent back to the provider as it came.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    provider_state: Any = None

    @staticmethod
    def system(text: str) -> Message:
        return Message("system", text)

    @staticmethod
    def user(text: str) -> Message:
        return Message("user", text)

    @staticmethod
    def assistant(text: str = "", tool_calls: tuple[ToolCall, ...] = ()) -> Message:
        return Message("assistant", text, tool_calls)

    @staticmethod
    def tool(call: ToolCall, content: str, *, is_error: bool = False) -> Message:
        """The one result of `call`; `content` is the model's view of it, as text."""
        return Message("tool", content, call_id=call.id, name=call.name, is_error=is_error)


class Usage(msgspec.Struct, frozen=True):
    """Tokens and requests spent; adds up with `+`."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )


class Settings(msgspec.Struct, frozen=True):
    """Sampling settings. `extra` members go into the request body as they stand."""

    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, JsonValue] = {}


class ToolChoice(msgspec.Struct, frozen=True):
    """What the model is asked to do about tools: its choice, none, at least one, or one by name."""

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: str | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """What a client sends: the messages and the tools on offer.

    `id_prefix` makes the ids of the reply's calls unique in the thread: `{id_prefix}{index}`.
    """

    messages: tuple[Message, ...]
    tools: tuple[HasDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    settings: Settings = Settings()
    id_prefix: str = "call_"


class Reply(msgspec.Struct, frozen=True):
    """A model's answer, decoded.

    `finish` is `tool_calls` if and only if `tool_calls` holds calls that may run; calls of a cut
    reply are there with `complete=False`. `raw` is the provider's payload, for observability only.
    """

    message: Message
    finish: FinishReason
    usage: Usage = Usage()
    offer: Offer = Offer()
    provider_finish: str | None = None
    raw: Any = None

    @property
    def text(self) -> str:
        return self.message.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls


class TextPart(msgspec.Struct, frozen=True):
    """A piece of text, as it streams."""

    text: str


class ArgumentsPart(msgspec.Struct, frozen=True):
    """A piece of a call's arguments, as it streams: for display only, never to be run."""

    call_id: str
    name: str
    text: str


StreamPart: TypeAlias = TextPart | ArgumentsPart | Reply
