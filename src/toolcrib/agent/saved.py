"""Checks of a saved run before it continues, and the arguments of its calls that wait.

A model answers for the view of a schema that its provider was sent, and what it sends may have been
repaired; a default factory makes its value once per call. The restorer is known only to the offer
of that one request, and a repairer may be a model. A run that waits, and resumes in another process
or with another model, must arrive at exactly the arguments that somebody was asked to approve.

Rule: a saved state is checked for contradictions before a call in it runs. The questions that it
shows must be those that its calls lead to, field by field, and its counts must match its records.
That detects a state in which one thing was changed. Only a signature (`state_key`) detects a change
by somebody who may change everything.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

import msgspec

from toolcrib.agent.history import running_calls
from toolcrib.agent.inner import inner_run_id
from toolcrib.errors import ApprovalError, ErrorCode, SourceError, Stage
from toolcrib.hydration import RepairRequest, hydrate, repair
from toolcrib.runner import ToolRunner, approval_request
from toolcrib.runner.approval import approved_call, checked_answer, differing, request_id
from toolcrib.runner.stopped import Stopped, rejection
from toolcrib.values.call import (
    Hydrated,
    HydrationResult,
    Rejected,
    ToolCall,
    name_in_records,
)
from toolcrib.values.context import RunTally, ToolApproval
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Ask, OuterCall
from toolcrib.values.json import JsonObject, canonical_json, digest, to_plain
from toolcrib.values.message import Offer
from toolcrib.values.record import (
    FOR_RUN,
    FOR_RUN_EXACTLY,
    CallError,
    ToolInvocationRecord,
)
from toolcrib.values.run import RepairedText, RunState, saved_run
from toolcrib.values.step import ArgumentsStep

T = TypeVar("T")
_TOLERANCE = 1e-9


def check_state(state: RunState) -> None:
    """Raise SourceError, naming the field, for a state whose parts contradict one another."""
    for name, number in _counts(state):
        if not -_TOLERANCE <= number < math.inf:
            raise changed(name, "it is not a valid count")
    for field, why, wrong in _contradictions(state):
        if wrong:
            raise changed(field, why)
    for call_id, suspended in state.suspended.items():
        inner, field_path = saved_run(suspended), f"suspended['{call_id}']"
        call = OuterCall(state.run_id, call_id, suspended.call.tool)
        is_foreign = inner.run_id != inner_run_id(state.run_id, call_id) or suspended.call != call
        if is_foreign or _differs(inner.caller, state.caller):
            raise changed(field_path, "it does not belong to the run that this call began")
        requests = [each for each in state.pending if each.call_in(state.run_id) == call_id]
        if not requests or _differs(inner.pending, tuple(requests)):
            raise changed(field_path, "its questions are not those in `pending`")
        check_state(inner)


def _counts(state: RunState) -> Iterator[tuple[str, float]]:
    tally, inner = state.tally, state.tally.inner
    yield from (("turn", state.turn), ("elapsed", state.elapsed))
    for prefix, values, names in (
        ("tally.", tally, ("calls", "cost", "tokens")),
        ("", state, ("corrections",)),
        ("tally.inner.", inner, ("turns", "calls", "cost")),
        ("usage.", state.usage, state.usage.__struct_fields__),
    ):
        yield from ((f"{prefix}{name}", getattr(values, name)) for name in names)
    for prefix, numbers in (
        ("tally.inner.per_tool", inner.per_tool),
        ("tally.inner.cost_per_tool", inner.cost_per_tool),
        ("tally.per_tool", tally.per_tool),
        ("tally.cost_per_tool", tally.cost_per_tool),
        ("tally.seconds_per_tool", tally.seconds_per_tool),
    ):
        yield from ((f"{prefix}['{name}']", number) for name, number in numbers.items())
    yield from ((f"suspended['{id_}'].times", each.times) for id_, each in state.suspended.items())


_Checks: TypeAlias = Iterator[tuple[str, str, bool]]
"""For a state: each field, what would be wrong with it, and whether it is."""


def _contradictions(state: RunState) -> _Checks:
    tally, caller = state.tally, state.caller
    is_foreign = any(
        record.caller != caller.id
        # records without an origin are older than the roles in them
        or (record.origin is not None and record.caller_roles != caller.roles)
        for record in state.records
    )
    yield "caller", "the records have another caller", is_foreign
    is_emulated = state.emulated or not any(record.emulated for record in state.records)
    yield "emulated", "the records say that results were made up", not is_emulated
    yield "tally.run_id", "it belongs to another run", tally.run_id not in ("", state.run_id)
    names = {call.id: call.name for message in state.messages for call in message.tool_calls}
    answered_ids = {message.call_id for message in state.messages if message.role == "tool"}
    for index, record in enumerate(state.records):
        yield f"records[{index}].run_id", "it belongs to another run", record.run_id != tally.run_id
        is_unknown = record.id not in answered_ids or record.id not in names
        yield f"records[{index}].id", "no call with a result has this id", is_unknown
        name = names.get(record.id, "")
        is_renamed = record.name not in (name, name_in_records(name))
        yield f"records[{index}].name", "its call has another name", is_renamed
    yield "turn", "it does not fit the turns of the calls", _is_another_turn(state)
    yield from _count_contradictions(state, names)
    for_run = {FOR_RUN, FOR_RUN_EXACTLY}
    answers = {r.approval_id: r for r in state.records if not for_run.isdisjoint(r.notes)}
    for index, approval in enumerate(tally.approved):
        answer_record = answers.get(approval.id)
        is_unknown = answer_record is None or approval != _approval_in(
            answer_record, approval, tally
        )
        is_unknown = is_unknown or approval.caller != caller.id
        yield f"tally.approved[{index}]", "no record of this run has that answer", is_unknown
    yield (
        "arrived",
        "no call in the background is waiting for that result",
        _has_unexpected_result(state),
    )
    positions = [(mark.turn, mark.at) for mark in state.marks]
    is_beyond = any(mark.turn > state.turn or mark.at > len(state.messages) for mark in state.marks)
    is_wrong = (
        is_beyond
        or positions != sorted(positions)
        or any(min(position) < 0 for position in positions)
    )
    yield "marks", "no turn begins there", is_wrong


def _count_contradictions(state: RunState, names: Mapping[str, str]) -> _Checks:
    """Check the counts of a state against its records, and against each other.

    `names` are the names of its calls.
    """
    tally, inner, called = state.tally, state.tally.inner, state.tally.per_tool
    recorded_ids = {record.id for record in state.records}
    begun = Counter(
        names.get(call_id, "") for call_id in tally.begun if call_id not in recorded_ids
    )
    yield "tally.begun", "no call has that id", "" in begun
    recorded = Counter(record.name for record in state.records) + begun
    is_missing = any(number > recorded[name] for name, number in called.items())
    yield "tally.per_tool", "not all calls that were made have a record", is_missing
    is_wrong = sum(inner.per_tool.values()) != inner.calls
    yield "tally.inner", "it is not the number of the calls that were made", is_wrong
    is_wrong = not math.isclose(inner.cost, sum(inner.cost_per_tool.values()), abs_tol=_TOLERANCE)
    is_wrong = is_wrong or not inner.cost_per_tool.keys() <= inner.per_tool.keys()
    yield "tally.inner", "it is not the cost of the calls that were made", is_wrong
    ended = Counter(record.name for record in state.records if record.status == "completed")
    completed, own_calls = ended + begun, tally.calls - inner.calls
    is_wrong = own_calls != sum(called.values()) or own_calls < completed.total()
    yield "tally.calls", "it is not the number of the calls that were made", is_wrong
    is_wrong = any(called.get(name, 0) < number for name, number in completed.items())
    yield "tally.per_tool", "a tool completed more often than that", is_wrong
    for field, tools in (
        ("cost_per_tool", called.keys()),
        ("seconds_per_tool", called.keys() | inner.per_tool.keys()),  # from the run that was forked
    ):
        is_uncalled = not getattr(tally, field).keys() <= tools
        yield f"tally.{field}", "it names a tool that was not called", is_uncalled
    costs = sum(tally.cost_per_tool.values(), inner.cost)
    is_wrong = not math.isclose(tally.cost, costs, abs_tol=_TOLERANCE)
    yield "tally.cost", "it is not the cost of the calls that were made", is_wrong
    tokens = state.usage.input_tokens + state.usage.output_tokens
    yield "tally.tokens", "it does not fit `usage`", tally.tokens != tokens


def _has_unexpected_result(state: RunState) -> bool:
    """Return whether the later results in a state do not match the calls shown as running.

    A running call with a record must have one, a running call without a record may have one, and
    no other call may.
    """
    running = running_calls(state.messages)
    arrived = {message.call_id for message in state.arrived if message.role == "user"}
    recorded = running & {record.id for record in state.records}
    return len(arrived) < len(state.arrived) or not recorded <= arrived <= running


def _differs(one: object, other: object) -> bool:
    """Return whether two values are different JSON: to Python, 1 equals True."""
    return canonical_json(to_plain(one)) != canonical_json(to_plain(other))


def _approval_in(
    record: ToolInvocationRecord, approval: ToolApproval, tally: RunTally
) -> ToolApproval:
    """Return the approval for the whole run that a record has.

    If the record does not show all arguments that it was about, they are taken from `approval`.
    """
    mac = ""
    if FOR_RUN not in record.notes:
        shows_all = record.arguments_sha256 and not any(
            note.startswith("undeclared:") for note in record.notes
        )
        mac = approval.arguments_mac
        if shows_all:
            mac = tally.mac(canonical_json(record.arguments), record.defaulted)
        mac = mac or "of arguments that no record shows"
    by, digest = record.approved_by or "", record.definition_digest
    return ToolApproval(record.approval_id, by, digest, record.caller, mac)


def _is_another_turn(state: RunState) -> bool:
    """Return whether calls were made in a turn that had not begun, or wait in another turn."""
    turns = [record.origin.turn for record in state.records if record.origin is not None]
    asking_turn = 0 if state.origin is None else state.origin.turn
    is_other = bool(state.pending and asking_turn) and asking_turn != state.turn
    return is_other or state.turn < max((*turns, asking_turn))


_ARGUMENTS = frozenset(("id", "arguments", "arguments_digest"))


def check_as_asked(state: RunState, calls: Sequence[HydrationResult]) -> None:
    """Raise SourceError, naming the field, unless the calls that wait are what `pending` shows.

    If a tool's definition has changed, nothing else can be compared: its call ends as
    `approval_mismatch`, as for any changed tool. Nor can the arguments be compared if the tool's
    own code fails now, or refuses them: its call ends with that error, and nobody has changed
    anything.
    """
    waiting = {call.call.id: call for call in calls}
    for call_id, suspended in state.suspended.items():  # its own questions have been compared
        call, field_path = waiting.pop(call_id, None), f"suspended['{call_id}']"
        if call is None:
            raise changed(field_path, "no call of that id waits")
        if suspended.approval is not None and _differing_fields(suspended.approval[0], call, state):
            raise changed(f"{field_path}.approval", "it is not what the call would run with")
    for index, request in enumerate(state.pending):
        if request.call_in(state.run_id) in state.suspended:
            continue
        call = waiting.pop(request.call_id, None)
        if call is None:
            raise changed(f"pending[{index}].call_id", "no call of that id waits")
        fields = _differing_fields(request, call, state)
        values = call.building.factory_values if isinstance(call, Hydrated) else None
        if values is not None and values.anew and _ARGUMENTS.issuperset(fields):
            continue  # a default factory made another value, and no answer lets the call run
        if fields:
            raise changed(
                f"pending[{index}].{fields[-1]}", "it is not what the call would run with"
            )
    if waiting:
        call = next(iter(waiting.values()))
        raise changed("pending", f"nobody was asked about the call '{call.call.id}'")


def check_answers(state: RunState, answers: Mapping[str, Answer]) -> None:
    """Raise ApprovalError for an answer to a question that the state does not ask."""
    unasked = answers.keys() - {request.id for request in state.pending}
    if unasked:
        problem = f"an answer to {min(map(repr, unasked))}, which this state does not ask about"
        raise ApprovalError(
            f"{problem}: its questions are in `pending`", ErrorCode.UNKNOWN_APPROVAL
        )


def _differing_fields(
    request: ApprovalRequest, call: HydrationResult, state: RunState
) -> list[str]:
    """Return the fields of a question that do not fit its call, derived fields first."""
    is_intact = request.arguments_digest in ("", digest(request.arguments))
    definition = call.definition
    if definition is None or definition.name != request.tool:
        return ["tool"]
    if definition.digest != request.definition_digest:
        is_same = is_intact and (
            not request.arguments_digest or request.id == request_id(request, state.tally)
        )
        return [] if is_same else ["id" if is_intact else "arguments"]
    if not isinstance(call, Hydrated):
        error = call.errors[0]
        is_tool_fault = error.stage is Stage.INSTANTIATE or error.code is ErrorCode.UNUSABLE_TOOL
        return [] if is_tool_fault and is_intact else ["arguments"]
    question = Ask(request.reason)
    expected = approval_request(call, question, caller=state.caller, run=state.tally)
    return differing(request, expected)


def changed(field: str, why: str) -> SourceError:
    return SourceError(f"the saved state was changed: {field}: {why}")


class _StoredRestorer(msgspec.Struct, frozen=True):
    arguments: JsonObject

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return a copy of the restored arguments, validated once; a tool may change it."""
        return copy.deepcopy(self.arguments)

    def to_view(self, arguments: JsonObject) -> JsonObject:
        return arguments


