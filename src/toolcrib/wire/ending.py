"""How a reply ended, and the `Reply` that comes of it, on every wire.

The rule: the first sign that a reply was cut stays, be it a reason or something else, and of a reply
that was cut no call may run. Of reasons that are natural ends, the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolcrib.values.call import ToolCall
from toolcrib.values.message import FinishReason, Message, ProviderState, Reply, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.calls import CallAssembler
from toolcrib.wire.json_text import mended

NATURAL: frozenset[FinishReason] = frozenset(("stop", "tool_calls"))
"""Any other end is a cut, a refusal too: it stops a reply in its middle (https://platform.claude.com/
docs/en/test-and-evaluate/strengthen-guardrails/handle-streaming-refusals), and what was there by then
is not to be relied on."""


class Ending:
    """The end of one reply, as it becomes known.

    `reason` is the provider's own word, empty if there was none; `cut` is how the reply was cut, None
    as long as nothing says that it was.
    """

    __slots__ = ("_offer", "_wire", "cut", "reason")

    def __init__(self, wire: Wire, offer: Offer) -> None:
        self._wire = wire
        self._offer = offer
        self.reason = ""
        self.cut: FinishReason | None = None

    def said(self, reason: object, meaning: FinishReason | None = None) -> None:
        """Take a reason, which means what the wire says, or that `meaning`; that of a cut stays."""
        if self.cut is None or not self.reason:
            self.reason = str(reason)
            self.sign(meaning or self._wire.meaning(self.reason))

    def sign(self, meaning: FinishReason) -> None:
        """Take what says, in whatever way, that the reply ended like that."""
        if self.cut is None and meaning not in NATURAL:
            self.cut = meaning

    def stopped(self, *, ended: bool, torn: bool) -> None:
        """No more follows. It is all there if the provider said so (`ended`), or gave a reason."""
        if torn or not (ended or self.reason):
            self.sign("incomplete")

    def calls(self, assembler: CallAssembler) -> tuple[ToolCall, ...]:
        """The calls, whose arguments may be the only sign that the reply was cut."""
        calls, cut = assembler.finish(cut=self.cut is not None)
        if cut:
            self.sign("length")
        return calls

    def reply(
        self,
        text: Iterable[str],
        calls: tuple[ToolCall, ...],
        usage: Usage,
        *,
        raw: Any,
        state: Any = None,
        refused: bool = False,
    ) -> Reply:
        """The reply. `text` is what the model said, in pieces; `state` what has to go back as it came.

        `refused` is whether the text is a refusal that came to its own end.
        """
        kept = ProviderState(self._wire.keeper, state) if state else None
        natural: FinishReason = "tool_calls" if calls else "refusal" if refused else "stop"
        return Reply(
            Message("assistant", mended("".join(text)), calls, provider_state=kept),
            self.cut or natural,
            usage,
            self._offer,
            self.reason or None,
            raw,
        )
