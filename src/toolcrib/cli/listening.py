"""Where a command listens, and how its server ends: a signal ends it, and what runs is cancelled
then."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from toolcrib.cli.options import UnusableError
from toolcrib.cli.render import err

if TYPE_CHECKING:
    from toolcrib.durable import DurableAgents

TOKEN = "TOOLCRIB_TOKEN"  # noqa: S105  the name of an environment variable
_SHUTDOWN_SECONDS = 2  # seconds that streams get to end


def listener_at(host: str, port: int, *, option: str, free_port: str) -> socket.socket:
    """Return a listening socket. Raises UnusableError, which names the `option`, and what
    to write for a free port (`free_port`)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnusableError(f"{option}: {reason}; use {free_port} for any free port") from None


def url_host(host: str) -> str:
    """Return a host in the form that a URL needs."""
    return f"[{host}]" if ":" in host else host


async def serve_app(app: Any, listener: socket.socket, *, lifespan: Literal["on", "off"]) -> None:
    """Serve an ASGI app until Ctrl-C."""
    uvicorn = import_module("uvicorn")
    config = uvicorn.Config(
        app,
        lifespan=lifespan,
        ws="none",
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # else uvicorn raises the signals once more
    with ended_by_signals(lambda number: server.handle_exit(number, None)):
        await server.serve(sockets=[listener])


@contextmanager
def ended_by_signals(end: Callable[[int], object]) -> Iterator[None]:
    """Call `end` at Ctrl-C or SIGTERM. The code that follows still runs."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    # on Windows Ctrl-C cancels, and open runs are found by their lease
    with suppress(NotImplementedError):
        for signal_number in signals:
            loop.add_signal_handler(signal_number, end, signal_number)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for signal_number in signals:
                loop.remove_signal_handler(signal_number)


async def stop_work(durable: DurableAgents, grace: float) -> None:
    """Let durable steps that are under way end within the grace period. Call `leave` afterwards."""
    if not await durable.stop(grace):
        err.print("running work was stopped: the outcome of its calls is unknown")


def leave() -> NoReturn:
    """End this process at once. Its durable runs stop before their next step; closing the event
    loop would cancel them."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
