"""What became of arguments before they were decided on, kept for as long as their call waits.

A model answers for the view of a schema that its provider was sent, and what it sends may have been
repaired; and a default factory makes its value once a call. The restorer is known to the offer of
that one request, and a repairer may be a model; a run that waits, and goes on in another process or
with another model, must come to the very arguments that somebody was asked to approve.

A saved state is held against itself before a call in it runs: the questions that it shows are those
which its calls lead to, field by field, and its counts are those of its records. That finds a state in
which one thing was changed. Whoever may change all of it is found by a signature alone (`state_key`).
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode, SourceError
from toolcrib.hydration import RepairRequest, hydrate, repair
from toolcrib.runner import ToolRunner, approval_request
from toolcrib.runner.approval import approved_call, checked_answer, differing, request_id
from toolcrib.runner.stopped import Stopped, rejection
from toolcrib.values.call import Hydrated, HydrationResult, Rejected, ToolCall
from toolcrib.values.context import ToolApproval
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Ask, Caller
from toolcrib.values.json import JsonObject, JsonValue, digest
from toolcrib.values.offer import Offer
from toolcrib.values.record import FOR_RUN, CallError, ToolInvocationRecord
from toolcrib.values.run import RepairedText, RunState


def check_state(state: RunState) -> None:
    """Raises SourceError, naming the field, for a state whose parts contradict one another."""
    tally = state.tally
    counted = {
        "turn": state.turn,
        "elapsed": state.elapsed,
        "tally.calls": tally.calls,
        "tally.cost": tally.cost,
        "tally.tokens": tally.tokens,
        "corrections": state.corrections,
        **{f"usage.{name}": getattr(state.usage, name) for name in state.usage.__struct_fields__},
        **{f"tally.per_tool['{name}']": n for name, n in tally.per_tool.items()},
        **{f"tally.cost_per_tool['{name}']": n for name, n in tally.cost_per_tool.items()},
        **{f"tally.seconds_per_tool['{name}']": n for name, n in tally.seconds_per_tool.items()},
    }
    for name, number in counted.items():
        if not 0 <= number < math.inf:
            raise changed(name, "it is no count")
    for field, why, wrong in _contradictions(state):
        if wrong:
            raise changed(field, why)


def _contradictions(state: RunState) -> Iterator[tuple[str, str, bool]]:
    """Fields, what would be wrong with each, and whether it is."""
    tally, caller = state.tally, state.caller
    yield (
        "caller",
        "it is not the one of the records",
        any(_is_anothers(r, caller) for r in state.records),
    )
    yield "tally.run_id", "it is another run's", tally.run_id not in ("", state.run_id)
    names = {call.id: call.name for message in state.messages for call in message.tool_calls}
    told = {message.call_id for message in state.messages if message.role == "tool"}
    for at, record in enumerate(state.records):
        yield f"records[{at}].run_id", "it is another run's", record.run_id != tally.run_id
        unknown = record.id not in told or record.id not in names
        yield f"records[{at}].id", "no call with a result has it", unknown
        yield (
            f"records[{at}].name",
            "its call has another name",
            record.name != names.get(record.id),
        )
    yield "turn", "it is not the one of the calls", _is_another_turn(state)
    recorded = Counter(record.name for record in state.records)
    missing = any(number > recorded[name] for name, number in tally.per_tool.items())
    yield "tally.per_tool", "not all calls that were made have a record", missing
    completed = Counter(record.name for record in state.records if record.status == "completed")
    miscounted = tally.calls != sum(tally.per_tool.values()) or tally.calls < completed.total()
    yield "tally.calls", "it is not the number of the calls that were made", miscounted
    miscounted = any(tally.per_tool.get(name, 0) < number for name, number in completed.items())
    yield "tally.per_tool", "a tool completed more often", miscounted
    for field in ("cost_per_tool", "seconds_per_tool"):
        uncalled = not getattr(tally, field).keys() <= tally.per_tool.keys()
        yield f"tally.{field}", "it names a tool that was not called", uncalled
    spent = math.isclose(tally.cost, sum(tally.cost_per_tool.values()), abs_tol=1e-9)
    yield "tally.cost", "it is not the cost of the calls that were made", not spent
    tokens = state.usage.input_tokens + state.usage.output_tokens
    yield "tally.tokens", "it is not what `usage` says", tally.tokens != tokens
    answered = {_approval_in(record) for record in state.records if FOR_RUN in record.notes}
    for at, given in enumerate(tally.approved):
        unknown = given not in answered or given.caller != caller.id
        yield f"tally.approved[{at}]", "no call of this run has a record of that answer", unknown


def _approval_in(record: ToolInvocationRecord) -> ToolApproval:
    """Return the yes for the whole run that a record tells of."""
    by, digest = record.approved_by or "", record.definition_digest
    return ToolApproval(record.approval_id, by, digest, record.caller)


def _is_another_turn(state: RunState) -> bool:
    """Return whether calls were made in a turn that had not begun, or
    those that wait in another one."""
    made = [record.origin.turn for record in state.records if record.origin is not None]
    asked = 0 if state.origin is None else state.origin.turn
    is_other = bool(state.pending and asked) and asked != state.turn
    return is_other or state.turn < max((*made, asked))


def _is_anothers(record: ToolInvocationRecord, caller: Caller) -> bool:
    """Return whether a record names another caller; records without an origin
    are older than roles in them."""
    return record.caller != caller.id or (
        record.origin is not None and record.caller_roles != caller.roles
    )


def _lacks_values(pinned: JsonObject) -> bool:
    """Return whether a default factory made what a saved run could not keep."""
    return any(isinstance(kept, list) and [] in kept for kept in pinned.values())


def check_as_asked(state: RunState, calls: Sequence[HydrationResult]) -> None:
    """Raises SourceError, naming the field, unless the calls that wait are what `pending` shows.

    Of a tool whose definition is another one by now nothing else can be compared: its call ends as
    `approval_mismatch`, as that of any tool that has changed.
    """
    waiting = {call.call.id: call for call in calls}
    for at, request in enumerate(state.pending):
        call = waiting.pop(request.call_id, None)
        if call is None:
            raise changed(f"pending[{at}].call_id", "no call of that id waits")
        fields = _differing(request, call, state)
        if fields:
            why = "it is not what the call would run with"
            if _lacks_values(state.pinned.get(request.call_id, {})):
                why = "a default factory now makes another value, and JSON could not keep the first"
            raise changed(f"pending[{at}].{fields[-1]}", why)
    if waiting:
        call = next(iter(waiting.values()))
        raise changed("pending", f"nobody was asked about the call '{call.call.id}'")


def check_answers(state: RunState, answers: Mapping[str, Answer]) -> None:
    """Raises ApprovalError for an answer to a question that the state does not ask."""
    unasked = answers.keys() - {request.id for request in state.pending}
    if unasked:
        told = f"an answer to {min(map(repr, unasked))}, which this state does not ask about"
        raise ApprovalError(f"{told}: its questions are in `pending`", ErrorCode.UNKNOWN_APPROVAL)


def _differing(request: ApprovalRequest, call: HydrationResult, state: RunState) -> list[str]:
    """Return the fields of a question that do not fit its call, what follows from others first."""
    shown = request.arguments_digest in ("", digest(request.arguments))
    definition = call.definition
    if definition is None or definition.name != request.tool:
        return ["tool"]
    if definition.digest != request.definition_digest:
        fits = shown and (
            not request.arguments_digest or request.id == request_id(request, state.tally)
        )
        return [] if fits else ["id" if shown else "arguments"]
    if not isinstance(call, Hydrated):
        return ["arguments"]
    asked = Ask(request.reason)
    again = approval_request(call, asked, caller=state.caller, run=state.tally)
    return differing(request, again)


def changed(field: str, why: str) -> SourceError:
    return SourceError(f"the saved state was changed: {field}: {why}")


class _RestoredBefore(msgspec.Struct, frozen=True):
    """An argument restorer for one call whose arguments were restored before."""

    arguments: JsonObject

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return what it was restored to, which has been judged once; a
        copy, for a tool may change it."""
        return copy.deepcopy(self.arguments)

    def to_view(self, arguments: JsonObject) -> JsonObject:
        return arguments


