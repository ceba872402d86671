"""`toolcrib serve`: the agent loop behind a page in the browser, on this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Annotated, Any, TypeAlias

import typer

from toolcrib.agent import Agent
from toolcrib.audit import AuditLog
from toolcrib.cli.chat import (
    CountOption,
    ModelOption,
    ScorerOption,
    client_of,
    pick_options,
    who_answers,
)
from toolcrib.cli.options import (
    DATABASE,
    DataOption,
    KeyFileOption,
    RecordOption,
    ToolsOption,
    UnusableError,
    check_url,
    exception_hook,
    load_catalog,
    log_to_write,
)
from toolcrib.cli.render import err, printable
from toolcrib.runner import ToolRunner

TOKEN = "TOOLCRIB_TOKEN"  # noqa: S105  the name of a variable
_LAST_SECONDS = 2  # for streams to end in

_Store: TypeAlias = Annotated[
    str,
    typer.Option("--store", metavar="URL", help="Where conversations are kept."),
]
_Host: TypeAlias = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Listen there; this machine if left out.")
]
_Port: TypeAlias = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")
]
_Open: TypeAlias = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def serve(  # noqa: PLR0913  the options of a command
    *,
    model: ModelOption = "local",
    tools: ToolsOption = None,
    database: DataOption = None,
    pick: CountOption = None,
    scorer: ScorerOption = None,
    audit: RecordOption = None,
    key_file: KeyFileOption = None,
    store: _Store = DATABASE,
    host: _Host = "127.0.0.1",
    port: _Port = 8017,
    opens: _Open = False,
) -> int:
    """Chat in the browser: calls as they come, approvals with their exact arguments, conversations
    that are kept.

    Who has the address that it prints may ask: it holds a token, which is $TOOLCRIB_TOKEN if that is
    set, and else a new one. Ctrl-C ends it; what runs then is cancelled, and kept as that.
    """
    check_url(store)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe()
    options = pick_options(pick, scorer)
    chat = import_module("toolcrib.chat")  # needs the extra `chat`
    try:
        who = chat.bearer(token)
    except ValueError as error:
        raise UnusableError(f"${TOKEN}: {error}") from None
    log = log_to_write(audit, key_file)
    catalog = load_catalog(tools, database=database)
    sinks = () if log is None else (log,)
    runner = ToolRunner(catalog, sinks=sinks, on_exception=exception_hook())
    searches = options is not None and model.partition(":")[0] != "local"
    agent = Agent(client_of(model), runner, pick=options, search_tools=searches)
    listening = _listening(host, port)
    app = chat.chat_app(agent, store=store, authenticate=who)
    err.print(f"{who_answers(model)} Tools: {printable(', '.join(catalog.names))}.")
    address = f"http://{_named(host)}:{listening.getsockname()[1]}/#token={token}"
    err.print(f"{address}\nCtrl-C ends.", soft_wrap=True, highlight=False)
    if opens:
        webbrowser.open(address)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(app, listening, agent, log))
    return 0


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UnusableError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        raise UnusableError(
            f"--host {host} --port {port}: {why}; --port 0 takes a free one"
        ) from None


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _serve(app: Any, listening: socket.socket, agent: Agent, log: AuditLog | None) -> None:
    """Serve until Ctrl-C; then cancel what runs, keep it, and close all."""
    uvicorn = import_module("uvicorn")
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    async with AsyncExitStack() as stack:
        if log is not None:
            stack.push_async_callback(log.aclose)
        stack.push_async_callback(agent.client.aclose)
        stack.push_async_callback(app.state.chat.aclose)
        server = uvicorn.Server(config)
        server.capture_signals = (
            nullcontext  # it would raise them again, and break off what follows
        )
        with _ended_by_signals(server):
            await server.serve(sockets=[listening])


@contextmanager
def _ended_by_signals(server: Any) -> Iterator[None]:
    """Let Ctrl-C, and whoever ends the process, end the server; what comes after it goes on."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    with suppress(
        NotImplementedError
    ):  # on Windows Ctrl-C cancels, and what runs is found by its lease
        for number in signals:
            loop.add_signal_handler(number, server.handle_exit, number, None)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in signals:
                loop.remove_signal_handler(number)
