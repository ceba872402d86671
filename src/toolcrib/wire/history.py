"""The messages of a request, each encoded once, in whatever form a wire gives them.

Rule for tools, on every wire: the results of an assistant message's calls follow it directly, one
for each. A history that breaks it is refused here, where the error can say which call it is. The
history is sent as one JSON text, and what was encoded for one request is spliced into the next.

The memory for this is bounded (`Histories`). A conversation that was evicted is encoded again,
which affects only the time it takes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import msgspec
import orjson

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.json import sha256_hex
from toolcrib.values.message import Message, ProviderState
from toolcrib.wire.deferred import Loaded, loads_of
from toolcrib.wire.forms import NameRule, wire_name
from toolcrib.wire.json_text import is_readable_object, mended


@dataclass(frozen=True)
class IdRule:
    """A provider's rule for the ids of calls: characters (a class of a pattern), and how many.

    With `exact`, an id has exactly that length.
    """

    allowed: str
    limit: int
    exact: bool = False

    @cached_property
    def legal(self) -> Callable[[str], object]:
        """Matches a whole legal id."""
        least = self.limit if self.exact else 1
        return re.compile(f"[{self.allowed}]{{{least},{self.limit}}}").fullmatch

    def generated_id(self, number: int) -> str:
        """Return a legal id for the call of this number in a conversation, the same in each run."""
        digits = sha256_hex(f"call {number}")
        return digits[: self.limit] if self.exact else f"call_{digits[: min(24, self.limit - 5)]}"


ANY_ID = IdRule(r"\x00-\U0010ffff", 65_536)
"""The rule of providers that accept whatever id they gave."""


class SentCall(msgspec.Struct, frozen=True):
    """A call as a request contains it. `arguments` is the text of a JSON object."""

    call: ToolCall
    id: str
    name: str
    arguments: str


class SentResult(msgspec.Struct, frozen=True):
    """The result of a call, under the id and name that the request has for it."""

    message: Message
    id: str
    name: str


class EncodedList(msgspec.Struct, frozen=True):
    """The JSON text of a list, in pieces that are only copied into the body of a request.

    One piece may be a history's own buffer. It must be used before the history is extended.
    """

    pieces: tuple[bytes | bytearray, ...]


class History(ABC):
    """The messages encoded so far, for one wire; a subclass defines their form.

    `keeper` is the wire, and the server where it matters, that the messages are for. `messages` are
    those encoded, which it keeps alive. `names` maps own to wire names of the tools on offer; `rule`
    makes other names legal. `ids` is the rule for ids of calls. `given_ids` is the rule for those
    that this very provider gave, if different: a message with its state is known to be from it, and
    a message with such an id has a state. `instructions` are the texts of system messages, wherever
    they came in the list, on wires that have a separate place for them. `called` are the called
    tools, by their wire names. `media` are the media types of content that goes into results
    unchanged, `prompt_media` those that a user may send. `search` and `loaded` belong to the tools
    on offer (`SentTools`).
    """

    ids: ClassVar[IdRule]
    given_ids: ClassVar[IdRule | None] = None

    def __init__(self, keeper: str, rule: NameRule, names: Mapping[str, str]) -> None:
        self.keeper = keeper
        self._rule = rule
        self._names = names
        self.instructions: list[str] = []
        self.called: dict[str, None] = {}
        self.media: frozenset[str] = frozenset()
        self.prompt_media: frozenset[str] = frozenset()
        self.search = ""
        self.loaded: Loaded = {}
        self._brought_tools: dict[str, bytes | None] = {}
        self.messages: tuple[Message, ...] = ()
        self._sent_names: dict[str, str] = {}
        self._text = bytearray()
        self._used_ids: set[str] = set()
        self._open_calls: dict[str, SentCall] = {}

    @property
    def silent(self) -> bool:
        """Whether nothing would be sent, or only instructions where they cannot be sent alone."""
        return not self._text

    def system(self, message: Message) -> Sequence[Any]:
        """Return the items that a system message becomes in the list of messages.

        By default there are none: its text goes to the `instructions`.
        """
        if message.content.strip():
            self.instructions.append(message.content)
        return []

    @abstractmethod
    def user(self, message: Message) -> Sequence[Any]: ...

    @abstractmethod
    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]: ...

    @abstractmethod
    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        """Return the items for all results of one assistant's message, in the given order."""

    @property
    def size(self) -> int:
        """The approximate memory of this in bytes, including the messages that it keeps alive."""
        text_size = len(self._text) + sum(map(len, self.instructions))
        return 2 * text_size + _MESSAGE_BYTES * len(self.messages) + _NAME_BYTES * len(self._names)

    def adopt_names(self, other: History) -> bool:
        """Return whether this was encoded with the other's settings. If so, take over its names."""
        is_compatible = (
            type(self) is type(other)
            and self.keeper == other.keeper
            and (self.media, self.prompt_media) == (other.media, other.prompt_media)
            and self._rule == other._rule
            and self.search == other.search
            and all(
                other.loaded.get(name) == definition
                for name, definition in self._brought_tools.items()
            )
            and all(
                other._wire_name(own_name) == sent_name
                and (own_name in other.loaded) == (own_name in self.loaded)
                for own_name, sent_name in self._sent_names.items()
            )
        )
        if is_compatible:
            self._names, self.loaded = other._names, other.loaded
        return is_compatible

    def is_prefix_of(self, messages: tuple[Message, ...]) -> bool:
        """Return whether `messages` begin with the messages encoded here."""
        encoded_messages = self.messages
        return messages[: len(encoded_messages)] == encoded_messages

    def extend(self, messages: tuple[Message, ...]) -> None:
        """Encode the new messages. Raises RequestError, after which this history must not be
        used."""
        position = len(self.messages)
        while position < len(messages):
            position = self._encode_from(messages, position)
        self.messages = messages
        if not messages:
            raise RequestError("there are no messages to send")
        if self._open_calls:
            raise self._unanswered()

    def encoded(self) -> EncodedList:
        return EncodedList((b"[", self._text, b"]"))

    def newly_found(self, message: Message) -> list[str]:
        """Return the tools that this result is the first to bring, by their own names."""
        if not (self.search and message.loads):
            return []
        new = [name for name in loads_of(message, self.search) if name not in self._brought_tools]
        self._brought_tools |= {name: self.loaded.get(name) for name in new}
        return [name for name in new if name in self.loaded]

    def state(self, message: Message) -> Any:
        """Return what has to go back unchanged to this very provider, or None."""
        state = message.provider_state
        return state.data if state is not None and state.wire == self.keeper else None

    def _encode_from(self, messages: tuple[Message, ...], position: int) -> int:
        """Encode the message at `position`, or all results from there on; return where to continue."""
        message = messages[position]
        if message.role == "tool":
            end = position
            while end < len(messages) and messages[end].role == "tool":
                end += 1
            self._keep(
                self.results([self._sent_result(messages[n], n) for n in range(position, end)])
            )
            return end
        if self._open_calls:
            raise self._unanswered()
        if message.tool_calls and message.role != "assistant":
            raise RequestError(f"messages[{position}]: only an assistant's message may hold calls")
        if message.parts and message.role != "user":
            rule = "only user messages and results of calls may have parts"
            raise RequestError(f"messages[{position}]: {rule}")
        if message.role == "assistant":
            calls = [self._sent_call(call, message.provider_state) for call in message.tool_calls]
            self.called |= dict.fromkeys(call.name for call in calls)
            self._keep(self.assistant(message, calls))
        else:
            self._keep((self.system if message.role == "system" else self.user)(message))
        return position + 1

    def _keep(self, items: Sequence[Any]) -> None:
        for item in items:
            self._add(dumps(item))

    def _add(self, item: bytes) -> None:
        if self._text:
            self._text += b","
        self._text += item

    def _sent_call(self, call: ToolCall, state: ProviderState | None) -> SentCall:
        """Return a call as the model made it. Arguments that are not a JSON object which every parser
        reads become an empty one.

        Servers parse arguments, as part of the body or to fill a template, and fail on `1e400`.
        """
        if call.id in self._open_calls:
            raise RequestError(f"two calls of one message have the id {call.id!r}")
        name = self._sent_names[call.name] = self._wire_name(call.name)
        arguments = call.arguments if is_readable_object(call.arguments) else "{}"
        sent_call = self._open_calls[call.id] = SentCall(
            call, self._sent_id(call, state), name, arguments
        )
        return sent_call

    def _wire_name(self, own_name: str) -> str:
        return self._names.get(own_name) or wire_name(self._rule, own_name)

    def _sent_result(self, message: Message, position: int) -> SentResult:
        call = self._open_calls.pop(message.call_id or "", None)
        if call is None:
            raise RequestError(
                f"messages[{position}] is the result of {message.call_id!r}, which is not an "
                "unanswered call of the assistant's message before it"
            )
        return SentResult(message, call.id, call.name)

    def _sent_id(self, call: ToolCall, state: ProviderState | None) -> str:
        """Return a call's id: the provider's if legal and unique, or ours, or a generated one.

        A provider accepts more of its own ids than of others'.
        """
        is_own = state is not None and state.wire == self.keeper
        provider_rule = self.given_ids if is_own and self.given_ids else self.ids
        for candidate, rule in ((call.provider_id, provider_rule), (call.id, self.ids)):
            if candidate not in self._used_ids and rule.legal(candidate):
                self._used_ids.add(candidate)
                return candidate
        number = len(self._used_ids)
        while (generated := self.ids.generated_id(number)) in self._used_ids:
            number += 1
        self._used_ids.add(generated)
        return generated

    def _unanswered(self) -> RequestError:
        ids = ", ".join(map(repr, self._open_calls))
        return RequestError(f"no result follows the tool call {ids}: each call needs exactly one")


