"""A server of our tools that is reached by streamable HTTP, and a client of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from toolcrib.bridges.mcp import McpServer

Era = Literal["legacy", "2026-07-28"]


@asynccontextmanager
async def reached(server: McpServer, **options: Any) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            server.http_app(**options),
            log_level="critical",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        running = uvicorn.Server(config)
        serving = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            await serving


@asynccontextmanager
async def client_of(
    url: str, token: str = "", era: Era = "legacy", **options: Any
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=10, verify=False) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client
