"""A wire is a value that says how one provider format is written and read. This module also holds
what the requests of all wires share.

This package does no IO. An encoder turns semantic types into an `HttpRequest`, a decoder turns
bytes into a `Reply`, and a client moves the bytes between them. A compatible server with one quirk
is `msgspec.structs.replace(OPENAI_CHAT, field=…)`, never an `if`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec
import orjson

from toolcrib.errors import RequestError, SchemaError
from toolcrib.schema.guard import schema_text
from toolcrib.schema.validator import compile_validator
from toolcrib.values.definition import HasDefinition, offered_tools, tools_in
from toolcrib.values.json import JsonObject, Redacted, canonical_json, json_copy
from toolcrib.values.message import (
    ChatRequest,
    Effort,
    FinishReason,
    Offer,
    Piece,
    Reply,
    ToolChoice,
)
from toolcrib.values.remembered import remembered
from toolcrib.wire.deferred import DeferredForm, Loaded, found_tool_names, is_deferred
from toolcrib.wire.forms import OutputForm, ToolForm, encoded
from toolcrib.wire.history import EncodedList, Histories, History
from toolcrib.wire.text_calls.syntaxes import TextSyntax

MAX_BYTES = 64 * 1024 * 1024
"""The limit on one event of a stream, or one complete body, in bytes."""
MAX_STREAM_BYTES = 4 * MAX_BYTES
"""The limit on a complete stream, in bytes."""


class HttpRequest(Redacted, msgspec.Struct, frozen=True):
    """A request without its server and key. `path` is below the client's base URL."""

    redacted: ClassVar[tuple[str, ...]] = ("headers", "body")

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    offer: Offer


