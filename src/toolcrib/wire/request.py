"""What the wires share: requests (tools, histories, settings, headers) and the decoder's protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import orjson

from toolcrib.errors import RequestError
from toolcrib.values.definition import HasDefinition, tools_in
from toolcrib.values.json import JsonObject
from toolcrib.values.message import ChatRequest, Piece, ReasoningPart, Reply, TextPart, ToolChoice
from toolcrib.values.offer import Offer
from toolcrib.wire.base import HttpRequest, Memo, Wire, as_offered
from toolcrib.wire.calls import Ending
from toolcrib.wire.forms import ToolForm, encoded
from toolcrib.wire.framing import Event
from toolcrib.wire.history import EncodedList, History
from toolcrib.wire.json_text import mended

_PLACE_TEXT = b"\0"
_PLACE = orjson.Fragment(_PLACE_TEXT)
"""Stands for the one list of messages: JSON has no such character, not in a text either."""


class SentTools(msgspec.Struct, frozen=True):
    """Tools as encoded once, `given` in a `form`; `names` is own name → wire name."""

    given: Sequence[Any]
    form: ToolForm
    names: Mapping[str, str]
    offer: Offer
    body: bytes

    def wire_name(self, own: str) -> str:
        """Raise RequestError for a tool that is not on offer."""
        if own not in self.names:
            raise RequestError(f"tool_choice names {own!r}, which is not on offer")
        return self.names[own]


def remembered_tools(wire: Wire, given: Sequence[HasDefinition], memo: Memo | None) -> SentTools:
    """Return the tools of a request; the same as before are not encoded again."""
    if not isinstance(given, tuple):
        given = tuple(tools_in(given))
    if memo is None:
        return _encoded(wire, given)
    known = memo.tools if isinstance(memo.tools, SentTools) else None
    if known is None or known.form is not wire.tools or not _same(known.given, given):
        known = memo.tools = _encoded(wire, given)
    return known


def _same(known: Sequence[Any], given: Sequence[Any]) -> bool:
    """Return whether these are the very same tools; each run of an agent has a list of its own."""
    return known is given or (len(known) == len(given) and all(map(is_, known, given)))


def remembered_history(
    wire: Wire, request: ChatRequest, tools: SentTools, memo: Memo | None
) -> History:
    """Return the history of a request; what was encoded before is not encoded
    again. Raises RequestError."""
    histories = (memo or Memo()).histories
    history = wire.history(wire.keeper, wire.tools.names, tools.names)
    history = histories.take(request.messages, history) or history
    history.extend(request.messages)
    histories.keep(history)
    if history.silent:
        raise RequestError(
            "there is nothing to send: no message has any content, save perhaps the system's"
        )
    return history


def tools_member(tools: SentTools, request: ChatRequest) -> orjson.Fragment | None:
    """Return the list of tools, the provider's own behind those on offer; None where it would be empty.

    Raises RequestError for a provider's tool that is no JSON.
    """
    provided = request.settings.provider_tools
    if not provided:
        return orjson.Fragment(tools.body) if tools.names else None
    try:
        more = orjson.dumps(provided)
    except TypeError as error:
        raise RequestError(f"Settings.provider_tools cannot be sent as JSON: {error}") from None
    return orjson.Fragment(tools.body[:-1] + b"," + more[1:] if tools.names else more)


def narrowed(wire: Wire, tools: SentTools, allowed: Iterable[str]) -> SentTools:
    """Only the tools of these own names; the others are known to the offer, but not on it.

    For wires that can keep a model from a tool in no other way. They are not remembered.
    """
    own = frozenset(allowed)
    if own == tools.names.keys():
        return tools
    few = _encoded(wire, [tool for name, tool in tools.offer.tools.items() if name in own])
    offer = msgspec.structs.replace(few.offer, known=frozenset(tools.names) - own)
    return msgspec.structs.replace(few, offer=offer)


def checked_choice(choice: ToolChoice, tools: SentTools) -> ToolChoice | None:
    """Return the choice with wire names; None where nothing need be said. Raises RequestError."""
    if (choice.mode == "auto" and not choice.allowed) or (
        choice.mode == "none" and not tools.names
    ):
        return None
    if not tools.names:
        raise RequestError(f"tool_choice {choice.mode!r} needs tools, and none are on offer")
    allowed = tuple(tools.wire_name(name) for name in choice.allowed)
    name = tools.wire_name(choice.name or "") if choice.mode == "tool" else None
    return ToolChoice(choice.mode, name, allowed)


def refuse_single_calls(wire: Wire, request: ChatRequest, tools: SentTools) -> None:
    """Raise RequestError on wires that cannot ask for one call at a time."""
    if tools.names and request.parallel_calls is False:
        raise RequestError(
            f"parallel_calls=False: {wire.name} has no way to ask for one call at a time; leave it None"
        )


def extra_members(
    extra: Mapping[str, Any], *, own: AbstractSet[str], unwanted: AbstractSet[str] = frozenset()
) -> dict[str, Any]:
    """`Settings.extra` but for what is `unwanted`. Raises RequestError for what is the wire's own."""
    for key in extra:
        if key in own:
            raise RequestError(f"Settings.extra may not set {key!r}: the request says that itself")
    return {key: value for key, value in extra.items() if key not in unwanted}


