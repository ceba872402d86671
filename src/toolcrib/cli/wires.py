"""`toolcrib encode` and `decode`: what a provider is sent, and what it answered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from toolcrib.cli.options import Json, Tools
from toolcrib.cli.render import err, out, print_json, printable, shortened
from toolcrib.cli.where import UnusableError, load_catalog
from toolcrib.values.message import Reply
from toolcrib.wire import WIRES, encode_tools
from toolcrib.wire import decode as decode_body

WireName: TypeAlias = Annotated[
    str, typer.Option("--wire", metavar="W", help=f"One of: {', '.join(WIRES)}.")
]


def encode(*, wire: WireName = "openai-chat", tools: Tools = None, as_json: Json = True) -> None:
    """Show the tools as a provider is sent them (JSON)."""
    _check_wire(wire)
    del as_json  # it is JSON either way; the option is there because every command has it
    print_json(encode_tools(wire, load_catalog(tools)))


def decode(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A recorded body; stdin if left out.")
    ] = None,
    *,
    wire: WireName = "openai-chat",
    as_json: Json = False,
) -> None:
    """Read a recorded response body, whole or streamed: its text, its calls, how it finished."""
    _check_wire(wire)
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


def _check_wire(wire: str) -> None:
    if wire not in WIRES:
        raise UnusableError(f"--wire {wire}: there is no such wire; there are: {', '.join(WIRES)}")


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
