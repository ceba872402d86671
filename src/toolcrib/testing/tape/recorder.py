"""Recording: what goes out and what comes back, kept as it passes.

The reader of an answer gets its bytes as if nobody were listening.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping

from toolcrib.clients import Outgoing, Response, Transport
from toolcrib.clients.refusal import retry_after
from toolcrib.clients.transport import is_bounded
from toolcrib.errors import ConnectionFailed, ToolcribError
from toolcrib.testing.tape.exchange import Answer, Exchange
from toolcrib.testing.tape.masking import masked, masked_text
from toolcrib.testing.tape.matching import asked
from toolcrib.testing.tape.secrets import secrets_of
from toolcrib.testing.tape.spelling import unspelled

_HEADERS = frozenset(
    ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "x-amzn-errortype")
)
"""The headers of an answer that a client acts on; no other is kept."""

_BROKEN = "the connection broke"


class Recorder:
    """Sends requests on and keeps what comes back, in the order in which they were sent."""

    def __init__(self, transport: Transport, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        self._takes: list[_Take] = []
        self._transport = transport

    async def send(self, request: Outgoing) -> Response:
        take = _Take(request)
        self._takes.append(take)
        try:
            response = await self._transport.send(request)
        except ConnectionFailed as error:
            take.failed(error)
            raise
        except BaseException:
            self._takes.remove(take)  # it was given up: there is nothing to replay
            raise
        take.answered(response)
        return take

    def exchanges(self) -> list[Exchange]:
        """What is known by now. A secret of one request is one in all of them."""
        known = (take.secrets | secrets_of(take.request) for take in self._takes)
        of_transport: Iterable[str] = getattr(self._transport, "secrets", ())
        secrets = set(self._secrets).union(of_transport, *known)
        return [take.exchange(secrets) for take in self._takes if take.over]


class _Take:
    """A request, and its answer as far as it has been read."""

    def __init__(self, request: Outgoing) -> None:
        self.request = request
        self.secrets = secrets_of(request)  # now: the environment may be another one in the end
        self._response: Response | None = None
        self._kept: dict[str, str] = {}
        self._error = ""
        self._retryable = True
        self._chunks: list[bytes] = []
        self._whole = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    @property
    def delimited(self) -> bool:
        return is_bounded(self._answer)

    @property
    def over(self) -> bool:
        """Whether there is something to replay."""
        return self._response is not None or bool(self._error)

    def answered(self, response: Response) -> None:
        self._response = response
        self._kept = _kept(response.headers)

    def failed(self, error: ConnectionFailed) -> None:
        self._error = str(error) or _BROKEN
        self._retryable = error.retryable

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._answer.chunks():
                self._chunks.append(data)
                yield data
        except ConnectionFailed as error:
            self.failed(error)
            raise
        self._whole = True

    async def aclose(self, *, whole: bool) -> None:
        self._whole = self._whole or whole
        await self._answer.aclose(whole=whole)

    def exchange(self, secrets: set[str]) -> Exchange:
        sent, error = asked(self.request, secrets), masked_text(self._error, secrets)
        if self._response is None:
            return Exchange(request=sent, error=error, retryable=self._retryable)
        said = [chunk for chunk in self._chunks if chunk]
        answer = Answer.of(
            self.status,
            {name: masked_text(value, secrets) for name, value in self._kept.items()},
            masked(unspelled(said, secrets), secrets),
            error=error,
            retryable=self._retryable,
            left=not (self._whole or error),
            delimited=self.delimited,
        )
        return Exchange(request=sent, response=answer)

    @property
    def _answer(self) -> Response:
        if self._response is None:
            raise ToolcribError("there is no answer yet")
        return self._response


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that a client acts on. A date to wait for becomes seconds: it would soon be past."""
    kept = {name.lower(): value for name, value in headers.items() if name.lower() in _HEADERS}
    seconds = retry_after({"retry-after": kept.get("retry-after", "")}, time.time())
    if seconds is not None and ":" in kept["retry-after"]:
        kept["retry-after"] = str(math.ceil(seconds))
    return kept
