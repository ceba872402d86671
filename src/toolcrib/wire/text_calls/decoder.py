"""The decoder of a wire, for models that write calls in their text.

The reply is read from its whole text, so that it cannot depend on the pieces; those are read besides,
for what can be shown of them at once.
"""

from __future__ import annotations

import msgspec

from toolcrib.values.call import ToolCall
from toolcrib.values.message import ArgumentsPart, Reply, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Decoder
from toolcrib.wire.text_calls.scan import Scanner
from toolcrib.wire.text_calls.syntax import TextSyntax


class TextCallDecoder:
    """A `Decoder` around that of a wire.

    Calls of the wire's own kind win: then the text stays text, and so does that of a refusal.
    """

    def __init__(self, inner: Decoder, syntax: TextSyntax, *, offer: Offer, ids: str) -> None:
        self._inner = inner
        self._syntax = syntax
        self._offer = offer
        self._ids = ids
        self._shown = Scanner(syntax, offer)

    @property
    def done(self) -> bool:
        return self._inner.done

    def feed(self, data: bytes) -> list[TextPart | ArgumentsPart]:
        """Text at once, but for what may be the beginning of a call, and for calls."""
        parts: list[TextPart | ArgumentsPart] = []
        for part in self._inner.feed(data):
            if not isinstance(part, TextPart):
                parts.append(part)
            elif text := self._shown.feed(part.text):
                parts.append(TextPart(text))
        return parts

    def finish(self) -> Reply:
        """The reply. If it was cut, or ends inside a call, none of its calls may run."""
        reply = self._inner.finish()
        if reply.tool_calls or reply.finish == "refusal":
            return reply
        scanner = Scanner(self._syntax, self._offer)
        text = scanner.read(reply.text)
        if not scanner.calls:
            return reply
        whole = reply.finish == "stop" and not scanner.cut
        calls = tuple(
            ToolCall(
                f"{self._ids}{number}",
                call.provider_id,
                self._offer.own_name(call.name),
                call.arguments() if whole else "".join(call.pieces),
                whole,
                ("written_in_text",),
                payload=reply.payload and msgspec.structs.replace(reply.payload, position=number),
            )
            for number, call in enumerate(scanner.calls)
        )
        message = msgspec.structs.replace(reply.message, content=text, tool_calls=calls)
        finish = "tool_calls" if whole else "length" if reply.finish == "stop" else reply.finish
        return msgspec.structs.replace(reply, message=message, finish=finish)