def sampling(wire: Wire, request: ChatRequest) -> dict[str, Any]:
    """Temperature and token limit, as far as they are set, under the names that the wire has."""
    settings, members = request.settings, dict[str, Any]()
    if settings.temperature is not None:
        members["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        members[wire.max_tokens_key] = settings.max_tokens
    return members


def with_extra(own: Mapping[str, Any], key: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Return a member that is ours and that `Settings.extra` may add to; what
    is extra wins, and is taken out.

    Raises RequestError if what is extra is not an object.
    """
    more = extra.pop(key, None)
    if more is not None and not isinstance(more, Mapping):
        raise RequestError(f"Settings.extra: {key!r} is not an object")
    return {**own, **(more or {})}


def settings_members(
    wire: Wire,
    request: ChatRequest,
    tools: SentTools,
    *,
    own: AbstractSet[str],
    only_with_tools: AbstractSet[str],
) -> dict[str, Any]:
    """Temperature, token limit and `Settings.extra`, as OpenAI's wires have them: in the body itself.

    `own` are the members that the request makes itself. Raises RequestError for one in `extra`.
    """
    unwanted = frozenset[str]() if tools.names else only_with_tools
    extra = extra_members(request.settings.extra, own=own, unwanted=unwanted)
    return sampling(wire, request) | extra


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key on most wires (RFC 6750)."""
    return {"Authorization": f"Bearer {key}"}


def http_request(
    wire: Wire,
    path: str,
    body: Mapping[str, Any],
    *,
    stream: bool,
    offer: Offer,
    streamed_as: str = "text/event-stream",
) -> HttpRequest:
    """Raise RequestError for settings that are no JSON."""
    lists: list[EncodedList] = []

    def place(value: object) -> orjson.Fragment:
        if not isinstance(value, EncodedList):
            raise TypeError
        lists.append(value)
        return _PLACE

    try:
        data = orjson.dumps(body, place)
    except TypeError as error:
        raise RequestError(f"the settings cannot be sent as JSON: {error}") from None
    for encoded_list in lists:
        before, _, after = data.partition(_PLACE_TEXT)
        data = b"".join((before, *encoded_list.pieces, after))
    headers = {"Content-Type": "application/json", **wire.headers}
    headers["Accept"] = streamed_as if stream else "application/json"
    return HttpRequest("POST", path, headers, data, offer)


def _encoded(wire: Wire, given: Sequence[HasDefinition]) -> SentTools:
    tools = list(as_offered(given))
    made = encoded(wire.tools, [tool.get_definition() for tool in tools])
    own_names = {wire_name: own for own, wire_name in made.names.items() if own != wire_name}
    offer = Offer.of(tools, own_names=own_names, restorers=made.restorers)
    return SentTools(given, wire.tools, made.names, offer, made.body)


# What a wire gives to the decoder that all wires share: a reply under construction, and frames.


Parts: TypeAlias = list[Piece]


def show_text(text: str, said: list[str], parts: Parts) -> None:
    """Add a piece of the answer's text to what was said before it, and to what can be shown."""
    said.append(text)
    parts.append(TextPart(mended(text)))


def show_reasoning(text: object, parts: Parts) -> None:
    """Add what the model lets us read of its reasoning, if it is text: it decides nothing."""
    if isinstance(text, str) and text:
        parts.append(ReasoningPart(mended(text)))


class Builder(Protocol):
    """The reply under construction. Every method may raise ClientError, which ends the reply."""

    ending: Ending

    @property
    def known(self) -> bool:
        """Whether anything was there that only this wire sends."""

    @property
    def over(self) -> bool:
        """Whether the provider has said, in its own way, that no event follows."""

    def body(self, body: JsonObject, data: bytes) -> None:
        """Take a whole body; `data` are its bytes."""

    def event(self, event: JsonObject, data: bytes, name: bytes, parts: Parts) -> None:
        """Take one event of a stream, and add what can be shown of it to `parts`."""

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` is whether the provider said that this was all of it."""


@runtime_checkable
class QuickBuilder(Builder, Protocol):
    """A builder that can read most events of its wire from their bytes, which saves half the time."""

    def fast(self, data: bytes, parts: Parts) -> bool:
        """Take an event by the fast path; False if that did nothing, and `event` is due."""


class MakeBuilder(Protocol):
    def __call__(self, wire: Wire, /, *, offer: Offer, ids: str) -> Builder: ...


class Frames(Protocol):
    """Cuts a stream into events; `foreign` counts lines that belong to none."""

    foreign: int

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> Event | None: ...