class Decoder(Protocol):
    """Assembles one response; its state lives only as long as that response."""

    @property
    def done(self) -> bool:
        """True once no further byte can change the outcome: stop reading and call `finish`."""

    def feed(self, data: bytes) -> list[Piece]:
        """Return the parts that became known with `data`. Never raises for what the provider
        sent."""

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply. Raises ProviderError for a reported error, WireError for another format.

        `clean` says whether the transport came to its own end: the last chunk, or the announced
        length. A body that ended because the connection closed has no such end, and may have been
        cut there.
        """


REMEMBERED_BYTES = 64 * 1_048_576
"""The default limit on the memory that a memo uses for encoded conversations, in bytes."""


class Memo:
    """Holds what an encoder keeps between requests, so that a turn costs only what is new in it.

    `tools` are those of the last request. `histories` are those of all concurrent conversations, as
    far as `max_bytes` allows.
    """

    __slots__ = ("histories", "tools")

    def __init__(self, max_bytes: int = REMEMBERED_BYTES) -> None:
        self.tools: object = None
        self.histories = Histories(max_bytes)


class Encode(Protocol):
    def __call__(
        self, wire: Wire, request: ChatRequest, *, model: str, stream: bool, memo: Memo | None
    ) -> HttpRequest: ...


class MakeDecoder(Protocol):
    def __call__(self, wire: Wire, *, streaming: bool, offer: Offer, ids: str) -> Decoder: ...


class Reasoning(msgspec.Struct, frozen=True):
    """How a provider is asked to reason: members of the body, and the `tokens` for it.

    `tokens` is the part of the token limit that reasoning may take, if the provider is given a
    number.
    """

    members: Mapping[str, Any]
    tokens: int = 0


AskReasoning: TypeAlias = Callable[[Effort, str], Reasoning]
"""Says how a model, by its name, is asked for a level of reasoning. Raises RequestError if it
cannot be."""
REASONING_TOKENS: Mapping[Effort, int] = {
    "none": 0,
    "minimal": 1_024,
    "low": 1_024,
    "medium": 8_192,
    "high": 24_576,
}
"""The levels in tokens, for providers that want a number. Google maps them like this for Gemini 2.5
(https://ai.google.dev/gemini-api/docs/openai#thinking). Anthropic accepts no less than 1,024."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One provider format; `tools` is its form of tools, `history` writes its messages.

    `natural_reasons`, in lower case, are the finish reasons after which calls may run.
    `finish_reasons` says what others mean. A reason in neither is `doubtful`, and no call of the
    reply runs. `auth` makes the headers that carry a key. `default_max_tokens` is sent if the
    provider requires a limit and none was set.

    The other fields are differences between servers of one format:

    * `max_tokens_key`: the member that holds the token limit;
    * `stream_usage`: whether usage in streams has to be requested;
    * `required_choice`: the word for a choice of at least one tool;
    * `allowed_tools`: whether a choice can be among some of the tools (if not, the others are not
      sent);
    * `text_calls`: the syntax (or its name) of calls that its models write in their text, which is
      only text otherwise;
    * `text_calls_trusted`: whether such calls at the syntax's marks run like the wire's own calls;
    * `state_per_server`: whether one server refuses the state that another server of the format
      wants back; `server` is then the server;
    * `always_done`: whether a stream without `[DONE]` was cut, as it is at the `done_servers`;
    * `output`: how it is given the schema of a typed answer, if it can be;
    * `output_tool`: whether a tool is offered whose call is that answer; None: only if `output`
      cannot be combined with the request's tools;
    * `result_media`: the media types of content that its models get in results (others are
      described in text);
    * `result_models`: a pattern of the models that accept any; all do if it is empty;
    * `prompt_media`, `prompt_models`: likewise, what a user may send and to which models (anything
      else is refused);
    * `reasoning`: how its models are asked to reason, if they can be;
    * `deferred`: how it is given the tools that a search found at the place where they were found,
      if it can be;
    * `is_reply`: whether a body, or the first event of a stream, belongs to this wire.
    """

    name: str
    path: str
    encode: Encode
    tools: ToolForm
    make_decoder: MakeDecoder
    auth: Callable[[str], Mapping[str, str]]
    natural_reasons: frozenset[str]
    finish_reasons: Mapping[str, FinishReason]
    history: type[History]
    headers: Mapping[str, str] = {}
    default_max_tokens: int = 0
    max_tokens_key: str = "max_tokens"
    stream_usage: bool = True
    required_choice: str = "required"
    allowed_tools: bool = True
    text_calls: TextSyntax | str | None = None
    text_calls_trusted: bool = False
    state_per_server: bool = False
    server: str = ""
    done_servers: frozenset[str] = frozenset()
    always_done: bool = False
    output: OutputForm | None = None
    output_tool: bool | None = None
    result_media: frozenset[str] = frozenset()
    result_models: str = ""
    prompt_media: frozenset[str] = frozenset()
    prompt_models: str = ""
    reasoning: AskReasoning | None = None
    deferred: DeferredForm | None = None
    is_reply: Callable[[JsonObject], bool] | None = None

    @property
    def keeper(self) -> str:
        """The identity to which the state of a reply may go back: `ProviderState.wire`."""
        return f"{self.name} at {self.server}" if self.server else self.name

    def at(self, host: str, port: int | None = None) -> Wire:
        """Return the wire for the server with this host name, at the given port or the usual one.

        A dot at the end of the name makes no difference.
        """
        host = host.rstrip(".")
        server = host if port in (None, 80, 443) else f"{host}:{port}"
        is_done_server = any(
            host == name or host.endswith(f".{name}") for name in self.done_servers
        )
        return msgspec.structs.replace(
            self,
            server=server if self.state_per_server else self.server,
            always_done=self.always_done or is_done_server,
            output=self.output if self.output and self.output.is_known_at(host) else None,
            deferred=self.deferred and self.deferred.at(host),
        )

    def __repr__(self) -> str:
        return f"Wire({self.name!r})"


def as_offered(tools: object) -> Iterator[HasDefinition]:
    """Return the tools that an `Offer` holds, from any form, with dictionaries' schemas checked.

    Raises DefinitionError for an object that is not a tool, and for a dictionary without a name, or
    whose schema is not one, is not safe to use, or has another key.
    """
    return offered_tools(tools, _checked_text)


def _checked_text(name: str, schema: JsonObject) -> str:
    """Return a schema's text with its keys in the original order, in which a model also answers."""
    try:
        text = schema_text(schema)
        _check(text)
    except SchemaError as error:
        raise SchemaError(f"the input_schema of {name!r}: {error.message}", error.pointer) from None
    return text


@remembered(4 << 20)
def _check(text: str) -> None:
    compile_validator(json_copy(text))


# What the requests of all wires share: tools, histories, settings, headers.


_PLACEHOLDER_TEXT = b"\0"
_PLACEHOLDER = orjson.Fragment(_PLACEHOLDER_TEXT)
"""Placeholder for the one list of messages. JSON never contains this character, not even in a
string."""


class SentTools(msgspec.Struct, frozen=True):
    """Tools as encoded once, from `source_tools` in a `form`.

    `names` maps own to wire names; `shapes` holds each tool's form.

    If tools found by a search are sent at the place where they were found, `search` is the own name
    of the search tool, and `loaded` holds the found tools.
    """

    source_tools: Sequence[Any]
    form: ToolForm
    names: Mapping[str, str]
    offer: Offer
    body: bytes
    shapes: Sequence[Mapping[str, Any]] = ()
    search: str = ""
    loaded: Loaded = {}

    def wire_name(self, own_name: str) -> str:
        """Return the wire name. Raises RequestError for a tool that is not on offer."""
        if own_name not in self.names:
            raise RequestError(
                f"tool_choice names {own_name!r}, which is not among the offered tools"
            )
        return self.names[own_name]


def tools_and_history(
    wire: Wire, request: ChatRequest, memo: Memo | None, *, model: str
) -> tuple[SentTools, History]:
    """Return the tools and the history of a request, without encoding the same ones again.

    Raises RequestError.
    """
    tools = _remembered_tools(wire, request, memo, model)
    histories = (memo or Memo()).histories
    history = wire.history(wire.keeper, wire.tools.names, tools.names)
    history.search, history.loaded = tools.search, tools.loaded
    if wire.result_media and re.search(wire.result_models, model):
        history.media = wire.result_media
    if wire.prompt_media and re.search(wire.prompt_models, model):
        history.prompt_media = wire.prompt_media
    history = histories.take(request.messages, history) or history
    history.extend(request.messages)
    histories.keep(history)
    if history.silent:
        raise RequestError(
            "there is nothing to send: no message except system messages has any content"
        )
    return tools, history


def _remembered_tools(wire: Wire, request: ChatRequest, memo: Memo | None, model: str) -> SentTools:
    tools = request.tools if isinstance(request.tools, tuple) else tuple(tools_in(request.tools))
    cached = memo.tools if memo is not None and isinstance(memo.tools, SentTools) else None
    if cached is None or cached.form is not wire.tools or not _same(cached.source_tools, tools):
        cached = _encoded_tools(wire, tools)
        if memo is not None:
            memo.tools = cached
    return _deferred(wire, request, cached, model) if request.search_tool else cached


def _deferred(wire: Wire, request: ChatRequest, tools: SentTools, model: str) -> SentTools:
    """Return the tools with those that results bring in `loaded`, if the provider accepts that."""
    form = wire.deferred
    if not is_deferred(form, request, tools.names, wire=wire.name, model=model) or form is None:
        return tools
    shapes = {
        own_name: {key: value for key, value in shape.items() if key not in form.without}
        for own_name, shape in zip(tools.names, tools.shapes, strict=True)
    }
    found_names, own_names = found_tool_names(request), dict(tools.offer.own_names)
    loaded = {
        own_name: orjson.dumps(s | dict(form.mark))
        for own_name, s in shapes.items()
        if own_name in found_names
    }
    if form.search is not None:
        shapes[request.search_tool] = dict(form.search(shapes[request.search_tool]))
        own_names[form.call_name] = request.search_tool
    sent_names = [own_name for own_name in shapes if form.listed or own_name not in loaded]
    sent_forms = [
        orjson.Fragment(loaded[own_name]) if own_name in loaded else shapes[own_name]
        for own_name in sent_names
    ]
    return msgspec.structs.replace(
        tools,
        offer=msgspec.structs.replace(tools.offer, own_names=own_names),
        body=orjson.dumps(sent_forms),
        search=request.search_tool,
        loaded=loaded,
    )


def _same(cached: Sequence[Any], tools: Sequence[Any]) -> bool:
    """Return whether the items are identical; each run of an agent has its own list of them."""
    return cached is tools or (len(cached) == len(tools) and all(map(is_, cached, tools)))


def tools_member(
    tools: SentTools, request: ChatRequest, *, can_forbid: bool = True
) -> dict[str, orjson.Fragment]:
    """Return the member `tools`: the tools, and the provider's own tools; nothing if there are none.

    A wire that cannot forbid the provider's own tools leaves them out if no tool may be called.
    Raises RequestError for a provider's tool that is not JSON.
    """
    provider_tools = request.settings.provider_tools
    if not provider_tools or (request.tool_choice.mode == "none" and not can_forbid):
        return {"tools": orjson.Fragment(tools.body)} if tools.names else {}
    provider_json = settings_json("provider_tools", provider_tools)
    tools_json = tools.body[:-1] + b"," + provider_json[1:] if tools.names else provider_json
    return {"tools": orjson.Fragment(tools_json)}


def narrowed(wire: Wire, tools: SentTools, allowed: Iterable[str]) -> SentTools:
    """Return only the tools with these own names. The offer knows the others, but does not offer them.

    For wires that have no other way to keep a model from calling a tool. The result is not cached.
    """
    allowed_names = frozenset(allowed)
    if allowed_names == tools.names.keys():
        return tools
    narrowed_tools = _encoded_tools(
        wire, [tool for name, tool in tools.offer.tools.items() if name in allowed_names]
    )
    offer = msgspec.structs.replace(
        narrowed_tools.offer, known=frozenset(tools.names) - allowed_names
    )
    return msgspec.structs.replace(narrowed_tools, offer=offer)


def has_tools(tools: SentTools, request: ChatRequest) -> bool:
    """Return whether a request has tools, its own or the provider's."""
    return bool(tools.names or request.settings.provider_tools)


def checked_choice(request: ChatRequest, tools: SentTools) -> ToolChoice | None:
    """Return the choice with wire names; None if nothing need be sent. Raises RequestError."""
    choice = request.tool_choice
    if choice.mode == "auto" and not choice.allowed:
        return None
    if choice.mode == "none":
        return ToolChoice("none") if has_tools(tools, request) else None
    if not tools.names:
        raise RequestError(f"tool_choice {choice.mode!r} needs tools, but none are offered")
    if choice.mode == "tool" and choice.allowed and choice.name not in choice.allowed:
        raise RequestError(
            f"tool_choice names {choice.name!r}, which is not among its allowed tools"
        )
    allowed = tuple(tools.wire_name(name) for name in choice.allowed)
    name = tools.wire_name(choice.name or "") if choice.mode == "tool" else None
    return ToolChoice(choice.mode, name, allowed)


def refuse_single_calls(wire: Wire, request: ChatRequest, tools: SentTools) -> None:
    """Raise RequestError on wires that cannot ask for one call at a time."""
    if tools.names and request.parallel_calls is False:
        raise RequestError(
            f"parallel_calls=False: {wire.name} cannot ask for one call at a time; leave it None"
        )


def extra_members(
    extra: Mapping[str, Any],
    *,
    own_keys: AbstractSet[str],
    unwanted_keys: AbstractSet[str] = frozenset(),
) -> dict[str, Any]:
    """Return `Settings.extra` without the `unwanted_keys`. Raises RequestError for a member of the
    wire's own, or one that is not JSON."""
    for key, value in extra.items():
        if key in own_keys:
            raise RequestError(f"Settings.extra may not set {key!r}: the client sets it itself")
        settings_json(f"extra[{key!r}]", value)
    return {key: value for key, value in extra.items() if key not in unwanted_keys}


def settings_json(name: str, value: Any) -> bytes:
    """Return a value from the `Settings` as JSON. Raises RequestError for what is not JSON, such as
    NaN, of which orjson makes null."""
    try:
        canonical_json(value)
        return orjson.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        said = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise RequestError(f"Settings.{name} cannot be sent as JSON: {said}") from None


def reasoning_of(wire: Wire, request: ChatRequest, model: str) -> Reasoning:
    """Return how to ask the model for the requested level of reasoning; empty if none is requested.

    Raises RequestError for a level that the wire, or this model, does not support.
    """
    effort = request.settings.reasoning
    if effort is None:
        return _NO_REASONING
    if wire.reasoning is None:
        raise RequestError(f"reasoning={effort!r}: {wire.name} does not support it; leave it None")
    return wire.reasoning(effort, model)


_NO_REASONING = Reasoning({})


def no_effort(effort: Effort, who: str, *supported: Effort) -> RequestError:
    """Return the error for a level of reasoning that a provider, or a model, does not have."""
    return RequestError(f"reasoning={effort!r}: {who} supports {', '.join(map(repr, supported))}")


def add_members(body: dict[str, Any], members: Mapping[str, Any]) -> None:
    """Add the members that ask for reasoning to a body with extra members, merging objects.

    Raises RequestError if both set the same member, so that neither is dropped.
    """
    for key, value in members.items():
        existing = body.get(key)
        if isinstance(value, Mapping) and isinstance(existing, Mapping):
            body[key] = dict(existing)
            add_members(body[key], value)
        elif key in body:
            raise RequestError(
                f"Settings.reasoning and Settings.extra both say what {key!r} is: leave out one"
            )
        else:
            body[key] = value


def sampling(wire: Wire, request: ChatRequest, tokens: int = 0) -> dict[str, Any]:
    """Return temperature and token limit, if set, under the wire's names.

    `tokens` are for reasoning, which counts towards the limit.
    """
    settings, members = request.settings, dict[str, Any]()
    if settings.temperature is not None:
        members["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        members[wire.max_tokens_key] = settings.max_tokens + tokens
    return members


def with_extra(members: Mapping[str, Any], key: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Return a member of the wire's own, merged with `Settings.extra`.

    Extra values win, and are removed from `extra`.

    Raises RequestError if the extra value is not an object.
    """
    extra_value = extra.pop(key, None)
    if extra_value is not None and not isinstance(extra_value, Mapping):
        raise RequestError(f"Settings.extra: {key!r} is not an object")
    return {**members, **(extra_value or {})}


def settings_members(
    wire: Wire,
    request: ChatRequest,
    tools: SentTools,
    *,
    model: str,
    own_keys: AbstractSet[str],
    only_with_tools: AbstractSet[str],
) -> dict[str, Any]:
    """Return temperature, token limit, reasoning and `Settings.extra`, as OpenAI's wires have them.

    `own_keys` are the members that the request sets itself. Raises RequestError for one in `extra`.
    """
    unwanted_keys = frozenset[str]() if has_tools(tools, request) else only_with_tools
    extra = extra_members(request.settings.extra, own_keys=own_keys, unwanted_keys=unwanted_keys)
    reasoning = reasoning_of(wire, request, model)
    members = sampling(wire, request, reasoning.tokens) | extra
    add_members(members, reasoning.members)
    return members


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
    stream_type: str = "text/event-stream",
) -> HttpRequest:
    """Return the request. Raises RequestError for settings that are not JSON."""
    lists: list[EncodedList] = []

    def placeholder(value: object) -> orjson.Fragment:
        if not isinstance(value, EncodedList):
            raise TypeError
        lists.append(value)
        return _PLACEHOLDER

    try:
        data = orjson.dumps(body, placeholder)
    except TypeError as error:
        raise RequestError(f"the settings cannot be sent as JSON: {error}") from None
    for encoded_list in lists:
        before, _, after = data.partition(_PLACEHOLDER_TEXT)
        data = b"".join((before, *encoded_list.pieces, after))
    headers = {"Content-Type": "application/json", **wire.headers}
    headers["Accept"] = stream_type if stream else "application/json"
    return HttpRequest("POST", path, headers, data, offer)


def _encoded_tools(wire: Wire, source_tools: Sequence[HasDefinition]) -> SentTools:
    tools = list(as_offered(source_tools))
    encoded_tools = encoded(wire.tools, [tool.get_definition() for tool in tools])
    own_names = {
        wire_name: own_name
        for own_name, wire_name in encoded_tools.names.items()
        if own_name != wire_name
    }
    offer = Offer.of(tools, own_names=own_names, restorers=encoded_tools.restorers)
    return SentTools(
        source_tools,
        wire.tools,
        encoded_tools.names,
        offer,
        encoded_tools.body,
        encoded_tools.shapes,
    )
