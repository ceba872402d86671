"""What a durable run keeps of its steps: the replies of its model, and what became of its calls.

Rule: a step is done once, whichever process goes on with the run. What it gave is JSON, and all that
the run needs of it: the model is told the same again, and the same is spent. Objects of a process are
in none of it: a client makes the offer of a reply anew (`offer_of`), and a tool's value is its JSON.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, TypeAlias, assert_never, runtime_checkable

import msgspec

from toolcrib.values.content import Part
from toolcrib.values.context import ToolApproval
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import JsonObject, Veiled, fresh
from toolcrib.values.message import ChatRequest, LLMClient, Offer, Reply
from toolcrib.values.record import (
    Choice,
    Completed,
    Failed,
    Outcome,
    SuspendedCall,
    ToolInvocationRecord,
    Waiting,
)
from toolcrib.values.run import RepairedText

CallEnd: TypeAlias = Literal["told", "kept", "known"]
"""`told`: the call did not begin, and its end was told within the step. `kept`: it began, and its end
is told everywhere once the step is kept. `known`: it had ended before, and was told then."""
_PUBLIC = msgspec.Raw(b"")


class CallStep(Veiled, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what became of a call: its outcome, with the model's view, and its share of the tally.

    `value` and `model` are JSON, left out where they are the public result. `elapsed` is how many
    seconds the run had taken by then.
    """

    veiled: ClassVar[tuple[str, ...]] = ("value", "model", "notice", "told", "parts", "model_parts")

    record: ToolInvocationRecord
    end: CallEnd
    elapsed: float
    value: msgspec.Raw = _PUBLIC
    model: msgspec.Raw = _PUBLIC
    notice: str = ""
    told: str = ""
    parts: tuple[Part, ...] = ()
    model_parts: tuple[Part, ...] = ()
    request: ApprovalRequest | None = None
    others: tuple[ApprovalRequest, ...] = ()
    suspended: SuspendedCall | None = None
    tainted: bool = False
    approved: tuple[ToolApproval, ...] = ()

    @staticmethod
    def of(outcome: Outcome, value: bytes | None, **told: Any) -> CallStep:
        """Return what is kept of an outcome; `value` is the JSON of the tool's value, None where nobody
        has it, and `told` the fields that no outcome has."""
        record = outcome.record
        fields: dict[str, Any] = {}
        names: tuple[str, ...]
        match outcome:
            case Waiting():
                names = ("request", "others", "suspended")
            case Failed():
                names = ("notice", "told")
            case Completed():
                names = ("notice", "parts", "model_parts")
                public = bytes(record.result_json)
                texts = {"value": public if value is None else value, "model": outcome.model_json}
                fields = {name: msgspec.Raw(t) for name, t in texts.items() if t != public}
            case _:
                assert_never(outcome)
        fields |= {name: getattr(outcome, name) for name in names}
        return CallStep(record=record, **fields, **told)

    @property
    def outcome(self) -> Outcome:
        """The outcome, as it was told."""
        record = self.record
        if self.request is not None:
            return Waiting(record, self.request, self.others, self.suspended)
        if record.status != "completed" and record.error is not None:
            return Failed(record, record.error, self.notice, told=self.told)
        public = bytes(record.result_json)
        value, model = (bytes(text) for text in (self.value, self.model))
        made, notice = fresh(value or public), self.notice
        parts, seen = self.parts, self.model_parts
        return Completed(record, made, model or public, notice, parts=parts, model_parts=seen)


class ReplyStep(msgspec.Struct, frozen=True):
    """A reply, without its offer and without what is kept of one for observability only."""

    reply: Reply
    elapsed: float

    @staticmethod
    def of(reply: Reply, elapsed: float) -> ReplyStep:
        bare = msgspec.structs.replace(reply, offer=Offer(), raw=None, events=())
        return ReplyStep(bare, elapsed)


class ArgumentsStep(Veiled, msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds what a repairer made of the calls of a reply, and what default factories gave for them."""

    veiled: ClassVar[tuple[str, ...]] = ("restored", "pinned")

    restored: dict[str, JsonObject] = {}
    repaired: dict[str, RepairedText] = {}
    pinned: dict[str, JsonObject] = {}


class ToolsStep(msgspec.Struct, frozen=True):
    """The tools that were picked for a run, and why."""

    names: tuple[str, ...]
    choice: Choice | None = None


@runtime_checkable
class MakesOffers(Protocol):
    """A client that can say again what it offered, in whichever process."""

    def offer(self, request: ChatRequest, reply: Reply) -> Offer: ...


def offer_of(client: LLMClient, request: ChatRequest, reply: Reply) -> Offer:
    """Return what the request offered that this reply answers; empty where the client cannot say."""
    return client.offer(request, reply) if isinstance(client, MakesOffers) else Offer()
