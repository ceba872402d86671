"""One request and its answer, as every client makes them.

Rule: the answer is closed in the end, whatever happens, and no error that comes of it holds a key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from toolcrib.clients.refusal import refusal
from toolcrib.clients.secret import hidden, secrets_of
from toolcrib.clients.transport import Outgoing, Response, Transport
from toolcrib.errors import ClientError

_PART = 206
"""A part of an answer, which nobody asked for."""


@asynccontextmanager
async def exchanged(
    transport: Transport, outgoing: Outgoing, base: str, headers: Mapping[str, str]
) -> AsyncGenerator[Response, None]:
    """The answer, if the server did not refuse; ClientError if it did.

    In errors, what a provider repeats of the keys in `base`, in `headers`, or of the transport's, is
    hidden.
    """
    try:
        response = await transport.send(outgoing)
        whole = False
        try:
            if not 200 <= response.status < 300 or response.status == _PART:
                raise await refusal(response)
            yield response
            whole = True
        finally:
            await response.aclose(whole=whole)
    except ClientError as error:
        secrets = [*secrets_of(base, headers), *getattr(transport, "secrets", ())]
        error.args = tuple(
            hidden(part, secrets) if isinstance(part, str) else part for part in error.args
        )
        error.__context__ = None
        raise
