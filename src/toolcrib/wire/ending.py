"""How a reply ended, and the `Reply` that comes of it, on every wire.

Doubt ends a call. What a call needs so that it may run:

* The reply ended: the provider said so by the wire's own mark (`[DONE]`, `message_stop` …), or it gave
  a natural reason and then the transport came to a clean end. A reason that pieces of calls follow is
  void: such a reply needs the mark.
* Its reason is one that the wire lists as natural. The first sign that a reply was cut stays, be it a
  reason or something else; of natural reasons the last one counts; a reason that nobody has listed ends
  the calls, and the text stays.
* Nothing is wrong with the call itself: see `wire/calls.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.values.call import CallFault, ToolCall
from toolcrib.values.message import FinishReason, Message, ProviderState, Reply, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.calls import CallAssembler
from toolcrib.wire.failure import safe_text
from toolcrib.wire.json_text import mended

NATURAL: frozenset[FinishReason] = frozenset(("stop", "tool_calls"))
"""Any other end is a cut, a refusal too: it stops a reply in its middle (https://platform.claude.com/
docs/en/test-and-evaluate/strengthen-guardrails/handle-streaming-refusals), and what was there by then
is not to be relied on."""


class Ending:
    """The end of one reply, as it becomes known.

    `reason` is the provider's own word, empty if there was none; `cut` is how the reply was cut, None
    as long as nothing says that it was; `notes` are those of all calls of the reply.
    """

    __slots__ = ("_fault", "_natural", "_offer", "_voided", "_wire", "cut", "notes", "reason")

    def __init__(self, wire: Wire, offer: Offer) -> None:
        self._wire = wire
        self._offer = offer
        self._natural = False
        self._voided = False
        self._fault: CallFault | None = None
        self.reason = ""
        self.cut: FinishReason | None = None
        self.notes: list[str] = []

    def said(self, reason: object, meaning: FinishReason | None = None) -> None:
        """Take a reason, which means what the wire says, or that `meaning`; that of a cut stays."""
        if self.cut is None or not self.reason:
            self.reason = str(reason)
        self.judge(str(reason), meaning or self._wire.meaning(str(reason)))

    def judge(self, word: str, meaning: FinishReason) -> None:
        """Take what a reason means; `word` is how the provider put it."""
        if meaning in NATURAL:
            self._natural = True
        elif meaning == "doubtful" and self.cut is None:
            self._fault = unlisted(word)
        self.sign(meaning)

    def sign(self, meaning: FinishReason) -> None:
        """Take what says, in whatever way, that the reply ended like that."""
        if self.cut is None and meaning not in NATURAL:
            self.cut = meaning

    def called(self) -> None:
        """Take note of a piece of a call that is not empty: a reason that came before it is void."""
        self._voided = self._voided or self._natural

    def renewed(self) -> None:
        """Let a reason count again: on a wire without a mark, one after the last call is the end."""
        self._voided = False

    def stopped(self, *, ended: bool, torn: bool) -> None:
        """Note that no more follows. `ended` is whether the provider said so by the wire's own mark,
        `torn` whether the transport stopped before its own end, or in the middle of an event."""
        by_reason = self._natural and not self._voided and not self._wire.always_done
        if torn or not (ended or by_reason):
            self.sign("incomplete")

    def calls(self, assembler: CallAssembler) -> tuple[ToolCall, ...]:
        """Return the calls, whose arguments may be the only sign that the reply was cut."""
        calls, cut = assembler.finish(cut=self.cut is not None)
        if cut:
            self.sign("length")
        if self._fault is not None:
            calls = tuple(msgspec.structs.replace(call, fault=self._fault) for call in calls)
        if self.notes:
            notes = tuple(dict.fromkeys(self.notes))
            calls = tuple(msgspec.structs.replace(c, notes=c.notes + notes) for c in calls)
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
        """Return the reply. `text` is what the model said, in pieces; `state`
        what has to go back as it came.

        `refused` is whether the text is a refusal that came to its own end.
        """
        kept = ProviderState(self._wire.keeper, state) if state else None
        natural: FinishReason = "refusal" if refused else "stop"
        if calls:
            natural = "tool_calls" if any(call.complete for call in calls) else "doubtful"
        return Reply(
            Message("assistant", mended("".join(text)), calls, provider_state=kept),
            self.cut or natural,
            usage,
            self._offer,
            self.reason or None,
            raw,
        )


def unlisted(reason: str) -> CallFault:
    """Return what is wrong with the calls of a reply that ended for a reason that nobody has listed."""
    said = safe_text(reason, 60)
    return CallFault(
        ErrorCode.TRUNCATED,
        f"The reply ended for the reason {said!r}, which is not listed as a natural end: its calls do"
        f" not run. If it is one, the application lists it: natural_reasons=[{said!r}].",
    )


# Reasons for the end of a reply that several wires know: gateways pass on the model's own.


GEMINI_FILTERED: dict[str, FinishReason] = {
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "model_armor": "content_filter",
    "image_safety": "content_filter",
    "image_prohibited_content": "content_filter",
    "image_recitation": "content_filter",
}
"""https://ai.google.dev/api/generate-content#FinishReason, those of a filter, in lower case."""
