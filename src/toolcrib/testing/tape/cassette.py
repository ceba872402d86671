"""The transport that records exchanges and replays them.

Nothing is written but by a block that ended well, and then all at once: neither a failed test nor a
killed one changes a file. What was not recorded is an error, never a request that goes out after all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

from toolcrib.clients import AiohttpTransport, Outgoing, Response, Transport
from toolcrib.errors import ToolcribError
from toolcrib.testing.tape.exchange import check_writable, read, write
from toolcrib.testing.tape.matching import Compare
from toolcrib.testing.tape.player import Player
from toolcrib.testing.tape.recorder import Recorder

Record: TypeAlias = Literal["once", "none", "all"]

_KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "MISTRAL_API_KEY",
    "CO_API_KEY",
    "AWS_BEARER_TOKEN_BEDROCK",
)
_PLACEHOLDER = "replay"


def cassette(
    path: str | os.PathLike[str],
    *,
    record: Record | None = None,
    transport: Transport | None = None,
    compare: Compare | None = None,
    secrets: Iterable[str] = (),
) -> Cassette:
    """`with cassette("tapes/weather.json") as tape: OpenAIClient("gpt-5", transport=tape)`.

    `record` is "once" (where there is no file; else replay it), "none" (only replay), or "all" (all
    anew); None is "none" where the environment has `CI`, else "once". `transport` is what records
    through, aiohttp if left out. `compare` gets a copy of a request's JSON body and gives what of it
    has to be the same. `secrets` are texts that nobody may read in the file, besides those that are
    known to be secret.

    While it replays, no key is needed: those of the known providers that are not set are
    `"replay"` in the environment until the block ends. Raises SourceError for a file that is no
    cassette, ToolcribError for a request that was not recorded.
    """
    mode = record or ("none" if os.environ.get("CI") else "once")
    if mode not in get_args(Record):
        raise ToolcribError(f"record={mode!r} is unknown; there are: once, none, all")
    return Cassette(Path(path), mode, transport=transport, compare=compare, secrets=secrets)


class Cassette:
    """A `Transport`, made by `cassette`, that works within its `with` block."""

    def __init__(
        self,
        path: Path,
        record: Record,
        *,
        transport: Transport | None = None,
        compare: Compare | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self.path = path
        self._record = record
        self._transport = transport or AiohttpTransport()
        self._compare = compare
        self._secrets = _texts(secrets)
        self._state: Recorder | Player | None = None
        self._placed: list[str] = []

    @property
    def replaying(self) -> bool:
        """Whether answers come from the file. Raises ToolcribError outside of the block."""
        return isinstance(self._within(), Player)

    @property
    def remaining(self) -> int:
        """How many recorded exchanges nobody has asked for yet; 0 while it records."""
        state = self._within()
        return state.remaining if isinstance(state, Player) else 0

    def __enter__(self) -> Self:
        if self._state is not None:
            raise ToolcribError(
                f"the cassette {self.path} is in use already, in a block around this one"
            )
        there = self.path.exists()
        if self._record == "all" or (self._record == "once" and not there):
            check_writable(self.path)  # rather than when all has been asked
            self._state = Recorder(self._transport, self._secrets)
            return self
        self._state = Player(self.path, read(self.path) if there else [], self._compare)
        self._placed = [name for name in _KEYS if not os.environ.get(name, "").strip()]
        os.environ.update(dict.fromkeys(self._placed, _PLACEHOLDER))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        state = self._state
        self.discard()
        if kind is not None:
            return
        if isinstance(state, Recorder) and (exchanges := state.exchanges()):
            write(self.path, exchanges)
        elif isinstance(state, Player) and state.missed is not None:
            raise state.missed  # also where somebody between here and the client caught it

    def discard(self) -> None:
        """End it as a block does that failed: nothing is written."""
        self._state = None
        for name in self._placed:
            if os.environ.get(name) == _PLACEHOLDER:
                del os.environ[name]
        self._placed = []

    @property
    def secrets(self) -> Iterable[str]:
        """Those of the transport below."""
        return getattr(self._transport, "secrets", ())

    async def send(self, request: Outgoing) -> Response:
        """The recorded answer, or the real one. Raises ConnectionFailed, recorded or real."""
        return await self._within().send(request)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _within(self) -> Recorder | Player:
        if self._state is None:
            raise ToolcribError(
                f"the cassette {self.path} is not in use: with cassette(…) as tape: …"
            )
        return self._state


def _texts(secrets: Iterable[str]) -> frozenset[str]:
    texts = frozenset([secrets] if isinstance(secrets, str) else secrets)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ToolcribError("secrets= takes texts, none of them blank")
    return texts
