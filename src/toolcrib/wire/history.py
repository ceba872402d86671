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
from toolcrib.wire.json_text import is_object, mended


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

    def made(self, number: int) -> str:
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
        self._brought: dict[str, bytes | None] = {}
        self.messages: tuple[Message, ...] = ()
        self._sent_names: dict[str, str] = {}
        self._text = bytearray()
        self._used: set[str] = set()
        self._open: dict[str, SentCall] = {}

    @property
    def silent(self) -> bool:
        """Whether nothing would be sent, or only instructions where they cannot be sent alone."""
        return not self._text

    @abstractmethod
    def system(self, message: Message) -> Sequence[Any]:
        """Return the items that a system message becomes in the list of messages."""

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
        told = len(self._text) + sum(map(len, self.instructions))
        return 2 * told + _MESSAGE_BYTES * len(self.messages) + _NAME_BYTES * len(self._names)

    def goes_on_as(self, other: History) -> bool:
        """Return whether this encoding fits the other's settings, and if so adopt its names."""
        like = (
            type(self) is type(other)
            and self.keeper == other.keeper
            and (self.media, self.prompt_media) == (other.media, other.prompt_media)
            and self._rule == other._rule
            and self.search == other.search
            and all(other.loaded.get(name) == told for name, told in self._brought.items())
            and all(
                other._wire_name(own) == sent and (own in other.loaded) == (own in self.loaded)
                for own, sent in self._sent_names.items()
            )
        )
        if like:
            self._names, self.loaded = other._names, other.loaded
        return like

    def begins(self, messages: tuple[Message, ...]) -> bool:
        """Return whether `messages` begin with the messages encoded here."""
        known = self.messages
        return messages[: len(known)] == known

    def extend(self, messages: tuple[Message, ...]) -> None:
        """Encode the new messages. Raises RequestError, after which this history must not be
        used."""
        at = len(self.messages)
        while at < len(messages):
            at = self._take(messages, at)
        self.messages = messages
        if not messages:
            raise RequestError("there are no messages to send")
        if self._open:
            raise self._unanswered()

    def encoded(self) -> EncodedList:
        return EncodedList((b"[", self._text, b"]"))

    def brings(self, message: Message) -> list[str]:
        """Return the tools that this result is the first to bring, by their own names."""
        if not (self.search and message.loads):
            return []
        new = [name for name in loads_of(message, self.search) if name not in self._brought]
        self._brought |= {name: self.loaded.get(name) for name in new}
        return [name for name in new if name in self.loaded]

    def state(self, message: Message) -> Any:
        """Return what has to go back unchanged to this very provider, or None."""
        state = message.provider_state
        return state.data if state is not None and state.wire == self.keeper else None

    def _take(self, messages: tuple[Message, ...], at: int) -> int:
        """Encode the message at `at`, or all results from there on; return where to continue."""
        message = messages[at]
        if message.role == "tool":
            end = at
            while end < len(messages) and messages[end].role == "tool":
                end += 1
            self._keep(self.results([self._result(messages[n], n) for n in range(at, end)]))
            return end
        if self._open:
            raise self._unanswered()
        if message.tool_calls and message.role != "assistant":
            raise RequestError(f"messages[{at}]: only an assistant's message may hold calls")
        if message.parts and message.role != "user":
            what = "only user messages and results of calls may have parts"
            raise RequestError(f"messages[{at}]: {what}")
        if message.role == "assistant":
            calls = [self._call(call, message.provider_state) for call in message.tool_calls]
            self.called |= dict.fromkeys(call.name for call in calls)
            self._keep(self.assistant(message, calls))
        else:
            self._keep((self.system if message.role == "system" else self.user)(message))
        return at + 1

    def _keep(self, items: Sequence[Any]) -> None:
        for item in items:
            self._add(dumps(item))

    def _add(self, item: bytes) -> None:
        if self._text:
            self._text += b","
        self._text += item

    def _call(self, call: ToolCall, state: ProviderState | None) -> SentCall:
        """Return a call as the model made it. Arguments that are not a JSON object become an empty
        one.

        Servers parse arguments to fill a template, and fail on invalid text of a model.
        """
        if call.id in self._open:
            raise RequestError(f"two calls of one message have the id {call.id!r}")
        name = self._sent_names[call.name] = self._wire_name(call.name)
        arguments = call.arguments if is_object(call.arguments) else "{}"
        sent = self._open[call.id] = SentCall(call, self._alias(call, state), name, arguments)
        return sent

    def _wire_name(self, own: str) -> str:
        return self._names.get(own) or wire_name(self._rule, own)

    def _result(self, message: Message, at: int) -> SentResult:
        call = self._open.pop(message.call_id or "", None)
        if call is None:
            raise RequestError(
                f"messages[{at}] is the result of {message.call_id!r}, which is not an unanswered call "
                "of the assistant's message before it"
            )
        return SentResult(message, call.id, call.name)

    def _alias(self, call: ToolCall, state: ProviderState | None) -> str:
        """Return a call's id: the provider's if legal and unique, or ours, or a generated one.

        A provider accepts more of its own ids than of others'.
        """
        own = state is not None and state.wire == self.keeper
        given = self.given_ids if own and self.given_ids else self.ids
        for known, rule in ((call.provider_id, given), (call.id, self.ids)):
            if known not in self._used and rule.legal(known):
                self._used.add(known)
                return known
        number = len(self._used)
        while (made := self.ids.made(number)) in self._used:
            number += 1
        self._used.add(made)
        return made

    def _unanswered(self) -> RequestError:
        ids = ", ".join(map(repr, self._open))
        return RequestError(f"no result follows the tool call {ids}: each call needs exactly one")


_Mark: TypeAlias = tuple[object, ...]
_End: TypeAlias = tuple[int, _Mark, _Mark]
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
        self._kept: dict[History, tuple[int, _End]] = {}
        self._ends: dict[_End, list[History]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, messages: tuple[Message, ...], like: History) -> History | None:
        """Remove and return the longest history that `messages` continue, encoded `like` another;
        None if there is none.

        The caller may extend it. If that fails, nobody else can get the damaged history.
        """
        at = len(messages) if self._kept else 0
        mark = _mark(messages, at)
        while at > 0:
            before = _mark(messages, at - 1)
            for known in self._ends.get((at, mark, before), ()):
                if known.begins(messages) and known.goes_on_as(like):
                    self._remove(known)
                    return known
            mark, at = before, at - 1
        return None

    def keep(self, history: History) -> None:
        """Add a history that is not among them, unless it alone exceeds the limit."""
        size, messages = history.size, history.messages
        if size > self._max_bytes:
            return
        at = len(messages)
        end = at, _mark(messages, at), _mark(messages, at - 1)
        self._kept[history] = size, end
        self._ends.setdefault(end, []).append(history)
        self.size += size
        while self.size > self._max_bytes:
            self._remove(next(iter(self._kept)))

    def _remove(self, history: History) -> None:
        size, end = self._kept.pop(history)
        self.size -= size
        alike = self._ends[end]
        alike.remove(history)
        if not alike:
            del self._ends[end]


def _mark(messages: tuple[Message, ...], number: int) -> _Mark:
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
        return _SLOW.encode(_mended(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"a message or a setting cannot be sent as JSON: {error}") from None


_SLOW = msgspec.json.Encoder(enc_hook=lambda fragment: msgspec.Raw(orjson.dumps(fragment)))


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
