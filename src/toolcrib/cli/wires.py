"""`toolcrib encode`, `decode` and `providers`: what a provider is sent, answers and can be asked."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.table import Table

from toolcrib.cli.options import JsonOption, ToolsOption, UnusableError, load_catalog
from toolcrib.cli.render import err, one_line, out, print_json, printable, shortened
from toolcrib.errors import ErrorCode, WireError, no_such
from toolcrib.schema.lower import Effect, Loss
from toolcrib.values.json import to_plain
from toolcrib.values.message import ChatRequest, Message, Offer, Reply
from toolcrib.wire import (
    FORMS,
    SYNTAXES,
    WIRES,
    Abilities,
    abilities,
    detect,
    encode_tools,
    tool_views,
    wire_of,
)
from toolcrib.wire import decode as decode_body
from toolcrib.wire import encode as encode_request

FormNameOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="P",
        help=f"One of: {', '.join(FORMS)}.",
        autocompletion=lambda: list(FORMS),
    ),
]
WireNameOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--provider",
        metavar="P",
        help=f"One of: {', '.join(WIRES)}; detected from the content if left out.",
        autocompletion=lambda: list(WIRES),
    ),
]
TextCallsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--text-calls",
        metavar="SYNTAX",
        help=f"Also read tool calls written in the text, in this syntax: {', '.join(SYNTAXES)}.",
        autocompletion=lambda: list(SYNTAXES),
    ),
]


def encode(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A conversation (JSON: messages, or a saved run); - is stdin."
        ),
    ] = None,
    *,
    wire: FormNameOption = "openai-chat",
    tools: ToolsOption = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="M", help="With FILE: the model named in the request."
        ),
    ] = "MODEL",
    as_json: JsonOption = False,
) -> None:
    """Show the tools as a provider is sent them (JSON), and on stderr what is lost.

    With FILE, show the whole request body instead. Exits with 1 if the provider would refuse one of
    the tools, and so the whole request.
    """
    _check_known("--provider", wire, FORMS, "provider")
    del as_json  # the output is always JSON, but every command has this option
    messages = None if file is None else _conversation(file)
    catalog = load_catalog(tools)
    for view in tool_views(wire, catalog):
        for loss in view.losses:
            err.print(_loss_line(view.definition.name, loss), style=_STYLES[loss.effect])
    if messages is None:
        print_json(encode_tools(wire, catalog))
        return
    request = encode_request(wire, ChatRequest(messages, tuple(catalog)), model=model)
    err.print(printable(f"{request.method} {request.path}"))
    print_json(json.loads(request.body))


def decode(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A recorded response body; stdin if - or left out."),
    ] = None,
    *,
    wire: WireNameOption = None,
    text_calls: TextCallsOption = None,
    tools: ToolsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a recorded response body, whole or streamed: its text, its calls, how it finished.

    With --tools, calls have the tools' original names where the provider was sent other names.
    """
    if wire is not None:
        _check_known("--provider", wire, WIRES, "provider")
    if text_calls is not None:
        _check_known("--text-calls", text_calls, SYNTAXES, "syntax")
    body = _read_bytes(file)
    if body.startswith(b"HTTP/"):
        raise UnusableError(
            "the file begins with HTTP headers: remove them, and keep only the body"
        )
    named_wire = wire_of(wire or _detected_wire(body))
    offer = None
    if text_calls is not None or tools:
        named_wire = msgspec.structs.replace(named_wire, text_calls=text_calls)
        catalog = load_catalog(tools)
        views = tool_views(named_wire, catalog)
        offer = Offer.of(catalog, own_names={v.wire_name: v.definition.name for v in views})
    reply = decode_body(named_wire, body, offer=offer)
    has_begun = any(len(event) > 1 for event in reply.events)  # a torn frame gives one bracket
    if reply.finish == "incomplete" and not (has_begun or reply.text or reply.tool_calls):
        raise WireError(f"the body has no content of a {named_wire.name} reply")
    if as_json:
        print_json(_reply_json(named_wire.name, reply))
        return
    if reply.text:
        out.print(printable(reply.text))
    for call in reply.tool_calls:
        code = call.fault.code if call.fault else ErrorCode.TRUNCATED
        state = "" if call.complete else f"  ({code}: never runs)"
        name = one_line(call.name)
        out.print(f"{name} {shortened(one_line(call.arguments))}{state}")
    err.print(f"finish: {reply.finish} (the provider said {one_line(str(reply.provider_finish))})")