class _StoredRepair:
    """The repairer of one call that was repaired before."""

    def __init__(self, repaired: RepairedText) -> None:
        self.name = repaired.by
        self._text = repaired.text

    async def __call__(self, _request: RepairRequest) -> str:
        return self._text


class Restored:
    """Keeps, by call id, the arguments that waiting calls were restored or repaired to."""

    def __init__(self, runner: ToolRunner, state: RunState) -> None:
        self._runner = runner
        self._restored: dict[str, JsonObject] = {}
        self._repaired: dict[str, RepairedText] = {}
        self._pinned: dict[str, JsonObject] = {}
        self.take(state)

    def take(self, saved: RunState | ArgumentsStep) -> None:
        """Take over arguments that were restored or repaired elsewhere."""
        self._restored |= saved.restored
        self._repaired |= saved.repaired
        self._pinned |= saved.pinned

    def arguments_of(self, calls: Iterable[ToolCall]) -> ArgumentsStep:
        """Return what is known of the arguments of the calls that still wait."""
        ids = [call.id for call in calls]
        return ArgumentsStep(
            _subset(ids, self._restored), _subset(ids, self._repaired), _subset(ids, self._pinned)
        )

    async def hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        """Hydrate a call; one that was hydrated before gets the same arguments again."""
        if call.id in self._restored:
            restorer = _StoredRestorer(self._restored[call.id])
            offer = msgspec.structs.replace(offer, restorers={call.name: restorer})
        result = await self._hydrate(call, offer)
        provenance = result.provenance
        if isinstance(result, Hydrated) and "restored" in provenance.notes:
            self._restored[call.id] = result.building.sent
        if isinstance(result, Hydrated) and result.building.pinned:
            self._pinned[call.id] = result.building.pinned
        if isinstance(result, Hydrated) and provenance.repaired_arguments is not None:
            self._repaired[call.id] = RepairedText(
                provenance.repaired_arguments, provenance.repaired_by
            )
        return result

    def text(self, call: ToolCall) -> str:
        """Return the arguments as they were validated: a provider can be sent these again."""
        repaired = self._repaired.get(call.id)
        return call.arguments if repaired is None else repaired.text

    async def _hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        repaired, pinned = self._repaired.get(call.id), self._pinned.get(call.id)
        if repaired is None:
            return await self._runner.hydrate(call, offer, pinned=pinned)
        result = hydrate(call, offer, pinned=pinned)
        if not isinstance(result, Rejected):
            del self._repaired[call.id]  # it runs with what was sent, and the history says so
            return result
        return await repair(result, offer, _StoredRepair(repaired), pinned=pinned)


def _subset(ids: Iterable[str], entries: Mapping[str, T]) -> dict[str, T]:
    return {id_: entries[id_] for id_ in ids if id_ in entries}


async def edit_fault(
    runner: ToolRunner, state: RunState, request: ApprovalRequest, answer: Approve
) -> CallError | None:
    """Return why a waiting call could not run with an approver's arguments.

    None if it could, and also if only its run can tell. No tool runs.
    """
    calls = (call for message in state.messages for call in message.tool_calls)
    call = next((call for call in calls if call.id == request.call_id), None)
    if request.run_id != state.run_id or call is None or call.name not in runner.catalog:
        return None
    restored = Restored(runner, state)
    result = await restored.hydrate(call, Offer.of([runner.catalog[call.name]]))
    if not isinstance(result, Hydrated):
        return None
    try:
        answer = cast("Approve", checked_answer(answer))
        approved = approved_call(
            result, answer, runner.catalog, lambda _call, _raised: None, asked=request
        )
    except ApprovalError as error:
        return CallError.of(error.code, str(error))
    except Stopped as stopped:
        return stopped.error
    return rejection(approved) if isinstance(approved, Rejected) else None
