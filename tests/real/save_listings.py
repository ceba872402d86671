"""Save the tool listings of real MCP servers, as they send them, for the tests beside this file.

    python tests/real/save_listings.py [NAME …]

Each server is run from its registry, by `npx` or `uvx`, and asked over stdio (JSON-RPC 2.0, a
message a line) for all pages of `tools/list`. What is kept is each page's own `tools`, in order and
unchanged, with who said so. A server that sends other tools to a client with other capabilities sees
one that has them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HERE = Path(__file__).parent / "listings"
PROTOCOL = "2025-11-25"
CLIENT = {"name": "toolcrib-tests", "version": "1"}
CAPABILITIES: dict[str, Any] = {
    "roots": {},
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
}


class Server(NamedTuple):
    """How to run one. `{folder}` is an empty one: no listing may depend on what lies there."""

    package: str
    command: tuple[str, ...]


def _npx(name: str, version: str, *arguments: str) -> Server:
    package = f"@modelcontextprotocol/server-{name}"
    return Server(f"{package}@{version}", ("npx", "-y", f"{package}@{version}", *arguments))


def _uvx(name: str, version: str, *arguments: str) -> Server:
    package = f"{name}=={version}"
    return Server(package, ("uvx", "--quiet", "--from", package, name, *arguments))


SERVERS = {
    "everything": _npx("everything", "2026.8.31"),
    "filesystem": _npx("filesystem", "2026.8.31", "{folder}"),
    "memory": _npx("memory", "2026.8.31"),
    "sequential_thinking": _npx("sequential-thinking", "2026.8.31"),
    "git": _uvx("mcp-server-git", "2026.10.19"),
    "time": _uvx("mcp-server-time", "2026.10.19", "--local-timezone", "UTC"),
}


class Session:
    """One server's process, from `initialize` until its standard input is closed."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.terminate()
        self._server.communicate()

    def tell(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._server.stdin.flush()

    def ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """The result. What the server asks meanwhile is answered, what it tells is passed over."""
        self._sent += 1
        self.tell({"id": self._sent, "method": method, "params": parameters})
        assert self._server.stdout is not None
        for line in self._server.stdout:
            message = json.loads(line)
            if "method" in message and "id" in message:
                self.tell({"id": message["id"], "result": _answer(message["method"])})
            elif message.get("id") == self._sent:
                result: dict[str, Any] = message["result"]
                return result
        raise SystemExit(f"the server ended before it answered {method}")


def _answer(method: str) -> dict[str, Any]:
    return {"roots": []} if method == "roots/list" else {}


def listing(server: Server, folder: str) -> dict[str, Any]:
    """What the file of one server holds."""
    command = tuple(part.replace("{folder}", folder) for part in server.command)
    with Session(command) as session:
        greeting = session.ask(
            "initialize",
            {"protocolVersion": PROTOCOL, "capabilities": CAPABILITIES, "clientInfo": CLIENT},
        )
        session.tell({"method": "notifications/initialized"})
        tools: list[Any] = []
        cursor: dict[str, Any] = {}
        while True:
            page = session.ask("tools/list", cursor)
            tools.extend(page["tools"])
            if not page.get("nextCursor"):
                break
            cursor = {"cursor": page["nextCursor"]}
    return {
        "package": server.package,
        "serverInfo": greeting["serverInfo"],
        "protocolVersion": greeting["protocolVersion"],
        "tools": tools,
    }


def main(names: list[str]) -> None:
    HERE.mkdir(exist_ok=True)
    for name in names or SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            found = listing(SERVERS[name], folder)
            text = json.dumps(found, indent=2, ensure_ascii=False)
            if folder in text:
                raise SystemExit(f"{name}: its listing names the folder that it was run in")
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(found['tools'])} tools of {found['package']}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
