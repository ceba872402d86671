"""Model Context Protocol: the tools of MCP servers as a catalog (`mcp_catalog`), and a runner's
tools for any MCP client (`mcp_server`). Needs the extra `mcp`."""

from __future__ import annotations

from toolcrib.errors import MissingExtraError

try:
    import mcp as _mcp  # noqa: F401  fails without the extra
except ImportError:
    raise MissingExtraError("mcp", "toolcrib.bridges.mcp") from None

from toolcrib.bridges.mcp.consume import LeftOut, McpCatalog, mcp_catalog
from toolcrib.bridges.mcp.doors import bearer, caller_of
from toolcrib.bridges.mcp.elicitation import McpClient, calling_client
from toolcrib.bridges.mcp.serve import McpServer, mcp_server
from toolcrib.bridges.mcp.servers import HttpServer, StdioServer, read_servers

__all__ = [
    "HttpServer",
    "LeftOut",
    "McpCatalog",
    "McpClient",
    "McpServer",
    "StdioServer",
    "bearer",
    "caller_of",
    "calling_client",
    "mcp_catalog",
    "mcp_server",
    "read_servers",
]
