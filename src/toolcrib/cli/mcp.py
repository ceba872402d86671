"""`toolcrib mcp serve`: a catalog as an MCP server, for any MCP client."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from importlib import import_module
from typing import Annotated, Any, TypeAlias

import typer

from toolcrib.cli.listening import TOKEN, ended_by_signals, listener_at, serve_app, url_host
from toolcrib.cli.options import (
    ConsentOption,
    DataOption,
    KeyFileOption,
    RecordOption,
    RulesOption,
    ToolsOption,
    UnusableError,
    approver,
    exception_hook,
    load_catalog,
    log_to_write,
    rules_in,
)
from toolcrib.cli.render import err, printable
from toolcrib.closing import Closing, close_all
from toolcrib.doors import anything
from toolcrib.runner import ToolRunner
from toolcrib.values.decision import Caller
from toolcrib.values.json import keyed_digest

_ALL_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104  all addresses: no client's name

app = typer.Typer(
    name="mcp", no_args_is_help=True, help="The tools as an MCP server, for any MCP client."
)

_Http: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Serve streamable HTTP at this address. Default: stdin and stdout. Port 0 takes a "
        "free one.",
    ),
]
_Elicit: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--elicit",
        help="Let the caller also approve: the client asks its user about each risky call.",
    ),
]
_Hosts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="With --http: a host name that clients use for this server (may be repeated).",
    ),
]
_Origins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        metavar="URL",
        help="With --http: an origin whose web pages may call (may be repeated).",
    ),
]


@app.callback()
def _group() -> None:
    """Keep `serve` a subcommand, though it is the only one."""


@app.command("serve")
def serve(  # noqa: PLR0913  the options of a command
    *,
    tools: ToolsOption = None,
    database: DataOption = None,
    http: _Http = None,
    consent: ConsentOption = None,
    elicit: _Elicit = False,
    rules: RulesOption = None,
    audit: RecordOption = None,
    key_file: KeyFileOption = None,
    hosts: _Hosts = None,
    origins: _Origins = None,
) -> int:
    """Serve the tools to an MCP client, which starts this program or calls it over HTTP.

    Risky calls are refused unless you say who approves: --yes, --elicit for the client's user, or,
    with --http, you at this terminal. Over HTTP a client sends $TOOLCRIB_TOKEN, or the token that
    is printed if that is not set. Ctrl-C ends it, and calls under way are recorded as cancelled.
    """
    if elicit and consent is not None:
        raise UnusableError("--elicit asks the client's user: leave out --yes and --no")
    if http is None and (hosts or origins):
        raise UnusableError("--allow-host and --allow-origin need --http HOST:PORT")
    mcp = import_module("toolcrib.bridges.mcp")  # needs the extra `mcp`
    log, rule_store = log_to_write(audit, key_file), rules_in(rules, consent)
    runner = ToolRunner(
        load_catalog(tools, database=database),
        approver=None if elicit else approver(consent),
        rules=rule_store,
        sinks=() if log is None else (log,),
        on_exception=exception_hook(),
    )
    set_token = os.environ.get(TOKEN)
    state_key = (
        None if set_token is None else keyed_digest(set_token.encode(), "state of MCP requests")
    )
    server = mcp.mcp_server(
        runner,
        may_approve=anything if elicit else None,
        caller=lambda token: Caller("mcp") if token is None else mcp.caller_of(token),
        state_key=state_key,
    )
    if http is None:
        asyncio.run(_serve_stdio(server, log, rule_store))
        return 0
    token = set_token or secrets.token_urlsafe()
    try:
        verifier = mcp.bearer(token)
    except ValueError as error:
        raise UnusableError(f"${TOKEN}: {error}") from None
    listener, host = _listener(http)
    host_names = [*(hosts or ()), *(() if host in _ALL_ADDRESSES else (url_host(host),))]
    http_app = server.http_app(token_verifier=verifier, hosts=host_names, origins=origins or ())
    err.print(f"Tools: {printable(', '.join(runner.catalog.names))}.")
    shown_host = "localhost" if host in _ALL_ADDRESSES else host
    err.print(
        f"http://{url_host(shown_host)}:{listener.getsockname()[1]}/mcp\n"
        f"Authorization: Bearer {f'${TOKEN}' if set_token else token}\nCtrl-C ends.",
        soft_wrap=True,
        highlight=False,
    )
    asyncio.run(_serve_http(http_app, listener, log, rule_store))
    return 0


def _listener(address: str) -> tuple[socket.socket, str]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise UnusableError(f"--http {address}: give HOST:PORT, such as 127.0.0.1:8018")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    return listener_at(host, int(port), option=f"--http {address}", free_port="port 0"), host


async def _serve_stdio(server: Any, *resources: Closing | None) -> None:
    stop = asyncio.Event()
    try:
        with ended_by_signals(lambda _number: stop.set()):
            await server.run_stdio(stop)
    finally:
        await close_all(*resources)


async def _serve_http(http_app: Any, listener: socket.socket, *resources: Closing | None) -> None:
    try:
        await serve_app(http_app, listener, lifespan="on")
    finally:
        await close_all(*resources)
