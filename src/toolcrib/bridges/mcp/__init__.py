"""Model Context Protocol: the tools of MCP servers as a catalog (`mcp_catalog`).

Needs the extra `mcp`.
"""

from __future__ import annotations

from toolcrib.errors import MissingExtraError

try:
    import mcp as _mcp  # noqa: F401  the one door of the extra
except ImportError:
    raise MissingExtraError("mcp", "toolcrib.bridges.mcp") from None

from toolcrib.bridges.mcp.consume import LeftOut, McpCatalog, mcp_catalog
from toolcrib.bridges.mcp.servers import HttpServer, StdioServer, read_servers

__all__ = [
    "HttpServer",
    "LeftOut",
    "McpCatalog",
    "StdioServer",
    "mcp_catalog",
    "read_servers",
]
