"""Replaying: each recorded answer once, and an error that helps for whatever was not recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from toolcrib.clients import Outgoing, Response
from toolcrib.errors import ConnectionFailed, ToolcribError
from toolcrib.testing.tape.exchange import Answer, Asked, Exchange
from toolcrib.testing.tape.matching import Compare, asked, differences, key_of, path_of, shortened
from toolcrib.testing.tape.secrets import secrets_of


class Player:
    """Answers from a file. `missed` is the first request that had no answer."""

    def __init__(self, path: Path, exchanges: list[Exchange], compare: Compare | None) -> None:
        self.missed: ToolcribError | None = None
        self._path = path
        self._exchanges = exchanges
        self._compare = compare
        self._keys = [key_of(each.request, compare) for each in exchanges]
        self._unplayed = list(range(len(exchanges)))

    @property
    def remaining(self) -> int:
        return len(self._unplayed)

    async def send(self, request: Outgoing) -> Response:
        """The first unplayed answer to it, of its own server before others. Raises ConnectionFailed."""
        now = asked(request, secrets_of(request))
        key = key_of(now, self._compare)
        same = [at for at in self._unplayed if self._keys[at] == key]
        if not same:
            raise self.miss(self._told(now, key))
        found = next((at for at in same if self._exchanges[at].request.url == now.url), same[0])
        self._unplayed.remove(found)
        exchange = self._exchanges[found]
        if exchange.response is None:
            raise _broken(exchange.error, retryable=exchange.retryable)
        return _Played(exchange.response, self)

    def miss(self, told: str) -> ToolcribError:
        error = ToolcribError(
            f'{self._path}: {told}. To record it: cassette(…, record="all"), '
            'pytest --toolcrib-record=all, or delete the file where record is "once"'
        )
        self.missed = self.missed or error
        return error

    def _told(self, now: Asked, key: tuple[str, str, str]) -> str:
        request = f"{now.method} {path_of(now)}"
        if not self._exchanges:
            there = "holds nothing" if self._path.exists() else "does not exist"
            return f"{request} cannot be replayed: the file {there}"
        if count := self._keys.count(key):
            return f"{request} was recorded {count}×, and is asked for once more"
        nearest = min(
            self._unplayed or range(len(self._exchanges)),
            key=lambda at: len(differences(self._exchanges[at].request, now, self._compare)),
        )
        unlike = differences(self._exchanges[nearest].request, now, self._compare)
        state = "" if self._unplayed else ", already replayed"
        near = f"Nearest is exchanges[{nearest}]{state}"
        return f"{request} was not recorded. {near}: {shortened(unlike)}"


def _broken(text: str, *, retryable: bool) -> ConnectionFailed:
    error = ConnectionFailed(text)
    error.retryable = retryable
    return error


class _Played:
    """A recorded answer."""

    def __init__(self, answer: Answer, player: Player) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.headers.items()}
        self.delimited = answer.delimited
        self._answer = answer
        self._player = player

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._answer.pieces():
            yield piece
        if self._answer.error:
            raise _broken(self._answer.error, retryable=self._answer.retryable)
        if self._answer.left:
            raise self._player.miss(
                "an answer was not read to its end when it was recorded, and now is"
            )

    async def aclose(self, *, whole: bool) -> None:
        """There is nothing to free."""
        del whole
