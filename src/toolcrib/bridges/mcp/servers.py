"""Which MCP server is meant: a command, an address, or a file with `mcpServers` of other clients.

Rule: what is run and what is asked is written in code, on the command line or in a file on this
machine. No request names it. A file is read, never fetched.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from toolcrib.clients.server import names_server, secrets_of
from toolcrib.errors import SourceError, no_such
from toolcrib.urls import passwords_in, without_password
from toolcrib.values.json import Redacted, with_unique_keys
from toolcrib.values.typed import HandWritten

FORMS = "a command, the URL of a server, or a .json file with mcpServers"
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")
_LINE_ENDS = re.compile(r"[\r\n]|\\r|\\n")  # also in the form that a value of one line has
_SEPARATORS = r"\s,;\"'{}\[\]"
# words in a value that are long enough to be a secret, by the characters that end them
_WORDS = [
    re.compile(f"[^{_SEPARATORS}{ends}]{{12,}}") for ends in ("", r"=&:@()|\\", r"=&:@()|\\/")
]
_TOKEN = re.compile(r"\b(?:bearer|basic|token)\s+([^\s,;\"'{}\[\]]+)", re.IGNORECASE)
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")


class StdioServer(Redacted, HandWritten, frozen=True):
    """A program that speaks MCP over its standard input and output, started for this catalog.

    It gets what a shell needs from the environment (`PATH`, `HOME`, …), and `env`, and nothing
    else. A path in `command`, such as `./server`, is relative to `cwd`.
    """

    redacted: ClassVar[tuple[str, ...]] = ("env",)

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | Path | None = None

    @property
    def name(self) -> str:
        """The command line, by which messages name the server."""
        return shlex.join([self.command, *self.args])

    @property
    def secrets(self) -> list[str]:
        """The values of its environment, and their parts that a server may repeat alone. Errors and
        logs hide them."""
        return [secret for value in self.env.values() for secret in _secrets_in(value)]


class HttpServer(Redacted, HandWritten, frozen=True):
    """A server that speaks MCP's streamable HTTP at `url`. `headers` are sent with every request.

    `auth` is an `httpx2.Auth`, such as the SDK's `OAuthClientProvider`. Raises SourceError for a
    `url` that names no server.
    """

    redacted: ClassVar[tuple[str, ...]] = ("headers", "auth")

    url: str
    headers: Mapping[str, str] = {}
    auth: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not names_server(self.url):
            raise SourceError(
                f"{without_password(self.url)[:80]!r} is not the URL of a server: write it as "
                "https://example.com/mcp"
            )

    @property
    def name(self) -> str:
        """The URL by which messages name the server, without user, password and query, which may be
        secret."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def secrets(self) -> list[str]:
        """The secrets in its URL and headers. Errors and logs hide them, and also what `auth` adds
        to a request."""
        return secrets_of(self.url, self.headers)


Server: TypeAlias = StdioServer | HttpServer


def named_servers(source: str | Path | Server) -> dict[str, Server]:
    """Return the servers that are meant, by the prefix of their tools' names. Those of a file have
    their names in it as prefix, others none. Raises SourceError."""
    if isinstance(source, StdioServer | HttpServer):
        return {"": source}
    if isinstance(source, Path):
        return read_servers(source)
    text = source.strip()
    if text.lower().startswith(("http://", "https://")) and not re.search(r"\s", text):
        return {"": HttpServer(text)}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SourceError(f"{text}: it is not a command line ({error}): give {FORMS}") from None
    if not words:
        raise SourceError(f"no MCP server is named: give {FORMS}")
    if len(words) == 1 and words[0].lower().endswith(".json"):
        return read_servers(Path(words[0]))
    return {"": StdioServer(words[0], tuple(words[1:]))}


def read_servers(path: str | Path) -> dict[str, Server]:
    """Return the servers of a file `{"mcpServers": {NAME: {…}}}`, by name.

    An entry has `command`, and optionally `args`, `env` and `cwd`; or `url`, and optionally
    `headers`. In them `${NAME}` is an environment variable, and `${NAME:-text}` is `text` if it is
    not set. An entry with `disabled: true` is left out, and further members are ignored. Raises
    SourceError for a file that cannot be read or has no servers, for an entry that names none, and
    for ambiguous content: a repeated name, a command together with a url, `disabled` that is
    neither true nor false.
    """
    path = Path(path)
    document = _document(path)
    entries = (
        document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    )
    if not isinstance(entries, dict) or not entries:
        raise SourceError(f"{path}: it has no mcpServers: {{NAME: {{command, args}}}}")
    servers: dict[str, Server] = {}
    for name, entry in entries.items():
        label = f"{path}: the server '{name}'"
        if not isinstance(entry, dict):
            raise SourceError(f"{label} is not an object with a command or a url")
        disabled = entry.get("disabled", False)
        if not isinstance(disabled, bool):
            raise SourceError(f"{label}: disabled must be true or false, without quotation marks")
        if not disabled:
            servers[name] = _server(entry, label)
    if not servers:
        raise SourceError(f"{path}: all of its servers are disabled")
    return servers


