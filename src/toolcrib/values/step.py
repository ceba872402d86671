"""The results that a durable run stores for its steps: model replies, summaries, outcomes of calls.

Rule: a step is done once, whichever process continues the run. Its result is JSON and everything
the run needs from it, so that the model is told the same again and the same is spent. It contains
no objects of a process: a client makes the offer of a reply anew (`offer_of`), and a tool's value
is stored as JSON.

Rule: whether a step exists follows from what is stored before it, never from the tools that exist
now, because another version of the program may continue the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, assert_never, runtime_checkable

import msgspec

from toolcrib.values.call import TOOL_CHANGED, ToolCall
from toolcrib.values.content import Part
from toolcrib.values.context import RunTally, ToolApproval
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, Redacted, fresh
from toolcrib.values.message import ChatRequest, LLMClient, Offer, Reply, Usage
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
"""`told`: the call did not begin, and its end was reported within the step.

`kept`: the call began, and its end is reported everywhere once the step is stored. `known`: the
call had ended before, and was reported then.
"""
FindDefinition: TypeAlias = Callable[[str], ToolDefinition | None]
_SAME_AS_PUBLIC = msgspec.Raw(b"")


class CallStep(Redacted, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a call, with the model's view, and its share of the tally.

    `value` and `model` are JSON, left out if they equal the public result. `elapsed` is how many
    seconds the run had taken by then.
    """

    redacted: ClassVar[tuple[str, ...]] = (
        "value",
        "model",
        "notice",
        "model_text",
        "parts",
        "model_parts",
    )

    record: ToolInvocationRecord
    end: CallEnd
    elapsed: float
    value: msgspec.Raw = _SAME_AS_PUBLIC
    model: msgspec.Raw = _SAME_AS_PUBLIC
    notice: str = ""
    model_text: str = msgspec.field(default="", name="told")
    parts: tuple[Part, ...] = ()
    model_parts: tuple[Part, ...] = ()
    request: ApprovalRequest | None = None
    others: tuple[ApprovalRequest, ...] = ()
    suspended: SuspendedCall | None = None
    tainted: bool = False
    approved: tuple[ToolApproval, ...] = ()

    @staticmethod
    def of(outcome: Outcome, value: bytes | None, end: CallEnd, tally: RunTally) -> CallStep:
        """Return what is stored of an outcome; `value` is the tool's value as JSON, or None."""
        record = outcome.record
        fields: dict[str, Any] = {}
        names: tuple[str, ...]
        match outcome:
            case Waiting():
                names = ("request", "others", "suspended")
            case Failed():
                names = ("notice", "model_text")
            case Completed():
                names = ("notice", "parts", "model_parts")
                public = bytes(record.result_json)
                texts = {"value": public if value is None else value, "model": outcome.model_json}
                fields = {name: msgspec.Raw(t) for name, t in texts.items() if t != public}
            case _:
                assert_never(outcome)
        fields |= {name: getattr(outcome, name) for name in names}
        return CallStep(
            record=record,
            end=end,
            elapsed=tally.elapsed,
            tainted=tally.tainted,
            approved=tuple(
                approval for approval in tally.approved if approval.id == record.approval_id
            ),
            **fields,
        )

    @property
    def outcome(self) -> Outcome:
        """The outcome, as it was reported."""
        record = self.record
        if self.request is not None:
            return Waiting(record, self.request, self.others, self.suspended)
        if record.status != "completed" and record.error is not None:
            return Failed(record, record.error, self.notice, model_text=self.model_text)
        public = bytes(record.result_json)
        value, model = (bytes(text) for text in (self.value, self.model))
        tool_value, notice = fresh(value or public), self.notice
        parts, visible_parts = self.parts, self.model_parts
        return Completed(
            record, tool_value, model or public, notice, parts=parts, model_parts=visible_parts
        )


class ReplyStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply, without its offer and without what is kept for observability only.

    `definitions` holds the digests of the called tools' definitions, as the model knew them.
    `given` names the capabilities that the run had been given; whoever continues it must give them
    again before one of its calls runs.

    Which steps follow is stored, too, because another version of the program may know other tools:
    `makes_arguments` says whether the arguments of its calls are a step, and `background` names the
    called tools that run in the background.
    """

    reply: Reply
    elapsed: float
    definitions: dict[str, str] = {}
    given: tuple[str, ...] = ()
    makes_arguments: bool = False
    background: tuple[str, ...] = ()

    @staticmethod
    def of(
        reply: Reply,
        elapsed: float,
        find: FindDefinition,
        given: tuple[str, ...] = (),
        *,
        makes_arguments: bool = False,
    ) -> ReplyStep:
        stored_reply = msgspec.structs.replace(reply, offer=Offer(), raw=None, events=())
        definitions = {call.name: find(call.name) for call in reply.tool_calls}
        digests = {
            name: definition.digest
            for name, definition in definitions.items()
            if definition is not None
        }
        background = in_background(reply.tool_calls, find)
        return ReplyStep(stored_reply, elapsed, digests, given, makes_arguments, background)

    def with_changes(self, find: FindDefinition) -> Reply:
        """Return the reply, with a note on each call whose tool has changed since."""
        digests, reply = self.definitions, self.reply
        definitions = {name: find(name) for name in digests}
        changed = {
            name
            for name, definition in definitions.items()
            if definition and definition.digest != digests[name]
        }
        if not changed:
            return reply
        calls = tuple(
            msgspec.structs.replace(call, notes=(*call.notes, TOOL_CHANGED))
            if call.name in changed
            else call
            for call in reply.tool_calls
        )
        message = msgspec.structs.replace(reply.message, tool_calls=calls)
        return msgspec.structs.replace(reply, message=message)


def in_background(calls: Iterable[ToolCall], find: FindDefinition) -> tuple[str, ...]:
    """Return the names of the called tools that run in the background."""
    definitions = {call.name: find(call.name) for call in calls}
    return tuple(
        name
        for name, definition in definitions.items()
        if definition and definition.annotations.background
    )


class ArgumentsStep(Redacted, msgspec.Struct, frozen=True, omit_defaults=True):
    """The repaired texts and factory values for the calls of a reply.

    `background` names the tools among them that run in the background, because calls of a saved run
    have no `ReplyStep` to say so.
    """

    redacted: ClassVar[tuple[str, ...]] = ("restored", "pinned")

    restored: dict[str, JsonObject] = {}
    repaired: dict[str, RepairedText] = {}
    pinned: dict[str, JsonObject] = {}
    background: tuple[str, ...] = ()


class SummaryStep(Redacted, msgspec.Struct, frozen=True):
    """A summary of the conversation, and what the run used for it: nothing if kept already."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    usage: Usage = Usage()


class ToolsStep(msgspec.Struct, frozen=True):
    """The tools that were picked for a run, and why."""

    names: tuple[str, ...]
    choice: Choice | None = None


@runtime_checkable
class MakesOffers(Protocol):
    """A client that can tell again, in any process, what it offered."""

    def offer(self, request: ChatRequest, reply: Reply) -> Offer: ...


def offer_of(client: LLMClient, request: ChatRequest, reply: Reply) -> Offer:
    """Return the offer of the request that this reply answers; empty if the client cannot tell."""
    return client.offer(request, reply) if isinstance(client, MakesOffers) else Offer()
