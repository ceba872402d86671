"""What a wire is: a value that says how one provider format is written and read.

No IO in this room. An encoder turns semantic types into an `HttpRequest`, a decoder turns bytes
into a `Reply`; a client moves the bytes between them. A compatible server with one quirk is
`msgspec.structs.replace(OPENAI_CHAT, field=…)`, never an `if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Protocol

import msgspec

from toolcrib.errors import SchemaError
from toolcrib.schema.guard import schema_text
from toolcrib.schema.validator import compile_validator
from toolcrib.values.definition import HasDefinition, offered_tools
from toolcrib.values.json import JsonObject, Veiled, json_copy
from toolcrib.values.message import ChatRequest, FinishReason, Piece, Reply
from toolcrib.values.offer import Offer
from toolcrib.values.remembered import remembered
from toolcrib.wire.forms import OutputForm, ToolForm
from toolcrib.wire.history import Histories, History
from toolcrib.wire.text_calls.syntaxes import TextSyntax

MAX_BYTES = 64 * 1024 * 1024
"""The most that one event of a stream, or one whole body, may measure (bytes)."""
MAX_STREAM_BYTES = 4 * MAX_BYTES
"""The most that a whole stream may measure (bytes)."""


class HttpRequest(Veiled, msgspec.Struct, frozen=True):
    """A request without its server and key. `path` is below the client's base URL."""

    veiled: ClassVar[tuple[str, ...]] = ("headers", "body")

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    offer: Offer


class Decoder(Protocol):
    """The single assembler of one response; its state lives for that response only."""

    @property
    def done(self) -> bool:
        """True once no further byte can change the outcome: reading may stop, `finish` is due."""

    def feed(self, data: bytes) -> list[Piece]:
        """Return the parts that became known with `data`. Never raises for what the provider sent."""

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply. `clean` is whether the transport came to its own end: the last chunk, or
        the length that it had announced; a body that a closed connection ended has none, and may have
        been cut there. Raises ProviderError for a reported error, WireError for another format."""


REMEMBERED_BYTES = 64 * 1_048_576
"""What a memo keeps of encoded conversations (bytes of memory), unless another limit is given."""


class Memo:
    """Holds what an encoder keeps between requests, so that a turn costs only what is new in it.

    `tools` are those of the last request, `histories` those of all conversations that take turns, as
    far as `max_bytes` allow.
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


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One provider format; `tools` is its form of tools, `history` writes its messages.

    `natural_reasons` are those, in lower case, after which calls may run; `finish_reasons` says what
    others mean; one that neither lists is `doubtful`, and ends the calls. `auth` makes the headers that
    carry a key. `default_max_tokens` is sent where a provider insists on a limit and
    none was asked for. The rest are what servers of one format differ in: `max_tokens_key`;
    `stream_usage`, whether usage in streams must be asked for; `required_choice`, the word for a
    choice of at least one tool; `allowed_tools`, whether a choice can be among some of the tools (if
    not, the others are not sent); `text_calls`, the syntax (or its name) of calls that its models
    write in their text, which is nothing but text without; `text_calls_trusted`, whether those at its
    marks run like calls of the wire's own kind; `state_per_server`, whether what one server wants back
    another one of the format would refuse, and `server` then which one it is; `always_done`, whether a
    stream without `[DONE]` was cut there, as it is at the `done_servers`; `output`, how it is told the
    schema of a typed answer, if it can be; `is_reply`, whether a body, or the first event of a
    stream, is of this wire.
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
    is_reply: Callable[[JsonObject], bool] | None = None

    @property
    def keeper(self) -> str:
        """Whom the state of a reply may go back to: `ProviderState.wire`."""
        return f"{self.name} at {self.server}" if self.server else self.name

    def at(self, host: str, port: int | None = None) -> Wire:
        """Return the wire as the server of that host name speaks it, at a port of its own or the usual
        one; a dot at the end of the name names the same."""
        host = host.rstrip(".")
        server = host if port in (None, 80, 443) else f"{host}:{port}"
        known = any(host == name or host.endswith(f".{name}") for name in self.done_servers)
        return msgspec.structs.replace(
            self,
            server=server if self.state_per_server else self.server,
            always_done=self.always_done or known,
            output=self.output if self.output and self.output.is_known_at(host) else None,
        )

    def __repr__(self) -> str:
        return f"Wire({self.name!r})"


def as_offered(tools: object) -> Iterator[HasDefinition]:
    """Return the tools that an `Offer` holds, of tools in any form; a dictionary's schema is checked.

    Raises DefinitionError for what is no tool, and for a dictionary without a name, or whose schema is
    none, is not safe to use, or has another name.
    """
    return offered_tools(tools, _checked_text)


def _checked_text(name: str, schema: JsonObject) -> str:
    """Return a schema's text, its keys in their own order, which is the
    order that a model answers in."""
    try:
        text = schema_text(schema)
        _check(text)
    except SchemaError as error:
        raise SchemaError(f"the input_schema of {name!r}: {error.message}", error.pointer) from None
    return text


@remembered(4 << 20)
def _check(text: str) -> None:
    compile_validator(json_copy(text))
