"""The decoder of a wire, for models that write calls in their text.

The reply is read from its whole text, so that it cannot depend on the pieces; those are read besides,
for what can be shown of them at once.

A call that stood in the text is noted `written_in_text`: it asks, unless its tool only reads. Where the
author trusts that model's text calls, one that ends its reply at a mark of the syntax is noted
`text_call_trusted` as well, and does not. Where the reply has calls of the wire's own kind, those are
all it has, and what says them again in the text is dropped.
"""

from __future__ import annotations

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.json import canonical_text
from toolcrib.values.message import Piece, Reply, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Decoder
from toolcrib.wire.calls import unlisted
from toolcrib.wire.json_text import Settled
from toolcrib.wire.text_calls.reading import Written
from toolcrib.wire.text_calls.scan import Scanner
from toolcrib.wire.text_calls.syntaxes import TextSyntax


class TextCallDecoder:
    """A `Decoder` around that of a wire. The text of a refusal stays text."""

    def __init__(
        self,
        inner: Decoder,
        syntax: TextSyntax,
        *,
        offer: Offer,
        ids: str,
        trusted: bool = False,
    ) -> None:
        self._inner = inner
        self._syntax = syntax
        self._trusted = trusted
        self._offer = offer
        self._ids = ids
        self._shown = Scanner(syntax, offer)

    @property
    def done(self) -> bool:
        return self._inner.done

    def feed(self, data: bytes) -> list[Piece]:
        """Return text at once, but for what may be the beginning of a call, and for calls."""
        parts: list[Piece] = []
        for part in self._inner.feed(data):
            if not isinstance(part, TextPart):
                parts.append(part)
            elif text := self._shown.feed(part.text):
                parts.append(TextPart(text))
        return parts

    def finish(self, *, clean: bool = True) -> Reply:
        """Return the reply. If it was cut, or ends inside a call, none of its calls may run."""
        reply = self._inner.finish(clean=clean)
        if reply.finish == "refusal":
            return reply
        scanner = Scanner(self._syntax, self._offer)
        text = scanner.read(reply.text)
        if not scanner.calls:
            return reply
        if reply.tool_calls:
            return _without_copies(reply, text, self._read(scanner, reply, whole=True))
        whole = reply.finish == "stop" and not scanner.cut
        calls = self._read(scanner, reply, whole=whole)
        message = msgspec.structs.replace(reply.message, content=text, tool_calls=calls)
        finish = "tool_calls" if whole else "length" if reply.finish == "stop" else reply.finish
        return msgspec.structs.replace(reply, message=message, finish=finish)

    def _read(self, scanner: Scanner, reply: Reply, *, whole: bool) -> tuple[ToolCall, ...]:
        return tuple(
            self._call(call, number, reply, whole=whole)
            for number, call in enumerate(scanner.calls)
        )

    def _call(self, call: Written, number: int, reply: Reply, *, whole: bool) -> ToolCall:
        doubtful = reply.finish == "doubtful" and reply.provider_finish
        given = call.arguments() if whole else Settled("".join(call.pieces))
        return ToolCall(
            id=f"{self._ids}{number}",
            provider_id=call.provider_id,
            name=self._offer.own_name(call.name),
            arguments=given.text,
            complete=whole,
            notes=(*(_TRUSTED if self._trusted and call.native else _WRITTEN), *given.notes),
            fault=unlisted(doubtful) if doubtful else None,
            payload=reply.payload and msgspec.structs.replace(reply.payload, position=number),
        )


_WRITTEN = ("written_in_text",)
_TRUSTED = ("written_in_text", "text_call_trusted")


def _without_copies(reply: Reply, text: str, written: tuple[ToolCall, ...]) -> Reply:
    """Return the reply without what its text has of its calls; as it is if the text has any other."""
    own = [(call.name, _value(call)) for call in reply.tool_calls]
    if not all((call.name, _value(call)) in own for call in written):
        return reply
    message = msgspec.structs.replace(reply.message, content=text)
    return msgspec.structs.replace(reply, message=message)


def _value(call: ToolCall) -> object:
    """Return what the arguments of a call say; their text where that is no JSON."""
    try:
        return canonical_text(call.arguments)
    except ValueError:
        return call.arguments
