"""`toolcrib encode` and `decode`: what a provider is sent, and what it answered."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.render import err, out, print_json, printable, shortened
from toolcrib.cli.where import UnusableError, load_catalog
from toolcrib.schema.lower import Effect, Loss
from toolcrib.values.message import Reply
from toolcrib.wire import FORMS, WIRES, encode_tools, tool_views
from toolcrib.wire import decode as decode_body

FormName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--wire",
        metavar="W",
        help=f"One of: {', '.join(FORMS)}.",
        autocompletion=lambda: list(FORMS),
    ),
]
WireName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--wire",
        metavar="W",
        help=f"One of: {', '.join(WIRES)}.",
        autocompletion=lambda: list(WIRES),
    ),
]


def encode(*, wire: FormName = "openai-chat", tools: Tools = None, as_json: Json = True) -> None:
    """Show the tools as a provider is sent them (JSON), and on stderr what that loses.

    Exits with 1 if the provider would refuse one of them, and the request with it.
    """
    _check_wire(wire, FORMS)
    del as_json  # it is JSON either way; the option is there because every command has it
    catalog = load_catalog(tools)
    for view in tool_views(wire, catalog):
        for loss in view.losses:
            err.print(_loss_line(view.definition.name, loss), style=_STYLES[loss.effect])
    print_json(encode_tools(wire, catalog))


def decode(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A recorded body; stdin if left out.")
    ] = None,
    *,
    wire: WireName = "openai-chat",
    as_json: Json = False,
) -> None:
    """Read a recorded response body, whole or streamed: its text, its calls, how it finished."""
    _check_wire(wire, WIRES)
    reply = decode_body(wire, _read(file))
    if as_json:
        print_json(_plain(reply))
        return
    if reply.text:
        out.print(printable(reply.text))
    for call in reply.tool_calls:
        state = "" if call.complete else "  (cut: never runs)"
        out.print(f"{printable(call.name)} {shortened(printable(call.arguments))}{state}")
    err.print(f"finish: {reply.finish} (the provider said {printable(str(reply.provider_finish))})")


def _check_wire(wire: str, known: Iterable[str]) -> None:
    if wire not in known:
        raise UnusableError(f"--wire {wire}: there is no such wire; there are: {', '.join(known)}")


_STYLES: dict[Effect, str] = {"refused": "red", "lost": "yellow", "doubtful": "dim"}


def _loss_line(name: str, loss: Loss) -> str:
    """`book: lost: format at /properties/when: it is told in the description`."""
    where = f"{loss.keyword} at {loss.pointer}" if loss.pointer else loss.keyword
    return printable(f"{name}: {loss.effect}: {where}: {loss.message}").replace("\n", " ")


def _read(file: Path | None) -> bytes:
    if file is None and sys.stdin is None:
        raise UnusableError("there is no stdin to read: name a file")
    if file is None:
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnusableError(f"{file}: it cannot be read ({error.strerror})") from None


def _plain(reply: Reply) -> object:
    return {
        "text": reply.text,
        "tool_calls": [msgspec.to_builtins(call) for call in reply.tool_calls],
        "finish": reply.finish,
        "provider_finish": reply.provider_finish,
        "usage": msgspec.to_builtins(reply.usage),
    }