_MessageKey: TypeAlias = tuple[object, ...]
_EndKey: TypeAlias = tuple[int, _MessageKey, _MessageKey]
_MESSAGE_BYTES = 300
_NAME_BYTES = 50
"""The memory that a message or a tool's name takes beyond its text, as measured."""


class Histories:
    """Keeps the encodings of concurrent conversations, up to `max_bytes`.

    The least recently used goes first.

    They are found by their last messages, so that a lookup takes as long among a thousand as among
    two.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[History, tuple[int, _EndKey]] = {}
        self._by_end: dict[_EndKey, list[History]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, messages: tuple[Message, ...], template: History) -> History | None:
        """Remove and return the longest history that `messages` continue, encoded with the settings of
        `template`; None if there is none.

        The caller may extend it. If that fails, nobody else can get the damaged history.
        """
        length = len(messages) if self._entries else 0
        end_key = _message_key(messages, length)
        while length > 0:
            previous_key = _message_key(messages, length - 1)
            for history in self._by_end.get((length, end_key, previous_key), ()):
                if history.is_prefix_of(messages) and history.adopt_names(template):
                    self._remove(history)
                    return history
            end_key, length = previous_key, length - 1
        return None

    def keep(self, history: History) -> None:
        """Add a history that is not among them, unless it alone exceeds the limit."""
        size, messages = history.size, history.messages
        if size > self._max_bytes:
            return
        length = len(messages)
        end = length, _message_key(messages, length), _message_key(messages, length - 1)
        self._entries[history] = size, end
        self._by_end.setdefault(end, []).append(history)
        self.size += size
        while self.size > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, history: History) -> None:
        size, end = self._entries.pop(history)
        self.size -= size
        same_end = self._by_end[end]
        same_end.remove(history)
        if not same_end:
            del self._by_end[end]


def _message_key(messages: tuple[Message, ...], number: int) -> _MessageKey:
    """Return a cheap key that distinguishes a message (number 1 is the first) from most others."""
    if number < 1:
        return ()
    message = messages[number - 1]
    calls, text = message.tool_calls, message.content
    return message.role, message.call_id, len(text), text[-32:], calls and calls[-1].id


def dumps(value: Any) -> bytes:
    """Write JSON; lone surrogates, which no provider accepts, become U+FFFD. Raises RequestError
    for a value that is not JSON.

    The slow path is for what a provider's state may contain: integers over 64 bits, deep nesting.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return _SLOW_ENCODER.encode(_mended(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"a message or a setting cannot be sent as JSON: {error}") from None


_SLOW_ENCODER = msgspec.json.Encoder(enc_hook=lambda fragment: msgspec.Raw(orjson.dumps(fragment)))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {
            mended(key) if isinstance(key, str) else key: _mended(item)
            for key, item in value.items()
        }
    return value