def _document(path: Path) -> Any:
    """Return the JSON of a file. Raises SourceError for one that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text, object_pairs_hook=with_unique_keys)
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise SourceError(f"{path}: it is not JSON") from None
    except ValueError as error:
        raise SourceError(f"{path}: {error}") from None


def prefix_of(name: str) -> str:
    """Return what the names of a server's tools begin with."""
    return f"{_NOT_IN_NAMES.sub('_', name)}_" if name else ""


def legal_name(name: str) -> str:
    """Return the name of a tool in characters that every catalog takes."""
    return _NOT_IN_NAMES.sub("_", name)[:128]


def _secrets_in(value: str) -> Iterator[str]:
    """Yield the secrets in a variable.

    These are the whole value, each line (such as of a PEM), each long word (such as one of two
    keys), tokens by their scheme, and passwords by their names and in URLs. The same applies to
    strings and numbers in JSON.
    """
    yield from (value, value.strip())
    for text in _texts_in(value):
        yield from map(str.strip, _LINE_ENDS.split(text))
        yield from _TOKEN.findall(text)
        yield from passwords_in(text)
        for pattern in _WORDS:
            yield from pattern.findall(text)


def _texts_in(value: str) -> Iterator[str]:
    """Yield a value, or the strings and numbers in its JSON, also those under a repeated name."""
    pending: list[Any] = [value]
    if value.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            pending = [
                json.loads(value, object_pairs_hook=_members, parse_int=str, parse_float=str)
            ]
    while pending:
        element = pending.pop()
        if isinstance(element, list):
            pending += element
        elif isinstance(element, str):
            yield element


def _members(pairs: list[tuple[str, Any]]) -> list[Any]:
    return [value for _, value in pairs]


def _server(entry: Mapping[str, Any], label: str) -> Server:
    if "command" in entry and "url" in entry:
        raise SourceError(f"{label} has a command and a url: leave one of them out")
    kind = entry.get("type", "stdio" if "command" in entry else "http")
    if kind == "sse":
        raise SourceError(f"{label} uses HTTP with SSE, which MCP has replaced: use its http URL")
    if kind not in _TYPES:
        raise SourceError(f"{label}: {no_such('type', str(kind), _TYPES)}")
    texts = _Texts(entry, label)
    if kind == "stdio":
        command, cwd = texts.one("command"), entry.get("cwd")
        folder = None if cwd is None else texts.one("cwd")
        return StdioServer(command, texts.listed("args"), texts.by_name("env"), folder)
    url, headers = texts.one("url"), texts.by_name("headers")
    try:
        return HttpServer(url, headers)
    except SourceError as error:
        raise SourceError(f"{label}: {error}") from None


class _Texts:
    """Reads the members of one entry and replaces the variables in them. Raises SourceError."""

    def __init__(self, entry: Mapping[str, Any], label: str) -> None:
        self._entry = entry
        self._label = label

    def one(self, key: str) -> str:
        text = self._text(self._entry.get(key), key)
        if not text.strip():
            raise SourceError(f"{self._label}: {key} is empty")
        return text

    def listed(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key) or []
        if not isinstance(value, list):
            raise SourceError(f"{self._label}: {key} must be a list of strings")
        return tuple(self._text(element, key) for element in value)

    def by_name(self, key: str) -> dict[str, str]:
        value = self._entry.get(key) or {}
        if not isinstance(value, dict):
            raise SourceError(f"{self._label}: {key} must be an object of strings")
        return {name: self._text(element, f"{key}.{name}") for name, element in value.items()}

    def _text(self, value: object, key: str) -> str:
        if not isinstance(value, str):
            raise SourceError(f"{self._label}: {key} must be a string, not {type(value).__name__}")
        return _VARIABLE.sub(lambda match: self._variable(match[1], match[2]), value)

    def _variable(self, name: str, default: str | None) -> str:
        value = os.environ.get(name, default)
        if value is None:
            raise SourceError(f"{self._label}: the variable {name} is not set")
        return value