class _Before:
    """The repairer of one call that was repaired before."""

    def __init__(self, known: RepairedText) -> None:
        self.name = known.by
        self._text = known.text

    async def __call__(self, _request: RepairRequest) -> str:
        return self._text


class Restored:
    """Keeps, by call id, the arguments that waiting calls were restored or repaired to."""

    def __init__(
        self,
        runner: ToolRunner,
        restored: Mapping[str, JsonObject],
        repaired: Mapping[str, RepairedText],
        pinned: Mapping[str, dict[str, JsonValue]],
    ) -> None:
        self._runner = runner
        self._known = dict(restored)
        self._repaired = dict(repaired)
        self._pinned = dict(pinned)

    async def hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        """Hydrate a call; one that was hydrated before gets the same arguments again."""
        if call.id in self._known:
            restorer = _RestoredBefore(self._known[call.id])
            offer = msgspec.structs.replace(offer, restorers={call.name: restorer})
        result = await self._judged(call, offer)
        told = result.provenance
        if isinstance(result, Hydrated) and "restored" in told.notes:
            self._known[call.id] = result.building.sent
        if isinstance(result, Hydrated) and result.building.pinned:
            self._pinned[call.id] = result.building.pinned
        if isinstance(result, Hydrated) and told.repaired_arguments is not None:
            self._repaired[call.id] = RepairedText(told.repaired_arguments, told.repaired_by)
        return result

    def restored(self, calls: Iterable[ToolCall]) -> dict[str, JsonObject]:
        """Return the restored arguments of the calls that still wait."""
        return {call.id: self._known[call.id] for call in calls if call.id in self._known}

    def repaired(self, calls: Iterable[ToolCall]) -> dict[str, RepairedText]:
        """Return the repaired texts of the calls that still wait."""
        return {call.id: self._repaired[call.id] for call in calls if call.id in self._repaired}

    def pinned(self, calls: Iterable[ToolCall]) -> dict[str, dict[str, JsonValue]]:
        """Return what default factories made for the calls that still wait."""
        return {call.id: self._pinned[call.id] for call in calls if call.id in self._pinned}

    def text(self, call: ToolCall) -> str:
        """Return the arguments as they were judged: what a provider can be sent again."""
        known = self._repaired.get(call.id)
        return call.arguments if known is None else known.text

    async def _judged(self, call: ToolCall, offer: Offer) -> HydrationResult:
        known, pinned = self._repaired.get(call.id), self._pinned.get(call.id)
        if known is None:
            return await self._runner.hydrate(call, offer, pinned=pinned)
        result = hydrate(call, offer, pinned=pinned)
        if not isinstance(result, Rejected):
            del self._repaired[call.id]  # it runs with what was sent, and the history says so
            return result
        return await repair(result, offer, _Before(known), pinned=pinned)


async def edit_fault(
    runner: ToolRunner, state: RunState, request: ApprovalRequest, answer: Approve
) -> CallError | None:
    """Return why a call that waits could not run with what an approver puts in place of its arguments;
    None if it could, and where only its run can tell. No tool runs."""
    found = (call for said in state.messages for call in said.tool_calls)
    call = next((call for call in found if call.id == request.call_id), None)
    if call is None or call.name not in runner.catalog:
        return None
    restored = Restored(runner, state.restored, state.repaired, state.pinned)
    result = await restored.hydrate(call, Offer.of([runner.catalog[call.name]]))
    if not isinstance(result, Hydrated):
        return None
    try:
        answer = cast("Approve", checked_answer(answer))
        approved = approved_call(result, answer, runner.catalog, lambda _call, _raised: None)
    except ApprovalError as error:
        return CallError.of(error.code, str(error))
    except Stopped as stopped:
        return stopped.error
    return rejection(approved) if isinstance(approved, Rejected) else None
