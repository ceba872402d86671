"""Recording: what goes out and what comes back, kept as it passes.

The reader of an answer gets its bytes as if nobody were listening.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from toolcrib.clients import Outgoing, Response, Transport
from toolcrib.errors import ConnectionFailed, ToolcribError
from toolcrib.testing.tape.exchange import Answer, Exchange
from toolcrib.testing.tape.matching import asked
from toolcrib.testing.tape.secrets import masked, masked_text, secrets_of

_HEADERS = frozenset(
    ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "x-amzn-errortype")
)
"""The headers of an answer that a client acts on; no other is kept."""

_BROKEN = "the connection broke"


class Recorder:
    """Sends requests on and keeps what comes back, in the order in which they were sent."""

    def __init__(self, transport: Transport) -> None:
        self._takes: list[_Take] = []
        self._transport = transport

    async def send(self, request: Outgoing) -> Response:
        take = _Take(request)
        self._takes.append(take)
        try:
            response = await self._transport.send(request)
        except ConnectionFailed as error:
            take.error = str(error) or _BROKEN
            raise
        except BaseException:
            self._takes.remove(take)  # it was given up: there is nothing to replay
            raise
        take.response = response
        return take

    def exchanges(self) -> list[Exchange]:
        secrets = {secret for take in self._takes for secret in secrets_of(take.request)}
        return [take.exchange(secrets) for take in self._takes if take.response or take.error]


class _Take:
    """A request, and its answer as far as it has been read."""

    def __init__(self, request: Outgoing) -> None:
        self.request = request
        self.response: Response | None = None
        self.error = ""
        self._chunks: list[bytes] = []
        self._whole = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._answer.chunks():
                self._chunks.append(data)
                yield data
        except ConnectionFailed as error:
            self.error = str(error) or _BROKEN
            raise
        self._whole = True

    async def aclose(self, *, whole: bool) -> None:
        self._whole = self._whole or whole
        await self._answer.aclose(whole=whole)

    def exchange(self, secrets: set[str]) -> Exchange:
        sent, error = asked(self.request, secrets), masked_text(self.error, secrets)
        if self.response is None:
            return Exchange(request=sent, error=error)
        kept = {
            name: masked_text(value, secrets)
            for name, value in self.headers.items()
            if name in _HEADERS
        }
        answer = Answer.of(
            self.status,
            kept,
            masked([chunk for chunk in self._chunks if chunk], secrets),
            error=error,
            left=not (self._whole or error),
        )
        return Exchange(request=sent, response=answer)

    @property
    def _answer(self) -> Response:
        if self.response is None:
            raise ToolcribError("there is no answer yet")
        return self.response
