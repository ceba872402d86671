"""What a durable run keeps of its steps: replies of its model, summaries, and what became of its calls.

Rule: a step is done once, whichever process goes on with the run. What it gave is JSON, and all that
the run needs of it: the model is told the same again, and the same is spent. Objects of a process are
in none of it: a client makes the offer of a reply anew (`offer_of`), and a tool's value is its JSON.

Rule: whether there is a step follows from what is kept before it, never from the tools that there are
now: another version of the program goes on with the run.
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
from toolcrib.values.json import JsonObject, Veiled, fresh
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
"""`told`: the call did not begin, and its end was told within the step. `kept`: it began, and its end
is told everywhere once the step is kept. `known`: it had ended before, and was told then."""
FindDefinition: TypeAlias = Callable[[str], ToolDefinition | None]
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
    def of(outcome: Outcome, value: bytes | None, end: CallEnd, tally: RunTally) -> CallStep:
        """Return what is kept of an outcome; `value` is the JSON of the tool's value, None where nobody
        has it."""
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
        return CallStep(
            record=record,
            end=end,
            elapsed=tally.elapsed,
            tainted=tally.tainted,
            approved=tuple(each for each in tally.approved if each.id == record.approval_id),
            **fields,
        )

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


class ReplyStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply, without its offer and without what is kept of one for observability only. `definitions`
    has the digests of those of the called tools, as the model knew them; `given` names the capabilities
    that the run had been given: whoever goes on with it gives them again before a call of it runs.

    Which steps follow is kept, too, for another version of the program may know of other tools: whether
    the arguments of its calls are one (`makes_arguments`), and which of their tools run in the
    `background`."""

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
        bare = msgspec.structs.replace(reply, offer=Offer(), raw=None, events=())
        known = {call.name: find(call.name) for call in reply.tool_calls}
        digests = {name: found.digest for name, found in known.items() if found is not None}
        marked = in_background(reply.tool_calls, find)
        return ReplyStep(bare, elapsed, digests, given, makes_arguments, marked)

    def with_changes(self, find: FindDefinition) -> Reply:
        """Return the reply, and note on its calls which of their tools are others by now."""
        known, reply = self.definitions, self.reply
        found = {name: find(name) for name in known}
        changed = {name for name, now in found.items() if now and now.digest != known[name]}
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
    """Return the names of those of the called tools that run in the background."""
    found = {call.name: find(call.name) for call in calls}
    return tuple(name for name, tool in found.items() if tool and tool.annotations.background)


class ArgumentsStep(Veiled, msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds what a repairer made of the calls of a reply, and what default factories gave for them; and
    which of their tools run in the `background`: calls of a saved run have no `ReplyStep` there."""

    veiled: ClassVar[tuple[str, ...]] = ("restored", "pinned")

    restored: dict[str, JsonObject] = {}
    repaired: dict[str, RepairedText] = {}
    pinned: dict[str, JsonObject] = {}
    background: tuple[str, ...] = ()


class SummaryStep(Veiled, msgspec.Struct, frozen=True):
    """A summary of what was said, and what the run used for it: nothing where one was kept."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    usage: Usage = Usage()


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