def _detected_wire(body: bytes) -> str:
    try:
        wire = detect(body)
    except WireError as error:
        raise WireError(f"{error}; name it with --provider") from None
    err.print(f"wire: {wire}")
    return wire


class _Conversation(msgspec.Struct):
    messages: tuple[Message, ...]


_CONVERSATION = msgspec.json.Decoder(_Conversation | tuple[Message, ...])


def _conversation(file: Path) -> tuple[Message, ...]:
    """Return the messages in a file: a list of them, or an object with one, like a saved run."""
    try:
        decoded = _CONVERSATION.decode(_read_bytes(file).removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnusableError(f"{file}: it is not a conversation: {error}") from None
    return decoded.messages if isinstance(decoded, _Conversation) else decoded


def _check_known(option: str, value: str, choices: Iterable[str], kind: str) -> None:
    if value not in choices:
        raise UnusableError(f"{option}: {no_such(kind, value, choices)}")


_STYLES: dict[Effect, str] = {"refused": "red", "lost": "yellow", "doubtful": "dim"}


def _loss_line(name: str, loss: Loss) -> str:
    """Return a line such as `book: lost: format at /properties/when: it is said in the description`."""
    place = f"{loss.keyword} at {loss.pointer}" if loss.pointer else loss.keyword
    return printable(f"{name}: {loss.effect}: {place}: {loss.message}").replace("\n", " ")


def _read_bytes(file: Path | None) -> bytes:
    if (file is None or str(file) == "-") and sys.stdin is None:
        raise UnusableError("stdin is closed: name a file")
    if file is None or str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnusableError(f"{file}: it cannot be read ({error.strerror})") from None


def _reply_json(wire: str, reply: Reply) -> object:
    return {
        "wire": wire,
        "text": reply.text,
        "tool_calls": [to_plain(call) for call in reply.tool_calls],
        "finish": reply.finish,
        "provider_finish": reply.provider_finish,
        "usage": to_plain(reply.usage),
    }


HEADINGS = {
    "none": "no tool",
    "required": "any tool",
    "one_tool": "one tool",
    "some_tools": "some tools",
    "one_call": "one call",
    "images": "images",
    "marks_errors": "errors",
    "strict": "strict",
    "typed": "typed",
    "reasoning": "reasons",
    "deferred": "deferred",
}


_NARROW = 90  # a narrower table would break its words


def rows() -> list[list[str]]:
    """Return for each wire its name and what it can be asked, in the order of HEADINGS."""
    return [[name, *_ability_words(abilities(wire))] for name, wire in WIRES.items()]


def _ability_words(own_abilities: Abilities) -> Iterable[str]:
    images = (
        "data" if own_abilities.images and not own_abilities.image_urls else own_abilities.images
    )
    values = own_abilities._asdict() | {"images": images}
    return (_word(values[name]) for name in HEADINGS)


def _word(value: str | bool) -> str:
    return value if isinstance(value, str) else ("no", "yes")[value]


def providers(*, as_json: JsonOption = False) -> None:
    """Show what can be asked of each provider, as its own encoder says.

    Of the choices, `fewer` means that only the tools that may be called are sent. `one call`: a
    reply can be kept to one. `images`: also by address, or as `data` only. `errors`: a failed
    result is marked as such. What is `no` among choices, calls and images is refused before
    anything is sent. `typed`: a typed answer's schema is sent in the provider's own form; `alone`
    means only in requests without tools. `reasons`: it can be asked for all levels of reasoning, or
    `some`; `by model`: the levels that the known models have. `deferred`: what an agent's model
    finds by `search_tools` can be told in the result of the search, which keeps the provider's
    cache valid.
    """
    if as_json:
        print_json({name: abilities(wire)._asdict() for name, wire in WIRES.items()})
        return
    if out.width < _NARROW:
        for name, *words in rows():
            pairs = zip(HEADINGS.values(), words, strict=True)
            out.print(f"{name}  {', '.join(f'{heading}: {word}' for heading, word in pairs)}")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(no_wrap=True)
    for heading in HEADINGS.values():
        table.add_column(heading.replace(" ", "\n"))  # else rich would break other words
    for row in rows():
        table.add_row(*row)
    out.print(table)
